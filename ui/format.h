/* format.h - formats times for people. Any thread. */
#ifndef PP_UI_FORMAT_H
#define PP_UI_FORMAT_H

#include <stddef.h>
#include <stdint.h>

/* "now", "5 min ago", "3 h ago", "yesterday", "12 days ago", "2026-03-14". A time more than a day in the future,
 * because the clock was set back, is shown as a date, too. Times in seconds since 1970. */
void pp_format_age(char *out, size_t cap, int64_t when, int64_t now);

#endif
