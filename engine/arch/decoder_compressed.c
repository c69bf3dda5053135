/* decoder_compressed.c - DeepSeek V4's attention: one vector of a position serves all heads as key and value, and a row
 * sees a window of positions and, before that, blocks of positions compressed to one vector each.
 *
 * The technical report calls it compressed sparse attention where blocks have 4 positions: a block's vector is computed
 * from the previous block, too, and an indexer, whose keys are compressed in the same way, picks the blocks that a row
 * sees. With longer blocks it is heavily compressed attention, and a row sees all. The indexer's scores are those of
 * DeepSeek V3.2 (arXiv 2512.02556), without the constant factors and the Hadamard matrix of the published code, which
 * do not change their order. That code also rounds keys to FP8 and the indexer's to FP4; we do not.
 *
 * As values are keys, their last rope_dim dimensions are rotated; attention's output is rotated back by the row's
 * position. */

#include "engine/arch/decoder_int.h"

/* What compresses blocks: the projections NAME_kv and NAME_gate of the normalised input. A block's key is the sum of
 * the former over its positions, weighted by a softmax of the latter. */
struct compressor {
    const char *name;     /* "attn_compressor" */
    int64_t dim;          /* of a key */
    int kv, gate;         /* linears */
    int block_in, block_gate, key; /* slots */
};

static int64_t width_of(const struct builder *b, int l, int64_t dim)
{
    return b->hp->compress[l] == PP_COMPRESS_PICKED ? 2 * dim : dim;
}

static bool find_compressor(struct builder *b, int l, struct compressor *c)
{
    const int64_t width = width_of(b, l, c->dim), n_embd = b->hp->n_embd;
    c->block_in = pp_plan_part(b->p, c->block_in, 0, width);
    c->block_gate = pp_plan_part(b->p, c->block_gate, 0, width);
    return (c->kv = pp_plan_linear(b->p, b->s, width, n_embd, b->err, "blk.%d.%s_kv", l, c->name)) >= 0 &&
           (c->gate = pp_plan_linear(b->p, b->s, width, n_embd, b->err, "blk.%d.%s_gate", l, c->name)) >= 0;
}

static void add_block_inputs(struct builder *b, int l, const struct compressor *c)
{
    add_linear(b, l, c->kv, b->normalised, c->block_in);
    add_linear(b, l, c->gate, b->normalised, c->block_gate);
}

static bool add_compression(struct builder *b, int l, const struct compressor *c)
{
    const int64_t stride = b->hp->compress[l];
    struct pp_op op = {.kind = PP_OP_COMPRESS, .layer = l, .stride = stride, .in = c->block_in, .in2 = c->block_gate,
                       .out = c->key};
    op.weight = pp_plan_tensor(b->s, 0, c->dim, b->err, "blk.%d.%s_norm.weight", l, c->name);
    op.bias = pp_plan_tensor(b->s, stride, width_of(b, l, c->dim), b->err, "blk.%d.%s_ape.weight", l, c->name);
    add(b, op);
    return op.weight && op.bias;
}

/* The linears of a layer. */
struct projections {
    int q_a, q_b, kv, index_q, index_weights, o;
    struct compressor keys, index;
};

static bool find_projections(struct builder *b, int l, struct projections *x)
{
    const struct pp_hparams *hp = b->hp;
    const bool picks = hp->compress[l] == PP_COMPRESS_PICKED;
    *x = (struct projections){.keys = {.name = "attn_compressor", .dim = hp->head_dim, .block_in = b->block_in,
                                       .block_gate = b->block_gate, .key = b->block_key},
                              .index = {.name = "indexer_compressor", .dim = hp->index_dim,
                                        .block_in = b->index_block_in, .block_gate = b->index_block_gate,
                                        .key = b->index_k}};
    return (x->q_a = pp_plan_linear(b->p, b->s, hp->q_lora_rank, hp->n_embd, b->err, "blk.%d.attn_q_a", l)) >= 0 &&
           (x->q_b = pp_plan_linear(b->p, b->s, b->n_q, hp->q_lora_rank, b->err, "blk.%d.attn_q_b", l)) >= 0 &&
           (x->kv = pp_plan_linear(b->p, b->s, hp->head_dim, hp->n_embd, b->err, "blk.%d.attn_kv", l)) >= 0 &&
           (x->o = pp_plan_linear(b->p, b->s, hp->n_embd, hp->o_groups * hp->o_rank, b->err, "blk.%d.attn_output_b",
                                  l)) >= 0 &&
           (!hp->compress[l] || find_compressor(b, l, &x->keys)) &&
           (!picks || (find_compressor(b, l, &x->index) &&
                       (x->index_q = pp_plan_linear(b->p, b->s, hp->n_index_head * hp->index_dim, hp->q_lora_rank,
                                                    b->err, "blk.%d.indexer.attn_q_b", l)) >= 0 &&
                       (x->index_weights = pp_plan_linear(b->p, b->s, hp->n_index_head, hp->n_embd, b->err,
                                                          "blk.%d.indexer.proj", l)) >= 0));
}

/* The keys of blocks, and the indexer's picks among them. */
static bool add_blocks(struct builder *b, int l, const struct projections *x)
{
    const struct pp_hparams *hp = b->hp;
    if (!add_compression(b, l, &x->keys))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .stride = hp->compress[l], .in = b->block_key,
                          .in2 = NONE, .out = NONE});
    if (hp->compress[l] != PP_COMPRESS_PICKED)
        return true;
    if (!add_compression(b, l, &x->index))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_PICK, .layer = l, .stride = hp->compress[l], .neox = hp->rope_neox,
                          .in = b->index_q, .in2 = b->index_k, .in3 = b->index_weights, .out = NONE,
                          .count = hp->index_top_k, .at = hp->index_dim - hp->rope_dim});
    return true;
}

static void add_rotation(struct builder *b, int l, int slot)
{
    add(b, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .local_rope = b->hp->layer[l] & PP_LAYER_LOCAL_ROPE,
                          .in = slot, .in2 = NONE, .out = slot});
}

/* From queries and keys to the output of attention. */
static bool add_attention(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t stride = hp->compress[l], n_picked = stride == PP_COMPRESS_PICKED ? hp->index_top_k : 0;
    struct pp_op norm = {.kind = PP_OP_HEAD_NORM, .layer = l, .in = b->k, .in2 = NONE, .out = b->k};
    const struct pp_tensor *sinks = pp_plan_tensor(b->s, 0, hp->n_head, b->err, "blk.%d.attn_sinks.weight", l);
    if (!sinks ||
        !(norm.weight = pp_plan_tensor(b->s, 0, hp->head_dim, b->err, "blk.%d.attn_kv_a_norm.weight", l)))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_HEAD_NORM, .layer = l, .weight = b->head_ones, .in = b->q, .in2 = NONE,
                          .out = b->q});
    add(b, norm);
    add_rotation(b, l, b->q);
    add_rotation(b, l, b->k);
    add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .window = hp->window, .stride = stride, .in = b->k,
                          .in2 = b->k, .out = NONE, .count = n_picked});
    add(b, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .window = hp->window, .stride = stride,
                          .weight = sinks, .in = b->q, .in2 = NONE, .out = b->att, .count = n_picked});
    add(b, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .local_rope = hp->layer[l] & PP_LAYER_LOCAL_ROPE,
                          .inverse = true, .neox = hp->rope_neox, .period = hp->head_dim,
                          .at = hp->head_dim - hp->rope_dim, .in = b->att, .in2 = NONE, .out = b->att});
    return true;
}

bool pp_compressed_result(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t of_group = b->n_att / hp->o_groups;
    struct projections x;
    const bool blocks = hp->compress[l] != 0, picks = hp->compress[l] == PP_COMPRESS_PICKED;
    if (!find_projections(b, l, &x) || !add_norm(b, l, "attn_norm", b->x, b->normalised))
        return false;
    add_linear(b, l, x.q_a, b->normalised, b->q_low);
    add_linear(b, l, x.kv, b->normalised, b->k);
    if (blocks)
        add_block_inputs(b, l, &x.keys);
    if (picks) {
        add_block_inputs(b, l, &x.index);
        add_linear(b, l, x.index_weights, b->normalised, b->index_weights);
    }
    if (!pp_decoder_norm(b, l, "attn_q_a_norm", hp->q_lora_rank, b->q_low, b->q_low_normalised))
        return false;
    add_linear(b, l, x.q_b, b->q_low_normalised, b->q);
    if (picks)
        add_linear(b, l, x.index_q, b->q_low_normalised, b->index_q);
    if ((blocks && !add_blocks(b, l, &x)) || !add_attention(b, l))
        return false;
    const int groups = pp_plan_heads(b->p, b->s, (int)hp->o_groups, hp->o_rank, of_group, b->err,
                                     "blk.%d.attn_output_a.weight", l);
    add(b, (struct pp_op){.kind = PP_OP_HEADS, .layer = l, .heads = groups, .in = b->att, .in2 = NONE,
                          .out = b->grouped});
    add_linear(b, l, x.o, b->grouped, b->delta);
    return groups >= 0;
}

void pp_compressed_slots(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    b->q_low = pp_plan_slot(b->p, hp->q_lora_rank);
    b->q_low_normalised = pp_plan_slot(b->p, hp->q_lora_rank);
    b->q = pp_plan_slot(b->p, b->n_q);
    b->k = pp_plan_slot(b->p, hp->head_dim);
    b->grouped = pp_plan_slot(b->p, hp->o_groups * hp->o_rank);
    b->block_in = pp_plan_slot(b->p, 2 * hp->head_dim);
    b->block_gate = pp_plan_slot(b->p, 2 * hp->head_dim);
    b->block_key = pp_plan_slot(b->p, hp->head_dim);
    if (!hp->index_top_k)
        return;
    b->index_block_in = pp_plan_slot(b->p, 2 * hp->index_dim);
    b->index_block_gate = pp_plan_slot(b->p, 2 * hp->index_dim);
    b->index_q = pp_plan_slot(b->p, hp->n_index_head * hp->index_dim);
    b->index_k = pp_plan_slot(b->p, hp->index_dim);
    b->index_weights = pp_plan_slot(b->p, hp->n_index_head);
}
