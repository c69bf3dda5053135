/* test_tiktoken.c - vocabularies in tiktoken's format: the same ids as from the files that they were made of, and as by
 * the plain algorithm. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <nettle/base64.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/tokenizer_internal.h"
#include "tests/support.h"
#include "tests/tokenizers.h"

static void add_line(struct pp_buf *out, const char *bytes, size_t n, int rank)
{
    char code[1024];
    assert_true(BASE64_ENCODE_RAW_LENGTH(n) < sizeof code);
    base64_encode_raw(code, n, (const uint8_t *)bytes);
    pp_buf_add(out, code, BASE64_ENCODE_RAW_LENGTH(n));
    pp_buf_fmt(out, " %d\n", rank);
}

/* A folder with these files; its path as fresh_path gives it. */
static const char *folder(const char *name, const struct pp_buf *ranks, const char *config)
{
    const char *dir = fresh_path("tiktoken");
    char path[512];
    struct pp_error err;
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(pp_write_file(path, ranks->data, ranks->len, 0600, &err), err);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    if (config)
        assert_ok(pp_write_file(path, config, strlen(config), 0600, &err), err);
    return dir;
}

static void expect_same(const struct pp_tokenizer *a, const struct pp_tokenizer *b, const char *text, size_t n)
{
    struct pp_error err;
    int32_t *x, *y;
    size_t n_x, n_y;
    assert_ok(pp_tokenize(a, text, n, 0, &x, &n_x, &err), err);
    assert_ok(pp_tokenize(b, text, n, 0, &y, &n_y, &err), err);
    for (size_t i = 0; i < n_x && i < n_y; i++)
        if (x[i] != y[i])
            fail_msg("\"%.*s\": id %zu is %d, not %d", (int)(n < 60 ? n : 60), text, i, x[i], y[i]);
    assert_int_equal(n_x, n_y);
    pp_free(x);
    pp_free(y);
}

/* --- published vocabularies -------------------------------------------------------------------------------- */

static void write_ranks(const struct pp_tokenizer *t, struct pp_buf *out)
{
    struct pp_buf text = {0};
    for (int32_t id = 0; id < pp_tokenizer_n(t); id++) {
        pp_buf_clear(&text);
        if (t->type[id] == TOK_NORMAL)
            pp_token_text(t, id, false, &text);
        if (text.len)
            add_line(out, text.data, text.len, id);
    }
    pp_buf_free(&text);
    assert_false(out->bad);
}

/* Compares the texts of a .inp file, and the large text with its ids. */
static void expect_vectors(const struct pp_tokenizer *made, const struct pp_tokenizer *from, const char *name)
{
    static const char between[] = "\n__ggml_vocab_test__\n";
    char path[256], *text, *big, *ids;
    size_t n, n_big, n_ids, n_have;
    int32_t *have;
    struct pp_error err;
    snprintf(path, sizeof path, "tokenizers/%s.gguf.inp", name);
    assert_ok(pp_read_file(testdata(path), 1 << 20, &text, &n, &err), err);
    for (const char *at = text, *next; at; at = next) {
        next = strstr(at, between);
        expect_same(made, from, at, next ? (size_t)(next - at) : n - (size_t)(at - text));
        next = next ? next + sizeof between - 1 : NULL;
    }
    assert_ok(pp_read_file(testdata("tokenizers/big.txt"), 1 << 20, &big, &n_big, &err), err);
    snprintf(path, sizeof path, "tokenizers/%s.big.ids.i32", name);
    assert_ok(pp_read_file(testdata(path), 1 << 24, &ids, &n_ids, &err), err);
    assert_ok(pp_tokenize(made, big, n_big, 0, &have, &n_have, &err), err);
    assert_int_equal(n_have * sizeof *have, n_ids);
    assert_memory_equal(have, ids, n_ids);
    pp_free(have);
    pp_free(ids);
    pp_free(big);
    pp_free(text);
}

static void vectors(void **state)
{
    static const struct {
        const char *name, *file, *pre, *control;
        int32_t id;
    } cases[] = {{"gpt-2", "vocabulary.tiktoken", "gpt-2", "<|endoftext|>", 50256}, /* recognised by the number of
                                                                                       ranks */
                 {"qwen2", "qwen.tiktoken", "qwen2", "<|im_start|>", 151644}};
    char path[256];
    (void)state;
    if (!testdata("tokenizers/gpt-2.gguf"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_buf ranks = {0};
        snprintf(path, sizeof path, "tokenizers/%s.gguf", cases[i].name);
        struct pp_tokenizer *from = open_tokenizer(testdata(path));
        write_ranks(from, &ranks);
        struct pp_tokenizer *made = open_tokenizer(folder(cases[i].file, &ranks, NULL));
        struct pp_tokenizer *again = through_gguf(made);
        assert_string_equal(made->pre, cases[i].pre);
        assert_int_equal(pp_tokenizer_find(made, cases[i].control, strlen(cases[i].control)), cases[i].id);
        expect_vectors(made, from, cases[i].name);
        expect_vectors(again, from, cases[i].name);
        pp_tokenizer_free(again);
        pp_tokenizer_free(made);
        pp_tokenizer_free(from);
        pp_buf_free(&ranks);
    }
}

/* --- the algorithm ----------------------------------------------------------------------------------------- */

enum { WORDS = 40, LONGEST = 8 };

struct small {
    char text[WORDS + 2][LONGEST + 1]; /* indexed by rank */
    int n;
};

static uint32_t random_state;

static uint32_t rnd(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % below;
}

static int rank_of(const struct small *v, const char *text, size_t n)
{
    for (int i = 0; i < v->n; i++)
        if (strlen(v->text[i]) == n && memcmp(v->text[i], text, n) == 0)
            return i;
    return -1;
}

/* Makes a vocabulary of two letters and words of them. */
static void make_small(struct small *v)
{
    strcpy(v->text[0], "a");
    strcpy(v->text[1], "b");
    v->n = 2;
    while (v->n < WORDS) {
        char word[LONGEST + 1] = {0};
        const size_t n = 2 + rnd(LONGEST - 1);
        for (size_t i = 0; i < n; i++)
            word[i] = rnd(3) ? 'a' : 'b';
        if (rank_of(v, word, n) < 0)
            strcpy(v->text[v->n++], word);
    }
}

/* The algorithm of tiktoken's source: merges the pair with the lowest rank, the leftmost of equal ones, until no pair
 * has a rank. */
static size_t plain(const struct small *v, const char *word, size_t n, int32_t *ids)
{
    size_t start[65], parts = n;
    assert_true(n < 65);
    if (rank_of(v, word, n) >= 0) {
        ids[0] = rank_of(v, word, n);
        return 1;
    }
    for (size_t i = 0; i <= n; i++)
        start[i] = i;
    for (;;) {
        int best = -1;
        size_t at = 0;
        for (size_t i = 0; i + 1 < parts; i++) {
            const int rank = rank_of(v, word + start[i], start[i + 2] - start[i]);
            if (rank >= 0 && (best < 0 || rank < best)) {
                best = rank;
                at = i;
            }
        }
        if (best < 0)
            break;
        memmove(start + at + 1, start + at + 2, (parts - at - 1) * sizeof *start);
        parts--;
    }
    for (size_t i = 0; i < parts; i++)
        ids[i] = rank_of(v, word + start[i], start[i + 1] - start[i]);
    return parts;
}

static void plain_algorithm(void **state)
{
    (void)state;
    random_state = 7;
    for (int round = 0; round < 60; round++) {
        struct small v;
        struct pp_buf ranks = {0};
        make_small(&v);
        for (int i = v.n - 1; i >= 0; i--) /* in any order */
            add_line(&ranks, v.text[i], strlen(v.text[i]), i);
        struct pp_tokenizer *t = open_tokenizer(folder("small.tiktoken", &ranks, "{\"pat_str\": \"[a-z]+\"}"));
        struct pp_tokenizer *again = through_gguf(t);
        for (int k = 0; k < 200; k++) {
            char word[64];
            int32_t want[64], *have;
            struct pp_error err;
            size_t n_have;
            const size_t n = 1 + rnd(40);
            for (size_t i = 0; i < n; i++)
                word[i] = rnd(3) ? 'a' : 'b';
            const size_t n_want = plain(&v, word, n, want);
            const struct pp_tokenizer *both[] = {t, again};
            for (int b = 0; b < 2; b++) {
                assert_ok(pp_tokenize(both[b], word, n, 0, &have, &n_have, &err), err);
                if (n_have != n_want || memcmp(have, want, n_want * sizeof *want) != 0)
                    fail_msg("round %d: %.*s has other ids", round, (int)n, word);
                pp_free(have);
            }
        }
        pp_tokenizer_free(again);
        pp_tokenizer_free(t);
        pp_buf_free(&ranks);
    }
}

/* --- what stands beside it --------------------------------------------------------------------------------- */

/* tokenizer_config.json names the control tokens; tokenizer.json takes precedence. */
static void folders(void **state)
{
    static const char config[] =
        "{\"pat_str\": \"[a-z]+|[0-9]\", \"eos_token\": \"<end>\", \"added_tokens_decoder\": "
        "{\"3\": {\"content\": \"<end>\", \"special\": true}}}";
    struct pp_buf ranks = {0};
    (void)state;
    add_line(&ranks, "a", 1, 0);
    add_line(&ranks, "b", 1, 1);
    pp_buf_str(&ranks, "\r\n");
    add_line(&ranks, "ab", 2, 2);
    struct pp_tokenizer *t = open_tokenizer(folder("x.tiktoken", &ranks, config));
    assert_int_equal(pp_tokenizer_n(t), 4);
    assert_int_equal(pp_tokenizer_eos(t), 3);
    assert_true(pp_tokenizer_is_end(t, 3));
    expect_tokens(t, "aabb<end>", PP_TOKENIZE_SPECIAL, "a|ab|b|<end>");
    pp_tokenizer_free(t);
    t = open_tokenizer(folder("tokenizer.model", &ranks, config)); /* as in Meta's models */
    expect_tokens(t, "abab", 0, "ab|ab");
    pp_tokenizer_free(t);
    /* an expression in Rust's dialect: an intersection of classes */
    t = open_tokenizer(folder("x.tiktoken", &ranks, "{\"pat_str\": \"[\\\\w&&[^b]]|b$\"}"));
    struct pp_tokenizer *again = through_gguf(t);
    expect_tokens(t, "ababa", 0, "a|b|a|b|a");
    expect_tokens(again, "ababa", 0, "a|b|a|b|a");
    pp_tokenizer_free(again);
    pp_tokenizer_free(t);
    pp_buf_free(&ranks);
}

/* Phi 3 small uses a file name of cl100k, whose ranks it has, but has more control tokens, which only config.json
 * tells. An empty list of control tokens is ignored. */
static void phi_small(void **state)
{
    static const char config[] = "{\"model_type\": \"phi3small\"}";
    enum { RANKS = 100256, PAIRS = 256 + 65536 };
    struct pp_buf ranks = {0};
    struct pp_error err;
    (void)state;
    for (int i = 0; i < RANKS; i++) {
        const int rest = i < 256 ? i : (i - 256) % 65536;
        const char bytes[3] = {(char)(rest >> 8), (char)rest, i < PAIRS ? 0 : 'x'};
        add_line(&ranks, i < 256 ? bytes + 1 : bytes, i < 256 ? 1 : i < PAIRS ? 2 : 3, i);
    }
    for (int known = 0; known < 2; known++) {
        const char *dir = folder("cl100k_base.tiktoken", &ranks, "{\"added_tokens_decoder\": {}}");
        char path[512];
        snprintf(path, sizeof path, "%s/config.json", dir);
        if (known)
            assert_ok(pp_write_file(path, config, strlen(config), 0600, &err), err);
        struct pp_tokenizer *t = open_tokenizer(dir);
        assert_string_equal(t->pre, "dbrx");
        assert_int_equal(pp_tokenizer_eos(t), 100257);
        assert_int_equal(pp_tokenizer_find(t, "<|fim_suffix|>", 14), 100260);
        assert_int_equal(pp_tokenizer_find(t, "<|assistant|>", 13), known ? 100263 : -1);
        assert_int_equal(pp_tokenizer_find(t, "<|end|>", 7), known ? 100266 : -1);
        pp_tokenizer_free(t);
    }
    pp_buf_free(&ranks);
}

/* --- tekken.json ------------------------------------------------------------------------------------------- */

#define TEKKEN(special, pattern)                                                                             \
    "{\"config\": {\"pattern\": \"" pattern "\", \"num_vocab_tokens\": 5, \"default_vocab_size\": 8,"          \
    " \"default_num_special_tokens\": 4, \"version\": \"v3\"}, \"vocab\": ["                                  \
    "{\"rank\": 0, \"token_bytes\": \"YQ==\", \"token_str\": \"a\"},"                                        \
    "{\"rank\": 1, \"token_bytes\": \"Yg==\", \"token_str\": \"b\"},"                                        \
    "{\"rank\": 2, \"token_bytes\": \"/w==\", \"token_str\": null},"                                         \
    "{\"rank\": 3, \"token_bytes\": \"YWI=\", \"token_str\": \"ab\"},"                                       \
    "{\"rank\": 4, \"token_bytes\": \"YWJi\", \"token_str\": \"abb\"}]" special "}"

#define SIZED(all, control, vocab)                                                                           \
    "{\"config\": {\"pattern\": \"a\", \"default_vocab_size\": " all ", \"default_num_special_tokens\": " control  \
    "}, \"vocab\": [" vocab "]}"

/* Control tokens come before the ranks; only as many as the vocabulary has room for count. */
static void tekken(void **state)
{
    static const char listed[] = TEKKEN(", \"special_tokens\": [{\"rank\": 1, \"token_str\": \"<s>\"},"
                                        " {\"rank\": 2, \"token_str\": \"[END]\", \"is_control\": true}]", "[a-z]+");
    static const char unlisted[] = TEKKEN("", "[a-z]+"), bad[] = TEKKEN("", "[a-z");
    static const struct {
        const char *json, *text, *want;
        int32_t bos, eos;
    } cases[] = {{listed, "abba[END]\xff<SPECIAL_3></s>", "<s>|ab|b|a|[END]|\xff|<SPECIAL_3>", 1, -1},
                 {unlisted, "ab</s>b[INST]a", "<s>|ab|</s>|b|[INST]|a", 1, 2}};
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_buf json = {0};
        pp_buf_str(&json, cases[i].json);
        t = open_tokenizer(folder("tekken.json", &json, NULL));
        struct pp_tokenizer *again = through_gguf(t);
        const struct pp_tokenizer *both[] = {t, again};
        for (int b = 0; b < 2; b++) {
            assert_int_equal(pp_tokenizer_n(both[b]), 8);
            assert_int_equal(pp_tokenizer_bos(both[b]), cases[i].bos);
            assert_int_equal(pp_tokenizer_eos(both[b]), cases[i].eos);
            assert_int_equal(pp_tokenizer_find(both[b], "ab", 2), 7);
            expect_tokens(both[b], cases[i].text, PP_TOKENIZE_SPECIAL | PP_TOKENIZE_BOS, cases[i].want);
        }
        pp_tokenizer_free(again);
        pp_tokenizer_free(t);
        pp_buf_free(&json);
    }
    assert_int_equal(tok_from_json(bad, strlen(bad), NULL, &t, &err), PP_ERR_UNSUPPORTED);
    static const char *const hostile[] = {
        "{\"config\": {\"pattern\": \"a\"}, \"vocab\": []}",
        SIZED("3", "3", ""),
        SIZED("3", "1", ""),
        SIZED("9e9", "1", ""),
        SIZED("3", "1", "1"),
        SIZED("3", "1", "{\"rank\": 0, \"token_bytes\": \"!\"}"),
        SIZED("3", "1", "{\"rank\": 0, \"token_bytes\": \"YQ==\"}, {\"rank\": 0, \"token_bytes\": \"Yg==\"}"),
    };
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        assert_int_equal(tok_from_json(hostile[i], strlen(hostile[i]), NULL, &t, &err), PP_ERR_FORMAT);
}

/* --- files that lie ---------------------------------------------------------------------------------------- */

static enum pp_code parse(const char *text, size_t n, struct pp_tokenizer **t, struct pp_error *err)
{
    return tok_from_tiktoken(text, n, "qwen.tiktoken", NULL, t, err);
}

static void lies(void **state)
{
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"YQ== 0\nYg== 0\n", "two tokens have the rank 0"},
        {"YQ== 0\nYQ== 1\n", "occurs twice"},
        {"YQ== 0\nYg==\n", "line 2 is not"},
        {"YQ== 0\nYg== -1\n", "line 2 is not"},
        {"YQ== 0\nYg== 1 1\n", "line 2 is not"},
        {"YQ== 0\nYg== 99999999999999999999999\n", "line 2 is not"},
        {"YQ== 0\nYg== 4194304\n", "line 2 is not"},
        {"YQ== 0\nYg== 4194303\n", "ranks up to"},
        {"YQ== 0\n\xff\xfe 1\n", "line 2 is not"},
        {"YQ== 0\n=a== 1\n", "rank 1 is not valid base64"},
        {"YQ== 0\nYgB 1\n", "rank 1 is not valid base64"},
        {"YQ== 0\n==== 1\n", "rank 1"},
    };
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(cases[i].text, strlen(cases[i].text), &t, &err), PP_ERR_FORMAT);
        assert_null(t);
        if (!strstr(err.text, cases[i].word))
            fail_msg("%s: %s", cases[i].text, err.text);
    }
    assert_int_equal(tok_from_tiktoken("YQ== 0\n", 7, "x", NULL, &t, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "pat_str"));
    assert_false(tok_is_tiktoken("", 0));
    assert_false(tok_is_tiktoken("\n\x0a\x05", 3));
    assert_false(tok_is_tiktoken("hello world\n", 12));
    assert_true(tok_is_tiktoken("aGk= 7", 6));
}

/* Tokens of one repeated letter have a merge for each place to split them, which takes linear work; tokens longer than
 * any published one are refused. */
static void one_letter(void **state)
{
    static char letters[400], many[1 << 20];
    struct pp_buf ranks = {0};
    struct pp_tokenizer *t;
    struct pp_error err;
    int32_t *ids;
    size_t n;
    (void)state;
    memset(letters, 'a', sizeof letters);
    memset(many, 'a', sizeof many);
    for (int i = 1; i <= 256; i++)
        add_line(&ranks, letters, (size_t)i, i - 1);
    assert_ok(parse(ranks.data, ranks.len, &t, &err), err);
    assert_int_equal(t->n_merges, 255 * 256 / 2);
    assert_ok(pp_tokenize(t, many, sizeof many, 0, &ids, &n, &err), err);
    assert_true(n >= sizeof many / 256);
    pp_free(ids);
    pp_tokenizer_free(t);
    add_line(&ranks, letters, 257, 256);
    assert_int_equal(parse(ranks.data, ranks.len, &t, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "257 bytes"));
    pp_buf_free(&ranks);
}

/* Files that are cut off at any place, and memory that runs out at any place: an error, or the tokens that are left. */
static void cut_off(void **state)
{
    struct pp_buf ranks = {0};
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    static const char *const words[] = {"a", "b", "c", "ab", "bc", "abc", "\xc3", "\xa9", "\xc3\xa9", "\0x"};
    for (int i = 0; i < 10; i++)
        add_line(&ranks, words[i], i == 9 ? 2 : strlen(words[i]), i);
    for (size_t n = 1; n <= ranks.len; n++)
        if (tok_is_tiktoken(ranks.data, n) && parse(ranks.data, n, &t, &err) == PP_OK)
            pp_tokenizer_free(t);
    enum pp_code code = PP_ERR_NOMEM;
    for (uint64_t nth = 1; code; nth++) {
        pp_mem_fail_at(nth, 0);
        code = parse(ranks.data, ranks.len, &t, &err);
        pp_mem_fail_at(0, 0);
        if (code)
            assert_int_equal(code, PP_ERR_NOMEM);
        assert_true(nth < 1000);
    }
    expect_tokens(t, "abcab\xc3\xa9", 0, "abc|ab|\xc3\xa9");
    pp_tokenizer_free(t);
    pp_buf_free(&ranks);
}

TEST_GROUP(tiktoken)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors), cmocka_unit_test(plain_algorithm), cmocka_unit_test(folders),
        cmocka_unit_test(phi_small),
        cmocka_unit_test(tekken),  cmocka_unit_test(lies),            cmocka_unit_test(one_letter),
        cmocka_unit_test(cut_off),
    };
    return cmocka_run_group_tests_name("tiktoken", tests, NULL, NULL);
}
