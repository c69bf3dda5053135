/* fuzz_train.c - libFuzzer target: the bytes are examples for training, read for the bundled model; the first byte says
 * how long they may be. Examples that are read consist of tokens of the vocabulary, of which at least one is learnt. */
#include <stdlib.h>

#include "engine/engine.h"
#include "engine/train_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct pp_model *model(void)
{
    static struct pp_model *m;
    struct pp_error err;
    if (!m && pp_model_open("engine/starter/starter-Q4_K_M.gguf", &m, &err) != PP_OK)
        abort(); /* run it in the repository's root */
    return m;
}

static void check(const struct pp_train_data *d, int64_t n_vocab, int64_t max_tokens)
{
    for (size_t i = 0; i < d->n; i++) {
        const struct pp_example *e = &d->examples[i];
        int32_t learnt = 0;
        for (int32_t k = 0; k < e->n; k++) {
            int32_t token = d->tokens[e->first + (size_t)k];
            learnt += d->learnt[e->first + (size_t)k];
            if (token < 0 || token >= n_vocab)
                abort();
        }
        if (e->n > max_tokens || !learnt || learnt != e->n_learnt || d->learnt[e->first])
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_train_data *d;
    struct pp_error err;
    if (!size)
        return 0;
    struct pp_train_data_options opt = {.max_tokens = 2 + data[0]};
    if (pp_train_data_parse(model(), (const char *)data + 1, size - 1, "fuzz", &opt, &d, &err) != PP_OK)
        return 0;
    check(d, pp_model_info(model())->n_vocab, opt.max_tokens);
    pp_train_data_free(d);
    return 0;
}
