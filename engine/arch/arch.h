/* arch.h - a model family: its tensors' names in Hugging Face folders and GGUF files, how its hyperparameters are read
 * and written, and what its layers consist of.
 *
 * One struct pp_arch per family, in engine/arch/NAME.c together with similar ones; engine/arch/arch.c lists them. */
#ifndef PP_ENGINE_ARCH_ARCH_H
#define PP_ENGINE_ARCH_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/plan.h"
#include "engine/source.h"

struct cJSON;
struct pp_gguf_writer;

/* The order of a matrix's rows in a GGUF file, relative to the Hugging Face folder. GGUF's llama rotates neighbouring
 * pairs (2i, 2i + 1) where Hugging Face rotates (i, i + head_dim / 2), so its converter interleaves the two halves of
 * each head of q and k, and of their biases. */
enum pp_row_order {
    PP_ROWS_SAME,
    PP_ROWS_Q,   /* interleaved within each of the n_head heads */
    PP_ROWS_K,   /* interleaved within each of the n_head_kv heads */
    PP_ROWS_QKV, /* a fused attn_qkv: q and k are interleaved, v is not; supported for writing GGUF files only */
};

/* How a tensor of a Hugging Face folder differs from ours, which has the layout of GGUF files. Shapes are given in
 * PyTorch's order, the contiguous dimension last. Forms that make two tensors of one name them `gguf` and `second`. */
enum pp_hf_form {
    PP_HF_SAME,
    PP_HF_PLUS_ONE,       /* a norm's weight, stored without the 1 that is added to it */
    PP_HF_PLUS_0_2,       /* the same with 0.2 (PLaMo 2) */
    PP_HF_PLUS_0_2_POW_1_5, /* the same with 0.2^1.5 */
    PP_HF_TRANSPOSED,     /* [n_in, n_out] */
    PP_HF_QKV_FUSED_BY_GROUP, /* a fused attn_qkv with rows ordered by KV head: for each its heads of q, then k, then v.
                             Ours is fused as well, with all of q, then k, then v */
    PP_HF_EXPERTS_TRANSPOSED, /* [n_expert, n_in, n_out] */
    PP_HF_EXPERTS_INTERLEAVED, /* [n_expert, n_in, 2 n_out], gate and up in alternate columns */
    PP_HF_EXPERTS_HALVES, /* [n_expert, n_in, 2 n_out], all columns of the gate, then those of up */
    PP_HF_BIASES_INTERLEAVED, /* [n_expert, 2 n_out], gate and up in alternate columns */
    PP_HF_AFTER_RESERVED, /* a table of positions that starts with n_reserved_positions unused rows */
    PP_HF_QKV_STACKED,    /* all rows of q, then k, then v: become attn_q, attn_k and attn_v */
    PP_HF_GATE_QKV,       /* rows of attn_gate, then as PP_HF_QKV_STACKED; never written */
    PP_HF_QKV_BY_GROUP,   /* rows ordered as in PP_HF_QKV_FUSED_BY_GROUP: become attn_q, attn_k and attn_v */
    PP_HF_QKV_IN_PIECES,  /* PP_HF_QKV_PIECES (or hparams.qkv_pieces) equal pieces, each with its heads' rows of q, v
                             and k in that order, as they were split over devices for training */
    PP_HF_HALVES,         /* rows of the gate, then rows of up; a stack of experts is split expert by expert, where it
                             lies */
    PP_HF_HALVES_BY_HEAD, /* for each head head_dim rows of the first tensor, then of the second: keys and values, or
                             queries and their gates */
    PP_HF_INTERLEAVED,    /* alternate rows, or values of a vector: gate, up, gate, up ... */
    PP_HF_ONE_ROW,        /* a vector, stored as [1, n] */
    PP_HF_SCALAR,         /* a vector of one value, stored without a dimension */
    PP_HF_CONV,           /* a depthwise convolution [n, taps], stored as [n, 1, taps]; by MLX as [n, taps, 1] */
    PP_HF_CONV_3D,        /* stored like PP_HF_CONV, or as [n, taps]; ours is [n, 1, taps] */
    PP_HF_CONV_BY_HEAD,   /* [n_head, taps], stored as [1, 1, n_head, 1, taps] */
    PP_HF_MINUS_EXP,      /* stored as a logarithm: ours is -exp(x) (Mamba's A_log) */
    PP_HF_COLUMN,         /* [n, 1], stored as a vector */
    PP_HF_MINUS_EXP_COLUMN, /* [n, 1] of -exp(x), stored as a vector */
    PP_HF_MINUS_EXP_4D,   /* [n, 1] of -exp(x), stored as [1, 1, n, 1] */
    PP_HF_EXP_4D,         /* [n, 1] of exp(x), stored as [1, 1, n, 1] */
    PP_HF_VECTOR_OR_ROW,  /* a vector in folders; GGUF files may have it as [1, n] */
    PP_HF_SCALED,         /* a matrix whose rows are multiplied by hparams.scales as they are read */
    PP_HF_FLAT_GROUPS,    /* [n_group, n], a norm by group of states, stored as one vector */
    PP_HF_LERP,           /* one of RWKV's token-shift vectors, which we and newer GGUF files keep in one tensor */
    PP_HF_STATE_HEAD_ROWS, /* a vector, stored as [n_head, head_dim] */
    PP_HF_VECTOR_3D,      /* a vector, stored as [1, 1, n] */
    PP_HF_ONE_MINUS,      /* a vector, stored as [1, 1, n]: ours is 1 - x */
    PP_HF_TWO_TAPS_4D,    /* a convolution [n_out, n_in, 2, 1]: the matrix for the position before, and `second` for the
                             position itself */
    PP_HF_TWO_TAPS_3D,    /* the same as [n_out, n_in, 2] */
    PP_HF_FIRST_ROW,      /* a vector that is row 0 of a matrix */
    PP_HF_EXPERTS_FLAT,   /* [n_expert * n_out, n_in] */
    PP_HF_EXPERTS_FLAT_TRANSPOSED, /* [n_expert * n_in, n_out] */
    PP_HF_PRODUCT,        /* a vector that is the element-wise product of two stored ones */
    PP_HF_UNIT_ROWS,      /* with hparams.unit_output, each row is scaled to length 1 */
    /* RWKV 6's low-rank token shift, five mixes in one tensor: the folder has them in the order r, k, v, w, g, we have
     * w, k, v, r, g. */
    PP_HF_MIX_W1,         /* time_maa_w1, [n_in, 5 rank] */
    PP_HF_MIX_W2,         /* time_maa_w2, [5, rank, n_out] */
    /* The same in flash-linear-attention, in the order r, w, k, v, g; never written. */
    PP_HF_FLA_MIX_W1,     /* [5 rank, n_in] */
    PP_HF_FLA_MIX_BIAS,   /* [5, n] */
    PP_HF_FLA_MIX_W2,     /* [n_out, 5 rank]: a block of columns for each mix */
    PP_HF_INDEXER_Q_K,    /* rows of the queries of an indexer's heads, then of its one key */
    PP_HF_INTEGERS,       /* a matrix of I32 or I64 */
    PP_HF_HALF_NEGATED,   /* heads that rotate in the opposite direction: the rows of the second half of each head have
                             their sign flipped; never written */
    PP_HF_ADAPTERS,       /* [n, 1, n_out, n_in], the matrices of n adapters; GGUF files have one of zeros before them.
                             Never written */
    PP_HF_TIMES_EIGHT,    /* multiplied by 8, since the epsilon of our head norm is 64 times the folder's */
};

enum { PP_HF_QKV_PIECES = 4 };

/* A line of a family's table of tensor names: "model.layers.{}.self_attn.q_proj" is "blk.{}.attn_q". {} stands for a
 * number, the layer's or an expert's. Both names continue with ".weight" or ".bias", unless they are `whole`.
 *
 * The first line that matches counts, so a line that holds only for some models or layers stands before the general
 * one. */
struct pp_arch_name {
    const char *hf;
    const char *gguf;
    enum pp_row_order rows;
    enum pp_hf_form form;
    bool whole;           /* the names are complete, without ".weight" or ".bias" to follow */
    bool mlx;             /* MLX's folders only */
    bool not_mlx;         /* all folders but MLX's */
    bool read_only;       /* an alternative that some folders have; never written */
    bool two_norms;       /* only models with hparams.two_norms */
    bool projection_only; /* only layers that have a projection in place of attention */
    bool recurrent;       /* only layers with recurrent states */
    bool shared_block;    /* only layers that use a block which several layers share */
    int half;             /* one layer of a folder is two of ours, this tensor being of the first (1) or the second (2);
                             0: layers correspond one to one */
    enum { PP_STACK_NONE, PP_STACK_LOW, PP_STACK_HIGH } stack; /* the folder numbers the layers of two stacks from 0
                             each; ours has those of the low stack first */
    bool dense;           /* only models without experts */
    bool hashed;          /* {} in the folder's name is hparams.hashed.layer, GGUF's name has no number; only written */
    const char *second;   /* the other tensor of a form that makes two */
};

/* What a decoder's layers consist of, as far as the hparams do not say; decoder.c makes a plan of it. All zeros is
 * Llama: RMSNorm before attention and before a gated feed-forward part, and rotated heads. */
struct pp_decoder {
    /* --- norms --- */
    bool layer_norm;          /* LayerNorm, which subtracts the mean; else RMSNorm */
    bool norm_bias;           /* norms always have a bias; in any family one that is there is used */
    bool plain_norm;          /* norms have neither weight nor bias */
    bool post_norm;           /* the outputs of attention and feed-forward are normalised before they are added:
                                 post_attention_norm, post_ffw_norm */
    bool no_pre_norm;         /* the inputs of attention and feed-forward are not normalised */
    float post_norm_eps;      /* the epsilon of post-norms; 0: the model's */
    bool norms_before_states; /* recurrent layers have pre-norms and no post-norms, whatever the others have */
    bool sub_norms;           /* the inputs of the output projections are normalised (BitNet): attn_sub_norm,
                                 ffn_sub_norm */
    /* Norms of queries and keys: none; one vector of head_dim for all heads; one vector over all heads together; or,
     * where hparams.qk_norm says so, one vector for all heads or one for each; or one over all heads together. */
    enum { PP_QK_NONE, PP_QK_BY_HEAD, PP_QK_WHOLE, PP_QK_OPTIONAL, PP_QK_WHOLE_OPTIONAL } qk_norm;
    bool layer_norm_heads;    /* PP_QK_OPTIONAL: LayerNorm for heads, RMSNorm elsewhere */
    float head_eps;           /* PP_QK_OPTIONAL: their epsilon; 0: the model's */
    bool norm_replaces_stream; /* no_pre_norm: each part's norm replaces the residual stream itself; then stream and
                                 result are added with the weights in hparams.stream_scales (MiniMax) */
    bool experts_read_stream; /* no_pre_norm: experts read the residual stream as it is */
    bool unweighted_qk_norm;  /* with hparams.qk_norm, rotated layers have an RMSNorm without weights for queries and
                                 keys */
    bool unweighted_v_norm;   /* heads of values have an RMSNorm without weights */
    bool norm_after_rope;     /* queries and keys are normalised after RoPE, not before it */

    /* --- matrices, feed-forward part and experts --- */
    bool fused_qkv;           /* q, k and v are one matrix, attn_qkv, unless the file has attn_q. Where a file has
                                 attn_qkv, it is used in any family */
    bool ungated;             /* down(fn(up(x))) instead of down(fn(gate(x)) * up(x)) */
    bool fused_gate;          /* ffn_up has the rows of the gate, then those of up */
    bool fused_shared;        /* the same for ffn_up_shexp */
    bool shared_expert_mix;   /* the outputs of the routed experts, together, and of the shared one are weighted by the
                                 softmax of two logits, from ffn_share (Klear) */
    enum pp_fn fn;
    /* How positions enter: rotated heads; position_embd, which is added to the input; that table where a model has it,
     * else ALiBi; or sinusoids in the table's place, of either layout. hparams.alibi overrides this in any family. */
    enum { PP_POS_ROTATED, PP_POS_LEARNED, PP_POS_LEARNED_OR_ALIBI, PP_POS_SINUSOIDS,
           PP_POS_FAIRSEQ_SINUSOIDS } positions;
    bool weighted_inputs;     /* an expert's input is multiplied by its weight, not its output (Llama 4) */
    bool early_router;        /* experts are chosen by the layer's input, before attention and without a norm */
    bool parallel_experts;    /* with hparams.parallel, experts too run in parallel with attention */
    bool experts_post_norm;   /* only layers with experts have a post-norm, for the sum of routed and shared experts:
                                 post_ffw_norm */
    bool experts_plus_dense;  /* a layer has both experts and a dense feed-forward part, each with norms of its own; the
                                 outputs are added (Gemma 4) */
    bool shortcut;            /* layers come in pairs: experts read what the first one's feed-forward part reads, and
                                 their output is added after the second (LongCat) */
    bool scaled_alibi;        /* ALiBi's slopes are multiplied by the scale of the scores */

    /* --- input and output --- */
    bool embd_norm;           /* the embeddings are normalised: token_embd_norm */
    bool plain_embd_norm;     /* that norm has neither weight nor bias */
    bool bidirectional;       /* an encoder: attention is bidirectional, and the output is vectors, not logits. With
                                 hparams.n_dense they go through two matrices, with n_embd_out through `output` */
    bool projected_inputs;    /* per-layer inputs are computed from the embeddings only, without a table of tokens */
    bool no_first_attn_norm;  /* attention of layer 0 reads the embeddings without another norm (ModernBERT) */
    bool dense_head;          /* output_dense, fn and output_dense_norm stand between the last norm and the output, and
                                 output.bias is added to the logits, even with tied embeddings */
    bool head_bias;           /* output.bias is added to the logits, even with tied embeddings */

    /* --- details --- */
    bool clamp_before_silu;   /* bounded gates (hparams.gate_bound) are clamped before SiLU, not after it */
    bool index_rope_last;     /* an indexer's heads are rotated in their last dimensions, not their first */
    bool index_default_eps;   /* the norm of an indexer's key has the model's epsilon, not 1e-6 */
    bool k_rope_norm;         /* latent attention: the rotated part of the key has a norm of its own, attn_k_norm */
    bool gains;               /* Talkie's scalars: normalised heads of queries are multiplied by those of attn_q_norm,
                                 the outputs of the parts by attn_output.scale and ffn_down.scale, if there; and after
                                 each layer the embeddings are added, times layer_output_scale */
    bool sinks;               /* attn_sinks in every layer: a logit for each head that only adds to the softmax's sum */
    bool some_sinks;          /* layers for which the file has attn_sinks use them */
    bool gated_queries;       /* attn_q gives for each head a query, then a gate: the head's output is multiplied by its
                                 sigmoids (Qwen3-Next) */
    bool gated_attention;     /* the output of attention is multiplied by the sigmoid of attn_gate's product, which has
                                 a number for each value or, with hparams.per_head_gates, one for each head */
    bool full_rank;           /* Kimi Linear's decays and gates come from one matrix each, not from a low-rank pair */
    bool full_rank_gates;     /* only its gates do: ssm_g */
    bool softplus_gates;      /* gated_attention: softpluses instead of sigmoids */
    bool affine_residual;     /* the embeddings, and for each part both the stream and the part's output, become
                                 (x + bias) * weight: embd_scale, {attn,ffn}_residual, {attn,ffn}_result */
    bool scaled_residual;     /* the stream is multiplied by a vector before a part's output is added: attn_residual,
                                 ffn_residual */

    /* --- names --- */
    const char *mixture_norm; /* experts run in parallel with the whole layer and read its input after this norm; NULL:
                                 they take the place of the feed-forward part */
    const char *ffn_norm;     /* the norm before the feed-forward part; NULL: ffn_norm */
    const char *attn_post_norm; /* the post-norm of attention; NULL: post_attention_norm */
    const char *ffn_post_norm; /* that of the feed-forward part, in layers that have it; else post_ffw_norm */
    const char *output_norm;  /* the norm after the last layer; NULL: output_norm */
};

/* The same for an encoder with post-norms (BERT): each norm is of the sum of the stream and a part's output. encoder.c
 * makes a plan of it. */
struct pp_encoder {
    bool positions;           /* position_embd is added to the input */
    bool rotated;             /* queries and keys are rotated */
    float alibi;              /* struct pp_op's `alibi` */
    bool gated;               /* down(fn(gate(x)) * up(x)); else gated only if the file has ffn_gate, or one matrix with
                                 both */
    enum pp_fn fn;
};

/* What transformers assumes where config.json lacks a key, beyond what hparams_config.c assumes. */
struct pp_arch_default {
    const char *model_type, *hf_class; /* the models of the family that it holds for; NULL: all */
    const char *json;                  /* an object; NULL at the end of the list */
};

/* A family some of whose models are multimodal. Their config.json has the language model's part in text_config, and the
 * names of its tensors have a prefix. */
struct pp_arch_parts {
    const char *model_type;           /* of a text_config that does not say it, */
    const char *other_type;           /* or that says this one, which is another family's; or NULL */
    const char *const *prefixes;      /* pairs: a name's beginning, and what replaces it; NULL at the end */
    const char *const *others;        /* beginnings of the names of tensors that are not the language model's; NULL at
                                         the end */
};

struct pp_arch {
    const char *name;                 /* general.architecture */
    const char *const *other_names;   /* further values of it, NULL at the end; or NULL */
    const char *file_name;            /* general.architecture of the GGUF files that we write, where other programs run
                                         the model as this family; pp_family_key then has `name`. NULL: name */
    const char *tempered_name;        /* the same for models with attn_temperature; or NULL */
    const char *mixture_name;         /* the same for models with experts; or NULL */
    const char *const *hf_classes;    /* `architectures` in config.json; NULL at the end */
    const struct pp_arch_name *names; /* hf is NULL at the end */
    const struct pp_arch_name *more_names; /* searched after those; or NULL */
    const char *const *ignored;       /* ends of names of a folder's tensors that are not needed; NULL at the end */
    const struct pp_arch_default *defaults; /* or NULL */
    const struct pp_arch_parts *parts; /* or NULL */
    bool gguf_neox;                   /* rope_neox of the family's GGUF files */
    bool hf_pairs;                    /* folders rotate neighbouring pairs (2i, 2i + 1), as GGUF's llama does */
    /* What GGUF files of the family leave out or write in their own way: */
    float gguf_eps;                   /* the norms' epsilon, which has no key; 0: it has one */
    int layer_pattern;                /* every layer_pattern-th layer has no window; 0: there is no such rule */
    bool pattern_from_first;          /* counted so that layer 0 is the first of them, not layer_pattern - 1 */
    int unrotated_pattern;            /* every such layer is not rotated; 0: none, or those without a window */
    bool gguf_divides_logits;         /* logit_scale divides the logits */
    bool gguf_has_parallel_key;       /* use_parallel_residual is a key */
    bool gguf_doubles_ff;             /* feed_forward_length counts the rows of gate and up together */
    bool gguf_ff_of_experts;          /* feed_forward_length is that of the experts */
    bool gguf_doubles_rope;           /* rope.dimension_count is twice what layers without a window rotate */
    bool gguf_untied;                 /* output.weight is always there, a copy if the embeddings are tied */
    bool gguf_scaled_output;          /* that copy is multiplied by logit_scale, which then has no key */
    bool gguf_output_scale;           /* the key of attn_scale is attention.output_scale */
    bool gguf_has_window_key;         /* attention.sliding_window is there even if it is 0 */
    bool yarn_no_truncate;            /* rope_no_truncate holds, without a key */
    bool gguf_default_no_renorm;      /* hparams.expert_no_renorm, unless expert_weights_norm says otherwise */
    bool gguf_default_sigmoids;       /* hparams.expert_sigmoids, unless expert_gating_func says otherwise */
    bool experts_vary;                /* layers may differ in experts: hparams.experts_vary */
    bool gguf_split_states;           /* inputs of states come from a matrix each, where folders have them together by
                                         key head (ssm_in, ssm_ba) */
    bool gguf_joined_kv_b;            /* attn_kv_b is one matrix, not attn_k_b and attn_v_b, with the keys that belong
                                         to this */
    struct pp_decoder decoder;
    const struct pp_encoder *encoder; /* of a family of encoders with post-norms; or NULL */
    /* Families that take over a model of this one; or NULL: */
    const struct pp_arch *rotary_variant; /* config.json has position_embedding_type "rotary" */
    const struct pp_arch *attn_res_variant; /* config.json has attn_res_block_size */
    const struct pp_arch *bidirectional_variant; /* config.json has use_bidirectional_attention */
    /* Fill what the family adds to the common fields, and refuse what its plan cannot compute. May be NULL. */
    enum pp_code (*from_config)(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
    enum pp_code (*from_gguf)(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err);
    /* Writes the keys that only this family has; export_keys.c writes the others. May be NULL. */
    void (*to_gguf)(const struct pp_hparams *hp, struct pp_gguf_writer *w);
    /* Makes the config.json of a GGUF file, beginning with what export_config.c wrote into it. NULL: there is none for
     * this family. */
    void (*to_config)(const struct pp_hparams *hp, struct cJSON *config);
    /* Families with PP_HF_SCALED: changes config.json, which describes the folder's own weights, so that it holds for
     * the multiplied ones. tied: the output is the embeddings. Or NULL. */
    void (*scaled_config)(const struct pp_hparams *hp, bool tied, struct cJSON *config);
    const char *hf_logit_scale;       /* the folder's tensor that holds hparams.logit_scale; or NULL */
    const char *hf_eps;               /* config.json's key of norm_eps; NULL: rms_norm_eps */
};

/* Whether the family's models are encoders, with post-norms or pre-norms. */
static inline bool pp_arch_encodes(const struct pp_arch *a)
{
    return a->encoder || a->decoder.bidirectional;
}

/* All families; i from 0, NULL at the end. */
const struct pp_arch *pp_arch_at(size_t i);
const struct pp_arch *pp_arch_by_name(const char *name);     /* either GGUF name, or NULL */
const struct pp_arch *pp_arch_by_class(const char *hf_class); /* or NULL */
/* Whether config.json has this model_type or, lacking a model_type, this class (which may be NULL). */
bool pp_arch_is_kind(const struct cJSON *config, const char *model_type, const char *hf_class);
/* A multimodal model around a language model of any family: wrapped.c. */
struct pp_arch_wrapper {
    const char *const *classes;       /* NULL at the end */
    const char *keys[2];              /* the path in config.json to the language model's part; none: the whole is it */
    bool fixes_type;                  /* model_type is what pp_wrapped_type returns, whatever the part says */
    bool rope_outside;                /* rope_scaling may stand outside the part */
    bool own_norm;                    /* "norm." is a norm for images, where other folders have the text's last norm */
};
const struct pp_arch_wrapper *pp_wrapper_by_class(const char *hf_class); /* or NULL */
const struct cJSON *pp_wrapped_config(const struct pp_arch_wrapper *w, const struct cJSON *config); /* or NULL */
/* The model_type of a part that lacks its own, from the configuration and class of the whole; NULL: those do not
 * determine it. */
const char *pp_wrapped_type(const struct pp_arch_wrapper *w, const struct cJSON *whole, const char *hf_class);
const char *pp_wrapped_usual(const char *model_type); /* defaults for such a part, a JSON object */
bool pp_name_begins(const char *name, const char *begin);
/* The family's name for a tensor of the language model. False: the name is the same, and *name is empty. */
bool pp_wrapped_name(const char *hf, struct pp_buf *name);
bool pp_is_other_modality(const char *hf); /* a tensor for images or sound */
/* The same for this wrapper, whose folders may use names that are the language model's in others. */
bool pp_wrapped_other_modality(const struct pp_arch_wrapper *w, const char *hf);
/* Marks the layers of a language model that attend to images only, and removes them from its configuration. There may
 * be none. */
enum pp_code pp_wrapped_drop_layers(struct cJSON *config, bool left_out[PP_MAX_LAYERS], struct pp_error *err);
/* *name: a tensor's name when the marked layers are not counted. False: it is a tensor of a marked layer. */
bool pp_wrapped_renumber(const bool left_out[PP_MAX_LAYERS], const char *hf, struct pp_buf *name);
/* What pippin would have to compute for a family that it does not support, for errors; family: either kind of name.
 * NULL: not known. */
const char *pp_arch_missing(const char *family);
/* general.architecture of the GGUF files of such a model. */
const char *pp_arch_file_name(const struct pp_hparams *hp);
extern const char pp_family_key[];
/* The family of a GGUF file with this architecture; NULL: none. */
const struct pp_arch *pp_arch_of_file(const struct pp_gguf *g, const char *architecture);
/* "llama, ..." for errors. */
void pp_arch_list(struct pp_buf *out);

enum pp_name_match { PP_NAME_UNKNOWN, PP_NAME_IGNORED, PP_NAME_FOUND };
/* Translates a Hugging Face tensor name, replacing the contents of *gguf. rows may be NULL. */
enum pp_name_match pp_arch_gguf_name(const struct pp_arch *a, const char *hf, struct pp_buf *gguf,
                                     enum pp_row_order *rows);
/* The same for a model with these hparams, or NULL. *entry: the table's line, which has the form; *second: the other
 * name of a form that makes two tensors, else empty. */
enum pp_name_match pp_arch_translate(const struct pp_arch *a, const struct pp_hparams *hp, const char *hf,
                                     const struct pp_arch_name **entry, struct pp_buf *gguf, struct pp_buf *second);
/* The row order of a tensor by its GGUF name, and the form of the folder's tensor. */
enum pp_row_order pp_arch_rows(const struct pp_arch *a, const char *gguf_name);
enum pp_hf_form pp_arch_form(const struct pp_arch *a, const char *gguf_name);
/* The name of a tensor in a folder of such a model, Hugging Face's or MLX's, and the table's line that has it. A
 * `second` tensor, whose values are stored together with the first one's, has that one's name. NULL: folders do not
 * have it. */
const struct pp_arch_name *pp_arch_hf_name(const struct pp_arch *a, const struct pp_hparams *hp, const char *gguf_name,
                                           bool mlx, struct pp_buf *name);
/* The module of a Hugging Face model that has a weight by its GGUF name: "blk.3.attn_q.weight" gives
 * "model.layers.3.self_attn.q_proj". hp: the model's, or NULL. False: there is none. */
bool pp_arch_hf_module(const struct pp_arch *a, const struct pp_hparams *hp, const char *gguf_name,
                       struct pp_buf *module);

/* For writing config.json: set or replace the value of a key. Floats have as many digits as reading them back takes. */
void pp_config_put(struct cJSON *config, const char *key, int64_t v);
void pp_config_put_float(struct cJSON *config, const char *key, float v);
void pp_config_put_text(struct cJSON *config, const char *key, const char *v);
void pp_config_put_class(struct cJSON *config, const char *hf_class, const char *model_type);

/* The activation function of a decoder's feed-forward parts. */
enum pp_fn pp_decoder_fn(const struct pp_decoder *d, const struct pp_hparams *hp);
/* Builds the plan of a decoder: decoder.c. */
enum pp_code pp_plan_decoder(const struct pp_source *s, const struct pp_decoder *d, struct pp_plan *plan,
                             struct pp_error *err);

/* Builds the plan of an encoder with post-norms: encoder.c. */
enum pp_code pp_plan_encoder(const struct pp_source *s, const struct pp_encoder *e, struct pp_plan *plan,
                             struct pp_error *err);

/* Whether the rows of q and k are in another order than in folders of the family, although other GGUF files of the
 * family have the folders' order. */
bool pp_arch_other_pairs(const struct pp_hparams *hp);
/* Row r of an interleaved matrix (GGUF) is row pp_hf_row(r) of the Hugging Face one; pp_gguf_row is the inverse. */
int64_t pp_hf_row(int64_t gguf_row, int64_t head_dim);
int64_t pp_gguf_row(int64_t hf_row, int64_t head_dim);

#endif
