/* expert_model.h - small random mixtures of experts of several families that the tests write, and the logits that they
 * give, in double precision from the formulas. */
#ifndef PP_TESTS_EXPERT_MODEL_H
#define PP_TESTS_EXPERT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/hash.h"

/* What the layers of a family are made of, and the numbers of one model. */
struct expert_shape {
    const char *arch;       /* as GGUF files name it */
    int n_vocab, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff, n_ctx;
    int rope_dim;
    bool neighbours;        /* pairs that are rotated lie side by side */
    bool biases;            /* of q, k and v */
    bool fused_qkv;
    enum { QK_PLAIN, QK_HEADS, QK_WHOLE } qk_norm;
    bool norms_behind_rope; /* heads are normed after they are rotated */
    const char *ffn_norm;   /* "ffn_norm" */
    bool post_norms;        /* what comes out of attention and feed-forward part is normed, too */
    bool gated;             /* what attention gives is weighed by sigmoids */
    bool head_gates, softplus_gates; /* one for each head, not for each value; softpluses instead */
    float bound, shared_bound; /* in the last layer, of gates of experts, and of the shared one; 0: none */
    int bounded_before;     /* the former is of the layer that many before the last */
    bool clamp_before_silu; /* the former is of all layers, and of gates before SiLU; */
    bool bounded_all;       /* and so is it of the shared one's, and of layers without experts */
    int local_heads;        /* heads of queries in layers with a window; 0: n_head */
    int wide_rope;          /* of a head so many values are rotated in the others; 0: rope_dim */
    float embd_scale;       /* 0: 1; no file says it */
    float residual_scale, logit_scale; /* likewise */
    float value_scale;      /* of what attention gives; 0: 1 */
    float local_base;       /* layers with a window rotate by this base; the others rotate, too */
    bool sinks;             /* those have sinks; or layers with latent attention */
    int local_kv;           /* and so many heads of keys; 0: n_head_kv */
    int window, wide;       /* each wide-th layer sees everything and is not rotated, the others so many positions */
    bool first_wide;        /* the first layer is one of those */
    bool chunked;           /* the window is a chunk: what is seen begins at its last multiple */
    bool unweighted_qk_norm;/* heads that are rotated are then normed, without weights */
    float temperature;      /* scores of layers that are not rotated grow with each `length` positions */
    int length;
    bool early;             /* experts are chosen by what comes into the layer, not normed, and have ReLU gates */
    int step;               /* each such layer has experts; 0: all do */
    bool weighted_inputs;   /* weights multiply what goes into experts */
    int n_expert, n_used, n_ff_expert, n_ff_shared, n_dense;
    const int (*uneven)[2]; /* of each layer n_used and n_ff_expert, which files then have for each; or NULL */
    enum { MIXTURE_PLAIN, MIXTURE_NORMED, NORMED_ANYWHERE } experts_post_norm; /* what experts give is normed; files may
                               have the norm of other layers, too */
    bool shared_weight;     /* the shared expert's result has a weight: a sigmoid */
    bool shared_expert_mix; /* it and what others give are multiplied by a softmax of two numbers */
    bool sigmoids, shares;  /* shares: weights are not made to add up to 1 */
    bool choice_bias;
    bool expert_scales;     /* of each expert with matrices the weight is multiplied by a number */
    bool down_biases;       /* and something is added to what it gives, as wide as that */
    int n_idle;             /* so many further experts, behind those, give what they read */
    bool shortcut;          /* layers come in pairs: what the first's experts give is added behind the second; with
                               dense_beside */
    int ngram_size, ngram_splits, ngram_base, ngram_end; /* embeddings of up to so many tokens, of each number of them
                               so many, of tables of this length and more; of no tokens before this one. 0: none */
    float q_growth, kv_growth; /* of queries, and of the vector that keys and values are made of; 0: 1 */
    int n_groups, n_groups_used;
    bool groups_by_largest; /* a group's score is that of its largest expert, not the sum of two */
    float scale;            /* of weights; 0: there is no such key */
    bool say_norm, say_gating; /* keys that some families' files have */
    int taps, full;         /* each full-th layer has attention, the others short convolutions; 0: there are none */
    const char *output_norm; /* "output_norm" */
    int n_nextn;            /* layers behind the last one */
    /* Latent attention, in place of n_head_kv and head_dim: */
    int kv_rank;            /* 0: it is of the usual kind */
    int q_rank;             /* 0: queries are made of the input */
    int nope, v_dim;        /* of a head; rope_dim values are rotated. v_dim of the usual kind, too, 0: head_dim */
    int index_top_k;        /* an index picks so many positions; 0: there is none */
    int index_step;         /* each such layer has one, from the first on, the others see what it picked; 0: all do */
    bool index_halves;      /* its heads' pairs that are rotated lie half of them apart */
    bool index_rope_last;   /* they are the last of a head, and the key's norm has the epsilon of all norms */
    bool index_untold;      /* no key says which layers have one */
    int index_block;        /* with the usual attention: it picks so many blocks of this many positions instead, for
                               each head of keys by a head of its own, in layers with experts */
    int index_local;        /* the last so many of them in any case */
    int pool;               /* it picks blocks of so many positions, each by one key, for all heads; index_top_k is
                               still of positions. With latent attention, 0: it picks positions */
    int index_says;         /* heads that the file says it has; 0: as many as it has */
    bool clamped;           /* gates are gpt-oss's */
    bool heads_apart;       /* the file has k_b and v_b, instead of both in one */
    float yarn_factor, log_multiplier; /* 0: RoPE is not scaled. From contexts of yarn_ctx */
    int yarn_ctx;
    /* The gated delta rule, in all layers but each full-th, whose queries have gates: */
    int n_state, n_state_key, key_dim, value_dim, state_taps; /* heads of values and of keys; 0: attention */
    bool tiled;             /* head h goes with key head h modulo n_state_key, instead of h * n_state_key / n_state */
    bool apart;             /* queries, keys and values of states have a matrix and a convolution each; queries of
                               attention have no gates */
    int tap_rank;           /* apart: queries and keys have no convolution, and each position makes the taps of its
                               values', of so many values; 0: not so */
    float state_eps;        /* of norms of what states give; 0: 1e-5 */
    bool kda;               /* likewise, beside latent attention; states, of which each head has a key of its own and
                               value_dim is key_dim, decay row by row */
    bool lightning;         /* or lightning attention, of n_state heads of key_dim values: in all layers of a group of
                               `full` but the last; layers behind the last whole group have attention */
    int norm_groups;        /* lightning: what it gives is normed in so many groups */
    bool states_silu, states_still; /* lightning: q, k and v go through SiLU; q and k are not rotated */
    bool steady;            /* lightning: states forget as fast in all layers, and q, k and v have a matrix each */
    bool full_rank;         /* kda: decays and gates come of one matrix each */
    bool full_rank_gates;   /* kda: gates only */
    int bank_step;          /* what comes into each such layer is kept, and what parts read is a mixture of that and the
                               stream (Kimi K3); gates are SiTU, narrow experts' sum is normed. 0: none */
    int n_stream;           /* hyper-connections of so many streams, with latent attention; 0: there is one */
    int stream_rounds;      /* a matrix that is balanced so often mixes them, and the output reads their mean; 0: none
                               does */
    float stream_least, stream_most; /* their epsilon and magnitude */
    int stream_rank;        /* instead, with the usual attention, a part reads the mean of all streams, normed, each
                               value with a gate, which products of so many values make, and has no other norm; 0: a
                               sum */
    struct {
        int size, heads, width; /* of 2 to `size` tokens that many rows of so many values */
        int base;           /* numbers of rows are the prime numbers from this one on */
        int layer, taps;    /* the layer that takes them in, through a convolution */
        int end;            /* nothing counts before this token */
        bool deep;          /* the file has its convolution with a dimension of one, and norms of streams by rows */
        int missing;        /* the table has so many rows fewer than it needs */
        const uint64_t *multipliers;
    } hash;                 /* embeddings of several tokens in streams; size 0: none */
    bool state_sigmoids;    /* what the gated delta rule gives has gates that are sigmoids, not SiLU */
    float state_scale;      /* and what it gives is multiplied by this; 0: 1 */
    int norm_rank;          /* norms have gates of products of so many values; there are some behind both parts, too,
                               in all layers. 0: they have none */
    bool lacks_ones;        /* the file has them without the 1 that is added */
    float decay_bound;      /* kda: logarithms of decays are this times a sigmoid; 0: they are not bounded */
    bool twice;             /* beta goes up to 2 */
    bool norms_behind;      /* layers with attention have no other norms than post_norms, those with states have the
                               usual ones */
    float epsilon;          /* of norms but for those of what states give; 0: 1e-5, as that is */
    bool by_key_head;       /* the file has what goes in by key heads: ssm_in; else attn_qkv and attn_gate */
    bool mamba;             /* Mamba 2 instead, with attention whose queries have none */
    int rank;               /* the first Mamba instead, whose steps are made of so many values; with n_state heads of
                               value_dim channels, and n_state_key 1 */
    enum { SCAN_PLAIN, SCAN_UNIT, SCAN_NORMED } scan_norm; /* what its scan is given is normed, without weights or with
                                                              them */
    const char *kinds;      /* layers are one part each, in place of `full`: Mamba 2 M, attention *, a feed-forward part
                               -, experts E */
    bool beside, unnormed;  /* layers have states beside attention; what those give is not normed */
    bool ungated;           /* down(relu(up x)^2) */
    int n_embd_expert;      /* experts are so wide, between two matrices; 0: as wide as the others */
    float attn_scale;       /* of scores; 0: 1 / sqrt(head_dim) */
    bool say_scales;        /* the file has this one, and those above */
    float cap, router_cap, final_cap; /* of scores, of what chooses experts, of logits; 0: none */
    int log_length;         /* capped scores grow with the logarithm of the position behind this one */
    bool gelu;              /* gates are GELUs */
    bool dense_beside;      /* a feed-forward part of n_ff reads what experts read; the sum is divided by the root of
                               two */
    int share, n_ff_share;  /* so many neighbouring experts share one of this size; 0: none do */
    float share_scale;      /* of its weight, which is that of those that work */
    const char *beside_norm; /* experts read what comes into the layer, normed by this, and what they make of it is
                                added behind the layer; with dense_beside */
    const char *norm_behind, *ffn_norm_behind; /* "post_attention_norm", "post_ffw_norm" */
    bool centred;           /* norms take the mean off */
    bool parallel;          /* attention and feed-forward part read the same norm; layers without experts are rotated in
                               any case, and what experts give is halved together with what the shared one gives */
    bool joined_numbers;    /* and beta and decay in one matrix: ssm_ba */
    uint32_t seed;
};

struct expert_model;

/* 64 wide, 3 layers, 4 heads of 16 over 2, 8 experts of 32 of which 3 work, softmax that adds up to 1. */
struct expert_shape expert_shape(const char *arch);
struct expert_model *expert_model_make(const struct expert_shape *s);
void expert_model_free(struct expert_model *m);
void expert_model_say_idle(struct expert_model *m, int n); /* what the file says of it, whatever its tensors are */
void expert_model_say_ngrams(struct expert_model *m, int size, int splits, int base, int end); /* likewise */
/* Writes the model as a GGUF file of F32; its path as fresh_path gives it. */
const char *expert_model_write(const struct expert_model *m);
/* What a file of such a model is known by. */
struct pp_sha256 expert_identity(const struct expert_shape *shape);
/* logits: [n, n_vocab] */
void expert_model_compute(const struct expert_model *m, const int32_t *ids, int n, double *logits);

#endif
