/* fuzz_convert_adapter.c - an adapter for a tiny model, in the form of fuzz_adapter's input: a file is converted to a
 * folder, a folder to a file. Whatever was written without an error must open. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/adapter_file.h"
#include "engine/convert.h"
#include "engine/types.h"
#include "tests/hostile.h"
#include "tests/tiny_model.h"

static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors", NULL};
static char base[300];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const struct tiny_shape shape = {.n_vocab = TINY_VOCAB, .n_embd = 32, .n_layer = 1, .n_head = 1,
                                            .n_head_kv = 1, .head_dim = 32, .n_ff = 32, .n_ctx = 1024,
                                            .type = PP_TYPE_Q8_0, .seed = 1}; /* the model in hostile.c */
    (void)argc;
    (void)argv;
    snprintf(base, sizeof base, "%s", tiny_model(&shape));
    return 0;
}

static void check_opens(const char *path)
{
    struct pp_adapter_file *f;
    struct pp_error err;
    if (pp_adapter_file_open(path, &f, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    pp_adapter_file_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = hostile_gguf_or_folder(names, data, size);
    const struct hostile_room *room = hostile_room();
    const struct pp_convert_options opt = {.base = base, .out_type = size % 2 ? "F16" : NULL};
    struct pp_error err;
    if (pp_convert_to_peft(path, room->folder, &opt, &err) == PP_OK)
        check_opens(room->folder);
    if (pp_convert_to_gguf(path, room->file, &opt, &err) == PP_OK)
        check_opens(room->file);
    hostile_room_empty();
    return 0;
}
