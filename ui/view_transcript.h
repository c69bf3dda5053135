/* view_transcript.h - the view of the conversation. Messages are laid out when they come into view, and cached until
 * they change.
 *
 * The scroll position is a message and a line in it, not a line number of the whole transcript. So only what is
 * visible has to be laid out after a resize, even among ten thousand messages. At the end, the view follows new
 * text. UI thread. */
#ifndef PP_UI_VIEW_TRANSCRIPT_H
#define PP_UI_VIEW_TRANSCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ui/document.h"
#include "ui/view_alternatives.h"
#include "ui/view_reasoning.h"

struct pp_ui;
struct pp_transcript_entry;

/* How the message at the top was laid out when it was last drawn, and which of its text was there, so that the view can
 * stay at that text when lines change, after a resize or between raw and formatted. */
struct pp_transcript_anchor {
    size_t message;
    int width;
    bool raw;
    size_t head;            /* lines above its text */
    size_t at, len;         /* the byte of the laid out text at the top, and that text's length */
    size_t below;           /* lines below its text */
};

struct pp_transcript {
    struct pp_transcript_entry *entries; /* one per message */
    size_t n, cap;
    bool away;              /* the user has scrolled away from the tail */
    size_t message, line;   /* the scroll position, if so: what is at the top */
    int rows, cols;         /* of the screen, when it was last drawn */
    struct pp_transcript_anchor anchor;
    int64_t marked;         /* the message with a highlighted search result; 0: none; */
    char mark[256];         /* the words highlighted in it, */
    bool mark_phrase;       /* as a phrase, or each by itself */
    bool new_text;          /* something was added below while the view was away from the tail */
    uint64_t tail_revision; /* of the last message when the tail was last shown */
    uint64_t frame;
    struct pp_document note; /* what the model is told of messages that have left its context */
    struct pp_column columns[PP_MAX_ALTERNATIVES]; /* instead of the last message's entry */
};

/* Draws ui->at.transcript: the visible messages, or a greeting, or what the program is waiting for. */
void pp_transcript_draw(struct pp_ui *ui);
bool pp_transcript_running(const struct pp_ui *ui); /* one of its answers is being generated, or will be at once */
/* Draws one line of laid out text, in w cells from (y, x) on. */
void pp_transcript_draw_line(const struct pp_layout *l, size_t line, int y, int x, int w);
void pp_transcript_scroll(struct pp_ui *ui, int lines); /* < 0: towards the beginning */
/* Scrolls to the beginning of a message: < 0: of the one at the top, or the one before if it begins there; > 0: of the
 * next. */
void pp_transcript_step(struct pp_ui *ui, int step);
/* Scrolls to the first line of a message that contains the words as a phrase, or, with `each` or if there is none, one
 * of them; else to its beginning. Matches are shown in reverse until pp_transcript_unmark or pp_transcript_end. */
void pp_transcript_show(struct pp_ui *ui, size_t message, const char *words, bool each);
void pp_transcript_unmark(struct pp_ui *ui);
void pp_transcript_home(struct pp_ui *ui); /* to the very beginning */
void pp_transcript_end(struct pp_ui *ui);  /* to the tail, and follows it again */
void pp_transcript_free(struct pp_transcript *t);

#endif
