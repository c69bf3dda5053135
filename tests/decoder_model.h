/* decoder_model.h - small random decoders of some families that the tests write, and the logits that they give, in
 * double precision from the formulas. */
#ifndef PP_TESTS_DECODER_MODEL_H
#define PP_TESTS_DECODER_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct decoder_shape {
    const char *arch;   /* "stablelm", "phi2", or "mistral3", whose tensors are Llama's */
    int n_vocab, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff, n_ctx, rope_dim;
    bool parallel;
    enum { HEADS_PLAIN, HEADS_ALIKE, HEADS_EACH } heads; /* how queries and keys are normed, if they are */
    float temperature;  /* mistral3: scores grow with each context of `context` positions */
    int context;
    uint32_t seed;
};

struct decoder;

/* 48 wide, 2 layers, 4 heads of 12 over 2 (phi2: over 4), half of each rotated (mistral3: all). */
struct decoder_shape decoder_shape(const char *arch);
struct decoder *decoder_make(const struct decoder_shape *s);
void decoder_free(struct decoder *d);
/* Writes the model as a GGUF file of F32; its path (static memory, kept for 8 calls). */
const char *decoder_write(const struct decoder *d);
/* Replaces the tensor of that name by one of other sizes (rows 0: a vector; cols 0: it is left out). */
void decoder_spoil(struct decoder *d, const char *name, int64_t rows, int64_t cols);
/* logits: [n, n_vocab] */
void decoder_compute(const struct decoder *d, const int32_t *ids, int n, double *logits);

#endif
