/* decoder_gains.c - Talkie's learned scalars, by which heads of queries, the outputs of parts and the embeddings are
 * multiplied. They become constants of the plan's operations. */
#include <stdio.h>

#include "engine/arch/decoder_int.h"
#include "engine/rows.h"

/* Reads a tensor of n numbers, whatever its dimensions. */
static bool read_numbers(struct builder *b, const struct pp_tensor *t, int64_t n, float *to)
{
    if (t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] != n || !pp_type_info(t->type)->runnable) {
        pp_fail(b->err, PP_ERR_FORMAT, "%s: tensor %.100s does not have %lld numbers", pp_source_path(b->s), t->name,
                (long long)n);
        return false;
    }
    return pp_tensor_floats(t, 0, t->ne[1] * t->ne[2] * t->ne[3], to, b->err) == PP_OK;
}

bool pp_gains_number(struct builder *b, int l, const char *kind, float otherwise, float *v)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    const struct pp_tensor *t = pp_source_tensor(b->s, name);
    *v = otherwise;
    return !t || read_numbers(b, t, 1, v);
}

/* RMSNorm with a weight for each head that is the same for all of its values. */
bool pp_gains_queries(struct builder *b, int l)
{
    const int64_t n = b->shape.n_head, dim = b->shape.head_dim;
    float *weights;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_q_norm.weight", l);
    const struct pp_tensor *t = pp_source_tensor(b->s, name);
    if (!t) {
        pp_fail(b->err, PP_ERR_FORMAT, "%s: tensor %s is missing; the file is incomplete: download it again",
                pp_source_path(b->s), name);
        return false;
    }
    const struct pp_tensor *norm = pp_plan_number_rows(b->p, n, dim, &weights, b->err);
    if (!norm || !read_numbers(b, t, n, weights))
        return false;
    for (int64_t i = n * dim - 1; i >= 0; i--) /* downwards, as the first n are still to be read */
        weights[i] = weights[i / dim];
    add(b, (struct pp_op){.kind = PP_OP_HEAD_NORM, .layer = l, .weight = norm, .in = b->q, .in2 = NONE, .out = b->q});
    return true;
}

bool pp_gains_first(struct builder *b, int l)
{
    float gain;
    if (!pp_gains_number(b, l, "layer_output_scale.weight", 0, &gain))
        return false;
    if (gain != 0.0f)
        add_sum(b, l, gain, b->first, b->x);
    return true;
}
