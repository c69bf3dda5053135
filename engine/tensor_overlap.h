/* tensor_overlap.h - whether tensors of a file overlap, as those of a damaged one may. */
#ifndef PP_ENGINE_TENSOR_OVERLAP_H
#define PP_ENGINE_TENSOR_OVERLAP_H

#include <stddef.h>

#include "engine/base/error.h"
#include "engine/types.h"

/* t: [n], whose data are all in one piece of memory; empty tensors (0 bytes) overlap nothing. name: the file's, for the
 * message. PP_ERR_FORMAT: two of them share bytes. Any thread. */
enum pp_code pp_tensors_check_overlap(const struct pp_tensor *t, size_t n, const char *name, struct pp_error *err);

#endif
