/* plan.h - a model as a list of small semantic operations over named activation slots.
 *
 * A family (engine/arch/) turns hyperparameters and weights into a plan; a backend (engine/cpu/) lowers and fuses it
 * once at load. Backends know operations, never families. A slot holds one vector per row of the batch. Whatever
 * changes between steps (positions, pages, adapters) is in the batch, not in the plan. Immutable once built. */
#ifndef PP_ENGINE_PLAN_H
#define PP_ENGINE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/kv.h"
#include "engine/source.h"
#include "engine/types.h"

enum {
    PP_MAX_TIERS = 12,
    PP_MAX_TAPS = 16,    /* of a convolution */
};

/* What an operation computes for each row. x, y and z are the row's values in the slots `in`, `in2` and `in3`, t is its
 * position; the result goes to `out`, or, where it says "in place", updates the slot named. Words in backquotes are
 * members of struct pp_op; a `scale` of 0 means 1 where it multiplies. "Cached" means that the value is also stored in
 * the row's slot of the KV cache, layer `layer`, where later rows look back at it. */
enum pp_op_kind {
    /* --- from tokens and positions --- */

    /* scale * weight[token], or the row's input vector as it is, plus bias[t] (learned positions) and segments[0], if
     * the model has them. Token ids from the vocabulary's size on select start[0], start[1] ... */
    PP_OP_EMBED,
    /* scale * weight[token], or `by_position` scale * weight[t]; row 0 where the table has no such row. */
    PP_OP_LOOKUP,
    /* token + at, in every value, for a CONVOLVE to look back at. */
    PP_OP_TOKEN,
    /* scale * weight[(t0 + t1 v + t2 v^2 + ...) mod n_rows]: t0 is the row's token, x holds the `count` before it,
     * latest first, v is `period`. The first of those equal to `at`, and all before it, count as 0. */
    PP_OP_NGRAM,
    /* Hashed n-gram embeddings (struct pp_hashed): rows of tables, side by side. For n = 2 .. size, over n tokens each,
     * latest first,
     *
     *   hash = m[0] t0 xor m[1] t1 xor ... xor m[n - 1] t(n-1)
     *
     * and each of the `heads` for that n takes its row hash mod n_rows. The rows of all heads follow each other in
     * `count` tables of equal size. x is 1 + t1, 1 + t2 ..., or 0 before the first token. The first token that is
     * missing or equals `end`, and all before it, count as `end`. */
    PP_OP_HASH,

    /* --- norms and products --- */

    /* norm(x) * weight [+ bias]: RMS norm, or if `centred` LayerNorm. `scale` is epsilon; 0: the model's. */
    PP_OP_NORM,
    /* The same of each head of x. weight: [head_dim], for all heads, or [n_head, head_dim]. In place where it precedes
     * attention. */
    PP_OP_HEAD_NORM,
    /* linear(x), adapters included. */
    PP_OP_LINEAR,
    /* Each head of x times its own matrix of `heads`. Values of a head beyond the matrix's columns are appended to its
     * result unchanged. */
    PP_OP_HEADS,
    /* In place: rotates the heads of x by t (RoPE). With a `period`: heads of that many values, which are not
     * attention's, from their `at`-th value on, pairing
     * values i and i + rope_dim / 2 (`neox`) or neighbours; `inverse`: by -t. */
    PP_OP_ROPE,

    /* --- operations over earlier positions, and what they store for later ones --- */

    /* K = x and V = y, cached. With a `stride` and no `in2`, x is the result of a COMPRESS: on the last row of a block
     * it goes to the block's slot in a tier of compressed blocks, its last values rotated by the position of the
     * block's first row. */
    PP_OP_KV_STORE,
    /* Compresses a block of `stride` positions, aligned to `stride`, to one key. On the block's last row
     *
     *   out = norm(sum over j of p[j] x[j]) * weight,  p = softmax over j of (y[j] + bias[j]), value by value
     *
     * over the block's positions j; on all other rows 0. bias: [stride, width of x]. Where x is twice as wide as out,
     * the block itself contributes the second halves of x, y and bias, and the block before it, if any, the first.
     * x and y are cached. */
    PP_OP_COMPRESS,
    /* Attention of the query heads x over the cache of `layer`, or, if that has no KV_STORE, of the last layer before
     * it that has one and is of its tier. weight: attention sinks [n_head] (scores without a value), or NULL. `scale`
     * is the soft cap of scores; with `alibi` they fall with the distance.
     *
     * With a `count`, attention is sparse: rows that would see more positions see only those that the last PICK before
     * it picked. With a `period`, blocks of that many positions are picked, for each KV head by itself, or, if
     * `pooled`, the same for all heads, and besides them the positions after the last whole block. With a `stride`,
     * which implies a window and one KV head, rows also see the layer's compressed blocks that end no later than
     * themselves, whose keys are their values; `count` then counts such blocks. */
    PP_OP_ATTENTION,
    /* An index for sparse attention: picks the `count` positions with the largest scores among those that the row may
     * see, the earliest of equal ones. With k[j] = y of position j, which is cached, and z[h] = 1 without an `in3`,
     *
     *   score[j] = sum over the heads h of x of z[h] max(0, x[h] . k[j])
     *
     * where rope_dim values of each x[h] and of y, from the `at`-th on, have been rotated, as by ROPE.
     *
     * With a `period`, a power of two, it picks aligned blocks of that many positions, as many as make `count`
     * positions, for each head by itself: a block's score is the largest x[h] . k[j] of its positions that the row may
     * see, and the last `local` blocks, the row's own among them, are always picked. If `pooled`, it picks the same
     * blocks for all heads: a block's score is score[j] of its last position, whose y is the key of the whole block,
     * and only blocks that the row sees entirely count; without `in3`, y is rotated by the position of the block's
     * first row. With a `stride`, all this applies to compressed blocks of that many positions that end no later than
     * the row, in place of positions: k[j] is the result of a COMPRESS for block j, rotated as by KV_STORE. */
    PP_OP_PICK,
    /* Causal convolution: bias + the sum over j of weight[:, j] * x as it was window - 1 - j positions before (in a
     * tree, at that ancestor), or 0 before the first position. weight: [width, window], or fewer rows, each shared by
     * equally many neighbouring values. With a `period` the taps are that many positions apart, counted back from the
     * row's own. x is cached. Without a weight, y holds the row's own taps [width, window], and there is no bias. */
    PP_OP_CONVOLVE,
    /* The mean of x over the positions of the row's block of `period` up to its own. With a weight [period, width of
     * out], x is twice as wide, its second half being scores: the mean of the first halves, each value weighted by the
     * softmax of its scores, to which weight[j] is added at the block's j-th position. x is cached. */
    PP_OP_POOL,
    /* The output of the recurrent states of `layer` for the row's queries (struct pp_recurrence). Each head is
     * normalised by `weight`, if there is one, with `scale` for epsilon as in NORM, and all of it multiplied by silu(x)
     * or sigmoid(x). */
    PP_OP_RECUR,

    /* --- value by value --- */

    PP_OP_GATE,      /* fn(x) * y; `scale` is the function's parameter, if it has one */
    PP_OP_MULTIPLY,  /* x * y, or x * weight */
    PP_OP_AFFINE,    /* (x + bias) * weight, either of which may be missing; each value of weight may serve equally
                        many neighbours in x */
    PP_OP_WEIGH,     /* fn(x) * y, where each value of x serves equally many neighbours in y; PP_FN_SIGMOID or
                        PP_FN_SOFTPLUS */
    PP_OP_APPLY,     /* fn(x), the function's parameter being `scale` or weight[0] */
    PP_OP_ADD,       /* in place: out += scale * x */
    PP_OP_TAKE,      /* from each group of `period` values in x, `count` from the `at`-th on, repeated `times` times; 0
                        is once */
    PP_OP_SPARSEN,   /* max(0, x - mean(x) - scale * the standard deviation of x) */
    PP_OP_MATCH,     /* x scaled to the root mean square of y */
    PP_OP_EXPERTS,   /* a mixture of experts, y being the router's logits (struct pp_experts) */
    /* The mean of vectors v weighted by the softmax of their scores weight . v[i] / sqrt(mean(v[i]^2) + scale); v are x
     * and the `count` vectors in y. */
    PP_OP_ATTN_RESIDUAL,

    /* --- several residual streams: n = `count` vectors side by side in a slot --- */

    PP_OP_MIX,           /* out[j] = x[j] + the sum over i of y[j][i] x[i] */
    PP_OP_SPREAD,        /* in place: out[j] += (1 + y[j]) x */
    PP_OP_CONNECT,       /* the coefficients of struct pp_connection from c = weight * x + bias; weight: one number for
                            each of its three kinds, bias: one for each coefficient */
    PP_OP_READ_STREAMS,  /* the sum over i of read[i] x[i], y being the result of a CONNECT */
    PP_OP_WRITE_STREAMS, /* in place: out[j] = out[j] + write[j] x, y being the result of a CONNECT; if that has a
                            matrix, the sum over i of matrix[i][j] out[i] replaces out[j] on the right */
    PP_OP_ROOTS,         /* d = scale * x[j] . y[j]; out[j] = sign(d) sqrt(max(|d|, 1e-6)), or 0 where d is */

    /* --- outputs --- */

    PP_OP_SELECT,    /* from here on only rows that want an output take part */
    PP_OP_RESULT,    /* x is the output for PP_OUT_HIDDEN, y for PP_OUT_LOGITS */
};

/* Hyper-connections (arXiv 2409.19606): a model has n residual streams, which begin as the same vector. A sublayer
 * reads a weighted sum of them, and its result is added to each with another weight; before that the streams may be
 * mixed by a matrix (manifold-constrained, arXiv 2512.24880). The coefficients are computed for each row from a
 * projection c of all streams, which has n, 2 n, or 2 n + n * n values.
 *
 *   read[i] = sigmoid(c[i]) + eps
 *   write[j] = write_scale sigmoid(c[n + j]) + write_eps
 *   matrix = balanced(c[2n ...])
 *
 * balanced (Sinkhorn): the softmax of each row, plus eps; then columns and rows are alternately divided by their sums
 * plus eps, until columns were divided sinkhorn_iters times. Rows and columns then add up to about 1. */
struct pp_connection {
    float eps, write_scale, write_eps;
    int sinkhorn_iters;
};

/* Functions of one number, and of a gate and the value it lets through. */
enum pp_fn {
    PP_FN_SILU,      /* x / (1 + exp(-x)) */
    PP_FN_GELU,      /* x (1 + erf(x / sqrt 2)) / 2 */
    PP_FN_GELU_TANH, /* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 */
    PP_FN_SIGMOID,   /* 1 / (1 + exp(-x)) */
    PP_FN_CLAMPED,   /* of a gate g and a value u only, as in gpt-oss: g' / (1 + exp(-1.702 g')) * (u' + 1), g' being g
                        clamped to at most 7 and u' u clamped to -7 .. 7, or with a scale to that instead of 7 */
    PP_FN_SCALE,     /* scale x */
    PP_FN_CAP,       /* scale tanh(x / scale) */
    PP_FN_CLAMP,     /* x clamped to -scale .. scale */
    PP_FN_RELU2,     /* max(0, x)^2 */
    PP_FN_RELU,      /* max(0, x) */
    PP_FN_SILU_BOUNDED, /* of a gate g and a value u only: min(g / (1 + exp(-g)), scale) * u', u' being u clamped to
                        -scale .. scale */
    PP_FN_SILU_WITHIN, /* as PP_FN_SILU_BOUNDED, but clamped before the SiLU: g' / (1 + exp(-g')) * u', g' being
                        min(g, scale) */
    PP_FN_SITU,      /* of a gate g and a value u only, as in Kimi K3: 4 tanh(g / 4) / (1 + exp(-g)) times
                        25 tanh(u / 25) */
    PP_FN_SOFTPLUS,  /* ln(1 + exp(x)); not of a gate */
    PP_FN_DECAY,     /* exp(-exp(-1/2) / (1 + exp(-x))), within exp(-exp(-1/2)) .. 1; not of a gate */
    PP_FN_DOUBLE_EXP, /* exp(-exp(x)), with a scale at least exp(-scale); not of a gate */
    PP_FN_EXP,       /* exp(min(x, 88)); not of a gate */
    PP_FN_XIELU,     /* after a projection only: struct pp_xielu */
};

/* xIELU: linear x + positive x^2 where x > 0, else linear x + negative (exp(min(x, most)) - 1 - x). */
struct pp_xielu {
    float positive, negative, linear, most;
};

/* A slot, or a part of one, which begins `at` values into the rows of the slot `base`. */
struct pp_slot {
    int64_t width;   /* values per row */
    int base;        /* of a whole slot: itself */
    int64_t at;
};

/* A projection: what adapters attach to. */
struct pp_linear {
    const struct pp_tensor *w; /* [n_out, n_in] */
    const struct pp_tensor *b; /* [n_out], or NULL */
    int index;                 /* in pp_plan.linears */
    int row;                   /* from pp_plan_target: the row of b, where b is a stack [n, n_out]; else 0 */
};

/* Members that an operation does not use are 0, slots -1. */
struct pp_op {
    enum pp_op_kind kind;
    int in, in2, in3, out;           /* slots; in3 is read by PP_OP_PICK alone */
    int layer;
    const struct pp_tensor *weight, *bias;
    float scale;

    /* Explained at the operations that use them. */
    enum pp_fn fn;
    int64_t count, at, period, times;
    int64_t window;                  /* of operations over earlier positions: how many positions a row sees, itself
                                        included (in an encoder, to either side); 0: all */
    int64_t stride;                  /* positions of a block that is compressed to one key; 0: none */
    int64_t local;
    int seen;                        /* PP_OP_ATTENTION: uses the keys and values that the seen-th of the tier's layers,
                                        counted from 1, has stored; 0: the last that has */
    bool centred, inverse, by_position, pooled;
    bool neox;                       /* RoPE pairs values i and i + rope_dim / 2 (NeoX); else neighbours */
    bool local_rope;                 /* PP_OP_ROPE: with the frequencies of rope_base_local */

    int linear;                      /* PP_OP_LINEAR: index in pp_plan.linears */
    int experts;                     /* PP_OP_EXPERTS: index in pp_plan.experts */
    int heads;                       /* PP_OP_HEADS: index in pp_plan.heads */
    int recurrence;                  /* PP_OP_RECUR: index in pp_plan.recurrences */
    struct pp_connection connection; /* PP_OP_CONNECT */
    const struct pp_hashed *hashed;  /* PP_OP_HASH */
    const struct pp_tensor *const *tables; /* PP_OP_HASH: [count]; weight: the first */
    const struct pp_tensor *segments; /* PP_OP_EMBED: segment embeddings, of which only the first is used; or NULL */
    const struct pp_tensor *meta_tokens; /* PP_OP_EMBED: learned vectors that precede texts; or NULL */
    const struct pp_tensor *xielu[4]; /* PP_FN_XIELU: its parameters (xielu.h) */
    float alibi, alibi_scale;        /* PP_OP_ATTENTION: the exponent of ALiBi's slopes (0: none), and a factor of them
                                        (0 is 1) */

    /* -- set by pp_plan_build: the layer's place in the cache; for PP_OP_ATTENTION with a stride, also that of its
     * compressed blocks -- */
    int tier, tier_layer;
    int from_tier, from_layer;
};

/* A mixture of experts (arXiv 1701.06538), as in Mixtral and later families: the router chooses the `n_used` experts
 * with the largest logits; expert e computes W_down(fn(W_gate x) * W_up x), and the results are summed with weights:
 * the softmax over the chosen logits, or, if `no_renorm`, their part of the softmax over all. Each matrix may have a
 * bias.
 *
 * DeepSeek-V3 (arXiv 2412.19437) and others use `sigmoids` of the logits instead, as weights divided by the sum of the
 * chosen ones, or, if `no_renorm`, as they are. choice_bias is added to the scores that experts are chosen by, but not
 * to the weights. With groups of neighbouring experts, only the n_groups_used groups with the largest scores take part;
 * a group's score is the sum of its two largest. */
struct pp_experts {
    int n, n_used;
    int idle;                /* the last `idle` of the n have no matrices: they return their input, */
    bool zero_output;        /* or zeros */
    int share;               /* this many neighbouring experts share their matrices, which run once for all of them that
                                a row uses, with the sum of their weights; 0 is 1 */
    bool no_renorm, sigmoids;
    bool sqrt_softplus;      /* sqrt(softplus()) in place of the sigmoid (DeepSeek V4) */
    const struct pp_tensor *table; /* I32 [n_vocab, n_used]: chooses the experts by the row's token; the logits only
                                weight them. NULL: none */
    float mixer_jitter;      /* SparseMixer's jitter (arXiv 2409.12136), or 0: experts are chosen one by one; each is
                                weighted by its part of the softmax over those left, without logits l for which
                                (max - l) / max(|l|, max) > 2 * mixer */
    float scale;                                     /* of the weights; 0 is 1 */
    bool weighted_inputs;                            /* weights multiply the experts' input instead of their output */
    int n_groups, n_groups_used;                     /* 0: no groups */
    bool groups_by_largest;                          /* a group's score is its largest alone */
    const struct pp_tensor *choice_bias;             /* [n], or NULL */
    const struct pp_tensor *bias;                    /* [n_out], added to the sum; or NULL */
    const struct pp_tensor *scales;                  /* [n - idle]: a factor of each expert's weight; or NULL */
    /* Without `up` an expert is one matrix, W_down x. `unsummed`: results are not summed but stand side by side,
     * unweighted, the largest logit's first. `split_input`: each reads its own part of the input, in the same order. */
    bool unsummed, split_input;
    bool applied;                                    /* without `up`: an expert's result is fn(W_down x) */
    enum pp_fn fn;
    float bound;                                     /* the parameter of PP_FN_SILU_BOUNDED and PP_FN_SILU_WITHIN */
    const struct pp_tensor *const *gate, *const *up; /* [n / share], each [n_ff, n_in]; gate NULL: W_down(fn(W_up x)) */
    const struct pp_tensor *const *down;             /* [n / share], each [n_out, n_ff], or [n_out, n_in] */
    const struct pp_tensor *gate_b, *up_b, *down_b;  /* [n, n_out], or NULL */
    int first_target;                                /* its place in pp_plan_target; set by pp_plan_experts */
};

/* How many different matrices of each kind the experts have. */
static inline int pp_experts_matrices(const struct pp_experts *e)
{
    return e->share ? e->n / e->share : e->n - e->idle;
}

/* A matrix for each head. */
struct pp_heads {
    int n;
    const struct pp_tensor *const *w; /* [n], each [n_out, n_in] */
};

/* Heads with a recurrent state instead of a cache of keys. S is a matrix [key_dim, value_dim], 0 before the first
 * position; at each position a query q, a key k and a value v update and read it. In the formulas a prime transposes,
 * other names are the members below; slots are read without further scaling unless stated otherwise. The cache stores
 * what a position contributes to S (kv.h). The kinds:
 *
 * DELTA, the gated delta rule (arXiv 2412.06464):
 *
 *   S = a S + k u',  u = beta (v - (a S)' k),  out = S' q
 *
 * where q and k are first scaled to length 1 and q is divided by sqrt(key_dim); beta stands for the sigmoid of `beta`;
 * ln a = rate softplus(decay + bias), rate being negative.
 *
 * MAMBA2 (arXiv 2405.21060, where k is called B, q C and v x): as DELTA with u = softplus(decay + bias) v and
 * out = S' q + D v, D being `direct`.
 *
 * MAMBA (arXiv 2312.00752): each value of a state has its own decay, and each channel its own step D, which `decay` is:
 * S[d][c] = exp(D[c] rate[c][d]) S[d][c] + k[d] D[c] v[c], out as in MAMBA2. All channels have one key; a "head" is a
 * group of channels that the cache keeps together.
 *
 * RWKV7 (arXiv 2503.14456): a delta rule in which each row of S decays by itself, and what is removed is not what is
 * added. With p the vector of `removal_key`, scaled to length 1,
 *
 *   S = diag(decay) S + k v' - (beta * p) (S' p)',  out = norm(S' q) + (the sum of direct k q) v
 *
 * where the norm, which may be missing, is LayerNorm by the head's part of the operation's `weight` and `bias`, with
 * `scale` for epsilon, and the result is multiplied by `in`, if there is one.
 *
 * RWKV6 (arXiv 2404.05892): nothing is removed, and the output is read from the state before the position:
 *
 *   out = silu(in) norm(S' q + (the sum of direct k q) v),  S = diag(decay) S + k v'
 *
 * with the same norm.
 *
 * GLA, gated linear attention (arXiv 2312.06635), in Qwen 2's layers:
 *
 *   S = diag(decay) S + k v',  out = S' q
 *
 * KDA, Kimi Linear (arXiv 2510.26692): DELTA with a decay for each row of S, ln a = rate decay, the softplus having
 * been applied to `decay`; the output is normalised by `weight` and multiplied by sigmoid(in). Each head has its own
 * key.
 *
 * LRU, Griffin (arXiv 2402.19427): the state is one number h per channel. A "head" is key_dim x value_dim channels, the
 * width of its output; there is no key and no query, and `decay`, `beta` and v have all channels:
 *
 *   a = exp(-8 softplus(rate) sigmoid(decay + bias)),  h = a h + sqrt(1 - a^2) sigmoid(beta + direct) v,  out = h
 *
 * but with 1 in place of the root at the first position.
 *
 * LIGHTNING attention (arXiv 2401.04658): S = exp(rate) S + k v', out = S' q. Each head has its own rate and key.
 *
 * WKV, RWKV 4 (arXiv 2305.13048): each channel has a mean of its values in which a position has weight exp(k), decaying
 * with every later one. A "head" is key_dim x value_dim / 4 channels; a is a channel's weighted sum, b its sum of
 * weights:
 *
 *   out = (a + exp(direct + k) v) / (b + exp(direct + k)),  a = exp(rate) a + exp(k) v,  b = exp(rate) b + exp(k)
 *
 * a and b are stored divided by exp(m), along with m, so that no key overflows.
 *
 * MLSTM, xLSTM (arXiv 2405.04517, 2503.13427): each head has its own key, and besides S a vector n and a number m, also
 * 0 before the first position:
 *
 *   S = sigmoid(decay) S + exp(beta) k v',  n = sigmoid(decay) n + exp(beta) k,
 *   m = max(ln sigmoid(decay) + m, beta),   out = S' q / (max(|n . q|, 1) + eps exp(m))
 *
 * normalised by LayerNorm by the head's part of `weight` and `bias` and multiplied by sigmoid(in). (The published code
 * stores S and n divided by exp(m), to the same effect; since beta is bounded, they need not be.) n is the column of S
 * for a value that is always 1: the state is PP_STATE_EXTRA_COLUMNS columns wider than values are, the first of which
 * is n; in u the second of them holds a position's m. */
enum { PP_STATE_EXTRA_COLUMNS = 16 };
struct pp_recurrence {
    struct pp_state_shape shape;
    enum pp_recurrence_kind {
        PP_RECUR_DELTA,
        PP_RECUR_MAMBA2,
        PP_RECUR_MAMBA,
        PP_RECUR_RWKV7,
        PP_RECUR_KDA,
        PP_RECUR_RWKV6,
        PP_RECUR_GLA,
        PP_RECUR_LRU,
        PP_RECUR_LIGHTNING,
        PP_RECUR_WKV,
        PP_RECUR_MLSTM,
    } kind;
    float bound;                     /* KDA: if not 0, ln a = bound / (1 + exp(-|rate| decay)) */
    bool sigmoids;                   /* the output is multiplied by sigmoid(in) instead of silu(in) */
    float eps;                       /* MLSTM */
    bool beta_doubled;               /* DELTA: beta is twice the sigmoid, so that the state may change sign */
    bool tiled;                      /* head h uses key head h % n_key_head; else neighbouring heads share one */
    int q, k, v;                     /* slots: q and k [n_key_head, key_dim], v [n_head, value_dim] */
    int decay, beta;                 /* slots: head h has the value (h / neighbours) stride + h % neighbours. MAMBA's
                                        decay: [n_head, value_dim]; RWKV7's both, KDA's, RWKV6's and GLA's decay:
                                        [n_head, key_dim]. MAMBA, WKV, RWKV6 and GLA have no beta: -1 */
    int neighbours, stride;
    int removal_key;                 /* RWKV7's slot: [n_head, key_dim] */
    const struct pp_tensor *rate, *bias; /* [n_head]. rate: MAMBA2 and KDA [n_head, 1], MAMBA
                                        [n_head * value_dim, key_dim]. MAMBA and KDA have no bias, MLSTM neither. LRU
                                        and WKV: one value per channel, as `direct` */
    const struct pp_tensor *direct;  /* MAMBA2 [n_head, 1], MAMBA [n_head * value_dim], RWKV7 [n_head * key_dim], RWKV6
                                        [n_head, key_dim] */
};

/* A tier: layers that cache the same kind of thing, with the same geometry and window. Their pages are held and
 * released together. */
struct pp_tier_plan {
    enum pp_tier_kind kind;
    int64_t window;                  /* 0: none */
    int64_t n_first;                 /* with a window: leading positions that all rows see besides it */
    int n_layer;
    int n_head;                      /* query heads; rows tiers: 0 */
    int n_head_kv, head_dim;         /* rows tiers: 1, and the row's width */
    int64_t top_k;                   /* of sparse attention, and of the index that picks for it: how many; 0: all */
    int64_t stride;                  /* block length of attention that also sees compressed blocks, and of the tiers of
                                        those blocks, of their index, and of the rows they are made from; else 0 */
    int64_t block;                   /* positions picked together, for each KV head by itself; 0: each alone */
    bool pooled;                     /* or the same blocks for all heads, and the positions after the last whole one */
    int64_t n_local_blocks;          /* attention heads see the last n_local_blocks pages, */
    int64_t vert_stride;             /* and every vert_stride-th before them; n_local_blocks 0: all */
    int64_t n_local;                 /* of an index: the last blocks, which are always picked */
    int v_dim;                       /* of attention: values of a head's V */
    int latent_dim;                  /* V is the first latent_dim values of K; 0: it is stored */
    struct pp_state_shape state;     /* of a state tier; head_dim is value_dim there */
};

struct pp_plan {
    struct pp_op *ops;
    int n_ops, cap_ops;
    struct pp_linear *linears;
    int n_linears, cap_linears;
    struct pp_slot *slots;
    int n_slots, cap_slots;
    struct pp_experts *experts;
    int n_experts, cap_experts;
    int n_expert_targets;            /* adapter targets (pp_plan_target) of all mixtures */
    struct pp_heads *heads;
    int n_heads, cap_heads;
    struct pp_recurrence *recurrences;
    int n_recurrences, cap_recurrences;
    void **owned;                    /* [n_owned] other memory to pp_free: arrays of expert matrices, made-up tensors */
    int n_owned, cap_owned;
    struct pp_tier_plan tiers[PP_MAX_TIERS];
    int n_tiers;                     /* at least 1 */
    int64_t n_positions;             /* the longest possible sequence, where positions are learned or attention would
                                        change beyond it; 0: no limit */
    bool encoder;                    /* rows see all rows of their sequence, which come in one step; RESULT has no
                                        logits */
    bool bad;                        /* out of memory while building */
};

/* Builds the plan of an opened model and checks that every tensor is there, with the right shape and a type that can
 * run. s must outlive the plan, which the caller frees. PP_ERR_FORMAT, PP_ERR_UNSUPPORTED, PP_ERR_NOMEM; *plan is then
 * empty. */
enum pp_code pp_plan_build(const struct pp_source *s, struct pp_plan *plan, struct pp_error *err);
void pp_plan_free(struct pp_plan *plan);
/* Whether some layers have recurrent states, compressed blocks, or heads that each see other pages. Such models run
 * chains of rows only, no trees, and their cache cannot be moved to other positions. */
bool pp_plan_has_states(const struct pp_plan *plan);
/* Whether the value in a slot, or in part of it, is live at the from-th operation: read there or later before it is
 * overwritten. A backend must not fuse it away then. */
bool pp_plan_reads(const struct pp_plan *plan, int slot, int from);
/* Whether this operation reads the slot or part of it. */
bool pp_plan_op_reads(const struct pp_plan *plan, const struct pp_op *op, int slot);
/* A step of pp_plan_build. PP_ERR_UNSUPPORTED names a tensor of a GGUF file that nothing in the plan uses: without it
 * the answers would be wrong. */
enum pp_code pp_plan_check_used(const struct pp_source *s, const struct pp_plan *p, struct pp_error *err);
/* The last step of pp_plan_build: assigns layers to tiers, attention first, each kind in the order of the plan.
 * PP_ERR_UNSUPPORTED: it would take more than PP_MAX_TIERS. */
enum pp_code pp_plan_place_layers(const struct pp_source *s, struct pp_plan *p, struct pp_error *err);

/* --- for engine/arch/ ------------------------------------------------------------------------------------- */

int pp_plan_slot(struct pp_plan *p, int64_t width);
int pp_plan_part(struct pp_plan *p, int slot, int64_t at, int64_t width); /* of a whole slot */
void pp_plan_add(struct pp_plan *p, struct pp_op op);
/* A required tensor of shape [rows, cols] (rows 0: a vector of cols). NULL and *err if it is missing or wrong; first
 * error wins. */
const struct pp_tensor *pp_plan_tensor(const struct pp_source *s, int64_t rows, int64_t cols, struct pp_error *err,
                                       const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* A required vector of rows * cols values as a matrix [rows, cols], or one; NULL: *err is set. */
const struct pp_tensor *pp_plan_rows(struct pp_plan *p, const struct pp_source *s, int64_t rows, int64_t cols,
                                     struct pp_error *err, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* n tables [any number of rows, the same in all, width], NAME.0.weight and so on, or the one called `whole`, *n then
 * being 1; NULL: *err is set. */
const struct pp_tensor *const *pp_plan_tables(struct pp_plan *p, const struct pp_source *s, const char *whole,
                                              int64_t *n, int64_t width, struct pp_error *err, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));
/* The matrices [n_out, n_in] of n experts, at least 1: a tensor NAME_exps.weight that holds them all, or NAME.0.weight
 * and so on; where NAME ends with _ch, NAMEexps.weight. NULL: *err is set. */
const struct pp_tensor *const *pp_plan_matrices(struct pp_plan *p, const struct pp_source *s, int n, int64_t n_out,
                                                int64_t n_in, struct pp_error *err, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));
/* A row of a matrix, or of a tensor of more dimensions, as a vector; NULL: *err is set. */
const struct pp_tensor *pp_plan_row(struct pp_plan *p, const struct pp_tensor *t, int64_t row, struct pp_error *err);
/* A matrix [rows, cols], in whose shape dimensions of 1 are ignored; NULL: *err is set. */
const struct pp_tensor *pp_plan_flat(struct pp_plan *p, const struct pp_source *s, int64_t rows, int64_t cols,
                                     struct pp_error *err, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* A required I32 tensor [rows, cols]; NULL: *err is set. */
const struct pp_tensor *pp_plan_table(const struct pp_source *s, int64_t rows, int64_t cols, struct pp_error *err,
                                      const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* A required tensor of n matrices [rows, cols], and the i-th of them; NULL: *err is set. */
const struct pp_tensor *pp_plan_stack(const struct pp_source *s, int64_t n, int64_t rows, int64_t cols,
                                      struct pp_error *err, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
const struct pp_tensor *pp_plan_matrix_of(struct pp_plan *p, const struct pp_tensor *t, int64_t i,
                                          struct pp_error *err);
/* Taps for PP_OP_CONVOLVE over n values: their value at the previous position minus the present one; NULL: *err is
 * set. */
const struct pp_tensor *pp_plan_shift(struct pp_plan *p, int64_t n, struct pp_error *err);
/* Taps for any number of values: their value at the previous position; NULL: *err is set. */
const struct pp_tensor *pp_plan_last(struct pp_plan *p, struct pp_error *err);
/* Taps for n values: the i-th as it was i + 1 positions before; NULL: *err is set. */
const struct pp_tensor *pp_plan_history(struct pp_plan *p, int64_t n, struct pp_error *err);
/* Sets the bias of a projection, where its tensor is not called NAME.bias. */
void pp_plan_linear_bias(struct pp_plan *p, int linear, const struct pp_tensor *bias);
/* A made-up vector of n ones, for norms without weights; NULL: *err is set. */
const struct pp_tensor *pp_plan_ones(struct pp_plan *p, int64_t n, struct pp_error *err);
/* A made-up vector of n zeros, for the caller to fill in through *numbers; NULL: *err is set. */
const struct pp_tensor *pp_plan_numbers(struct pp_plan *p, int64_t n, float **numbers, struct pp_error *err);
/* The same as a matrix [rows, cols]. */
const struct pp_tensor *pp_plan_number_rows(struct pp_plan *p, int64_t rows, int64_t cols, float **numbers,
                                            struct pp_error *err);
/* A made-up bias of the logits [n_vocab] that suppresses hp's silent tokens: -1e30 for those, else 0; NULL: *err is
 * set. */
const struct pp_tensor *pp_plan_suppress(struct pp_plan *p, const struct pp_hparams *hp, struct pp_error *err);
/* A made-up table of sinusoidal positions [n_positions, n]: in each row n / 2 sines, then n / 2 cosines. fairseq: that
 * library's variant, whose first row is position 2, and whose last frequency is 1 / 10000 rather than the one before
 * it; NULL: *err is set. */
const struct pp_tensor *pp_plan_sinusoids(struct pp_plan *p, int64_t n_positions, int64_t n, bool fairseq,
                                          struct pp_error *err);
/* Registers a mixture; returns its index. */
int pp_plan_experts(struct pp_plan *p, const struct pp_experts *e);
/* What adapters attach to: the linears, by their index, then the matrices of all mixtures, of each the gates, then
 * `up`, then `down`; w is NULL for a kind that a mixture does not have. The result's `index` is the one asked for. */
int pp_plan_n_targets(const struct pp_plan *p);
struct pp_linear pp_plan_target(const struct pp_plan *p, int index);
enum pp_expert_kind { PP_EXPERT_GATE, PP_EXPERT_UP, PP_EXPERT_DOWN, PP_EXPERT_KINDS };
/* The target index of a mixture's e-th matrix of a kind. */
int pp_plan_expert_target(const struct pp_plan *p, const struct pp_experts *of, enum pp_expert_kind kind, int e);
/* Whether a target is an expert's down matrix, the only reader of what the expert's other matrices produce. */
bool pp_plan_is_expert_down(const struct pp_plan *p, int index);
/* Registers a recurrence; returns its index. */
int pp_plan_recurrence(struct pp_plan *p, const struct pp_recurrence *r);
/* Registers the matrices [n_out, n_in] of n >= 1 heads, which are stacked in one tensor. Returns their index, or -1
 * with *err set. */
int pp_plan_heads(struct pp_plan *p, const struct pp_source *s, int n, int64_t n_out, int64_t n_in,
                  struct pp_error *err, const char *fmt, ...) __attribute__((format(printf, 7, 8)));
/* Registers a projection NAME.weight with an optional NAME.bias; returns its index, or -1 with *err set. One that
 * several layers share is registered once, so that an adapter changes it in all of them. */
int pp_plan_linear(struct pp_plan *p, const struct pp_source *s, int64_t n_out, int64_t n_in, struct pp_error *err,
                   const char *fmt, ...) __attribute__((format(printf, 6, 7)));

#endif
