/* encoder_model.h - small random encoders, written by the tests as GGUF files and as folders, and their output,
 * computed from the formulas in their papers in double precision. */
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
    int pooling;        /* GGUF's number; -1: unspecified */
    bool apart;         /* the gate is a separate matrix (jina-bert-v2) */
    bool words;         /* with a WordPiece vocabulary */
    int n_reserved;     /* in folders: unused rows of the table of positions (RoBERTa) */
};

struct encoder;

/* 96 wide (rows that fill no vector of 256), 2 layers, 6 heads, 512 positions. */
struct encoder_shape encoder_shape(const char *arch, uint32_t type);
struct encoder *encoder_make(const struct encoder_shape *s);
void encoder_free(struct encoder *e);
/* Writes the model; returns its path, made by fresh_path(). */
const char *encoder_write(const struct encoder *e);
/* The same as a Hugging Face folder, like BERT, RoBERTa, Nomic with experts, or Jina v3 with its adapters, which are
 * to be ignored; weights are F32. modules: with sentence-transformers' files, which say pooling by the first token. */
const char *encoder_write_folder(const struct encoder *e, bool modules);
/* Replaces a tensor by one of another shape (rows 0: a vector; cols 0: removes the tensor). */
void encoder_spoil(struct encoder *e, const char *name, int64_t rows, int64_t cols);
/* hidden: [n, n_embd], the model's output for all tokens. */
void encoder_compute(const struct encoder *e, const int32_t *ids, int n, double *hidden);

#endif
