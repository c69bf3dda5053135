#include "ui/view_activity.h"

#include <stdio.h>

#include "src/figures.h"
#include "ui/state.h"

enum { BAR_MAX = 24 };

size_t pp_activity_height(struct pp_ui *ui)
{
    switch (pp_controller_status(ui->controller)->state) {
    case PP_STATE_LOADING:
    case PP_STATE_SAVING:
    case PP_STATE_PREFILL:
    case PP_STATE_CLOSING:
        return 1;
    default:
        return 0;
    }
}

/* The text, such as "reading 512 of 2,048 tokens, about 3 s". */
static void describe(const struct pp_status *s, char *out, size_t cap)
{
    char eta[48] = "";
    if (s->eta_s >= 1)
        snprintf(eta, sizeof eta, ", about %.0f s", (double)s->eta_s);
    switch (s->state) {
    case PP_STATE_LOADING:
        snprintf(out, cap, "loading %s", s->model.name[0] ? s->model.name : "the model");
        break;
    case PP_STATE_PREFILL:
        if (s->progress_total)
            snprintf(out, cap, "reading %s of %s tokens%s", pp_count((int64_t)s->progress_done).text,
                     pp_count((int64_t)s->progress_total).text, eta);
        else
            snprintf(out, cap, "reading");
        break;
    case PP_STATE_CLOSING:
        snprintf(out, cap, "saving…");
        break;
    default:
        snprintf(out, cap, "saving your message");
    }
}

static void draw_progress(const struct pp_status *s, int y, int x, int w)
{
    char text[256];
    describe(s, text, sizeof text);
    bool bar = s->progress_total > 0 && s->state != PP_STATE_CLOSING && s->state != PP_STATE_SAVING;
    int bar_w = w / 3 < BAR_MAX ? w / 3 : BAR_MAX;
    int used = 0;
    if (bar && bar_w >= 6) {
        pp_draw_bar(y, x, bar_w, (double)s->progress_done / (double)s->progress_total, PP_SLOT_METER);
        used = bar_w + 2;
    }
    pp_draw_text(y, x + used, w - used, text, PP_SLOT_DIM);
}

void pp_activity_draw(struct pp_ui *ui, size_t line, int y)
{
    struct pp_area a = ui->at.transcript;
    int x = a.x + (a.w >= 36 ? 3 : 2);
    if (line == 0)
        draw_progress(pp_controller_status(ui->controller), y, x, a.w - x - 2);
}

static void center(struct pp_area a, int y, const char *text, pp_style style)
{
    int width = pp_draw_width(text);
    int x = width < a.w ? a.x + (a.w - width) / 2 : a.x;
    pp_draw_text(y, x, a.w, text, style);
}

void pp_activity_greet(struct pp_ui *ui)
{
    const struct pp_status *s = pp_controller_status(ui->controller);
    struct pp_area a = ui->at.transcript;
    bool busy = pp_activity_height(ui) > 0, small = a.h < 9 || a.w < 50;
    int y = a.y + (a.h - (small ? 2 : 7)) / 2;
    if (y < a.y)
        y = a.y;
    center(a, y, "pippin", PP_SLOT_TITLE);
    if (!small) {
        center(a, y + 1, "chat with a model on your own machine", PP_SLOT_DIM);
        center(a, y + 5,
               a.w >= 68 ? "Enter sends  ·  Alt-Enter starts a new line  ·  F1 shows all keys"
                         : "Enter sends  ·  F1 shows all keys",
               PP_SLOT_DIM);
        y += 2;
    }
    if (busy && y + 1 < a.y + a.h) {
        int w = a.w - 4 < 60 ? a.w - 4 : 60;
        draw_progress(s, y + 1, a.x + (a.w - w) / 2, w);
    } else if (y + 1 < a.y + a.h && s->model.name[0]) {
        char text[256];
        snprintf(text, sizeof text, "%s  %s", s->model.name, s->model.type_name);
        center(a, y + 1, text, PP_SLOT_TEXT);
    }
}
