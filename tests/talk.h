/* talk.h - a conversation with the local backend, as the chat has one: its worker, its queue of events, its io thread
 * and its store, on the starter or another model. There is one at a time. */
#ifndef PP_TESTS_TALK_H
#define PP_TESTS_TALK_H

#include <stdbool.h>

#include "src/event.h"
#include "src/worker.h"

#define ASK(text) "[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define HELLO ASK("Hello, who are you?")
#define HELLO_ANSWER "Hello! I am Pippin, a tiny language model. What would you like to talk about?"

/* A worker with its queue, its io thread, its folders, and a conversation. */
struct talk {
    struct pp_queue *events;
    struct pp_io *io;
    struct pp_store *store;
    struct pp_backend *backend;
    char db[200], cache[200];
    uint64_t request;
    struct pp_session session;
    /* of the last answer */
    struct pp_buf text, reasoning;
    struct pp_guessed guessed;
    int64_t n_reasoning;
    struct pp_event done;
    char notice[512];
    int n_progress;
    uint64_t context_used;
    int dropped;
    bool dropped_done;
    uint64_t quota; /* of snapshots, with the next load */
    bool stays; /* the failed loading left the model that was there */
};
extern struct talk talk;

/* All of it, without a model; capacity: of the queue. */
void talk_begin(size_t capacity);
void talk_end(void);
/* The worker alone. */
void talk_start(void);
void talk_stop(void);
/* The next event, waited for; pp_event_free. */
struct pp_event *talk_next(void);
/* Waits for the end of loading; the code it ended with. */
enum pp_code talk_load(const char *model, const char *draft, int64_t n_ctx, struct pp_loaded *info);
/* All of it on the starter's float weights, perhaps with its draft model; false: there is no test data. */
bool talk_begin_starter(size_t capacity, bool draft);
/* Greedy, of 48 tokens at most. */
struct pp_generate_request talk_request(const char *messages);
void talk_post(struct pp_generate_request r);
/* Takes in events until the answer has ended, or (text_only) until the first text. */
void talk_take_in(bool text_only);
/* Both; the text. */
const char *talk_answer(struct pp_generate_request r);
/* The event of a kind that comes next; others are let go. pp_event_free. */
struct pp_event *talk_event(enum pp_event_type type);
/* Lets events go until a notice has this text. */
void talk_wait_notice(const char *text);

#endif
