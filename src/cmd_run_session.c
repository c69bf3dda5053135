/* cmd_run_session.c - what `pippin run --save` stores: messages in the database, KV pages in a snapshot. */
#include "src/cmd_run.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/title.h"
#include "src/snapshots.h"

/* --- opening ---------------------------------------------------------------------------------------------- */

static enum pp_code lock_session(struct run_session *rs, const struct pp_paths *p, struct pp_error *err)
{
    char locks[600];
    snprintf(locks, sizeof locks, "%s/locks", p->data);
    return pp_session_lock(locks, rs->session.key, &rs->lock_fd, err);
}

/* Reads the template that was chosen for the conversation in the chat. */
static enum pp_code read_template(struct run_session *rs, const struct pp_paths *p, struct pp_error *err)
{
    const char *name = rs->session.template_name;
    if (!name || !*name)
        return PP_OK;
    enum pp_code code = pp_template_source(p, name, &rs->template_source, err);
    return code ? pp_fail_prefix(err, "the chat template of this conversation") : PP_OK;
}

static enum pp_code read_branch(struct run_session *rs, struct pp_error *err)
{
    struct pp_message *list = NULL;
    size_t n = 0;
    enum pp_code code = pp_store_branch(rs->store, rs->session.head, &list, &n, err);
    if (code)
        return code;
    if (!pp_branch_assign(&rs->branch, list, n))
        code = pp_fail_nomem(err, "the conversation");
    pp_message_list_free(list, n);
    return code;
}

enum pp_code run_session_open(struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                              struct pp_error *err)
{
    *rs = (struct run_session){.lock_fd = -1, .stored = o->save || o->resume_latest || o->resume};
    if (!rs->stored)
        return PP_OK;
    enum pp_code code = pp_store_open(p->db, &rs->store, err);
    if (code)
        return code;
    rs->fresh = !o->resume && !o->resume_latest;
    if (rs->fresh)
        return PP_OK;
    if (o->resume)
        code = pp_store_session_find(rs->store, o->resume, &rs->session, err);
    else
        code = pp_store_session_latest(rs->store, &rs->session, err);
    if (!code)
        code = lock_session(rs, p, err);
    if (!code)
        code = pp_store_session_again(rs->store, &rs->session, err);
    if (!code)
        code = read_branch(rs, err);
    return code || pp_options_given(o, "chat-template-file") ? code : read_template(rs, p, err);
}

void run_session_close(struct run_session *rs)
{
    pp_branch_free(&rs->branch);
    pp_session_clear(&rs->session);
    pp_free(rs->template_source);
    pp_store_close(rs->store);
    if (rs->lock_fd >= 0)
        close(rs->lock_fd);
    *rs = (struct run_session){.lock_fd = -1};
}

/* --- asking ----------------------------------------------------------------------------------------------- */

static bool replace(char **slot, const char *value)
{
    char *copy = pp_strdup(value);
    if (!copy)
        return false;
    pp_free(*slot);
    *slot = copy;
    return true;
}

/* Applies the choices of this command line to the conversation, and makes a title of the question if it has none. */
static bool take_choices(struct pp_session *s, const struct pp_options *o, const struct pp_buf *question,
                         const struct run_note *note)
{
    char title[PP_TITLE_BYTES], path[PATH_MAX];
    bool ok = true;
    if (o->model[0] || !s->model) {
        pp_model_reference(o->model, path);
        ok = replace(&s->model, path);
    }
    if (ok && o->chat_template_file)
        ok = replace(&s->template_name, realpath(o->chat_template_file, path) ? path : o->chat_template_file);
    if (ok && (o->system || !s->system))
        ok = replace(&s->system, o->system ? o->system : "");
    if (ok && (o->n_lora || !s->adapters))
        ok = replace(&s->adapters, note->adapters);
    if (ok)
        ok = replace(&s->settings, note->settings);
    if (ok && (!s->title || !*s->title)) {
        pp_title(pp_buf_cstr(question), question->len, title);
        ok = replace(&s->title, title);
    }
    return ok;
}

static enum pp_code store_session(struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                                  const struct pp_buf *question, const struct run_note *note, struct pp_error *err)
{
    struct pp_session *s = &rs->session;
    if (!take_choices(s, o, question, note))
        return pp_fail_nomem(err, "the conversation");
    if (!rs->fresh)
        return pp_store_session_update(rs->store, s, err);
    enum pp_code code = pp_store_session_add(rs->store, s, err);
    return code ? code : lock_session(rs, p, err);
}

static enum pp_code store_turn(struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                               const struct pp_buf *question, const struct run_note *note, struct pp_error *err)
{
    enum pp_code code = store_session(rs, o, p, question, note, err);
    if (code)
        return code;
    struct pp_message user = {
        .session = rs->session.id,
        .parent = rs->session.head,
        .role = PP_ROLE_USER,
        .content = question->data,
        .content_len = question->len,
    };
    code = pp_store_message_add(rs->store, &user, err);
    if (code)
        return code;
    struct pp_message answer = {
        .session = rs->session.id,
        .parent = user.id,
        .role = PP_ROLE_ASSISTANT,
        .state = PP_MESSAGE_PARTIAL,
        .model = (char *)(uintptr_t)note->model, /* not written through */
        .adapters = (char *)(uintptr_t)note->adapters,
        .params = (char *)(uintptr_t)note->params,
    };
    code = pp_store_message_add(rs->store, &answer, err);
    rs->question_id = user.id;
    rs->answer_id = answer.id;
    return code;
}

enum pp_code run_session_ask(struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                             const struct pp_buf *question, const struct run_note *note, struct pp_error *err)
{
    if (!pp_branch_append(&rs->branch, PP_ROLE_USER, pp_buf_cstr(question), question->len))
        return pp_fail_nomem(err, "the question");
    if (!rs->stored)
        return PP_OK;
    /* one transaction: no question without its answer's message */
    enum pp_code code = pp_store_batch_begin(rs->store, "save the question", err);
    if (code)
        return code;
    code = pp_store_batch_end(rs->store, store_turn(rs, o, p, question, note, err), err);
    if (code)
        rs->question_id = rs->answer_id = 0;
    rs->saved_ns = pp_now_ns();
    return code;
}

/* --- the answer ------------------------------------------------------------------------------------------- */

static enum pp_code write_answer(struct run_session *rs, const struct pp_buf *answer, const struct pp_buf *reasoning,
                                 enum pp_message_state state, const char *stats, int64_t n_tokens,
                                 struct pp_error *err)
{
    const struct pp_answer_text text = {pp_buf_cstr(answer), answer->len, pp_buf_cstr(reasoning), reasoning->len};
    return pp_store_message_write(rs->store, rs->answer_id, &text, state, stats, n_tokens, err);
}

enum pp_code run_session_progress(struct run_session *rs, const struct pp_buf *answer, const struct pp_buf *reasoning,
                                  struct pp_error *err)
{
    enum { EVERY_NS = 500 * 1000 * 1000 };
    size_t len = answer->len + reasoning->len;
    if (!rs->answer_id || len == rs->saved_len || pp_now_ns() - rs->saved_ns < EVERY_NS)
        return PP_OK;
    rs->saved_ns = pp_now_ns();
    rs->saved_len = len;
    return write_answer(rs, answer, reasoning, PP_MESSAGE_PARTIAL, NULL, 0, err);
}

enum pp_code run_session_end(struct run_session *rs, const struct pp_buf *answer, const struct pp_buf *reasoning,
                             enum pp_message_state state, const char *stats, int64_t n_tokens, struct pp_error *err)
{
    return rs->answer_id ? write_answer(rs, answer, reasoning, state, stats, n_tokens, err) : PP_OK;
}

/* --- snapshots -------------------------------------------------------------------------------------------- */

static bool snapshot_base(const struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                          char base[static PP_SNAPSHOT_PATH])
{
    base[0] = 0;
    if (o->snapshot_quota != PP_SNAPSHOTS_OFF)
        pp_snapshot_base(p->cache, rs->session.key, base, PP_SNAPSHOT_PATH);
    return base[0] != 0;
}

void run_snapshot_load(const struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                       struct pp_seq *seq, const struct pp_model *model, const int32_t *ids, size_t n)
{
    char base[PP_SNAPSHOT_PATH], manifest[PP_SNAPSHOT_PATH + 16];
    struct pp_sha256 identity;
    struct pp_error err;
    if (!rs->stored || rs->fresh || !snapshot_base(rs, o, p, base))
        return;
    snprintf(manifest, sizeof manifest, "%s.manifest", base);
    if (access(manifest, F_OK) != 0)
        return; /* it is a cache, and may be missing; check first, since computing the model's identity may take long */
    enum pp_code code = pp_model_identity(model, p->cache, &identity, &err);
    if (!code)
        code = pp_snapshot_restore(seq, &identity, base, rs->session.key, ids, (int64_t)n, NULL, &err);
    if (!code)
        pp_snapshot_touch(base);
    else if (code != PP_ERR_NOT_FOUND)
        pp_cli_say(code == PP_ERR_FORMAT || code == PP_ERR_MISMATCH ? "%s" : "the saved KV cache is not used: %s",
                   err.text);
}

void run_snapshot_save(const struct run_session *rs, const struct pp_options *o, const struct pp_paths *p,
                       struct pp_seq *seq, const struct pp_model *model)
{
    struct pp_snapshot_writer w = {.quota = o->snapshot_quota ? o->snapshot_quota : PP_SNAPSHOT_QUOTA};
    struct pp_sha256 identity;
    struct pp_error err = {0};
    if (!rs->stored || !rs->session.id || pp_seq_len(seq) == 0 || !snapshot_base(rs, o, p, w.base))
        return;
    enum pp_code code = pp_model_identity(model, p->cache, &identity, &err);
    if (!code)
        code = pp_save_new(seq, &identity, w.base, rs->session.key, &w.save, &err);
    if (!code) {
        while (!pp_snapshot_slice(&w, &err))
            continue;
        code = err.code;
    }
    if (code)
        pp_cli_say("the KV cache is not saved: %s", err.text);
    pp_save_free(w.save);
}
