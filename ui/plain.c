#include "ui/plain.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/stop_signal.h"
#include "src/cmd_common.h"
#include "src/controller.h"
#include "src/figures.h"
#include "ui/adapter_words.h"
#include "ui/bell.h"
#include "ui/sanitize.h"
#include "ui/text_file.h"
#include "ui/theme.h"
#include "ui/typed.h"
#include "ui/view_reasoning.h"

struct plain {
    struct pp_controller *c;
    const struct pp_paths *paths;
    struct pp_typed typed;    /* stdin that was read, but not used yet */
    bool end_of_input;
    bool piped;               /* stdin is not a terminal */
    bool leaving, failed;
    /* a list that was requested and has not arrived */
    enum { LIST_NOTHING, LIST_SESSIONS, LIST_MODELS, LIST_ADAPTERS, LIST_COSTS } listing;
    size_t costed;            /* with LIST_COSTS: adapters whose cost has been printed */
    struct pp_buf file_text;  /* texts of /read, to be put before the next message */
    struct pp_buf quoted;     /* the lines so far of a message between """ and """ */
    bool quoting;             /* its end has not been typed yet */
    bool prompted;            /* the last output is the prompt "> " */
    bool branching;           /* another branch was requested, and will be printed */
    uint64_t notice_serial;
    enum pp_state state;      /* at the last pump */
    int bell;                 /* --bell, and when the last line was taken: pp_now_ns */
    uint64_t line_at;
    int64_t group;            /* id of the first of the alternatives requested last */
    size_t group_at;          /* index of the one being printed; their number when all are printed */
    bool mid_answer;          /* part of an answer is printed, and more will follow */
    struct pp_buf deferred;   /* notices that arrived meanwhile, one per line */
    int64_t ended;            /* id of the answer whose end has been printed */
    int64_t message;          /* id of the answer being printed, and how many bytes of it were: */
    size_t written, thought;  /* of its text and of its reasoning */
    enum pp_reasoning_view reasoning;
    bool thinking;            /* "(thinking)" was printed, and its end was not */
    int column;
    int write_error;          /* errno of a failed write to stdout, after which the chat ends; or 0 */
    char last_key[24];
};

/* --- signals ------------------------------------------------------------------------------------------------ */

static int wake[2] = {-1, -1};
static atomic_int interrupts, terminated;
static struct pp_stop_signal stop_signal; /* counts SIGTERMs: a second one kills (engine/base/stop_signal.h) */

/* Handles SIGTERM also while the conversation is being saved at the end. */
static void on_terminate(int number)
{
    const int error = errno;
    pp_stop_signal_handle(&stop_signal, number);
    errno = error;
}

static void on_signal(int number)
{
    int error = errno;
    if (number == SIGTERM)
        on_terminate(number);
    atomic_fetch_add(number == SIGINT ? &interrupts : &terminated, 1);
    ssize_t unused = write(wake[1], "", 1);
    (void)unused;
    errno = error;
}

static bool install_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal}, old;
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0)
        return false;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN) /* nohup has it ignored */
        sigaction(SIGHUP, &action, NULL); /* arrives twice when a window is closed: see pp_signal */
    pp_stop_signal_reset(&stop_signal);
    sigaction(SIGTERM, &action, NULL);
    return true;
}

static void remove_signals(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, pp_stop_signal_seen(&stop_signal) ? on_terminate : SIG_DFL);
    signal(SIGHUP, SIG_IGN); /* it may arrive a second time, while the conversation is being saved */
    close(wake[0]);
    close(wake[1]);
}

/* --- writing ------------------------------------------------------------------------------------------------ */

static void put(struct plain *p, const char *s, size_t n)
{
    struct pp_buf clean = {0};
    pp_sanitize(&clean, s, n, PP_CLEAN_TEXT, &p->column);
    fwrite(pp_buf_cstr(&clean), 1, clean.len, stdout);
    pp_buf_free(&clean);
}

/* A write interrupted by a signal does not count as failed. */
static void flush(struct plain *p)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return;
    if (errno != EINTR && !p->write_error)
        p->write_error = errno ? errno : EIO;
    clearerr(stdout);
}

static void begin_line(struct plain *p)
{
    if (p->prompted)
        putchar('\n');
    p->prompted = false;
    p->column = 0;
}

/* Prints a line of its own, beginning at the left even after a prompt. */
static void say(struct plain *p, const char *text)
{
    begin_line(p);
    put(p, text, strlen(text));
    putchar('\n');
    flush(p);
}

/* Prints a row of a list as one line, whatever characters its names contain. */
static void say_row(struct plain *p, const char *text)
{
    struct pp_buf clean = {0};
    begin_line(p);
    pp_sanitize(&clean, text, strlen(text), PP_CLEAN_LINE, NULL);
    printf("%s\n", pp_buf_cstr(&clean));
    pp_buf_free(&clean);
    flush(p);
}

static void prompt(struct plain *p)
{
    if (p->prompted || p->leaving || p->listing || pp_controller_status(p->c)->state != PP_STATE_IDLE ||
        !pp_controller_settled(p->c))
        return;
    fputs(p->quoting ? "... " : "> ", stdout);
    flush(p);
    p->prompted = true;
}

static void put_complete(struct plain *p, const char *text, size_t len, size_t *written)
{
    size_t whole = len > *written ? pp_utf8_complete(text + *written, len - *written) : 0;
    if (whole > 0 && text[*written + whole - 1] == '\r')
        whole--; /* it may be the first half of CR LF */
    if (whole == 0)
        return;
    put(p, text + *written, whole);
    *written += whole;
    flush(p);
}

/* Prints what precedes the answer: that the model thinks, its reasoning if that is wanted, and a heading when it
 * ends. */
static void write_reasoning(struct plain *p, const struct pp_chat_message *m)
{
    char heading[128], line[136];
    bool any = m->thinking || m->reasoning_len > p->thought;
    if (p->reasoning == PP_REASONING_HIDE || (!any && !p->thinking))
        return;
    if (!p->thinking)
        say(p, "(thinking)");
    p->thinking = true;
    if (p->reasoning == PP_REASONING_SHOW)
        put_complete(p, m->reasoning, m->reasoning_len, &p->thought);
    if (m->thinking)
        return;
    pp_reasoning_heading(m, heading, sizeof heading);
    snprintf(line, sizeof line, "%s(%s)", p->column ? "\n" : "", heading);
    say(p, line);
    p->thought = m->reasoning_len;
    p->thinking = false;
}

static void write_message(struct plain *p, const struct pp_chat_message *m)
{
    if (m->id != p->message) {
        p->message = m->id;
        p->written = p->thought = 0;
        p->thinking = false;
        p->column = 0;
    }
    if (m->len < p->written)
        p->written = 0; /* the text printed so far was reasoning after all */
    write_reasoning(p, m);
    put_complete(p, m->text, m->len, &p->written);
    p->mid_answer = p->written || p->thought || p->thinking;
}

static void end_message(struct plain *p, const struct pp_chat_message *m)
{
    fputs(m->state == PP_MESSAGE_CANCELLED ? "\n(stopped)\n\n" : "\n\n", stdout);
    flush(p);
    p->ended = m->id;
}

static const struct pp_chat_message *last_message(const struct plain *p)
{
    size_t n = pp_controller_n_messages(p->c);
    return n ? pp_controller_message(p->c, n - 1) : NULL;
}

/* Prints alternatives: the current one as it is written, the others after it has ended. `over`: all have ended.
 * False: there are none, or all are printed. */
static bool write_group(struct plain *p, bool over)
{
    size_t n = pp_controller_n_alternatives(p->c);
    if (!n)
        return false;
    const struct pp_chat_message *first = pp_controller_alternative(p->c, 0);
    if (first->id != p->group) {
        p->group = first->id;
        p->group_at = 0;
    }
    if (p->group_at == n)
        return false;
    while (p->group_at < n) {
        const struct pp_chat_message *m = pp_controller_alternative(p->c, p->group_at);
        bool begun = m->len || m->reasoning_len || m->thinking || m->state != PP_MESSAGE_PARTIAL || over;
        if (!begun)
            return true;
        if (m->id != p->message) {
            char heading[160];
            snprintf(heading, sizeof heading, "(%d of %d%s%s)", m->sibling + 1, m->n_siblings,
                     *m->adapters ? ", " : "", m->adapters);
            say(p, heading);
        }
        write_message(p, m);
        if (m->state == PP_MESSAGE_PARTIAL && !over) /* it continues; if all have ended, it has failed */
            return true;
        end_message(p, m);
        p->group_at++;
    }
    const struct pp_chat_message *front = last_message(p); /* the one that the conversation continues with */
    p->message = p->ended = front->id;
    p->written = front->len;
    p->thought = front->reasoning_len;
    return true;
}

static void write_answer(struct plain *p, bool over)
{
    const struct pp_chat_message *m = last_message(p);
    if (write_group(p, over))
        return;
    if (!m || m->role != PP_ROLE_ASSISTANT)
        return;
    if (m->id == p->ended && m->state != PP_MESSAGE_PARTIAL)
        return; /* the question after it could not be saved, and has been removed */
    p->ended = 0;
    write_message(p, m);
    if (over)
        end_message(p, m);
}

static bool answering(enum pp_state s)
{
    return s == PP_STATE_ANSWER || s == PP_STATE_PREFILL || s == PP_STATE_SAVING;
}

/* Prints the messages of a conversation from index `from` on, when it was opened or its branch changed. */
static void print_messages(struct plain *p, size_t from)
{
    size_t n = pp_controller_n_messages(p->c);
    for (size_t i = from; i < n; i++) {
        const struct pp_chat_message *m = pp_controller_message(p->c, i);
        p->column = 0;
        fputs(m->role == PP_ROLE_USER ? "> " : "", stdout);
        put(p, m->text ? m->text : "", m->len);
        fputs("\n\n", stdout);
        p->message = p->ended = m->id;
        p->written = m->len;
        p->thought = m->reasoning_len;
    }
}

/* --- events ------------------------------------------------------------------------------------------------- */

static void greet(struct plain *p, const struct pp_status *s)
{
    char text[512];
    snprintf(text, sizeof text,
             "%s %s, context %s tokens. Enter sends; /help lists commands; Ctrl-D on an empty line leaves.",
             s->model.name, s->model.type_name, pp_count(s->ctx_total).text);
    say_row(p, text);
    print_messages(p, 0);
}

/* Prints what differs in this branch: from the last message that has siblings. */
static void read_branch(struct plain *p)
{
    size_t n = pp_controller_n_messages(p->c);
    while (n > 0 && pp_controller_message(p->c, n - 1)->n_siblings < 2)
        n--;
    p->branching = false;
    if (n > 0)
        print_messages(p, n - 1);
}

static void list_sessions(struct plain *p)
{
    size_t n = pp_controller_n_sessions(p->c), shown = 0;
    const struct pp_session *row;
    for (; shown < n && (row = pp_controller_session_at(p->c, shown)); shown++) {
        struct pp_buf line = {0};
        pp_buf_fmt(&line, "%s  %s", row->key,
                   row->title && *row->title ? row->title : "(without a title)");
        say_row(p, pp_buf_cstr(&line));
        pp_buf_free(&line);
    }
    if (shown < n)
        say(p, "These are the newest ones; `pippin sessions list` shows all.");
    if (!pp_controller_status(p->c)->temporary)
        say(p, "`pippin --plain --resume ID` opens one of them.");
}

/* The counterpart of a menu: one entry per line, with a mark on the current one. */
static void list_named(struct plain *p, const struct pp_named *(*get)(const struct pp_controller *, size_t *),
                       const char *hint)
{
    size_t n;
    const struct pp_named *list = get(p->c, &n);
    for (size_t i = 0; i < n; i++) {
        char line[512];
        pp_utf8_print(line, sizeof line, "%s%s%s%.300s", list[i].name, list[i].current ? " (chosen)" : "",
                      list[i].detail[0] ? ": " : "", list[i].detail);
        say_row(p, line);
    }
    say(p, hint);
}

static void list_adapters(struct plain *p)
{
    size_t n;
    const struct pp_adapter_entry *list = pp_controller_adapters(p->c, &n);
    for (size_t i = 0; i < n; i++) {
        char line[900], what[320];
        const size_t other = pp_controller_adapter_conflict(p->c, i);
        const bool bad = list[i].fit == PP_FIT_NO;
        pp_adapter_describe(&list[i], what, sizeof what);
        pp_utf8_print(line, sizeof line, "%.100s: %s, scale %.2f%s%.60s%s%s%s%s", list[i].name,
                      bad ? "cannot be used" : list[i].on ? "on" : "off", (double)list[i].scale,
                      other < n ? ", conflicts with " : "", other < n ? list[other].name : "", bad ? ": " : "; ", what,
                      list[i].note[0] ? "; note: " : "", list[i].note);
        say_row(p, line);
    }
}

/* Prints what switching each adapter on or off would cost in this conversation, as far as that is known. False: the
 * next is not known yet. */
static bool list_costs(struct plain *p)
{
    size_t n;
    const struct pp_adapter_entry *list = pp_controller_adapters(p->c, &n);
    for (; p->costed <= n && pp_controller_n_messages(p->c); p->costed++) { /* the last: nothing is switched */
        const size_t i = p->costed < n ? p->costed : SIZE_MAX;
        char what[160] = "as it is", line[300];
        if (i != SIZE_MAX && list[i].fit != PP_FIT_YES)
            continue;
        const struct pp_switch_cost cost = pp_controller_switch_cost(p->c, i);
        if (cost.asked)
            return false;
        if (i != SIZE_MAX)
            pp_utf8_print(what, sizeof what, "%.100s switched %s", list[i].name, list[i].on ? "off" : "on");
        pp_adapter_describe_cost(what, &cost, line, sizeof line);
        if (n)
            say_row(p, line);
    }
    return true;
}

static void end_adapters(struct plain *p)
{
    size_t n;
    pp_controller_adapters(p->c, &n);
    say(p, n ? "/lora NAME switches one on, /lora NAME off switches it off, /lora off all of them."
             : "No adapters found next to the model so far; /lora add FILE adds one.");
    pp_controller_presets(p->c, &n);
    if (n)
        list_named(p, pp_controller_presets, "/lora preset NAME switches to one of these presets.");
}

static void list_models(struct plain *p)
{
    size_t n;
    const struct pp_model_choice *list = pp_controller_models(p->c, &n);
    for (size_t i = 0; i < n; i++) {
        char line[700];
        const bool good = list[i].fit == PP_FIT_YES;
        pp_utf8_print(line, sizeof line, "%.127s%s: %s%s%s%s%.255s", list[i].name, list[i].current ? " (loaded)" : "",
                      good ? list[i].facts.type : "", good ? ", " : "",
                      good ? pp_size(list[i].facts.bytes).text : "", list[i].fit == PP_FIT_NO ? "cannot be used: " : "",
                      good ? "" : list[i].reason);
        say_row(p, line);
    }
    say(p, "/model NAME or /model PATH loads another one.");
}

/* Prints a notice, or keeps it until the answer being printed has ended. */
static void print_or_defer(struct plain *p, const char *notice)
{
    if (!p->mid_answer)
        say(p, notice);
    else if (!p->deferred.len || !strstr(pp_buf_cstr(&p->deferred), notice)) /* several answers may cause the same */
        pp_buf_fmt(&p->deferred, "%s%s", p->deferred.len ? "\n" : "", notice);
}

static void print_deferred(struct plain *p)
{
    if (p->deferred.len)
        say(p, pp_buf_cstr(&p->deferred));
    pp_buf_free(&p->deferred);
    p->mid_answer = false;
}

static void pump(struct plain *p)
{
    unsigned dirty = pp_controller_pump(p->c);
    const struct pp_status *s = pp_controller_status(p->c);
    if (p->listing == LIST_SESSIONS && dirty & PP_DIRTY_LISTS) {
        p->listing = LIST_NOTHING;
        list_sessions(p);
    } else if (p->listing == LIST_MODELS && !pp_controller_models_pending(p->c)) {
        p->listing = LIST_NOTHING;
        list_models(p);
    } else if (p->listing == LIST_ADAPTERS && !pp_controller_adapters_pending(p->c)) {
        p->listing = LIST_COSTS;
        p->costed = 0;
        list_adapters(p);
    }
    if (p->listing == LIST_COSTS && list_costs(p)) {
        p->listing = LIST_NOTHING;
        end_adapters(p);
    }
    if (s->session_key && *s->session_key)
        snprintf(p->last_key, sizeof p->last_key, "%s", s->session_key);
    else if (!p->leaving)
        p->last_key[0] = '\0'; /* it was deleted or left, or nothing is kept */
    bool before = answering(p->state), now = answering(s->state);
    if (before || now)
        write_answer(p, !now);
    if (s->notice_serial != p->notice_serial) {
        p->notice_serial = s->notice_serial;
        if (s->notice && *s->notice)
            print_or_defer(p, s->notice);
    }
    if (!now)
        print_deferred(p);
    if (before && !now && pp_bell_due(p->bell, p->line_at) && isatty(STDOUT_FILENO)) {
        putchar('\a');
        flush(p);
    }
    if (p->state == PP_STATE_LOADING && s->state == PP_STATE_IDLE)
        greet(p, s);
    p->state = s->state;
    if (p->branching && s->state == PP_STATE_IDLE && pp_controller_settled(p->c))
        read_branch(p);
}

static void leave(struct plain *p)
{
    if (!p->leaving)
        pp_controller_quit(p->c);
    p->leaving = true;
}

static void list_commands(struct plain *p)
{
    const char *name, *args, *text;
    for (size_t i = 0; pp_slash_info(i, &name, &args, &text); i++) {
        char line[256];
        snprintf(line, sizeof line, "/%s%s%s: %s", name, *args ? " " : "", args, text);
        say(p, line);
    }
    say(p, "A message of several lines begins with \"\"\" and ends with \"\"\".");
}

static void say_drafter(struct plain *p)
{
    const struct pp_status *s = pp_controller_status(p->c);
    char line[300];
    pp_utf8_print(line, sizeof line, "Drafts: %s; draft model: %.100s. Change with /draft auto, model, lookup, off or "
                                     "file NAME.", pp_drafter_name(s->drafter),
                                     s->model.draft_name[0] ? s->model.draft_name : "none");
    say_row(p, line);
}

static const char themes_elsewhere[] = "Themes need the full screen: pippin --theme NAME, without --plain.";

static void list_themes(struct plain *p)
{
    char (*ids)[64] = NULL;
    size_t n = 0;
    struct pp_error err;
    if (pp_theme_list(p->paths, &ids, &n, &err) != PP_OK)
        say(p, err.text);
    for (size_t i = 0; i < n; i++)
        say_row(p, ids[i]);
    pp_free(ids);
    say(p, themes_elsewhere);
}

static void choose_reasoning(struct plain *p, const char *word)
{
    int how = pp_reasoning_view_by_name(word);
    if (how >= 0)
        p->reasoning = (enum pp_reasoning_view)how;
    else
        say(p, "/reasoning show, fold or hide");
}

/* Reads a file for the next message; without a path, forgets those read before. */
static void add_file(struct plain *p, const char *path)
{
    struct pp_error err;
    char *text = NULL;
    const bool had = p->file_text.len > 0;
    struct pp_buf notice = {0};
    if (!*path && !had) {
        say(p, "/read FILE");
    } else if (!*path) {
        pp_buf_free(&p->file_text);
        say(p, "The file was removed from your next message.");
    } else if (pp_text_file_read(path, &text, &err) != PP_OK) {
        say(p, err.text);
    } else {
        pp_buf_str(&p->file_text, text);
        if (p->file_text.bad) {
            pp_buf_free(&p->file_text);
            say(p, "out of memory: the file was not added to your next message");
        } else {
            pp_buf_fmt(&notice, "%s will precede your next message%s; /read alone removes %s.", path,
                       had ? ", too" : "", had ? "all" : "it");
            say_row(p, pp_buf_cstr(&notice));
        }
    }
    pp_buf_free(&notice);
    pp_free(text);
}

/* Sends a message, after the texts of /read. */
static void send_text(struct plain *p, const char *words)
{
    if (!p->file_text.len) {
        pp_controller_send(p->c, words);
        return;
    }
    struct pp_buf message = {0};
    pp_buf_fmt(&message, "%s%s", pp_buf_cstr(&p->file_text), words);
    if (message.bad)
        say(p, "out of memory: the message was not sent");
    else if (pp_controller_send(p->c, message.data))
        pp_buf_free(&p->file_text);
    pp_buf_free(&message);
}

/* Sends the lines between the marks, without empty ones at the end. */
static void send_quoted(struct plain *p)
{
    struct pp_buf text = p->quoted;
    p->quoting = false;
    p->quoted = (struct pp_buf){0};
    while (text.len && text.data[text.len - 1] == '\n')
        text.data[--text.len] = '\0';
    if (text.bad)
        say(p, "out of memory: the message was not sent");
    else if (text.len && text.data[strspn(text.data, " \t\n")])
        send_text(p, text.data);
    pp_buf_free(&text);
}

/* A message of several lines begins with """ and ends with """, each at the beginning or the end of a line or on a line
 * of its own. False: the line is not part of one. */
static bool take_quoted(struct plain *p, const char *line)
{
    static const char mark[] = "\"\"\"";
    const size_t len = sizeof mark - 1;
    size_t n = strlen(line);
    if (!p->quoting && strncmp(line, mark, len) != 0)
        return false;
    if (!p->quoting) {
        line += len;
        n -= len;
    } else if (p->quoted.len) {
        pp_buf_char(&p->quoted, '\n');
    }
    p->quoting = true;
    while (n && strchr(" \t", line[n - 1]))
        n--;
    const bool over = n >= len && memcmp(line + n - len, mark, len) == 0;
    pp_buf_add(&p->quoted, line, over ? n - len : strlen(line));
    if (over)
        send_quoted(p);
    return true;
}

/* A terminal in line mode passes cursor keys on as escape sequences; such a line is not sent as a message. */
static bool has_stray_key(const struct plain *p, const char *line)
{
    return !p->piped && strchr(line, '\x1b');
}

static void handle_line(struct plain *p, const char *line)
{
    char arg[4200]; /* a path, for example */
    const size_t n = pp_controller_n_messages(p->c);
    const uint64_t serial = p->notice_serial;
    p->prompted = false;
    p->line_at = pp_now_ns();
    if (has_stray_key(p, line)) {
        say(p, p->quoting ? "Not added to the message: the line contains an arrow or another special key."
                          : "Not sent: the line contains an arrow or another special key. Backspace corrects the "
                            "line, Ctrl-U clears it.");
        return;
    }
    if (take_quoted(p, line))
        return;
    enum pp_slash slash = line[0] == '/' ? pp_controller_slash(p->c, line, arg, sizeof arg) : PP_SLASH_TEXT;
    switch (slash) {
    case PP_SLASH_TEXT:
        if (line[strspn(line, " \t")])
            send_text(p, pp_slash_text(line));
        break;
    case PP_SLASH_DONE:
        if (n > 0 && pp_controller_n_messages(p->c) == 0 && pp_controller_status(p->c)->notice_serial == serial)
            say(p, "A new conversation.");
        break;
    case PP_SLASH_ERROR:
    case PP_SLASH_ERROR_EDIT:
        break;
    case PP_SLASH_BRANCH: p->branching = true; break;
    case PP_SLASH_READ: add_file(p, arg); break;
    case PP_SLASH_COPY: say(p, "This needs the full screen; /export FILE writes the conversation to a file."); break;
    case PP_SLASH_FIND:
        say(p, "This needs the full screen; `pippin sessions search` searches all conversations.");
        break;
    case PP_SLASH_TINT: say(p, "Colours need the full screen."); break;
    case PP_SLASH_HELP: list_commands(p); break;
    case PP_SLASH_SESSIONS:
        p->listing = LIST_SESSIONS;
        pp_controller_refresh_sessions(p->c, "");
        break;
    case PP_SLASH_QUIT: leave(p); break;
    case PP_SLASH_REASONING: choose_reasoning(p, arg); break;
    case PP_SLASH_MODEL_MENU:
        p->listing = LIST_MODELS;
        pp_controller_find_models(p->c);
        break;
    case PP_SLASH_LORA_MENU:
        p->listing = LIST_ADAPTERS;
        pp_controller_rescan(p->c);
        break;
    case PP_SLASH_DRAFT_MENU: say_drafter(p); break;
    case PP_SLASH_TEMPLATE_MENU: list_named(p, pp_controller_templates, "/template NAME chooses one."); break;
    case PP_SLASH_PERSONA_MENU: list_named(p, pp_controller_personas, "/persona NAME chooses one."); break;
    case PP_SLASH_PARAMS_MENU: list_named(p, pp_controller_params, "/set NAME VALUE changes one."); break;
    case PP_SLASH_OVERFLOW_MENU: say(p, "Continue with /overflow shift, summarise, slide or stop."); break;
    case PP_SLASH_THEME:
        if (arg[0])
            say(p, themes_elsewhere);
        else
            list_themes(p);
        break;
    case PP_SLASH_EDIT:
        say(p, "This needs the full screen. /undo takes the last question back; then type it again.");
        break;
    }
}

/* Handles one line at a time, and only when the answer before is complete. */
static void handle_input(struct plain *p)
{
    while (!p->leaving && !p->listing && pp_controller_status(p->c)->state == PP_STATE_IDLE) {
        if (p->piped && pp_controller_importing(p->c))
            return; /* the import is awaited, as the end of stdin would stop it */
        if (!pp_controller_settled(p->c))
            return; /* the next line may depend on a pending job */
        const char *line = pp_typed_line(&p->typed, p->end_of_input);
        if (!line) {
            if (p->end_of_input && p->quoting)
                send_quoted(p); /* what was typed is not lost with its end */
            else if (p->end_of_input)
                leave(p);
            return;
        }
        handle_line(p, line);
        pp_typed_used(&p->typed);
        pump(p);
    }
}

static void read_typed(struct plain *p)
{
    char bytes[4096];
    struct pp_error err;
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    if (n > 0 && pp_typed_add(&p->typed, bytes, (size_t)n, &err))
        say(p, err.text);
    else if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
        p->end_of_input = true;
}

static void handle_signals(struct plain *p)
{
    char bytes[16];
    while (read(wake[0], bytes, sizeof bytes) > 0) {
    }
    if (atomic_exchange(&interrupts, 0) && !pp_controller_cancel(p->c)) {
        if (!p->quoting)
            leave(p);
        else
            say(p, "The message was not sent.");
        p->quoting = false;
        pp_buf_free(&p->quoted);
    }
    if (atomic_load(&terminated))
        leave(p);
}

static void run(struct plain *p)
{
    struct pollfd fds[3] = {{wake[0], POLLIN, 0}, {pp_controller_fd(p->c), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    p->state = PP_STATE_LOADING;
    for (;;) {
        pump(p);
        enum pp_state state = pp_controller_status(p->c)->state;
        if (state == PP_STATE_CLOSED)
            return;
        if (state == PP_STATE_FAILED) {
            p->failed = true;
            leave(p);
        }
        if (p->write_error)
            leave(p);
        handle_input(p);
        prompt(p);
        const bool enough = p->typed.text.len > PP_TYPED_LINE_MAX / 2 && pp_typed_has_line(&p->typed);
        fds[2].fd = p->end_of_input || enough ? -1 : STDIN_FILENO;
        if (poll(fds, 3, p->leaving ? PP_CLOSING_MS : -1) < 0 && errno != EINTR)
            return;
        if (fds[0].revents)
            handle_signals(p);
        if (fds[2].fd >= 0 && fds[2].revents)
            read_typed(p);
    }
}

void pp_plain_waiting(const char *what)
{
    printf("Still saving (%s); please wait.\n", what);
    fflush(stdout);
}

/* Prints a line that ends with untrusted text. */
static void say_clean(const char *before, const char *text)
{
    struct pp_buf clean = {0};
    pp_sanitize(&clean, text, strlen(text), PP_CLEAN_TEXT, NULL);
    printf("%s%s\n", before, pp_buf_cstr(&clean));
    pp_buf_free(&clean);
}

void pp_plain_close_report(const struct pp_close_report *w, const char *key)
{
    const bool saved = w->saved;
    if (w->text[0])
        say_clean("", w->text);
    if (w->gone) /* w->text says everything */
        return;
    if (!saved && w->why[0])
        say_clean("The end of the last answer is lost: ", w->why);
    else if (!saved)
        printf("The end of the last answer could not be saved; is the disk full?\n");
    if (key[0])
        printf("%sTo continue this conversation: pippin --resume %s\n", saved ? "Saved. " : "", key);
}

int pp_plain_run(const struct pp_options *o, const struct pp_paths *paths)
{
    struct plain p = {.paths = paths, .bell = o->bell};
    int reasoning = o->reasoning ? pp_reasoning_view_by_name(o->reasoning) : -1;
    struct pp_error err;
    enum pp_code code = pp_controller_new(o, paths, &p.c, &err);
    if (code == PP_OK && !install_signals())
        code = pp_fail(&err, PP_ERR_IO, "cannot create a pipe for signals: %s", strerror(errno));
    if (code != PP_OK) {
        pp_cli_say("%s", err.text);
        if (p.c)
            pp_controller_free(p.c);
        return pp_exit_code(code);
    }
    p.reasoning = reasoning < 0 ? PP_REASONING_FOLD : (enum pp_reasoning_view)reasoning;
    p.piped = !isatty(STDIN_FILENO);
    run(&p);
    remove_signals();
    struct pp_close_report w = {.waiting = pp_plain_waiting};
    printf("\n");
    pp_controller_close(p.c, &w);
    pp_plain_close_report(&w, p.last_key);
    flush(&p);
    if (p.write_error && p.write_error != EPIPE)
        pp_cli_say("cannot write the output: %s", strerror(p.write_error));
    pp_buf_free(&p.typed.text);
    pp_buf_free(&p.deferred);
    pp_buf_free(&p.file_text);
    pp_buf_free(&p.quoted);
    return p.failed || p.write_error ? 1 : 0;
}
