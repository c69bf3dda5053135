/* mlx_groups.h - MLX's groups: neighbouring weights as whole numbers of a few bits, with a scale and a bias in halves
 * or bfloat16. */
#ifndef PP_ENGINE_MLX_GROUPS_H
#define PP_ENGINE_MLX_GROUPS_H

#include <stdint.h>

/* Of n floats, in 4 bits or 8; type: of *scale and *bias. The value that is farthest from zero is met, and zero itself:
 * scale and bias are rounded first. Of values that are no numbers, or too large, scale or bias is none. */
void pp_mlx_group_of_floats(int bits, uint32_t type, const float *w, int64_t n, uint8_t *q, uint16_t *scale,
                            uint16_t *bias);
/* Blocks of Q4_0 and Q4_1 are such groups already. Returns what is behind the block. */
const uint8_t *pp_mlx_group_of_block(uint32_t type, const uint8_t *block, uint8_t *q, uint16_t *scale,
                                     uint16_t *bias);

#endif
