/* menu_themes.c - F7: themes, previewed while moving through the list. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "ui/state.h"

struct themes {
    char (*ids)[64];
    size_t n;
    char before[64]; /* the theme to restore on Esc */
    bool complained; /* a notice about the previewed theme is shown */
};

static void open_menu(struct pp_ui *ui, struct pp_menu *m)
{
    struct pp_error err;
    struct themes *t = pp_calloc(1, sizeof *t);
    m->data = t;
    if (!t)
        return;
    snprintf(t->before, sizeof t->before, "%s", ui->theme.id);
    if (pp_theme_list(ui->paths, &t->ids, &t->n, &err) != PP_OK)
        pp_ui_notice(ui, true, "%s", err.text);
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->ids[i], ui->theme.id) == 0)
            m->selected = i;
}

static void close_menu(struct pp_ui *ui, struct pp_menu *m)
{
    struct themes *t = m->data;
    (void)ui;
    if (t)
        pp_free(t->ids);
    pp_free(t);
}

static size_t count(struct pp_ui *ui, struct pp_menu *m)
{
    const struct themes *t = m->data;
    (void)ui;
    return t ? t->n : 0;
}

static void row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    const struct themes *t = m->data;
    snprintf(row->left, sizeof row->left, "%s", t->ids[i]);
    row->current = strcmp(t->ids[i], t->before) == 0;
    if (strcmp(t->ids[i], ui->theme.id) == 0)
        snprintf(row->right, sizeof row->right, "%s", ui->theme.title);
}

/* Previews a theme. A notice about the one before is removed. */
static void preview(struct pp_ui *ui, struct themes *t, const char *id)
{
    if (t->complained)
        pp_ui_clear_notice(ui);
    t->complained = !pp_ui_use_theme(ui, id);
}

static void moved(struct pp_ui *ui, struct pp_menu *m)
{
    struct themes *t = m->data;
    preview(ui, t, t->ids[m->selected]);
}

static void choose(struct pp_ui *ui, struct pp_menu *m)
{
    const struct themes *t = m->data;
    pp_ui_save_theme(ui, t->ids[m->selected]);
    pp_menu_close(ui);
}

static void cancel(struct pp_ui *ui, struct pp_menu *m)
{
    struct themes *t = m->data;
    if (t && (t->complained || strcmp(t->before, ui->theme.id) != 0))
        preview(ui, t, t->before);
}

const struct pp_menu_class pp_menu_themes = {
    .title = "Theme",
    .hint = "Up Down previews   Enter keeps it   Esc goes back",
    .empty = "No theme files were found.",
    .open = open_menu, .close = close_menu, .count = count, .row = row,
    .moved = moved, .choose = choose, .cancel = cancel,
};
