/* fuzz_config.c - the bytes as each of the program's small files: pippin.conf, a theme, the screen's settings, the
 * input line's history, its keys, and a text for /read. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/config.h"
#include "src/options.h"
#include "tests/hostile.h"
#include "ui/history.h"
#include "ui/inputrc.h"
#include "ui/settings.h"
#include "ui/text_file.h"
#include "ui/theme.h"

static void as_config(const uint8_t *data, size_t size)
{
    struct pp_config *c;
    struct pp_error err;
    const char *name, *system;
    if (pp_config_load(hostile_file(0, data, size), &c, &err))
        return;
    for (size_t i = 0; i < pp_config_count(c); i++) {
        const struct pp_config_entry *e = pp_config_at(c, i);
        if (!e->section || !e->key || !e->value || e->line < 1)
            __builtin_trap();
    }
    for (size_t i = 0; pp_config_persona(c, i, &name, &system); i++)
        if (!name || !system)
            __builtin_trap();
    pp_config_free(c);
}

static void as_theme(const uint8_t *data, size_t size)
{
    static const int terminals[] = {8, 16, 88, 256, 1 << 24};
    struct pp_theme t;
    struct pp_error err;
    FILE *f = fopen(hostile_file(0, data, size), "r");
    if (!f)
        return;
    pp_theme_parse(f, "fuzz.theme", &t, &err);
    fclose(f);
    if (!memchr(t.id, 0, sizeof t.id) || !memchr(t.title, 0, sizeof t.title))
        __builtin_trap();
    for (int slot = 0; slot < PP_SLOTS; slot++)
        for (size_t i = 0; i < sizeof terminals / sizeof terminals[0]; i++) {
            int fg = pp_color_reduce(t.looks[slot].fg, terminals[i]),
                bg = pp_color_reduce(t.looks[slot].bg, terminals[i]);
            if (fg < -1 || fg >= terminals[i] || bg < -1 || bg >= terminals[i])
                __builtin_trap();
        }
}

static void as_settings(const uint8_t *data, size_t size)
{
    struct pp_settings s;
    pp_settings_load(hostile_file(0, data, size), &s);
    if (!memchr(s.theme, 0, sizeof s.theme))
        __builtin_trap();
}

enum { KEPT = 4 };

/* The first entries, and how many there were. */
struct entries {
    char *text[KEPT];
    size_t n;
};

static void on_entry(void *user, const char *text)
{
    struct entries *e = user;
    if (strlen(text) > 2 * PP_HISTORY_ENTRY_MAX)
        __builtin_trap();
    if (*text && e->n < KEPT)
        e->text[e->n] = pp_strdup(text);
    e->n += *text != 0;
}

static void free_entries(struct entries *e)
{
    for (size_t i = 0; i < KEPT; i++)
        pp_free(e->text[i]);
}

/* Entries that are read can be written and read again. */
static void as_history(const uint8_t *data, size_t size)
{
    struct entries e = {.n = 0}, again = {.n = 0};
    struct pp_error err;
    if (pp_history_load(hostile_file(0, data, size), on_entry, &e, &err))
        __builtin_trap();
    const char *copy = hostile_file(1, "", 0);
    size_t n = 0;
    for (size_t i = 0; i < KEPT && i < e.n; i++) {
        if (pp_history_append(copy, e.text[i], &err))
            __builtin_trap();
        n += strlen(e.text[i]) <= PP_HISTORY_ENTRY_MAX;
    }
    if (pp_history_load(copy, on_entry, &again, &err) || again.n != n)
        __builtin_trap();
    for (size_t i = 0; n == e.n && i < n; i++)
        if (strcmp(e.text[i], again.text[i]) != 0)
            __builtin_trap();
    free_entries(&e);
    free_entries(&again);
}

/* A file of keys may include others, and itself. */
static void as_keys(const uint8_t *data, size_t size)
{
    struct pp_buf flat = {0};
    struct pp_error err;
    (void)pp_inputrc_check(hostile_file(0, data, size), &flat, &err);
    if (flat.bad)
        __builtin_trap();
    pp_buf_free(&flat);
}

/* Sets every option that pippin.conf may have, for two commands. They keep little memory until the program ends. */
static void as_options(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"pippin.conf", NULL};
    static struct pp_options o;
    static struct pp_paths paths;
    struct pp_error err;
    snprintf(paths.config, sizeof paths.config, "%s", hostile_folder(names));
    hostile_file(0, data, size);
    for (int i = 0; i < 2; i++) {
        memset(&o, 0, sizeof o);
        (void)pp_options_parse(2, (char *[]){"pippin", i ? "bench" : "chat", NULL}, &paths, &o, &err);
    }
}

static void as_text(const uint8_t *data, size_t size)
{
    struct pp_error err;
    char *text;
    if (pp_text_file_read(hostile_file(0, data, size), &text, &err))
        return;
    if (strlen(text) > size + 2 || !pp_utf8_valid(text, strlen(text)))
        __builtin_trap();
    pp_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    as_config(data, size);
    as_theme(data, size);
    as_settings(data, size);
    as_history(data, size);
    as_keys(data, size);
    as_options(data, size);
    as_text(data, size);
    return 0;
}
