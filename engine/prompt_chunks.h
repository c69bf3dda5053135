/* prompt_chunks.h - how many rows of a prompt a pass computes: as many as fit a time limit, judging by what the rows of
 * the last chunk took. Pure arithmetic; owned by the engine's thread. */
#ifndef PP_PROMPT_CHUNKS_H
#define PP_PROMPT_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

/* PP_MIN_CHUNK: the smallest chunk, and the first; fewer rows cost nearly as much, as all weights are read for them.
 * PP_CHEAP_ROWS: rows per matrix from which on a further row makes the others no cheaper. */
enum { PP_MIN_CHUNK = 16, PP_CHEAP_ROWS = 96 };

/* All zeros: nothing is known yet. */
struct pp_prompt_chunks {
    double row_ns;
    int64_t n_expert, n_expert_used; /* the model's; a row meets only n_expert_used of n_expert; 0: no experts */
};

/* Rows of the next chunk, at most max_rows. others_wait: answers that are being written, or other prompts, wait
 * meanwhile, so it may take 100 ms. Otherwise it may take half a second, or two seconds as long as more rows make each
 * of them cheaper; so little is lost if the pass is cancelled. (Two cores of a Cascade Lake, eight layers of
 * TinyLlama's shape, 16, 32, 48, 96 and 256 rows, tokens/s: Q8_0 441, 546, 612, 682, 675, F16 161, 207, 230, 232, 235;
 * DeepSeek V2 Lite's, 6 of 64 experts, Q4_0, 16, 32, 64, 128 and 256: 54, 68, 75, 83, 89.) */
int pp_chunk_rows(const struct pp_prompt_chunks *p, bool others_wait, int max_rows);

/* Records that a pass with `rows` rows of prompts took `ns`. */
void pp_chunk_record(struct pp_prompt_chunks *p, int rows, uint64_t ns);

#endif
