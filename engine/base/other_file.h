/* other_file.h - what a file is that somebody took for another: downloads give pointers and web pages in place of
 * models, and models come in forms that are not read. Any thread. */
#ifndef PP_BASE_OTHER_FILE_H
#define PP_BASE_OTHER_FILE_H

#include <stddef.h>

#include "engine/base/error.h"

/* Fails with PP_ERR_FORMAT and says what the n bytes at data look like and what to do, if that is
 * known. PP_OK: it is not. name: of the file, as it is shown. */
enum pp_code pp_fail_other_file(const char *name, const void *data, size_t n, struct pp_error *err);

#endif
