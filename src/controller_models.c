/* controller_models.c - the models that could be loaded, and what is known of each: type, size, memory. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "engine/fit.h"
#include "src/controller_int.h"

enum { MAX_MODELS = 512 };

const struct pp_model_choice *pp_controller_models(const struct pp_controller *c, size_t *n)
{
    *n = c->models.n;
    return c->models.items;
}

bool pp_controller_models_pending(const struct pp_controller *c)
{
    return c->finding_models;
}

static struct pp_model_choice *by_path(const struct model_list *l, const char *path)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->items[i].path, path) == 0)
            return &l->items[i];
    return NULL;
}

void ctl_model_add(struct model_list *l, const char *path, const char *name, bool bundled)
{
    char whole[PATH_MAX];
    struct pp_model_choice *m;
    if (!pp_absolute_path(path, whole) || strlen(whole) >= sizeof m->path || by_path(l, whole) || l->n == MAX_MODELS ||
        pp_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items) != 0)
        return;
    m = &l->items[l->n++];
    *m = (struct pp_model_choice){.bundled = bundled};
    snprintf(m->path, sizeof m->path, "%s", whole);
    pp_utf8_print(m->name, sizeof m->name, "%s", name && *name ? name : pp_base_name(whole));
}

void ctl_mark_model(struct pp_controller *c)
{
    char whole[PATH_MAX] = "";
    if (c->status.model.name[0] && !pp_absolute_path(c->status.model.path, whole))
        whole[0] = 0;
    for (size_t i = 0; i < c->models.n; i++)
        c->models.items[i].current = strcmp(c->models.items[i].path, whole) == 0;
    ctl_dirty(c, PP_DIRTY_LISTS);
}

/* --- inspecting models ------------------------------------------------------------------------------------ */

static void look_into(const struct pp_model *m, const struct pp_options *o, struct pp_model_facts *f)
{
    const struct pp_model_info *info = pp_model_info(m);
    snprintf(f->type, sizeof f->type, "%s", info->type_name);
    f->n_params = info->n_params;
    f->n_params_active = info->n_expert ? info->n_params_active : 0;
    f->n_ctx_train = info->n_ctx_train;
    f->bytes = info->bytes;
    if (o->quant && pp_is_folder(info->path)) /* their size is unknown before they are quantised */
        return;
    f->n_ctx = o->ctx_size ? o->ctx_size : pp_model_usual_ctx(m);
    const struct pp_memory_need need = pp_model_memory(m, o->kv_type, f->n_ctx, 0);
    f->memory = pp_memory_sum(&need);
}

/* In: model (a path). Out: models, with this one. io thread. */
static void run_look(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    struct pp_model *m;
    struct pp_model_facts facts = {0};
    (void)st;
    job->code = pp_model_open(j->model, &m, &job->err);
    if (job->code == PP_OK) {
        job->code = pp_model_check_writes(m, &job->err);
        if (job->code == PP_OK && !pp_model_tokenizer(m))
            job->code = pp_fail(&job->err, PP_ERR_UNSUPPORTED, "it has no vocabulary");
        if (job->code == PP_OK)
            look_into(m, j->o, &facts);
        pp_model_close(m);
    }
    ctl_model_add(&j->models, j->model, NULL, false);
    if (j->models.n)
        j->models.items[0].facts = facts;
}

static void look_at_next(struct pp_controller *c);

static void on_looked(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    struct pp_model_choice *m = by_path(&c->models, j->model);
    if (m) {
        m->fit = job->code == PP_OK && j->models.n ? PP_FIT_YES : PP_FIT_NO;
        if (m->fit == PP_FIT_YES)
            m->facts = j->models.items[0].facts;
        else
            pp_utf8_print(m->reason, sizeof m->reason, "%s", job->code ? job->err.text : "the file is missing");
    }
    ctl_dirty(c, PP_DIRTY_LISTS);
    ctl_job_free(job);
    look_at_next(c);
}

/* Opens one model per job, so that the saving of an answer waits for at most one. */
static void look_at_next(struct pp_controller *c)
{
    size_t i = 0;
    while (i < c->models.n && c->models.items[i].fit != PP_FIT_UNKNOWN)
        i++;
    c->finding_models = i < c->models.n && c->state != PP_STATE_CLOSING;
    struct ctl_job *j = c->finding_models ? ctl_job_new(c, run_look, on_looked) : NULL;
    if (!j) {
        c->finding_models = false;
        return;
    }
    snprintf(j->model, sizeof j->model, "%s", c->models.items[i].path);
    ctl_job_post(c, j);
}

/* --- finding models --------------------------------------------------------------------------------------- */

/* Replaces the list by what was found, and keeps what was known of each model. A model that failed is opened again. */
static void on_found(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    if (job->code != PP_OK)
        ctl_notice(c, true, "%s", job->err.text);
    for (size_t i = 0; i < j->models.n; i++) {
        struct pp_model_choice *m = &j->models.items[i];
        const struct pp_model_choice *known = by_path(&c->models, m->path);
        if (known && known->fit == PP_FIT_YES) {
            m->fit = known->fit;
            m->facts = known->facts;
        }
    }
    struct model_list t = c->models;
    c->models = j->models;
    j->models = t;
    ctl_mark_model(c);
    ctl_job_free(job);
    look_at_next(c);
}

void pp_controller_find_models(struct pp_controller *c)
{
    struct ctl_job *j = c->finding_models ? NULL : ctl_job_new(c, ctl_run_find_models, on_found);
    if (!j)
        return;
    snprintf(j->model, sizeof j->model, "%s", c->status.model.path);
    c->finding_models = true;
    j->job.of_disk = true;
    ctl_job_post(c, j);
}
