/* decoder_blocks.c - indexers that pick blocks of positions.
 *
 * MiniMax M3's has one head for each KV head, with a query each and one key in common, normalised and rotated. A
 * block's score is the largest product of the head's query with a key of one of its positions. The query heads of a KV
 * head see the blocks with the largest scores, and always the last index_n_local ones, which include the row's own.
 *
 * Qwen 4's has one key for each block, the mean of its positions' keys, which is then normalised and rotated. Scores
 * are summed over the heads, and all heads of attention see the same blocks. */
#include <stdio.h>

#include "engine/arch/decoder_int.h"

bool pp_blocks_picked(const struct builder *b, int l)
{
    return b->hp->index_block && !b->hp->kv_lora_rank && !(b->hp->layer[l] & PP_LAYER_DENSE);
}

bool pp_blocks_input(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int q = pp_plan_linear(b->p, b->s, hp->n_index_head * hp->index_dim, hp->n_embd, b->err,
                                 "blk.%d.indexer.q_proj", l);
    const int k = q < 0 ? -1 : pp_plan_linear(b->p, b->s, hp->index_dim, hp->n_embd, b->err,
                                              "blk.%d.indexer.k_proj", l);
    if (k < 0)
        return false;
    add_linear(b, l, q, b->normalised, b->index_q);
    add_linear(b, l, k, b->normalised, hp->index_pooled ? b->index_own_k : b->index_k);
    return true;
}

bool pp_blocks_pick(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    struct pp_op q = {.kind = PP_OP_HEAD_NORM, .layer = l, .in = b->index_q, .in2 = NONE, .out = b->index_q};
    struct pp_op k = {.kind = PP_OP_NORM, .layer = l, .in = b->index_k, .in2 = NONE, .out = b->index_k};
    char q_norm[64], k_norm[64];
    snprintf(q_norm, sizeof q_norm, "blk.%d.indexer.q_norm", l);
    snprintf(k_norm, sizeof k_norm, "blk.%d.indexer.k_norm", l);
    if (!pp_decoder_find_norm(b, q_norm, hp->index_dim, &q) || !pp_decoder_find_norm(b, k_norm, hp->index_dim, &k))
        return false;
    add(b, q);
    if (hp->index_pooled)
        add(b, (struct pp_op){.kind = PP_OP_POOL, .layer = l, .period = hp->index_block, .in = b->index_own_k,
                              .in2 = NONE, .out = b->index_k});
    add(b, k);
    add(b, (struct pp_op){.kind = PP_OP_PICK, .layer = l, .neox = hp->index_neox, .in = b->index_q,
                          .in2 = b->index_k, .in3 = NONE, .out = NONE, .count = hp->index_top_k,
                          .period = hp->index_block, .pooled = hp->index_pooled, .local = hp->index_n_local});
    return true;
}

void pp_blocks_slots(struct builder *b)
{
    b->index_q = pp_plan_slot(b->p, b->hp->n_index_head * b->hp->index_dim);
    b->index_k = pp_plan_slot(b->p, b->hp->index_dim);
    if (b->hp->index_pooled)
        b->index_own_k = pp_plan_slot(b->p, b->hp->index_dim);
}
