#include "ui/view_alternatives.h"

#include <stdio.h>
#include <string.h>

#include "ui/draw.h"
#include "ui/state.h"
#include "ui/text.h"

enum { MIN_WIDTH = 24, MAX_WIDTH = 100, FRAME = 3 /* the bar, and a space on each side */ };
enum shown { TEXT, THOUGHTS, HEADING };

int pp_alternatives_columns(const struct pp_ui *ui)
{
    int n = (int)pp_controller_n_alternatives(ui->controller);
    return n > 1 && ui->at.transcript.h >= 6 && ui->at.transcript.w / n >= MIN_WIDTH ? n : 0;
}

static int column_width(const struct pp_ui *ui, int n)
{
    int w = (ui->at.transcript.w - 1) / n;
    return w < MAX_WIDTH + FRAME ? w : MAX_WIDTH + FRAME;
}

/* While the model thinks, and if there is no text yet, the column shows its reasoning or the heading of that. */
static enum shown shown_of(const struct pp_chat_message *m, enum pp_reasoning_view how)
{
    if (!m->thinking && (m->len || !m->reasoning_len || how == PP_REASONING_HIDE))
        return TEXT;
    return pp_reasoning_open(m, how) && m->reasoning_len ? THOUGHTS : HEADING;
}

static const struct pp_layout *layout_of(struct pp_ui *ui, int i, int width)
{
    struct pp_column *c = &ui->transcript.columns[i];
    const struct pp_chat_message *m = pp_controller_alternative(ui->controller, (size_t)i);
    const enum shown shown = shown_of(m, ui->reasoning);
    bool markdown = !ui->settings.raw && shown == TEXT;
    bool tinted = ui->settings.tint && m->n_drafted && shown == TEXT;
    const char *text = shown == TEXT ? m->text : shown == THOUGHTS ? m->reasoning : c->heading;
    if (c->id != m->id)
        pp_document_free(&c->doc);
    else if (c->revision == m->revision && c->shown == (int)shown && c->doc.width == width &&
             c->doc.markdown == markdown && c->doc.tinted == tinted)
        return &c->doc.layout;
    c->id = m->id;
    c->revision = m->revision;
    c->shown = shown;
    char heading[128];
    pp_reasoning_heading(m, heading, sizeof heading);
    snprintf(c->heading, sizeof c->heading, "▸ %s", heading);
    const size_t len = shown == TEXT ? m->len : shown == THOUGHTS ? m->reasoning_len : strlen(c->heading);
    pp_document_update_tinted(&c->doc, text ? text : "", text ? len : 0, width, markdown,
                              shown == TEXT ? PP_SLOT_ASSISTANT : PP_SLOT_REASONING, tinted ? m->drafted : NULL,
                              m->n_drafted);
    return &c->doc.layout;
}

size_t pp_alternatives_height(struct pp_ui *ui)
{
    int n = pp_alternatives_columns(ui), width = column_width(ui, n) - FRAME;
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        size_t lines = layout_of(ui, i, width)->n_lines;
        most = lines > most ? lines : most;
    }
    return 1 + most + 1 + 1;
}

static const char *footer(const struct pp_ui *ui, const struct pp_chat_message *m)
{
    if (m->too_long && !m->len)
        return "■ too long";
    if (m->state != PP_MESSAGE_PARTIAL)
        return m->state == PP_MESSAGE_CANCELLED ? "■ stopped" : NULL;
    return pp_transcript_running(ui) ? "…" : "■ unfinished";
}

static bool have_adapters(const struct pp_ui *ui)
{
    bool any = false;
    for (size_t i = 0; i < pp_controller_n_alternatives(ui->controller); i++)
        any = any || pp_controller_alternative(ui->controller, i)->adapters[0];
    return any;
}

/* The number of the alternative, and the adapters it is written with. */
static void draw_head(const struct pp_ui *ui, const struct pp_chat_message *m, bool chosen, struct pp_area a)
{
    const char *under = !have_adapters(ui) ? "" : m->adapters[0] ? m->adapters : "no adapter";
    const char *format = chosen ? "pippin ‹ %d of %d ›" : "%d of %d";
    char place[64];
    snprintf(place, sizeof place, format, m->sibling + 1, m->n_siblings);
    /* drop "pippin" to leave more room for the adapters */
    if (chosen && pp_text_width(place, strlen(place)) + 2 + pp_text_width(under, strlen(under)) > a.w)
        snprintf(place, sizeof place, "‹ %d of %d ›", m->sibling + 1, m->n_siblings);
    const int used = pp_draw_text(a.y, a.x, a.w, place, chosen ? PP_SLOT_ASSISTANT_NAME : PP_SLOT_DIM);
    if (*under && used + 2 < a.w)
        pp_draw_text(a.y, a.x + used + 2, a.w - used - 2, under, PP_SLOT_DIM);
}

static void draw_column(struct pp_ui *ui, int i, bool chosen, size_t line, struct pp_area a)
{
    const struct pp_chat_message *m = pp_controller_alternative(ui->controller, (size_t)i);
    const struct pp_layout *l = layout_of(ui, i, a.w);
    const char *foot = footer(ui, m);
    if (line > l->n_lines + (foot ? 1 : 0))
        return;
    pp_draw_vbar(a.y, a.x - 2, chosen ? PP_SLOT_ASSISTANT_NAME : PP_SLOT_BORDER);
    if (line == 0)
        draw_head(ui, m, chosen, a);
    else if (line <= l->n_lines)
        pp_transcript_draw_line(l, line - 1, a.y, a.x, a.w);
    else
        pp_draw_text(a.y, a.x, a.w, foot, PP_SLOT_NOTICE);
}

void pp_alternatives_draw(struct pp_ui *ui, size_t line, int y)
{
    int n = pp_alternatives_columns(ui), width = column_width(ui, n);
    const struct pp_chat_message *last =
        pp_controller_message(ui->controller, pp_controller_n_messages(ui->controller) - 1);
    for (int i = 0; i < n; i++) {
        struct pp_area a = {y, ui->at.transcript.x + 1 + i * width + 2, 1, width - FRAME};
        bool chosen = last && pp_controller_alternative(ui->controller, (size_t)i)->id == last->id;
        draw_column(ui, i, chosen, line, a);
    }
}
