/* view_alternatives.h - alternatives that were requested together, shown in columns instead of the last message. UI
 * thread. */
#ifndef PP_UI_VIEW_ALTERNATIVES_H
#define PP_UI_VIEW_ALTERNATIVES_H

#include <stddef.h>

#include "src/controller.h"
#include "ui/document.h"

struct pp_ui;

/* The cached layout of a column. */
struct pp_column {
    int64_t id;
    uint64_t revision;
    int shown;           /* what that is: the text, the reasoning, or only its heading */
    char heading[160];   /* the text of that heading */
    struct pp_document doc;
};

/* The number of columns; 0 if there are no alternatives, or the window is too narrow for them, so that the last
 * message is shown alone. */
int pp_alternatives_columns(const struct pp_ui *ui);
/* Lines that the columns take, including names, footers and the empty line at the end. */
size_t pp_alternatives_height(struct pp_ui *ui);
void pp_alternatives_draw(struct pp_ui *ui, size_t line, int y); /* draws one of them, in row y of the screen */

#endif
