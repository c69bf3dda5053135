/* controller_cost.c - what a change of adapters would cost. Pages that were computed under one set are never read
 * under another, so the conversation is computed again unless pages of the new set are still in memory. The worker
 * knows; its reply is valid until the conversation or the set changes. Also asks the worker to restore a
 * conversation ahead of its next question. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "src/controller_int.h"

/* Below these many tokens a switch counts as free, if computing them takes no noticeable time: a partly filled page
 * may not be found again once another sequence has written on, and the last token is always computed. */
enum { PAGE = 64, FEW = 8 };
static const float NO_TIME = 0.1f; /* seconds */

static struct pp_adapter_mix set_after(const struct pp_controller *c, size_t i)
{
    struct pp_adapter_mix s = {0};
    for (size_t k = 0; k < c->adapters.n; k++)
        if (c->adapters.items[k].on != (k == i))
            pp_adapter_mix_add(&s, c->adapters.items[k].path, c->adapters.items[k].scale);
    return s;
}

/* The conversation as the model would see it now, as JSON (pp_free). NULL: out of memory. */
static char *messages_now(const struct pp_controller *c)
{
    const char *note;
    size_t from = pp_branch_context(&c->branch, c->branch.n, &note);
    char *system = pp_branch_system(c->session.system, note);
    char *messages = system ? pp_branch_json_from(&c->branch, from, c->branch.n, system, NULL, NULL) : NULL;
    pp_free(system);
    return messages;
}

static void request_cost(struct pp_controller *c, struct ctl_cost *cost)
{
    struct pp_adapter_choice adapters[PP_MAX_ADAPTERS];
    char *messages = messages_now(c);
    if (messages) {
        struct pp_generate_request r = {
            .request = cost->request = ++c->request,
            .messages_json = messages,
            .template_source = c->template_source,
            .thinking = c->thinking,
            .adapters = adapters,
            .n_adapters = (int)ctl_set_choices(&cost->set, adapters),
            .overflow = PP_OVERFLOW_SHIFT,
        };
        if (!c->backend->ops->cost(c->backend, &r))
            cost->request = 0; /* tried again when the cost is next wanted */
    }
    pp_free(messages);
}

void ctl_prepare(struct pp_controller *c)
{
    struct pp_adapter_choice adapters[PP_MAX_ADAPTERS];
    char *messages;
    ctl_inspect_set(c);
    if (!c->backend->ops->prepare || c->state != PP_STATE_IDLE || !c->session.id || !c->branch.n ||
        !(messages = messages_now(c)))
        return;
    struct pp_generate_request r = {
        .session_key = c->session.key,
        .messages_json = messages,
        .template_source = c->template_source,
        .thinking = c->thinking,
        .adapters = adapters,
        .n_adapters = (int)ctl_active_adapters(c, adapters),
        .overflow = c->overflow == PP_OVERFLOW_SLIDE ? PP_OVERFLOW_SLIDE : PP_OVERFLOW_SHIFT,
    };
    c->backend->ops->prepare(c->backend, &r);
    pp_free(messages);
}

/* A number of an answer's statistics, which may come from another program's database; 0: it is not there, or none. */
static double stored(const cJSON *stats, const char *name)
{
    const cJSON *item = pp_json_member(stats, name);
    return cJSON_IsNumber(item) && item->valuedouble > 0 && item->valuedouble < 1e9 ? item->valuedouble : 0;
}

/* Reads the speeds that are stored with an answer; false: too little was computed for any. */
static bool read_speed(const char *stats, struct ctl_speed *s)
{
    cJSON *o = stats && *stats ? cJSON_Parse(stats) : NULL;
    const double computed = stored(o, "prompt_tokens") - stored(o, "cached_tokens");
    s->prefill_tps = computed >= CTL_PREFILL_WORTH_MEASURING ? (float)stored(o, "prefill_tps") : 0;
    s->decode_tps = stored(o, "decode_tokens") >= CTL_DECODE_WORTH_MEASURING ? (float)stored(o, "decode_tps") : 0;
    cJSON_Delete(o);
    return s->prefill_tps > 0 || s->decode_tps > 0;
}

void ctl_note_earlier_speed(struct pp_controller *c, const struct pp_message *list, size_t n)
{
    struct ctl_speed s = {.model = ""};
    while (n && !(list[n - 1].model && read_speed(list[n - 1].stats, &s)))
        n--;
    if (n)
        snprintf(s.model, sizeof s.model, "%s", list[n - 1].model);
    c->earlier = s;
}

/* The speeds measured since the start, or else those stored with the conversation, if by this model. */
static struct ctl_speed speed_now(const struct pp_controller *c)
{
    char label[sizeof c->earlier.model];
    ctl_model_label(c, label, sizeof label);
    const bool none = c->prefill_tps <= 0 && c->decode_tps <= 0;
    return none && strcmp(c->earlier.model, label) == 0
               ? c->earlier
               : (struct ctl_speed){.prefill_tps = c->prefill_tps, .decode_tps = c->decode_tps};
}

static struct pp_switch_cost cost_of(const struct pp_controller *c, const struct ctl_cost *cost)
{
    struct pp_switch_cost s = {.known = cost->known, .failed = cost->failed, .seconds = -1};
    const struct ctl_speed speed = speed_now(c);
    const bool measured = speed.prefill_tps > 0;
    /* prefill is at least as fast as decoding, so this bounds the time from above */
    const float tps = measured ? speed.prefill_tps : speed.decode_tps;
    s.tokens = (int64_t)(cost->total - cost->cached);
    if (tps > 0)
        s.seconds = (float)s.tokens / tps;
    s.asked = cost->request && !cost->known && !cost->failed;
    s.at_most = !measured;
    s.cached = s.tokens < PAGE && (measured ? s.seconds < NO_TIME : s.tokens <= FEW);
    return s;
}

struct pp_switch_cost pp_controller_switch_cost(struct pp_controller *c, size_t i)
{
    bool now = i >= c->adapters.n;
    struct ctl_cost *cost = &c->costs[now];
    struct pp_adapter_mix set = now ? ctl_set_now(c) : set_after(c, i);
    const struct pp_adapter_entry *two[2];
    if (ctl_set_conflicts(c, &set, two))
        return (struct pp_switch_cost){.conflict = true, .seconds = -1};
    if (!c->branch.n)
        return (struct pp_switch_cost){.known = true, .cached = true};
    if (c->state != PP_STATE_IDLE || !c->backend->ops->cost || (!now && c->adapters.items[i].fit != PP_FIT_YES))
        return (struct pp_switch_cost){.seconds = -1};
    if (cost->request && cost->epoch == c->epoch && cost->revision == c->branch.revision &&
        pp_adapter_mix_equal(&cost->set, &set))
        return cost_of(c, cost);
    *cost = (struct ctl_cost){.set = set, .epoch = c->epoch, .revision = c->branch.revision};
    request_cost(c, cost);
    return cost_of(c, cost);
}

void ctl_costs_retry(struct pp_controller *c)
{
    for (int i = 0; i < 2; i++)
        if (c->costs[i].failed)
            c->costs[i] = (struct ctl_cost){0};
}

void ctl_on_cost(struct pp_controller *c, const struct pp_event *e)
{
    for (int i = 0; i < 2; i++) {
        struct ctl_cost *cost = &c->costs[i];
        if (!cost->request || cost->request != e->request)
            continue;
        cost->known = e->err.code == PP_OK;
        cost->failed = !cost->known;
        cost->total = e->total;
        cost->cached = e->cached;
        ctl_dirty(c, PP_DIRTY_LISTS);
    }
}
