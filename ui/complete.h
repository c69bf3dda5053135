/* complete.h - Tab in the line: commands, and what may follow them. UI thread. */
#ifndef PP_UI_COMPLETE_H
#define PP_UI_COMPLETE_H

/* The line with as much more as can be known (pp_free), NULL: nothing. Where there are several to choose from, a notice
 * says which. See edit.h. */
char *pp_ui_complete(void *ui, const char *line);

#endif
