/* decoder_int.h - a decoder's plan in the making: decoder.c builds it layer by layer, decoder_mixers.c those parts of
 * layers that read other positions, decoder_ff.c the others, decoder_altup.c several streams, decoder_delta.c the delta
 * rule, decoder_lightning.c lightning attention, decoder_mlstm.c xLSTM's states, decoder_difference.c what makes a
 * difference of attention, decoder_scored.c keys with scores, decoder_blocks.c an index that picks blocks,
 * decoder_compressed.c attention to compressed blocks, decoder_filter.c filters in front of queries and keys,
 * decoder_cca.c convolutions behind them, decoder_mean.c attention and states whose mean counts,
 * decoder_head_mixture.c heads of experts, decoder_zamba.c layers that have
 * parts in common, decoder_hyper.c hyper-connections, decoder_ngram.c embeddings of several tokens, decoder_hash.c
 * those of Qwen 4, decoder_scan.c, decoder_scan_heads.c, decoder_rwkv.c, decoder_rwkv4.c, decoder_rwkv6.c and
 * decoder_lru.c what has states that are made step by step, decoder_gains.c numbers by which parts are multiplied.
 * Private to them. */
#ifndef PP_ENGINE_ARCH_DECODER_INT_H
#define PP_ENGINE_ARCH_DECODER_INT_H

#include "engine/arch/arch.h"

enum { NONE = -1 }; /* no slot */

/* Slots of latent attention whose widths layers differ in. */
enum { LATENT_HEAD_Q, LATENT_Q, LATENT_K, LATENT_ATT, LATENT_VALUES, N_LATENT_SLOTS };

/* A plan in the making. */
struct builder {
    const struct pp_source *s;
    const struct pp_hparams *hp;
    const struct pp_decoder *d;
    struct pp_plan *p;
    struct pp_error *err;
    struct pp_layer_shape shape; /* of the layer that is built */
    int64_t n_q, n_kv;       /* values of all its queries, of all its keys */
    int64_t n_v, n_att;      /* likewise of its values, and of what attention gives */
    bool fused_qkv;          /* one matrix for q, k and v */
    const struct pp_tensor *ones; /* of norms without weights; or NULL */
    const struct pp_tensor *head_ones, *local_ones; /* of those of heads; of heads of layers with a window */
    int x, normed, delta;    /* the residual stream; a normed copy; what is to be added */
    int inputs, projected;   /* of all layers, their own: [n_layer][n_embd_layer] */
    int input;               /* of the layer, weighed */
    int streams[2];          /* residual streams side by side, as they are and as they will be; x: the first's copy */
    int modalities, mixing, spreading; /* what tells how streams are mixed; how they are, and how far a result goes */
    const struct pp_tensor *stream_ones; /* with hyper-connections, of which streams[1] is all of them normed, `mixing`
                                what numbers are made of, and `spreading` those: of the norm of all */
    int norm_low, norm_gates; /* with norm_rank: what gates of a norm's result are made of, and those */
    const char *gated_norm;  /* the norm that `normed` has, gates included, which need not be made again; or NULL */
    int gated_layer;         /* that norm's */
    int stream_gates;        /* with stream_rank, where `mixing` is what they are made of: gates, and what they let
                                through */
    int low, laurel;         /* what stands beside attention, and half-way there */
    int shared_both_shares, expert_part; /* with shared_expert_mix: two numbers, and by how much the first is larger */
    int qkv, q, k, v, att, att_gate;
    int q_low, q_low_normed, head_q, values; /* of latent attention, whose k is q's part of the cache, v a part of k */
    int latent[2][N_LATENT_SLOTS]; /* of it, in layers without a window, and in those with one */
    int k_rotated;           /* the rest of k */
    int pairs;               /* of a difference of attention: values, two heads of which lie side by side; `values`
                                are those before */
    int head_router;         /* of a mixture of heads or of values: what experts are chosen by */
    int step_bias;           /* of scans side by side: what is added to steps */
    /* With convolved heads: queries and keys as they come, behind the first convolution, what that was at the last
     * position, and what its heads become; of each head of queries the mean with its key's, and of those the keys';
     * values that wait for the next position. */
    int qk_before, qk_first, qk_last, qk_own, means, key_means, v_last;
    const struct pp_tensor *last_taps;
    int routed, routed_part[2]; /* with router_rank: what experts are chosen by, kept for the next layer; and room */
    int wide_q, wide_k, key_scores; /* with scores of keys: queries and keys with them, and they alone */
    /* Of compressed attention: what a position brings to its block, what its shares are made of, and the block's key;
     * the same of the index's; and what groups of heads give. */
    int brought, share, key, index_brought, index_share, grouped;
    const struct pp_tensor *constants; /* what queries have in those places */
    int index_q, index_k, index_weights; /* of an index: its heads' queries, its key, and what heads count for, where
                                one picks for all heads of attention */
    int index_scored, index_own_k, index_k_scores; /* with pooled keys: the position's own key and what shares are made
                                of, and either of them */
    int convolution[3], product, convolved; /* of a layer without attention: B, C and x, B x, and what comes of it */
    int tiled;               /* with heads_tiled: queries, and what attention gives, in that order */
    /* With filters: what the position before had; what the first convolution gives, and room for as much; what queries
     * and keys read, and both side by side. */
    int filter_last, filter_half, filter_part, filtered, filter_both;
    const struct pp_tensor *filter_taps[2];
    int q_gate;              /* with gated_queries: queries and gates in turns */
    int gates;               /* the layer's part of att_gate: one number for each value, or for each head */
    int64_t n_gates;
    /* Of layers with states: what the convolution reads; queries, keys and values, the parts of both; the
     * gate; beta and decay; those that are in one matrix; what states give. */
    int mixed, state_q, state_k, state_v, mixed_q, mixed_k, mixed_v, state_gate, beta, decay, state_in,
        state_ba, state_decays, state, state_normed;
    int tap_low, made_taps;  /* with tap_rank: what a position's taps are made of, and those, the last one's behind the
                                others of each value */
    int state_steps, state_raw, state_low; /* what Mamba's steps are made of, B and C, side by side; the first of them,
                                              and normed, if they are */
    int memory;              /* what a layer's scan gave before its gate, for later layers */
    const struct pp_tensor *low_ones, *key_ones; /* of those norms without weights */
    const struct pp_tensor *state_ones; /* of norms of groups, whose weights come behind */
    /* RWKV's: by how much the last position's input is larger; that mixed with the row's own; what keys are before they
     * change, or a part of it; the first layer's values; and values that products of low rank are made of. */
    int shift, blend, look, part, first_v, low_rank[4];
    int few;                 /* keys or values of heads that have them in common */
    int ways, way[5];        /* RWKV 6's: how it mixes each input besides, in all ways; the parts of that */
    const struct pp_tensor *shift_taps;
    int embedding, both, both_normed, adapted; /* Zamba2's: what went into the first layer; that beside the stream; what
                                 products of low rank give */
    int gate_up, gate, up, act, router;
    int loop;                /* how often all layers were gone through before */
    int loop_q, first_att, loop_gate; /* queries; what the first time's keys give, and each head's share of that */
    int square, cube;        /* gates' powers */
    int narrow, narrow_out;  /* what goes into experts that are narrower than the stream, and what they give */
    int bank, recalled;      /* what came into some layers, side by side; a mixture of that and the stream */
    int64_t n_banked;        /* so many are there */
    int first;               /* with gains: what came into the first layer */
    int skipped[2];          /* with skip_share: what came into the last layer that kept it, in each place */
    int shared_both, shared_gate, shared_up, shared_act, shared_weight, shared; /* of the expert that every row uses */
};
static inline void add(struct builder *b, struct pp_op op)
{
    pp_plan_add(b->p, op);
}

static inline void add_linear(struct builder *b, int l, int linear, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_LINEAR, .layer = l, .linear = linear, .in = in, .in2 = NONE, .out = out});
}

/* out = in */
static inline void add_copy(struct builder *b, int l, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .scale = 1, .layer = l, .in = in, .in2 = NONE,
                          .out = out});
}

/* out = of each `period` values of `in`, `count` from the at-th on */
static inline void add_take(struct builder *b, int l, int in, int64_t period, int64_t at, int64_t count, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_TAKE, .layer = l, .in = in, .in2 = NONE, .out = out, .period = period,
                          .at = at, .count = count});
}

/* out = each `count` values of `in` so many times */
static inline void add_repeat(struct builder *b, int l, int in, int64_t count, int64_t times, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_TAKE, .layer = l, .in = in, .in2 = NONE, .out = out, .period = count,
                          .count = count, .times = times});
}

/* Whether there is something that only some families' models have. */
bool pp_decoder_has(const struct builder *b, int l, const char *kind);
/* The vectors of a norm of n values called NAME; what is added behind may be there in any family. False: *err is
 * set. */
bool pp_decoder_find_norm(struct builder *b, const char *name, int64_t n, struct pp_op *norm);
/* What lets through the norm of n values called NAME that is in a slot, where the model has that. */
bool pp_decoder_norm_gates(struct builder *b, int l, const char *name, int64_t n, int slot);
/* A layer's norm of n values. */
bool pp_decoder_norm(struct builder *b, int l, const char *kind, int64_t n, int in, int out);

static inline bool add_norm(struct builder *b, int l, const char *kind, int in, int out)
{
    return pp_decoder_norm(b, l, kind, b->hp->n_embd, in, out);
}

/* A part's result goes from `delta` into the stream, normed where the family has it so. */
bool pp_attention_added(struct builder *b, int l);
bool pp_ff_added(struct builder *b, int l);
/* The feed-forward part: the norm before it, from the stream to `normed` (with attention beside it a family may have
 * only one for both); from an input to `act`; and from there to `delta`. */
bool pp_ff_norm(struct builder *b, int l);
bool pp_ff_up(struct builder *b, int l, int in);
/* Attention of the second time through layers, from q, k and v to `delta`. */
bool pp_loop_attention(struct builder *b, int l);
void pp_loop_slots(struct builder *b);
/* `gate` becomes a sum of its normed powers, and times `up` `act`. */
bool pp_poly_gate(struct builder *b, int l);
void pp_poly_slots(struct builder *b);
bool pp_ff_down(struct builder *b, int l);
/* A mixture of experts, from the stream to `delta`; of a family that chooses before attention, how it does. */
bool pp_experts_result(struct builder *b, int l);
bool pp_experts_choose(struct builder *b, int l);
/* The expert that every row uses, from the stream to `shared_act`, and from there to a slot. */
bool pp_shared_expert_up(struct builder *b, int l);
bool pp_shared_expert_down(struct builder *b, int l, int out);
/* Experts that neighbours share, chosen by the same logits, from the stream to a slot. */
bool pp_shared_experts(struct builder *b, int l, int out);
/* AltUp's streams: like hyper-connections'; and a whole layer. */
bool pp_altup_split(struct builder *b);
bool pp_altup_join(struct builder *b);
bool pp_altup_layer(struct builder *b, int l);
void pp_altup_slots(struct builder *b);
/* Attention, or what stands in its place, in two steps, between which what stands beside it reads the residual stream:
 * what it makes of that, and what it gives, in `delta`. */
bool pp_mixer_input(struct builder *b, int l);
bool pp_mixer_result(struct builder *b, int l);
/* Attention that is a difference: from `values` to `v`, and from what attention gives to half of it. */
bool pp_difference_values(struct builder *b, int l);
int64_t pp_difference_queries(const struct builder *b); /* values that attn_q gives */
bool pp_difference_result(struct builder *b, int l);
void pp_difference_slots(struct builder *b);
/* A mixture of heads: from `normed`, which it makes anew, to `tiled`, and from there to `delta`. */
bool pp_head_mixture_queries(struct builder *b, int l);
bool pp_head_mixture_result(struct builder *b, int l);
/* A mixture of values, which only layers with experts have: what they are chosen by, of `normed`, which other
 * projections read, too; and behind those from `normed`, which it makes anew, to `v`. */
bool pp_has_mixed_values(const struct builder *b, int l);
bool pp_mixed_values_router(struct builder *b, int l);
bool pp_mixed_values(struct builder *b, int l);
/* Filtered queries and keys, and values, from `normed`. */
bool pp_shared_share(struct builder *b, int l);
bool pp_filtered_heads(struct builder *b, int l);
void pp_filter_slots(struct builder *b);
/* Convolved queries and keys, and values, from `normed`; and what experts are chosen by. */
bool pp_convolved_heads(struct builder *b, int l);
void pp_convolved_slots(struct builder *b);
bool pp_deep_router(struct builder *b, int l);
/* The number in the layer's tensor of that kind, `usual` if it is not there; the heads of q, normed, times theirs; and
 * behind the layer what came into the first one. */
bool pp_gains_number(struct builder *b, int l, const char *kind, float usual, float *v);
bool pp_gains_queries(struct builder *b, int l);
bool pp_gains_first(struct builder *b, int l);
/* Keys with scores: from q, and from k and v, to wide_q and wide_k. */
bool pp_scored_queries(struct builder *b, int l);
bool pp_scored_keys(struct builder *b, int l);
void pp_scored_slots(struct builder *b);
/* An index that picks blocks for each head of keys: whether the layer has one; what it makes of the normed input; what
 * it picks. */
bool pp_blocks_picked(const struct builder *b, int l);
bool pp_blocks_input(struct builder *b, int l);
bool pp_blocks_pick(struct builder *b, int l);
void pp_blocks_slots(struct builder *b);
/* Attention to a window and compressed blocks behind it, from the residual stream to `delta`, and its slots. */
bool pp_compressed_result(struct builder *b, int l);
void pp_compressed_slots(struct builder *b);
/* The gated delta rule, from the residual stream to `delta`, and its slots. */
bool pp_delta_result(struct builder *b, int l);
void pp_delta_slots(struct builder *b);
/* Mamba's states: what goes into the convolution and the gate, from `normed`; and what comes of it, in `delta`. */
bool pp_scan_input(struct builder *b, int l);
bool pp_scan_result(struct builder *b, int l);
bool pp_scan_states(struct builder *b, int l); /* or only what its states give, in `state` */
/* Mamba's states and attention that read the same through one matrix, from the residual stream, and the mean of what
 * they give, each normed, in `delta`; the slots besides those of states. */
bool pp_mean_input(struct builder *b, int l);
bool pp_mean_result(struct builder *b, int l);
void pp_mean_slots(struct builder *b);
void pp_scan_slots(struct builder *b);
/* Whether a layer lets through what another one's scan gave; from `normed` to `delta`. */
bool pp_reads_memory(const struct builder *b, int l);
bool pp_memory_result(struct builder *b, int l);
/* Several scans side by side, from `normed` to `delta`. */
bool pp_scan_heads_result(struct builder *b, int l);
void pp_scan_heads_slots(struct builder *b);
/* Griffin's recurrence, likewise. */
bool pp_lru_result(struct builder *b, int l);
void pp_lru_slots(struct builder *b);
/* Mamba 2, from `normed` to `delta`. */
bool pp_mamba_result(struct builder *b, int l);
/* Zamba2's layers, and what they need besides Mamba's and attention's slots. */
bool pp_zamba_layer(struct builder *b, int l);
void pp_zamba_slots(struct builder *b);
/* Lightning attention, from the residual stream. */
bool pp_lightning_result(struct builder *b, int l);
void pp_lightning_slots(struct builder *b);
/* xLSTM's states, from the residual stream to `delta`. */
bool pp_mlstm_result(struct builder *b, int l);
void pp_mlstm_slots(struct builder *b);
/* RWKV 7, 6 and 4: a whole layer; the part with states alone, from the residual stream to `delta`; and slots. */
bool pp_rwkv7_layer(struct builder *b, int l);
bool pp_rwkv7_result(struct builder *b, int l);
void pp_rwkv7_slots(struct builder *b);
bool pp_rwkv6_layer(struct builder *b, int l);
bool pp_rwkv6_result(struct builder *b, int l);
void pp_rwkv6_slots(struct builder *b);
bool pp_rwkv4_layer(struct builder *b, int l);
void pp_rwkv4_slots(struct builder *b);
/* What several tokens have together is added to what is in the stream's slot. */
bool pp_ngram_embeddings(struct builder *b);
/* Hyper-connections: streams, as many as there are, of what is in the stream's slot; what the next part of a layer
 * reads, in that slot; what it gave, from `delta` to all; and what the output reads. */
bool pp_hyper_split(struct builder *b);
bool pp_hyper_begin(struct builder *b, int l, const char *part);
void pp_hyper_end(struct builder *b, int l);
bool pp_hyper_join(struct builder *b);
/* All streams in a slot, each normed by its part of the weights of NAME. */
bool pp_hyper_norm(struct builder *b, int l, const char *name, int streams);
/* What several tokens have together is added to streams, in the layer that does that. */
bool pp_hash_embeddings(struct builder *b, int l);
/* The slots of all layers' mixers, none wider than this; and the next layer's shape. */
void pp_mixer_slots(struct builder *b, struct pp_layer_shape widest);
void pp_mixer_shape(struct builder *b, struct pp_layer_shape shape);

#endif
