/* test_train_data.c - which tokens of an example are learnt; examples as other programs write them: contents in parts,
 * answers that are not to be learnt; and examples that are refused because they would be learnt wrongly. */
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/engine.h"
#include "engine/text.h"
#include "engine/train_int.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

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

static enum pp_code parse_for(const struct pp_model *m, const char *text, const char *tmpl, int64_t max_tokens,
                              struct pp_train_data **d, struct pp_error *err)
{
    const struct pp_train_data_options opt = {.chat_template = tmpl, .max_tokens = max_tokens};
    return pp_train_data_parse(m, text, strlen(text), "data.jsonl", &opt, d, err);
}

static enum pp_code parse(const char *line, struct pp_train_data **d, struct pp_error *err)
{
    return parse_for(model, line, NULL, 64, d, err);
}

/* Text that is no training data, and part of the error. */
struct refusal {
    const char *line, *want;
    enum pp_code code;
};

static void expect_refusals(const struct refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct pp_error err = {0};
        struct pp_train_data *d = (void *)1;
        const enum pp_code code = parse(cases[i].line, &d, &err);
        if (code != cases[i].code || !strstr(err.text, cases[i].want) || d)
            fail_msg("case %zu: code %d, \"%s\" has no \"%s\"", i, (int)code, err.text, cases[i].want);
    }
}

/* Shows the text of an example's tokens, with the learnt ones in brackets. */
static void show(const struct pp_train_data *d, size_t i, struct pp_buf *out)
{
    const struct pp_example *e = &d->examples[i];
    bool in = false;
    pp_buf_clear(out);
    for (int32_t k = 0; k < e->n; k++) {
        bool learnt = d->learnt[e->first + (size_t)k];
        if (learnt != in)
            pp_buf_char(out, learnt ? '[' : ']');
        in = learnt;
        pp_token_text(pp_model_tokenizer(model), d->tokens[e->first + (size_t)k], true, out);
    }
    pp_buf_str(out, in ? "]" : "");
}

static void expect_example(const struct pp_train_data *d, size_t i, const char *want)
{
    struct pp_buf text = {0};
    assert_true(i < d->n);
    show(d, i, &text);
    assert_string_equal(pp_buf_cstr(&text), want);
    pp_buf_free(&text);
}

#define USER(text) "<|start_header_id|>user<|end_header_id|>\n\n" text "<|eot_id|>"
#define BOS "<|begin_of_text|>"
#define HEAD "<|start_header_id|>assistant<|end_header_id|>\n\n"

static void answers_are_learnt(void **state)
{
    (void)state;
    struct pp_error err;
    struct pp_train_data *d;
    static const char lines[] =
        "\xEF\xBB\xBF{\"messages\": [{\"role\": \"user\", \"content\": \"One?\"},"
        "{\"role\": \"assistant\", \"content\": \"Two.\"}]}\r\n"
        "\n"
        "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"A\"},"
        "{\"role\": \"assistant\", \"content\": \"B\"}, {\"role\": \"user\", \"content\": \"C\"},"
        "{\"role\": \"assistant\", \"content\": \"D\"}, {\"role\": \"user\", \"content\": \"nobody answers\"}]}";
    assert_ok(parse_for(model, lines, NULL, 512, &d, &err), err);
    assert_int_equal(pp_train_data_info(d)->n_lines, 2);
    assert_int_equal(pp_train_data_info(d)->n_examples, 2);
    expect_example(d, 0, BOS USER("One?") HEAD "[Two.<|eot_id|>]");
    expect_example(d, 1,
                   BOS "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>" USER("A") HEAD
                   "[B<|eot_id|>]" USER("C") HEAD "[D<|eot_id|>]");
    size_t learnt = 0;
    for (size_t i = 0; i < d->n_tokens; i++)
        learnt += d->learnt[i];
    assert_int_equal(pp_train_data_info(d)->n_learnt, learnt);
    assert_int_equal(pp_train_data_info(d)->n_tokens, d->n_tokens);
    pp_train_data_free(d);

    /* Text after the end token belongs to no message; a token that contains the end of the prompt and the beginning of
     * the answer belongs to the answer. */
    static const char chatml[] = "{% for m in messages %}{{ m.role }}\n{{ m.content }}<|eot_id|>\n{% endfor %}"
                                 "{% if add_generation_prompt %}assistant\n{% endif %}";
    static const char line[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"},"
                               "{\"role\": \"assistant\", \"content\": \"\\n\\ny\"}]}";
    assert_ok(parse_for(model, line, chatml, 512, &d, &err), err);
    expect_example(d, 0, BOS "user\nx<|eot_id|>\nassistant[\n\n\ny<|eot_id|>]\n");
    pp_train_data_free(d);
}

/* Templates that render earlier answers differently from the last: each answer is learnt in the form in which the model
 * will see it. */
static void changing_templates(void **state)
{
    (void)state;
    struct pp_error err;
    struct pp_train_data *d;
    static const char thinking[] = "{% for m in messages %}{{ m.role }}:"
                                   "{% if m.role == 'assistant' and loop.last %}hm{% endif %} {{ m.content }}|"
                                   "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    static const char lines[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"A\"},"
                                "{\"role\": \"assistant\", \"content\": \"B\"},"
                                "{\"role\": \"user\", \"content\": \"C\"},"
                                "{\"role\": \"assistant\", \"content\": \"D\"}]}";
    assert_ok(parse_for(model, lines, thinking, 512, &d, &err), err);
    assert_int_equal(d->n, 2);
    expect_example(d, 0, BOS "user: A|assistant:[hm B|]");
    expect_example(d, 1, BOS "user: A|assistant: B|user: C|assistant:[hm D|]");
    pp_train_data_free(d);
    static const char elsewhere[] = "{% for m in messages %}{{ m.content }}{% endfor %}"
                                    "{% if add_generation_prompt %}answer:{% endif %}";
    assert_int_equal(parse_for(model, lines, elsewhere, 512, &d, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "line 1"));
    assert_non_null(strstr(err.text, "message 2"));
    static const char refusing[] = "{{ raise_exception('roles must alternate') }}";
    assert_int_equal(parse_for(model, lines, refusing, 512, &d, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "line 1"));
    assert_non_null(strstr(err.text, "roles must alternate"));
}

static void texts_and_lengths(void **state)
{
    (void)state;
    struct pp_error err;
    struct pp_train_data *d;
    static const char text[] = "{\"text\": \"one two three four five six seven eight nine ten\"}";
    assert_ok(parse_for(model, text, NULL, 512, &d, &err), err);
    const size_t n = d->n_tokens;
    int32_t whole[64];
    assert_true(d->n == 1 && n >= 10 && n <= 64);
    memcpy(whole, d->tokens, n * sizeof *whole);
    assert_int_equal(d->info.n_learnt, n - 1);
    pp_train_data_free(d);
    assert_ok(parse_for(model, text, NULL, 4, &d, &err), err); /* in pieces: every token but the first is learnt once */
    assert_int_equal(d->info.n_learnt, n - 1);
    assert_int_equal(d->info.longest, 4);
    assert_int_equal(d->info.n_cut, 0);
    for (size_t i = 0; i < d->n; i++)
        assert_memory_equal(d->tokens + d->examples[i].first, whole + 3 * i, (size_t)d->examples[i].n * sizeof *whole);
    pp_train_data_free(d);

    static const char lines[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"A\"},"
                                "{\"role\": \"assistant\", \"content\": \"one two three four five six seven\"}]}\n"
                                "{\"messages\": [{\"role\": \"user\", \"content\": \"a b c d e f g h i j k l m n\"},"
                                "{\"role\": \"assistant\", \"content\": \"B\"}]}";
    assert_ok(parse_for(model, lines, NULL, 512, &d, &err), err);
    assert_int_equal(d->n, 2);
    const int32_t length = d->examples[0].n - 3;
    pp_train_data_free(d);
    assert_ok(parse_for(model, lines, NULL, length, &d, &err), err);
    assert_int_equal(d->info.n_cut, 2);
    assert_int_equal(d->info.n_dropped, 1);
    assert_int_equal(d->n, 1);
    assert_int_equal(d->examples[0].n, length);
    pp_train_data_free(d);
}

#define FIRST "{\n  \"messages\": [\n    {\"role\": \"user\", \"content\": \"{[\\\"\"},\r\n" \
              "    {\"role\": \"assistant\", \"content\": \"One]\"}\n  ]\n}"
#define SECOND "{\"text\":\n\"two words\"}"

/* Files of programs that write one list, or break an object into lines; errors name the line where the object
 * begins. */
static void lists_and_long_objects(void **state)
{
    static const char *const files[] = {
        "[" FIRST ",\n" SECOND "]", "\xEF\xBB\xBF\n [\n" FIRST "," SECOND ",\n]\n", FIRST "\n" SECOND "\n",
        FIRST SECOND};
    static const struct refusal cases[] = {
        {"[\n{\"text\": \"fine enough\"},\n 5]", "data.jsonl, line 3: this is not a JSON object", PP_ERR_FORMAT},
        {"[\n{\"text\": \"fine enough\"},\n{\"text\":\n \"x\",}]", "line 3: this line is not a JSON object",
         PP_ERR_FORMAT},
        {"\n[\n{\"text\": \"fine enough\"},\n", "line 2: the list that begins here has no end", PP_ERR_FORMAT},
        {"[{\"text\": \"fine enough\"}]\n{\"text\": \"fine enough\"}", "line 2: something follows the list",
         PP_ERR_FORMAT},
        {"[{\"text\": \"fine enough\"", "line 1: this line is not a JSON object", PP_ERR_FORMAT},
        {"[\n]\n", "contains no examples", PP_ERR_USAGE},
        {"{\"text\":\n\"fine enough\"\n", "line 1: this line is not a JSON object", PP_ERR_FORMAT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct pp_error err;
        struct pp_train_data *d;
        assert_ok(parse_for(model, files[i], NULL, 512, &d, &err), err);
        assert_int_equal(pp_train_data_info(d)->n_lines, 2);
        expect_example(d, 0, BOS USER("{[\"") HEAD "[One]<|eot_id|>]");
        expect_example(d, 1, BOS "[two words]");
        pp_train_data_free(d);
    }
    expect_refusals(cases, sizeof cases / sizeof *cases);
}

static void bad_lines(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"", "contains no examples", PP_ERR_USAGE},
        {" \n\t\n", "contains no examples", PP_ERR_USAGE},
        {"nonsense", "line 1: this line is not a JSON", PP_ERR_FORMAT},
        {"{\"text\": \"fine enough\"}\n[1]", "line 2: this line is not a JSON", PP_ERR_FORMAT},
        {"{\"text\": \"fine enough\"} more", "line 1: this line is not a JSON", PP_ERR_FORMAT},
        {"{\"prompt\": \"x\"}", "neither", PP_ERR_FORMAT},
        {"{\"text\": 5}", "neither", PP_ERR_FORMAT},
        {"{\"text\": \"\"}", "nothing to learn", PP_ERR_FORMAT},
        {"{\"messages\": {}}", "neither", PP_ERR_FORMAT},
        {"{\"messages\": []}", "no message is from the assistant", PP_ERR_FORMAT},
        {"{\"messages\": [5]}", "message 1 has no role", PP_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "no message is from the assistant",
         PP_ERR_FORMAT},
        {"\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"a <|eot_id|> b\"},"
         "{\"role\": \"assistant\", \"content\": \"x\"}]}",
         "line 3: a message holds the control token <|eot_id|>", PP_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u0000<|eot_id|>\"},"
         "{\"role\": \"assistant\", \"content\": \"x\"}]}",
         "line 1: a text holds the character U+0000", PP_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a <|eot_id|>\"}]},"
         "{\"role\": \"assistant\", \"content\": \"x\"}]}",
         "line 1: a message holds the control token <|eot_id|>", PP_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a <|eot\"},"
         "{\"type\": \"text\", \"text\": \"_id|>\"}]}, {\"role\": \"assistant\", \"content\": \"x\"}]}",
         "line 1: a message holds the control token <|eot_id|>", PP_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"x\","
         "\"tool_calls\": [{\"arguments\": {\"<|eot_id|>\": 1}}]}]}",
         "line 1: a message holds the control token <|eot_id|>", PP_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"x\"}],"
         "\"tools\": [{\"function\": {\"description\": \"a <|eot_id|> b\"}}]}",
         "line 1: the description of the tools holds the control token <|eot_id|>", PP_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"x\"}],"
         "\"tools\": \"[]\"}", "line 1: \"tools\" is not an array", PP_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"x\"}],"
         "\"tools\": [{\"parameters\": {\"<|eot_id|>\": {}}}]}",
         "line 1: the description of the tools holds the control token <|eot_id|>", PP_ERR_FORMAT},
    };
    expect_refusals(cases, sizeof cases / sizeof *cases);
    struct pp_error err;
    struct pp_train_data *d;
    struct pp_train_data_options opt = {.max_tokens = 64};
    assert_int_equal(pp_train_data_read(model, "/nowhere/data.jsonl", &opt, &d, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "/nowhere/data.jsonl"));
    static const char long_question[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a b c d e f g\"},"
                                        "{\"role\": \"assistant\", \"content\": \"x\"}]}";
    assert_int_equal(parse_for(model, long_question, NULL, 8, &d, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "--max-length"));
    struct tiny_shape s = tiny_shape(PP_TYPE_F32);
    struct pp_model *wordless;
    assert_ok(pp_model_open(tiny_model(&s), &wordless, &err), err);
    assert_int_equal(parse_for(wordless, long_question, NULL, 64, &d, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "vocabulary"));
    pp_model_close(wordless);
}

/* Values each of which would take several times as much memory as text. */
static void too_many_values(void **state)
{
    (void)state;
    enum { MOST = 4000000 };
    static const char begin[] = "{\"text\": \"fine enough\", \"more\": [", end[] = "0]}";
    struct pp_train_data *d;
    struct pp_error err;
    struct pp_buf line = {0};
    pp_buf_str(&line, begin);
    for (int i = 0; i < MOST; i++)
        pp_buf_add(&line, "0,", 2);
    pp_buf_str(&line, end);
    assert_int_equal(parse_for(model, pp_buf_cstr(&line), NULL, 64, &d, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "line 1: the object has more than"));
    pp_buf_free(&line);
}

/* Valid lines with changed, removed and doubled bytes give examples or errors, and nothing else. */
static void hostile_lines(void **state)
{
    (void)state;
    static const char good[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"A \\u00e9\\ud83d\\ude00\"},"
                               "{\"role\": \"assistant\", \"content\": \"B<|eot_id\"}], \"tools\": []}\n"
                               "{\"text\": \"plain \\\"text\\\"\"}\n";
    static const char odd[] = "\"\\{}[]:,u0\x80\xFF\n";
    uint32_t random = 1, n_ok = 0;
    for (int round = 0; round < 1500; round++) {
        char text[sizeof good + 8];
        size_t n = sizeof good - 1;
        memcpy(text, good, n);
        for (int k = 0; k <= round % 4; k++) {
            random = random * 1664525u + 1013904223u;
            size_t at = (random >> 8) % n;
            if (random >> 30 == 0)
                memmove(text + at, text + at + 1, --n - at);
            else
                text[at] = random >> 30 == 1 ? odd[(random >> 4) % sizeof odd] : (char)(random >> 20);
        }
        struct pp_error err;
        struct pp_train_data *d;
        struct pp_train_data_options opt = {.max_tokens = 2 + round % 64};
        enum pp_code code = pp_train_data_parse(model, text, n, "hostile", &opt, &d, &err);
        n_ok += code == PP_OK;
        assert_true(code == PP_OK || code == PP_ERR_FORMAT || code == PP_ERR_USAGE);
        assert_true((code == PP_OK) == (d != NULL));
        pp_train_data_free(d);
    }
    assert_true(n_ok > 20 && n_ok < 1480); /* both cases occurred */
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
    assert_memory_equal(&hash[0], &hash[2], sizeof hash[0]); /* text after the answer does not matter */
    assert_true(pp_train_data_info(d[3])->n_tokens > pp_train_data_info(d[0])->n_tokens);
    assert_true(pp_train_data_info(d[3])->n_learnt < pp_train_data_info(d[0])->n_learnt);
    for (int i = 0; i < 4; i++)
        pp_train_data_free(d[i]);
}

static void bad_messages(void **state)
{
    static const struct refusal cases[] = {
        {"{\"text\": \"a\xff b\"}", "line 1: this is not UTF-8", PP_ERR_FORMAT},
        {ANSWER "\"content\": null}]}", "message 2 has no content", PP_ERR_FORMAT},
        {ANSWER "\"content\": 5}]}", "message 2 is neither a text nor a list of texts", PP_ERR_FORMAT},
        {ANSWER "\"content\": \"x\", \"weight\": 0.5}]}", "neither 0 nor 1", PP_ERR_FORMAT},
        {ANSWER "\"content\": \"x\", \"weight\": 0}]}", "a weight other than 0", PP_ERR_FORMAT},
        {ANSWER "\"content\": [{\"type\": \"image_url\", \"image_url\": {}}]}]}",
         "message 2 has a part that is not text, but has the type image_url", PP_ERR_UNSUPPORTED},
    };
    (void)state;
    expect_refusals(cases, sizeof cases / sizeof *cases);
}

/* Models that cannot be trained are refused with an error that says what they are. */
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_learnt), cmocka_unit_test(changing_templates), cmocka_unit_test(texts_and_lengths),
        cmocka_unit_test(lists_and_long_objects),
        cmocka_unit_test(bad_lines), cmocka_unit_test(too_many_values), cmocka_unit_test(hostile_lines),
        cmocka_unit_test(parts_and_weights),
        cmocka_unit_test(bad_messages), cmocka_unit_test(other_models),
    };
    return cmocka_run_group_tests_name("train_data", tests, setup, teardown);
}
