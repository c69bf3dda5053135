/* attend.c - attention stages: rotation, KV store and the attention of each row. */
#include <string.h>

#include "engine/cpu/program.h"

static void rotate_and_store(struct pp_cpu *c, const struct stage *s, int row, int kv_head)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    const struct pp_batch_row *r = &c->batch->rows[row];
    const float *cs = c->cos_sin + (int64_t)row * hp->rope_dim;
    int group = (int)(hp->n_head / hp->n_head_kv);
    float *k = slot_row(c, s->k, row) + kv_head * hp->head_dim, *v = slot_row(c, s->v, row) + kv_head * hp->head_dim;
    float *q = slot_row(c, s->q, row) + kv_head * group * hp->head_dim;
    c->ops->rope(k, hp->rope_dim, hp->rope_neox, cs);
    for (int h = 0; h < group; h++)
        c->ops->rope(q + h * hp->head_dim, hp->rope_dim, hp->rope_neox, cs);
    if (c->kv.rotate) {
        c->ops->hadamard(k, hp->head_dim, c->kv.rotate);
        c->ops->hadamard(v, hp->head_dim, c->kv.rotate);
        c->ops->hadamard(q, group * hp->head_dim, c->kv.rotate);
    }
    c->ops->kv_store(&c->kv, r->pages[r->slot / PP_PAGE_TOKENS], pp_kv_head_offset(&c->kv, s->layer, kv_head),
                     (int)(r->slot % PP_PAGE_TOKENS), k, v);
}

/* A branch of a tree: its positions lie scattered among its siblings'. They are copied side by side to where they would
 * lie if the branch were all there is, so that every sum is made in the same order and gives the same bits as for a
 * chain. */
static void gather_branch(const struct pp_cpu *c, const struct pp_batch_row *r, struct pp_attention *a, uint8_t *tail)
{
    const struct pp_kv_layout *l = &c->kv;
    int64_t to = r->tree_base;
    a->tail_page = to / PP_PAGE_TOKENS;
    a->tail[0] = tail;
    a->tail[1] = tail + l->head_bytes;
    if (to % PP_PAGE_TOKENS)
        memcpy(tail, r->pages[a->tail_page] + a->head_offset, l->head_bytes);
    for (uint64_t left = r->tree_mask; left; left &= left - 1, to++) {
        int64_t from = r->tree_base + __builtin_ctzll(left);
        pp_kv_copy_head_position(l, r->pages[from / PP_PAGE_TOKENS] + a->head_offset, (int)(from % PP_PAGE_TOKENS),
                                 tail + (size_t)(to / PP_PAGE_TOKENS - a->tail_page) * l->head_bytes,
                                 (int)(to % PP_PAGE_TOKENS));
    }
    a->n_kv = to;
}

static void attend(struct pp_cpu *c, const struct stage *s, int row, int kv_head, struct thread_scratch *scratch)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    const struct pp_batch_row *r = &c->batch->rows[row];
    int group = (int)(hp->n_head / hp->n_head_kv);
    struct pp_attention a = {
        .kv = &c->kv,
        .pages = r->pages,
        .head_offset = pp_kv_head_offset(&c->kv, s->layer, kv_head),
        .q = slot_row(c, s->q, row) + kv_head * group * hp->head_dim,
        .q_stride = hp->head_dim,
        .n_q = group,
        .scale = c->scale,
        .n_kv = r->slot + 1,
        .tail_page = INT64_MAX,
        .out = slot_row(c, s->out, row) + kv_head * group * hp->head_dim,
        .out_stride = hp->head_dim,
        .scratch = &scratch->attention,
    };
    if (r->tree_mask)
        gather_branch(c, r, &a, scratch->tail);
    c->ops->attention(&a);
    if (c->kv.rotate)
        c->ops->hadamard(a.out, group * hp->head_dim, c->kv.rotate);
}

/* A phase of its own rotates and stores all rows, because later rows look at earlier ones; a single row's head needs
 * nothing of the others. */
void pp_cpu_attend_phases(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES])
{
    (void)s;
    n_items[0] = m > 1 ? m : 0;
    n_items[1] = m * c->kv.n_head_kv;
}

void pp_cpu_attend_item(struct pp_cpu *c, const struct stage *s, int m, int phase, int item, int thread)
{
    struct thread_scratch *scratch = &c->threads[thread];
    if (phase == 0) {
        for (int h = 0; h < c->kv.n_head_kv; h++)
            rotate_and_store(c, s, item, h);
    } else if (m == 1) {
        rotate_and_store(c, s, 0, item);
        attend(c, s, 0, item, scratch);
    } else {
        /* Long rows last would leave threads idle at the end: the last row, which sees most, comes first. Neighbours
         * share a head. */
        attend(c, s, m - 1 - item % m, item / m, scratch);
    }
}
