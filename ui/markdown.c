#include "ui/markdown.h"

#include <md4c.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "ui/formula.h"
#include "ui/table.h"

enum { MAX_LISTS = 12, MAX_QUOTES = 6 };

struct list {
    bool ordered, tight;
    unsigned next;
    int indent;      /* column of the bullets */
    int text_indent; /* column where the text of items begins */
};

struct source {
    const char *shown;   /* [n] */
    const char *parsed;  /* [n] the same with dollar signs in place of other formula marks (formula.h), for md4c */
    size_t n;
};

struct writer {
    struct pp_layout *l;
    int width;
    pp_style base;
    struct list lists[MAX_LISTS];
    int n_lists, lists_beyond; /* lists nested deeper than MAX_LISTS are drawn at the last level */
    int quotes;
    int bold, italic, strike, code, link;
    uint32_t doubled;     /* a stack of bits, one per open strikethrough span: 1 between double tildes */
    bool heading, code_block;
    bool open;            /* a paragraph is open */
    size_t start;         /* where it begins in the layout's text */
    int bullet_width;     /* of the bullet it begins with; 0: none */
    bool bullet_pending;  /* the next paragraph begins with a bullet */
    bool gap;             /* a blank line is due before the next paragraph */
    size_t first_line;    /* l->n_lines at the beginning: no gap before the first paragraph */
    size_t link_start;
    const struct source *s;
    size_t at;            /* offset after the last byte that md4c has reported as text */
    struct pp_table table;
    bool in_table;
    bool no_room;         /* a table did not fit: lay out everything again without tables */
};

static struct list *innermost(struct writer *w)
{
    return w->n_lists ? &w->lists[w->n_lists - 1] : NULL;
}

static int quote_indent(const struct writer *w)
{
    return 2 * w->quotes;
}

static pp_style style_now(const struct writer *w)
{
    unsigned s = w->base;
    if (w->code || w->code_block)
        s = w->code_block ? PP_SLOT_CODE_BLOCK : PP_SLOT_CODE;
    else if (w->link)
        s = PP_SLOT_LINK;
    else if (w->heading)
        s = PP_SLOT_HEADING;
    else if (w->quotes)
        s = PP_SLOT_QUOTE;
    return (pp_style)(s | (w->bold ? PP_BOLD : 0) | (w->italic ? PP_ITALIC : 0) | (w->strike ? PP_FAINT : 0));
}

static void write_bullet(struct writer *w)
{
    struct list *list = innermost(w);
    char text[32];
    int width = 2;
    if (list->ordered)
        width = snprintf(text, sizeof text, "%u. ", list->next++);
    else
        snprintf(text, sizeof text, "%s ", w->n_lists % 2 ? "•" : "◦");
    pp_layout_text(w->l, text, strlen(text), PP_SLOT_BULLET);
    w->bullet_width = width;
    list->text_indent = list->indent + width;
    w->bullet_pending = false;
}

static void open_paragraph(struct writer *w)
{
    if (w->open)
        return;
    if (w->gap && w->l->n_lines > w->first_line)
        pp_layout_blank(w->l, (uint8_t)w->quotes);
    w->gap = false;
    w->open = true;
    w->start = w->l->text.len;
    w->bullet_width = 0;
    if (w->bullet_pending && w->n_lists)
        write_bullet(w);
}

static void close_paragraph(struct writer *w)
{
    if (!w->open)
        return;
    w->open = false;
    struct list *list = innermost(w);
    int indent = quote_indent(w) + (list ? list->text_indent : 0);
    struct pp_frame f = {w->width, indent - w->bullet_width, indent, (uint8_t)w->quotes, PP_LINE_TEXT};
    if (w->code_block) {
        f.kind = PP_LINE_CODE;
        if (w->l->text.len > w->start && w->l->text.data[w->l->text.len - 1] == '\n')
            w->l->text.data[--w->l->text.len] = '\0';
    }
    pp_layout_lines(w->l, w->start, &f);
}

static void enter_list(struct writer *w, bool ordered, bool tight, unsigned start)
{
    close_paragraph(w);
    if (w->n_lists == MAX_LISTS) {
        w->lists_beyond++;
        return;
    }
    struct list *outer = innermost(w);
    int indent = outer ? outer->text_indent : 0;
    if (indent > w->width / 2)
        indent = w->width / 2;
    w->lists[w->n_lists++] = (struct list){ordered, tight, start, indent, indent + 2};
    w->gap = w->gap && !(outer && outer->tight);
}

static void leave_list(struct writer *w)
{
    close_paragraph(w);
    if (w->lists_beyond) {
        w->lists_beyond--;
        return;
    }
    w->n_lists--;
    w->bullet_pending = false;
    w->gap = w->n_lists == 0 || !innermost(w)->tight;
}

/* The text of all cells is collected as one paragraph until the table ends. */
static void enter_table(struct writer *w, const MD_BLOCK_TABLE_DETAIL *detail)
{
    close_paragraph(w);
    if (w->bullet_pending) { /* the bullet gets a line of its own above the table */
        open_paragraph(w);
        close_paragraph(w);
    }
    open_paragraph(w);
    w->in_table = true;
    w->table.mark = pp_layout_mark(w->l);
    w->table.n = 0;
    w->table.n_columns = detail->col_count;
    w->table.n_heads = detail->head_row_count;
}

static void leave_table(struct writer *w)
{
    const struct list *list = innermost(w);
    const int indent = quote_indent(w) + (list ? list->text_indent : 0);
    const struct pp_frame f = {w->width, indent, indent, (uint8_t)w->quotes, PP_LINE_TEXT};
    w->open = w->in_table = false;
    w->gap = true;
    if (!pp_table_lines(&w->table, w->l, &f, w->base))
        w->no_room = true;
}

static void enter_cell(struct writer *w, const MD_BLOCK_TD_DETAIL *detail)
{
    const size_t column = w->table.n_columns ? w->table.n % w->table.n_columns : 0;
    if (column < PP_TABLE_COLUMNS)
        w->table.align[column] = detail->align == MD_ALIGN_RIGHT    ? PP_ALIGN_RIGHT
                                 : detail->align == MD_ALIGN_CENTER ? PP_ALIGN_CENTER
                                                                    : PP_ALIGN_LEFT;
    pp_table_begin_cell(&w->table, w->l);
}

static int enter_block(MD_BLOCKTYPE type, void *detail, void *user)
{
    struct writer *w = user;
    switch (type) {
    case MD_BLOCK_UL:
        enter_list(w, false, ((MD_BLOCK_UL_DETAIL *)detail)->is_tight != 0, 0);
        break;
    case MD_BLOCK_OL:
        enter_list(w, true, ((MD_BLOCK_OL_DETAIL *)detail)->is_tight != 0, ((MD_BLOCK_OL_DETAIL *)detail)->start);
        break;
    case MD_BLOCK_LI:
        close_paragraph(w);
        w->bullet_pending = true;
        break;
    case MD_BLOCK_QUOTE:
        close_paragraph(w);
        if (w->quotes < MAX_QUOTES)
            w->quotes++;
        break;
    case MD_BLOCK_H:
        close_paragraph(w);
        w->heading = true;
        w->bold++;
        break;
    case MD_BLOCK_CODE:
        close_paragraph(w);
        open_paragraph(w);
        w->code_block = true;
        break;
    case MD_BLOCK_HR:
        close_paragraph(w);
        open_paragraph(w);
        w->open = false;
        pp_layout_lines(w->l, w->l->text.len, &(struct pp_frame){w->width, 0, 0, (uint8_t)w->quotes, PP_LINE_RULE});
        w->gap = true;
        break;
    case MD_BLOCK_TABLE:
        enter_table(w, detail);
        break;
    case MD_BLOCK_TH:
        w->bold++;
        enter_cell(w, detail);
        break;
    case MD_BLOCK_TD:
        enter_cell(w, detail);
        break;
    default:
        break;
    }
    return 0;
}

static int leave_block(MD_BLOCKTYPE type, void *detail, void *user)
{
    struct writer *w = user;
    (void)detail;
    switch (type) {
    case MD_BLOCK_UL:
    case MD_BLOCK_OL:
        leave_list(w);
        break;
    case MD_BLOCK_LI:
        if (w->bullet_pending) /* an empty item */
            open_paragraph(w);
        close_paragraph(w);
        w->gap = w->n_lists && !innermost(w)->tight;
        break;
    case MD_BLOCK_QUOTE:
        close_paragraph(w);
        if (w->quotes > 0)
            w->quotes--;
        w->gap = true;
        break;
    case MD_BLOCK_H:
        close_paragraph(w);
        w->heading = false;
        w->bold--;
        w->gap = true;
        break;
    case MD_BLOCK_CODE:
        close_paragraph(w);
        w->code_block = false;
        w->gap = true;
        break;
    case MD_BLOCK_P:
        close_paragraph(w);
        w->gap = true;
        break;
    case MD_BLOCK_TABLE:
        leave_table(w);
        break;
    case MD_BLOCK_TH:
        w->bold--;
        pp_table_end_cell(&w->table, w->l);
        break;
    case MD_BLOCK_TD:
        pp_table_end_cell(&w->table, w->l);
        break;
    default:
        break;
    }
    return 0;
}

/* Whether md4c's text points into the source; if not, it is md4c's own, such as a space for a line end. */
static bool is_parsed(const struct writer *w, const char *s)
{
    return (uintptr_t)s - (uintptr_t)w->s->parsed <= w->s->n;
}

/* Maps a piece of the parsed text to the text to show, and advances w->at. */
static const char *shown(struct writer *w, const char *s, size_t n)
{
    w->at = (size_t)(s - w->s->parsed) + n;
    return w->s->shown + (s - w->s->parsed);
}

static void end_line(struct writer *w)
{
    const struct pp_buf *text = &w->l->text;
    if (text->len == w->start || text->data[text->len - 1] != '\n')
        pp_layout_text(w->l, "\n", 1, style_now(w));
}

/* Writes the mark of a formula: the next one or two dollar signs in the parsed text, or what they stand for in the
 * source. */
static void write_formula_mark(struct writer *w, size_t n)
{
    const char *mark = memchr(w->s->parsed + w->at, '$', w->s->n - w->at);
    if (!mark || n > w->s->n - (size_t)(mark - w->s->parsed))
        return;
    mark = shown(w, mark, n);
    pp_layout_text(w->l, mark, n, style_now(w));
}

/* md4c does not report a line end right after the opening mark. */
static void open_formula(struct writer *w, size_t n)
{
    write_formula_mark(w, n);
    if (w->at < w->s->n && w->s->shown[w->at] == '\n')
        end_line(w);
}

/* Terminals have no strikethrough: the tildes stay, and text between double tildes is drawn fainter. Single tildes
 * are mostly not meant as strikethrough, as in "from 3~5 to 7~9". */
static void open_del(struct writer *w)
{
    const char *end = w->s->parsed + w->s->n, *mark = memchr(w->s->parsed + w->at, '~', w->s->n - w->at);
    const bool twice = !mark || (end - mark > 1 && mark[1] == '~');
    if (mark)
        shown(w, mark, twice ? 2 : 1);
    w->doubled = w->doubled << 1 | twice;
    w->strike += twice;
    pp_layout_text(w->l, "~~", twice ? 2 : 1, style_now(w));
}

static void close_del(struct writer *w)
{
    const bool twice = w->doubled & 1;
    pp_layout_text(w->l, "~~", twice ? 2 : 1, style_now(w));
    w->strike -= twice;
    w->doubled >>= 1;
}

static int enter_span(MD_SPANTYPE type, void *detail, void *user)
{
    struct writer *w = user;
    (void)detail;
    open_paragraph(w);
    switch (type) {
    case MD_SPAN_STRONG: w->bold++; break;
    case MD_SPAN_EM: w->italic++; break;
    case MD_SPAN_DEL: open_del(w); break;
    case MD_SPAN_CODE: w->code++; break;
    case MD_SPAN_LATEXMATH: open_formula(w, 1); break;
    case MD_SPAN_LATEXMATH_DISPLAY: open_formula(w, 2); break;
    case MD_SPAN_A:
    case MD_SPAN_IMG:
        w->link++;
        w->link_start = w->l->text.len;
        break;
    default: break;
    }
    return 0;
}

/* The address is shown unless it equals the link's text: a link must not pretend to lead elsewhere. */
static void write_address(struct writer *w, const MD_ATTRIBUTE *address)
{
    const struct pp_buf *text = &w->l->text;
    const size_t len = text->len - w->link_start;
    if (!address->text || address->size == 0)
        return;
    const char *to = is_parsed(w, address->text) ? shown(w, address->text, address->size) : address->text;
    if (len == address->size && memcmp(text->data + w->link_start, to, len) == 0)
        return;
    pp_layout_text(w->l, " (", 2, PP_SLOT_DIM);
    pp_layout_text(w->l, to, address->size, PP_SLOT_DIM);
    pp_layout_text(w->l, ")", 1, PP_SLOT_DIM);
}

static int leave_span(MD_SPANTYPE type, void *detail, void *user)
{
    struct writer *w = user;
    switch (type) {
    case MD_SPAN_STRONG: w->bold--; break;
    case MD_SPAN_EM: w->italic--; break;
    case MD_SPAN_DEL: close_del(w); break;
    case MD_SPAN_CODE: w->code--; break;
    case MD_SPAN_LATEXMATH: write_formula_mark(w, 1); break;
    case MD_SPAN_LATEXMATH_DISPLAY: write_formula_mark(w, 2); break;
    case MD_SPAN_A:
        w->link--;
        write_address(w, &((MD_SPAN_A_DETAIL *)detail)->href);
        break;
    case MD_SPAN_IMG:
        w->link--;
        write_address(w, &((MD_SPAN_IMG_DETAIL *)detail)->src);
        break;
    default: break;
    }
    return 0;
}

/* Replaces only names of visible characters. Numeric references stay as written, as they could smuggle control
 * characters past the sanitiser. */
static const char *entity(const char *s, size_t n)
{
    static const struct { const char *name, *text; } table[] = {
        {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", " "},
        {"&hellip;", "…"}, {"&mdash;", "—"}, {"&ndash;", "–"}, {"&times;", "×"}, {"&copy;", "©"}, {"&rarr;", "→"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strlen(table[i].name) == n && memcmp(table[i].name, s, n) == 0)
            return table[i].text;
    return NULL;
}

/* In a table's code span, \| stands for a bar that does not separate cells. */
static void code_in_table(struct writer *w, const char *s, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        if (s[i] != '\\' || s[i + 1] != '|')
            continue;
        pp_layout_text(w->l, s + from, i - from, style_now(w));
        from = i + 1;
    }
    pp_layout_text(w->l, s + from, n - from, style_now(w));
}

static int text(MD_TEXTTYPE type, const MD_CHAR *piece, MD_SIZE n, void *user)
{
    struct writer *w = user;
    const bool parsed = is_parsed(w, piece);
    const size_t at = w->at;
    const char *s = parsed ? shown(w, piece, n) : piece;
    open_paragraph(w);
    const char *known = type == MD_TEXT_ENTITY ? entity(s, n) : NULL;
    if (parsed && n == 1 && *s == '|' && s > w->s->shown && s[-1] == '\\' && at < w->at - 1 && !w->in_table)
        pp_layout_text(w->l, "\\", 1, style_now(w)); /* outside of tables the backslash is text */
    if (type == MD_TEXT_LATEXMATH && !parsed)
        end_line(w);
    else if (type == MD_TEXT_BR || type == MD_TEXT_SOFTBR)
        pp_layout_text(w->l, "\n", 1, style_now(w));
    else if (known)
        pp_layout_text(w->l, known, strlen(known), style_now(w));
    else if (type == MD_TEXT_CODE && w->in_table)
        code_in_table(w, s, n);
    else if (type != MD_TEXT_NULLCHAR)
        pp_layout_text(w->l, s, n, style_now(w));
    return w->l->bad;
}

/* False: a table does not fit into the width. */
static bool write_all(struct pp_layout *l, const struct source *s, int width, pp_style base, bool tables)
{
    const MD_PARSER parser = {
        .flags = MD_FLAG_NOHTML | MD_FLAG_NOINDENTEDCODEBLOCKS | MD_FLAG_STRIKETHROUGH | MD_FLAG_LATEXMATHSPANS |
                 (tables ? MD_FLAG_TABLES : 0),
        .enter_block = enter_block,
        .leave_block = leave_block,
        .enter_span = enter_span,
        .leave_span = leave_span,
        .text = text,
    };
    struct writer w = {.l = l, .s = s, .width = width, .base = base, .first_line = l->n_lines};
    if (md_parse(s->parsed, (MD_SIZE)s->n, &parser, &w) != 0)
        l->bad = true;
    close_paragraph(&w);
    pp_table_free(&w.table);
    return !w.no_room;
}

void pp_markdown(struct pp_layout *l, const char *s, size_t n, int width, pp_style base)
{
    const struct pp_layout_mark mark = pp_layout_mark(l);
    char *dollars = pp_formula_dollars(s, n);
    const struct source source = {s, dollars ? dollars : s, n};
    if (!write_all(l, &source, width, base, true) && !l->bad) {
        pp_layout_rewind(l, mark); /* show its source instead */
        write_all(l, &source, width, base, false);
    }
    pp_free(dollars);
}
