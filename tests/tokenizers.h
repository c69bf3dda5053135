/* tokenizers.h - what the tests of tokenizers share. */
#ifndef PP_TESTS_TOKENIZERS_H
#define PP_TESTS_TOKENIZERS_H

#include <stdbool.h>
#include <stddef.h>

struct pp_tokenizer;

/* The tokenizer of a file, which must open; the caller frees it. */
struct pp_tokenizer *open_tokenizer(const char *path);
/* t written as a GGUF file and read again; the caller frees it. */
struct pp_tokenizer *through_gguf(const struct pp_tokenizer *t);
/* text becomes these tokens: their texts with '|' between them. */
void expect_tokens(const struct pp_tokenizer *t, const char *text, unsigned flags, const char *want);
/* Some character of text is one that either PCRE2 or utf8proc does not know yet: they may differ about it. */
bool has_new_characters(const char *text, size_t n);

#endif
