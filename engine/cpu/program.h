/* program.h - a lowered plan: the stages that lower.c makes and forward.c runs, and their memory. Private to
 * engine/cpu.
 *
 * A forward pass runs its stages in order, each in one or several phases. A phase is cut into items, which the threads
 * of the pool take as they become free; between phases they meet. "m" is the number of rows that take part. */
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
    MAX_GROUPED = 6,   /* projections of one stage, which share their input */
    MAX_ROW_OPS = 4,   /* of one stage */
};

enum stage_kind { STAGE_EMBED, STAGE_PROJECT, STAGE_HEADS, STAGE_COMPRESS, STAGE_KEEP, STAGE_PICK, STAGE_ATTEND,
                  STAGE_CONVOLVE, STAGE_POOL, STAGE_RECUR, STAGE_SCAN, STAGE_ROWS, STAGE_EXPERTS, STAGE_SELECT };

/* A norm and its vectors. */
struct norm {
    const float *weight;        /* NULL: there is no norm */
    const float *bias;          /* or NULL */
    bool centred;               /* LayerNorm; else RMS norm */
    int64_t stride;             /* of head norms: from one head's vectors to the next; 0: all heads share them */
    float eps;                  /* 0: the model's */
    int op;                     /* index of the first plan operation with this weight, by which adapters replace it */
};

/* A small operation on one row of a slot. */
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
    const float *factors;       /* MULTIPLY, in place of in2, AFFINE: or NULL. RECALL. CONNECT: one for each kind of
                                   coefficient */
    const float *added;         /* the bias of CONNECT, and of AFFINE: or NULL */
    struct pp_connection connection; /* CONNECT */
    bool mixes;                 /* WRITE_STREAMS: with a matrix */
    int in, in2, out;           /* slots */
    int64_t n;                  /* values; HEAD_NORM: of a head */
    int n_heads;                /* HEAD_NORM; WEIGH: weights; RECALL: vectors; operations on streams: streams */
    int64_t count, at, period, times; /* TAKE, NGRAM; count: HASH; at: TOKEN; period: of ROPE, values of a head */
    bool halves, back, local;   /* ROPE */
};

struct projection {
    int linear;                 /* for adapters: its index in pp_plan_target */
    struct pp_matrix w;
    struct pp_weight *weight;   /* tells whether w.data are packed yet */
    const float *bias;          /* [n_rows], or NULL */
    int out;                    /* slot */
    float *sums;                /* [n_cols]: for an importance matrix, sums of squares of the inputs; or NULL */
    double *count;              /* their number */
};

/* A mixture of experts. Float matrices are read where the file is mapped. Members without a comment are as in struct
 * pp_experts (plan.h). */
struct experts {
    int n, n_used;              /* experts to choose from, and chosen for each row */
    int n_matrices, share;      /* share: neighbouring experts with the same matrices */
    bool idle;                  /* experts from n_matrices on return their input, */
    bool silent;                /* or nothing */
    bool shares, sigmoids, roots;
    const int32_t *table;       /* [n_tokens, n_used], or NULL */
    int64_t n_tokens;
    float mixer;
    float scale;                /* of weights */
    bool weighted_inputs;
    int n_groups, n_groups_used; /* 0: no groups */
    bool groups_by_largest;
    const float *choice_bias;   /* [n], or NULL */
    const float *scales;        /* [n_matrices * share]: of those that have matrices; or NULL */
    const float *bias;          /* [n_out], or NULL */
    bool apart, of_parts;
    bool applied;
    enum pp_fn fn;
    float bound;
    int64_t n_in, n_ff, n_out;
    struct projection *gate, *up, *down; /* [n_matrices]; gate may be NULL, as may `up`: one matrix, n_ff being 0 */
    bool quantize, plain;       /* some gate or up matrix reads quantised, or float32, activations */
    bool quantize_down;         /* likewise down matrices */
    bool twins, twins_down;     /* blocks of these quantised activations are twins (matmul.h) */
};

struct stage {
    enum stage_kind kind;
    int in;                     /* slot */
    bool selected;              /* comes after SELECT: its rows are the batch's outputs */
    int out;                    /* slot: of EMBED, HEADS, ATTEND, CONVOLVE, PROJECT with an epilogue; EPILOGUE_ADD
                                   accumulates there */
    /* PROJECT */
    struct norm norm;           /* of the input; EXPERTS, too */
    int norm_out;               /* slot for the normed input, if a later stage reads it; else -1 */
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
    bool twins;                 /* and one of them twins, so that all of the stage's are (matmul.h) */
    bool split;                 /* some projection reads bfloat16 activations */
    bool plain;                 /* some projection reads plain ones, */
    bool by_lane;               /* and wants those of many rows arranged by lanes besides (matmul.h) */
    bool in_place;              /* no later stage reads `in`: its rows may be quantised, or split, in place */
    const void **begins;        /* [n threads] where each thread's share of the weights begins, at few rows */
    /* EMBED */
    const struct pp_tensor *table, *positions, *segments; /* the latter two: learned ones, or NULL */
    const struct pp_tensor *start;    /* rows for token ids beyond the table; or NULL */
    /* HEADS */
    struct projection *heads;   /* [n_heads] */
    int n_heads;
    int of_heads;               /* for adapters: their index in the plan (pp_lora_first_heads) */
    /* ATTEND */
    int tier, layer;            /* layer: its index within the tier */
    int q, k, v;                /* slots; k -1: another layer has stored keys and values */
    int rope;                   /* index of c->ropes; -1: heads are not rotated */
    struct norm q_norm, k_norm, v_norm; /* of each head */
    bool norm_after_rope;
    float softcap;              /* times log2 e; 0: none */
    const float *sinks;         /* [n_head], times log2 e; or NULL */
    const float *slopes;        /* [n_head] of ALiBi, times log2 e; or NULL */
    int from_tier, from_layer;  /* of compressed blocks, where rows see such */
    /* KEEP: tier, layer and k as above. PICK: tier, layer, q and k */
    int head_weights;           /* slot; -1: all heads have weight 1 */
    bool halves;                /* RoPE pairs halves; else neighbours */
    int64_t rotated_from;       /* PICK: the first rotated value */
    /* CONVOLVE: tier and layer as above; epilogue: none, or APPLY */
    int in2;                    /* slot: the input is in * in2; -1: in */
    int row_taps;               /* slot: each row's own taps, [width, n_taps]; -1: `taps` serve all rows */
    int gate;                   /* slot that the result is multiplied by, after the epilogue; -1: none */
    int64_t width;
    int n_taps;
    int tap_step;               /* positions from one tap to the next */
    const float *taps;          /* [n_taps, width padded to 16], the oldest position's first; or NULL */
    const float *bias;          /* [width], or NULL */
    /* POOL: tier, layer and width as above; n_taps: positions of a block; taps: added to the scores at each position,
       or NULL: there are no scores */
    /* COMPRESS: tier, layer, in, in2, out and norm as above, bias [stride, width padded to 16] */
    /* RECUR: tier, layer, in, out and norm as above, bias [n_head] */
    const struct pp_recurrence *recurrence;
    const float *rate;          /* [n_head] */
    const float *direct;        /* [n_head], of Mamba's */
    const float *unit_query, *unit_key; /* [key_dim]: weights that turn an RMS norm into a scaling to length 1 (queries:
                                   and by 1 / sqrt(key_dim)) */
    /* SCAN: the same, but rate [n_head, key_dim, value_dim] and direct [n_head, value_dim]; RWKV's direct
       [n_head, key_dim], and norm of each head */
    /* ROWS */
    struct row_op row_ops[MAX_ROW_OPS];
    int n_row_ops;
    /* EXPERTS; epilogue: none, or ADD */
    struct experts *experts;
    int router;                 /* slot */
};

/* A phase is a part of the pool's work, after which the threads meet. */
enum { MAX_PHASES = 8 };

/* The phases of a mixture of experts, and what their items are. */
enum experts_phase {
    EXPERTS_CHOOSE,        /* a row, if there are several */
    EXPERTS_PLACE,         /* one item: the places of all rows; of a single row also its choice and EXPERTS_PREPARE */
    EXPERTS_PREPARE,       /* a row: normed, copied to all its places */
    EXPERTS_GATE_UP,       /* some weight rows of one active expert */
    EXPERTS_PREPARE_DOWN,  /* a place; of a single row, whichever thread first needs it prepares it */
    EXPERTS_DOWN,          /* as EXPERTS_GATE_UP */
    EXPERTS_SUM,           /* a row, or some columns of a single one */
};

/* Memory that a thread will read soon, prefetched a few lines at a time (project.c). */
struct requests {
    uintptr_t at, end;
};

/* Positions, or blocks of them, that may be among the top k, ascending by place (pick.c). */
struct candidates {
    uint32_t *rank;             /* scores as integers that compare the same way */
    int32_t *place;             /* index among the positions that the row may see, or among their blocks */
    int n;
    bool full;                  /* there are k of them: ranks below `least` are out */
    uint32_t least;
    uint32_t best;              /* of the block being scanned */
};

/* One thread's scratch memory. */
struct thread_scratch {
    struct pp_attention attention[PP_MAX_TIERS]; /* their arrays, for a tile as large as this model needs, lie in
                                                    `kernel` */
    uint8_t *tail;              /* copied pages of one head: the end of a tree's branch, two at most; or a chunk of
                                   positions that were picked, or lie in several tiers */
    struct candidates *candidates; /* [pick.n_lists]: pick.c's */
    float *dots;                /* [pick.n_lists, PP_KV_CHUNK], where blocks are picked */
    float *f32;                 /* [PRIVATE_ROWS, normed_stride]; shared: NULL unless a stage's normed rows are kept */
    float *results[2];          /* [result_floats]: of an item whose projections only go into an epilogue */
    int8_t *q;                  /* [PRIVATE_ROWS, acts_width]; NULL: no stage quantises */
    uint16_t *bf16;             /* [PRIVATE_ROWS, bf16_stride], where activations are split: a part of the `shared`
                                   one, which is unused while threads prepare inputs for themselves */
    float *d;                   /* [PRIVATE_ROWS, acts_width / 32] */
    int32_t *sum;
    struct pp_acts head;        /* of some rows, quantised (heads.c) */
    float *head_gains;          /* scratch for DoRAs of heads; NULL: not needed yet (heads.c) */
    struct requests soon;       /* only while it prepares a stage's input */
    float *lora;                /* [PRIVATE_ROWS, lora_width] */
    int n_down;                 /* products A x of the prepared stage that the threads share */
    const float *down;          /* [m, lora_width]: all of these products; NULL: not looked for yet */
    float *scaled;              /* [PRIVATE_ROWS, acts_width]: inputs times adapters' scales; NULL: not needed yet */
    float *replaced;            /* [replaced_floats]: results of adapters' own tensors; NULL: not needed yet */
    float *joined;              /* [PRIVATE_ROWS, acts_width]: beside `replaced`, where activations are split */
    bool is_scaled;             /* the prepared stage's inputs are in `scaled` */
    void *kernel;               /* kernel_bytes or more for the products, and for attention (attend.c) */
    uint64_t prepared_pass;     /* the pass and stage that the inputs above were prepared for */
    const struct stage *prepared_stage;
};

/* The results that one thread computes at a time for an epilogue: small enough to stay in its cache. 128 weight rows
 * for the default largest batch, and more for smaller ones: each such piece reads all activations again. (A prefill of
 * 512 rows on a Granite Rapids with 64 and 128 weight rows, tokens/s: Q4_0 378 and 388, Q6_K 300 and 307; with AMX,
 * whose unpacked weights take more of the cache than they did, Q4_0 554 and 582, Q6_K 389 and 391.) With many threads
 * there is room for half of that, and for less scratch: make_room() in setup.c. */
enum { MOST_RESULT_FLOATS = 65536 };

/* Up to this many rows every thread prepares the whole input for itself: cheaper than waiting for others to do it. */
enum { PRIVATE_ROWS = 4 };

/* The products A x with adapters that threads share at few rows, of one stage in the current pass. */
struct shared_down {
    _Alignas(64) atomic_int taken;
    atomic_int done;
};

/* A tier's geometry, and how a pass's attention is cut into items, the same in all layers of a tier (attend.c). */
struct attend_plan {
    struct pp_kv_layout kv;     /* of the tier's pages */
    int64_t window;             /* positions that a row sees; 0: all */
    int64_t n_first;            /* with a window: leading positions that it sees besides; they fit in a chunk */
    int64_t top_k;              /* rows that would see more than so many see only those picked; 0: all */
    int64_t block;              /* positions that are picked together; 1: each alone */
    bool pooled;                /* the same blocks for all heads, and besides the positions after the last whole one */
    int64_t n_local;            /* of an index: the last blocks, always picked; 0: positions are picked, or pooled
                                   blocks */
    int64_t stride;             /* rows also see compressed blocks of so many positions (other tiers: kv.stride); 0:
                                   none */
    bool chunked;               /* the window begins at a multiple of its length, instead of sliding */
    bool bidirectional;         /* the window reaches as far after the row as before it */
    int64_t n_near, far_step;   /* rows see the last n_near pages, and every far_step-th before them; n_near 0: all */
    int far_shift;              /* by how many pages earlier each head's far pages are than its neighbour's */
    int group;                  /* query heads attended together: all that share a KV head, or 1/share of them */
    int share;                  /* groups per KV head: more than 1 where its query heads see different positions */
    float scale;                /* of scores */
    int tile_rows;              /* at most */
    int *tiles;                 /* [n_tiles + 1] first rows */
    int n_tiles;
    int n_splits;               /* items that share a tile's chunks of a KV head */
    int64_t n_chunks;           /* of the tile whose rows see most */
    bool stores_apart;          /* a phase of its own rotates and stores K and V, since tiles need each other's rows */
    atomic_int *left;           /* [n_head_kv, n_tiles] splits not done yet */
};

/* The positions that indexes pick. The same memory serves all layers: each index overwrites the picks of the one before
 * (pick.c). */
struct pick_plan {
    int64_t top_k;              /* 0: there is no index */
    int64_t block, n_local;     /* as above */
    bool pooled;
    int64_t room;               /* entries of a list, at most */
    int64_t stride;             /* positions that share a key; 1: each has its own */
    int n_lists;                /* per row: of KV heads that are picked for separately; else 1 */
    float *ones;                /* [heads of the index] */
    int32_t *slots;             /* [max_rows, n_lists, room]: for rows that would see more, ascending */
    bool any;                   /* the pass has such rows */
    int n_splits;               /* items that share a row's positions */
    struct candidates *found;   /* [n_found, n_lists]: each item's candidates, if there are several */
    int n_found;
};

/* How the rows of a pass are routed to experts. Each (row, chosen expert) has a place; places are sorted by expert, so
 * that the rows of one expert are neighbours. The same memory serves all layers. */
struct routing {
    int n_places, n_active;
    int32_t *choice;            /* [max_rows, n_used]: experts, the largest logit first; of those that share matrices
                                   the index of these. -1: its weight was added to an earlier one's or idle_weight */
    float *weight;              /* [max_rows, n_used] */
    int32_t *place;             /* [max_rows, n_used]; -1 where the choice is */
    float *idle_weight;         /* [max_rows]: sum of the weights of experts that return their input; or NULL */
    float *kept;                /* [max_rows, kept_stride]: the result of those experts, weighted */
    int64_t kept_stride;
    float *input_weight;        /* [places], where weights multiply inputs; `weight` is then 1 */
    int32_t *row;               /* [places]: the row of each */
    bool adapted;               /* some row has adapters of experts, */
    bool scaled;                /* and some of those scale the input of down matrices */
    float *lora;                /* [places, lora_width]: A x of gate and up, then of down; NULL: not needed yet */
    int64_t lora_width;
    pp_once *lowered;           /* [PP_EXPERT_KINDS, n_matrices]: A x of an active expert is made */
    pp_once *ready;             /* [n_expert]: a single row's input of an active expert's down matrix is made */
    int32_t *active;            /* [n_expert]: the n_active ones that have rows */
    int32_t *first;             /* [n_expert + 1]: the first place of each of those; behind the last, n_places */
    int32_t *count;             /* [n_expert] */
    uint8_t *region;            /* holds the following, in pages of its own */
    size_t region_bytes;
    struct pp_acts in, hidden;  /* of places; hidden.f32: the result of gate and up */
    float *out;                 /* [places, out_stride]; overwrites in.f32 */
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
    int64_t result_floats;      /* of each of a thread's results; at least a group of weight rows for max_rows */
    size_t kernel_bytes;        /* of scratch for the products, per thread */

    struct stage *stages;
    int n_stages;
    int hidden_slot, logits_slot;

    int n_slots;
    float **slots;              /* [n_slots]: float [max_rows, stride]; after SELECT [max_outputs, stride] */
    float *arena;               /* holds the slots of all rows; those that are never live together share memory */
    size_t arena_bytes;
    float *outputs;             /* holds the slots after SELECT, if the arena has no room for them; or NULL */
    float *attention_room;      /* [attention_floats]: a part of the arena that is free while attention runs, for the
                                   partial sums [KV head][tile][chunk] of items that share a tile's chunks */
    float *own_room;            /* that memory, if the arena has too little; or NULL */
    int64_t attention_floats;
    int64_t *strides;           /* [n_slots] */
    int max_outputs;

    /* the prepared input of the current stage when there are many rows; width is the widest input */
    int64_t acts_width;         /* a multiple of 64 */
    int64_t normed_stride;      /* of inputs after a norm */
    int64_t shared_stride;      /* of `shared`: stages that quantise in place do not count */
    struct thread_scratch shared; /* the same arrays with max_rows rows */
    struct thread_scratch *threads; /* [n threads] */
    struct attend_plan attend[PP_MAX_TIERS]; /* of tiers of other kinds only the geometry */
    int n_tiers;
    struct pick_plan pick;
    struct experts *experts;    /* [plan.n_experts] */
    struct routing routing;
    int64_t replaced_floats;    /* two whole rows, or 16 results of each row of the largest batch */
    int64_t lora_width;         /* of `lora` rows: the sum of the ranks of a row's adapters for one stage */
    int64_t head_width;         /* of the widest input or output of heads with matrices of their own (heads.c) */
    struct shared_down *down;   /* [n_stages] */
    const void **listed_begins; /* [n threads]: `begins` of a stage of which only some logits are needed */

    struct rope {
        int64_t dim;            /* values of a head that are rotated */
        float *inv_freq;        /* [dim / 2] */
        float magnitude;
        float *cos_sin;         /* [max_rows, dim] */
    } ropes[2];                 /* the second: local_rope layers, where their frequencies differ */
    int n_ropes;

    struct pp_weights *weights;
    struct pp_imatrix *imatrix; /* accumulates inputs; or NULL */
    void **owned;               /* [n_owned]: converted norms and biases */
    int n_owned, cap_owned;
    uint64_t memory;            /* bytes allocated, for pp_cpu_memory */
    struct pp_cpu_profile *profile; /* NULL: off; profile.c */

    /* -- of the current pass: what its work items may read -- */
    const struct pp_batch *batch;
    const struct pp_cancel *cancel;
    uint64_t pass;              /* its number */
    struct pp_stream_choice stream; /* how it prefetches weights: as ways[stream.way] */
    enum pp_weights_way ways[PP_STREAM_CHOICES]; /* [stream.n_ways], the default first */
    atomic_bool abandoned;      /* cancelled, or a weight is bad: items that have not begun are skipped */
    struct part {
        struct stage *stage;
        int phase;
        int m;                  /* rows that take part */
    } *parts;                   /* [MAX_PHASES * n_stages] */
    struct pp_pool_part *work;  /* [MAX_PHASES * n_stages]: their items */
    int n_parts;
};

/* The length of a row rounded up to an odd number of cache lines, in elements of this size. Rows of activations that
 * lie a multiple of 4096 bytes apart would compete for the same few sets of the L1 cache: that costs a product of many
 * rows 5 to 20 %. */
static inline int64_t pp_odd_lines(int64_t n, size_t size)
{
    const int64_t a_line = 64 / (int64_t)size;
    return ((n + a_line - 1) / a_line | 1) * a_line;
}

/* How this pass prefetches weights. */
static inline enum pp_weights_way pp_cpu_way(const struct pp_cpu *c)
{
    return c->ways[c->stream.way];
}

/* Whether weights of this type are multiplied by bfloat16 activations. */
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

/* The batch row of a stage's i-th row: after SELECT only rows with an output are left. */
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

/* Functions that return false are out of memory, unless it says otherwise. */

/* slots.c: allocates the slots, see there. */
bool pp_cpu_slots_new(struct pp_cpu *c);
void pp_cpu_slots_free(struct pp_cpu *c);
/* Room for n output rows in the slots that have rows for outputs only. */
bool pp_cpu_slots_outputs(struct pp_cpu *c, int n);

/* lower.c */
enum pp_code pp_cpu_lower(struct pp_cpu *c, const struct pp_cpu_options *opt, pp_progress *progress, void *user,
                          struct pp_error *err);
/* Call before a kernel reads rows [row0, row1) of a projection: packs them if need be. Any thread. false: the pass is
 * abandoned. */
bool pp_cpu_weight_ready(struct pp_cpu *c, const struct projection *p, int64_t row0, int64_t row1);

/* attend.c: allocates what attention needs, the threads' scratch included; and plans a pass, before its stages run. */
bool pp_cpu_attend_new(struct pp_cpu *c);
void pp_cpu_attend_free(struct pp_cpu *c);
void pp_cpu_attend_plan(struct pp_cpu *c);

/* How many positions a row may see, windows and picks aside. */
static inline int64_t pp_cpu_row_length(const struct pp_batch_row *r)
{
    return r->tree_mask ? r->tree_base + __builtin_popcountll(r->tree_mask) : r->sees;
}

/* The first of the values of a tier's key that attention rotates. */
static inline int64_t pp_cpu_rotated_from(const struct pp_hparams *hp, const struct pp_kv_layout *kv)
{
    return hp->compressed || hp->kv_lora_rank ? kv->head_dim - hp->rope_dim : 0;
}

/* pick.c: likewise for indexes. */
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

/* setup.c: zeroed memory, in huge pages if it is large, counted in c->memory; for pp_free. NULL: out of memory. */
void *pp_cpu_memory_take(struct pp_cpu *c, int64_t count, size_t size);

/* experts.c: registers the weights of a mixture; and allocates memory for the largest, once. */
enum pp_code pp_cpu_experts_add(struct pp_cpu *c, int index, struct pp_error *err);
void pp_cpu_experts_point(struct pp_cpu *c); /* sets the matrices' data pointers */
bool pp_cpu_experts_new(struct pp_cpu *c);
void pp_cpu_experts_free(struct pp_cpu *c);
/* route.c: chooses and weights a row's experts by its logits. Any thread, for different rows. */
void pp_cpu_route_row(const struct pp_cpu *c, const struct stage *s, int row);
/* Assigns the places of all m rows, once each has its experts. One thread. */
void pp_cpu_route_places(struct pp_cpu *c, const struct stage *s, int m);
/* experts_adapt.c: whether a row, or one of m, has adapters of experts; and room for a set's products A x. */
bool pp_cpu_experts_row_adapted(const struct pp_cpu *c, const struct stage *s, int row);
bool pp_cpu_experts_adapted(const struct pp_cpu *c, const struct stage *s, int m);
bool pp_cpu_experts_reserve(struct pp_cpu *c, const struct pp_adapter_set *set);
/* Whether one of m rows, or the row of a place, has adapters that scale the input of down matrices. */
bool pp_cpu_experts_scaled(const struct pp_cpu *c, const struct stage *s, int m);
bool pp_cpu_experts_place_scaled(const struct pp_cpu *c, const struct stage *s, int place);
/* Scales that input, which must be ready, after computing A x from it. */
void pp_cpu_experts_scale(const struct pp_cpu *c, const struct stage *s, int place, void *kernel);
/* Before a mixture's products: marks all A x as not computed. */
void pp_cpu_experts_begin_adapt(const struct pp_cpu *c, const struct stage *s);
/* Computes A x of all rows of the active-th active expert, unless another thread does or did. Any thread. */
void pp_cpu_experts_lower(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int active,
                          void *kernel);
/* What pp_cpu_adapt does, for the rows of that expert, once A x is computed: y[i * stride + r] is the result of its
 * i-th row for weight row r. */
void pp_cpu_experts_adapt(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int active,
                          int64_t row0, int64_t row1, float *y, int64_t stride);
/* Below, X_add registers the weights of a stage, X_item runs one item, X_at_once says how many items a thread may take
 * at a time. heads.c: */
enum pp_code pp_cpu_heads_add(struct pp_cpu *c, struct stage *s, const struct pp_heads *heads, struct pp_error *err);
bool pp_cpu_heads_new(struct pp_cpu *c);
bool pp_cpu_heads_reserve(struct pp_cpu *c, const struct pp_adapter_set *set);
void pp_cpu_heads_free(struct pp_cpu *c);
void pp_cpu_heads_item(struct pp_cpu *c, const struct stage *s, int m, int head, int thread);
int pp_cpu_heads_at_once(const struct stage *s, int m);
/* convolve.c; items: how many there are for m rows */
enum pp_code pp_cpu_convolve_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
int pp_cpu_convolve_items(const struct stage *s, int m);
void pp_cpu_convolve_item(struct pp_cpu *c, const struct stage *s, int m, int item);
/* pool_keys.c: STAGE_POOL */
enum pp_code pp_cpu_pool_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
int pp_cpu_pool_items(const struct stage *s, int m);
void pp_cpu_pool_item(struct pp_cpu *c, const struct stage *s, int m, int item);
/* convolve.c: the cached rows of the last n positions, the oldest first, the row's own last; NULL before the first
 * position. */
void pp_cpu_rows_before(const struct pp_cpu *c, const struct stage *s, const struct pp_batch_row *r, int n,
                        float *at[PP_MAX_TAPS]);
/* compress.c: STAGE_COMPRESS and STAGE_KEEP */
enum pp_code pp_cpu_compress_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
void pp_cpu_keep_item(struct pp_cpu *c, const struct stage *s, int row);
/* If a row is the last of a block of this tier, rotates the block's key, float [head_dim], by its position and caches
 * it; else does nothing. at: the first value that is rotated; halves: RoPE pairs halves. */
void pp_cpu_keep_key(const struct pp_cpu *c, int tier, int layer, const struct rope *rope, int64_t at, bool halves,
                     int row, float *key);
/* recur.c; bytes: an item's scratch, 0 for tiers of other kinds */
enum pp_code pp_cpu_recur_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
size_t pp_cpu_recur_bytes(const struct pp_kv_layout *kv);
/* A vector or a matrix of one column, with a number for each head, as floats; and unit_key and unit_query of a stage
 * for n values. */
const float *pp_cpu_recur_numbers(struct pp_cpu *c, const struct pp_tensor *t, struct pp_error *err);
enum pp_code pp_cpu_recur_units(struct pp_cpu *c, struct stage *s, int n, struct pp_error *err);
extern const float pp_cpu_recur_unit_eps; /* added to their squared length */
/* scan.c */
enum pp_code pp_cpu_scan_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
int pp_cpu_scan_items(const struct stage *s);
int pp_cpu_scan_at_once(int m);
void pp_cpu_scan_item(struct pp_cpu *c, const struct stage *s, int m, int item);
/* lower.c: zeroed memory, 64-byte aligned, owned by c; NULL: out of memory. */
void *pp_cpu_memory_keep(struct pp_cpu *c, int64_t count, size_t size);
/* lower.c: the rows of a tensor as floats, each padded to whole kernel vectors; owned by c. NULL: *err is set. */
const float *pp_cpu_float_vector(struct pp_cpu *c, const struct pp_tensor *t, struct pp_error *err);
/* count.c: finds where to accumulate the inputs of a projection, the i-th of n in tensor w, for the importance matrix;
 * does nothing without one. */
enum pp_code pp_cpu_count_begin(struct pp_cpu *c, const struct pp_tensor *w, int i, int n, struct projection *p,
                                struct pp_error *err);
/* Accumulates m rows of input to n projections that share it. Once for each pass, by one thread. */
void pp_cpu_count(const struct pp_acts *acts, int m, const struct projection *const *p, int n);
/* adapt.c: A x of n rows for one adapter and matrix, in the order that add_low_rank reads: out [n, stride]. */
void pp_cpu_multiply_a(const struct pp_cpu *c, const struct pp_lora_target *t, const struct pp_acts *x, int n,
                       float *out, int64_t stride, void *kernel);
/* Multiplies the input [n] of a matrix by the scales of a set's IA3s; set may be NULL. */
void pp_cpu_scale_input(const struct pp_adapter_set *set, int linear, int64_t n, float *x);
/* Completes W x, outputs row0 .. row1 - 1, for neighbouring rows with the same set (or NULL): adds adapters' products
 * and the bias. rows.down: pp_cpu_multiply_a of these rows for the set's adapters, one after the other. */
void pp_cpu_adapt(const struct pp_cpu *c, const struct projection *p, const struct pp_adapter_set *set,
                  struct pp_low_rank_rows rows, int64_t row0, int64_t row1);
/* project.c: the norm of n values for a row with this set, whose adapters may replace it; room: scratch for twice n,
 * rounded up to 16. */
struct norm pp_cpu_norm_of(const struct norm *norm, const struct pp_adapter_set *set, int64_t n, float *room);

/* How many items each phase of a stage has for m rows of the current batch (0: the phase is left out); and the function
 * that runs one of them, with the scratch of this thread. */
typedef void pp_cpu_phases_fn(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES]);
typedef void pp_cpu_item_fn(struct pp_cpu *c, const struct stage *s, int m, int phase, int item, int thread);
pp_cpu_phases_fn pp_cpu_project_phases, pp_cpu_attend_phases, pp_cpu_experts_phases; /* project.c, attend.c, ... */
pp_cpu_phases_fn pp_cpu_recur_phases, pp_cpu_pick_phases, pp_cpu_compress_phases;
pp_cpu_item_fn pp_cpu_compress_item, pp_cpu_attend_item, pp_cpu_recur_item, pp_cpu_pick_item;
/* Items of experts and of projections are small: a thread takes several neighbours at once, first .. end - 1, at most
 * about 2 ms' worth. */
int pp_cpu_experts_at_once(const struct stage *s, int m, int phase);
void pp_cpu_experts_items(struct pp_cpu *c, const struct stage *s, int m, int phase, int first, int end, int thread);
int pp_cpu_project_at_once(const struct pp_cpu *c, const struct stage *s, int m, int phase);
void pp_cpu_project_items(struct pp_cpu *c, const struct stage *s, int m, int phase, int first, int end, int thread);
/* Finds where each thread's share of every stage's weights begins. */
bool pp_cpu_project_begins(struct pp_cpu *c);
/* `begins` of a stage for this pass of m rows, which may compute only some logits. */
const void **pp_cpu_project_begins_at(struct pp_cpu *c, const struct stage *s, int m);
/* After a pass that computes only some logits: sets the others to -INFINITY again, which later stages may have
 * changed. */
void pp_cpu_project_silence(const struct pp_cpu *c);
/* Before each pass: marks the shared products A x as not computed. */
void pp_cpu_project_reset(struct pp_cpu *c);
/* Puts the weights of all stages on the NUMA nodes of the threads that read them. */
void pp_cpu_place_weights(struct pp_cpu *c);
/* Runs work items of the current pass, for pp_pool_run_parts; arg: the struct pp_cpu. */
void pp_cpu_run_items(void *arg, int part_index, int first, int end, int thread);
/* Runs what the calling thread does before it wakes the others, by `run` as above: a few embeddings take less time than
 * a barrier. */
void pp_cpu_begin_alone(struct pp_cpu *c, pp_pool_range_fn *run);

#endif
