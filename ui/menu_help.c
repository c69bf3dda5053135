/* menu_help.c - F1: keys and slash commands. */
#include <stdio.h>
#include <string.h>

#include "ui/menu.h"
#include "ui/state.h"
#include "ui/wrap.h"

static const struct {
    const char *keys, *text; /* keys NULL: a heading */
} lines[] = {
    {NULL, "Writing"},
    {"Enter", "send"},
    {"Alt-Enter, Ctrl-J", "start a new line"},
    {"Up, Down", "move between lines; earlier messages"},
    {"Ctrl-R", "search earlier messages"},
    {"Ctrl-G", "edit in $EDITOR"},
    {"Tab", "complete commands, names and paths"},
    {NULL, "Answers"},
    {"Esc, Ctrl-C", "stop the answer and keep what is there"},
    {"Shift-Left, Shift-Right", "other answers, other branches"},
    {"Ctrl-O", "show or fold the model's thinking"},
    {"F9, Alt-M", "Markdown formatted or plain"},
    {NULL, "Moving"},
    {"PgUp, PgDn", "a page"},
    {"Ctrl-PgUp, Ctrl-PgDn", "a message (also with Alt)"},
    {"Shift-Up, Shift-Down", "a line (also with Ctrl)"},
    {"the wheel, with --mouse", "three lines"},
    {"Home, End", "start, end (when the line is empty)"},
    {"/find WORDS", "to the newest message with these words"},
    {NULL, "Program"},
    {"F2", "conversations"},
    {"F3", "LoRA adapters"},
    {"F4, F5", "template, persona"},
    {"F6, F8", "draft model, parameters"},
    {"F7", "theme"},
    {"Alt-1 to Alt-0", "the same as F1 to F10"},
    {"Ctrl-L, Ctrl-Z", "redraw, suspend"},
    {"F10, Ctrl-D, Ctrl-\\, Ctrl-C twice", "leave; everything is saved"},
    {NULL, "Commands"},
};
enum { LINES = sizeof lines / sizeof lines[0] };

enum {
    KEYS = 27,                 /* width of the column of keys, including its gap */
    INDENT = 4, COLUMNS = 56   /* narrower screens show the texts below their keys, indented */
};

/* Generates the lines of the list, counting them in n; fills in the row of line `wanted`. */
struct list {
    int width;
    size_t n, wanted;
    struct pp_menu_row *row; /* or NULL */
};

static void add(struct list *l, const char *before, int indent, const char *text, size_t n)
{
    if (l->row && l->n == l->wanted)
        snprintf(l->row->left, sizeof l->row->left, "%-*s%.*s", indent, before, (int)n, text);
    l->n++;
}

/* Adds wrapped text. The first line begins with `before`, the others are indented. */
static void add_wrapped(struct list *l, const char *before, int indent, const char *text)
{
    const size_t n = strlen(text);
    for (size_t at = 0; at < n; before = "") {
        const struct pp_wrapped w = pp_wrap(text, n, at, l->width - indent, true);
        add(l, before, indent, text + at, w.end - at);
        at = w.next;
    }
}

static void add_entry(struct list *l, const char *keys, const char *text)
{
    const bool columns = l->width >= COLUMNS;
    if (columns && strlen(keys) < KEYS) {
        add_wrapped(l, keys, KEYS, text);
    } else {
        add_wrapped(l, "", 0, keys);
        add_wrapped(l, "", columns ? KEYS : INDENT, text);
    }
}

static void add_heading(struct list *l, const char *text)
{
    if (l->row && l->n == l->wanted)
        l->row->heading = true;
    add(l, "", 0, text, strlen(text));
}

static size_t list(const struct pp_ui *ui, size_t wanted, struct pp_menu_row *row)
{
    struct list l = {.width = pp_menu_width(ui), .wanted = wanted, .row = row};
    const char *name, *args, *text;
    for (size_t i = 0; i < LINES; i++)
        if (lines[i].keys)
            add_entry(&l, lines[i].keys, lines[i].text);
        else
            add_heading(&l, lines[i].text);
    for (size_t i = 0; pp_slash_info(i, &name, &args, &text); i++) {
        char usage[160];
        snprintf(usage, sizeof usage, "/%s%s%s", name, *args ? " " : "", args);
        add_entry(&l, usage, text);
    }
    return l.n;
}

static size_t count(struct pp_ui *ui, struct pp_menu *m)
{
    (void)m;
    return list(ui, 0, NULL);
}

static void row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    (void)m;
    list(ui, i, row);
}

const struct pp_menu_class pp_menu_help = {
    .title = "Help", .hint = "Up Down PgUp PgDn scroll   Esc closes", .empty = "", .count = count, .row = row,
};
