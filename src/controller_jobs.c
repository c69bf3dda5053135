/* controller_jobs.c - the jobs that the io thread runs for the controller: all accesses to the database and to slow
 * files. In/Out name the fields of struct ctl_job that each uses. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/text.h"
#include "src/controller_int.h"
#include "src/conversation.h"
#include "src/prompt.h"

struct ctl_job *ctl_job_new(struct pp_controller *c, void (*run)(struct pp_job *, struct pp_store *),
                            void (*done)(struct pp_job *, void *))
{
    struct ctl_job *j = pp_calloc(1, sizeof *j);
    if (!j) {
        ctl_notice(c, true, "out of memory");
        return NULL;
    }
    j->job.run = run;
    j->job.done = done;
    j->job.release = ctl_job_free;
    j->lock_fd = -1;
    j->paths = c->paths;
    j->o = c->o;
    j->io = c->io;
    j->renamings = c->renamings;
    if (!c->temporary)
        snprintf(j->lock_dir, sizeof j->lock_dir, "%s/locks", c->paths->data);
    return j;
}

void ctl_job_free(struct pp_job *job)
{
    struct ctl_job *j = (struct ctl_job *)job;
    if (!j)
        return;
    pp_session_clear(&j->session);
    pp_free(j->key);
    pp_free(j->text);
    pp_free(j->query);
    pp_message_clear(&j->user);
    pp_message_clear(&j->answer);
    for (int i = 0; i < j->n_more; i++)
        pp_message_clear(&j->more[i]);
    if (j->list)
        pp_message_list_free(j->list, j->n);
    if (j->lock_fd >= 0)
        close(j->lock_fd);
    pp_adapter_note_list_free(j->notes, j->n_notes);
    pp_preset_list_free(j->presets, j->n_presets);
    pp_free(j->adapters.items);
    pp_free(j->drafters.items);
    pp_free(j->models.items);
    pp_free(j->templates.items);
    pp_free(j);
}

void ctl_job_post(struct pp_controller *c, struct ctl_job *j)
{
    j->job.awaited = j->job.done != NULL; /* jobs without `done` are not returned */
    c->n_awaited += j->job.awaited;
    pp_io_post(c->io, &j->job);
}

/* --- templates -------------------------------------------------------------------------------------------- */

/* Reads a template by its name and checks it. *source is NULL on failure. */
static enum pp_code read_template(const struct pp_paths *paths, const char *name, char **source, struct pp_error *err)
{
    struct pp_template *t = NULL;
    enum pp_code code = pp_template_source(paths, name, source, err);
    if (code)
        return pp_fail_prefix(err, "chat template %s", name);
    code = pp_template_parse(*source, strlen(*source), name, &t, err);
    if (!code)
        code = pp_template_check(t, name, err);
    pp_template_free(t);
    if (code) {
        pp_free(*source);
        *source = NULL;
    }
    return code;
}

/* In: session.template_name. Out: text, NULL for the model's own template. */
void ctl_run_template(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    (void)st;
    const char *name = j->session.template_name;
    if (!name || !*name)
        return;
    job->code = read_template(j->paths, name, &j->text, &job->err);
}

/* --- conversations ---------------------------------------------------------------------------------------- */

/* Sets m->sibling. Counts in the database, as the screen does not know siblings that were taken back. */
static enum pp_code find_place(struct pp_store *st, struct pp_message *m, struct pp_error *err)
{
    return pp_store_siblings_before(st, m->session, m->parent, m->id, &m->sibling, err);
}

static void swap_strings(char **a, char **b)
{
    char *t = *a;
    *a = *b;
    *b = t;
}

/* Reads the title again, as another pippin may have changed it. */
static void read_title(struct pp_session *s, struct pp_store *st)
{
    struct pp_session now;
    if (pp_store_session_get(st, s->id, &now, NULL) == PP_OK)
        swap_strings(&now.title, &s->title);
    pp_session_clear(&now);
}

static enum pp_code add_turn(struct ctl_job *j, struct pp_store *st, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    if (j->session.id == 0) {
        code = pp_store_session_add(st, &j->session, err);
        if (code == PP_OK)
            code = pp_session_lock(j->lock_dir, j->session.key, &j->lock_fd, err);
    }
    if (code == PP_OK && j->user.content) {
        j->user.session = j->session.id;
        code = pp_store_message_add(st, &j->user, err);
        j->answer.parent = j->user.id;
        if (code == PP_OK)
            code = find_place(st, &j->user, err);
    }
    if (code == PP_OK) {
        j->answer.session = j->session.id;
        code = pp_store_message_add(st, &j->answer, err);
        if (code == PP_OK)
            code = find_place(st, &j->answer, err);
    }
    for (int i = 0; i < j->n_more && code == PP_OK; i++) {
        j->more[i].session = j->session.id;
        j->more[i].parent = j->answer.parent;
        j->more[i].sibling = j->answer.sibling + 1 + i;
        code = pp_store_message_add(st, &j->more[i], err);
    }
    return code;
}

/* In: session (id 0: it is added first, and locked), user (its content NULL: none), answer, and its alternatives.
 * Out: their ids and sibling numbers, lock_fd, title. One transaction: if it fails, the screen gives the text back
 * to the user. */
void ctl_run_send(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    job->code = pp_store_batch_begin(st, "save the message", &job->err);
    if (job->code == PP_OK)
        job->code = pp_store_batch_end(st, add_turn(j, st, &job->err), &job->err);
    if (job->code == PP_OK)
        read_title(&j->session, st);
}

/* Reads a branch, completed by text of the current answer that is not in the database yet. */
static enum pp_code read_branch(const struct ctl_job *j, struct pp_store *st, int64_t head, struct pp_message **list,
                                size_t *n, struct pp_error *err)
{
    const enum pp_code code = pp_store_branch(st, head, list, n, err);
    if (!code)
        pp_io_complete(j->io, st, *list, *n);
    return code;
}

/* Reads the session's branch, and the template that it names. */
static enum pp_code load_branch(struct ctl_job *j, struct pp_store *st, struct pp_error *err)
{
    struct pp_error why;
    const char *name = j->session.template_name;
    if (name && *name && read_template(j->paths, name, &j->text, &why) != PP_OK) {
        j->query = pp_strdup(why.text); /* not fatal: the model's own template is used, and the user is told */
        name = NULL;
    }
    return read_branch(j, st, j->session.head, &j->list, &j->n, err);
}

/* In: id, or key (a unique prefix), or neither for the latest session; lock_fd, if this program holds its lock
 * already. Out: session, list and n, lock_fd, text (the source of its template), query (why the template could not
 * be read, or NULL). */
void ctl_run_open(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    if (j->id)
        job->code = pp_store_session_get(st, j->id, &j->session, &job->err);
    else if (j->key)
        job->code = pp_store_session_find(st, j->key, &j->session, &job->err);
    else
        job->code = pp_store_session_latest(st, &j->session, &job->err);
    if (job->code == PP_OK && j->lock_fd < 0)
        job->code = pp_session_lock(j->lock_dir, j->session.key, &j->lock_fd, &job->err);
    if (job->code == PP_OK)
        job->code = pp_store_session_again(st, &j->session, &job->err);
    if (job->code == PP_OK)
        job->code = load_branch(j, st, &job->err);
}

/* In: session with its id, and bits: which of its fields have changed. The others are read from the database, so
 * that an update prepared before a message was added cannot move the head back. Out: the title. */
void ctl_run_update(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    struct pp_session now = {0};
    job->code = pp_store_session_get(st, j->session.id, &now, &job->err);
    if (job->code != PP_OK)
        return;
    if (j->bits & UPDATE_TITLE)
        swap_strings(&now.title, &j->session.title);
    if (j->bits & UPDATE_HEAD)
        now.head = j->session.head;
    if (j->bits & UPDATE_MODEL)
        swap_strings(&now.model, &j->session.model);
    if (j->bits & UPDATE_CHOICES) {
        swap_strings(&now.model, &j->session.model);
        swap_strings(&now.template_name, &j->session.template_name);
        swap_strings(&now.system, &j->session.system);
        swap_strings(&now.adapters, &j->session.adapters);
        swap_strings(&now.settings, &j->session.settings);
    }
    job->code = pp_store_session_update(st, &now, &job->err);
    swap_strings(&now.title, &j->session.title);
    pp_session_clear(&now);
}

/* The leaf of the branch that continues with the youngest child of message j->id. */
static enum pp_code youngest(struct ctl_job *j, struct pp_store *st, int64_t *leaf, struct pp_error *err)
{
    int n = 0;
    enum pp_code code = pp_store_siblings_before(st, j->session.id, j->id, INT64_MAX, &n, err);
    if (code == PP_OK && !n)
        code = pp_fail(err, PP_ERR_NOT_FOUND, "there is nothing to bring back");
    return code ? code : pp_store_descend(st, j->session.id, j->id, n - 1, leaf, err);
}

/* Stores `leaf` as the head of the conversation and reads that branch. */
static void end_with(struct ctl_job *j, struct pp_store *st, int64_t leaf)
{
    struct pp_job *job = &j->job;
    struct pp_session now = {0};
    if (job->code == PP_OK)
        job->code = pp_store_session_get(st, j->session.id, &now, &job->err);
    if (job->code == PP_OK) {
        now.head = leaf;
        job->code = pp_store_session_update(st, &now, &job->err);
    }
    pp_session_clear(&now);
    if (job->code == PP_OK)
        job->code = read_branch(j, st, leaf, &j->list, &j->n, &job->err);
    j->session.head = leaf;
}

/* In: session.id, id (the parent message, 0 for the root), step (which of its children; -1: the one that leads to
 * session.head or, if that is 0, the youngest). Out: session.head, list and n. */
void ctl_run_sibling(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    int64_t leaf = j->session.head;
    if (j->step >= 0)
        job->code = pp_store_descend(st, j->session.id, j->id, j->step, &leaf, &job->err);
    else if (!leaf)
        job->code = youngest(j, st, &leaf, &job->err);
    end_with(j, st, leaf);
}

/* In: session.id, id (a message). Out: session.head, list and n of the youngest branch that contains it. */
void ctl_run_branch_of(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    int64_t leaf = j->id;
    int n = 0;
    job->code = pp_store_siblings_before(st, j->session.id, j->id, INT64_MAX, &n, &job->err);
    if (job->code == PP_OK && n)
        job->code = pp_store_descend(st, j->session.id, j->id, n - 1, &leaf, &job->err);
    end_with(j, st, leaf);
}

/* Adds a copy of the answer with another text. It has no statistics: cost and drafted tokens were those of the old
 * text. */
static enum pp_code add_changed(struct ctl_job *j, struct pp_store *st, struct pp_error *err)
{
    struct pp_message m = {0};
    struct pp_buf model = {0};
    enum pp_code code = pp_store_message_get(st, j->id, &m, err);
    if (code != PP_OK)
        return code;
    pp_buf_fmt(&model, "%s%s", m.model, strstr(m.model, ", edited") ? "" : ", edited");
    struct pp_message changed = m;
    changed.content = j->text;
    changed.content_len = strlen(j->text);
    changed.model = model.data;
    changed.stats = NULL;
    changed.n_tokens = 0;
    code = model.bad ? pp_fail_nomem(err, "the answer") : pp_store_message_add(st, &changed, err);
    j->id = changed.id;
    pp_buf_free(&model);
    pp_message_clear(&m);
    return code;
}

/* In: session.id, id (an answer), text (the new one). Out: session.head, list and n of the branch that ends with the
 * changed answer. */
void ctl_run_change_answer(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    job->code = add_changed(j, st, &job->err);
    if (job->code == PP_OK)
        end_with(j, st, j->id);
}

static enum pp_code copy_branch(struct ctl_job *j, struct pp_store *st, struct pp_message *list, size_t n,
                                struct pp_error *err)
{
    for (size_t i = 0; i < n; i++) {
        list[i].parent = (int64_t)i;
        list[i].context_from = pp_message_place(list, n, list[i].context_from);
        list[i].created = 0; /* now */
    }
    j->session.created = j->session.updated = 0;
    j->session.head = (int64_t)n;
    return pp_store_conversation_add(st, &j->session, list, n, err);
}

static enum pp_code add_copy(struct ctl_job *j, struct pp_store *st, struct pp_error *err)
{
    struct pp_message *list = NULL;
    size_t n = 0;
    enum pp_code code = read_branch(j, st, j->id, &list, &n, err);
    if (code == PP_OK && n && j->flag)
        list[n - 1].state = PP_MESSAGE_CANCELLED;
    if (code == PP_OK)
        code = copy_branch(j, st, list, n, err);
    if (code == PP_OK)
        code = pp_session_lock(j->lock_dir, j->session.key, &j->lock_fd, err);
    if (code == PP_OK)
        code = pp_store_branch(st, j->session.head, &j->list, &j->n, err);
    pp_message_list_free(list, n);
    return code;
}

/* In: session (strings of the new one), id (head of the branch to copy), flag (that message is still being written:
 * the copy holds the text so far, as a cancelled answer). Out: session, list and n, lock_fd. One transaction: a copy
 * that cannot be locked or read must not stay in the list. */
void ctl_run_fork(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    job->code = pp_store_batch_begin(st, "save the copy", &job->err);
    if (job->code == PP_OK)
        job->code = pp_store_batch_end(st, add_copy(j, st, &job->err), &job->err);
}

/* In: id, flag (it is the one on screen, whose lock this program holds). Out: key, for removing the snapshot. */
void ctl_run_delete(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    job->code = pp_store_session_get(st, j->id, &j->session, &job->err);
    if (job->code == PP_OK && !j->flag)
        job->code = pp_session_lock(j->lock_dir, j->session.key, &j->lock_fd, &job->err);
    if (job->code == PP_OK)
        job->code = pp_store_session_delete(st, j->id, &job->err);
    if (job->code == PP_OK)
        pp_session_lock_remove(j->lock_dir, j->session.key);
}

/* In: lock_fd. This is a job so that the lock is held until all earlier jobs for that session are done. */
void ctl_run_unlock(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    (void)st;
    close(j->lock_fd);
    j->lock_fd = -1;
}
