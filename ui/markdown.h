/* markdown.h - one piece of Markdown (some paragraphs, lists, quotes; no fenced code, document.c takes that out)
 * made into lines.
 *
 * Parsed with md4c: emphasis, code spans, links (their address is shown), headings, lists, quotes, rules,
 * tables (table.h) as far as the screen has room for their columns. Line ends inside a paragraph stay line ends, as
 * models mean them. HTML is text, but for <br> in a table. Formulas (formula.h) stay as they were written. */
#ifndef PP_UI_MARKDOWN_H
#define PP_UI_MARKDOWN_H

#include <stddef.h>

#include "ui/layout.h"

/* Appends the lines of s[0..n), clean text (sanitize.h) of a few kilobytes, each of at most `width` cells, to l; base
 * is the style of ordinary words. Out of memory: l->bad. */
void pp_markdown(struct pp_layout *l, const char *s, size_t n, int width, pp_style base);

#endif
