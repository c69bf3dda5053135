/* view_input.h - the input box and the rule above it. UI thread. */
#ifndef PP_UI_VIEW_INPUT_H
#define PP_UI_VIEW_INPUT_H

#include <stddef.h>

#include "engine/base/buf.h"

struct pp_ui;

/* The text as drawn: sanitised and broken into lines. */
struct pp_input_view {
    struct pp_buf clean;
    struct pp_input_line { size_t start, end; } *lines;
    size_t n_lines, cap_lines;
    size_t cursor;           /* offset in `clean` */
    size_t cursor_line, top; /* its line, and the first line shown */
};

/* Lays the text out for a box `cols` wide; returns the number of lines. */
size_t pp_input_measure(struct pp_input_view *v, int cols);
void pp_input_draw(struct pp_ui *ui); /* also places the cursor */
/* Draws the rule: the title of the conversation or a running search, and whether there is new text below. */
void pp_rule_draw(struct pp_ui *ui);
void pp_input_view_free(struct pp_input_view *v);

#endif
