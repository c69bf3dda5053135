/* Closing a window sends SIGHUP twice, from the shell and from the terminal: the second must not kill who is saving. A
 * second SIGTERM does. A fault gives the terminal back, in whichever thread. */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/cancel.h"
#include "src/cmd_common.h"
#include "src/io.h"
#include "tests/support.h"
#include "ui/signals.h"

enum { SAVED = 7 };

static void nothing(void)
{
}

/* How a process ends that gets a signal twice and, if it lives and was asked to leave, ends with SAVED. */
static int status_after(bool command, int number)
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
        good = good && (command ? pp_cancelled(stop) : (pp_signals_take() & PP_SIGNAL_QUIT) != 0);
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
        int status = status_after(command, SIGHUP);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), SAVED);
        status = status_after(command, SIGTERM);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGTERM);
    }
}

/* Nor while the end is saved, when the screen is closed already; Ctrl-C and SIGTERM end that. */
static void behind_the_screen(void **state)
{
    (void)state;
    static const int numbers[] = {SIGHUP, SIGINT, SIGTERM};
    for (int i = 0; i < 3; i++) {
        const pid_t pid = fork();
        int status = 0;
        assert_true(pid >= 0);
        if (pid == 0) {
            struct pp_error err;
            signal(SIGHUP, SIG_DFL);
            if (pp_signals_open(nothing, &err) != PP_OK)
                _exit(1);
            pp_signals_close();
            raise(numbers[i]);
            _exit(SAVED);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (numbers[i] == SIGHUP)
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == SAVED);
        else
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == numbers[i]);
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

TEST_GROUP(signals)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(twice), cmocka_unit_test(behind_the_screen),
                                       cmocka_unit_test(fault_in_io_thread)};
    return cmocka_run_group_tests_name("signals", tests, NULL, NULL);
}
