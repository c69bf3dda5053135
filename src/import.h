/* import.h - reads conversations from files: those of export.h, and several formats of other programs. Any thread.
 *
 * Formats, as JSON or JSONL: {"messages": [{"role", "content"}, ...]}, such an array alone, one message per line,
 * ShareGPT's {"conversations": [{"from", "value"}, ...]}, ChatGPT's {"mapping": ...} and Open WebUI's {"chat":
 * {"history": ...}}, and arrays of all these. All data is untrusted. */
#ifndef PP_SRC_IMPORT_H
#define PP_SRC_IMPORT_H

#include "src/conversation.h"

struct pp_import {
    struct pp_conversation *list; /* [n], in the order of the text; those without messages are left out */
    size_t n, cap;
    size_t left_out;              /* messages of other roles, or without text */
    size_t no_text;               /* parts of messages that are not text: images, files */
    size_t no_utf8;               /* invalid UTF-8 sequences, which were replaced by U+FFFD */
};

/* U+0000 becomes U+FFFD, as in exports. PP_ERR_FORMAT says where; *out is empty then. */
enum pp_code pp_import_read(const char *text, size_t n, struct pp_import *out, struct pp_error *err);
void pp_import_free(struct pp_import *i);

#endif
