/* adapter_run.h - logits of small models under adapters, compared with those of models into which the adapters are
 * merged. */
#ifndef PP_TESTS_ADAPTER_RUN_H
#define PP_TESTS_ADAPTER_RUN_H

#include "engine/engine.h"
#include "tests/adapter_folder.h"

enum { TOKENS = 7 };

struct run {
    struct pp_model *model;
    struct pp_engine *engine;
};

struct run open_run(const char *path, int n_threads);
void close_run(struct run *r);
/* Logits of all tokens, [TOKENS, n_vocab]; pp_free. */
float *adapter_logits(const struct run *r, const struct pp_adapter_use *use, int n);
double farthest(const float *a, const float *b, int64_t n); /* the largest difference */

/* The adapter at `path` gives, at several strengths, the logits of the model with the adapter in the folder merged in
 * by this function. */
typedef const char *merge_fn(const struct folder *f, const char *model, int rank, double scale, double strength);
void run_gives_merged(merge_fn *merge, const struct folder *f, const char *path, const char *model, int rank,
                      double scale);

#endif
