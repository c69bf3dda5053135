/* no_sync.c - fsync() and the like without waiting, for the programs of the tests: these are killed, but the machine is
 * not, and what a killed process has written is there. One group alone wrote its small files 6,362 times in this way.
 * SQLite's library calls these functions, too. Scripts test the program itself, which has those of libc. */
#include <fcntl.h>
#include <unistd.h>

/* As libc's without the wait: a bad descriptor is an error. */
__attribute__((visibility("default"))) int fsync(int fd)
{
    return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    return fsync(fd);
}
