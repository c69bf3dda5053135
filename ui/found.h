/* found.h - finds search words in a text, ignoring case and diacritics. Texts are untrusted; invalid UTF-8 matches
 * itself. If memory runs out, nothing is found. Any thread. */
#ifndef PP_UI_FOUND_H
#define PP_UI_FOUND_H

#include <stdbool.h>
#include <stddef.h>

/* Whether a text has every word of a search as the beginning of a word, as in the store's index. */
bool pp_found_in(const char *text, const char *search);
/* Whether it contains the search literally. */
bool pp_found_phrase(const char *text, const char *search);
/* Marks which bytes of a text match: sets hit[n] to 1 or 0. phrase: the search as a whole; otherwise each of its
 * words. False: there is no match. */
bool pp_found_mark(const char *s, size_t n, const char *search, bool phrase, unsigned char *hit);
/* Whether a search contains any letter or digit: without one, nothing is found. */
bool pp_found_has_words(const char *search);

#endif
