/* controller_files.c - writing conversations to files (/export and F2), the screen's own files, and rescuing
 * conversations whose database is gone. All files are written by the io thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/controller_int.h"
#include "src/export.h"
#include "src/paths.h"

enum { PATH = 4096 };

/* --- export ------------------------------------------------------------------------------------------------- */

/* Makes a name that no file has yet from the title, in a folder ("": the current one): NAME.md, NAME-2.md, ... False
 * if it would be too long. */
static bool own_name(const char *folder, const char *title, char out[PATH])
{
    char name[512];
    const size_t n = strlen(folder);
    const char *slash = n && folder[n - 1] != '/' ? "/" : "";
    pp_export_name(title, name, sizeof name);
    if (n + sizeof name + 16 > PATH)
        return false;
    snprintf(out, PATH, "%s%s%s", folder, slash, name);
    const int base = (int)(strrchr(name, '.') - name);
    for (int i = 2; i < 1000 && access(out, F_OK) == 0; i++)
        snprintf(out, PATH, "%s%s%.*s-%d%s", folder, slash, base, name, i, name + base);
    return true;
}

/* Whether nothing was typed, or only a pair of quotes. */
static bool is_empty(const char *typed)
{
    return !*typed || strcmp(typed, "\"\"") == 0 || strcmp(typed, "''") == 0;
}

/* The file to write. If nothing or a folder was typed, a name is made from the title. */
static enum pp_code target(const char *typed, const char *title, char out[PATH], struct pp_error *err)
{
    char path[PATH] = "";
    bool fits = is_empty(typed) || pp_expand_home(typed, path, sizeof path);
    if (fits && *path && !pp_is_folder(path)) {
        snprintf(out, PATH, "%s", path);
        return pp_export_check_name(out, err);
    }
    fits = fits && own_name(path, title, out);
    return fits ? PP_OK : pp_fail(err, PP_ERR_IO, "the path is too long");
}

/* In: id, key (the path as typed; if it is "" or a folder, a name is made from the title). Out: text, the path; n,
 * the number of messages that could not be read. */
static void run_export(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    struct pp_conversation c;
    struct pp_lost lost;
    char path[PATH], *real;
    job->code = pp_conversation_salvage(st, j->id, &c, &lost, &job->err);
    if (job->code)
        return;
    pp_io_complete(j->io, st, c.messages, c.n); /* on a full disk, too: the file may lie on another one */
    j->n = lost.messages;
    job->code = target(j->key, c.session.title, path, &job->err);
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
    else if (j->n)
        ctl_notice(controller, true,
                   "the database is damaged: %zu message%s of the conversation could not be read; all others were "
                   "written to %s", j->n, j->n == 1 ? "" : "s", j->text ? j->text : "the file");
    else
        ctl_notice(controller, false, "conversation written to %s", j->text ? j->text : "the file");
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

/* --- files of the screen ---------------------------------------------------------------------------------- */

/* In: key (the path), text (the line to append). */
static void run_save_setting(struct pp_job *job, struct pp_store *st)
{
    const struct ctl_job *j = (const struct ctl_job *)job;
    (void)st;
    job->code = pp_save_setting_line(j->key, j->text, &job->err);
}

static void on_setting_saved(struct pp_job *job, void *controller)
{
    if (job->code)
        ctl_notice(controller, true, "%s", job->err.text);
    ctl_job_free(job);
}

void pp_controller_save_setting(struct pp_controller *c, const char *path, const char *line)
{
    struct ctl_job *j = ctl_job_new(c, run_save_setting, on_setting_saved);
    if (!j)
        return;
    j->key = pp_strdup(path);
    j->text = pp_strdup(line);
    if (j->key && j->text) {
        ctl_job_post(c, j);
    } else {
        ctl_notice(c, true, "out of memory");
        ctl_job_free(&j->job);
    }
}

/* --- rescue from a deleted database ----------------------------------------------------------------------- */

void ctl_rescue_list(const struct pp_controller *c, struct ctl_rescue *r)
{
    enum { LIMIT = sizeof r->sessions / sizeof *r->sessions };
    r->n = 0;
    if (c->session.id) {
        r->sessions[r->n++] = c->session.id;
        snprintf(r->key, sizeof r->key, "%s", c->session.key);
    }
    for (const struct ctl_background *a = c->background; a && r->n < LIMIT; a = a->next) {
        if (!r->n)
            snprintf(r->key, sizeof r->key, "%.16s", a->key);
        r->sessions[r->n++] = a->session;
    }
}

/* Writes to the folder of the database or, if that fails, to the current one. out: the path. */
static enum pp_code write_rescued(const struct ctl_rescue *r, const struct pp_buf *text, char out[PATH],
                                  struct pp_error *err)
{
    const char *const folders[] = {r->paths->data, "."};
    enum pp_code code = PP_ERR_IO;
    for (int i = 0; i < 2 && code; i++) {
        snprintf(out, PATH, "%s/rescued-%s.json", folders[i], r->key);
        for (int k = 2; k < 1000 && access(out, F_OK) == 0; k++)
            snprintf(out, PATH, "%s/rescued-%s-%d.json", folders[i], r->key, k);
        code = pp_make_dirs(folders[i], err);
        if (!code)
            code = pp_export_write(out, text, err);
    }
    return code;
}

/* The database was deleted, moved or replaced while pippin ran. Whoever did that may not have meant the
 * conversations on the screen, so they are written to a file. */
void ctl_rescue(void *rescue, struct pp_store *st)
{
    struct ctl_rescue *r = rescue;
    struct pp_error err;
    char path[PATH];
    enum pp_code code = PP_OK;
    struct pp_export x = {.form = PP_EXPORT_JSON, .several = r->n > 1};
    r->gone = true;
    for (size_t i = 0; i < r->n; i++) {
        struct pp_conversation c;
        if ((code = pp_conversation_read(st, r->sessions[i], &c, &err)))
            break;
        pp_export_add(&x, &c);
        pp_conversation_clear(&c);
    }
    if (r->n && !code && !(code = pp_export_end(&x, &err)))
        code = write_rescued(r, &x.out, path, &err);
    pp_buf_free(&x.out);
    if (!r->n)
        return;
    const size_t n = pp_utf8_print(r->text, sizeof r->text,
                                   "Not saved: %.300s was deleted, moved or replaced while pippin was running.\n",
                                   r->paths->db);
    if (code)
        pp_utf8_print(r->text + n, sizeof r->text - n, "The conversation could not be saved elsewhere either: %s",
                      err.text);
    else
        pp_utf8_print(r->text + n, sizeof r->text - n,
                      "The conversation was written to %.300s; to restore it: pippin sessions import %.300s", path,
                      path);
}
