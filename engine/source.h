/* source.h - where a model comes from: a GGUF file or a Hugging Face folder, seen the same way.
 *
 * Tensor names are GGUF's ("blk.0.attn_q.weight"); a folder's own names are translated by the family's table
 * (engine/arch/). Nothing is copied: tensors point into mapped files. Immutable after opening; any thread. */
#ifndef PP_ENGINE_SOURCE_H
#define PP_ENGINE_SOURCE_H

#include <stdbool.h>

#include "engine/base/error.h"
#include "engine/types.h"

struct pp_gguf;
struct pp_source;

/* The numbers that shape a decoder of the Llama kind. Taken from GGUF metadata or config.json, validated: positive,
 * within limits, heads divide evenly. */
struct pp_hparams {
    char arch[64];          /* GGUF architecture: "llama" */
    char name[128];         /* the model's own name, sanitised to printable UTF-8; may be "" */
    int64_t n_vocab;
    int64_t n_embd;
    int64_t n_layer;
    int64_t n_head;
    int64_t n_head_kv;
    int64_t head_dim;       /* explicit head size, or n_embd / n_head */
    int64_t n_ff;
    int64_t n_ctx_train;
    int64_t window;         /* positions that attention sees, the row's own included; 0: all */
    float norm_eps;
    float rope_base;
    int64_t rope_dim;       /* rotated dimensions of a head */
    bool rope_neox;         /* pairs (i, i + rope_dim/2): Hugging Face's layout; else (2i, 2i + 1): GGUF's llama */
    enum pp_rope_scaling { PP_ROPE_NONE, PP_ROPE_LINEAR, PP_ROPE_LLAMA3, PP_ROPE_YARN } rope_scaling;
    float rope_factor;          /* of LINEAR, LLAMA3, YARN */
    float rope_low_freq;        /* LLAMA3: low_freq_factor */
    float rope_high_freq;       /* LLAMA3: high_freq_factor */
    int64_t rope_orig_ctx;      /* LLAMA3, YARN: original_max_position_embeddings */
    float rope_attn_factor;     /* YARN: 0 means 0.1 ln(factor) + 1 */
    float rope_beta_fast, rope_beta_slow;
};

/* path: a .gguf file, or a folder with config.json and safetensors. A path that does not exist is
 * PP_ERR_NOT_FOUND; a family that is not known is PP_ERR_UNSUPPORTED and the text lists those that are. */
enum pp_code pp_source_open(const char *path, struct pp_source **out, struct pp_error *err);
void pp_source_close(struct pp_source *s);

const char *pp_source_path(const struct pp_source *s);
const struct pp_gguf *pp_source_gguf(const struct pp_source *s);  /* NULL for a folder */
const char *pp_source_folder(const struct pp_source *s);          /* NULL for a GGUF file */
const struct pp_hparams *pp_source_hparams(const struct pp_source *s);
/* By GGUF name, or NULL. For a folder, q and k projections are NOT permuted: hparams.rope_neox says so. */
const struct pp_tensor *pp_source_tensor(const struct pp_source *s, const char *gguf_name);
size_t pp_source_n_tensors(const struct pp_source *s);
const struct pp_tensor *pp_source_tensor_at(const struct pp_source *s, size_t i); /* carries the GGUF name */
int64_t pp_source_n_params(const struct pp_source *s);
size_t pp_source_bytes(const struct pp_source *s);                /* of all tensors */
/* "Q4_K_M", "F16", ...: from general.file_type, else from the tensors. */
const char *pp_source_type_name(const struct pp_source *s);
/* The chat template's source (Jinja), or NULL. Owned by the source. */
const char *pp_source_chat_template(const struct pp_source *s);
/* An error that names the file if a mapped file shrank under us, else PP_OK. Cheap: call after every pass. */
enum pp_code pp_source_check(const struct pp_source *s, struct pp_error *err);

#endif
