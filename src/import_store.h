/* import_store.h - adds imported conversations to the store. Some may exist already: from the same file, or because
 * they were exported here, and have been continued since. Any thread that owns the store.
 *
 * A conversation is the same if it has the same system prompt, time of creation (to the millisecond, if known) and
 * first message; without times, if all its messages exist in the store. Messages are the same if they follow the
 * same message and have the same role, text and time. Existing data is never changed: missing messages are added as
 * branches. */
#ifndef PP_SRC_IMPORT_STORE_H
#define PP_SRC_IMPORT_STORE_H

#include "src/conversation.h"

enum pp_import_outcome {
    PP_IMPORT_ADDED,    /* as a new conversation */
    PP_IMPORT_HERE,     /* all of it exists already */
    PP_IMPORT_EXTENDED, /* it existed, and missing messages were added */
    PP_IMPORT_BUSY,     /* messages are missing, but it is open in a pippin, and was not changed */
};

struct pp_importer;

/* again: adds everything as new. locks: the folder of pp_session_lock. Both stay the caller's. PP_ERR_BUSY: another
 * program is importing, which excludes this one, so that each sees what exists. */
enum pp_code pp_importer_new(struct pp_store *st, const char *locks, bool again, struct pp_importer **out,
                             struct pp_error *err);
/* Uncommitted changes are lost: see pp_importer_flush. */
void pp_importer_free(struct pp_importer *im);

struct pp_import_result {
    enum pp_import_outcome outcome;
    size_t n_messages; /* messages that were added, or are missing */
};
/* c->session becomes that of the store. What was imported by the same importer counts as existing. */
enum pp_code pp_importer_put(struct pp_importer *im, struct pp_conversation *c, struct pp_import_result *result,
                             struct pp_error *err);
/* Changes are committed in batches of a tenth of a second. This commits what is left, also after a put that failed;
 * until then nothing else may use the store. If it fails, the last batch is lost. */
enum pp_code pp_importer_flush(struct pp_importer *im, struct pp_error *err);
bool pp_importer_flushed(const struct pp_importer *im); /* nothing is uncommitted */

#endif
