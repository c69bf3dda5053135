/* expert_model_int.h - the tensors of a small random mixture of experts, which expert_model.c makes and writes, and
 * with which expert_formulas.c computes. */
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

/* Of a layer with attention of the usual kind: heads of keys, values of a head. */
int expert_key_heads(const struct expert_shape *s, int l);
int expert_value_dim(const struct expert_shape *s);
int expert_heads(const struct expert_shape *s, int l); /* of queries */
bool expert_is_wide(const struct expert_shape *s, int l);
bool expert_recurs(const struct expert_shape *s, int l);
bool expert_gates_queries(const struct expert_shape *s);
/* What the gated delta rule or Mamba 2 makes of n rows of normed inputs [n, n_embd] in layer l, before its last
 * matrix: out [n, n_state * value_dim]. */
void expert_states(const struct expert_model *m, int l, const double *in, int n, double *out);
void expert_kda(const struct expert_model *m, int l, const double *in, int n, double *out); /* Kimi Linear's */
void expert_scan(const struct expert_model *m, int l, const double *in, int n, double *out); /* the first Mamba */
void expert_mamba(const struct expert_model *m, int l, const double *in, int n, double *out);
void expert_hash_rows(const struct expert_shape *s, uint64_t *rows); /* of each hash, in turn */
/* Qwen 4's: what a part called so reads of the streams of a row, and, where not NULL, numbers for what it writes: x
 * [n_stream, n_embd], sum [n_embd], write [n_stream]; embeddings of several tokens, which go into streams x [n,
 * n_stream, n_embd]; and what an index picks for row r of n, whose normed input is `in`: keys [n, INDEX_DIM] of all
 * rows up to that one, sees [n]. */
void expert_gate_streams(const struct expert_model *m, int l, const char *part, const double *x, double *sum,
                         double *write);
void expert_hash(const struct expert_model *m, const int32_t *ids, int n, double *x);
void expert_pick_means(const struct expert_model *m, int l, const double *in, int r, double *keys, bool *sees);
/* A projection and its bias; and the rotation of the first dim values of a head. */
void expert_linear(const struct expert_model *m, int l, const char *kind, const double *x, double *y);
void expert_rotate(const struct expert_shape *s, int dim, double base, double *head, int position);
bool expert_layer(const struct expert_shape *s, int l); /* has a mixture */
bool expert_picks(const struct expert_shape *s, int l); /* has an index of its own */
bool expert_convolves(const struct expert_shape *s, int l); /* in place of attention */
const struct array *expert_find(const struct expert_model *m, int l, const char *kind); /* l -1: of no layer; or NULL */

#endif
