/* adapter_file.h - adapters on disk: a PEFT or MLX folder or a GGUF adapter, seen the same way.
 *
 * PEFT: adapter_config.json and adapter_model.safetensors, as https://huggingface.co/docs/peft writes them; LoRA, DoRA
 * (arXiv 2402.09353), IA3 (arXiv 2205.05638), kinds that are LoRAs once multiplied out (adapter_made.c), and replaced
 * norms and tokens' rows (LN_TUNING, TRAINABLE_TOKENS).
 * MLX: adapter_config.json with lora_parameters and adapters.safetensors, as https://github.com/ml-explore/mlx-lm
 * writes them; LoRA and DoRA. Their matrices are A [n_in, r] and B [r, n_out]. Before April 2024, MLX wrote only
 * adapters.npz, without a configuration.
 * GGUF: general.type "adapter", adapter.type "lora", adapter.lora.alpha, and tensors NAME.lora_a, NAME.lora_b; an
 * activated LoRA has adapter.alora.invocation_tokens.
 * Each expert's matrix is a target; adapter_experts.c describes how folders and files store those.
 * Nothing is copied, except what is multiplied out: matrices point into the mapped file. Immutable after opening; any
 * thread may read it. */
#ifndef PP_ENGINE_ADAPTER_FILE_H
#define PP_ENGINE_ADAPTER_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/arch/arch.h"
#include "engine/base/error.h"
#include "engine/hf_form.h"
#include "engine/types.h"

struct pp_adapter_file;

/* Columns of a half to use, where a file has several experts in one tensor. n 0: all. */
struct pp_adapter_columns {
    int64_t first, step, n;
};

/* One adapted matrix. Parts that the adapter does not have are without data.
 *
 *   LoRA   y = W x + scale * (B (A x) + b_bias)
 *   DoRA   y = magnitude / |W + scale * B A| * (W x + scale * B (A x)), with norms of rows
 *   IA3    y = ia3 * (W x), or y = W (ia3 * x)
 *   weight, bias   replace the base model's */
struct pp_adapter_target {
    const char *name;      /* GGUF name of W: "blk.0.attn_q.weight" */
    struct pp_tensor a;    /* [r, n_in], that is ne = {n_in, r} */
    struct pp_tensor b;    /* [n_out, r], that is ne = {r, n_out} */
    struct pp_adapter_columns a_columns, b_columns;
    bool a_transposed, b_transposed; /* stored transposed: [n_in, r], [r, n_out] */
    struct pp_tensor b_bias, magnitude, bias; /* [n_out]; magnitudes of tied embeddings: [n_in] */
    struct pp_tensor weight; /* of W's shape, or a norm's vector */
    struct pp_tensor tokens; /* [n_tokens, n]: rows that replace those of W, the embeddings or the output matrix */
    const int32_t *token_ids; /* [n_tokens], all different */
    struct pp_tensor ia3;  /* [n_out, 1], or with ia3_input [1, n_in] */
    bool ia3_input;
    bool embedding;        /* W is the embedding table, and A x the column of A for a token; n_in counts tokens */
    bool tied;             /* an embedding as in MLX: magnitudes belong to tokens instead of values; and the output, if
                              it is the same matrix, is changed alike */
    int64_t rank;          /* 0: there are no A and B */
    int64_t n_in, n_out;   /* 0: no part tells; for a norm n_out is its length */
    float scale;           /* alpha / r, or with rsLoRA alpha / sqrt(r); includes patterns per module */
    enum pp_hf_form form;  /* how folders store the matrix */
    const char *second;    /* GGUF name of another matrix in the same module of a folder; or NULL */
};

/* path: a folder with adapter_config.json, or a GGUF adapter. Parts have runnable types and agree in r, n_in and n_out.
 * What the file asks for and pippin cannot do (such as layer_replication) is PP_ERR_UNSUPPORTED and named; a path that
 * does not exist is PP_ERR_NOT_FOUND. Shapes are not checked against a model here. */
enum pp_code pp_adapter_file_open(const char *path, struct pp_adapter_file **out, struct pp_error *err);
/* The same to describe the adapter, not to use it: halves that would have to be multiplied out have their shapes, but a
 * single value that represents all: 0 if they are zeros. */
enum pp_code pp_adapter_file_peek(const char *path, struct pp_adapter_file **out, struct pp_error *err);
/* pp_adapter_file_open for a model with these hyperparameters: if a folder's module names fit several families, its
 * family is chosen. */
enum pp_code pp_adapter_file_open_for(const char *path, const struct pp_hparams *hp, struct pp_adapter_file **out,
                                      struct pp_error *err);
void pp_adapter_file_close(struct pp_adapter_file *f); /* NULL is fine */

/* True if path looks like an adapter: a folder with adapter_config.json, or a GGUF whose general.type is "adapter". */
bool pp_is_adapter(const char *path);
/* The same, with an error if a file cannot be recognised: it is no GGUF file, or damaged, or memory is short. */
enum pp_code pp_adapter_recognise(const char *path, bool *is_adapter, struct pp_error *err);

const char *pp_adapter_file_name(const struct pp_adapter_file *f); /* "Lora Alpha"; printable UTF-8, may be "" */
const char *pp_adapter_file_arch(const struct pp_adapter_file *f); /* GGUF architecture: "llama" */
const char *pp_adapter_file_kind(const struct pp_adapter_file *f); /* "LoRA", "DoRA", "IA3", "AdaLoRA", ... */
/* Whether the rows of B for q and k are in Hugging Face order (PEFT), or else in the family's GGUF order. For a base
 * model whose hparams.rope_neox differs they must be permuted: pp_hf_row, pp_gguf_row. */
bool pp_adapter_file_hf_order(const struct pp_adapter_file *f);
/* adapter_parts.c: the names of our matrices that a target changes. If a folder's module has q, k and v, or a gate and
 * a value, in one matrix, there are three or two, with the same A. */
enum { PP_ADAPTER_MATRICES = 3 };
int pp_adapter_matrices(const struct pp_adapter_target *t, char names[PP_ADAPTER_MATRICES][PP_HF_NAME]);
/* Whether a tensor belongs to a mixture of experts; and whether a file changes any. */
bool pp_adapter_is_of_experts(const char *name);
bool pp_adapter_file_of_experts(const struct pp_adapter_file *f);
/* Whether the form in which folders store the matrix lets us use the target's parts. */
bool pp_adapter_form_fits(const struct pp_adapter_target *t);
/* A tied adapter of the embeddings as one of the output: A and B change places. `out` borrows t's tensors. */
void pp_adapter_as_output(const struct pp_adapter_target *t, struct pp_adapter_target *out);
/* Whether the target is several matrices, or q, k and v in one with rows grouped by heads. */
bool pp_adapter_is_by_rows(const struct pp_adapter_target *t);
/* How many of a target's outputs belong to that one of its matrices in such a model; 0: the target has another
 * shape. */
int64_t pp_adapter_part_outputs(const struct pp_adapter_target *t, const struct pp_hparams *hp, int part);
/* Which of the file's outputs each of these is: rows [pp_adapter_part_outputs]. pairs: whether rows of rotated heads
 * must be permuted, to the order of GGUF's llama or of Hugging Face. */
enum pp_adapter_pairs { PP_PAIRS_SAME, PP_PAIRS_TO_GGUF, PP_PAIRS_TO_HF };
void pp_adapter_outputs(const struct pp_adapter_target *t, const struct pp_hparams *hp, int part,
                        enum pp_adapter_pairs pairs, int32_t *rows);
/* For PEFT: base_model_name_or_path, or NULL. */
const char *pp_adapter_file_base(const struct pp_adapter_file *f);
/* How many tensors were left out because they change parts that do not run here, such as vision. */
size_t pp_adapter_file_n_non_text(const struct pp_adapter_file *f);
/* True if it is clear without the model that the adapter changes nothing: all A or B are zeros, all scales 1. */
bool pp_adapter_file_idle(const struct pp_adapter_file *f);
/* Activated LoRA: it acts after the last occurrence of these tokens in a prompt; *n 0: it acts everywhere. */
const int32_t *pp_adapter_file_invocation(const struct pp_adapter_file *f, size_t *n);
/* Whether it replaces rows (tokens) of the output matrix. */
bool pp_adapter_file_output_tokens(const struct pp_adapter_file *f);
float pp_adapter_file_alpha(const struct pp_adapter_file *f);      /* the file's own lora_alpha */
/* The factor of B A, if the folder does not say it and MLX's default is assumed; otherwise 0. */
float pp_adapter_file_assumed_scale(const struct pp_adapter_file *f);
size_t pp_adapter_file_n(const struct pp_adapter_file *f);
/* The target of that GGUF name, or NULL. */
const struct pp_adapter_target *pp_adapter_file_find(const struct pp_adapter_file *f, const char *name);
const struct pp_adapter_target *pp_adapter_file_at(const struct pp_adapter_file *f, size_t i);
/* PP_ERR_MISMATCH: an invocation token is beyond the model's n_vocab tokens; the error names the first such. */
enum pp_code pp_adapter_file_check_invocation(const struct pp_adapter_file *f, int64_t n_vocab, const char *model,
                                              struct pp_error *err);
/* An error that names the file if another program has written to it since it was opened. */
enum pp_code pp_adapter_file_check(const struct pp_adapter_file *f, struct pp_error *err);
/* An error that names the tensor if it has NaN or infinite values; for callers that copy the adapter without loading
 * it. */
enum pp_code pp_adapter_file_check_values(const struct pp_adapter_file *f, struct pp_error *err);

#endif
