/* test_tokenizer_units.c - SentencePiece models whose tokens are characters or words, and models of any kind that
 * append the space to a text (treat_whitespace_as_suffix).
 *
 * Ids and texts are the output of SentencePiece 0.1.97 for the same models, whose unk_surface is "<unk>". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/tokenizer_internal.h"
#include "tests/support.h"
#include "tests/tokenizers.h"

enum { LIKELY = 1, MERGED, WORDS, CHARACTERS }; /* TrainerSpec's model_type */
enum { N_TEXTS = 10 };

static const char *const texts[N_TEXTS] = {
    "ab", " a  bc ", "ab c bc a", "x y abx", "a\xc3\xa9\xe6\xbc\xa2 b", "a\xe2\x96\x81" "b  ", "a\xff" "b", "   ",
    "b c", "",
};

/* A model, and its ids for each of the texts. */
static const struct model_case {
    unsigned type;
    bool suffix, dummy, squeeze, bytes;
    bool bare;             /* spaces are not replaced by U+2581, in pieces either, except in user-defined ones */
    struct {
        const char *ids, *back;
    } want[N_TEXTS];
} cases[] = {
    {CHARACTERS, false, true, true, false, false, {
        {"4 3", "ab"},
        {"4 5 4 6 7", "a bc"},
        {"4 3 4 7 4 6 7 4 5", "ab c bc a"},
        {"4 0 4 0 4 3 0", "<unk> <unk> ab<unk>"},
        {"4 5 8 0 4 6", "a\xc3\xa9<unk> b"},
        {"4 5 4 6", "a b"},
        {"4 5 0 6", "a<unk>b"},
        {"", ""},
        {"4 18", "b c"},
        {"", ""},
    }},
    {CHARACTERS, false, false, false, true, false, {
        {"3", "ab"},
        {"4 5 4 4 6 7 4", " a  bc "},
        {"3 4 7 4 6 7 4 5", "ab c bc a"},
        {"139 4 140 4 3 139", "x y abx"},
        {"5 8 249 207 181 4 6", "a\xc3\xa9\xe6\xbc\xa2 b"},
        {"5 4 6 4 4", "a b  "},
        {"5 258 210 208 6", "a\xef\xbf\xbd" "b"},
        {"4 4 4", "   "},
        {"18", "b c"},
        {"", ""},
    }},
    {CHARACTERS, true, true, false, false, false, {
        {"3 4", "ab "},
        {"4 5 4 4 6 7 4 4", "a  bc  "},
        {"3 4 7 4 6 7 4 5 4", "ab c bc a "},
        {"0 4 0 4 3 0 4", "<unk> <unk> ab<unk> "},
        {"5 8 0 4 6 4", "a\xc3\xa9<unk> b "},
        {"5 4 6 4 4 4", "a b   "},
        {"5 0 6 4", "a<unk>b "},
        {"4 4 4 4", "   "},
        {"18 4", "b c "},
        {"", ""},
    }},
    {WORDS, false, true, true, false, false, {
        {"10", "ab"},
        {"9 15", "a bc"},
        {"10 0 15 9", "ab<unk> bc a"},
        {"0", "<unk>"},
        {"0", "<unk>"},
        {"9 0", "a<unk>"},
        {"0", "<unk>"},
        {"", ""},
        {"0", "<unk>"},
        {"", ""},
    }},
    {WORDS, false, false, false, true, false, {
        {"3", "ab"},
        {"9 4 15 4", " a  bc "},
        {"3 245 169 148 118 15 9", "ab\xe2\x96\x81" "c bc a"},
        {"139 245 169 148 140 245 169 148 116 117 139", "x\xe2\x96\x81y\xe2\x96\x81" "abx"},
        {"116 214 188 249 207 181 245 169 148 117", "a\xc3\xa9\xe6\xbc\xa2\xe2\x96\x81" "b"},
        {"5 245 169 148 117 4 4", "a\xe2\x96\x81" "b  "},
        {"116 258 210 208 117", "a\xef\xbf\xbd" "b"},
        {"4 4 4", "   "},
        {"6 245 169 148 118", "b\xe2\x96\x81" "c"},
        {"", ""},
    }},
    {WORDS, true, true, true, false, false, {
        {"3 4", "ab "},
        {"5 15 4", "a bc "},
        {"3 0 15 9 4", "ab<unk> bc a "},
        {"0 4", "<unk> "},
        {"0 4", "<unk> "},
        {"5 0 4", "a<unk> "},
        {"0 4", "<unk> "},
        {"", ""},
        {"6 0 4", "b<unk> "},
        {"", ""},
    }},
    {MERGED, true, true, true, false, false, {
        {"3 4", "ab "},
        {"16 17", "a bc "},
        {"3 4 13 14 9 4", "ab c bc a "},
        {"0 4 0 4 3 0 4", "<unk> <unk> ab<unk> "},
        {"5 8 0 4 11", "a\xc3\xa9<unk> b "},
        {"16 11", "a b "},
        {"5 0 11", "a<unk>b "},
        {"", ""},
        {"18 4", "b c "},
        {"", ""},
    }},
    {MERGED, true, true, false, true, false, {
        {"3 4", "ab "},
        {"9 4 4 17 4", "a  bc  "},
        {"3 4 13 14 9 4", "ab c bc a "},
        {"139 4 140 4 3 139 4", "x y abx "},
        {"5 8 249 207 181 4 11", "a\xc3\xa9\xe6\xbc\xa2 b "},
        {"16 11 4 4", "a b   "},
        {"5 258 210 208 11", "a\xef\xbf\xbd" "b "},
        {"4 4 4 4", "   "},
        {"18 4", "b c "},
        {"", ""},
    }},
    {MERGED, true, false, false, false, false, {
        {"3", "ab"},
        {"9 4 4 17", " a  bc "},
        {"3 4 13 14 9", "ab c bc a"},
        {"0 4 0 4 3 0", "<unk> <unk> ab<unk>"},
        {"5 8 0 4 6", "a\xc3\xa9<unk> b"},
        {"16 11 4", "a b  "},
        {"5 0 6", "a<unk>b"},
        {"4 4 4", "   "},
        {"18", "b c"},
        {"", ""},
    }},
    {LIKELY, true, true, true, false, false, {
        {"3 4", "ab "},
        {"5 15 4", "a bc "},
        {"5 18 15 9 4", "ab c bc a "},
        {"0 4 0 4 3 0 4", "<unk> <unk> ab<unk> "},
        {"5 8 0 4 6 4", "a\xc3\xa9<unk> b "},
        {"5 4 6 4", "a b "},
        {"5 0 6 4", "a<unk>b "},
        {"", ""},
        {"18 4", "b c "},
        {"", ""},
    }},
    {LIKELY, true, true, false, false, false, {
        {"3 4", "ab "},
        {"9 4 15 4 4", "a  bc  "},
        {"5 18 15 9 4", "ab c bc a "},
        {"0 4 0 4 3 0 4", "<unk> <unk> ab<unk> "},
        {"5 8 0 4 6 4", "a\xc3\xa9<unk> b "},
        {"5 4 6 4 4 4", "a b   "},
        {"5 0 6 4", "a<unk>b "},
        {"4 4 4 4", "   "},
        {"18 4", "b c "},
        {"", ""},
    }},
    {LIKELY, true, false, true, false, false, {
        {"3", "ab"},
        {"5 15", "a bc"},
        {"5 18 15 9", "ab c bc a"},
        {"0 4 0 4 3 0", "<unk> <unk> ab<unk>"},
        {"5 8 0 4 6", "a\xc3\xa9<unk> b"},
        {"5 4 6", "a b"},
        {"5 0 6", "a<unk>b"},
        {"", ""},
        {"18", "b c"},
        {"", ""},
    }},
    {MERGED, false, true, true, false, true, {
        {"4 3", " ab"},
        {"9 15", " a bc"},
        {"4 3 4 13 14 9", " ab c bc a"},
        {"4 0 4 0 4 3 0", " <unk> <unk> ab<unk>"},
        {"9 8 0 4 6", " a\xc3\xa9<unk> b"},
        {"9 0 6", " a<unk>b"},
        {"9 0 6", " a<unk>b"},
        {"", ""},
        {"4 11 7", " b c"},
        {"", ""},
    }},
    {MERGED, false, false, false, true, true, {
        {"3", "ab"},
        {"9 4 4 17", " a  bc "},
        {"3 4 13 14 9", "ab c bc a"},
        {"139 4 140 4 3 139", "x y abx"},
        {"5 8 249 207 181 4 6", "a\xc3\xa9\xe6\xbc\xa2 b"},
        {"5 245 169 148 11 4", "a\xe2\x96\x81" "b  "},
        {"5 258 210 208 6", "a\xef\xbf\xbd" "b"},
        {"4 4 4", "   "},
        {"11 7", "b c"},
        {"", ""},
    }},
    {MERGED, true, true, true, false, true, {
        {"3 4", "ab "},
        {"16 17", "a bc "},
        {"3 4 13 14 9 4", "ab c bc a "},
        {"0 4 0 4 3 0 4", "<unk> <unk> ab<unk> "},
        {"5 8 0 4 11", "a\xc3\xa9<unk> b "},
        {"5 0 11", "a<unk>b "},
        {"5 0 11", "a<unk>b "},
        {"", ""},
        {"11 13", "b c "},
        {"", ""},
    }},
    {LIKELY, false, true, false, true, true, {
        {"4 3", " ab"},
        {"4 9 4 15 4", "  a  bc "},
        {"4 3 4 7 15 9", " ab c bc a"},
        {"4 139 4 140 4 3 139", " x y abx"},
        {"9 8 249 207 181 4 6", " a\xc3\xa9\xe6\xbc\xa2 b"},
        {"9 245 169 148 6 4 4", " a\xe2\x96\x81" "b  "},
        {"9 258 210 208 6", " a\xef\xbf\xbd" "b"},
        {"4 4 4 4", "    "},
        {"4 6 4 7", " b c"},
        {"", ""},
    }},
    {LIKELY, true, true, false, false, true, {
        {"3 4", "ab "},
        {"9 4 15 4 4", " a  bc  "},
        {"3 4 7 15 9 4", "ab c bc a "},
        {"0 4 0 4 3 0 4", "<unk> <unk> ab<unk> "},
        {"5 8 0 4 6 4", "a\xc3\xa9<unk> b "},
        {"5 0 6 4 4 4", "a<unk>b   "},
        {"5 0 6 4", "a<unk>b "},
        {"4 4 4 4", "    "},
        {"6 4 7 4", "b c "},
        {"", ""},
    }},
    {WORDS, false, true, true, false, true, {
        {"10", " ab"},
        {"0", "<unk>"},
        {"0", "<unk>"},
        {"0", "<unk>"},
        {"0", "<unk>"},
        {"9 0", " a<unk>"},
        {"0", "<unk>"},
        {"", ""},
        {"0", "<unk>"},
        {"", ""},
    }},
    {CHARACTERS, false, true, false, true, true, {
        {"4 3", " ab"},
        {"4 4 5 4 4 6 7 4", "  a  bc "},
        {"4 3 4 7 4 6 7 4 5", " ab c bc a"},
        {"4 139 4 140 4 3 139", " x y abx"},
        {"4 5 8 249 207 181 4 6", " a\xc3\xa9\xe6\xbc\xa2 b"},
        {"4 5 245 169 148 6 4 4", " a\xe2\x96\x81" "b  "},
        {"4 5 258 210 208 6", " a\xef\xbf\xbd" "b"},
        {"4 4 4 4", "    "},
        {"4 6 4 7", " b c"},
        {"", ""},
    }},
    {CHARACTERS, true, true, false, false, true, {
        {"3 4", "ab "},
        {"4 5 4 4 6 7 4 4", " a  bc  "},
        {"3 4 7 4 6 7 4 5 4", "ab c bc a "},
        {"0 4 0 4 3 0 4", "<unk> <unk> ab<unk> "},
        {"5 8 0 4 6 4", "a\xc3\xa9<unk> b "},
        {"5 0 6 4 4 4", "a<unk>b   "},
        {"5 0 6 4", "a<unk>b "},
        {"4 4 4 4", "    "},
        {"6 4 7 4", "b c "},
        {"", ""},
    }},
};

static void put_number(struct pp_buf *b, unsigned field, unsigned v)
{
    put_varint(b, field << 3);
    put_varint(b, v);
}

/* Pieces of all kinds, some of which match only a whole word, or the space appended to a text. */
static void make_model(const struct model_case *c, struct pp_buf *b)
{
    static const struct {
        const char *text;
        unsigned type;
    } pieces[] = {
        {"<unk>", TOK_UNKNOWN}, {"<s>", TOK_CONTROL}, {"</s>", TOK_CONTROL}, {"ab", TOK_USER}, {TOK_SPACE, TOK_NORMAL},
        {"a", TOK_NORMAL}, {"b", TOK_NORMAL}, {"c", TOK_NORMAL}, {"\xc3\xa9", TOK_NORMAL},
        {TOK_SPACE "a", TOK_NORMAL}, {TOK_SPACE "ab", TOK_NORMAL}, {"b" TOK_SPACE, TOK_NORMAL},
        {"ab" TOK_SPACE, TOK_NORMAL}, {"c" TOK_SPACE, TOK_NORMAL}, {"bc", TOK_NORMAL}, {TOK_SPACE "bc", TOK_NORMAL},
        {"a" TOK_SPACE, TOK_NORMAL}, {"bc" TOK_SPACE, TOK_NORMAL}, {"b" TOK_SPACE "c", TOK_USER},
    };
    struct pp_buf part = {0};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const char *text = pieces[i].text, *sign = strstr(text, TOK_SPACE);
        char plain[16];
        if (sign && c->bare && pieces[i].type != TOK_USER) {
            snprintf(plain, sizeof plain, "%.*s %s", (int)(sign - text), text, sign + TOK_SPACE_LEN);
            text = plain;
        }
        put_piece(b, text, -(float)i, pieces[i].type);
    }
    for (unsigned i = 0; c->bytes && i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        put_piece(b, name, 0, TOK_BYTE);
    }
    put_number(&part, 3, c->type);
    put_number(&part, 24, c->suffix);
    put_number(&part, 35, c->bytes);
    put_message(b, 2, &part);
    pp_buf_clear(&part);
    put_number(&part, 3, c->dummy);
    put_number(&part, 4, c->squeeze);
    if (c->bare)
        put_number(&part, 5, 0);
    put_message(b, 3, &part);
    pp_buf_free(&part);
}

static struct pp_tokenizer *open_case(const struct model_case *c)
{
    struct pp_buf b = {0};
    struct pp_tokenizer *t;
    struct pp_error err;
    make_model(c, &b);
    assert_ok(tok_from_sentencepiece(b.data, b.len, NULL, &t, &err), err);
    pp_buf_free(&b);
    return t;
}

/* Writes t as a folder and reads it again. */
static struct pp_tokenizer *through_folder(const struct pp_tokenizer *t, size_t i)
{
    struct pp_error err;
    char folder[256];
    snprintf(folder, sizeof folder, "%s/units-%zu", test_tmpdir(), i);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_ok(pp_tokenizer_to_folder(t, folder, &err), err);
    return open_tokenizer(folder);
}

static void check_text(const struct pp_tokenizer *t, const struct model_case *c, size_t i, const char *how)
{
    struct pp_buf got = {0}, back = {0};
    struct pp_error err;
    int32_t *ids;
    size_t n;
    assert_ok(pp_tokenize(t, texts[i], strlen(texts[i]), 0, &ids, &n, &err), err);
    for (size_t k = 0; k < n; k++)
        pp_buf_fmt(&got, k ? " %d" : "%d", ids[k]);
    pp_detokenize(t, ids, n, true, &back);
    if (strcmp(pp_buf_cstr(&got), c->want[i].ids) != 0 || strcmp(pp_buf_cstr(&back), c->want[i].back) != 0)
        fail_msg("case %td, %s, \"%s\": ids %s, not %s; \"%s\", not \"%s\"", c - cases, how, texts[i],
                 pp_buf_cstr(&got), c->want[i].ids, pp_buf_cstr(&back), c->want[i].back);
    pp_buf_free(&back);
    pp_buf_free(&got);
    pp_free(ids);
}

static void as_sentencepiece(void **state)
{
    static const char *const how[] = {"tokenizer.model", "GGUF", "folder"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_tokenizer *t = open_case(&cases[i]), *all[] = {t, through_gguf(t), through_folder(t, i)};
        for (int k = 0; k < 3; k++) {
            for (size_t text = 0; text < N_TEXTS; text++)
                check_text(all[k], &cases[i], text, how[k]);
            pp_tokenizer_free(all[k]);
        }
    }
}

/* GGUF files name no kind that other programs know: these would merge pieces that must not be merged. */
static void no_kind_of_others(void **state)
{
    static const char *const want[] = {[LIKELY] = "t5", [MERGED] = "llama", [WORDS] = "sentencepiece-word",
                                       [CHARACTERS] = "sentencepiece-char"};
    (void)state;
    for (unsigned type = LIKELY; type <= CHARACTERS; type++) {
        const struct model_case c = {.type = type, .suffix = true, .dummy = true};
        struct pp_tokenizer *t = open_case(&c);
        struct pp_gguf *g;
        struct pp_error err;
        struct pp_str model;
        bool prefix = true;
        pp_tokenizer_free(through_gguf(t));
        pp_tokenizer_free(t);
        assert_ok(pp_gguf_open(test_path("tok_again.gguf"), &g, &err), err);
        assert_true(pp_gguf_string(g, "tokenizer.ggml.model", &model));
        assert_int_equal(model.len, strlen(want[type]));
        assert_memory_equal(model.data, want[type], model.len);
        assert_true(pp_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &prefix) && !prefix);
        pp_gguf_close(g);
    }
}

/* Each stretch of text between control tokens counts as a text, with a space of its own after or before it. */
static void between_control_tokens(void **state)
{
    static const int32_t spaced[] = {2, 9, 5}; /* </s>, then " a" and "a" */
    (void)state;
    for (unsigned type = MERGED; type <= CHARACTERS; type++) {
        struct model_case c = {.type = type, .suffix = true, .dummy = true};
        struct pp_tokenizer *t = open_case(&c);
        struct pp_buf back = {0};
        expect_tokens(t, "ab</s>ab", PP_TOKENIZE_SPECIAL, "ab| |</s>|ab| ");
        pp_detokenize(t, spaced, 3, false, &back);
        pp_detokenize(t, spaced + 1, 2, false, &back);
        assert_string_equal(pp_buf_cstr(&back), "aaaa"); /* only where the text begins */
        pp_buf_clear(&back);
        pp_detokenize(t, (const int32_t[]){5, 2, 9}, 3, false, &back);
        assert_string_equal(pp_buf_cstr(&back), "a a");
        pp_buf_free(&back);
        pp_tokenizer_free(t);
        c.suffix = false;
        t = open_case(&c);
        expect_tokens(t, "ab</s>c", PP_TOKENIZE_SPECIAL,
                      type == WORDS ? " ab|</s>|<unk>" : " |ab|</s>| |c");
        pp_tokenizer_free(t);
    }
}

/* --- what is shown instead of texts of tokens -------------------------------------------------------------------- */

static const struct replaced shown[] = {
    {"ab", "\xc2\xab" "A\xc2\xbb"}, {"a", ""}, {"abab", "Z"}, {" ", "_"}, {"\xc3\xa9", "e'"}};

/* Opens a model with a denormalizer, whose fields for spaces have these values; < 0: not written, which means true. */
static enum pp_code open_denormal(const struct model_case *c, bool table, const int fields[3], struct pp_tokenizer **t,
                                  struct pp_error *err)
{
    struct pp_buf b = {0}, part = {0}, map = {0};
    make_model(c, &b);
    put_table(&map, shown, sizeof shown / sizeof *shown);
    if (table)
        put_message(&part, 2, &map);
    for (unsigned i = 0; i < 3; i++)
        if (fields[i] >= 0)
            put_number(&part, 3 + i, (unsigned)fields[i]);
    put_message(&b, 5, &part);
    const enum pp_code code = tok_from_sentencepiece(b.data, b.len, NULL, t, err);
    pp_buf_free(&map);
    pp_buf_free(&part);
    pp_buf_free(&b);
    return code;
}

/* Decodes tokens one by one, as an answer is written: text that is not decided yet is held back. */
static void show_slowly(const struct pp_tokenizer *t, const int32_t *ids, size_t n, struct pp_buf *out)
{
    struct pp_buf text = {0};
    size_t at = 0;
    for (size_t i = 0; i <= n; i++) {
        const char *piece;
        size_t n_piece, width;
        if (i < n)
            pp_token_text(t, ids[i], false, &text);
        while (at < text.len && (width = pp_shown_text(t, text.data + at, text.len - at, i == n, &piece, &n_piece))) {
            pp_buf_add(out, piece, n_piece);
            at += width;
        }
    }
    assert_int_equal(at, text.len);
    pp_buf_free(&text);
}

static void denormalized(void **state)
{
    static const struct {
        const char *text, *likely, *merged;
    } want[] = {
        {"ab", "\xc2\xab" "A\xc2\xbb", "\xc2\xab" "A\xc2\xbb"},
        {"abab ab", "Z_\xc2\xab" "A\xc2\xbb", "Z_\xc2\xab" "A\xc2\xbb"},
        {"c abc a", "c_\xc2\xab" "A\xc2\xbb" "c_", "c_\xc2\xab" "A\xc2\xbb" "c_"},
        {"b\xc3\xa9\xe6\xbc\xa2 aba", "be'\xe6\xbc\xa2_\xc2\xab" "A\xc2\xbb", "be'\xe6\xbc\xa2_\xc2\xab" "A\xc2\xbb"},
        {"xa", "x", "x"},
    };
    static const int none[3] = {0, 0, 0};
    (void)state;
    for (int k = 0; k < 2; k++) {
        const struct model_case c = {.type = k ? MERGED : LIKELY, .dummy = k, .squeeze = k, .bytes = true};
        struct pp_tokenizer *t;
        struct pp_error err;
        assert_ok(open_denormal(&c, true, none, &t, &err), err);
        struct pp_tokenizer *all[] = {t, through_gguf(t), through_folder(t, 100 + (size_t)k)};
        for (int how = 0; how < 3; how++) {
            for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
                struct pp_buf back = {0}, slowly = {0};
                int32_t *ids;
                size_t n;
                assert_ok(pp_tokenize(all[how], want[i].text, strlen(want[i].text), 0, &ids, &n, &err), err);
                pp_detokenize(all[how], ids, n, false, &back);
                assert_string_equal(pp_buf_cstr(&back), k ? want[i].merged : want[i].likely);
                show_slowly(all[how], ids, n, &slowly);
                const char *got = pp_buf_cstr(&slowly); /* includes the space that is put before texts */
                assert_string_equal(got + (k && *got == '_'), pp_buf_cstr(&back));
                pp_buf_free(&back);
                pp_buf_free(&slowly);
                pp_free(ids);
            }
            struct pp_buf back = {0};
            pp_detokenize(all[how], (const int32_t[]){1, 5, 3, 2}, 4, true, &back); /* control tokens have no text */
            assert_string_equal(pp_buf_cstr(&back), "<s>\xc2\xab" "A\xc2\xbb</s>");
            pp_buf_free(&back);
            pp_tokenizer_free(all[how]);
        }
    }
}

/* A denormalizer that changes spaces is refused; one without a table has no effect. */
static void other_denormalizers(void **state)
{
    static const struct {
        int fields[3];
        const char *word;
    } cases_[] = {{{-1, 0, 0}, "add_dummy_prefix"}, {{0, 1, 0}, "remove_extra_whitespaces"},
                  {{0, 0, -1}, "escape_whitespaces"}};
    const struct model_case c = {.type = MERGED, .dummy = true, .squeeze = true};
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(open_denormal(&c, true, cases_[i].fields, &t, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, cases_[i].word));
        assert_ok(open_denormal(&c, false, cases_[i].fields, &t, &err), err);
        expect_tokens(t, "ab", 0, " |ab");
        pp_tokenizer_free(t);
    }
}

TEST_GROUP(tokenizer_units)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_sentencepiece), cmocka_unit_test(no_kind_of_others),
        cmocka_unit_test(between_control_tokens),  cmocka_unit_test(denormalized),
        cmocka_unit_test(other_denormalizers),
    };
    return cmocka_run_group_tests_name("tokenizer_units", tests, NULL, NULL);
}
