/* import_store.h - conversations from elsewhere into the store, where some of them may be already: from the same file,
 * or because they were exported here, and have gone on since. Any thread that owns the store.
 *
 * A conversation is the same if it has the same system prompt, began at the same time (to the millisecond, where that
 * is known) and with the same first message; where no times are told, if all that the file has of it is here. Messages
 * are the same behind the same message, with the same role, text and time. What is here is never changed: messages that
 * it lacks become branches of it. */
#ifndef PP_SRC_IMPORT_STORE_H
#define PP_SRC_IMPORT_STORE_H

#include "src/conversation.h"

enum pp_import_outcome {
    PP_IMPORT_ADDED,    /* as a new conversation */
    PP_IMPORT_HERE,     /* all of it is here already */
    PP_IMPORT_EXTENDED, /* it is here already, and got what it lacked */
    PP_IMPORT_BUSY,     /* ... lacks something, and is open in a pippin: it stays as it is */
};

struct pp_importer;

/* again: everything is new. locks: the folder of pp_session_lock. Both stay the caller's. PP_ERR_BUSY: somebody else
 * imports; one import at a time knows what is here already. */
enum pp_code pp_importer_new(struct pp_store *st, const char *locks, bool again, struct pp_importer **out,
                             struct pp_error *err);
/* What waits to be committed is not: see pp_importer_flush. */
void pp_importer_free(struct pp_importer *im);

struct pp_import_result {
    enum pp_import_outcome outcome;
    size_t n_messages; /* that were added, or that it lacks */
};
/* c->session becomes that of the store. What was imported with the same importer counts as being here, too. */
enum pp_code pp_importer_put(struct pp_importer *im, struct pp_conversation *c, struct pp_import_result *result,
                             struct pp_error *err);
/* Conversations are committed together, those of a tenth of a second. This commits what still waits for it, also after
 * a put that failed; until then nothing else may use the store. If it fails, they are not there. */
enum pp_code pp_importer_flush(struct pp_importer *im, struct pp_error *err);
bool pp_importer_flushed(const struct pp_importer *im); /* nothing waits */

#endif
