#include "engine/base/other_file.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* How files of a kind begin. */
struct kind {
    const char *begin;
    size_t n;
    const char *text; /* the message after the file's name */
};

#define BEGINS(s) s, sizeof(s) - 1
#define PICKLE "a PyTorch file, which can run code when loaded, so pippin does not read it; use safetensors or GGUF"
#define OLDER  "an old GGML file from before GGUF, which is not supported; use the model in GGUF"
#define PACKED "compressed; unpack it first"
#define KERAS  "an HDF5 file (Keras), which is not supported; use the model in safetensors or GGUF"

static const struct kind kinds[] = {
    {BEGINS("version https://git-lfs"),
     "a Git LFS pointer instead of the file itself; get the file with `git lfs pull`, or download it"},
    {BEGINS("PK\003\004"), "a zip archive or " PICKLE},
    {BEGINS("\x80\002"), PICKLE}, /* pickle's protocols 2 to 4 */
    {BEGINS("\x80\003"), PICKLE},
    {BEGINS("\x80\004"), PICKLE},
    {BEGINS("lmgg"), OLDER}, /* magic numbers, the lowest byte first */
    {BEGINS("fmgg"), OLDER},
    {BEGINS("tjgg"), OLDER},
    {BEGINS("algg"),
     "an adapter in llama.cpp's first format (GGLA), which is not supported; give the PEFT folder that it was made "
     "from, or convert that to GGUF with `pippin convert`"},
    {BEGINS("\x1f\x8b"), PACKED},
    {BEGINS("BZh"), PACKED},
    {BEGINS("\xfd" "7zXZ"), PACKED},
    {BEGINS("\x28\xb5\x2f\xfd"), PACKED},
    {BEGINS("7z\xbc\xaf"), PACKED},
    {BEGINS("\x89HDF\r\n"), KERAS},
    {BEGINS("GGUF"), "a GGUF file; give it directly, not as part of a folder"},
};

static bool is_page(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] && strchr(" \t\r\n", s[i]))
        i++;
    return i + 1 < n && s[i] == '<' && (s[i + 1] == '!' || s[i + 1] == '?' || s[i + 1] == 'h' || s[i + 1] == 'H');
}

/* The length of the header, little-endian, then the header: a JSON object. */
static bool is_safetensors(const uint8_t *s, size_t n)
{
    uint64_t length = 0;
    for (int i = 7; n > 9 && i >= 0; i--)
        length = length << 8 | s[i];
    return n > 9 && length >= 2 && length <= n - 8 && s[8] == '{' && (s[9] == '"' || s[9] == '}');
}

enum pp_code pp_fail_other_file(const char *name, const void *data, size_t n, struct pp_error *err)
{
    if (n == 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s is empty; download it again", name);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (n >= kinds[i].n && memcmp(data, kinds[i].begin, kinds[i].n) == 0)
            return pp_fail(err, PP_ERR_FORMAT, "%s is %s", name, kinds[i].text);
    if (is_page(data, n))
        return pp_fail(err, PP_ERR_FORMAT, "%s is a web page: the download found no file, or one that needs a login; "
                                           "download it again", name);
    if (is_safetensors(data, n))
        return pp_fail(err, PP_ERR_FORMAT, "%s is a safetensors file; give the folder that contains it and config.json",
                       name);
    return PP_OK;
}
