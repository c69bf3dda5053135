/* field.h - a short one-line text field in menus: a search, a new title, a number. UI thread. */
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
    size_t max_len;     /* the limit in bytes; 0: the size of the buffer */
    bool full;          /* the last key's text did not fit */
};

/* Sets the text, truncated between characters if it is too long, and the cursor after it. `max_len` stays. */
void pp_field_set(struct pp_field *f, const char *text);
/* Completes the path that is typed as far as it is unambiguous. *several (may be NULL): names of the candidates, if
 * there are several and nothing could be added. */
void pp_field_complete_path(struct pp_field *f, struct pp_buf *several);
/* True if the field used the key; *changed: the text has changed. The lines of a paste are joined by spaces. */
bool pp_field_key(struct pp_field *f, const struct pp_key *key, bool *changed);
/* Draws it in w cells; returns the cursor's column on the screen. */
int pp_field_draw(const struct pp_field *f, int y, int x, int w, pp_style style);

#endif
