/* convert.h - writing files: conversion of models and adapters, importance matrices, quantisation. Public header of
 * libpippin.
 *
 * Models are processed a slice of a tensor at a time, in bounded memory. Output is renamed into place when it is
 * complete, so that an error leaves what was there untouched. Any thread, several at once if they write different
 * files; a struct pp_imatrix belongs to one thread at a time. Errors of all conversions: PP_ERR_USAGE: an unknown type,
 * or a target that must not be overwritten; PP_ERR_FORMAT: the source is damaged; PP_ERR_IO; PP_ERR_CANCELLED. */
#ifndef PP_ENGINE_CONVERT_H
#define PP_ENGINE_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/cancel.h"
#include "engine/base/error.h"

/* --- importance matrices --------------------------------------------------------------------------------- */

/* The importance of the columns of a model's matrices: for each column the sum of squares of its inputs while the model
 * read some text, and the number of inputs. The mean square is the cost of an error in a weight of that column. An
 * engine that was made with one (struct pp_engine_options) accumulates it; quantisation weighs errors by it.
 *
 * Files, in GGUF as llama-imatrix writes them: general.type "imatrix"; for every tensor NAME two tensors in F32,
 * NAME.in_sum2 [columns, matrices] and NAME.counts [1, matrices], where a stack of experts has several matrices;
 * imatrix.datasets, the names of the texts; imatrix.chunk_count, imatrix.chunk_size: how many chunks of how many tokens
 * were read. Anything else (NAME.in_sum of newer versions) is ignored.
 *
 * The older format, which is read, too, little-endian: i32 number of entries; for each i32 length of its name, the
 * name, i32 calls, i32 n, f32 [n] sums in units of a chunk, counted together for all matrices of a stack; then
 * optionally i32 chunks, i32 length of a text's name, the name. Chunks are assumed to have 512 tokens. */
struct pp_imatrix;

struct pp_imatrix_info {
    size_t n_tensors;     /* tensors with data */
    size_t n_partial;     /* the part of n_tensors that are stacks with experts never used */
    uint32_t chunks, chunk_size;
    size_t n_datasets;
};

/* An empty one. The caller owns *out, here and below (pp_imatrix_free). PP_ERR_NOMEM. */
enum pp_code pp_imatrix_new(struct pp_imatrix **out, struct pp_error *err);
/* PP_ERR_FORMAT: the file is damaged, or no importance matrix. */
enum pp_code pp_imatrix_read(const char *path, struct pp_imatrix **out, struct pp_error *err);
/* Adds the data of `from`. PP_ERR_MISMATCH names a tensor with another number of columns: `from` is another model's. */
enum pp_code pp_imatrix_merge(struct pp_imatrix *m, const struct pp_imatrix *from, struct pp_error *err);
/* Records that chunks of `tokens` tokens of a text were read. The name is copied, unless it is the same as the last. */
enum pp_code pp_imatrix_count(struct pp_imatrix *m, const char *dataset, uint32_t chunks, uint32_t tokens,
                              struct pp_error *err);
/* Writes a GGUF file. PP_ERR_FORMAT: the data are NaN, since a weight of the model is; PP_ERR_USAGE: there are no
 * data. */
enum pp_code pp_imatrix_write(const struct pp_imatrix *m, const char *path, struct pp_error *err);
void pp_imatrix_free(struct pp_imatrix *m); /* NULL is fine */
struct pp_imatrix_info pp_imatrix_info(const struct pp_imatrix *m);
const char *pp_imatrix_dataset(const struct pp_imatrix *m, size_t i); /* from 0; NULL at the end */

/* How far an importance matrix covered a quantisation. */
struct pp_imatrix_use {
    size_t n_weighed;    /* matrices (an expert's is one) quantised with its data */
    size_t n_unweighed;  /* quantised without, as it has no data of them */
    char first[128];     /* the first tensor quantised without; "": none */
};

/* --- converting ------------------------------------------------------------------------------------------ */

/* Called between tensors, on the thread that converts; done and total in bytes of source tensors. */
typedef void pp_convert_progress(void *user, const char *tensor, size_t done, size_t total);

struct pp_convert_options {
    const char *out_type;            /* "F32", "F16", "BF16", or NULL: as stored. Norms and biases are always F32 */
    pp_convert_progress *progress;   /* or NULL */
    void *user;
    const struct pp_cancel *cancel;  /* or NULL */
    int bits;                        /* of a folder: 4 or 8, as MLX quantises; 0: floats */
    const char *base;                /* for adapters: the model they belong to, for the size of its heads. NULL: the
                                      * one that the adapter names, if that is a path, else the folder that contains
                                      * the adapter's */
    const struct pp_imatrix *imatrix; /* for pp_quantize_file; or NULL */
    const char *imatrix_name;        /* its name in the new file: quantize.imatrix.file */
    struct pp_imatrix_use *imatrix_use; /* out: how far pp_quantize_file could use it; or NULL */
};

/* src: a Hugging Face folder (config.json) or a PEFT or MLX adapter folder (adapter_config.json); dst: a GGUF path.
 * Names, permutation of q and k, and metadata follow llama.cpp's converters, so that the file runs there, too.
 *
 * GGUF adapters can have matrices A and B, replaced norms and one alpha. Where a matrix's scale is not that alpha
 * divided by its rank, the quotient is multiplied into its B, which is then F32. PP_ERR_UNSUPPORTED names what GGUF
 * cannot express: DoRA, IA3, biases, whole matrices; PP_ERR_FORMAT: an adapter's values are NaN or infinite;
 * PP_ERR_MISMATCH: it belongs to another model, or is invoked by tokens that the model does not have. */
enum pp_code pp_convert_to_gguf(const char *src, const char *dst, const struct pp_convert_options *opt,
                                struct pp_error *err);

/* src: a GGUF model or a model folder, quantised or not; dst: a folder, created if need be, or an empty one (hidden
 * files aside), that gets config.json, tokenizer files, modules of sentence-transformers as they are, and
 * model.safetensors as transformers and MLX read it. Floats become opt->out_type, or stay as they are stored; quantised
 * tensors become F16. With opt->bits matrices become MLX's affine groups of 64 or 32, and Q4_0 and Q4_1 keep their
 * integers. PP_ERR_UNSUPPORTED names what such a folder cannot express. */
enum pp_code pp_convert_to_folder(const char *src, const char *dst, const struct pp_convert_options *opt,
                                  struct pp_error *err);

/* src: a GGUF adapter; dst: a folder, created if need be, that gets adapter_config.json and adapter_model.safetensors
 * as PEFT writes them, without rounding: quantised matrices become F32. Memory: copies of A and B of q and k, and of
 * all matrices that change type. PP_ERR_MISMATCH: it is of another family than opt->base; PP_ERR_FORMAT: its values are
 * NaN or infinite. */
enum pp_code pp_convert_to_peft(const char *src, const char *dst, const struct pp_convert_options *opt,
                                struct pp_error *err);

/* src: a GGUF file or HF folder with float tensors (or a quantised GGUF, which is dequantised first and loses accuracy
 * twice); type: as pp_quantize_name takes it. Which tensor gets which type follows llama-quantize
 * (tests compare it with testdata/quants/starter_reference.json). */
enum pp_code pp_quantize_file(const char *src, const char *dst, const char *type, const struct pp_convert_options *opt,
                              struct pp_error *err);
/* The types that pp_quantize_file knows; i from 0, NULL at the end. Static, as below. */
const char *pp_quantize_type(size_t i);
/* The type of this name, ignoring case, as pp_quantize_type spells it; "q4_k" and the like mean the M mixture. NULL:
 * there is none. */
const char *pp_quantize_name(const char *name);

#endif
