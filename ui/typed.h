/* typed.h - lines from a pipe or a bare terminal: what was read and is not used yet.
 *
 * Of a line that cannot be kept no part is taken for a line of its own: it goes to its end, and those before and behind
 * it stay. A NUL is passed over: no text has one; and so is what editors put around text: a carriage return at the end
 * of a line, a mark of UTF-8 at the beginning of the first. UI thread. */
#ifndef PP_UI_TYPED_H
#define PP_UI_TYPED_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"

enum { PP_TYPED_LINE_MAX = 1 << 20 }; /* bytes */

struct pp_typed {
    struct pp_buf text; /* whole lines, and what has come of another; pp_buf_free at the end */
    size_t used;        /* of it, by the line that pp_typed_line gave */
    bool passing;       /* over the rest of a line that could not be kept */
    bool begun;         /* a line was used: no mark of UTF-8 can come any more */
};

/* Appends what was read. PP_ERR_FORMAT: a line is too long; PP_ERR_NOMEM. The error is for the user. */
enum pp_code pp_typed_add(struct pp_typed *t, const char *bytes, size_t n, struct pp_error *err);
/* Whether there is a whole line. */
bool pp_typed_has_line(const struct pp_typed *t);
/* The first line without its end; NULL: none is whole. With `ended`, what comes last is one, too. It stays as it is
 * until pp_typed_used, which takes it away, or pp_typed_add. */
const char *pp_typed_line(struct pp_typed *t, bool ended);
void pp_typed_used(struct pp_typed *t);

#endif
