/* draw.h - the only door to the cells of the screen: everything that is shown passes here, and nothing but clean
 * text (sanitize.h) does. Also turns a theme into ncurses colours. UI thread, between pp_screen_open and
 * pp_screen_close (screen.h). */
#ifndef PP_UI_DRAW_H
#define PP_UI_DRAW_H

#include <stdbool.h>
#include <stddef.h>

#include "ui/style.h"
#include "ui/theme.h"

struct pp_area {
    int y, x, h, w;
};

void pp_draw_theme(const struct pp_theme *t, bool no_color);
void pp_draw_erase(struct pp_area a, pp_style style);
/* Clean text on one line, at most max_w cells: returns the cells used. A grapheme that does not fit is left out. */
int pp_draw_clean(int y, int x, int max_w, const char *s, size_t n, pp_style style);
/* Any text: sanitised to one line, cut with an ellipsis. */
int pp_draw_text(int y, int x, int max_w, const char *s, pp_style style);
int pp_draw_width(const char *s); /* cells that it takes where there is room; needs no screen */
int pp_draw_fmt(int y, int x, int max_w, pp_style style, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void pp_draw_hline(int y, int x, int w, pp_style style);
void pp_draw_vbar(int y, int x, pp_style style);
/* A bar of w cells, filled to done / total in eighths of a cell. */
void pp_draw_bar(int y, int x, int w, double share, pp_style style);
void pp_draw_box(struct pp_area a, const char *title, pp_style border, pp_style title_style);

#endif
