/* fuzz_adapter.c - loads an adapter for a tiny model and applies it to one token.
 *
 * Input that begins with "GGUF" is a file. Otherwise it has two pieces, adapter_config.json and
 * adapter_model.safetensors of a folder; the latter is also written as adapters.safetensors. */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/hostile.h"

static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors", NULL};

static char mlx_weights[128];

static void remove_mlx(void)
{
    unlink(mlx_weights);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    tiny_engine();
    snprintf(mlx_weights, sizeof mlx_weights, "%s/adapters.safetensors", hostile_folder(names));
    if (symlink(names[1], mlx_weights) != 0)
        abort();
    atexit(remove_mlx);
    return 0;
}

static void use(const struct pp_adapter *a)
{
    const struct pp_adapter_use with = {.adapter = a, .scale = 1.0f};
    struct pp_seq *s;
    struct pp_error err;
    if (pp_seq_new(tiny_engine(), &s, &err))
        return;
    if (pp_seq_set_adapters(s, &with, 1, &err) == PP_OK)
        tiny_step(s, 1);
    pp_seq_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_adapter *a;
    struct pp_error err;
    const char *path = hostile_gguf_or_folder(names, data, size);
    if (pp_adapter_load(pp_engine_model(tiny_engine()), path, &a, &err))
        return 0;
    use(a);
    pp_adapter_free(a);
    return 0;
}
