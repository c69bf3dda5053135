/* imatrix.h - the inside of importance matrices (convert.h describes them and their files). Private to the engine. Not
 * thread-safe. */
#ifndef PP_ENGINE_IMATRIX_H
#define PP_ENGINE_IMATRIX_H

#include <stdint.h>

#include "engine/convert.h"

/* The data of one tensor: a matrix, or a stack of experts' matrices. */
struct pp_importance {
    char *name;        /* the tensor's GGUF name */
    int64_t n_values;  /* columns of all its matrices together */
    int64_t n_counts;  /* its matrices; 1 also if a file has one count for a whole stack */
    float *sums;       /* [n_values]: of squares; finite and not negative. Stays valid when others are added */
    double *counts;    /* [n_counts]: numbers of inputs; stays valid, too */
};

struct pp_imatrix {
    struct pp_importance *entries; /* [n], sorted by name */
    size_t n, cap;
    char **datasets;               /* [n_datasets] */
    size_t n_datasets, datasets_cap;
    uint32_t chunks, chunk_size;
};

/* The entry of this name, or NULL. */
struct pp_importance *pp_imatrix_find(const struct pp_imatrix *m, const char *name);
/* The same, created if need be, without data. PP_ERR_MISMATCH: it exists for other matrices. A common count of a stack
 * is expanded. */
enum pp_code pp_imatrix_entry(struct pp_imatrix *m, const char *name, int64_t n_cols, int64_t n_matrices,
                              struct pp_importance **out, struct pp_error *err);
/* The importance of the columns of the i-th of n_matrices with n_cols columns each: [n_cols], with an arbitrary factor;
 * *out NULL: there is none. PP_ERR_MISMATCH: the entry is for other matrices. */
enum pp_code pp_importance_of(const struct pp_importance *e, int64_t n_cols, int64_t n_matrices, int64_t i,
                              const float **out, struct pp_error *err);

/* How errors in the rows of a tensor are weighed: each matrix by its own columns. */
struct pp_weighing {
    const struct pp_importance *importance; /* NULL: all alike */
    int64_t n_matrices;  /* matrices of the entry */
    int64_t first;       /* index of the tensor's first matrix in the entry: the expert's number, if each expert has a
                            tensor */
    int64_t matrix_rows; /* rows of each */
};
/* As pp_quantize_rows; row: index of the first row in the tensor. */
enum pp_code pp_quantize_weighed(const struct pp_weighing *w, uint32_t type, const float *src, void *dst, int64_t row,
                                 int64_t n_rows, int64_t n_cols, struct pp_error *err);

/* Reads a file's bytes; `name` appears in errors. For tests and fuzzing. */
enum pp_code pp_imatrix_read_memory(const void *data, size_t size, const char *name, struct pp_imatrix **out,
                                    struct pp_error *err);

#endif
