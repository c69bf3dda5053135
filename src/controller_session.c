/* controller_session.c - opening, leaving, forking, renaming and deleting conversations, and moving between their
 * branches. */
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/controller_int.h"
#include "src/title.h"

/* --- helpers ---------------------------------------------------------------------------------------------- */

bool ctl_copy_session(struct pp_session *to, const struct pp_session *from)
{
    *to = *from;
    to->title = pp_strdup(from->title ? from->title : "");
    to->model = pp_strdup(from->model ? from->model : "");
    to->template_name = pp_strdup(from->template_name ? from->template_name : "");
    to->system = pp_strdup(from->system ? from->system : "");
    to->adapters = pp_strdup(from->adapters ? from->adapters : "");
    to->settings = pp_strdup(from->settings ? from->settings : "");
    return to->title && to->model && to->template_name && to->system && to->adapters && to->settings;
}

/* Posts a job that replaces the conversation on the screen, and takes ownership of it. */
static void post_switch(struct pp_controller *c, struct ctl_job *j)
{
    c->switching = true;
    ctl_job_post(c, j);
}

/* If an update could not be saved, say because the disk is full, its fields are saved with the next one. The list
 * shows what is in the database, so a title that was not saved is read again. */
static void on_updated(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    const struct ctl_job *j = (const struct ctl_job *)job;
    if (job->code != PP_OK) {
        ctl_notice(c, true, "%s", job->err.text);
        if (j->session.id == c->session.id)
            c->unsaved_bits |= j->bits;
        if (j->bits & UPDATE_TITLE)
            ctl_list_reload(c);
    } else {
        ctl_title_read(c, j->session.id, j->session.title, j->renamings);
    }
    ctl_job_free(job);
}

void ctl_note_change(struct pp_controller *c, int64_t session)
{
    c->changed_meanwhile = c->changed_meanwhile || session == c->opening;
}

/* Takes ownership of the job. */
static void post_update(struct pp_controller *c, struct ctl_job *j)
{
    ctl_note_change(c, j->session.id);
    ctl_job_post(c, j);
}

/* The head is not retried while a question is being saved or the branch changed: that job is queued already, and an
 * update posted after it would undo its head. */
void ctl_update_session(struct pp_controller *c, unsigned bits)
{
    const bool pending = c->switching || c->state == PP_STATE_SAVING || c->state == PP_STATE_CLOSING;
    const unsigned later = pending ? UPDATE_HEAD : 0;
    if (bits & UPDATE_CHOICES)
        ctl_note_choices(c);
    /* the conversation costs something else now, as its system prompt, template or length has changed */
    if (bits & (UPDATE_CHOICES | UPDATE_HEAD))
        memset(c->costs, 0, sizeof c->costs);
    ctl_mark_current(c);
    /* stored with the first message; if that is under way, with the old values, so these are saved afterwards */
    if (!c->session.id) {
        c->unsaved_bits |= c->state == PP_STATE_SAVING ? bits : 0;
        return;
    }
    struct ctl_job *j = ctl_job_new(c, ctl_run_update, on_updated);
    if (j && !ctl_copy_session(&j->session, &c->session)) {
        ctl_notice(c, true, "out of memory");
        ctl_job_free(&j->job);
        j = NULL;
    }
    if (!j) {
        c->unsaved_bits |= bits;
        return;
    }
    j->bits = bits | (c->unsaved_bits & ~later);
    c->unsaved_bits &= later & ~bits;
    post_update(c, j);
}

void ctl_update_unsaved(struct pp_controller *c)
{
    if (c->unsaved_bits)
        ctl_update_session(c, 0);
}

void ctl_remember_model(struct pp_controller *c, int64_t session, const char *model)
{
    struct ctl_job *j = ctl_job_new(c, ctl_run_update, on_updated);
    if (!j)
        return;
    j->bits = UPDATE_MODEL;
    j->session.id = session;
    if (ctl_set_string(c, &j->session.model, model))
        post_update(c, j);
    else
        ctl_job_free(&j->job);
}

void ctl_head_saved(struct pp_controller *c, int64_t head)
{
    c->session.head = head;
    c->unsaved_bits &= ~(unsigned)UPDATE_HEAD;
}

/* Retries everything, the head included: no job that would set the head is queued. */
static void update_all_unsaved(struct pp_controller *c)
{
    if (c->unsaved_bits)
        ctl_update_session(c, c->unsaved_bits);
}

void ctl_head_not_saved(struct pp_controller *c)
{
    if (c->state == PP_STATE_CLOSING)
        update_all_unsaved(c);
}

/* --- leaving and entering --------------------------------------------------------------------------------- */

void ctl_release_lock(struct pp_controller *c, int *fd)
{
    if (*fd < 0)
        return;
    struct ctl_job *j = ctl_job_new(c, ctl_run_unlock, NULL);
    if (j) {
        j->lock_fd = *fd;
        ctl_job_post(c, j);
    } else {
        close(*fd);
    }
    *fd = -1;
}

int ctl_share_lock(int fd)
{
    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

/* Leaves the session on the screen: answers under way continue elsewhere (ctl_to_background); otherwise its lock is
 * released. */
static void leave_session(struct pp_controller *c)
{
    pp_branch_truncate(&c->group, 0);
    update_all_unsaved(c);
    c->unsaved_bits = 0;
    if (ctl_to_background(c))
        return;
    if (c->session.id)
        c->backend->ops->leave(c->backend, c->session.key);
    ctl_release_lock(c, &c->lock_fd);
}

void ctl_show_context(struct pp_controller *c)
{
    c->status.ctx_used = 0;
    for (size_t i = c->branch.n; i-- && !c->status.ctx_used;)
        c->status.ctx_used = c->branch.items[i].msg.ctx_used;
}

/* Clears the figures of the last answer, when another conversation comes to the screen. */
static void reset_stats(struct pp_controller *c)
{
    ctl_show_context(c);
    c->status.ctx_inexact = 0;
    c->status.tokens_per_s = 0;
    c->status.acceptance = -1;
    c->prompt_tokens = c->cached_tokens = c->kv_copied_bytes = 0;
}

/* Puts the result of a job on the screen: its session, branch and lock. */
static bool enter(struct pp_controller *c, struct ctl_job *j)
{
    if (!pp_branch_assign(&c->branch, j->list, j->n)) {
        ctl_notice(c, true, "out of memory");
        return false;
    }
    leave_session(c);
    ctl_note_earlier_speed(c, j->list, j->n);
    c->epoch++;
    pp_session_clear(&c->session);
    c->session = j->session;
    j->session = (struct pp_session){0};
    c->lock_fd = j->lock_fd;
    j->lock_fd = -1;
    reset_stats(c);
    ctl_to_foreground(c, c->session.id);
    ctl_show_running(c);
    ctl_on_shown(c);
    ctl_dirty(c, PP_DIRTY_ALL);
    return true;
}

void ctl_notify_other_model(struct pp_controller *c)
{
    const char *had = *c->session.model ? c->session.model : c->o->model; /* "" stands for the default model */
    char path[512];
    if (!c->session.id || c->state == PP_STATE_LOADING || !c->status.model.name[0] || strcmp(had, c->model) == 0)
        return;
    if (pp_resolve_model(c->paths, had, path, sizeof path, NULL) != PP_OK)
        ctl_notice(c, false, "the model of this conversation is missing: %s; using %s", had, c->status.model.name);
    else if (strcmp(path, c->status.model.path) != 0)
        ctl_notice(c, false, "this conversation used another model; using %s now. /model %s goes back",
                   c->status.model.name, *had ? had : "starter");
}

static void on_opened(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    c->switching = false;
    c->opening = 0;
    c->open_err = job->err;
    c->open_err.code = job->code;
    if (job->code == PP_OK && enter(c, j)) {
        pp_free(c->template_source);
        c->template_source = j->text;
        j->text = NULL;
        ctl_notify_other_model(c);
        ctl_apply_session(c);
        if (j->query)
            ctl_notice(c, true, "%s", j->query);
        if (c->changed_meanwhile)
            ctl_start_open(c, c->session.id); /* read it again, as what was read may lack that change */
        else {
            ctl_prepare(c);
            ctl_overflow_resume(c);
        }
    } else if (job->code != PP_OK) {
        ctl_notice(c, true, "%s", job->err.text);
    }
    ctl_job_free(job);
}

enum pp_code ctl_open_first(struct pp_controller *c, struct pp_error *err)
{
    bool latest = c->o->resume_latest && !c->o->resume;
    if (!latest && !c->o->resume)
        return PP_OK;
    struct ctl_job *j = ctl_job_new(c, ctl_run_open, on_opened);
    if (!j || (!latest && !(j->key = pp_strdup(c->o->resume)))) {
        if (j)
            ctl_job_free(&j->job);
        return pp_fail_nomem(err, "the conversation");
    }
    post_switch(c, j);
    while (c->switching) {
        struct pollfd p = {.fd = pp_queue_fd(c->events), .events = POLLIN};
        (void)poll(&p, 1, -1);
        pp_controller_pump(c);
    }
    if (latest && c->open_err.code == PP_ERR_NOT_FOUND) {
        ctl_notice(c, false, "there is no conversation to continue yet; this is a new one");
        return PP_OK;
    }
    if (c->open_err.code != PP_OK && err)
        *err = c->open_err;
    return c->open_err.code;
}

/* Whether the action may run now; if not, it may have been noted in c->then, to run later. Deleting cancels the
 * current answer and runs when that has ended. Leaving lets the answer continue, but waits until its question is
 * saved. While another conversation is being opened, actions are refused, since they would affect that one. */
static bool run_or_defer(struct pp_controller *c, enum afterwards what, int64_t session)
{
    if (c->switching || !ctl_answering(c))
        return ctl_may_change(c);
    if (c->then == THEN_DELETE) {
        ctl_notice(c, true, "stopping the answer; please wait");
        return false;
    }
    if (what != THEN_DELETE && c->state != PP_STATE_SAVING)
        return true;
    c->then = what;
    c->then_session = session;
    if (what == THEN_DELETE)
        pp_controller_cancel(c);
    return false;
}

void pp_controller_new_session(struct pp_controller *c)
{
    if (run_or_defer(c, THEN_NEW, 0))
        ctl_start_new(c);
}

/* Adapters, template, persona and parameters stay as they are: the user has chosen them for this run. */
void ctl_start_new(struct pp_controller *c)
{
    struct pp_session *s = &c->session;
    char *untitled = pp_strdup("");
    if (!untitled) {
        ctl_notice(c, true, "out of memory");
        return;
    }
    leave_session(c); /* while the title is still there, which it may have to save */
    pp_free(s->title);
    s->title = untitled;
    if (c->model)
        ctl_set_string(c, &s->model, c->model); /* not the model of the conversation before */
    c->epoch++;
    s->id = s->head = s->n_messages = 0;
    s->key[0] = 0;
    pp_branch_truncate(&c->branch, 0);
    reset_stats(c);
    ctl_show_running(c);
    ctl_on_shown(c);
    ctl_mark_current(c);
    ctl_dirty(c, PP_DIRTY_ALL);
}

void pp_controller_open(struct pp_controller *c, int64_t session)
{
    if (session != c->session.id && run_or_defer(c, THEN_OPEN, session))
        ctl_start_open(c, session);
}

void ctl_start_open(struct pp_controller *c, int64_t session)
{
    struct ctl_job *j = ctl_job_new(c, ctl_run_open, on_opened);
    if (j) {
        j->id = session;
        j->lock_fd = session == c->session.id ? ctl_share_lock(c->lock_fd) : ctl_background_lock(c, session);
        c->changed_meanwhile = false;
        c->opening = session;
        post_switch(c, j);
    }
}

/* Keeps the system prompt when a chat becomes temporary, and restores it afterwards: one written during a temporary
 * chat must not get into the database with the next conversation. */
static bool save_or_restore_system(struct pp_controller *c, bool temporary)
{
    const char *given = c->o->system ? c->o->system : "";
    if (temporary ? !ctl_set_string(c, &c->system_before, c->session.system)
                  : !ctl_set_string(c, &c->session.system, c->system_before ? c->system_before : given))
        return false;
    char *to = temporary ? c->persona_before : c->persona;
    memcpy(to, temporary ? c->persona : c->persona_before, sizeof c->persona);
    return true;
}

/* Jobs posted before this still go to the database in use until now. */
bool pp_controller_set_temporary(struct pp_controller *c, bool on)
{
    struct pp_error err;
    if (c->no_disk && !on)
        ctl_notice(c, true, "nothing can be saved: %s cannot be %s", c->unusable ? c->paths->db : c->paths->data,
                   c->unusable ? "used; `pippin doctor` says why" : "written to");
    else if (c->temporary == on)
        ctl_notice(c, false, on ? "this chat is temporary; /temporary off ends that" : "this chat is not temporary");
    else if (c->import)
        ctl_notice(c, true, "not possible during an import; %s stops it", c->o->plain ? "Ctrl-C" : "Esc");
    else if (c->running || c->background || c->switching || ctl_answering(c))
        ctl_notice(c, true, "not possible until %s ended",
                   c->background ? "the answers elsewhere have" : "the answer has");
    else if (on || ctl_make_disk(c)) {
        ctl_title_cancel(c);
        ctl_start_new(c);
        if (!save_or_restore_system(c, on))
            return false;
        if (pp_io_temporary(c->io, on, &err) != PP_OK) {
            ctl_notice(c, true, "%s", err.text);
            return false;
        }
        c->temporary = on;
        c->n_unseen = 0;
        c->wanted_in = c->overflow_question = 0; /* these are ids in the other database */
        c->undone = (struct ctl_undone){0};
        ctl_list_forget(c);
        ctl_mark_current(c);
        ctl_notice(c, false, on ? "this chat is not saved to disk; it is gone when you leave or type /temporary off"
                                : "conversations are saved again; the temporary ones are gone");
        return true;
    }
    return false;
}

/* --- branches --------------------------------------------------------------------------------------------- */

void ctl_notify_branch(struct pp_controller *c, const struct pp_chat_message *m)
{
    ctl_notice(c, false, "%s %d of %d", m->role == PP_ROLE_USER ? "question" : "answer", m->sibling + 1,
               m->n_siblings);
}

/* Shows the branch that a job has read. False, with a notice, if the job failed. */
static bool show_branch(struct pp_controller *c, struct ctl_job *j)
{
    struct pp_job *job = &j->job;
    c->switching = c->stepping = false;
    c->more_steps = 0;
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
    if (job->code == PP_OK && !pp_branch_assign(&c->branch, j->list, j->n))
        job->code = pp_fail_nomem(&job->err, "the messages");
    if (job->code != PP_OK) {
        ctl_notice(c, true, "%s", job->err.text);
        ctl_head_not_saved(c);
        return false;
    }
    ctl_head_saved(c, j->session.head);
    ctl_show_context(c);
    ctl_show_running(c);
    ctl_prepare(c);
    return true;
}

static void on_sibling(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    const int more = c->more_steps;
    if (show_branch(c, j)) {
        if (j->flag)
            ctl_notice(c, false, "brought back");
        else if (j->at < c->branch.n)
            ctl_notify_branch(c, &c->branch.items[j->at].msg);
        if (more)
            pp_controller_sibling(c, j->at, more);
    }
    ctl_job_free(job);
}

static void on_branch_of(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    if (show_branch(c, (struct ctl_job *)job))
        ctl_notice(c, false, "found on another branch of this conversation; showing that branch");
    ctl_job_free(job);
}

bool pp_controller_show_branch_of(struct pp_controller *c, int64_t message)
{
    if (!c->session.id || c->switching || ctl_answering(c) || c->state == PP_STATE_CLOSING)
        return false;
    struct ctl_job *j = ctl_job_new(c, ctl_run_branch_of, on_branch_of);
    if (!j)
        return false;
    pp_branch_truncate(&c->group, 0);
    j->session.id = c->session.id;
    j->id = message;
    post_switch(c, j);
    return true;
}

void pp_controller_sibling(struct pp_controller *c, size_t message, int step)
{
    if (c->stepping) { /* keys arrive faster than the disk answers: add up the steps */
        c->more_steps += step;
        return;
    }
    if (message + 1 == c->branch.n && !c->switching && ctl_choose_alternative(c, step))
        return;
    if (!ctl_may_change(c) || message >= c->branch.n)
        return;
    const struct pp_chat_message *m = &c->branch.items[message].msg;
    int to = m->sibling + step;
    to = to < 0 ? 0 : to >= m->n_siblings ? m->n_siblings - 1 : to;
    if (to == m->sibling) {
        ctl_notify_branch(c, m);
        return;
    }
    struct ctl_job *j = ctl_job_new(c, ctl_run_sibling, on_sibling);
    if (!j)
        return;
    j->session.id = c->session.id;
    j->id = message ? c->branch.items[message - 1].msg.id : 0;
    j->step = to;
    j->at = message;
    c->stepping = true;
    c->more_steps = 0;
    post_switch(c, j);
}

bool pp_controller_branch(struct pp_controller *c, int n)
{
    size_t i = c->branch.n;
    while (i > 0 && c->branch.items[i - 1].msg.n_siblings < 2)
        i--;
    if (i == 0) {
        ctl_notice(c, true, "there are no branches yet; /regen and /edit create them");
        return false;
    }
    const struct pp_chat_message *m = &c->branch.items[i - 1].msg;
    if (n < 1 || n > m->n_siblings) {
        ctl_notice(c, true, "this is %s %d of %d; /branch N goes to another one",
                   m->role == PP_ROLE_USER ? "question" : "answer", m->sibling + 1, m->n_siblings);
        return false;
    }
    pp_controller_sibling(c, i - 1, n - 1 - m->sibling);
    return true;
}

static void on_answer_changed(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    if (show_branch(c, j)) {
        ctl_notice(c, false, "answer changed; /continue continues it, Shift-Left goes back to the original");
    } else { /* return the text to the user, as it exists nowhere else */
        pp_free(c->unsent);
        c->unsent = j->text;
        j->text = NULL;
    }
    ctl_job_free(job);
}

bool ctl_change_answer(struct pp_controller *c, size_t message, const char *text)
{
    struct ctl_job *j = ctl_job_new(c, ctl_run_change_answer, on_answer_changed);
    if (!j)
        return false;
    if (!(j->text = pp_strdup(text))) {
        ctl_notice(c, true, "out of memory");
        ctl_job_free(&j->job);
        return false;
    }
    pp_branch_truncate(&c->group, 0);
    j->session.id = c->session.id;
    j->id = c->branch.items[message].msg.id;
    post_switch(c, j);
    return true;
}

bool pp_controller_undo(struct pp_controller *c, int n_back)
{
    if (!ctl_may_change(c))
        return false;
    size_t n = c->branch.n;
    for (int i = 0; i < n_back; i++) {
        while (n && c->branch.items[n - 1].msg.role != PP_ROLE_USER)
            n--;
        if (!n) {
            ctl_notice(c, true,
                       i > 1 ? "there are only %d questions to take back"
                       : i   ? "there is only one question to take back"
                             : "there is nothing to take back",
                       i);
            return false;
        }
        n--;
    }
    struct ctl_undone *u = &c->undone;
    if (u->session != c->session.id || u->at != c->session.head)
        u->leaf = c->session.head;
    u->session = c->session.id;
    u->at = n ? c->branch.items[n - 1].msg.id : 0;
    pp_branch_truncate(&c->branch, n);
    pp_branch_truncate(&c->group, 0);
    c->session.head = n ? c->branch.items[n - 1].msg.id : 0;
    ctl_show_context(c);
    c->status.ctx_inexact = 0;
    ctl_update_session(c, UPDATE_HEAD);
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
    return true;
}

void pp_controller_redo(struct pp_controller *c)
{
    if (!ctl_may_change(c))
        return;
    struct ctl_job *j = c->session.id ? ctl_job_new(c, ctl_run_sibling, on_sibling) : NULL;
    if (!c->session.id)
        ctl_notice(c, true, "there is nothing to bring back");
    if (!j)
        return;
    j->session.id = c->session.id;
    j->id = c->branch.n ? c->branch.items[c->branch.n - 1].msg.id : 0;
    if (c->undone.session == c->session.id && c->undone.at == j->id)
        j->session.head = c->undone.leaf;
    j->step = -1;
    j->at = c->branch.n;
    j->flag = true;
    post_switch(c, j);
}

/* Transfers choices that were made while the copy was being written. */
static bool copy_choices(struct pp_controller *c, struct pp_session *copy)
{
    const struct pp_session *s = &c->session;
    return ctl_set_string(c, &copy->model, s->model) && ctl_set_string(c, &copy->template_name, s->template_name) &&
           ctl_set_string(c, &copy->system, s->system);
}

static void on_forked(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    const int64_t original = c->session.id;
    c->switching = false;
    if (job->code == PP_OK && copy_choices(c, &j->session) && enter(c, j)) {
        ctl_notice(c, false, "this is now a copy; the original is in the list of conversations%s",
                   pp_controller_session_activity(c, original) == PP_SESSION_ANSWERING
                       ? ", where the running answer continues" : "");
        ctl_update_session(c, UPDATE_CHOICES);
    } else if (job->code != PP_OK) {
        ctl_notice(c, true, "%s", job->err.text);
    }
    ctl_job_free(job);
}

void pp_controller_fork(struct pp_controller *c, int n_back)
{
    if (run_or_defer(c, THEN_FORK, n_back))
        ctl_start_fork(c, n_back);
}

/* The number of messages before the last n_back questions; 0: there are fewer questions. */
static size_t messages_before(const struct pp_branch *b, int n_back)
{
    size_t n = b->n;
    for (int i = 0; i < n_back && n; i++)
        for (bool question = false; n && !question; n--)
            question = b->items[n - 1].msg.role == PP_ROLE_USER;
    return n;
}

void ctl_start_fork(struct pp_controller *c, int n_back)
{
    const size_t n = messages_before(&c->branch, n_back);
    if (!n || !c->session.id) {
        ctl_notice(c, true, c->branch.n ? "there is nothing before that to copy" : "there is nothing to copy yet");
        return;
    }
    struct ctl_job *j = ctl_job_new(c, ctl_run_fork, on_forked);
    if (!j)
        return;
    struct pp_buf title = {0};
    pp_buf_fmt(&title, "%s (copy)", c->session.title);
    j->id = c->branch.items[n - 1].msg.id;
    for (const struct ctl_running *r = c->running; r; r = r->next)
        j->flag = j->flag || r->message == j->id;
    if (!ctl_note_choices(c) || !ctl_copy_session(&j->session, &c->session) ||
        !ctl_set_string(c, &j->session.title, pp_buf_cstr(&title))) {
        ctl_notice(c, true, "out of memory");
        ctl_job_free(&j->job);
    } else {
        j->session.id = 0;
        post_switch(c, j);
    }
    pp_buf_free(&title);
}

/* --- renaming and deleting -------------------------------------------------------------------------- */

void pp_controller_rename(struct pp_controller *c, int64_t session, const char *title)
{
    char line[PP_TITLE_BYTES];
    if (!ctl_may_store(c, title))
        return;
    pp_title(title, strlen(title), line);
    ctl_title_cancel(c);
    ctl_rename(c, session, line);
}

void ctl_rename(struct pp_controller *c, int64_t session, const char *line)
{
    c->renamings++;
    ctl_list_rename(c, session ? session : c->session.id, line);
    if (!session || session == c->session.id) {
        if (ctl_set_string(c, &c->session.title, line))
            ctl_update_session(c, UPDATE_TITLE);
        return;
    }
    struct ctl_job *j = ctl_job_new(c, ctl_run_update, on_updated);
    if (!j)
        return;
    j->bits = UPDATE_TITLE;
    j->session.id = session;
    if (ctl_set_string(c, &j->session.title, line))
        post_update(c, j);
    else
        ctl_job_free(&j->job);
}

void ctl_title_read(struct pp_controller *c, int64_t session, const char *title, uint64_t renamings)
{
    if (!session || session != c->session.id || renamings != c->renamings || c->unsaved_bits & UPDATE_TITLE || !title ||
        strcmp(title, c->session.title) == 0 || !ctl_set_string(c, &c->session.title, title))
        return;
    ctl_list_rename(c, session, title);
    ctl_mark_current(c);
}

static void run_read_title(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    job->code = pp_store_session_get(st, j->id, &j->session, &job->err);
}

/* An error is not reported here: nothing depends on it. */
static void on_title_read(struct pp_job *job, void *controller)
{
    const struct ctl_job *j = (const struct ctl_job *)job;
    if (job->code == PP_OK)
        ctl_title_read(controller, j->session.id, j->session.title, j->renamings);
    ctl_job_free(job);
}

void pp_controller_refresh_title(struct pp_controller *c)
{
    enum { EVERY_NS = 1000 * 1000 * 1000 };
    const uint64_t now = pp_now_ns();
    if (!c->session.id || c->temporary || c->state == PP_STATE_CLOSING || c->state == PP_STATE_CLOSED ||
        (c->title_read_ns && now - c->title_read_ns < EVERY_NS))
        return;
    c->title_read_ns = now;
    struct ctl_job *j = ctl_job_new(c, run_read_title, on_title_read);
    if (!j)
        return;
    j->id = c->session.id;
    pp_io_post(c->io, &j->job); /* not awaited */
}

static void on_deleted(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    if (j->flag) /* deleting another conversation does not block */
        c->switching = false;
    if (job->code != PP_OK) {
        ctl_notice(c, true, "%s", job->err.text);
    } else {
        if (c->session.id == j->id) {
            c->session.id = 0; /* so that leaving it does not save it */
            ctl_start_new(c);
        }
        if (c->wanted_in == j->id)
            c->wanted_in = 0; /* there is nothing left to store the model with */
        c->backend->ops->forget(c->backend, j->session.key);
        ctl_notice(c, false, "deleted: %s", *j->session.title ? j->session.title : j->session.key);
        ctl_list_remove(c, j->id);
    }
    ctl_job_free(job);
}

void pp_controller_delete(struct pp_controller *c, int64_t session)
{
    if (session && session != c->session.id) {
        if (session == c->opening) /* it is being opened, and this program is about to hold its lock: refuse */
            ctl_may_change(c);
        else if (!ctl_delete_background(c, session))
            ctl_start_delete(c, session);
    } else if (!c->session.id && c->state != PP_STATE_SAVING) {
        pp_controller_new_session(c); /* it was never stored */
        if (!c->branch.n)
            ctl_notice(c, false, "there is nothing to delete yet");
    } else if (run_or_defer(c, THEN_DELETE, c->session.id))
        ctl_start_delete(c, c->session.id);
}

void ctl_start_delete(struct pp_controller *c, int64_t session)
{
    struct ctl_job *j = ctl_job_new(c, ctl_run_delete, on_deleted);
    if (!j)
        return;
    if (c->title_session == session)
        ctl_title_cancel(c);
    j->id = session;
    j->flag = session == c->session.id;
    if (j->flag)
        post_switch(c, j);
    else
        ctl_job_post(c, j);
}

int64_t pp_controller_session_id(const struct pp_controller *c)
{
    return c->session.id;
}
