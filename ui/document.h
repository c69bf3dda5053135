/* document.h - a message laid out for the screen, incrementally while it grows.
 *
 * The source is cut into segments that can be laid out independently: paragraphs between blank lines, single lines
 * of a fenced code block, at most 4 KB each, tables up to 16 KB. A segment whose end has been seen is settled and
 * not touched again; only the last one is laid out anew at each update. So an update costs the new text plus one
 * segment, however long the message is. UI thread. */
#ifndef PP_UI_DOCUMENT_H
#define PP_UI_DOCUMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/fence.h"
#include "ui/highlight.h"
#include "ui/layout.h"

/* Zero-initialise; pp_document_free at the end. layout.bad is set if memory runs out. */
struct pp_document {
    struct pp_layout layout;
    /* parameters of the layout; if one changes, everything is laid out again */
    int width;
    bool markdown;
    pp_style base;
    bool tinted;
    /* the settled part */
    struct pp_layout_mark settled;
    size_t done;            /* bytes of the source in it */
    bool fenced;            /* it ends inside a code block ... */
    struct pp_fence fence;  /* ... which this fence opened, */
    struct pp_code_block code; /* in this language */
    bool continues;         /* the segment before was cut because of its length */
    char guard[32];         /* the last bytes of it: if they have changed, the source is another text */
    size_t guard_len;
    /* during an update */
    const char *source;
    const uint32_t *runs;   /* [n_runs], or NULL */
    size_t n_runs;
};

/* Makes doc->layout show s[0..n), which is untrusted and not referred to afterwards, in lines of at most `width`
 * cells. markdown false: the text is shown as it is. base: the style of ordinary words. */
void pp_document_update(struct pp_document *doc, const char *s, size_t n, int width, bool markdown, pp_style base);
/* The same, with a tint where the text was drafted: `runs` as in struct pp_chat_message, for the bytes of s. They
 * may only grow along with the text. NULL: no tint. */
void pp_document_update_tinted(struct pp_document *doc, const char *s, size_t n, int width, bool markdown,
                               pp_style base, const uint32_t *runs, size_t n_runs);
void pp_document_free(struct pp_document *doc);

#endif
