/* typed.h - buffers lines from a pipe or a terminal in line mode.
 *
 * A line that is too long or for which memory runs out is dropped as a whole; lines before and after it stay. NUL
 * bytes are dropped, as are a carriage return at the end of a line and a byte order mark at the beginning of the
 * first. UI thread. */
#ifndef PP_UI_TYPED_H
#define PP_UI_TYPED_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"

enum { PP_TYPED_LINE_MAX = 1 << 20 }; /* bytes */

struct pp_typed {
    struct pp_buf text; /* complete lines, and the beginning of another; pp_buf_free at the end */
    size_t used;        /* bytes of the line that pp_typed_line has returned */
    bool skipping;      /* the rest of a line that was dropped is being skipped */
    bool begun;         /* a line was used: no byte order mark can follow */
};

/* Appends what was read. PP_ERR_FORMAT: a line is too long; PP_ERR_NOMEM. The error is for the user. */
enum pp_code pp_typed_add(struct pp_typed *t, const char *bytes, size_t n, struct pp_error *err);
/* Whether there is a complete line. */
bool pp_typed_has_line(const struct pp_typed *t);
/* The first line without its line end; NULL: none is complete. With `ended`, the incomplete line at the end counts
 * as one. It is valid until pp_typed_used, which removes it, or pp_typed_add. */
const char *pp_typed_line(struct pp_typed *t, bool ended);
void pp_typed_used(struct pp_typed *t);

#endif
