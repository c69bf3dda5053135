/* decoder_blocks.c - an index that picks blocks of positions for each head of keys: MiniMax M3's. It has as many heads
 * as there are of keys, each with a query, and all of them one key, all normed and rotated. The score of a block is the
 * largest product of a head's query with the keys of its positions, and attention of the query heads that share a head
 * of keys sees the positions of the blocks with the largest scores. The last few blocks, the row's own being one, are
 * seen in any case. Or Qwen 4's: a block has one key, the mean of those of its positions, normed and rotated behind,
 * the heads' scores are added up, and all heads of attention see the same. */
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
    add_linear(b, l, q, b->normed, b->index_q);
    add_linear(b, l, k, b->normed, hp->index_pooled ? b->index_own_k : b->index_k);
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
    add(b, (struct pp_op){.kind = PP_OP_PICK, .layer = l, .halves = hp->index_halves, .in = b->index_q,
                          .in2 = b->index_k, .in3 = NONE, .out = NONE, .count = hp->index_top_k,
                          .period = hp->index_block, .pooled = hp->index_pooled, .local = hp->index_local});
    return true;
}

void pp_blocks_slots(struct builder *b)
{
    b->index_q = pp_plan_slot(b->p, b->hp->n_index_head * b->hp->index_dim);
    b->index_k = pp_plan_slot(b->p, b->hp->index_dim);
    if (b->hp->index_pooled)
        b->index_own_k = pp_plan_slot(b->p, b->hp->index_dim);
}
