/* adapter_folder.h - adapter folders written by the tests, and the models that result when their changes are merged
 * into the weights, computed in double precision from the formulas in the papers. */
#ifndef PP_TESTS_ADAPTER_FOLDER_H
#define PP_TESTS_ADAPTER_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/gguf.h"
#include "engine/types.h"
#include "tests/tiny_model.h"

enum { FOLDER_PARTS = 72, FOLDER_MODULES = 8, FOLDER_HEAD_DIM = 64 };

struct folder_part {
    char name[160];
    float *data;
    int64_t rows, cols; /* as in the file; cols 0: a vector */
};

struct folder {
    struct folder_part parts[FOLDER_PARTS];
    int n;
    uint32_t random;
};

/* Adds a tensor of random values within `spread` of `middle`; returns its data. */
const float *folder_add(struct folder *f, const char *name, int64_t rows, int64_t cols, float middle, float spread);
const float *folder_get(const struct folder *f, const char *name); /* or NULL */
/* Adds a LoRA of `module` ("model.layers.0.self_attn.q_proj") whose values F16 holds exactly, and adds scale B A to w
 * [n_out, n_in]. */
void folder_add_merged(struct folder *f, const char *module, int rank, double scale, float *w, int64_t n_out,
                       int64_t n_in);
/* Writes a folder with adapter_config.json, and the tensors in the file `weights`; returns its path, made by
 * fresh_path(). */
const char *folder_write(const struct folder *f, const char *config, const char *weights);
const char *folder_write_peft(const struct folder *f, const char *config);
void folder_empty(struct folder *f);

/* The modules of layer 0, and their names in GGUF. */
struct folder_module {
    const char *hf, *gguf;
    bool moved; /* outputs have another order in GGUF */
};
extern const struct folder_module folder_modules[FOLDER_MODULES];

/* tiny_shape with biases and heads of 64, which the sizes of the modules match. */
struct tiny_shape biased_shape(uint32_t type);
void folder_sizes(const struct tiny_shape *s, int module, int64_t *n_in, int64_t *n_out);
/* Add one tensor of a module, or both matrices of a LoRA of it. */
void folder_add_named(struct folder *f, int module, const char *end, int64_t rows, int64_t cols, float middle,
                      float spread);
void folder_add_lora(struct folder *f, const struct tiny_shape *s, int module, int rank);
/* Adds A, B (of rank 4) and magnitudes of a DoRA of the embeddings. */
void folder_add_embedding_dora(struct folder *f, const struct tiny_shape *s);

/* A model's GGUF file in memory, whose tensors can be changed there. */
struct merged {
    struct pp_gguf *gguf;
    uint8_t *bytes;
    size_t size;
};
struct merged merged_begin(const char *model); /* release by pp_gguf_close and pp_free */
const struct pp_tensor *merged_tensor(const struct merged *m, const char *name);
/* Writes the model with the adapter merged in at this strength; scale: the factor of B A. Returns the path, made by
 * fresh_path(). */
const char *folder_merge(const struct folder *f, const char *model, int rank, double scale, double strength);

/* A copy of a model whose output matrix has the values of its table of embeddings. */
const char *folder_tied_model(const char *model);
/* The same as folder_merge for an MLX folder that has only the embeddings; where the output is the same matrix, that is
 * changed alike. */
const char *folder_merge_mlx(const struct folder *f, const char *model, int rank, double scale, double strength);

/* Copies a model's config.json. */
void folder_copy_config(const char *from, const char *to);
/* Fails the test unless both adapter folders have the same tensors under the same names. but: NULL, or a part of names
 * whose values may differ. */
void folder_same_tensors(const char *a, const char *b, const char *but);

/* The path of a file: the bundled adapter with all values zero, like one that was never trained. */
const char *adapter_never_trained(void);

#endif
