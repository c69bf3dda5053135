/* test_worker_several.c - the local backend with several answers at once, on the bundled model. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "src/event.h"
#include "tests/patience.h"
#include "tests/support.h"
#include "tests/worker_fixture.h"

#define STARTER "engine/starter/starter-Q4_K_M.gguf"
#define ASK(text) "[{\"role\":\"user\",\"content\":\"" text "\"}]"

enum { MOST = 12 };

static const char *const questions[] = {
    ASK("Hello, who are you?"), ASK("Tell me about your day."), ASK("Write a short story about a fox."),
    ASK("What is the capital of France?"), ASK("I would like to book a table for two."), ASK("Sing me a song."),
};

struct outcome {
    struct pp_buf text;
    struct pp_event done;
    bool over;
    int first_seen, last_seen; /* counted over all events: its first and its last one */
};

static struct {
    struct worker_fixture w;
    struct outcome of[MOST + 1]; /* indexed by request, from 1 */
    int n_events;
    int loaded; /* the event that reported it, counted over all events */
} env;

static void begin(uint64_t kv_memory, int64_t n_ctx)
{
    static int serial;
    char folder[120];
    memset(&env, 0, sizeof env);
    snprintf(folder, sizeof folder, "%s/several-%d", test_tmpdir(), serial++);
    worker_begin(&env.w, folder,
                 &(struct pp_load_request){
                     .model = STARTER, .engine = {.n_threads = 2, .n_ctx = n_ctx, .kv_memory = kv_memory}});
}

/* Takes one event; returns its type. */
static enum pp_event_type take(void)
{
    struct pp_event *e = pp_queue_pop(env.w.events, TEST_PATIENCE_MS);
    if (!e)
        fail_msg("no event in time");
    enum pp_event_type type = e->type;
    env.n_events++;
    if (type == PP_EVENT_TEXT || type == PP_EVENT_DONE) {
        assert_in_range(e->request, 1, MOST);
        struct outcome *o = &env.of[e->request];
        assert_false(o->over);
        o->first_seen = o->first_seen ? o->first_seen : env.n_events;
        o->last_seen = env.n_events;
        if (type == PP_EVENT_TEXT)
            pp_buf_add(&o->text, e->text, e->text_len);
        else
            o->over = true;
        o->done = *e;
        o->done.text = NULL;
    } else if (type == PP_EVENT_LOADED) {
        env.loaded = env.n_events;
    } else if (type == PP_EVENT_LOAD_FAILED) {
        fail_msg("not loaded: %s", e->err.text);
    }
    pp_event_free(e);
    return type;
}

static void take_until_over(int from, int to)
{
    for (int i = from; i <= to; i++)
        while (!env.of[i].over)
            take();
}

static void end(void)
{
    worker_end(&env.w);
    for (int i = 0; i <= MOST; i++)
        pp_buf_free(&env.of[i].text);
}

static void forget_outcomes(void)
{
    for (int i = 0; i <= MOST; i++)
        pp_buf_free(&env.of[i].text);
    memset(env.of, 0, sizeof env.of);
}

static void post(int number, const char *key, const char *question, uint64_t seed, int64_t max_tokens)
{
    struct pp_generate_request r = {.request = (uint64_t)number,
                                    .session_key = key,
                                    .messages_json = question,
                                    .sampling = pp_sampling_default(),
                                    .max_tokens = max_tokens,
                                    .ignore_end = true};
    r.sampling.seed = seed;
    env.w.backend->ops->generate(env.w.backend, &r);
}

static const char *key_of(int i)
{
    static char keys[MOST + 1][17];
    snprintf(keys[i], sizeof keys[i], "%016x", (unsigned)i + 1);
    return keys[i];
}

/* The same questions one after the other, then all at once: the answers are the same, and run in parallel. */
static void as_one_after_the_other(void **state)
{
    char *alone[MOST + 1];
    (void)state;
    begin(0, 1024);
    for (int i = 1; i <= MOST; i++) {
        post(i, key_of(i), questions[i % 6], (uint64_t)i, 60);
        take_until_over(i, i);
        assert_int_equal(env.of[i].done.err.code, PP_OK);
        alone[i] = pp_buf_take(&env.of[i].text);
    }
    forget_outcomes();
    for (int i = 1; i <= MOST; i++)
        post(i, key_of(i - 1), questions[i % 6], (uint64_t)i, 60);
    take_until_over(1, MOST);
    int together = 0;
    for (int i = 1; i <= MOST; i++) {
        assert_string_equal(pp_buf_cstr(&env.of[i].text), alone[i]);
        assert_int_equal(env.of[i].done.stats.decode_tokens, 60);
        pp_free(alone[i]);
        for (int k = 1; k < i; k++)
            together += env.of[k].last_seen > env.of[i].first_seen;
    }
    assert_true(together >= 6);
    end();
}

/* Three answers to one question of one conversation: its prompt is computed once. */
static void alternatives(void **state)
{
    (void)state;
    begin(0, 1024);
    for (int i = 1; i <= 3; i++)
        post(i, "00aa", questions[2], (uint64_t)i, 40);
    take_until_over(1, 3);
    uint64_t computed = 0, prompt = env.of[1].done.stats.prompt_tokens;
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(env.of[i].done.err.code, PP_OK);
        computed += env.of[i].done.stats.prefill_tokens;
        /* Those posted while the first one was running already have only one token left to compute. */
        assert_true(i == 1 || env.of[i].done.stats.cached_tokens >= prompt - 1);
    }
    assert_in_range(computed, prompt, prompt + 2);
    assert_string_not_equal(pp_buf_cstr(&env.of[1].text), pp_buf_cstr(&env.of[2].text));
    assert_string_not_equal(pp_buf_cstr(&env.of[2].text), pp_buf_cstr(&env.of[3].text));
    end();
}

static void one_is_stopped(void **state)
{
    (void)state;
    begin(0, 1024);
    post(1, key_of(1), questions[1], 1, 300);
    post(2, key_of(2), questions[2], 2, -1);
    post(3, key_of(3), questions[3], 3, 300);
    while (!env.of[2].first_seen)
        take();
    env.w.backend->ops->show(env.w.backend, key_of(3));
    env.w.backend->ops->cancel(env.w.backend, 2);
    env.w.backend->ops->cancel(env.w.backend, 77); /* there is no such request */
    take_until_over(1, 3);
    assert_int_equal(env.of[2].done.err.code, PP_ERR_CANCELLED);
    assert_int_equal(env.of[1].done.err.code, PP_OK);
    assert_int_equal(env.of[1].done.stats.decode_tokens, 300);
    assert_int_equal(env.of[3].done.stats.decode_tokens, 300);
    /* cancels all, also those that wait for a slot */
    forget_outcomes();
    for (int i = 1; i <= MOST; i++)
        post(i, key_of(i), questions[i % 6], 1, -1);
    while (!env.of[1].first_seen)
        take();
    env.w.backend->ops->cancel(env.w.backend, 0);
    take_until_over(1, MOST);
    for (int i = 1; i <= MOST; i++)
        assert_int_equal(env.of[i].done.err.code, PP_ERR_CANCELLED);
    end();
}

/* Loading another model waits for the answers under way. */
static void loading_waits(void **state)
{
    (void)state;
    begin(0, 1024);
    while (!env.loaded)
        take();
    post(1, key_of(1), questions[1], 1, 100);
    post(2, key_of(2), questions[2], 2, 100);
    struct pp_load_request r = {.model = STARTER, .engine = {.n_ctx = 512}};
    env.loaded = 0;
    env.w.backend->ops->load(env.w.backend, &r);
    post(3, key_of(3), questions[3], 3, 20);
    take_until_over(1, 3);
    for (int i = 1; i <= 3; i++)
        assert_int_equal(env.of[i].done.err.code, PP_OK);
    assert_true(env.loaded > env.of[1].last_seen && env.loaded > env.of[2].last_seen);
    assert_true(env.loaded < env.of[3].first_seen);
    end();
}

/* With room for little more than one conversation the others wait for its pages; all end as if they were alone. */
static void few_pages(void **state)
{
    char *alone[5];
    (void)state;
    begin(0, 320);
    for (int i = 1; i <= 4; i++)
        post(i, key_of(i), questions[i], (uint64_t)i, 220);
    take_until_over(1, 4);
    uint64_t page = env.of[1].done.stats.page_bytes;
    for (int i = 1; i <= 4; i++)
        alone[i] = pp_buf_take(&env.of[i].text);
    end();
    begin(5 * page, 320);
    env.w.backend->ops->show(env.w.backend, key_of(3));
    for (int i = 1; i <= 4; i++)
        post(i, key_of(i), questions[i], (uint64_t)i, 220);
    take_until_over(1, 4);
    assert_int_equal(env.of[1].done.stats.pages_total, 5);
    for (int i = 1; i <= 4; i++) {
        assert_int_equal(env.of[i].done.err.code, PP_OK);
        assert_string_equal(pp_buf_cstr(&env.of[i].text), alone[i]);
        pp_free(alone[i]);
        assert_true(env.of[3].last_seen <= env.of[i].last_seen); /* the one on the screen is never suspended */
    }
    end();
}

/* A conversation that is deleted or left while an answer to it is being written: it continues or is stopped, as
 * requested. */
static void forgotten_while_answering(void **state)
{
    (void)state;
    begin(0, 1024);
    post(1, key_of(1), questions[1], 1, -1);
    post(2, key_of(2), questions[2], 1, 200);
    while (!env.of[1].first_seen)
        take();
    env.w.backend->ops->leave(env.w.backend, key_of(2));
    env.w.backend->ops->cancel(env.w.backend, 1);
    env.w.backend->ops->forget(env.w.backend, key_of(1));
    take_until_over(1, 2);
    assert_int_equal(env.of[1].done.err.code, PP_ERR_CANCELLED);
    assert_int_equal(env.of[2].done.stats.decode_tokens, 200);
    end();
}

TEST_GROUP(worker_several)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_one_after_the_other), cmocka_unit_test(alternatives),
        cmocka_unit_test(one_is_stopped),         cmocka_unit_test(loading_waits),
        cmocka_unit_test(few_pages),              cmocka_unit_test(forgotten_while_answering),
    };
    return cmocka_run_group_tests_name("worker_several", tests, NULL, NULL);
}
