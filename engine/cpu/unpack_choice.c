/* unpack_choice.c - chooses how entries of large code books are read with AVX-512: by gather instructions, or by one
 * load per weight row. Both give the same bits. On an Emerald Rapids gathers take up to a third less time. On a Cascade
 * Lake they take more than twice as long, because its microcode lets no other instruction overtake them. CPUID does not
 * tell the two apart, so both ways are timed once per process. */
#if defined(__x86_64__)
#include <assert.h>
#include <pthread.h>

#include "engine/base/clock.h"
#include "engine/cpu/unpack_units.h"

enum { N_COLS = 2048, N_BLOCKS = N_COLS / 32, ROUNDS = 8 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool loads_are_faster;

/* Time to multiply a group of weights by one activation row, which is what decoding does. */
static uint64_t time_of(const struct pp_unit_fns *fns)
{
    static const uint8_t group[N_COLS / 256 * (sizeof(struct pp_iq2_s_pack) + 64)] __attribute__((aligned(64)));
    static const int8_t q[N_COLS];
    static const struct side side[N_BLOCKS / CHUNK];
    float acc[1][PP_GROUP_ROWS] __attribute__((aligned(64))) = {{0}};
    const struct few_job job = {.side = side, .q = q, .q_stride = N_COLS, .m = 1, .acc = acc};
    assert(pp_pack_group_bytes(PP_TYPE_IQ2_S, N_COLS) <= sizeof group);
    const uint64_t begin = pp_now_ns();
    fns[PP_TYPE_IQ2_S].few(group, N_COLS, 0, N_BLOCKS, &job);
    return pp_now_ns() - begin;
}

/* Compares the shortest times of a few alternating rounds, which take some 60 us together. */
static void choose(void)
{
    uint64_t gathers = UINT64_MAX, loads = UINT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t a = time_of(pp_units_avx512), b = time_of(pp_units_loads_avx512);
        gathers = a < gathers ? a : gathers;
        loads = b < loads ? b : loads;
    }
    loads_are_faster = loads < gathers;
}

const struct pp_unit_fns *pp_units_of_avx512(uint32_t type)
{
    if (!pp_units_loads_avx512[type].few)
        return pp_units_avx512 + type;
    pthread_once(&once, choose);
    return (loads_are_faster ? pp_units_loads_avx512 : pp_units_avx512) + type;
}

#else
typedef int pp_unpack_choice_is_for_x86_64;
#endif
