/* menu_params.c - F8: sampling parameters and other numbers. */
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "src/options.h"
#include "ui/state.h"

static const struct pp_named *preset_at(struct pp_ui *ui, size_t i)
{
    size_t n;
    const struct pp_named *list = pp_controller_params(ui->controller, &n);
    return i < n ? &list[i] : NULL;
}

/* Explains the selected parameter. */
static void details(struct pp_ui *ui, struct pp_menu *m, char lines[][PP_MENU_DETAIL])
{
    const struct pp_named *p = preset_at(ui, m->selected);
    if (p)
        pp_utf8_print(lines[0], PP_MENU_DETAIL, "%s", pp_options_about(p->name));
}

static void choose(struct pp_ui *ui, struct pp_menu *m)
{
    const struct pp_named *p = preset_at(ui, m->selected);
    char question[96], value[64];
    if (!p)
        return;
    snprintf(question, sizeof question, "%s:", p->name);
    /* the value alone: the detail may be "-1 (no limit)" */
    snprintf(value, sizeof value, "%.*s", (int)strcspn(p->detail, " "), p->detail);
    pp_menu_ask(ui, question, value);
}

static bool answered(struct pp_ui *ui, struct pp_menu *m, const char *text)
{
    const struct pp_named *p = preset_at(ui, m->selected);
    char name[64];
    if (!p)
        return true;
    snprintf(name, sizeof name, "%s", p->name);
    return pp_controller_set_param(ui->controller, name, text);
}

const struct pp_menu_class pp_menu_params = {
    .title = "Parameters", .hint = "Enter changes   Esc closes", .empty = "There is nothing to set yet.",
    .n_details = 2, .details = details,
    .named = pp_controller_params, .choose = choose, .answered = answered,
};
