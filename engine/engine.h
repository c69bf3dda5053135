/* engine.h - models, sequences, steps. Public header of libpippin.
 *
 *   struct pp_model    weights, hyperparameters, tokenizer. Immutable after opening: any thread.
 *   struct pp_engine   a model made runnable: lowered plan, thread pool, KV pages, counters.
 *   struct pp_seq      tokens and their KV pages: a conversation, a fork of one, a draft's view of one.
 *   struct pp_adapter  a LoRA adapter for a model. Immutable after loading.
 *   struct pp_gen      an answer in the making: prompt, sampler, draft, stop conditions.
 *
 * One thread owns an engine and everything made from it (sequences, generators), and calls all functions that take
 * them; only pp_cancel_request may come from elsewhere. */
#ifndef PP_ENGINE_ENGINE_H
#define PP_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/stats.h"

struct pp_imatrix;
struct pp_tokenizer;

/* done / total in any unit; for bars. */
typedef void pp_progress(void *user, uint64_t done, uint64_t total);

/* --- model --------------------------------------------------------------------------------------------- */

struct pp_model;

enum pp_kv_type {
    PP_KV_Q8 = 0,               /* rotated, a scale for what is rotated together; the default */
    PP_KV_F16,
    PP_KV_F32,
    PP_KV_FP8,                  /* E4M3 */
    PP_KV_Q4_0,                 /* rotated */
    PP_KV_Q8_0,                 /* rotated */
};
int pp_kv_type_by_name(const char *name); /* "q8", "q8_0", "f16", "f32", "fp8", "q4_0"; -1 if unknown. Any thread */
const char *pp_kv_type_name(enum pp_kv_type t); /* one of these; static */

/* How the vectors of a text's tokens become one, as the model's makers meant it. The numbers are those of GGUF's
 * pooling_type, plus 1. */
enum pp_pooling {
    PP_POOLING_UNKNOWN = 0,     /* the model does not say */
    PP_POOLING_NONE,            /* they stay as they are */
    PP_POOLING_MEAN,
    PP_POOLING_CLS,             /* the first token's */
    PP_POOLING_LAST,
    PP_POOLING_RANK,            /* it rates pairs of texts instead */
};

/* Its strings live as long as the model. */
struct pp_model_info {
    const char *path;          /* as given */
    const char *name;          /* general.name, or the file's base name; printable UTF-8 */
    const char *arch;          /* "llama" */
    const char *type_name;     /* "Q4_K_M" */
    const char *chat_template; /* Jinja source, or NULL */
    const char *tool_template; /* the one for conversations with tools, which may be the same */
    int64_t n_params;
    int64_t n_params_active;   /* those that a token needs: of a mixture of experts without the experts not chosen */
    int64_t n_expert, n_expert_used; /* 0: no mixture */
    uint64_t bytes;            /* of all tensors */
    int64_t n_ctx_train, n_vocab, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff;
    int64_t n_embd_out;        /* of what PP_OUT_HIDDEN gives: n_embd, but for encoders that make wider vectors */
    int64_t n_start;           /* vectors of its own that stand before every text: they are read like the tokens behind
                                  the vocabulary, n_vocab and so many from there on; 0: there are none */
    bool encoder;              /* it reads whole texts, and makes vectors of them, not tokens */
    enum pp_pooling pooling;
};

/* Maps and checks a model: every tensor it needs is there with the right shape and a type that can run. The weights are
 * read when an engine is made of it. path: a GGUF file, the first of several, or a folder as Hugging Face or MLX has
 * it. PP_ERR_NOT_FOUND, PP_ERR_IO; PP_ERR_FORMAT: it is damaged or incomplete; PP_ERR_UNSUPPORTED: of a family or a
 * kind that does not run, which the text names. Any thread. */
enum pp_code pp_model_open(const char *path, struct pp_model **out, struct pp_error *err);
/* The same; quant: NULL, or what the matrices of a folder are quantised to when an engine is made of it, "q4_k" for
 * example (convert.h, pp_quantize_name). imatrix: NULL, or the file of an importance matrix that weighs this.
 * PP_ERR_USAGE: there is no such type, it is a GGUF file, or an imatrix without a type. PP_ERR_MISMATCH: the imatrix is
 * another model's. */
enum pp_code pp_model_open_as(const char *path, const char *quant, const char *imatrix, struct pp_model **out,
                              struct pp_error *err);
void pp_model_close(struct pp_model *m); /* after all its engines and adapters are gone; NULL is fine */
const struct pp_model_info *pp_model_info(const struct pp_model *m);
const struct pp_tokenizer *pp_model_tokenizer(const struct pp_model *m); /* NULL: the file has no vocabulary */
/* PP_ERR_UNSUPPORTED: the model is an encoder, which writes nothing; the text says what it is for. */
enum pp_code pp_model_check_writes(const struct pp_model *m, struct pp_error *err);
/* How many positions a sequence has where nobody says: the training context, at most 16,384. */
int64_t pp_model_usual_ctx(const struct pp_model *m);
/* Bytes of KV pages that one conversation of n_ctx tokens holds: whole pages of 64 tokens, of layers with a window
 * those of three windows, which it holds while it can go back. */
uint64_t pp_model_kv_bytes(const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx);
/* SHA-256 over the model's content: what snapshots and adapters are tied to. Reads the whole file the first time (about
 * 1 s/GB), so call it where nobody waits; cache_dir (or NULL) keeps the answer by device, inode, size and mtime.
 * Thread-safe. */
enum pp_code pp_model_identity(const struct pp_model *m, const char *cache_dir, struct pp_sha256 *out,
                               struct pp_error *err);

/* --- engine -------------------------------------------------------------------------------------------- */

struct pp_engine;

/* What weights in F16 and BF16 are multiplied with; each choice is an arithmetic of its own, the same on all CPUs.
 * PP_ACT_F32: activations as they are. PP_ACT_PAIR: each as the sum of two bfloat16 numbers, good to 17 bits, which
 * pays where the CPU has AMX. PP_ACT_BF16: for BF16 weights rounded to one such number, which is faster still and costs
 * a little accuracy. PP_ACT_AUTO: pairs with AMX kernels, else float32. Other types compute as ever. */
enum pp_activations { PP_ACT_AUTO = 0, PP_ACT_F32, PP_ACT_PAIR, PP_ACT_BF16 };
int pp_activations_by_name(const char *name); /* "auto", "f32", "pair", "bf16"; -1 if unknown */

/* Rows of a batch where nothing else is said: as many as leave their activations in the second cache. Measured on two
 * cores of a Granite Rapids, prompts of 512 in passes of 192, 256 and 512 rows, tokens/s: Q4_0 with AVX-512 391, 380
 * and 355, with AMX 546, 551 and 551; F16 with AMX 303, 315 and 323. */
enum { PP_USUAL_ROWS = 256 };

struct pp_engine_options {
    int n_threads;              /* 0, and at most: one per core that this process may use */
    enum pp_kv_type kv_type;    /* an encoder, which keeps nothing, has F32 */
    enum pp_activations activations;
    int64_t n_ctx;              /* positions a sequence may have; 0: pp_model_usual_ctx */
    uint64_t kv_memory;         /* limit in bytes for KV pages; 0: a quarter of what is free, or allowed by ulimit -v */
    const char *kernels;        /* NULL: the best this CPU has; "scalar", "avx2", "avx512" force one */
    int max_rows;               /* rows of the largest batch; 0: PP_USUAL_ROWS, or for an encoder n_ctx if more */
    struct pp_engine *share_pool; /* use this engine's threads (it must outlive the new one), or NULL */
    const struct pp_cancel *cancel; /* stops the making of the engine, not what it does later; or NULL */
    const char *cache_dir;      /* packed weights are kept in its folder "layouts"; NULL: nowhere */
    uint64_t layout_quota;      /* bytes of all packed weights there; 0: a quarter of the free disk, at most 64 GiB */
    struct pp_imatrix *imatrix; /* counts what every step multiplies matrices with (convert.h), also of steps that
                                 * failed; must outlive the engine. NULL: nobody does */
};

enum { PP_LAYOUT_VERSION = 3 }; /* of packed weights; raise it with every change of engine/cpu/pack.h */
#define PP_LAYOUTS_OFF UINT64_MAX /* as a quota: nothing is read from the folder or written there */

/* PP_ERR_UNSUPPORTED: this CPU lacks the kernels asked for, or the model is more than the backend can run;
 * PP_ERR_FORMAT: a norm or a bias is no number; PP_ERR_NOMEM: it does not fit (fit.h, kv_memory); PP_ERR_CANCELLED.
 * Progress is in bytes of weights. No weights are read: steps look at what they need and pack it the first time, or
 * find it in the cache. With a cache_dir a thread of the engine goes ahead of them, and writes the cache. */
enum pp_code pp_engine_new(const struct pp_model *m, const struct pp_engine_options *opt, pp_progress *progress,
                           void *user, struct pp_engine **out, struct pp_error *err);
void pp_engine_free(struct pp_engine *e); /* after all its sequences; NULL is fine */
/* Packs all weights at once and waits until they are in the cache, if they are kept: for measurements, so that steps do
 * nothing else. PP_ERR_FORMAT: a weight is no number; PP_ERR_CANCELLED. */
enum pp_code pp_engine_settle(struct pp_engine *e, const struct pp_cancel *cancel, struct pp_error *err);
/* Has the system clear memory for a conversation whose pages take so many bytes, and returns when it has, or when that
 * is cancelled: a snapshot is restored much faster into memory that is ready. Only pages that were never used, and at
 * most half of what is left of them. Any thread, beside steps too, before pp_engine_free. */
void pp_engine_clear_ahead(const struct pp_engine *e, uint64_t bytes, const struct pp_cancel *cancel);
const struct pp_model *pp_engine_model(const struct pp_engine *e);
/* The engine's counters, which go on counting; those of memory and pages are as of this call. */
struct pp_stats *pp_engine_stats(struct pp_engine *e);
/* What became of the options: positions of a sequence, threads, rows of the largest batch, the type of keys and values,
 * and the kernels' name. */
int64_t pp_engine_n_ctx(const struct pp_engine *e);
int pp_engine_n_threads(const struct pp_engine *e);
int pp_engine_max_rows(const struct pp_engine *e);
enum pp_kv_type pp_engine_kv_type(const struct pp_engine *e);
const char *pp_engine_kernels(const struct pp_engine *e); /* "avx512"; "amx+pair", "amx+bf16" with such activations */

/* --- adapters ------------------------------------------------------------------------------------------ */

struct pp_adapter;

/* Of which of the model's matrices an adapter has one of its own in their place, and which of those is the model's with
 * its columns scaled (an IA3 of an input that other matrices read, too): a bit for each matrix, in the model's order;
 * what is beyond the last bit is left out. */
enum { PP_PLACE_WORDS = 64 };
struct pp_adapter_places {
    uint64_t own[PP_PLACE_WORDS], scaled[PP_PLACE_WORDS];
};

struct pp_adapter_info {
    const char *path;
    const char *name;      /* file or folder base name */
    int rank;              /* the largest in the file */
    float alpha;
    int n_targets;         /* projections it changes */
    uint64_t bytes;
    const char *targets;   /* "attn_q attn_k ffn_up": each kind of projection once */
    const char *kind;      /* "LoRA", "DoRA", "IA3", "AdaLoRA", "LoHa", "LoKr", "LN tuning", "tokens" */
    int n_invocation;      /* tokens that invoke it: it acts behind the last time they stand in a prompt; 0: always */
    const int32_t *invocation; /* [n_invocation] */
    bool idle;             /* it changes nothing, whatever its strength: it was never trained, for one */
    struct pp_adapter_places places;
};

/* Whether two adapters of one model cannot be on at once: pp_seq_set_adapters refuses them. Any thread. */
bool pp_adapter_places_conflict(const struct pp_adapter_places *a, const struct pp_adapter_places *b);

/* A folder of PEFT or MLX, or a GGUF adapter, to be used with this very struct pp_model.
 * Checked against it: PP_ERR_MISMATCH names the tensor and both shapes. The weights are copied: the file may go. For
 * a DoRA the model's weights are read, those that it changes, and multiplied by its A: seconds for large models. */
enum pp_code pp_adapter_load(const struct pp_model *m, const char *path, struct pp_adapter **out, struct pp_error *err);
/* The same without rounding: pp_adapter_load holds an adapter in Q8_0 beside quantised weights, in F16 beside others
 * and for models of 4 billion parameters or more. */
enum pp_code pp_adapter_load_exact(const struct pp_model *m, const char *path, struct pp_adapter **out,
                                   struct pp_error *err);
void pp_adapter_free(struct pp_adapter *a); /* after no sequence uses it, and before its model is closed */
const struct pp_adapter_info *pp_adapter_info(const struct pp_adapter *a);
bool pp_adapter_same(const struct pp_adapter *a, const struct pp_adapter *b); /* they change one model alike */
/* Whether it acts behind a prompt of these n tokens: what must be invoked does only if its invocation is among them. */
bool pp_adapter_acts_behind(const struct pp_adapter *a, const int32_t *tokens, int64_t n);

/* --- sequences ----------------------------------------------------------------------------------------- */

struct pp_seq;

enum { PP_MAX_ADAPTERS = 8 };
struct pp_adapter_use {
    const struct pp_adapter *adapter;
    float scale; /* strength: 1 is the adapter as it was trained, 0 the same as absent */
};

/* An empty one without adapters, for pp_seq_free (NULL is fine), which is before the engine's end. PP_ERR_NOMEM. */
enum pp_code pp_seq_new(struct pp_engine *e, struct pp_seq **out, struct pp_error *err);
void pp_seq_free(struct pp_seq *s);
/* A new sequence of the same engine with the first n tokens of s (all, if it has fewer) and its adapters. Shares its
 * pages: no KV is copied; the first of the two that writes into a page gets one of its own. PP_ERR_NOMEM. */
enum pp_code pp_seq_fork(struct pp_seq *s, int64_t n, struct pp_seq **out, struct pp_error *err);
/* Lets go of all tokens but the first n. Of models with windows, convolutions or states fewer may stay, back to a place
 * from which they can go on: pp_seq_len says how many. */
void pp_seq_truncate(struct pp_seq *s, int64_t n);
/* Takes the tokens from .. to - 1 out of the middle: what follows keeps its values and moves to the places before it,
 * its keys turned to them (RoPE), instead of being computed again. That is not what computing it again would give: the
 * values were made while what is gone was there. So pages from `from` on are never shared, found by others or saved.
 * PP_ERR_UNSUPPORTED: the model has a sliding window, which has let go of what would move, positions that it has
 * learned, or states, of which nothing can be taken out; or an adapter that is invoked is on. PP_ERR_USAGE: there are
 * no such tokens. PP_ERR_NOMEM: too few pages. On failure s is as before. */
enum pp_code pp_seq_cut(struct pp_seq *s, int64_t from, int64_t to, struct pp_error *err);
/* How many tokens from the first on have the values that they should have: all, but for pp_seq_cut. */
int64_t pp_seq_exact(const struct pp_seq *s);
int64_t pp_seq_len(const struct pp_seq *s);           /* tokens that are computed */
const int32_t *pp_seq_tokens(const struct pp_seq *s); /* [len]; -1 for a vector. Valid until s changes */
/* Which adapters rows of this sequence are computed with from now on. If the set differs from the one its pages were
 * made with, the pages are let go (len becomes 0): KV of one set is never read under another. PP_ERR_USAGE: more than
 * PP_MAX_ADAPTERS, or a strength that is no number; PP_ERR_MISMATCH: one was loaded for another model;
 * PP_ERR_UNSUPPORTED: two cannot be mixed, such as IA3s of one matrix's input that other matrices read, too, or the
 * backend cannot do what one changes. On failure s is as before. */
enum pp_code pp_seq_set_adapters(struct pp_seq *s, const struct pp_adapter_use *use, int n, struct pp_error *err);
bool pp_seq_uses(const struct pp_seq *s, const struct pp_adapter *a); /* it is one of them: it must not be freed */
/* Tells adapters that must be invoked where in s they act: from the last time on that their invocation stands in
 * prompt[0..n), nowhere without one. What s has computed otherwise is let go. Answers and snapshots do it with their
 * prompts; who makes steps of his own does it before the first one. */
void pp_seq_activate(struct pp_seq *s, const int32_t *prompt, int64_t n);
/* How many of these tokens need not be computed under these adapters, because their pages are in memory: whole ones of
 * sequences, living or gone, and the last ones of sequences whose adapters were changed. Looks, and changes nothing. */
int64_t pp_engine_at_hand(const struct pp_engine *e, const struct pp_adapter_use *use, int n_use,
                          const int32_t *tokens, int64_t n);
/* The same of one sequence, to the token: what it has in common with them, if it was computed under these adapters. */
int64_t pp_seq_at_hand(const struct pp_seq *s, const struct pp_adapter_use *use, int n_use, const int32_t *tokens,
                       int64_t n);

/* --- steps --------------------------------------------------------------------------------------------- */

enum pp_row_output { PP_OUT_NONE = 0, PP_OUT_LOGITS, PP_OUT_HIDDEN };

enum {
    PP_PARENT_PREVIOUS = -1,  /* continues the row before it in its sequence (or the committed tokens) */
    PP_PARENT_COMMITTED = -2, /* a root of a tree: continues the committed tokens */
};

/* One row of a forward pass. Rows of one sequence follow each other; each takes the next position of its sequence
 * unless it names a parent. */
struct pp_row {
    struct pp_seq *seq;
    int32_t token;              /* or -1: `vector` is the input */
    const float *vector;        /* [n_embd], or NULL */
    int32_t parent;             /* row of this batch that this one continues (trees, at most 64 rows), or PP_PARENT_* */
    enum pp_row_output out;
};

/* Computes a batch and, if all went well, appends its tokens and KV to their sequences (a tree's rows in their order in
 * the batch; keep a branch with pp_seq_keep). On any error, also PP_ERR_CANCELLED, the sequences are as before.
 * n <= pp_engine_max_rows. An encoder's sequences must be empty before, and its rows see each other.
 * PP_ERR_FORMAT: a weight is no number. PP_ERR_CONTEXT: a sequence would pass n_ctx. PP_ERR_NOMEM: no pages left.
 * PP_ERR_UNSUPPORTED: a tree for a model with states. PP_ERR_USAGE: rows that cannot be, such as a token that the
 * vocabulary does not have. */
enum pp_code pp_step(struct pp_engine *e, const struct pp_row *rows, int n, const struct pp_cancel *cancel,
                     struct pp_error *err);
/* Results of the last step: float [n_vocab] or [n_embd_out]; NULL if the row asked for none. Valid until the next
 * step. */
const float *pp_step_output(const struct pp_engine *e, int row);
/* After a step with a tree at the end of s: of the positions from `base` on, keeps those in keep[0..n) (ascending) and
 * drops the rest. PP_ERR_USAGE: they do not ascend, s does not have them, or a window has let go of them; then s is as
 * before. */
enum pp_code pp_seq_keep(struct pp_seq *s, int64_t base, const int32_t *keep, int n, struct pp_error *err);

/* --- sampling ------------------------------------------------------------------------------------------ */

enum { PP_MAX_LOGIT_BIAS = 64 };

/* The chain, in this order: repetition penalty (arXiv 1909.05858), frequency and presence penalties; logit bias; top-k;
 * top-p (arXiv 1904.09751); min-p (arXiv 2407.01082); temperature; and the choice: argmax over log p + Gumbel noise of
 * (seed, position, token), which is a draw from p. temp <= 0: the most likely token. */
struct pp_sampling {
    float temp;               /* 0.8 */
    int top_k;                /* 40; 0: off */
    float top_p;              /* 0.95; 1: off */
    float min_p;              /* 0.05; 0: off */
    float repeat_penalty;     /* 1: off */
    float frequency_penalty;  /* 0: off */
    float presence_penalty;   /* 0: off */
    int penalty_last_n;       /* 64: how many tokens back penalties look; 0: off; -1: all */
    uint64_t seed;
    int n_bias;
    struct { int32_t token; float bias; } bias[PP_MAX_LOGIT_BIAS]; /* -INFINITY forbids a token */
};
struct pp_sampling pp_sampling_default(void); /* seed 0: the caller sets one */
/* PP_ERR_USAGE: a bias is of a token that a vocabulary of so many does not have, and would do nothing. */
enum pp_code pp_sampling_check(const struct pp_sampling *s, int64_t n_vocab, struct pp_error *err);

/* --- answers ------------------------------------------------------------------------------------------- */

struct pp_gen;

/* Tokens guessed at most per pass: unless more or fewer are asked for, and whatever is asked for. */
enum { PP_DRAFT_MAX = 8, PP_MAX_GUESSES = 15 };
enum { PP_MAX_WRITTEN = 8 };

/* Guesses what follows tokens[0 .. n): at most `most`, into out; returns how many. For measurements. */
typedef int pp_draft_script(void *user, const int32_t *tokens, int64_t n, int32_t *out, int most);

struct pp_gen_options {
    struct pp_sampling sampling;
    int64_t max_tokens;          /* -1: until the model ends or the context is full */
    const char *const *stops;    /* stop texts; the answer ends before the first of them */
    int n_stops;
    bool ignore_end;             /* go on past end tokens */
    const int32_t *written;      /* [n_written] control tokens that appear in the text, behind PP_CONTROL_MARK, and end
                                  * nothing (reasoning.h); at most PP_MAX_WRITTEN */
    int n_written;
    struct pp_seq *draft;        /* a sequence of a draft engine with an equal tokenizer, or NULL; its own adapters */
    bool lookup;                 /* guess what followed the same tokens before; with or without a draft */
    int draft_max;               /* tokens guessed at most per pass, up to PP_MAX_GUESSES; 0: PP_DRAFT_MAX */
    bool draft_always;           /* so many in every pass; else as many as pay, none included */
    float draft_p_min;           /* nothing is tried that stands with a smaller probability; 0: what pays */
    int draft_siblings;          /* 1: the draft's second choices are tried, too: a tree */
    pp_draft_script *draft_script; /* or NULL */
    void *draft_script_user;
    const int32_t *say;          /* [n_say] tokens that are taken in the place of those chosen, as if the model had
                                  * chosen them: for measurements; must outlive the answer */
    int64_t n_say;
    pp_progress *progress;       /* of the prompt, in tokens; or NULL */
    void *user;
};

enum pp_finish { PP_FINISH_NONE = 0, PP_FINISH_END, PP_FINISH_LENGTH, PP_FINISH_STOP, PP_FINISH_CONTEXT };

/* Prepares seq to continue `prompt` [n] (n >= 1): keeps the common prefix, and goes on with pages that another sequence
 * of the engine, living or gone, has computed for the same tokens under the same adapters. The rest is computed by
 * pp_gen_step, with that of other answers. Strings in opt are copied; seq and opt->draft must outlive the answer and
 * belong to no other. PP_ERR_USAGE: an empty prompt; PP_ERR_UNSUPPORTED: an encoder; PP_ERR_CONTEXT: the prompt leaves
 * no room for an answer; PP_ERR_NOMEM. */
enum pp_code pp_gen_begin(struct pp_seq *seq, const int32_t *prompt, int64_t n, const struct pp_gen_options *opt,
                          struct pp_gen **out, struct pp_error *err);

enum { PP_MAX_TURNS = 16 };

/* What a pass brings one answer. */
struct pp_gen_turn {
    struct pp_gen *gen;
    struct pp_buf *text;    /* whatever may be shown now is appended: whole UTF-8 characters, nothing that could still
                             * become a stop text */
    struct pp_buf *guessed; /* NULL, or a byte for each byte of that text: 1 where its token had been guessed, else 0 */
    int n_tokens;           /* out: how many tokens were chosen */
    enum pp_finish finish;  /* out */
    enum pp_code code;      /* out: how it went for this answer alone. PP_ERR_NOMEM: asking again goes on */
    struct pp_error err;
};

/* One forward pass of the target for up to PP_MAX_TURNS answers of one engine, the most urgent first. Who has read the
 * prompt gets a token, or several if what was guessed of the answer is right; prompts are read in chunks of about
 * 100 ms, or if nobody waits meanwhile half a second, at most two (prompt_chunks.h); the first in line gets most.
 * Prompts that begin alike are computed once. Each answer is the same, token for token, as it would be alone.
 * PP_ERR_CANCELLED: nothing was computed; asking again, with all or some of the answers, goes on there. */
enum pp_code pp_gen_step(struct pp_gen_turn *turns, int n, const struct pp_cancel *cancel, struct pp_error *err);
bool pp_gen_computing_prompt(const struct pp_gen *g); /* no token was chosen yet */
/* Lets go of the answer's pages, so that others can go on; its next steps compute them again. */
void pp_gen_suspend(struct pp_gen *g);
/* What this answer alone has cost: tokens, rows, the time that has passed in its passes. */
struct pp_stats pp_gen_stats(const struct pp_gen *g);

/* For one answer at a time: pp_gen_begin, and all of the prompt. Cancelled: what was computed stays in the sequence, so
 * that asking again goes on there. */
enum pp_code pp_gen_start(struct pp_seq *seq, const int32_t *prompt, int64_t n, const struct pp_gen_options *opt,
                          const struct pp_cancel *cancel, struct pp_gen **out, struct pp_error *err);
/* pp_gen_step for one answer; adds to *n_tokens. */
enum pp_code pp_gen_next(struct pp_gen *g, const struct pp_cancel *cancel, struct pp_buf *text, int *n_tokens,
                         enum pp_finish *finish, struct pp_error *err);
/* What was held back (an incomplete character or stop text) when an answer is cut short; guessed: as in a turn. */
void pp_gen_flush(struct pp_gen *g, struct pp_buf *text, struct pp_buf *guessed);
/* All tokens chosen so far, [*n], the end token included if there was one. Valid until the next step of g. */
const int32_t *pp_gen_tokens(const struct pp_gen *g, int64_t *n);
void pp_gen_free(struct pp_gen *g); /* before its sequence; NULL is fine */

/* --- snapshots ----------------------------------------------------------------------------------------- */

/* Everything a sequence's KV depends on besides its tokens: model identity, RoPE, KV type and rotation, adapters with
 * scales, id of the arithmetic. As text, one `name=value` a line, and its SHA-256. */
enum pp_code pp_seq_key(const struct pp_seq *s, const struct pp_sha256 *identity, struct pp_buf *text,
                        struct pp_error *err);

/* What is saved of a conversation lies in two files, BASE.pack and BASE.manifest (formats: pippin-formats(5)): the KV
 * pages of its branches, each page once, and what they are. A snapshot is a cache: it may vanish, be old or lie, and is
 * checked. `owner` names the conversation (at most 63 bytes): files of another one are not used.
 *
 * Saving is done in steps by two threads, so that nobody who computes waits for a disk. */
struct pp_save;

struct pp_save_counts {
    uint64_t pages_written, page_bytes_written; /* new ones */
    uint64_t pages_kept;       /* of this branch, found in the pack */
    uint64_t pages_moved;      /* to make the pack shorter, more than half of which was not used */
    uint64_t manifest_bytes;
    uint32_t branches;         /* in the manifest now */
};

/* Holds everything of s as it is: no KV is copied. The engine's thread. PP_ERR_USAGE: s is empty;
 * PP_ERR_UNSUPPORTED: it has inputs that are no tokens. */
enum pp_code pp_save_new(struct pp_seq *s, const struct pp_sha256 *identity, const char *base, const char *owner,
                         struct pp_save **out, struct pp_error *err);
/* Looks at what is there, once, and decides what is to be written. *bytes: what both files will take. Any one thread,
 * the same that calls pp_save_write. The folder must exist. Branches unused for longest go until it is at most `limit`;
 * PP_ERR_NOMEM: even this branch alone takes more. */
enum pp_code pp_save_plan(struct pp_save *j, uint64_t limit, uint64_t *bytes, struct pp_error *err);
/* Writes about `budget` bytes (at least a page) and says in *done whether that was all, after a failure too. Until the
 * last call has ended the files say what they said before. PP_ERR_IO: a full disk, say; PP_ERR_CANCELLED. */
enum pp_code pp_save_write(struct pp_save *j, uint64_t budget, const struct pp_cancel *cancel, bool *done,
                           struct pp_error *err);
const struct pp_save_counts *pp_save_counts(const struct pp_save *j); /* what was done so far; the writer's thread */
void pp_save_free(struct pp_save *j); /* the engine's thread; before the engine goes. NULL is fine */

/* Removes both files (and what version 1 wrote). That there are none is no error. Any thread. */
enum pp_code pp_snapshot_remove(const char *base, struct pp_error *err);

/* Makes s, whose adapters are set, begin as far as possible like prompt[0..n): keeps what it has in common with it,
 * goes on with pages that the engine has, and reads the rest from whichever branch follows the prompt for longest, on
 * all threads.
 * Nothing is used before key, tokens and checksums agree. If they do not, PP_ERR_MISMATCH or PP_ERR_FORMAT tell in one
 * sentence why not, nothing is read, and a damaged manifest is removed. PP_ERR_NOT_FOUND: nothing was saved;
 * PP_ERR_NOMEM: too few free pages. stats.restored_tokens counts what was read. */
enum pp_code pp_snapshot_restore(struct pp_seq *s, const struct pp_sha256 *identity, const char *base,
                                 const char *owner, const int32_t *prompt, int64_t n, const struct pp_cancel *cancel,
                                 struct pp_error *err);

#endif
