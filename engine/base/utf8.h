/* utf8.h - what the engine needs to know of UTF-8; width and graphemes are the screen's business. Any thread. */
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
/* Bytes of the mark that some editors begin a text in UTF-8 with, and s[0..n) does, too; or 0. It is no part of the
 * text, but where bytes are asked for as they are. */
size_t pp_utf8_mark(const char *s, size_t n);
/* Takes out of s[0..n), for which s has a byte more, what a precision such as %.40s of the format has left of a
 * character: its first bytes, where they do not go on. Nothing is done for a format without one. Ends s and returns its
 * new length. Bytes of another encoding that look like such a beginning go, too; they are no text to show either. */
size_t pp_utf8_mend(char *s, size_t n, const char *fmt);
/* As snprintf, but no character is cut, neither at the end of out[0..cap) nor by a precision. cap must not be 0.
 * Returns the length of what stands in out. */
size_t pp_utf8_print(char *out, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
size_t pp_utf8_vprint(char *out, size_t cap, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));
/* Makes a line of s, which has room for cap bytes: line breaks and tabs, as names from outside may have them, become
 * their pictures (U+240A), or blanks if there is no room for those. */
void pp_utf8_line(char *s, size_t cap);

#endif
