/* heads.c - stages that multiply each head of a row by its own matrix: in latent attention, these project queries into
 * the latent space of the cache, and the results of attention from there to values. The matrices are small and many, so
 * an item is one head: the thread that takes it quantises this head of all rows, multiplies, and adds adapters. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/program.h"
#include "engine/lora.h"

/* Rows that are quantised at a time; and, as in project.c, the most multiply-adds and bytes of weights that a thread
 * takes at a time. */
enum { ROWS_AT_ONCE = 64 };
static const int64_t MOST_MACS = 200000000, MOST_BYTES = 16000000;

enum pp_code pp_cpu_heads_add(struct pp_cpu *c, struct stage *s, const struct pp_heads *heads, struct pp_error *err)
{
    s->n_heads = heads->n;
    s->of_heads = pp_lora_first_heads(&c->model->plan, heads);
    s->heads = pp_calloc((size_t)heads->n, sizeof *s->heads);
    if (!s->heads)
        return pp_fail_nomem(err, "the matrices of heads");
    for (int h = 0; h < heads->n; h++) {
        const struct pp_tensor *w = heads->w[h];
        struct projection *p = &s->heads[h];
        *p = (struct projection){.linear = -1, .out = -1,
                                 .w = {.type = w->type, .n_rows = w->ne[1], .n_cols = w->ne[0]}};
        if (!(p->weight = pp_weights_add_new(c->weights, w)))
            return pp_fail_nomem(err, "the model's weights");
        enum pp_code code = pp_cpu_count_begin(c, w, h, heads->n, p, err);
        if (code)
            return code;
    }
    return PP_OK;
}

bool pp_cpu_heads_new(struct pp_cpu *c)
{
    int64_t width = 0;
    for (int i = 0; i < c->n_stages; i++) {
        if (c->stages[i].kind != STAGE_HEADS)
            continue;
        const struct pp_matrix *w = &c->stages[i].heads->w;
        width = w->n_cols > width ? w->n_cols : width;
        c->head_width = w->n_rows > c->head_width ? w->n_rows : c->head_width;
    }
    width = (width + 63) / 64 * 64;
    c->head_width = c->head_width > width ? (c->head_width + 63) / 64 * 64 : width;
    for (int i = 0; width && i < pp_pool_n(c->pool); i++) {
        struct pp_acts *a = &c->threads[i].head;
        *a = (struct pp_acts){.q_stride = width, .b_stride = width / PP_ACT_BLOCK};
        a->q = pp_cpu_memory_take(c, ROWS_AT_ONCE * width, sizeof *a->q);
        a->d = pp_cpu_memory_take(c, ROWS_AT_ONCE * a->b_stride, sizeof *a->d);
        a->sum = pp_cpu_memory_take(c, ROWS_AT_ONCE * a->b_stride, sizeof *a->sum);
        if (!a->q || !a->d || !a->sum)
            return false;
    }
    return true;
}

/* A thread's scratch for DoRA: ROWS_AT_ONCE rows that are multiplied by gains, and one row for the gains of a set. */
enum { GAINS = 1 };

bool pp_cpu_heads_reserve(struct pp_cpu *c, const struct pp_adapter_set *set)
{
    const bool wanted = pp_adapter_set_heads_dora(set);
    for (int i = 0; wanted && i < pp_pool_n(c->pool); i++)
        if (!c->threads[i].head_gains &&
            !(c->threads[i].head_gains =
                  pp_cpu_memory_take(c, (ROWS_AT_ONCE + GAINS) * c->head_width, sizeof(float))))
            return false;
    return true;
}

void pp_cpu_heads_free(struct pp_cpu *c)
{
    for (int i = 0; c->threads && i < pp_pool_n(c->pool); i++) {
        pp_free(c->threads[i].head_gains);
        pp_free((void *)(uintptr_t)c->threads[i].head.q);
        pp_free((void *)(uintptr_t)c->threads[i].head.d);
        pp_free((void *)(uintptr_t)c->threads[i].head.sum);
    }
    for (int i = 0; i < c->n_stages; i++)
        pp_free(c->stages[i].heads);
}

static int64_t head_width(const struct pp_cpu *c, const struct stage *s, int slot)
{
    return c->model->plan.slots[slot].width / s->n_heads;
}

/* --- gains of DoRAs ---------------------------------------------------------------------------------------------- */

/* The gain g of a DoRA scales outputs of the matrix that it was made for. The model has the transpose of the matrices
 * for keys, so that g scales its inputs. This tells whether any adapter of a set is a DoRA of these heads, with gains
 * for inputs (transposed) or for outputs. */
static bool has_dora(const struct pp_adapter_set *set, int heads, bool transposed)
{
    for (int k = 0; set && k < set->n; k++) {
        const struct pp_lora_heads *l = pp_adapter_heads_at(set->use[k].adapter, heads);
        if (l->dora && l->transposed == transposed)
            return true;
    }
    return false;
}

/* g_k [n] of the k-th adapter of a set for a head with n gains; NULL: the adapter is not a DoRA of these heads. */
static const float *gains_of(const struct pp_adapter_set *set, int k, const struct pp_lora_heads *l, int head,
                             int64_t n)
{
    return l->dora ? set->gains[k] + l->gains + (size_t)(head * n) : NULL;
}

/* The gains of a head under a set: 1 + the sum of g_k - 1 over its DoRAs, times the scales of its IA3s. */
static void find_gains(const struct stage *s, const struct pp_adapter_set *set, int head, int64_t n, float *all)
{
    for (int64_t i = 0; i < n; i++)
        all[i] = 1.0f;
    for (int k = 0; k < 2 * set->n; k++) { /* twice through the set: DoRAs first, then IA3s */
        const struct pp_lora_heads *l = pp_adapter_heads_at(set->use[k % set->n].adapter, s->of_heads);
        const float *own = l->scales == (k >= set->n) ? gains_of(set, k % set->n, l, head, n) : NULL;
        for (int64_t i = 0; own && i < n; i++)
            all[i] = l->scales ? all[i] * own[i] : all[i] + (own[i] - 1.0f);
    }
}

/* Whether any of the rows first .. first + n - 1 has a DoRA with gains for the inputs (transposed) or the outputs. */
static bool any_dora(const struct pp_cpu *c, const struct stage *s, int first, int n, bool transposed)
{
    for (int i = first; c->lora_width && i < first + n; i += pp_cpu_rows_alike(c, s, i, first + n))
        if (has_dora(batch_row(c, s, i)->adapters, s->of_heads, transposed))
            return true;
    return false;
}

/* to = g * from for n rows from `first` on, g being the gains of each row's set; `to` may be `from`. */
static void multiply_gains(const struct pp_cpu *c, const struct stage *s, int head, int first, int n, int64_t width,
                           bool transposed, const float *from, int64_t from_stride, float *to, int64_t to_stride,
                           int thread)
{
    float *all = c->threads[thread].head_gains + ROWS_AT_ONCE * c->head_width;
    for (int i = first, some; i < first + n; i += some) {
        const struct pp_adapter_set *set = batch_row(c, s, i)->adapters;
        const bool dora = has_dora(set, s->of_heads, transposed);
        some = pp_cpu_rows_alike(c, s, i, first + n);
        if (dora)
            find_gains(s, set, head, width, all);
        for (int k = i - first; k < i - first + some; k++)
            for (int64_t r = 0; r < width; r++)
                to[k * to_stride + r] = dora ? all[r] * from[k * from_stride + r] : from[k * from_stride + r];
    }
}

/* --- products ---------------------------------------------------------------------------------------------------- */

/* Prepares one head of rows first .. first + n - 1 in the form that its kernel reads. */
static struct pp_acts take_head(const struct pp_cpu *c, const struct stage *s, int head, int first, int n, int thread)
{
    const struct projection *p = &s->heads[head];
    struct pp_acts a = c->threads[thread].head;
    a.f32 = slot_row(c, s->in, first) + head * head_width(c, s, s->in);
    a.f32_stride = c->strides[s->in];
    if (any_dora(c, s, first, n, true)) {
        float *scaled = c->threads[thread].head_gains;
        multiply_gains(c, s, head, first, n, p->w.n_cols, true, a.f32, a.f32_stride, scaled, c->head_width, thread);
        a.f32 = scaled;
        a.f32_stride = c->head_width;
    }
    a.way = pp_cpu_way(c);
    for (int i = 0; i < n && pp_pack_needed(p->w.type); i++)
        c->mm->quantize(a.f32 + i * a.f32_stride, p->w.n_cols, pp_type_twins(p->w.type),
                        (int8_t *)(uintptr_t)a.q + i * a.q_stride, (float *)(uintptr_t)a.d + i * a.b_stride,
                        (int32_t *)(uintptr_t)a.sum + i * a.b_stride);
    return a;
}

static void count(const struct pp_cpu *c, const struct stage *s, int head, int m)
{
    const struct projection *p = &s->heads[head];
    const struct pp_acts a = {.f32 = slot_row(c, s->in, 0) + head * head_width(c, s, s->in),
                              .f32_stride = c->strides[s->in]};
    pp_cpu_count(&a, m, &p, 1);
}

/* y += scale B (A x) for one head of rows first .. first + n - 1, which all have the adapter number `which` of their
 * set. For a DoRA, x or B (A x) is multiplied by its g. Products A x use the scratch that projections have for theirs,
 * since these do not run at the same time. */
static void add_lora(const struct pp_cpu *c, const struct stage *s, const struct pp_adapter_set *set, int which,
                     int head, int first, int n, int thread)
{
    const struct pp_lora_heads *l = pp_adapter_heads_at(set->use[which].adapter, s->of_heads);
    const float strength = set->use[which].scale;
    const int64_t in = head * head_width(c, s, s->in), out = head * head_width(c, s, s->out), width = c->head_width;
    const int64_t n_in = s->heads[head].w.n_cols, n_out = s->heads[head].w.n_rows;
    const int64_t n_gains = l->transposed ? n_in : n_out;
    const int64_t room = pp_low_rank_room(l->rank), fit = PRIVATE_ROWS * c->lora_width / room;
    const int64_t most = fit < ROWS_AT_ONCE ? fit : ROWS_AT_ONCE;
    const float *gain = gains_of(set, which, l, head, n_gains);
    float *down = c->threads[thread].lora, *made = c->threads[thread].head_gains;
    for (int some; n > 0; first += some, n -= some) {
        some = n < most ? n : (int)most;
        struct pp_acts x = {.f32 = slot_row(c, s->in, first) + in, .f32_stride = c->strides[s->in],
                            .way = pp_cpu_way(c)};
        struct pp_low_rank_rows rows = {.n = some, .y = slot_row(c, s->out, first) + out, .down = down,
                                        .y_stride = c->strides[s->out], .down_stride = room};
        float *y = rows.y;
        for (int i = 0; l->dora && l->transposed && i < some; i++)
            for (int64_t r = 0; r < n_in; r++)
                made[i * width + r] = gain[r] * x.f32[i * x.f32_stride + r];
        if (l->dora && l->transposed) {
            x.f32 = made;
            x.f32_stride = width;
        }
        c->mm->by_type[l->a[head].type](&l->a[head], 0, l->rank, &x, some, down, room, c->threads[thread].kernel);
        if (l->dora && !l->transposed) {
            memset(made, 0, (size_t)(some * width) * sizeof *made);
            rows.y = made;
            rows.y_stride = width;
        }
        c->ops->add_low_rank(&l->b[head], &rows, l->scale * strength, 0, n_out);
        for (int i = 0; l->dora && !l->transposed && i < some; i++)
            for (int64_t r = 0; r < n_out; r++)
                y[i * c->strides[s->out] + r] += gain[r] * made[i * width + r];
    }
}

/* Adds the products of adapters to one head of all rows, if room for any adapter has been reserved. */
static void adapt(const struct pp_cpu *c, const struct stage *s, int m, int head, int thread)
{
    for (int first = 0, n; c->lora_width && first < m; first += n) {
        const struct pp_adapter_set *set = batch_row(c, s, first)->adapters;
        n = pp_cpu_rows_alike(c, s, first, m);
        for (int k = 0; set && k < set->n; k++) {
            const struct pp_lora_heads *l = pp_adapter_heads_at(set->use[k].adapter, s->of_heads);
            if (l->rank && !l->scales)
                add_lora(c, s, set, k, head, first, n, thread);
        }
    }
}

void pp_cpu_heads_item(struct pp_cpu *c, const struct stage *s, int m, int head, int thread)
{
    const struct projection *p = &s->heads[head];
    const int64_t n_in = p->w.n_cols, n_out = p->w.n_rows, n_unchanged = head_width(c, s, s->in) - n_in;
    const int64_t in = head * head_width(c, s, s->in), out = head * head_width(c, s, s->out);
    if (!pp_cpu_weight_ready(c, p, 0, n_out))
        return;
    if (c->imatrix)
        count(c, s, head, m);
    for (int first = 0, n; first < m; first += n) {
        n = m - first < ROWS_AT_ONCE ? m - first : ROWS_AT_ONCE;
        const struct pp_acts a = take_head(c, s, head, first, n, thread);
        float *y = slot_row(c, s->out, first) + out;
        c->mm->by_type[p->w.type](&p->w, 0, n_out, &a, n, y, c->strides[s->out], c->threads[thread].kernel);
        if (any_dora(c, s, first, n, false))
            multiply_gains(c, s, head, first, n, n_out, false, y, c->strides[s->out], y, c->strides[s->out], thread);
    }
    adapt(c, s, m, head, thread);
    for (int i = 0; n_unchanged && i < m; i++)
        memcpy(slot_row(c, s->out, i) + out + n_out, slot_row(c, s->in, i) + in + n_in,
               (size_t)n_unchanged * sizeof(float));
}

int pp_cpu_heads_at_once(const struct stage *s, int m)
{
    const struct pp_matrix *w = &s->heads->w;
    const int64_t by_macs = MOST_MACS / (w->n_rows * w->n_cols * m);
    const int64_t by_bytes = MOST_BYTES / (w->n_rows * (int64_t)pp_type_row_bytes(w->type, w->n_cols));
    const int64_t n = by_macs < by_bytes ? by_macs : by_bytes;
    return n < 1 ? 1 : n > INT16_MAX ? INT16_MAX : (int)n;
}
