/* sanitize.h - the one gate between untrusted text (from models, titles, file names, notices, pastes) and the
 * screen.
 *
 * The result is valid UTF-8 that moves no cursor, changes no colour, reorders nothing and hides nothing:
 *
 *   C0 controls, DEL                        control pictures: ␀ ␛ ␡
 *   C1 controls, bidi controls and marks,
 *   invisible and format characters, tags,
 *   line and paragraph separators, private
 *   and unassigned code points              <U+202E>
 *   bytes that are not UTF-8                <FF>
 *
 * In PP_CLEAN_TEXT line ends stay (CR LF becomes one) and a tab becomes spaces up to the next multiple of four
 * columns; in PP_CLEAN_LINE both become control pictures. Joiners (U+200C, U+200D) stay, as scripts and emoji need
 * them. Any thread. */
#ifndef PP_UI_SANITIZE_H
#define PP_UI_SANITIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

enum pp_clean { PP_CLEAN_TEXT, PP_CLEAN_LINE };

/* Appends s[0..n), sanitised, to out (out->bad: out of memory). column (or NULL): the screen column where the text
 * begins, for tabs; updated. */
void pp_sanitize(struct pp_buf *out, const char *s, size_t n, enum pp_clean mode, int *column);
/* Whether pp_sanitize shows cp as itself. */
bool pp_char_is_clean(int32_t cp);

#endif
