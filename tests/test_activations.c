/* test_activations.c - engines whose activations are split into one or two bfloat16 numbers: the same bits with every
 * kernel set, row count and thread count, results close to float32's, and a KV cache key of their own. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/isa.h"
#include "engine/engine.h"
#include "engine/types.h"
#include "tests/passes.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { LENGTH = 40 };

struct rig {
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_seq *seq;
    int64_t n_vocab;
};

static struct rig make_rig(uint32_t type, const char *kernels, int n_threads, enum pp_activations activations)
{
    struct rig r;
    struct pp_error err;
    struct tiny_shape shape = tiny_shape(type);
    const struct pp_engine_options opt = {.kernels = kernels, .n_threads = n_threads, .activations = activations,
                                          .kv_type = PP_KV_F32, .kv_memory = 64u << 20};
    assert_ok(pp_model_open(tiny_model(&shape), &r.model, &err), err);
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    assert_ok(pp_seq_new(r.engine, &r.seq, &err), err);
    r.n_vocab = shape.n_vocab;
    return r;
}

static void free_rig(struct rig *r)
{
    pp_seq_free(r->seq);
    pp_engine_free(r->engine);
    pp_model_close(r->model);
}

/* The logits of LENGTH tokens [LENGTH, n_vocab], computed `rows` at a time; pp_free. */
static float *logits_of(struct rig *r, int rows)
{
    int32_t tokens[LENGTH];
    float *logits = pp_malloc(LENGTH * (size_t)r->n_vocab * sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = (i * 37 + 11) % 320;
    pp_seq_truncate(r->seq, 0);
    run_in_passes(r->engine, r->seq, tokens, LENGTH, rows, logits);
    return logits;
}

/* The activations that F16 and BF16 weights can have, the suffix of the kernels' names for them, and the largest
 * permitted distance from float32. */
static const struct kind {
    uint32_t type;
    enum pp_activations activations;
    const char *name;
    double error;
} kinds[] = {
    {PP_TYPE_BF16, PP_ACT_BF16, "+bf16", 0.02},
    {PP_TYPE_BF16, PP_ACT_PAIR, "+pair", 2e-5},
    {PP_TYPE_F16, PP_ACT_PAIR, "+pair", 2e-5},
};

enum { N_KINDS = sizeof kinds / sizeof *kinds };

static void check_kind(const struct kind *kind)
{
    static const int row_counts[] = {LENGTH, 1, 3, 5, 17, 33};
    struct rig plain = make_rig(kind->type, NULL, 1, PP_ACT_F32);
    float *exact = logits_of(&plain, LENGTH), *expect = NULL;
    size_t bytes = (size_t)(LENGTH * plain.n_vocab) * sizeof(float);
    assert_null(strchr(pp_engine_kernels(plain.engine), '+'));
    for (int isa = 0; isa < PP_ISA_COUNT; isa++) {
        if (!pp_isa_runs((enum pp_isa)isa))
            continue;
        struct rig r = make_rig(kind->type, pp_isa_name((enum pp_isa)isa), 1 + isa % 3, kind->activations);
        assert_non_null(strstr(pp_engine_kernels(r.engine), kind->name));
        for (int i = 0; i < (isa == PP_ISA_SCALAR ? 1 : 6); i++) {
            float *got = logits_of(&r, row_counts[i]);
            if (!expect)
                expect = got;
            else if (memcmp(expect, got, bytes) != 0)
                fail_msg("%s%s kernels: other bits with %d rows at once", pp_isa_name((enum pp_isa)isa), kind->name,
                         row_counts[i]);
            if (expect != got)
                pp_free(got);
        }
        free_rig(&r);
    }
    double error = 0, size = 0;
    for (int64_t i = 0; i < LENGTH * plain.n_vocab; i++) {
        error += ((double)expect[i] - exact[i]) * ((double)expect[i] - exact[i]);
        size += (double)exact[i] * exact[i];
    }
    if (!(error > 0 && sqrt(error / size) < kind->error))
        fail_msg("%s: %g from float32", kind->name, sqrt(error / size));
    pp_free(exact);
    pp_free(expect);
    free_rig(&plain);
}

static void each_choice_is_one_arithmetic(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++)
        check_kind(&kinds[i]);
}

static void pairs_are_for_tiles(void **state)
{
    (void)state;
    static const uint32_t types[] = {PP_TYPE_F16, PP_TYPE_BF16, PP_TYPE_F32, PP_TYPE_Q4_K};
    for (int isa = 0; isa < PP_ISA_COUNT; isa++)
        for (int i = 0; pp_isa_runs((enum pp_isa)isa) && i < 4; i++) {
            struct rig r = make_rig(types[i], pp_isa_name((enum pp_isa)isa), 1, PP_ACT_AUTO);
            const bool pairs = isa == PP_ISA_AMX && i < 2;
            assert_int_equal(strstr(pp_engine_kernels(r.engine), "+pair") != NULL, pairs);
            free_rig(&r);
        }
}

static char *key_of(const struct rig *r)
{
    struct pp_error err;
    struct pp_buf text = {0};
    const struct pp_sha256 identity = {{1}};
    assert_ok(pp_seq_key(r->seq, &identity, &text, &err), err);
    return text.data;
}

static void the_key_tells_them_apart(void **state)
{
    (void)state;
    static const uint32_t types[] = {PP_TYPE_BF16, PP_TYPE_F16, PP_TYPE_F32, PP_TYPE_Q4_K};
    static const enum pp_activations all[] = {PP_ACT_F32, PP_ACT_PAIR, PP_ACT_BF16};
    for (int i = 0; i < 4; i++)
        for (int a = 0; a < 3; a++)
            for (int b = 0; b < a; b++) {
                struct rig one = make_rig(types[i], NULL, 1, all[a]), other = make_rig(types[i], NULL, 1, all[b]);
                char *key = key_of(&one), *other_key = key_of(&other);
                /* F16 and BF16 weights may have activations in pairs of bfloat16 parts; single parts are for BF16
                 * only. */
                const bool differ = types[i] == PP_TYPE_BF16 ||
                                    (types[i] == PP_TYPE_F16 && (all[a] == PP_ACT_PAIR || all[b] == PP_ACT_PAIR));
                assert_int_equal(strcmp(key, other_key) != 0, differ);
                assert_int_equal(strcmp(pp_engine_kernels(one.engine), pp_engine_kernels(other.engine)) != 0, differ);
                pp_free(key);
                pp_free(other_key);
                free_rig(&one);
                free_rig(&other);
            }
}

TEST_GROUP(activations)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_choice_is_one_arithmetic),
        cmocka_unit_test(pairs_are_for_tiles),
        cmocka_unit_test(the_key_tells_them_apart),
    };
    return cmocka_run_group_tests_name("activations", tests, NULL, NULL);
}
