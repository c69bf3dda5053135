/* test_suppressed.c - tokens that a model must never write: read from folders and files, kept by conversions, and never
 * chosen. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/export.h"
#include "engine/gguf.h"
#include "engine/source.h"
#include "engine/text.h"
#include "tests/gguf_file.h"
#include "tests/support.h"

#define STARTER "engine/starter/starter-Q4_K_M.gguf"

/* The bundled model with a list of tokens, or text where the list should be. */
static const char *starter_with(const int32_t *tokens, size_t n, const char *text)
{
    const char *dst = fresh_path("suppressed.gguf");
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open(STARTER, &g, &err), err);
    struct pp_gguf_writer *w = gguf_file_begin(dst);
    gguf_file_copy_keys(w, g);
    if (text)
        pp_gguf_add_text(w, pp_suppressed_key, text);
    else
        pp_gguf_add_i32_array(w, pp_suppressed_key, tokens, n);
    for (size_t i = 0; i < pp_gguf_n_tensors(g); i++) {
        const struct pp_tensor *t = pp_gguf_tensor_at(g, i);
        pp_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    assert_ok(pp_gguf_writer_begin(w, &err), err);
    for (size_t i = 0; i < pp_gguf_n_tensors(g); i++)
        assert_ok(pp_gguf_write(w, pp_gguf_tensor_at(g, i)->data, pp_gguf_tensor_at(g, i)->size, &err), err);
    assert_ok(pp_gguf_writer_finish(w, &err), err);
    pp_gguf_writer_free(w);
    pp_gguf_close(g);
    return dst;
}

/* The first n tokens of the model's greedy answer. */
static void first_tokens(const char *path, int32_t *tokens, int64_t n)
{
    static const char hello[] = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
                                "Hello, who are you?<|eot_id|>"
                                "<|start_header_id|>assistant<|end_header_id|>\n\n";
    struct pp_engine_options opt = {.n_threads = 2, .kv_memory = 64u << 20};
    struct pp_gen_options how = {.sampling = pp_sampling_default(), .max_tokens = n};
    enum pp_finish finish = PP_FINISH_NONE;
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_seq *seq;
    struct pp_gen *gen;
    struct pp_buf text = {0};
    struct pp_error err;
    int32_t *ids;
    size_t n_ids;
    int64_t got;
    int more;
    how.sampling.temp = 0;
    assert_ok(pp_model_open(path, &model, &err), err);
    assert_ok(pp_engine_new(model, &opt, NULL, NULL, &engine, &err), err);
    assert_ok(pp_seq_new(engine, &seq, &err), err);
    assert_ok(pp_tokenize(pp_model_tokenizer(model), hello, strlen(hello), PP_TOKENIZE_SPECIAL, &ids, &n_ids, &err),
              err);
    assert_ok(pp_gen_start(seq, ids, (int64_t)n_ids, &how, NULL, &gen, &err), err);
    while (finish == PP_FINISH_NONE)
        assert_ok(pp_gen_next(gen, NULL, &text, &more, &finish, &err), err);
    const int32_t *chosen = pp_gen_tokens(gen, &got);
    assert_int_equal(got, n);
    memcpy(tokens, chosen, (size_t)n * sizeof *tokens);
    pp_gen_free(gen);
    pp_free(ids);
    pp_buf_free(&text);
    pp_seq_free(seq);
    pp_engine_free(engine);
    pp_model_close(model);
}

static void assert_suppressed(const char *path, const int32_t *tokens, size_t n)
{
    struct pp_source *s;
    struct pp_error err;
    size_t got;
    assert_ok(pp_source_open(path, &s, &err), err);
    const int32_t *list = pp_source_suppressed(s, &got);
    assert_int_equal(got, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(list[i], tokens[i]);
    pp_source_close(s);
}

/* With the list, tokens that the model would write at once are never written; without it they are. */
static void not_chosen(void **state)
{
    enum { N = 4 };
    int32_t plain[N], other[N];
    (void)state;
    first_tokens(STARTER, plain, N);
    first_tokens(starter_with((int32_t[]){plain[0] == 1 ? 2 : 1}, 1, NULL), other, N);
    assert_memory_equal(other, plain, sizeof plain);
    first_tokens(starter_with((int32_t[]){-5, plain[0], 1 << 30, plain[2]}, 4, NULL), other, N);
    for (int i = 0; i < N; i++)
        assert_true(other[i] != plain[0] && other[i] != plain[2]);
}

static void conversions(void **state)
{
    static const int32_t list[] = {-5, 7, 300, 1 << 30}, kept[] = {7, 300};
    const struct pp_convert_options opt = {0};
    const char *folder = fresh_path("folder"), *file = fresh_path("again.gguf"), *copy = fresh_path("copy");
    struct pp_error err;
    (void)state;
    assert_suppressed(STARTER, NULL, 0);
    const char *given = starter_with(list, 4, NULL);
    assert_suppressed(given, kept, 2);
    assert_ok(pp_convert_to_folder(given, folder, &opt, &err), err);
    assert_suppressed(folder, kept, 2);
    assert_ok(pp_convert_to_gguf(folder, file, &opt, &err), err);
    assert_suppressed(file, kept, 2);
    assert_ok(pp_convert_to_folder(folder, copy, &opt, &err), err);
    assert_suppressed(copy, kept, 2);
}

/* generation_config.json contains other things, too, or no tokens. */
static void folders(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        int32_t tokens[2];
    } cases[] = {{"{\"eos_token_id\": 7, \"suppress_tokens\": [9, -1, 1e12, 2.5, \"x\", 11]}", 2, {9, 11}},
                 {"{\"suppress_tokens\": null}", 0, {0}}, {"{\"suppress_tokens\": []}", 0, {0}}, {"{}", 0, {0}}};
    const char *folder = fresh_path("folder");
    struct pp_source *s;
    struct pp_error err;
    char path[600];
    (void)state;
    assert_ok(pp_convert_to_folder(STARTER, folder, &(struct pp_convert_options){0}, &err), err);
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    assert_int_not_equal(access(path, F_OK), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(pp_write_file(path, cases[i].text, strlen(cases[i].text), 0600, &err), err);
        assert_suppressed(folder, cases[i].tokens, cases[i].n);
    }
    assert_ok(pp_write_file(path, "{\"suppress_tokens\": [", 21, 0600, &err), err);
    assert_int_equal(pp_source_open(folder, &s, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "generation_config.json"));
}

static void no_list(void **state)
{
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    assert_int_equal(pp_source_open(starter_with(NULL, 0, "7, 9"), &s, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "tokenizer.ggml.suppress_tokens is not a list of tokens"));
}

TEST_GROUP(suppressed)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(not_chosen), cmocka_unit_test(conversions),
                                       cmocka_unit_test(folders), cmocka_unit_test(no_list)};
    return cmocka_run_group_tests_name("suppressed", tests, NULL, NULL);
}
