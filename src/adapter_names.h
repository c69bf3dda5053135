/* adapter_names.h - adapters by name: where they are searched, and the error for a name that is not found. */
#ifndef PP_SRC_ADAPTER_NAMES_H
#define PP_SRC_ADAPTER_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "src/paths.h"

/* Resolves the argument of --lora to a path: an existing file or folder, or the name of one, with or without .gguf,
 * in the folder of the model (as for -m) or in data/adapters. False: there is none. */
bool pp_resolve_adapter(const struct pp_paths *p, const char *model, const char *name, char *out, size_t cap);

/* The adapters that have a name: paths of those in the model's folder, then of those in data/adapters, each sorted
 * by name. Zero-initialise. */
struct pp_adapter_paths {
    char **list; /* [n] */
    size_t n, cap;
    bool damaged; /* include unreadable files that end in .gguf */
};
/* An error if the model is not found, unless it is the bundled one, if a folder cannot be read, or if memory runs
 * out; the list has what was found even then. */
enum pp_code pp_adapter_paths_find(const struct pp_paths *p, const char *model, struct pp_adapter_paths *out,
                                   struct pp_error *err);
/* Adds a path at the end unless it is in the list. */
enum pp_code pp_adapter_paths_add(struct pp_adapter_paths *a, const char *path, struct pp_error *err);
void pp_adapter_paths_free(struct pp_adapter_paths *a);
/* Cuts a path of the list down to the adapter's name: the file's name without .gguf. Returns its beginning. */
char *pp_adapter_cut_name(char *path);

/* PP_ERR_NOT_FOUND if nothing exists at `path`, which may also be a name that could not be resolved: the error
 * suggests the nearest name, and lists the existing ones. */
enum pp_code pp_adapter_check(const struct pp_paths *p, const char *model, const char *path, struct pp_error *err);

#endif
