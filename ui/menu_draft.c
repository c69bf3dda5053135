/* menu_draft.c - F6: which drafter is used, which model, how many tokens at most, and how well that worked in the
 * last answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "ui/menu.h"
#include "ui/state.h"

static const char *const rows[PP_DRAFTERS] = {
    "Automatic: draft model and lookup, where faster",
    "Draft model: drafts from a small model",
    "Lookup: copies what followed the same words",
    "Off",
};

enum { FIRST = PP_DRAFTERS + 1 }; /* row of the first draft model, after the drafters and a heading */

static const struct pp_drafter_entry *drafter_at(struct pp_ui *ui, size_t row)
{
    size_t n;
    const struct pp_drafter_entry *list = pp_controller_drafters(ui->controller, &n);
    return row >= FIRST && row - FIRST < n ? &list[row - FIRST] : NULL;
}

static void open_menu(struct pp_ui *ui, struct pp_menu *m)
{
    m->selected = (size_t)pp_controller_status(ui->controller)->drafter;
    pp_controller_find_drafters(ui->controller);
}

static size_t count(struct pp_ui *ui, struct pp_menu *m)
{
    size_t n;
    (void)m;
    pp_controller_drafters(ui->controller, &n);
    return n ? FIRST + n : PP_DRAFTERS;
}

static void drafter_row(const struct pp_status *s, const struct pp_drafter_entry *d, struct pp_menu_row *row)
{
    snprintf(row->left, sizeof row->left, "%s", d->name);
    row->dim = d->fit == PP_FIT_NO;
    row->current = strcmp(d->path, s->model.draft_path) == 0;
    if (row->dim)
        snprintf(row->right, sizeof row->right, "does not fit");
    else if (d->fit == PP_FIT_YES)
        snprintf(row->right, sizeof row->right, "%.1f MB", (double)d->facts.bytes / 1e6);
}

static void row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    const struct pp_status *s = pp_controller_status(ui->controller);
    const struct pp_drafter_entry *d = drafter_at(ui, i);
    bool none = !s->model.draft_name[0];
    (void)m;
    if (d) {
        drafter_row(s, d, row);
        return;
    }
    row->heading = i >= PP_DRAFTERS;
    snprintf(row->left, sizeof row->left, "%s", row->heading ? "Draft models" : rows[i]);
    if (i == PP_DRAFTER_MODEL)
        pp_utf8_print(row->right, sizeof row->right, "%s", none ? "there is none" : s->model.draft_name);
    row->dim = i == PP_DRAFTER_MODEL && none;
    row->current = (size_t)s->drafter == i;
}

static const char *param(struct pp_ui *ui, const char *name)
{
    size_t n;
    const struct pp_named *list = pp_controller_params(ui->controller, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return list[i].detail;
    return "";
}

/* Draws a bar of one cell per position in a draft: the acceptance rate there. */
static void bars(const struct pp_status *s, char *out, size_t size)
{
    static const char *const cells[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    size_t at = 0;
    for (int i = 0; i < s->draft_depth && at + 4 < size; i++) {
        uint32_t cell = s->drafted_at[i] ? s->accepted_at[i] * 7 / s->drafted_at[i] : 0;
        at += (size_t)snprintf(out + at, size - at, "%s", cells[cell < 7 ? cell : 7]);
    }
}

/* Describes the selected draft model or, if none is, the one in use. */
static void describe(const struct pp_status *s, const struct pp_drafter_entry *d, char *line, size_t cap)
{
    if (d && d->fit == PP_FIT_NO)
        snprintf(line, cap, "%s", d->reason);
    else if (d && d->fit == PP_FIT_YES)
        snprintf(line, cap, "%.0f %% of the model's size%s%s", (double)d->facts.share * 100,
                 d->facts.bridged ? "; matches tokens by text" : "", /* its vocabulary differs */
                 d->facts.other_template ? "; another chat template" : "");
    else if (d)
        snprintf(line, cap, "not looked at yet");
    else if (s->model.draft_name[0])
        snprintf(line, cap, "Draft model: %s", s->model.draft_name);
    else if (s->model.draft_reason[0])
        snprintf(line, cap, "No draft model: %s", s->model.draft_reason);
    else
        snprintf(line, cap, "No draft model in use; f chooses a file.");
}

static void details(struct pp_ui *ui, struct pp_menu *m, char lines[][PP_MENU_DETAIL])
{
    const struct pp_status *s = pp_controller_status(ui->controller);
    const char *p_min = param(ui, "draft-p-min");
    char plot[4 * PP_STATS_POSITIONS + 1] = "", faster[48] = "";
    describe(s, drafter_at(ui, m->selected), lines[0], PP_MENU_DETAIL);
    snprintf(lines[1], PP_MENU_DETAIL, "At most %.16s draft token%s per pass; %s%.16s.", param(ui, "draft-max"),
             strcmp(param(ui, "draft-max"), "1") == 0 ? "" : "s",
             atof(p_min) > 0 ? "minimum probability " : "probability limit: automatic",
             atof(p_min) > 0 ? p_min : "");
    if (s->acceptance < 0 || !s->draft_depth) {
        snprintf(lines[2], PP_MENU_DETAIL, "Nothing was drafted in the last answer.");
        return;
    }
    bars(s, plot, sizeof plot);
    if (s->speedup > 0)
        snprintf(faster, sizeof faster, ", %.2f times as fast as without", (double)s->speedup);
    snprintf(lines[2], PP_MENU_DETAIL, "Last answer: %.0f %% of drafts accepted%s.", (double)s->acceptance * 100,
             faster);
    snprintf(lines[3], PP_MENU_DETAIL, "Accepted by position in the draft: %s  (1st: %.0f %% of %u)",
             plot, 100.0 * s->accepted_at[0] / (s->drafted_at[0] ? s->drafted_at[0] : 1), s->drafted_at[0]);
}

static bool key(struct pp_ui *ui, struct pp_menu *m, const struct pp_key *key)
{
    (void)m;
    static const char *const thresholds[] = {"0", "0.3", "0.5", "0.7", "0.9"};
    char value[16];
    if (key->type == PP_KEY_LEFT || key->type == PP_KEY_RIGHT) {
        int n = atoi(param(ui, "draft-max")) + (key->type == PP_KEY_LEFT ? -1 : 1);
        snprintf(value, sizeof value, "%d", n < 1 ? 1 : n > PP_DRAFT_MAX_LIMIT ? PP_DRAFT_MAX_LIMIT : n);
        pp_controller_set_param(ui->controller, "draft-max", value);
        return true;
    }
    if (key->type == PP_KEY_CHAR && !key->mods && key->cp == 'f') {
        pp_menu_ask(ui, "File or name (Tab completes):", "");
        return true;
    }
    if (key->type == PP_KEY_CHAR && !key->mods && key->cp == 'm') {
        pp_ui_toggle_tint(ui);
        return true;
    }
    if (key->type == PP_KEY_CHAR && !key->mods && key->cp == 't') {
        double now = atof(param(ui, "draft-p-min"));
        size_t i = 0;
        while (i < 5 && atof(thresholds[i]) <= now + 1e-9)
            i++;
        pp_controller_set_param(ui->controller, "draft-p-min", thresholds[i % 5]);
        return true;
    }
    return false;
}

static void choose(struct pp_ui *ui, struct pp_menu *m)
{
    const struct pp_drafter_entry *d = drafter_at(ui, m->selected);
    if (d && d->fit == PP_FIT_NO)
        pp_ui_notice(ui, true, "%s does not fit: %s", d->name, d->reason);
    else if (d)
        pp_controller_use_drafter(ui->controller, d->path);
    else if (m->selected < PP_DRAFTERS && pp_controller_set_drafter(ui->controller, (enum pp_drafter)m->selected))
        pp_menu_close(ui);
}

static bool answered(struct pp_ui *ui, struct pp_menu *m, const char *text)
{
    (void)m;
    return !*text || pp_controller_use_drafter(ui->controller, text);
}

static void complete(struct pp_ui *ui, struct pp_menu *m)
{
    (void)m;
    pp_menu_complete_path(ui);
}

const struct pp_menu_class pp_menu_draft = {
    .title = "Speculative decoding", .empty = "", .n_details = 4,
    .hint = "Same answers, faster.  ←→ tokens  t probability  m tint  f file",
    .open = open_menu, .count = count, .row = row, .key = key, .choose = choose, .details = details,
    .answered = answered, .complete = complete,
};
