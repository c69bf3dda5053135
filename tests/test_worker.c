/* test_worker.c - the local backend with the real engine on the starter's float weights; the policy of snapshots. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/bench.h"
#include "src/event.h"
#include "src/paths.h"
#include "src/prompt.h"
#include "src/snapshots.h"
#include "src/worker.h"
#include "tests/adapter_folder.h"
#include "tests/support.h"

#define ASK(text) "[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define HELLO ASK("Hello, who are you?")

static const char HELLO_ANSWER[] = "Hello! I am Pippin, a tiny language model. What would you like to talk about?";

/* A worker with its queue, its io thread and its folders. */
static struct {
    struct pp_queue *events;
    struct pp_io *io;
    struct pp_store *store;
    struct pp_backend *backend;
    char db[200], cache[200];
    uint64_t request;
    struct pp_session session;
    /* of the last answer */
    struct pp_buf text, reasoning;
    struct pp_guessed guessed;
    int64_t n_reasoning;
    struct pp_event done;
    char notice[512];
    int n_progress;
    uint64_t context_used;
    int dropped;
    bool dropped_done;
    uint64_t quota; /* of snapshots, with the next load */
    bool stays; /* the failed loading left the model that was there */
} env;

static void start_worker(void)
{
    struct pp_error err;
    assert_ok(pp_worker_start(env.events, env.io, env.cache, &env.backend, &err), err);
}

static void begin(size_t capacity)
{
    static int serial;
    char folder[120];
    struct pp_error err;
    memset(&env, 0, sizeof env);
    snprintf(folder, sizeof folder, "%s/worker-%d", test_tmpdir(), serial++);
    assert_ok(pp_make_dirs(folder, &err), err);
    snprintf(env.db, sizeof env.db, "%s/pippin.db", folder);
    snprintf(env.cache, sizeof env.cache, "%s/cache", folder);
    assert_ok(pp_queue_new(capacity, &env.events, &err), err);
    assert_ok(pp_io_start(env.db, env.events, &env.io, &err), err);
    assert_ok(pp_store_open(env.db, &env.store, &err), err);
    assert_ok(pp_store_session_add(env.store, &env.session, &err), err);
    start_worker();
}

static struct pp_event *next_event(void)
{
    struct pp_event *e = pp_queue_pop(env.events, 60000);
    if (!e)
        fail_msg("no event within a minute");
    return e;
}

static void stop_worker(void)
{
    env.backend->ops->close(env.backend);
    for (bool closed = false; !closed;) {
        struct pp_event *e = next_event();
        closed = e->type == PP_EVENT_CLOSED;
        pp_event_free(e);
    }
    env.backend->ops->free(env.backend);
}

static void end(void)
{
    stop_worker();
    pp_queue_close(env.events);
    pp_io_stop(env.io);
    for (struct pp_event *e; (e = pp_queue_try_pop(env.events));)
        pp_event_free(e);
    pp_queue_free(env.events);
    pp_store_close(env.store);
    pp_session_clear(&env.session);
    pp_guessed_free(&env.guessed);
    pp_buf_free(&env.text);
    pp_buf_free(&env.reasoning);
}

/* Waits for the end of loading; the code it ended with. */
static enum pp_code load(const char *model, const char *draft, int64_t n_ctx, struct pp_loaded *info)
{
    struct pp_load_request r = {
        .model = model, .draft = draft, .engine = {.n_threads = 2, .kv_type = PP_KV_F32, .n_ctx = n_ctx},
        .snapshot_quota = env.quota};
    env.backend->ops->load(env.backend, &r);
    for (;;) {
        struct pp_event *e = next_event();
        enum pp_event_type type = e->type;
        enum pp_code code = e->err.code;
        if (type == PP_EVENT_LOADED && info)
            *info = *e->info;
        env.stays = type == PP_EVENT_LOAD_FAILED && e->info;
        pp_event_free(e);
        if (type == PP_EVENT_LOADED)
            return PP_OK;
        if (type == PP_EVENT_LOAD_FAILED) {
            assert_int_not_equal(code, PP_OK);
            return code;
        }
    }
}

static bool begin_starter(size_t capacity, bool draft)
{
    struct pp_loaded info;
    const char *target = testdata("starter/target"), *small = draft ? testdata("starter/draft") : NULL;
    if (!target)
        return false;
    begin(capacity);
    assert_int_equal(load(target, small, 1024, &info), PP_OK);
    assert_int_equal(info.n_ctx, 1024);
    assert_true(info.has_template);
    if (draft) {
        assert_string_equal(info.draft_reason, "");
        assert_string_not_equal(info.draft_name, "");
    }
    return true;
}

static struct pp_generate_request request(const char *messages)
{
    struct pp_generate_request r = {
        .messages_json = messages, .session_key = env.session.key, .sampling = pp_sampling_default(), .max_tokens = 48};
    r.sampling.temp = 0;
    return r;
}

static void post(struct pp_generate_request r)
{
    r.request = ++env.request;
    pp_buf_clear(&env.text);
    pp_buf_clear(&env.reasoning);
    pp_guessed_clear(&env.guessed);
    env.notice[0] = 0;
    env.n_progress = 0;
    env.dropped = 0;
    env.backend->ops->generate(env.backend, &r);
}

/* Takes in events until the answer has ended, or (text_only) until the first text. */
static void take_in(bool text_only)
{
    for (;;) {
        struct pp_event *e = next_event();
        enum pp_event_type type = e->type;
        if (type == PP_EVENT_TEXT) {
            assert_int_equal(e->request, env.request);
            pp_buf_add(&env.text, e->text, e->text_len);
            pp_buf_add(&env.reasoning, e->thoughts.text, e->thoughts.len);
            pp_guessed_append(&env.guessed, &e->guessed);
            env.n_reasoning = e->thoughts.n_tokens;
        } else if (type == PP_EVENT_NOTICE) {
            snprintf(env.notice, sizeof env.notice, "%s", e->text);
        } else if (type == PP_EVENT_PROMPT_PROGRESS) {
            assert_true(e->done <= e->total);
            env.n_progress++;
        } else if (type == PP_EVENT_CONTEXT) {
            env.context_used = e->done;
        } else if (type == PP_EVENT_OVERFLOW) {
            env.dropped = e->n;
            env.dropped_done = e->done;
        } else if (type == PP_EVENT_DONE) {
            assert_int_equal(e->request, env.request);
            env.done = *e;
            env.done.text = NULL;
        }
        pp_event_free(e);
        if (type == PP_EVENT_DONE || (text_only && type == PP_EVENT_TEXT))
            return;
    }
}

static const char *answer_to(struct pp_generate_request r)
{
    post(r);
    take_in(false);
    return pp_buf_cstr(&env.text);
}

/* Adds question and answer to the store, as the controller would; the answer's id. */
static int64_t add_messages(void)
{
    struct pp_error err;
    struct pp_message q = {
        .session = env.session.id, .role = PP_ROLE_USER, .content = (char *)"hello", .content_len = 5};
    assert_ok(pp_store_message_add(env.store, &q, &err), err);
    struct pp_message a = {
        .session = env.session.id, .parent = q.id, .role = PP_ROLE_ASSISTANT, .state = PP_MESSAGE_PARTIAL};
    assert_ok(pp_store_message_add(env.store, &a, &err), err);
    return a.id;
}

/* The stored answer's text (static) and state. */
static const char *stored(int64_t id, enum pp_message_state *state, char stats[static 600])
{
    static char text[2000];
    struct pp_message *list;
    size_t n;
    struct pp_error err;
    assert_ok(pp_store_branch(env.store, id, &list, &n, &err), err);
    snprintf(text, sizeof text, "%s", list[n - 1].content);
    snprintf(stats, 600, "%s", list[n - 1].stats);
    *state = list[n - 1].state;
    pp_message_list_free(list, n);
    return text;
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
    begin(64);
    answer_to(request(HELLO));
    assert_int_equal(env.done.err.code, PP_ERR_NOT_FOUND);
    assert_int_equal(load("/does/not/exist.gguf", NULL, 0, NULL), PP_ERR_NOT_FOUND);
    assert_int_equal(load(env.db, NULL, 0, NULL), PP_ERR_FORMAT); /* a file, but no model */
    answer_to(request(HELLO));
    assert_int_equal(env.done.err.code, PP_ERR_NOT_FOUND);
    env.backend->ops->leave(env.backend, "0123456789abcdef");
    env.backend->ops->forget(env.backend, "../../etc/passwd");
    env.backend->ops->cancel(env.backend, 0);
    end();
}

/* A request after close is answered, not forgotten. */
static void test_after_close(void **state)
{
    (void)state;
    begin(64);
    env.backend->ops->close(env.backend);
    post(request(HELLO));
    bool done = false, closed = false;
    while (!done || !closed) {
        struct pp_event *e = next_event();
        done = done || e->type == PP_EVENT_DONE;
        closed = closed || e->type == PP_EVENT_CLOSED;
        pp_event_free(e);
    }
    env.backend->ops->free(env.backend);
    start_worker();
    end();
}

static void test_snapshot_path(void **state)
{
    char path[64];
    (void)state;
    pp_snapshot_base("/c", "0123456789abcdef", path, sizeof path);
    assert_string_equal(path, "/c/kv/0123456789abcdef");
    pp_snapshot_base("/c", "../x", path, sizeof path);
    assert_string_equal(path, "");
    pp_snapshot_base("/c", "", path, sizeof path);
    assert_string_equal(path, "");
    pp_snapshot_base("/c", "0123456789abcdef", path, 10);
    assert_string_equal(path, "");
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void make_old_again(const char *path, int seconds)
{
    struct timespec t[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    assert_int_equal(utimensat(0, path, t, 0), 0);
}

static void make_old(const char *path, int seconds)
{
    struct pp_error err;
    assert_ok(pp_write_file(path, "0123456789", 10, 0600, &err), err);
    make_old_again(path, seconds);
}

/* The conversations unused for longest go first, with everything that is theirs. */
static void test_make_room(void **state)
{
    static const char *const endings[] = {".manifest", ".pack", ".kv", ".manifest.12.tmp"};
    char path[3][4][340], base[3][300], folder[260], other[300];
    struct pp_error err;
    (void)state;
    snprintf(folder, sizeof folder, "%s/room/kv", test_tmpdir());
    assert_ok(pp_make_dirs(folder, &err), err);
    for (int i = 0; i < 3; i++) {
        snprintf(base[i], sizeof base[i], "%s/%d%d", folder, i, i);
        for (int k = 0; k < 4; k++) {
            snprintf(path[i][k], sizeof path[i][k], "%.300s%s", base[i], endings[k]);
            make_old(path[i][k], 1000 + i);
        }
    }
    snprintf(other, sizeof other, "%s/notes.txt", folder);
    make_old(other, 1);
    pp_snapshot_touch(base[0]); /* now the second is the oldest */
    snprintf(base[1], sizeof base[1], "%s/aa", folder);
    assert_int_equal(pp_snapshot_largest(test_tmpdir(), 8), 0);
    snprintf(other, sizeof other, "%s/room", test_tmpdir());
    assert_int_equal(pp_snapshot_largest(other, 8), 40);
    assert_int_equal(truncate(path[1][1], 1000), 0);
    make_old_again(path[1][1], 1001);
    assert_int_equal(pp_snapshot_largest(other, 2), 40); /* not among those used last */
    assert_int_equal(pp_snapshot_largest(other, 3), 1030);
    make_old(path[1][1], 1001);
    snprintf(other, sizeof other, "%s/notes.txt", folder);
    assert_false(pp_snapshot_make_room(base[1], 121, 120));
    assert_true(pp_snapshot_make_room(base[1], 40, 160)); /* fits */
    assert_true(exists(path[1][0]));
    assert_true(pp_snapshot_make_room(base[2], 40, 120)); /* its own is not counted; what was left half done goes */
    assert_true(exists(path[1][1]));
    assert_true(exists(path[2][1]));
    assert_false(exists(path[2][2]));
    assert_false(exists(path[2][3]));
    assert_true(pp_snapshot_make_room(base[2], 50, 120));
    for (int k = 0; k < 4; k++) {
        assert_true(exists(path[0][k]));
        assert_false(exists(path[1][k]));
    }
    assert_true(pp_snapshot_make_room(base[2], 119, 120));
    assert_false(exists(path[0][0]));
    assert_true(exists(path[2][0]));
    assert_true(exists(other));
}

/* Megabytes of memory that this process has touched. */
static long touched(void)
{
    char line[200];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "re");
    assert_non_null(f);
    while (kb < 0 && fgets(line, sizeof line, f))
        (void)!sscanf(line, "RssAnon: %ld kB", &kb);
    fclose(f);
    return kb / 1024;
}

/* Memory for the largest conversation that is on the disk is ready soon after the model. */
static void test_room(void **state)
{
    enum { MB = 96 };
    const char *target = testdata("starter/target");
    char path[300];
    struct pp_error err;
    (void)state;
    if (!target)
        skip();
    for (int quiet = 0; quiet < 2; quiet++) {
        begin(256);
        snprintf(path, sizeof path, "%s/kv", env.cache);
        assert_ok(pp_make_dirs(path, &err), err);
        snprintf(path, sizeof path, "%s/kv/ab.pack", env.cache);
        assert_ok(pp_write_file(path, "", 0, 0600, &err), err);
        assert_int_equal(truncate(path, (off_t)MB << 20), 0);
        env.quota = quiet ? PP_SNAPSHOTS_OFF : 0;
        const long before = touched();
        assert_int_equal(load(target, NULL, 65536, NULL), PP_OK);
        for (int i = 0; i < (quiet ? 10 : 3000) && touched() < before + MB - 8; i++)
            usleep(20000);
        assert_int_equal(touched() >= before + MB - 8, !quiet);
        end();
    }
}

/* --- with the starter ------------------------------------------------------------------------------------- */

static void test_greedy(void **state)
{
    enum pp_message_state ms;
    char stats[600];
    (void)state;
    if (!begin_starter(256, true))
        return;
    struct pp_generate_request r = request(HELLO);
    int64_t id = r.message_id = add_messages();
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    assert_int_equal(env.done.err.code, PP_OK);
    assert_int_equal(env.done.finish, PP_FINISH_END);
    assert_true(env.n_progress > 0);
    assert_int_equal(env.done.stats.cached_tokens, 0);
    assert_true(env.context_used >= env.done.stats.prompt_tokens);
    assert_int_equal(env.done.stats.draft_tokens, 0);
    assert_string_equal(env.notice, "");
    /* with the draft: the same words, in fewer passes */
    uint64_t passes = env.done.stats.passes;
    r.message_id = 0;
    r.use_draft = r.draft_always = true;
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    assert_true(env.done.stats.draft_accepted > 0);
    assert_true(env.done.stats.draft_accepted <= env.done.stats.draft_tokens);
    assert_true(env.done.stats.cached_tokens > 0);
    assert_true(passes > 0);
    assert_true(pp_guessed_any(&env.guessed));
    wait_stored(id, HELLO_ANSWER);
    stored(id, &ms, stats);
    assert_int_equal(ms, PP_MESSAGE_COMPLETE);
    cJSON *json = cJSON_Parse(stats);
    assert_non_null(json);
    assert_true(cJSON_GetObjectItem(json, "decode_tps")->valuedouble > 0);
    assert_string_equal(cJSON_GetObjectItem(json, "finish")->valuestring, "end");
    cJSON_Delete(json);
    end();
}

/* What stands in the database of the guesses is what came to the screen; an answer that is gone on with keeps it. */
static void test_guessed(void **state)
{
    enum pp_message_state ms;
    char stats[600];
    struct pp_guessed kept = {0}, first = {0};
    (void)state;
    if (!begin_starter(256, true))
        return;
    struct pp_generate_request r = request(HELLO);
    r.use_draft = r.draft_always = true;
    r.max_tokens = 9;
    char *begun = pp_strdup(answer_to(r));
    pp_guessed_append(&first, &env.guessed);
    r.max_tokens = 48;
    r.message_id = add_messages();
    r.continue_text = begun;
    r.continue_guessed = &first;
    const char *rest = answer_to(r);
    assert_true(pp_guessed_any(&first) && pp_guessed_any(&env.guessed));
    wait_stored(r.message_id, rest);
    stored(r.message_id, &ms, stats);
    cJSON *json = cJSON_Parse(stats);
    pp_guessed_read(&kept, cJSON_GetObjectItem(json, "guessed"), strlen(begun) + strlen(rest));
    pp_guessed_append(&first, &env.guessed);
    pp_guessed_fit(&first, strlen(begun) + strlen(rest));
    assert_int_equal(kept.n, first.n);
    assert_memory_equal(kept.runs, first.runs, kept.n * sizeof *kept.runs);
    cJSON_Delete(json);
    pp_guessed_free(&kept);
    pp_guessed_free(&first);
    pp_free(begun);
    end();
}

/* A template opens the reasoning, and the model never closes it; the same with reasoning that is skipped, and gone on
 * with behind some of it and behind all. */
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
    if (!begin_starter(256, false))
        return;
    struct pp_generate_request r = request(HELLO);
    r.template_source = source;
    r.max_tokens = 12;
    int64_t id = r.message_id = add_messages();
    assert_string_equal(answer_to(r), "");
    assert_true(env.reasoning.len > 0);
    assert_int_equal(env.n_reasoning, 12);
    wait_stored(id, "");
    stored(id, &ms, stats);
    assert_non_null(strstr(stats, "\"reasoning_tokens\":12"));
    assert_ok(pp_store_message_get(env.store, id, &m, &err), err);
    assert_string_equal(m.reasoning, pp_buf_cstr(&env.reasoning));
    pp_message_clear(&m);
    /* twelve tokens, and twelve more behind them, are twenty-four */
    char *first = pp_strdup(pp_buf_cstr(&env.reasoning));
    r.message_id = 0;
    r.max_tokens = 24;
    answer_to(r);
    char *whole = pp_strdup(pp_buf_cstr(&env.reasoning));
    r.max_tokens = 12;
    r.continue_reasoning = first;
    r.reasoning_tokens = 12;
    assert_string_equal(answer_to(r), "");
    assert_int_equal(env.n_reasoning, 24);
    assert_int_equal(strlen(first) + env.reasoning.len, strlen(whole));
    assert_string_equal(whole + strlen(first), pp_buf_cstr(&env.reasoning));
    r.continue_text = "Hello!";
    assert_true(*answer_to(r));
    assert_int_equal(env.reasoning.len, 0);
    r.continue_reasoning = r.continue_text = NULL;
    r.reasoning_tokens = 0;
    r.skip_reasoning = true;
    assert_true(*answer_to(r));
    assert_int_equal(env.reasoning.len, 0);
    r.skip_reasoning = false;
    r.thinking = PP_THINKING_OFF; /* the template opens nothing: as without it */
    r.max_tokens = 48;
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    assert_int_equal(env.reasoning.len, 0);
    pp_free(first);
    pp_free(whole);
    end();
}

static void test_limits(void **state)
{
    static const char *const stops[] = {"tiny"};
    (void)state;
    if (!begin_starter(256, false))
        return;
    struct pp_generate_request r = request(HELLO);
    r.max_tokens = 3;
    assert_int_equal(strlen(answer_to(r)) > 0, 1);
    assert_int_equal(env.done.finish, PP_FINISH_LENGTH);
    assert_int_equal(env.done.stats.decode_tokens, 3);
    r.max_tokens = 48;
    r.stops = stops;
    r.n_stops = 1;
    assert_string_equal(answer_to(r), "Hello! I am Pippin, a ");
    assert_int_equal(env.done.finish, PP_FINISH_STOP);
    r.n_stops = 0;
    r.continue_text = "Hello! I am Pippin, a";
    assert_string_equal(answer_to(r), HELLO_ANSWER + strlen(r.continue_text));
    assert_int_equal(load(testdata("starter/target"), NULL, 16, NULL), PP_OK);
    answer_to(request(ASK("This is far too long for a context of sixteen tokens, as everybody can see at a glance.")));
    assert_int_equal(env.done.err.code, PP_ERR_CONTEXT);
    assert_non_null(strstr(env.done.err.text, "16"));
    answer_to(request("[{\"role\":"));
    assert_int_equal(env.done.err.code, PP_ERR_FORMAT);
    r = request(HELLO);
    r.template_source = "{% if %}";
    answer_to(r);
    assert_int_equal(env.done.err.code, PP_ERR_FORMAT);
    end();
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

/* Without its oldest turns a conversation is the same as one that never had them, to the last bit. */
static void test_overflow(void **state)
{
    enum { TURNS = 8 };
    char shifted[1000];
    (void)state;
    if (!begin_starter(256, false))
        return;
    assert_int_equal(load(testdata("starter/target"), NULL, 160, NULL), PP_OK);
    struct pp_generate_request r = request(long_talk(TURNS));
    answer_to(r);
    assert_int_equal(env.done.err.code, PP_ERR_CONTEXT);
    assert_true(env.dropped > 0 && !env.dropped_done);
    int dropped = env.dropped;
    r.overflow = PP_OVERFLOW_SHIFT;
    snprintf(shifted, sizeof shifted, "%s", answer_to(r));
    assert_int_equal(env.done.err.code, PP_OK);
    assert_true(env.dropped_done);
    assert_int_equal(env.dropped, dropped);
    assert_true(dropped % 2 == 0 && dropped < 2 * TURNS);
    r.messages_json = long_talk(TURNS - dropped / 2);
    r.overflow = PP_OVERFLOW_STOP;
    assert_string_equal(answer_to(r), shifted);
    assert_int_equal(env.done.err.code, PP_OK);
    assert_int_equal(env.dropped, 0);
    assert_true(env.done.stats.cached_tokens > 0); /* the pages of the other */
    end();
}

/* A request that is appended to a conversation and dropped again: the conversation is not read a second time for it,
 * and its own pages stay. */
static void test_appended_request(void **state)
{
    char next[600];
    (void)state;
    if (!begin_starter(256, false))
        return;
    struct pp_generate_request r = request(HELLO);
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    uint64_t conversation = env.done.stats.prompt_tokens + env.done.stats.decode_tokens;
    snprintf(next, sizeof next,
             "[{\"role\":\"user\",\"content\":\"Hello, who are you?\"},"
             "{\"role\":\"assistant\",\"content\":\"%s\"},"
             "{\"role\":\"user\",\"content\":\"A title, please.\"}]", HELLO_ANSWER);
    for (int i = 0; i < 2; i++) { /* the second time as well as the first */
        struct pp_generate_request t = request(next);
        t.session_key = NULL;
        t.temporary = t.background = true;
        t.max_tokens = 4;
        answer_to(t);
        assert_int_equal(env.done.err.code, PP_OK);
        assert_true(env.done.stats.cached_tokens + 2 >= conversation);
        assert_true(env.done.stats.prefill_tokens < 24);
    }
    r.messages_json = next;
    answer_to(r);
    assert_true(env.done.stats.cached_tokens + 2 >= conversation);
    end();
}

static void test_cancel(void **state)
{
    enum pp_message_state ms;
    char stats[600], shown[2000];
    (void)state;
    if (!begin_starter(256, false))
        return;
    env.backend->ops->cancel(env.backend, 0); /* of nothing: must not reach what comes after */
    assert_string_equal(answer_to(request(HELLO)), HELLO_ANSWER);

    struct pp_generate_request r = request(ASK("Write a short story about a fox."));
    r.max_tokens = -1;
    r.ignore_end = true;
    int64_t id = r.message_id = add_messages();
    post(r);
    take_in(true);
    uint64_t t0 = pp_now_ns();
    env.backend->ops->cancel(env.backend, 0);
    take_in(false);
    uint64_t ms_taken = (pp_now_ns() - t0) / 1000000;
    assert_int_equal(env.done.err.code, PP_ERR_CANCELLED);
    assert_true(env.text.len > 0);
    if (ms_taken > 2000) /* 50 on a quiet machine; sanitizers and neighbours take their time */
        fail_msg("stopping took %d ms", (int)ms_taken);
    snprintf(shown, sizeof shown, "%s", pp_buf_cstr(&env.text));

    post(r); /* cancelled before it begins: the worker may or may not have taken it up */
    env.backend->ops->cancel(env.backend, 0);
    take_in(false);
    assert_int_equal(env.done.err.code, PP_ERR_CANCELLED);
    r = request(HELLO);
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    end();
    struct pp_error err;
    assert_ok(pp_store_open(env.db, &env.store, &err), err);
    assert_int_equal(strncmp(stored(id, &ms, stats), shown, strlen(shown)), 0);
    assert_int_equal(ms, PP_MESSAGE_CANCELLED);
    pp_store_close(env.store);
}

/* A screen that stands still: nobody takes events, and yet the answer is computed and saved. */
static void test_stopped_screen(void **state)
{
    (void)state;
    if (!begin_starter(2, false))
        return;
    struct pp_generate_request r = request(HELLO);
    int64_t id = r.message_id = add_messages();
    post(r);
    wait_stored(id, HELLO_ANSWER);
    take_in(false);
    assert_string_equal(pp_buf_cstr(&env.text), HELLO_ANSWER);
    end();
}

static void restart_with_starter(void)
{
    stop_worker();
    pp_io_stop(env.io); /* files are written */
    struct pp_error err;
    assert_ok(pp_io_start(env.db, env.events, &env.io, &err), err);
    start_worker();
    assert_int_equal(load(testdata("starter/target"), NULL, 1024, NULL), PP_OK);
}

static char *file_of_session(const char *ending)
{
    static char paths[2][680];
    static int n;
    char base[PP_SNAPSHOT_PATH];
    pp_snapshot_base(env.cache, env.session.key, base, sizeof base);
    snprintf(paths[++n % 2], sizeof paths[0], "%s%s", base, ending);
    return paths[n % 2];
}

static void test_snapshots(void **state)
{
    char *data;
    size_t size;
    struct pp_error err;
    (void)state;
    if (!begin_starter(256, false))
        return;
    struct pp_generate_request r = request(HELLO);
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    env.backend->ops->leave(env.backend, env.session.key);
    assert_string_equal(answer_to(r), HELLO_ANSWER); /* left, but still at hand */
    assert_int_equal(env.done.stats.cached_tokens, env.done.stats.prompt_tokens - 1);
    restart_with_starter();
    for (int i = 0; i < 2; i++) {
        struct stat st;
        assert_int_equal(stat(file_of_session(i ? ".pack" : ".manifest"), &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    assert_string_equal(answer_to(r), HELLO_ANSWER); /* resumed: nothing is computed again */
    assert_string_equal(env.notice, "");
    assert_int_equal(env.done.stats.cached_tokens, env.done.stats.prompt_tokens - 1);
    assert_int_equal(env.done.stats.restored_tokens, env.done.stats.prompt_tokens);

    /* read ahead, while the user types; for the conversation on the screen only */
    restart_with_starter();
    env.backend->ops->prepare(env.backend, &r);
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    assert_int_equal(env.done.stats.restored_tokens, env.done.stats.prompt_tokens);
    restart_with_starter();
    env.backend->ops->show(env.backend, env.session.key);
    env.backend->ops->prepare(env.backend, &r);
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    assert_int_equal(env.done.stats.restored_tokens, 0); /* by then it was there */
    assert_int_equal(env.done.stats.cached_tokens, env.done.stats.prompt_tokens - 1);
    assert_string_equal(env.notice, "");

    /* a damaged one is refused with a reason, and the answer is the same */
    restart_with_starter();
    assert_ok(pp_read_file(file_of_session(".pack"), 1u << 28, &data, &size, &err), err);
    memset(data + 4096, 1, 3);
    assert_ok(pp_write_file(file_of_session(".pack"), data, size, 0600, &err), err);
    pp_free(data);
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    assert_non_null(strstr(env.notice, "damaged"));
    assert_int_equal(env.done.stats.cached_tokens, 0);
    restart_with_starter();
    env.notice[0] = 0;
    assert_string_equal(answer_to(r), HELLO_ANSWER); /* and what was saved then is good again */
    assert_string_equal(env.notice, "");
    assert_int_equal(env.done.stats.restored_tokens, env.done.stats.prompt_tokens);

    env.backend->ops->forget(env.backend, env.session.key);
    restart_with_starter();
    assert_false(exists(file_of_session(".manifest")));
    assert_false(exists(file_of_session(".pack")));

    r.temporary = true;
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    env.backend->ops->leave(env.backend, env.session.key);
    restart_with_starter();
    assert_false(exists(file_of_session(".manifest")));
    end();
}

static void wait_notice(const char *text)
{
    while (!strstr(env.notice, text)) {
        struct pp_event *e = next_event();
        if (e->type == PP_EVENT_NOTICE)
            snprintf(env.notice, sizeof env.notice, "%s", e->text);
        pp_event_free(e);
    }
    assert_null(strchr(env.notice, '\n'));
}

/* What cannot be kept is told of in one line, once, and the chat goes on. */
static void test_not_kept(void **state)
{
    struct pp_error err;
    char folder[240];
    (void)state;
    if (!begin_starter(256, false))
        return;
    struct pp_generate_request r = request(HELLO);
    snprintf(folder, sizeof folder, "%s/kv", env.cache);
    assert_ok(pp_make_dirs(env.cache, &err), err);
    assert_ok(pp_write_file(folder, "a file", 6, 0600, &err), err); /* as good as a folder that cannot be written to */
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    wait_notice("not kept ready");
    for (int i = 0; i < 3; i++) {
        assert_string_equal(answer_to(r), HELLO_ANSWER);
        assert_string_equal(env.notice, "");
    }
    unlink(folder);
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    restart_with_starter();
    assert_true(exists(file_of_session(".manifest")));
    env.backend->ops->forget(env.backend, env.session.key);

    static const uint64_t quotas[] = {PP_SNAPSHOTS_OFF, 1000};
    for (int k = 0; k < 2; k++) {
        env.quota = quotas[k];
        restart_with_starter();
        assert_string_equal(answer_to(r), HELLO_ANSWER);
        wait_notice("--snapshot-quota");
        for (int i = 0; i < 2; i++) {
            assert_string_equal(answer_to(r), HELLO_ANSWER);
            assert_string_equal(env.notice, "");
        }
        env.quota = 0;
        restart_with_starter();
        assert_false(exists(file_of_session(".manifest")));
    }
    end();
}

/* A conversation that begins like another one shares its pages. */
static void test_sharing(void **state)
{
    (void)state;
    if (!begin_starter(256, false))
        return;
    struct pp_generate_request r = request(HELLO);
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    r.session_key = "feedfeedfeedfeed";
    assert_string_equal(answer_to(r), HELLO_ANSWER);
    assert_int_equal(env.done.stats.cached_tokens, env.done.stats.prompt_tokens - 1);
    /* The other one shares its pages; what is copied is at most the page that both go on writing into. */
    assert_in_range(env.done.stats.kv_copied_bytes, 0, env.done.stats.page_bytes);
    assert_string_equal(answer_to(r), HELLO_ANSWER); /* regenerated: at most what is just being saved is copied */
    assert_in_range(env.done.stats.kv_copied_bytes, 0, env.done.stats.page_bytes);
    for (int i = 0; i < 12; i++) { /* more than there are slots */
        char key[17];
        snprintf(key, sizeof key, "%016x", i + 1);
        r.session_key = key;
        assert_string_equal(answer_to(r), HELLO_ANSWER);
    }
    end();
}

static void test_adapters(void **state)
{
    (void)state;
    if (!begin_starter(256, false))
        return;
    struct pp_adapter_choice bard = {.path = testdata("starter/lora-bard"), .scale = 1};
    struct pp_generate_request r = request(ASK("Tell me about your day."));
    assert_string_equal(answer_to(r), "It's a good day to live.");
    r.adapters = &bard;
    r.n_adapters = 1;
    assert_string_not_equal(answer_to(r), "It's a good day to live.");
    assert_int_equal(env.done.err.code, PP_OK);
    assert_int_equal(env.done.stats.cached_tokens, 0); /* KV of one set is never read under another */
    bard.scale = 0;
    assert_string_equal(answer_to(r), "It's a good day to live.");
    bard.path = "/does/not/exist";
    bard.scale = 1;
    assert_string_equal(answer_to(r), "It's a good day to live.");
    assert_non_null(strstr(env.notice, "/does/not/exist"));
    end();
}

/* The event of a kind that comes next; others are let go. pp_event_free. */
static struct pp_event *event_of(enum pp_event_type type)
{
    for (;;) {
        struct pp_event *e = next_event();
        if (e->type == type)
            return e;
        pp_event_free(e);
    }
}

/* Tokens of the prompt of a request, and how many of them are at hand. */
static uint64_t cost_of(const struct pp_generate_request *r, uint64_t *cached)
{
    env.backend->ops->cost(env.backend, r);
    struct pp_event *e = event_of(PP_EVENT_COST);
    assert_int_equal(e->err.code, PP_OK);
    assert_int_equal(e->request, r->request);
    const uint64_t total = e->total;
    *cached = e->cached;
    pp_event_free(e);
    return total;
}

/* What the menu asks: whether an adapter fits, and what a switch would cost. */
static void test_questions(void **state)
{
    (void)state;
    if (!begin_starter(256, false))
        return;
    env.backend->ops->inspect(env.backend, testdata("starter/lora-bard"));
    struct pp_event *e = event_of(PP_EVENT_ADAPTER);
    assert_string_equal(e->text, testdata("starter/lora-bard"));
    assert_non_null(e->adapter);
    assert_int_equal(e->adapter->rank, 16);
    assert_true(e->adapter->n_targets > 0 && strstr(e->adapter->targets, "attn_q"));
    assert_false(e->adapter->idle);
    pp_event_free(e);
    env.backend->ops->inspect(env.backend, adapter_never_trained());
    e = event_of(PP_EVENT_ADAPTER);
    assert_non_null(e->adapter);
    assert_true(e->adapter->idle);
    pp_event_free(e);
    env.backend->ops->inspect(env.backend, testdata("architectures/llama/lora-alpha"));
    e = event_of(PP_EVENT_ADAPTER);
    assert_null(e->adapter);
    assert_int_equal(e->err.code, PP_ERR_MISMATCH);
    assert_non_null(strstr(e->err.text, "attn_q"));
    pp_event_free(e);

    const struct pp_adapter_choice bard = {.path = testdata("starter/lora-bard"), .scale = 1};
    struct pp_generate_request r = request(ASK("Tell me about your day."));
    uint64_t cached, total = cost_of(&r, &cached);
    assert_true(total > 8);
    assert_int_equal(cached, 0);
    answer_to(r);
    assert_int_equal(env.done.stats.prompt_tokens, total);
    assert_int_equal(cost_of(&r, &cached), total);
    assert_true(cached >= total - 1); /* all of it is there */
    r.adapters = &bard;
    r.n_adapters = 1;
    assert_int_equal(cost_of(&r, &cached), total);
    assert_int_equal(cached, 0); /* none of it under this one */
    answer_to(r);
    cost_of(&r, &cached);
    assert_true(cached >= total - 1);
    end();
}

/* Adapters that were only looked at go again, those that conversations use stay; and no price is told for a set that
 * cannot be had. */
static void many_adapters(void **state)
{
    enum { LOOKED_AT = 160 };
    char path[300], bundled[400];
    struct pp_loaded info;
    uint64_t cached, total = 0;
    (void)state;
    begin(256);
    assert_int_equal(load("engine/starter/starter-Q4_K_M.gguf", NULL, 0, &info), PP_OK);
    assert_non_null(realpath("engine/starter/bard.gguf", bundled));
    struct pp_adapter_choice use[2] = {{.path = bundled, .scale = 1}};
    struct pp_generate_request r = request(ASK("Tell me about your day."));
    r.adapters = use;
    r.n_adapters = 1;
    answer_to(r);
    char *first = pp_strdup(env.text.data);
    for (int i = 0; i < LOOKED_AT; i++) {
        snprintf(path, sizeof path, "%s/looked-at-%d.gguf", test_tmpdir(), i);
        assert_int_equal(symlink(bundled, path), 0);
        env.backend->ops->inspect(env.backend, path);
        struct pp_event *e = event_of(PP_EVENT_ADAPTER);
        assert_non_null(e->adapter);
        pp_event_free(e);
        use[1] = (struct pp_adapter_choice){.path = path, .scale = 1};
        r.n_adapters = 2;
        total = cost_of(&r, &cached);
        assert_int_equal(cached, 0);
    }
    use[1].path = "/does/not/exist";
    env.backend->ops->cost(env.backend, &r);
    struct pp_event *e = event_of(PP_EVENT_COST);
    assert_int_equal(e->err.code, PP_ERR_NOT_FOUND);
    pp_event_free(e);
    r.n_adapters = 1;
    assert_int_equal(cost_of(&r, &cached), total);
    assert_true(cached >= total - 1);
    assert_string_equal(answer_to(r), first);
    assert_true(env.done.stats.cached_tokens >= total - 1);
    pp_free(first);
    end();
}

/* A draft with another vocabulary guesses by its text, and changes nothing; a model without a chat template is talked
 * to plainly, and says so. */
static void test_other_model(void **state)
{
    struct pp_loaded info;
    const char *stories = testdata("stories260k/stories260K-f32.gguf"), *draft = testdata("starter/draft");
    (void)state;
    if (!stories)
        return;
    begin(256);
    assert_int_equal(load(stories, draft, 0, &info), PP_OK);
    assert_string_not_equal(info.draft_name, "");
    assert_string_equal(info.draft_reason, "");
    assert_false(info.has_template);
    assert_string_equal(info.instead, "plain");
    struct pp_generate_request r = request(ASK("Once upon a time"));
    char *first = pp_strdup(answer_to(r));
    assert_true(strlen(first) > 0);
    assert_int_equal(env.done.err.code, PP_OK);
    assert_non_null(strstr(env.notice, "plain"));
    r.use_draft = r.draft_always = true;
    assert_string_equal(answer_to(r), first);
    assert_int_equal(env.done.err.code, PP_OK);
    assert_string_equal(env.notice, ""); /* once is enough */
    pp_free(first);
    end();
}

/* Looks at a draft model; the reason why it does not fit, "" if it does. */
static const char *look_at(const char *path, struct pp_drafter_facts *f)
{
    static char reason[300];
    env.backend->ops->inspect_draft(env.backend, path);
    struct pp_event *e = event_of(PP_EVENT_DRAFTER);
    assert_string_equal(e->text, path);
    assert_int_equal(e->drafter == NULL, e->err.code != PP_OK);
    snprintf(reason, sizeof reason, "%.299s", e->drafter ? "" : e->err.text);
    if (f && e->drafter)
        *f = *e->drafter;
    pp_event_free(e);
    return reason;
}

/* The path of the draft that guesses after another one was asked for; static. */
static const char *change_draft(const char *path, enum pp_code code)
{
    static char now[600];
    env.backend->ops->draft(env.backend, path);
    struct pp_event *e = event_of(PP_EVENT_DRAFT);
    assert_int_equal(e->err.code, code);
    if (e->info)
        snprintf(now, sizeof now, "%s", e->info->draft_path);
    pp_event_free(e);
    return now;
}

#define STARTER "engine/starter/starter-Q4_K_M.gguf"
#define DRAFT "engine/starter/starter-draft-Q4_0.gguf"

/* Draft models come and go while the model and its pages stay, and answers are the same with all. */
static void test_drafts(void **state)
{
    struct pp_loaded info;
    struct pp_drafter_facts f;
    char text[600];
    struct pp_error err;
    const char *stories = testdata("stories260k/stories260K-f32.gguf");
    (void)state;
    snprintf(text, sizeof text, "%s/no-draft.gguf", test_tmpdir());
    assert_ok(pp_write_file(text, "no model", 8, 0600, &err), err);
    begin(256);
    assert_int_equal(load(STARTER, NULL, 512, &info), PP_OK);
    assert_string_equal(info.draft_path, "");
    assert_string_equal(look_at(DRAFT, &f), "");
    assert_true(f.bytes > 0 && f.share > 0 && f.share < 0.6f && !f.bridged);
    assert_non_null(strstr(look_at(STARTER, NULL), "the model itself"));
    assert_non_null(strstr(look_at(text, NULL), "no-draft.gguf"));
    if (stories) {
        assert_string_equal(look_at(stories, &f), "");
        assert_true(f.bridged && f.other_template);
    }
    struct pp_generate_request r = request(ASK("Hello, who are you?"));
    r.ignore_end = true;
    char *plain = pp_strdup(answer_to(r));
    r.use_draft = r.draft_always = true;
    assert_string_equal(answer_to(r), plain);
    assert_int_equal(env.done.stats.draft_tokens, 0);
    assert_string_equal(change_draft(DRAFT, PP_OK), DRAFT);
    assert_string_equal(answer_to(r), plain);
    assert_true(env.done.stats.draft_tokens > 0);
    assert_int_equal(env.done.stats.cached_tokens, env.done.stats.prompt_tokens - 1); /* nothing was loaded anew */
    change_draft(text, PP_ERR_FORMAT); /* then the old one goes on */
    assert_string_equal(answer_to(r), plain);
    assert_true(env.done.stats.draft_tokens > 0);
    if (stories) {
        assert_string_equal(change_draft(stories, PP_OK), stories);
        assert_string_equal(answer_to(r), plain);
    }
    /* while an answer is written: when it has ended */
    post(r);
    take_in(true);
    env.backend->ops->draft(env.backend, DRAFT);
    take_in(false);
    assert_string_equal(pp_buf_cstr(&env.text), plain);
    pp_event_free(event_of(PP_EVENT_DRAFT));
    assert_string_equal(answer_to(r), plain);
    pp_free(plain);
    assert_int_equal(load(text, NULL, 0, NULL), PP_ERR_FORMAT);
    end();
}

/* The draft's own adapters come with it; one that does not fit is a reason to do without a draft. */
static void test_draft_adapters(void **state)
{
    struct pp_model *m;
    struct pp_error err;
    char path[300];
    const struct pp_random_adapter spec = {.kind = PP_RANDOM_LORA, .rank = 4, .all = true, .seed = 3};
    (void)state;
    snprintf(path, sizeof path, "%s/for-draft.gguf", test_tmpdir());
    assert_ok(pp_model_open(DRAFT, &m, &err), err);
    assert_ok(pp_random_adapter_write(m, &spec, path, &err), err);
    pp_model_close(m);
    begin(256);
    const struct pp_adapter_choice own = {.path = path, .scale = 0.5f};
    struct pp_load_request r = {.model = STARTER, .draft = DRAFT, .draft_adapters = &own, .n_draft_adapters = 1};
    r.engine.n_threads = 2;
    r.engine.n_ctx = 512;
    env.backend->ops->load(env.backend, &r);
    struct pp_event *e = event_of(PP_EVENT_LOADED);
    assert_string_equal(e->info->draft_reason, "");
    assert_string_equal(e->info->draft_path, DRAFT);
    pp_event_free(e);
    struct pp_generate_request q = request(ASK("Hello, who are you?"));
    char *plain = pp_strdup(answer_to(q));
    q.use_draft = q.draft_always = true;
    assert_string_equal(answer_to(q), plain);
    assert_true(env.done.stats.draft_tokens > 0);
    assert_string_equal(change_draft(DRAFT, PP_OK), DRAFT); /* by itself */
    assert_string_equal(answer_to(q), plain);
    pp_free(plain);
    const struct pp_adapter_choice none = {.path = "/nowhere.gguf", .scale = 1};
    r.draft_adapters = &none;
    env.backend->ops->load(env.backend, &r);
    e = event_of(PP_EVENT_LOADED);
    assert_string_equal(e->info->draft_path, "");
    assert_non_null(strstr(e->info->draft_reason, "nowhere"));
    pp_event_free(e);
    end();
}

/* A file that is no model, named while one is loaded: that one stays, and answers as before. */
static void test_mistyped_model(void **state)
{
    struct pp_loaded info;
    char text[600];
    struct pp_error err;
    (void)state;
    snprintf(text, sizeof text, "%s/text.gguf", test_tmpdir());
    assert_ok(pp_write_file(text, "no model", 8, 0600, &err), err);
    begin(256);
    assert_int_equal(load(text, NULL, 0, NULL), PP_ERR_FORMAT);
    assert_false(env.stays);
    assert_int_equal(load("engine/starter/starter-Q4_K_M.gguf", NULL, 512, &info), PP_OK);
    struct pp_generate_request r = request(ASK("Hello, who are you?"));
    char *before = pp_strdup(answer_to(r));
    assert_int_equal(load(text, NULL, 0, NULL), PP_ERR_FORMAT);
    assert_true(env.stays);
    assert_string_equal(answer_to(r), before);
    assert_true(env.done.stats.cached_tokens > 0); /* its pages stay, too */
    pp_free(before);
    end();
}

TEST_GROUP(worker)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_model),
        cmocka_unit_test(test_after_close),
        cmocka_unit_test(test_snapshot_path),
        cmocka_unit_test(test_make_room),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_greedy), cmocka_unit_test(test_guessed),
        cmocka_unit_test(test_drafts), cmocka_unit_test(test_draft_adapters),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_appended_request),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_stopped_screen),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_not_kept),
        cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(many_adapters),
        cmocka_unit_test(test_other_model),
        cmocka_unit_test(test_mistyped_model),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
