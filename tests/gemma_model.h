/* gemma_model.h - small random models of Gemma 4 and 3n and of EmbeddingGemma 2, written by the tests, and their
 * logits or vectors, computed from the formulas in double precision: heads of two sizes, shared keys and values,
 * per-layer inputs, experts in parallel with a dense feed-forward part, several streams, and bidirectional windows. */
#ifndef PP_TESTS_GEMMA_MODEL_H
#define PP_TESTS_GEMMA_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct gemma_shape {
    int n_vocab, n_embd, n_layer, n_head, n_ff;
    int window, wide;                 /* every wide-th layer has full attention */
    int head_dim, n_head_kv;          /* of layers with a window */
    int wide_head_dim, wide_n_head_kv; /* of the others */
    int turning;                      /* rotated pairs of a head in layers with full attention */
    bool keys_as_values;              /* layers with full attention use the keys as values: they have no projection for
                                         these */
    int n_shared;                     /* last layers that share the keys and values of earlier ones */
    bool double_wide;                 /* those layers' feed-forward parts are twice as wide */
    int n_embd_layer;                 /* the width of per-layer inputs; 0: none */
    int n_expert, n_used, n_ff_expert; /* 0: no experts */
    float softcap;                    /* of logits; 0: none */
    int n_stream;                     /* residual streams: 0 for Gemma 4, which has one */
    int laurel_rank, n_sparse;        /* LAuReL's rank; the number of first layers with sparse gates */
    int n_embd_out;                   /* the width of an encoder's vectors; 0: a decoder */
    uint32_t seed;
};

struct gemma;

/* In the form of the small models: six layers, of which the third and the last have full attention, and the last two
 * share keys and values. */
struct gemma_shape gemma_shape(void);
/* Gemma 3n with four streams: heads of one size, the first layer sparse. */
struct gemma_shape gemma_streams(void);
/* EmbeddingGemma 2: all dimensions of heads are rotated, and vectors are wider than the residual stream. */
struct gemma_shape gemma_vectors(void);
struct gemma *gemma_make(const struct gemma_shape *s);
void gemma_free(struct gemma *g);
/* Writes the model as a GGUF file of F32; returns its path, made by fresh_path(). */
const char *gemma_write(const struct gemma *g);
/* The same for an encoder as a folder, in the published, multimodal form. */
const char *gemma_write_folder(const struct gemma *g);
/* logits: [n, n_vocab], or [n, n_embd_out] */
void gemma_compute(const struct gemma *g, const int32_t *ids, int n, double *logits);

#endif
