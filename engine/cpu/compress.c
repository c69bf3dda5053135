/* compress.c - stages that compress a block of positions to one key, and cache it (PP_OP_COMPRESS, PP_OP_KV_STORE):
 * each dimension of the key is the mean of the positions' values, weighted by a softmax over their scores in that
 * dimension.
 *
 * The values and scores of a position are cached as a row, like the inputs of a short convolution. So when the last
 * position of a block is computed, everything its key is made of is available, whether from this pass or from earlier
 * ones. An item is a row of the batch. Sums go over positions in ascending order, so that a key's bits depend on its
 * own positions only; all kernel sets use the same plain C for the softmax, as it takes only a few hundred exponentials
 * per token. */
#include <math.h>
#include <string.h>

#include "engine/cpu/program.h"

enum { PUT, MAKE }; /* phases */

enum pp_code pp_cpu_compress_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    s->tier = op->tier;
    s->layer = op->tier_layer;
    s->width = c->model->plan.slots[op->in].width;
    s->norm = (struct norm){.weight = pp_cpu_float_vector(c, op->weight, err)};
    s->bias = s->norm.weight ? pp_cpu_float_vector(c, op->bias, err) : NULL;
    return s->bias ? PP_OK : err->code;
}

/* The cached row of position `slot` of a sequence: its values, then its scores. */
static float *row_at(const struct pp_cpu *c, const struct stage *s, const struct pp_batch_row *r, int64_t slot)
{
    return pp_kv_row(&c->attend[s->tier].kv, r->pages[s->tier][slot / PP_PAGE_TOKENS], s->layer,
                     (int)(slot % PP_PAGE_TOKENS));
}

/* A part of a key's inputs: n positions from `first` on, which begin a block; of each the values and scores from number
 * `at` on. */
struct piece {
    int64_t first, n, at;
};

/* The score of a position in dimension d; `place` is its number within the block, which has a bias of its own. */
static float score(const struct stage *s, const float *row, int64_t place, int64_t d)
{
    return row[s->width + d] + s->bias[place * pp_cpu_padded(s->width) + d];
}

/* most[d] = max(most[d], scores of the piece). */
static void update_max(const struct pp_cpu *c, const struct stage *s, const struct pp_batch_row *r,
                       const struct piece *p, int64_t width, float *most)
{
    for (int64_t i = 0; i < p->n; i++) {
        const float *row = row_at(c, s, r, p->first + i);
        for (int64_t d = 0; d < width; d++)
            most[d] = fmaxf(most[d], score(s, row, i, p->at + d));
    }
}

/* sum[d] += exp(score - most[d]), y[d] += the same times the value, for each position of the piece. */
static void add_shares(const struct pp_cpu *c, const struct stage *s, const struct pp_batch_row *r,
                       const struct piece *p, int64_t width, const float *most, float *sum, float *y)
{
    for (int64_t i = 0; i < p->n; i++) {
        const float *row = row_at(c, s, r, p->first + i);
        for (int64_t d = 0; d < width; d++) {
            const float share = expf(score(s, row, i, p->at + d) - most[d]);
            sum[d] += share;
            y[d] += share * row[p->at + d];
        }
    }
}

/* The key of the block of `stride` positions that ends with a row. If blocks overlap, a row has two sets of values and
 * scores: the key is made of the first set of the block before this one, and of the second set of this block. */
static void make_key(const struct pp_cpu *c, const struct stage *s, int row, int64_t width, int64_t stride, float *y)
{
    const struct pp_batch_row *r = &c->batch->rows[row];
    const int64_t first = r->slot + 1 - stride;
    const bool overlaps = s->width > width;
    const struct piece pieces[] = {{first - stride, overlaps && first > 0 ? stride : 0, 0},
                                   {first, stride, overlaps ? width : 0}};
    float most[PP_MAX_HEAD_DIM], sum[PP_MAX_HEAD_DIM] = {0};
    for (int64_t d = 0; d < width; d++)
        most[d] = -INFINITY;
    for (int i = 0; i < 2; i++)
        update_max(c, s, r, &pieces[i], width, most);
    for (int i = 0; i < 2; i++)
        add_shares(c, s, r, &pieces[i], width, most, sum, y);
    for (int64_t d = 0; d < width; d++)
        y[d] /= sum[d];
    pp_cpu_norm(c, &s->norm, y, width, y);
}

void pp_cpu_compress_phases(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES])
{
    (void)c, (void)s;
    n_items[PUT] = n_items[MAKE] = m;
}

void pp_cpu_compress_item(struct pp_cpu *c, const struct stage *s, int m, int phase, int item, int thread)
{
    const struct pp_batch_row *r = &c->batch->rows[item];
    const int64_t width = c->model->plan.slots[s->out].width, stride = c->model->plan.tiers[s->tier].stride;
    float *y = slot_row(c, s->out, item);
    (void)m, (void)thread;
    if (phase == PUT) {
        float *to = row_at(c, s, r, r->slot);
        memcpy(to, slot_row(c, s->in, item), (size_t)s->width * sizeof *to);
        memcpy(to + s->width, slot_row(c, s->in2, item), (size_t)s->width * sizeof *to);
        return;
    }
    memset(y, 0, (size_t)width * sizeof *y);
    if ((r->slot + 1) % stride == 0)
        make_key(c, s, item, width, stride, y);
}

/* Stores the key of a block that ends with a row, with RoPE for the block's first position. If blocks are longer than a
 * page, some pages have no key: its place is zeroed there, so that nothing of the memory's former content remains. */
void pp_cpu_keep_key(const struct pp_cpu *c, int tier, int layer, const struct rope *rope, int64_t at, bool neox,
                     int row, float *key)
{
    static const float none[PP_MAX_HEAD_DIM];
    const struct pp_batch_row *r = &c->batch->rows[row];
    const struct pp_kv_layout *kv = &c->attend[tier].kv;
    const bool last = pp_kv_is_last(kv, r->slot), empty = !last && (r->slot + 1) % PP_PAGE_TOKENS == 0;
    float cos_sin[PP_MAX_HEAD_DIM];
    if (!last && !empty)
        return;
    if (last) {
        pp_cpu_rope_at(rope, r->position + 1 - kv->stride, cos_sin);
        c->ops->rope(key + at, rope->dim, neox, cos_sin);
    }
    if (last && kv->rotate)
        c->ops->hadamard(key, kv->head_dim, kv->rotate);
    c->ops->kv_store(kv, r->pages[tier][r->slot / PP_PAGE_TOKENS], pp_kv_head_offset(kv, layer, 0),
                     pp_kv_slot(kv, r->slot), last ? key : none, NULL);
}

void pp_cpu_keep_item(struct pp_cpu *c, const struct stage *s, int row)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    pp_cpu_keep_key(c, s->tier, s->layer, &c->ropes[0], pp_cpu_rotated_from(hp, &c->attend[s->tier].kv), hp->rope_neox,
                    row, slot_row(c, s->k, row));
}
