/* theme.h - themes: what each slot looks like, read from themes/NAME.theme.
 *
 *   name = Dark              (for the menu)
 *   [palette]
 *   accent = #7aa2f7         names for colours, used below
 *   [styles]
 *   user_name = accent bold          FOREGROUND [on BACKGROUND] [ATTRIBUTES ...]
 *   selected  = black on accent
 *
 * A colour is default (the terminal's own), a palette name, black red green yellow blue magenta cyan white,
 * bright-red and so on, 0 to 255, or #rrggbb. Attributes: bold dim italic underline reverse. What a slot leaves open
 * comes from its parent (the table in theme.c). Files are untrusted: every error names the line. Any thread. */
#ifndef PP_UI_THEME_H
#define PP_UI_THEME_H

#include <stdbool.h>
#include <stdio.h>

#include "engine/base/error.h"
#include "src/paths.h"
#include "ui/style.h"

enum pp_color_kind { PP_COLOR_UNSET, PP_COLOR_DEFAULT, PP_COLOR_INDEX, PP_COLOR_RGB };
struct pp_color {
    enum pp_color_kind kind;
    int value; /* index, or 0xRRGGBB */
};

struct pp_look {
    struct pp_color fg, bg;
    unsigned flags; /* PP_BOLD ... */
    bool set;
};

struct pp_theme {
    char id[64];    /* file name without .theme */
    char title[64]; /* untrusted text */
    struct pp_look looks[PP_SLOTS];
};

/* Parses an INI stream; file is for messages. PP_ERR_FORMAT names line and cause; *t is then the plain theme. */
enum pp_code pp_theme_parse(FILE *f, const char *file, struct pp_theme *t, struct pp_error *err);
/* id: a theme in config/themes or the bundled folder, or (with a slash) a file. PP_ERR_NOT_FOUND lists the names
 * there are. */
enum pp_code pp_theme_load(const struct pp_paths *paths, const char *id, struct pp_theme *t, struct pp_error *err);
/* Names of all themes, each once, sorted: *ids [*n] is one block (pp_free). */
enum pp_code pp_theme_list(const struct pp_paths *paths, char (**ids)[64], size_t *n, struct pp_error *err);

/* The colour number that comes nearest on a terminal with so many colours (8, 16, 88, 256, or 1 << 24 for direct
 * colour); -1: the terminal's own. */
int pp_color_reduce(struct pp_color c, int colors);
/* Likewise of letters on a reduced background: with fewer than 16 colours they are never what they stand on, nor black
 * for grey on the terminal's own background; then -1. */
int pp_color_reduce_on(struct pp_color c, int bg, int colors);

#endif
