/* fuzz_config.c - the bytes as pippin.conf and as a theme. */
#include <string.h>

#include "src/config.h"
#include "tests/hostile.h"
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
        if (!pp_config_get(c, e->section, e->key))
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    as_config(data, size);
    as_theme(data, size);
    return 0;
}
