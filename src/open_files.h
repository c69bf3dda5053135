/* open_files.h - checks the limit of open files. */
#ifndef PP_OPEN_FILES_H
#define PP_OPEN_FILES_H

#include "engine/base/error.h"

/* The files of a chat in addition to stdin, stdout and stderr: the database and its helper files, locks, eventfds,
 * the model, a snapshot, an export; and some reserve. */
enum { PP_OPEN_FILES_CHAT = 20 };

/* Fails with PP_ERR_IO and advice if `need` more files (at most 128) cannot be opened. Checked first, as other
 * errors would be misleading: a library that cannot open a file for want of a descriptor reports that it does not
 * exist. Opens and closes files: call it before starting threads. */
enum pp_code pp_open_files_check(int need, struct pp_error *err);

#endif
