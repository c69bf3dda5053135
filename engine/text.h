/* text.h - tokenizers and chat templates: between the user's words and token ids. Public header of libpippin. */
#ifndef PP_ENGINE_TEXT_H
#define PP_ENGINE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"

/* --- tokenizer ----------------------------------------------------------------------------------------- */

/* Immutable after loading: any thread may use it at any time. */
struct pp_tokenizer;
struct pp_source;
struct pp_gguf;
struct pp_gguf_writer;

/* From an opened model. PP_ERR_NOT_FOUND if it has no vocabulary (GGUF `no_vocab`, folder without tokenizer files). */
enum pp_code pp_tokenizer_from_source(const struct pp_source *s, struct pp_tokenizer **out, struct pp_error *err);
/* From a file by itself: a GGUF with or without tensors, a tokenizer.json, Mistral's tekken.json, a SentencePiece
 * tokenizer.model, tiktoken's ranks, PLaMo's tokenizer.jsonl, or a folder that holds one of the latter five, or
 * vocab.json and merges.txt, vocab.txt or spiece.model (tokenizer_config.json and config.json beside them are
 * honoured). */
enum pp_code pp_tokenizer_open(const char *path, struct pp_tokenizer **out, struct pp_error *err);
void pp_tokenizer_free(struct pp_tokenizer *t); /* NULL is fine, here and below */

enum pp_tokenize_flags {
    PP_TOKENIZE_BOS = 1,     /* begin with BOS (and end with EOS where the model adds it) if the model wants it */
    PP_TOKENIZE_SPECIAL = 2, /* control tokens written out in the text ("<|eot_id|>") become those tokens */
    PP_TOKENIZE_ON = 4,      /* the text goes on with one before it: what is put before texts is not put before it */
    PP_TOKENIZE_AHEAD = 8,   /* begin with what pp_tokenizer_ahead gives, as with BOS */
};
/* text: n bytes, need not be valid UTF-8. Sets *ids (pp_free) and *n_ids. Exactly the ids of the reference
 * tokenizer for every byte string. PP_ERR_USAGE: the text is too long to be cut at once; PP_ERR_NOMEM. Thread-safe. */
enum pp_code pp_tokenize(const struct pp_tokenizer *t, const char *text, size_t n, unsigned flags, int32_t **ids,
                         size_t *n_ids, struct pp_error *err);
/* The bytes of one token as they stand in text. Control tokens give nothing unless `special`. Ids out of range give
 * nothing. Appends to out; may cut a character in two (see pp_utf8_complete). */
void pp_token_text(const struct pp_tokenizer *t, int32_t id, bool special, struct pp_buf *out);
/* Text of a whole list. SentencePiece: the space that the tokenizer put before the first word is removed. */
void pp_detokenize(const struct pp_tokenizer *t, const int32_t *ids, size_t n, bool special, struct pp_buf *out);

/* How many of the n bytes of a text of tokens are the next to be shown together, n > 0, and as what: most vocabularies
 * have it as it is, but a SentencePiece model may have a table of what is written instead (its denormalizer).
 * pp_detokenize has done that already. 0: what follows decides; there is none with `last`. *shown lies in t or in
 * text. */
size_t pp_shown_text(const struct pp_tokenizer *t, const char *text, size_t n, bool last, const char **shown,
                     size_t *n_shown);

int32_t pp_tokenizer_n(const struct pp_tokenizer *t);       /* size of the vocabulary */
int32_t pp_tokenizer_bos(const struct pp_tokenizer *t);     /* or -1 */
int32_t pp_tokenizer_eos(const struct pp_tokenizer *t);     /* or -1 */
bool pp_tokenizer_adds_bos(const struct pp_tokenizer *t);
/* Sets *ids to what the model wants in front of a text, which belongs to t: BOS, and behind it what some models have
 * there besides (GLM 4's "[gMASK]<sop>"). Returns how many; 0: nothing. */
size_t pp_tokenizer_lead(const struct pp_tokenizer *t, const int32_t **ids);
/* Sets *ids to what stands before every text of a model, even before BOS, and even where a template writes that; it
 * belongs to t. Returns how many; 0: nothing. They are vectors of the model's own, behind all tokens (Hymba's). */
size_t pp_tokenizer_ahead(const struct pp_tokenizer *t, const int32_t **ids);
/* Makes it those n ids, the first of which is `first`. Once, before anybody else has t. */
enum pp_code pp_tokenizer_put_ahead(struct pp_tokenizer *t, int32_t first, size_t n, struct pp_error *err);
/* True for every token that ends an answer: eos, eot, eom, and tokens with such names ("<|im_end|>", "<|eot_id|>",
 * "<|end_of_text|>", "<end_of_turn>", "</s>", "<|end|>", "<|endoftext|>") if they are control tokens. */
bool pp_tokenizer_is_end(const struct pp_tokenizer *t, int32_t id);
/* The id of a token by its exact text, or -1. */
int32_t pp_tokenizer_find(const struct pp_tokenizer *t, const char *text, size_t n);
/* Same kind, size and texts. On false, *err (if any) says why: PP_ERR_MISMATCH. */
bool pp_tokenizer_equal(const struct pp_tokenizer *a, const struct pp_tokenizer *b, struct pp_error *err);
/* Two models understand each other's ids: the same but for ids that are not used, of which models of one family often
 * have different numbers behind their tokens. For drafts. */
bool pp_tokenizer_same_ids(const struct pp_tokenizer *a, const struct pp_tokenizer *b);
/* A draft with another vocabulary can guess for the target by its text: both give back the very bytes that they were
 * made of. On false, *err (if any) says why not. */
bool pp_tokenizer_bridges(const struct pp_tokenizer *target, const struct pp_tokenizer *draft, struct pp_error *err);
/* Writes tokenizer.ggml.* so that pp_tokenizer_open gives the same tokenizer back. most: if not 0, tokens behind the
 * first so many, of which the model has no rows, are left out: readers take the number of tokens for that of rows. */
enum pp_code pp_tokenizer_to_gguf(const struct pp_tokenizer *t, int64_t most, struct pp_gguf_writer *w,
                                  struct pp_error *err);
/* Writes tokenizer.json, or of SentencePiece's kinds tokenizer.model, and tokenizer_config.json into a folder, and
 * reads them again. PP_ERR_UNSUPPORTED: they cannot say what this tokenizer does; the text says what. */
enum pp_code pp_tokenizer_to_folder(const struct pp_tokenizer *t, const char *folder, struct pp_error *err);

/* --- chat templates ------------------------------------------------------------------------------------ */

/* Jinja as transformers sets it up: trim_blocks, lstrip_blocks, loop controls, tojson, raise_exception,
 * strftime_now. Immutable after parsing; rendering is thread-safe. Recursion, output (16 MB) and steps are bounded. */
struct pp_template;

struct pp_template_input {
    const char *messages_json;  /* JSON array of {"role": ..., "content": ...}; required. A text as content becomes a
                                   list of one part where the template reads such lists only */
    const char *tools_json;     /* JSON array, or NULL: the variable is none */
    const char *extra_json;     /* JSON object whose members become variables ("enable_thinking"), or NULL */
    const char *bos_text;       /* "" if there is none */
    const char *eos_text;
    bool add_generation_prompt;
    int64_t now;                /* for strftime_now: what it shows, as seconds since the epoch in UTC */
};

/* source: n bytes, at most 1 MiB. name appears in errors ("chat template of model.gguf"), and is copied. PP_ERR_FORMAT
 * gives the line. */
enum pp_code pp_template_parse(const char *source, size_t n, const char *name, struct pp_template **out,
                               struct pp_error *err);
void pp_template_free(struct pp_template *t);
/* Whether a variable of this name is read anywhere in it. */
bool pp_template_reads(const struct pp_template *t, const char *name);
/* The first of these tokens of a message that would act there as if the template had written it, and is none of those
 * done; -1: there is none. Such are control tokens; added tokens that look like one ("<|user|>", DeepSeek's
 * "<｜User｜>"), as vocabularies often do not say that theirs are; and, in words of somebody else than the model
 * (foreign), those in brackets that the template (or NULL) writes ("<start_of_turn>", "[INST]"), unless it looks
 * for them in messages, or for what closes them: "</think>". */
int32_t pp_find_marker(const struct pp_tokenizer *t, const struct pp_template *tmpl, bool foreign, const int32_t *ids,
                       size_t n, const int32_t *done, size_t n_done);
/* Whether what a role's messages say is neither the model's nor the system's: the user's, or a tool's. */
bool pp_role_is_foreign(const char *role);
enum pp_template_text { PP_TEMPLATE_WRITES = 1, PP_TEMPLATE_LOOKS_FOR = 2 };
/* Whether this text stands among those that it writes out, and those that it compares or looks for in messages. */
unsigned pp_template_text(const struct pp_template *t, const char *text, size_t n);
/* Appends the prompt text. An error that the template raises (raise_exception) is PP_ERR_FORMAT with its message; so is
 * one that takes too many steps, too much memory or writes too much. */
enum pp_code pp_template_render(const struct pp_template *t, const struct pp_template_input *in, struct pp_buf *out,
                                struct pp_error *err);
/* The same with any variables: vars_json is a JSON object. For tests of the engine alone. */
enum pp_code pp_template_render_vars(const struct pp_template *t, const char *vars_json, int64_t now,
                                     struct pp_buf *out, struct pp_error *err);
/* Templates that come with pippin, by name: "chatml", "llama3", "llama2", "mistral", "gemma", "phi3", "zephyr",
 * "alpaca", "vicuna", "command-r", "deepseek", "deepseek-v3.1", "deepseek-v4", "gpt-oss", "plain". i from 0; NULL at
 * the end. All of it is static. */
const char *pp_template_builtin_name(size_t i);
const char *pp_template_builtin(const char *name); /* its source, or NULL */
/* The name of that which a model without one wants, by clear evidence: tokens that its vocabulary has for it (t may be
 * NULL), else words of its name or of its file's; NULL where nothing is evident. *why: what told, as in "by ...".
 * Static. */
const char *pp_template_evident(const struct pp_tokenizer *t, const char *name, const char *path, const char **why);
/* The same, and where nothing is evident "plain", with NULL in *why. */
const char *pp_template_instead(const struct pp_tokenizer *t, const char *name, const char *path, const char **why);

#endif
