/* controller_presets.c - named sets of adapters, shared by all conversations. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "src/controller_int.h"

const struct pp_named *pp_controller_presets(const struct pp_controller *c, size_t *n)
{
    *n = c->presets.n;
    return c->presets.items;
}

static int find(const struct pp_controller *c, const char *name)
{
    for (size_t i = 0; i < c->presets.n; i++)
        if (pp_casecmp(c->presets.items[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* Adds a preset, or replaces that of the name. Presets are sorted by name without regard to case. */
static bool add(struct pp_controller *c, const char *name, const struct pp_adapter_mix *set, bool stored)
{
    int at = find(c, name);
    char detail[sizeof c->presets.items->detail];
    pp_adapter_mix_label(set, detail, sizeof detail);
    if (at < 0) {
        size_t n = c->presets.n, i = n;
        if (pp_grow(&c->preset_sets, &c->preset_cap, n + 1, sizeof *c->preset_sets) != 0)
            return false;
        ctl_add_named(&c->presets, name, "");
        if (c->presets.n == n)
            return false;
        struct pp_named fresh = c->presets.items[n];
        for (; i > 0 && pp_casecmp(c->presets.items[i - 1].name, name) > 0; i--) {
            c->presets.items[i] = c->presets.items[i - 1];
            c->preset_sets[i] = c->preset_sets[i - 1];
        }
        c->presets.items[i] = fresh;
        at = (int)i;
    }
    snprintf(c->presets.items[at].name, sizeof c->presets.items[at].name, "%s", name);
    snprintf(c->presets.items[at].detail, sizeof c->presets.items[at].detail, "%s", *detail ? detail : "no adapter");
    c->preset_sets[at] = (struct ctl_preset){*set, stored};
    return true;
}

static void take_out(struct pp_controller *c, size_t i)
{
    for (size_t k = i + 1; k < c->presets.n; k++) {
        c->presets.items[k - 1] = c->presets.items[k];
        c->preset_sets[k - 1] = c->preset_sets[k];
    }
    c->presets.n--;
    ctl_dirty(c, PP_DIRTY_LISTS);
}

static bool is_among(const struct ctl_job *found, const char *name)
{
    for (size_t i = 0; i < found->n_presets; i++)
        if (pp_casecmp(found->presets[i].name, name) == 0)
            return true;
    return false;
}

void ctl_presets_found(struct pp_controller *c, const struct ctl_job *found)
{
    for (size_t i = c->presets.n; i--;)
        if (c->preset_sets[i].stored && !is_among(found, c->presets.items[i].name))
            take_out(c, i);
    for (size_t i = 0; i < found->n_presets; i++) {
        struct pp_adapter_mix set;
        pp_adapter_mix_read(found->presets[i].adapters, &set);
        add(c, found->presets[i].name, &set, true);
    }
}

void ctl_preset_stored(struct pp_controller *c, const char *name)
{
    const int i = find(c, name);
    if (i >= 0)
        c->preset_sets[i].stored = true;
}

void ctl_presets_mark(struct pp_controller *c)
{
    struct pp_adapter_mix now = ctl_set_now(c);
    for (size_t i = 0; i < c->presets.n; i++)
        c->presets.items[i].current = pp_adapter_mix_equal(&c->preset_sets[i].set, &now);
}

void ctl_presets_free(struct pp_controller *c)
{
    pp_free(c->presets.items);
    pp_free(c->preset_sets);
}

bool pp_controller_use_preset(struct pp_controller *c, size_t i)
{
    if (i >= c->presets.n || !ctl_set_allowed(c, &c->preset_sets[i].set))
        return false;
    if (!ctl_set_put(c, &c->preset_sets[i].set))
        ctl_notice(c, true, "out of memory");
    else
        ctl_notice(c, false, "%s: %s", c->presets.items[i].name, c->presets.items[i].detail);
    ctl_update_session(c, UPDATE_CHOICES);
    ctl_mark_current(c);
    ctl_inspect_set(c);
    return true;
}

bool pp_controller_save_preset(struct pp_controller *c, const char *name)
{
    struct pp_adapter_mix now = ctl_set_now(c);
    char *json;
    if (!*name || strlen(name) >= sizeof c->presets.items->name || strpbrk(name, " \t+:/")) {
        ctl_notice(c, true, "the name of a preset must be one word of at most %d bytes, without + : and /",
                   (int)sizeof c->presets.items->name - 1);
        return false;
    }
    if (pp_casecmp(name, "none") == 0 || pp_casecmp(name, "off") == 0) {
        ctl_notice(c, true, "\"%s\" means no adapter; choose another name", name);
        return false;
    }
    if (!add(c, name, &now, false) || !(json = pp_adapter_mix_json(&now))) {
        ctl_notice(c, true, "out of memory");
        return false;
    }
    c->preset_changes++;
    ctl_store_words(c, ctl_run_preset, name, json, false);
    pp_free(json);
    ctl_mark_current(c);
    ctl_notice(c, false, "preset %s is now %s; /lora preset %s switches to it", name,
               now.n ? c->adapters_line : "no adapter",
               name);
    return true;
}

void pp_controller_drop_preset(struct pp_controller *c, const char *name)
{
    const int at = find(c, name);
    if (at < 0)
        return;
    c->preset_changes++;
    ctl_store_words(c, ctl_run_preset, c->presets.items[at].name, NULL, false);
    take_out(c, (size_t)at);
}
