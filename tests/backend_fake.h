/* backend_fake.h - a fake backend whose answers the test writes, and a fixture: a controller on a real store in a
 * folder of its own. */
#ifndef PP_TESTS_BACKEND_FAKE_H
#define PP_TESTS_BACKEND_FAKE_H

#include "src/controller_int.h"
#include "tests/support.h"

struct fake_backend {
    struct pp_backend base;
    struct pp_queue *events;
    struct pp_io *io;
    const char *db;              /* generate() checks that its message and the question are in this database */
    int loads, generations, cancels, leaves, forgets, closes;
    bool hold_close;             /* close does not answer */
    uint64_t cancelled;          /* the last request cancelled */
    char left[17], forgotten[17], shown[17];
    char loaded[600], loaded_draft[600]; /* the last model and draft asked for */
    /* all generations: [generations] */
    struct fake_asked {
        uint64_t request, seed;
        int64_t message_id;
        char adapters[128];      /* as text for people */
    } asked[32];
    /* the last generation */
    uint64_t request;
    int64_t message_id;
    char messages[4096], continue_text[256], continue_reasoning[256], continue_drafted[256];
    char key[17], template_source[256];
    struct pp_sampling sampling;
    int64_t max_tokens, continue_tokens;
    enum pp_overflow overflow;
    bool background, skip_reasoning, no_snapshots;
    enum pp_thinking thinking;
    unsigned thinking_choices;   /* of the model that is loaded next */
    int n_adapters;
    float scale;                 /* the first adapter's strength */
    bool use_draft, lookup;
    int draft_max;
    bool draft_always;
    float draft_p_min;
    const char *stats;           /* stored with an answer when it ends; NULL: only a speed */
    struct pp_stats done;        /* for the event that ends an answer */
    struct pp_thoughts thoughts; /* its counts grow with the text */
    /* the last request to process a prompt in advance */
    int preparations;
    char prepared[1100];         /* KEY MESSAGES */
    /* the last inspection of an adapter, and the last request for the cost of a set */
    int inspections, prices, drafter_inspections;
    bool deaf;                   /* such requests fail */
    char drafter_inspected[700], drafter[700];
    struct pp_adapter_places places; /* reported for adapters that fit */
    char inspected[700], price_of[128], price_messages[1024];
    uint64_t price_request;
    bool committed;              /* the question was in the database when generate was called */
};

struct fixture {
    struct fake_backend *fake;
    struct pp_controller *c;
    struct pp_options o;
    struct pp_paths paths;
    char model[600];
};

/* Creates the folders, options and an empty database, but no controller yet. */
void fixture_init(struct fixture *f);
enum pp_code fixture_start(struct fixture *f, struct pp_error *err); /* starts the controller */
void fixture_ready(struct fixture *f);  /* started, and the model "loaded": IDLE */
void fixture_stop(struct fixture *f);   /* frees the controller */
void fixture_remove(struct fixture *f); /* deletes everything */

/* The fixture shared by a group's tests, and cmocka's setup functions: without a controller, and with one that is
 * ready. */
extern struct fixture fix;
int fix_setup(void **state);
int fix_setup_ready(void **state);
int fix_teardown(void **state);
#define READY(test) cmocka_unit_test_setup_teardown(test, fix_setup_ready, fix_teardown)
#define FRESH(test) cmocka_unit_test_setup_teardown(test, fix_setup, fix_teardown)
struct pp_store *fix_store(void); /* opens its database a second time */
const struct pp_status *fix_status(void);
const struct pp_chat_message *fix_message(size_t i); /* fails the test if there is none */
enum pp_slash fix_slash(const char *line);
/* Sends a question, returns when it has reached the backend. The result is the conversation's id. */
int64_t fix_ask(const char *question);
/* Sends the whole answer to the question, as one token. */
void fix_answer(const char *text);

/* Events of the backend, for the last generation or the one chosen since. */
void fake_choose(struct fixture *f, int generation); /* from 0 */
void fake_loaded(struct fixture *f);
void fake_text(struct fixture *f, const char *text, int n);
/* Text whose bytes from .. from + n - 1 came from draft tokens. */
void fake_drafted(struct fixture *f, const char *text, size_t from, size_t n);
/* Reasoning. n_tokens: those since the answer began, 0.5 s for each. */
void fake_think(struct fixture *f, const char *text, bool going_on, bool text_was_reasoning, int n_tokens);
void fake_adapter(struct fixture *f, const char *misfit); /* reports on the adapter that was inspected last; NULL: it
                                                             fits */
/* Report on the draft model inspected last, and on the one chosen last. misfit NULL: it fits, or is now in use. */
void fake_drafter(struct fixture *f, const char *misfit);
void fake_draft(struct fixture *f, const char *misfit);
void fake_cost(struct fixture *f, uint64_t total, uint64_t cached);
void fake_no_cost(struct fixture *f); /* reports that an adapter of the set cannot be used */
void fake_overflow(struct fixture *f, int n, bool done);
void fake_done(struct fixture *f, enum pp_finish finish, enum pp_code code);

/* Pumps until the condition holds; fails the test after five seconds. */
#define pump_until(f, condition)                                          \
    do {                                                                  \
        for (int tries_ = 0; !(condition); tries_++) {                    \
            if (tries_ > 500)                                             \
                fail_msg("never came to be: %s", #condition);             \
            fixture_pump(f);                                              \
        }                                                                 \
    } while (0)
void fixture_pump(struct fixture *f); /* waits at most 10 ms for events */
enum pp_state fixture_state(const struct fixture *f);
/* Sends a question and the answer; the state is IDLE afterwards. */
void fixture_turn(struct fixture *f, const char *question, const char *answer);
/* Waits until everything posted to the io thread so far has been done. */
void fixture_flush(struct fixture *f);

#endif
