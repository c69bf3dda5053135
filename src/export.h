/* export.h - exports conversations: Markdown for reading, JSON and JSONL for other programs and for importing again
 * (import.h). Formats: pippin-formats(5). Any thread. */
#ifndef PP_SRC_EXPORT_H
#define PP_SRC_EXPORT_H

#include "engine/base/buf.h"
#include "src/conversation.h"

enum pp_export_form { PP_EXPORT_MARKDOWN, PP_EXPORT_JSON, PP_EXPORT_JSONL };
int pp_export_form_by_name(const char *name); /* "md", "json", "jsonl"; -1: unknown */
int pp_export_form_of(const char *path);      /* by the file's suffix; -1: unknown */

/* PP_ERR_UNSUPPORTED: the suffix is that of another format, which the contents would not have. */
enum pp_code pp_export_check_name(const char *path, struct pp_error *err);

/* The export of one or more conversations. Zero-initialise, and set `form`; the JSON of several is an array of the
 * JSON of each. The text, `out`, contains no control characters that affect a terminal; pp_buf_free. */
struct pp_export {
    enum pp_export_form form;
    bool several;
    size_t n; /* conversations so far */
    struct pp_buf out;
};
void pp_export_add(struct pp_export *x, const struct pp_conversation *c);
/* PP_ERR_NOMEM: the text is incomplete. */
enum pp_code pp_export_end(struct pp_export *x, struct pp_error *err);

/* Writes a new file (0600). PP_ERR_IO if it exists already. */
enum pp_code pp_export_write(const char *path, const struct pp_buf *text, struct pp_error *err);
/* A file name for a conversation: its title without characters that are unusual in file names, and ".md". */
void pp_export_name(const char *title, char *out, size_t cap);

#endif
