/* test_invariance.c - a row's logits have the same bits however it is computed: for any division of the tokens into
 * batches, any number of threads, all kernels, as part of a chain or as a branch of a tree.
 *
 * Every weight type is tested with every number of rows. Thread counts, kernel sets, KV types and adapters alternate,
 * so that each weight type also meets each of them, and one KV type in long sequences. The results of the best kernels
 * on one thread are kept for each KV type, with and without an adapter; all others must repeat them. The scalar kernels
 * are slow and run once for each weight type and KV type. Every number of threads meets every number of rows, with all
 * weight types, in test_row_counts.c. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/isa.h"
#include "engine/engine.h"
#include "engine/pool.h"
#include "engine/types.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

static const int row_counts[] = {1, 2, 3, 4, 8, 16, 23, 31, 32, 33, 64, 65, 512};
enum { N_COUNTS = sizeof row_counts / sizeof row_counts[0], MAX_THREADS = 8, N_KV = PP_KV_Q4_0 + 1 };

/* Usually past one chunk of attention, where time allows past two; sanitizers make everything ten times slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LENGTH = 140, USUAL = 70, TREE_AT = 60, FEW_FROM = 55, FEW_TO = 66 };
#else
enum { LENGTH = 530, USUAL = 270, TREE_AT = 250, FEW_FROM = 247, FEW_TO = 264 };
#endif
enum { SLOW = 67, SLOW_FEW = 10, TREE_ROWS = 33, LARGEST_FEW = 8 };

/* Nothing divides evenly: neither 16 rows of a group nor 16 or 64 columns of a vector, as far as the type's blocks
 * allow it, and groups do not divide among threads. */
static struct tiny_shape odd_shape(uint32_t type)
{
    struct tiny_shape s = {.n_vocab = 333, .n_embd = 150, .n_layer = 2, .n_head = 5, .n_head_kv = 1, .head_dim = 30,
                           .n_ff = 203, .n_ctx = 1024, .type = type, .seed = 5};
    int block = (int)pp_type_info(type)->block_elements;
    if (block == 32) {
        s.n_embd = s.n_head * (s.head_dim = 32);
        s.n_ff = 7 * 32;
    } else if (block == 256) {
        s.n_embd = 256;
        s.n_head = 8;
        s.n_head_kv = 1;
        s.head_dim = 64; /* so that a scale of Q8 covers a whole tile */
        s.n_ff = 3 * 256;
    }
    return s;
}

/* A model and its expected results, for each KV type without and with the adapter. */
struct subject {
    struct tiny_shape shape;
    enum pp_activations activations;
    struct pp_model *model;
    struct pp_adapter *adapter;
    struct {
        float *chain; /* [LENGTH, n_vocab] */
        float *tree;  /* [TREE_ROWS, n_vocab] */
    } expected[N_KV][2];
};

/* How tokens are computed. */
struct manner {
    enum pp_isa isa;
    int n_threads, rows;
    enum pp_kv_type kv;
    bool adapted;
};

static void fail_manner(const struct subject *t, const struct manner *m, const char *what, int64_t row)
{
    fail_msg("%s: other bits in row %lld of the %s: %d rows at once, %d threads, %s kernels, KV %s, %s adapter",
             pp_type_info(t->shape.type)->name, (long long)row, what, m->rows, m->n_threads, pp_isa_name(m->isa),
             pp_kv_type_name(m->kv), m->adapted ? "with an" : "no");
}

static void check_row(const struct subject *t, const struct manner *m, const char *what, int64_t row, float *expected,
                      const float *got, bool first)
{
    size_t n = (size_t)t->shape.n_vocab;
    expected += row * t->shape.n_vocab;
    if (first)
        memcpy(expected, got, n * sizeof *got);
    else if (memcmp(expected, got, n * sizeof *got) != 0)
        fail_manner(t, m, what, row);
    for (size_t i = 0; first && i < n; i++)
        assert_true(isfinite(got[i]));
}

static int32_t token_at(const struct subject *t, int64_t i)
{
    return (int32_t)((i * 37 + 11) % t->shape.n_vocab);
}

/* Continues the chain up to `end`, in batches of `rows`, and checks every row's logits. */
static void feed(const struct subject *t, const struct manner *m, struct pp_engine *e, struct pp_seq *s, int64_t end,
                 int rows, bool first)
{
    struct pp_row batch[512];
    struct pp_error err;
    for (int64_t at; (at = pp_seq_len(s)) < end;) {
        int n = end - at < rows ? (int)(end - at) : rows;
        for (int i = 0; i < n; i++)
            batch[i] = (struct pp_row){.seq = s, .token = token_at(t, at + i), .parent = PP_PARENT_PREVIOUS,
                                       .out = PP_OUT_LOGITS};
        assert_ok(pp_step(e, batch, n, NULL, &err), err);
        for (int i = 0; i < n; i++)
            check_row(t, m, "chain", at + i, t->expected[m->kv][m->adapted].chain, pp_step_output(e, i), first);
    }
}

/* --- trees ----------------------------------------------------------------------------------------------------- */

/* Two children a node, all with tokens of their own. Node 0 and 1 continue the committed tokens. */
static int32_t tree_parent(int i)
{
    return i < 2 ? PP_PARENT_COMMITTED : i / 2 - 1;
}

static int32_t tree_token(const struct subject *t, int i)
{
    return (int32_t)((i * 53 + 7) % t->shape.n_vocab);
}

/* The expected logits of each node: those of the chain of its ancestors and itself. */
static void expect_tree(const struct subject *t, const struct manner *m, struct pp_engine *e, struct pp_seq *s)
{
    for (int i = 0; i < TREE_ROWS; i++) {
        struct pp_row path[8];
        struct pp_error err;
        int depth = 0;
        for (int at = i; at >= 0; at = tree_parent(at))
            depth++;
        for (int at = i, d = depth - 1; at >= 0; at = tree_parent(at), d--)
            path[d] = (struct pp_row){.seq = s, .token = tree_token(t, at), .parent = PP_PARENT_PREVIOUS,
                                      .out = PP_OUT_LOGITS};
        pp_seq_truncate(s, TREE_AT);
        assert_ok(pp_step(e, path, depth, NULL, &err), err);
        check_row(t, m, "path", i, t->expected[m->kv][m->adapted].tree, pp_step_output(e, depth - 1), true);
    }
    pp_seq_truncate(s, TREE_AT);
}

static void check_tree(const struct subject *t, const struct manner *m, struct pp_engine *e, struct pp_seq *s)
{
    struct pp_row tree[TREE_ROWS];
    struct pp_error err;
    pp_seq_truncate(s, TREE_AT);
    for (int i = 0; i < TREE_ROWS; i++)
        tree[i] = (struct pp_row){.seq = s, .token = tree_token(t, i), .parent = tree_parent(i), .out = PP_OUT_LOGITS};
    assert_ok(pp_step(e, tree, TREE_ROWS, NULL, &err), err);
    for (int i = 0; i < TREE_ROWS; i++)
        check_row(t, m, "tree", i, t->expected[m->kv][m->adapted].tree, pp_step_output(e, i), false);
    pp_seq_truncate(s, TREE_AT);
}

/* --- taking turns ---------------------------------------------------------------------------------------------- */

static struct pp_engine *engine_for(const struct subject *t, const struct manner *m)
{
    struct pp_engine_options opt = {.kernels = pp_isa_name(m->isa), .n_threads = m->n_threads, .kv_type = m->kv,
                                    .kv_memory = 16u << 20, .activations = t->activations, .max_rows = 512};
    struct pp_engine *e;
    struct pp_error err;
    assert_ok(pp_engine_new(t->model, &opt, NULL, NULL, &e, &err), err);
    return e;
}

static struct pp_seq *sequence_for(const struct subject *t, const struct manner *m, struct pp_engine *e)
{
    struct pp_seq *s;
    struct pp_error err;
    assert_ok(pp_seq_new(e, &s, &err), err);
    if (m->adapted)
        assert_ok(pp_seq_set_adapters(s, &(struct pp_adapter_use){t->adapter, 0.75f}, 1, &err), err);
    return s;
}

/* Batches of few rows take long, so they are checked only around the end of a chunk of attention and of a page. */
static void check_rows(const struct subject *t, const struct manner *m, struct pp_engine *e)
{
    struct pp_seq *s = sequence_for(t, m, e);
    if (m->isa == PP_ISA_SCALAR) {
        feed(t, m, e, s, m->rows <= LARGEST_FEW ? SLOW_FEW : SLOW, m->rows, false);
    } else if (m->rows <= LARGEST_FEW) {
        feed(t, m, e, s, FEW_FROM, 100, false);
        feed(t, m, e, s, FEW_TO, m->rows, false);
        check_tree(t, m, e, s);
    } else {
        feed(t, m, e, s, m->rows < USUAL ? USUAL : LENGTH, m->rows, false);
    }
    pp_seq_free(s);
}

static void make_expected(struct subject *t, enum pp_kv_type kv)
{
    struct manner m = {.isa = pp_isa_best(), .n_threads = 1, .rows = 23, .kv = kv};
    struct pp_engine *e = engine_for(t, &m);
    for (int adapted = 0; adapted < 2; adapted++) {
        m.adapted = adapted;
        t->expected[kv][adapted].chain = pp_malloc((size_t)(LENGTH * t->shape.n_vocab) * sizeof(float));
        t->expected[kv][adapted].tree = pp_malloc((size_t)(TREE_ROWS * t->shape.n_vocab) * sizeof(float));
        struct pp_seq *s = sequence_for(t, &m, e);
        feed(t, &m, e, s, LENGTH, m.rows, true);
        expect_tree(t, &m, e, s);
        pp_seq_free(s);
    }
    /* The adapter must change something for the comparison to mean anything. */
    assert_memory_not_equal(t->expected[kv][0].chain, t->expected[kv][1].chain, sizeof(float));
    pp_engine_free(e);
}

/* The kernel sets that run here, the best first. */
static int list_sets(enum pp_isa *sets)
{
    int n = 0;
    for (int i = PP_ISA_COUNT - 1; i >= 0; i--)
        if (pp_isa_runs((enum pp_isa)i))
            sets[n++] = (enum pp_isa)i;
    return n;
}

/* Each of `stride` engines checks every stride-th pair of a number of rows and an adapter. */
static void take_turns(const struct subject *t, struct manner m, int turn, int stride)
{
    struct pp_engine *e = engine_for(t, &m);
    for (int i = turn % stride; i < 2 * N_COUNTS; i += stride) {
        m.rows = row_counts[i / 2];
        m.adapted = i % 2;
        check_rows(t, &m, e);
    }
    pp_engine_free(e);
}

/* Computes the text into the third chunk of attention, with every number of rows by the best kernels. */
static void check_long(const struct subject *t, enum pp_kv_type kv)
{
    enum { OTHERS_ROWS = 65 }; /* for all other kernels, which take longer */
    enum pp_isa sets[PP_ISA_COUNT];
    int n_sets = list_sets(sets);
    for (int k = 0; k < n_sets; k++) {
        struct manner m = {.isa = sets[k], .n_threads = k ? 3 : 2, .kv = kv};
        struct pp_engine *e = engine_for(t, &m);
        for (int i = 0; i < N_COUNTS; i++) {
            m.rows = row_counts[i];
            if (k > 0 && m.rows != OTHERS_ROWS)
                continue;
            struct pp_seq *s = sequence_for(t, &m, e);
            feed(t, &m, e, s, LENGTH, m.rows, false);
            pp_seq_free(s);
        }
        pp_engine_free(e);
    }
}

/* long_kv: the KV type for which long sequences are checked as well. */
static void check_activations(uint32_t type, enum pp_activations activations, enum pp_kv_type long_kv)
{
    enum { STRIDE = N_COUNTS }; /* two pairs for each engine */
    struct subject t = {.shape = odd_shape(type), .activations = activations};
    struct pp_error err;
    enum pp_isa sets[PP_ISA_COUNT];
    int n_sets = list_sets(sets), turn = (int)type, scalar_threads = (int)type % MAX_THREADS;
    assert_ok(pp_model_open(tiny_model(&t.shape), &t.model, &err), err);
    assert_ok(pp_adapter_load(t.model, tiny_adapter(&t.shape, 5), &t.adapter, &err), err);
    for (int kv = 0; kv < N_KV; kv++) {
        make_expected(&t, (enum pp_kv_type)kv);
        if (kv == (int)long_kv)
            check_long(&t, long_kv);
        for (int i = 0; i < n_sets; i++)
            for (int threads = 1; threads <= MAX_THREADS; threads++) {
                struct manner m = {.isa = sets[i], .n_threads = threads, .kv = (enum pp_kv_type)kv};
                bool turn_of_scalar = threads == 1 + (scalar_threads + 3 * kv) % MAX_THREADS;
                if (sets[i] == PP_ISA_SCALAR ? turn_of_scalar : (threads + kv) % 2)
                    take_turns(&t, m, turn++, STRIDE);
            }
        turn += STRIDE - 1; /* four sets take STRIDE turns: the next KV type must not repeat the same pairs */
    }
    for (int i = 0; i < 2 * N_KV; i++) {
        pp_free(t.expected[i / 2][i % 2].chain);
        pp_free(t.expected[i / 2][i % 2].tree);
    }
    pp_adapter_free(t.adapter);
    pp_model_close(t.model);
}

static void check_type(uint32_t type, enum pp_kv_type long_kv)
{
    check_activations(type, PP_ACT_F32, long_kv);
}

static void f32(void **state) { (void)state; check_type(PP_TYPE_F32, PP_KV_F32); }
static void f16(void **state) { (void)state; check_type(PP_TYPE_F16, PP_KV_Q8); }
static void bf16(void **state) { (void)state; check_type(PP_TYPE_BF16, PP_KV_F16); }
static void f16_pair(void **state) { (void)state; check_activations(PP_TYPE_F16, PP_ACT_PAIR, PP_KV_Q8); }
static void q8_0(void **state) { (void)state; check_type(PP_TYPE_Q8_0, PP_KV_F32); }
static void q4_0(void **state) { (void)state; check_type(PP_TYPE_Q4_0, PP_KV_Q4_0); }
static void q4_k(void **state) { (void)state; check_type(PP_TYPE_Q4_K, PP_KV_Q8); }
static void q6_k(void **state) { (void)state; check_type(PP_TYPE_Q6_K, PP_KV_FP8); }

/* A type that can run, but is not in the list above, would go unchecked. */
static void no_type_is_missing(void **state)
{
    static const uint32_t checked[] = {PP_TYPE_F32,  PP_TYPE_F16,  PP_TYPE_BF16, PP_TYPE_Q8_0,
                                       PP_TYPE_Q4_0, PP_TYPE_Q4_K, PP_TYPE_Q6_K};
    /* One function of each set multiplies all of these types; test_matmul.c compares its bits for every one, and
     * test_row_counts.c those of whole models. */
    static const uint32_t alike[] = {
        PP_TYPE_Q4_1,   PP_TYPE_Q5_0,  PP_TYPE_Q5_1,  PP_TYPE_Q2_K,  PP_TYPE_Q3_K,    PP_TYPE_Q5_K,
        PP_TYPE_IQ4_NL, PP_TYPE_IQ4_XS, PP_TYPE_MXFP4, PP_TYPE_TQ1_0, PP_TYPE_TQ2_0,  PP_TYPE_IQ1_S,
        PP_TYPE_IQ1_M,  PP_TYPE_IQ2_XXS, PP_TYPE_IQ2_XS, PP_TYPE_IQ2_S, PP_TYPE_IQ3_XXS, PP_TYPE_IQ3_S,
    };
    (void)state;
    for (uint32_t type = 0; type < PP_TYPE_LIMIT; type++) {
        bool found = false;
        for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++)
            found |= alike[i] == type;
        for (size_t i = 0; i < sizeof checked / sizeof checked[0]; i++)
            found |= checked[i] == type;
        if (pp_type_info(type)->runnable && !found)
            fail_msg("%s can run; check it for invariance too", pp_type_info(type)->name);
    }
}

TEST_GROUP(invariance)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32),  cmocka_unit_test(f16),  cmocka_unit_test(bf16),
        cmocka_unit_test(f16_pair), cmocka_unit_test(q8_0), cmocka_unit_test(q4_0), cmocka_unit_test(q4_k),
        cmocka_unit_test(q6_k), cmocka_unit_test(no_type_is_missing),
    };
    pp_pool_assume_cpus(MAX_THREADS); /* a pool has no more threads than CPUs */
    int failed = cmocka_run_group_tests_name("invariance", tests, NULL, NULL);
    pp_pool_assume_cpus(0);
    return failed;
}
