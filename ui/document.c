#include "ui/document.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "ui/markdown.h"
#include "ui/sanitize.h"

enum { SEGMENT_MAX = 4096, TABLE_MAX = 16384, LINE_MAX_BYTES = 8192 };

enum segment_kind { SEGMENT_TEXT, SEGMENT_FENCE_OPEN, SEGMENT_FENCE_CLOSE, SEGMENT_CODE };

struct segment {
    enum segment_kind kind;
    size_t end;      /* end of its text */
    size_t next;     /* beginning of the next one, after blank lines */
    bool complete;   /* text that is appended cannot change it */
    bool cut;        /* ended only by the length limit */
};

/* --- lines of the source ----------------------------------------------------------------------------------- */

struct source_line {
    size_t end;  /* excludes the line end */
    size_t next; /* n if there is no line end */
    bool whole;  /* has a line end */
    bool cut;
};

/* An offset near `limit` that does not split a character, nor a word if there is a space nearby. */
static size_t cut_point(const char *s, size_t pos, size_t limit)
{
    for (size_t i = limit; i > limit - 64; i--)
        if (s[i - 1] == ' ')
            return i;
    return pos + pp_utf8_complete(s + pos, limit - pos);
}

static struct source_line line_at(const char *s, size_t n, size_t pos)
{
    size_t room = n - pos < LINE_MAX_BYTES ? n - pos : LINE_MAX_BYTES;
    const char *nl = memchr(s + pos, '\n', room);
    if (nl) {
        size_t end = (size_t)(nl - s);
        size_t text = end > pos && s[end - 1] == '\r' ? end - 1 : end;
        return (struct source_line){text, end + 1, true, false};
    }
    if (room == LINE_MAX_BYTES && n - pos > room) {
        size_t end = cut_point(s, pos, pos + room);
        return (struct source_line){end, end, true, true};
    }
    return (struct source_line){n, n, false, false};
}

static bool is_blank(const char *s, size_t from, size_t to)
{
    while (from < to && (s[from] == ' ' || s[from] == '\t'))
        from++;
    return from == to;
}

/* A row of a table, as models write it. */
static bool is_row(const char *s, size_t from, size_t to)
{
    while (from < to && s[from] == ' ')
        from++;
    return from < to && s[from] == '|';
}

/* --- segments ---------------------------------------------------------------------------------------------- */

static struct segment code_segment(const struct pp_document *doc, const char *s, size_t n)
{
    struct source_line line = line_at(s, n, doc->done);
    bool closing = !line.cut &&
                   pp_fence_closes(&doc->fence, s + doc->done, line.end - doc->done, PP_FENCE_INDENT);
    return (struct segment){closing ? SEGMENT_FENCE_CLOSE : SEGMENT_CODE, line.end, line.next, line.whole, line.cut};
}

/* Text without Markdown: as many lines as fit into a segment. */
static struct segment plain_segment(const char *s, size_t n, size_t pos)
{
    struct segment seg = {SEGMENT_TEXT, pos, pos, false, false};
    while (seg.next < n && seg.next - pos < SEGMENT_MAX) {
        struct source_line line = line_at(s, n, seg.next);
        if (line.cut && seg.next > pos)
            break;
        seg = (struct segment){SEGMENT_TEXT, line.next, line.next, line.whole, line.cut};
    }
    seg.complete = seg.complete && seg.next - pos >= SEGMENT_MAX;
    return seg;
}

/* Paragraphs up to a fence, or to a blank line followed by an unindented line (an indented one may belong to a
 * list). */
static struct segment text_segment(const char *s, size_t n, size_t pos)
{
    struct segment seg = {SEGMENT_TEXT, pos, pos, false, false};
    bool blank = false;
    for (size_t at = pos; at < n;) {
        struct source_line line = line_at(s, n, at);
        if (is_blank(s, at, line.end)) {
            blank = true;
            at = line.next;
            seg.next = at;
            continue;
        }
        bool fence = pp_fence_of(s + at, line.end - at, PP_FENCE_INDENT).len > 0;
        if (fence && at == pos)
            return (struct segment){SEGMENT_FENCE_OPEN, line.end, line.next, line.whole, false};
        if (fence || (blank && s[at] != ' ' && s[at] != '\t') || (line.cut && at > pos)) {
            seg.next = at;
            seg.complete = true;
            return seg;
        }
        /* if a table were cut, the second part would not be recognised as one */
        const size_t most = is_row(s, at, line.end) ? TABLE_MAX : SEGMENT_MAX;
        seg.end = line.end;
        seg.next = at = line.next;
        if (line.cut || (line.whole && at - pos >= most)) {
            seg.complete = seg.cut = true;
            return seg;
        }
    }
    return seg;
}

static size_t skip_blank_lines(const char *s, size_t n, size_t pos)
{
    while (pos < n) {
        struct source_line line = line_at(s, n, pos);
        if (!line.whole || line.cut || !is_blank(s, pos, line.end))
            break;
        pos = line.next;
    }
    return pos;
}

static struct segment next_segment(const struct pp_document *doc, const char *s, size_t n)
{
    if (!doc->markdown)
        return plain_segment(s, n, doc->done);
    return doc->fenced ? code_segment(doc, s, n) : text_segment(s, n, doc->done);
}

/* --- layout of one segment --------------------------------------------------------------------------------- */

/* A sanitised piece of the source, and which parts of it were drafted. */
struct clean {
    struct pp_buf text;
    uint32_t *runs;      /* as in struct pp_tint */
    size_t n, cap;
    struct pp_tint tint;
};

/* The largest offset in from..at where the text can be split without changing how it is sanitised: not within a
 * character or CR LF. */
static size_t whole_before(const char *s, size_t from, size_t at, size_t end)
{
    for (int i = 0; i < 3 && at > from && at < end && ((unsigned char)s[at] & 0xC0) == 0x80; i++)
        at--;
    return at > from && at < end && s[at] == '\n' && s[at - 1] == '\r' ? at - 1 : at;
}

static void clean_runs(struct pp_document *doc, size_t from, size_t to, struct clean *c)
{
    const char *s = doc->source;
    size_t at = from, end = 0;
    int column = 0;
    for (size_t i = 0; at < to; i++) {
        size_t before = c->text.len;
        end = i < doc->n_runs ? end + doc->runs[i] : to;
        size_t stop = end >= to ? to : end <= at ? at : whole_before(s, at, end, to);
        pp_sanitize(&c->text, s + at, stop - at, PP_CLEAN_TEXT, &column);
        if (pp_grow(&c->runs, &c->cap, c->n + 1, sizeof *c->runs) != 0) {
            doc->layout.bad = true;
            return;
        }
        c->runs[c->n++] = (uint32_t)(c->text.len - before);
        at = stop;
    }
}

/* Sanitises s[0 .. n) of the source; until end_piece, text added to the layout is tinted accordingly. */
static void begin_piece(struct pp_document *doc, const char *s, size_t n, struct clean *c)
{
    *c = (struct clean){0};
    if (!doc->runs || !n) {
        pp_sanitize(&c->text, s, n, PP_CLEAN_TEXT, NULL);
        return;
    }
    clean_runs(doc, (size_t)(s - doc->source), (size_t)(s - doc->source) + n, c);
    c->tint = (struct pp_tint){pp_buf_cstr(&c->text), c->runs, c->n};
    doc->layout.tint = &c->tint;
}

static void end_piece(struct pp_document *doc, struct clean *c)
{
    doc->layout.tint = NULL;
    doc->layout.bad |= c->text.bad;
    pp_buf_free(&c->text);
    pp_free(c->runs);
}

static void show_plain(struct pp_document *doc, const char *s, size_t n)
{
    struct clean c;
    size_t from = doc->layout.text.len;
    begin_piece(doc, s, n, &c);
    pp_layout_text(&doc->layout, pp_buf_cstr(&c.text), c.text.len, doc->base);
    pp_layout_lines(&doc->layout, from, &(struct pp_frame){.width = doc->width});
    end_piece(doc, &c);
}

static void show_markdown(struct pp_document *doc, const char *s, size_t n)
{
    struct clean c;
    begin_piece(doc, s, n, &c);
    if (doc->layout.n_lines > 0 && !doc->continues)
        pp_layout_blank(&doc->layout, 0);
    pp_markdown(&doc->layout, pp_buf_cstr(&c.text), c.text.len, doc->width, doc->base);
    end_piece(doc, &c);
}

static void code_line(struct pp_document *doc, const char *s, size_t n, pp_style style)
{
    struct clean c;
    size_t from = doc->layout.text.len;
    int indent = doc->fence.indent;
    begin_piece(doc, s, n, &c);
    const char *text = pp_buf_cstr(&c.text);
    for (size_t at = 0, len; at < c.text.len; at += len) {
        pp_style of_piece = style;
        len = style == PP_SLOT_CODE_BLOCK ? pp_code_piece(&doc->code, text, at, c.text.len, &of_piece) : c.text.len;
        pp_layout_text(&doc->layout, text + at, len, of_piece);
    }
    const struct pp_frame frame = {doc->width - 1, indent + 2, indent + 2, 0, PP_LINE_CODE};
    pp_layout_lines(&doc->layout, from, &frame);
    end_piece(doc, &c);
}

/* The block begins with its language, or an empty line. */
static void show_fence(struct pp_document *doc, const char *s, size_t n)
{
    size_t at = (size_t)doc->fence.indent + doc->fence.len;
    while (at < n && s[at] == ' ')
        at++;
    if (doc->layout.n_lines > 0)
        pp_layout_blank(&doc->layout, 0);
    if (doc->fence.indent > doc->width / 3)
        doc->fence.indent = 0;
    doc->code = pp_code_begin(s + at, n - at);
    code_line(doc, s + at, n - at, PP_SLOT_CODE_LABEL);
}

static void show_code(struct pp_document *doc, const char *s, size_t n)
{
    size_t skip = 0;
    while (skip < n && s[skip] == ' ' && (int)skip < doc->fence.indent)
        skip++;
    code_line(doc, s + skip, n - skip, PP_SLOT_CODE_BLOCK);
}

static void show(struct pp_document *doc, const struct segment *seg, const char *s)
{
    const char *from = s + doc->done;
    size_t n = seg->end - doc->done;
    switch (seg->kind) {
    case SEGMENT_FENCE_OPEN:
        doc->fence = pp_fence_of(from, n, PP_FENCE_INDENT);
        doc->fenced = true;
        show_fence(doc, from, n);
        break;
    case SEGMENT_FENCE_CLOSE:
        code_line(doc, "", 0, PP_SLOT_CODE_BLOCK);
        doc->fenced = false;
        break;
    case SEGMENT_CODE:
        show_code(doc, from, n);
        break;
    case SEGMENT_TEXT:
        if (doc->markdown)
            show_markdown(doc, from, n);
        else
            show_plain(doc, from, n);
        break;
    }
}

/* --- updating ---------------------------------------------------------------------------------------------- */

static void restart(struct pp_document *doc, int width, bool markdown, pp_style base, bool tinted)
{
    struct pp_layout layout = doc->layout;
    pp_layout_rewind(&layout, (struct pp_layout_mark){0});
    layout.bad = layout.text.bad = false;
    *doc = (struct pp_document){.layout = layout, .width = width, .markdown = markdown, .base = base,
                                .tinted = tinted};
}

static bool still_begins_so(const struct pp_document *doc, const char *s, size_t n)
{
    return n >= doc->done && memcmp(s + doc->done - doc->guard_len, doc->guard, doc->guard_len) == 0;
}

static void advance(struct pp_document *doc, const char *s, size_t to)
{
    doc->done = to;
    doc->guard_len = to < sizeof doc->guard ? to : sizeof doc->guard;
    memcpy(doc->guard, s + to - doc->guard_len, doc->guard_len);
}

void pp_document_update(struct pp_document *doc, const char *s, size_t n, int width, bool markdown, pp_style base)
{
    pp_document_update_tinted(doc, s, n, width, markdown, base, NULL, 0);
}

void pp_document_update_tinted(struct pp_document *doc, const char *s, size_t n, int width, bool markdown,
                               pp_style base, const uint32_t *runs, size_t n_runs)
{
    if (width < 1)
        width = 1;
    if (doc->width != width || doc->markdown != markdown || doc->base != base || doc->tinted != (runs != NULL) ||
        !still_begins_so(doc, s, n))
        restart(doc, width, markdown, base, runs != NULL);
    doc->source = s;
    doc->runs = runs;
    doc->n_runs = n_runs;
    pp_layout_rewind(&doc->layout, doc->settled);
    while (doc->done < n && !doc->layout.bad) {
        if (markdown && !doc->fenced)
            advance(doc, s, skip_blank_lines(s, n, doc->done));
        if (doc->done >= n || (markdown && !doc->fenced && is_blank(s, doc->done, n)))
            break;
        struct segment seg = next_segment(doc, s, n);
        if (!seg.complete) {
            struct pp_document settled = *doc;
            show(doc, &seg, s);
            settled.layout = doc->layout;
            *doc = settled;
            break;
        }
        show(doc, &seg, s);
        advance(doc, s, seg.next);
        doc->continues = seg.cut;
        doc->settled = pp_layout_mark(&doc->layout);
    }
}

void pp_document_free(struct pp_document *doc)
{
    pp_layout_free(&doc->layout);
    *doc = (struct pp_document){0};
}
