/* fake_controller.c - a double of src/controller.c for the tests of the screen: same interface, no engine, no
 * database.
 *
 * Answers are scripted: words of the user's text choose the answer, of which a piece comes with each timer tick. Other
 * text is echoed.
 *   "slow"    an answer that lasts until it is stopped        "hostile"  escape sequences and other attacks
 *   "markdown" every kind of formatting                       "unicode"  wide, joined and combining characters
 *   "think"   reasons before the answer, "ponder" until it is stopped
 *   "long"    two hundred lines at once                       "refuse"   the text is not accepted now
 *   "guessed" every other piece of the echo came from draft tokens
 *   "unsaved" the text is accepted, but cannot be saved       "warned"   an error is shown, and then another notice
 *   "the disk is full" nothing can be saved until "make room"
 *   "title TEXT" names the conversation
 *
 * Variables of the environment:
 *   PIPPIN_FAKE_SEARCH=N      a search in the list takes N ticks, and finds only the last conversation
 *   PIPPIN_FAKE_HIT=N         conversations have two hundred messages more, and the search finds the one numbered N;
 *                             998 is on another branch, 0 stands for the title
 *   PIPPIN_FAKE_MESSAGES=N    begins with a transcript of N messages
 *   PIPPIN_FAKE_NO_MODEL      the model does not fit into memory
 *   PIPPIN_FAKE_LOADS         when the model is loaded, the first and the last adapter change places, and a new preset
 *                             comes first in the list
 *   PIPPIN_FAKE_TEMPORARY     the chat is temporary, by choice, or ("unwanted") because nothing can be saved
 *   PIPPIN_FAKE_UNREAD        the list of conversations cannot be read
 *   PIPPIN_FAKE_RENAMED=TITLE another pippin renames the open conversation
 *   PIPPIN_FAKE_ELSEWHERE=N   the number of answers in other conversations
 *   PIPPIN_FAKE_CLOSES=N      closing takes N ticks
 *   PIPPIN_FAKE_SAVES=N       and then saving takes N ms
 *   PIPPIN_FAKE_STUCK         closing ends after 300 ms, but no event says so: only pp_controller_pump() finds out
 *   PIPPIN_FAKE_HOLD=PATH     while there is a file at PATH, loading, reading a question and searching do not end */
#include "src/controller.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/paths.h"

enum { TICK_NS = 5000000, LOAD_TICKS = 10, PREFILL_TICKS = 30, PIECE = 6, SESSIONS = 3, ADAPTERS = 3, CHOICES = 3,
    PARAMS = 4, PRESETS = 3 };

struct message {
    struct pp_chat_message shown;
    struct pp_buf text, reasoning;
};

struct pp_controller {
    int fd;
    struct pp_status status;
    struct message *messages;
    size_t n, cap;
    struct pp_chat_message alternatives[PP_MAX_ALTERNATIVES];
    size_t n_alternatives;
    bool overflow_asked;    /* set by "/full" */
    size_t context;         /* index of the first message in the context */
    const char *context_note;
    uint64_t gives_up_ns;   /* PIPPIN_FAKE_STUCK: when leaving is given up */
    int elsewhere;          /* PIPPIN_FAKE_ELSEWHERE: answers in other conversations */
    uint64_t revisions;
    unsigned dirty;
    int ticks;              /* since the present state began */
    struct pp_buf script;   /* the answer being streamed */
    size_t said;
    const char *thoughts;   /* what precedes the answer, or NULL */
    size_t thought;
    bool endless, ponders;
    char *unsent, *refused;
    bool refuses;           /* the model that is being loaded: "too-large", or PIPPIN_FAKE_NO_MODEL */
    char title[128], notice[256], unsaved[128], adapter_text[128];
    struct pp_session sessions[SESSIONS];
    size_t n_sessions;
    int searching;          /* PIPPIN_FAKE_SEARCH: ticks until the result is there, the last conversation alone */
    int64_t session;
    struct pp_adapter_entry adapters[ADAPTERS];
    struct pp_drafter_entry drafters[3];
    size_t n_drafters;
    struct pp_model_choice models[4];
    size_t n_models;
    struct pp_named templates[CHOICES], personas[CHOICES], params[PARAMS], presets[PRESETS];
    size_t n_presets;
};

/* --- state --------------------------------------------------------------------------------------------------- */

static void tick_every(struct pp_controller *c, long ns)
{
    struct itimerspec t = {{0, ns}, {0, ns}};
    timerfd_settime(c->fd, 0, &t, NULL);
}

static void set_state(struct pp_controller *c, enum pp_state state)
{
    c->status.state = state;
    c->ticks = 0;
    c->dirty |= PP_DIRTY_STATUS;
    tick_every(c, state == PP_STATE_IDLE || state == PP_STATE_FAILED ? 0 : TICK_NS);
}

static void say(struct pp_controller *c, bool error, const char *text)
{
    snprintf(c->notice, sizeof c->notice, "%s", text);
    c->status.notice_is_error = error;
    c->status.notice_serial++;
    c->dirty |= PP_DIRTY_STATUS;
}

static struct message *add_message(struct pp_controller *c, enum pp_role role, const char *text)
{
    if (pp_grow(&c->messages, &c->cap, c->n + 1, sizeof *c->messages) != 0)
        abort();
    struct message *m = &c->messages[c->n++];
    *m = (struct message){.shown = {.id = (int64_t)c->n, .role = role, .n_siblings = 1, .acceptance = -1}};
    m->shown.revision = ++c->revisions;
    pp_buf_str(&m->text, text);
    c->dirty |= PP_DIRTY_TRANSCRIPT;
    return m;
}

static void forget_messages(struct pp_controller *c)
{
    for (size_t i = 0; i < c->n; i++) {
        pp_buf_free(&c->messages[i].text);
        pp_buf_free(&c->messages[i].reasoning);
    }
    c->n = 0;
    c->dirty |= PP_DIRTY_TRANSCRIPT;
}

static void fill_named(struct pp_named *list, const char *const (*texts)[2], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        snprintf(list[i].name, sizeof list[i].name, "%s", texts[i][0]);
        snprintf(list[i].detail, sizeof list[i].detail, "%s", texts[i][1]);
        list[i].current = i == 0;
    }
}

static void fill_lists(struct pp_controller *c)
{
    static const char *const templates[][2] = {{"model's own", "from the file"}, {"chatml", "<|im_start|>"},
        {"plain", "no template"}};
    static const char *const personas[][2] = {{"none", ""}, {"Pirate", "Answers like a pirate"},
        {"Teacher", "Explains step by step, from the simplest case to the hardest, and asks whether all is clear"}};
    static const char *const params[][2] = {{"temp", "0.80"}, {"top-k", "40"}, {"top-p", "0.95"}, {"seed", "42"}};
    static const char *const titles[SESSIONS] = {"Rain in the harbour", "雨の港 (wide title)",
        "Evil \033]0;owned\a title"};
    fill_named(c->templates, templates, CHOICES);
    fill_named(c->personas, personas, CHOICES);
    fill_named(c->params, params, PARAMS);
    for (int i = 0; i < SESSIONS; i++) {
        c->sessions[i] = (struct pp_session){.id = i + 1, .title = pp_strdup(titles[i]), .updated = 1700000000 + i};
        snprintf(c->sessions[i].key, sizeof c->sessions[i].key, "%016x", 0xfeed0000u + (unsigned)i);
    }
    c->n_sessions = SESSIONS;
    c->adapters[0] = (struct pp_adapter_entry){.name = "bard", .path = "/models/bard.gguf", .scale = 1};
    c->adapters[1] = (struct pp_adapter_entry){.name = "barista", .path = "/models/barista.gguf", .scale = 1,
                                               .decode_tokens = 90, .decode_ns = 2000000000};
    c->adapters[2] = (struct pp_adapter_entry){.name = "old whale", .path = "/models/whale.gguf", .scale = 1};
}

enum pp_code pp_controller_new(const struct pp_options *o, const struct pp_paths *paths, struct pp_controller **out,
                               struct pp_error *err)
{
    (void)o, (void)paths;
    struct pp_controller *c = pp_calloc(1, sizeof *c);
    if (!c)
        return pp_fail_nomem(err, "the double");
    c->fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    c->status = (struct pp_status){.title = c->title, .session_key = "", .adapters = c->adapter_text, .persona = "",
        .template_name = "",
                                   .notice = c->notice, .unsaved = c->unsaved, .eta_s = -1, .acceptance = -1};
    c->status.temporary = getenv("PIPPIN_FAKE_TEMPORARY") != NULL;
    c->status.unwanted = c->status.temporary && strcmp(getenv("PIPPIN_FAKE_TEMPORARY"), "unwanted") == 0;
    if (c->status.temporary)
        say(c, false, "this chat is temporary");
    snprintf(c->status.model.draft_name, sizeof c->status.model.draft_name, "starter-draft");
    snprintf(c->status.model.draft_path, sizeof c->status.model.draft_path, "/models/draft");
    fill_lists(c);
    const char *n = getenv("PIPPIN_FAKE_MESSAGES");
    for (int i = 0; n && i < atoi(n); i++) {
        char text[128];
        snprintf(text, sizeof text, "message number %d", i + 1);
        add_message(c, i % 2 ? PP_ROLE_ASSISTANT : PP_ROLE_USER, text);
    }
    c->elsewhere = getenv("PIPPIN_FAKE_ELSEWHERE") ? atoi(getenv("PIPPIN_FAKE_ELSEWHERE")) : 0;
    c->refuses = getenv("PIPPIN_FAKE_NO_MODEL") != NULL;
    set_state(c, PP_STATE_LOADING);
    c->status.progress_total = LOAD_TICKS;
    c->dirty = PP_DIRTY_ALL;
    *out = c;
    return PP_OK;
}

void pp_controller_quit(struct pp_controller *c)
{
    set_state(c, PP_STATE_CLOSING);
    if (getenv("PIPPIN_FAKE_STUCK")) {
        tick_every(c, 0);
        c->gives_up_ns = pp_now_ns() + 300 * UINT64_C(1000000);
    }
}

bool pp_controller_free(struct pp_controller *c)
{
    struct pp_close_report w = {0};
    pp_controller_close(c, &w);
    return w.saved;
}

void pp_controller_close(struct pp_controller *c, struct pp_close_report *w)
{
    w->saved = true;
    w->gone = false;
    w->text[0] = '\0';
    const char *saves = getenv("PIPPIN_FAKE_SAVES"); /* ms that saving takes */
    const uint64_t until = pp_now_ns() + (saves ? strtoull(saves, NULL, 10) : 0) * UINT64_C(1000000);
    while (pp_now_ns() < until)
        poll(NULL, 0, 20);
    forget_messages(c);
    pp_free(c->messages);
    pp_buf_free(&c->script);
    pp_free(c->refused);
    pp_free(c->unsent);
    for (int i = 0; i < SESSIONS; i++)
        pp_free(c->sessions[i].title);
    close(c->fd);
    pp_free(c);
}

int pp_controller_fd(const struct pp_controller *c)
{
    return c->fd;
}

/* --- time passes ---------------------------------------------------------------------------------------------- */

/* Lists change while someone looks at them. */
static void another_is_found(struct pp_controller *c)
{
    pp_controller_move_adapter(c, ADAPTERS - 1, 1 - ADAPTERS);
    memmove(c->presets + 1, c->presets, (PRESETS - 1) * sizeof *c->presets);
    c->presets[0] = (struct pp_named){.name = "earlier", .detail = "bard 0.25"};
    c->n_presets += c->n_presets < PRESETS;
    c->dirty |= PP_DIRTY_LISTS;
}

static void loaded(struct pp_controller *c)
{
    struct pp_loaded *m = &c->status.model;
    c->status.not_loaded = c->refuses;
    if (c->refuses)
        say(c, true, "it does not fit into memory");
    if (c->refuses && !m->name[0]) {
        set_state(c, PP_STATE_FAILED);
        return;
    }
    snprintf(m->name, sizeof m->name, "pippin-starter");
    snprintf(m->type_name, sizeof m->type_name, "Q4_K_M");
    m->n_threads = 2;
    c->status.ctx_total = 2048;
    set_state(c, PP_STATE_IDLE);
}

static void end_answer(struct pp_controller *c, enum pp_message_state state)
{
    struct message *m = &c->messages[c->n - 1];
    if (m->shown.role == PP_ROLE_ASSISTANT) {
        m->shown.state = state;
        m->shown.thinking = false;
        m->shown.revision = ++c->revisions;
    }
    if (strstr(pp_buf_cstr(&c->script), "warned") || strstr(pp_buf_cstr(&c->script), "disk is full"))
        say(c, false, "and that was all");
    set_state(c, PP_STATE_IDLE);
}

/* Streams the next piece of the thoughts before an answer; false: there are no more. */
static bool think(struct pp_controller *c, struct message *m)
{
    size_t left = c->thoughts ? strlen(c->thoughts + c->thought) : 0, n = left < PIECE ? left : PIECE;
    if (c->ponders)
        pp_buf_fmt(&m->reasoning, "hm %d ", c->ticks);
    else if (n)
        pp_buf_add(&m->reasoning, c->thoughts + c->thought, n);
    c->thought += n;
    m->shown.thinking = c->ponders || left > n;
    m->shown.reasoning_tokens = (int64_t)m->reasoning.len / 4;
    m->shown.reasoning_s = 1.25f;
    return n > 0 || c->ponders;
}

static void speak(struct pp_controller *c)
{
    struct message *m = &c->messages[c->n - 1];
    if (think(c, m)) {
        c->status.ctx_used++;
    } else if (c->endless) {
        pp_buf_fmt(&m->text, "word %d ", c->ticks);
    } else {
        size_t piece = c->script.len > 4000 ? 500 : PIECE, left = c->script.len - c->said;
        pp_buf_add(&m->text, c->script.data + c->said, left < piece ? left : piece);
        c->said += left < piece ? left : piece;
    }
    m->shown.revision = ++c->revisions;
    if (strstr(pp_buf_cstr(&c->script), "guessed")) {
        static const uint32_t pieces[64] = {[0 ... 63] = PIECE};
        m->shown.drafted = pieces;
        m->shown.n_drafted = (m->text.len + PIECE - 1) / PIECE;
        c->status.draft_depth = 3;
        memcpy(c->status.drafted_at, (const uint32_t[]){20, 18, 8}, 3 * sizeof(uint32_t));
        memcpy(c->status.accepted_at, (const uint32_t[]){18, 8, 1}, 3 * sizeof(uint32_t));
        c->status.speedup = 1.31f;
    }
    c->status.tokens_per_s = 1203;
    c->status.acceptance = 0.71f;
    c->status.ctx_used++;
    c->dirty |= PP_DIRTY_TRANSCRIPT | PP_DIRTY_STATUS;
    if (!c->endless && c->said == c->script.len)
        end_answer(c, PP_MESSAGE_COMPLETE);
}

static void not_saved(struct pp_controller *c)
{
    struct message *m = &c->messages[--c->n];
    pp_free(c->unsent);
    c->unsent = pp_strdup(pp_buf_cstr(&m->text));
    pp_buf_free(&m->text);
    say(c, true, "not saved and not sent: the disk is full");
    set_state(c, PP_STATE_IDLE);
}

static bool held(void)
{
    const char *path = getenv("PIPPIN_FAKE_HOLD");
    return path && access(path, F_OK) == 0;
}

static void tick(struct pp_controller *c)
{
    struct pp_status *s = &c->status;
    c->ticks++;
    c->dirty |= PP_DIRTY_STATUS;
    if (c->searching && !held() && !--c->searching) {
        static char excerpt[] = "what was found";
        c->dirty |= PP_DIRTY_LISTS;
        while (c->n_sessions > 1)
            pp_controller_delete(c, c->sessions[0].id);
        if (getenv("PIPPIN_FAKE_HIT") && atoi(getenv("PIPPIN_FAKE_HIT"))) {
            c->sessions[0].hit = atoi(getenv("PIPPIN_FAKE_HIT"));
            c->sessions[0].excerpt = excerpt;
        }
        tick_every(c, 0);
    }
    switch (s->state) {
    case PP_STATE_LOADING:
        if (c->ticks == LOAD_TICKS && held())
            c->ticks--;
        s->progress_done = (uint64_t)c->ticks;
        if (s->progress_done < s->progress_total)
            break;
        loaded(c);
        if (getenv("PIPPIN_FAKE_LOADS"))
            another_is_found(c);
        break;
    case PP_STATE_SAVING:
        if (strstr(pp_buf_cstr(&c->messages[c->n - 1].text), "unsaved")) {
            not_saved(c);
            break;
        }
        s->progress_total = PREFILL_TICKS * 10;
        s->progress_done = 0;
        s->session_key = "0123456789abcdef";
        set_state(c, PP_STATE_PREFILL);
        break;
    case PP_STATE_PREFILL:
        if (c->ticks == PREFILL_TICKS && held())
            c->ticks--;
        s->progress_done = (uint64_t)c->ticks * 10;
        s->eta_s = (float)(PREFILL_TICKS - c->ticks) * 0.05f;
        if (c->ticks == PREFILL_TICKS) {
            set_state(c, PP_STATE_ANSWER);
            add_message(c, PP_ROLE_ASSISTANT, "")->shown.state = PP_MESSAGE_PARTIAL;
            if (strstr(pp_buf_cstr(&c->script), "warned"))
                say(c, true, "answered without it");
        }
        break;
    case PP_STATE_ANSWER:
        speak(c);
        break;
    case PP_STATE_CLOSING:
        if (c->ticks == (getenv("PIPPIN_FAKE_CLOSES") ? atoi(getenv("PIPPIN_FAKE_CLOSES")) : 5))
            set_state(c, PP_STATE_CLOSED);
        break;
    default:
        break;
    }
}

unsigned pp_controller_pump(struct pp_controller *c)
{
    uint64_t expired;
    if (c->gives_up_ns && pp_now_ns() > c->gives_up_ns)
        set_state(c, PP_STATE_CLOSED);
    if (read(c->fd, &expired, sizeof expired) == sizeof expired)
        tick(c);
    unsigned dirty = c->dirty;
    c->dirty = 0;
    for (size_t i = 0; i < c->n; i++) {
        c->messages[i].shown.text = pp_buf_cstr(&c->messages[i].text);
        c->messages[i].shown.len = c->messages[i].text.len;
        c->messages[i].shown.reasoning = pp_buf_cstr(&c->messages[i].reasoning);
        c->messages[i].shown.reasoning_len = c->messages[i].reasoning.len;
    }
    return dirty;
}

size_t pp_controller_n_messages(const struct pp_controller *c)
{
    return c->n;
}

const struct pp_chat_message *pp_controller_message(const struct pp_controller *c, size_t i)
{
    struct message *m = &c->messages[i];
    m->shown.text = pp_buf_cstr(&m->text);
    m->shown.len = m->text.len;
    m->shown.reasoning = pp_buf_cstr(&m->reasoning);
    m->shown.reasoning_len = m->reasoning.len;
    return &m->shown;
}

const struct pp_status *pp_controller_status(const struct pp_controller *c)
{
    return &c->status;
}

/* --- conversation --------------------------------------------------------------------------------------------- */

static const char hostile[] =
    "red \033[31mtext\033[0m bell\a nul\x01 csi\xc2\x9b" "2J rtl\xe2\x80\xae" "abc\xe2\x80\xac bad\xff\xfe end\n\n"
    "\033]0;owned\a\033[2J\033[H done hostile";
static const char markdown[] =
    "# Heading\n\nSome **bold**, *slanted* and `code` words, a [link](https://example.org).\n\n"
    "- first\n- second\n  - inner\n\n1. one\n2. two\n\n> a quote\n\n"
    "```c\nint main(void)\n{\n\treturn 0;\n}\n```\n\nend of markdown";
static const char unicode[] =
    "日本語の文章は、単語の間に空白がないので、どこででも改行できる。 "
    "한국어 e\xcc\x81t\xc3\xa9 👨‍👩‍👧 👍🏽 ❤️ 🇩🇪 end of unicode";

static const char thoughts[] =
    "They want to know **something**, with `code` and \033[31mred\033[0m letters in it.\n\nSo I say it again, which is "
    "what I always do, and I say it slowly.";

static void write_script(struct pp_controller *c, const char *text)
{
    pp_buf_clear(&c->script);
    c->said = c->thought = 0;
    c->endless = strstr(text, "slow") != NULL;
    c->ponders = strstr(text, "ponder") != NULL;
    c->thoughts = strstr(text, "think") ? thoughts : NULL;
    if (strstr(text, "hostile"))
        pp_buf_str(&c->script, hostile);
    else if (strstr(text, "markdown"))
        pp_buf_str(&c->script, markdown);
    else if (strstr(text, "unicode"))
        pp_buf_str(&c->script, unicode);
    else if (strstr(text, "long"))
        for (int i = 1; i <= 200; i++)
            pp_buf_fmt(&c->script, "line %d of a long answer\n", i);
    else
        pp_buf_fmt(&c->script, "You said: %s", text);
}

bool pp_controller_send(struct pp_controller *c, const char *text)
{
    if (c->status.state != PP_STATE_IDLE || strstr(text, "refuse")) {
        say(c, true, "Not now: wait until the answer is there.");
        return false;
    }
    if (!pp_utf8_valid(text, strlen(text))) {
        say(c, true, "not accepted: that is not valid UTF-8");
        return false;
    }
    if (strncmp(text, "title ", 6) == 0)
        snprintf(c->title, sizeof c->title, "%s", text + 6);
    if (strstr(text, "disk is full")) {
        snprintf(c->unsaved, sizeof c->unsaved, "cannot save: no room on the disk of the conversations; there must be "
                                                "some, and it is tried again");
        say(c, true, c->unsaved);
    } else if (strstr(text, "make room")) {
        c->unsaved[0] = '\0';
        say(c, false, "saving works again");
    }
    write_script(c, text);
    c->n_alternatives = 0;
    add_message(c, PP_ROLE_USER, text);
    c->session = 99;
    set_state(c, PP_STATE_SAVING);
    return true;
}

char *pp_controller_take_unsent(struct pp_controller *c)
{
    char *text = c->unsent;
    c->unsent = NULL;
    return text;
}

bool pp_controller_cancel(struct pp_controller *c)
{
    enum pp_state s = c->status.state;
    if (s != PP_STATE_SAVING && s != PP_STATE_PREFILL && s != PP_STATE_ANSWER)
        return false;
    end_answer(c, PP_MESSAGE_CANCELLED);
    return true;
}

/* The last message is the i-th alternative. */
static void choose_alternative(struct pp_controller *c, size_t i)
{
    struct message *last = &c->messages[c->n - 1];
    pp_buf_clear(&last->text);
    pp_buf_add(&last->text, c->alternatives[i].text, c->alternatives[i].len);
    last->shown = c->alternatives[i];
    last->shown.text = pp_buf_cstr(&last->text);
    last->shown.revision = ++c->revisions;
}

/* Alternatives are complete at once, each with a text of another length. */
void pp_controller_regenerate(struct pp_controller *c, int n)
{
    static const char *const texts[PP_MAX_ALTERNATIVES] = {
        "The first answer is **short**.",
        "The second one is longer, so long that it does not fit on a line of its column, and has\n\n- a list\n- of two",
        "The third", "4", "5", "6", "7", "8"};
    c->dirty |= PP_DIRTY_TRANSCRIPT;
    if (!c->n)
        return;
    struct pp_chat_message *last = &c->messages[c->n - 1].shown;
    last->n_siblings += n > 1 ? n : 1;
    c->n_alternatives = n > 1 ? (size_t)n : 0;
    for (size_t i = 0; i < c->n_alternatives; i++)
        c->alternatives[i] = (struct pp_chat_message){.id = 900 + (int64_t)i,
                                                      .role = PP_ROLE_ASSISTANT,
                                                      .state = i == 2 ? PP_MESSAGE_PARTIAL : PP_MESSAGE_COMPLETE,
                                                      .text = texts[i],
                                                      .len = strlen(texts[i]),
                                                      .revision = ++c->revisions,
                                                      .sibling = (int)i + 1,
                                                      .n_siblings = last->n_siblings};
    if (n == 4) { /* one ended without an answer, and one is still thinking */
        struct pp_chat_message *m = &c->alternatives[1];
        m[0].len = m[1].len = 0;
        m[0].reasoning = m[1].reasoning = "It might be four.";
        m[0].reasoning_len = m[1].reasoning_len = strlen(m[0].reasoning);
        m[0].reasoning_tokens = m[1].reasoning_tokens = 7;
        m[1].thinking = true;
    }
    if (n == 2) /* the second is labelled as a comparison */
        snprintf(c->alternatives[1].adapters, sizeof c->alternatives[1].adapters, "bard 0.80");
    if (n > 1)
        choose_alternative(c, 0);
}

size_t pp_controller_n_alternatives(const struct pp_controller *c)
{
    return c->n_alternatives;
}

const struct pp_chat_message *pp_controller_alternative(const struct pp_controller *c, size_t i)
{
    return i < c->n_alternatives ? &c->alternatives[i] : NULL;
}

int pp_controller_n_elsewhere(const struct pp_controller *c)
{
    return c->elsewhere;
}

enum pp_session_activity pp_controller_session_activity(const struct pp_controller *c, int64_t session)
{
    return c->elsewhere && session == 2   ? PP_SESSION_ANSWERING
           : c->elsewhere && session == 3 ? PP_SESSION_ANSWERED
                                          : PP_SESSION_QUIET;
}

void pp_controller_continue(struct pp_controller *c)
{
    say(c, false, "Going on.");
}

bool pp_controller_edit(struct pp_controller *c, size_t message, const char *text)
{
    struct message *m = &c->messages[message];
    if (m->shown.role == PP_ROLE_ASSISTANT) {
        pp_buf_free(&m->text);
        pp_buf_str(&m->text, text);
        m->shown.text = pp_buf_cstr(&m->text);
        m->shown.len = m->text.len;
        m->shown.revision = ++c->revisions;
        c->dirty |= PP_DIRTY_TRANSCRIPT;
        return true;
    }
    while (c->n > message && !strstr(text, "unsaved")) /* an unsaved edit leaves the messages after it as they were */
        pp_buf_free(&c->messages[--c->n].text);
    return pp_controller_send(c, text);
}

bool pp_controller_undo(struct pp_controller *c, int n)
{
    for (int i = 0; i < 2 * n && c->n; i++)
        pp_buf_free(&c->messages[--c->n].text);
    c->dirty |= PP_DIRTY_TRANSCRIPT;
    return true;
}

void pp_controller_sibling(struct pp_controller *c, size_t message, int step)
{
    struct pp_chat_message *m = &c->messages[message].shown;
    int to = m->sibling + step;
    if (c->n_alternatives) {
        if (to >= 1 && to <= (int)c->n_alternatives)
            choose_alternative(c, (size_t)to - 1);
        c->dirty |= PP_DIRTY_TRANSCRIPT;
        return;
    }
    if (to >= 0 && to < m->n_siblings)
        m->sibling = to;
    c->dirty |= PP_DIRTY_TRANSCRIPT;
}

bool pp_controller_show_branch_of(struct pp_controller *c, int64_t message)
{
    if (message != 998)
        return false;
    add_message(c, PP_ROLE_ASSISTANT, "It stands on another branch.")->shown.id = message;
    for (int i = 0; i < 50; i++)
        add_message(c, PP_ROLE_USER, "and on");
    say(c, false, "another branch");
    return true;
}

void pp_controller_fork(struct pp_controller *c, int n_back)
{
    (void)n_back;
    say(c, false, "Forked.");
}

void pp_controller_export(struct pp_controller *c, int64_t session, const char *path)
{
    (void)session;
    say(c, false, path);
}

void pp_controller_save_setting(struct pp_controller *c, const char *path, const char *line)
{
    struct pp_error err;
    if (pp_save_setting_line(path, line, &err) != PP_OK)
        say(c, true, err.text);
}

void pp_controller_import(struct pp_controller *c, const char *path)
{
    say(c, false, path);
}

bool pp_controller_settled(const struct pp_controller *c)
{
    (void)c;
    return true;
}

bool pp_controller_importing(const struct pp_controller *c)
{
    (void)c;
    return false;
}

/* --- conversations and choices --------------------------------------------------------------------------------- */

void pp_controller_new_session(struct pp_controller *c)
{
    forget_messages(c);
    c->title[0] = '\0';
    c->session = 0;
    c->status.session_key = "";
    c->dirty = PP_DIRTY_ALL;
}

void pp_controller_open(struct pp_controller *c, int64_t session)
{
    forget_messages(c);
    for (size_t i = 0; i < c->n_sessions; i++)
        if (c->sessions[i].id == session)
            snprintf(c->title, sizeof c->title, "%s", c->sessions[i].title);
    c->session = session;
    for (int i = 0; i < 200 && getenv("PIPPIN_FAKE_HIT"); i++) {
        char text[64];
        snprintf(text, sizeof text, "old message %d", i + 1);
        add_message(c, i % 2 ? PP_ROLE_ASSISTANT : PP_ROLE_USER, text);
    }
    add_message(c, PP_ROLE_USER, "What was it like?");
    add_message(c, PP_ROLE_ASSISTANT, "It rained, and the **lamps** were lit.");
    c->dirty = PP_DIRTY_ALL;
}

void pp_controller_rename(struct pp_controller *c, int64_t session, const char *title)
{
    for (size_t i = 0; i < c->n_sessions; i++) {
        if (c->sessions[i].id == session) {
            pp_free(c->sessions[i].title);
            c->sessions[i].title = pp_strdup(title);
        }
    }
    c->dirty |= PP_DIRTY_LISTS;
}

void pp_controller_delete(struct pp_controller *c, int64_t session)
{
    for (size_t i = 0; i < c->n_sessions; i++) {
        if (c->sessions[i].id != session)
            continue;
        pp_free(c->sessions[i].title);
        c->n_sessions--;
        memmove(&c->sessions[i], &c->sessions[i + 1], (c->n_sessions - i) * sizeof c->sessions[0]);
        c->sessions[c->n_sessions].title = NULL;
    }
    c->dirty |= PP_DIRTY_LISTS;
}

void pp_controller_refresh_sessions(struct pp_controller *c, const char *query)
{
    c->dirty |= PP_DIRTY_LISTS;
    if (!*query || !getenv("PIPPIN_FAKE_SEARCH"))
        return;
    c->searching = atoi(getenv("PIPPIN_FAKE_SEARCH"));
    tick_every(c, TICK_NS);
}

void pp_controller_refresh_title(struct pp_controller *c)
{
    const char *title = getenv("PIPPIN_FAKE_RENAMED");
    if (title)
        c->status.title = title;
    c->dirty |= PP_DIRTY_STATUS;
}

bool pp_controller_sessions_failed(const struct pp_controller *c)
{
    (void)c;
    return getenv("PIPPIN_FAKE_UNREAD") != NULL;
}

bool pp_controller_sessions_pending(const struct pp_controller *c)
{
    return c->searching > 0;
}

size_t pp_controller_context(const struct pp_controller *c, const char **note)
{
    *note = c->context_note ? c->context_note : "";
    return c->context;
}

bool pp_controller_overflow_asked(const struct pp_controller *c)
{
    return c->overflow_asked;
}

void pp_controller_overflow(struct pp_controller *c, enum pp_overflow how)
{
    c->overflow_asked = false;
    c->context_note = how == PP_OVERFLOW_SUMMARISE ? "They spoke of rain, and of boats." : "";
    c->context = how == PP_OVERFLOW_STOP || c->n < 3 ? 0 : c->n - c->n % 2 - 2;
    c->dirty |= PP_DIRTY_TRANSCRIPT;
}

bool pp_controller_set_overflow(struct pp_controller *c, const char *word)
{
    (void)c;
    return pp_overflow_by_name(word) >= 0;
}

bool pp_controller_order_sessions(struct pp_controller *c)
{
    (void)c;
    return true;
}

size_t pp_controller_n_sessions(const struct pp_controller *c)
{
    return c->n_sessions;
}

const struct pp_session *pp_controller_session_at(struct pp_controller *c, size_t i)
{
    return i < c->n_sessions ? &c->sessions[i] : NULL;
}

int64_t pp_controller_session_id(const struct pp_controller *c)
{
    return c->session;
}

const struct pp_adapter_entry *pp_controller_adapters(const struct pp_controller *c, size_t *n)
{
    *n = ADAPTERS;
    return c->adapters;
}

bool pp_controller_set_adapter(struct pp_controller *c, size_t i, bool on, float scale)
{
    size_t used = 0;
    c->adapters[i].on = on;
    c->adapters[i].scale = scale;
    c->adapter_text[0] = '\0';
    for (int a = 0; a < ADAPTERS; a++)
        if (c->adapters[a].on)
            used += (size_t)snprintf(c->adapter_text + used, sizeof c->adapter_text - used, "%s%s %.2f", used ? ", "
                                     : "",
                                     c->adapters[a].name, (double)c->adapters[a].scale);
    c->dirty |= PP_DIRTY_LISTS | PP_DIRTY_STATUS;
    return true;
}

/* "bard" conflicts with "barista". */
size_t pp_controller_adapter_conflict(const struct pp_controller *c, size_t i)
{
    size_t k = 0;
    while (k < ADAPTERS && strcmp(c->adapters[k].name, "barista") != 0)
        k++;
    return k < ADAPTERS && c->adapters[k].on && strcmp(c->adapters[i].name, "bard") == 0 ? k : SIZE_MAX;
}

size_t pp_controller_move_adapter(struct pp_controller *c, size_t i, int by)
{
    size_t to = i + (size_t)by;
    if (to >= ADAPTERS)
        return i;
    struct pp_adapter_entry a = c->adapters[i];
    c->adapters[i] = c->adapters[to];
    c->adapters[to] = a;
    c->dirty |= PP_DIRTY_LISTS;
    return to;
}

void pp_controller_rescan(struct pp_controller *c)
{
    for (int i = 0; i < ADAPTERS; i++) {
        struct pp_adapter_entry *a = &c->adapters[i];
        a->fit = strcmp(a->name, "old whale") == 0 ? PP_FIT_NO : PP_FIT_YES;
        a->facts = (struct pp_adapter_facts){.kind = "LoRA", .rank = 16, .n_targets = 42, .bytes = 2300000,
                                               .base = "starter", .targets = "attn_q ffn_up",
                                               .idle = strcmp(a->name, "barista") == 0};
        snprintf(a->reason, sizeof a->reason,
                 "blk.0.attn_q.weight is 64 wide, not 576, and what else there is to say of it has room in two lines");
    }
}

bool pp_controller_adapters_pending(const struct pp_controller *c)
{
    (void)c;
    return false;
}

void pp_controller_note_adapter(struct pp_controller *c, size_t i, const char *note)
{
    snprintf(c->adapters[i].note, sizeof c->adapters[i].note, "%s", note);
}

bool pp_controller_add_adapter(struct pp_controller *c, const char *path)
{
    char why[256];
    snprintf(why, sizeof why, "%s does not exist", path);
    if (access(path, F_OK) != 0 && (c->refused = pp_strdup(path)))
        say(c, true, why);
    else
        say(c, false, path);
    return true;
}

char *pp_controller_take_refused(struct pp_controller *c)
{
    char *path = c->refused;
    c->refused = NULL;
    return path;
}

float pp_controller_plain_speed(const struct pp_controller *c)
{
    (void)c;
    return 50;
}

struct pp_switch_cost pp_controller_switch_cost(struct pp_controller *c, size_t i)
{
    (void)c;
    return (struct pp_switch_cost){.known = true, .cached = i >= ADAPTERS, .tokens = 512, .seconds = 2.5f};
}

const struct pp_named *pp_controller_presets(const struct pp_controller *c, size_t *n)
{
    *n = c->n_presets;
    return c->presets;
}

bool pp_controller_use_preset(struct pp_controller *c, size_t i)
{
    (void)i;
    say(c, false, "used");
    return true;
}

bool pp_controller_save_preset(struct pp_controller *c, const char *name)
{
    if (c->n_presets == PRESETS)
        return false;
    struct pp_named *p = &c->presets[c->n_presets++];
    *p = (struct pp_named){.current = false};
    snprintf(p->name, sizeof p->name, "%s", name);
    snprintf(p->detail, sizeof p->detail, "%.200s", c->adapter_text);
    return true;
}

void pp_controller_drop_preset(struct pp_controller *c, const char *name)
{
    size_t left = 0;
    for (size_t i = 0; i < c->n_presets; i++)
        if (strcmp(c->presets[i].name, name) != 0)
            c->presets[left++] = c->presets[i];
    c->n_presets = left;
    c->dirty |= PP_DIRTY_LISTS;
}

static void choose(struct pp_controller *c, struct pp_named *list, size_t i)
{
    for (size_t k = 0; k < CHOICES; k++)
        list[k].current = k == i;
    c->dirty |= PP_DIRTY_LISTS | PP_DIRTY_STATUS;
}

const struct pp_named *pp_controller_templates(const struct pp_controller *c, size_t *n)
{
    *n = CHOICES;
    return c->templates;
}

void pp_controller_set_template(struct pp_controller *c, size_t i)
{
    choose(c, c->templates, i);
    c->status.template_name = i ? c->templates[i].name : "";
}

const struct pp_named *pp_controller_personas(const struct pp_controller *c, size_t *n)
{
    *n = CHOICES;
    return c->personas;
}

void pp_controller_set_persona(struct pp_controller *c, size_t i)
{
    choose(c, c->personas, i);
    c->status.persona = i ? c->personas[i].name : "";
}

bool pp_controller_set_system(struct pp_controller *c, const char *text)
{
    say(c, false, text);
    return true;
}

const char *pp_drafter_name(enum pp_drafter d)
{
    static const char *const names[PP_DRAFTERS] = {"auto", "model", "lookup", "off"};
    return names[d];
}

bool pp_controller_set_drafter(struct pp_controller *c, enum pp_drafter d)
{
    c->status.drafter = d;
    c->dirty |= PP_DIRTY_STATUS;
    return true;
}

const struct pp_drafter_entry *pp_controller_drafters(const struct pp_controller *c, size_t *n)
{
    *n = c->n_drafters;
    return c->drafters;
}

void pp_controller_find_drafters(struct pp_controller *c)
{
    static const char why[] = "its vocabulary differs: the tokens of the draft lose capitals";
    struct pp_drafter_entry *d = c->drafters;
    d[0] = (struct pp_drafter_entry){.name = "starter-draft", .path = "/models/draft", .fit = PP_FIT_YES,
                                     .facts = {.bytes = 2400000, .share = 0.25f}};
    d[1] = (struct pp_drafter_entry){.name = "stories", .path = "/models/stories", .fit = PP_FIT_YES};
    d[1].facts = (struct pp_drafter_facts){1100000, 0.1f, true, true};
    d[2] = (struct pp_drafter_entry){.name = "tales", .path = "/models/tales", .fit = PP_FIT_NO};
    snprintf(d[2].reason, sizeof d[2].reason, "%s", why);
    c->n_drafters = 3;
    c->dirty |= PP_DIRTY_LISTS;
}

bool pp_controller_use_drafter(struct pp_controller *c, const char *model)
{
    char text[200];
    const char *slash = strrchr(model, '/');
    snprintf(c->status.model.draft_path, sizeof c->status.model.draft_path, "%s", model);
    snprintf(c->status.model.draft_name, sizeof c->status.model.draft_name, "%.100s", slash ? slash + 1 : model);
    snprintf(text, sizeof text, "%.100s drafts tokens from the next answer on", model);
    say(c, false, text);
    c->dirty |= PP_DIRTY_LISTS;
    return true;
}

bool pp_controller_set_param(struct pp_controller *c, const char *name, const char *value)
{
    for (int i = 0; i < PARAMS; i++) {
        if (strcmp(c->params[i].name, name) == 0 && strspn(value, "0123456789.") == strlen(value)) {
            snprintf(c->params[i].detail, sizeof c->params[i].detail, "%s", value);
            c->dirty |= PP_DIRTY_LISTS;
            return true;
        }
    }
    say(c, true, "That is no number.");
    return false;
}

const struct pp_named *pp_controller_params(const struct pp_controller *c, size_t *n)
{
    *n = PARAMS;
    return c->params;
}

bool pp_controller_load(struct pp_controller *c, const char *model)
{
    say(c, false, model);
    c->refuses = strcmp(model, "too-large") == 0;
    if (c->refuses) {
        c->status.not_loaded = false;
        set_state(c, PP_STATE_LOADING);
    }
    return true;
}

const struct pp_model_choice *pp_controller_models(const struct pp_controller *c, size_t *n)
{
    *n = c->n_models;
    return c->models;
}

bool pp_controller_models_pending(const struct pp_controller *c)
{
    (void)c;
    return false;
}

void pp_controller_find_models(struct pp_controller *c)
{
    struct pp_model_choice *m = c->models;
    m[0] = (struct pp_model_choice){.name = "large", .path = "/models/large.gguf", .fit = PP_FIT_YES};
    m[0].facts = (struct pp_model_facts){"Q4_K_M", 30500000000, 3300000000, 40960, 18600000000, 20100000000, 16384};
    m[1] = (struct pp_model_choice){.name = "starter", .path = "/models/starter.gguf", .bundled = true, .current = true,
                                    .fit = PP_FIT_YES};
    m[1].facts = (struct pp_model_facts){"Q4_K_M", 26200000, 0, 2048, 16400000, 0, 0};
    m[2] = (struct pp_model_choice){.name = "broken.gguf", .path = "/models/broken.gguf", .fit = PP_FIT_NO,
                                    .reason = "it ends in the middle of a tensor"};
    m[3] = (struct pp_model_choice){.name = "unread.gguf", .path = "/models/unread.gguf"};
    c->n_models = 4;
    c->dirty |= PP_DIRTY_LISTS;
}

/* --- slash commands -------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *args, *text;
    enum pp_slash result;
} commands[] = {
    {"help", "", "this list", PP_SLASH_HELP},
    {"exit", "", "leave", PP_SLASH_QUIT},
    {"sessions", "", "open another conversation", PP_SLASH_SESSIONS},
    {"model", "", "another model", PP_SLASH_MODEL_MENU},
    {"lora", "[NAME [SCALE] | off]", "adapters", PP_SLASH_LORA_MENU},
    {"template", "", "chat template", PP_SLASH_TEMPLATE_MENU},
    {"persona", "", "who answers", PP_SLASH_PERSONA_MENU},
    {"draft", "[auto | model | lookup | off]", "draft model", PP_SLASH_DRAFT_MENU},
    {"theme", "[NAME]", "colours", PP_SLASH_THEME},
    {"params", "", "sampling", PP_SLASH_PARAMS_MENU},
    {"edit", "[N | answer]", "change the last message", PP_SLASH_EDIT},
    {"undo", "", "take back the last question", PP_SLASH_DONE},
    {"find", "[WORDS]", "the newest message that has these words", PP_SLASH_FIND},
    {"copy", "[N | code [N]]", "copy the last answer", PP_SLASH_COPY},
    {"read", "FILE", "a file into the line", PP_SLASH_READ},
    {"reasoning", "[show | fold | hide]", "the thinking", PP_SLASH_REASONING},
    {"regen", "", "another answer", PP_SLASH_DONE},
};

bool pp_slash_looks_like(const char *line)
{
    size_t len = line[0] == '/' ? strcspn(line + 1, " ") : 0;
    return len && !memchr(line + 1, '/', len);
}

const char *pp_slash_text(const char *line)
{
    return line[0] == '/' && line[1] == '/' ? line + 1 : line;
}

enum pp_slash pp_controller_slash(struct pp_controller *c, const char *line, char *arg, size_t cap)
{
    size_t len = strcspn(line + 1, " ");
    snprintf(arg, cap, "%s", line + 1 + len + (line[1 + len] == ' '));
    if (line[1] == '/' || memchr(line + 1, '/', len))
        return PP_SLASH_TEXT;
    if (strchr(line, '\n')) {
        say(c, true, "Such a command takes one line.");
        return PP_SLASH_ERROR_EDIT;
    }
    if (strcmp(line, "/full") == 0) {
        c->overflow_asked = true;
        c->status.overflow_serial++;
        c->dirty |= PP_DIRTY_STATUS;
        return PP_SLASH_DONE;
    }
    if (strcmp(line, "/model too-large") == 0) {
        pp_controller_load(c, arg);
        return PP_SLASH_DONE;
    }
    if (strcmp(line, "/overflow") == 0)
        return PP_SLASH_OVERFLOW_MENU;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strlen(commands[i].name) != len || strncmp(commands[i].name, line + 1, len) != 0)
            continue;
        if (strcmp(commands[i].name, "undo") == 0)
            pp_controller_undo(c, 1);
        else if (commands[i].result == PP_SLASH_DONE)
            pp_controller_regenerate(c, atoi(arg));
        if (commands[i].result == PP_SLASH_DRAFT_MENU && strcmp(arg, "tint") == 0)
            return PP_SLASH_TINT;
        return commands[i].result;
    }
    say(c, true, "There is no such command; /help lists them.");
    return PP_SLASH_ERROR;
}

bool pp_slash_info(size_t i, const char **name, const char **args, const char **text)
{
    if (i >= sizeof commands / sizeof commands[0])
        return false;
    *name = commands[i].name;
    *args = commands[i].args;
    *text = commands[i].text;
    return true;
}
