/* test_adapter_chat.c - a conversation with the bundled starter model in which adapters are switched on, off and mixed.
 * Every answer must equal that of a fresh engine that had the same adapters from the start. */
#include <cjson/cJSON.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/controller_int.h"
#include "src/worker.h"
#include "tests/patience.h"
#include "tests/support.h"

#define STARTER "engine/starter/starter-Q4_K_M.gguf"
#define BARD "engine/starter/bard.gguf"
#define BARISTA "engine/starter/barista.gguf"

enum { ANSWER_TOKENS = 24, WAIT_MS = TEST_PATIENCE_MS };

static struct pp_paths paths;
static struct pp_options options;

static void prepare(const char *name)
{
    struct pp_error err;
    snprintf(paths.data, sizeof paths.data, "%s/adapter-chat-%s", test_tmpdir(), name);
    snprintf(paths.config, sizeof paths.config, "%.400s/config", paths.data);
    snprintf(paths.state, sizeof paths.state, "%.400s/state", paths.data);
    snprintf(paths.cache, sizeof paths.cache, "%.400s/cache", paths.data);
    snprintf(paths.db, sizeof paths.db, "%s/pippin.db", paths.data);
    assert_ok(pp_make_dirs(paths.data, &err), err);
    options = (struct pp_options){.command = "chat", .model = STARTER, .draft_max = 4, .n_predict = ANSWER_TOKENS,
                                  .sampling = pp_sampling_default(), .seed_given = true};
    options.threads = 2;
    options.ctx_size = 1024;
    options.kv_type = PP_KV_Q8;
    options.sampling.temp = 0;
    options.sampling.seed = 11;
}

static struct pp_controller *start(void)
{
    struct pp_error err;
    struct pp_controller *c;
    assert_ok(pp_controller_new_with(&options, &paths, pp_worker_start, &c, &err), err);
    return c;
}

/* Waits until nothing is being loaded, saved or written. */
static void settle(struct pp_controller *c)
{
    for (int i = 0; pp_controller_status(c)->state != PP_STATE_IDLE; i++) {
        struct pollfd p = {.fd = pp_controller_fd(c), .events = POLLIN};
        assert_int_not_equal(pp_controller_status(c)->state, PP_STATE_FAILED);
        assert_true(poll(&p, 1, WAIT_MS) > 0);
        pp_controller_pump(c);
    }
}

static void slash(struct pp_controller *c, const char *line)
{
    char arg[16];
    assert_int_equal(pp_controller_slash(c, line, arg, sizeof arg), PP_SLASH_DONE);
}

/* The answer of a new engine to the first n messages, with these adapters from the first token on. */
static char *clean_answer(const struct pp_controller *had, size_t n, const struct pp_adapter_choice *use, int n_use)
{
    struct pp_error err;
    struct pp_queue *events;
    struct pp_io *io;
    struct pp_backend *b;
    struct pp_buf text = {0};
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < n; i++) {
        const struct pp_chat_message *m = pp_controller_message(had, i);
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "role", pp_role_name(m->role));
        cJSON_AddStringToObject(o, "content", m->text);
        cJSON_AddItemToArray(list, o);
    }
    char *json = cJSON_PrintUnformatted(list);
    assert_ok(pp_queue_new(4096, &events, &err), err);
    assert_ok(pp_io_start(":memory:", events, &io, &err), err);
    assert_ok(pp_worker_start(events, io, "", &b, &err), err);
    b->ops->load(b, &(struct pp_load_request){.model = STARTER, .engine = {.n_threads = options.threads,
                                                                           .kv_type = options.kv_type,
                                                                           .n_ctx = options.ctx_size}});
    b->ops->generate(b, &(struct pp_generate_request){.request = 1, .temporary = true, .messages_json = json,
                                                      .adapters = use, .n_adapters = n_use,
                                                      .sampling = options.sampling, .max_tokens = ANSWER_TOKENS});
    for (bool done = false; !done;) {
        struct pp_event *e = pp_queue_pop(events, WAIT_MS);
        assert_non_null(e);
        assert_int_equal(e->err.code, PP_OK);
        if (e->type == PP_EVENT_TEXT)
            pp_buf_add(&text, e->text, e->text_len);
        done = e->type == PP_EVENT_DONE;
        pp_event_free(e);
    }
    b->ops->close(b);
    b->ops->free(b);
    pp_queue_close(events);
    pp_io_stop(io, NULL);
    for (struct pp_event *e; (e = pp_queue_try_pop(events));)
        pp_event_free(e);
    pp_queue_free(events);
    cJSON_free(json);
    cJSON_Delete(list);
    return pp_buf_take(&text);
}

static void ask(struct pp_controller *c, const char *question, const char *adapters)
{
    struct pp_adapter_choice use[PP_MAX_ADAPTERS];
    assert_string_equal(pp_controller_status(c)->adapters, adapters);
    struct pp_adapter_mix set = ctl_set_now(c); /* a copy, since the list is replaced when adapters are searched for
                                                   again */
    int n_use = (int)ctl_set_choices(&set, use);
    assert_true(pp_controller_send(c, question));
    settle(c);
    const struct pp_chat_message *m = pp_controller_message(c, pp_controller_n_messages(c) - 1);
    assert_int_equal(m->state, PP_MESSAGE_COMPLETE);
    assert_string_equal(m->adapters, adapters);
    char *clean = clean_answer(c, pp_controller_n_messages(c) - 1, use, n_use);
    assert_true(m->len > 0);
    assert_string_equal(m->text, clean);
    pp_free(clean);
}

static void switched(void **state)
{
    (void)state;
    if (access(BARD, R_OK) != 0 || access(STARTER, R_OK) != 0)
        skip();
    prepare("switched");
    options.lora[0].path = BARD;
    options.lora[0].scale = 1;
    options.lora[1].path = BARISTA;
    options.lora[1].scale = 1;
    options.n_lora = 2;
    struct pp_controller *c = start();
    settle(c);
    slash(c, "/lora barista off");
    ask(c, "Tell me about the sea.", "bard 1.00");
    slash(c, "/lora off");
    ask(c, "And the rain?", "");
    slash(c, "/lora bard 0.5");
    slash(c, "/lora barista 0.5");
    ask(c, "What do you drink?", "bard 0.50, barista 0.50");
    slash(c, "/lora barista off");
    slash(c, "/lora bard 1");
    ask(c, "Good night.", "bard 1.00"); /* back to the first adapter */
    pp_controller_free(c);
}

/* The file of an adapter disappears while it is on: the answer is marked as written without it, also later on, and the
 * adapter is off. */
static void gone(void **state)
{
    (void)state;
    char path[300], *bytes;
    struct pp_error err;
    size_t n;
    prepare("gone");
    snprintf(path, sizeof path, "%s/mine.gguf", test_tmpdir());
    assert_ok(pp_read_file(BARD, 1 << 28, &bytes, &n, &err), err);
    assert_ok(pp_write_file(path, bytes, n, 0600, &err), err);
    pp_free(bytes);
    options.lora[0].path = path;
    options.lora[0].scale = 1;
    options.n_lora = 1;
    struct pp_controller *c = start();
    settle(c);
    assert_string_equal(pp_controller_status(c)->adapters, "mine 1.00");
    assert_int_equal(unlink(path), 0);
    assert_true(pp_controller_send(c, "Tell me a joke."));
    settle(c);
    assert_string_equal(pp_controller_message(c, 1)->adapters, "");
    assert_string_equal(pp_controller_status(c)->adapters, "");
    assert_non_null(strstr(pp_controller_status(c)->notice, "mine.gguf"));
    pp_controller_free(c);
    options.n_lora = 0;
    options.resume_latest = true;
    c = start();
    settle(c);
    assert_int_equal(pp_controller_n_messages(c), 2);
    assert_string_equal(pp_controller_message(c, 1)->adapters, "");
    assert_string_equal(pp_controller_status(c)->adapters, "");
    pp_controller_free(c);
}

TEST_GROUP(adapter_chat)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(switched), cmocka_unit_test(gone)};
    return cmocka_run_group_tests_name("adapter_chat", tests, NULL, NULL);
}
