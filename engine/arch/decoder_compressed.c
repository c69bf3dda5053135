/* decoder_compressed.c - attention of which one vector of a position is the key of all heads and their value, too, and
 * which sees few positions, but behind them whole blocks by one vector each: DeepSeek V4's.
 *
 * Its technical report calls blocks of 4 positions compressed sparse attention: each is made of the block before it as
 * well, and an index, whose keys are made in the same way, picks those that a row sees; and longer ones heavily
 * compressed attention, of which a row sees all. The scores of the index are those of DeepSeek V3.2's (arXiv
 * 2512.02556): what the published code multiplies them by, and the Hadamard matrix on both sides of them, change no
 * order. It also rounds keys to FP8 and those of the index to FP4, which is not done here. As values are keys, a part
 * of them is rotated; it is turned back in what attention gives, by the row's position. */

#include "engine/arch/decoder_int.h"

/* What makes keys of blocks: projections called NAME_kv and NAME_gate of the normed input. */
struct compressor {
    const char *name;     /* "attn_compressor" */
    int64_t dim;          /* of a key */
    int kv, gate;         /* projections */
    int brought, share, key; /* slots */
};

static int64_t width_of(const struct builder *b, int l, int64_t dim)
{
    return b->hp->compress[l] == PP_COMPRESS_PICKED ? 2 * dim : dim;
}

static bool find_compressor(struct builder *b, int l, struct compressor *c)
{
    const int64_t width = width_of(b, l, c->dim), n_embd = b->hp->n_embd;
    c->brought = pp_plan_part(b->p, c->brought, 0, width);
    c->share = pp_plan_part(b->p, c->share, 0, width);
    return (c->kv = pp_plan_linear(b->p, b->s, width, n_embd, b->err, "blk.%d.%s_kv", l, c->name)) >= 0 &&
           (c->gate = pp_plan_linear(b->p, b->s, width, n_embd, b->err, "blk.%d.%s_gate", l, c->name)) >= 0;
}

static void add_brought(struct builder *b, int l, const struct compressor *c)
{
    add_linear(b, l, c->kv, b->normed, c->brought);
    add_linear(b, l, c->gate, b->normed, c->share);
}

static bool add_compression(struct builder *b, int l, const struct compressor *c)
{
    const int64_t stride = b->hp->compress[l];
    struct pp_op op = {.kind = PP_OP_COMPRESS, .layer = l, .stride = stride, .in = c->brought, .in2 = c->share,
                       .out = c->key};
    op.weight = pp_plan_tensor(b->s, 0, c->dim, b->err, "blk.%d.%s_norm.weight", l, c->name);
    op.bias = pp_plan_tensor(b->s, stride, width_of(b, l, c->dim), b->err, "blk.%d.%s_ape.weight", l, c->name);
    add(b, op);
    return op.weight && op.bias;
}

/* The projections of a layer. */
struct projections {
    int q_a, q_b, kv, index_q, index_weights, o;
    struct compressor keys, index;
};

static bool find_projections(struct builder *b, int l, struct projections *x)
{
    const struct pp_hparams *hp = b->hp;
    const bool picks = hp->compress[l] == PP_COMPRESS_PICKED;
    *x = (struct projections){.keys = {.name = "attn_compressor", .dim = hp->head_dim, .brought = b->brought,
                                       .share = b->share, .key = b->key},
                              .index = {.name = "indexer_compressor", .dim = hp->index_dim,
                                        .brought = b->index_brought, .share = b->index_share, .key = b->index_k}};
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

/* Keys of blocks, and which of them are picked. */
static bool add_blocks(struct builder *b, int l, const struct projections *x)
{
    const struct pp_hparams *hp = b->hp;
    if (!add_compression(b, l, &x->keys))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .stride = hp->compress[l], .in = b->key, .in2 = NONE,
                          .out = NONE});
    if (hp->compress[l] != PP_COMPRESS_PICKED)
        return true;
    if (!add_compression(b, l, &x->index))
        return false;
    add(b, (struct pp_op){.kind = PP_OP_PICK, .layer = l, .stride = hp->compress[l], .halves = hp->rope_neox,
                          .in = b->index_q, .in2 = b->index_k, .in3 = b->index_weights, .out = NONE,
                          .count = hp->index_top_k, .at = hp->index_dim - hp->rope_dim});
    return true;
}

static void add_rotation(struct builder *b, int l, int slot)
{
    add(b, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .local_rope = b->hp->layer[l] & PP_LAYER_LOCAL_ROPE,
                          .in = slot, .in2 = NONE, .out = slot});
}

/* From queries and keys to what attention gives. */
static bool add_seeing(struct builder *b, int l)
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
                          .back = true, .halves = hp->rope_neox, .period = hp->head_dim,
                          .at = hp->head_dim - hp->rope_dim, .in = b->att, .in2 = NONE, .out = b->att});
    return true;
}

bool pp_compressed_result(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t of_group = b->n_att / hp->o_groups;
    struct projections x;
    const bool blocks = hp->compress[l] != 0, picks = hp->compress[l] == PP_COMPRESS_PICKED;
    if (!find_projections(b, l, &x) || !add_norm(b, l, "attn_norm", b->x, b->normed))
        return false;
    add_linear(b, l, x.q_a, b->normed, b->q_low);
    add_linear(b, l, x.kv, b->normed, b->k);
    if (blocks)
        add_brought(b, l, &x.keys);
    if (picks) {
        add_brought(b, l, &x.index);
        add_linear(b, l, x.index_weights, b->normed, b->index_weights);
    }
    if (!pp_decoder_norm(b, l, "attn_q_a_norm", hp->q_lora_rank, b->q_low, b->q_low_normed))
        return false;
    add_linear(b, l, x.q_b, b->q_low_normed, b->q);
    if (picks)
        add_linear(b, l, x.index_q, b->q_low_normed, b->index_q);
    if ((blocks && !add_blocks(b, l, &x)) || !add_seeing(b, l))
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
    b->q_low_normed = pp_plan_slot(b->p, hp->q_lora_rank);
    b->q = pp_plan_slot(b->p, b->n_q);
    b->k = pp_plan_slot(b->p, hp->head_dim);
    b->grouped = pp_plan_slot(b->p, hp->o_groups * hp->o_rank);
    b->brought = pp_plan_slot(b->p, 2 * hp->head_dim);
    b->share = pp_plan_slot(b->p, 2 * hp->head_dim);
    b->key = pp_plan_slot(b->p, hp->head_dim);
    if (!hp->index_top_k)
        return;
    b->index_brought = pp_plan_slot(b->p, 2 * hp->index_dim);
    b->index_share = pp_plan_slot(b->p, 2 * hp->index_dim);
    b->index_q = pp_plan_slot(b->p, hp->n_index_head * hp->index_dim);
    b->index_k = pp_plan_slot(b->p, hp->index_dim);
    b->index_weights = pp_plan_slot(b->p, hp->n_index_head);
}
