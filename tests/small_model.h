/* small_model.h - checks of small random models whose logits follow from formulas: a text is run in several ways, from
 * a GGUF file, from the folder exported from that, and from the file converted from the folder. */
#ifndef PP_TESTS_SMALL_MODEL_H
#define PP_TESTS_SMALL_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "engine/kv.h"

enum { SMALL_TEXT = 96 };

/* The text: ids [SMALL_TEXT]. If a model puts vectors of its own before every text (meta tokens), these replace the
 * first ids in all checks here. */
void small_text(int32_t *ids, int n_vocab);
/* The sum of w[i] x[i], as four independent sums, so that additions need not wait for each other. */
double small_dot(const float *w, const double *x, int64_t n);
/* y = w x; w: [n_out, n_in] */
void small_product(const float *w, const double *x, int n_out, int n_in, double *y);
double double_dot(const double *a, const double *b, int64_t n);
/* The index of the name "blk.L." (omitted if l is -1) + begin + end among n names of at least 8 bytes that are `step`
 * bytes apart, or -1. As formulas look up each name many times, the index found last is tried first. */
int small_find(const char *names, size_t step, int n, int l, const char *begin, const char *end);
/* The logits of all positions by the best kernels, float [SMALL_TEXT, n_vocab], *n of them; to be freed by pp_free. */
float *small_logits(const char *path, enum pp_kv_type kv, size_t *n);
/* Scalar kernels yield the same bits as the best ones, with any number of rows and threads. */
void assert_same_bits(const char *path, enum pp_kv_type kv);

/* want: [SMALL_TEXT, n_vocab] */
void assert_logits(const double *want, int n_vocab, const char *path);
/* Checks the file, also with scalar kernels, the folder exported from it, and the file converted from that; returns
 * the folder's path. */
const char *assert_logits_everywhere(const double *want, int n_vocab, const char *file);

/* For an exported folder: model_type is the family's, not a class name. */
void assert_model_type(const char *folder);

/* A model, an engine with KV in F32 and a sequence. */
struct running {
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
};
/* quant: the type that weights are quantised to as they are loaded, or NULL. */
struct running run_small(const char *path, const char *quant);
void stop_small(struct running *r);
/* The same with an adapter that the sequence uses; it is freed after the sequence and before the model. */
void stop_adapted(struct running *r, struct pp_adapter *adapter);
/* With the adapter at `path`, the model must yield these logits of the text, [SMALL_TEXT, n_vocab], each within room *
 * max(1, its size). */
void assert_adapted(const char *model, const char *path, const double *want, int n_vocab, double room);
/* The cosine between a model's logits of the text and these. */
double small_likeness(const char *path, const char *quant, const double *want, int n_vocab);
/* A sequence saved in the middle of the text is continued by another engine, bit for bit. */
void assert_resumes(const char *path, int n_vocab);
/* Rewound within a page and across one, and forked in the middle of either, a conversation continues bit for bit, also
 * where two of them alternate. */
void assert_goes_back(const char *path, int n_vocab);

/* --- formulas in double precision --- */

/* n zeros; to be freed by pp_free. */
double *doubles(int64_t n);
/* Attention of a query of `dim` numbers to positions from `first` to its own; scores fall by `slope` for each position
 * of distance; k, v: [position][n_kv]; out: [dim]. */
void attend_query(const double *q, const double *k, const double *v, int first, int position, int dim, int n_kv,
                  double scale, double slope, double *out);

/* The same with scores softly capped by `cap`, if not 0, and then multiplied by growth. */
void attend_capped(const double *q, const double *k, const double *v, int first, int position, int dim, int n_kv,
                   double scale, double slope, double cap, double growth, double *out);

/* The short convolution of position r over the last n_taps positions of `in` [position][width]; taps: [width, n_taps],
 * the oldest position's first; bias: [width], or NULL; out: [width]. */
void convolve_row(const float *taps, int n_taps, const float *bias, const double *in, int r, int width, double *out);

/* --- files --- */

/* Asserts that the folder has a tensor of that name, n values wide. */
void assert_tensor(const char *folder, const char *name, int n_dims, int64_t n);

#endif
