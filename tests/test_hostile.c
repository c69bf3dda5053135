#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/cpu/ops.h"
#include "engine/kv.h"
#include "src/config.h"
#include "tests/hostile.h"
#include "tests/support.h"
#include "ui/input.h"

static const struct pp_sha256 identity = {{1}};

/* --- snapshots --------------------------------------------------------------------------------------------- */

enum { HEADER = 56, KEY_BYTES_AT = 12, HASH_AT = 40 }; /* pippin-formats(5) */

static void put_hash(uint8_t *p, struct pp_hash128 h)
{
    for (int i = 0; i < 8; i++) {
        p[i] = (uint8_t)(h.lo >> (8 * i));
        p[8 + i] = (uint8_t)(h.hi >> (8 * i));
    }
}

static struct pp_seq *new_seq(void)
{
    struct pp_seq *s;
    struct pp_error err;
    assert_ok(pp_seq_new(tiny_engine(), &s, &err), err);
    return s;
}

/* A whole snapshot of no tokens whose key is these bytes, in memory that ends with it. */
static void snapshot_with_key(void **state)
{
    static const char *const keys[] = {
        "model=xx", "model=", "kv=", "", "\n\n\n", "model=\nkv=\narithmetic=\nadapter=x"};
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        size_t len = strlen(keys[i]), size = (HEADER + len + 63) / 64 * 64;
        struct pp_seq *s = new_seq();
        struct pp_error err;
        uint8_t *data = pp_calloc(1, size);
        assert_non_null(data);
        memcpy(data, "PIPPINKV\1", 9);
        data[KEY_BYTES_AT] = (uint8_t)len;
        memcpy(data + HEADER, keys[i], len);
        put_hash(data + HASH_AT, pp_hash128(data + HEADER, size - HEADER));
        assert_int_equal(pp_snapshot_load(s, &identity, data, size, &err), PP_ERR_MISMATCH);
        assert_non_null(strstr(err.text, "the model is another one"));
        assert_int_equal(pp_seq_len(s), 0);
        pp_free(data);
        pp_seq_free(s);
    }
}

/* Every byte of a saved snapshot is covered by a checksum or checked itself, but for the reserved ones. */
static void snapshot_with_one_wrong_byte(void **state)
{
    struct pp_seq *s = new_seq(), *copy = new_seq();
    struct pp_buf saved = {0};
    struct pp_error err;
    (void)state;
    for (int i = 0; i < 70; i++)
        tiny_step(s, i % TINY_VOCAB);
    assert_int_equal(pp_seq_len(s), 70);
    assert_ok(pp_snapshot_save(s, &identity, &saved, &err), err);
    for (size_t at = 0; at < saved.len; at += at < 1024 ? 1 : 97) {
        if (at >= 28 && at < 32)
            continue;
        saved.data[at] = (char)(saved.data[at] ^ 0x10);
        assert_int_not_equal(pp_snapshot_load(copy, &identity, saved.data, saved.len, &err), PP_OK);
        assert_int_equal(pp_seq_len(copy), 0);
        saved.data[at] = (char)(saved.data[at] ^ 0x10);
    }
    for (size_t n = 0; n < saved.len; n += n < 1024 ? 1 : 97) {
        assert_int_not_equal(pp_snapshot_load(copy, &identity, saved.data, n, &err), PP_OK);
        assert_int_equal(pp_seq_len(copy), 0);
    }
    assert_ok(pp_snapshot_load(copy, &identity, saved.data, saved.len, &err), err);
    assert_int_equal(pp_seq_len(copy), 70);
    pp_buf_free(&saved);
    pp_seq_free(copy);
    pp_seq_free(s);
}

/* --- numbers ----------------------------------------------------------------------------------------------- */

/* Keys that a broken model computes: what is stored must not depend on what a cast of NaN happens to give. */
static void keys_that_are_no_numbers(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, FLT_MAX, 1e-40f, FLT_MIN};
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        struct pp_kv_layout layout;
        float k[32] = {1.0f, -2.0f}, v[32] = {0.5f};
        k[7] = v[31] = odd[i];
        pp_kv_layout_init(&layout, PP_KV_Q8_0, 1, 1, 32);
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

/* Patterns are held against modules one by one: so many of both would take hours. */
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

/* As long as a file may be, of lines that each go on with the same value: the work must grow with the length, not with
 * its square. */
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
    assert_int_equal(strlen(pp_config_get(c, "ui", "theme")), 1 + 2 * LINES);
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
        cmocka_unit_test(snapshot_with_key),
        cmocka_unit_test(snapshot_with_one_wrong_byte),
        cmocka_unit_test(keys_that_are_no_numbers),
        cmocka_unit_test(adapter_with_many_patterns),
        cmocka_unit_test(value_of_many_lines),
        cmocka_unit_test(keys_of_nothing),
    };
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
