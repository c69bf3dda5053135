/* quant_grids.h - the code books of the IQ types, which store weights as the index of an entry. Filled before main,
 * read-only from then on. */
#ifndef PP_ENGINE_QUANT_GRIDS_H
#define PP_ENGINE_QUANT_GRIDS_H

#include <stdint.h>

/* Eight weights per entry, a byte each, the first lowest: magnitudes; in IQ1 0, 8 and 16 for -1, 0 and 1. */
#define PP_IQ2_MAGNITUDES {8, 25, 43}
extern uint64_t pp_grid_iq2_xxs[256], pp_grid_iq2_xs[512], pp_grid_iq2_s[1024], pp_grid_iq1[2048];
/* Four per entry. */
#define PP_IQ3_XXS_MAGNITUDES {4, 12, 20, 28, 36, 44, 52, 62}
#define PP_IQ3_S_MAGNITUDES {1, 3, 5, 7, 9, 11, 13, 15}
extern uint32_t pp_grid_iq3_xxs[256], pp_grid_iq3_s[512];

/* The same as the file format defines them: 2 bits per weight in entries of eight, 4 in entries of four, the first
 * lowest; the numbers count the magnitudes. */
extern const uint16_t pp_packed_iq2_xxs[256], pp_packed_iq2_xs[512], pp_packed_iq3_xxs[256], pp_packed_iq3_s[512];

/* IQ4_NL, IQ4_XS: the value of a nibble; MXFP4: twice the value of an E2M1 number. */
#define PP_IQ4_VALUES {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
#define PP_MXFP4_VALUES {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

/* Signs of IQ2_XXS, IQ2_XS and IQ3_XXS: the low seven bits give eight signs, of which the last makes the number of
 * negative ones even. */
static inline uint32_t pp_even_signs(uint32_t bits)
{
    uint32_t seven = bits & 127u, parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 1u) << 7;
}

#endif
