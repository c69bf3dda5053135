/* format.h - times for people. */
#ifndef PP_UI_FORMAT_H
#define PP_UI_FORMAT_H

#include <stddef.h>
#include <stdint.h>

/* "now", "5 min", "3 h", "yesterday", "12 d", "2026-03-14" */
void pp_format_age(char *out, size_t cap, int64_t when, int64_t now);

#endif
