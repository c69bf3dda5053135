/* highlight.h - styles in code blocks: comments, texts, numbers and keywords of common languages, line by line. This is
 * no parser: what is not clear from the line is shown like other code. UI thread. */
#ifndef PP_UI_HIGHLIGHT_H
#define PP_UI_HIGHLIGHT_H

#include <stddef.h>

#include "ui/style.h"

struct pp_code_language;

struct pp_code_block {
    const struct pp_code_language *language; /* NULL: an unknown one */
    char open; /* what the lines so far have left open: '*' a comment, '"', '\'' or '`' a text of several lines, or 0 */
};

/* The code that begins after a fence with this label, such as "c", "C++ {#id}" or "python title=x". */
struct pp_code_block pp_code_begin(const char *label, size_t n);
/* The piece of a line [n] from `at` < n on: its style, and its length, which is returned. */
size_t pp_code_piece(struct pp_code_block *c, const char *line, size_t at, size_t n, pp_style *style);

#endif
