/* convert_adapter_int.h - what both ways of converting adapters share. Private to convert_adapter.c and
 * convert_peft.c. */
#ifndef PP_ENGINE_CONVERT_ADAPTER_INT_H
#define PP_ENGINE_CONVERT_ADAPTER_INT_H

#include "engine/adapter_file.h"
#include "engine/source.h"

/* The tensors of a new file that are not simply those of the old one. */
struct pp_copies {
    struct pp_tensor *tensors; /* their data are pp_free'd */
    size_t n, cap;
};

struct pp_copies pp_copies_new(size_t n); /* room for n; tensors NULL: out of memory */
void pp_copies_free(struct pp_copies *c);
/* A matrix of a float type with rows and columns exchanged; its columns in another order, column i being from[i];
 * floats [n_rows, n_cols] in a type of floats. They go into c, where room is: pointers to its tensors stay. NULL: *err
 * is set, or, without one, out of memory. */
const struct pp_tensor *pp_copies_turned(struct pp_copies *c, const struct pp_tensor *t, struct pp_error *err);
const struct pp_tensor *pp_copies_moved_columns(struct pp_copies *c, const struct pp_tensor *t, const int32_t *from,
                                                struct pp_error *err);
const struct pp_tensor *pp_copies_made(struct pp_copies *c, const char *name, const float *f, int64_t n_cols,
                                       int64_t n_rows, uint32_t type);

bool pp_convert_is_float(uint32_t type);
/* A norm's vector with a number added to each value, in F32; its data are pp_free'd. NULL: out of memory. */
uint8_t *pp_convert_shifted(const struct pp_tensor *t, float added, struct pp_tensor *to);

/* The model that an adapter is of: `wanted`, or what it says, or where it lies. */
enum pp_code pp_convert_open_base(const struct pp_adapter_file *f, const char *src, const char *wanted,
                                  struct pp_source **base, struct pp_error *err);
/* What the new file would be refused for: tokens that the model does not have, values that are no numbers. */
enum pp_code pp_convert_check_adapter(const struct pp_adapter_file *f, const struct pp_source *base,
                                      struct pp_error *err);
/* Its family: names in an adapter's folder may be those of several. */
const struct pp_arch *pp_convert_arch(const struct pp_source *base);
/* Whether the model has the part-th of a target's matrices, which is called so, in its size. */
enum pp_code pp_convert_check_fit(const struct pp_source *base, const struct pp_adapter_target *t, int part,
                                  const char *name, struct pp_error *err);
/* The error that folders have a matrix in a form which is not converted. */
enum pp_code pp_convert_fail_form(const char *name, struct pp_error *err);
/* Of a matrix whose heads GGUF files have in another order than folders: which row of the old file each of the new one
 * is, or which column; pp_free. *from NULL: it is none. */
enum pp_code pp_convert_find_heads(const struct pp_source *base, const struct pp_adapter_target *t, const char *name,
                                   bool to_gguf, int32_t **from, bool *columns, struct pp_error *err);

#endif
