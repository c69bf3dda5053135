/* text.h - grapheme clusters and their width in terminal cells.
 *
 * Boundaries follow UAX #29 (utf8proc). Widths are those of the C library, which ncurses uses as well, so that what
 * is measured here is what ncurses draws. All text given here must be sanitised (sanitize.h). Any thread; LC_CTYPE
 * must be UTF-8. */
#ifndef PP_UI_TEXT_H
#define PP_UI_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

struct pp_cluster {
    size_t len; /* bytes */
    int width;  /* cells: 0 only for a line end */
};

/* The contents of one cell (two for a wide character): a spacing character and its combining marks, in the form that
 * ncurses takes. */
enum { PP_GLYPH_CHARS = 5, PP_MAX_GLYPHS = 32 };
struct pp_glyph {
    wchar_t chars[PP_GLYPH_CHARS + 1];
    int width;
};

/* The grapheme cluster at the start of s[0..n); n > 0. One with more than 32 characters (a stack of combining marks)
 * is cut. */
struct pp_cluster pp_cluster_next(const char *s, size_t n);
/* The glyphs of a cluster; returns their number. Joined emoji (a family) are drawn separately, since terminals
 * disagree about the width of the joined picture, and following text would be displaced. The joiner (U+200D) is
 * omitted, since some terminals put whatever follows it into the same cell, and so are skin tones and variation
 * selectors. A mark without a base character gets a dotted circle. */
int pp_cluster_glyphs(const char *s, size_t len, struct pp_glyph out[PP_MAX_GLYPHS]);
int pp_char_width(int32_t cp); /* 0, 1 or 2 */
int pp_text_width(const char *s, size_t n);
/* The longest prefix, in bytes, of whole clusters that needs at most `width` cells; *used (may be NULL): the cells
 * it needs. */
size_t pp_text_fit(const char *s, size_t n, int width, int *used);
/* Start of the cluster that ends at `pos` (for moving left); 0 at the start. */
size_t pp_text_previous(const char *s, size_t n, size_t pos);

#endif
