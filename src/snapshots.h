/* snapshots.h - where the KV snapshots of conversations are kept, and how much disk space they may take. (engine.h says
 * what is in them and how they are written.)
 *
 * The paths of a conversation's two files begin with CACHE/kv/KEY. The mtime of a manifest is the time of last use. */
#ifndef PP_SRC_SNAPSHOTS_H
#define PP_SRC_SNAPSHOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "src/io.h"

enum { PP_SNAPSHOT_PATH = 640 };

/* Bytes of all snapshots together, by default. */
#define PP_SNAPSHOT_QUOTA (UINT64_C(4) << 30)
/* In place of a quota: no snapshots are read or written. */
#define PP_SNAPSHOTS_OFF UINT64_MAX

/* out [cap]: the common beginning of the two files' paths, CACHE/kv/KEY; "" if the key is invalid or the path does not
 * fit. */
void pp_snapshot_base(const char *cache_dir, const char *session_key, char *out, size_t cap);
/* Removes unfinished files of this conversation's snapshot, and makes room for its `bytes`: removes other
 * conversations' snapshots, the least recently used first, until all fit `quota` (bytes). False: it would not fit even
 * alone. Only on the thread that writes files. */
bool pp_snapshot_make_room(const char *base, uint64_t bytes, uint64_t quota);
/* Marks a snapshot as used just now. */
void pp_snapshot_touch(const char *base);
/* Bytes of the largest among the n most recently used ones; 0 if there are none. Any thread. */
uint64_t pp_snapshot_largest(const char *cache_dir, size_t n);
/* Has the io thread remove a snapshot, after whatever is being saved. Any thread. */
void pp_snapshot_forget(struct pp_io *io, const char *base);

/* Saves in slices: the first one creates the folder, plans and makes room, and each writes for about 100 ms. Only on
 * the thread that writes files. */
struct pp_snapshot_writer {
    struct pp_save *save;
    char base[PP_SNAPSHOT_PATH];
    uint64_t quota;
    struct pp_cancel cancel;
    bool begun;                  /* private */
};
/* Runs the next slice. True: that was the last one, and *err says how it ended (code PP_OK: saved). */
bool pp_snapshot_slice(struct pp_snapshot_writer *w, struct pp_error *err);

#endif
