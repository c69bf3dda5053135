/* test_code_books.c - with AVX-512, large code books are looked up with gathers or without: both give the same bits for
 * single units and for products of one and of four activation rows, and one of the two is chosen. */
#if defined(__x86_64__)
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/unpack_units.h"
#include "tests/support.h"

enum { N_COLS = 768, N_BLOCKS = N_COLS / 32, FEW_ROWS = 4 };

extern const struct pp_unit_fns pp_units_avx512_soft[PP_TYPE_LIMIT], pp_units_loads_avx512_soft[PP_TYPE_LIMIT];

struct ways {
    const struct pp_unit_fns *gathers, *loads;
};

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 16;
}

static uint8_t *aligned_bytes(size_t n)
{
    uint8_t *p = pp_aligned(64, (n + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0, n);
    return p;
}

static uint8_t *random_group(uint32_t type, uint32_t *seed)
{
    const size_t n = pp_pack_group_bytes(type, N_COLS);
    uint8_t *group = aligned_bytes(n);
    for (size_t i = 0; i < n; i++)
        group[i] = (uint8_t)next_random(seed);
    return group;
}

static void assert_same_units(const struct ways *w, uint32_t type, const uint8_t *group)
{
    const size_t step = unpacked_bytes(unit_kind(type), 1, PP_GROUP_ROWS), n = step * N_BLOCKS;
    uint8_t *a = aligned_bytes(n), *b = aligned_bytes(n);
    w->gathers[type].unpack(group, N_COLS, 0, N_BLOCKS, 0, a, step);
    w->loads[type].unpack(group, N_COLS, 0, N_BLOCKS, 0, b, step);
    assert_memory_equal(a, b, n);
    pp_free(a);
    pp_free(b);
}

static void assert_same_products(const struct ways *w, uint32_t type, const uint8_t *group, int m, uint32_t *seed)
{
    struct side side[(N_BLOCKS + CHUNK - 1) / CHUNK * FEW_ROWS] = {0};
    int8_t q[FEW_ROWS * N_COLS];
    for (size_t i = 0; i < sizeof side / sizeof *side; i++)
        for (int b = 0; b < CHUNK; b++) {
            side[i].d[b] = 0.01f * (float)(1 + b);
            side[i].bias[0][b] = is_halved(kind_of(type)) ? MAGIC_BITS : 0;
        }
    for (size_t i = 0; i < sizeof q; i++)
        q[i] = (int8_t)(next_random(seed) % 255 - 127);
    float acc[2][FEW_ROWS][PP_GROUP_ROWS] __attribute__((aligned(64))) = {0};
    struct few_job job = {.side = side, .q = q, .q_stride = N_COLS, .m = m, .acc = acc[0]};
    w->gathers[type].few(group, N_COLS, 0, N_BLOCKS, &job);
    job.acc = acc[1];
    w->loads[type].few(group, N_COLS, 0, N_BLOCKS, &job);
    assert_memory_equal(acc[0], acc[1], sizeof *acc);
    assert_true(m == FEW_ROWS || acc[0][m][0] == 0);
    assert_true(acc[0][m - 1][0] != 0);
}

static void assert_same_bits_by(const struct ways *w)
{
    uint32_t seed = 7;
    int n = 0;
    for (uint32_t type = 0; type < PP_TYPE_LIMIT; type++) {
        if (!w->loads[type].few)
            continue;
        uint8_t *group = random_group(type, &seed);
        assert_same_units(w, type, group);
        assert_same_products(w, type, group, 1, &seed);
        assert_same_products(w, type, group, FEW_ROWS, &seed);
        pp_free(group);
        n++;
    }
    assert_int_equal(n, 5);
}

static void both_ways_give_the_same_bits(void **state)
{
    (void)state;
    assert_same_bits_by(&(struct ways){pp_units_avx512_soft, pp_units_loads_avx512_soft});
    if (pp_isa_runs(PP_ISA_AVX512))
        assert_same_bits_by(&(struct ways){pp_units_avx512, pp_units_loads_avx512});
}

static void one_way_is_chosen(void **state)
{
    (void)state;
    if (!pp_isa_runs(PP_ISA_AVX512))
        return;
    const bool loads = pp_units_of_avx512(PP_TYPE_IQ2_S) == pp_units_loads_avx512 + PP_TYPE_IQ2_S;
    const struct pp_unit_fns *chosen = loads ? pp_units_loads_avx512 : pp_units_avx512;
    for (uint32_t type = 0; type < PP_TYPE_LIMIT; type++)
        assert_ptr_equal(pp_units_of_avx512(type), (pp_units_loads_avx512[type].few ? chosen : pp_units_avx512) + type);
}

TEST_GROUP(code_books)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_give_the_same_bits),
        cmocka_unit_test(one_way_is_chosen),
    };
    return cmocka_run_group_tests_name("code_books", tests, NULL, NULL);
}
#else
typedef int pp_test_code_books_is_for_x86_64;
#endif
