/* Closing a window sends SIGHUP twice, from the shell and from the terminal: the second must not kill who is saving. A
 * second SIGTERM does. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/cancel.h"
#include "src/cmd_common.h"
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

TEST_GROUP(signals)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(twice)};
    return cmocka_run_group_tests_name("signals", tests, NULL, NULL);
}
