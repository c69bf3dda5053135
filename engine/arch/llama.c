/* llama.c - the plan of the Llama family: pre-norm blocks of grouped-query attention with rotary positions, and SwiGLU.
 * Touvron et al., arXiv 2302.13971; grouped queries: arXiv 2305.13245. */
#include "engine/plan.h"

enum pp_code pp_plan_llama(const struct pp_source *s, struct pp_plan *p, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
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
    for (int l = 0; l < (int)hp->n_layer; l++) {
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

        pp_plan_add(p, (struct pp_op){.kind = PP_OP_NORM, .layer = l, .weight = attn_norm, .in = x, .in2 = -1, .out = normed});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = wq, .in = normed, .in2 = -1, .out = q});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = wk, .in = normed, .in2 = -1, .out = k});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = wv, .in = normed, .in2 = -1, .out = v});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .in = q, .in2 = -1, .out = q});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .in = k, .in2 = -1, .out = k});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .in = k, .in2 = v, .out = -1});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .in = q, .in2 = -1, .out = att});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = wo, .in = att, .in2 = -1, .out = delta});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .in = delta, .in2 = -1, .out = x});

        pp_plan_add(p, (struct pp_op){.kind = PP_OP_NORM, .layer = l, .weight = ffn_norm, .in = x, .in2 = -1, .out = normed});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = w_gate, .in = normed, .in2 = -1, .out = gate});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = w_up, .in = normed, .in2 = -1, .out = up});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_SWIGLU, .layer = l, .in = gate, .in2 = up, .out = act});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = w_down, .in = act, .in2 = -1, .out = delta});
        pp_plan_add(p, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .in = delta, .in2 = -1, .out = x});
    }

    const char *head = pp_source_tensor(s, "output.weight") ? "output" : "token_embd"; /* tied embeddings */
    int w_out = pp_plan_linear(p, s, hp->n_vocab, n_embd, err, "%s", head);
    if (w_out < 0)
        return err->code;
    pp_plan_add(p, (struct pp_op){.kind = PP_OP_SELECT, .layer = (int)hp->n_layer, .in = x, .in2 = -1, .out = x});
    pp_plan_add(p, (struct pp_op){.kind = PP_OP_NORM, .layer = (int)hp->n_layer, .weight = output_norm, .in = x, .in2 = -1, .out = normed});
    pp_plan_add(p, (struct pp_op){.kind = PP_OP_LINEAR, .layer = (int)hp->n_layer, .linear = w_out, .in = normed, .in2 = -1, .out = logits});
    pp_plan_add(p, (struct pp_op){.kind = PP_OP_RESULT, .layer = (int)hp->n_layer, .in = normed, .in2 = logits, .out = -1});
    return PP_OK;
}
