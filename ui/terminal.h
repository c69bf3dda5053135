/* terminal.h - what is known of the terminal, without taking it. */
#ifndef PP_UI_TERMINAL_H
#define PP_UI_TERMINAL_H

#include "src/cmd_doctor.h"

/* The strings live as long as the environment and the locale stay. */
struct pp_terminal_facts pp_terminal_look(void);

#endif
