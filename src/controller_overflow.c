/* controller_overflow.c - a conversation that has outgrown the context: asking the user, dropping turns, summarising
 * them, and continuing.
 *
 *   the prompt does not fit ─► PP_EVENT_OVERFLOW ─► ask ──────► the user: pp_controller_overflow
 *   the answer reached the limit ─────────────────┘ │shift     │stop: a notice
 *                                                   ▼          ▼
 *                            again, without the oldest ◄── the summary is there ◄──
 *                            summarise
 *
 * What was dropped is stored with the question (pp_branch_set_context), so that its other answers, and all later
 * turns, see the same context. Messages are never deleted. */
#include <string.h>

#include "engine/base/mem.h"
#include "src/controller_int.h"

/* --- the model's context ------------------------------------------------------------------------------------ */

bool ctl_overflow_prepare(struct pp_controller *c, struct ctl_running *run, char **messages)
{
    const char *note;
    size_t n = c->branch.n - 1, from = pp_branch_context(&c->branch, n, &note);
    char *system = pp_branch_system(c->session.system, note);
    *messages = NULL;
    run->overflow = c->overflow_once ? (enum pp_overflow)(c->overflow_once - 1) : c->overflow;
    run->question = n ? c->branch.items[n - 1].msg.id : 0;
    run->turns = pp_calloc(n - from + 1, sizeof *run->turns);
    run->note = pp_strdup(note);
    if (system && run->turns && run->note)
        *messages = pp_branch_json_from(&c->branch, from, n, system, run->turns, &run->n_turns);
    pp_free(system);
    return *messages != NULL;
}

enum pp_overflow ctl_default_overflow(const struct pp_controller *c)
{
    int how = c->o->overflow ? pp_overflow_by_name(c->o->overflow) : -1;
    return how < 0 ? PP_OVERFLOW_ASK : (enum pp_overflow)how;
}

size_t pp_controller_context(const struct pp_controller *c, const char **note)
{
    return pp_branch_context(&c->branch, c->branch.n, note);
}

/* --- storing what was dropped ------------------------------------------------------------------------------- */

/* From now on, the answers to `question` see the conversation from message `from` on, preceded by `note`. */
static void mark(struct pp_controller *c, int64_t question, int64_t from, const char *note)
{
    const size_t i = pp_branch_place(&c->branch, question);
    if ((i < c->branch.n && !pp_branch_set_context(&c->branch, i, from, note)) ||
        !pp_io_mark(c->io, question, from, note))
        ctl_notice(c, true, "out of memory");
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
}

void ctl_on_overflow(struct pp_controller *c, const struct pp_event *e)
{
    struct ctl_running *r = ctl_running_find(c, e->request);
    if (!r || !r->question || e->n <= 0 || (size_t)e->n >= r->n_turns)
        return;
    r->next_from = r->turns[e->n];
    if (!e->done)
        return; /* only announced: the user is asked first */
    mark(c, r->question, r->next_from, r->note ? r->note : "");
    if (r->session == c->session.id && !r->summary)
        ctl_notice(c, false, "the context was full: the model no longer sees the oldest messages%s",
                   r->overflow == PP_OVERFLOW_SLIDE ? "; the cache of the rest was shifted (inexact)" : "");
}

/* --- after an answer ---------------------------------------------------------------------------------------- */

bool ctl_overflow_older_turns(const struct pp_controller *c)
{
    const char *note;
    for (size_t i = pp_branch_context(&c->branch, c->branch.n, &note) + 1; i < c->branch.n; i++)
        if (c->branch.items[i].msg.role == PP_ROLE_USER)
            return true;
    return false;
}

static void take_summary(struct pp_controller *c, struct ctl_running *r, const struct pp_event *e)
{
    struct ctl_overflow *o = &c->overflow_next;
    if (e->err.code != PP_OK)
        return;
    o->question = r->question;
    o->from = r->next_from;
    o->note = pp_overflow_note(r->text.len ? pp_buf_cstr(&r->text) : "");
    o->what = r->compact ? CTL_OVERFLOW_COMPACT : CTL_OVERFLOW_SUMMARY;
}

/* What to do after this answer has ended: usually nothing. `older`: there are turns that could be dropped. */
static struct ctl_overflow follows(const struct ctl_running *r, const struct pp_event *e, bool older)
{
    bool did_not_fit = e->err.code == PP_ERR_CONTEXT && r->next_from;
    bool ran_out = e->err.code == PP_OK && e->finish == PP_FINISH_CONTEXT && older;
    if (!r->question || r->summary || (!did_not_fit && !ran_out) || r->overflow == PP_OVERFLOW_STOP)
        return (struct ctl_overflow){0};
    return (struct ctl_overflow){.what = CTL_OVERFLOW_ANSWER, .how = r->overflow, .question = r->question,
                                 .from = did_not_fit ? r->next_from : 0, .session = r->session, .message = r->message};
}

/* Keeps it until the conversation is on the screen again. If there are too many, the oldest is dropped, and its
 * answer is left as it is. */
static void note_later(struct pp_controller *c, const struct ctl_overflow *o)
{
    const size_t most = sizeof c->overflow_later / sizeof *c->overflow_later;
    if (c->n_overflow_later == most)
        memmove(c->overflow_later, c->overflow_later + 1, --c->n_overflow_later * sizeof *c->overflow_later);
    c->overflow_later[c->n_overflow_later] = *o;
    c->overflow_later[c->n_overflow_later++].temporary = c->temporary;
}

/* Stores the summary of a conversation that has been left meanwhile. The answer that needed it continues when the
 * user comes back. */
static void keep_summary(struct pp_controller *c, const struct ctl_running *r)
{
    char *note = pp_overflow_note(r->text.len ? pp_buf_cstr(&r->text) : "");
    const struct ctl_overflow later = {.what = CTL_OVERFLOW_ANSWER, .how = PP_OVERFLOW_SHIFT, .question = r->question,
                                       .from = r->next_from, .session = r->session};
    if (note && *note)
        mark(c, r->question, r->next_from, note);
    pp_free(note);
    if (!r->compact)
        note_later(c, &later);
}

bool ctl_overflow_had_no_room(const struct pp_controller *c, int64_t message)
{
    for (int i = 0; i < c->n_without_room; i++)
        if (c->without_room[i] == message)
            return true;
    return false;
}

/* Whether it is one of several alternatives, which are continued together when the last of them has ended. */
static bool is_alternative(const struct pp_controller *c, const struct ctl_running *r)
{
    for (size_t i = 0; i < c->group.n; i++)
        if (c->group.items[i].msg.id == r->message)
            return true;
    return false;
}

static void note_without_room(struct pp_controller *c, const struct ctl_overflow *o)
{
    if (!ctl_overflow_had_no_room(c, o->message) && c->n_without_room < PP_MAX_ALTERNATIVES)
        c->without_room[c->n_without_room++] = o->message;
    c->overflow_next = *o;
}

void ctl_overflow_ended(struct pp_controller *c, struct ctl_running *r, const struct pp_event *e)
{
    struct ctl_overflow *o = &c->overflow_next;
    const bool alternative = is_alternative(c, r), in_front = ctl_in_front(c, r->request) && !alternative;
    const bool stopped = e->err.code == PP_ERR_CANCELLED || c->then != THEN_NOTHING;
    /* keep it only for another one of the same group */
    if (!alternative || stopped || o->session != c->session.id || o->question != r->question) {
        pp_free(o->note);
        *o = (struct ctl_overflow){0};
    }
    if (r->session != c->session.id) {
        struct ctl_overflow later = follows(r, e, r->n_turns > 1);
        if (r->summary && e->err.code == PP_OK)
            keep_summary(c, r);
        if (later.what)
            note_later(c, &later);
        return;
    }
    if (c->then != THEN_NOTHING)
        return;
    struct ctl_overflow next = {0};
    if (r->summary)
        take_summary(c, r, e);
    else if (in_front || alternative) /* n_turns excludes the turns that were already dropped */
        next = follows(r, e, r->n_turns > 1 && ctl_overflow_older_turns(c));
    if (in_front)
        *o = next;
    else if (next.what)
        note_without_room(c, &next);
}

/* Whether it concerns the last answer of the branch. message 0: any answer to its question. */
static bool is_about_last(const struct pp_controller *c, const struct ctl_overflow *o)
{
    const size_t n = c->branch.n;
    const struct pp_chat_message *answer = n > 1 ? &c->branch.items[n - 1].msg : NULL;
    return answer && answer->role == PP_ROLE_ASSISTANT && c->branch.items[n - 2].msg.id == o->question &&
           (!o->message || o->message == answer->id);
}

void ctl_overflow_resume(struct pp_controller *c)
{
    struct ctl_overflow found = {0};
    size_t kept = 0;
    for (size_t i = 0; i < c->n_overflow_later; i++) {
        const struct ctl_overflow o = c->overflow_later[i];
        if (o.session != c->session.id || o.temporary != c->temporary)
            c->overflow_later[kept++] = o;
        else if (!found.what && is_about_last(c, &o))
            found = o;
    }
    c->n_overflow_later = kept;
    if (!found.what || c->state != PP_STATE_IDLE)
        return;
    c->overflow_next = found;
    ctl_overflow_act(c);
}

/* Continues the last answer, or writes it again. */
static void go_on(struct pp_controller *c, enum pp_overflow how)
{
    c->overflow_once = (int)how + 1;
    ctl_answer_again(c);
    c->overflow_once = 0;
}

static char *summary_messages(struct pp_controller *c, size_t from, size_t to, const char *note)
{
    char *system = pp_branch_system(c->session.system, note);
    char *json = system ? pp_branch_json_from(&c->branch, from, to, system, NULL, NULL) : NULL;
    char *asking = pp_overflow_asking(json);
    pp_free(json);
    pp_free(system);
    return asking;
}

/* Asks the model for a summary of the messages before `next`. False, with a notice, if it cannot be asked. */
static bool summarise(struct pp_controller *c, int64_t question, int64_t next, bool compact)
{
    static const struct pp_chat_message nowhere;
    struct pp_adapter_choice adapters[PP_MAX_ADAPTERS];
    const char *note;
    size_t from = pp_branch_context(&c->branch, c->branch.n, &note), to = pp_branch_place(&c->branch, next);
    char *messages = summary_messages(c, from, to < c->branch.n ? to : from, note);
    struct ctl_running *run = messages ? ctl_running_add(c, &nowhere) : NULL;
    if (!run) {
        pp_free(messages);
        ctl_notice(c, true, "out of memory");
        return false;
    }
    run->summary = true;
    run->compact = compact;
    run->question = question;
    run->next_from = next;
    struct pp_generate_request r = ctl_internal_request(c, run->request, messages, adapters);
    r.max_tokens = pp_overflow_note_room(c->status.ctx_total);
    r.overflow = PP_OVERFLOW_SHIFT;
    ctl_notice(c, false, "%ssummarising the oldest %zu messages", compact ? "" : "the context is full: ",
               to - from);
    ctl_set_state(c, PP_STATE_PREFILL);
    c->backend->ops->generate(c->backend, &r);
    pp_free(messages);
    return true;
}

/* Carries out the user's choice. `from`, where the kept part begins, is known only if the prompt did not fit;
 * without it nothing can be summarised. */
static void carry_out(struct pp_controller *c, enum pp_overflow how, int64_t question, int64_t from)
{
    if (how == PP_OVERFLOW_SUMMARISE && from)
        summarise(c, question, from, false);
    else
        go_on(c, how);
}

void ctl_overflow_act(struct pp_controller *c)
{
    struct ctl_overflow o = c->overflow_next;
    c->overflow_next = (struct ctl_overflow){0};
    if (c->state != PP_STATE_IDLE) {
        pp_free(o.note);
        return;
    }
    if (o.what == CTL_OVERFLOW_SUMMARY) {
        if (o.note && *o.note)
            mark(c, o.question, o.from, o.note);
        else
            ctl_notice(c, true, "the model wrote no summary; the oldest messages are dropped without one");
        go_on(c, PP_OVERFLOW_SHIFT);
    } else if (o.what == CTL_OVERFLOW_COMPACT && o.note && *o.note) {
        mark(c, o.question, o.from, o.note);
        ctl_notice(c, false, "from now on, the model sees a summary of the older messages");
    } else if (o.what == CTL_OVERFLOW_COMPACT) {
        ctl_notice(c, true, "the model wrote no summary; nothing was changed");
    } else if (o.what == CTL_OVERFLOW_ANSWER && o.how == PP_OVERFLOW_ASK) {
        c->overflow_question = o.question;
        c->overflow_from = o.from;
        c->status.overflow_serial++;
        ctl_notice(c, true,
                   "the context is full: /overflow shift drops the oldest turns, /overflow summarise summarises them");
    } else if (o.what == CTL_OVERFLOW_ANSWER) {
        carry_out(c, o.how, o.question, o.from);
    }
    pp_free(o.note);
}

/* --- the user's choice -------------------------------------------------------------------------------------- */

bool pp_controller_overflow_asked(const struct pp_controller *c)
{
    size_t n = c->branch.n;
    return c->overflow_question && c->state == PP_STATE_IDLE && n > 1 &&
           c->branch.items[n - 2].msg.id == c->overflow_question &&
           c->branch.items[n - 1].msg.role == PP_ROLE_ASSISTANT;
}

void pp_controller_overflow(struct pp_controller *c, enum pp_overflow how)
{
    if (!pp_controller_overflow_asked(c))
        return;
    int64_t question = c->overflow_question, from = c->overflow_from;
    c->overflow_question = 0;
    if (pp_overflow_drops(how) || how == PP_OVERFLOW_SUMMARISE)
        carry_out(c, how, question, from);
}

bool pp_controller_compact(struct pp_controller *c)
{
    size_t n = c->branch.n;
    while (n && c->branch.items[n - 1].msg.role != PP_ROLE_USER)
        n--;
    if (!ctl_may_answer(c))
        return false;
    if (!n || !ctl_overflow_older_turns(c)) {
        ctl_notice(c, true, n ? "only the last turn is in the context: there is nothing to summarise"
                              : "there is nothing to summarise yet");
        return false;
    }
    const int64_t question = c->branch.items[n - 1].msg.id;
    return summarise(c, question, question, true);
}

bool pp_controller_set_overflow(struct pp_controller *c, const char *word)
{
    int how = pp_overflow_by_name(word);
    if (how < 0) {
        ctl_notice(c, true, "/overflow ask, stop, shift, summarise or slide");
        return false;
    }
    c->overflow = (enum pp_overflow)how;
    ctl_update_session(c, UPDATE_CHOICES);
    static const char *const said[] = {
        "when the context is full, pippin asks",
        "when the context is full, the answer stops",
        "when the context is full, the oldest turns are dropped",
        "when the context is full, the oldest turns are summarised",
        "when the context is full, the oldest turns are dropped and the cache of the rest is shifted: fast but inexact",
    };
    ctl_notice(c, false, "%s", said[how]);
    pp_controller_overflow(c, c->overflow);
    return true;
}
