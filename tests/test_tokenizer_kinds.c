/* test_tokenizer_kinds.c - vocabularies without merges: SentencePiece's unigrams, and WordPiece; and files that do not
 * say how text is split. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/tokenizer_internal.h"
#include "tests/gguf_file.h"
#include "tests/support.h"
#include "tests/tokenizers.h"

/* --- unigrams ------------------------------------------------------------------------------------------------- */

static void check_cases(const struct pp_tokenizer *t, const cJSON *cases)
{
    const cJSON *c;
    int n_cases = 0;
    cJSON_ArrayForEach(c, cases)
    {
        const char *text = cJSON_GetObjectItem(c, "text")->valuestring;
        const cJSON *want = cJSON_GetObjectItem(c, "ids"), *id;
        int32_t *ids;
        size_t n, i = 0;
        struct pp_error err;
        assert_ok(pp_tokenize(t, text, strlen(text), 0, &ids, &n, &err), err);
        cJSON_ArrayForEach(id, want)
        {
            if (i >= n || ids[i] != id->valueint)
                fail_msg("\"%.60s\": id %zu is %d, not %d", text, i, i < n ? ids[i] : -1, id->valueint);
            i++;
        }
        assert_int_equal(i, n);
        pp_free(ids);
        n_cases++;
    }
    assert_true(n_cases > 10);
}

/* Ids that SentencePiece 0.1.97 gives with the same models; one has a table of characters, the other byte tokens. */
static void as_sentencepiece(void **state)
{
    char *text, path[64];
    size_t size;
    struct pp_error err;
    (void)state;
    assert_ok(pp_read_file("tests/data/unigram.json", 1 << 20, &text, &size, &err), err);
    cJSON *all = cJSON_Parse(text), *one;
    int n = 0;
    cJSON_ArrayForEach(one, all)
    {
        snprintf(path, sizeof path, "tests/data/%s", cJSON_GetObjectItem(one, "model")->valuestring);
        struct pp_tokenizer *t = open_tokenizer(path), *again = through_gguf(t);
        check_cases(t, cJSON_GetObjectItem(one, "cases"));
        check_cases(again, cJSON_GetObjectItem(one, "cases"));
        assert_true(pp_tokenizer_equal(t, again, &err));
        pp_tokenizer_free(t);
        pp_tokenizer_free(again);
        n++;
    }
    assert_int_equal(n, 2);
    cJSON_Delete(all);
    pp_free(text);
}

static void unigrams_and_back(void **state)
{
    static const char *const texts[] = {"Shall I compare thee", "thou art 漢字 🙂 \n tab\t", "  a  b  ", "x"};
    struct pp_tokenizer *t = open_tokenizer("tests/data/sonnets-bytes.model");
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int32_t *ids;
        size_t n;
        struct pp_error err;
        struct pp_buf back = {0};
        assert_ok(pp_tokenize(t, texts[i], strlen(texts[i]), 0, &ids, &n, &err), err);
        pp_detokenize(t, ids, n, false, &back);
        assert_string_equal(pp_buf_cstr(&back), texts[i]);
        pp_buf_free(&back);
        pp_free(ids);
    }
    pp_tokenizer_free(t);
}

/* Leading spaces are removed after BOS, too. */
static void unigrams_behind_bos(void **state)
{
    struct pp_tokenizer *t = open_tokenizer("tests/data/sonnets-unigram.model");
    int32_t *ids[2];
    size_t n[2];
    struct pp_error err;
    (void)state;
    assert_true(t->squeeze);
    t->add_bos = true;
    t->bos = t->lead[0] = t->eos;
    t->n_lead = 1;
    static const char *const texts[] = {"thou art", "  thou art"};
    for (int i = 0; i < 2; i++)
        assert_ok(pp_tokenize(t, texts[i], strlen(texts[i]), PP_TOKENIZE_BOS, &ids[i], &n[i], &err), err);
    assert_int_equal(ids[0][0], t->bos);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(ids[0], ids[1], n[0] * sizeof *ids[0]);
    pp_free(ids[0]);
    pp_free(ids[1]);
    pp_tokenizer_free(t);
}

/* The same vocabulary written as a tokenizer.json. */
static void unigrams_in_json(void **state)
{
    static const char json[] =
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Replace\","
        "\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}]},"
        "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"add_prefix_space\":true},"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},"
        "{\"SpecialToken\":{\"id\":\"</s>\"}}]},"
        "\"added_tokens\":[{\"id\":1,\"content\":\"</s>\",\"special\":true}],"
        "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"</s>\",0],[\"\xe2\x96\x81\",-3],"
        "[\"\xe2\x96\x81" "a\",-2],[\"b\",-4],[\"ab\",-5.5],[\"\xe2\x96\x81" "ab\",-9],[\"bb\",-7.9]]}}";
    static const char *const bad[] = {
        "{\"model\":{\"type\":\"Unigram\"}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":{}}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}",
        "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[1,2]]}}",
        "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"*\"},\"model\":{\"type\":\"Unigram\","
        "\"vocab\":[[\"a\",0]]}}",
        "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"},"
        "\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}",
    };
    struct pp_tokenizer *t, *again;
    struct pp_error err;
    (void)state;
    assert_ok(tok_from_json(json, strlen(json), NULL, &t, &err), err);
    again = through_gguf(t);
    const struct pp_tokenizer *both[] = {t, again};
    for (int i = 0; i < 2; i++) {
        expect_tokens(both[i], "ab", 0, " a|b");               /* -6, where " ab" is -9 and " ", "ab" -8.5 */
        expect_tokens(both[i], "  a   bb ", 0, " a| |bb| ");   /* "bb" is better than twice "b" */
        expect_tokens(both[i], "axxb", 0, " a|<unk>|b");       /* a single unknown token for both letters */
        expect_tokens(both[i], "a", PP_TOKENIZE_BOS, " a|</s>");
        expect_tokens(both[i], "", 0, "");
    }
    pp_tokenizer_free(t);
    pp_tokenizer_free(again);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tok_from_json(bad[i], strlen(bad[i]), NULL, &t, &err), PP_ERR_FORMAT);
        assert_null(t);
    }
}

/* A model with user-defined tokens after its own, as a protobuf file: "(" and "1", or others with signs for spaces. */
static struct pp_tokenizer *with_user_defined(const char *model, bool spaced)
{
    static const char *const sets[2][5] = {{"(", "1", NULL}, {TOK_SPACE TOK_SPACE, "hth", TOK_SPACE "(a",
                                                              "a" TOK_SPACE "b", NULL}};
    char path[256], *data;
    size_t n;
    struct pp_error err;
    struct pp_buf out = {0};
    assert_ok(pp_read_file(model, 1 << 20, &data, &n, &err), err);
    pp_buf_add(&out, data, n);
    for (const char *const *text = sets[spaced]; *text; text++) {
        const int len = (int)strlen(*text);
        pp_buf_fmt(&out, "\x0a%c\x0a%c%s\x18\x04", len + 4, len, *text);
    }
    snprintf(path, sizeof path, "%s/user-defined.model", test_tmpdir());
    assert_ok(pp_write_file(path, out.data, out.len, 0600, &err), err);
    pp_buf_free(&out);
    pp_free(data);
    return open_tokenizer(path);
}

/* Ids that SentencePiece 0.1.97 gives: the space in front of the text is there before such a token, too; what
 * normalising makes of the text can be one; and a sign for a space that the text itself has goes from its end. */
static void user_defined_as_sentencepiece(void **state)
{
    static const struct {
        const char *model, *text;
        int32_t ids[6];
    } cases[] = {
        {"unigram", "(a", {3, 400, 11, -1}},           {"unigram", "  (a", {3, 400, 11, -1}},
        {"unigram", "a(b th", {29, 400, 78, 90, -1}},  {"unigram", "(\xe2\x91\xa0", {3, 400, 401, -1}},
        {"unigram", "thou \xe2\x91\xa0 1", {27, 3, 401, 3, 401, -1}},
        {"unigram", "art \xe2\x96\x81 \xe2\x96\x81", {117, -1}},
        {"bytes", "(a", {259, 600, 290, -1}},          {"bytes", " (a", {259, 259, 600, 290, -1}},
        {"bytes", "a(b th", {287, 600, 389, 394, -1}}, {"bytes", "art\xe2\x96\x81", {355, 259, -1}},
    }, spaced[] = {
        {"unigram", "(a", {402, -1}},                  {"unigram", "  (a", {402, -1}},
        {"unigram", "a  b", {3, 403, -1}},             {"unigram", "a (a hth", {29, 402, 3, 401, -1}},
        {"unigram", "aa b b", {29, 403, 37, -1}},      {"unigram", TOK_SPACE TOK_SPACE "a", {400, 29, -1}},
        {"unigram", "thththth", {3, 6, 401, 6, 401, -1}},
        {"unigram", "   ", {-1}},                      {"unigram", "\xe2\x91\xa0hth", {3, 0, 401, -1}},
        {"bytes", "(a", {602, -1}},                    {"bytes", "  (a", {600, 602, -1}},
        {"bytes", "a  b", {287, 600, 389, -1}},        {"bytes", "a (a hth", {287, 602, 259, 601, -1}},
        {"bytes", "aa b b", {287, 603, 308, -1}},      {"bytes", TOK_SPACE TOK_SPACE "a", {600, 287, -1}},
        {"bytes", "thththth", {259, 262, 601, 262, 601, -1}},
        {"bytes", "   ", {600, 600, -1}},              {"bytes", " art  ", {259, 355, 600, -1}},
    };
    enum { N_CASES = sizeof cases / sizeof *cases, N_SPACED = sizeof spaced / sizeof *spaced };
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < N_CASES + N_SPACED; i++) {
        char path[64];
        const bool late = i >= N_CASES;
        const char *model = late ? spaced[i - N_CASES].model : cases[i].model;
        const char *text = late ? spaced[i - N_CASES].text : cases[i].text;
        const int32_t *wanted = late ? spaced[i - N_CASES].ids : cases[i].ids;
        snprintf(path, sizeof path, "tests/data/sonnets-%s.model", model);
        struct pp_tokenizer *t = with_user_defined(path, late), *both[] = {t, through_gguf(t)};
        for (int k = 0; k < 2; k++) {
            int32_t *ids;
            size_t n = 0, want = 0;
            assert_ok(pp_tokenize(both[k], text, strlen(text), 0, &ids, &n, &err), err);
            while (wanted[want] >= 0)
                want++;
            if (n != want || memcmp(ids, wanted, n * sizeof *ids) != 0)
                fail_msg("%s, \"%s\": %zu ids, of which the first is %d", path, text, n, n ? ids[0] : -1);
            struct pp_buf back = {0};
            pp_detokenize(both[k], ids, n, true, &back);
            if (strcmp(model, "bytes") == 0 && !strstr(text, TOK_SPACE)) /* this model does not squeeze spaces */
                assert_string_equal(pp_buf_cstr(&back), text);
            pp_buf_free(&back);
            pp_free(ids);
            pp_tokenizer_free(both[k]);
        }
    }
}

/* No space is shown at the beginning of a text, as in SentencePiece 0.1.97. */
static void no_space_shown(void **state)
{
    static const int32_t ids[] = {3, 3, 29, 29}; /* the token of a lone space, twice, and " a" */
    struct pp_tokenizer *t = open_tokenizer("tests/data/sonnets-unigram.model");
    struct pp_buf out = {0};
    (void)state;
    pp_detokenize(t, ids, 4, true, &out);
    assert_string_equal(pp_buf_cstr(&out), "a a");
    pp_buf_free(&out);
    pp_tokenizer_free(t);
}

/* User-defined tokens of files by other programs, and added tokens, have no space inserted before them; a folder made
 * of such a tokenizer says so. */
static void user_defined_without_space(void **state)
{
    struct pp_tokenizer *t = with_user_defined("tests/data/sonnets-bytes.model", false), *made = t, *again;
    struct pp_error err;
    char folder[256];
    (void)state;
    expect_tokens(made, "(a", 0, " |(|a");
    for (uint32_t i = 0; i < made->n_vocab; i++)
        made->flags[i] &= (uint8_t)~TOK_SPACED;
    made->flags[600] |= TOK_RSTRIP;
    t = through_gguf(made);
    pp_tokenizer_free(made);
    expect_tokens(t, "( a", 0, "(|a");
    snprintf(folder, sizeof folder, "%s/unspaced", test_tmpdir());
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_ok(pp_tokenizer_to_folder(t, folder, &err), err);
    again = open_tokenizer(folder);
    expect_tokens(again, "( a", 0, "(|a");
    expect_tokens(again, "1a", 0, "1|a");
    pp_tokenizer_free(again);
    pp_tokenizer_free(t);
}

/* The value of this key in the file that through_gguf() made; absent: false. */
static bool last_gguf_says(const char *key)
{
    struct pp_gguf *g;
    struct pp_error err;
    bool yes = false;
    assert_ok(pp_gguf_open(test_path("tok_again.gguf"), &g, &err), err);
    pp_gguf_bool(g, key, &yes);
    pp_gguf_close(g);
    return yes;
}

/* Unigrams in a tokenizer.json that splits at white space: at white space of any kind, and also before an added token.
 * Scores of words are then computed word by word, in double precision; of equally good segmentations the first one
 * wins. */
static void unigrams_between_white_space(void **state)
{
    static const char json[] =
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},"
        "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}]},"
        "\"added_tokens\":[{\"id\":1,\"content\":\"</s>\",\"special\":true}],"
        "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"</s>\",0],[\"\xe2\x96\x81\",-3],"
        "[\"\xe2\x96\x81" "a\",-2],[\"b\",-4]]}}";
    static const char ties[] =
        "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"never\"},"
        "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-5.1],[\"aa\",-0.3]]}}";
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    assert_ok(tok_from_json(json, strlen(json), NULL, &t, &err), err);
    struct pp_tokenizer *both[] = {t, through_gguf(t)};
    assert_true(last_gguf_says("tokenizer.ggml.remove_extra_whitespaces")); /* the equivalent that other programs
                                                                               know */
    for (int i = 0; i < 2; i++) {
        expect_tokens(both[i], "\ta\t \nb\xc2\x85" "a\xe3\x80\x80", 0, " a| |b| a");
        expect_tokens(both[i], " \n", 0, "");
        expect_tokens(both[i], "a </s> b", PP_TOKENIZE_SPECIAL, " a|</s>| |b");
        expect_tokens(both[i], "\xe2\x96\x81" "a \xe2\x96\x81" "a", 0, " a| a");
        pp_tokenizer_free(both[i]);
    }
    assert_ok(tok_from_json(ties, strlen(ties), NULL, &t, &err), err);
    char folder[256];
    snprintf(folder, sizeof folder, "%s/tied", test_tmpdir());
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(pp_tokenizer_to_folder(t, folder, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "scores"));
    struct pp_tokenizer *tied[] = {t, through_gguf(t)};
    for (int i = 0; i < 2; i++) {
        expect_tokens(tied[i], "aaa", 0, "a|aa");
        pp_tokenizer_free(tied[i]);
    }
}

/* Byte-level vocabularies without a token for each byte. */
static void unknown_bytes(void **state)
{
    static const struct {
        const char *unk, *want;
    } cases[] = {
        {"\"unk_token\":null,\"fuse_unk\":false", "ab|a"},
        {"\"unk_token\":\"<unk>\",\"fuse_unk\":false", "ab|<unk>|<unk>|a|<unk>"},
        {"\"unk_token\":\"<unk>\",\"fuse_unk\":true", "ab|<unk>|a|<unk>"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[512], folder[256];
        struct pp_tokenizer *t, *again;
        struct pp_error err;
        snprintf(json, sizeof json, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                 "\"use_regex\":true},\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true}],"
                 "\"model\":{\"type\":\"BPE\",%s,\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"ab\":3},"
                 "\"merges\":[\"a b\"]}}", cases[i].unk);
        assert_ok(tok_from_json(json, strlen(json), NULL, &t, &err), err);
        again = through_gguf(t);
        expect_tokens(t, "abxya\n", 0, cases[i].want);
        expect_tokens(again, "abxya\n", 0, cases[i].want);
        pp_tokenizer_free(again);
        snprintf(folder, sizeof folder, "%s/unknown-%zu", test_tmpdir(), i);
        assert_int_equal(mkdir(folder, 0700), 0);
        assert_ok(pp_tokenizer_to_folder(t, folder, &err), err);
        again = open_tokenizer(folder);
        expect_tokens(again, "abxya\n", 0, cases[i].want);
        pp_tokenizer_free(again);
        pp_tokenizer_free(t);
    }
}

/* A damaged table of characters is refused, or at least read within its bounds. */
static void hostile_charsmaps(void **state)
{
    static const char text[] = "the ﬁre of Ａ① \t ü\xff e\xcc\x81";
    struct pp_tokenizer *t = open_tokenizer("tests/data/sonnets-unigram.model");
    struct pp_buf out = {0};
    uint32_t random = 1;
    (void)state;
    assert_true(t->charsmap_len > 100);
    char *map = t->charsmap;
    for (int round = 0; round < 2000; round++) {
        char *copy = pp_malloc(t->charsmap_len); /* a copy of exactly that size, so that the sanitizers notice any read
                                                    past its end */
        memcpy(copy, map, t->charsmap_len);
        for (int i = 0; i < 4; i++, random = random * 1664525u + 1013904223u)
            copy[(random >> 8) % t->charsmap_len] = (char)random;
        if (tok_charsmap_check((struct pp_str){copy, t->charsmap_len}, NULL) == PP_OK) {
            t->charsmap = copy;
            pp_buf_clear(&out);
            tok_normalize(t, text, sizeof text - 1, true, true, &out);
        }
        pp_free(copy);
    }
    t->charsmap = map;
    for (size_t n = 0; n < 8; n++)
        assert_int_equal(tok_charsmap_check((struct pp_str){"\x04\0\0\0\0\0\0\0", n}, NULL), PP_ERR_FORMAT);
    pp_buf_free(&out);
    pp_tokenizer_free(t);
}

/* --- WordPiece ------------------------------------------------------------------------------------------------ */

#define BERT(flags)                                                                                        \
    "{\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true," flags  \
    "},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"added_tokens\":["                                  \
    "{\"id\":0,\"content\":\"[UNK]\",\"special\":true},{\"id\":1,\"content\":\"[CLS]\",\"special\":true},"      \
    "{\"id\":2,\"content\":\"[SEP]\",\"special\":true}],"                                                     \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"[CLS]\"}},"    \
    "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"[SEP]\"}}]},"                                  \
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,"  \
    "\"un\":3,\"##want\":4,\"##ed\":5,\"##wanted\":6,\"run\":7,\"##n\":8,\"##ing\":9,\",\":10,"                  \
    "\"\xe6\xbc\xa2\":11,\"cafe\":12,\"u\":13,\"Run\":14,\"caf\xc3\xa9\":15,\"=\":16,\"a\":17,\"##a\":18}}}"

static void wordpieces(void **state)
{
    static const char lower[] = BERT("\"lowercase\":true"), cased[] = BERT("\"lowercase\":false");
    struct pp_tokenizer *t, *again;
    struct pp_error err;
    (void)state;
    assert_ok(tok_from_json(lower, strlen(lower), NULL, &t, &err), err);
    again = through_gguf(t);
    const struct pp_tokenizer *both[] = {t, again};
    for (int i = 0; i < 2; i++) {
        expect_tokens(both[i], "unwanted running", 0, " un|wanted| run|n|ing");
        expect_tokens(both[i], "UNWANTED,Running", PP_TOKENIZE_BOS, "[CLS]| un|wanted|,| run|n|ing|[SEP]");
        expect_tokens(both[i], "\tCAF\xc3\x89 cafe\xcc\x81\n", 0, " cafe| cafe");
        expect_tokens(both[i], "run\xe6\xbc\xa2run", 0, " run| \xe6\xbc\xa2| run");
        expect_tokens(both[i], "runx run", 0, "[UNK]| run"); /* [UNK] stands for the whole word */
        expect_tokens(both[i], "u\xe2\x89\xa0u", 0, " u| =| u"); /* U+2260 loses its stroke; = is a token by itself */
        expect_tokens(both[i], "ru\xc2\xadn", 0, " run"); /* soft hyphens are dropped */
        expect_tokens(both[i], "ru\xee\x80\x80n r\vu\x1c\xc2\x85n", 0, " run| run"); /* so are private-use and control
                                                                                        characters */
        expect_tokens(both[i], "u\xe2\x80\xa8u\xe2\x80\xa9u\ru", 0, " u| u| u| u"); /* line and paragraph separators
                                                                                       count as spaces */
        expect_tokens(both[i], "", PP_TOKENIZE_BOS, "[CLS]|[SEP]");
        expect_tokens(both[i], "a[SEP]a", PP_TOKENIZE_SPECIAL, " a|[SEP]| a");
        char word[128];
        memset(word, 'a', sizeof word);
        word[100] = 0;
        int32_t *ids;
        size_t n;
        assert_ok(pp_tokenize(both[i], word, 100, 0, &ids, &n, &err), err);
        assert_int_equal(n, 100);
        pp_free(ids);
        word[100] = 'a';
        word[101] = 0;
        expect_tokens(both[i], word, 0, "[UNK]");
    }
    pp_tokenizer_free(t);
    pp_tokenizer_free(again);
    assert_ok(tok_from_json(cased, strlen(cased), NULL, &t, &err), err);
    again = through_gguf(t);
    expect_tokens(t, "Run caf\xc3\xa9", 0, " Run| caf\xc3\xa9");
    expect_tokens(again, "Run caf\xc3\xa9", 0, " Run| caf\xc3\xa9");
    pp_tokenizer_free(t);
    pp_tokenizer_free(again);
}

/* --- RWKV ----------------------------------------------------------------------------------------------------- */

/* Literals in either kind of quotes, of characters and of bytes; and the same from a GGUF file, and a folder. */
static void rwkv(void **state)
{
    static const char lines[] = "1 '\\x00' 1\n2 '\\n' 1\n3 'a' 1\n4 \"'\" 1\n5 ' a' 2\n6 'ab' 2\n7 'abcd' 4\n8 'c' 1\n"
                                "9 b'\\xe6\\xbc' 2\n10 '\xe6\xbc\xa2' 3\n11 '\\n\\n' 2\n12 '\\u3000' 3\n13 '\\xa0' 2\n"
                                "14 '\\\\' 1\n15 b'\\xff' 1\n16 ' ' 1\n17 'b' 1\n18 'd' 1\n20 '\"' 1\n";
    static const char text[] = "abcab c\\\"' a\xe6\xbc\xa2\xe6\xbc\xff\n\n\n\xe3\x80\x80\xc2\xa0";
    static const int32_t want[] = {6, 8, 6, 16, 8, 14, 20, 4, 5, 10, 9, 15, 11, 2, 12, 13};
    char folder[300];
    struct pp_tokenizer *t[3];
    struct pp_error err;
    (void)state;
    assert_true(tok_is_rwkv(lines, sizeof lines - 1));
    assert_ok(tok_from_rwkv(lines, sizeof lines - 1, &t[0], &err), err);
    t[1] = through_gguf(t[0]);
    snprintf(folder, sizeof folder, "%s/rwkv-tokenizer", test_tmpdir());
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_ok(pp_tokenizer_to_folder(t[0], folder, &err), err);
    t[2] = open_tokenizer(folder);
    struct pp_tokenizer *other = open_tokenizer("tests/data/sonnets-unigram.model");
    assert_false(pp_tokenizer_equal(t[0], other, &err));
    assert_string_equal(err.text, "one tokenizer is RWKV's, the other SentencePiece unigram");
    pp_tokenizer_free(other);
    for (int i = 0; i < 3; i++) {
        struct pp_buf back = {0};
        int32_t *ids;
        size_t n;
        assert_ok(pp_tokenize(t[i], text, sizeof text - 1, PP_TOKENIZE_BOS, &ids, &n, &err), err);
        assert_int_equal(n, sizeof want / sizeof *want);
        assert_memory_equal(ids, want, sizeof want);
        pp_detokenize(t[i], ids, n, false, &back);
        assert_string_equal(pp_buf_cstr(&back), text);
        assert_true(pp_tokenizer_is_end(t[i], 0) && pp_tokenizer_is_end(t[i], 11) && !pp_tokenizer_is_end(t[i], 2));
        expect_tokens(t[i], "a<s>x", PP_TOKENIZE_SPECIAL, "a|<s>"); /* x has no token and is dropped */
        pp_free(ids);
        pp_buf_free(&back);
        pp_tokenizer_free(t[i]);
    }
    static const char *const bad[] = {"1 'a' 2\n", "1 'a 1\n", "0 'a' 1\n", "9999999999 'a' 1\n", "1 '\\xq0' 1\n",
                                      "1 '' 0\n", "1 'a'\n", "1 '\\' 1\n", "1 '\\ud800' 3\n", "x 'a' 1\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tok_from_rwkv(bad[i], strlen(bad[i]), &t[0], &err), PP_ERR_FORMAT);
    enum pp_code code = PP_ERR_NOMEM;
    for (uint64_t nth = 1; code == PP_ERR_NOMEM; nth++) {
        pp_mem_fail_at(nth, 0);
        code = tok_from_rwkv(lines, sizeof lines - 1, &t[0], NULL); /* NULL: no error text is wanted */
        pp_mem_fail_at(0, 0);
    }
    assert_int_equal(code, PP_OK);
    pp_tokenizer_free(t[0]);
}

/* Long inputs of one letter stay linear. */
static void long_words(void **state)
{
    const size_t n = 1 << 20;
    char *text = pp_malloc(n);
    struct pp_tokenizer *t = open_tokenizer("tests/data/sonnets-unigram.model");
    int32_t *ids;
    size_t n_ids;
    struct pp_error err;
    (void)state;
    memset(text, 'a', n);
    uint64_t begin = pp_now_ns();
    assert_ok(pp_tokenize(t, text, n, 0, &ids, &n_ids, &err), err);
    assert_true(n_ids > n / 16);
    assert_true(pp_now_ns() - begin < 20000000000u);
    pp_free(ids);
    pp_free(text);
    pp_tokenizer_free(t);
}

/* --- files that do not say it ----------------------------------------------------------------------------------- */

/* A vocabulary of ten digits, a few letters, merges of them, and many other tokens. pre NULL: the file does not name a
 * split rule. */
static const char *digits_file(const char *family, const char *pre, bool llama3)
{
    enum { EOT = 128009 };
    enum { MERGES = 5 };
    static const char *const merges[MERGES] = {"1 2", "12 3", "123 4", "a B", "! a"};
    static const char *const more[] = {"12", "123", "1234", "aB", "!a", "a", "B", "!"};
    struct pp_str list[MERGES], *tokens = pp_calloc(EOT + 1, sizeof *tokens);
    char (*names)[16] = pp_calloc(EOT + 1, sizeof *names);
    const size_t n = llama3 ? EOT + 1 : 32;
    const char *path = test_path("digits.gguf");
    assert_true(tokens && names);
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], i < 10 ? "%zu" : "t%zu", i);
        tokens[i] = (struct pp_str){names[i], strlen(names[i])};
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        tokens[10 + i] = (struct pp_str){more[i], strlen(more[i])};
    for (size_t i = 0; i < MERGES; i++)
        list[i] = (struct pp_str){merges[i], strlen(merges[i])};
    if (llama3)
        tokens[EOT] = (struct pp_str){"<|eot_id|>", 10};
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.architecture", family);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "gpt2");
    if (pre)
        pp_gguf_add_text(w, "tokenizer.ggml.pre", pre);
    pp_gguf_add_str_array(w, "tokenizer.ggml.tokens", tokens, n);
    pp_gguf_add_str_array(w, "tokenizer.ggml.merges", list, MERGES);
    pp_gguf_add_i32_array(w, "tokenizer.ggml.eos_token_ids", (const int32_t[]){20, 21}, 2);
    gguf_file_end(w, NULL, 0);
    pp_free(tokens);
    pp_free(names);
    return path;
}

static void usual_splits(void **state)
{
    static const struct {
        const char *family, *pre;
        bool llama3;
        const char *want;
    } cases[] = {
        {"gptoss", NULL, false, "123|4|a|B|!a"},
        {"gptoss", "default", false, "123|4|a|B|!a"},
        {"mistral3", "default", false, "1|2|3|4|a|B|!a"},
        {"mistral3", "gpt-4o", false, "123|4|a|B|!a"},
        {"llama", NULL, true, "123|4|aB|!a"},
        {"llama", "default", false, "123|4|aB|!|a"},
        {"qwen2", NULL, true, "123|4|aB|!|a"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_tokenizer *t = open_tokenizer(digits_file(cases[i].family, cases[i].pre, cases[i].llama3));
        expect_tokens(t, "1234aB!a", 0, cases[i].want);
        assert_true(pp_tokenizer_is_end(t, 20) && pp_tokenizer_is_end(t, 21) && !pp_tokenizer_is_end(t, 22));
        pp_tokenizer_free(t);
    }
}

/* SentencePiece vocabularies whose merges are ranked by a list: Gemma 4's, for which files have a model name of their
 * own, and files that say so by the split rule. */
static void check_ranked(const char *model, const char *pre)
{
    static const char *const texts[] = {"<unk>", "\xe2\x96\x81", "a", "b", "ab", "\xe2\x96\x81" "a", "\n", "\n\n",
                                        "ba", "<0x21>"};
    static const char *const merges[] = {"\n \n", "b a", "a b", "\xe2\x96\x81 a"};
    enum { TOKENS = sizeof texts / sizeof *texts, RANKS = sizeof merges / sizeof *merges };
    struct pp_str tokens[TOKENS], list[RANKS];
    char path[256];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (struct pp_str){texts[i], strlen(texts[i])};
    for (int i = 0; i < RANKS; i++)
        list[i] = (struct pp_str){merges[i], strlen(merges[i])};
    snprintf(path, sizeof path, "%s/ranked.gguf", test_tmpdir());
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.architecture", "llama");
    pp_gguf_add_text(w, "tokenizer.ggml.model", model);
    pp_gguf_add_text(w, "tokenizer.ggml.pre", pre);
    pp_gguf_add_str_array(w, "tokenizer.ggml.tokens", tokens, TOKENS);
    pp_gguf_add_str_array(w, "tokenizer.ggml.merges", list, RANKS);
    pp_gguf_add_bool(w, "tokenizer.ggml.add_bos_token", false);
    gguf_file_end(w, NULL, 0);
    struct pp_tokenizer *t = open_tokenizer(path);
    expect_tokens(t, "aba", 0, "a|ba");
    expect_tokens(t, " a\n\nab!", 0, " a|\n\n|ab|!");
    pp_tokenizer_free(t);
}

static void ranked(void **state)
{
    (void)state;
    check_ranked("gemma4", "default");
    check_ranked("gpt2", "granite-embed-multi-311m");
    check_ranked("llama", "gemma4");
    check_ranked("gpt2", "sarvam-moe");
}

/* A file with a vocabulary of this kind, whose tokens are all ordinary ones. */
static struct pp_gguf_writer *kind_file(const char *path, const char *kind, const struct pp_str *tokens, size_t n)
{
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.architecture", "llama");
    pp_gguf_add_text(w, "tokenizer.ggml.model", kind);
    pp_gguf_add_str_array(w, "tokenizer.ggml.tokens", tokens, n);
    return w;
}

/* The message lists the supported kinds. */
static void missing_kinds(void **state)
{
    const struct pp_str token = {"a", 1};
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    gguf_file_end(kind_file(test_path("kind.gguf"), "odd", &token, 1), NULL, 0);
    assert_int_equal(pp_tokenizer_open(test_path("kind.gguf"), &t, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "pippin knows"));
}

#define TOKEN(text) {text, sizeof text - 1}

/* White space is dropped, and so are characters without a token; a file may ask for lower case. */
static void words_of_characters(void **state)
{
    static const struct pp_str tokens[] = {TOKEN("a"), TOKEN("b"), TOKEN("ab"), TOKEN("\u00e9"), TOKEN("B")};
    static const struct pp_str merge = TOKEN("a b");
    (void)state;
    for (int small = 0; small < 2; small++) {
        struct pp_gguf_writer *w = kind_file(test_path("kind.gguf"), "whitespace", tokens, 5);
        pp_gguf_add_str_array(w, "tokenizer.ggml.merges", &merge, 1);
        if (small)
            pp_gguf_add_bool(w, "tokenizer.ggml.normalizer.lowercase", true);
        gguf_file_end(w, NULL, 0);
        struct pp_tokenizer *t = open_tokenizer(test_path("kind.gguf"));
        struct pp_tokenizer *both[] = {t, through_gguf(t)};
        for (int i = 0; i < 2; i++) {
            expect_tokens(both[i], " ab\tba\u3000aB\n\u00c9.", 0, small ? "ab|b|a|ab|\u00e9" : "ab|b|a|a|B");
            expect_tokens(both[i], " \n", 0, "");
            if (i == 0) { /* also through a folder */
                struct pp_error err;
                assert_ok(pp_tokenizer_to_folder(t, test_tmpdir(), &err), err);
                struct pp_tokenizer *third = open_tokenizer(test_tmpdir());
                expect_tokens(third, " ab\tba\u3000aB\n\u00c9.", 0, small ? "ab|b|a|ab|\u00e9" : "ab|b|a|a|B");
                pp_tokenizer_free(third);
            }
            pp_tokenizer_free(both[i]);
        }
    }
}

/* A split rule that cannot be read is an error: it is never guessed. */
static void bad_patterns(void **state)
{
    static const struct pp_str tokens[] = {TOKEN("a"), TOKEN("b"), TOKEN("ab")};
    static const struct pp_str merge = TOKEN("a b");
    static const char *const kinds[] = {"gpt2", "whitespace"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct pp_gguf_writer *w = kind_file(test_path("kind.gguf"), kinds[i / 2], tokens, 3);
        struct pp_tokenizer *t;
        struct pp_error err;
        pp_gguf_add_str_array(w, "tokenizer.ggml.merges", &merge, 1);
        if (i % 2)
            pp_gguf_add_text(w, "pippin.tokenizer.split", "\\S+");
        else
            pp_gguf_add_i32_array(w, "pippin.tokenizer.split", (const int32_t[]){1}, 1);
        gguf_file_end(w, NULL, 0);
        assert_int_equal(pp_tokenizer_open(test_path("kind.gguf"), &t, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "pippin.tokenizer.split is not a list"));
    }
}

static void dna(void **state)
{
    static const struct pp_str tokens[] = {TOKEN("C"), TOKEN("\u0120"), TOKEN("CC"), TOKEN("<dna>"), TOKEN("</dna>"),
        TOKEN("<oov>"), TOKEN("CCCCCC\ue000"), TOKEN("CAAAAA\ue000"), TOKEN("\u0120CC"), TOKEN("CCCCCC")};
    static const struct pp_str merges[] = {TOKEN("C C")};
    static const struct {
        const char *text;
        int32_t ids[10];
        size_t n;
    } cases[] = {
        {"CC C<dna>cccCCCC</dna> CC", {2, 1, 0, 3, 6, 7, 4, 1, 2}, 9},
        {"<dna>CCCCCNx", {3, 5, 5}, 3}, {"<dna></dna>C", {3, 4, 0}, 3}, {"<dna>", {3}, 1}, {"CCCCCC", {2, 2, 2}, 3},
    };
    struct pp_gguf_writer *w = kind_file(test_path("kind.gguf"), "hybriddna", tokens, sizeof tokens / sizeof *tokens);
    struct pp_buf out = {0};
    struct pp_error err;
    (void)state;
    pp_gguf_add_str_array(w, "tokenizer.ggml.merges", merges, 1);
    pp_gguf_add_text(w, "tokenizer.ggml.pre", "gpt-2");
    gguf_file_end(w, NULL, 0);
    struct pp_tokenizer *t = open_tokenizer(test_path("kind.gguf"));
    struct pp_tokenizer *both[] = {t, through_gguf(t)};
    /* a tokenizer.json cannot express that the letters between <dna> tags are split differently */
    assert_int_equal(pp_tokenizer_to_folder(t, test_tmpdir(), &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "hybriddna"));
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            int32_t *ids;
            size_t n;
            assert_ok(pp_tokenize(both[i], cases[k].text, strlen(cases[k].text), 0, &ids, &n, &err), err);
            assert_int_equal(n, cases[k].n);
            assert_memory_equal(ids, cases[k].ids, n * sizeof *ids);
            pp_free(ids);
        }
        pp_buf_clear(&out);
        pp_detokenize(both[i], cases[0].ids, cases[0].n, false, &out);
        assert_string_equal(pp_buf_cstr(&out), "CC C<dna>CCCCCCCAAAAA</dna> CC"); /* letters appear as their tokens have
                                                                                     them, padded with A */
        pp_tokenizer_free(both[i]);
    }
    pp_buf_free(&out);
}

/* Lower-casing and accents of WordPiece, as newer files specify them. */
static void cased_words(void **state)
{
    static const struct pp_str tokens[] = {TOKEN("[UNK]"), TOKEN("\u2581" "a"), TOKEN("\u2581" "A"),
                                           TOKEN("\u2581\u00c1")};
    static const char *const want[][2] = {{"lowercase", " \u00c1| A"}, {"strip_accents", "[UNK]| a"}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char key[64];
        struct pp_gguf_writer *w = kind_file(test_path("kind.gguf"), "bert", tokens, 4);
        snprintf(key, sizeof key, "tokenizer.ggml.normalizer.%s", want[i][0]);
        pp_gguf_add_bool(w, key, false);
        pp_gguf_add_u32(w, "tokenizer.ggml.unknown_token_id", 0);
        gguf_file_end(w, NULL, 0);
        struct pp_tokenizer *t = open_tokenizer(test_path("kind.gguf")), *again = through_gguf(t);
        expect_tokens(t, "\u00c1 A", 0, want[i][1]);
        expect_tokens(again, "\u00c1 A", 0, want[i][1]);
        pp_tokenizer_free(t);
        pp_tokenizer_free(again);
    }
}

/* White space before the mask token is removed, if the split rule, the family or the model's name implies that. */
static void masks(void **state)
{
    static const struct {
        const char *family, *pre, *name, *mask;
        bool strips;
    } cases[] = {
        {"bert", "jina-v2-code", "x", "<mask>", true},
        {"nomic-bert-moe", "gpt-2", "x", "<mask>", true},
        {"bert", "gpt-2", "Modern-BERT base", "[MASK]", true},
        {"bert", "gpt-2", "x", "<mask>", false},
    };
    static const int32_t types[] = {TOK_NORMAL, TOK_NORMAL, TOK_CONTROL};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct pp_str tokens[] = {{"a", 1}, {"\xc4\xa0", 2}, {cases[i].mask, 6}}; /* U+0120 is how byte-level
                                                                                           vocabularies write a space */
        const char *path = test_path("mask.gguf");
        struct pp_gguf_writer *w = gguf_file_begin(path);
        pp_gguf_add_text(w, "general.architecture", cases[i].family);
        pp_gguf_add_text(w, "general.name", cases[i].name);
        pp_gguf_add_text(w, "tokenizer.ggml.model", "gpt2");
        pp_gguf_add_text(w, "tokenizer.ggml.pre", cases[i].pre);
        pp_gguf_add_str_array(w, "tokenizer.ggml.tokens", tokens, 3);
        pp_gguf_add_i32_array(w, "tokenizer.ggml.token_type", types, 3);
        pp_gguf_add_str_array(w, "tokenizer.ggml.merges", tokens, 0);
        gguf_file_end(w, NULL, 0);
        struct pp_tokenizer *t = open_tokenizer(path);
        char text[32], want[32];
        snprintf(text, sizeof text, "a %s a", cases[i].mask);
        snprintf(want, sizeof want, cases[i].strips ? "a|%s| |a" : "a| |%s| |a", cases[i].mask);
        expect_tokens(t, text, PP_TOKENIZE_SPECIAL, want);
        pp_tokenizer_free(t);
    }
}

TEST_GROUP(tokenizer_kinds)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_sentencepiece), cmocka_unit_test(unigrams_and_back), cmocka_unit_test(unigrams_behind_bos),
        cmocka_unit_test(unigrams_in_json),
        cmocka_unit_test(user_defined_as_sentencepiece),
        cmocka_unit_test(no_space_shown), cmocka_unit_test(user_defined_without_space),
        cmocka_unit_test(unigrams_between_white_space),
        cmocka_unit_test(unknown_bytes),
        cmocka_unit_test(hostile_charsmaps), cmocka_unit_test(wordpieces), cmocka_unit_test(rwkv),
        cmocka_unit_test(long_words),
        cmocka_unit_test(usual_splits), cmocka_unit_test(ranked),
        cmocka_unit_test(missing_kinds),
        cmocka_unit_test(words_of_characters), cmocka_unit_test(bad_patterns), cmocka_unit_test(dna),
        cmocka_unit_test(cased_words), cmocka_unit_test(masks),
    };
    return cmocka_run_group_tests_name("tokenizer_kinds", tests, NULL, NULL);
}
