/* editor.h - editing the input line in the user's own editor. */
#ifndef PP_UI_EDITOR_H
#define PP_UI_EDITOR_H

#include "engine/base/error.h"

/* Writes text to a private file (0600) in the folder, gives the terminal to $VISUAL, $EDITOR or vi, and puts the
 * edited text into the input line, without a final line feed. A text that cannot be taken over, or was saved by an
 * editor that failed, stays in the file, which the error names. UI thread, with screen and input line open. */
enum pp_code pp_editor_run(const char *folder, const char *text, struct pp_error *err);

#endif
