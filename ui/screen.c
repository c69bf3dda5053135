#include "ui/screen.h"

#include <curses.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <term.h>
#include <termios.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "ui/signals.h"

enum {
    MAX_COPY = 74 * 1024,              /* the limit of terminals and tmux */
    MAX_ROWS = 1000, MAX_COLS = 4000 /* ncurses allocates several cells per position */
};

/* Reports of buttons and wheel (1000), in SGR encoding (1006), which has no limit of 223 columns. */
static const char mouse_on[] = "\033[?1000h\033[?1006h", mouse_off[] = "\033[?1006l\033[?1000l";
static const char paste_on[] = "\033[?2004h", paste_off[] = "\033[?2004l";

static struct {
    SCREEN *screen;
    struct termios saved_mode;    /* the user's, to be restored */
    struct termios raw_mode;      /* ours */
    volatile sig_atomic_t active; /* the terminal is in our mode */
    /* what restores the terminal (colours, cursor, main screen, paste mode), prepared for signal handlers */
    char restore_seq[256];
    size_t restore_len;
    int typed_ahead; /* bytes pending when it was opened */
    bool mouse;
} scr;

static void write_all(const char *s, size_t n)
{
    while (n > 0) {
        ssize_t written = write(STDOUT_FILENO, s, n);
        if (written <= 0)
            return;
        s += written;
        n -= (size_t)written;
    }
}

static void add_capability(const char *name)
{
    const char *s = tigetstr(name);
    if (!s || s == (const char *)-1)
        return;
    size_t len = strlen(s);
    if (scr.restore_len + len < sizeof scr.restore_seq) {
        memcpy(scr.restore_seq + scr.restore_len, s, len);
        scr.restore_len += len;
    }
}

static void prepare_restore_seq(void)
{
    scr.restore_len = (size_t)snprintf(scr.restore_seq, sizeof scr.restore_seq, "%s%s", paste_off,
                                       scr.mouse ? mouse_off : "");
    add_capability("op");
    add_capability("sgr0");
    add_capability("cnorm");
    add_capability("rmcup");
}

/* Async-signal-safe. Does not wait long for a terminal that accepts no output: that may be why the program is being
 * killed. */
static void restore_in_emergency(void)
{
    enum { TRIES = 5, WAIT_MS = 100 };
    if (!scr.active)
        return;
    scr.active = 0;
    const int flags = fcntl(STDOUT_FILENO, F_GETFL);
    fcntl(STDOUT_FILENO, F_SETFL, flags | O_NONBLOCK);
    size_t done = 0;
    for (int tries = 0; done < scr.restore_len && tries < TRIES; tries++) {
        struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
        (void)poll(&out, 1, WAIT_MS);
        const ssize_t n = write(STDOUT_FILENO, scr.restore_seq + done, scr.restore_len - done);
        done += n > 0 ? (size_t)n : 0;
    }
    fcntl(STDOUT_FILENO, F_SETFL, flags); /* the flags are shared with the parent process */
    tcsetattr(STDIN_FILENO, TCSANOW, &scr.saved_mode);
}

static void restore_at_exit(void)
{
    restore_in_emergency();
}

/* In raw mode Ctrl-C, Ctrl-Z and Ctrl-\ are keys, which keep their order among the others, and in a paste they are
 * text. Otherwise one in a paste would end the program, and the shell would execute the rest. */
static void set_modes(void)
{
    noecho();
    nonl();
    raw();
    tcgetattr(STDIN_FILENO, &scr.raw_mode);
    scr.raw_mode.c_cc[VMIN] = 1;
    scr.raw_mode.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &scr.raw_mode);
    def_prog_mode();
}

static void set_reports(bool on)
{
    write_all(on ? paste_on : paste_off, strlen(on ? paste_on : paste_off));
    if (scr.mouse)
        write_all(on ? mouse_on : mouse_off, strlen(on ? mouse_on : mouse_off));
}

enum pp_code pp_screen_open(bool mouse, struct pp_error *err)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &scr.saved_mode) != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "this is not a terminal; use `pippin run` or --plain");
    /* Before newterm, which installs a SIGINT handler that exits, unless there is one already. */
    const enum pp_code code = pp_signals_open(restore_in_emergency, err);
    if (code != PP_OK)
        return code;
    /* LINES and COLUMNS may be inherited from another terminal: believe this one. */
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
        use_env(FALSE);
        use_tioctl(size.ws_row <= MAX_ROWS && size.ws_col <= MAX_COLS);
    }
    scr.screen = newterm(NULL, stdout, stdin);
    if (!scr.screen) {
        pp_signals_close();
        const char *name = getenv("TERM");
        if (!name || !*name)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "TERM, the terminal's type, is not set; set it, or use --plain");
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the terminal \"%s\" (TERM) is unknown; install its terminfo entry, or "
                                                "use --plain", name);
    }
    set_term(scr.screen);
    if (!cursor_address) {
        endwin();
        pp_signals_close();
        delscreen(scr.screen);
        scr.screen = NULL;
        return pp_fail(err, PP_ERR_UNSUPPORTED, "this terminal cannot move its cursor; use --plain");
    }
    scr.mouse = mouse;
    prepare_restore_seq();
    scr.active = 1;
    static bool registered;
    if (!registered)
        registered = atexit(restore_at_exit) == 0;
    set_modes();
    if (ioctl(STDIN_FILENO, FIONREAD, &scr.typed_ahead) != 0)
        scr.typed_ahead = 0;
    if (has_colors()) {
        start_color();
        use_default_colors();
    }
    set_reports(true);
    return PP_OK;
}

/* On a terminal without an alternate screen the last line is cleared, so that the following output does not begin
 * within old text. */
static void restore_terminal(void)
{
    set_reports(false);
    endwin();
    if (!exit_ca_mode && clr_eol) {
        putp(clr_eol);
        fflush(stdout);
    }
    scr.active = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &scr.saved_mode);
}

void pp_screen_close(void)
{
    if (!scr.screen)
        return;
    restore_terminal();
    pp_signals_close();
    delscreen(scr.screen);
    scr.screen = NULL;
}

size_t pp_screen_typed_ahead(void)
{
    return scr.typed_ahead > 0 ? (size_t)scr.typed_ahead : 0;
}

void pp_screen_pause(void)
{
    restore_terminal();
}

void pp_screen_resume(void)
{
    tcsetattr(STDIN_FILENO, TCSADRAIN, &scr.raw_mode);
    scr.active = 1;
    set_reports(true);
    pp_screen_repaint();
    refresh();
}

/* If the terminal reports an absurd size, only its corner is used. */
void pp_screen_resize(int *rows, int *cols)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
        resizeterm(size.ws_row < MAX_ROWS ? size.ws_row : MAX_ROWS,
                   size.ws_col < MAX_COLS ? size.ws_col : MAX_COLS);
    getmaxyx(stdscr, *rows, *cols);
}

void pp_screen_repaint(void)
{
    clearok(curscr, TRUE);
}

void pp_screen_learn_keys(struct pp_input *in)
{
    static const struct { const char *capability; enum pp_key_type key; unsigned mods; } table[] = {
        {"kf1", PP_KEY_F1, 0}, {"kf2", PP_KEY_F2, 0}, {"kf3", PP_KEY_F3, 0}, {"kf4", PP_KEY_F4, 0},
        {"kf5", PP_KEY_F5, 0}, {"kf6", PP_KEY_F6, 0}, {"kf7", PP_KEY_F7, 0}, {"kf8", PP_KEY_F8, 0},
        {"kf9", PP_KEY_F9, 0}, {"kf10", PP_KEY_F10, 0}, {"kf11", PP_KEY_F11, 0}, {"kf12", PP_KEY_F12, 0},
        {"kcuu1", PP_KEY_UP, 0}, {"kcud1", PP_KEY_DOWN, 0}, {"kcub1", PP_KEY_LEFT, 0}, {"kcuf1", PP_KEY_RIGHT, 0},
        {"khome", PP_KEY_HOME, 0}, {"kend", PP_KEY_END, 0}, {"kpp", PP_KEY_PGUP, 0}, {"knp", PP_KEY_PGDN, 0},
        {"kich1", PP_KEY_INSERT, 0}, {"kdch1", PP_KEY_DELETE, 0}, {"kcbt", PP_KEY_BACKTAB, PP_MOD_SHIFT},
        {"kent", PP_KEY_ENTER, 0}, {"kri", PP_KEY_UP, PP_MOD_SHIFT}, {"kind", PP_KEY_DOWN, PP_MOD_SHIFT},
        {"kLFT", PP_KEY_LEFT, PP_MOD_SHIFT}, {"kRIT", PP_KEY_RIGHT, PP_MOD_SHIFT},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const char *s = tigetstr(table[i].capability);
        if (s && s != (const char *)-1)
            pp_input_learn(in, s, table[i].key, table[i].mods);
    }
}

static void add_base64(struct pp_buf *out, const unsigned char *s, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned v = (unsigned)s[i] << 16 | (i + 1 < n ? (unsigned)s[i + 1] << 8 : 0) | (i + 2 < n ? s[i + 2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], '=', '='};
        if (i + 1 < n)
            four[2] = digits[v >> 6 & 63];
        if (i + 2 < n)
            four[3] = digits[v & 63];
        pp_buf_add(out, four, 4);
    }
}

bool pp_screen_copy(const char *text, size_t n)
{
    struct pp_buf out = {0};
    bool fits = n <= MAX_COPY * 3 / 4;
    if (fits) {
        pp_buf_str(&out, "\033]52;c;");
        add_base64(&out, (const unsigned char *)text, n);
        pp_buf_str(&out, "\a");
        fits = !out.bad;
        if (fits)
            write_all(out.data, out.len);
    }
    pp_buf_free(&out);
    return fits;
}
