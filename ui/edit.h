/* edit.h - the input line: readline, fed from a queue of bytes, without access to the terminal.
 *
 * readline does the editing (emacs and vi keys, inputrc, undo, kill ring, history, incremental search). It reads
 * what pp_edit_feed puts into its queue, draws nothing, and changes no signal handlers, environment or terminal
 * settings. The text may have several lines. One per program; UI thread. */
#ifndef PP_UI_EDIT_H
#define PP_UI_EDIT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

struct pp_edit_hooks {
    /* Enter. True: the text was accepted, and the line becomes empty; false: it stays. */
    bool (*accept)(void *user, const char *text);
    /* Tab with the cursor at the end. Returns the new text (pp_malloced; freed by edit.c), or NULL. */
    char *(*complete)(void *user, const char *text);
    /* Reports errors: in the user's key bindings (inputrc), or out of memory. */
    void (*complain)(void *user, const char *what);
    void *user;
};

/* history: file name. An unreadable history, or a mistake in the user's inputrc, is reported, but does not prevent
 * editing. */
enum pp_code pp_edit_open(const char *history, const struct pp_edit_hooks *hooks, struct pp_error *err);
void pp_edit_close(void);

/* Feeds the bytes of one key as the terminal sent them: runs the command bound to it, and calls hooks. */
void pp_edit_feed(const char *bytes, size_t n);
/* Inserts text literally at the cursor, as one change for undo. False: out of memory; the line is unchanged. */
bool pp_edit_insert(const char *text, size_t n);
bool pp_edit_set(const char *text);              /* replaces the line; cursor at the end. False: as above */
void pp_edit_up(void);                           /* one line up; from the first line, to the previous history entry */
void pp_edit_down(void);
/* Adds a text to the history, in memory and, with `keep` and at most PP_HISTORY_ENTRY_MAX bytes, on disk. */
enum pp_code pp_edit_remember(const char *text, bool keep, struct pp_error *err);
/* Empties the line and returns what is worth keeping in the history: the text, unless it is an unchanged entry of it,
 * and the line that was being typed before the history was entered (pp_malloced, the caller frees; NULL: nothing). */
void pp_edit_take_unsent(char *rest[static 2]);

/* The present line, NUL-terminated; its lines are separated by \n. Valid until the next call that changes it. */
const char *pp_edit_text(void);
size_t pp_edit_len(void);            /* bytes */
size_t pp_edit_cursor(void);         /* byte offset, at a character's start */
const char *pp_edit_message(void);   /* shown instead of a prompt: "(reverse-i-search)`foo': "; or NULL */
bool pp_edit_searching(void);        /* in an incremental search, or in the middle of a multi-key command */
bool pp_edit_vi(void);               /* vi mode */
bool pp_edit_vi_command(void);       /* vi command mode */

#endif
