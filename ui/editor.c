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
#include "ui/input.h"
#include "ui/screen.h"

extern char **environ;

static enum pp_code write_file(const char *path, int fd, const char *text, struct pp_error *err)
{
    size_t n = strlen(text);
    while (n > 0) {
        ssize_t written = write(fd, text, n);
        if (written <= 0)
            return pp_fail(err, PP_ERR_IO, "%s cannot be written: %s.", path, strerror(errno));
        text += written;
        n -= (size_t)written;
    }
    return PP_OK;
}

/* The editor may have replaced the file: it is opened anew. */
static enum pp_code read_file(const char *path, char **out, struct pp_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > PP_MAX_PASTE) {
        if (fd >= 0)
            close(fd);
        return pp_fail(err, PP_ERR_IO, "What the editor left in %s cannot be read.", path);
    }
    char *text = pp_malloc((size_t)st.st_size + 1);
    ssize_t n = text ? read(fd, text, (size_t)st.st_size) : -1;
    close(fd);
    if (n < 0) {
        pp_free(text);
        return pp_fail(err, PP_ERR_IO, "%s cannot be read.", path);
    }
    size_t len = 0;
    for (ssize_t i = 0; i < n; i++)
        if (text[i] != '\0' && text[i] != '\r')
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

/* $EDITOR may have arguments: the shell takes it apart. */
static enum pp_code run(const char *command, const char *path, struct pp_error *err)
{
    char script[1024];
    if ((size_t)snprintf(script, sizeof script, "exec %s \"$1\"", command) >= sizeof script)
        return pp_fail(err, PP_ERR_USAGE, "$EDITOR is too long.");
    char *argv[] = {"sh", "-c", script, "sh", (char *)path, NULL};
    pid_t pid;
    int status = 0, error = posix_spawnp(&pid, "sh", NULL, NULL, argv, environ);
    if (error)
        return pp_fail(err, PP_ERR_IO, "The editor '%s' cannot be started: %s.", command, strerror(error));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return pp_fail(err, PP_ERR_IO, "The editor '%s' failed; your text is as it was. $EDITOR names another.",
                       command);
    return PP_OK;
}

enum pp_code pp_editor_run(const char *folder, const char *text, char **out, struct pp_error *err)
{
    char path[600];
    snprintf(path, sizeof path, "%s/message-XXXXXX.md", folder);
    int fd = mkostemps(path, 3, O_CLOEXEC); /* mode 0600 */
    if (fd < 0)
        return pp_fail(err, PP_ERR_IO, "No file for the editor can be made in %s: %s.", folder, strerror(errno));
    enum pp_code code = write_file(path, fd, text, err);
    close(fd);
    if (code == PP_OK) {
        pp_screen_pause();
        code = run(editor_command(), path, err);
        pp_screen_resume();
    }
    if (code == PP_OK)
        code = read_file(path, out, err);
    unlink(path);
    return code;
}
