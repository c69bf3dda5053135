/* expert_model_int.h - the tensors of a small random mixture of experts: made and written by expert_model.c, used by
 * expert_formulas.c. */
#ifndef PP_TESTS_EXPERT_MODEL_INT_H
#define PP_TESTS_EXPERT_MODEL_INT_H

#include "tests/expert_model.h"
#include "tests/random_array.h"

enum { EXPERT_MAX_TENSORS = 256, MAX_EXPERTS = 128, INDEX_HEADS = 3, INDEX_DIM = 20 };
#define EXPERT_EPSILON 1e-5
#define EXPERT_ROPE_BASE 10000.0

struct expert_model {
    struct expert_shape s;
    struct array t[EXPERT_MAX_TENSORS];
    int n;
    uint32_t random;
};

/* In a layer with ordinary attention: the number of KV heads, and the size of a head's values. */
int expert_key_heads(const struct expert_shape *s, int l);
int expert_value_dim(const struct expert_shape *s);
int expert_heads(const struct expert_shape *s, int l); /* query heads */
bool expert_is_wide(const struct expert_shape *s, int l);
bool expert_recurs(const struct expert_shape *s, int l);
bool expert_gates_queries(const struct expert_shape *s);
/* The gated delta rule or Mamba 2 of layer l, without its output matrix, for n rows of normalised inputs [n, n_embd]:
 * out [n, n_state * value_dim]. */
void expert_states(const struct expert_model *m, int l, const double *in, int n, double *out);
void expert_kda(const struct expert_model *m, int l, const double *in, int n, double *out); /* Kimi Linear */
void expert_scan(const struct expert_model *m, int l, const double *in, int n, double *out); /* Mamba */
void expert_mamba(const struct expert_model *m, int l, const double *in, int n, double *out);
void expert_hash_rows(const struct expert_shape *s, uint64_t *rows); /* of each hash */
/* Qwen 4: the input of the named part from a row's streams, and, if not NULL, the coefficients by which it writes: x
 * [n_stream, n_embd], sum [n_embd], write [n_stream]; adding n-gram embeddings to streams x [n, n_stream, n_embd]; and
 * an indexer's picks for row r of n with the normalised input `in`: keys [n, INDEX_DIM] of all rows up to that one,
 * sees [n]. */
void expert_gate_streams(const struct expert_model *m, int l, const char *part, const double *x, double *sum,
                         double *write);
void expert_hash(const struct expert_model *m, const int32_t *ids, int n, double *x);
void expert_pick_means(const struct expert_model *m, int l, const double *in, int r, double *keys, bool *sees);
/* A projection with its bias; and RoPE of the first dim values of a head. */
void expert_linear(const struct expert_model *m, int l, const char *kind, const double *x, double *y);
void expert_rotate(const struct expert_shape *s, int dim, double base, double *head, int position);
bool expert_layer(const struct expert_shape *s, int l); /* has experts */
bool expert_picks(const struct expert_shape *s, int l); /* has an indexer of its own */
bool expert_convolves(const struct expert_shape *s, int l); /* has a convolution in place of attention */
const struct array *expert_find(const struct expert_model *m, int l, const char *kind); /* l -1: of no layer; or NULL */

#endif
