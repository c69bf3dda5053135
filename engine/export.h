/* export.h - shared by converting and quantising: streaming tensors into a GGUF file in other types, and writing a
 * model's metadata. Private to the engine. Not thread-safe; uses threads of its own for quantising. */
#ifndef PP_ENGINE_EXPORT_H
#define PP_ENGINE_EXPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/convert.h"
#include "engine/source.h"
#include "engine/state_order.h"
#include "engine/types.h"

struct pp_gguf_writer;

/* One tensor of the new file. */
struct pp_export_item {
    const struct pp_tensor *from; /* of a runnable type */
    const struct pp_tensor *const *parts; /* further matrices of a stack, beginning with `from`; or NULL */
    int64_t n_parts;
    const struct pp_source *source; /* to release its memory once it was read; or NULL */
    const char *name;             /* in the new file */
    uint32_t type;                /* in the new file; its block divides from->ne[0] */
    int64_t same_rows;            /* with head_dim: this many rows at the end are not permuted */
    int64_t head_dim;             /* > 0: rows of heads of this size are permuted from Hugging Face's order to GGUF's;
                                     0: they are not */
    enum pp_key_part part;        /* or rows of this part of `from`, a whole by keys; `source` has the sizes */
    const struct pp_state_order *heads; /* or rows or columns of states are permuted; NULL: they are not */
    float factor;                 /* of all values; 1 keeps the bits */
    const struct pp_importance *importance; /* of the columns of its matrices, n_parts or ne[2] * ne[3]; or NULL */
};

/* Releases the memory of the model's file that holds rows first .. first + n - 1 of a tensor, so that reading a model
 * once takes no more memory than the current slice. It is read again if needed. Memory of other kinds is kept. */
void pp_source_release_pages(const struct pp_source *s, const struct pp_tensor *t, int64_t first, int64_t n);

/* export_keys.c: adds all metadata of a model. file_type: general.file_type, or -1; opt: or NULL; its imatrix is named.
 * PP_ERR_UNSUPPORTED: GGUF cannot express something. */
enum pp_code pp_export_keys(struct pp_gguf_writer *w, const struct pp_source *s, int file_type,
                            const struct pp_convert_options *opt, struct pp_error *err);

/* Announces and writes all items; finishing the file is left to the caller. Memory: a few megabytes, or one row if that
 * is more. */
enum pp_code pp_export_items(struct pp_gguf_writer *w, const struct pp_export_item *items, size_t n,
                             const struct pp_convert_options *opt, struct pp_error *err);

/* Writes a whole model to dst: metadata (copied, or made from config.json and the tokenizer's files), and tensor i in
 * type types[i]. file_type: general.file_type. */
enum pp_code pp_export_model(const struct pp_source *s, const char *dst, const uint32_t *types, int file_type,
                             const struct pp_convert_options *opt, struct pp_error *err);

struct cJSON;
struct pp_tokenizer;
/* export_config.c: makes config.json of a model from a GGUF file or a folder. tied: the output is the embedding table;
 * t: the vocabulary, or NULL. *json: cJSON_Delete. PP_ERR_UNSUPPORTED: transformers cannot express it. */
enum pp_code pp_export_config(const struct pp_source *s, const struct pp_tokenizer *t, bool tied, struct cJSON **json,
                              struct pp_error *err);

/* convert_adapter.c: a PEFT or MLX folder to GGUF. wanted: the type of the matrices, or -1: as they are stored. */
enum pp_code pp_convert_adapter(const char *src, const char *dst, int wanted, const struct pp_convert_options *opt,
                                struct pp_error *err);

/* Whether a tensor is F32 in every file: norms, biases, and whatever is not a matrix. */
bool pp_export_keeps_f32(const struct pp_tensor *t);

/* Chooses types[i] for every tensor of a model as llama-quantize does for a file type ("Q4_K_M": 15) of
 * pp_quantize_type's list. Where that tool would choose a type that we cannot run, the next better one is taken. */
void pp_quantize_plan(const struct pp_source *s, int file_type, uint32_t *types);
/* The same for one tensor, by its name and shape. tied: the embedding table is also the output. */
uint32_t pp_quantize_tensor_type(int file_type, const struct pp_hparams *hp, bool tied, const struct pp_tensor *t);
/* `type`, or the next larger one whose blocks divide rows of n_cols. */
uint32_t pp_quantize_fitting_type(uint32_t type, int64_t n_cols);

#endif
