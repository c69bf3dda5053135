/* cca_formulas.h - a layer of ZAYA1 in double precision. */
#ifndef PP_TESTS_CCA_FORMULAS_H
#define PP_TESTS_CCA_FORMULAS_H

#include "tests/decoder_model_int.h"

/* Scales the embeddings before the first layer. x: [n, n_embd] */
void cca_begin(const struct decoder *d, double *x, int n);
/* routed: [n, n_router], the router's narrow vectors: in, the previous layer's; out, this one's. */
void cca_layer(const struct decoder *d, int l, double *x, double *routed, int n);

#endif
