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

/* What the file system said of a file when it was opened: another or a changed file says something else. No padding. */
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

/* The same watch over pages that the caller maps itself, whatever file is behind them. -1: the table is full; without a
 * watch a hole kills the process, so do not map a file there. */
int pp_map_watch(const void *data, size_t size);
void pp_map_unwatch(int watch);         /* before the pages are unmapped; -1 is fine */
bool pp_map_watch_lost(int watch);      /* -1: never */

/* What a mapped file has from `begin` to `end` need not stay in memory; it is read again if need be. What shares a page
 * with it goes, too, as one touch brings back all of a large page, with what was let go of before. Anything else than
 * such a file stays. */
void pp_map_let_go(const void *begin, const void *end);

/* Puts read-only pages of a file, from `offset` on, or with fd -1 zeros, over [at, at + size), which is mapped already
 * and which other threads may be reading. Everything in whole pages of the system. May be called in a signal
 * handler. */
bool pp_map_over(void *at, size_t size, int fd, uint64_t offset);

struct stat;
/* Of a file that stat or fstat looked at. */
struct pp_file_id pp_file_id(const struct stat *st);

/* Reads a whole regular file of at most `limit` bytes into fresh memory (pp_free), NUL-terminated.
 * Larger files fail with PP_ERR_FORMAT. */
enum pp_code pp_read_file(const char *path, size_t limit, char **data, size_t *size, struct pp_error *err);

/* What is written if path is: path itself, or what the link with that name leads to in the end, whether it is there or
 * not: a file that takes a link's place would leave its target as it was. What leads to anything but a file stays as it
 * is called, to be refused by that name. *to: pp_free; NULL after an error. */
enum pp_code pp_follow_links(const char *path, char **to, struct pp_error *err);

/* Fails if path is there and no regular file: a file that is renamed over a device or a pipe would take its place. And
 * if its folder is not there or takes no files. */
enum pp_code pp_check_target(const char *path, struct pp_error *err);

/* Keeps a folder for one who fills it: two would leave what is of both. *lock is closed to release it, and -1 where it
 * cannot be locked: some file systems have no locks, and there nobody waits. PP_ERR_BUSY: somebody else has it. */
enum pp_code pp_lock_folder(const char *path, int *lock, struct pp_error *err);

/* Gives a file that is whole and on the disk (fsync) its name, for good: the folder is on the disk then, too. What had
 * the name is replaced. PP_ERR_IO: that cannot be; then all is as before. */
enum pp_code pp_name_file(const char *temp, const char *path, struct pp_error *err);
/* Likewise a new file: what has the name stays, and that is PP_ERR_IO, too. */
enum pp_code pp_name_new_file(const char *temp, const char *path, struct pp_error *err);
/* That there is no such file yet. */
enum pp_code pp_check_new(const char *path, struct pp_error *err);

/* Whether a file's name is NAME.PID.tmp: of something that is, or was, being written. */
bool pp_is_temporary_of(const char *entry, const char *name);
/* Removes what processes that died have left of path, PATH.PID.tmp: it may be as large as a model; with it a database's
 * PATH.PID.tmp-journal. What is locked, or younger than a minute, may still be somebody's. */
void pp_remove_left(const char *path);

/* Replaces path, which that allows, or what it leads to, by the bytes: temporary file beside it, fsync, rename, fsync
 * of the folder. `mode` as in open(2). */
enum pp_code pp_write_file(const char *path, const void *data, size_t size, unsigned mode, struct pp_error *err);
/* Likewise a new file: one that is there stays, and none is there before it is whole. */
enum pp_code pp_write_new_file(const char *path, const void *data, size_t size, unsigned mode, struct pp_error *err);

#endif
