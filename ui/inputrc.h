/* inputrc.h - checks the user's key bindings before readline reads them.
 *
 * readline follows any `$include`: a file that includes itself makes it recurse until the stack overflows, and a
 * pipe makes it block. So the files are checked first. */
#ifndef PP_UI_INPUTRC_H
#define PP_UI_INPUTRC_H

#include "engine/base/buf.h"
#include "engine/base/error.h"

enum {
    PP_INPUTRC_DEPTH = 16,        /* nesting of files, including the first one */
    PP_INPUTRC_FILES = 256,       /* files read in total */
    PP_INPUTRC_MAX = 1024 * 1024, /* bytes of a file, and of all together */
};

/* path: the inputrc that readline would read. PP_OK: readline can read it (or it does not exist). PP_ERR_FORMAT:
 * something must be left out, which the error names; *flat has the rest, with the included files in place. $if is
 * not evaluated: every $include counts. PP_ERR_NOMEM. *flat is the caller's in any case. */
enum pp_code pp_inputrc_check(const char *path, struct pp_buf *flat, struct pp_error *err);

#endif
