/* fuzz_npz.c - the bytes are an .npz file, or, unless they begin like a zip archive, a single array in NumPy's format,
 * which is put into one with the right checksum. What is read of it must be a safetensors file. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/npz.h"
#include "engine/safetensors.h"
#include "tests/hostile.h"

static void put(struct pp_buf *b, uint64_t value, int n)
{
    for (int i = 0; i < n; i++)
        pp_buf_char(b, (char)(uint8_t)(i < 8 ? value >> 8 * i : 0));
}

static uint32_t checksum(const uint8_t *data, size_t n)
{
    uint32_t rest = UINT32_MAX;
    for (size_t i = 0; i < 8 * n; i++)
        rest = rest >> 1 ^ ((rest ^ data[i / 8] >> i % 8) & 1 ? 0xedb88320u : 0);
    return ~rest;
}

/* An archive with this one member. */
static struct pp_buf archive_of(const uint8_t *data, size_t size)
{
    static const char name[] = "a.npy";
    const uint32_t crc = checksum(data, size);
    struct pp_buf b = {0};
    put(&b, 0x04034b50, 4);
    put(&b, 0, 22);
    put(&b, strlen(name), 2);
    put(&b, 0, 2);
    pp_buf_str(&b, name);
    pp_buf_add(&b, data, size);
    const size_t list = b.len;
    put(&b, 0x02014b50, 4);
    put(&b, 0, 12);
    put(&b, crc, 4);
    put(&b, size, 4);
    put(&b, size, 4);
    put(&b, strlen(name), 2);
    put(&b, 0, 16);
    pp_buf_str(&b, name);
    const size_t end = b.len;
    put(&b, 0x06054b50, 4);
    put(&b, 0, 4);
    put(&b, 1, 2);
    put(&b, 1, 2);
    put(&b, end - list, 4);
    put(&b, list, 4);
    put(&b, 0, 2);
    return b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const bool whole = size > 1 && data[0] == 'P' && data[1] == 'K';
    struct pp_buf made = whole ? (struct pp_buf){0} : archive_of(data, size), image = {0};
    const char *path = hostile_file(0, whole ? data : (const uint8_t *)made.data, whole ? size : made.len);
    struct pp_safetensors *s;
    struct pp_error err;
    if (!made.bad && pp_npz_read(path, &image, &err) == PP_OK) {
        if (pp_safetensors_open_memory(image.data, image.len, path, &s, &err) == PP_OK)
            pp_safetensors_close(s);
        else if (!whole && err.code != PP_ERR_NOMEM) /* names may be twice in an archive, or no text */
            abort();
    }
    pp_buf_free(&image);
    pp_buf_free(&made);
    return 0;
}
