/* random_rows.h - random weights of any runnable type, in a model's range. Private to the engine. */
#ifndef PP_ENGINE_RANDOM_ROWS_H
#define PP_ENGINE_RANDOM_ROWS_H

#include <stdint.h>

#include "engine/types.h"

struct pp_random;

/* Release with pp_free; NULL: out of memory. The same seed gives the same rows. */
struct pp_random *pp_random_new(uint64_t seed);
/* A row of `count` weights with mean 0 and a standard deviation of about 1 / sqrt(count). Blocks are random bits with
 * fitting scales instead of quantised floats, which is faster than a disk. to: pp_type_row_bytes(type, count) bytes,
 * aligned like a float. */
void pp_random_row(struct pp_random *r, uint32_t type, int64_t count, void *to);

#endif
