/* view_notice.h - the messages above the input line: notices, and what is not saved. UI thread. */
#ifndef PP_UI_VIEW_NOTICE_H
#define PP_UI_VIEW_NOTICE_H

#include <stdbool.h>

#include "ui/draw.h"

struct pp_ui;

/* Lines that they take on a screen of this many columns; 0: there are none. */
int pp_notice_height(const struct pp_ui *ui, int cols);
/* Whether there is an error, for which a small screen makes room until the next key. */
bool pp_notice_urgent(const struct pp_ui *ui);
void pp_notice_draw(const struct pp_ui *ui); /* in ui->at.notice */
/* The notice alone, for a menu that covers it: its height in an area of w columns, and drawing it. */
int pp_notice_text_height(const struct pp_ui *ui, int w);
void pp_notice_draw_text(const struct pp_ui *ui, struct pp_area a, pp_style style);

#endif
