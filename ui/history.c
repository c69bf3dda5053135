#include "ui/history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/whole_io.h"

enum {
    REWRITE_FACTOR = 4, MAX_FILE_BYTES = 256 << 20,
    WAITS = 50, WAIT_MS = 10,   /* for another pippin that is rewriting the file, which takes a moment */
    TRIES = 5                   /* to lock the file that has the name, and to append to it */
};

static void escape(struct pp_buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '\n')
            pp_buf_str(out, "\\n");
        else if (*s == '\\')
            pp_buf_str(out, "\\\\");
        else
            pp_buf_char(out, *s);
    }
    pp_buf_char(out, '\n');
}

/* Replaces escapes in place, which only makes the text shorter. */
static void unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        if (*s == '\\' && s[1]) {
            s++;
            *to++ = *s == 'n' ? '\n' : *s;
        } else {
            *to++ = *s;
        }
    }
    *to = '\0';
}

/* A ring buffer of the last entries. */
struct ring {
    char *items[PP_HISTORY_ENTRIES];
    size_t n;
};

static void ring_add(struct ring *r, char *text)
{
    char **slot = &r->items[r->n++ % PP_HISTORY_ENTRIES];
    pp_free(*slot);
    *slot = text;
}

static void ring_read(struct ring *r, FILE *f)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t len; (len = getline(&line, &cap, f)) >= 0;) {
        if (len > 0 && line[len - 1] == '\n')
            line[--len] = '\0';
        char *copy = len > 0 && len <= 2 * PP_HISTORY_ENTRY_MAX ? pp_strndup(line, (size_t)len) : NULL;
        if (!copy)
            continue;
        unescape(copy);
        ring_add(r, copy);
    }
    free(line); /* allocated by getline */
}

static void ring_free(struct ring *r)
{
    for (size_t i = 0; r && i < PP_HISTORY_ENTRIES; i++)
        pp_free(r->items[i]);
    pp_free(r);
}

static size_t first_of(const struct ring *r)
{
    return r->n > PP_HISTORY_ENTRIES ? r->n - PP_HISTORY_ENTRIES : 0;
}

/* Whether the open file still has this name; it has not if it was rewritten, that is replaced, since. */
static bool has_name(int fd, const char *path)
{
    struct stat opened, there;
    return fstat(fd, &opened) == 0 && stat(path, &there) == 0 && there.st_dev == opened.st_dev &&
           there.st_ino == opened.st_ino;
}

/* Opens the file and locks it until it is closed: an entry appended by another pippin while the file is rewritten
 * would be lost. *ours is false without a lock: the file system has none, or somebody else holds it for more than a
 * moment. < 0: errno says why. */
static int open_ours(const char *path, int flags, bool *ours)
{
    struct stat opened;
    int fd = -1;
    *ours = false;
    for (int tries = 0, waits = 0; tries < TRIES; tries++) {
        fd = open(path, flags | O_RDWR | O_CLOEXEC | O_NONBLOCK, 0600);
        while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            if (++waits > WAITS)
                return fd;
            nanosleep(&(struct timespec){.tv_nsec = WAIT_MS * 1000000}, NULL);
        }
        if (fd < 0 || fstat(fd, &opened) != 0 || !S_ISREG(opened.st_mode))
            return fd;
        *ours = has_name(fd, path);
        if (*ours || tries + 1 == TRIES)
            return fd;
        close(fd);
    }
    return fd;
}

/* Whether the file ends within a line: an entry that was cut off by a full disk or a kill. */
static bool ends_amid_line(int fd, off_t size)
{
    char last;
    return size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

/* Appends lines to the file. *kept: it still had its name afterwards. `lines` begin with a line feed, which is
 * written only if the file ends within a line. False: errno says why. */
static bool append_once(const char *path, const char *lines, size_t n, bool *kept)
{
    struct stat st = {0};
    bool ours; /* if it has no lock, it writes all the same */
    const int fd = open_ours(path, O_APPEND | O_CREAT, &ours);
    bool good = fd >= 0 && fstat(fd, &st) == 0;
    if (good && !S_ISREG(st.st_mode)) {
        good = false;
        errno = EINVAL;
    }
    const size_t skipped = good && ends_amid_line(fd, st.st_size) ? 0 : 1;
    good = good && pp_write_whole(fd, lines + skipped, n - skipped);
    const int error = errno;
    *kept = good && has_name(fd, path);
    if (fd >= 0)
        close(fd);
    errno = error;
    return good;
}

/* Appends lines, again if the file was replaced meanwhile: it is better to have them twice than not at all. */
static bool append(const char *path, const char *lines, size_t n)
{
    for (int tries = 0; tries < TRIES; tries++) {
        bool kept;
        if (!append_once(path, lines, n, &kept))
            return false;
        if (kept)
            return true;
    }
    errno = EBUSY;
    return false;
}

/* Appends to the new file what others, who have not waited for the lock, have appended to the old one since it was
 * read. If they append later, they notice by themselves that it was replaced. */
static void carry_over(int old, off_t from, const char *path)
{
    struct pp_buf late = {0};
    char part[4096];
    pp_buf_char(&late, '\n');
    for (size_t n; (n = pp_read_some_at(old, part, sizeof part, (uint64_t)from)) > 0; from += (off_t)n)
        pp_buf_add(&late, part, n);
    if (late.len > 1 && !late.bad)
        (void)append(path, late.data, late.len);
    pp_buf_free(&late);
}

/* Truncates the file to the last entries, including those appended since it was loaded. If that fails, the next
 * start tries again. */
static void rewrite(const char *path)
{
    struct pp_buf text = {0};
    bool ours;
    const int fd = open_ours(path, 0, &ours);
    FILE *f = ours ? fdopen(fd, "r") : NULL;
    struct ring *r = f ? pp_calloc(1, sizeof *r) : NULL;
    if (r) {
        ring_read(r, f);
        for (size_t i = first_of(r); i < r->n; i++)
            escape(&text, r->items[i % PP_HISTORY_ENTRIES]);
        const off_t end = ftello(f);
        if (!text.bad && !ferror(f) && end >= 0) {
            (void)pp_write_file(path, text.data, text.len, 0600, NULL);
            if (!has_name(fd, path))
                carry_over(fd, end, path);
        }
    }
    ring_free(r);
    pp_buf_free(&text);
    if (f)
        fclose(f); /* releases the lock, too */
    else if (fd >= 0)
        close(fd);
}

enum pp_code pp_history_load(const char *path, void (*add)(void *user, const char *text), void *user,
                             struct pp_error *err)
{
    FILE *f = pp_open_regular(path);
    if (!f && errno == ENOENT)
        return PP_OK;
    if (!f && errno != EINVAL)
        return pp_fail(err, PP_ERR_IO, "cannot read the input history %s: %s", path, strerror(errno));
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0 || st.st_size > MAX_FILE_BYTES) {
        if (f)
            fclose(f);
        return pp_fail(err, PP_ERR_FORMAT, "the input history %s is not used: not a regular file, or far too large",
                       path);
    }
    struct ring *ring = pp_calloc(1, sizeof *ring);
    if (!ring) {
        fclose(f);
        return pp_fail_nomem(err, "the input history");
    }
    ring_read(ring, f);
    fclose(f);
    for (size_t i = first_of(ring); i < ring->n; i++)
        add(user, ring->items[i % PP_HISTORY_ENTRIES]);
    if (ring->n > (size_t)REWRITE_FACTOR * PP_HISTORY_ENTRIES)
        rewrite(path);
    ring_free(ring);
    return PP_OK;
}

enum pp_code pp_history_append(const char *path, const char *text, struct pp_error *err)
{
    if (!*text || strlen(text) > PP_HISTORY_ENTRY_MAX)
        return PP_OK;
    struct pp_buf line = {0};
    enum pp_code code = PP_OK;
    pp_buf_char(&line, '\n');
    escape(&line, text);
    if (line.bad)
        code = pp_fail_nomem(err, "the input history");
    else if (!append(path, line.data, line.len))
        code = pp_fail(err, PP_ERR_IO, "cannot write the input history %s: %s", path, strerror(errno));
    pp_buf_free(&line);
    return code;
}
