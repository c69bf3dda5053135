/* other_file.h - what a file is that somebody took for another: downloads give pointers and web pages in place of
 * models, and models come in forms that are not read. Any thread. */
#ifndef PP_BASE_OTHER_FILE_H
#define PP_BASE_OTHER_FILE_H

#include <stddef.h>

#include "engine/base/error.h"

/* data: the first n bytes of a file. If they look like something known, fails with PP_ERR_FORMAT and a message that
 * says what, and what to do; if not, PP_OK. name: the file's, for the message. */
enum pp_code pp_fail_other_file(const char *name, const void *data, size_t n, struct pp_error *err);

#endif
