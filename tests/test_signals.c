/* test_signals.c - signals that end the program. Closing a window sends SIGHUP twice, from the shell and from the
 * terminal: the second one must not kill a program that is saving. A second SIGTERM does, unless it comes right after
 * the first, as timeout(1) sends it. A fault restores the terminal, in whichever thread it happens. A slow terminal
 * gets all of the last words; a dead one does not keep the program. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/cancel.h"
#include "engine/base/stop_signal.h"
#include "src/cmd_common.h"
#include "src/io.h"
#include "tests/support.h"
#include "ui/signals.h"

enum { SAVED = 7 };

static void nothing(void)
{
}

/* The exit status of a process that gets a signal twice; it exits with SAVED if it survives and was asked to quit.
 * later: some time passes between the two. */
static int status_after(bool command, int number, bool later)
{
    const pid_t pid = fork();
    int status = 0;
    assert_true(pid >= 0);
    if (pid == 0) {
        struct pp_error err;
        signal(SIGHUP, SIG_DFL); /* the tests may run under nohup */
        struct pp_cancel *stop = command ? pp_cli_begin() : NULL;
        bool good = command || pp_signals_open(nothing, &err) == PP_OK;
        raise(number);
        good = good && (command ? pp_cancelled(stop) : (pp_signals_pending() & PP_SIGNAL_QUIT) != 0);
        struct timespec left = {.tv_nsec = 400000000};
        while (later && nanosleep(&left, &left) != 0) /* sleep is interrupted now and then in a command that is to
                                                         end */
            continue;
        raise(number);
        _exit(good ? SAVED : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void twice(void **state)
{
    (void)state;
    for (int command = 0; command < 2; command++) {
        static const struct {
            int number;
            bool later, dies;
        } cases[] = {{SIGHUP, false, false}, {SIGHUP, true, false}, {SIGTERM, false, false}, {SIGTERM, true, true}};
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const int status = status_after(command, cases[i].number, cases[i].later);
            if (cases[i].dies)
                assert_true(WIFSIGNALED(status) && WTERMSIG(status) == cases[i].number);
            else
                assert_true(WIFEXITED(status) && WEXITSTATUS(status) == SAVED);
        }
    }
}

/* Handlers run at the same time in two threads: the one that reads the clock first may be the second to act. */
static void at_once(void **state)
{
    struct pp_stop_signal w = {.first_ns = pp_now_ns() + 1000000000};
    (void)state;
    assert_false(pp_stop_signal_insists(&w));
    pp_stop_signal_reset(&w);
    assert_false(pp_stop_signal_insists(&w));
    atomic_store(&w.first_ns, pp_now_ns() - 1000000000);
    assert_true(pp_stop_signal_insists(&w));
}

/* The exit status of a process that gets a signal after the screen was closed; it exits with SAVED if it survives.
 * before: an earlier signal that asked it to quit, or 0; later_ms: the time that passes in between. */
static int status_behind(int before, int number, int later_ms)
{
    const pid_t pid = fork();
    int status = 0;
    assert_true(pid >= 0);
    if (pid == 0) {
        struct pp_error err;
        signal(SIGHUP, SIG_DFL);
        if (pp_signals_open(nothing, &err) != PP_OK)
            _exit(1);
        if (before)
            raise(before);
        pp_signals_close();
        struct timespec left = {later_ms / 1000, later_ms % 1000 * 1000000};
        while (later_ms && nanosleep(&left, &left) != 0) /* sleep is interrupted now and then in a command that is to
                                                            end */
            continue;
        raise(number);
        _exit(SAVED);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* A second SIGHUP does not kill during the final save either, after the screen was closed. Ctrl-C and SIGTERM end the
 * save, but not a SIGTERM that comes together with the one that asked to quit, nor a Ctrl-C or Ctrl-\ right after the
 * one that did. */
static void behind_the_screen(void **state)
{
    (void)state;
    static const struct {
        int before, number, later_ms;
        bool dies;
    } cases[] = {{0, SIGHUP, 0, false}, {0, SIGINT, 0, false}, {0, SIGQUIT, 0, false}, {0, SIGINT, 1100, true},
                 {0, SIGQUIT, 1100, true}, {0, SIGTERM, 0, true}, {SIGTERM, SIGTERM, 0, false},
                 {SIGTERM, SIGTERM, 400, true}, {SIGHUP, SIGTERM, 0, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int status = status_behind(cases[i].before, cases[i].number, cases[i].later_ms);
        if (cases[i].dies)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == cases[i].number);
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == SAVED);
    }
}

/* --- faults ------------------------------------------------------------------------------------------------------ */

static int restored[2];

static void restore(void)
{
    (void)!write(restored[1], "r", 1);
}

static void touch_a_hole(struct pp_job *job, struct pp_store *store)
{
    (void)job;
    (void)store;
    const volatile char *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)*hole;
}

static void fault_in_io_thread(void **state)
{
    (void)state;
    char path[300], byte = 0;
    int status = 0;
    snprintf(path, sizeof path, "%s/fault/pippin.db", test_tmpdir());
    assert_int_equal(pipe(restored), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct pp_error err;
        struct pp_queue *events;
        struct pp_io *io;
        struct pp_job job = {.run = touch_a_hole};
        if (pp_signals_open(restore, &err) || pp_queue_new(8, &events, &err) || pp_io_start(path, events, &io, &err))
            _exit(1);
        pp_io_post(io, &job);
        sleep(20);
        _exit(2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSEGV);
    close(restored[1]);
    assert_int_equal(read(restored[0], &byte, 1), 1);
    assert_int_equal(byte, 'r');
    close(restored[0]);
}

/* --- terminals ---------------------------------------------------------------------------------------------------- */

#if !defined(__SANITIZE_THREAD__)

enum { LAST_WORDS = 1000000, SIP = 4096, PAUSE_MS = 10 };

/* Starts a process that is asked to quit, and then prints its last words to a terminal; *reader is the other end of
 * that terminal. */
static pid_t says_last_words(int *reader)
{
    *reader = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(*reader >= 0 && grantpt(*reader) == 0 && unlockpt(*reader) == 0);
    const int terminal = open(ptsname(*reader), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(terminal >= 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct pp_error err;
        if (dup2(terminal, STDOUT_FILENO) < 0 || pp_signals_open(nothing, &err) != PP_OK)
            _exit(1);
        close(*reader);
        raise(SIGTERM);
        pp_signals_close();
        for (int i = 0; i < LAST_WORDS; i++)
            putchar('w');
        _exit(fflush(stdout) == 0 ? SAVED : 1);
    }
    close(terminal);
    return pid;
}

static void last_words(void **state)
{
    (void)state;
    int slow, dead, status;
    const pid_t to_slow = says_last_words(&slow), to_dead = says_last_words(&dead);
    size_t got = 0;
    char sip[SIP];
    for (ssize_t n; (n = read(slow, sip, sizeof sip)) > 0; got += (size_t)n) { /* until the other end is closed */
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000}, NULL);
        kill(to_slow, SIGALRM); /* it may be interrupted at any time */
    }
    assert_int_equal(waitpid(to_slow, &status, 0), to_slow);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == SAVED);
    assert_int_equal(got, LAST_WORDS);
    assert_int_equal(waitpid(to_dead, &status, 0), to_dead);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == SAVED);
    close(slow);
    close(dead);
}

#endif

TEST_GROUP(signals)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twice), cmocka_unit_test(at_once), cmocka_unit_test(behind_the_screen),
        cmocka_unit_test(fault_in_io_thread),
#if !defined(__SANITIZE_THREAD__) /* its runtime holds signals back while stdio writes */
        cmocka_unit_test(last_words),
#endif
    };
    return cmocka_run_group_tests_name("signals", tests, NULL, NULL);
}
