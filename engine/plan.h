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

/* What is computed of each row. x, y and z are what the slots `in`, `in2` and `in3` hold for it, t is its position; the
 * result is `out`, or, "in place", what the slot named had. Words in backquotes are members of struct pp_op; a `scale`
 * of 0 is 1 where it multiplies. "Cached" means that the slot named also goes to the row's place in the cache, layer
 * `layer`, where later rows look back at it. */
enum pp_op_kind {
    /* --- from tokens and positions --- */

    /* scale * weight[token], or the row's input vector as it is; to which bias[t], for learned positions, and
     * segments[0] are added, if there are any. Of tokens behind the vocabulary the i-th is start[i]. */
    PP_OP_EMBED,
    /* scale * weight[token], or `by_position` scale * weight[t]; row 0 where the table has no such row. */
    PP_OP_LOOKUP,
    /* token + at, in every value: what a CONVOLVE can then look back at. */
    PP_OP_TOKEN,
    /* scale * weight[(t0 + t1 v + t2 v^2 + ...) mod n_rows]: t0 is the row's token, x the `count` before it, the latest
     * first, v is `period`. The first of those that is token `at` and all before it count as 0. */
    PP_OP_NGRAM,
    /* Rows of tables, side by side (struct pp_hashed). For n = 2 .. size, and of n tokens each, the latest first,
     *
     *   hash = m[0] t0 xor m[1] t1 xor ... xor m[n - 1] t(n-1)
     *
     * and each of the `heads` of that n takes its row hash mod n_rows. All their rows lie one behind the other in
     * `count` tables of equal size. x is 1 + t1, 1 + t2 ...; 0: there was none. The first that was none, or that is
     * `end`, and all before it count as `end`. */
    PP_OP_HASH,

    /* --- norms and products --- */

    /* norm(x) * weight [+ bias]: divided by the root of the mean square, or `centred`, LayerNorm. `scale` is epsilon,
     * or 0: the model's. */
    PP_OP_NORM,
    /* The same of each head of x. weight: [head_dim], for all of them, or [n_head, head_dim]. In front of attention in
     * place. */
    PP_OP_HEAD_NORM,
    /* linear(x), adapters included. */
    PP_OP_LINEAR,
    /* Each head of x times its own matrix of `heads`. What a head has behind the values that are multiplied comes
     * behind its result. */
    PP_OP_HEADS,
    /* In place: rotates the heads of x by t. With a `period`: heads of so many values, which are not attention's, from
     * their `at`-th value on, in pairs of `halves` or of neighbours; `back`: by -t. */
    PP_OP_ROPE,

    /* --- what looks back, and what it looks back at --- */

    /* K = x and V = y, cached. With a `stride` and no `in2`, x is what a COMPRESS gave: where the row is the last of
     * its block, it goes to the block's place in a tier of compressed positions, its last values rotated by the
     * position of the block's first row. */
    PP_OP_KV_STORE,
    /* One key of a block of `stride` positions, which begins at a multiple of that: of the block's last row
     *
     *   out = norm(sum over j of p[j] x[j]) * weight,  p = softmax over j of (y[j] + bias[j]), value by value
     *
     * for the block's positions j; of all other rows 0. bias: [stride, width of x]. Where x is twice as wide as out,
     * the block itself takes part by the second halves of x, y and bias, and the block before it, if there is one, by
     * the first. x and y are cached. */
    PP_OP_COMPRESS,
    /* Attention of the query heads x over the cache of `layer`, or, if it has no KV_STORE, of the last layer before it
     * that has one and is of its tier. weight: attention sinks [n_head], scores without a value, or NULL. A `scale`
     * bounds scores, `alibi` lets them fall with the distance.
     *
     * With a `count`, rows that would see more positions see those only that the last PICK before it picked; with a
     * `period` blocks of so many positions, heads of queries those picked for their head of keys, or, if it is
     * `pooled`, all heads the same, and the positions behind the last whole block. With a `stride`, which goes with a
     * window and one head of keys, rows also see the layer's compressed blocks that end up to them, whose keys are
     * their values; `count` is then of such blocks. */
    PP_OP_ATTENTION,
    /* An index: picks for the row, of the positions that it may see, the `count` of the largest score, of equal ones
     * the first. With k[j] = y of position j, which is cached, and z[h] = 1 where there is no `in3`,
     *
     *   score[j] = sum over the heads h of x of z[h] max(0, x[h] . k[j])
     *
     * where of each x[h] and of y rope_dim values, from the `at`-th on, are rotated before, by `halves` or neighbours.
     *
     * With a `period`, a power of two, it picks blocks that begin at its multiples, as many as make `count` positions,
     * for each head by itself: a block's score is the largest x[h] . k[j] of its positions that the row may see, and
     * the last `local` blocks, the row's own among them, are picked in any case. If it is `pooled`, it picks the same
     * blocks for all heads: a block's score is score[j] of its last position, whose y is the key of the whole block,
     * and only blocks count that the row sees all of; without `in3` y is rotated by the position of its block's first
     * row. With a `stride` all that is said of positions holds for blocks of so many that end up to the row: k[j] is
     * what a COMPRESS gave for block j, rotated as a KV_STORE does it. */
    PP_OP_PICK,
    /* bias + the sum over j of weight[:, j] * what x was window - 1 - j positions before, in a tree at that ancestor,
     * or 0 before the first position. weight: [width, window], or fewer rows, each for as many neighbouring values.
     * With a `period` it has a column for each such position only, counted back from the row's own. x is cached.
     * Without a weight y is the row's own, [width, window], and there is no bias. */
    PP_OP_CONVOLVE,
    /* The mean of x over the positions of the row's block of `period` up to its own. With a weight [period, width of
     * out], x is twice as wide, the second half being scores: the mean of the first halves, each value weighed by the
     * softmax of its scores, to which weight[j] is added at the block's j-th position. x is cached. */
    PP_OP_POOL,
    /* What the states of layer `layer` give for the row's queries (struct pp_recurrence), each head normed by `weight`,
     * if there is one, with `scale` for epsilon as in a NORM, and all of it times silu(x) or sigmoid(x). */
    PP_OP_RECUR,

    /* --- value by value --- */

    PP_OP_GATE,      /* fn(x) * y; `scale` is the function's number, if it has one */
    PP_OP_MULTIPLY,  /* x * y, or x * weight */
    PP_OP_AFFINE,    /* (x + bias) * weight, either of which may be missing; weight may have one number for as many
                        neighbours in x as there are for each */
    PP_OP_WEIGH,     /* fn(x) * y, x having one number for as many neighbours in y as there are for each; PP_FN_SIGMOID
                        or PP_FN_SOFTPLUS */
    PP_OP_APPLY,     /* fn(x), the function's number being `scale` or weight[0] */
    PP_OP_ADD,       /* in place: out += scale * x */
    PP_OP_TAKE,      /* of each `period` neighbours in x, `count` from the `at`-th on, `times` times; 0 is once */
    PP_OP_SPARSEN,   /* max(0, x - mean(x) - scale * the standard deviation of x) */
    PP_OP_MATCH,     /* x made as long as y */
    PP_OP_EXPERTS,   /* a mixture of experts, y being the router's logits (struct pp_experts) */
    /* The sum of v[i] times its share in the softmax of the scores weight . v[i] / sqrt(mean(v[i]^2) + scale): v are x
     * and the `count` vectors in y. */
    PP_OP_RECALL,

    /* --- several residual streams: n = `count` vectors side by side in a slot --- */

    PP_OP_MIX,           /* out[j] = x[j] + the sum over i of y[j][i] x[i] */
    PP_OP_SPREAD,        /* in place: out[j] += (1 + y[j]) x */
    PP_OP_CONNECT,       /* the numbers of struct pp_connection, made of weight * x + bias; weight: one number for each
                            of its three kinds, bias: one for each number */
    PP_OP_READ_STREAMS,  /* the sum over i of y[i] x[i], y being what a CONNECT gave: its `read` */
    PP_OP_WRITE_STREAMS, /* in place: out[j] = out[j] + write[j] x, of a CONNECT's y; if that has a matrix, the sum over
                            i of matrix[i][j] out[i] stands for out[j] on the right */
    PP_OP_ROOTS,         /* d = scale * x[j] . y[j]; out[j] = sign(d) sqrt(max(|d|, 1e-6)), or 0 where d is */

    /* --- what comes out --- */

    PP_OP_SELECT,    /* from here on only rows that want an output take part */
    PP_OP_RESULT,    /* x is what PP_OUT_HIDDEN gives, y what PP_OUT_LOGITS gives */
};

/* Hyper-connections (arXiv 2409.19606): a model has n residual streams, which begin as the same vector. A part of a
 * layer reads their sum, each times a number, and what it gives is added to each, times another number; before that
 * the streams may be mixed by a matrix (manifold-constrained, arXiv 2512.24880). The numbers are made anew for each
 * row, of a product of all streams, c: its first n values, the next n, if there are more, and the next n * n, if there
 * are still more.
 *
 *   read[i] = sigmoid(c[i]) + least
 *   write[j] = most sigmoid(c[n + j]) + write_least
 *   matrix = balanced(c[2n ...])
 *
 * balanced: the softmax of each row, plus `least`; then all columns are divided by their sums plus `least`; then rows
 * and columns in turns likewise, until columns were divided `rounds` times. Both then add up to about 1. */
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
    int row;                   /* of pp_plan_target: b's, where that is a stack's [n, n_out]; else 0 */
};

/* What an operation does not use is 0, and slots are -1. */
struct pp_op {
    enum pp_op_kind kind;
    int in, in2, in3, out;           /* slots; in3 is read by PP_OP_PICK alone */
    int layer;
    const struct pp_tensor *weight, *bias;
    float scale;

    /* What each means is said beside the operations that use it. */
    enum pp_fn fn;
    int64_t count, at, period, times;
    int64_t window;                  /* of what looks back: how many positions a row sees, itself included, or 0: all;
                                        in an encoder to either side */
    int64_t stride;                  /* positions of a block that becomes one key; 0: there are none */
    int64_t local;
    int seen;                        /* PP_OP_ATTENTION: keys and values are those that the seen-th of the tier's
                                        layers has stored, counted from 1; 0: the last that has */
    bool centred, back, by_position, pooled;
    bool halves;                     /* values i and i + rope_dim / 2 are rotated together; else neighbours */
    bool local_rope;                 /* PP_OP_ROPE: by the frequencies of rope_base_local */

    int linear;                      /* PP_OP_LINEAR: index in pp_plan.linears */
    int experts;                     /* PP_OP_EXPERTS: index in pp_plan.experts */
    int heads;                       /* PP_OP_HEADS: index in pp_plan.heads */
    int recurrence;                  /* PP_OP_RECUR: index in pp_plan.recurrences */
    struct pp_connection connection; /* PP_OP_CONNECT */
    const struct pp_hashed *hashed;  /* PP_OP_HASH */
    const struct pp_tensor *const *tables; /* PP_OP_HASH: [count]; weight: the first */
    const struct pp_tensor *segments; /* PP_OP_EMBED: what tells parts of a text apart, of which we have one; or NULL */
    const struct pp_tensor *start;   /* PP_OP_EMBED: of what stands before texts; or NULL */
    const struct pp_tensor *xielu[4]; /* PP_FN_XIELU: the numbers of xielu.h */
    float alibi, alibi_scale;        /* PP_OP_ATTENTION: the exponent of ALiBi's slopes, or 0: none; what they are
                                        multiplied by, 0 being 1 */

    /* -- set by pp_plan_build: where the cache has the layer; of PP_OP_ATTENTION with a stride, also where it has those
     * keys */
    int tier, tier_layer;
    int from_tier, from_layer;
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
    bool applied;                                    /* without `up`: fn(W_down x) is what an expert gives */
    enum pp_fn fn;
    float bound;                                     /* PP_FN_SILU_BOUNDED's and PP_FN_SILU_WITHIN's */
    const struct pp_tensor *const *gate, *const *up; /* [n / share], each [n_ff, n_in]; gate NULL: W_down(fn(W_up x)) */
    const struct pp_tensor *const *down;             /* [n / share], each [n_out, n_ff], or [n_out, n_in] */
    const struct pp_tensor *gate_b, *up_b, *down_b;  /* [n, n_out], or NULL */
    int first_target;                                /* its place in pp_plan_target; set by pp_plan_experts */
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
 * What is kept is a, b and a number m: both are exp(m) times as large, so that keys may be anything.
 *
 * Or xLSTM's (arXiv 2405.04517, 2503.13427), where each head has a key of its own, q and k as they come, and besides a
 * vector n and a number m, which are 0 before the first position, too:
 *
 *   S = sigmoid(decay) S + exp(beta) k v',  n = sigmoid(decay) n + exp(beta) k,
 *   m = max(ln sigmoid(decay) + m, beta),   out = S' q / (max(|n . q|, 1) + eps exp(m))
 *
 * normed by LayerNorm by the head's part of `weight` and `bias` and multiplied by sigmoid(in). The published code keeps
 * S and n divided by exp(m), which comes to the same: beta is bounded, so that they need not be. n is the column of S
 * that values of 1 would give: the state is PP_STATE_BESIDE columns wider than values are, n is the first of those, and
 * in u, which no other kind has there, the second is a position's m. */
enum { PP_STATE_BESIDE = 16 };
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
    float bound;                     /* Kimi Linear's: 0, or ln a = bound / (1 + exp(-|rate| decay)) */
    bool sigmoids;                   /* results are multiplied by sigmoid(in), of the delta rule only then */
    float eps;                       /* xLSTM's */
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
                                        `direct`; xLSTM has neither */
    const struct pp_tensor *direct;  /* Mamba 2's D [n_head, 1], Mamba's [n_head * value_dim], RWKV 7's
                                        [n_head * key_dim], RWKV 6's [n_head, key_dim] */
};

/* Layers that leave things of one kind, geometry and window behind: their pages are kept and let go together. */
struct pp_tier_plan {
    enum pp_tier_kind kind;
    int64_t window;                  /* 0: none */
    int64_t n_first;                 /* with one: rows see the first so many positions, too, however far behind */
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
    int n_expert_targets;            /* matrices of all of them */
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
/* Whether this operation does. */
bool pp_plan_op_reads(const struct pp_plan *plan, const struct pp_op *op, int slot);
/* A step of pp_plan_build. PP_ERR_UNSUPPORTED names a tensor of a GGUF file that nothing in the plan uses: without it
 * the answers would be wrong. */
enum pp_code pp_plan_check_used(const struct pp_source *s, const struct pp_plan *p, struct pp_error *err);
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
/* The same of a matrix [rows, cols]. */
const struct pp_tensor *pp_plan_number_rows(struct pp_plan *p, int64_t rows, int64_t cols, float **numbers,
                                            struct pp_error *err);
/* What is added to logits: 0, but to those of tokens that are never given so little that they are not chosen; NULL:
 * *err is set. */
const struct pp_tensor *pp_plan_silence(struct pp_plan *p, const struct pp_hparams *hp, struct pp_error *err);
/* A table of sinusoids, [n_positions, n]: the first half of a row are sines, the second cosines, of the position's
 * number, or as fairseq has it that and 2, with the last frequency 1 / 10000 and not the one before it; NULL: *err is
 * set. */
const struct pp_tensor *pp_plan_sinusoids(struct pp_plan *p, int64_t n_positions, int64_t n, bool fairseq,
                                          struct pp_error *err);
int pp_plan_experts(struct pp_plan *p, const struct pp_experts *e); /* its index */
/* What adapters attach to: the linears, by their index, and behind them the matrices of all mixtures, of each those of
 * its gates, then `up`, then `down`; those of a kind that a mixture does not have have no w. The result's index is the
 * one asked for. */
int pp_plan_n_targets(const struct pp_plan *p);
struct pp_linear pp_plan_target(const struct pp_plan *p, int index);
enum pp_expert_kind { PP_EXPERT_GATE, PP_EXPERT_UP, PP_EXPERT_DOWN, PP_EXPERT_KINDS };
/* The index of a mixture's e-th matrix of a kind. */
int pp_plan_expert_target(const struct pp_plan *p, const struct pp_experts *of, enum pp_expert_kind kind, int e);
/* Whether a target is the second of an expert's matrices, which alone reads what its first ones give. */
bool pp_plan_is_expert_down(const struct pp_plan *p, int index);
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
