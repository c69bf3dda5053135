#include "ui/view_notice.h"

#include <string.h>

#include "ui/paragraph.h"
#include "ui/state.h"

/* Limits of a notice: the larger of the two, as errors are no shorter on a narrow screen. */
enum { ROWS = 4, CELLS = 304, MARGIN = 2, MARGIN_COLS = 40 };

static int most_rows(int width)
{
    const int rows = (CELLS + width - 1) / width;
    return rows > ROWS ? rows : ROWS;
}

/* Measures or draws (draw) a text from line `at` of the area on. Returns the line after it. a.h matters only for
 * drawing. */
static int text_lines(const char *text, struct pp_area a, pp_style style, int at, bool draw)
{
    const int most = draw ? a.h : most_rows(a.w), room = most > at ? most - at : 0;
    if (draw)
        return at + pp_paragraph_draw((struct pp_area){a.y + at, a.x, room, a.w}, text, PP_CLEAN_TEXT, style);
    const int n = pp_paragraph_height(text, a.w, PP_CLEAN_TEXT);
    return at + (n < room ? n : room);
}

bool pp_notice_urgent(const struct pp_ui *ui)
{
    return ui->notice[0] && ui->notice_is_error;
}

/* The permanent message that something is not saved, and the notice. */
static int both(const struct pp_ui *ui, struct pp_area a, bool draw)
{
    const char *unsaved = pp_controller_status(ui->controller)->unsaved;
    const bool other = ui->notice[0] && strcmp(ui->notice, unsaved) != 0;
    int lines = 0;
    if (a.w >= MARGIN_COLS) {
        a.x += MARGIN;
        a.w -= 2 * MARGIN;
    }
    if (*unsaved) {
        struct pp_area upper = a; /* the permanent message must leave room for the notice */
        if (draw && other && a.h > 1) {
            const int below = text_lines(ui->notice, a, PP_SLOT_NOTICE, 0, false);
            upper.h = a.h - below > a.h / 2 ? a.h - below : a.h / 2;
        }
        lines = text_lines(unsaved, upper, PP_SLOT_ERROR, lines, draw);
    }
    if (other)
        lines = text_lines(ui->notice, a, ui->notice_is_error ? PP_SLOT_ERROR : PP_SLOT_NOTICE, lines, draw);
    return lines;
}

int pp_notice_height(const struct pp_ui *ui, int cols)
{
    return both(ui, (struct pp_area){.w = cols}, false);
}

void pp_notice_draw(const struct pp_ui *ui)
{
    both(ui, ui->at.notice, true);
}

int pp_notice_text_height(const struct pp_ui *ui, int w)
{
    return text_lines(ui->notice, (struct pp_area){.w = w > 1 ? w : 1}, PP_SLOT_NOTICE, 0, false);
}

void pp_notice_draw_text(const struct pp_ui *ui, struct pp_area a, pp_style style)
{
    a.w = a.w > 1 ? a.w : 1;
    text_lines(ui->notice, a, style, 0, true);
}
