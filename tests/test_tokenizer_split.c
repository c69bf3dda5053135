/* test_tokenizer_split.c - splitting into words without regular expressions gives the same words as with them, and
 * remembered words have the same tokens as those that are tokenised again. */
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/base/map.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"
#include "tests/support.h"
#include "tests/tokenizers.h"

static uint32_t random_state;

static uint32_t rnd(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % below;
}

/* --- texts --------------------------------------------------------------------------------------------- */

/* Pieces of text that rules distinguish, and that they might confuse. */
static const char *const bits[] = {
    " ", " ", "  ", "\n", "\r\n", "\n\n", "\t", "\v", "\x01", "\x7f", "/", "'", "'s", "'S", "'ll", "'lL", "'re", "'VE",
    "'x", "'l", "'\xc5\xbf", "a", "Z", "word", "Word", "WORD", "camelCase", "12", "7", "345", "!", "?!", "_", "$", "+",
    "<|", "`", "(", ")", ",", ".", "-", "\"", "[", "]", "\\", "^", "\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80",
    "\xe2\x80\x83", "\xe2\x80\xa8", "\xe3\x80\x80", "\xe1\xa0\x8e", "\xe2\x80\x8b", "\xc3\xa9", "\xc3\x89", "\xc2\xaa",
    "\xc5\xbf", "\xc7\x85", "\xca\xb0", "\xcc\x81", "\xcc\x81\xcc\x81", "\xe0\xa4\x95", "\xe0\xa4\xbe", "\xe2\x83\x9d",
    "\xd0\x9f\xd1\x80", "\xce\xa9", "\xe4\xb8\xad", "\xe4\xb8\xad\xe6\x96\x87", "\xe3\x81\x82", "\xe3\x82\xab",
    "\xea\xb0\x80", "\xed\x9f\xbf", "\xef\xbc\x81", "\xe2\x80\x98", "\xe3\x80\x81", "\xe3\x80\x82", "\xd8\x8c",
    "\xdb\x94", "\xe0\xa5\xa4", "\xe2\x80\xa6", "\xd9\xa3", "\xe2\x85\xa7", "\xc2\xbd", "\xe2\x82\xac",
    "\xf0\x9f\xa6\x99",
    "\xf0\x9d\x90\x80", "\xf0\x90\x90\x80", "\xe2\x96\x81", "\xff", "\x80", "\xe4\xb8", "\xc0\x80", "\xed\xa0\x80",
    "\xf4\x90",
    "\xe2\x80\x8c", "\xe2\x80\x8d",
};

static size_t random_text(char *text, size_t room)
{
    const size_t wanted = rnd((uint32_t)room);
    size_t n = 0;
    while (n < wanted) {
        const char *bit = bits[rnd(sizeof bits / sizeof *bits)];
        char utf8[4];
        size_t len = strlen(bit), again = rnd(8) ? 1 : rnd(12);
        if (rnd(16) == 0) { /* any character */
            int32_t c = (int32_t)rnd(rnd(2) ? 0x3000 : 0x110000);
            bit = utf8;
            len = pp_utf8_encode(c >= 0xd800 && c < 0xe000 ? 'x' : c, utf8);
        }
        for (; again > 0 && len <= wanted - n; again--, n += len)
            memcpy(text + n, bit, len);
        if (len > wanted - n)
            break;
    }
    return n;
}

/* --- words --------------------------------------------------------------------------------------------- */

struct words {
    size_t n, len[4096];
};

static enum pp_code add_word(void *ctx, const char *word, size_t n, struct pp_error *err)
{
    struct words *w = ctx;
    (void)word;
    (void)err;
    assert_true(w->n < sizeof w->len / sizeof *w->len);
    w->len[w->n++] = n;
    return PP_OK;
}

static void split(const struct tok_splitter *s, const char *text, size_t n, struct words *w)
{
    struct pp_error err;
    struct tok_split_state *st = tok_split_state_new(s, n);
    char *copy = pp_malloc(n ? n : 1); /* a copy of exactly this size, so that the sanitizers notice reads past the
                                          text */
    assert_non_null(st);
    assert_non_null(copy);
    memcpy(copy, text, n);
    w->n = 0;
    assert_ok(tok_split(s, st, copy, n, false, add_word, w, &err), err);
    tok_split_state_free(st);
    pp_free(copy);
}

struct both {
    struct tok_splitter *fast, *plain;
    const char *name;
};

static void both_new(struct both *b, const char *name, const char *const *patterns)
{
    struct pp_str list[TOK_MAX_PATTERNS];
    struct pp_error err;
    size_t n = 0;
    for (; patterns[n]; n++)
        list[n] = (struct pp_str){patterns[n], strlen(patterns[n])};
    b->name = name;
    assert_ok(tok_splitter_new(list, n, &b->fast, &err), err);
    assert_ok(tok_splitter_new_plain(list, n, &b->plain, &err), err);
    assert_int_equal(tok_splitter_expressions(b->plain), n);
}

static void both_free(struct both *b)
{
    tok_splitter_free(b->fast);
    tok_splitter_free(b->plain);
}

static void expect_same(const struct both *b, const char *text, size_t n)
{
    static struct words fast, plain;
    struct pp_buf shown = {0};
    split(b->fast, text, n, &fast);
    split(b->plain, text, n, &plain);
    if (fast.n == plain.n && memcmp(fast.len, plain.len, fast.n * sizeof *fast.len) == 0)
        return;
    if (has_new_characters(text, n))
        return;
    for (size_t i = 0; i < n; i++)
        pp_buf_fmt(&shown, (uint8_t)text[i] > ' ' && (uint8_t)text[i] < 0x7f ? "%c" : "\\x%02x", (uint8_t)text[i]);
    pp_buf_str(&shown, ": fast");
    for (size_t i = 0; i < fast.n; i++)
        pp_buf_fmt(&shown, " %zu", fast.len[i]);
    pp_buf_str(&shown, ", plain");
    for (size_t i = 0; i < plain.n; i++)
        pp_buf_fmt(&shown, " %zu", plain.len[i]);
    fail_msg("%s: %s", b->name, pp_buf_cstr(&shown));
}

static void expect_same_on_random_texts(const struct both *b, int texts)
{
    char text[200];
    for (int i = 0; i < texts; i++)
        expect_same(b, text, random_text(text, i % 4 ? 24 : sizeof text));
}

/* --- tests --------------------------------------------------------------------------------------------- */

/* Calls fn for each list of patterns that some rule has. */
static void each_rule(void (*fn)(const struct both *))
{
    struct pp_buf names = {0};
    const char *const *seen[64];
    size_t n_seen = 0;
    tok_rule_names(&names);
    for (char *name = strtok(names.data, ", "); name; name = strtok(NULL, ", ")) {
        const char *const *patterns = tok_rule_by_name(name, strlen(name))->patterns;
        struct both b;
        size_t i = 0;
        while (i < n_seen && seen[i] != patterns)
            i++;
        if (i < n_seen)
            continue;
        assert_true(n_seen < sizeof seen / sizeof *seen);
        seen[n_seen++] = patterns;
        both_new(&b, name, patterns);
        fn(&b);
        both_free(&b);
    }
    assert_true(n_seen > 10);
    pp_buf_free(&names);
}

static void check_rule(const struct both *b)
{
    assert_int_equal(tok_splitter_expressions(b->fast), 0);
    expect_same_on_random_texts(b, 4000);
}

static void rules(void **state)
{
    (void)state;
    random_state = 1;
    each_rule(check_rule);
}

static enum pp_code add_length(void *sum, const char *word, size_t n, struct pp_error *err)
{
    (void)word;
    (void)err;
    *(size_t *)sum += n;
    return PP_OK;
}

/* Half a megabyte of the same text repeated. Looking again at a place for every other place would take hours. */
static void check_long_runs(const struct both *b)
{
    enum { SIZE = 1 << 19 };
    static const char *const runs[] = {
        "a", "A", " ", "7", "!", "\n", "\r", "'", "/", "\xff", "\xc2\xa0", "\xcc\x81", "\xe4\xb8\xad", "\xea\xb0\x80",
        "a ", " \n", "\xcc\x81""A", "                                               x",
    };
    char *text = pp_malloc(SIZE);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct tok_split_state *st = tok_split_state_new(b->fast, SIZE);
        struct pp_error err;
        size_t sum = 0;
        assert_non_null(st);
        for (size_t k = 0; k < SIZE; k++)
            text[k] = runs[i][k % strlen(runs[i])];
        assert_ok(tok_split(b->fast, st, text, SIZE, false, add_length, &sum, &err), err);
        assert_int_equal(sum, SIZE);
        tok_split_state_free(st);
    }
    pp_free(text);
}

static void long_runs(void **state)
{
    (void)state;
    each_rule(check_long_runs);
}

/* White space that is split into pieces is looked at once, however long it is. */
static void long_spaces(void **state)
{
    enum { SIZE = 1 << 26 };
    struct both b;
    struct pp_error err;
    size_t sum = 0;
    char *text = pp_malloc(SIZE);
    (void)state;
    assert_non_null(text);
    both_new(&b, "jais-2", tok_rule_by_name("jais-2", 6)->patterns);
    struct tok_split_state *st = tok_split_state_new(b.fast, SIZE);
    memset(text, ' ', SIZE);
    text[SIZE - 1] = 'x';
    const uint64_t begin = pp_now_ns();
    assert_ok(tok_split(b.fast, st, text, SIZE, false, add_length, &sum, &err), err);
    assert_true(pp_now_ns() - begin < 20000000000u);
    assert_int_equal(sum, SIZE);
    tok_split_state_free(st);
    both_free(&b);
    pp_free(text);
}

/* How rules split a few texts. */
static void vectors(void **state)
{
    static const struct { const char *rule, *words; } cases[] = {
        {"afmoe", "a| |1|234|567| b|12|,|123|456|.\n"},
        {"afmoe", "x|\xe4\xb8\xad\xe6\x96\x87|y| !!"},
        {"superbpe", "in the year |1|234|567|, they said |89"},
        {"tiny_aya", "Cost|:| |1|234|567| or|123|4|a"},
        {"tiny_aya", "It's| |12|."},
        {"tiny_aya", "1|000|\xc2\xb2| |4|\xc2\xbd| |123|4\xe2\x85\xa7" "1|2|\xe2\x80\xbf"},
        {"exaone-moe", "one two three| | four|!\n|\n|5|6| '|s"},
        {"exaone-moe", "\xea\xb0\x80 \xea\xb0\x80|'s|\n\n|x"},
        {"qwen35", "\xe0\xa4\x95\xe0\xa4\xbe| \xe0\xa4\x95\xcc\x81|1|2|'LL| ?!\n"},
        {"qwen2", "\xe0\xa4\x95|\xe0\xa4\xbe| \xe0\xa4\x95|\xcc\x81|1|2"},
        {"minicpm5", "abc|123|4| d"},
        {"k2-horizon", "\xd9\x85\xdb\x8c\xe2\x80\x8c\xd8\xae\xd9\x88\xd8\xa7\xd9\x87\xd9\x85| \xe0\xa4\x95\xe0\xa4\xbe"
                       "|123|4|'LL| ?!\n| x"},
        {"ufakzeka", "Ankara|'da| |1|2"},
        {"jais-2", "a|    | | x|\n| y|    |  "},
        {"jais-2", "!\n|   \n|    |  |\t| !\n\n| \n \xe3\x80\x80\n|        | x"},
        {"jais-2", "a| \xb5|\v\n\n|x"}, /* a word that ends within a character */
        {"chameleon", "def|    |  | x|\n|1|2|,|,"},
        {"laguna", "a| b|.|\n\n|\tc"},
        {"qwen2", "a| b|.\n\n|\tc"},
        {"spark2_5", "ab|1|2|3|4|.|\n|\n|c"},
        {"youtu", "Word|Word's|1|2|\xea\xb0\x80|\xe3\x80\x81|\xe4\xb8\xad"},
        {"kimi-k2", "Hello|World's|123|4|\xe4\xb8\xad\xe6\x96\x87|ab| |\xe4\xb8\xad| ?!\n"},
        {"kimi-k2", "\xe3\x81\x82\xe3\x81\x84|\xe4\xb8\xad|\xe3\x80\x82\n|   | |\xe6\x96\x87| x"},
        {"granite-docling", "it|'s| 123"},
        {"solar-open", "it|'s| |1|2|3"},
        {"mellum2", "it|'s| |1|2|3"},
        {"kanana2", "It's| |123|4"},
        {"joyai-llm", "ab|123|4| c|.\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct words w;
        struct both b;
        char text[100];
        size_t n = 0, k = 0, len = 0;
        for (const char *c = cases[i].words; *c; c++)
            if (*c != '|')
                text[n++] = *c;
        both_new(&b, cases[i].rule, tok_rule_by_name(cases[i].rule, strlen(cases[i].rule))->patterns);
        expect_same(&b, text, n);
        split(b.fast, text, n, &w);
        for (const char *c = cases[i].words;; c++) {
            if (*c && *c != '|') {
                len++;
                continue;
            }
            if (k >= w.n || w.len[k] != len)
                fail_msg("%s: word %zu of \"%s\" has %zu bytes, not %zu", cases[i].rule, k, cases[i].words,
                         k < w.n ? w.len[k] : 0, len);
            k++;
            len = 0;
            if (!*c)
                break;
        }
        assert_int_equal(k, w.n);
        both_free(&b);
    }
}

static void classes(void **state)
{
    (void)state;
    static const char *const same[] = {
        "\\p{L}+", "\\p{N}", "\\p{N}{1,3}", "\\p{N}{2,3}", "[0-9][0-9][0-9]", " ?[\\p{P}\\p{S}]+", "[^\\p{L}\\p{M}]+",
        "[^ \\n]?[\\x{e9}-\\x{20ac}a-z]+", "[\\t\\r\\n\\f]+", "[a\\-z\\]\\[\\\\\\^]+", "[^^]",
        "[\\x{4e00}-\\x{9fa5}]{1,2}", "[z-za-cb-d]+", "\\p{L}?\\p{N}+", "[\xc3\xa9-\xc3\xbf]+",
    };
    static const char *const others[] = {
        "\\s+", "\\w", "a", "a+", "[a-z]*", "[a-z]+?", "[a-z]++", "[[:alpha:]]+", "[]a]", "[a-]", "[-a]", "[\\d]+",
        "[\\v]", "\\p{Lu}+", "\\p{^L}", "\\P{L}", "[a-z]{3}", "[a-z]{1,}", "[a-z]{17,20}", "[\\p{L}-z]", "a|b",
        "[a]|[b]", "(?i:[a])", "[a] ?", "[a][b]", "^[a]+", "[a]+$", "[a]{1,2}{1,2}", "",
    };
    random_state = 2;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const char *const patterns[] = {same[i], NULL};
        struct both b;
        both_new(&b, same[i], patterns);
        assert_int_equal(tok_splitter_expressions(b.fast), 0);
        expect_same_on_random_texts(&b, 1000);
        both_free(&b);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct tok_runs *r;
        struct pp_error err;
        assert_ok(tok_runs_new((struct pp_str){others[i], strlen(others[i])}, &r, &err), err);
        if (r)
            fail_msg("%s was taken for a run of a class", others[i]);
    }
}

/* Levels with and without regular expressions, on text that is not UTF-8. */
static void mixed(void **state)
{
    (void)state;
    static const char *const patterns[] = {"\\p{N}{1,3}", "\\w+", "[\\p{P}$+<=>^~|]+", NULL};
    struct both b;
    both_new(&b, "mixed", patterns);
    assert_int_equal(tok_splitter_expressions(b.fast), 1);
    random_state = 3;
    expect_same_on_random_texts(&b, 2000);
    both_free(&b);
}

static void every_character(void **state)
{
    (void)state;
    static const struct { const char *pattern; unsigned class; } known[] = {
        {"\\p{L}", TOK_LETTER}, {"[\\p{Lu}\\p{Lt}]", TOK_UPPER}, {"\\p{Ll}", TOK_LOWER}, {"\\p{M}", TOK_MARK},
        {"\\p{N}", TOK_NUMBER}, {"\\p{P}", TOK_PUNCT}, {"\\p{S}", TOK_SYMBOL},
        {"[\\x{85}\\p{Z}\\t-\\r]", TOK_SPACE_CHAR}, {"[\\r\\n]", TOK_LINE_END},
    };
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        int problem;
        PCRE2_SIZE where;
        pcre2_code *code = pcre2_compile((PCRE2_SPTR)known[k].pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                         &problem, &where, NULL);
        assert_non_null(code);
        pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
        pcre2_match_data *found = pcre2_match_data_create(1, NULL);
        for (int32_t c = 0; c < 0x110000; c = c == 0xd7ff ? 0xe000 : c + 1) {
            char utf8[4];
            const size_t n = pp_utf8_encode(c, utf8);
            const bool want = pcre2_match(code, (PCRE2_SPTR)utf8, n, 0, PCRE2_NO_UTF_CHECK, found, NULL) >= 0;
            if (want != ((tok_char_class(c) & known[k].class) != 0) && !has_new_characters(utf8, n))
                fail_msg("U+%04X %s %s", (unsigned)c, want ? "is" : "is not", known[k].pattern);
        }
        pcre2_match_data_free(found);
        pcre2_code_free(code);
    }
    assert_int_equal(tok_char_class(-1), 0);
}

/* --- the cache of words ---------------------------------------------------------------------------------- */

/* The simple way: words from regular expressions, none of them remembered. */
static void tokenize_plainly(const struct pp_tokenizer *t, const struct tok_splitter *plain, const char *text, size_t n,
                             struct tok_merger *m)
{
    static struct words w;
    struct pp_error err;
    m->t = t;
    for (size_t at = 0; at < n;) { /* in pieces as long as struct words has room for */
        const size_t part = n - at < 4096 ? n - at : 4096;
        split(plain, text + at, part, &w);
        for (size_t i = 0; i < w.n; at += w.len[i++]) {
            m->end = text + at + w.len[i];
            assert_ok(tok_merge_word(m, text + at, w.len[i], &err), err);
        }
    }
}

static void expect_plain_ids(const char *vocabulary, const char *const *patterns)
{
    enum { SIZE = 4096 };
    static char text[SIZE];
    struct both b;
    struct pp_tokenizer *t = open_tokenizer(testdata(vocabulary));
    both_new(&b, vocabulary, patterns);
    for (int i = 0; i < 60; i++) {
        struct tok_merger m = {0};
        struct pp_error err;
        int32_t *ids;
        size_t n = 0, n_ids;
        while (n < SIZE - 300)
            n += random_text(text + n, 200);
        for (size_t k = 0; k < n; k++) /* user-defined tokens are tested elsewhere */
            text[k] = text[k] == '<' ? '=' : text[k];
        if (has_new_characters(text, n))
            continue;
        assert_ok(pp_tokenize(t, text, n, 0, &ids, &n_ids, &err), err);
        tokenize_plainly(t, b.plain, text, n, &m);
        for (size_t k = 0; k < n_ids && k < m.ids.n; k++)
            if (ids[k] != m.ids.v[k])
                fail_msg("%s, text %d: id %zu is %d, not %d", vocabulary, i, k, ids[k], m.ids.v[k]);
        assert_int_equal(n_ids, m.ids.n);
        tok_merge_free(&m);
        pp_free(ids);
    }
    pp_tokenizer_free(t);
    both_free(&b);
}

static void remembered_words(void **state)
{
    (void)state;
    if (!testdata("tokenizers/gpt-2.gguf"))
        skip();
    random_state = 4;
    expect_plain_ids("tokenizers/gpt-2.gguf", tok_rule_by_name("gpt-2", 5)->patterns);
    expect_plain_ids("tokenizers/qwen2.gguf", tok_rule_by_name("qwen2", 5)->patterns);
    expect_plain_ids("tokenizers/falcon.gguf", tok_rule_by_name("falcon", 6)->patterns);
}

/* More words than the cache has entries, many of which share one. */
static void crowded_cache(void **state)
{
    (void)state;
    enum { WORDS = 30000 };
    if (!testdata("tokenizers/gpt-2.gguf"))
        skip();
    struct pp_tokenizer *t = open_tokenizer(testdata("tokenizers/gpt-2.gguf"));
    struct pp_buf text = {0};
    struct tok_merger remembers = {.t = t}, forgets = {.t = t};
    struct pp_error err;
    random_state = 5;
    tok_merge_use_cache(&remembers, 2048); /* few entries */
    assert_non_null(remembers.cache);
    for (int i = 0; i < WORDS; i++) {
        const uint32_t n = rnd(4) ? 1 + rnd(3) : 1 + rnd(40);
        pp_buf_clear(&text);
        for (uint32_t k = 0; k < n + 40; k++)
            pp_buf_char(&text, (char)(rnd(8) ? 'a' + (int)rnd(4) : (int)rnd(256)));
        for (int both = 0; both < 2; both++) {
            struct tok_merger *m = both ? &remembers : &forgets;
            m->end = text.data + (rnd(2) ? n : text.len);
            assert_ok(tok_merge_word(m, text.data, n, &err), err);
        }
        assert_int_equal(remembers.ids.n, forgets.ids.n);
    }
    assert_memory_equal(remembers.ids.v, forgets.ids.v, forgets.ids.n * sizeof(int32_t));
    tok_merge_free(&remembers);
    tok_merge_free(&forgets);
    pp_buf_free(&text);
    pp_tokenizer_free(t);
}

TEST_GROUP(tokenizer_split)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules),
        cmocka_unit_test(vectors),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(long_spaces),
        cmocka_unit_test(classes),
        cmocka_unit_test(mixed),
        cmocka_unit_test(every_character),
        cmocka_unit_test(remembered_words),
        cmocka_unit_test(crowded_cache),
    };
    return cmocka_run_group_tests_name("tokenizer_split", tests, NULL, NULL);
}
