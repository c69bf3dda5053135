/* menu_choices.c - one of several: templates (F4), personas (F5), presets of adapters (l in F3). */
#include <stdio.h>

#include "ui/state.h"

typedef const struct pp_named *list_of(const struct pp_controller *c, size_t *n);

static void fill(const struct pp_named *list, size_t n, size_t i, struct pp_menu_row *row)
{
    if (i >= n)
        return;
    snprintf(row->left, sizeof row->left, "%s", list[i].name);
    snprintf(row->right, sizeof row->right, "%.127s", list[i].detail);
    row->current = list[i].current;
}

/* The menu opens on the current choice. */
static void select_current(struct pp_ui *ui, struct pp_menu *m, list_of *get)
{
    size_t n;
    const struct pp_named *list = get(ui->controller, &n);
    for (size_t i = 0; i < n; i++)
        if (list[i].current)
            m->selected = i;
}

/* --- chat templates --------------------------------------------------------------------------------------- */

static void templates_open(struct pp_ui *ui, struct pp_menu *m)
{
    select_current(ui, m, pp_controller_templates);
}

static size_t templates_count(struct pp_ui *ui, struct pp_menu *m)
{
    size_t n;
    (void)m;
    pp_controller_templates(ui->controller, &n);
    return n;
}

static void templates_row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    size_t n;
    (void)m;
    const struct pp_named *list = pp_controller_templates(ui->controller, &n);
    fill(list, n, i, row);
}

static void templates_choose(struct pp_ui *ui, struct pp_menu *m)
{
    pp_controller_set_template(ui->controller, m->selected);
    pp_menu_close(ui);
}

const struct pp_menu_class pp_menu_templates = {
    .title = "Chat template", .hint = "Enter chooses   Esc closes", .empty = "The model brings no template.",
    .columns = true,
    .open = templates_open, .count = templates_count, .row = templates_row, .choose = templates_choose,
};

/* --- personas --------------------------------------------------------------------------------------------- */

static void personas_open(struct pp_ui *ui, struct pp_menu *m)
{
    select_current(ui, m, pp_controller_personas);
}

static size_t personas_count(struct pp_ui *ui, struct pp_menu *m)
{
    size_t n;
    (void)m;
    pp_controller_personas(ui->controller, &n);
    return n;
}

static void personas_row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    size_t n;
    (void)m;
    const struct pp_named *list = pp_controller_personas(ui->controller, &n);
    fill(list, n, i, row);
}

static void personas_choose(struct pp_ui *ui, struct pp_menu *m)
{
    pp_controller_set_persona(ui->controller, m->selected);
    pp_menu_close(ui);
}

const struct pp_menu_class pp_menu_personas = {
    .title = "Persona", .columns = true, .hint = "Enter chooses   Esc closes", .empty = "There are no personas.",
    .open = personas_open, .count = personas_count, .row = personas_row, .choose = personas_choose,
};

/* --- presets of adapters ------------------------------------------------------------------------------------ */

static size_t presets_count(struct pp_ui *ui, struct pp_menu *m)
{
    size_t n;
    (void)m;
    pp_controller_presets(ui->controller, &n);
    return n;
}

static void presets_row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    size_t n;
    (void)m;
    const struct pp_named *list = pp_controller_presets(ui->controller, &n);
    fill(list, n, i, row);
}

static void presets_choose(struct pp_ui *ui, struct pp_menu *m)
{
    pp_controller_use_preset(ui->controller, m->selected);
    pp_menu_open(ui, &pp_menu_lora);
}

static bool presets_key(struct pp_ui *ui, struct pp_menu *m, const struct pp_key *key)
{
    size_t n;
    const struct pp_named *list = pp_controller_presets(ui->controller, &n);
    if (key->type != PP_KEY_DELETE || m->selected >= n)
        return false;
    pp_menu_confirm(ui, "y deletes the preset, any other key keeps it: \"%s\"", list[m->selected].name);
    return true;
}

static void presets_confirmed(struct pp_ui *ui, struct pp_menu *m)
{
    pp_controller_drop_preset(ui->controller, m->selected);
}

const struct pp_menu_class pp_menu_presets = {
    .title = "Presets of adapters", .parent = &pp_menu_lora, .columns = true,
    .hint = "Enter uses   Del deletes   Esc goes back",
    .empty = "There are none; p in the list of adapters (F3) makes one.",
    .count = presets_count, .row = presets_row, .choose = presets_choose, .key = presets_key,
    .confirmed = presets_confirmed,
};
