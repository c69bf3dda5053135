/* rows_int.h - how much of what rows are made of (rows.h) stays in memory while they are read. Private to rows*.c.
 *
 * Of a large matrix of which every row is all over it (words for columns, or the other way round) a tile of rows is
 * read from its beginning to its end, and what was passed is let go of on the way: so no more than some megabytes of it
 * are in memory for each thread. Tiles of such a matrix have more rows, as it is brought back for each. */
#ifndef PP_ENGINE_ROWS_INT_H
#define PP_ENGINE_ROWS_INT_H

#include "engine/rows.h"

/* Rows that are read at a time: where a row's words lie apart, those of its neighbours are in the same lines. */
int64_t pp_rows_tile(const struct pp_rows *r);
/* Bytes at `weights`, all rows together. */
size_t pp_rows_weights_size(const struct pp_rows *r);

struct pp_rows_sweep {
    const uint8_t *kept; /* what lies before is let go of; NULL: nothing need be */
};
/* Goes through a matrix from `begin` on, for n rows: `past` from time to time, with how far it came, then `end`.
 * Nothing is let go of where bringing it back would take longer than it is worth. */
struct pp_rows_sweep pp_rows_sweep(const struct pp_rows *r, int64_t n, const uint8_t *begin);
void pp_rows_sweep_past(struct pp_rows_sweep *s, const uint8_t *at);
void pp_rows_sweep_end(struct pp_rows_sweep *s, const uint8_t *end);
/* Likewise of scales and zero points, when a tile is read. */
void pp_rows_sweep_groups(const struct pp_rows *r, int64_t n);

#endif
