/* view_reasoning.h - the reasoning of a model, above its answer: a heading and, when it is open, the reasoning
 * itself.
 *
 * It is open while the model thinks, and folded to its heading once the answer begins, unless the user wants to see
 * all of it, or none. UI thread. */
#ifndef PP_UI_VIEW_REASONING_H
#define PP_UI_VIEW_REASONING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ui/document.h"

struct pp_chat_message;

enum pp_reasoning_view { PP_REASONING_FOLD, PP_REASONING_SHOW, PP_REASONING_HIDE, PP_REASONING_VIEWS };
int pp_reasoning_view_by_name(const char *name); /* "fold", "show", "hide"; -1: no such name */

struct pp_reasoning_lines {
    int64_t id;          /* of the message */
    uint64_t revision;
    struct pp_document doc;
};
void pp_reasoning_free(struct pp_reasoning_lines *r);

/* The text of the heading: "thought for 312 tokens, 1.2 s", "thinking, 312 tokens". */
void pp_reasoning_heading(const struct pp_chat_message *m, char *out, size_t cap);
/* Whether the reasoning is shown, not only its heading. */
bool pp_reasoning_open(const struct pp_chat_message *m, enum pp_reasoning_view how);
/* How many lines it takes; 0: none. Lays it out if it is open. */
size_t pp_reasoning_height(struct pp_reasoning_lines *r, const struct pp_chat_message *m, enum pp_reasoning_view how,
                           int width);
/* Draws one of them, in w cells from (y, x) on. */
void pp_reasoning_draw(const struct pp_reasoning_lines *r, const struct pp_chat_message *m, enum pp_reasoning_view how,
                       size_t line, int y, int x, int w);

#endif
