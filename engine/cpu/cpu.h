/* cpu.h - the CPU backend: a plan lowered to a program of stages, and its execution on the thread pool.
 *
 * Lowering fuses neighbours: a norm goes into the projections that read it, projections with the same input become one
 * stage that quantises the input once, a residual addition or an activation goes into the epilogue of the projections
 * before it, and norms of heads, rotation, KV store and attention become one stage, as do a short convolution and the
 * products around it. What is left is done row by row, or head by head.
 * One row of a common decoder layer is five stages and five meetings of the threads. */
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
    int bf16_parts;                  /* of activations: matmul_bf16.h. 2: for F16 and BF16 weights, 1: for BF16 weights;
                                        0: all stay float32 */
    const char *cache_dir;           /* for packed weights; or NULL */
    uint64_t layout_quota;           /* as in struct pp_engine_options */
    const struct pp_cancel *cancel;  /* stops the making; or NULL */
    struct pp_imatrix *imatrix;      /* as in struct pp_engine_options */
};

/* Lowers the model's plan and sets up memory; weights are packed later, by the passes that need them (layout.h).
 * Progress is in bytes of weights. pool must outlive it. kv: of each of the plan's tiers; all have the same head
 * size. */
enum pp_code pp_cpu_new(const struct pp_model *m, struct pp_pool *pool, const struct pp_kv_layout *kv,
                        const struct pp_cpu_options *opt, pp_progress *progress, void *user, struct pp_cpu **out,
                        struct pp_error *err);
void pp_cpu_free(struct pp_cpu *c);
/* Makes room for rows with this set. Call when a set is chosen, so that steps need no memory. */
enum pp_code pp_cpu_reserve(struct pp_cpu *c, const struct pp_adapter_set *set, struct pp_error *err);
/* Room for this many output rows; called with small numbers it does nothing. */
enum pp_code pp_cpu_reserve_outputs(struct pp_cpu *c, int n, struct pp_error *err);

/* One forward pass. PP_ERR_FORMAT: a weight is no number. PP_ERR_CANCELLED: K and V of the rows' slots are undefined,
 * nothing else changed. */
enum pp_code pp_cpu_forward(struct pp_cpu *c, const struct pp_batch *batch, const struct pp_cancel *cancel,
                            struct pp_error *err);
/* K and V of a position go to another place, of another page. */
struct pp_cpu_move {
    const uint8_t *from;
    uint8_t *to;
    int from_slot, to_slot;
};
/* Carries out n moves within a tier, on all threads; no place that is moved to is moved from. Keys are turned by `turn`
 * positions: a rotary position is a rotation by an angle that grows with it, so that the key of position p becomes that
 * of p + turn, but for rounding. Values stay as they are. */
void pp_cpu_move_positions(struct pp_cpu *c, int tier, const struct pp_cpu_move *moves, int n, int64_t turn);
/* Of the last pass: float [n_vocab] or [n_embd] of its i-th output. */
const float *pp_cpu_logits(const struct pp_cpu *c, int output);
const float *pp_cpu_hidden(const struct pp_cpu *c, int output);
/* How many bfloat16 parts some activations are made of, 0 if none are: arithmetics of their own. */
int pp_cpu_bf16_parts(const struct pp_cpu *c);
/* The id of the arithmetic: changes whenever results may change by a bit. Part of every KV key. */
const char *pp_cpu_arithmetic(const struct pp_cpu *c);
uint64_t pp_cpu_memory(const struct pp_cpu *c); /* bytes taken besides mapped weights */
struct pp_weights *pp_cpu_weights(const struct pp_cpu *c);

#endif
