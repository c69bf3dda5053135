/* test_tokenizer.c - tokenizers: small vocabularies made here, hostile files, and the reference vectors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "engine/tokenizer_internal.h"
#include "tests/support.h"
#include "tests/tokenizers.h"

/* CPU time, since a busy machine may delay a test for long. */
static double used_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* --- helpers ------------------------------------------------------------------------------------------- */

static uint32_t random_state;

static uint32_t rnd(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % below;
}

static void expect_ids(const struct pp_tokenizer *t, const char *text, size_t n, unsigned flags, const int32_t *want,
                       size_t n_want)
{
    int32_t *ids;
    size_t n_ids;
    struct pp_error err;
    assert_ok(pp_tokenize(t, text, n, flags, &ids, &n_ids, &err), err);
    for (size_t i = 0; i < n_ids && i < n_want; i++)
        if (ids[i] != want[i])
            fail_msg("\"%.*s\": id %zu is %d, not %d", (int)(n < 60 ? n : 60), text, i, ids[i], want[i]);
    if (n_ids != n_want)
        fail_msg("\"%.*s\": %zu ids, not %zu", (int)(n < 60 ? n : 60), text, n_ids, n_want);
    pp_free(ids);
}

static void expect_round_trip(const struct pp_tokenizer *t, const char *text, size_t n, unsigned flags)
{
    int32_t *ids;
    size_t n_ids;
    struct pp_error err;
    struct pp_buf back = {0};
    assert_ok(pp_tokenize(t, text, n, flags, &ids, &n_ids, &err), err);
    pp_detokenize(t, ids, n_ids, flags & PP_TOKENIZE_SPECIAL, &back);
    assert_int_equal(back.len, n);
    if (n)
        assert_memory_equal(back.data, text, n);
    pp_buf_free(&back);
    pp_free(ids);
}

static struct pp_tokenizer *from_json(const char *json)
{
    struct pp_tokenizer *t;
    struct pp_error err;
    assert_ok(tok_from_json(json, strlen(json), NULL, &t, &err), err);
    return t;
}

static void expect_json_refused(const char *json, enum pp_code code)
{
    struct pp_tokenizer *t;
    struct pp_error err = {0};
    assert_int_equal(tok_from_json(json, strlen(json), NULL, &t, &err), code);
    assert_null(t);
    assert_true(strlen(err.text) > 10);
}

/* --- a small byte-level vocabulary --------------------------------------------------------------------- */

enum { HELLO_END = 0, HELLO_BOS = 1, HELLO_TOOL = 2, HELLO_TOOLS = 3, HELLO_BYTES = 4 };

static const char *const hello_merges[] = {
    "h e", "l l", "he ll", "hell o", "\xc4\xa0 w", "o r", "\xc4\xa0w or", "l d", "\xc4\xa0wor ld", "a a", "aa a",
    "aa aa", "\xc3\x83 \xc2\xa9", "a b", "ab ab", "b a", "aab ab",
};

/* Writes a tokenizer.json with the 256 bytes and the results of the merges. `pattern`: the split rule's regular
 * expression, spelt as in JSON. */
static void hello_json(const char *pattern, bool pairs, struct pp_buf *out)
{
    cJSON *vocab = cJSON_CreateObject(), *merges = cJSON_CreateArray();
    int id = HELLO_BYTES;
    for (unsigned byte = 0; byte < 256; byte++) {
        char key[5] = {0};
        pp_utf8_encode(tok_byte_to_char(byte), key);
        cJSON_AddNumberToObject(vocab, key, id++);
    }
    for (size_t i = 0; i < sizeof hello_merges / sizeof *hello_merges; i++) {
        const char *space = strchr(hello_merges[i], ' ');
        char left[32], both[64];
        snprintf(left, sizeof left, "%.*s", (int)(space - hello_merges[i]), hello_merges[i]);
        snprintf(both, sizeof both, "%s%s", left, space + 1);
        cJSON_AddNumberToObject(vocab, both, id++);
        const char *two[] = {left, space + 1};
        cJSON_AddItemToArray(merges, pairs ? cJSON_CreateStringArray(two, 2) : cJSON_CreateString(hello_merges[i]));
    }
    char *vocab_text = cJSON_PrintUnformatted(vocab), *merges_text = cJSON_PrintUnformatted(merges);
    pp_buf_fmt(out, "{\"added_tokens\":[{\"id\":0,\"content\":\"<|eot_id|>\",\"special\":true},"
               "{\"id\":1,\"content\":\"<|begin_of_text|>\",\"special\":true},"
               "{\"id\":2,\"content\":\"<tool>\",\"special\":false},"
               "{\"id\":3,\"content\":\"<tool>s\",\"special\":false}],\"pre_tokenizer\":{\"type\":\"Sequence\","
               "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},"
               "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"use_regex\":false}]},"
               "\"model\":{\"type\":\"BPE\",\"vocab\":%s,\"merges\":%s}}", pattern, vocab_text, merges_text);
    free(vocab_text);
    free(merges_text);
    cJSON_Delete(vocab);
    cJSON_Delete(merges);
    assert_false(out->bad);
}

#define LLAMA3_PATTERN                                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}"                         \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static struct pp_tokenizer *hello(const char *pattern, bool pairs)
{
    struct pp_buf json = {0};
    hello_json(pattern, pairs, &json);
    struct pp_tokenizer *t = from_json(json.data);
    pp_buf_free(&json);
    return t;
}

static void test_byte_spelling(void **state)
{
    (void)state;
    bool seen[0x200] = {false};
    for (unsigned byte = 0; byte < 256; byte++) {
        int32_t c = tok_byte_to_char(byte);
        assert_in_range(c, '!', 0x143);
        assert_false(seen[c]);
        seen[c] = true;
        assert_int_equal(tok_char_to_byte(c), byte);
    }
    assert_int_equal(tok_byte_to_char(' '), 0x120);
    assert_int_equal(tok_byte_to_char('\n'), 0x10a);
    assert_int_equal(tok_char_to_byte(' '), -1);
    assert_int_equal(tok_char_to_byte(0x144), -1);
    assert_int_equal(tok_char_to_byte(-1), -1);
}

static void test_byte_level(void **state)
{
    (void)state;
    struct pp_tokenizer *t = hello(LLAMA3_PATTERN, false);
    expect_tokens(t, "hello world", 0, "hello| world");
    expect_tokens(t, "hellhe", 0, "hell|he");
    expect_tokens(t, "worlds", 0, "w|or|ld|s"); /* only the word with a space before it is a token */
    expect_tokens(t, "", 0, "");
    expect_tokens(t, "aaaaa", 0, "aa|aaa");     /* (a a) first, everywhere; then (aa a) outranks (aa aa) */
    expect_tokens(t, "\xc3\xa9", 0, "\xc3\xa9");
    expect_tokens(t, "a1234", 0, "a|1|2|3|4");
    assert_int_equal(pp_tokenizer_n(t), HELLO_BYTES + 256 + sizeof hello_merges / sizeof *hello_merges);
    assert_int_equal(pp_tokenizer_find(t, "hello", 5), 256 + HELLO_BYTES + 3);
    assert_int_equal(pp_tokenizer_find(t, "hello!", 6), -1);
    assert_int_equal(pp_tokenizer_find(t, "", 0), -1);
    pp_tokenizer_free(t);
}

static void test_special_tokens(void **state)
{
    (void)state;
    struct pp_tokenizer *t = hello(LLAMA3_PATTERN, true);
    const int32_t user[] = {HELLO_TOOL}, longest[] = {HELLO_TOOLS}, control[] = {HELLO_END};
    expect_ids(t, "<tool>", 6, 0, user, 1); /* user-defined: always */
    expect_ids(t, "<tool>s", 7, 0, longest, 1);
    expect_ids(t, "<|eot_id|>", 10, PP_TOKENIZE_SPECIAL, control, 1);
    expect_tokens(t, "<|eot_id|>", 0, "<|||e|o|t|_|i|d|||>");
    expect_tokens(t, "<|eot_id|hello<|eot_id|>x", PP_TOKENIZE_SPECIAL, "<|||e|o|t|_|i|d|||hello|<|eot_id|>|x");
    /* The rule llama-bpe adds a BOS token; a text that already begins with one keeps just that. */
    assert_true(pp_tokenizer_adds_bos(t));
    assert_int_equal(pp_tokenizer_bos(t), HELLO_BOS);
    expect_tokens(t, "hello", PP_TOKENIZE_BOS, "<|begin_of_text|>|hello");
    expect_tokens(t, "<|begin_of_text|>hello", PP_TOKENIZE_BOS | PP_TOKENIZE_SPECIAL, "<|begin_of_text|>|hello");
    assert_true(pp_tokenizer_is_end(t, HELLO_END));
    assert_false(pp_tokenizer_is_end(t, HELLO_BOS));
    assert_false(pp_tokenizer_is_end(t, -1));
    assert_false(pp_tokenizer_is_end(t, 1 << 30));
    struct pp_buf out = {0};
    const int32_t mixed[] = {HELLO_BOS, 256 + HELLO_BYTES + 3, -5, 1 << 30, HELLO_TOOL, HELLO_END};
    pp_detokenize(t, mixed, 6, false, &out);
    assert_string_equal(pp_buf_cstr(&out), "hello<tool>");
    pp_buf_clear(&out);
    pp_detokenize(t, mixed, 6, true, &out);
    assert_string_equal(pp_buf_cstr(&out), "<|begin_of_text|>hello<tool><|eot_id|>");
    pp_buf_free(&out);
    pp_tokenizer_free(t);
}

static void fill_random(char *text, size_t n)
{
    static const char *const bits[] = {
        " ", "  ", "\n", "\r\n", "\t", "a", "ab", "hello", " world", "'s", "'LL", "12", "7", "\xc3\xa9", "\xe4\xb8\xad",
        "!?", "\xf0\x9f\xa6\x99", "\xe2\x96\x81", "\xc2\xa0", "\xcc\x81", "<|eot_id|>", "<tool>", "\xff",
        "\xe4\xb8", "\x80",
    };
    for (size_t i = 0; i < n;) {
        const char *bit = bits[rnd(sizeof bits / sizeof *bits)];
        char byte = (char)rnd(256);
        size_t len = rnd(4) ? strlen(bit) : 1;
        if (len > n - i)
            len = n - i;
        memcpy(text + i, len == 1 ? &byte : bit, len);
        i += len;
    }
}

/* Whatever the split rule, byte-level tokens give the bytes back. */
static void test_byte_round_trip(void **state)
{
    (void)state;
    struct pp_buf names = {0};
    char text[400];
    random_state = 1;
    tok_rule_names(&names);
    struct pp_tokenizer *t = hello(LLAMA3_PATTERN, false);
    for (char *name = strtok(names.data, ", "); name; name = strtok(NULL, ", ")) {
        const struct tok_rule *rule = tok_rule_by_name(name, strlen(name));
        struct pp_str patterns[TOK_MAX_PATTERNS];
        struct pp_error err;
        size_t n = 0;
        for (; rule->patterns[n]; n++)
            patterns[n] = (struct pp_str){rule->patterns[n], strlen(rule->patterns[n])};
        tok_splitter_free(t->splitter);
        assert_ok(tok_splitter_new(patterns, n, &t->splitter, &err), err);
        for (int i = 0; i < 60; i++) {
            size_t len = rnd(sizeof text);
            fill_random(text, len);
            expect_round_trip(t, text, len, i & 1 ? PP_TOKENIZE_SPECIAL : 0);
        }
    }
    pp_buf_free(&names);
    pp_tokenizer_free(t);
}

static void test_json_to_gguf(void **state)
{
    (void)state;
    static const char *const patterns[] = {LLAMA3_PATTERN, "\\\\w+|\\\\W", "[aeiou]"};
    struct pp_tokenizer *first = hello(patterns[0], true);
    for (size_t i = 0; i < 3; i++) {
        struct pp_tokenizer *a = hello(patterns[i], false), *b = through_gguf(a), *c = through_gguf(b);
        char text[300];
        assert_true(pp_tokenizer_equal(a, b, NULL));
        assert_true(pp_tokenizer_equal(a, first, NULL));
        assert_int_equal(pp_tokenizer_bos(a), pp_tokenizer_bos(b));
        assert_int_equal(pp_tokenizer_adds_bos(a), pp_tokenizer_adds_bos(b));
        assert_int_equal(a->ignore_merges, c->ignore_merges);
        assert_string_equal(a->pre, c->pre);
        assert_true(pp_tokenizer_is_end(b, HELLO_END));
        for (int k = 0; k < 40; k++) {
            struct pp_error err;
            int32_t *ids;
            size_t n = rnd(sizeof text), n_ids;
            fill_random(text, n);
            assert_ok(pp_tokenize(a, text, n, PP_TOKENIZE_SPECIAL, &ids, &n_ids, &err), err);
            expect_ids(b, text, n, PP_TOKENIZE_SPECIAL, ids, n_ids);
            expect_ids(c, text, n, PP_TOKENIZE_SPECIAL, ids, n_ids);
            pp_free(ids);
        }
        pp_tokenizer_free(a);
        pp_tokenizer_free(b);
        pp_tokenizer_free(c);
    }
    pp_tokenizer_free(first);
}

static void test_patterns(void **state)
{
    (void)state;
    struct pp_tokenizer *t = hello("l+", false); /* the matches, and the text between them */
    expect_tokens(t, "hello", 0, "he|ll|o");
    pp_tokenizer_free(t);
    t = hello("(?=e)|(?<=ll)", false); /* empty matches split, too */
    expect_tokens(t, "hello", 0, "h|e|ll|o");
    pp_tokenizer_free(t);
    t = hello("x*", false);
    expect_tokens(t, "hello", 0, "h|e|l|l|o");
    pp_tokenizer_free(t);
    /* A pattern that backtracks without end fails soon. */
    t = hello("(a+)+$", false);
    char text[64];
    int32_t *ids;
    size_t n;
    struct pp_error err;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    double begin = used_seconds();
    enum pp_code code = pp_tokenize(t, text, sizeof text, 0, &ids, &n, &err);
    assert_true(code == PP_OK || code == PP_ERR_UNSUPPORTED);
    if (code == PP_OK)
        pp_free(ids);
    assert_true(used_seconds() - begin < 5);
    pp_tokenizer_free(t);
    struct pp_buf json = {0};
    hello_json("(unbalanced", false, &json);
    expect_json_refused(json.data, PP_ERR_UNSUPPORTED);
    pp_buf_free(&json);
}

/* --- merging against a plain implementation ------------------------------------------------------------ */

struct naive {
    char text[256][64];
    size_t n;
};

/* Merges the best pair of a word of single bytes again and again, comparing texts. */
static void naive_merge(struct naive *w, const char *word, size_t n)
{
    w->n = n;
    for (size_t i = 0; i < n; i++) {
        w->text[i][0] = word[i];
        w->text[i][1] = '\0';
    }
    for (;;) {
        size_t best_rank = SIZE_MAX, at = 0;
        for (size_t i = 0; i + 1 < w->n; i++) {
            char pair[136];
            snprintf(pair, sizeof pair, "%s %s", w->text[i], w->text[i + 1]);
            for (size_t rank = 0; rank < sizeof hello_merges / sizeof *hello_merges && rank < best_rank; rank++)
                if (strcmp(pair, hello_merges[rank]) == 0) {
                    best_rank = rank;
                    at = i;
                }
        }
        if (best_rank == SIZE_MAX)
            return;
        char merged[136];
        snprintf(merged, sizeof merged, "%s%s", w->text[at], w->text[at + 1]);
        assert_true(strlen(merged) < sizeof w->text[at]);
        strcpy(w->text[at], merged);
        memmove(w->text[at + 1], w->text[at + 2], (w->n - at - 2) * sizeof w->text[0]);
        w->n--;
    }
}

static void test_merge_order(void **state)
{
    (void)state;
    struct pp_tokenizer *t = hello(LLAMA3_PATTERN, false);
    static struct naive w;
    char word[200];
    random_state = 7;
    for (int i = 0; i < 400; i++) {
        size_t n = 1 + rnd(i % 2 ? 30 : sizeof word); /* short and long words take different code paths */
        struct pp_buf want = {0};
        for (size_t k = 0; k < n; k++)
            word[k] = "aaaabbbhel"[rnd(10)];
        naive_merge(&w, word, n);
        for (size_t k = 0; k < w.n; k++)
            pp_buf_fmt(&want, "%s%s", k ? "|" : "", w.text[k]);
        word[n < sizeof word ? n : n - 1] = '\0';
        if (n < sizeof word)
            expect_tokens(t, word, 0, want.data);
        pp_buf_free(&want);
    }
    pp_tokenizer_free(t);
}

static void test_long_word(void **state)
{
    (void)state;
    struct pp_tokenizer *t = hello(LLAMA3_PATTERN, false);
    size_t n = 1 << 20;
    char *text = pp_malloc(n);
    int32_t *ids;
    size_t n_ids;
    struct pp_error err;
    assert_non_null(text);
    memset(text, 'a', n);
    double begin = used_seconds();
    assert_ok(pp_tokenize(t, text, n, 0, &ids, &n_ids, &err), err);
    assert_true(used_seconds() - begin < 20); /* quadratic time would be hours */
    assert_int_equal(n_ids, n / 4);
    pp_free(ids);
    memset(text, ' ', n);
    begin = used_seconds();
    assert_ok(pp_tokenize(t, text, n, 0, &ids, &n_ids, &err), err);
    assert_true(used_seconds() - begin < 20);
    assert_int_equal(n_ids, n);
    pp_free(ids);
    pp_free(text);
    pp_tokenizer_free(t);
}

/* --- a small SentencePiece vocabulary ------------------------------------------------------------------ */

/* model_type as in TrainerSpec: 1 unigram, 2 BPE. */
static void spm_model(struct pp_buf *b, bool bytes, unsigned model_type)
{
    static const char *const pieces[] = {
        TOK_SPACE "h", "el", "lo", TOK_SPACE "hel", TOK_SPACE "hello", TOK_SPACE TOK_SPACE, "aa", "aaaa", "ab",
        TOK_SPACE, "h", "e", "l", "o", "a", "b", "\xc3\xa9", "1",
    };
    put_piece(b, "<unk>", 0, TOK_UNKNOWN);
    put_piece(b, "<s>", 0, TOK_CONTROL);
    put_piece(b, "</s>", 0, TOK_CONTROL);
    put_piece(b, "[A" TOK_SPACE "B]", 0, TOK_USER);
    for (unsigned i = 0; bytes && i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        put_piece(b, name, 0, TOK_BYTE);
    }
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        put_piece(b, pieces[i], -(float)i, TOK_NORMAL);
    struct pp_buf trainer = {0};
    put_varint(&trainer, 3 << 3);
    put_varint(&trainer, model_type);
    put_message(b, 2, &trainer);
    pp_buf_free(&trainer);
}

static struct pp_tokenizer *spm(bool bytes)
{
    struct pp_buf b = {0};
    struct pp_tokenizer *t;
    struct pp_error err;
    spm_model(&b, bytes, 2);
    assert_ok(tok_from_sentencepiece(b.data, b.len, NULL, &t, &err), err);
    pp_buf_free(&b);
    return t;
}

static void test_spm(void **state)
{
    (void)state;
    struct pp_tokenizer *t = spm(true);
    expect_tokens(t, "hello", 0, " hello");
    expect_tokens(t, "hello", PP_TOKENIZE_BOS, "<s>| hello");
    expect_tokens(t, "", PP_TOKENIZE_BOS, "<s>");
    expect_tokens(t, " hello", 0, " | hello"); /* (U+2581, h) has a better score than two U+2581 */
    expect_tokens(t, "hello  hello", 0, " hello| | hello");
    expect_tokens(t, "aaaaab", 0, " |aaaa|ab");
    expect_tokens(t, "\xc3\xa9z\n", 0, " |\xc3\xa9|z|\n"); /* the last two as byte tokens */
    expect_tokens(t, "a[A B]aa", 0, " |a|[A B]|aa");   /* no space is inserted after a user-defined token */
    expect_tokens(t, "a<s>b", PP_TOKENIZE_SPECIAL, " |a|<s>| |b");
    expect_tokens(t, "a<s> b", PP_TOKENIZE_SPECIAL, " |a|<s>| |b");
    expect_tokens(t, "<0x41>", 0, " |<|0|x|4|1|>");
    char text[200];
    random_state = 3;
    for (int i = 0; i < 300; i++) {
        size_t n = rnd(sizeof text);
        fill_random(text, n);
        for (size_t k = 0; k + 2 < n; k++) /* U+2581 itself comes back as a space */
            if (memcmp(text + k, TOK_SPACE, TOK_SPACE_LEN) == 0)
                text[k] = 'a';
        expect_round_trip(t, text, n, 0);
    }
    pp_tokenizer_free(t);

    t = spm(false);
    const int32_t one_unknown[] = {4 + 9, 0, 4 + 14};
    expect_ids(t, "zzza", 4, 0, one_unknown, 3);
    pp_tokenizer_free(t);
}

static void test_spm_long_word(void **state)
{
    (void)state;
    struct pp_tokenizer *t = spm(true);
    size_t n = 1 << 19;
    char *text = pp_malloc(n);
    int32_t *ids;
    size_t n_ids;
    struct pp_error err;
    assert_non_null(text);
    memset(text, 'a', n);
    double begin = used_seconds();
    assert_ok(pp_tokenize(t, text, n, 0, &ids, &n_ids, &err), err);
    assert_true(used_seconds() - begin < 20);
    assert_int_equal(n_ids, 1 + n / 4);
    pp_free(ids);
    pp_free(text);
    pp_tokenizer_free(t);
}

/* A white-space token that takes the white space after it: each one but the first is in the reach of the one before
 * it. */
static void test_long_white_space(void **state)
{
    static const char json[] = "{\"added_tokens\":[{\"id\":1,\"content\":\"\\n\",\"rstrip\":true}],"
                               "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\\n\":1},\"merges\":[]}}";
    const size_t n = 1 << 20;
    struct pp_tokenizer *t = from_json(json);
    struct pp_error err;
    int32_t *ids;
    size_t n_ids;
    (void)state;
    char *text = pp_malloc(n);
    assert_non_null(text);
    memset(text, '\n', n);
    text[n / 2] = 'a';
    double begin = used_seconds();
    assert_ok(pp_tokenize(t, text, n, 0, &ids, &n_ids, &err), err);
    assert_true(used_seconds() - begin < 20); /* quadratic time would be an hour */
    assert_int_equal(n_ids, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], i != n / 2);
    pp_free(ids);
    pp_free(text);
    expect_tokens(t, "a\n \n\na\n \u3000a", 0, " a|\n|\n|\n| a|\n| a");
    pp_tokenizer_free(t);
}

static void test_spm_to_gguf(void **state)
{
    (void)state;
    struct pp_tokenizer *a = spm(true), *b = through_gguf(a), *other = hello(LLAMA3_PATTERN, false), *c = spm(false);
    struct pp_error err;
    assert_true(pp_tokenizer_equal(a, b, NULL));
    assert_false(pp_tokenizer_equal(a, other, &err));
    assert_false(pp_tokenizer_equal(a, c, &err));
    assert_true(pp_tokenizer_same_ids(a, b));
    assert_false(pp_tokenizer_same_ids(a, other) || pp_tokenizer_same_ids(a, c) || pp_tokenizer_same_ids(c, a));
    assert_memory_equal(&a->prefix, &b->prefix, sizeof a->prefix);
    expect_tokens(b, "a<s> b[A B]h", PP_TOKENIZE_SPECIAL, " |a|<s>| |b|[A B]|h");
    expect_tokens(b, "hello aaaaab\n", PP_TOKENIZE_BOS, "<s>| hello| |aaaa|ab|\n");
    assert_int_equal(pp_tokenizer_eos(b), 2);
    assert_true(pp_tokenizer_is_end(b, 2));
    pp_tokenizer_free(a);
    pp_tokenizer_free(b);
    pp_tokenizer_free(c);
    pp_tokenizer_free(other);
}

/* What a model's normalizer does to text before splitting, a file keeps: removal of superfluous spaces, and a table of
 * characters. */
static void test_spm_normalizer_to_gguf(void **state)
{
    struct pp_buf b = {0}, normalizer = {0};
    struct pp_tokenizer *other = open_tokenizer("tests/data/sonnets-unigram.model"), *a;
    const struct pp_buf table = {.data = other->charsmap, .len = other->charsmap_len};
    /* U+0001 becomes nothing: size; units: begin at 2, -, -, 3 = 2 ^ 1: ends here, value at 4 = 3 ^ 7; texts */
    static char units[] = "\x14\0\0\0" "\0\x08\0\0" "\0\0\0\0" "\0\0\0\0" "\x01\x1d\0\0" "\0\0\0\x80" "";
    const struct pp_buf nothing = {.data = units, .len = sizeof units};
    struct pp_error err;
    (void)state;
    spm_model(&b, true, 2);
    put_message(&normalizer, 2, &table);
    put_message(&b, 3, &normalizer);
    assert_ok(tok_from_sentencepiece(b.data, b.len, NULL, &a, &err), err);
    struct pp_tokenizer *both[] = {a, through_gguf(a)};
    for (int i = 0; i < 2; i++) {
        expect_tokens(both[i], "  hello   \xe2\x91\xa0 ", 0, " hello| |1"); /* U+2460, a 1 in a circle */
        pp_tokenizer_free(both[i]);
    }
    put_varint(&normalizer, 4 << 3); /* spaces are kept, as is the one before a text of which nothing else is left */
    put_varint(&normalizer, 0);
    put_message(&normalizer, 2, &nothing);
    pp_buf_clear(&b);
    spm_model(&b, true, 2);
    put_message(&b, 3, &normalizer);
    assert_ok(tok_from_sentencepiece(b.data, b.len, NULL, &a, &err), err);
    expect_tokens(a, "\x01", 0, " ");
    expect_tokens(a, "", 0, "");
    pp_tokenizer_free(a);
    pp_tokenizer_free(other);
    pp_buf_free(&normalizer);
    pp_buf_free(&b);
}

/* The same kind of vocabulary as a tokenizer.json: merges by rank instead of scores. */
static void test_spm_json(void **state)
{
    (void)state;
    static const char json[] =
        "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},"
        "{\"id\":1,\"content\":\"<s>\",\"special\":true},"
        "{\"id\":2,\"content\":\"</s>\",\"special\":true,\"rstrip\":true},"
        "{\"id\":10,\"content\":\"\xe2\x96\x81\xe2\x96\x81\",\"special\":false}],"
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},\"pre_tokenizer\":null,"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
        "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]},"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"
        "\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2,\"<0x0A>\":3,\"\xe2\x96\x81\":4,\"a\":5,\"b\":6,\"ab\":7,"
        "\"\xe2\x96\x81" "ab\":8,\"aba\":9},\"merges\":[\"a b\",\"ab a\",[\"\xe2\x96\x81\",\"ab\"]]}}";
    struct pp_tokenizer *a = from_json(json), *b = through_gguf(a);
    const struct pp_tokenizer *both[] = {a, b};
    for (int i = 0; i < 2; i++) {
        expect_tokens(both[i], "ab ab", PP_TOKENIZE_BOS, "<s>| ab| ab");
        expect_tokens(both[i], "aba", 0, " |aba");
        expect_tokens(both[i], "a\nzz", 0, " |a|\n|<unk>");
        expect_tokens(both[i], "a</s>  \n ab", PP_TOKENIZE_SPECIAL, " |a|</s>| ab");
        expect_tokens(both[i], "ab\xe2\x96\x81\xe2\x96\x81" "ab", 0, " ab|  | ab"); /* runs of spaces, as in Gemma */
        assert_int_equal(pp_tokenizer_n(both[i]), 11);
    }
    pp_tokenizer_free(a);
    pp_tokenizer_free(b);
}

/* --- hostile files ------------------------------------------------------------------------------------- */

static void test_refusals(void **state)
{
    (void)state;
    static const char level[] = "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}";
    struct pp_buf json = {0};
    expect_json_refused("", PP_ERR_FORMAT);
    expect_json_refused("{", PP_ERR_FORMAT);
    expect_json_refused("[1]", PP_ERR_FORMAT);
    expect_json_refused("{\"model\":{\"type\":\"WordPiece\"}}", PP_ERR_FORMAT);
    expect_json_refused("{\"model\":{\"type\":\"WordSalad\"}}", PP_ERR_UNSUPPORTED);
    expect_json_refused("{\"model\":{\"type\":\"WordLevel\"}}", PP_ERR_FORMAT);
    expect_json_refused("{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"byte_fallback\":true,"
                        "\"vocab\":{\"a\":0},\"merges\":[]}}", PP_ERR_UNSUPPORTED);
    expect_json_refused("{\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\",\"byte_fallback\":true,"
                        "\"vocab\":{\"a\":0},\"merges\":[]}}", PP_ERR_UNSUPPORTED);
    expect_json_refused("{\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"0123456789abcdef\","
                        "\"vocab\":{\"a\":0},\"merges\":[]}}", PP_ERR_UNSUPPORTED);
    expect_json_refused("{\"normalizer\":{\"type\":\"Bert\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
                        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}", PP_ERR_UNSUPPORTED);
    static const char *const models[] = {
        "{\"type\":\"BPE\"}",
        "{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}",
        "{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}",
        "{\"type\":\"BPE\",\"vocab\":{\"a\":1e300},\"merges\":[]}",
        "{\"type\":\"BPE\",\"vocab\":{\"a\":4000000},\"merges\":[]}",
        "{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"},\"merges\":[]}",
        "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}",
        "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}",
        "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[7]}",
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        pp_buf_clear(&json);
        pp_buf_fmt(&json, "{%s,\"model\":%s}", level, models[i]);
        expect_json_refused(json.data, PP_ERR_FORMAT);
    }
    pp_buf_free(&json);
    struct pp_tokenizer *t;
    struct pp_error err;
    assert_int_equal(pp_tokenizer_open("/proc/nonexistent/tokenizer.json", &t, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_tokenizer_open(test_tmpdir(), &t, &err), PP_ERR_NOT_FOUND);
}

/* Odd, but usable: holes, duplicates, empty texts, merges of unknown texts, missing bytes. */
static void test_odd_vocabulary(void **state)
{
    (void)state;
    static const char json[] =
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"added_tokens\":[{\"id\":9,\"content\":\"\",\"special\":true},"
        "{\"id\":8,\"content\":\"a\",\"special\":false},{\"id\":12,\"content\":\"Q\",\"special\":true}],"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"b\":0,\"c\":3,\"bc\":4,\"\":5,\"xyb\":6},"
        "\"merges\":[\"b c\",\"b c\",\"x y\",\"xy b\",\"q q\",\"qq qq\",[\"\",\"b\"],[\"b\",\"\"]]}}";
    struct pp_tokenizer *a = from_json(json), *b = through_gguf(a);
    const struct pp_tokenizer *both[] = {a, b};
    for (int i = 0; i < 2; i++) {
        expect_tokens(both[i], "bcb", 0, "bc|b");
        expect_tokens(both[i], "xyb", 0, "xyb"); /* by way of "xy", which is not a token itself */
        expect_tokens(both[i], "xyqqqqqb", 0, "b"); /* bytes without a token are dropped */
        expect_tokens(both[i], "bacQ", PP_TOKENIZE_SPECIAL, "b|a|c|Q");
        assert_int_equal(pp_tokenizer_n(both[i]), 13);
        struct pp_buf out = {0};
        for (int32_t id = -2; id < 16; id++)
            pp_token_text(both[i], id, false, &out);
        assert_string_equal(out.data, "bcbcxyba");
        pp_buf_free(&out);
    }
    pp_tokenizer_free(a);
    pp_tokenizer_free(b);
}

static void test_truncated(void **state)
{
    (void)state;
    struct pp_buf file = {0};
    struct pp_error err;
    struct pp_tokenizer *t;
    spm_model(&file, false, 2);
    for (size_t n = 0; n < file.len; n++) {
        char *cut = pp_malloc(n + 1); /* exactly as long as it claims */
        assert_non_null(cut);
        memcpy(cut, file.data, n);
        if (tok_from_sentencepiece(cut, n, NULL, &t, &err) == PP_OK)
            pp_tokenizer_free(t);
        pp_free(cut);
    }
    pp_buf_clear(&file);
    spm_model(&file, false, 5);
    assert_int_equal(tok_from_sentencepiece(file.data, file.len, NULL, &t, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "of type 5"));
    pp_buf_clear(&file);
    hello_json("x", true, &file);
    for (size_t n = 0; n < file.len; n += 97)
        if (tok_from_json(file.data, n, NULL, &t, &err) == PP_OK)
            pp_tokenizer_free(t);
    pp_buf_free(&file);
}

/* Bytes that are no text, where SentencePiece never has them: a damaged file. Of a GGUF file that has them anyway no
 * folder is made that others could not read. */
static void test_not_text(void **state)
{
    struct pp_buf b = {0};
    struct pp_tokenizer *t = spm(true), *other;
    struct pp_error err;
    char path[256], *bytes;
    size_t n;
    (void)state;
    spm_model(&b, true, 2);
    char *at = memmem(b.data, b.len, "</s>", 4);
    at[1] = (char)0xaf; /* a bit more */
    assert_int_equal(tok_from_sentencepiece(b.data, b.len, NULL, &other, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "piece 2 is not valid UTF-8"));
    pp_buf_free(&b);
    pp_tokenizer_free(through_gguf(t));
    pp_tokenizer_free(t);
    snprintf(path, sizeof path, "%s/tok_again.gguf", test_tmpdir());
    assert_ok(pp_read_file(path, 1 << 20, &bytes, &n, &err), err);
    at = memmem(bytes, n, "</s>", 4);
    at[1] = (char)0xaf;
    assert_ok(pp_write_file(path, bytes, n, 0600, &err), err);
    pp_free(bytes);
    t = open_tokenizer(path);
    assert_int_equal(pp_tokenizer_to_folder(t, test_tmpdir(), &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "token 2 is not valid UTF-8"));
    pp_tokenizer_free(t);
}

/* Every allocation fails once; nothing leaks or crashes, and the error says so. */
static void test_out_of_memory(void **state)
{
    (void)state;
    struct pp_tokenizer *t = hello(LLAMA3_PATTERN, false), *other;
    pp_tokenizer_free(through_gguf(t));
    char path[256];
    snprintf(path, sizeof path, "%s/tok_again.gguf", test_tmpdir());
    for (uint64_t nth = 1;; nth++) {
        struct pp_error err = {0};
        pp_mem_fail_at(nth, 0);
        enum pp_code code = pp_tokenizer_open(path, &other, &err);
        pp_mem_fail_at(0, 0);
        if (code == PP_OK) {
            pp_tokenizer_free(other);
            if (nth > 60) /* a single failed allocation may be survived */
                break;
            continue;
        }
        assert_int_equal(code, PP_ERR_NOMEM);
        assert_in_range(nth, 1, 10000);
    }
    char text[5000];
    fill_random(text, sizeof text);
    for (uint64_t nth = 1; nth < 40; nth++) {
        struct pp_error err = {0};
        int32_t *ids;
        size_t n;
        pp_mem_fail_at(nth, 0);
        enum pp_code code = pp_tokenize(t, text, sizeof text, 0, &ids, &n, &err);
        pp_mem_fail_at(0, 0);
        assert_true(code == PP_OK || code == PP_ERR_NOMEM);
        pp_free(ids);
    }
    pp_tokenizer_free(t);
}

/* --- reference vectors --------------------------------------------------------------------------------- */

static void read_data(const char *path, char **data, size_t *n)
{
    struct pp_error err;
    assert_ok(pp_read_file(path, (size_t)1 << 28, data, n, &err), err);
}

/* The texts are separated by lines "__ggml_vocab_test__"; each line of the other file has the ids of one. */
static void check_small_vectors(const struct pp_tokenizer *t, const char *path)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char name[1100], *texts, *lines;
    size_t n, n_lines, cases = 0;
    snprintf(name, sizeof name, "%s.inp", path);
    read_data(name, &texts, &n);
    snprintf(name, sizeof name, "%s.out", path);
    read_data(name, &lines, &n_lines);
    const char *line = lines;
    for (char *text = texts, *end; (end = strstr(text, separator)); text = end + strlen(separator), cases++) {
        int32_t want[512];
        size_t n_want = 0;
        const char *stop = strchr(line, '\n');
        assert_non_null(stop);
        for (char *after; line < stop; line = after) {
            while (*line == ' ')
                line++;
            if (line == stop)
                break;
            want[n_want++] = (int32_t)strtol(line, &after, 10);
            assert_true(after > line && n_want < 512);
        }
        line = stop + 1;
        expect_ids(t, text, (size_t)(end - text), 0, want, n_want);
    }
    assert_int_equal(cases, 46);
    pp_free(texts);
    pp_free(lines);
}

static void check_ids_file(const struct pp_tokenizer *t, const char *text_path, const char *ids_path, unsigned flags)
{
    char *text, *ids;
    size_t n, n_ids;
    read_data(text_path, &text, &n);
    read_data(ids_path, &ids, &n_ids);
    expect_ids(t, text, n, flags, (const int32_t *)(const void *)ids, n_ids / sizeof(int32_t));
    pp_free(text);
    pp_free(ids);
}

static void test_vectors(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-2", "qwen2", "llama-spm", "phi-3", "falcon", "deepseek-llm", "bert-bge"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128], ids[128];
        const char *big = strcmp(names[i], "bert-bge") == 0 ? "tokenizers/bert-bge.big.txt" : "tokenizers/big.txt";
        snprintf(path, sizeof path, "tokenizers/%s.gguf", names[i]);
        snprintf(ids, sizeof ids, "tokenizers/%s.big.ids.i32", names[i]);
        if (!testdata(path))
            return;
        struct pp_tokenizer *t = open_tokenizer(testdata(path)), *again = through_gguf(t);
        assert_true(pp_tokenizer_equal(t, again, NULL));
        check_small_vectors(t, testdata(path));
        check_ids_file(t, testdata(big), testdata(ids), 0);
        check_ids_file(again, testdata(big), testdata(ids), 0);
        pp_tokenizer_free(t);
        pp_tokenizer_free(again);
    }
}

/* Rendered prompts write a space as U+2581 and a line end as its byte token. */
static void plain_text(struct pp_buf *out, const char *text)
{
    for (const char *c = text; *c;) {
        bool space = strncmp(c, TOK_SPACE, TOK_SPACE_LEN) == 0, line = strncmp(c, "<0x0A>", 6) == 0;
        pp_buf_char(out, space ? ' ' : line ? '\n' : *c);
        c += space ? TOK_SPACE_LEN : line ? 6 : 1;
    }
}

static void test_mistral(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "get_weather_full", "get_weather_no_history", "get_weather_no_system_prompt", "no_tools", "parallel_calls",
        "several_calls",
    };
    if (!testdata("tokenizers/mistral-v3.model"))
        return;
    struct pp_tokenizer *model = open_tokenizer(testdata("tokenizers/mistral-v3.model")), *gguf = through_gguf(model);
    check_ids_file(model, testdata("tokenizers/big.txt"), testdata("tokenizers/mistral-v3.big.ids.i32"), 0);
    check_ids_file(gguf, testdata("tokenizers/big.txt"), testdata("tokenizers/mistral-v3.big.ids.i32"), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[128], *text, *tokens;
        size_t n, n_want = 0;
        struct pp_buf plain = {0};
        int32_t want[2048];
        snprintf(path, sizeof path, "tokenizers/mistral-samples/%s/text_v3.txt", cases[i]);
        read_data(testdata(path), &text, &n);
        snprintf(path, sizeof path, "tokenizers/mistral-samples/%s/tokens_v3.json", cases[i]);
        read_data(testdata(path), &tokens, &n);
        cJSON *json = cJSON_Parse(tokens), *id;
        cJSON_ArrayForEach(id, cJSON_GetObjectItem(json, "tokens"))
            want[n_want++ % 2048] = id->valueint;
        plain_text(&plain, text);
        expect_ids(model, plain.data, plain.len, PP_TOKENIZE_SPECIAL | PP_TOKENIZE_BOS, want, n_want);
        expect_ids(gguf, plain.data, plain.len, PP_TOKENIZE_SPECIAL, want, n_want);
        cJSON_Delete(json);
        pp_buf_free(&plain);
        pp_free(text);
        pp_free(tokens);
    }
    pp_tokenizer_free(model);
    pp_tokenizer_free(gguf);
}

static void test_starter(void **state)
{
    (void)state;
    if (!testdata("starter/target"))
        return;
    struct pp_tokenizer *t = open_tokenizer(testdata("starter/target")), *again = through_gguf(t);
    struct pp_tokenizer *draft = open_tokenizer(testdata("starter/draft"));
    const struct pp_tokenizer *both[] = {t, again};
    assert_true(pp_tokenizer_equal(t, draft, NULL));
    for (int i = 0; i < 2; i++) {
        check_ids_file(both[i], testdata("starter/val.txt"), testdata("starter/val_ids.i32"), PP_TOKENIZE_SPECIAL);
        assert_int_equal(pp_tokenizer_n(both[i]), 8192);
        assert_int_equal(pp_tokenizer_bos(both[i]), 0);
        assert_int_equal(pp_tokenizer_eos(both[i]), 4);
        assert_true(pp_tokenizer_is_end(both[i], 4));
        assert_true(pp_tokenizer_is_end(both[i], 1));
        assert_false(pp_tokenizer_is_end(both[i], 0));
    }
    pp_tokenizer_free(t);
    pp_tokenizer_free(again);
    pp_tokenizer_free(draft);
}

static void test_from_source(void **state)
{
    (void)state;
    static const char *const names[] = {"architectures/llama", "architectures/llama/model.gguf"};
    struct pp_tokenizer *t[2];
    struct pp_error err;
    if (!testdata(names[0]))
        return;
    for (int i = 0; i < 2; i++) {
        struct pp_source *source;
        assert_ok(pp_source_open(testdata(names[i]), &source, &err), err);
        assert_ok(pp_tokenizer_from_source(source, &t[i], &err), err);
        pp_source_close(source); /* the tokenizer does not need it */
        expect_tokens(t[i], "<|eot_id|>a", PP_TOKENIZE_SPECIAL, "<|eot_id|>|a");
    }
    assert_true(pp_tokenizer_equal(t[0], t[1], NULL));
    pp_tokenizer_free(t[0]);
    pp_tokenizer_free(t[1]);
}

static void check_prompts(const char *model, const char *family)
{
    char path[128], *text;
    size_t n;
    struct pp_safetensors *expected;
    struct pp_error err;
    struct pp_tokenizer *t = open_tokenizer(testdata(model));
    snprintf(path, sizeof path, "architectures/%s/expected.safetensors", family);
    assert_ok(pp_safetensors_open(testdata(path), &expected, &err), err);
    snprintf(path, sizeof path, "architectures/%s/prompts.json", family);
    read_data(testdata(path), &text, &n);
    cJSON *prompts = cJSON_Parse(text);
    assert_int_equal(cJSON_GetArraySize(prompts), 2);
    for (int i = 0; i < 2; i++) {
        const char *prompt = cJSON_GetArrayItem(prompts, i)->valuestring;
        const struct pp_tensor *ids = pp_safetensors_find(expected, i ? "ids1" : "ids0");
        assert_non_null(ids);
        expect_ids(t, prompt, strlen(prompt), PP_TOKENIZE_BOS, ids->data, (size_t)ids->ne[0]);
    }
    cJSON_Delete(prompts);
    pp_free(text);
    pp_safetensors_close(expected);
    pp_tokenizer_free(t);
}

static void test_families(void **state)
{
    (void)state;
    static const char *const names[] = {
        "cohere2", "gemma", "gemma2", "gemma3", "gpt2", "gptneox", "gptoss", "granite", "llama", "llama-bias",
        "llama-k256", "llama-linear", "llama-yarn", "llama3-rope", "mistral-swa", "mixtral", "olmo2", "phi2", "phi3",
        "qwen2", "qwen3", "qwen3moe", "smollm3", "stablelm", "starcoder2",
    };
    static const char *const without_gguf = " cohere2 gemma3 gptoss qwen3moe smollm3 mistral-swa ";
    if (!testdata("architectures"))
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128], padded[64];
        snprintf(padded, sizeof padded, " %s ", names[i]);
        snprintf(path, sizeof path, "architectures/%s", names[i]);
        check_prompts(path, names[i]);
        snprintf(path, sizeof path, "architectures/%s/model.gguf", names[i]);
        if (!strstr(without_gguf, padded))
            check_prompts(path, names[i]);
    }
}

TEST_GROUP(tokenizer)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_spelling),
        cmocka_unit_test(test_byte_level),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_byte_round_trip),
        cmocka_unit_test(test_json_to_gguf),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_long_word),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_long_white_space),
        cmocka_unit_test(test_spm_long_word),
        cmocka_unit_test(test_spm_to_gguf),
        cmocka_unit_test(test_spm_normalizer_to_gguf),
        cmocka_unit_test(test_spm_json),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_odd_vocabulary),
        cmocka_unit_test(test_truncated), cmocka_unit_test(test_not_text),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_starter),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_from_source),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
