/* completion.h - completes a word that is being typed from a list of possible names, as Tab does. Any thread. */
#ifndef PP_COMPLETION_H
#define PP_COMPLETION_H

#include <stddef.h>

#include "engine/base/buf.h"

struct pp_completion {
    const char *line;
    size_t at, len;     /* the word: from offset `at` to the end of the line */
    char first[320];    /* the first name that begins with it */
    size_t same, n;     /* length of their common prefix, and how many there are */
    struct pp_buf all;  /* all of them, as a list for a notice */
};

/* Begins to complete the last word of line, which begins at `at`; the line must stay valid until pp_completion_take. */
void pp_completion_begin(struct pp_completion *c, const char *line, size_t at);
/* Offers a possible name; case is ignored. A name that ends with a space expects something after it. */
void pp_completion_offer(struct pp_completion *c, const char *name);
/* Offers the first words that a command accepts, taken from its arguments as in /help: "[NAME | off | save NAME]". */
void pp_completion_offer_words(struct pp_completion *c, const char *args);
/* The line completed by the common prefix of all matching names (pp_free); NULL: there are none. A space follows a
 * name that is unique. *several (may be NULL): the candidates if nothing could be added; otherwise empty. Frees what
 * c holds. */
char *pp_completion_take(struct pp_completion *c, struct pp_buf *several);

#endif
