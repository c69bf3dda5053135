/* menu_help.c - F1: keys and slash commands. */
#include <stdio.h>

#include "ui/state.h"

static const struct {
    const char *keys, *text; /* keys NULL: a heading */
} lines[] = {
    {NULL, "Writing"},
    {"Enter", "send"},
    {"Alt-Enter, Ctrl-J", "begin a new line"},
    {"Up, Down", "move between lines; earlier messages"},
    {"Ctrl-R", "search earlier messages"},
    {"Ctrl-G", "write in your own editor"},
    {"Tab", "complete a slash command"},
    {NULL, "Answers"},
    {"Esc, Ctrl-C", "stop; what is there stays"},
    {"Shift-Left, Shift-Right", "other answers of this branch"},
    {"Ctrl-O", "the model's thinking in full, or folded"},
    {"F9, Alt-M", "Markdown formatted or as written"},
    {NULL, "Moving"},
    {"PgUp, PgDn", "a page"},
    {"Shift-Up, Shift-Down", "a line (also with Ctrl)"},
    {"Home, End", "the beginning, the end (when nothing is typed)"},
    {NULL, "Program"},
    {"F2", "conversations"},
    {"F3", "LoRA adapters"},
    {"F4, F5", "template, persona"},
    {"F6, F8", "draft model, parameters"},
    {"F7", "theme"},
    {"Alt-1 to Alt-0", "the same as F1 to F10"},
    {"Ctrl-L, Ctrl-Z", "draw anew, suspend"},
    {"F10, Ctrl-D, Ctrl-C twice", "leave; everything is saved"},
    {NULL, "Commands"},
};
enum { LINES = sizeof lines / sizeof lines[0] };

static size_t count(struct pp_ui *ui, struct pp_menu *m)
{
    const char *name, *args, *text;
    size_t n = 0;
    (void)ui, (void)m;
    while (pp_slash_info(n, &name, &args, &text))
        n++;
    return LINES + n;
}

static void row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    const char *name, *args, *text;
    (void)ui, (void)m;
    if (i < LINES) {
        row->heading = !lines[i].keys;
        if (lines[i].keys)
            snprintf(row->left, sizeof row->left, "%-26s %s", lines[i].keys, lines[i].text);
        else
            snprintf(row->left, sizeof row->left, "%s", lines[i].text);
    } else if (pp_slash_info(i - LINES, &name, &args, &text)) {
        char usage[160];
        snprintf(usage, sizeof usage, "/%s %s", name, args);
        snprintf(row->left, sizeof row->left, "%-26s %s", usage, text);
    }
}

const struct pp_menu_class pp_menu_help = {
    .title = "Help", .hint = "Up Down PgUp PgDn scroll   Esc closes", .empty = "", .count = count, .row = row,
};
