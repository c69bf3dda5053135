/* decoder_model.h - small random decoders of some families that the tests write, and the logits that they give, in
 * double precision from the formulas. */
#ifndef PP_TESTS_DECODER_MODEL_H
#define PP_TESTS_DECODER_MODEL_H

#include <stdbool.h>
#include <stdint.h>

/* What a family's models are made of, told apart from how the engine tells it. */
struct decoder_shape {
    const char *arch;      /* as GGUF files call it */
    const char *family;    /* whose files these are if that is another family's name; or NULL */
    int n_vocab, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff, n_ctx, rope_dim;
    bool centred;          /* norms take the mean off */
    bool norm_bias;
    bool norm_plain;       /* they have no weights at all */
    int norm_groups;       /* those of the stream are by so many parts of it; 0: of all together */
    float epsilon;         /* of all of them; 0: the usual one */
    bool unrotated;        /* no heads are rotated */
    bool positions;        /* the first layer's input has learned positions in it */
    bool sinusoids;        /* or sinusoids, */
    bool fairseq;          /* whose first two rows are no position's, and which end one frequency lower */
    bool embd_norm;        /* it is normed */
    float alibi;           /* exponent of slopes; 0: none */
    bool alibi_scaled;     /* they are multiplied by the scores' scale */
    bool neighbours;       /* 2 i and 2 i + 1 are rotated together, instead of i and i + rope_dim / 2 */
    bool tied;             /* the output is the embeddings */
    enum { BIAS_QKV = 1, BIAS_O = 2, BIAS_FF = 4, BIAS_OUTPUT = 8, BIAS_CONVOLUTION = 16,
           BIAS_DOWN = 32 } biases; /* FF: of all its matrices; DOWN: of the last alone */
    enum { PRE_NORM = 0, POST_NORM = 1, BOTH_NORMS = 2 } norms; /* of what goes in, of what comes out */
    float behind_eps;      /* those of what comes out have this epsilon, and come out small; 0: that of all norms */
    bool gated;            /* what attention gives is multiplied by sigmoids of its input: attn_gate */
    bool head_gates;       /* of which there is one for each head, not for each value */
    bool embd_plain;       /* embd_norm: without weights */
    float query_scale;     /* HEADS_ALIKE: norms of queries multiply by this, those of keys by 1 */
    bool sub_norms;        /* and of what goes into the last matrices of attention and feed-forward part */
    const char *ffn_norm;  /* NULL: ffn_norm; where parallel, there is none */
    /* From GELU on there is no gate but in the last; of FUSED gate and value are one matrix. */
    enum {
        FF_SILU, FF_SILU_FUSED, FF_GELU_FUSED, FF_GELU_GATE, FF_GELU_EXACT_GATE, FF_RELU2_GATE, FF_GELU, FF_GELU_EXACT,
        FF_RELU2, FF_XIELU, FF_RELU, FF_CLAMPED, FF_POLY
    } ff;
    float gate_bound;      /* CLAMPED: gates are at most this, and what they multiply is within it */
    /* Heads see the last so many blocks of 64 positions, and each so many-th before those, the next head one that is
     * earlier; layers dense_step, 2 dense_step ... see all. 0: all do. */
    int near_blocks, far_step, dense_step;
    /* Keys and values are sums over two positions, with numbers of each head; and in layers with a window, whatever
     * their number, heads are together as wide as the model. */
    bool head_taps;
    bool joined;           /* q, k and v are one matrix: attn_qkv */
    bool two_norms;        /* parallel: attention reads attn_norm_2's, the feed-forward part attn_norm's */
    bool parallel;         /* attention and feed-forward part beside each other, reading the same */
    /* How queries and keys are normed, if they are: all heads by one vector, each by its own, or all together. */
    enum { HEADS_PLAIN, HEADS_ALIKE, HEADS_EACH, HEADS_WHOLE } heads;
    bool heads_unit;       /* they are normed without weights, whatever the line above says */
    bool heads_centred;    /* and the mean is taken off by these */
    float heads_eps;       /* with this epsilon; 0: that of all norms */
    bool swin;             /* POST_NORM: norms have the names of those before parts */
    bool sums;             /* POST_NORM: what is normed is the stream with what came out in it */
    bool no_output_norm;
    int n_embd_in;         /* of embeddings, where a matrix stands between them and the layers on either side; or 0 */
    int silent_end;        /* tokens 4 .. silent_end - 1 have logits of -1e30 */
    bool heads_bias;       /* something is added behind these norms */
    bool heads_behind_rope; /* they are normed after they are rotated */
    int n_expert, n_used;  /* in place of the feed-forward part, each of n_ff */
    float mixer;           /* SparseMixer's jitter; 0: weights are shares */
    bool shares;           /* weights of experts are not made to add up to one */
    const int (*uneven)[3]; /* of each layer n_head, n_head_kv and n_ff, 0 being none; or NULL: all are alike */
    int n_ff_shared;       /* of an expert that every token uses; 0: there is none */
    bool fused_shared;     /* its gate and value are one matrix */
    int q_rank;            /* queries are a product of so low a rank, normed in between; 0: they are not */
    bool head_mixture;     /* experts make queries, too, and read what attention gives; and they add something */
    /* ZAYA's: queries and keys go through convolutions, half of the values are the last position's, and parts are
     * scaled (cca_formulas.c); and experts are chosen by so many values, or one that gives nothing. */
    bool cca;
    int n_router;
    bool sinks;            /* scores without values */
    const char *rotated;   /* of each layer '1' or '0': whether it is; NULL: all are */
    int taps, full;        /* each full-th layer has attention, the others short convolutions; 0: there are none */
    /* Or PLaMo 2's states, but for the step / 2-th of each `step` layers: how many, of key_dim x head_dim, whose steps
     * are made of state_rank numbers; 0: there are none. */
    int n_state, step, key_dim, state_rank;
    /* Or MiniMax's: each second layer has lightning attention, norms are of the stream itself, and that and what is
     * added behind a part are multiplied: in those layers, behind attention, behind the feed-forward part. */
    bool lightning;
    float stream_scales[3][2];
    /* Or Zamba2's: Mamba 2 in all layers, of so many heads of 16 values in so many groups, and in those with an 'h' one
     * of so many blocks in turns, whose products of low rank are so wide and are for q, k and v, too, or not. */
    struct {
        const char *layers;
        int n_head, n_group, n_block, rank;
        bool adapted;
        int n_scan; /* or the first Zamba's, with Mamba in so many scans, whose steps have `rank`; 0: it is not */
    } zamba;
    int lru_width;         /* or Griffin's recurrence, but for each third layer; 0: there is none */
    /* Or xLSTM's states in all layers: so many of key_dim x head_dim, whose gates are capped; their matrices, and gate
     * and value of feed-forward parts, may be fused. */
    struct {
        int n_head, key_dim;
        float cap, eps;
        bool fused;
    } mlstm;
    bool sections;         /* files say which pairs turn by which of three positions, which are one for text */
    int loops;             /* all layers are gone through so often, with the last norm behind each time; 0: once */
    bool loops_mixed;      /* the second time sees the first time's keys, and its own within the window: IQuest's */
    bool loops_plain;      /* or behind the last time only */
    bool filtered;         /* Yuan 2's: queries and keys read the input through two convolutions, and share vectors */
    bool key_scores;       /* Doge's: keys have scores of their own, and parts multiply the stream */
    bool differential;     /* DiffLlama's: attention is the difference of two */
    bool alternate;        /* of heads that take turns, and what they give is normed with weights: Motif's */
    int n_noise;           /* so many heads of the second kind stand behind groups of the first, and count in n_head as
                              often as there are others in a group; 0: they take turns */
    /* Solar Pro's: of each layer '0' .. 'f', whose bits say that the stream before it is kept, in the first or second
     * place, and that so much of what is there is mixed into it; NULL: none is. */
    const char *skips;
    float skip_share;
    const char *output_norm; /* NULL: output_norm */
    int window, wide;      /* each wide-th layer sees everything, the others so many positions */
    bool wide_first;       /* the first layer does, then each wide-th behind it */
    bool wide_unrotated;   /* and is not rotated */
    int wide_rope;         /* or so much of its heads is, of the others' rope_dim; 0: the same of all */
    bool say_windows;      /* files say which layers those are */
    float stretched;       /* long waves are, by this factor, as Llama 3 has it; 0: none are */
    bool backwards;        /* heads turn the other way round */
    float base;            /* of frequencies in layers with a window, or without windows in all; 0: the usual one */
    bool bidirectional;    /* an encoder: rows see later ones, too, in a window that reaches as far both ways */
    bool first_not_normed; /* what goes into the first layer's attention is the stream itself */
    bool dense_head;       /* a matrix, a GELU and a norm stand between the last norm and the logits */
    int n_dense;           /* between two matrices behind an encoder; 0: there are none */
    float qkv_clamp;       /* queries, keys and values are within this; 0: anything */
    float attn_cap, final_cap; /* soft caps of scores and of logits; 0: there is none */
    float attn_scale, embd_scale, residual_scale, logit_scale; /* 0: the usual ones */
    bool logit_divided;    /* by logit_scale, instead of multiplied */
    float temperature;     /* scores grow with each context of `context` positions */
    int context;
    uint32_t seed;
};

struct decoder;

/* 48 wide, 2 layers, 4 heads of 12 over 2 (phi2: over 4); the rest as the family has it. */
struct decoder_shape decoder_shape(const char *arch);
struct decoder *decoder_make(const struct decoder_shape *s);
void decoder_free(struct decoder *d);
/* Writes the model as a GGUF file of F32; its path as fresh_path gives it. */
const char *decoder_write(const struct decoder *d);
/* Replaces the tensor of that name by one of other sizes (rows 0: a vector; cols 0: it is left out). */
void decoder_spoil(struct decoder *d, const char *name, int64_t rows, int64_t cols);
/* logits: [n, n_vocab]; an encoder's vectors: [n, n_embd] */
void decoder_compute(const struct decoder *d, const int32_t *ids, int n, double *logits);

#endif
