/* test_folders.c - models as Hugging Face folders: exported from GGUF files and made from other folders, with weights
 * as floats and in MLX's groups, and converted back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/export.h"
#include "engine/hf.h"
#include "engine/rows.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "engine/text.h"
#include "tests/decoder_model_int.h"
#include "tests/gguf_file.h"
#include "tests/packed_folder.h"
#include "tests/small_model.h"
#include "tests/support.h"

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
    const char *dst = fresh_path("folder");
    struct pp_error err;
    assert_ok(pp_convert_to_folder(src, dst, &opt, &err), err);
    assert_no_gaps(dst);
    assert_model_type(dst);
    return dst;
}

static const char *file_made_of(const char *src)
{
    const char *dst = fresh_path("model.gguf");
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

/* All weights of both are equal, within `most` of the tensor's root mean square; q and k are compared only if `all`. */
static void assert_same_weights(const char *a, const char *b, double most, bool all)
{
    struct pp_source *x, *y;
    struct pp_error err;
    assert_ok(pp_source_open(a, &x, &err), err);
    assert_ok(pp_source_open(b, &y, &err), err);
    assert_int_equal(pp_source_n_tensors(x), pp_source_n_tensors(y));
    for (size_t i = 0; i < pp_source_n_tensors(x); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(x, i), *u = pp_source_tensor(y, t->name);
        if (!u)
            fail_msg("%s has no %s", b, t->name);
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

static const char *const all_families[] = {
    "cohere2", "gemma", "gemma2", "gemma3", "gpt2", "gptneox", "gptoss", "granite", "llama", "llama-bias", "llama-k256",
    "llama-linear", "llama-yarn", "llama3-rope", "mistral-swa", "mixtral", "olmo2", "phi2", "phi3", "qwen2", "qwen3",
    "qwen3moe", "smollm3", "stablelm", "starcoder2",
};
enum { N_FAMILIES = sizeof all_families / sizeof *all_families };

/* The file that another converter made of the family's folder; NULL if there is none. */
static const char *given_file(const char *original)
{
    static char path[600];
    struct stat st;
    snprintf(path, sizeof path, "%s/model.gguf", original);
    return stat(path, &st) == 0 ? path : NULL;
}

/* All families: a folder, the file made of it, the folder made of that, and the file made of that folder have the same
 * weights, ids and answers. The file that another converter made, if there is one, gives the same folder. */
static void of_files(void **state)
{
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const char *family = all_families[i], *original = data_of(family, "");
        for (int k = 0; k < 2; k++) {
            const char *file = k ? given_file(original) : file_made_of(original);
            if (!file)
                continue;
            const char *folder = folder_made_of(file, 0, NULL);
            assert_same_weights(folder, original, 1e-6, true);
            assert_same_answers(family, folder, original, 1e-5);
            assert_same_ids(folder, file);
            const char *again = file_made_of(folder);
            assert_same_weights(again, file, 1e-6, true);
            assert_same_ids(again, file);
        }
    }
}

/* A file in which q, k and v of each layer are one tensor, as some converters wrote them. */
static void write_fused(struct pp_gguf_writer *w, const struct pp_gguf *g, bool announced)
{
    static const char q[] = ".attn_q.";
    struct pp_error err;
    for (size_t i = 0; i < pp_gguf_n_tensors(g); i++) {
        const struct pp_tensor *t = pp_gguf_tensor_at(g, i), *parts[3] = {t};
        const char *at = strstr(t->name, q);
        char name[100];
        int64_t ne[4] = {t->ne[0], t->ne[1], t->ne[2], t->ne[3]};
        if (strstr(t->name, ".attn_k.") || strstr(t->name, ".attn_v."))
            continue;
        for (int p = 1; at && p < 3; p++) {
            snprintf(name, sizeof name, "%.*s.attn_%c.%s", (int)(at - t->name), t->name, "qkv"[p], at + strlen(q));
            parts[p] = pp_gguf_tensor(g, name);
            assert_non_null(parts[p]);
            ne[t->n_dims > 1] += parts[p]->ne[t->n_dims > 1];
        }
        if (at)
            snprintf(name, sizeof name, "%.*s.attn_qkv.%s", (int)(at - t->name), t->name, at + strlen(q));
        if (!announced)
            pp_gguf_add_tensor(w, at ? name : t->name, t->type, t->n_dims, ne);
        for (int p = 0; p < 3 && announced && parts[p]; p++)
            assert_ok(pp_gguf_write(w, parts[p]->data, parts[p]->size, &err), err);
    }
}

static const char *fused_file_of(const char *src)
{
    const char *dst = fresh_path("fused.gguf");
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open(src, &g, &err), err);
    struct pp_gguf_writer *w = gguf_file_begin(dst);
    gguf_file_copy_keys(w, g);
    write_fused(w, g, false);
    assert_ok(pp_gguf_writer_begin(w, &err), err);
    write_fused(w, g, true);
    assert_ok(pp_gguf_writer_finish(w, &err), err);
    pp_gguf_writer_free(w);
    pp_gguf_close(g);
    return dst;
}

/* q, k and v in one tensor, with biases and without, with either order of RoPE's pairs: the same answers, and the same
 * folder. */
static void fused_qkv(void **state)
{
    static const char *const families[] = {"phi2", "llama", "llama-bias", "qwen2", "starcoder2"};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *original = data_of(families[i], ""), *apart = file_made_of(original);
        const char *file = fused_file_of(apart), *folder = folder_made_of(file, 0, NULL);
        assert_same_answers(families[i], file, original, 1e-4);
        assert_same_weights(folder, original, 1e-6, true);
        assert_same_answers(families[i], folder, original, 1e-5);
        assert_same_weights(folder_made_of(file, 8, NULL), folder_made_of(apart, 8, NULL), 1e-6, true);
    }
}

/* A folder of the family in which the given keys replace those of config.json. */
static const char *folder_with(const char *family, const char *keys)
{
    const char *folder = fresh_path("changed");
    char path[600], to[700], name[200];
    struct pp_error err;
    cJSON *config, *more = cJSON_Parse(keys), *item;
    assert_non_null(more);
    assert_ok(pp_json_read(data_of(family, ""), "config.json", &config, &err), err);
    while ((item = more->child)) {
        snprintf(name, sizeof name, "%s", item->string);
        cJSON_DeleteItemFromObjectCaseSensitive(config, name);
        cJSON_AddItemToObject(config, name, cJSON_DetachItemViaPointer(more, item));
    }
    cJSON_DeleteItemFromObjectCaseSensitive(config, "rope_parameters");
    char *text = cJSON_Print(config);
    cJSON_Delete(config);
    cJSON_Delete(more);
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    snprintf(path, sizeof path, "%s/model.safetensors", data_of(family, ""));
    snprintf(to, sizeof to, "%s/model.safetensors", folder);
    assert_int_equal(symlink(path, to), 0);
    return folder;
}

static double number_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item))
        fail_msg("no number %s", key);
    return item->valuedouble;
}

/* RoPE scaling comes back through GGUF with the same numbers, also Llama 3's, which the file holds only as the factors
 * computed from them. */
static void rope_scalings(void **state)
{
    static const struct {
        const char *family, *keys, *type, *numbers[5];
    } cases[] = {
        {"llama", "{\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
         "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}", "llama3",
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
        {"llama-k256", "{\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32,"
         "\"low_freq_factor\":1,\"high_freq_factor\":6,\"original_max_position_embeddings\":8192}}", "llama3",
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
        {"llama", "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4,\"low_freq_factor\":1,"
         "\"high_freq_factor\":1.01,\"original_max_position_embeddings\":3000}}", "llama3", {"factor"}},
        {"llama", "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64,"
         "\"beta_fast\":24,\"beta_slow\":2,\"attention_factor\":1.25}}", "yarn",
         {"factor", "beta_fast", "beta_slow", "original_max_position_embeddings", "attention_factor"}},
        {"qwen2", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}", "linear", {"factor"}},
        {"phi3", "{\"max_position_embeddings\":512,\"original_max_position_embeddings\":64,\"rope_scaling\":{\"type\":"
         "\"longrope\",\"short_factor\":[1,1.0625,1.3,1.7,2,2.5,3,3.3],\"long_factor\":[1,1.5,2.1,4,8,16.3,31,64]}}",
         "longrope", {NULL}},
    };
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *original = folder_with(cases[i].family, cases[i].keys);
        const char *file = file_made_of(original), *folder = folder_made_of(file, 0, NULL);
        cJSON *a, *b;
        struct pp_error err;
        assert_ok(pp_json_read(original, "config.json", &a, &err), err);
        assert_ok(pp_json_read(folder, "config.json", &b, &err), err);
        const cJSON *x = cJSON_GetObjectItemCaseSensitive(a, "rope_scaling");
        const cJSON *y = cJSON_GetObjectItemCaseSensitive(b, "rope_scaling");
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(y, "rope_type");
        type = type ? type : cJSON_GetObjectItemCaseSensitive(y, "type");
        assert_true(cJSON_IsString(type));
        assert_string_equal(type->valuestring, cases[i].type);
        for (int k = 0; k < 5 && cases[i].numbers[k]; k++)
            assert_near(number_of(x, cases[i].numbers[k]), number_of(y, cases[i].numbers[k]),
                        1e-5 * number_of(x, cases[i].numbers[k]));
        cJSON_Delete(a);
        cJSON_Delete(b);
        assert_same_weights(folder, original, 1e-6, true);
        assert_same_answers(cases[i].family, folder, original, 1e-4);
    }
}

/* Folders made from folders: floats keep their types and bits; quantised tensors become the floats they represent. */
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
        const char *packed = fresh_path("packed"), *floats = fresh_path("floats");
        packed_folder("llama-k256", packed_form(forms[i]), &(struct packed_options){0}, packed, floats);
        const char *folder = folder_made_of(packed, 0, "F32");
        assert_same_weights(folder, floats, 1e-6, true);
        assert_same_answers("llama-k256", folder, floats, 1e-4);
    }
}

/* Infinity, which Python writes but JSON does not have, is kept as it is. */
static void infinity(void **state)
{
    const char *bounds = "\"Infinity\", \"-Infinity\"";
    char path[600], *text;
    struct pp_error err;
    size_t n;
    (void)state;
    if (!testdata("architectures"))
        skip();
    const char *original = folder_with("llama", "{\"bounds\":[{\"of\":[\"Infinity\",\"-Infinity\"]}]}");
    for (int i = 0; i < 2; i++) {
        const char *folder = i ? folder_made_of(original, 0, NULL) : original;
        snprintf(path, sizeof path, "%s/config.json", folder);
        assert_ok(pp_read_file(path, 1 << 16, &text, &n, &err), err);
        char *at = strstr(text, bounds);
        if (i) {
            assert_non_null(strstr(text, "[Infinity, -Infinity]"));
        } else {
            assert_non_null(at);
            memcpy(at, " Infinity ,  -Infinity ", strlen(bounds));
            assert_ok(pp_write_file(path, text, n, 0600, &err), err);
        }
        pp_free(text);
    }
}

/* Other files in a model's folder are copied, whatever their names, also from subfolders. */
static void other_files(void **state)
{
    static const char *const files[][2] = {
        {"modules.json", "[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
         "{\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"},"
         "{\"path\":\"2_Normalize\",\"type\":\"sentence_transformers.models.Normalize\"}]"},
        {"1_Pooling/config.json", "{\"pooling_mode_mean_tokens\":true}"},
        {"chat_template.json", "{\"chat_template\":\"{{ messages[0].content }}\"}"},
        {"generation_config.json", "{\"eos_token_id\":7}"},
        {"special_tokens_map.json", "{}"},
        {"words.tiktoken", "YQ== 0\n"},
    };
    enum { N = sizeof files / sizeof *files };
    struct pp_error err;
    struct pp_source *s;
    char path[600];
    (void)state;
    if (!testdata("architectures"))
        skip();
    const char *original = folder_with("llama", "{}");
    snprintf(path, sizeof path, "%s/1_Pooling", original);
    assert_int_equal(mkdir(path, 0700), 0);
    for (int i = 0; i < N; i++) {
        snprintf(path, sizeof path, "%s/%s", original, files[i][0]);
        assert_ok(pp_write_file(path, files[i][1], strlen(files[i][1]), 0600, &err), err);
    }
    const char *folder = folder_made_of(original, 0, NULL);
    for (int i = 0; i < N; i++) {
        char *text;
        size_t n;
        snprintf(path, sizeof path, "%s/%s", folder, files[i][0]);
        assert_ok(pp_read_file(path, 4096, &text, &n, &err), err);
        assert_int_equal(n, strlen(files[i][1]));
        assert_memory_equal(text, files[i][1], n);
        pp_free(text);
    }
    assert_ok(pp_source_open(folder, &s, &err), err);
    assert_string_equal(pp_source_chat_template(s), "{{ messages[0].content }}");
    assert_int_equal(pp_source_hparams(s)->pooling, PP_POOLING_MEAN);
    pp_source_close(s);
    snprintf(path, sizeof path, "%s/modules.json", original);
    assert_ok(pp_write_file(path, "[{\"path\":\"../../x\"}]", 21, 0600, &err), err);
    assert_int_equal(pp_convert_to_folder(original, fresh_path("refused"), &(struct pp_convert_options){0}, &err),
                     PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "../../x"));
}

/* --- MLX --------------------------------------------------------------------------------------------------------- */

/* The mean error of rounding to 2^bits steps, relative to the size of such models' weights. */
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

/* All families: a folder, MLX's 8-bit form of it, and a folder of floats made of that. The 8-bit form is within half a
 * step of the original, and the floats are equal to it. Answers are about as far off as those of Q8_0: where experts
 * are chosen, small differences become large ones. */
static void mlx_and_back(void **state)
{
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const char *family = all_families[i], *original = data_of(family, "");
        const char *mlx = folder_made_of(original, 8, NULL), *back = folder_made_of(mlx, 0, "F32");
        assert_same_weights(mlx, original, 0.008, false);
        assert_same_weights(back, mlx, 1e-6, true);
        assert_same_ids(back, original);
        const char *q8_0 = fresh_path("q8_0.gguf");
        const struct pp_convert_options opt = {0};
        struct pp_error err;
        int64_t n;
        assert_ok(pp_quantize_file(original, q8_0, "Q8_0", &opt, &err), err);
        float *exact = logits_of(family, original, &n), *usual = logits_of(family, q8_0, &n);
        const double most = fmax(0.02, 1.5 * difference(usual, exact, n));
        free(exact);
        free(usual);
        assert_same_answers(family, back, original, most);
        assert_same_answers(family, mlx, original, most);
    }
}

/* Integer groups that fit are kept: those of Q4_0 and Q4_1 files, and MLX's own, in both directions. */
static void integers_stay(void **state)
{
    static const char *const types[] = {"Q4_0", "Q4_1"};
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < 2; i++) {
        const char *file = fresh_path("quantised.gguf");
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
            assert_true(difference(f, g, a->ne[0] * a->ne[1]) == 0); /* a zero may have the other sign */
            free(f);
            free(g);
        }
        pp_source_close(s);
        pp_source_close(t);
    }
    const char *packed = fresh_path("packed");
    packed_folder("llama-k256", packed_form("mlx-2"), &(struct packed_options){0}, packed, NULL);
    const char *folder = folder_made_of(file_made_of(packed), 4, NULL);
    assert_same_weights(folder, packed, 0, true);
}

/* --- what cannot be ---------------------------------------------------------------------------------------------- */

/* A file whose RoPE factors correspond to no scaling that folders can express. */
static const char *odd_divisors(void)
{
    const char *path = fresh_path("odd.gguf");
    char *text;
    size_t size;
    struct pp_source *s;
    struct pp_error err;
    assert_ok(pp_source_open(data_of("llama3-rope", "model.gguf"), &s, &err), err);
    const struct pp_tensor *t = pp_source_tensor(s, "rope_freqs.weight");
    assert_ok(pp_read_file(data_of("llama3-rope", "model.gguf"), 64 << 20, &text, &size, &err), err);
    float *d = memmem(text, size, t->data, t->size);
    assert_non_null(d);
    memcpy(d, &(float){3}, sizeof *d); /* the divisor of the highest frequency, which no scaling changes */
    assert_ok(pp_write_file(path, text, size, 0600, &err), err);
    pp_free(text);
    pp_source_close(s);
    return path;
}

static void assert_other_answers(const char *family, const char *a, const char *b)
{
    int64_t n, m;
    float *x = logits_of(family, a, &n), *y = logits_of(family, b, &m);
    assert_int_equal(n, m);
    assert_true(difference(x, y, n) > 1e-4);
    free(x);
    free(y);
}

/* A file of Gemma 3 as ollama writes them: some keys are missing, and a vision encoder is included. */
static const char *seeing_file_of(const char *src)
{
    static const char *const left_out[] = {"gemma3.attention.layer_norm_rms_epsilon",
                                           "tokenizer.ggml.add_space_prefix"};
    const char *dst = fresh_path("seeing.gguf");
    const float two[] = {1, 2};
    struct pp_tensor tensors[256];
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open(src, &g, &err), err);
    struct pp_gguf_writer *w = gguf_file_begin(dst);
    for (size_t i = 0; i < pp_gguf_n_kv(g); i++) {
        const struct pp_str key = pp_gguf_kv_key(g, i);
        bool copied = true;
        for (int k = 0; k < 2; k++)
            copied = copied && !(key.len == strlen(left_out[k]) && memcmp(key.data, left_out[k], key.len) == 0);
        if (copied)
            pp_gguf_add_copy(w, g, i);
    }
    const size_t n = pp_gguf_n_tensors(g);
    assert_true(n + 2 <= sizeof tensors / sizeof *tensors);
    for (size_t i = 0; i < n; i++)
        tensors[i] = *pp_gguf_tensor_at(g, i);
    tensors[n] = float_tensor("v.blk.0.attn_q.bias", two, 2, 0, 0);
    tensors[n + 1] = float_tensor("mm.mm_soft_emb_norm.weight", two, 2, 0, 0);
    gguf_file_end(w, tensors, n + 2);
    pp_gguf_close(g);
    return dst;
}

static void seeing_files(void **state)
{
    (void)state;
    if (!testdata("architectures"))
        skip();
    const char *file = file_made_of(data_of("gemma3", "")), *seeing = seeing_file_of(file);
    assert_same_answers("gemma3", seeing, file, 0);
    assert_same_ids(seeing, file);
}

/* OLMo 3 is OLMo 2 with a window in some layers; RoPE scaling applies only to the layers without one. */
static void olmo3(void **state)
{
#define CLASS "{\"architectures\": [\"Olmo3ForCausalLM\"], \"model_type\": \"olmo3\", "
#define YARN "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 64}"
#define SLIDING "\"sliding_attention\""
#define FULL "\"full_attention\""
#define TYPES(a, b) "\"layer_types\": [" a ", " b "], "
    (void)state;
    if (!testdata("architectures"))
        skip();
    char plain[300];
    snprintf(plain, sizeof plain, "%s", data_of("olmo2", ""));
    const char *yarn = folder_with("olmo2", "{" YARN "}");
    assert_other_answers("olmo2", plain, yarn);
    assert_same_answers("olmo2", plain, folder_with("olmo2", CLASS TYPES(SLIDING, SLIDING) YARN "}"), 1e-6);
    assert_same_answers("olmo2", yarn, folder_with("olmo2", CLASS TYPES(FULL, FULL) YARN "}"), 1e-6);
    const char *both = folder_with("olmo2", CLASS TYPES(SLIDING, FULL) "\"sliding_window\": 4, " YARN "}");
    assert_other_answers("olmo2", plain, both);
    assert_other_answers("olmo2", yarn, both);
    const char *file = file_made_of(both);
    assert_same_answers("olmo2", file, both, 1e-5);
    assert_same_answers("olmo2", folder_made_of(file, 0, NULL), both, 1e-5);
#undef CLASS
}

/* Ministral 3 is Llama with YaRN up to its original context; test_decoders.c tests how its scores are scaled beyond
 * that. */
static void ministral3(void **state)
{
#define MINISTRAL "{\"architectures\": [\"Ministral3ForCausalLM\"], \"model_type\": \"ministral3\", "
#define SCALING(more, original) "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, " more                  \
                                "\"original_max_position_embeddings\": " original "}}"
    (void)state;
    if (!testdata("architectures"))
        skip();
    const char *folder = folder_with("llama", MINISTRAL SCALING("\"llama_4_scaling_beta\": 0.1, ", "128"));
    assert_same_answers("llama", folder, folder_with("llama", "{" SCALING("", "128")), 1e-6);
    assert_same_answers("llama", folder, file_made_of(folder), 1e-5);
    const char *early = folder_with("llama", MINISTRAL SCALING("\"llama_4_scaling_beta\": 0.1, ", "8"));
    const char *plain = folder_with("llama", "{" SCALING("", "8"));
    assert_other_answers("llama", plain, early);
    const char *file = file_made_of(early);
    assert_same_answers("llama", file, early, 1e-5);
    assert_same_answers("llama", folder_made_of(file, 0, NULL), early, 1e-5);
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open(file, &g, &err), err);
    assert_true(pp_gguf_string_is(g, "general.architecture", "mistral3"));
    assert_true(pp_gguf_has(g, "mistral3.attention.temperature_scale") && !pp_gguf_has(g, "llama.block_count"));
    pp_gguf_close(g);
}

static void refusals(void **state)
{
    static const struct {
        const char *family, *file;
        struct pp_convert_options opt;
        const char *word;
    } cases[] = {
        {"llama", "", {.out_type = "Q8_0"}, "Q8_0"},
        {"llama", "", {.bits = 5}, "4 or 8"},
    };
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *dst = fresh_path("refused");
        const char *src = data_of(cases[i].family, cases[i].file);
        const enum pp_code code = pp_convert_to_folder(src, dst, &cases[i].opt, &err);
        if (code == PP_OK || !strstr(err.text, cases[i].word))
            fail_msg("%s: \"%s\", which does not mention %s", cases[i].family, err.text, cases[i].word);
        char config[400];
        struct stat st;
        snprintf(config, sizeof config, "%s/config.json", dst);
        assert_int_not_equal(stat(config, &st), 0); /* what remains is not a model */
    }
    const char *odd = odd_divisors();
    assert_int_equal(pp_convert_to_folder(odd, fresh_path("refused"), &(struct pp_convert_options){0}, &err),
                     PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "rope_freqs.weight"));
    static const struct {
        const char *file, *word;
    } damaged[] = {
        {"long-without-short", "rope_factors_short.weight"},
        {"falcon-other-heads", "attn_qkv.weight has 16 rows"}, /* but its heads need 24 */
        {"q-of-no-heads", "attn_q.weight has 6 rows"},         /* but a head has 4 */
        {"expert-twice", "both be named"},                 /* separately, and in a stack */
    };
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        char path[100];
        snprintf(path, sizeof path, "tests/corpus/fuzz_model/%s.gguf", damaged[i].file);
        const enum pp_code code =
            pp_convert_to_folder(path, fresh_path("refused"), &(struct pp_convert_options){0}, &err);
        if (code != PP_ERR_FORMAT || !strstr(err.text, damaged[i].word))
            fail_msg("%s: code %d, \"%s\"", path, (int)code, err.text);
    }
    const char *there = folder_made_of(data_of("llama", ""), 0, NULL);
    const struct pp_convert_options plain = {0};
    assert_int_equal(pp_convert_to_folder(data_of("llama", ""), there, &plain, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "already"));
}

/* Existing files in a folder are not overwritten. */
static void into_a_folder(void **state)
{
    const struct pp_convert_options plain = {0};
    const char *dst = fresh_path("mine");
    char path[400], *text;
    struct stat st;
    size_t n;
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    const char *src = data_of("llama", "");
    snprintf(path, sizeof path, "%s/tokenizer.json", dst);
    assert_int_equal(mkdir(dst, 0700), 0);
    assert_ok(pp_write_file(path, "mine", 4, 0600, &err), err);
    assert_int_equal(pp_convert_to_folder(src, dst, &plain, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "not empty (it contains tokenizer.json"));
    assert_ok(pp_read_file(path, 100, &text, &n, &err), err);
    assert_int_equal(n, 4);
    pp_free(text);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/.hidden", dst);
    assert_ok(pp_write_file(path, "mine", 4, 0600, &err), err);
    /* A folder to which another process is writing is not used either, and nothing in it is removed. */
    int lock;
    assert_ok(pp_lock_folder(dst, &lock, &err), err);
    assert_true(lock >= 0);
    assert_int_equal(pp_convert_to_folder(src, dst, &plain, &err), PP_ERR_BUSY);
    assert_non_null(strstr(err.text, "another pippin is writing to"));
    assert_int_equal(access(dst, F_OK), 0);
    close(lock);
    assert_ok(pp_convert_to_folder(src, dst, &plain, &err), err);
    assert_int_equal(stat(path, &st), 0);
}

/* A mixture's file without metadata of experts becomes a folder that declares zero experts, and that opens. */
static void mixture_without_experts(void **state)
{
    static const char *const files[] = {"no-experts", "no-experts-no-size"};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *dst = fresh_path("no-experts");
        char path[100];
        struct pp_source *s;
        struct pp_error err;
        snprintf(path, sizeof path, "tests/corpus/fuzz_convert/%s.gguf", files[i]);
        assert_ok(pp_convert_to_folder(path, dst, &(struct pp_convert_options){0}, &err), err);
        assert_ok(pp_source_open(dst, &s, &err), err);
        assert_int_equal(pp_source_hparams(s)->n_expert, 0);
        pp_source_close(s);
    }
}

/* Matrices that are concatenated from others, or transposed, and so large that this is done in several slices. */
static void in_slices(void **state)
{
    static const struct {
        const char *arch;
        int n_embd, n_ff;
    } cases[] = {{"glm4", 48, 24001}, {"jais", 48, 48001}, {"bloom", 960, 96}, {"internlm2", 960, 96}};
    const struct pp_convert_options f32 = {.out_type = "F32"};
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct decoder_shape s = decoder_shape(cases[i].arch);
        s.n_layer = 1;
        s.rope_dim = s.rope_dim * (cases[i].n_embd / s.n_head) / s.head_dim;
        s.head_dim = cases[i].n_embd / s.n_head;
        s.n_embd = cases[i].n_embd;
        s.n_ff = cases[i].n_ff;
        struct decoder *d = decoder_make(&s);
        char first[300];
        snprintf(first, sizeof first, "%s", decoder_write(d));
        const char *dst = fresh_path("slices");
        assert_ok(pp_convert_to_folder(first, dst, &f32, &err), err);
        assert_same_weights(first, file_made_of(dst), 0, true);
        decoder_free(d);
    }
}

/* A model that consists of nothing but its configuration, as if the header had lost its names: the folder opens. */
static void without_tensors(void **state)
{
    static const struct pp_convert_options how[] = {{.bits = 0}, {.bits = 4}};
    static const char header[] = "\x02\0\0\0\0\0\0\0{}";
    const char *src = fresh_path("no-tensors");
    char to[400];
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    assert_int_equal(mkdir(src, 0700), 0);
    snprintf(to, sizeof to, "%s/config.json", src);
    assert_int_equal(symlink(data_of("llama", "config.json"), to), 0);
    snprintf(to, sizeof to, "%s/model.safetensors", src);
    assert_ok(pp_write_file(to, header, sizeof header - 1, 0600, &err), err);
    for (size_t i = 0; i < 2; i++) {
        const char *dst = fresh_path("no-tensors-again");
        struct pp_source *s;
        assert_ok(pp_convert_to_folder(src, dst, &how[i], &err), err);
        assert_ok(pp_source_open(dst, &s, &err), err);
        assert_int_equal(pp_source_n_tensors(s), 0);
        pp_source_close(s);
    }
}

/* Even one such weight among many others is neither rounded to an integer nor copied; the error names the tensor. */
static void weights_that_are_no_numbers(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e38f};
    struct decoder_shape shape = decoder_shape("mistral3");
    (void)state;
    shape.n_embd = shape.n_ff = 64;
    shape.head_dim = shape.rope_dim = 16;
    struct decoder *d = decoder_make(&shape);
    float *weight = &decoder_find(d, "blk.1.ffn_up.weight")->values[64 + 7];
    for (size_t i = 0; i < 3 * sizeof bad / sizeof *bad; i++) {
        const struct pp_convert_options opt = {.out_type = "F16", .bits = (int)(i % 3) * 4};
        const char *dst = fresh_path("no-numbers");
        struct pp_error err;
        *weight = bad[i / 3];
        assert_int_equal(pp_convert_to_folder(decoder_write(d), dst, &opt, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "layers.1.mlp.up_proj"));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *dst = fresh_path("no-numbers.gguf");
        struct pp_error err;
        *weight = bad[i];
        if (i == 3) { /* a large number is not damage */
            assert_ok(pp_convert_to_gguf(decoder_write(d), dst, &(struct pp_convert_options){0}, &err), err);
            continue;
        }
        assert_int_equal(pp_convert_to_gguf(decoder_write(d), dst, &(struct pp_convert_options){0}, &err),
                         PP_ERR_FORMAT);
        assert_string_equal(err.text,
                            "blk.1.ffn_up.weight: a weight is NaN or infinite; the source is damaged: download it "
                            "again");
        assert_int_not_equal(access(dst, F_OK), 0);
    }
    decoder_free(d);
}

/* If the conversion is stopped or runs out of memory at any point, it reports an error and leaves nothing. */
static void stopped(void **state)
{
    struct pp_cancel cancel = {0};
    const struct pp_convert_options opt = {.cancel = &cancel, .bits = 4};
    struct stat st;
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    pp_cancel_request(&cancel);
    const char *dst = fresh_path("stopped");
    assert_int_equal(pp_convert_to_folder(data_of("llama", "model.gguf"), dst, &opt, &err), PP_ERR_CANCELLED);
    assert_int_equal(stat(dst, &st), -1);
    assert_int_equal(mkdir(dst, 0700), 0); /* the user's own empty folder is empty again */
    assert_int_equal(pp_convert_to_folder(data_of("llama", "model.gguf"), dst, &opt, &err), PP_ERR_CANCELLED);
    assert_int_equal(rmdir(dst), 0);
    pp_cancel_reset(&cancel);
    uint64_t n = pp_mem_count();
    assert_ok(pp_convert_to_folder(data_of("llama", "model.gguf"), fresh_path("whole"), &opt, &err), err);
    n = pp_mem_count() - n;
    for (uint64_t at = 1; at <= n; at += 1 + n / 30) {
        pp_mem_fail_at(at, 0);
        dst = fresh_path("starved");
        const bool whole = pp_convert_to_folder(data_of("llama", "model.gguf"), dst, &opt, &err) == PP_OK;
        pp_mem_fail_at(0, 0);
        assert_int_equal(stat(dst, &st), whole ? 0 : -1);
    }
}

/* Copies a file to the folder. A safetensors header gets one more space at its end, so that the data begin at an odd
 * address. */
static void copy_shifted(const char *family, const char *name, const char *folder)
{
    char path[400];
    char *text;
    size_t size;
    struct pp_error err;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(pp_read_file(data_of(family, name), 64 << 20, &text, &size, &err), err);
    if (strstr(name, ".safetensors")) {
        uint64_t length;
        memcpy(&length, text, sizeof length);
        assert_true(length % 8 == 0 && length < size - 8);
        char *shifted = malloc(size + 1), *data = text + 8 + length;
        assert_non_null(shifted);
        memcpy(shifted, text, 8 + length);
        shifted[8 + length++] = ' ';
        memcpy(shifted + 8 + length, data, size + 1 - 8 - length);
        memcpy(shifted, &length, sizeof length);
        pp_free(text);
        assert_ok(pp_write_file(path, shifted, size + 1, 0666, &err), err);
        free(shifted);
        return;
    }
    assert_ok(pp_write_file(path, text, size, 0666, &err), err);
    pp_free(text);
}

/* MLX does not pad headers, nor did safetensors before 0.3: tensors may then be at any address, and must give the same
 * bits. */
static void at_odd_addresses(void **state)
{
    static const char *const families[] = {"llama-k256", "gpt2", "gemma2", "mixtral", "phi3"};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *folder = fresh_path("odd");
        struct pp_source *s;
        struct pp_error err;
        assert_int_equal(mkdir(folder, 0777), 0);
        copy_shifted(families[i], "config.json", folder);
        copy_shifted(families[i], "model.safetensors", folder);
        assert_ok(pp_source_open(folder, &s, &err), err);
        assert_true(i || pp_source_to_fill(s) > 1 << 20); /* not all tensors are copied when the file is opened */
        pp_source_close(s);
        assert_same_weights(data_of(families[i], ""), folder, 0, true);
        assert_same_answers(families[i], data_of(families[i], ""), folder, 0);
        const char *file = file_made_of(folder);
        assert_same_weights(file, file_made_of(data_of(families[i], "")), 0, true);
    }
}

/* Weights in files with other names than those of transformers, without an index. */
static void without_a_list(void **state)
{
    static const char *const names[][2] = {
        {"weights.00.safetensors", "weights.01.safetensors"},
        {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
        {"gptq_model-4bit-128g.safetensors", NULL},
    };
    struct pp_safetensors *all;
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    assert_ok(pp_safetensors_open(data_of("llama", "model.safetensors"), &all, &err), err);
    const size_t n = pp_safetensors_n(all);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *folder = fresh_path("unlisted");
        char path[400];
        struct pp_source *s;
        assert_int_equal(mkdir(folder, 0777), 0);
        copy_shifted("llama", "config.json", folder);
        for (size_t part = 0; part < 2 && names[i][part]; part++) {
            const size_t begin = part * (n / 2), end = part || !names[i][1] ? n : n / 2;
            snprintf(path, sizeof path, "%s/%s", folder, names[i][part]);
            assert_ok(pp_safetensors_write(path, pp_safetensors_at(all, begin), end - begin, &err), err);
        }
        assert_same_weights(data_of("llama", ""), folder, 0, true);
        if (i == 2)
            continue; /* an additional second file cannot be told from a first one */
        if (i == 0) {
            snprintf(path, sizeof path, "%s/weights.02.safetensors", folder);
            assert_ok(pp_safetensors_write(path, pp_safetensors_at(all, 0), 1, &err), err);
        } else {
            assert_int_equal(unlink(path), 0);
        }
        assert_int_equal(pp_source_open(folder, &s, &err), i ? PP_ERR_NOT_FOUND : PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, i ? "has only 1 of the 2 files of its weights" : "in more than one file"));
    }
    pp_safetensors_close(all);
}

/* Pages that the source released are read again when needed: those of a file, and those of matrices that were
 * transposed on opening. */
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
            pp_source_release_pages(s, t, 0, n_rows);
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
        cmocka_unit_test(of_files),      cmocka_unit_test(fused_qkv),     cmocka_unit_test(olmo3),
        cmocka_unit_test(ministral3),    cmocka_unit_test(seeing_files),
                    cmocka_unit_test(rope_scalings), cmocka_unit_test(of_folders),
        cmocka_unit_test(in_groups),     cmocka_unit_test(mlx_and_back),  cmocka_unit_test(integers_stay),
        cmocka_unit_test(weights_that_are_no_numbers),
        cmocka_unit_test(mixture_without_experts),
        cmocka_unit_test(in_slices),
        cmocka_unit_test(without_tensors),
        cmocka_unit_test(refusals),      cmocka_unit_test(stopped),       cmocka_unit_test(let_go),
        cmocka_unit_test(at_odd_addresses), cmocka_unit_test(without_a_list),
        cmocka_unit_test(into_a_folder), cmocka_unit_test(other_files), cmocka_unit_test(infinity),
    };
    return cmocka_run_group_tests_name("folders", tests, NULL, NULL);
}
