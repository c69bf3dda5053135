/* test_tokenizer_vocab.c - folders whose vocabulary says little of itself: vocab.json and merges.txt, vocab.txt, and
 * SentencePiece's under other names. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text.h"
#include "engine/tokenizer_internal.h"
#include "tests/support.h"
#include "tests/tokenizers.h"

static char folder[300];

static void put(const char *name, const char *text, size_t n)
{
    struct pp_error err;
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(pp_write_file(path, text, n, 0600, &err), err);
}

static void put_text(const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
    if (text)
        put(name, text, strlen(text));
}

static void new_folder(const char *name)
{
    snprintf(folder, sizeof folder, "%s/%s", test_tmpdir(), name);
    assert_int_equal(mkdir(folder, 0700), 0);
}

/* All bytes, and more tokens, from 256 on, some of which GPT-2, RoBERTa or Qwen have. */
static void put_bytes(const char *more)
{
    struct pp_buf json = {0};
    pp_buf_str(&json, "{");
    for (unsigned byte = 0; byte < 256; byte++) {
        char key[5] = {0};
        pp_utf8_encode(tok_byte_to_char(byte), key);
        pp_buf_fmt(&json, "\"%s%s\":%u,", byte == '"' || byte == '\\' ? "\\" : "", key, byte);
    }
    pp_buf_fmt(&json, "\"ab\":256,\"\u0120ab\":257,%s}", more);
    assert_false(json.bad);
    put("vocab.json", json.data, json.len);
    pp_buf_free(&json);
    put_text("merges.txt", "#version: 0.2\na b\n\u0120 ab\n\n");
}

static void expect_opened(const char *text, unsigned flags, const char *want)
{
    struct pp_tokenizer *t = open_tokenizer(folder);
    expect_tokens(t, text, flags, want);
    pp_tokenizer_free(t);
}

static void merged(void **state)
{
    const unsigned all = PP_TOKENIZE_BOS | PP_TOKENIZE_SPECIAL;
    (void)state;
    new_folder("merged");
    put_bytes("\"<|endoftext|>\":258,\"<s>\":259,\"</s>\":260,\"<mask>\":261");
    /* recognised by the family or by the class, with what the files say of tokens */
    put_text("config.json", "{\"model_type\":\"gpt2\"}");
    expect_opened("ab ab12<|endoftext|>", all, "ab| ab|1|2|<|endoftext|>");
    put_text("config.json", "{\"model_type\":\"gpt2\",\"time_step_limit\":[0.0, Infinity]}"); /* as Python writes it */
    expect_opened("ab ab12<|endoftext|>", all, "ab| ab|1|2|<|endoftext|>");
    struct pp_tokenizer *t = open_tokenizer(folder);
    assert_int_equal(pp_tokenizer_bos(t), 258);
    assert_int_equal(pp_tokenizer_eos(t), 258);
    assert_false(pp_tokenizer_adds_bos(t));
    pp_tokenizer_free(t);
    put_text("config.json", "{\"model_type\":\"opt\"}");
    expect_opened("ab ab</s>", all, "</s>|ab| ab|</s>");
    put_text("config.json", "{\"model_type\":\"gpt2\"}");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_bos_token\":true,"
                                      "\"bos_token\":{\"content\":\"</s>\"}}");
    expect_opened("ab", all, "</s>|ab");
    put_text("special_tokens_map.json", "{\"eos_token\":\"<s>\",\"additional_special_tokens\":[\"<x>\"]}");
    put_text("added_tokens.json", "{\"<x>\":262,\"<y>\":263}");
    expect_opened("a<x><y><s>b", PP_TOKENIZE_SPECIAL, "a|<x>|<y>|<s>|b");
    expect_opened("a<x><y>", 0, "a|<|x|>|<y>");
    t = open_tokenizer(folder);
    assert_int_equal(pp_tokenizer_eos(t), 259);
    pp_tokenizer_free(t);
    put_text("special_tokens_map.json", NULL);
    put_text("added_tokens.json", NULL);
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"RobertaTokenizerFast\"}");
    expect_opened("ab <mask>", all, "<s>|ab|<mask>|</s>");
    /* Qwen splits digits and composes accents; GPT-NeoX composes accents */
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"Qwen2Tokenizer\"}");
    expect_opened("e\u0301", 0, "\xc3|\xa9");
    t = open_tokenizer(folder);
    assert_string_equal(t->pre, "qwen2");
    assert_int_equal(pp_tokenizer_bos(t), -1);
    pp_tokenizer_free(t);
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"GPTNeoXTokenizerFast\"}");
    expect_opened("e\u0301", 0, "\xc3|\xa9");
}

/* What tokenizer.json and tokenizer_config.json leave open about special tokens, other files of the folder tell. */
static void named_elsewhere(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":4,\"content\":\"<x>\",\"special\":true}],\"decoder\":{\"type\":\"Fuse\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"<s>\":2,\"</s>\":3,\"<x>\":4,\"!\":5,"
        "\"<\":6,\">\":7},\"merges\":[]}}";
    static const char map[] = "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\",\"lstrip\":true},"
                              "\"unk_token\":\"b\",\"pad_token\":\"!\",\"mask_token\":\"<m>\","
                              "\"additional_special_tokens\":[\"<y>\",{\"content\":\"<z>\"},7]}";
    (void)state;
    new_folder("named");
    put_text("tokenizer.json", json);
    expect_opened("a<x>!<y>", PP_TOKENIZE_SPECIAL, "a|<x>|!|<|>");
    put_text("special_tokens_map.json", map);
    put_text("added_tokens.json", "{\"<x>\":4,\"<y>\":8,\"<u>\":9,\"x\":\"y\",\"\":2}");
    expect_opened("!<y><u>b </s>qb", PP_TOKENIZE_SPECIAL, "!|<y>|<u>|b|</s>|b"); /* "q" is dropped, and not "b" */
    expect_opened("!<y>", 0, "!|<|>"); /* words may still be what is a special token */
    expect_opened("a<m><z>", PP_TOKENIZE_SPECIAL, "a|<|>|<|>");
    struct pp_tokenizer *t = open_tokenizer(folder);
    assert_int_equal(pp_tokenizer_bos(t), 2);
    assert_int_equal(pp_tokenizer_eos(t), 3);
    assert_int_equal(pp_tokenizer_n(t), 10);
    assert_int_equal(t->type[4], TOK_CONTROL); /* as tokenizer.json says */
    assert_int_equal(t->type[9], TOK_USER);
    pp_tokenizer_free(t);
    /* tokens without an id come last, but no more than the model has rows */
    put_text("config.json", "{\"vocab_size\":11}");
    expect_opened("a<m><z>", PP_TOKENIZE_SPECIAL, "a|<m>|<|>");
    put_text("config.json", "{\"vocab_size\":20}");
    expect_opened("a<m><z>", PP_TOKENIZE_SPECIAL, "a|<m>|<z>");
    /* the map wins over the configuration, but not if that lists all added tokens */
    put_text("tokenizer_config.json", "{\"eos_token\":\"a\",\"additional_special_tokens\":[\"<s>\"]}");
    t = open_tokenizer(folder);
    assert_int_equal(pp_tokenizer_eos(t), 3);
    pp_tokenizer_free(t);
    expect_opened("<s><z>", PP_TOKENIZE_SPECIAL, "<s>|<z>");
    put_text("tokenizer_config.json", "{\"eos_token\":\"a\",\"added_tokens_decoder\":{\"8\":{\"content\":\"<z>\"}}}");
    expect_opened("<s><u><z>", PP_TOKENIZE_SPECIAL, "<|>|<|>|<z>");
    t = open_tokenizer(folder);
    assert_int_equal(pp_tokenizer_bos(t), -1);
    assert_int_equal(pp_tokenizer_eos(t), 0);
    pp_tokenizer_free(t);
}

/* SentencePiece's folders have them, too. A piece may contain NUL, and is not what its beginning names. */
static void named_beside_pieces(void **state)
{
    struct pp_buf b = {0};
    (void)state;
    new_folder("named_pieces");
    put_piece(&b, "<unk>", 0, TOK_UNKNOWN);
    put_piece(&b, "<s>", 0, TOK_CONTROL);
    put_piece(&b, "</s>", 0, TOK_CONTROL);
    put_piece(&b, TOK_SPACE "a", -1, TOK_NORMAL);
    put_piece(&b, TOK_SPACE, -2, TOK_NORMAL);
    put_piece(&b, "<z?????", -3, TOK_NORMAL);
    for (size_t i = 0; i < b.len; i++)
        b.data[i] = b.data[i] == '?' ? '\0' : b.data[i];
    put("tokenizer.model", b.data, b.len);
    put_text("added_tokens.json", "{\"<|im_start|>\":6,\"<|im_end|>\":7}");
    put_text("special_tokens_map.json", "{\"eos_token\":\"<|im_end|>\",\"additional_special_tokens\":[\"<z\"]}");
    expect_opened("a<|im_end|><|im_start|>", PP_TOKENIZE_SPECIAL, " a|<|im_end|>|<|im_start|>");
    struct pp_tokenizer *t = open_tokenizer(folder);
    assert_int_equal(pp_tokenizer_eos(t), 7);
    assert_int_equal(t->type[5], TOK_NORMAL);
    assert_int_equal(t->type[6], TOK_USER);
    assert_int_equal(t->type[7], TOK_CONTROL);
    pp_tokenizer_free(t);
    pp_buf_free(&b);
}

/* Long lists take no quadratic time. */
static void many_named(void **state)
{
    enum { MANY = 60000 };
    struct pp_buf json = {0}, map = {0}, more = {0};
    (void)state;
    new_folder("many_named");
    for (int i = 0; i < MANY; i++) {
        pp_buf_fmt(&json, "%s\"t%d\":%d", i ? "," : "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{", i, i);
        pp_buf_fmt(&map, "%s\"t%d\"", i ? "," : "{\"additional_special_tokens\":[", 2 * i);
        pp_buf_fmt(&more, "%s\"u%d\":%d", i ? "," : "{", i, MANY + i);
    }
    pp_buf_str(&json, "}}}");
    pp_buf_str(&map, "]}");
    pp_buf_str(&more, "}");
    put("tokenizer.json", json.data, json.len);
    put("special_tokens_map.json", map.data, map.len);
    put("added_tokens.json", more.data, more.len);
    put_text("config.json", "{\"vocab_size\":180000}");
    const uint64_t begin = pp_now_ns();
    struct pp_tokenizer *t = open_tokenizer(folder);
    assert_true(pp_now_ns() - begin < 20000000000u);
    assert_int_equal(t->type[100], TOK_CONTROL);
    assert_int_equal(t->type[101], TOK_NORMAL);
    assert_int_equal(pp_tokenizer_find(t, "t119998", 7), MANY + MANY + MANY / 2 - 1);
    pp_tokenizer_free(t);
    pp_buf_free(&json);
    pp_buf_free(&map);
    pp_buf_free(&more);
}

static void expect_refused(enum pp_code code, const char *says)
{
    struct pp_tokenizer *t;
    struct pp_error err = {0};
    assert_int_equal(pp_tokenizer_open(folder, &t, &err), code);
    assert_null(t);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" does not say \"%s\"", err.text, says);
}

static void refused(void **state)
{
    (void)state;
    new_folder("refused_vocab");
    expect_refused(PP_ERR_NOT_FOUND, "merges.txt");
    put_bytes("\"<|endoftext|>\":258");
    expect_refused(PP_ERR_UNSUPPORTED, "no file names the tokenizer class");
    put_text("config.json", "{\"model_type\":\"gpt\"}");
    expect_refused(PP_ERR_UNSUPPORTED, "\"gpt\"");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"CLIPTokenizer\"}");
    expect_refused(PP_ERR_UNSUPPORTED, "CLIPTokenizer");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"GPT2Tokenizer\"}");
    put_text("added_tokens.json", "{\"x\":1e9}");
    expect_refused(PP_ERR_FORMAT, "far outside");
    put_text("added_tokens.json", "{");
    expect_refused(PP_ERR_FORMAT, "added_tokens.json");
    put_text("added_tokens.json", NULL);
    put_text("special_tokens_map.json", "[");
    expect_refused(PP_ERR_FORMAT, "special_tokens_map.json");
    put_text("special_tokens_map.json", NULL);
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"GPT2Tokenizer\",\"added_tokens_decoder\":{"
                                      "\"one\":{\"content\":\"x\"}}}");
    expect_refused(PP_ERR_FORMAT, "\"one\" in place of an id");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"GPT2Tokenizer\"}");
    put_text("merges.txt", "a\n");
    expect_refused(PP_ERR_FORMAT, "merge");
    put_text("merges.txt", NULL);
    put_text("vocab.txt", "a\nb\n");
    expect_refused(PP_ERR_UNSUPPORTED, "GPT2Tokenizer");
    put_text("vocab.txt", NULL);
    put_text("spiece.model", "x");
    expect_refused(PP_ERR_UNSUPPORTED, "GPT2Tokenizer");
}

static void listed(void **state)
{
    (void)state;
    new_folder("listed");
    put_text("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nrun\nRun\n##ning\ncafe\n\u65e5\n\u672c\n!\r\n");
    put_text("config.json", "{\"model_type\":\"bert\"}");
    expect_opened("Running caf\u00e9 \u65e5\u672c![MASK]?", PP_TOKENIZE_BOS | PP_TOKENIZE_SPECIAL,
                  "[CLS]| run|ning| cafe| \u65e5| \u672c|!|[MASK]|[UNK]|[SEP]");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"BertTokenizer\",\"do_lower_case\":false}");
    expect_opened("Running caf\u00e9", 0, " Run|ning|[UNK]");
}

/* The ids of a text; the caller frees them. */
static int32_t *ids_of(const char *path, const char *text, unsigned flags, size_t *n)
{
    struct pp_tokenizer *t = open_tokenizer(path);
    struct pp_error err;
    int32_t *ids;
    assert_ok(pp_tokenize(t, text, strlen(text), flags, &ids, n, &err), err);
    pp_tokenizer_free(t);
    return ids;
}

static void pieces(void **state)
{
    static const char source[] = "tests/data/sonnets-unigram.model", text[] = "Shall I compare thee to a summer's day?";
    struct pp_error err;
    char *model;
    size_t n_model, n, n_plain;
    (void)state;
    assert_ok(pp_read_file(source, 1 << 24, &model, &n_model, &err), err);
    new_folder("pieces");
    int32_t *plain = ids_of(source, text, 0, &n_plain);
    /* XLM-R has other first tokens, and one more at the end */
    put("sentencepiece.bpe.model", model, n_model);
    put_text("config.json", "{\"model_type\":\"xlm-roberta\"}");
    int32_t *ids = ids_of(folder, text, PP_TOKENIZE_BOS, &n);
    assert_int_equal(n, n_plain + 2);
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[n - 1], 2);
    for (size_t i = 0; i < n_plain; i++)
        assert_int_equal(ids[i + 1], plain[i] ? plain[i] + 1 : 3);
    pp_free(ids);
    struct pp_tokenizer *t = open_tokenizer(folder);
    assert_int_equal(pp_tokenizer_find(t, "<mask>", 6), pp_tokenizer_n(t) - 1);
    const int32_t n_vocab = pp_tokenizer_n(t) - 2;
    pp_tokenizer_free(t);
    /* XGLM has the same first tokens, seven more at the end, and puts the end token before texts, whatever bos_token
     * says */
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"XGLMTokenizer\",\"bos_token\":\"<s>\"}");
    ids = ids_of(folder, text, PP_TOKENIZE_BOS, &n);
    assert_int_equal(n, n_plain + 1);
    assert_int_equal(ids[0], 2);
    for (size_t i = 0; i < n_plain; i++)
        assert_int_equal(ids[i + 1], plain[i] ? plain[i] + 1 : 3);
    pp_free(ids);
    t = open_tokenizer(folder);
    assert_int_equal(pp_tokenizer_n(t), n_vocab + 8);
    assert_int_equal(pp_tokenizer_find(t, "<madeupword6>", 13), n_vocab + 7);
    pp_tokenizer_free(t);
    /* T5 has a hundred more tokens, and none before texts */
    put_text("sentencepiece.bpe.model", NULL);
    put("spiece.model", model, n_model);
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"T5Tokenizer\"}");
    ids = ids_of(folder, text, PP_TOKENIZE_BOS, &n);
    assert_int_equal(n, n_plain + 1);
    assert_memory_equal(ids, plain, n_plain * sizeof *ids);
    assert_int_equal(ids[n - 1], 2);
    pp_free(ids);
    t = open_tokenizer(folder);
    assert_int_equal(pp_tokenizer_n(t), n_vocab + 100);
    assert_int_equal(pp_tokenizer_find(t, "<extra_id_0>", 12), n_vocab + 99);
    pp_tokenizer_free(t);
    /* ALBERT lower-cases */
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"AlbertTokenizer\",\"do_lower_case\":true}");
    ids = ids_of(folder, "SHALL ``I''", 0, &n);
    int32_t *lower = ids_of(source, "shall \"i\"", 0, &n_plain);
    assert_int_equal(n, n_plain);
    assert_memory_equal(ids, lower, n * sizeof *ids);
    pp_free(ids);
    pp_free(lower);
    pp_free(plain);
    pp_free(model);
}

/* The post-processor's template in tokenizer.json decides which tokens precede a text, whatever bos_token is; except
 * for classes that rebuild their templates. */
static void in_front(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true},"
        "{\"id\":2,\"content\":\"</s>\",\"special\":true}],\"post_processor\":{\"type\":\"TemplateProcessing\","
        "\"single\":[{\"SpecialToken\":{\"id\":\"</s>\"}},{\"Sequence\":{\"id\":\"A\"}}]},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"<s>\":1,\"</s>\":2},\"merges\":[]}}";
    (void)state;
    new_folder("front");
    put_text("tokenizer.json", json);
    expect_opened("a", PP_TOKENIZE_BOS, "</s>|a");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"XGLMTokenizer\",\"bos_token\":\"<s>\"}");
    expect_opened("a", PP_TOKENIZE_BOS, "</s>|a");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"LlamaTokenizerFast\",\"bos_token\":\"<s>\"}");
    expect_opened("a", PP_TOKENIZE_BOS, "<s>|a");
}

/* The template's tokens after a text are appended, whatever eos_token is: Qwen 3's embedding models end texts with
 * another token than answers. Classes that rebuild their templates append eos_token. */
static void behind(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":1,\"content\":\"<|endoftext|>\",\"special\":true},"
        "{\"id\":2,\"content\":\"<|im_end|>\",\"special\":true}],\"post_processor\":{\"type\":\"TemplateProcessing\","
        "\"single\":[{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"<|endoftext|>\"}}]},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}";
    (void)state;
    new_folder("behind");
    put_text("tokenizer.json", json);
    expect_opened("a", PP_TOKENIZE_BOS, "a|<|endoftext|>");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"eos_token\":\"<|im_end|>\"}");
    expect_opened("a", PP_TOKENIZE_BOS, "a|<|endoftext|>");
    struct pp_tokenizer *t = open_tokenizer(folder), *again = through_gguf(t);
    expect_tokens(again, "a", PP_TOKENIZE_BOS, "a|<|endoftext|>");
    assert_int_equal(pp_tokenizer_eos(t), 2);
    assert_int_equal(pp_tokenizer_eos(again), 2);
    pp_tokenizer_free(t);
    pp_tokenizer_free(again);
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"add_eos_token\":false}");
    expect_opened("a", PP_TOKENIZE_BOS, "a");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"LlamaTokenizerFast\",\"eos_token\":\"<|im_end|>\"}");
    expect_opened("a", PP_TOKENIZE_BOS, "a|<|im_end|>");
}

/* The folder's tokenizer, and those of the GGUF file and of the folder made of it, split a text in the same way. */
static void expect_everywhere(const char *text, const char *want, const char *shown)
{
    struct pp_tokenizer *t = open_tokenizer(folder), *again = through_gguf(t), *both[] = {t, again};
    char made[400];
    struct pp_error err;
    snprintf(made, sizeof made, "%s-made", folder);
    mkdir(made, 0700);
    for (int i = 0; i < 2; i++) {
        struct pp_buf out = {0};
        int32_t *ids;
        size_t n;
        expect_tokens(both[i], text, 0, want);
        assert_ok(pp_tokenize(both[i], text, strlen(text), 0, &ids, &n, &err), err);
        pp_detokenize(both[i], ids, n, true, &out);
        assert_string_equal(pp_buf_cstr(&out), shown);
        pp_buf_free(&out);
        pp_free(ids);
        assert_ok(pp_tokenizer_to_folder(both[i], made, &err), err);
        struct pp_tokenizer *third = open_tokenizer(made);
        expect_tokens(third, text, 0, want);
        pp_tokenizer_free(third);
    }
    pp_tokenizer_free(t);
    pp_tokenizer_free(again);
}

/* Asserts that the tokenizer.json of the folder made last contains this. */
static void expect_written(const char *want)
{
    struct pp_error err;
    char path[400], *text;
    size_t n;
    snprintf(path, sizeof path, "%s-made/tokenizer.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    if (!strstr(text, want))
        fail_msg("%s has no %s", text, want);
    pp_free(text);
}

/* The first GPT's words end with "</w>"; CTRL's vocabulary has "@@" where they do not. */
static void word_ends(void **state)
{
    static const char merges[] = "#version: 0.2\nl o\nlo w</w>\nlo w\ne r</w>\n";
    (void)state;
    new_folder("word-ends");
    put_text("merges.txt", merges);
    put_text("config.json", "{\"model_type\":\"openai-gpt\"}");
    put_text("vocab.json", "{\"<unk>\":0,\"l\":1,\"o\":2,\"w\":3,\"w</w>\":4,\"e\":5,\"r</w>\":6,\"lo\":7,"
                           "\"low</w>\":8,\"er</w>\":9,\"low\":10,\".</w>\":11,\"l</w>\":12,\"\u00e9</w>\":13}");
    expect_everywhere("Low\n\tlower.", "low |low|er |. ", "low lower .");
    expect_everywhere("l\u00e9 lx l", "l|<unk>|l|<unk>|l ", "l<unk>l<unk>l");
    expect_everywhere("", "", "");
    /* other programs need all members */
    expect_written("{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,"
                   "\"strip_accents\":null,\"lowercase\":true}");
    put_text("vocab.json", "{\"<unk>\":0,\"l@@\":1,\"o@@\":2,\"w@@\":3,\"w\":4,\"e@@\":5,\"r\":6,\"lo@@\":7,"
                           "\"low\":8,\"er\":9,\"low@@\":10,\"L@@\":11,\"\\n\":12}");
    put_text("config.json", "{\"model_type\":\"ctrl\"}");
    expect_everywhere("low  lower Low\nxlow", "low |low|er |L|o|w|\n |<unk>|low ", "low lower Low\n <unk>low");
    put_text("vocab.json", "{\"l@@\":0,\"l\":1}");
    put_text("merges.txt", "");
    expect_everywhere("l ll xl", "l |l|l |l ", "l ll l");
}

/* BioGPT's words are those of Moses, with signs spelt out; the number of lines of merges matters; one token precedes
 * texts. */
static void moses(void **state)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"Hello, Mr. Smith: IL-2 costs $5.30... It's e.g. \"this\".",
         "Hello , Mr. Smith : IL @-@ 2 costs $ 5.30 ... It &apos;s e.g. &quot; this &quot; ."},
        {"  TNF-\u03b1 (p<0.05)\tin\n[patients'] cells.  The end.",
         "TNF @-@ \u03b1 ( p &lt; 0.05 ) in &#91; patients &apos; &#93; cells . The end ."},
        {"5,300 a,b 5,a ,x y, 7, 8,", "5,300 a , b 5 , a , x y , 7 , 8 ,"},
        {"No. 5 No. Five, pp. 3. Art. x. Nos. X Nr. A. B", "No. 5 No . Five , pp. 3 . Art. x . Nos. X Nr. A. B"},
        {"..end...x .. 1990's '90s don't o'2 'a' '' a&b|c.'",
         ".. end ... x .. 1990 &apos;s &apos; 90s don &apos;t o &apos; 2 &apos; a &apos; &apos; &apos; a &amp; b "
         "&#124; c . &apos;"},
        {"a--b -c- x-y-z \u00b5m\u00b2 \u4e2d\u6587\x01.", "a--b -c- x @-@ y @-@ z \u00b5m \u00b2 \u4e2d \u6587 ."},
        {"\xff\xc3 ok", "\xff \xc3 ok"},
        {" \x02\n", ""},
        {"\x01" "5", "5"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_buf words = {0};
        tok_moses_words((struct pp_str){cases[i].text, strlen(cases[i].text)}, &words);
        assert_false(words.bad);
        assert_string_equal(words.len ? words.data : "", cases[i].words);
        pp_buf_free(&words);
    }
    new_folder("moses");
    put_text("config.json", "{\"model_type\":\"biogpt\"}");
    put_text("merges.txt", "l o 12\nlo w</w> 7\n& a 5\n&a p 5\n&ap o 5\n&apo s 5\n&apos ; 5\n&apos; s</w> 5\n@ - 4\n"
                           "@- @</w> 4\n");
    put_text("vocab.json", "{\"<s>\":0,\"<pad>\":1,\"</s>\":2,\"<unk>\":3,\"l\":4,\"o\":5,\"w</w>\":6,\"lo\":7,"
                           "\"low</w>\":8,\"&apos;s</w>\":9,\"@-@</w>\":10,\".</w>\":11,\"l</w>\":12}");
    expect_everywhere("low-l, low's  low.", "low |- |l |<unk>|low |'s |low |. ", "low - l <unk>low 's low .");
    expect_opened("low</s>low", PP_TOKENIZE_BOS | PP_TOKENIZE_SPECIAL, "</s>|low |</s>|low ");
    expect_written("{\"type\":\"Moses\"}");
}

/* Characters that the vocabulary lacks become bytes there; other programs join them again only if the decoder says
 * so. */
static void bytes_of_characters(void **state)
{
    static const char fused[] = "\"decoder\": {\"type\": \"Fuse\"}";
    static const char joined[] = "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteFallback\"}, "
                                 "{\"type\": \"Fuse\"}]}";
    (void)state;
    new_folder("bytes-of-characters");
    for (int bytes = 0; bytes < 2; bytes++) {
        struct pp_buf json = {0};
        pp_buf_fmt(&json, "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":"
                          "\"Isolated\"},\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\","
                          "\"byte_fallback\":%s,\"merges\":[\"a b\"],\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\" \":3",
                   bytes ? "true" : "false");
        for (int i = 0; bytes && i < 256; i++)
            pp_buf_fmt(&json, ",\"<0x%02X>\":%d", (unsigned)i, i + 4);
        pp_buf_str(&json, "}}}");
        put_text("tokenizer.json", pp_buf_cstr(&json));
        pp_buf_free(&json);
        if (bytes)
            expect_everywhere("ab \u00e9b", "ab| |\xc3|\xa9|b", "ab \u00e9b");
        else
            expect_everywhere("ab b", "ab| |b", "ab b");
        expect_written(bytes ? joined : fused);
        expect_written(bytes ? "\"byte_fallback\": true" : "\"byte_fallback\": false");
    }
}

static void failed_allocations(void **state)
{
    (void)state;
    new_folder("failing");
    put_bytes("\"<|endoftext|>\":258");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"Qwen2Tokenizer\"}");
    put_text("added_tokens.json", "{\"<x>\":262}");
    for (uint64_t nth = 1; nth < 3000; nth += nth < 200 ? 1 : 7) {
        struct pp_tokenizer *t;
        struct pp_error err = {0};
        pp_mem_fail_at(nth, 0);
        const enum pp_code code = pp_tokenizer_open(folder, &t, &err);
        pp_mem_fail_at(0, 0);
        assert_true(code == PP_OK || code == PP_ERR_NOMEM || code == PP_ERR_NOT_FOUND);
        pp_tokenizer_free(t);
    }
}

TEST_GROUP(tokenizer_vocab)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged), cmocka_unit_test(refused), cmocka_unit_test(listed), cmocka_unit_test(pieces),
        cmocka_unit_test(in_front), cmocka_unit_test(behind), cmocka_unit_test(word_ends), cmocka_unit_test(moses),
        cmocka_unit_test(bytes_of_characters), cmocka_unit_test(named_elsewhere),
        cmocka_unit_test(named_beside_pieces), cmocka_unit_test(many_named),
        cmocka_unit_test(failed_allocations),
    };
    return cmocka_run_group_tests_name("tokenizer_vocab", tests, NULL, NULL);
}
