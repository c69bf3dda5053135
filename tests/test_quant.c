/* test_quant.c - 16-bit floats, block formats to float and back. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/support.h"

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* --- 16-bit floats ------------------------------------------------------------------------------------------------ */

static void halves_are_exact(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        int exponent = (int)(h >> 10 & 31), mantissa = (int)(h & 1023);
        float f = pp_f16_to_f32((uint16_t)h);
        assert_int_equal(signbit(f) != 0, h >> 15);
        if (exponent == 31) {
            assert_true(mantissa ? isnan(f) : isinf(f));
            assert_true(mantissa ? isnan(pp_f16_to_f32(pp_f32_to_f16(f))) : pp_f32_to_f16(f) == h);
            continue;
        }
        float magnitude = exponent ? ldexpf((float)(1024 + mantissa), exponent - 25) : ldexpf((float)mantissa, -24);
        assert_true(fabsf(f) == magnitude);
        assert_int_equal(pp_f32_to_f16(f), h);
    }
}

/* Between two neighbours the middle goes to the even one, anything else to the nearer one. */
static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint16_t h = 0; h < 0x7c00; h++) {
        uint16_t next = (uint16_t)(h + 1), even = h % 2 ? next : h;
        float a = pp_f16_to_f32(h), b = next == 0x7c00 ? 65536 : pp_f16_to_f32(next);
        float middle = (a + b) / 2; /* exact */
        assert_int_equal(pp_f32_to_f16(middle), even);
        assert_int_equal(pp_f32_to_f16(-middle), even | 0x8000);
        assert_int_equal(pp_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(pp_f32_to_f16(nextafterf(middle, INFINITY)), next);
    }
    assert_int_equal(pp_f32_to_f16(1e30f), 0x7c00);
    assert_int_equal(pp_f32_to_f16(1e-30f), 0);
    assert_int_equal(pp_f32_to_f16(-0.0f), 0x8000);
}

#if defined(__x86_64__)
__attribute__((target("f16c,avx"))) static void compare_with_f16c(void)
{
    for (uint32_t h = 0; h < 0x10000; h++)
        assert_int_equal(bits(__builtin_ia32_vcvtph2ps((__attribute__((vector_size(16))) short){(short)h})[0]),
                         bits(pp_f16_to_f32((uint16_t)h)));
    uint32_t u = 12345;
    for (int i = 0; i < 1000000; i++) {
        u = u * 1664525u + 1013904223u;
        float f;
        memcpy(&f, &u, sizeof f);
        uint16_t hard = (uint16_t)__builtin_ia32_vcvtps2ph((__attribute__((vector_size(16))) float){f}, 0)[0];
        assert_int_equal(pp_f32_to_f16(f), hard);
    }
}
#endif

static void halves_agree_with_the_hardware(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("f16c"))
        compare_with_f16c();
#endif
}

static void brain_floats(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = pp_bf16_to_f32((uint16_t)h);
        assert_int_equal(bits(f), h << 16);
        if (!isnan(f))
            assert_int_equal(pp_f32_to_bf16(f), h);
        else
            assert_true(isnan(pp_bf16_to_f32(pp_f32_to_bf16(f))));
    }
    uint32_t just_nan = 0x7f800001;
    float f;
    memcpy(&f, &just_nan, sizeof f);
    assert_true(isnan(pp_bf16_to_f32(pp_f32_to_bf16(f))));
    assert_int_equal(pp_f32_to_bf16(1.00390625f), 0x3f80); /* a tie, to even */
    assert_int_equal(pp_f32_to_bf16(1.01171875f), 0x3f82);
    assert_int_equal(pp_f32_to_bf16(1.003907f), 0x3f81);
    assert_int_equal(pp_f32_to_bf16(-3.4e38f), 0xff80);
}

/* --- blocks to float ---------------------------------------------------------------------------------------------- */

static void blocks_have_the_reference_values(void **state)
{
    (void)state;
    static const uint32_t types[] = {PP_TYPE_F16,  PP_TYPE_BF16, PP_TYPE_Q8_0,
                                     PP_TYPE_Q4_0, PP_TYPE_Q4_K, PP_TYPE_Q6_K};
    for (int t = 0; t < 6; t++) {
        char name[64];
        snprintf(name, sizeof name, "quants/%s.safetensors", pp_type_info(types[t])->name);
        const char *path = testdata(name);
        if (!path)
            return;
        struct pp_error err;
        struct pp_safetensors *file;
        assert_ok(pp_safetensors_open(path, &file, &err), err);
        const struct pp_tensor *blocks = pp_safetensors_find(file, "blocks");
        const struct pp_tensor *values = pp_safetensors_find(file, "values");
        assert_true(blocks && values);
        int64_t n = values->ne[0];
        float got[256];
        assert_int_equal(pp_type_row_bytes(types[t], n), blocks->ne[0]);
        for (int64_t i = 0; i < blocks->ne[1]; i++) {
            uint8_t odd[1 + 512]; /* an odd address */
            memcpy(odd + 1, (const uint8_t *)blocks->data + i * blocks->ne[0], (size_t)blocks->ne[0]);
            pp_dequantize_row(types[t], odd + 1, got, n);
            assert_memory_equal(got, (const float *)values->data + i * n, (size_t)n * sizeof *got);
            assert_true(pp_row_finite(types[t], odd + 1, n));
        }
        pp_safetensors_close(file);
    }
}

/* One block each, decoded by hand. */
static void a_block_by_hand(void **state)
{
    (void)state;
    float y[256];
    uint8_t q4_0[18] = {0x00, 0x3c, 0xf1}; /* d = 1 */
    pp_dequantize_row(PP_TYPE_Q4_0, q4_0, y, 32);
    assert_true(y[0] == -7 && y[16] == 7 && y[1] == -8 && y[31] == -8);
    uint8_t q8_0[34] = {0x00, 0x40, 0x80, 0x7f}; /* d = 2 */
    pp_dequantize_row(PP_TYPE_Q8_0, q8_0, y, 32);
    assert_true(y[0] == -256 && y[1] == 254 && y[2] == 0);
    uint8_t q4_k[144] = {0x00, 0x3c, 0x00, 0x40}; /* d = 1, dmin = 2 */
    q4_k[4] = 5 | 2 << 6;                         /* scale 0 is 5; scale 4 has 2 on top */
    q4_k[8] = 7 | 1 << 6;                         /* min 0 is 7; min 4 has 1 on top */
    q4_k[12] = 3 | 9 << 4;                        /* scale 4 is 3 + 32, min 4 is 9 + 16 */
    q4_k[16] = 0x4a;
    q4_k[16 + 64] = 0x0f;
    pp_dequantize_row(PP_TYPE_Q4_K, q4_k, y, 256);
    assert_true(y[0] == 5 * 10 - 2 * 7 && y[1] == -14 && y[32] == 0 && y[128] == 35 * 15 - 2 * 25);
    uint8_t q6_k[210] = {0};
    q6_k[208] = 0x00, q6_k[209] = 0x3c; /* d = 1 */
    q6_k[192] = 0xff;                   /* scale 0 is -1 */
    q6_k[192 + 4] = 3;                  /* of weights 64 to 79 */
    q6_k[0] = 0x95;
    q6_k[128] = 0x31; /* 1 on top of weight 0, 3 on top of weight 64 */
    pp_dequantize_row(PP_TYPE_Q6_K, q6_k, y, 256);
    assert_true(y[0] == -(5 + 16 - 32) && y[1] == 32 && y[64] == 3 * (9 + 48 - 32) && y[16] == 0);
}

static void what_is_not_finite_is_found(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        int n, at; /* of a 16-bit number that counts, in the second block */
    } cases[] = {{PP_TYPE_F16, 64, 66},      {PP_TYPE_BF16, 64, 66},       {PP_TYPE_Q8_0, 64, 34},
                 {PP_TYPE_Q4_0, 64, 18},     {PP_TYPE_Q4_K, 512, 144},     {PP_TYPE_Q4_K, 512, 146},
                 {PP_TYPE_Q6_K, 512, 210 + 208}, {PP_TYPE_F32, 64, 66}};
    for (int i = 0; i < 8; i++) {
        uint8_t row[512];
        memset(row, 0x11, sizeof row);
        assert_true(pp_row_finite(cases[i].type, row, cases[i].n));
        row[cases[i].at] = 0x80;
        row[cases[i].at + 1] = cases[i].type == PP_TYPE_F32 || cases[i].type == PP_TYPE_BF16 ? 0x7f : 0xfc;
        assert_false(pp_row_finite(cases[i].type, row, cases[i].n));
    }
}

TEST_GROUP(quant)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_are_exact),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(halves_agree_with_the_hardware),
        cmocka_unit_test(brain_floats),
        cmocka_unit_test(blocks_have_the_reference_values),
        cmocka_unit_test(a_block_by_hand),
        cmocka_unit_test(what_is_not_finite_is_found),
    };
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
