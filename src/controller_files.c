/* controller_files.c - conversations to files: /export and F2. The io thread writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "src/controller_int.h"
#include "src/export.h"

enum { PATH = 4096 };

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
    j->job.what = "an export";
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
