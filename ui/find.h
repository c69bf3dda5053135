/* find.h - /find: searches the conversation on the screen. UI thread. */
#ifndef PP_UI_FIND_H
#define PP_UI_FIND_H

struct pp_ui;

/* Shows the newest message that contains the text literally, or each of its words as the beginning of a word. With
 * the same words again, or with "", shows the match before that one, and after the oldest the newest. A notice says
 * which one it is, or that there is none. */
void pp_ui_find(struct pp_ui *ui, const char *words);

#endif
