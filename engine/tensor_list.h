/* tensor_list.h - the tensors of a model under the names that we compute with, and memory of those that are in no
 * mapped file. Private to the engine; not thread-safe. */
#ifndef PP_ENGINE_TENSOR_LIST_H
#define PP_ENGINE_TENSOR_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"
#include "engine/rows.h"
#include "engine/types.h"

struct pp_tensor_list {
    struct pp_tensor *t;        /* [n], whose names are the list's */
    size_t n, cap;
    void **made;                /* [n_made] data */
    size_t n_made, cap_made;
    struct pp_rows **rows;      /* [n_rows] of tensors that are made row by row */
    size_t n_rows, cap_rows;
};

/* Adds a tensor under a name. made: its data become the list's, also if it cannot be added. */
enum pp_code pp_tensor_list_add(struct pp_tensor_list *l, const struct pp_tensor *t, const char *name, bool made,
                                struct pp_error *err);
/* Room for the description of a tensor that is made row by row, which is the list's; NULL: *err is set. */
struct pp_rows *pp_tensor_list_rows(struct pp_tensor_list *l, struct pp_error *err);
/* Has the data of tensor i, which has no rows, in memory of the list's: a copy now, or made row by row as they are. */
enum pp_code pp_tensor_list_copy(struct pp_tensor_list *l, size_t i, struct pp_error *err);
enum pp_code pp_tensor_list_by_rows(struct pp_tensor_list *l, size_t i, struct pp_error *err);
/* Adds the two tensors whose rows take turns in t, which is made row by row. PP_ERR_FORMAT: its rows are odd. */
enum pp_code pp_tensor_list_add_turns(struct pp_tensor_list *l, struct pp_tensor *t, const char *first,
                                      const char *second, struct pp_error *err);
/* Whether data are the list's. */
bool pp_tensor_list_made(const struct pp_tensor_list *l, const void *data);
void pp_tensor_list_free(struct pp_tensor_list *l);

#endif
