/* lora.h - the inside of adapters; private to the engine.
 *
 * LoRA (arXiv 2106.09685) is part of the projection: y = W x + b + sum over adapters k of scale_k * B_k (A_k x). */
#ifndef PP_ENGINE_LORA_H
#define PP_ENGINE_LORA_H

#include "engine/cpu/matmul.h"
#include "engine/cpu/ops.h"
#include "engine/engine.h"

/* Both halves are held in Q8_0 for weights that meet quantised activations, in F16 for others and for large models,
 * or as they are stored (pp_adapter_load_exact). */
struct pp_lora_target {
    int rank;              /* 0: this projection is not changed */
    float scale;           /* alpha / rank */
    struct pp_matrix a;    /* [rank, n_in] */
    struct pp_low_rank b;  /* [n_out, rank] */
    void *a_data, *b_data; /* theirs, aligned to 64 bytes */
    size_t a_bytes, b_bytes;
};

struct pp_adapter {
    const struct pp_model *model;   /* that it was loaded for: shapes and the order of projections are its */
    struct pp_adapter_info info;
    struct pp_lora_target *targets; /* [n_linears of the model's plan] */
    int n_linears;
    struct pp_sha256 identity;      /* of all targets: goes into the KV key */
    char *path, *name, *target_names;
};

/* The adapters of a row. Immutable while a step runs. */
struct pp_adapter_set {
    int n;
    struct pp_adapter_use use[PP_MAX_ADAPTERS];
};

/* Sum of the ranks that a set brings to one projection. */
int pp_adapter_set_rank(const struct pp_adapter_set *set, int linear);

#endif
