/* test_tokenizer_json.c - tokenizer.json as the library that it comes from reads it: small vocabularies with texts and
 * the ids that version 0.22.2 of https://github.com/huggingface/tokenizers gives for them, or 0.23.2, from the case on
 * of tokens that are called like bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"
#include "tests/hostile.h"
#include "tests/support.h"
#include "tests/tokenizers.h"

/* The model named "bytes" in the cases: a token for each of the 256 byte values, with that value as its id, and these
 * tokens. */
static cJSON *byte_model(void)
{
    static const char *const merges[][2] = {
        {"a", "b"}, {".", "."}, {"1", "2"}, {"\u0120", "a"}, {"a", "."}, {".", "b"}, {"\u0120", "\u0120"},
    };
    cJSON *model = cJSON_CreateObject(), *vocab = cJSON_AddObjectToObject(model, "vocab");
    cJSON *list = cJSON_AddArrayToObject(model, "merges");
    char text[16];
    cJSON_AddStringToObject(model, "type", "BPE");
    for (unsigned byte = 0; byte < 256; byte++) {
        text[pp_utf8_encode(tok_byte_to_char(byte), text)] = 0;
        cJSON_AddNumberToObject(vocab, text, byte);
    }
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) {
        snprintf(text, sizeof text, "%s%s", merges[i][0], merges[i][1]);
        cJSON_AddNumberToObject(vocab, text, (double)(256 + i));
        cJSON_AddItemToArray(list, cJSON_CreateStringArray(merges[i], 2));
    }
    return model;
}

static void expect_ids(const struct pp_tokenizer *t, const char *text, const cJSON *want, const char *why, bool again)
{
    int32_t *ids;
    size_t n;
    struct pp_error err;
    const cJSON *id;
    struct pp_buf have = {0}, wanted = {0};
    assert_ok(pp_tokenize(t, text, strlen(text), PP_TOKENIZE_SPECIAL, &ids, &n, &err), err);
    for (size_t i = 0; i < n; i++)
        pp_buf_fmt(&have, " %d", (int)ids[i]);
    cJSON_ArrayForEach(id, want)
        pp_buf_fmt(&wanted, " %d", id->valueint);
    if (strcmp(pp_buf_cstr(&have), pp_buf_cstr(&wanted)) != 0)
        fail_msg("%s%s: \"%s\" is%s, not%s", why, again ? ", from GGUF" : "", text, have.data, wanted.data);
    pp_buf_free(&have);
    pp_buf_free(&wanted);
    pp_free(ids);
}

/* The GGUF file joins tokens to the same text as the vocabulary. */
static void expect_same_text(struct pp_tokenizer *const both[2], const cJSON *want, const char *why)
{
    struct pp_buf text[2] = {{0}, {0}};
    const cJSON *id;
    int32_t ids[64];
    size_t n = 0;
    cJSON_ArrayForEach(id, want)
        if (n < sizeof ids / sizeof *ids)
            ids[n++] = id->valueint;
    for (int i = 0; i < 2; i++)
        pp_detokenize(both[i], ids, n, true, &text[i]);
    if (strcmp(pp_buf_cstr(&text[0]), pp_buf_cstr(&text[1])) != 0)
        fail_msg("%s: from GGUF the text is \"%s\", not \"%s\"", why, text[1].data, text[0].data);
    pp_buf_free(&text[0]);
    pp_buf_free(&text[1]);
}

static void run_case(cJSON *c)
{
    cJSON *source = cJSON_GetObjectItem(c, "tokenizer");
    const char *why = cJSON_GetStringValue(cJSON_GetObjectItem(c, "why"));
    const cJSON *text;
    struct pp_tokenizer *t;
    struct pp_error err;
    if (cJSON_IsString(cJSON_GetObjectItem(source, "model")))
        cJSON_ReplaceItemInObject(source, "model", byte_model());
    char *json = cJSON_PrintUnformatted(source);
    assert_ok(tok_from_json(json, strlen(json), NULL, &t, &err), err);
    struct pp_tokenizer *both[] = {t, through_gguf(t)};
    cJSON_ArrayForEach(text, cJSON_GetObjectItem(c, "texts"))
        expect_same_text(both, cJSON_GetArrayItem(text, 1), why);
    for (int i = 0; i < 2; i++) {
        cJSON_ArrayForEach(text, cJSON_GetObjectItem(c, "texts"))
            expect_ids(both[i], cJSON_GetArrayItem(text, 0)->valuestring, cJSON_GetArrayItem(text, 1), why, i);
        pp_tokenizer_free(both[i]);
    }
    cJSON_free(json);
}

static void as_the_library(void **state)
{
    char *data, *rest, *line;
    size_t n;
    struct pp_error err;
    (void)state;
    assert_ok(pp_read_file("tests/data/tokenizer_cases.jsonl", 1 << 20, &data, &n, &err), err);
    for (line = strtok_r(data, "\n", &rest), n = 0; line; line = strtok_r(NULL, "\n", &rest), n++) {
        cJSON *c = cJSON_Parse(line);
        assert_non_null(c);
        run_case(c);
        cJSON_Delete(c);
    }
    assert_true(n > 30);
    pp_free(data);
}

/* A text that continues another one gets no prefix. */
static void going_on(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true,\"normalized\":true}],"
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"<s>\":1,\"\u2581\":2,\"a\":3},"
        "\"merges\":[]}}";
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    assert_ok(tok_from_json(json, strlen(json), NULL, &t, &err), err);
    expect_tokens(t, "a a", PP_TOKENIZE_SPECIAL, " |a| |a");
    expect_tokens(t, "a a", PP_TOKENIZE_SPECIAL | PP_TOKENIZE_ON, "a| |a");
    expect_tokens(t, " <s>a", PP_TOKENIZE_SPECIAL | PP_TOKENIZE_ON, "<s>|a");
    pp_tokenizer_free(t);
}

/* Texts that normalising does not change are not lost when others make the vocabulary's buffer move. */
static void many_normalized(void **state)
{
    enum { MANY = 3000 };
    struct pp_buf json = {0};
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    pp_buf_str(&json, "{\"added_tokens\":[");
    for (int i = 0; i < MANY; i++)
        pp_buf_fmt(&json, "%s{\"id\":%d,\"content\":\"<a word of the user's, and the %dth>\",\"normalized\":true}",
                   i ? "," : "", i + 2, i);
    pp_buf_str(&json, "],\"normalizer\":{\"type\":\"Lowercase\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\","
                      "\"vocab\":{\"?\":0,\"b\":1},\"merges\":[]}}");
    assert_ok(tok_from_json(pp_buf_cstr(&json), json.len, NULL, &t, &err), err);
    for (int i = 0; i < MANY; i++) {
        char text[80], words[90];
        snprintf(text, sizeof text, "b<A WORD of the user's, and the %dth>b", i);
        snprintf(words, sizeof words, " b|<a word of the user's, and the %dth>| b", i);
        expect_tokens(t, text, PP_TOKENIZE_SPECIAL, words);
    }
    pp_tokenizer_free(t);
    pp_buf_free(&json);
}

/* ByteLevel's prefix space precedes each word that earlier pre-tokenizers split off, unless the word begins with a
 * space or continues a text. */
static void spaces_before_words(void **state)
{
    static const struct {
        const char *before, *regex, *want, *on;
    } cases[] = {
        {"{\"type\":\"Digits\",\"individual_digits\":true}", "true", " a| |1| |2| |b| a| |..",
         "a| |1| |2| |b| a| |.."},
        {"{\"type\":\"Digits\",\"individual_digits\":false}", "false", " a| |12| |b| a|.",
         "a| |12| |b| a|."},
        {"{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithNext\",\"invert\":false}", "true",
         " a|12|b| a| |..", "a|12|b| a| |.."},
    };
    static const char *const texts[] = {"a12b a ..", "a12b a.", "a12b a .."};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *root = cJSON_CreateObject();
        struct pp_tokenizer *t;
        struct pp_error err;
        char pre[400];
        snprintf(pre, sizeof pre, "{\"type\":\"Sequence\",\"pretokenizers\":[%s,{\"type\":\"ByteLevel\","
                 "\"add_prefix_space\":true,\"use_regex\":%s}]}", cases[i].before, cases[i].regex);
        cJSON_AddItemToObject(root, "model", byte_model());
        cJSON_AddItemToObject(root, "pre_tokenizer", cJSON_Parse(pre));
        char *json = cJSON_PrintUnformatted(root);
        assert_ok(tok_from_json(json, strlen(json), NULL, &t, &err), err);
        struct pp_tokenizer *both[] = {t, through_gguf(t)};
        for (int k = 0; k < 2; k++) {
            expect_tokens(both[k], texts[i], 0, cases[i].want);
            expect_tokens(both[k], texts[i], PP_TOKENIZE_ON, cases[i].on);
            pp_tokenizer_free(both[k]);
        }
        cJSON_free(json);
        cJSON_Delete(root);
    }
}

/* The beginning of a token's text is decided by the decoder, whatever is put before texts. */
static void spaces_at_the_start(void **state)
{
    static const char prepend[] = "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},";
    static const char strip[] = ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}";
    static const struct {
        const char *normalizer, *decoder, *text, *behind_bos, *unknown;
    } cases[] = {
        {prepend, strip, " a", "a", "a? a"}, {prepend, "", "  a", " a", " a? a"}, {"", strip, " a", "a", "a? a"},
        {"", "", "  a", " a", " a? a"},
    };
    static const int32_t unknown[] = {2, 3, 0, 2, 3}; /* a text continues after it */
    static const int32_t ids[] = {2, 2, 3}, behind[] = {1, 2, 3}; /* 1: <s>, 2: a space */
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[900];
        struct pp_tokenizer *t;
        struct pp_error err;
        snprintf(json, sizeof json, "{\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true}],"
                 "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s"
                 "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},"
                 "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
                 "\"\u2581\"},\"content\":\" \"},{\"type\":\"Fuse\"}%s]},"
                 "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"<s>\":1,\"\u2581\":2,\"a\":3},"
                 "\"merges\":[]}}", cases[i].normalizer, cases[i].decoder);
        assert_ok(tok_from_json(json, strlen(json), NULL, &t, &err), err);
        struct pp_tokenizer *both[] = {t, through_gguf(t)};
        for (int k = 0; k < 2; k++) {
            struct pp_buf text = {0};
            pp_detokenize(both[k], ids, 3, false, &text);
            assert_string_equal(pp_buf_cstr(&text), cases[i].text);
            pp_buf_clear(&text);
            pp_detokenize(both[k], behind, 3, false, &text);
            assert_string_equal(pp_buf_cstr(&text), cases[i].behind_bos);
            pp_buf_clear(&text);
            pp_detokenize(both[k], unknown, 5, false, &text);
            assert_string_equal(pp_buf_cstr(&text), cases[i].unknown);
            pp_buf_free(&text);
            pp_tokenizer_free(both[k]);
        }
    }
}

#define WORDS "\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}"

/* Files that pippin would interpret differently than intended are refused. */
static void refused(void **state)
{
    static const char *const bad[] = {
        "{\"pre_tokenizer\":{\"type\":\"Digits\"},\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}",
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}",
        "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"},"
        "\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}",
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Metaspace\","
        "\"replacement\":\"\u2581\"},{\"type\":\"WhitespaceSplit\"}]},"
        "\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}",
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Strip\",\"content\":\" \",\"start\":2,"
        "\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}",
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":"
        "\"FixedLength\"}]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0}," WORDS "}",
        "{\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":-1}," WORDS "}",
        "{\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":1.5}," WORDS "}",
        "{\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":1e18}," WORDS "}",
        "{\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":\"5\"}," WORDS "}",
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"}," WORDS "}",
        "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"}," WORDS "}",
        "{\"normalizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}",
        "{\"normalizer\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
        "\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}",
        "{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
        "\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"\",\"vocab\":{\"a\":0}}}",
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Metaspace\","
        "\"replacement\":\"\u2581\"},{\"type\":\"ByteLevel\"}]},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{\"model\":{\"type\":\"WordSalad\",\"vocab\":{\"a\":0}}}",
    };
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tok_from_json(bad[i], strlen(bad[i]), NULL, &t, &err), PP_ERR_UNSUPPORTED);
}

/* --- pieces, spelled text, and whole words ---------------------------------------------------------------- */

/* The tokenizer of this text, directly, through a GGUF file, and through a folder. */
static void three_ways(const char *json, struct pp_tokenizer *t[3])
{
    struct pp_error err;
    assert_ok(tok_from_json(json, strlen(json), NULL, &t[0], &err), err);
    t[1] = through_gguf(t[0]);
    assert_ok(pp_tokenizer_to_folder(t[0], test_tmpdir(), &err), err);
    t[2] = open_tokenizer(test_tmpdir());
}

static void free_three(struct pp_tokenizer *t[3])
{
    for (int i = 0; i < 3; i++)
        pp_tokenizer_free(t[i]);
}

static void expect_text(const struct pp_tokenizer *t, const char *text, const char *want)
{
    int32_t *ids;
    size_t n;
    struct pp_error err;
    struct pp_buf got = {0};
    assert_ok(pp_tokenize(t, text, strlen(text), 0, &ids, &n, &err), err);
    pp_detokenize(t, ids, n, false, &got);
    assert_string_equal(pp_buf_cstr(&got), want);
    pp_buf_free(&got);
    pp_free(ids);
}

#define SPECIAL(text) "{\"SpecialToken\":{\"id\":\"" text "\"}},"
#define HALF SPECIAL("<b>") SPECIAL("<b>") SPECIAL("<a>")

/* Several tokens are put before a text, as in GLM 4, unless it begins with the first of them; and after it. GGUF files
 * and folders hold all of them. A special token's name may stand for several tokens, or for another one. */
static void several_around(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":2,\"content\":\"<a>\",\"special\":true},"
        "{\"id\":3,\"content\":\"<b>\",\"special\":true}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"
        "{\"type\":\"TemplateProcessing\",\"single\":[%s{\"Sequence\":{\"id\":\"A\"}}%s],"
        "\"special_tokens\":{\"both\":{\"id\":\"both\",\"ids\":[3,2]}}}]},"
        "\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"x\":0,\"y\":1},\"merges\":[]}}";
    struct pp_buf text = {0};
    struct pp_tokenizer *t[3];
    struct pp_error err;
    (void)state;
    pp_buf_fmt(&text, json, SPECIAL("<a>") SPECIAL("<b>") SPECIAL("<a>"), "");
    assert_false(text.bad);
    three_ways(text.data, t);
    for (int i = 0; i < 3; i++) {
        const int32_t *lead;
        assert_int_equal(pp_tokenizer_bos(t[i]), 2);
        assert_int_equal(pp_tokenizer_lead(t[i], &lead), 3);
        assert_int_equal(lead[1], 3);
        expect_tokens(t[i], "xy", PP_TOKENIZE_BOS, "<a>|<b>|<a>|x|y");
        expect_tokens(t[i], "<b>x", PP_TOKENIZE_BOS | PP_TOKENIZE_SPECIAL, "<a>|<b>|<a>|<b>|x");
        expect_tokens(t[i], "<a>x", PP_TOKENIZE_BOS | PP_TOKENIZE_SPECIAL, "<a>|x");
        expect_tokens(t[i], "xy", 0, "x|y");
    }
    free_three(t);
    pp_buf_clear(&text);
    pp_buf_fmt(&text, json, SPECIAL("both"), "," SPECIAL("<a>") "{\"SpecialToken\":{\"id\":\"both\"}}");
    three_ways(text.data, t);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pp_tokenizer_bos(t[i]), 3);
        assert_int_equal(pp_tokenizer_eos(t[i]), 2);
        expect_tokens(t[i], "xy", PP_TOKENIZE_BOS, "<b>|<a>|x|y|<a>|<b>|<a>");
        expect_tokens(t[i], "xy", 0, "x|y");
    }
    free_three(t);
    pp_buf_clear(&text);
    pp_buf_fmt(&text, json, HALF HALF, "");
    assert_int_equal(tok_from_json(text.data, text.len, NULL, &t[0], &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "more than 5 tokens before a text"));
    pp_buf_clear(&text);
    pp_buf_fmt(&text, json, "", "," HALF HALF "{}");
    assert_int_equal(tok_from_json(text.data, text.len, NULL, &t[0], &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "more than 5 tokens after a text"));
    pp_buf_free(&text);
}

static enum pp_code add_piece(void *out, const char *word, size_t n, struct pp_error *err)
{
    (void)err;
    pp_buf_add(out, word, n);
    pp_buf_char(out, '|');
    return PP_OK;
}

/* How https://github.com/huggingface/tokenizers splits text: the first texts of each kind are from its own tests. */
static void pieces(void **state)
{
    static const struct {
        const char *pattern, *text, *want;
    } cases[] = {
        {"(?#scripts)", "\u3069\u3053\u3067\u751f\u308c\u3002Yes", "\u3069\u3053\u3067\u751f\u308c|\u3002|Yes|"},
        {"(?#scripts)", "Apples are \u308a\u3093\u3054 \u6797\u6a8e", "Apples are |\u308a\u3093\u3054 \u6797\u6a8e|"},
        {"(?#scripts)", "\u30e9\u30fc\u30e1\u30f3 \u30fc", "\u30e9\u30fc\u30e1\u30f3 \u30fc|"},
        {"(?#scripts)", "  Hello, \u043c\u0438\u0440 42", "Hello|, |\u043c\u0438\u0440 |42|"}, /* no leading spaces */
        {"(?#scripts)", "   ", ""}, {"(?#scripts)", "a\nb  ", "a|\n|b  |"},
        {"(?#scripts)", "e\u0301\u0301x", "e|\u0301\u0301|x|"},       /* combining accents count as a script of their
                                                                         own */
        {"(?#scripts)", "a\u0378b\u0378 \u03a9", "a\u0378b\u0378 |\u03a9|"}, /* an unassigned character has no script */
        {"(?#scripts)", "a\U00010d00b", "a\U00010d00b|"},                /* nor do newer scripts */
        {"(?#scripts)", "\u16a0\u2c00\U00010330", "\u16a0|\u2c00|\U00010330|"},
        {"(?#scripts)", "a\xff" "b", "a|\xff|b|"},
        {"(?#length)5", "Hello world", "Hello| worl|d|"}, {"(?#length)5", "Short", "Short|"}, {"(?#length)5", "", ""},
        {"(?#length)3", "Hello \U0001f44b world", "Hel|lo |\U0001f44b w|orl|d|"},
        {"(?#length)2", "\n\n\xff\xfe\u00e9", "\n\n|\xff\xfe|\u00e9|"}, {"(?#length)16777216", "ab", "ab|"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct pp_str pattern = {cases[i].pattern, strlen(cases[i].pattern)};
        const size_t n = strlen(cases[i].text);
        struct tok_splitter *s;
        struct pp_error err;
        struct pp_buf got = {0};
        assert_ok(tok_splitter_new(&pattern, 1, &s, &err), err);
        struct tok_split_state *st = tok_split_state_new(s, n);
        assert_ok(tok_split(s, st, cases[i].text, n, false, add_piece, &got, &err), err);
        assert_string_equal(pp_buf_cstr(&got), cases[i].want);
        tok_split_state_free(st);
        tok_splitter_free(s);
        pp_buf_free(&got);
    }
}

/* A megabyte in which every character has another script than the one before takes only a moment. */
static void many_scripts(void **state)
{
    static const char *const some[] = {"a", "\u03a9", "\u1200", "\u16a0", "\u0378", "\U00010330", "\ua000", " "};
    static const char json[] = "{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},\"model\":{\"type\":\"WordLevel\","
                               "\"unk_token\":\"?\",\"vocab\":{\"?\":0}}}";
    struct pp_tokenizer *t;
    struct pp_error err;
    struct pp_buf text = {0};
    int32_t *ids;
    size_t n;
    (void)state;
    for (size_t i = 0; text.len < 1 << 20; i++)
        pp_buf_str(&text, some[i % (sizeof some / sizeof *some)]);
    assert_ok(tok_from_json(json, strlen(json), NULL, &t, &err), err);
    assert_ok(pp_tokenize(t, text.data, text.len, 0, &ids, &n, &err), err);
    assert_true(n > 200000);
    pp_free(ids);
    pp_buf_free(&text);
    pp_tokenizer_free(t);
}

static void whole_words(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":0,\"content\":\"[UNK]\",\"special\":true},{\"id\":6,\"content\":\"<sep>\","
        "\"special\":true},{\"id\":7,\"content\":\"sep\",\"special\":true}],"
        "\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
        "\"pretokenizers\":[{\"type\":\"Whitespace\"},{\"type\":\"FixedLength\",\"length\":6}]},\"model\":{\"type\":"
        "\"WordLevel\",\"unk_token\":\"[UNK]\",\"vocab\":{\"[UNK]\":0,\"hello\":1,\",\":2,\"world\":3,\"h\":4,"
        "\"caf\u00e9\":5}}}";
    struct pp_tokenizer *t[3];
    (void)state;
    three_ways(json, t);
    for (int i = 0; i < 3; i++) {
        expect_tokens(t[i], "Hello, world", 0, " hello| ,| world");
        expect_tokens(t[i], "h hell helloh worldworld", 0, " h|[UNK]|[UNK]|[UNK]|[UNK]"); /* cut after 6 letters */
        expect_tokens(t[i], "CAF\u00c9 <sep>h", PP_TOKENIZE_SPECIAL, " caf\u00e9|<sep>| h");
        expect_tokens(t[i], "h sep", PP_TOKENIZE_SPECIAL, " h|sep");
        expect_tokens(t[i], "h sep", 0, " h|[UNK]"); /* an added token, but not a word */
        expect_text(t[i], "hello world", "hello world"); /* without a decoder, words are joined with spaces */
    }
    free_three(t);
}

/* Without an unknown token, a text with unknown characters cannot be tokenised. */
static void no_unknown_words(void **state)
{
    static const char json[] = "{\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"model\":{\"type\":\"WordLevel\","
                               "\"unk_token\":\"<unk>\",\"vocab\":{\"a\":0}}}";
    struct pp_tokenizer *t[3];
    struct pp_error err;
    int32_t *ids;
    size_t n;
    (void)state;
    three_ways(json, t);
    for (int i = 0; i < 3; i++) {
        expect_tokens(t[i], "a a", 0, " a| a");
        assert_int_equal(pp_tokenize(t[i], "a c", 3, 0, &ids, &n, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "such as \"c\""));
    }
    free_three(t);
}

/* Unigrams without an unknown token; what tokenizer_config.json calls so is none. */
static void no_unknown_pieces(void **state)
{
    static const char json[] = "{\"model\":{\"type\":\"Unigram\",\"unk_id\":%s,%s\"vocab\":[[\"<unk>\",0],[\"a\",-1],"
                               "[\"ab\",-2.1],[\"<0x63>\",-9]]}}";
    static const char *const invalid[] = {"4", "-1", "\"<unk>\"", "true"};
    const cJSON *const config = cJSON_Parse("{\"unk_token\":\"<unk>\"}");
    const struct tok_config cfg = {.tokenizer = (cJSON *)config};
    struct pp_buf text = {0};
    struct pp_error err;
    int32_t *ids;
    size_t n;
    (void)state;
    for (int bytes = 0; bytes < 2; bytes++) {
        struct pp_tokenizer *t[2];
        pp_buf_clear(&text);
        pp_buf_fmt(&text, json, "null", bytes ? "\"byte_fallback\":true," : "");
        cJSON *root = cJSON_Parse(pp_buf_cstr(&text));
        assert_ok(tok_from_tree(root, &cfg, &t[0], &err), err);
        cJSON_Delete(root);
        t[1] = through_gguf(t[0]);
        for (int i = 0; i < 2; i++) {
            expect_tokens(t[i], "aab", 0, "a|ab"); /* "b" is unknown only by itself */
            assert_int_equal(pp_tokenize(t[i], "axxa", 4, 0, &ids, &n, &err), PP_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.text, "such as \"xx\""));
            if (bytes)
                expect_tokens(t[i], "ac", 0, "a|c");
            else
                assert_int_equal(pp_tokenize(t[i], "ac", 2, 0, &ids, &n, &err), PP_ERR_UNSUPPORTED);
            pp_tokenizer_free(t[i]);
        }
    }
    cJSON_Delete((cJSON *)config);
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        struct pp_tokenizer *t;
        pp_buf_clear(&text);
        pp_buf_fmt(&text, json, invalid[i], "");
        assert_int_equal(tok_from_json(text.data, text.len, NULL, &t, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "unk_id"));
    }
    pp_buf_free(&text);
}

/* Text that a normalizer spelt byte by byte is split and merged in that form. */
static void spelled(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
        "{\"type\":\"ByteLevel\"}]},\"pre_tokenizer\":%s,\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\","
        "\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"h\":1,\"\u00c3\":2,\"\u00a9\":3,\"\u0120\":4,\"\u00c3\u00a9\":5,"
        "\"\u00a9\u0120\":6,\"h\u00c3\u00a9\":7,\"\u010a\":8,\"\u0120h\":9},\"merges\":[\"\u00c3 \u00a9\","
        "\"h \u00c3\u00a9\",\"\u0120 h\"]}}";
    static const char cut[] = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\u0120\"},\"behavior\":\"Isolated\"}";
    char text[1024];
    struct pp_tokenizer *t[3];
    (void)state;
    for (int with_cut = 0; with_cut < 2; with_cut++) {
        snprintf(text, sizeof text, json, with_cut ? cut : "null");
        three_ways(text, t);
        for (int i = 0; i < 3; i++) {
            expect_tokens(t[i], "he\u0301 h\n", 0, with_cut ? "h\u00e9| |h|\n" : "h\u00e9| h|\n");
            expect_text(t[i], " h\u00e9 \nh", " h\u00e9 \nh");
            expect_tokens(t[i], "x\u00e8", 0, "?|\xc3|?");
        }
        free_three(t);
    }
}

static void expect_joined(const struct pp_tokenizer *t, const int32_t *ids, size_t n, bool special, const char *want)
{
    struct pp_buf out = {0};
    pp_detokenize(t, ids, n, special, &out);
    assert_string_equal(pp_buf_cstr(&out), want);
    pp_buf_free(&out);
}

/* Words are joined as a WordPiece decoder does, with or without its "cleanup", or only with spaces. */
static void joined(void **state)
{
#define X_ADDED "{\"added_tokens\":[{\"id\":10,\"content\":\"<x>\",\"special\":true}],"
#define VOCAB "\"vocab\":{\"~\":0,\"a\":1,\"b\":2,\"##a\":3,\"##b\":4,\"ab\":5,\".\":6,\"'s\":7,\"n't\":8,\"...\":9}"
#define AS_WORDPIECE(cleanup) "{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":" cleanup "}"
    static const char *const models[] = {
        X_ADDED "\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"decoder\":%s,\"model\":{\"type\":\"BPE\","
        "\"unk_token\":\"~\",\"continuing_subword_prefix\":\"##\"," VOCAB ",\"merges\":[[\"a\",\"##b\"]]}}",
        X_ADDED "\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"decoder\":%s,\"model\":{\"type\":\"WordLevel\","
        "\"unk_token\":\"~\"," VOCAB "}}",
        X_ADDED "\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
        "\"decoder\":%s,\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"~\",\"continuing_subword_prefix\":\"##\","
        VOCAB "}}",
    };
    static const int32_t one[] = {1, 3, 5, 6}, two[] = {10, 1, 4, 7, 10, 2, 9}, three[] = {1, 8, 0, 1};
    static const struct {
        const char *decoder, *one, *two, *without, *three;
    } ways[] = {
        {AS_WORDPIECE("true"), "aa ab.", "<x> ab's <x> b...", "ab's b...", "an't ~ a"},
        {AS_WORDPIECE("false"), "aa ab .", "<x> ab 's <x> b ...", "ab 's b ...", "a n't ~ a"},
        {"null", "a ##a ab .", "<x> a ##b 's <x> b ...", "a ##b 's b ...", "a n't ~ a"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t k = 0; k < (i == 2 ? 2 : 3); k++) { /* a WordPiece model joins words this way without a decoder,
                                                           too */
            char json[900];
            struct pp_tokenizer *t[3] = {NULL, NULL, NULL};
            struct pp_error err;
            snprintf(json, sizeof json, models[i], ways[k].decoder);
            if (i < 2) {
                three_ways(json, t);
            } else {
                assert_ok(tok_from_json(json, strlen(json), NULL, &t[0], &err), err);
                t[1] = through_gguf(t[0]);
            }
            for (int way = 0; way < 3 && t[way]; way++) {
                expect_joined(t[way], one, 4, true, ways[k].one);
                expect_joined(t[way], two, 7, true, ways[k].two);
                expect_joined(t[way], two, 7, false, ways[k].without);
                expect_joined(t[way], three, 4, true, ways[k].three);
            }
            free_three(t);
        }
}

/* Unigrams of byte-spelt text; and text that is spelt twice, which decoding reverts once. */
static void spelled_otherwise(void **state)
{
    static const char unigrams[] =
        "{\"normalizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"Unigram\","
        "\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-2],[\"\u0120a\",-3],[\"\u00c3\u00a9\",-4]]}}";
    static const char twice[] =
        "{\"normalizer\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
        /* a space is spelt U+0120, whose bytes are C4 and A0 */
        "\"vocab\":{\"a\":0,\"\u00c4\":1,\"\u0142\":2},\"merges\":[]}}";
    struct pp_tokenizer *t, *again;
    struct pp_error err;
    (void)state;
    assert_ok(tok_from_json(unigrams, strlen(unigrams), NULL, &t, &err), err);
    again = through_gguf(t);
    expect_tokens(t, "a a\u00e9", 0, "a| a|\u00e9");
    expect_tokens(again, "a a\u00e9", 0, "a| a|\u00e9");
    expect_text(again, " a", " a");
    pp_tokenizer_free(again);
    pp_tokenizer_free(t);
    assert_ok(tok_from_json(twice, strlen(twice), NULL, &t, &err), err);
    expect_text(t, "a a", "a\u0120a");
    pp_tokenizer_free(t);
}

/* --- what others may have written ------------------------------------------------------------------------- */

/* Tries the text in a memory block of exactly its size. */
static void try_bytes(const char *json, size_t n)
{
    struct pp_tokenizer *t = NULL;
    struct pp_error err;
    static const char text[] = " ab<s>\u00e9 \t[X]e\u0301..a1 \u65e5";
    char *copy = malloc(n + 1);
    assert_non_null(copy);
    memcpy(copy, json, n);
    copy[n] = 0;
    if (tok_from_json(copy, n, NULL, &t, &err) == PP_OK) {
        int32_t *ids;
        size_t n_ids;
        if (pp_tokenize(t, text, sizeof text - 1, PP_TOKENIZE_SPECIAL, &ids, &n_ids, &err) == PP_OK)
            pp_free(ids);
        pp_tokenizer_free(t);
    }
    free(copy);
}

/* Each case is cut off at every place, and read with changed bytes. */
/* Lists in place of objects, and objects in place of lists, one at a time. */
static void turned(void **state)
{
    char *data, *rest, *line;
    size_t n;
    struct pp_error err;
    (void)state;
    assert_ok(pp_read_file("tests/data/tokenizer_cases.jsonl", 1 << 20, &data, &n, &err), err);
    for (line = strtok_r(data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *c = cJSON_Parse(line), *source = cJSON_GetObjectItem(c, "tokenizer");
        const int most = cJSON_IsString(cJSON_GetObjectItem(source, "model")) ? 12 : 100; /* of a large model, a few */
        if (most == 12)
            cJSON_ReplaceItemInObject(source, "model", byte_model());
        for (int i = 0; i < most; i++) {
            cJSON *other = cJSON_Duplicate(source, true), *node;
            int k = i;
            if ((node = hostile_container(other, &k))) {
                hostile_turn(node, i % 3 ? 0 : 50);
                char *text = cJSON_PrintUnformatted(other);
                try_bytes(text, strlen(text));
                cJSON_free(text);
            } else {
                i = most;
            }
            cJSON_Delete(other);
        }
        cJSON_Delete(c);
    }
    pp_free(data);
}

static void damaged(void **state)
{
    char *data, *rest, *line;
    size_t n;
    uint32_t random = 1;
    struct pp_error err;
    (void)state;
    assert_ok(pp_read_file("tests/data/tokenizer_cases.jsonl", 1 << 20, &data, &n, &err), err);
    for (line = strtok_r(data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *json = strstr(line, "{\"added_tokens\""), *end = strstr(line, ",\"texts\"");
        json = json ? json : strstr(line + 1, "{\"");
        const size_t size = (size_t)(end - json);
        for (size_t cut = 0; cut < size; cut += 1 + size / 400)
            try_bytes(json, cut);
        for (int round = 0; round < 100; round++) {
            char *at = json + (random = random * 1664525u + 1013904223u) % size, before = *at;
            *at = "0129{}[]\":,-aNtf"[(random >> 12) % 16];
            try_bytes(json, size);
            *at = before;
        }
    }
    pp_free(data);
}

/* Very deep, very many, very large. */
static void immense(void **state)
{
    static const char *const heads[] = {"{\"normalizer\":", "{\"pre_tokenizer\":", "{\"model\":", ""};
    static const char *const numbers[] = {"1e999", "-1", "1e300", "4294967295", "0.5", "null", "[]"};
    struct pp_buf json = {0};
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (int objects = 0; objects < 2; objects++) {
            pp_buf_clear(&json);
            pp_buf_str(&json, heads[i]);
            for (int depth = 0; depth < 1000000; depth++)
                pp_buf_str(&json, objects ? "{\"a\":" : "[");
            try_bytes(json.data, json.len);
        }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        pp_buf_clear(&json);
        pp_buf_fmt(&json, "{\"added_tokens\":[{\"id\":%s,\"content\":\"x\"}],"
                   "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
                   "\"model\":{\"type\":\"WordPiece\",\"max_input_chars_per_word\":%s,\"vocab\":{\"a\":0}}}",
                   numbers[i], numbers[i]);
        try_bytes(json.data, json.len);
        pp_buf_clear(&json);
        pp_buf_fmt(&json,
                   "{\"model\":{\"type\":\"Unigram\",\"unk_id\":%s,\"vocab\":[[\"a\",%s],[\"ab\",-1]]}}", numbers[i],
                   numbers[i]);
        try_bytes(json.data, json.len);
    }
    pp_buf_free(&json);
}

/* White space that several tokens take is not searched again for each of them. */
static void long_white_space(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":2,\"content\":\"  \",\"rstrip\":true},{\"id\":3,\"content\":\"\\t\"},"
        "{\"id\":4,\"content\":\"\\n\",\"lstrip\":true,\"rstrip\":true}],"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";
    enum { SIZE = 1 << 20 };
    struct pp_tokenizer *t;
    struct pp_error err;
    char *text = malloc(SIZE);
    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < SIZE; i++)
        text[i] = "  \t  \n"[i % 6];
    assert_ok(tok_from_json(json, strlen(json), NULL, &t, &err), err);
    int32_t *ids;
    size_t n;
    assert_ok(pp_tokenize(t, text, SIZE, PP_TOKENIZE_SPECIAL, &ids, &n, &err), err);
    assert_true(n > SIZE / 8);
    pp_free(ids);
    free(text);
    pp_tokenizer_free(t);
}

/* A text that many tokens have is looked up as fast as another. */
static void many_alike(void **state)
{
    enum { MANY = 200000, SIZE = 200000 };
    static const char *const begins[] = {
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},"
        "\"added_tokens\":[{\"id\":1,\"content\":\"b\"}",
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"ab\",-1]"};
    static const char *const ends[] = {"]}", "]}}"};
    char *text = malloc(SIZE);
    (void)state;
    assert_non_null(text);
    memset(text, 'a', SIZE);
    for (int k = 0; k < 2; k++) {
        struct pp_tokenizer *t;
        struct pp_error err;
        struct pp_buf json = {0};
        int32_t *ids;
        size_t n;
        pp_buf_str(&json, begins[k]);
        for (int i = 0; i < MANY; i++)
            pp_buf_fmt(&json, k ? ",[\"a\",-%d]" : ",{\"id\":%d,\"content\":\"a\",\"special\":true}", k ? 2 : i + 2);
        pp_buf_str(&json, ends[k]);
        assert_ok(tok_from_json(json.data, json.len, NULL, &t, &err), err);
        const uint64_t begin = pp_now_ns();
        assert_ok(pp_tokenize(t, text, SIZE, 0, &ids, &n, &err), err);
        assert_true(pp_now_ns() - begin < 5000000000u);
        assert_int_equal(n, SIZE);
        assert_int_equal(ids[7], k ? MANY + 1 : 0); /* the last, as in the library; and a word, as no control token */
        pp_free(ids);
        pp_buf_free(&json);
        pp_tokenizer_free(t);
    }
    free(text);
}

TEST_GROUP(tokenizer_json)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_library), cmocka_unit_test(going_on), cmocka_unit_test(many_normalized),
        cmocka_unit_test(spaces_before_words), cmocka_unit_test(spaces_at_the_start), cmocka_unit_test(refused),
        cmocka_unit_test(several_around),
        cmocka_unit_test(pieces), cmocka_unit_test(many_scripts), cmocka_unit_test(whole_words),
        cmocka_unit_test(no_unknown_words), cmocka_unit_test(no_unknown_pieces),
        cmocka_unit_test(spelled), cmocka_unit_test(joined),
        cmocka_unit_test(spelled_otherwise),
        cmocka_unit_test(turned),
        cmocka_unit_test(damaged), cmocka_unit_test(immense), cmocka_unit_test(long_white_space),
        cmocka_unit_test(many_alike),
    };
    return cmocka_run_group_tests_name("tokenizer_json", tests, NULL, NULL);
}
