/* screen.h - taking the terminal and giving it back, whatever happens. UI thread; the restoring also from signal
 * handlers. */
#ifndef PP_UI_SCREEN_H
#define PP_UI_SCREEN_H

#include <stdbool.h>

#include "engine/base/error.h"
#include "ui/input.h"

/* Full screen, no echo, keys one by one; signal handlers as in signals.h. PP_ERR_UNSUPPORTED: not a terminal, or one
 * that cannot move its cursor. mouse: it is to report its buttons and its wheel. */
enum pp_code pp_screen_open(bool mouse, struct pp_error *err);
void pp_screen_close(void);         /* the terminal is as it was; nothing where it is not open */
size_t pp_screen_typed_ahead(void); /* bytes that waited when it was opened */
/* Between these two the terminal is as it was before: for an editor, for Ctrl-Z. */
void pp_screen_pause(void);
void pp_screen_resume(void);
void pp_screen_resize(int *rows, int *cols); /* takes the terminal's size */
void pp_screen_repaint(void);                /* the next refresh draws every cell */
/* Tells the decoder which sequences this terminal's entry gives for the keys. */
void pp_screen_learn_keys(struct pp_input *in);
/* OSC 52 with a text, see clipboard.h. False: it is too long, or there is no memory. */
bool pp_screen_copy(const char *text, size_t n);

#endif
