/* talk.h - a conversation with the local backend, set up like the chat's: worker, queue of events, io thread and store,
 * with the starter or another model. There is one at a time. */
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
    struct pp_draft_runs drafted;
    int64_t n_reasoning;
    struct pp_event done;
    char notice[512];
    int n_progress;
    uint64_t context_used;
    int dropped;
    bool dropped_done;
    uint64_t quota; /* of snapshots, applied when a model is next loaded */
    bool stays; /* loading failed and the old model was kept */
};
extern struct talk talk;

/* Starts everything, without a model; capacity: the queue's. */
void talk_begin(size_t capacity);
void talk_end(void);
/* Start and stop only the worker. */
void talk_start(void);
void talk_stop(void);
/* Waits for the next event; pp_event_free. */
struct pp_event *talk_next(void);
/* Loads a model and waits; returns the code it ended with. */
enum pp_code talk_load(const char *model, const char *draft, int64_t n_ctx, struct pp_loaded *info);
/* Starts everything with the starter's float weights, and its draft model if `draft`; false: there is no test data. */
bool talk_begin_starter(size_t capacity, bool draft);
/* A request for a greedy answer of at most 48 tokens. */
struct pp_generate_request talk_request(const char *messages);
void talk_post(struct pp_generate_request r);
/* Handles events until the answer has ended, or (text_only) until the first text. */
void talk_take_in(bool text_only);
/* Posts the request and takes in the answer; returns its text. */
const char *talk_answer(struct pp_generate_request r);
/* The next event of this type; others are discarded. pp_event_free. */
struct pp_event *talk_event(enum pp_event_type type);
/* Discards events until a notice contains this text. */
void talk_wait_notice(const char *text);

#endif
