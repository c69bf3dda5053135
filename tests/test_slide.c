/* test_slide.c - cutting tokens out of the middle of a computed sequence: the KV after the cut moves to new positions,
 * is never mistaken for freshly computed KV, and is neither shared nor saved. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/ops.h"
#include "engine/engine_int.h"
#include "src/event.h"
#include "tests/convolved.h"
#include "tests/decoder_model.h"
#include "tests/expert_model.h"
#include "tests/patience.h"
#include "tests/support.h"
#include "tests/tiny_model.h"
#include "tests/worker_fixture.h"

#define STARTER "engine/starter/starter-Q4_K_M.gguf"

static const enum pp_kv_type types[] = {PP_KV_F32, PP_KV_F16, PP_KV_FP8, PP_KV_Q8, PP_KV_Q8_0, PP_KV_Q4_0};
enum { N_TYPES = sizeof types / sizeof *types };

/* --- the cache's values --------------------------------------------------------------------------------------- */

static void loaded_values_are_stored_again(void **state)
{
    static const int head_dims[] = {16, 40, 64, 96, 128, 256};
    (void)state;
    srand(5);
    for (int t = 0; t < N_TYPES; t++)
        for (int h = 0; h < (int)(sizeof head_dims / sizeof *head_dims); h++) {
            struct pp_kv_layout l;
            float k[256], v[256], k2[256], v2[256];
            pp_kv_layout_init_values(&l, types[t], 1, 1, head_dims[h], head_dims[h]);
            uint8_t *one = pp_aligned(64, l.page_bytes), *two = pp_aligned(64, l.page_bytes);
            memset(one, 0, l.page_bytes);
            memset(two, 0, l.page_bytes);
            for (int slot = 0; slot < PP_PAGE_TOKENS; slot++) {
                for (int d = 0; d < head_dims[h]; d++) {
                    k[d] = (float)(rand() % 2001 - 1000) / 300;
                    v[d] = (float)(rand() % 2001 - 1000) / 9000;
                }
                pp_cpu_ops(PP_ISA_SCALAR)->kv_store(&l, one, 0, slot, k, v);
                pp_kv_load_head_position(&l, one, slot, k2, v2);
                pp_cpu_ops(PP_ISA_SCALAR)->kv_store(&l, two, 0, slot, k2, v2);
                const double step = types[t] == PP_KV_F32 ? 0 : types[t] == PP_KV_Q4_0 ? 0.12 : 0.05; /* -8 .. 7 */
                for (int d = 0; d < head_dims[h]; d++) {
                    assert_near(k2[d], k[d], step * 4);
                    assert_near(v2[d], v[d], step / 7);
                }
            }
            assert_memory_equal(one, two, l.page_bytes);
            pp_free(one);
            pp_free(two);
        }
}

/* --- sequences ------------------------------------------------------------------------------------------------ */

static int32_t token_at(int64_t i)
{
    return (int32_t)(3 + (i * 7919 + i / 11 * 31) % 90);
}

static void feed(struct pp_seq *s, const int32_t *tokens, int64_t n)
{
    struct pp_error err;
    for (int64_t i = 0; i < n; i += 32) {
        struct pp_row rows[32];
        int m = (int)(n - i < 32 ? n - i : 32);
        for (int k = 0; k < m; k++)
            rows[k] = (struct pp_row){.seq = s, .token = tokens[i + k], .parent = PP_PARENT_PREVIOUS,
                                      .out = k == m - 1 ? PP_OUT_LOGITS : PP_OUT_NONE};
        assert_ok(pp_step(s->engine, rows, m, NULL, &err), err);
    }
}

struct rig {
    struct pp_model *model;
    struct pp_engine *engine;
};

static struct rig convolved_rig(int n_layer, enum pp_kv_type type, int window, int n_taps, int64_t n_pages)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_F32);
    struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 512, .kv_type = type, .max_rows = 32};
    struct pp_error err;
    struct rig r;
    shape.n_layer = n_layer;
    shape.window = window;
    assert_ok(pp_model_open(tiny_model(&shape), &r.model, &err), err);
    if (n_taps) {
        convolve_layers(r.model, n_taps);
        assert_ok(pp_plan_place_layers(r.model->source, &r.model->plan, &err), err);
    }
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    if (n_pages) {
        opt.kv_memory = pp_engine_stats(r.engine)->page_bytes * (uint64_t)n_pages;
        pp_engine_free(r.engine);
        assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    }
    return r;
}

static struct rig rig(int n_layer, enum pp_kv_type type, int window, int64_t n_pages)
{
    return convolved_rig(n_layer, type, window, 0, n_pages);
}

static void unrig(struct rig *r)
{
    pp_engine_free(r->engine);
    pp_model_close(r->model);
}

static struct pp_seq *sequence(const struct rig *r, int64_t n)
{
    struct pp_error err;
    struct pp_seq *s;
    int32_t tokens[512];
    for (int64_t i = 0; i < n; i++)
        tokens[i] = token_at(i);
    assert_ok(pp_seq_new(r->engine, &s, &err), err);
    feed(s, tokens, n);
    return s;
}

/* The logits after one more token, which is then removed; float [n_vocab], for pp_free. */
static float *next_logits(struct pp_seq *s)
{
    const int64_t n = pp_seq_len(s), n_vocab = pp_model_info(s->engine->model)->n_vocab;
    const int32_t token = 5;
    float *copy = pp_malloc((size_t)n_vocab * sizeof *copy);
    feed(s, &token, 1);
    memcpy(copy, pp_step_output(s->engine, 0), (size_t)n_vocab * sizeof *copy);
    pp_seq_truncate(s, n);
    return copy;
}

static double largest_difference(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* In a model of one layer K and V depend only on the token and its position. There, moving is exact but for rounding,
 * and a key rotated by the wrong angle shows. */
static void assert_moves_exactly(const struct rig *r, enum pp_kv_type type, double allowed)
{
    static const struct { int64_t from, to, len; } cuts[] = {
        {64, 128, 300}, {0, 1, 200}, {70, 71, 131}, {10, 203, 250}, {130, 250, 251}, {63, 65, 400},
    };
    const int64_t n_vocab = pp_model_info(r->model)->n_vocab;
    for (int i = 0; i < (int)(sizeof cuts / sizeof *cuts); i++) {
        struct pp_error err;
        struct pp_seq *again, *s = sequence(r, cuts[i].len);
        assert_ok(pp_seq_cut(s, cuts[i].from, cuts[i].to, &err), err);
        assert_int_equal(pp_seq_len(s), cuts[i].len - (cuts[i].to - cuts[i].from));
        assert_int_equal(pp_seq_exact(s), cuts[i].from);
        assert_ok(pp_seq_new(r->engine, &again, &err), err);
        feed(again, pp_seq_tokens(s), pp_seq_len(s));
        float *moved = next_logits(s), *computed = next_logits(again);
        double off = largest_difference(moved, computed, n_vocab);
        if (off > allowed)
            fail_msg("%s, cut %d: off by %g", pp_kv_type_name(type), i, off);
        pp_free(moved);
        pp_free(computed);
        pp_seq_free(s);
        pp_seq_free(again);
    }
}

static void one_layer_moves_exactly(void **state)
{
    static const double allowed[N_TYPES] = {2e-4, 2e-2, 0.5, 0.15, 0.15, 1.5}; /* in the order of types */
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        struct rig r = rig(1, types[t], 0, 0);
        assert_moves_exactly(&r, types[t], allowed[t]);
        unrig(&r);
    }
}

static void file_moves_exactly(const char *path)
{
    const struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 512, .kv_type = PP_KV_F32, .max_rows = 32};
    struct pp_error err;
    struct rig r;
    assert_ok(pp_model_open(path, &r.model, &err), err);
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    assert_moves_exactly(&r, PP_KV_F32, 1e-3);
    unrig(&r);
}

/* assert_moves_exactly for a model of one layer of the given family. */
static void family_moves_exactly(const char *arch)
{
    struct decoder_shape s = decoder_shape(arch);
    s.n_layer = 1;
    s.n_vocab = 100;
    s.n_ctx = 512;
    struct decoder *d = decoder_make(&s);
    file_moves_exactly(decoder_write(d));
    decoder_free(d);
}

/* In latent attention only the last part of a key is rotated. */
static void latent_keys_move_exactly(void **state)
{
    struct expert_shape s = expert_shape("deepseek2");
    (void)state;
    s.neighbours = s.heads_apart = s.shares = true;
    s.n_layer = 1;
    s.n_vocab = 100;
    s.n_ctx = 512;
    s.kv_rank = 32;
    s.nope = s.v_dim = s.rope_dim = 8;
    struct expert_model *m = expert_model_make(&s);
    file_moves_exactly(expert_model_write(m));
    expert_model_free(m);
}

/* The indexer's keys move as well, rotated by the family's kind of pairs: the same positions are picked. */
static void picks_move_exactly(void **state)
{
    static const char *const families[] = {"deepseek32", "glm-dsa", "hy_v4", "minimax-m3"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct expert_shape s = expert_shape(families[i]);
        const bool blocks = i == 3;
        if (i == 2) { /* RoPE rotates the last dimensions of index heads */
            s.gated = s.sinks = true;
            s.n_stream = 2;
            s.stream_least = 1e-6f;
            s.stream_most = 2;
        }
        s.neighbours = s.heads_apart = s.shares = true;
        s.clamped = i != 2;
        s.n_layer = 1;
        s.n_vocab = 100;
        s.n_ctx = 512;
        s.rope_dim = 8;
        s.index_top_k = blocks ? 3 : 20;
        if (blocks) {
            s.neighbours = s.shares = false;
            s.qk_norm = QK_HEADS;
            s.index_block = 8;
            s.index_n_local = 1;
        } else {
            s.kv_rank = s.q_rank = 32;
            s.nope = s.v_dim = 8;
        }
        struct expert_model *m = expert_model_make(&s);
        file_moves_exactly(expert_model_write(m));
        expert_model_free(m);
    }
}

/* Hunyuan's keys are normalised after RoPE. */
static void normed_keys_move_exactly(void **state)
{
    (void)state;
    family_moves_exactly("hunyuan-dense");
}

/* Bloom's keys do not depend on positions; ALiBi's distances are computed from the new ones. */
static void keys_with_alibi_move_exactly(void **state)
{
    (void)state;
    family_moves_exactly("bloom");
}

/* With more than one layer, moved KV differs from recomputed KV: it is not found, shared or saved, until the
 * conversation goes back to before the cut. */
static void assert_stays_alone(int n_taps)
{
    const struct pp_sha256 identity = {0};
    const int64_t back = n_taps ? 64 : 100, before = n_taps ? 64 : 90; /* with convolutions only whole pages */
    struct rig r = convolved_rig(3, PP_KV_Q8, 0, n_taps, 0);
    const int64_t n_vocab = pp_model_info(r.model)->n_vocab;
    struct pp_seq *s = sequence(&r, 400), *fork, *clean;
    struct pp_save *save;
    struct pp_error err;
    int32_t tokens[512];
    assert_ok(pp_seq_cut(s, 100, 180, &err), err);
    memcpy(tokens, pp_seq_tokens(s), (size_t)pp_seq_len(s) * sizeof *tokens);
    float *moved = next_logits(s);
    feed(s, (const int32_t[]){7, 8, 9}, 3); /* the sequence continues, and its moved KV stays private */
    assert_int_equal(pp_seq_len(s), 323);
    assert_int_equal(pp_seq_exact(s), 100);
    assert_int_equal(pp_seq_cached_tokens(s, NULL, 0, tokens, 320), 100);
    assert_int_equal(pp_engine_cached_tokens(r.engine, NULL, 0, tokens, 320), 64); /* the page before the cut */
    assert_ok(pp_seq_fork(s, 320, &fork, &err), err);
    assert_int_equal(pp_seq_len(fork), back);
    assert_int_equal(pp_save_new(s, &identity, "nowhere", "x", &save, &err), PP_ERR_USAGE);

    assert_ok(pp_seq_new(r.engine, &clean, &err), err);
    feed(clean, tokens, 320);
    float *computed = next_logits(clean);
    assert_true(largest_difference(moved, computed, n_vocab) > 1e-3);
    /* the fork recomputes what it was not given, with the same bits as the clean sequence */
    feed(fork, tokens + back, 320 - back);
    float *of_fork = next_logits(fork);
    assert_memory_equal(of_fork, computed, (size_t)n_vocab * sizeof(float));

    pp_seq_truncate(s, 90);
    assert_int_equal(pp_seq_exact(s), before);
    feed(s, tokens + before, 320 - before);
    assert_int_equal(pp_seq_exact(s), 320);
    float *again = next_logits(s);
    assert_memory_equal(again, computed, (size_t)n_vocab * sizeof(float));
    pp_free(moved);
    pp_free(computed);
    pp_free(of_fork);
    pp_free(again);
    pp_seq_free(s);
    pp_seq_free(fork);
    pp_seq_free(clean);
    unrig(&r);
}

static void moved_pages_stay_alone(void **state)
{
    (void)state;
    assert_stays_alone(0);
    assert_stays_alone(4);
}

/* The rows that convolutions keep, of which only the last few positions are read: they move to the right positions,
 * whether their pages are still held or have to be found, and going back in between works. */
static void rows_move(void **state)
{
    enum { TAPS = 4 };
    static const struct { int64_t from, to, len; } cuts[] = {
        {64, 128, 300}, {0, 1, 200}, {70, 71, 131}, {10, 203, 250}, {120, 180, 185}, {190, 195, 198}, {60, 250, 257},
    };
    struct rig r = convolved_rig(2, PP_KV_Q8, 0, TAPS, 0);
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        const int64_t distance = cuts[i].to - cuts[i].from, len = cuts[i].len;
        struct pp_seq *whole = sequence(&r, len), *s;
        struct pp_error err;
        assert_ok(pp_seq_fork(whole, len, &s, &err), err);
        assert_int_equal(pp_seq_len(s), len);
        assert_ok(pp_seq_cut(s, cuts[i].from, cuts[i].to, &err), err);
        const struct pp_seq_tier *had = &whole->tier[1], *has = &s->tier[1];
        struct pp_kv_pool *kv = r.engine->tier[1].kv;
        assert_int_equal(pp_kv_pool_layout(kv)->kind, PP_TIER_ROWS);
        assert_in_range(has->first_page, 0, (len - distance - TAPS + 1) / PP_PAGE_TOKENS);
        for (int64_t p = has->first_page * PP_PAGE_TOKENS; p < len - distance; p++) {
            const int64_t old = p < cuts[i].from ? p : p + distance, page = old / PP_PAGE_TOKENS;
            pp_page_id named = page < whole->n_named ? pp_page_find(kv, &whole->names[page]) : PP_NO_PAGE;
            uint8_t *data = named != PP_NO_PAGE ? pp_page_data(kv, named) : had->page_data[page];
            for (int l = 0; l < 2; l++)
                assert_memory_equal(pp_kv_row(pp_kv_pool_layout(kv), has->page_data[p / PP_PAGE_TOKENS], l,
                                              (int)(p % PP_PAGE_TOKENS)),
                                    pp_kv_row(pp_kv_pool_layout(kv), data, l, (int)(old % PP_PAGE_TOKENS)),
                                    256 * sizeof(float));
            if (named != PP_NO_PAGE)
                pp_page_release(kv, named);
        }
        for (int64_t n = len - distance - 1; n >= 0; n -= 17) { /* whatever is held stays in order */
            pp_seq_truncate(s, n);
            assert_in_range(pp_seq_len(s), 0, n);
            assert_in_range(s->tier[1].first_page, 0, s->tier[1].n_pages);
        }
        pp_seq_free(s);
        pp_seq_free(whole);
        assert_int_equal(pp_engine_stats(r.engine)->pages_used, 0);
    }
    struct pp_seq *s = sequence(&r, 200);
    struct pp_error err;
    assert_int_equal(pp_seq_cut(s, 20, 198, &err), PP_ERR_UNSUPPORTED); /* the two tokens after it do not suffice */
    pp_seq_free(s);
    unrig(&r);
}

static void what_cannot_be_cut(void **state)
{
    struct pp_error err;
    struct rig r = rig(2, PP_KV_Q8, 0, 8);
    struct pp_seq *s = sequence(&r, 300), *other = sequence(&r, 130); /* all eight pages */
    (void)state;
    float *before = next_logits(s);
    assert_int_equal(pp_seq_cut(s, 20, 60, &err), PP_ERR_NOMEM);
    assert_int_equal(pp_seq_cut(s, 20, 301, &err), PP_ERR_USAGE);
    assert_int_equal(pp_seq_cut(s, 20, 10, &err), PP_ERR_USAGE);
    assert_int_equal(pp_seq_cut(s, -1, 10, &err), PP_ERR_USAGE);
    assert_int_equal(pp_seq_len(s), 300);
    assert_int_equal(pp_seq_exact(s), 300);
    float *after = next_logits(s);
    assert_memory_equal(before, after, (size_t)pp_model_info(r.model)->n_vocab * sizeof(float));
    assert_ok(pp_seq_cut(s, 50, 50, &err), err);  /* an empty range */
    assert_ok(pp_seq_cut(s, 280, 300, &err), err); /* nothing follows: the same as truncating */
    assert_int_equal(pp_seq_exact(s), 280);
    pp_free(before);
    pp_free(after);
    pp_seq_free(s);
    pp_seq_free(other);
    unrig(&r);

    r = rig(2, PP_KV_Q8, 100, 0);
    s = sequence(&r, 300);
    assert_int_equal(pp_seq_cut(s, 20, 60, &err), PP_ERR_UNSUPPORTED);
    pp_seq_free(s);
    unrig(&r);
}

static void learned_positions_stay(void **state)
{
    const char *path = testdata("architectures/gpt2");
    struct pp_error err;
    struct rig r;
    (void)state;
    if (!path)
        return;
    assert_ok(pp_model_open(path, &r.model, &err), err);
    assert_ok(pp_engine_new(r.model, &(struct pp_engine_options){.n_threads = 1}, NULL, NULL, &r.engine, &err), err);
    struct pp_seq *s = sequence(&r, 20);
    assert_int_equal(pp_seq_cut(s, 5, 10, &err), PP_ERR_UNSUPPORTED);
    assert_int_equal(pp_seq_len(s), 20);
    pp_seq_free(s);
    unrig(&r);
}

/* --- in a conversation ---------------------------------------------------------------------------------------- */

static struct {
    struct worker_fixture w;
    struct pp_stats stats;
    struct pp_buf text;
    int inexact, n_dropped;
} env;

static enum pp_event_type take(void)
{
    struct pp_event *e = pp_queue_pop(env.w.events, TEST_PATIENCE_MS);
    if (!e)
        fail_msg("no event in time");
    enum pp_event_type type = e->type;
    if (type == PP_EVENT_CONTEXT)
        env.inexact = e->n;
    if (type == PP_EVENT_OVERFLOW)
        env.n_dropped = e->n;
    if (type == PP_EVENT_TEXT)
        pp_buf_add(&env.text, e->text, e->text_len);
    if (type == PP_EVENT_DONE) {
        assert_ok(e->err.code, e->err);
        env.stats = e->stats;
    }
    pp_event_free(e);
    return type;
}

static void begin(const char *folder)
{
    worker_begin(&env.w, folder, &(struct pp_load_request){.model = STARTER, .engine = {.n_threads = 2, .n_ctx = 384}});
}

static void end(void)
{
    worker_end(&env.w);
    pp_buf_free(&env.text);
    memset(&env, 0, sizeof env);
}

/* A conversation of n turns; the last is a question. Static. */
static const char *turns(int n)
{
    static struct pp_buf json;
    pp_buf_clear(&json);
    for (int i = 0; i < n; i++) {
        pp_buf_fmt(&json, "%s{\"role\":\"user\",\"content\":\"Tell me what there is to eat in room %d of the inn, and "
                          "who sits there.\"}", i ? "," : "[", i + 1);
        if (i < n - 1)
            pp_buf_fmt(&json, ",{\"role\":\"assistant\",\"content\":\"In room %d there is bread with cheese, and "
                              "the miller sits there with %d of his friends.\"}", i + 1, i + 2);
    }
    pp_buf_str(&json, "]");
    return pp_buf_cstr(&json);
}

static void ask(int n_turns, enum pp_overflow how)
{
    struct pp_generate_request r = {.request = 1, .session_key = "0011223344556677", .messages_json = turns(n_turns),
                                    .sampling = pp_sampling_default(), .max_tokens = 12, .overflow = how};
    r.sampling.temp = 0;
    pp_buf_clear(&env.text);
    env.n_dropped = 0;
    env.w.backend->ops->generate(env.w.backend, &r);
    while (take() != PP_EVENT_DONE)
        ;
}

static void turns_slide(void **state)
{
    char folder[300], *clean;
    int n = 2;
    (void)state;
    snprintf(folder, sizeof folder, "%s/clean", test_tmpdir());
    begin(folder);
    while (!env.n_dropped) /* up to the first prompt that does not fit */
        ask(n++, PP_OVERFLOW_SHIFT);
    n--;
    assert_in_range(n, 5, 12);
    clean = pp_buf_take(&env.text);
    const uint64_t prompt = env.stats.prompt_tokens;
    assert_true(env.stats.prefill_tokens > prompt / 2); /* most of the prompt was computed again */
    assert_int_equal(env.inexact, 0);
    end();

    snprintf(folder, sizeof folder, "%s/slide", test_tmpdir());
    begin(folder);
    ask(n - 1, PP_OVERFLOW_SLIDE);
    assert_int_equal(env.n_dropped, 0);
    assert_int_equal(env.inexact, 0);
    ask(n, PP_OVERFLOW_SLIDE);
    assert_true(env.n_dropped > 0);
    assert_int_equal(env.stats.prompt_tokens, prompt);
    assert_true(env.stats.prefill_tokens < prompt / 2); /* only the new question, and the end of the answer */
    assert_true(env.inexact > (int)prompt / 3);
    assert_true(env.text.len > 0);
    /* PP_OVERFLOW_SHIFT after a slide still gives the answer of a clean run */
    ask(n, PP_OVERFLOW_SHIFT);
    assert_string_equal(pp_buf_cstr(&env.text), clean);
    assert_int_equal(env.inexact, 0);
    pp_free(clean);
    end();
}

TEST_GROUP(slide)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loaded_values_are_stored_again), cmocka_unit_test(one_layer_moves_exactly),
        cmocka_unit_test(normed_keys_move_exactly),
        cmocka_unit_test(latent_keys_move_exactly), cmocka_unit_test(picks_move_exactly),
        cmocka_unit_test(keys_with_alibi_move_exactly),
        cmocka_unit_test(moved_pages_stay_alone),         cmocka_unit_test(rows_move),
        cmocka_unit_test(what_cannot_be_cut),
        cmocka_unit_test(learned_positions_stay),         cmocka_unit_test(turns_slide),
    };
    return cmocka_run_group_tests_name("slide", tests, NULL, NULL);
}
