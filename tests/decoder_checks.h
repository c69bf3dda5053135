/* decoder_checks.h - what the tests of decoders have in common: a small random model gives what its formulas say, from
 * a GGUF file, from the folder that is made of it, and from the file that is made of that. All of them fail the test
 * where something is not so. */
#ifndef PP_TESTS_DECODER_CHECKS_H
#define PP_TESTS_DECODER_CHECKS_H

#include <stddef.h>

#include "tests/adapter_folder.h"
#include "tests/decoder_model_int.h"

/* In all three, and with any number of rows and threads the same bits. The folder's path. */
const char *check_decoder(const struct decoder_shape *s);
/* The logits that a folder or a file gives, and what is made of it. */
void check_other(const struct decoder_shape *s, const char *path);
/* A folder's matrices are quantised while it is loaded: answers are about the same. */
void check_quantised_folder(const struct decoder_shape *s);
/* The same, and in eight bits by MLX. MLX's folder. */
const char *check_quantised(const struct decoder_shape *s);

/* A tensor of another size, or none, and a word of what is said of it then. */
struct spoilt {
    const char *name;
    int64_t rows, cols;
    const char *word;
};
void assert_refused(const struct decoder_shape *s, const struct spoilt *cases, size_t n);

/* Whether config.json has this word somewhere behind the key. */
void assert_config(const char *folder, const char *key, const char *word);

/* The matrix that GGUF calls so becomes W + scale B A, n_out rows; A and B go into f as those of `module` of layer
 * 0. */
void merge_lora(struct decoder *d, const char *gguf, struct folder *f, const char *module, int n_out, int rank,
                double scale);
/* A model with the adapter of `path` gives what the merged weights do. */
void expect_adapted(const struct decoder *merged, const char *model, const char *path, double room);

#endif
