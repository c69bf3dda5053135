/* fuzz_folder.c - everything in a model's folder but weights: the vocabulary, other files about it, the chat template,
 * the list of shards, the configuration of pooling, and that of quantisation.
 *
 * A piece for each file, in the order of the list; if it is empty, the file is missing. The rest is
 * model.safetensors. */
#include <string.h>

#include "engine/source.h"
#include "tests/hostile.h"

enum { CONFIG, VOCABULARY, WEIGHTS = 9 };
static const char *const names[] = {
    [CONFIG] = "config.json", [VOCABULARY] = "tokenizer.json", "tokenizer_config.json", "generation_config.json",
    "chat_template.jinja", "model.safetensors.index.json", "modules.json", "1_Pooling/config.json",
    "hf_quant_config.json", [WEIGHTS] = "model.safetensors", NULL,
};

static void tokenize(const char *folder)
{
    struct pp_tokenizer *t;
    struct pp_error err;
    if (pp_tokenizer_open(folder, &t, &err))
        return;
    hostile_tokenize(t);
    pp_tokenizer_free(t);
}

static void render(const char *source)
{
    static const struct pp_template_input in = {
        .messages_json = "[{\"role\": \"user\", \"content\": \"Hi\"}]", .bos_text = "<s>", .eos_text = "</s>",
        .add_generation_prompt = true, .now = 1773500966,
    };
    struct pp_template *t;
    struct pp_buf out = {0};
    struct pp_error err;
    if (pp_template_parse(source, strlen(source), "fuzz", &t, &err))
        return;
    pp_template_render(t, &in, &out, &err);
    pp_template_free(t);
    pp_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *folder = hostile_folder(names);
    struct hostile_input in = {data, size};
    struct pp_source *s;
    struct pp_error err;
    for (unsigned i = 0; i < WEIGHTS; i++) {
        size_t n;
        const uint8_t *piece = hostile_piece(&in, &n);
        hostile_show(i, i == CONFIG || n > 0);
        hostile_file(i, piece, n);
    }
    hostile_file(WEIGHTS, in.data, in.size);
    tokenize(folder);
    if (pp_source_open(folder, &s, &err))
        return 0;
    if (pp_source_chat_template(s))
        render(pp_source_chat_template(s));
    pp_source_close(s);
    return 0;
}
