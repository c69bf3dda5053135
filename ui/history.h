/* history.h - the input line's history on disk: $XDG_STATE_HOME/pippin/history, mode 0600.
 *
 * One entry per line, oldest first; \n stands for a line end and \\ for a backslash. Entries are appended one write
 * each, and the file is locked (flock) while it is written, so that several programs can share it. One that has waited
 * for half a second writes without the lock; who rewrites the file then carries that over. UI thread. */
#ifndef PP_UI_HISTORY_H
#define PP_UI_HISTORY_H

#include "engine/base/error.h"

enum { PP_HISTORY_ENTRIES = 2000, PP_HISTORY_ENTRY_MAX = 64 * 1024 };

/* Calls add for the last PP_HISTORY_ENTRIES entries of the file. A file that has grown to many times that is
 * rewritten. No file is no error. */
enum pp_code pp_history_load(const char *path, void (*add)(void *user, const char *text), void *user,
                             struct pp_error *err);
/* Longer texts than PP_HISTORY_ENTRY_MAX are not kept. PP_ERR_IO: a full disk, say; the file is as it was. */
enum pp_code pp_history_append(const char *path, const char *text, struct pp_error *err);

#endif
