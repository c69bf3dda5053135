/* controller_settings.c - converts choices to the JSON that is stored with a conversation, and back.
 *
 * adapters: those that are on, as in adapter_mix.h
 * settings: {"temp": 0.2, …, "seed": 7, "n": 200, "draft-max": 6, "draft": true, "drafter": "lookup",
 *           "overflow": "shift", "thinking": "off", "persona": "pirate"}: values that differ from the
 *           built-in default
 *           or from pippin.conf. "seed": null stands for a new seed each time. "draft" is always present.
 * params:   those of one answer: the same keys, complete, with the seed that was used */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/controller_int.h"
#include "src/json_numbers.h"

/* Prints and deletes o; the string is allocated with pp_malloc. */
static char *finish(cJSON *o, bool ok)
{
    char *json = ok && o ? cJSON_PrintUnformatted(o) : NULL;
    char *copy = json ? pp_strdup(json) : NULL;
    cJSON_free(json);
    cJSON_Delete(o);
    return copy;
}

/* Writes whole numbers with all their digits; cJSON would round a seed to 15. */
static bool add_number(cJSON *o, const char *name, double v)
{
    char digits[32];
    if (v != floor(v) || fabs(v) >= 0x1p63)
        return cJSON_AddNumberToObject(o, name, pp_json_short((float)v));
    snprintf(digits, sizeof digits, "%" PRId64, (int64_t)v);
    return cJSON_AddRawToObject(o, name, digits);
}

/* Seeds are written as integers, as a double holds only 53 of their 64 bits. */
static bool add_param(cJSON *o, const struct pp_controller *c, const struct pp_sampling *s, const struct ctl_param *p)
{
    char digits[32];
    if (p->kind != CTL_SEED)
        return add_number(o, p->name, ctl_param_get(c, s, p));
    snprintf(digits, sizeof digits, "%" PRIu64, s->seed);
    return cJSON_AddRawToObject(o, p->name, digits);
}

char *ctl_adapters_json(const struct pp_controller *c)
{
    struct pp_adapter_mix now = ctl_set_now(c);
    return pp_adapter_mix_json(&now);
}

/* Whether to store a parameter: it differs from the built-in default, or from what pippin.conf and the command line
 * say. In either case it must not change with pippin.conf later. */
static bool is_chosen(const struct pp_controller *c, const struct ctl_param *p)
{
    const struct pp_sampling standard = pp_sampling_default();
    const double v = ctl_param_get(c, &c->sampling, p);
    switch (p->kind) {
    case CTL_SEED:
        return c->seed_fixed || c->o->seed_given;
    case CTL_MAX_TOKENS:
        return v >= 0 || c->o->n_predict >= 0;
    case CTL_DRAFT_MAX:
        return v != PP_DRAFT_MAX_DEFAULT || (c->o->draft_max > 0 && c->o->draft_max != PP_DRAFT_MAX_DEFAULT);
    case CTL_DRAFT_P_MIN:
        return v > 0 || c->o->draft_p_min > 0;
    default:
        return v != ctl_param_get(c, &standard, p) || v != ctl_param_get(c, &c->o->sampling, p);
    }
}

/* The choices as JSON (pp_free); NULL: out of memory. */
static char *settings_json(const struct pp_controller *c)
{
    cJSON *o = cJSON_CreateObject();
    bool ok = o;
    for (size_t i = 0; ok && i < ctl_n_params; i++) {
        const struct ctl_param *p = &ctl_params[i];
        if (p->kind == CTL_SEED && !c->seed_fixed && is_chosen(c, p))
            ok = cJSON_AddNullToObject(o, p->name);
        else if (is_chosen(c, p))
            ok = add_param(o, c, &c->sampling, p);
    }
    if (ok)
        ok = cJSON_AddBoolToObject(o, "draft", c->drafter != PP_DRAFTER_OFF);
    if (ok && (c->drafter == PP_DRAFTER_MODEL || c->drafter == PP_DRAFTER_LOOKUP))
        ok = cJSON_AddStringToObject(o, "drafter", pp_drafter_name(c->drafter));
    if (ok && c->overflow != ctl_default_overflow(c))
        ok = cJSON_AddStringToObject(o, "overflow", pp_overflow_name(c->overflow));
    if (ok && c->thinking != ctl_default_thinking(c))
        ok = cJSON_AddStringToObject(o, "thinking", pp_thinking_name(c->thinking));
    if (ok && c->persona[0])
        ok = cJSON_AddStringToObject(o, "persona", c->persona);
    return finish(o, ok);
}

char *ctl_params_json(const struct pp_controller *c, uint64_t seed)
{
    struct pp_sampling used = c->sampling;
    used.seed = seed;
    cJSON *o = cJSON_CreateObject();
    bool ok = o;
    for (size_t i = 0; ok && i < ctl_n_params; i++)
        ok = add_param(o, c, &used, &ctl_params[i]);
    if (ok)
        ok = cJSON_AddBoolToObject(o, "draft", c->drafter != PP_DRAFTER_OFF);
    return finish(o, ok);
}

bool ctl_note_choices(struct pp_controller *c)
{
    char *adapters = ctl_adapters_json(c), *settings = settings_json(c);
    bool ok = adapters && settings && ctl_set_string(c, &c->session.adapters, adapters) &&
              ctl_set_string(c, &c->session.settings, settings);
    pp_free(adapters);
    pp_free(settings);
    return ok;
}

/* --- reading stored settings ------------------------------------------------------------------------------ */

static bool apply_adapters(struct pp_controller *c)
{
    struct pp_adapter_mix set;
    bool good = pp_adapter_mix_read(c->session.adapters, &set);
    if (set.limited)
        ctl_notice(c, true,
                   "this conversation used a larger adapter scale; in the chat, scales go from -%d to %d",
                   PP_ADAPTER_MAX_STRENGTH, PP_ADAPTER_MAX_STRENGTH);
    return ctl_set_put(c, &set) && good;
}

static bool apply_overflow(struct pp_controller *c, const cJSON *word)
{
    int how = cJSON_IsString(word) ? pp_overflow_by_name(word->valuestring) : -1;
    if (how >= 0)
        c->overflow = (enum pp_overflow)how;
    return how >= 0;
}

static bool apply_thinking(struct pp_controller *c, const cJSON *word)
{
    int t = cJSON_IsString(word) ? pp_thinking_by_name(word->valuestring) : -1;
    if (t >= 0)
        c->thinking = (enum pp_thinking)t;
    return t >= 0;
}

/* "draft" switches drafting on or off, "drafter" names the drafter; they may come in either order. */
static void apply_draft(struct pp_controller *c, const cJSON *value)
{
    int who = cJSON_IsString(value) ? pp_drafter_by_name(value->valuestring) : -1;
    if (cJSON_IsFalse(value))
        c->drafter = PP_DRAFTER_OFF;
    else if (cJSON_IsTrue(value) && c->drafter == PP_DRAFTER_OFF)
        c->drafter = PP_DRAFTER_AUTO;
    else if (who >= 0 && c->drafter != PP_DRAFTER_OFF)
        c->drafter = (enum pp_drafter)who;
}

static bool apply_param(struct pp_controller *c, const struct ctl_param *p, const cJSON *value)
{
    uint64_t seed;
    if (p->kind == CTL_SEED && cJSON_IsNull(value)) {
        c->seed_fixed = false;
        return true;
    }
    if (p->kind != CTL_SEED)
        return cJSON_IsNumber(value) && ctl_param_put(c, p, value->valuedouble);
    const bool good = pp_json_whole(value, &seed);
    if (good)
        ctl_fix_seed(c, seed);
    return good;
}

static bool apply_settings(struct pp_controller *c)
{
    const char *json = c->session.settings;
    cJSON *all = *json ? cJSON_Parse(json) : NULL;
    bool good = !*json || (cJSON_IsObject(all) && pp_json_keep_digits(all, json, strlen(json)));
    ctl_reset_params(c);
    for (const cJSON *o = cJSON_IsObject(all) ? all->child : NULL; o; o = o->next) {
        const struct ctl_param *p = ctl_param_find(o->string);
        if (p)
            good = apply_param(c, p, o) && good;
        else if (strcmp(o->string, "draft") == 0)
            apply_draft(c, o);
        else if (strcmp(o->string, "drafter") == 0)
            apply_draft(c, o);
        else if (strcmp(o->string, "overflow") == 0)
            good = apply_overflow(c, o) && good;
        else if (strcmp(o->string, "thinking") == 0)
            good = apply_thinking(c, o) && good;
        else if (strcmp(o->string, "persona") == 0 && cJSON_IsString(o))
            pp_utf8_print(c->persona, sizeof c->persona, "%s", o->valuestring);
        /* unknown keys come from a newer pippin and are ignored */
    }
    cJSON_Delete(all);
    return good;
}

void ctl_apply_session(struct pp_controller *c)
{
    bool adapters = apply_adapters(c), settings = apply_settings(c);
    if (!adapters || !settings)
        ctl_notice(c, true,
                   "some settings of this conversation cannot be read; the defaults are used");
    ctl_mark_current(c);
    ctl_dirty(c, PP_DIRTY_ALL);
}
