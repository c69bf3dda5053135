/* markdown.h - lays out one piece of Markdown (paragraphs, lists, quotes; fenced code is handled by document.c).
 *
 * Parsed with md4c: emphasis, code spans, links (with their address), headings, lists, quotes, rules, and tables
 * (table.h) if their columns fit the screen. Line breaks inside a paragraph are kept, as models mean them. HTML is
 * shown as text, except for <br> in tables. Formulas (formula.h) are shown as written. */
#ifndef PP_UI_MARKDOWN_H
#define PP_UI_MARKDOWN_H

#include <stddef.h>

#include "ui/layout.h"

/* Appends the lines of s[0..n), sanitised text (sanitize.h) of a few kilobytes, to l, each at most `width` cells
 * wide. base is the style of ordinary words. Out of memory: sets l->bad. */
void pp_markdown(struct pp_layout *l, const char *s, size_t n, int width, pp_style base);

#endif
