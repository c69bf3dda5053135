/* rows_int.h - how much of the file that rows (rows.h) are made from stays in memory while it is read. Private to
 * rows*.c.
 *
 * In the forms GPTQ, AWQ and TRANSPOSED every row is scattered over the whole matrix. For each tile of rows a large
 * matrix is read from its beginning to its end, and what was passed is released on the way, so that each thread keeps
 * only some megabytes of it in memory. Its tiles have more rows, since the whole matrix is read again for each. */
#ifndef PP_ENGINE_ROWS_INT_H
#define PP_ENGINE_ROWS_INT_H

#include "engine/rows.h"

/* Rows that are read at a time: where the words of a row lie apart, those of its neighbours are in the same cache
 * lines. */
int64_t pp_rows_tile(const struct pp_rows *r);
/* Bytes at `weights` of all rows. */
size_t pp_rows_weights_size(const struct pp_rows *r);

struct pp_rows_sweep {
    const uint8_t *released_to; /* what lies before is released; NULL: nothing need be */
};
/* A walk through a matrix from `begin`, for n rows: call _past now and then with the address reached, and _end at the
 * end. Nothing is released where reading it back would cost more than it saves. */
struct pp_rows_sweep pp_rows_sweep(const struct pp_rows *r, int64_t n, const uint8_t *begin);
void pp_rows_sweep_past(struct pp_rows_sweep *s, const uint8_t *at);
void pp_rows_sweep_end(struct pp_rows_sweep *s, const uint8_t *end);
/* Releases scales and zero points after a tile is read. */
void pp_rows_sweep_groups(const struct pp_rows *r, int64_t n);

#endif
