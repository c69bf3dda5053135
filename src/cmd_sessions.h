/* cmd_sessions.h - shared by the files of `pippin sessions`. */
#ifndef PP_SRC_CMD_SESSIONS_H
#define PP_SRC_CMD_SESSIONS_H

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "src/options.h"
#include "src/paths.h"
#include "src/store.h"

/* The members of a conversation's JSON object: id, title, model, created, updated, messages. */
void sessions_json(struct pp_buf *b, const struct pp_session *s);
/* The title as one line, whatever it contains. */
void sessions_title(struct pp_buf *b, const struct pp_session *s);

/* cmd_sessions_files.c */
enum pp_code sessions_export(const struct pp_options *o, struct pp_store *st, const struct pp_cancel *cancel,
                             struct pp_error *err);
enum pp_code sessions_import(const struct pp_options *o, const struct pp_paths *p, struct pp_store *st,
                             const struct pp_cancel *cancel, struct pp_error *err);

#endif
