/* paragraph.h - a text over several lines of the screen, shortened if it does not fit. UI thread. */
#ifndef PP_UI_PARAGRAPH_H
#define PP_UI_PARAGRAPH_H

#include "ui/draw.h"
#include "ui/sanitize.h"

/* Lines that an untrusted text needs in w > 0 columns. */
int pp_paragraph_height(const char *text, int w, enum pp_clean how);
/* Draws it into a. If it does not fit, the middle is left out: error messages begin with names, and end with the
 * cause and the advice. Returns the lines used. */
int pp_paragraph_draw(struct pp_area a, const char *text, enum pp_clean how, pp_style style);

#endif
