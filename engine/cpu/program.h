/* program.h - a lowered plan: the stages that lower.c makes and forward.c runs, and their memory. Private to
 * engine/cpu.
 *
 * A forward pass runs its stages in order, each in one or several phases. A phase is divided into work items, which the
 * threads of the pool take as they become free; after each phase there is a barrier. "m" is the number of rows that a
 * stage processes. Slots are the plan's named activation buffers, with one row for each row of the batch. */
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
    MAX_GROUPED = 6,   /* most projections of a stage; they share their input */
    MAX_ROW_OPS = 4,   /* most row operations of a stage */
};

enum stage_kind { STAGE_EMBED, STAGE_PROJECT, STAGE_HEADS, STAGE_COMPRESS, STAGE_KEEP, STAGE_PICK, STAGE_ATTEND,
                  STAGE_CONVOLVE, STAGE_POOL, STAGE_RECUR, STAGE_SCAN, STAGE_ROWS, STAGE_EXPERTS, STAGE_SELECT };

/* A norm and its vectors. */
struct norm {
    const float *weight;        /* NULL: there is no norm */
    const float *bias;          /* or NULL */
    bool centred;               /* LayerNorm, which subtracts the mean; else RMSNorm */
    int64_t stride;             /* of head norms: floats from one head's vectors to the next; 0: heads share them */
    float eps;                  /* 0: the model's */
    int op;                     /* index of the first plan operation with this weight: adapters that replace the weight
                                   refer to it */
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
    const float *factors;       /* MULTIPLY: constant factors instead of in2, or NULL. AFFINE: factors, or NULL. RECALL.
                                   CONNECT: one for each kind of coefficient */
    const float *added;         /* CONNECT, AFFINE: bias, or NULL */
    struct pp_connection connection; /* CONNECT */
    bool mixes;                 /* WRITE_STREAMS: the streams are also mixed by a matrix */
    int in, in2, out;           /* slots */
    int64_t n;                  /* number of values; HEAD_NORM: per head */
    int n_heads;                /* HEAD_NORM: heads; WEIGH: weights; ATTN_RESIDUAL: vectors; operations on streams:
                                   streams */
    int64_t count, at, period, times; /* as in struct pp_op for TAKE and NGRAM; count: also HASH; at: also TOKEN;
                                         period: also ROPE, values of a head */
    bool neox, inverse, local;  /* ROPE */
};

struct projection {
    int linear;                 /* its index in pp_plan_target, by which adapters refer to it */
    struct pp_matrix w;
    struct pp_weight *weight;   /* knows whether w.data is packed yet */
    const float *bias;          /* [n_rows], or NULL */
    int out;                    /* slot */
    float *sums;                /* [n_cols]: sums of squares of the inputs, for an importance matrix; or NULL */
    double *count;              /* number of inputs in the sums */
};

/* A mixture of experts. Members without a comment are as in struct pp_experts (plan.h). */
struct experts {
    int n, n_used;              /* number of experts, and of those chosen for each row */
    int n_matrices, share;      /* share: how many neighbouring experts use the same matrices */
    bool idle;                  /* experts from n_matrices on have no matrices: their output is their input, */
    bool zero_output;           /* or zero */
    bool no_renorm, sigmoids, sqrt_softplus;
    const int32_t *table;       /* [n_tokens, n_used], or NULL */
    int64_t n_tokens;
    float mixer_jitter;
    float scale;                /* factor of all routing weights */
    bool weighted_inputs;
    int n_groups, n_groups_used; /* 0: no groups */
    bool groups_by_largest;
    const float *choice_bias;   /* [n], or NULL */
    const float *scales;        /* [n_matrices * share]: for the experts that have matrices; or NULL */
    const float *bias;          /* [n_out], or NULL */
    bool unsummed, split_input;
    bool applied;
    enum pp_fn fn;
    float bound;
    int64_t n_in, n_ff, n_out;
    struct projection *gate, *up, *down; /* [n_matrices]; gate may be NULL. If `up` is NULL, an expert is one matrix,
                                   `down`, and n_ff is 0 */
    bool quantize, plain;       /* some gate or up matrix reads quantised activations; some reads float32 ones */
    bool quantize_down;         /* some down matrix reads quantised activations */
    bool twins, twins_down;     /* the quantised activations of gate and up, or of down, have twins (matmul.h) */
};

struct stage {
    enum stage_kind kind;
    int in;                     /* slot */
    bool selected;              /* the stage comes after SELECT: its rows are those of the batch that have an output */
    int out;                    /* slot for the result of EMBED, HEADS, ATTEND, CONVOLVE, or PROJECT with an epilogue;
                                   EPILOGUE_ADD adds to it */
    /* PROJECT */
    struct norm norm;           /* applied to the input; also in EXPERTS */
    int norm_out;               /* slot for the normalised input, if a later stage reads it; else -1 */
    int n_projections;
    struct projection projections[MAX_GROUPED];
    enum epilogue {
        EPILOGUE_NONE,
        EPILOGUE_ADD,           /* out += scale * result of projections[0] */
        EPILOGUE_GATE,          /* out = fn(projections[0]) * projections[1] */
        EPILOGUE_APPLY,         /* out = fn(projections[0]) */
    } epilogue;
    enum pp_fn fn;
    struct pp_xielu xielu;      /* APPLY: parameters, if the function is xIELU */
    float scale;                /* ADD, and EMBED: factor, 0 means 1; APPLY and GATE: the function's parameter */
    bool quantize;              /* some projection reads quantised activations, */
    bool twins;                 /* and some of those expects twins (matmul.h), so that all of the stage get them */
    bool split;                 /* some projection reads activations split into bfloat16 parts */
    bool plain;                 /* some projection reads float32 activations, */
    bool by_lane;               /* and wants a copy arranged by lanes if there are many rows (matmul.h) */
    bool in_place;              /* no later stage reads `in`: its rows may be quantised or split in place */
    const void **begins;        /* [n threads]: where each thread's share of the weights begins, for few rows */
    /* EMBED */
    const struct pp_tensor *table, *positions, *segments; /* positions, segments: learned embeddings, or NULL */
    const struct pp_tensor *meta_tokens; /* rows for token ids beyond the table; or NULL */
    /* HEADS */
    struct projection *heads;   /* [n_heads]: one matrix per head */
    int n_heads;
    int of_heads;               /* their index in the plan, by which adapters refer to them (pp_lora_first_heads) */
    /* ATTEND */
    int tier, layer;            /* layer: its index within the tier */
    int q, k, v;                /* slots; k -1: another layer has stored keys and values */
    int rope;                   /* index into c->ropes; -1: no RoPE */
    struct norm q_norm, k_norm, v_norm; /* applied to each head */
    bool norm_after_rope;
    float softcap;              /* times log2 e; 0: none */
    const float *sinks;         /* [n_head]: attention sinks, times log2 e; or NULL */
    const float *slopes;        /* [n_head]: ALiBi's slopes, times log2 e; or NULL */
    int from_tier, from_layer;  /* where the keys of compressed blocks are cached, if rows see such blocks */
    /* KEEP: tier, layer and k as above. PICK: tier, layer, q and k as above */
    int head_weights;           /* slot; -1: all heads have weight 1 */
    bool neox;                  /* RoPE rotates pairs (i, i + dim / 2); else (2i, 2i + 1) */
    int64_t rotated_from;       /* PICK: the first of the values that RoPE rotates */
    /* CONVOLVE: tier and layer as above; epilogue: none, or APPLY */
    int in2;                    /* slot: the input is in * in2; -1: the input is `in` */
    int row_taps;               /* slot with taps for each row, [width, n_taps]; -1: all rows use `taps` */
    int gate;                   /* slot: the result is multiplied by it, after the epilogue; -1: none */
    int64_t width;
    int n_taps;
    int tap_step;               /* dilation: positions from one tap to the next */
    const float *taps;          /* [n_taps, width padded to 16], the oldest position's first; or NULL */
    const float *bias;          /* [width], or NULL */
    /* POOL: tier, layer and width as above; n_taps: positions of a block; taps: added to the scores of each of its
       positions; NULL: there are no scores */
    /* COMPRESS: tier, layer, in, in2, out and norm as above, bias [stride, width padded to 16] */
    /* RECUR: tier, layer, in, out and norm as above, bias [n_head] */
    const struct pp_recurrence *recurrence;
    const float *rate;          /* [n_head] */
    const float *direct;        /* [n_head]: Mamba's D, the factor of the skip from the input to the output */
    const float *unit_query, *unit_key; /* [key_dim]: weights with which RMSNorm scales to length 1 (queries also by
                                   1 / sqrt(key_dim)) */
    /* SCAN: as RECUR, but rate is [n_head, key_dim, value_dim] and direct [n_head, value_dim]; for RWKV, direct is
       [n_head, key_dim], and norm has a part for each head */
    /* ROWS */
    struct row_op row_ops[MAX_ROW_OPS];
    int n_row_ops;
    /* EXPERTS; epilogue: none, or ADD */
    struct experts *experts;
    int router;                 /* slot */
};

/* Each phase is one part of the pool's work, and ends with a barrier. */
enum { MAX_PHASES = 8 };

/* The phases of a mixture of experts, and what an item of each is. */
enum experts_phase {
    EXPERTS_CHOOSE,        /* a row; left out for a single row */
    EXPERTS_PLACE,         /* a single item: assigns the places of all rows (struct routing); for a single row it also
                              does the work of EXPERTS_CHOOSE and EXPERTS_PREPARE */
    EXPERTS_PREPARE,       /* a row: normalises it and copies it to its places */
    EXPERTS_GATE_UP,       /* some weight rows of one active expert */
    EXPERTS_PREPARE_DOWN,  /* a place; left out for a single row: the first thread that needs a place prepares it */
    EXPERTS_DOWN,          /* some weight rows of one active expert */
    EXPERTS_SUM,           /* a row, or, if there is a single row, some of its columns */
};

/* Memory that a thread will read soon, prefetched a few lines at a time (project.c). */
struct requests {
    uintptr_t at, end;
};

/* Positions, or blocks of positions, that may be among the top k, ascending by place (pick.c). */
struct candidates {
    uint32_t *rank;             /* scores as integers that compare the same way */
    int32_t *place;             /* index among the positions that the row may see, or among their blocks */
    int n;
    bool full;                  /* there are k candidates, so that ranks below `least` are not added */
    uint32_t least;
    uint32_t best;              /* the largest rank in the block being scanned */
};

/* One thread's scratch memory. */
struct thread_scratch {
    struct pp_attention attention[PP_MAX_TIERS]; /* the arrays are in `kernel`, sized for this model's largest tile */
    uint8_t *tail;              /* copies of pages for one head: the end of a tree's branch, at most two pages; or a
                                   chunk of positions that were picked, or that come from several tiers */
    struct candidates *candidates; /* [pick.n_lists], for pick.c */
    float *dots;                /* [pick.n_lists, PP_KV_CHUNK], if blocks are picked */
    float *f32;                 /* [PRIVATE_ROWS, normalised_stride]: normalised input; in `shared` NULL unless some
                                   stage keeps it */
    float *results[2];          /* [result_floats]: results of an item's projections that only its epilogue needs */
    int8_t *q;                  /* [PRIVATE_ROWS, acts_width]; NULL: no stage quantises */
    uint16_t *bf16;             /* [PRIVATE_ROWS, bf16_stride], if activations are split. It lies in the array of
                                   `shared`, which is unused while threads prepare inputs for themselves */
    float *d;                   /* [PRIVATE_ROWS, acts_width / 32] */
    int32_t *sum;
    struct pp_acts head;        /* one head of some rows, quantised (heads.c) */
    float *head_gains;          /* scratch for DoRAs of heads; NULL: not needed yet (heads.c) */
    struct requests soon;       /* used only while the thread prepares a stage's input */
    float *lora;                /* [PRIVATE_ROWS, lora_width] */
    int n_down;                 /* how many products A x of the prepared stage the threads share */
    const float *down;          /* [m, lora_width]: all of these products; NULL: not looked up yet */
    float *scaled;              /* [PRIVATE_ROWS, acts_width]: inputs times adapters' scales; NULL: not needed yet */
    float *replaced;            /* [replaced_floats]: results of tensors that adapters replace; NULL: not needed yet */
    float *joined;              /* [PRIVATE_ROWS, acts_width]: allocated with `replaced`, if activations are split: the
                                   sum of their parts */
    bool is_scaled;             /* the prepared stage's inputs are in `scaled` */
    void *kernel;               /* scratch for products, kernel_bytes or more, and for attention (attend.c) */
    uint64_t prepared_pass;     /* the pass and stage that the inputs above were prepared for */
    const struct stage *prepared_stage;
};

/* Floats of the results that one thread computes at a time for an epilogue, small enough to stay in its cache: 128
 * weight rows for the default largest batch, more for smaller batches. Larger is better, since all activations are read
 * again for each such piece. (A prefill of 512 rows on a Granite Rapids with 64 and 128 weight rows, tokens/s: Q4_0 378
 * and 388, Q6_K 300 and 307; with AMX, Q4_0 554 and 582, Q6_K 389 and 391.) With many threads it is half as much, and
 * scratch is smaller, too: make_room() in setup.c. */
enum { MOST_RESULT_FLOATS = 65536 };

/* Up to this many rows every thread prepares the whole input for itself, which is cheaper than a barrier. */
enum { PRIVATE_ROWS = 4 };

/* How far the threads are with the adapters' products A x that they share when there are few rows, for one stage of the
 * current pass. */
struct shared_down {
    _Alignas(64) atomic_int next_unit;
    atomic_int done;
};

/* A tier's geometry, and how a pass's attention is divided into items, which is the same in all layers of a tier
 * (attend.c). */
struct attend_plan {
    struct pp_kv_layout kv;     /* of the tier's pages */
    int64_t window;             /* number of positions that a row attends to; 0: all */
    int64_t n_first;            /* with a window: rows also attend to this many leading positions, which fit in a
                                   chunk */
    int64_t top_k;              /* rows with more than top_k positions attend only to those picked; 0: to all */
    int64_t block;              /* positions that are picked together; 1: each is picked by itself */
    bool pooled;                /* all heads get the same blocks, and in addition the positions after the last whole
                                   block */
    int64_t n_local;            /* for an index: how many of the last blocks are always picked; 0: positions, or pooled
                                   blocks, are picked */
    int64_t stride;             /* rows also attend to compressed blocks of this many positions (in other tiers
                                   kv.stride); 0: they do not */
    bool chunked;               /* the window begins at a multiple of its length, instead of sliding */
    bool bidirectional;         /* the window extends as far after the row as before it */
    int64_t n_local_blocks;     /* rows attend to the last n_local_blocks pages, */
    int64_t vert_stride;        /* and to every vert_stride-th page before them; n_local_blocks 0: to all */
    int far_shift;              /* by how many pages a head's far pages precede those of the head before it */
    int group;                  /* query heads processed together: all that share a KV head, or 1/share of them */
    int share;                  /* groups per KV head: more than 1 if its query heads attend to different positions */
    float scale;                /* of scores */
    int tile_rows;              /* most rows of a tile */
    int *tiles;                 /* [n_tiles + 1]: the first row of each tile */
    int n_tiles;
    int n_splits;               /* items among which the chunks of a tile and KV head are divided */
    int64_t n_chunks;           /* chunks of the tile that attends to most */
    bool stores_apart;          /* a separate phase rotates and stores K and V, since tiles need each other's rows */
    atomic_int *left;           /* [n_head_kv, n_tiles]: splits that are not finished yet */
};

/* The positions that the index of a layer with sparse attention picks (pick.c). All layers use the same memory: each
 * index overwrites the picks of the one before. */
struct pick_plan {
    int64_t top_k;              /* 0: there is no index */
    int64_t block, n_local;     /* as in struct attend_plan */
    bool pooled;
    int64_t room;               /* most entries of a list */
    int64_t stride;             /* positions that share a key; 1: each has its own */
    int n_lists;                /* lists per row: one for each KV head that is picked for separately; else 1 */
    float *ones;                /* [heads of the index]: their weights, where all are 1 */
    int32_t *slots;             /* [max_rows, n_lists, room]: picks of the rows that do not see everything, ascending */
    bool any;                   /* the pass has such rows */
    int n_splits;               /* items among which a row's positions are divided */
    struct candidates *found;   /* [n_found, n_lists]: each item's candidates, if a row has several items */
    int n_found;
};

/* How the rows of a pass are routed to experts. Each pair of a row and an expert chosen for it gets a place: an index
 * into arrays that are sorted by expert, so that an expert's rows are consecutive. All layers use the same memory. */
struct routing {
    int n_places, n_active;
    int32_t *choice;            /* [max_rows, n_used]: the chosen experts, largest logit first; experts that share
                                   matrices are represented by the index of these. -1: nothing to compute, the weight
                                   was added to an earlier choice's or to idle_weight */
    float *weight;              /* [max_rows, n_used] */
    int32_t *place;             /* [max_rows, n_used]; -1 where the choice is -1 */
    float *idle_weight;         /* [max_rows]: sum of the weights of experts that return their input; or NULL */
    float *idle_sum;            /* [max_rows, idle_stride]: the weighted result of those experts */
    int64_t idle_stride;
    float *input_weight;        /* [places], if routing weights multiply inputs; `weight` is then 1 */
    int32_t *row;               /* [places]: the row of each */
    bool adapted;               /* some row has adapters for experts, */
    bool scaled;                /* and some of those scale the input of down matrices */
    float *lora;                /* [places, lora_width]: A x of gate and up, then of down; NULL: not needed yet */
    int64_t lora_width;
    pp_once *lowered;           /* [PP_EXPERT_KINDS, n_matrices]: whether A x of an active expert is computed */
    pp_once *ready;             /* [n_expert]: whether, for a single row, the input of an active expert's down matrix
                                   is ready */
    int32_t *active;            /* [n_expert]: the n_active experts that have rows */
    int32_t *first;             /* [n_expert + 1]: the first place of each active expert; then n_places */
    int32_t *count;             /* [n_expert] */
    uint8_t *region;            /* memory for the following arrays, in pages that nothing else uses */
    size_t region_bytes;
    struct pp_acts in, hidden;  /* [places]; hidden.f32: the result of gate and up */
    float *out;                 /* [places, out_stride]; overwrites in.f32 */
    int64_t out_stride;
};

struct pp_cpu {
    const struct pp_model *model;
    const struct pp_matmul_kernels *mm;
    const struct pp_bf16_kernels *bf16; /* NULL: activations of float weights stay float32 */
    int bf16_parts;             /* parts that activations are split into */
    int64_t bf16_stride, shared_bf16_stride; /* the latter of `shared`, for the stages that do not split in place */
    const struct pp_cpu_ops *ops;
    struct pp_pool *pool;
    int max_rows;
    float *by_lane;             /* [by_lane_floats]: a stage's input, arranged lane by lane by all threads */
    int64_t by_lane_floats;     /* 0: inputs are never arranged so */
    uint16_t *by_lane_panels;   /* [n threads, panel_numbers]: each thread's panel of weights for these products */
    int64_t panel_numbers;
    int64_t result_floats;      /* size of thread_scratch.results[]: at least one group of weight rows for max_rows */
    size_t kernel_bytes;        /* size of each thread's scratch for products */

    struct stage *stages;
    int n_stages;
    int hidden_slot, logits_slot;

    int n_slots;
    float **slots;              /* [n_slots]: float [max_rows, stride]; after SELECT [max_outputs, stride] */
    float *arena;               /* memory of the slots before SELECT; slots that are never live together overlap */
    size_t arena_bytes;
    float *outputs;             /* memory of the slots after SELECT, if they do not fit in the arena; or NULL */
    float *attention_room;      /* [attention_floats]: a part of the arena that is free while attention runs, for the
                                   partial sums [KV head][tile][chunk] of items that share a tile's chunks */
    float *own_room;            /* separate memory for attention_room, if the arena has too little; or NULL */
    int64_t attention_floats;
    int64_t *strides;           /* [n_slots] */
    int max_outputs;

    int64_t acts_width;         /* width of the widest input of a stage, rounded up to a multiple of 64 */
    int64_t normalised_stride;  /* the same for the inputs that a norm is applied to */
    int64_t shared_stride;      /* the same for `shared`, without the stages that quantise in place */
    struct thread_scratch shared; /* the current stage's prepared input when there are many rows: arrays of max_rows */
    struct thread_scratch *threads; /* [n threads] */
    struct attend_plan attend[PP_MAX_TIERS]; /* for tiers without attention, only the geometry */
    int n_tiers;
    struct pick_plan pick;
    struct experts *experts;    /* [plan.n_experts] */
    struct routing routing;
    int64_t replaced_floats;    /* two whole rows, or 16 results for each row of the largest batch */
    int64_t lora_width;         /* width of `lora` rows: the sum of the ranks of a row's adapters for one stage */
    int64_t head_width;         /* the widest input or output of heads with their own matrices (heads.c) */
    struct shared_down *down;   /* [n_stages] */
    const void **listed_begins; /* [n threads]: `begins` of the output projection, if only some logits are needed */

    struct rope {
        int64_t dim;            /* values of a head that are rotated */
        float *inv_freq;        /* [dim / 2] */
        float magnitude;
        float *cos_sin;         /* [max_rows, dim] */
    } ropes[2];                 /* the second for local_rope layers, if their frequencies differ */
    int n_ropes;

    struct pp_weights *weights;
    struct pp_imatrix *imatrix; /* accumulates inputs; or NULL */
    void **owned;               /* [n_owned]: converted norms and biases */
    int n_owned, cap_owned;
    uint64_t memory;            /* bytes allocated, for pp_cpu_memory */
    struct pp_cpu_profile *profile; /* NULL: off; profile.c */

    /* -- the current pass, which its work items may read -- */
    const struct pp_batch *batch;
    const struct pp_cancel *cancel;
    uint64_t pass;              /* its number */
    struct pp_stream_choice stream; /* which of ways[] it reads weights in: ways[stream.way] */
    enum pp_weights_way ways[PP_STREAM_CHOICES]; /* [stream.n_ways], the default first */
    atomic_bool abandoned;      /* cancelled, or a weight is bad: items that have not begun are skipped */
    struct part {
        struct stage *stage;
        int phase;
        int m;                  /* rows that the stage processes */
    } *parts;                   /* [MAX_PHASES * n_stages] */
    struct pp_pool_part *work;  /* [MAX_PHASES * n_stages]: the items of each part */
    int n_parts;
};

/* n elements of this size, rounded up to an odd number of cache lines. Used as the stride of activations: rows at a
 * multiple of 4096 bytes would compete for the same few sets of the L1 cache, which costs a product of many rows 5 to
 * 20 %. */
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

/* Whether weights of this type are multiplied by activations that are split into bfloat16 parts. */
static inline bool pp_cpu_splits(const struct pp_cpu *c, uint32_t type)
{
    return c->bf16_parts && (type == PP_TYPE_BF16 || (type == PP_TYPE_F16 && c->bf16_parts > 1));
}

/* Whether products of many activation rows with weights of this type read them arranged lane by lane (matmul.h). */
static inline bool pp_cpu_arranges(const struct pp_cpu *c, uint32_t type)
{
    return c->mm->by_lane.from && (type == PP_TYPE_BF16 || type == PP_TYPE_F16) && !pp_cpu_splits(c, type);
}

/* The slot that this one is a part of, or the slot itself. */
static inline int whole_slot(const struct pp_cpu *c, int slot)
{
    return slot < 0 ? slot : c->model->plan.slots[slot].base;
}

static inline float *slot_row(const struct pp_cpu *c, int slot, int64_t row)
{
    return c->slots[slot] + row * c->strides[slot];
}

/* Floats of a vector padded to whole kernel vectors, of 16 floats at most. */
static inline int64_t pp_cpu_padded(int64_t n)
{
    return (n + 15) / 16 * 16;
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

/* How many consecutive rows of [first, end), from the first on, have the same set of adapters. */
static inline int pp_cpu_rows_alike(const struct pp_cpu *c, const struct stage *s, int first, int end)
{
    const struct pp_adapter_set *set = batch_row(c, s, first)->adapters;
    int n = 1;
    while (first + n < end && batch_row(c, s, first + n)->adapters == set)
        n++;
    return n;
}

/* One kind of matrix of all experts: [n_matrices], or NULL where they have none of that kind. */
static inline struct projection *expert_matrices(const struct experts *x, enum pp_expert_kind kind)
{
    struct projection *const kinds[PP_EXPERT_KINDS] = {
        [PP_EXPERT_GATE] = x->gate, [PP_EXPERT_UP] = x->up, [PP_EXPERT_DOWN] = x->down};
    return kinds[kind];
}

/* Below, functions that return false have run out of memory, unless the comment says otherwise. */

/* slots.c: allocates the slots. */
bool pp_cpu_slots_new(struct pp_cpu *c);
void pp_cpu_slots_free(struct pp_cpu *c);
/* Makes room for n output rows in the slots after SELECT. */
bool pp_cpu_slots_outputs(struct pp_cpu *c, int n);

/* lower.c */
enum pp_code pp_cpu_lower(struct pp_cpu *c, const struct pp_cpu_options *opt, pp_progress *progress, void *user,
                          struct pp_error *err);
/* Call before a kernel reads rows [row0, row1) of a projection: packs them if need be. Any thread. false: the pass is
 * abandoned. */
bool pp_cpu_weight_ready(struct pp_cpu *c, const struct projection *p, int64_t row0, int64_t row1);

/* attend.c: allocates what attention needs, the threads' scratch included; pp_cpu_attend_plan() divides a pass into
 * items before its stages run. */
bool pp_cpu_attend_new(struct pp_cpu *c);
void pp_cpu_attend_free(struct pp_cpu *c);
void pp_cpu_attend_plan(struct pp_cpu *c);

/* How many positions a row could attend to if there were no windows and no picks. */
static inline int64_t pp_cpu_row_length(const struct pp_batch_row *r)
{
    return r->tree_mask ? r->tree_base + __builtin_popcountll(r->tree_mask) : r->sees;
}

/* The first of the values of a tier's key that RoPE rotates. */
static inline int64_t pp_cpu_rotated_from(const struct pp_hparams *hp, const struct pp_kv_layout *kv)
{
    return hp->compressed || hp->kv_lora_rank ? kv->head_dim - hp->rope_dim : 0;
}

/* pick.c: the same for the indexes of sparse attention. */
bool pp_cpu_pick_new(struct pp_cpu *c);
void pp_cpu_pick_free(struct pp_cpu *c);
void pp_cpu_pick_plan(struct pp_cpu *c);

/* streams.c: runs MATCH, SPARSEN, RECALL and the operations on streams for one row. x, x2, y: its rows of the slots in,
 * in2 and out. */
void pp_cpu_stream_op(const struct pp_cpu *c, const struct row_op *r, const float *x, const float *x2, float *y);

/* forward.c: the cosines and sines of a position, interleaved, float [rope->dim]. */
void pp_cpu_rope_at(const struct rope *rope, int64_t position, float *cos_sin);
/* forward.c: normalises n values. y may be x. */
void pp_cpu_norm(const struct pp_cpu *c, const struct norm *norm, const float *x, int64_t n, float *y);
/* The norm of one head. */
static inline struct norm pp_cpu_norm_of_head(const struct norm *norm, int head)
{
    struct norm own = *norm;
    own.weight += head * norm->stride;
    own.bias = norm->bias ? norm->bias + head * norm->stride : NULL;
    return own;
}

/* setup.c: zeroed memory, in huge pages if it is large, counted in c->memory. The caller frees it with pp_free. NULL:
 * out of memory. */
void *pp_cpu_memory_take(struct pp_cpu *c, int64_t count, size_t size);

/* experts.c: pp_cpu_experts_add() registers the weights of a mixture; pp_cpu_experts_new() allocates the memory that
 * mixtures use, sized for the largest. */
enum pp_code pp_cpu_experts_add(struct pp_cpu *c, int index, struct pp_error *err);
void pp_cpu_experts_point(struct pp_cpu *c); /* sets the matrices' data pointers */
bool pp_cpu_experts_new(struct pp_cpu *c);
void pp_cpu_experts_free(struct pp_cpu *c);
/* route.c: chooses a row's experts and their weights from its router logits. Threads may process different rows at the
 * same time. */
void pp_cpu_route_row(const struct pp_cpu *c, const struct stage *s, int row);
/* Assigns the places of all m rows, after their experts are chosen. One thread. */
void pp_cpu_route_places(struct pp_cpu *c, const struct stage *s, int m);
/* experts_adapt.c: whether a row, or any of m rows, has adapters for experts. pp_cpu_experts_reserve() makes room for
 * the products A x of a set. */
bool pp_cpu_experts_row_adapted(const struct pp_cpu *c, const struct stage *s, int row);
bool pp_cpu_experts_adapted(const struct pp_cpu *c, const struct stage *s, int m);
bool pp_cpu_experts_reserve(struct pp_cpu *c, const struct pp_adapter_set *set);
/* Whether any of m rows, or the row of a place, has adapters that scale the input of down matrices. */
bool pp_cpu_experts_scaled(const struct pp_cpu *c, const struct stage *s, int m);
bool pp_cpu_experts_place_scaled(const struct pp_cpu *c, const struct stage *s, int place);
/* Computes A x of the down matrix for a place, whose input must be ready, and then scales that input in place. */
void pp_cpu_experts_scale(const struct pp_cpu *c, const struct stage *s, int place, void *kernel);
/* Marks all products A x as not computed. To be called before a mixture's products. */
void pp_cpu_experts_begin_adapt(const struct pp_cpu *c, const struct stage *s);
/* Computes A x for all rows of the active-th active expert, once: the first thread to call it computes it. */
void pp_cpu_experts_lower(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int active,
                          void *kernel);
/* Does what pp_cpu_adapt does, for the rows of that expert, whose A x must have been computed. y[i * stride + r] is the
 * result of its i-th row for weight row r. */
void pp_cpu_experts_adapt(const struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int active,
                          int64_t row0, int64_t row1, float *y, int64_t stride);
/* Below, for a kind of stage X, pp_cpu_X_add registers the stage's weights, X_items returns the number of items for m
 * rows, X_item runs one item, and X_at_once returns how many items a thread may take at a time. First, heads.c: */
enum pp_code pp_cpu_heads_add(struct pp_cpu *c, struct stage *s, const struct pp_heads *heads, struct pp_error *err);
bool pp_cpu_heads_new(struct pp_cpu *c);
bool pp_cpu_heads_reserve(struct pp_cpu *c, const struct pp_adapter_set *set);
void pp_cpu_heads_free(struct pp_cpu *c);
void pp_cpu_heads_item(struct pp_cpu *c, const struct stage *s, int m, int head, int thread);
int pp_cpu_heads_at_once(const struct stage *s, int m);
/* convolve.c */
enum pp_code pp_cpu_convolve_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
int pp_cpu_convolve_items(const struct stage *s, int m);
void pp_cpu_convolve_item(struct pp_cpu *c, const struct stage *s, int m, int item);
/* pool_keys.c: STAGE_POOL */
enum pp_code pp_cpu_pool_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
int pp_cpu_pool_items(const struct stage *s, int m);
void pp_cpu_pool_item(struct pp_cpu *c, const struct stage *s, int m, int item);
/* convolve.c: finds the cached rows of the last n positions, the oldest first, the row's own last; NULL for those
 * before the sequence's first position. */
void pp_cpu_rows_before(const struct pp_cpu *c, const struct stage *s, const struct pp_batch_row *r, int n,
                        float *at[PP_MAX_TAPS]);
/* compress.c: STAGE_COMPRESS and STAGE_KEEP */
enum pp_code pp_cpu_compress_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
void pp_cpu_keep_item(struct pp_cpu *c, const struct stage *s, int row);
/* If a row is the last of a block in this tier, rotates the block's key, float [head_dim], by the block's position and
 * caches it; otherwise does nothing. at: the first value that is rotated; halves: as in struct stage. */
void pp_cpu_keep_key(const struct pp_cpu *c, int tier, int layer, const struct rope *rope, int64_t at, bool neox,
                     int row, float *key);
/* recur.c. pp_cpu_recur_bytes: the size of an item's scratch; 0 for tiers of other kinds. */
enum pp_code pp_cpu_recur_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
size_t pp_cpu_recur_bytes(const struct pp_kv_layout *kv);
/* Converts a tensor with one number for each head, a vector or a matrix of one column, to floats. */
const float *pp_cpu_recur_numbers(struct pp_cpu *c, const struct pp_tensor *t, struct pp_error *err);
/* Makes unit_key and unit_query of a stage whose keys have n values. */
enum pp_code pp_cpu_recur_units(struct pp_cpu *c, struct stage *s, int n, struct pp_error *err);
extern const float pp_cpu_recur_unit_eps; /* added to their squared length */
/* scan.c */
enum pp_code pp_cpu_scan_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err);
int pp_cpu_scan_items(const struct stage *s);
int pp_cpu_scan_at_once(int m);
void pp_cpu_scan_item(struct pp_cpu *c, const struct stage *s, int m, int item);
/* lower.c: allocates zeroed memory, 64-byte aligned, owned by c. NULL: out of memory. */
void *pp_cpu_memory_keep(struct pp_cpu *c, int64_t count, size_t size);
/* lower.c: converts the rows of a tensor to floats, each row padded to whole kernel vectors; owned by c. NULL: *err is
 * set. */
const float *pp_cpu_float_vector(struct pp_cpu *c, const struct pp_tensor *t, struct pp_error *err);
/* count.c: finds where to accumulate the inputs of a projection, the i-th of n in tensor w, for the importance matrix;
 * does nothing without one. */
enum pp_code pp_cpu_count_begin(struct pp_cpu *c, const struct pp_tensor *w, int i, int n, struct projection *p,
                                struct pp_error *err);
/* Accumulates m rows of the input that n projections share. Once per pass, by one thread. */
void pp_cpu_count(const struct pp_acts *acts, int m, const struct projection *const *p, int n);
/* adapt.c: computes A x of n rows for one adapter and matrix, in the form that add_low_rank reads: out [n, stride]. */
void pp_cpu_multiply_a(const struct pp_cpu *c, const struct pp_lora_target *t, const struct pp_acts *x, int n,
                       float *out, int64_t stride, void *kernel);
/* Multiplies the input [n] of a matrix by the scales of a set's IA3s; set may be NULL. */
void pp_cpu_scale_input(const struct pp_adapter_set *set, int linear, int64_t n, float *x);
/* Completes outputs row0 .. row1 - 1 of W x for consecutive rows with the same set (or NULL): adds the adapters'
 * products and the bias. rows.down: what pp_cpu_multiply_a computed for these rows, the set's adapters one after the
 * other. */
void pp_cpu_adapt(const struct pp_cpu *c, const struct projection *p, const struct pp_adapter_set *set,
                  struct pp_low_rank_rows rows, int64_t row0, int64_t row1);
/* project.c: the norm, of n values, for a row with this set, whose adapters may replace its vectors. room: scratch for
 * twice n floats, n rounded up to 16. */
struct norm pp_cpu_norm_of(const struct norm *norm, const struct pp_adapter_set *set, int64_t n, float *room);

/* A pp_cpu_phases_fn says how many items each phase of a stage has for m rows of the current batch (0: the phase is
 * left out); a pp_cpu_item_fn runs one of them with the scratch of this thread. */
typedef void pp_cpu_phases_fn(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES]);
typedef void pp_cpu_item_fn(struct pp_cpu *c, const struct stage *s, int m, int phase, int item, int thread);
pp_cpu_phases_fn pp_cpu_project_phases, pp_cpu_attend_phases, pp_cpu_experts_phases; /* project.c, attend.c, ... */
pp_cpu_phases_fn pp_cpu_recur_phases, pp_cpu_pick_phases, pp_cpu_compress_phases;
pp_cpu_item_fn pp_cpu_compress_item, pp_cpu_attend_item, pp_cpu_recur_item, pp_cpu_pick_item;
/* Items of experts and of projections are small, so that a thread takes several consecutive ones at once, first .. end
 * - 1, for at most about 2 ms. */
int pp_cpu_experts_at_once(const struct stage *s, int m, int phase);
void pp_cpu_experts_items(struct pp_cpu *c, const struct stage *s, int m, int phase, int first, int end, int thread);
int pp_cpu_project_at_once(const struct pp_cpu *c, const struct stage *s, int m, int phase);
void pp_cpu_project_items(struct pp_cpu *c, const struct stage *s, int m, int phase, int first, int end, int thread);
/* Finds where each thread's share of every stage's weights begins. */
bool pp_cpu_project_begins(struct pp_cpu *c);
/* `begins` of a stage for this pass of m rows, which may compute only some logits. */
const void **pp_cpu_project_begins_at(struct pp_cpu *c, const struct stage *s, int m);
/* After a pass that computes only some logits: sets the others to -INFINITY again, as later stages may have changed
 * them. */
void pp_cpu_project_silence(const struct pp_cpu *c);
/* Marks the shared products A x as not computed. To be called before each pass. */
void pp_cpu_project_reset(struct pp_cpu *c);
/* Puts the weights of all stages on the NUMA nodes of the threads that read them. */
void pp_cpu_place_weights(struct pp_cpu *c);
/* Runs work items of the current pass, for pp_pool_run_parts; arg: the struct pp_cpu. */
void pp_cpu_run_items(void *arg, int part_index, int first, int end, int thread);
/* Runs the parts that the calling thread does alone, by `run`, before it wakes the others: a few embeddings take less
 * time than a barrier. */
void pp_cpu_begin_alone(struct pp_cpu *c, pp_pool_range_fn *run);

#endif
