/* hf_quant.h - which tensors of a Hugging Face or MLX folder are quantised, how, and what they become. Private to the
 * engine.
 *
 * Formats, from their sources: FP8 (transformers integrations/finegrained_fp8.py), with DeepSeek V4's experts in MXFP4,
 * two values in a byte (its inference/convert.py), gpt-oss' MXFP4 (transformers integrations/mxfp4.py: NAME_blocks
 * [n_expert, n_out, n_in / 32, 16], NAME_scales [n_expert, n_out, n_in / 32]), bitsandbytes in four bits (functional.py
 * QuantState; kernels.cu), GPTQ (AutoGPTQ, GPTQModel qlinear), AWQ (AutoAWQ utils/packing_utils.py, version "gemm";
 * modules/linear/gemv.py), compressed-tensors (compressors/quantized_compressors: integers packed or one in a byte,
 * FP8, NVFP4, MXFP4), NVIDIA's modelopt (FP8, NVFP4, MXFP8), BitNet (integrations/bitnet.py: bytes [n_out / 4, n_in],
 * in which bits 2 i and 2 i + 1 belong to the i-th quarter of the rows, and one scale), MLX affine groups
 * (mlx/backend/cpu/quantized.cpp) and its modes mxfp4, mxfp8 and nvfp4 (the table at mlx.core.quantize).
 *
 * What they become. All products quantise activations to int8 with one scale per 32, an error of 0.53 %, so an error of
 * the weights far below that loses nothing:
 * - MXFP4 is kept bit by bit; so are weights with three values, as TQ2_0, if 256 divides the rows;
 * - integers of up to 4 bits in groups of a multiple of 32: Q4_0 if all zero points are 8 (symmetric GPTQ), otherwise
 *   Q4_1. The integers are kept, scale and offset are rounded to F16: exact for scales in F16, and for those in BF16
 *   from 2^-17 on; the offset -scale * zero of GPTQ and AWQ has a relative error of at most 2^-12;
 * - integers of 5 bits: Q5_1 in the same way; of 8 bits with zero points of 128: Q8_0 in the same way;
 * - everything else (FP8, NF4, FP4, NVFP4, integers of 6 and 8 bits, and GPTQ with act-order, where neighbours are in
 *   different groups): Q8_0, whose own rounding is below 0.5 % of the weights' size and much finer than the form's
 *   steps;
 * - rows that 32 does not divide: F16. */
#ifndef PP_ENGINE_HF_QUANT_H
#define PP_ENGINE_HF_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/hf.h"
#include "engine/rows.h"
#include "engine/types.h"

struct pp_hf_quant {
    enum pp_hf_method {
        PP_QUANT_NONE,
        PP_QUANT_FP8,
        PP_QUANT_BNB,
        PP_QUANT_GPTQ,
        PP_QUANT_AWQ,
        PP_QUANT_MLX,
        PP_QUANT_MXFP4,
        PP_QUANT_COMPRESSED,
        PP_QUANT_MODELOPT,
        PP_QUANT_TERNARY,
    } method;
    int64_t bits, group;        /* GPTQ, AWQ, MLX; GPTQ: group -1 means the whole row */
    enum pp_mlx_mode { PP_MLX_AFFINE, PP_MLX_MXFP4, PP_MLX_MXFP8, PP_MLX_NVFP4 } mode;
    bool along;                 /* AWQ's version "gemv": a word holds values of one row */
    int64_t block_rows, block_cols; /* of FP8 */
    bool divided;               /* TERNARY: weights are divided by the scale */
    bool zeros_less_one;        /* GPTQ's first format stores zero points less one */
    const struct cJSON *layers; /* MLX: "model.layers.0.mlp.up_proj": {"bits": 6, "group_size": 64} */
};

/* config: config.json, which must stay open; text: its part for the language model, or the same. PP_ERR_UNSUPPORTED
 * names an unknown method, and what to do. */
enum pp_code pp_hf_quant_read(const struct cJSON *config, const struct cJSON *text, struct pp_hf_quant *q,
                              struct pp_error *err);

enum pp_hf_role {
    PP_HF_PLAIN,
    PP_HF_PACKED, /* the leading tensor of a quantised matrix */
    PP_HF_PART,   /* another tensor of such a matrix */
};
/* The role of tensor i. name: emptied, or for PACKED the name of the matrix ("model.norm.weight"). */
enum pp_hf_role pp_hf_quant_role(const struct pp_hf_quant *q, const struct pp_hf *hf, size_t i, struct pp_buf *name);
/* Finds and checks all tensors of a PACKED one. t: type and shape of what it becomes, data NULL. The error names the
 * tensor. */
enum pp_code pp_hf_quant_open(const struct pp_hf_quant *q, const struct pp_hf *hf, size_t i, struct pp_rows *rows,
                              struct pp_tensor *t, struct pp_error *err);

#endif
