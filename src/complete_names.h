/* complete_names.h - what there is by name, for the completion of a shell. */
#ifndef PP_SRC_COMPLETE_NAMES_H
#define PP_SRC_COMPLETE_NAMES_H

#include <stdbool.h>
#include <stdio.h>

#include "src/paths.h"

/* A name on each line, and behind a tab what it is; what: "sessions" (their IDs, the newest first), "models",
 * "adapters", those beside `model` (as after -m; "" is the starter) first. What cannot be read is left out without a
 * word. False: another word. */
bool pp_complete_names(FILE *out, const struct pp_paths *p, const char *what, const char *model);

#endif
