/* test_schedule.c - several answers in one pass: each as it would be alone, prompts computed once, nobody kept
 * waiting, and what happens when pages run out. */
#include <string.h>

#include "engine/engine_int.h"
#include "tests/support.h"

#define STARTER "engine/starter/starter-Q4_K_M.gguf"
#define DRAFT "engine/starter/starter-draft-Q4_0.gguf"

enum { MOST = 6, LONGEST = 400, TOKENS = 24 };

struct plan {
    int32_t prompt[LONGEST];
    int n;
    uint64_t seed;
    float temp;
    int32_t alone[TOKENS + 1];
    int64_t n_alone;
    struct pp_seq *seq;
    struct pp_gen *gen;
    struct pp_buf text;
    int n_tokens;
    bool over;
};

static struct pp_model *model;

static struct pp_engine *engine_with(uint64_t kv_memory, int max_rows, int64_t n_ctx)
{
    struct pp_error err;
    struct pp_engine *e;
    struct pp_engine_options opt = {.n_threads = 2, .n_ctx = n_ctx, .kv_memory = kv_memory, .max_rows = max_rows};
    assert_ok(pp_engine_new(model, &opt, NULL, NULL, &e, &err), err);
    return e;
}

/* Tokens that the starter has, the same ones for the same arguments. */
static void fill(struct plan *p, int n, uint32_t salt)
{
    p->n = n;
    for (int i = 0; i < n; i++)
        p->prompt[i] = (int32_t)(100 + (salt * 7919u + (uint32_t)i * 104729u) % 1500u);
}

static struct pp_gen_options options(const struct plan *p)
{
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = TOKENS, .ignore_end = true};
    opt.sampling.seed = p->seed;
    opt.sampling.temp = p->temp;
    return opt;
}

static void begin(struct pp_engine *e, struct plan *p)
{
    struct pp_error err;
    struct pp_gen_options opt = options(p);
    assert_ok(pp_seq_new(e, &p->seq, &err), err);
    assert_ok(pp_gen_begin(p->seq, p->prompt, p->n, &opt, &p->gen, &err), err);
}

static void end(struct plan *p)
{
    pp_gen_free(p->gen);
    pp_seq_free(p->seq);
    pp_buf_free(&p->text);
    p->gen = NULL;
    p->seq = NULL;
    p->n_tokens = 0;
    p->over = false;
}

/* Runs one pass for the answers that have begun and are not finished. */
static enum pp_code step(struct plan *plans, int n, const struct pp_cancel *cancel, struct pp_gen_item *items)
{
    struct pp_error err;
    struct plan *of[MOST];
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (!plans[i].gen || plans[i].over)
            continue;
        of[k] = &plans[i];
        items[k++] = (struct pp_gen_item){.gen = plans[i].gen, .text = &plans[i].text};
    }
    enum pp_code code = pp_gen_step(items, k, cancel, &err);
    for (int i = 0; i < k && !code; i++) {
        of[i]->n_tokens += items[i].n_tokens;
        of[i]->over = items[i].finish != PP_FINISH_NONE;
    }
    return code;
}

static void learn_alone(struct plan *p)
{
    struct pp_gen_item item[MOST];
    struct pp_engine *e = engine_with(64u << 20, 0, 1024);
    begin(e, p);
    while (!p->over) {
        assert_int_equal(step(p, 1, NULL, item), PP_OK);
        assert_int_equal(item[0].code, PP_OK);
    }
    const int32_t *tokens = pp_gen_tokens(p->gen, &p->n_alone);
    assert_true(p->n_alone <= TOKENS);
    memcpy(p->alone, tokens, (size_t)p->n_alone * sizeof *tokens);
    assert_int_equal(pp_gen_stats(p->gen).prefill_tokens, p->n);
    end(p);
    pp_engine_free(e);
}

static void as_alone(const struct plan *p)
{
    int64_t n;
    const int32_t *tokens = pp_gen_tokens(p->gen, &n);
    assert_true(p->over);
    assert_int_equal(n, p->n_alone);
    assert_int_equal(p->n_tokens, n);
    assert_memory_equal(tokens, p->alone, (size_t)n * sizeof *tokens);
}

static int open_model(void **state)
{
    struct pp_error err;
    (void)state;
    assert_ok(pp_model_open(STARTER, &model, &err), err);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    pp_model_close(model);
    return 0;
}

static void make_plans(struct plan *plans, int n)
{
    static const int lengths[MOST] = {1, 399, 64, 17, 200, 3};
    memset(plans, 0, (size_t)n * sizeof *plans);
    for (int i = 0; i < n; i++) {
        fill(&plans[i], lengths[i], (uint32_t)i);
        plans[i].seed = (uint64_t)i * 77;
        plans[i].temp = i % 2 ? 1.1f : 0;
        learn_alone(&plans[i]);
    }
}

/* Answers that begin at different times, with passes that are stopped and answers that are suspended in between. */
static void together_as_alone(void **state)
{
    static const int max_rows[] = {0, 2, 5, 64};
    struct plan plans[MOST];
    struct pp_gen_item items[MOST];
    struct pp_cancel cancel;
    uint32_t dice = 1;
    (void)state;
    make_plans(plans, MOST);
    for (size_t m = 0; m < sizeof max_rows / sizeof *max_rows; m++) {
        struct pp_engine *e = engine_with(64u << 20, max_rows[m], 1024);
        bool going = true;
        for (int pass = 0; going; pass++) {
            assert_true(pass < 3000);
            if (pass % 3 == 0 && pass / 3 < MOST)
                begin(e, &plans[pass / 3]);
            dice = dice * 1664525u + 1013904223u;
            pp_cancel_reset(&cancel);
            if (dice >> 29 == 0)
                pp_cancel_request(&cancel);
            struct plan *one = &plans[(dice >> 8) % MOST];
            if (dice >> 27 == 31 && one->gen && !one->over)
                pp_gen_suspend(one->gen);
            enum pp_code code = step(plans, MOST, &cancel, items);
            assert_true(code == PP_OK || code == PP_ERR_CANCELLED);
            going = pass / 3 < MOST;
            for (int i = 0; i < MOST; i++)
                going = going || !plans[i].over;
        }
        for (int i = 0; i < MOST; i++) {
            as_alone(&plans[i]);
            end(&plans[i]);
        }
        pp_engine_free(e);
    }
}

static void alike_prompts_are_read_once(void **state)
{
    struct plan plans[MOST];
    struct pp_gen_item items[MOST];
    (void)state;
    memset(plans, 0, sizeof plans);
    for (int i = 0; i < 4; i++) {
        fill(&plans[i], 150, 3);
        plans[i].seed = (uint64_t)i;
        plans[i].temp = 1;
    }
    for (int i = 120; i < 150; i++) /* from there on the last one differs */
        plans[3].prompt[i] = 50;
    for (int i = 0; i < 4; i++)
        learn_alone(&plans[i]);
    assert_memory_not_equal(plans[0].alone, plans[1].alone, sizeof plans[0].alone);
    struct pp_engine *e = engine_with(64u << 20, 0, 1024);
    for (int i = 0; i < 4; i++)
        begin(e, &plans[i]);
    while (!plans[0].over || !plans[1].over || !plans[2].over || !plans[3].over)
        assert_int_equal(step(plans, 4, NULL, items), PP_OK);
    for (int i = 0; i < 4; i++)
        as_alone(&plans[i]);
    /* the tokens that only the last one has, and perhaps a few for which it did not wait */
    assert_true(pp_engine_stats(e)->prefill_tokens >= 150 + 30);
    assert_true(pp_engine_stats(e)->prefill_tokens <= 150 + 30 + PP_MIN_CHUNK);
    assert_int_equal(pp_gen_stats(plans[0].gen).cached_tokens, 0);
    assert_int_equal(pp_gen_stats(plans[1].gen).cached_tokens, 150);
    assert_int_equal(pp_gen_stats(plans[2].gen).prefill_tokens, 0);
    assert_true(pp_gen_stats(plans[3].gen).cached_tokens >= 120 - PP_MIN_CHUNK);
    for (int i = 0; i < 4; i++)
        end(&plans[i]);
    pp_engine_free(e);
}

/* The answer that reads a common prompt goes away: the one that waited for it continues. */
static void a_reader_may_leave(void **state)
{
    struct plan plans[MOST];
    struct pp_gen_item items[MOST];
    (void)state;
    memset(plans, 0, sizeof plans);
    for (int i = 0; i < 2; i++)
        fill(&plans[i], 300, 9);
    learn_alone(&plans[1]);
    struct pp_engine *e = engine_with(64u << 20, 64, 1024);
    for (int i = 0; i < 2; i++)
        begin(e, &plans[i]);
    assert_int_equal(step(plans, 2, NULL, items), PP_OK);
    assert_int_equal(pp_seq_len(plans[1].seq), 0);
    end(&plans[0]);
    while (!plans[1].over)
        assert_int_equal(step(plans, 2, NULL, items), PP_OK);
    as_alone(&plans[1]);
    end(&plans[1]);
    pp_engine_free(e);
}

/* While prompts are read, an answer that has begun gets a token in every pass, and both prompts advance. */
static void nobody_waits(void **state)
{
    struct plan plans[MOST];
    struct pp_gen_item items[MOST];
    (void)state;
    memset(plans, 0, sizeof plans);
    fill(&plans[0], 5, 1);
    fill(&plans[1], 399, 2);
    fill(&plans[2], 399, 5);
    struct pp_engine *e = engine_with(64u << 20, 48, 1024);
    for (int i = 0; i < 3; i++)
        begin(e, &plans[i]);
    assert_int_equal(step(plans, 3, NULL, items), PP_OK);
    for (int pass = 0; pass < 6; pass++) {
        int64_t first = pp_seq_len(plans[1].seq), second = pp_seq_len(plans[2].seq);
        assert_int_equal(step(plans, 3, NULL, items), PP_OK);
        assert_int_equal(items[0].n_tokens, 1);
        assert_true(pp_seq_len(plans[2].seq) > second);
        assert_true(pp_seq_len(plans[1].seq) - first > pp_seq_len(plans[2].seq) - second);
    }
    for (int i = 0; i < 3; i++)
        end(&plans[i]);
    pp_engine_free(e);
}

/* Three answers of four pages each, with room for five: an answer that finds no page gets an error, and continues when
 * there is room. */
static void pages_run_out(void **state)
{
    struct plan plans[MOST];
    struct pp_gen_item items[MOST];
    (void)state;
    memset(plans, 0, sizeof plans);
    for (int i = 0; i < 3; i++) {
        fill(&plans[i], 220 + i, (uint32_t)i + 20);
        plans[i].seed = 5;
        plans[i].temp = 1;
        learn_alone(&plans[i]);
    }
    struct pp_engine *e = engine_with(64u << 20, 0, 1024);
    uint64_t page = pp_engine_stats(e)->page_bytes;
    pp_engine_free(e);
    e = engine_with(5 * page, 0, 320);
    assert_int_equal(pp_engine_stats(e)->pages_total, 5);
    for (int i = 0; i < 3; i++)
        begin(e, &plans[i]);
    int told = 0;
    for (int pass = 0; !plans[0].over || !plans[1].over || !plans[2].over; pass++) {
        assert_true(pass < 10000); /* on a slow machine a pass reads one row of a prompt */
        assert_int_equal(step(plans, 3, NULL, items), PP_OK);
        struct pp_gen *last = NULL; /* the one that holds pages */
        bool wanting = false;
        for (int i = 0; i < 3; i++) {
            assert_true(items[i].code == PP_OK || items[i].code == PP_ERR_NOMEM || plans[i].over);
            wanting = wanting || (items[i].gen && items[i].code == PP_ERR_NOMEM);
            if (!plans[i].over && pp_seq_len(plans[i].seq) > 0)
                last = plans[i].gen;
            items[i] = (struct pp_gen_item){0};
        }
        told += wanting;
        if (wanting && last)
            pp_gen_suspend(last);
        for (int i = 0; i < 3; i++)
            if (plans[i].over && plans[i].seq)
                pp_seq_truncate(plans[i].seq, 0);
    }
    assert_true(told > 0);
    for (int i = 0; i < 3; i++) {
        as_alone(&plans[i]);
        end(&plans[i]);
    }
    pp_engine_free(e);
}

/* Answers that are written together draft together, in the same steps, and each is what it would be alone. */
static void drafts_together(void **state)
{
    struct plan plans[MOST];
    struct pp_gen_item items[MOST];
    struct pp_error err;
    struct pp_model *small;
    struct pp_engine *drafts;
    struct pp_seq *draft[3];
    (void)state;
    make_plans(plans, 3);
    for (int i = 0; i < 3; i++) { /* on slow machines long prompts are read while shorter ones are answered */
        plans[i].n = plans[i].n < 12 ? plans[i].n : 12;
        learn_alone(&plans[i]);
    }
    struct pp_engine *e = engine_with(64u << 20, 0, 1024);
    struct pp_engine_options eo = {.n_ctx = 1024, .share_pool = e};
    assert_ok(pp_model_open(DRAFT, &small, &err), err);
    assert_ok(pp_engine_new(small, &eo, NULL, NULL, &drafts, &err), err);
    for (int how = 0; how < 4; how++) { /* in every pass, as many as pay off, with lookup, and with trees */
        for (int i = 0; i < 3; i++) {
            struct pp_gen_options opt = options(&plans[i]);
            assert_ok(pp_seq_new(drafts, &draft[i], &err), err);
            opt.draft = draft[i];
            opt.draft_always = how != 1;
            opt.lookup = how >= 2;
            opt.draft_siblings = how == 3;
            assert_ok(pp_seq_new(e, &plans[i].seq, &err), err);
            assert_ok(pp_gen_begin(plans[i].seq, plans[i].prompt, plans[i].n, &opt, &plans[i].gen, &err), err);
        }
        uint64_t passes = pp_engine_stats(drafts)->passes, rows = pp_engine_stats(drafts)->rows;
        uint64_t n_drafted = pp_engine_stats(e)->draft_tokens;
        while (!plans[0].over || !plans[1].over || !plans[2].over)
            assert_int_equal(step(plans, 3, NULL, items), PP_OK);
        passes = pp_engine_stats(drafts)->passes - passes;
        rows = pp_engine_stats(drafts)->rows - rows;
        n_drafted = pp_engine_stats(e)->draft_tokens - n_drafted;
        if (how == 0)
            assert_true(n_drafted > 30 && passes < n_drafted && rows > passes);
        for (int i = 0; i < 3; i++) {
            as_alone(&plans[i]);
            end(&plans[i]);
            pp_seq_free(draft[i]);
        }
    }
    pp_engine_free(drafts);
    pp_model_close(small);
    pp_engine_free(e);
}

TEST_GROUP(schedule)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(together_as_alone), cmocka_unit_test(alike_prompts_are_read_once),
        cmocka_unit_test(a_reader_may_leave), cmocka_unit_test(nobody_waits),
        cmocka_unit_test(pages_run_out), cmocka_unit_test(drafts_together),
    };
    return cmocka_run_group_tests_name("schedule", tests, open_model, close_model);
}
