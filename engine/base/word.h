/* word.h - case-insensitive words in files, formats and commands: for ASCII letters only.
 *
 * strcasecmp uses the user's locale, and in a Turkish one I and i are different letters: iq4_xs would not match
 * IQ4_XS. */
#ifndef PP_BASE_WORD_H
#define PP_BASE_WORD_H

#include <stdbool.h>
#include <stddef.h>

char pp_lower(char c);                                      /* 'A' to 'Z'; anything else stays */
int pp_casecmp(const char *a, const char *b);               /* below, at or above 0 */
int pp_ncasecmp(const char *a, const char *b, size_t n);    /* of the first n bytes */
const char *pp_casestr(const char *s, const char *word);    /* where the word is in s, or NULL */
bool pp_case_ends_with(const char *s, const char *end);
/* Case-sensitive. */
bool pp_ends_with(const char *s, const char *end);

#endif
