/* view_status.h - the status line, and the line of keys below it. UI thread. */
#ifndef PP_UI_VIEW_STATUS_H
#define PP_UI_VIEW_STATUS_H

struct pp_ui;

/* State, model, quantisation, threads, context used of total, speed, adapters, draft acceptance, persona, template:
 * as much as fits, the most important first to come and last to go. */
void pp_status_draw(struct pp_ui *ui);
void pp_keys_draw(struct pp_ui *ui); /* in ui->at.keys, where there is room for it */

#endif
