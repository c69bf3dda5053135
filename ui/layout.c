#include "ui/layout.h"

#include "engine/base/mem.h"
#include "ui/wrap.h"

void pp_layout_free(struct pp_layout *l)
{
    pp_buf_free(&l->text);
    pp_free(l->lines);
    pp_free(l->runs);
    *l = (struct pp_layout){0};
}

struct pp_layout_mark pp_layout_mark(const struct pp_layout *l)
{
    return (struct pp_layout_mark){l->text.len, l->n_lines, l->n_runs};
}

void pp_layout_rewind(struct pp_layout *l, struct pp_layout_mark mark)
{
    if (l->text.data) {
        l->text.len = mark.text;
        l->text.data[mark.text] = '\0';
    }
    l->n_lines = mark.lines;
    l->n_runs = mark.runs;
}

size_t pp_layout_bytes(const struct pp_layout *l)
{
    return l->text.cap + l->cap_lines * sizeof *l->lines + l->cap_runs * sizeof *l->runs;
}

static void add_text(struct pp_layout *l, const char *s, size_t n, pp_style style)
{
    if (n == 0)
        return;
    if (l->text.len + n > UINT32_MAX || pp_grow(&l->runs, &l->cap_runs, l->n_runs + 1, sizeof *l->runs) != 0) {
        l->bad = true;
        return;
    }
    if (l->n_runs == 0 || l->runs[l->n_runs - 1].style != style)
        l->runs[l->n_runs++] = (struct pp_run){(uint32_t)l->text.len, style};
    pp_buf_add(&l->text, s, n);
    l->bad |= l->text.bad;
}

void pp_layout_text(struct pp_layout *l, const char *s, size_t n, pp_style style)
{
    const struct pp_tint *t = l->tint;
    const char *run = t ? t->text : NULL;
    for (size_t i = 0; t && i < t->n && n && s >= t->text; i++) {
        const char *end = run + t->runs[i];
        size_t here = s >= run && s < end ? (size_t)(end - s) : 0;
        here = here < n ? here : n;
        add_text(l, s, here, i % 2 ? style | PP_TINT : style);
        s += here;
        n -= here;
        run = end;
    }
    add_text(l, s, n, style);
}

static void add_line(struct pp_layout *l, struct pp_line line)
{
    if (pp_grow(&l->lines, &l->cap_lines, l->n_lines + 1, sizeof *l->lines) != 0)
        l->bad = true;
    else
        l->lines[l->n_lines++] = line;
}

void pp_layout_lines(struct pp_layout *l, size_t from, const struct pp_frame *f)
{
    const char *s = pp_buf_cstr(&l->text);
    size_t n = l->text.len, pos = from;
    int indent = f->first;
    do {
        int width = f->width - indent > 1 ? f->width - indent : 1;
        struct pp_wrapped w = {pos, pos, 0};
        if (pos < n)
            w = pp_wrap(s, n, pos, width, f->kind != PP_LINE_CODE);
        add_line(l, (struct pp_line){(uint32_t)pos, (uint32_t)w.end, (uint16_t)indent, f->kind, f->quote});
        pos = w.next;
        indent = f->rest;
    } while (pos < n && !l->bad);
}

void pp_layout_blank(struct pp_layout *l, uint8_t quote)
{
    uint32_t end = (uint32_t)l->text.len;
    add_line(l, (struct pp_line){end, end, (uint16_t)(2 * quote), PP_LINE_TEXT, quote});
}

size_t pp_layout_run(const struct pp_layout *l, uint32_t at)
{
    size_t low = 0, high = l->n_runs;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (l->runs[middle].start <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}
