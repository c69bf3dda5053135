/* view_activity.h - the lines below the conversation while the user waits (loading, prompt processing), and the
 * greeting of an empty conversation. UI thread. */
#ifndef PP_UI_VIEW_ACTIVITY_H
#define PP_UI_VIEW_ACTIVITY_H

#include <stddef.h>

struct pp_ui;

size_t pp_activity_height(struct pp_ui *ui); /* how many lines that is; 0: there is nothing to wait for */
void pp_activity_draw(struct pp_ui *ui, size_t line, int y); /* draws one of them, in row y of the screen */
void pp_activity_greet(struct pp_ui *ui);    /* in the middle of the transcript's area */

#endif
