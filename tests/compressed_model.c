/* compressed_model.c - see compressed_model.h. The formulas are written out from DeepSeek V4's published code and
 * transformers' model, a vector and a matrix at a time. */
#include "tests/compressed_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/gguf_file.h"
#include "tests/small_model.h"
#include "tests/support.h"

static const double NORM_EPS = 1e-5, BASE = 10000, BLOCK_BASE = 160000;

struct compressed_shape compressed_shape(void)
{
    return (struct compressed_shape){.n_vocab = 80, .n_embd = 64, .n_layer = 5, .n_head = 4, .head_dim = 32,
                                     .rope_dim = 8, .q_rank = 24, .o_groups = 2, .o_rank = 20, .window = 12,
                                     .index_heads = 3, .index_dim = 16, .top_k = 5, .n_stream = 4, .rounds = 6,
                                     .n_expert = 8, .n_used = 3, .n_ff = 32, .n_table = 2,
                                     .compress = {0, 4, 8, 4, 32}, .bound = 0.9f, .scale = 1.5f, .epsilon = 1e-3f,
                                     .yarn_factor = 8, .yarn_ctx = 32, .n_ctx = 512};
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

static void add(struct compressed_model *m, int l, const char *kind, int64_t matrices, int64_t rows, int64_t cols,
                float middle, float spread)
{
    assert_true(m->n < COMPRESSED_TENSORS);
    array_make(&m->t[m->n++], l, kind, matrices, rows, cols, middle, spread, &m->random);
}

static void add_matrix(struct compressed_model *m, int l, const char *kind, int64_t rows, int64_t cols)
{
    add(m, l, kind, 0, rows, cols, 0, 2 * sqrtf(3.0f / (float)cols));
}

static void add_norm(struct compressed_model *m, int l, const char *kind, int64_t cols)
{
    add(m, l, kind, 0, 0, cols, 1, 0.5f);
}

static void add_connection(struct compressed_model *m, int l, const char *name, bool ends)
{
    const int n = m->s.n_stream, numbers = ends ? n : 2 * n + n * n;
    char kind[40];
    snprintf(kind, sizeof kind, "%s_fn.weight", name);
    add(m, l, kind, 0, numbers, n * m->s.n_embd, 0, 2 * sqrtf(3.0f / (float)(n * m->s.n_embd)));
    snprintf(kind, sizeof kind, "%s_base.weight", name);
    add(m, l, kind, 0, 0, numbers, 0, 1);
    snprintf(kind, sizeof kind, "%s_scale.weight", name);
    add(m, l, kind, 0, 0, ends ? 1 : 3, 0.5f, 0.3f);
}

static void add_compressor(struct compressed_model *m, int l, const char *name, int64_t dim)
{
    const int64_t stride = m->s.compress[l], width = stride == 4 ? 2 * dim : dim;
    char kind[40];
    snprintf(kind, sizeof kind, "%s_kv.weight", name);
    add_matrix(m, l, kind, width, m->s.n_embd);
    snprintf(kind, sizeof kind, "%s_gate.weight", name);
    add_matrix(m, l, kind, width, m->s.n_embd);
    snprintf(kind, sizeof kind, "%s_ape.weight", name);
    add(m, l, kind, 0, stride, width, 0, 1);
    snprintf(kind, sizeof kind, "%s_norm.weight", name);
    add_norm(m, l, kind, dim);
}

static const char table_name[] = "ffn_gate_tid2eid.weight";

static void add_table(struct compressed_model *m, int l)
{
    const struct compressed_shape *s = &m->s;
    int32_t *table = m->tables[l] = pp_calloc((size_t)(s->n_vocab * s->n_used), sizeof *table);
    assert_non_null(table);
    add(m, l, table_name, 0, s->n_vocab, s->n_used, 0, 0);
    for (int t = 0; t < s->n_vocab; t++)
        for (int i = 0; i < s->n_used; i++) /* n_used different ones */
            table[t * s->n_used + i] = (t * 5 + i * (1 + 2 * (t % 2))) % s->n_expert;
    if (s->bad_table)
        table[7] = s->n_expert;
    if (s->double_table)
        table[s->n_used + 1] = table[s->n_used];
}

static void add_layer(struct compressed_model *m, int l)
{
    const struct compressed_shape *s = &m->s;
    add_connection(m, l, "hc_attn", false);
    add_connection(m, l, "hc_ffn", false);
    add_norm(m, l, "attn_norm.weight", s->n_embd);
    add_norm(m, l, "ffn_norm.weight", s->n_embd);
    add(m, l, "attn_sinks.weight", 0, 0, s->n_head, 0, 2);
    add_matrix(m, l, "attn_q_a.weight", s->q_rank, s->n_embd);
    add_norm(m, l, "attn_q_a_norm.weight", s->q_rank);
    add_matrix(m, l, "attn_q_b.weight", s->n_head * s->head_dim, s->q_rank);
    add_matrix(m, l, "attn_kv.weight", s->head_dim, s->n_embd);
    add_norm(m, l, "attn_kv_a_norm.weight", s->head_dim);
    add_matrix(m, l, "attn_output_a.weight", s->o_groups * s->o_rank, s->n_head * s->head_dim / s->o_groups);
    add_matrix(m, l, "attn_output_b.weight", s->n_embd, s->o_groups * s->o_rank);
    if (s->compress[l])
        add_compressor(m, l, "attn_compressor", s->head_dim);
    if (s->compress[l] == 4) {
        add_compressor(m, l, "indexer_compressor", s->index_dim);
        add_matrix(m, l, "indexer.attn_q_b.weight", s->index_heads * s->index_dim, s->q_rank);
        add_matrix(m, l, "indexer.proj.weight", s->index_heads, s->n_embd);
    }
    add_matrix(m, l, "ffn_gate_inp.weight", s->n_expert, s->n_embd);
    if (l < s->n_table)
        add_table(m, l);
    else
        add(m, l, "exp_probs_b.bias", 0, 0, s->n_expert, 0, 0.5f);
    const float spread = 2 * sqrtf(3.0f / (float)s->n_embd);
    add(m, l, "ffn_gate_exps.weight", s->n_expert, s->n_ff, s->n_embd, 0, spread);
    add(m, l, "ffn_up_exps.weight", s->n_expert, s->n_ff, s->n_embd, 0, spread);
    add(m, l, "ffn_down_exps.weight", s->n_expert, s->n_embd, s->n_ff, 0, spread);
    add_matrix(m, l, "ffn_gate_shexp.weight", s->n_ff, s->n_embd);
    add_matrix(m, l, "ffn_up_shexp.weight", s->n_ff, s->n_embd);
    add_matrix(m, l, "ffn_down_shexp.weight", s->n_embd, s->n_ff);
}

struct compressed_model *compressed_model_make(const struct compressed_shape *s)
{
    struct compressed_model *m = pp_calloc(1, sizeof *m);
    assert_non_null(m);
    m->s = *s;
    m->random = 5;
    add(m, -1, "token_embd.weight", 0, s->n_vocab, s->n_embd, 0, 1);
    for (int l = 0; l < s->n_layer; l++)
        add_layer(m, l);
    add_connection(m, -1, "output_hc", true);
    add_norm(m, -1, "output_norm.weight", s->n_embd);
    add_matrix(m, -1, "output.weight", s->n_vocab, s->n_embd);
    return m;
}

void compressed_model_free(struct compressed_model *m)
{
    for (int i = 0; i < m->n; i++) {
        pp_free(m->t[i].values);
    }
    for (int l = 0; l < COMPRESSED_LAYERS; l++)
        pp_free(m->tables[l]);
    pp_free(m);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static void write_metadata(struct pp_gguf_writer *w, const struct compressed_shape *s)
{
    const struct {
        const char *key;
        int v;
    } numbers[] = {{"block_count", s->n_layer}, {"context_length", s->n_ctx}, {"embedding_length", s->n_embd},
                   {"attention.head_count", s->n_head}, {"attention.head_count_kv", 1},
                   {"attention.key_length", s->head_dim}, {"attention.value_length", s->head_dim},
                   {"rope.dimension_count", s->rope_dim}, {"attention.q_lora_rank", s->q_rank},
                   {"attention.output_lora_rank", s->o_rank}, {"attention.output_group_count", s->o_groups},
                   {"attention.sliding_window", s->window}, {"attention.indexer.head_count", s->index_heads},
                   {"attention.indexer.key_length", s->index_dim}, {"attention.indexer.top_k", s->top_k},
                   {"expert_count", s->n_expert}, {"expert_used_count", s->n_used},
                   {"expert_feed_forward_length", s->n_ff}, {"expert_shared_count", 1}, {"expert_gating_func", 4},
                   {"hash_layer_count", s->n_table}, {"hyper_connection.count", s->n_stream},
                   {"hyper_connection.sinkhorn_iterations", s->rounds}, {"vocab_size", s->n_vocab},
                   {"rope.scaling.original_context_length", s->yarn_ctx}, {"nextn_predict_layers", s->says_nextn}};
    uint32_t ratios[COMPRESSED_LAYERS + 1] = {0};
    float bounds[COMPRESSED_LAYERS];
    char key[80];
    for (int l = 0; l < s->n_layer; l++) {
        ratios[l] = (uint32_t)s->compress[l];
        bounds[l] = s->bound;
    }
    pp_gguf_add_text(w, "general.architecture", "deepseek4");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "deepseek4.%s", numbers[i].key);
        pp_gguf_add_u32(w, key, (uint32_t)numbers[i].v);
    }
    pp_gguf_add_u32_array(w, "deepseek4.attention.compress_ratios", ratios, (size_t)s->n_layer + 1);
    pp_gguf_add_f32(w, "deepseek4.attention.compress_rope_freq_base", (float)BLOCK_BASE);
    pp_gguf_add_f32(w, "deepseek4.rope.freq_base", (float)BASE);
    pp_gguf_add_f32(w, "deepseek4.attention.layer_norm_rms_epsilon", (float)NORM_EPS);
    pp_gguf_add_f32(w, "deepseek4.hyper_connection.epsilon", s->epsilon);
    pp_gguf_add_f32(w, "deepseek4.expert_weights_scale", s->scale);
    pp_gguf_add_bool(w, "deepseek4.expert_weights_norm", true);
    if (s->bound != 0.0f)
        pp_gguf_add_f32_array(w, "deepseek4.swiglu_clamp_exp", bounds, (size_t)s->n_layer);
    if (s->yarn_factor != 0.0f) {
        pp_gguf_add_text(w, "deepseek4.rope.scaling.type", "yarn");
        pp_gguf_add_f32(w, "deepseek4.rope.scaling.factor", s->yarn_factor);
    }
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
}

const char *compressed_model_write(const struct compressed_model *m)
{
    const char *path = fresh_path("compressed.gguf");
    struct pp_tensor tensors[sizeof m->t / sizeof *m->t];
    struct pp_gguf_writer *w = gguf_file_begin(path);
    write_metadata(w, &m->s);
    for (int i = 0; i < m->n; i++)
        tensors[i] = array_tensor(&m->t[i]);
    for (int l = 0; l < m->s.n_table; l++) { /* integers of the same size */
        struct pp_tensor *t = &tensors[compressed_find(m, l, table_name) - m->t];
        t->type = PP_TYPE_I32;
        t->data = m->tables[l];
    }
    gguf_file_end(w, tensors, (size_t)m->n);
    return path;
}

const struct array *compressed_find(const struct compressed_model *m, int l, const char *kind)
{
    const int i = small_find(m->t[0].name, sizeof m->t[0], m->n, l, kind, "");
    return i < 0 ? NULL : &m->t[i];
}

/* --- formulas ----------------------------------------------------------------------------------------------------- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* y = W x for rows first .. first + n - 1, counted through all matrices of the stack */
static void product(const struct array *w, int64_t first, int64_t n, const double *x, double *y)
{
    for (int64_t o = 0; o < n; o++) {
        y[o] = 0;
        for (int64_t i = 0; i < w->cols; i++)
            y[o] += (double)w->values[(first + o) * w->cols + i] * x[i];
    }
}

static void linear(const struct compressed_model *m, int l, const char *kind, const double *x, double *y)
{
    const struct array *w = compressed_find(m, l, kind);
    assert_non_null(w);
    product(w, 0, w->rows, x, y);
}

/* RMSNorm; kind NULL: without weights. */
static void norm(const struct compressed_model *m, int l, const char *kind, int n, const double *x, double *y)
{
    const struct array *w = kind ? compressed_find(m, l, kind) : NULL;
    double square = 0;
    for (int i = 0; i < n; i++)
        square += x[i] * x[i] / n;
    for (int i = 0; i < n; i++)
        y[i] = x[i] / sqrt(square + NORM_EPS) * (w ? (double)w->values[i] : 1);
}

/* Layers with blocks have YaRN's frequencies (arXiv 2309.00071). */
static double frequency(const struct compressed_shape *s, bool blocks, int i)
{
    const double dim = s->rope_dim, two_pi = 2 * acos(-1), base = blocks ? BLOCK_BASE : BASE;
    const double whole = pow(base, -2.0 * i / dim);
    if (!blocks || s->yarn_factor == 0.0f)
        return whole;
    const double low = fmax(0, floor(dim * log(s->yarn_ctx / (32 * two_pi)) / (2 * log(base))));
    const double high = fmin(dim - 1, ceil(dim * log(s->yarn_ctx / two_pi) / (2 * log(base))));
    const double ramp = fmin(1, fmax(0, (i - low) / (high > low ? high - low : 0.001)));
    return whole * (1 - ramp) + whole / (double)s->yarn_factor * ramp;
}

/* RoPE of neighbouring pairs in the last rope_dim of n values; sign -1: the inverse rotation. */
static void rotate(const struct compressed_shape *s, bool blocks, int n, int position, double sign, double *x)
{
    for (int i = 0; i < s->rope_dim / 2; i++) {
        double *pair = x + n - s->rope_dim + 2 * i;
        const double angle = sign * position * frequency(s, blocks, i), a = pair[0], b = pair[1];
        pair[0] = a * cos(angle) - b * sin(angle);
        pair[1] = b * cos(angle) + a * sin(angle);
    }
}

/* Hyper-connection of a part of a layer: its input, mixed from the streams, the weight with which its output goes to
 * each stream, and the matrix that mixes them. */
static void connect(const struct compressed_model *m, int l, const char *name, const double *streams, double *read,
                    double *write, double *matrix)
{
    const struct compressed_shape *s = &m->s;
    const int n = s->n_stream, width = n * s->n_embd;
    const double eps = (double)s->epsilon;
    double *flat = doubles(width), x[80];
    char kind[40];
    snprintf(kind, sizeof kind, "%s_fn.weight", name);
    norm(m, l, NULL, width, streams, flat);
    linear(m, l, kind, flat, x);
    const int n_numbers = (int)compressed_find(m, l, kind)->rows;
    snprintf(kind, sizeof kind, "%s_scale.weight", name);
    const float *scale = compressed_find(m, l, kind)->values;
    snprintf(kind, sizeof kind, "%s_base.weight", name);
    for (int i = 0; i < n_numbers; i++)
        x[i] = x[i] * (double)scale[i < n ? 0 : i < 2 * n ? 1 : 2] +
               (double)compressed_find(m, l, kind)->values[i];
    memset(read, 0, (size_t)s->n_embd * sizeof *read);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < s->n_embd; d++)
            read[d] += (sigmoid(x[i]) + eps) * streams[i * s->n_embd + d];
    pp_free(flat);
    if (n_numbers == n)
        return;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        write[i] = 2 * sigmoid(x[n + i]);
        for (int j = 0; j < n; j++)
            sum += exp(x[2 * n + i * n + j]);
        for (int j = 0; j < n; j++)
            matrix[i * n + j] = exp(x[2 * n + i * n + j]) / sum + eps;
    }
    for (int turn = 1; turn < 2 * s->rounds; turn++) /* odd: columns */
        for (int i = 0; i < n; i++) {
            double sum = eps;
            for (int j = 0; j < n; j++)
                sum += matrix[turn % 2 ? j * n + i : i * n + j];
            for (int j = 0; j < n; j++)
                matrix[turn % 2 ? j * n + i : i * n + j] /= sum;
        }
}

static void give(const struct compressed_shape *s, const double *delta, const double *write, const double *matrix,
                 double *streams)
{
    const int n = s->n_stream;
    double old[16];
    for (int d = 0; d < s->n_embd; d++) {
        for (int i = 0; i < n; i++)
            old[i] = streams[i * s->n_embd + d];
        for (int j = 0; j < n; j++) {
            double sum = write[j] * delta[d];
            for (int i = 0; i < n; i++)
                sum += matrix[i * n + j] * old[i];
            streams[j * s->n_embd + d] = sum;
        }
    }
}

/* The compressed key of the block that ends at position r. kv, gate: [r + 1, width], each position's contribution. */
static void compress(const struct compressed_model *m, int l, const char *name, int dim, int r, const double *kv,
                     const double *gate, double *key)
{
    const int stride = m->s.compress[l], width = stride == 4 ? 2 * dim : dim, first = r + 1 - stride;
    char kind[40];
    snprintf(kind, sizeof kind, "%s_ape.weight", name);
    const float *ape = compressed_find(m, l, kind)->values;
    for (int d = 0; d < dim; d++) {
        double sum = 0;
        key[d] = 0;
        for (int p = stride == 4 && first > 0 ? first - stride : first; p <= r; p++) {
            const int at = p < first || width == dim ? d : dim + d;
            const double share = exp(gate[p * width + at] + (double)ape[p % stride * width + at]);
            sum += share;
            key[d] += share * kv[p * width + at];
        }
        key[d] /= sum;
    }
    snprintf(kind, sizeof kind, "%s_norm.weight", name);
    norm(m, l, kind, dim, key, key);
    rotate(&m->s, true, dim, first, 1, key);
}

/* The positions' contributions, and the keys of blocks made of them. */
struct blocks {
    double *kv, *gate, *keys;
};

static struct blocks make_blocks(int n, int dim)
{
    return (struct blocks){doubles(2 * n * dim), doubles(2 * n * dim), doubles(n * dim)};
}

static void take_position(const struct compressed_model *m, int l, const char *name, int dim, const double *in, int r,
                          const struct blocks *b)
{
    const int stride = m->s.compress[l], width = stride == 4 ? 2 * dim : dim;
    char kind[40];
    snprintf(kind, sizeof kind, "%s_kv.weight", name);
    linear(m, l, kind, in, b->kv + r * width);
    snprintf(kind, sizeof kind, "%s_gate.weight", name);
    linear(m, l, kind, in, b->gate + r * width);
    if ((r + 1) % stride == 0)
        compress(m, l, name, dim, r, b->kv, b->gate, b->keys + r / stride * dim);
}

/* Which of n blocks a row attends to: the top_k with the largest scores. */
static void pick(const struct compressed_model *m, int l, const double *in, const double *q_low, int r, int n,
                 const double *keys, bool *seen)
{
    const struct compressed_shape *s = &m->s;
    const int dim = s->index_dim;
    double *q = doubles(s->index_heads * dim), weights[8], *score = doubles(n + 1);
    linear(m, l, "indexer.attn_q_b.weight", q_low, q);
    linear(m, l, "indexer.proj.weight", in, weights);
    for (int h = 0; h < s->index_heads; h++) {
        rotate(s, true, dim, r, 1, q + h * dim);
        for (int i = 0; i < n; i++) {
            double dot = 0;
            for (int d = 0; d < dim; d++)
                dot += q[h * dim + d] * keys[i * dim + d];
            score[i] += weights[h] * fmax(0, dot);
        }
    }
    for (int i = 0; i < n; i++) {
        int before = 0;
        for (int j = 0; j < n; j++)
            before += score[j] > score[i] || (score[j] == score[i] && j < i);
        seen[i] = before < s->top_k;
    }
    pp_free(q);
    pp_free(score);
}

/* One head's result for row r. own: keys of positions; seen: which of the n blocks are attended to. */
static void attend(const struct compressed_shape *s, const double *q, double sink, const double *own, int r,
                   const double *keys, const bool *seen, int n, double *out)
{
    const int dim = s->head_dim, first = r >= s->window ? r - s->window + 1 : 0;
    double sum = exp(sink);
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int i = first; i <= r + n; i++) {
        const double *k = i <= r ? own + i * dim : keys + (i - r - 1) * dim;
        double score = 0;
        if (i > r && !seen[i - r - 1])
            continue;
        for (int d = 0; d < dim; d++)
            score += q[d] * k[d] / sqrt(dim);
        sum += exp(score);
        for (int d = 0; d < dim; d++)
            out[d] += exp(score) * k[d];
    }
    for (int d = 0; d < dim; d++)
        out[d] /= sum;
}

static void attention(const struct compressed_model *m, int l, double *x, int n)
{
    const struct compressed_shape *s = &m->s;
    const int dim = s->head_dim, stride = s->compress[l], wide = s->n_stream * s->n_embd;
    const struct array *o_a = compressed_find(m, l, "attn_output_a.weight");
    const float *sinks = compressed_find(m, l, "attn_sinks.weight")->values;
    struct blocks blocks = make_blocks(n, dim), index = make_blocks(n, s->index_dim);
    double *in = doubles(s->n_embd), *own = doubles(n * dim), *low = doubles(s->q_rank), write[8], matrix[64];
    double *q = doubles(s->n_head * dim), *att = doubles(s->n_head * dim), *delta = doubles(s->n_embd);
    double *groups = doubles(s->o_groups * s->o_rank);
    bool *seen = pp_calloc((size_t)n + 1, sizeof *seen);
    assert_non_null(seen);
    for (int r = 0; r < n; r++) {
        const int n_blocks = stride ? (r + 1) / stride : 0;
        connect(m, l, "hc_attn", x + r * wide, in, write, matrix);
        norm(m, l, "attn_norm.weight", s->n_embd, in, in);
        linear(m, l, "attn_q_a.weight", in, low);
        norm(m, l, "attn_q_a_norm.weight", s->q_rank, low, low);
        linear(m, l, "attn_q_b.weight", low, q);
        linear(m, l, "attn_kv.weight", in, own + r * dim);
        norm(m, l, "attn_kv_a_norm.weight", dim, own + r * dim, own + r * dim);
        rotate(s, stride != 0, dim, r, 1, own + r * dim);
        if (stride)
            take_position(m, l, "attn_compressor", dim, in, r, &blocks);
        if (stride == 4)
            take_position(m, l, "indexer_compressor", s->index_dim, in, r, &index);
        memset(seen, 1, (size_t)n);
        if (stride == 4)
            pick(m, l, in, low, r, n_blocks, index.keys, seen);
        for (int h = 0; h < s->n_head; h++) {
            norm(m, l, NULL, dim, q + h * dim, q + h * dim);
            rotate(s, stride != 0, dim, r, 1, q + h * dim);
            attend(s, q + h * dim, (double)sinks[h], own, r, blocks.keys, seen, n_blocks, att + h * dim);
            rotate(s, stride != 0, dim, r, -1, att + h * dim);
        }
        for (int g = 0; g < s->o_groups; g++)
            product(o_a, g * s->o_rank, s->o_rank, att + g * s->n_head / s->o_groups * dim, groups + g * s->o_rank);
        linear(m, l, "attn_output_b.weight", groups, delta);
        give(s, delta, write, matrix, x + r * wide);
    }
    double *all[] = {blocks.kv, blocks.gate, blocks.keys, index.kv, index.gate, index.keys, in, own, low, q, att, delta,
                     groups};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
    pp_free(seen);
}

/* out += weight * expert(in) */
static void add_expert(const struct compressed_model *m, int l, const char *end, int e, double weight,
                       const double *in, double *out)
{
    const struct compressed_shape *s = &m->s;
    const double most = s->bound != 0.0f ? (double)s->bound : INFINITY;
    double *gate = doubles(s->n_ff), *up = doubles(s->n_ff), *down = doubles(s->n_embd);
    char kind[40];
    snprintf(kind, sizeof kind, "ffn_gate_%s.weight", end);
    product(compressed_find(m, l, kind), e * s->n_ff, s->n_ff, in, gate);
    snprintf(kind, sizeof kind, "ffn_up_%s.weight", end);
    product(compressed_find(m, l, kind), e * s->n_ff, s->n_ff, in, up);
    for (int i = 0; i < s->n_ff; i++) {
        const double g = fmin(gate[i], most);
        up[i] = g * sigmoid(g) * fmax(-most, fmin(most, up[i]));
    }
    snprintf(kind, sizeof kind, "ffn_down_%s.weight", end);
    product(compressed_find(m, l, kind), e * s->n_embd, s->n_embd, up, down);
    for (int i = 0; i < s->n_embd; i++)
        out[i] += weight * down[i];
    pp_free(gate);
    pp_free(up);
    pp_free(down);
}

static void experts(const struct compressed_model *m, int l, int32_t token, const double *in, double *out)
{
    const struct compressed_shape *s = &m->s;
    const struct array *bias = compressed_find(m, l, "exp_probs_b.bias");
    const int32_t *table = m->tables[l];
    double part[32], score[32], sum = 0;
    bool works[32] = {false};
    linear(m, l, "ffn_gate_inp.weight", in, part);
    for (int e = 0; e < s->n_expert; e++) {
        part[e] = sqrt(log1p(exp(part[e])));
        score[e] = part[e] + (bias ? (double)bias->values[e] : 0);
    }
    for (int e = 0; e < s->n_expert; e++) {
        int before = 0;
        for (int j = 0; j < s->n_expert; j++)
            before += score[j] > score[e];
        works[e] = !table && before < s->n_used;
    }
    for (int i = 0; table && i < s->n_used; i++)
        works[table[token * s->n_used + i]] = true;
    for (int e = 0; e < s->n_expert; e++)
        sum += works[e] ? part[e] : 0;
    memset(out, 0, (size_t)s->n_embd * sizeof *out);
    for (int e = 0; e < s->n_expert; e++)
        if (works[e])
            add_expert(m, l, "exps", e, part[e] / sum * (double)s->scale, in, out);
    add_expert(m, l, "shexp", 0, 1, in, out);
}

void compressed_model_compute(const struct compressed_model *m, const int32_t *ids, int n, double *logits)
{
    const struct compressed_shape *s = &m->s;
    const struct array *table = compressed_find(m, -1, "token_embd.weight");
    const int wide = s->n_stream * s->n_embd;
    double *x = doubles(n * wide), *in = doubles(s->n_embd), *delta = doubles(s->n_embd), write[8], matrix[64];
    for (int r = 0; r < n; r++)
        for (int i = 0; i < wide; i++)
            x[r * wide + i] = (double)table->values[ids[r] * s->n_embd + i % s->n_embd];
    for (int l = 0; l < s->n_layer; l++) {
        attention(m, l, x, n);
        for (int r = 0; r < n; r++) {
            connect(m, l, "hc_ffn", x + r * wide, in, write, matrix);
            norm(m, l, "ffn_norm.weight", s->n_embd, in, in);
            experts(m, l, ids[r], in, delta);
            give(s, delta, write, matrix, x + r * wide);
        }
    }
    for (int r = 0; r < n; r++) {
        connect(m, -1, "output_hc", x + r * wide, in, write, matrix);
        norm(m, -1, "output_norm.weight", s->n_embd, in, in);
        linear(m, -1, "output.weight", in, logits + (int64_t)r * s->n_vocab);
    }
    pp_free(x);
    pp_free(in);
    pp_free(delta);
}
