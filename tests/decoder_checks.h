/* decoder_checks.h - checks that the tests of decoders share: a small random model yields its formulas' logits from a
 * GGUF file, from the folder exported from that, and from the file converted from the folder. All of them fail the
 * test otherwise. */
#ifndef PP_TESTS_DECODER_CHECKS_H
#define PP_TESTS_DECODER_CHECKS_H

#include <stddef.h>

#include "tests/adapter_folder.h"
#include "tests/decoder_model_int.h"

/* Checks all three, and that results are bit-identical for any number of rows and threads. Returns the folder's
 * path. */
const char *check_decoder(const struct decoder_shape *s);
/* Checks the logits of a folder or file, and of what is converted from it. */
void check_other(const struct decoder_shape *s, const char *path);
/* A folder that is quantised as it is loaded gives about the same logits. */
void check_quantised_folder(const struct decoder_shape *s);
/* The same, and as MLX quantises to eight bits. Returns MLX's folder. */
const char *check_quantised(const struct decoder_shape *s);

/* A tensor that has another shape or is missing, and a word that the error must contain. */
struct spoilt {
    const char *name;
    int64_t rows, cols;
    const char *word;
};
void assert_refused(const struct decoder_shape *s, const struct spoilt *cases, size_t n);

/* Whether config.json has this word somewhere after the key. */
void assert_config(const char *folder, const char *key, const char *word);

/* Changes the matrix with this GGUF name, of n_out rows, to W + scale B A, and adds A and B to f as an adapter of
 * `module` of layer 0. */
void merge_lora(struct decoder *d, const char *gguf, struct folder *f, const char *module, int n_out, int rank,
                double scale);
/* A model with the adapter at `path` yields the same as the merged weights. */
void expect_adapted(const struct decoder *merged, const char *model, const char *path, double room);

#endif
