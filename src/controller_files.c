/* controller_files.c - conversations to files and back: /export, /import and F2. The io thread reads and writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/controller_int.h"
#include "src/export.h"
#include "src/import.h"
#include "src/import_store.h"

enum { PATH = 4096, MOST_IMPORTED = 1 << 28 };

/* --- export ------------------------------------------------------------------------------------------------- */

/* A name of its own in the current folder: NAME.md, NAME-2.md, ... */
static void own_name(const char *title, char out[PATH])
{
    char name[PATH / 2];
    pp_export_name(title, name, sizeof name);
    snprintf(out, PATH, "%s", name);
    const int base = (int)(strrchr(name, '.') - name);
    for (int i = 2; i < 1000 && access(out, F_OK) == 0; i++)
        snprintf(out, PATH, "%.*s-%d%s", base, name, i, name + base);
}

/* In: id, key (the path as typed, "": one is made of the title). Out: text, the path. */
static void run_export(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    struct pp_conversation c;
    char path[PATH], *real;
    job->code = pp_conversation_read(st, j->id, &c, &job->err);
    if (job->code)
        return;
    if (!*j->key)
        own_name(c.session.title, path);
    else if (!pp_expand_home(j->key, path, sizeof path))
        job->code = pp_fail(&job->err, PP_ERR_IO, "so long a path is not possible");
    const int form = job->code ? -1 : pp_export_form_of(path);
    struct pp_export x = {.form = form < 0 ? PP_EXPORT_MARKDOWN : (enum pp_export_form)form};
    if (!job->code)
        pp_export_add(&x, &c);
    if (!job->code && !(job->code = pp_export_end(&x, &job->err)))
        job->code = pp_export_write(path, &x.out, &job->err);
    if (!job->code) {
        j->text = pp_strdup((real = realpath(path, NULL)) ? real : path);
        free(real);
    }
    pp_buf_free(&x.out);
    pp_conversation_clear(&c);
}

static void on_exported(struct pp_job *job, void *controller)
{
    struct ctl_job *j = (struct ctl_job *)job;
    if (job->code)
        ctl_notice(controller, true, "%s", job->err.text);
    else
        ctl_notice(controller, false, "the conversation is in %s now", j->text ? j->text : "the file");
    ctl_job_free(job);
}

static void post(struct pp_controller *c, void (*run)(struct pp_job *, struct pp_store *),
                 void (*done)(struct pp_job *, void *), int64_t id, const char *path)
{
    struct ctl_job *j = ctl_job_new(c, run, done);
    if (!j)
        return;
    j->id = id;
    if ((j->key = pp_strdup(path))) {
        ctl_job_post(c, j);
    } else {
        ctl_notice(c, true, "out of memory");
        ctl_job_free(&j->job);
    }
}

void pp_controller_export(struct pp_controller *c, int64_t session, const char *path)
{
    session = session ? session : c->session.id;
    if (session)
        post(c, run_export, on_exported, session, path);
    else
        ctl_notice(c, true, "there is nothing to export yet");
}

/* --- import ------------------------------------------------------------------------------------------------- */

struct outcome {
    size_t added, here, busy; /* conversations; here: with those that were extended */
    size_t extended_by;       /* messages that were added to those that were here */
    int64_t shown;            /* the first that was added, else the first */
    char lost[300];           /* what this machine does not have of those that were added */
};

static void tell(struct pp_job *job, const struct pp_import *im, const struct outcome *r)
{
    struct ctl_job *j = (struct ctl_job *)job;
    struct pp_buf b = {0};
    const size_t n = r->added + r->here + r->busy;
    if (n == 1)
        pp_buf_str(&b, r->added ? "the conversation was imported; this is it" : "this conversation was here already");
    else if (r->added)
        pp_buf_fmt(&b, "%zu conversations were imported, of which this is the first", r->added);
    else
        pp_buf_fmt(&b, "all %zu conversations were here already; this is the first", n);
    if (r->added && r->here)
        pp_buf_fmt(&b, "; %zu were here already", r->here);
    if (r->extended_by)
        pp_buf_fmt(&b, "; messages added to what was here: %zu", r->extended_by);
    if (r->busy)
        pp_buf_fmt(&b, "; open, and lacking messages that can be imported once they are not: %zu", r->busy);
    if (im->left_out + im->no_text)
        pp_buf_fmt(&b, "; left out: %zu messages of tools or without text, %zu pictures or files", im->left_out,
                   im->no_text);
    if (*r->lost)
        pp_buf_fmt(&b, "; this machine has no %s", r->lost);
    j->text = b.bad ? NULL : pp_strdup(pp_buf_cstr(&b));
    pp_buf_free(&b);
}

struct importing {
    const struct pp_paths *paths;
    struct pp_importer *store;
    struct outcome r;
};

static enum pp_code put(void *importing, struct pp_conversation *c, size_t i, size_t n, struct pp_error *err)
{
    struct importing *k = importing;
    struct outcome *r = &k->r;
    struct pp_import_result result;
    char lost[sizeof r->lost];
    const bool settled = pp_conversation_settle(c, k->paths, lost, sizeof lost);
    const enum pp_code code = pp_importer_put(k->store, c, &result, err);
    (void)i, (void)n;
    if (code)
        return code;
    const bool added = result.outcome == PP_IMPORT_ADDED;
    if (!r->shown || (added && !r->added))
        r->shown = c->session.id;
    if (added && settled && !*r->lost)
        memcpy(r->lost, lost, sizeof lost);
    r->added += added;
    r->busy += result.outcome == PP_IMPORT_BUSY;
    r->here += result.outcome == PP_IMPORT_HERE || result.outcome == PP_IMPORT_EXTENDED;
    r->extended_by += result.outcome == PP_IMPORT_EXTENDED ? result.n_messages : 0;
    return PP_OK;
}

static enum pp_code put_database(struct importing *k, const char *path, struct pp_error *err)
{
    struct pp_store *st;
    enum pp_code code = pp_store_open_copy(path, NULL, &st, err);
    if (code)
        return code;
    code = pp_conversation_each(st, put, k, err);
    pp_store_close(st);
    return code ? code : k->r.shown ? PP_OK : pp_fail(err, PP_ERR_FORMAT, "%s: there is no conversation in it", path);
}

static enum pp_code put_text(struct importing *k, const char *path, struct pp_import *im, struct pp_error *err)
{
    char *text;
    size_t n;
    enum pp_code code = pp_read_file(path, MOST_IMPORTED, &text, &n, err);
    if (code)
        return code;
    if ((code = pp_import_read(text, n, im, err)))
        pp_fail_prefix(err, "%s", path);
    pp_free(text);
    for (size_t i = 0; !code && i < im->n; i++)
        code = put(k, &im->list[i], i, im->n, err);
    return code;
}

/* In: key (the path as typed). Out: id of the conversation to show, text to tell. */
static void run_import(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    struct pp_import im = {0};
    struct importing k = {.paths = j->paths};
    char path[PATH];
    job->code = pp_expand_home(j->key, path, sizeof path) ? PP_OK
                : pp_fail(&job->err, PP_ERR_IO, "so long a path is not possible");
    if (!job->code)
        job->code = pp_importer_new(st, j->lock_dir, false, &k.store, &job->err);
    if (!job->code && pp_store_is_database(path))
        job->code = put_database(&k, path, &job->err);
    else if (!job->code)
        job->code = put_text(&k, path, &im, &job->err);
    if (!job->code) {
        j->id = k.r.shown;
        tell(job, &im, &k.r);
    }
    pp_importer_free(k.store);
    pp_import_free(&im);
}

static void on_imported(struct pp_job *job, void *controller)
{
    struct ctl_job *j = (struct ctl_job *)job;
    if (job->code) {
        ctl_notice(controller, true, "%s", job->err.text);
    } else {
        ctl_notice(controller, false, "%s", j->text ? j->text : "the conversation was imported");
        pp_controller_open(controller, j->id);
    }
    ctl_job_free(job);
}

void pp_controller_import(struct pp_controller *c, const char *path)
{
    post(c, run_import, on_imported, 0, path);
}
