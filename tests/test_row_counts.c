/* test_row_counts.c - a row's logits have the same bits for every weight type, with every set of kernels that runs
 * here, every number of threads from 1 to 8 and every number of rows at once: all of these with each other.
 *
 * test_invariance.c varies everything else (positions, types of the KV cache, adapters, trees), for fewer types and
 * with numbers of threads that alternate. */
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
enum { N_COUNTS = sizeof row_counts / sizeof row_counts[0], MAX_THREADS = 8, EXPECTED_ROWS = 23 };

/* The scalar kernels are slow: each of their row counts meets one number of threads. Sanitizers are slow as well. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LENGTH = 65, SLOW = 4, THREAD_STEP = 3 };
#else
enum { LENGTH = 512, SLOW = 33, THREAD_STEP = 1 };
#endif

/* One layer; groups of 16 weight rows do not divide evenly among the threads, and some matrices have fewer groups than
 * there are threads. */
static struct tiny_shape shape_of(uint32_t type)
{
    return (struct tiny_shape){.n_vocab = 103, .n_embd = 256, .n_layer = 1, .n_head = 8, .n_head_kv = 1,
                               .head_dim = 32, .n_ff = 512, .n_ctx = LENGTH, .type = type, .seed = 9,
                               .random_bits = true};
}

struct subject {
    uint32_t type;
    enum pp_activations activations;
    struct pp_model *model;
    int n_vocab;
    float *expected; /* [LENGTH, n_vocab]: by the best kernels, with one thread */
};

static struct pp_engine *engine_of(const struct subject *t, enum pp_isa isa, int n_threads)
{
    const struct pp_engine_options opt = {.kernels = pp_isa_name(isa), .n_threads = n_threads, .kv_memory = 4u << 20,
                                          .kv_type = PP_KV_Q8, .activations = t->activations, .max_rows = LENGTH};
    struct pp_engine *e;
    struct pp_error err;
    assert_ok(pp_engine_new(t->model, &opt, NULL, NULL, &e, &err), err);
    assert_int_equal(pp_engine_n_threads(e), n_threads);
    return e;
}

/* The next n tokens of the sequence in one batch. */
static void step(struct pp_engine *e, struct pp_seq *s, int n, int n_vocab)
{
    static struct pp_row rows[LENGTH];
    struct pp_error err;
    for (int i = 0; i < n; i++)
        rows[i] = (struct pp_row){.seq = s, .token = (int32_t)((pp_seq_len(s) + i) * 37 + 11) % n_vocab,
                                  .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    assert_ok(pp_step(e, rows, n, NULL, &err), err);
}

static void make_expected(struct subject *t)
{
    const size_t bytes = (size_t)t->n_vocab * sizeof *t->expected;
    struct pp_engine *e = engine_of(t, pp_isa_best(), 1);
    struct pp_seq *s;
    struct pp_error err;
    t->expected = pp_malloc(LENGTH * bytes);
    assert_non_null(t->expected);
    assert_ok(pp_seq_new(e, &s, &err), err);
    for (int at = 0, n; at < LENGTH; at += n) {
        n = LENGTH - at < EXPECTED_ROWS ? LENGTH - at : EXPECTED_ROWS;
        step(e, s, n, t->n_vocab);
        for (int i = 0; i < n; i++)
            memcpy(t->expected + (at + i) * t->n_vocab, pp_step_output(e, i), bytes);
    }
    for (int i = 0; i < LENGTH * t->n_vocab; i++)
        assert_true(isfinite(t->expected[i]));
    assert_memory_not_equal(t->expected, t->expected + t->n_vocab, bytes);
    pp_seq_free(s);
    pp_engine_free(e);
}

/* As many rows at once as there are tokens, from the beginning of a conversation. */
static void check_count(const struct subject *t, struct pp_engine *e, int rows)
{
    struct pp_seq *s;
    struct pp_error err;
    assert_ok(pp_seq_new(e, &s, &err), err);
    step(e, s, rows, t->n_vocab);
    for (int i = 0; i < rows; i++)
        if (memcmp(t->expected + i * t->n_vocab, pp_step_output(e, i), (size_t)t->n_vocab * sizeof(float)) != 0)
            fail_msg("%s (activations %d): other bits in row %d of %d, with %d threads and %s kernels",
                     pp_type_info(t->type)->name, (int)t->activations, i, rows, pp_engine_n_threads(e),
                     pp_engine_kernels(e));
    pp_seq_free(s);
}

static void check_scalar(const struct subject *t)
{
    for (int c = 0; c < N_COUNTS && row_counts[c] <= SLOW; c++) {
        struct pp_engine *e = engine_of(t, PP_ISA_SCALAR, 1 + ((int)t->type + c) % MAX_THREADS);
        check_count(t, e, row_counts[c]);
        pp_engine_free(e);
    }
}

static void check_set(const struct subject *t, enum pp_isa isa)
{
    for (int threads = 1; threads <= MAX_THREADS; threads += THREAD_STEP) {
        struct pp_engine *e = engine_of(t, isa, threads);
        for (int c = 0; c < N_COUNTS && row_counts[c] <= LENGTH; c++)
            check_count(t, e, row_counts[c]);
        pp_engine_free(e);
    }
}

static void check_type(uint32_t type, enum pp_activations activations)
{
    const struct tiny_shape shape = shape_of(type);
    struct subject t = {.type = type, .activations = activations, .n_vocab = shape.n_vocab};
    struct pp_error err;
    assert_ok(pp_model_open(tiny_model(&shape), &t.model, &err), err);
    make_expected(&t);
    check_scalar(&t);
    for (int isa = PP_ISA_SCALAR + 1; isa < PP_ISA_COUNT; isa++)
        if (pp_isa_runs((enum pp_isa)isa))
            check_set(&t, (enum pp_isa)isa);
    pp_free(t.expected);
    pp_model_close(t.model);
}

static void every_type(void **state)
{
    int n = 0;
    (void)state;
    for (uint32_t type = 0; type < PP_TYPE_LIMIT; type++)
        if (pp_type_info(type)->runnable) {
            check_type(type, PP_ACT_F32);
            n++;
        }
    assert_int_equal(n, 25);
}

static void other_activations(void **state)
{
    (void)state;
    check_type(PP_TYPE_F16, PP_ACT_PAIR);
    check_type(PP_TYPE_BF16, PP_ACT_PAIR);
    check_type(PP_TYPE_BF16, PP_ACT_BF16);
}

TEST_GROUP(row_counts)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type),
        cmocka_unit_test(other_activations),
    };
    pp_pool_assume_cpus(MAX_THREADS); /* a pool has no more threads than CPUs */
    int failed = cmocka_run_group_tests_name("row_counts", tests, NULL, NULL);
    pp_pool_assume_cpus(0);
    return failed;
}
