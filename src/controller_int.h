/* controller_int.h - the controller's internals, shared by controller*.c and slash.c. UI thread only unless a comment
 * says otherwise.
 *
 *   controller.c           life, states, events, status
 *   controller_answer.c    sending, asking, stopping
 *   controller_running.c   the answers that are being written, here and in conversations that were left
 *   controller_overflow.c  a full context: dropping turns, summaries
 *   controller_title.c     titles by the model
 *   controller_session.c   opening, leaving, forking, renaming and deleting conversations
 *   controller_list.c      the list of them, and the search
 *   controller_choices.c   templates, personas, parameters
 *   controller_models.c    models that could be loaded
 *   controller_drafters.c  draft models
 *   controller_adapters.c  adapters: which are on, sets of them, several sets side by side
 *   controller_presets.c   sets of adapters under a name
 *   controller_cost.c      what a change of adapters would cost, and reading ahead
 *   controller_thinking.c  whether the model is to think first
 *   controller_settings.c  those choices as the JSON that is stored with a conversation
 *   controller_files.c     exporting conversations to files, and what the screen remembers
 *   controller_import.c    importing conversations from files
 *   controller_jobs.c      what the io thread does for all of them */
#ifndef PP_SRC_CONTROLLER_INT_H
#define PP_SRC_CONTROLLER_INT_H

#include "src/adapter_mix.h"
#include "src/branch.h"
#include "src/controller.h"
#include "src/io.h"
#include "src/personas.h"
#include "src/queue.h"

/* Makes the backend; pp_worker_start is one. Tests bring their own. */
typedef enum pp_code pp_backend_factory(struct pp_queue *events, struct pp_io *io, const char *cache_dir,
                                        struct pp_backend **out, struct pp_error *err);
enum pp_code pp_controller_new_with(const struct pp_options *o, const struct pp_paths *paths,
                                    pp_backend_factory *factory, struct pp_controller **out, struct pp_error *err);

struct ctl_job;
struct ctl_import;

struct adapter_list {
    struct pp_adapter_entry *items; /* [n] */
    size_t n, cap;
};

struct drafter_list {
    struct pp_drafter_entry *items; /* [n] */
    size_t n, cap;
};

struct model_list {
    struct pp_model_choice *items; /* [n] */
    size_t n, cap;
};

struct named_list {
    struct pp_named *items; /* [n] */
    size_t n, cap;
};

/* What to do once the answer under way has ended. */
enum afterwards { THEN_NOTHING, THEN_NEW, THEN_OPEN, THEN_DELETE, THEN_FORK };

/* Conversations as the screen lists them: rows first to first + n - 1 of `total` are here. */
struct ctl_list {
    struct pp_session *items;     /* [n] */
    size_t n, cap, first, total;
    char *query;                  /* the search that found them; "" or NULL: all */
    char *wanted;                 /* the query to run as soon as the job under way has ended; NULL: none */
    struct ctl_list_job *busy;    /* the job under way, or NULL */
    bool best_first;              /* a search orders by relevance */
    bool failed;                  /* the last job did: nothing is fetched until the list is requested again */
};

/* An answer that is being written. */
struct ctl_running {
    struct ctl_running *next;     /* begun later */
    uint64_t request;
    int64_t session, message;     /* its conversation, and the message it is saved as */
    int sibling, n_siblings;
    struct pp_adapter_mix set;    /* the adapters it is written with */
    struct pp_buf text, reasoning; /* of the message, so far */
    struct pp_draft_runs drafted;
    bool thinking;                /* the text has not begun */
    int64_t reasoning_tokens;
    uint64_t reasoning_ns;
    int64_t base;                 /* tokens of the text and reasoning that it continues; 0: not known */
    int64_t n_tokens;             /* tokens since */
    int64_t prompt_tokens;        /* 0: not known yet */
    uint64_t done, total;         /* tokens of the prompt: processed, and in all */
    uint64_t prompt_started_ns;
    int64_t max_tokens;           /* < 0: no limit */
    float eta_s, tokens_per_s, acceptance, speedup; /* as in struct pp_status and struct pp_chat_message */
    int draft_depth;
    uint32_t drafted_at[PP_STATS_POSITIONS], accepted_at[PP_STATS_POSITIONS];
    bool begun;                   /* a token has arrived, if only the one that ends the answer */
    bool has_text;                /* text or reasoning has arrived */
    bool relabel;                 /* it continues with other adapters, to be noted once it has text */
    bool parallel;                /* another answer was written at the same time */
    /* controller_overflow.c */
    enum pp_overflow overflow;    /* what to do when the context is full */
    int64_t question;             /* the message that it answers, 0 for none */
    int64_t *turns;               /* [n_turns] first message of every object of its prompt, the system's not counted */
    size_t n_turns;
    char *note;                   /* what its prompt says of the messages that had left the context before; or NULL */
    int64_t next_from;            /* the message that the context begins, or would have to begin with; 0: no overflow */
    bool summary;                 /* it is no answer but a summary of the messages before next_from */
    bool compact;                 /* ... that the user asked for: no answer is rewritten afterwards */
};

/* What to do once an answer has ended because the context was full. */
struct ctl_overflow {
    enum { CTL_OVERFLOW_NOTHING, CTL_OVERFLOW_ANSWER, CTL_OVERFLOW_SUMMARY, CTL_OVERFLOW_COMPACT } what;
    enum pp_overflow how;
    int64_t question, from;
    char *note;                   /* the summary */
    int64_t session, message;     /* the answer's conversation, and its message */
    bool temporary;               /* in the database in memory */
};

/* A conversation that is not on screen while answers are being written in it. */
struct ctl_background {
    struct ctl_background *next;
    int64_t session;
    char key[33];
    char *title;
    int lock_fd;
    bool to_be_deleted;
};

struct pp_controller {
    const struct pp_options *o;
    const struct pp_paths *paths;
    struct pp_queue *events;
    struct pp_io *io;
    struct pp_backend *backend;

    enum pp_state state;
    unsigned dirty;
    uint64_t close_deadline_ns;   /* CLOSING: when to stop waiting for the worker */
    bool abandoned;               /* the worker did not end in time: its memory is not freed before the process ends */

    /* the conversation */
    struct pp_session session;    /* strings never NULL; id 0 while unsaved */
    int lock_fd;                  /* of the session, -1 */
    bool temporary;               /* conversations are in memory alone, and have no locks */
    bool no_disk;                 /* ... because nothing can be stored on the disk, */
    bool unusable;                /* the database being damaged, or a newer pippin's; otherwise it is not writable */
    bool unmade;                  /* there is no database on the disk yet, and a temporary chat does not create one */
    struct pp_branch branch;
    uint64_t renamings;           /* made here: a title read before the last one is stale */
    uint64_t title_read_ns;       /* when the title was last read anew, as the user was present; 0: never */
    uint64_t epoch;               /* changes when another conversation is on screen */
    bool switching;               /* a job that replaces the conversation is under way */
    bool stepping;                /* ... to another branch of it */
    int64_t opening;              /* ... by this one, which is read */
    int more_steps;               /* requested meanwhile */
    struct ctl_undone {           /* what undo has left, for redo: */
        int64_t session;          /* in this conversation, */
        int64_t at, leaf;         /* which has ended with message `at` since then (0: it is empty), and with `leaf`
                                   * before the first undo */
    } undone;
    unsigned unsaved_bits;        /* enum update_bits: could not be saved, and is retried with the next update */
    char *model;                  /* the loaded model, as it was named; "": it was not named */
    char *wanted_model;           /* the model being loaded, as the user named it; NULL: the first one */
    int64_t wanted_in;            /* the conversation in which it was named; 0: one that is not stored yet */
    struct pp_error open_err;     /* how the last opening went */
    enum afterwards then;
    int64_t then_session;         /* or, of a fork, how many questions it leaves out */

    /* answers */
    uint64_t request;             /* number of the last generation */
    struct ctl_running *running;
    struct ctl_background *background;
    int64_t unseen[64];           /* [n_unseen] conversations with an unread answer */
    size_t n_unseen;
    bool changed_meanwhile;       /* the conversation being opened has changed: an answer ended, or it was renamed */
    struct pp_branch group;       /* the alternatives side by side */
    struct ctl_compared {         /* the adapters of alternatives that differ in them */
        int64_t message;          /* 0 until it is saved */
        struct pp_adapter_mix set;
    } compared[PP_MAX_ALTERNATIVES];
    int n_compared;
    struct ctl_to_compare {       /* NULL, or a comparison that waits to learn whether its adapters fit */
        struct pp_adapter_mix sets[PP_MAX_ALTERNATIVES];
        int n;
        uint64_t epoch;           /* of the conversation ... */
        int64_t last;             /* ... and the last message of its branch */
    } *to_compare;
    struct ctl_cost {             /* what switching to a set costs, as asked of the worker */
        uint64_t request;         /* 0: none */
        struct pp_adapter_mix set;
        uint64_t epoch, revision; /* of the conversation and of its branch */
        bool known;
        bool failed;              /* an adapter of the set cannot be used */
        uint64_t total, cached;
    } costs[2];
    bool inspecting;              /* the worker is asked about an adapter, */
    bool inspecting_all;          /* and then about all others, not only those that are on */
    size_t n_scans;               /* scans for adapters, templates and presets under way */
    size_t n_awaited;             /* jobs of ctl_job_post that have not come back yet */
    bool finding_drafters;        /* a job looks for them, or the worker is asked about one */
    bool finding_models;          /* a job looks for them, or opens one */
    float prefill_tps;            /* tokens per second of the last prompt long enough to measure; 0: none */
    float decode_tps;             /* tokens per second of the last answer that was; 0: none */
    struct ctl_speed {            /* the same, as stored with the newest answer when the conversation was opened */
        char model[192];          /* with which it was measured; "": nothing was stored */
        float prefill_tps, decode_tps;
    } earlier;
    uint64_t plain_tokens, plain_ns; /* decoded without adapters */
    bool cancel_requested;        /* SAVING */
    struct ctl_answer_choices {   /* SAVING: the choices that the answers are stored with; later ones are for later */
        struct pp_adapter_mix set;
        struct pp_sampling sampling;
        int64_t max_tokens;
    } answer_choices;
    size_t n_before_saving;       /* SAVING: how much of the branch stays if saving fails ... */
    struct pp_branch saved_tail;  /* ... and what was cut from it for the new branch */
    char *unsent;                 /* a message that could not be saved */
    char *refused;                /* the path of an adapter that could not be added */
    uint64_t prompt_tokens, cached_tokens; /* of the last answer: its prompt, and how much of it was in the cache */
    uint64_t kv_used, kv_cached, kv_total; /* bytes of KV pages: held, kept for others, and the limit */
    uint64_t kv_copied_bytes;              /* and bytes copied within the cache for it: only a fork's last page is */

    /* choices */
    struct adapter_list adapters;
    struct drafter_list drafters;
    struct model_list models;
    struct named_list presets;
    struct ctl_preset {
        struct pp_adapter_mix set;
        bool stored;                   /* in the database, as far as is known here */
    } *preset_sets;                    /* [presets.n] */
    size_t preset_cap;
    int64_t preset_changes;            /* made here: presets read before the last one are stale */
    struct named_list templates, persona_names, params;
    struct pp_personas personas;
    char persona[64];             /* "" for none, or for a system prompt that the user has written */
    char *system_before;          /* both, before conversations became temporary; NULL: as the options say */
    char persona_before[64];
    char *template_source;        /* of session.template_name; NULL: the model's own */
    struct pp_sampling sampling;
    bool seed_fixed;
    int64_t max_tokens;
    int draft_max;
    float draft_p_min;
    enum pp_drafter drafter;
    enum pp_thinking thinking;

    struct ctl_import *import;    /* the import under way, then those that wait for it; NULL: none */
    char *import_stopped;         /* the result of the last import that was stopped, for the user; or NULL */

    /* lists and status */
    struct ctl_list list;

    /* a title by the model, on its way */
    uint64_t title_request;       /* 0: none */
    int64_t title_session;
    struct pp_buf title_text;

    /* a full context */
    enum pp_overflow overflow;
    int overflow_once;            /* 1 + the enum pp_overflow that overrides it for the next request; 0: none does */
    struct ctl_overflow overflow_next;
    struct ctl_overflow overflow_later[16]; /* [n_overflow_later]: of conversations that are not on the screen */
    size_t n_overflow_later;
    int64_t without_room[PP_MAX_ALTERNATIVES]; /* [n_without_room]: of the answers side by side, those that ended so */
    int n_without_room;
    int64_t overflow_question, overflow_from; /* the user was asked: as in struct ctl_overflow; 0: not asked */

    struct pp_status status;
    char adapters_line[512], notice[600], unsaved[600];
    bool started;                 /* until then notices are appended, as nobody could read them yet */
    size_t unsaved_why;           /* bytes at the start of `unsaved` that say why; what is done about it follows */
};

/* --- controller.c --- */

void ctl_notice(struct pp_controller *c, bool is_error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A notice with as many lines as the text has; ctl_notice makes a single line, whatever names contain. */
void ctl_show_text(struct pp_controller *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ctl_dirty(struct pp_controller *c, unsigned bits);
void ctl_set_state(struct pp_controller *c, enum pp_state s);
/* Replaces an owned string; false (with a notice): out of memory. */
bool ctl_set_string(struct pp_controller *c, char **slot, const char *value);
/* stores the model's name as pp_model_reference makes it */
bool ctl_set_model(struct pp_controller *c, char **slot, const char *name);

/* --- controller_answer.c --- */

/* The loaded model as it is stored with answers: "NAME (TYPE)". */
void ctl_model_label(const struct pp_controller *c, char *out, size_t cap);
bool ctl_answering(const struct pp_controller *c); /* SAVING, PREFILL or ANSWER */
void ctl_run_afterwards(struct pp_controller *c);
/* Whether the tree of messages may change now; if not, a notice says why. */
bool ctl_may_change(struct pp_controller *c);
/* The same, and whether the model may be asked for an answer. */
bool ctl_may_answer(struct pp_controller *c);
/* Whether a text may be stored: it is valid UTF-8, so that a model can read it. If not, a notice says why. */
bool ctl_may_store(struct pp_controller *c, const char *text);

/* --- controller_running.c --- */

void ctl_on_prompt_progress(struct pp_controller *c, const struct pp_event *e);
void ctl_on_text(struct pp_controller *c, const struct pp_event *e);
void ctl_on_done(struct pp_controller *c, const struct pp_event *e);
/* Adds an answer, with a new request number, to the conversation on screen; m: its message so far. NULL: out of
 * memory. */
struct ctl_running *ctl_running_add(struct pp_controller *c, const struct pp_chat_message *m);
void ctl_running_drop(struct pp_controller *c, struct ctl_running *r);
struct ctl_running *ctl_running_find(const struct pp_controller *c, uint64_t request);
bool ctl_in_front(const struct pp_controller *c, uint64_t request); /* it writes the last message on screen */
/* Stops the answers being written in a conversation. False: there are none. */
bool ctl_cancel_in(struct pp_controller *c, int64_t session);
/* After the branch was read again: shows the answers being written in it, as far as they have got. */
void ctl_show_running(struct pp_controller *c);
/* Shows how much of the context the branch on screen took when its last answer ended. */
void ctl_show_context(struct pp_controller *c);
void ctl_on_shown(struct pp_controller *c); /* another conversation is on the screen */
/* Leaves the conversation on screen while answers are written in it: they go on, and keep its lock. False: there are
 * none. */
bool ctl_to_background(struct pp_controller *c);
/* A copy of the lock of a conversation that was left in this way; -1: it was not. */
int ctl_background_lock(const struct pp_controller *c, int64_t session);
void ctl_to_foreground(struct pp_controller *c, int64_t session); /* it is on the screen again, with that copy */
/* Cancels the answers in such a conversation, then deletes it. False: it was not left in this way. */
bool ctl_delete_background(struct pp_controller *c, int64_t session);
/* Chooses the alternative to the left (-1) or right of the last message. False: there is none. */
bool ctl_choose_alternative(struct pp_controller *c, int step);
void ctl_free_running(struct pp_controller *c);

/* --- controller_session.c --- */

/* The conversation that the command line asks for, or an empty one. Waits for the database. */
enum pp_code ctl_open_first(struct pp_controller *c, struct pp_error *err);
/* Writes what has changed in the stored session: bits of enum update_bits. */
enum update_bits { UPDATE_TITLE = 1, UPDATE_CHOICES = 2, UPDATE_HEAD = 4, UPDATE_MODEL = 8 /* of the choices */ };
void ctl_update_session(struct pp_controller *c, unsigned bits);
/* for one that is not on the screen */
void ctl_remember_model(struct pp_controller *c, int64_t session, const char *model);
/* Called when a conversation comes on screen or another model was loaded: a notice if the conversation was written
 * with a different model. */
void ctl_notify_other_model(struct pp_controller *c);
/* a notice: which of how many branches is shown */
void ctl_notify_branch(struct pp_controller *c, const struct pp_chat_message *m);
void ctl_update_unsaved(struct pp_controller *c); /* retries what could not be saved of the conversation, if any */
void ctl_head_saved(struct pp_controller *c, int64_t head); /* the database has this head now */
/* saving the head failed: what is unsaved is retried before the program ends */
void ctl_head_not_saved(struct pp_controller *c);
/* once everything posted so far has been done; sets it to -1 */
void ctl_release_lock(struct pp_controller *c, int *fd);
int ctl_share_lock(int fd); /* a copy; the lock is released when the last copy is closed; -1 stays -1 */
void ctl_start_new(struct pp_controller *c);
void ctl_rename(struct pp_controller *c, int64_t session, const char *title); /* 0: the current one; title: one line */
/* The title that was read from the database when `renamings` had been made here; another pippin may have changed it.
 * Shows it if it is current. */
void ctl_title_read(struct pp_controller *c, int64_t session, const char *title, uint64_t renamings);
void ctl_start_open(struct pp_controller *c, int64_t session);
void ctl_note_change(struct pp_controller *c, int64_t session); /* if it is just being opened, it will be read again */
void ctl_start_fork(struct pp_controller *c, int n_back);
void ctl_start_delete(struct pp_controller *c, int64_t session);
/* Stores the changed answer as a new branch; false: out of memory. */
bool ctl_change_answer(struct pp_controller *c, size_t message, const char *text);
bool ctl_copy_session(struct pp_session *to, const struct pp_session *from);

/* Writes the branch's last answer again, or continues it; of several alternatives, all that ended because the
 * context was full. */
void ctl_answer_again(struct pp_controller *c);

/* --- controller_overflow.c --- */

/* The setting of the command line or pippin.conf, or else ASK. */
enum pp_overflow ctl_default_overflow(const struct pp_controller *c);
/* The messages for an answer (the last of the branch), as JSON (pp_free); stores in *run what is needed if turns are
 * dropped. False: out of memory. */
bool ctl_overflow_prepare(struct pp_controller *c, struct ctl_running *run, char **messages);
/* Whether the context contains turns older than the current one. */
bool ctl_overflow_older_turns(const struct pp_controller *c);
void ctl_on_overflow(struct pp_controller *c, const struct pp_event *e);
/* Called when an answer has ended, before *r is freed. */
void ctl_overflow_ended(struct pp_controller *c, struct ctl_running *r, const struct pp_event *e);
/* Called after that, once nothing is under way on screen: continues, or asks the user. */
void ctl_overflow_act(struct pp_controller *c);
bool ctl_overflow_had_no_room(const struct pp_controller *c, int64_t message); /* one of the alternatives */
/* Called when a conversation is on the screen again: does what was left to do after its answer ended. */
void ctl_overflow_resume(struct pp_controller *c);

/* --- controller_title.c --- */

/* A request for the program's own use (a title, say): greedy decoding without reasoning, neither shown nor stored. It
 * borrows `messages` and `adapters`, which is filled. */
struct pp_generate_request ctl_internal_request(const struct pp_controller *c, uint64_t request, const char *messages,
                                                struct pp_adapter_choice adapters[static PP_MAX_ADAPTERS]);
/* Called when an answer has ended: asks the model for a title if it is time for one. */
void ctl_title_begin(struct pp_controller *c);
/* Called when the user goes on, who should not have to wait for a title. */
void ctl_title_cancel(struct pp_controller *c);
/* True if the event was about a title. */
bool ctl_title_event(struct pp_controller *c, const struct pp_event *e);

/* --- controller_files.c --- */

/* Conversations to rescue to a file if the database turns out to be gone as the program ends. */
struct ctl_rescue {
    const struct pp_paths *paths;
    char key[17];                 /* of the first */
    int64_t sessions[16];         /* [n] */
    size_t n;
    bool gone;                    /* out: the file of the database is gone */
    char text[1200];              /* out: what to tell the user; "" for nothing */
};
/* The conversation on the screen, and those in which answers are still being written. */
void ctl_rescue_list(const struct pp_controller *c, struct ctl_rescue *r);
void ctl_rescue(void *rescue, struct pp_store *st); /* the `gone` callback of pp_io_ending */

/* --- controller_import.c --- */

/* Stops the import under way after its current slice, and drops those queued. False: none is under way, or it is
 * stopping already. */
bool ctl_import_stop(struct pp_controller *c);

/* --- controller_list.c --- */

void ctl_list_forget(struct pp_controller *c); /* another database is in use now */
void ctl_list_reload(struct pp_controller *c);  /* reads the list again */
void ctl_list_rename(struct pp_controller *c, int64_t session, const char *title);
void ctl_list_remove(struct pp_controller *c, int64_t session);
void ctl_list_free(struct ctl_list *l);
/* Builds the part of the search index that an older database lacks, in slices between other jobs. */
void ctl_index_start(struct pp_controller *c);

/* --- controller_choices.c --- */

/* The parameters that can be set by name; `offset` is of a member of struct pp_sampling. */
struct ctl_param {
    const char *name;
    enum { CTL_FLOAT, CTL_INT, CTL_SEED, CTL_MAX_TOKENS, CTL_DRAFT_MAX, CTL_DRAFT_P_MIN } kind;
    size_t offset;
};
extern const struct ctl_param ctl_params[];
extern const size_t ctl_n_params;
const struct ctl_param *ctl_param_find(const char *name);
double ctl_param_get(const struct pp_controller *c, const struct pp_sampling *s, const struct ctl_param *p);
/* False: out of range, nothing changed. */
bool ctl_param_put(struct pp_controller *c, const struct ctl_param *p, double v);
void ctl_fix_seed(struct pp_controller *c, uint64_t seed);

enum pp_code ctl_choices_init(struct pp_controller *c, struct pp_error *err);
void ctl_choices_free(struct pp_controller *c);
/* Resets the parameters to those of the command line. */
void ctl_reset_params(struct pp_controller *c);
/* Explicit command-line options override what is stored with a resumed conversation. */
enum pp_code ctl_apply_options(struct pp_controller *c, struct pp_error *err);
/* Any thread that owns the list: finds or adds the entry for a path; NULL: the list is full, or out of memory. */
struct pp_adapter_entry *ctl_adapter_add(struct adapter_list *l, const char *path);
void ctl_add_named(struct named_list *l, const char *name, const char *detail);
/* Adds a template, unless there is one of that name. */
void ctl_add_template(struct named_list *l, const char *name, const char *detail);
/* Describes the first entry, the model's own template, for this model. */
void ctl_name_own_template(struct pp_controller *c, const struct pp_loaded *l);
/* Starts a scan for adapters and templates (a job). again: it was done for this model before. */
void ctl_scan(struct pp_controller *c, bool again);
void ctl_mark_current(struct pp_controller *c); /* after choices changed: the lists' `current`, the status line */
/* Finds an entry by a word of the user: name, else unique prefix; -1. */
int ctl_find_named(const struct named_list *l, const char *word);
/* One step of a search by name; found: the index so far, -1 none, -2 several. An exact match wins, of several the
 * first. */
int ctl_better(int found, size_t i, const char *name, const char *word, bool *exact);

/* --- controller_adapters.c --- */

int ctl_find_adapter(const struct pp_controller *c, const char *word);
void ctl_notify_more_adapters(struct pp_controller *c); /* a notice that not all were found */
/* Replaces the list by the result of a scan; the old one is left in the job to be freed. */
void ctl_adapters_found(struct pp_controller *c, struct ctl_job *found);
/* Any thread: a hash of the state of an adapter's files, not 0 if they exist; differs after a change. */
uint64_t ctl_adapter_stamp(const char *path);
void ctl_forget_fits(struct pp_controller *c); /* another model was loaded */
/* A continued answer was begun with adapters of the label `begun`: says so if the current ones differ. They are
 * stored with the answer once it gets more text (ctl_note_text). */
void ctl_note_other_set(struct pp_controller *c, struct ctl_running *r, const char *begun);
void ctl_note_text(struct pp_controller *c, struct ctl_running *r); /* text or reasoning has arrived */
/* An answer is written without one of its adapters: a notice says so, and the adapter is switched off. */
void ctl_on_adapter_skipped(struct pp_controller *c, const struct pp_event *e);
void ctl_on_adapter(struct pp_controller *c, const struct pp_event *e);
/* Records the speeds of an answer that has ended. */
void ctl_note_speed(struct pp_controller *c, const struct ctl_running *r, const struct pp_event *e);

/* Posts a job with key, text (may be NULL) and flag, which reports only errors. */
void ctl_store_words(struct pp_controller *c, void (*run)(struct pp_job *, struct pp_store *), const char *key,
                     const char *text, bool flag);

/* --- controller_models.c --- */

/* Adds the model at this path, if there is something, unless it is listed already. name: the registered one, or
 * NULL. */
void ctl_model_add(struct model_list *l, const char *path, const char *name, bool bundled);
void ctl_mark_model(struct pp_controller *c); /* updates which one is loaded */

/* --- controller_drafters.c --- */

/* Any thread that owns the list. name NULL: from the path. */
void ctl_drafter_add(struct drafter_list *l, const char *path, const char *name);
void ctl_on_drafter(struct pp_controller *c, const struct pp_event *e);
void ctl_on_draft(struct pp_controller *c, const struct pp_event *e);
void ctl_forget_drafters(struct pp_controller *c); /* another model was loaded */

/* --- controller_presets.c --- */

/* Replaces the list by that of the database, which another pippin may have changed. Sets that could not be stored
 * stay until the program ends. */
void ctl_presets_found(struct pp_controller *c, const struct ctl_job *found);
/* A set that was saved here is in the database now. */
void ctl_preset_stored(struct pp_controller *c, const char *name);
void ctl_presets_mark(struct pp_controller *c);
void ctl_presets_free(struct pp_controller *c);

/* --- controller_cost.c --- */

/* Tokens of a prompt and of an answer; fewer say nothing about speed. */
enum { CTL_PREFILL_WORTH_MEASURING = 32, CTL_DECODE_WORTH_MEASURING = 8 };
/* Remembers the speed of the newest of these messages that has one, until something is measured. */
void ctl_note_earlier_speed(struct pp_controller *c, const struct pp_message *list, size_t n);
void ctl_on_cost(struct pp_controller *c, const struct pp_event *e);
void ctl_costs_retry(struct pp_controller *c); /* an adapter was inspected: costs that failed may be known now */
/* Called when another branch is on the screen, or a model was loaded for it: has the worker restore its snapshot. */
void ctl_prepare(struct pp_controller *c);
size_t ctl_active_adapters(const struct pp_controller *c, struct pp_adapter_choice out[static PP_MAX_ADAPTERS]);
size_t ctl_set_choices(const struct pp_adapter_mix *s, struct pp_adapter_choice out[static PP_MAX_ADAPTERS]);
struct pp_adapter_mix ctl_set_now(const struct pp_controller *c); /* the adapters that are on */
/* Whether two adapters of a set conflict, as far as is known. */
bool ctl_set_conflicts(const struct pp_controller *c, const struct pp_adapter_mix *s,
                       const struct pp_adapter_entry *two[2]);
/* False, with a notice: an adapter of the set does not fit the model, or two conflict, as far as is known. */
bool ctl_set_allowed(struct pp_controller *c, const struct pp_adapter_mix *s);
/* Inspects adapters of c->to_compare that are not known yet. False: all are known. */
bool ctl_inspect_compared(struct pp_controller *c);
/* Starts the comparison, once all of its adapters are known. */
void ctl_compare_now(struct pp_controller *c);
/* If several adapters are on, inspects them: a notice follows if two conflict. */
void ctl_inspect_set(struct pp_controller *c);
/* Switches to this set; the caller reports that. False: some could not be added to the list. */
bool ctl_set_put(struct pp_controller *c, const struct pp_adapter_mix *s);
/* The set of an alternative in a comparison; for other messages, the adapters that are on. */
struct pp_adapter_mix ctl_set_of(const struct pp_controller *c, int64_t message);
/* The conversation continues with the adapters of this alternative. */
void ctl_set_follow(struct pp_controller *c, int64_t message);
/* Parses a set at the beginning of *text, which is modified and advanced: "none", a preset, or adapters with
 * strengths ("bard", "bard:0.5+barista"), whose names may contain spaces. False: a notice says why. */
bool ctl_set_parse(struct pp_controller *c, char **text, struct pp_adapter_mix *set);

/* --- controller_thinking.c --- */

enum pp_thinking ctl_default_thinking(const struct pp_controller *c); /* the command line's setting, or AUTO */
bool ctl_notify_param(struct pp_controller *c, const char *name);       /* its value, in a notice; false: unknown */
void ctl_notify_thinking(struct pp_controller *c);                      /* a notice */

/* --- controller_settings.c --- */

/* As JSON (pp_free); NULL: out of memory. */
char *ctl_adapters_json(const struct pp_controller *c);
/* Stores the adapters, and the settings that differ from the command line's, in c->session. */
bool ctl_note_choices(struct pp_controller *c);
char *ctl_params_json(const struct pp_controller *c, uint64_t seed);
/* Applies the choices stored with a session. Malformed ones are skipped, with one notice. */
void ctl_apply_session(struct pp_controller *c);

/* --- controller_jobs.c --- */

/* One struct for all jobs; each run_ function says which members it reads and sets. */
enum { CTL_MAX_ADAPTERS = 256 }; /* of those found in folders */
struct ctl_job {
    struct pp_job job;           /* first */
    struct pp_session session;
    unsigned bits;
    uint64_t renamings;          /* made here when it was posted */
    int64_t id;
    char *key;
    char *text;                  /* owned */
    size_t text_len;
    char *query;
    struct pp_message user, answer;
    struct pp_message more[PP_MAX_ALTERNATIVES - 1]; /* [n_more]: further alternatives */
    int n_more;
    int step;
    size_t at;                   /* index in the branch of the message concerned */
    struct pp_message *list;     /* [n] a branch */
    size_t n;
    int lock_fd;                 /* -1 */
    const struct pp_paths *paths;
    const struct pp_options *o;
    struct pp_io *io;
    char lock_dir[600], model[512];
    struct adapter_list adapters;
    bool too_many;                 /* more than CTL_MAX_ADAPTERS, or than are checked in one folder */
    struct drafter_list drafters;
    struct model_list models;
    struct named_list templates;
    struct pp_adapter_note *notes; /* [n_notes] */
    size_t n_notes;
    struct pp_preset *presets;     /* [n_presets] */
    size_t n_presets;
    uint64_t serial;
    bool flag;
};

/* A job with these functions and the folders filled in; NULL, with a notice: out of memory. */
struct ctl_job *ctl_job_new(struct pp_controller *c, void (*run)(struct pp_job *, struct pp_store *),
                            void (*done)(struct pp_job *, void *));
/* Creates the database if it does not exist yet, for something that is stored independently of conversations. False,
 * with a notice: it cannot be created. */
bool ctl_make_disk(struct pp_controller *c);
void ctl_job_post(struct pp_controller *c, struct ctl_job *j); /* takes ownership */
void ctl_job_free(struct pp_job *job);                         /* any thread */

/* io thread; the definitions say what goes in and out */
void ctl_run_send(struct pp_job *job, struct pp_store *st);
void ctl_run_open(struct pp_job *job, struct pp_store *st);
void ctl_run_update(struct pp_job *job, struct pp_store *st);
void ctl_run_sibling(struct pp_job *job, struct pp_store *st);
void ctl_run_branch_of(struct pp_job *job, struct pp_store *st);
void ctl_run_change_answer(struct pp_job *job, struct pp_store *st);
void ctl_run_fork(struct pp_job *job, struct pp_store *st);
void ctl_run_delete(struct pp_job *job, struct pp_store *st);
void ctl_run_template(struct pp_job *job, struct pp_store *st);
void ctl_run_unlock(struct pp_job *job, struct pp_store *st);
/* controller_scan.c */
void ctl_run_scan(struct pp_job *job, struct pp_store *st);
void ctl_run_add_adapter(struct pp_job *job, struct pp_store *st);
void ctl_run_find_drafters(struct pp_job *job, struct pp_store *st);
void ctl_run_find_models(struct pp_job *job, struct pp_store *st);
void ctl_run_note(struct pp_job *job, struct pp_store *st);
void ctl_run_preset(struct pp_job *job, struct pp_store *st);

#endif
