#include "engine/base/whole_io.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether a write has failed; one that wrote nothing without an error counts as a full disk. */
static bool failed(ssize_t w)
{
    if (w == 0)
        errno = ENOSPC;
    return w <= 0;
}

FILE *pp_open_regular(const char *path)
{
    struct stat st;
    FILE *f = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    errno = EINVAL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        f = fdopen(fd, "r");
    if (!f) {
        const int why = errno;
        close(fd);
        errno = why;
    }
    return f;
}

bool pp_write_whole(int fd, const void *data, size_t n)
{
    for (const char *p = data; n;) {
        const ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (failed(w))
            return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

bool pp_write_at(int fd, const void *data, size_t n, uint64_t at)
{
    for (const char *p = data; n;) {
        const ssize_t w = pwrite(fd, p, n, (off_t)at);
        if (w < 0 && errno == EINTR)
            continue;
        if (failed(w))
            return false;
        p += w;
        at += (uint64_t)w;
        n -= (size_t)w;
    }
    return true;
}

size_t pp_read_some_at(int fd, void *data, size_t n, uint64_t at)
{
    size_t have = 0;
    while (have < n) {
        const ssize_t r = pread(fd, (char *)data + have, n - have, (off_t)(at + have));
        if (r < 0 && errno == EINTR)
            continue;
        if (r == 0)
            errno = EIO;
        if (r <= 0)
            break;
        have += (size_t)r;
    }
    return have;
}

bool pp_read_at(int fd, void *data, size_t n, uint64_t at)
{
    return pp_read_some_at(fd, data, n, at) == n;
}
