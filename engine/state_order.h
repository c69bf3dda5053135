/* state_order.h - the order of state heads that share a key: in Qwen 3.5's folders they are neighbours, in its GGUF
 * files n_keys apart; the reverse holds for PLaMo's attention heads. Which rows of matrices must be permuted for
 * that. */
#ifndef PP_ENGINE_STATE_ORDER_H
#define PP_ENGINE_STATE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/source.h"

struct pp_state_order {
    int64_t first, size;   /* rows before the first head, and of each head */
    int64_t n_keys, share; /* keys, and heads that share one */
    bool columns;          /* columns are permuted instead of rows */
    bool tiled;            /* in the result they are apart instead of neighbours */
    bool to_gguf;          /* the result is in the order of GGUF files */
};

/* Inputs of states in one matrix, grouped by keys: for each key its query's rows, its own, those of its values and of
 * their gates (ssm_in); or beta of each of its heads, then decays (ssm_ba). And the parts that files may have
 * instead. */
enum pp_key_part { PP_KEYS_WHOLE, PP_KEYS_QKV, PP_KEYS_GATES, PP_KEYS_BETA, PP_KEYS_DECAYS };
/* The endings of such a whole's name and of its parts' names. */
struct pp_by_keys {
    const char *whole, *parts[2];
    enum pp_key_part kinds[2];
};
enum { PP_BY_KEYS = 2 };
extern const struct pp_by_keys pp_by_keys[PP_BY_KEYS];
/* The number of rows of a part; and the row of the whole that is its row r. */
int64_t pp_key_part_rows(const struct pp_hparams *hp, enum pp_key_part part);
int64_t pp_key_part_row(const struct pp_hparams *hp, enum pp_key_part part, int64_t r);

/* How the tensor with this GGUF name is permuted from the model's order to the other; false: it is not. */
bool pp_state_order(const struct pp_hparams *hp, const char *gguf_name, struct pp_state_order *order);
/* How many rows (or columns) it permutes; tensors of other sizes have no such order. */
int64_t pp_state_order_rows(const struct pp_state_order *order);
/* The row (or column) of ours that becomes row r. */
int64_t pp_state_row(const struct pp_state_order *order, int64_t r);
/* The same for all n rows (or columns): rows[i] is our row of the i-th new one or, with `ours`, the new row of our
 * i-th. False: n does not fit. */
bool pp_state_rows(const struct pp_state_order *order, int64_t n, bool ours, int32_t *rows);
/* Permutes the columns of n rows; room: [n_cols]. */
void pp_state_columns(const struct pp_state_order *order, float *rows, int64_t n, int64_t n_cols, float *room);

#endif
