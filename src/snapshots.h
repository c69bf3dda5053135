/* snapshots.h - where the KV snapshots of conversations live, and how much room they may take. (What is in them:
 * engine.h.) */
#ifndef PP_SRC_SNAPSHOTS_H
#define PP_SRC_SNAPSHOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "src/io.h"

enum { PP_SNAPSHOT_PATH = 640 };

/* All snapshots together, unless the caller says otherwise. */
#define PP_SNAPSHOT_QUOTA (UINT64_C(4) << 30)

/* True for 1 to 32 hexadecimal digits: nothing else ever becomes part of a file name. */
bool pp_snapshot_key_ok(const char *session_key);
/* Makes room for `incoming` bytes at `path`: the snapshots unused for longest are removed (by the io thread, or at once
 * if io is NULL) until the rest fits `quota`. False if it would not fit even alone. Any thread. */
bool pp_snapshot_make_room(struct pp_io *io, const char *cache_dir, const char *path, uint64_t incoming,
                           uint64_t quota);
/* Marks a snapshot as used just now. */
void pp_snapshot_touch(const char *path);

#endif
