/* lora.h - adapters: their arithmetic, in memory and from files. Private to the engine.
 *
 * LoRA (arXiv 2106.09685) is part of the projection: y = W x + b + sum over adapters k of scale_k * B_k (A_k x). With
 * adapters of other kinds
 *
 *   y = o * (g * W (i * x) + b) + sum over k of g_k scale_k B_k (A_k x) + sum over k of strength_k bias_k
 *
 * where for each output g = 1 + sum over the DoRAs (arXiv 2402.09353) of (g_k - 1), g_k = 1 if k is none, else
 *
 *   g_k = (|W| + strength_k (magnitude - |W|)) / |W + strength_k scale B A|        (norms of the output's row;
 *                                                                                   lora_gains.c)
 *
 * and o and i are products over the IA3s (arXiv 2205.05638) of 1 + strength_k (their scale - 1).
 *
 * Where adapters replace W by a matrix W_k of their own (PEFT's modules_to_save), W above stands for
 *
 *   W + sum over k of strength_k (W_k - W) = (1 - sum of strength_k) W + sum of strength_k W_k
 *
 * so that at strength 1 it is exactly W_k. The same holds for norms and for the embedding table.
 *
 * An IA3 on an input that other matrices read, too, is such a W_k: W with its columns scaled. Two of those would add
 * instead of multiply, as would one and another replacement of W: such sets are refused (pp_adapter_set_check).
 *
 * The matrices per head of latent attention can have LoRAs, DoRAs, and IA3s of outputs only, which files have for both
 * matrices of a head in one (lora_heads.c). */
#ifndef PP_ENGINE_LORA_H
#define PP_ENGINE_LORA_H

#include <stdatomic.h>

#include "engine/cpu/matmul.h"
#include "engine/cpu/ops.h"
#include "engine/engine.h"

/* A DoRA's numbers for each output: magnitude / |W| - 1; 2 scale <W, BA> / |W|^2; scale^2 |BA|^2 / |W|^2. */
enum { PP_DORA_NUMBERS = 3 };

/* What an adapter does to one matrix. A and B are held in Q8_0 if W is multiplied by quantised activations, else (and
 * for large models always) in F16, or as they are stored in the file (pp_adapter_load_exact). */
struct pp_lora_target {
    int rank;              /* 0: this projection is not changed */
    float scale;           /* alpha / rank */
    struct pp_matrix a;    /* [rank, n_in] */
    struct pp_low_rank b;  /* [n_out, rank] */
    void *a_data, *b_data; /* A's and B's data, aligned to 64 bytes, in the adapter's arena */
    size_t a_bytes, b_bytes;
    size_t arena_at[2];    /* offsets of A and B in the arena */
    bool in_file;          /* the file has something for this target */
    struct pp_matrix w;    /* replaces W [n_out, n_in]; data NULL: none. Q8_0 if W is multiplied by quantised
                              activations, else as it is stored */
    void *w_data;
    size_t w_bytes;
    bool w_scaled;         /* w is W with scaled columns: an IA3 */
    bool special;          /* not a plain LoRA: some of the fields below are set */
    float *bias;           /* [n_out], added times the strength */
    float *input;          /* IA3: scale - 1 [n_in] */
    float *output;         /* IA3: scale - 1 [n_out] */
    float *dora;           /* [PP_DORA_NUMBERS][n_out] */
    size_t gains;          /* index of its g_k [n_out] in the adapter's array of gains (lora_gains.c) */
};

struct pp_replaced_token {
    int32_t id;
    int row;
};

/* x += strength * scale * B a[token], x being a token's embedding. A DoRA's gain g multiplies x and what is added, as
 * in projections. PEFT's DoRA has a gain for each value of x, MLX's one for each token. */
struct pp_lora_embedding {
    int rank;              /* 0: embeddings are not changed */
    float scale;
    float *a;              /* [n_vocab, rank] */
    struct pp_low_rank b;  /* [n_embd, rank] */
    void *b_data;
    size_t a_bytes, b_bytes;
    float *dora;           /* [PP_DORA_NUMBERS][n_gains]; NULL: it is no DoRA */
    int64_t n_gains;       /* n_embd, or with by_token n_vocab */
    bool by_token;
    size_t gains;          /* index of its gains in the adapter's array */
    uint32_t table_type;
    void *table;           /* replaces the model's [n_vocab, n_embd], in table_type; or NULL */
    int n_tokens;          /* or replaces the rows of only these tokens: */
    struct pp_replaced_token *tokens; /* [n_tokens], ascending by id */
    float *token_rows;     /* [n_tokens, n_embd] */
};

/* Replaces a norm's vectors [n]; NULL: the model's own. */
struct pp_lora_norm {
    float *weight, *bias;
};

/* What an adapter does to the matrices of a layer's heads. Either A or B differs for each head; all heads share the
 * other. F16, or F32 if values are too large for F16 or if A and B are held as they are stored. */
struct pp_lora_heads {
    int rank;               /* 0: they are not changed */
    float scale;            /* alpha / rank */
    int n;                  /* heads */
    struct pp_matrix *a;    /* [n], each [rank, n_in] */
    struct pp_low_rank *b;  /* [n], each [n_out, rank] */
    uint8_t *data;          /* the data of A and B, aligned to 64 bytes */
    size_t bytes;
    bool transposed;        /* keys: the model uses the transpose, so that W's outputs are these matrices' inputs */
    bool scales;            /* an IA3 of W's outputs: its gains multiply instead of adding up; A and B are zeros */
    float *dora;            /* [n][PP_DORA_NUMBERS][outputs of W]; NULL: it is no DoRA */
    size_t gains;           /* index of its gains [n][outputs of W] in the adapter's array */
};

struct pp_adapter {
    const struct pp_model *model;   /* the model that it was loaded for; target indices are those of this model's
                                       plan */
    struct pp_adapter_info info;
    struct pp_lora_target *targets; /* [n_targets], by the index of pp_plan_target */
    int n_targets;                  /* the model's linears, or also its experts' matrices */
    bool of_experts;                /* n_targets includes the experts' matrices */
    bool scales_experts;            /* it scales the input of some experts' down matrices */
    uint8_t *arena;                 /* A and B of all targets, in the order in which a pass reads them */
    struct pp_lora_heads *heads;    /* [n_heads of the model's plan]; NULL: it changes none */
    size_t n_gains;                 /* outputs of all matrices that it is a DoRA of */
    void *mapping;                  /* the mapping that holds the arena; NULL: the arena was allocated */
    size_t mapped_bytes;
    struct pp_lora_embedding embedding;
    struct pp_lora_norm *norms;     /* [n_ops of the model's plan]; NULL: it has none */
    struct pp_sha256 identity;      /* of all targets: goes into the KV key */
    char *path, *name, *target_names, *base;
    atomic_bool acts;               /* some target changes something */
    int32_t *invocation;            /* [n_invocation]: acts from the last occurrence of these tokens in the prompt */
    int n_invocation;               /* 0: acts everywhere */
};

/* The adapters of a row. Immutable while a step runs. */
struct pp_adapter_set {
    int n;
    struct pp_adapter_use use[PP_MAX_ADAPTERS];
    const float *gains[PP_MAX_ADAPTERS]; /* [n_gains] of a DoRA at its strength; NULL: it is no DoRA */
};

/* lora_gains.c: the gains g_k of an engine's DoRAs, by adapter and strength, with reference counts; `all` is NULL at
 * first. On the engine's thread. */
struct pp_gains;
void pp_lora_place_gains(struct pp_adapter *a); /* once the whole adapter is loaded */
/* Computes the gains that do not exist yet, takes references and sets set->gains, valid until the set is passed to
 * pp_gains_release. PP_ERR_NOMEM: the set then has none. */
enum pp_code pp_gains_take(struct pp_gains **all, struct pp_adapter_set *set, struct pp_error *err);
/* Takes references for a copy of a set, which must be released as well. */
void pp_gains_share(struct pp_gains *all, const struct pp_adapter_set *set);
void pp_gains_release(struct pp_gains **all, struct pp_adapter_set *set);
int pp_gains_n(const struct pp_gains *all); /* how many entries there are */

/* What an adapter does to the target of this index. The rank is 0 if that is an expert's matrix and the adapter changes
 * none of those. */
extern const struct pp_lora_target pp_lora_no_target;
static inline const struct pp_lora_target *pp_adapter_target_at(const struct pp_adapter *a, int linear)
{
    return linear < a->n_targets ? &a->targets[linear] : &pp_lora_no_target;
}

/* Floats needed for A x of all adapters of a set, for one row of one projection; 0: none changes it. */
int pp_adapter_set_room(const struct pp_adapter_set *set, int linear);

/* What an adapter does to the heads' matrices, by their index in the plan. */
extern const struct pp_lora_heads pp_lora_no_heads;
static inline const struct pp_lora_heads *pp_adapter_heads_at(const struct pp_adapter *a, int heads)
{
    return a->heads ? &a->heads[heads] : &pp_lora_no_heads;
}

/* Floats needed for A x of any one adapter of a set, for one row of one of these heads; 0: none changes them. */
int pp_adapter_set_heads_room(const struct pp_adapter_set *set, int heads);
bool pp_adapter_set_heads_dora(const struct pp_adapter_set *set); /* an adapter of the set is a DoRA of some heads */
/* The index by which adapters know these matrices: that of the first entry of the plan that uses the same tensor. */
int pp_lora_first_heads(const struct pp_plan *plan, const struct pp_heads *heads);

/* The advice in errors about changes that can only be merged into the weights. */
#define PP_LORA_MERGE "let PEFT put it into the model (merge_and_unload, save_pretrained), and use that folder"

/* --- shared by the files that load and run adapters ------------------------------------------------------------ */

struct pp_adapter_file;
struct pp_adapter_target;

/* lora_load.c: loads everything that the file changes. */
enum pp_code pp_lora_load_targets(struct pp_adapter *a, const struct pp_adapter_file *f, bool exact,
                                  struct pp_error *err);

/* lora.c: loads an adapter from an open file that is part of the model's own. */
enum pp_code pp_adapter_load_file(const struct pp_model *m, const struct pp_adapter_file *f, struct pp_adapter **out,
                                  struct pp_error *err);

/* lora_hold.c: converts A and B to floats, and to the layouts of the kernels. */

/* Work space of a load, which grows as needed and is reused for one matrix after another. Zeroed at first. */
enum { PP_LORA_ROOMS = 9 };
struct pp_lora_room {
    void *parts[PP_LORA_ROOMS];
    size_t bytes[PP_LORA_ROOMS];
};
void pp_lora_room_free(struct pp_lora_room *r);

/* The order of a matrix's outputs (or inputs) in the file: element i is the index in the file of our output i
 * (pp_adapter_outputs). NULL: the same order. */
typedef const int32_t *pp_lora_order;

static inline int64_t pp_lora_file_row(pp_lora_order order, int64_t row)
{
    return order ? order[row] : row;
}

/* A [rank, n_in] and B [n_out, rank] as floats, in the room, and the largest absolute value of each. */
struct pp_lora_halves {
    const float *values[2];
    float most[2];
};
/* The orders of a matrix's outputs and inputs in the file. */
struct pp_lora_orders {
    pp_lora_order outputs, inputs;
};
/* Reads A and B of a matrix with n_out outputs. Refuses NaN and infinity, which would spoil every answer. */
enum pp_code pp_lora_read(const struct pp_adapter *a, const struct pp_adapter_target *t, int64_t n_out,
                          const struct pp_lora_orders *orders, struct pp_lora_room *room, struct pp_lora_halves *out,
                          struct pp_error *err);
/* Finds the largest absolute values of halves that were computed from the file's, and refuses NaN and infinity, too.
 * name: of the matrix, for the error. */
enum pp_code pp_lora_find_largest(const struct pp_adapter *a, const char *name, int64_t n_a, int64_t n_b,
                                  struct pp_lora_halves *halves, struct pp_error *err);
/* Reserves n_a and n_b floats for the halves; false: out of memory. */
bool pp_lora_halves_room(struct pp_lora_room *room, int64_t n_a, int64_t n_b, float *halves[2]);
int32_t *pp_lora_order_room(struct pp_lora_room *room, int64_t n); /* for an order; NULL: out of memory */
/* A file's tensor as floats [ne[1], ne[0]], or transposed as [ne[0], ne[1]], in the file's order. Refuses NaN and
 * infinity. pp_free. */
enum pp_code pp_lora_floats(const struct pp_adapter *a, const struct pp_tensor *t, bool transposed, float **out,
                            struct pp_error *err);

/* Bytes that A [rank, n_in] (half 0) or B [n_out, rank] (half 1) of W takes, rounded up to whole cache lines. */
size_t pp_lora_held_bytes(const struct pp_tensor *w, int rank, uint32_t type, int half);
enum pp_code pp_lora_arena_new(struct pp_adapter *a, size_t bytes, struct pp_error *err);
void pp_lora_arena_free(struct pp_adapter *a);
/* Converts the halves to what the kernels read, and stores them at the target's place in the arena. */
enum pp_code pp_lora_hold(struct pp_adapter *a, int linear, uint32_t type, const struct pp_lora_halves *from,
                          struct pp_lora_room *room, struct pp_error *err);
/* Lays out B [n_out, rank] as add_low_rank reads it: blocks of pp_low_rank_block_bytes, written to `to`, which becomes
 * the data of *out. The type and rank are those of *out. most: the largest of |B|. */
enum pp_code pp_lora_lay_out_b(const float *b, int64_t n_out, struct pp_low_rank *out, uint8_t *to, float most,
                               struct pp_lora_room *room, struct pp_error *err);
/* Quantises a row of n floats to Q8_0 with the kernels. Work space: q [n], aligned to 64 bytes; d, sum [n / 32]. */
void pp_lora_q8_row(const float *x, int64_t n, int8_t *q, float *d, int32_t *sum, uint8_t *to);

/* Loads what a target changes besides its A and B (`halves`, if its rank is not 0): biases, IA3, DoRA. The target's
 * rank and scale must be set already. order: of the outputs in the file, or NULL. A DoRA needs all of W, which is read
 * and multiplied by A. */
enum pp_code pp_lora_load_kinds(struct pp_adapter *a, int linear, const struct pp_adapter_target *t,
                                pp_lora_order order, const struct pp_lora_halves *halves,
                                struct pp_error *err);
/* The same for a matrix of which several targets change parts; halves: of the whole matrix, if its rank is not 0. */
struct pp_join;
struct pp_join_way;
enum pp_code pp_lora_load_joined_kinds(struct pp_adapter *a, int linear, const struct pp_join *join,
                                       const struct pp_join_way *way, const struct pp_lora_halves *halves,
                                       struct pp_error *err);
/* For DoRA: G = A A^T [rank, rank]; b^T G b for a row b of B; and the numbers of output r, from |W|^2, <W, BA> and
 * |BA|^2 of its row. The rank is at most PP_DORA_MAX_RANK, as there must be memory for its square. */
enum { PP_DORA_MAX_RANK = 1024 };
void pp_lora_gram(const float *a, int rank, int64_t n, double *gram);
double pp_lora_gram_norm(const float *b, const double *gram, int rank);
struct pp_dora_row {
    double square, mixed, low_rank;
    double scale; /* alpha / rank */
    float magnitude;
};
void pp_lora_dora_numbers(const struct pp_dora_row *row, int64_t n_out, int64_t r, float *dora);
/* Whether none of these (bias, IA3, DoRA) changes anything. A DoRA may still do so by its A and B. */
bool pp_lora_kinds_idle(const struct pp_lora_target *t, int64_t n_in, int64_t n_out);
bool pp_lora_dora_idle(const float *dora, int64_t n_out); /* NULL: it is none */
void pp_lora_free_kinds(struct pp_lora_target *t);
/* lora_replaced.c: tensors that replace a matrix, a norm or the embedding table. Tensors equal to the base model's are
 * skipped. PP_ERR_MISMATCH: the model has no such tensor, or its shape differs. */
enum pp_code pp_lora_load_matrix(struct pp_adapter *a, int linear, const struct pp_adapter_target *t,
                                 pp_lora_order order, struct pp_error *err);
enum pp_code pp_lora_load_norm(struct pp_adapter *a, const struct pp_adapter_target *t, struct pp_error *err);
const struct pp_tensor *pp_lora_table(const struct pp_plan *plan); /* the table that tokens are looked up in, or NULL */
enum pp_code pp_lora_load_table(struct pp_adapter *a, const struct pp_adapter_target *t, struct pp_error *err);
/* Replaces W by W with its columns times 1 + scales [n_in]: an IA3 of an input that other matrices read, too. */
enum pp_code pp_lora_scale_columns(struct pp_adapter *a, int linear, const float *scales, struct pp_error *err);
void pp_lora_free_replaced(struct pp_adapter *a);
void pp_lora_hash_replaced(const struct pp_adapter *a, struct pp_sha256_stream *s);
/* Whether an adapter of the set replaces some tensor of the model. */
bool pp_adapter_set_replaces(const struct pp_adapter_set *set);
void pp_lora_note_places(struct pp_adapter *a); /* notes replaced matrices in its info, once all is loaded */
/* PP_ERR_UNSUPPORTED: two adapters of the set replace the same matrix, at least one of them by W with scaled columns,
 * so that their changes cannot be added. */
enum pp_code pp_adapter_set_check(const struct pp_adapter_set *set, struct pp_error *err);

/* lora_heads.c: in files, latent attention has one matrix with both the keys' and the values' part of each head. The
 * indices of the two in the plan: */
struct pp_lora_heads_at {
    int keys, values;
};
/* false: the name is not that of such a matrix, or the model has no matrix of the name. */
bool pp_lora_find_heads(const struct pp_plan *plan, const char *name, struct pp_lora_heads_at *at);
/* Checks a target's shape against the model's, and notes its rank and scale. PP_ERR_UNSUPPORTED: it is a kind of change
 * that heads cannot have. On one thread. */
enum pp_code pp_lora_list_heads(struct pp_adapter *a, const struct pp_adapter_target *t,
                                const struct pp_lora_heads_at *at, struct pp_error *err);
/* Reads and converts a target that was listed. Several threads may do this at once, each for another target. */
enum pp_code pp_lora_load_heads(struct pp_adapter *a, const struct pp_adapter_target *t,
                                const struct pp_lora_heads_at *at, bool exact, struct pp_lora_room *room,
                                struct pp_error *err);
void pp_lora_free_heads(struct pp_adapter *a);
void pp_lora_hash_heads(const struct pp_adapter *a, struct pp_sha256_stream *s); /* goes into its identity */

/* lora_tokens.c: rows that replace those of the embedding table. table: the model's, or NULL. */
enum pp_code pp_lora_load_tokens(struct pp_adapter *a, const struct pp_adapter_target *t, const struct pp_tensor *table,
                                 struct pp_error *err);
/* The row that replaces a token's embedding; NULL: it is not replaced. */
const float *pp_lora_token_row(const struct pp_lora_embedding *e, int32_t token, int64_t width);
/* Whether the output matrix is the embedding table, or a copy that the file stores as well, perhaps in another type. */
bool pp_lora_is_tied(const struct pp_tensor *table, const struct pp_tensor *w);
/* For rows of W, the output matrix: checks that they can be replaced; computes the A and B that replace them. */
enum pp_code pp_lora_check_output_tokens(const struct pp_adapter *a, const struct pp_adapter_target *t,
                                         const struct pp_tensor *w, struct pp_error *err);
enum pp_code pp_lora_token_halves(const struct pp_adapter *a, const struct pp_adapter_target *t,
                                  const struct pp_tensor *w, struct pp_lora_room *room, struct pp_lora_halves *out,
                                  struct pp_error *err);

/* Loads a LoRA or DoRA of the embeddings. A and B are held in F32, since a pass reads the rows of few tokens only. */
enum pp_code pp_lora_load_embedding(struct pp_adapter *a, const struct pp_adapter_target *t, struct pp_error *err);
/* lora_embedding.c: computes the numbers of PEFT's DoRA of the embeddings, whose A, rank and scale are loaded; b: B
 * [n_embd, rank]. It reads the whole table. */
enum pp_code pp_lora_dora_of_table(struct pp_adapter *a, const struct pp_adapter_target *t, const float *b,
                                   struct pp_error *err);
/* Adds to the adapter's identity what these kinds change. */
void pp_lora_hash_kinds(const struct pp_adapter *a, struct pp_sha256_stream *s);
/* Whether an adapter of the set scales the input of this projection. */
bool pp_adapter_set_scales_input(const struct pp_adapter_set *set, int linear);

#endif
