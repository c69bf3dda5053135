/* view_alternatives.h - answers that were asked for together, in columns side by side where the last message stands.
 * UI thread. */
#ifndef PP_UI_VIEW_ALTERNATIVES_H
#define PP_UI_VIEW_ALTERNATIVES_H

#include <stddef.h>

#include "src/controller.h"
#include "ui/document.h"

struct pp_ui;

/* A column's text as it was laid out last. */
struct pp_column {
    int64_t id;
    uint64_t revision;
    int shown;           /* of the message: its text, what was thought, or that line alone */
    char heading[160];   /* that line */
    struct pp_document doc;
};

/* How many columns there are; 0: none, or the window is too narrow and the last message stands alone. */
int pp_alternatives_columns(const struct pp_ui *ui);
/* Lines with names, footers and the empty one at the end, as of a message. */
size_t pp_alternatives_height(struct pp_ui *ui);
void pp_alternatives_draw(struct pp_ui *ui, size_t line, int y); /* one of them, in row y of the screen */

#endif
