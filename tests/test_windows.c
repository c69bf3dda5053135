/* test_windows.c - sliding windows in a whole engine: the same bits for any batching of rows, bounded memory, and
 * going back to any earlier position, whatever has become of its pages. Tested with a window in all layers; in all but
 * the last, which then has a page tier of its own; with the first positions always visible as well; with convolutions,
 * which have a short window; and with states, which need only their last page. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/engine_int.h"
#include "tests/convolved.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { LENGTH = 420, ROWS = 64 };

struct manner {
    int window;
    int first;             /* positions at the beginning that stay visible, too */
    int taps;              /* of convolutions; 0: no convolutions */
    bool states;
    bool mixed;            /* the last layer has no window */
    enum pp_kv_type kv;
    const char *kernels;   /* NULL: the best */
    int n_threads;
    int n_pages;           /* memory for this many pages in each tier; 0: plenty */
    int64_t n_ctx;         /* 0: 512 */
};

struct rig {
    struct pp_model *model;
    struct pp_engine *engine;
    int64_t n_vocab;
};

static struct rig rig(const struct manner *m)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    struct pp_engine_options opt = {.n_threads = m->n_threads, .n_ctx = m->n_ctx ? m->n_ctx : 512, .kv_type = m->kv,
                                    .kernels = m->kernels, .max_rows = ROWS, .kv_memory = 64u << 20};
    struct rig r;
    struct pp_error err;
    shape.window = m->window;
    assert_ok(pp_model_open(tiny_model(&shape), &r.model, &err), err);
    struct pp_plan *plan = &r.model->plan;
    for (int i = 0; m->mixed && i < plan->n_ops; i++)
        if (plan->ops[i].window && plan->ops[i].layer == shape.n_layer - 1)
            plan->ops[i].window = 0;
    if (m->taps)
        convolve_layers(r.model, m->taps);
    if (m->states)
        recur_layers(r.model);
    assert_ok(pp_plan_place_layers(r.model->source, plan, &err), err);
    assert_int_equal(plan->n_tiers, 1 + m->mixed + (m->taps > 0) + m->states);
    for (int t = 0; t < plan->n_tiers; t++)
        if (plan->tiers[t].kind == PP_TIER_ATTENTION && plan->tiers[t].window)
            plan->tiers[t].n_first = m->first;
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    if (m->n_pages) {
        opt.kv_memory = pp_engine_stats(r.engine)->page_bytes * (uint64_t)m->n_pages;
        pp_engine_free(r.engine);
        assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    }
    r.n_vocab = pp_model_info(r.model)->n_vocab;
    return r;
}

static void unrig(struct rig *r)
{
    pp_engine_free(r->engine);
    pp_model_close(r->model);
}

static struct pp_seq *new_seq(const struct rig *r)
{
    struct pp_seq *s;
    struct pp_error err;
    assert_ok(pp_seq_new(r->engine, &s, &err), err);
    return s;
}

static void write_text(int32_t *tokens, int n, int which)
{
    for (int i = 0; i < n; i++)
        tokens[i] = (i * 37 + 11 * which + i / 50 * which) % 320;
}

/* Computes the missing ones of n tokens, at most `rows` at a time. all: the logits of each, or NULL; last: those of the
 * last. */
static void feed(const struct rig *r, struct pp_seq *s, const int32_t *tokens, int64_t n, int rows, float *all,
                 float *last)
{
    const size_t bytes = (size_t)r->n_vocab * sizeof(float);
    struct pp_row batch[ROWS];
    struct pp_error err;
    while (pp_seq_len(s) < n) {
        const int64_t at = pp_seq_len(s);
        const int m = n - at < rows ? (int)(n - at) : rows;
        for (int i = 0; i < m; i++)
            batch[i] = (struct pp_row){.seq = s, .token = tokens[at + i], .parent = PP_PARENT_PREVIOUS,
                                       .out = all || at + i == n - 1 ? PP_OUT_LOGITS : PP_OUT_NONE};
        assert_ok(pp_step(r->engine, batch, m, NULL, &err), err);
        for (int i = 0; all && i < m; i++)
            memcpy(all + (at + i) * r->n_vocab, pp_step_output(r->engine, i), bytes);
        if (last && at + m == n)
            memcpy(last, pp_step_output(r->engine, m - 1), bytes);
    }
}

/* The logits of every position of a text, computed from its beginning, m.rows rows at a time. */
static float *every_position(struct manner m, const int32_t *text, int n, int rows)
{
    m.n_threads = 1;
    m.n_pages = 0;
    struct rig r = rig(&m);
    struct pp_seq *s = new_seq(&r);
    float *all = pp_malloc((size_t)n * (size_t)r.n_vocab * sizeof *all);
    assert_non_null(all);
    feed(&r, s, text, n, rows, all, NULL);
    pp_seq_free(s);
    unrig(&r);
    return all;
}

static void assert_row(const struct rig *r, const float *all, int64_t position, const float *got, const char *what)
{
    if (memcmp(all + position * r->n_vocab, got, (size_t)r->n_vocab * sizeof *got) != 0)
        fail_msg("%s: other logits at position %lld", what, (long long)position);
}

/* The same bits at all numbers of rows and threads; every other case also with the scalar kernels, which are slow. */
static void same_bits(void **state)
{
    static const struct manner manners[] = {
        {.window = 1, .kv = PP_KV_F32},
        {.window = 5, .kv = PP_KV_Q4_0, .mixed = true},
        {.window = 64, .kv = PP_KV_F16},
        {.window = 65, .kv = PP_KV_Q8},
        {.window = 200, .kv = PP_KV_Q8, .mixed = true},
        {.window = 300, .kv = PP_KV_Q8},
        {.window = 256, .kv = PP_KV_FP8},
        {.taps = 3, .kv = PP_KV_Q8},
        {.window = 70, .taps = 4, .kv = PP_KV_Q4_0, .mixed = true},
        {.taps = 1, .kv = PP_KV_F16},
        {.states = true, .kv = PP_KV_Q8},
        {.window = 64, .first = 5, .kv = PP_KV_F32},
        {.window = 20, .first = 128, .kv = PP_KV_Q8, .mixed = true},
        {.window = 70, .first = 200, .kv = PP_KV_F16},
    };
    static const int rows[] = {64, 37, 3, 1};
    int32_t text[LENGTH];
    (void)state;
    write_text(text, LENGTH, 1);
    for (size_t i = 0; i < sizeof manners / sizeof manners[0]; i++) {
        struct manner m = manners[i];
        m.kernels = i % 2 ? NULL : "scalar";
        float *expected = every_position(m, text, LENGTH, 1);
        m.kernels = NULL;
        for (size_t j = 0; j < sizeof rows / sizeof rows[0]; j++) {
            m.n_threads = 1 + (int)(j % 3);
            struct rig r = rig(&m);
            struct pp_seq *s = new_seq(&r);
            float *all = pp_malloc((size_t)LENGTH * (size_t)r.n_vocab * sizeof *all);
            feed(&r, s, text, LENGTH, rows[j], all, NULL);
            for (int p = 0; p < LENGTH; p++)
                assert_row(&r, expected, p, all + p * r.n_vocab, "a chain");
            pp_free(all);
            pp_seq_free(s);
            unrig(&r);
        }
        pp_free(expected);
    }
}

/* A window as long as the text is the same as no window. */
static void wide_windows(void **state)
{
    int32_t text[300];
    (void)state;
    write_text(text, 300, 2);
    struct manner m = {.window = 0, .kv = PP_KV_Q8, .n_threads = 2};
    float *expected = every_position(m, text, 300, ROWS);
    static const int windows[] = {300, 511, 1 << 30};
    for (int i = 0; i < 3; i++) {
        m.window = windows[i];
        float *got = every_position(m, text, 300, ROWS);
        assert_memory_equal(expected, got, 300 * 320 * sizeof *got);
        pp_free(got);
    }
    m.window = 299;
    float *got = every_position(m, text, 300, ROWS);
    assert_memory_equal(expected, got, 299 * 320 * sizeof *got);
    assert_memory_not_equal(expected + 299 * 320, got + 299 * 320, 320 * sizeof *got);
    pp_free(got);
    pp_free(expected);
}

/* A tree's rows see the window along their own branch, as rows of a chain would. */
static void trees(void **state)
{
    static const int bases[] = {3, 62, 130, 254, 300}, windows[] = {1, 2, 5, 64, 70, 250};
    (void)state;
    for (size_t b = 0; b < sizeof bases / sizeof bases[0]; b++)
        for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
            const int base = bases[b];
            struct manner m = {.window = windows[w], .kv = w % 2 ? PP_KV_Q8 : PP_KV_F32, .n_threads = 2,
                               .mixed = b % 2, .taps = (b + w) % 2 ? 4 : 0};
            int32_t text[LENGTH];
            struct pp_error err;
            write_text(text, LENGTH, 3);
            float *expected = every_position(m, text, base + 4, ROWS);
            struct rig r = rig(&m);
            struct pp_seq *s = new_seq(&r);
            feed(&r, s, text, base, 64, NULL, NULL);
            struct pp_row tree[] = {
                {.seq = s, .token = 7, .parent = PP_PARENT_COMMITTED},
                {.seq = s, .token = text[base], .parent = PP_PARENT_COMMITTED, .out = PP_OUT_LOGITS},
                {.seq = s, .token = 8, .parent = 0},
                {.seq = s, .token = text[base + 1], .parent = 1, .out = PP_OUT_LOGITS},
                {.seq = s, .token = 9, .parent = 1},
                {.seq = s, .token = text[base + 2], .parent = 3, .out = PP_OUT_LOGITS},
            };
            assert_ok(pp_step(r.engine, tree, 6, NULL, &err), err);
            for (int i = 0; i < 3; i++)
                assert_row(&r, expected, base + i, pp_step_output(r.engine, 2 * i + 1), "a tree");
            const int32_t keep[] = {base + 1, base + 3, base + 5};
            assert_ok(pp_seq_keep(s, base, keep, 3, &err), err);
            float *last = pp_malloc((size_t)r.n_vocab * sizeof *last);
            feed(&r, s, text, base + 4, 1, NULL, last);
            assert_row(&r, expected, base + 3, last, "behind a kept branch");
            if (base > 200 && m.window < 64)
                assert_int_equal(pp_seq_keep(s, 10, NULL, 0, &err), PP_ERR_USAGE); /* that position's page is gone */
            pp_free(last);
            pp_free(expected);
            pp_seq_free(s);
            unrig(&r);
        }
}

/* The windowed tier holds no more than the window, the first positions if they stay visible, and the rows of one step,
 * however long the text. */
static void bounded(void **state)
{
    static const int windows[] = {1, 8, 64, 100, 150}, firsts[] = {0, 0, 128, 0, 3};
    (void)state;
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
        for (int mixed = 0; mixed < 2; mixed++) {
            struct manner m = {.window = windows[i], .first = firsts[i], .kv = PP_KV_Q8, .n_threads = 2,
                               .mixed = mixed};
            const uint64_t of_first = (uint64_t)(m.first + PP_PAGE_TOKENS - 1) / PP_PAGE_TOKENS;
            struct rig r = rig(&m);
            struct pp_seq *s = new_seq(&r);
            int32_t text[LENGTH];
            write_text(text, LENGTH, 4);
            for (int n = 1, rows; n <= LENGTH; n += rows) {
                rows = 1 + n % ROWS;
                feed(&r, s, text, n, ROWS, NULL, NULL);
                const struct pp_stats *st = pp_engine_stats(r.engine);
                const uint64_t most = of_first + 1 +
                                      (uint64_t)(m.window - 1 + rows + 2 * (PP_PAGE_TOKENS - 1)) / PP_PAGE_TOKENS;
                assert_int_equal(st->n_tiers, 1 + mixed);
                assert_int_equal(st->tiers[0].window, m.window);
                assert_in_range(st->tiers[0].pages_used, 1, most);
                if (mixed)
                    assert_int_equal(st->tiers[1].pages_used, (n + PP_PAGE_TOKENS - 1) / PP_PAGE_TOKENS);
                assert_int_equal(st->kv_bytes_used, st->tiers[0].pages_used * st->tiers[0].page_bytes +
                                                        st->tiers[1].pages_used * st->tiers[1].page_bytes);
            }
            pp_seq_free(s);
            assert_int_equal(pp_engine_stats(r.engine)->pages_used, 0);
            unrig(&r);
        }
}

/* Going back to every earlier position, in the sequence itself or in a fork, with its pages found or not: the next row
 * is always right. */
static void rewinds(void **state)
{
    static const struct manner manners[] = {
        {.window = 64, .kv = PP_KV_Q8, .n_threads = 2},
        {.window = 100, .kv = PP_KV_F16, .n_threads = 2, .n_pages = 8},
        {.window = 30, .kv = PP_KV_Q8, .n_threads = 2, .mixed = true, .n_pages = 18},
        {.window = 1, .kv = PP_KV_F32, .n_threads = 2, .n_pages = 8},
        {.window = 30, .first = 5, .kv = PP_KV_Q8, .n_threads = 2, .mixed = true},
        {.window = 30, .first = 128, .kv = PP_KV_Q8, .n_threads = 2, .n_pages = 14},
        {.taps = 3, .kv = PP_KV_Q8, .n_threads = 2},
        {.window = 30, .taps = 4, .kv = PP_KV_Q8, .n_threads = 2, .mixed = true, .n_pages = 18},
        {.states = true, .taps = 4, .kv = PP_KV_Q8, .n_threads = 2, .n_pages = 16},
    };
    int32_t text[LENGTH], other[LENGTH];
    (void)state;
    write_text(text, LENGTH, 5);
    write_text(other, LENGTH, 6);
    for (size_t i = 0; i < sizeof manners / sizeof manners[0]; i++) {
        float *expected = every_position(manners[i], text, LENGTH, ROWS);
        struct rig r = rig(&manners[i]);
        float *last = pp_malloc((size_t)r.n_vocab * sizeof *last);
        int whole = 0;
        for (int n = LENGTH - 1; n > 0; n -= n % 7 == 0 ? 29 : 11) {
            struct pp_seq *s = new_seq(&r), *hog = new_seq(&r), *fork = NULL;
            struct pp_error err;
            feed(&r, s, text, LENGTH, 64, NULL, NULL);
            if (n % 3 == 0) /* evicts others' pages, if there are few */
                feed(&r, hog, other, 300, 64, NULL, NULL);
            if (n % 2)
                assert_ok(pp_seq_fork(s, n, &fork, &err), err);
            else
                pp_seq_truncate(s, n);
            struct pp_seq *back = fork ? fork : s;
            assert_in_range(pp_seq_len(back), 0, n);
            assert_memory_equal(pp_seq_tokens(back), text, (size_t)pp_seq_len(back) * sizeof *text);
            whole += pp_seq_len(back) == n;
            pp_seq_free(hog);
            feed(&r, back, text, n + 1, 64, NULL, last);
            assert_row(&r, expected, n, last, fork ? "a fork" : "gone back");
            if (fork) {
                pp_seq_free(fork);
                pp_seq_truncate(s, LENGTH - 1);
                feed(&r, s, text, LENGTH, 1, NULL, last);
                assert_row(&r, expected, LENGTH - 1, last, "beside a fork");
            }
            pp_seq_free(s);
            assert_int_equal(pp_engine_stats(r.engine)->pages_used, 0);
        }
        assert_true(manners[i].n_pages || whole > 20); /* with enough memory nothing is computed again */
        pp_free(last);
        pp_free(expected);
        unrig(&r);
    }
}

/* Convolutions have large pages: a long text keeps only a few of them, and going back is still right. */
static void few_rows_stay(void **state)
{
    enum { LONG = 1100 };
    static const int places[] = {1090, 1030, 960, 700, 530, 300, 129, 64};
    struct manner m = {.taps = 3, .kv = PP_KV_Q8, .n_threads = 2, .n_ctx = 1152};
    int32_t text[LONG];
    (void)state;
    write_text(text, LONG, 7);
    float *expected = every_position(m, text, LONG, ROWS);
    struct rig r = rig(&m);
    struct pp_seq *s = new_seq(&r);
    float *last = pp_malloc((size_t)r.n_vocab * sizeof *last);
    feed(&r, s, text, LONG, ROWS, NULL, NULL);
    const struct pp_tier_stats *rows = &pp_engine_stats(r.engine)->tiers[1];
    assert_in_range(rows->pages_used, 1, 3);
    assert_int_equal(rows->pages_cached, 8 + 1);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const int64_t n = places[i];
        pp_seq_truncate(s, n);
        assert_in_range(pp_seq_len(s), n < 512 ? n / 64 * 64 : n / 512 * 512, n);
        feed(&r, s, text, n + 1, ROWS, NULL, last);
        assert_row(&r, expected, n, last, "gone back");
        feed(&r, s, text, n + 40 < LONG ? n + 40 : LONG, 1, NULL, last);
    }
    pp_free(last);
    pp_free(expected);
    pp_seq_free(s);
    unrig(&r);
}

static void generate(struct pp_seq *s, const int32_t *prompt, int64_t n, int64_t n_answer, int32_t *answer)
{
    struct pp_gen_options opt = {.max_tokens = n_answer, .ignore_end = true};
    enum pp_finish finish = PP_FINISH_NONE;
    struct pp_buf text = {0};
    struct pp_error err;
    struct pp_gen *g;
    int n_tokens = 0;
    int64_t got;
    assert_ok(pp_gen_start(s, prompt, n, &opt, NULL, &g, &err), err);
    while (finish == PP_FINISH_NONE)
        assert_ok(pp_gen_next(g, NULL, &text, &n_tokens, &finish, &err), err);
    const int32_t *tokens = pp_gen_tokens(g, &got);
    assert_int_equal(got, n_answer);
    memcpy(answer, tokens, (size_t)got * sizeof *answer);
    pp_gen_free(g);
    pp_buf_free(&text);
}

/* Computes two new texts, which take all pages that are not held. */
static void hog_memory(const struct rig *r, struct pp_seq *hog, int32_t *text)
{
    for (int i = 0; i < 2; i++) {
        feed(r, hog, text, LENGTH, 64, NULL, NULL);
        pp_seq_truncate(hog, 0);
        text[0]++;
    }
}

/* An answer can be regenerated, and its question edited, without recomputing what comes before, even if other
 * sequences needed all the memory in between. */
static void check_marks(struct manner m)
{
    int32_t text[512], first[200], again[200], other[LENGTH];
    write_text(text, 512, 7);
    write_text(other, LENGTH, 8);
    struct rig r = rig(&m);
    struct pp_seq *s = new_seq(&r), *hog = new_seq(&r);
    struct pp_stats *st = pp_engine_stats(r.engine);
    generate(s, text, 130, 20, text + 130);
    generate(s, text, 200, 200, first);
    for (int round = 0; round < 2; round++) {
        hog_memory(&r, hog, other); /* pages that nobody holds are evicted */
        uint64_t before = st->prefill_tokens;
        generate(s, text, 200, 200, again);
        assert_memory_equal(first, again, sizeof first);
        assert_in_range(st->prefill_tokens - before, 1, PP_PAGE_TOKENS);
    }
    hog_memory(&r, hog, other);
    text[151]++;
    uint64_t before = st->prefill_tokens;
    generate(s, text, 200, 50, again);
    assert_in_range(st->prefill_tokens - before, 1, 200 - 151 + 2 * PP_PAGE_TOKENS);
    pp_seq_free(s);
    pp_seq_free(hog);
    s = new_seq(&r);
    before = pp_engine_stats(r.engine)->pages_used;
    assert_int_equal(before, 0);
    pp_seq_free(s);
    unrig(&r);
}

static void marks(void **state)
{
    (void)state;
    check_marks((struct manner){.window = 40, .kv = PP_KV_Q8, .n_threads = 2, .n_pages = 12});
    check_marks((struct manner){.window = 40, .first = 128, .kv = PP_KV_Q8, .n_threads = 2, .n_pages = 16});
    check_marks((struct manner){.states = true, .kv = PP_KV_Q8, .n_threads = 2, .n_pages = 16});
}

/* Recurrent states refuse trees of rows, and cutting tokens out. */
static void states_refuse(void **state)
{
    struct rig r = rig(&(struct manner){.states = true, .kv = PP_KV_Q8, .n_threads = 1});
    struct pp_seq *s = new_seq(&r);
    struct pp_error err;
    int32_t text[80];
    (void)state;
    write_text(text, 80, 3);
    feed(&r, s, text, 70, 64, NULL, NULL);
    struct pp_row tree[] = {{.seq = s, .token = 7, .parent = PP_PARENT_COMMITTED},
                            {.seq = s, .token = 8, .parent = PP_PARENT_COMMITTED}};
    assert_int_equal(pp_step(r.engine, tree, 2, NULL, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "tree"));
    assert_int_equal(pp_seq_cut(s, 10, 20, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "state"));
    assert_int_equal(pp_seq_len(s), 70);
    feed(&r, s, text, 80, 3, NULL, NULL);
    pp_seq_free(s);
    unrig(&r);
}

/* A made-up draft that is right now and then, so that part of its tokens is accepted. */
static int draft_partly_right(void *user, const int32_t *tokens, int64_t n, int32_t *out, int most)
{
    const int32_t *right = user;
    (void)tokens;
    for (int i = 0; i < most; i++)
        out[i] = (n + i) % 5 == 3 ? 7 : right[n + i];
    return most;
}

/* Speculation with recurrent states uses chains, also across page ends; the answer stays the same. */
static void drafted_states(void **state)
{
    struct manner m = {.states = true, .taps = 4, .kv = PP_KV_Q8, .n_threads = 2};
    struct pp_gen_options opt = {.max_tokens = 200, .ignore_end = true, .draft_max = 8, .draft_siblings = 1,
                                 .draft_always = true, .draft_script = draft_partly_right};
    int32_t text[512];
    struct pp_buf out = {0};
    enum pp_finish finish = PP_FINISH_NONE;
    struct pp_error err;
    struct pp_gen *g;
    int n_tokens = 0;
    int64_t n;
    (void)state;
    write_text(text, 512, 17);
    struct rig r = rig(&m);
    struct pp_seq *s = new_seq(&r), *t = new_seq(&r);
    generate(s, text, 60, 200, text + 60);
    opt.draft_script_user = text;
    assert_ok(pp_gen_start(t, text, 60, &opt, NULL, &g, &err), err);
    while (finish == PP_FINISH_NONE)
        assert_ok(pp_gen_next(g, NULL, &out, &n_tokens, &finish, &err), err);
    const int32_t *tokens = pp_gen_tokens(g, &n);
    assert_true(n == 200 && pp_engine_stats(r.engine)->draft_accepted > 20);
    assert_memory_equal(tokens, text + 60, 200 * sizeof *tokens);
    pp_gen_free(g);
    pp_buf_free(&out);
    pp_seq_free(s);
    pp_seq_free(t);
    unrig(&r);
}

/* Conversations that begin alike, are edited, forked and closed, with few pages. */
static void any_order(void **state)
{
    enum { SEQS = 3, ROUNDS = 100, TEXTS = 3 };
    static const struct manner manners[] = {
        {.window = 1, .kv = PP_KV_Q8, .n_threads = 2, .n_pages = 14},
        {.window = 63, .kv = PP_KV_Q8, .n_threads = 2, .n_pages = 14, .mixed = true},
        {.window = 64, .kv = PP_KV_Q8, .n_threads = 2, .n_pages = 17},
        {.window = 130, .kv = PP_KV_Q8, .n_threads = 2, .n_pages = 17},
        {.window = 130, .kv = PP_KV_F16, .n_threads = 2, .n_pages = 24, .mixed = true},
        {.states = true, .kv = PP_KV_Q8, .n_threads = 2, .n_pages = 20},
    };
    unsigned seed = 4711;
    (void)state;
    for (size_t i = 0; i < sizeof manners / sizeof manners[0]; i++) {
        struct rig r = rig(&manners[i]);
        struct pp_seq *seqs[SEQS];
        int32_t texts[TEXTS][250];
        float *expected[TEXTS], *last = pp_malloc((size_t)r.n_vocab * sizeof *last);
        int64_t found = 0;
        struct pp_error err;
        for (int t = 0; t < TEXTS; t++) {
            write_text(texts[t], 250, 9 + (t == 1));
            texts[t][170] += t == 2; /* the last text is the first with one token changed */
            expected[t] = every_position(manners[i], texts[t], 250, ROWS);
        }
        for (int s = 0; s < SEQS; s++)
            seqs[s] = new_seq(&r);
        for (int round = 0; round < ROUNDS; round++) {
            const int t = rand_r(&seed) % TEXTS, n = 2 + rand_r(&seed) % 248, rows = 1 + rand_r(&seed) % ROWS;
            struct pp_seq **s = &seqs[rand_r(&seed) % SEQS], *fork;
            switch (rand_r(&seed) % 6) {
            case 0:
                assert_ok(pp_seq_fork(seqs[rand_r(&seed) % SEQS], rand_r(&seed) % 300, &fork, &err), err);
                pp_seq_free(*s);
                *s = fork;
                break;
            case 1:
                pp_seq_free(*s);
                *s = new_seq(&r);
                break;
            case 2:
                pp_seq_mark(*s, PP_MARK_PROMPT);
                break;
            default:
                break;
            }
            found += pp_seq_begin(*s, texts[t], n);
            assert_in_range(pp_seq_len(*s), 0, n - 1);
            assert_memory_equal(pp_seq_tokens(*s), texts[t], (size_t)pp_seq_len(*s) * sizeof texts[t][0]);
            feed(&r, *s, texts[t], n, rows, NULL, last);
            assert_row(&r, expected[t], n - 1, last, "any order");
        }
        assert_true(found > 30 * ROUNDS);
        for (int s = 0; s < SEQS; s++)
            pp_seq_free(seqs[s]);
        for (int t = 0; t < TEXTS; t++)
            pp_free(expected[t]);
        assert_int_equal(pp_engine_stats(r.engine)->pages_used, 0);
        pp_free(last);
        unrig(&r);
    }
}

static void save(const struct rig *r, struct pp_seq *s, const char *base)
{
    struct pp_sha256 identity;
    struct pp_save *j;
    struct pp_error err;
    uint64_t bytes;
    bool done = false;
    assert_ok(pp_model_identity(r->model, NULL, &identity, &err), err);
    assert_ok(pp_save_new(s, &identity, base, "windows", &j, &err), err);
    assert_ok(pp_save_plan(j, UINT64_MAX, &bytes, &err), err);
    while (!done)
        assert_ok(pp_save_write(j, UINT64_MAX, NULL, &done, &err), err);
    pp_save_free(j);
}

static void restore(const struct rig *r, struct pp_seq *s, const char *base, const int32_t *text, int64_t n)
{
    struct pp_sha256 identity;
    struct pp_error err;
    assert_ok(pp_model_identity(r->model, NULL, &identity, &err), err);
    assert_ok(pp_snapshot_restore(s, &identity, base, "windows", text, n, NULL, &err), err);
}

/* A snapshot of a sequence longer than its window suffices to go on, to compute the last token again, and to go
 * back. */
static void saved(void **state)
{
    static const struct manner manners[] = {
        {.window = 70, .kv = PP_KV_Q8, .n_threads = 2},
        {.window = 64, .kv = PP_KV_F16, .n_threads = 2, .mixed = true},
        {.window = 1, .kv = PP_KV_F32, .n_threads = 2},
        {.states = true, .taps = 4, .kv = PP_KV_Q8, .n_threads = 2},
    };
    static const int lengths[] = {190, 255, 256, 300}; /* a page begins 64 tokens before the second length */
    enum { N = sizeof lengths / sizeof *lengths };
    int32_t text[LENGTH];
    (void)state;
    write_text(text, LENGTH, 13);
    for (size_t i = 0; i < sizeof manners / sizeof manners[0]; i++) {
        char base[256];
        snprintf(base, sizeof base, "%s/windows-%zu", test_tmpdir(), i);
        float *expected = every_position(manners[i], text, LENGTH, ROWS);
        struct rig r = rig(&manners[i]);
        float *last = pp_malloc((size_t)r.n_vocab * sizeof *last);
        struct pp_seq *s = new_seq(&r);
        for (int j = 0; j < N; j++) {
            feed(&r, s, text, lengths[j], ROWS, NULL, NULL);
            save(&r, s, base);
        }
        pp_seq_free(s);
        unrig(&r);
        for (int j = 0; j < N; j++) {
            r = rig(&manners[i]); /* a new engine, with nothing cached */
            s = new_seq(&r);
            restore(&r, s, base, text, lengths[j]);
            const int64_t there = pp_seq_len(s);
            if (j == N - 1 || manners[i].window == 64)
                assert_int_equal(there, lengths[j]);
            if (manners[i].window == 64) {
                pp_seq_truncate(s, there - 1);
                assert_int_equal(pp_seq_len(s), there - 1);
            }
            feed(&r, s, text, lengths[j] + 20, 7, NULL, last);
            assert_row(&r, expected, lengths[j] + 19, last, "restored");
            for (int back = lengths[j] + 10; back > 0; back -= 47) {
                pp_seq_truncate(s, back);
                feed(&r, s, text, back + 1, ROWS, NULL, last);
                assert_row(&r, expected, back, last, "restored and gone back");
            }
            pp_seq_free(s);
            unrig(&r);
        }
        pp_free(last);
        pp_free(expected);
    }
}

/* A context for which the memory suffices only because of the window. */
static void memory_is_divided(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    struct pp_engine_options opt = {.n_threads = 1, .n_ctx = 1024, .max_rows = 16, .kv_memory = 64u << 20};
    struct pp_model *model;
    struct pp_engine *e;
    struct pp_error err;
    (void)state;
    shape.window = 100;
    assert_ok(pp_model_open(tiny_model(&shape), &model, &err), err);
    assert_ok(pp_engine_new(model, &opt, NULL, NULL, &e, &err), err);
    opt.kv_memory = pp_engine_stats(e)->page_bytes * 8;
    pp_engine_free(e);
    assert_ok(pp_engine_new(model, &opt, NULL, NULL, &e, &err), err);
    assert_int_equal(pp_engine_n_ctx(e), 1024);
    assert_int_equal(pp_engine_stats(e)->pages_total, 8);
    opt.kv_memory = pp_engine_stats(e)->page_bytes * 3;
    pp_engine_free(e);
    assert_int_equal(pp_engine_new(model, &opt, NULL, NULL, &e, &err), PP_ERR_NOMEM);
    model->plan.ops[0].window = 0;
    for (int i = 0; i < model->plan.n_ops; i++)
        if (model->plan.ops[i].layer == 1)
            model->plan.ops[i].window = 0;
    assert_ok(pp_plan_place_layers(model->source, &model->plan, &err), err);
    opt.kv_memory = 64u << 20;
    assert_ok(pp_engine_new(model, &opt, NULL, NULL, &e, &err), err);
    struct pp_stats st = *pp_engine_stats(e);
    assert_true(st.tiers[0].pages_total < st.tiers[1].pages_total);
    assert_in_range(st.kv_bytes_total, opt.kv_memory - 2 * st.page_bytes, opt.kv_memory);
    pp_engine_free(e);
    opt.n_ctx = 0;
    opt.kv_memory = st.tiers[1].page_bytes * 10; /* of 16 */
    assert_ok(pp_engine_new(model, &opt, NULL, NULL, &e, &err), err);
    assert_in_range(pp_engine_n_ctx(e), 64, 10 * 64);
    st = *pp_engine_stats(e);
    assert_true(st.kv_bytes_total <= opt.kv_memory);
    assert_true((int64_t)st.tiers[1].pages_total >= pp_engine_n_ctx(e) / PP_PAGE_TOKENS);
    pp_engine_free(e);
    pp_model_close(model);
}

TEST_GROUP(windows)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafted_states),
        cmocka_unit_test(same_bits), cmocka_unit_test(wide_windows), cmocka_unit_test(trees),
        cmocka_unit_test(bounded),   cmocka_unit_test(rewinds), cmocka_unit_test(few_rows_stay),
        cmocka_unit_test(marks),
        cmocka_unit_test(any_order), cmocka_unit_test(saved),        cmocka_unit_test(memory_is_divided),
        cmocka_unit_test(states_refuse),
    };
    return cmocka_run_group_tests_name("windows", tests, NULL, NULL);
}
