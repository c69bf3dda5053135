#include "tests/random_user.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

unsigned random_user_roll(struct random_user *u, unsigned n)
{
    u->dice = u->dice * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (unsigned)(u->dice >> 33) % n;
}

static enum pp_state state(const struct random_user *u) { return pp_controller_status(u->c)->state; }

static void tell(struct random_user *u)
{
    if (!u->waiting[0] || state(u) == PP_STATE_SAVING)
        return;
    if (u->saved && (state(u) == PP_STATE_PREFILL || state(u) == PP_STATE_ANSWER))
        u->saved(u->waiting);
    u->waiting[0] = 0;
}

void random_user_pump(struct random_user *u, int ms)
{
    struct pollfd p = {.fd = pp_controller_fd(u->c), .events = POLLIN};
    (void)poll(&p, 1, ms);
    pp_controller_pump(u->c);
    tell(u);
}

static void say(struct random_user *u)
{
    static const char *const topics[] = {"Hello, who are you?", "Tell me about your day.", "What can I order here?",
                                         "Write a short story about a fox in the snow, please."};
    char text[128];
    snprintf(text, sizeof text, "(%lu-%d) %s", u->seed, u->said++, topics[random_user_roll(u, 4)]);
    if (pp_controller_send(u->c, text))
        snprintf(u->waiting, sizeof u->waiting, "%s", text);
}

static void open_one(struct random_user *u)
{
    pp_controller_refresh_sessions(u->c, "");
    for (int i = 0; i < 5; i++)
        random_user_pump(u, 2);
    const struct pp_session *s = pp_controller_session_at(u->c, random_user_roll(u, 6));
    if (s)
        pp_controller_open(u->c, s->id);
}

static void adapters(struct random_user *u)
{
    size_t n;
    pp_controller_adapters(u->c, &n);
    if (n)
        pp_controller_set_adapter(u->c, random_user_roll(u, (unsigned)n), random_user_roll(u, 2), 1);
}

static void edit(struct random_user *u)
{
    char text[64];
    size_t n = pp_controller_n_messages(u->c);
    snprintf(text, sizeof text, "changed %d", u->said++);
    if (n)
        pp_controller_edit(u->c, random_user_roll(u, (unsigned)n), text);
}

static void act(struct random_user *u)
{
    switch (random_user_roll(u, 24)) {
    case 0: pp_controller_new_session(u->c); break;
    case 1: pp_controller_fork(u->c, 0); break;
    case 2: pp_controller_regenerate(u->c, 1 + (int)random_user_roll(u, 3)); break;
    case 3: case 4: open_one(u); break;
    case 5: adapters(u); break;
    case 6: pp_controller_undo(u->c, 1); break;
    case 7: edit(u); break;
    case 8: pp_controller_cancel(u->c); break;
    case 9: pp_controller_set_drafter(u->c, (enum pp_drafter)random_user_roll(u, PP_DRAFTERS)); break;
    case 10:
        if (random_user_roll(u, 3) == 0)
            pp_controller_load(u->c, random_user_roll(u, 3) ? "engine/starter/starter-Q4_K_M.gguf"
                                          : "engine/starter/starter-draft-Q4_0.gguf");
        break;
    case 11: pp_controller_sibling(u->c, pp_controller_n_messages(u->c) - 1, random_user_roll(u, 2) ? 1 : -1); break;
    case 12: pp_controller_continue(u->c); break;
    default: say(u);
    }
}

void random_user_act(struct random_user *u)
{
    unsigned wait = random_user_roll(u, 60);
    for (; wait > 0 && (random_user_roll(u, 8) || state(u) == PP_STATE_SAVING); wait--)
        random_user_pump(u, 2);
    act(u);
}

void random_user_begin(struct random_user *u, const char *folder, unsigned long seed)
{
    struct pp_error err;
    u->dice = u->seed = seed;
    snprintf(u->paths.data, sizeof u->paths.data, "%s", folder);
    snprintf(u->paths.config, sizeof u->paths.config, "%s/config", folder);
    snprintf(u->paths.state, sizeof u->paths.state, "%s/state", folder);
    snprintf(u->paths.cache, sizeof u->paths.cache, "%s/cache", folder);
    snprintf(u->paths.db, sizeof u->paths.db, "%s/pippin.db", folder);
    u->options = (struct pp_options){.command = "chat", .model = "engine/starter/starter-Q4_K_M.gguf", .draft_max = 4,
                                     .n_predict = 40, .ctx_size = 1024, .kv_memory = 12u << 20, .threads = 2,
                                     .resume_latest = seed % 3 != 0, .snapshot_quota = 64u << 20,
                                     .sampling = pp_sampling_default()};
    if (pp_make_dirs(folder, &err) != PP_OK || pp_controller_new(&u->options, &u->paths, &u->c, &err) != PP_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    while (state(u) == PP_STATE_LOADING)
        random_user_pump(u, 10);
}
