/* expert_formulas.c - reference outputs of small random mixtures of experts, computed in double precision: each step
 * follows the family's paper and its model in transformers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/expert_model_int.h"
#include "tests/small_model.h"
#include "tests/support.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* y = W x of matrix e of a stack, rows first .. first + n - 1 */
static void product(const struct array *w, int e, int64_t first, int64_t n, const double *x, double *y)
{
    const float *rows = w->values + ((int64_t)e * w->rows + first) * w->cols;
    for (int64_t o = 0; o < n; o++)
        y[o] = small_dot(rows + o * w->cols, x, w->cols);
}

void expert_linear(const struct expert_model *m, int l, const char *kind, const double *x, double *y)
{
    char name[40];
    snprintf(name, sizeof name, "%s.weight", kind);
    const struct array *w = expert_find(m, l, name);
    snprintf(name, sizeof name, "%s.bias", kind);
    const struct array *b = expert_find(m, l, name);
    assert_non_null(w);
    product(w, 0, 0, w->rows ? w->rows : 1, x, y);
    for (int64_t o = 0; b && o < w->rows; o++)
        y[o] += (double)b->values[o];
}

/* GigaChat 3.5's gated norm: multiplies the n normalised values x by 2 sigmoid(W_down silu(W_up x)). */
static void gate_norm(const struct expert_model *m, int l, const char *kind, int64_t n, double *x)
{
    char name[48];
    double *low = doubles(m->s.norm_rank), *gates = doubles(n);
    snprintf(name, sizeof name, "%s_gate_up", kind);
    expert_linear(m, l, name, x, low);
    for (int i = 0; i < m->s.norm_rank; i++)
        low[i] *= sigmoid(low[i]);
    snprintf(name, sizeof name, "%s_gate_down", kind);
    expert_linear(m, l, name, low, gates);
    for (int64_t i = 0; i < n; i++)
        x[i] *= 2 * sigmoid(gates[i]);
    pp_free(low);
    pp_free(gates);
}

/* RMSNorm, or LayerNorm where the model is `centred`. */
static void norm(const struct expert_model *m, int l, const char *kind, const double *x, double *y)
{
    char name[40];
    snprintf(name, sizeof name, "%s.weight", kind);
    const struct array *w = expert_find(m, l, name);
    double square = 0, mean = 0;
    if (!w && m->s.stream_rank) { /* Qwen 4: parts have no pre-norm */
        memmove(y, x, (size_t)m->s.n_embd * sizeof *y);
        return;
    }
    assert_non_null(w);
    for (int64_t i = 0; i < w->cols && m->s.centred; i++)
        mean += x[i] / (double)w->cols;
    for (int64_t i = 0; i < w->cols; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)w->cols;
    const double epsilon = m->s.epsilon != 0.0f ? (double)m->s.epsilon : EXPERT_EPSILON;
    for (int64_t i = 0; i < w->cols; i++)
        y[i] = (x[i] - mean) / sqrt(square + epsilon) * (double)w->values[i];
    if (m->s.norm_rank)
        gate_norm(m, l, kind, w->cols, y);
}

/* Whether YaRN scales the RoPE of this base: only the model's own base, not another one for some layers. */
static bool is_scaled(const struct expert_shape *s, double base)
{
    return s->yarn_factor != 0.0f && !(s->local_base != 0.0f && base == (double)s->local_base);
}

/* The frequency of pair i: base^(-2 i / rope_dim). YaRN (arXiv 2309.00071) divides it by its factor if the pair makes
 * less than one full turn in the original context, and interpolates if it makes up to 32. */
static double frequency(const struct expert_shape *s, int rotated, double base, int i)
{
    const double dim = rotated, whole = pow(base, -2.0 * i / dim), two_pi = 2 * acos(-1);
    if (!is_scaled(s, base))
        return whole;
    const double log_base = 2 * log(base);
    const double low = fmax(0, floor(dim * log(s->yarn_ctx / (32 * two_pi)) / log_base));
    const double high = fmin(dim - 1, ceil(dim * log(s->yarn_ctx / (1 * two_pi)) / log_base));
    const double ramp = fmin(1, fmax(0, (i - low) / (high > low ? high - low : 0.001)));
    return whole * (1 - ramp) + whole / (double)s->yarn_factor * ramp;
}

/* RoPE of the first `dim` values of a head. YaRN also scales them, except with latent attention. */
void expert_rotate(const struct expert_shape *s, int dim, double base, double *head, int position)
{
    const double length = is_scaled(s, base) && !s->kv_rank ? 0.1 * log((double)s->yarn_factor) + 1 : 1;
    for (int i = 0; i < dim / 2; i++) {
        double *x = &head[s->neighbours ? 2 * i : i], *y = &head[s->neighbours ? 2 * i + 1 : i + dim / 2];
        const double angle = position * frequency(s, dim, base, i), a = *x, b = *y;
        *x = (a * cos(angle) - b * sin(angle)) * length;
        *y = (b * cos(angle) + a * sin(angle)) * length;
    }
}

static void unit_norm(const struct expert_model *m, double *head)
{
    double square = 0;
    for (int i = 0; i < m->s.head_dim; i++)
        square += head[i] * head[i] / m->s.head_dim;
    for (int i = 0; i < m->s.head_dim; i++)
        head[i] /= sqrt(square + EXPERT_EPSILON);
}

/* Queries or keys of one position. */
static void heads(const struct expert_model *m, int l, const char *kind, int n_heads, int position, double *x)
{
    const bool local = m->s.local_base != 0.0f && !expert_is_wide(&m->s, l);
    const double base = local ? (double)m->s.local_base : EXPERT_ROPE_BASE;
    if (m->s.qk_norm == QK_WHOLE)
        norm(m, l, kind, x, x);
    for (int h = 0; h < n_heads; h++) {
        double *head = x + h * m->s.head_dim;
        if (m->s.qk_norm == QK_HEADS && !m->s.norms_after_rope)
            norm(m, l, kind, head, head);
        if (!expert_is_wide(&m->s, l) || m->s.local_base != 0.0f || (m->s.parallel && l < m->s.n_dense))
            expert_rotate(&m->s, local || !m->s.wide_rope ? m->s.rope_dim : m->s.wide_rope, base, head, position);
        if (m->s.qk_norm == QK_HEADS && m->s.norms_after_rope)
            norm(m, l, kind, head, head);
        if (m->s.unweighted_qk_norm && !expert_is_wide(&m->s, l))
            unit_norm(m, head);
    }
}

/* The scale of layer l's scores. */
static double scale_at(const struct expert_shape *s, int l, int position)
{
    const double scale = s->attn_scale != 0.0f ? (double)s->attn_scale : 1 / sqrt(s->head_dim);
    return s->length && expert_is_wide(s, l) && !s->kv_rank
               ? scale * (1 + (double)s->temperature * log(1 + floor((position + 1.0) / s->length)))
               : scale;
}

/* The first position that a row sees. */
static int first_seen(const struct expert_shape *s, int l, int row)
{
    if (!s->window || expert_is_wide(s, l))
        return 0;
    return s->chunked ? row / s->window * s->window : row >= s->window ? row - s->window + 1 : 0;
}

static void qkv(const struct expert_model *m, int l, const double *in, double *q, double *k, double *v)
{
    const int n_q = expert_heads(&m->s, l) * m->s.head_dim, heads = expert_key_heads(&m->s, l);
    const int n_kv = heads * m->s.head_dim, v_dim = expert_value_dim(&m->s);
    const struct array *fused = expert_find(m, l, "attn_qkv.weight");
    if (fused) {
        product(fused, 0, 0, n_q, in, q);
        product(fused, 0, n_q, n_kv, in, k);
        product(fused, 0, n_q + n_kv, n_kv, in, v);
        return;
    }
    if (!expert_gates_queries(&m->s))
        expert_linear(m, l, "attn_q", in, q);
    expert_linear(m, l, "attn_k", in, k);
    expert_linear(m, l, "attn_v", in, v);
    for (int h = heads - 1; h >= 0 && v_dim < m->s.head_dim; h--) { /* pads values with zeros to the width of keys */
        memmove(v + h * m->s.head_dim, v + h * v_dim, (size_t)v_dim * sizeof *v);
        memset(v + h * m->s.head_dim + v_dim, 0, (size_t)(m->s.head_dim - v_dim) * sizeof *v);
    }
}

/* The share of the softmax that is left for the positions when head h's attention sink is part of the sum; 1 without
 * sinks. */
static double share_beside(const struct array *sinks, int h, const double *q, const double *k, int first, int position,
                           int dim, int n_kv, double scale)
{
    double sum = 0;
    for (int i = first; sinks && i <= position; i++) {
        double score = 0;
        for (int d = 0; d < dim; d++)
            score += q[d] * k[i * n_kv + d];
        sum += exp(score * scale);
    }
    return sinks ? sum / (sum + exp((double)sinks->values[h])) : 1;
}

/* attn_q has for each head first the query, then the gate. */
static void gated_queries(const struct expert_model *m, int l, const double *in, double *q, double *gate)
{
    const int dim = m->s.head_dim;
    double *both = doubles(2 * m->s.n_head * dim);
    expert_linear(m, l, "attn_q", in, both);
    for (int h = 0; h < m->s.n_head; h++) {
        memcpy(q + h * dim, both + 2 * h * dim, (size_t)dim * sizeof *q);
        memcpy(gate + h * dim, both + (2 * h + 1) * dim, (size_t)dim * sizeof *gate);
    }
    pp_free(both);
}

static double capped(double cap, double x)
{
    return cap != 0 ? cap * tanh(x / cap) : x;
}

static double gelu(double x)
{
    return x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))) / 2;
}

/* The rank of number i among n, from 0: how many are larger, or equal and before it. */
static int rank(const double *v, int n, int i)
{
    int before = 0;
    for (int j = 0; j < n; j++)
        before += v[j] > v[i] || (v[j] == v[i] && j < i);
    return before;
}

/* Each expert's weight; 0 if it is not chosen. */
static void route(const struct expert_model *m, int l, const double *in, double *weight)
{
    const struct expert_shape *s = &m->s;
    const struct array *bias = expert_find(m, l, "exp_probs_b.bias");
    double logits[MAX_EXPERTS], part[MAX_EXPERTS], score[MAX_EXPERTS], groups[MAX_EXPERTS] = {0}, sum = 0;
    const int n = s->n_expert + s->n_idle, size = s->n_groups ? n / s->n_groups : n;
    const int n_used = s->uneven ? s->uneven[l][0] : s->n_used;
    expert_linear(m, l, "ffn_gate_inp", in, logits);
    for (int e = 0; e < n; e++)
        logits[e] = capped((double)s->router_cap, logits[e]);
    for (int e = 0; e < n; e++)
        sum += part[e] = s->sigmoids ? sigmoid(logits[e]) : exp(logits[e]);
    for (int e = 0; e < n; e++) {
        part[e] /= s->sigmoids ? 1 : sum;
        score[e] = part[e] + (bias ? (double)bias->values[e] : 0);
    }
    for (int e = 0; e < n; e++)
        if (rank(score + e / size * size, size, e % size) < (s->groups_by_largest ? 1 : 2))
            groups[e / size] += score[e];
    for (int e = 0; e < n; e++)
        if (s->n_groups && rank(groups, s->n_groups, e / size) >= s->n_groups_used)
            score[e] = -INFINITY;
    sum = 0;
    for (int e = 0; e < n; e++)
        sum += weight[e] = rank(score, n, e) < n_used ? part[e] : 0;
    for (int e = 0; e < n; e++)
        weight[e] *= (s->shares ? 1 : 1 / sum) * (s->scale != 0.0f ? (double)s->scale : 1);
    const struct array *scales = expert_find(m, l, "ffn_down_exps.scale");
    for (int e = 0; scales && e < s->n_expert; e++)
        weight[e] *= (double)scales->values[e];
}

/* out += factor * W_down(silu(W_gate x) * W_up x), with relu(W_up x)^2 if there is no gate. The matrices are the e-th
 * of a stack, or e is 0. */
static void add_feed_forward(const struct expert_model *m, int l, const char *end, int e, double factor,
                             const double *in, double *out)
{
    char name[3][40];
    static const char *const kinds[] = {"ffn_gate", "ffn_up", "ffn_down"};
    const struct array *w[3];
    for (int i = 0; i < 3; i++) {
        snprintf(name[i], sizeof name[i], "%s%s.weight", kinds[i], end);
        w[i] = expert_find(m, l, name[i]);
        assert_true(w[i] || (i == 0 && m->s.ungated));
    }
    const int n = (int)w[1]->rows, n_out = (int)w[2]->rows;
    double *gate = doubles(n), *up = doubles(n), *down = doubles(n_out);
    if (w[0])
        product(w[0], e, 0, n, in, gate);
    product(w[1], e, 0, n, in, up);
    const bool experts = strcmp(end, "_exps") == 0, bounded = m->s.clamp_before_silu ? experts : l == m->s.n_layer - 1;
    const float most = m->s.bounded_all ? m->s.bound : !bounded ? 0 : experts ? m->s.bound : m->s.shared_bound;
    for (int i = 0; i < n && most != 0.0f && m->s.clamp_before_silu; i++) /* then so is SiLU's output */
        gate[i] = fmin((double)most, gate[i]);
    for (int i = 0; i < n && most != 0.0f; i++)
        up[i] = fmin((double)most, gate[i] * sigmoid(gate[i])) * fmax(-(double)most, fmin((double)most, up[i]));
    for (int i = 0; i < n && m->s.attn_res_block; i++) /* SiTU */
        up[i] = 4 * tanh(gate[i] / 4) * sigmoid(gate[i]) * 25 * tanh(up[i] / 25);
    for (int i = 0; i < n && m->s.clamped; i++)
        up[i] = fmin(7, gate[i]) * sigmoid(1.702 * fmin(7, gate[i])) * (fmax(-7, fmin(7, up[i])) + 1);
    for (int i = 0; i < n && most == 0.0f && !m->s.attn_res_block && !m->s.clamped; i++)
        up[i] *= m->s.gelu ? gelu(gate[i]) : m->s.early ? fmax(0, gate[i])
                                           : w[0] ? gate[i] * sigmoid(gate[i]) : fmax(0, up[i]);
    product(w[2], e, 0, n_out, up, down);
    snprintf(name[0], sizeof name[0], "ffn_down%s.bias", end);
    const struct array *bias = expert_find(m, l, name[0]);
    for (int i = 0; bias && i < n_out; i++)
        down[i] += (double)bias->values[e * n_out + i];
    for (int i = 0; i < n_out; i++)
        out[i] += factor * down[i];
    pp_free(gate);
    pp_free(up);
    pp_free(down);
}

/* chooser: the router's input. */
static void feed_forward(const struct expert_model *m, int l, const double *chooser, const double *in, double *out)
{
    double weight[MAX_EXPERTS], shared = 1;
    if (!expert_layer(&m->s, l)) {
        add_feed_forward(m, l, "", 0, 1, in, out);
        if (m->s.n_ff_shared && !m->s.n_expert)
            add_feed_forward(m, l, "_shexp", 0, 1, in, out);
        return;
    }
    route(m, l, chooser, weight);
    const int width = m->s.n_embd_expert ? m->s.n_embd_expert : m->s.n_embd;
    double *weighed = doubles(width), *narrow = doubles(width), *sum = doubles(width), *wide = doubles(m->s.n_embd);
    if (m->s.n_embd_expert)
        expert_linear(m, l, m->s.attn_res_block ? "ffn_routed_down" : "ffn_latent_down", in, narrow);
    else
        memcpy(narrow, in, (size_t)width * sizeof *in);
    for (int e = 0; e < m->s.n_expert; e++) {
        for (int i = 0; i < width; i++)
            weighed[i] = narrow[i] * (m->s.weighted_inputs ? weight[e] : 1);
        if (weight[e] != 0)
            add_feed_forward(m, l, "_exps", e, m->s.weighted_inputs ? 1 : weight[e], weighed, sum);
    }
    for (int e = m->s.n_expert; e < m->s.n_expert + m->s.n_idle; e++)
        for (int i = 0; i < width; i++)
            sum[i] += weight[e] * narrow[i];
    for (int e = 0; m->s.share && e < m->s.n_expert; e++)
        if (weight[e] != 0)
            add_feed_forward(m, l, "_chexps", e / m->s.share, weight[e] * (double)m->s.share_scale, in, out);
    if (m->s.n_embd_expert && m->s.attn_res_block)
        norm(m, l, "ffn_routed_norm", sum, sum);
    if (m->s.n_embd_expert)
        expert_linear(m, l, m->s.attn_res_block ? "ffn_routed_up" : "ffn_latent_up", sum, wide);
    for (int i = 0; i < m->s.n_embd; i++)
        out[i] += m->s.n_embd_expert ? wide[i] : sum[i];
    pp_free(weighed);
    pp_free(narrow);
    pp_free(sum);
    pp_free(wide);
    if (m->s.shared_weight) {
        expert_linear(m, l, "ffn_gate_inp_shexp", in, &shared);
        shared = sigmoid(shared);
    }
    if (m->s.shared_expert_mix) {
        double both[2];
        expert_linear(m, l, "ffn_share", in, both);
        shared = exp(both[1]) / (exp(both[0]) + exp(both[1]));
        for (int i = 0; i < m->s.n_embd; i++)
            out[i] *= 1 - shared;
    }
    if (m->s.n_ff_shared)
        add_feed_forward(m, l, "_shexp", 0, shared, in, out);
    for (int i = 0; m->s.n_ff_shared && m->s.parallel && i < m->s.n_embd; i++)
        out[i] /= 2;
    if (!m->s.dense_parallel || m->s.beside_norm || m->s.shortcut)
        return;
    add_feed_forward(m, l, "", 0, 1, in, out);
    for (int i = 0; i < m->s.n_embd; i++)
        out[i] /= sqrt(2);
}

/* Latent attention (arXiv 2405.04434) in its unabsorbed form: every position's latent vector is expanded to keys and
 * values of each head. Both are padded with zeros to `width`. */
struct expanded {
    int width;
    double *k, *v;          /* [n, n_head, width] */
};

static struct expanded expand(const struct expert_model *m, int l, const double *x, int n)
{
    const struct expert_shape *s = &m->s;
    const int head = s->nope + s->rope_dim, width = head > s->v_dim ? head : s->v_dim, each = s->nope + s->v_dim;
    struct expanded e = {.width = width, .k = doubles(n * s->n_head * width), .v = doubles(n * s->n_head * width)};
    double *in = doubles(s->n_embd), *low = doubles(s->kv_rank + s->rope_dim), *both = doubles(s->n_head * each);
    for (int r = 0; r < n; r++) {
        norm(m, l, "attn_norm", x + r * s->n_embd, in);
        expert_linear(m, l, "attn_kv_a_mqa", in, low);
        norm(m, l, "attn_kv_a_norm", low, low);
        for (int i = 0; i < s->kv_rank && s->kv_growth != 0.0f; i++)
            low[i] *= (double)s->kv_growth;
        if (s->wide != 1)
            expert_rotate(s, s->rope_dim, EXPERT_ROPE_BASE, low + s->kv_rank, r);
        expert_linear(m, l, "attn_kv_b", low, both);
        for (int h = 0; h < s->n_head; h++) {
            double *k = e.k + (r * s->n_head + h) * width, *v = e.v + (r * s->n_head + h) * width;
            memcpy(k, both + h * each, (size_t)s->nope * sizeof *k);
            memcpy(k + s->nope, low + s->kv_rank, (size_t)s->rope_dim * sizeof *k);
            memcpy(v, both + h * each + s->nope, (size_t)s->v_dim * sizeof *v);
        }
    }
    pp_free(in);
    pp_free(low);
    pp_free(both);
    return e;
}

/* The indexer's last choice: [n, n], whether row r attends to position p; where it picks blocks, one such array for
 * each KV head. A global, so only one model can be computed at a time. */
static bool *picks;

/* The LayerNorm of the indexer's keys. Its epsilon is 1e-6, except with index_rope_last. */
static void index_norm(const struct expert_model *m, int l, double *x)
{
    const struct array *w = expert_find(m, l, "indexer.k_norm.weight"), *b = expert_find(m, l, "indexer.k_norm.bias");
    double mean = 0, square = 0;
    for (int i = 0; i < INDEX_DIM; i++)
        mean += x[i] / INDEX_DIM;
    for (int i = 0; i < INDEX_DIM; i++)
        square += (x[i] - mean) * (x[i] - mean) / INDEX_DIM;
    for (int i = 0; i < INDEX_DIM; i++)
        x[i] = (x[i] - mean) / sqrt(square + (m->s.index_rope_last ? EXPERT_EPSILON : 1e-6)) * (double)w->values[i] +
               (double)b->values[i];
}

static void rotate_index(const struct expert_shape *s, double *head, int position)
{
    struct expert_shape own = *s;
    own.neighbours = !s->index_neox;
    expert_rotate(&own, s->rope_dim, EXPERT_ROPE_BASE, head + (s->index_rope_last ? INDEX_DIM - s->rope_dim : 0),
                  position);
}

/* Pools the keys of n positions into one: each component is a mean weighted by the softmax, over the positions, of
 * that component's logits in `numbers`. */
static void pool_keys(const double *keys, const double *numbers, int first, int n, double *out)
{
    for (int i = 0; i < INDEX_DIM; i++) {
        double sum = 0, mean = 0;
        for (int p = first; p < first + n; p++) {
            sum += exp(numbers[p * INDEX_DIM + i]);
            mean += exp(numbers[p * INDEX_DIM + i]) * keys[p * INDEX_DIM + i];
        }
        out[i] = mean / sum;
    }
}

/* DeepSeek V3.2's indexer: each row attends to the index_top_k positions up to its own with the largest scores, the sum
 * over heads of w_h relu(q_h . k) / sqrt(heads * size). w is computed from the input, q from the low-rank vector of the
 * queries. GLM 5 Next's picks blocks of `pool` positions instead, each of which has one pooled key. */
static void pick(const struct expert_model *m, int l, const double *x, int n)
{
    const struct expert_shape *s = &m->s;
    double *k = doubles(n * INDEX_DIM), *in = doubles(s->n_embd), *low = doubles(s->q_rank), *score = doubles(n);
    double q[INDEX_HEADS * INDEX_DIM], w[INDEX_HEADS], key[INDEX_DIM], *shares = doubles(n * INDEX_DIM);
    const struct array *places = expert_find(m, l, "indexer_compressor_ape.weight");
    for (int r = 0; r < n; r++) {
        norm(m, l, "attn_norm", x + r * s->n_embd, in);
        expert_linear(m, l, "attn_q_a", in, low);
        norm(m, l, "attn_q_a_norm", low, low);
        expert_linear(m, l, "indexer.attn_q_b", low, q);
        expert_linear(m, l, "indexer.proj", in, w);
        expert_linear(m, l, "indexer.attn_k", in, k + r * INDEX_DIM);
        index_norm(m, l, k + r * INDEX_DIM);
        rotate_index(s, k + r * INDEX_DIM, r);
        for (int h = 0; h < INDEX_HEADS; h++)
            rotate_index(s, q + h * INDEX_DIM, r);
        if (s->pool) {
            expert_linear(m, l, "indexer_compressor_gate", in, shares + r * INDEX_DIM);
            for (int i = 0; i < INDEX_DIM; i++)
                shares[r * INDEX_DIM + i] += (double)places->values[r % s->pool * INDEX_DIM + i];
        }
        const int size = s->pool ? s->pool : 1, n_keys = (r + 1) / size;
        for (int b = 0; b < n_keys; b++) {
            pool_keys(k, shares, b * size, size, key);
            score[b] = 0;
            for (int h = 0; h < INDEX_HEADS; h++) {
                double dot = 0;
                for (int i = 0; i < INDEX_DIM; i++)
                    dot += q[h * INDEX_DIM + i] * key[i];
                score[b] += w[h] * fmax(0, dot) / sqrt(INDEX_HEADS * INDEX_DIM);
            }
        }
        for (int p = 0; p <= r; p++) /* positions after the last whole block are always seen */
            picks[r * n + p] = p / size >= n_keys || rank(score, n_keys, p / size) < s->index_top_k / size;
    }
    double *all[] = {k, in, low, score, shares};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* MiniMax M3's indexer for row r of n, whose normalised input is `in`. For each index head h, a block's score is the
 * largest q_h . k of its positions up to r; the row's own block and the index_n_local - 1 before it score infinity. The
 * index_top_k blocks with the largest scores are seen. */
static void pick_blocks(const struct expert_model *m, int l, const double *in, int r, int n, double *keys)
{
    const struct expert_shape *s = &m->s;
    const int size = s->index_block, own = r / size;
    double *q = doubles(s->n_head_kv * INDEX_DIM), *score = doubles(own + 1);
    expert_linear(m, l, "indexer.q_proj", in, q);
    expert_linear(m, l, "indexer.k_proj", in, keys + r * INDEX_DIM);
    norm(m, l, "indexer.k_norm", keys + r * INDEX_DIM, keys + r * INDEX_DIM);
    expert_rotate(s, s->rope_dim, EXPERT_ROPE_BASE, keys + r * INDEX_DIM, r);
    for (int h = 0; h < s->n_head_kv; h++) {
        norm(m, l, "indexer.q_norm", q + h * INDEX_DIM, q + h * INDEX_DIM);
        expert_rotate(s, s->rope_dim, EXPERT_ROPE_BASE, q + h * INDEX_DIM, r);
        for (int b = 0; b <= own; b++) {
            score[b] = own - b < s->index_n_local ? INFINITY : -INFINITY;
            for (int p = b * size; p < (b + 1) * size && p <= r; p++) {
                double dot = 0;
                for (int i = 0; i < INDEX_DIM; i++)
                    dot += q[h * INDEX_DIM + i] * keys[p * INDEX_DIM + i];
                score[b] = fmax(score[b], dot);
            }
        }
        for (int p = 0; p <= r; p++)
            picks[(h * n + r) * n + p] = rank(score, own + 1, p / size) < s->index_top_k;
    }
    pp_free(q);
    pp_free(score);
}

/* Attention of one query to those positions up to r that `sees` marks. */
static void attend_blocks(const double *q, const double *k, const double *v, const bool *sees, int r, int dim, int n_kv,
                          double scale, double *out)
{
    double *some_k = doubles((r + 1) * dim), *some_v = doubles((r + 1) * dim);
    int taken = 0;
    for (int p = 0; p <= r; p++)
        if (sees[p]) {
            memcpy(some_k + taken * dim, k + p * n_kv, (size_t)dim * sizeof *k);
            memcpy(some_v + taken++ * dim, v + p * n_kv, (size_t)dim * sizeof *v);
        }
    attend_query(q, some_k, some_v, 0, taken - 1, dim, dim, scale, 0, out);
    pp_free(some_k);
    pp_free(some_v);
}

/* Copies the keys and values that the indexer picked for a row of n, without gaps; returns how many. */
static int take_picked(const struct expert_shape *s, const struct expanded *e, int row, int n, struct expanded *to)
{
    const int each = s->n_head * e->width;
    int taken = 0;
    for (int p = 0; p <= row; p++)
        if (!s->index_top_k || picks[row * n + p]) {
            memcpy(to->k + taken * each, e->k + p * each, (size_t)each * sizeof *e->k);
            memcpy(to->v + taken++ * each, e->v + p * each, (size_t)each * sizeof *e->v);
        }
    return taken;
}

/* The output of all heads for one row, which sees n positions. */
static void attend_expanded(const struct expert_model *m, int l, const struct expanded *e, const double *in, int row,
                            int n, double *att)
{
    const struct expert_shape *s = &m->s;
    const int head = s->nope + s->rope_dim;
    const double more = s->yarn_factor != 0.0f ? 1 + (double)s->log_multiplier * log((double)s->yarn_factor) : 1;
    const double growth = s->q_growth != 0.0f ? (double)s->q_growth : 1;
    const struct array *sinks = expert_find(m, l, "attn_sinks.weight");
    double *low = doubles(s->q_rank + 1), *all = doubles(s->n_head * head), *q = doubles(e->width);
    double *out = doubles(e->width);
    if (s->q_rank) {
        expert_linear(m, l, "attn_q_a", in, low);
        norm(m, l, "attn_q_a_norm", low, low);
        expert_linear(m, l, "attn_q_b", low, all);
    } else {
        expert_linear(m, l, "attn_q", in, all);
    }
    for (int h = 0; h < s->n_head; h++) {
        memcpy(q, all + h * head, (size_t)head * sizeof *q);
        if (s->wide != 1)
            expert_rotate(s, s->rope_dim, EXPERT_ROPE_BASE, q + s->nope, row);
        const double scale = more * more / sqrt(head) * growth *
                             (s->length ? 1 + (double)s->temperature * log(1 + row / s->length) : 1);
        const double part = share_beside(sinks, h, q, e->k + h * e->width, 0, n - 1, e->width, s->n_head * e->width,
                                         scale);
        attend_query(q, e->k + h * e->width, e->v + h * e->width, 0, n - 1, e->width, s->n_head * e->width, scale, 0,
                     out);
        for (int i = 0; i < s->v_dim; i++)
            att[h * s->v_dim + i] = out[i] * part;
    }
    pp_free(low);
    pp_free(all);
    pp_free(q);
    pp_free(out);
}

static void feed_forward_by(const struct expert_model *m, int l, const double *chooser, const double *row, double *in,
                            double *delta)
{
    if (m->s.norms_after && !expert_recurs(&m->s, l))
        memcpy(in, row, (size_t)m->s.n_embd * sizeof *in);
    else
        norm(m, l, m->s.ffn_norm, row, in);
    memset(delta, 0, (size_t)m->s.n_embd * sizeof *delta);
    if (m->s.beside_norm) {
        add_feed_forward(m, l, "", 0, 1, in, delta);
        norm(m, l, m->s.beside_norm, chooser, in);
        feed_forward(m, l, in, in, delta);
        return;
    }
    feed_forward(m, l, chooser ? chooser : in, in, delta);
}

static void feed_forward_of(const struct expert_model *m, int l, const double *row, double *in, double *delta)
{
    feed_forward_by(m, l, NULL, row, in, delta);
}

/* LongCat's shortcut: the output of the experts of a pair's first layer, which is added after the second: [n, n_embd].
 * A global, so only one model can be computed at a time. */
static double *kept;

static void half_feed_forward(const struct expert_model *m, int l, int r, double *row, double *in)
{
    const int n = m->s.n_embd;
    double *own = kept + r * n, *delta = doubles(n);
    norm(m, l, m->s.ffn_norm, row, in);
    if (expert_layer(&m->s, l)) {
        memset(own, 0, (size_t)n * sizeof *own);
        feed_forward(m, l, in, in, own);
    }
    add_feed_forward(m, l, "", 0, 1, in, delta);
    for (int i = 0; i < n; i++)
        row[i] += delta[i] + (expert_layer(&m->s, l) ? 0 : own[i]);
    pp_free(delta);
}

/* Attention residuals: the inputs of every attn_res_block-th layer: [8, n, n_embd]. A global, so only one model can be
 * computed at a time. */
static double *bank;

/* The input of a part of layer l for row r: a sum of the kept vectors and the stream, weighted by a softmax of their
 * scores. behind: the part is the feed-forward part, which also sees what layer l itself kept. */
static void recall(const struct expert_model *m, int l, bool behind, const double *row, int r, int n, double *out)
{
    const int width = m->s.n_embd, step = m->s.attn_res_block;
    const int there = !step ? 0 : behind ? l / step + 1 : (l + step - 1) / step;
    const struct array *w = l == m->s.n_layer ? expert_find(m, -1, "output_res_score.weight")
                                              : expert_find(m, l, behind ? "ffn_res_score.weight"
                                                                         : "attn_res_score.weight");
    double score[9], sum = 0;
    for (int b = 0; b <= there && step; b++) {
        const double *v = b < there ? bank + (b * n + r) * width : row;
        double square = 0, product = 0;
        for (int i = 0; i < width; i++) {
            square += v[i] * v[i] / width;
            product += v[i] * (double)w->values[i];
        }
        sum += score[b] = exp(product / sqrt(square + EXPERT_EPSILON));
    }
    for (int i = 0; i < width; i++) {
        double all = row[i];
        for (int b = 0; b <= there && step; b++)
            all = (b ? all : 0) + score[b] / sum * (b < there ? bank[(b * n + r) * width + i] : row[i]);
        out[i] = all;
    }
}

/* The input of a layer's first part for all rows: [n, n_embd]. A layer that keeps its input then clears the stream. */
static double *recall_all(const struct expert_model *m, int l, double *x, int n)
{
    const int width = m->s.n_embd, step = m->s.attn_res_block;
    double *in = doubles(n * width);
    for (int r = 0; r < n; r++)
        recall(m, l, false, x + r * width, r, n, in + r * width);
    if (step && l % step == 0) {
        memcpy(bank + l / step * n * width, x, (size_t)(n * width) * sizeof *x);
        memset(x, 0, (size_t)(n * width) * sizeof *x);
    }
    return in;
}

/* --- hyper-connections (arXiv 2409.19606) ------------------------------------------------------------------------- */

enum { MOST_STREAMS = 8 };

/* The coefficients by which a part reads one row's streams, writes its output to them, and mixes them. */
struct connection {
    double read[MOST_STREAMS], write[MOST_STREAMS];
    double mix[MOST_STREAMS][MOST_STREAMS]; /* [from][to] */
};

/* Sinkhorn's iteration: turns logits into a matrix whose rows and columns sum to about 1 (arXiv 2512.24880). */
static void balance(int n, double least, int rounds, double mix[MOST_STREAMS][MOST_STREAMS])
{
    for (int turn = -1; turn < 2 * rounds; turn++) /* the softmax of rows, then columns and rows alternately */
        for (int i = 0; i < n && turn != 0; i++) {
            double sum = turn < 0 ? 0 : least;
            for (int j = 0; j < n; j++)
                sum += turn < 0 ? exp(mix[i][j]) : turn % 2 ? mix[j][i] : mix[i][j];
            for (int j = 0; j < n; j++) {
                double *one = turn >= 0 && turn % 2 ? &mix[j][i] : &mix[i][j];
                *one = turn < 0 ? exp(*one) / sum + least : *one / sum;
            }
        }
}

/* The connection of a part of layer l; l -1: of the output after the last layer, which only reads. x: [n_stream,
 * n_embd]; sum: the part's input [n_embd]. */
static struct connection connect(const struct expert_model *m, int l, const char *part, const double *x, double *sum)
{
    const int n = m->s.n_stream, width = n * m->s.n_embd;
    const double least = (double)m->s.stream_least, most = (double)m->s.stream_most;
    const int n_numbers = l < 0 ? n : m->s.stream_rounds ? 2 * n + n * n : 2 * n;
    double product[MOST_STREAMS * (2 + MOST_STREAMS)] = {0}, square = 0;
    char name[40];
    struct connection c = {.read = {0}};
    snprintf(name, sizeof name, "%.*s", (int)strlen(part) - 3, part);
    if (m->s.stream_rank) {
        expert_gate_streams(m, l, name, x, sum, l < 0 ? NULL : c.write);
        return c;
    }
    expert_linear(m, l, part, x, product);
    snprintf(name, sizeof name, "%.*s_base.weight", (int)strlen(part) - 3, part);
    const struct array *base = expert_find(m, l, name);
    snprintf(name, sizeof name, "%.*s_scale.weight", (int)strlen(part) - 3, part);
    const struct array *scale = expert_find(m, l, name);
    for (int i = 0; i < width; i++)
        square += x[i] * x[i] / width;
    for (int i = 0; i < n_numbers; i++) {
        const int kind = i < 2 * n ? i / n : 2;
        const double logit = product[i] / sqrt(square + EXPERT_EPSILON) * (double)scale->values[kind] +
                             (double)base->values[i];
        if (kind == 0)
            c.read[i] = sigmoid(logit) + least;
        else if (kind == 1)
            c.write[i - n] = most * sigmoid(logit) + (m->s.stream_rounds ? 0 : least);
        else
            c.mix[(i - 2 * n) / n][i % n] = logit;
    }
    balance(n, least, m->s.stream_rounds, c.mix);
    memset(sum, 0, (size_t)m->s.n_embd * sizeof *sum);
    for (int i = 0; i < width; i++)
        sum[i % m->s.n_embd] += c.read[i / m->s.n_embd] * x[i];
    return c;
}

/* The width of a row of x, which holds all its streams. */
static int row_width(const struct expert_shape *s)
{
    return s->n_embd * (s->n_stream ? s->n_stream : 1);
}

/* Adds a part's output `delta` to the streams of a row. more: its factor if there are no hyper-connections. */
static void give(const struct expert_shape *s, const struct connection *c, double more, const double *delta,
                 double *row)
{
    const int n = s->n_embd, width = row_width(s);
    double *mixed = doubles(width);
    for (int i = 0; i < width && s->stream_rounds; i++)
        for (int k = 0; k < s->n_stream; k++)
            mixed[i] += c->mix[k][i / n] * row[k * n + i % n];
    for (int i = 0; i < width; i++)
        row[i] = (s->stream_rounds ? mixed[i] : row[i]) + delta[i % n] * (s->n_stream ? c->write[i / n] : more);
    pp_free(mixed);
}

/* The input of a layer's first part for all rows, [n, n_embd], and their connections: c [n]. */
static double *read_all(const struct expert_model *m, int l, double *x, int n, struct connection *c)
{
    if (!m->s.n_stream)
        return recall_all(m, l, x, n);
    double *first = doubles(n * m->s.n_embd);
    for (int r = 0; r < n; r++)
        c[r] = connect(m, l, "hc_attn_fn", x + r * row_width(&m->s), first + r * m->s.n_embd);
    return first;
}

static void latent_layer(const struct expert_model *m, int l, double *x, int n)
{
    const struct expert_shape *s = &m->s;
    struct connection *how = pp_calloc((size_t)n, sizeof *how), next;
    assert_non_null(how);
    double *first = read_all(m, l, x, n, how), *second = doubles(s->n_embd);
    const struct expanded e = expand(m, l, first, n);
    const int each = s->n_head * e.width;
    struct expanded seen = {.width = e.width, .k = doubles(n * each), .v = doubles(n * each)};
    const double more = s->residual_scale != 0.0f ? (double)s->residual_scale : 1;
    double *in = doubles(s->n_embd), *att = doubles(s->n_head * s->v_dim), *delta = doubles(s->n_embd);
    double *gate = doubles(s->n_head * s->v_dim);
    if (expert_picks(s, l))
        pick(m, l, first, n);
    for (int r = 0; r < n; r++) {
        double *row = x + r * row_width(s);
        norm(m, l, "attn_norm", first + r * s->n_embd, in);
        attend_expanded(m, l, &seen, in, r, take_picked(s, &e, r, n, &seen), att);
        if (s->gated)
            expert_linear(m, l, "attn_gate", in, gate);
        for (int i = 0; s->gated && i < s->n_head * s->v_dim; i++)
            att[i] *= sigmoid(gate[s->per_head_gates ? i / s->v_dim : i]);
        expert_linear(m, l, "attn_output", att, delta);
        if (s->norm_rank)
            norm(m, l, "post_attention_norm", delta, delta);
        give(s, &how[r], more, delta, row);
        if (s->shortcut) {
            half_feed_forward(m, l, r, row, in);
            continue;
        }
        if (s->n_stream)
            next = connect(m, l, "hc_ffn_fn", row, second);
        else
            recall(m, l, true, row, r, n, second);
        feed_forward_of(m, l, second, in, delta);
        if (s->norm_rank || (s->experts_post_norm && expert_layer(s, l)))
            norm(m, l, "post_ffw_norm", delta, delta);
        give(s, &next, more, delta, row);
    }
    pp_free(how);
    double *all[] = {e.k, e.v, seen.k, seen.v, in, att, delta, gate, first, second};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* LFM2: [B, C, x] = W_in h, and W_out (C * conv(B * x)). */
static void convolved_layer(const struct expert_model *m, int l, double *x, int n)
{
    const int width = m->s.n_embd;
    const struct array *taps = expert_find(m, l, "shortconv.conv.weight");
    double *in = doubles(width), *three = doubles(3 * width), *product = doubles(n * width), *delta = doubles(width);
    for (int r = 0; r < n; r++) {
        double *row = x + r * width;
        norm(m, l, "attn_norm", row, in);
        expert_linear(m, l, "shortconv.in_proj", in, three);
        for (int i = 0; i < width; i++)
            product[r * width + i] = three[i] * three[2 * width + i];
        convolve_row(taps->values, m->s.taps, NULL, product, r, width, in);
        for (int i = 0; i < width; i++)
            in[i] *= three[width + i];
        expert_linear(m, l, "shortconv.out_proj", in, delta);
        for (int i = 0; i < width; i++)
            row[i] += delta[i];
        feed_forward_of(m, l, row, in, delta);
        for (int i = 0; i < width; i++)
            row[i] += delta[i];
    }
    double *all[] = {in, three, product, delta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

static void layer(const struct expert_model *m, int l, double *x, int n)
{
    const struct expert_shape *s = &m->s;
    const int dim = s->head_dim, n_head = expert_heads(s, l), n_q = n_head * dim, heads_kv = expert_key_heads(s, l);
    const int n_kv = heads_kv * dim, group = n_head / heads_kv, v_dim = expert_value_dim(s);
    const struct array *sinks = expert_find(m, l, "attn_sinks.weight");
    const double more = s->residual_scale != 0.0f ? (double)s->residual_scale : 1;
    const bool gated = expert_gates_queries(s);
    double *k = doubles(n * n_kv), *v = doubles(n * n_kv), *q = doubles(n_q), *att = doubles(n_q);
    double *in = doubles(s->n_embd), *delta = doubles(s->n_embd), *early = doubles(s->n_embd);
    double *gate = doubles(n_q), *one = doubles(dim), *index_keys = doubles(n * INDEX_DIM);
    const int values = s->n_state * s->value_dim;
    struct connection *how = pp_calloc((size_t)n, sizeof *how), next;
    assert_non_null(how);
    double *came = read_all(m, l, x, n, how), *second = doubles(s->n_embd);
    double *beside = doubles(s->beside ? n * values : 1), *normalised = doubles(n * s->n_embd);
    for (int r = 0; s->beside && r < n; r++)
        norm(m, l, "attn_norm", x + r * s->n_embd, normalised + r * s->n_embd);
    if (s->beside)
        expert_mamba(m, l, normalised, n, beside);
    for (int r = 0; r < n; r++) {
        double *row = x + r * row_width(s);
        const int first = first_seen(s, l, r);
        memcpy(early, came + r * s->n_embd, (size_t)s->n_embd * sizeof *early);
        if (s->norms_after)
            memcpy(in, early, (size_t)s->n_embd * sizeof *in);
        else
            norm(m, l, "attn_norm", early, in);
        qkv(m, l, in, q, k + r * n_kv, v + r * n_kv);
        if (gated)
            gated_queries(m, l, in, q, gate);
        heads(m, l, "attn_q_norm", n_head, r, q);
        heads(m, l, "attn_k_norm", heads_kv, r, k + r * n_kv);
        if (s->index_block && expert_layer(s, l))
            pick_blocks(m, l, in, r, n, index_keys);
        if (s->pool)
            expert_pick_means(m, l, in, r, index_keys, picks + r * n);
        for (int h = 0; h < n_head; h++) {
            const double *own = k + h / group * dim, scale = scale_at(s, l, r);
            const double part = share_beside(sinks, h, q + h * dim, own, first, r, dim, n_kv, scale) *
                                (s->value_scale != 0.0f ? (double)s->value_scale : 1);
            const double growth = s->log_length && r > s->log_length ? log(r) / log(s->log_length) : 1;
            if (s->pool || (s->index_block && expert_layer(s, l)))
                attend_blocks(q + h * dim, own, v + h / group * dim,
                              picks + ((s->pool ? 0 : h / group * n) + r) * n, r, dim, n_kv, scale, one);
            else
                attend_capped(q + h * dim, own, v + h / group * dim, first, r, dim, n_kv, scale, 0, (double)s->cap,
                              growth, one);
            for (int i = 0; i < v_dim; i++)
                att[h * v_dim + i] = one[i] * part;
        }
        if (s->gated)
            expert_linear(m, l, "attn_gate", in, gate);
        for (int i = 0; (s->gated || gated) && i < n_q; i++) {
            const double g = gate[s->per_head_gates ? i / dim : i];
            att[i] *= s->softplus_gates ? log1p(exp(g)) : sigmoid(g);
        }
        expert_linear(m, l, "attn_output", att, delta);
        if (s->post_norms)
            norm(m, l, s->attn_post_norm, delta, delta);
        give(s, &how[r], more, delta, row);
        if (s->kinds)
            continue;
        if (s->beside)
            expert_linear(m, l, "ssm_out", beside + r * values, delta);
        for (int i = 0; s->beside && i < s->n_embd; i++)
            row[i] += delta[i];
        if (s->n_stream)
            next = connect(m, l, "hc_ffn_fn", row, second);
        feed_forward_by(m, l, s->early || s->beside_norm ? early : NULL,
                        s->parallel ? early : s->n_stream ? second : row, in, delta);
        if (s->post_norms)
            norm(m, l, s->ffn_post_norm, delta, delta);
        give(s, &next, more, delta, row);
    }
    pp_free(how);
    double *all[] = {came, second, k, v, q, att, in, delta, beside, normalised, gate, one, early, index_keys};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* Lightning attention of the normalised rows `in` [n, n_embd]: S = a S + k v', out = S' q / sqrt(dim), where a is a
 * constant of the head and the layer. Queries and keys are normalised and rotated in pairs (i, i + half). The output
 * is normalised in groups and gated; the output projection is not applied here. */
static void lightning(const struct expert_model *m, int l, const double *in, int n, double *out)
{
    struct expert_shape halves = m->s;
    const int dim = m->s.key_dim, n_head = m->s.n_state, width = n_head * dim, group = width / m->s.norm_groups;
    const struct array *weight = expert_find(m, l, "attn_norm_2.weight");
    double *qkv = doubles(3 * width), *gate = doubles(width), *states = doubles(width * dim);
    halves.neighbours = false;
    halves.kv_rank = 0;
    for (int r = 0; r < n; r++) {
        double *row = out + r * width;
        for (int i = 0; i < 3 && m->s.steady; i++)
            expert_linear(m, l, (const char *[]){"attn_q", "attn_k", "attn_v"}[i], in + r * m->s.n_embd,
                          qkv + i * width);
        if (!m->s.steady)
            expert_linear(m, l, "attn_qkv", in + r * m->s.n_embd, qkv);
        expert_linear(m, l, "attn_gate", in + r * m->s.n_embd, gate);
        for (int i = 0; i < 3 * width; i++)
            qkv[i] *= m->s.states_silu ? sigmoid(qkv[i]) : 1;
        for (int h = 0; h < n_head; h++) {
            double *q = qkv + h * dim, *k = q + width, *v = k + width, *S = states + h * dim * dim;
            const double slope = pow(2, -8.0 * (h + 1) / n_head);
            const double depth = m->s.steady ? 1 : 1 - (double)l / (m->s.n_layer - 1) + 1e-5;
            const double a = exp(-slope * depth);
            norm(m, l, "attn_q_norm", q, q);
            norm(m, l, "attn_k_norm", k, k);
            if (!m->s.states_still) {
                expert_rotate(&halves, m->s.rope_dim, EXPERT_ROPE_BASE, q, r);
                expert_rotate(&halves, m->s.rope_dim, EXPERT_ROPE_BASE, k, r);
            }
            for (int c = 0; c < dim; c++) {
                row[h * dim + c] = 0;
                for (int i = 0; i < dim; i++)
                    row[h * dim + c] += (S[i * dim + c] = a * S[i * dim + c] + k[i] * v[c]) * q[i] / sqrt(dim);
            }
        }
        for (int g = 0; g < width; g += group) {
            double square = 0;
            for (int i = g; i < g + group; i++)
                square += row[i] * row[i] / group;
            for (int i = g; i < g + group; i++)
                row[i] = row[i] / sqrt(square + EXPERT_EPSILON) * (double)weight->values[i] * sigmoid(gate[i]);
        }
    }
    pp_free(qkv);
    pp_free(gate);
    pp_free(states);
}

static void state_layer(const struct expert_model *m, int l, double *x, int n)
{
    const struct expert_shape *s = &m->s;
    const int width = s->n_embd, values = s->n_state * s->value_dim;
    const double more = s->residual_scale != 0.0f ? (double)s->residual_scale : 1;
    double *in = doubles(n * width), *out = doubles(n * values), *delta = doubles(width);
    struct connection *how = pp_calloc((size_t)n, sizeof *how), next;
    assert_non_null(how);
    double *first = read_all(m, l, x, n, how), *second = doubles(width);
    for (int r = 0; r < n; r++)
        norm(m, l, "attn_norm", first + r * width, in + r * width);
    (s->rank        ? expert_scan
     : s->mamba     ? expert_mamba
     : s->kda       ? expert_kda
     : s->lightning ? lightning
                    : expert_states)(m, l, in, n, out);
    for (int r = 0; r < n; r++) {
        double *row = x + r * row_width(s);
        expert_linear(m, l, s->kda || s->lightning ? "attn_output" : "ssm_out", out + r * values, delta);
        if (s->norm_rank)
            norm(m, l, "post_attention_norm", delta, delta);
        give(s, &how[r], more, delta, row);
        if (s->kinds)
            continue;
        if (s->n_stream)
            next = connect(m, l, "hc_ffn_fn", row, second);
        else
            recall(m, l, true, row, r, n, second);
        feed_forward_of(m, l, second, in, delta);
        if (s->norm_rank)
            norm(m, l, "post_ffw_norm", delta, delta);
        give(s, &next, more, delta, row);
    }
    pp_free(how);
    pp_free(first);
    pp_free(second);
    pp_free(in);
    pp_free(out);
    pp_free(delta);
}

static void feed_layer(const struct expert_model *m, int l, double *x, int n)
{
    const int width = m->s.n_embd;
    double *in = doubles(width), *delta = doubles(width);
    for (int r = 0; r < n; r++) {
        feed_forward_of(m, l, x + r * width, in, delta);
        for (int i = 0; i < width; i++)
            x[r * width + i] += delta[i];
    }
    pp_free(in);
    pp_free(delta);
}

/* LongCat-Flash-Lite: embeddings of the n-grams that end at position r (n = 2, 3 ...), found in tables by a hash, are
 * added to the token's own. In an n-gram, an end token and all tokens before it count as 0, as do those before the
 * text. */
static void add_ngrams(const struct expert_model *m, const int32_t *ids, int r, double *x)
{
    const struct expert_shape *s = &m->s;
    const int n_tables = s->ngram_splits * (s->ngram_size - 1);
    double *wide = doubles(s->n_embd), low[64];
    assert_true(s->n_embd / n_tables <= 64);
    for (int i = 0; i < n_tables; i++) {
        char name[40];
        snprintf(name, sizeof name, "ngram_embd.%d.weight", i);
        const struct array *table = expert_find(m, -1, name);
        long row = ids[r], power = 1;
        bool ended = false;
        for (int back = 1; back < 2 + i / s->ngram_splits; back++) {
            ended = ended || back > r || ids[r - back] == s->ngram_end;
            power = power * s->n_vocab % table->rows;
            row += ended ? 0 : ids[r - back] * power;
        }
        for (int j = 0; j < table->cols; j++)
            low[j] = (double)table->values[row % table->rows * table->cols + j];
        snprintf(name, sizeof name, "ngram_proj.%d", i);
        expert_linear(m, -1, name, low, wide);
        for (int j = 0; j < s->n_embd; j++)
            x[j] += wide[j];
    }
    for (int j = 0; j < s->n_embd; j++)
        x[j] /= 1 + n_tables;
    pp_free(wide);
}

void expert_model_compute(const struct expert_model *m, const int32_t *ids, int n, double *logits)
{
    const int width = m->s.n_embd;
    const struct array *table = expert_find(m, -1, "token_embd.weight");
    const int all = row_width(&m->s);
    double *x = doubles(n * all), *in = doubles(width);
    picks = pp_calloc((size_t)(n * n * (m->s.index_block ? m->s.n_head_kv : 1)), sizeof *picks);
    kept = doubles(n * width);
    bank = doubles(8 * n * width);
    assert_non_null(picks);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < all; i++)
            x[r * all + i] = (double)table->values[ids[r] * width + i % width] *
                               (m->s.embd_scale != 0.0f ? (double)m->s.embd_scale : 1);
    for (int r = 0; m->s.ngram_size && r < n; r++)
        add_ngrams(m, ids, r, x + r * all);
    for (int l = 0; l < m->s.n_layer; l++) {
        if (m->s.hash.size && l == m->s.hash.layer)
            expert_hash(m, ids, n, x);
        (m->s.kv_rank && !expert_recurs(&m->s, l) ? latent_layer
         : expert_convolves(&m->s, l) ? convolved_layer
         : expert_recurs(&m->s, l)    ? state_layer
         : m->s.kinds && m->s.kinds[l] != '*' ? feed_layer
                                      : layer)(m, l, x, n);
    }
    for (int r = 0; r < n; r++) {
        memset(in, 0, (size_t)width * sizeof *in);
        for (int i = 0; i < all && m->s.stream_rounds; i++)
            in[i % width] += x[r * all + i] / m->s.n_stream;
        if (m->s.stream_rounds)
            ; /* the mean of the streams */
        else if (m->s.n_stream)
            connect(m, -1, "output_hc_fn", x + r * all, in);
        else
            recall(m, m->s.n_layer, false, x + r * width, r, n, in);
        norm(m, -1, m->s.output_norm, in, in);
        expert_linear(m, -1, "output", in, logits + (int64_t)r * m->s.n_vocab);
        for (int t = 0; t < m->s.n_vocab; t++) {
            double *logit = &logits[(int64_t)r * m->s.n_vocab + t];
            *logit *= m->s.logit_scale != 0.0f ? (double)m->s.logit_scale : 1;
            *logit = capped((double)m->s.final_cap, *logit);
        }
    }
    pp_free(picks);
    pp_free(kept);
    pp_free(bank);
    pp_free(x);
    pp_free(in);
}
