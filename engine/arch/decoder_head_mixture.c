/* decoder_head_mixture.c - experts for attention heads: JetMoE's mixture of attention heads (arXiv 2210.05144). Keys
 * and values are common to all experts. Each expert that a row uses makes n_head_kv queries, and the outputs of these
 * heads go through that expert's output matrix. And K2 Horizon's experts for values. */

#include "engine/arch/decoder_int.h"

/* Finds experts that are one matrix each, of queries or outputs, or (applied) of values. */
static bool find_matrices(struct builder *b, int l, const char *kind, int64_t n_out, int64_t n_in,
                          struct pp_experts *e)
{
    const struct pp_hparams *hp = b->hp;
    e->n = e->applied ? (int)hp->n_value_expert : (int)hp->n_expert;
    e->n_used = e->applied ? (int)hp->n_value_expert_used : (int)hp->n_expert_used;
    e->down = pp_plan_matrices(b->p, b->s, e->n, n_out, n_in, b->err, "blk.%d.%s", l, kind);
    return e->down != NULL;
}

bool pp_head_mixture_queries(struct builder *b, int l)
{
    struct pp_experts e = {.unsummed = true};
    const int64_t n_embd = b->hp->n_embd;
    const int router = pp_plan_linear(b->p, b->s, b->hp->n_expert, n_embd, b->err, "blk.%d.attn_gate_inp", l);
    if (router < 0 || !find_matrices(b, l, "attn_q", b->n_kv, n_embd, &e))
        return false;
    add_linear(b, l, router, b->normalised, b->head_router);
    if (!add_norm(b, l, "attn_norm", b->x, b->normalised)) /* again, as the backend may fuse it into the router */
        return false;
    add(b, (struct pp_op){.kind = PP_OP_EXPERTS, .layer = l, .experts = pp_plan_experts(b->p, &e), .in = b->normalised,
                          .in2 = b->head_router, .out = b->tiled});
    return true;
}

bool pp_head_mixture_result(struct builder *b, int l)
{
    struct pp_experts e = {.split_input = true};
    if (!find_matrices(b, l, "attn_output", b->hp->n_embd, b->n_kv, &e) ||
        !(e.bias = pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "blk.%d.attn_output.bias", l)))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_EXPERTS, .layer = l, .experts = pp_plan_experts(b->p, &e), .in = b->tiled,
                          .in2 = b->head_router, .out = b->delta});
    return true;
}

bool pp_has_mixed_values(const struct builder *b, int l)
{
    return b->hp->n_value_expert && !(b->hp->layer[l] & PP_LAYER_DENSE);
}

bool pp_mixed_values_router(struct builder *b, int l)
{
    const int router = pp_plan_linear(b->p, b->s, b->hp->n_value_expert, b->hp->n_embd, b->err, "blk.%d.attn_v_gate",
                                      l);
    if (router < 0)
        return false;
    pp_plan_linear_bias(b->p, router, NULL); /* attn_v_gate.bias takes part in the choice only, not in the weights */
    add_linear(b, l, router, b->normalised, b->head_router);
    return true;
}

bool pp_mixed_values(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    struct pp_experts e = {.applied = true, .fn = PP_FN_SILU, .no_renorm = hp->expert_no_renorm,
                           .sigmoids = hp->expert_sigmoids, .scale = hp->expert_scale};
    if (!find_matrices(b, l, "attn_v", b->n_v, hp->n_embd, &e))
        return false;
    if (pp_decoder_has(b, l, "attn_v_gate.bias") &&
        !(e.choice_bias = pp_plan_tensor(b->s, 0, e.n, b->err, "blk.%d.attn_v_gate.bias", l)))
        return false;
    if (!add_norm(b, l, "attn_norm", b->x, b->normalised)) /* again, as the backend may fuse it into the projections */
        return false;
    add(b, (struct pp_op){.kind = PP_OP_EXPERTS, .layer = l, .experts = pp_plan_experts(b->p, &e), .in = b->normalised,
                          .in2 = b->head_router, .out = b->v});
    return true;
}
