/* test_train_data.c - examples as other programs write them: contents in parts, answers that are not to be learnt; and
 * what would be learnt as something else. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/train_int.h"
#include "tests/support.h"

#define QUESTION "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, "
#define ANSWER QUESTION "{\"role\": \"assistant\", "

static struct pp_model *model;

static int setup(void **state)
{
    struct pp_error err;
    (void)state;
    return pp_model_open("engine/starter/starter-Q4_K_M.gguf", &model, &err) != PP_OK;
}

static int teardown(void **state)
{
    (void)state;
    pp_model_close(model);
    return 0;
}

static enum pp_code parse(const char *line, struct pp_train_data **d, struct pp_error *err)
{
    const struct pp_train_data_options opt = {.max_tokens = 64};
    return pp_train_data_parse(model, line, strlen(line), "data.jsonl", &opt, d, err);
}

static void parts_and_weights(void **state)
{
    static const char *const lines[] = {
        ANSWER "\"content\": \"two words\"}]}",
        ANSWER "\"weight\": 1, \"content\": [{\"type\": \"text\", \"text\": \"two\"}, \" words\"]}]}",
        ANSWER "\"content\": \"two words\"}, {\"role\": \"user\", \"content\": \"y\"}, "
               "{\"role\": \"assistant\", \"content\": \"more\", \"weight\": 0}]}",
        ANSWER "\"content\": \"two words\", \"weight\": 0}, {\"role\": \"user\", \"content\": \"y\"}, "
               "{\"role\": \"assistant\", \"content\": \"more\"}]}",
    };
    struct pp_train_data *d[4];
    struct pp_hash128 hash[4];
    struct pp_error err;
    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_ok(parse(lines[i], &d[i], &err), err);
        hash[i] = pp_train_data_hash(d[i]);
    }
    assert_memory_equal(&hash[0], &hash[1], sizeof hash[0]);
    assert_memory_equal(&hash[0], &hash[2], sizeof hash[0]); /* nothing behind the answer is needed */
    assert_true(pp_train_data_info(d[3])->n_tokens > pp_train_data_info(d[0])->n_tokens);
    assert_true(pp_train_data_info(d[3])->n_learnt < pp_train_data_info(d[0])->n_learnt);
    for (int i = 0; i < 4; i++)
        pp_train_data_free(d[i]);
}

static void bad_messages(void **state)
{
    static const struct {
        const char *line, *want;
        enum pp_code code;
    } cases[] = {
        {"{\"text\": \"a\xff b\"}", "line 1: this is not UTF-8", PP_ERR_FORMAT},
        {ANSWER "\"content\": null}]}", "message 2 has no content", PP_ERR_FORMAT},
        {ANSWER "\"content\": 5}]}", "message 2 is neither a text nor a list of texts", PP_ERR_FORMAT},
        {ANSWER "\"content\": \"x\", \"weight\": 0.5}]}", "neither 0 nor 1", PP_ERR_FORMAT},
        {ANSWER "\"content\": \"x\", \"weight\": 0}]}", "a weight that is not 0", PP_ERR_FORMAT},
        {ANSWER "\"content\": [{\"type\": \"image_url\", \"image_url\": {}}]}]}",
         "message 2 has a part that is no text, but of the type image_url", PP_ERR_UNSUPPORTED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pp_error err = {0};
        struct pp_train_data *d = NULL;
        const enum pp_code code = parse(cases[i].line, &d, &err);
        if (code != cases[i].code || !strstr(err.text, cases[i].want) || d)
            fail_msg("case %zu: code %d, \"%s\" has no \"%s\"", i, (int)code, err.text, cases[i].want);
    }
}

/* What is no model to train is told by what it is. */
static void other_models(void **state)
{
    static const char *const models[][2] = {{"mixtral", "a mixture of experts, family llama"},
                                            {"gpt2", "of the family gpt2"}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct pp_train_data_options opt = {.max_tokens = 16};
        const struct pp_train_options train = pp_train_options_default();
        char path[64];
        struct pp_model *m;
        struct pp_train_data *d;
        struct pp_trainer *t;
        struct pp_error err;
        snprintf(path, sizeof path, "architectures/%s", models[i][0]);
        if (!testdata(path))
            skip();
        assert_ok(pp_model_open(testdata(path), &m, &err), err);
        assert_ok(pp_train_data_parse(m, "{\"text\": \"a b c\"}", 17, "data.jsonl", &opt, &d, &err), err);
        assert_int_equal(pp_trainer_new(m, d, NULL, &train, &t, &err), PP_ERR_UNSUPPORTED);
        if (!strstr(err.text, models[i][1]))
            fail_msg("%s", err.text);
        pp_train_data_free(d);
        pp_model_close(m);
    }
}

TEST_GROUP(train_data)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_and_weights), cmocka_unit_test(bad_messages),
                                       cmocka_unit_test(other_models)};
    return cmocka_run_group_tests_name("train_data", tests, setup, teardown);
}
