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

enum pp_op_kind {
    PP_OP_EMBED,     /* out = scale * row of `weight` for the row's token, plus that of `bias` for its position if there
                        is one, and the first of `segments`; or the row's input vector */
    PP_OP_LOOKUP,    /* out = scale * row of `weight` for the row's token, or its position; the first row if there is no
                        such token or position */
    PP_OP_TOKEN,     /* out = the number of the row's token, and `at`, in every value */
    PP_OP_NGRAM,     /* out = the row of `weight` that the row's token t and the `count` tokens before it, the latest
                        first in `in`, lead to: t + t_1 v + t_2 v^2 + ... modulo the number of rows, v being `period`;
                        tokens from the latest one on that is the `at`-th of the vocabulary count as 0 */
    PP_OP_HASH,      /* out = the rows of `count` tables of as many rows each, one behind the other, that the row's
                        token and those before it lead to, side by side: struct pp_hashed; for n tokens t, t_1 ... the
                        hash is m_0 t xor m_1 t_1 xor ..., modulo the rows of each in turn. `in`: those before, the
                        latest first, and 1; 0: there was none. From the latest one that is `end` on all are that */
    PP_OP_NORM,      /* out = norm(in) * weight [+ bias]: by the root of the mean square, or `centred`, LayerNorm; with
                        `scale` for epsilon, where that is not 0 */
    PP_OP_HEAD_NORM, /* out = the same for every head of `in`, by one vector of as many values as a head has, or each
                        head by one of its own: a row of a matrix. In front of attention in place */
    PP_OP_LINEAR,    /* out = linear(in), adapters included */
    PP_OP_HEADS,     /* out = of each head of `in` the product with its own matrix of `heads`; values that a head has
                        behind those that are multiplied come behind its result */
    PP_OP_ROPE,      /* in place: rotates the heads in `in` by the row's position; with a `period` heads of so many
                        values, which are not attention's, by `halves` or by neighbours, from the `at`-th value on, and
                        `back`: the other way round */
    PP_OP_KV_STORE,  /* K from `in`, V from `in2` go to the row's place in the cache, layer `layer`. With a `stride` and
                        without `in2`, `in` is what a COMPRESS gave: of rows that are the last of their block, it goes
                        to the block's place in a tier of compressed positions, its last values rotated by the position
                        of the block's first one */
    PP_OP_COMPRESS,  /* of rows that are the last of a block of `stride` positions, which begin at its multiples: out =
                        the sum of what `in` was at them, each value times its share in the softmax over them of what
                        `in2` was there, to which the position's row of `bias` [stride, width of in] is added; all
                        normed by `weight`. Where `in` is twice as wide as out, the second halves are those of the own
                        block, and with them takes part, if there is one, the block before it by the first halves. Of
                        other rows 0. What `in` and `in2` are goes to the row's place in the cache, layer `layer` */
    PP_OP_ATTENTION, /* out = attention of the query heads in `in` over the cache of `layer`; `weight`: attention sinks
                        [n_head], each a score without a value, or NULL; scores are bounded by `scale` if it is not 0,
                        and fall with the distance by `alibi`. Without a KV_STORE in front the cache is that of the
                        last layer before it that has one of its tier. With a `count`, rows that would see more
                        positions than that see those only that the last PICK before it picked: of blocks of `period`
                        positions, the query heads of each head of keys those that it picked for that one; or, if it
                        is `pooled`, all heads the same, and those behind the last whole block besides. With a
                        `stride`, a window and one head of keys, rows also see the keys of the layer's compressed
                        blocks that end up to them, which are values, too; of those blocks a `count` is then */
    PP_OP_PICK,      /* picks for each row the `count` positions of those it may see whose score is the largest, of the
                        same scores the first. A score is the sum over the heads of `in` of the head's number of `in3`
                        times max(0, q . k), k being what `in2` was at that position. Of each head and of `in2`
                        rope_dim values from the `at`-th on are rotated before, by halves or by neighbours; `in2` goes
                        to the row's place in the cache, layer `layer`. With a `period`, a power of two: picks for each
                        head of `in`, of blocks of so many positions that begin at its multiples, as many as `count`
                        positions are. A block's score is the largest q . k of those of its positions that the row may
                        see; the last `local` blocks, the row's own being one, are picked in any case. There is no
                        `in3`. If it is `pooled`, there is, and all heads see the same blocks: a block's score is that
                        of its last position, whose `in2` is the key of the whole block, and only those blocks are
                        picked from of which the row sees all. Without `in3` each head's number is 1, and `in2` is
                        rotated by the position of its block's beginning. With a `stride`, positions are blocks of so
                        many that end up to the row, k is what a COMPRESS gave in `in2` at the last of each, and is
                        rotated as that of a KV_STORE is */
    PP_OP_CONVOLVE,  /* out = bias + the sum of weight[:, j] times what `in` was at the j-th of the last `window`
                        positions, the row's own being the last; in a tree those of its ancestors. Before the first
                        position it was 0. `weight`: [width, window], or fewer rows, each of as many values; with a
                        `period` there is a column for each such of these positions only, back from the row's
                        own. What `in` is goes to the row's place in the cache, layer `layer` */
    PP_OP_POOL,      /* out = of the block of `period` positions in which the row's lies, the mean of what the first
                        half of `in` was at those up to the row's own, each value with its share in the softmax of what
                        the second half was there, row j of `weight` [period, width of out] being added at the block's
                        j-th position; or, without `weight`, the mean of `in`. What `in` is goes to the row's place in
                        the cache, layer `layer` */
    PP_OP_RECUR,     /* out = what the states of layer `layer` give for the row's queries, as `recurrence` says: each
                        head normed by `weight`, if there is one, with `scale` for epsilon, where that is not 0, and all
                        times silu(in), or sigmoid(in) */
    PP_OP_GATE,      /* out = fn(in) * in2, with `scale` where the function has a number */
    PP_OP_MULTIPLY,  /* out = in * in2, or in * weight */
    PP_OP_AFFINE,    /* out = (in + bias) * weight, of which either may be missing; `weight` may have one number for as
                        many neighbours of in as there are for each */
    PP_OP_MIX,       /* `in` and `out` being streams side by side, `in2` a matrix with a row for each: stream j of out =
                        that of in, plus the sum of the streams of in, each times its number of row j */
    PP_OP_SPREAD,    /* in place: to each of the streams of `out`, `in` times 1 + its number of `in2` is added */
    PP_OP_CONNECT,   /* out = the numbers by which a part of a layer is connected with `count` streams: struct
                        pp_connection; `in` becomes them one by one, times a number of `weight` (for each kind one) and
                        with `bias` added */
    PP_OP_READ_STREAMS,  /* out = the sum of the streams of `in`, each times its number of `in2`, the first ones of a
                        CONNECT */
    PP_OP_WRITE_STREAMS, /* in place: stream j of `out` becomes itself, or, where `in2`, what a CONNECT gave, has a
                        matrix, the sum of all, stream i times number (i, j) of that; and `in` times the stream's number
                        is added */
    PP_OP_ROOTS,     /* out = for each of `count` streams of `in` and of `in2` the root of `scale` times their product,
                        which is at least 1e-6 either way, with the product's sign; of 0 it is 0 */
    PP_OP_MATCH,     /* out = in, made as long as in2 */
    PP_OP_RECALL,    /* out = the sum of `count` vectors as long as `in`, side by side in `in2`, and of that one, each
                        times its share in the softmax of their scores: a score is the product of `weight` with the
                        vector, that being divided by the root of its mean square, with `scale` for epsilon */
    PP_OP_SPARSEN,   /* out = what of `in` is above its mean by more than `scale` standard deviations, that much less;
                        else 0 */
    PP_OP_TAKE,      /* out = of each `period` neighbouring values of `in`, `count` from the `at`-th on, `times` times
                        one behind the other; 0 is 1 */
    PP_OP_WEIGH,     /* out = fn(in) * in2, `in` having one number for as many neighbours of in2 as there are for each:
                        PP_FN_SIGMOID or PP_FN_SOFTPLUS */
    PP_OP_APPLY,     /* out = fn(in), with `scale` where the function has a number, or the one in `weight` */
    PP_OP_EXPERTS,   /* out = the weighted sum of what the experts that `in2`, a logit for each, is largest for make of
                        `in` */
    PP_OP_ADD,       /* in place: out += scale * in */
    PP_OP_SELECT,    /* from here on only rows that want an output take part */
    PP_OP_RESULT,    /* `in` is what PP_OUT_HIDDEN gives, `in2` what PP_OUT_LOGITS gives */
};

/* Hyper-connections (arXiv 2409.19606): a model has several residual streams, n, which begin as the same. What a part
 * of a layer reads is their sum, each times a number, and what it gives is added to each, times another; and the
 * streams may be mixed before (manifold-constrained, arXiv 2512.24880). The numbers are made anew for each row. Of
 * x, a product with all streams, the first n become
 *
 *   read[i] = sigmoid(x[i]) + least
 *
 * the next n, if there are more,
 *
 *   write[j] = most sigmoid(x[n + j]) + write_least
 *
 * and the next n * n, if there are still more, a matrix whose rows and columns add up to about 1: from the softmax of
 * each row, to which `least` is added, columns, then rows and columns in turns, in all columns `rounds` times, are
 * divided by their sum and `least`. */
struct pp_connection {
    float least, most, write_least;
    int rounds;
};

/* Functions of one number, and of a gate and the value it lets through. */
enum pp_fn {
    PP_FN_SILU,      /* x / (1 + exp(-x)) */
    PP_FN_GELU,      /* x (1 + erf(x / sqrt 2)) / 2 */
    PP_FN_GELU_TANH, /* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 */
    PP_FN_SIGMOID,   /* 1 / (1 + exp(-x)) */
    PP_FN_CLAMPED,   /* of a gate g and a value u only, as gpt-oss has it: g' / (1 + exp(-1.702 g')) * (u' + 1), g' at
                        most 7 and u' within -7 .. 7, or with a scale that */
    PP_FN_SCALE,     /* scale x */
    PP_FN_CAP,       /* scale tanh(x / scale) */
    PP_FN_CLAMP,     /* x, but at least -scale and at most scale */
    PP_FN_RELU2,     /* x^2 where x is positive, else 0 */
    PP_FN_RELU,      /* x where it is positive, else 0 */
    PP_FN_SILU_BOUNDED, /* of a gate g and a value u only: g / (1 + exp(-g)), but at most scale, times u within
                        -scale .. scale */
    PP_FN_SILU_WITHIN, /* likewise g' / (1 + exp(-g')), g' being g, but at most scale, times u within -scale ..
                        scale */
    PP_FN_SITU,      /* of a gate g and a value u only, as Kimi K3 has it: 4 tanh(g / 4) / (1 + exp(-g)) times
                        25 tanh(u / 25) */
    PP_FN_SOFTPLUS,  /* ln(1 + exp(x)); not of a gate */
    PP_FN_DECAY,     /* exp(-exp(-1/2) / (1 + exp(-x))), within exp(-exp(-1/2)) .. 1; not of a gate */
    PP_FN_DOUBLE_EXP, /* exp(-exp(x)), with a scale at least exp(-scale); not of a gate */
    PP_FN_EXP,       /* exp(x), x being at most 88; not of a gate */
    PP_FN_XIELU,     /* behind a projection only: struct pp_xielu */
    PP_FN_COUNT,
};

/* linear x, and where x is positive, positive x^2 on top, elsewhere negative (exp(min(x, most)) - 1 - x). */
struct pp_xielu {
    float positive, negative, linear, most;
};

/* A slot, or a part of one: `base` is then the slot, and the part begins `at` values into its rows. */
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
};

struct pp_op {
    enum pp_op_kind kind;
    enum pp_fn fn;                   /* PP_OP_GATE, PP_OP_WEIGH, PP_OP_APPLY */
    bool centred;                    /* the norms: LayerNorm */
    bool local_rope;                 /* PP_OP_ROPE: by the frequencies of rope_base_local */
    bool halves;                     /* PP_OP_PICK, PP_OP_ROPE: the pairs that are rotated are i and i + rope_dim / 2;
                                        else neighbours */
    bool back;                       /* PP_OP_ROPE with a period */
    bool by_position;                /* PP_OP_LOOKUP */
    float scale;                     /* PP_OP_EMBED, PP_OP_ADD: 0 is 1 */
    int layer;
    int64_t window;                  /* of those that use the cache: how many positions a row sees, itself included,
                                        or 0: all; in an encoder to either side */
    int tier, tier_layer;            /* the same: where the cache has the layer; set by pp_plan_build */
    int in, in2, out;                /* slots; -1 if unused */
    int in3;                         /* PP_OP_PICK: a slot, or -1 */
    int64_t count, at, period, times; /* PP_OP_TAKE; count: of what has to do with streams, those; of PP_OP_RECALL,
                                        vectors; of PP_OP_PICK, and of PP_OP_ATTENTION with its PP_OP_KV_STORE,
                                        positions, period then being of blocks, as of PP_OP_POOL. at: PP_OP_PICK,
                                        PP_OP_TOKEN, PP_OP_ROPE with a period. count, at, period: PP_OP_NGRAM. count:
                                        PP_OP_HASH. period: PP_OP_CONVOLVE */
    const struct pp_hashed *hashed;  /* PP_OP_HASH */
    const struct pp_tensor *const *tables; /* PP_OP_HASH: [count]; weight: the first */
    int64_t stride;                  /* PP_OP_COMPRESS, PP_OP_KV_STORE, PP_OP_PICK, PP_OP_ATTENTION: positions of a
                                        block that becomes one key; 0: there are none */
    int from_tier, from_layer;       /* PP_OP_ATTENTION with a stride: where the cache has those keys; set by
                                        pp_plan_build */
    int64_t local;                   /* PP_OP_PICK with a period */
    bool pooled;                     /* PP_OP_PICK, PP_OP_ATTENTION and its PP_OP_KV_STORE, with a period */
    struct pp_connection connection; /* PP_OP_CONNECT */
    int linear;                      /* PP_OP_LINEAR: index in pp_plan.linears */
    int experts;                     /* PP_OP_EXPERTS: index in pp_plan.experts */
    int heads;                       /* PP_OP_HEADS: index in pp_plan.heads */
    int recurrence;                  /* PP_OP_RECUR: index in pp_plan.recurrences */
    const struct pp_tensor *weight, *bias;
    const struct pp_tensor *segments; /* PP_OP_EMBED: what tells parts of a text apart, of which we have one; or NULL */
    const struct pp_tensor *xielu[4]; /* PP_FN_XIELU: the numbers of xielu.h */
    float alibi, alibi_scale;        /* PP_OP_ATTENTION: the exponent of ALiBi's slopes, or 0: none; what they are
                                        multiplied by, 0 being 1 */
};

/* A mixture of experts (arXiv 1701.06538), as Mixtral and later families have it: the `n_used` with the largest logits
 * work, expert e making W_down(fn(W_gate x) * W_up x) of x, and their results are added with weights: the softmax of
 * those logits, or their share in the softmax of all. Biases may come behind each matrix.
 *
 * DeepSeek-V3 (arXiv 2412.19437) and others have sigmoids of the logits instead, for weights their part of the sum of
 * those used, or themselves. A bias may be added to what experts are chosen by, but not to the weights. Where they
 * come in groups of neighbours, all are chosen from the n_groups_used whose two largest have the largest sums. */
struct pp_experts {
    int n, n_used;
    int idle;                /* the last so many of the n have no matrices: they give what they read, */
    bool silent;             /* or nothing */
    int share;               /* so many neighbours have the same matrices, which work once for all of them that a row
                                uses, with their weights together; 0 is 1 */
    bool shares, sigmoids;
    bool roots;              /* roots of softplus (DeepSeek V4) in the place of sigmoids */
    const struct pp_tensor *table; /* I32 [n_vocab, n_used]: which experts work for the row's token, whatever the
                                logits, which weigh them; or NULL */
    float mixer;             /* SparseMixer's jitter (arXiv 2409.12136), or 0: one after the other, the expert with the
                                largest logit of those that are left has for weight its share in the softmax of them,
                                without those that are further below than twice this part of the larger size */
    float scale;                                     /* of the weights; 0 is 1 */
    bool weighed_inputs;                             /* they multiply what goes into experts, not what comes out */
    int n_groups, n_groups_used;                     /* 0: no groups */
    bool groups_by_largest;                          /* the groups chosen are those with the largest experts */
    const struct pp_tensor *choice_bias;             /* [n], or NULL */
    const struct pp_tensor *bias;                    /* [n_out], added to what they give together; or NULL */
    const struct pp_tensor *scales;                  /* [n - idle]: of each expert's weight; or NULL */
    /* Without `up` an expert is one matrix, W_down x. What experts give may stand side by side, without weights, that
     * of the one with the largest logit first; and each may read a part of the input, that one the first. */
    bool apart, of_parts;
    enum pp_fn fn;
    float bound;                                     /* PP_FN_SILU_BOUNDED's and PP_FN_SILU_WITHIN's */
    const struct pp_tensor *const *gate, *const *up; /* [n / share], each [n_ff, n_in]; gate NULL: W_down(fn(W_up x)) */
    const struct pp_tensor *const *down;             /* [n / share], each [n_out, n_ff], or [n_out, n_in] */
    const struct pp_tensor *gate_b, *up_b, *down_b;  /* [n, n_out], or NULL */
};

/* How many matrices of each kind there are. */
static inline int pp_experts_matrices(const struct pp_experts *e)
{
    return e->share ? e->n / e->share : e->n - e->idle;
}

/* A matrix for each head. */
struct pp_heads {
    int n;
    const struct pp_tensor *const *w; /* [n], each [n_out, n_in] */
};

/* Heads with a state instead of a cache of keys: the gated delta rule (arXiv 2412.06464). S is a matrix [key_dim,
 * value_dim], 0 before the first position; at each position, of a query q, a key k and a value v,
 *
 *   S = a S + k u',  u = beta (v - (a S)' k),  out = S' q
 *
 * where q and k are made of length 1 before, and q is divided by the root of key_dim; beta is the sigmoid of `beta`;
 * ln a = rate softplus(decay + bias), rate being negative. What was decided of a, u and k is in the cache, of which
 * kv.h says how it is used.
 *
 * Or Mamba 2's (arXiv 2405.21060), where k is called B, q C and v x: u = softplus(decay + bias) v, out = S' q + D v,
 * with q and k as they come.
 *
 * Or Mamba's (arXiv 2312.00752), whose states have a decay for each of their values, and whose positions a step D for
 * each channel, which `decay` is: S[d][c] = exp(D[c] rate[c][d]) S[d][c] + k[d] D[c] v[c], out as in Mamba 2. All
 * channels have one key; heads are channels that lie together in the cache.
 *
 * Or RWKV 7's (arXiv 2503.14456), a delta rule in which each row of S decays by itself, and what is taken off is not
 * what is added: with p the vector of `look`, made of length 1,
 *
 *   S = diag(decay) S + k v' - (beta * p) (S' p)',  out = norm(S' q) + (the sum of direct k q) v
 *
 * where the norm is LayerNorm by the head's part of the operation's `weight` and `bias`, with `scale` for epsilon, and
 * all is multiplied by `in`, if there is one, as it is. There need not be a norm.
 *
 * Or RWKV 6's (arXiv 2404.05892), in which nothing is taken off, and which looks at the state before the position:
 *
 *   out = silu(in) norm(S' q + (the sum of direct k q) v),  S = diag(decay) S + k v'
 *
 * with the same norm.
 *
 * Or what RWKV 6 is in Qwen 2's layers, gated linear attention (arXiv 2312.06635), which has nothing but
 *
 *   S = diag(decay) S + k v',  out = S' q
 *
 * Or Kimi Linear's (arXiv 2510.26692): the gated delta rule with a decay for each row of S, ln a = rate decay, `decay`
 * being behind its softplus; what it gives is normed by `weight` and multiplied by the sigmoid of `in`. Each head has a
 * key of its own.
 *
 * Or Griffin's (arXiv 2402.19427), whose state is a number h for each channel. A "head" is key_dim x value_dim
 * channels, which is how many it gives; there is no key and no query, and `decay`, `beta` and v have all of them:
 *
 *   a = exp(-8 softplus(rate) sigmoid(decay + bias)),  h = a h + sqrt(1 - a^2) sigmoid(beta + direct) v,  out = h
 *
 * but with 1 in place of the root at the first position.
 *
 * Or lightning attention's (arXiv 2401.04658): S = exp(rate) S + k v', out = S' q, as they come, where each head has a
 * rate and a key of its own.
 *
 * Or RWKV 4's (arXiv 2305.13048), which are no matrices either: each channel has the mean of its values, in which a
 * position counts for exp(k), and less with each later one. A "head" is key_dim x value_dim / 4 channels, which have a
 * key k and a value v each, and a sum of values a and one of what they count for b:
 *
 *   out = (a + exp(direct + k) v) / (b + exp(direct + k)),  a = exp(rate) a + exp(k) v,  b = exp(rate) b + exp(k)
 *
 * What is kept is a, b and a number m: both are exp(m) times as large, so that keys may be anything. */
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
    } kind;
    float bound;                     /* Kimi Linear's: 0, or ln a = bound / (1 + exp(-|rate| decay)) */
    bool sigmoids;                   /* the delta rule's results are multiplied by sigmoid(in) */
    bool twice;                      /* the delta rule's beta is twice the sigmoid, so that a state may turn over */
    bool tiled;                      /* head h goes with key head h modulo n_key_head; else it is among neighbours that
                                        have one key head */
    int q, k, v;                     /* slots: [n_key_head, key_dim], likewise, [n_head, value_dim] */
    int decay, beta;                 /* slots: of head h the value (h / neighbours) stride + h % neighbours, or Mamba's
                                        [n_head, value_dim]; Mamba, RWKV 4 and 6 and GLA have no beta: -1 */
    int neighbours, stride;
    int look;                        /* RWKV 7's slot, whose decay and beta are [n_head, key_dim], too; as are Kimi
                                        Linear's decay, RWKV 6's and GLA's */
    const struct pp_tensor *rate, *bias; /* [n_head]; Mamba 2's and Kimi Linear's rate [n_head, 1]; Mamba's
                                        [n_head * value_dim, key_dim], and NULL; Kimi Linear has no bias; Griffin's
                                        and RWKV 4's have one value for each channel, and so has
                                        `direct` */
    const struct pp_tensor *direct;  /* Mamba 2's D [n_head, 1], Mamba's [n_head * value_dim], RWKV 7's
                                        [n_head * key_dim], RWKV 6's [n_head, key_dim] */
};

/* Layers that leave things of one kind, geometry and window behind: their pages are kept and let go together. */
struct pp_tier_plan {
    enum pp_tier_kind kind;
    int64_t window;                  /* 0: none */
    int n_layer;
    int n_head;                      /* of queries; of rows: 0 */
    int n_head_kv, head_dim;         /* of rows: 1, and how long they are */
    int64_t top_k;                   /* of attention whose positions are picked, and of what picks them: how many, or
                                        0 */
    int64_t stride;                  /* of attention that also sees blocks of so many positions, of their keys, of what
                                        picks them, and of rows that they are made of; 0: there are none */
    int64_t block;                   /* so many are picked together, for each head of keys by itself; 0: each alone */
    bool pooled;                     /* or for all heads the same, and those behind the last whole block besides */
    int64_t n_near, far_step;        /* of attention whose heads see the last so many pages, and each so many-th before
                                        them; 0: all */
    int64_t n_local;                 /* of what picks: blocks that are picked in any case */
    int v_dim;                       /* of attention: of a head's values */
    int latent_dim;                  /* V is the first so many values of K; 0: it is stored */
    struct pp_state_shape state;     /* of states; head_dim is value_dim there */
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
    struct pp_heads *heads;
    int n_heads, cap_heads;
    struct pp_recurrence *recurrences;
    int n_recurrences, cap_recurrences;
    void **owned;                    /* what else is pp_free'd: matrices of experts [n_owned] */
    int n_owned, cap_owned;
    struct pp_tier_plan tiers[PP_MAX_TIERS];
    int n_tiers;                     /* at least 1 */
    int64_t n_positions;             /* no sequence is longer: more have nothing learned for them, or would be
                                        seen otherwise. 0: any number */
    bool encoder;                    /* a row sees all rows of its sequence, which come in one step; RESULT has no
                                        logits */
    bool bad;                        /* out of memory while building */
};

/* Builds the plan of an opened model; checks that every tensor is there, has the shape it must have and a type that can
 * run. */
enum pp_code pp_plan_build(const struct pp_source *s, struct pp_plan *plan, struct pp_error *err);
void pp_plan_free(struct pp_plan *plan);
/* Whether some layers have states, keys of several positions, or heads that see each some pages, which know chains of
 * rows only, no trees, and cannot be moved. */
bool pp_plan_has_states(const struct pp_plan *plan);
/* Whether what is in a slot, or in some of it, is read by the from-th operation or one behind it, before it is written
 * anew. What a backend fuses away must not be. */
bool pp_plan_reads(const struct pp_plan *plan, int slot, int from);
/* The last step of pp_plan_build: gives every layer its place in a tier, those of attention first, each kind in the
 * order of the plan. PP_ERR_UNSUPPORTED: there would be more than PP_MAX_TIERS. */
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
/* A row of a matrix, or of what has more dimensions, as a vector; NULL: *err is set. */
const struct pp_tensor *pp_plan_row(struct pp_plan *p, const struct pp_tensor *t, int64_t row, struct pp_error *err);
/* A matrix [rows, cols], which may have dimensions of one between or behind; NULL: *err is set. */
const struct pp_tensor *pp_plan_flat(struct pp_plan *p, const struct pp_source *s, int64_t rows, int64_t cols,
                                     struct pp_error *err, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* A required tensor of whole numbers, I32 [rows, cols]; NULL: *err is set. */
const struct pp_tensor *pp_plan_table(const struct pp_source *s, int64_t rows, int64_t cols, struct pp_error *err,
                                      const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* A required tensor of n matrices [rows, cols], and the i-th of them; NULL: *err is set. */
const struct pp_tensor *pp_plan_stack(const struct pp_source *s, int64_t n, int64_t rows, int64_t cols,
                                      struct pp_error *err, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
const struct pp_tensor *pp_plan_matrix_of(struct pp_plan *p, const struct pp_tensor *t, int64_t i,
                                          struct pp_error *err);
/* The taps of a convolution of n values that gives by how much the last position's are larger; NULL: *err is set. */
const struct pp_tensor *pp_plan_shift(struct pp_plan *p, int64_t n, struct pp_error *err);
/* Those of a convolution of any number of values that gives what they were at the last position; NULL: *err is set. */
const struct pp_tensor *pp_plan_last(struct pp_plan *p, struct pp_error *err);
/* Those of a convolution of n values that gives what the i-th was i + 1 positions before; NULL: *err is set. */
const struct pp_tensor *pp_plan_history(struct pp_plan *p, int64_t n, struct pp_error *err);
/* What is added behind a projection, where files call it otherwise. */
void pp_plan_linear_bias(struct pp_plan *p, int linear, const struct pp_tensor *bias);
/* n ones, for norms without weights; NULL: *err is set. */
const struct pp_tensor *pp_plan_ones(struct pp_plan *p, int64_t n, struct pp_error *err);
/* n numbers that the caller fills in, 0 as yet; NULL: *err is set. */
const struct pp_tensor *pp_plan_numbers(struct pp_plan *p, int64_t n, float **numbers, struct pp_error *err);
/* What is added to logits: 0, but to those of tokens that are never given so little that they are not chosen; NULL:
 * *err is set. */
const struct pp_tensor *pp_plan_silence(struct pp_plan *p, const struct pp_hparams *hp, struct pp_error *err);
/* A table of sinusoids, [n_positions, n]: the first half of a row are sines, the second cosines, of the position's
 * number, or as fairseq has it that and 2, with the last frequency 1 / 10000 and not the one before it; NULL: *err is
 * set. */
const struct pp_tensor *pp_plan_sinusoids(struct pp_plan *p, int64_t n_positions, int64_t n, bool fairseq,
                                          struct pp_error *err);
int pp_plan_experts(struct pp_plan *p, const struct pp_experts *e); /* its index */
int pp_plan_recurrence(struct pp_plan *p, const struct pp_recurrence *r); /* its index */
/* Registers the matrices [n_out, n_in] of n heads, at least 1, which are one tensor, one behind the other. Its index,
 * or -1 with *err set. */
int pp_plan_heads(struct pp_plan *p, const struct pp_source *s, int n, int64_t n_out, int64_t n_in,
                  struct pp_error *err, const char *fmt, ...) __attribute__((format(printf, 7, 8)));
/* Registers a projection NAME.weight with an optional NAME.bias; returns its index, or -1 with *err set. What several
 * layers use is registered once, so that what adapters do to it they do wherever it is used. */
int pp_plan_linear(struct pp_plan *p, const struct pp_source *s, int64_t n_out, int64_t n_in, struct pp_error *err,
                   const char *fmt, ...) __attribute__((format(printf, 6, 7)));

#endif
