/* registry.h - models by name: what is noted of them in the store, and finding them by a word. One thread at a time. */
#ifndef PP_SRC_REGISTRY_H
#define PP_SRC_REGISTRY_H

#include "src/near.h"
#include "src/paths.h"
#include "src/store.h"

/* Whether -m finds a model by this name: it is not taken for a path, or for the bundled model. */
bool pp_registry_can_find(const char *name);
/* What is to be noted of a model: opens it, as far as its numbers go. name NULL: the file's. Release with
 * pp_model_entry_clear. Errors as of pp_model_open; PP_ERR_USAGE: by its name it could not be found. */
enum pp_code pp_registry_entry(const char *path, const char *name, struct pp_model_entry *out, struct pp_error *err);
/* Whether a model that will be at this path can be noted, by the name of its file or another one, for who wants to know
 * before it is there. Errors as of pp_store_model_put. */
enum pp_code pp_registry_check_name(struct pp_store *st, const char *path, const char *name, struct pp_error *err);
/* The path that is noted of a file or folder: absolute, and through all links but a file's own. pp_free; NULL: there is
 * none, or no memory. */
char *pp_registry_path(const char *path);
/* The path of the model with this name or tag, if there is a database and the model still lies there. False: no. */
bool pp_registry_find(const struct pp_paths *p, const char *word, char *out, size_t cap);
/* Where the model that is noted at this path came from: what `pippin models pull` was told; "": nobody knows. pp_free;
 * NULL: it is not noted, or there is no memory. */
char *pp_registry_source(const struct pp_paths *p, const char *path);
/* Offers all names and tags. */
void pp_registry_near(const struct pp_paths *p, struct pp_near *near);
/* Whether a file or folder holds a model, by its name: a GGUF file, but for further parts of one, or a folder with
 * config.json. */
bool pp_registry_looks_like(const char *path);

#endif
