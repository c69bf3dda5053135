/* decoder_model_int.h - the tensors of a small random decoder, which decoder_model.c makes and writes, and with which
 * decoder_formulas.c computes. */
#ifndef PP_TESTS_DECODER_MODEL_INT_H
#define PP_TESTS_DECODER_MODEL_INT_H

#include "tests/decoder_model.h"

enum { DECODER_MAX_TENSORS = 400 };
#define DECODER_EPSILON 1e-5f
#define DECODER_ROPE_BASE 10000.0f

struct matrix {
    char name[48];
    int64_t rows, cols; /* rows 0: a vector */
    int64_t stack;      /* so many of them; 0: one */
    float *values;
};

struct decoder {
    struct decoder_shape s;
    struct matrix t[DECODER_MAX_TENSORS];
    int n;
    uint32_t random;
};

/* What Llama 3's stretching divides the i-th frequency of a head by: waves that are longer than the context by the
 * factor, those that are shorter than a quarter of it not at all. */
double decoder_stretch(const struct decoder_shape *s, int i);

/* The bits of a layer of `skips`. */
int decoder_skips(const struct decoder_shape *s, int l);

/* Number i, of alpha_p, alpha_n, beta and eps, of a layer's activation. */
float decoder_xielu(int l, int i);

bool decoder_convolves(const struct decoder *d, int l); /* a layer, in place of attention */
bool decoder_has_states(const struct decoder *d, int l); /* likewise */
bool decoder_has_gate(const struct decoder *d);           /* a matrix of gates in feed-forward parts */
bool decoder_has_lru(const struct decoder *d, int l);    /* likewise */
bool decoder_has_lightning(const struct decoder *d, int l); /* likewise */
bool decoder_has_mlstm(const struct decoder *d); /* all layers */
const char *decoder_lightning_name(const struct decoder *d, int which); /* what goes in, gate, norm, what comes out */
/* In which layer's tensors the block of a layer is, and how many layers before it have one. */
int decoder_zamba_block(const struct decoder_shape *s, int l, int *use);
enum { DECODER_STATE_TAPS = 4 }; /* of the convolution before states */

/* With the sizes of a layer. */
struct decoder_shape decoder_shape_of(const struct decoder_shape *s, int l);
struct matrix *decoder_find(const struct decoder *d, const char *name); /* or NULL */

#endif
