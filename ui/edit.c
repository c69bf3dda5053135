#include "ui/edit.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <readline/history.h>
#include <readline/readline.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/whole_io.h"
#include "src/paths.h"
#include "ui/history.h"
#include "ui/inputrc.h"
#include "ui/text.h"

enum { CTRL_G = 7 };

static struct {
    struct pp_edit_hooks hooks;
    char history[1024];
    bool last_unwritten; /* the last entry of the history is only in memory */
    FILE *dev_null;       /* /dev/null, for readline's output */
    char queue[256];      /* bytes of a key, for readline to read */
    size_t queue_len, queue_at; /* how many there were, and how many of them it has read */
    char *refused;        /* a text that accept() has refused, to be put back; allocated by readline */
    char *typed_line;     /* what was being typed when that text, or an accepted one, was recalled from the history;
                           * NULL: nothing */
    int recalled_at;      /* index of the recalled entry */
    char *search_line;    /* the line in which a non-incremental search was begun, */
    int search_at, search_point; /* its index in the history, and the cursor in it */
} ed;

/* --- readline's callbacks ---------------------------------------------------------------------------------- */

static int next_byte(FILE *unused)
{
    (void)unused;
    if (ed.queue_at < ed.queue_len)
        return (unsigned char)ed.queue[ed.queue_at++];
    return CTRL_G; /* readline wants more than this key: end its command with an abort */
}

static int bytes_waiting(void)
{
    return ed.queue_at < ed.queue_len;
}

static void draw_nothing(void)
{
}

static void leave_terminal(void)
{
}

static void prepare_terminal(int meta)
{
    (void)meta;
}

/* The line that was being typed before an older one was recalled. readline would lose it when the older one is sent. */
static char *take_typed_line(void)
{
    rl_maybe_unsave_line();
    const char *s = rl_line_buffer;
    return s[strspn(s, " \t\n")] ? pp_strdup(s) : NULL;
}

static void on_line(char *line)
{
    if (!line)
        return;
    ed.recalled_at = where_history();
    const bool recalled = ed.recalled_at < history_length;
    const bool accepted = ed.hooks.accept(ed.hooks.user, line);
    pp_free(ed.typed_line);
    ed.typed_line = recalled ? take_typed_line() : NULL;
    free(ed.refused);
    ed.refused = accepted ? NULL : line;
    if (accepted)
        free(line); /* allocated by readline */
}

static int on_tab(int count, int key)
{
    (void)count, (void)key;
    if (rl_point != rl_end)
        return 0;
    char *text = ed.hooks.complete(ed.hooks.user, pp_edit_text());
    if (text && !pp_edit_set(text))
        ed.hooks.complain(ed.hooks.user, "out of memory: the line was not changed");
    pp_free(text);
    return 0;
}

/* Adds a line to the history before readline replaces it and loses its changes. */
static void add_to_history(const char *line)
{
    const int at = where_history() < history_length ? where_history() : -1;
    if (!line[strspn(line, " \t\n")])
        return;
    add_history(line);
    using_history();
    if (at >= 0)
        history_set_pos(at);
}

static int revert(int count, int key)
{
    add_to_history(rl_line_buffer);
    return rl_revert_line(count, key);
}

/* Non-incremental searches: vi's / and ?, Alt-P and Alt-N. vi's own versions match a glob pattern at every byte of
 * every line, which takes minutes for long lines; these search for plain text, with ^ for the beginning of a line.
 * If nothing is found, readline would lose the changes to the current line, so it is noted here. */
static void save_search_line(void)
{
    pp_free(ed.search_line);
    ed.search_line = pp_strdup(rl_line_buffer);
    ed.search_at = where_history();
    ed.search_point = rl_point;
}

static int search_back(int count, int key)
{
    (void)key;
    save_search_line();
    return rl_noninc_reverse_search(count, ':');
}

static int search_on(int count, int key)
{
    (void)key;
    save_search_line();
    return rl_noninc_forward_search(count, ':');
}

static int search_back_again(int count, int key)
{
    (void)key;
    return rl_noninc_reverse_search_again(count, ':');
}

static int search_on_again(int count, int key)
{
    (void)key;
    return rl_noninc_forward_search_again(count, ':');
}

/* --- starting and ending ------------------------------------------------------------------------------------ */

static void add_loaded(void *user, const char *text)
{
    (void)user;
    add_history(text);
}

static int on_reread(int count, int key);

/* Binds common keys that readline leaves unbound, and replaces commands that do not fit this input line. */
static void bind_keys(void)
{
    static const struct { const char *keys; rl_command_func_t *function; } table[] = {
        {"\\e[1;5C", rl_forward_word}, {"\\e[1;5D", rl_backward_word}, {"\\e[1;3C", rl_forward_word},
        {"\\e[1;3D", rl_backward_word}, {"\\e[3~", rl_delete}, {"\\e[1~", rl_beg_of_line}, {"\\e[4~", rl_end_of_line},
        {"\\e[7~", rl_beg_of_line}, {"\\e[8~", rl_end_of_line}, {"\\e[3;5~", rl_kill_word},
    };
    static const struct { const char *keys; rl_command_func_t *function, *replacement; bool vi; } usual[] = {
        {"\030\022", rl_re_read_init_file, on_reread, false},
        {"\033p", rl_noninc_reverse_search, search_back, false}, {"\033n", rl_noninc_forward_search, search_on, false},
        {"\033r", rl_revert_line, revert, false},
        /* these would comment the line out and send it */
        {"\033#", rl_insert_comment, NULL, false}, {"#", rl_insert_comment, NULL, true},
    };
    Keymap maps[] = {emacs_standard_keymap, vi_insertion_keymap};
    for (int m = 0; m < 2; m++) {
        for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
            rl_bind_keyseq_if_unbound_in_map(table[i].keys, table[i].function, maps[m]);
        rl_bind_key_in_map('\t', on_tab, maps[m]);
    }
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        Keymap map = usual[i].vi ? vi_movement_keymap : emacs_standard_keymap;
        if (rl_function_of_keyseq(usual[i].keys, map, NULL) == usual[i].function)
            rl_bind_keyseq_in_map(usual[i].keys, usual[i].replacement, map);
    }
    rl_bind_key_in_map('/', search_back, vi_movement_keymap);
    rl_bind_key_in_map('?', search_on, vi_movement_keymap);
    rl_bind_key_in_map('n', search_back_again, vi_movement_keymap);
    rl_bind_key_in_map('N', search_on_again, vi_movement_keymap);
}

/* The path of the inputrc that readline would read. */
static void inputrc_path(char *path, size_t cap)
{
    const char *name = getenv("INPUTRC");
    if (name && *name)
        (void)(pp_expand_home(name, path, cap) || (path[0] = '\0'));
    else if (!pp_expand_home("~/.inputrc", path, cap) || access(path, R_OK) != 0)
        snprintf(path, cap, "/etc/inputrc");
}

/* Reads that file; if it does not exist, readline tries its defaults. */
static void reread(const char *path)
{
    struct stat st;
    rl_read_init_file(stat(path, &st) == 0 ? path : NULL);
    rl_set_keymap_from_edit_mode();
}

/* Passes lines to readline one by one, as it would read a file. */
static void read_lines(struct pp_buf *lines)
{
    for (char *s = lines->data, *end = s ? s + lines->len : NULL; s && s < end;) {
        char *feed = memchr(s, '\n', (size_t)(end - s));
        if (feed)
            *feed = '\0';
        s += strspn(s, " \t\r");
        if (*s && *s != '#')
            rl_parse_and_bind(s);
        s = feed ? feed + 1 : end;
    }
    rl_set_keymap_from_edit_mode();
}

/* Initialises readline without an inputrc. */
static void init_without_inputrc(void)
{
    char *before = getenv("INPUTRC") ? pp_strdup(getenv("INPUTRC")) : NULL;
    setenv("INPUTRC", "/dev/null", 1);
    rl_initialize();
    if (before)
        setenv("INPUTRC", before, 1);
    else
        unsetenv("INPUTRC");
    pp_free(before);
}

/* Reads the inputrc. readline prints errors in it to stderr, which would spoil the screen: the first one is caught
 * and reported instead. */
static enum pp_code read_inputrc(bool again, struct pp_error *err)
{
    char path[PATH_MAX] = "", said[200] = "";
    struct pp_buf lines = {0};
    inputrc_path(path, sizeof path);
    const enum pp_code code = pp_inputrc_check(path, &lines, err);
    const int own = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int words = own < 0 ? -1 : memfd_create("inputrc", MFD_CLOEXEC);
    if (words >= 0)
        dup3(words, STDERR_FILENO, 0);
    if (code == PP_OK && again)
        reread(path);
    else if (code == PP_OK)
        rl_initialize();
    else if (!again)
        init_without_inputrc();
    if (code == PP_ERR_FORMAT)
        read_lines(&lines);
    if (words >= 0) {
        fflush(stderr);
        dup3(own, STDERR_FILENO, 0);
        (void)pp_read_some_at(words, said, sizeof said - 1, 0);
        close(words);
    }
    if (own >= 0)
        close(own);
    pp_buf_free(&lines);
    said[strcspn(said, "\n")] = '\0';
    rl_variable_bind("bell-style", "none");
    bind_keys();
    return !code && said[0] ? pp_fail(err, PP_ERR_FORMAT, "%s", said) : code;
}

static int on_reread(int count, int key)
{
    struct pp_error err;
    (void)count, (void)key;
    if (read_inputrc(true, &err) != PP_OK)
        ed.hooks.complain(ed.hooks.user, err.text);
    return 0;
}

enum pp_code pp_edit_open(const char *history, const struct pp_edit_hooks *hooks, struct pp_error *err)
{
    ed.hooks = *hooks;
    snprintf(ed.history, sizeof ed.history, "%s", history);
    ed.dev_null = fopen("/dev/null", "we");
    if (!ed.dev_null)
        return pp_fail(err, PP_ERR_IO, "/dev/null cannot be opened");
    rl_readline_name = "pippin";
    /* readline draws nothing, and must not touch the terminfo entry that ncurses has loaded */
    rl_terminal_name = "dumb";
    rl_outstream = ed.dev_null;
    rl_catch_signals = 0;
    rl_catch_sigwinch = 0;
    rl_change_environment = 0;
    rl_getc_function = next_byte;
    rl_input_available_hook = bytes_waiting;
    rl_redisplay_function = draw_nothing;
    rl_prep_term_function = prepare_terminal;
    rl_deprep_term_function = leave_terminal;
    /* added first, so that it takes precedence over readline's own command of this name */
    rl_add_defun("re-read-init-file", on_reread, -1);
    enum pp_code keys = read_inputrc(false, err);
    rl_callback_handler_install("", on_line);
    using_history();
    stifle_history(PP_HISTORY_ENTRIES);
    enum pp_code code = pp_history_load(ed.history, add_loaded, NULL, err);
    using_history();
    return code ? code : keys;
}

void pp_edit_close(void)
{
    rl_callback_handler_remove();
    clear_history();
    if (ed.dev_null)
        fclose(ed.dev_null);
    free(ed.refused);
    pp_free(ed.typed_line);
    pp_free(ed.search_line);
    memset(&ed, 0, sizeof ed);
}

/* --- keys and text ------------------------------------------------------------------------------------------ */

/* Whether there is memory for n more bytes: readline ends the program if its allocation fails. */
static bool has_room(size_t n)
{
    enum { AHEAD = 4096, COPIES = 3 }; /* the line, the killed text, the undo list */
    void *room = pp_malloc(COPIES * ((size_t)rl_end + n) + AHEAD);
    pp_free(room);
    return room != NULL;
}

static void set_line(const char *text)
{
    if (where_history() >= history_length) {
        rl_maybe_unsave_line(); /* an entry saved by an earlier recall would prevent this one from being saved */
        rl_replace_line(text, 1);
    } else if (strcmp(text, rl_line_buffer) != 0) { /* readline loses changes without an undo list */
        rl_begin_undo_group();
        rl_delete_text(0, rl_end);
        rl_point = 0;
        rl_insert_text(text);
        rl_end_undo_group();
    }
    rl_point = rl_end;
    rl_mark = 0;
}

bool pp_edit_set(const char *text)
{
    const bool room = has_room(strlen(text));
    if (room)
        set_line(text);
    return room;
}

/* Restores the state from before Enter: the recalled entry with its changes at its place in the history, and below
 * it the line that was being typed. If only the refused text is there, the memory for it has just been freed. */
static void put_back(void)
{
    char *text = ed.refused, *before = ed.typed_line;
    ed.refused = ed.typed_line = NULL;
    if (before && !text) {
        set_line(before);
    } else if (before && has_room(strlen(before) + strlen(text))) {
        set_line(before);
        rl_maybe_save_line();
        history_set_pos(ed.recalled_at);
        const HIST_ENTRY *older = current_history();
        rl_replace_line(older ? older->line : "", 1);
    } else if (before) {
        ed.hooks.complain(ed.hooks.user, "out of memory: the text that was in the line before is lost");
    }
    if (text)
        set_line(text);
    free(text); /* allocated by readline */
    pp_free(before);
}

/* --- whole graphemes: readline knows characters, and would take a flag or a family apart --------------------- */

/* The grapheme cluster that contains byte `at`, unless `at` is its first byte: then *start == *end. Begins at most
 * FAR bytes before, since lines may be long. */
static void cluster_around(const char *s, size_t n, size_t at, size_t *start, size_t *end)
{
    enum { FAR = 256 };
    size_t pos = at > FAR ? at - FAR : 0;
    while (pos > 0 && ((unsigned char)s[pos] & 0xC0) == 0x80)
        pos--;
    *start = *end = at;
    while (pos < at) {
        const size_t next = pos + pp_cluster_next(s + pos, n - pos).len;
        if (next > at) {
            *start = pos;
            *end = next;
        }
        pos = next;
    }
}

/* The line before a key: its length, the cursor, and the clusters next to it, [left, point) and [point, right). */
struct before {
    size_t len, point, left, right;
    char text[2 * 4 * PP_MAX_GLYPHS]; /* the text of both */
};

static struct before look_at_cursor(void)
{
    struct before b = {.len = (size_t)rl_end, .point = (size_t)rl_point};
    size_t end;
    b.left = b.right = b.point;
    if (b.point > 0)
        cluster_around(rl_line_buffer, b.len, b.point - 1, &b.left, &end);
    if (b.point < b.len)
        b.right = b.point + pp_cluster_next(rl_line_buffer + b.point, b.len - b.point).len;
    if (b.right - b.left <= sizeof b.text)
        memcpy(b.text, rl_line_buffer + b.left, b.right - b.left);
    else
        b.left = b.right = b.point;
    return b;
}

/* Whether [from, to) of the line still is what was at `at` before the key; the key may have recalled another line. */
static bool is_unchanged(const struct before *b, size_t from, size_t to, size_t at)
{
    return to > from && to <= (size_t)rl_end && memcmp(rl_line_buffer + from, b->text + (at - b->left), to - from) == 0;
}

static void delete_between(size_t from, size_t to)
{
    rl_delete_text((int)from, (int)to);
    /* in vi's command mode the cursor is on a character, not after the last one */
    if (pp_edit_vi_command() && from == (size_t)rl_end && from > 0)
        cluster_around(rl_line_buffer, from, from - 1, &from, &to);
    rl_point = (int)from;
}

/* Undo removes what was inserted as a whole, and needs no correction. */
static bool was_undone(void)
{
    return rl_last_func == rl_undo_command || rl_last_func == rl_vi_undo || rl_last_func == rl_revert_line;
}

/* After a key: if it has deleted part of a cluster, deletes the rest, and moves the cursor out of a cluster. */
static void keep_clusters_whole(const struct before *b)
{
    const size_t len = (size_t)rl_end, point = (size_t)rl_point;
    const size_t n_deleted = b->len > len && !was_undone() ? b->len - len : 0;
    size_t start, end;
    if (n_deleted && point + n_deleted == b->point && point > b->left && is_unchanged(b, b->left, point, b->left)) {
        delete_between(b->left, point);
    } else if (n_deleted && point == b->point && point + n_deleted < b->right &&
               is_unchanged(b, point, b->right - n_deleted, point + n_deleted)) {
        delete_between(point, b->right - n_deleted);
    } else if (len == b->len && point != b->point) {
        cluster_around(rl_line_buffer, len, point, &start, &end);
        if (start != end)
            rl_point = (int)(point < b->point || pp_edit_vi_command() ? start : end);
    }
}

/* Restores the line in which a search was begun that has found nothing or was aborted. */
static void restore_search_line(void)
{
    if (!has_room(strlen(ed.search_line)))
        return;
    if (ed.search_at < history_length) { /* readline has returned to the line typed before the recall */
        char *before = pp_strdup(rl_line_buffer);
        /* replaced by a copy without undo list: readline would free the saved line's list twice */
        rl_replace_line(before ? before : "", 1);
        pp_free(before);
        rl_maybe_save_line();
        history_set_pos(ed.search_at);
        const HIST_ENTRY *older = current_history();
        rl_replace_line(older ? older->line : "", 1);
    }
    if (strcmp(ed.search_line, rl_line_buffer) != 0)
        set_line(ed.search_line);
    if (ed.search_point <= rl_end)
        rl_point = ed.search_point;
}

/* After a non-incremental search; wanted: the text searched for, NULL if it was aborted. Text that was not found
 * goes into an empty line: Alt-P may have been pressed by mistake, and the text may be a message. */
static void after_search(const char *wanted)
{
    /* a leading ^ stands for the beginning of a line */
    const char *words = wanted ? wanted + (*wanted == '^') : "";
    const bool found = *words && strstr(rl_line_buffer, words);
    if (ed.search_line && !found)
        restore_search_line();
    else if (ed.search_line && strcmp(ed.search_line, rl_line_buffer) != 0)
        add_to_history(ed.search_line);
    pp_free(ed.search_line);
    ed.search_line = NULL;
    if (found || !*words)
        return;
    struct pp_buf text = {0};
    pp_buf_fmt(&text, "no earlier message contains \"%s\"; nothing was sent", words);
    ed.hooks.complain(ed.hooks.user, pp_buf_cstr(&text));
    pp_buf_free(&text);
    if (rl_end == 0 && !pp_edit_vi())
        pp_edit_set(wanted);
}

/* Whether this is an escape sequence without a binding, whose end readline would insert as text. */
static bool is_unbound(const char *bytes, size_t n)
{
    return n > 2 && bytes[0] == '\033' && strchr("[O\033", bytes[1]) && !pp_edit_searching() &&
           !rl_function_of_keyseq_len(bytes, n, NULL, NULL);
}

void pp_edit_feed(const char *bytes, size_t n)
{
    /* limit for numeric arguments: readline would execute any number, and run out of memory */
    enum { MAX_TIMES = 1000 };
    if (n > sizeof ed.queue)
        return;
    const bool asking = RL_ISSTATE(RL_STATE_NSEARCH), enter = n == 1 && (*bytes == '\r' || *bytes == '\n');
    if (asking && bytes[0] == '\033') { /* readline would insert it into the text to search for */
        if (n == 1)
            pp_edit_feed("\a", 1);
        return;
    }
    char *wanted = asking && enter ? pp_strdup(rl_line_buffer) : NULL;
    /* A key with an escape sequence ends an incremental search, but then readline misinterprets its bytes, and a
     * prefix key such as Ctrl-X crashes it. Escape alone ends the search cleanly. */
    if (RL_ISSTATE(RL_STATE_ISEARCH) && ((n > 1 && bytes[0] == '\033') || (n == 1 && strchr("\t\030", bytes[0]))))
        pp_edit_feed("\033", 1);
    if (is_unbound(bytes, n)) {
        if (bytes[1] == '\033' && pp_edit_vi()) { /* Alt with a key that has no binding: Escape, then the key */
            pp_edit_feed("\033", 1);
            pp_edit_feed(bytes + 1, n - 1);
        }
        return;
    }
    const bool searching = pp_edit_searching();
    const struct before before = look_at_cursor();
    memcpy(ed.queue, bytes, n);
    ed.queue_len = n;
    ed.queue_at = 0;
    while (ed.queue_at < ed.queue_len) {
        rl_callback_read_char();
        put_back();
        if (rl_numeric_arg > MAX_TIMES) /* digits typed as a numeric argument */
            rl_numeric_arg = MAX_TIMES;
    }
    if (!searching && !pp_edit_searching())
        keep_clusters_whole(&before);
    if (asking && !RL_ISSTATE(RL_STATE_NSEARCH))
        after_search(wanted);
    pp_free(wanted);
}

bool pp_edit_insert(const char *text, size_t n)
{
    char *copy = pp_strndup(text, n);
    const bool room = copy && has_room(n);
    if (room) {
        rl_begin_undo_group();
        rl_insert_text(copy);
        rl_end_undo_group();
    }
    pp_free(copy);
    return room;
}

static size_t line_start(const char *s, size_t at)
{
    while (at > 0 && s[at - 1] != '\n')
        at--;
    return at;
}

/* The offset in the line s[start..] at the same column as the cursor in its own line. */
static int same_column(const char *s, size_t start, size_t current)
{
    int column = pp_text_width(s + current, (size_t)rl_point - current);
    size_t end = start;
    while (s[end] && s[end] != '\n')
        end++;
    return (int)(start + pp_text_fit(s + start, end - start, column, NULL));
}

void pp_edit_up(void)
{
    const char *s = rl_line_buffer;
    size_t current = line_start(s, (size_t)rl_point);
    if (current > 0)
        rl_point = same_column(s, line_start(s, current - 1), current);
    else
        rl_get_previous_history(1, 0);
}

void pp_edit_down(void)
{
    const char *s = rl_line_buffer;
    const char *end = memchr(s + rl_point, '\n', (size_t)(rl_end - rl_point));
    if (end)
        rl_point = same_column(s, (size_t)(end - s) + 1, line_start(s, (size_t)rl_point));
    else
        rl_get_next_history(1, 0);
}

enum pp_code pp_edit_remember(const char *text, bool keep, struct pp_error *err)
{
    HIST_ENTRY *last = history_length > 0 ? history_get(history_base + history_length - 1) : NULL;
    using_history();
    const bool again = last && strcmp(last->line, text) == 0;
    if (!*text || (again && !(keep && ed.last_unwritten)))
        return PP_OK;
    if (!again)
        add_history(text); /* even a long one can be recalled with Up; only short ones are written to the file */
    using_history();
    const bool written = keep && strlen(text) <= PP_HISTORY_ENTRY_MAX;
    const enum pp_code code = written ? pp_history_append(ed.history, text, err) : PP_OK;
    ed.last_unwritten = !written || code;
    return code;
}

static char *copy_of_line(void)
{
    const char *s = pp_edit_text();
    return s[strspn(s, " \t\n")] ? pp_strdup(s) : NULL;
}

void pp_edit_take_unsent(char *rest[static 2])
{
    if (pp_edit_searching())
        pp_edit_feed("\a", 1);
    const HIST_ENTRY *shown = where_history() < history_length ? current_history() : NULL;
    rest[0] = shown && strcmp(shown->line, pp_edit_text()) == 0 ? NULL : copy_of_line();
    rest[1] = NULL;
    if (where_history() < history_length) {
        if (rl_undo_list)
            /* readline would keep the changes to the recalled entry in its place, and the original would be lost */
            rl_revert_line(1, 0);
        rl_end_of_history(1, 0);  /* returns to the line that was being typed */
        rest[1] = copy_of_line();
    }
    set_line("");
}

const char *pp_edit_text(void)
{
    return rl_line_buffer ? rl_line_buffer : "";
}

size_t pp_edit_len(void)
{
    return (size_t)rl_end;
}

size_t pp_edit_cursor(void)
{
    return (size_t)rl_point;
}

const char *pp_edit_message(void)
{
    if (RL_ISSTATE(RL_STATE_NSEARCH))
        return "search earlier messages: Enter searches, Esc cancels";
    return rl_display_prompt && rl_display_prompt != rl_prompt && *rl_display_prompt ? rl_display_prompt : NULL;
}

bool pp_edit_searching(void)
{
    return RL_ISSTATE(RL_STATE_ISEARCH | RL_STATE_NSEARCH | RL_STATE_NUMERICARG | RL_STATE_MULTIKEY |
                      RL_STATE_CHARSEARCH | RL_STATE_VIMOTION) != 0;
}

bool pp_edit_vi(void)
{
    return rl_editing_mode == 0;
}

bool pp_edit_vi_command(void)
{
    return pp_edit_vi() && rl_get_keymap() == vi_movement_keymap;
}
