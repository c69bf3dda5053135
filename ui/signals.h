/* signals.h - signals of the terminal program: the gentle ones wake the event loop, the deadly ones give the
 * terminal back first. */
#ifndef PP_UI_SIGNALS_H
#define PP_UI_SIGNALS_H

#include <signal.h>

#include "engine/base/error.h"

enum pp_signal {
    PP_SIGNAL_RESIZE = 1,  /* SIGWINCH */
    PP_SIGNAL_STOP = 2,    /* SIGTSTP from outside; Ctrl-Z is a key here */
    PP_SIGNAL_RESUMED = 4, /* SIGCONT, unless after pp_signals_suspend */
    PP_SIGNAL_INTERRUPT = 8, /* SIGINT */
    PP_SIGNAL_QUIT = 16,   /* SIGHUP, SIGTERM: save and leave. A second SIGTERM kills (wish.h); SIGHUP comes
                            * twice when a window is closed, from its shell and from the terminal. A terminal
                            * that takes nothing for three seconds after them is given up: standard output is
                            * /dev/null then */
};

/* Installs handlers. restore is called in a signal handler, on a stack of its own, before the program dies of a
 * signal: it may use only async-signal-safe functions. A SIGBUS handler that is already there stays. */
enum pp_code pp_signals_open(void (*restore)(void), struct pp_error *err);
void pp_signals_close(void);          /* the default handlers; SIGHUP does nothing from here on */
int pp_signals_fd(void);              /* readable when pp_signals_take has something */
unsigned pp_signals_take(void);       /* bits of enum pp_signal since the last call */
void pp_signals_suspend(void);        /* stops the whole job, as Ctrl-Z does; returns when it goes on */
/* Another program has the terminal: its Ctrl-C and Ctrl-\ are none of ours, and its Ctrl-Z stops us with it, or the
 * shell would never have its turn. defaults: what that program does not inherit from us. */
void pp_signals_lend(sigset_t *defaults);
void pp_signals_take_back(void);

#endif
