/* document.h - a message on its way to the screen: source text in, layout out, only the end anew while it grows.
 *
 * The source is cut into segments that can be laid out alone: paragraphs between blank lines, single lines of a
 * fenced code block, at most a few kilobytes each, a table up to 16. A segment whose end has been seen is settled and
 * never touched again; the last one is laid out anew at each update. So an update costs what is new plus one segment,
 * however long the message is. UI thread. */
#ifndef PP_UI_DOCUMENT_H
#define PP_UI_DOCUMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/fence.h"
#include "ui/layout.h"

/* Zero-initialise; pp_document_free at the end. Of a text that grew too large for memory layout.bad tells. */
struct pp_document {
    struct pp_layout layout;
    /* how it was laid out; a change starts from the beginning */
    int width;
    bool markdown;
    pp_style base;
    bool tinted;
    /* settled part */
    struct pp_layout_mark settled;
    size_t done;            /* bytes of the source that it covers */
    bool fenced;            /* inside a code block ... */
    struct pp_fence fence;  /* ... that this has opened */
    bool continues;         /* the segment before was cut for its length */
    char guard[32];         /* its last bytes: a source that no longer has them is another text */
    size_t guard_len;
    /* during an update */
    const char *source;
    const uint32_t *runs;   /* [n_runs], or NULL */
    size_t n_runs;
};

/* Makes doc->layout show s[0..n), which is untrusted and need not stay, in lines of at most `width` cells. With
 * markdown false the text is shown as it is. base: the style of ordinary words. */
void pp_document_update(struct pp_document *doc, const char *s, size_t n, int width, bool markdown, pp_style base);
/* The same with a tint where the text was guessed: `runs` as in struct pp_chat_message, of bytes of s. They may only
 * grow with the text. NULL: no tint. */
void pp_document_update_tinted(struct pp_document *doc, const char *s, size_t n, int width, bool markdown,
                               pp_style base, const uint32_t *runs, size_t n_runs);
void pp_document_free(struct pp_document *doc);

#endif
