/* compressed_model.h - small random models of DeepSeek V4 that the tests write, and the logits that they give, in
 * double precision from the formulas. */
#ifndef PP_TESTS_COMPRESSED_MODEL_H
#define PP_TESTS_COMPRESSED_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/hash.h"
#include "tests/random_array.h"

enum { COMPRESSED_LAYERS = 8, COMPRESSED_TENSORS = 320 };

struct compressed_shape {
    int n_vocab, n_embd, n_layer, n_head, head_dim, rope_dim, q_rank, o_groups, o_rank, window;
    int index_heads, index_dim, top_k;
    int n_stream, rounds;
    int n_expert, n_used, n_ff, n_table;    /* of so many layers, the first ones, a table names experts */
    int compress[COMPRESSED_LAYERS];        /* positions of a block; 0: there are none, 4: the index picks of them */
    float bound, scale, epsilon;            /* of gates, 0: none; of experts' weights; of streams */
    float yarn_factor;                      /* in layers with blocks; 0: RoPE is not scaled */
    int yarn_ctx, n_ctx;
    bool says_nextn;                        /* the file counts a layer that guesses, though it has none */
    bool bad_table;                         /* it names an expert that there is not, */
    bool double_table;                      /* or one twice */
};
struct compressed_shape compressed_shape(void);

struct compressed_model {
    struct compressed_shape s;
    struct array t[COMPRESSED_TENSORS];
    int n;
    int32_t *tables[COMPRESSED_LAYERS];     /* [n_vocab, n_used], in place of the values of such a tensor; or NULL */
    uint32_t random;
};
struct compressed_model *compressed_model_make(const struct compressed_shape *s);
void compressed_model_free(struct compressed_model *m);
/* Writes the model as a GGUF file; its path as fresh_path gives it. */
const char *compressed_model_write(const struct compressed_model *m);
/* Of layer l, or of none, -1; NULL: there is no such tensor. */
const struct array *compressed_find(const struct compressed_model *m, int l, const char *kind);
/* logits: [n, n_vocab] */
void compressed_model_compute(const struct compressed_model *m, const int32_t *ids, int n, double *logits);

#endif
