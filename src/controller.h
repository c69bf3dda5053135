/* controller.h - the application without a screen: the state to show, and the actions of the user.
 *
 * All functions are the UI thread's. Nothing blocks: actions start something, pp_controller_pump() processes what has
 * happened since and says what must be redrawn. States (an arrow names what causes it):
 *
 *              load                LOADED                 send: saved by io            first text
 *   (start) ──────────► LOADING ──────────► IDLE ──► SAVING ──────────────► PREFILL ──────────────► ANSWER
 *                          │                 ▲ ▲          io error │            │ cancel, error        │ or done
 *                          │ LOAD_FAILED     │ └───────────────────┘            │                      │
 *                          ▼                 └──────────────────────────────────┴──────────────────────┘
 *                        FAILED ── load ──► LOADING            quit, from anywhere ──► CLOSING ── CLOSED ──► (end)
 *
 * A message of the user is committed to the database (SAVING) before the model sees it.
 *
 * Where "a notice says why", the reason is in struct pp_status. Strings and arrays returned are the controller's and
 * valid until the next pump or action, unless it says otherwise. */
#ifndef PP_SRC_CONTROLLER_H
#define PP_SRC_CONTROLLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/backend.h"
#include "src/event.h"
#include "src/options.h"
#include "src/paths.h"
#include "src/store.h"

struct pp_controller;

enum pp_state {
    PP_STATE_LOADING, PP_STATE_FAILED, PP_STATE_IDLE, PP_STATE_SAVING, PP_STATE_PREFILL, PP_STATE_ANSWER,
    PP_STATE_CLOSING, PP_STATE_CLOSED,
};

/* Opens the store and starts worker and io threads; begins to load the model; opens the conversation that o names
 * (--continue, --resume) or an empty, unsaved one. paths and o must outlive it. */
enum pp_code pp_controller_new(const struct pp_options *o, const struct pp_paths *paths, struct pp_controller **out,
                               struct pp_error *err);
/* Begins to stop and save everything; then pump until PP_STATE_CLOSED, at least every PP_CLOSING_MS even if nothing is
 * readable, so that what does not end is given up after a while; then free. */
enum { PP_CLOSING_MS = 100 };
void pp_controller_quit(struct pp_controller *c);
/* Frees c; if it was not quit, quits and waits first. False: the end of an answer could not be saved and is lost. */
bool pp_controller_free(struct pp_controller *c);
/* The same, with what to tell the user. */
struct pp_close_report {
    /* In, or NULL: called once, on this thread, when saving takes long; `what` says what is being saved. */
    void (*waiting)(const char *what);
    /* Out */
    bool saved;
    char why[600];   /* if not saved: the reason, as far as it is known */
    bool gone;       /* the database was deleted, moved or replaced: text says where the conversation is instead */
    char text[2400]; /* more for the user; "" for nothing */
};
void pp_controller_close(struct pp_controller *c, struct pp_close_report *w);

int pp_controller_fd(const struct pp_controller *c); /* when readable, call pump */
enum pp_dirty { PP_DIRTY_TRANSCRIPT = 1, PP_DIRTY_STATUS = 2, PP_DIRTY_LISTS = 4, PP_DIRTY_ALL = 7 };
unsigned pp_controller_pump(struct pp_controller *c); /* bits of enum pp_dirty: what to redraw since the last call */

/* --- the state of the screen (valid until the next pump or action) ---------------------------------------- */

struct pp_chat_message {
    int64_t id;
    enum pp_role role;
    enum pp_message_state state;
    const char *text;       /* untrusted UTF-8 */
    size_t len;
    const char *reasoning;  /* an answer's reasoning; untrusted UTF-8, "" for none */
    size_t reasoning_len;
    bool thinking;          /* the reasoning has not ended */
    int64_t reasoning_tokens; /* 0: unknown */
    float reasoning_s;      /* seconds; 0: unknown */
    uint64_t revision;      /* changes with text or state: a key for caches of wrapped lines */
    int sibling, n_siblings; /* which of the branches at this message is shown, and how many there are */
    int64_t n_tokens;       /* of an answer, reasoning included; 0: unknown */
    bool ended;             /* the last of them is an end-of-text token */
    int64_t ctx_used;       /* tokens of an answer and its prompt; 0: not known */
    float tokens_per_s;     /* of the answer; 0 if unknown */
    float acceptance;       /* accepted share of the drafted tokens; < 0: none were drafted */
    float speedup;          /* by drafting; 0: not known */
    const uint32_t *drafted; /* [n_drafted]: run lengths in bytes of text: not drafted, drafted, not drafted ... */
    size_t n_drafted;       /* 0: nothing was drafted, or it is not known */
    char adapters[96];      /* of an answer: "bard 0.80", truncated if need be; "" for none */
    bool too_long;          /* of an empty answer: its question alone does not fit into the context */
    int64_t context_from;   /* of a question: the first message that the model was given with it; 0: not recorded */
};
size_t pp_controller_n_messages(const struct pp_controller *c);
const struct pp_chat_message *pp_controller_message(const struct pp_controller *c, size_t i);

/* Answers that were requested together are alternatives until the conversation continues from one of them; 0: there are
 * none. The chosen one (pp_controller_sibling) is the last message. */
enum { PP_MAX_ALTERNATIVES = 8 };
size_t pp_controller_n_alternatives(const struct pp_controller *c);
const struct pp_chat_message *pp_controller_alternative(const struct pp_controller *c, size_t i);

/* How tokens are drafted for speculative decoding; the answers are the same with all. */
enum pp_drafter {
    PP_DRAFTER_AUTO,   /* the draft model, if there is one, and lookup */
    PP_DRAFTER_MODEL,
    PP_DRAFTER_LOOKUP, /* what followed the same words before in the conversation */
    PP_DRAFTER_OFF,
    PP_DRAFTERS,
};
const char *pp_drafter_name(enum pp_drafter d); /* "auto", "model", "lookup", "off" */
int pp_drafter_by_name(const char *name);       /* these, and "on"; -1: no such word */

struct pp_status {
    enum pp_state state;
    struct pp_loaded model;      /* name "" while none is loaded */
    const char *title;           /* of the conversation */
    const char *session_key;     /* "" while nothing is saved */
    bool temporary;              /* nothing of the conversation goes to disk, */
    bool unwanted;               /* not by choice, but because it cannot be saved */
    int64_t ctx_used, ctx_total; /* tokens */
    int64_t ctx_inexact;         /* of those used: whose values are not exact (PP_OVERFLOW_SLIDE) */
    float tokens_per_s;          /* of the last or current answer */
    uint64_t progress_done, progress_total; /* loading: bytes; prefill: tokens; total 0: unknown */
    float eta_s;                 /* of the prefill; < 0: unknown */
    enum pp_drafter drafter;
    float acceptance;            /* accepted share of the drafted tokens; < 0: none were drafted yet */
    float speedup;               /* by drafting; 0: not known */
    int draft_depth;             /* length of the longest draft for the last or current answer */
    /* [draft_depth]: tokens drafted and accepted at each position of a draft */
    uint32_t drafted_at[PP_STATS_POSITIONS], accepted_at[PP_STATS_POSITIONS];
    const char *adapters;        /* "bard 0.80, barista 1.00"; "" for none */
    const char *persona;         /* name, or "" */
    const char *template_name;   /* "" is the model's own */
    const char *notice;          /* last one-line message; "" for none */
    bool notice_is_error;
    bool not_loaded;             /* the model requested last could not be loaded: the previous one is back, or none */
    const char *unsaved;         /* why an answer is not saved yet, to be shown until it is ""; a notice, too */
    uint64_t notice_serial;      /* changes with every new notice */
    uint64_t overflow_serial;    /* changes when the user must choose what to do about a full context */
};
const struct pp_status *pp_controller_status(const struct pp_controller *c);

/* --- conversation ----------------------------------------------------------------------------------------- */

/* Sends a message; text is copied. False (with a notice) if that is not possible now, or it is not UTF-8: the caller
 * keeps the text in the input line. */
bool pp_controller_send(struct pp_controller *c, const char *text);
/* A message that was accepted but could not be saved (the notice says why), to put back into the input line. The caller
 * frees it (pp_free); NULL if there is none. */
char *pp_controller_take_unsent(struct pp_controller *c);
/* Stops the answer, else an import. False: nothing was running. */
bool pp_controller_cancel(struct pp_controller *c);
/* Generates n new siblings of the last answer, 1 to PP_MAX_ALTERNATIVES, at the same time. */
void pp_controller_regenerate(struct pp_controller *c, int n);
/* Generates alternative answers to the last question, one under each of two or more sets of adapters, once these are
 * known to fit the model. sets: as the argument of /compare; it is modified. The conversation goes on with the adapters
 * of the alternative that is chosen. False: a notice says why. */
bool pp_controller_compare(struct pp_controller *c, char *sets);
void pp_controller_continue(struct pp_controller *c);    /* goes on with a stopped answer */
/* Makes a new branch with a changed message: a question is answered anew; a changed answer can be continued. False: a
 * notice says why not. */
bool pp_controller_edit(struct pp_controller *c, size_t message, const char *text);
/* Steps back over the last n questions and their answers, which stay as a branch. False, with a notice: there are
 * fewer, or it cannot be done now. */
bool pp_controller_undo(struct pp_controller *c, int n);
/* Steps forward again, to the end of the newest branch that goes on from here. */
void pp_controller_redo(struct pp_controller *c);
/* Shows the branch `step` siblings to the right of a message's (negative: to the left). */
void pp_controller_sibling(struct pp_controller *c, size_t message, int step);
/* Shows the nth branch, from 1 on, of the last message that has several. False, with a notice: there is none. */
bool pp_controller_branch(struct pp_controller *c, int n);
/* Shows the newest branch of this conversation that has the message; PP_DIRTY_TRANSCRIPT when it is there. False: it
 * cannot be done now. */
bool pp_controller_show_branch_of(struct pp_controller *c, int64_t message);
/* Opens a new conversation that begins with this branch, without its last n_back questions and what follows them; KV
 * pages are shared. An unfinished answer goes on in the original; the copy has what there is of it. */
void pp_controller_fork(struct pp_controller *c, int n_back);

/* The index of the first message that the model is given, 0 if all; *note: what it is told of those before, "" for
 * nothing. */
size_t pp_controller_context(const struct pp_controller *c, const char **note);
/* Sets what happens when this conversation's context is full: "ask", "stop", "shift", "summarise" ...; done at once if
 * the user has been asked. False (with a notice): an unknown word. */
bool pp_controller_set_overflow(struct pp_controller *c, const char *word);
/* Has the model summarise all turns but the last, and gives it the summary in their place from then on. False: a notice
 * says why not. */
bool pp_controller_compact(struct pp_controller *c);
/* Whether the user has been asked (each time status.overflow_serial changes), and the answer, for this time only. */
bool pp_controller_overflow_asked(const struct pp_controller *c);
void pp_controller_overflow(struct pp_controller *c, enum pp_overflow how);

/* --- conversations ---------------------------------------------------------------------------------------- */

void pp_controller_new_session(struct pp_controller *c);
/* Keeps conversations in memory only from now on, beginning with a new one; or (false) saves them again, and those in
 * memory are lost. False, with a notice: not now. */
bool pp_controller_set_temporary(struct pp_controller *c, bool on);
void pp_controller_open(struct pp_controller *c, int64_t session);   /* PP_ERR_BUSY elsewhere: a notice */
void pp_controller_rename(struct pp_controller *c, int64_t session, const char *title); /* 0: the current one */
/* The user is present: reads, once a second at most, whether another pippin has given the current one another title. */
void pp_controller_refresh_title(struct pp_controller *c);
void pp_controller_delete(struct pp_controller *c, int64_t session); /* if it is the current one, a new one opens */
/* Writes a conversation (0: the current one) to a new file: JSON or JSONL if the name ends so, else Markdown; "": a
 * name is made from the title. "~/" is the home folder. A notice says where it is, or why not. */
void pp_controller_export(struct pp_controller *c, int64_t session, const char *path);
/* Adds the conversations of a file (import.h) and opens the first of them, unless the user has moved on meanwhile;
 * notices as above. Runs in the background until pp_controller_cancel or quit: what was imported until then stays.
 * Another one waits for its end. */
void pp_controller_import(struct pp_controller *c, const char *path);
bool pp_controller_importing(const struct pp_controller *c);
/* Puts a line "NAME = VALUE\n" into a settings file of the screen's (0600, its folder is created), replacing lines of
 * that name, in the background and in the order of the calls; both strings are copied. A notice follows if it cannot be
 * written: that it will not be kept for the next start, and why. */
void pp_controller_save_setting(struct pp_controller *c, const char *path, const char *line);
/* Whether all requests that need the disk are done: adapters next to the model are known, an added one is
 * listed, a template is read, adapters to compare are inspected. Lists and imports do not count. */
bool pp_controller_settled(const struct pp_controller *c);
/* Requests the list of conversations, or those that a search finds (any text, as in struct pp_search; "" for all);
 * PP_DIRTY_LISTS when it has come. Replaces requests that are still pending. */
void pp_controller_refresh_sessions(struct pp_controller *c, const char *query);
/* Toggles the order of search results, by relevance or newest first, and requests them again. True: by relevance now.
 * If too many messages match, a notice says so, and they come newest first. */
bool pp_controller_order_sessions(struct pp_controller *c);
/* The number of rows. A search counts one more than it has while there may be more. */
size_t pp_controller_n_sessions(const struct pp_controller *c);
/* Whether the rows are still those of the previous request. */
bool pp_controller_sessions_pending(const struct pp_controller *c);
/* Whether rows could not be read, as a notice has said; not retried before the next refresh. */
bool pp_controller_sessions_failed(const struct pp_controller *c);
/* Row i, newest first. NULL: it is being fetched (PP_DIRTY_LISTS, then ask again). */
const struct pp_session *pp_controller_session_at(struct pp_controller *c, size_t i);
int64_t pp_controller_session_id(const struct pp_controller *c); /* 0 while unsaved */
/* Answers go on in conversations that the user has left. */
enum pp_session_activity { PP_SESSION_QUIET, PP_SESSION_ANSWERING, PP_SESSION_ANSWERED /* and not looked at yet */ };
enum pp_session_activity pp_controller_session_activity(const struct pp_controller *c, int64_t session);
int pp_controller_n_elsewhere(const struct pp_controller *c); /* answers being written in other conversations */

/* --- choices; each is stored with the conversation and used from the next answer on -------------------------- */

enum pp_fit { PP_FIT_UNKNOWN, PP_FIT_YES, PP_FIT_NO };
struct pp_adapter_entry {
    char name[128];
    char path[512];
    float scale;             /* strength when on, within the bounds of src/adapter_mix.h */
    bool on;
    enum pp_fit fit;         /* whether it fits the loaded model; known after pp_controller_inspect_adapters */
    char reason[256];        /* why not */
    uint64_t stamp;          /* of its files when they were inspected */
    struct pp_adapter_facts facts; /* if it fits */
    char note[200];          /* the user's own line; "" for none */
    bool added;              /* by the user, with its path */
    /* decode of all answers that it was on for, alone or with others; 0: there were none */
    uint64_t decode_tokens, decode_ns;
};
/* The adapters next to the model, in data/adapters, and those of --lora. */
const struct pp_adapter_entry *pp_controller_adapters(const struct pp_controller *c, size_t *n);
/* The adapter that is on, with a strength other than 0, and conflicts with adapter i: both change the same matrix, one
 * of them as an IA3 on an input that other matrices read, too. SIZE_MAX: none, as far as is known. */
size_t pp_controller_adapter_conflict(const struct pp_controller *c, size_t i);
/* False: nothing is changed, and a notice says why: it does not fit, conflicts with another, or is one too many. */
bool pp_controller_set_adapter(struct pp_controller *c, size_t i, bool on, float scale);
/* Swaps an adapter with the one before (-1) or after it (1); adapters are applied in the order of the list. Returns its
 * new index. */
size_t pp_controller_move_adapter(struct pp_controller *c, size_t i, int step);
/* Has all adapters inspected: whether they fit, and what they are; PP_DIRTY_LISTS as it becomes known. One that does
 * not fit cannot be switched on. */
void pp_controller_inspect_adapters(struct pp_controller *c);
/* Rescans the lists of adapters and templates, when one is shown: new files are added, vanished ones that are off are
 * removed, replaced ones are inspected again. */
void pp_controller_rescan(struct pp_controller *c);
/* Whether the list of adapters is being scanned or its adapters inspected. */
bool pp_controller_adapters_pending(const struct pp_controller *c);
void pp_controller_note_adapter(struct pp_controller *c, size_t i, const char *note);
/* Adds an adapter, file or folder, to the list permanently, or all adapters in a folder. "~/" is the home folder.
 * False: a notice says why not. It is inspected in the background. */
bool pp_controller_add_adapter(struct pp_controller *c, const char *path);
/* A path that turned out not to be an adapter (the notice says why), to put back into the input line. The caller frees
 * it (pp_free); NULL if there is none. */
char *pp_controller_take_refused(struct pp_controller *c);
/* Tokens per second of answers without any adapter; 0: not known. */
float pp_controller_plain_speed(const struct pp_controller *c);

/* How much of this conversation the model would have to prefill again before the next answer if adapter i were switched
 * on or off; i >= their number: if nothing is switched. PP_DIRTY_LISTS when it becomes known. */
struct pp_switch_cost {
    bool known;
    bool asked;     /* it is not known yet, but will be */
    bool failed;    /* it will not become known: an adapter that is on is missing, or cannot be used */
    bool conflict;  /* there is none: two of the adapters would conflict */
    bool cached;    /* next to nothing has to be computed */
    int64_t tokens;
    float seconds;  /* < 0: not known, as no speed has been measured yet */
    bool at_most;   /* seconds is an upper bound: only the speed of decode is known */
};
struct pp_switch_cost pp_controller_switch_cost(struct pp_controller *c, size_t i);

struct pp_named { char name[64]; char detail[256]; bool current; };
/* Named sets of adapters, stored for all conversations; detail: "bard 0.50, barista 0.80". */
const struct pp_named *pp_controller_presets(const struct pp_controller *c, size_t *n);
/* False: nothing is changed, and a notice says why: two of them conflict. */
bool pp_controller_use_preset(struct pp_controller *c, size_t i);
/* Saves the adapters that are on under a name, replacing a set of that name. False: a notice says why. */
bool pp_controller_save_preset(struct pp_controller *c, const char *name);
/* By name, since the list may have changed while the user was asked to confirm. */
void pp_controller_drop_preset(struct pp_controller *c, const char *name);
/* Saves the system prompt as a persona for all conversations, replacing one of that name. False: a notice says why. */
bool pp_controller_save_persona(struct pp_controller *c, const char *name);
const struct pp_named *pp_controller_templates(const struct pp_controller *c, size_t *n);
void pp_controller_set_template(struct pp_controller *c, size_t i);
const struct pp_named *pp_controller_personas(const struct pp_controller *c, size_t *n);
void pp_controller_set_persona(struct pp_controller *c, size_t i);
bool pp_controller_set_system(struct pp_controller *c, const char *text); /* "" for none; false: a notice says why */
/* Models that could draft: registered ones, those next to the model and in data/models, and the present draft
 * model. */
struct pp_drafter_entry {
    char name[128];
    char path[512];
    enum pp_fit fit;         /* whether it can draft for the loaded model; known after pp_controller_find_drafters */
    char reason[256];        /* why not */
    struct pp_drafter_facts facts; /* if it can */
};
const struct pp_drafter_entry *pp_controller_drafters(const struct pp_controller *c, size_t *n);
/* Searches for them, and inspects each; PP_DIRTY_LISTS as it becomes known. */
void pp_controller_find_drafters(struct pp_controller *c);
/* Uses a model (file, folder or name in the registry) as the draft model from the next answer on. A notice says how it
 * went; if it failed, nothing has changed. False: there is no such model, or not now. */
bool pp_controller_use_drafter(struct pp_controller *c, const char *model);
/* False (with a notice that says why): PP_DRAFTER_MODEL without a draft model. */
bool pp_controller_set_drafter(struct pp_controller *c, enum pp_drafter d);
/* Models that can be loaded: registered ones, those next to the model and in data/models, the bundled one. */
struct pp_model_choice {
    char name[128];          /* its registered name, or that of its file or folder */
    char path[512];
    bool bundled;            /* the starter, which is also called "starter" */
    bool current;            /* it is loaded */
    enum pp_fit fit;         /* whether it can be loaded for a chat; known some time after pp_controller_find_models */
    char reason[256];        /* why not */
    struct pp_model_facts {  /* if it can */
        char type[32];       /* of its weights: "Q4_K_M" */
        int64_t n_params, n_params_active; /* active: used per token by a mixture of experts; else 0 */
        int64_t n_ctx_train; /* tokens */
        uint64_t bytes;      /* of its weights as they are stored */
        uint64_t memory;     /* bytes needed with a context of n_ctx tokens, everything included; 0: not known */
        int64_t n_ctx;
    } facts;
};
const struct pp_model_choice *pp_controller_models(const struct pp_controller *c, size_t *n);
/* Searches for them, and inspects each; PP_DIRTY_LISTS as it becomes known. */
void pp_controller_find_models(struct pp_controller *c);
bool pp_controller_models_pending(const struct pp_controller *c); /* not all is known yet */
/* Loads another model, by its name or path; the conversation stays. False: a notice says why not. */
bool pp_controller_load(struct pp_controller *c, const char *model);
/* "auto", "off", "on", "low", ...: false (with a notice that says why) if the chat template has no such switch. */
bool pp_controller_set_thinking(struct pp_controller *c, const char *word);
/* "temp", "top-k", ...: false and a notice if there is no such parameter or the value does not fit. */
bool pp_controller_set_param(struct pp_controller *c, const char *name, const char *value);
const struct pp_named *pp_controller_params(const struct pp_controller *c, size_t *n); /* name, value in detail */

/* --- slash commands --------------------------------------------------------------------------------------- */

/* What is left for the screen to do about a line that begins with '/'. */
enum pp_slash {
    PP_SLASH_TEXT,      /* not a command (an unknown /path/with/slashes, "//"): send it as text */
    PP_SLASH_DONE,      /* carried out */
    PP_SLASH_ERROR,     /* misspelt, or with wrong arguments: a notice says why */
    PP_SLASH_ERROR_EDIT, /* the same, but long: it stays in the input line to be corrected */
    /* commands of the screen: */
    PP_SLASH_HELP, PP_SLASH_QUIT, PP_SLASH_SESSIONS, PP_SLASH_MODEL_MENU, PP_SLASH_LORA_MENU, PP_SLASH_TEMPLATE_MENU,
    PP_SLASH_PERSONA_MENU, PP_SLASH_DRAFT_MENU, PP_SLASH_THEME, PP_SLASH_PARAMS_MENU, PP_SLASH_EDIT,
    PP_SLASH_COPY, PP_SLASH_OVERFLOW_MENU, PP_SLASH_REASONING, PP_SLASH_TINT, PP_SLASH_READ, PP_SLASH_FIND,
    PP_SLASH_BRANCH,    /* carried out, too: another branch is shown, or will be soon */
};
/* Whether a text looks like a command: a single line may be an unknown one, several lines must begin with a known
 * one. */
bool pp_slash_looks_like(const char *line);
/* The text to send for a line that is no command: without the first of two slashes, unless a space follows them
 * ("// a comment") or there are more lines, which no command begins. Points into line. */
const char *pp_slash_text(const char *line);
/* Runs a command. arg [cap]: receives the arguments of a command that is left to the screen ("/theme dark"). */
enum pp_slash pp_controller_slash(struct pp_controller *c, const char *line, char *arg, size_t cap);
/* The table of commands, for help and completion: name ("lora"), arguments ("[NAME STRENGTH | off]"), one line of text.
 * i from 0; false at the end. Strings are static. */
bool pp_slash_info(size_t i, const char **name, const char **args, const char **text);

#endif
