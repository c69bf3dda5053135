/* rows.h - matrices that are made row by row of what a file holds in another form: quantised by another program, or to
 * be quantised while they are loaded. Private to the engine.
 *
 * Each form is seen as what its definition says: integers with a scale and a zero point or an offset per group, a table
 * of 16 values with a scale per block, eight-bit floats with scales, or plain floats. hf_quant.c finds and checks the
 * pieces; nothing here reads beyond them. Immutable; any thread. */
#ifndef PP_ENGINE_ROWS_H
#define PP_ENGINE_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/types.h"

/* Numbers of a file at any address. */
struct pp_numbers {
    const uint8_t *data;
    enum pp_number_kind { PP_NUMBER_F32, PP_NUMBER_F16, PP_NUMBER_BF16, PP_NUMBER_E8M0 } kind;
};

enum pp_rows_form {
    PP_FORM_FLOATS,   /* of `type_there`, rows without gaps */
    PP_FORM_FP8,      /* E4M3, one scale per block [block_rows, block_cols] */
    PP_FORM_TABLE,    /* four bits, the earlier weight in the high ones; bitsandbytes */
    PP_FORM_STREAM,   /* integers: a row is a stream of bits, lowest first; MLX */
    PP_FORM_DOWN,     /* integers: words [n_cols / per word, n_rows], a word holds one row's; GPTQ */
    PP_FORM_ACROSS,   /* integers: words [n_cols, n_rows / 8], a word holds eight rows' in the order 0, 2, 4, 6, 1, 3,
                         5, 7; AWQ */
};

/* w = scale * (q - zero), or scale * q + offset where there are offsets. */
struct pp_rows {
    enum pp_rows_form form;
    uint32_t type;              /* what rows are made in */
    bool as_blocks;             /* the integers go into blocks of `type` as they are; else they go by floats */
    int64_t n_cols, n_rows;     /* rows of all matrices of a stack */
    const uint8_t *weights;
    uint32_t type_there;        /* FLOATS */
    /* integers */
    int bits;
    int64_t group, n_groups;    /* columns of a group; groups of a row */
    struct pp_numbers scales;   /* STREAM: [n_rows, n_groups]; DOWN, ACROSS: [n_groups, n_rows] */
    struct pp_numbers offsets;  /* STREAM: as scales */
    const uint8_t *zeros;       /* DOWN, ACROSS: words [n_groups, n_rows / per word] */
    int zero_bias;              /* added to each zero point */
    const uint8_t *group_of;    /* DOWN: int32 [n_cols], the group of each column; NULL: they are in order */
    /* FP8: scales is [rows of blocks, scale_stride] */
    int64_t block_rows, block_cols, scale_stride;
    /* TABLE: over all weights, row after row */
    int64_t block;              /* weights under one scale */
    float table[16];
    const uint8_t *codes;       /* a scale is level[code] * scales[at / code_block] + code_offset; NULL: scales[at] */
    int64_t code_block;
    float levels[256], code_offset;
};

float pp_number(const struct pp_numbers *n, int64_t i);
float pp_e4m3_to_f32(uint8_t v); /* 127 and 255 are NaN; there is no infinity */

/* to: float [n, n_cols]; rows first .. first + n - 1. */
enum pp_code pp_rows_floats(const struct pp_rows *r, int64_t first, int64_t n, float *to, struct pp_error *err);
/* Bytes of the matrix where `weights` points. */
size_t pp_rows_bytes(const struct pp_rows *r);
/* The same of any tensor of a source, rows or not. */
enum pp_code pp_tensor_floats(const struct pp_tensor *t, int64_t first, int64_t n, float *to, struct pp_error *err);
/* to: n rows of pp_type_row_bytes(r->type, r->n_cols). PP_ERR_FORMAT: a weight is no number. */
enum pp_code pp_rows_read(const struct pp_rows *r, int64_t first, int64_t n, void *to, struct pp_error *err);

#endif
