/* fuzz_safetensors.c - the bytes are a safetensors file: everything in it is read. */
#include "engine/safetensors.h"
#include "tests/hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_safetensors *s;
    struct pp_error err;
    volatile unsigned touched = 0;
    if (pp_safetensors_open_memory(data, size, "fuzz", &s, &err))
        return 0;
    for (size_t i = 0; i < pp_safetensors_n(s); i++) {
        const struct pp_tensor *t = pp_safetensors_at(s, i);
        for (size_t k = 0; k < t->size; k++)
            touched += ((const uint8_t *)t->data)[k];
        for (const char *c = pp_safetensors_dtype(s, t); *c; c++)
            touched += (unsigned char)*c;
        if (pp_safetensors_find(s, t->name) != t)
            __builtin_trap();
    }
    (void)touched;
    pp_safetensors_close(s);
    return 0;
}
