/* controller_answer.c - sending, answering, stopping: the part of the state machine between IDLE and IDLE. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/controller_int.h"
#include "src/title.h"

bool ctl_answering(const struct pp_controller *c)
{
    return c->state == PP_STATE_SAVING || c->state == PP_STATE_PREFILL || c->state == PP_STATE_ANSWER;
}

bool ctl_may_change(struct pp_controller *c)
{
    const char *why = NULL;
    if (ctl_answering(c))
        why = "an answer is being written; Esc stops it";
    else if (c->switching)
        why = "a conversation is being opened, one moment";
    else if (c->state == PP_STATE_CLOSING || c->state == PP_STATE_CLOSED)
        why = "pippin is closing";
    if (why)
        ctl_notice(c, true, "%s", why);
    return !why;
}

static bool may_answer(struct pp_controller *c)
{
    if (!ctl_may_change(c))
        return false;
    if (c->state == PP_STATE_LOADING)
        ctl_notice(c, false, "the model is still being loaded, one moment");
    else if (c->state == PP_STATE_FAILED)
        ctl_notice(c, true, "no model is loaded; choose one with /model");
    return c->state == PP_STATE_IDLE;
}

/* --- from the saved question to the worker ---------------------------------------------------------------- */

static size_t last(const struct pp_controller *c)
{
    return c->branch.n - 1;
}

/* The worker is to write the last message of the branch. continue_text: what is there of it already. */
static void start_generation(struct pp_controller *c, const char *continue_text)
{
    struct pp_adapter_choice adapters[PP_MAX_ADAPTERS];
    const struct pp_chat_message *answer = &c->branch.items[last(c)].msg;
    char *messages = pp_branch_json(&c->branch, last(c), c->session.system);
    if (!messages) {
        ctl_notice(c, true, "out of memory");
        ctl_set_state(c, PP_STATE_IDLE);
        return;
    }
    struct pp_generate_request r = {
        .request = ++c->request,
        .session_key = c->session.key,
        .messages_json = messages,
        .continue_text = continue_text,
        .template_source = c->template_source,
        .adapters = adapters,
        .n_adapters = (int)ctl_active_adapters(c, adapters),
        .use_draft = c->draft_on,
        .draft_max = c->draft_max,
        .sampling = c->sampling,
        .max_tokens = c->max_tokens,
        .stops = c->o->stops,
        .n_stops = c->o->n_stops,
        .ignore_end = c->o->ignore_eos,
        .message_id = answer->id,
    };
    c->answer_base = continue_text ? answer->n_tokens : 0;
    c->context_base = 0;
    c->prompt_started_ns = 0;
    c->cancel_asked = false;
    c->status.progress_done = c->status.progress_total = 0;
    c->status.eta_s = -1;
    c->status.tokens_per_s = 0;
    c->status.acceptance = -1;
    ctl_set_state(c, PP_STATE_PREFILL);
    c->backend->ops->generate(c->backend, &r);
    pp_free(messages);
}

/* Marks the answer in the database as stopped before it began. */
static void end_unbegun(struct pp_controller *c)
{
    pp_branch_set_state(&c->branch, last(c), PP_MESSAGE_CANCELLED);
    pp_io_answer_end(c->io, c->branch.items[last(c)].msg.id, PP_MESSAGE_CANCELLED, NULL, 0);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
    ctl_set_state(c, PP_STATE_IDLE);
    ctl_run_afterwards(c);
}

/* --- saving ----------------------------------------------------------------------------------------------- */

/* Cuts the branch to n messages for a new one, and keeps the rest for the case that saving fails. */
static bool cut_branch(struct pp_controller *c, size_t n)
{
    struct pp_branch *tail = &c->saved_tail;
    pp_branch_truncate(tail, 0);
    c->saving_keep = n;
    if (pp_grow(&tail->items, &tail->cap, c->branch.n - n, sizeof *tail->items) != 0) {
        ctl_notice(c, true, "out of memory");
        return false;
    }
    if (c->branch.n > n)
        memcpy(tail->items, c->branch.items + n, (c->branch.n - n) * sizeof *tail->items);
    tail->n = c->branch.n - n;
    c->branch.n = n;
    return true;
}

/* The branch as it was before: the message that could not be saved goes, what was cut comes back. */
static void restore_branch(struct pp_controller *c)
{
    struct pp_branch *tail = &c->saved_tail;
    pp_branch_truncate(&c->branch, c->saving_keep);
    if (tail->n && pp_grow(&c->branch.items, &c->branch.cap, c->saving_keep + tail->n, sizeof *tail->items) == 0) {
        memcpy(c->branch.items + c->saving_keep, tail->items, tail->n * sizeof *tail->items);
        c->branch.n += tail->n;
        tail->n = 0;
    }
    pp_branch_truncate(tail, 0);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
}

static void saving_failed(struct pp_controller *c, struct ctl_job *j)
{
    restore_branch(c);
    if (j->user.content) {
        pp_free(c->unsent);
        c->unsent = j->user.content;
        j->user.content = NULL;
    }
    ctl_notice(c, true, "not saved and not sent: %s", j->job.err.text);
    ctl_set_state(c, PP_STATE_IDLE);
    ctl_run_afterwards(c);
}

static void take_session(struct pp_controller *c, struct ctl_job *j)
{
    c->session.id = j->session.id;
    memcpy(c->session.key, j->session.key, sizeof c->session.key);
    c->session.created = j->session.created;
    c->session.updated = j->session.updated;
    c->lock_fd = j->lock_fd;
    j->lock_fd = -1;
    char *title = c->session.title;
    c->session.title = j->session.title;
    j->session.title = title;
}

/* UI thread: question and answer are in the database. */
static void on_saved(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    struct pp_branch_item *answer = NULL;
    if (job->code == PP_OK) {
        if (!c->session.id)
            take_session(c, j);
        if (j->user.content)
            c->branch.items[last(c)].msg.id = j->user.id;
        c->session.head = j->answer.id;
        answer = pp_branch_append(&c->branch, PP_ROLE_ASSISTANT, "", 0);
        if (!answer)
            job->code = pp_fail_nomem(&job->err, "the answer");
    }
    if (!answer) {
        saving_failed(c, j);
        ctl_job_free(job);
        return;
    }
    answer->msg.id = j->answer.id;
    answer->msg.sibling = j->answer.sibling;
    answer->msg.n_siblings = j->answer.sibling + 1;
    answer->msg.state = PP_MESSAGE_PARTIAL;
    pp_branch_truncate(&c->saved_tail, 0);
    ctl_mark_current(c);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT | PP_DIRTY_STATUS);
    ctl_job_free(job);
    if (c->cancel_asked || c->state != PP_STATE_SAVING)
        end_unbegun(c);
    else
        start_generation(c, NULL);
}

static bool fill_answer(struct pp_controller *c, struct pp_message *m)
{
    char label[192];
    if (!c->seed_fixed && getrandom(&c->sampling.seed, sizeof c->sampling.seed, 0) != sizeof c->sampling.seed)
        c->sampling.seed = pp_now_ns();
    c->sampling.seed &= (UINT64_C(1) << 53) - 1; /* a number that JSON and people can carry without loss */
    snprintf(label, sizeof label, "%s (%s)", c->status.model.name, c->status.model.type_name);
    m->role = PP_ROLE_ASSISTANT;
    m->state = PP_MESSAGE_PARTIAL;
    m->model = pp_strdup(label);
    m->adapters = ctl_adapters_json(c);
    m->params = ctl_params_json(c, c->sampling.seed);
    return m->model && m->adapters && m->params;
}

static int64_t id_before(const struct pp_controller *c, size_t i)
{
    return i ? c->branch.items[i - 1].msg.id : 0;
}

/* Puts a question (or, text NULL, only a new answer) after the first n messages; what follows them becomes another
 * branch. */
static bool save_turn(struct pp_controller *c, size_t n, const char *text)
{
    char title[PP_TITLE_BYTES];
    struct ctl_job *j = ctl_job_new(c, ctl_run_send, on_saved);
    if (!j)
        return false;
    const struct pp_chat_message *old = n < c->branch.n ? &c->branch.items[n].msg : NULL;
    int sibling = old ? old->n_siblings : 0;
    bool ok = ctl_note_choices(c) && ctl_copy_session(&j->session, &c->session) && fill_answer(c, &j->answer);
    j->answer.parent = id_before(c, n);
    j->answer.sibling = text ? 0 : sibling;
    if (ok && text) {
        pp_title(text, strlen(text), title);
        ok = (j->user.content = pp_strdup(text)) && (*c->session.title || ctl_set_string(c, &j->session.title, title));
        j->user.content_len = strlen(text);
        j->user.role = PP_ROLE_USER;
        j->user.parent = id_before(c, n);
    }
    if (!ok || !cut_branch(c, n)) {
        ctl_notice(c, true, "out of memory");
        ctl_job_free(&j->job);
        return false;
    }
    struct pp_branch_item *q = text ? pp_branch_append(&c->branch, PP_ROLE_USER, text, strlen(text)) : NULL;
    if (text && !q) {
        restore_branch(c);
        ctl_notice(c, true, "out of memory");
        ctl_job_free(&j->job);
        return false;
    }
    if (q) {
        q->msg.sibling = sibling;
        q->msg.n_siblings = sibling + 1;
    }
    c->cancel_asked = false;
    ctl_set_state(c, PP_STATE_SAVING);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
    ctl_job_post(c, j);
    return true;
}

static bool blank(const char *text)
{
    return text[strspn(text, " \t\r\n")] == 0;
}

bool pp_controller_send(struct pp_controller *c, const char *text)
{
    if (blank(text) || !may_answer(c))
        return false;
    return save_turn(c, c->branch.n, text);
}

char *pp_controller_take_unsent(struct pp_controller *c)
{
    char *text = c->unsent;
    c->unsent = NULL;
    return text;
}

bool pp_controller_edit(struct pp_controller *c, size_t message, const char *text)
{
    if (message >= c->branch.n || c->branch.items[message].msg.role != PP_ROLE_USER) {
        ctl_notice(c, true, "only what you wrote yourself can be edited");
        return false;
    }
    if (blank(text) || !may_answer(c))
        return false;
    return save_turn(c, message, text);
}

void pp_controller_regenerate(struct pp_controller *c)
{
    size_t n = c->branch.n;
    if (!may_answer(c))
        return;
    if (n && c->branch.items[n - 1].msg.role == PP_ROLE_ASSISTANT)
        n--;
    if (!n)
        ctl_notice(c, true, "there is no answer yet that could be made anew");
    else
        save_turn(c, n, NULL);
}

void pp_controller_continue(struct pp_controller *c)
{
    if (!may_answer(c))
        return;
    if (!c->branch.n || c->branch.items[last(c)].msg.role != PP_ROLE_ASSISTANT || !c->branch.items[last(c)].msg.len) {
        ctl_notice(c, true, "there is no answer that could be continued");
        return;
    }
    /* The text moves when it grows: the request copies it at once. */
    pp_branch_set_state(&c->branch, last(c), PP_MESSAGE_PARTIAL);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
    start_generation(c, c->branch.items[last(c)].msg.text);
}

bool pp_controller_cancel(struct pp_controller *c)
{
    if (!ctl_answering(c))
        return false;
    c->cancel_asked = true;
    if (c->state != PP_STATE_SAVING)
        c->backend->ops->cancel(c->backend, c->request);
    return true;
}

/* --- the answer comes ------------------------------------------------------------------------------------- */

void ctl_on_prompt_progress(struct pp_controller *c, const struct pp_event *e)
{
    if (c->state != PP_STATE_PREFILL)
        return;
    uint64_t now = pp_now_ns();
    uint64_t fresh = e->done > e->cached ? e->done - e->cached : 0; /* computed, not found in pages */
    if (!c->prompt_started_ns)
        c->prompt_started_ns = now;
    double seconds = (double)(now - c->prompt_started_ns) * 1e-9;
    c->status.progress_done = e->done;
    c->status.progress_total = e->total;
    c->status.eta_s = fresh && seconds > 0.05 && e->total > e->done
                          ? (float)(seconds / (double)fresh * (double)(e->total - e->done))
                          : -1;
    c->context_base = (int64_t)e->total;
    c->status.ctx_used = (int64_t)e->done;
    ctl_dirty(c, PP_DIRTY_STATUS);
}

static void take_stats(struct pp_controller *c, const struct pp_stats *s, struct pp_chat_message *m)
{
    if (s->decode_ns && s->decode_tokens)
        m->tokens_per_s = (float)((double)s->decode_tokens * 1e9 / (double)s->decode_ns);
    if (s->draft_tokens)
        m->acceptance = (float)((double)s->draft_accepted / (double)s->draft_tokens);
    c->status.tokens_per_s = m->tokens_per_s;
    c->status.acceptance = m->acceptance;
}

void ctl_on_text(struct pp_controller *c, const struct pp_event *e)
{
    if (!c->branch.n || !(ctl_answering(c) || c->state == PP_STATE_CLOSING))
        return;
    size_t i = last(c);
    struct pp_chat_message *m = &c->branch.items[i].msg;
    if (c->state == PP_STATE_PREFILL)
        ctl_set_state(c, PP_STATE_ANSWER);
    m->n_tokens = c->answer_base + (int64_t)e->stats.decode_tokens;
    if (e->text_len && !pp_branch_grow(&c->branch, i, e->text, e->text_len))
        ctl_notice(c, true, "out of memory: the screen shows only part of the answer, all of it is saved");
    if (c->context_base)
        c->status.ctx_used = c->context_base + (int64_t)e->stats.decode_tokens;
    take_stats(c, &e->stats, m);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT | PP_DIRTY_STATUS);
}

static void say_why_it_ended(struct pp_controller *c, const struct pp_event *e)
{
    if (e->err.code != PP_OK && e->err.code != PP_ERR_CANCELLED)
        ctl_notice(c, true, "%s", e->err.text);
    else if (e->err.code == PP_OK && e->finish == PP_FINISH_LENGTH)
        ctl_notice(c, false, "stopped after %" PRId64 " tokens, as set; /continue goes on", c->max_tokens);
    else if (e->err.code == PP_OK && e->finish == PP_FINISH_CONTEXT)
        ctl_notice(c, true,
                   "the context is full: start a new conversation with /new, or begin with a larger --ctx-size");
}

void ctl_on_done(struct pp_controller *c, const struct pp_event *e)
{
    if (c->state != PP_STATE_PREFILL && c->state != PP_STATE_ANSWER && c->state != PP_STATE_CLOSING)
        return;
    if (c->branch.n) {
        size_t i = last(c);
        struct pp_chat_message *m = &c->branch.items[i].msg;
        take_stats(c, &e->stats, m);
        c->prompt_tokens = e->stats.prompt_tokens;
        c->cached_tokens = e->stats.cached_tokens;
        c->kv_copied_bytes = e->stats.kv_copied_bytes;
        if (e->stats.decode_tokens)
            m->n_tokens = c->answer_base + (int64_t)e->stats.decode_tokens;
        pp_branch_set_state(&c->branch, i, e->err.code == PP_OK              ? PP_MESSAGE_COMPLETE
                                           : e->err.code == PP_ERR_CANCELLED ? PP_MESSAGE_CANCELLED
                                                                             : PP_MESSAGE_PARTIAL);
    }
    say_why_it_ended(c, e);
    c->cancel_asked = false;
    c->status.eta_s = -1;
    ctl_set_state(c, PP_STATE_IDLE);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
    ctl_run_afterwards(c);
}

void ctl_run_afterwards(struct pp_controller *c)
{
    enum afterwards then = c->then;
    c->then = THEN_NOTHING;
    if (c->state == PP_STATE_CLOSING || c->state == PP_STATE_CLOSED)
        return;
    switch (then) {
    case THEN_NOTHING:
        break;
    case THEN_NEW:
        ctl_start_new(c);
        break;
    case THEN_OPEN:
        ctl_start_open(c, c->then_session);
        break;
    case THEN_DELETE:
        ctl_start_delete(c, c->then_session);
        break;
    case THEN_FORK:
        ctl_start_fork(c);
        break;
    }
}
