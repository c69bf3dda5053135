/* snapshots.c - KV snapshots on disk: their files, and which are deleted when there are too many. */
#include "src/snapshots.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "src/paths.h"

/* Written before the next look at other work of the io thread: 100 ms for a slow disk. */
static const uint64_t SLICE_BYTES = 16u << 20;

enum { KEY_MAX = 32 };

/* The files of a conversation, taken together. */
struct found {
    char key[KEY_MAX + 1];
    uint64_t size;
    struct timespec used; /* time of the latest */
};

/* 1 to 32 hexadecimal digits: no other key becomes part of a file name. */
static bool is_key(const char *key)
{
    size_t n = key ? strspn(key, "0123456789abcdef") : 0;
    return n >= 1 && n <= KEY_MAX && !key[n];
}

void pp_snapshot_base(const char *cache_dir, const char *session_key, char *out, size_t cap)
{
    int n = is_key(session_key) ? snprintf(out, cap, "%s/kv/%s", cache_dir, session_key) : -1;
    if (cap && (n < 0 || (size_t)n >= cap))
        out[0] = 0;
}

void pp_snapshot_touch(const char *base)
{
    char path[PP_SNAPSHOT_PATH + 16];
    snprintf(path, sizeof path, "%s.manifest", base);
    (void)!utimensat(AT_FDCWD, path, NULL, 0);
}

/* --- deleting the oldest --------------------------------------------------------------------------------------- */

static bool later(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

static int oldest_first(const void *pa, const void *pb)
{
    const struct found *a = pa, *b = pb;
    return later(&a->used, &b->used) - later(&b->used, &a->used);
}

/* Extracts KEY from KEY.manifest, KEY.pack, KEY.kv (version 1) or KEY.manifest.PID.tmp (of a process that was
 * killed). */
static bool key_of_file(const char *name, char key[static KEY_MAX + 1])
{
    static const char *const endings[] = {".manifest", ".pack", ".kv"};
    size_t n = strspn(name, "0123456789abcdef");
    if (n < 1 || n > KEY_MAX)
        return false;
    memcpy(key, name, n);
    key[n] = 0;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (strcmp(name + n, endings[i]) == 0)
            return true;
    return strncmp(name + n, ".manifest.", 10) == 0 && pp_ends_with(name, ".tmp");
}

static int by_key(const void *pa, const void *pb)
{
    const struct found *a = pa, *b = pb;
    return strcmp(a->key, b->key);
}

/* Merges the entries of each conversation's files into one. */
static size_t merge(struct found *list, size_t n)
{
    size_t kept = 0;
    if (n)
        qsort(list, n, sizeof *list, by_key);
    for (size_t i = 0; i < n; i++) {
        if (!kept || strcmp(list[kept - 1].key, list[i].key) != 0) {
            list[kept++] = list[i];
            continue;
        }
        list[kept - 1].size += list[i].size;
        if (later(&list[i].used, &list[kept - 1].used))
            list[kept - 1].used = list[i].used;
    }
    return kept;
}

/* Lists all snapshots in a folder except those of `but`, whose obsolete files are removed; *total is their size. */
static struct found *find_all(const char *folder, const char *but, size_t *n, uint64_t *total)
{
    struct found *list = NULL;
    size_t cap = 0;
    char key[KEY_MAX + 1];
    *n = 0;
    *total = 0;
    DIR *d = opendir(folder);
    if (!d)
        return NULL;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        if (!key_of_file(e->d_name, key) || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(st.st_mode))
            continue;
        if (strcmp(key, but) == 0) {
            const char *ending = strrchr(e->d_name, '.');
            if (strcmp(ending, ".tmp") == 0 || strcmp(ending, ".kv") == 0)
                /* this process holds the conversation's lock, so nobody else is writing it */
                unlinkat(dirfd(d), e->d_name, 0);
            continue;
        }
        if (pp_grow(&list, &cap, *n + 1, sizeof *list) != 0)
            continue;
        struct found *f = &list[(*n)++];
        *f = (struct found){.size = (uint64_t)st.st_size, .used = st.st_mtim};
        snprintf(f->key, sizeof f->key, "%s", key);
        *total += f->size;
    }
    closedir(d);
    *n = merge(list, *n);
    return list;
}

/* Removes all files of a conversation. */
static void remove_all(const char *folder, const char *key)
{
    char of_file[KEY_MAX + 1];
    DIR *d = opendir(folder);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));)
        if (key_of_file(e->d_name, of_file) && strcmp(of_file, key) == 0)
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
}

bool pp_snapshot_make_room(const char *base, uint64_t bytes, uint64_t quota)
{
    char folder[PP_SNAPSHOT_PATH];
    size_t n;
    uint64_t total;
    const char *slash = strrchr(base, '/');
    if (bytes > quota)
        return false;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - base) : 1, slash ? base : ".");
    struct found *list = find_all(folder, slash ? slash + 1 : base, &n, &total);
    if (n)
        qsort(list, n, sizeof *list, oldest_first);
    for (size_t i = 0; i < n && total > quota - bytes; i++) {
        remove_all(folder, list[i].key);
        total -= list[i].size;
    }
    pp_free(list);
    return true;
}

uint64_t pp_snapshot_largest(const char *cache_dir, size_t n)
{
    char folder[PP_SNAPSHOT_PATH];
    size_t n_found;
    uint64_t total, largest = 0;
    snprintf(folder, sizeof folder, "%s/kv", cache_dir);
    struct found *list = find_all(folder, "", &n_found, &total);
    if (n_found)
        qsort(list, n_found, sizeof *list, oldest_first);
    for (size_t i = n_found > n ? n_found - n : 0; i < n_found; i++)
        largest = list[i].size > largest ? list[i].size : largest;
    pp_free(list);
    return largest;
}

/* --- saving, forgetting ---------------------------------------------------------------------------------------- */

static enum pp_code begin(const struct pp_snapshot_writer *w, struct pp_error *err)
{
    uint64_t bytes;
    enum pp_code code = pp_make_dirs_of(w->base, err);
    if (!code)
        code = pp_save_plan(w->save, w->quota, &bytes, err);
    if (!code && !pp_snapshot_make_room(w->base, bytes, w->quota))
        code = pp_fail(err, PP_ERR_NOMEM, "it is larger than --snapshot-quota; give a larger quota");
    return code;
}

bool pp_snapshot_slice(struct pp_snapshot_writer *w, struct pp_error *err)
{
    bool done = true;
    enum pp_code code = w->begun ? PP_OK : begin(w, err);
    w->begun = true;
    if (!code)
        code = pp_save_write(w->save, SLICE_BYTES, &w->cancel, &done, err);
    err->code = code;
    return done;
}

struct removal {
    struct pp_io_task task; /* first */
    char base[PP_SNAPSHOT_PATH];
};

static bool remove_files(struct pp_io_task *task)
{
    struct removal *r = (struct removal *)task;
    (void)pp_snapshot_remove(r->base, NULL);
    pp_free(r);
    return true;
}

void pp_snapshot_forget(struct pp_io *io, const char *base)
{
    struct removal *r = pp_calloc(1, sizeof *r);
    if (!r) {
        (void)pp_snapshot_remove(base, NULL);
        return;
    }
    r->task.slice = remove_files;
    snprintf(r->base, sizeof r->base, "%s", base);
    pp_io_post_task(io, &r->task);
}
