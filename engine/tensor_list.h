/* tensor_list.h - the tensors of a model under the names that we compute with, and the memory of those that are not in
 * mapped files. Private to the engine; not thread-safe. */
#ifndef PP_ENGINE_TENSOR_LIST_H
#define PP_ENGINE_TENSOR_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"
#include "engine/rows.h"
#include "engine/types.h"

struct pp_tensor_list {
    struct pp_tensor *t;        /* [n]; names are owned */
    size_t n, cap;
    void **made;                /* [n_made]: owned data */
    size_t n_made, cap_made;
    struct pp_rows **rows;      /* [n_rows]: of tensors that are made row by row */
    size_t n_rows, cap_rows;
};

/* Adds a tensor under a name. made: takes ownership of its data, even if it cannot be added. */
enum pp_code pp_tensor_list_add(struct pp_tensor_list *l, const struct pp_tensor *t, const char *name, bool made,
                                struct pp_error *err);
/* Allocates the description of a tensor that is made row by row, owned by the list; NULL: *err is set. */
struct pp_rows *pp_tensor_list_rows(struct pp_tensor_list *l, struct pp_error *err);
/* Gives tensor i, which has no rows, memory of the list: copies it now, or has it copied row by row later. */
enum pp_code pp_tensor_list_copy(struct pp_tensor_list *l, size_t i, struct pp_error *err);
enum pp_code pp_tensor_list_by_rows(struct pp_tensor_list *l, size_t i, struct pp_error *err);
/* Adds the two tensors whose rows alternate in t, which is made row by row. PP_ERR_FORMAT: the number of rows is
 * odd. */
enum pp_code pp_tensor_list_add_interleaved(struct pp_tensor_list *l, struct pp_tensor *t, const char *first,
                                            const char *second, struct pp_error *err);
/* Whether the list owns the data. */
bool pp_tensor_list_made(const struct pp_tensor_list *l, const void *data);
void pp_tensor_list_free(struct pp_tensor_list *l);

#endif
