/* decoder_zamba.c - the layers of Zamba2 (arXiv 2411.15242): each has Mamba 2. In some layers a shared block,
 * attention and a feed-forward part, reads the stream concatenated with the embeddings, and its output is added to
 * Mamba's input. The model has n_shared_block such blocks, which these layers use in rotation, each use with its own
 * low-rank additions to the matrices. The first Zamba has Mamba's scans, and one block without such additions. */
#include <stdio.h>

#include "engine/arch/decoder_int.h"

/* The number of layers before this one that use a shared block. */
static int use_index(const struct pp_hparams *hp, int l)
{
    int n = 0;
    for (int i = 0; i < l; i++)
        n += (hp->layer[i] & PP_LAYER_SHARING) != 0;
    return n;
}

/* The layer under whose number the tensor `kind` of this layer's block is stored: the first layer with this block that
 * has it; if none has, the first with this block. */
static int holding_layer(const struct builder *b, int l, const char *kind)
{
    const int64_t n = b->hp->n_shared_block;
    const int block = (int)(use_index(b->hp, l) % n);
    int first = -1;
    for (int i = 0, use = 0; i < (int)b->hp->n_layer; i++) {
        if (!(b->hp->layer[i] & PP_LAYER_SHARING) || use++ % n != block)
            continue;
        if (pp_decoder_has(b, i, kind))
            return i;
        first = first < 0 ? i : first;
    }
    return first;
}

/* A matrix of the layer's block. */
static int find_matrix(struct builder *b, int l, const char *kind, int64_t n_out, int64_t n_in)
{
    char weight[40];
    snprintf(weight, sizeof weight, "%s.weight", kind);
    return pp_plan_linear(b->p, b->s, n_out, n_in, b->err, "blk.%d.%s", holding_layer(b, l, weight), kind);
}

static bool add_matrix(struct builder *b, int l, const char *kind, int64_t n_out, int64_t n_in, int in, int out)
{
    const int linear = find_matrix(b, l, kind, n_out, n_in);
    add_linear(b, l, linear, in, out);
    return linear >= 0;
}

static bool add_shared_norm(struct builder *b, int l, const char *kind, int64_t n, int in, int out)
{
    char weight[40];
    snprintf(weight, sizeof weight, "%s.weight", kind);
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .in = in, .in2 = NONE, .out = out};
    norm.weight = pp_plan_tensor(b->s, 0, n, b->err, "blk.%d.%s", holding_layer(b, l, weight), weight);
    add(b, norm);
    return norm.weight != NULL;
}

/* A matrix of the block plus, if adapted, the low-rank pair of this use of it; the use's number is in the names. */
static bool add_adapted(struct builder *b, int l, const char *kind, bool adapted, int64_t n_out, int64_t n_in, int in,
                        int out)
{
    char down[40], up[40];
    const int64_t rank = b->hp->adapter_rank;
    const int use = use_index(b->hp, l), low_rank_out = pp_plan_part(b->p, b->adapted, 0, n_out);
    if (!add_matrix(b, l, kind, n_out, n_in, in, out))
        return false;
    if (!adapted)
        return true;
    snprintf(down, sizeof down, "%s_a.%d", kind, use);
    snprintf(up, sizeof up, "%s_b.%d", kind, use);
    if (!add_matrix(b, l, down, rank, n_in, in, b->low) || !add_matrix(b, l, up, n_out, rank, b->low, low_rank_out))
        return false;
    add_to(b, l, low_rank_out, out);
    return true;
}

/* The block's attention, from the stream and the embeddings to `delta`. */
static bool add_shared_attention(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n = hp->n_embd, wide = 2 * n;
    const bool adapted = hp->adapted_attention;
    add_copy(b, l, b->x, pp_plan_part(b->p, b->concat, 0, n));
    add_copy(b, l, b->embedding, pp_plan_part(b->p, b->concat, n, n));
    if (!add_shared_norm(b, l, "shared_norm", wide, b->concat, b->concat_normalised) ||
        !add_adapted(b, l, "shared_q", adapted, b->n_q, wide, b->concat_normalised, b->q) ||
        !add_adapted(b, l, "shared_k", adapted, b->n_kv, wide, b->concat_normalised, b->k) ||
        !add_adapted(b, l, "shared_v", adapted, b->n_v, wide, b->concat_normalised, b->v))
        return false;
    const int rotated[] = {b->q, b->k};
    for (int i = 0; i < 2 && !(hp->layer[l] & PP_LAYER_UNROTATED); i++)
        add(b, (struct pp_op){.kind = PP_OP_ROPE, .layer = l, .in = rotated[i], .in2 = NONE, .out = rotated[i]});
    add(b, (struct pp_op){.kind = PP_OP_KV_STORE, .layer = l, .in = b->k, .in2 = b->v, .out = NONE});
    add(b, (struct pp_op){.kind = PP_OP_ATTENTION, .layer = l, .in = b->q, .in2 = NONE, .out = b->att});
    return add_matrix(b, l, "shared_output", n, b->n_att, b->att, b->delta);
}

/* The block's feed-forward part and output, from `delta`; blend = the stream + that. */
static bool add_shared_ff(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd, n_ff = b->shape.n_ff;
    const bool fused = b->d->fused_gate;
    if (!add_shared_norm(b, l, "shared_ffn_norm", n, b->delta, b->normalised) ||
        (fused ? !add_adapted(b, l, "shared_up", b->hp->adapter_rank > 0, 2 * n_ff, n, b->normalised, b->gate_up)
               : !add_matrix(b, l, "shared_gate", n_ff, n, b->normalised, b->gate) ||
                     !add_matrix(b, l, "shared_up", n_ff, n, b->normalised, b->up)))
        return false;
    add_gated(b, l, pp_decoder_fn(b->d, b->hp), b->gate, b->up, b->act);
    const int out = pp_plan_linear(b->p, b->s, n, n, b->err, "blk.%d.shared_out", l);
    if (out < 0 || !add_matrix(b, l, "shared_down", n, n_ff, b->act, b->delta))
        return false;
    add_linear(b, l, out, b->delta, b->blend);
    add_to(b, l, b->x, b->blend);
    return true;
}

bool pp_zamba_layer(struct builder *b, int l)
{
    const bool shares = b->hp->layer[l] & PP_LAYER_SHARING;
    if (l == 0)
        add_copy(b, l, b->x, b->embedding);
    if ((shares && (!add_shared_attention(b, l) || !add_shared_ff(b, l))) ||
        !add_norm(b, l, "attn_norm", shares ? b->blend : b->x, b->normalised) ||
        !(b->hp->n_scan_head ? pp_scan_heads_result : pp_mamba_result)(b, l))
        return false;
    add_to(b, l, b->delta, b->x);
    return true;
}

void pp_zamba_slots(struct builder *b)
{
    const int64_t n = b->hp->n_embd, n_ff = b->hp->n_ff;
    b->embedding = pp_plan_slot(b->p, n);
    b->concat = pp_plan_slot(b->p, 2 * n);
    b->concat_normalised = pp_plan_slot(b->p, 2 * n);
    b->blend = pp_plan_slot(b->p, n);
    b->adapted = pp_plan_slot(b->p, 2 * (n_ff > n ? n_ff : n));
    b->low = pp_plan_slot(b->p, b->hp->adapter_rank ? b->hp->adapter_rank : 1);
}
