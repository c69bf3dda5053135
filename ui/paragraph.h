/* paragraph.h - a text over several lines of the screen, cut to what has room. UI thread. */
#ifndef PP_UI_PARAGRAPH_H
#define PP_UI_PARAGRAPH_H

#include "ui/draw.h"
#include "ui/sanitize.h"

/* Lines that any text takes in w > 0 columns. */
int pp_paragraph_height(const char *text, int w, enum pp_clean how);
/* Draws it into a; what there is no room for is left out of the middle: names stand in front, and what is wrong and
 * what to do behind. Returns the lines used. */
int pp_paragraph_draw(struct pp_area a, const char *text, enum pp_clean how, pp_style style);

#endif
