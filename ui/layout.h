/* layout.h - a message as screen lines: clean text, runs of style over it, and lines that point into it.
 *
 * Built by appending; rewound to a mark when the end of a streaming answer must be laid out again. Offsets instead of
 * pointers, so that buffers may grow. A failed allocation makes it `bad`: it may be drawn, but is incomplete. UI
 * thread. */
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
    uint8_t quote;       /* depth of quotation: bars before it, two cells each, within the indent */
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

/* A text parts of which were drafted: pp_layout_text tints those parts of it, when it is given pieces of `text`. */
struct pp_tint {
    const char *text;      /* [sum of runs] */
    const uint32_t *runs;  /* [n]: lengths in bytes: not drafted, drafted, not drafted ... */
    size_t n;
};

struct pp_layout_mark {
    size_t text, lines, runs;
};

void pp_layout_free(struct pp_layout *l); /* frees its memory and makes it empty */
struct pp_layout_mark pp_layout_mark(const struct pp_layout *l); /* its present end */
void pp_layout_rewind(struct pp_layout *l, struct pp_layout_mark mark); /* truncates it to a mark; memory is kept */
size_t pp_layout_bytes(const struct pp_layout *l); /* memory it holds */

/* Appends clean text (sanitize.h), not broken into lines yet. */
void pp_layout_text(struct pp_layout *l, const char *s, size_t n, pp_style style);

struct pp_frame {
    int width;          /* of the screen area */
    int first, rest;    /* indent of the first line and of those after it */
    uint8_t quote, kind;
};
/* Breaks the text from byte `from` on into lines, at least one. Code is not broken at words. */
void pp_layout_lines(struct pp_layout *l, size_t from, const struct pp_frame *f);
void pp_layout_blank(struct pp_layout *l, uint8_t quote); /* an empty line with bars of this depth */
/* Index of the run that contains text offset `at`. */
size_t pp_layout_run(const struct pp_layout *l, uint32_t at);

#endif
