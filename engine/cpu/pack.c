/* pack.c - packs the rows of a file into groups of 16 rows (pack.h).
 *
 * The 16 rows of a group are read in parallel: 4 bytes of each make a slice, which is written as a whole, so that the
 * group is filled from its beginning to its end. Bits are rearranged on whole slices. */
#include "engine/cpu/pack.h"

#include <string.h>

#include "engine/quant_blocks.h"

bool pp_pack_needed(uint32_t type)
{
    return pp_pack_group_bytes(type, 256) != 0;
}

size_t pp_pack_bytes(uint32_t type, int64_t n_rows, int64_t n_cols)
{
    size_t groups = ((size_t)n_rows + PP_GROUP_ROWS - 1) / PP_GROUP_ROWS;
    return groups * pp_pack_group_bytes(type, n_cols);
}

/* A slice as words: element r holds 4 bytes of row r, with the first column in the lowest byte, as in memory. */
typedef uint32_t slice_words[PP_GROUP_ROWS];

/* The positions at which the 16 rows of a group are read. Rows past the matrix's end read the same block repeatedly. */
struct lanes {
    const uint8_t *at[PP_GROUP_ROWS];
    size_t step[PP_GROUP_ROWS]; /* to the next block */
};

static void next_block(struct lanes *l)
{
    for (int r = 0; r < PP_GROUP_ROWS; r++)
        l->at[r] += l->step[r];
}

typedef uint32_t quad __attribute__((vector_size(16)));

/* Transposes the 4 x 4 matrix whose rows are the four vectors. */
static void transpose(quad w[4])
{
    quad low01 = __builtin_shufflevector(w[0], w[1], 0, 4, 1, 5);
    quad low23 = __builtin_shufflevector(w[2], w[3], 0, 4, 1, 5);
    quad high01 = __builtin_shufflevector(w[0], w[1], 2, 6, 3, 7);
    quad high23 = __builtin_shufflevector(w[2], w[3], 2, 6, 3, 7);
    w[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    w[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    w[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    w[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

/* Makes n slices (a multiple of 4) of n words of each row, from `offset` of its block on. */
static inline void gather(const struct lanes *l, size_t offset, int n, slice_words *to)
{
    for (int w = 0; w < n; w += 4)
        for (int r = 0; r < PP_GROUP_ROWS; r += 4) {
            quad q[4];
            for (int i = 0; i < 4; i++)
                memcpy(&q[i], l->at[r + i] + offset + 4 * (size_t)w, sizeof q[i]);
            transpose(q);
            for (int i = 0; i < 4; i++)
                memcpy(&to[w + i][r], &q[i], sizeof q[i]);
        }
}

static inline void gather_scales(const struct lanes *l, size_t offset, void *to)
{
    uint16_t d[PP_GROUP_ROWS];
    for (int r = 0; r < PP_GROUP_ROWS; r++)
        memcpy(&d[r], l->at[r] + offset, sizeof d[r]);
    memcpy(to, d, sizeof d);
}

/* Transposes the bytes of a slice: to[i] has column i of all rows. */
static inline void split_bytes(const slice_words w, uint8_t to[4][PP_GROUP_ROWS])
{
    for (int i = 0; i < 4; i++)
        for (int r = 0; r < PP_GROUP_ROWS; r++)
            to[i][r] = (uint8_t)(w[r] >> 8 * i);
}

/* Each pack_* fills a group with n blocks of 16 rows. */

static void pack_q8_0(struct lanes *l, int64_t n, uint8_t *group)
{
    uint8_t *slices = group + pp_pack_scale_bytes(32 * n);
    for (int64_t b = 0; b < n; b++, next_block(l)) {
        slice_words q[8];
        gather_scales(l, offsetof(struct pp_block_q8_0, d), group + 32 * b);
        gather(l, offsetof(struct pp_block_q8_0, q), 8, q);
        for (int v = 0; v < 8; v++)
            for (int r = 0; r < PP_GROUP_ROWS; r++)
                q[v][r] ^= 0x80808080; /* adds 128 to every byte */
        memcpy(slices + 8 * PP_SLICE * b, q, sizeof q);
    }
}

static void pack_q4_0(struct lanes *l, int64_t n, uint8_t *group)
{
    uint8_t *slices = group + pp_pack_scale_bytes(32 * n);
    for (int64_t b = 0; b < n; b++, next_block(l)) {
        slice_words q[4];
        gather_scales(l, offsetof(struct pp_block_q4_0, d), group + 32 * b);
        gather(l, offsetof(struct pp_block_q4_0, q), 4, q);
        memcpy(slices + 4 * PP_SLICE * b, q, sizeof q);
    }
}

/* The 6-bit scales and minima of a block's 8 sub-blocks, as bytes: pp_q4_k_scale_min() does this for one. */
static void unpack_q4_k_scales(const slice_words packed[3], struct pp_q4_k_pack *p)
{
    slice_words sc[2], m[2];
    for (int r = 0; r < PP_GROUP_ROWS; r++) {
        uint32_t a = packed[0][r], b = packed[1][r], c = packed[2][r];
        sc[0][r] = a & 0x3f3f3f3f;
        m[0][r] = b & 0x3f3f3f3f;
        sc[1][r] = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
        m[1][r] = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    }
    for (int i = 0; i < 2; i++) {
        split_bytes(sc[i], p->sc + 4 * i);
        split_bytes(m[i], p->m + 4 * i);
    }
}

static void pack_q4_k(struct lanes *l, int64_t n, uint8_t *group)
{
    struct pp_q4_k_pack *p = (struct pp_q4_k_pack *)group;
    for (int64_t s = 0; s < n; s++, p++, next_block(l)) {
        slice_words head[4], q[32]; /* the head: d and dmin, then 12 bytes of scales */
        gather(l, 0, 4, head);
        for (int r = 0; r < PP_GROUP_ROWS; r++) {
            p->d[r] = (uint16_t)head[0][r];
            p->dmin[r] = (uint16_t)(head[0][r] >> 16);
        }
        unpack_q4_k_scales(head + 1, p);
        gather(l, offsetof(struct pp_block_q4_k, q), 32, q);
        memcpy(p->q, q, sizeof q);
    }
}

/* Packs sub-block b of 32 columns from the slices of a whole block. For the order of the file see unpack_q6_k() in
 * quant.c, for that of low and high pack.h. */
static inline void pack_q6_k_block(const slice_words ql[32], const slice_words qh[16], int b, uint8_t low[4][PP_SLICE],
                                   uint8_t high[2][PP_SLICE])
{
    const int l0 = b / 4 * 16 + b % 2 * 8, h0 = b / 4 * 8, shift = b % 4 / 2 * 4, shift_high = b % 4 * 2;
    slice_words lows[4], highs[4];
    for (int v = 0; v < 4; v++)
        for (int r = 0; r < PP_GROUP_ROWS; r++) {
            uint32_t first = ql[l0 + v][r] >> shift & 0x0f0f0f0f, first_high = qh[h0 + v][r] >> shift_high & 0x03030303;
            uint32_t second = ql[l0 + 4 + v][r] >> shift & 0x0f0f0f0f;
            uint32_t second_high = qh[h0 + 4 + v][r] >> shift_high & 0x03030303;
            uint32_t second_low = second & 0x03030303;
            lows[v][r] = first | (second & 0x0c0c0c0c) << 2 | second_high << 6;
            highs[v][r] = v % 2 ? first_high << 6 | second_low : first_high << 4 | second_low << 2;
        }
    memcpy(low, lows, sizeof lows);
    for (int v = 0; v < 4; v += 2) {
        for (int r = 0; r < PP_GROUP_ROWS; r++)
            highs[v][r] |= highs[v + 1][r];
        memcpy(high[v / 2], highs[v], PP_SLICE);
    }
}

static void pack_q6_k(struct lanes *l, int64_t n, uint8_t *group)
{
    struct pp_q6_k_pack *p = (struct pp_q6_k_pack *)group;
    for (int64_t s = 0; s < n; s++, p++, next_block(l)) {
        slice_words ql[32], qh[16], scales[4];
        gather(l, offsetof(struct pp_block_q6_k, ql), 32, ql);
        gather(l, offsetof(struct pp_block_q6_k, qh), 16, qh);
        gather(l, offsetof(struct pp_block_q6_k, scales), 4, scales);
        gather_scales(l, offsetof(struct pp_block_q6_k, d), p->d);
        memset(p->zeros, 0, sizeof p->zeros);
        for (int i = 0; i < 4; i++)
            split_bytes(scales[i], (uint8_t(*)[PP_GROUP_ROWS])p->sc + 4 * i);
        for (int b = 0; b < 8; b++)
            pack_q6_k_block(ql, qh, b, p->q[b].low, p->q[b].high);
    }
}

/* A block of the file whose packed form is all zero bytes (its scale is 0, too), for rows past the end. */
static const void *absent_block(uint32_t type)
{
    static const struct pp_block_q8_0 q8_0 = {.q = {[0 ... 31] = -128}};
    static const uint8_t zeros[sizeof(struct pp_block_q6_k)]; /* the largest block */
    return type == PP_TYPE_Q8_0 ? (const void *)&q8_0 : zeros;
}

static void pack_group(uint32_t type, struct lanes *l, int64_t n_cols, uint8_t *group)
{
    switch (type) {
    case PP_TYPE_Q8_0:
        pack_q8_0(l, n_cols / 32, group);
        break;
    case PP_TYPE_Q4_0:
        pack_q4_0(l, n_cols / 32, group);
        break;
    case PP_TYPE_Q4_K:
        pack_q4_k(l, n_cols / 256, group);
        break;
    case PP_TYPE_Q6_K:
        pack_q6_k(l, n_cols / 256, group);
        break;
    default:
        pp_pack_blocks(type, l->at, l->step, n_cols, group);
    }
}

void pp_pack_rows(uint32_t type, const void *src, int64_t n_rows, int64_t n_cols, int64_t row0, int64_t row1, void *dst)
{
    const struct pp_type_info *info = pp_type_info(type);
    size_t row_bytes = pp_type_row_bytes(type, n_cols), group_bytes = pp_pack_group_bytes(type, n_cols);
    bool scales_first = type == PP_TYPE_Q8_0 || type == PP_TYPE_Q4_0;
    for (int64_t first = row0; first < row1; first += PP_GROUP_ROWS) {
        uint8_t *group = (uint8_t *)dst + (size_t)(first / PP_GROUP_ROWS) * group_bytes;
        struct lanes l;
        for (int r = 0; r < PP_GROUP_ROWS; r++) {
            bool absent = first + r >= n_rows;
            l.at[r] = absent ? absent_block(type) : (const uint8_t *)src + (size_t)(first + r) * row_bytes;
            l.step[r] = absent ? 0 : (size_t)info->block_bytes;
        }
        if (scales_first) { /* clears the padding after the scales */
            size_t used = (size_t)n_cols; /* bytes: 16 scales of 2 bytes for every 32 columns */
            memset(group + used, 0, pp_pack_scale_bytes(n_cols) - used);
        }
        pack_group(type, &l, n_cols, group);
    }
}
