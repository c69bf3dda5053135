/* found.h - where a text has what was searched for: in any case of letters, with or without their marks. Texts are
 * untrusted; what of them is no UTF-8 stands for itself. If memory runs out nothing is found. Any thread. */
#ifndef PP_UI_FOUND_H
#define PP_UI_FOUND_H

#include <stdbool.h>
#include <stddef.h>

/* Whether a text has every word of a search, as the store's index takes them: beginnings of words. */
bool pp_found_in(const char *text, const char *search);
/* Whether it has what is searched for as it stands. */
bool pp_found_phrase(const char *text, const char *search);
/* Which bytes of a text that was found make it so: hit[n] becomes 1 there, and 0 elsewhere. phrase: those of the search
 * as it stands, else those of each of its words. False: there are none. */
bool pp_found_mark(const char *s, size_t n, const char *search, bool phrase, unsigned char *hit);
/* Whether there is a letter or digit in what is searched for: nothing else is. */
bool pp_found_has_words(const char *search);

#endif
