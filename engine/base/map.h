/* map.h - files mapped read-only, and what happens when they shrink.
 *
 * A mapped file that another program truncates raises SIGBUS on the next touch. The handler installed by the
 * first pp_map_open() puts zero pages under the hole, marks the map, and lets the pass go on to its end, where
 * the engine asks pp_map_lost() and fails with an error that names the file. A SIGBUS anywhere else is passed
 * on to whatever handler was there before. */
#ifndef PP_BASE_MAP_H
#define PP_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

/* What the file system said of a file when it was opened; it differs for another file, and once the file is changed.
 * Without padding, so that memcmp compares two. */
struct pp_file_id {
    uint64_t dev, ino, size;
    int64_t mtime_s, mtime_ns;
};

struct pp_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
    char *path;
    struct pp_file_id id;
    int slot; /* private: index in the table that the signal handler reads */
};

/* Maps a regular file whole. The file may be closed, renamed or deleted afterwards. PP_ERR_NOMEM: it is larger than
 * what the process may map. */
enum pp_code pp_map_open(const char *path, struct pp_map *map, struct pp_error *err);
void pp_map_close(struct pp_map *map); /* a zeroed or closed map is fine */
/* True once part of the file was found missing; the data read since then are zeros. */
bool pp_map_lost(const struct pp_map *map);
/* True if another program has written to the file since it was mapped, so that what was read may mix two versions.
 * Removing it, or replacing it by a rename, changes nothing. */
bool pp_map_changed(const struct pp_map *map);

/* The same watch for pages that the caller maps, of any file. -1: the table is full; without a watch a hole kills the
 * process, so do not map a file then. */
int pp_map_watch(const void *data, size_t size);
void pp_map_unwatch(int watch);         /* before the pages are unmapped; -1 is fine */
bool pp_map_watch_lost(int watch);      /* -1: never */

/* Releases a range of a mapped file from memory; it is read again when it is touched. This releases whole pages, with
 * whatever else they hold, and one touch brings a whole huge page back. Other memory is left alone. */
void pp_map_release_pages(const void *begin, const void *end);

/* Maps read-only pages of a file, from `offset` on, or with fd -1 zeros, over [at, at + size), which is mapped already
 * and which other threads may be reading. All values must be multiples of the system's page. May be called in a signal
 * handler. */
bool pp_map_over(void *at, size_t size, int fd, uint64_t offset);

struct stat;
/* st: as stat or fstat filled it. */
struct pp_file_id pp_file_id(const struct stat *st);

/* The folder of a path, which need not exist: "." for a name alone. pp_free; NULL: out of memory. */
char *pp_folder_of(const char *path);

/* Reads a whole regular file of at most `limit` bytes into fresh memory (pp_free), NUL-terminated.
 * Larger files fail with PP_ERR_FORMAT. */
enum pp_code pp_read_file(const char *path, size_t limit, char **data, size_t *size, struct pp_error *err);

/* Which file to replace when path is written: path itself or, if it is a symbolic link, the file that it leads to in
 * the end, which need not exist yet. (A file that took the link's place would leave the link's target as it was.) A
 * link to anything but a regular file is not followed, so that it is refused by the name that the user gave. *to:
 * pp_free; NULL after an error. */
enum pp_code pp_follow_links(const char *path, char **to, struct pp_error *err);

/* Fails if path exists and is no regular file: a file that is renamed over a device or a pipe would take its place.
 * Also fails if its folder does not exist or takes no files. */
enum pp_code pp_check_target(const char *path, struct pp_error *err);

/* Locks a folder while one process fills it: two would leave a mixture of both. *lock: a descriptor, to be closed to
 * release the folder; -1 if it cannot be opened. Where the file system has no locks this is PP_OK, too, and nothing
 * keeps others out. PP_ERR_BUSY: another process has the folder; this does not wait. */
enum pp_code pp_lock_folder(const char *path, int *lock, struct pp_error *err);

/* Renames temp, which is whole and on the disk (fsync), to path and then syncs the folder, so that the name lasts as
 * well. A file that had the name is replaced. PP_ERR_IO: it cannot be renamed; then all is as before. */
enum pp_code pp_name_file(const char *temp, const char *path, struct pp_error *err);
/* The same, but never replaces: if something has the name already, it stays, and the result is PP_ERR_IO. */
enum pp_code pp_name_new_file(const char *temp, const char *path, struct pp_error *err);
/* Fails if something has the name `path` already, or if its folder does not exist or takes no files. */
enum pp_code pp_check_new(const char *path, struct pp_error *err);

/* PATH.PID.tmp, in the same folder, for a file that is renamed when it is complete. If the name leaves no room for the
 * ending within 255 bytes, it is cut. pp_free; NULL: out of memory. */
char *pp_temporary_name(const char *path);
/* Whether `entry`, a file's name, is a temporary name for NAME: of a file that is, or was, being written. */
bool pp_is_temporary_of(const char *entry, const char *name);
/* Removes the temporary files of PATH that dead processes have left, which may be as large as a model, and for a
 * database those with -journal appended. A file that is locked, or younger than a minute, stays: it may be in use. */
void pp_remove_stale(const char *path);

/* Replaces path (or the file that the link leads to, see pp_follow_links) by the bytes, if pp_check_target allows it:
 * temporary file beside it, fsync, rename, fsync of the folder. `mode` as in open(2). */
enum pp_code pp_write_file(const char *path, const void *data, size_t size, unsigned mode, struct pp_error *err);
/* The same, but never replaces (see pp_name_new_file). The name does not exist before the file is whole. */
enum pp_code pp_write_new_file(const char *path, const void *data, size_t size, unsigned mode, struct pp_error *err);

#endif
