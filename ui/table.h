/* table.h - a table of a message. The cells are first written into a layout like any text, one after the other. At
 * the end of the table they are taken out again and written as rows. Columns are as wide as their contents or, if
 * that does not fit the screen, narrower, with several lines in a cell. UI thread. */
#ifndef PP_UI_TABLE_H
#define PP_UI_TABLE_H

#include "ui/layout.h"

enum { PP_TABLE_COLUMNS = 24 };

enum pp_align { PP_ALIGN_LEFT, PP_ALIGN_CENTER, PP_ALIGN_RIGHT };

struct pp_table_cell {
    uint32_t start, end; /* bytes of the layout's text */
};

/* Zero-initialise; pp_table_free at the end. */
struct pp_table {
    struct pp_layout_mark mark;  /* of the layout, before the first cell */
    struct pp_table_cell *cells; /* [n]: rows of n_columns, of which the first n_heads are headings */
    size_t n, cap, n_columns, n_heads;
    uint8_t align[PP_TABLE_COLUMNS]; /* enum pp_align */
    bool bad;                    /* out of memory */
};

/* Call at the beginning and end of each cell; its text is what the layout gets in between. */
void pp_table_begin_cell(struct pp_table *t, const struct pp_layout *l);
void pp_table_end_cell(struct pp_table *t, const struct pp_layout *l);
/* Takes the cells out of the layout and makes lines of them. f: the frame of all lines; base: the style of the
 * spaces between the cells. False: the columns do not fit side by side; the layout is as it was before the table. */
bool pp_table_lines(const struct pp_table *t, struct pp_layout *l, const struct pp_frame *f, pp_style base);
void pp_table_free(struct pp_table *t);

#endif
