/* adapter_file.h - adapters as they lie on disk: a PEFT or MLX folder or a GGUF adapter, seen the same way.
 *
 * PEFT: adapter_config.json and adapter_model.safetensors, as https://huggingface.co/docs/peft writes them; LoRA, DoRA
 * (arXiv 2402.09353) and IA3 (arXiv 2205.05638), what is a LoRA once it is multiplied out (adapter_made.c), norms and
 * tokens' rows in the model's place (LN_TUNING, TRAINABLE_TOKENS).
 * MLX: adapter_config.json with lora_parameters and adapters.safetensors, as https://github.com/ml-explore/mlx-lm
 * writes them; LoRA and DoRA. Their matrices are A [n_in, r] and B [r, n_out].
 * Of experts each one's matrix is a target; how folders and files have them is told in adapter_experts.c.
 * GGUF: general.type "adapter", adapter.type "lora", adapter.lora.alpha, and tensors NAME.lora_a, NAME.lora_b; of an
 * activated LoRA adapter.alora.invocation_tokens.
 * Nothing is copied, but for what is multiplied out: matrices point into the mapped file. Immutable after opening; any
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

/* Of each row of a half some values, where a file has those of several experts in one. n 0: all. */
struct pp_adapter_columns {
    int64_t first, step, n;
};

/* One adapted matrix. Parts that the adapter does not have are without data.
 *
 *   LoRA   y = W x + scale * (B (A x) + b_bias)
 *   DoRA   y = magnitude / |W + scale * B A| * (W x + scale * B (A x)), the norms taken of rows
 *   IA3    y = ia3 * (W x), or y = W (ia3 * x)
 *   weight, bias   stand for the base model's */
struct pp_adapter_target {
    const char *name;      /* GGUF name of W: "blk.0.attn_q.weight" */
    struct pp_tensor a;    /* [r, n_in], that is ne = {n_in, r} */
    struct pp_tensor b;    /* [n_out, r], that is ne = {r, n_out} */
    struct pp_adapter_columns a_columns, b_columns;
    bool a_turned, b_turned; /* they lie the other way round: [n_in, r], [r, n_out] */
    struct pp_tensor b_bias, magnitude, bias; /* [n_out] */
    struct pp_tensor weight; /* of the same shape as W; of a norm a vector */
    struct pp_tensor tokens; /* [n_tokens, n]: these rows of W, the output's or the table of embeddings */
    const int32_t *token_ids; /* [n_tokens], no two alike */
    struct pp_tensor ia3;  /* [n_out, 1], or with ia3_input [1, n_in] */
    bool ia3_input;
    bool embedding;        /* W is the table of embeddings and A x the column of A for a token: n_in tokens */
    int64_t rank;          /* 0: there are no A and B */
    int64_t n_in, n_out;   /* 0: no part says so; of a norm n_out is its length */
    float scale;           /* alpha / r; with rsLoRA alpha / sqrt(r); patterns per module are already in it */
    enum pp_hf_form form;  /* how a folder has the matrix */
    const char *second;    /* GGUF name of the other matrix that a folder has in the same module; or NULL */
};

/* path: a folder with adapter_config.json, or a GGUF adapter. Parts have runnable types and agree in r, n_in and
 * n_out. What the file asks for and pippin cannot do (layer_replication, for one) is PP_ERR_UNSUPPORTED and named;
 * a path that does not exist is PP_ERR_NOT_FOUND. Shapes are not held against a model here. */
enum pp_code pp_adapter_file_open(const char *path, struct pp_adapter_file **out, struct pp_error *err);
/* The same to be told of, not to be used: of what would have to be multiplied out A and B have their shapes, but one
 * value that stands for all, 0 if they are zeros. */
enum pp_code pp_adapter_file_look(const char *path, struct pp_adapter_file **out, struct pp_error *err);
/* The same as pp_adapter_file_open of one for a model with these numbers, of whose family a folder is if its modules'
 * names are those of several. */
enum pp_code pp_adapter_file_open_for(const char *path, const struct pp_hparams *hp, struct pp_adapter_file **out,
                                      struct pp_error *err);
void pp_adapter_file_close(struct pp_adapter_file *f); /* NULL is fine */

/* True if path looks like an adapter: a folder with adapter_config.json, or a GGUF whose general.type is "adapter". */
bool pp_is_adapter(const char *path);
/* The same, and why that cannot be told of a file: it is no GGUF file, or a damaged one, or there is no memory. */
enum pp_code pp_adapter_recognise(const char *path, bool *is_adapter, struct pp_error *err);

const char *pp_adapter_file_name(const struct pp_adapter_file *f); /* "Lora Alpha"; printable UTF-8, may be "" */
const char *pp_adapter_file_arch(const struct pp_adapter_file *f); /* GGUF architecture: "llama" */
const char *pp_adapter_file_kind(const struct pp_adapter_file *f); /* "LoRA", "DoRA", "IA3", "AdaLoRA", ... */
/* True if the rows of B that belong to q and k are in Hugging Face order (PEFT), false if in the GGUF order of the
 * family. A base model whose hparams.rope_neox differs needs them moved: pp_hf_row, pp_gguf_row. */
bool pp_adapter_file_hf_order(const struct pp_adapter_file *f);
/* adapter_parts.c: the matrices of ours that a target's is. Of a folder whose modules have q, k and v in one, or a gate
 * and a value, they are three or two, and have the same A. */
enum { PP_ADAPTER_MATRICES = 3 };
int pp_adapter_matrices(const struct pp_adapter_target *t, char names[PP_ADAPTER_MATRICES][PP_HF_NAME]);
/* Whether a tensor is one of a mixture of experts; and whether a file changes any. */
bool pp_adapter_is_of_experts(const char *name);
bool pp_adapter_file_of_experts(const struct pp_adapter_file *f);
/* Whether a folder has the matrix in a form of which our A and B, or what else there is, can be told. */
bool pp_adapter_form_fits(const struct pp_adapter_target *t);
/* Whether a folder's module is such, or has the rows of q, k and v in one matrix by heads. */
bool pp_adapter_is_by_rows(const struct pp_adapter_target *t);
/* How many outputs a target has for that one of them in a model with these numbers; 0: the module does not fit it. */
int64_t pp_adapter_part_outputs(const struct pp_adapter_target *t, const struct pp_hparams *hp, int part);
/* Which of the file's outputs each of these is: rows [pp_adapter_part_outputs]. pairs: heads' pairs lie otherwise in
 * what is made: as GGUF's llama has them, or Hugging Face. */
enum pp_adapter_pairs { PP_PAIRS_SAME, PP_PAIRS_TO_GGUF, PP_PAIRS_TO_HF };
void pp_adapter_outputs(const struct pp_adapter_target *t, const struct pp_hparams *hp, int part,
                        enum pp_adapter_pairs pairs, int32_t *rows);
/* For PEFT: base_model_name_or_path, or NULL. */
const char *pp_adapter_file_base(const struct pp_adapter_file *f);
/* How many tensors were left out because they change parts of the model that do not run here: what sees or hears. */
size_t pp_adapter_file_beside(const struct pp_adapter_file *f);
/* True if it can be told without the model that the adapter changes nothing: all A or B are zeros, all scales 1. */
bool pp_adapter_file_idle(const struct pp_adapter_file *f);
/* Activated LoRA: tokens behind the last of which in a prompt it acts; *n 0: it acts everywhere. */
const int32_t *pp_adapter_file_invocation(const struct pp_adapter_file *f, size_t *n);
/* Whether rows of the output's matrix stand for the model's (tokens). */
bool pp_adapter_file_output_tokens(const struct pp_adapter_file *f);
float pp_adapter_file_alpha(const struct pp_adapter_file *f);      /* the file's own lora_alpha */
size_t pp_adapter_file_n(const struct pp_adapter_file *f);
/* The target of that GGUF name, or NULL. */
const struct pp_adapter_target *pp_adapter_file_find(const struct pp_adapter_file *f, const char *name);
const struct pp_adapter_target *pp_adapter_file_at(const struct pp_adapter_file *f, size_t i);
/* PP_ERR_MISMATCH names the first of those that this model, of so many tokens, does not have. */
enum pp_code pp_adapter_file_check_invocation(const struct pp_adapter_file *f, int64_t n_vocab, const char *model,
                                              struct pp_error *err);
/* An error that names the file if another program has written into it since it was opened. */
enum pp_code pp_adapter_file_check(const struct pp_adapter_file *f, struct pp_error *err);
/* One that names the tensor if values are no numbers, for who does not load the adapter, but copies it. */
enum pp_code pp_adapter_file_check_values(const struct pp_adapter_file *f, struct pp_error *err);

#endif
