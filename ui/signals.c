#include "ui/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/stop_signal.h"

enum { STACK_BYTES = 64 * 1024, PATIENCE_MS = 3000 };
#define HURRY_NS UINT64_C(1000000000)

static struct {
    int pipe[2];
    atomic_uint pending;
    struct pp_stop_signal terminated;
    _Atomic uint64_t closed_ns;
    void (*restore)(void);
    char *stack;
} sig = {.pipe = {-1, -1}};

static void die_of(int number)
{
    sig.restore();
    signal(number, SIG_DFL);
    raise(number);
}

/* Leaving must not block on a terminal that accepts no output any more (its program hangs, or the connection is
 * down). If it accepts nothing for a while, stdout becomes /dev/null. A terminal that is merely slow is waited for,
 * as the interrupted write would do anyway. */
static void on_alarm(int number)
{
    const int error = errno;
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    (void)number;
    if (poll(&out, 1, PATIENCE_MS) == 0) {
        const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        tcflush(STDOUT_FILENO, TCOFLUSH); /* changing the terminal's modes waits until its output is drained */
        if (nowhere >= 0) {
            dup3(nowhere, STDOUT_FILENO, O_CLOEXEC);
            close(nowhere);
        }
    }
    alarm(1);
    errno = error;
}

static unsigned bit_of(int number)
{
    switch (number) {
    case SIGWINCH: return PP_SIGNAL_RESIZE;
    case SIGTSTP: return PP_SIGNAL_STOP;
    case SIGCONT: return PP_SIGNAL_RESUMED;
    case SIGINT: return PP_SIGNAL_INTERRUPT;
    default: return PP_SIGNAL_QUIT;
    }
}

static void on_signal(int number)
{
    int error = errno;
    unsigned bit = bit_of(number);
    if (number == SIGTERM && pp_stop_signal_insists(&sig.terminated))
        die_of(number);
    if (bit == PP_SIGNAL_QUIT)
        alarm(1);
    if (atomic_fetch_or(&sig.pending, bit) == 0) {
        ssize_t unused = write(sig.pipe[1], "", 1);
        (void)unused;
    }
    errno = error;
}

/* Handles SIGTERM after the screen is closed, if one has already asked to leave: a repeated one must not kill while
 * the conversation is being saved. */
static void on_late_sigterm(int number)
{
    const int error = errno;
    pp_stop_signal_handle(&sig.terminated, number);
    errno = error;
}

/* Handles Ctrl-C and Ctrl-\ after the screen is closed. Users often press them once more than needed, which must not
 * interrupt saving and the last messages. After a while they end the program. */
static void on_hurry(int number)
{
    const int error = errno;
    if (pp_now_ns() > atomic_load(&sig.closed_ns) + HURRY_NS) {
        signal(number, SIG_DFL);
        raise(number);
    }
    errno = error;
}

static const int handled[] = {SIGWINCH, SIGTSTP, SIGCONT, SIGINT, SIGHUP, SIGTERM};
static const int of_keys[] = {SIGINT, SIGQUIT, SIGTSTP}; /* sent by the terminal to the whole job */
static const int fatal[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT};

static void install(int number, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

enum pp_code pp_signals_open(void (*restore)(void), struct pp_error *err)
{
    sig.restore = restore;
    atomic_store(&sig.pending, 0);
    pp_stop_signal_reset(&sig.terminated);
    if (pipe2(sig.pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return pp_fail(err, PP_ERR_IO, "cannot create a pipe for signals: %s", strerror(errno));
    sig.stack = pp_malloc(STACK_BYTES);
    if (!sig.stack) {
        close(sig.pipe[0]);
        close(sig.pipe[1]);
        return pp_fail_nomem(err, "the signal stack");
    }
    sigaltstack(&(stack_t){.ss_sp = sig.stack, .ss_size = STACK_BYTES}, NULL);
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++)
        install(handled[i], on_signal, SA_RESTART);
    install(SIGALRM, on_alarm, SA_RESTART); /* SA_RESTART: the interrupted write continues, into /dev/null */
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++) {
        struct sigaction old;
        sigaction(fatal[i], NULL, &old);
        if (fatal[i] != SIGBUS || (!(old.sa_flags & SA_SIGINFO) && old.sa_handler == SIG_DFL))
            install(fatal[i], die_of, SA_ONSTACK | SA_NODEFER);
    }
    signal(SIGPIPE, SIG_IGN);
    return PP_OK;
}

void pp_signals_close(void)
{
    const bool asked = pp_stop_signal_seen(&sig.terminated);
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++) {
        const int number = handled[i];
        signal(number, number == SIGHUP ? SIG_IGN /* arrives twice when a window is closed */
                       : number == SIGTERM && asked ? on_late_sigterm : SIG_DFL);
    }
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++) {
        struct sigaction old;
        sigaction(fatal[i], NULL, &old);
        if (!(old.sa_flags & SA_SIGINFO) && old.sa_handler == die_of)
            signal(fatal[i], SIG_DFL);
    }
    atomic_store(&sig.closed_ns, pp_now_ns());
    install(SIGINT, on_hurry, SA_RESTART);
    install(SIGQUIT, on_hurry, SA_RESTART);
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    close(sig.pipe[0]);
    close(sig.pipe[1]);
    pp_free(sig.stack);
    sig.stack = NULL;
}

int pp_signals_fd(void)
{
    return sig.pipe[0];
}

unsigned pp_signals_pending(void)
{
    char bytes[64];
    while (read(sig.pipe[0], bytes, sizeof bytes) > 0) {
    }
    return atomic_exchange(&sig.pending, 0);
}

void pp_signals_suspend(void)
{
    signal(SIGTSTP, SIG_DFL);
    kill(0, SIGTSTP);
    install(SIGTSTP, on_signal, SA_RESTART);
    atomic_fetch_and(&sig.pending, ~(unsigned)(PP_SIGNAL_RESUMED | PP_SIGNAL_STOP));
}

void pp_signals_lend(sigset_t *defaults)
{
    sigemptyset(defaults);
    sigaddset(defaults, SIGPIPE);
    for (size_t i = 0; i < sizeof of_keys / sizeof *of_keys; i++) {
        sigaddset(defaults, of_keys[i]);
        install(of_keys[i], of_keys[i] == SIGTSTP ? SIG_DFL : SIG_IGN, 0);
    }
}

void pp_signals_reclaim(void)
{
    install(SIGINT, on_signal, SA_RESTART);
    install(SIGTSTP, on_signal, SA_RESTART);
    install(SIGQUIT, die_of, SA_ONSTACK | SA_NODEFER);
}
