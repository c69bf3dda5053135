/* plain.h - the chat without a full screen, printing lines only: for screen readers, logs, and terminals that can do
 * nothing else. */
#ifndef PP_UI_PLAIN_H
#define PP_UI_PLAIN_H

#include "src/controller.h"
#include "src/options.h"
#include "src/paths.h"

/* Reads lines from stdin at the prompt "> " and prints answers, sanitised, as they are written. Ctrl-C stops an
 * answer, or leaves if there is none. Returns the exit code. */
int pp_plain_run(const struct pp_options *o, const struct pp_paths *paths);
/* Printed at the end of both kinds of chat: whether anything is lost, and how to resume. key: "" if nothing is kept. */
void pp_plain_close_report(const struct pp_close_report *w, const char *key);
/* A callback for struct pp_close_report. */
void pp_plain_waiting(const char *what);

#endif
