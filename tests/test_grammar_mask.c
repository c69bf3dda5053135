/* test_grammar_mask.c - the tokens that a grammar allows: against trying each of them, and in answers of the bundled
 * model, with and without speculation. PIPPIN_TIMES: prints what masks cost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "engine/grammar_mask.h"
#include "engine/text.h"
#include "tests/support.h"

#define STARTER "engine/starter/starter-Q4_K_M.gguf"
#define DRAFT "engine/starter/starter-draft-Q4_0.gguf"

static struct pp_grammar *parse(const char *text)
{
    struct pp_grammar *g;
    struct pp_error err;
    assert_ok(pp_grammar_parse(text, strlen(text), "test", &g, &err), err);
    return g;
}

static struct pp_grammar *from_schema(const char *text)
{
    struct pp_grammar *g;
    struct pp_error err;
    assert_ok(pp_grammar_from_schema(text, strlen(text), "test", &g, &err), err);
    return g;
}

static bool has(const uint64_t *words, int32_t token)
{
    return words[token / 64] >> (token % 64) & 1;
}

/* --- masks ------------------------------------------------------------------------------------------------------- */

enum { N_TEXTS = 40, END = 38, OTHER_END = 39 };

/* Tokens that cross the borders of rules, parts of characters, two of one text, control tokens (NULL). */
static const char *const texts[N_TEXTS] = {
    "a", "b", "ab", "ba", "aab", "\"", "\",", "\":", "\"}", "{", "{\"", "}", "}}", "[", "]", "[[", "]]", "],", ",",
    ", ", ": ", ":", "1", "12", "123", "1,",
    "\xc3", "\xa9", "\xc3\xa9", "\xf0\x9f", "\x98\x80", "é\"", "a", "\\", "\\n",
    "a\\", NULL, "ab\"]", NULL, NULL};

/* Compares the mask of a state with trying each token. */
static void check_mask(struct pp_masks *c, int32_t state, const int32_t *ids)
{
    uint64_t words[(N_TEXTS + 63) / 64];
    const uint64_t *mask = pp_masks_of(c, state);
    assert_non_null(mask);
    memcpy(words, mask, sizeof words);
    for (int32_t t = 0; t < N_TEXTS; t++) {
        const bool ends = t == END || t == OTHER_END;
        const bool may = ends ? c->m->states[state].ends
                              : pp_matcher_token(c->m, state, t, texts[t], texts[t] ? strlen(texts[t]) : 0, ids) > 0;
        if (has(words, t) != may)
            fail_msg("token %d (%s) is %s", t, texts[t] ? texts[t] : "-", may ? "forbidden" : "allowed");
    }
}

static void walk_randomly(const struct pp_grammar *g, unsigned seed)
{
    struct pp_matcher m;
    struct pp_masks c;
    struct pp_trie *trie;
    struct pp_error err;
    const int32_t ids[4] = {36, 0, 36, 36}, ends[] = {END, OTHER_END};
    assert_ok(pp_trie_of_texts(texts, N_TEXTS, &trie, &err), err);
    assert_ok(pp_matcher_init(&m, g, &err), err);
    assert_ok(pp_masks_init(&c, &m, trie, ids, ends, 2, &err), err);
    for (int round = 0; round < 30; round++) {
        int32_t state = pp_matcher_start(&m);
        for (int i = 0; i < 40 && state > 0; i++) {
            check_mask(&c, state, ids);
            const uint64_t *mask = pp_masks_of(&c, state);
            int32_t allowed[N_TEXTS], n = 0;
            for (int32_t t = 0; t < N_TEXTS; t++)
                if (has(mask, t) && t != END && t != OTHER_END)
                    allowed[n++] = t;
            seed = seed * 1664525 + 1013904223;
            const int32_t t = n ? allowed[(seed >> 8) % (unsigned)n] : END;
            state = t == END ? PP_STATE_DEAD
                             : pp_matcher_token(&m, state, t, texts[t], texts[t] ? strlen(texts[t]) : 0, ids);
        }
    }
    pp_masks_free(&c);
    pp_matcher_free(&m);
    pp_trie_free(trie);
}

static void masks(void **state)
{
    static const char *const grammars[] = {
        "root ::= v\nv ::= o | l | s | n\no ::= \"{\" (s \":\" \" \"? v (\",\" \" \"? s \":\" v)*)? \"}\"\n"
        "l ::= \"[\" (v (\",\" \" \"? v)*)? \"]\"\n"
        "s ::= \"\\\"\" ([^\"\\\\\\n] | \"\\\\\" [n\\\\])* \"\\\"\"\nn ::= [0-9]+",
        "root ::= x*\nx ::= \"a\" y | \"ab\" | y\ny ::= \"b\" \"a\"? | \"{\" x \"}\"",
        "root ::= (\"a\" | \"aa\" | \"ab\" | \"b\")* \"\\\"\"",
        "root ::= \"{\" (!<[36]>)* <[36]> .* ",
        "root ::= ([a-z]{3,300} \",\")* [é😀]{1,5}",
        "root ::= (<[36]> \"a\" | \"a\" !<[36]> | [^a])+",
    };
    (void)state;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct pp_grammar *g = parse(grammars[i]);
        walk_randomly(g, (unsigned)i + 1);
        pp_grammar_free(g);
    }
    struct pp_grammar *g = from_schema("{\"properties\":{\"a\":{\"maxLength\":5},\"b\":{}},"
                                       "\"additionalProperties\":true}");
    walk_randomly(g, 7);
    pp_grammar_free(g);
}

/* --- answers ----------------------------------------------------------------------------------------------------- */

struct talk {
    struct pp_model *model, *draft_model;
    struct pp_engine *engine, *draft_engine;
};

static void talk_begin(struct talk *t)
{
    struct pp_engine_options opt = {.n_threads = 2, .kv_memory = 64u << 20};
    struct pp_error err;
    assert_ok(pp_model_open(STARTER, &t->model, &err), err);
    assert_ok(pp_model_open(DRAFT, &t->draft_model, &err), err);
    assert_ok(pp_engine_new(t->model, &opt, NULL, NULL, &t->engine, &err), err);
    assert_ok(pp_engine_new(t->draft_model, &opt, NULL, NULL, &t->draft_engine, &err), err);
}

static void talk_end(struct talk *t)
{
    pp_engine_free(t->draft_engine);
    pp_engine_free(t->engine);
    pp_model_close(t->draft_model);
    pp_model_close(t->model);
}

enum how { PLAIN, MODEL, LOOKUP, TREE, N_HOW };

static enum pp_code answer(struct talk *t, const struct pp_grammar_use *use, float temp, uint64_t seed, enum how how,
                           struct pp_buf *text, enum pp_finish *finish, uint64_t *drafted, struct pp_error *err)
{
    static const char prompt[] = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
                                 "Hello, who are you?<|eot_id|>"
                                 "<|start_header_id|>assistant<|end_header_id|>\n\n";
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 400, .grammar = use};
    struct pp_seq *seq, *draft;
    struct pp_gen *gen;
    int32_t *ids;
    size_t n;
    int more;
    opt.sampling.temp = temp;
    opt.sampling.seed = seed;
    opt.draft_always = true;
    opt.lookup = how == LOOKUP || how == TREE;
    opt.draft_siblings = how == TREE;
    assert_ok(pp_seq_new(t->engine, &seq, err), *err);
    assert_ok(pp_seq_new(t->draft_engine, &draft, err), *err);
    opt.draft = how == MODEL || how == TREE ? draft : NULL;
    assert_ok(pp_tokenize(pp_model_tokenizer(t->model), prompt, strlen(prompt), PP_TOKENIZE_SPECIAL, &ids, &n, err),
              *err);
    *finish = PP_FINISH_NONE;
    enum pp_code code = pp_gen_start(seq, ids, (int64_t)n, &opt, NULL, &gen, err);
    while (!code && *finish == PP_FINISH_NONE)
        code = pp_gen_next(gen, NULL, text, &more, finish, err);
    if (!code && drafted)
        *drafted = pp_gen_stats(gen).draft_tokens;
    pp_gen_free(gen);
    pp_free(ids);
    pp_seq_free(draft);
    pp_seq_free(seq);
    return code;
}

/* Answers match their grammar, and are the same however they are drafted. */
static void answers(void **state)
{
    struct pp_grammar *grammars[] = {
        from_schema("{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":30},"
                    "\"age\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":99},"
                    "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"bc\",\"é\"]},\"minItems\":2,"
                    "\"maxItems\":5}},"
                    "\"required\":[\"name\",\"age\",\"tags\"]}"),
        parse("root ::= (word \" \"){3,12} word [.!?]\nword ::= [a-z]{1,8}"),
        parse("root ::= \"Hello\" [ ,.a-zA-Z]{0,40} \"\\n\" <|eot_id|>"),
    };
    struct talk t;
    struct pp_error err;
    (void)state;
    talk_begin(&t);
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        const struct pp_grammar_use use = {.grammar = grammars[i]};
        for (int round = 0; round < 3; round++) {
            struct pp_buf plain = {0};
            uint64_t drafted = 0, any = 0;
            enum pp_finish finish;
            bool yes;
            const float temp = round == 0 ? 0.0f : 1.0f;
            assert_ok(answer(&t, &use, temp, 7 + (uint64_t)round, PLAIN, &plain, &finish, NULL, &err), err);
            assert_int_equal(finish, PP_FINISH_END);
            assert_ok(pp_grammar_matches(grammars[i], pp_buf_cstr(&plain), plain.len, &yes, &err), err);
            if (!yes && i != 2) /* whose end is a token */
                fail_msg("does not match: %s", pp_buf_cstr(&plain));
            for (enum how how = MODEL; how < N_HOW; how++) {
                struct pp_buf other = {0};
                assert_ok(answer(&t, &use, temp, 7 + (uint64_t)round, how, &other, &finish, &drafted, &err), err);
                assert_int_equal(finish, PP_FINISH_END);
                assert_string_equal(pp_buf_cstr(&other), pp_buf_cstr(&plain));
                any += drafted;
                pp_buf_free(&other);
            }
            assert_true(any > 0);
            pp_buf_free(&plain);
        }
        pp_grammar_free(grammars[i]);
    }
    talk_end(&t);
}

/* Thinking is free, and the grammar begins behind it; an answer that is continued begins in its middle. */
static void reasoning(void **state)
{
    struct pp_grammar *g = parse("root ::= \"yes, \" [a-z]+ \"!\"");
    struct pp_reasoning think = pp_reasoning_of("<think></think>", NULL);
    struct talk t;
    struct pp_buf text = {0};
    struct pp_error err;
    enum pp_finish finish;
    (void)state;
    talk_begin(&t);
    struct pp_grammar_use use = {.grammar = g, .reasoning = &think, .begins = PP_BEGINS_REASONING};
    assert_ok(answer(&t, &use, 0, 1, PLAIN, &text, &finish, NULL, &err), err);
    assert_null(strstr(pp_buf_cstr(&text), "yes, ")); /* it never stops thinking */
    pp_buf_clear(&text);
    use.begins = PP_BEGINS_ANSWER;
    assert_ok(answer(&t, &use, 0, 1, PLAIN, &text, &finish, NULL, &err), err);
    assert_memory_equal(pp_buf_cstr(&text), "yes, ", 5);
    pp_buf_clear(&text);
    use = (struct pp_grammar_use){.grammar = g, .begun = "yes, ", .n_begun = 5};
    assert_ok(answer(&t, &use, 0, 1, PLAIN, &text, &finish, NULL, &err), err);
    assert_true(text.len >= 2 && text.data[0] >= 'a' && text.data[0] <= 'z' && text.data[text.len - 1] == '!');
    use.begun = "no";
    use.n_begun = 2;
    assert_int_equal(answer(&t, &use, 0, 1, PLAIN, &text, &finish, NULL, &err), PP_ERR_USAGE);
    pp_buf_free(&text);
    pp_grammar_free(g);
    talk_end(&t);
}

/* What a model cannot do is told. */
static void errors(void **state)
{
    static const struct {
        const char *grammar, *error;
        enum pp_code code;
    } cases[] = {
        {"root ::= <nosuchtoken>", "the grammar names the token <nosuchtoken>", PP_ERR_USAGE},
        {"root ::= <[99999999]>", "the grammar names token 99999999", PP_ERR_USAGE},
    };
    struct talk t;
    (void)state;
    talk_begin(&t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_grammar *g = parse(cases[i].grammar);
        const struct pp_grammar_use use = {.grammar = g};
        struct pp_buf text = {0};
        struct pp_error err;
        enum pp_finish finish;
        assert_int_equal(answer(&t, &use, 0, 1, PLAIN, &text, &finish, NULL, &err), cases[i].code);
        assert_memory_equal(err.text, cases[i].error, strlen(cases[i].error));
        pp_buf_free(&text);
        pp_grammar_free(g);
    }
    talk_end(&t);
}

/* --- a large vocabulary ------------------------------------------------------------------------------------------ */

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* JSON in a vocabulary of 151,646 tokens: every token of it is allowed, and takes little time. */
static void large_vocabulary(void **state)
{
    const char *vocabulary = testdata("tokenizers/qwen2.gguf");
    const char *json = testdata("grammars/JSON-Schema-Test-Suite/draft7/ref.json");
    struct pp_tokenizer *t;
    struct pp_trie *trie;
    struct pp_matcher m;
    struct pp_masks c;
    struct pp_error err;
    char *text;
    size_t n_text, n;
    int32_t *ids;
    (void)state;
    if (!vocabulary || !json)
        return;
    assert_ok(pp_tokenizer_open(vocabulary, &t, &err), err);
    assert_ok(pp_read_file(json, 1 << 20, &text, &n_text, &err), err);
    const char *end = strrchr(text, ']');
    assert_non_null(end);
    struct pp_grammar *g = parse("root ::= \"[\" s object (s \",\" s object)* s \"]\"\n"
                                 "value ::= object | array | string | [0-9.eE+-]+ | \"true\" | \"false\" | \"null\"\n"
                                 "object ::= \"{\" s (pair (s \",\" s pair)*)? s \"}\"\n"
                                 "pair ::= string s \":\" s value\n"
                                 "array ::= \"[\" s (value (s \",\" s value)*)? s \"]\"\n"
                                 "string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F] | \"\\\\\" [^\\x00-\\x1F])* \"\\\"\"\n"
                                 "s ::= [ \\n]*");
    assert_ok(pp_tokenize(t, text, (size_t)(end + 1 - text), 0, &ids, &n, &err), err);
    assert_ok(pp_trie_new(t, pp_tokenizer_n(t), &trie, &err), err);
    assert_ok(pp_matcher_init(&m, g, &err), err);
    assert_ok(pp_masks_init(&c, &m, trie, NULL, NULL, 0, &err), err);
    int32_t at = pp_matcher_start(&m);
    const double begin = cpu_ms();
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        const double before = cpu_ms();
        const uint64_t *words = pp_masks_of(&c, at);
        most = cpu_ms() - before > most ? cpu_ms() - before : most;
        assert_non_null(words);
        if (!has(words, ids[i]))
            fail_msg("token %zu of %zu is forbidden", i, n);
        const uint32_t from = trie->text_at[ids[i]];
        at = pp_matcher_text(&m, at, trie->text + from, trie->text_at[ids[i] + 1] - from);
        if (pp_matcher_trim(&m, &at))
            pp_masks_clear(&c);
    }
    const double each = (cpu_ms() - begin) / (double)n;
    assert_true(at > 0 && m.states[at].ends);
    if (getenv("PIPPIN_TIMES"))
        printf("%zu tokens: %.4f ms each, the longest %.2f ms\n", n, each, most);
    assert_true(each < 1);
    pp_masks_free(&c);
    pp_matcher_free(&m);
    pp_trie_free(trie);
    pp_grammar_free(g);
    pp_tokenizer_free(t);
    pp_free(ids);
    pp_free(text);
}

TEST_GROUP(grammar_mask)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks),  cmocka_unit_test(answers),          cmocka_unit_test(reasoning),
        cmocka_unit_test(errors), cmocka_unit_test(large_vocabulary),
    };
    return cmocka_run_group_tests_name("grammar_mask", tests, NULL, NULL);
}
