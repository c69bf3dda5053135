/* key_latency.c - measures how fast keys appear on the screen while the model answers (make latency;
 * build/key-latency build/pippin).
 *
 * Pippin runs in a pseudo-terminal, with the starter model answering on all cores. Letters are typed into it, and
 * in random order into a second pseudo-terminal, in which a tiny child process echoes every byte: its times are
 * the machine's part of the delay, the rest is pippin's.
 *
 * The letters are from Latin Extended-A, which English answers do not use; and a letter counts only once it is in the
 * row of the input line, which a small terminal emulator finds in pippin's output. Each time is taken right after
 * the read() that returned the bytes.
 * This program prints numbers and does not judge them: it fails only if pippin cannot be measured. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <locale.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "engine/base/priority.h"

enum {
    ROWS = 30, COLS = 100,
    INPUT_ROW = ROWS - 3, STATUS_ROW = ROWS - 2, /* below them stands the row of F-keys */
    FIRST_LETTER = 0x100, N_LETTERS = 48,        /* letters typed in a row before the line is cleared */
    MAX_PARAMS = 8, MAX_SAMPLES = 100000,
    ANSWER_TOKENS = 1500, CONTEXT_TOKENS = 4096,
    N_STOPS = 20, N_OPENED = 40, LONG_PROMPT = 9000,
};
#define MS UINT64_C(1000000)
#define QUESTION "Tell me a long story about the sea."
#define LOST UINT64_C(2000000000)  /* a key not seen within this time counts as lost */
#define START UINT64_C(60000000000)

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* --- a terminal's screen ------------------------------------------------------------------------------------------ */

/* What ncurses uses of xterm-256color without scrolling: cells, cursor, erasing, shifting within a line, repeating. */
struct screen {
    uint32_t cells[ROWS][COLS];
    int row, col;
    bool full;                    /* the last column was written: the next letter wraps */
    uint32_t last;                /* letter written, for REP */
    enum { GROUND, ESCAPE, CSI, STRING, ONE_MORE } state;
    int params[MAX_PARAMS], n_params;
    bool private_mode;
    uint32_t cp;
    int more;                     /* bytes that the character still lacks */
};

static int clamp(int v, int max)
{
    return v < 0 ? 0 : v > max ? max : v;
}

static void move_to(struct screen *s, int row, int col)
{
    s->row = clamp(row, ROWS - 1);
    s->col = clamp(col, COLS - 1);
    s->full = false;
}

static void blank(struct screen *s, int row, int from, int to)
{
    for (int x = from; x < to && x < COLS; x++)
        s->cells[row][x] = ' ';
}

static void next_line(struct screen *s)
{
    if (s->row < ROWS - 1) {
        s->row++;
        return;
    }
    memmove(s->cells[0], s->cells[1], sizeof s->cells - sizeof s->cells[0]);
    blank(s, ROWS - 1, 0, COLS);
}

static void write_letter(struct screen *s, uint32_t cp)
{
    int width = wcwidth((wchar_t)cp);
    if (width <= 0)
        return;
    if (s->full) {
        next_line(s);
        move_to(s, s->row, 0);
    }
    s->cells[s->row][s->col] = s->last = cp;
    if (width == 2 && s->col + 1 < COLS)
        s->cells[s->row][s->col + 1] = 0;
    s->full = s->col + width >= COLS;
    s->col = clamp(s->col + width, COLS - 1);
}

static void shift(struct screen *s, int n, bool right)
{
    uint32_t *at = &s->cells[s->row][s->col];
    int rest = COLS - s->col;
    n = clamp(n, rest);
    if (right) {
        memmove(at + n, at, (size_t)(rest - n) * sizeof *at);
        blank(s, s->row, s->col, s->col + n);
    } else {
        memmove(at, at + n, (size_t)(rest - n) * sizeof *at);
        blank(s, s->row, COLS - n, COLS);
    }
}

static void erase_display(struct screen *s, int what)
{
    for (int y = 0; y < ROWS; y++)
        if (what >= 2 || (what == 0 ? y > s->row : y < s->row))
            blank(s, y, 0, COLS);
    if (what < 2)
        blank(s, s->row, what == 0 ? s->col : 0, what == 0 ? COLS : s->col + 1);
}

static void erase_line(struct screen *s, int what)
{
    blank(s, s->row, what == 0 ? s->col : 0, what == 1 ? s->col + 1 : COLS);
}

static void control_sequence(struct screen *s, char final)
{
    int p0 = s->params[0], p1 = s->n_params > 1 ? s->params[1] : 0, n = p0 > 0 ? p0 : 1;
    if (s->private_mode)
        return;
    switch (final) {
    case 'A': move_to(s, s->row - n, s->col); break;
    case 'B': move_to(s, s->row + n, s->col); break;
    case 'C': move_to(s, s->row, s->col + n); break;
    case 'D': move_to(s, s->row, s->col - n); break;
    case 'G': move_to(s, s->row, n - 1); break;
    case 'd': move_to(s, n - 1, s->col); break;
    case 'H': move_to(s, n - 1, (p1 > 0 ? p1 : 1) - 1); break;
    case 'J': erase_display(s, p0); break;
    case 'K': erase_line(s, p0); break;
    case 'X': blank(s, s->row, s->col, s->col + n); break;
    case '@': shift(s, n, true); break;
    case 'P': shift(s, n, false); break;
    case 'Z': move_to(s, s->row, (s->col - 1) / 8 * 8); break;
    case 'b':
        for (int i = 0; i < n && i < COLS; i++)
            write_letter(s, s->last);
        break;
    default: break; /* colours and modes */
    }
}

static void control_char(struct screen *s, unsigned char c)
{
    switch (c) {
    case '\r': move_to(s, s->row, 0); break;
    case '\n': next_line(s); s->full = false; break;
    case '\b': move_to(s, s->row, s->col - 1); break;
    case '\t': move_to(s, s->row, (s->col / 8 + 1) * 8); break;
    case 0x1B: s->state = ESCAPE; break;
    default: break;
    }
}

static void begin_sequence(struct screen *s, unsigned char c)
{
    s->state = GROUND;
    if (c == '[') {
        s->state = CSI;
        memset(s->params, 0, sizeof s->params);
        s->n_params = 0;
        s->private_mode = false;
    } else if (c == ']') {
        s->state = STRING;
    } else if (c == '(' || c == ')') {
        s->state = ONE_MORE;
    } else if (c == 'M') {
        move_to(s, s->row - 1, s->col);
    }
}

static void in_sequence(struct screen *s, unsigned char c)
{
    if (c >= '0' && c <= '9') {
        if (s->n_params == 0)
            s->n_params = 1;
        int *p = &s->params[s->n_params - 1];
        *p = clamp(*p * 10 + (c - '0'), 9999);
    } else if (c == ';' || c == ':') {
        s->n_params = clamp(s->n_params ? s->n_params + 1 : 2, MAX_PARAMS);
    } else if (c == '?' || c == '>' || c == '=') {
        s->private_mode = true;
    } else if (c >= 0x40) {
        control_sequence(s, (char)c);
        s->state = GROUND;
    }
}

static void ground(struct screen *s, unsigned char c)
{
    if (s->more && (c & 0xC0) == 0x80) {
        s->cp = s->cp << 6 | (c & 0x3F);
        if (--s->more == 0)
            write_letter(s, s->cp);
        return;
    }
    s->more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : c >= 0xC0 ? 1 : 0;
    if (s->more)
        s->cp = c & (0x3Fu >> s->more);
    else if (c < 0x20)
        control_char(s, c);
    else if (c < 0x7F)
        write_letter(s, c);
}

static void show(struct screen *s, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = bytes[i];
        switch (s->state) {
        case GROUND: ground(s, c); break;
        case ESCAPE: begin_sequence(s, c); break;
        case CSI: in_sequence(s, c); break;
        case STRING: s->state = c == '\a' ? GROUND : c == 0x1B ? ESCAPE : STRING; break; /* the \ after ESC is then
                                                                                            ignored */
        case ONE_MORE: s->state = GROUND; break;
        }
    }
}

static bool row_has(const struct screen *s, int row, uint32_t letter)
{
    for (int x = 0; x < COLS; x++)
        if (s->cells[row][x] == letter)
            return true;
    return false;
}

/* The status line begins with a blank and the state. */
static bool state_is(const struct screen *s, const char *word)
{
    const uint32_t *at = &s->cells[STATUS_ROW][1];
    size_t n = strlen(word);
    for (size_t i = 0; i < n; i++)
        if (at[i] != (unsigned char)word[i])
            return false;
    return at[n] == ' ';
}

/* Rows of the transcript on which there is something. */
static int rows_filled(const struct screen *s)
{
    int n = 0;
    for (int y = 0; y < INPUT_ROW - 1; y++)
        for (int x = 0; x < COLS; x++)
            if (s->cells[y][x] > ' ') {
                n++;
                break;
            }
    return n;
}

static bool shows(const struct screen *s, const char *word)
{
    const int n = (int)strlen(word);
    for (int y = 0; y < ROWS; y++)
        for (int x = 0; x + n <= COLS; x++) {
            int i = 0;
            while (i < n && s->cells[y][x + i] == (unsigned char)word[i])
                i++;
            if (i == n)
                return true;
        }
    return false;
}

/* --- two terminals ------------------------------------------------------------------------------------------------ */

struct terminal {
    int fd;
    pid_t pid;
    size_t n_read;
    uint64_t read_at;       /* when the last bytes came */
    bool gone;
    struct screen *screen;  /* NULL: the bytes are discarded */
};

enum { BARE, PIPPIN };

struct bench {
    struct terminal at[2];
    struct screen screen;
    char dir[64];
    const char *data;                 /* a data folder to use, or NULL */
    uint64_t answering_ns, n_answers; /* of answers that were not stopped */
    uint64_t answer_began;
};

static void serve_terminal(struct terminal *t)
{
    unsigned char bytes[65536];
    ssize_t n = read(t->fd, bytes, sizeof bytes);
    t->read_at = now_ns();
    if (n > 0) {
        t->n_read += (size_t)n;
        if (t->screen)
            show(t->screen, bytes, (size_t)n);
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        t->gone = true;
    }
}

/* Reads what has arrived, or waits for something until the given time; true if something came. */
static bool serve(struct bench *b, uint64_t until)
{
    struct pollfd fds[2];
    for (int i = 0; i < 2; i++)
        fds[i] = (struct pollfd){b->at[i].gone ? -1 : b->at[i].fd, POLLIN, 0};
    uint64_t now = now_ns(), left = until > now ? until - now : 0;
    struct timespec timeout = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
    if (ppoll(fds, 2, &timeout, NULL) <= 0)
        return false;
    for (int i = 0; i < 2; i++)
        if (fds[i].revents)
            serve_terminal(&b->at[i]);
    return true;
}

static void rest(struct bench *b, uint64_t ns)
{
    uint64_t until = now_ns() + ns;
    while (now_ns() < until)
        serve(b, until);
}

static uint64_t between(uint64_t low_ms, uint64_t high_ms)
{
    return (low_ms * 1000 + (uint64_t)random() % ((high_ms - low_ms) * 1000)) * 1000;
}

/* Waits until the status line begins with the word, or no longer does; false if that takes too long. */
static bool wait_state(struct bench *b, const char *word, bool is, uint64_t ns)
{
    uint64_t until = now_ns() + ns;
    while (state_is(&b->screen, word) != is) {
        if (now_ns() >= until || b->at[PIPPIN].gone)
            return false;
        serve(b, until);
    }
    return true;
}

static bool send_bytes(const struct terminal *t, const char *s, size_t n)
{
    return write(t->fd, s, n) == (ssize_t)n;
}

static bool type(struct bench *b, const char *s)
{
    return send_bytes(&b->at[PIPPIN], s, strlen(s));
}

static void echo_child(void)
{
    char bytes[256];
    struct termios raw;
    tcgetattr(0, &raw);
    cfmakeraw(&raw);
    tcsetattr(0, TCSANOW, &raw);
    for (ssize_t n; (n = read(0, bytes, sizeof bytes)) > 0;)
        if (write(1, bytes, (size_t)n) != n)
            break;
    _exit(0);
}

static void pippin_child(const char *dir, const char *data, const char *program)
{
    static const char *const names[] = {"HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"};
    char number[2][16], path[160];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        mkdir(path, 0700);
        setenv(names[i], path, 1);
    }
    if (data)
        setenv("XDG_DATA_HOME", data, 1);
    setenv("TERM", "xterm-256color", 1);
    unsetenv("NO_COLOR");
    snprintf(number[0], sizeof number[0], "%d", ANSWER_TOKENS);
    snprintf(number[1], sizeof number[1], "%d", CONTEXT_TOKENS);
    execl(program, program, "--ignore-eos", "-n", number[0], "--ctx-size", number[1], (char *)NULL);
    _exit(127);
}

static bool open_terminals(struct bench *b, const char *program)
{
    struct winsize size = {.ws_row = ROWS, .ws_col = COLS};
    for (int y = 0; y < ROWS; y++)
        blank(&b->screen, y, 0, COLS);
    b->at[PIPPIN].screen = &b->screen;
    for (int i = 0; i < 2; i++) {
        struct terminal *t = &b->at[i];
        t->pid = forkpty(&t->fd, NULL, NULL, &size);
        if (t->pid < 0)
            return false;
        if (t->pid == 0 && i == BARE)
            echo_child();
        if (t->pid == 0)
            pippin_child(b->dir, b->data, program);
        fcntl(t->fd, F_SETFD, FD_CLOEXEC);
    }
    return wait_state(b, "ready", true, START);
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static void close_terminals(struct bench *b)
{
    for (int i = 0; i < 2; i++) {
        struct terminal *t = &b->at[i];
        if (t->pid <= 0)
            continue;
        kill(t->pid, SIGTERM);
        uint64_t until = now_ns() + 5000 * MS;
        while (waitpid(t->pid, NULL, WNOHANG) == 0) {
            if (now_ns() > until)
                kill(t->pid, SIGKILL);
            serve(b, now_ns() + 10 * MS);
        }
        close(t->fd);
        t->gone = true;
    }
    nftw(b->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static bool ask(struct bench *b, const char *prompt)
{
    return type(b, "\025/new\r") && (rest(b, 50 * MS), true) && type(b, prompt) && type(b, "\r");
}

static void note_end(struct bench *b)
{
    if (b->answer_began && state_is(&b->screen, "ready")) {
        b->answering_ns += now_ns() - b->answer_began;
        b->n_answers++;
        b->answer_began = 0;
    }
}

static bool wait_end(struct bench *b)
{
    bool ready = wait_state(b, "ready", true, START);
    note_end(b);
    return ready;
}

static bool keep_answering(struct bench *b)
{
    note_end(b);
    for (int i = 0; i < 20 && !state_is(&b->screen, "answering"); i++) {
        if (b->at[PIPPIN].gone || !wait_state(b, "ready", true, 5000 * MS) || !ask(b, QUESTION))
            return false;
        if (wait_state(b, "answering", true, 2000 * MS))
            b->answer_began = now_ns();
    }
    return state_is(&b->screen, "answering");
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

struct samples {
    uint64_t *ns;
    size_t n, lost;
};

/* Types one letter and waits for it. */
static void press(struct bench *b, int which, uint32_t letter, struct samples *out)
{
    struct terminal *t = &b->at[which];
    const char bytes[2] = {(char)(0xC0 | letter >> 6), (char)(0x80 | (letter & 0x3F))};
    size_t before = t->n_read;
    uint64_t begin = now_ns(), until = begin + LOST;
    if (!send_bytes(t, bytes, sizeof bytes))
        return;
    while (which == BARE ? t->n_read < before + sizeof bytes : !row_has(&b->screen, INPUT_ROW, letter)) {
        if (t->gone || !serve(b, until)) {
            out->lost++;
            return;
        }
    }
    out->ns[out->n++] = t->read_at - begin;
}

static bool measure_keys(struct bench *b, size_t n, struct samples samples[2])
{
    uint32_t typed = 0;
    while (samples[BARE].n < n || samples[PIPPIN].n < n) {
        rest(b, between(20, 60));
        if (!state_is(&b->screen, "answering")) {
            if (!keep_answering(b))
                return false;
            typed = 0;
            continue;
        }
        int which = samples[BARE].n >= n ? PIPPIN : samples[PIPPIN].n >= n ? BARE : (int)(random() >> 8 & 1);
        press(b, which, FIRST_LETTER + typed, &samples[which]);
        if (which == PIPPIN && ++typed == N_LETTERS) {
            typed = 0;
            type(b, "\025");
        }
    }
    return true;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The samples must be sorted. */
static double percentile_ms(const struct samples *s, int per_cent)
{
    if (s->n == 0)
        return 0;
    size_t i = (s->n * (size_t)per_cent + 99) / 100;
    return (double)s->ns[i ? i - 1 : 0] / 1e6;
}

static void print_samples(const char *name, struct samples *s, bool json)
{
    qsort(s->ns, s->n, sizeof *s->ns, by_size);
    const char *format = json ? "\"%s\": {\"n\": %zu, \"lost\": %zu, \"median_ms\": %.3f, \"p90_ms\": %.3f, "
                                "\"p99_ms\": %.3f, \"max_ms\": %.3f}"
                              : "%-12s n %4zu  lost %zu  median %7.3f  p90 %7.3f  p99 %7.3f  max %7.3f ms\n";
    printf(format, name, s->n, s->lost, percentile_ms(s, 50), percentile_ms(s, 90), percentile_ms(s, 99),
           percentile_ms(s, 100));
}

static bool run_keys(struct bench *b, size_t n, bool json)
{
    struct samples samples[2] = {0};
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok = (samples[i].ns = calloc(n, sizeof(uint64_t))) && ok;
    ok = ok && keep_answering(b) && measure_keys(b, n, samples);
    if (ok && b->n_answers == 0) /* no answer was long enough to measure the speed */
        ok = wait_end(b);
    if (ok) {
        printf(json ? "{" : "");
        print_samples(json ? "bare_echo" : "bare echo", &samples[BARE], json);
        printf(json ? ", " : "");
        print_samples("pippin", &samples[PIPPIN], json);
        double later = percentile_ms(&samples[PIPPIN], 99) - percentile_ms(&samples[BARE], 99);
        double rate = b->answering_ns ? (double)b->n_answers * ANSWER_TOKENS * 1e9 / (double)b->answering_ns : 0;
        printf(json ? ", \"p99_later_ms\": %.3f, \"tokens_per_s\": %.1f}\n"
                    : "p99 later than the bare echo: %.3f ms, at %.0f tokens/s\n", later, rate);
    }
    for (int i = 0; i < 2; i++)
        free(samples[i].ns);
    return ok;
}

/* --- stopping ----------------------------------------------------------------------------------------------------- */

/* Pastes a prompt that takes a while to be read. */
static bool paste_long(struct bench *b)
{
    static const char words[] = "The lighthouse keeper counted the ships of the evening. ";
    char text[LONG_PROMPT + sizeof "\033[200~\033[201~"] = "\033[200~";
    size_t n = strlen(text);
    while (n + sizeof words < LONG_PROMPT) {
        memcpy(text + n, words, sizeof words - 1);
        n += sizeof words - 1;
    }
    n += (size_t)snprintf(text + n, sizeof text - n, "\033[201~");
    for (size_t at = 0; at < n; at += 1024) { /* a terminal's buffer is small: let it be read */
        if (!send_bytes(&b->at[PIPPIN], text + at, n - at < 1024 ? n - at : 1024))
            return false;
        rest(b, 20 * MS);
    }
    return true;
}

static bool stop_once(struct bench *b, const char *state, struct samples *out)
{
    bool long_prompt = strcmp(state, "reading") == 0;
    if (!wait_state(b, "ready", true, 5000 * MS) || !type(b, "\025/new\r"))
        return false;
    rest(b, 50 * MS);
    if (!(long_prompt ? paste_long(b) : type(b, QUESTION)) || !type(b, "\r") ||
        !wait_state(b, state, true, 5000 * MS))
        return false;
    rest(b, long_prompt ? between(1, 100) : between(100, 400));
    if (!state_is(&b->screen, state))
        return true; /* the prompt was finished before it could be stopped: no sample */
    uint64_t begin = now_ns();
    if (!type(b, "\033"))
        return false;
    if (wait_state(b, "ready", true, LOST))
        out->ns[out->n++] = b->at[PIPPIN].read_at - begin;
    else
        out->lost++;
    return true;
}

static bool run_stop(struct bench *b, bool json)
{
    static const char *const states[] = {"answering", "reading"};
    uint64_t ns[2][N_STOPS];
    struct samples samples[2] = {{.ns = ns[0]}, {.ns = ns[1]}};
    for (int i = 0; i < 2; i++)
        for (int tries = 0; samples[i].n < N_STOPS && tries < 2 * N_STOPS; tries++)
            if (!stop_once(b, states[i], &samples[i]))
                return false;
    printf(json ? "{" : "From Esc (which waits 25 ms for more of a sequence) until the status line shows the end:\n");
    print_samples(states[0], &samples[0], json);
    printf(json ? ", " : "");
    print_samples(states[1], &samples[1], json);
    printf(json ? "}\n" : "");
    return samples[0].n > 0 && samples[1].n > 0;
}

/* --- idling ------------------------------------------------------------------------------------------------------- */

static bool read_text(const char *path, char *out, size_t cap)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    size_t n = fread(out, 1, cap - 1, f);
    out[n] = '\0';
    fclose(f);
    return n > 0;
}

/* utime + stime of all threads. */
static double cpu_ms(pid_t pid)
{
    char path[64], text[1024];
    uint64_t user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const char *rest_of_line = read_text(path, text, sizeof text) ? strrchr(text, ')') : NULL;
    if (rest_of_line)
        sscanf(rest_of_line + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64, &user, &system);
    return (double)(user + system) * 1000 / (double)sysconf(_SC_CLK_TCK);
}

/* How often the process's threads went to sleep, and so were woken. */
static uint64_t wakeups(pid_t pid)
{
    char path[320], text[4096];
    uint64_t total = 0, n;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    for (struct dirent *e; tasks && (e = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)pid, e->d_name);
        bool read = e->d_name[0] != '.' && read_text(path, text, sizeof text);
        const char *line = read ? strstr(text, "\nvoluntary_ctxt_switches:") : NULL;
        if (line && sscanf(line, "\nvoluntary_ctxt_switches: %" SCNu64, &n) == 1)
            total += n;
    }
    if (tasks)
        closedir(tasks);
    return total;
}

static bool run_idle(struct bench *b, long seconds, bool json)
{
    pid_t pid = b->at[PIPPIN].pid;
    if (!keep_answering(b) || !wait_end(b))
        return false;
    rest(b, 5000 * MS); /* the work that remains after an answer: saving */
    double cpu = cpu_ms(pid);
    uint64_t awoken = wakeups(pid);
    size_t drawn = b->at[PIPPIN].n_read;
    rest(b, (uint64_t)seconds * 1000 * MS);
    cpu = cpu_ms(pid) - cpu;
    awoken = wakeups(pid) - awoken;
    drawn = b->at[PIPPIN].n_read - drawn;
    printf(json ? "{\"seconds\": %ld, \"cpu_ms\": %.0f, \"wakeups\": %" PRIu64 ", \"bytes_drawn\": %zu}\n"
                : "idle for %ld s: %.0f ms of CPU, %" PRIu64 " wakeups, %zu bytes drawn\n",
           seconds, cpu, awoken, drawn);
    return !b->at[PIPPIN].gone;
}

/* --- opening conversations ---------------------------------------------------------------------------------------- */

/* From an empty screen: F2, some rows down, Enter. It counts when the list is gone and the screen full of messages. */
static bool open_once(struct bench *b, struct samples *out)
{
    if (!type(b, "\025/new\r"))
        return false;
    rest(b, 200 * MS);
    if (!type(b, "\033OQ"))
        return false;
    rest(b, 300 * MS);
    for (long i = random() % 16; i > 0; i--)
        if (!type(b, "\033OB"))
            return false;
    rest(b, 200 * MS);
    if (!shows(&b->screen, "Enter opens"))
        return false;
    uint64_t begin = now_ns(), until = begin + LOST;
    if (!type(b, "\r"))
        return false;
    while (now_ns() < until && (shows(&b->screen, "Enter opens") || rows_filled(&b->screen) < INPUT_ROW - 8))
        serve(b, until);
    if (now_ns() < until)
        out->ns[out->n++] = b->at[PIPPIN].read_at - begin;
    else
        out->lost++;
    return true;
}

static bool run_open(struct bench *b, bool json)
{
    uint64_t ns[N_OPENED];
    struct samples samples = {.ns = ns};
    for (int i = 0; i < N_OPENED; i++)
        if (!open_once(b, &samples))
            return false;
    printf(json ? "{" : "From Enter in the list of conversations until the screen is full of messages:\n");
    print_samples("open", &samples, json);
    printf(json ? "}\n" : "");
    return samples.n > 0;
}

/* --- main --------------------------------------------------------------------------------------------------------- */

static int usage(void)
{
    fputs("Usage: key-latency PIPPIN [--keys N | --idle SECONDS | --stop | --open FOLDER] [--json]\n"
          "  (nothing)       how much later than on a bare echo a key is seen while the model answers (N: 1000)\n"
          "  --idle SECONDS  the CPU time of a pippin that has nothing to do after an answer\n"
          "  --stop          the time from Esc until an answer, or the reading of a prompt, has stopped\n"
          "  --open FOLDER   the time from Enter in the list until a conversation of that data folder is drawn\n",
          stderr);
    return 2;
}

int main(int argc, char **argv)
{
    static struct bench b;
    bool json = false, stop = false, ok = false;
    long idle = 0, n_keys = 1000;
    const char *program = NULL, *tmp = getenv("TMPDIR");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--stop") == 0)
            stop = true;
        else if (strcmp(argv[i], "--idle") == 0 && i + 1 < argc)
            idle = strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--open") == 0 && i + 1 < argc)
            b.data = argv[++i];
        else if (strcmp(argv[i], "--keys") == 0 && i + 1 < argc)
            n_keys = strtol(argv[++i], NULL, 10);
        else if (argv[i][0] != '-' && !program)
            program = argv[i];
        else
            return usage();
    }
    if (!program || idle < 0 || n_keys < 1 || n_keys > MAX_SAMPLES)
        return usage();
    pp_priority_screen(); /* so that this program's own waits for a core do not count; the children do not inherit it */
    setlocale(LC_CTYPE, "C.UTF-8");
    srandom((unsigned)now_ns());
    snprintf(b.dir, sizeof b.dir, "%.40s/key-latency-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(b.dir)) {
        perror(b.dir);
        return 1;
    }
    if (open_terminals(&b, program))
        ok = b.data ? run_open(&b, json)
             : idle ? run_idle(&b, idle, json)
             : stop ? run_stop(&b, json)
                    : run_keys(&b, (size_t)n_keys, json);
    if (!ok)
        fprintf(stderr, "key-latency: %s did not start, or did not answer\n", program);
    close_terminals(&b);
    return ok ? 0 : 1;
}
