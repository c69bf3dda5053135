/* export.h - conversations as text for others: Markdown to read, JSON and JSONL to carry on elsewhere and to come back
 * (import.h). The forms: pippin-formats(5). Any thread. */
#ifndef PP_SRC_EXPORT_H
#define PP_SRC_EXPORT_H

#include "engine/base/buf.h"
#include "src/conversation.h"

enum pp_export_form { PP_EXPORT_MARKDOWN, PP_EXPORT_JSON, PP_EXPORT_JSONL };
int pp_export_form_by_name(const char *name); /* "md", "json", "jsonl"; -1: none of these */
int pp_export_form_of(const char *path);      /* by how it ends; -1: it does not tell */

/* PP_ERR_UNSUPPORTED: its ending is that of another form, which a file of ours would only pretend to have. */
enum pp_code pp_export_check_name(const char *path, struct pp_error *err);

/* Several conversations, one after the other. Zero-initialise, with `form`; JSON of several is an array of what JSON of
 * one is. The text, out, is free of bytes that a terminal would obey; pp_buf_free. */
struct pp_export {
    enum pp_export_form form;
    bool several;
    size_t n; /* conversations so far */
    struct pp_buf out;
};
void pp_export_add(struct pp_export *x, const struct pp_conversation *c);
/* PP_ERR_NOMEM: the text is not whole. */
enum pp_code pp_export_end(struct pp_export *x, struct pp_error *err);

/* Writes a new file (0600). One that is there stays as it is: PP_ERR_IO. */
enum pp_code pp_export_write(const char *path, const struct pp_buf *text, struct pp_error *err);
/* A name for the file of a conversation: its title without what names of files should not have, ".md" behind it. */
void pp_export_name(const char *title, char *out, size_t cap);

#endif
