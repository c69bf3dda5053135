/* text.h - tokenizers and chat templates: from text and messages to token ids, and back. Public header of libpippin. */
#ifndef PP_ENGINE_TEXT_H
#define PP_ENGINE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"

/* --- tokenizer ----------------------------------------------------------------------------------------- */

/* Immutable after loading: any thread. */
struct pp_tokenizer;
struct pp_source;
struct pp_gguf;
struct pp_gguf_writer;

/* The tokenizer of an opened model. The caller owns *out, here and below (pp_tokenizer_free). PP_ERR_NOT_FOUND: it has
 * no vocabulary (GGUF `no_vocab`, folder without tokenizer files). */
enum pp_code pp_tokenizer_from_source(const struct pp_source *s, struct pp_tokenizer **out, struct pp_error *err);
/* A tokenizer from a file: a GGUF with or without tensors, a tokenizer.json, Mistral's tekken.json, a SentencePiece
 * tokenizer.model, tiktoken's ranks, PLaMo's tokenizer.jsonl, or a folder with one of the latter five, or with
 * vocab.json and merges.txt, vocab.txt or spiece.model (tokenizer_config.json, special_tokens_map.json,
 * added_tokens.json and config.json beside them are honoured). */
enum pp_code pp_tokenizer_open(const char *path, struct pp_tokenizer **out, struct pp_error *err);
void pp_tokenizer_free(struct pp_tokenizer *t); /* NULL is fine, here and below */

enum pp_tokenize_flags {
    PP_TOKENIZE_BOS = 1,     /* begin with BOS (and end with EOS where the model adds it) if the model wants it */
    PP_TOKENIZE_SPECIAL = 2, /* control tokens written out in the text ("<|eot_id|>") become those tokens */
    PP_TOKENIZE_ON = 4,      /* the text continues another one: no prefix, such as SentencePiece's space, is added */
    PP_TOKENIZE_AHEAD = 8,   /* begin with pp_tokenizer_ahead, as with BOS */
};
/* text: n bytes, need not be valid UTF-8. Sets *ids (the caller's, pp_free) and *n_ids: exactly the ids of the
 * reference tokenizer, for every byte string. PP_ERR_USAGE: the text is too long for one call; PP_ERR_NOMEM.
 * Thread-safe. */
enum pp_code pp_tokenize(const struct pp_tokenizer *t, const char *text, size_t n, unsigned flags, int32_t **ids,
                         size_t *n_ids, struct pp_error *err);
/* Appends the bytes of one token to out; they may be a part of a character (see pp_utf8_complete). Control tokens
 * append nothing unless `special`, and ids out of range nothing at all. */
void pp_token_text(const struct pp_tokenizer *t, int32_t id, bool special, struct pp_buf *out);
/* Text of a whole list. SentencePiece: the space that the tokenizer put before the first word is removed. */
void pp_detokenize(const struct pp_tokenizer *t, const int32_t *ids, size_t n, bool special, struct pp_buf *out);

/* Applies a SentencePiece model's denormalizer, a table of replacements, to the text of tokens as it comes (most
 * vocabularies have none, and pp_detokenize has applied it already). Returns how many of the n > 0 bytes form the next
 * unit, and sets *shown, which points into t or text, to what is shown for it. 0: that depends on the bytes that
 * follow; never with `last`, which means that none do. */
size_t pp_shown_text(const struct pp_tokenizer *t, const char *text, size_t n, bool last, const char **shown,
                     size_t *n_shown);

int32_t pp_tokenizer_n(const struct pp_tokenizer *t);       /* size of the vocabulary */
int32_t pp_tokenizer_bos(const struct pp_tokenizer *t);     /* or -1 */
int32_t pp_tokenizer_eos(const struct pp_tokenizer *t);     /* or -1 */
bool pp_tokenizer_adds_bos(const struct pp_tokenizer *t);
/* Sets *ids, owned by t, to the tokens that the model wants in front of a text: BOS, and after it what some models add
 * (GLM 4's "[gMASK]<sop>"). Returns how many; 0: none. */
size_t pp_tokenizer_lead(const struct pp_tokenizer *t, const int32_t **ids);
/* Sets *ids, owned by t, to those that precede every text of a model, even BOS, and even if a template writes BOS: ids
 * beyond the vocabulary, for learned vectors (Hymba's meta tokens). Returns how many; 0: none. */
size_t pp_tokenizer_ahead(const struct pp_tokenizer *t, const int32_t **ids);
/* Makes these the n ids from `first` on. Once, before t is shared. PP_ERR_NOMEM. */
enum pp_code pp_tokenizer_put_ahead(struct pp_tokenizer *t, int32_t first, size_t n, struct pp_error *err);
/* True for every token that ends an answer: eos, eot, eom, and tokens with such names ("<|im_end|>", "<|eot_id|>",
 * "<|end_of_text|>", "<end_of_turn>", "</s>", "<|end|>", "<|endoftext|>") if they are control tokens. */
bool pp_tokenizer_is_end(const struct pp_tokenizer *t, int32_t id);
/* The id of a token by its exact text, or -1. */
int32_t pp_tokenizer_find(const struct pp_tokenizer *t, const char *text, size_t n);
/* Same kind, size and texts. On false, *err (if any) says why: PP_ERR_MISMATCH. */
bool pp_tokenizer_equal(const struct pp_tokenizer *a, const struct pp_tokenizer *b, struct pp_error *err);
/* Whether two models understand each other's ids, as a draft model must: equal but for unused ids at the end, whose
 * number often differs between models of a family. */
bool pp_tokenizer_same_ids(const struct pp_tokenizer *a, const struct pp_tokenizer *b);
/* Whether a draft with another vocabulary can draft for the target by way of text: both must decode to exactly the
 * bytes that were encoded. On false, *err (if any) says why not. */
bool pp_tokenizer_bridges(const struct pp_tokenizer *target, const struct pp_tokenizer *draft, struct pp_error *err);
/* Writes tokenizer.ggml.* such that pp_tokenizer_open gives the same tokenizer back. most: if not 0, tokens from this
 * id on are left out, since the model has no rows for them and readers assume as many rows as tokens. */
enum pp_code pp_tokenizer_to_gguf(const struct pp_tokenizer *t, int64_t most, struct pp_gguf_writer *w,
                                  struct pp_error *err);
/* Writes tokenizer.json, or for SentencePiece's kinds tokenizer.model, and tokenizer_config.json into a folder, and
 * reads them back to check. An ordinary token that begins or ends texts, or stands for unknown ones, becomes a special
 * one, as readers take all that these settings name for special. PP_ERR_UNSUPPORTED: these formats cannot express this
 * tokenizer; the text says what is missing. */
enum pp_code pp_tokenizer_to_folder(const struct pp_tokenizer *t, const char *folder, struct pp_error *err);

/* --- chat templates ------------------------------------------------------------------------------------ */

/* Jinja as configured by transformers: trim_blocks, lstrip_blocks, loop controls, tojson, raise_exception,
 * strftime_now. Immutable after parsing; rendering is thread-safe. Recursion, output (16 MB) and steps are bounded. */
struct pp_template;

struct pp_template_input {
    const char *messages_json;  /* JSON array of {"role": ..., "content": ...}; required. Content that is a string
                                   becomes a list of one part if the template only reads such lists */
    const char *tools_json;     /* JSON array, or NULL: the variable is None */
    const char *extra_json;     /* JSON object whose members become variables ("enable_thinking"), or NULL */
    const char *bos_text;       /* "" if there is none */
    const char *eos_text;
    bool add_generation_prompt;
    int64_t now;                /* the time of strftime_now: the local time to show, as if it were UTC */
};

/* source: n bytes, at most 1 MiB. name appears in errors ("chat template of model.gguf"), and is copied. The caller
 * owns *out. PP_ERR_FORMAT gives the line; PP_ERR_NOMEM. */
enum pp_code pp_template_parse(const char *source, size_t n, const char *name, struct pp_template **out,
                               struct pp_error *err);
void pp_template_free(struct pp_template *t);
/* Whether the template reads a variable of this name anywhere. */
bool pp_template_reads(const struct pp_template *t, const char *name);
/* Guards against prompt injection: finds the first of a message's tokens ids[0..n) that the model would take for one
 * written by the template, and that is not in done[0..n_done); -1: none. These are control tokens; added tokens that
 * look like one ("<|user|>", DeepSeek's "<｜User｜>"), since vocabularies often do not mark them; and, in text not
 * written by the model (foreign), tokens in brackets that the template (or NULL) writes ("<start_of_turn>", "[INST]"),
 * unless it searches messages for them, or for their closing counterpart ("</think>"). */
int32_t pp_find_marker(const struct pp_tokenizer *t, const struct pp_template *tmpl, bool foreign, const int32_t *ids,
                       size_t n, const int32_t *done, size_t n_done);
/* Whether a role's messages come neither from the model nor the system prompt, but from the user, or a tool. */
bool pp_role_is_foreign(const char *role);
enum pp_template_text { PP_TEMPLATE_WRITES = 1, PP_TEMPLATE_LOOKS_FOR = 2 };
/* Bits: whether the template writes this text, and whether it compares messages with it or searches them for it. */
unsigned pp_template_text(const struct pp_template *t, const char *text, size_t n);
/* Appends the prompt text to out. PP_ERR_FORMAT: the template raised an exception, whose message is the text, or takes
 * too many steps, too much memory or too much output. */
enum pp_code pp_template_render(const struct pp_template *t, const struct pp_template_input *in, struct pp_buf *out,
                                struct pp_error *err);
/* The same with any variables, vars_json being a JSON object. For tests only. */
enum pp_code pp_template_render_vars(const struct pp_template *t, const char *vars_json, int64_t now,
                                     struct pp_buf *out, struct pp_error *err);
/* Templates that come with pippin, by name: "chatml", "llama3", "llama2", "mistral", "gemma", "phi3", "zephyr",
 * "alpaca", "vicuna", "command-r", "deepseek", "deepseek-v3.1", "deepseek-v4", "gpt-oss", "plain". i from 0; NULL at
 * the end. All strings are static. */
const char *pp_template_builtin_name(size_t i);
const char *pp_template_builtin(const char *name); /* its source, or NULL */
/* The name of the built-in template for a model that has none, if there is clear evidence: special tokens in its
 * vocabulary (t may be NULL), else words in its name or file name; else NULL. *why: the evidence, as in "by ...".
 * Static. */
const char *pp_template_evident(const struct pp_tokenizer *t, const char *name, const char *path, const char **why);
/* The same, but without evidence "plain", with *why NULL. */
const char *pp_template_instead(const struct pp_tokenizer *t, const char *name, const char *path, const char **why);

#endif
