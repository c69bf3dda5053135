/* draw.h - the only functions that write to the screen's cells, so that only sanitised text (sanitize.h) gets there.
 * Also maps themes to ncurses colours. UI thread, between pp_screen_open and pp_screen_close (screen.h). */
#ifndef PP_UI_DRAW_H
#define PP_UI_DRAW_H

#include <stdbool.h>
#include <stddef.h>

#include "ui/style.h"
#include "ui/theme.h"

/* A rectangle of cells: upper left corner, height and width. (0, 0) is the upper left cell of the screen. What does
 * not fit on the screen is clipped. */
struct pp_area {
    int y, x, h, w;
};

/* Sets the theme for all later drawing. no_color: attributes only. Colours that the terminal lacks are replaced by
 * the nearest that it has (theme.h). */
void pp_draw_theme(const struct pp_theme *t, bool no_color);
void pp_draw_erase(struct pp_area a, pp_style style); /* fills with the style's background */
/* Draws sanitised text on one line, at most max_w cells; returns the cells used. A grapheme that does not fit is
 * left out. */
int pp_draw_clean(int y, int x, int max_w, const char *s, size_t n, pp_style style);
/* Draws untrusted text: sanitised to one line, truncated with an ellipsis. Returns the cells used; so does
 * pp_draw_fmt. */
int pp_draw_text(int y, int x, int max_w, const char *s, pp_style style);
int pp_draw_width(const char *s); /* cells that pp_draw_text would use with enough room; needs no screen */
int pp_draw_fmt(int y, int x, int max_w, pp_style style, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void pp_draw_hline(int y, int x, int w, pp_style style); /* a rule of w cells */
void pp_draw_vbar(int y, int x, pp_style style);         /* one cell of the bar next to a message */
/* A progress bar of w cells, filled up to share (0 to 1), with a resolution of an eighth of a cell. */
void pp_draw_bar(int y, int x, int w, double share, pp_style style);
/* A frame along the inner edge of a, with a title (untrusted) in its top line. */
void pp_draw_box(struct pp_area a, const char *title, pp_style border, pp_style title_style);

#endif
