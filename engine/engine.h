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

struct pp_grammar_use;
struct pp_imatrix;
struct pp_tokenizer;

/* For progress bars: done of total, in any unit. Called on the thread of the function that it was given to. */
typedef void pp_progress(void *user, uint64_t done, uint64_t total);

/* --- model --------------------------------------------------------------------------------------------- */

struct pp_model;

enum pp_kv_type {
    PP_KV_Q8 = 0,               /* 8 bits, Hadamard-rotated, one scale per rotated block (kv.h); the default */
    PP_KV_F16,
    PP_KV_F32,
    PP_KV_FP8,                  /* E4M3, one scale per position */
    PP_KV_Q4_0,                 /* rotated, a scale per 32 values */
    PP_KV_Q8_0,                 /* rotated, a scale per 32 values */
};
int pp_kv_type_by_name(const char *name); /* "q8", "q8_0", "f16", "f32", "fp8", "q4_0"; -1 if unknown. Any thread */
const char *pp_kv_type_name(enum pp_kv_type t); /* one of these; static */

/* How the hidden states of a text's tokens are pooled into one embedding, as the model's metadata say. The numbers are
 * those of GGUF's pooling_type, plus 1. */
enum pp_pooling {
    PP_POOLING_UNKNOWN = 0,     /* the model does not say */
    PP_POOLING_NONE,            /* one vector per token */
    PP_POOLING_MEAN,
    PP_POOLING_CLS,             /* the first token's */
    PP_POOLING_LAST,
    PP_POOLING_RANK,            /* a reranker: it scores pairs of texts instead */
};

/* Owned by the model, strings included. */
struct pp_model_info {
    const char *path;          /* as given */
    const char *name;          /* general.name, or the file's base name; printable UTF-8 */
    const char *arch;          /* "llama" */
    const char *type_name;     /* "Q4_K_M" */
    const char *chat_template; /* Jinja source, or NULL */
    const char *tool_template; /* the one for conversations with tools, which may be the same */
    int64_t n_params;
    int64_t n_params_active;   /* used for one token: in a mixture of experts only the chosen experts count */
    int64_t n_expert, n_expert_used; /* 0: not a mixture of experts */
    uint64_t bytes;            /* of all tensors */
    int64_t n_ctx_train, n_vocab, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff;
    int64_t n_embd_out;        /* width of PP_OUT_HIDDEN: n_embd, except for encoders with a wider output */
    int64_t n_meta_tokens;     /* learned vectors that must precede every text, addressed as the token ids n_vocab ..
                                  n_vocab + n_meta_tokens - 1; 0: none */
    bool encoder;              /* embeds whole texts; generates nothing */
    enum pp_pooling pooling;
};

/* Maps a model and checks that every tensor it needs is there, with the right shape and a type that can run; weights
 * are not read yet. path: a GGUF file (of a split one the first), or a Hugging Face or MLX folder. The caller owns *out
 * (pp_model_close). PP_ERR_NOT_FOUND, PP_ERR_IO; PP_ERR_FORMAT: damaged or incomplete; PP_ERR_UNSUPPORTED: a family or
 * feature that cannot run, which the text names. Any thread. */
enum pp_code pp_model_open(const char *path, struct pp_model **out, struct pp_error *err);
/* The same, quantising a folder's matrices as an engine packs them. quant: the type, such as "q4_k" (convert.h,
 * pp_quantize_name), or NULL; imatrix: the file of an importance matrix to weigh errors by, or NULL. PP_ERR_USAGE: no
 * such type, path is a GGUF file, or an imatrix without a type. PP_ERR_MISMATCH: the imatrix is another model's. */
enum pp_code pp_model_open_as(const char *path, const char *quant, const char *imatrix, struct pp_model **out,
                              struct pp_error *err);
void pp_model_close(struct pp_model *m); /* after all its engines and adapters are gone; NULL is fine */
const struct pp_model_info *pp_model_info(const struct pp_model *m);
const struct pp_tokenizer *pp_model_tokenizer(const struct pp_model *m); /* NULL: the file has no vocabulary */
/* PP_ERR_UNSUPPORTED: the model is an encoder and cannot generate; the text says what it is for. */
enum pp_code pp_model_check_writes(const struct pp_model *m, struct pp_error *err);
/* The default context length, in positions: that of training, at most 16,384. */
int64_t pp_model_usual_ctx(const struct pp_model *m);
/* Bytes of KV pages that one conversation of n_ctx tokens holds: whole pages of 64 tokens; for layers with a sliding
 * window, three windows' worth, which is what it keeps to be able to go back. */
uint64_t pp_model_kv_bytes(const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx);
/* SHA-256 over the model's content, which snapshots and adapters are tied to. Reads the whole file the first time
 * (about 1 s/GB), so call it off the interactive path; the result is cached in cache_dir (unless NULL) by device,
 * inode, size and mtime. Thread-safe. */
enum pp_code pp_model_identity(const struct pp_model *m, const char *cache_dir, struct pp_sha256 *out,
                               struct pp_error *err);

/* --- engine -------------------------------------------------------------------------------------------- */

struct pp_engine;

/* The activations that F16 and BF16 weights are multiplied by. Each choice defines its results to the bit, on every
 * CPU. PP_ACT_F32: float32. PP_ACT_PAIR: each activation as the sum of two bfloat16 numbers, good to 17 bits, which
 * pays where the CPU has AMX. PP_ACT_BF16: for BF16 weights rounded to a single bfloat16, which is faster still and
 * costs a little accuracy. PP_ACT_AUTO: pairs with AMX kernels, else float32. Other weight types are not affected. */
enum pp_activations { PP_ACT_AUTO = 0, PP_ACT_F32, PP_ACT_PAIR, PP_ACT_BF16 };
int pp_activations_by_name(const char *name); /* "auto", "f32", "pair", "bf16"; -1 if unknown */

/* The default of the largest batch: as many rows as keep their activations in the L2 cache. Measured on two cores of a
 * Granite Rapids, prompts of 512 in passes of 192, 256 and 512 rows, tokens/s: Q4_0 with AVX-512 391, 380 and 355, with
 * AMX 546, 551 and 551; F16 with AMX 303, 315 and 323. */
enum { PP_USUAL_ROWS = 256 };

struct pp_engine_options {
    int n_threads;              /* 0, the default and the maximum: one per core that this process may use */
    enum pp_kv_type kv_type;    /* ignored for an encoder, which keeps no cache: F32 */
    enum pp_activations activations;
    int64_t n_ctx;              /* positions a sequence may have; 0: pp_model_usual_ctx */
    uint64_t kv_memory;         /* limit in bytes for KV pages; 0: a quarter of what is free, or allowed by ulimit -v */
    const char *kernels;        /* NULL: the best this CPU has; "scalar", "avx2", "avx512" force one */
    int max_rows;               /* rows of the largest batch; 0: PP_USUAL_ROWS, or for an encoder n_ctx if more */
    struct pp_engine *share_pool; /* use this engine's threads (it must outlive the new one), or NULL */
    const struct pp_cancel *cancel; /* of pp_engine_new only; or NULL */
    const char *cache_dir;      /* packed weights are kept in its folder "layouts"; NULL: nowhere */
    uint64_t layout_quota;      /* bytes of all packed weights there; 0: a quarter of the free disk, at most 64 GiB */
    struct pp_imatrix *imatrix; /* accumulates the inputs of every matrix in every step, failed ones included
                                 * (convert.h); must outlive the engine. NULL: none */
};

enum { PP_LAYOUT_VERSION = 3 }; /* of packed weights; raise it with every change of engine/cpu/pack.h */
#define PP_LAYOUTS_OFF UINT64_MAX /* as a quota: nothing is read from the folder or written there */

/* Lowers the model's plan, starts the threads and reserves memory for the KV pages. m must outlive the engine; the
 * caller owns *out (pp_engine_free). Matrices are not read yet: the first step that needs one packs it, or maps it from
 * the cache. With a cache_dir a background thread packs ahead of the steps and writes the cache. Progress is in bytes
 * of weights. PP_ERR_UNSUPPORTED: this CPU lacks the kernels asked for, or the backend cannot run the model;
 * PP_ERR_FORMAT: a norm or a bias holds NaN or overflows; PP_ERR_NOMEM: it does not fit (fit.h, kv_memory);
 * PP_ERR_CANCELLED. */
enum pp_code pp_engine_new(const struct pp_model *m, const struct pp_engine_options *opt, pp_progress *progress,
                           void *user, struct pp_engine **out, struct pp_error *err);
void pp_engine_free(struct pp_engine *e); /* after all its sequences; NULL is fine */
/* Packs all weights and waits until they are in the cache, if there is one, so that the steps of a measurement do
 * nothing else. PP_ERR_FORMAT: a weight is NaN or overflows; PP_ERR_CANCELLED. */
enum pp_code pp_engine_settle(struct pp_engine *e, const struct pp_cancel *cancel, struct pp_error *err);
/* Faults in memory for a conversation whose pages take that many bytes; returns when done or cancelled. A snapshot is
 * restored much faster into memory that is already mapped. Touches only pages that were never used, and at most half of
 * those left. Any thread, also during steps, before pp_engine_free. */
void pp_engine_prefault(const struct pp_engine *e, uint64_t bytes, const struct pp_cancel *cancel);
const struct pp_model *pp_engine_model(const struct pp_engine *e);
/* The engine's live counters; those of memory and pages are as of this call. */
struct pp_stats *pp_engine_stats(struct pp_engine *e);
/* The options in effect, defaults resolved. */
int64_t pp_engine_n_ctx(const struct pp_engine *e);
int pp_engine_n_threads(const struct pp_engine *e);
int pp_engine_max_rows(const struct pp_engine *e);
enum pp_kv_type pp_engine_kv_type(const struct pp_engine *e);
const char *pp_engine_kernels(const struct pp_engine *e); /* "avx512"; "amx+pair", "amx+bf16" with such activations */

/* --- adapters ------------------------------------------------------------------------------------------ */

struct pp_adapter;

/* Which of the model's matrices an adapter replaces by its own, and which of those are the model's with scaled columns
 * (an IA3 on an input that other matrices read, too): a bit per matrix, in the model's order. Matrices beyond the last
 * bit are left out. */
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
    const char *kind;      /* "LoRA", "DoRA", "IA3", "AdaLoRA", "LoHa", "LoKr", "LN tuning", "tokens"; static */
    const char *base;      /* the model that it was made for, as its file names it: untrusted; "" if it does not */
    int n_invocation;      /* tokens that switch it on, from their last occurrence in a prompt; 0: always on */
    const int32_t *invocation; /* [n_invocation] */
    bool idle;             /* changes nothing at any strength: it was never trained, for instance */
    float assumed_scale;   /* the factor of B A that is assumed because the file does not say it; else 0 */
    struct pp_adapter_places places;
};

/* What to tell about assumed_scale, a format for it as a double. */
#define PP_SCALE_ASSUMED                                                                                               \
    "its scale is not stored, so MLX's default is assumed: %g; if it was trained with another, write that into its "   \
    "folder as adapter_config.json: {\"lora_parameters\": {\"scale\": ...}}"
/* Whether two adapters of one model cannot be on at once: pp_seq_set_adapters refuses them. Any thread. */
bool pp_adapter_places_conflict(const struct pp_adapter_places *a, const struct pp_adapter_places *b);

/* Loads a PEFT or MLX folder, or a GGUF adapter, for use with this very struct pp_model and checks it against the
 * model: PP_ERR_MISMATCH names the tensor and both shapes. The caller owns *out (pp_adapter_free). The weights are
 * copied, so the file may go. A DoRA needs the norms of the merged weights: that reads all matrices it changes, seconds
 * for large models. Any thread. */
enum pp_code pp_adapter_load(const struct pp_model *m, const char *path, struct pp_adapter **out, struct pp_error *err);
/* The same without rounding: pp_adapter_load holds an adapter in Q8_0 with quantised weights, in F16 with others and
 * for models of 4 billion parameters or more. */
enum pp_code pp_adapter_load_exact(const struct pp_model *m, const char *path, struct pp_adapter **out,
                                   struct pp_error *err);
void pp_adapter_free(struct pp_adapter *a); /* once no sequence uses it, and before its model is closed */
const struct pp_adapter_info *pp_adapter_info(const struct pp_adapter *a); /* owned by the adapter */
bool pp_adapter_same(const struct pp_adapter *a, const struct pp_adapter *b); /* equal in effect on the same model */
/* Whether it acts after a prompt of these n tokens: one with an invocation only if the prompt contains it. */
bool pp_adapter_acts_after(const struct pp_adapter *a, const int32_t *tokens, int64_t n);

/* --- sequences ----------------------------------------------------------------------------------------- */

struct pp_seq;

enum { PP_MAX_ADAPTERS = 8 };
struct pp_adapter_use {
    const struct pp_adapter *adapter;
    float scale; /* strength: 1 is the adapter as it was trained, 0 the same as absent */
};

/* An empty sequence without adapters. The caller frees it before the engine. PP_ERR_NOMEM. */
enum pp_code pp_seq_new(struct pp_engine *e, struct pp_seq **out, struct pp_error *err);
void pp_seq_free(struct pp_seq *s); /* NULL is fine */
/* A new sequence of the same engine with the first n tokens of s (all, if it has fewer) and its adapters. Pages are
 * shared copy-on-write: no KV is copied until one of the two writes into a shared page. PP_ERR_NOMEM. */
enum pp_code pp_seq_fork(struct pp_seq *s, int64_t n, struct pp_seq **out, struct pp_error *err);
/* Drops all tokens but the first n. Models with sliding windows, convolutions or recurrent states may have to go back
 * further, to a place from which they can continue: pp_seq_len says how many tokens are left. */
void pp_seq_truncate(struct pp_seq *s, int64_t n);
/* Removes tokens from .. to - 1 and shifts what follows down, its keys re-rotated (RoPE) to the new positions, instead
 * of recomputing it. The result is approximate: those values were computed while the removed tokens were visible. So
 * pages from `from` on are never shared, found by others or saved. PP_ERR_UNSUPPORTED: the model has a sliding window
 * (pages that would move are gone), learned positions or recurrent states; or an adapter with an invocation is on.
 * PP_ERR_USAGE: there are no such tokens. PP_ERR_NOMEM: too few pages. On failure s is as before. */
enum pp_code pp_seq_cut(struct pp_seq *s, int64_t from, int64_t to, struct pp_error *err);
/* How many tokens, counted from the first, have exact values: all of them, unless pp_seq_cut was used. */
int64_t pp_seq_exact(const struct pp_seq *s);
int64_t pp_seq_len(const struct pp_seq *s);           /* tokens that are computed */
const int32_t *pp_seq_tokens(const struct pp_seq *s); /* [len]; -1 for a vector. Valid until s changes */
/* Sets the adapters that later rows of s are computed with. If the set differs from that of its pages, these are
 * dropped (len becomes 0): KV of one set is never read under another. The adapters must outlive their use by s.
 * PP_ERR_USAGE: more than PP_MAX_ADAPTERS, or a strength that is NaN or infinite; PP_ERR_MISMATCH: one was loaded for
 * another model; PP_ERR_UNSUPPORTED: two cannot be mixed (such as IA3s on one matrix's input that other matrices read,
 * too), or the backend cannot do what one changes. On failure s is as before. */
enum pp_code pp_seq_set_adapters(struct pp_seq *s, const struct pp_adapter_use *use, int n, struct pp_error *err);
bool pp_seq_uses(const struct pp_seq *s, const struct pp_adapter *a); /* while it does, a must not be freed */
/* Tells adapters with an invocation where in s they act: from the last occurrence of it in prompt[0..n) on, or nowhere.
 * Drops what s has computed otherwise. pp_gen_begin and pp_snapshot_restore do this; callers of pp_step must do it
 * before their first step. */
void pp_seq_activate(struct pp_seq *s, const int32_t *prompt, int64_t n);
/* How many of these tokens need not be computed under these adapters because their pages are in memory: whole pages of
 * any sequence, living or freed, and the partial last pages of sequences whose adapters were changed. Changes
 * nothing. */
int64_t pp_engine_cached_tokens(const struct pp_engine *e, const struct pp_adapter_use *use, int n_use,
                                const int32_t *tokens, int64_t n);
/* The same for one sequence, to the token: the common prefix of s and these tokens, if s was computed with these
 * adapters. */
int64_t pp_seq_cached_tokens(const struct pp_seq *s, const struct pp_adapter_use *use, int n_use, const int32_t *tokens,
                             int64_t n);

/* --- steps --------------------------------------------------------------------------------------------- */

enum pp_row_output { PP_OUT_NONE = 0, PP_OUT_LOGITS, PP_OUT_HIDDEN };

enum {
    PP_PARENT_PREVIOUS = -1,  /* continues the row before it in its sequence (or the committed tokens) */
    PP_PARENT_COMMITTED = -2, /* a root of a tree: continues the committed tokens */
};

/* One row of a forward pass. The rows of a sequence come in order; each takes the next position of its sequence unless
 * it names a parent. */
struct pp_row {
    struct pp_seq *seq;
    int32_t token;              /* or -1: `vector` is the input */
    const float *vector;        /* [n_embd], or NULL */
    int32_t parent;             /* row of this batch that this one continues (trees, at most 64 rows), or PP_PARENT_* */
    enum pp_row_output out;
};

/* Computes rows[0..n), n <= pp_engine_max_rows, and on success appends their tokens and KV to their sequences (a tree's
 * rows in batch order; keep a branch with pp_seq_keep). On any error, also PP_ERR_CANCELLED, the sequences are as
 * before. An encoder's sequences must be empty before, and their rows see each other.
 * PP_ERR_FORMAT: a weight is NaN or overflows. PP_ERR_CONTEXT: a sequence would exceed n_ctx. PP_ERR_NOMEM: no pages
 * left. PP_ERR_UNSUPPORTED: a tree for a model with recurrent states. PP_ERR_USAGE: invalid rows, such as a token
 * outside the vocabulary. */
enum pp_code pp_step(struct pp_engine *e, const struct pp_row *rows, int n, const struct pp_cancel *cancel,
                     struct pp_error *err);
/* The output of a row of the last step: float [n_vocab] or [n_embd_out]; NULL if it asked for none. Valid until the
 * next step. */
const float *pp_step_output(const struct pp_engine *e, int row);
/* After a step with a tree at the end of s: of the positions from `base` on, keeps those in keep[0..n) (ascending) and
 * drops the rest. PP_ERR_USAGE: they do not ascend, s does not have them, or they have slid out of a window; then s is
 * as before. */
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
/* PP_ERR_USAGE: a bias names a token outside a vocabulary of n_vocab, and would have no effect. */
enum pp_code pp_sampling_check(const struct pp_sampling *s, int64_t n_vocab, struct pp_error *err);

/* --- answers ------------------------------------------------------------------------------------------- */

struct pp_gen;

/* Drafted tokens per pass: the default maximum, and the limit of what may be asked for. */
enum { PP_DRAFT_MAX_DEFAULT = 8, PP_DRAFT_MAX_LIMIT = 15 };
enum { PP_MAX_WRITTEN = 8 };

/* Drafts what follows tokens[0 .. n): at most `most` tokens, into out; returns how many. For measurements. */
typedef int pp_draft_script(void *user, const int32_t *tokens, int64_t n, int32_t *out, int most);

struct pp_gen_options {
    struct pp_sampling sampling;
    int64_t max_tokens;          /* -1: until the model ends or the context is full */
    const char *const *stops;    /* stop strings; the answer ends before the first that appears */
    int n_stops;
    bool ignore_end;             /* go on past end-of-text tokens */
    const int32_t *written;      /* [n_written] control tokens that are written to the text, after PP_CONTROL_MARK, and
                                  * do not end the answer (reasoning.h); at most PP_MAX_WRITTEN */
    int n_written;
    const struct pp_grammar_use *grammar; /* what the answer must match (grammar.h); or NULL */
    struct pp_seq *draft;        /* a sequence of a draft model's engine, with its own adapters; or NULL */
    bool lookup;                 /* prompt lookup: drafts what followed the same tokens before, also next to a model */
    int draft_max;               /* drafted tokens per pass, at most PP_DRAFT_MAX_LIMIT; 0: PP_DRAFT_MAX_DEFAULT */
    bool draft_always;           /* always draft that many; else as many as pay off, possibly none */
    float draft_p_min;           /* draft tokens less likely than this to be accepted get no row; 0: whatever pays */
    int draft_siblings;          /* 1: the draft model's second choices are drafted, too: a tree */
    pp_draft_script *draft_script; /* or NULL */
    void *draft_script_user;
    const int32_t *forced;       /* [n_forced] tokens forced in place of the sampled ones, as if the model had chosen
                                  * them: for measurements; must outlive the answer */
    int64_t n_forced;
    pp_progress *progress;       /* of the prompt, in tokens; or NULL */
    void *user;
};

enum pp_finish { PP_FINISH_NONE = 0, PP_FINISH_END, PP_FINISH_LENGTH, PP_FINISH_STOP, PP_FINISH_CONTEXT };

/* Prepares seq to continue `prompt` [n] (n >= 1): keeps their common prefix, then reuses pages that any sequence of the
 * engine, living or freed, has computed for the same tokens under the same adapters. The rest is computed by
 * pp_gen_step, batched with other answers. Strings in opt are copied; seq and opt->draft must outlive the answer and
 * serve no other. PP_ERR_USAGE: an empty prompt; PP_ERR_UNSUPPORTED: an encoder; PP_ERR_CONTEXT: the prompt leaves no
 * room for an answer; PP_ERR_NOMEM; or the grammar does not fit the model (PP_ERR_USAGE). */
enum pp_code pp_gen_begin(struct pp_seq *seq, const int32_t *prompt, int64_t n, const struct pp_gen_options *opt,
                          struct pp_gen **out, struct pp_error *err);

enum { PP_MAX_GEN_ITEMS = 16 };

/* One answer's part in a pass. */
struct pp_gen_item {
    struct pp_gen *gen;
    struct pp_buf *text;    /* text that may be shown now is appended: whole UTF-8 characters, nothing that could still
                             * become a stop string */
    struct pp_buf *drafted; /* NULL, or gets a byte per byte of that text: 1 where its token was drafted, else 0 */
    int n_tokens;           /* out: how many tokens were chosen */
    enum pp_finish finish;  /* out */
    enum pp_code code;      /* out: how it went for this answer alone. PP_ERR_NOMEM: may be retried */
    struct pp_error err;
};

/* One forward pass of the target model for up to PP_MAX_GEN_ITEMS answers of one engine, the most urgent first. An
 * answer in decode gets a token, or several if drafted ones are accepted; prompts are prefilled in chunks of about
 * 100 ms, or half a second if nothing else waits, at most two per pass (prompt_chunks.h), most of it for the first in
 * line. Common prefixes of prompts are computed once. Each answer is the same, token for token, as it would be alone.
 * PP_ERR_CANCELLED: nothing was computed; a later call, with any of the answers, resumes there. */
enum pp_code pp_gen_step(struct pp_gen_item *items, int n, const struct pp_cancel *cancel, struct pp_error *err);
bool pp_gen_computing_prompt(const struct pp_gen *g); /* no token was chosen yet */
/* Releases the answer's pages so that others can proceed; its next steps compute them again. */
void pp_gen_suspend(struct pp_gen *g);
/* This answer's own counters: its tokens and rows, and the elapsed time of the passes that it took part in. */
struct pp_stats pp_gen_stats(const struct pp_gen *g);

/* For one answer at a time: pp_gen_begin, and prefill of the whole prompt. If cancelled, what was computed stays in the
 * sequence, so that a retry resumes there. */
enum pp_code pp_gen_start(struct pp_seq *seq, const int32_t *prompt, int64_t n, const struct pp_gen_options *opt,
                          const struct pp_cancel *cancel, struct pp_gen **out, struct pp_error *err);
/* pp_gen_step for one answer; adds to *n_tokens. */
enum pp_code pp_gen_next(struct pp_gen *g, const struct pp_cancel *cancel, struct pp_buf *text, int *n_tokens,
                         enum pp_finish *finish, struct pp_error *err);
/* Appends what was held back (an incomplete character or stop string), for an answer that is cut short; drafted: as in
 * struct pp_gen_item. */
void pp_gen_flush(struct pp_gen *g, struct pp_buf *text, struct pp_buf *drafted);
/* All tokens chosen so far, [*n], the end token included if there was one. Valid until the next step of g. */
const int32_t *pp_gen_tokens(const struct pp_gen *g, int64_t *n);
void pp_gen_free(struct pp_gen *g); /* before its sequence; NULL is fine */

/* --- snapshots ----------------------------------------------------------------------------------------- */

/* The cache key of s: everything its KV depends on besides its tokens, that is, model identity, RoPE, KV type and
 * rotation, adapters with scales, and the id of the arithmetic. Appended to text as lines of `name=value`.
 * PP_ERR_NOMEM. */
enum pp_code pp_seq_key(const struct pp_seq *s, const struct pp_sha256 *identity, struct pp_buf *text,
                        struct pp_error *err);

/* A conversation's snapshot is two files (formats: pippin-formats(5)): BASE.pack with the KV pages of its branches,
 * each page once, and BASE.manifest, which describes them. A snapshot is a cache: it may vanish, be stale or corrupt,
 * and is verified before use. `owner` names the conversation (at most 63 bytes): files of another one are not used.
 *
 * Saving is split between two threads, so that computing never waits for the disk. */
struct pp_save;

struct pp_save_counts {
    uint64_t pages_written, page_bytes_written; /* new ones */
    uint64_t pages_kept;       /* of this branch, found in the pack */
    uint64_t pages_moved;      /* to compact a pack of which less than half was in use */
    uint64_t manifest_bytes;
    uint32_t branches;         /* in the manifest now */
};

/* Takes references to the pages of s as they are now; no KV is copied. The engine's thread. PP_ERR_USAGE: s is empty;
 * PP_ERR_UNSUPPORTED: it has vectors among its inputs. */
enum pp_code pp_save_new(struct pp_seq *s, const struct pp_sha256 *identity, const char *base, const char *owner,
                         struct pp_save **out, struct pp_error *err);
/* Reads the files that are there and decides what to write; called once, on any one thread, the same that calls
 * pp_save_write. *bytes: what both files will take. The folder must exist. The least recently used branches are dropped
 * until that is at most `limit`; PP_ERR_NOMEM: this branch alone takes more. */
enum pp_code pp_save_plan(struct pp_save *j, uint64_t limit, uint64_t *bytes, struct pp_error *err);
/* Writes about `budget` bytes (at least a page). *done: nothing is left to write, or it has failed. Until the last call
 * has returned, the files hold the previous snapshot. PP_ERR_IO: a full disk, for instance; PP_ERR_CANCELLED. */
enum pp_code pp_save_write(struct pp_save *j, uint64_t budget, const struct pp_cancel *cancel, bool *done,
                           struct pp_error *err);
const struct pp_save_counts *pp_save_counts(const struct pp_save *j); /* so far; on the writer's thread */
void pp_save_free(struct pp_save *j); /* the engine's thread, before the engine is freed. NULL is fine */

/* Removes both files (and what version 1 wrote); missing files are no error. Any thread. */
enum pp_code pp_snapshot_remove(const char *base, struct pp_error *err);

/* Makes s, whose adapters are set, hold as long a prefix of prompt[0..n) as possible: its own common prefix, then pages
 * that the engine still has, then, read on all threads, those of the saved branch with the longest match.
 * Nothing is used before key, tokens and checksums agree. If they do not, PP_ERR_MISMATCH or PP_ERR_FORMAT say why in
 * one sentence, nothing is read, and a damaged manifest is removed. PP_ERR_NOT_FOUND: nothing was saved;
 * PP_ERR_NOMEM: too few free pages. stats.restored_tokens counts what was read. */
enum pp_code pp_snapshot_restore(struct pp_seq *s, const struct pp_sha256 *identity, const char *base,
                                 const char *owner, const int32_t *prompt, int64_t n, const struct pp_cancel *cancel,
                                 struct pp_error *err);

#endif
