/* small_model.h - what is asked of small random models whose logits follow from formulas: a text, read by the engine in
 * several manners, from a GGUF file, from the folder that is made of it, and from the file that is made of that. */
#ifndef PP_TESTS_SMALL_MODEL_H
#define PP_TESTS_SMALL_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "engine/kv.h"

enum { SMALL_TEXT = 96 };

/* The text: ids [SMALL_TEXT]. Of a model that has vectors of its own before every text, those stand in the place of the
 * first ones in all that is asked here. */
void small_text(int32_t *ids, int n_vocab);
/* The sum of w[i] x[i]: four sums side by side, because an addition waits for the one before it. */
double small_dot(const float *w, const double *x, int64_t n);
/* y = w x; w: [n_out, n_in] */
void small_product(const float *w, const double *x, int n_out, int n_in, double *y);
double double_dot(const double *a, const double *b, int64_t n);
/* Which of n names that lie `step` bytes apart, of at least 8 bytes each, is "blk.L." (nothing if l is -1), `begin` and
 * `end`, or -1. Formulas ask for each a thousand times: it looks first where that was. */
int small_find(const char *names, size_t step, int n, int l, const char *begin, const char *end);
/* Logits of all its positions by the best kernels, float [SMALL_TEXT, n_vocab], *n of them; pp_free. */
float *small_logits(const char *path, enum pp_kv_type kv, size_t *n);
/* The scalar kernels give the same bits as the best, with any number of rows and threads. */
void assert_same_bits(const char *path, enum pp_kv_type kv);

/* want: [SMALL_TEXT, n_vocab] */
void assert_logits(const double *want, int n_vocab, const char *path);
/* From the file, also by the scalar kernels, from the folder that is made of it, and from the file that is made of
 * that; the folder's path. */
const char *assert_logits_everywhere(const double *want, int n_vocab, const char *file);

/* Of a folder that was made: the type of the model is its family's, and no class. */
void assert_model_type(const char *folder);

/* A model, an engine with KV in F32 and a sequence. */
struct running {
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
};
/* quant: what the weights become while they are loaded, or NULL. */
struct running run_small(const char *path, const char *quant);
void stop_small(struct running *r);
/* The same with an adapter that the sequence uses: freed behind that, before its model. */
void stop_adapted(struct running *r, struct pp_adapter *adapter);
/* A model gives these logits of the text, [SMALL_TEXT, n_vocab], with the adapter of `path`; each within `room` of it,
 * or of its size if that is more than 1. */
void assert_adapted(const char *model, const char *path, const double *want, int n_vocab, double room);
/* The cosine of what a model says of the text to these logits. */
double small_likeness(const char *path, const char *quant, const double *want, int n_vocab);
/* Behind the middle of the text a sequence is saved; another engine goes on with it, at the same bits. */
void assert_resumes(const char *path, int n_vocab);
/* Taken back within a page and across one, and forked in the middle of either, a conversation goes on at the same bits,
 * also where two of them take turns. */
void assert_goes_back(const char *path, int n_vocab);

/* --- formulas in double precision --- */

/* n zeros; pp_free. */
double *doubles(int64_t n);
/* Attention of a query of `dim` numbers over the positions from `first` up to its own; scores fall by `slope` a
 * position of distance; k, v: [position][n_kv]; out: [dim]. */
void attend_query(const double *q, const double *k, const double *v, int first, int position, int dim, int n_kv,
                  double scale, double slope, double *out);

/* The same with scores bounded by cap, if it is not 0, and then multiplied by growth. */
void attend_capped(const double *q, const double *k, const double *v, int first, int position, int dim, int n_kv,
                   double scale, double slope, double cap, double growth, double *out);

/* Of position r the sums of a short convolution over what `in` [position][width] was at the last n_taps; taps: [width,
 * n_taps], those of the oldest position first; bias: [width], or NULL; out: [width]. */
void convolve_row(const float *taps, int n_taps, const float *bias, const double *in, int r, int width, double *out);

/* --- files --- */

/* The folder has a tensor of that name, with n values in a row. */
void assert_tensor(const char *folder, const char *name, int n_dims, int64_t n);

#endif
