/* terminal.h - facts about the terminal that are known without initialising it. */
#ifndef PP_UI_TERMINAL_H
#define PP_UI_TERMINAL_H

#include "src/cmd_doctor.h"

/* The strings are valid until the environment or the locale changes. */
struct pp_terminal_facts pp_terminal_query(void);

#endif
