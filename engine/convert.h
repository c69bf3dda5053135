/* convert.h - making files: folders to GGUF, adapters to GGUF, quantising. Public header of libpippin.
 *
 * Memory stays bounded for models: one tensor at a time. Output appears by rename when it is complete. */
#ifndef PP_ENGINE_CONVERT_H
#define PP_ENGINE_CONVERT_H

#include <stddef.h>

#include "engine/base/cancel.h"
#include "engine/base/error.h"

/* Called between tensors; done and total in bytes of source tensors. */
typedef void pp_convert_progress(void *user, const char *tensor, size_t done, size_t total);

struct pp_convert_options {
    const char *out_type;            /* "F32", "F16", "BF16", or NULL: as stored. Norms and biases are always F32 */
    pp_convert_progress *progress;   /* or NULL */
    void *user;
    const struct pp_cancel *cancel;  /* or NULL */
    const char *base;                /* for adapters: the model they belong to, which tells how large a head is. NULL:
                                      * what the adapter names if that is a path, else the folder that holds the
                                      * adapter's */
};

/* src: a Hugging Face folder (config.json) or a PEFT or MLX adapter folder (adapter_config.json); dst: a GGUF path.
 * Names, permutation of q and k, and metadata follow llama.cpp's converters, so that the file runs there too.
 *
 * Of adapters GGUF has matrices A and B, norms in the model's place and one alpha. Where a matrix's scale is not that
 * alpha divided by its rank, the rest is multiplied into its B, which is then F32. PP_ERR_UNSUPPORTED names what GGUF
 * has no place for: DoRA, IA3, biases, whole matrices. */
enum pp_code pp_convert_to_gguf(const char *src, const char *dst, const struct pp_convert_options *opt,
                                struct pp_error *err);

/* src: a GGUF adapter; dst: a folder, made if need be, that gets adapter_config.json and adapter_model.safetensors as
 * PEFT writes them, without a rounding: quantised matrices become F32. Memory: copies of q's and k's halves, and of all
 * that changes its type. */
enum pp_code pp_convert_to_peft(const char *src, const char *dst, const struct pp_convert_options *opt,
                                struct pp_error *err);

/* src: a GGUF file or HF folder with float tensors (or a GGUF already quantised, which is dequantised first, with the
 * loss that this means); type: one of pp_quantize_type, "Q4_K_M" for example. Which tensor gets which type
 * follows llama-quantize (tests hold it against testdata/quants/starter_reference.json). */
enum pp_code pp_quantize_file(const char *src, const char *dst, const char *type, const struct pp_convert_options *opt,
                              struct pp_error *err);
/* The types that pp_quantize_file knows; i from 0, NULL at the end. */
const char *pp_quantize_type(size_t i);
/* The type that a name means, case ignored, as pp_quantize_type spells it: "q4_k" and the like mean the M mixture.
 * NULL: none. */
const char *pp_quantize_name(const char *name);

#endif
