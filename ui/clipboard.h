/* clipboard.h - copying text for other programs. UI thread. */
#ifndef PP_UI_CLIPBOARD_H
#define PP_UI_CLIPBOARD_H

#include <stdbool.h>
#include <stddef.h>

/* Copies text to the terminal's clipboard by OSC 52, if the terminal allows it; it does not say whether it does. By
 * default tmux ignores OSC 52 from programs, so within tmux the text is also passed to it as a buffer, which it
 * sends on to the outer terminal. False: the text is too long, or there is no memory. */
bool pp_clipboard_put(const char *text, size_t n);

#endif
