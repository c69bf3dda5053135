/* fuzz_gguf.c - the bytes are a GGUF file: everything in it is read, and its vocabulary is put to use. */
#include <string.h>

#include "engine/tokenizer_internal.h"
#include "tests/hostile.h"

static unsigned touched; /* so that no read is optimised away */

static void touch(const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        touched += ((const uint8_t *)data)[i];
}

static void read_value(const struct pp_gguf *g, const char *key)
{
    enum pp_gguf_type type;
    struct pp_str s;
    int64_t integer;
    double number;
    bool flag;
    size_t n;
    touched += pp_gguf_int(g, key, &integer) + pp_gguf_float(g, key, &number) + pp_gguf_bool(g, key, &flag);
    if (pp_gguf_string(g, key, &s))
        touch(s.data, s.len);
    if (!pp_gguf_array(g, key, &type, &n))
        return;
    for (size_t i = 0; i <= n; i++) { /* the index n must be refused */
        if (pp_gguf_array_string(g, key, i, &s))
            touch(s.data, s.len);
        touched += pp_gguf_array_int(g, key, i, &integer) + pp_gguf_array_float(g, key, i, &number);
    }
}

static void read_all(const struct pp_gguf *g)
{
    for (size_t i = 0; i < pp_gguf_n_kv(g); i++) {
        struct pp_str key = pp_gguf_kv_key(g, i), raw = pp_gguf_kv_raw(g, i);
        char name[256];
        touch(raw.data, raw.len);
        if (key.len >= sizeof name)
            continue;
        memcpy(name, key.data, key.len);
        name[key.len] = 0;
        read_value(g, name);
    }
    for (size_t i = 0; i < pp_gguf_n_tensors(g); i++) {
        const struct pp_tensor *t = pp_gguf_tensor_at(g, i);
        touch(t->data, t->size);
        if (pp_gguf_tensor(g, t->name) != t)
            __builtin_trap();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_gguf *g;
    struct pp_tokenizer *t;
    struct pp_error err;
    if (pp_gguf_open_memory(data, size, "fuzz", &g, &err))
        return 0;
    read_all(g);
    if (tok_from_gguf(g, &t, &err) == PP_OK) {
        hostile_tokenize(t);
        pp_tokenizer_free(t);
    }
    pp_gguf_close(g);
    return 0;
}
