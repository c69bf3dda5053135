/* formula.h - parts of an answer that are not meant as Markdown: LaTeX formulas, products, Python names, and the
 * backslashes of paths and regular expressions. Any thread. */
#ifndef PP_UI_FORMULA_H
#define PP_UI_FORMULA_H

#include <stddef.h>

/* Returns a copy of s[0..n) to be parsed by md4c, with everything at the same offset, in which such parts are
 * replaced.
 *
 * Formulas: md4c knows them between dollar signs only, so $$ replaces \( and \), \[ and \], whose backslashes
 * Markdown would remove together with those in between. A dollar sign opens a formula if no white space follows and
 * no letter or digit precedes it, and if the next one can close it: that has no white space before and no digit
 * after it. Others are prices, and become percent signs.
 *
 * Letters replace asterisks that multiply, as in 2*3*4, and the underscores of __init__, which Markdown would
 * remove. A semicolon replaces the colon of "[1]: http://...", a line that it would remove completely.
 *
 * Letters also replace backslashes that are not escapes, and the characters after them. Markdown removes a backslash
 * before any punctuation, and nothing would be left of what C:\new\.git, \\server\share or a\.b meant. Models escape
 * what would be markup (\*, \_, \#, 1\. at the beginning of a line) or is special to TeX (\%, \&, \$): these escapes
 * work. All other backslashes are kept, and so are all of a word that has one before a letter.
 *
 * The result is the caller's (pp_free); NULL: nothing was replaced, or out of memory. */
char *pp_formula_dollars(const char *s, size_t n);

#endif
