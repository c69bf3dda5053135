/* cmd_doctor.h - pippin doctor: what the program sees of the machine that it runs on, and what keeps it from working
 * well. */
#ifndef PP_SRC_CMD_DOCTOR_H
#define PP_SRC_CMD_DOCTOR_H

#include <stdbool.h>

#include "src/options.h"
#include "src/paths.h"

/* What the screen knows of the terminal. */
struct pp_terminal_facts {
    const char *name;    /* TERM, or "" */
    const char *charset; /* of the locale: "UTF-8" */
    bool is_terminal;    /* standard input and output are */
    bool known;          /* there is a description of one with this name ... */
    bool moves_cursor;   /* ... and the screen can be drawn on it */
    int colors, rows, cols; /* 0: none, or not known */
};

/* Exit code 1 if there is a problem. */
int pp_cmd_doctor(const struct pp_options *o, const struct pp_paths *p, const struct pp_terminal_facts *terminal);

#endif
