/* adapter_folder.h - adapters that tests write, and what they make of a model: their changes merged into its weights,
 * computed in double precision from the formulas in their papers. */
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

/* A tensor of values around `middle`; its data. */
const float *folder_add(struct folder *f, const char *name, int64_t rows, int64_t cols, float middle, float spread);
const float *folder_get(const struct folder *f, const char *name); /* or NULL */
/* A LoRA of `module` ("model.layers.0.self_attn.q_proj"), of values that halves hold exactly. w [n_out, n_in] becomes
 * w + scale B A. */
void folder_add_merged(struct folder *f, const char *module, int rank, double scale, float *w, int64_t n_out,
                       int64_t n_in);
/* Writes a folder with adapter_config.json and the tensors in a file `weights`; its path as fresh_path gives it. */
const char *folder_write(const struct folder *f, const char *config, const char *weights);
const char *folder_write_peft(const struct folder *f, const char *config);
void folder_empty(struct folder *f);

/* The modules of layer 0 and how they are called in GGUF. */
struct folder_module {
    const char *hf, *gguf;
    bool moved; /* outputs lie in another order */
};
extern const struct folder_module folder_modules[FOLDER_MODULES];

/* tiny_shape with biases, to whose heads of 64 the modules fit. */
struct tiny_shape biased_shape(uint32_t type);
void folder_sizes(const struct tiny_shape *s, int module, int64_t *n_in, int64_t *n_out);
/* One tensor, and both halves of a LoRA, of a module. */
void folder_add_named(struct folder *f, int module, const char *end, int64_t rows, int64_t cols, float middle,
                      float spread);
void folder_add_lora(struct folder *f, const struct tiny_shape *s, int module, int rank);

/* A model's file in memory. */
struct merged {
    struct pp_gguf *gguf;
    uint8_t *bytes;
    size_t size;
};
struct merged merged_begin(const char *model); /* pp_gguf_close, pp_free */
const struct pp_tensor *merged_tensor(const struct merged *m, const char *name);
/* Writes the model with the adapter at a strength; scale: of B A. Its path as fresh_path gives it. */
const char *folder_merge(const struct folder *f, const char *model, int rank, double scale, double strength);

/* A model's config.json, unchanged. */
void folder_copy_config(const char *from, const char *to);
/* Both adapters' folders have the same tensors under the same names; but: NULL, or a part of names whose values need
 * not agree. */
void folder_same_tensors(const char *a, const char *b, const char *but);

/* A file: the bundled adapter with zeros for all values, as one that was never trained. */
const char *adapter_never_trained(void);

#endif
