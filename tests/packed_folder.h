/* packed_folder.h - folders of small models with matrices quantised in other programs' formats, written from the
 * formats' definitions, together with the floats that these define. */
#ifndef PP_TESTS_PACKED_FOLDER_H
#define PP_TESTS_PACKED_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

struct pp_safetensors;
struct packed_form;

/* A safetensors file being written. */
struct tensor_file {
    struct pp_buf header, data;
    const char *leave_out;      /* the tensor of this name is not written; or NULL */
    const char *turned;         /* this tensor's shape has its two sizes swapped; or NULL */
    const char *emptied;        /* this one has no values; or NULL */
};
/* shape: [n_dims], row-major as in the file. */
void tensor_file_add(struct tensor_file *f, const char *name, const char *dtype, int n_dims, const int64_t *shape,
                     const void *data, size_t size);
void tensor_file_write(struct tensor_file *f, const char *folder, const char *name); /* and frees it */

struct packed_options {
    const char *config_from, *config_to; /* `from` in config.json is replaced by `to`; or NULL */
    const char *leave_out, *turned, *emptied; /* as in tensor_file */
    bool bad_group;              /* GPTQ: a column's group index is out of range */
    bool not_a_number;           /* a scale is infinite */
};

/* Writes two folders of a family of the test data: one with matrices in the format, one with the F32 values that the
 * format defines. Only matrices of layers are quantised (with MLX the embeddings as well), except those of routers.
 * floats may be NULL. */
void packed_folder(const char *family, const struct packed_form *form, const struct packed_options *opt,
                   const char *folder, const char *floats);

/* The parts of packed_folder. Adds one matrix [n, k] to a file (or a stack of `stack` matrices, if not 0), and sets w
 * to the values that the format defines; writes the family's config.json, with the format's section if there is a
 * format. */
void packed_matrix(struct tensor_file *f, const struct packed_form *form, const struct packed_options *opt,
                   const char *module, int64_t stack, int64_t n, int64_t k, float *w);
void packed_config(const char *family, const struct packed_form *form, const struct packed_options *opt,
                   const char *folder);

/* All formats but "gpt-oss", which is for stacks only; i from 0, NULL at the end. */
const struct packed_form *packed_form_at(size_t i);
const struct packed_form *packed_form(const char *name);
const char *packed_form_name(const struct packed_form *f);

/* A model's logits for the first 32 tokens of the family's first prompt: float [n], to be free'd. */
float *logits_of(const char *family, const char *path, int64_t *n);
/* Root mean square of a - b, relative to that of b. */
double difference(const float *a, const float *b, int64_t n);

#endif
