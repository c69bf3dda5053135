/* complete.h - Tab in the input line: completes commands and their arguments. UI thread. */
#ifndef PP_UI_COMPLETE_H
#define PP_UI_COMPLETE_H

/* Returns the line with everything added that is unambiguous (pp_free), or NULL. If there are several candidates, a
 * notice lists them. See edit.h. */
char *pp_ui_complete(void *ui, const char *line);

#endif
