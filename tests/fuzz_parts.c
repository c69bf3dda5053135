/* fuzz_parts.c - a model in two GGUF files, opened by the name of either: its tensors can be read.
 *
 * The first byte says by which name; then the first file as a piece, and the second. */
#include <stdio.h>

#include "engine/base/mem.h"
#include "engine/rows.h"
#include "engine/source.h"
#include "tests/hostile.h"

static const char *const names[] = {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", NULL};

static void read_tensor(const struct pp_tensor *t)
{
    struct pp_error err;
    float *row = t->ne[0] <= 1 << 20 ? pp_calloc((size_t)t->ne[0], sizeof *row) : NULL;
    if (row)
        (void)pp_tensor_floats(t, t->ne[1] * t->ne[2] - 1, 1, row, &err);
    pp_free(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hostile_input in = {data, size};
    struct pp_source *s;
    struct pp_error err;
    char path[200];
    size_t n;
    const char *folder = hostile_folder(names);
    snprintf(path, sizeof path, "%s/%s", folder, names[hostile_byte(&in) & 1]);
    const uint8_t *first = hostile_piece(&in, &n);
    hostile_file(0, first, n);
    hostile_file(1, in.data, in.size);
    if (pp_source_open(path, &s, &err))
        return 0;
    for (size_t i = 0; i < pp_source_n_tensors(s); i++)
        read_tensor(pp_source_tensor_at(s, i));
    pp_source_close(s);
    return 0;
}
