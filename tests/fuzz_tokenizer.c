/* fuzz_tokenizer.c - any bytes as a tokenizer.json or tekken.json (if they begin with a brace), as PLaMo's
 * tokenizer.jsonl (with a bracket), as tiktoken's ranks or RWKV's vocabulary (if they begin so) or as a SentencePiece
 * model; what loads tokenizes a text and turns it back. RWKV's is written again, and then stays as it is. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/tokenizer_internal.h"
#include "tests/hostile.h"

/* As the file is read: there is a NUL behind it. */
static enum pp_code from_lines(const void *data, size_t n, struct pp_tokenizer **out, struct pp_error *err)
{
    char *text = pp_calloc(n + 1, 1);
    if (!text)
        abort();
    memcpy(text, data, n);
    const enum pp_code code = n && text[0] == '[' ? tok_from_plamo(text, n, NULL, out, err)
                                                  : tok_from_rwkv(text, n, out, err);
    pp_free(text);
    return code;
}

static void check_rwkv(const struct pp_tokenizer *t)
{
    struct pp_buf once = {0}, twice = {0};
    struct pp_tokenizer *again;
    struct pp_error err;
    tok_rwkv_write(t, &once);
    if (from_lines(once.data, once.len, &again, &err))
        abort();
    tok_rwkv_write(again, &twice);
    if (once.len != twice.len || memcmp(once.data, twice.data, once.len) != 0)
        abort();
    pp_tokenizer_free(again);
    pp_buf_free(&once);
    pp_buf_free(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_tokenizer *t;
    struct pp_error err;
    enum pp_code code;
    if (size > 0 && data[0] == '{')
        code = tok_from_json((const char *)data, size, NULL, &t, &err);
    else if (tok_is_tiktoken((const char *)data, size))
        code = tok_from_tiktoken((const char *)data, size, "qwen.tiktoken", NULL, &t, &err);
    else if (tok_is_rwkv((const char *)data, size) || (size > 0 && data[0] == '['))
        code = from_lines(data, size, &t, &err);
    else
        code = tok_from_sentencepiece(data, size, NULL, &t, &err);
    if (code == PP_OK) {
        hostile_tokenize(t);
        if (t->kind == TOK_RWKV)
            check_rwkv(t);
        pp_tokenizer_free(t);
    }
    return 0;
}
