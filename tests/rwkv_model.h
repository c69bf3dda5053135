/* rwkv_model.h - small random models of RWKV 4, 6 and 7, in their own layers and in Qwen 2's, written by the tests, and
 * their logits, computed from the formulas in double precision. The model is a global: one is made, written, computed
 * and freed at a time. */
#ifndef PP_TESTS_RWKV_MODEL_H
#define PP_TESTS_RWKV_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/random_array.h"

enum { N = 64, HEAD = 32, HEADS = N / HEAD, FF = 96, VOCAB = 70, LAYERS = 3, MIXES = 6, MAX_TENSORS = 160 };
enum { MIXES_6 = 5, MIX_RANK = 32, DECAY_RANK = 64 }; /* RWKV 6 */
enum { KEYS = HEADS / 2 }; /* heads of keys and values in QRWKV, each shared by several query heads */
extern const int rwkv_ranks[4]; /* of decays, beta, values and gates */

extern struct array arrays[MAX_TENSORS];
extern int n_arrays;
/* ARWKV may lack gates, and the norm of the heads' output. */
extern bool arwkv_gated, arwkv_head_norms;

extern double rwkv6_heads_eps; /* of norms of heads */

const struct array *rwkv_find(int l, const char *kind);
double rwkv_vector(int l, const char *kind, int i);
void rwkv_drop(void);

struct number {
    const char *key;
    uint32_t v;
};

/* Writes the model as a GGUF file with these numbers; those without a key are left out. */
const char *rwkv_write_numbers(const char *arch, const struct number *numbers, size_t n_numbers);

void rwkv7_make(void);
const char *rwkv7_write_with(uint32_t head_size);
const char *rwkv7_write(void);
void rwkv7_compute(const int32_t *ids, int n, double *logits);

void rwkv4_make(void);
const char *rwkv4_write(void);
void rwkv4_compute(const int32_t *ids, int n, double *logits);

/* apart: blend weights in a tensor each, as in early files */
void rwkv6_make_with(bool apart);
void rwkv6_make(void);
/* left_out: the index of a key to omit; -1: none */
const char *rwkv6_write_with(uint32_t head_size, uint32_t rescale_every, uint32_t shifts, int left_out);
const char *rwkv6_write(void);
void rwkv6_compute_with(const int32_t *ids, int n, bool apart, int rescale_every, double *logits);
void rwkv6_compute(const int32_t *ids, int n, double *logits);

void arwkv_make(void);
const char *arwkv_write_with(uint32_t head_size, uint32_t shifts);
const char *arwkv_write(void);
void arwkv_compute(const int32_t *ids, int n, double *logits);

void qrwkv_make(void);
const char *qrwkv_write_with(uint32_t head_size, uint32_t n_keys, uint32_t shifts, uint32_t rescale_every);
const char *qrwkv_write(void);
void qrwkv_compute(const int32_t *ids, int n, double *logits);

#endif
