/* editor.h - the input line in the user's own editor. */
#ifndef PP_UI_EDITOR_H
#define PP_UI_EDITOR_H

#include "engine/base/error.h"

/* Writes text to a private file (0600) in the folder, runs $VISUAL, $EDITOR or vi on it while the screen is given back,
 * and puts what it holds then into the input line without the last line end. What cannot be taken over, or was saved by
 * an editor that failed, stays in the file, which the error names. UI thread, screen and line open. */
enum pp_code pp_editor_run(const char *folder, const char *text, struct pp_error *err);

#endif
