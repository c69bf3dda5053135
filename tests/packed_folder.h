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
    const char *turned;         /* the tensor of this name has its two sizes swapped; or NULL */
    const char *emptied;        /* this one has no values; or NULL */
};
/* shape: [n_dims], row-major as in the file. */
void tensor_file_add(struct tensor_file *f, const char *name, const char *dtype, int n_dims, const int64_t *shape,
                     const void *data, size_t size);
void tensor_file_write(struct tensor_file *f, const char *folder, const char *name); /* and frees it */

struct packed_options {
    const char *config_from, *config_to; /* a string of config.json and its replacement; or NULL */
    const char *leave_out, *turned, *emptied; /* as in struct tensor_file */
    bool bad_group;              /* GPTQ: a column has the index of a missing group */
    bool not_a_number;           /* a scale is infinite */
};

/* Writes two folders of a family of the test data: one with quantised matrices, and one with the F32 values that those
 * decode to. Only layers' matrices are quantised, and with MLX the embeddings, but no router. floats may be NULL. */
void packed_folder(const char *family, const struct packed_form *form, const struct packed_options *opt,
                   const char *folder, const char *floats);

/* The pieces of such folders: a matrix [n, k], or a stack of as many as `stack` says (0: no stack), whose values are
 * replaced by the decoded ones; and the family's config.json, with the form's section or without one. */
void packed_matrix(struct tensor_file *f, const struct packed_form *form, const struct packed_options *opt,
                   const char *module, int64_t stack, int64_t n, int64_t k, float *w);
void packed_config(const char *family, const struct packed_form *form, const struct packed_options *opt,
                   const char *folder);

/* Form i, from 0; NULL after the last. All but "gpt-oss", which is only for stacks. */
const struct packed_form *packed_form_at(size_t i);
const struct packed_form *packed_form(const char *name);
const char *packed_form_name(const struct packed_form *f);

/* A model's logits for the first 32 tokens of the family's first prompt: float [n], to be free'd. */
float *logits_of(const char *family, const char *path, int64_t *n);
/* The relative error of a: the root mean square of a - b, divided by that of b. */
double difference(const float *a, const float *b, int64_t n);

#endif
