/* other_file.h - recognises files that were mistaken for others: downloads may be pointers or web pages instead of
 * models, and models may be in formats that we do not read. Any thread. */
#ifndef PP_BASE_OTHER_FILE_H
#define PP_BASE_OTHER_FILE_H

#include <stddef.h>

#include "engine/base/error.h"

/* data: the first n bytes of a file. If they look like something known, fails with PP_ERR_FORMAT and a message that
 * tells what, and what to do; otherwise PP_OK. name: the file's, for the message. */
enum pp_code pp_fail_other_file(const char *name, const void *data, size_t n, struct pp_error *err);

#endif
