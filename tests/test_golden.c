/* test_golden.c - whole models against reference logits and greedy texts, from Hugging Face folders and from GGUF, with
 * an F32 KV cache; also with adapters, one and several. The references are float32 forward passes of another
 * implementation; the tolerance is 1e-3. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/hf.h"
#include "engine/safetensors.h"
#include "engine/text.h"
#include "tests/packed_folder.h"
#include "tests/support.h"

static const float TOLERANCE = 1e-3f;

struct loaded {
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_seq *seq;
};

/* The activations that F16 and BF16 weights can have without --activations bf16: both are tested, whichever this CPU
 * uses by default. */
static const enum pp_activations both_activations[] = {PP_ACT_F32, PP_ACT_PAIR};

static struct loaded load_for(const char *path, enum pp_activations activations)
{
    struct loaded l;
    struct pp_error err;
    struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 2, .kv_memory = 256u << 20,
                                    .activations = activations};
    assert_ok(pp_model_open(path, &l.model, &err), err);
    assert_ok(pp_engine_new(l.model, &opt, NULL, NULL, &l.engine, &err), err);
    assert_ok(pp_seq_new(l.engine, &l.seq, &err), err);
    return l;
}

static struct loaded load(const char *path)
{
    return load_for(path, PP_ACT_AUTO);
}

static void unload(struct loaded *l)
{
    pp_seq_free(l->seq);
    pp_engine_free(l->engine);
    pp_model_close(l->model);
}

/* Largest absolute difference between our logits for ids [n] and expected [n, n_vocab]. */
static float logits_error(struct loaded *l, const int32_t *ids, int64_t n, const float *expected, int64_t n_expected)
{
    struct pp_error err;
    int64_t n_vocab = pp_model_info(l->model)->n_vocab;
    float worst = 0;
    for (int64_t at = 0; at < n;) {
        struct pp_row rows[64];
        int m = n - at < 64 ? (int)(n - at) : 64;
        for (int i = 0; i < m; i++)
            rows[i] = (struct pp_row){
                .seq = l->seq, .token = ids[at + i], .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
        assert_ok(pp_step(l->engine, rows, m, NULL, &err), err);
        for (int i = 0; i < m && at + i < n_expected; i++) {
            const float *got = pp_step_output(l->engine, i);
            for (int64_t t = 0; t < n_vocab; t++) {
                float e = fabsf(got[t] - expected[(at + i) * n_vocab + t]);
                worst = e > worst || isnan(e) ? e : worst;
            }
        }
        at += m;
    }
    return worst;
}

/* Greedy continuation of what is in the sequence; the last row's logits are those of the last step. */
static void check_greedy(struct loaded *l, const int32_t *prompt, int64_t n, const int32_t *expected,
                         int64_t n_expected)
{
    struct pp_error err;
    struct pp_gen *g;
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = n_expected, .ignore_end = true};
    opt.sampling.temp = 0;
    assert_ok(pp_gen_start(l->seq, prompt, n, &opt, NULL, &g, &err), err);
    enum pp_finish finish = PP_FINISH_NONE;
    struct pp_buf text = {0};
    int n_tokens = 0;
    while (finish == PP_FINISH_NONE)
        assert_ok(pp_gen_next(g, NULL, &text, &n_tokens, &finish, &err), err);
    int64_t got;
    const int32_t *tokens = pp_gen_tokens(g, &got);
    assert_int_equal(got, n_expected);
    assert_memory_equal(tokens, expected, (size_t)n_expected * sizeof *tokens);
    pp_gen_free(g);
    pp_buf_free(&text);
}

static cJSON *read_json(const char *path)
{
    char *text;
    size_t n;
    struct pp_error err;
    assert_ok(pp_read_file(path, 1 << 22, &text, &n, &err), err);
    cJSON *json = cJSON_Parse(text);
    pp_free(text);
    assert_non_null(json);
    return json;
}

/* The prompt's text yields these ids, without and with BOS. */
static void check_ids(const struct loaded *l, const char *text, const int32_t *ids, int64_t n)
{
    const struct pp_tokenizer *t = pp_model_tokenizer(l->model);
    bool same = false;
    assert_non_null(t);
    for (int bos = 0; bos < 2 && !same; bos++) {
        struct pp_error err;
        int32_t *got;
        size_t n_got;
        assert_ok(pp_tokenize(t, text, strlen(text), bos ? PP_TOKENIZE_BOS : 0, &got, &n_got, &err), err);
        same = (int64_t)n_got == n && memcmp(got, ids, n_got * sizeof *got) == 0;
        pp_free(got);
    }
    if (!same)
        fail_msg("%s: other ids for \"%.20s...\"", pp_model_info(l->model)->path, text);
}

static void check_model_for(const char *path, const char *expected_path, enum pp_activations activations)
{
    struct pp_safetensors *e;
    struct pp_error err;
    assert_ok(pp_safetensors_open(expected_path, &e, &err), err);
    struct loaded l = load_for(path, activations);
    char prompts_path[1024];
    snprintf(prompts_path, sizeof prompts_path, "%.*s/prompts.json", (int)(strrchr(expected_path, '/') - expected_path),
             expected_path);
    cJSON *prompts = read_json(prompts_path);
    for (int i = 0; i < 2; i++) {
        char name[16];
        snprintf(name, sizeof name, "ids%d", i);
        const struct pp_tensor *ids = pp_safetensors_find(e, name);
        snprintf(name, sizeof name, "logits%d", i);
        const struct pp_tensor *logits = pp_safetensors_find(e, name);
        snprintf(name, sizeof name, "greedy%d", i);
        const struct pp_tensor *greedy = pp_safetensors_find(e, name);
        assert_true(ids && logits && greedy);
        pp_seq_truncate(l.seq, 0);
        check_ids(&l, cJSON_GetArrayItem(prompts, i)->valuestring, ids->data, ids->ne[0]);
        float error = logits_error(&l, ids->data, ids->ne[0], logits->data, logits->ne[1]);
        if (!(error <= TOLERANCE))
            fail_msg("%s: text %d: logits differ by %g", path, i, (double)error);
        check_greedy(&l, ids->data, ids->ne[0], greedy->data, greedy->ne[0]);
    }
    cJSON_Delete(prompts);
    unload(&l);
    pp_safetensors_close(e);
}

static void check_model(const char *path, const char *expected_path)
{
    for (int i = 0; i < 2; i++)
        check_model_for(path, expected_path, both_activations[i]);
}

/* Skips the test if the family's data are not there. */
static void check_folder(const char *family, char expected[1024])
{
    char relative[256];
    snprintf(relative, sizeof relative, "architectures/%s/expected.safetensors", family);
    const char *path = testdata(relative);
    if (!path)
        skip();
    snprintf(expected, 1024, "%s", path);
    snprintf(relative, sizeof relative, "architectures/%s", family);
    check_model(testdata(relative), expected);
}

/* The measured results, for the README's table. */
struct outcome {
    bool folder, theirs, ours; /* gave the right results: the folder, another converter's file, our file */
    bool folder_of_ours;       /* the folder exported from our file */
    bool mlx, packed;          /* as close as Q8_0 */
};

/* A model's logits are about as close to exact [n] as those of 8-bit weights; with experts, as those with other experts
 * chosen because of rounding. */
static void check_near(const char *family, const char *form, const char *path, const float *exact, double usual)
{
    int64_t n;
    float *is = logits_of(family, path, &n);
    const bool chooses = strstr(family, "moe") || strstr(family, "mixtral");
    const double most = fmax(1.5 * usual, chooses ? 0.15 : 0.02);
    if (!(difference(is, exact, n) <= most))
        fail_msg("%s in %s: the logits differ by %.4f, those of Q8_0 by %.4f", family, form, difference(is, exact, n),
                 usual);
    free(is);
}

/* The folder quantised in other programs' formats; formats for whole matrices only are skipped for families that lack
 * them. */
static bool check_packed(const char *family, double usual)
{
    static const char *const forms[] = {"fp8", "nf4", "gptq-order", "awq-32"};
    char packed[256], floats[256];
    int64_t n;
    if (strcmp(family, "gpt2") == 0 || strcmp(family, "gptoss") == 0)
        return false;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        snprintf(packed, sizeof packed, "%s/%s-%s", test_tmpdir(), family, forms[i]);
        snprintf(floats, sizeof floats, "%s/%s-%s-floats", test_tmpdir(), family, forms[i]);
        packed_folder(family, packed_form(forms[i]), &(struct packed_options){0}, packed, floats);
        float *exact = logits_of(family, floats, &n);
        check_near(family, forms[i], packed, exact, usual);
        free(exact);
    }
    return true;
}

static void check_quantised(const char *family, const char *original, const char *file, struct outcome *outcome)
{
    struct pp_error err;
    const struct pp_convert_options plain = {0}, mlx = {.bits = 8};
    char path[256];
    int64_t n;
    snprintf(path, sizeof path, "%s/%s-q8_0.gguf", test_tmpdir(), family);
    assert_ok(pp_quantize_file(original, path, "Q8_0", &plain, &err), err);
    float *exact = logits_of(family, original, &n), *eight = logits_of(family, path, &n);
    const double usual = difference(eight, exact, n);
    snprintf(path, sizeof path, "%s/%s-mlx", test_tmpdir(), family);
    assert_ok(pp_convert_to_folder(file, path, &mlx, &err), err);
    check_near(family, "MLX's form", path, exact, usual);
    outcome->mlx = true;
    outcome->packed = check_packed(family, usual);
    free(exact);
    free(eight);
}

/* The folder, the GGUF file of another converter if there is one, ours, and the folder exported from that; and the
 * folder quantised on loading. */
static void check_family(const char *family, struct outcome *outcome)
{
    struct pp_error err;
    struct pp_convert_options opt = {0};
    char original[1024], relative[256], path[256], again[256], expected[1024];
    check_folder(family, expected);
    outcome->folder = true;
    snprintf(relative, sizeof relative, "architectures/%s/model.gguf", family);
    snprintf(original, sizeof original, "%s/%s", testdata("architectures"), family);
    if (pp_file_exists(original, "model.gguf")) {
        check_model(testdata(relative), expected);
        outcome->theirs = true;
    }
    snprintf(path, sizeof path, "%s/%s.gguf", test_tmpdir(), family);
    assert_ok(pp_convert_to_gguf(original, path, &opt, &err), err);
    check_model(path, expected);
    outcome->ours = true;
    snprintf(again, sizeof again, "%s/%s", test_tmpdir(), family);
    assert_ok(pp_convert_to_folder(path, again, &opt, &err), err);
    check_model(again, expected);
    outcome->folder_of_ours = true;
    check_quantised(family, original, path, outcome);
}

/* One test for each folder of testdata/architectures, and what its line of the README's table begins with. */
#define FAMILIES(X)                                                                                                    \
    X(llama, "llama", "Llama 1 to 3, Yi, TinyLlama, SmolLM 2")                                                         \
    X(llama3_rope, "llama3-rope", "- with Llama 3.1's RoPE scaling")                                                   \
    X(llama_linear, "llama-linear", "- with linear RoPE scaling")                                                      \
    X(llama_yarn, "llama-yarn", "- with YaRN")                                                                         \
    X(llama_bias, "llama-bias", "- with biases")                                                                       \
    X(llama_k256, "llama-k256", "- with rows that K-quants fit")                                                       \
    X(mistral_swa, "mistral-swa", "Mistral, with a sliding window")                                                    \
    X(mixtral, "mixtral", "Mixtral")                                                                                   \
    X(qwen2, "qwen2", "Qwen 1.5 to 2.5")                                                                               \
    X(qwen3, "qwen3", "Qwen 3")                                                                                        \
    X(qwen3moe, "qwen3moe", "Qwen 3 MoE")                                                                              \
    X(gemma, "gemma", "Gemma")                                                                                         \
    X(gemma2, "gemma2", "Gemma 2")                                                                                     \
    X(gemma3, "gemma3", "Gemma 3")                                                                                     \
    X(phi2, "phi2", "Phi 1.5 and 2")                                                                                   \
    X(phi3, "phi3", "Phi 3 and 4")                                                                                     \
    X(gptoss, "gptoss", "gpt-oss")                                                                                     \
    X(smollm3, "smollm3", "SmolLM 3")                                                                                  \
    X(granite, "granite", "Granite 3")                                                                                 \
    X(olmo2, "olmo2", "OLMo 2")                                                                                        \
    X(cohere2, "cohere2", "Command R7B (Cohere 2)")                                                                    \
    X(stablelm, "stablelm", "StableLM")                                                                                \
    X(starcoder2, "starcoder2", "StarCoder 2")                                                                         \
    X(gptneox, "gptneox", "GPT-NeoX, Pythia")                                                                          \
    X(gpt2, "gpt2", "GPT-2")

#define FAMILY_NUMBER(function, folder, title)   FAMILY_##function,
#define FAMILY_TITLE(function, folder, title)    title,
#define FAMILY_TEST(function, folder, title)     cmocka_unit_test(function),
#define FAMILY_FUNCTION(function, folder, title)                                                                       \
    static void function(void **state) { (void)state; check_family(folder, &outcomes[FAMILY_##function]); }

enum { FAMILIES(FAMILY_NUMBER) N_FAMILIES };
static const char *const titles[] = {FAMILIES(FAMILY_TITLE)};
static struct outcome outcomes[N_FAMILIES];
FAMILIES(FAMILY_FUNCTION)

/* The README's table must hold the results above. With PIPPIN_UPDATE set it is rewritten, and the test fails if that
 * changed anything. */
static void readme_table(void **state)
{
    static const char begin[] = "<!-- families: made by the tests -->\n", end[] = "<!-- end of families -->";
    static const char *const words[] = {"-", "yes"};
    struct pp_buf table = {0}, fresh = {0};
    struct pp_error err;
    char *text;
    size_t n;
    (void)state;
    if (!testdata("architectures"))
        skip();
    pp_buf_str(&table, "| family | Hugging Face folder | llama.cpp's GGUF | our GGUF | our folder | MLX | "
                       "FP8, NF4, GPTQ, AWQ |\n| --- | --- | --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < N_FAMILIES; i++) {
        const struct outcome *o = &outcomes[i];
        pp_buf_fmt(&table, "| %s | %s | %s | %s | %s | %s | %s |\n", titles[i], words[o->folder], words[o->theirs],
                   words[o->ours], words[o->folder_of_ours], words[o->mlx], words[o->packed]);
    }
    assert_ok(pp_read_file("README.md", 1 << 22, &text, &n, &err), err);
    char *from = strstr(text, begin), *to = from ? strstr(from, end) : NULL;
    assert_non_null(to);
    from += strlen(begin);
    const bool current = (size_t)(to - from) == table.len && memcmp(from, table.data, table.len) == 0;
    if (!current && getenv("PIPPIN_UPDATE")) {
        pp_buf_add(&fresh, text, (size_t)(from - text));
        pp_buf_add(&fresh, table.data, table.len);
        pp_buf_str(&fresh, to);
        assert_ok(pp_write_file("README.md", fresh.data, fresh.len, 0644, &err), err);
    }
    if (!current)
        fail_msg("README.md does not tell what families run; `PIPPIN_UPDATE=1 build/pippin-tests golden` writes it:\n"
                 "%s", pp_buf_cstr(&table));
    pp_free(text);
    pp_buf_free(&table);
    pp_buf_free(&fresh);
}

/* --- adapters -------------------------------------------------------------------------------------------------- */

struct use { const char *name; float scale; };

static void check_adapters(struct loaded *l, const char *family, const char *suffix, const struct pp_safetensors *e,
                           const char *tag, const struct use *use, int n)
{
    struct pp_error err;
    struct pp_adapter_use set[2];
    char name[64];
    for (int i = 0; i < n; i++) {
        char relative[256];
        struct pp_adapter *a;
        snprintf(relative, sizeof relative, "architectures/%s/%s%s", family, use[i].name, suffix);
        assert_ok(pp_adapter_load_exact(l->model, testdata(relative), &a, &err), err);
        set[i] = (struct pp_adapter_use){.adapter = a, .scale = use[i].scale};
    }
    snprintf(name, sizeof name, "logits:%s", tag);
    const struct pp_tensor *ids = pp_safetensors_find(e, "ids"), *logits = pp_safetensors_find(e, name);
    assert_true(ids && logits);
    assert_ok(pp_seq_set_adapters(l->seq, set, n, &err), err);
    assert_int_equal(pp_seq_len(l->seq), 0);
    float error = logits_error(l, ids->data, ids->ne[0], logits->data, logits->ne[1]);
    if (!(error <= TOLERANCE))
        fail_msg("%s with %s%s: logits differ by %g", family, tag, suffix, (double)error);
    assert_ok(pp_seq_set_adapters(l->seq, NULL, 0, &err), err);
    pp_seq_truncate(l->seq, 0);
    for (int i = 0; i < n; i++)
        pp_adapter_free((struct pp_adapter *)(uintptr_t)set[i].adapter);
}

static void check_adapter_family(const char *family)
{
    char relative[256];
    struct pp_safetensors *e;
    struct pp_error err;
    snprintf(relative, sizeof relative, "architectures/%s/expected_lora.safetensors", family);
    const char *path = testdata(relative);
    if (!path)
        skip();
    assert_ok(pp_safetensors_open(path, &e, &err), err);
    static const char *const bases[] = {"", "/model.gguf"}, *const suffixes[] = {"", ".gguf"};
    for (int b = 0; b < 4; b++) {
        snprintf(relative, sizeof relative, "architectures/%s%s", family, bases[b / 2]);
        struct loaded l = load_for(testdata(relative), both_activations[b % 2]);
        for (int s = 0; s < 2; s++) {
            check_adapters(&l, family, suffixes[s], e, "base", NULL, 0);
            check_adapters(&l, family, suffixes[s], e, "alpha_1.0", (struct use[]){{"lora-alpha", 1.0f}}, 1);
            check_adapters(&l, family, suffixes[s], e, "beta_1.0", (struct use[]){{"lora-beta", 1.0f}}, 1);
            check_adapters(&l, family, suffixes[s], e, "beta_-0.5", (struct use[]){{"lora-beta", -0.5f}}, 1);
            check_adapters(&l, family, suffixes[s], e, "alpha_0.8+beta_0.6",
                           (struct use[]){{"lora-alpha", 0.8f}, {"lora-beta", 0.6f}}, 2);
        }
        unload(&l);
    }
    pp_safetensors_close(e);
}

static void adapters_llama(void **state) { (void)state; check_adapter_family("llama"); }
static void adapters_llama_k256(void **state) { (void)state; check_adapter_family("llama-k256"); }
static void adapters_qwen2(void **state) { (void)state; check_adapter_family("qwen2"); }

/* --- the bundled model's source -------------------------------------------------------------------------------- */

/* The greedy answers of expected.json, in float arithmetic, word for word. */
static void check_answers(struct loaded *l, const cJSON *answers)
{
    struct pp_error err;
    const cJSON *one;
    cJSON_ArrayForEach(one, answers)
    {
        struct pp_buf prompt = {0}, text = {0};
        struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 48};
        struct pp_gen *g;
        enum pp_finish finish = PP_FINISH_NONE;
        int32_t *ids;
        size_t n;
        int n_tokens = 0;
        opt.sampling.temp = 0;
        pp_buf_fmt(&prompt, "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n%s<|eot_id|>"
                            "<|start_header_id|>assistant<|end_header_id|>\n\n", one->string);
        const struct pp_tokenizer *t = pp_model_tokenizer(l->model);
        assert_ok(pp_tokenize(t, prompt.data, prompt.len, PP_TOKENIZE_SPECIAL, &ids, &n, &err), err);
        assert_ok(pp_gen_start(l->seq, ids, (int64_t)n, &opt, NULL, &g, &err), err);
        while (finish == PP_FINISH_NONE)
            assert_ok(pp_gen_next(g, NULL, &text, &n_tokens, &finish, &err), err);
        while (text.len && (text.data[text.len - 1] == ' ' || text.data[text.len - 1] == '\n'))
            text.data[--text.len] = 0; /* the reference has no trailing white space */
        assert_string_equal(text.data, one->valuestring);
        pp_gen_free(g);
        pp_free(ids);
        pp_buf_free(&prompt);
        pp_buf_free(&text);
    }
}

static void check_starter(const char *path)
{
    struct pp_safetensors *e;
    struct pp_error err;
    assert_ok(pp_safetensors_open(testdata("starter/expected.safetensors"), &e, &err), err);
    struct loaded l = load(path);
    const struct pp_tensor *ids = pp_safetensors_find(e, "ids"), *logits = pp_safetensors_find(e, "logits");
    assert_true(ids && logits);
    float error = logits_error(&l, ids->data, logits->ne[1], logits->data, logits->ne[1]);
    if (!(error <= TOLERANCE))
        fail_msg("%s: logits differ by %g", path, (double)error);
    cJSON *expected = read_json(testdata("starter/expected.json"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(expected, "greedy")), 8);
    check_answers(&l, cJSON_GetObjectItem(expected, "greedy"));
    cJSON_Delete(expected);
    unload(&l);
    pp_safetensors_close(e);
}

static void starter_folder(void **state)
{
    (void)state;
    const char *path = testdata("starter/target");
    if (!path)
        skip();
    check_starter(path);
}

/* The same from the GGUF file that our converter makes of it. */
static void starter_gguf(void **state)
{
    struct pp_error err;
    struct pp_convert_options opt = {0};
    char path[256];
    (void)state;
    if (!testdata("starter/target"))
        skip();
    snprintf(path, sizeof path, "%s/starter.gguf", test_tmpdir());
    assert_ok(pp_convert_to_gguf(testdata("starter/target"), path, &opt, &err), err);
    check_starter(path);
}

/* --- stories260K: a real model with a SentencePiece vocabulary --------------------------------------------------- */

static void stories(void **state)
{
    struct pp_error err;
    (void)state;
    const char *path = testdata("stories260k/stories260K-f32.gguf");
    if (!path)
        skip();
    struct loaded l = load(path);
    cJSON *json = read_json(testdata("stories260k/greedy_float.json"));
    const cJSON *file = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "files"), "stories260K-f32.gguf"), *id;
    int32_t prompt[64], expected[256];
    int n_prompt = 0, n_expected = 0;
    cJSON_ArrayForEach(id, cJSON_GetObjectItem(json, "prompt_ids")) prompt[n_prompt++] = id->valueint;
    cJSON_ArrayForEach(id, cJSON_GetObjectItem(file, "ids")) expected[n_expected++] = id->valueint;
    assert_int_equal(n_expected, 120);
    check_greedy(&l, prompt, n_prompt, expected, n_expected);

    /* The text that llama2.c's own program prints, which includes BOS and the prompt. */
    char *text;
    size_t size, n_ids;
    int32_t *ids;
    assert_ok(pp_read_file(testdata("stories260k/stories260K.expected.txt"), 1 << 16, &text, &size, &err), err);
    const char *story = strstr(text, "\nOnce upon a time,");
    const char *end = story ? strstr(story, "\n## ") : NULL;
    assert_non_null(end);
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 256};
    struct pp_buf answer = {0};
    struct pp_gen *g;
    enum pp_finish finish = PP_FINISH_NONE;
    int n_tokens = 0;
    opt.sampling.temp = 0;
    assert_ok(pp_tokenize(pp_model_tokenizer(l.model), "", 0, PP_TOKENIZE_BOS, &ids, &n_ids, &err), err);
    assert_int_equal(n_ids, 1);
    assert_ok(pp_gen_start(l.seq, ids, 1, &opt, NULL, &g, &err), err);
    while (finish == PP_FINISH_NONE)
        assert_ok(pp_gen_next(g, NULL, &answer, &n_tokens, &finish, &err), err);
    size_t n = (size_t)(end - story - 1);
    const char *got = answer.data + (answer.data[0] == ' '); /* skips the space that SentencePiece puts before the first
                                                                word */
    assert_true(strlen(got) >= n);
    assert_memory_equal(got, story + 1, n);
    pp_gen_free(g);
    pp_buf_free(&answer);
    pp_free(ids);
    pp_free(text);
    cJSON_Delete(json);
    unload(&l);
}

TEST_GROUP(golden)
{
    const struct CMUnitTest tests[] = {
        FAMILIES(FAMILY_TEST)
        cmocka_unit_test(readme_table),
        cmocka_unit_test(adapters_llama), cmocka_unit_test(adapters_llama_k256), cmocka_unit_test(adapters_qwen2),
        cmocka_unit_test(starter_folder),
        cmocka_unit_test(starter_gguf),   cmocka_unit_test(stories),
    };
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
