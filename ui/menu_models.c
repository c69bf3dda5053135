/* menu_models.c - /model: models that could be loaded, and the memory they need; typing searches their names. */
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "src/figures.h"
#include "ui/menu.h"
#include "ui/state.h"

static bool is_shown(const struct pp_menu *m, const struct pp_model_choice *c)
{
    return !m->search.len || pp_casestr(c->name, m->search.text);
}

/* Row i of the models that match the search, or NULL; *n: how many match. */
static const struct pp_model_choice *model_at(struct pp_ui *ui, const struct pp_menu *m, size_t i, size_t *n)
{
    size_t all;
    const struct pp_model_choice *list = pp_controller_models(ui->controller, &all), *found = NULL;
    *n = 0;
    for (size_t k = 0; k < all; k++)
        if (is_shown(m, &list[k]) && (*n)++ == i)
            found = &list[k];
    return found;
}

static void select_current(struct pp_ui *ui, struct pp_menu *m)
{
    size_t n = 1;
    const struct pp_model_choice *c;
    for (size_t i = 0; i < n; i++)
        if ((c = model_at(ui, m, i, &n)) && c->current)
            m->selected = i;
}

static void open_menu(struct pp_ui *ui, struct pp_menu *m)
{
    (void)m;
    pp_controller_find_models(ui->controller);
}

static void moved(struct pp_ui *ui, struct pp_menu *m)
{
    (void)ui;
    m->subject = 1;
}

static void searched(struct pp_ui *ui, struct pp_menu *m)
{
    m->selected = 0;
    moved(ui, m);
}

/* The list fills while the menu is open: until the first key, the selection stays on the loaded model. */
static size_t count(struct pp_ui *ui, struct pp_menu *m)
{
    size_t n;
    model_at(ui, m, 0, &n);
    if (!m->subject)
        select_current(ui, m);
    return n;
}

static void row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    size_t n;
    const struct pp_model_choice *c = model_at(ui, m, i, &n);
    if (!c)
        return;
    snprintf(row->left, sizeof row->left, "%s", c->name);
    row->current = c->current;
    row->dim = c->fit == PP_FIT_NO;
    if (row->dim)
        snprintf(row->right, sizeof row->right, "cannot be used");
    else if (c->fit == PP_FIT_YES)
        snprintf(row->right, sizeof row->right, "%s  %7s", c->facts.type, pp_size(c->facts.bytes).text);
}

static void describe(const struct pp_model_choice *c, char lines[][PP_MENU_DETAIL])
{
    const struct pp_model_facts *f = &c->facts;
    char active[80] = "";
    if (f->n_params_active)
        snprintf(active, sizeof active, ", %s active per token", pp_parameters(f->n_params_active).text);
    snprintf(lines[0], PP_MENU_DETAIL, "%s parameters%s; trained for %s tokens", pp_parameters(f->n_params).text,
             active, pp_count(f->n_ctx_train).text);
    if (f->memory)
        snprintf(lines[1], PP_MENU_DETAIL, "needs %s of memory for %s tokens; %s free now", pp_size(f->memory).text,
                 pp_count(f->n_ctx).text, pp_size(pp_memory_free()).text);
}

static void details(struct pp_ui *ui, struct pp_menu *m, char lines[][PP_MENU_DETAIL])
{
    size_t n;
    const struct pp_model_choice *c = model_at(ui, m, m->selected, &n);
    if (!c)
        return;
    if (c->fit == PP_FIT_YES)
        describe(c, lines);
    else
        snprintf(lines[0], PP_MENU_DETAIL, "%s", c->fit == PP_FIT_NO ? c->reason : "not read yet");
    pp_utf8_print(lines[2], PP_MENU_DETAIL, "%s", c->path);
}

static void choose(struct pp_ui *ui, struct pp_menu *m)
{
    size_t n;
    const struct pp_model_choice *c = model_at(ui, m, m->selected, &n);
    if (!c)
        return;
    if (c->fit == PP_FIT_NO)
        pp_ui_notice(ui, true, "%s cannot be used: %s", c->name, c->reason);
    else if (c->current || pp_controller_load(ui->controller, c->bundled ? "starter" : c->path))
        pp_menu_close(ui);
}

const struct pp_menu_class pp_menu_models = {
    .title = "Models", .hint = "Enter loads   /model PATH loads any file   Esc closes",
    .empty = "No models found; /model PATH loads one.", .n_details = 3, .search = true,
    .open = open_menu, .moved = moved, .searched = searched, .count = count, .row = row, .details = details,
    .choose = choose,
};
