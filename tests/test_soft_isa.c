/* test_soft_isa.c - the software model of AVX-512 and AVX-VNNI against values worked out by hand. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#include <stdio.h>

#include "engine/cpu/isa.h"
#include "tests/support.h"

static __m512i counting(void) /* bytes 0 .. 63 */
{
    __m512i r;
    for (int i = 0; i < 64; i++)
        r.u8[i] = (uint8_t)i;
    return r;
}

static void byte_dot_products(void **state)
{
    (void)state;
    __m512i u = _mm512_set1_epi32((int)0xff800102), s = _mm512_set1_epi32((int)0x807fff03);
    /* 2 * 3 + 1 * -1 + 128 * 127 + 255 * -128 */
    const int32_t expect = 6 - 1 + 16256 - 32640;
    __m512i r = _mm512_dpbusd_epi32(_mm512_set1_epi32(1000), u, s);
    for (int l = 0; l < 16; l++)
        assert_int_equal(r.i32[l], 1000 + expect);
    r = _mm512_dpbusd_epi32(_mm512_set1_epi32(INT32_MIN), u, s); /* wraps */
    assert_int_equal(r.u32[15], 0x80000000u + (uint32_t)expect);
    r = _mm512_dpbusd_epi32(_mm512_setzero_si512(), counting(), _mm512_set1_epi8(1));
    for (int l = 0; l < 16; l++)
        assert_int_equal(r.i32[l], 16 * l + 6);
    r = _mm512_dpwssd_epi32(_mm512_set1_epi32(-5), _mm512_set1_epi16(-32768), _mm512_set1_epi16(3));
    assert_int_equal(r.i32[7], -5 - 2 * 98304);

    int32_t lanes[8];
    __m256i half = _mm256_dpbusd_avx_epi32(_mm256_set1_epi32(1), _mm256_set1_epi8(-1), _mm256_set1_epi8(-2));
    _mm256_storeu_si256((__m256i *)lanes, half);
    for (int l = 0; l < 8; l++)
        assert_int_equal(lanes[l], 1 - 4 * 510);
}

static void bits_and_shifts(void **state)
{
    (void)state;
    __m512i a = _mm512_set1_epi32(0x0f0f3355), b = _mm512_set1_epi32(0x00ff00ff), c = _mm512_set1_epi32(0x12345678);
    __m512i r = _mm512_ternarylogic_epi32(a, b, c, 0xea); /* (a and b) or c */
    assert_int_equal(r.u32[3], (0x0f0f3355 & 0x00ff00ff) | 0x12345678);
    r = _mm512_ternarylogic_epi32(a, b, c, 0x96); /* exclusive or of all */
    assert_int_equal(r.u32[0], 0x0f0f3355 ^ 0x00ff00ff ^ 0x12345678);
    r = _mm512_ternarylogic_epi32(a, b, c, 0x08); /* not a, b, c */
    assert_int_equal(r.u32[0], ~0x0f0f3355 & 0x00ff00ff & 0x12345678);
    assert_int_equal(_mm512_andnot_si512(a, b).u32[9], ~0x0f0f3355 & 0x00ff00ff);
    assert_int_equal(_mm512_srai_epi32(_mm512_set1_epi32(-17), 4).i32[2], -2);
    assert_int_equal(_mm512_srli_epi16(_mm512_set1_epi32((int)0x87654321), 4).u32[2], 0x08760432);
    assert_int_equal(_mm512_slli_epi32(a, 32).u32[2], 0);
    assert_int_equal(_mm512_srai_epi32(_mm512_set1_epi32(-17), 40).i32[2], -1);
    assert_int_equal(_mm512_max_epu32(_mm512_set1_epi32(-1), a).u32[1], 0xffffffff);
}

static void bytes_and_lanes_by_masks(void **state)
{
    (void)state;
    const uint64_t odd = _mm512_test_epi8_mask(counting(), _mm512_set1_epi8(1));
    assert_int_equal(odd, 0xaaaaaaaaaaaaaaaaull);
    const __m512i less = _mm512_mask_sub_epi8(counting(), odd, _mm512_setzero_si512(), counting());
    assert_int_equal(less.u8[5], 251);
    assert_int_equal(less.u8[6], 6);
    const __m512i wide = _mm512_mask_broadcastq_epi64(counting(), 1 << 3, _mm_set_epi64x(1, -2));
    assert_int_equal(wide.i64[3], -2);
    assert_int_equal(wide.u8[32], 32);
    const __m512i words = _mm512_set1_epi32(0x00250003);
    assert_int_equal(_mm512_srlv_epi16(words, _mm512_set1_epi32(0x00020010)).u32[7], 0x00090000);
    const __m512i found = _mm512_permutex2var_epi16(counting(), words, words);
    assert_int_equal(found.u32[15], 0x00250706); /* entry 5 of the second, which is odd, entry 3 of the first */
    assert_int_equal(_mm512_test_epi16_mask(words, _mm512_set1_epi16(4)), 0xaaaaaaaa);
    assert_int_equal(_mm512_mask_mov_epi16(words, 1, counting()).u32[0], 0x00250100);
}

static void conversions(void **state)
{
    (void)state;
    const float x[16] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 2147483648.0f, -2147483648.0f, 2147483520.0f, NAN, INFINITY};
    const int32_t expect[10] = {0, 2, 2, 0, -2, INT32_MIN, INT32_MIN, 2147483520, INT32_MIN, INT32_MIN};
    __m512i r = _mm512_cvtps_epi32(_mm512_loadu_ps(x));
    for (int l = 0; l < 10; l++)
        assert_int_equal(r.i32[l], expect[l]);
    assert_int_equal(_mm512_maskz_cvtps_epi32(2, _mm512_loadu_ps(x)).i32[1], 2);
    assert_int_equal(_mm512_maskz_cvtps_epi32(2, _mm512_loadu_ps(x)).i32[2], 0);
    assert_true(_mm512_cvtepi32_ps(_mm512_set1_epi32(16777217)).f[0] == 16777216.0f); /* a tie, to even */
    assert_true(_mm512_cvtepi32_ps(_mm512_set1_epi32(16777219)).f[0] == 16777220.0f);
    uint8_t bytes[16];
    _mm_storeu_si128((__m128i *)bytes, _mm512_cvtepi32_epi8(_mm512_set1_epi32(0x1234ff80)));
    assert_int_equal(bytes[5], 0x80);
    _mm_storeu_si128((__m128i *)bytes, _mm512_cvtsepi32_epi8(_mm512_set1_epi32(-1000)));
    assert_int_equal(bytes[5], 0x80);
    assert_int_equal(_mm512_cvtepi8_epi32(_mm_set1_epi8(-3)).i32[15], -3);
    assert_int_equal(_mm512_cvtepu8_epi32(_mm_set1_epi8(-3)).i32[15], 253);
    assert_int_equal(_mm512_cvtepu16_epi32(_mm256_set1_epi16(-3)).i32[15], 65533);
    __m512 h = _mm512_cvtph_ps(_mm256_set1_epi32(0x3c000001));
    assert_true(h.f[14] == 0x1p-24f && h.f[15] == 1.0f);
}

static void floats(void **state)
{
    (void)state;
    __m512 a = _mm512_set1_ps(1 + 0x1p-12f), c = _mm512_set1_ps(-1);
    assert_true(_mm512_fmadd_ps(a, a, c).f[3] == 0x1p-11f + 0x1p-24f); /* the product is not rounded */
    assert_true(_mm512_add_ps(_mm512_mul_ps(a, a), c).f[3] == 0x1p-11f);
    assert_true(_mm512_fnmadd_ps(a, a, c).f[3] == -2 - 0x1p-11f);
    assert_true(_mm512_fmsub_ps(a, a, c).f[3] == 2 + 0x1p-11f);
    __m512 nan = _mm512_set1_ps(NAN);
    assert_true(_mm512_max_ps(nan, c).f[0] == -1 && isnan(_mm512_max_ps(c, nan).f[0]));
    assert_true(_mm512_min_ps(nan, c).f[0] == -1 && isnan(_mm512_min_ps(c, nan).f[0]));
    assert_true(signbit(_mm512_max_ps(_mm512_setzero_ps(), _mm512_set1_ps(-0.0f)).f[0]));
    assert_int_equal(_mm512_cmp_ps_mask(c, a, _CMP_LT_OQ), 0xffff);
    assert_int_equal(_mm512_cmp_ps_mask(nan, a, _CMP_LT_OQ), 0);
}

static void masked_memory(void **state)
{
    (void)state;
    float x[4] = {1, 2, 3, 4}, y[16] = {0};
    __m512 r = _mm512_maskz_loadu_ps(5, x); /* reads no more than lanes 0 and 2 */
    assert_true(r.f[0] == 1 && r.f[1] == 0 && r.f[2] == 3 && r.f[3] == 0 && r.f[15] == 0);
    _mm512_mask_storeu_ps(y, 0x8002, _mm512_set1_ps(7));
    assert_true(y[0] == 0 && y[1] == 7 && y[14] == 0 && y[15] == 7);
    r = _mm512_mask_mov_ps(_mm512_set1_ps(1), 2, _mm512_set1_ps(9));
    assert_true(r.f[0] == 1 && r.f[1] == 9);
}

static void permutations(void **state)
{
    (void)state;
    __m512i a = counting(), b = _mm512_add_epi8(a, _mm512_set1_epi8(64));
    assert_int_equal(_mm512_unpacklo_epi8(a, b).u8[18], 17);
    assert_int_equal(_mm512_unpacklo_epi8(a, b).u8[19], 64 + 17);
    assert_int_equal(_mm512_unpackhi_epi16(a, b).u16[8], 0x1918);
    assert_int_equal(_mm512_unpackhi_epi32(a, b).u32[5], 0x5b5a5958);
    assert_int_equal(_mm512_unpacklo_epi64(a, b).u8[24], 64 + 16);
    assert_int_equal(_mm512_shuffle_epi8(a, _mm512_set1_epi8(3)).u8[40], 35);
    assert_int_equal(_mm512_shuffle_epi8(a, _mm512_set1_epi8(-1)).u8[40], 0);
    assert_int_equal(_mm512_shuffle_i32x4(a, b, 0x4e).u8[0], 32);      /* 2 3 of a, 0 1 of b */
    assert_int_equal(_mm512_shuffle_i32x4(a, b, 0x4e).u8[63], 64 + 31);
    assert_int_equal(_mm512_permutexvar_epi32(_mm512_set1_epi32(17), a).u8[0], 4);
    assert_int_equal(_mm512_permutex2var_epi32(a, _mm512_set1_epi32(17), b).u8[0], 64 + 4);
    __m512 f = _mm512_cvtepi32_ps(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __m512 g = _mm512_mul_ps(f, _mm512_set1_ps(-1));
    __m512 r = _mm512_shuffle_ps(f, g, 0x4e);
    assert_true(r.f[4] == 6 && r.f[5] == 7 && r.f[6] == -4 && r.f[7] == -5);
    r = _mm512_shuffle_f32x4(f, g, 0x88);
    assert_true(r.f[0] == 0 && r.f[4] == 8 && r.f[8] == 0 && r.f[12] == -8);
    assert_true(_mm512_movehdup_ps(f).f[6] == 7 && _mm512_moveldup_ps(f).f[7] == 6);
    assert_true(_mm512_unpackhi_ps(f, g).f[4] == 6 && _mm512_unpackhi_ps(f, g).f[7] == -7);
}

TEST_GROUP(soft_isa)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_dot_products), cmocka_unit_test(bits_and_shifts), cmocka_unit_test(conversions),
        cmocka_unit_test(floats),            cmocka_unit_test(masked_memory),   cmocka_unit_test(permutations),
        cmocka_unit_test(bytes_and_lanes_by_masks),
    };
    if (!pp_isa_runs(PP_ISA_AVX2)) {
        printf("skip: the model is compiled for AVX2\n");
        return 0;
    }
    return cmocka_run_group_tests_name("soft_isa", tests, NULL, NULL);
}
#else
typedef int pp_test_soft_isa_is_for_x86_64;
#endif
