/* fence.h - where code begins and ends in Markdown: a line of ``` or ~~~, or more of them (CommonMark, 4.5). */
#ifndef PP_SRC_FENCE_H
#define PP_SRC_FENCE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"

enum { PP_FENCE_INDENT = 12 }; /* spaces before a fence of a message: models put code into lists */

struct pp_fence {
    char mark;   /* ` or ~ */
    size_t len;  /* so many of them; 0: it is no fence */
    int indent;  /* behind so many spaces */
};

/* The fence that a line, without its end, begins code with; behind `most` spaces at most. */
struct pp_fence pp_fence_of(const char *line, size_t n, int most);
/* Whether a line ends the code that `open` began. */
bool pp_fence_closes(const struct pp_fence *open, const char *line, size_t n, int most);
/* How many blocks of fenced code a text has; one that nothing closes goes to its end. The lines of block `wanted`, from
 * 1, are appended to out as they were meant, without the indent of its fence; out may be NULL, and lacks memory if
 * out->bad. */
size_t pp_fence_blocks(const char *s, size_t n, int most, size_t wanted, struct pp_buf *out);

#endif
