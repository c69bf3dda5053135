/* find.h - /find: messages of the conversation on the screen that have some words. UI thread. */
#ifndef PP_UI_FIND_H
#define PP_UI_FIND_H

struct pp_ui;

/* Shows the newest message that has them, as they stand or each of them as the beginning of a word; the same words
 * again, or "", the one before that, and behind the oldest the newest. A notice says which it is, or that there is
 * none. */
void pp_ui_find(struct pp_ui *ui, const char *words);

#endif
