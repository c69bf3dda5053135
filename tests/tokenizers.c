/* tokenizers.c - see tokenizers.h. */
#include "tests/gguf_file.h"
#include "tests/tokenizers.h"

#include <stdio.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"
#include "tests/support.h"

struct pp_tokenizer *open_tokenizer(const char *path)
{
    struct pp_tokenizer *t;
    struct pp_error err;
    assert_ok(pp_tokenizer_open(path, &t, &err), err);
    return t;
}

struct pp_tokenizer *through_gguf(const struct pp_tokenizer *t)
{
    struct pp_error err;
    char path[256];
    snprintf(path, sizeof path, "%s/tok_again.gguf", test_tmpdir());
    struct pp_gguf_writer *w = gguf_file_begin(path);
    assert_ok(pp_tokenizer_to_gguf(t, 0, w, &err), err);
    gguf_file_end(w, NULL, 0);
    return open_tokenizer(path);
}

void put_varint(struct pp_buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        pp_buf_char(b, (char)(v | 0x80));
    pp_buf_char(b, (char)v);
}

void put_message(struct pp_buf *b, unsigned number, const struct pp_buf *message)
{
    put_varint(b, number << 3 | 2);
    put_varint(b, message->len);
    pp_buf_add(b, message->data, message->len);
}

void put_piece(struct pp_buf *b, const char *text, float score, unsigned type)
{
    struct pp_buf piece = {0}, body = {0};
    pp_buf_str(&body, text);
    put_message(&piece, 1, &body);
    put_varint(&piece, 2 << 3 | 5);
    pp_buf_add(&piece, &score, sizeof score);
    if (type != TOK_NORMAL) {
        put_varint(&piece, 3 << 3);
        put_varint(&piece, type);
    }
    put_message(b, 1, &piece);
    pp_buf_free(&piece);
    pp_buf_free(&body);
}

void expect_tokens(const struct pp_tokenizer *t, const char *text, unsigned flags, const char *want)
{
    int32_t *ids;
    size_t n;
    struct pp_error err;
    struct pp_buf got = {0};
    assert_ok(pp_tokenize(t, text, strlen(text), flags, &ids, &n, &err), err);
    for (size_t i = 0; i < n; i++) {
        if (i)
            pp_buf_char(&got, '|');
        pp_token_text(t, ids[i], true, &got);
    }
    assert_string_equal(pp_buf_cstr(&got), want);
    pp_buf_free(&got);
    pp_free(ids);
}

bool has_new_characters(const char *text, size_t n)
{
    static pcre2_code *unassigned;
    static pcre2_match_data *found;
    int problem;
    PCRE2_SIZE where;
    if (!unassigned) {
        unassigned = pcre2_compile((PCRE2_SPTR) "\\p{Cn}", 6, PCRE2_UTF | PCRE2_UCP, &problem, &where, NULL);
        found = pcre2_match_data_create(1, NULL);
    }
    assert_non_null(unassigned);
    for (size_t i = 0; i < n;) {
        int32_t c;
        const size_t width = pp_utf8_decode(text + i, n - i, &c);
        if (c >= 0x80 && (utf8proc_category(c) == UTF8PROC_CATEGORY_CN ||
                          pcre2_match(unassigned, (PCRE2_SPTR)text + i, width, 0, 0, found, NULL) >= 0))
            return true;
        i += width;
    }
    return false;
}

/* A double-array trie, each of whose nodes has 256 slots of its own, followed by the texts. */
enum { NODES = 16, PLACES = 256 };

static void put_u32(char *at, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        at[i] = (char)(v >> 8 * i);
}

void put_table(struct pp_buf *b, const struct replaced *pairs, size_t n_pairs)
{
    static char units[4 + 4 * PLACES * (NODES + 1)];
    static uint32_t children[NODES][PLACES];
    uint32_t n = 1;
    struct pp_buf to = {0};
    memset(units, 0, sizeof units);
    memset(children, 0, sizeof children);
    put_u32(units, sizeof units - 4);
    put_u32(units + 4, PLACES << 10); /* the children of node 0 begin there */
    for (size_t i = 0; i < n_pairs; i++) {
        uint32_t node = 0;
        for (const char *c = pairs[i].from; *c; c++) {
            uint32_t *child = &children[node][(uint8_t)*c];
            *child = *child ? *child : n++;
            assert_true(n <= NODES);
            const uint32_t place = PLACES * (node + 1) + (uint8_t)*c;
            char *unit = units + 4 + 4 * place;
            const uint32_t ends = (uint32_t)(!c[1] || (unit[1] & 1)) << 8;
            put_u32(unit, ((place ^ PLACES * (*child + 1)) << 10) | ends | (uint8_t)*c);
            node = *child;
        }
        put_u32(units + 4 + 4 * PLACES * (node + 1), (uint32_t)to.len | 1u << 31);
        pp_buf_add(&to, pairs[i].to, strlen(pairs[i].to) + 1);
    }
    pp_buf_add(b, units, sizeof units);
    pp_buf_add(b, to.data, to.len);
    pp_buf_free(&to);
}
