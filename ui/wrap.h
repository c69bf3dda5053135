/* wrap.h - where a line ends: clean text (sanitize.h) cut into screen lines of whole graphemes. Any thread. */
#ifndef PP_UI_WRAP_H
#define PP_UI_WRAP_H

#include <stdbool.h>
#include <stddef.h>

struct pp_wrapped {
    size_t end;  /* the line shows s[pos..end) */
    size_t next; /* the next line begins here (spaces and a line end at the break are skipped); n at the end */
    int width;   /* cells of s[pos..end) */
};

/* The line that begins at pos < n and has at most `width` cells (more only if a single grapheme is wider). With
 * words, breaks lie at spaces, after hyphens and between East Asian characters (not before closing punctuation), and
 * inside a word only when it is longer than a line; without, wherever the line is full. Constant memory; time
 * proportional to the line. */
struct pp_wrapped pp_wrap(const char *s, size_t n, size_t pos, int width, bool words);

#endif
