/* main.c - the program: prepares the process, reads the command line, and starts the chat or a command. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/memory.h"
#include "src/cmd_common.h"
#include "src/commands.h"
#include "src/complete_names.h"
#include "src/options.h"
#include "src/paths.h"
#include "src/plain_text.h"
#include "ui/terminal.h"
#include "ui/ui.h"

/* Opens /dev/null for each of stdin, stdout and stderr that the parent has closed; otherwise the next file opened,
 * say the database, would get its descriptor and receive what is printed. All are read-only: stdin is at its end,
 * and writing fails as it would on a closed descriptor. */
static void fill_gaps(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", O_RDONLY);
}

/* Services and containers may start programs without HOME; it is taken from the user's entry in the password file
 * then. Without one there either, nothing can be stored, but whatever needs no file in the home folder works. */
static void find_home(void)
{
    const char *home = getenv("HOME");
    if (home && home[0] == '/')
        return;
    const struct passwd *user = getpwuid(getuid());
    setenv("HOME", user && user->pw_dir && user->pw_dir[0] == '/' ? user->pw_dir : "/nonexistent", 1);
}

/* Returns the user's umask, which commands that make files restore. */
static mode_t prepare_process(void)
{
    fill_gaps();
    find_home();
    setlocale(LC_CTYPE, "");   /* character set of the user; numbers keep the C locale, as in files and JSON */
    signal(SIGPIPE, SIG_IGN);  /* a reader that has gone away shows as an error of write(), */
    signal(SIGXFSZ, SIG_IGN);  /* as does a file that reaches the limit of ulimit -f */
    return umask(077);         /* conversations are private: nobody else may read them */
}

/* Commands that write files for others to use, which get the user's umask instead of 077. */
static bool makes_files(const char *command)
{
    static const char *const makers[] = {"bench", "convert", "imatrix", "logits", "lora", "quantize"};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
        if (strcmp(command, makers[i]) == 0)
            return true;
    return false;
}

static int fail(enum pp_code code, const struct pp_error *err)
{
    struct pp_buf line = {0};
    pp_plain_text(&line, err->text, strlen(err->text)); /* the message may quote an argument or a file name, with
                                                         * control characters */
    fprintf(stderr, "pippin: %s\n", pp_buf_cstr(&line));
    pp_buf_free(&line);
    return pp_exit_code(code);
}

/* Whether the command was given by name, so that --help means the help of that command and not the program's. */
static bool is_named(int argc, char **argv, const char *command)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], command) == 0)
            return true;
    return false;
}

/* Prints the answer to --help, --version or --completion; false if none of them was given. */
static bool print_information(const struct pp_options *o, const struct pp_paths *p, bool command_named)
{
    if (o->help)
        pp_options_help(stdout, command_named ? o->command : NULL);
    else if (o->version)
        printf("pippin %s\n", PP_VERSION);
    else if (!o->completion)
        return false;
    else if (!pp_options_completion(stdout, o->completion))
        pp_complete_names(stdout, p, o->completion, o->model);
    return true;
}

/* Accepts "pippin help run" for "pippin --help run", as many programs do. */
static void take_help(int argc, char **argv)
{
    static char option[] = "--help";
    if (argc < 2 || strcmp(argv[1], "help") != 0)
        return;
    argv[1] = option;
}

int main(int argc, char **argv)
{
    struct pp_paths paths;
    static struct pp_options options; /* static, as it holds arrays of words that are too large for a small stack */
    struct pp_error err;
    const mode_t mask = prepare_process();
    take_help(argc, argv);
    enum pp_code code = pp_paths_init(&paths, &err);
    if (code == PP_OK)
        code = pp_options_parse(argc, argv, &paths, &options, &err);
    if (code != PP_OK)
        return fail(code, &err);
    if (print_information(&options, &paths, is_named(argc, argv, options.command))) {
        errno = 0;
        if (fflush(stdout) == 0 && !ferror(stdout))
            return 0;
        if (pp_cli_reader_gone()) /* the reader has closed the pipe, as in `pippin --help | head`: no message */
            return 1;
        return fail(pp_fail(&err, PP_ERR_IO, "cannot write the output: %s", strerror(errno)), &err);
    }
    if (makes_files(options.command))
        umask(mask);
    pp_memory_check(!options.memory_check || strcmp(options.memory_check, "off") != 0);
    if (strcmp(options.command, "doctor") == 0) {
        const struct pp_terminal_facts terminal = pp_terminal_query();
        return pp_cmd_doctor(&options, &paths, &terminal);
    }
    pp_command_fn *command = pp_command_find(options.command);
    return command ? command(&options, &paths) : pp_ui_run(&options, &paths);
}
