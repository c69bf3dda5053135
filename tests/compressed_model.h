/* compressed_model.h - small random models of DeepSeek V4, written by the tests, and their logits, computed from the
 * formulas in double precision. */
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
    int n_expert, n_used, n_ff, n_table;    /* the first n_table layers choose experts by a table */
    int compress[COMPRESSED_LAYERS];        /* positions of a block; 0: no blocks, 4: an indexer picks them */
    float bound, scale, epsilon;            /* bounds of gates, 0: none; scale of experts' weights; epsilon of
                                               streams */
    float yarn_factor;                      /* in layers with blocks; 0: no YaRN */
    int yarn_ctx, n_ctx;
    bool says_nextn;                        /* the file counts a layer of multi-token prediction that it lacks */
    bool bad_table;                         /* the table names an expert that does not exist */
    bool double_table;                      /* the table names the same expert twice */
};
struct compressed_shape compressed_shape(void);

struct compressed_model {
    struct compressed_shape s;
    struct array t[COMPRESSED_TENSORS];
    int n;
    int32_t *tables[COMPRESSED_LAYERS];     /* [n_vocab, n_used], instead of random values; or NULL */
    uint32_t random;
};
struct compressed_model *compressed_model_make(const struct compressed_shape *s);
void compressed_model_free(struct compressed_model *m);
/* Writes the model as a GGUF file; returns its path, made by fresh_path(). */
const char *compressed_model_write(const struct compressed_model *m);
/* A tensor of layer l, or of no layer (-1); NULL: there is none. */
const struct array *compressed_find(const struct compressed_model *m, int l, const char *kind);
/* logits: [n, n_vocab] */
void compressed_model_compute(const struct compressed_model *m, const int32_t *ids, int n, double *logits);

#endif
