/* program.h - a lowered plan: what lower.c makes and forward.c runs. Private to engine/cpu. */
#ifndef PP_CPU_PROGRAM_H
#define PP_CPU_PROGRAM_H

#include <stdatomic.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/layout.h"
#include "engine/cpu/matmul.h"
#include "engine/cpu/matmul_bf16.h"
#include "engine/cpu/once.h"
#include "engine/cpu/ops.h"
#include "engine/cpu/stream_choice.h"

enum {
    MAX_GROUPED = 6,   /* projections that share an input */
    MAX_ROW_OPS = 4,   /* of one stage */
};

enum stage_kind { STAGE_EMBED, STAGE_PROJECT, STAGE_HEADS, STAGE_COMPRESS, STAGE_KEEP, STAGE_PICK, STAGE_ATTEND,
                  STAGE_CONVOLVE, STAGE_POOL, STAGE_RECUR, STAGE_SCAN, STAGE_ROWS, STAGE_EXPERTS, STAGE_SELECT };

/* The vectors of a norm. */
struct norm {
    const float *weight;        /* NULL: there is no norm */
    const float *bias;          /* or NULL */
    bool centred;               /* LayerNorm */
    int64_t stride;             /* of heads: from one's vectors to the next one's; 0: all have the same */
    float eps;                  /* 0: the model's */
    int op;                     /* the plan's first operation with its weight, by which adapters replace it */
};

/* Something small that is done to a row of a slot by itself. */
struct row_op {
    enum pp_op_kind kind;       /* NORM, HEAD_NORM, ROPE, LOOKUP, TOKEN, NGRAM, HASH, ADD, GATE, MULTIPLY, TAKE, APPLY,
                                   WEIGH, MIX, SPREAD, ROOTS, MATCH, SPARSEN, RECALL, CONNECT, READ_STREAMS,
                                   WRITE_STREAMS */
    enum pp_fn fn;
    float scale;
    struct norm norm;
    const struct pp_tensor *table; /* LOOKUP, NGRAM, HASH */
    const struct pp_tensor *const *tables; /* HASH: [count], the first being `table` */
    const struct pp_hashed *hashed; /* HASH */
    bool by_position;           /* LOOKUP */
    const float *factors;       /* MULTIPLY, in place of in2; AFFINE; or NULL. RECALL. CONNECT: one for each kind of
                                   number */
    const float *added;         /* CONNECT: to each number. AFFINE, or NULL */
    struct pp_connection connection; /* CONNECT */
    bool mixes;                 /* WRITE_STREAMS: with a matrix */
    int in, in2, out;           /* slots */
    int64_t n;                  /* values; HEAD_NORM: of a head */
    int n_heads;                /* HEAD_NORM; WEIGH: numbers; RECALL: vectors; of what has to do with streams, those */
    int64_t count, at, period, times; /* TAKE, NGRAM; count: HASH; at: TOKEN; period: of ROPE, values of a head */
    bool halves, back, local;   /* ROPE */
};

struct projection {
    int linear;                 /* for adapters: its place in pp_plan_target */
    struct pp_matrix w;
    struct pp_weight *weight;   /* whether w's data are made */
    const float *bias;          /* [n_rows], or NULL */
    int out;                    /* slot */
    float *sums;                /* [n_cols] of squares of its inputs, where somebody counts them; or NULL */
    double *count;              /* of them */
};

/* A mixture of experts: those of its matrices that are float are read where they lie. */
/* What has no comment is as in struct pp_experts (plan.h). */
struct experts {
    int n, n_used;              /* experts that are chosen from, and of them for each row */
    int n_matrices, share;      /* neighbours that have the same matrices */
    bool idle;                  /* those behind the ones with matrices give what they read, */
    bool silent;                /* or nothing */
    bool shares, sigmoids, roots;
    const int32_t *table;       /* [n_tokens, n_used], or NULL */
    int64_t n_tokens;
    float mixer;
    float scale;                /* of weights */
    bool weighed_inputs;
    int n_groups, n_groups_used; /* 0: no groups */
    bool groups_by_largest;
    const float *choice_bias;   /* [n], or NULL */
    const float *scales;        /* [n_matrices * share]: of those that have matrices; or NULL */
    const float *bias;          /* [n_out], or NULL */
    bool apart, of_parts;       /* results side by side; each reads a part of the input */
    bool applied;               /* fn of a single matrix's */
    enum pp_fn fn;
    float bound;
    int64_t n_in, n_ff, n_out;
    struct projection *gate, *up, *down; /* [n_matrices]; gate may be NULL, as may `up`: one matrix, n_ff being 0 */
    bool quantize, plain;       /* some gate or up reads quantised activations, plain ones */
    bool quantize_down;
    bool twins, twins_down;     /* those are twins (matmul.h) */
};

struct stage {
    enum stage_kind kind;
    int in;                     /* slot */
    bool selected;              /* comes after SELECT: its rows are the batch's outputs */
    int out;                    /* slot: of EMBED, HEADS, ATTEND, CONVOLVE, PROJECT with an epilogue; with add: what is
                                   added to */
    /* PROJECT */
    struct norm norm;           /* of the input; EXPERTS, too */
    int norm_out;               /* slot for the normed input, if somebody wants it later; -1: nobody */
    int n_projections;
    struct projection projections[MAX_GROUPED];
    enum epilogue {
        EPILOGUE_NONE,
        EPILOGUE_ADD,           /* out += scale * result of projections[0] */
        EPILOGUE_GATE,          /* out = fn(projections[0]) * projections[1] */
        EPILOGUE_APPLY,         /* out = fn(projections[0]) */
    } epilogue;
    enum pp_fn fn;
    struct pp_xielu xielu;      /* APPLY, where that is the function */
    float scale;                /* ADD: 0 is 1; APPLY and GATE: the function's number. EMBED: 0 is 1 */
    bool quantize;              /* some projection reads quantised activations, */
    bool twins;                 /* and one of them twins: so all of the stage do (matmul.h) */
    bool split;                 /* some projection reads bfloat16 activations */
    bool plain;                 /* some projection reads plain ones, */
    bool by_lane;               /* and wants those of many rows arranged by lanes besides (matmul.h) */
    bool in_place;              /* nobody reads `in` behind this stage: its rows may be quantised, or split, where they
                                   lie */
    const void **begins;        /* [n threads] where each thread's share of the weights begins, at few rows */
    /* EMBED */
    const struct pp_tensor *table, *positions, *segments; /* the latter: learned ones, or NULL */
    const struct pp_tensor *start;    /* of tokens behind the table's; or NULL */
    /* HEADS */
    struct projection *heads;   /* [n_heads] */
    int n_heads;
    int of_heads;               /* for adapters: their place in the plan (pp_lora_first_heads) */
    /* ATTEND */
    int tier, layer;            /* where the cache has it: the layer's place in its tier */
    int q, k, v;                /* k -1: keys and values are there already */
    int rope;                   /* which frequencies; -1: heads are not rotated */
    struct norm q_norm, k_norm, v_norm; /* of each head */
    bool norm_behind_rope;
    float softcap;              /* times log2 e; 0: none */
    const float *sinks;         /* [n_head], times log2 e; or NULL */
    const float *slopes;        /* [n_head] of ALiBi, times log2 e; or NULL */
    int from_tier, from_layer;  /* of compressed blocks, where rows see such */
    /* KEEP: tier, layer and k as above. PICK: tier, layer, q and k */
    int head_weights;           /* slot; -1: there are none, or pooled keys have a weight of 1 for each head */
    bool halves;                /* how pairs that are rotated lie */
    int64_t rotated_from;       /* PICK: the first of them */
    /* CONVOLVE: tier and layer as above; epilogue: none, or APPLY */
    int in2;                    /* slot: its input is in times in2; -1: in */
    int row_taps;               /* slot: of each row its own taps, [width, n_taps]; -1: there are `taps` */
    int gate;                   /* slot that its result is multiplied by, behind the epilogue; -1: none */
    int64_t width;
    int n_taps;
    int tap_step;               /* positions from one to the next */
    const float *taps;          /* [n_taps, width padded to 16], the one of the oldest position first; or NULL */
    const float *bias;          /* [width], or NULL */
    /* POOL: tier, layer and width as above; n_taps: positions of a block; taps: what is added to scores at each, or
       NULL: there are no scores */
    /* COMPRESS: tier, layer, in, in2, out and norm as above, bias [stride, width padded to 16] */
    /* RECUR: tier, layer, in, out and norm as above, bias [n_head] */
    const struct pp_recurrence *recurrence;
    const float *rate;          /* [n_head] */
    const float *direct;        /* [n_head], of Mamba's */
    const float *unit_query, *unit_key; /* [key_dim]: behind a norm by the mean, what makes them what they should be */
    /* SCAN: the same, but rate [n_head, key_dim, value_dim] and direct [n_head, value_dim]; RWKV's direct
       [n_head, key_dim], and norm of each head */
    /* ROWS */
    struct row_op row_ops[MAX_ROW_OPS];
    int n_row_ops;
    /* EXPERTS; epilogue: none, or ADD */
    struct experts *experts;
    int router;                 /* slot */
};

/* A stage runs in several phases; each becomes a part of the pool's work, behind which the threads meet. */
enum { MAX_PHASES = 8 };

/* Those of a mixture of experts. */
enum experts_phase {
    EXPERTS_CHOOSE,        /* of rows, where there are several */
    EXPERTS_PLACE,         /* one item: the places of all rows; of a single one also its choice, and EXPERTS_PREPARE */
    EXPERTS_PREPARE,       /* of rows: normed, in all their places */
    EXPERTS_GATE_UP,       /* of some weight rows of one of the experts that have rows */
    EXPERTS_PREPARE_DOWN,  /* of places; of a single row who first needs one makes it */
    EXPERTS_DOWN,          /* as EXPERTS_GATE_UP */
    EXPERTS_SUM,           /* of rows, or some columns of a single one */
};

/* Memory that a thread will read soon, of which it asks for some lines at a time (project.c). */
struct requests {
    uintptr_t at, end;
};

/* Positions, or blocks of them, that may be among those with the largest scores, ascending (pick.c). */
struct candidates {
    uint32_t *rank;             /* of two scores the larger has the larger one */
    int32_t *place;             /* among the positions that the row may see, or among their blocks */
    int n;
    bool full;                  /* there are as many as are wanted, and none of less than `least` is */
    uint32_t least;
    uint32_t best;              /* of the block that is passing */
};

/* What one thread needs for itself. */
struct thread_scratch {
    struct pp_attention attention[PP_MAX_TIERS]; /* their arrays, for a tile as large as this model needs, lie in
                                                    `kernel` */
    uint8_t *tail;              /* some pages of one head: the end of a tree's branch, two at most; or a chunk of
                                   positions that were picked, or lie in several tiers */
    struct candidates *candidates; /* [pick.n_lists]: pick.c's */
    float *dots;                /* [pick.n_lists, PP_KV_CHUNK], where blocks are picked */
    float *f32;                 /* [PRIVATE_ROWS, normed_stride]; shared: NULL unless a stage's normed rows are kept */
    float *results[2];          /* [result_floats]: of an item whose projections only go into an epilogue */
    int8_t *q;                  /* [PRIVATE_ROWS, acts_width]; NULL: no stage quantises */
    uint16_t *bf16;             /* [PRIVATE_ROWS, bf16_stride], where activations are split: within that of `shared`,
                                   which is not in use while threads prepare for themselves */
    float *d;                   /* [PRIVATE_ROWS, acts_width / 32] */
    int32_t *sum;
    struct pp_acts head;        /* of some rows, quantised (heads.c) */
    float *head_gains;          /* beside what DoRAs make of it; NULL: there was none (heads.c) */
    struct requests soon;       /* only while it prepares a stage's input */
    float *lora;                /* [PRIVATE_ROWS, lora_width] */
    int n_down;                 /* products of the prepared stage's inputs with adapters' A that the threads share */
    const float *down;          /* [m, lora_width] of that stage: all of these products; NULL: not looked for yet */
    float *scaled;              /* [PRIVATE_ROWS, acts_width]: inputs times adapters' scales, if there were any */
    float *replaced;            /* [replaced_floats]: what adapters' own tensors give, if there are any */
    float *joined;              /* [PRIVATE_ROWS, acts_width]: beside `replaced`, where activations are split */
    bool is_scaled;             /* the prepared stage's inputs lie there */
    void *kernel;               /* kernel_bytes or more for the products, and for attention (attend.c) */
    uint64_t prepared_pass;     /* for which pass and stage the above was made */
    const struct stage *prepared_stage;
};

/* What one thread computes of such projections at a time: small enough to stay in its cache. 128 weight rows for the
 * largest batch that is common, and more for smaller ones: all activations pass for each such piece. (A prefill of 512
 * rows on a Granite Rapids with 64 and 128 weight rows, tokens/s: Q4_0 378 and 388, Q6_K 300 and 307; with AMX, whose
 * opened weights take more of the cache than they did, Q4_0 554 and 582, Q6_K 389 and 391.) With many threads there is
 * room for half of that, and for less scratch: make_room() in setup.c. */
enum { MOST_RESULT_FLOATS = 65536 };

/* Up to this many rows every thread prepares the input for itself: cheaper than waiting for others to do it. */
enum { PRIVATE_ROWS = 4 };

/* Products with adapters' A that the threads share at few rows, of one stage in the current pass. */
struct shared_down {
    _Alignas(64) atomic_int taken;
    atomic_int done;
};

/* How a pass's attention is cut into items, the same in all layers of a tier (attend.c). */
struct attend_plan {
    struct pp_kv_layout kv;     /* of the tier's pages */
    int64_t window;             /* positions that a row sees, or 0 */
    int64_t n_first;            /* and, behind a gap, so many at the beginning; fits in a chunk */
    int64_t top_k;              /* if it would see more than that, those that were picked; 0: all */
    int64_t block;              /* so many are picked together; 1: each alone */
    bool pooled;                /* for all heads the same, and positions behind the last whole block besides */
    int64_t n_local;            /* of an index: blocks that are picked in any case; 0: positions are, each alone, or
                                   blocks are pooled */
    int64_t stride;             /* rows see blocks of so many positions besides; of other tiers kv.stride is it. 0: they
                                   do not */
    bool chunked;               /* it begins at multiples of that */
    bool both_ways;             /* it reaches as far behind the row as before it */
    int64_t n_near, far_step;   /* of pages before the last n_near a row sees each far_step-th; n_near 0: all */
    int far_shift;              /* the next head those that are so many earlier */
    int group;                  /* query heads that share a KV head, or a part of those: */
    int share;                  /* it has so many groups, of heads that see other positions than their neighbours; 1 */
    float scale;                /* of scores */
    int tile_rows;              /* at most */
    int *tiles;                 /* [n_tiles + 1] first rows */
    int n_tiles;
    int n_splits;               /* items that share a tile's chunks of a KV head */
    int64_t n_chunks;           /* of the tile whose rows see most */
    bool stores_apart;          /* a phase of its own rotates and stores the rows: tiles need those of others */
    atomic_int *left;           /* [n_head_kv, n_tiles] splits not done yet */
};

/* What indexes pick. The same memory serves all layers: what one picked holds until the next one does (pick.c). */
struct pick_plan {
    int64_t top_k;              /* 0: there is no index */
    int64_t block, n_local;     /* as above */
    bool pooled;
    int64_t room;               /* what a row sees of a list at most */
    int64_t stride;             /* positions that have one key together; 1: each has its own */
    int n_lists;                /* of heads that each see what was picked for them; else 1 */
    float *ones;                /* [heads of the index] */
    int32_t *slots;             /* [max_rows, n_lists, room]: of rows that would see more, ascending by place */
    bool any;                   /* the pass has such rows */
    int n_splits;               /* items that share a row's positions */
    struct candidates *found;   /* [n_found, n_lists]: what each of them found, if they do */
    int n_found;
};

/* Which experts the rows of a pass go to, and what those read and write: a place for each row and expert that it uses,
 * sorted by experts, so that the rows of one are neighbours. The same memory serves all layers. */
struct routing {
    int n_places, n_active;
    int32_t *choice;            /* [max_rows, n_used]: experts, the largest logit first; of shared ones their matrices,
                                   or -1: the row's weight is with those of an earlier one, or in idle_weight */
    float *weight;              /* [max_rows, n_used] */
    int32_t *place;             /* [max_rows, n_used]; -1 where the choice is */
    float *idle_weight;         /* [max_rows]: of all experts together that give what they read; or NULL */
    float *kept;                /* [max_rows, kept_stride]: what they give, with that weight */
    int64_t kept_stride;
    float *input_weight;        /* [places], where weights multiply inputs; `weight` is then 1 */
    int32_t *row;               /* [places]: whose they are */
    bool adapted;               /* some row has adapters of experts, */
    bool scaled;                /* that scale what goes into down matrices */
    float *lora;                /* [places, lora_width]: A x of gate and up, then of down; NULL: none were needed yet */
    int64_t lora_width;
    pp_once *lowered;           /* [PP_EXPERT_KINDS, n_matrices]: that of an active expert */
    pp_once *ready;             /* [n_expert]: of a single row, what the down matrix of an active expert reads */
    int32_t *active;            /* [n_expert]: those that have rows */
    int32_t *first;             /* [n_expert + 1]: the first place of each of those; behind the last, n_places */
    int32_t *count;             /* [n_expert] */
    uint8_t *region;            /* where the following lie, in pages of their own */
    size_t region_bytes;
    struct pp_acts in, hidden;  /* of places; hidden.f32: what gate and up give */
    float *out;                 /* [places, out_stride]; where in.f32 was */
    int64_t out_stride;
};

struct pp_cpu {
    const struct pp_model *model;
    const struct pp_matmul_kernels *mm;
    const struct pp_bf16_kernels *bf16; /* NULL: activations of float weights stay float32 */
    int bf16_parts;             /* that activations are split into */
    int64_t bf16_stride, shared_bf16_stride; /* of `shared`: stages that split in place do not count */
    const struct pp_cpu_ops *ops;
    struct pp_pool *pool;
    int max_rows;
    float *by_lane;             /* [by_lane_floats]: where all threads arrange the rows of a stage's input */
    int64_t by_lane_floats;     /* 0: there is no room for that */
    uint16_t *by_lane_panels;   /* [n threads, panel_numbers]: of each a panel of weights for that */
    int64_t panel_numbers;
    int64_t result_floats;      /* of each of a thread's results; at least a group of weights' for max_rows */
    size_t kernel_bytes;        /* of scratch for the products, per thread */

    struct stage *stages;
    int n_stages;
    int hidden_slot, logits_slot;

    int n_slots;
    float **slots;              /* [n_slots]: float [max_rows, stride]; of the outputs' stages [max_outputs, stride] */
    float *arena;               /* those of all rows: slots that are never needed together share memory */
    size_t arena_bytes;
    float *outputs;             /* those of outputs, where the arena has no room for them; or NULL */
    float *attention_room;      /* [attention_floats] of the arena: free while attention runs, which puts the sums
                                   [KV head][tile][chunk] there if items share a tile's chunks */
    float *own_room;            /* that room, if the arena has too little; or NULL */
    int64_t attention_floats;
    int64_t *strides;           /* [n_slots] */
    int max_outputs;

    /* prepared input of the current stage when there are many rows; width is the widest input */
    int64_t acts_width;         /* a multiple of 64 */
    int64_t normed_stride;      /* of inputs behind a norm */
    int64_t shared_stride;      /* of `shared`: stages that quantise in place do not count */
    struct thread_scratch shared; /* the same arrays with max_rows rows */
    struct thread_scratch *threads; /* [n threads] */
    struct attend_plan attend[PP_MAX_TIERS]; /* of tiers of other kinds only what pages are like */
    int n_tiers;
    struct pick_plan pick;
    struct experts *experts;    /* [plan.n_experts] */
    struct routing routing;
    int64_t replaced_floats;    /* two whole rows, or 16 results of each row of the largest batch */
    int64_t lora_width;         /* of `lora` rows: ranks of all adapters of a row for one stage */
    int64_t head_width;         /* of the widest input or output of heads with matrices of their own (heads.c) */
    struct shared_down *down;   /* [n_stages] */
    const void **listed_begins; /* [n threads] as `begins` of a stage, where only some logits are wanted */

    struct rope {
        int64_t dim;            /* values of a head that are rotated */
        float *inv_freq;        /* [dim / 2] */
        float magnitude;
        float *cos_sin;         /* [max_rows, dim] */
    } ropes[2];                 /* the second: of layers that have frequencies of their own */
    int n_ropes;

    struct pp_weights *weights;
    struct pp_imatrix *imatrix; /* where inputs are counted; or NULL */
    void **owned;               /* converted norms and biases */
    int n_owned, cap_owned;
    uint64_t memory;
    struct pp_cpu_profile *profile; /* NULL: off; profile.c */

    /* -- of the current pass: what its work items may read -- */
    const struct pp_batch *batch;
    const struct pp_cancel *cancel;
    uint64_t pass;
    struct pp_stream_choice stream; /* how it reads weights: as ways[stream.way] */
    enum pp_weights_way ways[PP_STREAM_CHOICES]; /* [stream.n_ways], the usual one first */
    atomic_bool abandoned;
    struct part {
        struct stage *stage;
        int phase;
        int m;                  /* rows that take part */
    } *parts;                   /* [MAX_PHASES * n_stages] */
    struct pp_pool_part *work;  /* [MAX_PHASES * n_stages]: their items */
    int n_parts;
};

/* The next size of a row that is an odd number of lines of the cache. Rows of activations that lie a multiple of 4096
 * bytes apart would all want the same few places of the first cache: that costs a product of many rows 5 to 20 %. */
static inline int64_t pp_odd_lines(int64_t n, size_t size)
{
    const int64_t a_line = 64 / (int64_t)size;
    return ((n + a_line - 1) / a_line | 1) * a_line;
}

/* How this pass reads weights. */
static inline enum pp_weights_way pp_cpu_way(const struct pp_cpu *c)
{
    return c->ways[c->stream.way];
}

/* Whether weights of this type meet bfloat16 activations. */
static inline bool pp_cpu_splits(const struct pp_cpu *c, uint32_t type)
{
    return c->bf16_parts && (type == PP_TYPE_BF16 || (type == PP_TYPE_F16 && c->bf16_parts > 1));
}

/* Whether products with weights of this type take many activation rows arranged by lanes. */
static inline bool pp_cpu_arranges(const struct pp_cpu *c, uint32_t type)
{
    return c->mm->by_lane.from && (type == PP_TYPE_BF16 || type == PP_TYPE_F16) && !pp_cpu_splits(c, type);
}

/* The slot of which this one is a part, or itself. */
static inline int whole_slot(const struct pp_cpu *c, int slot)
{
    return slot < 0 ? slot : c->model->plan.slots[slot].base;
}

static inline float *slot_row(const struct pp_cpu *c, int slot, int64_t row)
{
    return c->slots[slot] + row * c->strides[slot];
}

/* Which row of the batch row i of a stage is: after SELECT only those with an output are left. */
static inline int batch_index(const struct pp_cpu *c, const struct stage *s, int i)
{
    return s->selected ? c->batch->output_rows[i] : i;
}

static inline const struct pp_batch_row *batch_row(const struct pp_cpu *c, const struct stage *s, int i)
{
    return &c->batch->rows[batch_index(c, s, i)];
}

/* One kind of matrix of all experts: [n_matrices], or NULL where they have none of that kind. */
static inline struct projection *expert_matrices(const struct experts *x, enum pp_expert_kind kind)
{
    struct projection *const kinds[PP_EXPERT_KINDS] = {
        [PP_EXPERT_GATE] = x->gate, [PP_EXPERT_UP] = x->up, [PP_EXPERT_DOWN] = x->down};
    return kinds[kind];
}

/* slots.c: makes the slots, see there; pp_cpu_slots_free undoes it. false: out of memory. */
bool pp_cpu_slots_new(struct pp_cpu *c);
void pp_cpu_slots_free(struct pp_cpu *c);
/* Room for n output rows in the slots that have rows for outputs only. */
bool pp_cpu_slots_outputs(struct pp_cpu *c, int n);

/* lower.c */
enum pp_code pp_cpu_lower(struct pp_cpu *c, const struct pp_cpu_options *opt, pp_progress *progress, void *user,
                          struct pp_error *err);
/* To be asked before a kernel reads rows [row0, row1) of a projection: makes them if need be. false: the pass is
 * abandoned. */
bool pp_cpu_weight_ready(struct pp_cpu *c, const struct projection *p, int64_t row0, int64_t row1);

/* attend.c: memory, made once; and the plan of a pass, made before its stages. */
bool pp_cpu_attend_new(struct pp_cpu *c);
void pp_cpu_attend_free(struct pp_cpu *c);
void pp_cpu_attend_plan(struct pp_cpu *c);

/* Positions that a row may see. */
static inline int64_t pp_cpu_row_length(const struct pp_batch_row *r)
{
    return r->tree_mask ? r->tree_base + __builtin_popcountll(r->tree_mask) : r->sees;
}

/* The first of the values of a tier's key that attention rotates. */
static inline int64_t pp_cpu_rotated_from(const struct pp_hparams *hp, const struct pp_kv_layout *kv)
{
    return hp->compressed || hp->kv_lora_rank ? kv->head_dim - hp->rope_dim : 0;
}

/* pick.c: memory, made once, with that of threads; and the plan of a pass. */
bool pp_cpu_pick_new(struct pp_cpu *c);
void pp_cpu_pick_free(struct pp_cpu *c);
void pp_cpu_pick_plan(struct pp_cpu *c);

/* streams.c: what has to do with streams, MATCH, SPARSEN and RECALL; y: the row of `out`. */
void pp_cpu_stream_op(const struct pp_cpu *c, const struct row_op *r, const float *x, const float *x2, float *y);

/* forward.c: cosines and sines of a position, side by side, float [rope->dim]. */
void pp_cpu_rope_at(const struct rope *rope, int64_t position, float *cos_sin);
/* forward.c: norms and other row operations. y may be x. */
void pp_cpu_norm(const struct pp_cpu *c, const struct norm *norm, const float *x, int64_t n, float *y);
/* The norm of one head. */
static inline struct norm pp_cpu_norm_of_head(const struct norm *norm, int head)
{
    struct norm own = *norm;
    own.weight += head * norm->stride;
    own.bias = norm->bias ? norm->bias + head * norm->stride : NULL;
    return own;
}

/* setup.c: zeroed memory, in large pages if it is large, that counts as the program's; NULL if there is none. */
void *pp_cpu_memory_take(struct pp_cpu *c, int64_t count, size_t size);

/* experts.c: the weights of a mixture, and memory for the largest, made once. */
enum pp_code pp_cpu_experts_add(struct pp_cpu *c, int index, struct pp_error *err);
void pp_cpu_experts_point(struct pp_cpu *c); /* their kernels learn where the weights are */
bool pp_cpu_experts_new(struct pp_cpu *c);
void pp_cpu_experts_free(struct pp_cpu *c);
/* route.c: a row's experts and their weights, out of its logits. Any thread, for rows that no other one works on. */
void pp_cpu_route_row(const struct pp_cpu *c, const struct stage *s, int row);
/* Once all m rows have theirs: their places. One thread. */
void pp_cpu_route_places(struct pp_cpu *c, const struct stage *s, int m);
/* experts_adapt.c: whether a row, or one of m, has adapters of experts; room for what a set makes of a row. */
bool pp_cpu_experts_row_adapted(const struct pp_cpu *c, const struct stage *s, int row);
bool pp_cpu_experts_adapted(const struct pp_cpu *c, const struct stage *s, int m);
bool pp_cpu_experts_reserve(struct pp_cpu *c, const struct pp_adapter_set *set);
/* Whether some of m rows have adapters that scale what goes into down matrices; whether those of a place do. */
bool pp_cpu_experts_scaled(const struct pp_cpu *c, const struct stage *s, int m);
bool pp_cpu_experts_place_scaled(const struct pp_cpu *c, const struct stage *s, int place);
/* Scales that; before, A x is made of it, for which it must be ready. */
void pp_cpu_experts_scale(const struct pp_cpu *c, const struct stage *s, int place, void *kernel);
/* Before a mixture's products: no A x is made yet. */
void pp_cpu_experts_begin_adapt(const struct pp_cpu *c, const struct stage *s);
/* A x of all rows of the active-th of the experts that have rows, unless another thread makes it or did. Any thread. */
void pp_cpu_experts_lower(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int active,
                          void *kernel);
/* All that comes behind its W x, as pp_cpu_adapt, once A x is made: element [i * stride + r] of y is its row i's for
 * weight row r. */
void pp_cpu_experts_adapt(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int active,
                          int64_t row0, int64_t row1, float *y, int64_t stride);
/* heads.c: the weights of a stage, memory for the widest, an item, and how many a thread may take at a time. */
enum pp_code pp_cpu_heads_add(struct pp_cpu *c, struct stage *s, const struct pp_heads *heads, struct pp_error *err);
bool pp_cpu_heads_new(struct pp_cpu *c);
bool pp_cpu_heads_reserve(struct pp_cpu *c, const struct pp_adapter_set *set); /* false: out of memory */
void pp_cpu_heads_free(struct pp_cpu *c);
void pp_cpu_heads_item(struct pp_cpu *c, const struct stage *s, int m, int head, int thread);
int pp_cpu_heads_at_once(const struct stage *s, int m);
/* convolve.c: the weights of a stage, how many items it has for m rows, and one of them. */
enum pp_code pp_cpu_convolve_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
int pp_cpu_convolve_items(const struct stage *s, int m);
void pp_cpu_convolve_item(struct pp_cpu *c, const struct stage *s, int m, int item);
/* pool_keys.c: the same of what makes one key of those of several positions. */
enum pp_code pp_cpu_pool_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
int pp_cpu_pool_items(const struct stage *s, int m);
void pp_cpu_pool_item(struct pp_cpu *c, const struct stage *s, int m, int item);
/* convolve.c: where the stage's tier has the last n positions of a row, the oldest first, its own last; NULL: before
 * the first position. */
void pp_cpu_rows_before(const struct pp_cpu *c, const struct stage *s, const struct pp_batch_row *r, int n,
                        float *at[PP_MAX_TAPS]);
/* compress.c: the weights of a stage, its phases, and an item; KEEP stages, too. */
enum pp_code pp_cpu_compress_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
void pp_cpu_keep_item(struct pp_cpu *c, const struct stage *s, int row);
/* Whether a row is the last of a block of this tier, and its block's key, float [head_dim], which it then rotates and
 * keeps; elsewhere nothing. at: the first value that is rotated, halves: by which pairs. */
void pp_cpu_keep_key(const struct pp_cpu *c, int tier, int layer, const struct rope *rope, int64_t at, bool halves,
                     int row, float *key);
/* recur.c: the weights of a stage; bytes that an item works in, 0 for tiers of other kinds. */
enum pp_code pp_cpu_recur_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
size_t pp_cpu_recur_bytes(const struct pp_kv_layout *kv);
/* A number of each head, side by side or one below the other; and what makes keys and queries of n values of length 1,
 * queries by the root of n less. */
const float *pp_cpu_recur_numbers(struct pp_cpu *c, const struct pp_tensor *t, struct pp_error *err);
enum pp_code pp_cpu_recur_units(struct pp_cpu *c, struct stage *s, int n, struct pp_error *err);
extern const float pp_cpu_recur_unit_eps; /* of the squares of their length */
/* scan.c: the weights of a stage, how many items it has, how many a thread may take at a time for m rows, and one. */
enum pp_code pp_cpu_scan_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
int pp_cpu_scan_items(const struct stage *s);
int pp_cpu_scan_at_once(int m);
void pp_cpu_scan_item(struct pp_cpu *c, const struct stage *s, int m, int item);
/* lower.c: zeroed memory, 64-byte aligned, that is the program's; NULL if there is none. */
void *pp_cpu_memory_keep(struct pp_cpu *c, int64_t count, size_t size);
/* lower.c: a vector as floats, padded to whole kernel vectors; the program's. NULL: *err says why. */
const float *pp_cpu_float_vector(struct pp_cpu *c, const struct pp_tensor *t, struct pp_error *err);
/* count.c: finds the places where the inputs of a projection are counted, the i-th of n in its tensor; nothing where
 * nobody counts. */
enum pp_code pp_cpu_count_begin(struct pp_cpu *c, const struct pp_tensor *w, int i, int n, struct projection *p,
                                struct pp_error *err);
/* Counts m rows of input to n projections that share it. Once for each pass, by one thread. */
void pp_cpu_count(const struct pp_acts *acts, int m, const struct projection *const *p, int n);
/* adapt.c: A x of n rows for one adapter and matrix, as add_low_rank wants it: out [n, stride]. */
void pp_cpu_multiply_a(const struct pp_cpu *c, const struct pp_lora_target *t, const struct pp_acts *x, int n,
                       float *out, int64_t stride, void *kernel);
/* The input [n] of a matrix times the scales of a set's IA3s; set may be NULL. */
void pp_cpu_scale_input(const struct pp_adapter_set *set, int linear, int64_t n, float *x);
/* All that comes behind W x, outputs row0 .. row1 - 1, of neighbouring rows that have one set (or NULL), the model's
 * own bias included. rows.down: what pp_cpu_multiply_a made of them for the set's adapters, one behind the other. */
void pp_cpu_adapt(const struct pp_cpu *c, const struct projection *p, const struct pp_adapter_set *set,
                  struct pp_low_rank_rows rows, int64_t row0, int64_t row1);
/* project.c: a norm of n values for a row with this set, whose adapters may replace it; room: twice n, in whole 16s. */
struct norm pp_cpu_norm_of(const struct norm *norm, const struct pp_adapter_set *set, int64_t n, float *room);

/* How many items each phase of a stage has for m rows of the current batch (0: the phase is left out), and one of them.
 * thread: whose scratch it may use. */
typedef void pp_cpu_phases_fn(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES]);
typedef void pp_cpu_item_fn(struct pp_cpu *c, const struct stage *s, int m, int phase, int item, int thread);
pp_cpu_phases_fn pp_cpu_project_phases, pp_cpu_attend_phases, pp_cpu_experts_phases; /* project.c, attend.c, ... */
pp_cpu_phases_fn pp_cpu_recur_phases, pp_cpu_pick_phases, pp_cpu_compress_phases;
pp_cpu_item_fn pp_cpu_compress_item, pp_cpu_attend_item, pp_cpu_recur_item, pp_cpu_pick_item;
/* Items of experts and of projections are small; a thread takes several neighbours at once: first .. end - 1, at most
 * as many as are worth 2 ms. */
int pp_cpu_experts_at_once(const struct stage *s, int m, int phase);
void pp_cpu_experts_items(struct pp_cpu *c, const struct stage *s, int m, int phase, int first, int end, int thread);
int pp_cpu_project_at_once(const struct pp_cpu *c, const struct stage *s, int m, int phase);
void pp_cpu_project_items(struct pp_cpu *c, const struct stage *s, int m, int phase, int first, int end, int thread);
/* Finds out where the threads begin to read each stage's weights. false: out of memory. */
bool pp_cpu_project_begins(struct pp_cpu *c);
/* What was found, or for this pass of m rows, if it wants some logits only, where those begin. */
const void **pp_cpu_project_begins_at(struct pp_cpu *c, const struct stage *s, int m);
/* Once more, behind a pass that wants some logits only: what comes behind the product may have made something else of
 * the others. */
void pp_cpu_project_silence(const struct pp_cpu *c);
/* Before each pass: nothing of it is multiplied with an adapter's A yet. */
void pp_cpu_project_reset(struct pp_cpu *c);
/* Puts the weights of all stages on the memory nodes of the threads that multiply with them. */
void pp_cpu_place_weights(struct pp_cpu *c);
/* The work items of the current pass, for pp_pool_run_parts; arg: the struct pp_cpu. */
void pp_cpu_run_items(void *arg, int part_index, int first, int end, int thread);
/* What the calling thread does before the others are called, by `run` as above: a few embeddings take less time than
 * meeting. */
void pp_cpu_begin_alone(struct pp_cpu *c, pp_pool_range_fn *run);

#endif
