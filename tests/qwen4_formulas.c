/* qwen4_formulas.c - what Qwen 4 adds to Qwen 3.5's layers, in double precision, as in transformers'
 * modeling_qwen4_exp: gated residual streams, n-gram embeddings, and an indexer over the mean keys of blocks. */
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

/* RMSNorm of each group of n values, over as many values as the norm has weights. y may be x. */
static void norm_each(const struct expert_model *m, int l, const char *kind, int n, const double *x, double *y)
{
    const struct array *w = expert_find(m, l, kind);
    assert_non_null(w);
    for (int64_t from = 0; from < w->cols * (w->rows ? w->rows : 1); from += n) {
        double square = 0;
        for (int64_t i = from; i < from + n; i++)
            square += x[i] * x[i] / n;
        for (int64_t i = from; i < from + n; i++)
            y[i] = x[i] / sqrt(square + EXPERT_EPSILON) * (double)w->values[i];
    }
}

void expert_gate_streams(const struct expert_model *m, int l, const char *part, const double *x, double *sum,
                         double *write)
{
    const int n = m->s.n_stream, n_embd = m->s.n_embd, rank = m->s.stream_rank;
    double *normalised = doubles(n * n_embd), *low = doubles(rank), *gate = doubles(n * n_embd);
    char name[40];
    snprintf(name, sizeof name, "%s_norm.weight", part);
    norm_each(m, l, name, n_embd, x, normalised);
    snprintf(name, sizeof name, "%s_down", part);
    expert_linear(m, l, name, normalised, low);
    for (int i = 0; i < rank; i++)
        low[i] = low[i] / n * sigmoid(low[i] / n);
    snprintf(name, sizeof name, "%s_up", part);
    expert_linear(m, l, name, low, gate);
    memset(sum, 0, (size_t)n_embd * sizeof *sum);
    for (int i = 0; i < n * n_embd; i++)
        sum[i % n_embd] += sigmoid(gate[i]) * normalised[i] / n;
    snprintf(name, sizeof name, "%s_inject", part);
    if (write)
        expert_linear(m, l, name, normalised, write);
    for (int j = 0; write && j < n; j++)
        write[j] = 2 * sigmoid(write[j] / n);
    double *all[] = {normalised, low, gate};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

/* The token `back` positions before r; the end token if that lies before the text, or an end token lies in between. */
static int64_t token_before(const struct expert_shape *s, const int32_t *ids, int r, int back)
{
    bool ended = back > r;
    for (int i = 1; i <= back && i <= r; i++)
        ended = ended || ids[r - i] == s->hash.end;
    return ended ? s->hash.end : ids[r - back];
}

/* The rows of the table for all n-grams that end at position r, concatenated. */
static void look_up(const struct expert_model *m, const int32_t *ids, int r, double *out)
{
    const struct expert_shape *s = &m->s;
    const struct array *table = expert_find(m, -1, "per_layer_token_embd.weight");
    uint64_t rows[64], first = 0;
    int head = 0;
    expert_hash_rows(s, rows);
    for (int n = 2; n <= s->hash.size; n++) {
        uint64_t mixed = 0;
        for (int i = 0; i < n; i++)
            mixed ^= (uint64_t)token_before(s, ids, r, i) * s->hash.multipliers[i];
        for (int h = 0; h < s->hash.heads; h++, head++) {
            const uint64_t row = first + mixed % rows[head];
            for (int i = 0; i < s->hash.width; i++)
                out[head * s->hash.width + i] = (double)table->values[row * (uint64_t)s->hash.width + (uint64_t)i];
            first += rows[head];
        }
    }
}

void expert_hash(const struct expert_model *m, const int32_t *ids, int n, double *x)
{
    const struct expert_shape *s = &m->s;
    const int l = s->hash.layer, n_embd = s->n_embd, wide = s->n_stream * n_embd, taps = s->hash.taps;
    const struct array *conv = expert_find(m, l, "ple_conv1d.weight");
    double *rows = doubles((s->hash.size - 1) * s->hash.heads * s->hash.width), *key = doubles(wide);
    double *query = doubles(wide), *value = doubles(n_embd), *v = doubles(n * wide), *normalised = doubles(n * wide);
    for (int r = 0; r < n; r++) {
        look_up(m, ids, r, rows);
        expert_linear(m, l, "ple_key", rows, key);
        expert_linear(m, l, "ple_value", rows, value);
        norm_each(m, l, "ple_norm_key.weight", n_embd, key, key);
        norm_each(m, l, "ple_norm_query.weight", n_embd, x + r * wide, query);
        for (int j = 0; j < s->n_stream; j++) {
            double dot = 0;
            for (int i = 0; i < n_embd; i++)
                dot += key[j * n_embd + i] * query[j * n_embd + i] / sqrt(n_embd);
            const double root = sqrt(fmax(fabs(dot), 1e-6)) * (dot > 0 ? 1 : dot < 0 ? -1 : 0);
            for (int i = 0; i < n_embd; i++)
                v[r * wide + j * n_embd + i] = sigmoid(root) * value[i];
        }
        norm_each(m, l, "ple_norm_conv.weight", n_embd, v + r * wide, normalised + r * wide);
    }
    for (int r = 0; r < n; r++)
        for (int i = 0; i < wide; i++) {
            double sum = 0;
            for (int t = 0; t < taps; t++) {
                const int from = r - (taps - 1 - t) * s->hash.size;
                sum += from >= 0 ? normalised[from * wide + i] * (double)conv->values[i * taps + t] : 0;
            }
            x[r * wide + i] += v[r * wide + i] + sum * sigmoid(sum);
        }
    double *all[] = {rows, key, query, value, v, normalised};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_free(all[i]);
}

void expert_pick_means(const struct expert_model *m, int l, const double *in, int r, double *keys, bool *sees)
{
    const struct expert_shape *s = &m->s;
    const int size = s->pool, n_blocks = (r + 1) / size;
    double q[INDEX_HEADS * INDEX_DIM], key[INDEX_DIM], *score = doubles(n_blocks + 1);
    expert_linear(m, l, "indexer.q_proj", in, q);
    expert_linear(m, l, "indexer.k_proj", in, keys + r * INDEX_DIM);
    for (int h = 0; h < INDEX_HEADS; h++) {
        norm_each(m, l, "indexer.q_norm.weight", INDEX_DIM, q + h * INDEX_DIM, q + h * INDEX_DIM);
        expert_rotate(s, s->rope_dim, EXPERT_ROPE_BASE, q + h * INDEX_DIM, r);
    }
    for (int b = 0; b < n_blocks; b++) {
        memset(key, 0, sizeof key);
        for (int i = 0; i < size * INDEX_DIM; i++)
            key[i % INDEX_DIM] += keys[b * size * INDEX_DIM + i] / size;
        norm_each(m, l, "indexer.k_norm.weight", INDEX_DIM, key, key);
        expert_rotate(s, s->rope_dim, EXPERT_ROPE_BASE, key, b * size);
        for (int h = 0; h < INDEX_HEADS; h++) {
            double dot = 0;
            for (int i = 0; i < INDEX_DIM; i++)
                dot += q[h * INDEX_DIM + i] * key[i];
            score[b] += fmax(0, dot) / sqrt(INDEX_DIM);
        }
    }
    for (int p = 0; p <= r; p++) {
        int before = 0; /* the number of blocks that rank higher; of equal scores the earlier one does */
        for (int b = 0; p / size < n_blocks && b < n_blocks; b++)
            before += score[b] > score[p / size] || (score[b] == score[p / size] && b < p / size);
        sees[p] = before < s->index_top_k / size; /* positions after the last whole block are always seen */
    }
    pp_free(score);
}
