/* test_folders.c - models as folders: of GGUF files and of folders, in floats and in MLX's groups, and back again. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/export.h"
#include "engine/rows.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "engine/text.h"
#include "tests/packed_folder.h"
#include "tests/support.h"

/* A path that nothing is at. */
static const char *fresh(const char *name)
{
    static char paths[8][300];
    static int next;
    char *path = paths[next % 8];
    snprintf(path, sizeof paths[0], "%s/%d-%s", test_tmpdir(), next++, name);
    return path;
}

static const char *data_of(const char *family, const char *file)
{
    char path[100];
    snprintf(path, sizeof path, "architectures/%s%s%s", family, *file ? "/" : "", file);
    return testdata(path);
}

/* Other programs refuse files with gaps between tensors. */
static void assert_no_gaps(const char *folder)
{
    char path[400];
    struct pp_safetensors *s;
    struct pp_error err;
    const uint8_t *begin = NULL, *end = NULL;
    size_t sum = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(pp_safetensors_open(path, &s, &err), err);
    for (size_t i = 0; i < pp_safetensors_n(s); i++) {
        const struct pp_tensor *t = pp_safetensors_at(s, i);
        const uint8_t *data = t->data;
        begin = !begin || data < begin ? data : begin;
        end = !end || data + t->size > end ? data + t->size : end;
        sum += t->size;
    }
    assert_int_equal((size_t)(end - begin), sum);
    pp_safetensors_close(s);
}

static const char *folder_made_of(const char *src, int bits, const char *out_type)
{
    const struct pp_convert_options opt = {.bits = bits, .out_type = out_type};
    const char *dst = fresh("folder");
    struct pp_error err;
    assert_ok(pp_convert_to_folder(src, dst, &opt, &err), err);
    assert_no_gaps(dst);
    return dst;
}

static const char *file_made_of(const char *src)
{
    const char *dst = fresh("model.gguf");
    struct pp_error err;
    assert_ok(pp_convert_to_gguf(src, dst, &(struct pp_convert_options){0}, &err), err);
    return dst;
}

static float *floats_of(const struct pp_tensor *t)
{
    const int64_t n_rows = t->ne[1] * t->ne[2];
    float *f = calloc((size_t)(t->ne[0] * n_rows), sizeof *f);
    struct pp_error err;
    assert_non_null(f);
    assert_ok(pp_tensor_floats(t, 0, n_rows, f, &err), err);
    return f;
}

/* Every weight of both is the same, up to `most` of the tensor's mean; rows of q and k only where `all`. */
static void assert_same_weights(const char *a, const char *b, double most, bool all)
{
    struct pp_source *x, *y;
    struct pp_error err;
    assert_ok(pp_source_open(a, &x, &err), err);
    assert_ok(pp_source_open(b, &y, &err), err);
    assert_int_equal(pp_source_n_tensors(x), pp_source_n_tensors(y));
    for (size_t i = 0; i < pp_source_n_tensors(x); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(x, i), *u = pp_source_tensor(y, t->name);
        assert_non_null(u);
        assert_memory_equal(t->ne, u->ne, sizeof t->ne);
        if (!all && (strstr(t->name, "attn_q.") || strstr(t->name, "attn_k.")))
            continue;
        float *f = floats_of(t), *g = floats_of(u);
        const double d = difference(f, g, t->ne[0] * t->ne[1] * t->ne[2]);
        if (!(d <= most))
            fail_msg("%s of %s and %s differ by %g", t->name, a, b, d);
        free(f);
        free(g);
    }
    pp_source_close(x);
    pp_source_close(y);
}

static void assert_same_answers(const char *family, const char *a, const char *b, double most)
{
    int64_t n, m;
    float *x = logits_of(family, a, &n), *y = logits_of(family, b, &m);
    assert_int_equal(n, m);
    const double d = difference(x, y, n);
    if (!(d <= most))
        fail_msg("%s and %s: the logits differ by %.5f", a, b, d);
    free(x);
    free(y);
}

static void assert_same_ids(const char *a, const char *b)
{
    static const char *const texts[] = {"Hello, world! It's 12345 o'clock.\n\n  Two  spaces", "x", "  lead",
                                        " caf\xc3\xa9 \xe4\xb8\xad", "<s>tags</s> <|im_end|>"};
    struct pp_tokenizer *x, *y;
    struct pp_error err;
    assert_ok(pp_tokenizer_open(a, &x, &err), err);
    assert_ok(pp_tokenizer_open(b, &y, &err), err);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int32_t *p, *q;
        size_t n, m;
        assert_ok(pp_tokenize(x, texts[i], strlen(texts[i]), PP_TOKENIZE_BOS, &p, &n, &err), err);
        assert_ok(pp_tokenize(y, texts[i], strlen(texts[i]), PP_TOKENIZE_BOS, &q, &m, &err), err);
        if (n != m || memcmp(p, q, n * sizeof *p) != 0)
            fail_msg("%s and %s: other ids for \"%s\"", a, b, texts[i]);
        pp_free(p);
        pp_free(q);
    }
    pp_tokenizer_free(x);
    pp_tokenizer_free(y);
}

/* --- floats ------------------------------------------------------------------------------------------------------ */

/* Of a GGUF file: the weights of the folder that it was made of, and its answers; and GGUF again. */
static void of_files(void **state)
{
    static const char *const families[] = {"llama", "llama-k256", "llama-bias", "llama-linear", "llama-yarn", "qwen2",
                                           "qwen3"};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *original = data_of(families[i], ""), *file = data_of(families[i], "model.gguf");
        const char *folder = folder_made_of(file, 0, NULL);
        assert_same_weights(folder, original, 0, true);
        assert_same_answers(families[i], folder, original, 1e-5);
        assert_same_ids(folder, file);
        const char *again = file_made_of(folder);
        assert_same_weights(again, file, 0, true);
        assert_same_ids(again, file);
    }
}

/* Of folders: what is in floats stays as it is, bits and types; what is quantised becomes what it means. */
static void of_folders(void **state)
{
    static const char *const families[] = {"llama-k256", "qwen3", "mixtral", "gemma2", "olmo2", "starcoder2"};
    static const char *const forms[] = {"gptq-order", "mlx-mixed", "nf4-double", "awq"};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *original = data_of(families[i], ""), *folder = folder_made_of(original, 0, NULL);
        assert_same_weights(folder, original, 0, true);
        assert_same_ids(folder, original);
        assert_same_answers(families[i], folder, original, 0);
    }
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *packed = fresh("packed"), *floats = fresh("floats");
        packed_folder("llama-k256", packed_form(forms[i]), &(struct packed_options){0}, packed, floats);
        const char *folder = folder_made_of(packed, 0, "F32");
        assert_same_weights(folder, floats, 1e-6, true);
        assert_same_answers("llama-k256", folder, floats, 1e-4);
    }
}

/* --- MLX --------------------------------------------------------------------------------------------------------- */

/* The mean error of rounding to 2^bits steps, beside the weights of such models. */
static void in_groups(void **state)
{
    static const struct {
        const char *family;
        int bits;
        double weights;
    } cases[] = {{"llama-k256", 8, 0.008}, {"llama-k256", 4, 0.13}, {"qwen2", 4, 0.13}, {"gemma2", 8, 0.008}};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *original = data_of(cases[i].family, "");
        const char *folder = folder_made_of(original, cases[i].bits, NULL);
        assert_same_weights(folder, original, cases[i].weights, true);
        assert_same_ids(folder, original);
        const char *file = file_made_of(folder);
        assert_same_answers(cases[i].family, file, folder, 0.02);
        assert_same_answers(cases[i].family, folder, original, cases[i].bits == 8 ? 0.1 : 0.8);
    }
}

/* Integers that fit stay: Q4_0 and Q4_1 of a file, and MLX's own, there and back. */
static void integers_stay(void **state)
{
    static const char *const types[] = {"Q4_0", "Q4_1"};
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < 2; i++) {
        const char *file = fresh("quantised.gguf");
        const struct pp_convert_options opt = {0};
        assert_ok(pp_quantize_file(data_of("llama-k256", "model.gguf"), file, types[i], &opt, &err), err);
        const char *folder = folder_made_of(file, 4, NULL), *again = file_made_of(folder);
        struct pp_source *s, *t;
        assert_ok(pp_source_open(again, &s, &err), err);
        assert_ok(pp_source_open(file, &t, &err), err);
        for (size_t k = 0; k < pp_source_n_tensors(s); k++) {
            const struct pp_tensor *a = pp_source_tensor_at(s, k), *b = pp_source_tensor(t, a->name);
            if (b->type != PP_TYPE_Q4_0 && b->type != PP_TYPE_Q4_1)
                continue;
            float *f = floats_of(a), *g = floats_of(b);
            assert_true(difference(f, g, a->ne[0] * a->ne[1]) == 0); /* a zero may have another sign */
            free(f);
            free(g);
        }
        pp_source_close(s);
        pp_source_close(t);
    }
    const char *packed = fresh("packed");
    packed_folder("llama-k256", packed_form("mlx-2"), &(struct packed_options){0}, packed, NULL);
    const char *folder = folder_made_of(file_made_of(packed), 4, NULL);
    assert_same_weights(folder, packed, 0, true);
}

/* --- what cannot be ---------------------------------------------------------------------------------------------- */

static void refusals(void **state)
{
    static const struct {
        const char *family, *file;
        struct pp_convert_options opt;
        const char *word;
    } cases[] = {
        {"mixtral", "model.gguf", {0}, "with experts"},
        {"llama3-rope", "model.gguf", {0}, "rope_freqs"},
        {"phi2", "model.gguf", {0}, "phi2"},
        {"gpt2", "", {0}, "another order"},
        {"llama", "", {.out_type = "Q8_0"}, "Q8_0"},
        {"llama", "", {.bits = 5}, "4 or 8"},
    };
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *dst = fresh("refused");
        const char *src = data_of(cases[i].family, cases[i].file);
        const enum pp_code code = pp_convert_to_folder(src, dst, &cases[i].opt, &err);
        if (code == PP_OK || !strstr(err.text, cases[i].word))
            fail_msg("%s: \"%s\", which does not mention %s", cases[i].family, err.text, cases[i].word);
        char config[400];
        struct stat st;
        snprintf(config, sizeof config, "%s/config.json", dst);
        assert_int_not_equal(stat(config, &st), 0); /* what is left is no model */
    }
    const char *there = folder_made_of(data_of("llama", ""), 0, NULL);
    assert_int_equal(pp_convert_to_folder(data_of("llama", ""), there, &cases[0].opt, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "already"));
}

/* Stopped, or out of memory anywhere: an error, and no model. */
static void stopped(void **state)
{
    struct pp_cancel cancel = {0};
    const struct pp_convert_options opt = {.cancel = &cancel, .bits = 4};
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    pp_cancel_request(&cancel);
    assert_int_equal(pp_convert_to_folder(data_of("llama", "model.gguf"), fresh("stopped"), &opt, &err),
                     PP_ERR_CANCELLED);
    pp_cancel_reset(&cancel);
    uint64_t n = pp_mem_count();
    assert_ok(pp_convert_to_folder(data_of("llama", "model.gguf"), fresh("whole"), &opt, &err), err);
    n = pp_mem_count() - n;
    for (uint64_t at = 1; at <= n; at += 1 + n / 30) {
        pp_mem_fail_at(at, 0);
        pp_convert_to_folder(data_of("llama", "model.gguf"), fresh("starved"), &opt, &err);
        pp_mem_fail_at(0, 0);
    }
}

/* What is let go of is there again: of a file, and of matrices that were turned round when it was opened. */
static void let_go(void **state)
{
    static const char *const models[] = {"llama-k256", "gpt2"};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < 2; i++) {
        struct pp_source *s;
        struct pp_error err;
        assert_ok(pp_source_open(data_of(models[i], ""), &s, &err), err);
        for (size_t k = 0; k < pp_source_n_tensors(s); k++) {
            const struct pp_tensor *t = pp_source_tensor_at(s, k);
            const int64_t n_rows = t->ne[1] * t->ne[2];
            float *f = floats_of(t);
            pp_source_let_go(s, t, 0, n_rows);
            float *g = floats_of(t);
            assert_memory_equal(f, g, (size_t)(t->ne[0] * n_rows) * sizeof *f);
            free(f);
            free(g);
        }
        pp_source_close(s);
    }
}

TEST_GROUP(folders)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_files),      cmocka_unit_test(of_folders), cmocka_unit_test(in_groups),
        cmocka_unit_test(integers_stay), cmocka_unit_test(refusals),   cmocka_unit_test(stopped),
        cmocka_unit_test(let_go),
    };
    return cmocka_run_group_tests_name("folders", tests, NULL, NULL);
}
