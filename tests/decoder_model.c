#include "tests/decoder_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/types.h"
#include "tests/support.h"

enum { MAX_TENSORS = 96 };
static const double EPSILON = 1e-5, ROPE_BASE = 10000;

struct matrix {
    char name[48];
    int64_t rows, cols; /* rows 0: a vector */
    float *values;
};

struct decoder {
    struct decoder_shape s;
    struct matrix t[MAX_TENSORS];
    int n;
    uint32_t random;
};

static bool is(const struct decoder *d, const char *arch)
{
    return strcmp(d->s.arch, arch) == 0;
}

struct decoder_shape decoder_shape(const char *arch)
{
    const bool phi = strcmp(arch, "phi2") == 0, llama = strcmp(arch, "mistral3") == 0;
    return (struct decoder_shape){.arch = arch, .n_vocab = 80, .n_embd = 48, .n_layer = 2, .n_head = 4,
                                  .n_head_kv = phi ? 4 : 2, .head_dim = 12, .n_ff = 64, .n_ctx = 128,
                                  .rope_dim = llama ? 12 : 6, .parallel = phi, .seed = 1};
}

/* --- weights ------------------------------------------------------------------------------------------------- */

static float next(struct decoder *d)
{
    d->random = d->random * 1664525u + 1013904223u;
    return (float)(d->random >> 8) / 8388608.0f - 1.0f;
}

/* Uniform around a middle. */
static void add(struct decoder *d, const char *name, int64_t rows, int64_t cols, float middle, float spread)
{
    struct matrix *m = &d->t[d->n++];
    const int64_t n = (rows ? rows : 1) * cols;
    assert_true(d->n <= MAX_TENSORS);
    *m = (struct matrix){.rows = rows, .cols = cols, .values = pp_malloc((size_t)n * sizeof(float))};
    snprintf(m->name, sizeof m->name, "%s", name);
    assert_non_null(m->values);
    for (int64_t i = 0; i < n; i++)
        m->values[i] = middle + spread * next(d);
}

static void add_matrix(struct decoder *d, int l, const char *kind, int64_t rows, int64_t cols)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s.weight", l, kind);
    add(d, name, rows, cols, 0, 2 * sqrtf(3.0f / (float)cols)); /* large, so that attention prefers something */
    snprintf(name, sizeof name, "blk.%d.%s.bias", l, kind);
    if (is(d, "phi2"))
        add(d, name, 0, rows, 0, 0.5f);
}

/* A norm of `cols` values, or of `rows` heads, of which each has its own. */
static void add_norm(struct decoder *d, const char *name, int64_t rows, int64_t cols, bool bias)
{
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    add(d, full, rows, cols, 1, 0.5f);
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias)
        add(d, full, rows, cols, 0, 0.3f);
}

static void add_block_norm(struct decoder *d, int l, const char *kind)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    add_norm(d, name, 0, d->s.n_embd, !is(d, "mistral3"));
}

static void add_head_norms(struct decoder *d, int l)
{
    const bool each = d->s.heads == HEADS_EACH;
    char name[48];
    snprintf(name, sizeof name, "blk.%d.attn_q_norm", l);
    add_norm(d, name, each ? d->s.n_head : 0, d->s.head_dim, !each);
    snprintf(name, sizeof name, "blk.%d.attn_k_norm", l);
    add_norm(d, name, each ? d->s.n_head_kv : 0, d->s.head_dim, !each);
}

struct decoder *decoder_make(const struct decoder_shape *s)
{
    struct decoder *d = pp_calloc(1, sizeof *d);
    const int n = s->n_embd, n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    assert_non_null(d);
    d->s = *s;
    d->random = s->seed;
    add(d, "token_embd.weight", s->n_vocab, n, 0, 1);
    for (int l = 0; l < s->n_layer; l++) {
        add_block_norm(d, l, "attn_norm");
        add_matrix(d, l, "attn_q", n_q, n);
        add_matrix(d, l, "attn_k", n_kv, n);
        add_matrix(d, l, "attn_v", n_kv, n);
        if (s->heads != HEADS_PLAIN)
            add_head_norms(d, l);
        add_matrix(d, l, "attn_output", n, n_q);
        if (!s->parallel)
            add_block_norm(d, l, "ffn_norm");
        if (!is(d, "phi2"))
            add_matrix(d, l, "ffn_gate", s->n_ff, n);
        add_matrix(d, l, "ffn_up", s->n_ff, n);
        add_matrix(d, l, "ffn_down", n, s->n_ff);
    }
    add_norm(d, "output_norm", 0, n, !is(d, "mistral3"));
    add(d, "output.weight", s->n_vocab, n, 0, sqrtf(3.0f / (float)n));
    if (is(d, "phi2"))
        add(d, "output.bias", 0, s->n_vocab, 0, 0.5f);
    return d;
}

void decoder_free(struct decoder *d)
{
    for (int i = 0; i < d->n; i++)
        pp_free(d->t[i].values);
    pp_free(d);
}

static struct matrix *find(const struct decoder *d, const char *name)
{
    for (int i = 0; i < d->n; i++)
        if (strcmp(d->t[i].name, name) == 0)
            return (struct matrix *)&d->t[i];
    return NULL;
}

void decoder_spoil(struct decoder *d, const char *name, int64_t rows, int64_t cols)
{
    struct matrix *m = find(d, name);
    assert_non_null(m);
    pp_free(m->values);
    if (cols == 0) {
        *m = d->t[--d->n];
        return;
    }
    m->rows = rows;
    m->cols = cols;
    m->values = pp_calloc((size_t)((rows ? rows : 1) * cols), sizeof *m->values);
    assert_non_null(m->values);
}

/* --- the file ------------------------------------------------------------------------------------------------ */

static const char *key(const struct decoder *d, const char *name)
{
    static char full[96];
    snprintf(full, sizeof full, "%s.%s", d->s.arch, name);
    return full;
}

static void write_metadata(struct pp_gguf_writer *w, const struct decoder *d)
{
    const struct decoder_shape *s = &d->s;
    const struct {
        const char *key;
        int v;
    } numbers[] = {
        {"block_count", s->n_layer}, {"context_length", s->n_ctx}, {"embedding_length", s->n_embd},
        {"feed_forward_length", s->n_ff}, {"attention.head_count", s->n_head},
        {"attention.head_count_kv", s->n_head_kv}, {"attention.key_length", s->head_dim},
        {"attention.value_length", s->head_dim}, {"rope.dimension_count", s->rope_dim},
    };
    pp_gguf_add_text(w, "general.architecture", s->arch);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        pp_gguf_add_u32(w, key(d, numbers[i].key), (uint32_t)numbers[i].v);
    pp_gguf_add_f32(w, key(d, "rope.freq_base"), (float)ROPE_BASE);
    pp_gguf_add_f32(w, key(d, is(d, "mistral3") ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"),
                    (float)EPSILON);
    if (is(d, "stablelm"))
        pp_gguf_add_bool(w, key(d, "use_parallel_residual"), s->parallel);
    if (s->temperature != 0.0f) {
        pp_gguf_add_f32(w, key(d, "attention.temperature_scale"), s->temperature);
        pp_gguf_add_u32(w, key(d, "rope.scaling.original_context_length"), (uint32_t)s->context);
    }
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
}

const char *decoder_write(const struct decoder *d)
{
    static char paths[8][256];
    static unsigned serial;
    struct pp_gguf_writer *w;
    struct pp_error err;
    char *path = paths[serial % 8];
    snprintf(path, sizeof paths[0], "%s/decoder-%u.gguf", test_tmpdir(), serial++);
    assert_ok(pp_gguf_writer_new(path, &w, &err), err);
    write_metadata(w, d);
    for (int i = 0; i < d->n; i++)
        pp_gguf_add_tensor(w, d->t[i].name, PP_TYPE_F32, d->t[i].rows ? 2 : 1,
                           (const int64_t[]){d->t[i].cols, d->t[i].rows});
    assert_ok(pp_gguf_writer_begin(w, &err), err);
    for (int i = 0; i < d->n; i++)
        assert_ok(pp_gguf_write(w, d->t[i].values,
                                (size_t)((d->t[i].rows ? d->t[i].rows : 1) * d->t[i].cols) * sizeof(float), &err), err);
    assert_ok(pp_gguf_writer_finish(w, &err), err);
    pp_gguf_writer_free(w);
    return path;
}

/* --- what the model gives --------------------------------------------------------------------------------------- */

/* "attn_q" and ".weight" of a layer; l -1: of none. */
static const struct matrix *part(const struct decoder *d, int l, const char *kind, const char *end)
{
    char name[64];
    if (l < 0)
        snprintf(name, sizeof name, "%s%s", kind, end);
    else
        snprintf(name, sizeof name, "blk.%d.%s%s", l, kind, end);
    return find(d, name);
}

static double *doubles(int64_t n)
{
    double *p = pp_calloc((size_t)n, sizeof *p);
    assert_non_null(p);
    return p;
}

/* y = W x + b */
static void linear(const struct decoder *d, int l, const char *kind, const double *x, double *y)
{
    const struct matrix *w = part(d, l, kind, ".weight"), *b = part(d, l, kind, ".bias");
    assert_non_null(w);
    for (int64_t o = 0; o < w->rows; o++) {
        y[o] = b ? (double)b->values[o] : 0;
        for (int64_t i = 0; i < w->cols; i++)
            y[o] += (double)w->values[o * w->cols + i] * x[i];
    }
}

/* LayerNorm, or Llama's root of the mean square, by row `row` of a norm that has several. */
static void norm(const struct decoder *d, int l, const char *kind, int row, const double *x, double *y)
{
    const struct matrix *w = part(d, l, kind, ".weight"), *b = part(d, l, kind, ".bias");
    const int64_t n = w->cols, at = w->rows ? row * n : 0;
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n && !is(d, "mistral3"); i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(square + EPSILON) * (double)w->values[at + i] + (b ? (double)b->values[at + i] : 0);
}

/* Pairs of a head turn by position / base^(2 i / rope_dim): those half of it apart, of Llama's files neighbours. */
static void rotate(const struct decoder *d, double *head, int position)
{
    const int dim = d->s.rope_dim;
    const bool neighbours = is(d, "mistral3");
    for (int i = 0; i < dim / 2; i++) {
        double *x = &head[neighbours ? 2 * i : i], *y = &head[neighbours ? 2 * i + 1 : i + dim / 2];
        const double angle = position * pow(ROPE_BASE, -2.0 * i / dim), a = *x, b = *y;
        *x = a * cos(angle) - b * sin(angle);
        *y = b * cos(angle) + a * sin(angle);
    }
}

/* Queries or keys of one position. */
static void heads(const struct decoder *d, int l, const char *kind, int n_heads, int position, double *x)
{
    char name[32];
    snprintf(name, sizeof name, "%s_norm", kind);
    for (int h = 0; h < n_heads; h++) {
        double *head = x + h * d->s.head_dim;
        if (d->s.heads != HEADS_PLAIN)
            norm(d, l, name, h, head, head);
        rotate(d, head, position);
    }
}

/* What scores are multiplied by: 1 / sqrt(head_dim), and for Ministral 3 what grows with the position. */
static double scale_at(const struct decoder *d, int position)
{
    const double scale = 1 / sqrt(d->s.head_dim);
    if (d->s.temperature == 0.0f)
        return scale;
    return scale * (1 + (double)d->s.temperature * log(1 + floor((double)position / d->s.context)));
}

/* One query over the positions up to its own; k, v: [position][n_kv]. */
static void attend(const struct decoder *d, const double *q, const double *k, const double *v, int position, int n_kv,
                   double *out)
{
    const int dim = d->s.head_dim;
    double *p = doubles(position + 1), most = -INFINITY, sum = 0;
    for (int j = 0; j <= position; j++) {
        for (int i = 0; i < dim; i++)
            p[j] += q[i] * k[(int64_t)j * n_kv + i];
        p[j] *= scale_at(d, position);
        most = fmax(most, p[j]);
    }
    for (int j = 0; j <= position; j++)
        sum += p[j] = exp(p[j] - most);
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int j = 0; j <= position; j++)
        for (int i = 0; i < dim; i++)
            out[i] += p[j] / sum * v[(int64_t)j * n_kv + i];
    pp_free(p);
}

static double gelu_tanh(double x)
{
    return x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))) / 2;
}

static void feed_forward(const struct decoder *d, int l, const double *in, double *out)
{
    double *gate = doubles(d->s.n_ff), *up = doubles(d->s.n_ff);
    linear(d, l, "ffn_up", in, up);
    if (!is(d, "phi2"))
        linear(d, l, "ffn_gate", in, gate);
    for (int i = 0; i < d->s.n_ff; i++)
        if (is(d, "phi2"))
            up[i] = gelu_tanh(up[i]);
        else
            up[i] *= gate[i] / (1 + exp(-gate[i]));
    linear(d, l, "ffn_down", up, out);
    pp_free(gate);
    pp_free(up);
}

static void layer(const struct decoder *d, int l, double *x, int n)
{
    const struct decoder_shape *s = &d->s;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim, group = s->n_head / s->n_head_kv;
    double *k = doubles(n * n_kv), *v = doubles(n * n_kv), *q = doubles(n_q), *att = doubles(n_q);
    double *in = doubles(s->n_embd), *delta = doubles(s->n_embd), *ff = doubles(s->n_embd);
    for (int r = 0; r < n; r++) {
        double *row = x + r * s->n_embd;
        norm(d, l, "attn_norm", 0, row, in);
        linear(d, l, "attn_q", in, q);
        linear(d, l, "attn_k", in, k + r * n_kv);
        linear(d, l, "attn_v", in, v + r * n_kv);
        heads(d, l, "attn_q", s->n_head, r, q);
        heads(d, l, "attn_k", s->n_head_kv, r, k + r * n_kv);
        for (int h = 0; h < s->n_head; h++)
            attend(d, q + h * s->head_dim, k + h / group * s->head_dim, v + h / group * s->head_dim, r, n_kv,
                   att + h * s->head_dim);
        linear(d, l, "attn_output", att, delta);
        if (s->parallel)
            feed_forward(d, l, in, ff);
        for (int i = 0; i < s->n_embd; i++)
            row[i] += delta[i];
        if (!s->parallel) {
            norm(d, l, "ffn_norm", 0, row, in);
            feed_forward(d, l, in, ff);
        }
        for (int i = 0; i < s->n_embd; i++)
            row[i] += ff[i];
    }
    double *all[] = {k, v, q, att, in, delta, ff};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

void decoder_compute(const struct decoder *d, const int32_t *ids, int n, double *logits)
{
    const int width = d->s.n_embd;
    const struct matrix *table = find(d, "token_embd.weight");
    double *x = doubles(n * width), *in = doubles(width);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < width; i++)
            x[r * width + i] = (double)table->values[ids[r] * width + i];
    for (int l = 0; l < d->s.n_layer; l++)
        layer(d, l, x, n);
    for (int r = 0; r < n; r++) {
        norm(d, -1, "output_norm", 0, x + r * width, in);
        linear(d, -1, "output", in, logits + (int64_t)r * d->s.n_vocab);
    }
    pp_free(x);
    pp_free(in);
}
