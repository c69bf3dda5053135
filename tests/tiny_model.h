/* tiny_model.h - small random Llama models that the tests write themselves, so that the engine is tested without any
 * test data. */
#ifndef PP_TESTS_TINY_MODEL_H
#define PP_TESTS_TINY_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct tiny_shape {
    int n_vocab, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff, n_ctx;
    uint32_t type;  /* of the matrices */
    uint32_t seed;
    int window;     /* of attention; 0: none */
    bool biases;    /* of q, k, v and the upper projection */
    int n_expert;   /* of which two work on a row; 0: one feed-forward part */
};

/* 256 wide (so that K-quants fit), 2 layers, 4 heads over 2, context 1024. */
struct tiny_shape tiny_shape(uint32_t type);
/* Writes the model into the test's temporary folder, once as long as it stays as it is there; returns its path (static
 * memory, kept for 8 other shapes). It has no vocabulary. */
const char *tiny_model(const struct tiny_shape *s);
/* Likewise a LoRA adapter for that shape: all matrices of the first layer, and the
 * output. rank: any, also one that fills no vector. */
const char *tiny_adapter(const struct tiny_shape *s, int rank);

#endif
