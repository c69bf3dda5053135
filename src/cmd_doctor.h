/* cmd_doctor.h - pippin doctor: reports what the program finds on this machine, and what keeps it from working well. */
#ifndef PP_SRC_CMD_DOCTOR_H
#define PP_SRC_CMD_DOCTOR_H

#include <stdbool.h>

#include "src/options.h"
#include "src/paths.h"

/* Facts about the terminal, which only ui/ can find out. */
struct pp_terminal_facts {
    const char *name;    /* TERM, or "" */
    const char *charset; /* of the locale: "UTF-8" */
    bool is_terminal;    /* standard input and output are terminals */
    bool known;          /* terminfo has an entry for it ... */
    bool moves_cursor;   /* ... which is sufficient for the full screen */
    int colors, rows, cols; /* 0: none, or unknown */
};

/* Returns exit code 1 if there is a problem. */
int pp_cmd_doctor(const struct pp_options *o, const struct pp_paths *p, const struct pp_terminal_facts *terminal);

#endif
