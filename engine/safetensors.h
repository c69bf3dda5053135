/* safetensors.h - one safetensors file: u64 header length, JSON header, data. Untrusted input: header at most
 * 100 MB, offsets inside the file, sizes that match dtype and shape, no overlaps.
 * Format: https://github.com/huggingface/safetensors. Immutable after opening, readable by any thread. */
#ifndef PP_ENGINE_SAFETENSORS_H
#define PP_ENGINE_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/types.h"

struct pp_safetensors;

/* Maps and checks a file; the second function takes bytes that must stay valid until it is closed; name: for errors.
 * PP_ERR_FORMAT says what is wrong. */
enum pp_code pp_safetensors_open(const char *path, struct pp_safetensors **out, struct pp_error *err);
enum pp_code pp_safetensors_open_memory(const void *data, size_t size, const char *name, struct pp_safetensors **out,
                                        struct pp_error *err);
void pp_safetensors_close(struct pp_safetensors *s); /* frees the tensors, too; NULL is fine */
bool pp_safetensors_lost(const struct pp_safetensors *s); /* the file shrank: pp_map_lost */
bool pp_safetensors_changed(const struct pp_safetensors *s); /* pp_map_changed */
/* Tensors carry ne in GGUF order (reversed shape). F32, F16 and BF16 have their pp_type; other dtypes ("I32", "U8",
 * "F64", ...) have type PP_TYPE_LIMIT and are distinguished by pp_safetensors_dtype. A scalar has ne[0] 1. Data may be
 * unaligned, as not every program that writes such files aligns them. */
size_t pp_safetensors_n(const struct pp_safetensors *s);
const struct pp_tensor *pp_safetensors_at(const struct pp_safetensors *s, size_t i);
const struct pp_tensor *pp_safetensors_find(const struct pp_safetensors *s, const char *name); /* or NULL */
const char *pp_safetensors_dtype(const struct pp_safetensors *s, const struct pp_tensor *t);

/* Appends the bytes of a file with tensors of the types F32, F16 and BF16 to an empty *out, or writes them. ne in GGUF
 * order. */
enum pp_code pp_safetensors_image(const struct pp_tensor *tensors, size_t n, struct pp_buf *out, struct pp_error *err);
enum pp_code pp_safetensors_write(const char *path, const struct pp_tensor *tensors, size_t n, struct pp_error *err);

#endif
