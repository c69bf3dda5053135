#include "ui/view_reasoning.h"

#include <stdio.h>
#include <string.h>

#include "src/controller.h"
#include "src/figures.h"
#include "ui/draw.h"
#include "ui/view_transcript.h"

int pp_reasoning_view_by_name(const char *name)
{
    static const char *const names[PP_REASONING_VIEWS] = {"fold", "show", "hide"};
    for (int i = 0; i < PP_REASONING_VIEWS; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

void pp_reasoning_free(struct pp_reasoning_lines *r)
{
    pp_document_free(&r->doc);
    r->id = 0;
    r->revision = 0;
}

void pp_reasoning_heading(const struct pp_chat_message *m, char *out, size_t cap)
{
    char tokens[64] = "", time[32] = "";
    if (m->reasoning_tokens > 0)
        snprintf(tokens, sizeof tokens, "%s %s token%s", m->thinking ? "," : " for",
                 pp_count(m->reasoning_tokens).text, m->reasoning_tokens == 1 ? "" : "s");
    if (m->reasoning_s > 0 && !m->thinking)
        snprintf(time, sizeof time, ", %.*f s", m->reasoning_s < 100 ? 1 : 0, (double)m->reasoning_s);
    snprintf(out, cap, "%s%s%s", m->thinking ? "thinking" : "thought", tokens, time);
}

bool pp_reasoning_open(const struct pp_chat_message *m, enum pp_reasoning_view how)
{
    return how == PP_REASONING_SHOW || (how == PP_REASONING_FOLD && m->thinking);
}

static bool is_shown(const struct pp_chat_message *m, enum pp_reasoning_view how)
{
    return m->thinking || (m->reasoning_len && how != PP_REASONING_HIDE);
}

size_t pp_reasoning_height(struct pp_reasoning_lines *r, const struct pp_chat_message *m, enum pp_reasoning_view how,
                           int width)
{
    if (!is_shown(m, how))
        return 0;
    if (!pp_reasoning_open(m, how) || !m->reasoning_len)
        return 1;
    if (r->id != m->id)
        pp_reasoning_free(r);
    if (r->revision != m->revision || r->doc.width != width)
        pp_document_update(&r->doc, m->reasoning, m->reasoning_len, width, false, PP_SLOT_REASONING);
    r->id = m->id;
    r->revision = m->revision;
    return 1 + r->doc.layout.n_lines + (m->len ? 1 : 0);
}

void pp_reasoning_draw(const struct pp_reasoning_lines *r, const struct pp_chat_message *m, enum pp_reasoning_view how,
                       size_t line, int y, int x, int w)
{
    char heading[128];
    pp_reasoning_heading(m, heading, sizeof heading);
    if (line == 0)
        pp_draw_fmt(y, x, w, PP_SLOT_REASONING, "%s %s", pp_reasoning_open(m, how) ? "▾" : "▸", heading);
    else if (line <= r->doc.layout.n_lines)
        pp_transcript_draw_line(&r->doc.layout, line - 1, y, x, w);
}
