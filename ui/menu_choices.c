/* menu_choices.c - menus of exclusive choices: templates (F4), personas (F5), presets of adapters (l in F3). */
#include <stdio.h>

#include "ui/state.h"

static void open_templates(struct pp_ui *ui, struct pp_menu *m)
{
    (void)m;
    pp_controller_rescan(ui->controller);
}

static void choose_template(struct pp_ui *ui, struct pp_menu *m)
{
    pp_controller_set_template(ui->controller, m->selected);
    pp_menu_close(ui);
}

const struct pp_menu_class pp_menu_templates = {
    .title = "Chat template", .hint = "Enter chooses   Esc closes", .empty = "The model has no chat template.",
    .columns = true, .open = open_templates,
    .named = pp_controller_templates, .choose = choose_template,
};

static void choose_persona(struct pp_ui *ui, struct pp_menu *m)
{
    pp_controller_set_persona(ui->controller, m->selected);
    pp_menu_close(ui);
}

/* The system prompt, which does not fit beside its name. */
static void persona_details(struct pp_ui *ui, struct pp_menu *m, char lines[][PP_MENU_DETAIL])
{
    size_t n;
    const struct pp_named *list = pp_controller_personas(ui->controller, &n);
    if (m->selected < n)
        snprintf(lines[0], PP_MENU_DETAIL, "%s", list[m->selected].detail);
}

const struct pp_menu_class pp_menu_personas = {
    .title = "Persona", .columns = true, .hint = "Enter chooses   Esc closes   /persona save NAME adds one",
    .empty = "There are no personas.",
    .named = pp_controller_personas, .choose = choose_persona, .n_details = 1, .details = persona_details,
};

/* --- presets of adapters ------------------------------------------------------------------------------------ */

static void use_preset(struct pp_ui *ui, struct pp_menu *m)
{
    if (pp_controller_use_preset(ui->controller, m->selected))
        pp_menu_open(ui, &pp_menu_lora);
}

static bool key_in_presets(struct pp_ui *ui, struct pp_menu *m, const struct pp_key *key)
{
    size_t n;
    const struct pp_named *list = pp_controller_presets(ui->controller, &n);
    if (key->type != PP_KEY_DELETE || m->selected >= n)
        return false;
    snprintf(m->name, sizeof m->name, "%s", list[m->selected].name);
    pp_menu_confirm(ui, "y deletes the preset, any other key keeps it: \"%s\"", m->name);
    return true;
}

static void drop_preset(struct pp_ui *ui, struct pp_menu *m)
{
    pp_controller_drop_preset(ui->controller, m->name);
}

const struct pp_menu_class pp_menu_presets = {
    .title = "Adapter presets", .parent = &pp_menu_lora, .columns = true,
    .hint = "Enter uses   Del deletes   Esc goes back",
    .empty = "No presets yet; p in the list of adapters (F3) saves one.",
    .named = pp_controller_presets, .choose = use_preset, .key = key_in_presets, .confirmed = drop_preset,
};
