/* menu_lora.c - F3: switching adapters, their strength and order, what they are and cost; saving a set by name. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/adapter_mix.h"
#include "src/figures.h"
#include "src/paths.h"
#include "ui/adapter_words.h"
#include "ui/state.h"

enum { ROOM_FOR_FILES = 60 }; /* narrower screens do not show the files */
enum question { ASK_STRENGTH, ASK_NOTE, ASK_PATH, ASK_PRESET };

static const float step = 0.05f;

static const struct pp_adapter_entry *adapter_at(struct pp_ui *ui, size_t i)
{
    size_t n;
    const struct pp_adapter_entry *list = pp_controller_adapters(ui->controller, &n);
    return i < n ? &list[i] : NULL;
}

static void close_menu(struct pp_ui *ui, struct pp_menu *m)
{
    (void)ui;
    pp_free(m->data);
}

static size_t count(struct pp_ui *ui, struct pp_menu *m)
{
    size_t n;
    (void)m;
    pp_controller_adapters(ui->controller, &n);
    return n;
}

static void open_menu(struct pp_ui *ui, struct pp_menu *m)
{
    (void)m;
    pp_controller_rescan(ui->controller);
}

/* The file of an adapter, with as many parent folders as distinguish it from others in the list. */
static const char *file_of(struct pp_ui *ui, const struct pp_adapter_entry *a)
{
    const char *file = pp_base_name(a->path);
    const struct pp_adapter_entry *other;
    for (size_t k = 0; (other = adapter_at(ui, k)); k++) {
        const char *end = pp_path_end(a->path, other->path);
        file = end < file ? end : file;
    }
    return file;
}

static void row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    const struct pp_adapter_entry *a = adapter_at(ui, i);
    (void)m;
    if (!a)
        return;
    snprintf(row->left, sizeof row->left, "[%c] %s", a->on ? 'x' : ' ', a->name);
    const struct pp_adapter_entry *other = adapter_at(ui, pp_controller_adapter_conflict(ui->controller, i));
    row->dim = a->fit == PP_FIT_NO || other;
    if (a->fit == PP_FIT_NO)
        snprintf(row->right, sizeof row->right, "cannot be used");
    else if (other)
        pp_utf8_print(row->right, sizeof row->right, "conflicts with %.40s", other->name);
    else if (ui->at.cols >= ROOM_FOR_FILES)
        pp_utf8_print(row->right, sizeof row->right, "%.100s  %+.2f", file_of(ui, a), (double)a->scale);
    else
        snprintf(row->right, sizeof row->right, "%+.2f", (double)a->scale);
}

/* --- details of the selected row ---------------------------------------------------------------------------- */

static void describe_speed(struct pp_ui *ui, const struct pp_adapter_entry *a, char *line, size_t cap)
{
    float without = pp_controller_plain_speed(ui->controller);
    double with = a->decode_ns ? (double)a->decode_tokens * 1e9 / (double)a->decode_ns : 0;
    if (with > 0 && without > 0)
        snprintf(line, cap, "%s tokens/s with it, %s without adapters", pp_rate(with).text,
                 pp_rate((double)without).text);
    else if (with > 0)
        snprintf(line, cap, "%s tokens/s with it", pp_rate(with).text);
    else
        snprintf(line, cap, "no speed measured yet");
}

static void details(struct pp_ui *ui, struct pp_menu *m, char lines[][PP_MENU_DETAIL])
{
    const struct pp_adapter_entry *a = adapter_at(ui, m->selected);
    if (!a)
        return;
    const struct pp_adapter_entry *other = adapter_at(ui, pp_controller_adapter_conflict(ui->controller, m->selected));
    int n = 0;
    if (other)
        pp_utf8_print(lines[n++], PP_MENU_DETAIL, "conflicts with %.100s: both change the same matrix, one as an IA3 "
                                                  "of an input that other matrices share", other->name);
    else
        pp_adapter_describe(a, lines[n++], PP_MENU_DETAIL);
    pp_utf8_print(lines[n++], PP_MENU_DETAIL, a->note[0] ? "note: %s" : "no note%s", a->note);
    if (a->fit != PP_FIT_NO && !other)
        describe_speed(ui, a, lines[n++], PP_MENU_DETAIL);
    struct pp_switch_cost over = pp_controller_switch_cost(ui->controller, m->selected),
                          now = pp_controller_switch_cost(ui->controller, SIZE_MAX);
    if (a->fit == PP_FIT_YES)
        pp_adapter_describe_cost(a->on ? "switched off" : "switched on", &over, lines[n++], PP_MENU_DETAIL);
    pp_adapter_describe_cost("as it is", &now, lines[n], PP_MENU_DETAIL);
}

/* --- keys --------------------------------------------------------------------------------------------------- */

/* Steps to a multiple of the step size, so that rounding errors do not add up. */
static void change(struct pp_ui *ui, size_t i, int steps)
{
    const struct pp_adapter_entry *a = adapter_at(ui, i);
    float scale = roundf(a->scale / step + (float)steps) * step;
    pp_controller_set_adapter(ui->controller, i, a->on, pp_adapter_strength(scale));
}

static bool begins_number(const struct pp_key *key)
{
    bool digit = key->cp >= '0' && key->cp <= '9';
    return digit || key->cp == '.' || key->cp == '-';
}

static void ask(struct pp_ui *ui, struct pp_menu *m, enum question what, const char *words, const char *text)
{
    m->asking = what;
    pp_menu_ask(ui, words, text);
}

/* Remembers the adapter of a question by its path, since the list may have changed by the time of the answer. */
static bool remember_path(struct pp_ui *ui, struct pp_menu *m, const struct pp_adapter_entry *a)
{
    pp_free(m->data);
    m->data = pp_strdup(a->path);
    if (!m->data)
        pp_ui_notice(ui, true, "out of memory");
    return m->data;
}

static void ask_note(struct pp_ui *ui, struct pp_menu *m, const struct pp_adapter_entry *a)
{
    if (!remember_path(ui, m, a))
        return;
    ask(ui, m, ASK_NOTE, "Note:", a->note);
    m->field.max_len = sizeof a->note - 1;
}

static void ask_strength(struct pp_ui *ui, struct pp_menu *m, const struct pp_adapter_entry *a, char first)
{
    if (remember_path(ui, m, a))
        ask(ui, m, ASK_STRENGTH, "Scale:", (char[2]){first});
}

static void ask_path(struct pp_ui *ui, struct pp_menu *m, const char *text)
{
    ask(ui, m, ASK_PATH, "File or folder (Tab completes):", text);
}

void pp_menu_lora_refused(struct pp_ui *ui, const char *path)
{
    struct pp_menu *m = &ui->menu;
    if (m->cls != &pp_menu_lora || m->mode != PP_MENU_LIST || !m->being_checked)
        return;
    m->being_checked = false;
    ask_path(ui, m, path);
    ui->dirty |= PP_DRAW_MENU;
}

static bool letter(struct pp_ui *ui, struct pp_menu *m, const struct pp_key *key)
{
    const struct pp_adapter_entry *a = adapter_at(ui, m->selected);
    if (key->cp == 'a')
        ask_path(ui, m, "");
    else if (key->cp == 'l')
        pp_menu_open(ui, &pp_menu_presets);
    else if (!a)
        return false;
    else if (key->cp == ' ')
        pp_controller_set_adapter(ui->controller, m->selected, !a->on, a->scale);
    else if (key->cp == 'n')
        ask_note(ui, m, a);
    else if (key->cp == 'p')
        ask(ui, m, ASK_PRESET, "What is on, as preset:", "");
    else if (begins_number(key))
        ask_strength(ui, m, a, (char)key->cp);
    else
        return false;
    return true;
}

static bool key(struct pp_ui *ui, struct pp_menu *m, const struct pp_key *key)
{
    bool up = key->type == PP_KEY_UP, down = key->type == PP_KEY_DOWN;
    if (key->type == PP_KEY_CHAR && !key->mods)
        return letter(ui, m, key);
    if (!adapter_at(ui, m->selected))
        return false;
    if ((up || down) && (key->mods & PP_MOD_SHIFT)) {
        m->selected = pp_controller_move_adapter(ui->controller, m->selected, up ? -1 : 1);
        return true;
    }
    if (key->type == PP_KEY_LEFT || key->type == PP_KEY_RIGHT) {
        change(ui, m->selected, key->type == PP_KEY_LEFT ? -1 : 1);
        return true;
    }
    return false;
}

/* False, with a notice: the text is not a valid strength. */
static bool set_strength(struct pp_ui *ui, size_t i, const char *text)
{
    float scale;
    if (!pp_adapter_strength_read(text, &scale)) {
        pp_ui_notice(ui, true, "a scale is a number from -%d to %d%s", PP_ADAPTER_MAX_STRENGTH, PP_ADAPTER_MAX_STRENGTH,
                     pp_options_point(text));
        return false;
    }
    pp_controller_set_adapter(ui->controller, i, true, scale);
    return true;
}

/* The index of the adapter that the question was about; false, with a notice: it is no longer in the list. */
static bool find_remembered(struct pp_ui *ui, const struct pp_menu *m, size_t *i)
{
    const struct pp_adapter_entry *a;
    for (*i = 0; (a = adapter_at(ui, *i)); ++*i)
        if (strcmp(a->path, m->data) == 0)
            return true;
    pp_ui_notice(ui, true, "this adapter is no longer in the list");
    return false;
}

static bool answered(struct pp_ui *ui, struct pp_menu *m, const char *text)
{
    size_t i;
    switch ((enum question)m->asking) {
    case ASK_PATH: return m->being_checked = !*text || pp_controller_add_adapter(ui->controller, text);
    case ASK_PRESET: return !*text || pp_controller_save_preset(ui->controller, text);
    case ASK_STRENGTH: return !*text || !find_remembered(ui, m, &i) || set_strength(ui, i, text);
    case ASK_NOTE:
        if (find_remembered(ui, m, &i))
            pp_controller_note_adapter(ui->controller, i, text);
        break;
    }
    return true;
}

static void complete(struct pp_ui *ui, struct pp_menu *m)
{
    if (m->asking == ASK_PATH)
        pp_menu_complete_path(ui);
}

const struct pp_menu_class pp_menu_lora = {
    .title = "LoRA adapters",
    .hint = "Space on/off  ←→0-9 scale  S-↑↓ order  n note  a add  p l presets",
    .empty = "No adapters found next to the model; a adds one.", .n_details = 5, .open = open_menu, .close = close_menu,
    .count = count, .row = row, .key = key, .answered = answered, .details = details, .complete = complete,
};
