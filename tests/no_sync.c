/* no_sync.c - what the tests' programs write need not reach the disk: they are killed, but the machine is not, and what
 * a killed process has written is there. One group alone wrote its small files 6,362 times so. SQLite's library calls
 * these, too. Scripts test the program, which has those of libc. */
#include <fcntl.h>
#include <unistd.h>

/* As libc's, but for the wait: no descriptor is an error. */
__attribute__((visibility("default"))) int fsync(int fd)
{
    return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    return fsync(fd);
}
