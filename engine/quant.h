/* quant.h - block formats: to float and back.
 *
 * The formats are ggml's: a block holds 32 or 256 weights with shared scales; tests compare the values bit for bit with
 * reference blocks. All functions are pure and thread-safe. */
#ifndef PP_ENGINE_QUANT_H
#define PP_ENGINE_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/types.h"

float pp_f16_to_f32(uint16_t h);
uint16_t pp_f32_to_f16(float f);  /* round to nearest even; overflow gives infinity */
void pp_floats_to_f16(const float *x, uint16_t *out, int64_t n); /* the same for n */
float pp_bf16_to_f32(uint16_t h);
uint16_t pp_f32_to_bf16(float f); /* round to nearest even; NaN stays NaN */

/* src: one row of n elements of `type`; dst: float [n]. n is a multiple of the type's block.
 * type must be runnable (pp_type_info), or I32. Values are bit-exact as the format defines them. */
void pp_dequantize_row(uint32_t type, const void *src, float *dst, int64_t n);

/* src: float [n_rows, n_cols]; dst: n_rows rows of pp_type_row_bytes(type, n_cols). F32, F16 and BF16 are rounded; for
 * Q8_0, Q4_0 to Q5_1, Q2_K to Q6_K, IQ4_NL and IQ4_XS scales are searched that make the (importance-weighted) squared
 * error small. importance: float [n_cols], or NULL. n_cols must be a multiple of the block. PP_ERR_FORMAT: a value is
 * NaN, infinite or too large for the type. The error does not name the row, as these may be a part of a tensor; the
 * caller names the tensor. */
enum pp_code pp_quantize_rows(uint32_t type, const float *src, void *dst, int64_t n_rows, int64_t n_cols,
                              const float *importance, struct pp_error *err);

/* True if the row's scales and values are all finite: loaders ask this of untrusted tensors. */
bool pp_row_finite(uint32_t type, const void *src, int64_t n);

#endif
