/* test_soft_amx.c - the software model of the tile instructions against values worked out by hand. */
#if defined(__x86_64__)
#include "tests/soft_amx.h"

#include "engine/cpu/isa.h"
#include "tests/support.h"

struct config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Tiles 0 [2 x 2 sums], 1 [2 x 8 bytes], 2 [2 x 8 bytes]; tile 3 is not configured. */
static void configure(void)
{
    const struct config c = {.palette = 1, .row_bytes = {8, 8, 8}, .rows = {2, 2, 2}};
    _tile_loadconfig(&c);
}

static void byte_products(void **state)
{
    (void)state;
    static const uint8_t a[2][16] = {{0x80, 0xff, 1, 2, 3, 4, 5, 6}, {0x7f, 0, 0, 0, 0, 0, 0, 0x90}};
    static const uint8_t b[2][8] = {{0x80, 1, 2, 3, 0xff, 0, 0, 0}, {1, 1, 1, 1, 0, 0, 0, 0x81}};
    /* Row 0, column 0: 0x80 * 0x80 + 0xff * 1 + 1 * 2 + 2 * 3 + 18, and so on, depending on which operands are
     * signed. */
    static const int32_t expect[4][2][2] = {
        /* both signed */ {{16384 - 1 + 8 + 18, 128 - 6 * 127}, {-127 * 128 - 112, -127 + 112 * 127}},
        /* a signed */ {{-16384 - 1 + 8 + 18, -128 * 255 + 6 * 129}, {127 * 128 - 112, 127 * 255 - 112 * 129}},
        /* b signed */ {{-16384 + 255 + 8 + 18, -128 - 6 * 127}, {-127 * 128 + 144, -127 - 144 * 127}},
        /* neither */ {{16384 + 255 + 8 + 18, 128 * 255 + 6 * 129}, {127 * 128 + 144, 127 * 255 + 144 * 129}},
    };
    configure();
    _tile_loadd(1, a, 16);
    _tile_loadd(2, b, 8);
    for (int i = 0; i < 4; i++) {
        int32_t c[2][4] = {{7, -7}, {INT32_MAX, 0}};
        _tile_loadd(0, c, 16);
        if (i == 0)
            _tile_dpbssd(0, 1, 2);
        else if (i == 1)
            _tile_dpbsud(0, 1, 2);
        else if (i == 2)
            _tile_dpbusd(0, 1, 2);
        else
            _tile_dpbuud(0, 1, 2);
        c[0][2] = 99;
        _tile_stored(0, c, 16);
        assert_int_equal(c[0][0], 7 + expect[i][0][0]);
        assert_int_equal(c[0][1], -7 + expect[i][0][1]);
        assert_int_equal((uint32_t)c[1][0], (uint32_t)INT32_MAX + (uint32_t)expect[i][1][0]); /* wraps around */
        assert_int_equal(c[1][1], expect[i][1][1]);
        assert_int_equal(c[0][2], 99); /* memory past the tile's columns is not written */
    }
    _tile_zero(0);
    int32_t c[2][2] = {{1, 1}, {1, 1}};
    _tile_stored(0, c, 8);
    assert_true(c[0][0] == 0 && c[1][1] == 0);
    _tile_release();
}

static uint16_t bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* One row of four activations with one column of four weights, added to c. */
static float product(const float *x, const float *w, float c)
{
    const struct config shapes = {.palette = 1, .row_bytes = {4, 8, 4}, .rows = {1, 1, 2}};
    uint16_t a[4], b[2][2];
    for (int i = 0; i < 4; i++) {
        a[i] = bf16(x[i]);
        b[i / 2][i % 2] = bf16(w[i]);
    }
    _tile_loadconfig(&shapes);
    _tile_loadd(0, &c, 4);
    _tile_loadd(1, a, 8);
    _tile_loadd(2, b, 4);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, &c, 4);
    _tile_release();
    return c;
}

static void bfloat16_products(void **state)
{
    (void)state;
    const float ones[] = {1, 1, 1, 1};
    /* Even elements (1 and 2^-24) are summed first: to 1, a tie that goes to the even side. */
    assert_true(product((const float[]){1, 0, 0x1p-24f, 0}, ones, 0) == 1);
    /* An odd 2^-23 comes after that. */
    assert_true(product((const float[]){1, 0x1p-23f, 0x1p-24f, 0}, ones, 0) == 1 + 0x1p-23f);
    /* 2^-24 twice among the odd ones makes 2^-23 before it meets the 1. */
    assert_true(product((const float[]){1, 0x1p-24f, 0, 0x1p-24f}, ones, 0) == 1 + 0x1p-23f);
    assert_true(product((const float[]){1, 0, 0, 0x1p-24f}, ones, 0) == 1);
    /* c comes last: the even and odd sum has lost the 2^-24 by then. */
    assert_true(product((const float[]){1, 0, 0, 0x1p-24f}, ones, -1) == 0);
    /* Subnormals are zeros: as inputs, results and sums, also where a float could hold them. */
    assert_true(product((const float[]){0x1p-127f, 0, 0, 0}, (const float[]){0x1p+100f, 0, 0, 0}, 0) == 0);
    assert_true(product((const float[]){0x1p-100f, 0, 0, 0}, (const float[]){0x1p-27f, 0, 0, 0}, 0) == 0);
    assert_true(product((const float[]){0, 0, 0, 0}, ones, 0x1p-130f) == 0);
    assert_true(product((const float[]){0x1.8p-126f, 0, 0, 0}, ones, -0x1p-126f) == 0);
    /* A product below the smallest float still counts where the sum is large enough. */
    assert_true(product((const float[]){0x1p-126f, 0, 0x1p-100f, 0}, (const float[]){1, 0, 0x1p-49f, 0}, 0) ==
                0x1.000002p-126f);
    assert_true(isnan(product((const float[]){INFINITY, 0, 0, 0}, (const float[]){0, 0, 0, 0}, 0)));
}

TEST_GROUP(soft_amx)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_products),
        cmocka_unit_test(bfloat16_products),
    };
    if (!pp_isa_runs(PP_ISA_AVX2)) {
        printf("skip: the model is compiled for AVX2\n");
        return 0;
    }
    return cmocka_run_group_tests_name("soft_amx", tests, NULL, NULL);
}
#else
typedef int pp_test_soft_amx_is_for_x86_64;
#endif
