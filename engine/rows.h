/* rows.h - matrices whose rows are made on demand from what a file holds in another form: quantised by another program,
 * split or ordered differently, or to be quantised while they are loaded. Private to the engine.
 *
 * Each form is described by its definition: integers with a scale and a zero point or an offset per group, a table of
 * 16 values with a scale per block, eight-bit floats with scales, or plain floats. hf_quant.c finds and checks the
 * pieces; nothing here reads beyond them. Immutable; any thread. */
#ifndef PP_ENGINE_ROWS_H
#define PP_ENGINE_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/imatrix.h"
#include "engine/types.h"

/* Numbers of a file, at an address that need not be aligned. */
struct pp_numbers {
    const uint8_t *data;
    enum pp_number_kind { PP_NUMBER_F32, PP_NUMBER_F16, PP_NUMBER_BF16, PP_NUMBER_E8M0, PP_NUMBER_E4M3 } kind;
};

enum pp_rows_form {
    PP_FORM_FLOATS,   /* of `stored_type`, rows without gaps */
    PP_FORM_TRANSPOSED, /* matrices [n_cols, width] of `stored_type`, whose columns are the rows; those used are
                           row_first, row_first + row_step ... */
    PP_FORM_FP8,      /* E4M3, one scale per block [block_rows, block_cols] */
    PP_FORM_BNB,      /* four bits, the first weight of a byte in the high ones; bitsandbytes */
    PP_FORM_FP4,      /* E2M1, the first weight of a byte in the low bits; one scale per group */
    PP_FORM_NVFP4,    /* GGUF's: per 64 weights four scales in E4M3, then E2M1; of each 16 weights the first eight are
                         in the low bits */
    PP_FORM_STREAM,   /* integers: a row is a stream of bits, lowest first; MLX, compressed-tensors, AWQ's GEMV
                         layout */
    PP_FORM_GPTQ,     /* integers: words [n_cols * bits / 32, n_rows]; a column of words is the bit stream of one row;
                         GPTQ */
    PP_FORM_BITNET, /* integers of two bits: bytes [n_rows / 4, n_cols], whose lowest bits belong to the first quarter
                         of the rows; the only scale is `factor`; BitNet */
    /* Per-head matrices of latent attention (MLA), [n_heads * rows of a head, n_cols]: */
    PP_FORM_MLA_K,    /* the keys' rows of each head of a matrix with keys and values (kv_b), transposed */
    PP_FORM_MLA_V,    /* the values' rows of the same */
    PP_FORM_MLA_KV,   /* the reverse: a matrix of keys and values, joined from those two */
    PP_FORM_AWQ,      /* integers: words [n_cols, n_rows / 8]; a word holds eight rows in the order 0, 2, 4, 6, 1, 3, 5,
                         7; AWQ */
};

/* Where the zero points of integers are. They have as many bits as the integers, except BYTES. */
enum pp_zeros {
    PP_ZEROS_GPTQ,    /* [n_groups], each a bit stream of all rows */
    PP_ZEROS_AWQ,     /* the same, each eight rows in the order of AWQ's weights */
    PP_ZEROS_STACKED, /* words [n_rows / per word, n_groups]; a word holds consecutive rows */
    PP_ZEROS_AWQ_GEMV, /* [n_rows, zero_stride words], each a bit stream of the row's groups; AWQ's GEMV layout */
    PP_ZEROS_BYTES,   /* signed bytes [n_rows, zero_stride] */
};

/* w = scale * (q - zero), or scale * q + offset where there are offsets. */
struct pp_rows {
    enum pp_rows_form form;
    uint32_t type;              /* the type of the rows that are made */
    bool as_blocks;             /* integers are repacked into blocks of `type` without loss, or rows of FLOATS and
                                   TRANSPOSED are copied; otherwise rows are unpacked to floats and quantised */
    int64_t n_cols, n_rows;     /* rows of all matrices of a stack */
    struct pp_weighing weighing; /* unless as_blocks */
    const uint8_t *weights;
    uint32_t stored_type;       /* FLOATS, TRANSPOSED */
    bool unit_length;           /* FLOATS: rows are scaled to length 1 */
    int64_t width, matrix_rows; /* TRANSPOSED: columns of a stored matrix; rows made from each */
    int64_t mix_rows;           /* TRANSPOSED: every `mix_rows` rows are one of five pieces, of which the first and the
                                   fourth are swapped; 0: they are not */
    struct {
        int64_t end;
        float by;
    } scaled[5];                /* FLOATS: rows up to the first end are multiplied by the first factor, and so on */
    int n_scaled;
    int64_t negate_dim;         /* of every negate_dim rows the second half is negated; 0: none is */
    const struct pp_tensor *of, *with; /* MLA_K, MLA_V: rows of this matrix; MLA_KV: joined from these two */
    int64_t head_keys, head_values;    /* rows of each head in the matrix of both */
    /* integers */
    int bits;
    int64_t group, n_groups;    /* columns of a group; groups of a row */
    struct pp_numbers scales;   /* STREAM, FP4: [n_rows, scale_stride]; GPTQ, AWQ: [n_groups, n_rows] */
    struct pp_numbers offsets;  /* STREAM: as scales */
    int64_t row_bytes;          /* STREAM: distance of rows */
    uint8_t invert_bits;        /* STREAM of bytes: bits to invert; 128: signed integers */
    const uint8_t *zeros;       /* NULL: all zero points are 0 */
    enum pp_zeros zeros_layout;
    int64_t zero_stride;
    int zero_bias;              /* added to each zero point */
    const uint8_t *group_of;    /* STREAM, GPTQ: int32 [n_cols], the group of each column (GPTQ's g_idx); NULL: groups
                                   are consecutive */
    /* FP4, FLOATS: the stored rows row_first, row_first + row_step ... are used; TRANSPOSED: these columns of each
     * matrix. In other forms row_step is 1. With n_head, row_first counts rows in our order. */
    int64_t row_first, row_step;
    int64_t stored_rows;        /* GPTQ, AWQ: stored rows, where these are only some of them; 0: these are all */
    int64_t n_head, n_head_kv, head_dim; /* n_head > 0: stored rows are grouped by heads of k: the heads of q that share
                                            it, the head of k, that of v. n_head 0: stored in our order; if head_dim is
                                            set, only every row_step-th head is used, beginning with row row_first */
    int64_t head_pieces;        /* with n_head: stored as this many consecutive pieces, each with its heads of q, then
                                   of v, then of k; 0: as above */
    float factor;               /* FP4: multiplies each scale; BITNET: the scale */
    struct pp_numbers factors;  /* NVFP4: multiply the scales, one for every `block_rows` rows; data NULL: all are 1 */
    int64_t pitch;              /* FP4: distance in bytes of groups, and of their scales, where a group is stored next
                                   to its scale; 0: scales are stored apart, and neither have gaps */
    /* FP8: scales is [rows of blocks, scale_stride] */
    int64_t block_rows, block_cols, scale_stride; /* NVFP4 has block_rows, too */
    /* BNB: blocks run over all weights, row after row */
    int64_t block;              /* weights under one scale */
    float table[16];
    const uint8_t *codes;       /* a scale is level[code] * scales[at / code_block] + code_offset; NULL: scales[at] */
    int64_t code_block;
    float levels[256], code_offset;
};

/* The stored row that becomes this row when pieces are swapped (`mix_rows`), and the reverse: the mapping is its own
 * inverse. */
static inline int64_t pp_mix_row(int64_t mix_rows, int64_t row)
{
    enum { OTHER = 3 };
    const int64_t piece = mix_rows ? row / mix_rows : 1;
    return piece == 0 ? row + OTHER * mix_rows : piece == OTHER ? row - OTHER * mix_rows : row;
}

float pp_number(const struct pp_numbers *n, int64_t i); /* the i-th; NAN where E8M0 or E4M3 say so */

/* How many rows share the words of integers. */
static inline int64_t pp_rows_in_words(const struct pp_rows *r)
{
    return r->stored_rows ? r->stored_rows : r->n_rows;
}

/* The stored row of a row, by row_first, row_step and heads. */
int64_t pp_rows_stored_row(const struct pp_rows *r, int64_t row);

/* to: float [n, n_cols]; rows first .. first + n - 1. */
enum pp_code pp_rows_floats(const struct pp_rows *r, int64_t first, int64_t n, float *to, struct pp_error *err);
/* The same for any tensor of a source, stored as it is or made. */
enum pp_code pp_tensor_floats(const struct pp_tensor *t, int64_t first, int64_t n, float *to, struct pp_error *err);
/* Splits each matrix of a stack of FP4 whose rows are interleaved: r keeps rows 0, 2, 4 ..., odd gets 1, 3, 5 ....
 * n_rows is even. */
void pp_rows_split_interleaved(struct pp_rows *r, struct pp_rows *odd);
/* *part: rows first .. first + n - 1 of r as a matrix of their own. False: they share words or scale blocks with
 * others. */
bool pp_rows_cut(const struct pp_rows *r, int64_t first, int64_t n, struct pp_rows *part);
/* Releases the memory of what rows first .. first + n - 1 were made from (pp_map_release_pages), as far as it is
 * contiguous; the last row releases all the rest. */
void pp_rows_release_pages(const struct pp_rows *r, int64_t first, int64_t n);
/* to: n rows of pp_type_row_bytes(r->type, r->n_cols). PP_ERR_FORMAT: a weight is NaN or infinite. */
enum pp_code pp_rows_read(const struct pp_rows *r, int64_t first, int64_t n, void *to, struct pp_error *err);

#endif
