/* view_status.h - the status line, and the line of keys below it. UI thread. */
#ifndef PP_UI_VIEW_STATUS_H
#define PP_UI_VIEW_STATUS_H

struct pp_ui;

/* Draws state, model, quantisation, threads, context used and available, speed, adapters, draft acceptance, persona
 * and template: as many as fit, the most important ones first. */
void pp_status_draw(struct pp_ui *ui);
void pp_keys_draw(struct pp_ui *ui); /* in ui->at.keys, if there is room for it */

#endif
