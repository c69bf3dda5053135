/* test_controller_random.c - random user actions at random moments, with a backend that answers in any order: in the
 * end the screen and the database must agree, and nothing may be left of work that was under way.
 *
 * PIPPIN_SEED=N starts with the run of that seed, PIPPIN_SEEDS=N sets the number of runs; with PIPPIN_TRACE each step
 * is written to stderr. The program's real threads run, so one seed need not always take the same course. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "tests/backend_fake.h"

enum { MOST_LIVE = 64 };

static struct rig {
    struct pp_backend base; /* must be the first member */
    struct pp_queue *events;
    struct pp_io *io;
    struct live {
        uint64_t request;
        int64_t message;
        bool cancelled, thought;
        int said;
    } live[MOST_LIVE];
    int n_live;
    int loading, inspecting, pricing, drafting; /* requests to which the backend still owes an answer */
    char inspected[8][600];
    uint64_t priced[256];
    bool engine;
    struct pp_paths paths;
    struct pp_options o;
    char model[2][600];
    struct pp_controller *c;
    uint64_t dice, serial;
    int words;
    bool trace;
} rig;

static unsigned roll(unsigned n)
{
    rig.dice = rig.dice * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (unsigned)(rig.dice >> 33) % n;
}

/* --- the backend ------------------------------------------------------------------------------------------ */

static void on_load(struct pp_backend *b, const struct pp_load_request *r)
{
    (void)b, (void)r;
    rig.loading++;
}

static void on_generate(struct pp_backend *b, const struct pp_generate_request *r)
{
    (void)b;
    assert_true(rig.n_live < MOST_LIVE);
    rig.live[rig.n_live++] = (struct live){.request = r->request, .message = r->message_id};
}

static void on_cancel(struct pp_backend *b, uint64_t request)
{
    (void)b;
    for (int i = 0; i < rig.n_live; i++)
        if (!request || rig.live[i].request == request)
            rig.live[i].cancelled = true;
}

static void on_show(struct pp_backend *b, const char *key) { (void)b, (void)key; }
static void on_prepare(struct pp_backend *b, const struct pp_generate_request *r) { (void)b, (void)r; }
static void on_leave(struct pp_backend *b, const char *key) { (void)b, (void)key; }
static void on_forget(struct pp_backend *b, const char *key) { (void)b, (void)key; }
static void on_free(struct pp_backend *b) { (void)b; }

static bool on_inspect(struct pp_backend *b, const char *path)
{
    (void)b;
    assert_true(rig.inspecting < 8);
    snprintf(rig.inspected[rig.inspecting++], 600, "%s", path);
    return true;
}

static bool on_cost(struct pp_backend *b, const struct pp_generate_request *r)
{
    (void)b;
    assert_true(rig.pricing < 256);
    rig.priced[rig.pricing++] = r->request;
    return true;
}

static void send_event(struct pp_event *e)
{
    assert_non_null(e);
    assert_true(pp_queue_push(rig.events, e));
}

static void drop_live(int i)
{
    memmove(&rig.live[i], &rig.live[i + 1], (size_t)(rig.n_live - i - 1) * sizeof *rig.live);
    rig.n_live--;
}

static void done(int i, enum pp_finish finish, enum pp_code code)
{
    const struct live l = rig.live[i];
    struct pp_event *e = pp_event_new(PP_EVENT_DONE);
    assert_non_null(e);
    if (l.message)
        pp_io_answer_end(rig.io, l.message,
                         code == PP_OK              ? PP_MESSAGE_COMPLETE
                         : code == PP_ERR_CANCELLED ? PP_MESSAGE_CANCELLED
                                                    : PP_MESSAGE_PARTIAL,
                         "{\"decode_tps\":50.0}", l.said);
    e->request = l.request;
    e->finish = finish;
    if (code)
        pp_fail(&e->err, code, "the answer was made to fail");
    drop_live(i);
    send_event(e);
}

static void on_close(struct pp_backend *b)
{
    (void)b;
    while (rig.n_live)
        done(0, PP_FINISH_NONE, PP_ERR_CANCELLED);
    send_event(pp_event_new(PP_EVENT_CLOSED));
}

static const struct pp_backend_ops ops = {
    .name = "random", .load = on_load, .generate = on_generate, .cancel = on_cancel, .show = on_show,
    .prepare = on_prepare, .leave = on_leave, .forget = on_forget, .inspect = on_inspect, .cost = on_cost,
    .close = on_close, .free = on_free,
};

static enum pp_code backend_start(struct pp_queue *events, struct pp_io *io, const char *cache_dir,
                                  struct pp_backend **out, struct pp_error *err)
{
    (void)cache_dir, (void)err;
    rig.base.ops = &ops;
    rig.events = events;
    rig.io = io;
    *out = &rig.base;
    return PP_OK;
}

static void say(int i, bool reasoning)
{
    char text[64];
    struct live *l = &rig.live[i];
    struct pp_event *e = pp_event_new(PP_EVENT_TEXT);
    assert_non_null(e);
    snprintf(text, sizeof text, "w%d ", rig.words++);
    const bool back = !reasoning && !l->thought && l->said == 1 && roll(6) == 0;
    if (l->message && back)
        pp_io_answer_add(rig.io, l->message, PP_PART_TEXT_WAS_REASONING, "", 0);
    if (l->message)
        pp_io_answer_add(rig.io, l->message, reasoning || back ? PP_PART_REASONING : PP_PART_ANSWER, text,
                         strlen(text));
    l->thought = l->thought || reasoning;
    e->request = l->request;
    e->n = 1;
    e->stats.decode_tokens = (uint64_t)++l->said;
    e->stats.decode_ns = 1000000;
    e->thoughts.text_was_reasoning = back;
    if (reasoning || back) {
        e->thoughts.text = pp_strdup(text);
        e->thoughts.len = strlen(text);
        e->thoughts.going_on = true;
    } else {
        e->text = pp_strdup(text);
        e->text_len = strlen(text);
        pp_draft_runs_add(&e->drafted, e->text_len, roll(2));
    }
    send_event(e);
}

static void loaded(void)
{
    const bool good = !rig.engine || roll(3);
    struct pp_event *e = pp_event_new(good ? PP_EVENT_LOADED : PP_EVENT_LOAD_FAILED);
    assert_non_null(e);
    rig.loading--;
    while (rig.n_live) /* answers that are written with the model before */
        done(0, PP_FINISH_END, PP_OK);
    rig.engine = true;
    e->info = pp_calloc(1, sizeof *e->info);
    assert_non_null(e->info);
    *e->info = (struct pp_loaded){.name = "toy", .n_vocab = 256, .type_name = "F32", .kernels = "scalar",
                                  .n_threads = 1, .n_ctx = 512, .n_ctx_train = 2048};
    snprintf(e->info->path, sizeof e->info->path, "%.500s", rig.model[roll(2)]);
    if (!good)
        pp_fail(&e->err, PP_ERR_FORMAT, "no good");
    send_event(e);
}

static void inspected(void)
{
    struct pp_event *e = pp_event_new(PP_EVENT_ADAPTER);
    assert_non_null(e);
    e->text = pp_strdup(rig.inspected[0]);
    if (roll(4)) {
        e->adapter = pp_calloc(1, sizeof *e->adapter);
        assert_non_null(e->adapter);
    } else {
        pp_fail(&e->err, PP_ERR_MISMATCH, "it is of another size");
    }
    memmove(rig.inspected[0], rig.inspected[1], 7 * sizeof rig.inspected[0]);
    rig.inspecting--;
    send_event(e);
}

static void priced(void)
{
    struct pp_event *e = pp_event_new(PP_EVENT_COST);
    assert_non_null(e);
    e->request = rig.priced[0];
    e->total = 100;
    memmove(rig.priced, rig.priced + 1, sizeof rig.priced - sizeof *rig.priced);
    rig.pricing--;
    send_event(e);
}

static void overflow(int i)
{
    struct pp_event *e = pp_event_new(PP_EVENT_OVERFLOW);
    assert_non_null(e);
    e->request = rig.live[i].request;
    e->n = 1 + (int)roll(3);
    e->done = roll(2);
    const bool ends = !e->done;
    send_event(e);
    if (ends)
        done(i, PP_FINISH_NONE, PP_ERR_CONTEXT);
}

/* Sends something from the backend, if anything is under way. */
static void backend_acts(void)
{
    if (rig.loading && roll(3) == 0)
        loaded();
    if (rig.inspecting && roll(2))
        inspected();
    if (rig.pricing && roll(2))
        priced();
    if (!rig.n_live)
        return;
    const int i = (int)roll((unsigned)rig.n_live);
    if (rig.live[i].cancelled) {
        if (roll(2))
            done(i, PP_FINISH_NONE, PP_ERR_CANCELLED);
        return;
    }
    switch (roll(12)) {
    case 0: done(i, PP_FINISH_END, PP_OK); break;
    case 1: done(i, roll(2) ? PP_FINISH_LENGTH : PP_FINISH_CONTEXT, PP_OK); break;
    case 2: roll(4) ? say(i, false) : done(i, PP_FINISH_NONE, PP_ERR_IO); break;
    case 3: rig.live[i].said ? say(i, false) : overflow(i); break;
    default: say(i, rig.live[i].said < 3 && roll(4) == 0);
    }
}

/* --- the user --------------------------------------------------------------------------------------------- */

static void pump(int ms)
{
    struct pollfd p = {.fd = pp_controller_fd(rig.c), .events = POLLIN};
    (void)poll(&p, 1, ms);
    pp_controller_pump(rig.c);
    const struct pp_status *s = pp_controller_status(rig.c);
    if (s->notice_serial != rig.serial && rig.trace)
        fprintf(stderr, "notice %d: %s\n", s->notice_is_error, s->notice);
    rig.serial = s->notice_serial;
    pp_free(pp_controller_take_unsent(rig.c));
    pp_free(pp_controller_take_refused(rig.c));
}

static int64_t some_session(void)
{
    const struct pp_session *s = pp_controller_session_at(rig.c, roll(6));
    return s ? s->id : 0;
}

static void user_acts(void)
{
    struct pp_controller *c = rig.c;
    char text[64], two[] = "a b";
    size_t n = pp_controller_n_messages(c), n_adapters;
    const unsigned what = roll(34);
    int64_t id = 0;
    snprintf(text, sizeof text, "q%d", rig.words++);
    if (rig.trace)
        fprintf(stderr, "act %u (%s) state %d session %lld n %zu live %d switching %d then %d\n", what, text,
                (int)pp_controller_status(c)->state, (long long)pp_controller_session_id(c), n, rig.n_live,
                c->switching, (int)c->then);
    switch (what) {
    case 0: pp_controller_new_session(c); break;
    case 1: pp_controller_fork(c, (int)roll(2)); break;
    case 2: pp_controller_regenerate(c, 1 + (int)roll(3)); break;
    case 3: case 4: case 5: if ((id = some_session())) pp_controller_open(c, id); break;
    case 6: if (roll(2) && (id = some_session())) pp_controller_delete(c, id); break;
    case 7: if (roll(3) == 0) pp_controller_delete(c, 0); break;
    case 8: pp_controller_undo(c, 1 + (int)roll(2)); break;
    case 9: pp_controller_redo(c); break;
    case 10: if (n) pp_controller_edit(c, roll((unsigned)n), text); break;
    case 11: case 12: pp_controller_cancel(c); break;
    case 13: if (n) pp_controller_sibling(c, roll((unsigned)n), roll(2) ? 1 : -1); break;
    case 14: if (n) pp_controller_sibling(c, n - 1, roll(2) ? 1 : -1); break;
    case 15: pp_controller_continue(c); break;
    case 16: pp_controller_compact(c); break;
    case 17: pp_controller_overflow(c, (enum pp_overflow)roll(5)); break;
    case 18: pp_controller_set_overflow(c, pp_overflow_name((enum pp_overflow)roll(5))); break;
    case 19: pp_controller_rename(c, roll(2) ? some_session() : 0, text); break;
    case 20: case 21: pp_controller_refresh_sessions(c, roll(4) ? "" : "w1"); break;
    case 22: if (roll(4) == 0) pp_controller_load(c, rig.model[roll(2)]); break;
    case 23:
        pp_controller_adapters(c, &n_adapters);
        if (n_adapters)
            pp_controller_set_adapter(c, roll((unsigned)n_adapters), roll(2), (float)roll(3));
        break;
    case 24: pp_controller_inspect_adapters(c); break;
    case 25: pp_controller_switch_cost(c, roll(3)); break;
    case 26: pp_controller_compare(c, two); break;
    case 27: pp_controller_set_persona(c, roll(3)); break;
    case 28: if (n) pp_controller_show_branch_of(c, pp_controller_message(c, roll((unsigned)n))->id); break;
    case 29: if (roll(4) == 0) pp_controller_set_temporary(c, roll(2)); break;
    default: pp_controller_send(c, text);
    }
}

/* --- what must be so -------------------------------------------------------------------------------------- */

static void rest(void)
{
    for (int tries = 0; tries < 3000; tries++) {
        while (rig.loading)
            loaded();
        while (rig.inspecting)
            inspected();
        while (rig.pricing)
            priced();
        while (rig.n_live)
            rig.live[0].cancelled ? done(0, PP_FINISH_NONE, PP_ERR_CANCELLED) : done(0, PP_FINISH_END, PP_OK);
        pump(1);
        const enum pp_state s = pp_controller_status(rig.c)->state;
        if (s == PP_STATE_IDLE && pp_controller_settled(rig.c) && !rig.n_live && !rig.loading && !rig.c->list.busy &&
            !rig.inspecting && tries > 3)
            return;
    }
    fail_msg("it does not come to rest: state %d", (int)pp_controller_status(rig.c)->state);
}

/* Reads the conversation on the screen from the database. */
static struct look {
    struct pp_job job;
    bool came;
    struct pp_session session;
    struct pp_message *list; /* [n] */
    size_t n;
} look;

static void run_look(struct pp_job *job, struct pp_store *st)
{
    job->code = pp_store_session_get(st, look.session.id, &look.session, &job->err);
    if (!job->code)
        job->code = pp_store_branch(st, look.session.head, &look.list, &look.n, &job->err);
}

static void looked(struct pp_job *job, void *controller)
{
    (void)job, (void)controller;
    look.came = true;
}

static void compare(const struct pp_controller *c)
{
    const struct pp_session *s = &look.session;
    assert_ok(look.job.code, look.job.err);
    assert_string_equal(s->key, c->session.key);
    assert_string_equal(s->title, c->session.title);
    assert_string_equal(s->system, c->session.system);
    assert_string_equal(s->settings, c->session.settings);
    assert_string_equal(s->adapters, c->session.adapters);
    assert_int_equal(s->head, c->session.head);
    assert_int_equal(look.n, c->branch.n);
    for (size_t i = 0; i < look.n; i++) {
        const struct pp_chat_message *m = &c->branch.items[i].msg;
        const struct pp_message *stored = &look.list[i];
        assert_int_equal(stored->id, m->id);
        assert_string_equal(stored->content, m->text);
        assert_string_equal(stored->reasoning, m->reasoning);
        assert_int_equal(stored->state, m->state);
        assert_int_equal(stored->sibling, m->sibling);
        assert_int_equal(stored->context_from, m->context_from);
    }
    pp_message_list_free(look.list, look.n);
    pp_session_clear(&look.session);
}

static void check(void)
{
    struct pp_controller *c = rig.c;
    rest();
    if (c->session.id) {
        look = (struct look){.job = {.run = run_look, .done = looked}, .session.id = c->session.id};
        pp_io_post(rig.io, &look.job);
        while (!look.came)
            pump(10);
        compare(c);
    }
    assert_false(c->switching);
    assert_false(c->stepping);
    assert_null(c->running);
    assert_null(c->background);
    assert_int_equal(c->then, THEN_NOTHING);
    assert_int_equal(c->overflow_next.what, CTL_OVERFLOW_NOTHING);
    if (!c->branch.n && c->session.id)
        assert_int_equal(c->session.head, 0);
    assert_true(c->lock_fd >= 0 || !c->session.id || c->temporary);
}

static void one_life(uint64_t seed)
{
    static int serial;
    struct pp_error err;
    char path[700];
    rig = (struct rig){.dice = seed, .trace = getenv("PIPPIN_TRACE") != NULL};
    struct pp_paths *p = &rig.paths;
    snprintf(p->data, sizeof p->data, "%s/random-%d", test_tmpdir(), serial++);
    snprintf(p->config, sizeof p->config, "%.400s/config", p->data);
    snprintf(p->state, sizeof p->state, "%.400s/state", p->data);
    snprintf(p->cache, sizeof p->cache, "%.400s/cache", p->data);
    snprintf(p->db, sizeof p->db, "%s/pippin.db", p->data);
    snprintf(path, sizeof path, "%s/adapters", p->data);
    assert_ok(pp_make_dirs(path, &err), err);
    for (int i = 0; i < 2; i++) {
        snprintf(rig.model[i], sizeof rig.model[i], "%s/m%d.gguf", p->data, i);
        assert_ok(pp_write_file(rig.model[i], "x", 1, 0600, &err), err);
        snprintf(path, sizeof path, "%s/adapters/%s.gguf", p->data, i ? "b" : "a");
        assert_ok(pp_write_file(path, "x", 1, 0600, &err), err);
    }
    rig.o = (struct pp_options){.command = "chat", .model = rig.model[0], .draft_max = 4, .n_predict = -1,
                                .titles = seed % 2 ? "model" : NULL, .sampling = pp_sampling_default()};
    assert_ok(pp_controller_new_with(&rig.o, p, backend_start, &rig.c, &err), err);
    for (int i = 0; i < 400; i++) {
        for (unsigned k = roll(4); k > 0; k--)
            backend_acts();
        if (roll(3))
            pump(roll(4) == 0);
        user_acts();
        if (i % 100 == 99)
            check();
    }
    assert_true(pp_controller_free(rig.c));
}

static void anything_at_any_moment(void **state)
{
    const char *n = getenv("PIPPIN_SEEDS"), *first = getenv("PIPPIN_SEED");
    (void)state;
    const unsigned long from = first ? strtoul(first, NULL, 10) : 1, to = from + (n ? strtoul(n, NULL, 10) : 12);
    for (unsigned long seed = from; seed < to; seed++)
        one_life(seed);
}

TEST_GROUP(controller_random)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anything_at_any_moment),
    };
    return cmocka_run_group_tests_name("controller_random", tests, NULL, NULL);
}
