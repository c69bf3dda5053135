/* import.h - conversations from files: those of export.h, and messages as other programs write them. Any thread.
 *
 * Known are, as JSON or with one on each line (JSONL): {"messages": [{"role", "content"}, ...]}, such an array alone, a
 * message on each line, ShareGPT's {"conversations": [{"from", "value"}, ...]}, ChatGPT's {"mapping": ...} and Open
 * WebUI's {"chat": {"history": ...}}, and arrays of all these. Everything in them is untrusted. */
#ifndef PP_SRC_IMPORT_H
#define PP_SRC_IMPORT_H

#include "src/conversation.h"

struct pp_import {
    struct pp_conversation *list; /* [n], as they stand in the text; those without a message are left out */
    size_t n, cap;
    size_t left_out;              /* messages that are neither the user's nor an answer, or have no text */
    size_t no_text;               /* parts of messages that are not text: pictures, files */
    size_t no_utf8;               /* bytes of the text that are no UTF-8, each of which became U+FFFD */
};

/* U+0000 becomes U+FFFD, as in exports. PP_ERR_FORMAT says where; then nothing is in *out. */
enum pp_code pp_import_read(const char *text, size_t n, struct pp_import *out, struct pp_error *err);
void pp_import_free(struct pp_import *i);

#endif
