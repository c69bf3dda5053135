/* history.h - the file of the input line's history: $XDG_STATE_HOME/pippin/history, mode 0600.
 *
 * One entry per line, oldest first, with \n for a line feed and \\ for a backslash. Each entry is appended by one
 * write, under a lock (flock), so that several programs can share the file. A program that has waited for half a
 * second writes without the lock; if the file is being rewritten, its entry is carried over. UI thread. */
#ifndef PP_UI_HISTORY_H
#define PP_UI_HISTORY_H

#include "engine/base/error.h"

enum { PP_HISTORY_ENTRIES = 2000, PP_HISTORY_ENTRY_MAX = 64 * 1024 };

/* Calls add for the last PP_HISTORY_ENTRIES entries of the file. Rewrites a file that has grown to several times
 * that number. A missing file is no error. */
enum pp_code pp_history_load(const char *path, void (*add)(void *user, const char *text), void *user,
                             struct pp_error *err);
/* Texts longer than PP_HISTORY_ENTRY_MAX are not written. PP_ERR_IO: the disk is full, for example; the file is
 * unchanged. */
enum pp_code pp_history_append(const char *path, const char *text, struct pp_error *err);

#endif
