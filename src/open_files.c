#include "src/open_files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LIMIT = 128 };

enum pp_code pp_open_files_check(int need, struct pp_error *err)
{
    int fds[LIMIT], n = 0, why = 0;
    while (n < need && n < LIMIT && !why) {
        fds[n] = open("/", O_PATH | O_CLOEXEC);
        if (fds[n] >= 0)
            n++;
        else
            why = errno;
    }
    const int found = n;
    while (n > 0)
        close(fds[--n]);
    struct rlimit limit;
    if (!why)
        return PP_OK;
    if (why == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        return pp_fail(err, PP_ERR_IO, "the limit of open files is too low: it is %llu with %d left, and a chat needs "
                                       "%d; run `ulimit -n 1024` and start pippin again",
                       (unsigned long long)limit.rlim_cur, found, need);
    return pp_fail(err, PP_ERR_IO, "no more files can be opened: %s; close other programs", strerror(why));
}
