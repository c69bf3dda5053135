/* test_families.c - what holds for all model families: a row's bits do not depend on how it was computed, layers with a
 * window keep no more than that, the files that our converter writes use the names and keys that other programs read,
 * and files that lie are refused by name. What the models compute is in test_golden.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/cpu/isa.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/model.h"
#include "engine/rope.h"
#include "engine/safetensors.h"
#include "engine/types.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

static const char *const folders[] = {
    "cohere2",     "gemma",        "gemma2",     "gemma3",      "gpt2",    "gptneox", "gptoss",   "granite", "llama",
    "llama3-rope", "llama-linear", "llama-yarn", "mistral-swa", "mixtral", "olmo2",   "phi2",     "phi3",    "qwen2",
    "qwen3",       "qwen3moe",     "smollm3",    "stablelm",    "starcoder2",
};
enum { N_FOLDERS = sizeof folders / sizeof *folders };

static const char *folder_of(const char *name)
{
    static char path[512];
    const char *all = testdata("architectures");
    if (!all)
        skip();
    snprintf(path, sizeof path, "%s/%s", all ? all : "", name);
    return path;
}

/* --- the same bits ----------------------------------------------------------------------------------------------- */

enum { LENGTH = 70, MANNERS = 5 };

struct manner {
    enum pp_isa isa;
    int n_threads, rows;
};

/* Logits of all positions, [LENGTH, n_vocab]; pp_free. */
static float *compute(const struct pp_model *m, enum pp_kv_type kv, const struct manner *how)
{
    const struct pp_engine_options opt = {.kv_type = kv, .n_threads = how->n_threads, .kv_memory = 64u << 20,
                                          .kernels = pp_isa_name(how->isa)};
    const size_t n_vocab = (size_t)pp_model_info(m)->n_vocab;
    float *logits = pp_malloc(LENGTH * n_vocab * sizeof *logits);
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    for (int at = 0, n; at < LENGTH; at += n) {
        struct pp_row rows[LENGTH];
        n = LENGTH - at < how->rows ? LENGTH - at : how->rows;
        for (int i = 0; i < n; i++)
            rows[i] = (struct pp_row){.seq = s, .token = (at + i) * 37 % (int)n_vocab, .parent = PP_PARENT_PREVIOUS,
                                      .out = PP_OUT_LOGITS};
        assert_ok(pp_step(e, rows, n, NULL, &err), err);
        for (int i = 0; i < n; i++)
            memcpy(logits + (size_t)(at + i) * n_vocab, pp_step_output(e, i), n_vocab * sizeof *logits);
    }
    pp_seq_free(s);
    pp_engine_free(e);
    return logits;
}

/* However rows are cut, on however many threads, by the best kernels and by the plain ones. */
static void check_bits(const char *path, enum pp_kv_type kv)
{
    const struct manner manners[MANNERS] = {
        {pp_isa_best(), 1, LENGTH}, {pp_isa_best(), 2, 1}, {pp_isa_best(), 3, 3}, {pp_isa_best(), 2, 33},
        {PP_ISA_SCALAR, 2, 17},
    };
    struct pp_model *m;
    struct pp_error err;
    assert_ok(pp_model_open(path, &m, &err), err);
    const size_t n_vocab = (size_t)pp_model_info(m)->n_vocab;
    float *first = compute(m, kv, &manners[0]);
    assert_true(isfinite(first[LENGTH * n_vocab - 1]));
    assert_memory_not_equal(first, first + n_vocab, n_vocab * sizeof *first);
    for (int i = 1; i < MANNERS; i++) {
        float *other = compute(m, kv, &manners[i]);
        for (size_t r = 0; r < LENGTH; r++)
            if (memcmp(first + r * n_vocab, other + r * n_vocab, n_vocab * sizeof *first) != 0)
                fail_msg("%s, KV %s: row %zu has other bits with %d rows at a time on %d threads (%s)", path,
                         pp_kv_type_name(kv), r, manners[i].rows, manners[i].n_threads, pp_isa_name(manners[i].isa));
        pp_free(other);
    }
    pp_free(first);
    pp_model_close(m);
}

static void same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FOLDERS; i++)
        check_bits(folder_of(folders[i]), i % 2 ? PP_KV_F32 : PP_KV_Q8_0);
    check_bits(folder_of("gemma2"), PP_KV_F16); /* what bounds scores, and what sees sinks, in more types */
    check_bits(folder_of("gptoss"), PP_KV_FP8);
}

/* Experts of every kind of weights, with an expert for hardly any row, and with one that has most. */
static void experts_same_bits(void **state)
{
    static const uint32_t types[] = {PP_TYPE_F32, PP_TYPE_F16, PP_TYPE_BF16, PP_TYPE_Q8_0,
                                     PP_TYPE_Q4_0, PP_TYPE_Q4_K, PP_TYPE_Q6_K};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tiny_shape shape = tiny_shape(types[i]);
        shape.n_expert = i % 2 ? 3 : 40;
        shape.n_ff = 256;
        check_bits(tiny_model(&shape), i % 2 ? PP_KV_F32 : PP_KV_Q8_0);
    }
}

/* --- windows ----------------------------------------------------------------------------------------------------- */

/* Layers with a window and others have pages of their own, and those with one hold no more than it and a step take. */
static void windows_are_let_go(void **state)
{
    static const struct {
        const char *folder;
        int n_tiers;
    } cases[] = {{"gemma2", 2}, {"gemma3", 2}, {"cohere2", 2}, {"gptoss", 2}, {"mistral-swa", 1}, {"smollm3", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 1, .kv_memory = 64u << 20,
                                              .n_ctx = 256, .max_rows = 16};
        struct pp_model *m;
        struct pp_engine *e;
        struct pp_seq *s;
        struct pp_error err;
        assert_ok(pp_model_open(folder_of(cases[i].folder), &m, &err), err);
        assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
        assert_ok(pp_seq_new(e, &s, &err), err);
        for (int at = 0; at < 256; at += 16) {
            struct pp_row rows[16];
            for (int r = 0; r < 16; r++)
                rows[r] = (struct pp_row){.seq = s, .token = at + r, .parent = PP_PARENT_PREVIOUS};
            assert_ok(pp_step(e, rows, 16, NULL, &err), err);
        }
        const struct pp_stats *stats = pp_engine_stats(e);
        assert_int_equal(stats->n_tiers, cases[i].n_tiers);
        for (int t = 0; t < stats->n_tiers; t++) /* a window of 8 is in two pages at most; 256 positions are in four */
            assert_true(stats->tiers[t].window ? stats->tiers[t].pages_used <= 2 : stats->tiers[t].pages_used == 4);
        pp_seq_free(s);
        pp_engine_free(e);
        pp_model_close(m);
    }
}

/* --- learned positions ------------------------------------------------------------------------------------------- */

static void positions_end(void **state)
{
    struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 1, .kv_memory = 64u << 20, .n_ctx = 257};
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_error err;
    (void)state;
    assert_ok(pp_model_open(folder_of("gpt2"), &m, &err), err);
    assert_int_equal(pp_engine_new(m, &opt, NULL, NULL, &e, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "256 positions"));
    opt.n_ctx = 0;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_int_equal(pp_engine_n_ctx(e), 256);
    pp_engine_free(e);
    pp_model_close(m);
}

/* --- rotation ---------------------------------------------------------------------------------------------------- */

static void rope_scalings(void **state)
{
    struct pp_hparams hp = {.rope_base = 10000, .rope_dim = 8, .rope_factor = 4, .rope_orig_ctx = 100,
                            .n_ctx_train = 400, .rope_scaling = PP_ROPE_DYNAMIC};
    float f[4], magnitude;
    (void)state;
    pp_rope_frequencies(&hp, 100, NULL, f, &magnitude); /* not longer than the original: as it was */
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)f[i] - pow(10000, -i / 4.0)) < 1e-7);
    pp_rope_frequencies(&hp, 300, NULL, f, &magnitude);
    for (int i = 0; i < 4; i++) /* base (4 * 3 - 3)^(8 / 6) times larger */
        assert_true(fabs((double)f[i] - pow(10000 * pow(9, 8.0 / 6), -i / 4.0)) < 1e-7);
    assert_true(magnitude == 1.0f);
    const float factors[4] = {1, 2, 4, 8};
    hp.rope_scaling = PP_ROPE_LONG;
    pp_rope_frequencies(&hp, 300, factors, f, &magnitude);
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)f[i] - pow(10000, -i / 4.0) / (double)factors[i]) < 1e-7);
    assert_true(fabs((double)magnitude - sqrt(1 + log(4) / log(100))) < 1e-6);
    hp.rope_attn_factor = 1.5f;
    pp_rope_frequencies(&hp, 300, factors, f, &magnitude);
    assert_true(magnitude == 1.5f);
    hp.rope_scaling = PP_ROPE_YARN;
    hp.rope_beta_fast = 32;
    hp.rope_beta_slow = 1;
    float whole[4];
    pp_rope_frequencies(&hp, 300, NULL, whole, &magnitude);
    hp.rope_no_truncate = true;
    pp_rope_frequencies(&hp, 300, NULL, f, &magnitude);
    assert_memory_not_equal(f, whole, sizeof f);
}

TEST_GROUP(families)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),          cmocka_unit_test(experts_same_bits), cmocka_unit_test(windows_are_let_go),
        cmocka_unit_test(positions_end),      cmocka_unit_test(rope_scalings),
    };
    return cmocka_run_group_tests_name("families", tests, NULL, NULL);
}
