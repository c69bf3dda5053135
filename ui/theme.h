/* theme.h - themes: the look of each slot, read from themes/NAME.theme.
 *
 *   name = Dark              (for the menu)
 *   [palette]
 *   accent = #7aa2f7         names for colours, used below
 *   [styles]
 *   user_name = accent bold          FOREGROUND [on BACKGROUND] [ATTRIBUTES ...]
 *   selected  = black on accent
 *
 * A colour is default (the terminal's own), a palette name, black red green yellow blue magenta cyan white,
 * bright-red and so on, 0 to 255, or #rrggbb. Attributes: bold dim italic underline reverse. A slot inherits what it
 * does not set from its parent (see the table in theme.c). Files are untrusted: errors name the line. Any thread. */
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

/* Parses an INI stream; file is its name for messages. PP_ERR_FORMAT names line and cause; *t is the plain theme
 * then. */
enum pp_code pp_theme_parse(FILE *f, const char *file, struct pp_theme *t, struct pp_error *err);
/* id: a theme in config/themes or in the bundled folder, or (with a slash) a file. PP_ERR_NOT_FOUND lists the
 * existing names. */
enum pp_code pp_theme_load(const struct pp_paths *paths, const char *id, struct pp_theme *t, struct pp_error *err);
/* The names of all themes, without duplicates, sorted: *ids [*n] is one block (pp_free). */
enum pp_code pp_theme_list(const struct pp_paths *paths, char (**ids)[64], size_t *n, struct pp_error *err);

/* The number of the nearest colour on a terminal with that many colours (8, 16, 88, 256, or 1 << 24 for direct
 * colour); -1: the terminal's default. */
int pp_color_reduce(struct pp_color c, int colors);
/* The same for text on a reduced background. With fewer than 16 colours the result always differs from the
 * background, and is not black for a grey on the terminal's default background, but -1. */
int pp_color_reduce_on(struct pp_color c, int bg, int colors);

#endif
