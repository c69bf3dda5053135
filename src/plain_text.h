/* plain_text.h - makes untrusted text safe for a terminal, for the commands without a screen. */
#ifndef PP_SRC_PLAIN_TEXT_H
#define PP_SRC_PLAIN_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

/* Appends s[0..n) to out. Line feeds and tabs stay. Other control characters become control pictures (U+2400 and
 * following); C1 controls and bidirectional controls become "<U+202E>"; invalid UTF-8 becomes U+FFFD. s must not end
 * within a character. */
void pp_plain_text(struct pp_buf *out, const char *s, size_t n);
/* Non-C0 characters that affect a terminal: DEL, C1 controls, and bidirectional controls. JSON has them as \uXXXX. */
bool pp_char_is_obeyed(int32_t cp);
/* Appends JSON printed by cJSON, which escapes nothing above U+001F: replaces all characters that affect a terminal
 * by \uXXXX, and invalid UTF-8 by U+FFFD. */
void pp_plain_json(struct pp_buf *out, const char *json);

#endif
