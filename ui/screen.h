/* screen.h - taking the terminal over, and restoring it whatever happens. UI thread; restoring also from signal
 * handlers. */
#ifndef PP_UI_SCREEN_H
#define PP_UI_SCREEN_H

#include <stdbool.h>

#include "engine/base/error.h"
#include "ui/input.h"

/* Switches to full screen, raw keys without echo, and the signal handlers of signals.h. PP_ERR_UNSUPPORTED: not a
 * terminal, or one that cannot move its cursor. mouse: have the terminal report buttons and the wheel. */
enum pp_code pp_screen_open(bool mouse, struct pp_error *err);
void pp_screen_close(void);         /* restores the terminal; no effect if it is not open */
size_t pp_screen_typed_ahead(void); /* bytes of input that were pending when it was opened */
/* Restores the terminal, and takes it over again: for an editor, or Ctrl-Z. */
void pp_screen_pause(void);
void pp_screen_resume(void);
void pp_screen_resize(int *rows, int *cols); /* adopts the terminal's present size */
void pp_screen_repaint(void);                /* the next refresh draws every cell */
/* Teaches the decoder the key sequences of this terminal's terminfo entry. */
void pp_screen_learn_keys(struct pp_input *in);
/* Copies a text to the clipboard by OSC 52, see clipboard.h. False: too long, or out of memory. */
bool pp_screen_copy(const char *text, size_t n);

#endif
