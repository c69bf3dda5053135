/* test_snapshot.c - snapshots of conversations on disk: they are restored bit for bit, on any branch; only new pages
 * are written; and whatever happens to the files, even while they are written, what is restored is right, or the file
 * is refused with a reason. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/snapshot.h"
#include "tests/convolved.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { MOST = 480 };

static const char OWNER[] = "0123456789abcdef";

struct rig {
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_adapter *adapter;
    size_t row; /* bytes of logits */
    struct pp_sha256 identity;
};

/* The model's attention from here on: `window` is that of all layers, or with `mixed` of all but the last; taps: with
 * convolutions. */
static struct {
    int window, first; /* `first` positions at the beginning stay visible, too */
    bool mixed;
    int taps;
} attention;

static struct rig rig_with(struct pp_engine_options opt)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    shape.window = attention.window;
    struct rig r = {.identity = {{1, 2, 3}}};
    struct pp_error err;
    opt.n_ctx = 512;
    opt.n_threads = 2;
    opt.kv_memory = opt.kv_memory ? opt.kv_memory : 32u << 20;
    assert_ok(pp_model_open(tiny_model(&shape), &r.model, &err), err);
    struct pp_plan *plan = &r.model->plan;
    for (int i = 0; attention.mixed && i < plan->n_ops; i++)
        if (plan->ops[i].window && plan->ops[i].layer == shape.n_layer - 1)
            plan->ops[i].window = 0;
    if (attention.taps)
        convolve_layers(r.model, attention.taps);
    assert_ok(pp_plan_place_layers(r.model->source, plan, &err), err);
    for (int t = 0; t < plan->n_tiers; t++)
        if (plan->tiers[t].kind == PP_TIER_ATTENTION && plan->tiers[t].window)
            plan->tiers[t].n_first = attention.first;
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    assert_ok(pp_adapter_load(r.model, tiny_adapter(&shape, 4), &r.adapter, &err), err);
    r.row = (size_t)pp_model_info(r.model)->n_vocab * sizeof(float);
    return r;
}

static struct rig rig(enum pp_kv_type kv)
{
    return rig_with((struct pp_engine_options){.kv_type = kv});
}

static void unrig(struct rig *r)
{
    pp_engine_free(r->engine);
    pp_adapter_free(r->adapter);
    pp_model_close(r->model);
}

static struct pp_seq *new_seq(const struct rig *r, float scale)
{
    struct pp_seq *s;
    struct pp_error err;
    struct pp_adapter_use use = {r->adapter, scale};
    assert_ok(pp_seq_new(r->engine, &s, &err), err);
    assert_ok(pp_seq_set_adapters(s, &use, 1, &err), err);
    return s;
}

/* Computes the missing ones of n tokens; the logits of the last one. */
static void feed(const struct rig *r, struct pp_seq *s, const int32_t *tokens, int64_t n, float *logits)
{
    struct pp_error err;
    struct pp_row batch[64];
    int m = 0;
    while (pp_seq_len(s) < n) {
        int64_t at = pp_seq_len(s);
        m = n - at < 64 ? (int)(n - at) : 64;
        for (int i = 0; i < m; i++)
            batch[i] = (struct pp_row){.seq = s, .token = tokens[at + i], .parent = PP_PARENT_PREVIOUS,
                                       .out = at + i == n - 1 ? PP_OUT_LOGITS : PP_OUT_NONE};
        assert_ok(pp_step(r->engine, batch, m, NULL, &err), err);
    }
    if (logits && m)
        memcpy(logits, pp_step_output(r->engine, m - 1), r->row);
}

static void write_text(int32_t *tokens, int n, int which)
{
    for (int i = 0; i < n; i++)
        tokens[i] = (i * 37 + 11 * which + i / 50 * which) % 320;
}

/* A new path for the files of a test. */
static const char *new_base(void)
{
    static char bases[8][300];
    static int n;
    char folder[280];
    snprintf(folder, sizeof folder, "%s/snap-%d", test_tmpdir(), n);
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(bases[n % 8], sizeof bases[0], "%s/c", folder);
    return bases[n++ % 8];
}

static const char *file_of(const char *base, const char *ending)
{
    static char paths[4][340];
    static int n;
    snprintf(paths[++n % 4], sizeof paths[0], "%s%s", base, ending);
    return paths[n % 4];
}

static uint64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Saves everything in one go; *counts: what was done. */
static enum pp_code try_save(const struct rig *r, struct pp_seq *s, const char *base, const char *owner, uint64_t limit,
                             struct pp_save_counts *counts, struct pp_error *err)
{
    struct pp_save *j;
    uint64_t bytes;
    bool done = false;
    enum pp_code code = pp_save_new(s, &r->identity, base, owner, &j, err);
    if (!code)
        code = pp_save_plan(j, limit, &bytes, err);
    while (!code && !done)
        code = pp_save_write(j, 1, NULL, &done, err);
    if (counts && j)
        *counts = *pp_save_counts(j);
    if (!code)
        assert_in_range(bytes, size_of(file_of(base, ".pack")) + size_of(file_of(base, ".manifest")), bytes);
    pp_save_free(j);
    return code;
}

static struct pp_save_counts save(const struct rig *r, struct pp_seq *s, const char *base)
{
    struct pp_save_counts counts = {0};
    struct pp_error err;
    assert_ok(try_save(r, s, base, OWNER, UINT64_MAX, &counts, &err), err);
    return counts;
}

static enum pp_code restore(const struct rig *r, struct pp_seq *s, const char *base, const int32_t *tokens, int64_t n,
                            struct pp_error *err)
{
    return pp_snapshot_restore(s, &r->identity, base, OWNER, tokens, n, NULL, err);
}

/* Restores in a new engine, as another run of the program would: `expected` tokens come back, and continuing to n gives
 * the bits of `logits`. */
static void comes_back_as(const struct rig *like, float scale, const char *base, const int32_t *tokens, int64_t n,
                          int64_t expected, const float *logits)
{
    struct rig r = rig(pp_engine_kv_type(like->engine));
    struct pp_error err;
    struct pp_seq *s = new_seq(&r, scale);
    float *again = pp_malloc(r.row);
    assert_ok(restore(&r, s, base, tokens, n, &err), err);
    assert_int_equal(pp_seq_len(s), expected);
    if (!attention.window && !attention.taps) /* with a short window it may be that nothing is read */
        assert_int_equal(pp_engine_stats(r.engine)->restored_tokens, expected);
    assert_memory_equal(pp_seq_tokens(s), tokens, (size_t)expected * sizeof *tokens);
    if (pp_seq_len(s) == n)
        pp_seq_truncate(s, n - 1);
    feed(&r, s, tokens, n, again);
    if (logits)
        assert_memory_equal(again, logits, r.row);
    pp_free(again);
    pp_seq_free(s);
    unrig(&r);
}

/* --- right ----------------------------------------------------------------------------------------------------- */

static void comes_back(void **state)
{
    static const enum pp_kv_type types[] = {PP_KV_Q8, PP_KV_Q8_0, PP_KV_F16, PP_KV_F32, PP_KV_FP8, PP_KV_Q4_0};
    static const int lengths[] = {1, 63, 64, 65, 128, 300};
    int32_t text[MOST];
    (void)state;
    write_text(text, MOST, 1);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            struct rig r = rig(types[t]);
            struct pp_seq *s = new_seq(&r, 0.5f);
            float *logits = pp_malloc(r.row);
            const char *base = new_base();
            int n = lengths[i];
            feed(&r, s, text, n, NULL);
            assert_int_equal(save(&r, s, base).pages_written, (n + 63) / 64);
            struct stat st;
            assert_int_equal(stat(file_of(base, ".pack"), &st), 0);
            assert_int_equal(st.st_mode & 0777, 0600);
            assert_int_equal(stat(file_of(base, ".manifest"), &st), 0);
            assert_int_equal(st.st_mode & 0777, 0600);
            feed(&r, s, text, n + 40, logits);
            comes_back_as(&r, 0.5f, base, text, n + 40, n, logits);
            pp_free(logits);
            pp_seq_free(s);
            unrig(&r);
        }
}

/* After a turn of 20 tokens at most two pages are written: the one that it filled, and the one that it began. */
static void only_what_is_new(void **state)
{
    int32_t text[MOST];
    (void)state;
    struct rig r = rig(PP_KV_Q8);
    struct pp_seq *s = new_seq(&r, 0);
    const char *base = new_base();
    const uint64_t page = pp_engine_stats(r.engine)->page_bytes;
    write_text(text, MOST, 1);
    feed(&r, s, text, 300, NULL);
    struct pp_save_counts c = save(&r, s, base);
    assert_int_equal(c.pages_written, 5);
    assert_int_equal(c.page_bytes_written, 5 * page);
    for (int n = 320; n <= 460; n += 20) {
        feed(&r, s, text, n, NULL);
        c = save(&r, s, base);
        assert_in_range(c.pages_written, 1, 2);
        assert_int_equal(c.page_bytes_written, c.pages_written * page);
        assert_int_equal(c.pages_moved, 0);
        assert_int_equal(c.branches, 1);
        assert_int_equal(c.manifest_bytes, size_of(file_of(base, ".manifest")));
        /* The slot of a page that was incomplete is used again once the page is full. */
        assert_in_range(size_of(file_of(base, ".pack")), (uint64_t)(n / 64) * page,
                        4096 + (uint64_t)(n / 64 + 3) * (page + 4096));
    }
    assert_int_equal(save(&r, s, base).pages_written, 0); /* nothing is new */
    comes_back_as(&r, 0, base, text, 470, 460, NULL);
    pp_seq_free(s);
    unrig(&r);
}

/* Edits and regenerations share their common pages, and each branch can be restored. */
static void branches(void **state)
{
    int32_t text[3][MOST];
    (void)state;
    struct rig r = rig(PP_KV_Q8);
    struct pp_seq *s = new_seq(&r, 0);
    const char *base = new_base();
    float *logits[3];
    for (int b = 0; b < 3; b++) {
        write_text(text[b], MOST, 1);
        for (int i = 130 + 50 * b; b && i < MOST; i++)
            text[b][i] = (text[b][i] + 7 * b) % 320;
        pp_seq_truncate(s, b ? 130 + 50 * b : 0);
        feed(&r, s, text[b], 300, NULL);
        struct pp_save_counts c = save(&r, s, base);
        assert_int_equal(c.pages_written, b == 0 ? 5 : b == 1 ? 3 : 2);
        assert_int_equal(c.branches, b + 1);
        logits[b] = pp_malloc(r.row);
        struct pp_seq *on;
        struct pp_error err;
        assert_ok(pp_seq_fork(s, 300, &on, &err), err);
        feed(&r, on, text[b], 310, logits[b]);
        pp_seq_free(on);
        if (b == 1) { /* the next branch is an edit of the first */
            pp_seq_free(s);
            s = new_seq(&r, 0);
            assert_ok(restore(&r, s, base, text[0], 300, &err), err);
        }
    }
    for (int b = 0; b < 3; b++)
        comes_back_as(&r, 0, base, text[b], 310, 300, logits[b]);
    text[0][290]++; /* an edit in the last page: its beginning is used */
    comes_back_as(&r, 0, base, text[0], 310, 290, NULL);
    text[0][100]++; /* and one in a full page */
    comes_back_as(&r, 0, base, text[0], 310, 100, NULL);
    text[0][0]++;
    comes_back_as(&r, 0, base, text[0], 310, 0, NULL);
    for (int b = 0; b < 3; b++)
        pp_free(logits[b]);
    pp_seq_free(s);
    unrig(&r);
}

/* One conversation with and without an adapter: both are kept, and neither is mistaken for the other. */
static void adapters_side_by_side(void **state)
{
    static const float scales[] = {0, 1, 0.5f};
    int32_t text[MOST];
    float *logits[3];
    struct pp_seq *s[3];
    (void)state;
    struct rig r = rig(PP_KV_Q8);
    const char *base = new_base();
    write_text(text, MOST, 1);
    for (int i = 0; i < 3; i++) {
        s[i] = new_seq(&r, scales[i]);
        feed(&r, s[i], text, 200, NULL);
        assert_int_equal(save(&r, s[i], base).pages_written, 4);
        logits[i] = pp_malloc(r.row);
        feed(&r, s[i], text, 210, logits[i]);
    }
    for (int i = 0; i < 3; i++)
        comes_back_as(&r, scales[i], base, text, 210, 200, logits[i]);
    for (int i = 0; i < 3; i++) {
        pp_free(logits[i]);
        pp_seq_free(s[i]);
    }
    for (int i = 0; i < 20; i++) { /* more than are kept: the least recently used ones go */
        struct pp_seq *other = new_seq(&r, 2 + (float)i);
        feed(&r, other, text, 70, NULL);
        assert_in_range(save(&r, other, base).branches, 1, PP_SNAPSHOT_KEYS);
        pp_seq_free(other);
    }
    comes_back_as(&r, 21, base, text, 80, 70, NULL);
    unrig(&r);
}

/* Pages that the engine still holds are not read from disk. */
static void what_is_there_is_not_read(void **state)
{
    int32_t text[MOST];
    struct pp_error err;
    (void)state;
    struct rig r = rig(PP_KV_Q8);
    struct pp_seq *s = new_seq(&r, 0), *other = new_seq(&r, 0);
    const char *base = new_base();
    write_text(text, MOST, 1);
    feed(&r, s, text, 300, NULL);
    save(&r, s, base);
    assert_ok(restore(&r, other, base, text, 310, &err), err);
    assert_int_equal(pp_seq_len(other), 300);
    assert_int_equal(pp_engine_stats(r.engine)->restored_tokens, 300 - 256);
    pp_seq_truncate(s, 0);
    assert_ok(restore(&r, s, base, text, 280, &err), err);
    assert_int_equal(pp_seq_len(s), 280);
    pp_seq_free(other);
    pp_seq_free(s);
    unrig(&r);
}

/* Other conversations find the restored pages in the engine. */
static void restored_pages_have_names(void **state)
{
    int32_t text[MOST];
    struct pp_error err;
    (void)state;
    struct rig r = rig(PP_KV_Q8), again = rig(PP_KV_Q8);
    struct pp_seq *s = new_seq(&r, 0), *back = new_seq(&again, 0), *other = new_seq(&again, 0);
    const char *base = new_base();
    write_text(text, MOST, 1);
    feed(&r, s, text, 300, NULL);
    save(&r, s, base);
    assert_ok(restore(&again, back, base, text, 310, &err), err);
    assert_int_equal(pp_seq_adopt(other, text, 300), 256);
    pp_seq_free(back);
    pp_seq_free(other);
    pp_seq_free(s);
    unrig(&again);
    unrig(&r);
}

/* A page may have leftovers after its last token, for example of another conversation: they are not written to disk. */
static void nothing_else_is_written(void **state)
{
    int32_t text[MOST];
    struct pp_error err;
    char *data[2];
    size_t size[2];
    (void)state;
    struct rig r = rig(PP_KV_F32), clean = rig(PP_KV_F32);
    const struct rig *rigs[2] = {&r, &clean};
    struct pp_seq *secret = new_seq(&r, 0);
    write_text(text, MOST, 2);
    feed(&r, secret, text, 60, NULL);
    pp_seq_free(secret); /* its page will be used next */
    write_text(text, MOST, 1);
    for (int i = 0; i < 2; i++) {
        struct pp_seq *s = new_seq(rigs[i], 0);
        const char *base = new_base();
        feed(rigs[i], s, text, 20, NULL);
        save(rigs[i], s, base);
        assert_ok(pp_read_file(file_of(base, ".pack"), 1u << 28, &data[i], &size[i], &err), err);
        pp_seq_free(s);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(data[0] + 4096, data[1] + 4096, size[0] - 4096);
    pp_free(data[0]);
    pp_free(data[1]);
    unrig(&r);
    unrig(&clean);
}

/* Dropped branches leave holes; when these are more than half, the pack is shortened. */
static void gets_shorter(void **state)
{
    int32_t text[MOST];
    struct pp_error err;
    struct pp_save_counts c = {0};
    (void)state;
    struct rig r = rig(PP_KV_Q8);
    const char *base = new_base();
    uint64_t page = pp_engine_stats(r.engine)->page_bytes, moved = 0, most = 0;
    write_text(text, MOST, 1);
    for (int b = 0; b < 6; b++) {
        struct pp_seq *s = new_seq(&r, 0);
        text[0] = b; /* nothing in common */
        feed(&r, s, text, 300, NULL);
        assert_ok(try_save(&r, s, base, OWNER, UINT64_MAX, &c, &err), err);
        assert_int_equal(c.branches, b + 1);
        pp_seq_free(s);
    }
    most = size_of(file_of(base, ".pack"));
    assert_in_range(most, 30 * page, UINT64_MAX);
    struct pp_seq *s = new_seq(&r, 0);
    text[0] = 5;
    feed(&r, s, text, 310, NULL);
    assert_ok(try_save(&r, s, base, OWNER, 12 * (page + 4096) + 65536, &c, &err), err); /* room for two branches */
    moved = c.pages_moved;
    assert_int_equal(c.branches, 2);
    assert_in_range(moved, 1, 12);
    assert_in_range(size_of(file_of(base, ".pack")), page * 10, 12 * (page + 4096) + 4096);
    comes_back_as(&r, 0, base, text, 320, 310, NULL);
    text[0] = 4;
    comes_back_as(&r, 0, base, text, 320, 300, NULL);
    text[0] = 3;
    comes_back_as(&r, 0, base, text, 320, 0, NULL);
    assert_int_equal(try_save(&r, s, base, OWNER, 3 * page, &c, &err), PP_ERR_NOMEM);
    assert_non_null(strstr(err.text, "--snapshot-quota"));
    text[0] = 5;
    comes_back_as(&r, 0, base, text, 320, 310, NULL); /* the failed save changed nothing */
    pp_seq_free(s);
    unrig(&r);
}

/* Saves, edits, forks and openings in any order, compared with a new engine that computes everything. */
static void in_any_order(unsigned seed, int rounds)
{
    int32_t text[MOST];
    struct pp_error err;
    struct rig r = rig(PP_KV_Q8);
    const char *base = new_base();
    float *a = pp_malloc(r.row), *b = pp_malloc(r.row);
    struct pp_seq *s = new_seq(&r, 0);
    int64_t len = 100;
    write_text(text, MOST, 3);
    feed(&r, s, text, len, NULL);
    for (int i = 0; i < rounds; i++) {
        seed = seed * 1664525u + 1013904223u;
        unsigned what = seed >> 28, where = (seed >> 8) % (unsigned)len;
        if (what < 5) { /* an edit */
            for (int64_t k = where; k < MOST; k++)
                text[k] = (int32_t)((text[k] + (int32_t)(seed >> 20)) % 320);
            len = where + 1 + (seed >> 4) % 60;
        } else if (what < 11) {
            len += 1 + (seed >> 4) % 50;
        } else if (what < 13) { /* the program is closed and started again */
            pp_seq_free(s);
            unrig(&r);
            r = rig(PP_KV_Q8);
            s = new_seq(&r, 0);
        }
        if (len > MOST - 10)
            len = 200;
        enum pp_code code = restore(&r, s, base, text, len, &err);
        assert_true(code == PP_OK || (code == PP_ERR_NOT_FOUND && i < 20));
        for (int64_t k = 0; code && k < pp_seq_len(s); k++)
            if (pp_seq_tokens(s)[k] != text[k])
                pp_seq_truncate(s, k);
        assert_memory_equal(pp_seq_tokens(s), text, (size_t)pp_seq_len(s) * sizeof *text);
        if (pp_seq_len(s) >= len)
            pp_seq_truncate(s, len - 1);
        feed(&r, s, text, len, a);
        struct rig cold = rig(PP_KV_Q8);
        struct pp_seq *c = new_seq(&cold, 0);
        feed(&cold, c, text, len, b);
        assert_memory_equal(a, b, r.row);
        pp_seq_free(c);
        unrig(&cold);
        if (what % 3)
            save(&r, s, base);
    }
    pp_seq_free(s);
    pp_free(a);
    pp_free(b);
    unrig(&r);
}

static void any_order(void **state)
{
    (void)state;
    in_any_order(7, 60);
}

/* For windowed layers only the pages in the window are saved, and they suffice to go on. */
static void windows(void **state)
{
    static const struct { int window; bool mixed; int taps, first; } kinds[] = {
        {1, false, 0, 0}, {64, true, 0, 0}, {100, false, 0, 0}, {130, true, 0, 0}, {400, false, 3, 0}, {0, false, 4, 0},
        {40, true, 0, 5}, {40, false, 0, 128}};
    int32_t text[MOST];
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        attention.window = kinds[i].window;
        attention.mixed = kinds[i].mixed;
        attention.taps = kinds[i].taps;
        attention.first = kinds[i].first;
        struct rig r = rig(PP_KV_Q8), again = rig(PP_KV_Q8);
        const char *base = new_base();
        struct pp_seq *s = new_seq(&r, 0), *t = new_seq(&again, 0);
        float *logits = pp_malloc(r.row);
        write_text(text, MOST, 1);
        feed(&r, s, text, 400, NULL);
        const unsigned seen = (unsigned)(kinds[i].window + kinds[i].first);
        const uint64_t whole = (uint64_t)r.engine->n_tiers * 7, kept = (400u - seen) / 64;
        assert_in_range(save(&r, s, base).pages_written, 1, whole - (kept > 2 ? kept - 2 : 0));
        feed(&r, s, text, 440, logits);
        comes_back_as(&r, 0, base, text, 440, 400, logits);
        /* Going back to before the window: nothing there was saved, so it is computed again. */
        assert_ok(restore(&again, t, base, text, 70, &err), err);
        feed(&again, t, text, 80, NULL);
        pp_free(logits);
        pp_seq_free(s);
        pp_seq_free(t);
        unrig(&r);
        unrig(&again);
        in_any_order(11 + (unsigned)i, 30);
    }
    attention.window = attention.taps = attention.first = 0;
    attention.mixed = false;
}

/* A conversation that is saved turn by turn keeps few of the large pages of convolutions, and can be restored. */
static void turns_with_convolutions(void **state)
{
    int32_t text[MOST];
    (void)state;
    attention.taps = 3;
    struct rig r = rig(PP_KV_Q8);
    const char *base = new_base();
    struct pp_seq *s = new_seq(&r, 0);
    float *logits = pp_malloc(r.row);
    write_text(text, MOST, 1);
    for (int64_t n = 50; n <= 460; n += 41) {
        feed(&r, s, text, n, NULL);
        const uint64_t whole = (uint64_t)n / 64;
        assert_in_range(save(&r, s, base).pages_kept, 0, whole + (whole < 4 ? whole : 4));
        feed(&r, s, text, n + 1, logits);
        comes_back_as(&r, 0, base, text, n + 1, n, logits);
    }
    pp_free(logits);
    pp_seq_free(s);
    unrig(&r);
    attention.taps = 0;
}

/* --- refused --------------------------------------------------------------------------------------------------- */

static void refuse(const struct rig *r, float scale, const char *base, const int32_t *tokens, int64_t n,
                   enum pp_code expected, const char *reason)
{
    struct pp_error err = {0};
    struct pp_seq *s = new_seq(r, scale);
    uint64_t used = pp_engine_stats(r->engine)->pages_used;
    enum pp_code code = restore(r, s, base, tokens, n, &err);
    if (code != expected || (reason && !strstr(err.text, reason)) || strchr(err.text, '\n'))
        fail_msg("expected code %d about '%s', got %d: %s", (int)expected, reason ? reason : "", (int)code, err.text);
    assert_int_equal(pp_seq_len(s), 0);
    assert_int_equal(pp_engine_stats(r->engine)->pages_used, used);
    pp_seq_free(s);
}

/* The files of a conversation of two branches, as bytes. */
struct files {
    char *data[2];
    size_t size[2];
};
static const char *const endings[2] = {".manifest", ".pack"};

static struct files take_files(const char *base)
{
    struct files f;
    struct pp_error err;
    for (int i = 0; i < 2; i++)
        assert_ok(pp_read_file(file_of(base, endings[i]), 1u << 28, &f.data[i], &f.size[i], &err), err);
    return f;
}

static void put_file(const char *base, int which, const void *data, size_t size)
{
    int fd = open(file_of(base, endings[which]), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), (ssize_t)size);
    close(fd);
}

static void free_files(struct files *f)
{
    pp_free(f->data[0]);
    pp_free(f->data[1]);
}

static struct files two_branches(const struct rig *r, const char *base, int32_t *text)
{
    struct pp_seq *s = new_seq(r, 0);
    write_text(text, MOST, 1);
    feed(r, s, text, 130, NULL);
    save(r, s, base);
    pp_seq_truncate(s, 100);
    int32_t kept = text[100];
    text[100] = 3;
    feed(r, s, text, 110, NULL);
    save(r, s, base);
    text[100] = kept;
    pp_seq_free(s);
    return take_files(base);
}

/* One byte anywhere is changed. In the pack only the used part of the pages that are read is checked. In any case what
 * is restored is right. */
static void one_wrong_byte(void **state)
{
    int32_t text[MOST];
    struct pp_error err;
    (void)state;
    struct rig r = rig(PP_KV_Q8), other = rig(PP_KV_Q8);
    const char *base = new_base();
    struct files f = two_branches(&r, base, text);
    const uint64_t page = pp_engine_stats(r.engine)->page_bytes;
    float *right = pp_malloc(r.row), *got = pp_malloc(r.row);
    struct pp_seq *s = new_seq(&r, 0);
    uint64_t refused = 0, seen = 0;
    feed(&r, s, text, 131, right);
    pp_seq_free(s);
    for (int which = 0; which < 2; which++)
        for (size_t at = 0; at < f.size[which]; at += which == 0 ? 1 : at < 100 ? 1 : 373) {
            s = new_seq(&other, 0);
            f.data[which][at] ^= 0x20;
            put_file(base, which, f.data[which], f.size[which]);
            f.data[which][at] ^= 0x20;
            enum pp_code code = restore(&other, s, base, text, 131, &err);
            seen++;
            refused += code != PP_OK;
            if (which == 0)
                assert_true(code == PP_ERR_FORMAT || code == PP_ERR_MISMATCH);
            else if (code)
                assert_non_null(strstr(err.text, "damaged"));
            if (code) {
                assert_int_equal(pp_seq_len(s), 0);
                put_file(base, 0, f.data[0], f.size[0]); /* damaged ones were removed */
            } else {
                feed(&other, s, text, 131, got);
                assert_memory_equal(got, right, r.row);
            }
            /* The next round must not find the restored pages in memory. */
            pp_seq_free(s);
            if (!code) {
                unrig(&other);
                other = rig(PP_KV_Q8);
            }
            put_file(base, which, f.data[which], f.size[which]);
        }
    assert_in_range(refused, f.size[0] + 100 + 2 * page / 373, seen);
    comes_back_as(&r, 0, base, text, 131, 130, right);
    pp_free(right);
    pp_free(got);
    free_files(&f);
    unrig(&other);
    unrig(&r);
}

static void cut_short(void **state)
{
    int32_t text[MOST];
    (void)state;
    struct rig r = rig(PP_KV_Q8), other = rig(PP_KV_Q8);
    const char *base = new_base();
    struct files f = two_branches(&r, base, text);
    for (int which = 0; which < 2; which++)
        for (size_t n = 0; n < f.size[which]; n += which == 0 || n < 64 ? 1 : 997) {
            put_file(base, which, f.data[which], n);
            refuse(&other, 0, base, text, 131, PP_ERR_FORMAT, "damaged");
            assert_int_equal(access(file_of(base, ".manifest"), F_OK), -1);
            put_file(base, 0, f.data[0], f.size[0]);
            put_file(base, 1, f.data[1], f.size[1]);
        }
    unlink(file_of(base, ".pack"));
    refuse(&other, 0, base, text, 131, PP_ERR_FORMAT, "missing");
    refuse(&other, 0, base, text, 131, PP_ERR_NOT_FOUND, NULL);
    put_file(base, 0, "PIPPINKV\1", 9);
    refuse(&other, 0, base, text, 131, PP_ERR_FORMAT, "not a snapshot");
    put_file(base, 0, f.data[0], f.size[0]);
    f.data[0][8] = 3;
    put_file(base, 0, f.data[0], f.size[0]);
    refuse(&other, 0, base, text, 131, PP_ERR_MISMATCH, "format 3");
    free_files(&f);
    unrig(&other);
    unrig(&r);
}

/* Files of two conversations exchanged, both or one of them. */
static void swapped(void **state)
{
    int32_t text[2][MOST];
    struct pp_error err;
    const char *base[2];
    struct files f[2];
    (void)state;
    struct rig r = rig(PP_KV_Q8), other = rig(PP_KV_Q8);
    for (int i = 0; i < 2; i++) {
        struct pp_seq *s = new_seq(&r, 0);
        base[i] = new_base();
        write_text(text[i], MOST, 1 + i);
        feed(&r, s, text[i], 130, NULL);
        assert_ok(try_save(&r, s, base[i], i ? "fedcba9876543210" : OWNER, UINT64_MAX, NULL, &err), err);
        f[i] = take_files(base[i]);
        pp_seq_free(s);
    }
    put_file(base[0], 0, f[1].data[0], f[1].size[0]);
    put_file(base[0], 1, f[1].data[1], f[1].size[1]);
    refuse(&other, 0, base[0], text[0], 131, PP_ERR_MISMATCH, "another conversation");
    refuse(&other, 0, base[0], text[1], 131, PP_ERR_MISMATCH, "another conversation");
    put_file(base[0], 1, f[0].data[1], f[0].size[1]);
    refuse(&other, 0, base[0], text[0], 131, PP_ERR_MISMATCH, "another conversation");
    put_file(base[0], 0, f[0].data[0], f[0].size[0]);
    put_file(base[0], 1, f[1].data[1], f[1].size[1]);
    refuse(&other, 0, base[0], text[0], 131, PP_ERR_FORMAT, "do not match");
    /* A page of the other conversation in the place of ours, with its own checksum, which belongs to another name. */
    put_file(base[0], 0, f[0].data[0], f[0].size[0]);
    memcpy(f[0].data[1] + 4096, f[1].data[1] + 4096, pp_engine_stats(r.engine)->page_bytes);
    put_file(base[0], 1, f[0].data[1], f[0].size[1]);
    refuse(&other, 0, base[0], text[0], 131, PP_ERR_FORMAT, "checksum");
    for (int i = 0; i < 2; i++)
        free_files(&f[i]);
    unrig(&other);
    unrig(&r);
}

/* Right checksums for values that no engine writes: kernels rely on scales being numbers that are not negative. */
static void odd_scales(void **state)
{
    static const uint16_t scales[] = {0x7C00, 0x7E00, 0x8001, 0xFC00};
    int32_t text[MOST];
    (void)state;
    struct rig r = rig(PP_KV_Q8), other = rig(PP_KV_Q8);
    const struct pp_kv_layout *l = pp_kv_pool_layout(r.engine->tier[0].kv);
    write_text(text, MOST, 1);
    for (int i = 0; i < 8; i++) {
        struct pp_seq *s = new_seq(&r, 0);
        const char *base = new_base();
        feed(&r, s, text, 70, NULL);
        uint8_t *page = s->tier[0].page_data[0];
        size_t last = l->page_bytes - 2, at = i < 4 ? l->k_scales : last;
        uint16_t kept;
        memcpy(&kept, page + at, sizeof kept);
        memcpy(page + at, &scales[i % 4], sizeof kept);
        save(&r, s, base);
        memcpy(page + at, &kept, sizeof kept);
        refuse(&other, 0, base, text, 71, PP_ERR_FORMAT, "invalid values");
        pp_seq_free(s);
    }
    unrig(&other);
    unrig(&r);
}

/* RoPE whose factors depend on the context size: another size is another model, and the error says so. */
static void another_context(void **state)
{
    int32_t text[MOST];
    struct pp_error err;
    (void)state;
    struct rig r = rig(PP_KV_F16);
    const char *base = new_base();
    write_text(text, MOST, 1);
    ((struct pp_hparams *)(uintptr_t)pp_source_hparams(r.model->source))->rope_scaling = PP_ROPE_DYNAMIC;
    struct pp_seq *s = new_seq(&r, 0);
    feed(&r, s, text, 130, NULL);
    save(&r, s, base);
    pp_seq_free(s);
    r.engine->n_ctx -= 64;
    refuse(&r, 0, base, text, 131, PP_ERR_MISMATCH, "context size, on which");
    r.engine->n_ctx += 64;
    s = new_seq(&r, 0);
    assert_ok(restore(&r, s, base, text, 131, &err), err);
    pp_seq_free(s);
    unrig(&r);
}

/* A snapshot made for another model or format is refused in one line, and stays on disk. */
static void made_for_something_else(void **state)
{
    int32_t text[MOST];
    (void)state;
    struct rig r = rig(PP_KV_F16), other = rig(PP_KV_F16), q8 = rig(PP_KV_Q8);
    const char *base = new_base();
    struct pp_seq *s = new_seq(&r, 0.8f);
    write_text(text, MOST, 1);
    feed(&r, s, text, 130, NULL);
    save(&r, s, base);
    other.identity.bytes[7] ^= 1;
    refuse(&other, 0.8f, base, text, 131, PP_ERR_MISMATCH, "model is different");
    other.identity.bytes[7] ^= 1;
    refuse(&q8, 0.8f, base, text, 131, PP_ERR_MISMATCH, "type of the KV cache");
    refuse(&other, 0.81f, base, text, 131, PP_ERR_MISMATCH, "adapters or their scales are different");
    refuse(&other, 0, base, text, 131, PP_ERR_MISMATCH, "adapters are different");
    struct files f = take_files(base);
    char *at = memmem(f.data[0], f.size[0], "arithmetic=cpu", 14);
    assert_non_null(at);
    at[12] = 'x'; /* as if another version had written it */
    struct pp_hash128 sum = pp_hash128(f.data[0] + 40, f.size[0] - 40);
    memcpy(f.data[0] + 24, &sum, sizeof sum);
    put_file(base, 0, f.data[0], f.size[0]);
    refuse(&other, 0.8f, base, text, 131, PP_ERR_MISMATCH, "computed differently");
    at[12] = 'p';
    sum = pp_hash128(f.data[0] + 40, f.size[0] - 40);
    memcpy(f.data[0] + 24, &sum, sizeof sum);
    put_file(base, 0, f.data[0], f.size[0]);
    comes_back_as(&r, 0.8f, base, text, 131, 130, NULL);
    /* A snapshot of another model replaces this one. */
    struct pp_seq *t = new_seq(&q8, 0);
    feed(&q8, t, text, 70, NULL);
    assert_int_equal(save(&q8, t, base).pages_written, 2);
    comes_back_as(&q8, 0, base, text, 80, 70, NULL);
    refuse(&other, 0.8f, base, text, 131, PP_ERR_MISMATCH, "type of the KV cache");
    free_files(&f);
    pp_seq_free(t);
    pp_seq_free(s);
    unrig(&q8);
    unrig(&other);
    unrig(&r);
}

/* Too few free pages for what was saved: nothing is restored in part. */
static void no_room(void **state)
{
    int32_t text[MOST];
    (void)state;
    struct rig r = rig(PP_KV_Q8);
    struct rig small = rig_with((struct pp_engine_options){
        .kv_type = PP_KV_Q8, .kv_memory = pp_engine_stats(r.engine)->page_bytes * 8});
    const char *base = new_base();
    struct pp_seq *s = new_seq(&r, 0), *full = new_seq(&small, 0);
    write_text(text, MOST, 2);
    feed(&small, full, text, 6 * 64, NULL);
    write_text(text, MOST, 1);
    feed(&r, s, text, 300, NULL);
    save(&r, s, base);
    refuse(&small, 0, base, text, 310, PP_ERR_NOMEM, "too few free KV pages");
    pp_seq_free(full);
    comes_back_as(&r, 0, base, text, 310, 300, NULL);
    pp_seq_free(s);
    unrig(&small);
    unrig(&r);
}

/* --- while it is written --------------------------------------------------------------------------------------- */

/* Saving ends after any number of pages, as if the program were killed: the previous snapshot is still there. */
static void killed(void **state)
{
    int32_t text[MOST];
    struct pp_error err;
    (void)state;
    struct rig r = rig(PP_KV_Q8);
    const char *base = new_base();
    struct pp_seq *s = new_seq(&r, 0);
    float *logits = pp_malloc(r.row);
    write_text(text, MOST, 1);
    feed(&r, s, text, 100, NULL);
    save(&r, s, base);
    feed(&r, s, text, 300, logits);
    for (int pages = 0; pages < 4; pages++) {
        struct pp_save *j;
        uint64_t bytes;
        bool done = false;
        assert_ok(pp_save_new(s, &r.identity, base, OWNER, &j, &err), err);
        assert_ok(pp_save_plan(j, UINT64_MAX, &bytes, &err), err);
        for (int k = 0; k < pages; k++)
            assert_ok(pp_save_write(j, 1, NULL, &done, &err), err);
        assert_false(done);
        pp_save_free(j); /* the rest is not written */
        comes_back_as(&r, 0, base, text, 300, 100, logits);
    }
    struct pp_cancel cancel = {0};
    pp_cancel_request(&cancel);
    struct pp_save *j;
    uint64_t bytes, before = size_of(file_of(base, ".pack"));
    bool done = false;
    assert_ok(pp_save_new(s, &r.identity, base, OWNER, &j, &err), err);
    assert_ok(pp_save_plan(j, UINT64_MAX, &bytes, &err), err);
    assert_int_equal(pp_save_write(j, UINT64_MAX, &cancel, &done, &err), PP_ERR_CANCELLED);
    assert_true(done);
    pp_save_free(j);
    assert_in_range(size_of(file_of(base, ".pack")), 1, before);
    comes_back_as(&r, 0, base, text, 300, 100, logits);
    assert_int_equal(save(&r, s, base).pages_written, 4);
    comes_back_as(&r, 0, base, text, 300, 300, logits);
    pp_free(logits);
    pp_seq_free(s);
    unrig(&r);
}

/* The sequence changes while it is being saved: its earlier state is saved. */
static void goes_on_meanwhile(void **state)
{
    int32_t text[MOST], other[MOST];
    struct pp_error err;
    (void)state;
    struct rig r = rig(PP_KV_Q8);
    const char *base = new_base();
    struct pp_seq *s = new_seq(&r, 0);
    float *logits = pp_malloc(r.row);
    struct pp_save *j;
    uint64_t bytes;
    bool done = false;
    write_text(text, MOST, 1);
    write_text(other, MOST, 2);
    feed(&r, s, text, 100, NULL);
    assert_ok(pp_save_new(s, &r.identity, base, OWNER, &j, &err), err);
    pp_seq_truncate(s, 90);
    feed(&r, s, other, 200, NULL); /* with other tokens */
    assert_ok(pp_save_plan(j, UINT64_MAX, &bytes, &err), err);
    pp_seq_truncate(s, 0);
    feed(&r, s, other, 300, NULL);
    while (!done)
        assert_ok(pp_save_write(j, 1, NULL, &done, &err), err);
    pp_seq_free(s);
    pp_save_free(j);
    assert_int_equal(pp_engine_stats(r.engine)->pages_used, 0);
    s = new_seq(&r, 0);
    feed(&r, s, text, 120, logits);
    comes_back_as(&r, 0, base, text, 120, 100, logits);
    pp_seq_free(s);
    pp_free(logits);
    unrig(&r);
}

/* A full disk: the error is reported, the space is freed, and the previous snapshot stays. */
static void full_disk(void **state)
{
    int32_t text[MOST];
    struct pp_error err = {0};
    struct rlimit before, small;
    (void)state;
    struct rig r = rig(PP_KV_Q8);
    const char *base = new_base();
    struct pp_seq *s = new_seq(&r, 0);
    const uint64_t page = pp_engine_stats(r.engine)->page_bytes;
    write_text(text, MOST, 1);
    feed(&r, s, text, 300, NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    small = before;
    small.rlim_cur = 3 * page;
    for (int round = 0; round < 2; round++) { /* without a previous snapshot, and with one */
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        enum pp_code code = try_save(&r, s, base, OWNER, UINT64_MAX, NULL, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(code, PP_ERR_IO);
        assert_non_null(strstr(err.text, "cannot write"));
        if (round == 0) {
            assert_int_equal(access(file_of(base, ".pack"), F_OK), -1);
            pp_seq_truncate(s, 100);
            save(&r, s, base);
            feed(&r, s, text, 300, NULL);
        } else {
            assert_in_range(size_of(file_of(base, ".pack")), page, 3 * page);
            comes_back_as(&r, 0, base, text, 300, 100, NULL);
        }
    }
    signal(SIGXFSZ, handler);
    save(&r, s, base);
    comes_back_as(&r, 0, base, text, 310, 300, NULL);
    pp_seq_free(s);
    unrig(&r);
}

/* A file where the folder should be: root could write to any folder. */
static void no_folder(void **state)
{
    int32_t text[MOST];
    char base[340];
    struct pp_error err;
    (void)state;
    struct rig r = rig(PP_KV_Q8);
    struct pp_seq *s = new_seq(&r, 0);
    write_text(text, MOST, 1);
    feed(&r, s, text, 70, NULL);
    snprintf(base, sizeof base, "%s/file", test_tmpdir());
    assert_ok(pp_write_file(base, "x", 1, 0600, &err), err);
    strcat(base, "/c");
    assert_int_equal(try_save(&r, s, base, OWNER, UINT64_MAX, NULL, &err), PP_ERR_IO);
    assert_ok(pp_snapshot_remove(base, &err), err); /* there is no snapshot */
    pp_seq_free(s);
    unrig(&r);
}

/* An empty sequence, and memory that runs out at each allocation. */
static void odd_saves(void **state)
{
    int32_t text[MOST];
    struct pp_error err;
    struct pp_save *j;
    (void)state;
    struct rig r = rig(PP_KV_Q8), other = rig(PP_KV_Q8);
    const char *base = new_base();
    struct pp_seq *s = new_seq(&r, 0);
    assert_int_equal(pp_save_new(s, &r.identity, base, OWNER, &j, &err), PP_ERR_USAGE);
    write_text(text, MOST, 1);
    float *logits = pp_malloc(r.row);
    feed(&r, s, text, 130, logits);
    pp_seq_reserve_logits(s);
    pp_seq_keep_logits(s, logits);
    assert_non_null(pp_seq_logits(s));
    uint64_t used = pp_engine_stats(r.engine)->pages_used;
    enum pp_code code = PP_ERR_NOMEM;
    for (int again = 0; again < 2; again++, code = PP_ERR_NOMEM) /* also if there is a snapshot, with logits */
        for (uint64_t nth = 1; code; nth++) {
            pp_mem_fail_at(nth, 1);
            code = try_save(&r, s, base, OWNER, UINT64_MAX, NULL, &err);
            pp_mem_fail_at(0, 0);
            assert_true(code == PP_OK || code == PP_ERR_NOMEM);
            assert_int_equal(pp_engine_stats(r.engine)->pages_used, used);
        }
    for (uint64_t nth = 1; code; nth++) {
        struct pp_seq *t = new_seq(&other, 0);
        pp_mem_fail_at(nth, 1);
        code = restore(&other, t, base, text, 131, &err);
        pp_mem_fail_at(0, 0);
        assert_true(code == PP_OK || code == PP_ERR_NOMEM);
        assert_int_equal(pp_seq_len(t), code ? 0 : 130);
        pp_seq_free(t);
        if (code)
            assert_int_equal(pp_engine_stats(other.engine)->pages_used, 0);
    }
    pp_free(logits);
    pp_seq_free(s);
    unrig(&other);
    unrig(&r);
}

TEST_GROUP(snapshot)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(only_what_is_new),
        cmocka_unit_test(branches),
        cmocka_unit_test(adapters_side_by_side),
        cmocka_unit_test(what_is_there_is_not_read),
        cmocka_unit_test(restored_pages_have_names),
        cmocka_unit_test(nothing_else_is_written),
        cmocka_unit_test(gets_shorter),
        cmocka_unit_test(any_order),
        cmocka_unit_test(windows), cmocka_unit_test(turns_with_convolutions),
        cmocka_unit_test(one_wrong_byte),
        cmocka_unit_test(cut_short),
        cmocka_unit_test(swapped),
        cmocka_unit_test(odd_scales),
        cmocka_unit_test(another_context),
        cmocka_unit_test(made_for_something_else),
        cmocka_unit_test(no_room),
        cmocka_unit_test(killed),
        cmocka_unit_test(goes_on_meanwhile),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(no_folder),
        cmocka_unit_test(odd_saves),
    };
    return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
