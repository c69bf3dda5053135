/* snapshots.c - where KV snapshots live, and which of them go when there are too many. */
#include "src/snapshots.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "src/worker.h"

struct found {
    char name[48];
    uint64_t size;
    struct timespec used;
};

bool pp_snapshot_key_ok(const char *key)
{
    size_t n = key ? strspn(key, "0123456789abcdef") : 0;
    return n >= 1 && n <= 32 && !key[n];
}

void pp_snapshot_path(const char *cache_dir, const char *session_key, char *out, size_t cap)
{
    int n = pp_snapshot_key_ok(session_key) ? snprintf(out, cap, "%s/kv/%s.kv", cache_dir, session_key) : -1;
    if (cap && (n < 0 || (size_t)n >= cap))
        out[0] = 0;
}

void pp_snapshot_touch(const char *path)
{
    (void)!utimensat(AT_FDCWD, path, NULL, 0);
}

static int oldest_first(const void *pa, const void *pb)
{
    const struct found *a = pa, *b = pb;
    if (a->used.tv_sec != b->used.tv_sec)
        return a->used.tv_sec < b->used.tv_sec ? -1 : 1;
    return (a->used.tv_nsec > b->used.tv_nsec) - (a->used.tv_nsec < b->used.tv_nsec);
}

static bool is_snapshot(const char *name)
{
    size_t n = strlen(name);
    return n > 3 && n < sizeof((struct found *)0)->name && strcmp(name + n - 3, ".kv") == 0;
}

/* All snapshots in a folder but the one named; *total is their size. */
static struct found *find_all(const char *folder, const char *but, size_t *n, uint64_t *total)
{
    struct found *list = NULL;
    size_t cap = 0;
    *n = 0;
    *total = 0;
    DIR *d = opendir(folder);
    if (!d)
        return NULL;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        if (!is_snapshot(e->d_name) || strcmp(e->d_name, but) == 0 ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
            pp_grow(&list, &cap, *n + 1, sizeof *list) != 0)
            continue;
        struct found *f = &list[(*n)++];
        snprintf(f->name, sizeof f->name, "%.47s", e->d_name);
        f->size = (uint64_t)st.st_size;
        f->used = st.st_mtim;
        *total += f->size;
    }
    closedir(d);
    return list;
}

bool pp_snapshot_make_room(struct pp_io *io, const char *cache_dir, const char *path, uint64_t incoming, uint64_t quota)
{
    char folder[PP_SNAPSHOT_PATH], victim[PP_SNAPSHOT_PATH + 48];
    const char *slash = strrchr(path, '/');
    size_t n;
    uint64_t total;
    if (incoming > quota)
        return false;
    snprintf(folder, sizeof folder, "%s/kv", cache_dir);
    struct found *list = find_all(folder, slash ? slash + 1 : path, &n, &total);
    if (n)
        qsort(list, n, sizeof *list, oldest_first);
    for (size_t i = 0; i < n && total > quota - incoming; i++) {
        snprintf(victim, sizeof victim, "%s/%s", folder, list[i].name);
        if (io)
            pp_io_write_file(io, victim, NULL);
        else
            unlink(victim);
        total -= list[i].size;
    }
    pp_free(list);
    return true;
}
