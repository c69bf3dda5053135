/* encoder.c - the plan of an encoder with post-norms, like BERT: layer by layer bidirectional attention and a
 * feed-forward part, each added to its input, with a LayerNorm of the sum.
 *
 * This is the code of all such families; struct pp_encoder and the hparams say in what they differ. Blocks: Vaswani et
 * al., arXiv 1706.03762; embeddings: Devlin et al., arXiv 1810.04805. Names of tensors: llama.cpp's. */
#include <stdio.h>

#include "engine/arch/arch.h"

/* A plan in the making. */
struct builder {
    const struct pp_source *s;
    const struct pp_hparams *hp;
    const struct pp_encoder *e;
    struct pp_plan *p;
    struct pp_error *err;
    bool fused_qkv;          /* q, k and v are one matrix */
    bool fused_gate;         /* ffn_up has the rows of the gate, then those of up */
    int x, delta;            /* the stream; a part's output, to be added to it */
    int qkv, q, k, v, att;
    int gate_up, gate, up, act, router;
};

static const int NONE = -1;

static void add(struct builder *b, struct pp_op op)
{
    pp_plan_add(b->p, op);
}

/* The projection blk.L.KIND, from one slot to another. */
static bool add_linear(struct builder *b, int l, const char *kind, int in, int64_t n_in, int out, int64_t n_out)
{
    int linear = pp_plan_linear(b->p, b->s, n_out, n_in, b->err, "blk.%d.%s", l, kind);
    add(b, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = linear, .in = in, .in2 = NONE, .out = out});
    return linear >= 0;
}

/* Normalises a slot in place. */
static bool add_norm(struct builder *b, int l, const char *name, int slot, int64_t n)
{
    struct pp_op norm = {.kind = PP_OP_NORM, .centred = true, .layer = l, .in = slot, .in2 = NONE, .out = slot};
    norm.weight = pp_plan_tensor(b->s, 0, n, b->err, "%s.weight", name);
    if (norm.weight)
        norm.bias = pp_plan_tensor(b->s, 0, n, b->err, "%s.bias", name);
    add(b, norm);
    return norm.weight && norm.bias;
}

static bool add_block_norm(struct builder *b, int l, const char *kind, int slot, int64_t n)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    return add_norm(b, l, name, slot, n);
}

/* x = norm(x + delta) */
static bool add_result(struct builder *b, int l, const char *norm)
{
    add(b, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .in = b->delta, .in2 = NONE, .out = b->x});
    return add_block_norm(b, l, norm, b->x, b->hp->n_embd);
}

static bool has_tensor(const struct builder *b, int l, const char *kind)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", l, kind);
    return pp_source_tensor(b->s, name);
}

/* --- attention ------------------------------------------------------------------------------------------------ */

static bool add_qkv(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, n_q = b->hp->n_head * b->hp->head_dim, n_kv = b->hp->n_head_kv * b->hp->head_dim;
    if (b->fused_qkv)
        return add_linear(b, l, "attn_qkv", b->x, n, b->qkv, n_q + 2 * n_kv);
    return add_linear(b, l, "attn_q", b->x, n, b->q, n_q) && add_linear(b, l, "attn_k", b->x, n, b->k, n_kv) &&
           add_linear(b, l, "attn_v", b->x, n, b->v, n_kv) &&
           (!has_tensor(b, l, "attn_q_norm") || add_block_norm(b, l, "attn_q_norm", b->q, n_q)) &&
           (!has_tensor(b, l, "attn_k_norm") || add_block_norm(b, l, "attn_k_norm", b->k, n_kv));
}

static void add_rope(struct builder *b, int l, int slot)
{
    add(b, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .in = slot, .in2 = NONE, .out = slot});
}

static bool add_attention(struct builder *b, int l)
{
    const int64_t n_q = b->hp->n_head * b->hp->head_dim;
    if (!add_qkv(b, l))
        return false;
    if (b->e->rotated) {
        add_rope(b, l, b->q);
        add_rope(b, l, b->k);
    }
    add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .in = b->k, .in2 = b->v, .out = NONE});
    add(b, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .scale = b->hp->attn_softcap, .alibi = b->e->alibi,
                          .in = b->q, .in2 = NONE, .out = b->att});
    return add_linear(b, l, "attn_output", b->att, n_q, b->delta, b->hp->n_embd) &&
           add_result(b, l, "attn_output_norm");
}

/* --- the feed-forward part -------------------------------------------------------------------------------------- */

static enum pp_fn function(const struct builder *b)
{
    return b->hp->activation == PP_ACTIVATION_GELU ? PP_FN_GELU : b->e->fn;
}

/* Experts without gates, with one bias for the sum of their outputs (Nomic Embed v2). */
static bool add_mixture(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n = hp->n_embd, n_ff = hp->n_ff_expert;
    char bias[64];
    struct pp_experts e = {.n = (int)hp->n_expert, .n_used = (int)hp->n_expert_used, .no_renorm = hp->expert_no_renorm,
                           .sigmoids = hp->expert_sigmoids, .scale = hp->expert_scale, .fn = function(b)};
    snprintf(bias, sizeof bias, "blk.%d.ffn_down_exps.bias", l);
    if (pp_source_tensor(b->s, bias) && !(e.bias = pp_plan_tensor(b->s, 0, n, b->err, "%s", bias)))
        return false;
    if (!(e.up = pp_plan_matrices(b->p, b->s, e.n, n_ff, n, b->err, "blk.%d.ffn_up", l)) ||
        !(e.down = pp_plan_matrices(b->p, b->s, e.n, n, n_ff, b->err, "blk.%d.ffn_down", l)) ||
        !add_linear(b, l, "ffn_gate_inp", b->x, n, b->router, hp->n_expert))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_EXPERTS, .layer = l, .experts = pp_plan_experts(b->p, &e), .in = b->x,
                          .in2 = b->router, .out = b->delta});
    return add_result(b, l, "layer_output_norm");
}

static bool add_ffn(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, n_ff = b->hp->n_ff;
    const bool gated = (b->e->gated && !b->hp->n_expert) || has_tensor(b, l, "ffn_gate");
    if (b->hp->n_expert && has_tensor(b, l, "ffn_gate_inp"))
        return add_mixture(b, l);
    struct pp_op fn = {.kind = PP_OP_APPLY, .fn = function(b), .layer = l, .in = b->up, .in2 = NONE, .out = b->act};
    if (!b->fused_gate && gated && !add_linear(b, l, "ffn_gate", b->x, n, b->gate, n_ff))
        return false;
    if (!add_linear(b, l, "ffn_up", b->x, n, b->fused_gate ? b->gate_up : b->up, b->fused_gate ? 2 * n_ff : n_ff))
        return false;
    if (b->fused_gate || gated) {
        fn.kind = PP_OP_GATE;
        fn.in = b->gate;
        fn.in2 = b->up;
    }
    add(b, fn);
    return add_linear(b, l, "ffn_down", b->act, n_ff, b->delta, n) && add_result(b, l, "layer_output_norm");
}

/* --- the model -------------------------------------------------------------------------------------------------- */

static void make_slots(struct builder *b)
{
    struct pp_plan *p = b->p;
    const struct pp_hparams *hp = b->hp;
    const int64_t n_q = hp->n_head * hp->head_dim, n_kv = hp->n_head_kv * hp->head_dim;
    b->x = pp_plan_slot(p, hp->n_embd);
    b->delta = pp_plan_slot(p, hp->n_embd);
    b->att = pp_plan_slot(p, n_q);
    b->qkv = pp_plan_slot(p, n_q + 2 * n_kv);
    b->q = b->fused_qkv ? pp_plan_part(p, b->qkv, 0, n_q) : pp_plan_slot(p, n_q);
    b->k = b->fused_qkv ? pp_plan_part(p, b->qkv, n_q, n_kv) : pp_plan_slot(p, n_kv);
    b->v = b->fused_qkv ? pp_plan_part(p, b->qkv, n_q + n_kv, n_kv) : pp_plan_slot(p, n_kv);
    b->gate_up = pp_plan_slot(p, 2 * hp->n_ff);
    b->gate = b->fused_gate ? pp_plan_part(p, b->gate_up, 0, hp->n_ff) : pp_plan_slot(p, hp->n_ff);
    b->up = b->fused_gate ? pp_plan_part(p, b->gate_up, hp->n_ff, hp->n_ff) : pp_plan_slot(p, hp->n_ff);
    b->act = pp_plan_slot(p, hp->n_ff);
    b->router = pp_plan_slot(p, hp->n_expert ? hp->n_expert : 1);
}

static bool add_embedding(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    struct pp_op embed = {.kind = PP_OP_EMBED, .in = NONE, .in2 = NONE, .out = b->x};
    embed.weight = pp_plan_tensor(b->s, hp->n_vocab, hp->n_embd, b->err, "token_embd.weight");
    if (!embed.weight)
        return false;
    if (b->e->positions &&
        !(embed.bias = pp_plan_tensor(b->s, hp->n_ctx_train, hp->n_embd, b->err, "position_embd.weight")))
        return false;
    if (pp_source_tensor(b->s, "token_types.weight") &&
        !(embed.segments = pp_plan_tensor(b->s, hp->n_segments, hp->n_embd, b->err, "token_types.weight")))
        return false;
    b->p->n_positions = b->e->positions ? hp->n_ctx_train : 0;
    add(b, embed);
    return add_norm(b, 0, "token_embd_norm", b->x, hp->n_embd);
}

/* Whether layer 0 has its gate in ffn_up; all layers must be alike. */
static bool has_fused_gate(const struct builder *b)
{
    const struct pp_tensor *up = pp_source_tensor(b->s, "blk.0.ffn_up.weight");
    return !has_tensor(b, 0, "ffn_gate") && up && up->n_dims == 2 && up->ne[1] == 2 * b->hp->n_ff;
}

enum pp_code pp_plan_encoder(const struct pp_source *s, const struct pp_encoder *e, struct pp_plan *plan,
                             struct pp_error *err)
{
    struct builder b = {.s = s, .hp = pp_source_hparams(s), .e = e, .p = plan, .err = err};
    const int n_layer = (int)b.hp->n_layer;
    if (has_tensor(&b, 0, "attn_norm_2"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s has a second norm after attention (attn_norm_2), which is not "
                                                "supported; use another model", pp_source_path(s));
    b.fused_qkv = has_tensor(&b, 0, "attn_qkv");
    b.fused_gate = has_fused_gate(&b);
    make_slots(&b);
    bool good = add_embedding(&b);
    for (int l = 0; good && l < n_layer; l++)
        good = add_attention(&b, l) && add_ffn(&b, l);
    add(&b, (struct pp_op){.kind = PP_OP_SELECT, .layer = n_layer, .in = b.x, .in2 = NONE, .out = b.x});
    add(&b, (struct pp_op){.kind = PP_OP_RESULT, .layer = n_layer, .in = b.x, .in2 = NONE, .out = NONE});
    return good ? PP_OK : err->code;
}
