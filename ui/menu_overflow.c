/* menu_overflow.c - asks what to do when the context is full. Opens by itself when the user has to choose. */
#include <stdio.h>

#include "ui/state.h"

static const struct {
    const char *text;
    enum pp_overflow how;
} choices[] = {
    {"Drop the oldest turns (shift)", PP_OVERFLOW_SHIFT},
    {"Summarise the oldest turns (summarise)", PP_OVERFLOW_SUMMARISE},
    {"Drop the oldest turns, fast but inexact (slide)", PP_OVERFLOW_SLIDE},
    {"Stop here", PP_OVERFLOW_STOP},
};
enum { COUNT = sizeof choices / sizeof *choices };

static size_t count(struct pp_ui *ui, struct pp_menu *m)
{
    (void)ui, (void)m;
    return COUNT;
}

static void row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    (void)ui, (void)m;
    snprintf(row->left, sizeof row->left, "%s", i < COUNT ? choices[i].text : "");
}

static void choose(struct pp_ui *ui, struct pp_menu *m)
{
    enum pp_overflow how = choices[m->selected < COUNT ? m->selected : 0].how;
    pp_menu_close(ui);
    pp_controller_overflow(ui->controller, how);
    pp_transcript_end(ui);
}

/* The menu may open just as the user begins to type. Text goes to the input line, so that the choice is not made by
 * accident. */
static bool key(struct pp_ui *ui, struct pp_menu *m, const struct pp_key *key)
{
    const bool letter = key->type == PP_KEY_CHAR && key->cp >= 0x20 && !(key->mods & PP_MOD_ALT);
    (void)m;
    if (!letter && key->type != PP_KEY_PASTE)
        return false;
    pp_menu_close(ui);
    if (letter) /* a paste is passed on by the caller */
        pp_ui_key(ui, key);
    return true;
}

const struct pp_menu_class pp_menu_overflow = {
    .title = "The context is full", .hint = "Enter chooses   Esc stops here   /overflow sets a default",
    .count = count, .row = row, .choose = choose, .key = key,
};
