/* turn.c - keys and values of positions that have moved: RoPE (arXiv 2104.09864) makes the key of position p by a
 * rotation R(p), and R(p + t) = R(t) R(p), so that a stored key becomes that of another position by one more. */
#include <math.h>

#include "engine/cpu/program.h"

struct turning {
    const struct pp_cpu *c;
    const struct pp_kv_layout *kv;
    const struct pp_cpu_move *moves;
    int tier;
    float cos_sin[2][PP_MAX_HEAD_DIM];  /* [n_ropes][rope_dim / 2][2] */
};

/* By which frequencies a layer of the tier is rotated; -1: by none. */
static int rope_of(const struct turning *t, int layer)
{
    int i = 0;
    while (t->c->stages[i].kind != STAGE_ATTEND || t->c->stages[i].tier != t->tier || t->c->stages[i].layer != layer)
        i++; /* every layer has such a stage */
    return t->c->stages[i].rope;
}

/* One head of one position. Pages hold keys rotated by a Hadamard matrix if kv->rotate. */
static void move_head(const struct turning *t, const struct pp_cpu_move *m, int rope, size_t head_offset)
{
    const struct pp_hparams *hp = pp_source_hparams(t->c->model->source);
    float k[PP_MAX_HEAD_DIM], v[PP_MAX_HEAD_DIM];
    pp_kv_load_head_position(t->kv, m->from + head_offset, m->from_slot, k, v);
    if (t->kv->rotate)
        t->c->ops->hadamard(k, t->kv->head_dim, t->kv->rotate); /* its own inverse */
    if (rope >= 0)
        t->c->ops->rope(k, hp->rope_dim, hp->rope_neox, t->cos_sin[rope]);
    if (t->kv->rotate)
        t->c->ops->hadamard(k, t->kv->head_dim, t->kv->rotate);
    t->c->ops->kv_store(t->kv, m->to, head_offset, m->to_slot, k, v);
}

static void move_position(void *arg, int part, int item, int thread)
{
    const struct turning *t = arg;
    (void)part;
    (void)thread;
    for (int layer = 0; layer < t->kv->n_layer; layer++)
        for (int head = 0; head < t->kv->n_head_kv; head++)
            move_head(t, &t->moves[item], rope_of(t, layer), pp_kv_head_offset(t->kv, layer, head));
}

void pp_cpu_move_positions(struct pp_cpu *c, int tier, const struct pp_cpu_move *moves, int n, int64_t turn)
{
    struct turning t = {.c = c, .kv = &c->attend[tier].kv, .moves = moves, .tier = tier};
    for (int r = 0; r < c->n_ropes; r++)
        for (int64_t i = 0; i < pp_source_hparams(c->model->source)->rope_dim / 2; i++) {
            const double angle = (double)turn * (double)c->ropes[r].inv_freq[i];
            t.cos_sin[r][2 * i] = (float)cos(angle);
            t.cos_sin[r][2 * i + 1] = (float)sin(angle);
        }
    pp_pool_run(c->pool, move_position, &t, &n, 1);
}
