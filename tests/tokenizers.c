/* tokenizers.c - what the tests of tokenizers share. */
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
