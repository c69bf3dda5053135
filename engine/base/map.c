#include "engine/base/map.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/whole_io.h"

enum { MAX_MAPS = 1024, LARGE_FILE = 1 << 26 };

/* Read by the signal handler: begin is published last and withdrawn first. */
static struct watched {
    atomic_uintptr_t begin;
    atomic_size_t size;
    atomic_bool lost;
} watched[MAX_MAPS];

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static bool used[MAX_MAPS];                  /* -- protected by table_lock */
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static struct sigaction previous;
static long page_size;

/* The bare system call: ThreadSanitizer takes mmap() for a write that races with the other readers. */
bool pp_map_over(void *at, size_t size, int fd, uint64_t offset)
{
    int flags = MAP_PRIVATE | MAP_FIXED | (fd < 0 ? MAP_ANONYMOUS : 0);
    if (syscall(SYS_mmap, at, size, PROT_READ, flags, fd, offset) == -1)
        return false;
    if (fd >= 0)
        madvise(at, size, MADV_HUGEPAGE); /* what is read from disk comes in huge pages, where those exist */
    return true;
}

/* Whether slot i watches memory with the bytes [from, to), and where that lies. Other threads may give the slot to
 * other memory meanwhile: `begin` is read again, so that it never counts with another's size. For signal handlers,
 * too. */
static bool watches(int i, uintptr_t from, uintptr_t to, uintptr_t *begin, uintptr_t *end)
{
    *begin = atomic_load(&watched[i].begin);
    *end = *begin + atomic_load(&watched[i].size);
    return *begin && from >= *begin && to <= *end && atomic_load(&watched[i].begin) == *begin;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr, begin, end;
    for (int i = 0; i < MAX_MAPS; i++) {
        if (!watches(i, at, at + 1, &begin, &end))
            continue;
        void *page = (void *)(at & ~((uintptr_t)page_size - 1));
        if (!pp_map_over(page, (size_t)page_size, -1, 0))
            break;
        atomic_store(&watched[i].lost, true);
        return;
    }
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(sig, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(sig);
    } else {
        signal(SIGBUS, SIG_DFL); /* the access is repeated on return, and kills the process as it should */
    }
}

static void install(void)
{
    struct sigaction sa = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER};
    page_size = sysconf(_SC_PAGESIZE);
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, &previous);
}

static int take_slot(void)
{
    int slot = -1;
    pthread_mutex_lock(&table_lock);
    for (int i = 0; i < MAX_MAPS && slot < 0; i++)
        if (!used[i])
            used[slot = i] = true;
    pthread_mutex_unlock(&table_lock);
    return slot;
}

static void give_slot(int slot)
{
    pthread_mutex_lock(&table_lock);
    used[slot] = false;
    pthread_mutex_unlock(&table_lock);
}

int pp_map_watch(const void *data, size_t size)
{
    pthread_once(&install_once, install);
    int slot = take_slot();
    if (slot >= 0) {
        atomic_store(&watched[slot].lost, false);
        atomic_store(&watched[slot].size, size);
        atomic_store(&watched[slot].begin, (uintptr_t)data);
    }
    return slot;
}

void pp_map_unwatch(int watch)
{
    if (watch < 0)
        return;
    atomic_store(&watched[watch].begin, 0);
    give_slot(watch);
}

bool pp_map_watch_lost(int watch)
{
    return watch >= 0 && atomic_load(&watched[watch].lost);
}

struct pp_file_id pp_file_id(const struct stat *st)
{
    return (struct pp_file_id){.dev = st->st_dev, .ino = st->st_ino, .size = (uint64_t)st->st_size,
                               .mtime_s = st->st_mtim.tv_sec, .mtime_ns = st->st_mtim.tv_nsec};
}

void pp_map_release_pages(const void *begin, const void *end)
{
    const uintptr_t page = PP_LARGE_PAGE, from = (uintptr_t)begin, to = (uintptr_t)end;
    uintptr_t first, last;
    for (int i = 0; i < MAX_MAPS && from < to; i++) {
        if (!watches(i, from, to, &first, &last))
            continue;
        const uintptr_t down = from / page * page, up = (to + page - 1) / page * page;
        const uintptr_t at = down > first ? down : first, stop = up < last ? up : last;
        madvise((void *)at, stop - at, MADV_DONTNEED);
        return;
    }
}

static enum pp_code open_regular(const char *path, int *fd, struct pp_file_id *id, struct pp_error *err)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO must not hang us */
    if (*fd < 0)
        return pp_fail(err, errno == ENOENT || errno == ENOTDIR ? PP_ERR_NOT_FOUND : PP_ERR_IO, "cannot open %s: %s",
                       path, strerror(errno));
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(*fd);
        return pp_fail(err, PP_ERR_IO, "%s is not a regular file", path);
    }
    *id = pp_file_id(&st);
    return PP_OK;
}

enum pp_code pp_map_open(const char *path, struct pp_map *map, struct pp_error *err)
{
    int fd;
    struct pp_file_id id;
    *map = (struct pp_map){.slot = -1};
    enum pp_code code = open_regular(path, &fd, &id, err);
    if (code)
        return code;
    size_t size = (size_t)id.size;
    void *data = size ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    int saved = errno;
    close(fd);
    if (data == MAP_FAILED && saved == ENOMEM)
        return pp_fail(err, PP_ERR_NOMEM, "%s is larger than the limit of virtual memory; raise `ulimit -v`", path);
    if (data == MAP_FAILED)
        return pp_fail(err, PP_ERR_IO, "cannot map %s: %s", path, strerror(saved));
    char *name = pp_strdup(path);
    int slot = name && size ? pp_map_watch(data, size) : -1;
    if (!name || (size && slot < 0)) {
        if (data)
            munmap(data, size);
        code = !name ? pp_fail_nomem(err, "a file name")
                     : pp_fail(err, PP_ERR_IO, "more than %d files are mapped; close some models first", MAX_MAPS);
        pp_free(name);
        return code;
    }
    if (size >= LARGE_FILE)
        madvise(data, size, MADV_HUGEPAGE); /* as in pp_map_over */
    *map = (struct pp_map){.data = data, .size = size, .path = name, .id = id, .slot = slot};
    return PP_OK;
}

void pp_map_close(struct pp_map *map)
{
    if (map->data) {
        pp_map_unwatch(map->slot);
        munmap((void *)(uintptr_t)map->data, map->size);
    }
    pp_free(map->path);
    *map = (struct pp_map){.slot = -1};
}

bool pp_map_lost(const struct pp_map *map)
{
    return map->data && pp_map_watch_lost(map->slot);
}

bool pp_map_changed(const struct pp_map *map)
{
    struct stat st;
    if (!map->path || stat(map->path, &st) != 0)
        return false;
    const struct pp_file_id now = pp_file_id(&st);
    return now.dev == map->id.dev && now.ino == map->id.ino && memcmp(&now, &map->id, sizeof now) != 0;
}

enum pp_code pp_read_file(const char *path, size_t limit, char **data, size_t *size, struct pp_error *err)
{
    int fd;
    struct pp_file_id id;
    enum pp_code code = open_regular(path, &fd, &id, err);
    *data = NULL;
    if (code)
        return code;
    *size = (size_t)id.size;
    if (*size > limit) {
        close(fd);
        return pp_fail(err, PP_ERR_FORMAT, "%s has %zu bytes; such a file may have at most %zu", path, *size,
                       limit);
    }
    char *text = pp_malloc(*size + 1);
    if (!text) {
        close(fd);
        return pp_fail_nomem(err, path);
    }
    size_t have = 0;
    while (have < *size) {
        ssize_t n = read(fd, text + have, *size - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            code = pp_fail(err, PP_ERR_IO, "cannot read %s: %s", path, strerror(errno));
            close(fd);
            pp_free(text);
            return code;
        }
        if (n == 0)
            break; /* it shrank; what is there counts */
        have += (size_t)n;
    }
    close(fd);
    text[have] = 0;
    *size = have;
    *data = text;
    return PP_OK;
}

char *pp_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? pp_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : pp_strdup(".");
}

/* A rename is durable only when the folder that holds the name is, too. Best effort: some file systems refuse. */
static void sync_folder(const char *path)
{
    char *folder = pp_folder_of(path);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    pp_free(folder);
}

/* Whether files can be created and renamed in its folder. */
static enum pp_code check_folder(const char *path, struct pp_error *err)
{
    char *folder = pp_folder_of(path);
    if (!folder)
        return pp_fail_nomem(err, "a file name");
    const int why = access(folder, W_OK | X_OK) == 0 ? 0 : errno;
    pp_free(folder);
    return why ? pp_fail(err, PP_ERR_IO, "cannot write %s: %s", path, strerror(why)) : PP_OK;
}

/* The target of a link, relative to its folder; NULL: path is no link, or (*bad) out of memory. pp_free. */
static char *link_target(const char *path, bool *bad)
{
    char text[PATH_MAX];
    const ssize_t n = readlink(path, text, sizeof text);
    *bad = false;
    if (n < 0 || (size_t)n == sizeof text)
        return NULL;
    const char *slash = strrchr(path, '/');
    const size_t folder = text[0] == '/' || !slash ? 0 : (size_t)(slash - path) + 1;
    char *to = pp_malloc(folder + (size_t)n + 1);
    *bad = !to;
    if (to) {
        memcpy(to, path, folder);
        memcpy(to + folder, text, (size_t)n);
        to[folder + (size_t)n] = 0;
    }
    return to;
}

/* The kernel follows /dev/stdout to a pipe, although the link's text, "pipe:[12345]", names no file. */
static bool leads_to_no_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

enum pp_code pp_follow_links(const char *path, char **to, struct pp_error *err)
{
    enum { MOST = 40 }; /* Linux's limit */
    char *at = pp_strdup(path);
    bool bad = !at;
    *to = NULL;
    if (at && leads_to_no_file(path)) {
        *to = at;
        return PP_OK;
    }
    for (int i = 0; at && i <= MOST; i++) {
        char *next = link_target(at, &bad);
        if (!next && !bad) {
            *to = at;
            return PP_OK;
        }
        pp_free(at);
        at = next;
    }
    pp_free(at);
    return bad ? pp_fail_nomem(err, "a file name")
               : pp_fail(err, PP_ERR_IO, "cannot write %s: it is a circular symbolic link; remove it", path);
}

static enum pp_code check_end(const char *path, struct pp_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
        return check_folder(path, err);
    return pp_fail(err, PP_ERR_IO, "cannot write %s: it is %s; give a file", path,
                   S_ISDIR(st.st_mode) ? "a folder" : "a device or a pipe");
}

enum pp_code pp_check_target(const char *path, struct pp_error *err)
{
    char *end;
    enum pp_code code = pp_follow_links(path, &end, err);
    if (!code)
        code = check_end(end, err);
    pp_free(end);
    return code;
}

static enum pp_code there_already(const char *path, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_IO, "%s exists and was left unchanged; give another file name", path);
}

enum pp_code pp_check_new(const char *path, struct pp_error *err)
{
    struct stat st;
    return lstat(path, &st) == 0 ? there_already(path, err) : check_folder(path, err);
}

enum pp_code pp_name_file(const char *temp, const char *path, struct pp_error *err)
{
    if (rename(temp, path) != 0)
        return pp_fail(err, PP_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    sync_folder(path);
    return PP_OK;
}

enum pp_code pp_name_new_file(const char *temp, const char *path, struct pp_error *err)
{
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_NOREPLACE) == 0) {
        sync_folder(path);
        return PP_OK;
    }
    if (errno == EEXIST)
        return there_already(path, err);
    if (errno != EINVAL && errno != ENOSYS)
        return pp_fail(err, PP_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    const enum pp_code code = pp_check_new(path, err); /* some file systems cannot check and rename atomically */
    return code ? code : pp_name_file(temp, path, err);
}

/* Endings of temporary names: ".PID.tmp", with up to seven digits, and for a database "-journal". A name too long for
 * that is cut. */
enum { TEMP_ENDING = 1 + 7 + 4 + 8, TEMP_NAME = NAME_MAX - TEMP_ENDING };

/* How many of a name's n bytes its temporary file's name has; characters stay whole, as some file systems require. */
static size_t kept_of_name(const char *name, size_t n)
{
    if (n <= TEMP_NAME)
        return n;
    n = TEMP_NAME;
    for (int i = 0; i < 3 && ((unsigned char)name[n] & 0xC0) == 0x80; i++)
        n--;
    return n;
}

char *pp_temporary_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t n = (size_t)(name - path) + kept_of_name(name, strlen(name)), cap = n + TEMP_ENDING + 8;
    char *temp = pp_malloc(cap);
    if (temp)
        snprintf(temp, cap, "%.*s.%ld.tmp", (int)n, path, (long)getpid());
    return temp;
}

bool pp_is_temporary_of(const char *entry, const char *name)
{
    const size_t n = kept_of_name(name, strlen(name));
    if (strncmp(entry, name, n) != 0 || entry[n] != '.')
        return false;
    const size_t digits = strspn(entry + n + 1, "0123456789");
    return digits && strcmp(entry + n + 1 + digits, ".tmp") == 0;
}

/* For a database that was being copied, also its journal. */
static void remove_if_left(int folder, const char *name)
{
    enum { YOUNG_S = 60 };
    char journal[NAME_MAX + 16];
    struct stat st;
    const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_mtime + YOUNG_S < time(NULL) &&
        flock(fd, LOCK_EX | LOCK_NB) == 0) {
        snprintf(journal, sizeof journal, "%s-journal", name);
        unlinkat(folder, journal, 0);
        unlinkat(folder, name, 0);
    }
    close(fd);
}

void pp_remove_stale(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = pp_folder_of(path);
    DIR *d = folder ? opendir(folder) : NULL;
    pp_free(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (pp_is_temporary_of(e->d_name, slash ? slash + 1 : path))
            remove_if_left(dirfd(d), e->d_name);
    if (d)
        closedir(d);
}

enum pp_code pp_lock_folder(const char *path, int *lock, struct pp_error *err)
{
    *lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0 || flock(*lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return PP_OK;
    close(*lock);
    *lock = -1;
    return pp_fail(err, PP_ERR_BUSY, "another pippin is writing to %s; wait until it is done, or give another folder",
                   path);
}

/* Writes a file completely and syncs it, or leaves none; path: its final name. */
static enum pp_code write_whole_file(const char *temp, const char *path, const void *data, size_t size, unsigned mode,
                                     struct pp_error *err)
{
    unlink(temp); /* of a process that died and had our id */
    int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return pp_fail(err, PP_ERR_IO, "cannot write %s: %s", path, strerror(errno)); /* the name that the user knows */
    int bad = !pp_write_whole(fd, data, size) || fsync(fd) != 0;
    int saved = errno;
    if (close(fd) != 0 && !bad) {
        bad = 1;
        saved = errno;
    }
    if (!bad)
        return PP_OK;
    unlink(temp);
    return pp_fail(err, PP_ERR_IO, "cannot write %s: %s", path, strerror(saved));
}

typedef enum pp_code name_fn(const char *temp, const char *path, struct pp_error *err);

/* Writes to a temporary file next to `path`, then names it. */
static enum pp_code write_and_name(const char *path, const void *data, size_t size, unsigned mode, name_fn *name,
                                   struct pp_error *err)
{
    char *temp = pp_temporary_name(path);
    if (!temp)
        return pp_fail_nomem(err, "a file name");
    enum pp_code code = write_whole_file(temp, path, data, size, mode, err);
    if (!code && (code = name(temp, path, err)))
        unlink(temp);
    pp_free(temp);
    return code;
}

enum pp_code pp_write_file(const char *path, const void *data, size_t size, unsigned mode, struct pp_error *err)
{
    char *end;
    enum pp_code code = pp_follow_links(path, &end, err);
    if (!code)
        code = check_end(end, err);
    if (!code)
        code = write_and_name(end, data, size, mode, pp_name_file, err);
    pp_free(end);
    return code;
}

enum pp_code pp_write_new_file(const char *path, const void *data, size_t size, unsigned mode, struct pp_error *err)
{
    const enum pp_code code = pp_check_new(path, err);
    return code ? code : write_and_name(path, data, size, mode, pp_name_new_file, err);
}
