/* streams.c - row operations of models with several residual streams (AltUp, arXiv 2301.13310; hyper-connections, arXiv
 * 2409.19606), or with attention over the inputs of earlier layers (Kimi K3). plan.h has their formulas. Sums over many
 * values are computed as 16 partial sums, which compilers can vectorise; their order is the same in every build. */
#include <math.h>
#include <string.h>

#include "engine/cpu/program.h"

enum { PARTS = 16 };

/* The sum of (x - middle)^2, or of x. */
static float sum_of(const float *x, int64_t n, float middle, bool squares)
{
    float part[PARTS] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i += PARTS)
        for (int64_t k = 0; k < PARTS && i + k < n; k++) {
            const float v = x[i + k] - middle;
            part[k] += squares ? v * v : v;
        }
    for (int k = 0; k < PARTS; k++)
        sum += part[k];
    return sum;
}

/* The root mean square; least: a lower bound of the mean square. */
static float rms(const float *x, int64_t n, float least)
{
    return sqrtf(fmaxf(sum_of(x, n, 0, true) / (float)n, least));
}

static void mix(const struct pp_cpu *c, const float *x, const float *matrix, int n_streams, int64_t n, float *y)
{
    memcpy(y, x, (size_t)(n_streams * n) * sizeof *y);
    for (int j = 0; j < n_streams; j++)
        for (int i = 0; i < n_streams; i++)
            c->ops->add_scaled(y + j * n, x + i * n, matrix[j * n_streams + i], n);
}

static void sparsen(const float *x, int64_t n, float deviations, float *y)
{
    const float mean = sum_of(x, n, 0, false) / (float)n;
    const float least = mean + deviations * sqrtf(sum_of(x, n, mean, true) / (float)n);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] > least ? x[i] - least : 0;
}

/* The dot product of two vectors. */
static float dot(const float *x, const float *w, int64_t n)
{
    float part[PARTS] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i += PARTS)
        for (int64_t k = 0; k < PARTS && i + k < n; k++)
            part[k] += x[i + k] * w[i + k];
    for (int k = 0; k < PARTS; k++)
        sum += part[k];
    return sum;
}

/* The score of a vector in PP_OP_ATTN_RESIDUAL: the dot product of its RMS-normalised form with the weights. */
static float score_of(const struct row_op *r, const float *x)
{
    return dot(x, r->factors, r->n) / sqrtf(sum_of(x, r->n, 0, true) / (float)r->n + r->scale);
}

static void recall(const struct pp_cpu *c, const struct row_op *r, const float *x, const float *bank, float *y)
{
    float score[PP_MAX_LAYERS], own = score_of(r, x), most = own, sum = 0;
    for (int i = 0; i < r->n_heads; i++) {
        score[i] = score_of(r, bank + i * r->n);
        most = fmaxf(most, score[i]);
    }
    for (int i = 0; i < r->n_heads; i++)
        sum += score[i] = expf(score[i] - most);
    own = expf(own - most);
    sum += own;
    c->ops->apply(PP_FN_SCALE, own / sum, x, r->n, y);
    for (int i = 0; i < r->n_heads; i++)
        c->ops->add_scaled(y, bank + i * r->n, score[i] / sum, r->n);
}

/* --- hyper-connections (struct pp_connection) -------------------------------------------------------------------- */

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* Divides n numbers, `stride` apart, by their sum plus `eps`. */
static void divide_by_sum(float *x, int n, int stride, float eps)
{
    float sum = eps;
    for (int i = 0; i < n; i++)
        sum += x[i * stride];
    for (int i = 0; i < n; i++)
        x[i * stride] /= sum;
}

static void softmax(float *x, int n)
{
    float most = x[0], sum = 0;
    for (int i = 1; i < n; i++)
        most = fmaxf(most, x[i]);
    for (int i = 0; i < n; i++)
        sum += x[i] = expf(x[i] - most);
    for (int i = 0; i < n; i++)
        x[i] /= sum;
}

/* Balances a matrix [n, n] of logits by Sinkhorn's iteration (struct pp_connection). */
static void balance(const struct pp_connection *how, int n, float *matrix)
{
    for (int i = 0; i < n; i++) {
        softmax(matrix + i * n, n);
        for (int j = 0; j < n; j++)
            matrix[i * n + j] += how->eps;
    }
    for (int round = 0; round < how->sinkhorn_iters; round++) {
        for (int i = 0; round && i < n; i++)
            divide_by_sum(matrix + i * n, n, 1, how->eps);
        for (int j = 0; j < n; j++)
            divide_by_sum(matrix + j, n, n, how->eps);
    }
}

static void connect(const struct row_op *r, const float *x, float *y)
{
    const struct pp_connection *how = &r->connection;
    const int n = r->n_heads, n_numbers = (int)r->n;
    for (int i = 0; i < n_numbers; i++)
        y[i] = x[i] * r->factors[i < n ? 0 : i < 2 * n ? 1 : 2] + r->added[i];
    for (int i = 0; i < n; i++)
        y[i] = sigmoid(y[i]) + how->eps;
    for (int j = n; n_numbers > n && j < 2 * n; j++)
        y[j] = how->write_scale * sigmoid(y[j]) + how->write_eps;
    if (n_numbers > 2 * n)
        balance(how, n, y + 2 * n);
}

static void read_streams(const struct pp_cpu *c, const struct row_op *r, const float *x, const float *numbers, float *y)
{
    c->ops->apply(PP_FN_SCALE, numbers[0], x, r->n, y);
    for (int i = 1; i < r->n_heads; i++)
        c->ops->add_scaled(y, x + i * r->n, numbers[i], r->n);
}

/* Replaces stream j by the sum over i of matrix[i][j] times stream i, a piece of all streams at a time. */
static void mix_streams(const struct pp_cpu *c, const struct row_op *r, const float *matrix, float *streams)
{
    enum { PIECE = 256 };
    const int n = r->n_heads;
    float old[PP_MAX_STREAMS][PIECE];
    for (int64_t at = 0; at < r->n; at += PIECE) {
        const int64_t size = r->n - at < PIECE ? r->n - at : PIECE;
        for (int i = 0; i < n; i++)
            memcpy(old[i], streams + i * r->n + at, (size_t)size * sizeof **old);
        for (int j = 0; j < n; j++) {
            float *y = streams + j * r->n + at;
            c->ops->apply(PP_FN_SCALE, matrix[j], old[0], size, y);
            for (int i = 1; i < n; i++)
                c->ops->add_scaled(y, old[i], matrix[i * n + j], size);
        }
    }
}

static void write_streams(const struct pp_cpu *c, const struct row_op *r, const float *x, const float *numbers,
                          float *streams)
{
    const int n = r->n_heads;
    if (r->mixes)
        mix_streams(c, r, numbers + 2 * n, streams);
    for (int j = 0; j < n; j++)
        c->ops->add_scaled(streams + j * r->n, x, numbers[n + j], r->n);
}

/* y[j]: the signed square root of the dot product of stream j in x and in x2, scaled. */
static void roots(const struct row_op *r, const float *x, const float *x2, float *y)
{
    static const float least = 1e-6f;
    for (int j = 0; j < r->n_heads; j++) {
        const float product = r->scale * dot(x + j * r->n, x2 + j * r->n, r->n);
        y[j] = product == 0 ? 0 : copysignf(sqrtf(fmaxf(fabsf(product), least)), product);
    }
}

static void spread(const struct pp_cpu *c, const struct row_op *r, const float *x, const float *numbers, float *y)
{
    for (int j = 0; j < r->n_heads; j++)
        c->ops->add_scaled(y + j * r->n, x, 1 + numbers[j], r->n);
}

void pp_cpu_stream_op(const struct pp_cpu *c, const struct row_op *r, const float *x, const float *x2, float *y)
{
    switch (r->kind) {
    case PP_OP_MIX:
        mix(c, x, x2, r->n_heads, r->n, y);
        break;
    case PP_OP_SPREAD:
        spread(c, r, x, x2, y);
        break;
    case PP_OP_ROOTS:
        roots(r, x, x2, y);
        break;
    case PP_OP_MATCH:
        c->ops->apply(PP_FN_SCALE, rms(x2, r->n, 0) / rms(x, r->n, 1e-5f), x, r->n, y);
        break;
    case PP_OP_ATTN_RESIDUAL:
        recall(c, r, x, x2, y);
        break;
    case PP_OP_SPARSEN:
        sparsen(x, r->n, r->scale, y);
        break;
    case PP_OP_CONNECT:
        connect(r, x, y);
        break;
    case PP_OP_READ_STREAMS:
        read_streams(c, r, x, x2, y);
        break;
    case PP_OP_WRITE_STREAMS:
        write_streams(c, r, x, x2, y);
        break;
    default: /* lower.c has no others for rows */
        break;
    }
}
