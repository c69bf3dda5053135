/* plain_text.h - untrusted text made safe for a terminal, for the commands that have no screen. */
#ifndef PP_SRC_PLAIN_TEXT_H
#define PP_SRC_PLAIN_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

/* Appends s[0..n) to out. Line feeds and tabs stay; other control characters become their pictures (U+2400 and on), C1
 * controls and characters that turn the direction of writing become "<U+202E>", bytes that are no UTF-8 become U+FFFD.
 * s must not end inside a character. */
void pp_plain_text(struct pp_buf *out, const char *s, size_t n);
/* Characters that a terminal obeys although they are behind ASCII's controls: DEL and C1 controls; and those that turn
 * the direction of writing. JSON has them as \uXXXX. */
bool pp_char_is_obeyed(int32_t cp);
/* Appends JSON as cJSON prints it, which escapes nothing behind U+001F: with all that a terminal obeys as \uXXXX, and
 * U+FFFD for what is no UTF-8. */
void pp_plain_json(struct pp_buf *out, const char *json);

#endif
