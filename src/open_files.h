/* open_files.h - whether as many files may be opened as a chat needs. */
#ifndef PP_OPEN_FILES_H
#define PP_OPEN_FILES_H

#include "engine/base/error.h"

/* What a chat opens beside stdin, stdout and stderr: the database and its helpers, locks, events, the model, a saved
 * state, an export; some room to spare. */
enum { PP_OPEN_FILES_CHAT = 20 };

/* Fails with PP_ERR_IO and what to do about it if `need` more files than are open now (128 at most) cannot be opened.
 * Asked before anything else is, whose own error would lead astray: a library that finds no file for want of a
 * descriptor says that there is none. Opens and closes them: call it before there are threads. */
enum pp_code pp_open_files_check(int need, struct pp_error *err);

#endif
