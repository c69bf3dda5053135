/* adapter_file_int.h - what the readers of adapter files share. Private to adapter_*.c. */
#ifndef PP_ENGINE_ADAPTER_FILE_INT_H
#define PP_ENGINE_ADAPTER_FILE_INT_H

#include "engine/adapter_file.h"
#include "engine/base/buf.h"
#include "engine/name_index.h"

struct cJSON;
struct pp_adapter_made;
struct pp_gguf;
struct pp_safetensors;

static const char pp_adapter_config_file[] = "adapter_config.json";
static const char pp_adapter_npz[] = "adapters.npz"; /* MLX's first format */

struct pp_adapter_file {
    char *path;
    struct pp_gguf *gguf;                /* of a GGUF file */
    struct pp_safetensors *weights;      /* of a folder */
    struct pp_buf image;                 /* the bytes of `weights`, if they were read from an .npz file */
    float assumed_scale;                 /* if the folder does not say it; else 0 */
    struct cJSON *config;                /* of a folder */
    bool hf_order;                       /* pp_adapter_file_hf_order, for files that are neither */
    const struct pp_arch *arch;
    bool looked_at;                      /* opened by pp_adapter_file_peek */
    const struct pp_hparams *hp;         /* while opening: those of the model that it is for; or NULL */
    const struct pp_arch *wanted;        /* the family to choose if module names fit several; or NULL */
    enum {
        PP_ADAPTER_LORA,
        PP_ADAPTER_DORA,
        PP_ADAPTER_IA3,
        PP_ADAPTER_ADALORA,
        PP_ADAPTER_LOHA,
        PP_ADAPTER_LOKR,
        PP_ADAPTER_NORMS,                /* PEFT's LN_TUNING */
        PP_ADAPTER_TOKENS,               /* PEFT's TRAINABLE_TOKENS */
    } kind;
    char name[128];
    float alpha;
    int32_t *invocation;                 /* [n_invocation] */
    size_t n_invocation;
    struct pp_adapter_target *targets;   /* names are owned (pp_free) */
    size_t n, cap;
    struct pp_adapter_made *made;        /* matrices computed at opening, to which targets point */
    size_t made_bytes;
    size_t n_ignored;                    /* tensors of parts of the model that do not run here */
    struct pp_name_index index;          /* of the targets' names */
};

enum pp_adapter_part {
    PP_PART_A,
    PP_PART_B,
    PP_PART_B_BIAS,
    PP_PART_MAGNITUDE,
    PP_PART_BIAS,
    PP_PART_IA3,
    PP_PART_WEIGHT,
    PP_PART_TOKENS,
    PP_PART_FOLDED,  /* multiplied into an AdaLoRA's A; */
    PP_PART_FACTORS, /* LoHa and LoKr: the first of the tensors from which A and B are computed, */
    PP_PART_FACTOR,  /* the other tensors of these (adapter_made.c) */
    PP_PART_NOTHING, /* a copy of the base model's, saved with the adapter: changes nothing */
};

/* Allocates as many targets as there are tensors. */
enum pp_code pp_adapter_reserve(struct pp_adapter_file *f, size_t n_tensors, struct pp_error *err);
/* Allocates `more` further targets. */
enum pp_code pp_adapter_grow(struct pp_adapter_file *f, size_t more, struct pp_error *err);
/* Adds tensor t as a part of the target with this GGUF name. */
enum pp_code pp_adapter_add_part(struct pp_adapter_file *f, const char *name, size_t len, enum pp_adapter_part part,
                                 const struct pp_tensor *t, struct pp_error *err);
/* Called when all parts are there and a_transposed, b_transposed are set. */
enum pp_code pp_adapter_check_targets(struct pp_adapter_file *f, struct pp_error *err);
/* Allocates the invocation; fails if it is no list of tokens. */
enum pp_code pp_adapter_reserve_invocation(struct pp_adapter_file *f, size_t n, struct pp_error *err);
enum pp_code pp_adapter_bad_invocation(const struct pp_adapter_file *f, struct pp_error *err);
/* The error that a file is a pickle, and what to do. */
enum pp_code pp_adapter_is_pickle(const char *path, struct pp_error *err);
/* Where `end` begins in s, if s ends with it and is longer; otherwise NULL. */
const char *pp_name_ending(const char *s, const char *end);

/* adapter_experts.c: a LoRA of all experts' matrices of a kind. */
struct pp_adapter_stack {
    char name[PP_HF_NAME], second[PP_HF_NAME]; /* "blk.3.ffn_gate_exps.weight"; and the other matrix in the same
                                                  parameter, or "" */
    char module[192];        /* the name for patterns of ranks: "model.layers.3.mlp.experts.gate_up_proj" */
    enum pp_hf_form form;    /* of one expert's matrices in the parameter */
    bool flat;               /* PEFT's layout in two dimensions */
    bool transposed;         /* the model's parameter is [n, n_in, n_out] */
    bool swapped;            /* the file's A is our B, transposed */
    int64_t rank;            /* flat: for each expert; set by the caller */
    int64_t n;               /* experts; set by pp_adapter_add_stack */
};
bool pp_adapter_is_stack(const char *gguf); /* a tensor's name */
/* Finds what tensor t changes, if its module's name is not that of a matrix but target_parameters names a parameter of
 * it. False: nothing. */
bool pp_adapter_find_stack(const struct pp_adapter_file *f, const struct pp_arch *arch, const char *module, size_t len,
                           enum pp_adapter_part part, const struct pp_tensor *t, struct pp_adapter_stack *s);
/* The same for a module whose matrix is called `gguf` in GGUF files; second: "" if there is none. */
bool pp_adapter_translated_stack(const struct pp_adapter_file *f, const char *gguf, const char *second,
                                 enum pp_hf_form form, const char *module, size_t len, enum pp_adapter_part part,
                                 const struct pp_tensor *t, struct pp_adapter_stack *s);
/* Adds the stack's tensor as a part of each expert's target. */
enum pp_code pp_adapter_add_stack(struct pp_adapter_file *f, struct pp_adapter_stack *s, enum pp_adapter_part part,
                                  const struct pp_tensor *t, struct pp_error *err);

/* adapter_made.c: multiplies an AdaLoRA's values E into A, and sets alpha by its rank; out: the new A. */
enum pp_code pp_adapter_fold(struct pp_adapter_file *f, const char *module, size_t len, const struct pp_tensor *a,
                             struct pp_tensor *out, struct pp_error *err);
enum pp_code pp_adapter_fold_scale(const struct pp_adapter_file *f, const struct pp_tensor *a, float *scale,
                                   struct pp_error *err);
/* Computes A and B of a LoHa or LoKr module, whose first tensor is t. The other function: whether the module of one of
 * its further tensors has a first one. */
enum pp_code pp_adapter_make_halves(struct pp_adapter_file *f, const struct pp_tensor *t, struct pp_tensor halves[2],
                                    struct pp_error *err);
bool pp_adapter_factor_counts(const struct pp_adapter_file *f, const struct pp_tensor *t);
void pp_adapter_free_made(struct pp_adapter_file *f);

/* adapter_folder.c: PEFT's and MLX's. */
enum pp_code pp_adapter_open_folder(struct pp_adapter_file *f, struct pp_error *err);

/* adapter_pattern.c: PEFT's alpha_pattern and rank_pattern, which map module names to numbers. A key is a regular
 * expression that must match the whole name or what follows a dot in it; the first match counts. PP_ERR_UNSUPPORTED: a
 * key or a value is not understood, or there are too many. */
struct pp_module_patterns;
enum pp_code pp_module_patterns_new(const struct cJSON *object, const char *what, struct pp_module_patterns **out,
                                    struct pp_error *err);
void pp_module_patterns_free(struct pp_module_patterns *p); /* NULL is fine */
/* Leaves *value unchanged if no key matches. */
enum pp_code pp_module_patterns_find(struct pp_module_patterns *p, const char *module, double *value,
                                     struct pp_error *err);

#endif
