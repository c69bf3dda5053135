/* plain.h - the chat without a full screen: lines only, for screen readers, logs and terminals that can do nothing
 * else. */
#ifndef PP_UI_PLAIN_H
#define PP_UI_PLAIN_H

#include "src/options.h"
#include "src/paths.h"

/* Reads lines from stdin after a prompt "> ", writes answers as they come, sanitised; one Ctrl-C stops an answer,
 * one without an answer leaves. Returns the exit code. */
int pp_plain_run(const struct pp_options *o, const struct pp_paths *paths);

#endif
