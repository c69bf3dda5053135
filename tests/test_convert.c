/* test_convert.c - conversion of folders to GGUF: models and adapters as the reference converter writes them, quantised
 * types of tensors, and what happens on errors and without memory. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "engine/adapter_file.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/export.h"
#include "engine/file_type.h"
#include "engine/quant.h"
#include "engine/source.h"
#include "tests/gguf_file.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

/* --- equality with the reference converter's files ------------------------------------------------------------- */

static void assert_same_tensors(const struct pp_gguf *ours, const struct pp_gguf *reference)
{
    assert_int_equal(pp_gguf_n_tensors(ours), pp_gguf_n_tensors(reference));
    for (size_t i = 0; i < pp_gguf_n_tensors(reference); i++) {
        const struct pp_tensor *want = pp_gguf_tensor_at(reference, i), *have = pp_gguf_tensor(ours, want->name);
        if (!have)
            fail_msg("%s is missing", want->name);
        assert_int_equal(have->type, want->type);
        assert_int_equal(have->n_dims, want->n_dims);
        assert_memory_equal(have->ne, want->ne, sizeof want->ne);
        if (strcmp(want->name, "rope_freqs.weight") == 0) { /* a computed value: the last bit may differ */
            for (int64_t k = 0; k < want->ne[0]; k++)
                assert_true(fabsf(((const float *)have->data)[k] / ((const float *)want->data)[k] - 1.0f) < 1e-6f);
        } else if (memcmp(have->data, want->data, want->size) != 0) {
            fail_msg("%s differs", want->name);
        }
    }
}

/* Every metadata entry of the reference is there with the same value; more may be. */
static void assert_same_metadata(const struct pp_gguf *ours, const struct pp_gguf *reference)
{
    for (size_t i = 0; i < pp_gguf_n_kv(reference); i++) {
        struct pp_str key = pp_gguf_kv_key(reference, i), want = pp_gguf_kv_raw(reference, i);
        size_t k = 0;
        while (k < pp_gguf_n_kv(ours) && (pp_gguf_kv_key(ours, k).len != key.len ||
                                          memcmp(pp_gguf_kv_key(ours, k).data, key.data, key.len) != 0))
            k++;
        if (k == pp_gguf_n_kv(ours))
            fail_msg("%.*s is missing", (int)key.len, key.data);
        struct pp_str have = pp_gguf_kv_raw(ours, k);
        if (pp_gguf_kv_type(ours, k) != pp_gguf_kv_type(reference, i) || have.len != want.len ||
            memcmp(have.data, want.data, want.len) != 0)
            fail_msg("%.*s differs", (int)key.len, key.data);
    }
}

static void assert_converts(const char *src, const char *reference, const char *base)
{
    struct pp_convert_options opt = {.out_type = "F32", .base = base};
    struct pp_gguf *have, *want;
    struct pp_error err;
    const char *out = test_path("converted.gguf");
    assert_ok(pp_convert_to_gguf(src, out, &opt, &err), err);
    assert_ok(pp_gguf_open(out, &have, &err), err);
    assert_ok(pp_gguf_open(reference, &want, &err), err);
    assert_same_tensors(have, want);
    assert_same_metadata(have, want);
    pp_gguf_close(have);
    pp_gguf_close(want);
}

static void test_models(void **state)
{
    static const char *const models[] = {"llama",        "llama-bias", "llama-k256",
                                         "llama-linear", "llama-yarn", "llama3-rope"};
    char dir[128], file[128];
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        snprintf(dir, sizeof dir, "architectures/%s", models[i]);
        snprintf(file, sizeof file, "architectures/%s/model.gguf", models[i]);
        const char *src = testdata(dir), *reference = testdata(file);
        if (!src || !reference)
            skip();
        assert_converts(src, reference, NULL);
    }
}

static void test_adapters(void **state)
{
    static const char *const models[] = {"llama", "llama-k256"};
    static const char *const adapters[] = {"lora-alpha", "lora-beta"};
    char dir[128], file[128];
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        snprintf(dir, sizeof dir, "architectures/%s/%s", models[i / 2], adapters[i % 2]);
        snprintf(file, sizeof file, "architectures/%s/%s.gguf", models[i / 2], adapters[i % 2]);
        const char *src = testdata(dir), *reference = testdata(file);
        if (!src || !reference)
            skip();
        assert_converts(src, reference, NULL); /* the folder above is the base model */
    }
}

static void test_adapter_base(void **state)
{
    const char *src = testdata("starter/lora-bard");
    struct pp_convert_options opt = {0};
    struct pp_adapter_file *before, *after;
    struct pp_error err;
    (void)state;
    if (!src)
        skip();
    const char *out = test_path("bard.gguf");
    assert_int_equal(pp_convert_to_gguf(src, out, &opt, &err), PP_ERR_USAGE); /* there is no base model */
    opt.base = testdata("starter/draft");
    assert_int_equal(pp_convert_to_gguf(src, out, &opt, &err), PP_ERR_MISMATCH);
    assert_int_not_equal(access(out, F_OK), 0);
    opt.base = testdata("starter/target");
    assert_ok(pp_convert_to_gguf(src, out, &opt, &err), err);
    assert_ok(pp_adapter_file_open(src, &before, &err), err);
    assert_ok(pp_adapter_file_open(out, &after, &err), err);
    assert_int_equal(pp_adapter_file_n(after), pp_adapter_file_n(before));
    assert_int_equal(pp_adapter_file_at(after, 0)->a.type, PP_TYPE_F16); /* as stored */
    assert_true(pp_adapter_file_at(after, 0)->scale == pp_adapter_file_at(before, 0)->scale);
    pp_adapter_file_close(before);
    pp_adapter_file_close(after);
}

/* --- without reference data -------------------------------------------------------------------------------------- */

enum { ROWS = 6, COLS = 256 };

static float weight(int64_t i)
{
    return (float)((i * 7919) % 255 - 127) / 256.0f; /* exact in bf16 and f16 */
}

static void add_keys(struct pp_gguf_writer *w)
{
    static const struct {
        const char *key;
        uint32_t v;
    } keys[] = {{"llama.block_count", 1},           {"llama.context_length", 64},      {"llama.embedding_length", COLS},
                {"llama.feed_forward_length", 8},   {"llama.attention.head_count", 2}, {"llama.vocab_size", ROWS},
                {"general.alignment", 32},          {"general.file_type", 0}};
    pp_gguf_add_str(w, "general.architecture", "llama", 5);
    pp_gguf_add_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        pp_gguf_add_u32(w, keys[i].key, keys[i].v);
}

/* A model with two matrices (rows of 256 and of 48), one whose rows fit no block, and a norm. */
static const char *small_model(void)
{
    float x[ROWS * COLS];
    const char *path = test_path("small.gguf");
    for (int64_t i = 0; i < ROWS * COLS; i++)
        x[i] = weight(i);
    const struct pp_tensor tensors[] = {
        float_tensor("token_embd.weight", x, COLS, ROWS, 0),  float_tensor("blk.0.attn_q.weight", x, COLS, ROWS, 0),
        float_tensor("blk.0.ffn_up.weight", x, 96, 2, 0),     float_tensor("blk.0.ffn_gate.weight", x, 20, 2, 0),
        float_tensor("output_norm.weight", x, COLS, 0, 0),
    };
    struct pp_gguf_writer *w = gguf_file_begin(path);
    add_keys(w);
    gguf_file_end(w, tensors, sizeof tensors / sizeof *tensors);
    return path;
}

static void assert_type(const struct pp_source *s, const char *name, uint32_t type)
{
    const struct pp_tensor *t = pp_source_tensor(s, name);
    assert_non_null(t);
    if (t->type != type)
        fail_msg("%s is %s, not %s", name, pp_type_info(t->type)->name, pp_type_info(type)->name);
}

/* Largest difference between a tensor and the values it was made from. */
static float worst(const struct pp_source *s, const char *name)
{
    const struct pp_tensor *t = pp_source_tensor(s, name);
    float row[COLS], most = 0;
    for (int64_t r = 0; r < t->ne[1]; r++) {
        pp_dequantize_row(t->type, (const char *)t->data + (size_t)r * pp_type_row_bytes(t->type, t->ne[0]), row,
                          t->ne[0]);
        for (int64_t c = 0; c < t->ne[0]; c++)
            most = fmaxf(most, fabsf(row[c] - weight(r * t->ne[0] + c)));
    }
    return most;
}

struct seen {
    size_t calls, last, total;
};

static void note_progress(void *user, const char *tensor, size_t done, size_t total)
{
    struct seen *seen = user;
    assert_non_null(tensor);
    assert_true(done >= seen->last && done <= total);
    seen->calls++;
    seen->last = done;
    seen->total = total;
}

static void test_quantize_small(void **state)
{
    static const struct {
        const char *name;
        uint32_t embd, q, up, gate; /* up's rows can be divided into blocks of 32, gate's into none */
        float worst;
    } cases[] = {
        {"Q8_0", PP_TYPE_Q8_0, PP_TYPE_Q8_0, PP_TYPE_Q8_0, PP_TYPE_F16, 0.003f},
        {"q4_k_m", PP_TYPE_Q6_K, PP_TYPE_Q4_K, PP_TYPE_Q5_0, PP_TYPE_F16, 0.05f},
        {"Q5_K_M", PP_TYPE_Q6_K, PP_TYPE_Q5_K, PP_TYPE_Q5_1, PP_TYPE_F16, 0.03f},
        {"Q3_K_L", PP_TYPE_Q6_K, PP_TYPE_Q3_K, PP_TYPE_IQ4_NL, PP_TYPE_F16, 0.12f},
        {"Q2_K", PP_TYPE_Q6_K, PP_TYPE_Q2_K, PP_TYPE_IQ4_NL, PP_TYPE_F16, 0.25f},
        {"IQ4_XS", PP_TYPE_Q6_K, PP_TYPE_IQ4_XS, PP_TYPE_IQ4_NL, PP_TYPE_F16, 0.07f},
        {"Q4_1", PP_TYPE_Q6_K, PP_TYPE_Q4_1, PP_TYPE_Q4_1, PP_TYPE_F16, 0.07f},
        {"Q5_0", PP_TYPE_Q6_K, PP_TYPE_Q5_0, PP_TYPE_Q5_0, PP_TYPE_F16, 0.04f},
        {"Q4_0", PP_TYPE_Q6_K, PP_TYPE_Q4_0, PP_TYPE_Q4_0, PP_TYPE_F16, 0.07f},
        {"Q6_K", PP_TYPE_Q6_K, PP_TYPE_Q6_K, PP_TYPE_Q8_0, PP_TYPE_F16, 0.02f},
        {"F16", PP_TYPE_F16, PP_TYPE_F16, PP_TYPE_F16, PP_TYPE_F16, 0.0f},
        {"BF16", PP_TYPE_BF16, PP_TYPE_BF16, PP_TYPE_BF16, PP_TYPE_BF16, 0.0f},
    };
    struct pp_source *s;
    struct pp_error err;
    const char *src = small_model();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct seen seen = {0};
        struct pp_convert_options opt = {.progress = note_progress, .user = &seen};
        const char *out = test_path("quantized.gguf");
        assert_ok(pp_quantize_file(src, out, cases[i].name, &opt, &err), err);
        assert_int_equal(seen.calls, 6);
        assert_int_equal(seen.last, seen.total);
        assert_ok(pp_source_open(out, &s, &err), err);
        assert_int_equal(strcasecmp(pp_source_type_name(s), cases[i].name), 0);
        assert_false(pp_gguf_has(pp_source_gguf(s), "general.alignment"));
        assert_type(s, "token_embd.weight", cases[i].embd);
        assert_type(s, "blk.0.attn_q.weight", cases[i].q);
        assert_type(s, "blk.0.ffn_up.weight", cases[i].up);
        assert_type(s, "blk.0.ffn_gate.weight", cases[i].gate);
        assert_type(s, "output_norm.weight", PP_TYPE_F32);
        float q = worst(s, "blk.0.attn_q.weight"), up = worst(s, "blk.0.ffn_up.weight");
        if (q > cases[i].worst || up > cases[i].worst)
            fail_msg("%s: values are off by %g and %g", cases[i].name, (double)q, (double)up);
        pp_source_close(s);
    }
    /* from a quantised file to another type, with the loss that this means */
    assert_ok(pp_quantize_file(src, test_path("q8.gguf"), "Q8_0", NULL, &err), err);
    const char *again = test_path("again.gguf");
    assert_ok(pp_quantize_file(test_path("q8.gguf"), again, "F32", NULL, &err), err);
    assert_ok(pp_source_open(again, &s, &err), err);
    assert_type(s, "blk.0.attn_q.weight", PP_TYPE_F32);
    assert_true(worst(s, "blk.0.attn_q.weight") <= 0.003f);
    pp_source_close(s);
}

/* A type without its mixture's size means the M mixture, as in --quant and in llama-quantize. */
static void test_mixtures_by_type(void **state)
{
    static const char *const names[][2] = {{"Q3_K", "Q3_K_M"}, {"q4_k", "Q4_K_M"}, {"Q5_k", "Q5_K_M"}};
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_ok(pp_quantize_file(small_model(), test_path("mixture.gguf"), names[i][0], NULL, &err), err);
        assert_ok(pp_source_open(test_path("mixture.gguf"), &s, &err), err);
        assert_string_equal(pp_source_type_name(s), names[i][1]);
        pp_source_close(s);
    }
}

/* Experts' matrices one by one become one tensor, once, however often a file spells the number of the first. */
static void test_experts_named_twice(void **state)
{
    static const char *const names[] = {"blk.0.ffn_up.0.weight", "blk.0.ffn_up.00.weight", "blk.0.ffn_up.000.weight",
                                        "blk.0.ffn_up.1.weight"};
    enum { N = sizeof names / sizeof *names };
    struct pp_tensor tensors[N];
    struct pp_source *s;
    struct pp_error err;
    float x[4] = {1, 2, 3, 4};
    const char *path = test_path("experts.gguf"), *out = test_path("stacked.gguf");
    (void)state;
    struct pp_gguf_writer *w = gguf_file_begin(path);
    add_keys(w);
    pp_gguf_add_u32(w, "llama.expert_count", 2);
    pp_gguf_add_u32(w, "llama.expert_used_count", 1);
    for (int i = 0; i < N; i++)
        tensors[i] = float_tensor(names[i], x, 2, 2, 0);
    gguf_file_end(w, tensors, N);
    assert_ok(pp_quantize_file(path, out, "F32", NULL, &err), err);
    assert_ok(pp_source_open(out, &s, &err), err);
    assert_int_equal(pp_source_n_tensors(s), 3); /* two more tensors that are not experts' */
    const struct pp_tensor *t = pp_source_tensor(s, "blk.0.ffn_up_exps.weight");
    assert_non_null(t);
    assert_int_equal(t->ne[2], 2);
    pp_source_close(s);
}

static void test_errors(void **state)
{
    struct pp_cancel stop = {0};
    struct pp_convert_options opt = {.cancel = &stop}, wrong = {.out_type = "Q8_0"};
    struct pp_error err;
    const char *src = small_model(), *out = test_path("none.gguf");
    (void)state;
    assert_int_equal(pp_quantize_file(src, out, "Q9_Z", NULL, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "Q4_K_M"));
    assert_int_equal(pp_convert_to_gguf(src, out, &wrong, &err), PP_ERR_USAGE);
    pp_cancel_request(&stop);
    assert_int_equal(pp_quantize_file(src, out, "Q8_0", &opt, &err), PP_ERR_CANCELLED);
    assert_int_equal(pp_convert_to_gguf("/proc/nonexistent", out, NULL, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_quantize_file(src, test_path("nowhere/out.gguf"), "Q8_0", NULL, &err), PP_ERR_IO);
    assert_int_not_equal(access(out, F_OK), 0);
    assert_int_equal(pp_quantize_file(src, out, "Q9_Z", NULL, &err), PP_ERR_USAGE);
    size_t n = 0;
    for (const char *type; (type = pp_quantize_type(n)); n++) {
        assert_true(pp_file_type_by_name(type) >= 0);
        assert_non_null(strstr(err.text, type)); /* the error lists all types */
    }
    assert_int_equal(n, 20);
}

static void test_out_of_memory(void **state)
{
    struct pp_error err;
    const char *src = small_model(), *out = test_path("memory.gguf");
    enum pp_code code = PP_ERR_NOMEM;
    (void)state;
    for (uint64_t at = 1; code != PP_OK && at < 300; at++) {
        pp_mem_fail_at(at, 0);
        code = pp_quantize_file(src, out, "Q8_0", NULL, &err);
        pp_mem_fail_at(0, 0);
        assert_true(code == PP_OK || code == PP_ERR_NOMEM);
        assert_true(code == PP_OK || access(out, F_OK) != 0);
    }
    assert_int_equal(code, PP_OK);
}

/* --- which tensor gets which type -------------------------------------------------------------------------------- */

/* For "blk.3.attn_v.weight": returns 3, and "blk.*.attn_v.weight" in `pattern`. -1: the tensor is outside the
 * layers. */
static int pattern_of(const char *name, char *pattern, size_t size)
{
    int layer, used = 0;
    if (sscanf(name, "blk.%d.%n", &layer, &used) == 1 && used) {
        snprintf(pattern, size, "blk.*.%s", name + used);
        return layer;
    }
    snprintf(pattern, size, "%s", name);
    return -1;
}

/* The name of the type that the reference gives a tensor; those that it does not list are F32. */
static const char *reference_type(const cJSON *types, const char *name)
{
    char pattern[128];
    int layer = pattern_of(name, pattern, sizeof pattern);
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(types, pattern);
    if (cJSON_IsString(entry))
        return entry->valuestring;
    for (const cJSON *type = entry ? entry->child : NULL; type; type = type->next)
        for (const cJSON *l = type->child; l; l = l->next)
            if (l->valueint == layer)
                return type->string;
    return "F32";
}

static void test_plan(void **state)
{
    static const char *const mixes[] = {"Q8_0",   "Q6_K",   "Q5_K_M", "Q4_K_M", "Q4_0",
                                        "IQ4_XS", "Q3_K_M", "Q2_K",   "BF16",   "F32"};
    const char *file = testdata("quants/starter_reference.json"), *dir = testdata("starter/target");
    struct pp_source *s;
    struct pp_error err;
    uint32_t types[128];
    char *text;
    size_t size;
    (void)state;
    if (!file || !dir)
        skip();
    assert_ok(pp_read_file(file, 1 << 20, &text, &size, &err), err);
    cJSON *reference = cJSON_ParseWithLength(text, size);
    assert_non_null(reference);
    assert_ok(pp_source_open(dir, &s, &err), err);
    assert_true(pp_source_n_tensors(s) <= 128);
    for (size_t m = 0; m < sizeof mixes / sizeof *mixes; m++) {
        const cJSON *mix = cJSON_GetObjectItem(cJSON_GetObjectItem(reference, "types"), mixes[m]);
        const cJSON *want = cJSON_GetObjectItem(mix, "tensor_types");
        assert_non_null(want);
        pp_quantize_plan(s, pp_file_type_by_name(mixes[m]), types);
        for (size_t i = 0; i < pp_source_n_tensors(s); i++) {
            const char *name = pp_source_tensor_at(s, i)->name, *have = pp_type_info(types[i])->name;
            if (strcmp(have, reference_type(want, name)) != 0)
                fail_msg("%s: %s is %s, not %s", mixes[m], name, have, reference_type(want, name));
        }
    }
    pp_source_close(s);
    cJSON_Delete(reference);
    pp_free(text);
}

TEST_GROUP(convert)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),         cmocka_unit_test(test_adapters), cmocka_unit_test(test_adapter_base),
        cmocka_unit_test(test_quantize_small), cmocka_unit_test(test_errors),   cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_plan),           cmocka_unit_test(test_mixtures_by_type),
        cmocka_unit_test(test_experts_named_twice),
    };
    return cmocka_run_group_tests_name("convert", tests, NULL, NULL);
}
