/* mlx_groups.h - MLX's groups: neighbouring weights as integers of a few bits, with a scale and a bias in half
 * precision or bfloat16. */
#ifndef PP_ENGINE_MLX_GROUPS_H
#define PP_ENGINE_MLX_GROUPS_H

#include <stdint.h>

/* Quantises n floats to 4 or 8 bits; type: of *scale and *bias. The value farthest from zero, and zero itself, are
 * represented well: scale and bias are rounded first. If values are NaN, infinite or too large, so is scale or bias. */
void pp_mlx_group_of_floats(int bits, uint32_t type, const float *w, int64_t n, uint8_t *q, uint16_t *scale,
                            uint16_t *bias);
/* Blocks of Q4_0 and Q4_1 are such groups already. Returns the end of the block. */
const uint8_t *pp_mlx_group_of_block(uint32_t type, const uint8_t *block, uint8_t *q, uint16_t *scale,
                                     uint16_t *bias);

#endif
