/* batch.h - what changes from step to step: the rows, as a backend sees them. Private to the engine. */
#ifndef PP_ENGINE_BATCH_H
#define PP_ENGINE_BATCH_H

#include <stdint.h>

#include "engine/engine.h"
#include "engine/lora.h"

struct pp_batch_row {
    int32_t token;                      /* or -1 with a vector */
    const float *vector;                /* [n_embd] */
    int64_t position;                   /* for RoPE */
    int64_t slot;                       /* place in the sequence's pages: K and V are written there, and 0 .. slot are attended to, */
    uint8_t *const *pages;              /* data of the sequence's pages */
    uint64_t tree_mask;                 /* except in a tree, where not 0: then 0 .. tree_base - 1 and those tree_base + i whose bit i is */
    int64_t tree_base;                  /* set, ancestors and the row itself */
    const struct pp_adapter_set *adapters; /* NULL or n == 0: none */
    int output;                         /* index among the rows with an output, or -1 */
};

struct pp_batch {
    const struct pp_batch_row *rows;
    int n;
    const int32_t *output_rows;         /* [n_outputs]: row of each output */
    int n_outputs;
};

#endif
