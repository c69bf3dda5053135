/* fuzz_convert.c - a model file or folder, in the form of fuzz_model's input, converted to a folder and to quantised
 * files: whatever was written without an error must open. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/convert.h"
#include "engine/source.h"
#include "tests/hostile.h"

static const char *const names[] = {"config.json", "model.safetensors", NULL};

static void check_opens(const char *path)
{
    struct pp_source *s;
    struct pp_error err;
    if (pp_source_open(path, &s, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    pp_source_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = hostile_gguf_or_folder(names, data, size);
    const struct hostile_room *room = hostile_room();
    const struct pp_convert_options groups = {.bits = size % 2 ? 4 : 0};
    struct pp_source *s;
    struct pp_error err;
    if (pp_source_open(path, &s, &err))
        return 0;
    pp_source_close(s);
    if (pp_convert_to_folder(path, room->folder, &groups, &err) == PP_OK)
        check_opens(room->folder);
    if (pp_quantize_file(path, room->file, size % 3 ? "Q4_K_M" : "Q8_0", &(struct pp_convert_options){0},
                         &err) == PP_OK)
        check_opens(room->file);
    hostile_room_empty();
    return 0;
}
