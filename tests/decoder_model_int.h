/* decoder_model_int.h - the tensors of a small random decoder: made and written by decoder_model.c, used by
 * decoder_formulas.c. */
#ifndef PP_TESTS_DECODER_MODEL_INT_H
#define PP_TESTS_DECODER_MODEL_INT_H

#include "tests/decoder_model.h"

enum { DECODER_MAX_TENSORS = 400 };
#define DECODER_EPSILON 1e-5f
#define DECODER_ROPE_BASE 10000.0f

struct matrix {
    char name[48];
    int64_t rows, cols; /* rows 0: a vector */
    int64_t stack;      /* this many matrices; 0: one */
    float *values;
};

struct decoder {
    struct decoder_shape s;
    struct matrix t[DECODER_MAX_TENSORS];
    int n;
    uint32_t random;
};

/* Llama 3's divisor of frequency i of a head: the factor for wavelengths longer than the context, 1 for those shorter
 * than a quarter of it. */
double decoder_stretch(const struct decoder_shape *s, int i);

/* The bits of a layer of `skips`. */
int decoder_skips(const struct decoder_shape *s, int l);

/* xIELU's parameter i of a layer: alpha_p, alpha_n, beta, eps. */
float decoder_xielu(int l, int i);

bool decoder_convolves(const struct decoder *d, int l); /* whether the layer has a convolution in place of attention */
bool decoder_has_states(const struct decoder *d, int l); /* PLaMo 2's states */
bool decoder_has_gate(const struct decoder *d);           /* feed-forward parts have a matrix ffn_gate */
bool decoder_has_lru(const struct decoder *d, int l);    /* Griffin's recurrence */
bool decoder_has_lightning(const struct decoder *d, int l); /* lightning attention */
bool decoder_has_mlstm(const struct decoder *d); /* all layers */
const char *decoder_lightning_name(const struct decoder *d, int which); /* input, gate, norm, output */
/* The layer under whose number the layer's shared block is stored; and the number of earlier layers with one. */
int decoder_zamba_block(const struct decoder_shape *s, int l, int *use);
enum { DECODER_STATE_TAPS = 4 }; /* of the convolution before the states */

/* The shape with one layer's own sizes. */
struct decoder_shape decoder_shape_of(const struct decoder_shape *s, int l);
struct matrix *decoder_find(const struct decoder *d, const char *name); /* or NULL */

#endif
