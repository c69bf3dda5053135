/* rows.h - matrices that are made row by row of what a file holds in another form: quantised by another program, in
 * other pieces, or to be quantised while they are loaded. Private to the engine.
 *
 * Each form is seen as what its definition says: integers with a scale and a zero point or an offset per group, a table
 * of 16 values with a scale per block, eight-bit floats with scales, or plain floats. hf_quant.c finds and checks the
 * pieces; nothing here reads beyond them. Immutable; any thread. */
#ifndef PP_ENGINE_ROWS_H
#define PP_ENGINE_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/imatrix.h"
#include "engine/types.h"

/* Numbers of a file at any address. */
struct pp_numbers {
    const uint8_t *data;
    enum pp_number_kind { PP_NUMBER_F32, PP_NUMBER_F16, PP_NUMBER_BF16, PP_NUMBER_E8M0, PP_NUMBER_E4M3 } kind;
};

enum pp_rows_form {
    PP_FORM_FLOATS,   /* of `type_there`, rows without gaps */
    PP_FORM_TURNED,   /* likewise, but matrices [n_cols, width], of which a column is one row, from row_first on every
                         row_step-th */
    PP_FORM_FP8,      /* E4M3, one scale per block [block_rows, block_cols] */
    PP_FORM_TABLE,    /* four bits, the earlier weight in the high ones; bitsandbytes */
    PP_FORM_FP4,      /* E2M1, the earlier weight in the low bits, a scale per group */
    PP_FORM_NVFP4,    /* GGUF's: of 64 weights four scales in E4M3, then E2M1, of each 16 the first eight in low bits */
    PP_FORM_STREAM,   /* integers: a row is a stream of bits, lowest first; MLX, compressed-tensors, AWQ for one row */
    PP_FORM_DOWN,     /* integers: words [n_cols * bits / 32, n_rows], of which a column is one row's stream; GPTQ */
    PP_FORM_QUARTERS, /* integers of two bits: bytes [n_rows / 4, n_cols], the lowest bits those of the first quarter of
                         the rows; one scale, `factor`; BitNet */
    /* Matrices of heads of latent attention, [n_heads * rows of a head, n_cols]: */
    PP_FORM_KEYS,     /* of one that has rows of keys and of values of each head, the former, turned */
    PP_FORM_VALUES,   /* the latter */
    PP_FORM_BOTH,     /* such a matrix, of those two */
    PP_FORM_ACROSS,   /* integers: words [n_cols, n_rows / 8], a word holds eight rows' in the order 0, 2, 4, 6, 1, 3,
                         5, 7; AWQ */
};

/* Where the zero points of integers are, as integers of the same bits but for BYTES. */
enum pp_zeros {
    PP_ZEROS_DOWN,    /* [n_groups], of each a stream of all rows; GPTQ */
    PP_ZEROS_ACROSS,  /* likewise, eight in the order of AWQ's weights */
    PP_ZEROS_STACKED, /* words [n_rows / per word, n_groups]: of a word the rows are one after the other */
    PP_ZEROS_ALONG,   /* [n_rows, zero_stride words], of each a stream of its groups; AWQ for one row */
    PP_ZEROS_BYTES,   /* signed bytes [n_rows, zero_stride] */
};

/* w = scale * (q - zero), or scale * q + offset where there are offsets. */
struct pp_rows {
    enum pp_rows_form form;
    uint32_t type;              /* what rows are made in */
    bool as_blocks;             /* the integers go into blocks of `type` as they are, or FLOATS and TURNED are copied;
                                   else they go by floats */
    int64_t n_cols, n_rows;     /* rows of all matrices of a stack */
    struct pp_weighing weighing; /* unless as_blocks */
    const uint8_t *weights;
    uint32_t type_there;        /* FLOATS, TURNED */
    bool unit;                  /* FLOATS: rows are made of length 1 */
    int64_t width, matrix_rows; /* TURNED: columns there; rows that are made of each matrix */
    int64_t ways;               /* TURNED: of five pieces of so many rows the first and the fourth have changed places;
                                   0: they have not */
    struct {
        int64_t end;
        float by;
    } scaled[5];                /* FLOATS: rows before the first end are multiplied by its number, and so on */
    int n_scaled;
    int64_t back_dim;           /* of each so many rows those of the second half have the other sign; 0: none has */
    const struct pp_tensor *of, *with; /* KEYS, VALUES: of this matrix. BOTH: of these two */
    int64_t head_keys, head_values;    /* rows of each head in a matrix of both */
    /* integers */
    int bits;
    int64_t group, n_groups;    /* columns of a group; groups of a row */
    struct pp_numbers scales;   /* STREAM, FP4: [n_rows, scale_stride]; DOWN, ACROSS: [n_groups, n_rows] */
    struct pp_numbers offsets;  /* STREAM: as scales */
    int64_t row_bytes;          /* STREAM: from one row to the next */
    uint8_t flip;               /* STREAM of bytes: bits that are the other way round; 128: signed integers */
    const uint8_t *zeros;       /* NULL: all are 0 */
    enum pp_zeros zeros_as;
    int64_t zero_stride;
    int zero_bias;              /* added to each zero point */
    const uint8_t *group_of;    /* STREAM, DOWN: int32 [n_cols], the group of each column; NULL: they are in order */
    /* FP4, FLOATS: the rows are row_first, row_first + row_step ... of what is there; TURNED: of each matrix the
     * columns. Else row_step is 1; with n_head they are rows row_first ... in our order */
    int64_t row_first, row_step;
    int64_t rows_there;         /* DOWN, ACROSS: rows of what is there, if these are some of them; 0: these are all */
    int64_t n_head, n_head_kv, head_dim; /* what is there has the rows of one head of k after the other: of the heads of
                                   q that go with it, of it, and of v's; n_head 0: it is in our order, or with head_dim
                                   every row_step-th head is, the first row being row_first */
    int64_t head_pieces;        /* with n_head: of so many pieces one after the other, each has the rows of its heads of
                                   q, then of v's, then of k's; 0: it is as above */
    float factor;               /* FP4: of each scale; QUARTERS: the scale */
    struct pp_numbers factors;  /* NVFP4: of each scale, one for every `block_rows` rows; data NULL: all are 1 */
    int64_t pitch;              /* FP4: bytes from one group, and from one scale, to the next; 0: scales lie apart, and
                                   neither have gaps */
    /* FP8: scales is [rows of blocks, scale_stride] */
    int64_t block_rows, block_cols, scale_stride; /* block_rows also of NVFP4 */
    /* TABLE: over all weights, row after row */
    int64_t block;              /* weights under one scale */
    float table[16];
    const uint8_t *codes;       /* a scale is level[code] * scales[at / code_block] + code_offset; NULL: scales[at] */
    int64_t code_block;
    float levels[256], code_offset;
};

/* Where a row of such pieces comes from, which is where it goes to, too. */
static inline int64_t pp_way_row(int64_t ways, int64_t row)
{
    enum { OTHER = 3 };
    const int64_t way = ways ? row / ways : 1;
    return way == 0 ? row + OTHER * ways : way == OTHER ? row - OTHER * ways : row;
}

float pp_number(const struct pp_numbers *n, int64_t i); /* the i-th; NAN where E8M0 or E4M3 say so */

/* How many rows words of integers are of. */
static inline int64_t pp_rows_in_words(const struct pp_rows *r)
{
    return r->rows_there ? r->rows_there : r->n_rows;
}

/* Which row of what is there a row of ours is, by row_first, row_step and heads. */
int64_t pp_rows_there(const struct pp_rows *r, int64_t row);

/* to: float [n, n_cols]; rows first .. first + n - 1. */
enum pp_code pp_rows_floats(const struct pp_rows *r, int64_t first, int64_t n, float *to, struct pp_error *err);
/* The same of any tensor of a source, rows or not. */
enum pp_code pp_tensor_floats(const struct pp_tensor *t, int64_t first, int64_t n, float *to, struct pp_error *err);
/* Leaves rows 0, 2, 4 ... of each matrix of a stack of FP4 in r, and makes odd those between. n_rows is even. */
void pp_rows_in_turns(struct pp_rows *r, struct pp_rows *odd);
/* *part: rows first .. first + n - 1 of r as a matrix of their own. False: that cannot be told apart from others'. */
bool pp_rows_cut(const struct pp_rows *r, int64_t first, int64_t n, struct pp_rows *part);
/* Lets go of what rows first .. first + n - 1 are made of (pp_map_let_go), as far as it lies together; with the last
 * row of all that is left. */
void pp_rows_let_go(const struct pp_rows *r, int64_t first, int64_t n);
/* to: n rows of pp_type_row_bytes(r->type, r->n_cols). PP_ERR_FORMAT: a weight is no number. */
enum pp_code pp_rows_read(const struct pp_rows *r, int64_t first, int64_t n, void *to, struct pp_error *err);

#endif
