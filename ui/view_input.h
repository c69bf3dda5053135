/* view_input.h - the input box and the rule above it. UI thread. */
#ifndef PP_UI_VIEW_INPUT_H
#define PP_UI_VIEW_INPUT_H

#include <stddef.h>

#include "engine/base/buf.h"

struct pp_ui;

/* The text as drawn: cleaned and cut into lines. */
struct pp_input_view {
    struct pp_buf clean;
    struct pp_input_line { size_t start, end; } *lines;
    size_t n_lines, cap_lines;
    size_t cursor;           /* in clean */
    size_t cursor_line, top; /* first line shown */
};

/* Lays the text out for a box `cols` wide; returns the lines it needs. */
size_t pp_input_measure(struct pp_input_view *v, int cols);
void pp_input_draw(struct pp_ui *ui); /* and places the cursor */
/* The rule in ui->at.rule: title of the conversation, a search under way, whether there is new text below. */
void pp_rule_draw(struct pp_ui *ui);
void pp_input_view_free(struct pp_input_view *v);

#endif
