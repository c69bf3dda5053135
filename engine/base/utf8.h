/* utf8.h - UTF-8 for the engine; width and graphemes are the screen's business. Any thread. */
#ifndef PP_BASE_UTF8_H
#define PP_BASE_UTF8_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one character of s[0..n). Returns its length in bytes (1 to 4) and sets *cp. For bytes that are not
 * UTF-8 it returns 1 and sets *cp to -1. n must not be 0. */
size_t pp_utf8_decode(const char *s, size_t n, int32_t *cp);
/* Writes cp (0 to 0x10FFFF) to out and returns 1 to 4. */
size_t pp_utf8_encode(int32_t cp, char out[4]);
/* Whether all of s[0..n) is UTF-8. U+0000 is; halves of surrogate pairs and overlong forms are not. */
bool pp_utf8_valid(const char *s, size_t n);
/* Length of the longest prefix of s[0..n) that does not end inside a character: what may be shown now while
 * more bytes are to come. Bytes that can never become a character count as complete. */
size_t pp_utf8_complete(const char *s, size_t n);
/* The length of a byte order mark at the beginning of s[0..n), or 0. It is not part of the text, except where raw bytes
 * are asked for. */
size_t pp_utf8_mark(const char *s, size_t n);
/* Removes from the end of s[0..n), which must have room for another byte, the beginning of a character that a precision
 * such as %.40s in the format has cut. Does nothing for a format without one. Terminates s and returns its new length.
 * Incomplete characters of other encodings are removed, too; they cannot be shown either. */
size_t pp_utf8_mend(char *s, size_t n, const char *fmt);
/* Like snprintf, but never cuts a character, neither at the end of out[0..cap) nor by a precision. cap must not be 0.
 * Returns the length of the result. */
size_t pp_utf8_print(char *out, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
size_t pp_utf8_vprint(char *out, size_t cap, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));
/* Makes s one line; it has room for cap bytes. Line breaks and tabs, which names from outside may have, become their
 * symbols (U+240A), or spaces if there is no room for those. */
void pp_utf8_line(char *s, size_t cap);

#endif
