#include "ui/table.h"

#include <string.h>

#include "engine/base/mem.h"
#include "ui/text.h"
#include "ui/wrap.h"

enum { MIN_COLUMN = 5 /* least width of a column */, COLUMN_GAP = 3 /* columns */ };

void pp_table_free(struct pp_table *t)
{
    pp_free(t->cells);
    *t = (struct pp_table){0};
}

void pp_table_begin_cell(struct pp_table *t, const struct pp_layout *l)
{
    const uint32_t at = (uint32_t)l->text.len;
    if (t->bad || pp_grow(&t->cells, &t->cap, t->n + 1, sizeof *t->cells) != 0)
        t->bad = true;
    else
        t->cells[t->n++] = (struct pp_table_cell){at, at};
}

void pp_table_end_cell(struct pp_table *t, const struct pp_layout *l)
{
    if (t->n && !t->bad)
        t->cells[t->n - 1].end = (uint32_t)l->text.len;
}

/* --- the text of the cells ----------------------------------------------------------------------------------- */

struct source {
    char *text;          /* [n] */
    size_t n;
    uint32_t from;       /* its offset in the layout */
    struct pp_run *runs; /* its styles; offsets as in the layout */
    size_t n_runs;
};

/* Index of the run that contains byte `at` of the text. */
static size_t run_of(const struct source *s, size_t at)
{
    size_t low = 0, high = s->n_runs;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (s->runs[middle].start <= s->from + at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool is_code(const struct source *s, size_t at)
{
    return s->n_runs && (s->runs[run_of(s, at)].style & PP_SLOT_MASK) == PP_SLOT_CODE;
}

/* Replaces <br> outside of code by a line feed: models use it in cells, as Markdown has no line break for them. */
static void break_lines(struct source *s)
{
    static const char *const tags[] = {"<br>", "<br/>", "<br />"};
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; s->text[i] == '<' && k < sizeof tags / sizeof *tags; k++) {
            const size_t len = strlen(tags[k]);
            if (s->n - i < len || memcmp(s->text + i, tags[k], len) != 0 || is_code(s, i))
                continue;
            memset(s->text + i, ' ', len);
            s->text[i] = '\n';
        }
}

static bool detach_text(const struct pp_table *t, struct pp_layout *l, struct source *s)
{
    const size_t first = l->n_runs ? pp_layout_run(l, (uint32_t)t->mark.text) : 0;
    *s = (struct source){.n = l->text.len - t->mark.text, .from = (uint32_t)t->mark.text, .n_runs = l->n_runs - first};
    s->text = pp_malloc(s->n + 1);
    s->runs = pp_calloc(s->n_runs + 1, sizeof *s->runs);
    if (!s->text || !s->runs)
        return false;
    if (s->n)
        memcpy(s->text, l->text.data + t->mark.text, s->n);
    if (s->n_runs)
        memcpy(s->runs, l->runs + first, s->n_runs * sizeof *s->runs);
    break_lines(s);
    pp_layout_rewind(l, t->mark);
    return true;
}

static void put_text(struct pp_layout *l, const struct source *s, size_t from, size_t to)
{
    for (size_t i = run_of(s, from); from < to; i++) {
        const size_t end = i + 1 < s->n_runs ? s->runs[i + 1].start - s->from : s->n;
        const size_t stop = end < to ? end : to;
        pp_layout_text(l, s->text + from, stop - from, s->runs[i].style);
        from = stop;
    }
}

/* --- columns -------------------------------------------------------------------------------------------------- */

/* The next line of a cell from *at on; skips leading spaces. */
static struct pp_wrapped next_line(const struct source *s, size_t *at, size_t end, int width)
{
    while (*at < end && s->text[*at] == ' ')
        ++*at;
    if (*at >= end)
        return (struct pp_wrapped){end, end, 0};
    return pp_wrap(s->text, end, *at, width, true);
}

static void widths_of(const struct pp_table *t, const struct source *s, int widths[])
{
    for (size_t i = 0; i < t->n; i++) {
        const size_t end = t->cells[i].end - s->from;
        int *most = &widths[i % t->n_columns];
        for (size_t at = t->cells[i].start - s->from; at < end;) {
            const struct pp_wrapped w = next_line(s, &at, end, INT16_MAX);
            *most = w.width > *most ? w.width : *most;
            at = w.next;
        }
    }
}

static int sum(const int widths[], size_t n, int most)
{
    int total = 0;
    for (size_t c = 0; c < n; c++)
        total += widths[c] < most ? widths[c] : most;
    return total;
}

/* Reduces the widest columns until the sum fits; false if a column would become too narrow. */
static bool fit(int widths[], size_t n, int room)
{
    int most = room;
    while (most > 0 && sum(widths, n, most) > room)
        most--;
    int left = room - sum(widths, n, most);
    bool enough = true;
    for (size_t c = 0; c < n; c++) {
        if (widths[c] <= most)
            continue;
        widths[c] = most + (left > 0);
        left -= left > 0;
        enough = enough && widths[c] >= MIN_COLUMN;
    }
    return enough;
}

/* --- rows ----------------------------------------------------------------------------------------------------- */

struct rows {
    const struct pp_table *t;
    struct pp_layout *l;
    const struct source *s;
    const struct pp_frame *f;
    pp_style base;
    int widths[PP_TABLE_COLUMNS];
};

static void spaces(const struct rows *r, int n)
{
    for (; n > 0; n--)
        pp_layout_text(r->l, " ", 1, r->base);
}

static void rule(const struct rows *r)
{
    const size_t from = r->l->text.len, n = r->t->n_columns;
    for (size_t c = 0; c < n; c++) {
        for (int i = 0; i < r->widths[c]; i++)
            pp_layout_text(r->l, "─", strlen("─"), PP_SLOT_BORDER);
        if (c + 1 < n)
            pp_layout_text(r->l, "─┼─", strlen("─┼─"), PP_SLOT_BORDER);
    }
    pp_layout_lines(r->l, from, r->f);
}

static void piece(const struct rows *r, size_t c, size_t from, const struct pp_wrapped *w)
{
    const int free = r->widths[c] - w->width;
    const int before = r->t->align[c] == PP_ALIGN_RIGHT ? free : r->t->align[c] == PP_ALIGN_CENTER ? free / 2 : 0;
    spaces(r, before);
    put_text(r->l, r->s, from, w->end);
    if (c + 1 == r->t->n_columns)
        return;
    spaces(r, free - before);
    pp_layout_text(r->l, " │ ", strlen(" │ "), PP_SLOT_BORDER);
}

/* Writes one line of a row; at [n_columns]: the progress in each cell. False: all cells are complete. */
static bool row_line(const struct rows *r, const struct pp_table_cell *cells, size_t at[])
{
    const size_t from = r->l->text.len;
    bool more = false;
    for (size_t c = 0; c < r->t->n_columns; c++) {
        const size_t end = cells[c].end - r->s->from;
        const struct pp_wrapped w = next_line(r->s, &at[c], end, r->widths[c]);
        piece(r, c, at[c], &w);
        at[c] = w.next;
        more = more || w.next < end;
    }
    pp_layout_lines(r->l, from, r->f);
    return more;
}

/* Writes row i; returns its number of lines. */
static size_t row(const struct rows *r, size_t i)
{
    const struct pp_table_cell *cells = r->t->cells + i * r->t->n_columns;
    size_t at[PP_TABLE_COLUMNS], n = 1;
    for (size_t c = 0; c < r->t->n_columns; c++)
        at[c] = cells[c].start - r->s->from;
    while (row_line(r, cells, at) && !r->l->bad)
        n++;
    return n;
}

/* Writes all rows, with rules between them (parted). True: some row has several lines, so that rules are needed. */
static bool all_rows(const struct rows *r, bool parted)
{
    const size_t n = r->t->n / r->t->n_columns;
    bool tall = false;
    for (size_t i = 0; i < n && !r->l->bad; i++) {
        if (i && (parted || i == r->t->n_heads))
            rule(r);
        tall = (row(r, i) > 1 && i >= r->t->n_heads) || tall;
    }
    return tall;
}

bool pp_table_lines(const struct pp_table *t, struct pp_layout *l, const struct pp_frame *f, pp_style base)
{
    struct source s = {0};
    const struct pp_tint *tint = l->tint; /* the tint is part of the stored styles already */
    bool room = t->n_columns > 0 && t->n_columns <= PP_TABLE_COLUMNS;
    if (t->bad || !detach_text(t, l, &s)) {
        l->bad = true;
    } else if (room) {
        struct rows r = {t, l, &s, f, base, {0}};
        widths_of(t, &s, r.widths);
        room = fit(r.widths, t->n_columns, f->width - f->rest - COLUMN_GAP * (int)(t->n_columns - 1));
        l->tint = NULL;
        if (room && all_rows(&r, false) && !l->bad) {
            pp_layout_rewind(l, t->mark);
            all_rows(&r, true);
        }
        l->tint = tint;
    }
    pp_free(s.text);
    pp_free(s.runs);
    return room;
}
