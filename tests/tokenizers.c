/* tokenizers.c - what the tests of tokenizers share. */
#include "tests/tokenizers.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
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
    struct pp_gguf_writer *w;
    struct pp_error err;
    char path[256];
    snprintf(path, sizeof path, "%s/tok_again.gguf", test_tmpdir());
    assert_ok(pp_gguf_writer_new(path, &w, &err), err);
    assert_ok(pp_tokenizer_to_gguf(t, w, &err), err);
    assert_ok(pp_gguf_writer_begin(w, &err), err);
    assert_ok(pp_gguf_writer_finish(w, &err), err);
    pp_gguf_writer_free(w);
    return open_tokenizer(path);
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
