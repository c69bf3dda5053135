/* source.h - where a model comes from: a GGUF file or a Hugging Face folder, seen the same way.
 *
 * Tensor names are GGUF's ("blk.0.attn_q.weight"); a folder's own names are translated by the family's table
 * (engine/arch/). Nothing is copied: tensors point into mapped files. Immutable after opening; any thread. */
#ifndef PP_ENGINE_SOURCE_H
#define PP_ENGINE_SOURCE_H

#include <stdbool.h>

#include "engine/base/error.h"
#include "engine/types.h"

struct pp_gguf;
struct pp_source;

enum {
    PP_MAX_LAYERS = 1024,
    PP_SILENT_RANGES = 4,
    PP_MAX_EXPERTS = 1024,     /* of a layer */
    PP_MAX_EXPERTS_USED = 64,  /* by a row */
    PP_MAX_STREAMS = 16,
    PP_MAX_SWITCHED = 64,      /* adapters that a model has within itself */
    PP_HASH_TOKENS = 4,     /* that have an embedding together, by hashes */
    PP_HASH_HEADS = 64,     /* of those, for all numbers of tokens */
    PP_COMPRESS_PICKED = 4,    /* positions of a block of which an index picks */
    /* bits of pp_hparams.layer */
    PP_LAYER_WIDE = 1,       /* sees all positions, although the model has a window */
    PP_LAYER_UNROTATED = 2,  /* its heads are not rotated */
    PP_LAYER_LOCAL_ROPE = 4, /* they are by rope_base_local, unscaled */
    PP_LAYER_DENSE = 8,      /* one feed-forward part, although the model has experts */
    PP_LAYER_CONVOLVED = 16, /* a short convolution in place of attention */
    PP_LAYER_RECURRENT = 32, /* states instead of attention */
    PP_LAYER_SHARED = 64,    /* reads the cache of the last layer before it that has one of its shape and window */
    /* The last bit is one of two, as no family has both: */
    PP_LAYER_SHARING = 128,  /* Zambas: has a part whose weights are those of other layers, too */
    PP_LAYER_PICKED_BEFORE = 128, /* with index_top_k: sees what the index of the last layer before it that has one
                                     picked */
};

enum pp_stream_scale { PP_STREAM_STATES, PP_STREAM_ATTENTION, PP_STREAM_FF, PP_N_STREAM_SCALES };

/* The numbers that shape a decoder of the Llama kind. Taken from GGUF metadata or config.json, validated: positive,
 * within limits, heads divide evenly. */
struct pp_hparams {
    char arch[64];          /* GGUF architecture: "llama" */
    char name[128];         /* the model's own name, sanitised to printable UTF-8; may be "" */
    int64_t n_vocab;
    int64_t n_embd;
    int64_t n_layer;
    int64_t n_head;
    int64_t n_head_kv;
    int64_t head_dim;       /* explicit head size, or n_embd / n_head */
    int64_t head_dim_local; /* of layers with a window, where their heads have another size; 0: they have the same */
    bool uneven;            /* layers differ in numbers of heads, or in n_ff: `sizes` has those of each, n_head,
                               n_head_kv and n_ff are the largest */
    bool gaps;              /* some layers have no feed-forward part, n_ff being 0, or no attention: n_head is 0, or
                               n_head_kv is, and a projection stands in its place */
    bool one_part;          /* with gaps: each layer is states, attention, a feed-forward part or experts */
    struct pp_layer_sizes {
        int32_t n_head, n_head_kv, n_ff;
    } sizes[PP_MAX_LAYERS];
    bool keys_as_values;    /* layers without a window have no projection for values: those are what keys are before
                               they are normed and rotated */
    int64_t n_embd_in;      /* values of a token's embedding, of which a matrix makes n_embd, as another one makes so
                               few of those before the output; 0: n_embd */
    /* Embeddings of a token and those before it are added to its own, and all divided by their number: of each 2 to
     * `size` tokens `splits` of them, the i-th of a table of base + 2 i + 1 rows. `end`: a token that nothing before it
     * counts behind. */
    struct {
        int64_t size, splits, base, end; /* size 0: there are none */
    } ngram;
    /* Or one table has embeddings of 2 to `size` tokens, the row's own and those before it: for each number of tokens
     * `heads` rows, side by side, to which as many hashes lead (plan.h), each within rows of its own, n_rows of them. A
     * layer's streams take them in before its first part, through a convolution that looks at `taps` positions, `size`
     * apart. Before the first position, and before the last one that has it, there is nothing but the token `end`. In
     * a folder the table lies in `parts`. Qwen 4's. */
    struct pp_hashed {
        int64_t size, heads, width, taps, layer, end, parts; /* size 0: there are none; width: of a row */
        int64_t seed;       /* that multipliers were made from */
        int64_t multiplier[PP_HASH_TOKENS], n_rows[PP_HASH_HEADS];
    } hashed;
    /* LoRAs of its matrices that a model has within itself, n of them: each has a token that switches it on for what
     * comes behind, and that is read as another one (switched.c). A folder's tensors are of `rank`. */
    struct pp_switched_tokens {
        int64_t n, rank;
        float gain;
        int32_t token[PP_MAX_SWITCHED], read_as[PP_MAX_SWITCHED];
    } switched;
    int64_t n_embd_layer;   /* values of an input that each layer has for itself; 0: there is none */
    int64_t n_stream;       /* residual streams, of which layers read the first and write all; 0: there is one */
    bool hyper;             /* or each part of a layer reads a sum of them and writes to all, by numbers that are made
                               of all of them: hyper-connections */
    int64_t stream_rank;    /* hyper: instead, what they read is the mean of all streams, normed, each value with a
                               gate, which products of so many values make; 0: it is a sum */
    bool stream_mean;       /* what is behind the last layer is their mean; else a sum such as parts read */
    struct {
        float least, most, write_least;
        int64_t rounds;     /* 0: streams are not mixed */
    } connection;           /* struct pp_connection */
    int64_t laurel_rank;    /* of what stands beside attention then */
    float sparsity[PP_MAX_LAYERS]; /* gates lose what is not so many standard deviations above their mean; 0: nothing */
    /* Gates behind SiLU are at most this, and what they multiply is within it: of the feed-forward part or the expert
     * that every row uses, and of experts; 0: there is no bound. */
    float gate_bound[PP_MAX_LAYERS], expert_bound[PP_MAX_LAYERS];
    /* Latent attention (arXiv 2405.04434): a position has one vector that all heads make keys and values of, and one
     * rotated key beside it. The cache keeps these two, so that n_head_kv is 1 and head_dim kv_lora_rank + rope_dim. */
    int64_t kv_lora_rank;   /* values of that vector; 0: attention is of the usual kind */
    float latent_scale;     /* of that vector, behind its norm; 0: 1 */
    int64_t q_lora_rank;    /* values of a vector that queries are made of; 0: they are made of the input */
    int64_t qk_nope_dim;    /* of a head's query that are not rotated; rope_dim behind them are, perhaps 0 */
    int64_t v_head_dim;     /* of what attention gives for each head; also of the usual kind, where values are smaller
                               than keys, or with states_mean larger; 0: they are neither */
    int64_t kv_lora_rank_local, qk_nope_dim_local, v_head_dim_local; /* of layers with a window, where they differ; 0:
                               they do not */
    /* Attention whose rows see only the positions that an index picks: the index's heads and their size, and how many
     * it picks. Up to so many all are seen. 0: there is no index. Each alone, in latent attention (DeepSeek V3.2); or
     * blocks of index_block, for each head of keys by a head of the index's, the last index_local of them in any case
     * (MiniMax M3, whose layers without experts have no index); or blocks for all heads, each by one key that is made
     * of its positions', and what is behind the last whole block in any case: by a softmax of scores in latent
     * attention (GLM 5 Next), else the mean (Qwen 4). */
    int64_t n_index_head, index_dim, index_top_k, index_block, index_local;
    bool index_pooled;      /* the last of these */
    /* Attention whose one head of keys is that of values, too, of which the last rope_dim numbers are rotated, and
     * turned back in what attention gives; that goes through as many matrices as it has groups, of so many rows each.
     * Queries are made of q_lora_rank values (DeepSeek V4). */
    bool compressed;        /* it is of that kind */
    int64_t o_groups, o_rank;
    /* Its rows see `window` positions, and behind those the blocks of so many that end up to them, each by a key made
     * of all of them: of PP_COMPRESS_PICKED positions, and those before them, of which an index picks index_top_k; of
     * any other number all. 0: there are none, and the layer has PP_LAYER_LOCAL_ROPE. */
    int32_t compress[PP_MAX_LAYERS];
    int64_t n_table_layer;  /* of so many layers, the first ones, a table says which experts work for a token */
    bool index_halves;      /* its heads' pairs that are rotated are i and i + rope_dim / 2; else neighbours */
    /* Of layers with states (plan.h), which have a convolution in front; 0: there are none. */
    int64_t n_state_head, n_state_key_head, state_key_dim, state_value_dim;
    bool mamba;             /* they are Mamba's or Mamba 2's; else the gated delta rule's */
    int64_t state_rank;     /* Mamba's, whose steps are products of so many values; 0: Mamba 2's */
    int64_t n_scan_head;    /* with state_rank: so many times these states, each with steps, B and C of its own of a
                               part of the channels; what goes in and gates take turns: Zamba's. 0: once */
    bool state_by_head;     /* with state_rank: a step is a head's, and states are Mamba 2's all the same */
    bool state_unit;        /* those values, B and C are normed without weights, */
    float state_eps;        /* with this epsilon; 0: norm_eps; or what the delta rule gives is */
    bool state_twice;       /* the delta rule's beta goes up to 2 */
    int64_t tap_rank;       /* queries and keys of the delta rule have no convolution, and the taps of its values' are
                               made for each position, of so many values: Jet-Nemotron's; 0: they are weights */
    bool rwkv;              /* or RWKV's, whose layers are made otherwise: */
    bool rwkv4, rwkv6;      /* those of RWKV 4 or 6, else of RWKV 7 */
    bool rwkv_qwen;         /* in Qwen 2's layers: their norms and feed-forward part, and RWKV in place of attention */
    int64_t rwkv_ranks[4];  /* what decays, beta, values and gates have between two matrices, the last perhaps 0: there
                               are no gates; of RWKV 6 decays, and each of five ways to mix */
    int64_t halved_every;   /* the residual stream is halved behind each so many layers (RWKV 6); 0: it is not */
    int64_t lru_width;      /* or Griffin's, of so many channels; a "state" is 16 x 16 of them */
    /* Zamba2's layers with PP_LAYER_SHARING use so many blocks of attention and feed-forward part in turns; products of
     * low rank are added to the latter's matrix, and to q, k and v, which they may not be to. */
    int64_t n_shared_block, adapter_rank;
    bool adapted_attention;
    bool filtered;          /* queries and keys read the input through convolutions: Yuan 2's */
    bool lightning;         /* or lightning attention's, of as many heads as attention has: */
    int64_t state_groups;   /* what it gives is normed in so many groups of heads, and queries are divided by the root
                               of their size: Ling's. 0: all together, with an epsilon of its own: MiniMax's */
    bool state_silu;        /* with state_groups: queries, keys and values go through SiLU, which MiniMax's always do */
    bool state_rotated;     /* with state_groups: queries and keys are rotated, by halves */
    bool state_steady;      /* lightning attention's states forget as fast in all layers: MiniCPM-SALA's; else slower in
                               later ones */
    bool mlstm;             /* or xLSTM's, as many keys as heads; what they give is divided by state_eps, too, which may
                               be 0; */
    float gate_cap;         /* their gates, which are exponents, are softly capped by this */
    bool fused_parts;       /* what goes into them is one matrix, their gates are another, and gate and value of the
                               feed-forward part a third */
    bool biased_parts;      /* something is added behind all of those, and their norm */
    bool kda;               /* or the delta rule with a decay for each row of a state: Kimi Linear's */
    int64_t bank_step;      /* what comes into each such layer, from the first on, is kept, and what parts and the
                               output read is a mixture of that and the stream, which begins anew there; 0: none */
    /* Solar Pro's: bits 0 and 1: what comes into the layer is kept in the first or the second of two places; bits 2 and
     * 3: it becomes a mixture of what is there and itself, of the former this share, which files have as a tensor. 0:
     * no layer has any. */
    uint8_t skips[PP_MAX_LAYERS];
    float skip_share;
    float decay_bound;      /* kda: logarithms of decays are this times a sigmoid; 0: they have no bound */
    bool state_norm;        /* what they give is normed, where only some of the family's models do that: of Falcon-H1's
                               and ARWKV's */
    bool states_beside;     /* layers have states beside attention, which read the same */
    bool states_mean;       /* with that: one matrix gives what both read, and another reads the mean of what they give,
                               each normed: Hymba's */
    bool state_sigmoids;    /* what the delta rule gives has gates that are sigmoids, not SiLU */
    float state_scale;      /* and is multiplied by this; 0: 1 */
    bool state_tiled;       /* head h goes with key head h modulo n_state_key_head: GGUF's Qwen 3.5 */
    int64_t n_ff;
    int64_t n_ctx_train;
    int pooling;            /* enum pp_pooling */
    int64_t n_dense;        /* an encoder's vectors go through one matrix to so many values and through another back; 0:
                               they do not */
    int64_t n_embd_out;     /* of an encoder's vectors, which one matrix makes; 0: they are n_embd wide */
    int64_t n_segments;     /* an encoder's token types, of which we use the first */
    int64_t n_reserved_positions; /* of a folder: rows of its table of positions before the first position's */
    int64_t window;         /* positions that attention sees, the row's own included; 0: all. In an encoder to either
                               side */
    /* Or blocks of PP_PAGE_TOKENS positions: a head sees the last n_near, and of those before each far_step-th, its
     * neighbour those one earlier; layers near_step, 2 near_step ... see all, unless it is 0. n_near 0: all do. */
    int64_t n_near, far_step, near_step;
    int64_t kv_taps;        /* keys, before they are rotated, and values are sums over so many positions, with numbers
                               of each head; 0: they are not */
    bool chunked;           /* the window is a chunk: what is seen begins at its last multiple */
    int64_t n_start;        /* vectors of the model's own that stand before every text, as if they were tokens behind
                               those of the vocabulary; layers with a window keep them in sight. 0: there are none */
    uint8_t layer[PP_MAX_LAYERS]; /* what is special about each layer */
    /* Instead of what the family has: */
    enum pp_activation {
        PP_ACTIVATION_USUAL,
        PP_ACTIVATION_GELU,
        PP_ACTIVATION_GELU_TANH,
        PP_ACTIVATION_SILU,
        PP_ACTIVATION_RELU2,
        PP_ACTIVATION_RELU,
    } activation;
    int64_t conv_taps;      /* positions that a convolution looks at, its own included */
    bool conv_bias;         /* those layers' projections and sums have biases */
    bool parallel;          /* attention and feed-forward part read the same input, and both are added to it */
    bool post_norms;        /* there are norms behind the two as well, where only some models of the family have them */
    bool norms_behind;      /* the norms that stand before the two stand behind them, under the same names */
    bool norms_of_sums;     /* and it is the residual stream that they norm, with the part's result in it */
    bool plain_norms;       /* norms have nothing to multiply by or add, although those of the family do */
    bool no_output_norm;    /* there is none behind the last layer */
    bool two_norms;         /* where attention and feed-forward part read the same: of each a norm of its own,
                               attn_norm_2 in front of attention */
    bool heads_tiled;       /* query head h goes with key head h modulo n_head_kv: PLaMo's folders; else neighbours have
                               one in common */
    int64_t n_loops;        /* all layers are gone through so often, with keys and values of each time's own; 0: once */
    /* HRM-Text's: half of the layers are gone through so often in a row, then the others once, all of that so often;
     * 0: in no cycles. And whether the model was made to see prompts both ways, which they are not. */
    int64_t low_cycles, high_cycles;
    bool prefix_both_ways;
    bool loops_mixed;       /* the second time sees keys of the first, and within the window its own: decoder_loops.c */
    bool loops_unnormed;    /* the last norm stands behind the last of those only, else behind each */
    bool differential;      /* what the second half of the heads gives is taken off what the first half does, and both
                               see values of two heads side by side: DiffLlama's */
    bool heads_alternate;   /* of those the heads of both kinds take turns, and what they give is normed with weights:
                               Phi 4 Flash's and Motif's */
    bool difference_before; /* a layer's number begins with what in other families that of the layer before does:
                               Motif's */
    int64_t n_noise_head;   /* heads of the second kind are only so many, each behind a group of the first kind, and
                               what it gives is taken off what every head of the group does. n_head and attention count
                               it as often: Motif 2's; 0: there are as many of either */
    bool poly_gates;        /* gates are sums of their normed powers (decoder_poly.c): Motif's */
    int64_t memory_layer;   /* what this layer's scan gives, before its gate, is what later layers let through by gates
                               of their own, which have neither attention nor states (PP_LAYER_SHARING without
                               PP_LAYER_SHARED); 0: there are none */
    bool head_mixture;      /* queries, and what becomes of their heads' results, are made by those experts that a row
                               uses, as many heads each as there are of keys: JetMoE's */
    int64_t n_value_expert, n_value_expert_used; /* layers with experts have values by such as well, of which each row
                               uses so many: the sum of silu(W x), each with its weight: K2 Horizon's. 0: none */
    bool flat_head_norms;   /* norms of heads have a vector for each, one behind the other: K2 Horizon's */
    bool binary_gates;      /* what attention gives is multiplied by log2(1 + 2^g), g being attn_gate's product */
    bool convolved_heads;   /* queries and keys go through two convolutions and are of length 1, and half of the values
                               are those of the position before: ZAYA's */
    bool key_scores;        /* keys have a score of their own, which values give: Doge's */
    bool head_gates;        /* gates of what attention gives have one number for each head, not for each value */
    bool qk_norm;           /* queries and keys are normed, where only some of the family's models do that */
    float query_scale;      /* a folder's queries are multiplied by this behind norms of heads without weights; files
                               have it for the weights of those, and ones for keys'. 0: not so, or not known */
    float qkv_clamp;        /* queries, keys and values are at most this large, either way; 0: as large as they are */
    float attn_scale;       /* of scores; 0: 1 / sqrt(head_dim) */
    float attn_scale_local; /* with kv_lora_rank_local: of those of layers with a window */
    float attn_temperature; /* scores of the query at position p grow by 1 + attn_temperature ln(1 + floor(p /
                               rope_orig_ctx)); 0: they do not */
    int64_t attn_temperature_length; /* instead of rope_orig_ctx, positions being counted from 1; then scores of layers
                               that are rotated do not grow. 0: it is that one */
    int64_t attn_log_length; /* scores of the query at a position p behind this one are multiplied by ln p / ln of this,
                               behind their cap; 0: they are not */
    float alibi;            /* the exponent of ALiBi's slopes, usually 8, in place of rotated heads; 0: there is none */
    float attn_value_scale; /* of what attention gives; 0: 1 */
    float attn_softcap;     /* scores become cap tanh(score / cap); 0: they stay */
    float final_softcap;    /* likewise the logits */
    float router_softcap;   /* likewise the logits that choose experts */
    int64_t qkv_pieces;     /* a folder's PP_HF_QKV_IN_FOUR comes in so many pieces; 0: PP_HF_QKV_PIECES */
    bool unit_output;       /* a folder's rows of the output are to be made of length 1 */
    /* Tokens from `first` to the one before `end` are never given; both 0: there are no more of these. */
    struct {
        int64_t first, end;
    } silent[PP_SILENT_RANGES];
    float embd_scale;       /* of what goes into the first layer; 0: 1 */
    /* Of the stream, and of what layers with states, those with attention and feed-forward parts add to it: enum
     * pp_stream_scale; where a family has them. */
    float stream_scales[PP_N_STREAM_SCALES][2];
    float residual_scale;   /* of what is added to the residual stream; 0: 1 */
    float logit_scale;      /* of the logits; 0: 1 */
    int64_t n_expert;       /* 0: no mixture of experts */
    int64_t n_expert_idle;  /* further ones, behind those, which have no matrices and give what they read, */
    bool idle_silent;       /* or nothing */
    int64_t router_rank;    /* experts are chosen by what three matrices make of so many values, to which those of the
                               layer before are added: ZAYA's; 0: by the input itself */
    int64_t n_expert_used;  /* of them for each row */
    int64_t n_ff_expert;
    bool uneven_experts;    /* layers differ in both, of which these are the largest: */
    struct pp_layer_experts {
        int32_t n_used, n_ff; /* 0: the layer has no experts */
    } layer_experts[PP_MAX_LAYERS];
    int64_t n_embd_expert;  /* of what goes into experts and comes out of them; 0: n_embd */
    bool other_names;       /* a folder's names are not those that are written: the configuration is another, too */
    bool other_experts;     /* a folder has some for pictures behind these, which nobody uses */
    bool dense_beside;      /* layers with experts have a feed-forward part, too, which reads the same */
    int64_t n_ff_shared;    /* of the expert that every row uses, too, or without experts of a second feed-forward part;
                               0: there is none */
    bool shared_mean;       /* what that gives and what the others give are halved */
    int64_t n_expert_share; /* so many neighbouring experts share one that works beside them, with their weights
                               together; 0: there is none */
    int64_t n_ff_share;     /* of such */
    float expert_share_scale; /* of their weights */
    int64_t n_expert_group; /* groups of experts, of which only n_expert_group_used may be chosen from; 0: no groups */
    int64_t n_expert_group_used;
    bool expert_group_largest; /* they are chosen by their largest expert, not by the sum of the two largest */
    bool expert_shares;     /* an expert's weight is its share among all, not among those used */
    bool expert_sigmoids;   /* weights are the logits' sigmoids, not their softmax */
    bool expert_roots;      /* they are the roots of the logits' softplus */
    float expert_mixer;     /* weights are SparseMixer's, with this jitter; 0: they are not */
    float expert_scale;     /* of the weights; 0: 1 */
    /* What weights of a folder are multiplied by when they are read, as in GGUF files they are already. */
    struct pp_folder_scales {
        bool any;           /* else they are as they come */
        float embd, output, q, k, v, attn_output, ssm_out, ffn_gate, ffn_down;
        float ssm_in[5];    /* the rows that give gates, values, keys, queries and decays of states */
        bool latents;       /* norms of latent attention's vectors: by the root of n_embd over their size */
    } scales;
    int64_t n_nextn;        /* layers behind the last one that guess further tokens; nobody uses them */
    float norm_eps;
    int64_t norm_groups;    /* those of the stream are by so many parts of it, each by itself; 0: by all together */
    int64_t norm_rank;      /* each of their values has a gate, up to 2, which products of so many values make of what
                               is normed: GigaChat 3.5's; 0: none has */
    bool mean_square;       /* norms are by the root of the mean square, though those of the family take the mean off */
    float rope_base;
    float rope_base_local;  /* of layers with PP_LAYER_LOCAL_ROPE */
    int64_t rope_dim;       /* rotated dimensions of a head */
    int64_t rope_dim_local; /* of layers with PP_LAYER_LOCAL_ROPE; 0: the same */
    int64_t rope_turning;   /* pairs of dimensions that are rotated at all, those behind them standing still; 0: all.
                               Not by rope_base_local */
    bool rope_backwards;    /* pairs turn the other way round */
    bool rope_neox;         /* pairs (i, i + rope_dim/2): Hugging Face's layout; else (2i, 2i + 1): GGUF's llama */
    enum pp_rope_scaling {
        PP_ROPE_NONE,
        PP_ROPE_LINEAR,
        PP_ROPE_LLAMA3,
        PP_ROPE_YARN,
        PP_ROPE_DYNAMIC,        /* NTK-aware: a larger base for contexts longer than the original one */
        PP_ROPE_LONG,           /* LongRoPE: tensors rope_factors_long.weight, rope_factors_short.weight */
    } rope_scaling;
    float rope_factor;          /* of all but LONG */
    float rope_low_freq;        /* LLAMA3: low_freq_factor */
    float rope_high_freq;       /* LLAMA3: high_freq_factor */
    int64_t rope_orig_ctx;      /* of all but LINEAR, and of attn_temperature: original_max_position_embeddings */
    float rope_attn_factor;     /* YARN: 0 means 0.1 ln(factor) + 1. LONG: 0 means sqrt(1 + ln(context / original) /
                                   ln(original)), if the context is the longer */
    float rope_beta_fast, rope_beta_slow;
    bool rope_no_truncate;      /* YARN: the ramp begins and ends between dimensions */
    float yarn_log_multiplier;  /* latent attention: scores grow by the square of 1 + this ln(rope_factor); part of
                                   attn_scale already */
};

/* Values of a token's embedding. */
static inline int64_t pp_embedding_width(const struct pp_hparams *hp)
{
    return hp->n_embd_in ? hp->n_embd_in : hp->n_embd;
}

/* How many of a layer's experts a row uses, and how wide they are. */
static inline struct pp_layer_experts pp_layer_experts(const struct pp_hparams *hp, int64_t l)
{
    return hp->uneven_experts ? hp->layer_experts[l]
                              : (struct pp_layer_experts){(int32_t)hp->n_expert_used, (int32_t)hp->n_ff_expert};
}

/* What attention and the feed-forward part of one layer are as wide as. */
struct pp_layer_shape {
    int64_t n_head, n_head_kv, head_dim, n_ff, v_dim;
};
/* Of the values of a head whose keys are so long. */
static inline int64_t pp_value_dim(const struct pp_hparams *hp, int64_t head_dim)
{
    return hp->differential ? 2 * head_dim : hp->v_head_dim && !hp->kv_lora_rank ? hp->v_head_dim : head_dim;
}
/* Of a head's key in the cache. */
enum { PP_KEY_SCORE = 32 }; /* what key_scores add to it */
static inline int64_t pp_key_width(const struct pp_hparams *hp, int64_t head_dim)
{
    return head_dim + (hp->key_scores ? PP_KEY_SCORE : 0);
}
static inline bool pp_has_window(const struct pp_hparams *hp, int64_t l)
{
    return hp->window && !(hp->layer[l] & PP_LAYER_WIDE);
}
static inline struct pp_layer_shape pp_layer_shape(const struct pp_hparams *hp, int64_t l)
{
    const int64_t head_dim = hp->head_dim_local && pp_has_window(hp, l) ? hp->head_dim_local : hp->head_dim;
    const int64_t v_dim = pp_value_dim(hp, head_dim);
    if (!hp->uneven)
        return (struct pp_layer_shape){hp->n_head, hp->n_head_kv, head_dim, hp->n_ff, v_dim};
    return (struct pp_layer_shape){hp->sizes[l].n_head, hp->sizes[l].n_head_kv, head_dim, hp->sizes[l].n_ff, v_dim};
}
/* Of latent attention: the size of its vector, and of a head's keys, but for what is rotated, and values. */
struct pp_latent_shape {
    int64_t n_head, rank, n_key, n_value;
};
static inline struct pp_latent_shape pp_latent_shape(const struct pp_hparams *hp, int64_t l)
{
    const int64_t n_head = pp_layer_shape(hp, l).n_head;
    if (hp->kv_lora_rank_local && pp_has_window(hp, l))
        return (struct pp_latent_shape){n_head, hp->kv_lora_rank_local, hp->qk_nope_dim_local, hp->v_head_dim_local};
    return (struct pp_latent_shape){n_head, hp->kv_lora_rank, hp->qk_nope_dim, hp->v_head_dim};
}

/* path: a .gguf file, any of its parts if there are several (source_parts.h), or a folder with config.json and
 * safetensors. A path that does not exist is PP_ERR_NOT_FOUND; a family that is not known is PP_ERR_UNSUPPORTED and the
 * text lists those that are, or as many as it has room for. */
enum pp_code pp_source_open(const char *path, struct pp_source **out, struct pp_error *err);
/* The same, with the matrices of a folder quantised when they are filled, to a type or mixture as pp_quantize_name
 * takes it. NULL: as they are. imatrix: the file of an importance matrix that weighs their errors; or NULL.
 * PP_ERR_USAGE: there is no such type, an imatrix without a type, or it is a GGUF file, which is used as it is.
 * PP_ERR_MISMATCH: the imatrix is another model's. */
enum pp_code pp_source_open_as(const char *path, const char *quant, const char *imatrix, struct pp_source **out,
                               struct pp_error *err);
void pp_source_close(struct pp_source *s);

const char *pp_source_path(const struct pp_source *s);
const struct pp_gguf *pp_source_gguf(const struct pp_source *s);  /* NULL for a folder */
int pp_source_n_files(const struct pp_source *s);                 /* GGUF files; 0 for a folder */
const struct pp_gguf *pp_source_file(const struct pp_source *s, int i); /* the first is pp_source_gguf's */
const char *pp_source_folder(const struct pp_source *s);          /* NULL for a GGUF file */
/* Of a folder, what config.json says of the language model, with what it need not say of one that sees, too; NULL for a
 * GGUF file. */
struct cJSON;
const struct cJSON *pp_source_config(const struct pp_source *s);
/* Of a folder: whether the language model is only a part of it, whatever family it is of. */
bool pp_source_is_wrapped(const struct pp_source *s);
/* Whether the folder has layers that only look at pictures among those of its language model: layers' numbers there are
 * not ours. */
bool pp_source_leaves_layers(const struct pp_source *s);
/* PP_ERR_UNSUPPORTED for such a model: its adapters, read, made or converted, would count the layers otherwise. */
enum pp_code pp_source_check_adapters(const struct pp_source *s, struct pp_error *err);
const char *pp_source_quant(const struct pp_source *s);           /* "Q4_K_M": what it is quantised to; or NULL */
const char *pp_source_imatrix(const struct pp_source *s);         /* the path of what that is weighed by; or NULL */
const struct pp_hparams *pp_source_hparams(const struct pp_source *s);
/* Tokens that the model is never to write, as it says itself: [n], the source's. */
const int32_t *pp_source_suppressed(const struct pp_source *s, size_t *n);
extern const char pp_suppressed_key[]; /* what GGUF calls their list */
/* "blk.0.ffn_up.3.weight" is a matrix of one expert, "altup_proj.1.weight" one of a stream: where the number is, or
 * NULL. A number has one spelling, so that no matrix is in two stacks. */
const char *pp_expert_number(const char *name);
/* Whether a tensor "blk.46.eh_proj.weight" is of a layer behind the last one. */
bool pp_is_behind_layers(const struct pp_hparams *hp, const char *gguf_name);
/* Whether it is what RWKV's first layer would mix its values with themselves by: files have it, nobody reads it. */
bool pp_is_of_first_values(const struct pp_hparams *hp, const char *gguf_name);
/* The tensor in which files have both shares of pp_hparams.skips: of what was kept, and of the stream. */
extern const char pp_skip_shares[];
/* Whether it is one of the matrices that CogVLM has for pictures beside those for text. */
bool pp_is_for_pictures(const struct pp_hparams *hp, const char *gguf_name);
/* Of how many such matrices GGUF makes one tensor; and whether that is a matrix of all their rows, not a stack. */
int64_t pp_stack_size(const struct pp_hparams *hp, const char *name);
bool pp_stack_is_flat(const char *name);
/* The tensor in which GGUF has an expert's matrix, whether it is one of its own or a part of that already (pp_plan's
 * "blk.0.ffn_up_exps.weight[3]"); of others the same name. */
void pp_stack_name(const char *matrix, char out[256]);
/* What a matrix in a stack of experts (pp_plan's "blk.0.ffn_up_exps.weight[3]") is called where it is a tensor of its
 * own: "blk.0.ffn_up.3.weight"; of others the same name. */
void pp_matrix_name(const char *matrix, char *out, size_t cap);
/* By GGUF name, or NULL. For a folder, q and k projections are NOT permuted: hparams.rope_neox says so. */
const struct pp_tensor *pp_source_tensor(const struct pp_source *s, const char *gguf_name);
size_t pp_source_n_tensors(const struct pp_source *s);
const struct pp_tensor *pp_source_tensor_at(const struct pp_source *s, size_t i); /* carries the GGUF name */
int64_t pp_source_n_params(const struct pp_source *s);
size_t pp_source_bytes(const struct pp_source *s);                /* of all tensors */
/* "Q4_K_M", "F16", ...: from general.file_type, else from the tensors. */
const char *pp_source_type_name(const struct pp_source *s);
/* The chat template's source (Jinja), or NULL. Owned by the source. */
const char *pp_source_chat_template(const struct pp_source *s);
/* The one for conversations with tools, if the model has several; else the same. */
const char *pp_source_tool_template(const struct pp_source *s);
/* Tensors that have `rows` are made of what the folder has in another form: their data are zeros until they are filled.
 * Who computes with them calls this first; who copies them into a file asks their rows instead, so that nothing is kept
 * in memory. Done once; further calls return at once, or wait for the first. opt: what is NULL in it is not used. pool:
 * who helps, or NULL. Any thread; the pool's caller. */
struct pp_pool;
struct pp_cancel;
enum { PP_SOURCE_THREADS = 64 }; /* at most this many of a pool help */
struct pp_fill_options {
    void (*progress)(void *user, uint64_t done, uint64_t total); /* bytes */
    void *user;
    const struct pp_cancel *cancel;
};
enum pp_code pp_source_fill(const struct pp_source *s, struct pp_pool *pool, const struct pp_fill_options *opt,
                            struct pp_error *err);
size_t pp_source_to_fill(const struct pp_source *s); /* bytes, whether they were filled or not */
/* An error that names the file if a mapped file shrank under us, else PP_OK. Cheap: call after every pass. */
enum pp_code pp_source_check(const struct pp_source *s, struct pp_error *err);
/* Also if somebody has written into a file: for who makes another one of it, which would be of two. */
enum pp_code pp_source_check_unchanged(const struct pp_source *s, struct pp_error *err);
/* Whether a folder has GGUF files, and no weights of Hugging Face's; name: the first of them. Such a folder may have a
 * config.json, too. */
bool pp_folder_holds_gguf(const char *folder, char name[256]);

#endif
