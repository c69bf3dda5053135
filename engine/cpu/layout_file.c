#include "engine/cpu/layout_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/whole_io.h"
#include "engine/base/word.h"

enum { PATH_CAP = 640 };
static const uint64_t DEFAULT_QUOTA = (uint64_t)64 << 30;
static const char MAGIC[16] = "pippin layout\n";

struct header {
    char magic[16];
    uint32_t version;            /* PP_LAYOUT_VERSION */
    uint32_t n_weights;
    uint64_t n_groups;
    uint64_t n_done;             /* how many of the n_weights matrices the file has */
    uint64_t file_bytes;
    uint64_t data_offset;
    struct pp_hash128 file_key;
    uint8_t identity[32];        /* zeros: not known when it was written */
    uint64_t entries_hash;       /* XXH3-64 of the list that make_entries() makes */
    uint64_t sums_hash;          /* XXH3-64 of the checksums that follow this header */
    uint64_t hash;               /* XXH3-64 of everything above */
};

_Static_assert(sizeof(struct header) == 128, "header of a file of packed weights");

struct entry {
    uint64_t name_hash;          /* XXH3-64 */
    uint64_t type;
    int64_t n_rows, n_cols;
    uint64_t offset, bytes;      /* from data_offset; 0 bytes: not in the file */
};

/* --- names ------------------------------------------------------------------------------------------------------ */

static void file_name(const struct pp_layout_store *s, bool by_identity, const char *suffix, char out[PATH_CAP])
{
    char name[65];
    if (by_identity)
        pp_sha256_hex(&s->identity, name);
    else
        snprintf(name, sizeof name, "f-%016llx%016llx", (unsigned long long)s->file_key.hi,
                 (unsigned long long)s->file_key.lo);
    snprintf(out, PATH_CAP, "%s/%s.%s", s->folder, name, suffix); /* the folder's name fits: pp_layout_store_init */
}

static void part_name(const struct pp_layout_store *s, char out[PATH_CAP])
{
    file_name(s, false, "part", out);
}

static size_t head_bytes(const struct pp_weights *w)
{
    return sizeof(struct header) + (size_t)w->n_groups * sizeof *w->sums;
}

void pp_layout_store_init(struct pp_weights *w, const char *cache_dir, uint64_t quota)
{
    struct pp_layout_store *s = &w->store;
    s->fd = -1;
    s->quota = quota;
    if (!cache_dir || !cache_dir[0] || quota == PP_LAYOUTS_OFF || !w->region_bytes ||
        !pp_model_file_key(w->model, &s->file_key))
        return;
    int n = snprintf(s->folder, sizeof s->folder, "%s/layouts", cache_dir);
    if (n < 0 || (size_t)n >= sizeof s->folder) {
        s->folder[0] = 0;
        return;
    }
    s->identity_known = pp_model_identity_known(w->model, cache_dir, &s->identity);
    s->data_offset = (head_bytes(w) + PP_LAYOUT_ALIGN - 1) / PP_LAYOUT_ALIGN * PP_LAYOUT_ALIGN;
    s->file_bytes = s->data_offset + w->region_bytes;
}

/* --- headers ---------------------------------------------------------------------------------------------------- */

/* The list of matrices of these weights, [w->n], whose hash the header has; for pp_free. NULL: out of memory. */
static struct entry *make_entries(const struct pp_weights *w)
{
    struct entry *e = pp_calloc((size_t)w->n, sizeof *e);
    for (int i = 0; e && i < w->n; i++) {
        const struct pp_weight *m = w->list[i];
        e[i] = (struct entry){
            .name_hash = pp_hash64(m->t->name, strlen(m->t->name)),
            .type = m->t->type,
            .n_rows = m->t->ne[1],
            .n_cols = m->t->ne[0],
            .offset = m->offset,
            .bytes = m->bytes,
        };
    }
    return e;
}

static struct header make_header(const struct pp_weights *w, const struct entry *entries)
{
    const struct pp_layout_store *s = &w->store;
    struct header h = {
        .version = PP_LAYOUT_VERSION,
        .n_weights = (uint32_t)w->n,
        .n_groups = (uint64_t)w->n_groups,
        .n_done = (uint64_t)s->n_done,
        .file_bytes = s->file_bytes,
        .data_offset = s->data_offset,
        .file_key = s->file_key,
        .entries_hash = pp_hash64(entries, (size_t)w->n * sizeof *entries),
        .sums_hash = pp_hash64(w->sums, (size_t)w->n_groups * sizeof *w->sums),
    };
    memcpy(h.magic, MAGIC, sizeof h.magic);
    if (s->identity_known)
        memcpy(h.identity, s->identity.bytes, sizeof h.identity);
    h.hash = pp_hash64(&h, offsetof(struct header, hash));
    return h;
}

/* Writes the header after the checksums, without which it would be invalid. */
static bool write_header(const struct pp_weights *w)
{
    struct entry *entries = make_entries(w);
    if (!entries)
        return false;
    const struct header h = make_header(w, entries);
    pp_free(entries);
    return pp_write_at(w->store.fd, w->sums, (size_t)w->n_groups * sizeof *w->sums, sizeof h) &&
           pp_write_at(w->store.fd, &h, sizeof h, 0);
}

/* Reads the header of a file, and the checksums into w->sums. Returns how many matrices it has; -1: it is not of these
 * weights, or is damaged. */
static int read_header(struct pp_weights *w, int fd, bool by_identity)
{
    const struct pp_layout_store *s = &w->store;
    struct entry *expected = make_entries(w);
    struct stat st;
    struct header h;
    if (!expected)
        return -1;
    const struct header mine = make_header(w, expected);
    pp_free(expected);
    size_t sums_bytes = (size_t)w->n_groups * sizeof *w->sums;
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
                (uint64_t)st.st_size == s->file_bytes && pp_read_at(fd, &h, sizeof h, 0) &&
                h.hash == pp_hash64(&h, offsetof(struct header, hash)) &&
                memcmp(h.magic, MAGIC, sizeof h.magic) == 0 && h.version == mine.version &&
                h.n_weights == mine.n_weights && h.n_groups == mine.n_groups && h.n_done <= h.n_weights &&
                h.file_bytes == mine.file_bytes && h.data_offset == mine.data_offset &&
                h.entries_hash == mine.entries_hash;
    if (good && by_identity)
        good = memcmp(h.identity, s->identity.bytes, sizeof h.identity) == 0;
    else if (good)
        good = h.file_key.lo == s->file_key.lo && h.file_key.hi == s->file_key.hi;
    good = good && pp_read_at(fd, w->sums, sums_bytes, sizeof h) &&
           pp_hash64(w->sums, sums_bytes) == h.sums_hash;
    if (!good)
        memset(w->sums, 0, sums_bytes);
    return good ? (int)h.n_done : -1;
}

/* --- finding ---------------------------------------------------------------------------------------------------- */

/* Maps the file over memory that holds the same bytes, which threads may be reading, or that is not used yet. */
static bool map_bytes(struct pp_weights *w, int fd, size_t offset, size_t bytes)
{
    if (!pp_map_over(w->region + offset, bytes, fd, w->store.data_offset + offset))
        return false;
    atomic_fetch_add(&w->mapped, bytes);
    return true;
}

/* Maps the first n_done matrices, which the file has. */
static bool map_weights(struct pp_weights *w, int fd, int n_done)
{
    size_t bytes = 0;
    for (int i = 0; i < n_done; i++)
        bytes += pp_weight_span(w->list[i]);
    if (bytes && !map_bytes(w, fd, 0, bytes))
        return false;
    for (int i = 0; i < n_done; i++)
        w->list[i]->from_file = true;
    w->store.written = bytes;
    return true;
}

/* Renames a file that was found by the model's file to the model's identity, once that is known, so that copies of the
 * model find it, too. */
static void give_final_name(struct pp_weights *w, const char *from)
{
    struct pp_layout_store *s = &w->store;
    char to[PATH_CAP];
    file_name(s, true, "layout", to);
    s->fd = open(from, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    s->n_done = w->n;
    if (s->fd >= 0 && write_header(w))
        (void)!rename(from, to);
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

static bool find_complete(struct pp_weights *w, bool by_identity)
{
    char path[PATH_CAP];
    file_name(&w->store, by_identity, "layout", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool good = read_header(w, fd, by_identity) == w->n && map_weights(w, fd, w->n);
    if (good)
        futimens(fd, NULL); /* the most recently used: evicted last */
    close(fd);
    if (good && !by_identity && w->store.identity_known)
        give_final_name(w, path);
    return good;
}

/* Opens and locks the part; -1: it is not there (and not created), or another engine writes it. */
static int open_part(const char *path, bool create)
{
    struct stat here, there;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (create ? O_CREAT : 0), 0600);
    if (fd < 0)
        return -1;
    /* Whoever held the lock may have renamed the file meanwhile: it is then no part any more. */
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &here) == 0 && S_ISREG(here.st_mode) &&
        stat(path, &there) == 0 && here.st_ino == there.st_ino && here.st_dev == there.st_dev)
        return fd;
    close(fd);
    return -1;
}

static void find_part(struct pp_weights *w)
{
    struct pp_layout_store *s = &w->store;
    char path[PATH_CAP];
    part_name(s, path);
    if ((s->fd = open_part(path, false)) < 0)
        return;
    int n_done = read_header(w, s->fd, false);
    if (n_done > 0 && map_weights(w, s->fd, n_done))
        s->n_done = n_done;
}

bool pp_layout_find(struct pp_weights *w)
{
    if (!w->store.folder[0] || w->watch < 0)
        return false;
    if ((w->store.identity_known && find_complete(w, true)) || find_complete(w, false))
        return true;
    find_part(w);
    return false;
}

/* --- room ------------------------------------------------------------------------------------------------------- */

struct kept_file {
    char name[256];
    uint64_t bytes;
    struct timespec used;
};

struct kept_files {
    struct kept_file *list;      /* [n] */
    size_t n, cap;
    uint64_t bytes;              /* of all */
};

/* Whether a part has a header, be it valid or not. */
static bool has_header(int fd)
{
    char magic[sizeof MAGIC];
    return pp_read_at(fd, magic, sizeof magic, 0) && memcmp(magic, MAGIC, sizeof magic) == 0;
}

/* Removes a part without a header, whose writer was killed. */
static bool remove_orphan(const char *path)
{
    int fd = open_part(path, false);
    bool orphan = fd >= 0 && !has_header(fd) && unlink(path) == 0;
    if (fd >= 0)
        close(fd);
    return orphan;
}

static void add_kept(struct kept_files *all, const char *folder, const char *name)
{
    char path[PATH_CAP];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (n < 0 || (size_t)n >= sizeof path || lstat(path, &st) != 0 || !S_ISREG(st.st_mode) ||
        strlen(name) >= sizeof all->list->name)
        return;
    if ((pp_ends_with(name, ".part") && remove_orphan(path)) ||
        pp_grow(&all->list, &all->cap, all->n + 1, sizeof *all->list) != 0)
        return;
    struct kept_file *f = &all->list[all->n++];
    snprintf(f->name, sizeof f->name, "%s", name);
    f->bytes = (uint64_t)st.st_size;
    f->used = st.st_mtim;
    all->bytes += f->bytes;
}

/* All files of the folder but our own part. */
static struct kept_files list_kept(const struct pp_layout_store *s)
{
    struct kept_files all = {0};
    char own[PATH_CAP];
    part_name(s, own);
    DIR *d = opendir(s->folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if ((pp_ends_with(e->d_name, ".layout") || pp_ends_with(e->d_name, ".part")) &&
            strcmp(e->d_name, strrchr(own, '/') + 1) != 0)
            add_kept(&all, s->folder, e->d_name);
    if (d)
        closedir(d);
    return all;
}

static struct kept_file *least_recent(struct kept_files *all)
{
    struct kept_file *oldest = NULL;
    for (size_t i = 0; i < all->n; i++) {
        struct kept_file *f = &all->list[i];
        if (f->name[0] && (!oldest || f->used.tv_sec < oldest->used.tv_sec ||
                           (f->used.tv_sec == oldest->used.tv_sec && f->used.tv_nsec < oldest->used.tv_nsec)))
            oldest = f;
    }
    return oldest;
}

/* Removes a file; a part only if nobody writes it. */
static bool evict(const struct pp_layout_store *s, const char *name)
{
    char path[sizeof s->folder + 260];
    snprintf(path, sizeof path, "%s/%s", s->folder, name);
    int fd = pp_ends_with(name, ".part") ? open_part(path, false) : -1;
    bool gone = (fd >= 0 || !pp_ends_with(name, ".part")) && unlink(path) == 0;
    if (fd >= 0)
        close(fd);
    return gone;
}

/* The quota in bytes; by default a quarter of what would be free without our files, at most DEFAULT_QUOTA. */
static uint64_t effective_quota(const struct pp_layout_store *s, uint64_t kept)
{
    struct statvfs v;
    if (s->quota)
        return s->quota;
    if (statvfs(s->folder, &v) != 0)
        return 0;
    uint64_t share = ((uint64_t)v.f_bavail * v.f_frsize + kept) / 4;
    return share < DEFAULT_QUOTA ? share : DEFAULT_QUOTA;
}

/* Whether our file fits into the quota once other files are removed, the least recently used first. */
static bool make_room(const struct pp_layout_store *s)
{
    struct kept_files all = list_kept(s);
    uint64_t quota = effective_quota(s, all.bytes);
    bool fits = s->file_bytes <= quota;
    while (fits && all.bytes > quota - s->file_bytes) {
        struct kept_file *f = least_recent(&all);
        if (!f) {
            fits = false;
            break;
        }
        if (evict(s, f->name))
            all.bytes -= f->bytes;
        f->name[0] = 0;
    }
    pp_free(all.list);
    return fits;
}

/* Creates the folder and its parents, if they are missing. */
static void make_folder(const struct pp_layout_store *s)
{
    char path[sizeof s->folder];
    memcpy(path, s->folder, sizeof path);
    for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
}

/* --- writing ---------------------------------------------------------------------------------------------------- */

bool pp_layout_begin(struct pp_weights *w)
{
    struct pp_layout_store *s = &w->store;
    char path[PATH_CAP];
    static const struct header nothing;
    if (!s->folder[0] || w->watch < 0)
        return false;
    part_name(s, path);
    make_folder(s);
    if (s->fd < 0 && (s->fd = open_part(path, true)) < 0)
        return false;
    /* The old header is cleared first, so that the part is invalid if we are killed. All blocks are allocated now,
     * where the file system can do that, so that a disk that fills up later cannot make writing fail. */
    if (make_room(s) && (s->n_done || ftruncate(s->fd, 0) == 0) && pp_write_at(s->fd, &nothing, sizeof nothing, 0) &&
        (fallocate(s->fd, 0, 0, (off_t)s->file_bytes) == 0 ||
         (errno == EOPNOTSUPP && ftruncate(s->fd, (off_t)s->file_bytes) == 0)))
        return true;
    pp_layout_suspend(w, true);
    return false;
}

/* Writes the region up to `end` to the file, a huge page at a time, and maps the file in its place. */
static bool write_region(struct pp_weights *w, size_t end)
{
    struct pp_layout_store *s = &w->store;
    size_t begin = s->written;
    for (size_t at = begin, n; at < end; at += n) {
        n = PP_LARGE_PAGE - (s->data_offset + at) % PP_LARGE_PAGE;
        n = n < end - at ? n : end - at;
        if (atomic_load(&w->stop) || !pp_write_at(s->fd, w->region + at, n, s->data_offset + at))
            return false;
    }
    if (end > begin) {
        s->written = end;
        map_bytes(w, s->fd, begin, end - begin);
    }
    return true;
}

static size_t bytes_done(const struct pp_weights *w)
{
    int n = w->store.n_done;
    return n ? w->list[n - 1]->offset + pp_weight_span(w->list[n - 1]) : 0;
}

bool pp_layout_write(struct pp_weights *w)
{
    struct pp_layout_store *s = &w->store;
    s->n_done++;
    size_t end = bytes_done(w), rest = s->n_done < w->n ? (s->data_offset + end) % PP_LARGE_PAGE : 0;
    return write_region(w, end > s->written + rest ? end - rest : s->written);
}

bool pp_layout_complete(struct pp_weights *w)
{
    struct pp_layout_store *s = &w->store;
    char from[PATH_CAP], to[PATH_CAP];
    part_name(s, from);
    file_name(s, s->identity_known, "layout", to);
    bool good = write_header(w) && rename(from, to) == 0;
    if (!good)
        unlink(from);
    close(s->fd);
    s->fd = -1;
    return good;
}

/* Writes what is left of the finished matrices beyond the last multiple of 2 MiB. */
static bool write_rest(struct pp_weights *w)
{
    struct pp_layout_store *s = &w->store;
    size_t end = bytes_done(w);
    return s->written >= end ||
           pp_write_at(s->fd, w->region + s->written, end - s->written, s->data_offset + s->written);
}

void pp_layout_suspend(struct pp_weights *w, bool drop)
{
    struct pp_layout_store *s = &w->store;
    char path[PATH_CAP];
    if (s->fd < 0)
        return;
    part_name(s, path);
    if (drop || !write_rest(w) || !s->n_done || !write_header(w))
        unlink(path);
    close(s->fd);
    s->fd = -1;
}

void pp_layout_remove(struct pp_weights *w)
{
    char path[PATH_CAP];
    for (int by_identity = 0; by_identity <= w->store.identity_known; by_identity++) {
        file_name(&w->store, by_identity, "layout", path);
        unlink(path);
    }
}
