/* view_transcript.h - the conversation: messages laid out when they come into view, and kept until they change.
 *
 * The place on screen is a message and a line in it, never a line number of the whole: so nothing beyond what is
 * shown has to be laid out, after a resize or in a transcript of ten thousand messages. At the tail the view follows
 * the text. UI thread. */
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

/* How the message at the top was laid out when it was last seen, and which of its text stood there: where the lines are
 * others, after a resize or in another form, the same text is found again. */
struct pp_transcript_hold {
    size_t message;
    int width;
    bool raw;
    size_t head;            /* lines above its text */
    size_t at, len;         /* a byte of the text as laid out, and how long that was */
    size_t below;           /* lines below its text */
};

struct pp_transcript {
    struct pp_transcript_entry *entries; /* one per message */
    size_t n, cap;
    bool away;              /* the user has scrolled away from the tail */
    size_t message, line;   /* what is at the top, then */
    int rows, cols;         /* of the screen, when it was last drawn */
    struct pp_transcript_hold held;
    int64_t marked;         /* the message that was looked for; 0: none; */
    char mark[256];         /* what in it, */
    bool mark_phrase;       /* as it stands, or each of its words */
    bool new_text;          /* something has been added below, since */
    uint64_t tail_revision; /* of the last message when the tail was last seen */
    uint64_t frame;
    struct pp_document note; /* what the model is told of the messages that it is not given any more */
    struct pp_column columns[PP_MAX_ALTERNATIVES]; /* instead of the last message's entry */
};

/* Draws ui->at.transcript: the messages that are seen there, the greeting, or what is waited for. */
void pp_transcript_draw(struct pp_ui *ui);
bool pp_transcript_running(const struct pp_ui *ui); /* an answer in it is being written, or about to be */
/* One line of laid out text, in w cells from (y, x) on. */
void pp_transcript_draw_line(const struct pp_layout *l, size_t line, int y, int x, int w);
void pp_transcript_scroll(struct pp_ui *ui, int lines); /* < 0: towards the beginning */
/* The beginning of a message to the top of the screen: < 0: of the one there, or the one before if it begins there;
 * > 0: of the next. */
void pp_transcript_step(struct pp_ui *ui, int step);
/* Scrolls to a message, and in it to the first line that has the words, as they stand, or (each; or where they do not
 * stand so) one of them, if one does; else to its beginning. There they are reversed until pp_transcript_unmark or
 * pp_transcript_end. */
void pp_transcript_show(struct pp_ui *ui, size_t message, const char *words, bool each);
void pp_transcript_unmark(struct pp_ui *ui);
void pp_transcript_home(struct pp_ui *ui); /* to the first line of all */
void pp_transcript_end(struct pp_ui *ui);  /* to the tail, which is followed again */
void pp_transcript_free(struct pp_transcript *t);

#endif
