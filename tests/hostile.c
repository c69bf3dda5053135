#include "tests/hostile.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/types.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* --- JSON -------------------------------------------------------------------------------------------------- */

cJSON *hostile_container(cJSON *node, int *k)
{
    for (cJSON *item = node->child, *found; item; item = item->next) {
        if ((cJSON_IsArray(item) || cJSON_IsObject(item)) && (*k)-- == 0)
            return item;
        if ((found = hostile_container(item, k)))
            return found;
    }
    return NULL;
}

void hostile_turn(cJSON *node, int n)
{
    static unsigned serial;
    const bool was_list = cJSON_IsArray(node);
    for (int i = cJSON_GetArraySize(node); i < n; i++)
        cJSON_AddItemToArray(node, node->child ? cJSON_Duplicate(node->child, true) : cJSON_CreateNumber(1));
    for (cJSON *item = node->child; item; item = item->next) {
        char name[16];
        snprintf(name, sizeof name, "k%u", serial++);
        cJSON_free(item->string);
        item->string = NULL;
        if (was_list) {
            item->string = cJSON_malloc(sizeof name);
            require(item->string != NULL);
            memcpy(item->string, name, sizeof name);
        }
    }
    node->type = was_list ? cJSON_Object : cJSON_Array;
}

/* --- inputs ------------------------------------------------------------------------------------------------ */

uint8_t hostile_byte(struct hostile_input *in)
{
    if (!in->size)
        return 0;
    in->size--;
    return *in->data++;
}

const uint8_t *hostile_piece(struct hostile_input *in, size_t *n)
{
    size_t low = hostile_byte(in), want = low | (size_t)hostile_byte(in) << 8;
    const uint8_t *piece = in->size ? in->data : NULL;
    *n = want < in->size ? want : in->size;
    in->data += *n;
    in->size -= *n;
    return piece;
}

/* --- files ------------------------------------------------------------------------------------------------- */

enum { SLOTS = 12, PATH_BYTES = 64 };

const char *hostile_file(unsigned slot, const void *data, size_t size)
{
    static int fds[SLOTS]; /* 0: not made yet */
    static char paths[SLOTS][PATH_BYTES];
    require(slot < SLOTS);
    if (!fds[slot]) {
        fds[slot] = memfd_create("hostile", MFD_CLOEXEC);
        require(fds[slot] > 0);
        snprintf(paths[slot], PATH_BYTES, "/proc/self/fd/%d", fds[slot]);
    }
    require(ftruncate(fds[slot], 0) == 0 && (size == 0 || pwrite(fds[slot], data, size, 0) == (ssize_t)size));
    return paths[slot];
}

static char folder[PATH_BYTES];
static const char *const *folder_names;
static bool hidden[SLOTS];

static void path_in_folder(const char *name, char path[2 * PATH_BYTES])
{
    snprintf(path, 2 * PATH_BYTES, "%s/%s", folder, name);
}

static void remove_folder(void)
{
    char path[2 * PATH_BYTES];
    for (size_t i = 0; folder_names[i]; i++) {
        path_in_folder(folder_names[i], path);
        unlink(path);
        if (strchr(folder_names[i], '/')) {
            *strrchr(path, '/') = 0;
            rmdir(path);
        }
    }
    rmdir(folder);
}

static void link_slot(unsigned slot, const char *name)
{
    char path[2 * PATH_BYTES];
    path_in_folder(name, path);
    require(symlink(hostile_file(slot, "", 0), path) == 0);
}

const char *hostile_folder(const char *const *names)
{
    if (folder_names)
        return folder;
    snprintf(folder, sizeof folder, "/tmp/hostile-XXXXXX");
    require(mkdtemp(folder) != NULL);
    for (unsigned i = 0; names[i]; i++) {
        char path[2 * PATH_BYTES];
        path_in_folder(names[i], path);
        if (strchr(names[i], '/')) {
            *strrchr(path, '/') = 0;
            require(mkdir(path, 0700) == 0);
        }
        link_slot(i, names[i]);
    }
    folder_names = names;
    atexit(remove_folder);
    return folder;
}

void hostile_show(unsigned slot, bool there)
{
    char path[2 * PATH_BYTES];
    if (hidden[slot] == !there)
        return;
    path_in_folder(folder_names[slot], path);
    if (there)
        link_slot(slot, folder_names[slot]);
    else
        require(unlink(path) == 0);
    hidden[slot] = !there;
}

/* --- tokenizers -------------------------------------------------------------------------------------------- */

const char *hostile_gguf_or_folder(const char *const *names, const uint8_t *data, size_t size)
{
    struct hostile_input in = {data, size};
    size_t n;
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0)
        return hostile_file(2, data, size);
    const char *path = hostile_folder(names); /* made by the first call, with empty files */
    const uint8_t *first = hostile_piece(&in, &n);
    hostile_file(0, first, n);
    hostile_file(1, in.data, in.size);
    return path;
}

/* --- a room ------------------------------------------------------------------------------------------------------ */

static char room_path[64];
static struct hostile_room room;

void hostile_room_empty(void)
{
    char path[400];
    DIR *d = opendir(room.folder);
    for (const struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", room.folder, e->d_name);
        unlink(path); /* fails for "." and ".." */
    }
    if (d)
        closedir(d);
    rmdir(room.folder);
    unlink(room.file);
}

static void remove_room(void)
{
    hostile_room_empty();
    rmdir(room_path);
}

const struct hostile_room *hostile_room(void)
{
    if (room_path[0])
        return &room;
    strcpy(room_path, "/dev/shm/pippin-fuzz-XXXXXX"); /* in memory, so that there is no waiting for a disk */
    if (!mkdtemp(room_path))
        snprintf(room_path, sizeof room_path, "%s", test_tmpdir());
    snprintf(room.folder, sizeof room.folder, "%s/folder", room_path);
    snprintf(room.file, sizeof room.file, "%s/file.gguf", room_path);
    atexit(remove_room);
    return &room;
}

void hostile_tokenize(const struct pp_tokenizer *t)
{
    static const char text[] =
        "Hello  world, it's 1234 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\xa6\x99\n\n\t</s><s>[INST] x\xff\x80 \xe2\x96\x81"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa <|eot_id|> ";
    static char twentyfold[20 * (sizeof text - 1)]; /* long enough that the tokeniser remembers words */
    for (size_t i = 0; i < sizeof twentyfold; i++)
        twentyfold[i] = text[i % (sizeof text - 1)];
    for (unsigned how = 0; how < 5; how++) {
        const unsigned flags = how & 3;
        int32_t *ids;
        size_t n;
        struct pp_buf out = {0};
        const char *bytes = how < 4 ? text : twentyfold;
        const size_t n_bytes = how < 4 ? sizeof text - 1 : sizeof twentyfold;
        if (pp_tokenize(t, bytes, n_bytes, flags, &ids, &n, NULL))
            continue;
        for (size_t i = 0; i < n; i++)
            require(ids[i] >= 0 && ids[i] < pp_tokenizer_n(t));
        pp_detokenize(t, ids, n, flags & PP_TOKENIZE_SPECIAL, &out);
        pp_buf_free(&out);
        pp_free(ids);
    }
    int32_t n = pp_tokenizer_n(t);
    for (int32_t id = -1; id <= n; id += n / 64 + 1)
        (void)pp_tokenizer_is_end(t, id);
}

/* --- the tiny model ---------------------------------------------------------------------------------------- */

static struct pp_model *tiny;
static struct pp_engine *engine;

static void free_engine(void)
{
    pp_engine_free(engine);
    pp_model_close(tiny);
}

struct pp_engine *tiny_engine(void)
{
    const struct tiny_shape shape = {.n_vocab = TINY_VOCAB, .n_embd = 32, .n_layer = 1, .n_head = 1, .n_head_kv = 1,
                                     .head_dim = 32, .n_ff = 32, .n_ctx = 1024, .type = PP_TYPE_Q8_0,
                                     .seed = 1};
    const struct pp_engine_options options = {.n_threads = 1, .n_ctx = 256, .kv_memory = 1 << 22, .max_rows = 8};
    struct pp_error err = {0};
    if (engine)
        return engine;
    enum pp_code code = pp_model_open(tiny_model(&shape), &tiny, &err);
    if (!code)
        code = pp_engine_new(tiny, &options, NULL, NULL, &engine, &err);
    if (code)
        fprintf(stderr, "the tiny model: %s\n", err.text);
    require(code == PP_OK);
    atexit(free_engine);
    return engine;
}

void tiny_step(struct pp_seq *s, int32_t token)
{
    const struct pp_row row = {.seq = s, .token = token, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    pp_step(tiny_engine(), &row, 1, NULL, NULL);
}
