#include "ui/ui.h"

#include <curses.h>
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/priority.h"
#include "engine/base/utf8.h"
#include "src/cmd_common.h"
#include "src/open_files.h"
#include "src/plain_text.h"
#include "ui/bell.h"
#include "ui/complete.h"
#include "ui/edit.h"
#include "ui/found.h"
#include "ui/history.h"
#include "ui/plain.h"
#include "ui/screen.h"
#include "ui/signals.h"
#include "ui/state.h"
#include "ui/text.h"
#include "ui/view_notice.h"
#include "ui/view_status.h"

enum {
    FRAME_NS = 1000000000 / 60,
    READ_BYTES = 64 * 1024,
    RULE_ROWS = 5, STATUS_ROWS = 3, KEYS_ROWS = 12, KEYS_COLS = 40, /* smaller screens omit these */
    NOTICE_MIN_NS = 2000000000, /* the next key does not remove a notice that is younger than this */
};

/* --- notices ------------------------------------------------------------------------------------------------ */

static void notice(struct pp_ui *ui, bool error, const char *fmt, va_list ap)
{
    pp_utf8_vprint(ui->notice, sizeof ui->notice, fmt, ap);
    ui->notice_is_error = error;
    ui->notice_at = pp_now_ns();
    ui->dirty = PP_DRAW_ALL;
}

void pp_ui_notice(struct pp_ui *ui, bool error, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    notice(ui, error, fmt, ap);
    va_end(ap);
    pp_utf8_line(ui->notice, sizeof ui->notice);
}

/* A notice of several lines. */
static void show_lines(struct pp_ui *ui, bool error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void show_lines(struct pp_ui *ui, bool error, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    notice(ui, error, fmt, ap);
    va_end(ap);
}

void pp_ui_clear_notice(struct pp_ui *ui)
{
    if (ui->notice[0])
        ui->dirty = PP_DRAW_ALL;
    ui->notice[0] = '\0';
}

/* --- geometry ----------------------------------------------------------------------------------------------- */

static struct pp_area cut_bottom(struct pp_geometry *g, int *left, int h)
{
    if (h > *left)
        h = *left;
    *left -= h;
    return (struct pp_area){*left, 0, h, g->cols};
}

/* Computes the areas of the screen; true if one has changed. An error must be readable on a small screen, too: then
 * the status line, the rule and the transcript make way for it. */
static bool arrange(struct pp_ui *ui)
{
    struct pp_geometry *g = &ui->at, old = *g;
    const bool urgent = pp_notice_urgent(ui);
    int left = g->rows;
    int lines = (int)pp_input_measure(&ui->input, g->cols);
    int most = g->rows / 3 > 1 ? g->rows / 3 : 1;
    g->keys = cut_bottom(g, &left, g->rows >= KEYS_ROWS && g->cols >= KEYS_COLS);
    const int input = lines < 1 ? 1 : lines < most ? lines : most, notice = pp_notice_height(ui, g->cols);
    const int room = left - input - notice; /* for status, rule and transcript */
    g->status = cut_bottom(g, &left, g->rows >= STATUS_ROWS && (!urgent || room >= 1));
    g->input = cut_bottom(g, &left, input);
    g->rule = cut_bottom(g, &left, g->rows >= RULE_ROWS && (!urgent || room >= 2));
    g->notice = cut_bottom(g, &left, urgent || notice < left || left < 2 ? notice : left - 1);
    g->transcript = cut_bottom(g, &left, left);
    return memcmp(&old, g, sizeof old) != 0;
}

void pp_ui_resize(struct pp_ui *ui)
{
    pp_screen_resize(&ui->at.rows, &ui->at.cols);
    pp_screen_repaint();
    ui->dirty = PP_DRAW_ALL;
}

/* --- drawing ------------------------------------------------------------------------------------------------ */

static void draw_input(struct pp_ui *ui)
{
    pp_rule_draw(ui);
    pp_input_draw(ui);
}

static void draw_all(struct pp_ui *ui)
{
    pp_transcript_draw(ui);
    pp_draw_erase(ui->at.notice, PP_SLOT_TEXT);
    pp_notice_draw(ui);
    pp_status_draw(ui);
    pp_keys_draw(ui);
}

/* Draws what is dirty. The input box comes first, and is sent to the terminal before the transcript is laid out, so
 * that a typed character appears at once. The rest is drawn once per frame, or when a key has asked for it. */
static void draw(struct pp_ui *ui, bool frame_due)
{
    bool overlay = ui->menu.cls != NULL;
    if ((ui->dirty & PP_DRAW_INPUT) && arrange(ui))
        ui->dirty = PP_DRAW_ALL;
    if ((ui->dirty & PP_DRAW_INPUT) && ui->dirty != PP_DRAW_ALL && !overlay) {
        draw_input(ui);
        refresh();
        ui->dirty &= ~(unsigned)PP_DRAW_INPUT;
    }
    if (!ui->dirty || !frame_due)
        return;
    if (ui->dirty & (PP_DRAW_TRANSCRIPT | PP_DRAW_MENU))
        draw_all(ui);
    else
        pp_status_draw(ui);
    draw_input(ui);
    if (overlay)
        pp_menu_draw(ui);
    refresh();
    ui->dirty = 0;
}

/* --- events ------------------------------------------------------------------------------------------------- */

bool pp_ui_use_theme(struct pp_ui *ui, const char *id)
{
    struct pp_error err;
    const bool good = pp_theme_load(ui->paths, id, &ui->theme, &err) == PP_OK;
    if (!good)
        pp_ui_notice(ui, true, "%s", err.text);
    pp_draw_theme(&ui->theme, ui->no_color);
    pp_screen_repaint();
    ui->dirty = PP_DRAW_ALL;
    return good;
}

static void settings_file(const struct pp_ui *ui, char path[static 600])
{
    snprintf(path, 600, "%s/ui.ini", ui->paths->state);
}

void pp_ui_save_setting(struct pp_ui *ui, const char *name, const char *value)
{
    char path[600], line[128];
    settings_file(ui, path);
    snprintf(line, sizeof line, "%s = %s\n", name, value);
    pp_controller_save_setting(ui->controller, path, line);
}

void pp_ui_save_theme(struct pp_ui *ui, const char *id)
{
    pp_ui_use_theme(ui, id);
    snprintf(ui->settings.theme, sizeof ui->settings.theme, "%.63s", id);
    pp_ui_save_setting(ui, "theme", ui->settings.theme);
    if (ui->options->theme && !pp_options_given(ui->options, "theme") && strcmp(ui->options->theme, id) != 0)
        pp_ui_notice(ui, false, "pippin.conf sets another theme, %s, which is used again at the next start",
                     ui->options->theme);
}

void pp_ui_leave(struct pp_ui *ui)
{
    if (ui->leaving)
        return;
    ui->leaving = true;
    pp_menu_close(ui);
    pp_controller_quit(ui->controller);
    ui->dirty = PP_DRAW_ALL;
}

void pp_ui_suspend(struct pp_ui *ui)
{
    pp_screen_pause();
    pp_signals_suspend();
    pp_screen_resume();
    pp_ui_resize(ui);
}

/* Puts a message that could not be saved back into the input line, before what has been typed since. If it was an
 * edit, it is one again. */
static void restore_unsent(struct pp_ui *ui)
{
    char *text = pp_controller_take_unsent(ui->controller);
    struct pp_buf whole = {0};
    if (!text)
        return;
    pp_buf_str(&whole, text);
    if (pp_edit_len() > 0)
        pp_buf_fmt(&whole, "\n%s", pp_edit_text());
    if (whole.bad || !pp_edit_set(pp_buf_cstr(&whole)))
        pp_ui_notice(ui, true, "out of memory: the unsent message is in the history");
    pp_buf_free(&whole);
    pp_free(text);
    ui->editing = ui->sent_edit;
    ui->dirty = PP_DRAW_ALL;
}

/* The newest message that contains the words with which a title was found; 0: none. */
static int64_t message_with(const struct pp_ui *ui, const char *search)
{
    for (size_t i = *search ? pp_controller_n_messages(ui->controller) : 0; i-- > 0;) {
        const struct pp_chat_message *m = pp_controller_message(ui->controller, i);
        if (pp_found_in(m->text, search))
            return m->id;
    }
    return 0;
}

void pp_ui_show_found(struct pp_ui *ui)
{
    const size_t n = pp_controller_n_messages(ui->controller);
    const bool here = ui->found.session == pp_controller_session_id(ui->controller);
    const int64_t wanted = !here                ? 0
                           : ui->found.in_title ? message_with(ui, ui->found.search)
                                                : ui->found.message;
    const bool asked = ui->found.asked;
    size_t i = 0;
    while (wanted && i < n && pp_controller_message(ui->controller, i)->id != wanted)
        i++;
    if (wanted && i == n && asked)
        return; /* its branch has been requested */
    ui->found.asked = wanted && i == n && pp_controller_show_branch_of(ui->controller, wanted);
    if (ui->found.asked)
        return;
    ui->found.session = ui->found.message = 0;
    ui->found.in_title = false;
    if (wanted && i < n)
        pp_transcript_show(ui, i, ui->found.search, true);
    else if (wanted)
        pp_ui_notice(ui, false, "found on another branch of this conversation");
}

/* Ends an edit whose message is no longer there: the input will be sent as a new message at that place. */
static void end_lost_edit(struct pp_ui *ui)
{
    const size_t i = ui->editing;
    if (!i || (i <= pp_controller_n_messages(ui->controller) &&
               pp_controller_message(ui->controller, i - 1)->role == ui->editing_role))
        return;
    ui->editing = 0;
    ui->dirty = PP_DRAW_ALL;
}

/* Shows a notice of the controller. An unread error is kept above it: at the start, when nobody can have read it,
 * and when an answer that began with the error has ended. What is not saved is shown in any case (view_notice.c). */
static void show_controller_notice(struct pp_ui *ui, const char *notice, bool error)
{
    const char *unsaved = pp_controller_status(ui->controller)->unsaved;
    char before[sizeof ui->notice];
    const bool unread = !ui->read_at || (!error && pp_now_ns() < ui->notice_at + NOTICE_MIN_NS);
    snprintf(before, sizeof before, "%s", ui->notice);
    if (unread && *before && ui->notice_is_error && !strstr(notice, before) && strcmp(before, unsaved) != 0 &&
        strlen(before) + strlen(notice) + 1 < sizeof ui->notice)
        show_lines(ui, true, "%s\n%s", before, notice);
    else
        show_lines(ui, error, "%s", notice);
}

/* Keeps a message that waited for a model which could not be loaded: no other model answers it unless the user sends
 * it again. */
static void keep_queued(struct pp_ui *ui)
{
    char why[sizeof ui->notice];
    snprintf(why, sizeof why, "%s", ui->notice);
    if (strcmp(pp_edit_text(), ui->queued) == 0)
        show_lines(ui, true, "%s\nyour message is still in the line%s", why,
                     ui->state == PP_STATE_IDLE ? ": Enter sends it to the previous model" : "");
    pp_free(ui->queued);
    ui->queued = NULL;
}

/* Another conversation is on the screen: edits, notices and the scroll position belonged to the one before. */
static void change_session(struct pp_ui *ui)
{
    if (ui->session) /* at the start there was none before */
        pp_ui_clear_notice(ui);
    ui->session = pp_controller_session_id(ui->controller);
    pp_transcript_end(ui);
    ui->editing = ui->sent_edit = 0;
    if (ui->queued) /* it was written for the conversation before */
        pp_ui_notice(ui, false, "another conversation is open now: your message was not sent; Enter sends it here");
    pp_free(ui->queued);
    ui->queued = NULL;
    pp_ui_show_found(ui);
}

static void show_new_notice(struct pp_ui *ui, const struct pp_status *s)
{
    if (s->notice_serial == ui->notice_serial)
        return;
    ui->notice_serial = s->notice_serial;
    if (s->notice && *s->notice)
        show_controller_notice(ui, s->notice, s->notice_is_error);
    else
        pp_ui_clear_notice(ui);
}

static void restore_refused_path(struct pp_ui *ui)
{
    char *path = pp_controller_take_refused(ui->controller);
    if (path)
        pp_menu_lora_refused(ui, path);
    pp_free(path);
}

/* Does not interrupt typing, which would choose from a menu not yet seen; there is a notice as well. */
static void ask_about_overflow(struct pp_ui *ui, const struct pp_status *s)
{
    if (s->overflow_serial != ui->overflow_serial && !ui->menu.cls && !ui->leaving && pp_edit_len() == 0)
        pp_menu_open(ui, &pp_menu_overflow);
    ui->overflow_serial = s->overflow_serial;
}

/* Translates PP_DIRTY_... of the controller to what is to be drawn. */
static void mark_dirty(struct pp_ui *ui, const struct pp_status *s, unsigned dirty)
{
    if (s->unsaved[0] != ui->unsaved) {
        ui->unsaved = s->unsaved[0];
        ui->dirty = PP_DRAW_ALL;
    }
    ui->dirty |= dirty & PP_DIRTY_TRANSCRIPT ? PP_DRAW_TRANSCRIPT : 0u;
    ui->dirty |= dirty & PP_DIRTY_STATUS ? PP_DRAW_STATUS : 0u;
    const bool changed = s->state != ui->state;
    ui->state = s->state;
    if ((dirty & PP_DIRTY_STATUS) &&
        (changed || s->state != PP_STATE_IDLE || pp_controller_n_messages(ui->controller) == 0))
        ui->dirty |= PP_DRAW_TRANSCRIPT; /* progress is shown there, and disappears when the state changes */
    if (dirty & PP_DIRTY_LISTS)
        pp_menu_settle(ui);
    if (ui->menu.cls && dirty)
        ui->dirty |= PP_DRAW_MENU;
}

/* Tells of an answer that has ended, in any conversation, by the bell. */
static void tell_of_end(struct pp_ui *ui, const struct pp_status *s)
{
    const bool here = s->state == PP_STATE_SAVING || s->state == PP_STATE_PREFILL || s->state == PP_STATE_ANSWER;
    const int writing = here + pp_controller_n_elsewhere(ui->controller);
    if (writing < ui->writing && !ui->leaving && pp_bell_due(ui->options->bell, ui->read_at))
        beep();
    ui->writing = writing;
}

static void pump(struct pp_ui *ui)
{
    const unsigned dirty = pp_controller_pump(ui->controller);
    if (ui->session != pp_controller_session_id(ui->controller))
        change_session(ui);
    if (ui->found.asked && (dirty & PP_DIRTY_TRANSCRIPT))
        pp_ui_show_found(ui);
    restore_unsent(ui);
    end_lost_edit(ui);
    restore_refused_path(ui);
    const struct pp_status *s = pp_controller_status(ui->controller);
    show_new_notice(ui, s);
    ask_about_overflow(ui, s);
    tell_of_end(ui, s);
    if (s->session_key && *s->session_key)
        snprintf(ui->last_key, sizeof ui->last_key, "%s", s->session_key);
    else if (!ui->leaving)
        ui->last_key[0] = '\0';
    mark_dirty(ui, s, dirty);
    if (ui->queued && s->not_loaded)
        keep_queued(ui);
    else if (ui->queued && s->state == PP_STATE_IDLE && !ui->menu.cls)
        pp_ui_send_queued(ui);
}

static void handle_keys(struct pp_ui *ui)
{
    struct pp_key key;
    while (pp_input_next(ui->keyboard, &key)) {
        if (!ui->notice_is_error && ui->notice_at + NOTICE_MIN_NS < pp_now_ns())
            pp_ui_clear_notice(ui);
        pp_ui_key(ui, &key);
    }
}

/* False: the terminal has gone away. */
static bool read_keys(struct pp_ui *ui)
{
    static char bytes[READ_BYTES];
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN;
    if (n == 0)
        return false;
    if (!ui->read_at && (size_t)n >= pp_screen_typed_ahead())
        pp_input_typed_ahead(bytes, pp_screen_typed_ahead());
    ui->read_at = pp_now_ns();
    pp_controller_refresh_title(ui->controller);
    if (!pp_input_feed(ui->keyboard, bytes, (size_t)n))
        pp_ui_notice(ui, true, "out of memory: what you typed was lost");
    handle_keys(ui);
    return true;
}

static void handle_signals(struct pp_ui *ui)
{
    unsigned signals = pp_signals_pending();
    if (signals & PP_SIGNAL_RESIZE)
        pp_ui_resize(ui);
    if (signals & PP_SIGNAL_STOP)
        pp_ui_suspend(ui);
    if (signals & PP_SIGNAL_RESUMED) { /* after a SIGSTOP, during which the shell has used the terminal */
        pp_screen_resume();
        pp_ui_resize(ui);
    }
    if (signals & PP_SIGNAL_INTERRUPT)
        pp_ui_key(ui, &(struct pp_key){.type = PP_KEY_CHAR, .cp = PP_CTRL('c'), .bytes = {PP_CTRL('c')}, .n_bytes = 1});
    if (signals & PP_SIGNAL_QUIT)
        pp_ui_leave(ui);
}

static int ms_until(uint64_t when)
{
    uint64_t now = pp_now_ns();
    return now >= when ? 0 : (int)((when - now + 999999) / 1000000);
}

/* When an incomplete key sequence is to be taken as it is, in ns; 0: there is none. */
static uint64_t sequence_deadline(const struct pp_ui *ui)
{
    int wait = pp_input_wait_ms(ui->keyboard);
    return wait < 0 ? 0 : ui->read_at + (uint64_t)wait * 1000000;
}

/* The shorter of two timeouts; < 0 means none. */
static int shorter(int a, int b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* How long to sleep, in ms: without limit (-1) unless a frame is due, a key sequence is incomplete, or the program
 * is closing. */
static int timeout_ms(const struct pp_ui *ui, uint64_t next_frame)
{
    uint64_t deadline = sequence_deadline(ui);
    int wait = deadline ? ms_until(deadline) : -1, frame = ui->dirty ? ms_until(next_frame) : -1;
    return shorter(shorter(wait, frame), ui->leaving ? PP_CLOSING_MS : -1);
}

static void flush_sequence(struct pp_ui *ui)
{
    uint64_t deadline = sequence_deadline(ui);
    if (deadline == 0 || ms_until(deadline) > 0)
        return;
    pp_input_flush(ui->keyboard);
    handle_keys(ui);
}

static void run(struct pp_ui *ui)
{
    struct pollfd fds[3] = {
        {STDIN_FILENO, POLLIN, 0}, {pp_controller_fd(ui->controller), POLLIN, 0}, {pp_signals_fd(), POLLIN, 0}};
    const enum pp_state *state = &pp_controller_status(ui->controller)->state;
    enum pp_state shown = *state;
    uint64_t next_frame = 0;
    pp_priority_screen();
    pump(ui);
    while (*state != PP_STATE_CLOSED) {
        bool ready = poll(fds, 3, timeout_ms(ui, next_frame)) > 0, keys = ready && fds[0].revents;
        if (ready && fds[2].revents)
            handle_signals(ui);
        if (keys && !read_keys(ui)) {
            fds[0].fd = -1;
            pp_ui_leave(ui);
        }
        flush_sequence(ui);
        if (keys)
            draw(ui, (ui->dirty & PP_DRAW_MENU) != 0);
        pump(ui);
        uint64_t now = pp_now_ns();
        if (ui->dirty && (now >= next_frame || *state != shown)) { /* changes of state are shown at once */
            draw(ui, true);
            shown = *state;
            next_frame = now + FRAME_NS;
        }
    }
}

/* --- starting and ending ------------------------------------------------------------------------------------- */

/* Character widths need a UTF-8 locale, even where none is configured. It is also put into the environment, where
 * readline looks for it. Call it before starting threads. */
static void set_locale(void)
{
    static const char *const fallbacks[] = {"C.UTF-8", "en_US.UTF-8"};
    setlocale(LC_ALL, "");
    for (int i = 0; i < 2 && strcmp(nl_langinfo(CODESET), "UTF-8") != 0; i++)
        if (setlocale(LC_CTYPE, fallbacks[i]))
            setenv("LC_ALL", fallbacks[i], 1);
    setlocale(LC_NUMERIC, "C");
}

/* The theme if none was chosen: the dark one on terminals with 256 colours, unless COLORFGBG reports a light
 * background. */
static const char *default_theme(const struct pp_ui *ui)
{
    const char *hint = getenv("COLORFGBG");
    const char *background = hint ? strrchr(hint, ';') : NULL;
    if (ui->no_color || !has_colors())
        return "mono";
    if (COLORS < 256)
        return "terminal";
    return background && (strcmp(background, ";15") == 0 || strcmp(background, ";7") == 0) ? "light" : "dark";
}

static void load_appearance(struct pp_ui *ui)
{
    char path[600];
    settings_file(ui, path);
    pp_settings_load(path, &ui->settings);
    ui->no_color = ui->options->no_color;
    int reasoning = ui->options->reasoning ? pp_reasoning_view_by_name(ui->options->reasoning) : -1;
    ui->reasoning = reasoning < 0 ? PP_REASONING_FOLD : (enum pp_reasoning_view)reasoning;
    const char *id = default_theme(ui);
    if (ui->options->theme)
        id = ui->options->theme;
    else if (ui->settings.theme[0] && !ui->no_color)
        id = ui->settings.theme;
    pp_ui_use_theme(ui, id);
}

static void complain(void *ui, const char *what)
{
    pp_ui_notice(ui, true, "%s", what);
}

static enum pp_code start(struct pp_ui *ui, struct pp_error *err)
{
    char history[600];
    struct pp_error ignored;
    snprintf(history, sizeof history, "%s/history", ui->paths->state);
    const struct pp_edit_hooks hooks = {pp_ui_accept, pp_ui_complete, complain, ui};
    struct pp_error edit = {0};
    if (pp_make_dirs(ui->paths->state, &ignored) != PP_OK)
        pp_ui_notice(ui, true, "%s", ignored.text);
    if (pp_edit_open(history, &hooks, &edit) != PP_OK)
        pp_ui_notice(ui, true, "%s", edit.text);
    ui->keyboard = pp_input_new();
    if (!ui->keyboard)
        return pp_fail_nomem(err, "the keyboard");
    enum pp_code code = pp_screen_open(ui->options->mouse, err);
    if (code != PP_OK)
        return code;
    pp_screen_learn_keys(ui->keyboard);
    load_appearance(ui);
    pp_ui_resize(ui);
    arrange(ui);
    return PP_OK;
}

/* Saves unsent input that is too long for the history to a new file, whose name must not collide with those of other
 * runs, even simultaneous ones. */
static enum pp_code save_long_unsent(struct pp_ui *ui, const char *text, struct pp_error *err)
{
    enum { LIMIT = 1000 };
    char path[600], number[16] = "";
    enum pp_code code;
    bool taken = true;
    for (int i = 1; taken && i < LIMIT; i++) {
        if (i > 1)
            snprintf(number, sizeof number, "-%d", i);
        snprintf(path, sizeof path, "%s/unsent%s.txt", ui->paths->state, number);
        code = pp_write_new_file(path, text, strlen(text), 0600, err);
        taken = code && access(path, F_OK) == 0;
    }
    if (taken)
        return pp_fail(err, PP_ERR_IO, "%s/unsent.txt and unsent-2.txt to unsent-%d.txt all exist; delete those that "
                                       "you no longer need", ui->paths->state, LIMIT - 1);
    if (!code)
        pp_buf_fmt(&ui->unsent_files, "%s%s", ui->unsent_files.len ? " and " : "", path);
    return code;
}

/* Adds what had arrived of a paste when the program was told to end. */
static void insert_rest_of_paste(struct pp_ui *ui)
{
    struct pp_key key;
    if (!ui->keyboard)
        return;
    pp_input_flush(ui->keyboard);
    while (pp_input_next(ui->keyboard, &key))
        if (key.type == PP_KEY_PASTE)
            pp_ui_key(ui, &key);
}

/* Saves input that was not sent when the program ends: to the history or, if it is too long, to a file. */
static void save_unsent(struct pp_ui *ui)
{
    char *rest[2];
    const struct pp_status *s = pp_controller_status(ui->controller);
    insert_rest_of_paste(ui);
    pp_edit_take_unsent(rest);
    for (int i = 2; i-- > 0; pp_free(rest[i])) { /* in this order, Up brings back the latest first */
        if (!rest[i] || (s->temporary && !s->unwanted))
            continue;
        const bool is_long = strlen(rest[i]) > PP_HISTORY_ENTRY_MAX;
        struct pp_error *why = &ui->unsent_why;
        const enum pp_code code = s->unwanted ? pp_fail(why, PP_ERR_IO, "nothing of this chat could be saved")
                                  : is_long   ? save_long_unsent(ui, rest[i], why)
                                              : pp_edit_remember(rest[i], true, why);
        if (code) {
            pp_plain_text(&ui->unsent, rest[i], strlen(rest[i]));
            pp_buf_char(&ui->unsent, '\n');
        } else if (!is_long) {
            ui->unsent_in_history = true;
        }
    }
}

static void report_unsent(const struct pp_ui *ui)
{
    if (ui->unsent_in_history)
        printf("Your unsent text is in the input history: Up brings it back.\n");
    if (ui->unsent_files.len)
        printf("Your unsent text is in %s; /read inserts it into the line.\n", pp_buf_cstr(&ui->unsent_files));
    if (ui->unsent.len)
        printf("pippin: %s\nYour unsent text could not be saved; here it is:\n\n%s", ui->unsent_why.text,
               pp_buf_cstr(&ui->unsent));
}

static void finish(struct pp_ui *ui)
{
    save_unsent(ui);
    pp_screen_close();
    pp_edit_close();
    pp_menu_close(ui);
    pp_transcript_free(&ui->transcript);
    pp_input_view_free(&ui->input);
    pp_input_free(ui->keyboard);
    pp_free(ui->queued);
}

int pp_ui_run(const struct pp_options *o, const struct pp_paths *paths)
{
    struct pp_error err;
    enum pp_code code = pp_open_files_check(PP_OPEN_FILES_CHAT, &err);
    if (code != PP_OK) {
        pp_cli_say("%s", err.text);
        return pp_exit_code(code);
    }
    set_locale();
    if (o->plain)
        return pp_plain_run(o, paths);
    struct pp_ui *ui = pp_calloc(1, sizeof *ui);
    code = ui ? PP_OK : pp_fail_nomem(&err, "the screen");
    struct pp_close_report w = {.waiting = pp_plain_waiting};
    if (code == PP_OK) {
        ui->options = o;
        ui->paths = paths;
        ui->dirty = PP_DRAW_ALL;
        code = pp_controller_new(o, paths, &ui->controller, &err);
    }
    if (code == PP_OK) {
        code = start(ui, &err);
        if (code == PP_OK)
            run(ui);
        finish(ui);
        pp_controller_close(ui->controller, &w);
    }
    if (code == PP_OK) {
        pp_plain_close_report(&w, ui->last_key);
        report_unsent(ui);
    }
    else
        pp_cli_say("%s", err.text);
    if (ui) {
        pp_buf_free(&ui->unsent);
        pp_buf_free(&ui->unsent_files);
    }
    pp_free(ui);
    return code == PP_OK ? 0 : pp_exit_code(code);
}
