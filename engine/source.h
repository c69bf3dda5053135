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
    PP_SUPPRESSED_RANGES = 4,
    PP_MAX_EXPERTS = 1024,     /* of a layer */
    PP_MAX_EXPERTS_USED = 64,  /* by a row */
    PP_MAX_STREAMS = 16,
    PP_MAX_SWITCHED = 64,      /* LoRAs inside a model file */
    PP_HASH_TOKENS = 4,     /* longest n-gram with a hashed embedding */
    PP_HASH_HEADS = 64,     /* hashes of all n-gram lengths together */
    PP_COMPRESS_PICKED = 4,    /* positions of a block, where an index picks blocks */
    /* bits of pp_hparams.layer */
    PP_LAYER_WIDE = 1,       /* sees all positions, although the model has a window */
    PP_LAYER_UNROTATED = 2,  /* its queries and keys are not rotated */
    PP_LAYER_LOCAL_ROPE = 4, /* they are rotated by rope_base_local, without scaling */
    PP_LAYER_DENSE = 8,      /* a plain feed-forward part, although the model has experts */
    PP_LAYER_CONVOLVED = 16, /* a short convolution instead of attention */
    PP_LAYER_RECURRENT = 32, /* recurrent states instead of attention */
    PP_LAYER_SHARED = 64,    /* uses keys and values of the last layer before it with its shape and window */
    /* These two share a bit, as no family has both: */
    PP_LAYER_SHARING = 128,  /* Zamba: has a block whose weights other layers use, too */
    PP_LAYER_PICKED_BEFORE = 128, /* with index_top_k: uses the positions that the index of the last layer before it
                                     with one has picked */
};

enum pp_stream_scale { PP_STREAM_STATES, PP_STREAM_ATTENTION, PP_STREAM_FF, PP_N_STREAM_SCALES };

/* The numbers that shape a model of any family, from GGUF metadata or config.json. Validated: positive, within limits,
 * heads divide evenly. States and operations (PP_OP_...) are those of plan.h. */
struct pp_hparams {
    char arch[64];          /* GGUF architecture: "llama" */
    char name[128];         /* the model's own name, sanitised to printable UTF-8; may be "" */
    int64_t n_vocab;
    int64_t n_embd;
    int64_t n_layer;
    int64_t n_head;
    int64_t n_head_kv;
    int64_t head_dim;       /* explicit head size, or n_embd / n_head */
    int64_t head_dim_local; /* of layers with a window, if their heads have another size; 0: all have the same */
    bool sizes_vary;        /* layers differ in numbers of heads or in n_ff: `sizes` has those of each layer, and
                               n_head, n_head_kv and n_ff are the largest */
    bool parts_missing;     /* some layers lack the feed-forward part (n_ff is 0) or attention: n_head is 0, or only
                               n_head_kv is, and a single projection replaces it */
    bool one_part;          /* with gaps: each layer is only one of states, attention, feed-forward part or experts */
    struct pp_layer_sizes {
        int32_t n_head, n_head_kv, n_ff;
    } sizes[PP_MAX_LAYERS];
    bool keys_as_values;    /* layers without a window have no projection for values, but use the keys as they are
                               before their norm and rotation */
    int64_t n_embd_in;      /* width of the embeddings, which one matrix brings to n_embd and another one, before the
                               output, back; 0: n_embd */
    /* N-gram embeddings are added to each token's own, and the sum is divided by their number. For each length from 2
     * to `size` there are `splits` of them, the i-th from a table of base + 2 i + 1 rows. `end`: a token that n-grams
     * do not reach beyond. */
    struct {
        int64_t size, splits, base, end; /* size 0: none */
    } ngram;
    /* Hashed n-gram embeddings (Qwen 4; PP_OP_HASH in plan.h). One table serves n-grams of 2 to `size` tokens that end
     * with the row's: for each length, `heads` hashes each select a row among n_rows of their own, and the rows are
     * concatenated. Layer `layer` adds the result to its streams before its first part, through a convolution with
     * `taps` taps `size` positions apart. `end` stands for tokens before the first position, and for those before the
     * last `end`. A folder stores the table in `parts`. */
    struct pp_hashed {
        int64_t size, heads, width, taps, layer, end, parts; /* size 0: none; width: of a row */
        int64_t seed;       /* from which the multipliers were generated */
        int64_t multiplier[PP_HASH_TOKENS], n_rows[PP_HASH_HEADS];
    } hashed;
    /* LoRAs inside the model, n of them: each has a token that switches it on for itself and the following text, and
     * another one that the model reads instead (switched.c). rank: of a folder's tensors. */
    struct pp_switched_tokens {
        int64_t n, rank;
        float gain;
        int32_t token[PP_MAX_SWITCHED], read_as[PP_MAX_SWITCHED];
    } switched;
    int64_t n_embd_layer;   /* width of an input that each layer has for itself (Gemma 3n's per-layer embeddings); 0:
                               none */
    int64_t n_stream;       /* residual streams, of which layers read the first and update all (AltUp); 0: one */
    bool hyper;             /* with n_stream: each part of a layer reads a weighted sum of the streams and writes to
                               all, with weights computed from all of them: hyper-connections */
    int64_t stream_rank;    /* hyper: parts read instead the normalised mean of the streams, each value times a gate
                               from a bottleneck of this size; 0: a weighted sum */
    bool stream_mean;       /* hyper: after the last layer the streams are averaged; otherwise the output reads them as
                               parts do */
    struct {
        float eps, write_scale, write_eps;
        int64_t sinkhorn_iters; /* 0: streams are not mixed */
    } connection;           /* struct pp_connection in plan.h */
    int64_t laurel_rank;    /* LAuReL: rank of a product parallel to attention; 0: none */
    float sparsity[PP_MAX_LAYERS]; /* a gate is reduced by its layer's mean plus this many standard deviations, and cut
                                      off at 0 (Gemma 3n); 0: not so */
    /* Gates after SiLU are cut off above this, and the values they multiply are clamped to +- this. gate_bound: in
     * feed-forward parts and experts that all rows use; expert_bound: in other experts. 0: no bound. */
    float gate_bound[PP_MAX_LAYERS], expert_bound[PP_MAX_LAYERS];
    /* Latent attention (MLA, arXiv 2405.04434): from one vector per position all heads make their keys and values; a
     * rotated key for all heads is added. The cache holds these two, so n_head_kv is 1 and head_dim kv_lora_rank +
     * rope_dim. */
    int64_t kv_lora_rank;   /* size of that vector; 0: attention is of the usual kind */
    float latent_scale;     /* of the vector after its norm; 0: 1 */
    int64_t q_lora_rank;    /* size of a vector from which queries are made; 0: they are made from the input */
    int64_t qk_nope_dim;    /* values of a head's query that are not rotated, before its rope_dim (perhaps 0) that
                               are */
    int64_t v_head_dim;     /* a head's values; outside latent attention set where they are narrower than keys or, with
                               states_mean, wider; 0: as wide as keys */
    int64_t kv_lora_rank_local, qk_nope_dim_local, v_head_dim_local; /* the same three for layers with a window, where
                                                                        they differ; 0: they do not */
    /* Sparse attention: rows see only positions that an index picks (PP_OP_PICK). The index has n_index_head heads of
     * index_dim values, and picks index_top_k positions; rows that see at most that many see all. index_top_k 0: no
     * index. index_block 0: single positions, in latent attention (DeepSeek V3.2). Otherwise blocks of index_block: for
     * each KV head by an index head of its own, and the last index_n_local blocks always (MiniMax M3, whose layers
     * without experts have no index); or, if pooled, the same blocks for all heads, each block by one key made from its
     * positions, and the positions after the last whole block always. That key is a mean weighted by a softmax of
     * scores in latent attention (GLM 5 Next), otherwise the plain mean (Qwen 4). */
    int64_t n_index_head, index_dim, index_top_k, index_block, index_n_local;
    bool index_pooled;      /* blocks for all heads, each by one key */
    /* DeepSeek V4's attention: one KV head, whose keys are its values, too. Their last rope_dim values are rotated, and
     * rotated back in attention's output, which then goes through o_groups matrices, one for each group of heads, of
     * o_rank rows each. Queries are made from q_lora_rank values. */
    bool compressed;        /* attention is of this kind */
    int64_t o_groups, o_rank;
    /* In it rows see `window` positions, and before them compressed blocks of compress[layer] positions that end no
     * later than the row (PP_OP_COMPRESS). Blocks of PP_COMPRESS_PICKED positions overlap with the one before, and an
     * index picks index_top_k of them; of other sizes all are seen. 0: no blocks, and the layer has
     * PP_LAYER_LOCAL_ROPE. */
    int32_t compress[PP_MAX_LAYERS];
    int64_t n_hash_routed_layers; /* in so many first layers a table by token ids chooses the experts */
    bool index_neox;        /* the index's RoPE pairs values i and i + rope_dim / 2; otherwise neighbours */
    /* Of layers with recurrent states (plan.h), which follow a convolution; 0: there are none. */
    int64_t n_state_head, n_state_key_head, state_key_dim, state_value_dim;
    bool mamba;             /* Mamba or Mamba 2; otherwise the gated delta rule, or one of the kinds below */
    int64_t state_rank;     /* Mamba: rank of the product that makes steps (dt); 0: Mamba 2 */
    int64_t n_scan_head;    /* with state_rank: this many parallel scans, each with its own dt, B and C from its part of
                               the channels; input and gate rows are interleaved (Zamba). 0: one scan */
    bool state_by_head;     /* with state_rank: one step per head, and Mamba 2's states (PLaMo 2) */
    bool dt_bc_norms;       /* dt's low-rank values, B and C have an RMSNorm without weights, */
    float state_eps;        /* with this epsilon; 0: norm_eps. With the delta rule: epsilon of its output's norm */
    bool beta_doubled;      /* the delta rule's beta is doubled, up to 2 */
    int64_t dynamic_conv_rank; /* the delta rule has no convolution for queries and keys, and that of its values has
                               taps computed for each position, through a bottleneck of this size (Jet-Nemotron); 0:
                               taps are weights */
    bool rwkv;              /* RWKV, whose layers differ in more than states: version 7, or */
    bool rwkv4, rwkv6;      /* version 4 or 6 */
    bool rwkv_qwen;         /* within Qwen 2's layers: their norms and feed-forward part, with RWKV 7 instead of
                               attention */
    int64_t rwkv_ranks[4];  /* ranks of the products that make decays, beta, values and gates, the last perhaps 0: no
                               gates. RWKV 6: of decays, and of each of the five mixes */
    int64_t rescale_every;  /* RWKV 6 halves the residual stream after every rescale_every layers; 0: never */
    int64_t lru_width;      /* Griffin's recurrence (RG-LRU) of this many channels; a "state" is 16 x 16 of them */
    /* Zamba: layers with PP_LAYER_SHARING use n_shared_block blocks of attention and feed-forward part, one after the
     * other and again from the first. In Zamba2 each such layer adds LoRAs of rank adapter_rank to the feed-forward
     * part's first matrix and, with adapted_attention, to q, k and v. */
    int64_t n_shared_block, adapter_rank;
    bool adapted_attention;
    bool localized_filtering; /* inputs of queries and keys go through convolutions (Yuan 2) */
    bool lightning;         /* lightning attention, with as many heads as attention has: */
    int64_t state_groups;   /* groups of heads in which its output is normalised, and queries are divided by the square
                               root of their size (Ling). 0: one norm for all, with its own epsilon (MiniMax) */
    bool state_silu;        /* with state_groups: queries, keys and values go through SiLU, as MiniMax's always do */
    bool state_rotated;     /* with state_groups: queries and keys are rotated, pairing halves */
    bool same_decays;       /* its decays are the same in all layers (MiniCPM-SALA); otherwise slower in later ones */
    bool mlstm;             /* xLSTM's mLSTM, with a key for each head. state_eps is then added to the divisor of its
                               output, and may be 0; */
    float gate_cap;         /* its gates, which are exponents, are softly capped by this */
    bool fused_parts;       /* its inputs (q, k, v) are one matrix, its two gates another, and gate and value of the
                               feed-forward part a third */
    bool biased_parts;      /* these matrices and the norm have biases */
    bool kda;               /* the delta rule with a decay for each row of a state (Kimi Linear) */
    int64_t attn_res_block; /* Kimi K3's attention residuals: in layers 0, attn_res_block, 2 attn_res_block ... the
                               layer's input is stored and the residual stream begins anew; parts and the output read a
                               mixture of what is stored and the stream; 0: none */
    /* Solar Pro's skips. Bits 0 and 1: the layer's input is stored as the first or the second vector. Bits 2 and 3: the
     * input becomes skip_share times that vector plus the rest of itself; GGUF has the share as a tensor. 0: no layer
     * has skips. */
    uint8_t skips[PP_MAX_LAYERS];
    float skip_share;
    float decay_bound;      /* kda: logarithms of decays are this times a sigmoid; 0: unbounded */
    bool state_norm;        /* the states' output is normalised; for families of which only some models do so
                               (Falcon-H1, ARWKV) */
    bool states_parallel;   /* layers have states in parallel with attention, with the same input */
    bool states_mean;       /* with that: one matrix makes the inputs of both, and another one takes the mean of their
                               outputs, each normalised (Hymba) */
    bool state_sigmoids;    /* gates of the delta rule's output are sigmoids instead of SiLU */
    float state_scale;      /* a factor of that output; 0: 1 */
    bool state_tiled;       /* head h uses key head h modulo n_state_key_head, as in GGUF's Qwen 3.5; otherwise
                               neighbours share one */
    int64_t n_ff;
    int64_t n_ctx_train;
    int pooling;            /* enum pp_pooling */
    int64_t n_dense;        /* an encoder's output goes through one matrix to this many values, and through another one
                               back; 0: it does not */
    int64_t n_embd_out;     /* width of an encoder's output after a last matrix; 0: n_embd */
    int64_t n_segments;     /* an encoder's token types, of which we use the first */
    int64_t n_reserved_positions; /* folders: rows of the table of positions before the first position */
    int64_t window;         /* positions that a row sees, its own included; 0: all. In an encoder to either side */
    /* Phi 3 small's block-sparse attention, in blocks of PP_PAGE_TOKENS positions: a head sees the last n_local_blocks
     * blocks, and every vert_stride-th block before them, shifted by one from head to head. Layers dense_attn_step,
     * 2 dense_attn_step ... see all blocks, unless dense_attn_step is 0. n_local_blocks 0: all layers do. */
    int64_t n_local_blocks, vert_stride, dense_attn_step;
    int64_t kv_taps;        /* keys, before their rotation, and values go through convolutions with this many taps, of
                               each head its own; 0: they do not */
    bool chunked;           /* the window is a chunk: rows see positions from the last multiple of it on */
    int64_t n_meta_tokens;  /* learned vectors before every text, with token ids after the vocabulary; layers with a
                               window always see them, too. 0: none */
    uint8_t layer[PP_MAX_LAYERS]; /* bits PP_LAYER_* */
    /* Replaces the family's activation: */
    enum pp_activation {
        PP_ACTIVATION_USUAL,
        PP_ACTIVATION_GELU,
        PP_ACTIVATION_GELU_TANH,
        PP_ACTIVATION_SILU,
        PP_ACTIVATION_RELU2,
        PP_ACTIVATION_RELU,
    } activation;
    int64_t conv_taps;      /* positions that a convolution sees, its own included */
    bool conv_bias;         /* projections and convolution of such layers have biases */
    bool parallel;          /* attention and feed-forward part read the same input, and both results are added to it */
    bool post_norms;        /* further norms after the two parts; for families of which only some models have them */
    bool norms_after;       /* the norms come after the two parts instead of before, under the same names, */
    bool post_ln;           /* and normalise the residual stream with the part's result added (post-LN) */
    bool nonparametric_norms; /* norms have neither weights nor biases, although those of the family do */
    bool no_output_norm;    /* no norm after the last layer */
    bool two_norms;         /* with `parallel`: each part has a norm of its own, attention attn_norm_2 */
    bool heads_tiled;       /* query head h uses KV head h modulo n_head_kv (PLaMo's folders); otherwise neighbours
                               share one */
    int64_t n_loops;        /* how often all layers are repeated, each time with keys and values of its own; 0: once */
    /* HRM-Text: half of the layers are repeated low_cycles times, then the others run once, all of that high_cycles
     * times; 0: no cycles. bidirectional_prefix: the model was trained to see prompts in both directions, which we do
     * not do. */
    int64_t low_cycles, high_cycles;
    bool bidirectional_prefix;
    bool loops_mixed;       /* the second time also sees keys of the first, and its own within the window:
                               decoder_loops.c */
    bool skip_loop_norm;    /* the last norm comes after the last repetition only; otherwise after each */
    bool differential;      /* differential attention (DiffLlama): the output of the second half of the heads, times
                               lambda, is subtracted from that of the first half; both use the values of two heads,
                               concatenated */
    bool heads_alternate;   /* the heads of both kinds alternate instead, and the result's norm has weights (Phi 4
                               Flash, Motif) */
    bool lambda_of_previous; /* a layer's initial lambda is the one that the layer before has in other families
                               (Motif) */
    int64_t n_noise_head;   /* only this many heads are of the second kind; each follows a group of the first kind, and
                               its output is subtracted from those of the group. n_head counts it as often (Motif 2); 0:
                               as many as of the first kind */
    bool polynorm_gates;    /* gates are sums of their normalised powers (PolyNorm, decoder_poly.c; Motif) */
    int64_t memory_layer;   /* Phi 4 Flash: the output of this layer's scan, before its gate, is the memory that later
                               layers without attention and states (PP_LAYER_SHARING without PP_LAYER_SHARED) multiply
                               by gates of their own; 0: none */
    bool head_mixture;      /* JetMoE: queries and the output projection of their heads come from the experts that the
                               row uses, each with n_head_kv heads */
    int64_t n_value_expert, n_value_expert_used; /* K2 Horizon: layers with experts make values by such, too,
                                                    n_value_expert_used for each row: the weighted sum of silu(W x). 0:
                                                    none */
    bool flat_head_norms;   /* norms of heads store the vectors of all heads in one (K2 Horizon) */
    bool binary_gates;      /* attention's output is multiplied by log2(1 + 2^g), g being attn_gate's output */
    bool convolved_heads;   /* ZAYA: queries and keys go through two convolutions and are scaled to length 1; half of
                               the values are those of the position before */
    bool key_scores;        /* keys have a score, computed from the values, that is added to attention's scores
                               (Doge) */
    bool per_head_gates;    /* gates of attention's output have one number for each head instead of each value */
    bool qk_norm;           /* queries and keys are normalised; for families of which only some models do so */
    float query_scale;      /* folders: a factor of queries after norms of heads without weights; GGUF has it as the
                               weights of those norms, and ones for keys. 0: not so, or not known */
    float qkv_clamp;        /* queries, keys and values are clamped to +- this; 0: they are not */
    float attn_scale;       /* of scores; 0: 1 / sqrt(head_dim) */
    float attn_scale_local; /* with kv_lora_rank_local: the same for layers with a window */
    float attn_temperature; /* scores of a query at position p are multiplied by 1 + attn_temperature ln(1 + floor(p /
                               rope_orig_ctx)); 0: they are not */
    int64_t attn_temperature_length; /* replaces rope_orig_ctx, with positions counted from 1, and only for layers
                                        without rotation. 0: not so */
    int64_t attn_log_length; /* scores of a query at a position p after this one are multiplied, after their soft cap,
                                by ln p / ln of this; 0: they are not */
    float alibi;            /* the exponent of ALiBi's slopes, usually 8, instead of rotation; 0: no ALiBi */
    float attn_value_scale; /* of attention's output; 0: 1 */
    float attn_softcap;     /* scores become cap tanh(score / cap); 0: no cap */
    float final_softcap;    /* the same for logits */
    float router_softcap;   /* the same for the router's logits */
    int64_t qkv_pieces;     /* folders: pieces of a PP_HF_QKV_IN_PIECES; 0: PP_HF_QKV_PIECES */
    bool unit_output;       /* folders: rows of the output matrix must be scaled to length 1 */
    /* Tokens from `first` to `end` - 1 are never predicted; both 0: unused entry. */
    struct {
        int64_t first, end;
    } suppressed[PP_SUPPRESSED_RANGES];
    float embd_scale;       /* of the first layer's input; 0: 1 */
    /* Factors of the stream, and of what layers with states, attention and feed-forward parts add to it: enum
     * pp_stream_scale; for families that have them. */
    float stream_scales[PP_N_STREAM_SCALES][2];
    float residual_scale;   /* of what is added to the residual stream; 0: 1 */
    float logit_scale;      /* of the logits; 0: 1 */
    int64_t n_expert;       /* 0: no mixture of experts */
    int64_t n_expert_idle;  /* further experts after those, without matrices, which output their input */
    bool idle_output_zero;  /* or output nothing */
    int64_t router_rank;    /* ZAYA: experts are chosen by three matrices from this many values, to which those of the
                               layer before are added; 0: by one matrix from the input */
    int64_t n_expert_used;  /* for each row */
    int64_t n_ff_expert;
    bool experts_vary;      /* layers differ in both numbers, and these are the largest: */
    struct pp_layer_experts {
        int32_t n_used, n_ff; /* 0: the layer has no experts */
    } layer_experts[PP_MAX_LAYERS];
    int64_t n_embd_expert;  /* width of the experts' input and output; 0: n_embd */
    bool legacy_names;      /* a folder with older names: its tensors and its configuration differ from those that we
                               write */
    bool vision_experts;    /* folders: further experts for pictures come after these; we do not use them */
    bool dense_parallel;    /* layers with experts also have a feed-forward part with the same input */
    int64_t n_ff_shared;    /* of the expert that all rows use or, without experts, of a second feed-forward part; 0:
                               none */
    bool shared_mean;       /* the outputs of that and of the chosen experts are halved */
    int64_t n_expert_share; /* this many neighbouring experts share a further one, which gets the sum of their weights;
                               0: none */
    int64_t n_ff_share;     /* of such a shared expert */
    float expert_share_scale; /* of its weights */
    int64_t n_expert_group; /* groups of experts; only n_expert_group_used of them may be chosen from; 0: no groups */
    int64_t n_expert_group_used;
    bool expert_group_largest; /* groups are ranked by their best expert, not by the sum of their two best */
    bool expert_no_renorm;  /* weights are probabilities among all experts, not among those used */
    bool expert_sigmoids;   /* weights are sigmoids of the logits instead of a softmax */
    bool expert_sqrt_softplus; /* weights are square roots of the logits' softplus */
    float expert_mixer_jitter; /* weights by SparseMixer with this jitter; 0: they are not */
    float expert_scale;     /* of the weights; 0: 1 */
    /* Factors of a folder's weights, applied when they are read, since GGUF files contain them already. */
    struct pp_folder_scales {
        bool any;           /* some are not 1 */
        float embd, output, q, k, v, attn_output, ssm_out, ffn_gate, ffn_down;
        float ssm_in[5];    /* of the rows that make gates, values, keys, queries and decays of states */
        bool latents;       /* norms of latent attention's vectors are multiplied by the square root of n_embd over
                               their size */
    } scales;
    int64_t n_nextn;        /* layers after the last one that predict further tokens (MTP); we do not use them */
    float norm_eps;
    int64_t norm_groups;    /* norms of the stream treat this many parts of it separately; 0: one */
    int64_t norm_rank;      /* GigaChat 3.5: the values of these norms have gates, up to 2, from a low-rank product of
                               their input; 0: none */
    bool rms_norm;          /* RMSNorm, though the family has LayerNorm */
    float rope_base;
    float rope_base_local;  /* of layers with PP_LAYER_LOCAL_ROPE */
    int64_t rope_dim;       /* rotated dimensions of a head */
    int64_t rope_dim_local; /* of layers with PP_LAYER_LOCAL_ROPE; 0: the same */
    int64_t rope_n_pairs;   /* pairs that are rotated at all, the later ones having a frequency of 0; 0: all. Not for
                               rope_base_local */
    bool rope_reversed;     /* pairs rotate in the opposite direction */
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
                                   ln(original)) if the context is longer than the original */
    float rope_beta_fast, rope_beta_slow;
    bool rope_no_truncate;      /* YARN: the ramp's ends are not rounded to dimensions */
    float yarn_log_multiplier;  /* latent attention: scores are multiplied by the square of 1 + this ln(rope_factor);
                                   attn_scale includes it */
};

/* Width of a token's embedding in the table. */
static inline int64_t pp_embedding_width(const struct pp_hparams *hp)
{
    return hp->n_embd_in ? hp->n_embd_in : hp->n_embd;
}

/* How many of a layer's experts a row uses, and how wide they are. */
static inline struct pp_layer_experts pp_layer_experts(const struct pp_hparams *hp, int64_t l)
{
    return hp->experts_vary ? hp->layer_experts[l]
                              : (struct pp_layer_experts){(int32_t)hp->n_expert_used, (int32_t)hp->n_ff_expert};
}

/* The sizes of one layer's attention and feed-forward part. */
struct pp_layer_shape {
    int64_t n_head, n_head_kv, head_dim, n_ff, v_dim;
};
/* Width of a head's values, given that of its keys. */
static inline int64_t pp_value_dim(const struct pp_hparams *hp, int64_t head_dim)
{
    return hp->differential ? 2 * head_dim : hp->v_head_dim && !hp->kv_lora_rank ? hp->v_head_dim : head_dim;
}
/* Width of a head's key in the cache. */
enum { PP_KEY_SCORE = 32 }; /* added by key_scores */
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
    if (!hp->sizes_vary)
        return (struct pp_layer_shape){hp->n_head, hp->n_head_kv, head_dim, hp->n_ff, v_dim};
    return (struct pp_layer_shape){hp->sizes[l].n_head, hp->sizes[l].n_head_kv, head_dim, hp->sizes[l].n_ff, v_dim};
}
/* Latent attention: the size of its vector, and the sizes of a head's unrotated keys and of its values. */
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

/* path: a .gguf file, or any part of one that is split (source_parts.h), or a folder with config.json and safetensors.
 * A path that does not exist is PP_ERR_NOT_FOUND. An unknown family is PP_ERR_UNSUPPORTED, and the text lists the known
 * ones, as far as there is room. */
enum pp_code pp_source_open(const char *path, struct pp_source **out, struct pp_error *err);
/* The same, but the matrices of a folder are quantised when they are filled. quant: a type or mixture as
 * pp_quantize_name takes it; NULL: they are not. imatrix: a file with an importance matrix that weighs the errors; or
 * NULL. PP_ERR_USAGE: there is no such type, or there is an imatrix without a type, or it is a GGUF file, which is used
 * as it is. PP_ERR_MISMATCH: the imatrix is another model's. */
enum pp_code pp_source_open_as(const char *path, const char *quant, const char *imatrix, struct pp_source **out,
                               struct pp_error *err);
void pp_source_close(struct pp_source *s);

const char *pp_source_path(const struct pp_source *s);
const struct pp_gguf *pp_source_gguf(const struct pp_source *s);  /* NULL for a folder */
int pp_source_n_files(const struct pp_source *s);                 /* GGUF files; 0 for a folder */
const struct pp_gguf *pp_source_file(const struct pp_source *s, int i); /* the first is pp_source_gguf's */
const char *pp_source_folder(const struct pp_source *s);          /* NULL for a GGUF file */
/* Folders: config.json of the language model, with defaults of a surrounding multimodal model filled in; NULL for a
 * GGUF file. */
struct cJSON;
const struct cJSON *pp_source_config(const struct pp_source *s);
/* Folders: whether the language model is a part of a larger one. */
bool pp_source_is_wrapped(const struct pp_source *s);
/* Folders: whether layers for pictures only were left out between those of the language model, so that our layer
 * numbers differ from the folder's. */
bool pp_source_drops_layers(const struct pp_source *s);
/* PP_ERR_UNSUPPORTED for such a model: adapters, whether read, trained or converted, number layers as the folder
 * does. */
enum pp_code pp_source_check_adapters(const struct pp_source *s, struct pp_error *err);
const char *pp_source_quant(const struct pp_source *s);           /* "Q4_K_M": the type to which it is quantised; or
                                                                     NULL */
const char *pp_source_imatrix(const struct pp_source *s);         /* path of the imatrix; or NULL */
const struct pp_hparams *pp_source_hparams(const struct pp_source *s);
/* Tokens that the model's files forbid it to write: [n], owned by the source. */
const int32_t *pp_source_suppressed(const struct pp_source *s, size_t *n);
extern const char pp_suppressed_key[]; /* GGUF's key for them */
/* Where the number is in names like "blk.0.ffn_up.3.weight", a matrix of one expert, or "altup_proj.1.weight", one of a
 * stream; NULL: it is no such name. A number has one spelling, so that no matrix is in two stacks. */
const char *pp_expert_number(const char *name);
/* Whether a tensor, like "blk.46.eh_proj.weight", belongs to a layer after the last one (MTP). */
bool pp_is_after_layers(const struct pp_hparams *hp, const char *gguf_name);
/* Whether it is RWKV's mix of values with those of the first layer, in the first layer itself: files have it, nothing
 * reads it. */
bool pp_is_unused_first_mix(const struct pp_hparams *hp, const char *gguf_name);
/* The GGUF tensor with both shares of pp_hparams.skips: of the stored vector and of the stream. */
extern const char pp_skip_shares[];
/* Whether it is one of CogVLM's matrices for pictures, which exist in parallel with those for text. */
bool pp_is_for_pictures(const struct pp_hparams *hp, const char *gguf_name);
/* Of how many such matrices GGUF makes one tensor. The second function: whether that is a matrix of all their rows, not
 * a stack. */
int64_t pp_stack_size(const struct pp_hparams *hp, const char *name);
bool pp_stack_is_flat(const char *name);
/* The name of the GGUF tensor that has this expert's matrix, given the name of that matrix or of a slice of the stack
 * (the plan's "blk.0.ffn_up_exps.weight[3]"); other names are copied. */
void pp_stack_name(const char *matrix, char out[256]);
/* The name of an expert's matrix as a tensor of its own, given a slice of a stack: "blk.0.ffn_up_exps.weight[3]"
 * becomes "blk.0.ffn_up.3.weight"; other names are copied. */
void pp_matrix_name(const char *matrix, char *out, size_t cap);
/* By GGUF name, or NULL. The rows of a folder's q and k are not permuted: hparams.rope_neox says so. */
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
/* Tensors with `rows` are made from what the folder has in another form: their data are zeros until they are filled. To
 * compute with them, call this first; to copy them to a file, use their rows instead, so that nothing stays in memory.
 * Done once; further calls return at once, or wait for the first. opt: members may be NULL. pool: threads that help, or
 * NULL. Any thread; the pool's caller. */
struct pp_pool;
struct pp_cancel;
enum { PP_SOURCE_THREADS = 64 }; /* threads of a pool that help at most */
struct pp_fill_options {
    void (*progress)(void *user, uint64_t done, uint64_t total); /* bytes */
    void *user;
    const struct pp_cancel *cancel;
};
enum pp_code pp_source_fill(const struct pp_source *s, struct pp_pool *pool, const struct pp_fill_options *opt,
                            struct pp_error *err);
size_t pp_source_to_fill(const struct pp_source *s); /* bytes, filled or not */
/* An error that names the file if a mapped file shrank under us, else PP_OK. Cheap: call after every pass. */
enum pp_code pp_source_check(const struct pp_source *s, struct pp_error *err);
/* The same, and an error if another program has written to a file: for copies, which would otherwise mix two models. */
enum pp_code pp_source_check_unchanged(const struct pp_source *s, struct pp_error *err);
/* Whether a folder has GGUF files and no safetensors weights; name: the first GGUF file. Such a folder may have a
 * config.json, too. */
bool pp_folder_holds_gguf(const char *folder, char name[256]);

#endif
