/* expert_model.h - small random mixtures of experts of several families, written by the tests as GGUF files, and their
 * logits, computed from the formulas in double precision. */
#ifndef PP_TESTS_EXPERT_MODEL_H
#define PP_TESTS_EXPERT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/hash.h"

/* The structure of a family's layers, and the sizes of a model. */
struct expert_shape {
    const char *arch;       /* general.architecture */
    int n_vocab, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff, n_ctx;
    int rope_dim;
    bool neighbours;        /* pairs (2 i, 2 i + 1) are rotated, instead of (i, i + rope_dim / 2) */
    bool biases;            /* of q, k and v */
    bool fused_qkv;
    enum { QK_PLAIN, QK_HEADS, QK_WHOLE } qk_norm;
    bool norms_after_rope; /* norms of heads come after RoPE */
    const char *ffn_norm;   /* "ffn_norm" */
    bool post_norms;        /* there are post-norms as well */
    bool gated;             /* attention's output is multiplied by sigmoid gates */
    bool per_head_gates, softplus_gates; /* one gate for each head instead of one for each value; softplus instead of
                                        sigmoid */
    float bound, shared_bound; /* clamps of gates and up values of experts, and of the shared one, in the last layer; 0:
                                  none */
    int bounded_before;     /* `bound` applies to the layer this many before the last instead */
    bool clamp_before_silu; /* `bound` applies in all layers, before SiLU, */
    bool bounded_all;       /* and also to the shared expert and to layers without experts */
    int local_heads;        /* query heads of layers with a window; 0: n_head */
    int wide_rope;          /* rotated dimensions in layers without a window; 0: rope_dim */
    float embd_scale;       /* 0: 1; not in files */
    float residual_scale, logit_scale; /* 0: 1; not in files */
    float value_scale;      /* of attention's output; 0: 1 */
    float local_base;       /* RoPE's base in layers with a window; the other layers have RoPE, too */
    bool sinks;             /* attention sinks in layers with a window, or with latent attention */
    int local_kv;           /* KV heads of layers with a window; 0: n_head_kv */
    int window, wide;       /* every wide-th layer has full attention without RoPE, the others have a window */
    bool first_wide;        /* layer 0 is the first of those with full attention, not layer wide - 1 */
    bool chunked;           /* chunked attention: the window begins at a multiple of its size */
    bool unweighted_qk_norm; /* norms of q and k without weights, after RoPE, in layers that have RoPE */
    float temperature;      /* in layers without RoPE scores grow by a step every `length` positions */
    int length;
    bool early;             /* the router reads the layer's input before its norm; experts have ReLU gates */
    int step;               /* every step-th layer has experts; 0: all have */
    bool weighted_inputs;   /* the experts' weights multiply their inputs, not their outputs */
    int n_expert, n_used, n_ff_expert, n_ff_shared, n_dense;
    const int (*uneven)[2]; /* n_used and n_ff_expert of each layer, written as arrays; or NULL */
    /* A post-norm for experts; ANYWHERE: the file has its tensors in other layers as well. */
    enum { MIXTURE_PLAIN, MIXTURE_POST_NORM, POST_NORM_ANYWHERE } experts_post_norm;
    bool shared_weight;     /* the shared expert is weighted by a sigmoid */
    bool shared_expert_mix; /* the shared expert and the others are weighted by a softmax of two logits */
    bool sigmoids, shares;  /* shares: weights are not normalised over the chosen experts */
    bool choice_bias;
    bool expert_scales;     /* each expert's weight is multiplied by a constant of that expert */
    bool down_biases;       /* experts' down matrices have biases */
    int n_idle;             /* this many more experts return their input unchanged */
    bool shortcut;          /* layers come in pairs: the output of the first one's experts is added after the second;
                               with dense_parallel */
    int ngram_size, ngram_splits, ngram_base, ngram_end; /* n-gram embeddings of 2 .. size tokens, `splits` tables
                                                            for each, of sizes from `base` on; tokens up to an `end`
                                                            do not count. 0: none */
    float q_growth, kv_growth; /* scales of queries and of the latent vector; 0: 1 */
    int n_groups, n_groups_used;
    bool groups_by_largest; /* a group's score is the largest of its experts' scores, not the sum of the two largest */
    float scale;            /* of weights; 0: the key is absent */
    bool say_norm, say_gating; /* write keys that only some families' files have: whether weights are normalised, and
                                  the gating function */
    int taps, full;         /* every full-th layer has attention, the others short convolutions; 0: none has */
    const char *output_norm; /* "output_norm" */
    int n_nextn;            /* layers of multi-token prediction */
    /* Latent attention, in place of n_head_kv and head_dim: */
    int kv_rank;            /* 0: ordinary attention */
    int q_rank;             /* 0: queries come from the input */
    int nope, v_dim;        /* a head's dimensions without RoPE, in addition to rope_dim, and those of its values, also
                               in ordinary attention; v_dim 0: head_dim */
    int index_top_k;        /* positions that an indexer picks; 0: there is none */
    int index_step;         /* every index_step-th layer, from the first on, has an indexer, whose picks the others
                               use; 0: all have */
    bool index_neox;      /* its heads rotate pairs (i, i + rope_dim / 2), not neighbours */
    bool index_rope_last;   /* in their last dimensions; and the key's norm has the model's epsilon */
    bool index_unstated;    /* no key says which layers have one */
    int index_block;        /* with ordinary attention: the indexer picks blocks of so many positions, for each KV
                               head by a head of its own, in layers with experts */
    int index_n_local;      /* so many last blocks are seen in any case */
    int pool;               /* it picks blocks of so many positions by one key each, for all heads, index_top_k still
                               counting positions; 0, with latent attention: positions */
    int index_says;         /* the number of its heads in metadata; 0: the true one */
    bool clamped;           /* gates are gpt-oss's */
    bool heads_apart;       /* the file has attn_k_b and attn_v_b, not attn_kv_b */
    float yarn_factor, log_multiplier; /* 0: no YaRN; the original context is yarn_ctx */
    int yarn_ctx;
    /* The gated delta rule, in all layers but every full-th, which has gated attention: */
    int n_state, n_state_key, key_dim, value_dim, state_taps; /* heads of values and of keys; 0: attention only */
    bool tiled;             /* head h uses key head h modulo n_state_key, instead of h * n_state_key / n_state */
    bool apart;             /* queries, keys and values of states each have their own matrix and convolution;
                               attention's queries have no gates */
    int dynamic_conv_rank;   /* apart: only values are convolved, with taps computed for each position by a pair of
                              * matrices of this rank; 0: ordinary convolutions */
    float state_eps;        /* of the norm of the states' output; 0: 1e-5 */
    bool kda;               /* Kimi delta attention, with latent attention: a key for each head, value_dim equal to
                               key_dim, a decay for each row of a state */
    bool lightning;         /* or lightning attention with n_state heads of key_dim: in groups of `full` layers, in all
                               but the last; the layers after the last whole group have attention */
    int norm_groups;        /* lightning: groups of its output's norm */
    bool states_silu, states_still; /* lightning: q, k and v go through SiLU; q and k have no RoPE */
    bool steady;            /* lightning: all layers have the same decays, and q, k and v have a matrix each */
    bool full_rank;         /* kda: one matrix each for decays and gates */
    bool full_rank_gates;   /* kda: for gates only */
    int attn_res_block;      /* attention residuals (Kimi K3): every attn_res_block-th layer's input is kept; gates are
                              * SiTU, and the sum of the narrow experts is normalised. 0: none */
    int n_stream;           /* hyper-connections with this many streams, with latent attention; 0: one stream */
    int stream_rounds;      /* rounds of balancing the matrix that mixes the streams; the output then reads their mean.
                               0: no such matrix */
    float stream_least, stream_most; /* their epsilon and magnitude */
    int stream_rank;        /* Qwen 4's gated residuals in place of weighted sums, with ordinary attention: the rank of
                               the gates; attention and feed-forward parts have no other pre-norm. 0: weighted sums */
    struct {
        int size, heads, width; /* n-grams of 2 .. `size` tokens, `heads` rows of `width` values for each */
        int base;           /* the numbers of rows are the primes from this one on */
        int layer, taps;    /* the layer to which they are added, and the taps of its convolution */
        int end;            /* tokens up to this one do not count */
        bool deep;          /* the file's convolution has a dimension of 1, and norms of streams are matrices */
        int missing;        /* the table has this many rows too few */
        const uint64_t *multipliers;
    } hash;                 /* Qwen 4's n-gram embeddings; size 0: none */
    bool state_sigmoids;    /* the gated delta rule's output gates are sigmoids, not SiLU */
    float state_scale;      /* the scale of its output; 0: 1 */
    int norm_rank;          /* norms have gates of this rank, and all parts have post-norms; 0: neither */
    bool lacks_ones;        /* the file stores the weights of norms without the 1 that is to be added */
    float decay_bound;      /* kda: the logarithm of a decay is this value times a sigmoid; 0: unbounded */
    bool twice;             /* beta goes up to 2, not 1 */
    bool norms_after;      /* layers with attention have only post-norms, those with states only pre-norms */
    float epsilon;          /* of all norms but that of the states' output; 0: 1e-5 */
    bool by_key_head;       /* the file has ssm_in, ordered by key head, in place of attn_qkv and attn_gate */
    bool mamba;             /* Mamba 2 in place of the gated delta rule, and attention without gates */
    int rank;               /* Mamba in its place, with dt of this rank, n_state heads of value_dim channels, and
                               n_state_key 1 */
    /* Norms of dt, B and C: none, without weights, with weights. */
    enum { SCAN_PLAIN, SCAN_UNIT, SCAN_NORM_WEIGHTED } scan_norm;
    const char *kinds;      /* one part for each layer, in place of `full`: Mamba 2 M, attention *, a feed-forward
                               part -, experts E */
    bool beside, no_state_norm; /* layers have states in parallel with attention; the states' output has no norm */
    bool ungated;           /* down(relu(up x)^2) */
    int n_embd_expert;      /* the width of experts' inputs and outputs, between two matrices; 0: n_embd */
    float attn_scale;       /* of scores; 0: 1 / sqrt(head_dim) */
    bool say_scales;        /* the file has attn_scale and the scales above */
    float cap, router_cap, final_cap; /* soft caps of scores, router logits and logits; 0: none */
    int log_length;         /* beyond this position, capped scores grow with the logarithm of the position */
    bool gelu;              /* gates are GELUs */
    bool dense_parallel;      /* a feed-forward part n_ff wide reads the same input as the experts; their sum is divided
                               by sqrt(2) */
    int share, n_ff_share;  /* this many neighbouring experts share one of width n_ff_share; 0: none */
    float share_scale;      /* the factor of the shared expert's weight, which is the sum of theirs */
    const char *beside_norm; /* experts read the layer's input after this norm, and their output is added after the
                                layer; with dense_parallel */
    const char *attn_post_norm, *ffn_post_norm; /* "post_attention_norm", "post_ffw_norm" */
    bool centred;           /* LayerNorm; else RMSNorm */
    bool parallel;          /* attention and feed-forward part in parallel after one norm; layers without experts
                               always have RoPE, and routed and shared experts are averaged */
    bool joined_numbers;    /* beta and decay are one matrix, ssm_ba */
    uint32_t seed;
};

struct expert_model;

/* The default shape: 64 wide, 3 layers, 4 heads of 16 over 2, 8 experts of width 32, 3 of them used, softmax over
 * those. */
struct expert_shape expert_shape(const char *arch);
struct expert_model *expert_model_make(const struct expert_shape *s);
void expert_model_free(struct expert_model *m);
void expert_model_say_idle(struct expert_model *m, int n); /* changes only the metadata, not the tensors */
void expert_model_say_ngrams(struct expert_model *m, int size, int splits, int base, int end); /* this one, too */
/* Writes the model as a GGUF file of F32; returns its path, made by fresh_path(). */
const char *expert_model_write(const struct expert_model *m);
/* The identity of the file that such a model is written to. */
struct pp_sha256 expert_identity(const struct expert_shape *shape);
/* logits: [n, n_vocab] */
void expert_model_compute(const struct expert_model *m, const int32_t *ids, int n, double *logits);

#endif
