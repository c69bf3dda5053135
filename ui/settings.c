#include "ui/settings.h"

#include <ini.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/whole_io.h"

static int on_entry(void *user, const char *section, const char *name, const char *value)
{
    struct pp_settings *s = user;
    (void)section;
    if (strcmp(name, "theme") == 0 && strlen(value) < sizeof s->theme)
        strcpy(s->theme, value);
    else if (strcmp(name, "raw") == 0)
        s->raw = strcmp(value, "yes") == 0;
    else if (strcmp(name, "tint") == 0)
        s->tint = strcmp(value, "yes") == 0;
    return 1;
}

void pp_settings_load(const char *path, struct pp_settings *s)
{
    *s = (struct pp_settings){0};
    FILE *f = pp_open_regular(path);
    if (!f)
        return;
    ini_parse_file(f, on_entry, s);
    fclose(f);
}
