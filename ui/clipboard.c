#include "ui/clipboard.h"

#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/whole_io.h"
#include "ui/screen.h"

extern char **environ;

/* The text as a file in memory, for tmux to read from its beginning; -1: no memory. */
static int file_of(const char *text, size_t n)
{
    int fd = memfd_create("pippin-copy", MFD_CLOEXEC);
    if (fd >= 0 && (!pp_write_whole(fd, text, n) || lseek(fd, 0, SEEK_SET) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Passes the text to tmux. The shell runs it in the background, so that a tmux that hangs delays nothing. -w, which
 * sends the text on to the outer terminal, exists since tmux 3.2; older ones only get a buffer. */
static void put_into_tmux(const char *text, size_t n)
{
    static const char script[] = "{ tmux load-buffer -w - || tmux load-buffer -; } <&3 >/dev/null 2>&1 &";
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    const int fd = file_of(text, n);
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    pid_t pid;
    if (fd < 0)
        return;
    sigemptyset(&none);
    sigfillset(&all);
    if (posix_spawn_file_actions_init(&files) == 0) {
        if (posix_spawnattr_init(&attr) == 0) {
            posix_spawnattr_setsigmask(&attr, &none);
            posix_spawnattr_setsigdefault(&attr, &all);
            posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
            if (posix_spawn_file_actions_adddup2(&files, fd, 3) == 0 &&
                posix_spawnp(&pid, "sh", &files, &attr, argv, environ) == 0)
                waitpid(pid, NULL, 0);
            posix_spawnattr_destroy(&attr);
        }
        posix_spawn_file_actions_destroy(&files);
    }
    close(fd);
}

bool pp_clipboard_put(const char *text, size_t n)
{
    const char *tmux = getenv("TMUX");
    if (!pp_screen_copy(text, n))
        return false;
    if (tmux && *tmux)
        put_into_tmux(text, n);
    return true;
}
