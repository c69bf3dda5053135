/* fuzz_model.c - a model file, or a folder of config.json and model.safetensors: opened, prepared, and run for one
 * token.
 *
 * Input that begins with "GGUF" is a file. Otherwise it has two pieces: the configuration, and the weights. */

#include "tests/hostile.h"

static const char *const names[] = {"config.json", "model.safetensors", NULL};

static void run(const struct pp_model *m)
{
    const struct pp_engine_options options = {.n_threads = 1, .n_ctx = 64, .kv_memory = 1 << 22, .max_rows = 2};
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    if (pp_engine_new(m, &options, NULL, NULL, &e, &err))
        return;
    if (pp_seq_new(e, &s, &err) == PP_OK) {
        const struct pp_row rows[2] = {
            {.seq = s, .token = 0, .parent = PP_PARENT_PREVIOUS},
            {.seq = s,
             .token = (int32_t)pp_model_info(m)->n_vocab - 1,
             .parent = PP_PARENT_PREVIOUS,
             .out = pp_model_info(m)->encoder ? PP_OUT_HIDDEN : PP_OUT_LOGITS},
        };
        pp_step(e, rows, 2, NULL, &err);
        pp_seq_free(s);
    }
    pp_engine_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_model *m;
    struct pp_error err;
    const char *path = hostile_gguf_or_folder(names, data, size);
    if (pp_model_open(path, &m, &err))
        return 0;
    if (pp_model_tokenizer(m))
        hostile_tokenize(pp_model_tokenizer(m));
    run(m);
    pp_model_close(m);
    return 0;
}
