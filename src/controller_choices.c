/* controller_choices.c - what the user can choose: templates, personas, sampling parameters, drafting. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "engine/text.h"
#include "src/adapter_names.h"
#include "src/controller_int.h"
#include "src/json_numbers.h"
#include "src/near.h"
#include "src/prompt.h"

enum { MAX_TEMPLATE_FILE = 1 << 20 };

/* --- parameters ------------------------------------------------------------------------------------------- */

const struct ctl_param ctl_params[] = {
    {"temp", CTL_FLOAT, offsetof(struct pp_sampling, temp)},
    {"top-k", CTL_INT, offsetof(struct pp_sampling, top_k)},
    {"top-p", CTL_FLOAT, offsetof(struct pp_sampling, top_p)},
    {"min-p", CTL_FLOAT, offsetof(struct pp_sampling, min_p)},
    {"repeat-penalty", CTL_FLOAT, offsetof(struct pp_sampling, repeat_penalty)},
    {"frequency-penalty", CTL_FLOAT, offsetof(struct pp_sampling, frequency_penalty)},
    {"presence-penalty", CTL_FLOAT, offsetof(struct pp_sampling, presence_penalty)},
    {"repeat-last-n", CTL_INT, offsetof(struct pp_sampling, penalty_last_n)},
    {"seed", CTL_SEED, 0},
    {"n", CTL_MAX_TOKENS, 0},
    {"draft-max", CTL_DRAFT_MAX, 0},
    {"draft-p-min", CTL_DRAFT_P_MIN, 0},
};
const size_t ctl_n_params = sizeof ctl_params / sizeof *ctl_params;

double ctl_param_get(const struct pp_controller *c, const struct pp_sampling *s, const struct ctl_param *p)
{
    const char *field = (const char *)s + p->offset;
    switch (p->kind) {
    case CTL_FLOAT: {
        float f;
        memcpy(&f, field, sizeof f);
        return (double)f;
    }
    case CTL_INT: {
        int i;
        memcpy(&i, field, sizeof i);
        return i;
    }
    case CTL_SEED:
        return (double)s->seed;
    case CTL_MAX_TOKENS:
        return (double)c->max_tokens;
    case CTL_DRAFT_MAX:
        return c->draft_max;
    case CTL_DRAFT_P_MIN:
        return pp_json_short(c->draft_p_min);
    }
    return 0;
}

/* The bounds are those of the command line's options, for values from /set as well as for those stored with a
 * conversation. */
bool ctl_param_put(struct pp_controller *c, const struct ctl_param *p, double v)
{
    bool whole = p->kind != CTL_FLOAT && p->kind != CTL_DRAFT_P_MIN;
    double min, max;
    pp_options_bounds(p->name, &min, &max);
    if (!whole) /* compared as floats, since a bound itself may round up when it is stored */
        v = (double)(float)v, min = (double)(float)min, max = (double)(float)max;
    if (!isfinite(v) || v < min || v > max || (whole && v != floor(v)))
        return false;
    char *field = (char *)&c->sampling + p->offset;
    float f = (float)v;
    switch (p->kind) {
    case CTL_FLOAT:
        memcpy(field, &f, sizeof f);
        break;
    case CTL_INT: {
        int i = (int)v;
        memcpy(field, &i, sizeof i);
        break;
    }
    case CTL_SEED: /* use ctl_fix_seed */
        return false;
    case CTL_MAX_TOKENS:
        c->max_tokens = (int64_t)v;
        break;
    case CTL_DRAFT_MAX:
        c->draft_max = (int)v;
        break;
    case CTL_DRAFT_P_MIN:
        c->draft_p_min = f;
        break;
    }
    return true;
}

void ctl_fix_seed(struct pp_controller *c, uint64_t seed)
{
    c->sampling.seed = seed;
    c->seed_fixed = true;
}

const struct ctl_param *ctl_param_find(const char *name)
{
    for (size_t i = 0; i < ctl_n_params; i++)
        if (pp_casecmp(ctl_params[i].name, name) == 0)
            return &ctl_params[i];
    return NULL;
}

static void show_param(const struct pp_controller *c, const struct ctl_param *p, char *out, size_t cap)
{
    if (p->kind == CTL_SEED && !c->seed_fixed)
        snprintf(out, cap, "random");
    else if (p->kind == CTL_SEED)
        snprintf(out, cap, "%" PRIu64, c->sampling.seed);
    else if (p->kind == CTL_MAX_TOKENS && c->max_tokens < 0)
        snprintf(out, cap, "-1 (no limit)");
    else
        snprintf(out, cap, "%.15g", p->kind == CTL_FLOAT ? pp_json_short((float)ctl_param_get(c, &c->sampling, p))
                                                         : ctl_param_get(c, &c->sampling, p));
}

static bool set_seed(struct pp_controller *c, const char *value)
{
    char *end;
    errno = 0;
    const unsigned long long seed = strtoull(value, &end, 10);
    if (pp_casecmp(value, "random") == 0 || strcmp(value, "-1") == 0) { /* as for --seed */
        c->seed_fixed = false;
        return true;
    }
    if (*value < '0' || *value > '9' || *end || errno) {
        ctl_notice(c, true, "seed needs a whole number from 0 to %" PRIu64 ", or \"random\"", UINT64_MAX);
        return false;
    }
    ctl_fix_seed(c, seed);
    return true;
}

static bool set_number(struct pp_controller *c, const struct ctl_param *p, const char *value)
{
    double v, min, max;
    pp_options_bounds(p->name, &min, &max);
    if (pp_options_number(value, &v) && ctl_param_put(c, p, v))
        return true;
    ctl_notice(c, true, "%s needs %s from %.16g to %.16g%s", p->name,
               p->kind == CTL_FLOAT || p->kind == CTL_DRAFT_P_MIN ? "a number" : "a whole number", min, max,
               pp_options_point(value));
    return false;
}

/* Names of parameters in other programs, or of our long options. */
static const struct { const char *alias, *name; } other_names[] = {
    {"temperature", "temp"}, {"repetition-penalty", "repeat-penalty"}, {"predict", "n"}, {"n-predict", "n"},
    {"num-predict", "n"},    {"max-tokens", "n"},                     {"max-new-tokens", "n"},
};

static const struct ctl_param *param_by_other_name(const char *word)
{
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (pp_casecmp(other_names[i].alias, word) == 0)
            return ctl_param_find(other_names[i].name);
    return NULL;
}

/* Finds a parameter by its name, by its name in other programs ("top_k", "temperature"), or by an unambiguous prefix
 * of at least two letters. NULL, with a notice, if there is none. */
static const struct ctl_param *find_param(struct pp_controller *c, const char *name)
{
    const struct ctl_param *found = NULL, *other = NULL;
    struct pp_near near = {.wanted = name};
    char word[64];
    size_t n = 0;
    for (; name[n] && n < sizeof word - 1; n++)
        word[n] = name[n] == '_' ? '-' : name[n];
    word[n] = 0;
    const struct ctl_param *p = ctl_param_find(word);
    if (!p)
        p = param_by_other_name(word);
    for (size_t i = 0; !p && i < ctl_n_params; i++) {
        const char *known = ctl_params[i].name;
        pp_near_try(&near, known);
        if (n < 2 || pp_ncasecmp(known, word, n) != 0)
            continue;
        other = found;
        found = &ctl_params[i];
    }
    if (p || (found && !other))
        return p ? p : found;
    const char *option = pp_casecmp(word, "num-ctx") == 0 ? "ctx-size" : word;
    if (other)
        ctl_notice(c, true, "\"%s\" could be %s or %s; type more of the name", name, other->name, found->name);
    else if (option[0] && option[1] && *pp_options_about(option))
        ctl_notice(c, true, "%s can only be set at start (--%s) or in pippin.conf; /set lists what can be changed "
                            "here", option, option);
    else if (near.best[0])
        ctl_notice(c, true, "there is no parameter \"%s\"; did you mean \"%s\"?", name, near.best);
    else
        ctl_notice(c, true, "there is no parameter \"%s\"; /set lists them", name);
    return NULL;
}

bool pp_controller_set_param(struct pp_controller *c, const char *name, const char *value)
{
    const struct ctl_param *p = find_param(c, name);
    if (!p || !(p->kind == CTL_SEED ? set_seed(c, value) : set_number(c, p, value)))
        return false;
    char shown[64];
    show_param(c, p, shown, sizeof shown);
    ctl_update_session(c, UPDATE_CHOICES);
    ctl_notice(c, false, "%s is now %s", p->name, shown);
    return true;
}

bool ctl_notify_param(struct pp_controller *c, const char *name)
{
    const struct ctl_param *p = find_param(c, name);
    char shown[64];
    if (!p)
        return false;
    double min, max;
    show_param(c, p, shown, sizeof shown);
    pp_options_bounds(p->name, &min, &max);
    if (p->kind == CTL_SEED)
        ctl_notice(c, false, "seed is %s; /set seed takes a whole number, or \"random\"", shown);
    else
        ctl_notice(c, false, "%s is %s; /set %s takes a number from %.15g to %.15g", p->name, shown, p->name, min, max);
    return true;
}

const struct pp_named *pp_controller_params(const struct pp_controller *c, size_t *n)
{
    *n = c->params.n;
    return c->params.items;
}

static const char *const drafters[PP_DRAFTERS] = {"auto", "model", "lookup", "off"};

const char *pp_drafter_name(enum pp_drafter d) { return drafters[d]; }

int pp_drafter_by_name(const char *name)
{
    for (int i = 0; i < PP_DRAFTERS; i++)
        if (pp_casecmp(drafters[i], name) == 0)
            return i;
    return pp_casecmp(name, "on") == 0 ? PP_DRAFTER_AUTO : -1;
}

bool pp_controller_set_drafter(struct pp_controller *c, enum pp_drafter d)
{
    const struct pp_loaded *m = &c->status.model;
    if (d == PP_DRAFTER_MODEL && m->name[0] && !m->draft_name[0]) {
        ctl_notice(c, true, "there is no draft model%s%s; F6 lists the models found",
                   m->draft_reason[0] ? ": " : "", m->draft_reason);
        return false;
    }
    static const char *const texts[PP_DRAFTERS] = {"drafts come from the draft model and from lookup, where that is "
                                                   "faster",
                                                   "drafts come from the draft model, where that is faster",
                                                   "drafts come from lookup, where that is faster", "speculative "
                                                                                                    "decoding is off"};
    c->drafter = d;
    ctl_update_session(c, UPDATE_CHOICES);
    ctl_notice(c, false, "%s", texts[d]);
    return true;
}

/* --- templates and personas ------------------------------------------------------------------------------- */

void ctl_add_named(struct named_list *l, const char *name, const char *detail)
{
    if (pp_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items) != 0)
        return; /* the list is only shorter then */
    struct pp_named *e = &l->items[l->n++];
    *e = (struct pp_named){0};
    pp_utf8_print(e->name, sizeof e->name, "%s", name);
    pp_utf8_print(e->detail, sizeof e->detail, "%s", detail);
}

void ctl_add_template(struct named_list *l, const char *name, const char *detail)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->items[i].name, name) == 0)
            return;
    ctl_add_named(l, name, detail);
}

void ctl_name_own_template(struct pp_controller *c, const struct pp_loaded *l)
{
    struct pp_named *own = c->templates.n ? &c->templates.items[0] : NULL;
    if (own && l->has_template)
        snprintf(own->detail, sizeof own->detail, "the model's own");
    else if (own)
        snprintf(own->detail, sizeof own->detail, "the model has none: %s", l->instead);
}

/* The value that is stored for an entry: "" for the model's own template, the path of one given on the command line,
 * otherwise its name. */
static const char *template_ref(const struct pp_controller *c, size_t i)
{
    const struct pp_named *e = &c->templates.items[i];
    return i == 0 ? "" : e->detail[0] == '/' ? e->detail : e->name;
}

const struct pp_named *pp_controller_templates(const struct pp_controller *c, size_t *n)
{
    *n = c->templates.n;
    return c->templates.items;
}

static void on_template(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    if (job->code != PP_OK) {
        ctl_notice(c, true, "%s", job->err.text);
    } else if (j->serial == c->epoch && ctl_set_string(c, &c->session.template_name, j->session.template_name)) {
        pp_free(c->template_source);
        c->template_source = j->text;
        j->text = NULL;
        ctl_update_session(c, UPDATE_CHOICES);
        const char *name = c->session.template_name, *slash = strrchr(name, '/');
        ctl_notice(c, false, "chat template from the next answer on: %s",
                   slash ? slash + 1 : *name ? name : "the model's own");
    }
    ctl_job_free(job);
}

void pp_controller_set_template(struct pp_controller *c, size_t i)
{
    if (i >= c->templates.n)
        return;
    struct ctl_job *j = ctl_job_new(c, ctl_run_template, on_template);
    if (!j)
        return;
    j->serial = c->epoch;
    if (ctl_set_string(c, &j->session.template_name, template_ref(c, i)))
        ctl_job_post(c, j);
    else
        ctl_job_free(&j->job);
}

const struct pp_named *pp_controller_personas(const struct pp_controller *c, size_t *n)
{
    *n = c->persona_names.n;
    return c->persona_names.items;
}

void pp_controller_set_persona(struct pp_controller *c, size_t i)
{
    if (i >= c->personas.n || !ctl_set_string(c, &c->session.system, c->personas.items[i].system))
        return;
    snprintf(c->persona, sizeof c->persona, "%s", i ? c->personas.items[i].name : "");
    ctl_update_session(c, UPDATE_CHOICES);
    ctl_notice(c, false, "persona from the next answer on: %s", c->personas.items[i].name);
}

/* In: key (the name), text (the system prompt). */
static void run_save_persona(struct pp_job *job, struct pp_store *st)
{
    const struct ctl_job *j = (const struct ctl_job *)job;
    (void)st;
    job->code = pp_persona_save(j->paths->config, j->key, j->text, &job->err);
}

static void on_persona_saved(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    const struct ctl_job *j = (const struct ctl_job *)job;
    if (!job->code)
        job->code = pp_personas_add(&c->personas, j->key, j->text, &job->err);
    if (job->code) {
        ctl_notice(c, true, "the persona was not saved: %s", job->err.text);
    } else {
        if (strcmp(c->session.system, j->text) == 0) {
            snprintf(c->persona, sizeof c->persona, "%s", j->key);
            ctl_update_session(c, UPDATE_CHOICES);
        }
        ctl_mark_current(c);
        ctl_notice(c, false, "/persona %s chooses this system prompt from now on, in any conversation; it is stored in "
                             "%s/personas", j->key, c->paths->config);
    }
    ctl_job_free(job);
}

bool pp_controller_save_persona(struct pp_controller *c, const char *name)
{
    const char *system = c->session.system;
    const struct pp_persona *same = pp_personas_named(&c->personas, name);
    if (!*system) {
        ctl_notice(c, true, "there is no system prompt to save; /system TEXT sets one");
        return false;
    }
    if (!pp_persona_name_valid(name)) {
        ctl_notice(c, true, "the name of a persona must have 1 to %d bytes, without / and without a dot in front, and "
                            "not be \"none\"", PP_PERSONA_NAME);
        return false;
    }
    if (strlen(system) > PP_PERSONA_TEXT) {
        ctl_notice(c, true, "the system prompt is too long for a persona: at most %d KB", PP_PERSONA_TEXT >> 10);
        return false;
    }
    struct ctl_job *j = ctl_job_new(c, run_save_persona, on_persona_saved);
    if (!j)
        return false;
    j->key = pp_strdup(same ? same->name : name); /* names that differ only in case are the same */
    j->text = pp_strdup(system);
    if (j->key && j->text) {
        ctl_job_post(c, j);
        return true;
    }
    ctl_notice(c, true, "out of memory");
    ctl_job_free(&j->job);
    return false;
}

bool pp_controller_set_system(struct pp_controller *c, const char *text)
{
    if (!ctl_may_store(c, text) || !ctl_set_string(c, &c->session.system, text))
        return false;
    c->persona[0] = 0;
    ctl_update_session(c, UPDATE_CHOICES);
    return true;
}

/* --- lists and status ------------------------------------------------------------------------------------- */

static void list_personas(struct pp_controller *c)
{
    c->persona_names.n = 0;
    for (size_t i = 0; i < c->personas.n; i++) {
        ctl_add_named(&c->persona_names, c->personas.items[i].name,
                  *c->personas.items[i].system ? c->personas.items[i].system : "no system prompt");
        if (c->persona_names.n)
            c->persona_names.items[c->persona_names.n - 1].current =
                c->persona[0] ? strcmp(c->persona, c->personas.items[i].name) == 0 : i == 0 && !*c->session.system;
    }
}

static void list_params(struct pp_controller *c)
{
    c->params.n = 0;
    for (size_t i = 0; i < ctl_n_params; i++) {
        char value[64];
        show_param(c, &ctl_params[i], value, sizeof value);
        /* none is current, as they are not alternatives to each other */
        ctl_add_named(&c->params, ctl_params[i].name, value);
    }
}

void ctl_mark_current(struct pp_controller *c)
{
    const char *name = c->session.template_name;
    list_personas(c);
    list_params(c);
    struct pp_adapter_mix now = ctl_set_now(c);
    pp_adapter_mix_label(&now, c->adapters_line, sizeof c->adapters_line);
    ctl_presets_mark(c);
    for (size_t i = 0; i < c->templates.n; i++)
        c->templates.items[i].current = strcmp(template_ref(c, i), name) == 0;
    c->status.adapters = c->adapters_line;
    c->status.persona = c->persona;
    c->status.template_name = pp_base_name(name);
    c->status.title = c->session.title;
    c->status.session_key = c->session.id && !c->temporary ? c->session.key : "";
    c->status.temporary = c->temporary;
    c->status.unwanted = c->temporary && c->no_disk && !c->o->temporary;
    c->status.drafter = c->drafter;
    ctl_dirty(c, PP_DIRTY_STATUS | PP_DIRTY_LISTS);
}

/* One step of a search by name: an exact match wins, then a unique prefix. found: the match so far, -1 for none, -2
 * for several. */
int ctl_better(int found, size_t i, const char *name, const char *word, bool *exact)
{
    if (!*exact && pp_casecmp(name, word) == 0) {
        *exact = true;
        return (int)i;
    }
    if (*exact || pp_ncasecmp(name, word, strlen(word)) != 0)
        return found;
    return found == -1 ? (int)i : -2;
}

int ctl_find_named(const struct named_list *l, const char *word)
{
    int found = -1;
    bool exact = false;
    for (size_t i = 0; *word && i < l->n; i++)
        found = ctl_better(found, i, l->items[i].name, word, &exact);
    return found < 0 ? -1 : found;
}

/* --- at startup ------------------------------------------------------------------------------------------- */

static void on_scanned(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    c->n_scans--;
    ctl_adapters_found(c, j);
    if (j->id == c->preset_changes && job->code == PP_OK)
        ctl_presets_found(c, j);
    else if (j->id != c->preset_changes)
        ctl_scan(c, j->flag); /* the user has changed presets while they were being read */
    for (size_t i = 0; i < j->templates.n; i++)
        ctl_add_template(&c->templates, j->templates.items[i].name, j->templates.items[i].detail);
    if (job->code != PP_OK)
        ctl_notice(c, true, "%s", job->err.text);
    if (j->too_many && !j->flag)
        ctl_notify_more_adapters(c);
    ctl_mark_current(c);
    if (j->flag)
        pp_controller_inspect_adapters(c);
    ctl_job_free(job);
}

void pp_controller_rescan(struct pp_controller *c)
{
    pp_controller_inspect_adapters(c);
    if (!c->n_scans && c->state != PP_STATE_LOADING && c->state != PP_STATE_CLOSING)
        ctl_scan(c, true);
}

bool pp_controller_adapters_pending(const struct pp_controller *c)
{
    return c->n_scans > 0 || c->inspecting;
}

void ctl_scan(struct pp_controller *c, bool again)
{
    struct ctl_job *j = ctl_job_new(c, ctl_run_scan, on_scanned);
    if (!j)
        return;
    j->flag = again;
    j->id = c->preset_changes;
    snprintf(j->model, sizeof j->model, "%s", c->status.model.path);
    j->job.of_disk = true;
    c->n_scans++;
    ctl_job_post(c, j);
}

/* Whether an option applies to the first conversation: a resumed one has choices of its own, which only options on
 * the command line override, not those of pippin.conf. */
static bool counts(const struct pp_controller *c, const char *option)
{
    return !c->session.id || pp_options_given(c->o, option);
}

static void add_options_adapters(struct pp_controller *c)
{
    const bool count = counts(c, "lora") || pp_options_given(c->o, "lora-scaled") || !*c->session.adapters;
    char real[PATH_MAX];
    struct pp_error err;
    for (int i = 0; i < c->o->n_lora; i++) {
        /* or a name that does not exist; whether the path leads to an adapter is for the worker to say */
        const char *path = c->o->lora[i].path;
        if (!strchr(path, '/') && pp_adapter_check(c->paths, c->o->model, path, &err) != PP_OK) {
            ctl_notice(c, true, "%s", err.text);
            continue;
        }
        struct pp_adapter_entry *a = ctl_adapter_add(&c->adapters, pp_absolute_path(path, real) ? real : path);
        if (a && count) {
            a->on = true;
            a->scale = pp_adapter_strength(c->o->lora[i].scale);
            if (a->scale != c->o->lora[i].scale)
                ctl_notice(c, true, "%s is on at scale %g, not %g: in the chat, scales go from -%d to %d", a->name,
                           (double)a->scale, (double)c->o->lora[i].scale, PP_ADAPTER_MAX_STRENGTH,
                            PP_ADAPTER_MAX_STRENGTH);
        }
    }
}

static enum pp_code use_template_file(struct pp_controller *c, struct pp_error *err)
{
    char real[PATH_MAX], *source = NULL;
    const char *path = c->o->chat_template_file;
    struct pp_template *t = NULL;
    size_t size;
    enum pp_code code = pp_read_file(path, MAX_TEMPLATE_FILE, &source, &size, err);
    if (!code)
        code = pp_template_parse(source, size, path, &t, err);
    if (!code)
        code = pp_template_check(t, path, err);
    pp_template_free(t);
    if (code) {
        pp_free(source);
        return code;
    }
    if (!realpath(path, real))
        snprintf(real, sizeof real, "%s", path);
    pp_free(c->template_source);
    c->template_source = source;
    ctl_add_template(&c->templates, pp_base_name(real), real);
    return ctl_set_string(c, &c->session.template_name, real) ? PP_OK : pp_fail_nomem(err, "the chat template");
}

/* Applies the sampling parameters of the command line. Those of pippin.conf were applied before, or a resumed
 * conversation has its own. */
static void apply_given_params(struct pp_controller *c)
{
    for (size_t i = 0; i < ctl_n_params; i++)
        if ((ctl_params[i].kind == CTL_FLOAT || ctl_params[i].kind == CTL_INT) &&
            pp_options_given(c->o, ctl_params[i].name))
            ctl_param_put(c, &ctl_params[i], ctl_param_get(c, &c->o->sampling, &ctl_params[i]));
    if (pp_options_given(c->o, "seed") && c->o->seed_given) {
        c->sampling.seed = c->o->sampling.seed;
        c->seed_fixed = true;
    }
    if (pp_options_given(c->o, "predict"))
        c->max_tokens = c->o->n_predict;
    if (pp_options_given(c->o, "draft-max") && c->o->draft_max > 0)
        c->draft_max = c->o->draft_max;
    if (pp_options_given(c->o, "draft-p-min"))
        c->draft_p_min = c->o->draft_p_min;
}

static enum pp_drafter drafter_wanted(const struct pp_options *o)
{
    int who = o->drafter ? pp_drafter_by_name(o->drafter) : PP_DRAFTER_AUTO;
    return o->no_draft ? PP_DRAFTER_OFF : who < 0 ? PP_DRAFTER_AUTO : (enum pp_drafter)who;
}

enum pp_code ctl_apply_options(struct pp_controller *c, struct pp_error *err)
{
    add_options_adapters(c);
    apply_given_params(c);
    if (*c->o->model && (counts(c, "model") || !*c->session.model) &&
        !ctl_set_model(c, &c->session.model, c->o->model))
        return pp_fail_nomem(err, "the conversation");
    if (c->o->system && counts(c, "system")) {
        if (!ctl_set_string(c, &c->session.system, c->o->system))
            return pp_fail_nomem(err, "the system prompt");
        snprintf(c->persona, sizeof c->persona, "%s", c->o->persona ? c->o->persona : "");
    }
    if (pp_options_given(c->o, "no-draft") || pp_options_given(c->o, "use-draft") ||
        pp_options_given(c->o, "model-draft") || pp_options_given(c->o, "drafter"))
        c->drafter = drafter_wanted(c->o);
    if (pp_options_given(c->o, "overflow"))
        c->overflow = ctl_default_overflow(c);
    if (pp_options_given(c->o, "thinking"))
        c->thinking = ctl_default_thinking(c);
    const bool own = !counts(c, "chat-template-file") && *c->session.template_name;
    return c->o->chat_template_file && !own ? use_template_file(c, err) : PP_OK;
}

void ctl_reset_params(struct pp_controller *c)
{
    c->sampling = c->o->sampling;
    c->seed_fixed = c->o->seed_given;
    c->max_tokens = c->o->n_predict;
    c->draft_max = c->o->draft_max > 0 ? c->o->draft_max : PP_DRAFT_MAX_DEFAULT;
    c->draft_p_min = c->o->draft_p_min;
    c->drafter = drafter_wanted(c->o);
    c->overflow = ctl_default_overflow(c);
    c->thinking = ctl_default_thinking(c);
    c->persona[0] = 0;
}

enum pp_code ctl_choices_init(struct pp_controller *c, struct pp_error *err)
{
    const char *name;
    ctl_reset_params(c);
    ctl_add_template(&c->templates, "model", "the model's own");
    for (size_t i = 0; (name = pp_template_builtin_name(i)); i++)
        ctl_add_template(&c->templates, name, "built in");
    return pp_personas_all(&c->personas, c->o->config, err);
}

void ctl_choices_free(struct pp_controller *c)
{
    pp_personas_free(&c->personas);
    pp_free(c->adapters.items);
    pp_free(c->drafters.items);
    pp_free(c->models.items);
    ctl_presets_free(c);
    pp_free(c->templates.items);
    pp_free(c->persona_names.items);
    pp_free(c->params.items);
}
