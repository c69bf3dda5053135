/* text_file.h - files of text for the input line: /read. Any thread. */
#ifndef PP_UI_TEXT_FILE_H
#define PP_UI_TEXT_FILE_H

#include "engine/base/error.h"

enum { PP_TEXT_FILE_MAX = 1 << 20 };

/* The text of a file, with "\n" at the ends of lines and an empty line behind it, in which a question can follow
 * (pp_free). "~/" is the home folder. PP_ERR_FORMAT: it is longer than PP_TEXT_FILE_MAX, no UTF-8, or has
 * nothing but spaces and line ends. */
enum pp_code pp_text_file_read(const char *path, char **text, struct pp_error *err);

#endif
