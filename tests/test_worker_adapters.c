/* test_worker_adapters.c - adapters and draft models of the local backend: what is asked about them, and how they come
 * and go. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/bench.h"
#include "tests/adapter_folder.h"
#include "tests/support.h"
#include "tests/talk.h"

static void test_adapters(void **state)
{
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    struct pp_adapter_choice bard = {.path = testdata("starter/lora-bard"), .scale = 1};
    struct pp_generate_request r = talk_request(ASK("Tell me about your day."));
    assert_string_equal(talk_answer(r), "It's a good day to live.");
    r.adapters = &bard;
    r.n_adapters = 1;
    assert_string_not_equal(talk_answer(r), "It's a good day to live.");
    assert_int_equal(talk.done.err.code, PP_OK);
    assert_int_equal(talk.done.stats.cached_tokens, 0); /* KV of one set is never read under another */
    bard.scale = 0;
    assert_string_equal(talk_answer(r), "It's a good day to live.");
    bard.path = "/does/not/exist";
    bard.scale = 1;
    assert_string_equal(talk_answer(r), "It's a good day to live.");
    assert_non_null(strstr(talk.notice, "/does/not/exist"));
    talk_end();
}

/* The number of tokens of a request's prompt, and how many of them are cached. */
static uint64_t cost_of(const struct pp_generate_request *r, uint64_t *cached)
{
    talk.backend->ops->cost(talk.backend, r);
    struct pp_event *e = talk_event(PP_EVENT_COST);
    assert_int_equal(e->err.code, PP_OK);
    assert_int_equal(e->request, r->request);
    const uint64_t total = e->total;
    *cached = e->cached;
    pp_event_free(e);
    return total;
}

/* What the menu asks: whether an adapter fits, and what a switch would cost. */
static void test_questions(void **state)
{
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    talk.backend->ops->inspect(talk.backend, testdata("starter/lora-bard"));
    struct pp_event *e = talk_event(PP_EVENT_ADAPTER);
    assert_string_equal(e->text, testdata("starter/lora-bard"));
    assert_non_null(e->adapter);
    assert_string_equal(e->adapter->kind, "LoRA");
    assert_string_equal(e->adapter->base, "pippin-starter");
    assert_int_equal(e->adapter->rank, 16);
    assert_true(e->adapter->n_targets > 0 && strstr(e->adapter->targets, "attn_q"));
    assert_false(e->adapter->idle);
    pp_event_free(e);
    talk.backend->ops->inspect(talk.backend, adapter_never_trained());
    e = talk_event(PP_EVENT_ADAPTER);
    assert_non_null(e->adapter);
    assert_true(e->adapter->idle);
    pp_event_free(e);
    talk.backend->ops->inspect(talk.backend, testdata("architectures/llama/lora-alpha"));
    e = talk_event(PP_EVENT_ADAPTER);
    assert_null(e->adapter);
    assert_int_equal(e->err.code, PP_ERR_MISMATCH);
    assert_non_null(strstr(e->err.text, "attn_q"));
    pp_event_free(e);

    const struct pp_adapter_choice bard = {.path = testdata("starter/lora-bard"), .scale = 1};
    struct pp_generate_request r = talk_request(ASK("Tell me about your day."));
    uint64_t cached, total = cost_of(&r, &cached);
    assert_true(total > 8);
    assert_int_equal(cached, 0);
    talk_answer(r);
    assert_int_equal(talk.done.stats.prompt_tokens, total);
    assert_int_equal(cost_of(&r, &cached), total);
    assert_true(cached >= total - 1); /* the whole prompt is cached */
    r.adapters = &bard;
    r.n_adapters = 1;
    assert_int_equal(cost_of(&r, &cached), total);
    assert_int_equal(cached, 0); /* nothing is cached under this adapter */
    talk_answer(r);
    cost_of(&r, &cached);
    assert_true(cached >= total - 1);
    const struct pp_adapter_choice mad = {.path = bard.path, .scale = 1e38f};
    r.adapters = &mad;
    talk_answer(r);
    assert_int_equal(talk.done.err.code, PP_ERR_FORMAT); /* the adapter's strength is to blame, not the model's file */
    assert_non_null(strstr(talk.done.err.text, "with this adapter computes NaN or infinity; use a smaller scale"));
    talk_end();
}

static bool seen_idle(const char *path)
{
    talk.backend->ops->inspect(talk.backend, path);
    struct pp_event *e = talk_event(PP_EVENT_ADAPTER);
    assert_non_null(e->adapter);
    const bool idle = e->adapter->idle;
    pp_event_free(e);
    return idle;
}

/* An adapter in a folder, as MLX writes it, is read again when either of its files has changed. */
static void changed_folder(void **state)
{
    static const char config[] = "{\"fine_tune_type\":\"lora\",\"lora_parameters\":{\"rank\":4,\"scale\":%d}}";
    enum { WIDTH = 512 }; /* of the bundled starter */
    struct folder mlx = {.random = 5};
    struct pp_loaded info;
    struct pp_error err;
    char text[200], file[400];
    (void)state;
    talk_begin(256);
    assert_int_equal(talk_load("engine/starter/starter-Q4_K_M.gguf", NULL, 0, &info), PP_OK);
    folder_add(&mlx, "model.layers.0.self_attn.q_proj.lora_a", WIDTH, 4, 0, 0.1f);
    folder_add(&mlx, "model.layers.0.self_attn.q_proj.lora_b", 4, WIDTH, 0, 0.1f);
    snprintf(text, sizeof text, config, 3);
    const char *path = folder_write(&mlx, text, "adapters.safetensors");
    folder_empty(&mlx);
    assert_false(seen_idle(path));
    snprintf(text, sizeof text, config, 0);
    snprintf(file, sizeof file, "%s/adapter_config.json", path);
    assert_ok(pp_write_file(file, text, strlen(text), 0600, &err), err);
    assert_true(seen_idle(path));
    /* written anew in its place, as long as before, and within the same second */
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    snprintf(text, sizeof text, config, 3);
    assert_int_equal(strlen(text), st.st_size);
    const int fd = open(file, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0 && pwrite(fd, text, strlen(text), 0) == st.st_size);
    st.st_mtim.tv_nsec ^= 1;
    assert_int_equal(futimens(fd, (struct timespec[]){st.st_mtim, st.st_mtim}), 0);
    close(fd);
    assert_false(seen_idle(path));
    talk_end();
}

/* Overwrites a file with the bytes of another, keeping its time. */
static void write_over(const char *to, const char *from)
{
    struct pp_error err;
    struct stat st;
    char *bytes;
    size_t n;
    assert_ok(pp_read_file(from, 1 << 24, &bytes, &n, &err), err);
    assert_int_equal(stat(to, &st), 0);
    assert_int_equal(n, st.st_size);
    const int fd = open(to, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0 && pwrite(fd, bytes, n, 0) == st.st_size);
    assert_int_equal(futimens(fd, (struct timespec[]){st.st_mtim, st.st_mtim}), 0);
    close(fd);
    pp_free(bytes);
}

/* An adapter's file that changes while the adapter is on is read again for the next answer. That is reported once, and
 * nothing that was computed with the old one is used. */
static void changed_while_on(void **state)
{
    static const char bard[] = "engine/starter/bard.gguf", alone[] = "It's a good day to live.";
    struct pp_error err;
    char *bytes;
    size_t n;
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    const struct pp_adapter_choice own = {.path = fresh_path("own.gguf"), .scale = 1};
    assert_ok(pp_read_file(bard, 1 << 24, &bytes, &n, &err), err);
    assert_ok(pp_write_file(own.path, bytes, n, 0600, &err), err);
    pp_free(bytes);
    struct pp_generate_request r = talk_request(ASK("Tell me about your day."));
    r.adapters = &own;
    r.n_adapters = 1;
    char *as_bard = pp_strdup(talk_answer(r));
    assert_string_not_equal(as_bard, alone);
    assert_string_equal(talk_answer(r), as_bard);
    assert_true(talk.done.stats.cached_tokens > 0);
    assert_string_equal(talk.notice, "");
    write_over(own.path, adapter_never_trained());
    assert_string_equal(talk_answer(r), alone);
    assert_int_equal(talk.done.stats.cached_tokens, 0);
    assert_non_null(strstr(talk.notice, "its matrices or its alpha are all zero")); /* the second of two notices */
    write_over(own.path, bard);
    assert_string_equal(talk_answer(r), as_bard);
    assert_non_null(strstr(talk.notice, "own has changed; the new one is used from now on"));
    talk.notice[0] = 0;
    write_over(own.path, bard); /* the same bytes: nothing changes */
    assert_string_equal(talk_answer(r), as_bard);
    assert_true(talk.done.stats.cached_tokens > 0);
    assert_string_equal(talk.notice, "");
    pp_free(as_bard);
    talk_end();
}

/* If the prompt does not invoke an activated LoRA, that is reported once. */
static void uninvoked(void **state)
{
    enum { WIDTH = 512, RANK = 4 }; /* of the bundled starter */
    struct folder f = {.random = 6};
    struct pp_loaded info;
    (void)state;
    talk_begin(256);
    assert_int_equal(talk_load("engine/starter/starter-Q4_K_M.gguf", NULL, 0, &info), PP_OK);
    folder_add(&f, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", RANK, WIDTH, 0, 0.1f);
    folder_add(&f, "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", WIDTH, RANK, 0, 0.1f);
    const struct pp_adapter_choice activated = {
        .path = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"alora_invocation_tokens\":[1,1,1]}"),
        .scale = 1};
    struct pp_generate_request r = talk_request(HELLO);
    folder_empty(&f);
    r.adapters = &activated;
    r.n_adapters = 1;
    r.max_tokens = 2;
    talk_answer(r);
    assert_non_null(strstr(talk.notice, " has no effect here: the prompt does not contain the tokens that invoke it"));
    talk.notice[0] = 0;
    talk_answer(r);
    assert_string_equal(talk.notice, "");
    talk_end();
}

/* Adapters that were only inspected are released, those that conversations use are kept. No cost is reported for a set
 * that cannot be used. */
static void many_adapters(void **state)
{
    enum { LOOKED_AT = 160 };
    char path[300], *bundled = realpath("engine/starter/bard.gguf", NULL);
    struct pp_loaded info;
    uint64_t cached, total = 0;
    (void)state;
    talk_begin(256);
    assert_int_equal(talk_load("engine/starter/starter-Q4_K_M.gguf", NULL, 0, &info), PP_OK);
    assert_non_null(bundled);
    struct pp_adapter_choice use[2] = {{.path = bundled, .scale = 1}};
    struct pp_generate_request r = talk_request(ASK("Tell me about your day."));
    r.adapters = use;
    r.n_adapters = 1;
    talk_answer(r);
    char *first = pp_strdup(talk.text.data);
    for (int i = 0; i < LOOKED_AT; i++) {
        snprintf(path, sizeof path, "%s/looked-at-%d.gguf", test_tmpdir(), i);
        assert_int_equal(symlink(bundled, path), 0);
        talk.backend->ops->inspect(talk.backend, path);
        struct pp_event *e = talk_event(PP_EVENT_ADAPTER);
        assert_non_null(e->adapter);
        pp_event_free(e);
        use[1] = (struct pp_adapter_choice){.path = path, .scale = 1};
        r.n_adapters = 2;
        total = cost_of(&r, &cached);
        assert_int_equal(cached, 0);
    }
    use[1].path = "/does/not/exist";
    talk.backend->ops->cost(talk.backend, &r);
    struct pp_event *e = talk_event(PP_EVENT_COST);
    assert_int_equal(e->err.code, PP_ERR_NOT_FOUND);
    pp_event_free(e);
    r.n_adapters = 1;
    assert_int_equal(cost_of(&r, &cached), total);
    assert_true(cached >= total - 1);
    assert_string_equal(talk_answer(r), first);
    assert_true(talk.done.stats.cached_tokens >= total - 1);
    pp_free(first);
    free(bundled);
    talk_end();
}

/* Inspects a draft model; returns the reason why it does not fit, "" if it does. */
static const char *look_at(const char *path, struct pp_drafter_facts *f)
{
    static char reason[300];
    talk.backend->ops->inspect_draft(talk.backend, path);
    struct pp_event *e = talk_event(PP_EVENT_DRAFTER);
    assert_string_equal(e->text, path);
    assert_int_equal(e->drafter == NULL, e->err.code != PP_OK);
    snprintf(reason, sizeof reason, "%.299s", e->drafter ? "" : e->err.text);
    if (f && e->drafter)
        *f = *e->drafter;
    pp_event_free(e);
    return reason;
}

/* Asks for another draft model; returns the path of the one then in use; static. */
static const char *change_draft(const char *path, enum pp_code code)
{
    static char now[600];
    talk.backend->ops->draft(talk.backend, path);
    struct pp_event *e = talk_event(PP_EVENT_DRAFT);
    assert_int_equal(e->err.code, code);
    if (e->info)
        snprintf(now, sizeof now, "%s", e->info->draft_path);
    pp_event_free(e);
    return now;
}

#define STARTER "engine/starter/starter-Q4_K_M.gguf"
#define DRAFT "engine/starter/starter-draft-Q4_0.gguf"

/* Draft models are exchanged while the model and its pages stay; answers are the same with all of them. */
static void test_drafts(void **state)
{
    struct pp_loaded info;
    struct pp_drafter_facts f;
    char text[600];
    struct pp_error err;
    const char *stories = testdata("stories260k/stories260K-f32.gguf");
    (void)state;
    snprintf(text, sizeof text, "%s/no-draft.gguf", test_tmpdir());
    assert_ok(pp_write_file(text, "no model", 8, 0600, &err), err);
    talk_begin(256);
    assert_int_equal(talk_load(STARTER, NULL, 512, &info), PP_OK);
    assert_string_equal(info.draft_path, "");
    assert_string_equal(look_at(DRAFT, &f), "");
    assert_true(f.bytes > 0 && f.share > 0 && f.share < 0.6f && !f.bridged);
    assert_non_null(strstr(look_at(STARTER, NULL), "the model itself"));
    assert_non_null(strstr(look_at(text, NULL), "no-draft.gguf"));
    if (stories) {
        assert_string_equal(look_at(stories, &f), "");
        assert_true(f.bridged && f.other_template);
    }
    struct pp_generate_request r = talk_request(ASK("Hello, who are you?"));
    r.ignore_end = true;
    char *plain = pp_strdup(talk_answer(r));
    r.use_draft = r.draft_always = true;
    assert_string_equal(talk_answer(r), plain);
    assert_int_equal(talk.done.stats.draft_tokens, 0);
    assert_string_equal(change_draft(DRAFT, PP_OK), DRAFT);
    assert_string_equal(talk_answer(r), plain);
    assert_true(talk.done.stats.draft_tokens > 0);
    assert_int_equal(talk.done.stats.cached_tokens, talk.done.stats.prompt_tokens - 1); /* the model was not loaded
                                                                                           again */
    change_draft(text, PP_ERR_FORMAT); /* the old one stays in use */
    assert_string_equal(talk_answer(r), plain);
    assert_true(talk.done.stats.draft_tokens > 0);
    if (stories) {
        assert_string_equal(change_draft(stories, PP_OK), stories);
        assert_string_equal(talk_answer(r), plain);
    }
    /* a request during an answer takes effect when that has ended */
    talk_post(r);
    talk_take_in(true);
    talk.backend->ops->draft(talk.backend, DRAFT);
    talk_take_in(false);
    assert_string_equal(pp_buf_cstr(&talk.text), plain);
    pp_event_free(talk_event(PP_EVENT_DRAFT));
    assert_string_equal(talk_answer(r), plain);
    /* ... also if another model is loaded then, for which it drafts */
    talk_post(r);
    talk_take_in(true);
    talk.backend->ops->draft(talk.backend, DRAFT);
    assert_int_equal(talk_load(STARTER, NULL, 256, &info), PP_OK);
    struct pp_event *e = talk_event(PP_EVENT_DRAFT);
    assert_string_equal(e->info->draft_path, DRAFT);
    assert_int_equal(e->info->n_ctx, 256);
    pp_event_free(e);
    talk.backend->ops->draft(talk.backend, STARTER);
    e = talk_event(PP_EVENT_DRAFT);
    assert_non_null(strstr(e->err.text, "the model itself"));
    pp_event_free(e);
    pp_free(plain);
    assert_int_equal(talk_load(text, NULL, 0, NULL), PP_ERR_FORMAT);
    talk_end();
}

/* The draft's own adapters come with it; one that does not fit is a reason to do without a draft. */
static void test_draft_adapters(void **state)
{
    struct pp_model *m;
    struct pp_error err;
    char path[300];
    const struct pp_random_adapter spec = {.kind = PP_RANDOM_LORA, .rank = 4, .all = true, .seed = 3};
    (void)state;
    snprintf(path, sizeof path, "%s/for-draft.gguf", test_tmpdir());
    assert_ok(pp_model_open(DRAFT, &m, &err), err);
    assert_ok(pp_random_adapter_write(m, &spec, path, &err), err);
    pp_model_close(m);
    talk_begin(256);
    const struct pp_adapter_choice own = {.path = path, .scale = 0.5f};
    struct pp_load_request r = {.model = STARTER, .draft = DRAFT, .draft_adapters = &own, .n_draft_adapters = 1};
    r.engine.n_threads = 2;
    r.engine.n_ctx = 512;
    talk.backend->ops->load(talk.backend, &r);
    struct pp_event *e = talk_event(PP_EVENT_LOADED);
    assert_string_equal(e->info->draft_reason, "");
    assert_string_equal(e->info->draft_path, DRAFT);
    pp_event_free(e);
    struct pp_generate_request q = talk_request(ASK("Hello, who are you?"));
    char *plain = pp_strdup(talk_answer(q));
    q.use_draft = q.draft_always = true;
    assert_string_equal(talk_answer(q), plain);
    assert_true(talk.done.stats.draft_tokens > 0);
    assert_string_equal(change_draft(DRAFT, PP_OK), DRAFT); /* now without adapters */
    assert_string_equal(talk_answer(q), plain);
    pp_free(plain);
    const struct pp_adapter_choice none = {.path = "/nowhere.gguf", .scale = 1};
    r.draft_adapters = &none;
    talk.backend->ops->load(talk.backend, &r);
    e = talk_event(PP_EVENT_LOADED);
    assert_string_equal(e->info->draft_path, "");
    assert_non_null(strstr(e->info->draft_reason, "nowhere"));
    pp_event_free(e);
    talk_end();
}

/* Requests are answered without a model, too; once the worker is closed they fail at once. */
static void always_answered(void **state)
{
    (void)state;
    talk_begin(256);
    assert_true(talk.backend->ops->inspect(talk.backend, "/some/adapter"));
    struct pp_event *e = talk_event(PP_EVENT_ADAPTER);
    assert_string_equal(e->text, "/some/adapter");
    assert_null(e->adapter);
    assert_non_null(strstr(e->err.text, "no model"));
    pp_event_free(e);
    assert_non_null(strstr(look_at("/some/model", NULL), "no model"));
    change_draft("/some/model", PP_ERR_NOT_FOUND);
    talk.backend->ops->close(talk.backend);
    pp_event_free(talk_event(PP_EVENT_CLOSED));
    assert_false(talk.backend->ops->inspect(talk.backend, "/some/adapter"));
    assert_false(talk.backend->ops->inspect_draft(talk.backend, "/some/model"));
    talk.backend->ops->draft(talk.backend, "/some/model");
    e = talk_event(PP_EVENT_DRAFT);
    assert_null(e->info);
    assert_int_equal(e->err.code, PP_ERR_NOMEM);
    pp_event_free(e);
    const struct pp_generate_request r = talk_request(HELLO);
    assert_false(talk.backend->ops->cost(talk.backend, &r));
    talk.backend->ops->free(talk.backend);
    talk_start();
    talk_end();
}

TEST_GROUP(worker_adapters)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_draft_adapters),
        cmocka_unit_test(test_adapters), cmocka_unit_test(uninvoked),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(many_adapters),
        cmocka_unit_test(changed_folder),
        cmocka_unit_test(changed_while_on),
        cmocka_unit_test(always_answered),
    };
    return cmocka_run_group_tests_name("worker_adapters", tests, NULL, NULL);
}
