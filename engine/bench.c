/* bench.c - measurements that need the backend, the plan and the pages. */
#include "engine/bench.h"

#include <math.h>

#include "engine/base/mem.h"
#include "engine/cpu/profile.h"
#include "engine/engine_int.h"
#include "engine/sampler.h"

const char *pp_profile_name(enum pp_profile_kind kind)
{
    static const char *const names[PP_PROFILE_COUNT] = {
        [PP_PROFILE_EMBED] = "embed",         [PP_PROFILE_PREPARE] = "preparation",
        [PP_PROFILE_QKV] = "q, k, v",         [PP_PROFILE_STORE] = "rotate, store",
        [PP_PROFILE_ATTENTION] = "attention", [PP_PROFILE_ATTN_OUT] = "attention output",
        [PP_PROFILE_GATE_UP] = "gate+up",     [PP_PROFILE_DOWN] = "down",
        [PP_PROFILE_ROUTE] = "routing, sum",  [PP_PROFILE_LOGITS] = "logits",
        [PP_PROFILE_OTHER] = "other",         [PP_PROFILE_WAIT] = "waiting",
    };
    return kind < PP_PROFILE_COUNT ? names[kind] : "";
}

enum pp_code pp_engine_profile(struct pp_engine *e, bool on, struct pp_error *err)
{
    return pp_cpu_profile(e->cpu, on, err);
}

void pp_engine_profile_get(const struct pp_engine *e, struct pp_profile *out)
{
    pp_cpu_profile_get(e->cpu, out);
}

uint64_t pp_engine_pass_bytes(const struct pp_engine *e)
{
    const struct pp_plan *plan = &e->model->plan;
    uint64_t sum = 0;
    for (int i = 0; i < plan->n_linears; i++)
        sum += plan->linears[i].w->size + (plan->linears[i].b ? plan->linears[i].b->size : 0);
    for (int i = 0; i < plan->n_ops; i++) {
        const struct pp_op *op = &plan->ops[i];
        const bool one_row = op->kind == PP_OP_EMBED || op->kind == PP_OP_LOOKUP || op->kind == PP_OP_NGRAM;
        if (one_row || op->kind == PP_OP_HASH)
            sum += pp_type_row_bytes(op->weight->type, op->weight->ne[0]) *
                   (one_row ? 1 : (size_t)((op->hashed->size - 1) * op->hashed->heads));
        else if (op->weight)
            sum += op->weight->size;
        if (op->kind == PP_OP_EXPERTS) {
            const struct pp_experts *x = &plan->experts[op->experts];
            sum += (uint64_t)x->n_used *
                   ((x->gate ? x->gate[0]->size : 0) + (x->up ? x->up[0]->size : 0) + x->down[0]->size);
        }
        if (op->kind == PP_OP_HEADS)
            sum += (uint64_t)plan->heads[op->heads].n * plan->heads[op->heads].w[0]->size;
    }
    return sum;
}

/* How many compressed blocks of `stride` positions a row sees at most. */
static double picked_blocks(const struct pp_engine *e, int64_t stride)
{
    for (int t = 0; t < e->n_tiers; t++) {
        const struct pp_tier_plan *tier = &e->model->plan.tiers[t];
        if (tier->kind == PP_TIER_ATTENTION && tier->stride == stride && tier->top_k)
            return (double)tier->top_k;
    }
    return INFINITY;
}

/* What a row reads of states: those after the position before, or those at the page's beginning and then on average the
 * keys and values of half a page. */
static double state_bytes(const struct pp_kv_layout *l)
{
    const struct pp_state_shape *s = &l->state;
    double values = (double)s->n_head * (double)s->key_dim * (double)s->value_dim;
    if (!s->n_inputs)
        values += PP_PAGE_TOKENS / 2 * ((double)s->n_key_head * s->key_dim + (double)s->n_head * s->value_dim);
    return (double)l->n_layer * values * (double)sizeof(float);
}

double pp_engine_kv_read_bytes(const struct pp_engine *e, double n)
{
    double bytes = 0;
    for (int t = 0; t < e->n_tiers; t++) {
        const struct pp_tier_plan *tier = &e->model->plan.tiers[t];
        const struct pp_kv_layout *l = pp_kv_pool_layout(e->tier[t].kv);
        if (l->kind == PP_TIER_STATE) {
            bytes += state_bytes(l);
            continue;
        }
        const int64_t stride = pp_tier_has_keys(l->kind) && tier->kind != PP_TIER_ATTENTION ? l->stride : 1;
        double seen = n / (double)stride; /* keys */
        if (tier->window && seen > (double)(tier->window + tier->n_first))
            seen = (double)(tier->window + tier->n_first);
        if (tier->kind == PP_TIER_ATTENTION && !tier->stride && tier->top_k && seen > (double)tier->top_k)
            seen = (double)tier->top_k;
        if (tier->kind == PP_TIER_INDEX && seen <= (double)tier->top_k)
            seen = 0; /* all are seen, none is picked */
        if (tier->kind == PP_TIER_COMPRESSED)
            seen = fmin(seen, picked_blocks(e, stride));
        bytes += pp_tier_has_keys(l->kind) ? seen * (double)l->page_bytes / l->slots : 0;
    }
    return bytes;
}

/* --- choosing a token -------------------------------------------------------------------------------------------- */

struct pp_choosing {
    struct pp_sampler sampler;
    struct pp_sampling how;
};

enum pp_code pp_choosing_new(int64_t n_vocab, struct pp_choosing **out, struct pp_error *err)
{
    struct pp_choosing *c = *out = pp_calloc(1, sizeof *c);
    if (!c)
        return pp_fail_nomem(err, "the sampler");
    c->how = pp_sampling_default();
    c->how.seed = 1;
    enum pp_code code = pp_sampler_init(&c->sampler, n_vocab, err);
    if (code) {
        pp_free(c);
        *out = NULL;
    }
    return code;
}

void pp_choosing_free(struct pp_choosing *c)
{
    if (!c)
        return;
    pp_sampler_free(&c->sampler);
    pp_free(c);
}

int32_t pp_choosing_token(struct pp_choosing *c, const float *logits, int64_t position)
{
    const int32_t token = pp_sampler_choose(&c->sampler, &c->how, logits, NULL, position).token;
    return token < 0 ? 0 : token;
}
