/* tokenizers.h - what the tests of tokenizers share. */
#ifndef PP_TESTS_TOKENIZERS_H
#define PP_TESTS_TOKENIZERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pp_buf;
struct pp_tokenizer;

/* The tokenizer of a file, which must open; the caller frees it. */
struct pp_tokenizer *open_tokenizer(const char *path);
/* t written as a GGUF file and read again; the caller frees it. */
struct pp_tokenizer *through_gguf(const struct pp_tokenizer *t);
/* Appends what a SentencePiece model's protobuf has: a number, a message in a field, and a piece (enum tok_type). */
void put_varint(struct pp_buf *b, uint64_t v);
void put_message(struct pp_buf *b, unsigned number, const struct pp_buf *message);
void put_piece(struct pp_buf *b, const char *text, float score, unsigned type);
/* Appends a table of characters as such a model has it. */
struct replaced {
    const char *from, *to;
};
void put_table(struct pp_buf *b, const struct replaced *pairs, size_t n);
/* text becomes these tokens: their texts with '|' between them. */
void expect_tokens(const struct pp_tokenizer *t, const char *text, unsigned flags, const char *want);
/* Some character of text is one that either PCRE2 or utf8proc does not know yet: they may differ about it. */
bool has_new_characters(const char *text, size_t n);

#endif
