/* controller_adapters.c - adapters: which there are, which are on, and the sets that several answers to one question
 * are written under. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/mem.h"
#include "src/controller_int.h"
#include "src/near.h"

static const float MAX_SCALE = 2;

/* --- the list --------------------------------------------------------------------------------------------- */

const struct pp_adapter_entry *pp_controller_adapters(const struct pp_controller *c, size_t *n)
{
    *n = c->adapters.n;
    return c->adapters.items;
}

static struct pp_adapter_entry *by_path(const struct adapter_list *l, const char *path)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->items[i].path, path) == 0)
            return &l->items[i];
    return NULL;
}

struct pp_adapter_entry *ctl_adapter_add(struct adapter_list *l, const char *path)
{
    struct pp_adapter_entry *a = by_path(l, path);
    if (a || strlen(path) >= sizeof a->path || pp_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items) != 0)
        return a;
    a = &l->items[l->n++];
    *a = (struct pp_adapter_entry){.scale = 1};
    snprintf(a->path, sizeof a->path, "%s", path);
    pp_adapter_name(path, a->name, sizeof a->name);
    return a;
}

static bool is_option(const struct pp_controller *c, const char *path)
{
    char real[PATH_MAX];
    for (int i = 0; i < c->o->n_lora; i++)
        if (strcmp(path, realpath(c->o->lora[i].path, real) ? real : c->o->lora[i].path) == 0)
            return true;
    return false;
}

/* Those that are on take the order of the set among the places that they have. */
static void put_in_order(struct adapter_list *l, const struct pp_adapter_set *s)
{
    size_t place = 0;
    for (int k = 0; k < s->n; k++, place++) {
        struct pp_adapter_entry *a = by_path(l, s->item[k].path);
        while (place < l->n && !l->items[place].on)
            place++;
        if (!a || !a->on || place >= l->n)
            return;
        struct pp_adapter_entry other = l->items[place];
        l->items[place] = *a;
        *a = other;
    }
}

/* What is found replaces the list, but what is switched on stays in it. */
void ctl_adapters_found(struct pp_controller *c, struct adapter_list *found)
{
    struct pp_adapter_set now = ctl_set_now(c);
    for (size_t i = 0; i < c->adapters.n; i++) {
        const struct pp_adapter_entry *old = &c->adapters.items[i];
        struct pp_adapter_entry *a = old->on || is_option(c, old->path) ? ctl_adapter_add(found, old->path) : NULL;
        if (a) {
            a->on = old->on;
            a->scale = old->scale;
        }
    }
    struct adapter_list t = c->adapters;
    c->adapters = *found;
    *found = t;
    put_in_order(&c->adapters, &now);
}

int ctl_find_adapter(const struct pp_controller *c, const char *word)
{
    int found = -1;
    bool exact = false;
    for (size_t i = 0; *word && i < c->adapters.n; i++)
        found = ctl_better(found, i, c->adapters.items[i].name, word, &exact);
    return found < 0 ? -1 : found;
}

/* --- which are on ----------------------------------------------------------------------------------------- */

static size_t n_others_on(const struct pp_controller *c, size_t i)
{
    size_t n = 0;
    for (size_t k = 0; k < c->adapters.n; k++)
        n += k != i && c->adapters.items[k].on;
    return n;
}

void pp_controller_set_adapter(struct pp_controller *c, size_t i, bool on, float scale)
{
    if (i >= c->adapters.n)
        return;
    struct pp_adapter_entry *a = &c->adapters.items[i];
    if (on && n_others_on(c, i) >= PP_MAX_ADAPTERS) {
        ctl_notice(c, true, "%d adapters at a time are the limit; switch another one off first", PP_MAX_ADAPTERS);
        return;
    }
    a->on = on;
    a->scale = isfinite(scale) ? fminf(fmaxf(scale, -MAX_SCALE), MAX_SCALE) : 1;
    ctl_update_session(c, UPDATE_CHOICES);
    ctl_dirty(c, PP_DIRTY_LISTS);
}

size_t pp_controller_move_adapter(struct pp_controller *c, size_t i, int step)
{
    size_t to = i + (size_t)(step < 0 ? -1 : 1);
    if (i >= c->adapters.n || to >= c->adapters.n)
        return i;
    struct pp_adapter_entry a = c->adapters.items[i];
    c->adapters.items[i] = c->adapters.items[to];
    c->adapters.items[to] = a;
    ctl_update_session(c, UPDATE_CHOICES);
    ctl_dirty(c, PP_DIRTY_LISTS);
    return to;
}

struct pp_adapter_set ctl_set_now(const struct pp_controller *c)
{
    struct pp_adapter_set s = {0};
    for (size_t i = 0; i < c->adapters.n; i++)
        if (c->adapters.items[i].on)
            pp_adapter_set_add(&s, c->adapters.items[i].path, c->adapters.items[i].scale);
    return s;
}

bool ctl_set_put(struct pp_controller *c, const struct pp_adapter_set *s)
{
    bool whole = true;
    for (size_t i = 0; i < c->adapters.n; i++)
        c->adapters.items[i].on = false;
    for (int k = 0; k < s->n; k++) {
        struct pp_adapter_entry *a = ctl_adapter_add(&c->adapters, s->item[k].path);
        whole = whole && a;
        if (a) {
            a->on = true;
            a->scale = s->item[k].scale;
        }
    }
    put_in_order(&c->adapters, s);
    return whole;
}

size_t ctl_set_choices(const struct pp_adapter_set *s, struct pp_adapter_choice out[static PP_MAX_ADAPTERS])
{
    size_t n = 0;
    for (int i = 0; i < s->n; i++)
        if (s->item[i].scale != 0)
            out[n++] = (struct pp_adapter_choice){.path = s->item[i].path, .scale = s->item[i].scale};
    return n;
}

size_t ctl_active_adapters(const struct pp_controller *c, struct pp_adapter_choice out[static PP_MAX_ADAPTERS])
{
    size_t n = 0;
    for (size_t i = 0; i < c->adapters.n && n < PP_MAX_ADAPTERS; i++)
        if (c->adapters.items[i].on && c->adapters.items[i].scale != 0)
            out[n++] =
                (struct pp_adapter_choice){.path = c->adapters.items[i].path, .scale = c->adapters.items[i].scale};
    return n;
}

/* --- side by side ----------------------------------------------------------------------------------------- */

struct pp_adapter_set ctl_set_of(const struct pp_controller *c, int64_t message)
{
    for (int i = 0; message && i < c->n_compared; i++)
        if (c->compared[i].message == message)
            return c->compared[i].set;
    return ctl_set_now(c);
}

void ctl_set_follow(struct pp_controller *c, int64_t message)
{
    struct pp_adapter_set now = ctl_set_now(c), wanted = ctl_set_of(c, message);
    if (pp_adapter_set_equal(&now, &wanted))
        return;
    ctl_set_put(c, &wanted);
    ctl_update_session(c, UPDATE_CHOICES);
    ctl_mark_current(c);
}

static bool no_adapter(struct pp_controller *c, const char *word)
{
    struct pp_near near = {.wanted = word};
    for (size_t i = 0; i < c->adapters.n; i++)
        pp_near_try(&near, c->adapters.items[i].name);
    if (near.best[0])
        ctl_notice(c, true, "there is no adapter \"%s\"; did you mean \"%s\"?", word, near.best);
    else
        ctl_notice(c, true, "there is no adapter \"%s\"; F3 lists them", word);
    return false;
}

/* NAME, or NAME:STRENGTH */
static bool add_by_name(struct pp_controller *c, char *word, struct pp_adapter_set *set)
{
    int i = ctl_find_adapter(c, word);
    char *colon = i < 0 ? strrchr(word, ':') : NULL, *end;
    float scale = i >= 0 ? c->adapters.items[i].scale : 1;
    if (colon) {
        *colon = 0;
        i = ctl_find_adapter(c, word);
        scale = strtof(colon + 1, &end);
        if (end == colon + 1 || *end || !(scale >= -MAX_SCALE && scale <= MAX_SCALE)) {
            ctl_notice(c, true, "\"%s\" is no strength: a number from -2 to 2", colon + 1);
            return false;
        }
    }
    if (i < 0)
        return no_adapter(c, word);
    if (!pp_adapter_set_add(set, c->adapters.items[i].path, scale)) {
        ctl_notice(c, true, "%d adapters at a time are the limit", PP_MAX_ADAPTERS);
        return false;
    }
    return true;
}

bool ctl_set_parse(struct pp_controller *c, char *word, struct pp_adapter_set *set)
{
    *set = (struct pp_adapter_set){0};
    if (strcasecmp(word, "none") == 0 || strcasecmp(word, "off") == 0)
        return true;
    for (char *part = word, *plus; part; part = plus) {
        plus = strchr(part, '+');
        if (plus)
            *plus++ = 0;
        if (!add_by_name(c, part, set))
            return false;
    }
    return true;
}
