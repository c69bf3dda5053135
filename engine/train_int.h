/* train_int.h - the inside of training; private to engine/train*.c and their tests.
 *
 * A pass takes rows: the tokens of some examples, concatenated; row r is position pos[r] of its example. With E =
 * n_embd, Q = n_head * head_dim, K = n_head_kv * head_dim, F = n_ff, N rows, a layer computes
 *
 *   h1 = norm(x)   q = rope(Wq h1)   k = rope(Wk h1)   v = Wv h1   att = attention(q, k, v)   mid = x + Wo att
 *   h2 = norm(mid)   gate = Wg h2   up = Wu h2   act = silu(gate) up   next x = mid + Wd act
 *
 * where each W x is W x + bias + B u with u = scale A x. After the last layer: norm, output, cross entropy. */
#ifndef PP_ENGINE_TRAIN_INT_H
#define PP_ENGINE_TRAIN_INT_H

#include "engine/cpu/ops.h"
#include "engine/cpu/train.h"
#include "engine/model.h"
#include "engine/pool.h"
#include "engine/train.h"

/* --- examples ------------------------------------------------------------------------------------------------- */

struct pp_example {
    size_t first;               /* index in the data's tokens */
    int32_t n;
    int32_t n_learnt;
};

struct pp_train_data {
    int32_t *tokens;
    uint8_t *learnt;            /* 1: this token is to be learnt; never the first of an example */
    size_t n_tokens, cap_tokens, cap_learnt;
    struct pp_example *examples;
    size_t n, cap;
    struct pp_train_data_info info;
};

/* Appends an example of n tokens, cut to max_tokens; leaves it out if no learnt token remains. */
enum pp_code pp_train_data_add(struct pp_train_data *d, const int32_t *tokens, const uint8_t *learnt, size_t n,
                               int64_t max_tokens, struct pp_error *err);
/* The hash of the data that checkpoints contain. */
struct pp_hash128 pp_train_data_hash(const struct pp_train_data *d);

/* --- random numbers ------------------------------------------------------------------------------------------- */

/* The i-th number of a stream, by splitmix64, so that it can be computed directly. */
uint64_t pp_train_random(uint64_t seed, uint64_t stream, uint64_t i);
/* A random order of 0 .. n - 1. */
void pp_train_shuffle(uint64_t seed, uint64_t stream, uint32_t *order, size_t n);
enum { PP_STREAM_SPLIT = 1, PP_STREAM_INIT = 1 << 8, PP_STREAM_EPOCH = 1 << 20 };

/* --- a trainer ------------------------------------------------------------------------------------------------ */

/* A projection and its LoRA. */
struct pp_train_linear {
    const struct pp_linear *w;
    const float *bias;          /* [n_out], or NULL */
    int64_t n_in, n_out;
    bool learnt;
    size_t a, b;                /* indices of A [rank, n_in] and B [n_out, rank] in the parameters */
};

struct pp_train_layer {
    struct pp_train_linear linear[PP_TRAIN_TARGETS];
    const float *attn_norm, *ffn_norm;
    int64_t window;             /* 0: none */
};

/* Values of a layer that the backward pass needs from the forward pass. */
struct pp_train_activations {
    float *h1, *q, *k, *v, *att, *mid, *h2, *gate, *up, *act;
    float *u[PP_TRAIN_TARGETS]; /* [N, rank] */
};

struct pp_train_batch {
    int n_rows, n_seqs, n_learnt;
    int32_t *tokens;            /* [N] */
    int32_t *pos;               /* [N] */
    int32_t *target;            /* [N]: the next token, or -1 if it is not learnt */
    int32_t *learnt;            /* [n_learnt]: the rows that have a target */
    int32_t *seq_first;         /* [batch + 1]: first rows of examples; [n_seqs] is n_rows */
};

struct pp_trainer {
    const struct pp_model *model;
    const struct pp_train_data *data, *validation;
    struct pp_train_options opt;
    struct pp_train_info info;
    const struct pp_cpu_ops *ops;
    const struct pp_train_ops *train_ops;
    struct pp_pool *pool;

    /* the model */
    int64_t n_embd, n_q, n_kv, n_ff, n_vocab, head_dim, n_head, n_head_kv, rope_dim;
    float norm_eps, attn_scale, scale; /* scale: of B A */
    bool neox;
    int n_layers;
    struct pp_train_layer *layers;
    const struct pp_tensor *embedding;
    const struct pp_linear *output;
    const float *output_norm, *output_bias;
    float *vectors;             /* all norms and biases */

    /* what is learnt */
    size_t n_params;
    float *params, *grad, *m, *v;
    int64_t step;
    double first_validation, first_loss; /* NAN: not known */

    /* memory for a pass */
    int max_rows, max_seq, head_rows;    /* head_rows: rows with logits at a time */
    void *memory;
    float **x;                  /* [n_layers + 1] of [N, E] */
    struct pp_train_activations *values; /* [n_layers]: layers that are not kept share one */
    struct pp_train_batch batch;
    float *dx, *dh, *datt, *dq, *dk, *dv, *dact, *dup, *du; /* du: [PP_TRAIN_TARGETS, N, rank] */
    float *hidden, *dhidden, *logits; /* [head_rows, E], [head_rows, E], [head_rows, V] */
    double *row_loss;           /* [N] */
    float *cos_sin, *cos_sin_back; /* [max_seq, rope_dim] */
    float *scratch;             /* for all threads */
    size_t scratch_each;        /* floats */
    double *norms;              /* [chunks of parameters] */
    uint32_t *order;            /* [examples]: order of the epoch */
    int64_t order_epoch;        /* -1: none yet */
};

/* train_model.c: extracts the model's parts, and checks that it can be trained. */
enum pp_code pp_train_take_model(struct pp_trainer *t, struct pp_error *err);

/* train_batch.c */
void pp_train_batch_clear(struct pp_train_batch *b);
void pp_train_batch_add(struct pp_train_batch *b, const struct pp_train_data *d, const struct pp_example *e);
/* Rows of the largest pass. */
size_t pp_train_max_rows(const struct pp_train_data *d, int batch);

/* train_product.c: y = W x + bias + B (scale A x) and its backward halves, on all threads. */
struct pp_train_apply {
    const struct pp_train_linear *linear;
    int64_t n_rows;
    const float *x;             /* [n_rows, n_in] */
    float *u;                   /* [n_rows, rank]: scale A x; used if the projection is learnt */
    float *y;                   /* [n_rows, n_out]: forward the result, or NULL for u alone; backward its gradient */
    bool add;                   /* adds W x to y */
    float *du;                  /* [n_rows, rank]: work space */
    float *dx;                  /* [n_rows, n_in]: the gradient of x, to which all projections of x add; NULL: not
                                   wanted */
};
/* Projections of one layer with the same input, at most three, each with its y. */
void pp_train_linear_forward(struct pp_trainer *t, const struct pp_train_apply *a, int n);
/* Adds to the gradients of A and B. All dx must be the same: the first projection sets it, the others add to it. */
void pp_train_linear_backward(struct pp_trainer *t, const struct pp_train_apply *a, int n);
/* logits of hidden [n, E], and hidden's gradient from theirs. */
void pp_train_logits(struct pp_trainer *t, int64_t n);
void pp_train_logits_backward(struct pp_trainer *t, int64_t n);

/* train_attention.c: attention of all examples of the batch. */
void pp_train_attention(struct pp_trainer *t, int layer, const struct pp_train_activations *v);
/* From datt to dq, dk, dv. */
void pp_train_attention_backward(struct pp_trainer *t, int layer, const struct pp_train_activations *v);
/* Floats that a thread needs for examples of n tokens. */
size_t pp_train_attention_scratch(int64_t n);

/* train_pass.c: forward and backward of the batch. */
enum pp_code pp_train_forward(struct pp_trainer *t, const struct pp_cancel *cancel, struct pp_error *err);
/* The sum of -log p over the batch's targets; with a weight > 0 also the gradient of weight times that, in dx. */
double pp_train_loss(struct pp_trainer *t, float weight);
/* Propagates dx, and adds to the gradients of all A and B. */
enum pp_code pp_train_backward(struct pp_trainer *t, const struct pp_cancel *cancel, struct pp_error *err);
/* Runs fn for items 0 .. n - 1, such as rows. */
void pp_train_run_items(struct pp_trainer *t, int n, pp_pool_fn *fn, void *arg);
float *pp_train_scratch(struct pp_trainer *t, int thread);

/* train_optimiser.c */
void pp_train_init_params(struct pp_trainer *t);
double pp_train_grad_norm(struct pp_trainer *t);
float pp_train_rate(const struct pp_trainer *t, int64_t step);
void pp_train_adamw(struct pp_trainer *t, float lr, float grad_factor);
enum { PP_TRAIN_CHUNK = 1 << 14 }; /* parameters in a work item */

#endif
