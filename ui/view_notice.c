#include "ui/view_notice.h"

#include <string.h>

#include "engine/base/buf.h"
#include "ui/sanitize.h"
#include "ui/state.h"
#include "ui/wrap.h"

/* A notice may take so many rows, or cells if that is more: errors are as long on a narrow screen. */
enum { ROWS = 4, CELLS = 304, MARGIN = 2, MARGIN_COLS = 40 };

static int most_rows(int width)
{
    const int rows = (CELLS + width - 1) / width;
    return rows > ROWS ? rows : ROWS;
}

/* A text, cut into lines, of which those are drawn that a has room for behind its first `at`. What there is no room for
 * is left out of the middle: names stand in front, and what is wrong and what to do behind. Returns the line behind the
 * last one; a.h counts only if it is drawn. */
static int text_lines(const char *text, struct pp_area a, pp_style style, int at, bool draw)
{
    struct pp_buf clean = {0};
    pp_sanitize(&clean, text, strlen(text), PP_CLEAN_TEXT, NULL);
    const char *s = pp_buf_cstr(&clean);
    const int most = draw ? a.h : most_rows(a.w), room = most > at ? most - at : 0;
    int n = 0;
    for (size_t pos = 0; pos < clean.len; n++)
        pos = pp_wrap(s, clean.len, pos, a.w, true).next;
    const int out = n > room ? n - room : 0, head = out ? (room + 1) / 2 : n;
    size_t pos = 0;
    for (int i = 0; draw && i < n; i++) {
        const struct pp_wrapped w = pp_wrap(s, clean.len, pos, a.w, true);
        const bool cut = out && i + 1 == head;
        if (i < head || i >= head + out) {
            const int used = pp_draw_clean(a.y + at, a.x, a.w - cut, s + pos, w.end - pos, style);
            if (cut)
                pp_draw_text(a.y + at, a.x + used, 1, "…", style);
            at++;
        }
        pos = w.next;
    }
    pp_buf_free(&clean);
    return draw ? at : at + n - out;
}

bool pp_notice_urgent(const struct pp_ui *ui)
{
    return ui->notice[0] && ui->notice_is_error;
}

/* What must be seen whatever else is said, that something is not saved; and the notice. */
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
        struct pp_area upper = a; /* it stays, and must not hide what is said now */
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

int pp_notice_told_height(const struct pp_ui *ui, int w)
{
    return text_lines(ui->notice, (struct pp_area){.w = w > 1 ? w : 1}, PP_SLOT_NOTICE, 0, false);
}

void pp_notice_draw_told(const struct pp_ui *ui, struct pp_area a, pp_style style)
{
    a.w = a.w > 1 ? a.w : 1;
    text_lines(ui->notice, a, style, 0, true);
}
