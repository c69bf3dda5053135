/* adapter_names.h - adapters by name: where they are looked for, and what to say of one that is not there. */
#ifndef PP_SRC_ADAPTER_NAMES_H
#define PP_SRC_ADAPTER_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "src/paths.h"

/* Turns what the user gave for --lora into a path: an existing file or folder; a name of one, with or without .gguf,
 * beside the model (as for -m) or in data/adapters. False: it is none of these. */
bool pp_resolve_adapter(const struct pp_paths *p, const char *model, const char *name, char *out, size_t cap);
/* PP_ERR_NOT_FOUND unless there is something at `path`, which may be a name that could not be made one: tells the
 * nearest name, and which there are. */
enum pp_code pp_adapter_check(const struct pp_paths *p, const char *model, const char *path, struct pp_error *err);

#endif
