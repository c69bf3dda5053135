/* wrap.h - breaks sanitised text (sanitize.h) into screen lines of whole grapheme clusters. Any thread. */
#ifndef PP_UI_WRAP_H
#define PP_UI_WRAP_H

#include <stdbool.h>
#include <stddef.h>

struct pp_wrapped {
    size_t end;  /* the line shows s[pos..end) */
    size_t next; /* where the next line begins, after spaces and a line end at the break; n at the end */
    int width;   /* cells of s[pos..end) */
};

/* The line that begins at pos < n, of at most `width` cells (more only if a single grapheme is wider). With `words`
 * it breaks at spaces, after hyphens and between East Asian characters (not before closing punctuation), and inside
 * a word only if that is longer than a line; without, wherever the line is full. Needs constant memory, and time
 * proportional to the line. */
struct pp_wrapped pp_wrap(const char *s, size_t n, size_t pos, int width, bool words);

#endif
