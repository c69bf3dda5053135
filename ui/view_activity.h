/* view_activity.h - what stands below the conversation while the user waits (loading, reading the prompt), and the
 * greeting of an empty one. UI thread. */
#ifndef PP_UI_VIEW_ACTIVITY_H
#define PP_UI_VIEW_ACTIVITY_H

#include <stddef.h>

struct pp_ui;

size_t pp_activity_height(struct pp_ui *ui);
void pp_activity_draw(struct pp_ui *ui, size_t line, int y);
void pp_activity_greet(struct pp_ui *ui);

#endif
