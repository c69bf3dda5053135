/* convert.h - making files: folders to GGUF, adapters to GGUF, importance matrices, quantising. Public header of
 * libpippin.
 *
 * Memory stays bounded for models: a slice of a tensor at a time. Output appears by rename when it is complete, so that
 * after any error what was there is as it was. Any thread, several at once if they write different files; a
 * struct pp_imatrix belongs to one at a time. All conversions: PP_ERR_USAGE: a type that there is not, or a target that
 * may not be written over; PP_ERR_FORMAT: the source is damaged; PP_ERR_IO; PP_ERR_CANCELLED. */
#ifndef PP_ENGINE_CONVERT_H
#define PP_ENGINE_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/cancel.h"
#include "engine/base/error.h"

/* --- importance matrices --------------------------------------------------------------------------------- */

/* How much the columns of each matrix of a model matter: the sum of the squares of what they were multiplied with
 * while the model read some text, and how many inputs that was. An error in a weight costs as much as its column's mean
 * square says. An engine that was made with one (struct pp_engine_options) collects; quantising weighs by it.
 *
 * Files, in GGUF as llama-imatrix writes them: general.type "imatrix"; for every tensor NAME two tensors in F32,
 * NAME.in_sum2 [columns, matrices] and NAME.counts [1, matrices], a stack of experts having as many as there are;
 * imatrix.datasets, the names of the texts; imatrix.chunk_count, imatrix.chunk_size: how many pieces of how many tokens
 * were read. What else is in there (NAME.in_sum of newer versions) is not looked at.
 *
 * The older form, which is read too, little-endian: i32 number of entries; for each i32 length of its name, the name,
 * i32 calls, i32 n, f32 [n] sums in units of a chunk, counted together for all matrices of a stack; then perhaps
 * i32 chunks, i32 length of a text's name, the name. Chunks are taken to be of 512 tokens. */
struct pp_imatrix;

struct pp_imatrix_info {
    size_t n_tensors;     /* that it says something of */
    size_t n_partial;     /* of those, stacks of which some experts were never used */
    uint32_t chunks, chunk_size;
    size_t n_datasets;
};

enum pp_code pp_imatrix_new(struct pp_imatrix **out, struct pp_error *err); /* empty */
/* PP_ERR_FORMAT: damaged, or something else. */
enum pp_code pp_imatrix_read(const char *path, struct pp_imatrix **out, struct pp_error *err);
/* Adds what `from` has seen. PP_ERR_MISMATCH names a tensor that has other columns there: it is of another model. */
enum pp_code pp_imatrix_merge(struct pp_imatrix *m, const struct pp_imatrix *from, struct pp_error *err);
/* Counts chunks of `tokens` tokens of a text as read. The name is copied, unless it is the last one's. */
enum pp_code pp_imatrix_count(struct pp_imatrix *m, const char *dataset, uint32_t chunks, uint32_t tokens,
                              struct pp_error *err);
/* In GGUF. PP_ERR_FORMAT: what was collected is no number, so a weight of the model is none; PP_ERR_USAGE: nothing was
 * collected. */
enum pp_code pp_imatrix_write(const struct pp_imatrix *m, const char *path, struct pp_error *err);
void pp_imatrix_free(struct pp_imatrix *m); /* NULL is fine */
struct pp_imatrix_info pp_imatrix_info(const struct pp_imatrix *m);
const char *pp_imatrix_dataset(const struct pp_imatrix *m, size_t i); /* from 0; NULL at the end */

/* How far an importance matrix reached. */
struct pp_imatrix_use {
    size_t n_weighed;    /* matrices (an expert's is one) quantised by it */
    size_t n_unweighed;  /* quantised, but it says nothing of them */
    char first[128];     /* of those: the tensor of the first; "" */
};

/* --- converting ------------------------------------------------------------------------------------------ */

/* Called between tensors, on the thread that converts; done and total in bytes of source tensors. */
typedef void pp_convert_progress(void *user, const char *tensor, size_t done, size_t total);

struct pp_convert_options {
    const char *out_type;            /* "F32", "F16", "BF16", or NULL: as stored. Norms and biases are always F32 */
    pp_convert_progress *progress;   /* or NULL */
    void *user;
    const struct pp_cancel *cancel;  /* or NULL */
    int bits;                        /* of a folder: 4 or 8, MLX's groups of integers; 0: floats */
    const char *base;                /* for adapters: the model they belong to, which tells how large a head is. NULL:
                                      * what the adapter names if that is a path, else the folder that holds the
                                      * adapter's */
    const struct pp_imatrix *imatrix; /* for pp_quantize_file; or NULL */
    const char *imatrix_name;        /* what the new file calls it: quantize.imatrix.file */
    struct pp_imatrix_use *imatrix_use; /* counts what pp_quantize_file did with it; or NULL */
};

/* src: a Hugging Face folder (config.json) or a PEFT or MLX adapter folder (adapter_config.json); dst: a GGUF path.
 * Names, permutation of q and k, and metadata follow llama.cpp's converters, so that the file runs there too.
 *
 * Of adapters GGUF has matrices A and B, norms in the model's place and one alpha. Where a matrix's scale is not that
 * alpha divided by its rank, the rest is multiplied into its B, which is then F32. PP_ERR_UNSUPPORTED names what GGUF
 * has no place for: DoRA, IA3, biases, whole matrices; PP_ERR_FORMAT: an adapter has values that are no numbers;
 * PP_ERR_MISMATCH: it is of another model, or invoked by tokens that the model does not have. */
enum pp_code pp_convert_to_gguf(const char *src, const char *dst, const struct pp_convert_options *opt,
                                struct pp_error *err);

/* src: a GGUF model or a model folder, quantised or not; dst: a folder, made if need be, or an empty one (hidden files
 * apart), that gets config.json, the vocabulary's files, modules of sentence-transformers as they are, and
 * model.safetensors as transformers and MLX read it. Floats are as opt->out_type says, or as
 * they are stored, F16 of what is quantised. With opt->bits matrices become MLX's affine groups of 64 or 32, and Q4_0
 * and Q4_1 keep their integers. PP_ERR_UNSUPPORTED names what such a folder has no place for. */
enum pp_code pp_convert_to_folder(const char *src, const char *dst, const struct pp_convert_options *opt,
                                  struct pp_error *err);

/* src: a GGUF adapter; dst: a folder, made if need be, that gets adapter_config.json and adapter_model.safetensors as
 * PEFT writes them, without a rounding: quantised matrices become F32. Memory: copies of q's and k's halves, and of all
 * that changes its type. PP_ERR_MISMATCH: it is of another family than opt->base; PP_ERR_FORMAT: it has values that are
 * no numbers. */
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
