/* field.h - one short line of text to type, in menus: a search, a new title, a number. UI thread. */
#ifndef PP_UI_FIELD_H
#define PP_UI_FIELD_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "ui/input.h"
#include "ui/style.h"

struct pp_field {
    char text[1024];
    size_t len, cursor; /* bytes */
    size_t most;        /* of them; 0: as many as there is room for */
    bool full;          /* there was no room for all that the last key brought */
};

/* The text, cut between characters if there is no room for all, with the cursor behind it. `most` stays. */
void pp_field_set(struct pp_field *f, const char *text);
/* Makes the path that is typed as long as all paths that begin so agree. *several (may be NULL): their names, where
 * there are some to choose from and nothing could be added. */
void pp_field_complete_path(struct pp_field *f, struct pp_buf *several);
/* True if the key was one of editing; *changed: the text is another. The lines of a paste are joined by blanks. */
bool pp_field_key(struct pp_field *f, const struct pp_key *key, bool *changed);
/* Draws it in w cells; returns the cursor's column on the screen. */
int pp_field_draw(const struct pp_field *f, int y, int x, int w, pp_style style);

#endif
