/* heads.c - stages in which each head of a row is multiplied with a matrix of its own: in latent attention what brings
 * queries to where the cache's vectors are, and what attention gives from there to values. The matrices are small and
 * many, so an item is a head, and whoever takes it quantises that head of the rows for itself, and adds what adapters
 * bring to it. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/program.h"
#include "engine/lora.h"

/* Rows that are quantised at a time; as in project.c, what a thread takes at a time at most. */
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
    for (int i = 0; i < c->n_stages; i++)
        if (c->stages[i].kind == STAGE_HEADS && c->stages[i].heads->w.n_cols > width)
            width = c->stages[i].heads->w.n_cols;
    width = (width + 63) / 64 * 64;
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

void pp_cpu_heads_free(struct pp_cpu *c)
{
    for (int i = 0; c->threads && i < pp_pool_n(c->pool); i++) {
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

/* One head of rows first .. first + n - 1, as its kernel reads them. */
static struct pp_acts take_head(const struct pp_cpu *c, const struct stage *s, int head, int first, int n, int thread)
{
    const struct projection *p = &s->heads[head];
    struct pp_acts a = c->threads[thread].head;
    a.f32 = slot_row(c, s->in, first) + head * head_width(c, s, s->in);
    a.f32_stride = c->strides[s->in];
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

/* y += scale B (A x) for one head of rows first .. first + n - 1, which all have an adapter. The products with A go
 * where a thread keeps those of few rows of a projection, of which none is under way. */
static void add_lora(const struct pp_cpu *c, const struct stage *s, const struct pp_lora_heads *l, float strength,
                     int head, int first, int n, int thread)
{
    const int64_t in = head * head_width(c, s, s->in), out = head * head_width(c, s, s->out);
    const int64_t room = pp_low_rank_room(l->rank), most = PRIVATE_ROWS * c->lora_width / room;
    float *down = c->threads[thread].lora;
    for (int some; n > 0; first += some, n -= some) {
        some = n < most ? n : (int)most;
        const struct pp_acts x = {.f32 = slot_row(c, s->in, first) + in, .f32_stride = c->strides[s->in],
                                  .way = pp_cpu_way(c)};
        c->mm->by_type[l->a[head].type](&l->a[head], 0, l->rank, &x, some, down, room, c->threads[thread].kernel);
        c->ops->add_low_rank(&l->b[head],
                             &(struct pp_low_rank_rows){.n = some, .y = slot_row(c, s->out, first) + out, .down = down,
                                                        .y_stride = c->strides[s->out], .down_stride = room},
                             l->scale * strength, 0, s->heads[head].w.n_rows);
    }
}

/* What adapters bring to one head of all rows, once there is room for some. */
static void adapt(const struct pp_cpu *c, const struct stage *s, int m, int head, int thread)
{
    for (int first = 0, n; c->lora_width && first < m; first += n) {
        const struct pp_adapter_set *set = batch_row(c, s, first)->adapters;
        n = 1;
        while (first + n < m && batch_row(c, s, first + n)->adapters == set)
            n++;
        for (int k = 0; set && k < set->n; k++) {
            const struct pp_lora_heads *l = pp_adapter_heads_at(set->use[k].adapter, s->of_heads);
            if (l->rank)
                add_lora(c, s, l, set->use[k].scale, head, first, n, thread);
        }
    }
}

void pp_cpu_heads_item(struct pp_cpu *c, const struct stage *s, int m, int head, int thread)
{
    const struct projection *p = &s->heads[head];
    const int64_t n_in = p->w.n_cols, n_out = p->w.n_rows, behind = head_width(c, s, s->in) - n_in;
    const int64_t in = head * head_width(c, s, s->in), out = head * head_width(c, s, s->out);
    if (!pp_cpu_weight_ready(c, p, 0, n_out))
        return;
    if (c->imatrix)
        count(c, s, head, m);
    for (int first = 0, n; first < m; first += n) {
        n = m - first < ROWS_AT_ONCE ? m - first : ROWS_AT_ONCE;
        const struct pp_acts a = take_head(c, s, head, first, n, thread);
        c->mm->by_type[p->w.type](&p->w, 0, n_out, &a, n, slot_row(c, s->out, first) + out, c->strides[s->out],
                                  c->threads[thread].kernel);
    }
    adapt(c, s, m, head, thread);
    for (int i = 0; behind && i < m; i++)
        memcpy(slot_row(c, s->out, i) + out + n_out, slot_row(c, s->in, i) + in + n_in,
               (size_t)behind * sizeof(float));
}

int pp_cpu_heads_at_once(const struct stage *s, int m)
{
    const struct pp_matrix *w = &s->heads->w;
    const int64_t by_macs = MOST_MACS / (w->n_rows * w->n_cols * m);
    const int64_t by_bytes = MOST_BYTES / (w->n_rows * (int64_t)pp_type_row_bytes(w->type, w->n_cols));
    const int64_t n = by_macs < by_bytes ? by_macs : by_bytes;
    return n < 1 ? 1 : n > INT16_MAX ? INT16_MAX : (int)n;
}
