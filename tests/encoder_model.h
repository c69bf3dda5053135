/* encoder_model.h - small random encoders that the tests write, as GGUF files and as folders, and what they give, in
 * double precision from the formulas in their papers. */
#ifndef PP_TESTS_ENCODER_MODEL_H
#define PP_TESTS_ENCODER_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct encoder_shape {
    const char *arch;   /* "bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3" */
    int n_vocab, n_embd, n_layer, n_head, n_ff, n_ctx;
    uint32_t type;      /* of the matrices */
    uint32_t seed;
    int pooling;        /* as GGUF numbers them; -1: it does not say */
    bool apart;         /* the gate has a matrix of its own (jina-bert-v2) */
    bool words;         /* with a vocabulary, of WordPiece's kind */
    int n_reserved;     /* of a folder: rows of the table of positions that are none (RoBERTa) */
};

struct encoder;

/* 96 wide (rows that fill no vector of 256), 2 layers, 6 heads, 512 positions. */
struct encoder_shape encoder_shape(const char *arch, uint32_t type);
struct encoder *encoder_make(const struct encoder_shape *s);
void encoder_free(struct encoder *e);
/* Writes the model; its path as fresh_path gives it. */
const char *encoder_write(const struct encoder *e);
/* The same as a folder of Hugging Face's format, of BERT's or RoBERTa's kind, Nomic's with experts, or Jina's third,
 * with adapters that nobody asked for; the weights are F32. `modules`: with what
 * sentence-transformers keeps beside it, pooling by the first token. */
const char *encoder_write_folder(const struct encoder *e, bool modules);
/* Replaces the tensor of that name by one of this shape (rows 0: a vector; cols 0: it is left out). */
void encoder_spoil(struct encoder *e, const char *name, int64_t rows, int64_t cols);
/* hidden: [n, n_embd], what the model gives for all of these tokens. */
void encoder_compute(const struct encoder *e, const int32_t *ids, int n, double *hidden);

#endif
