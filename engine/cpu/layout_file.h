/* layout_file.h - packed weights on disk. Private to engine/cpu. The engine's thread calls pp_layout_store_init and
 * pp_layout_find before the keeper is started; all else is called by the keeper, or once it has ended.
 *
 * CACHE/layouts/ (mode 0700) holds, per model, one file NAME.layout: NAME is the model's identity, or until that is
 * known "f-" and a hash of the file's device, inode, size and mtime. It is written as NAME.part, under a lock that ends
 * with the process; if a process stops before it is complete, the header says how many matrices it has, and the next
 * engine continues after them. A part without a header (its writer was killed) is started again, or removed by the next
 * engine that writes there.
 *
 *   offset        content
 *   0             struct header (layout_file.c): version, names, counts; checksums of the list of matrices, of the
 *                 checksums that follow, and of itself
 *   128           uint64: XXH3-64 of each packed group of 16 rows, matrix by matrix in the order of the program (0 for
 *                 matrices that are read in the model's file)
 *   data_offset   the matrices, each at a multiple of 64 KiB
 *
 * The file is written in pieces that end at multiples of 2 MiB, and the region is placed so that these are multiples of
 * 2 MiB of its addresses, too: where the file system has large folios (ext4 since Linux 6.16, XFS), the mapping then
 * has pages of 2 MiB, like anonymous memory. On a Zen 4 under a hypervisor, Q4_0, pages of 4 KiB cost decode and four
 * rows a fifth of their speed.
 *
 * Nothing is fsynced, and a file is not read as a whole before it is used. That is safe, because a file whose header
 * has wrong checksums, or describes another version, model or shape, is ignored, and because every group is compared
 * with its checksum when a process first needs it (layout.c). Whatever a crash, a bad disk or another program leaves
 * behind either equals what packing would give or is packed again. */
#ifndef PP_CPU_LAYOUT_FILE_H
#define PP_CPU_LAYOUT_FILE_H

#include "engine/cpu/layout_int.h"

/* Functions that return false have failed (a full disk, for instance), which never fails a pass: the weights then stay
 * in anonymous memory. */

/* Decides where this model's file is, or would be. Nowhere without a cache_dir, with PP_LAYOUTS_OFF, or for a model
 * that is no GGUF file. */
void pp_layout_store_init(struct pp_weights *w, const char *cache_dir, uint64_t quota);
/* Maps the file over the region, or the first matrices of a part (whose groups are then marked `from_file`), and sets
 * sums. true: all of the region, which is then read-only; else there was no whole file. */
bool pp_layout_find(struct pp_weights *w);
/* Locks a part and reserves its disk space within the quota, removing other files, the least recently used first. */
bool pp_layout_begin(struct pp_weights *w);
/* Writes the next matrix, all of whose groups are READY, and maps the file over its memory; bytes after the last
 * multiple of 2 MiB wait for the next matrix. */
bool pp_layout_write(struct pp_weights *w);
/* Renames the finished part to the file. */
bool pp_layout_complete(struct pp_weights *w);
/* Closes a part, for another engine to continue; drop: removes it instead, as it holds nothing worth keeping. */
void pp_layout_suspend(struct pp_weights *w, bool drop);
/* Removes the model's file from the cache, because it is damaged. */
void pp_layout_remove(struct pp_weights *w);

#endif
