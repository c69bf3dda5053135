/* worker_model.c - loading the target model, its identity (a hash), and its adapters. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/paths.h"
#include "src/thread.h"
#include "src/worker_int.h"

enum {
    SAVE_WAIT_MS = 5000, /* for snapshots when an engine is replaced; whatever takes longer is lost and computed again
                          * when it is needed */
    ADAPTER_CACHE_BYTES = 512 << 20, /* of adapters in memory; beyond it, those that no conversation uses are freed */
};

/* --- a model and its identity ----------------------------------------------------------------------------- */

void shared_model_release(struct shared_model *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    bool last = --s->users == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last)
        return;
    pp_model_close(s->model);
    pthread_cond_destroy(&s->known);
    pthread_mutex_destroy(&s->lock);
    pp_free(s);
}

/* Runs as a thread of its own because it hashes the whole file, which takes minutes for the largest models. */
static void *find_identity(void *arg)
{
    struct shared_model *s = arg;
    struct pp_sha256 identity = {0};
    struct pp_error err = {0};
    setpriority(PRIO_PROCESS, (id_t)gettid(), 10); /* on Linux this affects the calling thread only: answers come
                                                    * first */
    enum pp_code code = pp_model_identity(s->model, s->cache_dir[0] ? s->cache_dir : NULL, &identity, &err);
    pthread_mutex_lock(&s->lock);
    s->identity = identity;
    s->code = code;
    s->err = err;
    s->done = true;
    pthread_cond_broadcast(&s->known);
    pthread_mutex_unlock(&s->lock);
    shared_model_release(s);
    return NULL;
}

static void start_identity(struct shared_model *s)
{
    pthread_t thread;
    pthread_attr_t attr;
    s->users++; /* without the lock, as no other thread knows s yet */
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attr, find_identity, s) != 0) {
        s->users--;
        s->done = true;
        s->code = pp_fail(&s->err, PP_ERR_NOMEM, "cannot start a thread to check the model");
    }
    pthread_attr_destroy(&attr);
}

enum pp_code model_open(const char *path, const char *quant, const char *imatrix, const char *cache_dir,
                        struct shared_model **out, struct pp_error *err)
{
    struct shared_model *s = pp_calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return pp_fail_nomem(err, "the model");
    enum pp_code code = pp_model_open_as(path, quant, imatrix, &s->model, err);
    if (code != PP_OK) {
        pp_free(s);
        return code;
    }
    pp_cond_init(&s->known);
    pthread_mutex_init(&s->lock, NULL);
    snprintf(s->cache_dir, sizeof s->cache_dir, "%s", cache_dir);
    s->users = 1;
    *out = s;
    return PP_OK;
}

enum pp_code worker_identity(struct pp_worker *w, int wait_ms, struct pp_sha256 *out, struct pp_error *err)
{
    struct shared_model *s = w->target;
    uint64_t until = pp_now_ns() + (uint64_t)wait_ms * (uint64_t)pp_worker_patience * 1000000u;
    pthread_mutex_lock(&s->lock);
    while (!s->done && pp_cond_wait_until(&s->known, &s->lock, until))
        ;
    const enum pp_code code = s->done ? s->code : PP_ERR_BUSY;
    if (s->done)
        *err = s->err;
    *out = s->identity;
    pthread_mutex_unlock(&s->lock);
    return code;
}

/* --- loading ---------------------------------------------------------------------------------------------- */

struct progress {
    struct pp_worker *w;
    uint64_t last_ns;
};

static void on_progress(void *user, uint64_t done, uint64_t total)
{
    struct progress *p = user;
    uint64_t now = pp_now_ns();
    if (now - p->last_ns < 30000000u && done < total)
        return;
    p->last_ns = now;
    struct pp_event *e = pp_event_new(PP_EVENT_LOAD_PROGRESS);
    if (e) {
        e->done = done;
        e->total = total;
    }
    worker_try_send(p->w, e);
}

static enum pp_code open_target(struct pp_worker *w, const struct pp_load_request *r, struct shared_model **out,
                                struct pp_error *err)
{
    enum pp_code code = model_open(r->model, r->quant, r->imatrix, w->cache_dir, out, err);
    if (code != PP_OK)
        return code;
    code = pp_model_check_writes((*out)->model, err);
    if (code == PP_OK && !pp_model_tokenizer((*out)->model))
        code = pp_fail(err, PP_ERR_UNSUPPORTED,
                       "%s has no vocabulary, so it cannot be used in the chat; choose another model", r->model);
    if (code != PP_OK) {
        shared_model_release(*out);
        *out = NULL;
    }
    return code;
}

static enum pp_code make_engine(struct pp_worker *w, const struct pp_load_request *r, struct pp_error *err)
{
    struct progress p = {.w = w};
    struct pp_engine_options opt = r->engine;
    opt.cancel = &w->load_cancel;
    opt.cache_dir = w->cache_dir;
    return pp_engine_new(w->target->model, &opt, on_progress, &p, &w->engine, err);
}

void worker_unload(struct pp_worker *w)
{
    prefault_stop(w);
    slots_free(w);
    saves_finish(w, SAVE_WAIT_MS);
    draft_drop(w);
    pp_engine_free(w->engine);
    w->engine = NULL;
    request_free(w->loaded);
    w->loaded = NULL;
    for (int i = 0; i < w->n_adapters; i++)
        pp_adapter_free(w->adapters[i].adapter);
    w->n_adapters = 0;
    shared_model_release(w->target);
    w->target = NULL;
    pp_template_free(w->tmpl);
    w->tmpl = NULL;
    pp_free(w->tmpl_source);
    w->tmpl_source = NULL;
}

static void describe_builtin(const struct pp_worker *w, const struct pp_model_info *m, struct pp_loaded *l)
{
    const char *why, *name = pp_template_instead(pp_model_tokenizer(w->target->model), m->name, m->path, &why);
    pp_utf8_print(l->instead, sizeof l->instead, "%s%s%.60s", name, why ? ", by " : "", why ? why : "");
}

struct pp_loaded *worker_describe(struct pp_worker *w, const char *draft_reason)
{
    struct pp_loaded *l = pp_calloc(1, sizeof *l);
    if (!l)
        return NULL;
    const struct pp_model_info *m = pp_model_info(w->target->model);
    pp_utf8_print(l->name, sizeof l->name, "%s", m->name);
    snprintf(l->type_name, sizeof l->type_name, "%s", m->type_name);
    snprintf(l->path, sizeof l->path, "%s", m->path);
    const struct pp_model_info *d = w->draft.engine ? pp_model_info(w->draft.model->model) : NULL;
    pp_utf8_print(l->draft_name, sizeof l->draft_name, "%s", d ? d->name : "");
    snprintf(l->draft_path, sizeof l->draft_path, "%s", d ? d->path : "");
    pp_utf8_print(l->draft_reason, sizeof l->draft_reason, "%s", draft_reason);
    snprintf(l->kernels, sizeof l->kernels, "%s", pp_engine_kernels(w->engine));
    l->n_threads = pp_engine_n_threads(w->engine);
    l->n_ctx = pp_engine_n_ctx(w->engine);
    l->n_ctx_train = m->n_ctx_train;
    l->n_params = m->n_params;
    l->n_vocab = m->n_vocab;
    l->bytes = m->bytes;
    l->has_template = m->chat_template != NULL;
    if (!l->has_template)
        describe_builtin(w, m, l);
    l->thinking_choices = pp_thinking_choices_of(m->chat_template);
    return l;
}

/* Makes an engine for `target`. There must be none before. Takes over r and target, also on failure. */
static enum pp_code install(struct pp_worker *w, struct request *r, struct shared_model *target,
                            struct pp_loaded **info, struct pp_error *err)
{
    struct pp_error draft_err = {0};
    w->template_notified = false;
    w->snapshot_quota = r->load.snapshot_quota;
    w->target = target;
    w->loaded = r;
    enum pp_code code = make_engine(w, &r->load, err);
    if (code == PP_OK) {
        start_identity(w->target);
        draft_load(w, &r->load, &draft_err);
        *info = worker_describe(w, draft_err.text);
        code = *info ? PP_OK : pp_fail_nomem(err, "the model");
    }
    if (code == PP_OK)
        prefault_start(w);
    else
        worker_unload(w);
    return code;
}

/* After the new model was refused, for want of memory for example, loads the previous one again. Takes over
 * `before`, the request it was loaded by. NULL if that fails, too, and *err says so in addition. */
static struct pp_loaded *load_again(struct pp_worker *w, struct request *before, struct pp_error *err)
{
    struct pp_error why = {0};
    struct shared_model *target;
    struct pp_loaded *info = NULL;
    const struct pp_error first = *err;
    enum pp_code code = open_target(w, &before->load, &target, &why);
    if (code == PP_OK)
        code = install(w, before, target, &info, &why);
    else
        request_free(before);
    if (code != PP_OK)
        pp_fail(err, first.code, "%s; and the previous model could not be loaded again: %s", first.text,
                why.text);
    return info;
}

void worker_load(struct pp_worker *w, struct request *r)
{
    struct pp_error err = {0};
    struct shared_model *target;
    struct request *before = NULL;
    enum pp_code code = open_target(w, &r->load, &target, &err);
    struct pp_event *e = pp_event_new(code == PP_OK ? PP_EVENT_LOADED : PP_EVENT_LOAD_FAILED);
    struct pp_loaded *info = NULL;
    if (code != PP_OK && w->engine) { /* a mistyped name costs nothing: the old model stays */
        request_free(r);
        info = worker_describe(w, "");
    } else if (code != PP_OK) {
        request_free(r);
    } else {
        slots_save(w, 0);
        before = w->loaded;
        w->loaded = NULL;
        worker_unload(w);
        code = install(w, r, target, &info, &err);
        if (code != PP_OK && code != PP_ERR_CANCELLED && before)
            info = load_again(w, before, &err);
        else
            request_free(before);
    }
    if (e) {
        e->type = code == PP_OK ? PP_EVENT_LOADED : PP_EVENT_LOAD_FAILED;
        e->err = err;
        e->info = info;
    } else {
        pp_free(info);
    }
    worker_send(w, e);
}

/* --- adapters --------------------------------------------------------------------------------------------- */

static bool stamp(const char *file, struct file_stamp *to)
{
    struct stat st;
    if (stat(file, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    *to = (struct file_stamp){st.st_dev, st.st_ino, st.st_mtim, st.st_ctim, st.st_size};
    return true;
}

static bool stamp_in(const char *folder, const char *name, struct file_stamp *to)
{
    char file[600];
    snprintf(file, sizeof file, "%s/%s", folder, name);
    return stamp(file, to);
}

/* Stamps a GGUF file, or the files of a PEFT or MLX folder. */
static enum pp_code stamp_adapter(const char *path, struct file_stamp files[2], struct pp_error *err)
{
    stamp_in(path, "adapter_config.json", &files[1]);
    if (stamp(path, &files[0]) || stamp_in(path, "adapter_model.safetensors", &files[0]) ||
        stamp_in(path, "adapters.safetensors", &files[0]) || stamp_in(path, "adapters.npz", &files[0]))
        return PP_OK;
    return pp_fail(err, PP_ERR_NOT_FOUND, "there is no adapter at %s", path);
}

static bool is_used(const struct pp_worker *w, const struct pp_adapter *a)
{
    for (int i = 0; i < WORKER_SLOTS; i++)
        if (w->slots[i].seq && pp_seq_uses(w->slots[i].seq, a))
            return true;
    return false;
}

/* The least recently used adapter that no sequence uses and the current request has not chosen, or NULL. */
static struct cached_adapter *oldest_unused(struct pp_worker *w)
{
    struct cached_adapter *oldest = NULL;
    for (struct cached_adapter *c = w->adapters; c < w->adapters + w->n_adapters; c++)
        if (c->last_use < w->clock && (!oldest || c->last_use < oldest->last_use) && !is_used(w, c->adapter))
            oldest = c;
    return oldest;
}

/* Frees unused adapters until there is a slot for another one and the total is at most ADAPTER_CACHE_BYTES, as far as
 * possible. */
static void make_room(struct pp_worker *w)
{
    uint64_t bytes = 0;
    for (int i = 0; i < w->n_adapters; i++)
        bytes += pp_adapter_info(w->adapters[i].adapter)->bytes;
    for (struct cached_adapter *c; w->n_adapters == WORKER_ADAPTERS || bytes > ADAPTER_CACHE_BYTES;) {
        if (!(c = oldest_unused(w)))
            return;
        bytes -= pp_adapter_info(c->adapter)->bytes;
        pp_adapter_free(c->adapter);
        *c = w->adapters[--w->n_adapters];
    }
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool same_stamp(const struct file_stamp *a, const struct file_stamp *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && same_time(&a->mtime, &b->mtime) &&
           same_time(&a->ctime, &b->ctime);
}

static struct cached_adapter *find_adapter(struct pp_worker *w, const char *path, const struct file_stamp files[2])
{
    for (struct cached_adapter *c = w->adapters; c < w->adapters + w->n_adapters; c++)
        if (strcmp(c->path, path) == 0 && same_stamp(&c->files[0], &files[0]) && same_stamp(&c->files[1], &files[1]))
            return c;
    return NULL;
}

/* Whether `adapter` differs from the one that was read from the same path before and used in an answer. */
static bool replaces(const struct pp_worker *w, const char *path, const struct pp_adapter *adapter)
{
    const struct cached_adapter *last = NULL;
    for (const struct cached_adapter *c = w->adapters; c < w->adapters + w->n_adapters; c++)
        if (strcmp(c->path, path) == 0 && (!last || c->last_use > last->last_use))
            last = c;
    return last && (last->notified || last->replaced) && !pp_adapter_same(last->adapter, adapter);
}

/* Finds or loads an adapter. It stays at least until w->clock advances. */
static struct cached_adapter *get_adapter(struct pp_worker *w, const char *path, struct pp_error *err)
{
    struct file_stamp files[2] = {{0}, {0}};
    struct pp_adapter *adapter;
    if (stamp_adapter(path, files, err) != PP_OK)
        return NULL;
    struct cached_adapter *c = find_adapter(w, path, files);
    if (!c && strlen(path) >= sizeof c->path) {
        pp_fail(err, PP_ERR_USAGE, "the path of the adapter is too long: %s", path);
        return NULL;
    }
    if (!c) {
        make_room(w);
        if (pp_adapter_load(w->target->model, path, &adapter, err) != PP_OK)
            return NULL;
        const bool replaced = replaces(w, path, adapter);
        c = &w->adapters[w->n_adapters++];
        *c = (struct cached_adapter){.files = {files[0], files[1]}, .adapter = adapter, .replaced = replaced};
        snprintf(c->path, sizeof c->path, "%s", path);
    }
    c->last_use = w->clock;
    return c;
}

static void report_skipped_adapter(struct pp_worker *w, uint64_t request, const char *path, const struct pp_error *err)
{
    struct pp_event *e = pp_event_new(PP_EVENT_ADAPTER_SKIPPED);
    if (e && (e->text = pp_strdup(path))) {
        e->request = request;
        e->err = *err;
        worker_send(w, e);
    } else {
        pp_event_free(e);
    }
}

int worker_choose_adapters(struct pp_worker *w, const struct pp_generate_request *r,
                           struct pp_adapter_use use[static PP_MAX_ADAPTERS], bool notify, struct pp_error *err)
{
    int n = 0;
    w->clock++;
    for (int i = 0; i < r->n_adapters && i < PP_MAX_ADAPTERS; i++) {
        struct cached_adapter *c = get_adapter(w, r->adapters[i].path, err);
        if (c)
            use[n++] = (struct pp_adapter_use){.adapter = c->adapter, .scale = r->adapters[i].scale};
        else if (notify)
            report_skipped_adapter(w, r->request, r->adapters[i].path, err);
        const struct pp_adapter_info *info = c && notify && !c->notified ? pp_adapter_info(c->adapter) : NULL;
        if (info && c->replaced)
            worker_notice(w, "the file of adapter %s has changed; the new one is used from now on", info->name);
        if (info && info->idle)
            worker_notice(w, "adapter %s has no effect: its matrices or its alpha are all zero, or its IA3 scales all "
                             "1", info->name);
        if (info && info->assumed_scale != 0.0f)
            worker_notice(w, "adapter %s: " PP_SCALE_ASSUMED, info->name, (double)info->assumed_scale);
        if (info)
            c->notified = true;
    }
    return n;
}

void worker_notify_uninvoked(struct pp_worker *w, const struct pp_adapter_use *use, int n_use, const int32_t *ids,
                             size_t n)
{
    for (int i = 0; i < w->n_adapters; i++) {
        struct cached_adapter *c = &w->adapters[i];
        int k = 0;
        while (k < n_use && use[k].adapter != c->adapter)
            k++;
        if (k == n_use || c->uninvoked_notified || pp_adapter_acts_after(c->adapter, ids, (int64_t)n))
            continue;
        worker_notice(w, "adapter %s has no effect here: the prompt does not contain the tokens that invoke it",
                      pp_adapter_info(c->adapter)->name);
        c->uninvoked_notified = true;
    }
}

static struct pp_adapter_facts *facts_of(const struct pp_adapter_info *info)
{
    struct pp_adapter_facts *f = pp_calloc(1, sizeof *f);
    if (!f)
        return NULL;
    *f = (struct pp_adapter_facts){.kind = info->kind, .rank = info->rank, .n_targets = info->n_targets,
                                   .bytes = info->bytes, .n_invocation = info->n_invocation, .idle = info->idle,
                                   .places = info->places};
    pp_utf8_print(f->base, sizeof f->base, "%s", pp_base_name(info->base));
    snprintf(f->targets, sizeof f->targets, "%s", info->targets);
    return f;
}

void worker_inspect(struct pp_worker *w, struct request *r)
{
    struct pp_event *e = r->answer;
    r->answer = NULL;
    w->clock++;
    const struct cached_adapter *c = w->engine ? get_adapter(w, r->key, &e->err) : NULL;
    if (c)
        e->adapter = facts_of(pp_adapter_info(c->adapter));
    if (!w->engine)
        pp_fail(&e->err, PP_ERR_NOT_FOUND, "no model is loaded that it could fit");
    else if (c && !e->adapter)
        pp_fail_nomem(&e->err, "what an adapter is");
    worker_send(w, e);
}
