#include "engine/prompt_chunks.h"

#include <math.h>

/* Rows from which on a row costs as little as it can: with experts, a matrix meets only its share of the rows. */
static double cheap_rows(const struct pp_prompt_chunks *p)
{
    return PP_CHEAP_ROWS * (p->n_expert_used > 0 ? (double)p->n_expert / (double)p->n_expert_used : 1);
}

int pp_chunk_rows(const struct pp_prompt_chunks *p, bool others_wait, int max_rows)
{
    const double short_ns = others_wait ? 1e8 : 5e8, long_ns = 2e9;
    double rows = p->row_ns > 0 ? short_ns / p->row_ns : PP_MIN_CHUNK;
    if (!others_wait && p->row_ns > 0 && rows < cheap_rows(p))
        rows = fmin(cheap_rows(p), long_ns / p->row_ns);
    if (rows >= max_rows)
        return max_rows;
    /* whole tiles of the kernels */
    int whole = (int)rows / PP_MIN_CHUNK * PP_MIN_CHUNK;
    if (whole < PP_MIN_CHUNK)
        whole = PP_MIN_CHUNK;
    return whole < max_rows ? whole : max_rows;
}

void pp_chunk_record(struct pp_prompt_chunks *p, int rows, uint64_t ns)
{
    if (rows >= PP_MIN_CHUNK) /* fewer rows cost what reading the weights costs, and tell nothing of a row */
        p->row_ns = (double)ns / rows;
}
