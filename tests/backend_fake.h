/* backend_fake.h - a backend whose answers a test writes itself, and a controller on a real store in a folder of its
 * own. */
#ifndef PP_TESTS_BACKEND_FAKE_H
#define PP_TESTS_BACKEND_FAKE_H

#include "src/controller_int.h"
#include "tests/support.h"

struct fake_backend {
    struct pp_backend base;
    struct pp_queue *events;
    struct pp_io *io;
    const char *db;              /* when generate is called, its message and the question must be in there */
    int loads, generations, cancels, leaves, forgets, closes;
    bool hold_close;             /* close does not answer */
    uint64_t cancelled;          /* the last request that was */
    char left[17], forgotten[17], shown[17];
    char loaded[600], loaded_draft[600]; /* the last that were to be */
    /* all generations: [generations] */
    struct fake_asked {
        uint64_t request, seed;
        int64_t message_id;
        char adapters[128];      /* as people read them */
    } asked[32];
    /* the last generation */
    uint64_t request;
    int64_t message_id;
    char messages[4096], continue_text[256], continue_reasoning[256], continue_guessed[256];
    char key[17], template_source[256];
    struct pp_sampling sampling;
    int64_t max_tokens, continue_tokens;
    enum pp_overflow overflow;
    bool background, skip_reasoning, no_snapshots;
    enum pp_thinking thinking;
    unsigned thinking_choices;   /* of the model that is loaded next */
    int n_adapters;
    float scale;                 /* of the first adapter */
    bool use_draft, lookup;
    int draft_max;
    bool draft_always;
    float draft_p_min;
    const char *stats;           /* what is kept with an answer that ends; NULL: a speed */
    struct pp_stats done;        /* what the event of its end tells */
    struct pp_thoughts thoughts; /* its counts go on with the text */
    /* what was to be read ahead */
    int preparations;
    char prepared[1100];         /* KEY MESSAGES */
    /* the last question about an adapter, and about the price of a set */
    int inspections, prices, drafter_inspections;
    bool deaf;                   /* they cannot be asked */
    char drafter_inspected[700], drafter[700];
    struct pp_adapter_places places; /* of those that fit */
    char inspected[700], price_of[128], price_messages[1024];
    uint64_t price_request;
    bool committed;              /* the question was in the database */
};

struct fixture {
    struct fake_backend *fake;
    struct pp_controller *c;
    struct pp_options o;
    struct pp_paths paths;
    char model[600];
};

/* Fills folders, options and an empty database; no controller yet. */
void fixture_init(struct fixture *f);
enum pp_code fixture_start(struct fixture *f, struct pp_error *err); /* of the controller */
void fixture_ready(struct fixture *f);  /* started, and the model "loaded": IDLE */
void fixture_stop(struct fixture *f);   /* frees the controller */
void fixture_remove(struct fixture *f); /* all */

/* The one that a group's tests share, and functions for cmocka: an empty one, and one that is ready. */
extern struct fixture fix;
int fix_setup(void **state);
int fix_setup_ready(void **state);
int fix_teardown(void **state);
#define READY(test) cmocka_unit_test_setup_teardown(test, fix_setup_ready, fix_teardown)
#define FRESH(test) cmocka_unit_test_setup_teardown(test, fix_setup, fix_teardown)
struct pp_store *fix_store(void); /* its database, opened once more */
const struct pp_status *fix_status(void);
const struct pp_chat_message *fix_message(size_t i); /* fails the test if there is none */
enum pp_slash fix_slash(const char *line);
/* Sends a question; returns when it has reached the backend. The conversation's id. */
int64_t fix_ask(const char *question);
/* All of the answer to what was asked, of one token. */
void fix_answer(const char *text);

/* What the backend tells, of the last generation or the one chosen since. */
void fake_choose(struct fixture *f, int generation); /* from 0 */
void fake_loaded(struct fixture *f);
void fake_text(struct fixture *f, const char *text, int n);
/* Its bytes from .. from + n - 1 had been guessed. */
void fake_guessed(struct fixture *f, const char *text, size_t from, size_t n);
/* Of its reasoning; n_tokens: since the answer began. It took 0.5 s for each. */
void fake_think(struct fixture *f, const char *text, bool going_on, bool take_back, int n_tokens);
void fake_adapter(struct fixture *f, const char *misfit); /* the one that was asked for last; NULL: it fits */
/* The draft model that was asked about last, or (chosen) for; misfit NULL: it fits, guesses. */
void fake_drafter(struct fixture *f, const char *misfit);
void fake_draft(struct fixture *f, const char *misfit);
void fake_cost(struct fixture *f, uint64_t total, uint64_t cached);
void fake_no_cost(struct fixture *f); /* an adapter of the set cannot be used */
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
/* Sends a question and gives the answer; IDLE after it. */
void fixture_turn(struct fixture *f, const char *question, const char *answer);
/* Waits until everything posted to the io thread so far has been done. */
void fixture_flush(struct fixture *f);

#endif
