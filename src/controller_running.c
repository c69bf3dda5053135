/* controller_running.c - answers that are being written: in the conversation on the screen, several alternatives for
 * one question, and in conversations that the user has left meanwhile. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "src/controller_int.h"
#include "src/figures.h"

/* --- the list of running answers -------------------------------------------------------------------------- */

struct ctl_running *ctl_running_add(struct pp_controller *c, const struct pp_chat_message *m)
{
    struct ctl_running *r = pp_calloc(1, sizeof *r), **end = &c->running;
    if (r) {
        pp_buf_add(&r->text, m->text, m->len);
        pp_buf_add(&r->reasoning, m->reasoning, m->reasoning_len);
        for (size_t i = 0; i < m->n_drafted; i++)
            pp_draft_runs_add(&r->drafted, m->drafted[i], i % 2);
        pp_draft_runs_fit(&r->drafted, m->len);
    }
    if (!r || r->text.bad || r->reasoning.bad) {
        if (r) {
            pp_buf_free(&r->text);
            pp_buf_free(&r->reasoning);
            pp_draft_runs_free(&r->drafted);
        }
        pp_free(r);
        return NULL;
    }
    r->request = ++c->request;
    r->session = c->session.id;
    r->message = m->id;
    /* less the end token, which a continued answer drops */
    r->base = m->len || m->reasoning_len ? m->n_tokens - m->ended : 0;
    r->reasoning_tokens = m->reasoning_tokens;
    r->reasoning_ns = (uint64_t)((double)m->reasoning_s * 1e9);
    r->eta_s = r->acceptance = -1;
    for (; *end; end = &(*end)->next)
        r->parallel = (*end)->parallel = true;
    *end = r;
    return r;
}

struct ctl_running *ctl_running_find(const struct pp_controller *c, uint64_t request)
{
    struct ctl_running *r = c->running;
    while (r && r->request != request)
        r = r->next;
    return r;
}

static struct ctl_running *first_in(const struct pp_controller *c, int64_t session)
{
    struct ctl_running *r = c->running;
    while (r && r->session != session)
        r = r->next;
    return r;
}

void ctl_running_drop(struct pp_controller *c, struct ctl_running *r)
{
    struct ctl_running **at = &c->running;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    pp_buf_free(&r->text);
    pp_buf_free(&r->reasoning);
    pp_draft_runs_free(&r->drafted);
    pp_free(r->turns);
    pp_free(r->note);
    pp_free(r);
}

bool ctl_cancel_in(struct pp_controller *c, int64_t session)
{
    bool any = false;
    for (struct ctl_running *r = c->running; r; r = r->next) {
        if (r->session != session)
            continue;
        c->backend->ops->cancel(c->backend, r->request);
        any = true;
    }
    return any;
}

/* --- showing running answers ------------------------------------------------------------------------------ */

static struct pp_branch_item *last_item(const struct pp_controller *c)
{
    return c->branch.n ? &c->branch.items[c->branch.n - 1] : NULL;
}

static bool in_front(const struct pp_controller *c, const struct ctl_running *r)
{
    const struct pp_branch_item *it = last_item(c);
    return r->session == c->session.id && it && it->msg.id == r->message;
}

bool ctl_in_front(const struct pp_controller *c, uint64_t request)
{
    const struct ctl_running *r = ctl_running_find(c, request);
    return r && in_front(c, r);
}

static void show_stats(struct pp_controller *c, const struct ctl_running *r)
{
    c->status.tokens_per_s = r->tokens_per_s;
    c->status.acceptance = r->acceptance;
    c->status.speedup = r->speedup;
    c->status.draft_depth = r->draft_depth;
    memcpy(c->status.drafted_at, r->drafted_at, sizeof r->drafted_at);
    memcpy(c->status.accepted_at, r->accepted_at, sizeof r->accepted_at);
    if (r->prompt_tokens)
        c->status.ctx_used = r->begun ? r->prompt_tokens + r->n_tokens : (int64_t)r->done;
    c->status.progress_done = r->done;
    c->status.progress_total = r->total;
    c->status.eta_s = r->begun ? -1 : r->eta_s;
}

/* Derives the screen's state from the answers that are being written in its conversation. */
static void show_state(struct pp_controller *c)
{
    bool any = false, begun = false;
    if (c->state != PP_STATE_IDLE && c->state != PP_STATE_PREFILL && c->state != PP_STATE_ANSWER)
        return;
    for (const struct ctl_running *r = c->running; r; r = r->next) {
        any = any || r->session == c->session.id;
        begun = begun || (r->session == c->session.id && r->begun);
    }
    enum pp_state s = begun ? PP_STATE_ANSWER : any ? PP_STATE_PREFILL : PP_STATE_IDLE;
    if (s != c->state || s == PP_STATE_IDLE)
        ctl_set_state(c, s);
}

/* What the message on the screen lacks of an answer: that many bytes at the ends of its text and its reasoning. */
struct lacking {
    size_t text, reasoning;
    bool begin_anew; /* replace what is there */
};

static void show_in(struct pp_branch *b, size_t i, const struct ctl_running *r, struct lacking lacking)
{
    struct pp_branch_item *it = &b->items[i];
    it->msg.n_tokens = r->base + r->n_tokens;
    it->msg.ended = false;
    it->msg.ctx_used = r->begun ? r->prompt_tokens + r->n_tokens : 0;
    it->msg.tokens_per_s = r->tokens_per_s;
    it->msg.acceptance = r->acceptance;
    it->msg.speedup = r->speedup;
    it->msg.thinking = r->thinking;
    it->msg.reasoning_tokens = r->reasoning_tokens;
    it->msg.reasoning_s = (float)((double)r->reasoning_ns * 1e-9);
    if (lacking.begin_anew) {
        pp_buf_clear(&it->text);
        pp_buf_clear(&it->reasoning);
        pp_draft_runs_clear(&it->drafted);
        pp_branch_touch(b, i);
    }
    pp_draft_runs_extend(&it->drafted, &r->drafted);
    if (it->msg.drafted != it->drafted.runs)
        pp_branch_touch(b, i);
    if (lacking.reasoning)
        pp_branch_think(b, i, r->reasoning.data + r->reasoning.len - lacking.reasoning, lacking.reasoning);
    if (lacking.text)
        pp_branch_grow(b, i, r->text.data + r->text.len - lacking.text, lacking.text);
}

static const struct lacking nothing;

/* Updates the messages on the screen that show this answer. */
static void show(struct pp_controller *c, const struct ctl_running *r, struct lacking lacking)
{
    if (r->session != c->session.id)
        return;
    for (size_t i = 0; i < c->group.n; i++)
        if (c->group.items[i].msg.id == r->message)
            show_in(&c->group, i, r, lacking);
    if (in_front(c, r)) {
        show_in(&c->branch, c->branch.n - 1, r, lacking);
        show_stats(c, r);
    }
    show_state(c);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT | PP_DIRTY_STATUS);
}

/* Replaces the text by that of the running answer, as the text in the database may be up to a second old. */
static void put_text(struct pp_branch *b, size_t i, const struct ctl_running *r)
{
    show_in(b, i, r, (struct lacking){r->text.len, r->reasoning.len, true});
    pp_branch_set_state(b, i, PP_MESSAGE_PARTIAL);
}

/* Rebuilds the group of alternatives for a conversation that the user has come back to. */
static void regroup(struct pp_controller *c)
{
    size_t n = 0;
    pp_branch_truncate(&c->group, 0);
    for (const struct ctl_running *r = c->running; r; r = r->next)
        n += r->session == c->session.id;
    if (n < 2)
        return;
    for (const struct ctl_running *r = c->running; r; r = r->next) {
        struct pp_branch_item *it = r->session == c->session.id
                                        ? pp_branch_append(&c->group, PP_ROLE_ASSISTANT, "", 0)
                                        : NULL;
        if (!it)
            continue;
        it->msg.id = r->message;
        it->msg.sibling = r->sibling;
        it->msg.n_siblings = r->n_siblings;
        pp_adapter_mix_label(&r->set, it->msg.adapters, sizeof it->msg.adapters);
        put_text(&c->group, c->group.n - 1, r);
    }
}

void ctl_show_running(struct pp_controller *c)
{
    regroup(c);
    for (const struct ctl_running *r = c->running; r; r = r->next) {
        if (!in_front(c, r))
            continue;
        put_text(&c->branch, c->branch.n - 1, r);
        show_stats(c, r);
    }
    show_state(c);
}

void ctl_on_shown(struct pp_controller *c)
{
    for (size_t i = 0; i < c->n_unseen; i++)
        if (c->unseen[i] == c->session.id)
            c->unseen[i] = c->unseen[--c->n_unseen];
    c->backend->ops->show(c->backend, c->session.id ? c->session.key : NULL);
    ctl_dirty(c, PP_DIRTY_LISTS);
}

/* --- conversations that were left ------------------------------------------------------------------------- */

static struct ctl_background *background_of(const struct pp_controller *c, int64_t session)
{
    struct ctl_background *a = c->background;
    while (a && a->session != session)
        a = a->next;
    return a;
}

bool ctl_to_background(struct pp_controller *c)
{
    if (!c->session.id || !first_in(c, c->session.id))
        return false;
    struct ctl_background *a = pp_calloc(1, sizeof *a);
    if (!a || !ctl_set_string(c, &a->title, c->session.title)) {
        pp_free(a);
        ctl_cancel_in(c, c->session.id); /* without memory to keep track of them, its answers are cancelled */
        return false;
    }
    a->session = c->session.id;
    snprintf(a->key, sizeof a->key, "%s", c->session.key);
    a->lock_fd = c->lock_fd;
    c->lock_fd = -1;
    a->next = c->background;
    c->background = a;
    ctl_dirty(c, PP_DIRTY_LISTS);
    return true;
}

int ctl_background_lock(const struct pp_controller *c, int64_t session)
{
    const struct ctl_background *a = background_of(c, session);
    return a ? ctl_share_lock(a->lock_fd) : -1;
}

static void free_background(struct pp_controller *c, struct ctl_background *a)
{
    struct ctl_background **at = &c->background;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    if (a->lock_fd >= 0)
        close(a->lock_fd);
    pp_free(a->title);
    pp_free(a);
}

void ctl_to_foreground(struct pp_controller *c, int64_t session)
{
    struct ctl_background *a = background_of(c, session);
    if (a)
        free_background(c, a); /* the screen holds the lock itself now */
}

bool ctl_delete_background(struct pp_controller *c, int64_t session)
{
    struct ctl_background *a = background_of(c, session);
    if (!a)
        return false;
    a->to_be_deleted = true;
    ctl_cancel_in(c, session);
    return true;
}

static void note_unseen(struct pp_controller *c, int64_t session)
{
    for (size_t i = 0; i < c->n_unseen; i++)
        if (c->unseen[i] == session)
            return;
    if (c->n_unseen < sizeof c->unseen / sizeof *c->unseen)
        c->unseen[c->n_unseen++] = session;
}

/* The last answer of a conversation that is not on the screen has ended. */
static void background_ended(struct pp_controller *c, struct ctl_background *a, const struct pp_event *e,
                             const char *what)
{
    int64_t session = a->session;
    bool delete_it = a->to_be_deleted;
    const char *title = *a->title ? a->title : "another conversation";
    if (!delete_it && e->err.code == PP_OK)
        ctl_notice(c, false, "the %s in \"%.100s\" is ready; F2 lists the conversations", what, title);
    else if (!delete_it && e->err.code != PP_ERR_CANCELLED)
        ctl_notice(c, true, "no %s in \"%.100s\": %.400s", what, title, e->err.text);
    note_unseen(c, session);
    c->backend->ops->leave(c->backend, a->key);
    ctl_release_lock(c, &a->lock_fd);
    free_background(c, a);
    ctl_dirty(c, PP_DIRTY_LISTS);
    if (delete_it)
        ctl_start_delete(c, session);
}

enum pp_session_activity pp_controller_session_activity(const struct pp_controller *c, int64_t session)
{
    if (first_in(c, session))
        return PP_SESSION_ANSWERING;
    for (size_t i = 0; i < c->n_unseen; i++)
        if (c->unseen[i] == session)
            return PP_SESSION_ANSWERED;
    return PP_SESSION_QUIET;
}

int pp_controller_n_elsewhere(const struct pp_controller *c)
{
    int n = 0;
    for (const struct ctl_running *r = c->running; r; r = r->next)
        n += r->session != c->session.id;
    return n;
}

/* --- alternatives ----------------------------------------------------------------------------------------- */

size_t pp_controller_n_alternatives(const struct pp_controller *c)
{
    return c->group.n;
}

const struct pp_chat_message *pp_controller_alternative(const struct pp_controller *c, size_t i)
{
    return i < c->group.n ? &c->group.items[i].msg : NULL;
}

/* Shows the figures of an answer that has ended. The acceptance by position is not kept with it. */
static void show_figures_of(struct pp_controller *c, const struct pp_chat_message *m)
{
    ctl_show_context(c);
    c->status.tokens_per_s = m->tokens_per_s;
    c->status.acceptance = m->acceptance;
    c->status.speedup = m->speedup;
    c->status.draft_depth = 0;
}

bool ctl_choose_alternative(struct pp_controller *c, int step)
{
    const struct pp_branch_item *now = last_item(c);
    size_t i = 0;
    while (now && i < c->group.n && c->group.items[i].msg.id != now->msg.id)
        i++;
    const ptrdiff_t at = (ptrdiff_t)i + step;
    if (!now || i >= c->group.n || !step || at < 0 || at >= (ptrdiff_t)c->group.n)
        return false;
    const struct pp_branch_item *to = &c->group.items[at];
    pp_branch_truncate(&c->branch, c->branch.n - 1);
    struct pp_branch_item *it = pp_branch_append(&c->branch, PP_ROLE_ASSISTANT, to->text.data, to->text.len);
    if (!it) { /* unlikely: as much memory was freed just before */
        ctl_notice(c, true, "out of memory");
        return true;
    }
    struct pp_chat_message fresh = it->msg;
    it->msg = to->msg;
    it->msg.text = fresh.text;
    it->msg.len = fresh.len;
    it->msg.revision = fresh.revision;
    pp_draft_runs_extend(&it->drafted, &to->drafted);
    pp_branch_think(&c->branch, c->branch.n - 1, to->reasoning.data, to->reasoning.len);
    c->session.head = it->msg.id;
    ctl_update_session(c, UPDATE_HEAD);
    ctl_set_follow(c, it->msg.id);
    show_figures_of(c, &it->msg);
    for (const struct ctl_running *r = c->running; r; r = r->next)
        if (in_front(c, r))
            show_stats(c, r);
    ctl_notify_branch(c, &it->msg);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT | PP_DIRTY_STATUS);
    return true;
}

/* --- events of the worker --------------------------------------------------------------------------------- */

void ctl_on_prompt_progress(struct pp_controller *c, const struct pp_event *e)
{
    struct ctl_running *r = ctl_running_find(c, e->request);
    uint64_t now = pp_now_ns();
    /* tokens that were computed, not found in the cache */
    uint64_t fresh = e->done > e->cached ? e->done - e->cached : 0;
    if (!r || r->begun)
        return;
    if (!r->prompt_started_ns)
        r->prompt_started_ns = now;
    double seconds = (double)(now - r->prompt_started_ns) * 1e-9;
    r->done = e->done;
    r->total = e->total;
    r->prompt_tokens = (int64_t)e->total;
    r->eta_s = fresh && seconds > 0.05 && e->total > e->done
                   ? (float)(seconds / (double)fresh * (double)(e->total - e->done))
                   : -1;
    show(c, r, nothing);
}

static void take_stats(struct ctl_running *r, const struct pp_stats *s)
{
    if (s->decode_ns && s->decode_tokens)
        r->tokens_per_s = (float)((double)s->decode_tokens * 1e9 / (double)s->decode_ns);
    if (s->draft_tokens)
        r->acceptance = (float)((double)s->draft_accepted / (double)s->draft_tokens);
    r->speedup = pp_speedup(s->decode_ns ? (double)s->plain_ns / (double)s->decode_ns : 0, (double)s->decode_tokens,
                            (double)s->draft_accepted);
    r->draft_depth = 0;
    while (r->draft_depth < PP_STATS_POSITIONS && s->draft_verified_at[r->draft_depth])
        r->draft_depth++;
    memcpy(r->drafted_at, s->draft_verified_at, sizeof r->drafted_at);
    memcpy(r->accepted_at, s->draft_accepted_at, sizeof r->accepted_at);
    if (s->decode_tokens)
        r->n_tokens = (int64_t)s->decode_tokens;
    if (s->prompt_tokens)
        r->prompt_tokens = (int64_t)s->prompt_tokens;
}

static void take_thoughts(struct ctl_running *r, const struct pp_thoughts *t)
{
    if (t->text_was_reasoning) {
        pp_buf_add(&r->reasoning, r->text.data, r->text.len);
        pp_buf_clear(&r->text);
        pp_draft_runs_clear(&r->drafted);
    }
    if (t->len)
        pp_buf_add(&r->reasoning, t->text, t->len);
    r->thinking = t->going_on;
    r->reasoning_tokens = t->n_tokens;
    r->reasoning_ns = t->ns;
}

void ctl_on_text(struct pp_controller *c, const struct pp_event *e)
{
    struct ctl_running *r = ctl_running_find(c, e->request);
    if (!r)
        return;
    r->begun = true;
    if (e->text_len || e->thoughts.len)
        ctl_note_text(c, r);
    take_stats(r, &e->stats);
    struct lacking lacking = {e->text_len, e->thoughts.len, e->thoughts.text_was_reasoning};
    take_thoughts(r, &e->thoughts);
    if (e->text_len)
        pp_buf_add(&r->text, e->text, e->text_len);
    pp_draft_runs_append(&r->drafted, &e->drafted);
    pp_draft_runs_fit(&r->drafted, r->text.len);
    bool lost = r->text.bad || r->reasoning.bad;
    r->text.bad = r->reasoning.bad = false; /* a failed append leaves the buffer intact */
    if (lost)
        ctl_notice(c, true, "out of memory: the screen shows only part of the answer, all of it is saved");
    if (lost || lacking.begin_anew)
        lacking = (struct lacking){r->text.len, r->reasoning.len, true};
    show(c, r, lacking);
}

/* Completes an error message of the engine, which does not know the command that loads a model. */
static void notify_failure(struct pp_controller *c, const char *why)
{
    if (pp_ends_with(why, "load the model again"))
        ctl_notice(c, true, "%s with /model %s", why, *c->session.model ? c->session.model : "starter");
    else
        ctl_notice(c, true, "%s", why);
}

/* Suggests the ways to make room that exist in this situation. */
static void notify_no_room(struct pp_controller *c, const struct ctl_running *r)
{
    const struct pp_loaded *m = &c->status.model;
    const struct pp_larger larger = pp_overflow_larger(m->n_ctx, m->n_ctx_train);
    const char *takes = larger.text[0] ? "; this model takes " : "";
    if (r->n_turns > 1 && ctl_overflow_older_turns(c))
        ctl_notice(c, true,
                   "the context is full: use /compact (summarise the older turns) or /overflow shift (drop the "
                   "oldest), then %s; or /fork 1 (a copy without this question) or /new%s%s",
                   r->text.len || r->reasoning.len ? "/continue" : "/regen", takes, larger.text);
    else
        ctl_notice(c, true, "this one turn fills the context; /new starts a new conversation%s%s", takes,
                   larger.text);
}

static void say_why_it_ended(struct pp_controller *c, const struct ctl_running *r, const struct pp_event *e)
{
    const bool said_nothing = e->err.code == PP_OK && e->finish == PP_FINISH_END && !r->has_text;
    if (c->overflow_next.what == CTL_OVERFLOW_ANSWER && c->overflow_next.message == r->message)
        return; /* it will be continued, and that was said */
    if (e->err.code == PP_ERR_CONTEXT && e->n)
        ctl_notice(c, true, "%s; /edit changes it, /undo takes it back; your next message is sent without it",
                   e->err.text);
    else if (e->err.code == PP_ERR_CONTEXT && r->next_from) /* there are older turns that could be dropped */
        notify_no_room(c, r);
    else if (e->err.code != PP_OK && e->err.code != PP_ERR_CANCELLED)
        notify_failure(c, e->err.text);
    else if (said_nothing && r->text.len)
        ctl_notice(c, false, "the model has nothing to add: this answer is complete; /regen writes another one");
    else if (said_nothing)
        ctl_notice(c, false, "the model's answer was empty; /regen tries again");
    else if (e->err.code == PP_OK && e->finish == PP_FINISH_LENGTH)
        ctl_notice(c, false, "stopped at the limit of %s token%s; /continue goes on", pp_count(r->max_tokens).text,
                   r->max_tokens == 1 ? "" : "s");
    else if (e->err.code == PP_OK && e->finish == PP_FINISH_CONTEXT)
        notify_no_room(c, r);
}

static void show_end(struct pp_controller *c, const struct ctl_running *r, const struct pp_event *e)
{
    enum pp_message_state s = e->err.code == PP_OK              ? PP_MESSAGE_COMPLETE
                              : e->err.code == PP_ERR_CANCELLED ? PP_MESSAGE_CANCELLED
                                                                : PP_MESSAGE_PARTIAL;
    const bool ended = e->err.code == PP_OK && e->finish == PP_FINISH_END;
    for (size_t i = 0; i < c->group.n; i++) {
        if (c->group.items[i].msg.id != r->message)
            continue;
        c->group.items[i].msg.too_long = e->n != 0;
        c->group.items[i].msg.ended = ended;
        pp_branch_set_state(&c->group, i, s);
    }
    if (in_front(c, r)) {
        c->branch.items[c->branch.n - 1].msg.too_long = e->n != 0;
        c->branch.items[c->branch.n - 1].msg.ended = ended;
        pp_branch_set_state(&c->branch, c->branch.n - 1, s);
        c->prompt_tokens = e->stats.prompt_tokens;
        c->cached_tokens = e->stats.cached_tokens;
        c->kv_copied_bytes = e->stats.kv_copied_bytes;
        c->kv_used = e->stats.kv_bytes_used;
        c->kv_cached = e->stats.kv_bytes_cached;
        c->kv_total = e->stats.kv_bytes_total;
    }
    if (!r->summary || e->err.code != PP_OK)
        say_why_it_ended(c, r, e);
}

void ctl_on_done(struct pp_controller *c, const struct pp_event *e)
{
    struct ctl_running *r = ctl_running_find(c, e->request);
    if (!r)
        return;
    int64_t session = r->session;
    const char *what = r->summary ? "summary" : "answer";
    take_stats(r, &e->stats);
    r->thinking = false;
    show(c, r, nothing);
    ctl_overflow_ended(c, r, e);
    if (session == c->session.id)
        show_end(c, r, e);
    ctl_note_speed(c, r, e);
    ctl_running_drop(c, r);
    ctl_note_change(c, session);
    if (first_in(c, session))
        return; /* other answers are still being written there */
    struct ctl_background *a = background_of(c, session);
    if (a) {
        background_ended(c, a, e, what);
    } else if (session == c->session.id) {
        c->status.eta_s = -1;
        show_state(c);
        ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
        ctl_overflow_act(c);
        ctl_title_begin(c);
        ctl_run_afterwards(c);
    }
}

void ctl_free_running(struct pp_controller *c)
{
    while (c->running)
        ctl_running_drop(c, c->running);
    while (c->background)
        free_background(c, c->background);
    pp_branch_free(&c->group);
}
