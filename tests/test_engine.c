/* test_engine.c - the engine: a row's bits do not depend on the other rows of its batch, on threads or on kernels;
 * sequences share pages, copy them on write, forget and branch. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/cpu/ops.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/kv.h"
#include "engine/types.h"
#include "tests/decoder_model.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

struct rig {
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_seq *seq;
    int64_t n_vocab;
};

static struct rig rig(const char *path, const char *kernels, int n_threads, enum pp_kv_type kv)
{
    struct rig r;
    struct pp_error err;
    struct pp_engine_options opt = {.kernels = kernels, .n_threads = n_threads, .kv_type = kv, .kv_memory = 64u << 20};
    assert_ok(pp_model_open(path, &r.model, &err), err);
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    assert_ok(pp_seq_new(r.engine, &r.seq, &err), err);
    r.n_vocab = pp_model_info(r.model)->n_vocab;
    return r;
}

static void unrig(struct rig *r)
{
    pp_seq_free(r->seq);
    pp_engine_free(r->engine);
    pp_model_close(r->model);
}

static int32_t token_at(int64_t i)
{
    return (int32_t)((i * 37 + 11) % 320);
}

/* Feeds token_at(0 .. n) in steps of `rows`; keeps the logits of all rows from row `from` on. */
static void feed(struct rig *r, struct pp_seq *s, int64_t n, int rows, int64_t from, float *logits)
{
    struct pp_error err;
    struct pp_row *batch = pp_calloc((size_t)rows, sizeof *batch);
    while (pp_seq_len(s) < n) {
        int64_t at = pp_seq_len(s);
        int m = n - at < rows ? (int)(n - at) : rows;
        for (int i = 0; i < m; i++)
            batch[i] = (struct pp_row){.seq = s, .token = token_at(at + i), .parent = PP_PARENT_PREVIOUS,
                                       .out = at + i >= from ? PP_OUT_LOGITS : PP_OUT_NONE};
        assert_ok(pp_step(r->engine, batch, m, NULL, &err), err);
        for (int i = 0; i < m; i++)
            if (at + i >= from)
                memcpy(logits + (at + i - from) * r->n_vocab, pp_step_output(r->engine, i),
                       (size_t)r->n_vocab * sizeof *logits);
            else
                assert_null(pp_step_output(r->engine, i));
    }
    pp_free(batch);
}

/* Rows of several sequences in one batch give the same as each sequence alone. */
static void mixed_batch(void **state)
{
    (void)state;
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    struct rig r = rig(tiny_model(&shape), NULL, 2, PP_KV_Q8);
    struct pp_seq *other;
    struct pp_error err;
    float *alone = pp_malloc((size_t)(20 * r.n_vocab) * sizeof *alone);
    feed(&r, r.seq, 20, 20, 0, alone);
    pp_seq_truncate(r.seq, 0);
    assert_ok(pp_seq_new(r.engine, &other, &err), err);
    for (int at = 0; at < 20; at += 5) {
        struct pp_row rows[10];
        for (int i = 0; i < 10; i++) /* interleaved with another sequence, which reads other tokens */
            rows[i] = (struct pp_row){.seq = i % 2 ? other : r.seq,
                                      .token = i % 2 ? 7 : token_at(at + i / 2),
                                      .parent = PP_PARENT_PREVIOUS,
                                      .out = i % 2 ? PP_OUT_NONE : PP_OUT_LOGITS};
        assert_ok(pp_step(r.engine, rows, 10, NULL, &err), err);
        for (int i = 0; i < 5; i++)
            assert_memory_equal(pp_step_output(r.engine, 2 * i), alone + (at + i) * r.n_vocab,
                                (size_t)r.n_vocab * sizeof *alone);
    }
    pp_seq_free(other);
    pp_free(alone);
    unrig(&r);
}

/* A fork shares pages without copying; a shared page is copied only when it is written to. */
static void forks(void **state)
{
    (void)state;
    struct tiny_shape shape = tiny_shape(PP_TYPE_F32);
    struct rig r = rig(tiny_model(&shape), NULL, 2, PP_KV_F32);
    struct pp_seq *fork;
    struct pp_error err;
    size_t row = (size_t)r.n_vocab * sizeof(float);
    float *a = pp_malloc(row * 30), *b = pp_malloc(row * 30);
    feed(&r, r.seq, 200, 64, 1000, NULL);
    uint64_t used = pp_engine_stats(r.engine)->pages_used, passes = pp_engine_stats(r.engine)->passes;
    assert_int_equal(used, 4);
    assert_ok(pp_seq_fork(r.seq, 190, &fork, &err), err);
    assert_int_equal(pp_seq_len(fork), 190);
    assert_int_equal(pp_engine_stats(r.engine)->pages_used, used);
    assert_int_equal(pp_engine_stats(r.engine)->kv_copied_bytes, 0);
    assert_int_equal(pp_engine_stats(r.engine)->passes, passes);
    feed(&r, fork, 220, 7, 190, b); /* writes into the third page, which is shared, and continues */
    assert_int_equal(pp_engine_stats(r.engine)->kv_copied_bytes, pp_engine_stats(r.engine)->page_bytes);
    feed(&r, r.seq, 220, 5, 200, a);
    assert_memory_equal(a, b + 10 * r.n_vocab, row * 20);
    pp_seq_truncate(r.seq, 0);
    feed(&r, r.seq, 220, 220, 190, a);
    assert_memory_equal(a, b, row * 30);
    pp_seq_free(fork);
    pp_seq_truncate(r.seq, 0);
    assert_int_equal(pp_engine_stats(r.engine)->pages_used, 0);
    pp_free(a);
    pp_free(b);
    unrig(&r);
}

/* A tree's branches attend to their ancestors only. Committing one leaves the same state as computing only that one. */
static void trees_behind(int base, const char *path)
{
    static const enum pp_kv_type types[] = {PP_KV_F32, PP_KV_F16, PP_KV_Q8, PP_KV_Q8_0, PP_KV_FP8, PP_KV_Q4_0};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        struct rig r = rig(path, NULL, 2, types[t]);
        struct pp_error err;
        size_t row = (size_t)r.n_vocab * sizeof(float);
        float *expected = pp_malloc(row * 4), *after = pp_malloc(row);
        static const int32_t branch[] = {5, 9, 14};
        feed(&r, r.seq, base, base, 1000, NULL);
        for (int i = 0; i < 3; i++) {
            struct pp_row one = {.seq = r.seq, .token = branch[i], .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
            assert_ok(pp_step(r.engine, &one, 1, NULL, &err), err);
            memcpy(expected + i * r.n_vocab, pp_step_output(r.engine, 0), row);
        }
        struct pp_row next = {.seq = r.seq, .token = 3, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
        assert_ok(pp_step(r.engine, &next, 1, NULL, &err), err);
        memcpy(after, pp_step_output(r.engine, 0), row);
        pp_seq_truncate(r.seq, base);
        /*  0:5 ─ 2:9 ─ 5:14      rows 1, 3, 4 are other branches  */
        struct pp_row tree[] = {
            {.token = 5, .parent = PP_PARENT_COMMITTED},
            {.token = 6, .parent = PP_PARENT_COMMITTED},
            {.token = 9, .parent = 0},
            {.token = 9, .parent = 1},
            {.token = 8, .parent = 0},
            {.token = 14, .parent = 2},
        };
        for (int i = 0; i < 6; i++) {
            tree[i].seq = r.seq;
            tree[i].out = PP_OUT_LOGITS;
        }
        assert_ok(pp_step(r.engine, tree, 6, NULL, &err), err);
        assert_memory_equal(pp_step_output(r.engine, 0), expected, row);
        assert_memory_equal(pp_step_output(r.engine, 2), expected + r.n_vocab, row);
        assert_memory_equal(pp_step_output(r.engine, 5), expected + 2 * r.n_vocab, row);
        assert_memory_not_equal(pp_step_output(r.engine, 3), expected + r.n_vocab, row);
        const int32_t keep[] = {base, base + 2, base + 5};
        assert_ok(pp_seq_keep(r.seq, base, keep, 3, &err), err);
        assert_int_equal(pp_seq_len(r.seq), base + 3);
        assert_memory_equal(pp_seq_tokens(r.seq) + base, branch, sizeof branch);
        assert_ok(pp_step(r.engine, &next, 1, NULL, &err), err);
        assert_memory_equal(pp_step_output(r.engine, 0), after, row);
        struct pp_row wrong = {.seq = r.seq, .token = 1, .parent = 3};
        assert_int_equal(pp_step(r.engine, &wrong, 1, NULL, &err), PP_ERR_USAGE);
        pp_free(expected);
        pp_free(after);
        unrig(&r);
    }
}

/* Over the borders of pages and of chunks of attention. */
static void trees(void **state)
{
    (void)state;
    const struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    const char *path = tiny_model(&shape);
    trees_behind(62, path);
    trees_behind(254, path);
    trees_behind(256, path);
}

/* With ALiBi, a tree's row has the same distances to its ancestors as it would have in a chain. */
static void trees_with_alibi(void **state)
{
    struct decoder_shape s = decoder_shape("bloom");
    (void)state;
    s.n_vocab = 320;
    s.n_ctx = 512;
    struct decoder *d = decoder_make(&s);
    trees_behind(62, decoder_write(d));
    decoder_free(d);
}

/* Steps that fail leave the sequence unchanged. */
static void refusals(void **state)
{
    (void)state;
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    struct pp_error err;
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_cancel cancel;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    struct pp_engine_options opt = {.n_ctx = 100, .kv_type = PP_KV_F16};
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    struct pp_row rows[101];
    for (int i = 0; i < 101; i++)
        rows[i] = (struct pp_row){.seq = s, .token = 1, .parent = PP_PARENT_PREVIOUS};
    assert_int_equal(pp_step(e, rows, 101, NULL, &err), PP_ERR_CONTEXT);
    assert_int_equal(pp_seq_len(s), 0);
    assert_int_equal(pp_engine_stats(e)->pages_used, 0);
    assert_ok(pp_step(e, rows, 70, NULL, &err), err);
    atomic_init(&cancel.requested, true);
    assert_int_equal(pp_step(e, rows, 10, &cancel, &err), PP_ERR_CANCELLED);
    assert_int_equal(pp_seq_len(s), 70);
    rows[3].token = shape.n_vocab;
    assert_int_equal(pp_step(e, rows, 10, NULL, &err), PP_ERR_USAGE);
    rows[3].token = -1; /* there is no vector either */
    assert_int_equal(pp_step(e, rows, 10, NULL, &err), PP_ERR_USAGE);
    assert_int_equal(pp_seq_len(s), 70);
    pp_seq_free(s);
    pp_engine_free(e);
    opt = (struct pp_engine_options){.n_ctx = 1000, .kv_type = PP_KV_F32, .kv_memory = 1 << 20};
    assert_int_equal(pp_engine_new(m, &opt, NULL, NULL, &e, &err), PP_ERR_NOMEM);
    opt = (struct pp_engine_options){.kernels = "mmx"};
    assert_int_equal(pp_engine_new(m, &opt, NULL, NULL, &e, &err), PP_ERR_USAGE);
    pp_model_close(m);
}

/* All sequences together may not use more pages than there are. */
static void page_limit(void **state)
{
    (void)state;
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    struct pp_error err;
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *a, *b;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    struct pp_engine_options opt = {.n_ctx = 128, .kv_type = PP_KV_F32};
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    opt.kv_memory = pp_engine_stats(e)->page_bytes * 3;
    pp_engine_free(e);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_int_equal(pp_engine_stats(e)->pages_total, 3);
    assert_ok(pp_seq_new(e, &a, &err), err);
    assert_ok(pp_seq_new(e, &b, &err), err);
    struct pp_row rows[128];
    for (int i = 0; i < 128; i++)
        rows[i] = (struct pp_row){.seq = a, .token = 1, .parent = PP_PARENT_PREVIOUS};
    assert_ok(pp_step(e, rows, 128, NULL, &err), err);
    for (int i = 0; i < 128; i++)
        rows[i].seq = b;
    assert_int_equal(pp_step(e, rows, 128, NULL, &err), PP_ERR_NOMEM);
    assert_int_equal(pp_engine_stats(e)->pages_used, 2);
    assert_ok(pp_step(e, rows, 64, NULL, &err), err);
    pp_seq_free(a);
    assert_ok(pp_step(e, rows, 64, NULL, &err), err);
    pp_seq_free(b);
    pp_engine_free(e);
    pp_model_close(m);
}

/* The Nth allocation fails, for every N: loading reports it and leaks nothing. */
static void no_memory(void **state)
{
    (void)state;
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q4_K);
    shape.n_layer = 1;
    const char *path = tiny_model(&shape);
    bool loaded = false;
    for (uint64_t nth = 1; !loaded; nth++) {
        struct pp_model *m = NULL;
        struct pp_engine *e = NULL;
        struct pp_seq *s = NULL;
        struct pp_error err = {0};
        struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 128, .max_rows = 8, .kv_memory = 16u << 20};
        pp_mem_fail_at(nth, 0);
        enum pp_code code = pp_model_open(path, &m, &err);
        if (!code)
            code = pp_engine_new(m, &opt, NULL, NULL, &e, &err);
        if (!code)
            code = pp_seq_new(e, &s, &err);
        pp_mem_fail_at(0, 0);
        if (code && code != PP_ERR_NOMEM)
            fail_msg("allocation %llu failed and the error was %d: %s", (unsigned long long)nth, (int)code, err.text);
        loaded = code == PP_OK;
        pp_seq_free(s);
        pp_engine_free(e);
        pp_model_close(m);
        assert_true(nth < 10000);
    }
}

/* Creating an engine can be stopped at any tensor; everything is freed. */
struct stopper {
    struct pp_cancel cancel;
    int calls, stop_at;
};

static void stop_making(void *user, uint64_t done, uint64_t total)
{
    struct stopper *s = user;
    assert_true(done <= total);
    if (++s->calls == s->stop_at)
        pp_cancel_request(&s->cancel);
}

static void stopped_load(void **state)
{
    (void)state;
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q4_K);
    struct pp_model *m;
    struct pp_error err;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    for (int stop_at = 0; stop_at < 4; stop_at++) {
        struct pp_engine *e;
        struct stopper s = {.stop_at = stop_at};
        struct pp_engine_options opt = {.n_threads = 2, .kv_memory = 16u << 20, .cancel = &s.cancel};
        if (stop_at == 0)
            pp_cancel_request(&s.cancel);
        assert_int_equal(pp_engine_new(m, &opt, stop_making, &s, &e, &err), PP_ERR_CANCELLED);
        assert_null(e);
        assert_int_equal(s.calls, stop_at);
    }
    pp_model_close(m);
}

/* Returns the error of a step with the last token of the vocabulary. */
static enum pp_code step_on_last_token(struct pp_engine *e, struct pp_error *err)
{
    struct pp_seq *s;
    assert_ok(pp_seq_new(e, &s, err), *err);
    const struct pp_row row = {.seq = s,
                               .token = (int32_t)pp_model_info(pp_engine_model(e))->n_vocab - 1,
                               .parent = PP_PARENT_PREVIOUS,
                               .out = PP_OUT_LOGITS};
    enum pp_code code = pp_step(e, &row, 1, NULL, err);
    assert_int_equal(pp_seq_len(s), code == PP_OK);
    pp_seq_free(s);
    return code;
}

/* A model with NaN or infinity anywhere is refused by the tensor's name: norms are checked when the engine is made,
 * matrices by the first step that needs the rows in question, and by every later one. */
static void values_that_are_no_numbers(void **state)
{
    static const char *const names[] = {"token_embd.weight", "blk.0.attn_norm.weight", "blk.1.attn_k.weight",
                                        "blk.1.ffn_down.weight", "output_norm.weight", "output.weight"};
    static const uint32_t odd[] = {0x7fc00000, 0x7f800000, 0xff800000}; /* NaN, infinity, -infinity */
    const struct tiny_shape shape = {.n_vocab = 35, .n_embd = 32, .n_layer = 2, .n_head = 1, .n_head_kv = 1,
                                     .head_dim = 32, .n_ff = 40, .n_ctx = 64, .type = PP_TYPE_F32, .seed = 1};
    const struct pp_engine_options opt = {.n_threads = 2, .kv_memory = 1 << 20, .max_rows = 4};
    char *file, path[300];
    size_t size;
    struct pp_error err;
    (void)state;
    assert_ok(pp_read_file(tiny_model(&shape), 1 << 24, &file, &size, &err), err);
    snprintf(path, sizeof path, "%s/no-numbers.gguf", test_tmpdir());
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct pp_gguf *g;
        struct pp_model *m;
        struct pp_engine *e;
        uint32_t good;
        assert_ok(pp_gguf_open_memory(file, size, "tiny", &g, &err), err);
        const struct pp_tensor *t = pp_gguf_tensor(g, names[i]);
        char *last = file + ((const char *)t->data - file) + t->size - sizeof good; /* t->data points into file */
        pp_gguf_close(g);
        memcpy(&good, last, sizeof good);
        memcpy(last, &odd[i % 3], sizeof good);
        assert_ok(pp_write_file(path, file, size, 0600, &err), err);
        memcpy(last, &good, sizeof good);
        assert_ok(pp_model_open(path, &m, &err), err);
        enum pp_code code = pp_engine_new(m, &opt, NULL, NULL, &e, &err);
        assert_int_equal(code, strstr(names[i], "norm") ? PP_ERR_FORMAT : PP_OK);
        for (int again = 0; e && again < 2; again++) {
            err.text[0] = 0;
            assert_int_equal(step_on_last_token(e, &err), PP_ERR_FORMAT);
            assert_non_null(strstr(err.text, names[i]));
        }
        if (e && strcmp(names[i], "token_embd.weight") != 0)
            assert_int_equal(pp_engine_settle(e, NULL, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, names[i]));
        pp_engine_free(e);
        pp_model_close(m);
    }
    pp_free(file);
}

/* Context lengths and limits at the extremes of their ranges. */
static void impossible_sizes(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    static const struct pp_engine_options asked[] = {
        {.n_ctx = INT32_MAX, .kv_memory = 1, .max_rows = 4},
        {.n_ctx = INT32_MAX, .kv_memory = 1 << 20, .max_rows = 4},
        {.kv_memory = 1, .max_rows = 4},
    };
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_error err;
    (void)state;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        assert_int_equal(pp_engine_new(m, &asked[i], NULL, NULL, &e, &err), PP_ERR_NOMEM);
        assert_non_null(strstr(err.text, asked[i].kv_memory > 1 ? "--ctx-size" : "--kv-memory"));
    }
    pp_model_close(m);
}

/* The engine installs its SIGBUS handler with the first mapped file; cmocka replaces it by its own for each test. */
static struct sigaction engine_handler;

__attribute__((constructor)) static void note_engine_handler(void)
{
    struct pp_map map;
    if (pp_map_open("/proc/self/exe", &map, NULL) == PP_OK)
        pp_map_close(&map);
    sigaction(SIGBUS, NULL, &engine_handler);
}

/* A file that another program cuts short ends the pass with an error that names it, and nothing else. */
static void file_cut_short(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_F32); /* float weights are used in the mapped file */
    const char *path = tiny_model(&shape);
    struct rig r = rig(path, NULL, 2, PP_KV_F16);
    struct pp_row row = {.seq = r.seq, .token = 1, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    struct pp_error err;
    (void)state;
    assert_true(engine_handler.sa_flags & SA_SIGINFO);
    sigaction(SIGBUS, &engine_handler, NULL);
    assert_ok(pp_step(r.engine, &row, 1, NULL, &err), err);
    assert_int_equal(truncate(path, 8192), 0);
    assert_int_equal(pp_step(r.engine, &row, 1, NULL, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(pp_seq_len(r.seq), 1);
    struct pp_sha256 id;
    assert_int_equal(pp_model_identity(r.model, NULL, &id, &err), PP_ERR_IO);
    unrig(&r);
}

/* Heads that are larger than the backend's work space are refused before anything is written to it. */
static void heads_too_large(void **state)
{
    static const struct { int n_head, n_head_kv, head_dim; enum pp_code code; } cases[] = {
        {1, 1, PP_MAX_HEAD_DIM, PP_OK}, {1, 1, PP_MAX_HEAD_DIM + 2, PP_ERR_UNSUPPORTED},
        {PP_MAX_GROUP, 1, 2, PP_OK},    {PP_MAX_GROUP + 1, 1, 2, PP_ERR_UNSUPPORTED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tiny_shape shape = tiny_shape(PP_TYPE_F32);
        const struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 64, .kv_memory = 8 << 20, .max_rows = 4};
        struct pp_model *m;
        struct pp_engine *e;
        struct pp_seq *s;
        struct pp_error err;
        shape.n_head = cases[i].n_head;
        shape.n_head_kv = cases[i].n_head_kv;
        shape.head_dim = cases[i].head_dim;
        assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
        enum pp_code code = pp_engine_new(m, &opt, NULL, NULL, &e, &err);
        if (code != cases[i].code)
            fail_msg("%d x %d: code %d", shape.n_head, shape.head_dim, (int)code);
        if (!code) {
            assert_ok(pp_seq_new(e, &s, &err), err);
            struct pp_row row = {.seq = s, .token = 1, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
            assert_ok(pp_step(e, &row, 1, NULL, &err), err);
            assert_true(isfinite(pp_step_output(e, 0)[0]));
            pp_seq_free(s);
            pp_engine_free(e);
        }
        pp_model_close(m);
    }
}

/* A page's identity depends on its tokens, on every page before it, and on the key. */
static void page_identities(void **state)
{
    struct pp_sha256 key = {{1}}, other_key = {{2}};
    int32_t a[PP_PAGE_TOKENS] = {1, 2, 3}, b[PP_PAGE_TOKENS] = {1, 2, 4};
    (void)state;
    struct pp_hash128 first = pp_page_identity(NULL, &key, a), same = pp_page_identity(NULL, &key, a);
    assert_memory_equal(&first, &same, sizeof first);
    struct pp_hash128 others[] = {
        pp_page_identity(NULL, &key, b),
        pp_page_identity(NULL, &other_key, a),
        pp_page_identity(&first, &key, a),
        pp_page_identity(&first, &key, b),
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_memory_not_equal(&first, &others[i], sizeof first);
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(&others[i], &others[j], sizeof first);
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* A process's limit of address space (ulimit -v) can be less than the free memory: by default the KV cache respects
 * it. */
static void limited_address_space(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_F16);
    struct pp_engine_options opt = {.n_threads = 2};
    struct rlimit before, most;
    unsigned long long pages = 0;
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_error err;
    (void)state;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    FILE *f = fopen("/proc/self/statm", "re");
    assert_true(f && fscanf(f, "%llu", &pages) == 1);
    fclose(f);
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    most = before;
    most.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (1u << 30);
    assert_int_equal(setrlimit(RLIMIT_AS, &most), 0);
    enum pp_code code = pp_engine_new(m, &opt, NULL, NULL, &e, &err);
    setrlimit(RLIMIT_AS, &before);
    assert_ok(code, err);
    assert_true(pp_engine_stats(e)->pages_total * pp_engine_stats(e)->page_bytes <= most.rlim_cur / 4);
    pp_engine_free(e);
    pp_model_close(m);
}
#endif

TEST_GROUP(engine)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_batch),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(limited_address_space),
#endif
        cmocka_unit_test(forks),                      cmocka_unit_test(trees), cmocka_unit_test(trees_with_alibi),
        cmocka_unit_test(refusals),                   cmocka_unit_test(page_limit),
        cmocka_unit_test(no_memory),                  cmocka_unit_test(stopped_load),
        cmocka_unit_test(values_that_are_no_numbers), cmocka_unit_test(impossible_sizes),
        cmocka_unit_test(file_cut_short),             cmocka_unit_test(heads_too_large),
        cmocka_unit_test(page_identities),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
