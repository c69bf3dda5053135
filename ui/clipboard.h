/* clipboard.h - text for other programs. UI thread. */
#ifndef PP_UI_CLIPBOARD_H
#define PP_UI_CLIPBOARD_H

#include <stdbool.h>
#include <stddef.h>

/* Puts text on the terminal's clipboard by OSC 52, where the terminal allows it, which it does not tell; within tmux,
 * which by default takes no such sequence from programs, also into a buffer of tmux, and on with it to the terminal
 * around it. False: it is too long, or there is no memory. */
bool pp_clipboard_put(const char *text, size_t n);

#endif
