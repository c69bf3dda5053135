/* menu_lora.c - F3: adapters on and off, and their strength. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ui/state.h"

enum { ROOM_FOR_FILES = 60 }; /* columns */

static const float step = 0.05f, most = 2.0f;

static const struct pp_adapter_entry *at(struct pp_ui *ui, size_t i)
{
    size_t n;
    const struct pp_adapter_entry *list = pp_controller_adapters(ui->controller, &n);
    return i < n ? &list[i] : NULL;
}

static size_t count(struct pp_ui *ui, struct pp_menu *m)
{
    size_t n;
    (void)m;
    pp_controller_adapters(ui->controller, &n);
    return n;
}

static void row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    const struct pp_adapter_entry *a = at(ui, i);
    (void)m;
    if (!a)
        return;
    snprintf(row->left, sizeof row->left, "[%c] %s", a->on ? 'x' : ' ', a->name);
    const char *slash = strrchr(a->path, '/'), *file = slash ? slash + 1 : a->path;
    if (ui->at.cols >= ROOM_FOR_FILES)
        snprintf(row->right, sizeof row->right, "%.100s  %+.2f", file, (double)a->scale);
    else
        snprintf(row->right, sizeof row->right, "%+.2f", (double)a->scale);
}

/* To the next multiple of a step, so that no rounding errors add up. */
static void change(struct pp_ui *ui, size_t i, int steps)
{
    const struct pp_adapter_entry *a = at(ui, i);
    float scale = roundf(a->scale / step + (float)steps) * step;
    pp_controller_set_adapter(ui->controller, i, a->on, fminf(fmaxf(scale, -most), most));
}

static bool begins_number(const struct pp_key *key)
{
    bool digit = key->cp >= '0' && key->cp <= '9';
    return key->type == PP_KEY_CHAR && !key->mods && (digit || key->cp == '.' || key->cp == '-');
}

static bool key(struct pp_ui *ui, struct pp_menu *m, const struct pp_key *key)
{
    const struct pp_adapter_entry *a = at(ui, m->selected);
    if (!a)
        return false;
    if (key->type == PP_KEY_LEFT || key->type == PP_KEY_RIGHT) {
        change(ui, m->selected, key->type == PP_KEY_LEFT ? -1 : 1);
        return true;
    }
    if (key->type == PP_KEY_CHAR && key->cp == ' ') {
        pp_controller_set_adapter(ui->controller, m->selected, !a->on, a->scale);
        return true;
    }
    if (begins_number(key)) {
        char first[8] = {(char)key->cp};
        pp_menu_ask(ui, "Strength:", first);
        return true;
    }
    return false;
}

static void answered(struct pp_ui *ui, struct pp_menu *m, const char *text)
{
    char *end;
    float scale = strtof(text, &end);
    const struct pp_adapter_entry *a = at(ui, m->selected);
    if (!a || *end || !(scale >= -most && scale <= most))
        pp_ui_notice(ui, true, "A strength is a number from -2 to 2.");
    else
        pp_controller_set_adapter(ui->controller, m->selected, true, scale);
}

const struct pp_menu_class pp_menu_lora = {
    .title = "LoRA adapters", .hint = "Space on/off   Left Right strength   0-9 type it   Enter, Esc close",
    .empty = "No adapter lies beside the model; --lora FILE names one.",
    .count = count, .row = row, .key = key, .answered = answered,
};
