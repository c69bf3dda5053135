/* fuzz_tokenizer.c - any bytes as a tokenizer.json (if they begin with a brace) or as a SentencePiece model; what loads
 * tokenizes a text and turns it back. */
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/tokenizer_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct pp_tokenizer *t)
{
    static const char text[] =
        "Hello  world, it's 1234 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\xa6\x99\n\n\t</s><s>[INST] x\xff\x80 \xe2\x96\x81"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa <|eot_id|> ";
    for (unsigned flags = 0; flags < 4; flags++) {
        int32_t *ids;
        size_t n;
        struct pp_buf out = {0};
        if (pp_tokenize(t, text, sizeof text - 1, flags, &ids, &n, NULL))
            continue;
        for (size_t i = 0; i < n; i++)
            if (ids[i] < 0 || ids[i] >= pp_tokenizer_n(t))
                abort();
        pp_detokenize(t, ids, n, flags & PP_TOKENIZE_SPECIAL, &out);
        pp_buf_free(&out);
        pp_free(ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_tokenizer *t;
    struct pp_error err;
    enum pp_code code;
    if (size > 0 && data[0] == '{')
        code = tok_from_json((const char *)data, size, NULL, &t, &err);
    else
        code = tok_from_sentencepiece(data, size, NULL, &t, &err);
    if (code == PP_OK) {
        use(t);
        pp_tokenizer_free(t);
    }
    return 0;
}
