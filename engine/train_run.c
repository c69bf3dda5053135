/* train_run.c - a whole training run: steps, validation, checkpoints, and the adapter at the end. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/hf.h"
#include "engine/hparams.h"
#include "engine/train_int.h"

enum { EVALS = 10 };

const char pp_train_checkpoint[] = "checkpoint.gguf";

struct running {
    struct pp_trainer *t;
    const struct pp_train_run *run;
    struct pp_train_result *result;
    struct pp_train_progress progress;
    char *checkpoint;           /* path of the checkpoint */
    bool saved;                 /* a checkpoint exists */
    bool made;                  /* we created the folder */
    int lock;                   /* locked descriptor of the folder; -1 */
    int room;                   /* of an unnamed file that reserves disk space for a last checkpoint; -1 */
    uint64_t began_ns;
};

static double seconds_since(uint64_t ns)
{
    return (double)(pp_now_ns() - ns) / 1e9;
}

static void report(struct running *r, bool validated)
{
    r->progress.step = r->t->step;
    r->progress.n_steps = r->t->info.n_steps;
    r->progress.validated = validated;
    r->progress.seconds = seconds_since(r->began_ns);
    if (r->run->report)
        r->run->report(r->run->user, &r->progress);
}

static enum pp_code validate(struct running *r, struct pp_error *err)
{
    double loss;
    if (!r->t->validation)
        return PP_OK;
    enum pp_code code = pp_trainer_validate(r->t, r->t->validation, r->run->cancel, &loss, err);
    if (code)
        return code;
    r->progress.validation = r->result->validation = loss;
    if (r->t->step == 0)
        r->t->first_validation = loss;
    report(r, true);
    return PP_OK;
}

static enum pp_code save(struct running *r, struct pp_error *err)
{
    enum pp_code code = pp_trainer_save(r->t, r->checkpoint, err);
    r->saved = r->saved || !code;
    return code;
}

/* A full disk does not end the run, as it may have space again before the end. */
static enum pp_code save_midway(struct running *r, struct pp_error *err)
{
    const enum pp_code code = save(r, err);
    if (code != PP_ERR_IO)
        return code;
    r->progress.unsaved = err->text;
    report(r, false);
    r->progress.unsaved = NULL;
    return PP_OK;
}

static enum pp_code steps(struct running *r, struct pp_error *err)
{
    struct pp_trainer *t = r->t;
    const int64_t often = r->run->eval_every > 0 ? r->run->eval_every : (t->info.n_steps + EVALS - 1) / EVALS;
    enum pp_code code = t->step == 0 || t->step == t->info.n_steps ? validate(r, err) : PP_OK;
    while (t->step < t->info.n_steps && !code) {
        code = pp_trainer_step(t, r->run->cancel, &r->progress.last, err);
        if (code)
            break;
        r->progress.n_tokens += r->progress.last.n_tokens;
        r->result->last_loss = r->progress.last.loss;
        report(r, false);
        if (t->step % often && t->step < t->info.n_steps)
            continue;
        if (t->step < t->info.n_steps)
            code = save_midway(r, err);
        if (!code)
            code = validate(r, err);
    }
    return code;
}

/* --- space for the last checkpoint ---------------------------------------------------------------------------- */

/* Reserves space, since others may fill the disk in the hours of a run. If the file system cannot, the run goes on
 * without. */
static enum pp_code keep_room(struct running *r, struct pp_error *err)
{
    const uint64_t head = 1 << 16, bytes = 3 * r->t->n_params * sizeof(float) + head;
    char *name = pp_temporary_name(r->checkpoint);
    if (!name)
        return pp_fail_nomem(err, "a file name");
    r->room = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int why = r->room < 0 ? errno : 0;
    if (!why) {
        unlink(name);
        why = fallocate(r->room, 0, 0, (off_t)bytes) != 0 ? errno : 0;
    }
    pp_free(name);
    return why == ENOSPC || why == EDQUOT || why == EFBIG
               ? pp_fail(err, PP_ERR_IO, "cannot reserve %.1f MB in %s for the adapter: %s; free some space, or give "
                                         "another folder", (double)bytes / 1e6, r->run->folder, strerror(why))
               : PP_OK;
}

static void give_room(struct running *r)
{
    if (r->room >= 0)
        close(r->room);
    r->room = -1;
}

static enum pp_code save_last(struct running *r, struct pp_error *err)
{
    give_room(r);
    return save(r, err);
}

/* Adds to the error of an unfinished run what else the user should know. */
static enum pp_code stopped(struct running *r, enum pp_code code, struct pp_error *err)
{
    struct pp_error why = *err, saving;
    if (code == PP_ERR_CANCELLED) {
        code = save_last(r, &saving);
        if (code) {
            *err = saving;
            return pp_fail_prefix(err, "stopped after step %lld, and no checkpoint was written",
                                  (long long)r->t->step);
        }
        return pp_fail(err, PP_ERR_CANCELLED,
                       "stopped after step %lld of %lld; run the same command with --continue to resume from %s",
                       (long long)r->t->step, (long long)r->t->info.n_steps, r->checkpoint);
    }
    if (r->saved)
        return pp_fail(err, code, "%s (the last checkpoint remains: %s)", why.text, r->checkpoint);
    return code;
}

/* --- the folder ----------------------------------------------------------------------------------------------- */

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* FOLDER/NAME.gguf, where NAME is the folder's own; pp_free. */
static char *gguf_path(const char *folder)
{
    char name[128];
    struct pp_buf path = {0};
    char *whole = realpath(folder, NULL);
    pp_name_of_path(whole ? whole : folder, name, sizeof name);
    free(whole);
    pp_buf_fmt(&path, "%s/%s.gguf", folder, name[0] ? name : "adapter");
    return pp_buf_take(&path);
}

/* Refuses to overwrite an adapter that took hours, or to write next to a model: other programs would take the adapter
 * for a part of it. */
static enum pp_code check_room(const char *folder, struct pp_error *err)
{
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    char *gguf = gguf_path(folder);
    const char *there = NULL;
    if (!gguf)
        return pp_fail_nomem(err, "a file name");
    for (size_t i = 0; i < sizeof files / sizeof *files && !there; i++)
        there = pp_file_exists(folder, files[i]) ? files[i] : NULL;
    if (!there && exists(gguf))
        there = strrchr(gguf, '/') + 1;
    if (there)
        pp_fail(err, PP_ERR_USAGE, "%s already contains %s, which the training would overwrite; give another folder, "
                                   "or move it away", folder, there);
    pp_free(gguf);
    if (!there && pp_file_exists(folder, "config.json"))
        return pp_fail(err, PP_ERR_USAGE, "%s contains a model (config.json); give another folder for the adapter",
                       folder);
    return there ? PP_ERR_USAGE : PP_OK;
}

/* Checks the parent of a folder that does not exist yet. */
static enum pp_code check_parent(const char *folder, struct pp_error *err)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    char *name = pp_strndup(folder, n), *parent = name ? pp_folder_of(name) : NULL;
    pp_free(name);
    if (!parent)
        return pp_fail_nomem(err, "a file name");
    struct stat st;
    const bool there = stat(parent, &st) == 0;
    const int why = there && !S_ISDIR(st.st_mode) ? ENOTDIR
                    : there && access(parent, W_OK | X_OK) == 0 ? 0 : errno;
    const enum pp_code code =
        why == ENOENT ? pp_fail(err, PP_ERR_IO, "cannot create the folder %s: the folder %s does not exist; create "
                                                "that first",
                                folder, parent)
        : why         ? pp_fail(err, PP_ERR_IO, "cannot create the folder %s: %s", folder, strerror(why))
                      : PP_OK;
    pp_free(parent);
    return code;
}

enum pp_code pp_train_check(const char *folder, bool resume, struct pp_error *err)
{
    struct stat st;
    if (stat(folder, &st) != 0 && (errno == ENOENT || errno == ENOTDIR) && lstat(folder, &st) != 0) {
        if (resume) /* nothing is created that was not asked for */
            return pp_fail(err, PP_ERR_USAGE, "there is no training to continue: the folder %s does not exist", folder);
        return check_parent(folder, err);
    }
    if (stat(folder, &st) == 0 && !S_ISDIR(st.st_mode))
        return pp_fail(err, PP_ERR_USAGE, "%s exists and is not a folder; give another name for the adapter's folder",
                       folder);
    if (access(folder, F_OK) != 0 && errno == ENOENT)
        return pp_fail(err, PP_ERR_USAGE, "%s is a broken symbolic link; create its target folder, or give another",
                       folder);
    if (access(folder, W_OK | X_OK) != 0)
        return pp_fail(err, PP_ERR_IO, "cannot write into %s: %s", folder, strerror(errno));
    const bool saved = pp_file_exists(folder, pp_train_checkpoint);
    if (resume && !saved)
        return pp_fail(err, PP_ERR_USAGE, "there is no training to continue: %s/%s does not exist", folder,
                       pp_train_checkpoint);
    if (saved && !resume)
        return pp_fail(err, PP_ERR_USAGE,
                       "%s contains an interrupted training; resume it with --continue, delete %s, or give another "
                       "folder",
                       folder, pp_train_checkpoint);
    return resume ? PP_OK : check_room(folder, err);
}

static enum pp_code begin(struct running *r, struct pp_error *err)
{
    const char *folder = r->run->folder;
    r->made = !r->run->resume && mkdir(folder, 0777) == 0;
    if (!r->run->resume && !r->made && errno != EEXIST)
        return pp_fail(err, PP_ERR_IO, "cannot create the folder %s: %s", folder, strerror(errno));
    /* two runs would take each other's checkpoints for their own */
    enum pp_code code = pp_lock_folder(folder, &r->lock, err);
    if (!code)
        code = pp_train_check(folder, r->run->resume, err);
    if (code)
        return code;
    if (!(r->checkpoint = pp_path_join(folder, pp_train_checkpoint)))
        return pp_fail_nomem(err, "a file name");
    r->saved = r->run->resume;
    if (r->run->resume && (code = pp_trainer_load(r->t, r->checkpoint, err)))
        return code;
    if (r->t->step < r->t->info.n_steps && (code = keep_room(r, err)))
        return code;
    if (r->run->resume)
        return PP_OK;
    /* checkpoints include it, and computing it reads the whole model: that should not happen after Ctrl-C */
    struct pp_sha256 identity;
    return pp_model_identity(r->t->model, r->t->opt.cache_dir, &identity, err);
}

static enum pp_code write_gguf(const struct running *r, struct pp_error *err)
{
    char *path = gguf_path(r->run->folder);
    enum pp_code code = path ? pp_trainer_write_gguf(r->t, path, err) : pp_fail_nomem(err, "a file name");
    pp_free(path);
    return code;
}

static enum pp_code write_result(const struct running *r, struct pp_error *err)
{
    enum pp_code code = pp_trainer_write_peft(r->t, r->run->folder, err);
    return code ? code : write_gguf(r, err);
}

/* The error when all steps are done but the adapter could not be written; nor the checkpoint, if `saving` says why. */
static enum pp_code unwritten(const struct running *r, enum pp_code code, const struct pp_error *saving,
                              struct pp_error *err)
{
    struct pp_error why = *err;
    if (!saving)
        return pp_fail(err, code, "%s; the trained adapter is kept in %s: free some space, then run the same command "
                                  "with --continue to write it", why.text, r->checkpoint);
    if (r->saved)
        return pp_fail(err, code, "%s; the last checkpoint that could be written is from an earlier step (%s): free "
                                  "some space, and resume there with --continue", why.text, r->checkpoint);
    return pp_fail(err, code, "%s; the trained adapter could not be kept either: %s", why.text, saving->text);
}

static enum pp_code finish(struct running *r, struct pp_error *err)
{
    struct pp_error saving;
    enum pp_code code = write_result(r, err), kept = PP_OK;
    if (code) { /* deleting an older checkpoint may make room for this one */
        kept = save_last(r, &saving);
        code = write_result(r, err);
    }
    while (code == PP_ERR_IO && r->run->again && r->run->again(r->run->user, err->text))
        code = write_result(r, err);
    if (code)
        return unwritten(r, code, kept ? &saving : NULL, err);
    if (r->saved && unlink(r->checkpoint) != 0)
        code = pp_fail(err, PP_ERR_IO, "cannot remove %s: %s", r->checkpoint, strerror(errno));
    return code;
}

enum pp_code pp_train(struct pp_trainer *t, const struct pp_train_run *run, struct pp_train_result *result,
                      struct pp_error *err)
{
    struct pp_error own;
    struct pp_train_result unused;
    struct running r = {.t = t, .run = run, .result = result ? result : &unused, .began_ns = pp_now_ns(),
                        .lock = -1, .room = -1,
                        .progress = {.validation = (double)NAN}};
    err = err ? err : &own;
    *r.result = (struct pp_train_result){.last_loss = (double)NAN, .validation = (double)NAN};
    enum pp_code code = begin(&r, err);
    r.progress.first_step = t->step;
    if (!code) {
        code = steps(&r, err);
        code = code ? stopped(&r, code, err) : finish(&r, err);
    }
    r.result->steps = t->step;
    r.result->first_loss = t->first_loss;
    r.result->first_validation = t->first_validation;
    r.result->n_tokens = r.progress.n_tokens;
    r.result->seconds = seconds_since(r.began_ns);
    pp_free(r.checkpoint);
    give_room(&r);
    if (code && r.made)
        rmdir(run->folder); /* fails if there is something in it */
    if (r.lock >= 0)
        close(r.lock);
    return code;
}
