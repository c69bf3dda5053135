/* tiny_model.h - small random Llama models written by the tests, so that the engine can be tested without test data. */
#ifndef PP_TESTS_TINY_MODEL_H
#define PP_TESTS_TINY_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct tiny_shape {
    int n_vocab, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff, n_ctx;
    uint32_t type;  /* of the matrices */
    uint32_t seed;
    int window;     /* of attention; 0: none */
    bool biases;    /* of q, k, v and ffn_up */
    bool random_bits; /* matrices are random bits with fitting scales: also of types that pp_quantize_rows() lacks */
    int n_expert;   /* two of them are used by a row; 0: no experts */
};

/* 256 wide (so that K-quants fit), 2 layers, 4 heads over 2, context 1024. */
struct tiny_shape tiny_shape(uint32_t type);
/* Writes the model into the test's temporary folder, unless an unchanged copy is still there; returns its path, in
 * static memory that the next 8 shapes do not overwrite. It has no vocabulary. */
const char *tiny_model(const struct tiny_shape *s);
/* The same for a LoRA adapter of that shape, for all matrices of layer 0 and the output. rank: any, also one that does
 * not fill a vector register. */
const char *tiny_adapter(const struct tiny_shape *s, int rank);

#endif
