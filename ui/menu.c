#include "ui/menu.h"

#include <curses.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "ui/draw.h"
#include "ui/state.h"
#include "ui/view_notice.h"

enum {
    MAX_WIDTH = 76, MARGIN = 4,
    BESIDE = 4, MIN_WIDTH = 8,        /* of a row: what it leaves free; what its text takes for granted */
    ROOMY_COLS = 50, ROOMY_ROWS = 12, /* smaller: the whole screen, without a frame */
    RIGHT_MAX = 24, RIGHT_COLS = 36   /* narrower: only short ones */
};

static size_t count(struct pp_ui *ui)
{
    const struct pp_menu_class *cls = ui->menu.cls;
    size_t n;
    if (!cls->named)
        return cls->count(ui, &ui->menu);
    cls->named(ui->controller, &n);
    return n;
}

/* Text that had no room is cut behind a whole character. */
static void end_whole(char *text)
{
    text[pp_utf8_complete(text, strlen(text))] = 0;
}

static void fill_row(struct pp_ui *ui, size_t i, struct pp_menu_row *row)
{
    const struct pp_menu_class *cls = ui->menu.cls;
    size_t n;
    if (!cls->named) {
        cls->row(ui, &ui->menu, i, row);
        return;
    }
    const struct pp_named *list = cls->named(ui->controller, &n);
    if (i < n) {
        pp_utf8_print(row->left, sizeof row->left, "%s", list[i].name);
        pp_utf8_print(row->right, sizeof row->right, "%s", list[i].detail);
        row->current = list[i].current;
    }
}

static struct pp_menu_row row_at(struct pp_ui *ui, size_t i)
{
    struct pp_menu_row row = {0};
    fill_row(ui, i, &row);
    end_whole(row.left);
    end_whole(row.right);
    return row;
}

static void select_current(struct pp_ui *ui)
{
    size_t n;
    const struct pp_named *list = ui->menu.cls->named(ui->controller, &n);
    for (size_t i = 0; i < n; i++)
        if (list[i].current)
            ui->menu.selected = i;
}

void pp_menu_open(struct pp_ui *ui, const struct pp_menu_class *cls)
{
    pp_menu_close(ui);
    ui->menu = (struct pp_menu){.cls = cls, .told = ui->notice_at};
    if (cls->named)
        select_current(ui);
    if (cls->open)
        cls->open(ui, &ui->menu);
    ui->dirty = PP_DRAW_ALL;
}

void pp_menu_close(struct pp_ui *ui)
{
    if (!ui->menu.cls)
        return;
    if (ui->menu.cls->close)
        ui->menu.cls->close(ui, &ui->menu);
    ui->menu.cls = NULL;
    ui->dirty = PP_DRAW_ALL;
}

void pp_menu_ask(struct pp_ui *ui, const char *question, const char *text)
{
    ui->menu.mode = PP_MENU_ASK;
    pp_utf8_print(ui->menu.question, sizeof ui->menu.question, "%s", question);
    ui->menu.field = (struct pp_field){0};
    pp_field_set(&ui->menu.field, text);
}

void pp_menu_complete_path(struct pp_ui *ui)
{
    struct pp_buf several = {0};
    pp_field_complete_path(&ui->menu.field, &several);
    if (several.len && !several.bad)
        pp_ui_notice(ui, false, "%s", several.data);
    pp_buf_free(&several);
}

void pp_menu_confirm(struct pp_ui *ui, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pp_utf8_vprint(ui->menu.question, sizeof ui->menu.question, fmt, ap);
    va_end(ap);
    ui->menu.mode = PP_MENU_CONFIRM;
}

static void select_row(struct pp_ui *ui, size_t i)
{
    size_t n = count(ui), before = ui->menu.selected;
    ui->menu.selected = n == 0 ? 0 : i < n ? i : n - 1;
    if (ui->menu.selected != before && ui->menu.cls->moved)
        ui->menu.cls->moved(ui, &ui->menu);
}

/* --- keys -------------------------------------------------------------------------------------------------- */

/* What has no room is not left out in silence. */
static bool key_in_field(struct pp_ui *ui, struct pp_field *f, const struct pp_key *key, bool *changed)
{
    const bool used = pp_field_key(f, key, changed);
    if (f->full)
        pp_ui_notice(ui, true, "there is no room for more");
    return used;
}

/* What was typed stays to be corrected where it was refused: the notice says why. */
static void answer(struct pp_ui *ui)
{
    struct pp_menu *m = &ui->menu;
    char text[sizeof m->field.text];
    memcpy(text, m->field.text, sizeof text);
    m->mode = PP_MENU_LIST;
    if (!m->cls->answered(ui, m, text))
        m->mode = PP_MENU_ASK;
}

static void key_in_question(struct pp_ui *ui, const struct pp_key *key)
{
    struct pp_menu *m = &ui->menu;
    bool changed;
    if (m->mode == PP_MENU_CONFIRM) {
        m->mode = PP_MENU_LIST;
        if (key->type == PP_KEY_CHAR && (key->cp == 'y' || key->cp == 'Y'))
            m->cls->confirmed(ui, m);
        return;
    }
    if (key->type == PP_KEY_ESC) {
        m->mode = PP_MENU_LIST;
    } else if (key->type == PP_KEY_ENTER) {
        answer(ui);
    } else if (key->type == PP_KEY_TAB && m->cls->complete) {
        m->cls->complete(ui, m);
    } else {
        key_in_field(ui, &m->field, key, &changed);
    }
}

/* Where letters are not searched for, they are those of vi and less. */
static enum pp_key_type key_of(const struct pp_menu_class *cls, const struct pp_key *key)
{
    if (cls->search || key->type != PP_KEY_CHAR || key->mods)
        return key->type;
    switch (key->cp) {
    case 'j': return PP_KEY_DOWN;
    case 'k': return PP_KEY_UP;
    case 'q': return PP_KEY_ESC;
    default: return key->type;
    }
}

static bool move_selection(struct pp_ui *ui, enum pp_key_type key)
{
    struct pp_menu *m = &ui->menu;
    size_t page = ui->at.rows > 8 ? (size_t)ui->at.rows / 2 : 3, n = count(ui);
    switch (key) {
    case PP_KEY_UP: select_row(ui, m->selected ? m->selected - 1 : n ? n - 1 : 0); return true;
    case PP_KEY_DOWN: select_row(ui, m->selected + 1 < n ? m->selected + 1 : 0); return true;
    case PP_KEY_PGUP: select_row(ui, m->selected > page ? m->selected - page : 0); return true;
    case PP_KEY_PGDN: select_row(ui, m->selected + page); return true;
    case PP_KEY_HOME: select_row(ui, 0); return true;
    case PP_KEY_END: select_row(ui, n ? n - 1 : 0); return true;
    default: return false;
    }
}

void pp_menu_wheel(struct pp_ui *ui, int rows)
{
    const struct pp_menu *m = &ui->menu;
    if (m->mode != PP_MENU_LIST)
        return;
    ui->dirty |= PP_DRAW_MENU;
    select_row(ui, rows > 0 ? m->selected + (size_t)rows
                   : m->selected > (size_t)-rows ? m->selected - (size_t)-rows : 0);
}

void pp_menu_cancel(struct pp_ui *ui)
{
    if (ui->menu.cls->cancel)
        ui->menu.cls->cancel(ui, &ui->menu);
    pp_menu_close(ui);
}

static void go_back(struct pp_ui *ui)
{
    const struct pp_menu_class *parent = ui->menu.cls->parent;
    pp_menu_cancel(ui);
    if (parent)
        pp_menu_open(ui, parent);
}

static void choose(struct pp_ui *ui)
{
    struct pp_menu *m = &ui->menu;
    m->chosen = m->cls->pending && m->cls->pending(ui, m);
    if (m->chosen)
        return;
    if (m->cls->choose && count(ui) > 0)
        m->cls->choose(ui, m);
    else
        pp_menu_close(ui);
}

void pp_menu_settle(struct pp_ui *ui)
{
    if (ui->menu.cls && ui->menu.chosen)
        choose(ui);
}

void pp_menu_key(struct pp_ui *ui, const struct pp_key *key)
{
    struct pp_menu *m = &ui->menu;
    const struct pp_menu_class *cls = m->cls;
    bool changed = false;
    ui->dirty |= PP_DRAW_MENU;
    m->chosen = false;
    m->told = ui->notice_at;
    if (key->type == PP_KEY_CHAR && key->cp == PP_CTRL('c'))
        pp_menu_cancel(ui);
    else if (m->mode != PP_MENU_LIST)
        key_in_question(ui, key);
    else if (cls->key && cls->key(ui, m, key))
        return;
    else if (key_of(cls, key) == PP_KEY_ESC)
        go_back(ui);
    else if (key->type == PP_KEY_ENTER)
        choose(ui);
    else if (move_selection(ui, key_of(cls, key)))
        return;
    else if (cls->search && key_in_field(ui, &m->search, key, &changed) && changed && cls->searched)
        cls->searched(ui, m);
}

/* --- drawing ----------------------------------------------------------------------------------------------- */

static bool has_frame(const struct pp_ui *ui)
{
    return ui->at.cols >= ROOMY_COLS && ui->at.rows >= ROOMY_ROWS;
}

static int width_with_frame(const struct pp_ui *ui)
{
    const int most = ui->at.cols - 2 * MARGIN;
    return most < MAX_WIDTH ? most : MAX_WIDTH;
}

int pp_menu_width(const struct pp_ui *ui)
{
    const int width = (has_frame(ui) ? width_with_frame(ui) - 2 : ui->at.cols) - BESIDE;
    return width < MIN_WIDTH ? MIN_WIDTH : width;
}

static struct pp_area place(const struct pp_ui *ui, size_t rows, int extra)
{
    int cols = ui->at.cols, screen = ui->at.rows;
    struct pp_area a = {0, 0, screen, cols};
    if (!has_frame(ui))
        return a;
    a.w = width_with_frame(ui);
    int wanted = (rows < 1000 ? (int)rows : 1000) + extra + 2;
    a.h = wanted < screen - 2 ? wanted : screen - 2;
    if (a.h < 8)
        a.h = 8;
    a.x = (cols - a.w) / 2;
    a.y = (screen - a.h) / 2;
    return a;
}

/* column: where right parts begin; 0: each at the right edge. */
static void draw_row(const struct pp_menu_row *row, struct pp_area a, bool selected, int column)
{
    pp_style style = selected       ? PP_SLOT_SELECTED
                     : row->heading ? PP_SLOT_MENU_TITLE
                     : row->dim     ? PP_SLOT_MENU_DIM
                                    : PP_SLOT_MENU;
    pp_style faint = selected ? PP_SLOT_SELECTED : PP_SLOT_MENU_DIM;
    int width = pp_draw_width(row->right), most = width < RIGHT_MAX ? width : RIGHT_MAX;
    /* a short right part (a value, a time) has its place also on a narrow screen */
    bool right = width > 0 && (a.w >= RIGHT_COLS || (!column && width <= (a.w - 4) / 2));
    int room = a.w - BESIDE - (!right ? 0 : column ? a.w - column : most + 2);
    pp_draw_erase(a, style);
    pp_draw_text(a.y, a.x + 1, 1, row->current ? "•" : "", style);
    int indent = row->heading ? 1 : 3;
    int used = indent + pp_draw_text(a.y, a.x + indent, room, row->left, style);
    if (!right)
        return;
    int x = column ? column : used + 2, w = a.w - x - 1;
    if (!column && width < w) {
        x += w - width;
        w = width;
    }
    if (w > 0)
        pp_draw_text(a.y, a.x + x, w, row->right, faint);
}

/* The column behind the widest left part, if the class wants columns. */
static int right_column(struct pp_ui *ui, int w, size_t n)
{
    int widest = 0;
    for (size_t i = 0; i < n && ui->menu.cls->columns; i++) {
        const struct pp_menu_row row = row_at(ui, i);
        int width = pp_draw_width(row.left);
        widest = width > widest ? width : widest;
    }
    if (widest == 0)
        return 0;
    return widest < w / 2 ? widest + 6 : w / 2 + 6;
}

static void draw_rows(struct pp_ui *ui, struct pp_area a, size_t n)
{
    struct pp_menu *m = &ui->menu;
    size_t shown = a.h > 0 ? (size_t)a.h : 0;
    if (m->selected >= n)
        m->selected = n ? n - 1 : 0;
    if (m->top > m->selected)
        m->top = m->selected;
    if (shown && m->selected >= m->top + shown)
        m->top = m->selected - shown + 1;
    if (n <= shown)
        m->top = 0;
    if (n == 0 && m->cls->empty && a.h > 0)
        pp_draw_text(a.y, a.x + 3, a.w - 4, m->cls->empty, PP_SLOT_MENU_DIM);
    int column = right_column(ui, a.w, n);
    for (size_t i = m->top; i < n && i < m->top + shown; i++) {
        const struct pp_menu_row row = row_at(ui, i);
        draw_row(&row, (struct pp_area){a.y + (int)(i - m->top), a.x, 1, a.w}, i == m->selected, column);
    }
}

/* A notice about what was done here must not stay behind the menu: until the next key it stands where the hint does,
 * or above what is asked. */
static bool is_told_here(const struct pp_ui *ui, struct pp_area foot)
{
    return ui->notice[0] && ui->notice_at != ui->menu.told && foot.y + 1 >= ui->at.notice.y;
}

/* Over as much of the list as it takes. */
static void draw_told(const struct pp_ui *ui, struct pp_area above, int bottom)
{
    const int wanted = pp_notice_told_height(ui, above.w - 2), room = bottom - above.y + 1;
    const int h = wanted < room ? wanted : room;
    const struct pp_area a = {bottom - h + 1, above.x, h, above.w};
    pp_draw_erase(a, PP_SLOT_MENU);
    pp_notice_draw_told(ui, (struct pp_area){a.y, a.x + 1, a.h, a.w - 2}, PP_SLOT_MENU_TITLE);
}

/* The line at the lower edge, below the list; returns whether the cursor was placed on it. */
static bool draw_foot(struct pp_ui *ui, struct pp_area above)
{
    struct pp_menu *m = &ui->menu;
    const struct pp_area a = {above.y + above.h - 1, above.x, 1, above.w};
    if (is_told_here(ui, a) && (m->mode == PP_MENU_LIST || above.h > 1))
        draw_told(ui, above, m->mode == PP_MENU_LIST ? a.y : a.y - 1);
    else if (m->mode == PP_MENU_LIST)
        pp_draw_text(a.y, a.x + 1, a.w - 2, m->cls->hint, PP_SLOT_MENU_DIM);
    if (m->mode == PP_MENU_LIST)
        return false;
    int room = m->mode == PP_MENU_ASK ? a.w / 2 : a.w - 2;
    int used = 1 + pp_draw_text(a.y, a.x + 1, room, m->question, PP_SLOT_MENU_TITLE);
    if (m->mode == PP_MENU_CONFIRM)
        return false;
    int column = pp_field_draw(&m->field, a.y, a.x + used + 1, a.w - used - 2, PP_SLOT_MENU);
    move(a.y, column);
    return true;
}

static void draw_details(struct pp_ui *ui, struct pp_area a)
{
    char lines[PP_MENU_MAX_DETAILS][PP_MENU_DETAIL] = {{0}};
    ui->menu.cls->details(ui, &ui->menu, lines);
    for (int i = 0; i < a.h; i++)
        pp_draw_text(a.y + i, a.x + 1, a.w - 2, lines[i], PP_SLOT_MENU_DIM);
}

void pp_menu_draw(struct pp_ui *ui)
{
    struct pp_menu *m = &ui->menu;
    size_t n = count(ui);
    int details = m->cls->details && n ? m->cls->n_details + 1 : 0;
    struct pp_area a = place(ui, n, (m->cls->search ? 4 : 2) + details);
    bool framed = a.w < ui->at.cols, cursor = false;
    pp_draw_erase(a, PP_SLOT_MENU);
    if (framed) {
        pp_draw_box(a, m->cls->title, PP_SLOT_MENU_BORDER, PP_SLOT_MENU_TITLE);
        a = (struct pp_area){a.y + 1, a.x + 1, a.h - 2, a.w - 2};
    } else if (a.h > 3) {
        pp_draw_text(a.y, a.x + 1, a.w - 2, m->cls->title, PP_SLOT_MENU_TITLE);
        a.y++, a.h--;
    }
    int column = -1, search_y = a.y;
    if (m->cls->search && a.h > 2) {
        int used = pp_draw_text(a.y, a.x + 1, a.w - 2, "Search: ", PP_SLOT_MENU_DIM);
        column = pp_field_draw(&m->search, a.y, a.x + 1 + used, a.w - used - 2, PP_SLOT_MENU);
        int step = framed ? 2 : 1;
        a.y += step, a.h -= step;
    }
    bool roomy = framed && a.h > 3;
    int rows = a.h - (roomy ? 2 : a.h > 1 ? 1 : 0);
    if (details && rows - details >= (n < 2 ? 1 : 2)) { /* else there is no room for them */
        rows -= details;
        draw_details(ui, (struct pp_area){a.y + rows + 1, a.x, details - 1, a.w});
    }
    draw_rows(ui, (struct pp_area){a.y, a.x, rows, a.w}, n);
    if (a.h > 1)
        cursor = draw_foot(ui, a);
    if (!cursor && column >= 0 && m->mode == PP_MENU_LIST) {
        move(search_y, column);
        cursor = true;
    }
    curs_set(cursor);
}
