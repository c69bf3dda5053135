/* formula.h - what is no Markdown in an answer: formulas of LaTeX, products, names of Python's, and backslashes of
 * paths and regular expressions. Any thread. */
#ifndef PP_UI_FORMULA_H
#define PP_UI_FORMULA_H

#include <stddef.h>

/* A copy of s[0..n) for md4c, with every byte where it was. It knows formulas between dollar signs alone: $$ stands
 * where models write \( and \) or \[ and \], of which Markdown would take the backslashes away, and those of what is
 * between; and a percent sign instead of a dollar that is a price. A dollar begins a formula if no blank follows it and
 * no letter or digit stands before it, and if the next one ends it: no blank is before that and no digit follows.
 * Letters stand for stars that multiply, as in 2*3*4, and for the underscores of __init__, which Markdown would take
 * away; and a semicolon for the colon of [1]: http://..., a line that it would take away whole.
 *
 * Letters stand for backslashes that are no escapes, too, and for what is behind them. Markdown takes a backslash away
 * before any punctuation, and with it what C:\new\.git, \\server\share or a\.b meant: nobody can tell afterwards that
 * one was there. Models escape what would be markup (\*, \_, \#, 1\. where a line begins) and what TeX would take for
 * its own (\%, \&, \$): those go. Before anything else a backslash stays, and all of a word do that has one before a
 * letter.
 *
 * The caller's (pp_free); NULL: nothing differs, or there is no memory. */
char *pp_formula_dollars(const char *s, size_t n);

#endif
