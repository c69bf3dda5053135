/* batch.h - the input of a forward pass as a backend sees it: rows, and what they attend to. Private to the engine. */
#ifndef PP_ENGINE_BATCH_H
#define PP_ENGINE_BATCH_H

#include <stdint.h>

#include "engine/engine.h"
#include "engine/lora.h"
#include "engine/plan.h"

/* A row's K and V go to its slot of the cache. It attends to slots 0 .. sees - 1, the last of which is its own (in an
 * encoder, to all slots of its sequence). A row of a tree (tree_mask not 0) attends to slots 0 .. tree_base - 1 and to
 * each slot tree_base + i whose bit i is set: its ancestors and itself. */
struct pp_batch_row {
    int32_t token;                         /* -1: `vector` is the input */
    const float *vector;                   /* [n_embd] */
    int64_t position;                      /* for RoPE */
    int64_t slot;                          /* index into the sequence's pages */
    int64_t sees;
    uint8_t *const *pages[PP_MAX_TIERS];   /* page data of the sequence in each tier */
    uint64_t tree_mask;
    int64_t tree_base;
    const struct pp_adapter_set *adapters; /* NULL or n == 0: none */
    int output;                            /* index among the rows with an output, or -1 */
};

/* The only tokens whose logits are needed, in groups of 16 neighbouring ids; all others get -INFINITY. */
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
