/* decoder_formulas.h - what the formulas of small random decoders are put together from, in double precision. Vectors
 * are of n_embd values where nothing else is said; positions are counted from 0. */
#ifndef PP_TESTS_DECODER_FORMULAS_H
#define PP_TESTS_DECODER_FORMULAS_H

#include "tests/decoder_model_int.h"

/* "attn_q" and ".weight" of a layer; l -1: of none. NULL: there is none. */
const struct matrix *decoder_part(const struct decoder *d, int l, const char *kind, const char *end);
/* y = W x + b, if there is a b; W of a stack: matrix `which` of it. */
void decoder_linear(const struct decoder *d, int l, const char *kind, const double *x, double *y);
void decoder_linear_of(const struct decoder *d, int l, const char *kind, int which, const double *x, double *y);
/* LayerNorm, or Llama's root of the mean square, by row `row` of a norm that has several. */
void decoder_norm(const struct decoder *d, int l, const char *kind, int row, const double *x, double *y);
/* What a part of a layer reads of the stream, and what it adds to it. */
void decoder_before(const struct decoder *d, int l, const char *kind, const double *x, double *in);
void decoder_behind(const struct decoder *d, int l, const char *kind, double *delta, double *x);
void decoder_feed_forward(const struct decoder *d, int l, const double *in, double *out);
/* Queries or keys of one position, in place: normed and rotated. */
void decoder_heads(const struct decoder *d, int l, const char *kind, int n_heads, int position, double *x);
double decoder_gelu(double x);
double decoder_gelu_tanh(double x);

/* --- decoder_scans.c: layers without attention, or with it in some; x: [n, n_embd], all positions --- */

void decoder_convolved_layer(const struct decoder *d, int l, double *x, int n);
void decoder_states_layer(const struct decoder *d, int l, double *x, int n); /* PLaMo 2's */
void decoder_lru_layer(const struct decoder *d, int l, double *x, int n);    /* Griffin's */
void decoder_mlstm_layer(const struct decoder *d, int l, double *x, int n);  /* xLSTM's */
/* embeddings: what went into the first layer, [n, n_embd] */
void decoder_zamba_layer(const struct decoder *d, int l, const double *embeddings, double *x, int n);

#endif
