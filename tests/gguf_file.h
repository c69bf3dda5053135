/* gguf_file.h - GGUF files written by tests. A write error fails the test. */
#ifndef PP_TESTS_GGUF_FILE_H
#define PP_TESTS_GGUF_FILE_H

#include "engine/gguf.h"

/* A file to which keys are added (engine/gguf.h), and which gguf_file_end() completes. */
struct pp_gguf_writer *gguf_file_begin(const char *path);
/* All keys of another file. */
void gguf_file_copy_keys(struct pp_gguf_writer *w, const struct pp_gguf *from);
/* Writes n tensors, of each `size` bytes from `data` on, and frees the writer. */
void gguf_file_end(struct pp_gguf_writer *w, const struct pp_tensor *tensors, size_t n);

/* Floats as a tensor for it; rows or matrices 0: one dimension fewer. The tensor keeps the pointers. */
struct pp_tensor float_tensor(const char *name, const float *values, int64_t cols, int64_t rows, int64_t matrices);

#endif
