/* adapter_join.h - the LoRA of a matrix that consists of several others, made from theirs. Private to the engine.
 *
 * If W's rows are those of W_1, W_2 ... in some order, and s_k B_k A_k is added to each, then B A is added to W, where
 * A is A_1, A_2 ... one below the other, and each row of B is a row of a B_k, padded with zeros for the other A. If all
 * A_k are equal, A is just that one, and B has its rank. */
#ifndef PP_ENGINE_ADAPTER_JOIN_H
#define PP_ENGINE_ADAPTER_JOIN_H

#include "engine/adapter_file.h"
#include "engine/state_order.h"

/* Reads the selected columns of a row of floats: to [columns->n]. */
void pp_adapter_values(uint32_t type, const uint8_t *row, const struct pp_adapter_columns *columns, float *to);
/* Row `row` of a half, `half` 0: A [rank, n_in], 1: B [n_out, rank], with inputs and outputs as the file has them. */
void pp_adapter_half_row(const struct pp_adapter_target *t, int half, int64_t row, float *out);

enum { PP_JOINED_PARTS = 3 };

struct pp_joined_part {
    const struct pp_adapter_target *target; /* with A and B; NULL: nothing is added here */
    int64_t n_out;
    const int32_t *from;   /* [n_out]: the target's output for each row; NULL: the same */
    const int32_t *to;     /* [n_out]: the row of the whole that each becomes; NULL: they follow those of the parts
                              before */
};

struct pp_joined {
    int64_t rank;
    float scale;           /* that of the first part whose scale is not 0; B includes the ratio of the others' to it */
    float *a, *b;          /* [rank, n_in], [n_out, rank]; pp_free */
};

/* least: a smaller rank is padded with zeros. False: out of memory. */
bool pp_adapter_join(const struct pp_joined_part *parts, int n, int64_t n_in, int64_t n_out, int64_t least,
                     struct pp_joined *out);
/* The rank of the result, and the float type that holds all values. */
int64_t pp_adapter_joined_rank(const struct pp_joined_part *parts, int n, uint32_t *type);
void pp_joined_free(struct pp_joined *j);

/* --- q, k and v, or a gate and what it multiplies, in one ------------------------------------------------------- */

/* The name of a matrix that contains this one's rows: "blk.3.attn_qkv.weight" for "blk.3.attn_k.weight",
 * "blk.3.ffn_up.weight" for "blk.3.ffn_gate.weight" and "blk.3.ffn_up.weight" (models without a separate gate),
 * "blk.3.ssm_in.weight" for "blk.3.attn_gate.weight". Returns which part this is, or -1: there is none; *way: how the
 * rows are arranged. */
struct pp_join_way;
int pp_adapter_whole_name(const char *part, char whole[PP_HF_NAME], struct pp_join_way *way);

/* Targets that change parts of one matrix. */
struct pp_join {
    char name[PP_HF_NAME];                                        /* the whole's */
    const struct pp_adapter_target *of[PP_JOINED_PARTS];          /* NULL: that part is not changed */
    int part[PP_JOINED_PARTS];                                    /* which matrix of its target (pp_adapter_matrices) */
    char names[PP_JOINED_PARTS][PP_HF_NAME];
};
/* How the rows of parts are arranged in the whole: by form, or by keys; and how pairs of rotated heads differ, in the
 * targets and in the whole, from our order. */
struct pp_join_way {
    enum pp_hf_form form;
    const struct pp_by_keys *keys; /* or NULL */
    enum pp_adapter_pairs from, to;
};
/* Adds a target's matrix as a part; false: that part is taken. */
bool pp_join_add(struct pp_join *j, int place, const char *name, const struct pp_adapter_target *t, int part);
/* The rows of a part in its target (from) and in the whole [n_out] (to): [n_rows], new, pp_free. PP_ERR_MISMATCH: the
 * part has another size. */
enum pp_code pp_join_rows(const struct pp_join *j, int place, const struct pp_hparams *hp,
                          const struct pp_join_way *way, int64_t n_out, int64_t *n_rows, int32_t **from, int32_t **to,
                          struct pp_error *err);
/* The rank of the result, 0 if no part has A and B; type as in pp_adapter_joined_rank. */
int64_t pp_join_rank(const struct pp_join *j, uint32_t *type);
/* Makes A and B of the whole [n_out, n_in], if its rank is not 0. PP_ERR_MISMATCH: parts have other sizes in a model
 * with these hyperparameters. */
enum pp_code pp_join_make(const struct pp_join *j, const struct pp_hparams *hp, const struct pp_join_way *way,
                          int64_t n_in, int64_t n_out, struct pp_joined *out, struct pp_error *err);

#endif
