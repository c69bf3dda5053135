/* inputrc.h - the files of the user's keys, before readline reads them.
 *
 * readline follows `$include` wherever it leads: a file that includes itself makes it call itself until its stack is
 * full, and a pipe makes it wait. So they are looked through first. */
#ifndef PP_UI_INPUTRC_H
#define PP_UI_INPUTRC_H

#include "engine/base/buf.h"
#include "engine/base/error.h"

enum {
    PP_INPUTRC_DEPTH = 16,        /* files that include each other, the first one counted */
    PP_INPUTRC_FILES = 256,       /* that are read in all */
    PP_INPUTRC_MAX = 1024 * 1024, /* bytes of one, and of all together */
};

/* path: the file that readline would begin with. PP_OK: it can be read as it is (or is not there).
 * PP_ERR_FORMAT: something has to be left out, which the error names; *flat has the rest, the files that are included
 * in their places. An $include counts whatever $if is around it. PP_ERR_NOMEM. *flat is the caller's in any case. */
enum pp_code pp_inputrc_look(const char *path, struct pp_buf *flat, struct pp_error *err);

#endif
