/* convert_adapter_int.h - shared by both directions of converting adapters. Private to convert_adapter.c and
 * convert_peft.c. */
#ifndef PP_ENGINE_CONVERT_ADAPTER_INT_H
#define PP_ENGINE_CONVERT_ADAPTER_INT_H

#include "engine/adapter_file.h"
#include "engine/source.h"

/* Tensors of a new file that are not simply those of the old one. */
struct pp_copies {
    struct pp_tensor *tensors; /* own their data (pp_free) */
    size_t n, cap;
};

struct pp_copies pp_copies_new(size_t n); /* room for n; tensors NULL: out of memory */
void pp_copies_free(struct pp_copies *c);
/* A transposed matrix of floats; one with permuted columns, column i being from[i]; floats [n_rows, n_cols] in a float
 * type. They are added to c, which must have room, so that pointers to its tensors stay valid. NULL: *err is set; the
 * function without it fails only for lack of memory. */
const struct pp_tensor *pp_copies_transposed(struct pp_copies *c, const struct pp_tensor *t, struct pp_error *err);
const struct pp_tensor *pp_copies_moved_columns(struct pp_copies *c, const struct pp_tensor *t, const int32_t *from,
                                                struct pp_error *err);
const struct pp_tensor *pp_copies_made(struct pp_copies *c, const char *name, const float *f, int64_t n_cols,
                                       int64_t n_rows, uint32_t type);

bool pp_convert_is_float(uint32_t type);
/* A norm's vector with `added` added to each value, in F32; its data are new (pp_free). NULL: out of memory. */
uint8_t *pp_convert_shifted(const struct pp_tensor *t, float added, struct pp_tensor *to);

/* The model that an adapter belongs to: `wanted`, or the one that it names, or its parent folder. */
enum pp_code pp_convert_open_base(const struct pp_adapter_file *f, const char *src, const char *wanted,
                                  struct pp_source **base, struct pp_error *err);
/* Checks what would make the new file invalid: tokens that the model does not have, values that are NaN or infinite. */
enum pp_code pp_convert_check_adapter(const struct pp_adapter_file *f, const struct pp_source *base,
                                      struct pp_error *err);
/* The model's family: names in an adapter's folder may fit several. */
const struct pp_arch *pp_convert_arch(const struct pp_source *base);
/* Checks that the model has the part-th of a target's matrices, called `name`, with its size. */
enum pp_code pp_convert_check_fit(const struct pp_source *base, const struct pp_adapter_target *t, int part,
                                  const char *name, struct pp_error *err);
/* The error that folders have a matrix in a form that cannot be converted. */
enum pp_code pp_convert_fail_form(const char *name, struct pp_error *err);
/* For a matrix whose heads GGUF files order differently from folders: the row, or column, of the old file for each of
 * the new one; pp_free. *from NULL: another matrix. */
enum pp_code pp_convert_find_heads(const struct pp_source *base, const struct pp_adapter_target *t, const char *name,
                                   bool to_gguf, int32_t **from, bool *columns, struct pp_error *err);

#endif
