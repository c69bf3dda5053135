/* packed_folder.h - folders of small models whose matrices are quantised in other programs' forms, written by the
 * forms' definitions, together with the floats that those define. */
#ifndef PP_TESTS_PACKED_FOLDER_H
#define PP_TESTS_PACKED_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

struct pp_safetensors;
struct packed_form;

/* A safetensors file in the making. */
struct tensor_file {
    struct pp_buf header, data;
    const char *leave_out;      /* the tensor of this name is not written; or NULL */
    const char *turned;         /* of this one the two sizes of the shape change places; or NULL */
    const char *emptied;        /* this one has no values; or NULL */
};
/* shape: [n_dims], row-major as in the file. */
void tensor_file_add(struct tensor_file *f, const char *name, const char *dtype, int n_dims, const int64_t *shape,
                     const void *data, size_t size);
void tensor_file_write(struct tensor_file *f, const char *folder, const char *name); /* and frees it */

struct packed_options {
    const char *config_from, *config_to; /* one text of config.json that becomes another; or NULL */
    const char *leave_out, *turned, *emptied; /* as of tensor_file */
    bool bad_group;              /* GPTQ: a column of a group that there is not */
    bool not_a_number;           /* a scale is infinite */
};

/* Writes two folders of a family of the test data: its matrices in a form, and as the F32 that this form defines. Only
 * matrices of layers are quantised, and with MLX the embeddings; none that chooses experts. floats may be NULL. */
void packed_folder(const char *family, const struct packed_form *form, const struct packed_options *opt,
                   const char *folder, const char *floats);

/* Their pieces: one matrix [n, k], which becomes what its form defines, or as many of them as `stack` says, 0 being
 * none; and config.json of the family with the form's part, or without one. */
void packed_matrix(struct tensor_file *f, const struct packed_form *form, const struct packed_options *opt,
                   const char *module, int64_t stack, int64_t n, int64_t k, float *w);
void packed_config(const char *family, const struct packed_form *form, const struct packed_options *opt,
                   const char *folder);

/* All forms but "gpt-oss", which only stacks have; i from 0, NULL at the end. */
const struct packed_form *packed_form_at(size_t i);
const struct packed_form *packed_form(const char *name);
const char *packed_form_name(const struct packed_form *f);

/* Logits that a model gives for the first 32 tokens of the family's first prompt: float [n], to be free'd. */
float *logits_of(const char *family, const char *path, int64_t *n);
/* Root of the mean square of a - b, beside that of b. */
double difference(const float *a, const float *b, int64_t n);

#endif
