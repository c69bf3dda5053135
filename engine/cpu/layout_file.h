/* layout_file.h - packed weights on disk. Private to engine/cpu; the owner's thread calls pp_layout_find before the
 * keeper is started, everything else is the keeper's.
 *
 * CACHE/layouts/ (mode 0700) holds, per model, one file NAME.layout: NAME is the model's identity, or while that is not
 * known yet "f-" and a hash of what the file system says of the model's file (device, inode, size, time). It is written
 * as NAME.part, under a lock that ends with the process; when a process ends before it is done, the header tells how
 * many matrices are there and the next engine goes on behind them. A part without a header (its writer was killed) is
 * begun anew, or removed by the next engine that writes there.
 *
 *   offset        content
 *   0             struct header (layout_file.c): version, names, counts; checksums of what is where, of the checksums
 *                 that follow, and of itself
 *   128           uint64: XXH3-64 of each packed group of 16 rows, matrix by matrix in the order of the program (0 for
 *                 matrices that are read in the model's file)
 *   data_offset   the matrices, each at a multiple of 64 KiB
 *
 * The file is written in pieces that end at multiples of 2 MiB, and the region lies so that these are multiples of
 * 2 MiB of its addresses too: where the file system keeps files in large pages (ext4 since Linux 6.16, XFS), kernels
 * then read the weights through 2 MiB of address translation at a time, as in memory of our own. On a Zen 4 under a
 * hypervisor, Q4_0, pages of 4 KiB cost decode and four rows a fifth of their speed.
 *
 * Nothing is synchronised to disk, and no file is read before it is used. That is safe, because a header whose
 * checksums do not match, or that describes another version, model or shape, counts as no file at all; and because
 * every group is compared with its checksum when a process first needs it (layout.c). Whatever a crash, a bad disk or a
 * foreign hand leaves behind, it is either equal to what packing would give or packed again. */
#ifndef PP_CPU_LAYOUT_FILE_H
#define PP_CPU_LAYOUT_FILE_H

#include "engine/cpu/layout_int.h"

/* Decides where this model's file is, or would be. No cache_dir, a model that is no GGUF file, or PP_LAYOUTS_OFF:
 * nowhere. */
void pp_layout_store_init(struct pp_weights *w, const char *cache_dir, uint64_t quota);
/* Maps the file over the region, or the first matrices of a part (whose groups are then marked `from_file`). true: all
 * of it; the region is then read-only. Sets sums. Never an error. */
bool pp_layout_find(struct pp_weights *w);
/* Takes the lock and the room for a part, within the quota: others go, the least recently used first. */
bool pp_layout_begin(struct pp_weights *w);
/* The next matrix, all of whose groups are READY, goes to the file, and the file's pages take the place of its own;
 * what is behind the last multiple of 2 MiB waits for the next one. */
bool pp_layout_write(struct pp_weights *w);
/* The part becomes the file. */
bool pp_layout_complete(struct pp_weights *w);
/* Lets go of a part, for another engine to go on with it; drop: there is nothing worth keeping in it. */
void pp_layout_suspend(struct pp_weights *w, bool drop);
/* The model's file in the cache is damaged: remove it. */
void pp_layout_remove(struct pp_weights *w);

#endif
