#include "ui/view_transcript.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "ui/document.h"
#include "ui/draw.h"
#include "ui/found.h"
#include "ui/state.h"
#include "ui/text.h"
#include "ui/view_activity.h"

enum {
    MAX_TEXT_WIDTH = 100,                /* longer lines are hard to read */
    ROOMY_COLS = 36, ROOMY_ROWS = 6, /* smaller screens omit the names */
    CACHE_BYTES = 64 << 20, CACHE_CHECK = 128 /* the size is checked once in so many frames */
};

struct pp_transcript_entry {
    int64_t id;
    uint64_t revision;
    uint64_t frame;     /* number of the frame in which it was last drawn */
    struct pp_document doc;
    struct pp_reasoning_lines reasoning;
};

/* A line of the transcript. message == number of messages: the activity lines below them (view_activity.h). */
struct place {
    size_t message, line;
};

static bool roomy(const struct pp_ui *ui)
{
    return ui->at.transcript.w >= ROOMY_COLS && ui->at.transcript.h >= ROOMY_ROWS;
}

static int text_width(const struct pp_ui *ui)
{
    int width = ui->at.transcript.w - (roomy(ui) ? 5 : 3);
    return width > MAX_TEXT_WIDTH ? MAX_TEXT_WIDTH : width < 1 ? 1 : width;
}

/* --- heights ------------------------------------------------------------------------------------------------ */

bool pp_transcript_running(const struct pp_ui *ui)
{
    enum pp_state s = pp_controller_status(ui->controller)->state;
    return s == PP_STATE_SAVING || s == PP_STATE_PREFILL || s == PP_STATE_ANSWER;
}

static const char *footer(const struct pp_ui *ui, size_t i, const struct pp_chat_message *m)
{
    enum { HINT_COLS = 35 };
    static const char *const how[2][3] = {
        {"■ unfinished", "■ unfinished · /continue goes on", "■ unfinished · /regen tries again"},
        {"■ stopped", "■ stopped · /continue goes on", "■ stopped · /regen tries again"},
    };
    const bool last = i + 1 == pp_controller_n_messages(ui->controller), running = pp_transcript_running(ui);
    const bool stopped = m->state == PP_MESSAGE_CANCELLED;
    if (m->role != PP_ROLE_ASSISTANT || m->state == PP_MESSAGE_COMPLETE)
        return NULL;
    if (m->too_long && !m->len && !stopped)
        return "■ the question is too long for the context";
    if (last && running && !stopped)
        return NULL;
    const bool hint = last && !running && text_width(ui) >= HINT_COLS;
    return how[stopped][!hint ? 0 : m->len || m->reasoning_len ? 1 : 2];
}

static bool fit_entries(struct pp_transcript *t, size_t n)
{
    if (pp_grow(&t->entries, &t->cap, n, sizeof *t->entries) != 0)
        return false;
    for (; t->n < n; t->n++)
        t->entries[t->n] = (struct pp_transcript_entry){0};
    while (t->n > n) {
        pp_document_free(&t->entries[--t->n].doc);
        pp_reasoning_free(&t->entries[t->n].reasoning);
    }
    return true;
}

/* Index of the first message in the model's context; 0: all are. */
static size_t context_begin(const struct pp_ui *ui)
{
    const char *note;
    return pp_controller_context(ui->controller, &note);
}

/* Lines above that message: the divider, the note that replaces the earlier messages for the model, an empty line. */
static size_t divider_height(struct pp_ui *ui, size_t i)
{
    const char *note;
    if (i == 0 || pp_controller_context(ui->controller, &note) != i)
        return 0;
    if (!*note)
        return 2;
    pp_document_update(&ui->transcript.note, note, strlen(note), text_width(ui), false, PP_SLOT_DIM);
    return 2 + ui->transcript.note.layout.n_lines;
}

static const struct pp_layout *layout_of(struct pp_ui *ui, size_t i)
{
    struct pp_transcript_entry *e = &ui->transcript.entries[i];
    const struct pp_chat_message *m = pp_controller_message(ui->controller, i);
    int width = text_width(ui);
    static const pp_style styles[] = {PP_SLOT_SYSTEM, PP_SLOT_USER, PP_SLOT_ASSISTANT}; /* by enum pp_role */
    bool unseen = i < context_begin(ui);
    bool markdown = m->role == PP_ROLE_ASSISTANT && !ui->settings.raw && !unseen;
    pp_style style = unseen ? PP_SLOT_DIM : styles[m->role];
    bool tinted = ui->settings.tint && m->n_drafted && !unseen;
    e->frame = ui->transcript.frame;
    if (e->id != m->id)
        pp_document_free(&e->doc);
    else if (e->revision == m->revision && e->doc.width == width && e->doc.markdown == markdown &&
             e->doc.base == style && e->doc.tinted == tinted)
        return &e->doc.layout;
    e->id = m->id;
    e->revision = m->revision;
    pp_document_update_tinted(&e->doc, m->text ? m->text : "", m->text ? m->len : 0, width, markdown, style,
                              tinted ? m->drafted : NULL, m->n_drafted);
    return &e->doc.layout;
}

static size_t reasoning_height(struct pp_ui *ui, size_t i)
{
    return pp_reasoning_height(&ui->transcript.entries[i].reasoning, pp_controller_message(ui->controller, i),
                               ui->reasoning, text_width(ui));
}

/* Whether the message is shown in columns with its alternatives. */
static bool in_columns(struct pp_ui *ui, size_t i)
{
    return i + 1 == pp_controller_n_messages(ui->controller) && pp_alternatives_columns(ui) > 0;
}

/* Lines of a message above its text. */
static size_t head_of(struct pp_ui *ui, size_t i)
{
    return divider_height(ui, i) + roomy(ui) + reasoning_height(ui, i);
}

/* Lines of a message: name, reasoning, text, footer, an empty line. */
static size_t height_of(struct pp_ui *ui, size_t i)
{
    size_t n = pp_controller_n_messages(ui->controller);
    if (i == n)
        return pp_activity_height(ui);
    if (in_columns(ui, i))
        return pp_alternatives_height(ui);
    const struct pp_chat_message *m = pp_controller_message(ui->controller, i);
    return head_of(ui, i) + layout_of(ui, i)->n_lines + (footer(ui, i, m) ? 1 : 0) + 1;
}

/* --- positions ---------------------------------------------------------------------------------------------- */

static struct place move_up(struct pp_ui *ui, struct place p, size_t lines)
{
    while (lines > p.line) {
        lines -= p.line;
        if (p.message == 0)
            return (struct place){0, 0};
        p.message--;
        p.line = height_of(ui, p.message);
    }
    p.line -= lines;
    return p;
}

static struct place move_down(struct pp_ui *ui, struct place p, size_t lines)
{
    size_t n = pp_controller_n_messages(ui->controller);
    while (p.message <= n) {
        size_t left = height_of(ui, p.message) - p.line;
        if (lines < left) {
            p.line += lines;
            return p;
        }
        lines -= left;
        p = (struct place){p.message + 1, 0};
    }
    return p;
}

/* The top line when the end is visible; the empty line after the last message is not shown. */
static struct place end_top(struct pp_ui *ui)
{
    size_t n = pp_controller_n_messages(ui->controller);
    size_t last = height_of(ui, n);
    size_t rows = (size_t)ui->at.transcript.h + (last == 0 && n > 0 ? 1 : 0);
    return move_up(ui, (struct place){n, last}, rows);
}

static bool before(struct place a, struct place b)
{
    return a.message < b.message || (a.message == b.message && a.line < b.line);
}

/* Remembers which text is at the top of the view. If the byte remembered before is on this line, it is kept, so that
 * resizing back and forth returns to the same place. */
static void remember_top(struct pp_ui *ui, struct place p)
{
    struct pp_transcript_anchor *h = &ui->transcript.anchor, before = *h;
    if (p.message >= pp_controller_n_messages(ui->controller) || in_columns(ui, p.message)) {
        h->width = 0;
        return;
    }
    const struct pp_layout *l = layout_of(ui, p.message);
    *h = (struct pp_transcript_anchor){.message = p.message, .width = text_width(ui), .raw = ui->settings.raw,
                                       .head = head_of(ui, p.message), .len = l->text.len};
    const size_t body = p.line - (p.line < h->head ? p.line : h->head);
    if (body >= l->n_lines) {
        h->below = body - l->n_lines + 1;
        return;
    }
    h->at = l->lines[body].start;
    const size_t next = body + 1 < l->n_lines ? l->lines[body + 1].start : l->text.len + 1;
    if (before.message == h->message && before.raw == h->raw && before.at >= h->at && before.at < next)
        h->at = before.at;
}

/* The line in p's message that now contains the anchored byte, after the layout has changed. */
static size_t anchored_line(struct pp_ui *ui, struct place p)
{
    const struct pp_transcript_anchor *h = &ui->transcript.anchor;
    if (p.message >= pp_controller_n_messages(ui->controller) || !h->width || h->message != p.message ||
        in_columns(ui, p.message))
        return p.line;
    const struct pp_layout *l = layout_of(ui, p.message);
    const size_t head = head_of(ui, p.message);
    if (h->width == text_width(ui) && h->raw == ui->settings.raw && h->head == head)
        return p.line;
    if (p.line < h->head)
        return p.line < head ? p.line : head;
    if (h->below)
        return head + l->n_lines + h->below - 1;
    const size_t at = h->raw == ui->settings.raw || !h->len ? h->at : h->at * l->text.len / h->len;
    size_t low = 0, high = l->n_lines;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (l->lines[middle].start <= at)
            low = middle;
        else
            high = middle;
    }
    return head + low;
}

static struct place current_top(struct pp_ui *ui)
{
    struct pp_transcript *t = &ui->transcript;
    size_t n = pp_controller_n_messages(ui->controller);
    const struct place end = end_top(ui);
    if (!t->away)
        return end;
    struct place p = {t->message < n ? t->message : n, t->line};
    p.line = anchored_line(ui, p);
    size_t height = height_of(ui, p.message);
    if (p.line >= height)
        p.line = height ? height - 1 : 0;
    return before(p, end) ? p : end; /* leave no room below the end */
}

/* --- scrolling ---------------------------------------------------------------------------------------------- */

static void scroll_to(struct pp_ui *ui, struct place p)
{
    struct pp_transcript *t = &ui->transcript;
    t->away = before(p, end_top(ui));
    t->message = p.message;
    t->line = p.line;
    remember_top(ui, p);
    ui->dirty |= PP_DRAW_TRANSCRIPT;
}

static bool ready(struct pp_ui *ui)
{
    return ui->at.transcript.h > 0 && fit_entries(&ui->transcript, pp_controller_n_messages(ui->controller));
}

void pp_transcript_scroll(struct pp_ui *ui, int lines)
{
    if (!ready(ui))
        return;
    struct place p = current_top(ui);
    scroll_to(ui, lines < 0 ? move_up(ui, p, (size_t)-lines) : move_down(ui, p, (size_t)lines));
}

void pp_transcript_step(struct pp_ui *ui, int step)
{
    if (!ready(ui))
        return;
    const struct place p = current_top(ui);
    const size_t before_it = p.message - (p.message > 0 && p.line == 0);
    scroll_to(ui, (struct place){step < 0 ? before_it : p.message + (p.message < ui->transcript.n), 0});
}

/* Changes when something is added at the end. */
static uint64_t tail_revision(const struct pp_ui *ui)
{
    const size_t n = pp_controller_n_messages(ui->controller);
    return n ? pp_controller_message(ui->controller, n - 1)->revision + n : 0;
}

/* Index of the first line that contains a match; 0 if there is none. */
static size_t line_with(const struct pp_layout *l, const char *words, bool phrase)
{
    const size_t n = l->text.len;
    unsigned char *hits = n ? pp_malloc(n) : NULL;
    size_t i = 0;
    if (hits && pp_found_mark(pp_buf_cstr(&l->text), n, words, phrase, hits)) {
        const size_t at = (size_t)((unsigned char *)memchr(hits, 1, n) - hits);
        while (i + 1 < l->n_lines && l->lines[i + 1].start <= at)
            i++;
    }
    pp_free(hits);
    return i;
}

void pp_transcript_show(struct pp_ui *ui, size_t message, const char *words, bool each)
{
    if (!ready(ui) || message >= ui->transcript.n)
        return;
    const struct pp_layout *l = layout_of(ui, message);
    ui->transcript.mark_phrase = !each && pp_found_phrase(pp_buf_cstr(&l->text), words);
    const size_t line = line_with(l, words, ui->transcript.mark_phrase);
    const struct place p = {message, line ? head_of(ui, message) + line : 0};
    ui->transcript.tail_revision = tail_revision(ui);
    ui->transcript.marked = ui->transcript.entries[message].id;
    pp_utf8_print(ui->transcript.mark, sizeof ui->transcript.mark, "%s", words);
    /* a quarter of the screen shows what precedes the match */
    scroll_to(ui, move_up(ui, p, (size_t)ui->at.transcript.h / 4));
    /* even near the end, so that a notice shown at the same time does not move the match out of view */
    ui->transcript.away = true;
}

void pp_transcript_home(struct pp_ui *ui)
{
    if (ready(ui))
        scroll_to(ui, (struct place){0, 0});
}

void pp_transcript_end(struct pp_ui *ui)
{
    ui->transcript.away = false;
    pp_transcript_unmark(ui);
}

void pp_transcript_unmark(struct pp_ui *ui)
{
    ui->transcript.marked = 0;
    ui->dirty |= PP_DRAW_TRANSCRIPT;
}

/* --- drawing ------------------------------------------------------------------------------------------------ */

static pp_style bar_style(enum pp_role role)
{
    static const pp_style styles[] = {PP_SLOT_SYSTEM, PP_SLOT_USER_NAME, PP_SLOT_ASSISTANT_NAME};
    return styles[role];
}

static void draw_name(const struct pp_chat_message *m, int y, int x, int w)
{
    static const char *const names[] = {"System", "You", "pippin"};
    int used = pp_draw_text(y, x, w, names[m->role], bar_style(m->role));
    if (m->n_siblings > 1)
        used += 2 + pp_draw_fmt(y, x + used + 2, w - used - 2, PP_SLOT_DIM, "‹ %d of %d ›", m->sibling + 1,
                                m->n_siblings);
    if (m->adapters[0] && used + 2 < w)
        pp_draw_text(y, x + used + 2, w - used - 2, m->adapters, PP_SLOT_DIM);
}

static void draw_runs(const struct pp_layout *l, const struct pp_line *line, int y, int x, int w)
{
    const char *s = pp_buf_cstr(&l->text);
    size_t run = pp_layout_run(l, line->start);
    for (uint32_t at = line->start; at < line->end && w > 0; run++) {
        uint32_t end = run + 1 < l->n_runs && l->runs[run + 1].start < line->end ? l->runs[run + 1].start : line->end;
        int used = pp_draw_clean(y, x, w, s + at, end - at, l->runs[run].style);
        x += used;
        w -= used;
        at = end;
    }
}

void pp_transcript_draw_line(const struct pp_layout *l, size_t i, int y, int x, int w)
{
    const struct pp_line *line = &l->lines[i];
    for (int q = 0; q < line->quote; q++)
        pp_draw_vbar(y, x + 2 * q, PP_SLOT_BORDER);
    int indent = line->indent < w ? line->indent : w;
    if (line->kind == PP_LINE_RULE) {
        pp_draw_hline(y, x + 2 * line->quote, w < 40 ? w : 40, PP_SLOT_BORDER);
        return;
    }
    if (line->kind == PP_LINE_CODE) {
        int left = indent >= 2 ? indent - 2 : 0;
        pp_draw_erase((struct pp_area){y, x + left, 1, w - left}, PP_SLOT_CODE_BLOCK);
    }
    draw_runs(l, line, y, x + indent, w - indent);
}

/* The beginning of a character: moves from `at` by step (-1 or 1) over continuation bytes. */
static size_t begin_of_char(const struct pp_buf *text, size_t at, int step)
{
    while (at && at < text->len && (text->data[at] & 0xC0) == 0x80)
        at += (size_t)(ptrdiff_t)step;
    return at;
}

/* Marks the bytes of a line that match the search: [end - start], to be freed; NULL: none. Looks at the neighbouring
 * lines, too, since a match may extend over a line break. */
static unsigned char *hits_of(const struct pp_ui *ui, const struct pp_layout *l, const struct pp_line *line)
{
    enum { CONTEXT = sizeof ui->transcript.mark * 2 };
    const size_t from = begin_of_char(&l->text, line->start > CONTEXT ? line->start - CONTEXT : 0, -1);
    const size_t to = begin_of_char(&l->text, line->end + CONTEXT < l->text.len ? line->end + CONTEXT : l->text.len, 1);
    unsigned char *hits = line->end > line->start ? pp_malloc(to - from) : NULL;
    if (hits && pp_found_mark(l->text.data + from, to - from, ui->transcript.mark, ui->transcript.mark_phrase, hits)) {
        memmove(hits, hits + (line->start - from), line->end - line->start);
        return hits;
    }
    pp_free(hits);
    return NULL;
}

/* Draws matches reversed, as whole grapheme clusters, since a part would lose its combining marks. */
static void draw_mark(struct pp_ui *ui, const struct pp_layout *l, size_t i, int y, int x, int w)
{
    const struct pp_line *line = &l->lines[i];
    const char *const begin = pp_buf_cstr(&l->text) + line->start;
    const size_t n = line->end - line->start;
    unsigned char *hits = line->kind == PP_LINE_RULE ? NULL : hits_of(ui, l, line);
    int at = line->indent;
    for (size_t k = 0; hits && k < n;) {
        const struct pp_cluster c = pp_cluster_next(begin + k, n - k);
        const pp_style style = l->runs[pp_layout_run(l, (uint32_t)(line->start + k))].style;
        if (memchr(hits + k, 1, c.len))
            pp_draw_clean(y, x + at, w - at, begin + k, c.len, style | PP_REVERSE);
        at += c.width;
        k += c.len;
    }
    pp_free(hits);
}

static void draw_body(struct pp_ui *ui, size_t i, size_t k, int y, int x, int w)
{
    const struct pp_layout *l = layout_of(ui, i);
    pp_transcript_draw_line(l, k, y, x, w);
    if (ui->transcript.marked == ui->transcript.entries[i].id)
        draw_mark(ui, l, k, y, x, w);
}

static void draw_divider(struct pp_ui *ui, size_t i, size_t k, int y)
{
    struct pp_area a = ui->at.transcript;
    int x = a.x + (roomy(ui) ? 3 : 2), w = text_width(ui);
    const struct pp_layout *note = &ui->transcript.note.layout;
    if (k == 0)
        pp_draw_fmt(y, x, w, PP_SLOT_NOTICE, "── %zu message%s above %s no longer seen by the model ──", i,
                    i == 1 ? "" : "s", i == 1 ? "is" : "are");
    else if (k + 1 < divider_height(ui, i))
        pp_transcript_draw_line(note, k - 1, y, x, w);
}

static void draw_line(struct pp_ui *ui, size_t i, size_t k, int y)
{
    size_t divider = divider_height(ui, i);
    if (k < divider) {
        draw_divider(ui, i, k, y);
        return;
    }
    k -= divider;
    struct pp_area a = ui->at.transcript;
    const struct pp_chat_message *m = pp_controller_message(ui->controller, i);
    const struct pp_layout *l = layout_of(ui, i);
    bool named = roomy(ui);
    int x = a.x + (named ? 3 : 2), w = text_width(ui);
    size_t thoughts = reasoning_height(ui, i), body = k - named - thoughts;
    const char *foot = footer(ui, i, m);
    if (body == l->n_lines + (foot ? 1 : 0) && !(named && k == 0))
        return;
    bool unseen = i < context_begin(ui);
    pp_draw_vbar(y, a.x + (named ? 1 : 0), unseen ? PP_SLOT_DIM : bar_style(m->role));
    if (named && k == 0)
        draw_name(m, y, x, w);
    else if (k - named < thoughts)
        pp_reasoning_draw(&ui->transcript.entries[i].reasoning, m, ui->reasoning, k - named, y, x, w);
    else if (body < l->n_lines)
        draw_body(ui, i, body, y, x, w);
    else
        pp_draw_text(y, x, w, foot, PP_SLOT_NOTICE);
}

/* Frees layouts that are not on the screen, if the cache has grown large. */
static void trim_cache(struct pp_transcript *t)
{
    size_t bytes = 0;
    if (t->frame % CACHE_CHECK != 0)
        return;
    for (size_t i = 0; i < t->n; i++)
        bytes += pp_layout_bytes(&t->entries[i].doc.layout) + pp_layout_bytes(&t->entries[i].reasoning.doc.layout);
    for (size_t i = 0; i < t->n && bytes > CACHE_BYTES; i++) {
        struct pp_transcript_entry *e = &t->entries[i];
        if (e->frame == t->frame)
            continue;
        bytes -= pp_layout_bytes(&e->doc.layout) + pp_layout_bytes(&e->reasoning.doc.layout);
        pp_document_free(&e->doc);
        pp_reasoning_free(&e->reasoning);
        e->revision = 0;
        e->id = 0;
    }
}

static void note_new_text(struct pp_ui *ui)
{
    struct pp_transcript *t = &ui->transcript;
    const uint64_t revision = tail_revision(ui);
    if (!t->away)
        t->tail_revision = revision;
    bool was = t->new_text;
    t->new_text = t->away && revision != t->tail_revision;
    if (was != t->new_text)
        ui->dirty |= PP_DRAW_INPUT; /* the mark for new text is on the rule above the input */
}

/* If the screen was enlarged so that the end is visible, follows new text from then on, as after scrolling to the
 * end. */
static void follow_if_enlarged(struct pp_ui *ui, struct place p)
{
    struct pp_transcript *t = &ui->transcript;
    if (t->away && (ui->at.rows > t->rows || ui->at.cols > t->cols))
        t->away = before(p, end_top(ui));
    t->rows = ui->at.rows;
    t->cols = ui->at.cols;
}

void pp_transcript_draw(struct pp_ui *ui)
{
    struct pp_area a = ui->at.transcript;
    size_t n = pp_controller_n_messages(ui->controller);
    pp_draw_erase(a, PP_SLOT_TEXT);
    ui->transcript.frame++;
    if (!ready(ui))
        return;
    if (n == 0) { /* an empty conversation is visible as a whole */
        ui->transcript.away = false;
        note_new_text(ui);
        pp_activity_greet(ui);
        return;
    }
    struct place p = current_top(ui);
    follow_if_enlarged(ui, p);
    if (ui->transcript.away) {
        ui->transcript.message = p.message;
        ui->transcript.line = p.line;
        remember_top(ui, p);
    }
    for (int y = a.y; y < a.y + a.h && p.message <= n; p = (struct place){p.message + 1, 0}) {
        size_t height = height_of(ui, p.message);
        for (; p.line < height && y < a.y + a.h; p.line++, y++) {
            if (p.message < n && in_columns(ui, p.message))
                pp_alternatives_draw(ui, p.line, y);
            else if (p.message < n)
                draw_line(ui, p.message, p.line, y);
            else
                pp_activity_draw(ui, p.line, y);
        }
    }
    note_new_text(ui);
    trim_cache(&ui->transcript);
}

void pp_transcript_free(struct pp_transcript *t)
{
    fit_entries(t, 0);
    pp_document_free(&t->note);
    for (int i = 0; i < PP_MAX_ALTERNATIVES; i++)
        pp_document_free(&t->columns[i].doc);
    pp_free(t->entries);
    *t = (struct pp_transcript){0};
}
