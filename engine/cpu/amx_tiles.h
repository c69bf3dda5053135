/* amx_tiles.h - tile configuration and compiler barriers for all users of AMX. To be included after <immintrin.h>, or
 * after the tests' software model of the instructions. Private to engine/cpu. */
#ifndef PP_CPU_AMX_TILES_H
#define PP_CPU_AMX_TILES_H

#include <stdint.h>

/* The shapes of the eight tile registers; the layout is that of ldtilecfg (Intel's manual, volume 1, chapter 18). */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14]; /* palette 1 */
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64)));
_Static_assert(sizeof(struct tile_shapes) == 64, "what ldtilecfg reads");

/* The compiler does not know that tile loads read memory, nor what tile stores write. */
static inline __attribute__((always_inline)) void finish_stores(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Configures the tiles. Call _tile_release() afterwards: tiles in use make every context switch more expensive. */
static inline __attribute__((always_inline)) void shape_tiles(const struct tile_shapes *shapes)
{
    __asm__ volatile("" : : "r"(shapes) : "memory"); /* compilers believe that only 8 bytes of it are read */
    _tile_loadconfig(shapes);
}

#endif
