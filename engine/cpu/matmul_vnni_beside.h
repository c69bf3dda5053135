/* matmul_vnni_beside.h - products with one activation row, for vectors of a whole group. Private to matmul_vnni_body.h,
 * which says what its vectors are.
 *
 * GROUPS groups of weights are read side by side, two lines of each in turn, prefetching near by: that gives the
 * processor GROUPS long streams to follow. Or a single group, prefetched in its pp_stream_way: the dependent chain of
 * sums for each block is half as long as where several rows are multiplied, and a line that two blocks share is loaded
 * once. Two and four groups prefetched in that way are faster only from caches.
 *
 * The number of groups depends on the processor: eight for Intel's (stream_ahead.h), four for a Zen 5. Two cores,
 * 90,112 rows of 4,096 columns, medians of nine turns in two starts, GB/s with eight, four and two groups: Q8_0 54.1,
 * 60.3, 61.0 and 52.8, 60.3, 56.1; Q4_0 49.9, 52.5, 47.7 and 56.8, 54.1, 52.6; Q6_K 44.2, 50.0, 47.8 and 51.0, 57.3,
 * 56.4; Q4_K 47.4, 51.8, 52.5 and 45.6, 47.3, 51.3. Four groups from 1 and 3 KiB ahead, and with four lines of each in
 * turn, were equal or slower; six lay between; four without prefetching are as fast with Q8_0 only (61.0, 42.8, 35.6,
 * 37.9). */

enum {
    BESIDE = 8,       /* most groups: their sums, two vectors each, fit the registers */
    BESIDE_OF_ZEN_5 = 4,
    BESIDE_SLICES = 2, /* of a group at a time */
    BESIDE_AHEAD = 8, /* distance in blocks at which lines of scales are prefetched */
};

/* Whether a byte holds two weights. */
INLINE bool has_two_digits(const uint32_t type)
{
    return type == PP_TYPE_Q4_0 || type == PP_TYPE_Q4_K;
}

/* Whether one row is faster with a single group in this way than as several rows are. Two cores of a Zen 4, tokens/s as
 * several rows and in this way, medians of nine rounds in turn: Q4_K 170 and 208, Q6_K 93 and 98, Q4_0 136 and 147;
 * Q8_0 97 and 86. Intel's processors, for which weights are prefetched from eight pages, are no faster with it. */
INLINE bool goes_alone(const uint32_t type)
{
    return type != PP_TYPE_Q8_0;
}

/* Multiplies BESIDE_SLICES lines of slices of a group, the step-th of a block, and what else the lines hold: for Q4_K
 * the next block's slices, for the others the second half's. ahead: distance in bytes of prefetches, if near. isum[0]:
 * of the block or its first half; isum[1]: of the next block or the second half. High nibbles are multiplied in place,
 * so that their sum is 16 times too large: that takes one shift of the sum instead of one for each line. */
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

/* Prefetches a line of a group's scales: if they are apart from the weights, those of BESIDE_AHEAD blocks further on;
 * else, a line per block (for Q4_K two per two), those of a super-block's struct. */
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

/* Consecutive groups: group g begins at first + g * bytes. */
struct beside {
    const uint8_t *first;
    size_t bytes;
    int64_t n_cols;
};

INLINE struct block beside_block(const uint32_t type, const struct beside *groups, const int g, int64_t b)
{
    return block_at(type, groups->first + groups->bytes * (size_t)g, groups->n_cols, b);
}

/* What block b of each group is multiplied by. in: its index in its chunk; left: blocks from it to the groups' end. */
struct beside_step {
    int64_t b, left;
    const struct side *s;
    int in;
    const int8_t *q;
};

/* isum[g]: the integer sums of each group's block, see beside_slices(). */
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

/* acc[g] += block b of each group, for Q4_K also block b + 1. twin: for Q6_K where the sum of the first twin waits for
 * the second. */
INLINE void multiply_beside(const uint32_t type, const struct beside *groups, const struct beside_step *at,
                            const bool second, fvec *twin, fvec *acc, const int GROUPS)
{
    const enum kind kind = kind_of(type);
    const size_t pace = type == PP_TYPE_Q8_0 ? 512 : type == PP_TYPE_Q6_K ? 424 : type == PP_TYPE_Q4_K ? 296 : 256;
    const size_t scale_bytes = scales_apart(type) ? pp_pack_scale_bytes(groups->n_cols) : 0;
    /* from a group's end to the same place in the groups that come next */
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

/* Rows [row, row1), as many as make whole sets of GROUPS groups, over the n_blocks from b0 on. Returns the first row
 * that is left. */
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
