/* decoder_ff.c - the feed-forward part of a decoder's layers: with a gate (arXiv 2002.05202) or without, or a mixture
 * of experts (arXiv 2401.04088), perhaps with shared experts (arXiv 2401.06066). */
#include <math.h>
#include <stdio.h>

#include "engine/arch/decoder_int.h"
#include "engine/xielu.h"

static enum pp_fn gate_fn(const struct builder *b, float bound)
{
    const enum pp_fn fn = pp_decoder_fn(b->d, b->hp);
    return bound == 0.0f || fn == PP_FN_CLAMPED ? fn
           : b->d->clamp_before_silu                ? PP_FN_SILU_WITHIN
                                                : PP_FN_SILU_BOUNDED;
}

/* Sets a gate's activation function. bound, if not 0: both the gate and the value it multiplies are clamped to it. */
static void set_gate(const struct builder *b, float bound, struct pp_op *op)
{
    op->fn = gate_fn(b, bound);
    op->scale = bound;
}

/* The activation function of `in` or, if there is an in2, of the gate `in` that multiplies it, to `act`. */
static bool add_activation(struct builder *b, int l, int in, int in2)
{
    struct pp_op op = {.kind = in2 == NONE ? PP_OP_APPLY : PP_OP_GATE, .layer = l, .in = in, .in2 = in2,
                       .out = b->act};
    set_gate(b, in2 == NONE ? 0.0f : b->hp->gate_bound[l], &op);
    for (int i = 0; op.fn == PP_FN_XIELU && i < PP_XIELU_NUMBERS; i++)
        if (!(op.xielu[i] = pp_plan_tensor(b->s, 0, 1, b->err, "blk.%d.xielu.%s", l, pp_xielu_names[i])))
            return false;
    add(b, op);
    return true;
}

bool pp_ff_up(struct builder *b, int l, int in)
{
    const int64_t n_ff = b->shape.n_ff, n_embd = b->hp->n_embd;
    const bool fused = b->d->fused_gate || b->hp->fused_parts;
    int gate = 0, up;
    if (!fused && !b->d->ungated &&
        (gate = pp_plan_linear(b->p, b->s, n_ff, n_embd, b->err, "blk.%d.ffn_gate", l)) < 0)
        return false;
    if ((up = pp_plan_linear(b->p, b->s, fused ? 2 * n_ff : n_ff, n_embd, b->err, "blk.%d.%s", l,
                             b->hp->fused_parts ? "ffn_gate_up" : "ffn_up")) < 0)
        return false;
    if (!fused && !b->d->ungated)
        add_linear(b, l, gate, in, b->gate);
    add_linear(b, l, up, in, fused ? b->gate_up : b->up);
    if (b->hp->sparsity[l] != 0.0f)
        add(b, (struct pp_op){.kind = PP_OP_SPARSEN, .scale = b->hp->sparsity[l], .layer = l, .in = b->gate,
                              .in2 = NONE, .out = b->gate});
    return b->hp->polynorm_gates ? pp_poly_gate(b, l)
           : b->d->ungated        ? add_activation(b, l, b->up, NONE)
                                  : add_activation(b, l, b->gate, b->up);
}

bool pp_ff_down(struct builder *b, int l)
{
    if (b->d->sub_norms && !pp_decoder_norm(b, l, "ffn_sub_norm", b->shape.n_ff, b->act, b->act))
        return false;
    int down = pp_plan_linear(b->p, b->s, b->hp->n_embd, b->shape.n_ff, b->err, "blk.%d.ffn_down", l);
    add_linear(b, l, down, b->act, b->delta);
    return down >= 0;
}

bool pp_ff_norm(struct builder *b, int l)
{
    const char *kind = b->d->ffn_norm ? b->d->ffn_norm : "ffn_norm";
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", l, kind);
    if (b->hp->parallel && !pp_source_tensor(b->s, name))
        kind = "attn_norm";
    return add_norm(b, l, kind, b->x, b->normalised);
}

/* Finds the biases of the experts' matrices, where there are any. */
static bool find_biases(struct builder *b, int l, struct pp_experts *e)
{
    const struct {
        const char *kind;
        int64_t n_out;
        const struct pp_tensor **to;
    } biases[] = {{"gate", pp_layer_experts(b->hp, l).n_ff, &e->gate_b},
                  {"up", pp_layer_experts(b->hp, l).n_ff, &e->up_b},
                  {"down", b->hp->n_embd_expert ? b->hp->n_embd_expert : b->hp->n_embd, &e->down_b}};
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.bias", l, biases[i].kind);
        if (pp_source_tensor(b->s, name) &&
            !(*biases[i].to = pp_plan_tensor(b->s, e->n, biases[i].n_out, b->err, "%s", name)))
            return false;
    }
    return true;
}

bool pp_shared_expert_up(struct builder *b, int l)
{
    const int64_t n_ff = b->hp->n_ff_shared, n_embd = b->hp->n_embd;
    const bool gated = !b->d->ungated, fused = b->d->fused_shared, apart = gated && !fused;
    const int gate = apart ? pp_plan_linear(b->p, b->s, n_ff, n_embd, b->err, "blk.%d.ffn_gate_shexp", l) : 0;
    const int up = gate < 0 ? -1 : pp_plan_linear(b->p, b->s, fused ? 2 * n_ff : n_ff, n_embd, b->err,
                                                  "blk.%d.ffn_up_shexp", l);
    if (up < 0 || !pp_ff_norm(b, l))
        return false;
    if (apart)
        add_linear(b, l, gate, b->normalised, b->shared_gate);
    add_linear(b, l, up, b->normalised, fused ? b->shared_both : b->shared_up);
    struct pp_op op = {.kind = gated ? PP_OP_GATE : PP_OP_APPLY, .layer = l,
                       .in = gated ? b->shared_gate : b->shared_up, .in2 = gated ? b->shared_up : NONE,
                       .out = b->shared_act};
    set_gate(b, gated ? b->hp->gate_bound[l] : 0.0f, &op);
    add(b, op);
    return true;
}

bool pp_shared_expert_down(struct builder *b, int l, int out)
{
    const int down = pp_plan_linear(b->p, b->s, b->hp->n_embd, b->hp->n_ff_shared, b->err, "blk.%d.ffn_down_shexp", l);
    add_linear(b, l, down, b->shared_act, out);
    return down >= 0;
}

/* Gemma 4: the router has a norm of its own. */
static bool add_router_norm(struct builder *b, int l)
{
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .in = b->x, .in2 = NONE, .out = b->normalised};
    norm.weight = pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "blk.%d.ffn_gate_inp.scale", l);
    add(b, norm);
    return norm.weight != NULL;
}

/* The slot that experts and their router read, and the norm that fills it. */
static int expert_input(const struct builder *b)
{
    return b->d->experts_read_stream ? b->x : b->normalised;
}

static bool add_expert_norm(struct builder *b, int l)
{
    return b->d->experts_read_stream      ? true
           : b->d->experts_plus_dense ? add_norm(b, l, "pre_ffw_norm_2", b->x, b->normalised)
           : b->d->mixture_norm ? add_norm(b, l, b->d->mixture_norm, b->x, b->normalised)
                                : pp_ff_norm(b, l);
}

/* The router's logits, from a slot, soft-capped if the model does that. */
static void add_router_logits(struct builder *b, int l, int router, int in)
{
    add_linear(b, l, router, in, b->router);
    if (b->hp->router_softcap != 0.0f)
        add_fn(b, l, PP_FN_CAP, b->hp->router_softcap, b->router, b->router);
}

/* The router; and the shared expert's weight, a sigmoid, if there is one. */
static bool add_router(struct builder *b, int l)
{
    int router, weight = -1;
    if (b->d->early_router)
        return true; /* its logits are there already */
    if (b->hp->router_rank)
        return add_expert_norm(b, l) && pp_mlp_router(b, l);
    router = pp_plan_linear(b->p, b->s, b->hp->n_expert + b->hp->n_expert_idle, b->hp->n_embd, b->err,
                            "blk.%d.ffn_gate_inp", l);
    if (router < 0 || !(b->d->experts_plus_dense ? add_router_norm(b, l) : add_expert_norm(b, l)))
        return false;
    add_router_logits(b, l, router, expert_input(b));
    if (b->d->experts_plus_dense) /* Gemma 4 divides the router's input by sqrt(n_embd) */
        add_fn(b, l, PP_FN_SCALE, 1.0f / sqrtf((float)b->hp->n_embd), b->router, b->router);
    if (b->d->shared_expert_mix && !pp_shared_expert_mix(b, l))
        return false;
    if (!b->hp->n_ff_shared || !pp_decoder_has(b, l, "ffn_gate_inp_shexp.weight"))
        return true;
    if ((weight = pp_plan_linear(b->p, b->s, 1, b->hp->n_embd, b->err, "blk.%d.ffn_gate_inp_shexp", l)) < 0)
        return false;
    add_linear(b, l, weight, b->normalised, b->shared_weight);
    /* The weight is applied before the down matrix, which is linear. */
    add_weighed(b, l, PP_FN_SIGMOID, b->shared_weight, b->shared_act, b->shared_act);
    return true;
}

/* Experts narrower than the stream (n_embd_expert), between a matrix that projects down and one that projects back. */
static bool add_narrow_experts(struct builder *b, int l, const struct pp_experts *e)
{
    const int64_t n = b->hp->n_embd_expert, n_embd = b->hp->n_embd;
    const char *kind = pp_decoder_has(b, l, "ffn_routed_down.weight") ? "routed" : "latent";
    const int in = pp_plan_linear(b->p, b->s, n, n_embd, b->err, "blk.%d.ffn_%s_down", l, kind);
    const int out = in < 0 ? -1 : pp_plan_linear(b->p, b->s, n_embd, n, b->err, "blk.%d.ffn_%s_up", l, kind);
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .in = b->narrow_out, .in2 = NONE, .out = b->narrow_out};
    if (out < 0)
        return false;
    add_linear(b, l, in, b->normalised, b->narrow);
    add(b, (struct pp_op){.kind = PP_OP_EXPERTS, .layer = l, .experts = pp_plan_experts(b->p, e), .in = b->narrow,
                          .in2 = b->router, .out = b->narrow_out});
    if (pp_decoder_has(b, l, "ffn_routed_norm.weight")) {
        if (!(norm.weight = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.ffn_routed_norm.weight", l)))
            return false;
        add(b, norm);
    }
    add_linear(b, l, out, b->narrow_out, b->delta);
    return true;
}

bool pp_experts_choose(struct builder *b, int l)
{
    const int router = pp_plan_linear(b->p, b->s, b->hp->n_expert, b->hp->n_embd, b->err, "blk.%d.ffn_gate_inp", l);
    add_router_logits(b, l, router, b->x);
    return router >= 0;
}

bool pp_experts_result(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const struct pp_layer_experts of_layer = pp_layer_experts(hp, l);
    const int64_t n_embd = hp->n_embd_expert ? hp->n_embd_expert : hp->n_embd, n_ff = of_layer.n_ff;
    struct pp_experts e = {.n = (int)(hp->n_expert + hp->n_expert_idle), .idle = (int)hp->n_expert_idle,
                           .zero_output = hp->idle_output_zero,
                           .n_used = of_layer.n_used, .no_renorm = hp->expert_no_renorm,
                           .sigmoids = hp->expert_sigmoids, .mixer_jitter = hp->expert_mixer_jitter,
                           .scale = hp->expert_scale, .weighted_inputs = b->d->weighted_inputs,
                           .bound = hp->expert_bound[l], .fn = gate_fn(b, hp->expert_bound[l])};
    if (hp->n_expert_group > 1) {
        e.n_groups = (int)hp->n_expert_group;
        e.n_groups_used = (int)hp->n_expert_group_used;
        e.groups_by_largest = hp->expert_group_largest;
    }
    if (pp_decoder_has(b, l, "exp_probs_b.bias") &&
        !(e.choice_bias = pp_plan_tensor(b->s, 0, e.n, b->err, "blk.%d.exp_probs_b.bias", l)))
        return false;
    e.sqrt_softplus = hp->expert_sqrt_softplus;
    if (l < hp->n_hash_routed_layers && !(e.table = pp_plan_table(b->s, hp->n_vocab, e.n_used, b->err,
                                                                  "blk.%d.ffn_gate_tid2eid.weight", l)))
        return false;
    if (pp_decoder_has(b, l, "ffn_down_exps.scale") &&
        !(e.scales = pp_plan_tensor(b->s, 0, hp->n_expert, b->err, "blk.%d.ffn_down_exps.scale", l)))
        return false;
    if (hp->head_mixture && !(e.bias = pp_plan_tensor(b->s, 0, hp->n_embd, b->err, "blk.%d.ffn_output.bias", l)))
        return false;
    const int n = pp_experts_matrices(&e);
    if (!add_router(b, l) || !find_biases(b, l, &e) ||
        (!b->d->ungated &&
         !(e.gate = pp_plan_matrices(b->p, b->s, n, n_ff, n_embd, b->err, "blk.%d.ffn_gate", l))) ||
        !(e.up = pp_plan_matrices(b->p, b->s, n, n_ff, n_embd, b->err, "blk.%d.ffn_up", l)) ||
        !(e.down = pp_plan_matrices(b->p, b->s, n, n_embd, n_ff, b->err, "blk.%d.ffn_down", l)))
        return false;
    if (!add_expert_norm(b, l)) /* again, as the backend may fuse a norm into the projection that reads it */
        return false;
    if (hp->n_embd_expert)
        return add_narrow_experts(b, l, &e);
    add(b, (struct pp_op){.kind = PP_OP_EXPERTS, .layer = l, .experts = pp_plan_experts(b->p, &e),
                          .in = expert_input(b), .in2 = b->router, .out = b->delta});
    if (b->d->shared_expert_mix)
        add_weighed(b, l, PP_FN_SIGMOID, b->expert_share, b->delta, b->delta);
    return true;
}

bool pp_shared_experts(struct builder *b, int l, int out)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n_embd = hp->n_embd, n_ff = hp->n_ff_share;
    const int n = (int)(hp->n_expert / hp->n_expert_share);
    struct pp_experts e = {.n = (int)hp->n_expert, .n_used = (int)hp->n_expert_used, .share = (int)hp->n_expert_share,
                           .no_renorm = hp->expert_no_renorm, .sigmoids = hp->expert_sigmoids,
                           .scale = hp->expert_share_scale, .fn = pp_decoder_fn(b->d, hp)};
    if (!(e.gate = pp_plan_matrices(b->p, b->s, n, n_ff, n_embd, b->err, "blk.%d.ffn_gate_ch", l)) ||
        !(e.up = pp_plan_matrices(b->p, b->s, n, n_ff, n_embd, b->err, "blk.%d.ffn_up_ch", l)) ||
        !(e.down = pp_plan_matrices(b->p, b->s, n, n_embd, n_ff, b->err, "blk.%d.ffn_down_ch", l)) ||
        !add_expert_norm(b, l))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_EXPERTS, .layer = l, .experts = pp_plan_experts(b->p, &e), .in = b->normalised,
                          .in2 = b->router, .out = out});
    return true;
}
