/* cpu.h - the CPU backend: a plan lowered to a program of stages, and its execution on the thread pool.
 *
 * Lowering fuses neighbouring operations: a norm goes into the projections that read it, projections of the same input
 * become one stage that quantises it once, a residual addition or an activation becomes the epilogue of the projections
 * before it, and head norms, RoPE, KV store and attention become one stage, as do a short convolution and the products
 * around it. The remaining operations run row by row, or head by head. A common decoder layer is five stages for one
 * row, after each of which the threads wait for each other.
 *
 * All functions are for the engine's thread, unless they say otherwise. */
#ifndef PP_CPU_CPU_H
#define PP_CPU_CPU_H

#include "engine/batch.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/layout.h"
#include "engine/kv.h"
#include "engine/model.h"
#include "engine/pool.h"

struct pp_cpu;

struct pp_cpu_options {
    enum pp_isa isa;
    int max_rows;                    /* of a batch */
    int64_t n_ctx;                   /* positions of a sequence, on which some models' RoPE depends */
    int bf16_parts;                  /* bfloat16 parts of activations (matmul_bf16.h): 2 for F16 and BF16 weights; 1 for
                                        BF16 weights only; 0: activations stay float32 */
    const char *cache_dir;           /* for packed weights; or NULL */
    uint64_t layout_quota;           /* as in struct pp_engine_options */
    const struct pp_cancel *cancel;  /* cancels pp_cpu_new only; or NULL */
    struct pp_imatrix *imatrix;      /* as in struct pp_engine_options */
};

/* Lowers the model's plan and allocates all scratch memory; weights are packed later, by the passes that need them
 * (layout.h). Progress is in bytes of weights. m and pool must outlive the result, which the caller frees. kv: the page
 * layout of each of the plan's tiers. PP_ERR_UNSUPPORTED, PP_ERR_FORMAT, PP_ERR_NOMEM, PP_ERR_CANCELLED. */
enum pp_code pp_cpu_new(const struct pp_model *m, struct pp_pool *pool, const struct pp_kv_layout *kv,
                        const struct pp_cpu_options *opt, pp_progress *progress, void *user, struct pp_cpu **out,
                        struct pp_error *err);
void pp_cpu_free(struct pp_cpu *c);
/* Makes room for rows with this set of adapters. Call when a set is chosen, so that steps allocate nothing.
 * PP_ERR_NOMEM. */
enum pp_code pp_cpu_reserve(struct pp_cpu *c, const struct pp_adapter_set *set, struct pp_error *err);
/* Makes room for this many output rows, if there is less. PP_ERR_NOMEM. */
enum pp_code pp_cpu_reserve_outputs(struct pp_cpu *c, int n, struct pp_error *err);

/* One forward pass, on all threads. PP_ERR_FORMAT: a weight is NaN or overflows. PP_ERR_CANCELLED: K and V of the rows'
 * slots are undefined, nothing else changed. */
enum pp_code pp_cpu_forward(struct pp_cpu *c, const struct pp_batch *batch, const struct pp_cancel *cancel,
                            struct pp_error *err);
/* A position's K and V are to be copied to a slot of another page. */
struct pp_cpu_move {
    const uint8_t *from;
    uint8_t *to;
    int from_slot, to_slot;
};
/* Makes n such copies within a tier, on all threads; no destination is also a source. Keys are rotated by `turn`
 * positions, so that the key of position p becomes that of p + turn, up to rounding: RoPE rotates by an angle
 * proportional to the position. Values are copied as they are. */
void pp_cpu_move_positions(struct pp_cpu *c, int tier, const struct pp_cpu_move *moves, int n, int64_t turn);
/* The i-th output of the last pass: float [n_vocab] or [n_embd_out], valid until the next pass. */
const float *pp_cpu_logits(const struct pp_cpu *c, int output);
const float *pp_cpu_hidden(const struct pp_cpu *c, int output);
/* How many bfloat16 parts activations are split into for float weights; 0: they stay float32. Results depend on it. */
int pp_cpu_bf16_parts(const struct pp_cpu *c);
/* The id of the arithmetic: it changes whenever results may change by a bit. Part of every KV key. */
const char *pp_cpu_arithmetic(const struct pp_cpu *c);
uint64_t pp_cpu_memory(const struct pp_cpu *c); /* bytes allocated besides mapped weights */
struct pp_weights *pp_cpu_weights(const struct pp_cpu *c); /* owned by c */

#endif
