/* test_train_gradients.c - gradients in training against their definitions: projections, attention, rotations and
 * a whole model are written down once more in double precision, plainly, and each gradient is compared with finite
 * differences of those. Gradients are in single precision: they agree to about 1e-5 of the largest. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/quant.h"
#include "engine/train_int.h"
#include "tests/gradients.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

/* --- the operations in double precision ----------------------------------------------------------------------- */

/* Rotates one head at one position: pairs (i, i + half) if neox, else (2i, 2i + 1). */
static void ref_rope(double *x, int64_t rope_dim, bool neox, int64_t pos, double base)
{
    int64_t half = rope_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)pos * pow(base, -2.0 * (double)i / (double)rope_dim);
        double *a = neox ? x + i : x + 2 * i, *b = neox ? x + i + half : x + 2 * i + 1;
        double x0 = *a, x1 = *b;
        *a = x0 * cos(angle) - x1 * sin(angle);
        *b = x0 * sin(angle) + x1 * cos(angle);
    }
}

struct heads {
    int64_t n, n_head, n_head_kv, dim, window;
};

/* q, out [n, n_head * dim]; k, v [n, n_head_kv * dim]. */
static void ref_attention(const struct heads *s, const double *q, const double *k, const double *v, double *out)
{
    double p[64];
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t h = 0; h < s->n_head; h++) {
            const double *qi = q + (i * s->n_head + h) * s->dim;
            int64_t kv = h / (s->n_head / s->n_head_kv), from = s->window && i >= s->window ? i - s->window + 1 : 0;
            double most = -INFINITY, sum = 0, *o = out + (i * s->n_head + h) * s->dim;
            for (int64_t j = from; j <= i; j++) {
                p[j] = 0;
                for (int64_t d = 0; d < s->dim; d++)
                    p[j] += qi[d] * k[(j * s->n_head_kv + kv) * s->dim + d] / sqrt((double)s->dim);
                most = p[j] > most ? p[j] : most;
            }
            for (int64_t j = from; j <= i; j++)
                sum += p[j] = exp(p[j] - most);
            memset(o, 0, (size_t)s->dim * sizeof *o);
            for (int64_t j = from; j <= i; j++)
                for (int64_t d = 0; d < s->dim; d++)
                    o[d] += p[j] / sum * v[(j * s->n_head_kv + kv) * s->dim + d];
        }
}

/* --- a tiny model, and the same in double precision ----------------------------------------------------------- */

enum { MAX_LAYERS = 2 };

struct ref {
    struct pp_trainer *t;
    double *params;             /* [n_params] */
    double *w[MAX_LAYERS][PP_TRAIN_TARGETS], *embedding, *output;
    double base;                /* base of the rotations */
};

static double *dequantized(const struct pp_tensor *t)
{
    int64_t n = t->ne[0] * t->ne[1];
    float *f = pp_malloc((size_t)n * sizeof *f);
    double *d = pp_malloc((size_t)n * sizeof *d);
    assert_true(f && d);
    for (int64_t r = 0; r < t->ne[1]; r++)
        pp_dequantize_row(t->type, (const uint8_t *)t->data + (size_t)r * pp_type_row_bytes(t->type, t->ne[0]),
                          f + r * t->ne[0], t->ne[0]);
    widen(d, f, n);
    pp_free(f);
    return d;
}

static struct ref ref_of(struct pp_trainer *t)
{
    struct ref r = {.t = t, .base = (double)pp_source_hparams(t->model->source)->rope_base};
    assert_true(t->n_layers <= MAX_LAYERS);
    for (int l = 0; l < t->n_layers; l++)
        for (int i = 0; i < PP_TRAIN_TARGETS; i++)
            r.w[l][i] = dequantized(t->layers[l].linear[i].w->w);
    r.embedding = dequantized(t->embedding);
    r.output = dequantized(t->output->w);
    r.params = pp_malloc(t->n_params * sizeof *r.params);
    assert_non_null(r.params);
    widen(r.params, t->params, (int64_t)t->n_params);
    return r;
}

static void ref_free(struct ref *r)
{
    for (int l = 0; l < r->t->n_layers; l++)
        for (int i = 0; i < PP_TRAIN_TARGETS; i++)
            pp_free(r->w[l][i]);
    pp_free(r->embedding);
    pp_free(r->output);
    pp_free(r->params);
}

/* y = W x + bias + scale B (A x), or added to y. */
static void ref_linear(const struct ref *r, int layer, int target, const double *x, double *y, bool add)
{
    const struct pp_train_linear *l = &r->t->layers[layer].linear[target];
    const double *w = r->w[layer][target], *a = r->params + l->a, *b = r->params + l->b;
    double u[64] = {0};
    for (int64_t k = 0; l->learnt && k < r->t->opt.rank; k++)
        for (int64_t i = 0; i < l->n_in; i++)
            u[k] += (double)r->t->scale * a[k * l->n_in + i] * x[i];
    for (int64_t o = 0; o < l->n_out; o++) {
        double sum = l->bias ? (double)l->bias[o] : 0;
        for (int64_t i = 0; i < l->n_in; i++)
            sum += w[o * l->n_in + i] * x[i];
        for (int64_t k = 0; l->learnt && k < r->t->opt.rank; k++)
            sum += b[o * r->t->opt.rank + k] * u[k];
        y[o] = add ? y[o] + sum : sum;
    }
}

enum { MOST_ROWS = 24, MOST_WIDTH = 128 };
typedef double matrix[MOST_ROWS * MOST_WIDTH];

static void ref_layer(const struct ref *r, int l, int64_t n, double *x)
{
    static matrix q, k, v, att;
    const struct pp_trainer *t = r->t;
    const struct pp_train_layer *layer = &t->layers[l];
    const struct heads heads = {n, t->n_head, t->n_head_kv, t->head_dim, layer->window};
    double h[MOST_WIDTH], gate[MOST_WIDTH], up[MOST_WIDTH];
    for (int64_t i = 0; i < n; i++) {
        ref_norm(x + i * t->n_embd, layer->attn_norm, (double)t->norm_eps, t->n_embd, h);
        ref_linear(r, l, PP_TRAIN_Q, h, q + i * t->n_q, false);
        ref_linear(r, l, PP_TRAIN_K, h, k + i * t->n_kv, false);
        ref_linear(r, l, PP_TRAIN_V, h, v + i * t->n_kv, false);
        for (int64_t a = 0; a < t->n_head; a++)
            ref_rope(q + i * t->n_q + a * t->head_dim, t->rope_dim, t->neox, i, r->base);
        for (int64_t a = 0; a < t->n_head_kv; a++)
            ref_rope(k + i * t->n_kv + a * t->head_dim, t->rope_dim, t->neox, i, r->base);
    }
    ref_attention(&heads, q, k, v, att);
    for (int64_t i = 0; i < n; i++) {
        double *mid = x + i * t->n_embd;
        ref_linear(r, l, PP_TRAIN_O, att + i * t->n_q, mid, true);
        ref_norm(mid, layer->ffn_norm, (double)t->norm_eps, t->n_embd, h);
        ref_linear(r, l, PP_TRAIN_GATE, h, gate, false);
        ref_linear(r, l, PP_TRAIN_UP, h, up, false);
        for (int64_t j = 0; j < t->n_ff; j++)
            gate[j] = ref_silu(gate[j]) * up[j];
        ref_linear(r, l, PP_TRAIN_DOWN, gate, mid, true);
    }
}

/* Sum of -log p over an example's learnt tokens. */
static double ref_example(const struct ref *r, const struct pp_example *e)
{
    static matrix x;
    const struct pp_trainer *t = r->t;
    const int32_t *tokens = t->data->tokens + e->first;
    double loss = 0, h[MOST_WIDTH], logits[MOST_WIDTH];
    assert_true(e->n <= MOST_ROWS && t->n_vocab <= MOST_WIDTH && t->n_ff <= MOST_WIDTH);
    for (int64_t i = 0; i < e->n; i++)
        memcpy(x + i * t->n_embd, r->embedding + tokens[i] * t->n_embd, (size_t)t->n_embd * sizeof *x);
    for (int l = 0; l < t->n_layers; l++)
        ref_layer(r, l, e->n, x);
    for (int64_t i = 0; i + 1 < e->n; i++) {
        if (!t->data->learnt[e->first + (size_t)i + 1])
            continue;
        ref_norm(x + i * t->n_embd, t->output_norm, (double)t->norm_eps, t->n_embd, h);
        for (int64_t o = 0; o < t->n_vocab; o++) {
            logits[o] = 0;
            for (int64_t j = 0; j < t->n_embd; j++)
                logits[o] += r->output[o * t->n_embd + j] * h[j];
        }
        loss += ref_cross_entropy(logits, t->n_vocab, tokens[i + 1]);
    }
    return loss;
}

static double ref_loss(void *user)
{
    const struct ref *r = user;
    double sum = 0;
    for (size_t i = 0; i < r->t->data->n; i++)
        sum += ref_example(r, &r->t->data->examples[i]);
    return sum / (double)r->t->data->info.n_learnt;
}

/* Examples of 9, 17 and 2 tokens; in two of them only some tokens are learnt. */
static struct pp_train_data *few_examples(int n_vocab)
{
    static const int lengths[] = {9, 17, 2};
    struct pp_error err;
    struct pp_train_data *d = pp_calloc(1, sizeof *d);
    assert_non_null(d);
    for (int e = 0; e < 3; e++) {
        int32_t tokens[32];
        uint8_t learnt[32];
        for (int i = 0; i < lengths[e]; i++) {
            tokens[i] = (e * 31 + i * 7) % n_vocab;
            learnt[i] = e == 2 || i % 3 != 1;
        }
        assert_ok(pp_train_data_add(d, tokens, learnt, (size_t)lengths[e], 32, &err), err);
    }
    assert_int_equal(d->n, 3);
    return d;
}

static struct tiny_shape small_shape(uint32_t type)
{
    return (struct tiny_shape){.n_vocab = 50, .n_embd = 32, .n_layer = 2, .n_head = 4, .n_head_kv = 2, .head_dim = 8,
                               .n_ff = 64, .n_ctx = 64, .type = type, .seed = 7};
}

struct fixture {
    struct pp_model *model;
    struct pp_train_data *data;
    struct pp_trainer *t;
};

static struct fixture set_up(const struct tiny_shape *s, struct pp_train_options opt)
{
    struct fixture f;
    struct pp_error err;
    assert_ok(pp_model_open(tiny_model(s), &f.model, &err), err);
    f.data = few_examples(s->n_vocab);
    assert_ok(pp_trainer_new(f.model, f.data, NULL, &opt, &f.t, &err), err);
    fill(f.t->params, (int64_t)f.t->n_params); /* B as well: if it were zero, A would have no gradient */
    for (size_t i = 0; i < f.t->n_params; i++)
        f.t->params[i] *= 0.3f;
    return f;
}

static void tear_down(struct fixture *f)
{
    pp_trainer_free(f->t);
    pp_train_data_free(f->data);
    pp_model_close(f->model);
}

static struct pp_train_options small_options(void)
{
    struct pp_train_options opt = pp_train_options_default();
    opt.rank = 3;
    opt.alpha = 5;
    opt.n_threads = 2;
    opt.batch = 3;
    return opt;
}

/* The gradient of the mean loss of all examples, in t->grad. */
static double gradient_of_all(struct pp_trainer *t)
{
    struct pp_error err;
    memset(t->grad, 0, t->n_params * sizeof *t->grad);
    pp_train_batch_clear(&t->batch);
    for (size_t i = 0; i < t->data->n; i++)
        pp_train_batch_add(&t->batch, t->data, &t->data->examples[i]);
    assert_ok(pp_train_forward(t, NULL, &err), err);
    double loss = pp_train_loss(t, 1.0f / (float)t->data->info.n_learnt);
    assert_ok(pp_train_backward(t, NULL, &err), err);
    return loss / (double)t->data->info.n_learnt;
}

/* Some entries of a tensor; returns the largest gradient seen. */
static double check_tensor(struct ref *r, size_t begin, int64_t n)
{
    double most = 0;
    for (int64_t k = 0; k < 6; k++) {
        size_t i = begin + (size_t)(k * (n - 1) / 5);
        double want = derivative(ref_loss, r, &r->params[i]), got = (double)r->t->grad[i];
        if (!(fabs(want - got) <= 2e-6 + 1e-4 * fabs(want)))
            fail_msg("parameter %zu: the gradient is %.9g, not %.9g", i, got, want);
        most = fabs(want) > most ? fabs(want) : most;
    }
    return most;
}

static void check_model(const struct tiny_shape *shape, struct pp_train_options opt)
{
    struct fixture f = set_up(shape, opt);
    struct ref r = ref_of(f.t);
    double loss = gradient_of_all(f.t);
    assert_near(loss, ref_loss(&r), 1e-5);
    for (int l = 0; l < f.t->n_layers; l++)
        for (int i = 0; i < PP_TRAIN_TARGETS; i++) {
            const struct pp_train_linear *lin = &f.t->layers[l].linear[i];
            assert_int_equal(lin->learnt, opt.targets >> i & 1);
            if (!lin->learnt)
                continue;
            /* The gradients must be so large that not everything would pass. */
            assert_true(check_tensor(&r, lin->a, opt.rank * lin->n_in) > 1e-4);
            assert_true(check_tensor(&r, lin->b, opt.rank * lin->n_out) > 1e-4);
        }
    ref_free(&r);
    tear_down(&f);
}

static void whole_model(void **state)
{
    (void)state;
    static const uint32_t types[] = {PP_TYPE_F32, PP_TYPE_F16, PP_TYPE_BF16, PP_TYPE_Q8_0};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct tiny_shape s = small_shape(types[i]);
        check_model(&s, small_options());
    }
}

static void other_shapes(void **state)
{
    (void)state;
    struct tiny_shape s = small_shape(PP_TYPE_F32);
    struct pp_train_options opt = small_options();
    s.window = 5;
    s.biases = true;
    opt.rslora = true;
    check_model(&s, opt);
    s = small_shape(PP_TYPE_F32);
    s.n_head_kv = 1;
    opt.targets = 1u << PP_TRAIN_Q | 1u << PP_TRAIN_V;
    check_model(&s, opt);
    s.n_head_kv = 4;
    opt.targets = 1u << PP_TRAIN_DOWN | 1u << PP_TRAIN_K;
    check_model(&s, opt);
}

/* A layer whose values are not kept is computed again, with the same bits. */
static void less_memory(void **state)
{
    (void)state;
    struct tiny_shape s = small_shape(PP_TYPE_BF16);
    struct pp_train_options opt = small_options();
    s.n_layer = 3; /* two layers that are not kept share memory */
    struct fixture f = set_up(&s, opt);
    assert_int_equal(f.t->info.n_kept, 3);
    gradient_of_all(f.t);
    size_t bytes = f.t->n_params * sizeof(float);
    float *want = pp_malloc(bytes), *params = pp_malloc(bytes);
    assert_true(want && params);
    memcpy(want, f.t->grad, bytes);
    memcpy(params, f.t->params, bytes);
    uint64_t all = f.t->info.bytes;
    tear_down(&f);
    for (int kept = 1; kept >= 0; kept--) {
        opt.memory = all - 1;
        f = set_up(&s, opt);
        assert_int_equal(f.t->info.n_kept, kept);
        assert_true(f.t->info.bytes < all);
        memcpy(f.t->params, params, bytes);
        gradient_of_all(f.t);
        assert_memory_equal(f.t->grad, want, bytes);
        all = f.t->info.bytes;
        tear_down(&f);
    }
    struct pp_error err;
    struct pp_trainer *none;
    struct fixture g = set_up(&s, small_options());
    opt.memory = all - 1;
    assert_int_equal(pp_trainer_new(g.model, g.data, NULL, &opt, &none, &err), PP_ERR_NOMEM);
    assert_non_null(strstr(err.text, "MB"));
    assert_null(none);
    tear_down(&g);
    pp_free(want);
    pp_free(params);
}

/* Neither the number of threads nor the kernels nor the grouping of examples in a pass changes a gradient's bits;
 * examples do not influence each other. */
static void same_bits(void **state)
{
    (void)state;
    struct tiny_shape s = tiny_shape(PP_TYPE_BF16);
    struct pp_train_options opt = small_options();
    opt.rank = 5;
    opt.n_threads = 1;
    opt.kernels = "scalar";
    struct fixture f = set_up(&s, opt);
    gradient_of_all(f.t);
    size_t bytes = f.t->n_params * sizeof(float);
    float *want = pp_malloc(bytes), *params = pp_malloc(bytes);
    assert_true(want && params);
    memcpy(want, f.t->grad, bytes);
    memcpy(params, f.t->params, bytes);
    tear_down(&f);
    pp_pool_assume_cpus(4);
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!pp_isa_runs((enum pp_isa)isa))
            continue;
        opt.kernels = pp_isa_name((enum pp_isa)isa);
        opt.n_threads = 1 + isa % 4;
        f = set_up(&s, opt);
        memcpy(f.t->params, params, bytes);
        gradient_of_all(f.t);
        assert_memory_equal(f.t->grad, want, bytes);
        tear_down(&f);
    }
    pp_pool_assume_cpus(0);
    pp_free(want);
    pp_free(params);
}

/* --- attention and rotations through the trainer's own functions ---------------------------------------------- */

struct attention_case {
    struct heads s;
    double q[17 * 32], k[17 * 32], v[17 * 32], dout[17 * 32];
};

static double attention_value(void *user)
{
    struct attention_case *c = user;
    static double out[17 * 32];
    double sum = 0;
    ref_attention(&c->s, c->q, c->k, c->v, out);
    for (int64_t i = 0; i < c->s.n * c->s.n_head * c->s.dim; i++)
        sum += c->dout[i] * out[i];
    return sum;
}

static void check_attention(int n_head_kv, int window)
{
    struct tiny_shape s = small_shape(PP_TYPE_F32);
    s.n_head_kv = n_head_kv;
    s.window = window;
    struct fixture f = set_up(&s, small_options());
    struct pp_trainer *t = f.t;
    struct attention_case c = {.s = {17, t->n_head, t->n_head_kv, t->head_dim, window}};
    const struct pp_train_activations *v = &t->values[0];
    const int64_t nq = 17 * t->n_q, nk = 17 * t->n_kv;
    pp_train_batch_clear(&t->batch);
    pp_train_batch_add(&t->batch, f.data, &f.data->examples[0]); /* one more example before it */
    pp_train_batch_add(&t->batch, f.data, &f.data->examples[1]);
    const int64_t q0 = 9 * t->n_q, k0 = 9 * t->n_kv;
    fill(v->q, q0 + nq);
    fill(v->k, k0 + nk);
    fill(v->v, k0 + nk);
    fill(t->datt, q0 + nq);
    widen(c.q, v->q + q0, nq);
    widen(c.k, v->k + k0, nk);
    widen(c.v, v->v + k0, nk);
    widen(c.dout, t->datt + q0, nq);
    pp_train_attention(t, 0, v);
    double out[17 * 32];
    ref_attention(&c.s, c.q, c.k, c.v, out);
    for (int64_t i = 0; i < nq; i++)
        assert_near(v->att[q0 + i], out[i], 1e-5);
    pp_train_attention_backward(t, 0, v);
    for (int64_t i = 0; i < nq; i += 5)
        assert_near(t->dq[q0 + i], derivative(attention_value, &c, &c.q[i]), 2e-5);
    for (int64_t i = 0; i < nk; i += 3) {
        assert_near(t->dk[k0 + i], derivative(attention_value, &c, &c.k[i]), 2e-5);
        assert_near(t->dv[k0 + i], derivative(attention_value, &c, &c.v[i]), 2e-5);
    }
    tear_down(&f);
}

static void attention_gradient(void **state)
{
    (void)state;
    check_attention(1, 0);
    check_attention(2, 0);
    check_attention(4, 0);
    check_attention(2, 6);
}

/* <dy, rope(x)> = <rope backwards(dy), x>: the derivative of the left side by x is rope backwards(dy). */
static void rope_gradient(void **state)
{
    (void)state;
    for (int neox = 0; neox < 2; neox++) {
        struct tiny_shape s = small_shape(PP_TYPE_F32);
        struct fixture f = set_up(&s, small_options());
        const struct pp_trainer *t = f.t;
        for (int64_t pos = 0; pos < t->max_seq; pos += 8) {
            float dy[8];
            double y[8];
            fill(dy, 8);
            float dx[8];
            memcpy(dx, dy, sizeof dx);
            t->ops->rope(dx, t->rope_dim, neox, t->cos_sin_back + pos * t->rope_dim);
            for (int i = 0; i < 8; i++) { /* linear: a unit vector gives the derivative */
                double want = 0;
                memset(y, 0, sizeof y);
                y[i] = 1;
                ref_rope(y, t->rope_dim, neox, pos, 10000.0);
                for (int j = 0; j < 8; j++)
                    want += (double)dy[j] * y[j];
                assert_near(dx[i], want, 1e-5);
            }
        }
        tear_down(&f);
    }
}

/* --- a projection with A and B -------------------------------------------------------------------------------- */

struct linear_case {
    struct ref r;
    double x[5 * 64], dy[5 * 64];
    int target;
};

static double linear_value(void *user)
{
    struct linear_case *c = user;
    const struct pp_train_linear *l = &c->r.t->layers[1].linear[c->target];
    double y[64], sum = 0;
    for (int64_t i = 0; i < 5; i++) {
        ref_linear(&c->r, 1, c->target, c->x + i * l->n_in, y, false);
        for (int64_t o = 0; o < l->n_out; o++)
            sum += c->dy[i * l->n_out + o] * y[o];
    }
    return sum;
}

static void linear_gradient(void **state)
{
    (void)state;
    struct tiny_shape s = small_shape(PP_TYPE_Q8_0);
    s.biases = true;
    struct fixture f = set_up(&s, small_options());
    struct pp_trainer *t = f.t;
    for (int target = 0; target < PP_TRAIN_TARGETS; target++) {
        const struct pp_train_linear *l = &t->layers[1].linear[target];
        struct linear_case c = {.r = ref_of(t), .target = target};
        float x[5 * 64], y[5 * 64], dx[5 * 64], u[5 * 3], du[5 * 3];
        double want[64];
        struct pp_train_apply a = {.linear = l, .n_rows = 5, .x = x, .u = u, .y = y, .du = du, .dx = dx};
        fill(x, 5 * l->n_in);
        widen(c.x, x, 5 * l->n_in);
        pp_train_linear_forward(t, &a, 1);
        for (int64_t i = 0; i < 5; i++) {
            ref_linear(&c.r, 1, target, c.x + i * l->n_in, want, false);
            for (int64_t o = 0; o < l->n_out; o++)
                assert_near(y[i * l->n_out + o], want[o], 1e-5);
        }
        fill(y, 5 * l->n_out);
        widen(c.dy, y, 5 * l->n_out);
        memset(t->grad, 0, t->n_params * sizeof *t->grad);
        pp_train_linear_backward(t, &a, 1);
        for (int64_t i = 0; i < 5 * l->n_in; i += 3)
            assert_near(dx[i], derivative(linear_value, &c, &c.x[i]), 1e-5);
        for (int64_t i = 0; i < t->opt.rank * l->n_in; i++)
            assert_near(t->grad[l->a + (size_t)i], derivative(linear_value, &c, &c.r.params[l->a + (size_t)i]), 1e-5);
        for (int64_t i = 0; i < t->opt.rank * l->n_out; i++)
            assert_near(t->grad[l->b + (size_t)i], derivative(linear_value, &c, &c.r.params[l->b + (size_t)i]), 1e-5);
        ref_free(&c.r);
    }
    tear_down(&f);
}

TEST_GROUP(train_gradients)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_gradient),
        cmocka_unit_test(attention_gradient),
        cmocka_unit_test(linear_gradient),
        cmocka_unit_test(whole_model),
        cmocka_unit_test(other_shapes),
        cmocka_unit_test(less_memory),
        cmocka_unit_test(same_bits),
    };
    random_from(1);
    return cmocka_run_group_tests_name("train_gradients", tests, NULL, NULL);
}
