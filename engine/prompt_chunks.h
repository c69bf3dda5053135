/* prompt_chunks.h - how many rows of a prompt a pass computes: as many as fit a time, by what the rows of the last
 * chunk took. Pure arithmetic; owned by the engine's thread. */
#ifndef PP_PROMPT_CHUNKS_H
#define PP_PROMPT_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

/* Rows of a chunk at least, and at first: fewer cost nearly as much as these, for all weights are read for them. */
enum { PP_LEAST_CHUNK = 16 };

/* All zeros: nothing is known yet. */
struct pp_prompt_chunks {
    double row_ns;
};

/* Rows of the next chunk, at most max_rows. others_wait: answers that are being written, or other prompts, stand still
 * meanwhile, and for 100 ms at most; else it may take half a second, because a row costs less where there are more of
 * them (two cores of a Granite Rapids, Q4_0: 512 rows at 2.1 ms each, 32 at 2.2, 16 at 2.4), and what is lost if the
 * pass is cancelled remains little. */
int pp_chunk_rows(const struct pp_prompt_chunks *p, bool others_wait, int max_rows);

/* A pass with so many rows of prompts took ns. */
void pp_chunk_took(struct pp_prompt_chunks *p, int rows, uint64_t ns);

#endif
