/* decoder_formulas.h - building blocks of the formulas of small random decoders, in double precision. Vectors have
 * n_embd values unless stated otherwise; positions are counted from 0. */
#ifndef PP_TESTS_DECODER_FORMULAS_H
#define PP_TESTS_DECODER_FORMULAS_H

#include "tests/decoder_model_int.h"

/* Finds a tensor by kind ("attn_q"), suffix (".weight") and layer; l -1: outside the layers. NULL: there is none. */
const struct matrix *decoder_part(const struct decoder *d, int l, const char *kind, const char *end);
/* y = W x + b, if there is a b. Of a stack W is matrix `which`. */
void decoder_linear(const struct decoder *d, int l, const char *kind, const double *x, double *y);
void decoder_linear_of(const struct decoder *d, int l, const char *kind, int which, const double *x, double *y);
/* LayerNorm or RMSNorm, by row `row` of a norm that has several. */
void decoder_norm(const struct decoder *d, int l, const char *kind, int row, const double *x, double *y);
/* A part's input from the stream, and adding its output. */
void decoder_before(const struct decoder *d, int l, const char *kind, const double *x, double *in);
void decoder_post_norm(const struct decoder *d, int l, const char *kind, double *delta, double *x);
void decoder_feed_forward(const struct decoder *d, int l, const double *in, double *out);
/* The norm and RoPE of queries or keys of one position, in place. */
void decoder_heads(const struct decoder *d, int l, const char *kind, int n_heads, int position, double *x);
double decoder_gelu(double x);
double decoder_gelu_tanh(double x);

/* --- decoder_scans.c: layers without attention, or with it in some; x: [n, n_embd], all positions --- */

void decoder_convolved_layer(const struct decoder *d, int l, double *x, int n);
void decoder_states_layer(const struct decoder *d, int l, double *x, int n); /* PLaMo 2 */
void decoder_lru_layer(const struct decoder *d, int l, double *x, int n);    /* Griffin */
void decoder_mlstm_layer(const struct decoder *d, int l, double *x, int n);  /* xLSTM */
/* embeddings: the first layer's input, [n, n_embd] */
void decoder_zamba_layer(const struct decoder *d, int l, const double *embeddings, double *x, int n);

#endif
