/* tensor_forms.h - tensors that come under other names or in other pieces than those that we compute with, made into
 * them. Private to the engine; not thread-safe.
 *
 * GGUF files:
 * - ffn_gate_up_exps, of which each expert has the rows of its gate, then those of its value (llama.cpp's converter
 *   with --fuse-gate-up-exps): a matrix of each expert's gate and one of its value, where they lie. Its biases
 *   likewise.
 * - gpt-oss of ollama's converter, whose files call their family gptoss: attn_out, attn_sinks and ffn_norm are
 *   attn_output, attn_sinks.weight and post_attention_norm. In its first files the rows of gate and value take turns in
 *   ffn_gate_up_exps, and MXFP4 has the number 4 and weights 2 i and 2 i + 1 in byte i of a block
 *   (PP_TYPE_MXFP4_PAIRS); weights i and i + 16 share one in GGUF's MXFP4.
 * - altup_proj and altup_unembd_proj: a matrix of each residual stream but the first, where it lies.
 * - GigaChat 3.5 of the first converter, whose norms lack the 1 that is added to them.
 * - NVFP4 becomes Q8_0, whose rounding is far finer. NAME.scale beside NAME.weight has what all scales of a matrix are
 *   multiplied by; NAME.input_scale is about activations in FP4, which we do not have. */
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
    PP_GGUF_PAIRS,     /* MXFP4 of two neighbours a byte */
    PP_GGUF_NVFP4,
    PP_GGUF_HALVES,    /* gate and value one behind the other */
    PP_GGUF_TURNS,     /* row by row in turns */
    PP_GGUF_HEADS,     /* attn_kv_b, for pp_split_heads */
    PP_GGUF_STREAMS,   /* a matrix for each residual stream but the first */
};
/* What a tensor of a GGUF file is in a family, which is called as the file calls it. */
enum pp_gguf_form pp_gguf_form(const char *family, const struct pp_tensor *t);
/* Whether norms of a family's file lack the 1 that is added to them. Nothing but their values tells: with it hardly any
 * are below 0, and without it many. */
bool pp_gguf_lacks_ones(const struct pp_gguf *g, const char *family);
/* Adds what it becomes. lacks_ones: it is of such a file. */
enum pp_code pp_gguf_form_add(struct pp_tensor_list *l, const char *family, const struct pp_tensor *t, bool lacks_ones,
                              struct pp_error *err);

/* A folder's tensor of the form PP_HF_HALVES, named as GGUF names the gates ("blk.3.ffn_gate_exps.weight") and the
 * values. */
enum pp_code pp_hf_halves_add(struct pp_tensor_list *l, const struct pp_tensor *t, const char *gate, const char *up,
                              struct pp_error *err);

/* A folder's matrix of the form PP_HF_SCALED, or with hparams.scales.latents a norm, under its GGUF name: in F32, as
 * the products may have more digits. */
enum pp_code pp_hf_scaled_add(struct pp_tensor_list *l, const struct pp_tensor *t, const struct pp_hparams *hp,
                              const char *name, struct pp_error *err);

/* By what row `row` of the matrix of that name is multiplied; and whether the folder says any such number but 1. One
 * that does not may have been made of a file, in which weights are multiplied already. */
float pp_hf_row_scale(const struct pp_hparams *hp, const char *name, int64_t row);
bool pp_hf_says_scales(const struct pp_hparams *hp);

/* In how many pieces a folder's matrix of the form PP_HF_QKV_IN_FOUR comes. */
int64_t pp_hf_qkv_pieces(const struct pp_hparams *hp);

/* Where row `row` of a folder's matrix of the form PP_HF_QKV_STACKED, PP_HF_QKV_BY_GROUP or PP_HF_QKV_IN_FOUR is: in q,
 * k or v (0 to 2), which row of that. */
int pp_hf_qkv_row(enum pp_hf_form form, const struct pp_hparams *hp, int64_t row, int64_t *in);

/* Takes the scales of NVFP4's matrices, once all tensors are in the list. PP_ERR_FORMAT: there are not as many as there
 * are matrices. */
enum pp_code pp_gguf_take_scales(struct pp_tensor_list *l, struct pp_error *err);

/* Latent attention: "blk.3.attn_kv_b.weight", in which older GGUF files and folders have rows of keys and of values of
 * each head, becomes "blk.3.attn_k_b.weight", [n_head, kv_lora_rank, qk_nope_dim], the heads' keys turned, and
 * "blk.3.attn_v_b.weight", [n_head, v_head_dim, kv_lora_rank]; where both are there already, it is left out. Floats and
 * values keep their type; keys of quantised matrices, whose blocks cannot be turned, become Q8_0. */
enum pp_code pp_split_heads(struct pp_tensor_list *l, const struct pp_hparams *hp, struct pp_error *err);
/* The other way round: makes *both the matrix of k_b and v_b: the one that they were made of, or else one whose rows
 * (for *rows) are made of those. */
enum pp_code pp_join_heads(const struct pp_tensor *k_b, const struct pp_tensor *v_b, const struct pp_hparams *hp,
                           struct pp_tensor *both, struct pp_rows *rows, struct pp_error *err);

/* A folder's "blk.3.attn_q_norm.7.weight", a norm of one head, and those of the other heads become rows of
 * "blk.3.attn_q_norm.weight". PP_ERR_FORMAT: one is missing, or has another size or type than the first. */
enum pp_code pp_join_head_norms(struct pp_tensor_list *l, const struct pp_hparams *hp, struct pp_error *err);

#endif
