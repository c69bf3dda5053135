/* whole_io.h - reads and writes that are complete: system calls may do only a part of what is asked, be interrupted, or
 * wait for ever. Any thread. */
#ifndef PP_ENGINE_BASE_WHOLE_IO_H
#define PP_ENGINE_BASE_WHOLE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Opens a regular file for reading; close it with fclose. NULL: errno tells why. Anything else is refused with EINVAL:
 * a pipe could block, and a device may have no end. */
FILE *pp_open_regular(const char *path);

/* Writes n bytes at the file's position. false: errno says why; some of the bytes may have been written. */
bool pp_write_whole(int fd, const void *data, size_t n);
/* Writes n bytes at byte `at` of the file, without moving its position. false: errno says why. */
bool pp_write_at(int fd, const void *data, size_t n, uint64_t at);
/* Reads n bytes from byte `at` of the file. false: errno says why, EIO if the file ends before the n bytes do. */
bool pp_read_at(int fd, void *data, size_t n, uint64_t at);
/* Reads up to n bytes from byte `at`; stops where the file ends or cannot be read. Returns how many were read. */
size_t pp_read_some_at(int fd, void *data, size_t n, uint64_t at);

#endif
