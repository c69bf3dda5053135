/* quant_many.c - see quant_many.h. */
#include "engine/quant_many.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "engine/quant_grids.h"

#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
#include <immintrin.h>
#define WIDER 1
#endif

#define ALWAYS inline __attribute__((always_inline))

enum { IQ4_STEPS = 15 };
static const float iq4_values[IQ4_STEPS + 1] = PP_IQ4_VALUES;

/* --- one scale: four floats -------------------------------------------------------------------------------------- */

#ifdef WIDER

#define V __m128
#define LOAD(p) _mm_loadu_ps(p)
#define SPLAT(f) _mm_set1_ps(f)
#define AT_LEAST(lo, v) _mm_max_ps(lo, v) /* of both if one is no number, the second */
#define AT_MOST(hi, v) _mm_min_ps(hi, v)
#define MORE_ABOVE(q, v, x, step) ((q) + _mm_and_ps(_mm_cmpgt_ps(v, SPLAT(x)), SPLAT(step)))

#else

typedef float four __attribute__((vector_size(16)));
typedef int32_t four_masks __attribute__((vector_size(16)));

static inline four load4(const float *p)
{
    four v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline four select4(four_masks mask, four yes, four no)
{
    return (four)((mask & (four_masks)yes) | (~mask & (four_masks)no));
}

#define V four
#define LOAD(p) load4(p)
#define SPLAT(f) ((four){f, f, f, f})
#define AT_LEAST(lo, v) select4(v < lo, lo, v)
#define AT_MOST(hi, v) select4(v > hi, hi, v)
#define MORE_ABOVE(q, v, x, step) ((q) + select4((v) > SPLAT(x), SPLAT(step), SPLAT(0)))

#endif

#define WIDTH 1
#define NAME(f) f##_one
#define TARGET
#define SPREAD(p) LOAD(p)
#include "engine/quant_many_body.h"

/* --- two, and four ----------------------------------------------------------------------------------------------- */

#ifdef WIDER

#define WIDTH 2
#define V __m256
#define NAME(f) f##_two
#define TARGET __attribute__((target("avx2")))
#define LOAD(p) _mm256_loadu_ps(p)
#define SPREAD(p) _mm256_broadcast_ps((const __m128 *)(const void *)(p))
#define SPLAT(f) _mm256_set1_ps(f)
#define AT_LEAST(lo, v) _mm256_max_ps(lo, v)
#define AT_MOST(hi, v) _mm256_min_ps(hi, v)
#define MORE_ABOVE(q, v, x, step) ((q) + _mm256_and_ps(_mm256_cmp_ps(v, SPLAT(x), _CMP_GT_OQ), SPLAT(step)))
#include "engine/quant_many_body.h"

#define WIDTH 4
#define V __m512
#define NAME(f) f##_four
#define TARGET __attribute__((target("avx512f")))
#define LOAD(p) _mm512_loadu_ps(p)
#define SPREAD(p) _mm512_broadcast_f32x4(_mm_loadu_ps(p))
#define SPLAT(f) _mm512_set1_ps(f)
#define AT_LEAST(lo, v) _mm512_max_ps(lo, v)
#define AT_MOST(hi, v) _mm512_min_ps(hi, v)
#define MORE_ABOVE(q, v, x, step) _mm512_mask_add_ps(q, _mm512_cmp_ps_mask(v, SPLAT(x), _CMP_GT_OQ), q, SPLAT(step))
#include "engine/quant_many_body.h"

#endif

const struct pp_many *pp_many(int most)
{
#ifdef WIDER
    if (most >= 4 && __builtin_cpu_supports("avx512f"))
        return &many_four;
    if (most >= 2 && __builtin_cpu_supports("avx2"))
        return &many_two;
#else
    (void)most;
#endif
    return &many_one;
}
