/* test_shortlist.c - a draft that chooses among likely tokens: their logits have the same bits as among all tokens, and
 * the others cannot be chosen; which tokens the list has; and that most answers consist of them. */
#include <math.h>
#include <string.h>

#include "engine/engine_int.h"
#include "engine/types.h"
#include "tests/decoder_model.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { VOCAB = 1031, GROUPS = (VOCAB + PP_TOKEN_GROUP - 1) / PP_TOKEN_GROUP, ROWS = 6, OUTPUTS = ROWS / 2 };

static bool has(const struct pp_token_groups *l, int group)
{
    int i = 0;
    while (i < l->n && l->groups[i] != group)
        i++;
    return i < l->n;
}

/* Every second row wants logits, and the last is the first to want them. out: [OUTPUTS, VOCAB] */
static void compute(struct pp_engine *e, const struct pp_adapter *a, int rows, const struct pp_token_groups *only,
                    float *out)
{
    struct pp_row batch[ROWS];
    struct pp_seq *s;
    struct pp_error err;
    int n = 0;
    assert_ok(pp_seq_new(e, &s, &err), err);
    if (a)
        assert_ok(pp_seq_set_adapters(s, &(struct pp_adapter_use){a, 0.5f}, 1, &err), err);
    for (int i = 0; i < rows; i++)
        batch[i] = (struct pp_row){.seq = s, .token = i * 41 + 7, .parent = PP_PARENT_PREVIOUS,
                                   .out = (rows - 1 - i) % 2 ? PP_OUT_NONE : PP_OUT_LOGITS};
    e->only = only;
    assert_ok(pp_step(e, batch, rows, NULL, &err), err);
    e->only = NULL;
    for (int i = 0; i < rows; i++)
        if (batch[i].out == PP_OUT_LOGITS)
            memcpy(out + n++ * VOCAB, pp_step_output(e, i), VOCAB * sizeof *out);
    pp_seq_free(s);
}

static void check_list(struct pp_engine *e, const struct pp_adapter *a, int rows, const struct pp_token_groups *only)
{
    static float all[OUTPUTS * VOCAB], some[OUTPUTS * VOCAB];
    compute(e, a, rows, NULL, all);
    compute(e, a, rows, only, some);
    for (int i = 0; i < (rows + 1) / 2 * VOCAB; i++) {
        const bool listed = has(only, i % VOCAB / PP_TOKEN_GROUP);
        assert_true(isfinite(all[i]));
        if (listed ? memcmp(&some[i], &all[i], sizeof *all) != 0 : some[i] != -INFINITY)
            fail_msg("%d rows, %d groups, token %d of output %d: %g, not %g", rows, only->n, i % VOCAB, i / VOCAB,
                     (double)some[i], listed ? (double)all[i] : -INFINITY);
    }
}

static void some_logits(void **state)
{
    static const uint32_t types[] = {PP_TYPE_Q6_K, PP_TYPE_Q4_0, PP_TYPE_F16, PP_TYPE_BF16};
    static const int32_t first[] = {0}, last[] = {GROUPS - 1}, mixed[] = {1, 2, 3, 9, 30, 31, 32, 40, GROUPS - 1};
    int32_t every[GROUPS];
    for (int i = 0; i < GROUPS; i++)
        every[i] = i;
    const struct pp_token_groups lists[] = {{first, 1}, {last, 1}, {mixed, sizeof mixed / sizeof *mixed},
                                            {every, GROUPS}};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct tiny_shape shape = tiny_shape(types[t]);
        struct pp_model *model;
        struct pp_adapter *adapter;
        struct pp_error err;
        shape.n_vocab = VOCAB;
        assert_ok(pp_model_open(tiny_model(&shape), &model, &err), err);
        assert_ok(pp_adapter_load(model, tiny_adapter(&shape, 5), &adapter, &err), err);
        for (int threads = 1; threads <= 3; threads++) {
            struct pp_engine_options opt = {.n_threads = threads, .n_ctx = 64};
            struct pp_engine *e;
            assert_ok(pp_engine_new(model, &opt, NULL, NULL, &e, &err), err);
            for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
                for (int rows = 1; rows <= ROWS; rows++)
                    check_list(e, rows % 2 ? adapter : NULL, rows, &lists[l]);
            pp_engine_free(e);
        }
        pp_adapter_free(adapter);
        pp_model_close(model);
    }
}

/* Tokens outside the shortlist stay excluded when logits are scaled and capped after the output matrix. */
static void capped_logits(void **state)
{
    static const int32_t mixed[] = {1, 2, 3, 9, 30, 31, 32, 40, GROUPS - 2};
    const struct pp_token_groups list = {mixed, sizeof mixed / sizeof *mixed};
    struct decoder_shape s = decoder_shape("muse-glimmer");
    struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 64};
    struct pp_model *model;
    struct pp_engine *e;
    struct pp_error err;
    (void)state;
    s.n_vocab = VOCAB;
    struct decoder *d = decoder_make(&s);
    assert_ok(pp_model_open(decoder_write(d), &model, &err), err);
    assert_ok(pp_engine_new(model, &opt, NULL, NULL, &e, &err), err);
    for (int rows = 1; rows <= ROWS; rows++)
        check_list(e, NULL, rows, &list);
    pp_engine_free(e);
    pp_model_close(model);
    decoder_free(d);
}

static struct pp_token_groups groups_of(const struct pp_shortlist *l)
{
    for (int i = 1; i < l->n; i++)
        assert_true(l->groups[i - 1] < l->groups[i]);
    return (struct pp_token_groups){l->groups, l->n};
}

static void what_was_said(void **state)
{
    enum { N_VOCAB = 4096, ALL = N_VOCAB / PP_TOKEN_GROUP, PROMPT = 3000 };
    static int32_t tokens[PROMPT + 8];
    struct pp_shortlist l;
    struct pp_error err;
    (void)state;
    assert_ok(pp_shortlist_init(&l, N_VOCAB, &err), err);
    assert_int_equal(groups_of(&l).n, ALL / 4);
    tokens[0] = 4000;
    tokens[1] = 2000;
    tokens[2] = 3; /* on the list anyway */
    pp_shortlist_set(&l, tokens, 3, 3);
    assert_int_equal(groups_of(&l).n, ALL / 4 + 2);
    assert_true(has(&(struct pp_token_groups){l.groups, l.n}, 4000 / PP_TOKEN_GROUP));
    tokens[3] = 3333;
    tokens[4] = 99999; /* not in the draft's vocabulary */
    pp_shortlist_set(&l, tokens, 5, 3);
    assert_true(l.n == ALL / 4 + 3 && has(&(struct pp_token_groups){l.groups, l.n}, 3333 / PP_TOKEN_GROUP));
    pp_shortlist_free(&l);

    assert_ok(pp_shortlist_init(&l, N_VOCAB, &err), err); /* more than there is room for: the newest are kept */
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = N_VOCAB - 1 - i;
    pp_shortlist_set(&l, tokens, PROMPT, PROMPT);
    const struct pp_token_groups full = groups_of(&l);
    assert_int_equal(full.n, ALL / 2);
    assert_true(has(&full, tokens[PROMPT - 1] / PP_TOKEN_GROUP) && !has(&full, tokens[0] / PP_TOKEN_GROUP));
    pp_shortlist_free(&l);

    assert_ok(pp_shortlist_init(&l, 500, &err), err);
    pp_shortlist_set(&l, tokens, PROMPT, PROMPT);
    assert_false(pp_shortlist_usable(&l)); /* little would be saved */
    pp_shortlist_free(&l);
}

/* In a text of rare tokens the draft is not restricted to the list; once the text has changed, it is again. */
static void rare_texts(void **state)
{
    enum { N_VOCAB = 65536, N = 400 };
    int32_t tokens[2 * N];
    struct pp_shortlist l;
    struct pp_error err;
    int64_t off = -1, on = -1;
    (void)state;
    assert_ok(pp_shortlist_init(&l, N_VOCAB, &err), err);
    tokens[0] = 1;
    for (int i = 1; i < 2 * N; i++) {
        tokens[i] = i < N ? N_VOCAB - 1 - i * PP_TOKEN_GROUP : i;
        pp_shortlist_set(&l, tokens, i + 1, 1);
        if (!pp_shortlist_usable(&l) && off < 0)
            off = i;
        if (pp_shortlist_usable(&l) && off >= 0 && on < 0)
            on = i;
    }
    if (off < 4 || off > 64 || on < N || on > N + 200)
        fail_msg("off at %lld, on again at %lld", (long long)off, (long long)on);
    pp_shortlist_free(&l);
}

TEST_GROUP(shortlist)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(some_logits), cmocka_unit_test(capped_logits),
                                       cmocka_unit_test(what_was_said), cmocka_unit_test(rare_texts)};
    return cmocka_run_group_tests_name("shortlist", tests, NULL, NULL);
}
