/* whole_io.h - reads and writes that do not end halfway: the system may do a part of what is asked, be interrupted, or
 * wait for ever.
 * Any thread. */
#ifndef PP_ENGINE_BASE_WHOLE_IO_H
#define PP_ENGINE_BASE_WHOLE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Opens a file for reading; close it with fclose. NULL: errno says why, EINVAL where it is none: a pipe would be waited
 * for, and a device may have no end. */
FILE *pp_open_regular(const char *path);

/* Writes n bytes where the file is at. false: errno says why; some of them may be there. */
bool pp_write_whole(int fd, const void *data, size_t n);
/* Likewise at a place in a file. */
bool pp_write_at(int fd, const void *data, size_t n, uint64_t at);
/* Reads n bytes from a place in a file. false: errno says why; EIO where the file ends before. */
bool pp_read_at(int fd, void *data, size_t n, uint64_t at);
/* Likewise, but keeps what can be read; how many bytes those are. */
size_t pp_read_some_at(int fd, void *data, size_t n, uint64_t at);

#endif
