/* move.c - moves cached keys and values to other positions. RoPE (arXiv 2104.09864) rotates the key of position p by
 * R(p), and R(p + t) = R(t) R(p): so a stored key, rotated by R(t), becomes that of the position t further on. */
#include <math.h>

#include "engine/cpu/program.h"

struct position_move {
    const struct pp_cpu *c;
    const struct pp_kv_layout *kv;
    const struct pp_cpu_move *moves;
    int tier;
    float cos_sin[2][PP_MAX_HEAD_DIM];  /* [n_ropes][rope_dim / 2][2] */
};

/* The attention stage (or, in a tier of index keys, the index stage) of a layer of the tier. */
static const struct stage *stage_of(const struct position_move *t, int layer)
{
    int i = 0;
    const enum stage_kind kind = t->kv->kind == PP_TIER_INDEX ? STAGE_PICK : STAGE_ATTEND;
    while (t->c->stages[i].kind != kind || t->c->stages[i].tier != t->tier || t->c->stages[i].layer != layer)
        i++; /* every layer has such a stage */
    return &t->c->stages[i];
}

/* Rotates a key. If keys are normalised after RoPE, the norm's bias and weights are removed before the rotation and
 * applied again afterwards; the normalised length is not changed by rotations. */
static void rotate_key(const struct position_move *t, const struct stage *s, int head, float *k)
{
    const struct pp_hparams *hp = pp_source_hparams(t->c->model->source);
    const float *w = s->norm_after_rope ? s->k_norm.weight + head * s->k_norm.stride : NULL;
    const float *b = w && s->k_norm.bias ? s->k_norm.bias + head * s->k_norm.stride : NULL;
    for (int i = 0; w && i < t->kv->head_dim; i++)
        k[i] = w[i] != 0.0f ? (k[i] - (b ? b[i] : 0)) / w[i] : 0;
    t->c->ops->rope(k + pp_cpu_rotated_from(hp, t->kv), t->c->ropes[s->rope].dim, hp->rope_neox,
                    t->cos_sin[s->rope]);
    for (int i = 0; w && i < t->kv->head_dim; i++)
        k[i] = k[i] * w[i] + (b ? b[i] : 0);
}

/* Moves one head of one position. With kv->rotate, cached keys are rotated by a Hadamard matrix. */
static void move_head(const struct position_move *t, const struct pp_cpu_move *m, const struct stage *s, int head)
{
    const size_t head_offset = pp_kv_head_offset(t->kv, s->layer, head);
    float k[PP_MAX_HEAD_DIM], v[PP_MAX_HEAD_DIM];
    pp_kv_load_head_position(t->kv, m->from + head_offset, m->from_slot, k, v);
    if (t->kv->rotate)
        t->c->ops->hadamard(k, t->kv->head_dim, t->kv->rotate); /* its own inverse */
    if (s->kind == STAGE_PICK)
        t->c->ops->rope(k + s->rotated_from, t->c->ropes[0].dim, s->neox, t->cos_sin[0]);
    else if (s->rope >= 0)
        rotate_key(t, s, head, k);
    if (t->kv->rotate)
        t->c->ops->hadamard(k, t->kv->head_dim, t->kv->rotate);
    t->c->ops->kv_store(t->kv, m->to, head_offset, m->to_slot, k, v);
}

static void move_position(void *arg, int part, int item, int thread)
{
    const struct position_move *t = arg;
    const struct pp_cpu_move *m = &t->moves[item];
    (void)part;
    (void)thread;
    if (t->kv->kind == PP_TIER_ROWS) { /* rows do not depend on positions */
        pp_kv_copy_position(t->kv, m->from, m->from_slot, m->to, m->to_slot);
        return;
    }
    for (int layer = 0; layer < t->kv->n_layer; layer++) {
        const struct stage *s = stage_of(t, layer);
        for (int head = 0; head < t->kv->n_head_kv; head++)
            move_head(t, m, s, head);
    }
}

void pp_cpu_move_positions(struct pp_cpu *c, int tier, const struct pp_cpu_move *moves, int n, int64_t turn)
{
    struct position_move t = {.c = c, .kv = &c->attend[tier].kv, .moves = moves, .tier = tier};
    for (int r = 0; r < c->n_ropes; r++)
        for (int64_t i = 0; i < c->ropes[r].dim / 2; i++) {
            const double angle = (double)turn * (double)c->ropes[r].inv_freq[i];
            t.cos_sin[r][2 * i] = (float)cos(angle);
            t.cos_sin[r][2 * i + 1] = (float)sin(angle);
        }
    pp_pool_run(c->pool, move_position, &t, &n, 1);
}
