/* file_type.h - the mixes of tensor types that a whole file is named after (general.file_type; llama.cpp's ids). */
#ifndef PP_ENGINE_FILE_TYPE_H
#define PP_ENGINE_FILE_TYPE_H

#include <stdint.h>

const char *pp_file_type_name(int64_t id);  /* "Q4_K_M", or NULL */
int pp_file_type_by_name(const char *name); /* case ignored; -1 if unknown */
/* The file type whose matrices are all of a tensor type (PP_TYPE_F16: "F16"), or -1. */
int pp_file_type_of(uint32_t tensor_type);

#endif
