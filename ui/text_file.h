/* text_file.h - reads text files for the input line: /read. Any thread. */
#ifndef PP_UI_TEXT_FILE_H
#define PP_UI_TEXT_FILE_H

#include "engine/base/error.h"

enum { PP_TEXT_FILE_MAX = 1 << 20 };

/* The text of a file, with \n line ends and followed by an empty line, after which a question can be typed
 * (pp_free). "~/" is the home folder. PP_ERR_FORMAT: it is longer than PP_TEXT_FILE_MAX, not UTF-8, or contains only
 * white space. */
enum pp_code pp_text_file_read(const char *path, char **text, struct pp_error *err);

#endif
