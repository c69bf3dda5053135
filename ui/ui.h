/* ui.h - the chat in the terminal. */
#ifndef PP_UI_UI_H
#define PP_UI_UI_H

#include "src/options.h"
#include "src/paths.h"

/* Takes the screen, runs the chat until the user leaves, and restores the screen. Prints how to resume the
 * conversation. Returns the exit code. */
int pp_ui_run(const struct pp_options *o, const struct pp_paths *paths);

#endif
