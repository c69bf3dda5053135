/* decoder_int.h - building a decoder's plan, layer by layer. Private to engine/arch/decoder*.c:
 *
 *   decoder.c              embeddings, residual stream, order of parts, output
 *   decoder_mixers.c       the parts that look at other positions: attention, latent attention, short convolutions,
 *                          Mamba 2, and the choice among the following
 *   decoder_ff.c           feed-forward parts and experts
 *   decoder_altup.c        Gemma 3n's streams               decoder_hyper.c     hyper-connections
 *   decoder_blocks.c       an indexer that picks blocks     decoder_compressed.c  DeepSeek V4's compressed blocks
 *   decoder_difference.c   differential attention           decoder_scored.c    keys with scores of their own
 *   decoder_filter.c       filters before queries and keys  decoder_cca.c       convolutions after them
 *   decoder_head_mixture.c experts for heads                decoder_mean.c      the mean of attention and Mamba
 *   decoder_loops.c        a second pass through layers     decoder_gains.c     Talkie's scalars
 *   decoder_delta.c        the gated delta rule             decoder_lightning.c lightning attention
 *   decoder_mlstm.c        xLSTM                            decoder_lru.c       Griffin's recurrence
 *   decoder_scan.c         Mamba                            decoder_scan_heads.c  Zamba's heads of it
 *   decoder_rwkv.c, decoder_rwkv4.c, decoder_rwkv6.c  RWKV 7, 4 and 6
 *   decoder_zamba.c        layers that share a block        decoder_shared.c    weights for the shared expert
 *   decoder_poly.c         PolyNorm                         decoder_ngram.c, decoder_hash.c  embeddings of n-grams */
#ifndef PP_ENGINE_ARCH_DECODER_INT_H
#define PP_ENGINE_ARCH_DECODER_INT_H

#include "engine/arch/arch.h"

enum { NONE = -1 }; /* no slot */

/* Slots of latent attention whose widths may differ between layers with and without a window. */
enum { LATENT_HEAD_Q, LATENT_Q, LATENT_K, LATENT_ATT, LATENT_VALUES, N_LATENT_SLOTS };

/* A plan in the making. An int without another meaning is a slot: one vector per row, reused from layer to layer. Slots
 * of features that the model lacks are not made; their members are 0 and not used. */
struct builder {
    const struct pp_source *s;
    const struct pp_hparams *hp;
    const struct pp_decoder *d;
    struct pp_plan *p;
    struct pp_error *err;
    struct pp_layer_shape shape; /* of the present layer */
    int64_t n_q, n_kv;       /* its widths: queries of all heads, keys of all heads, */
    int64_t n_v, n_att;      /* values of all heads, and the output of attention */
    bool fused_qkv;          /* q, k and v are one matrix */
    const struct pp_tensor *ones; /* [n_embd], the weight of norms without one; or NULL */
    const struct pp_tensor *head_ones, *local_ones; /* the same for heads, and for heads of layers with a window */
    int x, normalised, delta; /* the residual stream; a normalised copy of it; a part's output, to be added to it */

    /* Per-layer inputs: all layers' ([n_layer][n_embd_layer]), the projection of the embeddings that is a part of them,
     * and the present layer's after its gate. */
    int inputs, projected;
    int input;
    /* Several residual streams side by side, before and after a layer or part; x is then what the part reads. AltUp:
     * what the coefficients are computed from, the coefficients that predict, and those that correct. */
    int streams[2];
    int modalities, mixing, spreading;
    /* Hyper-connections: streams[1] is all streams normalised, `mixing` the projection of those, `spreading` the
     * coefficients; stream_ones is the weight of that norm. */
    const struct pp_tensor *stream_ones;
    /* hparams.stream_rank: `mixing` is the narrow vector between two matrices, and this the gates, then what they let
     * through. */
    int stream_gates;
    /* hparams.norm_rank, norms with gates: the narrow vector and the gates. */
    int norm_low, norm_gates;
    const char *gated_norm;  /* the norm, with its gates, that `normalised` holds and that need not be computed again */
    int gated_layer;         /* and its layer; gated_norm NULL: none */
    int low, laurel;         /* the narrow vector of a low-rank pair; Gemma 3n's LAuReL branch */

    /* Attention. */
    int qkv, q, k, v, att, att_gate;
    int gates;               /* the part of att_gate that the layer uses: a number for each value or for each head */
    int64_t n_gates;
    int q_gate;              /* gated_queries: for each head its query, then its gate */
    int tiled;               /* queries, and the output of attention, in the order of heads that the matrices have */
    int pairs, values;       /* differential attention: `pairs` has two heads of values side by side for each head of
                                results, `values` the projection's output */
    int head_router;         /* experts for heads or values: the router's logits */
    int wide_q, wide_k, key_scores; /* keys with scores: queries and keys with room for them, and the scores alone */
    const struct pp_tensor *constants; /* what queries have in that room */
    int loop;                /* the number of passes through all layers so far */
    int loop_q, first_att, loop_gate; /* second pass: rotated queries, attention to the first pass's keys, its weight */

    /* Latent attention: q is a head's query in the latent space, k the cached vector, v the latent part of k. */
    int q_low, q_low_normalised, head_q; /* the query's narrow vector, as it is and normalised, queries of heads.
                                `values` is the outputs of heads, brought back from the latent space */
    int latent[2][N_LATENT_SLOTS]; /* slots in layers without a window, and in those with one */
    int k_rotated;           /* the rotated part of k */

    /* Indexers: queries of their heads, their key, and the weights of heads where the scores are summed up. With pooled
     * keys index_scored holds the position's own key, then the logits that weight it within its block. */
    int index_q, index_k, index_weights;
    int index_scored, index_own_k, index_k_scores;
    /* Compressed attention: what a position contributes to its block's key, the logits of its weight, and that key; the
     * same for the indexer; and the outputs of groups of heads. */
    int block_in, block_gate, block_key, index_block_in, index_block_gate, grouped;

    /* Convolved heads: queries and keys as projected, after the first convolution, that at the position before, and the
     * second convolution's product with the position itself. For each query the mean with its key, and the mean of
     * those for each key. v_prev: the half of the values that the next position uses. */
    int qk_in, qk_first, qk_prev, qk_now, means, key_means, v_prev;
    const struct pp_tensor *prev_taps;
    /* Filters: the position before; the output of the first convolution, and room for as much; that of the second,
     * which queries and keys read; and queries and keys, heads alternating. */
    int filter_prev, filter_half, filter_part, filtered, filter_qk;
    const struct pp_tensor *filter_taps[2];

    /* Short convolutions in place of attention: B, C and x; B * x; and the convolution's output. */
    int convolution[3], product, convolved;

    /* Recurrent states: the convolution's input and its parts for q, k and v; their outputs; the gate; beta and decay;
     * the outputs of fused matrices (state_in: q, k, v and gate or the like; state_ba: beta and decay), the decays
     * within the latter; the states' output, and that normalised. */
    int mixed, state_q, state_k, state_v, mixed_q, mixed_k, mixed_v, state_gate, beta, decay, state_in,
        state_ba, state_decays, state, state_normalised;
    int tap_bottleneck, dynamic_taps; /* dynamic_conv_rank: the narrow vector, and the row's own taps, [value][tap],
                                         the present last */
    int state_steps, state_raw, state_low; /* Mamba: the narrow step, B and C side by side; the step in there; and after
                                its norm, if any */
    int step_bias;           /* Zamba: the bias of steps, as a vector of the row */
    int memory;              /* a scan's output before its gate, which later layers read */
    const struct pp_tensor *low_ones, *key_ones; /* weights of the norms of steps, B and C that have none */
    const struct pp_tensor *state_ones; /* the same for norms by group, which are multiplied by their weights later */
    /* RWKV: the position before minus the present one; the blend of both that a projection reads; the key before it is
     * changed, for the removal; room; the first layer's values; the narrow vectors of low-rank pairs. */
    int shift, blend, removal_key, scratch, first_v, low_rank[4];
    int shared_kv;           /* keys or values that several heads share */
    int dynamic_mixes, dynamic_mix[5]; /* RWKV 6: the weights of blends that depend on the input, all and each */
    const struct pp_tensor *shift_taps;
    int embedding, concat, concat_normalised, adapted; /* Zamba: the embeddings; stream and embeddings side by side; the
                                output of a low-rank pair */

    /* Feed-forward part and experts. */
    int gate_up, gate, up, act, router;
    int square, cube;        /* PolyNorm: powers of the gate */
    int router_state, router_tmp[2]; /* router_rank: the router's narrow vector, kept for the next layer; and room */
    int narrow, narrow_out;  /* n_embd_expert: input and output of experts narrower than the stream */
    int shared_both, shared_gate, shared_up, shared_act, shared_weight, shared; /* the shared expert */
    int mix_logits, expert_share; /* shared_expert_mix: its two logits, and the difference for the routed experts */

    /* The stream's past. */
    int block_inputs;        /* attn_res_block: the kept inputs of layers, side by side */
    int residual_mixture;    /* and their mixture with the stream */
    int64_t n_block_inputs;  /* how many have been kept */
    int first;               /* Talkie: the normalised embeddings */
    int skipped[2];          /* Solar Pro: the input of the last layer that kept its own, in either place */
};

static inline void add(struct builder *b, struct pp_op op)
{
    pp_plan_add(b->p, op);
}

static inline void add_linear(struct builder *b, int l, int linear, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = linear, .in = in, .in2 = NONE, .out = out});
}

/* out += in */
static inline void add_to(struct builder *b, int l, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .in = in, .in2 = NONE, .out = out});
}

/* out += scale * in; scale 0: 1 */
static inline void add_sum(struct builder *b, int l, float scale, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_ADD, .layer = l, .scale = scale, .in = in, .in2 = NONE, .out = out});
}

/* out = fn(in); scale: the function's parameter, if it has one */
static inline void add_fn(struct builder *b, int l, enum pp_fn fn, float scale, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = fn, .scale = scale, .layer = l, .in = in, .in2 = NONE,
                          .out = out});
}

/* out = fn(gate) * in, value by value */
static inline void add_gated(struct builder *b, int l, enum pp_fn fn, int gate, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_GATE, .fn = fn, .layer = l, .in = gate, .in2 = in, .out = out});
}

/* out = fn(weights) * in, each of the weights being for an equal part of the values */
static inline void add_weighed(struct builder *b, int l, enum pp_fn fn, int weights, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_WEIGH, .fn = fn, .layer = l, .in = weights, .in2 = in, .out = out});
}

/* out = in */
static inline void add_copy(struct builder *b, int l, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .scale = 1, .layer = l, .in = in, .in2 = NONE,
                          .out = out});
}

/* out = values at .. at + count - 1 of every `period` values of `in` */
static inline void add_take(struct builder *b, int l, int in, int64_t period, int64_t at, int64_t count, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_TAKE, .layer = l, .in = in, .in2 = NONE, .out = out, .period = period,
                          .at = at, .count = count});
}

/* out = every `count` values of `in`, repeated `times` times */
static inline void add_repeat(struct builder *b, int l, int in, int64_t count, int64_t times, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_TAKE, .layer = l, .in = in, .in2 = NONE, .out = out, .period = count,
                          .count = count, .times = times});
}

/* Whether the tensor blk.L.KIND exists; kind includes ".weight" or ".bias". */
bool pp_decoder_has(const struct builder *b, int l, const char *kind);
/* Fills in the weight, and the bias if there is one, of the norm NAME of n values. All functions below that return a
 * bool return false with *err set. */
bool pp_decoder_find_norm(struct builder *b, const char *name, int64_t n, struct pp_op *norm);
/* hparams.norm_rank: multiplies the result of the norm NAME in a slot by its gates. */
bool pp_decoder_norm_gates(struct builder *b, int l, const char *name, int64_t n, int slot);
/* out = the norm blk.L.KIND of n values of `in` */
bool pp_decoder_norm(struct builder *b, int l, const char *kind, int64_t n, int in, int out);

static inline bool add_norm(struct builder *b, int l, const char *kind, int in, int out)
{
    return pp_decoder_norm(b, l, kind, b->hp->n_embd, in, out);
}

/* Add a part's output, `delta`, to the residual stream, after a post-norm where the family has one. */
bool pp_attention_added(struct builder *b, int l);
bool pp_ff_added(struct builder *b, int l);
/* The feed-forward part: its pre-norm, from the stream to `normalised` (in parallel with attention there may be one for
 * both); gate and up, from a slot to `act`; and down, to `delta`. */
bool pp_ff_norm(struct builder *b, int l);
bool pp_ff_up(struct builder *b, int l, int in);
/* Attention in the second pass through the layers, from q, k and v to `delta`. */
bool pp_loop_attention(struct builder *b, int l);
void pp_loop_slots(struct builder *b);
/* PolyNorm of `gate`, times `up`, to `act`. */
bool pp_poly_gate(struct builder *b, int l);
void pp_poly_slots(struct builder *b);
bool pp_ff_down(struct builder *b, int l);
/* A mixture of experts, from the stream to `delta`; and with early_router its router, before attention. */
bool pp_experts_result(struct builder *b, int l);
bool pp_experts_choose(struct builder *b, int l);
/* The shared expert, from the stream to `shared_act`, and from there to a slot. */
bool pp_shared_expert_up(struct builder *b, int l);
bool pp_shared_expert_down(struct builder *b, int l, int out);
/* Adjugate experts (GroveMoE), each shared by a group of neighbours and chosen by the same logits, from the stream to a
 * slot. */
bool pp_shared_experts(struct builder *b, int l, int out);
/* AltUp: makes the streams from x, makes x from the streams; and a whole layer. */
bool pp_altup_split(struct builder *b);
bool pp_altup_join(struct builder *b);
bool pp_altup_layer(struct builder *b, int l);
void pp_altup_slots(struct builder *b);
/* Attention, or what takes its place, in two steps: what it reads of the residual stream; and the rest, to `delta`.
 * Parts in parallel with it read the stream in between, before anything is added. */
bool pp_mixer_input(struct builder *b, int l);
bool pp_mixer_result(struct builder *b, int l);
/* Differential attention: from `values` to `v`; and from attention's output to the difference, in its first half. */
bool pp_difference_values(struct builder *b, int l);
int64_t pp_difference_queries(const struct builder *b); /* the number of outputs of attn_q */
bool pp_difference_result(struct builder *b, int l);
void pp_difference_slots(struct builder *b);
/* Experts for heads: from `normalised`, which is computed again, to `tiled`; and from there to `delta`. */
bool pp_head_mixture_queries(struct builder *b, int l);
bool pp_head_mixture_result(struct builder *b, int l);
/* Experts for values, in layers that have experts: whether the layer has them; their router, of `normalised`, together
 * with other projections; and, after those, from `normalised`, which is computed again, to `v`. */
bool pp_has_mixed_values(const struct builder *b, int l);
bool pp_mixed_values_router(struct builder *b, int l);
bool pp_mixed_values(struct builder *b, int l);
/* The weights of the shared expert and of the others (shared_expert_mix), from `normalised`. */
bool pp_shared_expert_mix(struct builder *b, int l);
/* Filtered queries and keys, and values, from `normalised`. */
bool pp_filtered_heads(struct builder *b, int l);
void pp_filter_slots(struct builder *b);
/* Convolved queries and keys, and values, from `normalised`; and ZAYA's router. */
bool pp_convolved_heads(struct builder *b, int l);
void pp_convolved_slots(struct builder *b);
bool pp_mlp_router(struct builder *b, int l);
/* Talkie's scalars: that in the tensor blk.L.KIND, or `otherwise` if there is none; normalised queries, times those of
 * their heads; and the embeddings, which are added after the layer. */
bool pp_gains_number(struct builder *b, int l, const char *kind, float otherwise, float *v);
bool pp_gains_queries(struct builder *b, int l);
bool pp_gains_first(struct builder *b, int l);
/* Keys with scores: from q, and from k and v, to wide_q and wide_k. */
bool pp_scored_queries(struct builder *b, int l);
bool pp_scored_keys(struct builder *b, int l);
void pp_scored_slots(struct builder *b);
/* An indexer that picks blocks: whether the layer has one; its projections of `normalised`; and the picking. */
bool pp_blocks_picked(const struct builder *b, int l);
bool pp_blocks_input(struct builder *b, int l);
bool pp_blocks_pick(struct builder *b, int l);
void pp_blocks_slots(struct builder *b);
/* Attention to a window and, before that, to compressed blocks, from the residual stream to `delta`. */
bool pp_compressed_result(struct builder *b, int l);
void pp_compressed_slots(struct builder *b);
/* The gated delta rule, from the residual stream to `delta`. */
bool pp_delta_result(struct builder *b, int l);
void pp_delta_slots(struct builder *b);
/* Mamba: input of the convolution and gate, from `normalised`; the rest, to `delta`. */
bool pp_scan_input(struct builder *b, int l);
bool pp_scan_result(struct builder *b, int l);
bool pp_scan_states(struct builder *b, int l); /* without the output projection, to `state` */
/* Hymba: attention and Mamba in parallel, their inputs from one matrix, to the mean of their normalised outputs, in
 * `delta`. Slots: those that pp_scan_slots does not make. */
bool pp_mean_input(struct builder *b, int l);
bool pp_mean_result(struct builder *b, int l);
void pp_mean_slots(struct builder *b);
void pp_scan_slots(struct builder *b);
/* Gated memory units: whether the layer gates another layer's scan; from `normalised` to `delta`. */
bool pp_reads_memory(const struct builder *b, int l);
bool pp_memory_result(struct builder *b, int l);
/* Zamba's heads of Mamba, from `normalised` to `delta`. */
bool pp_scan_heads_result(struct builder *b, int l);
void pp_scan_heads_slots(struct builder *b);
/* Griffin's recurrence, from the residual stream to `delta`. */
bool pp_lru_result(struct builder *b, int l);
void pp_lru_slots(struct builder *b);
/* Mamba 2, from `normalised` to `delta`. */
bool pp_mamba_result(struct builder *b, int l);
/* A whole layer of Zamba, and the slots that it needs besides Mamba's and attention's. */
bool pp_zamba_layer(struct builder *b, int l);
void pp_zamba_slots(struct builder *b);
/* Lightning attention, from the residual stream to `delta`. */
bool pp_lightning_result(struct builder *b, int l);
void pp_lightning_slots(struct builder *b);
/* xLSTM, from the residual stream to `delta`. */
bool pp_mlstm_result(struct builder *b, int l);
void pp_mlstm_slots(struct builder *b);
/* RWKV 7, 6 and 4: a whole layer; or only the time mix, from the residual stream to `delta`. */
bool pp_rwkv7_layer(struct builder *b, int l);
bool pp_rwkv7_result(struct builder *b, int l);
void pp_rwkv7_slots(struct builder *b);
bool pp_rwkv6_layer(struct builder *b, int l);
bool pp_rwkv6_result(struct builder *b, int l);
void pp_rwkv6_slots(struct builder *b);
bool pp_rwkv4_layer(struct builder *b, int l);
void pp_rwkv4_slots(struct builder *b);
/* Adds LongCat's n-gram embeddings to x. */
bool pp_ngram_embeddings(struct builder *b);
/* Hyper-connections: copies x to all streams; mixes the streams into x, for the next part to read; writes its output,
 * `delta`, to all streams; and mixes them for the output. */
bool pp_hyper_split(struct builder *b);
bool pp_hyper_begin(struct builder *b, int l, const char *part);
void pp_hyper_end(struct builder *b, int l);
bool pp_hyper_join(struct builder *b);
/* Normalises each stream in a slot by its part of the weight NAME. */
bool pp_hyper_norm(struct builder *b, int l, const char *name, int streams);
/* Adds Qwen 4's n-gram embeddings to the streams, in the layer that does this. */
bool pp_hash_embeddings(struct builder *b, int l);
/* Makes the slots of all mixers, for the widest layer; and sets the shape of the layer that comes next. */
void pp_mixer_slots(struct builder *b, struct pp_layer_shape widest);
void pp_mixer_shape(struct builder *b, struct pp_layer_shape shape);

#endif
