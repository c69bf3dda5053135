/* candidates.c - see candidates.h. Loops over LANES neighbouring floats are what compilers vectorise. */
#include "engine/candidates.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "engine/base/mem.h"

/* A group for each lane, so that no maximum is taken across a vector. */
enum { LANES = PP_LOGIT_GROUPS };

static int32_t blocks_of(int32_t n)
{
    return n / PP_LOGIT_BLOCK + (n % PP_LOGIT_BLOCK > 0);
}

enum pp_code pp_candidates_init(struct pp_candidates *c, int32_t room, struct pp_error *err)
{
    const size_t n_blocks = (size_t)blocks_of(room);
    *c = (struct pp_candidates){.largest = -INFINITY};
    c->group_tops = pp_realloc_array(NULL, n_blocks * LANES, sizeof *c->group_tops);
    c->block_tops = pp_realloc_array(NULL, n_blocks, sizeof *c->block_tops);
    c->list = pp_realloc_array(NULL, (size_t)room, sizeof *c->list);
    if (c->group_tops && c->block_tops && c->list)
        return PP_OK;
    pp_candidates_free(c);
    return pp_fail_nomem(err, "the candidates for a token");
}

void pp_candidates_free(struct pp_candidates *c)
{
    pp_free(c->group_tops);
    pp_free(c->block_tops);
    pp_free(c->list);
    *c = (struct pp_candidates){0};
}

/* NaN is never greater. */
static float greater(float x, float most)
{
    return x > most ? x : most;
}

/* Writes the largest logit of each group of a block x [n] to tops; returns the block's. */
static float find_tops(const float *x, int32_t n, float *tops)
{
    float most[LANES];
    int32_t i = 0;
    for (int l = 0; l < LANES; l++)
        most[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            most[l] = greater(x[i + l], most[l]);
    for (int l = 0; i + l < n; l++)
        most[l] = greater(x[i + l], most[l]);
    memcpy(tops, most, sizeof most);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            most[l] = greater(most[l + width], most[l]);
    return most[0];
}

void pp_candidates_set(struct pp_candidates *c, const float *logits, int32_t n)
{
    c->logits = logits;
    c->n = n;
    c->n_blocks = blocks_of(n);
    c->largest = -INFINITY;
    for (int32_t b = 0; b < c->n_blocks; b++) {
        const int32_t first = b * PP_LOGIT_BLOCK, size = pp_candidates_block_end(c, first) - first;
        c->block_tops[b] = find_tops(logits + first, size, c->group_tops + (size_t)b * LANES);
        c->largest = greater(c->block_tops[b], c->largest);
    }
}

/* --- how large is large enough -------------------------------------------------------------------------------- */

static int32_t count_above(const float *x, int32_t n, float min_logit)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        count += x[i] >= min_logit;
    return count;
}

/* Maps floats to integers in the same order. */
static uint32_t rank_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 1u << 31 ? ~bits : bits | 1u << 31;
}

static float of_rank(uint32_t rank)
{
    const uint32_t bits = rank & 1u << 31 ? rank ^ 1u << 31 : ~rank;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A value that at least k of x [n] reach, and if possible no more than 2 k; if fewer than k are not forbidden, all
 * these reach it. */
static float threshold_for(const float *x, int32_t n, int32_t k)
{
    uint32_t reached = rank_of(-FLT_MAX), missed = rank_of(INFINITY) + 1;
    while (missed - reached > 1) {
        const uint32_t middle = reached + (missed - reached) / 2;
        const int32_t count = count_above(x, n, of_rank(middle));
        if (count < k) {
            missed = middle;
            continue;
        }
        reached = middle;
        if (count / 2 <= k)
            break;
    }
    return of_rank(reached);
}

/* --- the list ------------------------------------------------------------------------------------------------- */

static bool better(const struct pp_candidate *a, const struct pp_candidate *b)
{
    return a->logit != b->logit ? a->logit > b->logit : a->token < b->token;
}

/* Restores a heap whose root is the worst candidate. */
static void sift_down(struct pp_candidate *heap, int32_t n, int32_t i)
{
    for (;;) {
        int32_t worst = i, left = 2 * i + 1, right = left + 1;
        if (left < n && better(&heap[worst], &heap[left]))
            worst = left;
        if (right < n && better(&heap[worst], &heap[right]))
            worst = right;
        if (worst == i)
            return;
        struct pp_candidate t = heap[i];
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

/* Moves the k best of the n candidates of a list to its front, best first; returns how many those are. */
static int32_t select_best(struct pp_candidate *list, int32_t n, int32_t k)
{
    k = k < n ? k : n;
    for (int32_t i = k / 2 - 1; i >= 0; i--)
        sift_down(list, k, i);
    for (int32_t i = k; i < n; i++)
        if (better(&list[i], &list[0])) {
            list[0] = list[i];
            sift_down(list, k, 0);
        }
    for (int32_t i = k - 1; i > 0; i--) {
        struct pp_candidate worst = list[0];
        list[0] = list[i];
        list[i] = worst;
        sift_down(list, i, 0);
    }
    return k;
}

/* Lists all logits of at least `min_logit`, in no order; `min_logit` is not NaN. */
static int32_t gather(struct pp_candidates *c, float min_logit)
{
    int32_t n = 0;
    for (int32_t b = 0; b < c->n_blocks; b++) {
        const int32_t first = b * PP_LOGIT_BLOCK, end = pp_candidates_block_end(c, first);
        for (int l = 0; c->block_tops[b] >= min_logit && l < LANES; l++)
            for (int32_t i = c->group_tops[b * LANES + l] >= min_logit ? first + l : end; i < end; i += LANES)
                if (c->logits[i] >= min_logit)
                    c->list[n++] = (struct pp_candidate){i, c->logits[i]};
    }
    return n;
}

/* A threshold is found among the largest of each block, or group: if there are many more of these than k, few hold more
 * than one of the k best, so that few logits are gathered. */
int32_t pp_candidates_best(struct pp_candidates *c, int32_t k)
{
    enum { MANY = 4 };
    float min_logit;
    if (k <= c->n_blocks / MANY)
        min_logit = threshold_for(c->block_tops, c->n_blocks, k);
    else if (k <= c->n_blocks * (LANES / MANY))
        min_logit = threshold_for(c->group_tops, c->n_blocks * LANES, k);
    else
        min_logit = threshold_for(c->logits, c->n, k);
    return select_best(c->list, gather(c, min_logit), k);
}

/* --- the nucleus ---------------------------------------------------------------------------------------------- */

/* Logits are counted in bins, the largest in the first, those far below it in the last. */
enum { BINS_PER_UNIT = 16, FAR_BELOW = 80, N_BINS = BINS_PER_UNIT * FAR_BELOW + 1 };

static float offset_below(float logit, float largest)
{
    const float x = logit - largest;
    return x > -(float)FAR_BELOW ? x : -(float)FAR_BELOW; /* NaN, too */
}

static int32_t bin_of(float offset_below)
{
    return (int32_t)(offset_below * -(float)BINS_PER_UNIT);
}

/* exp(x) for -80 <= x <= 0, to 7 digits: 2^n times a polynomial of the rest, which is within half of ln 2 of 0
 * (coefficients: Cephes, expf). */
static float exp_below_zero(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    const float n = (x * 1.44269504f + shift) - shift;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const union {
        int32_t bits;
        float number;
    } power = {((int32_t)n + 127) * (1 << 23)};
    return p * power.number;
}

/* Adds exp(logit - largest) of each logit in x [n] to its bin. */
static void fill_bins(const float *x, int32_t n, float largest, double *bins)
{
    float from[PP_LOGIT_BLOCK], weight[PP_LOGIT_BLOCK];
    int32_t bin[PP_LOGIT_BLOCK];
    for (int32_t i = 0; i < n; i++)
        from[i] = offset_below(x[i], largest);
    for (int32_t i = 0; i < n; i++) {
        weight[i] = exp_below_zero(from[i]);
        bin[i] = bin_of(from[i]);
    }
    for (int32_t i = 0; i < n; i++)
        bins[bin[i]] += (double)weight[i];
}

/* The bin in which the running sum reaches `reached`; subtracts the bins before it from that. */
static int32_t bin_at_mass(const double *bins, double *reached)
{
    int32_t bin = 0;
    for (; bin + 1 < N_BINS && bins[bin] < *reached; bin++)
        *reached -= bins[bin];
    return bin;
}

float pp_candidates_nucleus(struct pp_candidates *c, float p)
{
    double bins[N_BINS] = {0}, reached = 0;
    int32_t n = 0, last = 0;
    for (int32_t i = 0; i < c->n; i += PP_LOGIT_BLOCK)
        fill_bins(c->logits + i, pp_candidates_block_end(c, i) - i, c->largest, bins);
    for (int32_t b = 0; b < N_BINS; b++)
        reached += bins[b];
    reached *= (double)p;
    const int32_t bin = bin_at_mass(bins, &reached);
    for (int32_t i = 0; i < c->n; i++)
        if (c->logits[i] > -INFINITY && bin_of(offset_below(c->logits[i], c->largest)) == bin)
            c->list[n++] = (struct pp_candidate){i, c->logits[i]};
    select_best(c->list, n, n);
    for (; last + 1 < n; last++) {
        reached -= (double)exp_below_zero(offset_below(c->list[last].logit, c->largest));
        if (reached <= 0)
            break;
    }
    return n ? c->list[last].logit : -INFINITY; /* only rounding can lead to an empty bin */
}
