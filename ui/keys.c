/* keys.c - what each key does on the main screen; for keys in menus see menu.c. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/fence.h"
#include "ui/clipboard.h"
#include "ui/edit.h"
#include "ui/editor.h"
#include "ui/find.h"
#include "ui/screen.h"
#include "ui/state.h"
#include "ui/text_file.h"

#define INTERRUPT_WINDOW_NS 2000000000u /* a second Ctrl-C within this time leaves */

static void report(struct pp_ui *ui, enum pp_code code, const struct pp_error *err)
{
    if (code != PP_OK)
        pp_ui_notice(ui, true, "%s", err->text);
}

static bool is_blank(const char *s)
{
    return s[strspn(s, " \t\n")] == '\0';
}

static void remember(struct pp_ui *ui, const char *text)
{
    struct pp_error err;
    enum pp_code code = pp_edit_remember(text, !pp_controller_status(ui->controller)->temporary, &err);
    if (code != PP_OK && !ui->history_failed) /* report it only once */
        pp_ui_notice(ui, true, "%s", err.text);
    ui->history_failed = code != PP_OK;
}

/* --- slash commands and Enter --------------------------------------------------------------------------------- */

/* The nth message of a role from the end: its index + 1; 0: there are fewer. */
static size_t nth_last_of(struct pp_ui *ui, enum pp_role role, unsigned long n)
{
    size_t i = pp_controller_n_messages(ui->controller);
    for (; i > 0; i--)
        if (pp_controller_message(ui->controller, i - 1)->role == role && --n == 0)
            break;
    return i;
}

/* The block of code meant by "code" or "code N": 1 to n, the last one by default. 0: a notice says what is wrong. */
static size_t block_of(struct pp_ui *ui, const char *what, size_t n)
{
    size_t wanted = n;
    int end = 0;
    sscanf(what, "code%n %zu%n", &end, &wanted, &end);
    if (!end || what[end])
        pp_ui_notice(ui, true, "/copy copies the last answer, /copy 2 the one before; /copy code copies its last code "
                               "block, /copy code 2 its second");
    else if (!n)
        pp_ui_notice(ui, true, "the last answer has no code block");
    else if (!wanted || wanted > n)
        pp_ui_notice(ui, true, "the last answer has %zu code block%s", n, n == 1 ? "" : "s");
    else
        return wanted;
    return 0;
}

static void copy_code(struct pp_ui *ui, const struct pp_chat_message *m, const char *what)
{
    const size_t n = pp_fence_blocks(m->text, m->len, PP_FENCE_INDENT, 0, NULL), i = block_of(ui, what, n);
    struct pp_buf code = {0};
    if (!i)
        return;
    pp_fence_blocks(m->text, m->len, PP_FENCE_INDENT, i, &code);
    if (!code.bad && pp_clipboard_put(pp_buf_cstr(&code), code.len))
        pp_ui_notice(ui, false, "code block %zu of %zu of the last answer was copied to the terminal's clipboard", i,
                     n);
    else
        pp_ui_notice(ui, true, "this code is too long for the terminal's clipboard; /export writes the conversation to "
                     "a file");
    pp_buf_free(&code);
}

static void copy_message(struct pp_ui *ui, const struct pp_chat_message *m, unsigned long n)
{
    char which[48] = "the last answer";
    if (n > 1)
        snprintf(which, sizeof which, "the answer %lu from the end", n);
    if (pp_clipboard_put(m->text, m->len))
        pp_ui_notice(ui, false, "%s was copied to the terminal's clipboard", which);
    else
        pp_ui_notice(ui, true, "%s is too long for the terminal's clipboard; /export writes it to a file", which);
}

/* what: "" for the last answer, "2" for the one before it, "code" for a block of the last. */
static void copy_answer(struct pp_ui *ui, const char *what)
{
    char *end = NULL;
    unsigned long n = isdigit((unsigned char)*what) ? strtoul(what, &end, 10) : 1;
    const bool code = n < 1 || (end ? *end : *what); /* anything else is reported by copy_code */
    const size_t i = nth_last_of(ui, PP_ROLE_ASSISTANT, code ? 1 : n);
    if (!i)
        pp_ui_notice(ui, true, n > 1 ? "there are not that many answers yet" : "there is no answer to copy yet");
    else if (code)
        copy_code(ui, pp_controller_message(ui->controller, i - 1), what);
    else
        copy_message(ui, pp_controller_message(ui->controller, i - 1), n);
}

static void choose_theme(struct pp_ui *ui, const char *name)
{
    struct pp_error err;
    struct pp_theme t;
    if (!*name) {
        pp_menu_open(ui, &pp_menu_themes);
        return;
    }
    enum pp_code code = pp_theme_load(ui->paths, name, &t, &err);
    report(ui, code, &err);
    if (code == PP_OK && strchr(name, '/')) {
        pp_ui_use_theme(ui, name);
        pp_ui_notice(ui, false, "this theme is used until you leave; put it into %s/themes to choose it by name",
                     ui->paths->config);
    } else if (code == PP_OK) {
        pp_ui_save_theme(ui, name);
    }
}

/* The message meant by /edit: your last one, the Nth from the end, or the last answer. Its index + 1; 0: a notice
 * says what is wrong. */
static size_t message_to_edit(struct pp_ui *ui, const char *which)
{
    const enum pp_state state = pp_controller_status(ui->controller)->state;
    const bool answer = strcmp(which, "answer") == 0;
    char *end = NULL;
    unsigned long n = *which && !answer ? strtoul(which, &end, 10) : 1;
    if (n < 1 || (end && (*end || !isdigit((unsigned char)*which)))) {
        pp_ui_notice(ui, true, "/edit edits your last message, /edit 2 the one before, /edit answer the last answer");
        return 0;
    }
    if (state == PP_STATE_SAVING || state == PP_STATE_PREFILL || state == PP_STATE_ANSWER) {
        pp_ui_notice(ui, true, "an answer is being written; Esc stops it");
        return 0;
    }
    const size_t i = nth_last_of(ui, answer ? PP_ROLE_ASSISTANT : PP_ROLE_USER, n);
    if (!i)
        pp_ui_notice(ui, true, answer ? "there is no answer to edit yet" : "there is no such message to edit");
    return i;
}

/* Puts that message into the input line. */
static void begin_edit(struct pp_ui *ui, const char *which)
{
    ui->editing = message_to_edit(ui, which);
    if (!ui->editing)
        return;
    const struct pp_chat_message *m = pp_controller_message(ui->controller, ui->editing - 1);
    const char *words = m->text ? m->text : "";
    struct pp_buf line = {0};
    if (pp_slash_looks_like(words) || pp_slash_text(words) != words)
        pp_buf_char(&line, '/'); /* a slash at the beginning is written twice, as it had to be typed */
    pp_buf_str(&line, words);
    ui->next_line = pp_buf_take(&line);
    ui->editing_role = m->role;
    if (!ui->next_line) {
        ui->editing = 0;
        pp_ui_notice(ui, true, "out of memory: the message cannot be edited");
    }
}

/* Puts a text file into the input line, for a question about it to be added. */
static void begin_with_file(struct pp_ui *ui, const char *path)
{
    struct pp_error err;
    if (*path)
        report(ui, pp_text_file_read(path, &ui->next_line, &err), &err);
    else
        pp_ui_notice(ui, true, "/read FILE inserts a text file into the line; Tab completes the name");
}

static void fill_line(struct pp_ui *ui)
{
    if (!is_blank(pp_edit_text()))
        remember(ui, pp_edit_text()); /* Up brings back what was typed before the command was recalled */
    if (!pp_edit_set(ui->next_line)) {
        ui->editing = 0;
        pp_ui_notice(ui, true, "out of memory: the text was not moved into the line");
    }
    pp_free(ui->next_line);
    ui->next_line = NULL;
}

static void view_reasoning(struct pp_ui *ui, enum pp_reasoning_view how)
{
    static const char *const said[PP_REASONING_VIEWS] = {
        "thinking is folded to one line when it has ended",
        "thinking is shown in full",
        "thinking is hidden",
    };
    ui->reasoning = how;
    ui->dirty = PP_DRAW_ALL;
    pp_ui_notice(ui, false, "%s", said[how]);
}

static void choose_reasoning(struct pp_ui *ui, const char *word)
{
    int how = pp_reasoning_view_by_name(word);
    if (*word && how < 0)
        pp_ui_notice(ui, true, "/reasoning show, fold or hide");
    else
        view_reasoning(ui, *word                                   ? (enum pp_reasoning_view)how
                           : ui->reasoning == PP_REASONING_SHOW ? PP_REASONING_FOLD
                                                                : PP_REASONING_SHOW);
}

/* Runs a slash command. One that failed has said why; like in a shell it leaves the input line, and Up brings it
 * back to be corrected. PP_SLASH_TEXT and PP_SLASH_ERROR_EDIT: it stays in the line. */
static enum pp_slash slash(struct pp_ui *ui, const char *text)
{
    char arg[4200] = ""; /* a path, for example */
    const enum pp_slash asked = pp_controller_slash(ui->controller, text, arg, sizeof arg);
    switch (asked) {
    case PP_SLASH_TEXT:
    case PP_SLASH_ERROR_EDIT:
    case PP_SLASH_DONE:
    case PP_SLASH_BRANCH:
    case PP_SLASH_ERROR: break;
    case PP_SLASH_HELP: pp_menu_open(ui, &pp_menu_help); break;
    case PP_SLASH_QUIT: pp_ui_leave(ui); break;
    case PP_SLASH_SESSIONS: pp_menu_open(ui, &pp_menu_sessions); break;
    case PP_SLASH_MODEL_MENU: pp_menu_open(ui, &pp_menu_models); break;
    case PP_SLASH_LORA_MENU: pp_menu_open(ui, &pp_menu_lora); break;
    case PP_SLASH_TEMPLATE_MENU: pp_menu_open(ui, &pp_menu_templates); break;
    case PP_SLASH_PERSONA_MENU: pp_menu_open(ui, &pp_menu_personas); break;
    case PP_SLASH_DRAFT_MENU: pp_menu_open(ui, &pp_menu_draft); break;
    case PP_SLASH_TINT: pp_ui_toggle_tint(ui); break;
    case PP_SLASH_REASONING: choose_reasoning(ui, arg); break;
    case PP_SLASH_THEME: choose_theme(ui, arg); break;
    case PP_SLASH_PARAMS_MENU: pp_menu_open(ui, &pp_menu_params); break;
    case PP_SLASH_OVERFLOW_MENU: pp_menu_open(ui, &pp_menu_overflow); break;
    case PP_SLASH_EDIT: begin_edit(ui, arg); break;
    case PP_SLASH_READ: begin_with_file(ui, arg); break;
    case PP_SLASH_FIND: pp_ui_find(ui, arg); break;
    case PP_SLASH_COPY: copy_answer(ui, arg); break;
    }
    return asked;
}

static bool send(struct pp_ui *ui, const char *text)
{
    const char *words = pp_slash_text(text);
    bool sent = ui->editing ? pp_controller_edit(ui->controller, ui->editing - 1, words)
                            : pp_controller_send(ui->controller, words);
    if (sent) {
        ui->sent_edit = ui->editing;
        ui->editing = 0;
        pp_transcript_end(ui);
    }
    return sent;
}

/* Keeps a message until the model is loaded, which may take minutes. */
static void queue_message(struct pp_ui *ui, const char *text)
{
    pp_free(ui->queued);
    ui->queued = pp_strdup(text);
    if (ui->queued)
        pp_ui_notice(ui, false, "the model is still loading; this is sent when it is ready (Esc cancels)");
    else
        pp_ui_notice(ui, true, "out of memory");
}

void pp_ui_send_queued(struct pp_ui *ui)
{
    char *queued = ui->queued;
    ui->queued = NULL;
    if (strcmp(pp_edit_text(), queued) == 0)
        pp_edit_feed("\r", 1);
    pp_free(queued);
}

/* Words that leave a shell or an editor are sent to the model like any text, and a notice says how to leave pippin. */
static void hint(struct pp_ui *ui, const char *text)
{
    static const char *const leaving[] = {"exit", "exit()", "quit", "quit()", "q", ":q", ":q!", ":wq", ":x", "logout"};
    for (size_t i = 0; i < sizeof leaving / sizeof *leaving; i++)
        if (strcmp(text, leaving[i]) == 0)
            pp_ui_notice(ui, false, "sent to the model; to leave pippin, press Ctrl-D or type /quit");
    if (strcmp(text, "help") == 0 || strcmp(text, "?") == 0)
        pp_ui_notice(ui, false, "sent to the model; for help, press F1 (keys) or type /help (commands)");
}

bool pp_ui_accept(void *user, const char *text)
{
    struct pp_ui *ui = user;
    if (is_blank(text))
        return true;
    pp_ui_clear_notice(ui);
    const enum pp_slash command = text[0] == '/' ? slash(ui, text) : PP_SLASH_TEXT;
    bool taken = command != PP_SLASH_TEXT;
    if (command == PP_SLASH_ERROR_EDIT)
        return false;
    if (!taken && pp_controller_status(ui->controller)->state == PP_STATE_LOADING)
        queue_message(ui, text);
    else if (!taken && (taken = send(ui, text)))
        hint(ui, text);
    if (taken)
        remember(ui, text);
    return taken;
}

/* --- keys ---------------------------------------------------------------------------------------------------- */

static void open_editor(struct pp_ui *ui)
{
    struct pp_error err;
    const bool temporary = pp_controller_status(ui->controller)->temporary; /* /dev/shm is in memory */
    enum pp_code code = pp_editor_run(temporary ? "/dev/shm" : ui->paths->state, pp_edit_text(), &err);
    pp_ui_resize(ui);
    report(ui, code, &err);
}

/* Clears the line. Up brings back its text, and before that what was being typed when an older line was recalled. */
static void clear_line(struct pp_ui *ui)
{
    char *shown = pp_strdup(pp_edit_text()), *rest[2];
    pp_edit_take_unsent(rest);
    if (rest[1])
        remember(ui, rest[1]);
    if (shown)
        remember(ui, shown);
    pp_free(shown);
    pp_free(rest[0]);
    pp_free(rest[1]);
}

static void interrupt(struct pp_ui *ui)
{
    uint64_t now = pp_now_ns();
    bool again = ui->interrupted_at && now - ui->interrupted_at < INTERRUPT_WINDOW_NS;
    ui->interrupted_at = 0;
    if (ui->leaving)
        return;
    if (pp_edit_searching()) {
        pp_edit_feed("\a", 1);
    } else if (pp_controller_cancel(ui->controller)) {
        /* pressed again before the answer has ended, it must not leave */
    } else if (pp_edit_len() > 0 || ui->editing) {
        clear_line(ui);
        ui->editing = 0;
    } else if (again) {
        pp_ui_leave(ui);
    } else {
        ui->interrupted_at = now;
        pp_ui_notice(ui, false, "press Ctrl-C again to leave");
    }
}

/* Stops editing a message. */
static bool end_edit(struct pp_ui *ui)
{
    if (!ui->editing)
        return false;
    ui->editing = 0;
    clear_line(ui);
    return true;
}

/* Shows the previous or next branch at the last message that has several. */
static void step_sibling(struct pp_ui *ui, int step)
{
    for (size_t i = pp_controller_n_messages(ui->controller); i-- > 0;) {
        if (pp_controller_message(ui->controller, i)->n_siblings > 1) {
            pp_controller_sibling(ui->controller, i, step);
            return;
        }
    }
    pp_ui_notice(ui, false, "there are no branches yet; /regen and /edit create them");
}

static void toggle_raw(struct pp_ui *ui)
{
    ui->settings.raw = !ui->settings.raw;
    pp_ui_notice(ui, false, "%s", ui->settings.raw ? "Markdown is shown as plain text"
                                                   : "Markdown is formatted");
    pp_ui_save_setting(ui, "raw", ui->settings.raw ? "yes" : "no");
}

void pp_ui_toggle_tint(struct pp_ui *ui)
{
    ui->settings.tint = !ui->settings.tint;
    ui->dirty |= PP_DRAW_TRANSCRIPT | PP_DRAW_MENU;
    pp_ui_notice(ui, false, "%s", ui->settings.tint ? "accepted draft tokens are tinted in answers"
                                                    : "draft tokens are not tinted");
    pp_ui_save_setting(ui, "tint", ui->settings.tint ? "yes" : "no");
}

static void insert_paste(struct pp_ui *ui, const struct pp_key *key)
{
    if (pp_edit_searching())
        pp_edit_feed("\a", 1);
    const bool inserted = pp_edit_insert(key->text, key->len);
    if (!inserted || key->lost)
        pp_ui_notice(ui, true, "out of memory: the paste was lost");
    else if (key->cut)
        pp_ui_notice(ui, true, "the paste was longer than %d MB; its end was cut off", PP_MAX_PASTE >> 20);
    else if (key->open_end)
        pp_ui_notice(ui, false, "the terminal did not mark the end of the paste; this is what arrived");
    else if (ui->menu.cls)
        pp_ui_notice(ui, false, "the pasted text is in the input line, below this menu");
}

static void begin_line(struct pp_ui *ui)
{
    if (!pp_edit_insert("\n", 1))
        pp_ui_notice(ui, true, "out of memory: the text was not changed");
}

static bool function_key(struct pp_ui *ui, enum pp_key_type type)
{
    switch (type) {
    case PP_KEY_F1: pp_menu_open(ui, &pp_menu_help); return true;
    case PP_KEY_F2: pp_menu_open(ui, &pp_menu_sessions); return true;
    case PP_KEY_F3: pp_menu_open(ui, &pp_menu_lora); return true;
    case PP_KEY_F4: pp_menu_open(ui, &pp_menu_templates); return true;
    case PP_KEY_F5: pp_menu_open(ui, &pp_menu_personas); return true;
    case PP_KEY_F6: pp_menu_open(ui, &pp_menu_draft); return true;
    case PP_KEY_F7: pp_menu_open(ui, &pp_menu_themes); return true;
    case PP_KEY_F8: pp_menu_open(ui, &pp_menu_params); return true;
    case PP_KEY_F9: toggle_raw(ui); return true;
    case PP_KEY_F10: pp_ui_leave(ui); return true;
    default: return false;
    }
}

/* Alt-1 to Alt-9 and Alt-0 stand for F1 to F10, which some keyboards and terminals lack. */
static enum pp_key_type function_of(const struct pp_key *key)
{
    if (key->type != PP_KEY_CHAR || !(key->mods & PP_MOD_ALT) || key->cp < '0' || key->cp > '9')
        return key->type;
    return key->cp == '0' ? PP_KEY_F10 : (enum pp_key_type)(PP_KEY_F1 + (key->cp - '1'));
}

/* In a menu, a function key opens another menu, or closes the menu that it opens. Keys without a menu do what they
 * always do. */
static bool switch_menu(struct pp_ui *ui, enum pp_key_type type)
{
    const struct pp_menu_class *old = ui->menu.cls;
    if (type < PP_KEY_F1 || type > PP_KEY_F10 || ui->menu.mode != PP_MENU_LIST)
        return false;
    if (type > PP_KEY_F8)
        return function_key(ui, type);
    pp_menu_cancel(ui);
    function_key(ui, type);
    if (ui->menu.cls == old)
        pp_menu_close(ui);
    return true;
}

/* Alt-Ctrl-J begins a new line, as do Ctrl-J and Alt-Enter. */
static bool alt_key(struct pp_ui *ui, const struct pp_key *key)
{
    if (function_of(key) != key->type)
        return function_key(ui, function_of(key));
    if (key->cp == PP_CTRL('j') && !pp_edit_searching()) { /* readline would switch to vi mode */
        begin_line(ui);
        return true;
    }
    if (key->cp != 'm')
        return false;
    toggle_raw(ui);
    return true;
}

/* Keys that do the same in any terminal program and also work in menus. */
static bool terminal_key(struct pp_ui *ui, const struct pp_key *key)
{
    if (key->type != PP_KEY_CHAR || (key->mods & PP_MOD_ALT))
        return false;
    switch (key->cp) {
    case PP_CTRL('\\'): pp_ui_leave(ui); return true;
    case PP_CTRL('z'): pp_ui_suspend(ui); return true;
    case PP_CTRL('l'):
        pp_screen_repaint();
        ui->dirty = PP_DRAW_ALL;
        return true;
    default: return false;
    }
}

static bool control_key(struct pp_ui *ui, const struct pp_key *key)
{
    if (terminal_key(ui, key))
        return true;
    switch (key->cp) {
    case PP_CTRL('c'):
        interrupt(ui);
        return true;
    case PP_CTRL('d'):
        if (pp_edit_len() > 0 || pp_edit_searching())
            return false;
        pp_ui_leave(ui);
        return true;
    case PP_CTRL('o'):
        choose_reasoning(ui, "");
        return true;
    case PP_CTRL('g'):
        if (pp_edit_searching())
            return false;
        open_editor(ui);
        return true;
    case PP_CTRL('j'):
        if (pp_edit_searching())
            return false;
        begin_line(ui);
        return true;
    default:
        return false;
    }
}

static bool scroll_key(struct pp_ui *ui, const struct pp_key *key)
{
    int page = ui->at.transcript.h > 2 ? ui->at.transcript.h - 1 : 1;
    bool shifted = (key->mods & (PP_MOD_SHIFT | PP_MOD_CTRL)) != 0, empty = pp_edit_len() == 0;
    switch (key->type) {
    case PP_KEY_PGUP:
    case PP_KEY_PGDN:
        if (key->mods & (PP_MOD_CTRL | PP_MOD_ALT))
            pp_transcript_step(ui, key->type == PP_KEY_PGUP ? -1 : 1);
        else
            pp_transcript_scroll(ui, key->type == PP_KEY_PGUP ? -page : page);
        return true;
    case PP_KEY_UP: if (shifted) pp_transcript_scroll(ui, -1); return shifted;
    case PP_KEY_DOWN: if (shifted) pp_transcript_scroll(ui, 1); return shifted;
    case PP_KEY_HOME: if (shifted || empty) pp_transcript_home(ui); return shifted || empty;
    case PP_KEY_END: if (shifted || empty) pp_transcript_end(ui); return shifted || empty;
    default: return false;
    }
}

/* Handles the program's own keys; false: the key is for the input line. */
static bool program_key(struct pp_ui *ui, const struct pp_key *key)
{
    if (key->type == PP_KEY_CHAR && (key->mods & PP_MOD_ALT))
        return alt_key(ui, key);
    switch (key->type) {
    case PP_KEY_CHAR:
        return control_key(ui, key);
    case PP_KEY_ENTER:
        if (!key->mods || pp_edit_searching())
            return false;
        begin_line(ui);
        return true;
    case PP_KEY_ESC:
        if (pp_edit_searching())
            return false;
        pp_ui_clear_notice(ui);
        pp_transcript_unmark(ui);
        pp_free(ui->queued);
        ui->queued = NULL;
        /* in emacs mode readline would combine Escape with the next key to Alt */
        return pp_controller_cancel(ui->controller) || end_edit(ui) || !pp_edit_vi();
    case PP_KEY_LEFT:
    case PP_KEY_RIGHT:
        if (!(key->mods & PP_MOD_SHIFT))
            return false;
        step_sibling(ui, key->type == PP_KEY_LEFT ? -1 : 1);
        return true;
    case PP_KEY_PASTE:
        insert_paste(ui, key);
        return true;
    default:
        return scroll_key(ui, key) || (!key->mods && function_key(ui, key->type));
    }
}

static void feed_key(const struct pp_key *key)
{
    bool plain = !key->mods && !pp_edit_searching();
    if (plain && key->type == PP_KEY_UP)
        pp_edit_up();
    else if (plain && key->type == PP_KEY_DOWN)
        pp_edit_down();
    else if (!key->mods && (key->type == PP_KEY_LEFT || key->type == PP_KEY_RIGHT))
        pp_edit_feed(key->type == PP_KEY_LEFT ? "\033[D" : "\033[C", 3);
    else if (!key->mods && (key->type == PP_KEY_HOME || key->type == PP_KEY_END))
        pp_edit_feed(key->type == PP_KEY_HOME ? "\033[H" : "\033[F", 3);
    else
        pp_edit_feed(key->bytes, key->n_bytes);
}

/* Whether a paste is for the input line although a menu is open, which may have opened by itself: the menu has no
 * text field for it. */
static bool passes_menu(const struct pp_ui *ui, const struct pp_key *key)
{
    const struct pp_menu *m = &ui->menu;
    return key->type == PP_KEY_PASTE && m->mode != PP_MENU_ASK && !(m->mode == PP_MENU_LIST && m->cls->search);
}

/* --mouse wants only the wheel, but terminals report clicks along with it: a notice says how to select text
 * nevertheless. */
static bool mouse_key(struct pp_ui *ui, enum pp_key_type type)
{
    enum { LINES_AT_ONCE = 3 };
    const int step = type == PP_KEY_WHEEL_UP ? -1 : type == PP_KEY_WHEEL_DOWN ? 1 : 0;
    if (!step && type != PP_KEY_CLICK)
        return false;
    if (!step && ui->options->mouse)
        pp_ui_notice(ui, false, "hold Shift to select and paste with the mouse");
    if (step && ui->menu.cls)
        pp_menu_wheel(ui, step);
    else if (step)
        pp_transcript_scroll(ui, step * LINES_AT_ONCE);
    return true;
}

void pp_ui_key(struct pp_ui *ui, const struct pp_key *key)
{
    if (mouse_key(ui, key->type))
        return;
    bool interrupt_key = key->type == PP_KEY_CHAR && key->cp == PP_CTRL('c');
    if (!interrupt_key && ui->interrupted_at) {
        ui->interrupted_at = 0;
        pp_ui_clear_notice(ui);
    }
    ui->dirty |= PP_DRAW_INPUT;
    if (ui->found.asked) { /* do not scroll to a search result after the user has gone on */
        ui->found.session = ui->found.message = 0;
        ui->found.asked = false;
    }
    if (ui->leaving) {
        if (key->type == PP_KEY_PASTE) /* the rest of a paste that was still arriving */
            insert_paste(ui, key);
        return;
    }
    if (ui->menu.cls) {
        const bool passes = passes_menu(ui, key);
        if (!terminal_key(ui, key) && !switch_menu(ui, function_of(key)))
            pp_menu_key(ui, key); /* may close the menu */
        if (passes)
            insert_paste(ui, key); /* after the menu has handled the key, which marks its notice as read */
    } else if (!program_key(ui, key)) {
        feed_key(key);
    }
    if (ui->next_line)
        fill_line(ui);
}
