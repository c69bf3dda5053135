/* controller.c - the controller: creating and closing it, its states, and the handling of events. */
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/controller_int.h"
#include "src/worker.h"

enum {
    EVENT_CAPACITY = 1024,
    PATIENCE_MS = 400, /* leaving that takes longer says what it waits for */
    CLOSE_SECONDS = 20, /* a disk that hangs cannot be interrupted: after this time the program ends without its
                         * worker */
};

/* --- helpers ---------------------------------------------------------------------------------------------- */

/* `lines`: the text may have several lines; otherwise it is made a single one. */
static void notice(struct pp_controller *c, bool is_error, bool lines, const char *fmt, va_list ap)
{
    /* before the start has finished nobody can read notices, so they are appended to each other */
    const size_t len = c->started ? 0 : strlen(c->notice);
    const size_t at = len && len < sizeof c->notice / 2 ? len + 1 : 0;
    if (at)
        c->notice[len] = '\n';
    pp_utf8_vprint(c->notice + at, sizeof c->notice - at, fmt, ap);
    if (!lines)
        pp_utf8_line(c->notice + at, sizeof c->notice - at);
    c->status.notice = c->notice;
    c->status.notice_is_error = is_error || (at && c->status.notice_is_error);
    c->status.notice_serial++;
    ctl_dirty(c, PP_DIRTY_STATUS);
}

void ctl_notice(struct pp_controller *c, bool is_error, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    notice(c, is_error, false, fmt, ap);
    va_end(ap);
}

void ctl_show_text(struct pp_controller *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    notice(c, false, true, fmt, ap);
    va_end(ap);
}

void ctl_dirty(struct pp_controller *c, unsigned bits)
{
    c->dirty |= bits;
}

void ctl_set_state(struct pp_controller *c, enum pp_state s)
{
    if (c->state == PP_STATE_CLOSED || (c->state == PP_STATE_CLOSING && s != PP_STATE_CLOSED))
        return; /* CLOSING leads to CLOSED only */
    c->state = c->status.state = s;
    if (s == PP_STATE_IDLE)
        c->status.progress_done = c->status.progress_total = 0;
    ctl_dirty(c, PP_DIRTY_STATUS);
}

bool ctl_set_string(struct pp_controller *c, char **slot, const char *value)
{
    char *copy = pp_strdup(value ? value : "");
    if (!copy) {
        ctl_notice(c, true, "out of memory");
        return false;
    }
    pp_free(*slot);
    *slot = copy;
    return true;
}

bool ctl_set_model(struct pp_controller *c, char **slot, const char *name)
{
    char path[PATH_MAX];
    pp_model_reference(name, path);
    return ctl_set_string(c, slot, path);
}

/* --- loading ---------------------------------------------------------------------------------------------- */

static void start_load(struct pp_controller *c, const char *model, const char *draft)
{
    char bundled[600];
    if (!draft && pp_bundled_draft(c->paths, model, bundled, sizeof bundled))
        draft = bundled;
    struct pp_adapter_choice adapters[PP_MAX_LORA_OPTIONS];
    const bool first = !c->wanted_model; /* --draft-lora and --quant belong to the first model only */
    /* GGUF files are used as they are: a type or an importance matrix applies to a folder. For the model of the
     * command line they are passed on nevertheless, so that the engine refuses them with a reason. */
    const bool quantised = pp_is_folder(model) || (first && pp_options_given(c->o, "quant"));
    for (int i = 0; i < c->o->n_draft_lora; i++)
        adapters[i] = (struct pp_adapter_choice){c->o->draft_lora[i].path, c->o->draft_lora[i].scale};
    struct pp_load_request r = {
        .model = model,
        .draft = draft,
        .draft_adapters = adapters,
        .n_draft_adapters = first ? c->o->n_draft_lora : 0,
        .quant = quantised ? c->o->quant : NULL,
        .imatrix = quantised || first ? c->o->imatrix.file : NULL,
        .engine = {.n_threads = c->o->threads,
                   .kv_type = c->o->kv_type,
                   .n_ctx = c->o->ctx_size,
                   .kv_memory = c->o->kv_memory,
                   .kernels = c->o->kernels,
                   .layout_quota = c->o->layout_cache,
                   .activations = pp_options_activations(c->o)},
        .snapshot_quota = c->o->snapshot_quota,
    };
    memset(&c->status.model, 0, sizeof c->status.model);
    c->status.not_loaded = false;
    c->status.ctx_inexact = c->status.ctx_total = 0;
    c->status.progress_done = c->status.progress_total = 0;
    ctl_set_state(c, PP_STATE_LOADING);
    c->backend->ops->load(c->backend, &r);
}

static void load_failed(struct pp_controller *c, const struct pp_event *e)
{
    pp_free(c->wanted_model);
    c->wanted_model = NULL;
    c->status.model = e->info ? *e->info : (struct pp_loaded){0}; /* or there is none */
    c->status.ctx_total = c->status.model.n_ctx;
    c->status.not_loaded = true;
    ctl_mark_model(c);
    ctl_set_state(c, e->info ? PP_STATE_IDLE : PP_STATE_FAILED);
    ctl_notice(c, true, "%s", e->err.text);
    ctl_mark_current(c);
}

bool pp_controller_load(struct pp_controller *c, const char *typed)
{
    char path[512], model[512];
    struct pp_error err;
    if (c->state != PP_STATE_IDLE && c->state != PP_STATE_FAILED)
        ctl_notice(c, true, "another model can be loaded when %s",
                   c->state == PP_STATE_LOADING ? "this one has loaded" : "the answer has ended");
    else if (c->background)
        ctl_notice(c, true, "another model can be loaded when the answer in \"%.100s\" has ended",
                   c->background->title);
    else if (!pp_expand_home(typed, model, sizeof model))
        ctl_notice(c, true, "the path of the model is too long");
    else if (pp_resolve_model(c->paths, model, path, sizeof path, &err) != PP_OK)
        ctl_notice(c, true, "%s", err.text); /* the loaded model stays */
    else if (ctl_set_model(c, &c->wanted_model, model)) {
        c->wanted_in = c->session.id;
        start_load(c, path, NULL);
        return true;
    }
    return false;
}

/* Stores the model with the conversation in which the user chose it, even if that one has been left meanwhile. A
 * conversation that is not stored yet takes the loaded model when it is. */
static void remember_loaded(struct pp_controller *c)
{
    const int64_t here = c->session.id, there = c->wanted_in;
    if (!c->wanted_model || !ctl_set_string(c, &c->model, c->wanted_model))
        return;
    if ((!here || here == there) && ctl_set_string(c, &c->session.model, c->model))
        ctl_update_session(c, UPDATE_CHOICES);
    if (there && there != here)
        ctl_remember_model(c, there, c->model);
    if (here && here != there)
        ctl_notify_other_model(c);
}

static void on_loaded(struct pp_controller *c, const struct pp_event *e)
{
    struct pp_error err;
    c->status.model = *e->info;
    c->status.ctx_total = e->info->n_ctx;
    ctl_name_own_template(c, e->info);
    ctl_set_state(c, PP_STATE_IDLE);
    remember_loaded(c);
    ctl_forget_fits(c);
    ctl_forget_drafters(c);
    ctl_mark_model(c);
    ctl_scan(c, false);
    if (e->info->draft_reason[0])
        ctl_notice(c, true, "no draft: %s", e->info->draft_reason);
    if (pp_sampling_check(&c->sampling, e->info->n_vocab, &err) != PP_OK)
        ctl_notice(c, true, "%s", err.text);
    ctl_mark_current(c);
    ctl_prepare(c);
}

/* --- events ----------------------------------------------------------------------------------------------- */

static void run_done(struct pp_controller *c, struct pp_event *e)
{
    struct pp_job *job = e->job;
    e->job = NULL;
    if (!job)
        return;
    c->n_awaited -= job->awaited;
    if (job->done)
        job->done(job, c);
    else if (job->release)
        job->release(job);
}

static void notify_unsaved(struct pp_controller *c, const struct pp_error *why)
{
    c->unsaved[0] = '\0';
    c->unsaved_why = 0;
    if (why->code) {
        snprintf(c->unsaved, sizeof c->unsaved, "%s (retrying every second)", why->text);
        c->unsaved_why = strlen(why->text);
        ctl_notice(c, true, "%s", c->unsaved);
    } else {
        ctl_notice(c, false, "saving works again");
    }
}

static void on_load_progress(struct pp_controller *c, const struct pp_event *e)
{
    if (c->state != PP_STATE_LOADING)
        return;
    c->status.progress_done = e->done;
    c->status.progress_total = e->total;
    ctl_dirty(c, PP_DIRTY_STATUS);
}

static void on_context(struct pp_controller *c, const struct pp_event *e)
{
    if (!ctl_in_front(c, e->request))
        return;
    c->status.ctx_used = (int64_t)e->done;
    c->status.ctx_inexact = e->n;
    c->status.ctx_total = (int64_t)e->total;
    ctl_dirty(c, PP_DIRTY_STATUS);
}

static void take_event(struct pp_controller *c, struct pp_event *e)
{
    if (ctl_title_event(c, e))
        return;
    switch (e->type) {
    case PP_EVENT_LOAD_PROGRESS:
        on_load_progress(c, e);
        break;
    case PP_EVENT_LOADED:
        if (e->info)
            on_loaded(c, e);
        break;
    case PP_EVENT_LOAD_FAILED:
        load_failed(c, e);
        break;
    case PP_EVENT_PROMPT_PROGRESS:
        ctl_on_prompt_progress(c, e);
        break;
    case PP_EVENT_TEXT:
        ctl_on_text(c, e);
        break;
    case PP_EVENT_DONE:
        ctl_on_done(c, e);
        break;
    case PP_EVENT_CONTEXT:
        on_context(c, e);
        break;
    case PP_EVENT_OVERFLOW:
        ctl_on_overflow(c, e);
        break;
    case PP_EVENT_ADAPTER:
        ctl_on_adapter(c, e);
        break;
    case PP_EVENT_ADAPTER_SKIPPED:
        ctl_on_adapter_skipped(c, e);
        break;
    case PP_EVENT_DRAFTER:
        ctl_on_drafter(c, e);
        break;
    case PP_EVENT_DRAFT:
        ctl_on_draft(c, e);
        break;
    case PP_EVENT_COST:
        ctl_on_cost(c, e);
        break;
    case PP_EVENT_NOTICE:
        if (e->text)
            ctl_notice(c, false, "%s", e->text);
        break;
    case PP_EVENT_CLOSED:
        ctl_set_state(c, PP_STATE_CLOSED);
        break;
    case PP_EVENT_JOB:
        run_done(c, e);
        break;
    case PP_EVENT_IO_ERROR:
        ctl_notice(c, true, "%s", e->err.text);
        break;
    case PP_EVENT_UNSAVED:
        notify_unsaved(c, &e->err);
        break;
    }
}

bool pp_controller_settled(const struct pp_controller *c)
{
    return c->n_awaited == 0 && !c->to_compare;
}

unsigned pp_controller_pump(struct pp_controller *c)
{
    struct pp_event *e;
    pp_queue_clear_fd(c->events);
    while ((e = pp_queue_try_pop(c->events))) {
        take_event(c, e);
        pp_event_free(e);
    }
    if (c->state == PP_STATE_CLOSING && pp_now_ns() > c->close_deadline_ns) {
        c->abandoned = true;
        ctl_set_state(c, PP_STATE_CLOSED);
    }
    unsigned dirty = c->dirty;
    c->dirty = 0;
    return dirty;
}

int pp_controller_fd(const struct pp_controller *c)
{
    return pp_queue_fd(c->events);
}

/* --- status ----------------------------------------------------------------------------------------------- */

size_t pp_controller_n_messages(const struct pp_controller *c)
{
    return c->branch.n;
}

const struct pp_chat_message *pp_controller_message(const struct pp_controller *c, size_t i)
{
    return i < c->branch.n ? &c->branch.items[i].msg : NULL;
}

const struct pp_status *pp_controller_status(const struct pp_controller *c)
{
    return &c->status;
}

/* --- starting and closing --------------------------------------------------------------------------------- */

/* Loads the model of the first conversation (see ctl_apply_options) or, if there is none, of the command line. A
 * draft given by pippin.conf belongs to the model of pippin.conf, so it is not used with another one. */
static enum pp_code load_first(struct pp_controller *c, struct pp_error *err)
{
    const char *model = c->session.model, *wanted = c->o->draft;
    char path[512], draft[512], own[PATH_MAX];
    pp_model_reference(c->o->model, own);
    if (strcmp(model, own) != 0 && pp_resolve_model(c->paths, model, path, sizeof path, NULL) != PP_OK) {
        ctl_notice(c, true, "%s, the model of this conversation, is missing; using %s instead", model,
                   *own ? own : "the starter");
        model = own;
    }
    if (strcmp(model, own) != 0 && !pp_options_given(c->o, "model-draft"))
        wanted = NULL;
    enum pp_code code = pp_resolve_model(c->paths, model, path, sizeof path, err);
    if (code && strcmp(model, own) == 0 && pp_options_model_elsewhere(c->o))
        pp_fail_prefix(err, PP_MODEL_ELSEWHERE);
    if (code == PP_OK && wanted && (code = pp_resolve_model(c->paths, wanted, draft, sizeof draft, err)) != PP_OK)
        pp_fail_prefix(err, "draft model");
    if (code == PP_OK && !ctl_set_string(c, &c->model, model))
        code = pp_fail_nomem(err, "the name of the model");
    if (code == PP_OK)
        start_load(c, path, wanted ? draft : NULL);
    return code;
}

bool ctl_make_disk(struct pp_controller *c)
{
    struct pp_error err;
    if (!c->unmade)
        return true;
    enum pp_code code = pp_make_dirs(c->paths->data, &err);
    if (!code)
        code = pp_io_make_disk(c->io, c->paths->db, &err);
    c->unmade = code != PP_OK;
    if (code)
        ctl_notice(c, true, "nothing can be saved: %s", err.text);
    return !code;
}

/* Starts the io thread on the database. If that cannot be used (a read-only disk, a damaged database) and no saved
 * conversation was asked for, the chat goes on in memory; so does a temporary chat. */
static enum pp_code start_io(struct pp_controller *c, struct pp_error *err)
{
    c->temporary = c->o->temporary;
    c->unmade = c->temporary && access(c->paths->db, F_OK) != 0; /* a temporary chat creates no files */
    enum pp_code code = c->unmade ? PP_OK : pp_make_dirs(c->paths->data, err);
    if (!code)
        code = pp_io_start(c->unmade ? ":memory:" : c->paths->db, c->events, &c->io, err);
    if (c->temporary) /* a notice, as not every interface has a status line */
        ctl_notice(c, false, "temporary chat: nothing is saved to disk");
    if (!code)
        return c->temporary ? pp_io_temporary(c->io, true, err) : PP_OK;
    const bool asked_for = c->o->resume || c->o->resume_latest, unusable = code != PP_ERR_IO; /* newer or damaged */
    if (unusable && !asked_for && code != PP_ERR_NOMEM && !c->temporary)
        return pp_fail_advice(err, "`pippin --temporary` chats without saving");
    if (asked_for || code == PP_ERR_NOMEM)
        return code;
    if (!c->temporary)
        ctl_notice(c, true, "this chat is not saved: %s", err->text);
    else if (unusable)
        ctl_notice(c, true, "presets and notes are not saved either: %s", err->text);
    c->unusable = unusable;
    c->temporary = c->no_disk = true;
    return pp_io_start(":memory:", c->events, &c->io, err);
}

static enum pp_code start(struct pp_controller *c, pp_backend_factory *factory, struct pp_error *err)
{
    static const struct pp_session empty;
    enum pp_code code;
    c->lock_fd = -1;
    c->status.acceptance = c->status.eta_s = -1;
    c->status.unsaved = c->unsaved;
    c->status.notice = c->status.adapters = c->status.persona = c->status.template_name = "";
    if (!ctl_copy_session(&c->session, &empty) || !ctl_set_model(c, &c->session.model, c->o->model))
        return pp_fail_nomem(err, "the conversation");
    if ((code = pp_queue_new(EVENT_CAPACITY, &c->events, err)) || (code = ctl_choices_init(c, err)) ||
        (code = start_io(c, err)) ||
        (code = factory(c->events, c->io, c->paths->cache, &c->backend, err)) || (code = ctl_open_first(c, err)) ||
        (code = ctl_apply_options(c, err)) || (code = load_first(c, err)))
        return code;
    ctl_scan(c, false);
    ctl_index_start(c);
    if (c->session.id)
        ctl_update_session(c, UPDATE_CHOICES); /* keeps the choices that this command line has made */
    ctl_mark_current(c);
    return PP_OK;
}

enum pp_code pp_controller_new_with(const struct pp_options *o, const struct pp_paths *paths,
                                    pp_backend_factory *factory, struct pp_controller **out, struct pp_error *err)
{
    *out = NULL;
    struct pp_controller *c = pp_calloc(1, sizeof *c);
    if (!c)
        return pp_fail_nomem(err, "the program's state");
    c->o = o;
    c->paths = paths;
    enum pp_code code = start(c, factory, err);
    if (code != PP_OK) {
        pp_controller_free(c);
        return code;
    }
    c->started = true;
    c->dirty = PP_DIRTY_ALL;
    *out = c;
    return PP_OK;
}

enum pp_code pp_controller_new(const struct pp_options *o, const struct pp_paths *paths, struct pp_controller **out,
                               struct pp_error *err)
{
    return pp_controller_new_with(o, paths, pp_worker_start, out, err);
}

void pp_controller_quit(struct pp_controller *c)
{
    if (c->state == PP_STATE_CLOSING || c->state == PP_STATE_CLOSED)
        return;
    ctl_import_stop(c);
    ctl_update_unsaved(c);
    c->close_deadline_ns = pp_now_ns() + CLOSE_SECONDS * UINT64_C(1000000000);
    ctl_set_state(c, PP_STATE_CLOSING);
    c->backend->ops->close(c->backend);
}

static void notify_waiting(const struct pp_close_report *w, const char *what)
{
    if (w && w->waiting)
        w->waiting(what);
}

/* Waits until the worker and an import have ended; the import ends after its current slice and reports how far it
 * came. */
static void wait_closed(struct pp_controller *c, const struct pp_close_report *w)
{
    const uint64_t patience = pp_now_ns() + (uint64_t)PATIENCE_MS * 1000000;
    bool notified = false;
    pp_controller_quit(c);
    while (c->state != PP_STATE_CLOSED || c->import) {
        struct pollfd p = {.fd = pp_queue_fd(c->events), .events = POLLIN};
        (void)poll(&p, 1, PP_CLOSING_MS);
        pp_controller_pump(c);
        if (!notified && c->import && pp_now_ns() > patience) {
            notify_waiting(w, "an import");
            notified = true;
        }
    }
}

static void drain(struct pp_queue *events)
{
    for (struct pp_event *e; (e = pp_queue_try_pop(events));)
        pp_event_free(e);
}

bool pp_controller_free(struct pp_controller *c)
{
    struct pp_close_report w = {0};
    pp_controller_close(c, &w);
    return w.saved;
}

static void stop_io(struct pp_controller *c, struct pp_close_report *w)
{
    struct ctl_rescue r = {.paths = c->paths};
    const struct pp_io_ending ending = {
        .ms = PATIENCE_MS, .waiting = w->waiting, .gone = c->temporary ? NULL : ctl_rescue, .user = &r};
    ctl_rescue_list(c, &r);
    const bool saved = pp_io_stop(c->io, &ending);
    w->gone = r.text[0] != '\0';
    w->saved = saved || c->temporary || (r.gone && !r.n); /* the file is gone, but nothing was written in this run */
    if (w->gone)
        snprintf(w->text, sizeof w->text, "%s", r.text);
}

void pp_controller_close(struct pp_controller *c, struct pp_close_report *w)
{
    w->saved = true;
    w->gone = false;
    w->text[0] = w->why[0] = '\0';
    if (!c)
        return;
    if (c->backend)
        wait_closed(c, w);
    snprintf(w->why, sizeof w->why, "%.*s", (int)c->unsaved_why, c->unsaved);
    if (c->import_stopped)
        snprintf(w->text, sizeof w->text, "%s", c->import_stopped);
    /* A worker that did not end still uses the queue and the io thread, so they are left to the end of the process.
     * Its answers are in the database all the same; only the KV snapshot is not saved. */
    if (!c->abandoned) {
        if (c->backend)
            c->backend->ops->free(c->backend);
        if (c->events)
            pp_queue_close(c->events); /* from here on, finished jobs are released on the io thread */
        if (c->io)
            stop_io(c, w);
        if (c->events)
            drain(c->events);
        pp_queue_free(c->events);
    }
    if (c->lock_fd >= 0)
        close(c->lock_fd);
    ctl_choices_free(c);
    ctl_free_running(c);
    pp_branch_free(&c->branch);
    pp_branch_free(&c->saved_tail);
    pp_session_clear(&c->session);
    ctl_list_free(&c->list);
    pp_buf_free(&c->title_text);
    pp_free(c->template_source);
    pp_free(c->unsent);
    pp_free(c->refused);
    pp_free(c->to_compare);
    pp_free(c->model);
    pp_free(c->wanted_model);
    pp_free(c->system_before);
    pp_free(c->import_stopped);
    pp_free(c);
}
