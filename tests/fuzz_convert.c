/* fuzz_convert.c - a model file or folder, as fuzz_model takes them, made into a folder and into quantised files: what
 * was written without an error opens again. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/convert.h"
#include "engine/source.h"
#include "tests/hostile.h"
#include "tests/support.h"

static const char *const names[] = {"config.json", "model.safetensors", NULL};
static char room[64], folder[80], file[80];

static void empty_folder(void)
{
    char path[400];
    DIR *d = opendir(folder);
    if (!d)
        return;
    for (const struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path); /* "." and ".." stay */
    }
    closedir(d);
}

static void remove_room(void)
{
    empty_folder();
    rmdir(folder);
    unlink(file);
    rmdir(room);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    strcpy(room, "/dev/shm/pippin-fuzz-XXXXXX"); /* no disk waits for us there */
    if (!mkdtemp(room))
        snprintf(room, sizeof room, "%s", test_tmpdir());
    snprintf(folder, sizeof folder, "%s/folder", room);
    snprintf(file, sizeof file, "%s/file.gguf", room);
    atexit(remove_room);
    return 0;
}

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
    const struct pp_convert_options groups = {.bits = size % 2 ? 4 : 0};
    struct pp_source *s;
    struct pp_error err;
    if (pp_source_open(path, &s, &err))
        return 0;
    pp_source_close(s);
    if (pp_convert_to_folder(path, folder, &groups, &err) == PP_OK)
        check_opens(folder);
    empty_folder();
    if (pp_quantize_file(path, file, size % 3 ? "Q4_K_M" : "Q8_0", &(struct pp_convert_options){0}, &err) == PP_OK)
        check_opens(file);
    return 0;
}
