/* experts_adapt.c - adapters for the matrices of experts. What they add to a row depends on the expert and on the row's
 * own set of adapters: consecutive rows of an expert with the same set are processed together, as in projections. A x
 * of an expert's rows is computed by the first thread that multiplies some weight rows of that expert. The other
 * threads go on to W x meanwhile, and wait for A x only when they need it for B, so that no barrier is added. */
#include "engine/base/mem.h"
#include "engine/cpu/program.h"

static bool has_experts(const struct pp_adapter_set *set)
{
    for (int k = 0; k < set->n; k++)
        if (set->use[k].adapter->of_experts)
            return true;
    return false;
}

bool pp_cpu_experts_row_adapted(const struct pp_cpu *c, const struct stage *s, int row)
{
    const struct pp_adapter_set *set = batch_row(c, s, row)->adapters;
    return set && has_experts(set);
}

bool pp_cpu_experts_adapted(const struct pp_cpu *c, const struct stage *s, int m)
{
    for (int i = 0; i < m; i++)
        if (pp_cpu_experts_row_adapted(c, s, i))
            return true;
    return false;
}

bool pp_cpu_experts_scaled(const struct pp_cpu *c, const struct stage *s, int m)
{
    for (int i = 0; i < m && s->experts->up; i++) {
        const struct pp_adapter_set *set = batch_row(c, s, i)->adapters;
        for (int k = 0; set && k < set->n; k++)
            if (set->use[k].adapter->scales_experts)
                return true;
    }
    return false;
}

/* Floats for the A x of a place: of gate and up together or of down, whichever is more. */
static int64_t room_of(const struct experts *x, const struct pp_adapter_set *set, int e)
{
    const int64_t gate = x->gate ? pp_adapter_set_room(set, x->gate[e].linear) : 0;
    const int64_t up = x->up ? pp_adapter_set_room(set, x->up[e].linear) : 0;
    const int64_t down = pp_adapter_set_room(set, x->down[e].linear);
    return gate + up > down ? gate + up : down;
}

bool pp_cpu_experts_reserve(struct pp_cpu *c, const struct pp_adapter_set *set)
{
    struct routing *r = &c->routing;
    int64_t widest = 0, n_used = 0;
    for (int i = 0; has_experts(set) && i < c->model->plan.n_experts; i++) {
        const struct experts *x = &c->experts[i];
        for (int e = 0; e < x->n_matrices; e++) {
            const int64_t room = room_of(x, set, e);
            widest = room > widest ? room : widest;
        }
    }
    if (widest <= r->lora_width)
        return true;
    for (int i = 0; i < c->model->plan.n_experts; i++)
        n_used = c->experts[i].n_used > n_used ? c->experts[i].n_used : n_used;
    const int64_t places = c->max_rows * n_used;
    float *p = pp_cpu_memory_take(c, places * widest, sizeof *p);
    if (!p)
        return false;
    if (r->lora)
        c->memory -= (uint64_t)(places * r->lora_width) * sizeof *p;
    pp_free(r->lora);
    r->lora = p;
    r->lora_width = widest;
    return true;
}

/* --- a pass --------------------------------------------------------------------------------------------------- */

static const struct pp_adapter_set *set_at(const struct pp_cpu *c, const struct stage *s, int place)
{
    return batch_row(c, s, c->routing.row[place])->adapters;
}

/* How many consecutive places from `first` on, before `end`, have rows with the same set. */
static int alike_from(const struct pp_cpu *c, const struct stage *s, int first, int end)
{
    const struct pp_adapter_set *set = set_at(c, s, first);
    int n = 1;
    while (first + n < end && set_at(c, s, first + n) == set)
        n++;
    return n;
}

/* Where A x of a matrix begins in a place's row: the gate's come before up's. */
static int64_t room_before(const struct experts *x, enum pp_expert_kind kind, int e, const struct pp_adapter_set *set)
{
    return kind == PP_EXPERT_UP && x->gate ? pp_adapter_set_room(set, x->gate[e].linear) : 0;
}

/* Computes A x of n places from `first` on, which have this set. x: of the first one. */
static void lower_some(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int e,
                       const struct pp_adapter_set *set, const struct pp_acts *x, int first, int n, void *kernel)
{
    const struct routing *r = &c->routing;
    const int linear = expert_matrices(s->experts, kind)[e].linear;
    float *out = r->lora + first * r->lora_width + room_before(s->experts, kind, e, set);
    for (int k = 0; k < set->n; k++) {
        const struct pp_lora_target *t = pp_adapter_target_at(set->use[k].adapter, linear);
        if (t->rank)
            pp_cpu_multiply_a(c, t, x, n, out, r->lora_width, kernel);
        out += pp_low_rank_room(t->rank);
    }
}

static void lower_all(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int active, void *kernel)
{
    const struct experts *x = s->experts;
    const struct routing *r = &c->routing;
    const int e = r->active[active], end = r->first[active + 1];
    const struct projection *p = &expert_matrices(x, kind)[e];
    for (int first = r->first[active], n; first < end; first += n) {
        const struct pp_adapter_set *set = set_at(c, s, first);
        n = alike_from(c, s, first, end);
        if (!set || !set->n || (kind == PP_EXPERT_DOWN && pp_adapter_set_scales_input(set, p->linear)))
            continue;
        const struct pp_acts acts = pp_acts_from(kind == PP_EXPERT_DOWN && x->up ? &r->hidden : &r->in, first);
        lower_some(c, s, kind, e, set, &acts, first, n, kernel);
    }
}

/* The expert of a place. */
static int expert_at(const struct routing *r, int place)
{
    int a = 0;
    while (r->first[a + 1] <= place)
        a++;
    return r->active[a];
}

bool pp_cpu_experts_place_scaled(const struct pp_cpu *c, const struct stage *s, int place)
{
    const struct pp_adapter_set *set = set_at(c, s, place);
    const int e = expert_at(&c->routing, place);
    return set && pp_adapter_set_scales_input(set, s->experts->down[e].linear);
}

void pp_cpu_experts_scale(const struct pp_cpu *c, const struct stage *s, int place, void *kernel)
{
    const struct routing *r = &c->routing;
    const struct pp_adapter_set *set = set_at(c, s, place);
    const struct pp_acts acts = pp_acts_from(&r->hidden, place);
    const int e = expert_at(r, place);
    if (r->lora)
        lower_some(c, s, PP_EXPERT_DOWN, e, set, &acts, place, 1, kernel);
    pp_cpu_scale_input(set, s->experts->down[e].linear, s->experts->n_ff, (float *)(uintptr_t)acts.f32);
}

/* What makes sure that A x of the rows of one active expert is computed once, for one kind of matrix. */
static pp_once *lowered(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int active)
{
    return &c->routing.lowered[(int)kind * s->experts->n_matrices + active];
}

void pp_cpu_experts_begin_adapt(const struct pp_cpu *c, const struct stage *s)
{
    for (int kind = 0; kind < PP_EXPERT_KINDS; kind++)
        for (int a = 0; a < c->routing.n_active; a++)
            pp_once_reset(lowered(c, s, (enum pp_expert_kind)kind, a));
}

void pp_cpu_experts_lower(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int active,
                          void *kernel)
{
    pp_once *once = lowered(c, s, kind, active);
    if (!pp_once_mine(once))
        return;
    lower_all(c, s, kind, active, kernel);
    pp_once_done(once);
}

void pp_cpu_experts_adapt(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int active,
                          int64_t row0, int64_t row1, float *y, int64_t stride)
{
    pp_once_await(lowered(c, s, kind, active));
    const struct experts *x = s->experts;
    const struct routing *r = &c->routing;
    const int e = r->active[active], begin = r->first[active], end = r->first[active + 1];
    const struct projection *p = &expert_matrices(x, kind)[e];
    for (int first = begin, n; first < end; first += n) {
        const struct pp_adapter_set *set = set_at(c, s, first);
        n = alike_from(c, s, first, end);
        struct pp_low_rank_rows rows = {.n = n, .y = y + (first - begin) * stride, .y_stride = stride,
                                        .down_stride = r->lora_width};
        if (r->lora && set && set->n)
            rows.down = r->lora + first * r->lora_width + room_before(x, kind, e, set);
        pp_cpu_adapt(c, p, set, rows, row0, row1);
    }
}
