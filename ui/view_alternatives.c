#include "ui/view_alternatives.h"

#include "ui/draw.h"
#include "ui/state.h"

enum { LEAST_WIDTH = 24, MOST_WIDTH = 100, FRAME = 3 /* the bar, and a space on either side */ };

int pp_alternatives_columns(const struct pp_ui *ui)
{
    int n = (int)pp_controller_n_alternatives(ui->controller);
    return n > 1 && ui->at.transcript.h >= 6 && ui->at.transcript.w / n >= LEAST_WIDTH ? n : 0;
}

static int column_width(const struct pp_ui *ui, int n)
{
    int w = (ui->at.transcript.w - 1) / n;
    return w < MOST_WIDTH + FRAME ? w : MOST_WIDTH + FRAME;
}

static const struct pp_layout *layout_of(struct pp_ui *ui, int i, int width)
{
    struct pp_column *c = &ui->transcript.columns[i];
    const struct pp_chat_message *m = pp_controller_alternative(ui->controller, (size_t)i);
    bool thoughts = pp_reasoning_open(m, ui->reasoning) && m->thinking; /* until there is something better */
    bool markdown = !ui->settings.raw && !thoughts;
    bool tinted = ui->settings.tint && m->n_guessed && !thoughts;
    const char *text = thoughts ? m->reasoning : m->text;
    if (c->id != m->id)
        pp_document_free(&c->doc);
    else if (c->revision == m->revision && c->doc.width == width && c->doc.markdown == markdown &&
             c->doc.tinted == tinted)
        return &c->doc.layout;
    c->id = m->id;
    c->revision = m->revision;
    pp_document_update_tinted(&c->doc, text ? text : "", !text ? 0 : thoughts ? m->reasoning_len : m->len, width,
                              markdown, thoughts ? PP_SLOT_REASONING : PP_SLOT_ASSISTANT, tinted ? m->guessed : NULL,
                              m->n_guessed);
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

static const char *footer(const struct pp_chat_message *m)
{
    if (m->too_long && !m->len)
        return "■ too long";
    return m->state == PP_MESSAGE_CANCELLED ? "■ stopped" : m->state == PP_MESSAGE_COMPLETE ? NULL : "…";
}

static bool have_adapters(const struct pp_ui *ui)
{
    bool any = false;
    for (size_t i = 0; i < pp_controller_n_alternatives(ui->controller); i++)
        any = any || pp_controller_alternative(ui->controller, i)->adapters[0];
    return any;
}

/* Which one it is, and what it is written under. */
static void draw_head(const struct pp_ui *ui, const struct pp_chat_message *m, bool chosen, struct pp_area a)
{
    int used = pp_draw_fmt(a.y, a.x, a.w, chosen ? PP_SLOT_ASSISTANT_NAME : PP_SLOT_DIM,
                           chosen ? "pippin ‹ %d of %d ›" : "%d of %d", m->sibling + 1, m->n_siblings);
    if (have_adapters(ui) && used + 2 < a.w)
        pp_draw_text(a.y, a.x + used + 2, a.w - used - 2, m->adapters[0] ? m->adapters : "no adapter", PP_SLOT_DIM);
}

static void draw_column(struct pp_ui *ui, int i, bool chosen, size_t line, struct pp_area a)
{
    const struct pp_chat_message *m = pp_controller_alternative(ui->controller, (size_t)i);
    const struct pp_layout *l = layout_of(ui, i, a.w);
    const char *foot = footer(m);
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
