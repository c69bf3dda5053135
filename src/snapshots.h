/* snapshots.h - where the KV snapshots of conversations live, and how much room they may take. (What is in them, and
 * how they are written: engine.h.)
 *
 * Those of a conversation begin with CACHE/kv/KEY. Which were used last is told by the times of their manifests. */
#ifndef PP_SRC_SNAPSHOTS_H
#define PP_SRC_SNAPSHOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "src/io.h"

enum { PP_SNAPSHOT_PATH = 640 };

/* All snapshots together, unless the user says otherwise. */
#define PP_SNAPSHOT_QUOTA (UINT64_C(4) << 30)
/* In place of a quota: no snapshots are read or written. */
#define PP_SNAPSHOTS_OFF UINT64_MAX

/* out [cap]: what the names of a conversation's two files begin with, CACHE/kv/KEY; "" if the key is none or the path
 * does not fit. */
void pp_snapshot_base(const char *cache_dir, const char *session_key, char *out, size_t cap);
/* Removes what was left half done of this conversation's snapshot, and makes room for its `bytes`: the snapshots of
 * others that were unused for longest go until the rest fits `quota` (bytes). False if it would not fit even alone. For
 * the thread that writes files. */
bool pp_snapshot_make_room(const char *base, uint64_t bytes, uint64_t quota);
/* Marks a snapshot as used just now. */
void pp_snapshot_touch(const char *base);
/* Bytes of the largest among those n that were used last; 0 if there are none. Any thread. */
uint64_t pp_snapshot_largest(const char *cache_dir, size_t n);
/* The io thread removes it, after whatever is being saved. Any thread. */
void pp_snapshot_forget(struct pp_io *io, const char *base);

/* Saving in slices: folder, plan and room with the first one, about 100 ms of writing with each. For the thread that
 * writes files. */
struct pp_snapshot_writer {
    struct pp_save *save;
    char base[PP_SNAPSHOT_PATH];
    uint64_t quota;
    struct pp_cancel cancel;
    bool begun;                  /* private */
};
/* True: that was the last one; *err (code PP_OK: saved) tells how it ended. */
bool pp_snapshot_slice(struct pp_snapshot_writer *w, struct pp_error *err);

#endif
