/* quant_search.c - floats to block formats: the search for scales. All searches minimise the sum of w (x - value)^2.
 * The weights w are the caller's importance; without it, some types weigh large values of a block more. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/quant.h"
#include "engine/quant_blocks.h"
#include "engine/quant_grids.h"
#include "engine/quant_many.h"

/* Blocks whose largest magnitude is below this become zeros: their scales would round to zero in half precision. */
#define TINY 1e-9f

static int quantise1(float v, int lo, int hi)
{
    if (!(v > (float)lo))
        return lo;
    return v >= (float)hi ? hi : (int)lrintf(v);
}

static float peak_of(const float *x, int n)
{
    float peak = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(peak))
            peak = x[i];
    return peak;
}

static float most_of(const float *importance, int n)
{
    float most = 0;
    for (int i = 0; importance && i < n; i++)
        most = importance[i] > most ? importance[i] : most;
    return most;
}

/* The weights of n values: importance relative to `most`, the block's largest, so that nothing overflows and sub-blocks
 * compare. Without it (NULL, or all zeros) all are equal or, with `magnitudes`, grow a little with the magnitude, as
 * large values tend to matter more. */
static void weigh(const float *x, const float *importance, float most, int n, bool magnitudes, float *w)
{
    float squares = 0;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    float rms = sqrtf(squares / (float)n);
    for (int i = 0; i < n; i++) {
        w[i] = most > 0 ? importance[i] / most + 1e-6f : 1;
        if (magnitudes && !(most > 0) && rms > 0)
            w[i] *= 1 + fabsf(x[i]) / rms;
    }
}

/* --- many scales -------------------------------------------------------------------------------------------------- */

/* Scales that a search tries before it looks at the results; and padding, as several are tried at once. */
enum { MOST_TRIED = 48 };

static int many_most = PP_MANY_MOST;

void pp_quant_try_at_once(int most)
{
    many_most = most;
}

/* Pads v to a multiple of width with its last value. */
static void fill_up(float *v, int n, int width)
{
    for (int i = n; i % width != 0; i++)
        v[i] = v[n - 1];
}

/* --- symmetric: value = scale * q, lo <= q <= hi ------------------------------------------------------------------ */

struct symmetric {
    const float *x, *w; /* [n] */
    int n;              /* a multiple of 4 */
    int lo, hi;
    bool table;         /* q are the values of IQ4's table; otherwise all integers from lo to hi */
};

/* For q given by 1 / scale: the best scale is xq / qq, which lowers the error by xq^2 / qq. */
struct symmetric_sums {
    float xq, qq;
};

static struct pp_many_block symmetric_block_of(const struct symmetric *s)
{
    return (struct pp_many_block){s->x, s->w, s->n, (float)s->lo, (float)s->hi};
}

/* The sums for n trial scales; inverse and out: [MOST_TRIED]. */
static void try_symmetric(const struct symmetric *s, float *inverse, int n, struct pp_many_sums *out)
{
    const struct pp_many *many = pp_many(many_most);
    const struct pp_many_block b = symmetric_block_of(s);
    fill_up(inverse, n, many->width);
    for (int i = 0; i < n; i += many->width)
        (s->table ? many->table_sums : many->scaled_sums)(&b, inverse + i, out + i);
}

static struct symmetric_sums symmetric_sums(const struct symmetric *s, float inverse)
{
    const struct pp_many_block b = symmetric_block_of(s);
    struct pp_many_sums out;
    (s->table ? pp_many(1)->table_sums : pp_many(1)->scaled_sums)(&b, &inverse, &out);
    return (struct symmetric_sums){out.xq, out.qq};
}

/* Computes the errors for n scales; scale and out are [MOST_TRIED]. */
static void symmetric_errors(const struct symmetric *s, float *scale, int n, float *out)
{
    const struct pp_many *many = pp_many(many_most);
    const struct pp_many_block b = symmetric_block_of(s);
    fill_up(scale, n, many->width);
    for (int i = 0; i < n; i += many->width)
        (s->table ? many->table_errors : many->scaled_errors)(&b, scale + i, out + i);
}

/* Tries scales that put the largest value on either end of the range or up to one off (for a table 14, as its values
 * there are so far apart), then alternates between q and the best scale for it. */
static float search_symmetric(const struct symmetric *s, int steps)
{
    const float off = s->table ? 14 : 1;
    float peak = peak_of(s->x, s->n), best_gain = 0, best = 0, inverse[MOST_TRIED];
    struct pp_many_sums tried[MOST_TRIED];
    int n = 0;
    if (fabsf(peak) < TINY)
        return 0;
    for (int side = 0; side < 2; side++)
        for (int step = -steps; step <= steps; step++) {
            float end = side ? (float)s->hi : (float)s->lo;
            inverse[n++] = (end + off * (float)step / (float)steps) / peak;
        }
    try_symmetric(s, inverse, n, tried);
    for (int i = 0; i < n; i++)
        if (tried[i].qq > 0 && tried[i].xq * tried[i].xq > best_gain * tried[i].qq) {
            best_gain = tried[i].xq * tried[i].xq / tried[i].qq;
            best = tried[i].xq / tried[i].qq;
        }
    for (int round = 0; round < 4 && best != 0; round++) {
        struct symmetric_sums sums = symmetric_sums(s, 1 / best);
        if (!(sums.qq > 0) || !(sums.xq * sums.xq > best_gain * sums.qq))
            break;
        best_gain = sums.xq * sums.xq / sums.qq;
        best = sums.xq / sums.qq;
    }
    return best;
}

/* The half near `scale` with the smallest error. */
static uint16_t search_half(const struct symmetric *s, float scale)
{
    const uint16_t nearest = pp_f32_to_f16(scale);
    uint16_t halves[3] = {nearest};
    float values[PP_MANY_MOST] = {pp_f16_to_f32(nearest)}, errors[PP_MANY_MOST];
    int n = 1, best = 0;
    for (int step = -1; step <= 1; step += 2) {
        const uint16_t h = (uint16_t)(nearest + step);
        const float value = pp_f16_to_f32(h);
        if (!isfinite(value) || value * scale < 0)
            continue;
        halves[n] = h;
        values[n++] = value;
    }
    symmetric_errors(s, values, n, errors);
    for (int i = 1; i < n; i++)
        best = errors[i] < errors[best] ? i : best;
    return halves[best];
}

static void quantize_q8_0(const float *x, const float *importance, void *dst)
{
    struct pp_block_q8_0 b;
    float w[32];
    weigh(x, importance, most_of(importance, 32), 32, false, w);
    struct symmetric s = {x, w, 32, -127, 127, false};
    b.d = search_half(&s, search_symmetric(&s, 3));
    float d = pp_f16_to_f32(b.d), inverse = d != 0 ? 1 / d : 0;
    for (int i = 0; i < 32; i++)
        b.q[i] = (int8_t)quantise1(x[i] * inverse, s.lo, s.hi);
    memcpy(dst, &b, sizeof b);
}

/* Searches a scale for 32 values, and quantises them to integers shifted by `less`: 0 to 2 less - 1. */
static uint16_t symmetric_block(const float *x, const float *importance, int less, uint8_t q[32])
{
    float w[32];
    weigh(x, importance, most_of(importance, 32), 32, false, w);
    struct symmetric s = {x, w, 32, -less, less - 1, false};
    uint16_t d16 = search_half(&s, search_symmetric(&s, 10));
    float d = pp_f16_to_f32(d16), inverse = d != 0 ? 1 / d : 0;
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)(quantise1(x[i] * inverse, s.lo, s.hi) + less);
    return d16;
}

static void put_nibbles(const uint8_t q[32], uint8_t to[16])
{
    for (int i = 0; i < 16; i++)
        to[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void put_fifth_bits(const uint8_t q[32], uint8_t to[4])
{
    memset(to, 0, 4);
    for (int i = 0; i < 32; i++)
        to[i / 8] = (uint8_t)(to[i / 8] | (q[i] >> 4) << i % 8);
}

static void quantize_q4_0(const float *x, const float *importance, void *dst)
{
    struct pp_block_q4_0 b;
    uint8_t q[32];
    b.d = symmetric_block(x, importance, 8, q);
    put_nibbles(q, b.q);
    memcpy(dst, &b, sizeof b);
}

static void quantize_q5_0(const float *x, const float *importance, void *dst)
{
    struct pp_block_q5_0 b;
    uint8_t q[32];
    b.d = symmetric_block(x, importance, 16, q);
    put_nibbles(q, b.q);
    put_fifth_bits(q, b.high);
    memcpy(dst, &b, sizeof b);
}

/* --- Q6_K, Q3_K: 16 symmetric sub-blocks whose scales are integer multiples of d ---------------------------------- */

/* The ranges of q and of the scales. */
struct scaled_form {
    int lo, hi, scale_lo, scale_hi;
};

struct scaled_choice {
    uint16_t d;
    int scale[16];
    float error;
};

static struct symmetric scaled_sub(const struct scaled_form *form, const float *x, const float *w, int sub)
{
    return (struct symmetric){x + 16 * sub, w + 16 * sub, 16, form->lo, form->hi, false};
}

/* For a given d: the best scale of each sub-block, near its own best. */
static struct scaled_choice choose_scaled(const struct scaled_form *form, const float *x, const float *w,
                                          const float wish[16], uint16_t d16)
{
    struct scaled_choice c = {.d = d16};
    float d = pp_f16_to_f32(d16);
    for (int sub = 0; sub < 16; sub++) {
        struct symmetric s = scaled_sub(form, x, w, sub);
        int middle = d != 0 ? quantise1(wish[sub] / d, form->scale_lo, form->scale_hi) : 0;
        float best = INFINITY, scales[PP_MANY_MOST], errors[PP_MANY_MOST];
        int tried[3], n = 0;
        for (int scale = middle - 1; scale <= middle + 1; scale++)
            if (scale >= form->scale_lo && scale <= form->scale_hi) {
                tried[n] = scale;
                scales[n++] = d * (float)scale;
            }
        symmetric_errors(&s, scales, n, errors);
        for (int i = 0; i < n; i++)
            if (errors[i] < best) {
                best = errors[i];
                c.scale[sub] = tried[i];
            }
        c.error += best;
    }
    return c;
}

/* The best d for chosen scales and q. */
static float refit_scaled(const struct scaled_form *form, const float *x, const float *w, const struct scaled_choice *c)
{
    float d = pp_f16_to_f32(c->d), xq = 0, qq = 0;
    for (int sub = 0; sub < 16; sub++) {
        float scale = (float)c->scale[sub];
        if (scale == 0 || d == 0)
            continue;
        struct symmetric s = scaled_sub(form, x, w, sub);
        struct symmetric_sums sums = symmetric_sums(&s, 1 / (d * scale));
        xq += scale * sums.xq;
        qq += scale * scale * sums.qq;
    }
    return qq > 0 ? xq / qq : d;
}

static void put_q6_k(const float *x, const struct scaled_choice *c, void *dst)
{
    struct pp_block_q6_k b = {.d = c->d};
    uint8_t q[256];
    for (int i = 0; i < 256; i++) {
        float scale = pp_f16_to_f32(c->d) * (float)c->scale[i / 16];
        q[i] = (uint8_t)(quantise1(scale != 0 ? x[i] / scale : 0, -32, 31) + 32);
    }
    for (int sub = 0; sub < 16; sub++)
        b.scales[sub] = (int8_t)c->scale[sub];
    for (int half = 0; half < 2; half++) /* the inverse of unpack_q6_k in quant.c */
        for (int i = 0; i < 32; i++) {
            const uint8_t *v = q + 128 * half + i;
            b.ql[64 * half + i] = (uint8_t)((v[0] & 15) | (v[64] & 15) << 4);
            b.ql[64 * half + 32 + i] = (uint8_t)((v[32] & 15) | (v[96] & 15) << 4);
            b.qh[32 * half + i] = (uint8_t)(v[0] >> 4 | (v[32] >> 4) << 2 | (v[64] >> 4) << 4 | (v[96] >> 4) << 6);
        }
    memcpy(dst, &b, sizeof b);
}

static struct scaled_choice search_scaled(const struct scaled_form *form, const float *x, const float *importance)
{
    const float most = most_of(importance, 256);
    float w[256], wish[16];
    for (int sub = 0; sub < 16; sub++) {
        weigh(x + 16 * sub, importance ? importance + 16 * sub : NULL, most, 16, true, w + 16 * sub);
        struct symmetric s = scaled_sub(form, x, w, sub);
        wish[sub] = search_symmetric(&s, 8);
    }
    float peak = peak_of(wish, 16);
    struct scaled_choice best = choose_scaled(form, x, w, wish, pp_f32_to_f16(peak / (float)form->scale_lo));
    for (int round = 0; round < 2; round++) {
        struct scaled_choice c = choose_scaled(form, x, w, wish, pp_f32_to_f16(refit_scaled(form, x, w, &best)));
        if (!(c.error < best.error))
            break;
        best = c;
    }
    return best;
}

static void quantize_q6_k(const float *x, const float *importance, void *dst)
{
    const struct scaled_form form = {-32, 31, -128, 127};
    const struct scaled_choice c = search_scaled(&form, x, importance);
    put_q6_k(x, &c, dst);
}

/* Packs 256 numbers of two bits as in Q2_K and Q3_K. */
static void put_pairs(const uint8_t q[256], uint8_t to[64])
{
    memset(to, 0, 64);
    for (int i = 0; i < 256; i++)
        to[32 * (i / 128) + i % 32] = (uint8_t)(to[32 * (i / 128) + i % 32] | (q[i] & 3) << 2 * (i / 32 % 4));
}

static void quantize_q3_k(const float *x, const float *importance, void *dst)
{
    const struct scaled_form form = {-4, 3, -32, 31};
    const struct scaled_choice c = search_scaled(&form, x, importance);
    struct pp_block_q3_k b = {.d = c.d};
    uint8_t q[256];
    for (int i = 0; i < 256; i++) {
        float scale = pp_f16_to_f32(c.d) * (float)c.scale[i / 16];
        q[i] = (uint8_t)(quantise1(scale != 0 ? x[i] / scale : 0, form.lo, form.hi) + 4);
        b.high[i % 32] = (uint8_t)(b.high[i % 32] | (q[i] >> 2) << i / 32);
    }
    put_pairs(q, b.q);
    for (int s = 0; s < 16; s++) { /* the inverse of pp_q3_k_scale */
        int scale = c.scale[s] + 32;
        b.scales[s % 8] = (uint8_t)(b.scales[s % 8] | (scale & 15) << s / 8 * 4);
        b.scales[8 + s % 4] = (uint8_t)(b.scales[8 + s % 4] | (scale >> 4) << s / 4 * 2);
    }
    memcpy(dst, &b, sizeof b);
}

/* --- affine: value = scale * q - min, 0 <= q <= top --------------------------------------------------------------- */

struct affine {
    float scale, min; /* scale >= 0 */
};

struct affine_problem {
    const float *x, *w; /* [n] */
    int n;              /* a multiple of 4 */
    int top;
    bool any_min;       /* min may be negative; otherwise min >= 0 */
};

static struct pp_many_block affine_block_of(const struct affine_problem *p)
{
    return (struct pp_many_block){p->x, p->w, p->n, 0, (float)p->top};
}

static struct pp_many_sums affine_sums(const struct affine_problem *p, float inverse, float min)
{
    const struct pp_many_block b = affine_block_of(p);
    struct pp_many_sums out;
    pp_many(1)->affine_sums(&b, &inverse, &min, &out);
    return out;
}

/* The sums for n trial scales and one min; inverse and out: [MOST_TRIED]. */
static void try_affine(const struct affine_problem *p, float *inverse, int n, float min, struct pp_many_sums *out)
{
    const struct pp_many *many = pp_many(many_most);
    const struct pp_many_block b = affine_block_of(p);
    const float mins[PP_MANY_MOST] = {min, min, min, min};
    fill_up(inverse, n, many->width);
    for (int i = 0; i < n; i += many->width)
        many->affine_sums(&b, inverse + i, mins, out + i);
}

/* The errors of n scales; scale, min and out: [MOST_TRIED]. */
static void affine_errors(const struct affine_problem *p, float *scale, float *min, int n, float *out)
{
    const struct pp_many *many = pp_many(many_most);
    const struct pp_many_block b = affine_block_of(p);
    fill_up(scale, n, many->width);
    fill_up(min, n, many->width);
    for (int i = 0; i < n; i += many->width)
        many->affine_errors(&b, scale + i, min + i, out + i);
}

static float affine_error(const struct affine_problem *p, struct affine a)
{
    const struct pp_many_block b = affine_block_of(p);
    float error;
    pp_many(1)->affine_errors(&b, &a.scale, &a.min, &error);
    return error;
}

/* Least squares for fixed q. */
static struct affine solve_affine(const struct affine_problem *p, struct pp_many_sums s)
{
    float det = s.w * s.qq - s.q * s.q;
    if (det > 0) {
        struct affine a = {(s.w * s.xq - s.x * s.q) / det, (s.q * s.xq - s.qq * s.x) / det};
        if (a.scale > 0 && (p->any_min || a.min >= 0))
            return a;
    }
    if (s.qq > 0 && s.xq > 0)
        return (struct affine){s.xq / s.qq, 0};
    return (struct affine){0, s.w > 0 && (p->any_min || s.x < 0) ? -s.x / s.w : 0};
}

/* Tries steps a little finer and coarser than the range of the values needs, then alternates between q and the best
 * scale and min. */
static struct affine search_affine(const struct affine_problem *p)
{
    float lo = p->any_min ? p->x[0] : 0, hi = p->x[0];
    for (int i = 0; i < p->n; i++) {
        lo = p->x[i] < lo ? p->x[i] : lo;
        hi = p->x[i] > hi ? p->x[i] : hi;
    }
    struct affine best = {0, -lo};
    if (hi - lo < TINY)
        return best;
    float best_error = affine_error(p, best), inverse[MOST_TRIED], min[MOST_TRIED], errors[MOST_TRIED];
    struct pp_many_sums tried[MOST_TRIED];
    float *scale = inverse; /* the inverse is no longer needed */
    int n = 0;
    for (int step = -10; step <= 10; step++)
        inverse[n++] = ((float)p->top + 0.1f * (float)step) / (hi - lo);
    try_affine(p, inverse, n, -lo, tried);
    for (int i = 0; i < n; i++) {
        const struct affine a = solve_affine(p, tried[i]);
        scale[i] = a.scale;
        min[i] = a.min;
    }
    affine_errors(p, scale, min, n, errors);
    for (int i = 0; i < n; i++)
        if (errors[i] < best_error) {
            best_error = errors[i];
            best = (struct affine){scale[i], min[i]};
        }
    for (int round = 0; round < 4 && best.scale > 0; round++) {
        struct affine a = solve_affine(p, affine_sums(p, 1 / best.scale, best.min));
        float error = affine_error(p, a);
        if (!(error < best_error))
            break;
        best_error = error;
        best = a;
    }
    return best;
}

/* Q4_1, Q5_1: d and m in half precision, and q. */
static void affine_block(const float *x, const float *importance, int top, uint16_t *d, uint16_t *m, uint8_t q[32])
{
    float w[32];
    weigh(x, importance, most_of(importance, 32), 32, false, w);
    const struct affine_problem p = {x, w, 32, top, true};
    struct affine a = search_affine(&p);
    *d = pp_f32_to_f16(a.scale);
    *m = pp_f32_to_f16(-a.min);
    float scale = pp_f16_to_f32(*d), base = pp_f16_to_f32(*m);
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)quantise1(scale > 0 ? (x[i] - base) / scale : 0, 0, top);
}

static void quantize_q4_1(const float *x, const float *importance, void *dst)
{
    struct pp_block_q4_1 b;
    uint8_t q[32];
    affine_block(x, importance, 15, &b.d, &b.m, q);
    put_nibbles(q, b.q);
    memcpy(dst, &b, sizeof b);
}

static void quantize_q5_1(const float *x, const float *importance, void *dst)
{
    struct pp_block_q5_1 b;
    uint8_t q[32];
    affine_block(x, importance, 31, &b.d, &b.m, q);
    put_nibbles(q, b.q);
    put_fifth_bits(q, b.high);
    memcpy(dst, &b, sizeof b);
}

/* --- Q4_K, Q5_K, Q2_K: affine sub-blocks whose scales and mins are multiples of d and dmin ------------------------ */

struct affine_form {
    int subs, n; /* sub-blocks; values in each */
    int top;     /* of q */
    int most;    /* of scales and mins */
};

struct affine_choice {
    uint16_t d, dmin;
    int scale[16], min[16];
    float error;
};

static struct affine_problem affine_sub(const struct affine_form *form, const float *x, const float *w, int sub)
{
    return (struct affine_problem){x + form->n * sub, w + form->n * sub, form->n, form->top, false};
}

static struct affine affine_of(const struct affine_choice *c, int sub)
{
    return (struct affine){pp_f16_to_f32(c->d) * (float)c->scale[sub], pp_f16_to_f32(c->dmin) * (float)c->min[sub]};
}

static int nearest_multiple(float value, float unit, int most)
{
    return unit > 0 ? quantise1(value / unit, 0, most) : 0;
}

/* For given d and dmin: the best scales and mins, near each sub-block's own best. */
static struct affine_choice choose_affine(const struct affine_form *form, const float *x, const float *w,
                                          const struct affine wish[16], uint16_t d16, uint16_t dmin16)
{
    struct affine_choice c = {.d = d16, .dmin = dmin16};
    float d = pp_f16_to_f32(d16), dmin = pp_f16_to_f32(dmin16);
    for (int sub = 0; sub < form->subs; sub++) {
        const struct affine_problem p = affine_sub(form, x, w, sub);
        int scale0 = nearest_multiple(wish[sub].scale, d, form->most);
        int min0 = nearest_multiple(wish[sub].min, dmin, form->most);
        float best = INFINITY, scales[MOST_TRIED], mins[MOST_TRIED], errors[MOST_TRIED];
        struct {
            int scale, min;
        } tried[9];
        int n = 0;
        for (int scale = scale0 - 1; scale <= scale0 + 1; scale++)
            for (int min = min0 - 1; min <= min0 + 1; min++) {
                if (scale < 0 || scale > form->most || min < 0 || min > form->most)
                    continue;
                tried[n].scale = scale;
                tried[n].min = min;
                scales[n] = d * (float)scale;
                mins[n++] = dmin * (float)min;
            }
        affine_errors(&p, scales, mins, n, errors);
        for (int i = 0; i < n; i++)
            if (errors[i] < best) {
                best = errors[i];
                c.scale[sub] = tried[i].scale;
                c.min[sub] = tried[i].min;
            }
        c.error += best;
    }
    return c;
}

/* The best d and dmin when all else is chosen: least squares in two unknowns over the whole block. */
static struct affine refit_affine(const struct affine_form *form, const float *x, const float *w,
                                  const struct affine_choice *c)
{
    float ss = 0, sm = 0, mm = 0, xs = 0, xm = 0; /* s: scale * q, m: -min */
    for (int sub = 0; sub < form->subs; sub++) {
        const struct affine_problem p = affine_sub(form, x, w, sub);
        struct affine a = affine_of(c, sub);
        float scale = (float)c->scale[sub], min = (float)c->min[sub];
        struct pp_many_sums sums = affine_sums(&p, a.scale > 0 ? 1 / a.scale : 0, a.min);
        ss += scale * scale * sums.qq;
        sm -= scale * min * sums.q;
        mm += min * min * sums.w;
        xs += scale * sums.xq;
        xm -= min * sums.x;
    }
    struct affine now = {pp_f16_to_f32(c->d), pp_f16_to_f32(c->dmin)};
    float det = ss * mm - sm * sm;
    if (det > 0) {
        struct affine fit = {(xs * mm - xm * sm) / det, (xm * ss - xs * sm) / det};
        if (fit.scale > 0 && fit.min >= 0)
            return fit;
    }
    if (ss > 0 && xs - sm * now.min > 0) /* keep dmin */
        now.scale = (xs - sm * now.min) / ss;
    return now;
}

/* Chooses all scales for 256 values, and quantises them. */
static struct affine_choice search_affine_block(const struct affine_form *form, const float *x, const float *importance,
                                                uint8_t q[256])
{
    const float heaviest = most_of(importance, 256);
    float w[256], max_scale = 0, max_min = 0, most = (float)form->most;
    struct affine wish[16];
    for (int sub = 0; sub < form->subs; sub++) {
        const struct affine_problem p = affine_sub(form, x, w, sub);
        weigh(p.x, importance ? importance + form->n * sub : NULL, heaviest, form->n, true, w + form->n * sub);
        wish[sub] = search_affine(&p);
        max_scale = wish[sub].scale > max_scale ? wish[sub].scale : max_scale;
        max_min = wish[sub].min > max_min ? wish[sub].min : max_min;
    }
    struct affine_choice best =
        choose_affine(form, x, w, wish, pp_f32_to_f16(max_scale / most), pp_f32_to_f16(max_min / most));
    for (int round = 0; round < 2; round++) {
        struct affine fit = refit_affine(form, x, w, &best);
        struct affine_choice c = choose_affine(form, x, w, wish, pp_f32_to_f16(fit.scale), pp_f32_to_f16(fit.min));
        if (!(c.error < best.error))
            break;
        best = c;
    }
    for (int i = 0; i < 256; i++) {
        struct affine a = affine_of(&best, i / form->n);
        q[i] = (uint8_t)quantise1(a.scale > 0 ? (x[i] + a.min) / a.scale : 0, 0, form->top);
    }
    return best;
}

static void put_scales_and_mins(const struct affine_choice *c, uint8_t scales[12])
{
    for (int sub = 0; sub < 4; sub++) { /* the inverse of pp_q4_k_scale_min */
        scales[sub] = (uint8_t)(c->scale[sub] | (c->scale[sub + 4] >> 4) << 6);
        scales[sub + 4] = (uint8_t)(c->min[sub] | (c->min[sub + 4] >> 4) << 6);
        scales[sub + 8] = (uint8_t)((c->scale[sub + 4] & 15) | (c->min[sub + 4] & 15) << 4);
    }
}

/* Packs the low 4 bits as in Q4_K and Q5_K. */
static void put_k_nibbles(const uint8_t q[256], uint8_t to[128])
{
    for (int i = 0; i < 128; i++) {
        const uint8_t *two = q + 64 * (i / 32) + i % 32;
        to[i] = (uint8_t)((two[0] & 15) | (two[32] & 15) << 4);
    }
}

static void quantize_q4_k(const float *x, const float *importance, void *dst)
{
    const struct affine_form form = {8, 32, 15, 63};
    uint8_t q[256];
    const struct affine_choice c = search_affine_block(&form, x, importance, q);
    struct pp_block_q4_k b = {.d = c.d, .dmin = c.dmin};
    put_scales_and_mins(&c, b.scales);
    put_k_nibbles(q, b.q);
    memcpy(dst, &b, sizeof b);
}

static void quantize_q5_k(const float *x, const float *importance, void *dst)
{
    const struct affine_form form = {8, 32, 31, 63};
    uint8_t q[256];
    const struct affine_choice c = search_affine_block(&form, x, importance, q);
    struct pp_block_q5_k b = {.d = c.d, .dmin = c.dmin};
    put_scales_and_mins(&c, b.scales);
    put_k_nibbles(q, b.q);
    for (int i = 0; i < 256; i++)
        b.high[i % 32] = (uint8_t)(b.high[i % 32] | (q[i] >> 4) << i / 32);
    memcpy(dst, &b, sizeof b);
}

static void quantize_q2_k(const float *x, const float *importance, void *dst)
{
    const struct affine_form form = {16, 16, 3, 15};
    uint8_t q[256];
    const struct affine_choice c = search_affine_block(&form, x, importance, q);
    struct pp_block_q2_k b = {.d = c.d, .dmin = c.dmin};
    for (int sub = 0; sub < 16; sub++)
        b.scales[sub] = (uint8_t)(c.scale[sub] | c.min[sub] << 4);
    put_pairs(q, b.q);
    memcpy(dst, &b, sizeof b);
}

/* --- IQ4: values of a table --------------------------------------------------------------------------------------- */

static const int8_t iq4_values[16] = PP_IQ4_VALUES;
enum { IQ4_STEPS = 7 };

static struct symmetric iq4_problem(const float *x, const float *w)
{
    return (struct symmetric){x, w, 32, iq4_values[0], iq4_values[15], true};
}

/* Packs the indices of the nearest table values: the number of midpoints that a value exceeds. */
static void put_iq4(const float *x, float scale, uint8_t to[16])
{
    int32_t number[32] = {0};
    float inverse = scale != 0 ? 1 / scale : 0, v[32];
    uint8_t q[32];
    for (int i = 0; i < 32; i++)
        v[i] = x[i] * inverse;
    for (int k = 0; k < 15; k++) {
        const float middle = 0.5f * (float)(iq4_values[k] + iq4_values[k + 1]);
        for (int i = 0; i < 32; i++)
            number[i] += v[i] > middle;
    }
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)number[i];
    put_nibbles(q, to);
}

static void quantize_iq4_nl(const float *x, const float *importance, void *dst)
{
    struct pp_block_iq4_nl b;
    float w[32];
    weigh(x, importance, most_of(importance, 32), 32, true, w);
    const struct symmetric s = iq4_problem(x, w);
    b.d = pp_f32_to_f16(search_symmetric(&s, IQ4_STEPS));
    put_iq4(x, pp_f16_to_f32(b.d), b.q);
    memcpy(dst, &b, sizeof b);
}

/* The integer scale of d that is best for 32 values, near their own best. */
static int choose_iq4(const struct symmetric *s, float wish, float d)
{
    const int middle = d != 0 ? quantise1(wish / d, -32, 31) : 0;
    float scales[PP_MANY_MOST], errors[PP_MANY_MOST];
    int tried[3] = {middle}, n = 0, best = 0;
    for (int scale = middle - 1; scale <= middle + 1; scale++)
        if (scale >= -32 && scale <= 31) {
            tried[n] = scale;
            scales[n++] = d * (float)scale;
        }
    symmetric_errors(s, scales, n, errors);
    for (int i = 1; i < n; i++)
        best = errors[i] < errors[best] ? i : best;
    return tried[best];
}

static void quantize_iq4_xs(const float *x, const float *importance, void *dst)
{
    struct pp_block_iq4_xs b = {0};
    const float most = most_of(importance, 256);
    float w[256], wish[8];
    for (int sub = 0; sub < 8; sub++) {
        weigh(x + 32 * sub, importance ? importance + 32 * sub : NULL, most, 32, true, w + 32 * sub);
        const struct symmetric s = iq4_problem(x + 32 * sub, w + 32 * sub);
        wish[sub] = search_symmetric(&s, IQ4_STEPS);
    }
    b.d = pp_f32_to_f16(peak_of(wish, 8) / -32);
    const float d = pp_f16_to_f32(b.d);
    for (int sub = 0; sub < 8; sub++) {
        const struct symmetric s = iq4_problem(x + 32 * sub, w + 32 * sub);
        const int scale = choose_iq4(&s, wish[sub], d);
        put_iq4(x + 32 * sub, d * (float)scale, b.q + 16 * sub);
        b.scales_low[sub / 2] = (uint8_t)(b.scales_low[sub / 2] | ((scale + 32) & 15) << sub % 2 * 4);
        b.scales_high = (uint16_t)(b.scales_high | (scale + 32) >> 4 << 2 * sub);
    }
    memcpy(dst, &b, sizeof b);
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

struct target {
    void (*block)(const float *x, const float *importance, void *dst); /* NULL: a float type */
    float limit; /* largest magnitude that gives finite scales; 0: we do not quantise to this type */
};

#define HALF_MAX 65504.0f

static const struct target targets[PP_TYPE_LIMIT] = {
    [PP_TYPE_Q8_0] = {quantize_q8_0, HALF_MAX * 120},
    [PP_TYPE_Q4_0] = {quantize_q4_0, HALF_MAX * 5},
    [PP_TYPE_Q4_1] = {quantize_q4_1, HALF_MAX / 2},
    [PP_TYPE_Q5_0] = {quantize_q5_0, HALF_MAX * 12},
    [PP_TYPE_Q5_1] = {quantize_q5_1, HALF_MAX / 2},
    [PP_TYPE_Q2_K] = {quantize_q2_k, HALF_MAX * 14},
    [PP_TYPE_Q3_K] = {quantize_q3_k, HALF_MAX * 30 * 2},
    [PP_TYPE_Q5_K] = {quantize_q5_k, HALF_MAX * 60},
    [PP_TYPE_IQ4_NL] = {quantize_iq4_nl, HALF_MAX * 80},
    [PP_TYPE_IQ4_XS] = {quantize_iq4_xs, HALF_MAX * 80 * 30},
    [PP_TYPE_Q4_K] = {quantize_q4_k, HALF_MAX * 60},
    [PP_TYPE_Q6_K] = {quantize_q6_k, HALF_MAX * 120 * 30},
    [PP_TYPE_F32] = {NULL, FLT_MAX},
    [PP_TYPE_F16] = {NULL, HALF_MAX},
    [PP_TYPE_BF16] = {NULL, 3.38e38f},
    [PP_TYPE_I32] = {NULL, 1 << 24},
};

static enum pp_code check_row(const float *x, int64_t n, uint32_t type, struct pp_error *err)
{
    float limit = targets[type].limit;
    bool all = true;
    for (int64_t i = 0; i < n; i++)
        all &= fabsf(x[i]) <= limit;
    for (int64_t i = 0; !all && i < n; i++) {
        if (fabsf(x[i]) <= limit)
            continue;
        if (!isfinite(x[i]))
            return pp_fail(err, PP_ERR_FORMAT, "weight %lld of a row is NaN or infinite; the source is damaged: "
                                               "download it again",
                           (long long)i);
        return pp_fail(err, PP_ERR_FORMAT, "weight %lld of a row is %g, too large for %s; use BF16 or F32",
                       (long long)i, (double)x[i], pp_type_info(type)->name);
    }
    return PP_OK;
}

static void round_row(uint32_t type, const float *x, uint8_t *dst, int64_t n)
{
    enum { SOME = 256 };
    if (type == PP_TYPE_F32) {
        memcpy(dst, x, (size_t)n * sizeof *x);
        return;
    }
    for (int64_t i = 0; i < n && type == PP_TYPE_I32; i++) {
        const int32_t whole = (int32_t)lrintf(x[i]);
        memcpy(dst + 4 * i, &whole, sizeof whole);
    }
    for (int64_t i = 0; i < n && type == PP_TYPE_F16; i += SOME) {
        uint16_t halves[SOME]; /* dst may be unaligned */
        const int64_t here = n - i < SOME ? n - i : SOME;
        pp_floats_to_f16(x + i, halves, here);
        memcpy(dst + 2 * i, halves, (size_t)here * sizeof *halves);
    }
    for (int64_t i = 0; i < n && type == PP_TYPE_BF16; i++) {
        const uint16_t h = pp_f32_to_bf16(x[i]);
        memcpy(dst + 2 * i, &h, sizeof h);
    }
}

static enum pp_code check_importance(const float *importance, int64_t n, struct pp_error *err)
{
    for (int64_t i = 0; importance && i < n; i++)
        if (!(importance[i] >= 0 && importance[i] < 1e30f))
            return pp_fail(err, PP_ERR_FORMAT, "importance of column %lld is %g; it must be a number from 0 to 1e30",
                           (long long)i, (double)importance[i]);
    return PP_OK;
}

enum pp_code pp_quantize_rows(uint32_t type, const float *src, void *dst, int64_t n_rows, int64_t n_cols,
                              const float *importance, struct pp_error *err)
{
    const struct pp_type_info *info = pp_type_info(type);
    if (!info->name || targets[type].limit == 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "pippin cannot quantise to %s; use Q8_0, Q4_0 to Q5_1, Q2_K to "
                       "Q6_K, IQ4_NL or IQ4_XS", info->name ? info->name : "this type");
    if (n_cols % info->block_elements)
        return pp_fail(err, PP_ERR_USAGE, "rows of %lld weights cannot be divided into blocks of %d, as %s needs",
                       (long long)n_cols, info->block_elements, info->name);
    enum pp_code code = check_importance(importance, n_cols, err);
    for (int64_t row = 0; row < n_rows && code == PP_OK; row++) {
        const float *x = src + row * n_cols;
        uint8_t *out = (uint8_t *)dst + (size_t)row * pp_type_row_bytes(type, n_cols);
        code = check_row(x, n_cols, type, err);
        if (code != PP_OK)
            return code;
        if (!targets[type].block) {
            round_row(type, x, out, n_cols);
            continue;
        }
        for (int64_t i = 0; i < n_cols; i += info->block_elements, out += info->block_bytes)
            targets[type].block(x + i, importance ? importance + i : NULL, out);
    }
    return code;
}
