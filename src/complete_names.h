/* complete_names.h - lists of names for shell completion. */
#ifndef PP_SRC_COMPLETE_NAMES_H
#define PP_SRC_COMPLETE_NAMES_H

#include <stdbool.h>
#include <stdio.h>

#include "src/paths.h"

/* Prints a name per line, followed by a tab and a description. what: "sessions" (their IDs, newest first), "models",
 * "adapters" (those in the folder of `model`, as after -m, first; "" is the starter), "personas". What cannot
 * be read is omitted silently. False: what is something else. */
bool pp_complete_names(FILE *out, const struct pp_paths *p, const char *what, const char *model);

#endif
