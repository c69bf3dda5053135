#include "tests/expert_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/types.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { MAX_TENSORS = 128, MAX_EXPERTS = 64 };
static const double EPSILON = 1e-5, ROPE_BASE = 10000;

struct array {
    char name[48];
    int64_t matrices, rows, cols; /* 0: one dimension fewer */
    float *values;
};

struct expert_model {
    struct expert_shape s;
    struct array t[MAX_TENSORS];
    int n;
    uint32_t random;
};

struct expert_shape expert_shape(const char *arch)
{
    return (struct expert_shape){.arch = arch, .n_vocab = 80, .n_embd = 64, .n_layer = 3, .n_head = 4, .n_head_kv = 2,
                                 .head_dim = 16, .n_ff = 96, .n_ctx = 128, .rope_dim = 16, .ffn_norm = "ffn_norm",
                                 .n_expert = 8, .n_used = 3, .n_ff_expert = 32, .seed = 1};
}

/* --- weights ------------------------------------------------------------------------------------------------- */

static float next(struct expert_model *m)
{
    m->random = m->random * 1664525u + 1013904223u;
    return (float)(m->random >> 8) / 8388608.0f - 1.0f;
}

/* Uniform around a middle. l -1: of no layer. */
static void add(struct expert_model *m, int l, const char *kind, int64_t matrices, int64_t rows, int64_t cols,
                float middle, float spread)
{
    struct array *a = &m->t[m->n++];
    const int64_t n = (matrices ? matrices : 1) * (rows ? rows : 1) * cols;
    assert_true(m->n <= MAX_TENSORS);
    *a = (struct array){.matrices = matrices, .rows = rows, .cols = cols,
                        .values = pp_malloc((size_t)n * sizeof(float))};
    assert_non_null(a->values);
    if (l < 0)
        snprintf(a->name, sizeof a->name, "%s", kind);
    else
        snprintf(a->name, sizeof a->name, "blk.%d.%s", l, kind);
    for (int64_t i = 0; i < n; i++)
        a->values[i] = middle + spread * next(m);
}

static void add_matrix(struct expert_model *m, int l, const char *kind, int64_t rows, int64_t cols)
{
    add(m, l, kind, 0, rows, cols, 0, 2 * sqrtf(3.0f / (float)cols)); /* large, so that attention prefers something */
}

static void add_norm(struct expert_model *m, int l, const char *kind, int64_t cols)
{
    add(m, l, kind, 0, 0, cols, 1, 0.5f);
}

static void add_attention(struct expert_model *m, int l)
{
    static const char *const kinds[] = {"attn_q", "attn_k", "attn_v"};
    const struct expert_shape *s = &m->s;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    for (int i = 0; i < 3 && !s->fused_qkv; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s.weight", kinds[i]);
        add_matrix(m, l, name, i ? n_kv : n_q, s->n_embd);
        snprintf(name, sizeof name, "%s.bias", kinds[i]);
        if (s->biases)
            add(m, l, name, 0, 0, i ? n_kv : n_q, 0, 0.5f);
    }
    if (s->fused_qkv)
        add_matrix(m, l, "attn_qkv.weight", n_q + 2 * n_kv, s->n_embd);
    if (s->qk_norm != QK_PLAIN) {
        add_norm(m, l, "attn_q_norm.weight", s->qk_norm == QK_HEADS ? s->head_dim : n_q);
        add_norm(m, l, "attn_k_norm.weight", s->qk_norm == QK_HEADS ? s->head_dim : n_kv);
    }
    add_matrix(m, l, "attn_output.weight", s->n_embd, n_q);
    if (s->gated)
        add_matrix(m, l, "attn_gate.weight", n_q, s->n_embd);
    if (s->post_norms) {
        add_norm(m, l, "post_attention_norm.weight", s->n_embd);
        add_norm(m, l, "post_ffw_norm.weight", s->n_embd);
    }
}

static void add_experts(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    const int n = s->n_expert, width = s->n_embd, ff = s->n_ff_expert, shared = s->n_ff_shared;
    add(m, l, "ffn_gate_inp.weight", 0, n, width, 0, 2 * sqrtf(3.0f / (float)width));
    if (s->choice_bias)
        add(m, l, "exp_probs_b.bias", 0, 0, n, 0, 0.4f);
    add(m, l, "ffn_gate_exps.weight", n, ff, width, 0, 2 * sqrtf(3.0f / (float)width));
    add(m, l, "ffn_up_exps.weight", n, ff, width, 0, 2 * sqrtf(3.0f / (float)width));
    add(m, l, "ffn_down_exps.weight", n, width, ff, 0, 2 * sqrtf(3.0f / (float)ff));
    if (!shared)
        return;
    add_matrix(m, l, "ffn_gate_shexp.weight", shared, width);
    add_matrix(m, l, "ffn_up_shexp.weight", shared, width);
    add_matrix(m, l, "ffn_down_shexp.weight", width, shared);
    if (s->shared_weight)
        add(m, l, "ffn_gate_inp_shexp.weight", 0, 0, width, 0, 0.3f);
}

struct expert_model *expert_model_make(const struct expert_shape *s)
{
    struct expert_model *m = pp_calloc(1, sizeof *m);
    char ffn_norm[40];
    assert_non_null(m);
    assert_true(s->n_expert <= MAX_EXPERTS);
    m->s = *s;
    m->random = s->seed;
    snprintf(ffn_norm, sizeof ffn_norm, "%s.weight", s->ffn_norm);
    add(m, -1, "token_embd.weight", 0, s->n_vocab, s->n_embd, 0, 1);
    for (int l = 0; l < s->n_layer + s->n_nextn; l++) {
        add_norm(m, l, "attn_norm.weight", s->n_embd);
        add_attention(m, l);
        add_norm(m, l, ffn_norm, s->n_embd);
        if (l >= s->n_dense) {
            add_experts(m, l);
        } else {
            add_matrix(m, l, "ffn_gate.weight", s->n_ff, s->n_embd);
            add_matrix(m, l, "ffn_up.weight", s->n_ff, s->n_embd);
            add_matrix(m, l, "ffn_down.weight", s->n_embd, s->n_ff);
        }
        if (l >= s->n_layer)
            add_matrix(m, l, "nextn.eh_proj.weight", s->n_embd, 2 * s->n_embd);
    }
    add_norm(m, -1, "output_norm.weight", s->n_embd);
    add(m, -1, "output.weight", 0, s->n_vocab, s->n_embd, 0, sqrtf(3.0f / (float)s->n_embd));
    return m;
}

void expert_model_free(struct expert_model *m)
{
    for (int i = 0; i < m->n; i++)
        pp_free(m->t[i].values);
    pp_free(m);
}

/* --- the file ------------------------------------------------------------------------------------------------ */

static const char *key(const struct expert_model *m, const char *name)
{
    static char full[96];
    snprintf(full, sizeof full, "%s.%s", m->s.arch, name);
    return full;
}

static void write_metadata(struct pp_gguf_writer *w, const struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    const struct {
        const char *key;
        int v; /* 0: there is no such key */
    } numbers[] = {
        {"vocab_size", s->n_vocab}, {"block_count", s->n_layer + s->n_nextn}, {"context_length", s->n_ctx},
        {"embedding_length", s->n_embd}, {"feed_forward_length", s->n_ff}, {"attention.head_count", s->n_head},
        {"attention.head_count_kv", s->n_head_kv}, {"attention.key_length", s->head_dim},
        {"attention.value_length", s->head_dim}, {"rope.dimension_count", s->rope_dim}, {"expert_count", s->n_expert},
        {"expert_used_count", s->n_used}, {"expert_feed_forward_length", s->n_ff_expert},
        {"expert_shared_count", s->n_ff_shared / s->n_ff_expert},
        {"expert_shared_feed_forward_length", s->n_ff_shared}, {"leading_dense_block_count", s->n_dense},
        {"expert_group_count", s->n_groups}, {"expert_group_used_count", s->n_groups_used},
        {"expert_gating_func", s->say_gating ? 1 + s->sigmoids : 0}, {"nextn_predict_layers", s->n_nextn},
        {"attention.sliding_window", s->window},
        {"interleave_moe_layer_step", strcmp(s->arch, "ernie4_5-moe") == 0},
    };
    pp_gguf_add_text(w, "general.architecture", s->arch);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].v)
            pp_gguf_add_u32(w, key(m, numbers[i].key), (uint32_t)numbers[i].v);
    pp_gguf_add_f32(w, key(m, "rope.freq_base"), (float)ROPE_BASE);
    pp_gguf_add_f32(w, key(m, "attention.layer_norm_rms_epsilon"), (float)EPSILON);
    if (s->scale != 0.0f)
        pp_gguf_add_f32(w, key(m, "expert_weights_scale"), s->scale);
    if (s->say_norm)
        pp_gguf_add_bool(w, key(m, "expert_weights_norm"), !s->shares);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
}

static int64_t n_values(const struct array *a)
{
    return (a->matrices ? a->matrices : 1) * (a->rows ? a->rows : 1) * a->cols;
}

const char *expert_model_write(const struct expert_model *m)
{
    static char paths[8][256];
    static unsigned serial;
    struct pp_gguf_writer *w;
    struct pp_error err;
    char *path = paths[serial % 8];
    snprintf(path, sizeof paths[0], "%s/experts-%u.gguf", test_tmpdir(), serial++);
    assert_ok(pp_gguf_writer_new(path, &w, &err), err);
    write_metadata(w, m);
    for (int i = 0; i < m->n; i++) {
        const struct array *a = &m->t[i];
        pp_gguf_add_tensor(w, a->name, PP_TYPE_F32, a->matrices ? 3 : a->rows ? 2 : 1,
                           (const int64_t[]){a->cols, a->rows, a->matrices});
    }
    assert_ok(pp_gguf_writer_begin(w, &err), err);
    for (int i = 0; i < m->n; i++)
        assert_ok(pp_gguf_write(w, m->t[i].values, (size_t)n_values(&m->t[i]) * sizeof(float), &err), err);
    assert_ok(pp_gguf_writer_finish(w, &err), err);
    pp_gguf_writer_free(w);
    return path;
}

/* --- what the model gives --------------------------------------------------------------------------------------- */

static const struct array *find(const struct expert_model *m, int l, const char *kind)
{
    char begin[16] = "";
    if (l >= 0)
        snprintf(begin, sizeof begin, "blk.%d.", l);
    const size_t n = strlen(begin);
    for (int i = 0; i < m->n; i++)
        if (strncmp(m->t[i].name, begin, n) == 0 && strcmp(m->t[i].name + n, kind) == 0)
            return &m->t[i];
    return NULL;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* y = W x of matrix e of a stack, rows first .. first + n - 1 */
static void product(const struct array *w, int e, int64_t first, int64_t n, const double *x, double *y)
{
    const float *rows = w->values + ((int64_t)e * w->rows + first) * w->cols;
    for (int64_t o = 0; o < n; o++) {
        y[o] = 0;
        for (int64_t i = 0; i < w->cols; i++)
            y[o] += (double)rows[o * w->cols + i] * x[i];
    }
}

static void linear(const struct expert_model *m, int l, const char *kind, const double *x, double *y)
{
    char name[40];
    snprintf(name, sizeof name, "%s.weight", kind);
    const struct array *w = find(m, l, name);
    snprintf(name, sizeof name, "%s.bias", kind);
    const struct array *b = find(m, l, name);
    assert_non_null(w);
    product(w, 0, 0, w->rows ? w->rows : 1, x, y);
    for (int64_t o = 0; b && o < w->rows; o++)
        y[o] += (double)b->values[o];
}

/* By the root of the mean square of n values. */
static void norm(const struct expert_model *m, int l, const char *kind, const double *x, double *y)
{
    char name[40];
    snprintf(name, sizeof name, "%s.weight", kind);
    const struct array *w = find(m, l, name);
    double square = 0;
    assert_non_null(w);
    for (int64_t i = 0; i < w->cols; i++)
        square += x[i] * x[i] / (double)w->cols;
    for (int64_t i = 0; i < w->cols; i++)
        y[i] = x[i] / sqrt(square + EPSILON) * (double)w->values[i];
}

/* Pairs of a head turn by position / base^(2 i / rope_dim). */
static void rotate(const struct expert_shape *s, double *head, int position)
{
    const int dim = s->rope_dim;
    for (int i = 0; i < dim / 2; i++) {
        double *x = &head[s->neighbours ? 2 * i : i], *y = &head[s->neighbours ? 2 * i + 1 : i + dim / 2];
        const double angle = position * pow(ROPE_BASE, -2.0 * i / dim), a = *x, b = *y;
        *x = a * cos(angle) - b * sin(angle);
        *y = b * cos(angle) + a * sin(angle);
    }
}

static bool is_wide(const struct expert_shape *s, int l)
{
    return s->wide && (l + 1) % s->wide == 0;
}

/* Queries or keys of one position. */
static void heads(const struct expert_model *m, int l, const char *kind, int n_heads, int position, double *x)
{
    if (m->s.qk_norm == QK_WHOLE)
        norm(m, l, kind, x, x);
    for (int h = 0; h < n_heads; h++) {
        double *head = x + h * m->s.head_dim;
        if (m->s.qk_norm == QK_HEADS && !m->s.norms_behind_rope)
            norm(m, l, kind, head, head);
        if (!is_wide(&m->s, l))
            rotate(&m->s, head, position);
        if (m->s.qk_norm == QK_HEADS && m->s.norms_behind_rope)
            norm(m, l, kind, head, head);
    }
}

static void qkv(const struct expert_model *m, int l, const double *in, double *q, double *k, double *v)
{
    const int n_q = m->s.n_head * m->s.head_dim, n_kv = m->s.n_head_kv * m->s.head_dim;
    const struct array *fused = find(m, l, "attn_qkv.weight");
    if (fused) {
        product(fused, 0, 0, n_q, in, q);
        product(fused, 0, n_q, n_kv, in, k);
        product(fused, 0, n_q + n_kv, n_kv, in, v);
        return;
    }
    linear(m, l, "attn_q", in, q);
    linear(m, l, "attn_k", in, k);
    linear(m, l, "attn_v", in, v);
}

/* How many of n numbers are larger than number i, or equal and before it. */
static int rank(const double *v, int n, int i)
{
    int before = 0;
    for (int j = 0; j < n; j++)
        before += v[j] > v[i] || (v[j] == v[i] && j < i);
    return before;
}

/* Each expert's weight, 0 for those that do not work. */
static void route(const struct expert_model *m, int l, const double *in, double *weight)
{
    const struct expert_shape *s = &m->s;
    const struct array *bias = find(m, l, "exp_probs_b.bias");
    double logits[MAX_EXPERTS], part[MAX_EXPERTS], score[MAX_EXPERTS], groups[MAX_EXPERTS] = {0}, sum = 0;
    const int n = s->n_expert, size = s->n_groups ? n / s->n_groups : n;
    linear(m, l, "ffn_gate_inp", in, logits);
    for (int e = 0; e < n; e++)
        sum += part[e] = s->sigmoids ? sigmoid(logits[e]) : exp(logits[e]);
    for (int e = 0; e < n; e++) {
        part[e] /= s->sigmoids ? 1 : sum;
        score[e] = part[e] + (bias ? (double)bias->values[e] : 0);
    }
    for (int e = 0; e < n; e++)
        if (rank(score + e / size * size, size, e % size) < 2)
            groups[e / size] += score[e];
    for (int e = 0; e < n; e++)
        if (s->n_groups && rank(groups, s->n_groups, e / size) >= s->n_groups_used)
            score[e] = -INFINITY;
    sum = 0;
    for (int e = 0; e < n; e++)
        sum += weight[e] = rank(score, n, e) < s->n_used ? part[e] : 0;
    for (int e = 0; e < n; e++)
        weight[e] *= (s->shares ? 1 : 1 / sum) * (s->scale != 0.0f ? (double)s->scale : 1);
}

/* out += factor * W_down(silu(W_gate x) * W_up x), the matrices being the e-th of stacks, or alone. */
static void add_feed_forward(const struct expert_model *m, int l, const char *end, int e, double factor,
                             const double *in, double *out)
{
    char name[3][40];
    static const char *const kinds[] = {"ffn_gate", "ffn_up", "ffn_down"};
    const struct array *w[3];
    for (int i = 0; i < 3; i++) {
        snprintf(name[i], sizeof name[i], "%s%s.weight", kinds[i], end);
        w[i] = find(m, l, name[i]);
        assert_non_null(w[i]);
    }
    double *gate = doubles(w[0]->rows), *up = doubles(w[0]->rows), *down = doubles(m->s.n_embd);
    product(w[0], e, 0, w[0]->rows, in, gate);
    product(w[1], e, 0, w[0]->rows, in, up);
    for (int i = 0; i < w[0]->rows; i++)
        up[i] *= gate[i] * sigmoid(gate[i]);
    product(w[2], e, 0, m->s.n_embd, up, down);
    for (int i = 0; i < m->s.n_embd; i++)
        out[i] += factor * down[i];
    pp_free(gate);
    pp_free(up);
    pp_free(down);
}

static void feed_forward(const struct expert_model *m, int l, const double *in, double *out)
{
    double weight[MAX_EXPERTS], shared = 1;
    if (l < m->s.n_dense) {
        add_feed_forward(m, l, "", 0, 1, in, out);
        return;
    }
    route(m, l, in, weight);
    for (int e = 0; e < m->s.n_expert; e++)
        if (weight[e] != 0)
            add_feed_forward(m, l, "_exps", e, weight[e], in, out);
    if (m->s.shared_weight) {
        linear(m, l, "ffn_gate_inp_shexp", in, &shared);
        shared = sigmoid(shared);
    }
    if (m->s.n_ff_shared)
        add_feed_forward(m, l, "_shexp", 0, shared, in, out);
}

static void layer(const struct expert_model *m, int l, double *x, int n)
{
    const struct expert_shape *s = &m->s;
    const int dim = s->head_dim, n_q = s->n_head * dim, n_kv = s->n_head_kv * dim, group = s->n_head / s->n_head_kv;
    double *k = doubles(n * n_kv), *v = doubles(n * n_kv), *q = doubles(n_q), *att = doubles(n_q);
    double *in = doubles(s->n_embd), *delta = doubles(s->n_embd), *gate = doubles(n_q);
    for (int r = 0; r < n; r++) {
        double *row = x + r * s->n_embd;
        const int first = s->window && !is_wide(s, l) && r >= s->window ? r - s->window + 1 : 0;
        norm(m, l, "attn_norm", row, in);
        qkv(m, l, in, q, k + r * n_kv, v + r * n_kv);
        heads(m, l, "attn_q_norm", s->n_head, r, q);
        heads(m, l, "attn_k_norm", s->n_head_kv, r, k + r * n_kv);
        for (int h = 0; h < s->n_head; h++)
            attend_query(q + h * dim, k + h / group * dim, v + h / group * dim, first, r, dim, s->n_head_kv * dim,
                         1 / sqrt(dim), 0, att + h * dim);
        if (s->gated)
            linear(m, l, "attn_gate", in, gate);
        for (int i = 0; s->gated && i < n_q; i++)
            att[i] *= sigmoid(gate[i]);
        linear(m, l, "attn_output", att, delta);
        if (s->post_norms)
            norm(m, l, "post_attention_norm", delta, delta);
        for (int i = 0; i < s->n_embd; i++)
            row[i] += delta[i];
        norm(m, l, s->ffn_norm, row, in);
        memset(delta, 0, (size_t)s->n_embd * sizeof *delta);
        feed_forward(m, l, in, delta);
        if (s->post_norms)
            norm(m, l, "post_ffw_norm", delta, delta);
        for (int i = 0; i < s->n_embd; i++)
            row[i] += delta[i];
    }
    double *all[] = {k, v, q, att, in, delta, gate};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

void expert_model_compute(const struct expert_model *m, const int32_t *ids, int n, double *logits)
{
    const int width = m->s.n_embd;
    const struct array *table = find(m, -1, "token_embd.weight");
    double *x = doubles(n * width), *in = doubles(width);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < width; i++)
            x[r * width + i] = (double)table->values[ids[r] * width + i] *
                               (m->s.embd_scale != 0.0f ? (double)m->s.embd_scale : 1);
    for (int l = 0; l < m->s.n_layer; l++)
        layer(m, l, x, n);
    for (int r = 0; r < n; r++) {
        norm(m, -1, "output_norm", x + r * width, in);
        linear(m, -1, "output", in, logits + (int64_t)r * m->s.n_vocab);
    }
    pp_free(x);
    pp_free(in);
}
