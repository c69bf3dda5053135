/* gemma_model.h - small random models of Gemma 4 and 3n, and EmbeddingGemma 2, that the tests write, and the logits or
 * vectors that they give, in double precision from the formulas: heads of two sizes, layers that share keys and values,
 * inputs of each layer's own, experts beside an ordinary feed-forward part, several streams, and windows that reach to
 * either side. */
#ifndef PP_TESTS_GEMMA_MODEL_H
#define PP_TESTS_GEMMA_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct gemma_shape {
    int n_vocab, n_embd, n_layer, n_head, n_ff;
    int window, wide;                 /* each wide-th layer sees everything */
    int head_dim, n_head_kv;          /* of layers with a window */
    int wide_head_dim, wide_n_head_kv; /* of the others */
    int turning;                      /* pairs of heads in those that are rotated */
    bool keys_as_values;              /* those have no projection for values */
    int n_shared;                     /* last layers that read others' keys and values */
    bool double_wide;                 /* whose feed-forward parts are twice as wide */
    int n_embd_layer;                 /* of each layer's own input; 0: there is none */
    int n_expert, n_used, n_ff_expert; /* 0: no experts */
    float softcap;                    /* of logits; 0: none */
    int n_stream;                     /* 0: Gemma 4, without them */
    int laurel_rank, n_sparse;        /* beside attention; the first layers, whose gates are sparse */
    int n_embd_out;                   /* of vectors, of rows that see those behind them, too; 0: it gives logits */
    uint32_t seed;
};

struct gemma;

/* As the small ones have it: six layers, of which the third and the last see everything and the last two share. */
struct gemma_shape gemma_shape(void);
/* Gemma 3n with four streams: heads of one size, the first layer sparse. */
struct gemma_shape gemma_streams(void);
/* EmbeddingGemma 2: all of what heads have turns, and vectors are wider than what they are made of. */
struct gemma_shape gemma_vectors(void);
struct gemma *gemma_make(const struct gemma_shape *s);
void gemma_free(struct gemma *g);
/* Writes the model as a GGUF file of F32; its path as fresh_path gives it. */
const char *gemma_write(const struct gemma *g);
/* The same of one that gives vectors as a folder, as it is published: text beside what sees. */
const char *gemma_write_folder(const struct gemma *g);
/* logits: [n, n_vocab], or [n, n_embd_out] */
void gemma_compute(const struct gemma *g, const int32_t *ids, int n, double *logits);

#endif
