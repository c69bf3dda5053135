#include "ui/view_input.h"

#include <curses.h>
#include <string.h>

#include "engine/base/mem.h"
#include "ui/edit.h"
#include "ui/sanitize.h"
#include "ui/state.h"
#include "ui/text.h"
#include "ui/wrap.h"

enum { PROMPT_CELLS = 2, SMALL_COLS = 36 };

static int margin(int cols)
{
    return cols >= SMALL_COLS ? 1 : 0;
}

/* Cells available for text; the last column is left for the cursor at the end of a full line. */
static int width_for(int cols)
{
    int width = cols - margin(cols) - PROMPT_CELLS - 1;
    return width > 1 ? width : 1;
}

static bool add_line(struct pp_input_view *v, size_t start, size_t end)
{
    if (pp_grow(&v->lines, &v->cap_lines, v->n_lines + 1, sizeof *v->lines) != 0)
        return false;
    v->lines[v->n_lines++] = (struct pp_input_line){start, end};
    return true;
}

static void clean_text(struct pp_input_view *v)
{
    const char *text = pp_edit_text();
    size_t n = pp_edit_len(), cursor = pp_edit_cursor();
    int column = 0;
    pp_buf_clear(&v->clean);
    pp_sanitize(&v->clean, text, cursor, PP_CLEAN_TEXT, &column);
    v->cursor = v->clean.len;
    pp_sanitize(&v->clean, text + cursor, n - cursor, PP_CLEAN_TEXT, &column);
}

size_t pp_input_measure(struct pp_input_view *v, int cols)
{
    clean_text(v);
    const char *s = pp_buf_cstr(&v->clean);
    size_t n = v->clean.len, pos = 0;
    int width = width_for(cols);
    v->n_lines = v->cursor_line = 0;
    while (pos < n) {
        struct pp_wrapped w = pp_wrap(s, n, pos, width, true);
        if (!add_line(v, pos, w.end))
            break;
        if (v->cursor >= pos)
            v->cursor_line = v->n_lines - 1;
        pos = w.next;
    }
    if (n == 0 || s[n - 1] == '\n') {
        add_line(v, n, n);
        if (v->cursor >= n && v->n_lines)
            v->cursor_line = v->n_lines - 1;
    }
    return v->n_lines;
}

static void keep_cursor_visible(struct pp_input_view *v, size_t rows)
{
    if (v->cursor_line < v->top)
        v->top = v->cursor_line;
    if (v->cursor_line >= v->top + rows)
        v->top = v->cursor_line - rows + 1;
    if (v->n_lines < v->top + rows)
        v->top = v->n_lines > rows ? v->n_lines - rows : 0;
}

static int cursor_column(const struct pp_input_view *v)
{
    if (v->n_lines == 0)
        return 0;
    const struct pp_input_line *line = &v->lines[v->cursor_line];
    /* past the end of the line, the cursor is within the spaces that the break has skipped */
    size_t to = v->cursor < line->end ? v->cursor : line->end;
    int hanging = v->cursor > line->end ? (int)(v->cursor - line->end) : 0;
    return pp_text_width(pp_buf_cstr(&v->clean) + line->start, to - line->start) + hanging;
}

static const char *placeholder(const struct pp_ui *ui)
{
    if (ui->editing)
        return ui->editing_role == PP_ROLE_ASSISTANT ? "Edit the answer" : "Edit the message";
    switch (pp_controller_status(ui->controller)->state) {
    case PP_STATE_PREFILL:
    case PP_STATE_ANSWER: return "Esc stops";
    case PP_STATE_FAILED: return "No model: /model NAME loads one";
    default: return "Write a message";
    }
}

static const char *what_is_edited(const struct pp_ui *ui)
{
    size_t i = pp_controller_n_messages(ui->controller);
    while (i > ui->editing && pp_controller_message(ui->controller, i - 1)->role != ui->editing_role)
        i--;
    return ui->editing_role == PP_ROLE_ASSISTANT ? "the last answer"
           : i == ui->editing                   ? "your last message"
                                                : "an earlier message; the rest stays as a branch";
}

/* Arrows show that there are more lines, in the last column, which text does not use. */
static void draw_more(const struct pp_input_view *v, struct pp_area a)
{
    if (v->top > 0)
        pp_draw_text(a.y, a.x + a.w - 1, 1, "↑", PP_SLOT_DIM);
    if (v->top + (size_t)a.h < v->n_lines)
        pp_draw_text(a.y + a.h - 1, a.x + a.w - 1, 1, "↓", PP_SLOT_DIM);
}

void pp_input_draw(struct pp_ui *ui)
{
    struct pp_input_view *v = &ui->input;
    struct pp_area a = ui->at.input;
    int left = a.x + margin(a.w), x = left + PROMPT_CELLS;
    pp_draw_erase(a, PP_SLOT_INPUT);
    if (a.h == 0)
        return;
    keep_cursor_visible(v, (size_t)a.h);
    pp_draw_text(a.y, left, PROMPT_CELLS, pp_edit_vi_command() ? "‹" : "›", PP_SLOT_PROMPT);
    if (v->clean.len == 0)
        pp_draw_text(a.y, x, a.w - x - 1, placeholder(ui), PP_SLOT_DIM);
    for (size_t i = v->top; i < v->n_lines && i < v->top + (size_t)a.h; i++)
        pp_draw_clean(a.y + (int)(i - v->top), x, a.x + a.w - x, v->clean.data ? v->clean.data + v->lines[i].start : "",
                      v->lines[i].end - v->lines[i].start, PP_SLOT_INPUT);
    draw_more(v, a);
    int column = x + cursor_column(v);
    move(a.y + (int)(v->cursor_line - v->top), column < a.x + a.w ? column : a.x + a.w - 1);
    curs_set(1);
}

void pp_rule_draw(struct pp_ui *ui)
{
    struct pp_area a = ui->at.rule;
    if (a.h == 0)
        return;
    pp_draw_erase(a, PP_SLOT_TEXT);
    pp_draw_hline(a.y, a.x, a.w, PP_SLOT_BORDER);
    const char *search = pp_edit_message(), *title = pp_controller_status(ui->controller)->title;
    const char *mark = " ↓ new text ";
    int mark_w = ui->transcript.new_text ? (int)strlen("  new text  ") + 2 : 0;
    int room = a.w - mark_w - 5;
    if (mark_w && a.w > mark_w)
        pp_draw_text(a.y, a.x + a.w - mark_w, mark_w, mark, PP_SLOT_NOTICE);
    if (room < 6)
        return;
    if (search)
        pp_draw_fmt(a.y, a.x + 2, room, PP_SLOT_NOTICE, " %s ", search);
    else if (ui->editing) /* shown while typing, too, since sending replaces a message */
        pp_draw_fmt(a.y, a.x + 2, room, PP_SLOT_NOTICE, " editing %s · Esc cancels ", what_is_edited(ui));
    else if (title && *title)
        pp_draw_fmt(a.y, a.x + 2, room, PP_SLOT_DIM, " %s ", title);
}

void pp_input_view_free(struct pp_input_view *v)
{
    pp_buf_free(&v->clean);
    pp_free(v->lines);
    *v = (struct pp_input_view){0};
}
