/* paths.h - where files live (XDG), and the bundled starter model. */
#ifndef PP_SRC_PATHS_H
#define PP_SRC_PATHS_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

struct pp_paths {
    char config[512];   /* $XDG_CONFIG_HOME/pippin: pippin.conf, templates/, themes/, tokens */
    char data[512];     /* $XDG_DATA_HOME/pippin: pippin.db, models/, adapters/, locks/ */
    char state[512];    /* $XDG_STATE_HOME/pippin: history, log */
    char cache[512];    /* $XDG_CACHE_HOME/pippin: kv/, identity/, layouts/ */
    char db[600];       /* data/pippin.db */
    char starter[512];  /* folder of the bundled model; "" if it is not installed */
    char themes[512];   /* folder of the bundled themes; "" if absent */
};

/* Computes the paths; creates nothing. Bundled files are searched relative to the binary in a build tree
 * (../engine/starter, ../themes, or links next to the binary), then where `make install` puts them relative to the
 * binary (../share/pippin), then in PP_DATADIR (PREFIX/share/pippin). PP_ERR_USAGE if neither HOME nor the XDG
 * variables are set. */
enum pp_code pp_paths_init(struct pp_paths *p, struct pp_error *err);
/* mkdir -p, with mode 0700 for new folders. */
enum pp_code pp_make_dirs(const char *path, struct pp_error *err);
/* The same for the folder of a file. */
enum pp_code pp_make_dirs_of(const char *file, struct pp_error *err);
/* Stores a line "NAME = VALUE\n" in a small file (0600) for the next start, replacing those of that name, and makes
 * the file's folder. Errors say that it could not be stored, and why. */
enum pp_code pp_save_setting_line(const char *path, const char *line, struct pp_error *err);

bool pp_is_folder(const char *path); /* or a link to one */
/* The part of a path after the last slash. */
const char *pp_base_name(const char *path);
/* The absolute path of an existing file. Links among its folders are resolved, but not the last component, since in
 * download caches the targets have meaningless names. out: [PATH_MAX]. False: it does not exist. */
bool pp_absolute_path(const char *path, char *out);
/* The shortest suffix of a path that distinguishes it from another: its name, preceded by as many folders as needed.
 * Points into path. */
const char *pp_path_end(const char *path, const char *other);
/* Resolves a path as typed, or pasted by dragging a file to the terminal: "~" is the home folder, and surrounding
 * quotes and backslashes before spaces and the like are removed, unless a file with such a name exists. False: it is
 * empty or does not fit. */
bool pp_expand_home(const char *typed, char *out, size_t cap);

/* The file of a chat template that is not bundled: NAME.jinja in the user's folder, or a path, which contains a
 * slash. PP_ERR_NOT_FOUND: the name is too long for a file. */
enum pp_code pp_template_path(const struct pp_paths *p, const char *name, char *out, size_t cap, struct pp_error *err);

/* Resolves the argument of -m to a path: an existing file or folder; a file name in data/models; "" or "starter" is
 * the bundled model. PP_ERR_NOT_FOUND suggests similar names. */
enum pp_code pp_resolve_model(const struct pp_paths *p, const char *name, char *out, size_t cap, struct pp_error *err);
/* Whether a model's name is an address for `pippin models pull` (https://..., hf:..., ollama:...). */
bool pp_is_model_address(const char *name);
/* The form in which a model's name is stored: the absolute path if it leads to an existing file or folder, so that
 * it is found from any folder; otherwise the name itself. out: [PATH_MAX] */
void pp_model_reference(const char *name, char *out);
/* The draft model that belongs to the model at this path, if it is a bundled one. False: it has none. */
bool pp_bundled_draft(const struct pp_paths *p, const char *model, char *out, size_t cap);

#endif
