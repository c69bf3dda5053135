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

/* Each pack_* puts one row of n_cols weights into lane r of a group that was all zeros. */

static void pack_q8_0(const uint8_t *src, int64_t n_cols, int r, uint8_t *group)
{
    uint8_t *slices = group + pp_pack_scale_bytes(n_cols);
    for (int64_t b = 0; b < n_cols / 32; b++) {
        struct pp_block_q8_0 block;
        memcpy(&block, src + (size_t)b * sizeof block, sizeof block);
        memcpy(group + 32 * b + 2 * r, &block.d, sizeof block.d);
        uint8_t *q = slices + 8 * PP_SLICE * b;
        for (int k = 0; k < 32; k++)
            q[PP_SLICE * (k / 4) + 4 * r + k % 4] = (uint8_t)(block.q[k] + 128);
    }
}

static void pack_q4_0(const uint8_t *src, int64_t n_cols, int r, uint8_t *group)
{
    uint8_t *slices = group + pp_pack_scale_bytes(n_cols);
    for (int64_t b = 0; b < n_cols / 32; b++) {
        struct pp_block_q4_0 block;
        memcpy(&block, src + (size_t)b * sizeof block, sizeof block);
        memcpy(group + 32 * b + 2 * r, &block.d, sizeof block.d);
        for (int v = 0; v < 4; v++)
            memcpy(slices + PP_SLICE * (4 * b + v) + 4 * r, block.q + 4 * v, 4);
    }
}

static void pack_q4_k(const uint8_t *src, int64_t n_cols, int r, uint8_t *group)
{
    struct pp_q4_k_pack *p = (struct pp_q4_k_pack *)group;
    for (int64_t s = 0; s < n_cols / 256; s++, p++) {
        struct pp_block_q4_k block;
        memcpy(&block, src + (size_t)s * sizeof block, sizeof block);
        p->d[r] = block.d;
        p->dmin[r] = block.dmin;
        for (int b = 0; b < 8; b++)
            pp_q4_k_scale_min(block.scales, b, &p->sc[b][r], &p->m[b][r]);
        for (int v = 0; v < 32; v++)
            memcpy(&p->q[v / 8][v % 8][4 * r], block.q + 4 * v, 4);
    }
}

static void pack_q6_k(const uint8_t *src, int64_t n_cols, int r, uint8_t *group)
{
    struct pp_q6_k_pack *p = (struct pp_q6_k_pack *)group;
    for (int64_t s = 0; s < n_cols / 256; s++, p++) {
        struct pp_block_q6_k block;
        uint8_t q[256];
        memcpy(&block, src + (size_t)s * sizeof block, sizeof block);
        pp_q6_k_unpack(&block, q);
        p->d[r] = block.d;
        for (int sub = 0; sub < 16; sub++)
            p->sc[sub][r] = block.scales[sub];
        for (int b = 0; b < 8; b++)
            for (int k = 0; k < 16; k++) {
                int v = k / 4, at = 4 * r + k % 4;
                unsigned first = q[32 * b + k], second = q[32 * b + 16 + k];
                unsigned high = v % 2 ? (first >> 4) << 6 | (second & 3) : (first >> 4) << 4 | (second & 3) << 2;
                p->q[b].low[v][at] = (uint8_t)((first & 15) | (second >> 2) << 4);
                p->q[b].high[v / 2][at] = (uint8_t)(p->q[b].high[v / 2][at] | high);
            }
    }
}

void pp_pack_rows(uint32_t type, const void *src, int64_t n_rows, int64_t n_cols, int64_t row0, int64_t row1, void *dst)
{
    size_t row_bytes = pp_type_row_bytes(type, n_cols), group_bytes = pp_pack_group_bytes(type, n_cols);
    for (int64_t first = row0; first < row1; first += PP_GROUP_ROWS) {
        uint8_t *group = (uint8_t *)dst + (size_t)(first / PP_GROUP_ROWS) * group_bytes;
        int64_t rows = n_rows - first < PP_GROUP_ROWS ? n_rows - first : PP_GROUP_ROWS;
        memset(group, 0, group_bytes);
        for (int r = 0; r < rows; r++) {
            const uint8_t *row = (const uint8_t *)src + (size_t)(first + r) * row_bytes;
            switch (type) {
            case PP_TYPE_Q8_0:
                pack_q8_0(row, n_cols, r, group);
                break;
            case PP_TYPE_Q4_0:
                pack_q4_0(row, n_cols, r, group);
                break;
            case PP_TYPE_Q4_K:
                pack_q4_k(row, n_cols, r, group);
                break;
            case PP_TYPE_Q6_K:
                pack_q6_k(row, n_cols, r, group);
                break;
            default:
                break;
            }
        }
    }
}
