/* test_worker.c - the local backend with the real engine on the starter's float weights. */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/paths.h"
#include "tests/support.h"
#include "tests/talk.h"

/* Adds question and answer to the store, as the controller would; the answer's id. */
static int64_t add_messages(void)
{
    struct pp_error err;
    struct pp_message q = {
        .session = talk.session.id, .role = PP_ROLE_USER, .content = (char *)"hello", .content_len = 5};
    assert_ok(pp_store_message_add(talk.store, &q, &err), err);
    struct pp_message a = {
        .session = talk.session.id, .parent = q.id, .role = PP_ROLE_ASSISTANT, .state = PP_MESSAGE_PARTIAL};
    assert_ok(pp_store_message_add(talk.store, &a, &err), err);
    return a.id;
}

/* The stored answer's text (static) and state. */
static const char *stored(int64_t id, enum pp_message_state *state, char stats[static 600])
{
    static char text[2000];
    struct pp_message *list;
    size_t n;
    struct pp_error err;
    assert_ok(pp_store_branch(talk.store, id, &list, &n, &err), err);
    snprintf(text, sizeof text, "%s", list[n - 1].content);
    snprintf(stats, 600, "%s", list[n - 1].stats);
    *state = list[n - 1].state;
    pp_message_list_free(list, n);
    return text;
}

static int64_t n_tokens_of(int64_t id)
{
    struct pp_message m;
    struct pp_error err;
    assert_ok(pp_store_message_get(talk.store, id, &m, &err), err);
    const int64_t n = m.n_tokens;
    pp_message_clear(&m);
    return n;
}

static void wait_stored(int64_t id, const char *text)
{
    enum pp_message_state ms;
    char stats[600];
    for (int i = 0; i < 1000 && (strcmp(stored(id, &ms, stats), text) != 0 || ms == PP_MESSAGE_PARTIAL); i++)
        usleep(10000);
    assert_string_equal(stored(id, &ms, stats), text);
}

/* --- without test data ------------------------------------------------------------------------------------ */

static void test_no_model(void **state)
{
    (void)state;
    talk_begin(64);
    talk_answer(talk_request(HELLO));
    assert_int_equal(talk.done.err.code, PP_ERR_NOT_FOUND);
    assert_int_equal(talk_load("/does/not/exist.gguf", NULL, 0, NULL), PP_ERR_NOT_FOUND);
    assert_int_equal(talk_load(talk.db, NULL, 0, NULL), PP_ERR_FORMAT); /* a file, but no model */
    talk_answer(talk_request(HELLO));
    assert_int_equal(talk.done.err.code, PP_ERR_NOT_FOUND);
    talk.backend->ops->leave(talk.backend, "0123456789abcdef");
    talk.backend->ops->forget(talk.backend, "../../etc/passwd");
    talk.backend->ops->cancel(talk.backend, 0);
    talk_end();
}

static bool none_left(const char *folder)
{
    DIR *d = opendir(folder);
    bool none = true;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        none = none && e->d_name[0] == '.';
    closedir(d);
    return none;
}

/* However many conversations are deleted while the worker is busy, all their snapshots are removed. */
static void test_forgets_all(void **state)
{
    enum { MANY = 700 };
    char folder[300], path[400], key[17];
    struct pp_error err;
    (void)state;
    talk_begin(1); /* a queue for one event: as long as none is taken, the worker stops after the second */
    snprintf(folder, sizeof folder, "%s/kv", talk.cache);
    assert_ok(pp_make_dirs(folder, &err), err);
    talk_post(talk_request(HELLO));
    talk_post(talk_request(HELLO));
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "%016x", (unsigned)i + 1);
        snprintf(path, sizeof path, "%s/%s.pack", folder, key);
        assert_ok(pp_write_file(path, "of before", 9, 0600, &err), err);
        talk.backend->ops->forget(talk.backend, key);
    }
    for (int i = 0; i < 2; i++)
        pp_event_free(talk_next());
    for (int i = 0; i < 1000 && !none_left(folder); i++)
        usleep(10000);
    assert_true(none_left(folder));
    talk_end();
}

/* A request after close is answered, not forgotten. */
static void test_after_close(void **state)
{
    (void)state;
    talk_begin(64);
    talk.backend->ops->close(talk.backend);
    talk_post(talk_request(HELLO));
    bool done = false, closed = false;
    while (!done || !closed) {
        struct pp_event *e = talk_next();
        done = done || e->type == PP_EVENT_DONE;
        closed = closed || e->type == PP_EVENT_CLOSED;
        pp_event_free(e);
    }
    talk.backend->ops->free(talk.backend);
    talk_start();
    talk_end();
}

/* --- with the starter ------------------------------------------------------------------------------------- */

static void test_greedy(void **state)
{
    enum pp_message_state ms;
    char stats[600];
    (void)state;
    if (!talk_begin_starter(256, true))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    int64_t id = r.message_id = add_messages();
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    assert_int_equal(talk.done.err.code, PP_OK);
    assert_int_equal(talk.done.finish, PP_FINISH_END);
    assert_true(talk.n_progress > 0);
    assert_int_equal(talk.done.stats.cached_tokens, 0);
    assert_true(talk.context_used >= talk.done.stats.prompt_tokens);
    assert_int_equal(talk.done.stats.draft_tokens, 0);
    assert_string_equal(talk.notice, "");
    /* with the draft: the same words, in fewer passes */
    uint64_t passes = talk.done.stats.passes;
    r.message_id = 0;
    r.use_draft = r.draft_always = true;
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    assert_true(talk.done.stats.draft_accepted > 0);
    assert_true(talk.done.stats.draft_accepted <= talk.done.stats.draft_tokens);
    assert_true(talk.done.stats.cached_tokens > 0);
    assert_true(passes > 0);
    assert_true(pp_draft_runs_any(&talk.drafted));
    wait_stored(id, HELLO_ANSWER);
    stored(id, &ms, stats);
    assert_int_equal(ms, PP_MESSAGE_COMPLETE);
    cJSON *json = cJSON_Parse(stats);
    assert_non_null(json);
    assert_true(cJSON_GetObjectItem(json, "decode_tps")->valuedouble > 0);
    assert_string_equal(cJSON_GetObjectItem(json, "finish")->valuestring, "end");
    cJSON_Delete(json);
    talk_end();
}

/* The database marks the same tokens as drafted as the screen did; continuing an answer keeps the marks. */
static void test_drafted(void **state)
{
    enum pp_message_state ms;
    char stats[600];
    struct pp_draft_runs kept = {0}, first = {0};
    (void)state;
    if (!talk_begin_starter(256, true))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    r.use_draft = r.draft_always = true;
    r.max_tokens = 9;
    char *begun = pp_strdup(talk_answer(r));
    pp_draft_runs_append(&first, &talk.drafted);
    r.max_tokens = 48;
    r.message_id = add_messages();
    r.continue_text = begun;
    r.continue_drafted = &first;
    const char *rest = talk_answer(r);
    assert_true(pp_draft_runs_any(&first) && pp_draft_runs_any(&talk.drafted));
    wait_stored(r.message_id, rest);
    stored(r.message_id, &ms, stats);
    cJSON *json = cJSON_Parse(stats);
    pp_draft_runs_read(&kept, cJSON_GetObjectItem(json, "guessed"), strlen(begun) + strlen(rest));
    pp_draft_runs_append(&first, &talk.drafted);
    pp_draft_runs_fit(&first, strlen(begun) + strlen(rest));
    assert_int_equal(kept.n, first.n);
    assert_memory_equal(kept.runs, first.runs, kept.n * sizeof *kept.runs);
    cJSON_Delete(json);
    pp_draft_runs_free(&kept);
    pp_draft_runs_free(&first);
    pp_free(begun);
    talk_end();
}

/* The template opens the reasoning and the model never closes it; also with reasoning skipped, and with an answer
 * continued after part of the reasoning and after all of it. */
static void test_reasoning(void **state)
{
    static const char source[] =
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}={{ m.thinking }}={{ m.reasoning }}</think>"
        "{% endif %}{{ m.content }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
        "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}";
    enum pp_message_state ms;
    char stats[600];
    struct pp_message m;
    struct pp_error err;
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    r.template_source = source;
    r.max_tokens = 12;
    int64_t id = r.message_id = add_messages();
    assert_string_equal(talk_answer(r), "");
    assert_true(talk.reasoning.len > 0);
    assert_int_equal(talk.n_reasoning, 12);
    wait_stored(id, "");
    stored(id, &ms, stats);
    assert_non_null(strstr(stats, "\"reasoning_tokens\":12"));
    assert_ok(pp_store_message_get(talk.store, id, &m, &err), err);
    assert_string_equal(m.reasoning, pp_buf_cstr(&talk.reasoning));
    pp_message_clear(&m);
    /* reasoning in two parts of twelve tokens is the same as twenty-four in one */
    char *first = pp_strdup(pp_buf_cstr(&talk.reasoning));
    r.message_id = 0;
    r.max_tokens = 24;
    talk_answer(r);
    char *whole = pp_strdup(pp_buf_cstr(&talk.reasoning));
    r.max_tokens = 12;
    r.continue_reasoning = first;
    r.reasoning_tokens = 12;
    assert_string_equal(talk_answer(r), "");
    assert_int_equal(talk.n_reasoning, 24);
    assert_int_equal(strlen(first) + talk.reasoning.len, strlen(whole));
    assert_string_equal(whole + strlen(first), pp_buf_cstr(&talk.reasoning));
    r.continue_text = "Hello!";
    assert_true(*talk_answer(r));
    assert_int_equal(talk.reasoning.len, 0);
    r.continue_reasoning = r.continue_text = NULL;
    r.reasoning_tokens = 0;
    r.skip_reasoning = true;
    assert_true(*talk_answer(r));
    assert_int_equal(talk.reasoning.len, 0);
    r.skip_reasoning = false;
    r.thinking = PP_THINKING_OFF; /* the template opens no reasoning: as without any */
    r.max_tokens = 48;
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    assert_int_equal(talk.reasoning.len, 0);
    pp_free(first);
    pp_free(whole);
    talk_end();
}

static void test_limits(void **state)
{
    static const char *const stops[] = {"tiny"};
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    r.max_tokens = 3;
    assert_int_equal(strlen(talk_answer(r)) > 0, 1);
    assert_int_equal(talk.done.finish, PP_FINISH_LENGTH);
    assert_int_equal(talk.done.stats.decode_tokens, 3);
    r.max_tokens = 48;
    r.stops = stops;
    r.n_stops = 1;
    assert_string_equal(talk_answer(r), "Hello! I am Pippin, a ");
    assert_int_equal(talk.done.finish, PP_FINISH_STOP);
    r.n_stops = 0;
    r.message_id = add_messages();
    r.continue_text = "Hello! I am Pippin, a";
    r.continue_tokens = 1000; /* the number of tokens cannot be told from the text */
    assert_string_equal(talk_answer(r), HELLO_ANSWER + strlen(r.continue_text));
    const int64_t all = 1000 + (int64_t)talk.done.stats.decode_tokens;
    wait_stored(r.message_id, HELLO_ANSWER + strlen(r.continue_text));
    assert_int_equal(n_tokens_of(r.message_id), all);
    r.continue_tokens = r.message_id = 0;
    assert_int_equal(talk_load(testdata("starter/target"), NULL, 16, NULL), PP_OK);
    talk_answer(talk_request(
        ASK("This is far too long for a context of sixteen tokens, as everybody can see at a glance.")));
    assert_int_equal(talk.done.err.code, PP_ERR_CONTEXT);
    assert_non_null(strstr(talk.done.err.text, "16"));
    talk_answer(talk_request("[{\"role\":"));
    assert_int_equal(talk.done.err.code, PP_ERR_FORMAT);
    r = talk_request(HELLO);
    r.template_source = "{% if %}";
    talk_answer(r);
    assert_int_equal(talk.done.err.code, PP_ERR_FORMAT);
    talk_end();
}

/* `turns` turns and a question. */
static const char *long_talk(int turns)
{
    static struct pp_buf b;
    pp_buf_clear(&b);
    for (int i = 0; i < turns; i++)
        pp_buf_fmt(&b,
                   "%c{\"role\":\"user\",\"content\":\"Tell me about the sea, the ships and the old harbour\"},"
                   "{\"role\":\"assistant\",\"content\":\"The sea is wide, and the harbour is old.\"}",
                   i ? ',' : '[');
    pp_buf_str(&b, ",{\"role\":\"user\",\"content\":\"Hello, who are you?\"}]");
    return pp_buf_cstr(&b);
}

/* A conversation without its oldest turns gives the same bits as one that never had them. */
static void test_overflow(void **state)
{
    enum { TURNS = 8 };
    char shifted[1000];
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    assert_int_equal(talk_load(testdata("starter/target"), NULL, 160, NULL), PP_OK);
    struct pp_generate_request r = talk_request(long_talk(TURNS));
    talk_answer(r);
    assert_int_equal(talk.done.err.code, PP_ERR_CONTEXT);
    assert_true(talk.dropped > 0 && !talk.dropped_done);
    int dropped = talk.dropped;
    r.overflow = PP_OVERFLOW_SHIFT;
    snprintf(shifted, sizeof shifted, "%s", talk_answer(r));
    assert_int_equal(talk.done.err.code, PP_OK);
    assert_true(talk.dropped_done);
    assert_int_equal(talk.dropped, dropped);
    assert_true(dropped % 2 == 0 && dropped < 2 * TURNS);
    r.messages_json = long_talk(TURNS - dropped / 2);
    r.overflow = PP_OVERFLOW_STOP;
    assert_string_equal(talk_answer(r), shifted);
    assert_int_equal(talk.done.err.code, PP_OK);
    assert_int_equal(talk.dropped, 0);
    assert_true(talk.done.stats.cached_tokens > 0); /* the pages of the other */
    talk_end();
}

/* A request that is appended to a conversation, and dropped again, reuses the conversation's pages, and these stay. */
static void test_appended_request(void **state)
{
    char next[600];
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    uint64_t conversation = talk.done.stats.prompt_tokens + talk.done.stats.decode_tokens;
    snprintf(next, sizeof next,
             "[{\"role\":\"user\",\"content\":\"Hello, who are you?\"},"
             "{\"role\":\"assistant\",\"content\":\"%s\"},"
             "{\"role\":\"user\",\"content\":\"A title, please.\"}]", HELLO_ANSWER);
    for (int i = 0; i < 2; i++) { /* the second time like the first */
        struct pp_generate_request t = talk_request(next);
        t.session_key = NULL;
        t.temporary = t.background = true;
        t.max_tokens = 4;
        talk_answer(t);
        assert_int_equal(talk.done.err.code, PP_OK);
        assert_true(talk.done.stats.cached_tokens + 2 >= conversation);
        assert_true(talk.done.stats.prefill_tokens < 24);
    }
    r.messages_json = next;
    talk_answer(r);
    assert_true(talk.done.stats.cached_tokens + 2 >= conversation);
    talk_end();
}

static void test_cancel(void **state)
{
    enum pp_message_state ms;
    char stats[600], shown[2000];
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    talk.backend->ops->cancel(talk.backend, 0); /* nothing is running: this must not cancel what follows */
    assert_string_equal(talk_answer(talk_request(HELLO)), HELLO_ANSWER);

    struct pp_generate_request r = talk_request(ASK("Write a short story about a fox."));
    r.max_tokens = -1;
    r.ignore_end = true;
    int64_t id = r.message_id = add_messages();
    talk_post(r);
    talk_take_in(true);
    uint64_t t0 = pp_now_ns();
    talk.backend->ops->cancel(talk.backend, 0);
    talk_take_in(false);
    uint64_t ms_taken = (pp_now_ns() - t0) / 1000000;
    assert_int_equal(talk.done.err.code, PP_ERR_CANCELLED);
    assert_true(talk.text.len > 0);
    if (ms_taken > 2000) /* usually 50 ms; sanitizers and other programs take longer */
        fail_msg("stopping took %d ms", (int)ms_taken);
    snprintf(shown, sizeof shown, "%s", pp_buf_cstr(&talk.text));

    talk_post(r); /* cancelled at once, whether or not the worker has begun with it */
    talk.backend->ops->cancel(talk.backend, 0);
    talk_take_in(false);
    assert_int_equal(talk.done.err.code, PP_ERR_CANCELLED);
    r = talk_request(HELLO);
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    talk_end();
    struct pp_error err;
    assert_ok(pp_store_open(talk.db, &talk.store, &err), err);
    assert_int_equal(strncmp(stored(id, &ms, stats), shown, strlen(shown)), 0);
    assert_int_equal(ms, PP_MESSAGE_CANCELLED);
    pp_store_close(talk.store);
}

/* With a blocked screen that takes no events the answer is still computed and saved. */
static void test_stopped_screen(void **state)
{
    (void)state;
    if (!talk_begin_starter(2, false))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    int64_t id = r.message_id = add_messages();
    talk_post(r);
    wait_stored(id, HELLO_ANSWER);
    talk_take_in(false);
    assert_string_equal(pp_buf_cstr(&talk.text), HELLO_ANSWER);
    talk_end();
}

/* A draft with another vocabulary is bridged by text and changes nothing. A model without a chat template gets the
 * plain one, and a notice says so. */
static void test_other_model(void **state)
{
    struct pp_loaded info;
    const char *stories = testdata("stories260k/stories260K-f32.gguf"), *draft = testdata("starter/draft");
    (void)state;
    if (!stories)
        return;
    talk_begin(256);
    assert_int_equal(talk_load(stories, draft, 0, &info), PP_OK);
    assert_string_not_equal(info.draft_name, "");
    assert_string_equal(info.draft_reason, "");
    assert_false(info.has_template);
    assert_string_equal(info.instead, "plain");
    struct pp_generate_request r = talk_request(ASK("Once upon a time"));
    char *first = pp_strdup(talk_answer(r));
    assert_true(strlen(first) > 0);
    assert_int_equal(talk.done.err.code, PP_OK);
    assert_non_null(strstr(talk.notice, "plain"));
    r.use_draft = r.draft_always = true;
    assert_string_equal(talk_answer(r), first);
    assert_int_equal(talk.done.err.code, PP_OK);
    assert_string_equal(talk.notice, ""); /* reported once */
    pp_free(first);
    talk_end();
}

/* A file that is no model is named while a model is loaded: the latter stays, and answers as before. */
static void test_mistyped_model(void **state)
{
    struct pp_loaded info;
    char text[600];
    struct pp_error err;
    (void)state;
    snprintf(text, sizeof text, "%s/text.gguf", test_tmpdir());
    assert_ok(pp_write_file(text, "no model", 8, 0600, &err), err);
    talk_begin(256);
    assert_int_equal(talk_load(text, NULL, 0, NULL), PP_ERR_FORMAT);
    assert_false(talk.stays);
    assert_int_equal(talk_load("engine/starter/starter-Q4_K_M.gguf", NULL, 512, &info), PP_OK);
    struct pp_generate_request r = talk_request(ASK("Hello, who are you?"));
    char *before = pp_strdup(talk_answer(r));
    assert_int_equal(talk_load(text, NULL, 0, NULL), PP_ERR_FORMAT);
    assert_true(talk.stays);
    assert_string_equal(talk_answer(r), before);
    assert_true(talk.done.stats.cached_tokens > 0); /* its pages stay, too */
    pp_free(before);
    talk_end();
}

/* A context for which there is no memory is refused after the old model was closed: that is loaded again, and the
 * conversation continues. */
static void test_too_large_model(void **state)
{
    struct pp_loaded info;
    (void)state;
    talk_begin(256);
    assert_int_equal(talk_load("engine/starter/starter-Q4_K_M.gguf", NULL, 500000000, &info), PP_ERR_NOMEM);
    assert_false(talk.stays);
    assert_int_equal(talk_load("engine/starter/starter-Q4_K_M.gguf", NULL, 512, &info), PP_OK);
    struct pp_generate_request r = talk_request(ASK("Hello, who are you?"));
    char *before = pp_strdup(talk_answer(r));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(talk_load("engine/starter/starter-Q4_K_M.gguf", NULL, 500000000, &info), PP_ERR_NOMEM);
        assert_true(talk.stays);
        assert_string_equal(talk_answer(r), before);
    }
    pp_free(before);
    talk_end();
}

TEST_GROUP(worker)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_model),
        cmocka_unit_test(test_after_close),
        cmocka_unit_test(test_forgets_all),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_drafted),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_appended_request),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_stopped_screen),
        cmocka_unit_test(test_other_model),
        cmocka_unit_test(test_mistyped_model),
        cmocka_unit_test(test_too_large_model),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
