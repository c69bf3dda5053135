#include "engine/prompt_chunks.h"

int pp_chunk_rows(const struct pp_prompt_chunks *p, bool others_wait, int max_rows)
{
    const double limit_ns = others_wait ? 1e8 : 5e8;
    double rows = p->row_ns > 0 ? limit_ns / p->row_ns : PP_LEAST_CHUNK;
    if (rows >= max_rows)
        return max_rows;
    /* whole tiles of the kernels */
    int whole = (int)rows / PP_LEAST_CHUNK * PP_LEAST_CHUNK;
    if (whole < PP_LEAST_CHUNK)
        whole = PP_LEAST_CHUNK;
    return whole < max_rows ? whole : max_rows;
}

void pp_chunk_took(struct pp_prompt_chunks *p, int rows, uint64_t ns)
{
    if (rows >= PP_LEAST_CHUNK) /* the end of a prompt costs what the weights cost, and tells nothing of a row */
        p->row_ns = (double)ns / rows;
}
