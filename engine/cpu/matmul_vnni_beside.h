/* matmul_vnni_beside.h - products of a single activation row, with vectors that hold a whole group (16 lanes). Private
 * to matmul_vnni_body.h.
 *
 * Several groups of weights are read interleaved, two lines of one group after two lines of the next, each prefetching
 * nearby lines (PP_WAY_BESIDE). So the processor has GROUPS long streams to follow. Or a single group is read,
 * prefetched in its pp_stream_way. Compared with stream_block(), the dependent chain of sums for each block is then
 * half as long, and a line that two blocks share is loaded once. Two or four groups prefetched in that way are faster
 * only when the weights are in a cache.
 *
 * The best number of groups depends on the processor: eight for Intel's (stream_ahead.h), four for a Zen 5. Measured on
 * two cores of a Zen 5 with 90,112 rows of 4,096 columns, medians of nine runs in each of two starts of the program:
 *
 *   GB/s     8 groups     4 groups     2 groups
 *   Q8_0     54.1  52.8   60.3  60.3   61.0  56.1
 *   Q4_0     49.9  56.8   52.5  54.1   47.7  52.6
 *   Q6_K     44.2  51.0   50.0  57.3   47.8  56.4
 *   Q4_K     47.4  45.6   51.8  47.3   52.5  51.3
 *
 * Four groups prefetching 1 or 3 KiB ahead, or alternating after four lines, were equal or slower; six groups lay
 * between four and eight. Four groups without prefetching are as fast only with Q8_0 (61.0, 42.8, 35.6, 37.9). */

enum {
    BESIDE = 8,       /* most groups: their sums, two vectors each, fit the registers */
    BESIDE_OF_ZEN_5 = 4,
    BESIDE_SLICES = 2, /* slices (lines) of a group before the next group's turn */
    BESIDE_AHEAD = 8, /* distance in blocks at which scales are prefetched */
};

/* Whether a byte holds two 4-bit weights and nothing else. */
INLINE bool has_two_digits(const uint32_t type)
{
    return type == PP_TYPE_Q4_0 || type == PP_TYPE_Q4_K;
}

/* Whether a single activation row is faster with the code of this file and one group than with stream_block(). Tokens/s
 * on two cores of a Zen 4 with stream_block() and with this code, medians of nine alternating runs: Q4_K 170 and 208,
 * Q6_K 93 and 98, Q4_0 136 and 147; Q8_0 97 and 86. Intel's processors, whose weights are prefetched from eight pages,
 * gain nothing. */
INLINE bool goes_alone(const uint32_t type)
{
    return type != PP_TYPE_Q8_0;
}

/* Multiplies the step-th BESIDE_SLICES lines of a group's block. Where a line holds two slices, the high nibbles are
 * multiplied, too: for Q4_K these belong to the next block, for the others to the block's second half. isum[0]: the sum
 * of the block or of its first half; isum[1]: of the next block or of the second half. High nibbles are multiplied
 * where they are, so that their sum is 16 times too large; one shift of the sum then replaces a shift of each line.
 * near: prefetches lines `ahead` bytes away. */
INLINE void beside_slices(const uint32_t type, const struct block *w, const int step, const int8_t *q, const bool near,
                          size_t ahead, ivec *isum)
{
    if (near && type == PP_TYPE_Q6_K) /* a line of high bits for two of low ones */
        __builtin_prefetch((const void *)((uintptr_t)w->bytes + PP_SLICE * (size_t)(4 + step) + ahead), 0, 3);
    UNROLL for (int v = step * BESIDE_SLICES; v < (step + 1) * BESIDE_SLICES; v++)
    {
        const uint8_t *line = w->bytes + PP_SLICE * v;
        ivec loaded = i_load(line);
        if (near)
            STREAM_NEAR(loaded, line, ahead);
        isum[0] = i_dot4(isum[0], unpack_slice(type, w, v, 0, false), i_set4(q + 4 * v));
        if (has_two_digits(type))
            isum[1] = i_dot4(isum[1], i_and(loaded, i_set1((int32_t)0xf0f0f0f0)),
                             i_set4(q + (type == PP_TYPE_Q4_K ? 32 : 16) + 4 * v));
        else if (type == PP_TYPE_Q6_K)
            isum[1] = i_dot4(isum[1], unpack_slice(type, w, 4 + v, 0, false), i_set4(q + 16 + 4 * v));
    }
}

/* Prefetches a line of a group's scales: if they are stored before the weights, those of the block BESIDE_AHEAD further
 * on; else, one line per block, the first lines of a later super-block. */
INLINE void ask_for_scales(const uint32_t type, const struct block *w, int64_t b, int64_t left, size_t ahead,
                           size_t next_scales)
{
    enum { HEAD_LINES = 5 };
    const int blocks = type == PP_TYPE_Q4_K ? 2 : 1;
    const uintptr_t at = (uintptr_t)w->scales;
    if (scales_apart(type)) {
        __builtin_prefetch((const void *)(at + (left > BESIDE_AHEAD ? 32 * BESIDE_AHEAD : next_scales)), 0, 3);
        return;
    }
    UNROLL for (int k = 0; k < 2; k++)
        if (k < blocks && b % 8 + k < HEAD_LINES)
            __builtin_prefetch((const void *)(at + ahead + PP_SLICE * (size_t)(b % 8 + k)), 0, 3);
}

/* Consecutive groups that are read interleaved: group g begins at first + g * bytes. */
struct beside {
    const uint8_t *first;
    size_t bytes;
    int64_t n_cols;
};

INLINE struct block beside_block(const uint32_t type, const struct beside *groups, const int g, int64_t b)
{
    return block_at(type, groups->first + groups->bytes * (size_t)g, groups->n_cols, b);
}

/* The activations that block b of each group is multiplied by. in: the block's index in its chunk; left: the number of
 * blocks from b to the end of the groups. */
struct beside_step {
    int64_t b, left;
    const struct side *s;
    int in;
    const int8_t *q;
};

/* Computes isum[g], the integer sums of each group's block, as in beside_slices(). */
INLINE void sums_beside(const uint32_t type, const struct beside *groups, const struct beside_step *at, size_t ahead,
                        ivec (*isum)[2], const int GROUPS)
{
    const enum kind kind = kind_of(type);
    const int steps = (type == PP_TYPE_Q8_0 || type == PP_TYPE_Q4_K ? 8 : 4) / BESIDE_SLICES;
    UNROLL for (int g = 0; g < GROUPS; g++)
    {
        isum[g][0] = first_sum(kind, at->s, at->in, 0);
        isum[g][1] = is_halved(kind) ? first_sum(kind, at->s, at->in, 1) : i_zero();
    }
    UNROLL for (int step = 0; step < steps; step++)
        UNROLL for (int g = 0; g < GROUPS; g++)
        {
            const struct block w = beside_block(type, groups, g, at->b);
            beside_slices(type, &w, step, at->q, GROUPS > 1, ahead, isum[g]);
        }
    if (!has_two_digits(type))
        return;
    UNROLL for (int g = 0; g < GROUPS; g++)
    {
        isum[g][1] = i_over16(isum[g][1]);
        if (type == PP_TYPE_Q4_0)
            isum[g][0] = i_add(isum[g][0], isum[g][1]);
    }
}

/* acc[g] += the products of block b of each group, for Q4_K also of block b + 1. twin: for Q6_K, keeps the sum of the
 * first twin until the second one is added. */
INLINE void multiply_beside(const uint32_t type, const struct beside *groups, const struct beside_step *at,
                            const bool second, fvec *twin, fvec *acc, const int GROUPS)
{
    const enum kind kind = kind_of(type);
    const size_t pace = type == PP_TYPE_Q8_0 ? 512 : type == PP_TYPE_Q6_K ? 424 : type == PP_TYPE_Q4_K ? 296 : 256;
    const size_t scale_bytes = scales_apart(type) ? pp_pack_scale_bytes(groups->n_cols) : 0;
    /* what prefetches beyond a group's end skip, to arrive at the group that follows all of these */
    const size_t jump = (size_t)(GROUPS - 1) * groups->bytes + scale_bytes;
    const size_t next_scales = (size_t)GROUPS * groups->bytes - scale_bytes + 32 * BESIDE_AHEAD;
    const size_t ahead = PP_NEAR_AHEAD + ((size_t)at->left * pace <= PP_NEAR_AHEAD ? jump : 0);
    ivec isum[BESIDE][2];
    sums_beside(type, groups, at, ahead, isum, GROUPS);
    UNROLL for (int g = 0; g < GROUPS; g++)
    {
        fvec scale[MAX_SCALES];
        struct block w = beside_block(type, groups, g, at->b);
        if (GROUPS > 1)
            ask_for_scales(type, &w, at->b, at->left, ahead, next_scales);
        unpack_scales(type, &w, 0, scale);
        const fvec whole = is_halved(kind) ? first_half(isum[g][0], scale) : f_zero();
        const fvec sum = block_sum(kind, isum[g][is_halved(kind)], whole, scale);
        if (is_twins(kind) && !second)
            twin[g] = sum;
        else
            acc[g] = add_block(kind, acc[g], is_twins(kind) ? f_add(twin[g], sum) : sum, scale, NULL, at->s, at->in);
        if (type == PP_TYPE_Q4_K) {
            w.in++;
            unpack_scales(type, &w, 0, scale);
            acc[g] = add_block(kind, acc[g], i_to_f(isum[g][1]), scale, NULL, at->s, at->in + 1);
        }
    }
}

/* Multiplies the rows from `row` on, as many before row1 as fill whole sets of GROUPS groups, over blocks b0 to
 * b0 + n_blocks - 1. Returns the first remaining row. */
INLINE int64_t beside_rows(const uint32_t type, const struct pp_matrix *w, int64_t row, int64_t row1, int64_t b0,
                           int64_t n_blocks, const struct side *side, const struct pp_acts *x, float *y,
                           const int GROUPS)
{
    const enum pp_stream_way how = stream_way_of(x, 1);
    const int STEP = blocks_together(type);
    for (; row1 - row >= GROUPS * PP_GROUP_ROWS; row += GROUPS * PP_GROUP_ROWS) {
        const struct beside groups = {pp_pack_group(w, row), pp_pack_group_bytes(type, w->n_cols), w->n_cols};
        fvec acc[BESIDE], twin[BESIDE];
        UNROLL for (int g = 0; g < GROUPS; g++)
            acc[g] = b0 ? f_load_some(y + row + PP_GROUP_ROWS * g, LANES) : f_zero();
        for (int64_t b = 0; b < n_blocks; b += STEP) {
            const struct side *s = side + b / CHUNK;
            const int8_t *q = x->q + 32 * (b0 + b);
            if (GROUPS == 1)
                ask_ahead(type, groups.first, w->n_cols, b0 + b, how);
            const struct beside_step at = {b0 + b, n_blocks - b, s, (int)(b % CHUNK), q};
            multiply_beside(type, &groups, &at, false, twin, acc, GROUPS);
            if (is_twins(kind_of(type))) {
                const struct beside_step then = {at.b + 1, at.left - 1, s, at.in + 1, q + 32};
                multiply_beside(type, &groups, &then, true, twin, acc, GROUPS);
            }
        }
        UNROLL for (int g = 0; g < GROUPS; g++)
            f_store_some(y + row + PP_GROUP_ROWS * g, LANES, acc[g]);
    }
    return row;
}
