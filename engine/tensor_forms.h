/* tensor_forms.h - converts tensors with other names, or split otherwise, to the ones that we compute with. Private to
 * the engine; not thread-safe.
 *
 * GGUF files:
 * - ffn_gate_up_exps, which has for each expert the rows of its gate, then those of its value (llama.cpp's converter
 *   with --fuse-gate-up-exps): becomes two matrices for each expert, without copying. So do its biases.
 * - gpt-oss by ollama's converter, whose files call their family gptoss: attn_out, attn_sinks and ffn_norm are
 *   attn_output, attn_sinks.weight and post_attention_norm. In its first files the rows of gate and value alternate in
 *   ffn_gate_up_exps, and MXFP4 has type 4, with weights 2 i and 2 i + 1 in byte i of a block (PP_TYPE_MXFP4_PAIRS);
 *   in GGUF's MXFP4 weights i and i + 16 share a byte.
 * - altup_proj and altup_unembd_proj: become a matrix for each residual stream but the first, without copying.
 * - GigaChat 3.5 by the first converter, whose norms lack the 1 that must be added.
 * - NVFP4 becomes Q8_0, whose rounding is much finer. NAME.scale of NAME.weight has a factor for all scales of a
 *   matrix; NAME.input_scale is for activations in FP4, which we do not use. */
#ifndef PP_ENGINE_TENSOR_FORMS_H
#define PP_ENGINE_TENSOR_FORMS_H

#include "engine/arch/arch.h"
#include "engine/base/error.h"
#include "engine/source.h"
#include "engine/tensor_list.h"
#include "engine/types.h"

struct pp_gguf;

enum pp_gguf_form {
    PP_GGUF_USUAL,
    PP_GGUF_RENAMED,
    PP_GGUF_PAIRS,     /* MXFP4 with two neighbours in a byte */
    PP_GGUF_NVFP4,
    PP_GGUF_HALVES,    /* all rows of the gate, then those of the value */
    PP_GGUF_INTERLEAVED, /* rows of gate and value alternate */
    PP_GGUF_HEADS,     /* attn_kv_b, for pp_split_heads */
    PP_GGUF_STREAMS,   /* a matrix for each residual stream but the first */
};
/* The form of a GGUF file's tensor; family: as the file calls it. */
enum pp_gguf_form pp_gguf_form(const char *family, const struct pp_tensor *t);
/* Whether norms of a family's file lack the 1 that must be added. Only their values tell: with it hardly any are
 * negative, without it many. */
bool pp_gguf_lacks_ones(const struct pp_gguf *g, const char *family);
/* Adds the tensors that t becomes. lacks_ones: pp_gguf_lacks_ones of its file. */
enum pp_code pp_gguf_form_add(struct pp_tensor_list *l, const char *family, const struct pp_tensor *t, bool lacks_ones,
                              struct pp_error *err);

/* Adds a folder's tensor of the form PP_HF_HALVES; gate ("blk.3.ffn_gate_exps.weight") and up: its GGUF names. */
enum pp_code pp_hf_halves_add(struct pp_tensor_list *l, const struct pp_tensor *t, const char *gate, const char *up,
                              struct pp_error *err);

/* Adds a folder's matrix of the form PP_HF_SCALED, or with hparams.scales.latents a norm, under its GGUF name: in F32,
 * as the products may have more digits. */
enum pp_code pp_hf_scaled_add(struct pp_tensor_list *l, const struct pp_tensor *t, const struct pp_hparams *hp,
                              const char *name, struct pp_error *err);

/* The factor of row `row` of the matrix with this name; and whether the folder gives any factor other than 1. If not,
 * it may have been made from a file whose weights include the factors. */
float pp_hf_row_scale(const struct pp_hparams *hp, const char *name, int64_t row);
bool pp_hf_has_scales(const struct pp_hparams *hp);

/* The number of pieces in a folder's matrix of the form PP_HF_QKV_IN_PIECES. */
int64_t pp_hf_qkv_pieces(const struct pp_hparams *hp);

/* Which of q, k and v (0 to 2) has row `row` of a folder's matrix of the form PP_HF_QKV_STACKED, PP_HF_QKV_BY_GROUP or
 * PP_HF_QKV_IN_PIECES; *in: which row of that it is. */
int pp_hf_qkv_row(enum pp_hf_form form, const struct pp_hparams *hp, int64_t row, int64_t *in);

/* Gives NVFP4 matrices their factors, once all tensors are in the list. PP_ERR_FORMAT: their number differs from that
 * of the matrices. */
enum pp_code pp_gguf_take_scales(struct pp_tensor_list *l, struct pp_error *err);

/* Latent attention: splits "blk.3.attn_kv_b.weight", in which older GGUF files and folders have each head's rows of
 * keys and of values, into "blk.3.attn_k_b.weight", [n_head, kv_lora_rank, qk_nope_dim], the transposed keys of each
 * head, and "blk.3.attn_v_b.weight", [n_head, v_head_dim, kv_lora_rank]; if both exist already, it is dropped. Floats
 * and values keep their type; keys of quantised matrices, whose blocks cannot be transposed, become Q8_0. */
enum pp_code pp_split_heads(struct pp_tensor_list *l, const struct pp_hparams *hp, struct pp_error *err);
/* The reverse: sets *both to the matrix of k_b and v_b: the one that they were made from, or one with `rows` that joins
 * them. */
enum pp_code pp_join_heads(const struct pp_tensor *k_b, const struct pp_tensor *v_b, const struct pp_hparams *hp,
                           struct pp_tensor *both, struct pp_rows *rows, struct pp_error *err);

/* Joins a folder's "blk.3.attn_q_norm.7.weight", the norm of one head, and those of the other heads to rows of
 * "blk.3.attn_q_norm.weight". PP_ERR_FORMAT: one is missing, or has another size or type than the first. */
enum pp_code pp_join_head_norms(struct pp_tensor_list *l, const struct pp_hparams *hp, struct pp_error *err);

#endif
