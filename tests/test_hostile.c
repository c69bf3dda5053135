/* test_hostile.c - single hostile inputs: keys that are not finite, patterns and values by the thousand, no input. */
#include <float.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/cpu/ops.h"
#include "engine/kv.h"
#include "src/config.h"
#include "tests/hostile.h"
#include "tests/support.h"
#include "ui/input.h"

/* --- numbers ----------------------------------------------------------------------------------------------- */

/* NaN and infinity as keys of a broken model: what is stored must not depend on the undefined result of casting NaN. */
static void keys_that_are_no_numbers(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, FLT_MAX, 1e-40f, FLT_MIN};
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        struct pp_kv_layout layout;
        float k[32] = {1.0f, -2.0f}, v[32] = {0.5f};
        k[7] = v[31] = odd[i];
        pp_kv_layout_init_values(&layout, PP_KV_Q8, 1, 1, 32, 32);
        uint8_t *first = pp_calloc(1, layout.page_bytes), *other = pp_calloc(1, layout.page_bytes);
        assert_true(first && other);
        pp_cpu_ops(PP_ISA_SCALAR)->kv_store(&layout, first, 0, 3, k, v);
        for (int isa = PP_ISA_SCALAR; isa < PP_ISA_COUNT; isa++) {
            if (!pp_isa_runs((enum pp_isa)isa))
                continue;
            memset(other, 0, layout.page_bytes);
            pp_cpu_ops((enum pp_isa)isa)->kv_store(&layout, other, 0, 3, k, v);
            assert_memory_equal(first, other, layout.page_bytes);
        }
        pp_free(first);
        pp_free(other);
    }
}

/* --- adapters ---------------------------------------------------------------------------------------------- */

/* Each pattern is compared with each module, which would take hours with this many of both. */
static void adapter_with_many_patterns(void **state)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors", NULL};
    static const char weights[] = "\x02\0\0\0\0\0\0\0{}";
    struct pp_buf config = {0};
    struct pp_adapter *a;
    struct pp_error err;
    (void)state;
    pp_buf_str(&config, "{\"peft_type\":\"LORA\",\"alpha_pattern\":{");
    for (int i = 0; i < 3000; i++)
        pp_buf_fmt(&config, "%s\"x%d\":1", i ? "," : "", i);
    pp_buf_str(&config, "}}");
    const char *folder = hostile_folder(names);
    hostile_file(0, config.data, config.len);
    hostile_file(1, weights, sizeof weights - 1);
    assert_int_equal(pp_adapter_load(pp_engine_model(tiny_engine()), folder, &a, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "alpha_pattern"));
    pp_buf_free(&config);
}

/* --- configuration ----------------------------------------------------------------------------------------- */

/* A file of the maximum length, in which every line continues the same value: the time must be linear in the length. */
static void value_of_many_lines(void **state)
{
    enum { LINES = 200000 };
    struct pp_buf text = {0};
    struct pp_config *c;
    struct pp_error err;
    (void)state;
    pp_buf_str(&text, "[ui]\ntheme = a\n");
    for (int i = 0; i < LINES; i++)
        pp_buf_str(&text, "  b\n");
    clock_t begin = clock();
    assert_ok(pp_config_load(hostile_file(0, text.data, text.len), &c, &err), err);
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 2.0);
    assert_int_equal(pp_config_count(c), 1);
    assert_int_equal(strlen(pp_config_at(c, 0)->value), 1 + 2 * LINES);
    pp_config_free(c);
    pp_buf_free(&text);
}

/* --- keys -------------------------------------------------------------------------------------------------- */

static void keys_of_nothing(void **state)
{
    struct pp_input *in = pp_input_new();
    struct pp_key key;
    (void)state;
    assert_non_null(in);
    assert_false(pp_input_next(in, &key));
    pp_input_flush(in);
    assert_true(pp_input_feed(in, "", 0));
    assert_false(pp_input_next(in, &key));
    pp_input_free(in);
}

TEST_GROUP(hostile)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_that_are_no_numbers),
        cmocka_unit_test(adapter_with_many_patterns),
        cmocka_unit_test(value_of_many_lines),
        cmocka_unit_test(keys_of_nothing),
    };
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
