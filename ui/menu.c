#include "ui/menu.h"

#include <curses.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "ui/draw.h"
#include "ui/paragraph.h"
#include "ui/state.h"
#include "ui/view_notice.h"

enum {
    MAX_WIDTH = 76, MARGIN = 4,
    ROW_MARGIN = 4, MIN_WIDTH = 8,        /* of a row: cells around its text; the least width of the text */
    ROOMY_COLS = 50, ROOMY_ROWS = 12, /* smaller screens are filled completely, without a frame */
    RIGHT_MAX = 24, RIGHT_COLS = 36   /* of a row's right part; on narrower screens only short ones are shown */
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

/* Removes an incomplete character from the end of a text that was cut. */
static void trim_incomplete(char *text)
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
    trim_incomplete(row.left);
    trim_incomplete(row.right);
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
    ui->menu = (struct pp_menu){.cls = cls, .notice_seen = ui->notice_at};
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

/* Passes a key to a text field. Input that does not fit causes a notice. */
static bool key_in_field(struct pp_ui *ui, struct pp_field *f, const struct pp_key *key, bool *changed)
{
    const bool used = pp_field_key(f, key, changed);
    if (f->full)
        pp_ui_notice(ui, true, "the field is full");
    return used;
}

/* Why the last answer was refused is no longer shown once another is given, or none. */
static void forget_refusal(struct pp_ui *ui)
{
    if (ui->menu.refused_at && ui->menu.refused_at == ui->notice_at)
        pp_ui_clear_notice(ui);
    ui->menu.refused_at = 0;
}

/* Passes the text to answered(). If it is refused, it stays in the field to be corrected. */
static void answer(struct pp_ui *ui)
{
    struct pp_menu *m = &ui->menu;
    char text[sizeof m->field.text];
    memcpy(text, m->field.text, sizeof text);
    forget_refusal(ui);
    const uint64_t before = ui->notice_at;
    m->mode = PP_MENU_LIST;
    if (m->cls->answered(ui, m, text))
        return;
    m->mode = PP_MENU_ASK;
    m->refused_at = ui->notice_at != before ? ui->notice_at : 0;
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
        forget_refusal(ui);
        m->mode = PP_MENU_LIST;
    } else if (key->type == PP_KEY_ENTER) {
        answer(ui);
    } else if (key->type == PP_KEY_TAB && m->cls->complete) {
        m->cls->complete(ui, m);
    } else {
        key_in_field(ui, &m->field, key, &changed);
    }
}

/* Menus without a search accept letters as keys, as vi and less do. */
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

/* Scrolls by a page as well, so that new rows show at once. */
static void move_page(struct pp_ui *ui, bool down)
{
    struct pp_menu *m = &ui->menu;
    const size_t page = m->shown > 2 ? m->shown - 1 : 1;
    m->top = down ? m->top + page : m->top > page ? m->top - page : 0;
    select_row(ui, down ? m->selected + page : m->selected > page ? m->selected - page : 0);
}

static bool move_selection(struct pp_ui *ui, enum pp_key_type key)
{
    struct pp_menu *m = &ui->menu;
    const size_t n = count(ui);
    switch (key) {
    case PP_KEY_UP: select_row(ui, m->selected ? m->selected - 1 : n ? n - 1 : 0); return true;
    case PP_KEY_DOWN: select_row(ui, m->selected + 1 < n ? m->selected + 1 : 0); return true;
    case PP_KEY_PGUP: move_page(ui, false); return true;
    case PP_KEY_PGDN: move_page(ui, true); return true;
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
    m->chosen = m->being_checked = false;
    m->notice_seen = ui->notice_at;
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

static int width_inside(const struct pp_ui *ui)
{
    return has_frame(ui) ? width_with_frame(ui) - 2 : ui->at.cols;
}

int pp_menu_width(const struct pp_ui *ui)
{
    const int width = width_inside(ui) - ROW_MARGIN;
    return width < MIN_WIDTH ? MIN_WIDTH : width;
}

static struct pp_area box_area(const struct pp_ui *ui, size_t rows, int extra)
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

/* column: where right parts begin; 0: they are aligned to the right edge. */
static void draw_row(const struct pp_menu_row *row, struct pp_area a, bool selected, int column)
{
    pp_style style = selected       ? PP_SLOT_SELECTED
                     : row->heading ? PP_SLOT_MENU_TITLE
                     : row->dim     ? PP_SLOT_MENU_DIM
                                    : PP_SLOT_MENU;
    pp_style faint = selected ? PP_SLOT_SELECTED : PP_SLOT_MENU_DIM;
    int width = pp_draw_width(row->right), most = width < RIGHT_MAX ? width : RIGHT_MAX;
    /* a short right part (a value, a time) is shown on a narrow screen, too */
    bool right = width > 0 && (a.w >= RIGHT_COLS || (!column && width <= (a.w - 4) / 2));
    int room = a.w - ROW_MARGIN - (!right ? 0 : column ? a.w - column : most + 2);
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

/* The column after the widest left part; 0 if the class wants no columns. */
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
    if (m->top + shown > n)
        m->top = n > shown ? n - shown : 0;
    m->shown = shown;
    const char *empty = m->cls->why_empty ? m->cls->why_empty(ui, m) : m->cls->empty;
    if (n == 0 && empty && a.h > 0)
        pp_draw_text(a.y, a.x + 3, a.w - 4, empty, PP_SLOT_MENU_DIM);
    int column = right_column(ui, a.w, n);
    for (size_t i = m->top; i < n && i < m->top + shown; i++) {
        const struct pp_menu_row row = row_at(ui, i);
        draw_row(&row, (struct pp_area){a.y + (int)(i - m->top), a.x, 1, a.w}, i == m->selected, column);
    }
}

/* Breaks the list of keys into rows, at gaps of two or more spaces. */
static void wrap_hint(const char *hint, int w, struct pp_buf *rows)
{
    int used = 0, gap = 0;
    for (const char *p = hint, *end; *p; p = end + gap) {
        char keys[128];
        end = strstr(p, "  ");
        end = end ? end : p + strlen(p);
        pp_utf8_print(keys, sizeof keys, "%.*s", (int)(end - p), p);
        const int width = pp_draw_width(keys);
        const bool fits = used + gap + width <= w;
        pp_buf_fmt(rows, "%*s%s%s", used && fits ? gap : 0, "", used && !fits ? "\n" : "", keys);
        used = used && fits ? used + gap + width : width;
        gap = (int)strspn(end, " ");
    }
}

/* Height of the area below the list, with a question or the keys. It has as many rows as it needs, up to a quarter
 * of the screen. */
static int foot_height(const struct pp_ui *ui, int rows)
{
    const struct pp_menu *m = &ui->menu;
    const int w = width_inside(ui) - 2, most = rows / 4;
    struct pp_buf hint = {0};
    int h = m->mode == PP_MENU_CONFIRM && w > 0 ? pp_paragraph_height(m->question, w, PP_CLEAN_TEXT) : 1;
    wrap_hint(m->cls->hint, w, &hint);
    for (const char *p = pp_buf_cstr(&hint); (p = strchr(p, '\n')); p++)
        h += m->mode != PP_MENU_CONFIRM;
    pp_buf_free(&hint);
    return h < most ? h : most > 1 ? most : 1;
}

static void draw_hint(const struct pp_ui *ui, struct pp_area a)
{
    struct pp_buf hint = {0};
    if (a.h > 1)
        wrap_hint(ui->menu.cls->hint, a.w, &hint);
    else
        pp_buf_str(&hint, ui->menu.cls->hint);
    const char *p = pp_buf_cstr(&hint);
    for (int i = 0; i < a.h && *p; i++) {
        /* the last row gets all the rest, and is cut visibly */
        const size_t n = i + 1 < a.h ? strcspn(p, "\n") : strlen(p);
        char row[512];
        pp_utf8_print(row, sizeof row, "%.*s", (int)n, p);
        for (char *s = row; (s = strchr(s, '\n'));)
            *s = ' ';
        pp_draw_text(a.y + i, a.x, a.w, row, PP_SLOT_MENU_DIM);
        p += n + (p[n] == '\n');
    }
    pp_buf_free(&hint);
}

/* Whether the notice is new since the last key and covered by the menu. Then it is drawn in place of the keys, or
 * above the question. */
static bool covers_new_notice(const struct pp_ui *ui, struct pp_area foot)
{
    return ui->notice[0] && ui->notice_at != ui->menu.notice_seen && foot.y + foot.h >= ui->at.notice.y;
}

/* Erases a notice that the box covers partly, as its remains next to the box would make no sense. */
static void erase_cut_notice(const struct pp_ui *ui, struct pp_area box)
{
    const struct pp_area n = ui->at.notice;
    const int from = n.y > box.y ? n.y : box.y, to = n.y + n.h < box.y + box.h ? n.y + n.h : box.y + box.h;
    if (from < to)
        pp_draw_erase((struct pp_area){from, n.x, to - from, n.w}, PP_SLOT_TEXT);
}

/* Draws the notice, over as much of the list as it needs. */
static void draw_notice(const struct pp_ui *ui, struct pp_area above, int bottom)
{
    const int wanted = pp_notice_text_height(ui, above.w - 2), room = bottom - above.y + 1;
    const int h = wanted < room ? wanted : room;
    const struct pp_area a = {bottom - h + 1, above.x, h, above.w};
    pp_draw_erase(a, PP_SLOT_MENU);
    pp_notice_draw_text(ui, (struct pp_area){a.y, a.x + 1, a.h, a.w - 2}, PP_SLOT_MENU_TITLE);
}

/* Draws the h rows below the list; returns whether the cursor was placed there. */
static bool draw_foot(struct pp_ui *ui, struct pp_area above, int h)
{
    struct pp_menu *m = &ui->menu;
    const struct pp_area a = {above.y + above.h - h, above.x, h, above.w};
    const int last = a.y + h - 1;
    if (covers_new_notice(ui, a) && (m->mode == PP_MENU_LIST || above.h > h))
        draw_notice(ui, above, m->mode == PP_MENU_LIST ? last : m->mode == PP_MENU_ASK ? last - 1 : a.y - 1);
    else if (m->mode == PP_MENU_LIST)
        draw_hint(ui, (struct pp_area){a.y, a.x + 1, h, a.w - 2});
    if (m->mode == PP_MENU_CONFIRM)
        pp_paragraph_draw((struct pp_area){a.y, a.x + 1, h, a.w > 3 ? a.w - 2 : 1}, m->question, PP_CLEAN_TEXT,
                          PP_SLOT_MENU_TITLE);
    if (m->mode != PP_MENU_ASK)
        return false;
    const int used = 1 + pp_draw_text(last, a.x + 1, a.w / 2, m->question, PP_SLOT_MENU_TITLE);
    move(last, pp_field_draw(&m->field, last, a.x + used + 1, a.w - used - 2, PP_SLOT_MENU));
    return true;
}

/* --- details of the selected row ----------------------------------------------------------------------------- */

struct details {
    char lines[PP_MENU_MAX_DETAILS][PP_MENU_DETAIL];
    int n;    /* number of lines, without empty ones at the end */
    int rows; /* the most rows they have needed so far, so that the list does not move with the selection; 0: none */
};

static int detail_height(const char *line, int w)
{
    const int h = *line ? pp_paragraph_height(line, w, PP_CLEAN_LINE) : 1;
    return h > 1 ? h : 1;
}

static void find_details(struct pp_ui *ui, int w, struct details *d)
{
    struct pp_menu *m = &ui->menu;
    int rows = 0;
    m->cls->details(ui, m, d->lines);
    for (int i = 0; i < m->cls->n_details; i++)
        d->n = d->lines[i][0] ? i + 1 : d->n;
    for (int i = 0; i < d->n; i++)
        rows += detail_height(d->lines[i], w);
    if (m->details_w != w || m->details_rows < m->cls->n_details)
        m->details_rows = m->cls->n_details;
    m->details_w = w;
    m->details_rows = rows > m->details_rows ? rows : m->details_rows;
    d->rows = m->details_rows;
}

/* Each line gets one row; longer ones get more as long as there are any. */
static void draw_details(const struct details *d, struct pp_area a)
{
    int y = a.y, more = a.h - d->n;
    for (int i = 0; i < d->n && y < a.y + a.h; i++) {
        const int wanted = detail_height(d->lines[i], a.w), h = wanted - 1 < more ? wanted : more > 0 ? 1 + more : 1;
        if (h > 1)
            pp_paragraph_draw((struct pp_area){y, a.x, h, a.w}, d->lines[i], PP_CLEAN_LINE, PP_SLOT_MENU_DIM);
        else
            pp_draw_text(y, a.x, a.w, d->lines[i], PP_SLOT_MENU_DIM);
        more -= h - 1;
        y += h;
    }
}

/* How many of the rows of list and details the details get, including a blank row above; 0: there is not enough
 * room. */
static int details_room(const struct pp_menu *m, const struct details *d, size_t n, int rows)
{
    const int least = n < 2 ? 1 : 2, fair = rows / 3 > least ? rows / 3 : least;
    const int list = n < (size_t)fair ? (int)n : fair, base = m->cls->n_details + 1;
    if (!d->rows || rows - base < least)
        return 0;
    const int most = rows - list > base ? rows - list : base;
    return d->rows + 1 < most ? d->rows + 1 : most;
}

void pp_menu_draw(struct pp_ui *ui)
{
    struct pp_menu *m = &ui->menu;
    size_t n = count(ui);
    const int inside = width_inside(ui) - 2, foot = foot_height(ui, ui->at.rows);
    struct details d = {.rows = 0};
    if (m->cls->details && n && inside > 0)
        find_details(ui, inside, &d);
    struct pp_area a = box_area(ui, n, (m->cls->search ? 3 : 1) + foot + (d.rows ? d.rows + 1 : 0));
    bool framed = a.w < ui->at.cols, cursor = false;
    if (framed)
        erase_cut_notice(ui, a);
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
    int rows = a.h - (roomy ? foot + 1 : a.h > foot ? foot : 0);
    const int about = details_room(m, &d, n, rows);
    rows -= about;
    if (about)
        draw_details(&d, (struct pp_area){a.y + rows + 1, a.x + 1, about - 1, inside});
    draw_rows(ui, (struct pp_area){a.y, a.x, rows, a.w}, n);
    if (a.h > foot)
        cursor = draw_foot(ui, a, foot);
    if (!cursor && column >= 0 && m->mode == PP_MENU_LIST) {
        move(search_y, column);
        cursor = true;
    }
    curs_set(cursor);
}
