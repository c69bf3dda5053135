/* controller_adapters.c - adapters: the list of them, which are on, and the sets that several answers to one
 * question are written with. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "src/controller_int.h"
#include "src/near.h"


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
        if (strcmp(path, pp_absolute_path(c->o->lora[i].path, real) ? real : c->o->lora[i].path) == 0)
            return true;
    return false;
}

/* Sorts the entries that are on by their order in the set; the others keep their indices. */
static void put_in_order(struct adapter_list *l, const struct pp_adapter_mix *s)
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

/* Copies what is known of an adapter. If its files have changed, whether it fits is unknown again. */
static void know_again(struct pp_adapter_entry *a, const struct pp_adapter_entry *old)
{
    const uint64_t stamp = a->stamp ? a->stamp : ctl_adapter_stamp(old->path);
    *a = *old;
    if (stamp != old->stamp)
        a->fit = PP_FIT_UNKNOWN;
}

/* Moves the entries that were in the list before to the front, in their old order. */
static void old_ones_first(struct adapter_list *l, const struct adapter_list *old)
{
    size_t place = 0;
    for (size_t i = 0; i < old->n; i++) {
        const struct pp_adapter_entry *a = by_path(l, old->items[i].path);
        if (!a)
            continue;
        const struct pp_adapter_entry moved = *a;
        memmove(&l->items[place + 1], &l->items[place], (size_t)(a - &l->items[place]) * sizeof *a);
        l->items[place++] = moved;
    }
}

/* Replaces the list by what a scan has found. Adapters that are on or were given as options stay in it, and what was
 * known of an adapter is kept. */
void ctl_adapters_found(struct pp_controller *c, struct ctl_job *found)
{
    struct pp_adapter_mix now = ctl_set_now(c);
    for (size_t i = 0; i < c->adapters.n; i++) {
        const struct pp_adapter_entry *old = &c->adapters.items[i];
        bool keep = old->on || is_option(c, old->path);
        struct pp_adapter_entry *a = keep ? ctl_adapter_add(&found->adapters, old->path)
                                          : by_path(&found->adapters, old->path);
        if (a)
            know_again(a, old);
    }
    if (found->flag)
        old_ones_first(&found->adapters, &c->adapters);
    for (size_t i = 0; i < found->n_notes; i++) {
        struct pp_adapter_entry *a = by_path(&found->adapters, found->notes[i].path);
        /* the user may have changed the note since it was read */
        if (!a || (found->flag && by_path(&c->adapters, a->path)))
            continue;
        snprintf(a->note, sizeof a->note, "%s", found->notes[i].note);
        a->added = found->notes[i].added;
    }
    struct adapter_list t = c->adapters;
    c->adapters = found->adapters;
    found->adapters = t;
    put_in_order(&c->adapters, &now);
}

int ctl_find_adapter(const struct pp_controller *c, const char *word)
{
    int found = -1;
    bool exact = false;
    for (size_t i = 0; *word && i < c->adapters.n; i++)
        if (strcmp(c->adapters.items[i].path, word) == 0)
            return (int)i;
    for (size_t i = 0; *word && i < c->adapters.n; i++)
        found = ctl_better(found, i, c->adapters.items[i].name, word, &exact);
    return found < 0 ? -1 : found;
}

/* --- inspecting adapters ---------------------------------------------------------------------------------- */

static bool to_be_compared(const struct pp_controller *c, const struct pp_adapter_entry *a)
{
    for (int i = 0; c->to_compare && i < c->to_compare->n; i++)
        for (int k = 0; k < c->to_compare->sets[i].n; k++)
            if (strcmp(c->to_compare->sets[i].item[k].path, a->path) == 0)
                return true;
    return false;
}

/* Asks the worker about one adapter at a time, so that an answer under way is never held up by more than one. If the
 * request cannot be queued, the adapter stays unknown until the next look at the list. */
static void inspect_next(struct pp_controller *c)
{
    size_t i = 0;
    while (i < c->adapters.n && (c->adapters.items[i].fit != PP_FIT_UNKNOWN ||
                                 (!c->inspecting_all && !c->adapters.items[i].on &&
                                  !to_be_compared(c, &c->adapters.items[i]))))
        i++;
    c->inspecting = i < c->adapters.n && c->backend->ops->inspect(c->backend, c->adapters.items[i].path);
}

static void inspect(struct pp_controller *c, bool all)
{
    if (!c->backend->ops->inspect || !c->status.model.name[0] || c->state == PP_STATE_LOADING)
        return;
    c->inspecting_all = all || (c->inspecting && c->inspecting_all);
    if (!c->inspecting)
        inspect_next(c);
}

void pp_controller_inspect_adapters(struct pp_controller *c)
{
    inspect(c, true);
}

void ctl_inspect_set(struct pp_controller *c)
{
    if (ctl_set_now(c).n > 1)
        inspect(c, false);
}

bool ctl_inspect_compared(struct pp_controller *c)
{
    for (size_t i = 0; i < c->adapters.n; i++)
        if (c->adapters.items[i].fit == PP_FIT_UNKNOWN && to_be_compared(c, &c->adapters.items[i])) {
            inspect(c, false);
            return c->inspecting;
        }
    return false;
}

void ctl_forget_fits(struct pp_controller *c)
{
    pp_free(c->to_compare);
    c->to_compare = NULL;
    for (size_t i = 0; i < c->adapters.n; i++) {
        c->adapters.items[i].fit = PP_FIT_UNKNOWN;
        c->adapters.items[i].decode_tokens = c->adapters.items[i].decode_ns = 0;
    }
    c->inspecting = false;
    c->plain_tokens = c->plain_ns = 0;
    c->prefill_tps = c->decode_tps = 0;
    memset(c->costs, 0, sizeof c->costs);
}

/* Drops the path that begins the message: it is shown next to the reason, whose space is limited. */
static void note_reason(struct pp_adapter_entry *a, const char *why)
{
    const size_t n = strlen(a->path);
    if (strncmp(why, "adapter ", 8) == 0 && strncmp(why + 8, a->path, n) == 0 && strncmp(why + 8 + n, ": ", 2) == 0)
        why += 8 + n + 2;
    pp_utf8_print(a->reason, sizeof a->reason, "%s", why);
}

static bool conflict(const struct pp_adapter_entry *a, const struct pp_adapter_entry *b)
{
    return a != b && a->fit == PP_FIT_YES && b->fit == PP_FIT_YES &&
           pp_adapter_places_conflict(&a->facts.places, &b->facts.places);
}

static size_t conflict_of(const struct pp_controller *c, const struct pp_adapter_entry *a)
{
    for (size_t i = 0; i < c->adapters.n; i++) {
        const struct pp_adapter_entry *b = &c->adapters.items[i];
        if (b->on && b->scale != 0 && conflict(a, b))
            return i;
    }
    return SIZE_MAX;
}

size_t pp_controller_adapter_conflict(const struct pp_controller *c, size_t i)
{
    return i < c->adapters.n && c->adapters.items[i].scale != 0 ? conflict_of(c, &c->adapters.items[i]) : SIZE_MAX;
}

static void notify_conflict(struct pp_controller *c, const struct pp_adapter_entry *a, const struct pp_adapter_entry *b)
{
    ctl_notice(c, true, "%s and %s cannot be on at once: both change the same matrix, and one is an IA3 of an input "
                        "that other matrices share", a->name, b->name);
}

bool ctl_set_conflicts(const struct pp_controller *c, const struct pp_adapter_mix *s,
                       const struct pp_adapter_entry *two[2])
{
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < i; k++) {
            two[0] = by_path(&c->adapters, s->item[i].path);
            two[1] = by_path(&c->adapters, s->item[k].path);
            if (two[0] && two[1] && s->item[i].scale != 0 && s->item[k].scale != 0 && conflict(two[0], two[1]))
                return true;
        }
    return false;
}

/* Whether it does not fit the model; says so by a notice. */
static bool misfits(struct pp_controller *c, struct pp_adapter_entry *a)
{
    if (a->fit == PP_FIT_NO && ctl_adapter_stamp(a->path) != a->stamp)
        a->fit = PP_FIT_UNKNOWN; /* its files have changed: ask again */
    if (a->fit == PP_FIT_NO)
        ctl_notice(c, true, "%s cannot be used with this model: %s", a->name, a->reason);
    return a->fit == PP_FIT_NO;
}

bool ctl_set_allowed(struct pp_controller *c, const struct pp_adapter_mix *s)
{
    const struct pp_adapter_entry *two[2];
    for (int i = 0; i < s->n; i++) {
        struct pp_adapter_entry *a = by_path(&c->adapters, s->item[i].path);
        if (a && misfits(c, a))
            return false;
    }
    if (!ctl_set_conflicts(c, s, two))
        return true;
    notify_conflict(c, two[0], two[1]);
    return false;
}

void ctl_on_adapter(struct pp_controller *c, const struct pp_event *e)
{
    struct pp_adapter_entry *a = by_path(&c->adapters, e->text);
    if (a) {
        a->fit = e->adapter ? PP_FIT_YES : PP_FIT_NO;
        a->stamp = ctl_adapter_stamp(a->path);
        if (e->adapter)
            a->facts = *e->adapter;
        else
            note_reason(a, e->err.text);
    }
    const size_t other = a && a->on && a->scale != 0 ? conflict_of(c, a) : SIZE_MAX;
    if (other != SIZE_MAX)
        notify_conflict(c, a, &c->adapters.items[other]);
    ctl_costs_retry(c);
    ctl_dirty(c, PP_DIRTY_LISTS);
    if (c->inspecting)
        inspect_next(c);
    if (c->to_compare && !ctl_inspect_compared(c))
        ctl_compare_now(c);
}

void ctl_note_speed(struct pp_controller *c, const struct ctl_running *r, const struct pp_event *e)
{
    const struct pp_stats *s = &e->stats;
    if (s->prefill_ns && s->prefill_tokens >= CTL_PREFILL_WORTH_MEASURING)
        c->prefill_tps = (float)((double)s->prefill_tokens * 1e9 / (double)s->prefill_ns);
    if (s->decode_ns && s->decode_tokens >= CTL_DECODE_WORTH_MEASURING)
        c->decode_tps = (float)((double)s->decode_tokens * 1e9 / (double)s->decode_ns);
    if (r->parallel) /* it shared the machine with another answer */
        return;
    if (!r->set.n) {
        c->plain_tokens += s->decode_tokens;
        c->plain_ns += s->decode_ns;
    }
    for (int i = 0; i < r->set.n; i++) {
        struct pp_adapter_entry *a = by_path(&c->adapters, r->set.item[i].path);
        if (!a)
            continue;
        a->decode_tokens += s->decode_tokens;
        a->decode_ns += s->decode_ns;
    }
}

float pp_controller_plain_speed(const struct pp_controller *c)
{
    return c->plain_ns ? (float)((double)c->plain_tokens * 1e9 / (double)c->plain_ns) : 0;
}

static void on_stored(struct pp_job *job, void *controller)
{
    const struct ctl_job *j = (const struct ctl_job *)job;
    if (job->code != PP_OK)
        ctl_notice(controller, true, "%s", job->err.text);
    else if (job->run == ctl_run_preset && j->text)
        ctl_preset_stored(controller, j->key);
    ctl_job_free(job);
}

void ctl_store_words(struct pp_controller *c, void (*run)(struct pp_job *, struct pp_store *), const char *key,
                     const char *text, bool flag)
{
    struct ctl_job *j = ctl_make_disk(c) ? ctl_job_new(c, run, on_stored) : NULL;
    if (!j)
        return;
    j->key = pp_strdup(key);
    j->text = text ? pp_strdup(text) : NULL;
    j->flag = flag;
    j->job.of_disk = true;
    if (j->key && (j->text || !text)) {
        ctl_job_post(c, j);
    } else {
        ctl_notice(c, true, "out of memory");
        ctl_job_free(&j->job);
    }
}

/* In: id (an answer), text (its adapters as JSON). io thread. */
static void run_relabel(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    job->code = pp_store_message_adapters(st, j->id, j->text, &job->err);
}

static void relabel(struct pp_controller *c, struct ctl_running *r)
{
    struct pp_branch *places[] = {&c->branch, &c->group};
    for (int i = 0; i < c->n_compared; i++)
        if (c->compared[i].message == r->message)
            c->compared[i].set = r->set;
    struct ctl_job *j = ctl_job_new(c, run_relabel, on_stored);
    if (!j)
        return;
    j->id = r->message;
    j->text = pp_adapter_mix_json(&r->set);
    for (int k = 0; k < 2 && j->text; k++)
        for (size_t i = 0; i < places[k]->n; i++)
            if (places[k]->items[i].msg.id == r->message) {
                pp_branch_set_adapters(&places[k]->items[i], j->text);
                pp_branch_touch(places[k], i);
            }
    ctl_dirty(c, PP_DIRTY_TRANSCRIPT);
    if (j->text)
        ctl_job_post(c, j);
    else
        ctl_job_free(&j->job);
}

void ctl_note_other_set(struct pp_controller *c, struct ctl_running *r, const char *begun)
{
    char now[sizeof ((struct pp_chat_message *)0)->adapters];
    pp_adapter_mix_label(&r->set, now, sizeof now);
    if (strcmp(now, begun) == 0)
        return;
    r->relabel = true;
    ctl_notice(c, false, "this answer continues %s%s; it was started %s%s", *now ? "under " : "without an adapter", now,
               *begun ? "under " : "without an adapter", begun);
}

void ctl_note_text(struct pp_controller *c, struct ctl_running *r)
{
    r->has_text = true;
    if (r->relabel)
        relabel(c, r);
    r->relabel = false;
}

void ctl_on_adapter_skipped(struct pp_controller *c, const struct pp_event *e)
{
    struct ctl_running *r = ctl_running_find(c, e->request);
    bool off = false;
    if (r) {
        pp_adapter_mix_remove(&r->set, e->text);
        if (r->text.len || r->reasoning.len)
            r->relabel = true; /* it has begun to be written with that adapter */
        else
            relabel(c, r);
    }
    for (size_t i = 0; r && r->session == c->session.id && i < c->adapters.n; i++) {
        struct pp_adapter_entry *a = &c->adapters.items[i];
        if (strcmp(a->path, e->text) != 0)
            continue;
        off = a->on;
        a->on = false;
        a->fit = PP_FIT_UNKNOWN; /* the file may come back */
    }
    if (off)
        ctl_update_session(c, UPDATE_CHOICES);
    ctl_notice(c, true, off ? "adapter switched off, answering without it: %s" : "answering without an adapter: %s",
               e->err.text);
}

void pp_controller_note_adapter(struct pp_controller *c, size_t i, const char *note)
{
    if (i >= c->adapters.n)
        return;
    struct pp_adapter_entry *a = &c->adapters.items[i];
    pp_utf8_print(a->note, sizeof a->note, "%s", note);
    ctl_store_words(c, ctl_run_note, a->path, a->note, a->added);
    ctl_dirty(c, PP_DIRTY_LISTS);
}

void ctl_notify_more_adapters(struct pp_controller *c)
{
    ctl_notice(c, true, "not all adapters are listed (at most %d from folders); /lora add FILE adds another",
               CTL_MAX_ADAPTERS);
}

static void on_added(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_job *j = (struct ctl_job *)job;
    if (job->code != PP_OK) {
        ctl_notice(c, true, "%s", job->err.text);
        pp_free(c->refused);
        c->refused = j->key;
        j->key = NULL;
    }
    const size_t before = c->adapters.n;
    for (size_t i = 0; i < j->adapters.n; i++) {
        struct pp_adapter_entry *a = ctl_adapter_add(&c->adapters, j->adapters.items[i].path);
        if (a)
            a->added = true;
    }
    if (job->code == PP_OK)
        ctl_notice(c, false,
                   c->adapters.n == before  ? "%s is in the list already"
                   : j->adapters.n == 1     ? "%s was added to the list"
                                            : "%s and the adapters next to it were added to the list",
                   j->adapters.items[0].name);
    if (j->too_many)
        ctl_notify_more_adapters(c);
    ctl_dirty(c, PP_DIRTY_LISTS);
    pp_controller_inspect_adapters(c);
    ctl_job_free(job);
}

bool pp_controller_add_adapter(struct pp_controller *c, const char *path)
{
    struct ctl_job *j = ctl_make_disk(c) ? ctl_job_new(c, ctl_run_add_adapter, on_added) : NULL;
    if (!j)
        return false;
    j->job.of_disk = true;
    if ((j->key = pp_strdup(path))) {
        ctl_job_post(c, j);
        return true;
    }
    ctl_notice(c, true, "out of memory");
    ctl_job_free(&j->job);
    return false;
}

char *pp_controller_take_refused(struct pp_controller *c)
{
    char *path = c->refused;
    c->refused = NULL;
    return path;
}

/* --- switching adapters ----------------------------------------------------------------------------------- */

static size_t n_others_on(const struct pp_controller *c, size_t i)
{
    size_t n = 0;
    for (size_t k = 0; k < c->adapters.n; k++)
        n += k != i && c->adapters.items[k].on;
    return n;
}

bool pp_controller_set_adapter(struct pp_controller *c, size_t i, bool on, float scale)
{
    if (i >= c->adapters.n)
        return false;
    struct pp_adapter_entry *a = &c->adapters.items[i];
    if (on && misfits(c, a))
        return false;
    if (on && n_others_on(c, i) >= PP_MAX_ADAPTERS) {
        ctl_notice(c, true, "at most %d adapters can be on at once; switch another one off first", PP_MAX_ADAPTERS);
        return false;
    }
    const bool acts = on && scale != 0, acted = a->on && a->scale != 0;
    const size_t other = acts && !acted ? conflict_of(c, a) : SIZE_MAX;
    if (other != SIZE_MAX) {
        notify_conflict(c, a, &c->adapters.items[other]);
        return false;
    }
    a->on = on;
    a->scale = pp_adapter_strength(scale);
    ctl_update_session(c, UPDATE_CHOICES);
    ctl_dirty(c, PP_DIRTY_LISTS);
    if (acts && !acted)
        ctl_inspect_set(c);
    return true;
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

struct pp_adapter_mix ctl_set_now(const struct pp_controller *c)
{
    struct pp_adapter_mix s = {0};
    for (size_t i = 0; i < c->adapters.n; i++)
        if (c->adapters.items[i].on)
            pp_adapter_mix_add(&s, c->adapters.items[i].path, c->adapters.items[i].scale);
    return s;
}

bool ctl_set_put(struct pp_controller *c, const struct pp_adapter_mix *s)
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

size_t ctl_set_choices(const struct pp_adapter_mix *s, struct pp_adapter_choice out[static PP_MAX_ADAPTERS])
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

/* --- comparing several sets ------------------------------------------------------------------------------- */

struct pp_adapter_mix ctl_set_of(const struct pp_controller *c, int64_t message)
{
    for (int i = 0; message && i < c->n_compared; i++)
        if (c->compared[i].message == message)
            return c->compared[i].set;
    return ctl_set_now(c);
}

void ctl_set_follow(struct pp_controller *c, int64_t message)
{
    struct pp_adapter_mix now = ctl_set_now(c), wanted = ctl_set_of(c, message);
    if (pp_adapter_mix_equal(&now, &wanted))
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
    for (size_t i = 0; i < c->presets.n; i++)
        pp_near_try(&near, c->presets.items[i].name);
    if (near.best[0])
        ctl_notice(c, true, "there is no adapter \"%s\"; did you mean \"%s\"?", word, near.best);
    else
        ctl_notice(c, true, "there is no adapter \"%s\"; /lora lists them", word);
    return false;
}

/* The length of the longest name or path of an adapter that `text` begins with, followed by a space, '+', ':' or the
 * end. Names may contain these characters themselves. 0: none. */
static size_t whole_name(const struct pp_controller *c, const char *text)
{
    size_t most = 0;
    for (size_t i = 0; i < c->adapters.n; i++) {
        const struct pp_adapter_entry *a = &c->adapters.items[i];
        const size_t n = strlen(a->name), m = strlen(a->path);
        if (n > most && pp_ncasecmp(a->name, text, n) == 0 && strchr(" \t+:", text[n]))
            most = n;
        if (m > most && strncmp(a->path, text, m) == 0 && strchr(" \t+:", text[m]))
            most = m;
    }
    return most;
}

/* Ends the text after n bytes, notes the character that was there, and returns what follows it. */
static char *cut(char *text, size_t n, char *was)
{
    *was = text[n];
    text[n] = 0;
    return *was ? text + n + 1 : text + n;
}

/* Reads NAME or NAME:STRENGTH from the beginning of *text, adds it to the set, and advances *text past it and a
 * following '+' (*more). False, with a notice, if it is neither. */
static bool add_by_name(struct pp_controller *c, char **text, struct pp_adapter_mix *set, bool *more)
{
    char *name = *text, *rest, end;
    size_t n = whole_name(c, name);
    if (!n) {
        n = strcspn(name, " \t+");
        for (size_t k = n; k > 0; k--)
            if (name[k - 1] == ':') {
                n = k - 1;
                break;
            }
    }
    rest = cut(name, n, &end);
    const int i = ctl_find_adapter(c, name);
    float scale = i >= 0 ? c->adapters.items[i].scale : 1;
    if (end == ':') {
        const char *number = rest;
        rest = cut(rest, strcspn(rest, " \t+"), &end);
        if (!pp_adapter_strength_read(number, &scale)) {
            ctl_notice(c, true, "\"%s\" is not a scale; give a number from -%d to %d", number, PP_ADAPTER_MAX_STRENGTH,
                       PP_ADAPTER_MAX_STRENGTH);
            return false;
        }
    }
    if (i < 0)
        return no_adapter(c, name);
    if (!pp_adapter_mix_add(set, c->adapters.items[i].path, scale)) {
        ctl_notice(c, true, "at most %d adapters can be on at once", PP_MAX_ADAPTERS);
        return false;
    }
    *more = end == '+';
    *text = rest;
    return true;
}

bool ctl_set_parse(struct pp_controller *c, char **text, struct pp_adapter_mix *set)
{
    char *word = *text, end;
    const size_t n = strcspn(word, " \t");
    *set = (struct pp_adapter_mix){0};
    char *rest = cut(word, n, &end);
    const int preset = ctl_find_named(&c->presets, word), adapter = ctl_find_adapter(c, word);
    const bool same = preset >= 0 && pp_casecmp(c->presets.items[preset].name, word) == 0,
               adapter_same = adapter >= 0 && pp_casecmp(c->adapters.items[adapter].name, word) == 0,
               none = pp_casecmp(word, "none") == 0 || pp_casecmp(word, "off") == 0;
    word[n] = end;
    if (none || (preset >= 0 && !adapter_same && (same || adapter < 0) && whole_name(c, word) <= n)) {
        if (!none)
            *set = c->preset_sets[preset].set;
        *text = rest;
        return true;
    }
    bool good = true;
    for (bool more = true; good && more;)
        good = add_by_name(c, text, set, &more);
    return good;
}
