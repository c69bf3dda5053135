/* signals.h - signal handling of the full screen: gentle signals wake the event loop, deadly ones restore the
 * terminal first. */
#ifndef PP_UI_SIGNALS_H
#define PP_UI_SIGNALS_H

#include <signal.h>

#include "engine/base/error.h"

enum pp_signal {
    PP_SIGNAL_RESIZE = 1,  /* SIGWINCH */
    PP_SIGNAL_STOP = 2,    /* SIGTSTP from outside; Ctrl-Z is a key here */
    PP_SIGNAL_RESUMED = 4, /* SIGCONT, unless after pp_signals_suspend */
    PP_SIGNAL_INTERRUPT = 8, /* SIGINT */
    PP_SIGNAL_QUIT = 16,   /* SIGHUP, SIGTERM: save and leave. A second SIGTERM kills (stop_signal.h); SIGHUP arrives
                              twice when a window is closed, from the shell and from the terminal. If the terminal
                              accepts no output for three seconds afterwards, standard output becomes /dev/null */
};

/* Installs the handlers. Before the program dies of a signal, restore is called in the signal handler, on a stack of
 * its own; it may use only async-signal-safe functions. A SIGBUS handler that is already installed stays. */
enum pp_code pp_signals_open(void (*restore)(void), struct pp_error *err);
void pp_signals_close(void);          /* restores the default handlers; SIGHUP is ignored from here on */
int pp_signals_fd(void);              /* readable when pp_signals_pending has something */
unsigned pp_signals_pending(void);       /* bits of enum pp_signal since the last call */
void pp_signals_suspend(void);        /* stops the whole job, as Ctrl-Z does; returns when it continues */
/* Another program gets the terminal: Ctrl-C and Ctrl-\ do not concern us, and Ctrl-Z stops us along with it, so that
 * the shell regains control. defaults: signals that must be reset to their defaults in that program. */
void pp_signals_lend(sigset_t *defaults);
void pp_signals_reclaim(void);

#endif
