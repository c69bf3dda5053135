/* adapter_names.h - adapters by name: where they are looked for, and what to say of one that is not there. */
#ifndef PP_SRC_ADAPTER_NAMES_H
#define PP_SRC_ADAPTER_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "src/paths.h"

/* Turns what the user gave for --lora into a path: an existing file or folder; a name of one, with or without .gguf,
 * beside the model (as for -m) or in data/adapters. False: it is none of these. */
bool pp_resolve_adapter(const struct pp_paths *p, const char *model, const char *name, char *out, size_t cap);

/* The adapters that have a name: paths of those beside the model, then of those in data/adapters, each by name.
 * Zero-initialise. */
struct pp_adapter_paths {
    char **list; /* [n] */
    size_t n, cap;
    bool damaged; /* wanted, too: files called .gguf of which nobody can tell what they are */
};
/* An error of the model's, unless that is the bundled one, of a folder that cannot be read, or of memory; the list has
 * what was found all the same. */
enum pp_code pp_adapter_paths_find(const struct pp_paths *p, const char *model, struct pp_adapter_paths *out,
                                   struct pp_error *err);
/* One more at the end, unless it is there. */
enum pp_code pp_adapter_paths_add(struct pp_adapter_paths *a, const char *path, struct pp_error *err);
void pp_adapter_paths_free(struct pp_adapter_paths *a);
/* Cuts a path of the list down to the adapter's name: the file's, without .gguf. Returns where it begins. */
char *pp_adapter_cut_name(char *path);

/* PP_ERR_NOT_FOUND unless there is something at `path`, which may be a name that could not be made one: tells the
 * nearest name, and which there are. */
enum pp_code pp_adapter_check(const struct pp_paths *p, const char *model, const char *path, struct pp_error *err);

#endif
