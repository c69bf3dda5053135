/* train_pass.c - the forward pass of a batch, its loss, and the backward pass.
 *
 * The input of every layer is kept. A layer's intermediate values are kept as memory allows; for other layers the
 * backward pass first repeats the forward pass: a third more work, but memory for one layer instead of all (arXiv
 * 1604.06174). Both give the same bits. */
#include <string.h>

#include "engine/base/float_mode.h"
#include "engine/quant.h"
#include "engine/train_int.h"

enum { ROWS_AT_ONCE = 8 };

/* --- loops over rows ------------------------------------------------------------------------------------------ */

void pp_train_run_items(struct pp_trainer *t, int n, pp_pool_fn *fn, void *arg)
{
    const unsigned mode = pp_float_mode_flush(); /* probabilities and their gradients can be subnormal */
    pp_pool_run(t->pool, fn, arg, &n, 1);
    pp_float_mode_set(mode);
}

float *pp_train_scratch(struct pp_trainer *t, int thread)
{
    return t->scratch + (size_t)thread * t->scratch_each;
}

/* The arrays of a loop over rows; each function uses them in its own way. */
struct row_work;
typedef void row_fn(const struct row_work *w, int64_t row);
struct row_work {
    struct pp_trainer *t;
    row_fn *fn;
    int64_t n;
    const float *in, *in2, *weight;
    float *out, *out2;
    float factor;
    bool backwards;
};

static void do_rows(void *arg, int part, int item, int thread)
{
    (void)part, (void)thread;
    const struct row_work *w = arg;
    for (int64_t r = (int64_t)item * ROWS_AT_ONCE; r < w->n && r < (item + 1LL) * ROWS_AT_ONCE; r++)
        w->fn(w, r);
}

static void each_row(struct row_work w)
{
    pp_train_run_items(w.t, (int)((w.n + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE), do_rows, &w);
}

static void norm_row(const struct row_work *w, int64_t r)
{
    int64_t n = w->t->n_embd;
    w->t->ops->rms_norm(w->in + r * n, w->weight, w->t->norm_eps, n, w->out + r * n);
}

static void norm(struct pp_trainer *t, int64_t n, const float *x, const float *weight, float *y)
{
    each_row((struct row_work){.t = t, .fn = norm_row, .n = n, .in = x, .weight = weight, .out = y});
}

static void norm_backward_row(const struct row_work *w, int64_t r)
{
    int64_t n = w->t->n_embd;
    w->t->train_ops->rms_norm_backward(w->in + r * n, w->weight, w->in2 + r * n, w->t->norm_eps, n, w->out + r * n);
}

/* Adds the gradient through a norm to dx. */
static void norm_backward(struct pp_trainer *t, int64_t n, const float *x, const float *weight, const float *dy,
                          float *dx)
{
    each_row((struct row_work){
        .t = t, .fn = norm_backward_row, .n = n, .in = x, .in2 = dy, .weight = weight, .out = dx});
}

static void rope_row(const struct row_work *w, int64_t r)
{
    const struct pp_trainer *t = w->t;
    const float *cs = (w->backwards ? t->cos_sin_back : t->cos_sin) + t->batch.pos[r] * t->rope_dim;
    for (int64_t h = 0; h < t->n_head; h++)
        t->ops->rope(w->out + r * t->n_q + h * t->head_dim, t->rope_dim, t->neox, cs);
    for (int64_t h = 0; h < t->n_head_kv; h++)
        t->ops->rope(w->out2 + r * t->n_kv + h * t->head_dim, t->rope_dim, t->neox, cs);
}

/* In place. backwards: rotates by the negative angle, which is the inverse, and gives the gradient. */
static void rope(struct pp_trainer *t, float *q, float *k, bool backwards)
{
    each_row((struct row_work){
        .t = t, .fn = rope_row, .n = t->batch.n_rows, .out = q, .out2 = k, .backwards = backwards});
}

static void swiglu_row(const struct row_work *w, int64_t r)
{
    int64_t n = w->t->n_ff;
    w->t->ops->gate(PP_FN_SILU, 0, w->in + r * n, w->in2 + r * n, n, w->out + r * n);
}

/* in: gate, in2: up; out: the gradient of the product, which becomes that of gate; out2: that of up. */
static void swiglu_backward_row(const struct row_work *w, int64_t r)
{
    int64_t n = w->t->n_ff, at = r * n;
    w->t->train_ops->swiglu_backward(w->in + at, w->in2 + at, w->out + at, n, w->out + at, w->out2 + at);
}

static void embed_row(const struct row_work *w, int64_t r)
{
    const struct pp_tensor *e = w->t->embedding;
    const size_t at = (size_t)w->t->batch.tokens[r] * pp_type_row_bytes(e->type, e->ne[0]);
    pp_dequantize_row(e->type, (const uint8_t *)e->data + at, w->out + r * e->ne[0], e->ne[0]);
}

/* --- forward -------------------------------------------------------------------------------------------------- */

static struct pp_train_apply apply(struct pp_trainer *t, int layer, int target, const float *x,
                                   const struct pp_train_activations *v, float *y)
{
    float *du = t->du + (int64_t)target * t->max_rows * t->opt.rank;
    return (struct pp_train_apply){.linear = &t->layers[layer].linear[target], .n_rows = t->batch.n_rows, .x = x,
                                   .u = v->u[target], .y = y, .du = du};
}

/* Computes a layer's kept values from x; with `next` also its output, which the backward pass does not need. */
static void layer_forward(struct pp_trainer *t, int layer, const float *x, const struct pp_train_activations *v,
                          float *next)
{
    const struct pp_train_layer *l = &t->layers[layer];
    const int64_t n = t->batch.n_rows;
    const size_t bytes = (size_t)(n * t->n_embd) * sizeof(float);
    norm(t, n, x, l->attn_norm, v->h1);
    pp_train_linear_forward(t,
                            (struct pp_train_apply[]){apply(t, layer, PP_TRAIN_Q, v->h1, v, v->q),
                                                      apply(t, layer, PP_TRAIN_K, v->h1, v, v->k),
                                                      apply(t, layer, PP_TRAIN_V, v->h1, v, v->v)},
                            3);
    rope(t, v->q, v->k, false);
    pp_train_attention(t, layer, v);
    memcpy(v->mid, x, bytes);
    struct pp_train_apply o = apply(t, layer, PP_TRAIN_O, v->att, v, v->mid);
    o.add = true;
    pp_train_linear_forward(t, &o, 1);
    norm(t, n, v->mid, l->ffn_norm, v->h2);
    pp_train_linear_forward(t,
                            (struct pp_train_apply[]){apply(t, layer, PP_TRAIN_GATE, v->h2, v, v->gate),
                                                      apply(t, layer, PP_TRAIN_UP, v->h2, v, v->up)},
                            2);
    each_row((struct row_work){.t = t, .fn = swiglu_row, .n = n, .in = v->gate, .in2 = v->up, .out = v->act});
    struct pp_train_apply down = apply(t, layer, PP_TRAIN_DOWN, v->act, v, next);
    down.add = true;
    if (next)
        memcpy(next, v->mid, bytes);
    pp_train_linear_forward(t, &down, 1);
}

static enum pp_code stopped(const struct pp_trainer *t, const struct pp_cancel *cancel, struct pp_error *err)
{
    if (pp_cancelled(cancel))
        return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
    return pp_source_check(t->model->source, err);
}

enum pp_code pp_train_forward(struct pp_trainer *t, const struct pp_cancel *cancel, struct pp_error *err)
{
    each_row((struct row_work){.t = t, .fn = embed_row, .n = t->batch.n_rows, .out = t->x[0]});
    for (int l = 0; l < t->n_layers; l++) {
        enum pp_code code = stopped(t, cancel, err);
        if (code)
            return code;
        layer_forward(t, l, t->x[l], &t->values[l], t->x[l + 1]);
    }
    return stopped(t, cancel, err);
}

/* --- loss ----------------------------------------------------------------------------------------------------- */

/* Rows of the batch with a target, some at a time. */
struct loss_work {
    struct pp_trainer *t;
    const int32_t *rows;        /* [items] */
    float weight;
};

static void loss_item(void *arg, int part, int item, int thread)
{
    (void)part, (void)thread;
    const struct loss_work *w = arg;
    struct pp_trainer *t = w->t;
    int32_t row = w->rows[item];
    t->row_loss[row] = t->train_ops->cross_entropy(t->logits + item * t->n_vocab, t->n_vocab, t->batch.target[row],
                                                   w->weight, w->weight > 0);
}

static void head_forward(struct pp_trainer *t, const int32_t *rows, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        t->ops->rms_norm(t->x[t->n_layers] + rows[i] * t->n_embd, t->output_norm, t->norm_eps, t->n_embd,
                         t->hidden + i * t->n_embd);
    pp_train_logits(t, n);
}

static void head_backward(struct pp_trainer *t, const int32_t *rows, int64_t n)
{
    pp_train_logits_backward(t, n);
    for (int64_t i = 0; i < n; i++)
        t->train_ops->rms_norm_backward(t->x[t->n_layers] + rows[i] * t->n_embd, t->output_norm,
                                        t->dhidden + i * t->n_embd, t->norm_eps, t->n_embd,
                                        t->dx + rows[i] * t->n_embd);
}

double pp_train_loss(struct pp_trainer *t, float weight)
{
    const struct pp_train_batch *b = &t->batch;
    double sum = 0;
    if (weight > 0)
        memset(t->dx, 0, (size_t)(b->n_rows * t->n_embd) * sizeof *t->dx);
    for (int first = 0; first < b->n_learnt; first += t->head_rows) {
        int n = b->n_learnt - first < t->head_rows ? b->n_learnt - first : t->head_rows;
        struct loss_work w = {.t = t, .rows = b->learnt + first, .weight = weight};
        head_forward(t, w.rows, n);
        pp_train_run_items(t, n, loss_item, &w);
        if (weight > 0)
            head_backward(t, w.rows, n);
    }
    for (int i = 0; i < b->n_learnt; i++)
        sum += t->row_loss[b->learnt[i]];
    return sum;
}

/* --- backward ------------------------------------------------------------------------------------------------- */

/* dx: the gradient of the layer's output becomes that of its input. */
static void layer_backward(struct pp_trainer *t, int layer, const struct pp_train_activations *v)
{
    const struct pp_train_layer *l = &t->layers[layer];
    const int64_t n = t->batch.n_rows;
    struct pp_train_apply down = apply(t, layer, PP_TRAIN_DOWN, v->act, v, t->dx);
    down.dx = t->dact;
    pp_train_linear_backward(t, &down, 1);
    each_row((struct row_work){
        .t = t, .fn = swiglu_backward_row, .n = n, .in = v->gate, .in2 = v->up, .out = t->dact, .out2 = t->dup});
    struct pp_train_apply ffn[] = {apply(t, layer, PP_TRAIN_GATE, v->h2, v, t->dact),
                                   apply(t, layer, PP_TRAIN_UP, v->h2, v, t->dup)};
    ffn[0].dx = ffn[1].dx = t->dh;
    pp_train_linear_backward(t, ffn, 2);
    norm_backward(t, n, v->mid, l->ffn_norm, t->dh, t->dx); /* dx is now the gradient of mid */

    struct pp_train_apply o = apply(t, layer, PP_TRAIN_O, v->att, v, t->dx);
    o.dx = t->datt;
    pp_train_linear_backward(t, &o, 1);
    pp_train_attention_backward(t, layer, v);
    rope(t, t->dq, t->dk, true);
    struct pp_train_apply qkv[] = {apply(t, layer, PP_TRAIN_Q, v->h1, v, t->dq),
                                   apply(t, layer, PP_TRAIN_K, v->h1, v, t->dk),
                                   apply(t, layer, PP_TRAIN_V, v->h1, v, t->dv)};
    const bool below = layer > 0; /* nothing before the first layer is learnt */
    for (int i = 0; i < 3; i++)
        qkv[i].dx = below ? t->dh : NULL;
    pp_train_linear_backward(t, qkv, 3);
    if (below)
        norm_backward(t, n, t->x[layer], l->attn_norm, t->dh, t->dx);
}

enum pp_code pp_train_backward(struct pp_trainer *t, const struct pp_cancel *cancel, struct pp_error *err)
{
    for (int l = t->n_layers - 1; l >= 0; l--) {
        enum pp_code code = stopped(t, cancel, err);
        if (code)
            return code;
        if (l < t->n_layers - t->info.n_kept)
            layer_forward(t, l, t->x[l], &t->values[l], NULL);
        layer_backward(t, l, &t->values[l]);
    }
    return PP_OK;
}
