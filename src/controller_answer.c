/* controller_answer.c - how an answer begins: sending, asking, cancelling. What happens while it is written is in
 * controller_running.c. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/controller_int.h"
#include "src/title.h"

/* 2^53 - 1: the largest range of integers that a double, as JSON readers use, holds exactly. */
static const uint64_t MAX_SEED = (UINT64_C(1) << 53) - 1;

bool ctl_answering(const struct pp_controller *c)
{
    return c->state == PP_STATE_SAVING || c->state == PP_STATE_PREFILL || c->state == PP_STATE_ANSWER;
}

bool ctl_may_change(struct pp_controller *c)
{
    const char *why = NULL;
    if (c->switching)
        why = "opening a conversation; please wait";
    else if (ctl_answering(c))
        why = "an answer is being written; Esc stops it";
    else if (c->state == PP_STATE_CLOSING || c->state == PP_STATE_CLOSED)
        why = "pippin is shutting down";
    if (why)
        ctl_notice(c, true, "%s", why);
    return !why;
}

bool ctl_may_answer(struct pp_controller *c)
{
    if (!ctl_may_change(c))
        return false;
    if (c->state == PP_STATE_LOADING)
        ctl_notice(c, false, "the model is still loading; please wait");
    else if (c->state == PP_STATE_FAILED)
        ctl_notice(c, true, "no model is loaded; choose one with /model");
    return c->state == PP_STATE_IDLE;
}

bool ctl_may_store(struct pp_controller *c, const char *text)
{
    const size_t n = strlen(text);
    size_t line = 1;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        const size_t len = pp_utf8_decode(text + i, n - i, &cp);
        line += cp == '\n';
        i += len;
        if (cp >= 0)
            continue;
        ctl_notice(c, true, "not accepted: byte <%02X> in line %zu is not valid UTF-8; convert the text with iconv",
                   (unsigned)(unsigned char)text[i - 1], line);
        return false;
    }
    return true;
}

/* --- from the saved question to the worker ---------------------------------------------------------------- */

static size_t last(const struct pp_controller *c)
{
    return c->branch.n - 1;
}

static void generation_failed(struct pp_controller *c)
{
    ctl_notice(c, true, "out of memory");
    ctl_set_state(c, PP_STATE_IDLE);
    ctl_show_running(c); /* other answers of the group may have begun */
}

static struct ctl_answer_choices choices_now(const struct pp_controller *c)
{
    return (struct ctl_answer_choices){ctl_set_now(c), c->sampling, c->max_tokens};
}

/* Asks the worker for an answer to the branch without its last message or, with go_on, for the continuation of that
 * message. */
static void start_generation(struct pp_controller *c, const struct pp_chat_message *answer, bool go_on,
                             const struct ctl_answer_choices *with)
{
    struct pp_adapter_choice adapters[PP_MAX_ADAPTERS];
    char *messages;
    struct ctl_running *run = ctl_running_add(c, answer);
    if (!run || !ctl_overflow_prepare(c, run, &messages)) {
        if (run)
            ctl_running_drop(c, run);
        generation_failed(c);
        return;
    }
    run->set = with->set;
    run->max_tokens = with->max_tokens;
    if (go_on && (answer->len || answer->reasoning_len))
        ctl_note_other_set(c, run, answer->adapters);
    run->sibling = answer->sibling;
    run->n_siblings = answer->n_siblings;
    struct pp_generate_request r = {
        .request = run->request,
        .session_key = c->session.key,
        .no_snapshots = c->temporary,
        .messages_json = messages,
        .continue_text = go_on && answer->len ? answer->text : NULL,
        .continue_drafted = go_on && answer->len ? &run->drafted : NULL,
        .continue_reasoning = go_on && answer->reasoning_len ? answer->reasoning : NULL,
        .reasoning_tokens = run->reasoning_tokens,
        .reasoning_ns = run->reasoning_ns,
        .continue_tokens = run->base,
        .thinking = c->thinking,
        .template_source = c->template_source,
        .adapters = adapters,
        .n_adapters = (int)ctl_set_choices(&with->set, adapters),
        .use_draft = c->drafter == PP_DRAFTER_AUTO || c->drafter == PP_DRAFTER_MODEL,
        .lookup = c->drafter == PP_DRAFTER_AUTO || c->drafter == PP_DRAFTER_LOOKUP,
        .draft_p_min = c->draft_p_min,
        .draft_max = c->draft_max,
        .draft_always = c->o->draft_always,
        .sampling = with->sampling,
        .max_tokens = with->max_tokens,
        .stops = c->o->stops,
        .n_stops = c->o->n_stops,
        .ignore_end = c->o->ignore_eos,
        .message_id = answer->id,
        .overflow = run->overflow,
    };
    c->cancel_requested = false;
    c->status.progress_done = c->status.progress_total = 0;
    c->status.eta_s = -1;
    c->status.tokens_per_s = 0;
    c->status.acceptance = -1;
    ctl_set_state(c, PP_STATE_PREFILL);
    c->backend->ops->show(c->backend, c->session.key);
    c->backend->ops->generate(c->backend, &r);
    pp_free(messages);
}

/* Marks the answers in the database as cancelled before they began. */
static void cancel_unstarted(struct pp_controller *c)
{
    pp_branch_set_state(&c->branch, last(c), PP_MESSAGE_CANCELLED);
    pp_io_answer_end(c->io, c->branch.items[last(c)].msg.id, PP_MESSAGE_CANCELLED, NULL, 0);
    for (size_t i = 0; i < c->group.n; i++) {
        pp_branch_set_state(&c->group, i, PP_MESSAGE_CANCELLED);
        pp_io_answer_end(c->io, c->group.items[i].msg.id, PP_MESSAGE_CANCELLED, NULL, 0);
    }
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
    ctl_set_state(c, PP_STATE_IDLE);
    ctl_run_afterwards(c);
}

/* --- saving ----------------------------------------------------------------------------------------------- */

/* Cuts the branch to n messages to make way for a new tail. The old one is kept in saved_tail in case saving fails. */
static bool cut_branch(struct pp_controller *c, size_t n)
{
    struct pp_branch *tail = &c->saved_tail;
    pp_branch_truncate(tail, 0);
    c->n_before_saving = n;
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

/* Undoes cut_branch: the message that could not be saved is removed, and the old tail comes back. */
static void restore_branch(struct pp_controller *c)
{
    struct pp_branch *tail = &c->saved_tail;
    pp_branch_truncate(&c->branch, c->n_before_saving);
    if (tail->n && pp_grow(&c->branch.items, &c->branch.cap, c->n_before_saving + tail->n, sizeof *tail->items) == 0) {
        memcpy(c->branch.items + c->n_before_saving, tail->items, tail->n * sizeof *tail->items);
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
    const bool damaged = j->job.err.code == PP_ERR_FORMAT && !c->temporary;
    ctl_notice(c, true, "not saved and not sent: %s%s", j->job.err.text,
               damaged ? "; /temporary chats without saving" : "");
    ctl_head_not_saved(c);
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
    if (c->unsaved_bits & UPDATE_TITLE) /* the user has renamed it meanwhile */
        return;
    char *title = c->session.title;
    c->session.title = j->session.title;
    j->session.title = title;
}

/* Appends the answer to the branch, and all alternatives to the group that is shown side by side. */
static bool append_answers(struct pp_controller *c, const struct ctl_job *j)
{
    for (int i = -1; i < j->n_more; i++) {
        const struct pp_message *m = i < 0 ? &j->answer : &j->more[i];
        struct pp_branch *b[] = {i < 0 ? &c->branch : NULL, j->n_more ? &c->group : NULL};
        for (int k = 0; k < 2; k++) {
            struct pp_branch_item *it = b[k] ? pp_branch_append(b[k], PP_ROLE_ASSISTANT, "", 0) : NULL;
            if (b[k] && !it)
                return false;
            if (!it)
                continue;
            it->msg.id = m->id;
            it->msg.sibling = m->sibling;
            it->msg.n_siblings = j->answer.sibling + 1 + j->n_more;
            it->msg.state = PP_MESSAGE_PARTIAL;
            pp_branch_set_adapters(it, m->adapters);
        }
    }
    return true;
}

/* Alternatives differ in their seeds only or, in a comparison, in their adapters only. Derived seeds stay within
 * MAX_SEED. */
static uint64_t seed_of(const struct pp_controller *c, int alternative)
{
    if (c->n_compared || !alternative)
        return c->answer_choices.sampling.seed;
    return (c->answer_choices.sampling.seed + (uint64_t)alternative * UINT64_C(0x9E3779B97F4A7C15)) & MAX_SEED;
}

/* The choices that the i-th answer is written with. */
static struct ctl_answer_choices choices_of(const struct pp_controller *c, const struct pp_chat_message *answer,
                                            size_t i)
{
    struct ctl_answer_choices with = c->answer_choices;
    if (c->n_compared)
        with.set = ctl_set_of(c, answer->id);
    with.sampling.seed = seed_of(c, (int)i);
    return with;
}

/* Starts the answers of the group or, with `only_overflowed`, continues those that ended because the context was
 * full. False if there is nothing to start. */
static bool start_group(struct pp_controller *c, bool only_overflowed)
{
    bool any = false;
    for (size_t i = 0; i < c->group.n; i++) {
        const struct pp_chat_message *m = &c->group.items[i].msg;
        const struct ctl_answer_choices with = choices_of(c, m, i);
        if (only_overflowed && !ctl_overflow_had_no_room(c, m->id))
            continue;
        pp_branch_set_state(&c->group, i, PP_MESSAGE_PARTIAL);
        if (m->id == c->branch.items[last(c)].msg.id)
            pp_branch_set_state(&c->branch, last(c), PP_MESSAGE_PARTIAL);
        start_generation(c, m, only_overflowed, &with);
        any = true;
    }
    return any;
}

static void start_answers(struct pp_controller *c)
{
    const struct pp_chat_message *m = &c->branch.items[last(c)].msg;
    const struct ctl_answer_choices with = choices_of(c, m, 0);
    if (!start_group(c, false))
        start_generation(c, m, false, &with);
}

/* UI thread: question and answers are in the database. */
static void on_saved(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    if (job->code == PP_OK) {
        if (!c->session.id)
            take_session(c, j);
        else
            ctl_title_read(c, j->session.id, j->session.title, j->renamings);
        if (j->user.content) {
            struct pp_chat_message *q = &c->branch.items[last(c)].msg;
            q->id = j->user.id;
            q->sibling = j->user.sibling;
            q->n_siblings = j->user.sibling + 1;
        }
        ctl_head_saved(c, j->answer.id);
        if (!append_answers(c, j))
            job->code = pp_fail_nomem(&job->err, "the answer");
    }
    if (job->code != PP_OK) {
        saving_failed(c, j);
        ctl_job_free(job);
        return;
    }
    pp_branch_truncate(&c->saved_tail, 0);
    ctl_update_unsaved(c);
    for (int i = 0; i < c->n_compared; i++)
        c->compared[i].message = i ? j->more[i - 1].id : j->answer.id;
    ctl_set_follow(c, j->answer.id);
    if (j->n_more) {
        ctl_update_session(c, UPDATE_HEAD); /* the first alternative, not the last one stored */
        if (c->o->plain)
            ctl_notice(c, false, "%d answers; your next message continues number %d; /branch N chooses another",
                       j->n_more + 1, j->answer.sibling + 1);
        else
            ctl_notice(c, false,
                       "Shift-Left and Shift-Right select an answer; your next message continues that one");
    }
    ctl_mark_current(c);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT | PP_DIRTY_STATUS);
    ctl_job_free(job);
    if (c->cancel_requested || c->state != PP_STATE_SAVING)
        cancel_unstarted(c);
    else
        start_answers(c);
    if (ctl_answering(c))
        ctl_run_afterwards(c);
}

static void choose_seed(struct pp_controller *c)
{
    if (c->seed_fixed)
        return;
    if (getrandom(&c->sampling.seed, sizeof c->sampling.seed, 0) != sizeof c->sampling.seed)
        c->sampling.seed = pp_now_ns();
    c->sampling.seed &= MAX_SEED;
}

void ctl_model_label(const struct pp_controller *c, char *out, size_t cap)
{
    snprintf(out, cap, "%s (%s)", c->status.model.name, c->status.model.type_name);
}

/* Fills in the i-th of the answers that are to be stored. */
static bool fill_answer(struct pp_controller *c, struct pp_message *m, int i)
{
    char label[192];
    ctl_model_label(c, label, sizeof label);
    m->role = PP_ROLE_ASSISTANT;
    m->state = PP_MESSAGE_PARTIAL;
    m->model = pp_strdup(label);
    m->adapters = i < c->n_compared ? pp_adapter_mix_json(&c->compared[i].set) : ctl_adapters_json(c);
    m->params = ctl_params_json(c, seed_of(c, i));
    return m->model && m->adapters && m->params;
}

static int64_t id_before(const struct pp_controller *c, size_t i)
{
    return i ? c->branch.items[i - 1].msg.id : 0;
}

/* Stores a question after the first n messages (text NULL: only new answers to the last question) and requests the
 * answers. The messages that followed become another branch. sets: [n_answers] adapters of each; NULL: those that
 * are on. */
static bool save_turn(struct pp_controller *c, size_t n, const char *text, int n_answers,
                      const struct pp_adapter_mix *sets)
{
    char title[PP_TITLE_BYTES];
    struct ctl_job *j = ctl_job_new(c, ctl_run_send, on_saved);
    if (!j)
        return false;
    const struct pp_chat_message *old = n < c->branch.n ? &c->branch.items[n].msg : NULL;
    int sibling = old ? old->n_siblings : 0;
    choose_seed(c);
    c->answer_choices = choices_now(c);
    c->n_without_room = 0;
    c->n_compared = sets ? n_answers : 0;
    for (int i = 0; i < c->n_compared; i++)
        c->compared[i] = (struct ctl_compared){.set = sets[i]};
    bool ok = ctl_note_choices(c) && ctl_copy_session(&j->session, &c->session) &&
              fill_answer(c, &j->answer, 0);
    j->answer.parent = id_before(c, n);
    j->answer.sibling = text ? 0 : sibling;
    for (int i = 0; ok && i < n_answers - 1; i++) {
        j->n_more++;
        j->more[i].sibling = j->answer.sibling + 1 + i;
        ok = fill_answer(c, &j->more[i], i + 1);
    }
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
    pp_branch_truncate(&c->group, 0);
    ctl_title_cancel(c);
    c->cancel_requested = false;
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
    if (blank(text) || !ctl_may_answer(c) || !ctl_may_store(c, text))
        return false;
    return save_turn(c, c->branch.n, text, 1, NULL);
}

char *pp_controller_take_unsent(struct pp_controller *c)
{
    char *text = c->unsent;
    c->unsent = NULL;
    return text;
}

bool pp_controller_edit(struct pp_controller *c, size_t message, const char *text)
{
    if (message >= c->branch.n) {
        ctl_notice(c, true, "there is no such message");
        return false;
    }
    const bool answer = c->branch.items[message].msg.role == PP_ROLE_ASSISTANT;
    if (blank(text) || !(answer ? ctl_may_change(c) : ctl_may_answer(c)) || !ctl_may_store(c, text))
        return false;
    return answer ? ctl_change_answer(c, message, text) : save_turn(c, message, text, 1, NULL);
}

/* New answers to the last question; what they replace stays as a branch. */
static bool regenerate(struct pp_controller *c, int n_answers, const struct pp_adapter_mix *sets)
{
    size_t n = c->branch.n;
    if (!ctl_may_answer(c))
        return false;
    if (n && c->branch.items[n - 1].msg.role == PP_ROLE_ASSISTANT)
        n--;
    if (!n)
        ctl_notice(c, true, "there is no answer to regenerate yet");
    else if (n_answers < 1 || n_answers > PP_MAX_ALTERNATIVES)
        ctl_notice(c, true, "give a number of answers from 1 to %d", PP_MAX_ALTERNATIVES);
    else
        return save_turn(c, n, NULL, n_answers, sets);
    return false;
}

/* Says why another answer to the same question is the same, if it is. */
static void notify_same_answer(struct pp_controller *c, int n_answers)
{
    const char *why = c->sampling.temp == 0            ? "temp 0 always takes the likeliest token"
                      : c->sampling.top_k == 1         ? "top-k 1 always takes the likeliest token"
                      : c->seed_fixed && n_answers < 2 ? "the seed is fixed (/set seed random)"
                                                       : NULL;
    if (why)
        ctl_notice(c, false, "%s: the same question has the same answer", why);
}

void pp_controller_regenerate(struct pp_controller *c, int n_answers)
{
    if (regenerate(c, n_answers, NULL))
        notify_same_answer(c, n_answers);
}

/* Asks whether all adapters of a comparison fit before it begins. A single answer is written without an adapter that
 * cannot be used, but in a comparison such an answer would be pointless. */
static bool ask_before_comparing(struct pp_controller *c, int n, const struct pp_adapter_mix *sets)
{
    if (c->state != PP_STATE_IDLE || !c->branch.n)
        return false;
    pp_free(c->to_compare);
    c->to_compare = pp_calloc(1, sizeof *c->to_compare);
    if (!c->to_compare)
        return false;
    *c->to_compare = (struct ctl_to_compare){.n = n, .epoch = c->epoch, .last = id_before(c, c->branch.n)};
    memcpy(c->to_compare->sets, sets, (size_t)n * sizeof *sets);
    if (ctl_inspect_compared(c))
        return true;
    pp_free(c->to_compare);
    c->to_compare = NULL;
    return false;
}

void ctl_compare_now(struct pp_controller *c)
{
    struct ctl_to_compare *request = c->to_compare;
    c->to_compare = NULL;
    bool allowed = true;
    for (int i = 0; i < request->n && allowed; i++)
        allowed = ctl_set_allowed(c, &request->sets[i]);
    if (allowed && c->state == PP_STATE_IDLE && request->epoch == c->epoch &&
        request->last == id_before(c, c->branch.n))
        regenerate(c, request->n, request->sets);
    else if (allowed)
        ctl_notice(c, true, "not compared: the conversation has changed in the meantime");
    pp_free(request);
}

bool pp_controller_compare(struct pp_controller *c, char *text)
{
    struct pp_adapter_mix sets[PP_MAX_ALTERNATIVES];
    int n = 0;
    for (text += strspn(text, " \t"); *text; text += strspn(text, " \t")) {
        if (n == PP_MAX_ALTERNATIVES) {
            ctl_notice(c, true, "give 2 to %d sets of adapters to compare", PP_MAX_ALTERNATIVES);
            return false;
        }
        if (!ctl_set_parse(c, &text, &sets[n]) || !ctl_set_allowed(c, &sets[n]))
            return false;
        n++;
    }
    if (n < 2) {
        ctl_notice(c, true, "/compare needs two or more sets, such as: none bard bard:0.5+barista");
        return false;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (pp_adapter_mix_equal(&sets[k], &sets[i])) { /* with the same seed both would say the same */
                ctl_notice(c, true, "sets %d and %d are the same; give different ones",
                           k + 1, i + 1);
                return false;
            }
    return ask_before_comparing(c, n, sets) || regenerate(c, n, sets);
}

/* The message's text is passed without a copy: the backend copies the request before the text can grow and move. */
static void continue_last(struct pp_controller *c)
{
    const struct ctl_answer_choices with = choices_now(c);
    pp_branch_set_state(&c->branch, last(c), PP_MESSAGE_PARTIAL);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
    start_generation(c, &c->branch.items[last(c)].msg, true, &with);
}

void pp_controller_continue(struct pp_controller *c)
{
    if (!ctl_may_answer(c))
        return;
    const struct pp_chat_message *m = c->branch.n ? &c->branch.items[last(c)].msg : NULL;
    if (!m || m->role != PP_ROLE_ASSISTANT || (!m->len && !m->reasoning_len)) {
        ctl_notice(c, true, m ? "there is no answer to continue; /regen writes one"
                              : "there is no answer to continue");
        return;
    }
    continue_last(c);
}

void ctl_answer_again(struct pp_controller *c)
{
    if (!c->branch.n || c->branch.items[last(c)].msg.role != PP_ROLE_ASSISTANT)
        return;
    const bool any = start_group(c, true);
    c->n_without_room = 0; /* those that continue may run out of room once more */
    if (any)
        ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
    else
        continue_last(c);
}

bool pp_controller_cancel(struct pp_controller *c)
{
    if (!ctl_answering(c))
        return ctl_import_stop(c);
    c->cancel_requested = true;
    if (c->state != PP_STATE_SAVING)
        ctl_cancel_in(c, c->session.id);
    return true;
}

/* --- what follows an answer ------------------------------------------------------------------------------- */

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
        pp_controller_delete(c, c->then_session);
        break;
    case THEN_FORK:
        ctl_start_fork(c, (int)c->then_session);
        break;
    }
}
