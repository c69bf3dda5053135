/* worker_draft.c - the draft model and its adapters: loading one, inspecting candidates, and replacing it while the
 * target model stays. */
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "src/worker_int.h"

/* --- whether a model can draft ---------------------------------------------------------------------------- */

/* Whether this model can draft for the target. *bridged: its vocabulary differs, and drafts are translated by their
 * text. */
static enum pp_code check_vocabulary(struct pp_worker *w, const struct pp_model *draft, bool *bridged,
                                     struct pp_error *err)
{
    struct pp_error why;
    const struct pp_tokenizer *t = pp_model_tokenizer(draft), *own = pp_model_tokenizer(w->target->model);
    if (pp_model_check_writes(draft, err) != PP_OK)
        return PP_ERR_UNSUPPORTED;
    if (!t)
        return pp_fail(err, PP_ERR_MISMATCH, "%s has no vocabulary", pp_model_info(draft)->path);
    *bridged = !pp_tokenizer_same_ids(own, t);
    if (*bridged && !pp_tokenizer_bridges(own, t, &why))
        return pp_fail(err, PP_ERR_MISMATCH, "its vocabulary differs: %.300s", why.text);
    return PP_OK;
}

static bool same_file(const char *a, const char *b)
{
    struct stat one, two;
    return stat(a, &one) == 0 && stat(b, &two) == 0 && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

static bool same_template(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : !a && !b;
}

static enum pp_code inspect(struct pp_worker *w, const struct pp_model *draft, struct pp_drafter_facts *f,
                            struct pp_error *err)
{
    const struct pp_model_info *own = pp_model_info(w->target->model), *its = pp_model_info(draft);
    f->bytes = its->bytes;
    f->share = (float)((double)its->bytes / (double)(own->bytes ? own->bytes : 1));
    f->other_template = !same_template(own->chat_template, its->chat_template);
    if (same_file(own->path, its->path))
        return pp_fail(err, PP_ERR_MISMATCH, "it is the model itself");
    enum pp_code code = check_vocabulary(w, draft, &f->bridged, err);
    if (code == PP_OK && its->bytes >= own->bytes)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "it is not smaller than the model (%.1f MB against %.1f MB), so drafting would take longer "
                       "than decoding", (double)its->bytes / 1e6, (double)own->bytes / 1e6);
    return code;
}

void worker_inspect_draft(struct pp_worker *w, struct request *r)
{
    struct pp_model *m = NULL;
    struct pp_event *e = r->answer;
    struct pp_drafter_facts *f = pp_calloc(1, sizeof *f);
    enum pp_code code = f ? PP_OK : pp_fail_nomem(&e->err, "a draft model");
    if (code == PP_OK && !w->engine)
        code = pp_fail(&e->err, PP_ERR_NOT_FOUND, "no model is loaded that it could draft for");
    if (code == PP_OK)
        code = pp_model_open(r->key, &m, &e->err);
    if (code == PP_OK)
        code = inspect(w, m, f, &e->err);
    pp_model_close(m);
    if (code == PP_OK)
        e->drafter = f;
    else
        pp_free(f);
    r->answer = NULL;
    worker_send(w, e);
}

/* --- loading ---------------------------------------------------------------------------------------------- */

static void free_draft(struct worker_draft *d)
{
    for (int i = 0; i < d->n; i++)
        pp_adapter_free(d->adapters[i]);
    pp_engine_free(d->engine);
    shared_model_release(d->model);
    *d = (struct worker_draft){0};
}

void draft_drop(struct pp_worker *w)
{
    free_draft(&w->draft);
}

static enum pp_code add_adapters(struct worker_draft *d, const struct pp_load_request *r, struct pp_error *err)
{
    if (r->n_draft_adapters > PP_MAX_ADAPTERS)
        return pp_fail(err, PP_ERR_USAGE, "at most %d adapters can be used at once; leave some out", PP_MAX_ADAPTERS);
    for (int i = 0; i < r->n_draft_adapters; i++) {
        enum pp_code code = pp_adapter_load(d->model->model, r->draft_adapters[i].path, &d->adapters[d->n], err);
        if (code != PP_OK)
            return code;
        d->use[d->n] = (struct pp_adapter_use){d->adapters[d->n], r->draft_adapters[i].scale};
        d->n++;
    }
    return PP_OK;
}

/* Loads into *d, which is empty, and stays so on failure. */
static enum pp_code load(struct pp_worker *w, const struct pp_load_request *r, struct worker_draft *d,
                         struct pp_error *err)
{
    struct pp_engine_options opt = r->engine;
    bool bridged;
    opt.share_pool = w->engine;
    opt.cancel = &w->load_cancel;
    opt.cache_dir = w->cache_dir;
    opt.n_ctx = pp_engine_n_ctx(w->engine);
    enum pp_code code = model_open(r->draft, NULL, NULL, "", &d->model, err);
    if (code == PP_OK)
        code = check_vocabulary(w, d->model->model, &bridged, err);
    if (code == PP_OK)
        code = pp_engine_new(d->model->model, &opt, NULL, NULL, &d->engine, err);
    if (code == PP_OK)
        code = add_adapters(d, r, err);
    if (code != PP_OK)
        free_draft(d);
    return code;
}

enum pp_code draft_load(struct pp_worker *w, const struct pp_load_request *r, struct pp_error *err)
{
    return r->draft ? load(w, r, &w->draft, err) : PP_OK;
}

enum pp_code draft_seq(struct pp_worker *w, struct pp_seq **out, struct pp_error *err)
{
    enum pp_code code = pp_seq_new(w->draft.engine, out, err);
    if (code == PP_OK && (code = pp_seq_set_adapters(*out, w->draft.use, w->draft.n, err)) != PP_OK) {
        pp_seq_free(*out);
        *out = NULL;
    }
    return code;
}

/* --- changing the draft model ----------------------------------------------------------------------------- */

void worker_want_draft(struct pp_worker *w, struct request *r)
{
    request_free(w->next_draft); /* only the latest choice counts */
    w->next_draft = r;
}

void worker_change_draft(struct pp_worker *w)
{
    struct request *r = w->next_draft;
    struct worker_draft fresh = {0};
    if (!r || w->n_answers)
        return;
    w->next_draft = NULL;
    struct pp_event *e = pp_event_new(PP_EVENT_DRAFT);
    struct pp_load_request how = w->loaded ? w->loaded->load : (struct pp_load_request){0};
    how.draft = r->key;
    how.n_draft_adapters = 0;
    if (e && !w->engine) {
        pp_fail(&e->err, PP_ERR_NOT_FOUND, "no model is loaded that it could draft for");
    } else if (e && same_file(pp_model_info(w->target->model)->path, r->key)) { /* the user has loaded that model as
                                                                                 * the target meanwhile */
        pp_fail(&e->err, PP_ERR_MISMATCH, "it is the model itself");
    } else if (e && load(w, &how, &fresh, &e->err) == PP_OK) {
        slots_drop_drafts(w);
        free_draft(&w->draft);
        w->draft = fresh;
        request_set_draft(w->loaded, r->key);
        r->key = NULL;
        e->info = worker_describe(w, "");
    }
    request_free(r);
    worker_send(w, e);
}
