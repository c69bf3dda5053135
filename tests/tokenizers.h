/* tokenizers.h - helpers of the tokenizer tests. */
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
/* Append parts of a SentencePiece model's protobuf: a number, a message in a field, and a piece (enum tok_type). */
void put_varint(struct pp_buf *b, uint64_t v);
void put_message(struct pp_buf *b, unsigned number, const struct pp_buf *message);
void put_piece(struct pp_buf *b, const char *text, float score, unsigned type);
/* Appends the character map of such a model. */
struct replaced {
    const char *from, *to;
};
void put_table(struct pp_buf *b, const struct replaced *pairs, size_t n);
/* Checks that text becomes these tokens, given as their texts with '|' between them. */
void expect_tokens(const struct pp_tokenizer *t, const char *text, unsigned flags, const char *want);
/* Whether text has a character that PCRE2 or utf8proc does not know yet, so that the two may disagree about it. */
bool has_new_characters(const char *text, size_t n);

#endif
