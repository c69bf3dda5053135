/* buf.h - a growable byte buffer, used for text and for binary output.
 *
 * Appending never reports; an allocation that fails makes the buffer `bad` and every later append a no-op,
 * so that a caller checks once, at the end. `data` is always NUL-terminated unless it is NULL (empty buffer).
 * Zero-initialise before use: struct pp_buf b = {0}. A buffer belongs to one thread at a time. */
#ifndef PP_BASE_BUF_H
#define PP_BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct pp_buf {
    char *data;
    size_t len; /* bytes, without the terminating NUL */
    size_t cap;
    bool bad;   /* an allocation failed; the content is incomplete */
};

/* Each of these five appends a copy. The source must not be in the buffer itself, which may move. */
void pp_buf_add(struct pp_buf *b, const void *bytes, size_t n);
void pp_buf_str(struct pp_buf *b, const char *s);
void pp_buf_char(struct pp_buf *b, char c);
void pp_buf_fmt(struct pp_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void pp_buf_vfmt(struct pp_buf *b, const char *fmt, va_list ap);
void pp_buf_clear(struct pp_buf *b);           /* keeps the memory, but not `bad` */
void pp_buf_free(struct pp_buf *b);            /* and makes it empty again */
const char *pp_buf_cstr(const struct pp_buf *b); /* never NULL; "" when empty; good until the next append */
char *pp_buf_take(struct pp_buf *b);           /* hands over the string (pp_free); NULL if bad; empties the buffer */

#endif
