/* controller_drafters.c - draft models: the list of them, which fit the model, and choosing another one. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/controller_int.h"

enum { MAX_DRAFTERS = 64 };

const struct pp_drafter_entry *pp_controller_drafters(const struct pp_controller *c, size_t *n)
{
    *n = c->drafters.n;
    return c->drafters.items;
}

static struct pp_drafter_entry *by_path(const struct drafter_list *l, const char *path)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->items[i].path, path) == 0)
            return &l->items[i];
    return NULL;
}

void ctl_drafter_add(struct drafter_list *l, const char *path, const char *name)
{
    char real[PATH_MAX];
    struct pp_drafter_entry *d;
    if (!realpath(path, real) || strlen(real) >= sizeof d->path)
        return;
    d = by_path(l, real);
    if (!d && (l->n == MAX_DRAFTERS || pp_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items) != 0))
        return;
    const char *slash = strrchr(real, '/'), *file = slash && slash[1] ? slash + 1 : real;
    if (!d) {
        d = &l->items[l->n++];
        *d = (struct pp_drafter_entry){0};
        snprintf(d->path, sizeof d->path, "%s", real);
        pp_utf8_print(d->name, sizeof d->name, "%s", file);
    }
    if (name && *name)
        pp_utf8_print(d->name, sizeof d->name, "%s", name);
}

/* --- finding draft models --------------------------------------------------------------------------------- */

/* Asks the worker about one model at a time, so that an answer under way is never held up by more than one. If the
 * request cannot be queued, the model stays unknown until the next look at the list. */
static void inspect_next(struct pp_controller *c)
{
    size_t i = 0;
    while (i < c->drafters.n && c->drafters.items[i].fit != PP_FIT_UNKNOWN)
        i++;
    c->finding_drafters = i < c->drafters.n && c->backend->ops->inspect_draft &&
                          c->backend->ops->inspect_draft(c->backend, c->drafters.items[i].path);
}

/* Replaces the list by what was found, and keeps what was known of each model. */
static void on_found(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    if (strcmp(j->model, c->status.model.path) != 0) { /* the target model has changed meanwhile */
        c->finding_drafters = false;
        ctl_job_free(job);
        return;
    }
    if (job->code != PP_OK)
        ctl_notice(c, true, "%s", job->err.text);
    if (c->status.model.draft_path[0])
        ctl_drafter_add(&j->drafters, c->status.model.draft_path, NULL);
    for (size_t i = 0; i < j->drafters.n; i++) {
        struct pp_drafter_entry *d = &j->drafters.items[i];
        const struct pp_drafter_entry *known = by_path(&c->drafters, d->path);
        if (!known)
            continue;
        d->fit = known->fit;
        d->facts = known->facts;
        memcpy(d->reason, known->reason, sizeof d->reason);
    }
    struct drafter_list t = c->drafters;
    c->drafters = j->drafters;
    j->drafters = t;
    ctl_dirty(c, PP_DIRTY_LISTS);
    ctl_job_free(job);
    inspect_next(c);
}

void pp_controller_find_drafters(struct pp_controller *c)
{
    if (c->finding_drafters || !c->status.model.name[0] || c->state == PP_STATE_LOADING)
        return;
    struct ctl_job *j = ctl_job_new(c, ctl_run_find_drafters, on_found);
    if (!j)
        return;
    snprintf(j->model, sizeof j->model, "%s", c->status.model.path);
    c->finding_drafters = true;
    j->job.of_disk = true;
    ctl_job_post(c, j);
}

void ctl_forget_drafters(struct pp_controller *c)
{
    c->drafters.n = 0;
    c->finding_drafters = false;
}

void ctl_on_drafter(struct pp_controller *c, const struct pp_event *e)
{
    struct pp_drafter_entry *d = by_path(&c->drafters, e->text);
    if (d) {
        d->fit = e->drafter ? PP_FIT_YES : PP_FIT_NO;
        if (e->drafter)
            d->facts = *e->drafter;
        else
            pp_utf8_print(d->reason, sizeof d->reason, "%s", e->err.text);
    }
    ctl_dirty(c, PP_DIRTY_LISTS);
    if (c->finding_drafters)
        inspect_next(c);
}

/* --- changing the draft model ----------------------------------------------------------------------------- */

bool pp_controller_use_drafter(struct pp_controller *c, const char *typed)
{
    char path[512], model[512];
    struct pp_error err;
    if (!c->backend->ops->draft || !c->status.model.name[0] || c->state == PP_STATE_LOADING)
        ctl_notice(c, true, "a draft model can be chosen once the model has loaded");
    else if (!*typed)
        ctl_notice(c, true, "/draft file NAME, a model file, a folder or the name of a model");
    else if (!pp_expand_home(typed, model, sizeof model))
        ctl_notice(c, true, "the path of the model is too long");
    else if (pp_resolve_model(c->paths, model, path, sizeof path, &err) != PP_OK)
        ctl_notice(c, true, "%s", err.text);
    else {
        c->backend->ops->draft(c->backend, path);
        return true;
    }
    return false;
}

void ctl_on_draft(struct pp_controller *c, const struct pp_event *e)
{
    struct pp_loaded *m = &c->status.model;
    if (!e->info) {
        ctl_notice(c, true, "draft model not changed: %s", e->err.text);
        return;
    }
    if (strcmp(m->path, e->info->path) != 0)
        return; /* from before the target model changed */
    memcpy(m->draft_name, e->info->draft_name, sizeof m->draft_name);
    memcpy(m->draft_path, e->info->draft_path, sizeof m->draft_path);
    memcpy(m->draft_reason, e->info->draft_reason, sizeof m->draft_reason);
    if (c->drafter == PP_DRAFTER_OFF || c->drafter == PP_DRAFTER_LOOKUP)
        pp_controller_set_drafter(c, PP_DRAFTER_AUTO);
    ctl_drafter_add(&c->drafters, m->draft_path, NULL);
    ctl_notice(c, false, "%s drafts tokens from the next answer on", m->draft_name);
    ctl_dirty(c, PP_DIRTY_STATUS | PP_DIRTY_LISTS);
}
