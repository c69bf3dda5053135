/* found.h - which message a search has found, where it only says that the conversation is one. Any thread. */
#ifndef PP_UI_FOUND_H
#define PP_UI_FOUND_H

#include <stdbool.h>

/* Whether a text (untrusted UTF-8) has every word of a search, as the store's index takes them: beginnings of words, of
 * any case, with or without their marks. False, too, if memory runs out. */
bool pp_found_in(const char *text, const char *search);
/* Whether there is a letter or digit in what is searched for: nothing else is. */
bool pp_found_has_words(const char *search);

#endif
