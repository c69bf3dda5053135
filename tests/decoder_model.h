/* decoder_model.h - small random decoders of several families, written by the tests as GGUF files, and their logits,
 * computed from the formulas in double precision. */
#ifndef PP_TESTS_DECODER_MODEL_H
#define PP_TESTS_DECODER_MODEL_H

#include <stdbool.h>
#include <stdint.h>

/* The structure of a family's models, described independently of the engine's own description. */
struct decoder_shape {
    const char *arch;      /* general.architecture */
    const char *family;    /* the family whose files this variant, `arch`, uses; or NULL */
    int n_vocab, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff, n_ctx, rope_dim;
    bool centred;          /* LayerNorm; else RMSNorm */
    bool norm_bias;
    bool norm_plain;       /* norms have neither weight nor bias */
    int norm_groups;       /* norms of the residual stream are computed in this many groups; 0: over all of it */
    float epsilon;         /* of all norms; 0: the default */
    bool unrotated;        /* no RoPE */
    bool positions;        /* learned positions are added to the embeddings */
    bool sinusoids;        /* or sinusoidal ones, */
    bool fairseq;          /* in fairseq's layout: two reserved rows first, and a lowest frequency of 1 / 10000 */
    bool embd_norm;        /* the sum is normalised */
    float alibi;           /* the exponent of ALiBi's slopes; 0: none */
    bool alibi_scaled;     /* slopes are multiplied by the scale of scores */
    bool neighbours;       /* pairs (2 i, 2 i + 1) are rotated, instead of (i, i + rope_dim / 2) */
    bool tied;             /* the output is the embeddings */
    enum { BIAS_QKV = 1, BIAS_O = 2, BIAS_FF = 4, BIAS_OUTPUT = 8, BIAS_CONVOLUTION = 16,
           BIAS_DOWN = 32 } biases; /* FF: all matrices of the feed-forward part; DOWN: only its last one */
    enum { PRE_NORM = 0, POST_NORM = 1, BOTH_NORMS = 2 } norms; /* norms of parts' inputs, of their outputs, or both */
    float post_norm_eps;   /* of post-norms, whose inputs are then made small; 0: the model's */
    bool gated;            /* attention's output is multiplied by the sigmoid of attn_gate's product */
    bool per_head_gates;   /* one gate for each head, not for each value */
    bool embd_plain;       /* embd_norm without weights */
    float query_scale;     /* HEADS_SHARE_NORM: all weights of norms of queries have this value, those of keys are 1 */
    bool sub_norms;        /* norms before the output projections of attention and feed-forward part */
    const char *ffn_norm;  /* NULL: ffn_norm; where parallel, there is none */
    /* From FF_GELU on there is no gate, except in CLAMPED and POLY; FUSED: gate and up are one matrix. */
    enum {
        FF_SILU, FF_SILU_FUSED, FF_GELU_FUSED, FF_GELU_GATE, FF_GELU_EXACT_GATE, FF_RELU2_GATE, FF_GELU, FF_GELU_EXACT,
        FF_RELU2, FF_XIELU, FF_RELU, FF_CLAMPED, FF_POLY
    } ff;
    float gate_bound;      /* CLAMPED: the upper bound of gates, and the bound of both signs for what they multiply */
    /* Heads see the last near_blocks blocks of 64 positions and every vert_stride-th before those, shifted by one from
     * head to head; layers dense_step, 2 dense_step ... have full attention. 0: all have. */
    int near_blocks, vert_stride, dense_step;
    /* Baichuan M1: keys and values are convolved over two positions, with taps by head; and in layers with a window the
     * head size is n_embd / n_head. */
    bool head_taps;
    bool joined;           /* q, k and v are one matrix, attn_qkv */
    bool two_norms;        /* parallel: attention reads attn_norm_2, the feed-forward part attn_norm */
    bool parallel;         /* attention and feed-forward part in parallel, on the same input */
    /* Norms of queries and keys: none, one vector for all heads, one for each, or one over all heads together. */
    enum { HEADS_PLAIN, HEADS_SHARE_NORM, HEADS_EACH, HEADS_WHOLE } heads;
    bool heads_unit;       /* norms without weights, whatever `heads` says */
    bool heads_centred;    /* these norms are LayerNorm */
    float heads_eps;       /* their epsilon; 0: the model's */
    bool swin;             /* POST_NORM: norms have the names of pre-norms */
    bool sums;             /* POST_NORM: norms of the sum of stream and output */
    bool no_output_norm;
    int n_embd_in;         /* the width of embeddings, if they are narrower than the layers; else 0 */
    int silent_end;        /* tokens 4 .. silent_end - 1 have logits of -1e30 */
    bool heads_bias;       /* norms of heads have a bias */
    bool norm_after_rope;  /* norms of heads come after RoPE */
    int n_expert, n_used;  /* experts in place of the feed-forward part, each n_ff wide */
    float mixer;           /* SparseMixer's jitter; 0: softmax weights */
    bool shares;           /* weights are not normalised over the chosen experts */
    const int (*uneven)[3]; /* n_head, n_head_kv and n_ff of each layer, 0 for none; or NULL: all are alike */
    int n_ff_shared;       /* the width of a shared expert; 0: none */
    bool fused_shared;     /* its gate and up are one matrix */
    int q_rank;            /* queries come from a low-rank pair with a norm in between; 0: they do not */
    bool head_mixture;     /* JetMoE: experts for queries and outputs of heads as well, with biases */
    /* ZAYA: compressed convolutional attention and scaled residuals (cca_formulas.c); the router is n_router wide and
     * has one more expert, which outputs nothing. */
    bool cca;
    int n_router;
    bool sinks;            /* attention sinks */
    const char *rotated;   /* '1' or '0' for each layer: whether it has RoPE; NULL: all have */
    int taps, full;        /* every full-th layer has attention, the others short convolutions; 0: none has */
    /* Or PLaMo 2's states, in all layers but layer step / 2 of every `step`: n_state of them, of key_dim x head_dim;
     * state_rank is the rank of dt. n_state 0: none. */
    int n_state, step, key_dim, state_rank;
    /* Or MiniMax: every second layer has lightning attention, norms replace the stream itself, and stream and output
     * are scaled when they are added: after lightning attention, after attention, after the feed-forward part. */
    bool lightning;
    float stream_scales[3][2];
    /* Or Zamba2: Mamba 2 in all layers, n_head heads of 16 values in n_group groups; layers with an 'h' use n_block
     * shared blocks in rotation, with low-rank additions of width `rank`; adapted: also to q, k and v. */
    struct {
        const char *layers;
        int n_head, n_group, n_block, rank;
        bool adapted;
        int n_scan; /* or the first Zamba's, with this many Mamba scans, `rank` being that of dt; 0: Zamba2 */
    } zamba;
    int lru_width;         /* or Griffin's recurrence, except in every third layer; 0: none */
    /* Or xLSTM's states in all layers: n_head of key_dim x head_dim, with capped gates; their matrices, and gate and up
     * of the feed-forward parts, may be fused. */
    struct {
        int n_head, key_dim;
        float cap, eps;
        bool fused;
    } mlstm;
    bool sections;         /* files have M-RoPE's sections; for text all three positions are equal */
    int loops;             /* this many passes through all layers, each followed by the last norm; 0: one */
    bool loops_mixed;      /* the second pass attends to the first one's keys, and to its own within the window
                              (IQuest) */
    bool loops_plain;      /* the last norm follows only the last pass */
    bool filtered;         /* Yuan 2: queries and keys read the input through two convolutions and come from one
                              matrix */
    bool key_scores;       /* Doge: keys have scores of their own, and the stream is scaled */
    bool differential;     /* DiffLlama: differential attention */
    bool alternate;        /* Motif: its two kinds of heads alternate, and the norms of its output have weights */
    int n_noise;           /* this many heads whose attention is subtracted, each after its group of the others; n_head
                              counts a head of the former once for each head of its group. 0: the kinds alternate */
    /* Solar Pro: for each layer '0' .. 'f', the bits of pp_hparams.skips; skip_share of a kept stream is mixed in.
     * NULL: none. */
    const char *skips;
    float skip_share;
    const char *output_norm; /* NULL: output_norm */
    int window, wide;      /* every wide-th layer has full attention, the others a window of `window` positions */
    bool wide_first;       /* layer 0 is the first of those with full attention, not layer wide - 1 */
    bool wide_unrotated;   /* layers with full attention have no RoPE */
    int wide_rope;         /* or it rotates only this many dimensions there; 0: rope_dim */
    bool say_windows;      /* files have a key that says which layers these are */
    float stretched;       /* Llama 3's RoPE scaling by this factor; 0: none */
    bool backwards;        /* heads rotate in the opposite direction */
    float base;            /* RoPE's base in layers with a window, or in all layers if there is no window; 0: the
                              default */
    bool bidirectional;    /* an encoder: rows also attend to later ones; a window reaches as far to both sides */
    bool no_first_attn_norm; /* attention of layer 0 reads the stream without a norm */
    bool dense_head;       /* a matrix, GELU and a norm between the last norm and the logits */
    int n_dense;           /* the width between two matrices after an encoder; 0: none */
    float qkv_clamp;       /* the bound of queries, keys and values; 0: none */
    float attn_cap, final_cap; /* soft caps of scores and of logits; 0: none */
    float attn_scale, embd_scale, residual_scale, logit_scale; /* 0: the defaults */
    bool logit_divided;    /* logits are divided by logit_scale, not multiplied */
    float temperature;     /* scores grow by a step every `context` positions */
    int context;
    uint32_t seed;
};

struct decoder;

/* 48 wide, 2 layers, 4 heads of 12 over 2 KV heads (phi2: over 4); everything else as is usual for the family. */
struct decoder_shape decoder_shape(const char *arch);
struct decoder *decoder_make(const struct decoder_shape *s);
void decoder_free(struct decoder *d);
/* Writes the model as a GGUF file of F32; returns its path, made by fresh_path(). */
const char *decoder_write(const struct decoder *d);
/* Replaces a tensor by one of another shape (rows 0: a vector; cols 0: removes the tensor). */
void decoder_spoil(struct decoder *d, const char *name, int64_t rows, int64_t cols);
/* logits: [n, n_vocab]; for an encoder, its vectors: [n, n_embd] */
void decoder_compute(const struct decoder *d, const int32_t *ids, int n, double *logits);

#endif
