/* formula.h - formulas of LaTeX in Markdown. Any thread. */
#ifndef PP_UI_FORMULA_H
#define PP_UI_FORMULA_H

#include <stddef.h>

/* A copy of s[0..n) for md4c, which knows formulas between dollar signs alone, with every byte where it was: $$ stands
 * where models write \( and \) or \[ and \], of which Markdown would take the backslashes away, and those of what is
 * between; a percent sign instead of a dollar that is a price; a letter instead of a star that multiplies, as in
 * 2*3*4, of which Markdown would take both away; and a semicolon instead of the colon in [1]: http://..., a line that
 * it would take away. A dollar begins a formula if no blank follows it and
 * no letter or digit stands before it, and if the next one ends it: no blank is before that and no digit follows. The
 * caller's (pp_free); NULL: nothing differs, or there is no memory. */
char *pp_formula_dollars(const char *s, size_t n);

#endif
