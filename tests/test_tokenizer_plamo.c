/* test_tokenizer_plamo.c - PLaMo's vocabularies: on random texts the same tokens as a plain search through all tokens
 * at all places gives, from a GGUF file and from a folder; what is cut before; and files that are not as they should
 * be. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/convert.h"
#include "engine/tokenizer_internal.h"
#include "tests/decoder_model.h"
#include "tests/gguf_file.h"
#include "tests/support.h"
#include "tests/tokenizers.h"

static const struct {
    const char *text;
    float score;
} pieces[] = {
    {"a", -5}, {"aa", -9.5f}, {"aaaa", -12}, {"aaaaaaaa", -30}, {"b", -5}, {"ab", -10}, {"abc", -8.00004f}, {"bc", -6},
    {"c", -4.25f}, {" ", -3}, {"  ", -6}, {"    ", -11}, {"\n", -4}, {"\n\n", -8}, {" a", -7}, {"a b", -12.5f},
    {"\xe6\x97\xa5", -9}, {"\xe6\x97\xa5\xe6\x9c\xac", -11}, {"\xe6\x9c\xac", -9.5f},
    {"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e", -10}, {"\xe8\xaa\x9e", -8}, {"\xe3\x81\xaf", -5},
    {"\xf0\x9f\x98\x80", -14}, {"\xf0\x9f\x98\x80\xf0\x9f\x98\x80", -20}, {"\xc3\xa9", -9}, {"e", -5},
    {"<|", -6}, {"plamo", -9}, {":", -4}, {"|>", -6}, {"<", -7}, {">", -7}, {"|", -7}, {"op", -7}, {"o", -6},
    {"dear", -1500}, {"xyz", -2999}, {"never", -2000}, {"d", -900}, {"r", -999.9999f}, {"gain", 3}, {"g", -5},
    {"n", 0.5f}, {"bc", -5.5f}, {"\xe2\x96\x81" "a", -3}, {"\xef\xbf\xbd", -13}, {"<0x41>", -8},
};
enum { OWN = 6, BYTES = 256, PIECES = sizeof pieces / sizeof *pieces, N = OWN + BYTES + PIECES };

static struct pp_tokenizer *make(struct tok_breaks breaks)
{
    static const char *const own[OWN] = {"<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>",
                                         "<|plamo:op|>", "<|plamo:reserved|>"};
    struct tok_spec spec = {.kind = TOK_PLAMO, .bos = 1, .eos = 2, .eot = 4, .unk = 0, .breaks = breaks};
    char bytes[BYTES][8];
    struct pp_tokenizer *t;
    struct pp_error err;
    assert_ok(tok_spec_resize(&spec, N, &err), err);
    spec.scores = pp_calloc(N, sizeof *spec.scores);
    assert_non_null(spec.scores);
    for (size_t i = 0; i < N; i++) {
        const char *text = i < OWN ? own[i] : bytes[i < OWN + BYTES ? i - OWN : 0];
        if (i >= OWN && i < OWN + BYTES)
            snprintf(bytes[i - OWN], sizeof bytes[0], "<0x%02X>", (unsigned)(i - OWN));
        if (i >= OWN + BYTES) {
            text = pieces[i - OWN - BYTES].text;
            spec.scores[i] = pieces[i - OWN - BYTES].score;
        }
        spec.texts[i] = (struct pp_str){text, strlen(text)};
        spec.types[i] = i == 0 ? TOK_UNKNOWN : i < OWN ? TOK_CONTROL : i < OWN + BYTES ? TOK_BYTE : TOK_NORMAL;
    }
    assert_ok(tok_build(&spec, &t, &err), err);
    tok_spec_free(&spec);
    return t;
}

/* --- the plain way ------------------------------------------------------------------------------------------------ */

enum { MOST = 4096 };

struct chars {
    int32_t c[MOST];
    size_t n;
};

static void read_chars(const char *text, size_t n, struct chars *out)
{
    out->n = 0;
    for (size_t i = 0; i < n;) {
        int32_t c;
        i += pp_utf8_decode(text + i, n - i, &c);
        assert_true(out->n < MOST);
        out->c[out->n++] = c < 0 ? 0xFFFD : c;
    }
}

/* The length in characters of a piece if it occurs at c, where n characters are left; 0: it does not occur. */
static size_t stands(const char *piece, const int32_t *c, size_t n)
{
    size_t i = 0;
    for (const size_t len = strlen(piece); *piece; i++) {
        int32_t of_piece;
        const size_t width = pp_utf8_decode(piece, len, &of_piece);
        if (i >= n || c[i] != of_piece)
            return 0;
        piece += width;
    }
    return i;
}

static void plain_cut(const int32_t *c, size_t n, int32_t *ids, size_t *n_ids)
{
    static double cost[MOST + 1];
    static size_t length[MOST];
    static int token[MOST];
    cost[n] = 0;
    for (size_t at = n; at-- > 0;) {
        cost[at] = 10000000 + cost[at + 1];
        length[at] = 1;
        token[at] = -1;
        for (size_t i = 0; i < PIECES; i++) {
            const size_t len = stands(pieces[i].text, c + at, n - at);
            const double own = -round((double)pieces[i].score * 1e4);
            bool later = false; /* another token has the same text */
            for (size_t j = i + 1; j < PIECES; j++)
                later = later || strcmp(pieces[i].text, pieces[j].text) == 0;
            if (!len || later || own >= 20000000)
                continue;
            const double all = own + cost[at + len];
            if (all < cost[at] || (all == cost[at] && (token[at] < 0 || len > length[at]))) {
                cost[at] = all;
                length[at] = len;
                token[at] = (int)i;
            }
        }
    }
    for (size_t at = 0; at < n; at += length[at]) {
        char utf8[4];
        const size_t width = pp_utf8_encode(c[at], utf8);
        if (token[at] >= 0)
            ids[(*n_ids)++] = OWN + BYTES + token[at];
        for (size_t i = 0; token[at] < 0 && i < width; i++)
            ids[(*n_ids)++] = OWN + (uint8_t)utf8[i];
    }
}

static bool is_white(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x3000 || c == 0x2003;
}

/* Where text is split before: around names of at most 64 characters, then around runs that contain no such split. */
static void plain_breaks(const struct chars *t, struct tok_breaks b, bool cut[MOST + 1])
{
    static const char begin[] = "<|plamo:";
    for (size_t i = 0; i + 8 <= t->n; i++) {
        size_t j = i, k = 0;
        while (k < 8 && t->c[i + k] == begin[k])
            k++;
        if (k < 8)
            continue;
        for (j = i + 8; j < t->n && j < i + 72 && t->c[j] != '|' && !is_white(t->c[j]);)
            j++;
        if (j + 1 < t->n && t->c[j] == '|' && t->c[j + 1] == '>') {
            cut[i] = cut[j + 2] = true;
            i = j + 1;
        }
    }
    for (size_t i = 0, run; i < t->n; i += run) {
        run = 1;
        while (i + run < t->n && t->c[i + run] == t->c[i] && !cut[i + run])
            run++;
        if ((b.alike && run >= b.alike && t->c[i] != '\n') || (b.spaces && run >= b.spaces && t->c[i] == ' '))
            cut[i] = cut[i + run] = true;
    }
}

static size_t plain_tokens(const char *text, size_t n, struct tok_breaks b, int32_t *ids)
{
    static struct chars t;
    bool cut[MOST + 1] = {false};
    size_t n_ids = 0, from = 0;
    read_chars(text, n, &t);
    if (b.on)
        plain_breaks(&t, b, cut);
    for (size_t i = 0; i <= t.n; i++) {
        const bool boundary = b.on && i < t.n && t.c[i] == 0xEE00;
        if (i < t.n && !cut[i] && !boundary)
            continue;
        plain_cut(t.c + from, i - from, ids, &n_ids);
        from = i + boundary;
    }
    return n_ids;
}

/* --- random texts ------------------------------------------------------------------------------------------------- */

static void random_text(uint32_t *random, struct pp_buf *out)
{
    static const char *const parts[] = {
        "a", "b", "c", "aa", "abc", "dear", "xyz", "never", "gain", "n", "q", " ", "  ", "\n", "\t", "\xc3\xa9",
        "\xe6\x97\xa5", "\xe6\x9c\xac", "\xe8\xaa\x9e", "\xe6\x97\xa5\xe6\x9c\xac", "\xe3\x81\xaf", "\xe6\xbc\xa2",
        "\xf0\x9f\x98\x80", "\xf0\x9f\xa6\x99", "\xef\xbb\xbf", "\xee\xb8\x80", "\xff", "\x80", "\xe6\x97", "\xf0\x9f",
        "<|plamo:op|>", "<|plamo:", "<|plamo:a a|>", "<|plamo:aaaaaa|>", "|>", "<0x41>", "\xe2\x96\x81" "a",
        "\xef\xbf\xbd",
        "<|plamo:0123456789012345678901234567890123456789012345678901234567890123|>",
        "<|plamo:01234567890123456789012345678901234567890123456789012345678901234|>",
        "<|plamo:\x1d|>", "<|plamo:\xe6\x97\xa5|>", "<|plamo:\xe3\x80\x80|>", "<|plamo:<|plamo:x|>"};
    pp_buf_clear(out);
    for (int n = 1 + (int)((*random = *random * 1664525u + 1013904223u) >> 27); n > 0; n--) {
        *random = *random * 1664525u + 1013904223u;
        const char *part = parts[(*random >> 8) % (sizeof parts / sizeof *parts)];
        const bool runs = (*random >> 4 & 7) == 0;
        for (unsigned i = 0; i < (runs ? 1 + (*random >> 24) % 9 : 1); i++)
            pp_buf_str(out, part);
    }
}

static void check_text(const struct pp_tokenizer *t, const char *text, size_t n)
{
    static int32_t want[4 * MOST];
    const size_t n_want = plain_tokens(text, n, t->breaks, want);
    int32_t *ids;
    size_t n_ids;
    struct pp_error err;
    struct pp_buf back = {0};
    assert_ok(pp_tokenize(t, text, n, 0, &ids, &n_ids, &err), err);
    for (size_t i = 0; i < n_ids && i < n_want; i++)
        if (ids[i] != want[i])
            fail_msg("\"%s\": token %zu is %d, not %d", text, i, ids[i], want[i]);
    assert_int_equal(n_ids, n_want);
    pp_detokenize(t, ids, n_ids, false, &back);
    if (pp_utf8_valid(text, n) && !strstr(text, "\xee\xb8\x80"))
        assert_string_equal(pp_buf_cstr(&back), text);
    pp_buf_free(&back);
    pp_free(ids);
}

static struct pp_tokenizer *through_folder(const struct pp_tokenizer *t, const char *name)
{
    struct pp_error err;
    char folder[300];
    snprintf(folder, sizeof folder, "%s/%s", test_tmpdir(), name);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_ok(pp_tokenizer_to_folder(t, folder, &err), err);
    return open_tokenizer(folder);
}

static void random_texts(void **state)
{
    static const struct tok_breaks all[] = {{false, 0, 0}, {true, 4, 2}, {true, 0, 0}, {true, 0, 3}, {true, 1, 1}};
    uint32_t random = 7;
    struct pp_buf text = {0};
    (void)state;
    for (size_t b = 0; b < sizeof all / sizeof *all; b++) {
        char name[32];
        snprintf(name, sizeof name, "plamo-%zu", b);
        struct pp_tokenizer *made = make(all[b]);
        struct pp_tokenizer *const t[] = {made, through_gguf(made), through_folder(made, name)};
        for (int i = 0; i < 1500; i++) {
            random_text(&random, &text);
            check_text(t[i % 3], text.data, text.len);
        }
        for (int i = 0; i < 3; i++) {
            assert_true(pp_tokenizer_is_end(t[i], 2) && pp_tokenizer_is_end(t[i], 4) && !pp_tokenizer_is_end(t[i], 3));
            assert_memory_equal(&t[i]->breaks.alike, &all[b].alike, sizeof all[b].alike);
            pp_tokenizer_free(t[i]);
        }
    }
    pp_buf_free(&text);
}

/* A user's text never becomes one of the tokens that control a conversation. */
static void own_tokens(void **state)
{
    struct pp_tokenizer *t = make((struct tok_breaks){true, 4, 2});
    (void)state;
    expect_tokens(t, "a<|plamo:op|>b", PP_TOKENIZE_SPECIAL, "a|<|plamo:op|>|b");
    expect_tokens(t, "a<|plamo:op|>b", 0, "a|<||plamo|:|op||>|b");
    expect_tokens(t, "aaaaaaab", 0, "aaaa|aa|a|b");
    expect_tokens(t, "\xff", 0, "\xef\xbf\xbd");
    expect_tokens(t, "A", 0, "A");
    pp_tokenizer_free(t);
}

/* Ten times the text takes about ten times as long. */
static void long_runs(void **state)
{
    static const struct tok_breaks all[] = {{false, 0, 0}, {true, 4, 2}};
    static const char *const letters[] = {"a", "q", " ", "<", "\xe6\x97\xa5", "<|plamo:", "\xff"};
    (void)state;
    for (size_t b = 0; b < 2; b++) {
        struct pp_tokenizer *t = make(all[b]);
        for (size_t l = 0; l < sizeof letters / sizeof *letters; l++) {
            const size_t width = strlen(letters[l]), n = ((size_t)1 << 20) / width * width;
            char *text = pp_malloc(n);
            int32_t *ids;
            size_t n_ids;
            struct pp_error err;
            assert_non_null(text);
            for (size_t i = 0; i < n; i++)
                text[i] = letters[l][i % width];
            const uint64_t begin = pp_now_ns();
            assert_ok(pp_tokenize(t, text, n, 0, &ids, &n_ids, &err), err);
            assert_true(pp_now_ns() - begin < 20000000000u);
            assert_true(n_ids >= n / 16);
            pp_free(ids);
            pp_free(text);
        }
        pp_tokenizer_free(t);
    }
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* A GGUF file as converters write it, which does not say where text is split before. */
static const char *plain_file(const char *family, unsigned n_bytes)
{
    static char names[BYTES][8];
    struct pp_str tokens[BYTES + 4];
    float scores[BYTES + 4] = {0};
    int32_t types[BYTES + 4];
    const char *path = test_path("plamo.gguf");
    unsigned n = 0;
    for (; n < n_bytes; n++) {
        snprintf(names[n], sizeof names[n], "<0x%02X>", n);
        tokens[n] = (struct pp_str){names[n], 6};
        types[n] = TOK_BYTE;
    }
    static const char *const more[] = {"a", "aa", "aaa", "ab"};
    for (int i = 0; i < 4; i++, n++) {
        tokens[n] = (struct pp_str){more[i], strlen(more[i])};
        types[n] = TOK_NORMAL;
        scores[n] = -3;
    }
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.architecture", family);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "plamo2");
    pp_gguf_add_text(w, "tokenizer.ggml.pre", "default");
    pp_gguf_add_str_array(w, "tokenizer.ggml.tokens", tokens, n);
    pp_gguf_add_f32_array(w, "tokenizer.ggml.scores", scores, n);
    pp_gguf_add_i32_array(w, "tokenizer.ggml.token_type", types, n);
    pp_gguf_add_bool(w, "tokenizer.ggml.add_space_prefix", false);
    gguf_file_end(w, NULL, 0);
    return path;
}

static void by_family(void **state)
{
    struct pp_tokenizer *t = open_tokenizer(plain_file("plamo2", BYTES));
    struct pp_error err;
    (void)state;
    expect_tokens(t, "aaaab", 0, "aaa|ab");
    pp_tokenizer_free(t);
    t = open_tokenizer(plain_file("plamo3", BYTES));
    expect_tokens(t, "aaaab", 0, "aaa|a|b");
    pp_tokenizer_free(t);
    assert_int_equal(pp_tokenizer_open(plain_file("plamo2", 200), &t, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "<0xC8>"));
}

/* A model's folder with such a vocabulary, converted to another folder and to a file. */
static void with_a_model(void **state)
{
    static const char text[] = "aaaaa  b\xe6\x97\xa5\xe6\x9c\xac<|plamo:op|>gain";
    const struct pp_convert_options opt = {0};
    struct decoder_shape s = decoder_shape("plamo3");
    struct pp_tokenizer *made = make((struct tok_breaks){true, 5, 2});
    char paths[3][300];
    struct pp_error err;
    (void)state;
    for (int i = 0; i < 3; i++)
        snprintf(paths[i], sizeof paths[i], "%s/plamo-model-%d%s", test_tmpdir(), i, i == 2 ? ".gguf" : "");
    s.n_vocab = N;
    s.n_layer = 1;
    struct decoder *d = decoder_make(&s);
    assert_ok(pp_convert_to_folder(decoder_write(d), paths[0], &opt, &err), err);
    assert_ok(pp_tokenizer_to_folder(made, paths[0], &err), err);
    assert_ok(pp_convert_to_folder(paths[0], paths[1], &opt, &err), err);
    assert_ok(pp_convert_to_gguf(paths[1], paths[2], &opt, &err), err);
    for (int i = 0; i < 3; i++) {
        struct pp_tokenizer *t = open_tokenizer(paths[i]);
        assert_true(pp_tokenizer_equal(made, t, &err));
        check_text(t, text, sizeof text - 1);
        assert_int_equal(t->breaks.alike, 5);
        pp_tokenizer_free(t);
    }
    decoder_free(d);
    pp_tokenizer_free(made);
}

static void bad_lines(void **state)
{
    static const char *const bad[] = {"[\"a\", -1, \"NORMAL\"]\n", "[\"a\"]", "[1, 2]", "[\"a\", \"b\"]", "[", "[]",
                                      "[\"\\u0000\", 1]", "[\"a\", 1]\n{}", ""};
    struct pp_tokenizer *t;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tok_from_plamo(bad[i], strlen(bad[i]), NULL, &t, &err), PP_ERR_FORMAT);
}

TEST_GROUP(tokenizer_plamo)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_texts), cmocka_unit_test(own_tokens), cmocka_unit_test(long_runs),
        cmocka_unit_test(by_family), cmocka_unit_test(with_a_model), cmocka_unit_test(bad_lines),
    };
    return cmocka_run_group_tests_name("tokenizer_plamo", tests, NULL, NULL);
}
