/* test_pages.c - KV pages are found by their content's hash chain: by other sequences, and after their own is closed.
 * A hit gives the bits of a cold run. Pages that nobody holds are evicted, the least recently used first. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/engine_int.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { MOST = 400 };

struct rig {
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_adapter *adapter;
    size_t row; /* bytes of logits */
};

/* n_pages: how many there are in all. */
static struct rig rig(int n_pages, enum pp_kv_type kv)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 512, .kv_type = kv};
    struct rig r;
    struct pp_error err;
    assert_ok(pp_model_open(tiny_model(&shape), &r.model, &err), err);
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    opt.kv_memory = pp_engine_stats(r.engine)->page_bytes * (uint64_t)n_pages;
    pp_engine_free(r.engine);
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    assert_ok(pp_adapter_load(r.model, tiny_adapter(&shape, 4), &r.adapter, &err), err);
    r.row = (size_t)pp_model_info(r.model)->n_vocab * sizeof(float);
    return r;
}

static void unrig(struct rig *r)
{
    pp_engine_free(r->engine);
    pp_adapter_free(r->adapter);
    pp_model_close(r->model);
}

static struct pp_seq *new_seq(const struct rig *r)
{
    struct pp_seq *s;
    struct pp_error err;
    assert_ok(pp_seq_new(r->engine, &s, &err), err);
    return s;
}

static void use_adapter(const struct rig *r, struct pp_seq *s, float scale)
{
    struct pp_error err;
    struct pp_adapter_use use = {r->adapter, scale};
    assert_ok(pp_seq_set_adapters(s, &use, 1, &err), err);
}

/* Computes the missing ones of n tokens in steps of `rows`; last: the last one's logits. */
static void feed(const struct rig *r, struct pp_seq *s, const int32_t *tokens, int64_t n, int rows, float *logits)
{
    struct pp_error err;
    struct pp_row batch[64];
    int m = 0;
    while (pp_seq_len(s) < n) {
        int64_t at = pp_seq_len(s);
        m = n - at < rows ? (int)(n - at) : rows;
        for (int i = 0; i < m; i++)
            batch[i] = (struct pp_row){.seq = s, .token = tokens[at + i], .parent = PP_PARENT_PREVIOUS,
                                       .out = at + i == n - 1 ? PP_OUT_LOGITS : PP_OUT_NONE};
        assert_ok(pp_step(r->engine, batch, m, NULL, &err), err);
    }
    if (logits)
        memcpy(logits, pp_step_output(r->engine, m - 1), r->row);
}

/* Feeds a prompt as an answer does: keeps the common beginning, takes pages that are found, computes the rest. Returns
 * the number of tokens that did not have to be computed. */
static int64_t ask(const struct rig *r, struct pp_seq *s, const int32_t *tokens, int64_t n, int rows, float *logits)
{
    int64_t kept = 0;
    while (kept < n - 1 && kept < pp_seq_len(s) && pp_seq_tokens(s)[kept] == tokens[kept])
        kept++;
    pp_seq_truncate(s, kept);
    kept += pp_seq_adopt(s, tokens, n - 1);
    assert_int_equal(pp_seq_len(s), kept);
    assert_memory_equal(pp_seq_tokens(s), tokens, (size_t)kept * sizeof *tokens);
    feed(r, s, tokens, n, rows, logits);
    return kept;
}

/* The same in a fresh engine without cached pages. */
static void ask_cold(float scale, enum pp_kv_type kv, const int32_t *tokens, int64_t n, float *logits)
{
    struct rig r = rig(8, kv);
    struct pp_seq *s = new_seq(&r);
    use_adapter(&r, s, scale);
    feed(&r, s, tokens, n, 64, logits);
    pp_seq_free(s);
    unrig(&r);
}

static void write_text(int32_t *tokens, int n, int which)
{
    for (int i = 0; i < n; i++)
        tokens[i] = (i * 37 + 11 * which + i / 50 * which) % 320;
}

/* A prompt is found again after its sequence was closed, by another sequence, and after an edit in the middle: it is
 * computed from the first page that differs. */
static void found_again(void **state)
{
    (void)state;
    struct rig r = rig(64, PP_KV_Q8);
    int32_t text[MOST];
    float *a = pp_malloc(r.row), *b = pp_malloc(r.row);
    write_text(text, MOST, 1);
    struct pp_seq *s = new_seq(&r), *other = new_seq(&r);
    assert_int_equal(ask(&r, s, text, 300, 64, a), 0);
    assert_int_equal(ask(&r, other, text, 300, 64, b), 256); /* while the first sequence still lives: four full pages */
    assert_memory_equal(a, b, r.row);
    assert_int_equal(pp_engine_stats(r.engine)->pages_used, 4 + 2);
    pp_seq_free(s);
    pp_seq_free(other);
    assert_int_equal(pp_engine_stats(r.engine)->pages_used, 0);
    assert_int_equal(pp_engine_stats(r.engine)->pages_cached, 4);
    s = new_seq(&r);
    assert_int_equal(ask(&r, s, text, 257, 7, a), 256);
    ask_cold(0, PP_KV_Q8, text, 257, b);
    assert_memory_equal(a, b, r.row);
    text[130] = 5; /* in the third page */
    assert_int_equal(ask(&r, s, text, 257, 64, a), 130); /* the sequence's own beginning of that page is still there */
    ask_cold(0, PP_KV_Q8, text, 257, b);
    assert_memory_equal(a, b, r.row);
    text[130] = (130 * 37 + 11 + 130 / 50) % 320; /* the original text again */
    assert_int_equal(ask(&r, s, text, 257, 64, a), 256);
    assert_int_equal(ask(&r, s, text, 256, 64, NULL), 255); /* the last token is always computed */
    pp_seq_free(s);
    pp_free(a);
    pp_free(b);
    unrig(&r);
}

/* Pages made under one adapter or strength are never found under another. */
static void adapters_apart(void **state)
{
    (void)state;
    static const float scales[] = {0, 1, 0.5f};
    struct rig r = rig(64, PP_KV_F16);
    int32_t text[MOST];
    float *a = pp_malloc(r.row), *b = pp_malloc(r.row);
    write_text(text, MOST, 2);
    struct pp_seq *s = new_seq(&r);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++) {
            use_adapter(&r, s, scales[i]);
            assert_int_equal(pp_seq_len(s), 0);
            assert_int_equal(ask(&r, s, text, 150, 64, a), round ? 149 : 0); /* the last token is always computed */
            ask_cold(scales[i], PP_KV_F16, text, 150, b);
            assert_memory_equal(a, b, r.row);
        }
    pp_seq_free(s);
    pp_free(a);
    pp_free(b);
    unrig(&r);
}

/* A last page that is not full is found again under its former adapters, but only after the same pages. */
static void tails_behind_others(void **state)
{
    (void)state;
    struct rig r = rig(64, PP_KV_F16);
    int32_t text[MOST];
    float *a = pp_malloc(r.row), *b = pp_malloc(r.row);
    write_text(text, MOST, 3);
    struct pp_seq *s = new_seq(&r), *other = new_seq(&r);
    assert_int_equal(ask(&r, s, text, 150, 64, NULL), 0);
    use_adapter(&r, s, 1); /* releases the last page */
    assert_int_equal(ask(&r, other, text, 150, 64, NULL), 149);
    text[100]++;
    assert_int_equal(ask(&r, other, text, 128, 64, NULL), 100);
    assert_int_equal(ask(&r, other, text, 150, 64, a), 128);
    ask_cold(0, PP_KV_F16, text, 150, b);
    assert_memory_equal(a, b, r.row);
    pp_seq_free(s);
    pp_seq_free(other);
    pp_free(a);
    pp_free(b);
    unrig(&r);
}

/* Pages that are held stay; of the others the least recently used are evicted. */
static void room_is_made(void **state)
{
    (void)state;
    struct rig r = rig(8, PP_KV_Q8); /* as many as one context needs */
    int32_t text[4][MOST];
    struct pp_seq *s = new_seq(&r), *held = new_seq(&r);
    struct pp_error err;
    for (int i = 0; i < 4; i++)
        write_text(text[i], MOST, 3 + i);
    ask(&r, held, text[0], 130, 64, NULL); /* 3 pages */
    ask(&r, s, text[1], 129, 64, NULL);    /* 3 pages, two of which have hashes */
    ask(&r, s, text[2], 129, 64, NULL);
    assert_int_equal(pp_engine_stats(r.engine)->pages_used, 6);
    assert_int_equal(pp_engine_stats(r.engine)->pages_cached, 2);
    ask(&r, s, text[3], 129, 64, NULL); /* evicts the pages of text 1 */
    assert_int_equal(ask(&r, s, text[2], 129, 64, NULL), 128);
    assert_int_equal(ask(&r, s, text[1], 129, 64, NULL), 0);
    assert_int_equal(ask(&r, s, text[0], 129, 64, NULL), 128);
    struct pp_row row = {.seq = held, .token = 1, .parent = PP_PARENT_PREVIOUS};
    for (int i = 130; i < 320; i++) /* takes all pages that are not held */
        assert_ok(pp_step(r.engine, &row, 1, NULL, &err), err);
    assert_memory_equal(pp_seq_tokens(held), text[0], 130 * sizeof text[0][0]);
    pp_seq_truncate(s, 0);
    assert_int_equal(pp_engine_stats(r.engine)->pages_used, 5);
    pp_seq_free(s);
    pp_seq_free(held);
    unrig(&r);
}

/* If all pages are held, a page with a hash is overwritten in place, and loses the hash. */
static void no_room_to_copy(void **state)
{
    (void)state;
    struct rig r = rig(8, PP_KV_F32);
    int32_t text[512];
    float *a = pp_malloc(r.row), *b = pp_malloc(r.row);
    write_text(text, 512, 9);
    struct pp_seq *s = new_seq(&r), *other = new_seq(&r);
    ask(&r, s, text, 512, 64, NULL);
    text[490] = 3;
    assert_int_equal(ask(&r, s, text, 500, 64, a), 490);
    ask_cold(0, PP_KV_F32, text, 500, b);
    assert_memory_equal(a, b, r.row);
    pp_seq_free(s);
    text[490] = (490 * 37 + 11 * 9 + 490 / 50 * 9) % 320;
    assert_int_equal(ask(&r, other, text, 512, 64, a), 448);
    pp_seq_free(other);
    pp_free(a);
    pp_free(b);
    unrig(&r);
}

/* Rows of a tree are found only after a branch was kept, and then only that branch. */
static void trees_are_kept_first(void **state)
{
    (void)state;
    struct rig r = rig(64, PP_KV_Q8);
    int32_t text[MOST];
    float *a = pp_malloc(r.row), *b = pp_malloc(r.row);
    struct pp_error err;
    write_text(text, MOST, 4);
    struct pp_seq *s = new_seq(&r), *other = new_seq(&r);
    feed(&r, s, text, 62, 62, NULL);
    struct pp_row tree[] = {
        {.seq = s, .token = 1, .parent = PP_PARENT_COMMITTED},
        {.seq = s, .token = text[62], .parent = PP_PARENT_COMMITTED},
        {.seq = s, .token = text[63], .parent = 1},
    };
    assert_ok(pp_step(r.engine, tree, 3, NULL, &err), err);
    text[62] = 1, text[63] = text[64] = 5; /* in the order of the tree's rows, which is no chain */
    assert_int_equal(ask(&r, other, text, 70, 64, NULL), 0);
    write_text(text, MOST, 4);
    assert_ok(pp_seq_keep(s, 62, (const int32_t[]){63, 64}, 2, &err), err);
    feed(&r, s, text, 66, 1, NULL);
    assert_int_equal(ask(&r, other, text, 80, 64, a), 64);
    ask_cold(0, PP_KV_Q8, text, 80, b);
    assert_memory_equal(a, b, r.row);
    pp_seq_free(s);
    pp_seq_free(other);
    pp_free(a);
    pp_free(b);
    unrig(&r);
}

/* Pages of inputs that are not tokens (vectors) have no hash. */
static void vectors_are_not_found(void **state)
{
    (void)state;
    struct rig r = rig(64, PP_KV_Q8);
    int32_t text[MOST];
    struct pp_error err;
    float vector[256] = {0.5f, -1};
    write_text(text, MOST, 5);
    struct pp_seq *s = new_seq(&r);
    struct pp_row row = {.seq = s, .token = -1, .vector = vector, .parent = PP_PARENT_PREVIOUS};
    feed(&r, s, text, 70, 64, NULL);
    assert_ok(pp_step(r.engine, &row, 1, NULL, &err), err);
    for (row.token = 1; pp_seq_len(s) < 200;)
        assert_ok(pp_step(r.engine, &row, 1, NULL, &err), err);
    pp_seq_free(s);
    assert_int_equal(pp_engine_stats(r.engine)->pages_cached, 1);
    unrig(&r);
}

/* Many conversations with a common beginning, edited, forked and closed, with few pages: always a cold run's bits. */
static void any_order(void **state)
{
    enum { SEQS = 3, ROUNDS = 120 };
    static const float scales[] = {0, 0, 1};
    (void)state;
    struct rig r = rig(14, PP_KV_Q8);
    struct pp_seq *seqs[SEQS];
    float scale[SEQS] = {0}, *a = pp_malloc(r.row), *b = pp_malloc(r.row);
    unsigned seed = 12345;
    uint64_t found = 0;
    struct pp_error err;
    for (int i = 0; i < SEQS; i++)
        seqs[i] = new_seq(&r);
    for (int round = 0; round < ROUNDS; round++) {
        int32_t text[MOST];
        int which = rand_r(&seed) % SEQS, n = 2 + rand_r(&seed) % 250, rows = 1 + rand_r(&seed) % 64;
        write_text(text, MOST, 6 + rand_r(&seed) % 2);
        if (rand_r(&seed) % 2)
            text[rand_r(&seed) % n] = 1 + rand_r(&seed) % 3;
        switch (rand_r(&seed) % 6) {
        case 0: {
            struct pp_seq *fork;
            int from = rand_r(&seed) % SEQS;
            assert_ok(pp_seq_fork(seqs[from], rand_r(&seed) % 300, &fork, &err), err);
            pp_seq_free(seqs[which]);
            seqs[which] = fork;
            scale[which] = scale[from];
            break;
        }
        case 1:
            pp_seq_free(seqs[which]);
            seqs[which] = new_seq(&r);
            scale[which] = 0;
            break;
        case 2:
            scale[which] = scales[rand_r(&seed) % 3];
            use_adapter(&r, seqs[which], scale[which]);
            break;
        default:
            break;
        }
        found += (uint64_t)ask(&r, seqs[which], text, n, rows, a);
        if (round % 4 == 0) {
            ask_cold(scale[which], PP_KV_Q8, text, n, b);
            assert_memory_equal(a, b, r.row);
        }
    }
    assert_true(found > 64 * ROUNDS / 4);
    for (int i = 0; i < SEQS; i++)
        pp_seq_free(seqs[i]);
    assert_int_equal(pp_engine_stats(r.engine)->pages_used, 0);
    pp_free(a);
    pp_free(b);
    unrig(&r);
}

/* With one or two pages in all, a sequence that finds no free page gets an error, loses nothing, and goes on when
 * there is room again. */
static void hardly_any_memory(void **state)
{
    (void)state;
    for (int n_pages = 1; n_pages <= 2; n_pages++) {
        const int n_ctx = n_pages * PP_PAGE_TOKENS;
        struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
        struct pp_engine_options opt = {.n_threads = 1, .n_ctx = n_ctx, .kv_type = PP_KV_Q8};
        struct rig r = {0};
        struct pp_error err;
        int32_t text[2][MOST];
        assert_ok(pp_model_open(tiny_model(&shape), &r.model, &err), err);
        assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
        opt.kv_memory = pp_engine_stats(r.engine)->page_bytes * (uint64_t)n_pages;
        pp_engine_free(r.engine);
        assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
        r.row = (size_t)pp_model_info(r.model)->n_vocab * sizeof(float);
        float *a = pp_malloc(r.row), *b = pp_malloc(r.row);
        struct pp_seq *first = new_seq(&r), *other = new_seq(&r), *fork;
        for (int i = 0; i < 2; i++)
            write_text(text[i], MOST, 20 + i);
        for (int round = 0; round < 3; round++) {
            ask(&r, first, text[0], n_ctx - 3, 16, a);
            struct pp_row row = {.seq = other, .token = 1, .parent = PP_PARENT_PREVIOUS};
            assert_int_equal(pp_step(r.engine, &row, 1, NULL, &err), PP_ERR_NOMEM);
            assert_int_equal(pp_seq_len(other), 0);
            assert_ok(pp_seq_fork(first, n_ctx - 3, &fork, &err), err);
            row.seq = fork; /* its last page is shared, and there is no page for a copy */
            assert_int_equal(pp_step(r.engine, &row, 1, NULL, &err), PP_ERR_NOMEM);
            assert_int_equal(pp_seq_len(fork), n_ctx - 3);
            pp_seq_free(fork);
            ask(&r, first, text[0], n_ctx, 16, a);
            pp_seq_truncate(first, 0);
            ask(&r, other, text[1], n_ctx, 16, b);
            pp_seq_truncate(other, 0);
            if (round > 0)
                continue;
            ask_cold(0, PP_KV_Q8, text[1], n_ctx, a);
            assert_memory_equal(a, b, r.row);
        }
        pp_seq_free(first);
        pp_seq_free(other);
        pp_free(a);
        pp_free(b);
        pp_engine_free(r.engine);
        pp_model_close(r.model);
    }
}

/* An answer reports the tokens that it found in pages as cached. */
static void answers_use_them(void **state)
{
    (void)state;
    struct rig r = rig(64, PP_KV_Q8);
    struct pp_gen_options opt = {.max_tokens = 1};
    struct pp_error err;
    int32_t text[MOST];
    write_text(text, MOST, 8);
    for (int i = 0; i < 2; i++) {
        struct pp_seq *s = new_seq(&r);
        struct pp_gen *g;
        assert_ok(pp_gen_start(s, text, 200, &opt, NULL, &g, &err), err);
        pp_gen_free(g);
        pp_seq_free(s);
        assert_int_equal(pp_engine_stats(r.engine)->cached_tokens, i ? 192 : 0);
        assert_int_equal(pp_engine_stats(r.engine)->prefill_tokens, i ? 208 : 200);
    }
    unrig(&r);
}

/* How many of these pages are resident. */
static int ready(const struct pp_kv_pool *kv, int from, int to)
{
    const size_t system_page = (size_t)sysconf(_SC_PAGESIZE);
    int n = 0;
    for (int i = from; i < to; i++) {
        unsigned char first, last;
        const uintptr_t at = (uintptr_t)pp_page_data(kv, i), end = (uintptr_t)pp_page_data(kv, i + 1) - 1;
        assert_int_equal(mincore((void *)(at / system_page * system_page), 1, &first), 0);
        assert_int_equal(mincore((void *)(end / system_page * system_page), 1, &last), 0);
        n += (first & last & 1);
    }
    return n;
}

/* Memory is faulted in ahead of use: as many pages as asked for, but at most half of those left. Pages in use keep
 * their content. */
static void cleared_ahead(void **state)
{
    enum { PAGES = 43, HELD = 3, SPILL = 2 }; /* SPILL: the system may fault in up to this many more at once, since it
                                                 works in units of 2 MiB */
    struct pp_kv_layout l;
    struct pp_kv_pool *kv;
    struct pp_error err;
    struct pp_cancel cancel = {0};
    (void)state;
    pp_kv_layout_init_values(&l, PP_KV_F32, 8, 8, 64, 64);
    assert_int_equal(l.page_bytes, 2 << 20);
    assert_ok(pp_kv_pool_new(&l, PAGES * l.page_bytes, &kv, &err), err);
#ifdef MADV_POPULATE_WRITE
    const size_t system_page = (size_t)sysconf(_SC_PAGESIZE);
    void *probe = (void *)((uintptr_t)pp_page_data(kv, 0) / system_page * system_page);
    if (madvise(probe, 1, MADV_POPULATE_WRITE) != 0) { /* Linux before 5.14 */
        pp_kv_pool_free(kv);
        return;
    }
    for (int i = 0; i < HELD; i++)
        memset(pp_page_data(kv, pp_page_take(kv)), 0x5A + i, l.page_bytes);
    assert_int_equal(ready(kv, HELD + SPILL, PAGES), 0);
    pp_cancel_request(&cancel);
    pp_kv_pool_prefault(kv, 8, &cancel);
    assert_int_equal(ready(kv, HELD + SPILL, PAGES), 0);
    pp_kv_pool_prefault(kv, 8, NULL);
    assert_int_equal(ready(kv, HELD, HELD + 8), 8);
    assert_int_equal(ready(kv, HELD + 8 + SPILL, PAGES), 0);
    pp_kv_pool_prefault(kv, UINT64_MAX / l.page_bytes, NULL);
    assert_int_equal(ready(kv, 0, HELD + (PAGES - HELD) / 2), HELD + (PAGES - HELD) / 2);
    assert_int_equal(ready(kv, HELD + (PAGES - HELD) / 2 + SPILL, PAGES), 0);
    for (int i = 0; i < HELD; i++)
        for (size_t k = 0; k < l.page_bytes; k += 4093)
            assert_int_equal(pp_page_data(kv, i)[k], 0x5A + i);
#endif
    pp_kv_pool_free(kv);
}

/* A pool for n pages holds n pages, also if their size is not a multiple of the cache line. */
static void as_many_as_were_counted(void **state)
{
    enum { PAGES = 300 };
    struct pp_kv_layout l;
    struct pp_kv_pool *kv;
    struct pp_error err;
    (void)state;
    pp_kv_layout_init_compressed(&l, PP_KV_FP8, 1, 64);
    pp_kv_layout_set_stride(&l, 4);
    assert_int_not_equal(l.page_bytes % 64, 0);
    assert_ok(pp_kv_pool_new(&l, PAGES * l.page_bytes, &kv, &err), err);
    assert_int_equal(pp_kv_pool_total(kv), PAGES);
    pp_kv_pool_free(kv);
}

TEST_GROUP(pages)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_again),          cmocka_unit_test(adapters_apart),
        cmocka_unit_test(tails_behind_others),
        cmocka_unit_test(room_is_made),         cmocka_unit_test(no_room_to_copy),
        cmocka_unit_test(trees_are_kept_first), cmocka_unit_test(vectors_are_not_found),
        cmocka_unit_test(any_order),            cmocka_unit_test(answers_use_them),
        cmocka_unit_test(hardly_any_memory),    cmocka_unit_test(cleared_ahead),
        cmocka_unit_test(as_many_as_were_counted),
    };
    return cmocka_run_group_tests_name("pages", tests, NULL, NULL);
}
