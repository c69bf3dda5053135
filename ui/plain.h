/* plain.h - the chat without a full screen: lines only, for screen readers, logs and terminals that can do nothing
 * else. */
#ifndef PP_UI_PLAIN_H
#define PP_UI_PLAIN_H

#include "src/controller.h"
#include "src/options.h"
#include "src/paths.h"

/* Reads lines from stdin after a prompt "> ", writes answers as they come, sanitised; one Ctrl-C stops an answer,
 * one without an answer leaves. Returns the exit code. */
int pp_plain_run(const struct pp_options *o, const struct pp_paths *paths);
/* What both kinds of chat print at their end: whether anything is lost, and how to go on. key: "" if nothing
 * is kept. */
void pp_plain_last_words(const struct pp_last_words *w, const char *key);
/* As struct pp_last_words wants it. */
void pp_plain_waiting(const char *what);

#endif
