/* adapter_join.h - the LoRA of a matrix that is several others below each other, made of theirs. Private to the engine.
 *
 * With W's rows those of W_1, W_2 ... in some order, and s_k B_k A_k added to each, B A is added to W, where A is
 * A_1, A_2 ... one below the other and B's rows are those of the B_k, beside zeros. If all A_k are the same, A is that
 * and B has their rank alone. */
#ifndef PP_ENGINE_ADAPTER_JOIN_H
#define PP_ENGINE_ADAPTER_JOIN_H

#include "engine/adapter_file.h"
#include "engine/state_order.h"

/* Those values of a row of a type of floats: to [columns->n]. */
void pp_adapter_values(uint32_t type, const uint8_t *row, const struct pp_adapter_columns *columns, float *to);
/* Row `row` of a half, `half` 0: A [rank, n_in], 1: B [n_out, rank], as the file has its inputs and outputs. */
void pp_adapter_half_row(const struct pp_adapter_target *t, int half, int64_t row, float *out);

enum { PP_JOINED_PARTS = 3 };

struct pp_joined_part {
    const struct pp_adapter_target *target; /* with A and B; NULL: there is none, and nothing is added */
    int64_t n_out;
    const int32_t *from;   /* [n_out]: which of the target's outputs each is; NULL: the same */
    const int32_t *to;     /* [n_out]: which row of the whole it becomes; NULL: they are behind those before */
};

struct pp_joined {
    int64_t rank;
    float scale;           /* of the first part that has one which is not 0; what others' are besides is in B */
    float *a, *b;          /* [rank, n_in], [n_out, rank]; pp_free */
};

/* least: a larger rank is made of zeros. false: out of memory. */
bool pp_adapter_join(const struct pp_joined_part *parts, int n, int64_t n_in, int64_t n_out, int64_t least,
                     struct pp_joined *out);
/* The rank that comes of it, and the type that holds all values: one of floats. */
int64_t pp_adapter_joined_rank(const struct pp_joined_part *parts, int n, uint32_t *type);
void pp_joined_free(struct pp_joined *j);

/* --- q, k and v, or a gate and what it multiplies, in one ------------------------------------------------------- */

/* What such a matrix is called that has this one's rows among others', or where there is no gate of its own, more of
 * its own: "blk.3.attn_qkv.weight" of "blk.3.attn_k.weight", "blk.3.ffn_up.weight" of "blk.3.ffn_gate.weight" and
 * "blk.3.ffn_up.weight", "blk.3.ssm_in.weight" of "blk.3.attn_gate.weight". Returns which part it is, or -1: of none;
 * *way: how their rows lie in the whole. */
struct pp_join_way;
int pp_adapter_whole_name(const char *part, char whole[PP_HF_NAME], struct pp_join_way *way);

/* Targets that change parts of one matrix. */
struct pp_join {
    char name[PP_HF_NAME];                                        /* the whole's */
    const struct pp_adapter_target *of[PP_JOINED_PARTS];          /* NULL: that part is not changed */
    int part[PP_JOINED_PARTS];                                    /* of a target's matrices (pp_adapter_matrices) */
    char names[PP_JOINED_PARTS][PP_HF_NAME];
};
/* How rows lie: those of parts in the whole, where they may be by keys instead; and pairs of rotated heads in the
 * targets beside ours, and in the whole. */
struct pp_join_way {
    enum pp_hf_form form;
    const struct pp_by_keys *keys; /* or NULL */
    enum pp_adapter_pairs from, to;
};
/* Adds a target's matrix of that name; false: there is one already. */
bool pp_join_add(struct pp_join *j, int place, const char *name, const struct pp_adapter_target *t, int part);
/* Where the rows of a part lie in the whole [n_out], and in its target: from, to [n_rows], new, pp_free.
 * PP_ERR_MISMATCH: it is not as large as there. */
enum pp_code pp_join_rows(const struct pp_join *j, int place, const struct pp_hparams *hp,
                          const struct pp_join_way *way, int64_t n_out, int64_t *n_rows, int32_t **from, int32_t **to,
                          struct pp_error *err);
/* The rank that comes of it, 0 if no part has A and B, and as pp_adapter_joined_rank. */
int64_t pp_join_rank(const struct pp_join *j, uint32_t *type);
/* A and B of the whole [n_out, n_in] in a model with these numbers, if its rank is not 0. PP_ERR_MISMATCH: parts are
 * not as large as theirs of that. */
enum pp_code pp_join_make(const struct pp_join *j, const struct pp_hparams *hp, const struct pp_join_way *way,
                          int64_t n_in, int64_t n_out, struct pp_joined *out, struct pp_error *err);

#endif
