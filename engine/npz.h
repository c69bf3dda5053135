/* npz.h - .npz files, in which MLX first saved adapters: zip archives whose members are single arrays in NumPy's format
 * (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), stored without compression. Untrusted
 * input: members inside the file, no overlaps, checksums, sizes that match type and shape. */
#ifndef PP_ENGINE_NPZ_H
#define PP_ENGINE_NPZ_H

#include "engine/base/buf.h"
#include "engine/base/error.h"

/* Appends the arrays, under the members' names without ".npy", to *out as the bytes of a safetensors file. F32, F16 and
 * BF16. PP_ERR_UNSUPPORTED: members are compressed or encrypted, or have another type; PP_ERR_FORMAT: the file is
 * damaged. Memory: the size of the file, twice while it is read. */
enum pp_code pp_npz_read(const char *path, struct pp_buf *out, struct pp_error *err);

#endif
