/* gguf.h - reading and writing GGUF v3 files (v2 is read too).
 *
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The reader trusts nothing: every length,
 * count, offset and alignment is checked against the file before it is used, names are unique, tensors lie inside
 * the file. Memory is bounded by the size of the file. A struct pp_gguf is immutable after opening and may be read
 * by any thread. */
#ifndef PP_ENGINE_GGUF_H
#define PP_ENGINE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/base/map.h"
#include "engine/types.h"

struct pp_gguf;

/* Whether a file begins like GGUF; the rest is not checked. Does not wait for a pipe. */
bool pp_gguf_is(const char *path);
/* Opens and maps a file. */
enum pp_code pp_gguf_open(const char *path, struct pp_gguf **out, struct pp_error *err);
/* The same from memory that stays valid until pp_gguf_close; `name` appears in errors. For tests and fuzzing. */
enum pp_code pp_gguf_open_memory(const void *data, size_t size, const char *name, struct pp_gguf **out,
                                 struct pp_error *err);
void pp_gguf_close(struct pp_gguf *g); /* NULL is fine */
const char *pp_gguf_path(const struct pp_gguf *g);
bool pp_gguf_lost(const struct pp_gguf *g); /* the mapped file shrank: pp_map_lost */
bool pp_gguf_changed(const struct pp_gguf *g); /* pp_map_changed */
const struct pp_file_id *pp_gguf_file_id(const struct pp_gguf *g); /* all zeros if it came from memory */

/* --- metadata ------------------------------------------------------------------------------------------ */

enum pp_gguf_type { /* the file's value types */
    PP_GGUF_U8 = 0, PP_GGUF_I8, PP_GGUF_U16, PP_GGUF_I16, PP_GGUF_U32, PP_GGUF_I32, PP_GGUF_F32, PP_GGUF_BOOL,
    PP_GGUF_STRING, PP_GGUF_ARRAY, PP_GGUF_U64, PP_GGUF_I64, PP_GGUF_F64,
};

/* A string inside the file: not NUL-terminated, any bytes. */
struct pp_str {
    const char *data;
    size_t len;
};

size_t pp_gguf_n_kv(const struct pp_gguf *g);
struct pp_str pp_gguf_kv_key(const struct pp_gguf *g, size_t i);
enum pp_gguf_type pp_gguf_kv_type(const struct pp_gguf *g, size_t i); /* PP_GGUF_ARRAY for arrays */
struct pp_str pp_gguf_kv_raw(const struct pp_gguf *g, size_t i); /* the value's bytes in the file */

/* Each returns true and sets *v if the key is there with a fitting type (any integer type that holds the value
 * serves the integer readers; f32/f64 and integers serve _float). */
bool pp_gguf_has(const struct pp_gguf *g, const char *key);
bool pp_gguf_int(const struct pp_gguf *g, const char *key, int64_t *v);
bool pp_gguf_float(const struct pp_gguf *g, const char *key, double *v);
bool pp_gguf_bool(const struct pp_gguf *g, const char *key, bool *v);
bool pp_gguf_string(const struct pp_gguf *g, const char *key, struct pp_str *v);
bool pp_gguf_string_is(const struct pp_gguf *g, const char *key, const char *value); /* false if it is not there */
/* For keys that a model must have; PP_ERR_FORMAT names the key. */
enum pp_code pp_gguf_need_int(const struct pp_gguf *g, const char *key, int64_t *v, struct pp_error *err);
enum pp_code pp_gguf_need_float(const struct pp_gguf *g, const char *key, float *v, struct pp_error *err);

/* Arrays: element type and count; then elements by index. Strings in O(1) (an index is built at opening). */
bool pp_gguf_array(const struct pp_gguf *g, const char *key, enum pp_gguf_type *type, size_t *n);
bool pp_gguf_array_string(const struct pp_gguf *g, const char *key, size_t i, struct pp_str *v);
bool pp_gguf_array_int(const struct pp_gguf *g, const char *key, size_t i, int64_t *v);
bool pp_gguf_array_bool(const struct pp_gguf *g, const char *key, size_t i, bool *v);
struct pp_str pp_gguf_array_bytes(const struct pp_gguf *g, const char *key); /* all of an array of U8 or I8, or none */
bool pp_gguf_array_float(const struct pp_gguf *g, const char *key, size_t i, double *v);

/* --- tensors ------------------------------------------------------------------------------------------- */

size_t pp_gguf_n_tensors(const struct pp_gguf *g);
const struct pp_tensor *pp_gguf_tensor_at(const struct pp_gguf *g, size_t i); /* names are NUL-terminated */
const struct pp_tensor *pp_gguf_tensor(const struct pp_gguf *g, const char *name); /* or NULL; O(1) */

/* --- writing ------------------------------------------------------------------------------------------- */

/* Metadata first, then every tensor announced, then pp_gguf_writer_begin, then the tensors' bytes in the order
 * announced, in pieces of any size, then _finish. Written to a temporary file and renamed at the end, so that a
 * reader never sees half a file. After an error only pp_gguf_writer_free may be called. Not thread-safe. */
struct pp_gguf_writer;

enum pp_code pp_gguf_writer_new(const char *path, struct pp_gguf_writer **out, struct pp_error *err);
void pp_gguf_writer_free(struct pp_gguf_writer *w); /* unfinished: the temporary file is removed */
void pp_gguf_add_u32(struct pp_gguf_writer *w, const char *key, uint32_t v);
void pp_gguf_add_u64(struct pp_gguf_writer *w, const char *key, uint64_t v);
void pp_gguf_add_f32(struct pp_gguf_writer *w, const char *key, float v);
void pp_gguf_add_bool(struct pp_gguf_writer *w, const char *key, bool v);
void pp_gguf_add_str(struct pp_gguf_writer *w, const char *key, const char *s, size_t n);
void pp_gguf_add_text(struct pp_gguf_writer *w, const char *key, const char *text); /* a C string */
void pp_gguf_add_str_array(struct pp_gguf_writer *w, const char *key, const struct pp_str *items, size_t n);
void pp_gguf_add_f32_array(struct pp_gguf_writer *w, const char *key, const float *items, size_t n);
void pp_gguf_add_u32_array(struct pp_gguf_writer *w, const char *key, const uint32_t *items, size_t n);
void pp_gguf_add_u64_array(struct pp_gguf_writer *w, const char *key, const uint64_t *items, size_t n);
void pp_gguf_add_i32_array(struct pp_gguf_writer *w, const char *key, const int32_t *items, size_t n);
void pp_gguf_add_u8_array(struct pp_gguf_writer *w, const char *key, const uint8_t *items, size_t n);
void pp_gguf_add_bool_array(struct pp_gguf_writer *w, const char *key, const bool *items, size_t n);
/* Copies a value from another file. */
void pp_gguf_add_copy(struct pp_gguf_writer *w, const struct pp_gguf *from, size_t kv_index);
void pp_gguf_add_tensor(struct pp_gguf_writer *w, const char *name, uint32_t type, int n_dims, const int64_t *ne);
enum pp_code pp_gguf_writer_begin(struct pp_gguf_writer *w, struct pp_error *err);
enum pp_code pp_gguf_write(struct pp_gguf_writer *w, const void *bytes, size_t n, struct pp_error *err);
/* The next tensor's bytes are all zero: a hole, where the file system has them, which takes no disk. */
enum pp_code pp_gguf_write_zeros(struct pp_gguf_writer *w, struct pp_error *err);
enum pp_code pp_gguf_writer_finish(struct pp_gguf_writer *w, struct pp_error *err);

#endif
