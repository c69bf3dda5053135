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

/* What an adapter does to one matrix. A and B are held in Q8_0 beside weights that are multiplied by quantised
 * activations, in F16 beside others and in large models, or as they are stored (pp_adapter_load_exact). */
struct pp_lora_target {
    int rank;              /* 0: this projection is not changed */
    float scale;           /* alpha / rank */
    struct pp_matrix a;    /* [rank, n_in] */
    struct pp_low_rank b;  /* [n_out, rank] */
    void *a_data, *b_data; /* their data, aligned to 64 bytes, in the adapter's arena */
    size_t a_bytes, b_bytes;
    size_t places[2];      /* offsets of A and B in the arena */
    bool taken;            /* the file has something for this target */
    struct pp_matrix w;    /* replaces W [n_out, n_in]; data NULL: none. Q8_0 if W is multiplied by quantised
                              activations, else as it is stored */
    void *w_data;
    size_t w_bytes;
    bool w_scaled;         /* w is W with scaled columns: an IA3 */
    bool special;          /* not a plain LoRA: some of the following is set */
    float *bias;           /* [n_out], added times the strength */
    float *input;          /* IA3: scale - 1 [n_in] */
    float *output;         /* IA3: scale - 1 [n_out] */
    float *dora;           /* [PP_DORA_NUMBERS][n_out] */
    size_t gains;          /* where its g_k [n_out] begin among the adapter's (lora_gains.c) */
};

struct pp_own_token {
    int32_t id;
    int row;
};

/* x += strength * scale * B a[token], x being a token's embedding. */
struct pp_lora_embedding {
    int rank;              /* 0: embeddings are not changed */
    float scale;
    float *a;              /* [n_vocab, rank] */
    struct pp_low_rank b;  /* [n_embd, rank] */
    void *b_data;
    size_t a_bytes, b_bytes;
    uint32_t table_type;
    void *table;           /* replaces the model's [n_vocab, n_embd], in table_type; or NULL */
    int n_tokens;          /* or only these tokens' rows are replaced: */
    struct pp_own_token *tokens; /* [n_tokens], ascending by id, */
    float *token_rows;     /* [n_tokens, n_embd] */
};

/* Replaces a norm's vectors [n]; NULL: the model's own. */
struct pp_lora_norm {
    float *weight, *bias;
};

/* What an adapter does to the matrices of a layer's heads: each head has its own A or B, and shares the other with all.
 * F16, or F32 if values are too large for that, or A and B are held as they are stored. */
struct pp_lora_heads {
    int rank;               /* 0: they are not changed */
    float scale;            /* alpha / rank */
    int n;                  /* heads */
    struct pp_matrix *a;    /* [n], each [rank, n_in] */
    struct pp_low_rank *b;  /* [n], each [n_out, rank] */
    uint8_t *data;          /* their data, aligned to 64 bytes */
    size_t bytes;
    bool turned;            /* of keys: the model uses the transpose, so that W's outputs are these matrices' inputs */
    bool scales;            /* an IA3 of W's outputs: its gains multiply instead of adding up; A and B are zeros */
    float *dora;            /* [n][PP_DORA_NUMBERS][outputs of W]; NULL: it is no DoRA */
    size_t gains;           /* likewise: [n][outputs of W] */
};

struct pp_adapter {
    const struct pp_model *model;   /* the model that it was loaded for, and whose target indices it uses */
    struct pp_adapter_info info;
    struct pp_lora_target *targets; /* [n_targets], by the index of pp_plan_target */
    int n_targets;                  /* the model's linears, or also its experts' matrices */
    bool of_experts;                /* the latter */
    bool scales_experts;            /* it scales the input of some experts' down matrices */
    uint8_t *arena;                 /* A and B of all targets, in the order in which a pass reads them */
    struct pp_lora_heads *heads;    /* [n_heads of the model's plan]; NULL: it changes none */
    size_t n_gains;                 /* outputs of all matrices that it is a DoRA of */
    void *mapping;                  /* of the arena; NULL: it was allocated */
    size_t mapped_bytes;
    struct pp_lora_embedding embedding;
    struct pp_lora_norm *norms;     /* [n_ops of the model's plan]; NULL: it has none */
    struct pp_sha256 identity;      /* of all targets: goes into the KV key */
    char *path, *name, *target_names;
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
void pp_lora_place_gains(struct pp_adapter *a); /* once all of it is loaded */
/* Computes the gains that are not there yet, takes references and sets set->gains, valid until pp_gains_release of the
 * set. PP_ERR_NOMEM: the set then has none. */
enum pp_code pp_gains_take(struct pp_gains **all, struct pp_adapter_set *set, struct pp_error *err);
/* Takes references for a copy of a set, which must be released, too. */
void pp_gains_share(struct pp_gains *all, const struct pp_adapter_set *set);
void pp_gains_release(struct pp_gains **all, struct pp_adapter_set *set);
int pp_gains_n(const struct pp_gains *all); /* how many there are */

/* What an adapter does to the target of this index; rank 0 if that is an expert's and the adapter has none of those. */
extern const struct pp_lora_target pp_lora_no_target;
static inline const struct pp_lora_target *pp_adapter_target_at(const struct pp_adapter *a, int linear)
{
    return linear < a->n_targets ? &a->targets[linear] : &pp_lora_no_target;
}

/* Floats for all A x that a set brings to a row of one projection; 0: none. */
int pp_adapter_set_room(const struct pp_adapter_set *set, int linear);

/* What an adapter does to the matrices of heads of this index in the plan. */
extern const struct pp_lora_heads pp_lora_no_heads;
static inline const struct pp_lora_heads *pp_adapter_heads_at(const struct pp_adapter *a, int heads)
{
    return a->heads ? &a->heads[heads] : &pp_lora_no_heads;
}

/* Floats for the A x that any one adapter of a set brings to a row of one head of those; 0: none. */
int pp_adapter_set_heads_room(const struct pp_adapter_set *set, int heads);
bool pp_adapter_set_heads_dora(const struct pp_adapter_set *set); /* one of them is a DoRA of some heads */
/* The index by which adapters know matrices of heads in the plan: of those that are of one tensor, the first. */
int pp_lora_first_heads(const struct pp_plan *plan, const struct pp_heads *heads);

/* What to do with what an adapter does that cannot be done beside a model. */
#define PP_LORA_MERGE "let PEFT put it into the model (merge_and_unload, save_pretrained), and use that folder"

/* --- between the files of adapters --------------------------------------------------------------------------- */

struct pp_adapter_file;
struct pp_adapter_target;

/* lora_load.c: everything that the file changes. */
enum pp_code pp_lora_load_targets(struct pp_adapter *a, const struct pp_adapter_file *f, bool exact,
                                  struct pp_error *err);

/* lora.c: of a file that is open, which lies in the model's own. */
enum pp_code pp_adapter_load_file(const struct pp_model *m, const struct pp_adapter_file *f, struct pp_adapter **out,
                                  struct pp_error *err);

/* lora_hold.c: A and B as floats, and as the kernels read them. */

/* Work space of a load, which grows and serves one matrix after the other. Zeroed at first. */
enum { PP_LORA_ROOMS = 9 };
struct pp_lora_room {
    void *parts[PP_LORA_ROOMS];
    size_t bytes[PP_LORA_ROOMS];
};
void pp_lora_room_free(struct pp_lora_room *r);

/* Where the file has our outputs, or inputs: which of its own each of [n_out] is (pp_adapter_outputs), or of [n_in].
 * NULL: the same. */
typedef const int32_t *pp_lora_order;

static inline int64_t pp_lora_file_row(pp_lora_order order, int64_t row)
{
    return order ? order[row] : row;
}

/* A [rank, n_in] and B [n_out, rank] as floats, in the room, and the largest of their absolute values. */
struct pp_lora_halves {
    const float *values[2];
    float most[2];
};
/* Where the file has a matrix's outputs and inputs. */
struct pp_lora_orders {
    pp_lora_order outputs, inputs;
};
/* Those of a matrix with n_out outputs. Refuses NaN and infinity, which would poison every answer. */
enum pp_code pp_lora_read(const struct pp_adapter *a, const struct pp_adapter_target *t, int64_t n_out,
                          const struct pp_lora_orders *orders, struct pp_lora_room *room, struct pp_lora_halves *out,
                          struct pp_error *err);
/* Finds the largest of halves that were made of a matrix's; refuses likewise. name: of that. */
enum pp_code pp_lora_look(const struct pp_adapter *a, const char *name, int64_t n_a, int64_t n_b,
                          struct pp_lora_halves *halves, struct pp_error *err);
/* Room for so many floats of each half; false: out of memory. */
bool pp_lora_halves_room(struct pp_lora_room *room, int64_t n_a, int64_t n_b, float *halves[2]);
int32_t *pp_lora_order_room(struct pp_lora_room *room, int64_t n); /* for an order; NULL: out of memory */
/* A file's tensor as floats [ne[1], ne[0]], or turned [ne[0], ne[1]], in the file's order; likewise. pp_free. */
enum pp_code pp_lora_floats(const struct pp_adapter *a, const struct pp_tensor *t, bool turned, float **out,
                            struct pp_error *err);

/* What A [rank, n_in] (half 0) or B [n_out, rank] of W takes, whole lines of the cache. */
size_t pp_lora_held_bytes(const struct pp_tensor *w, int rank, uint32_t type, int half);
enum pp_code pp_lora_arena_new(struct pp_adapter *a, size_t bytes, struct pp_error *err);
void pp_lora_arena_free(struct pp_adapter *a);
/* Makes of them, in the place of the projection's target in the arena, what the kernels read. */
enum pp_code pp_lora_hold(struct pp_adapter *a, int linear, uint32_t type, const struct pp_lora_halves *from,
                          struct pp_lora_room *room, struct pp_error *err);
/* B [n_out, rank] as add_low_rank reads it, in the type and of the rank of *out, whose data are then `to`: blocks of
 * pp_low_rank_block_bytes. most: the largest of |B|. */
enum pp_code pp_lora_lay_out_b(const float *b, int64_t n_out, struct pp_low_rank *out, uint8_t *to, float most,
                               struct pp_lora_room *room, struct pp_error *err);
/* A row of n floats as Q8_0, by the kernels. q [n], aligned to 64 bytes, d and sum [n / 32] are room for it. */
void pp_lora_q8_row(const float *x, int64_t n, int8_t *q, float *d, int32_t *sum, uint8_t *to);

/* What a target changes besides its A and B (`halves`, if its rank is not 0): biases, IA3, DoRA. The projection's rank
 * and scale are set. order: of outputs in the file, or NULL. For DoRA all of W is read, and multiplied by A. */
enum pp_code pp_lora_load_kinds(struct pp_adapter *a, int linear, const struct pp_adapter_target *t,
                                pp_lora_order order, const struct pp_lora_halves *halves,
                                struct pp_error *err);
/* The same of a matrix of which several targets change parts; halves: of all of it, if its rank is not 0. */
struct pp_join;
struct pp_join_way;
enum pp_code pp_lora_load_joined_kinds(struct pp_adapter *a, int linear, const struct pp_join *join,
                                       const struct pp_join_way *way, const struct pp_lora_halves *halves,
                                       struct pp_error *err);
/* Of DoRA: A A^T [rank, rank], and b' G b for a row of B; the numbers of output r, from |W|^2, <W, B A> and |B A|^2 of
 * its row. At most of PP_DORA_MAX_RANK, for whose square there is room. */
enum { PP_DORA_MAX_RANK = 1024 };
void pp_lora_gram(const float *a, int rank, int64_t n, double *gram);
double pp_lora_gram_norm(const float *b, const double *gram, int rank);
struct pp_dora_row {
    double square, mixed, low_rank;
    double scale; /* alpha / rank */
    float magnitude;
};
void pp_lora_dora_numbers(const struct pp_dora_row *row, int64_t n_out, int64_t r, float *dora);
/* Whether nothing of that changes anything; of DoRA, if its A and B do not. */
bool pp_lora_kinds_idle(const struct pp_lora_target *t, int64_t n_in, int64_t n_out);
bool pp_lora_dora_idle(const float *dora, int64_t n_out); /* NULL: it is none */
void pp_lora_free_kinds(struct pp_lora_target *t);
/* lora_replaced.c: what stands for a matrix, a norm or the table of embeddings. What has the base model's values, all
 * of them, is left out. PP_ERR_MISMATCH: the model has no such tensor, or it has another shape. */
enum pp_code pp_lora_load_matrix(struct pp_adapter *a, int linear, const struct pp_adapter_target *t,
                                 pp_lora_order order, struct pp_error *err);
enum pp_code pp_lora_load_norm(struct pp_adapter *a, const struct pp_adapter_target *t, struct pp_error *err);
const struct pp_tensor *pp_lora_table(const struct pp_plan *plan); /* that tokens are looked up in, or NULL */
enum pp_code pp_lora_load_table(struct pp_adapter *a, const struct pp_adapter_target *t, struct pp_error *err);
/* W, its columns times 1 + scales [n_in], in W's place: an IA3 of an input that other matrices read, too. */
enum pp_code pp_lora_scale_columns(struct pp_adapter *a, int linear, const float *scales, struct pp_error *err);
void pp_lora_free_replaced(struct pp_adapter *a);
void pp_lora_hash_replaced(const struct pp_adapter *a, struct pp_sha256_stream *s);
/* Whether something of the model is replaced by one of a set. */
bool pp_adapter_set_replaces(const struct pp_adapter_set *set);
void pp_lora_note_places(struct pp_adapter *a); /* in its info, when all is loaded */
/* PP_ERR_UNSUPPORTED: two of a set have a matrix in the same one's place, and not both one that adds up. */
enum pp_code pp_adapter_set_check(const struct pp_adapter_set *set, struct pp_error *err);

/* lora_heads.c: the matrix of which latent attention's heads have their parts. Where those are in the plan: */
struct pp_lora_heads_at {
    int keys, values;
};
/* false: this is not such a matrix, or the model has none of the name. */
bool pp_lora_find_heads(const struct pp_plan *plan, const char *name, struct pp_lora_heads_at *at);
/* Holds a target's sizes against the model's, and notes its rank and scale. PP_ERR_UNSUPPORTED: it is more than a
 * LoRA. One thread. */
enum pp_code pp_lora_list_heads(struct pp_adapter *a, const struct pp_adapter_target *t,
                                const struct pp_lora_heads_at *at, struct pp_error *err);
/* Reads and converts what was listed; several threads may, each another. */
enum pp_code pp_lora_load_heads(struct pp_adapter *a, const struct pp_adapter_target *t,
                                const struct pp_lora_heads_at *at, bool exact, struct pp_lora_room *room,
                                struct pp_error *err);
void pp_lora_free_heads(struct pp_adapter *a);
void pp_lora_hash_heads(const struct pp_adapter *a, struct pp_sha256_stream *s); /* goes into its identity */

/* lora_tokens.c: rows of the table that stand for the model's. table: the model's, or NULL. */
enum pp_code pp_lora_load_tokens(struct pp_adapter *a, const struct pp_adapter_target *t, const struct pp_tensor *table,
                                 struct pp_error *err);
/* A token's own row; NULL: it has none. */
const float *pp_lora_token_row(const struct pp_lora_embedding *e, int32_t token, int64_t width);
/* Whether the output's matrix is the table, or a copy of it that a file has beside it, perhaps in another type. */
bool pp_lora_is_tied(const struct pp_tensor *table, const struct pp_tensor *w);
/* The same of rows of W, the output's matrix: whether they can be others, and the A and B that make them so. */
enum pp_code pp_lora_check_output_tokens(const struct pp_adapter *a, const struct pp_adapter_target *t,
                                         const struct pp_tensor *w, struct pp_error *err);
enum pp_code pp_lora_token_halves(const struct pp_adapter *a, const struct pp_adapter_target *t,
                                  const struct pp_tensor *w, struct pp_lora_room *room, struct pp_lora_halves *out,
                                  struct pp_error *err);

/* Those of embeddings are held in F32, which few tokens' rows are read of. */
enum pp_code pp_lora_load_embedding(struct pp_adapter *a, const struct pp_adapter_target *t, struct pp_error *err);
/* Goes into the adapter's identity: what makes these kinds differ. */
void pp_lora_hash_kinds(const struct pp_adapter *a, struct pp_sha256_stream *s);
/* Adapters of a set that scale the input of a projection. */
bool pp_adapter_set_scales_input(const struct pp_adapter_set *set, int linear);

#endif
