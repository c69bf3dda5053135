/* test_activate.c - activated LoRA (aLoRA): an adapter takes effect from the last occurrence of its invocation tokens
 * in the prompt. Which rows it changes, which it leaves to the base model, and whose KV pages are reused. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine_int.h"
#include "engine/lora.h"
#include "tests/adapter_folder.h"
#include "tests/passes.h"
#include "tests/support.h"

enum { LENGTH = 200, FIRST = 70, LAST = 150 }; /* positions of the invocation in text() */

static const char plain_config[] = "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8}";
static const char invoked_config[] = "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,"
                                     "\"alora_invocation_tokens\":[7,8,9]}";

static struct {
    struct tiny_shape shape;
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_adapter *plain, *invoked; /* adapters with the same matrices */
    const char *model_path, *invoked_path;
    int64_t n_vocab;
} fix;

static int setup(void **state)
{
    struct folder f = {.random = 31};
    struct pp_error err;
    (void)state;
    fix.shape = biased_shape(PP_TYPE_Q8_0);
    fix.model_path = tiny_model(&fix.shape);
    assert_ok(pp_model_open(fix.model_path, &fix.model, &err), err);
    const struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 512, .kv_memory = 64u << 20};
    assert_ok(pp_engine_new(fix.model, &opt, NULL, NULL, &fix.engine, &err), err);
    fix.n_vocab = pp_model_info(fix.model)->n_vocab;
    for (int i = 0; i < FOLDER_MODULES; i++)
        folder_add_lora(&f, &fix.shape, i, 4);
    fix.invoked_path = folder_write_peft(&f, invoked_config);
    assert_ok(pp_adapter_load(fix.model, fix.invoked_path, &fix.invoked, &err), err);
    assert_ok(pp_adapter_load(fix.model, folder_write_peft(&f, plain_config), &fix.plain, &err), err);
    folder_empty(&f);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pp_adapter_free(fix.plain);
    pp_adapter_free(fix.invoked);
    pp_engine_free(fix.engine);
    pp_model_close(fix.model);
    return 0;
}

/* Random tokens without an invocation, in which it is then written at the given positions. */
static const int32_t *text(int first, int last)
{
    static int32_t tokens[LENGTH];
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = 11 + i * 7 % 40;
    for (int i = 0; i < 3 && first >= 0; i++)
        tokens[first + i] = 7 + i;
    for (int i = 0; i < 3 && last >= 0; i++)
        tokens[last + i] = 7 + i;
    return tokens;
}

static struct pp_seq *sequence(const struct pp_adapter *a, float strength)
{
    struct pp_seq *s;
    struct pp_error err;
    assert_ok(pp_seq_new(fix.engine, &s, &err), err);
    assert_ok(pp_seq_set_adapters(s, &(struct pp_adapter_use){a, strength}, a ? 1 : 0, &err), err);
    return s;
}

/* Rows from..end - 1, `rows` at a time; their logits go to out [LENGTH, n_vocab]. */
static void feed(struct pp_seq *s, const int32_t *tokens, int from, int end, int rows, float *out)
{
    run_in_passes(fix.engine, s, tokens + from, end - from, rows, out + from * fix.n_vocab);
}

static float *all_logits(const struct pp_adapter *a, const int32_t *tokens, int rows)
{
    float *out = pp_calloc((size_t)(LENGTH * fix.n_vocab), sizeof *out);
    struct pp_seq *s = sequence(a, 0.8f);
    pp_seq_activate(s, tokens, LENGTH);
    feed(s, tokens, 0, LENGTH, rows, out);
    pp_seq_free(s);
    return out;
}

static void rows_equal(const float *a, const float *b, int from, int end)
{
    assert_memory_equal(a + from * fix.n_vocab, b + from * fix.n_vocab,
                        (size_t)((end - from) * fix.n_vocab) * sizeof *a);
}

/* Without its invocation the adapter has no effect; with it at the very beginning it is an ordinary adapter. Otherwise
 * the rows before the last invocation are the base model's, and later rows attend to the keys and values of those. */
static void acts_behind_its_invocation(void **state)
{
    static const int row_counts[] = {1, 3, 23, 64};
    (void)state;
    float *base = all_logits(NULL, text(-1, -1), 64), *none = all_logits(fix.invoked, text(-1, -1), 64);
    rows_equal(base, none, 0, LENGTH);
    pp_free(base);
    pp_free(none);
    float *whole = all_logits(fix.plain, text(0, -1), 64), *at_once = all_logits(fix.invoked, text(0, -1), 64);
    rows_equal(whole, at_once, 0, LENGTH);
    pp_free(whole);
    pp_free(at_once);

    const int32_t *tokens = text(FIRST, LAST);
    base = all_logits(NULL, tokens, 64);
    whole = all_logits(fix.plain, tokens, 64);
    float *expected = pp_calloc((size_t)(LENGTH * fix.n_vocab), sizeof *expected);
    struct pp_seq *s = sequence(NULL, 0);
    feed(s, tokens, 0, LAST, 64, expected);
    s->spans[0].set = (struct pp_adapter_set){.n = 1, .use = {{fix.plain, 0.8f}}}; /* set directly, not through the
                                                                                      interface */
    feed(s, tokens, LAST, LENGTH, 64, expected);
    pp_seq_free(s);
    rows_equal(base, expected, 0, LAST);
    for (size_t i = 0; i < sizeof row_counts / sizeof row_counts[0]; i++) {
        float *got = all_logits(fix.invoked, tokens, row_counts[i]);
        rows_equal(expected, got, 0, LENGTH);
        pp_free(got);
    }
    for (int i = LAST; i < LENGTH; i++) {
        assert_memory_not_equal(expected + i * fix.n_vocab, base + i * fix.n_vocab, sizeof *base);
        assert_memory_not_equal(expected + i * fix.n_vocab, whole + i * fix.n_vocab, sizeof *base);
    }
    pp_free(expected);
    pp_free(base);
    pp_free(whole);
}

/* Computes an answer; returns how many tokens of the prompt were cached. */
static int64_t answer(struct pp_seq *s, const int32_t *prompt, int64_t n, int32_t out[8])
{
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 8, .ignore_end = true};
    struct pp_error err;
    struct pp_buf ignored = {0};
    struct pp_gen *g;
    enum pp_finish finish = PP_FINISH_NONE;
    int n_tokens = 0;
    int64_t got;
    opt.sampling.temp = 0;
    assert_ok(pp_gen_start(s, prompt, n, &opt, NULL, &g, &err), err);
    while (finish == PP_FINISH_NONE)
        assert_ok(pp_gen_next(g, NULL, &ignored, &n_tokens, &finish, &err), err);
    memcpy(out, pp_gen_tokens(g, &got), 8 * sizeof *out);
    assert_int_equal(got, 8);
    const int64_t cached = (int64_t)pp_gen_stats(g).cached_tokens;
    pp_gen_free(g);
    pp_buf_free(&ignored);
    return cached;
}

/* A sequence with the adapter reuses the base model's pages, but only those before the invocation; and the other way
 * round. */
static void base_pages_are_reused(void **state)
{
    int32_t tokens[LENGTH], got[8], expected[8];
    const int32_t plain_text = text(-1, LAST)[3];
    (void)state;
    memcpy(tokens, text(-1, LAST), sizeof tokens);
    tokens[3] = plain_text + 1; /* so that pages of other tests do not match */
    const struct pp_adapter_use use = {fix.invoked, 1}, whole = {fix.plain, 1};
    struct pp_seq *base = sequence(NULL, 0), *s = sequence(fix.invoked, 1), *other = sequence(fix.plain, 1);
    assert_int_equal(answer(base, tokens, LENGTH, got), 0);
    assert_int_equal(pp_engine_cached_tokens(fix.engine, &use, 1, tokens, LENGTH),
                     LAST / PP_PAGE_TOKENS * PP_PAGE_TOKENS);
    assert_int_equal(pp_engine_cached_tokens(fix.engine, &whole, 1, tokens, LENGTH), 0);
    assert_int_equal(answer(s, tokens, LENGTH, got), LAST / PP_PAGE_TOKENS * PP_PAGE_TOKENS);
    assert_int_equal(answer(other, tokens, LENGTH, expected), 0); /* an ordinary adapter has pages of its own */

    /* the next prompt has its invocation elsewhere: what was computed after the old one is dropped */
    const struct pp_seq *before = s;
    assert_int_equal(pp_seq_cached_tokens(before, &use, 1, tokens, LENGTH), LENGTH);
    for (int i = 0; i < 3; i++)
        tokens[LENGTH - 3 + i] = 7 + i;
    assert_int_equal(pp_seq_cached_tokens(before, &use, 1, tokens, LENGTH), LAST);
    const int64_t before_it = (LENGTH - 3) / PP_PAGE_TOKENS * PP_PAGE_TOKENS;
    assert_int_equal(answer(s, tokens, LENGTH, got), before_it); /* up to the new invocation it finds the base model's
                                                                    pages */
    struct pp_seq *fresh = sequence(fix.invoked, 1);
    assert_true(answer(fresh, tokens, LENGTH, expected) >= LAST / PP_PAGE_TOKENS * PP_PAGE_TOKENS);
    assert_memory_equal(got, expected, sizeof got);

    /* what was computed before the invocation serves a conversation without the adapter */
    tokens[3]++;
    struct pp_seq *first = sequence(fix.invoked, 1), *without = sequence(NULL, 0);
    assert_int_equal(answer(first, tokens, LENGTH, got), 0);
    assert_int_equal(answer(without, tokens, LENGTH, got), before_it);
    struct pp_seq *all[] = {base, s, other, fresh, first, without};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pp_seq_free(all[i]);
}

/* An invocation that begins on one page may be completed on the next. Then fewer rows are computed with the adapter
 * than for a prompt in which an earlier invocation is the last complete one. */
static void ended_on_the_next_page(void **state)
{
    enum { BEGIN = 2 * PP_PAGE_TOKENS, WHOLE = BEGIN - 50, ENDED = BEGIN - 2 };
    int32_t tokens[LENGTH], got[8], expected[8];
    (void)state;
    memcpy(tokens, text(WHOLE, ENDED), sizeof tokens);
    tokens[5] = 61; /* so that pages of other tests do not match */
    const struct pp_adapter_use use = {fix.invoked, 1};
    struct pp_seq *first = sequence(fix.invoked, 1), *second = sequence(fix.invoked, 1);
    assert_int_equal(answer(first, tokens, LENGTH, got), 0);
    assert_int_equal(pp_engine_cached_tokens(fix.engine, &use, 1, tokens, LENGTH),
                     LENGTH / PP_PAGE_TOKENS * PP_PAGE_TOKENS);
    tokens[BEGIN] = 61;
    assert_int_equal(pp_engine_cached_tokens(fix.engine, &use, 1, tokens, LENGTH), PP_PAGE_TOKENS);
    assert_int_equal(answer(second, tokens, LENGTH, expected), PP_PAGE_TOKENS);
    pp_seq_free(first);
    pp_seq_free(second);
}

/* Two prompts under different adapters that are processed together share the pages before the invocation. */
static void shared_while_read(void **state)
{
    enum { N = 2 };
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 4, .ignore_end = true};
    struct pp_seq *s[N] = {sequence(NULL, 0), sequence(fix.invoked, 1)};
    struct pp_gen_item items[N] = {{0}};
    struct pp_buf ignored[N] = {{0}};
    struct pp_error err;
    int32_t tokens[LENGTH], alone[8];
    (void)state;
    memcpy(tokens, text(-1, LAST), sizeof tokens);
    tokens[1] = 60;
    opt.sampling.temp = 0;
    for (int i = 0; i < N; i++) {
        items[i].text = &ignored[i];
        assert_ok(pp_gen_begin(s[i], tokens, LENGTH, &opt, &items[i].gen, &err), err);
    }
    for (bool more = true; more;) {
        assert_ok(pp_gen_step(items, N, NULL, &err), err);
        more = false;
        for (int i = 0; i < N; i++) {
            assert_int_equal(items[i].code, PP_OK);
            more = more || items[i].finish == PP_FINISH_NONE;
        }
    }
    assert_true(pp_gen_stats(items[1].gen).cached_tokens >= LAST / PP_PAGE_TOKENS * PP_PAGE_TOKENS);
    struct pp_seq *clean = sequence(fix.invoked, 1);
    answer(clean, tokens, LENGTH, alone);
    int64_t n;
    assert_memory_equal(pp_gen_tokens(items[1].gen, &n), alone, 4 * sizeof *alone);
    for (int i = 0; i < N; i++) {
        pp_gen_free(items[i].gen);
        pp_buf_free(&ignored[i]);
        pp_seq_free(s[i]);
    }
    pp_seq_free(clean);
}

/* --- snapshots --------------------------------------------------------------------------------------------------- */

static const struct pp_sha256 identity = {.bytes = {9}};

static void save(struct pp_seq *s, const char *base)
{
    struct pp_error err;
    struct pp_save *j;
    uint64_t bytes;
    assert_ok(pp_save_new(s, &identity, base, "me", &j, &err), err);
    assert_ok(pp_save_plan(j, UINT64_MAX, &bytes, &err), err);
    for (bool done = false; !done;)
        assert_ok(pp_save_write(j, 1 << 20, NULL, &done, &err), err);
    pp_save_free(j);
}

/* How many tokens of a prompt another process restores from disk, with an adapter or without. */
static int64_t restored(const char *base, const struct pp_adapter *a, const int32_t *tokens, int64_t n)
{
    const struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 512, .kv_memory = 64u << 20};
    struct pp_engine *usual = fix.engine;
    struct pp_error err;
    int32_t got[8], expected[8];
    struct pp_seq *clean = sequence(a, 1);
    answer(clean, tokens, n, expected);
    pp_seq_free(clean);
    assert_ok(pp_engine_new(fix.model, &opt, NULL, NULL, &fix.engine, &err), err);
    struct pp_seq *s = sequence(a, 1);
    enum pp_code code = pp_snapshot_restore(s, &identity, base, "me", tokens, n, NULL, &err);
    assert_true(code == PP_OK || code == PP_ERR_MISMATCH);
    const int64_t len = pp_seq_len(s);
    answer(s, tokens, n, got);
    assert_memory_equal(got, expected, sizeof got);
    pp_seq_free(s);
    pp_engine_free(fix.engine);
    fix.engine = usual;
    return len;
}

static void snapshots(void **state)
{
    int32_t tokens[LENGTH], other[LENGTH], ignored[8];
    char base[300];
    (void)state;
    snprintf(base, sizeof base, "%s/activated", test_tmpdir());
    memcpy(tokens, text(-1, LAST), sizeof tokens);
    struct pp_seq *s = sequence(fix.invoked, 1);
    answer(s, tokens, LENGTH, ignored);
    save(s, base);
    pp_seq_free(s);
    assert_int_equal(restored(base, fix.invoked, tokens, LENGTH), LENGTH);
    assert_int_equal(restored(base, NULL, tokens, LENGTH), LAST / PP_PAGE_TOKENS * PP_PAGE_TOKENS);
    assert_int_equal(restored(base, fix.plain, tokens, LENGTH), 0);
    memcpy(other, tokens, sizeof other); /* the same conversation with the next turn's invocation */
    memcpy(other + LENGTH - 3, (const int32_t[]){7, 8, 9}, 3 * sizeof *other);
    assert_int_equal(restored(base, fix.invoked, other, LENGTH), LAST / PP_PAGE_TOKENS * PP_PAGE_TOKENS);

    /* the same from a conversation without the adapter */
    snprintf(base, sizeof base, "%s/unactivated", test_tmpdir());
    s = sequence(NULL, 0);
    answer(s, tokens, LENGTH, ignored);
    save(s, base);
    pp_seq_free(s);
    assert_int_equal(restored(base, fix.invoked, tokens, LENGTH), LAST / PP_PAGE_TOKENS * PP_PAGE_TOKENS);
    assert_int_equal(restored(base, NULL, tokens, LENGTH), LENGTH);
}

/* --- files ------------------------------------------------------------------------------------------------------- */

static void refuses(const struct folder *f, const char *config, enum pp_code code, const char *word)
{
    struct pp_adapter *a;
    struct pp_error err;
    assert_int_equal(pp_adapter_load(fix.model, folder_write_peft(f, config), &a, &err), code);
    if (!strstr(err.text, word))
        fail_msg("\"%s\" does not say \"%s\"", err.text, word);
}

/* Adapters that could not be loaded are not converted either, in both directions. */
static void not_of_the_vocabulary(void **state)
{
    char config[96], gguf[300], again[300], back[300];
    struct pp_error err;
    struct tiny_shape larger = fix.shape;
    struct folder f = {.random = 33};
    (void)state;
    larger.n_vocab += 64;
    folder_add_lora(&f, &fix.shape, 0, 4);
    snprintf(config, sizeof config, "{\"peft_type\":\"LORA\",\"r\":4,\"alora_invocation_tokens\":[1,%d]}",
             (int)fix.n_vocab);
    snprintf(gguf, sizeof gguf, "%s/larger.gguf", test_tmpdir());
    snprintf(again, sizeof again, "%s/smaller.gguf", test_tmpdir());
    snprintf(back, sizeof back, "%s/smaller", test_tmpdir());
    const char *folder = folder_write_peft(&f, config);
    struct pp_convert_options opt = {.base = tiny_model(&larger)};
    assert_ok(pp_convert_to_gguf(folder, gguf, &opt, &err), err);
    opt.base = fix.model_path;
    for (int i = 0; i < 2; i++) {
        const char *to = i ? back : again;
        assert_int_equal(i ? pp_convert_to_peft(gguf, to, &opt, &err) : pp_convert_to_gguf(folder, to, &opt, &err),
                         PP_ERR_MISMATCH);
        snprintf(config, sizeof config, "invoked by token %d", (int)fix.n_vocab);
        assert_non_null(strstr(err.text, config));
        assert_int_not_equal(access(to, F_OK), 0);
    }
    folder_empty(&f);
}

static void files(void **state)
{
    char gguf[300], folder[300];
    struct pp_adapter *a;
    struct pp_error err;
    struct folder f = {.random = 32};
    const struct pp_convert_options opt = {.base = fix.model_path};
    (void)state;
    snprintf(gguf, sizeof gguf, "%s/activated.gguf", test_tmpdir());
    snprintf(folder, sizeof folder, "%s/activated-again", test_tmpdir());
    assert_ok(pp_convert_to_gguf(fix.invoked_path, gguf, &opt, &err), err);
    assert_ok(pp_convert_to_peft(gguf, folder, &opt, &err), err);
    for (int i = 0; i < 2; i++) {
        assert_ok(pp_adapter_load(fix.model, i ? folder : gguf, &a, &err), err);
        assert_int_equal(pp_adapter_info(a)->n_invocation, 3);
        assert_memory_equal(&a->identity, &fix.invoked->identity, sizeof a->identity);
        pp_adapter_free(a);
    }
    assert_memory_not_equal(&fix.plain->identity, &fix.invoked->identity, sizeof a->identity);
    folder_add_lora(&f, &fix.shape, 0, 4);
    refuses(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"alora_invocation_tokens\":[1,\"x\"]}", PP_ERR_FORMAT, "tokens");
    refuses(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"alora_invocation_tokens\":[1.5]}", PP_ERR_FORMAT, "tokens");
    refuses(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"alora_invocation_tokens\":7}", PP_ERR_FORMAT, "tokens");
    refuses(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"alora_invocation_tokens\":[99999999]}", PP_ERR_MISMATCH, "99999999");
    refuses(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"invocation_string\":\"<go>\"}", PP_ERR_UNSUPPORTED,
            "alora_invocation_tokens");
    assert_ok(pp_adapter_load(fix.model, folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4,"
                                                               "\"alora_invocation_tokens\":null}"), &a, &err), err);
    assert_int_equal(pp_adapter_info(a)->n_invocation, 0);
    pp_adapter_free(a);
    folder_empty(&f);
}

TEST_GROUP(activate)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(acts_behind_its_invocation),
        cmocka_unit_test(base_pages_are_reused),
        cmocka_unit_test(ended_on_the_next_page),
        cmocka_unit_test(shared_while_read),
        cmocka_unit_test(snapshots),
        cmocka_unit_test(files),
        cmocka_unit_test(not_of_the_vocabulary),
    };
    return cmocka_run_group_tests_name("activate", tests, setup, teardown);
}
