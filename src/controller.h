/* controller.h - the application without a screen: what is on it, and what the user can do.
 *
 * Owned by the UI thread, which calls everything here. Nothing blocks: actions start something, pp_controller_pump()
 * takes in what has happened since, and says what has to be drawn again. States (an arrow names what causes it):
 *
 *              load                LOADED                 send: saved by io            first text
 *   (start) ──────────► LOADING ──────────► IDLE ──► SAVING ──────────────► PREFILL ──────────────► ANSWER
 *                          │                 ▲ ▲          io error │            │ cancel, error        │ or done
 *                          │ LOAD_FAILED     │ └───────────────────┘            │                      │
 *                          ▼                 └──────────────────────────────────┴──────────────────────┘
 *                        FAILED ── load ──► LOADING            quit, from anywhere ──► CLOSING ── CLOSED ──► (end)
 *
 * The words of the user are committed to the database (SAVING) before the model sees them. */
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

/* Opens the store and starts worker and io threads; begins to load the model; opens the conversation asked for by o
 * (--continue, --resume) or an empty, unsaved one. paths and o must outlive it. */
enum pp_code pp_controller_new(const struct pp_options *o, const struct pp_paths *paths, struct pp_controller **out,
                               struct pp_error *err);
/* Asks everything to stop and be saved; then pump until PP_STATE_CLOSED, then free. At least every PP_CLOSING_MS, also
 * when nothing is readable: what does not end is given up in the end. */
enum { PP_CLOSING_MS = 100 };
void pp_controller_quit(struct pp_controller *c);
/* Also without quit: quits and waits. False: the end of an answer could not be saved and is lost. */
bool pp_controller_free(struct pp_controller *c);
/* The same, for who tells the user about it. */
struct pp_last_words {
    /* In, or NULL: called once, on this thread, when saving takes long; `what` says what is being saved. */
    void (*waiting)(const char *what);
    /* Out */
    bool saved;
    char why[600];   /* not, as far as that was known; or "" */
    bool gone;       /* the database was deleted, moved or replaced: text says where the conversation is instead */
    char text[2400]; /* what else is to be told, "" for nothing */
};
void pp_controller_close(struct pp_controller *c, struct pp_last_words *w);

int pp_controller_fd(const struct pp_controller *c); /* readable: call pump */
enum pp_dirty { PP_DIRTY_TRANSCRIPT = 1, PP_DIRTY_STATUS = 2, PP_DIRTY_LISTS = 4, PP_DIRTY_ALL = 7 };
unsigned pp_controller_pump(struct pp_controller *c); /* bits of enum pp_dirty, also of actions since the last call */

/* --- what is on the screen (valid until the next pump or action) ------------------------------------------ */

struct pp_chat_message {
    int64_t id;
    enum pp_role role;
    enum pp_message_state state;
    const char *text;       /* untrusted UTF-8 */
    size_t len;
    const char *reasoning;  /* of an answer: what the model thought before it; likewise, "" for nothing */
    size_t reasoning_len;
    bool thinking;          /* it still does */
    int64_t reasoning_tokens; /* 0: unknown */
    float reasoning_s;      /* seconds; 0: unknown */
    uint64_t revision;      /* changes whenever text or state do: for caches of wrapped lines */
    int sibling, n_siblings;
    int64_t n_tokens;       /* of an answer, reasoning and all; 0: unknown */
    bool ended;             /* the last of them says that the answer ends there */
    int64_t ctx_used;       /* tokens of an answer and of all that it was given; 0: not known */
    float tokens_per_s;     /* of the answer; 0 if unknown */
    float acceptance;       /* share of guessed tokens that stood; < 0: nothing was guessed */
    float speedup;          /* how often as fast as without guesses; 0: not known */
    const uint32_t *guessed; /* [n_guessed]: bytes of text that the model chose, that had been guessed, and so on */
    size_t n_guessed;       /* 0: nothing was, or it is not known */
    char adapters[96];      /* of an answer: "bard 0.80", cut if need be; "" for none */
    bool too_long;          /* of an answer without text: there is none because its question alone does not fit */
    int64_t context_from;   /* of a question: the message from which on the model is given it; 0: nothing is noted */
};
size_t pp_controller_n_messages(const struct pp_controller *c);
const struct pp_chat_message *pp_controller_message(const struct pp_controller *c, size_t i);

/* The answers that were asked for together stand side by side until one of them is gone on from; 0: there are none. The
 * one that is chosen, with pp_controller_sibling, is the last message. */
enum { PP_MAX_ALTERNATIVES = 8 };
size_t pp_controller_n_alternatives(const struct pp_controller *c);
const struct pp_chat_message *pp_controller_alternative(const struct pp_controller *c, size_t i);

/* Who guesses what comes next; the answers are the same with all. */
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
    bool temporary;              /* nothing of the conversation goes to the disk, */
    bool unwanted;               /* though nobody wants it so: it cannot be saved */
    int64_t ctx_used, ctx_total; /* tokens */
    int64_t ctx_moved;           /* of those used: with values that are not exact (PP_OVERFLOW_SLIDE) */
    float tokens_per_s;          /* of the last or current answer */
    uint64_t progress_done, progress_total; /* loading: bytes; prefill: tokens; total 0: unknown */
    float eta_s;                 /* of the prefill; < 0: unknown */
    enum pp_drafter drafter;
    float acceptance;            /* share of the guesses that stood; < 0: nothing was guessed yet */
    float speedup;               /* how often as fast as without guesses; 0: not known */
    int n_guessed;               /* guesses by place in a pass, of the last or current answer: */
    uint32_t guessed_at[PP_STATS_GUESSES], stood_at[PP_STATS_GUESSES]; /* [n_guessed] */
    const char *adapters;        /* "bard 0.80, barista 1.00"; "" for none */
    const char *persona;         /* name, or "" */
    const char *template_name;   /* "" is the model's own */
    const char *notice;          /* last one-line message; "" for none */
    bool notice_is_error;
    bool not_loaded;             /* the model asked for last could not be: the one before it is there again, or none */
    const char *unsaved;         /* why an answer is not saved yet: to be seen as long as it is not ""; a notice, too */
    uint64_t notice_serial;      /* changes with every new notice */
    uint64_t overflow_serial;    /* changes when the user is to say what happens with a full context */
};
const struct pp_status *pp_controller_status(const struct pp_controller *c);

/* --- conversation ----------------------------------------------------------------------------------------- */

/* text is copied. False (with a notice) if it cannot be taken now, or is no UTF-8: the caller keeps the text in the
 * input line. */
bool pp_controller_send(struct pp_controller *c, const char *text);
/* A message that was taken but could not be saved (the notice says why): to be put back into the input line. The
 * caller's (pp_free); NULL if there is none. */
char *pp_controller_take_unsent(struct pp_controller *c);
/* Stops the answer, else an import. False: nothing was running. */
bool pp_controller_cancel(struct pp_controller *c);
/* n new siblings of the last answer, 1 to PP_MAX_ALTERNATIVES; several are written side by side. */
void pp_controller_regenerate(struct pp_controller *c, int n);
/* Answers to the last question under other adapters, side by side, once it is known that those fit the model. Two sets
 * or more, as behind /compare; the text is changed. The conversation goes on with the adapters of the one that is
 * chosen. False: a notice says why. */
bool pp_controller_compare(struct pp_controller *c, char *sets);
void pp_controller_continue(struct pp_controller *c);    /* goes on with a stopped answer */
/* A new branch from a changed message: the user's is answered anew; an answer is what it was changed to, and can be
 * gone on with. False: a notice says why not. */
bool pp_controller_edit(struct pp_controller *c, size_t message, const char *text);
/* Steps back over the last n questions and their answers, which stay as a branch. False, with a notice: there are not
 * so many, or it cannot be done now. */
bool pp_controller_undo(struct pp_controller *c, int n);
/* Steps forward again, to the end of the youngest branch that goes on from here. */
void pp_controller_redo(struct pp_controller *c);
/* Shows the branch left (-1) or right (+1) of a message, or so many from it. */
void pp_controller_sibling(struct pp_controller *c, size_t message, int step);
/* Shows the nth branch, from 1 on, of the last message that has several. False, with a notice: there is none. */
bool pp_controller_branch(struct pp_controller *c, int n);
/* Shows the youngest branch of this conversation that has the message; PP_DIRTY_TRANSCRIPT when it is there. False: it
 * cannot be done now. */
bool pp_controller_show_branch_of(struct pp_controller *c, int64_t message);
/* A new conversation that begins with this branch, without its last n_back questions and what follows them; pages are
 * shared. An answer under way goes on in the original, and the copy has what is there of it. */
void pp_controller_fork(struct pp_controller *c, int n_back);

/* Where the context begins: the first message that the model is given, 0 for all; *note: what it is told of those
 * before it, "" for nothing. */
size_t pp_controller_context(const struct pp_controller *c, const char **note);
/* When the context is full: "ask", "stop", "shift", "summarise", for this conversation; if the user was asked, it is
 * done at once. False (with a notice): another word. */
bool pp_controller_set_overflow(struct pp_controller *c, const char *word);
/* Has the model sum up all turns but the last, which it is given from then on in their place. False: a notice says why
 * not. */
bool pp_controller_compact(struct pp_controller *c);
/* Whether the user has been asked (status.overflow_serial changes with every time), and the answer for this once. */
bool pp_controller_overflow_asked(const struct pp_controller *c);
void pp_controller_overflow(struct pp_controller *c, enum pp_overflow how);

/* --- conversations ---------------------------------------------------------------------------------------- */

void pp_controller_new_session(struct pp_controller *c);
/* From now on conversations are in memory alone, and begin anew; or (false) are kept again: then those in memory are
 * gone. False, with a notice: not now. */
bool pp_controller_set_temporary(struct pp_controller *c, bool on);
void pp_controller_open(struct pp_controller *c, int64_t session);   /* PP_ERR_BUSY elsewhere: a notice */
void pp_controller_rename(struct pp_controller *c, int64_t session, const char *title); /* 0: the current one */
/* The user is there: a title that another pippin has given the current one meanwhile comes on the screen. It is looked
 * for at most once a second. */
void pp_controller_look_at_title(struct pp_controller *c);
void pp_controller_delete(struct pp_controller *c, int64_t session); /* the current one too: a new one opens */
/* Writes a conversation (0: the current one) to a new file: Markdown, or JSON and JSONL where the name ends so; "": its
 * name is made of the title. A notice says where it is, or why not. "~/" is the home folder. */
void pp_controller_export(struct pp_controller *c, int64_t session, const char *path);
/* Adds the conversations of a file (import.h) and opens the first of them, unless the user has gone on with something
 * else meanwhile; notices as above. It goes on beside all else until pp_controller_cancel or quit: then what has come
 * stays. Another one waits for its end. */
void pp_controller_import(struct pp_controller *c, const char *path);
bool pp_controller_importing(const struct pp_controller *c);
/* Has a line "NAME = VALUE\n" put into a small file of the screen's (0600), in the place of those of that name, both
 * copied, where nobody waits for the disk; its folder is made. What is asked for later is written later. A notice
 * follows if it cannot be written: that it is not kept for the next start, and why. */
void pp_controller_keep(struct pp_controller *c, const char *path, const char *line);
/* Whether all that was asked for is done, as far as it needs the disk: the adapters beside the model are known, one
 * that was added is there, a template was read, adapters that are to be compared were looked at. What lists and imports
 * do goes on beside. */
bool pp_controller_settled(const struct pp_controller *c);
/* Asks for the list anew, or for what a search finds (any text, as in struct pp_search; "" for all); PP_DIRTY_LISTS
 * when it is there. What was asked for before and is not there yet is dropped. */
void pp_controller_refresh_sessions(struct pp_controller *c, const char *query);
/* What a search finds comes by relevance from now on, or newest first again; asks anew. True: by relevance. Where too
 * many messages match, a notice says so, and they come newest first. */
bool pp_controller_order_sessions(struct pp_controller *c);
/* How many rows there are. A search counts one more than it has while there may be more. */
size_t pp_controller_n_sessions(const struct pp_controller *c);
/* The rows are still those of the question before. */
bool pp_controller_sessions_pending(const struct pp_controller *c);
/* Rows could not be read, as a notice said, and are not asked for again before the next refreshing. */
bool pp_controller_sessions_failed(const struct pp_controller *c);
/* Row i, newest first. NULL: it is not here; it is being fetched (PP_DIRTY_LISTS, then ask again). */
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
    uint64_t stamp;          /* of its files, when that was known */
    struct pp_adapter_facts facts; /* if it does */
    char note[200];          /* the user's own line; "" for none */
    bool added;              /* the user named its path */
    /* what answers have cost that were written with it on, by themselves; 0: there was none */
    uint64_t decode_tokens, decode_ns;
};
/* Found beside the model, in data/adapters, and by --lora. */
const struct pp_adapter_entry *pp_controller_adapters(const struct pp_controller *c, size_t *n);
/* The adapter that is on, at another strength than 0, and beside which adapter i cannot be: both change a matrix, one
 * of them as an IA3 of an input that others read, too. SIZE_MAX: none, as far as is known. */
size_t pp_controller_adapter_conflict(const struct pp_controller *c, size_t i);
/* False: nothing is changed, and a notice says why: it does not fit, conflicts with another, or is one too many. */
bool pp_controller_set_adapter(struct pp_controller *c, size_t i, bool on, float scale);
/* Changes places with the one before (-1) or after it: they are applied in the order of the list. Its new place. */
size_t pp_controller_move_adapter(struct pp_controller *c, size_t i, int step);
/* Asks which of them fit and what they are; PP_DIRTY_LISTS as it becomes known. One that does not fit cannot be
 * switched on. */
void pp_controller_inspect_adapters(struct pp_controller *c);
/* Somebody looks at the list of adapters or of templates: what has come since it was made appears in it, what has gone
 * and is off goes, and what other files lie in the place of are asked about anew. */
void pp_controller_look_around(struct pp_controller *c);
void pp_controller_note_adapter(struct pp_controller *c, size_t i, const char *note);
/* Lists a file or folder for good, or the adapters that lie in a folder. "~/" is the home folder. False: a notice says
 * why not. It is looked at by and by. */
bool pp_controller_add_adapter(struct pp_controller *c, const char *path);
/* A path that was looked at and not added (the notice says why), to be mended. The caller's (pp_free); NULL if there is
 * none. */
char *pp_controller_take_refused(struct pp_controller *c);
/* Tokens per second of answers without any adapter; 0: not known. */
float pp_controller_plain_speed(const struct pp_controller *c);

/* What of this conversation the model would have to read again before the next answer, if adapter i were switched over;
 * i >= their number: as things are. PP_DIRTY_LISTS when it becomes known. */
struct pp_switch_cost {
    bool known;
    bool failed;    /* it will not be known: an adapter that is on is not there, or cannot be used */
    bool conflict;  /* there will be no answer: two of the adapters conflict */
    bool at_hand;   /* next to nothing */
    int64_t tokens;
    float seconds;  /* < 0: not known, nothing was read or written yet */
    bool at_most;   /* seconds is a limit: only how fast answers are written is known */
};
struct pp_switch_cost pp_controller_switch_cost(struct pp_controller *c, size_t i);

struct pp_named { char name[64]; char detail[256]; bool current; };
/* Sets of adapters under a name, stored for all conversations; detail: "bard 0.50, barista 0.80". */
const struct pp_named *pp_controller_presets(const struct pp_controller *c, size_t *n);
/* False: nothing is changed, and a notice says why: two of them conflict. */
bool pp_controller_use_preset(struct pp_controller *c, size_t i);
/* What is on, under a name that is new or gets another meaning. False: a notice says why. */
bool pp_controller_save_preset(struct pp_controller *c, const char *name);
/* By its name, as what was asked about may stand elsewhere in the list by now. */
void pp_controller_drop_preset(struct pp_controller *c, const char *name);
const struct pp_named *pp_controller_templates(const struct pp_controller *c, size_t *n);
void pp_controller_set_template(struct pp_controller *c, size_t i);
const struct pp_named *pp_controller_personas(const struct pp_controller *c, size_t *n);
void pp_controller_set_persona(struct pp_controller *c, size_t i);
bool pp_controller_set_system(struct pp_controller *c, const char *text); /* "" for none; false: a notice says why */
/* Models that could guess: registered ones, those beside the model and in data/models, and the one that does. */
struct pp_drafter_entry {
    char name[128];
    char path[512];
    enum pp_fit fit;         /* whether it can guess for the loaded model; known after pp_controller_find_drafters */
    char reason[256];        /* why not */
    struct pp_drafter_facts facts; /* if it can */
};
const struct pp_drafter_entry *pp_controller_drafters(const struct pp_controller *c, size_t *n);
/* Looks for them, and asks of each whether it fits; PP_DIRTY_LISTS as it becomes known. */
void pp_controller_find_drafters(struct pp_controller *c);
/* A file, a folder or a name in the registry guesses from the next answer on, while the model stays. A notice says how
 * it went; if it cannot, things are as before. False: it is none, or not now. */
bool pp_controller_use_drafter(struct pp_controller *c, const char *model);
/* False (with a notice that says why) if there is no draft model and it alone is wanted. */
bool pp_controller_set_drafter(struct pp_controller *c, enum pp_drafter d);
/* Models that can be loaded: registered ones, those beside the model and in data/models, the bundled one. */
struct pp_model_choice {
    char name[128];          /* as it is registered, or of its file or folder */
    char path[512];
    bool bundled;            /* "starter" names it, too */
    bool current;            /* it is loaded */
    enum pp_fit fit;         /* whether one can talk with it; known some time after pp_controller_find_models */
    char reason[256];        /* why not */
    struct pp_model_facts {  /* if one can */
        char type[32];       /* of its weights: "Q4_K_M" */
        int64_t n_params, n_params_active; /* active: that a token needs, of a mixture of experts; else 0 */
        int64_t n_ctx_train; /* tokens */
        uint64_t bytes;      /* of its weights as they are stored */
        uint64_t memory;     /* bytes with a context of n_ctx tokens, work space and all; 0: not known */
        int64_t n_ctx;
    } facts;
};
const struct pp_model_choice *pp_controller_models(const struct pp_controller *c, size_t *n);
/* Looks for them, and then into each; PP_DIRTY_LISTS as it becomes known. */
void pp_controller_find_models(struct pp_controller *c);
bool pp_controller_models_pending(const struct pp_controller *c); /* not all is known yet */
/* Another model, by its name or path, while the conversation stays. False: a notice says why not. */
bool pp_controller_load(struct pp_controller *c, const char *model);
/* "auto", "off", "on", "low", ...: false (with a notice that says why) if the chat template has no such switch. */
bool pp_controller_set_thinking(struct pp_controller *c, const char *word);
/* "temp", "top-k", ...: false and a notice if there is no such parameter or the value does not fit. */
bool pp_controller_set_param(struct pp_controller *c, const char *name, const char *value);
const struct pp_named *pp_controller_params(const struct pp_controller *c, size_t *n); /* name, value in detail */

/* --- slash commands --------------------------------------------------------------------------------------- */

/* What a line that begins with '/' asks of the screen itself. */
enum pp_slash {
    PP_SLASH_TEXT,      /* not a command (an unknown /path/with/slashes, "//"): send it as text */
    PP_SLASH_DONE,      /* carried out */
    PP_SLASH_ERROR,     /* known or nearly, but wrong: a notice says why */
    PP_SLASH_KEEP,      /* the same, and it is long: it stays in the line to be corrected */
    PP_SLASH_HELP, PP_SLASH_QUIT, PP_SLASH_SESSIONS, PP_SLASH_MODEL_MENU, PP_SLASH_LORA_MENU, PP_SLASH_TEMPLATE_MENU,
    PP_SLASH_PERSONA_MENU, PP_SLASH_DRAFT_MENU, PP_SLASH_THEME, PP_SLASH_PARAMS_MENU, PP_SLASH_EDIT,
    PP_SLASH_COPY, PP_SLASH_OVERFLOW_MENU, PP_SLASH_REASONING, PP_SLASH_TINT, PP_SLASH_READ, PP_SLASH_FIND,
    PP_SLASH_BRANCH,    /* carried out, too: another branch is there, or on its way */
};
/* Whether a text would be taken for a command, whether there is such a one or not; several lines, only if there is. */
bool pp_slash_looks_like(const char *line);
/* What is sent of a line that is none: without the first of two slashes, unless a blank follows them ("// a comment")
 * or there are more lines, which no command begins. */
const char *pp_slash_text(const char *line);
/* arg: receives what follows a command that the screen has to carry out ("/theme dark"), up to cap bytes. */
enum pp_slash pp_controller_slash(struct pp_controller *c, const char *line, char *arg, size_t cap);
/* The table, for help and completion: name ("lora"), arguments ("[NAME STRENGTH | off]"), one line of text. i from 0;
 * false at the end. */
bool pp_slash_info(size_t i, const char **name, const char **args, const char **text);

#endif
