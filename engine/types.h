/* types.h - the element types of tensors, numbered as in GGUF files (ggml's type ids). */
#ifndef PP_ENGINE_TYPES_H
#define PP_ENGINE_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* Files are little-endian, and weights are used in place in the mapped file. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pippin runs on little-endian machines only: it computes with the bytes of model files in place"
#endif

enum pp_type {
    PP_TYPE_F32 = 0,
    PP_TYPE_F16 = 1,
    PP_TYPE_Q4_0 = 2,
    PP_TYPE_Q4_1 = 3,
    PP_TYPE_MXFP4_PAIRS = 4, /* a withdrawn id that ollama reused; only read, and converted to MXFP4 (tensor_forms.h) */
    PP_TYPE_Q5_0 = 6,
    PP_TYPE_Q5_1 = 7,
    PP_TYPE_Q8_0 = 8,
    PP_TYPE_Q2_K = 10,
    PP_TYPE_Q3_K = 11,
    PP_TYPE_Q4_K = 12,
    PP_TYPE_Q5_K = 13,
    PP_TYPE_Q6_K = 14,
    PP_TYPE_IQ2_XXS = 16,
    PP_TYPE_IQ2_XS = 17,
    PP_TYPE_IQ3_XXS = 18,
    PP_TYPE_IQ1_S = 19,
    PP_TYPE_IQ4_NL = 20,
    PP_TYPE_IQ3_S = 21,
    PP_TYPE_IQ2_S = 22,
    PP_TYPE_IQ4_XS = 23,
    PP_TYPE_I32 = 26,        /* integers: tables, not weights */
    PP_TYPE_IQ1_M = 29,
    PP_TYPE_BF16 = 30,
    PP_TYPE_TQ1_0 = 34,
    PP_TYPE_TQ2_0 = 35,
    PP_TYPE_MXFP4 = 39,
    PP_TYPE_NVFP4 = 40,      /* only read, and converted to Q8_0 (tensor_forms.h) */
    PP_TYPE_LIMIT = 48, /* ids are below this */
};

/* Facts about a type, including those that are only named in errors. */
struct pp_type_info {
    const char *name;   /* "Q4_K"; NULL for an unknown id */
    int block_elements; /* weights in a block: 1, 32 or 256 */
    int block_bytes;    /* bytes of a block */
    int runnable;       /* the CPU backend has kernels for it */
};

/* Never NULL; for an unknown id all fields are 0. */
const struct pp_type_info *pp_type_info(uint32_t type);
/* The id for a name, case ignored ("q4_k"), or -1. */
int pp_type_by_name(const char *name);
/* Bytes of a row of n elements; 0 if n is not a multiple of the block or the type is unknown. n >= 0. */
size_t pp_type_row_bytes(uint32_t type, int64_t n);

struct pp_rows;

/* A named tensor whose data are in memory of its source (a mapped file). */
enum { PP_MAX_DIMS = 4 };
struct pp_tensor {
    const char *name;
    uint32_t type;            /* enum pp_type */
    int n_dims;               /* 1 to 4 */
    int64_t ne[PP_MAX_DIMS];  /* GGUF order: ne[0] is the fastest, a matrix is [ne[1] rows, ne[0] columns] */
    const void *data;         /* little-endian, rows without gaps */
    size_t size;              /* bytes */
    const struct pp_rows *rows; /* how a source will make the data (rows.h); or NULL */
};

#endif
