/* test_worker_reasoning.c - what the worker computes again where a template leaves out earlier turns' reasoning. */
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/kv.h"
#include "engine/text.h"
#include "src/event.h"
#include "tests/patience.h"
#include "tests/support.h"
#include "tests/worker_fixture.h"

#define STARTER "engine/starter/starter-Q4_K_M.gguf"
#define USER "<|start_header_id|>user<|end_header_id|>\n\n"
#define ASSISTANT "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"

/* Opens a reasoning section, and shows only the last message's reasoning. */
static const char source[] =
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if loop.last and m.reasoning_content %}<think>\n{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n<think>\n";

static struct worker_fixture w;
static uint64_t request;

/* Computes an answer to these messages; returns its last event. */
static struct pp_event answered(const char *session, const char *messages, int64_t max_tokens)
{
    struct pp_generate_request r = {.request = ++request, .messages_json = messages, .session_key = session,
                                    .sampling = pp_sampling_default(), .max_tokens = max_tokens,
                                    .template_source = source};
    r.sampling.temp = 0;
    w.backend->ops->generate(w.backend, &r);
    for (;;) {
        struct pp_event *e = pp_queue_pop(w.events, TEST_PATIENCE_MS);
        if (!e)
            fail_msg("no event in time");
        const struct pp_event copy = *e;
        pp_event_free(e);
        assert_int_not_equal(copy.type, PP_EVENT_LOAD_FAILED);
        if (copy.type == PP_EVENT_TEXT) /* reasoning only */
            assert_true(copy.text_len == 0 && copy.thoughts.n_tokens > 0);
        if (copy.type != PP_EVENT_DONE)
            continue;
        assert_int_equal(copy.err.code, PP_OK);
        return copy;
    }
}

/* How many tokens two prompts have in common; *n_b: how many the second has. */
static int64_t common_tokens(const char *a, const char *b, int64_t *n_b)
{
    struct pp_tokenizer *t;
    struct pp_error err;
    int32_t *p, *q;
    size_t n, m, same = 0;
    assert_ok(pp_tokenizer_open(STARTER, &t, &err), err);
    assert_ok(pp_tokenize(t, a, strlen(a), PP_TOKENIZE_SPECIAL, &p, &n, &err), err);
    assert_ok(pp_tokenize(t, b, strlen(b), PP_TOKENIZE_SPECIAL, &q, &m, &err), err);
    while (same < n && same < m && p[same] == q[same])
        same++;
    *n_b = (int64_t)m;
    pp_free(p);
    pp_free(q);
    pp_tokenizer_free(t);
    return (int64_t)same;
}

/* The messages with an answer and another question, and the template's text for them. */
static void second_turn(const char *question, const char *answer, struct pp_buf *messages, struct pp_buf *prompt)
{
    pp_buf_fmt(messages, "[{\"role\":\"user\",\"content\":\"%s\"},{\"role\":\"assistant\",\"content\":\"%s\","
               "\"reasoning_content\":\"thoughts\"},{\"role\":\"user\",\"content\":\"And?\"}]", question, answer);
    pp_buf_fmt(prompt, "<|begin_of_text|>" USER "%s" ASSISTANT "%s<|eot_id|>" USER "And?" ASSISTANT "<think>\n",
               question, answer);
}

/* Only what follows the first difference is computed again: from its token on in the conversation itself, from its
 * page on in another conversation with the same beginning. */
static void from_the_first_difference(void **state)
{
    struct pp_buf question = {0}, first = {0}, messages = {0}, own = {0}, own_prompt = {0}, other = {0},
                  other_prompt = {0};
    char folder[300];
    int64_t n_own, n_other;
    (void)state;
    snprintf(folder, sizeof folder, "%s", test_path("dropped"));
    worker_begin(&w, folder,
                 &(struct pp_load_request){.model = STARTER, .engine = {.n_threads = 2, .n_ctx = 2048}});
    for (int i = 0; i < 60; i++)
        pp_buf_fmt(&question, "Number %d is a number. ", i);
    pp_buf_fmt(&messages, "[{\"role\":\"user\",\"content\":\"%s\"}]", pp_buf_cstr(&question));
    pp_buf_fmt(&first, "<|begin_of_text|>" USER "%s" ASSISTANT "<think>\n", pp_buf_cstr(&question));
    second_turn(pp_buf_cstr(&question), "So.", &own, &own_prompt);
    second_turn(pp_buf_cstr(&question), "No, never.", &other, &other_prompt);
    const int64_t same = common_tokens(pp_buf_cstr(&first), pp_buf_cstr(&own_prompt), &n_own);
    assert_int_equal(common_tokens(pp_buf_cstr(&first), pp_buf_cstr(&other_prompt), &n_other), same);
    assert_true(same > 2 * PP_PAGE_TOKENS && same % PP_PAGE_TOKENS != 0);

    struct pp_event e = answered("own", pp_buf_cstr(&messages), 40);
    assert_true(e.stats.decode_tokens > 0);
    e = answered("own", pp_buf_cstr(&own), 1);
    assert_int_equal(e.stats.prompt_tokens, n_own);
    assert_int_equal(e.stats.cached_tokens, same);
    assert_int_equal(e.stats.prefill_tokens, n_own - same);
    e = answered("other", pp_buf_cstr(&other), 1);
    assert_int_equal(e.stats.prompt_tokens, n_other);
    assert_in_range(e.stats.cached_tokens, same / PP_PAGE_TOKENS * PP_PAGE_TOKENS, same);
    assert_int_equal(e.stats.prefill_tokens, n_other - (int64_t)e.stats.cached_tokens);
    worker_end(&w);
    pp_buf_free(&question);
    pp_buf_free(&first);
    pp_buf_free(&messages);
    pp_buf_free(&own);
    pp_buf_free(&own_prompt);
    pp_buf_free(&other);
    pp_buf_free(&other_prompt);
}

/* An error in a template is reported with its line, and with what to do about it in the chat. */
static void a_template_that_gives_up(void **state)
{
    static const struct {
        const char *source, *says;
    } cases[] = {
        {"a\n\n{{ raise_exception('only two roles!') }}", "line 3: only two roles; /template chooses another one"},
        {"a\n{% if %}", "line 2: an expression was expected, but the tag ends; /template chooses another one"},
    };
    char folder[300];
    (void)state;
    snprintf(folder, sizeof folder, "%s", test_path("gives-up"));
    worker_begin(&w, folder, &(struct pp_load_request){.model = STARTER, .engine = {.n_threads = 1, .n_ctx = 512}});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct pp_generate_request r = {
            .request = ++request, .messages_json = "[{\"role\":\"user\",\"content\":\"x\"}]", .session_key = "x",
            .sampling = pp_sampling_default(), .max_tokens = 1, .template_source = cases[i].source};
        w.backend->ops->generate(w.backend, &r);
        for (enum pp_event_type type = PP_EVENT_TEXT; type != PP_EVENT_DONE;) {
            struct pp_event *e = pp_queue_pop(w.events, TEST_PATIENCE_MS);
            if (!e)
                fail_msg("no event in time");
            type = e->type;
            if (type == PP_EVENT_DONE && (e->err.code != PP_ERR_FORMAT || !strstr(e->err.text, cases[i].says)))
                fail_msg("%s: \"%s\"", cases[i].source, e->err.text);
            pp_event_free(e);
        }
    }
    worker_end(&w);
}

TEST_GROUP(worker_reasoning)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(from_the_first_difference),
                                       cmocka_unit_test(a_template_that_gives_up)};
    return cmocka_run_group_tests_name("worker_reasoning", tests, NULL, NULL);
}
