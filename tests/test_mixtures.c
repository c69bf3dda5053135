/* test_mixtures.c - further mixtures of experts, checked as those in test_experts.c: with experts that give what they
 * read, or whose results are added later. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/engine.h"
#include "tests/expert_checks.h"
#include "tests/expert_model.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* Two layers of ours for each of a folder's; some rows have no expert with matrices. */
static struct expert_shape longcat_shape(void)
{
    struct expert_shape s = expert_shape("longcat_flash");
    s.neighbours = s.shares = s.choice_bias = s.shortcut = s.dense_beside = s.heads_apart = true;
    s.n_layer = 4;
    s.n_idle = 5;
    s.q_rank = 24;
    s.kv_rank = s.nope = s.v_dim = 32;
    s.rope_dim = 8;
    s.scale = 2.5f;
    s.q_growth = 1.632993162f; /* the root of 64 / 24 */
    s.kv_growth = 1.414213562f;
    return s;
}

static void longcat(void **state)
{
    (void)state;
    struct expert_shape s = longcat_shape();
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.self_attn.1.kv_b_proj.weight", 2, s.kv_rank);
    assert_tensor(folder, "model.layers.1.self_attn.0.q_a_layernorm.weight", 1, s.q_rank);
    assert_tensor(folder, "model.layers.1.mlps.1.down_proj.weight", 2, s.n_ff);
    assert_tensor(folder, "model.layers.1.mlp.experts.7.down_proj.weight", 2, s.n_ff_expert);
    assert_tensor(folder, "model.layers.0.mlp.router.e_score_correction_bias", 1, s.n_expert + s.n_idle);
    s.n_used = 1; /* mostly one that gives what it reads */
    s.n_idle = 24;
    s.heads_apart = false;
    check_experts(&s);
    s.n_idle = 0;
    s.choice_bias = false;
    s.n_used = 3;
    s.kv_growth = 0;
    s.q_growth = 1;
    check_experts(&s);
}

/* Conversations that go back, and come from snapshots. */
static void longcat_goes_on(void **state)
{
    const struct expert_shape s = longcat_shape();
    struct expert_model *m = expert_model_make(&s);
    const char *file = expert_model_write(m);
    (void)state;
    assert_resumes(file, s.n_vocab);
    assert_goes_back(file, s.n_vocab);
    expert_model_free(m);
}

/* Sizes that cannot be. */
static void bad_longcat(void **state)
{
    static const struct {
        int n_layer, n_idle;
        const char *word;
    } cases[] = {{3, 5, "pairs"}, {2, 1100, "compute nothing"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct expert_shape s = longcat_shape();
        struct pp_model *model;
        struct pp_error err;
        s.n_layer = cases[i].n_layer;
        struct expert_model *m = expert_model_make(&s);
        expert_model_say_idle(m, cases[i].n_idle);
        if (pp_model_open(expert_model_write(m), &model, &err) != PP_ERR_FORMAT || !strstr(err.text, cases[i].word))
            fail_msg("%s: %s", cases[i].word, err.text);
        expert_model_free(m);
    }
}

TEST_GROUP(mixtures)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(longcat), cmocka_unit_test(longcat_goes_on), cmocka_unit_test(bad_longcat),
    };
    return cmocka_run_group_tests_name("mixtures", tests, NULL, NULL);
}
