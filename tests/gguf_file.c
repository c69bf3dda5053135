#include "tests/gguf_file.h"

#include "tests/support.h"

struct pp_gguf_writer *gguf_file_begin(const char *path)
{
    struct pp_gguf_writer *w;
    struct pp_error err;
    assert_ok(pp_gguf_writer_new(path, &w, &err), err);
    return w;
}

void gguf_file_copy_keys(struct pp_gguf_writer *w, const struct pp_gguf *from)
{
    for (size_t i = 0; i < pp_gguf_n_kv(from); i++)
        pp_gguf_add_copy(w, from, i);
}

void gguf_file_end(struct pp_gguf_writer *w, const struct pp_tensor *tensors, size_t n)
{
    struct pp_error err;
    for (const struct pp_tensor *t = tensors; t < tensors + n; t++)
        pp_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    assert_ok(pp_gguf_writer_begin(w, &err), err);
    for (const struct pp_tensor *t = tensors; t < tensors + n; t++)
        assert_ok(pp_gguf_write(w, t->data, t->size, &err), err);
    assert_ok(pp_gguf_writer_finish(w, &err), err);
    pp_gguf_writer_free(w);
}

struct pp_tensor float_tensor(const char *name, const float *values, int64_t cols, int64_t rows, int64_t matrices)
{
    struct pp_tensor t = {.name = name, .type = PP_TYPE_F32, .n_dims = matrices ? 3 : rows ? 2 : 1,
                          .ne = {cols, rows ? rows : 1, matrices ? matrices : 1, 1}, .data = values};
    t.size = (size_t)(t.ne[0] * t.ne[1] * t.ne[2]) * sizeof *values;
    return t;
}
