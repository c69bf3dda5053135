/* adapter_file_int.h - what the readers of adapter files share. Private to adapter_*.c. */
#ifndef PP_ENGINE_ADAPTER_FILE_INT_H
#define PP_ENGINE_ADAPTER_FILE_INT_H

#include "engine/adapter_file.h"
#include "engine/name_index.h"

struct cJSON;
struct pp_adapter_made;
struct pp_gguf;
struct pp_safetensors;

static const char pp_adapter_config_file[] = "adapter_config.json";

struct pp_adapter_file {
    char *path;
    struct pp_gguf *gguf;                /* of a file */
    struct pp_safetensors *weights;      /* of a folder */
    struct cJSON *config;                /* of a folder */
    bool hf_order;                       /* of neither: what pp_adapter_file_hf_order says */
    const struct pp_arch *arch;
    bool looked_at;                      /* by pp_adapter_file_look */
    const struct pp_hparams *hp;         /* while it is opened: of the model that it is for; or NULL */
    const struct pp_arch *wanted;        /* if the modules' names are those of several families; or NULL */
    enum {
        PP_ADAPTER_LORA,
        PP_ADAPTER_DORA,
        PP_ADAPTER_IA3,
        PP_ADAPTER_ADALORA,
        PP_ADAPTER_LOHA,
        PP_ADAPTER_LOKR,
        PP_ADAPTER_NORMS,                /* PEFT's LN_TUNING */
        PP_ADAPTER_TOKENS,               /* its TRAINABLE_TOKENS */
    } kind;
    char name[128];
    float alpha;
    int32_t *invocation;                 /* [n_invocation] */
    size_t n_invocation;
    struct pp_adapter_target *targets;   /* names are pp_free'd */
    size_t n, cap;
    struct pp_adapter_made *made;        /* what targets point to that is not in the mapped file */
    size_t made_bytes;
    size_t n_beside;                     /* tensors of parts of the model that do not run here */
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
    PP_PART_FOLDED,  /* belongs to an AdaLoRA's A; */
    PP_PART_FACTORS, /* the first one of those of which A and B are made, of LoHa and LoKr, */
    PP_PART_FACTOR,  /* or another one: adapter_made.c */
    PP_PART_NOTHING, /* the base model's own, saved with the adapter: it changes nothing */
};

/* Room for as many targets as there are tensors. */
enum pp_code pp_adapter_reserve(struct pp_adapter_file *f, size_t n_tensors, struct pp_error *err);
/* Room for so many more than there are now. */
enum pp_code pp_adapter_grow(struct pp_adapter_file *f, size_t more, struct pp_error *err);
/* Notes tensor t as a part of what changes the matrix with a GGUF name. */
enum pp_code pp_adapter_add_part(struct pp_adapter_file *f, const char *name, size_t len, enum pp_adapter_part part,
                                 const struct pp_tensor *t, struct pp_error *err);
/* When all parts are there and a_turned, b_turned are set. */
enum pp_code pp_adapter_check_targets(struct pp_adapter_file *f, struct pp_error *err);
/* Room for what invokes the adapter; and the error that it is no list of tokens. */
enum pp_code pp_adapter_reserve_invocation(struct pp_adapter_file *f, size_t n, struct pp_error *err);
enum pp_code pp_adapter_bad_invocation(const struct pp_adapter_file *f, struct pp_error *err);
/* The error that a file is one, and what to do. */
enum pp_code pp_adapter_is_pickle(const char *path, struct pp_error *err);
/* Where the end of a string begins if it ends so and is longer; else NULL. */
const char *pp_name_ending(const char *s, const char *end);

/* adapter_experts.c: a LoRA of all experts' matrices of a kind. */
struct pp_adapter_stack {
    char name[PP_HF_NAME], second[PP_HF_NAME]; /* "blk.3.ffn_gate_exps.weight"; and the other matrix's that is in the
                                                  same parameter, or "" */
    char module[192];        /* as patterns of ranks know it: "model.layers.3.mlp.experts.gate_up_proj" */
    enum pp_hf_form form;    /* of one expert's matrices in that */
    bool flat;               /* as PEFT has it, in two dimensions */
    bool transposed;         /* the model's parameter is [n, n_in, n_out] */
    bool swapped;            /* what is called A is B, and turned */
    int64_t rank;            /* of flat ones, for each expert; set by the caller */
    int64_t n;               /* experts; set by pp_adapter_add_stack */
};
bool pp_adapter_is_stack(const char *gguf); /* a tensor's name */
/* What tensor t of a module in a family's folder is of, whose name is no matrix's: target_parameters says. false: of
 * nothing. */
bool pp_adapter_find_stack(const struct pp_adapter_file *f, const struct pp_arch *arch, const char *module, size_t len,
                           enum pp_adapter_part part, const struct pp_tensor *t, struct pp_adapter_stack *s);
/* The same of a module whose matrix is called so in GGUF files; second: "" if it has none. */
bool pp_adapter_translated_stack(const struct pp_adapter_file *f, const char *gguf, const char *second,
                                 enum pp_hf_form form, const char *module, size_t len, enum pp_adapter_part part,
                                 const struct pp_tensor *t, struct pp_adapter_stack *s);
/* Notes its tensor as a part of each expert's target. */
enum pp_code pp_adapter_add_stack(struct pp_adapter_file *f, struct pp_adapter_stack *s, enum pp_adapter_part part,
                                  const struct pp_tensor *t, struct pp_error *err);

/* adapter_made.c: an AdaLoRA's A with its values E multiplied in; and alpha by its rank, out: of A. */
enum pp_code pp_adapter_fold(struct pp_adapter_file *f, const char *module, size_t len, const struct pp_tensor *a,
                             struct pp_tensor *out, struct pp_error *err);
enum pp_code pp_adapter_fold_scale(const struct pp_adapter_file *f, const struct pp_tensor *a, float *scale,
                                   struct pp_error *err);
/* A and B of a module of LoHa or LoKr, whose first tensor this is; and whether a later one has such a first one. */
enum pp_code pp_adapter_make_halves(struct pp_adapter_file *f, const struct pp_tensor *t, struct pp_tensor halves[2],
                                    struct pp_error *err);
bool pp_adapter_factor_counts(const struct pp_adapter_file *f, const struct pp_tensor *t);
void pp_adapter_free_made(struct pp_adapter_file *f);

/* adapter_folder.c: PEFT's and MLX's. */
enum pp_code pp_adapter_open_folder(struct pp_adapter_file *f, struct pp_error *err);

/* adapter_pattern.c: PEFT's alpha_pattern and rank_pattern, from names of modules to numbers. A key is a regular
 * expression that fits a module if it fits its whole name or what follows a dot in it; the first that fits counts.
 * PP_ERR_UNSUPPORTED: a key or a value is nothing that we understand, or there are too many. */
struct pp_module_patterns;
enum pp_code pp_module_patterns_new(const struct cJSON *object, const char *what, struct pp_module_patterns **out,
                                    struct pp_error *err);
void pp_module_patterns_free(struct pp_module_patterns *p); /* NULL is fine */
/* Leaves *value if no key fits. */
enum pp_code pp_module_patterns_find(struct pp_module_patterns *p, const char *module, double *value,
                                     struct pp_error *err);

#endif
