/* fuzz_tokenizer.c - any bytes as a tokenizer.json (if they begin with a brace), as tiktoken's ranks (if they begin so)
 * or as a SentencePiece model; what loads tokenizes a text and turns it back. */
#include "engine/tokenizer_internal.h"
#include "tests/hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_tokenizer *t;
    struct pp_error err;
    enum pp_code code;
    if (size > 0 && data[0] == '{')
        code = tok_from_json((const char *)data, size, NULL, &t, &err);
    else if (tok_is_tiktoken((const char *)data, size))
        code = tok_from_tiktoken((const char *)data, size, "qwen.tiktoken", NULL, &t, &err);
    else
        code = tok_from_sentencepiece(data, size, NULL, &t, &err);
    if (code == PP_OK) {
        hostile_tokenize(t);
        pp_tokenizer_free(t);
    }
    return 0;
}
