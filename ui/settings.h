/* settings.h - what the screen remembers from one start to the next: $XDG_STATE_HOME/pippin/ui.ini (format:
 * pippin-formats(5)). UI thread. */
#ifndef PP_UI_SETTINGS_H
#define PP_UI_SETTINGS_H

#include <stdbool.h>

struct pp_settings {
    char theme[64];  /* "" while none was chosen */
    bool raw;        /* show answers without Markdown */
    bool tint;       /* mark the parts of answers that were drafted */
};

/* Fills *s; a missing file gives the defaults, an unreadable line is skipped. */
void pp_settings_load(const char *path, struct pp_settings *s);

#endif
