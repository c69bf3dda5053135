/* layout.h - a message as screen lines: clean text, runs of style over it, and lines that point into it.
 *
 * Built by appending; rewound to a mark when the end of a streaming answer is laid out anew. Offsets instead of
 * pointers, so that growing moves nothing that matters. An allocation that fails makes it `bad`: what is there may
 * be drawn, it is incomplete. UI thread. */
#ifndef PP_UI_LAYOUT_H
#define PP_UI_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "ui/style.h"

enum pp_line_kind { PP_LINE_TEXT, PP_LINE_CODE /* a background as wide as the screen */, PP_LINE_RULE };

struct pp_line {
    uint32_t start, end; /* bytes of text */
    uint16_t indent;     /* empty cells before it */
    uint8_t kind;
    uint8_t quote;       /* depth: so many bars before it, two cells each, within the indent */
};

struct pp_run {
    uint32_t start; /* this style from here to the next run */
    pp_style style;
};

struct pp_layout {
    struct pp_buf text;
    struct pp_line *lines;
    struct pp_run *runs;
    size_t n_lines, cap_lines, n_runs, cap_runs;
    const struct pp_tint *tint; /* or NULL */
    bool bad;
};

/* Some text of which parts came from guesses that stood: what pp_layout_text is given of it is tinted where it did. */
struct pp_tint {
    const char *text;      /* [sum of runs] */
    const uint32_t *runs;  /* [n]: bytes that were not guessed, bytes that were, and so on */
    size_t n;
};

struct pp_layout_mark {
    size_t text, lines, runs;
};

void pp_layout_free(struct pp_layout *l); /* and makes it empty again */
struct pp_layout_mark pp_layout_mark(const struct pp_layout *l); /* how far it goes now */
void pp_layout_rewind(struct pp_layout *l, struct pp_layout_mark mark); /* takes off what came since; memory stays */
size_t pp_layout_bytes(const struct pp_layout *l); /* memory it holds */

/* Appends clean text to what will be the next lines. */
void pp_layout_text(struct pp_layout *l, const char *s, size_t n, pp_style style);

struct pp_frame {
    int width;          /* of the screen area */
    int first, rest;    /* indent of the first line and of those after it */
    uint8_t quote, kind;
};
/* Makes lines of the text from byte `from` on; at least one line. Code is not broken at words. */
void pp_layout_lines(struct pp_layout *l, size_t from, const struct pp_frame *f);
void pp_layout_blank(struct pp_layout *l, uint8_t quote); /* an empty line, with as many bars of quotes before it */
/* Index of the run that text offset `at` lies in. */
size_t pp_layout_run(const struct pp_layout *l, uint32_t at);

#endif
