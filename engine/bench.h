/* bench.h - measuring the engine: where the time of forward passes goes, how many bytes a pass must read, how fast this
 * machine reads memory, and models of known shapes with random weights. Public header of libpippin. */
#ifndef PP_ENGINE_BENCH_H
#define PP_ENGINE_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/cancel.h"
#include "engine/base/error.h"
#include "engine/engine.h"

/* --- where the time of a pass goes ----------------------------------------------------------------------- */

enum pp_profile_kind {
    PP_PROFILE_EMBED,     /* rows of the embedding, angles of the rotation */
    PP_PROFILE_PREPARE,   /* what precedes a product: norms, quantising activations, the adapters' first half */
    PP_PROFILE_QKV,
    PP_PROFILE_STORE,     /* RoPE, and writing K and V to the cache, where these are a phase of their own */
    PP_PROFILE_ATTENTION,
    PP_PROFILE_ATTN_OUT,
    PP_PROFILE_GATE_UP,
    PP_PROFILE_DOWN,
    PP_PROFILE_ROUTE,     /* choosing experts, and summing their outputs */
    PP_PROFILE_LOGITS,
    PP_PROFILE_OTHER,     /* other projections, selecting rows */
    PP_PROFILE_WAIT,      /* threads' time outside work items: waiting for others, taking items */
    PP_PROFILE_COUNT,
};

struct pp_profile_line {
    uint64_t ns;     /* summed over all threads */
    uint64_t items;  /* work items */
    uint64_t bytes;  /* of weights or KV that the passes had to read, each counted once a pass */
    uint64_t macs;   /* multiply-adds of the products; of attention: of scores and weighted sums */
};

struct pp_profile {
    int n_threads;
    uint64_t passes, rows;
    uint64_t ns;     /* of the passes; the lines' ns add up to n_threads times this */
    struct pp_profile_line lines[PP_PROFILE_COUNT];
};

/* "gate+up"; never NULL. */
const char *pp_profile_name(enum pp_profile_kind kind);
/* Switches profiling on, with all counts at zero, or off. While it is on, each work item reads the clock twice more. */
enum pp_code pp_engine_profile(struct pp_engine *e, bool on, struct pp_error *err);
/* The counts since profiling was switched on; zeros if it is off. Between steps only. */
void pp_engine_profile_get(const struct pp_engine *e, struct pp_profile *out);

/* --- what a pass reads ----------------------------------------------------------------------------------- */

/* Bytes of weights that a pass with logits reads: all matrices, norms and biases, and one row of the embedding. */
uint64_t pp_engine_pass_bytes(const struct pp_engine *e);
/* Bytes of K and V, of all layers, and of the keys by which an index finds them, that a row uses which has n positions
 * up to its own: in layers with a window, or whose positions an index picks, no more than it sees. (Of the latter
 * neighbours may be read along: attend.c.) Of layers with states those, and the keys and values of half a page. */
double pp_engine_kv_read_bytes(const struct pp_engine *e, double n);

/* --- choosing a token ------------------------------------------------------------------------------------ */

/* The usual sampling, with a seed of its own. */
struct pp_choosing;

enum pp_code pp_choosing_new(int64_t n_vocab, struct pp_choosing **out, struct pp_error *err);
void pp_choosing_free(struct pp_choosing *c); /* NULL is fine */
/* The token for a position; 0 if all are forbidden. logits: float [n_vocab]. */
int32_t pp_choosing_token(struct pp_choosing *c, const float *logits, int64_t position);

/* --- how fast memory is read ----------------------------------------------------------------------------- */

struct pp_read_test;

/* The size of a buffer that no cache holds: twice the L3 caches, at least 384 MiB, but at most a quarter of the free
 * memory. */
size_t pp_read_test_bytes(void);
/* Allocates a buffer of `bytes`, touches it once, and starts n_threads (at least 1) to read it, niced like those of an
 * engine. */
enum pp_code pp_read_test_new(int n_threads, size_t bytes, struct pp_read_test **out, struct pp_error *err);
void pp_read_test_free(struct pp_read_test *t); /* NULL is fine */
/* Reads the buffer once in each of several ways (1 to 8 streams a thread, with and without prefetching). Returns the
 * bytes per second of the best so far, earlier calls included. */
double pp_read_test_run(struct pp_read_test *t);

/* --- models with random weights ---------------------------------------------------------------------------- */

/* A model of a known shape whose weights are noise: its text is nonsense, its speed and memory are the real one's. */
struct pp_random_model {
    const char *shape;  /* the name of a struct pp_random_shape */
    const char *type;   /* one for all matrices: "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K" (rows that its
                         * blocks do not divide get a larger one); or a mixture as quantising gives it: "Q4_K_M" */
    int64_t n_layers;   /* 0: all of the shape's */
    int64_t n_vocab;    /* 0: the shape's */
    int64_t n_ff;       /* 0: the shape's; a small one leaves little but attention */
    uint64_t seed;
    bool zeros;         /* the matrices are all zero and take no disk where files can have holes: to see what an
                         * engine needs besides them */
};

struct pp_random_shape {
    const char *name;
    int64_t n_layers, n_embd, n_head, n_head_kv, n_ff, n_ctx, n_vocab;
    float rope_base;
    bool tied;          /* the embedding is also the output */
    int64_t n_expert, n_expert_used; /* 0: no mixture; else n_ff is an expert's */
    /* Latent attention, where kv_lora_rank is not 0; its mixtures also have an expert that every token uses, and
     * n_dense layers before the first with experts. */
    int64_t kv_lora_rank, q_lora_rank, qk_nope_dim, rope_dim, v_head_dim;
    int64_t n_ff_shared, n_ff_dense, n_dense;
    int64_t conv_taps;  /* layers are short convolutions over this many positions, except those with attention: */
    uint64_t attends;   /* layer l has it where this has bit l */
    /* Or they have states, with keys and values of state_dim values, computed from the output of convolutions: */
    int64_t n_state_head, n_state_key_head, state_dim, state_taps;
    int64_t head_dim;   /* 0: n_embd / n_head */
};

const struct pp_random_shape *pp_random_shape_by_name(const char *name); /* NULL: unknown */
/* Writes the model as a GGUF file without vocabulary. Progress in bytes. PP_ERR_USAGE: no such shape or type, or a
 * number out of range; the text says what is possible. */
enum pp_code pp_random_model_write(const struct pp_random_model *spec, const char *path, pp_progress *progress,
                                   void *user, const struct pp_cancel *cancel, struct pp_error *err);
/* Whether pp_random_model_write made this file, so that it can safely be deleted. */
bool pp_random_model_is(const char *path);

enum pp_random_kind { PP_RANDOM_LORA, PP_RANDOM_DORA, PP_RANDOM_IA3 };
struct pp_random_adapter {
    enum pp_random_kind kind;
    int rank;               /* of LoRA and DoRA */
    bool all;               /* these change all projections of the layers, else those of queries and values; IA3 those
                               of keys, values and the last of the feed-forward part */
    uint64_t expert_bytes;  /* a LoRA of all of them also those of experts, if that takes no more bytes of the file */
    uint64_t seed;
};
/* An adapter for `m` of small noise: a LoRA is written as a GGUF file, the others as a folder of PEFT's. */
enum pp_code pp_random_adapter_write(const struct pp_model *m, const struct pp_random_adapter *spec, const char *path,
                                     struct pp_error *err);

/* --- products by themselves ---------------------------------------------------------------------------------- */

/* A matrix of noise, and activations, to time the matmul kernels alone: one thread, nothing else of the engine. */
struct pp_micro;

enum { PP_MICRO_MAX_ROWS = 512 };

struct pp_micro_time {
    uint64_t ns, macs, bytes; /* bytes: of weights */
};

/* type: "Q4_0"; n_rows: a multiple of 16, n_cols: of 256. */
enum pp_code pp_micro_new(const char *type, int64_t n_rows, int64_t n_cols, struct pp_micro **out,
                          struct pp_error *err);
void pp_micro_free(struct pp_micro *t); /* NULL is fine */
/* Multiplies m activation rows (1 to PP_MICRO_MAX_ROWS) for `ns` nanoseconds, in pieces like the engine's work items,
 * going on through the matrix where the last call stopped. kernels: "avx2"; PP_ERR_UNSUPPORTED: this CPU cannot run
 * them, or they have none for the type. PP_ERR_USAGE: m. */
enum pp_code pp_micro_run(struct pp_micro *t, const char *kernels, int m, uint64_t ns, struct pp_micro_time *out,
                          struct pp_error *err);
/* Name i of the kernel sets that run on this CPU, the best last; NULL after the end. */
const char *pp_micro_kernels(size_t i);

#endif
