#include "ui/editor.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/whole_io.h"
#include "ui/edit.h"
#include "ui/input.h"
#include "ui/screen.h"
#include "ui/signals.h"

extern char **environ;

static enum pp_code write_file(const char *path, int fd, const char *text, struct pp_error *err)
{
    return pp_write_whole(fd, text, strlen(text))
               ? PP_OK : pp_fail(err, PP_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

/* Opens the file anew, as the editor may have replaced it. O_NONBLOCK: there may even be a pipe in its place. */
static enum pp_code read_file(const char *path, char **out, struct pp_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0)
            close(fd);
        return pp_fail(err, PP_ERR_IO, "cannot read the edited text in %s", path);
    }
    if (st.st_size > PP_MAX_PASTE) {
        close(fd);
        return pp_fail(err, PP_ERR_IO, "the edited text is larger than %d MB; it was left in %s",
                       PP_MAX_PASTE >> 20, path);
    }
    const size_t n = (size_t)st.st_size;
    char *text = pp_malloc(n + 1);
    const bool whole = text && pp_read_some_at(fd, text, n, 0) == n;
    close(fd);
    if (!whole) {
        pp_free(text);
        return pp_fail(err, PP_ERR_IO, "cannot read the edited text; it was left in %s", path);
    }
    if (memchr(text, 0, n) || !pp_utf8_valid(text, n)) {
        pp_free(text);
        return pp_fail(err, PP_ERR_FORMAT, "the edited text is not valid UTF-8; the line was not changed, and the "
                                           "edited text was left in %s", path);
    }
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] != '\r')
            text[len++] = text[i];
    if (len > 0 && text[len - 1] == '\n')
        len--;
    text[len] = '\0';
    *out = text;
    return PP_OK;
}

static const char *editor_command(void)
{
    const char *names[] = {"VISUAL", "EDITOR"};
    for (int i = 0; i < 2; i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return value;
    }
    return "vi";
}

/* $EDITOR may include arguments, so the shell splits it. */
static enum pp_code run(const char *command, const char *path, struct pp_error *err)
{
    char script[1024];
    if ((size_t)snprintf(script, sizeof script, "exec %s \"$1\"", command) >= sizeof script)
        return pp_fail(err, PP_ERR_USAGE, "$EDITOR is too long.");
    char *argv[] = {"sh", "-c", script, "sh", (char *)path, NULL};
    pid_t pid;
    posix_spawnattr_t attr;
    sigset_t defaults;
    int status = 0, error = posix_spawnattr_init(&attr);
    if (error)
        return pp_fail_nomem(err, "the editor");
    pp_signals_lend(&defaults);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
    error = posix_spawnp(&pid, "sh", NULL, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    while (!error && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    pp_signals_reclaim();
    if (error)
        return pp_fail(err, PP_ERR_IO, "cannot start the editor '%s': %s", command, strerror(error));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return pp_fail(err, PP_ERR_IO, "the editor '%s' failed; the line was not changed (set $EDITOR to use another)",
                       command);
    return PP_OK;
}

/* Whether an editor that failed has saved changes, other than a final line feed. */
static bool has_written(const char *path, const char *text)
{
    size_t n = strlen(text);
    char *left = NULL;
    n -= n > 0 && text[n - 1] == '\n';
    const enum pp_code code = read_file(path, &left, NULL);
    const bool other =
        code == PP_ERR_FORMAT || (code == PP_OK && (strlen(left) != n || memcmp(left, text, n) != 0));
    pp_free(left);
    return other;
}

static enum pp_code take_over(const char *path, struct pp_error *err)
{
    char *text = NULL;
    enum pp_code code = read_file(path, &text, err);
    if (code == PP_OK && !pp_edit_set(text))
        code = pp_fail(err, PP_ERR_NOMEM, "out of memory: the line was not changed; the edited text was left in %s",
                       path);
    pp_free(text);
    return code;
}

enum pp_code pp_editor_run(const char *folder, const char *text, struct pp_error *err)
{
    char path[600];
    snprintf(path, sizeof path, "%s/message-XXXXXX.md", folder);
    int fd = mkostemps(path, 3, O_CLOEXEC); /* created with mode 0600 */
    if (fd < 0)
        return pp_fail(err, PP_ERR_IO, "cannot create a file for the editor in %s: %s", folder, strerror(errno));
    enum pp_code code = write_file(path, fd, text, err);
    bool keep = false; /* the text exists nowhere else */
    close(fd);
    if (code == PP_OK) {
        pp_screen_pause();
        code = run(editor_command(), path, err);
        pp_screen_resume();
        if (code == PP_OK)
            keep = (code = take_over(path, err)) != PP_OK;
        else if ((keep = has_written(path, text)))
            pp_fail(err, code, "the editor failed; the line was not changed, and the editor's text was left in %s",
                    path);
    }
    if (!keep)
        unlink(path);
    return code;
}
