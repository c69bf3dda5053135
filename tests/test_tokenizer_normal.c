/* test_tokenizer_normal.c - the normalizers of a tokenizer.json: Unicode's forms against utf8proc's own, each kind of
 * step, and tokens that are looked for before or after them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <nettle/base64.h>
#include <utf8proc.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"
#include "tests/gguf_file.h"
#include "tests/support.h"
#include "tests/tokenizers.h"

/* --- forms ---------------------------------------------------------------------------------------------------- */

static const int form_options[] = {
    UTF8PROC_COMPOSE, UTF8PROC_DECOMPOSE, UTF8PROC_COMPOSE | UTF8PROC_COMPAT, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

static void expect_form(enum tok_form f, const char *text, size_t n)
{
    utf8proc_uint8_t *want;
    struct pp_buf got = {0};
    const utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &want,
                                              (utf8proc_option_t)(form_options[f] | UTF8PROC_STABLE));
    assert_true(len >= 0);
    const enum tok_changed how = tok_form(f, text, n, &got);
    const bool same = (size_t)len == n && memcmp(text, want, n) == 0;
    assert_int_equal(how, same ? TOK_SAME : TOK_CHANGED);
    assert_int_equal(got.len, same ? 0 : len);
    if (!same)
        assert_memory_equal(got.data, want, got.len);
    free(want);
    pp_buf_free(&got);
}

/* Every character alone, and after one with which it may compose. */
static void every_character(void **state)
{
    (void)state;
    for (int f = TOK_NFC; f <= TOK_NFKD; f++) {
        tok_form_init((enum tok_form)f);
        for (int32_t c = 1; c < 0x110000; c += c >= 0x30000 ? 251 : 1) {
            char text[16] = "xA";
            if (c >= 0xD800 && c < 0xE000)
                continue;
            expect_form((enum tok_form)f, text + 1, 1 + pp_utf8_encode(c, text + 2));
            expect_form((enum tok_form)f, text + 2, pp_utf8_encode(c, text + 2));
        }
    }
}

static unsigned below(uint32_t *seed, unsigned n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

static void mixed_characters(void **state)
{
    static const char *const parts[] = {
        "a", "e", "\u00e9", "\u1ebf", "\u0301", "\u0323", "\u0327", "\u0345", "\u0344", "\u212b", "\ufb01", "\u1112",
        "\u1161", "\u11ab", "\uac00", "\ud55c", "\u09c7", "\u09be", "\u0f71", "\u0f72", "\u0f74", "\u4eca", " ", "\n",
        "\u0e01\u0e38\u0e48", "\u0915\u093c", "\u1e9b\u0323", "\ufdfa", "\U00011099\U000110ba", "\U0001d15e", "text",
    };
    uint32_t seed = 1;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        char text[256];
        size_t n = 0;
        if (round % 3 == 0) /* far enough from the beginning for many characters to be checked at once */
            n = (size_t)sprintf(text, "%.*sthe \u0436\u4eca\u65e5 \u00e9\u00fc", (int)below(&seed, 40),
                                "a long beginning, and then some more of it");
        for (unsigned k = below(&seed, 9) + 1; k > 0; k--)
            n += (size_t)sprintf(text + n, "%s", parts[below(&seed, sizeof parts / sizeof *parts)]);
        expect_form((enum tok_form)(round % 4), text, n);
    }
}

/* Endless marks in the wrong order take no longer than they should; bytes that are not UTF-8 are kept. */
static void odd_texts(void **state)
{
    enum { MARKS = 200000 };
    struct pp_buf text = {0}, got = {0};
    (void)state;
    for (int i = 0; i < MARKS; i++)
        pp_buf_str(&text, i < MARKS / 2 ? "\u0301" : "\u0323");
    const uint64_t begin = pp_now_ns();
    assert_int_equal(tok_form(TOK_NFC, text.data, text.len, &got), TOK_CHANGED);
    assert_true(pp_now_ns() - begin < 5000000000u);
    assert_int_equal(got.len, text.len);
    assert_memory_equal(got.data, "\u0323\u0323", 4);
    pp_buf_clear(&got);
    assert_int_equal(tok_form(TOK_NFC, "\xcc" "e\xff\u0301e\u0301\xe4\xb8", 10, &got), TOK_CHANGED);
    assert_string_equal(got.data, "\xcc" "e\xff\u0301\u00e9\xe4\xb8");
    pp_buf_clear(&got);
    static const char cut[] = "32 characters, and the last ones\xe4\xbb\u0301\x80\u0301 e\u0301";
    assert_int_equal(tok_form(TOK_NFC, cut, sizeof cut - 1, &got), TOK_CHANGED);
    assert_string_equal(got.data, "32 characters, and the last ones\xe4\xbb\u0301\x80\u0301 \u00e9");
    pp_buf_free(&text);
    pp_buf_free(&got);
}

/* --- steps ---------------------------------------------------------------------------------------------------- */

/* A vocabulary in which every byte is a token, with four more: "<B>" and the next one are found in normalised text, and
 * "[W]" only as a word by itself. */
static void bytes_json(const char *normalizer, struct pp_buf *out)
{
    pp_buf_fmt(out, "{\"added_tokens\":[{\"id\":256,\"content\":\"<A>\",\"special\":true,\"normalized\":false},"
               "{\"id\":257,\"content\":\"<B>\",\"special\":false,\"normalized\":true},"
               "{\"id\":258,\"content\":\"<\u00c9>\",\"special\":true,\"normalized\":true},"
               "{\"id\":259,\"content\":\"[W]\",\"special\":true,\"single_word\":true}],\"normalizer\":%s,"
               "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
               "\"model\":{\"type\":\"BPE\",\"vocab\":{", normalizer);
    for (unsigned byte = 0; byte < 256; byte++) {
        char key[5] = {0};
        pp_utf8_encode(tok_byte_to_char(byte), key);
        pp_buf_fmt(out, "%s\"%s%s\":%u", byte ? "," : "", byte == '"' || byte == '\\' ? "\\" : "", key, byte);
    }
    pp_buf_str(out, "},\"merges\":[]}}");
    assert_false(out->bad);
}

static struct pp_tokenizer *with_normalizer(const char *normalizer)
{
    struct pp_buf json = {0};
    struct pp_tokenizer *t;
    struct pp_error err;
    bytes_json(normalizer, &json);
    assert_ok(tok_from_json(json.data, json.len, NULL, &t, &err), err);
    pp_buf_free(&json);
    return t;
}

/* Asserts what the text's tokens decode to, and how many of them are added tokens. */
static void expect_text(const struct pp_tokenizer *t, const char *text, const char *want, size_t specials)
{
    struct pp_buf back = {0};
    struct pp_error err;
    int32_t *ids;
    size_t n, found = 0;
    assert_ok(pp_tokenize(t, text, strlen(text), PP_TOKENIZE_SPECIAL, &ids, &n, &err), err);
    for (size_t i = 0; i < n; i++)
        found += ids[i] >= 256;
    pp_detokenize(t, ids, n, true, &back);
    assert_string_equal(pp_buf_cstr(&back), want);
    assert_int_equal(found, specials);
    pp_free(ids);
    pp_buf_free(&back);
}

static void steps(void **state)
{
    static const struct { const char *normalizer, *text, *want; size_t specials; } cases[] = {
        {"null", "e\u0301 \ufb01", "e\u0301 \ufb01", 0},
        {"{\"type\":\"NFC\"}", "plain e\u0301 \ufb01 \u00e9", "plain \u00e9 \ufb01 \u00e9", 0},
        {"{\"type\":\"NFKC\"}", "e\u0301 \ufb01", "\u00e9 fi", 0},
        {"{\"type\":\"NFD\"}", "\u00e9 \ufb01", "e\u0301 \ufb01", 0},
        {"{\"type\":\"NFKD\"}", "\u00e9 \ufb01", "e\u0301 fi", 0},
        {"{\"type\":\"Lowercase\"}", "A\u00c9\u0130Z\u03a3", "a\u00e9i\u0307z\u03c3", 0},
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"}]}", "\u00e9\u00fc x",
         "eu x", 0},
        {"{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", "\u3000 a ", "a ", 0},
        {"{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true}", " a\t\u3000", " a", 0},
        {"{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", " \n ", "", 0},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"``\"},\"content\":\"\\\"\"}", "a``b```", "a\"b\"`", 0},
        {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\s+\"},\"content\":\"_\"}", "a \n b\u3000", "a_b_", 0},
        {"{\"type\":\"Prepend\",\"prepend\":\"> \"}", "a<A>b", "> a<A>> b", 1},
        {"{\"type\":\"Prepend\",\"prepend\":\"> \"}", "", "", 0},
        {"{\"type\":\"Nmt\"}", "a\tb\x01" "c\u200b\ufeff", "a bc  ", 0},
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Sequence\",\"normalizers\":[]},{\"type\":\"Lowercase\"},"
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"AA\"}]}", "A", "AA", 0},
        /* tokens: the first is found before normalising, the others after */
        {"{\"type\":\"NFC\"}", "<A>\u0338<B>\u0338<B>", "<A>\u0338<B\u226f<B>", 2},
        {"{\"type\":\"NFC\"}", "<E\u0301> <\u00c9>", "<\u00c9> <\u00c9>", 2},
        /* a word by itself: at both ends, next to white space, punctuation and other tokens */
        {"null", "[W] [W] -[W]-[W][W]", "[W] [W] -[W]-[W][W]", 5},
        {"null", "a[W] [W]b 7[W]! \u00e9[W] _[W] [W]\u4eca e\u0301[W] \u200d[W]",
         "a[W] [W]b 7[W]! \u00e9[W] _[W] [W]\u4eca e\u0301[W] \u200d[W]", 0},
        {"null", "\u20ac[W]\u3000 [W]\u2019s", "\u20ac[W]\u3000 [W]\u2019s", 2},
        {"{\"type\":\"Lowercase\"}", "<b><B><a><A><\u00c9>", "<B><B><a><A><\u00c9>", 4},
    };
    char folder[300];
    struct pp_error err;
    (void)state;
    snprintf(folder, sizeof folder, "%s/normalizers", test_tmpdir());
    assert_int_equal(mkdir(folder, 0700), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_tokenizer *t[3] = {with_normalizer(cases[i].normalizer)};
        t[1] = through_gguf(t[0]);
        assert_ok(pp_tokenizer_to_folder(t[0], folder, &err), err);
        t[2] = open_tokenizer(folder);
        for (int k = 0; k < 3; k++) {
            expect_text(t[k], cases[i].text, cases[i].want, cases[i].specials);
            pp_tokenizer_free(t[k]);
        }
    }
}

/* Unigrams perform the last of their normalisers themselves; SentencePiece's BPE does so with its spaces. */
static void steps_of_other_kinds(void **state)
{
    static const char unigrams[] =
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},{\"type\":\"StripAccents\"},"
        "{\"type\":\"Lowercase\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}]},"
        "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"add_prefix_space\":true},"
        "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"\u2581\",-3],[\"\u2581e\",-2],"
        "[\"f\",-4],[\"i\",-5]]}}";
    static const char merged[] =
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},\"model\":{\"type\":\"BPE\","
        "\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"\u2581\":1,\"\u00e9\":2,\"\u2581\u00e9\":3},"
        "\"merges\":[\"\u2581 \u00e9\"]}}";
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    assert_ok(tok_from_json(unigrams, sizeof unigrams - 1, NULL, &t, &err), err);
    expect_tokens(t, "\u00c9\ufb01  e ", 0, " e|f|i| e| ");
    pp_tokenizer_free(t);
    assert_ok(tok_from_json(merged, sizeof merged - 1, NULL, &t, &err), err);
    expect_tokens(t, "e\u0301 e\u0301", 0, "\u00e9| \u00e9");
    pp_tokenizer_free(t);
}

/* Tokens that words never become, because the model does not have them, are not written to a folder either. */
static void tokens_that_words_never_become(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},"
        "{\"id\":3,\"content\":\"\u2603\",\"special\":true},"
        "{\"id\":4,\"content\":\"+\",\"single_word\":true}],\"pre_tokenizer\":{\"type\":\"Whitespace\"},"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2},\"merges\":[]}}";
    struct pp_tokenizer *t[3];
    struct pp_error err;
    char folder[300];
    (void)state;
    snprintf(folder, sizeof folder, "%s/outside", test_tmpdir());
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_ok(tok_from_json(json, sizeof json - 1, NULL, &t[0], &err), err);
    t[1] = through_gguf(t[0]);
    assert_ok(pp_tokenizer_to_folder(t[0], folder, &err), err);
    t[2] = open_tokenizer(folder);
    for (int i = 0; i < 3; i++) {
        expect_tokens(t[i], "a\u2603b", 0, " a|<unk>| b");
        expect_tokens(t[i], "a\u2603b", PP_TOKENIZE_SPECIAL, " a|\u2603| b");
        expect_tokens(t[i], "a+b +", 0, " a|<unk>| b|+");
        pp_tokenizer_free(t[i]);
    }
}

/* A space is put before each stretch of text that does not begin with one. An added token that strips white space takes
 * any kind of it. */
static void spaces_around_tokens(void **state)
{
    struct pp_buf json = {0};
    struct pp_tokenizer *both[2];
    struct pp_error err;
    (void)state;
    pp_buf_str(&json, "{\"added_tokens\":[{\"id\":256,\"content\":\"<L>\",\"lstrip\":true},"
               "{\"id\":257,\"content\":\"<R>\",\"rstrip\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
               "\"add_prefix_space\":true},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned byte = 0; byte < 256; byte++) {
        char key[5] = {0};
        pp_utf8_encode(tok_byte_to_char(byte), key);
        pp_buf_fmt(&json, "%s\"%s%s\":%u", byte ? "," : "", byte == '"' || byte == '\\' ? "\\" : "", key, byte);
    }
    pp_buf_str(&json, "},\"merges\":[]}}");
    assert_ok(tok_from_json(json.data, json.len, NULL, &both[0], &err), err);
    both[1] = through_gguf(both[0]);
    for (int i = 0; i < 2; i++) {
        expect_tokens(both[i], "a<L>b<R>c", 0, " |a|<L>| |b|<R>| |c");
        expect_tokens(both[i], " a<L> b", 0, " |a|<L>| |b");
        expect_tokens(both[i], "\na<L>\tb", 0, " |\n|a|<L>| |\t|b");
        expect_tokens(both[i], "a\u3000 \u2003<L><R>\u00a0\u3000\nb", 0, " |a|<L>|<R>| |b");
        expect_tokens(both[i], "\u3000<L>\u00a0<L>", 0, "<L>|<L>");
        expect_tokens(both[i], "\xa0<L>", 0, " |\xa0|<L>"); /* a byte that ends a character is no white space */
        pp_tokenizer_free(both[i]);
    }
    pp_buf_free(&json);
}

/* Of two spaces the second begins another word, although the vocabulary has a token for both. */
static void every_space_begins_a_word(void **state)
{
    static const char json[] =
        "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"%s\",\"split\":%s},"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"\u2581\":1,\"a\":2,"
        "\"\u2581\u2581\":3,\"\u2581a\":4,\"a\u2581\":5},\"merges\":[\"a \u2581\",\"\u2581 \u2581\",\"\u2581 a\"]}}";
    static const struct { const char *scheme, *split, *want; } cases[] = {
        {"always", "true", " a| | a| "}, {"never", "true", "a| | a| "}, {"never", "false", "a | |a "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[600];
        struct pp_tokenizer *t[2];
        struct pp_error err;
        snprintf(text, sizeof text, json, cases[i].scheme, cases[i].split);
        assert_ok(tok_from_json(text, strlen(text), NULL, &t[0], &err), err);
        t[1] = through_gguf(t[0]);
        for (int k = 0; k < 2; k++) {
            expect_tokens(t[k], "a  a ", 0, cases[i].want);
            pp_tokenizer_free(t[k]);
        }
    }
}

/* A table in which "A" becomes "b": it has a unit for the root, one for the byte, and one for the value. */
enum { UNITS = 256, TABLE = 4 + 4 * UNITS + 2 };

static void fill_table(uint32_t map[(TABLE + 3) / 4])
{
    memset(map, 0, (TABLE + 3) / 4 * sizeof *map);
    map[0] = 4 * UNITS;
    map[1] = 1u << 10;                             /* children at 1 ^ byte */
    map[1 + (1 ^ 'A')] = 1u << 8 | 2u << 10 | 'A'; /* has a value, at 2 ^ this index */
    map[1 + (1 ^ 'A' ^ 2)] = 0x80000000u;          /* the offset of its text, 0 */
    memcpy((char *)map + 4 + 4 * UNITS, "b", 2);
}

/* BPE vocabularies with SentencePiece's table of characters: the table is one more step. */
static void tables(void **state)
{
    static const char json[] =
        "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"%s\"},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},"
        "\"merges\":[]}}";
    uint32_t map[(TABLE + 3) / 4];
    char text[2000], base64[1500];
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    fill_table(map);
    base64_encode_raw(base64, TABLE, (const uint8_t *)map);
    base64[BASE64_ENCODE_RAW_LENGTH(TABLE)] = 0;
    snprintf(text, sizeof text, json, base64);
    assert_ok(tok_from_json(text, strlen(text), NULL, &t, &err), err);
    expect_tokens(t, "aAa", 0, "a|b|a");
    pp_tokenizer_free(t);
}

/* Files of unigrams with that table: as bytes, in base 64 with a string for each character, and as what it is not. */
static void tables_in_files(void **state)
{
    static const struct pp_str tokens[] = {{"<unk>", 5}, {"a", 1}, {"b", 1}, {TOK_SPACE, TOK_SPACE_LEN}};
    static const float scores[] = {0, -1, -1, -1};
    static const int32_t types[] = {2, 1, 1, 1};
    static const char key[] = "tokenizer.ggml.precompiled_charsmap";
    enum { N = sizeof tokens / sizeof *tokens, BASE64 = BASE64_ENCODE_RAW_LENGTH(TABLE) };
    uint32_t map[(TABLE + 3) / 4];
    char base64[BASE64], path[256];
    struct pp_str letters[BASE64];
    struct pp_error err;
    (void)state;
    fill_table(map);
    base64_encode_raw(base64, TABLE, (const uint8_t *)map);
    for (size_t i = 0; i < BASE64; i++)
        letters[i] = (struct pp_str){base64 + i, 1};
    snprintf(path, sizeof path, "%s/table.gguf", test_tmpdir());
    for (int i = 0; i < 3; i++) {
        struct pp_gguf_writer *w = gguf_file_begin(path);
        struct pp_tokenizer *t;
        pp_gguf_add_text(w, "general.architecture", "bert");
        pp_gguf_add_text(w, "tokenizer.ggml.model", "t5");
        pp_gguf_add_str_array(w, "tokenizer.ggml.tokens", tokens, N);
        pp_gguf_add_f32_array(w, "tokenizer.ggml.scores", scores, N);
        pp_gguf_add_i32_array(w, "tokenizer.ggml.token_type", types, N);
        if (i == 0)
            pp_gguf_add_u8_array(w, key, (const uint8_t *)map, TABLE);
        else
            pp_gguf_add_str_array(w, key, letters + (i - 1), BASE64 - (size_t)(i - 1));
        gguf_file_end(w, NULL, 0);
        const enum pp_code code = pp_tokenizer_open(path, &t, &err);
        if (i < 2) {
            assert_ok(code, err);
            expect_tokens(t, "aAa", 0, " |a|b|a");
            pp_tokenizer_free(t);
        } else {
            assert_int_equal(code, PP_ERR_FORMAT);
        }
    }
}

static void refused(void **state)
{
    static const char *const bad[] = {
        "{\"type\":\"Mystery\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"}}",
        "{\"type\":\"Prepend\"}",
    };
    struct pp_tokenizer *t;
    struct pp_error err;
    struct pp_buf json = {0};
    int32_t *ids;
    size_t n;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pp_buf_clear(&json);
        bytes_json(bad[i], &json);
        assert_int_equal(tok_from_json(json.data, json.len, NULL, &t, &err), PP_ERR_UNSUPPORTED);
        assert_null(t);
    }
    pp_buf_free(&json);
    /* text cannot grow by a factor of a million */
    struct pp_buf grows = {0};
    pp_buf_str(&grows, "{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 4; i++)
        pp_buf_fmt(&grows, "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"%0*d%s\"}",
                   i ? "," : "", 200, 0, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    pp_buf_str(&grows, "]}");
    t = with_normalizer(grows.data);
    assert_int_equal(pp_tokenize(t, "aaaa", 4, 0, &ids, &n, &err), PP_ERR_UNSUPPORTED);
    assert_null(ids);
    pp_tokenizer_free(t);
    pp_buf_free(&grows);
    /* nor can an expression take for ever */
    t = with_normalizer("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(a+)+[bc]\"},\"content\":\"\"}");
    char text[64];
    memset(text, 'a', sizeof text);
    assert_int_equal(pp_tokenize(t, text, sizeof text, 0, &ids, &n, &err), PP_ERR_UNSUPPORTED);
    pp_tokenizer_free(t);
}

static void failed_allocations(void **state)
{
    static const char normalizer[] =
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"},{\"type\":\"Replace\","
        "\"pattern\":{\"Regex\":\"b+\"},\"content\":\"c\"},{\"type\":\"Prepend\",\"prepend\":\"x\"}]}";
    struct pp_buf json = {0}, text = {0};
    struct pp_tokenizer *t;
    (void)state;
    bytes_json(normalizer, &json);
    for (int i = 0; i < 20; i++)
        pp_buf_str(&text, "A\u0301\u0323<B>b");
    for (uint64_t nth = 1; nth < 400; nth++) {
        struct pp_error err = {0};
        int32_t *ids = NULL;
        size_t n;
        pp_mem_fail_at(nth, 0);
        enum pp_code code = tok_from_json(json.data, json.len, NULL, &t, &err);
        pp_mem_fail_at(0, 0);
        assert_true(code == PP_OK || code == PP_ERR_NOMEM);
        pp_tokenizer_free(t);
        t = with_normalizer(normalizer);
        pp_mem_fail_at(nth % 40 + 1, 0);
        code = pp_tokenize(t, text.data, text.len, 0, &ids, &n, &err);
        pp_mem_fail_at(0, 0);
        assert_true(code == PP_OK || code == PP_ERR_NOMEM);
        pp_free(ids);
        pp_tokenizer_free(t);
    }
    pp_buf_free(&json);
    pp_buf_free(&text);
}

TEST_GROUP(tokenizer_normal)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character), cmocka_unit_test(mixed_characters), cmocka_unit_test(odd_texts),
        cmocka_unit_test(steps), cmocka_unit_test(steps_of_other_kinds), cmocka_unit_test(refused),
        cmocka_unit_test(tokens_that_words_never_become),
        cmocka_unit_test(spaces_around_tokens),
        cmocka_unit_test(every_space_begins_a_word), cmocka_unit_test(tables), cmocka_unit_test(tables_in_files),
        cmocka_unit_test(failed_allocations),
    };
    return cmocka_run_group_tests_name("tokenizer_normal", tests, NULL, NULL);
}
