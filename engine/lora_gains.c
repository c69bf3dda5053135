/* lora_gains.c - the output gains of DoRAs, g_k of lora.h: a square root and a quotient for each output of each of
 * their matrices. They depend only on the strength, so they are computed when an adapter is switched on, not in each
 * pass, and shared by the conversations of an engine that use it with the same strength. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lora.h"
#include "engine/model.h"

struct pp_gains {
    struct pp_gains *next;
    const struct pp_adapter *adapter;
    float strength;
    int refs;
    float values[];
};

/* Computes g_k of n outputs of a matrix, from its DoRA numbers. */
static void compute_gains(const float *dora, float strength, int64_t n, float *gain)
{
    const float *magnitude = dora, *mixed = magnitude + n, *square = mixed + n;
    for (int64_t i = 0; i < n; i++) {
        float norm = 1.0f + strength * (mixed[i] + strength * square[i]);
        norm = norm > 1e-12f ? norm : 1e-12f; /* W + B A is zero, or rounded to it */
        gain[i] = (1.0f + strength * magnitude[i]) / sqrtf(norm);
    }
}

/* Outputs of a matrix of heads: for a transposed one (keys), its columns. */
static int64_t head_outputs(const struct pp_adapter *a, int heads)
{
    return a->model->plan.heads[heads].w[0]->ne[!a->heads[heads].transposed];
}

void pp_lora_place_gains(struct pp_adapter *a)
{
    a->n_gains = 0;
    for (int i = 0; i < a->n_targets; i++) {
        struct pp_lora_target *t = &a->targets[i];
        t->gains = a->n_gains;
        if (t->dora)
            a->n_gains += (size_t)pp_plan_target(&a->model->plan, i).w->ne[1];
    }
    for (int i = 0; a->heads && i < a->model->plan.n_heads; i++) {
        a->heads[i].gains = a->n_gains;
        if (a->heads[i].dora)
            a->n_gains += (size_t)(a->heads[i].n * head_outputs(a, i));
    }
    a->embedding.gains = a->n_gains;
    a->n_gains += (size_t)a->embedding.n_gains;
}

static void fill(const struct pp_adapter *a, float strength, float *values)
{
    for (int i = 0; i < a->n_targets; i++) {
        const struct pp_lora_target *t = &a->targets[i];
        if (t->dora)
            compute_gains(t->dora, strength, pp_plan_target(&a->model->plan, i).w->ne[1], values + t->gains);
    }
    for (int i = 0; a->heads && i < a->model->plan.n_heads; i++) {
        const struct pp_lora_heads *l = &a->heads[i];
        const int64_t n = l->dora ? head_outputs(a, i) : 0;
        for (int h = 0; l->dora && h < l->n; h++)
            compute_gains(l->dora + h * PP_DORA_NUMBERS * n, strength, n, values + l->gains + (size_t)(h * n));
    }
    if (a->embedding.dora)
        compute_gains(a->embedding.dora, strength, a->embedding.n_gains, values + a->embedding.gains);
}

static struct pp_gains *find(struct pp_gains *all, const struct pp_adapter_use *use)
{
    while (all && (all->adapter != use->adapter || all->strength != use->scale))
        all = all->next;
    return all;
}

/* All gains of an adapter at a strength; NULL: out of memory. */
static struct pp_gains *make(const struct pp_adapter_use *use)
{
    struct pp_gains *g = pp_malloc(sizeof *g + use->adapter->n_gains * sizeof *g->values);
    if (!g)
        return NULL;
    *g = (struct pp_gains){.adapter = use->adapter, .strength = use->scale};
    fill(use->adapter, use->scale, g->values);
    return g;
}

enum pp_code pp_gains_take(struct pp_gains **all, struct pp_adapter_set *set, struct pp_error *err)
{
    memset(set->gains, 0, sizeof set->gains);
    for (int k = 0; k < set->n; k++) {
        if (!set->use[k].adapter->n_gains)
            continue;
        struct pp_gains *g = find(*all, &set->use[k]);
        if (!g && (g = make(&set->use[k]))) {
            g->next = *all;
            *all = g;
        }
        if (!g) {
            pp_gains_release(all, set);
            return pp_fail_nomem(err, "what a DoRA multiplies by");
        }
        g->refs++;
        set->gains[k] = g->values;
    }
    return PP_OK;
}

void pp_gains_share(struct pp_gains *all, const struct pp_adapter_set *set)
{
    for (int k = 0; k < set->n; k++)
        if (set->gains[k])
            find(all, &set->use[k])->refs++;
}

void pp_gains_release(struct pp_gains **all, struct pp_adapter_set *set)
{
    for (int k = 0; k < set->n; k++) {
        struct pp_gains *g = set->gains[k] ? find(*all, &set->use[k]) : NULL;
        set->gains[k] = NULL;
        if (!g || --g->refs)
            continue;
        struct pp_gains **at = all;
        while (*at != g)
            at = &(*at)->next;
        *at = g->next;
        pp_free(g);
    }
}

int pp_gains_n(const struct pp_gains *all)
{
    int n = 0;
    for (; all; all = all->next)
        n++;
    return n;
}
