#include "ui/draw.h"

#include <curses.h>
#include <stdarg.h>
#include <string.h>
#include <term.h>

#include "engine/base/buf.h"
#include "ui/sanitize.h"
#include "ui/text.h"

static struct look {
    attr_t attributes;
    short pair;
} looks[PP_SLOTS], tinted[PP_SLOTS];

static attr_t attributes_of(unsigned flags)
{
    return (flags & PP_BOLD ? A_BOLD : 0) | (flags & PP_ITALIC ? A_ITALIC : 0) |
           (flags & PP_UNDERLINE ? A_UNDERLINE : 0) | (flags & PP_FAINT ? A_DIM : 0) |
           (flags & PP_REVERSE ? A_REVERSE : 0);
}

static int terminal_colors(void)
{
    return COLORS > 256 && tigetflag("RGB") <= 0 && COLORS < 1 << 24 ? 256 : COLORS;
}

/* Defines a colour pair and returns its number; 0, the terminal's default colours, if no colour is wanted or
 * possible. */
static short make_pair(int number, int fg, int bg)
{
    bool made = (fg >= 0 || bg >= 0) && number < COLOR_PAIRS && init_extended_pair(number, fg, bg) == OK;
    return (short)(made ? number : 0);
}

/* The look of a slot with the tint. If that makes no visible difference in colour, it is underlined. */
static struct look with_tint(const struct pp_theme *t, int slot, int colors)
{
    const struct pp_look *own = &t->looks[slot], *tint = &t->looks[PP_SLOT_DRAFTED], *text = &t->looks[PP_SLOT_TEXT];
    int bg = pp_color_reduce(own->bg, colors), fg = pp_color_reduce_on(tint->fg, bg, colors);
    int ground = pp_color_reduce(tint->bg, colors);
    if (ground != pp_color_reduce(text->bg, colors))
        bg = ground;
    struct look l = {attributes_of(own->flags | tint->flags), colors ? make_pair(PP_SLOTS + slot + 1, fg, bg) : 0};
    if (!l.pair) /* default colours, or no more pairs */
        l.pair = looks[slot].pair;
    bool same = l.pair == looks[slot].pair || fg == pp_color_reduce(own->fg, colors);
    if (same && l.attributes == looks[slot].attributes)
        l.attributes |= A_UNDERLINE;
    return l;
}

void pp_draw_theme(const struct pp_theme *t, bool no_color)
{
    int colors = !no_color && has_colors() ? terminal_colors() : 0;
    for (int i = 0; i < PP_SLOTS; i++) {
        const struct pp_look *look = &t->looks[i];
        int bg = pp_color_reduce(look->bg, colors), fg = pp_color_reduce_on(look->fg, bg, colors);
        looks[i] = (struct look){attributes_of(look->flags), colors ? make_pair(i + 1, fg, bg) : 0};
        if (fg != pp_color_reduce(look->fg, colors) && !looks[i].pair)
            looks[i].attributes |= A_DIM; /* a grey that the terminal lacks */
        tinted[i] = with_tint(t, i, colors);
    }
    /* the selected row must be recognisable even if its colour equals that of the menu */
    if (!(looks[PP_SLOT_SELECTED].attributes & A_REVERSE) &&
        pp_color_reduce(t->looks[PP_SLOT_SELECTED].bg, colors) == pp_color_reduce(t->looks[PP_SLOT_MENU].bg, colors))
        looks[PP_SLOT_SELECTED].attributes |= A_REVERSE;
}

static const struct look *look_of(pp_style style)
{
    return &(style & PP_TINT ? tinted : looks)[style & PP_SLOT_MASK];
}

static void put(int y, int x, const wchar_t *chars, pp_style style)
{
    cchar_t cell;
    const struct look *look = look_of(style);
    setcchar(&cell, chars, look->attributes | attributes_of(style), look->pair, NULL);
    mvadd_wch(y, x, &cell);
}

/* Whether a wide character covers both x - 1 and x. */
static bool is_cut_at(int y, int x)
{
    int column = 0;
    while (column < x) {
        wchar_t chars[CCHARW_MAX + 1] = {0};
        attr_t attributes;
        short pair;
        cchar_t cell;
        if (mvin_wch(y, column, &cell) == ERR || getcchar(&cell, chars, &attributes, &pair, NULL) == ERR)
            return false;
        column += wcwidth(chars[0]) > 1 ? 2 : 1;
    }
    return column > x;
}

/* Writes a space that keeps the cell's colours. */
static void blank_cell(int y, int x)
{
    wchar_t chars[CCHARW_MAX + 1] = {0};
    attr_t attributes;
    short pair;
    cchar_t cell;
    if (mvin_wch(y, x, &cell) == ERR || getcchar(&cell, chars, &attributes, &pair, NULL) == ERR)
        return;
    setcchar(&cell, L" ", attributes, pair, NULL);
    mvadd_wch(y, x, &cell);
}

/* Also blanks the halves of wide characters that the area's edges cut. The terminal erases those by itself, but
 * ncurses would believe them to be there still, and not draw them when the whole character is shown again. */
void pp_draw_erase(struct pp_area a, pp_style style)
{
    cchar_t blank;
    const struct look *look = look_of(style);
    setcchar(&blank, L" ", look->attributes | attributes_of(style), look->pair, NULL);
    for (int y = a.y; y < a.y + a.h && a.w > 0; y++) {
        bool left = a.x > 0 && is_cut_at(y, a.x), right = a.x + a.w < COLS && is_cut_at(y, a.x + a.w);
        mvhline_set(y, a.x, &blank, a.w);
        if (left)
            blank_cell(y, a.x - 1);
        if (right)
            blank_cell(y, a.x + a.w);
    }
}

/* A last safeguard: characters that should not have got here are drawn as a question mark. */
static bool may_be_drawn(wchar_t c)
{
    return c >= 0x20 && !(c >= 0x7F && c < 0xA0) && pp_char_is_clean((int32_t)c);
}

int pp_draw_clean(int y, int x, int max_w, const char *s, size_t n, pp_style style)
{
    int used = 0;
    for (size_t i = 0; i < n;) {
        struct pp_cluster c = pp_cluster_next(s + i, n - i);
        if (used + c.width > max_w)
            break;
        struct pp_glyph glyphs[PP_MAX_GLYPHS];
        int count = pp_cluster_glyphs(s + i, c.len, glyphs);
        for (int g = 0; g < count; g++) {
            bool fine = true;
            for (const wchar_t *w = glyphs[g].chars; *w; w++)
                fine = fine && may_be_drawn(*w);
            put(y, x + used, fine ? glyphs[g].chars : L"?", style);
            used += fine ? glyphs[g].width : 1;
        }
        i += c.len;
    }
    return used;
}

int pp_draw_text(int y, int x, int max_w, const char *s, pp_style style)
{
    struct pp_buf clean = {0};
    pp_sanitize(&clean, s, strlen(s), PP_CLEAN_LINE, NULL);
    const char *text = pp_buf_cstr(&clean);
    int used = 0;
    if (max_w > 0) {
        size_t fit = pp_text_fit(text, clean.len, max_w, NULL);
        if (fit < clean.len)
            fit = pp_text_fit(text, clean.len, max_w - 1, NULL);
        used = pp_draw_clean(y, x, max_w, text, fit, style);
        if (fit < clean.len)
            used += pp_draw_clean(y, x + used, 1, "…", strlen("…"), style);
    }
    pp_buf_free(&clean);
    return used;
}

int pp_draw_width(const char *s)
{
    struct pp_buf clean = {0};
    pp_sanitize(&clean, s, strlen(s), PP_CLEAN_LINE, NULL);
    const int width = pp_text_width(pp_buf_cstr(&clean), clean.len);
    pp_buf_free(&clean);
    return width;
}

int pp_draw_fmt(int y, int x, int max_w, pp_style style, const char *fmt, ...)
{
    struct pp_buf text = {0};
    va_list ap;
    va_start(ap, fmt);
    pp_buf_vfmt(&text, fmt, ap);
    va_end(ap);
    int used = pp_draw_text(y, x, max_w, pp_buf_cstr(&text), style);
    pp_buf_free(&text);
    return used;
}

void pp_draw_hline(int y, int x, int w, pp_style style)
{
    for (int i = 0; i < w; i++)
        put(y, x + i, L"─", style);
}

void pp_draw_vbar(int y, int x, pp_style style)
{
    put(y, x, L"▎", style);
}

void pp_draw_bar(int y, int x, int w, double share, pp_style style)
{
    static const wchar_t parts[8] = L"░▏▎▍▌▋▊▉";
    int eighths = (int)((share < 0 ? 0 : share > 1 ? 1 : share) * w * 8 + 0.5);
    for (int i = 0; i < w; i++, eighths -= 8) {
        wchar_t c[2] = {eighths >= 8 ? L'█' : eighths > 0 ? parts[eighths] : L'░', 0};
        put(y, x + i, c, style);
    }
}

void pp_draw_box(struct pp_area a, const char *title, pp_style border, pp_style title_style)
{
    if (a.h < 2 || a.w < 2)
        return;
    for (int y = a.y + 1; y < a.y + a.h - 1; y++) {
        put(y, a.x, L"│", border);
        put(y, a.x + a.w - 1, L"│", border);
    }
    pp_draw_hline(a.y, a.x + 1, a.w - 2, border);
    pp_draw_hline(a.y + a.h - 1, a.x + 1, a.w - 2, border);
    put(a.y, a.x, L"╭", border);
    put(a.y, a.x + a.w - 1, L"╮", border);
    put(a.y + a.h - 1, a.x, L"╰", border);
    put(a.y + a.h - 1, a.x + a.w - 1, L"╯", border);
    if (a.w > 6)
        pp_draw_fmt(a.y, a.x + 2, a.w - 4, title_style, " %s ", title);
}
