/* batch.h - what changes from step to step: the rows, as a backend sees them. Private to the engine. */
#ifndef PP_ENGINE_BATCH_H
#define PP_ENGINE_BATCH_H

#include <stdint.h>

#include "engine/engine.h"
#include "engine/lora.h"
#include "engine/plan.h"

/* K and V of a row are written to its slot. It attends to slots 0 .. sees - 1, its own the last of them, or in an
 * encoder all of its sequence; in a tree (tree_mask not 0) to 0 .. tree_base - 1 and to those tree_base + i whose bit i
 * is set: its ancestors and itself. */
struct pp_batch_row {
    int32_t token;                         /* or -1 with a vector */
    const float *vector;                   /* [n_embd] */
    int64_t position;                      /* for RoPE */
    int64_t slot;                          /* place in the sequence's pages */
    int64_t sees;
    uint8_t *const *pages[PP_MAX_TIERS];   /* data of the sequence's pages in each tier */
    uint64_t tree_mask;
    int64_t tree_base;
    const struct pp_adapter_set *adapters; /* NULL or n == 0: none */
    int output;                            /* index among the rows with an output, or -1 */
};

/* The only tokens whose logits are wanted, in groups of neighbours; all others get -INFINITY. */
enum { PP_TOKEN_GROUP = 16 };
struct pp_token_groups {
    const int32_t *groups;              /* [n], ascending: group g has tokens 16 g .. 16 g + 15 */
    int n;                              /* at least 1 */
};

struct pp_batch {
    const struct pp_batch_row *rows;
    int n;
    const int32_t *output_rows;         /* [n_outputs]: row of each output */
    int n_outputs;
    const struct pp_token_groups *only; /* or NULL: all logits */
};

#endif
