/* edit.h - the input line: readline behind a queue of bytes, with no hand on the terminal.
 *
 * readline edits (emacs and vi keys, inputrc, undo, kill ring, history, incremental search); it reads what
 * pp_edit_feed puts in its queue, draws nothing, changes no signal handler, no environment and no terminal setting.
 * The text may have several lines. One per program; UI thread. */
#ifndef PP_UI_EDIT_H
#define PP_UI_EDIT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

struct pp_edit_hooks {
    /* Enter. True: the text was taken, the line becomes empty; false: it stays. */
    bool (*accept)(void *user, const char *text);
    /* Tab with the cursor at the end: the text to have instead (pp_malloced, becomes ours), or NULL. */
    char *(*complete)(void *user, const char *text);
    /* Something went wrong with what a key does: with the user's keys (inputrc), or for want of memory. */
    void (*complain)(void *user, const char *what);
    void *user;
};

/* history: file name. An unreadable history, or a mistake in the user's keys (inputrc), is reported, but everything
 * works. */
enum pp_code pp_edit_open(const char *history, const struct pp_edit_hooks *hooks, struct pp_error *err);
void pp_edit_close(void);

/* The bytes of one key, as the terminal sent them: readline does what is bound to it, and the hooks are called. */
void pp_edit_feed(const char *bytes, size_t n);
/* At the cursor, literally, as one change for undo. False: there is no memory for it, and the line is as it was. */
bool pp_edit_insert(const char *text, size_t n);
bool pp_edit_set(const char *text);              /* cursor at the end. False: likewise */
void pp_edit_up(void);                           /* a line up, or back in the history from the first */
void pp_edit_down(void);
/* Adds a text to the history, in memory and, `keep`, if it is no longer than PP_HISTORY_ENTRY_MAX, on disk. */
enum pp_code pp_edit_remember(const char *text, bool keep, struct pp_error *err);
/* What is in the line when it is given up, for the history: the text, unless it was only looked up there, and
 * behind it what was being typed before it was looked up (pp_malloced, to be freed with pp_free; NULL: nothing). The
 * line becomes empty. */
void pp_edit_take_rest(char *rest[static 2]);

/* The line as it is, terminated; lines are parted by \n. Valid until the next call that changes it. */
const char *pp_edit_text(void);
size_t pp_edit_len(void);            /* bytes */
size_t pp_edit_cursor(void);         /* byte offset, at a character's start */
const char *pp_edit_message(void);   /* what stands instead of a prompt: "(reverse-i-search)`foo': "; or NULL */
bool pp_edit_searching(void);        /* in an incremental search or in the middle of a command of several keys */
bool pp_edit_vi(void);               /* keys as in vi */
bool pp_edit_vi_command(void);       /* of these, its command mode */

#endif
