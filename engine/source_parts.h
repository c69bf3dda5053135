/* source_parts.h - a GGUF model in several files: NAME-00001-of-00003.gguf and so on, as llama-gguf-split writes them.
 * The first has the metadata; each has split.no, split.count and split.tensors.count, and some of the tensors. */
#ifndef PP_ENGINE_SOURCE_PARTS_H
#define PP_ENGINE_SOURCE_PARTS_H

#include "engine/base/error.h"
#include "engine/gguf.h"

enum { PP_MAX_PARTS = 1024 };

/* The path of the i-th of n parts, given that of any part; pp_free. NULL and *err: the path has no such name, or memory
 * is short. */
char *pp_part_path(const char *path, int i, int n, struct pp_error *err);
/* Opens parts 1 to n - 1; `first` is part 0. parts [n - 1]: empty, the caller's; the caller closes those that were
 * opened, also after an error: a part is missing, or belongs to another model. */
enum pp_code pp_parts_open(const struct pp_gguf *first, int n, struct pp_gguf **parts, struct pp_error *err);

#endif
