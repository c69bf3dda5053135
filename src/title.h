/* title.h - a conversation's title, made of what was written. */
#ifndef PP_SRC_TITLE_H
#define PP_SRC_TITLE_H

#include <stddef.h>

enum { PP_TITLE_BYTES = 256 };

/* One line of at most 60 characters of text[0..n): escape sequences are left out, and every run of blanks, control
 * characters and bytes that are no UTF-8 becomes one space; what is cut ends in "…". "" if nothing is left. */
void pp_title(const char *text, size_t n, char out[PP_TITLE_BYTES]);

#endif
