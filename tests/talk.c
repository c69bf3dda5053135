#include "tests/talk.h"

#include <stdio.h>
#include <string.h>

#include "src/paths.h"
#include "src/worker.h"
#include "tests/patience.h"
#include "tests/support.h"

struct talk talk;

void talk_start(void)
{
    struct pp_error err;
    pp_worker_patience = 20;
    assert_ok(pp_worker_start(talk.events, talk.io, talk.cache, &talk.backend, &err), err);
}

void talk_begin(size_t capacity)
{
    static int serial;
    char folder[120];
    struct pp_error err;
    memset(&talk, 0, sizeof talk);
    snprintf(folder, sizeof folder, "%s/worker-%d", test_tmpdir(), serial++);
    assert_ok(pp_make_dirs(folder, &err), err);
    snprintf(talk.db, sizeof talk.db, "%s/pippin.db", folder);
    snprintf(talk.cache, sizeof talk.cache, "%s/cache", folder);
    assert_ok(pp_queue_new(capacity, &talk.events, &err), err);
    assert_ok(pp_io_start(talk.db, talk.events, &talk.io, &err), err);
    assert_ok(pp_store_open(talk.db, &talk.store, &err), err);
    assert_ok(pp_store_session_add(talk.store, &talk.session, &err), err);
    talk_start();
}

struct pp_event *talk_next(void)
{
    struct pp_event *e = pp_queue_pop(talk.events, TEST_PATIENCE_MS);
    if (!e)
        fail_msg("no event in time");
    return e;
}

void talk_stop(void)
{
    talk.backend->ops->close(talk.backend);
    for (bool closed = false; !closed;) {
        struct pp_event *e = talk_next();
        closed = e->type == PP_EVENT_CLOSED;
        pp_event_free(e);
    }
    talk.backend->ops->free(talk.backend);
}

void talk_end(void)
{
    talk_stop();
    pp_queue_close(talk.events);
    pp_io_stop(talk.io, NULL);
    for (struct pp_event *e; (e = pp_queue_try_pop(talk.events));)
        pp_event_free(e);
    pp_queue_free(talk.events);
    pp_store_close(talk.store);
    pp_session_clear(&talk.session);
    pp_draft_runs_free(&talk.drafted);
    pp_buf_free(&talk.text);
    pp_buf_free(&talk.reasoning);
}

enum pp_code talk_load(const char *model, const char *draft, int64_t n_ctx, struct pp_loaded *info)
{
    struct pp_load_request r = {
        .model = model, .draft = draft, .engine = {.n_threads = 2, .kv_type = PP_KV_F32, .n_ctx = n_ctx},
        .snapshot_quota = talk.quota};
    talk.backend->ops->load(talk.backend, &r);
    for (;;) {
        struct pp_event *e = talk_next();
        enum pp_event_type type = e->type;
        enum pp_code code = e->err.code;
        if (type == PP_EVENT_LOADED && info)
            *info = *e->info;
        talk.stays = type == PP_EVENT_LOAD_FAILED && e->info;
        pp_event_free(e);
        if (type == PP_EVENT_LOADED)
            return PP_OK;
        if (type == PP_EVENT_LOAD_FAILED) {
            assert_int_not_equal(code, PP_OK);
            return code;
        }
    }
}

bool talk_begin_starter(size_t capacity, bool draft)
{
    struct pp_loaded info;
    const char *target = testdata("starter/target"), *small = draft ? testdata("starter/draft") : NULL;
    if (!target)
        return false;
    talk_begin(capacity);
    assert_int_equal(talk_load(target, small, 1024, &info), PP_OK);
    assert_int_equal(info.n_ctx, 1024);
    assert_true(info.has_template);
    if (draft) {
        assert_string_equal(info.draft_reason, "");
        assert_string_not_equal(info.draft_name, "");
    }
    return true;
}

struct pp_generate_request talk_request(const char *messages)
{
    struct pp_generate_request r = {
        .messages_json = messages, .session_key = talk.session.key, .sampling = pp_sampling_default(),
        .max_tokens = 48};
    r.sampling.temp = 0;
    return r;
}

void talk_post(struct pp_generate_request r)
{
    r.request = ++talk.request;
    pp_buf_clear(&talk.text);
    pp_buf_clear(&talk.reasoning);
    pp_draft_runs_clear(&talk.drafted);
    talk.notice[0] = 0;
    talk.n_progress = 0;
    talk.dropped = 0;
    talk.backend->ops->generate(talk.backend, &r);
}

void talk_take_in(bool text_only)
{
    for (;;) {
        struct pp_event *e = talk_next();
        enum pp_event_type type = e->type;
        if (type == PP_EVENT_TEXT) {
            assert_int_equal(e->request, talk.request);
            pp_buf_add(&talk.text, e->text, e->text_len);
            pp_buf_add(&talk.reasoning, e->thoughts.text, e->thoughts.len);
            pp_draft_runs_append(&talk.drafted, &e->drafted);
            talk.n_reasoning = e->thoughts.n_tokens;
        } else if (type == PP_EVENT_NOTICE) {
            snprintf(talk.notice, sizeof talk.notice, "%s", e->text);
        } else if (type == PP_EVENT_ADAPTER_SKIPPED) {
            snprintf(talk.notice, sizeof talk.notice, "%s", e->err.text);
        } else if (type == PP_EVENT_PROMPT_PROGRESS) {
            assert_true(e->done <= e->total);
            talk.n_progress++;
        } else if (type == PP_EVENT_CONTEXT) {
            talk.context_used = e->done;
        } else if (type == PP_EVENT_OVERFLOW) {
            talk.dropped = e->n;
            talk.dropped_done = e->done;
        } else if (type == PP_EVENT_DONE) {
            assert_int_equal(e->request, talk.request);
            talk.done = *e;
            talk.done.text = NULL;
        }
        pp_event_free(e);
        if (type == PP_EVENT_DONE || (text_only && type == PP_EVENT_TEXT))
            return;
    }
}

const char *talk_answer(struct pp_generate_request r)
{
    talk_post(r);
    talk_take_in(false);
    return pp_buf_cstr(&talk.text);
}

struct pp_event *talk_event(enum pp_event_type type)
{
    for (;;) {
        struct pp_event *e = talk_next();
        if (e->type == type)
            return e;
        pp_event_free(e);
    }
}

void talk_wait_notice(const char *text)
{
    while (!strstr(talk.notice, text)) {
        struct pp_event *e = talk_next();
        if (e->type == PP_EVENT_NOTICE)
            snprintf(talk.notice, sizeof talk.notice, "%s", e->text);
        pp_event_free(e);
    }
    assert_null(strchr(talk.notice, '\n'));
}
