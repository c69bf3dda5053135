/* formula.h - what is no Markdown in an answer: formulas of LaTeX, products, names of Python's. Any thread. */
#ifndef PP_UI_FORMULA_H
#define PP_UI_FORMULA_H

#include <stddef.h>

/* A copy of s[0..n) for md4c, with every byte where it was. It knows formulas between dollar signs alone: $$ stands
 * where models write \( and \) or \[ and \], of which Markdown would take the backslashes away, and those of what is
 * between; and a percent sign instead of a dollar that is a price. A dollar begins a formula if no blank follows it and
 * no letter or digit stands before it, and if the next one ends it: no blank is before that and no digit follows.
 * Letters stand for stars that multiply, as in 2*3*4, and for the underscores of __init__, which Markdown would take
 * away; and a semicolon for the colon of [1]: http://..., a line that it would take away whole. The caller's (pp_free);
 * NULL: nothing differs, or there is no memory. */
char *pp_formula_dollars(const char *s, size_t n);

#endif
