/* imatrix.h - the inside of importance matrices (convert.h says what they are and how files of them are read and
 * written). Private to the engine. Not thread-safe. */
#ifndef PP_ENGINE_IMATRIX_H
#define PP_ENGINE_IMATRIX_H

#include <stdint.h>

#include "engine/convert.h"

/* What went into one tensor: a matrix, or a stack of experts' matrices. */
struct pp_importance {
    char *name;        /* the tensor's, as GGUF has it */
    int64_t n_values;  /* columns of all its matrices */
    int64_t n_counts;  /* its matrices; 1 also where a file counts those of a stack together */
    float *sums;       /* [n_values]: of squares; each finite and from 0 on. Stays where it is when others are added */
    double *counts;    /* [n_counts]: how many inputs; likewise */
};

struct pp_imatrix {
    struct pp_importance *entries; /* [n], by name */
    size_t n, cap;
    char **datasets;               /* [n_datasets] */
    size_t n_datasets, datasets_cap;
    uint32_t chunks, chunk_size;
};

/* The entry of this name, or NULL. */
struct pp_importance *pp_imatrix_find(const struct pp_imatrix *m, const char *name);
/* The same; made if need be, without data. PP_ERR_MISMATCH: it is there for other matrices. What counts a stack
 * together is told apart. */
enum pp_code pp_imatrix_entry(struct pp_imatrix *m, const char *name, int64_t n_cols, int64_t n_matrices,
                              struct pp_importance **out, struct pp_error *err);
/* What is known of the columns of the i-th of n_matrices with n_cols columns each: [n_cols], on no scale in particular;
 * *out NULL if nothing is. PP_ERR_MISMATCH: the entry is for other matrices. */
enum pp_code pp_importance_of(const struct pp_importance *e, int64_t n_cols, int64_t n_matrices, int64_t i,
                              const float **out, struct pp_error *err);

/* How the rows of a tensor are weighed: each matrix by its own columns. */
struct pp_weighing {
    const struct pp_importance *importance; /* NULL: not at all */
    int64_t n_matrices;  /* that the entry is of */
    int64_t first;       /* of those, the tensor's first: an expert's number where each has a tensor of its own */
    int64_t matrix_rows; /* rows of each */
};
/* As pp_quantize_rows; row: the number of the first in the tensor. */
enum pp_code pp_quantize_weighed(const struct pp_weighing *w, uint32_t type, const float *src, void *dst, int64_t row,
                                 int64_t n_rows, int64_t n_cols, struct pp_error *err);

/* Reads a file's bytes; `name` appears in errors. For tests and fuzzing. */
enum pp_code pp_imatrix_read_memory(const void *data, size_t size, const char *name, struct pp_imatrix **out,
                                    struct pp_error *err);

#endif
