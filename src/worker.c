/* worker.c - the thread that owns the engine: how it receives requests, is interrupted, and ends. */
#include "src/worker.h"

#include <stdarg.h>
#include <stdio.h>

#include "engine/base/mem.h"
#include "engine/base/priority.h"
#include "src/thread.h"
#include "src/worker_int.h"

enum {
    REQUEST_CAPACITY = 256,
    RETRY_SAVE_MS = 250,  /* between attempts to save while the model's identity is not known yet */
    CLOSE_WAIT_MS = 3000, /* how long to wait for it at the end */
};

int pp_worker_patience = 1;

/* --- events ----------------------------------------------------------------------------------------------- */

void worker_send(struct pp_worker *w, struct pp_event *e)
{
    if (e && !pp_queue_push(w->events, e))
        pp_event_free(e);
}

void worker_try_send(struct pp_worker *w, struct pp_event *e)
{
    if (e && !pp_queue_try_push(w->events, e))
        pp_event_free(e);
}

void worker_notice(struct pp_worker *w, const char *fmt, ...)
{
    struct pp_buf text = {0};
    va_list ap;
    va_start(ap, fmt);
    pp_buf_vfmt(&text, fmt, ap);
    va_end(ap);
    struct pp_event *e = pp_event_new(PP_EVENT_NOTICE);
    if (e) {
        e->text_len = text.len;
        e->text = pp_buf_take(&text);
    }
    pp_buf_free(&text);
    worker_try_send(w, e);
}

/* --- requests (any thread) -------------------------------------------------------------------------------- */

static void free_adapters(const struct pp_adapter_choice *list, int n)
{
    for (int i = 0; list && i < n; i++)
        pp_free((char *)list[i].path);
    pp_free((struct pp_adapter_choice *)list);
}

void request_free(struct request *r)
{
    if (!r)
        return;
    struct pp_generate_request *g = &r->generate;
    pp_free((char *)r->load.model);
    pp_free((char *)r->load.draft);
    pp_free((char *)r->load.quant);
    pp_free((char *)r->load.imatrix);
    free_adapters(r->load.draft_adapters, r->load.n_draft_adapters);
    pp_free((char *)r->load.engine.kernels);
    pp_free((char *)g->session_key);
    pp_free((char *)g->messages_json);
    pp_free((char *)g->continue_text);
    pp_draft_runs_free(&r->continue_drafted);
    pp_free((char *)g->continue_reasoning);
    pp_free((char *)g->template_source);
    free_adapters(g->adapters, g->n_adapters);
    for (int i = 0; g->stops && i < g->n_stops; i++)
        pp_free((char *)g->stops[i]);
    pp_free((const char **)g->stops);
    pp_free(r->key);
    pp_event_free(r->answer);
    pp_free(r);
}

void request_set_draft(struct request *r, char *draft)
{
    struct pp_load_request *l = &r->load;
    free_adapters(l->draft_adapters, l->n_draft_adapters);
    l->draft_adapters = NULL;
    l->n_draft_adapters = 0;
    pp_free((char *)l->draft);
    l->draft = draft;
}

/* A copy of s (NULL stays NULL). *ok becomes false if memory runs out. */
static char *copy(const char *s, bool *ok)
{
    char *c = s ? pp_strdup(s) : NULL;
    *ok = *ok && (!s || c);
    return c;
}

static struct pp_adapter_choice *copy_adapters(const struct pp_adapter_choice *from, int n, bool *ok)
{
    struct pp_adapter_choice *list = pp_calloc((size_t)n + 1, sizeof *list);
    for (int i = 0; list && i < n; i++)
        list[i] = (struct pp_adapter_choice){.path = copy(from[i].path, ok), .scale = from[i].scale};
    *ok = *ok && list;
    return list;
}

static bool copy_load(struct request *r, const struct pp_load_request *from)
{
    bool ok = true;
    r->load = *from;
    r->load.model = copy(from->model, &ok);
    r->load.draft = copy(from->draft, &ok);
    r->load.draft_adapters = copy_adapters(from->draft_adapters, from->n_draft_adapters, &ok);
    r->load.quant = copy(from->quant, &ok);
    r->load.imatrix = copy(from->imatrix, &ok);
    r->load.engine.kernels = copy(from->engine.kernels, &ok);
    r->load.engine.share_pool = NULL;
    r->load.engine.cancel = NULL; /* the worker sets its own */
    return ok;
}

static bool copy_generate(struct request *r, const struct pp_generate_request *from)
{
    bool ok = true;
    struct pp_generate_request *g = &r->generate;
    *g = *from;
    g->session_key = copy(from->session_key, &ok);
    g->messages_json = copy(from->messages_json, &ok);
    g->continue_text = copy(from->continue_text, &ok);
    if (from->continue_drafted)
        pp_draft_runs_append(&r->continue_drafted, from->continue_drafted);
    g->continue_drafted = &r->continue_drafted;
    g->continue_reasoning = copy(from->continue_reasoning, &ok);
    g->template_source = copy(from->template_source, &ok);
    g->adapters = copy_adapters(from->adapters, from->n_adapters, &ok);
    const char **stops = pp_calloc((size_t)from->n_stops + 1, sizeof *stops);
    g->stops = stops;
    for (int i = 0; stops && i < from->n_stops; i++)
        stops[i] = copy(from->stops[i], &ok);
    return ok && stops;
}

/* Queues r and takes ownership of it. If the queue is full or closed, or !ok (the copy is incomplete), r is freed
 * and the result is false. */
static bool post(struct pp_worker *w, struct request *r, bool ok)
{
    if (r && ok && pp_queue_try_push(w->requests, r))
        return true;
    request_free(r);
    return false;
}

static void do_load(struct pp_backend *b, const struct pp_load_request *from)
{
    struct pp_worker *w = (struct pp_worker *)b;
    struct request *r = pp_calloc(1, sizeof *r);
    bool ok = r && copy_load(r, from);
    if (r)
        r->kind = REQUEST_LOAD;
    if (!post(w, r, ok)) {
        struct pp_event *e = pp_event_new(PP_EVENT_LOAD_FAILED);
        if (e)
            pp_fail(&e->err, PP_ERR_NOMEM, "cannot load the model now: out of memory, or pippin is shutting down");
        worker_try_send(w, e);
    }
}

static void add_live(struct pp_worker *w, struct request *r)
{
    pthread_mutex_lock(&w->lock);
    r->live_next = w->live;
    w->live = r;
    pthread_mutex_unlock(&w->lock);
}

static void remove_live(struct pp_worker *w, struct request *r)
{
    pthread_mutex_lock(&w->lock);
    struct request **at = &w->live;
    while (*at && *at != r)
        at = &(*at)->live_next;
    if (*at)
        *at = r->live_next;
    pthread_mutex_unlock(&w->lock);
}

void request_end(struct pp_worker *w, struct request *r)
{
    remove_live(w, r);
    request_free(r);
}

bool request_cancelled(struct pp_worker *w, const struct request *r)
{
    pthread_mutex_lock(&w->lock);
    bool cancelled = r->cancelled;
    pthread_mutex_unlock(&w->lock);
    return cancelled;
}

static void do_generate(struct pp_backend *b, const struct pp_generate_request *from)
{
    struct pp_worker *w = (struct pp_worker *)b;
    struct request *r = pp_calloc(1, sizeof *r);
    bool ok = r && copy_generate(r, from);
    if (r) {
        r->kind = REQUEST_GENERATE;
        add_live(w, r);
    }
    if (r && ok && pp_queue_try_push(w->requests, r))
        return;
    if (r)
        request_end(w, r);
    struct pp_error err;
    pp_fail(&err, PP_ERR_NOMEM, "cannot answer now: out of memory, or pippin is shutting down");
    worker_try_send(w, worker_refusal(w, from, &err));
}

/* Cancels the given request, or all (0), whether they have begun or not. Requests posted later are not affected. */
static void do_cancel(struct pp_backend *b, uint64_t request)
{
    struct pp_worker *w = (struct pp_worker *)b;
    pthread_mutex_lock(&w->lock);
    for (struct request *r = w->live; r; r = r->live_next) {
        if (request && r->generate.request != request)
            continue;
        r->cancelled = true;
        if (w->computing)
            pp_cancel_request(&w->cancel);
    }
    pthread_mutex_unlock(&w->lock);
}

static void do_show(struct pp_backend *b, const char *key)
{
    struct pp_worker *w = (struct pp_worker *)b;
    pthread_mutex_lock(&w->lock);
    snprintf(w->shown, sizeof w->shown, "%s", key ? key : "");
    pthread_mutex_unlock(&w->lock);
}

static bool post_key(struct pp_worker *w, enum request_kind kind, const char *key)
{
    struct request *r = pp_calloc(1, sizeof *r);
    bool ok = r && (r->key = pp_strdup(key));
    if (r)
        r->kind = kind;
    return post(w, r, ok);
}

static bool post_inspection(struct pp_backend *b, enum request_kind kind, enum pp_event_type answer, const char *path)
{
    struct request *r = pp_calloc(1, sizeof *r);
    bool ok = r && (r->key = pp_strdup(path)) && (r->answer = pp_event_new(answer)) &&
              (r->answer->text = pp_strdup(path));
    if (r)
        r->kind = kind;
    return post((struct pp_worker *)b, r, ok);
}

/* Nothing to do: the conversation was saved after its last turn, and its pages stay in the cache while there is
 * room. */
static void do_leave(struct pp_backend *b, const char *key)
{
    (void)b, (void)key;
}

static void wake_up(struct pp_worker *w)
{
    struct request *r = pp_calloc(1, sizeof *r);
    if (r)
        r->kind = REQUEST_WAKE;
    post(w, r, true);
}

/* Never blocks: deleting a conversation must not wait while the worker loads a model. Many may be deleted at once,
 * so when the queue is full, the request goes to a list of its own, w->forgets. */
static void do_forget(struct pp_backend *b, const char *key)
{
    struct pp_worker *w = (struct pp_worker *)b;
    struct request *r = pp_calloc(1, sizeof *r);
    if (!r || !(r->key = pp_strdup(key))) {
        pp_free(r);
        return;
    }
    r->kind = REQUEST_FORGET;
    if (pp_queue_try_push(w->requests, r))
        return;
    pthread_mutex_lock(&w->lock);
    r->live_next = w->forgets;
    w->forgets = r;
    pthread_mutex_unlock(&w->lock);
    wake_up(w); /* the worker may have found the queue empty before this entry was added, and would sleep on */
}

/* The next entry of w->forgets, or NULL. */
static struct request *next_forget(struct pp_worker *w)
{
    pthread_mutex_lock(&w->lock);
    struct request *r = w->forgets;
    if (r)
        w->forgets = r->live_next;
    pthread_mutex_unlock(&w->lock);
    return r;
}

static bool do_inspect(struct pp_backend *b, const char *adapter)
{
    return post_inspection(b, REQUEST_INSPECT, PP_EVENT_ADAPTER, adapter);
}

static bool do_inspect_draft(struct pp_backend *b, const char *path)
{
    return post_inspection(b, REQUEST_INSPECT_DRAFT, PP_EVENT_DRAFTER, path);
}

static void do_draft(struct pp_backend *b, const char *path)
{
    struct pp_worker *w = (struct pp_worker *)b;
    struct pp_event *e = post_key(w, REQUEST_DRAFT, path) ? NULL : pp_event_new(PP_EVENT_DRAFT);
    if (e)
        pp_fail(&e->err, PP_ERR_NOMEM, "not possible now: out of memory, or pippin is shutting down");
    worker_try_send(w, e);
}

/* Posts a request about a conversation that produces no answer (cost, prepare). */
static bool post_question(struct pp_backend *b, const struct pp_generate_request *from, enum request_kind kind)
{
    struct request *r = pp_calloc(1, sizeof *r);
    bool ok = r && copy_generate(r, from);
    if (r)
        r->kind = kind;
    return post((struct pp_worker *)b, r, ok);
}

static bool do_cost(struct pp_backend *b, const struct pp_generate_request *from)
{
    return post_question(b, from, REQUEST_COST);
}

static void do_prepare(struct pp_backend *b, const struct pp_generate_request *from)
{
    post_question(b, from, REQUEST_PREPARE); /* if it is lost, the next answer is only slower to begin */
}

static void do_close(struct pp_backend *b)
{
    struct pp_worker *w = (struct pp_worker *)b;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_mutex_unlock(&w->lock);
    do_cancel(b, 0);
    pp_cancel_request(&w->load_cancel);
    pp_queue_close(w->requests);
}

static bool is_closing(struct pp_worker *w)
{
    pthread_mutex_lock(&w->lock);
    bool closing = w->closing;
    pthread_mutex_unlock(&w->lock);
    return closing;
}

/* --- the thread ------------------------------------------------------------------------------------------- */

static void carry_out(struct pp_worker *w, struct request *r)
{
    switch (r->kind) {
    case REQUEST_LOAD:
        while (worker_pass(w))
            ; /* finish the answers under way with the old model */
        if (is_closing(w))
            break;
        worker_load(w, r);
        return; /* r belongs to worker_load now */
    case REQUEST_GENERATE:
        worker_generate(w, r);
        return; /* r belongs to worker_generate now */
    case REQUEST_FORGET:
        slot_forget(w, r->key);
        break;
    case REQUEST_INSPECT:
        worker_inspect(w, r);
        break;
    case REQUEST_INSPECT_DRAFT:
        worker_inspect_draft(w, r);
        break;
    case REQUEST_DRAFT:
        worker_want_draft(w, r);
        return; /* r belongs to worker_want_draft now */
    case REQUEST_COST:
        worker_cost(w, &r->generate);
        break;
    case REQUEST_PREPARE:
        worker_prepare(w, &r->generate);
        break;
    case REQUEST_SAVED:
        saves_collect(w);
        break;
    case REQUEST_WAKE:
        break;
    }
    request_free(r);
}

static void *worker_main(void *arg)
{
    struct pp_worker *w = arg;
    pp_priority_compute();
    for (;;) {
        worker_change_draft(w);
        bool answering = worker_pass(w), waiting = !answering && slots_unsaved(w);
        struct request *r = pp_queue_try_pop(w->requests);
        if (!r)
            r = next_forget(w); /* after everything that was queued before */
        if (!r && !answering)
            r = pp_queue_pop(w->requests, waiting ? RETRY_SAVE_MS : -1);
        if (r)
            carry_out(w, r);
        else if (!answering && is_closing(w))
            break;
        if (waiting)
            slots_save(w, 0);
    }
    slots_save(w, CLOSE_WAIT_MS);
    worker_unload(w);
    request_free(w->next_draft);
    worker_send(w, pp_event_new(PP_EVENT_CLOSED));
    return NULL;
}

static void do_free(struct pp_backend *b)
{
    struct pp_worker *w = (struct pp_worker *)b;
    if (!w)
        return;
    do_close(b); /* in case the caller did not; closing twice is harmless */
    pthread_join(w->thread, NULL);
    for (struct request *r; (r = pp_queue_try_pop(w->requests));)
        request_free(r);
    for (struct request *r; (r = next_forget(w));)
        request_free(r);
    pp_queue_free(w->requests);
    pthread_cond_destroy(&w->saved);
    pthread_mutex_destroy(&w->lock);
    pp_free(w);
}

static const struct pp_backend_ops worker_ops = {
    .name = "local",
    .load = do_load,
    .generate = do_generate,
    .cancel = do_cancel,
    .show = do_show,
    .prepare = do_prepare,
    .leave = do_leave,
    .forget = do_forget,
    .inspect = do_inspect,
    .cost = do_cost,
    .inspect_draft = do_inspect_draft,
    .draft = do_draft,
    .close = do_close,
    .free = do_free,
};

enum pp_code pp_worker_start(struct pp_queue *events, struct pp_io *io, const char *cache_dir, struct pp_backend **out,
                             struct pp_error *err)
{
    *out = NULL;
    struct pp_worker *w = pp_calloc(1, sizeof *w);
    if (!w)
        return pp_fail_nomem(err, "the worker");
    w->base.ops = &worker_ops;
    w->events = events;
    w->io = io;
    snprintf(w->cache_dir, sizeof w->cache_dir, "%s", cache_dir ? cache_dir : "");
    enum pp_code code = pp_queue_new(REQUEST_CAPACITY, &w->requests, err);
    if (code != PP_OK) {
        pp_free(w);
        return code;
    }
    pthread_mutex_init(&w->lock, NULL);
    pp_cond_init(&w->saved);
    if (pp_thread_start(&w->thread, worker_main, w) != 0) {
        pthread_cond_destroy(&w->saved);
        pthread_mutex_destroy(&w->lock);
        pp_queue_free(w->requests);
        pp_free(w);
        return pp_fail(err, PP_ERR_NOMEM, "cannot start a thread for the engine; close other programs");
    }
    *out = &w->base;
    return PP_OK;
}
