/* registry.h - models by name: what the store has about them, and how they are found. One thread at a time. */
#ifndef PP_SRC_REGISTRY_H
#define PP_SRC_REGISTRY_H

#include "src/near.h"
#include "src/paths.h"
#include "src/store.h"

/* Whether -m would find a model by this name: it does not look like a path, and is not the bundled model. */
bool pp_registry_can_find(const char *name);
/* The registry entry of a model, which is opened to read its properties. name NULL: that of the file. Release with
 * pp_model_entry_clear. Errors as pp_model_open; PP_ERR_USAGE: it could not be found by this name. */
enum pp_code pp_registry_entry(const char *path, const char *name, struct pp_model_entry *out, struct pp_error *err);
/* Whether a model can be registered with this path and name (NULL: that of the file), to be checked before it is
 * downloaded. Errors as pp_store_model_put. */
enum pp_code pp_registry_check_name(struct pp_store *st, const char *path, const char *name, struct pp_error *err);
/* The path to register for a file or folder: absolute, with all links resolved except a file's own. pp_free; NULL:
 * it does not exist, or out of memory. */
char *pp_registry_path(const char *path);
/* The path of the model with this name or tag, if it still exists. False: it does not, or there is none. */
bool pp_registry_find(const struct pp_paths *p, const char *word, char *out, size_t cap);
/* The source of the model registered with this path, as given to `pippin models pull`; "": unknown. pp_free; NULL:
 * it is not registered, or out of memory. */
char *pp_registry_source(const struct pp_paths *p, const char *path);
/* Offers all names and tags as candidates. */
void pp_registry_near(const struct pp_paths *p, struct pp_near *near);
/* Whether a file or folder looks like a model by its name: a GGUF file, except for further parts of one, or a folder
 * with config.json. */
bool pp_registry_looks_like(const char *path);

#endif
