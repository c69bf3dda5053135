/* title.h - makes the title of a conversation from what was written. */
#ifndef PP_SRC_TITLE_H
#define PP_SRC_TITLE_H

#include <stddef.h>

enum { PP_TITLE_BYTES = 256 };

/* Makes a line of at most 60 characters from text[0..n): escape sequences are removed, and runs of white space,
 * control characters and invalid UTF-8 become a single space; a truncated title ends with "…". "" if nothing is
 * left. */
void pp_title(const char *text, size_t n, char out[PP_TITLE_BYTES]);

#endif
