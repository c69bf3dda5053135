/* completion.h - a word that is being typed, completed from the names that may stand there, as Tab does. Any thread. */
#ifndef PP_COMPLETION_H
#define PP_COMPLETION_H

#include <stddef.h>

#include "engine/base/buf.h"

struct pp_completion {
    const char *line;
    size_t at, len;     /* the word: from here to the end of the line */
    char first[320];    /* the first name that begins with it */
    size_t same, n;     /* bytes of that which all have; how many there are */
    struct pp_buf all;  /* all of them, for a notice */
};

/* The last word of line, which begins at `at`; the line must stay until the end. */
void pp_completion_begin(struct pp_completion *c, const char *line, size_t at);
/* A name that may stand there, whatever its case; one that ends with a blank wants something behind it. */
void pp_completion_offer(struct pp_completion *c, const char *name);
/* The words that a command takes first, of its arguments as /help writes them: "[NAME | off | save NAME]". */
void pp_completion_offer_words(struct pp_completion *c, const char *args);
/* The line with so much as all names have that begin with the word, pp_free; NULL: none does. A blank follows a name
 * that is the only one. *several (may be NULL): those to choose from where nothing could be added; else empty. Frees
 * what c holds. */
char *pp_completion_take(struct pp_completion *c, struct pp_buf *several);

#endif
