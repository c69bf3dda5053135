/* test_packed.c - folders quantised by other programs: every weight has the value that the form defines, models answer
 * as with those values in floats, and faulty tensors are refused by name. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/hf.h"
#include "engine/hf_quant.h"
#include "engine/imatrix.h"
#include "engine/quant.h"
#include "engine/rows.h"
#include "engine/source.h"
#include "tests/packed_folder.h"
#include "tests/support.h"

static const char family[] = "llama-k256";
static const struct packed_options plain_options = {0};

/* --- weights ----------------------------------------------------------------------------------------------------- */

/* Checks every weight against the form's definition. Read as floats it is exact, apart from the order of two
 * roundings; as used in computation it is within two 8-bit steps of the largest weight nearby and 0.6 % in the mean,
 * or within the error of rounding two scales to F16. */
static void check_tensor(const char *form, const struct pp_tensor *t, const struct pp_tensor *want)
{
    const int64_t n = t->ne[0] * t->ne[1];
    float *a = calloc((size_t)n, sizeof *a), *b = calloc((size_t)n, sizeof *b), *c = calloc((size_t)n, sizeof *c);
    struct pp_error err;
    assert_true(a && b && c);
    assert_int_equal(want->ne[0] * want->ne[1], n);
    pp_dequantize_row(want->type, want->data, a, n);
    pp_dequantize_row(t->type, t->data, c, n);
    if (t->rows)
        assert_ok(pp_rows_floats(t->rows, 0, t->ne[1], b, &err), err);
    else
        pp_dequantize_row(t->type, t->data, b, n);
    const int64_t near = t->type == PP_TYPE_Q8_0 ? 32 : 256;
    float most = 0;
    for (int64_t i = 0; i < n; i++) {
        most = i % near ? most : 0;
        for (int64_t k = i; i % near == 0 && k < i + near && k < n; k++)
            most = fmaxf(most, fabsf(a[k]));
        if (!(fabsf(a[i] - b[i]) <= 3e-7f * most))
            fail_msg("%s: weight %lld of %s is %.9g, not %.9g", form, (long long)i, t->name, (double)b[i],
                     (double)a[i]);
        const float tolerance = t->type == PP_TYPE_Q8_0 ? most / 64 : most / 1000; /* other types are not requantised */
        if (!(fabsf(a[i] - c[i]) <= tolerance))
            fail_msg("%s: weight %lld of %s is computed with as %.9g, not %.9g", form, (long long)i, t->name,
                     (double)c[i], (double)a[i]);
    }
    if (!(difference(c, a, n) <= 0.006))
        fail_msg("%s: %s is off by %.4f", form, t->name, difference(c, a, n));
    free(a);
    free(b);
    free(c);
}

static void check_weights(const char *form, const char *packed, const char *floats, const char *type)
{
    struct pp_source *s, *f;
    struct pp_error err;
    assert_ok(pp_source_open(packed, &s, &err), err);
    assert_ok(pp_source_open(floats, &f, &err), err);
    assert_true(pp_source_to_fill(s) > 0 && pp_source_to_fill(f) == 0);
    assert_ok(pp_source_fill(s, NULL, &(struct pp_fill_options){0}, &err), err);
    assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(f));
    for (size_t i = 0; i < pp_source_n_tensors(f); i++) {
        const struct pp_tensor *want = pp_source_tensor_at(f, i), *t = pp_source_tensor(s, want->name);
        assert_non_null(t);
        check_tensor(form, t, want);
    }
    const struct pp_tensor *up = pp_source_tensor(s, "blk.0.ffn_up.weight");
    if (strcmp(pp_type_info(up->type)->name, type) != 0)
        fail_msg("%s became %s, not %s", form, pp_type_info(up->type)->name, type);
    pp_source_close(s);
    pp_source_close(f);
}

/* --- answers ----------------------------------------------------------------------------------------------------- */

/* How far the answers of a model are from b [n], which may be NULL; *logits, unless NULL, are kept. */
static double logits_differ(const char *path, const float *b, float **logits)
{
    int64_t n;
    float *a = logits_of(family, path, &n);
    const double d = b ? difference(a, b, n) : 0;
    if (logits)
        *logits = a;
    else
        free(a);
    return d;
}

/* --- every form -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *form, *type;
} becomes[] = {
    {"fp8", "Q8_0"},       {"fp8-uneven", "Q8_0"}, {"fp8-tensor", "Q8_0"}, {"fp8-rows", "Q8_0"}, {"nf4", "Q8_0"},
    {"nf4-double", "Q8_0"}, {"fp4", "Q8_0"},       {"gptq", "Q4_0"},       {"gptq-v2", "Q4_1"},  {"gptq-order", "Q8_0"},
    {"gptq-8", "Q8_0"},    {"gptq-2", "Q4_1"},     {"awq", "Q4_1"},        {"mlx-2", "Q4_1"},    {"mlx-3", "Q4_1"},
    {"mlx-4", "Q4_1"},     {"mlx-5", "Q5_1"},      {"mlx-6", "Q8_0"},      {"mlx-8", "Q8_0"},    {"mlx-mixed", "Q4_1"},
    {"gptq-3", "Q4_1"},    {"awq-gemv", "Q4_1"},   {"ct-4", "Q4_0"},       {"ct-4-zero", "Q4_1"},
    {"ct-4-order", "Q8_0"}, {"ct-8", "Q8_0"},      {"ct-2", "Q4_1"},       {"ct-int8", "Q8_0"},
    {"ct-int8-alone", "Q8_0"}, {"ct-int8-zero", "Q8_0"}, {"ct-nvfp4", "Q8_0"}, {"ct-mxfp4", "MXFP4"},
    {"ct-fp8-groups", "Q8_0"}, {"modelopt", "Q8_0"}, {"modelopt-fp8", "Q8_0"}, {"modelopt-rows", "Q8_0"},
    {"modelopt-blocks", "Q8_0"}, {"modelopt-mxfp8", "Q8_0"}, {"mlx-mxfp4", "MXFP4"}, {"mlx-mxfp8", "Q8_0"},
    {"mlx-nvfp4", "Q8_0"}, {"awq-32", "Q4_1"},       {"fp8-scale", "Q8_0"}, {"fp8-pairs", "MXFP4"},
    {"bitnet", "TQ2_0"}, {"bitnet-divided", "TQ2_0"},
};
enum { N_FORMS = sizeof becomes / sizeof *becomes };

/* The answers are as close to those of the floats as a Q8_0 file's are, whose activations are int8, too. A GGUF file
 * made of the folder has the same weights, but for the order of rows, so nearly the same sums. */
static void every_form(void **state)
{
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < N_FORMS; i++) {
        const char *form = becomes[i].form, *packed = test_path("packed"), *floats = test_path("floats");
        const char *gguf = test_path("packed.gguf");
        struct pp_error err;
        packed_folder(family, packed_form(form), &plain_options, packed, floats);
        check_weights(form, packed, floats, becomes[i].type);
        assert_ok(pp_quantize_file(floats, gguf, "Q8_0", &(struct pp_convert_options){0}, &err), err);
        float *exact, *ours;
        logits_differ(floats, NULL, &exact);
        const double usual = logits_differ(gguf, exact, NULL), is = logits_differ(packed, exact, &ours);
        if (!(is <= 1.3 * usual && usual < 0.06))
            fail_msg("%s: the logits differ by %.4f, those of Q8_0 by %.4f", form, is, usual);
        assert_ok(pp_convert_to_gguf(packed, gguf, &(struct pp_convert_options){0}, &err), err);
        const double again = logits_differ(gguf, ours, NULL);
        if (!(again <= 0.01))
            fail_msg("%s: the logits of the file made of it differ by %.4f", form, again);
        free(exact);
        free(ours);
    }
    assert_null(packed_form_at(N_FORMS));
}

/* modelopt may describe the quantisation in a file of its own only, and for each matrix separately. */
static void told_beside(void **state)
{
    static const struct {
        const char *form, *text;
        bool good;
    } cases[] = {
        {"modelopt", "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {\"quant_algo\": \"NVFP4\", "
                     "\"kv_cache_quant_algo\": \"FP8\", \"exclude_modules\": [\"lm_head\"]}}", true},
        {"modelopt-fp8", "{\"quantization\": {\"quant_algo\": \"FP8\", \"exclude_modules\": [\"lm_head\"]}}", true},
        {"modelopt-rows", "{\"quantization\": {\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": "
                          "{\"model.layers.0.mlp.up_proj\": {\"quant_algo\": \"FP8\"}}}}", true},
        {"modelopt", "{\"quantization\": {\"quant_algo\": \"W4A8_AWQ\"}}", false},
        {"modelopt", "{\"quantization\": {\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": "
                     "{\"model.layers.0.mlp.up_proj\": {\"quant_algo\": \"W4A8_AWQ\"}}}}", false},
        {"modelopt", "{\"quantization\": {\"quant_algo\": null, \"kv_cache_quant_algo\": \"FP8\"}}", false},
    };
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *beside = test_path("beside"), *inside = test_path("inside");
        char path[600];
        struct pp_model *m = NULL;
        struct pp_error err;
        packed_folder(family, packed_form(cases[i].form), &plain_options, inside, NULL);
        packed_folder(family, packed_form(cases[i].form), &plain_options, beside, NULL);
        packed_config(family, NULL, &plain_options, beside);
        snprintf(path, sizeof path, "%s/hf_quant_config.json", beside);
        assert_ok(pp_write_file(path, cases[i].text, strlen(cases[i].text), 0600, &err), err);
        if (!cases[i].good) {
            assert_int_equal(pp_model_open(beside, &m, &err), PP_ERR_UNSUPPORTED);
            pp_model_close(m);
            continue;
        }
        float *there;
        logits_differ(inside, NULL, &there);
        assert_true(logits_differ(beside, there, NULL) == 0);
        free(there);
    }
}

/* Loading a quantised folder as BF16 gives the floats rounded once. */
static void to_floats(void **state)
{
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    const char *packed = test_path("packed"), *floats = test_path("floats"), *a = test_path("a.gguf"),
               *b = test_path("b.gguf");
    const struct pp_convert_options opt = {.out_type = "BF16"};
    packed_folder(family, packed_form("gptq-order"), &plain_options, packed, floats);
    assert_ok(pp_convert_to_gguf(packed, a, &opt, &err), err);
    assert_ok(pp_convert_to_gguf(floats, b, &opt, &err), err);
    struct pp_source *x, *y;
    assert_ok(pp_source_open(a, &x, &err), err);
    assert_ok(pp_source_open(b, &y, &err), err);
    for (size_t i = 0; i < pp_source_n_tensors(x); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(x, i), *u = pp_source_tensor_at(y, i);
        assert_int_equal(t->size, u->size);
        assert_memory_equal(t->data, u->data, t->size);
    }
    pp_source_close(x);
    pp_source_close(y);
}

/* --- quantised while it is loaded -------------------------------------------------------------------------------- */

static void note_filled(void *user, uint64_t done, uint64_t total)
{
    uint64_t *last = user;
    assert_true(done >= *last && done <= total);
    *last = done;
}

/* An importance matrix for all matrices of a folder but the outermost: of 16 columns the first half matters a hundred
 * times as much, for odd experts the second half. */
static void write_imatrix(const char *folder, const char *path)
{
    struct pp_source *s;
    struct pp_imatrix *m;
    struct pp_importance *e;
    struct pp_error err;
    char stack[256];
    assert_ok(pp_source_open(folder, &s, &err), err);
    assert_ok(pp_imatrix_new(&m, &err), err);
    for (size_t i = 0; i < pp_source_n_tensors(s); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(s, i);
        const int64_t n = pp_expert_number(t->name) ? pp_source_hparams(s)->n_expert : 1;
        if (t->n_dims < 2 || strncmp(t->name, "blk.", 4) != 0)
            continue;
        pp_stack_name(t->name, stack);
        assert_ok(pp_imatrix_entry(m, stack, t->ne[0], n, &e, &err), err);
        for (int64_t c = 0; c < t->ne[0] * n; c++)
            e->sums[c] = (c % 16 < 8) == (c / t->ne[0] % 2 == 0) ? 100 : 1;
        for (int64_t k = 0; k < n; k++)
            e->counts[k] = 10;
    }
    assert_ok(pp_imatrix_count(m, "halves", 1, 10, &err), err);
    assert_ok(pp_imatrix_write(m, path, &err), err);
    pp_imatrix_free(m);
    pp_source_close(s);
}

/* Every matrix has the bits that pippin quantize gives the file made of the same folder, but for q's and k's order. */
static void check_quantized(const char *folder, const char *quant, const char *type, const char *imatrix)
{
    const char *gguf = test_path("quantized.gguf");
    struct pp_imatrix *m = NULL;
    struct pp_source *s, *f;
    struct pp_error err;
    uint64_t done = 0;
    char stack[256];
    if (imatrix)
        assert_ok(pp_imatrix_read(imatrix, &m, &err), err);
    assert_ok(pp_quantize_file(folder, gguf, type, &(struct pp_convert_options){.imatrix = m}, &err), err);
    assert_ok(pp_source_open_as(folder, quant, imatrix, &s, &err), err);
    assert_ok(pp_source_open(gguf, &f, &err), err);
    assert_string_equal(pp_source_type_name(s), type);
    assert_ok(pp_source_fill(s, NULL, &(struct pp_fill_options){.progress = note_filled, .user = &done}, &err), err);
    assert_int_equal(done, pp_source_to_fill(s));
    for (size_t i = 0; i < pp_source_n_tensors(s); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(s, i);
        const char *number = pp_expert_number(t->name);
        const size_t n = number ? (size_t)pp_source_hparams(s)->n_expert : 1;
        const size_t at = number ? strtoul(number, NULL, 10) : 0;
        pp_stack_name(t->name, stack);
        const struct pp_tensor *want = pp_source_tensor(f, stack);
        assert_non_null(want);
        if (t->n_dims < 2 || strstr(t->name, "ffn_gate_inp")) /* GGUF files have F32 there */
            continue;
        assert_int_equal(t->type, want->type);
        assert_int_equal(t->size * n, want->size);
        if (!strstr(t->name, "attn_q") && !strstr(t->name, "attn_k") &&
            memcmp(t->data, (const uint8_t *)want->data + at * t->size, t->size) != 0)
            fail_msg("%s of %s is another in %s", t->name, folder, type);
    }
    pp_source_close(s);
    pp_source_close(f);
    pp_imatrix_free(m);
}

static void while_loading(void **state)
{
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    const char *plain = testdata("architectures/llama-k256"), *experts = testdata("architectures/mixtral");
    check_quantized(plain, "q8_0", "Q8_0", NULL);
    check_quantized(plain, "Q4_K", "Q4_K_M", NULL);
    check_quantized(plain, "q6_k", "Q6_K", NULL);
    check_quantized(plain, "q4_0", "Q4_0", NULL);
    check_quantized(plain, "f16", "F16", NULL);
    const char *packed = test_path("packed");
    packed_folder(family, packed_form("fp8"), &plain_options, packed, NULL);
    check_quantized(packed, "q5_k_s", "Q5_K_S", NULL);
    assert_ok(pp_model_open_as(experts, "q4_0", NULL, &m, &err), err);
    assert_string_equal(pp_model_info(m)->type_name, "Q4_0");
    pp_model_close(m);
    check_quantized(experts, "q4_0", "Q4_0", NULL);
    assert_int_equal(pp_model_open_as(plain, "q9", NULL, &m, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "q9"));
    assert_int_equal(pp_model_open_as(testdata("architectures/llama-k256/model.gguf"), "q4_0", NULL, &m, &err),
                     PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "pippin quantize"));
}

/* The same with an importance matrix, which is part of the model's identity. */
static void while_loading_weighed(void **state)
{
    struct pp_model *m;
    struct pp_sha256 ids[3];
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    char plain[1024], experts[1024], im[300], im_experts[300]; /* copies, because those functions reuse their buffers */
    snprintf(plain, sizeof plain, "%s", testdata("architectures/llama-k256"));
    snprintf(experts, sizeof experts, "%s", testdata("architectures/mixtral"));
    snprintf(im, sizeof im, "%s", test_path("plain.imatrix"));
    snprintf(im_experts, sizeof im_experts, "%s", test_path("experts.imatrix"));
    write_imatrix(plain, im);
    write_imatrix(experts, im_experts);
    check_quantized(plain, "q4_k", "Q4_K_M", im);
    check_quantized(plain, "q2_k", "Q2_K", im);
    check_quantized(plain, "f16", "F16", im);
    check_quantized(experts, "q4_0", "Q4_0", im_experts);
    const char *packed = test_path("packed");
    packed_folder(family, packed_form("nf4"), &plain_options, packed, NULL);
    check_quantized(packed, "q4_k", "Q4_K_M", im);
    for (int i = 0; i < 3; i++) {
        assert_ok(pp_model_open_as(plain, "q4_0", i == 1 ? NULL : im, &m, &err), err);
        assert_ok(pp_model_identity(m, test_tmpdir(), &ids[i], &err), err);
        pp_model_close(m);
    }
    assert_memory_not_equal(&ids[0], &ids[1], sizeof ids[0]);
    assert_memory_equal(&ids[0], &ids[2], sizeof ids[0]);
    assert_int_equal(pp_model_open_as(plain, NULL, im, &m, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "--quant"));
    assert_int_equal(pp_model_open_as(experts, "q4_0", im, &m, &err), PP_ERR_MISMATCH);
    assert_int_equal(pp_model_open_as(plain, "q4_0", testdata("architectures/llama-k256/model.gguf"), &m, &err),
                     PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "importance matrix"));
    assert_int_equal(pp_model_open_as(plain, "q4_0", test_path("not there"), &m, &err), PP_ERR_IO);
}

/* The type that a folder is requantised to is part of the model's identity. */
static void identities(void **state)
{
    struct pp_sha256 ids[4];
    const char *const quant[4] = {NULL, "q8_0", "q4_0", NULL};
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (int i = 0; i < 4; i++) {
        struct pp_model *m;
        assert_ok(pp_model_open_as(testdata("architectures/llama-k256"), quant[i], NULL, &m, &err), err);
        assert_ok(pp_model_identity(m, test_tmpdir(), &ids[i], &err), err);
        pp_model_close(m);
    }
    assert_memory_not_equal(&ids[0], &ids[1], sizeof ids[0]);
    assert_memory_not_equal(&ids[1], &ids[2], sizeof ids[0]);
    assert_memory_equal(&ids[0], &ids[3], sizeof ids[0]);
}

/* The resident bytes of a mapped file in this process. */
static size_t resident(const char *path)
{
    char line[1000];
    size_t kib, sum = 0;
    bool ours = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (strchr(line, '-') && strchr(line, '/') && !strstr(line, "kB"))
            ours = strstr(line, path) != NULL;
        if (ours && sscanf(line, "Rss: %zu kB", &kib) == 1)
            sum += kib << 10;
    }
    fclose(f);
    return sum;
}

/* After conversion the pages of the source file are released. */
static void not_twice(void **state)
{
    struct pp_source *s;
    struct pp_error err;
    char file[400];
    (void)state;
    if (!testdata("architectures"))
        skip();
    const char *packed = test_path("packed-once");
    packed_folder(family, packed_form("fp8"), &plain_options, packed, NULL);
    snprintf(file, sizeof file, "%s/model.safetensors", packed);
    assert_ok(pp_source_open(packed, &s, &err), err);
    const size_t weights = pp_source_to_fill(s);
    for (size_t i = 0; i < pp_source_n_tensors(s); i++) { /* read all of it once, as the check of the weights does */
        const struct pp_tensor *t = pp_source_tensor_at(s, i);
        float row[4096];
        for (int64_t r = 0; t->rows && t->ne[0] <= 4096 && r < t->ne[1]; r++)
            assert_ok(pp_rows_floats(t->rows, r, 1, row, &err), err);
    }
    const size_t before = resident(file);
    assert_ok(pp_source_fill(s, NULL, &(struct pp_fill_options){0}, &err), err);
    const size_t after = resident(file); /* pages of weights that are used in place may be resident, and others that the
                                            system read ahead */
    if (before < after + weights / 2)
        fail_msg("of %zu bytes %zu were in memory, now %zu", weights, before, after);
    pp_source_close(s);
}

/* --- what is wrong ----------------------------------------------------------------------------------------------- */

static void refusals(void **state)
{
    static const struct {
        const char *form;
        struct packed_options opt;
        const char *word;
    } cases[] = {
        {"fp8", {.leave_out = "model.layers.1.mlp.up_proj.weight_scale_inv"}, "layers.1.mlp.up_proj.weight_scale"},
        {"fp8-pairs", {.leave_out = "model.layers.1.mlp.up_proj.scale"}, "up_proj.weight"},
        {"fp8-pairs", {.turned = "model.layers.1.mlp.up_proj.scale"}, "up_proj.scale"},
        {"fp8", {.config_from = "[128,128]", .config_to = "[128]"}, "weight_block_size"},
        {"fp8", {.config_from = "[128,128]", .config_to = "[0,128]"}, "weight_block_size"},
        {"fp8", {.config_from = "[128,128]", .config_to = "[64,128]"}, "weight_scale_inv"},
        {"fp8-uneven", {.turned = "model.layers.0.mlp.up_proj.weight_scale_inv"}, "up_proj.weight_scale_inv"},
        {"fp8", {.emptied = "model.layers.0.mlp.up_proj.weight"}, "up_proj.weight is empty"},
        {"nf4", {.leave_out = "model.layers.0.mlp.up_proj.weight.absmax"}, "up_proj.weight.absmax is missing"},
        {"nf4", {.leave_out = "model.layers.0.mlp.up_proj.weight.quant_map"}, "up_proj.weight.quant_map is missing"},
        {"nf4", {.emptied = "model.layers.0.mlp.up_proj.weight.absmax"}, "up_proj.weight.absmax"},
        {"nf4", {.emptied = "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4"}, "quant_state"},
        {"nf4-double", {.leave_out = "model.layers.0.mlp.up_proj.weight.nested_absmax"}, "nested_absmax is missing"},
        {"nf4-double", {.emptied = "model.layers.0.mlp.up_proj.weight.nested_quant_map"}, "nested_quant_map"},
        {"nf4", {.config_from = "\"load_in_8bit\":false", .config_to = "\"load_in_8bit\":true"}, "load_in_8bit"},
        {"gptq", {.leave_out = "model.layers.0.mlp.up_proj.scales"}, "up_proj.scales is missing"},
        {"gptq", {.leave_out = "model.layers.0.mlp.up_proj.qzeros"}, "up_proj.qzeros is missing"},
        {"gptq", {.turned = "model.layers.0.mlp.up_proj.scales"}, "up_proj.scales"},
        {"gptq", {.turned = "model.layers.0.mlp.up_proj.qzeros"}, "up_proj.qzeros"},
        {"gptq", {.emptied = "model.layers.0.mlp.up_proj.g_idx"}, "up_proj.g_idx"},
        {"gptq", {.bad_group = true}, "g_idx refers to a group that does not exist"},
        {"gptq", {.config_from = "\"bits\":4", .config_to = "\"bits\":5"}, "bits"},
        {"gptq-3", {.config_from = "\"bits\":3", .config_to = "\"bits\":4"}, "scales"},
        {"gptq-3", {.turned = "model.layers.0.mlp.up_proj.qweight"}, "up_proj"},
        {"gptq", {.config_from = "\"bits\":4", .config_to = "\"bits\":\"4\""}, "bits"},
        {"gptq", {.config_from = "\"group_size\":128", .config_to = "\"group_size\":0"}, "group_size"},
        {"gptq", {.config_from = "\"group_size\":128", .config_to = "\"group_size\":-2"}, "group_size"},
        {"gptq", {.config_from = "\"group_size\":128", .config_to = "\"group_size\":96"}, "scales"},
        {"gptq", {.config_from = "\"gptq\"", .config_to = "\"hqq\""}, "\"hqq\""},
        {"gptq-order", {.config_from = "t\":\"gptq\"", .config_to = "t\":\"marlin\""}, "checkpoint_format"},
        {"awq", {.config_from = "gemm", .config_to = "gemv"}, "down_proj.scales"},
        {"awq", {.config_from = "gemm", .config_to = "gemv_fast"}, "version"},
        {"awq-gemv", {.config_from = "gemv", .config_to = "gemm"}, "scales"},
        {"awq-gemv", {.config_from = "\"group_size\":64", .config_to = "\"group_size\":8"}, "scales"},
        {"awq-gemv", {.turned = "model.layers.0.mlp.up_proj.qzeros"}, "up_proj.qzeros"},
        {"awq-gemv", {.turned = "model.layers.0.mlp.up_proj.scales"}, "up_proj.scales"},
        {"ct-4", {.leave_out = "model.layers.0.mlp.up_proj.weight_shape"}, "up_proj.weight_shape is missing"},
        {"ct-4", {.leave_out = "model.layers.0.mlp.up_proj.weight_scale"}, "up_proj.weight_scale is missing"},
        {"ct-4", {.emptied = "model.layers.0.mlp.up_proj.weight_scale"}, "up_proj.weight_scale"},
        {"ct-4", {.emptied = "model.layers.0.mlp.up_proj.weight_shape"}, "up_proj.weight_shape"},
        {"ct-4", {.turned = "model.layers.0.mlp.up_proj.weight_packed"}, "up_proj.weight"},
        {"ct-4", {.config_from = "\"num_bits\":4", .config_to = "\"num_bits\":3"}, "num_bits"},
        {"ct-4", {.config_from = "pack-quantized", .config_to = "marlin-24"}, "format"},
        {"ct-4", {.config_from = "\"ignore\"", .config_to = "\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"},"
                  "\"ignore\""}, "sparsity_config"},
        {"ct-4", {.config_from = "\"transform_config\":{}", .config_to = "\"transform_config\":{\"config_groups\":"
                  "{\"R4\":{\"type\":\"hadamard\"}}}"}, "transform_config"},
        {"ct-4-zero", {.turned = "model.layers.0.mlp.up_proj.weight_zero_point"}, "up_proj.weight_zero_point"},
        {"ct-4-zero", {.emptied = "model.layers.0.mlp.up_proj.weight_zero_point"}, "up_proj.weight_zero_point"},
        {"ct-4-order", {.bad_group = true}, "weight_g_idx refers to a group that does not exist"},
        {"ct-int8", {.leave_out = "model.layers.0.mlp.up_proj.weight_scale"}, "up_proj.weight_scale is missing"},
        {"ct-int8-zero", {.emptied = "model.layers.0.mlp.up_proj.weight_zero_point"}, "up_proj.weight_zero_point"},
        {"ct-nvfp4", {.leave_out = "model.layers.0.mlp.up_proj.weight_global_scale"}, "weight_global_scale is missing"},
        {"ct-nvfp4", {.turned = "model.layers.0.mlp.up_proj.weight_scale"}, "up_proj.weight_scale"},
        {"ct-nvfp4", {.emptied = "model.layers.0.mlp.up_proj.weight_global_scale"}, "weight_global_scale"},
        {"ct-fp8-groups", {.turned = "model.layers.0.mlp.up_proj.weight_scale"}, "up_proj.weight_scale"},
        {"modelopt", {.leave_out = "model.layers.0.mlp.up_proj.weight_scale_2"}, "weight_scale_2 is missing"},
        {"modelopt", {.config_from = "NVFP4", .config_to = "W4A8_AWQ"}, "quant_algo"},
        {"mlx-mxfp4", {.leave_out = "model.layers.0.mlp.up_proj.scales"}, "up_proj.scales is missing"},
        {"mlx-mxfp4", {.turned = "model.layers.0.mlp.up_proj.scales"}, "up_proj.scales"},
        {"mlx-mxfp4", {.config_from = "mxfp4", .config_to = "affine"}, "biases is missing"},
        {"mlx-mxfp4", {.config_from = "mxfp4", .config_to = "nvfp4"}, "group_size"},
        {"mlx-mxfp8", {.config_from = "\"bits\":8", .config_to = "\"bits\":4"}, "group_size"},
        {"awq", {.turned = "model.layers.0.self_attn.q_proj.qweight"}, "q_proj"},
        {"awq", {.config_from = "\"bits\":4", .config_to = "\"bits\":3"}, "bits"},
        {"mlx-4", {.leave_out = "model.layers.0.mlp.up_proj.biases"}, "up_proj.biases is missing"},
        {"mlx-4", {.turned = "model.layers.0.mlp.up_proj.scales"}, "up_proj.scales"},
        {"mlx-4", {.config_from = "\"bits\":4", .config_to = "\"bits\":7"}, "bits"},
        {"mlx-4", {.config_from = "\"bits\":4", .config_to = "\"bits\":8"}, "scales"},
        {"mlx-4", {.config_from = "\"group_size\":64", .config_to = "\"group_size\":0"}, "group_size"},
        {"mlx-4", {.config_from = "\"group_size\":64", .config_to = "\"group_size\":48"}, "scales"},
        {"mlx-4", {.config_from = "affine", .config_to = "mxint8"}, "mode"},
        {"mlx-mixed", {.config_from = "\"bits\":8", .config_to = "\"bits\":1"}, "model.layers.0.mlp.down_proj"},
    };
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = test_path("refused");
        struct pp_model *m = NULL;
        struct pp_error err = {0};
        packed_folder(family, packed_form(cases[i].form), &cases[i].opt, path, NULL);
        if (pp_model_open(path, &m, &err) == PP_OK || !strstr(err.text, cases[i].word))
            fail_msg("%s, case %zu: \"%s\", which does not mention %s", cases[i].form, i, err.text, cases[i].word);
        pp_model_close(m);
    }
}

/* A scale that is not finite is detected when the weights are converted, with an error that names the tensor. */
static void no_numbers(void **state)
{
    static const char *const some[] = {"fp8", "gptq", "gptq-order", "mlx-4", "mlx-6", "gptq-3", "awq-gemv",
                                       "ct-4", "ct-int8", "ct-nvfp4", "ct-mxfp4", "mlx-mxfp4", "mlx-mxfp8"};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        const struct packed_options opt = {.not_a_number = true};
        const char *path = test_path("infinite"), *gguf = test_path("infinite.gguf");
        struct pp_source *s;
        struct pp_error err = {0};
        packed_folder(family, packed_form(some[i]), &opt, path, NULL);
        assert_ok(pp_source_open(path, &s, &err), err);
        assert_int_equal(pp_source_fill(s, NULL, &(struct pp_fill_options){0}, &err), PP_ERR_FORMAT);
        if (!strstr(err.text, ".weight"))
            fail_msg("%s: %s", some[i], err.text);
        pp_source_close(s);
        assert_int_not_equal(pp_convert_to_gguf(path, gguf, &(struct pp_convert_options){0}, &err), PP_OK);
        if (!strstr(err.text, ".weight"))
            fail_msg("%s: %s", some[i], err.text);
    }
}

/* Another program changes the file after the groups of its columns were checked: an index out of range must not be
 * used. */
static void groups_written_to(void **state)
{
    const char *path = test_path("written");
    const struct pp_rows *r = NULL;
    struct pp_source *s;
    struct pp_error err = {0};
    char *file, *name = NULL;
    size_t size;
    (void)state;
    if (!testdata("architectures"))
        skip();
    packed_folder(family, packed_form("gptq-order"), &plain_options, path, NULL);
    assert_ok(pp_source_open(path, &s, &err), err);
    for (size_t i = 0; i < pp_source_n_tensors(s) && !(r && r->group_of); i++)
        r = pp_source_tensor_at(s, i)->rows;
    assert_true(r && r->group_of);
    assert_true(asprintf(&name, "%s/model.safetensors", path) > 0);
    assert_ok(pp_read_file(name, 1 << 28, &file, &size, &err), err);
    const char *at = memmem(file, size, r->group_of, (size_t)r->n_cols * sizeof(int32_t));
    assert_non_null(at);
    const int fd = open(name, O_WRONLY | O_CLOEXEC);
    const int32_t none = INT32_MAX / 2;
    assert_int_equal(pwrite(fd, &none, sizeof none, at - file), sizeof none);
    close(fd);
    assert_int_equal(pp_source_fill(s, NULL, &(struct pp_fill_options){0}, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "a weight is not a number"));
    pp_source_close(s);
    pp_free(file);
    free(name);
}

/* Cancelled during conversion, and with each allocation failing one after the other: an error, and no leaks. */
static void stopped(void **state)
{
    struct pp_error err;
    struct pp_source *s;
    struct pp_cancel cancel = {0};
    (void)state;
    if (!testdata("architectures"))
        skip();
    const char *path = test_path("packed");
    packed_folder(family, packed_form("nf4-double"), &plain_options, path, NULL);
    assert_ok(pp_source_open(path, &s, &err), err);
    pp_cancel_request(&cancel);
    assert_int_equal(pp_source_fill(s, NULL, &(struct pp_fill_options){.cancel = &cancel}, &err), PP_ERR_CANCELLED);
    assert_ok(pp_source_fill(s, NULL, &(struct pp_fill_options){0}, &err), err);
    pp_source_close(s);
    uint64_t n = pp_mem_count();
    assert_ok(pp_source_open(path, &s, &err), err);
    n = pp_mem_count() - n;
    pp_source_close(s);
    for (uint64_t at = 1; at <= n; at += 1 + n / 50) {
        pp_mem_fail_at(at, 0);
        const enum pp_code code = pp_source_open(path, &s, &err);
        pp_mem_fail_at(0, 0);
        if (code == PP_OK)
            pp_source_close(s);
    }
}

/* --- what a file beside config.json says -------------------------------------------------------------------------- */

/* The quantisation described outside config.json: AutoGPTQ and AutoAWQ had files of their own for it. */
static void in_a_file_of_its_own(void **state)
{
    static const struct {
        const char *form, *file, *text;
    } cases[] = {
        {"gptq-order", "quantize_config.json",
         "{\"bits\": 4, \"group_size\": 32, \"damp_percent\": 0.01, \"desc_act\": true, \"sym\": false}"},
        {"awq-32", "quant_config.json",
         "{\"zero_point\": true, \"q_group_size\": 32, \"w_bit\": 4, \"version\": \"GEMM\"}"},
    };
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *packed = test_path("packed"), *floats = test_path("floats");
        char path[600];
        struct pp_error err;
        float *said, *again;
        packed_folder(family, packed_form(cases[i].form), &plain_options, packed, floats);
        logits_differ(packed, NULL, &said);
        packed_config(family, NULL, &plain_options, packed);
        snprintf(path, sizeof path, "%s/%s", packed, cases[i].file);
        assert_ok(pp_write_file(path, cases[i].text, strlen(cases[i].text), 0600, &err), err);
        assert_true(logits_differ(packed, said, &again) == 0);
        assert_int_equal(unlink(path), 0);
        free(said);
        free(again);
    }
}

/* --- rows that fill no word --------------------------------------------------------------------------------------- */

/* Nine rows of 32 weights, all 5. The zero points of the first eight rows share a word and are 8; that of the last row
 * has a word for itself and is 3. */
static void last_zero_point(void **state)
{
    enum { N_ROWS = 9, N_COLS = 32 };
    static const char config[] = "{}";
    static const int64_t weights_shape[] = {N_ROWS, N_COLS / 8}, shape_shape[] = {2}, scale_shape[] = {N_ROWS, 1},
                         zeros_shape[] = {2, 1}, shape[] = {N_ROWS, N_COLS};
    static const uint32_t zeros[] = {0x88888888, 3};
    const struct pp_hf_quant q = {.method = PP_QUANT_COMPRESSED};
    const char *folder = test_path("nine-rows");
    uint32_t weights[N_ROWS * N_COLS / 8];
    uint16_t scales[N_ROWS];
    char path[600];
    struct tensor_file f = {0};
    struct pp_hf *hf;
    struct pp_rows rows;
    struct pp_tensor t;
    struct pp_error err;
    (void)state;
    for (int i = 0; i < N_ROWS * N_COLS / 8; i++)
        weights[i] = 0x55555555;
    for (int i = 0; i < N_ROWS; i++)
        scales[i] = 0x3c00;
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_write_file(path, config, strlen(config), 0600, &err), err);
    tensor_file_add(&f, "a.weight_packed", "I32", 2, weights_shape, weights, sizeof weights);
    tensor_file_add(&f, "a.weight_shape", "I64", 1, shape_shape, shape, sizeof shape);
    tensor_file_add(&f, "a.weight_scale", "F16", 2, scale_shape, scales, sizeof scales);
    tensor_file_add(&f, "a.weight_zero_point", "I32", 2, zeros_shape, zeros, sizeof zeros);
    tensor_file_write(&f, folder, "model.safetensors");
    assert_ok(pp_hf_open(folder, &hf, &err), err);
    for (size_t i = 0; i < pp_hf_n(hf); i++) {
        if (strcmp(pp_hf_at(hf, i)->name, "a.weight_packed") != 0)
            continue;
        uint8_t made[64];
        float row[N_COLS];
        assert_ok(pp_hf_quant_open(&q, hf, i, &rows, &t, &err), err);
        for (int r = 0; r < N_ROWS; r++) {
            assert_ok(pp_rows_read(&rows, r, 1, made, &err), err);
            pp_dequantize_row(rows.type, made, row, N_COLS);
            assert_true(row[0] == (r < 8 ? -3.0f : 2.0f));
        }
    }
    pp_hf_close(hf);
}

/* --- large matrices ----------------------------------------------------------------------------------------------- */

/* Forms that store a row's weights all over the matrix are read many rows at a time: the result is that of reading rows
 * one by one. */
static void many_at_a_time(void **state)
{
    enum { N_COLS = 1024, N_ROWS = 98304, FIRST = 50, N = 2500, EVERY = 83 };
    const size_t size = (size_t)N_COLS * N_ROWS; /* the 4-bit forms use half of these bytes, TRANSPOSED all */
    const int64_t n_scales = (int64_t)N_ROWS * (N_COLS / 32);
    struct pp_rows forms[] = {
        {.form = PP_FORM_GPTQ, .type = PP_TYPE_Q4_1, .zeros_layout = PP_ZEROS_GPTQ, .bits = 4},
        {.form = PP_FORM_AWQ, .type = PP_TYPE_Q4_1, .zeros_layout = PP_ZEROS_AWQ, .bits = 4},
        {.form = PP_FORM_TRANSPOSED, .type = PP_TYPE_F16, .stored_type = PP_TYPE_F16, .width = N_ROWS / 2,
         .matrix_rows = N_ROWS / 2},
    };
    uint16_t *weights = calloc(size, 2), *scales = calloc((size_t)n_scales, 2);
    uint8_t *all = malloc(N * 2 * N_COLS), *one = malloc(2 * N_COLS);
    struct pp_error err;
    uint32_t x = 1;
    (void)state;
    assert_true(weights && scales && all && one);
    for (size_t i = 0; i < size; i++)
        weights[i] = (uint16_t)((x = x * 1664525 + 1013904223) >> 16 & 0xbbff); /* as F16 below 2 in magnitude */
    for (int64_t i = 0; i < n_scales; i++)
        scales[i] = (uint16_t)(0x2000 + i % 1000);
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        struct pp_rows *r = &forms[f];
        r->as_blocks = true;
        r->n_cols = N_COLS;
        r->n_rows = N_ROWS;
        r->row_step = 1;
        r->weights = (const uint8_t *)weights;
        r->group = 32;
        r->n_groups = N_COLS / 32;
        r->scales = (struct pp_numbers){.data = (const uint8_t *)scales, .kind = PP_NUMBER_F16};
        r->zeros = f < 2 ? (const uint8_t *)weights : NULL;
        const size_t row = pp_type_row_bytes(r->type, N_COLS);
        const int64_t first = f < 2 ? FIRST : N_ROWS / 2 - N / 2; /* in the last form, rows that belong to two
                                                                     matrices */
        assert_ok(pp_rows_read(r, first, N, all, &err), err);
        for (uint64_t at = 1; f < 2 && at <= 2; at++) { /* the sanitizers notice if missing memory is used */
            pp_mem_fail_at(at, 0);
            assert_int_equal(pp_rows_read(r, first, 1, one, &err), PP_ERR_NOMEM);
            pp_mem_fail_at(0, 0);
        }
        for (int64_t i = 0; i < N; i += EVERY) {
            assert_ok(pp_rows_read(r, first + i, 1, one, &err), err);
            if (memcmp(all + (size_t)i * row, one, row) != 0)
                fail_msg("form %d: row %d is another one among others", (int)r->form, (int)i);
        }
    }
    free(weights);
    free(scales);
    free(all);
    free(one);
}

TEST_GROUP(packed)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_a_file_of_its_own),
        cmocka_unit_test(every_form), cmocka_unit_test(to_floats),    cmocka_unit_test(refusals),
        cmocka_unit_test(told_beside), cmocka_unit_test(last_zero_point),
        cmocka_unit_test(no_numbers), cmocka_unit_test(stopped),      cmocka_unit_test(while_loading),
        cmocka_unit_test(while_loading_weighed), cmocka_unit_test(identities), cmocka_unit_test(not_twice),
        cmocka_unit_test(many_at_a_time), cmocka_unit_test(groups_written_to),
    };
    return cmocka_run_group_tests_name("packed", tests, NULL, NULL);
}
