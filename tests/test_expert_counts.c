/* test_expert_counts.c - numbers of experts in the metadata of mixtures: impossible ones are refused, and the
 * parameters active for one token are counted. */
#include <string.h>

#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/source.h"
#include "tests/expert_model.h"
#include "tests/support.h"

/* Impossible numbers in the metadata. */
static void bad_groups(void **state)
{
    static const struct {
        int n_groups, n_groups_used;
        const char *word;
    } cases[] = {{5, 2, "groups"}, {4, 5, "groups"}, {8, 2, "groups"}, {4, 0, "groups"}};
    struct expert_shape s = expert_shape("bailingmoe2");
    struct pp_model *opened;
    struct pp_error err;
    (void)state;
    s.qk_norm = QK_HEADS;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s.n_groups = cases[i].n_groups;
        s.n_groups_used = cases[i].n_groups_used;
        struct expert_model *m = expert_model_make(&s);
        assert_int_equal(pp_model_open(expert_model_write(m), &opened, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, cases[i].word));
        expert_model_free(m);
    }
}

/* pp_plan_matrices yields NULL for a count of 0 or less. */
static void no_matrices(void **state)
{
    const struct expert_shape s = expert_shape("bailingmoe2");
    struct pp_source *source;
    struct pp_plan plan = {0};
    struct pp_error err;
    (void)state;
    struct expert_model *m = expert_model_make(&s);
    assert_ok(pp_source_open(expert_model_write(m), &source, &err), err);
    for (int n = -1; n <= 0; n++) {
        err = (struct pp_error){0};
        assert_null(pp_plan_matrices(&plan, source, n, s.n_ff_expert, s.n_embd, &err, "blk.0.ffn_up"));
        assert_int_equal(err.code, PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, " matrices blk.0.ffn_up are needed"));
        err = (struct pp_error){0};
        assert_int_equal(pp_plan_heads(&plan, source, n, s.n_ff_expert, s.n_embd, &err, "blk.0.ffn_up_exps.weight"),
                         -1);
        assert_int_equal(err.code, PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, " matrices blk.0.ffn_up_exps.weight are needed"));
    }
    pp_plan_free(&plan);
    pp_source_close(source);
    expert_model_free(m);
}

/* How many parameters a token uses: all but those of the experts that are not chosen. */
static void active(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("deepseek");
    struct pp_error err;
    struct pp_model *m;
    s.n_ff_shared = 64;
    s.n_dense = 1;
    struct expert_model *made = expert_model_make(&s);
    assert_ok(pp_model_open(expert_model_write(made), &m, &err), err);
    const struct pp_model_info *info = pp_model_info(m);
    const int64_t expert = 3 * (int64_t)s.n_embd * s.n_ff_expert;
    assert_true(info->n_expert == s.n_expert && info->n_expert_used == s.n_used);
    assert_true(info->n_params - info->n_params_active == (s.n_layer - 1) * (s.n_expert - s.n_used) * expert);
    pp_model_close(m);
    expert_model_free(made);
    assert_ok(pp_model_open("engine/starter/starter-Q4_K_M.gguf", &m, &err), err);
    info = pp_model_info(m);
    assert_true(info->n_expert == 0 && info->n_params_active == info->n_params);
    pp_model_close(m);
}

TEST_GROUP(expert_counts)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_groups),
        cmocka_unit_test(no_matrices),
        cmocka_unit_test(active),
    };
    return cmocka_run_group_tests_name("expert_counts", tests, NULL, NULL);
}
