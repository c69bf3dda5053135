/* prompt_chunks.h - how many rows of a prompt a pass computes: as many as fit a time, by what the rows of the last
 * chunk took. Pure arithmetic; owned by the engine's thread. */
#ifndef PP_PROMPT_CHUNKS_H
#define PP_PROMPT_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

/* Rows of a chunk at least, and at first: fewer cost nearly as much as these, for all weights are read for them. And
 * how many rows a matrix must meet for a row to cost as little as it can. */
enum { PP_LEAST_CHUNK = 16, PP_CHEAP_ROWS = 96 };

/* All zeros: nothing is known yet. */
struct pp_prompt_chunks {
    double row_ns;
    int64_t n_expert, n_expert_used; /* of the model: of its experts each row meets that part; 0: no mixture */
};

/* Rows of the next chunk, at most max_rows. others_wait: answers that are being written, or other prompts, stand still
 * meanwhile, and for 100 ms at most. Else it may take half a second, or two as long as more rows would make each of
 * them cheaper; what is lost if the pass is cancelled remains little. (Two cores of a Cascade Lake, eight layers of
 * TinyLlama's shape, 16, 32, 48, 96 and 256 rows, tokens/s: Q8_0 441, 546, 612, 682, 675, F16 161, 207, 230, 232, 235;
 * DeepSeek V2 Lite's, 6 of 64 experts, Q4_0, 16, 32, 64, 128 and 256: 54, 68, 75, 83, 89.) */
int pp_chunk_rows(const struct pp_prompt_chunks *p, bool others_wait, int max_rows);

/* A pass with so many rows of prompts took ns. */
void pp_chunk_took(struct pp_prompt_chunks *p, int rows, uint64_t ns);

#endif
