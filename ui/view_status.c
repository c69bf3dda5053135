#include "ui/view_status.h"

#include <stdio.h>
#include <string.h>

#include "src/figures.h"
#include "ui/sanitize.h"
#include "ui/state.h"
#include "ui/text.h"

enum { MAX_ITEMS = 12, METER_CELLS = 6, SEPARATOR_CELLS = 3, MAX_CELLS = 40 };

static const char separator[] = " · ";

struct item {
    char text[160];   /* sanitised */
    char brief[24];   /* a shorter text, tried before the item is dropped; "": there is none */
    pp_style style;
    int rank;         /* items of the highest rank are dropped first */
    double meter;     /* the filled part of a bar before the text; < 0: no bar */
    bool tight;       /* separated from the item before it by a space only */
    int width;
};

struct items {
    struct item list[MAX_ITEMS];
    int n;
};

static struct item *add(struct items *items, int rank, pp_style style, const char *text)
{
    if (!*text || items->n == MAX_ITEMS)
        return NULL;
    struct item *it = &items->list[items->n++];
    struct pp_buf clean = {0};
    pp_sanitize(&clean, text, strlen(text), PP_CLEAN_LINE, NULL);
    const char *s = pp_buf_cstr(&clean);
    static const char more[] = "…";
    const size_t room = sizeof it->text - sizeof more;
    const size_t len = clean.len < room ? clean.len : room;
    size_t fit = pp_text_fit(s, len, MAX_CELLS, NULL);
    const bool cut = fit < clean.len;
    if (cut)
        fit = pp_text_fit(s, len, MAX_CELLS - 1, NULL);
    *it = (struct item){.style = style, .rank = rank, .meter = -1};
    memcpy(it->text, s, fit);
    memcpy(it->text + fit, more, cut ? sizeof more : 0);
    it->width = pp_text_width(it->text, strlen(it->text));
    pp_buf_free(&clean);
    return it;
}

/* If the names do not fit, their number is shown: the user must always see that adapters are on. */
static void add_adapters(struct items *items, struct pp_ui *ui, const char *names)
{
    size_t n, on = 0;
    const struct pp_adapter_entry *list = pp_controller_adapters(ui->controller, &n);
    struct item *it = add(items, 4, PP_SLOT_STATUS, names);
    for (size_t i = 0; i < n; i++)
        on += list[i].on;
    if (it)
        snprintf(it->brief, sizeof it->brief, on == 1 ? "%zu adapter" : "%zu adapters", on);
}

static const char *state_word(const struct pp_status *s)
{
    switch (s->state) {
    case PP_STATE_LOADING: return "loading";
    case PP_STATE_FAILED: return "no model";
    case PP_STATE_IDLE: return "ready";
    case PP_STATE_SAVING: return "saving";
    case PP_STATE_PREFILL: return "reading";
    case PP_STATE_ANSWER: return "answering";
    case PP_STATE_CLOSING:
    case PP_STATE_CLOSED: return "closing";
    }
    return "";
}

static void add_context(struct items *items, const struct pp_status *s)
{
    char text[80];
    if (s->ctx_total <= 0)
        return;
    snprintf(text, sizeof text, "%s%s/%s", s->ctx_inexact ? "≈" : "", /* some of its values are not exact */
             pp_count(s->ctx_used).text, pp_count(s->ctx_total).text);
    bool nearly_full = s->ctx_used * 10 > s->ctx_total * 9;
    struct item *it = add(items, 1, nearly_full ? PP_SLOT_ERROR : PP_SLOT_STATUS, text);
    if (it) {
        it->meter = (double)s->ctx_used / (double)s->ctx_total;
        it->width += METER_CELLS + 1;
    }
}

static void collect(struct items *items, struct pp_ui *ui)
{
    const struct pp_status *s = pp_controller_status(ui->controller);
    const int elsewhere = pp_controller_n_elsewhere(ui->controller);
    char text[400];
    add(items, 0, PP_SLOT_STATUS_STRONG, state_word(s));
    add(items, 1, PP_SLOT_STATUS_STRONG, s->temporary ? "temporary" : "");
    add(items, 2, PP_SLOT_STATUS_STRONG, s->model.name);
    struct item *type = add(items, 5, PP_SLOT_STATUS, s->model.type_name);
    if (type)
        type->tight = true;
    snprintf(text, sizeof text, s->model.n_threads == 1 ? "%d thread" : "%d threads", s->model.n_threads);
    add(items, 6, PP_SLOT_STATUS, s->model.n_threads > 0 ? text : "");
    add_context(items, s);
    if (s->tokens_per_s > 0) {
        snprintf(text, sizeof text, "%s tok/s", pp_rate((double)s->tokens_per_s).text);
        add(items, 3, PP_SLOT_STATUS, text);
    }
    if (elsewhere > 0) {
        snprintf(text, sizeof text, elsewhere == 1 ? "%d answer elsewhere" : "%d answers elsewhere", elsewhere);
        add(items, 4, PP_SLOT_STATUS_STRONG, text);
    }
    add_adapters(items, ui, s->adapters);
    const bool drafts = s->model.name[0] && s->drafter != PP_DRAFTER_OFF;
    if (drafts && s->acceptance >= 0) {
        int n = snprintf(text, sizeof text, "draft %.0f %%", (double)s->acceptance * 100);
        if (s->speedup > 0)
            snprintf(text + n, sizeof text - (size_t)n, " ×%.2f", (double)s->speedup);
        add(items, 7, PP_SLOT_STATUS, text);
    } else if (drafts) {
        add(items, 7, PP_SLOT_STATUS, "draft");
    }
    add(items, 8, PP_SLOT_STATUS, s->persona);
    if (s->template_name[0]) {
        snprintf(text, sizeof text, "template %s", s->template_name);
        add(items, 9, PP_SLOT_STATUS, text);
    }
}

static const char *gap_before(const struct item *it)
{
    return it->tight ? " " : separator;
}

static int total_width(const struct items *items)
{
    int width = 2;
    for (int i = 0; i < items->n; i++)
        width += items->list[i].width + (i == 0 ? 0 : items->list[i].tight ? 1 : SEPARATOR_CELLS);
    return width;
}

static void make_brief(struct item *it)
{
    enum { STAYS = 2 }; /* kept longer than the model's name */
    memcpy(it->text, it->brief, sizeof it->brief);
    it->brief[0] = 0;
    it->width = pp_text_width(it->text, strlen(it->text));
    it->rank = STAYS;
}

/* Makes the line shorter by one step: shortens or drops the item of the highest rank. The meter's bar goes before
 * any item that is shown nowhere else. */
static void shrink(struct items *items)
{
    int last = 0;
    for (int i = 0; i < items->n; i++) {
        struct item *it = &items->list[i];
        if (it->rank > items->list[last].rank)
            last = i;
    }
    if (items->list[last].brief[0]) {
        make_brief(&items->list[last]);
        return;
    }
    for (int i = 0; i < items->n && items->list[last].rank <= 3; i++) {
        if (items->list[i].meter >= 0) {
            items->list[i].meter = -1;
            items->list[i].width -= METER_CELLS + 1;
            return;
        }
    }
    memmove(&items->list[last], &items->list[last + 1], (size_t)(items->n - last - 1) * sizeof items->list[0]);
    items->n--;
}

void pp_status_draw(struct pp_ui *ui)
{
    struct pp_area a = ui->at.status;
    if (a.h == 0)
        return;
    struct items items = {.n = 0};
    collect(&items, ui);
    while (items.n > 1 && total_width(&items) > a.w)
        shrink(&items);
    pp_draw_erase(a, PP_SLOT_STATUS);
    int x = a.x + 1;
    for (int i = 0; i < items.n; i++) {
        const struct item *it = &items.list[i];
        if (i > 0)
            x += pp_draw_clean(a.y, x, a.x + a.w - x, gap_before(it), strlen(gap_before(it)), PP_SLOT_STATUS);
        if (it->meter >= 0) {
            pp_draw_bar(a.y, x, METER_CELLS, it->meter, PP_SLOT_METER);
            x += METER_CELLS + 1;
        }
        x += pp_draw_clean(a.y, x, a.x + a.w - x, it->text, strlen(it->text), it->style);
    }
}

void pp_keys_draw(struct pp_ui *ui)
{
    /* `brief`: names short enough for all of them to fit into 80 columns */
    static const struct { const char *key, *word, *brief; } keys[] = {
        {"F1", "Help", "Help"}, {"F2", "Chats", "Chats"}, {"F3", "LoRA", "LoRA"}, {"F4", "Template", "Templ"},
        {"F5", "Persona", "Persona"}, {"F6", "Draft", "Draft"}, {"F7", "Theme", "Theme"}, {"F8", "Params", "Params"},
        {"F9", "Raw", "Raw"}, {"F10", "Quit", "Quit"},
    };
    enum { COUNT = sizeof keys / sizeof keys[0] };
    struct pp_area a = ui->at.keys;
    if (a.h == 0)
        return;
    int words = 1;
    for (int i = 0; i < COUNT; i++)
        words += (int)(strlen(keys[i].key) + strlen(keys[i].word));
    const bool brief = words + COUNT - 1 > a.w;
    int space = words + 3 * COUNT <= a.w ? 1 : 0, gap = words + 3 * COUNT <= a.w ? 2 : 1;
    pp_draw_erase(a, PP_SLOT_KEYS);
    int x = a.x + 1, quit = (int)strlen("F10Quit") + space;
    for (int i = 0; i < COUNT; i++) {
        const char *word = brief ? keys[i].brief : keys[i].word;
        int width = (int)(strlen(keys[i].key) + strlen(word)) + space;
        if (i < COUNT - 1 && x + width + gap + quit > a.x + a.w)
            continue;
        x += pp_draw_text(a.y, x, a.x + a.w - x, keys[i].key, PP_SLOT_KEY) + space;
        x += pp_draw_text(a.y, x, a.x + a.w - x, word, PP_SLOT_KEYS) + gap;
    }
}
