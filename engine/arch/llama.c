/* llama.c - the plan of the Llama family: pre-norm blocks of grouped-query attention with rotary positions, and SwiGLU.
 * Touvron et al., arXiv 2302.13971; grouped queries: arXiv 2305.13245. */
#include "engine/plan.h"

/* One operation of layer l that reads slot `in` (and `in2`, or -1) and gives slot `out`. */
static void add(struct pp_plan *p, enum pp_op_kind kind, int l, int in, int in2, int out)
{
    pp_plan_add(p, (struct pp_op){.kind = kind, .layer = l, .in = in, .in2 = in2, .out = out});
}

static void add_norm(struct pp_plan *p, int l, const struct pp_tensor *weight, int in, int out)
{
    pp_plan_add(p, (struct pp_op){.kind = PP_OP_NORM, .layer = l, .weight = weight, .in = in, .in2 = -1, .out = out});
}

static void add_linear(struct pp_plan *p, int l, int linear, int in, int out)
{
    pp_plan_add(p, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = linear, .in = in, .in2 = -1, .out = out});
}

enum pp_code pp_plan_llama(const struct pp_source *s, struct pp_plan *p, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    const int n_layer = (int)hp->n_layer;
    const int64_t n_embd = hp->n_embd, n_q = hp->n_head * hp->head_dim, n_kv = hp->n_head_kv * hp->head_dim;
    const struct pp_tensor *embedding = pp_plan_tensor(s, hp->n_vocab, n_embd, err, "token_embd.weight");
    const struct pp_tensor *output_norm = embedding ? pp_plan_tensor(s, 0, n_embd, err, "output_norm.weight") : NULL;
    if (!output_norm)
        return err->code;

    int x = pp_plan_slot(p, n_embd), normed = pp_plan_slot(p, n_embd);
    int q = pp_plan_slot(p, n_q), k = pp_plan_slot(p, n_kv), v = pp_plan_slot(p, n_kv), att = pp_plan_slot(p, n_q);
    int gate = pp_plan_slot(p, hp->n_ff), up = pp_plan_slot(p, hp->n_ff), act = pp_plan_slot(p, hp->n_ff);
    int delta = pp_plan_slot(p, n_embd), logits = pp_plan_slot(p, hp->n_vocab);

    pp_plan_add(p, (struct pp_op){.kind = PP_OP_EMBED, .weight = embedding, .in = -1, .in2 = -1, .out = x});
    for (int l = 0; l < n_layer; l++) {
        const struct pp_tensor *attn_norm = pp_plan_tensor(s, 0, n_embd, err, "blk.%d.attn_norm.weight", l);
        if (!attn_norm)
            return err->code;
        const struct pp_tensor *ffn_norm = pp_plan_tensor(s, 0, n_embd, err, "blk.%d.ffn_norm.weight", l);
        if (!ffn_norm)
            return err->code;
        int wq, wk, wv, wo, w_gate, w_up, w_down;
        if ((wq = pp_plan_linear(p, s, n_q, n_embd, err, "blk.%d.attn_q", l)) < 0 ||
            (wk = pp_plan_linear(p, s, n_kv, n_embd, err, "blk.%d.attn_k", l)) < 0 ||
            (wv = pp_plan_linear(p, s, n_kv, n_embd, err, "blk.%d.attn_v", l)) < 0 ||
            (wo = pp_plan_linear(p, s, n_embd, n_q, err, "blk.%d.attn_output", l)) < 0 ||
            (w_gate = pp_plan_linear(p, s, hp->n_ff, n_embd, err, "blk.%d.ffn_gate", l)) < 0 ||
            (w_up = pp_plan_linear(p, s, hp->n_ff, n_embd, err, "blk.%d.ffn_up", l)) < 0 ||
            (w_down = pp_plan_linear(p, s, n_embd, hp->n_ff, err, "blk.%d.ffn_down", l)) < 0)
            return err->code;

        add_norm(p, l, attn_norm, x, normed);
        add_linear(p, l, wq, normed, q);
        add_linear(p, l, wk, normed, k);
        add_linear(p, l, wv, normed, v);
        add(p, PP_OP_ROPE, l, q, -1, q);
        add(p, PP_OP_ROPE, l, k, -1, k);
        pp_plan_add(p, (struct pp_op){
                           .kind = PP_OP_KV_STORE, .layer = l, .window = hp->window, .in = k, .in2 = v, .out = -1});
        pp_plan_add(p, (struct pp_op){
                           .kind = PP_OP_ATTENTION, .layer = l, .window = hp->window, .in = q, .in2 = -1, .out = att});
        add_linear(p, l, wo, att, delta);
        add(p, PP_OP_ADD, l, delta, -1, x);

        add_norm(p, l, ffn_norm, x, normed);
        add_linear(p, l, w_gate, normed, gate);
        add_linear(p, l, w_up, normed, up);
        add(p, PP_OP_SWIGLU, l, gate, up, act);
        add_linear(p, l, w_down, act, delta);
        add(p, PP_OP_ADD, l, delta, -1, x);
    }

    const char *head = pp_source_tensor(s, "output.weight") ? "output" : "token_embd"; /* tied embeddings */
    int w_out = pp_plan_linear(p, s, hp->n_vocab, n_embd, err, "%s", head);
    if (w_out < 0)
        return err->code;
    add(p, PP_OP_SELECT, n_layer, x, -1, x);
    add_norm(p, n_layer, output_norm, x, normed);
    add_linear(p, n_layer, w_out, normed, logits);
    add(p, PP_OP_RESULT, n_layer, normed, logits, -1);
    return PP_OK;
}
