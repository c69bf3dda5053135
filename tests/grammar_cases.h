/* grammar_cases.h - files of grammars with texts to accept and to reject: lines of {"kind", "desc", "grammar" or
 * "schema", "passing", "failing"}. {{TOKEN:n}} in a text is the token of that number. */
#ifndef PP_TESTS_GRAMMAR_CASES_H
#define PP_TESTS_GRAMMAR_CASES_H

#include <cjson/cJSON.h>

#include "engine/grammar.h"

/* make: the grammar of a case, or NULL to leave it out. Fails the test at the first text that is taken wrongly. Returns
 * how many cases there were. */
int grammar_cases(const char *path, struct pp_grammar *make(const cJSON *));

#endif
