/* random_user.h - a random user of the program without its screen: chats, forks, edits, makes alternatives, leaves
 * conversations and comes back, stops answers, switches adapters, drafts and models. */
#ifndef PP_TESTS_RANDOM_USER_H
#define PP_TESTS_RANDOM_USER_H

#include "src/controller.h"
#include "src/options.h"
#include "src/paths.h"

struct random_user {
    struct pp_paths paths;
    struct pp_options options;
    struct pp_controller *c;
    uint64_t dice;
    unsigned long seed;
    int said;
    char waiting[128];  /* a message that was accepted and is being saved */
    /* Called when a message is saved, and the model is about to see it; or NULL. */
    void (*saved)(const char *text);
};

/* Opens the program in a folder and waits for its model. On failure the process ends with 1 and a line on stderr. */
void random_user_begin(struct random_user *u, const char *folder, unsigned long seed);
void random_user_pump(struct random_user *u, int ms);
unsigned random_user_roll(struct random_user *u, unsigned n); /* 0 to n - 1 */
/* Waits a while, then does something. */
void random_user_act(struct random_user *u);

#endif
