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

/* Computes the paths; creates nothing. Bundled files are looked for beside the program (a build tree:
 * ../engine/starter, ../themes from the binary, or links beside it), then where `make install` puts them, seen from the
 * binary (../share/pippin), then under PP_DATADIR (PREFIX/share/pippin). PP_ERR_USAGE if neither
 * HOME nor the XDG variables are set. */
enum pp_code pp_paths_init(struct pp_paths *p, struct pp_error *err);
/* mkdir -p with mode 0700 for what is new. */
enum pp_code pp_make_dirs(const char *path, struct pp_error *err);
/* Likewise the folder that a file is to be in. */
enum pp_code pp_make_dirs_of(const char *file, struct pp_error *err);
/* Puts a line "NAME = VALUE\n" into a small file (0600) that serves the next start, in the place of those of that name,
 * and makes its folder. Errors say that it is not kept for that, and why. */
enum pp_code pp_keep_line(const char *path, const char *line, struct pp_error *err);

bool pp_is_folder(const char *path); /* or a link to one */
/* What stands behind the last slash of a path, or all of it. */
const char *pp_base_name(const char *path);
/* The path of something that is there from the root, without links among its folders, but with its own name, which may
 * be that of a link: what stores of downloads call the file itself says nothing to anybody. out: [PATH_MAX]. False: it
 * is not there. */
bool pp_whole_path(const char *path, char *out);
/* As much of the end of a path as tells it apart from another: its last name, or the folders before it, too, down to
 * one that differs. Borrowed from path. */
const char *pp_path_end(const char *path, const char *other);
/* A path as somebody types it, or a terminal that a file was dragged to: "~" is the home folder, quotes around all of
 * it and backslashes before blanks and the like are no part of it, unless there is such a file. False: it is empty or
 * does not fit. */
bool pp_expand_home(const char *typed, char *out, size_t cap);

/* The file of a chat template that does not come with pippin: NAME.jinja among the user's, or a path, which has a
 * slash. PP_ERR_NOT_FOUND: no file has so long a name. */
enum pp_code pp_template_path(const struct pp_paths *p, const char *name, char *out, size_t cap, struct pp_error *err);

/* Turns what the user gave for -m into a path: an existing file or folder; a file name in data/models; "" or "starter"
 * the bundled target. PP_ERR_NOT_FOUND names near misses. */
enum pp_code pp_resolve_model(const struct pp_paths *p, const char *name, char *out, size_t cap, struct pp_error *err);
/* What is remembered of what the user gave: where it leads to a file or folder that is there, its path from the root
 * on, so that it leads there from any folder; else the name as it is. out: [PATH_MAX] */
void pp_model_reference(const char *name, char *out);
/* The draft that the model at this path brings: the bundled ones do. False: it brings none. */
bool pp_bundled_draft(const struct pp_paths *p, const char *model, char *out, size_t cap);

#endif
