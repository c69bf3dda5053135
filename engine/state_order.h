/* state_order.h - heads of states that share a key: neighbours in Qwen 3.5's folders, in its GGUF files as far apart as
 * there are keys; and the other way round PLaMo's heads of attention. Which rows of matrices lie elsewhere for that. */
#ifndef PP_ENGINE_STATE_ORDER_H
#define PP_ENGINE_STATE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/source.h"

struct pp_state_order {
    int64_t first, size;   /* rows before the first head's, and of each head */
    int64_t n_keys, share; /* heads of a key */
    bool columns;          /* they are columns */
    bool tiled;            /* what is made has them apart, not as neighbours */
    bool to_gguf;          /* what is made has them as GGUF files do */
};

/* Matrices of what goes into states, by keys: of each key its query's rows, its own, those of its values and of their
 * gates (ssm_in); or beta of each of its heads, then decays (ssm_ba). The parts that files may have instead. */
enum pp_key_part { PP_KEYS_WHOLE, PP_KEYS_QKV, PP_KEYS_GATES, PP_KEYS_BETA, PP_KEYS_DECAYS };
/* How such a whole's name ends, and those of its parts. */
struct pp_by_keys {
    const char *whole, *parts[2];
    enum pp_key_part kinds[2];
};
enum { PP_BY_KEYS = 2 };
extern const struct pp_by_keys pp_by_keys[PP_BY_KEYS];
/* How many rows a part has, and the row of the whole that its row r is. */
int64_t pp_key_part_rows(const struct pp_hparams *hp, enum pp_key_part part);
int64_t pp_key_part_row(const struct pp_hparams *hp, enum pp_key_part part, int64_t r);

/* How a tensor of that GGUF name changes its order from the model's to the other; false: it does not. */
bool pp_state_order(const struct pp_hparams *hp, const char *gguf_name, struct pp_state_order *order);
/* How many rows (or columns) it is about; a tensor of others has no such order. */
int64_t pp_state_order_rows(const struct pp_state_order *order);
/* The row (or column) of ours that row r of the new one is. */
int64_t pp_state_row(const struct pp_state_order *order, int64_t r);
/* The same for all n rows (or columns): rows[i] is where ours has the i-th of the new ones, or with `ours` where the
 * new one has our i-th. False: they are not so many. */
bool pp_state_rows(const struct pp_state_order *order, int64_t n, bool ours, int32_t *rows);
/* Brings the columns of n rows into the new order; room: [n_cols]. */
void pp_state_columns(const struct pp_state_order *order, float *rows, int64_t n, int64_t n_cols, float *room);

#endif
