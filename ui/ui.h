/* ui.h - the terminal program: takes the screen, runs until the user leaves, gives the screen back. */
#ifndef PP_UI_UI_H
#define PP_UI_UI_H

#include "src/options.h"
#include "src/paths.h"

/* The chat. Returns the exit code. Prints the hint how to resume when it ends. */
int pp_ui_run(const struct pp_options *o, const struct pp_paths *paths);

#endif
