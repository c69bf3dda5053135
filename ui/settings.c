#include "ui/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    ini_parse_file(f, on_entry, s);
    fclose(f);
}

enum pp_code pp_settings_save(const char *path, const struct pp_settings *s, struct pp_error *err)
{
    char temporary[1100];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return pp_fail(err, PP_ERR_IO, "%s cannot be written: %s.", path, strerror(errno));
    int written = dprintf(fd, "theme = %s\nraw = %s\ntint = %s\n", s->theme, s->raw ? "yes" : "no",
                          s->tint ? "yes" : "no");
    if (close(fd) != 0 || written < 0 || rename(temporary, path) != 0) {
        int error = errno;
        unlink(temporary);
        return pp_fail(err, PP_ERR_IO, "%s cannot be written: %s.", path, strerror(error));
    }
    return PP_OK;
}
