/* fence.h - fenced code blocks in Markdown: three or more ` or ~ in a row (CommonMark, 4.5). */
#ifndef PP_SRC_FENCE_H
#define PP_SRC_FENCE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"

enum { PP_FENCE_INDENT = 12 }; /* the most spaces before a fence in a message: models write code blocks in list items */

struct pp_fence {
    char mark;   /* ` or ~ */
    size_t len;  /* the number of marks; 0: no fence */
    int indent;  /* the number of spaces before it */
};

/* The fence that a line (without its line end) opens, indented by at most `most` spaces. */
struct pp_fence pp_fence_of(const char *line, size_t n, int most);
/* Whether a line closes the block that `open` has opened. */
bool pp_fence_closes(const struct pp_fence *open, const char *line, size_t n, int most);
/* The number of fenced code blocks in a text; an unclosed one extends to the end. Appends the lines of block
 * `wanted`, from 1, to out, without the indentation of its fence. out may be NULL; out->bad: out of memory. */
size_t pp_fence_blocks(const char *s, size_t n, int most, size_t wanted, struct pp_buf *out);

#endif
