/* test_backend_fake.c - the fake backend of the controller's tests. Has no tests of its own. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "tests/backend_fake.h"

static struct fake_backend fake;

static void send_event(struct pp_event *e)
{
    assert_non_null(e);
    assert_true(pp_queue_push(fake.events, e));
}

static void fake_load(struct pp_backend *b, const struct pp_load_request *r)
{
    (void)b;
    fake.loads++;
    snprintf(fake.loaded, sizeof fake.loaded, "%s", r->model);
    snprintf(fake.loaded_draft, sizeof fake.loaded_draft, "%s", r->draft ? r->draft : "");
}

/* The promise of the controller: what the user wrote is committed before the model sees it. */
static bool is_committed(const struct pp_generate_request *r)
{
    struct pp_store *st;
    struct pp_message *list;
    size_t n;
    bool good = false;
    if (pp_store_open_to_read(fake.db, &st, NULL) != PP_OK)
        return false;
    if (pp_store_branch(st, r->message_id, &list, &n, NULL) == PP_OK) {
        good = n >= 2 && list[n - 1].role == PP_ROLE_ASSISTANT && list[n - 2].role == PP_ROLE_USER &&
               list[n - 2].content_len > 0;
        pp_message_list_free(list, n);
    }
    pp_store_close(st);
    return good;
}

static void label(const struct pp_generate_request *r, char out[static 128])
{
    struct pp_adapter_mix set = {0};
    for (int i = 0; i < r->n_adapters; i++)
        assert_true(pp_adapter_mix_add(&set, r->adapters[i].path, r->adapters[i].scale));
    pp_adapter_mix_label(&set, out, 128);
}

static void note_asked(const struct pp_generate_request *r)
{
    if (fake.generations > (int)(sizeof fake.asked / sizeof *fake.asked))
        return;
    struct fake_asked *a = &fake.asked[fake.generations - 1];
    *a = (struct fake_asked){.request = r->request, .seed = r->sampling.seed, .message_id = r->message_id};
    label(r, a->adapters);
}

static void fake_generate(struct pp_backend *b, const struct pp_generate_request *r)
{
    (void)b;
    fake.generations++;
    note_asked(r);
    fake.request = r->request;
    fake.message_id = r->message_id;
    snprintf(fake.messages, sizeof fake.messages, "%s", r->messages_json);
    snprintf(fake.continue_text, sizeof fake.continue_text, "%s", r->continue_text ? r->continue_text : "");
    fake.continue_tokens = r->continue_tokens;
    struct pp_buf drafted = {0};
    if (r->continue_drafted)
        pp_draft_runs_json(r->continue_drafted, &drafted);
    snprintf(fake.continue_drafted, sizeof fake.continue_drafted, "%s", pp_buf_cstr(&drafted));
    pp_buf_free(&drafted);
    snprintf(fake.continue_reasoning, sizeof fake.continue_reasoning, "%s",
             r->continue_reasoning ? r->continue_reasoning : "");
    fake.skip_reasoning = r->skip_reasoning;
    fake.no_snapshots = r->no_snapshots;
    fake.thinking = r->thinking;
    snprintf(fake.template_source, sizeof fake.template_source, "%s", r->template_source ? r->template_source : "");
    snprintf(fake.key, sizeof fake.key, "%s", r->session_key ? r->session_key : "");
    fake.overflow = r->overflow;
    fake.background = r->background;
    fake.sampling = r->sampling;
    fake.max_tokens = r->max_tokens;
    fake.n_adapters = r->n_adapters;
    fake.scale = r->n_adapters ? r->adapters[0].scale : 0;
    fake.use_draft = r->use_draft;
    fake.lookup = r->lookup;
    fake.draft_max = r->draft_max;
    fake.draft_always = r->draft_always;
    fake.draft_p_min = r->draft_p_min;
    fake.committed = is_committed(r);
}

static void fake_cancel(struct pp_backend *b, uint64_t request)
{
    (void)b;
    fake.cancels++;
    fake.cancelled = request;
}

static void fake_show(struct pp_backend *b, const char *key)
{
    (void)b;
    snprintf(fake.shown, sizeof fake.shown, "%s", key ? key : "");
}

static void fake_prepare(struct pp_backend *b, const struct pp_generate_request *r)
{
    (void)b;
    fake.preparations++;
    snprintf(fake.prepared, sizeof fake.prepared, "%s %s", r->session_key, r->messages_json);
}

static void fake_leave(struct pp_backend *b, const char *key)
{
    (void)b;
    fake.leaves++;
    snprintf(fake.left, sizeof fake.left, "%s", key);
}

static void fake_forget(struct pp_backend *b, const char *key)
{
    (void)b;
    fake.forgets++;
    snprintf(fake.forgotten, sizeof fake.forgotten, "%s", key);
}

static bool fake_inspect_draft(struct pp_backend *b, const char *path)
{
    (void)b;
    fake.drafter_inspections++;
    if (fake.deaf)
        return false;
    snprintf(fake.drafter_inspected, sizeof fake.drafter_inspected, "%s", path);
    return true;
}

static void fake_use_draft(struct pp_backend *b, const char *path)
{
    (void)b;
    snprintf(fake.drafter, sizeof fake.drafter, "%s", path);
}

static bool fake_inspect(struct pp_backend *b, const char *adapter)
{
    (void)b;
    fake.inspections++;
    if (fake.deaf)
        return false;
    snprintf(fake.inspected, sizeof fake.inspected, "%s", adapter);
    return true;
}

static bool fake_price(struct pp_backend *b, const struct pp_generate_request *r)
{
    (void)b;
    fake.prices++;
    if (fake.deaf)
        return false;
    fake.price_request = r->request;
    label(r, fake.price_of);
    snprintf(fake.price_messages, sizeof fake.price_messages, "%s", r->messages_json);
    return true;
}

static void fake_close(struct pp_backend *b)
{
    (void)b;
    fake.closes++;
    if (!fake.hold_close)
        send_event(pp_event_new(PP_EVENT_CLOSED));
}

static void fake_free(struct pp_backend *b)
{
    (void)b;
}

static const struct pp_backend_ops fake_ops = {
    .name = "fake",
    .load = fake_load,
    .generate = fake_generate,
    .cancel = fake_cancel,
    .show = fake_show,
    .prepare = fake_prepare,
    .leave = fake_leave,
    .forget = fake_forget,
    .inspect = fake_inspect,
    .inspect_draft = fake_inspect_draft,
    .draft = fake_use_draft,
    .cost = fake_price,
    .close = fake_close,
    .free = fake_free,
};

static enum pp_code fake_start(struct pp_queue *events, struct pp_io *io, const char *cache_dir,
                               struct pp_backend **out, struct pp_error *err)
{
    const char *db = fake.db;
    (void)cache_dir, (void)err;
    fake = (struct fake_backend){.base.ops = &fake_ops, .events = events, .io = io, .db = db};
    *out = &fake.base;
    return PP_OK;
}

/* --- fixture ---------------------------------------------------------------------------------------------- */

void fixture_init(struct fixture *f)
{
    static int serial;
    struct pp_error err;
    memset(f, 0, sizeof *f);
    f->fake = &fake;
    struct pp_paths *p = &f->paths;
    snprintf(p->data, sizeof p->data, "%s/controller-%d", test_tmpdir(), serial++);
    snprintf(p->config, sizeof p->config, "%.400s/config", p->data);
    snprintf(p->state, sizeof p->state, "%.400s/state", p->data);
    snprintf(p->cache, sizeof p->cache, "%.400s/cache", p->data);
    snprintf(p->db, sizeof p->db, "%s/pippin.db", p->data);
    assert_ok(pp_make_dirs(p->data, &err), err);
    snprintf(f->model, sizeof f->model, "%s/model.gguf", p->data);
    assert_ok(pp_write_file(f->model, "x", 1, 0600, &err), err);
    f->o = (struct pp_options){
        .command = "chat", .model = f->model, .draft_max = 4, .n_predict = -1, .sampling = pp_sampling_default()};
    fake.db = p->db;
}

enum pp_code fixture_start(struct fixture *f, struct pp_error *err)
{
    return pp_controller_new_with(&f->o, &f->paths, fake_start, &f->c, err);
}

void fixture_ready(struct fixture *f)
{
    struct pp_error err;
    assert_ok(fixture_start(f, &err), err);
    assert_int_equal(fixture_state(f), PP_STATE_LOADING);
    fake_loaded(f);
    pump_until(f, fixture_state(f) == PP_STATE_IDLE);
}

void fixture_stop(struct fixture *f)
{
    pp_controller_free(f->c);
    f->c = NULL;
}

void fixture_remove(struct fixture *f)
{
    fixture_stop(f);
}

void fixture_pump(struct fixture *f)
{
    struct pollfd p = {.fd = pp_controller_fd(f->c), .events = POLLIN};
    (void)poll(&p, 1, 10);
    pp_controller_pump(f->c);
}

enum pp_state fixture_state(const struct fixture *f)
{
    return pp_controller_status(f->c)->state;
}

void fake_loaded(struct fixture *f)
{
    (void)f;
    struct pp_event *e = pp_event_new(PP_EVENT_LOADED);
    assert_non_null(e);
    e->info = pp_calloc(1, sizeof *e->info);
    assert_non_null(e->info);
    *e->info = (struct pp_loaded){.name = "toy",
                                  .n_vocab = 256,
                                  .type_name = "F32",
                                  .draft_name = "toy draft",
                                  .kernels = "scalar",
                                  .n_threads = 1,
                                  .n_ctx = 512,
                                  .n_ctx_train = 2048,
                                  .thinking_choices = fake.thinking_choices};
    snprintf(e->info->path, sizeof e->info->path, "%.500s", f->model);
    send_event(e);
}

void fake_choose(struct fixture *f, int generation)
{
    assert_in_range(generation, 0, f->fake->generations - 1);
    fake.request = fake.asked[generation].request;
    fake.message_id = fake.asked[generation].message_id;
}

static void send_text(const char *text, int n, const struct pp_draft_runs *drafted)
{
    struct pp_event *e = pp_event_new(PP_EVENT_TEXT);
    assert_non_null(e);
    pp_draft_runs_append(&e->drafted, drafted);
    pp_io_answer_add(fake.io, fake.message_id, PP_PART_ANSWER, text, strlen(text));
    e->request = fake.request;
    e->text = pp_strdup(text);
    e->text_len = strlen(text);
    e->n = n;
    e->thoughts.n_tokens = fake.thoughts.n_tokens;
    e->thoughts.ns = fake.thoughts.ns;
    e->stats.decode_tokens = (uint64_t)n;
    e->stats.decode_ns = 1000000;
    send_event(e);
}

void fake_text(struct fixture *f, const char *text, int n)
{
    struct pp_draft_runs none = {0};
    (void)f;
    pp_draft_runs_add(&none, strlen(text), false);
    send_text(text, n, &none);
    pp_draft_runs_free(&none);
}

void fake_drafted(struct fixture *f, const char *text, size_t from, size_t n)
{
    struct pp_draft_runs drafted = {0};
    (void)f;
    pp_draft_runs_add(&drafted, from, false);
    pp_draft_runs_add(&drafted, n, true);
    pp_draft_runs_fit(&drafted, strlen(text));
    send_text(text, 1, &drafted);
    pp_draft_runs_free(&drafted);
}

void fake_think(struct fixture *f, const char *text, bool going_on, bool text_was_reasoning, int n_tokens)
{
    struct pp_event *e = pp_event_new(PP_EVENT_TEXT);
    (void)f;
    assert_non_null(e);
    if (text_was_reasoning)
        pp_io_answer_add(fake.io, fake.message_id, PP_PART_TEXT_WAS_REASONING, "", 0);
    pp_io_answer_add(fake.io, fake.message_id, PP_PART_REASONING, text, strlen(text));
    e->request = fake.request;
    e->n = 1;
    e->thoughts = (struct pp_thoughts){pp_strdup(text), strlen(text), text_was_reasoning, going_on, n_tokens,
                                       (uint64_t)n_tokens * 500000000u};
    fake.thoughts = e->thoughts;
    send_event(e);
}

void fake_adapter(struct fixture *f, const char *misfit)
{
    (void)f;
    struct pp_event *e = pp_event_new(PP_EVENT_ADAPTER);
    assert_non_null(e);
    e->text = pp_strdup(fake.inspected);
    if (misfit) {
        pp_fail(&e->err, PP_ERR_MISMATCH, "%s", misfit);
    } else {
        e->adapter = pp_calloc(1, sizeof *e->adapter);
        assert_non_null(e->adapter);
        *e->adapter = (struct pp_adapter_facts){.rank = 8, .n_targets = 14, .bytes = 1000, .targets = "attn_q",
                                                     .places = fake.places};
    }
    send_event(e);
}

void fake_drafter(struct fixture *f, const char *misfit)
{
    (void)f;
    struct pp_event *e = pp_event_new(PP_EVENT_DRAFTER);
    assert_non_null(e);
    e->text = pp_strdup(fake.drafter_inspected);
    if (misfit) {
        pp_fail(&e->err, PP_ERR_MISMATCH, "%s", misfit);
    } else {
        e->drafter = pp_calloc(1, sizeof *e->drafter);
        assert_non_null(e->drafter);
        e->drafter->share = 0.25f;
    }
    send_event(e);
}

void fake_draft(struct fixture *f, const char *misfit)
{
    struct pp_event *e = pp_event_new(PP_EVENT_DRAFT);
    assert_non_null(e);
    if (misfit) {
        pp_fail(&e->err, PP_ERR_MISMATCH, "%s", misfit);
    } else {
        e->info = pp_calloc(1, sizeof *e->info);
        assert_non_null(e->info);
        *e->info = pp_controller_status(f->c)->model;
        snprintf(e->info->draft_path, sizeof e->info->draft_path, "%.511s", fake.drafter);
        snprintf(e->info->draft_name, sizeof e->info->draft_name, "%s", "small");
    }
    send_event(e);
}

void fake_cost(struct fixture *f, uint64_t total, uint64_t cached)
{
    (void)f;
    struct pp_event *e = pp_event_new(PP_EVENT_COST);
    assert_non_null(e);
    e->request = fake.price_request;
    e->total = total;
    e->cached = cached;
    send_event(e);
}

void fake_no_cost(struct fixture *f)
{
    (void)f;
    struct pp_event *e = pp_event_new(PP_EVENT_COST);
    assert_non_null(e);
    e->request = fake.price_request;
    pp_fail(&e->err, PP_ERR_NOT_FOUND, "there is no such adapter");
    send_event(e);
}

void fake_overflow(struct fixture *f, int n, bool done)
{
    struct pp_event *e = pp_event_new(PP_EVENT_OVERFLOW);
    (void)f;
    assert_non_null(e);
    e->request = fake.request;
    e->n = n;
    e->done = done;
    send_event(e);
}

void fake_done(struct fixture *f, enum pp_finish finish, enum pp_code code)
{
    struct pp_event *e = pp_event_new(PP_EVENT_DONE);
    (void)f;
    assert_non_null(e);
    pp_io_answer_end(fake.io, fake.message_id,
                     code == PP_OK              ? PP_MESSAGE_COMPLETE
                     : code == PP_ERR_CANCELLED ? PP_MESSAGE_CANCELLED
                                                : PP_MESSAGE_PARTIAL,
                     fake.stats ? fake.stats : "{\"decode_tps\":50.0}", 3);
    e->request = fake.request;
    e->finish = finish;
    e->stats = fake.done;
    if (code != PP_OK)
        pp_fail(&e->err, code, "the fake was told to fail");
    send_event(e);
}

void fixture_turn(struct fixture *f, const char *question, const char *answer)
{
    assert_true(pp_controller_send(f->c, question));
    pump_until(f, fixture_state(f) == PP_STATE_PREFILL);
    fake_text(f, answer, 1);
    fake_done(f, PP_FINISH_END, PP_OK);
    pump_until(f, fixture_state(f) == PP_STATE_IDLE);
}

/* --- the shared one --------------------------------------------------------------------------------------- */

struct fixture fix;

int fix_setup(void **state)
{
    (void)state;
    fixture_init(&fix);
    return 0;
}

int fix_setup_ready(void **state)
{
    fix_setup(state);
    fixture_ready(&fix);
    return 0;
}

int fix_teardown(void **state)
{
    (void)state;
    fixture_remove(&fix);
    return 0;
}

const struct pp_status *fix_status(void)
{
    return pp_controller_status(fix.c);
}

const struct pp_chat_message *fix_message(size_t i)
{
    const struct pp_chat_message *m = pp_controller_message(fix.c, i);
    assert_non_null(m);
    return m;
}

enum pp_slash fix_slash(const char *line)
{
    char arg[128];
    return pp_controller_slash(fix.c, line, arg, sizeof arg);
}

struct pp_store *fix_store(void)
{
    struct pp_store *st;
    struct pp_error err;
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    return st;
}

int64_t fix_ask(const char *question)
{
    assert_true(pp_controller_send(fix.c, question));
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
    return pp_controller_session_id(fix.c);
}

void fix_answer(const char *text)
{
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
    assert_true(fix.fake->committed);
    fake_text(&fix, text, 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
}

/* --- a job that only comes back --------------------------------------------------------------------------- */

struct flush {
    struct pp_job job;
    bool *done;
};

static void flush_run(struct pp_job *job, struct pp_store *st)
{
    (void)job, (void)st;
}

static void flush_done(struct pp_job *job, void *controller)
{
    (void)controller;
    *((struct flush *)job)->done = true;
    free(job);
}

static void flush_release(struct pp_job *job)
{
    free(job);
}

void fixture_flush(struct fixture *f)
{
    bool done = false;
    struct flush *j = calloc(1, sizeof *j);
    assert_non_null(j);
    j->job = (struct pp_job){.run = flush_run, .done = flush_done, .release = flush_release};
    j->done = &done;
    pp_io_post(fake.io, &j->job);
    pump_until(f, done);
}
