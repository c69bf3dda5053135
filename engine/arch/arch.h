/* arch.h - what a model family looks like in files: its names on both sides and where its numbers stand.
 *
 * One struct pp_arch per family, in engine/arch/NAME.c with those that resemble it, listed in engine/arch/arch.c. */
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
    PP_HF_CONV_3D,        /* stored likewise, or as [n, taps]; ours is [n, 1, taps] */
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

/* "model.layers.{}.self_attn.q_proj" and "blk.{}.attn_q"; {} stands for a number, the layer's or an expert's. ".weight"
 * or ".bias" follows on both sides, unless the names are `whole`. */
struct pp_arch_name {
    const char *hf;
    const char *gguf;
    enum pp_row_order rows;
    enum pp_hf_form form;
    bool whole;
    bool mlx;             /* only MLX has it so */
    bool not_mlx;         /* MLX has it otherwise */
    bool only_read;       /* some folders of the family have it so, but not those that are written */
    bool two_norms;       /* only models with hparams.two_norms do; stands before the line for others */
    bool in_place;        /* only layers with a projection in place of attention do; stands before the others' line */
    bool recurrent;       /* only layers with states do; stands before the others' line */
    bool sharing;         /* likewise layers that use a block of several's */
    int half;             /* a layer of a folder is two of ours: this is of the first (1) or the second (2) of them;
                             0: it is one */
    enum { PP_STACK_NONE, PP_STACK_LOW, PP_STACK_HIGH } stack; /* layers of the low stack are the first half of ours,
                             those of the high one the second */
    bool dense;           /* only models without experts do; stands before the line for others */
    bool hashed;          /* the hole of a folder's name is hparams.hashed.layer, which GGUF's does not say; not read */
    const char *second;
};

/* What a family's layers are made of, so far as hparams do not tell; decoder.c makes a plan of it. */
struct pp_decoder {
    bool layer_norm;          /* the mean is taken off */
    bool norm_bias;           /* something is added behind */
    bool plain_norm;          /* nothing is multiplied or added behind */
    bool post_norm;           /* what attention and feed-forward part give is normed: post_attention_norm,
                                 post_ffw_norm */
    bool no_pre_norm;         /* what goes into them is not */
    float post_norm_eps;      /* post_norm: the epsilon of those behind parts; 0: that of all norms */
    bool norms_before_states; /* both are otherwise in layers with states: norms before both parts, none behind */
    bool sub_norms;           /* what goes into their last matrices is: attn_sub_norm, ffn_sub_norm */
    /* How queries and keys are normed: by one vector for all heads, by one for all of them together, or, in some models
     * of the family only (pp_hparams.qk_norm), by one for all heads or one for each, or by one for all together. */
    enum { PP_QK_NONE, PP_QK_BY_HEAD, PP_QK_WHOLE, PP_QK_OPTIONAL, PP_QK_WHOLE_OPTIONAL } qk_norm;
    bool centred_heads;       /* they are normed by LayerNorm, others not */
    float head_eps;           /* PP_QK_OPTIONAL: the epsilon of their norms; 0: that of all norms */
    bool normed_stream;       /* no_pre_norm: a part's norm is of the stream, which goes on as it is then; both it and
                                 what is added are multiplied by hparams.stream_scales */
    bool raw_mixture;         /* no_pre_norm: experts read the stream itself, too */
    bool unit_heads;          /* with hparams.qk_norm, those that are rotated are normed without weights */
    bool unit_values;         /* heads of values are normed without weights */
    bool norm_behind_rope;    /* heads are normed after they are rotated */
    bool fused_qkv;           /* q, k and v are one matrix: attn_qkv. Where a file has that, it is used in any family */
    bool ungated;             /* down(fn(up(x))) instead of down(fn(gate(x)) * up(x)) */
    bool fused_gate;          /* the rows of ffn_up are those of the gate, then those of the value */
    bool fused_shared;        /* so are those of ffn_up_shexp */
    bool shared_share;        /* what experts give and what the one gives that every row uses are multiplied by the
                                 softmax of two numbers, ffn_share's */
    enum pp_fn fn;
    /* What knows positions: rotated heads, position_embd, which is added to the input, or ALiBi, in all models or, with
     * LEARNED_OR_ALIBI, in those that have no such table; or sinusoids in that one's place. Any family may have
     * hparams.alibi instead of its own. */
    enum { PP_POS_ROTATED, PP_POS_LEARNED, PP_POS_LEARNED_OR_ALIBI, PP_POS_SINUSOIDS,
           PP_POS_FAIRSEQ_SINUSOIDS } positions;
    bool weighed_inputs;      /* of experts */
    bool early_router;        /* experts are chosen by what comes into the layer, without a norm */
    bool parallel_mixture;    /* with hparams.parallel, experts stand beside attention, too */
    bool normed_mixture;      /* what experts give, with the one that every row uses, is normed: post_ffw_norm; what
                                 layers without experts give is not */
    bool mixture_beside;      /* of a feed-forward part that is there as well, each with norms of its own */
    bool shortcut;            /* layers come in pairs: the first has experts beside its feed-forward part, and what
                                 those give is added behind the second */
    bool scaled_alibi;        /* slopes are multiplied by what scores are */
    bool embd_norm;           /* what goes into the first layer is normed: token_embd_norm */
    bool plain_embd_norm;     /* but nothing is multiplied or added behind */
    bool both_ways;           /* rows see those behind them, too, and there are no logits: an encoder, whose vectors go
                                 through two matrices where hparams.n_dense says so, or through output where
                                 hparams.n_embd_out does */
    bool projected_inputs;    /* layers' own inputs come of what goes into the first one alone, of no table */
    bool first_unnormed;      /* what goes into the first layer's attention is not normed once more */
    bool dense_head;          /* what the last norm gives goes through output_dense, fn and output_dense_norm, and
                                 output.bias is added to logits, even if the matrix is the embeddings */
    bool head_bias;           /* output.bias is, too, without such a head */
    bool bounded_gates;       /* where gates are bounded, they are before SiLU, not behind */
    bool index_behind;        /* of an index's heads the last values are rotated, not the first */
    bool index_usual_eps;     /* its key's norm has the epsilon of all norms, not one of its own */
    bool normed_rotated;      /* of latent attention's key what is rotated has a norm, too: attn_k_norm */
    bool gains;               /* heads of queries, behind their norm, are multiplied by the numbers of attn_q_norm, what
                                 parts give by attn_output.scale and ffn_down.scale, where they are there; and what came
                                 into the first layer is added behind each, times layer_output_scale */
    bool sinks;               /* attn_sinks */
    bool some_sinks;          /* layers that have them */
    bool gated_queries;       /* attn_q gives for each head a query, then what a gate's sigmoids are made of by which
                                 the head's result is multiplied */
    bool gated_attention;     /* what attention gives is multiplied by the sigmoids of attn_gate's product, which has a
                                 number for each value or one for each head */
    bool whole_rank;          /* Kimi Linear's decays and gates come of one matrix each, not of a product of two */
    bool whole_gates;         /* its gates only: ssm_g */
    bool soft_gates;          /* those are softpluses instead */
    bool scaled_parts;        /* what goes into the first layer, and behind each part the stream and what is added to
                                 it, are added to a vector and multiplied by one: embd_scale, attn_residual,
                                 attn_result, ffn_residual, ffn_result */
    bool weighed_stream;      /* before a part's result is added the stream is multiplied by a vector: attn_residual,
                                 ffn_residual */
    const char *mixture_norm; /* experts stand beside a whole layer and read what comes into it behind this norm; NULL:
                                 they stand in the feed-forward part's place */
    const char *ffn_norm;     /* what the norm before the feed-forward part is called; NULL: ffn_norm */
    const char *attn_post_norm; /* post_norm: the one behind attention; NULL: post_attention_norm */
    const char *ffn_post_norm; /* and the one behind the feed-forward part, where it is there; else post_ffw_norm */
    const char *output_norm;  /* and the one behind the last layer; NULL: output_norm */
};

/* The same of an encoder: what is added is normed together with what it is added to. encoder.c makes a plan of it. */
struct pp_encoder {
    bool positions;           /* position_embd is added to the input */
    bool rotated;             /* queries and keys are */
    float alibi;              /* of the attention operation */
    bool gated;               /* down(fn(gate(x)) * up(x)); else only if the file has a gate, or one together with up */
    enum pp_fn fn;
};

/* What transformers takes for granted where config.json has no such key, and hparams.c does not. */
struct pp_arch_usual {
    const char *model_type, *hf_class; /* of which kind of the family's models; NULL: of all */
    const char *json;                  /* an object; NULL at the end */
};

struct pp_arch_parts {
    const char *model_type;           /* of a text_config that does not say it, */
    const char *other_type;           /* or says this one, another family's; or NULL */
    const char *const *prefixes;      /* pairs: what names begin with, what the tables have instead; NULL at the end */
    const char *const *others;        /* what the names of other parts begin with; NULL at the end */
};

struct pp_arch {
    const char *name;                 /* general.architecture */
    const char *const *other_names;   /* likewise; NULL at the end; or NULL */
    const char *file_name;            /* general.architecture of its GGUF files, which to other programs are of this
                                         family; they say ours under pp_family_key. NULL: name */
    const char *tempered_name;        /* the one that files of models with attn_temperature have; or NULL */
    const char *mixture_name;         /* and of those with experts */
    const char *const *hf_classes;    /* what config.json may call it under `architectures`; NULL at the end */
    const struct pp_arch_name *names; /* hf NULL at the end */
    const struct pp_arch_name *more_names; /* looked at behind those; or NULL */
    const char *const *ignored;       /* ends of Hugging Face tensor names that carry nothing; NULL at the end */
    const struct pp_arch_usual *usual; /* or NULL */
    /* Of a family of which some models see, too. In their folders config.json has an object text_config; the names of
     * the language part have a prefix; and there are tensors of other parts. NULL: none do. */
    const struct pp_arch_parts *parts;
    bool gguf_neox;                   /* rope_neox of the family's GGUF files */
    bool hf_pairs;                    /* the folder's heads have pairs side by side, too */
    /* What its GGUF files take for granted: */
    float gguf_eps;                   /* of the norms; 0: they say it */
    int layer_pattern;                /* each such layer has no window; 0: none */
    bool pattern_from_first;          /* the first layer is one of those, not the layer_pattern-th */
    int unrotated_pattern;            /* each such layer is not rotated; 0: none, or those without a window */
    bool gguf_divides_logits;         /* the key logit_scale is what logits are divided by */
    bool gguf_says_parallel;          /* there is a key for it */
    bool gguf_twice_ff;               /* feed_forward_length counts gate and value */
    bool gguf_ff_of_experts;          /* feed_forward_length is that of experts */
    bool gguf_twice_rope;             /* rope.dimension_count is twice what is rotated in layers without a window */
    bool gguf_untied;                 /* they hold output.weight even if it is the embeddings */
    bool gguf_scaled_output;          /* where that is the embeddings, times logit_scale, which no key says then */
    bool gguf_output_scale;           /* what scores are multiplied by is called attention.output_scale */
    bool gguf_says_window;            /* also that there is none */
    bool yarn_no_truncate;            /* rope_no_truncate */
    bool gguf_shares;                 /* expert_shares */
    bool gguf_sigmoids;               /* expert_sigmoids */
    bool uneven_experts;              /* hparams.uneven_experts may be set */
    bool gguf_states_apart;           /* what goes into states comes of a matrix each, not of one by keys (ssm_in,
                                         ssm_ba) as folders have it */
    bool gguf_joined_heads;           /* attn_kv_b instead of attn_k_b and attn_v_b, and what goes with it */
    struct pp_decoder decoder;
    const struct pp_encoder *encoder; /* the family's models are encoders; or NULL */
    const struct pp_arch *rotated;    /* meant instead if config.json says position_embedding_type "rotary"; or NULL */
    const struct pp_arch *banked;     /* meant instead if config.json says attn_res_block_size; or NULL */
    const struct pp_arch *both_ways;  /* meant instead if config.json says use_bidirectional_attention; or NULL */
    /* Fill what the family adds to the common fields, and refuse what its plan cannot compute. May be NULL. */
    enum pp_code (*from_config)(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
    enum pp_code (*from_gguf)(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err);
    /* Writes what only this family has (export_keys.c writes the rest). May be NULL. */
    void (*to_gguf)(const struct pp_hparams *hp, struct pp_gguf_writer *w);
    /* config.json of a GGUF file: adds what export_config.c does not, and replaces what is not so in this family. NULL:
     * none can be written. */
    void (*to_config)(const struct pp_hparams *hp, struct cJSON *config);
    /* Of families with PP_HF_SCALED: what is said of weights as they come becomes what is true of those that were
     * multiplied. tied: the output is the embeddings. Or NULL. */
    void (*scaled_config)(const struct pp_hparams *hp, bool tied, struct cJSON *config);
    const char *hf_logit_scale;       /* the tensor of a folder that is hparams.logit_scale; or NULL */
    const char *hf_eps;               /* what it calls the norms' epsilon; NULL: rms_norm_eps */
};

/* Whether the family's models are encoders, of either kind. */
static inline bool pp_arch_encodes(const struct pp_arch *a)
{
    return a->encoder || a->decoder.both_ways;
}

/* All families; i from 0, NULL at the end. */
const struct pp_arch *pp_arch_at(size_t i);
const struct pp_arch *pp_arch_by_name(const char *name);     /* either GGUF name, or NULL */
const struct pp_arch *pp_arch_by_class(const char *hf_class); /* or NULL */
/* Whether a configuration is of a model of that type, or says only that it is of that class (which may be NULL). */
bool pp_arch_is_kind(const struct cJSON *config, const char *model_type, const char *hf_class);
/* Models around a language model of any family: wrapped.c. */
struct pp_arch_wrapper {
    const char *const *classes;       /* NULL at the end */
    const char *keys[2];              /* where config.json has the language model's part, one in the other; none: all of
                                         it is that */
    bool fixes_type;                  /* model_type is what pp_wrapped_type says, whatever stands there */
    bool rope_outside;                /* rope_scaling may stand beside that part instead */
    bool own_norm;                    /* "norm." is not the text's last norm, as in other folders, but of pictures */
};
const struct pp_arch_wrapper *pp_wrapper_by_class(const char *hf_class); /* or NULL */
const struct cJSON *pp_wrapped_config(const struct pp_arch_wrapper *w, const struct cJSON *config); /* or NULL */
/* model_type of such a part that does not say its own, by the configuration and the class of the whole; NULL: that does
 * not fix it. */
const char *pp_wrapped_type(const struct pp_arch_wrapper *w, const struct cJSON *whole, const char *hf_class);
const char *pp_wrapped_usual(const char *model_type); /* an object of what such a part may leave out */
bool pp_name_begins(const char *name, const char *begin);
/* The family's name for a tensor of the language model; false, *name then being empty: it is the same. */
bool pp_wrapped_name(const char *hf, struct pp_buf *name);
bool pp_is_beside_text(const char *hf); /* a tensor of what sees or hears */
/* Likewise, though the text's may be called so in other folders. */
bool pp_wrapped_beside(const struct pp_arch_wrapper *w, const char *hf);
/* Marks the layers of a language model's configuration that only look at pictures, and makes it that of the model
 * without them. There need not be any. */
enum pp_code pp_wrapped_leave_layers(struct cJSON *config, bool left_out[PP_MAX_LAYERS], struct pp_error *err);
/* *name: what a tensor is called where those are not counted. False: it is of one of them. */
bool pp_wrapped_recount(const bool left_out[PP_MAX_LAYERS], const char *hf, struct pp_buf *name);
/* What a family needs that pippin does not compute, by either kind of name, for errors; NULL: nobody knows. */
const char *pp_arch_missing(const char *family);
/* general.architecture of the GGUF files of such a model. */
const char *pp_arch_file_name(const struct pp_hparams *hp);
extern const char pp_family_key[];
/* The family of a GGUF file that says this architecture; NULL: none. */
const struct pp_arch *pp_arch_of_file(const struct pp_gguf *g, const char *architecture);
/* "llama, ..." for errors. */
void pp_arch_list(struct pp_buf *out);

enum pp_name_match { PP_NAME_UNKNOWN, PP_NAME_IGNORED, PP_NAME_FOUND };
/* Translates a Hugging Face tensor name, appending the GGUF name to *gguf (emptied first). rows may be NULL. */
enum pp_name_match pp_arch_gguf_name(const struct pp_arch *a, const char *hf, struct pp_buf *gguf,
                                     enum pp_row_order *rows);
/* The same of a model with these numbers, or NULL; *entry: the table's line, which knows the form; *second: the
 * other name, if there is one, else empty. */
enum pp_name_match pp_arch_translate(const struct pp_arch *a, const struct pp_hparams *hp, const char *hf,
                                     const struct pp_arch_name **entry, struct pp_buf *gguf, struct pp_buf *second);
/* The row order of a tensor by its GGUF name, and the form that its folder has it in. */
enum pp_row_order pp_arch_rows(const struct pp_arch *a, const char *gguf_name);
enum pp_hf_form pp_arch_form(const struct pp_arch *a, const char *gguf_name);
/* What a tensor with a GGUF name is called in a folder of such a model, as Hugging Face has it or MLX, and the line of
 * the table that says so; of a `second` one, too, whose values are then in the tensor of that name together with the
 * first one's. NULL: it has no place there. */
const struct pp_arch_name *pp_arch_hf_name(const struct pp_arch *a, const struct pp_hparams *hp, const char *gguf_name,
                                           bool mlx, struct pp_buf *name);
/* The module in a Hugging Face model whose weight is called that in GGUF files: "blk.3.attn_q.weight" gives
 * "model.layers.3.self_attn.q_proj". hp: of the model, or NULL. False: there is none. */
bool pp_arch_hf_module(const struct pp_arch *a, const struct pp_hparams *hp, const char *gguf_name,
                       struct pp_buf *module);

/* For writing config.json: a value in place of what was there under the key; floats in digits that give the same. */
void pp_config_put(struct cJSON *config, const char *key, int64_t v);
void pp_config_put_float(struct cJSON *config, const char *key, float v);
void pp_config_put_text(struct cJSON *config, const char *key, const char *v);
void pp_config_put_class(struct cJSON *config, const char *hf_class, const char *model_type);

/* The function of a decoder's feed-forward parts. */
enum pp_fn pp_decoder_fn(const struct pp_decoder *d, const struct pp_hparams *hp);
/* Plans the layers of a decoder: decoder.c. */
enum pp_code pp_plan_decoder(const struct pp_source *s, const struct pp_decoder *d, struct pp_plan *plan,
                             struct pp_error *err);

/* Plans the layers of an encoder: encoder.c. */
enum pp_code pp_plan_encoder(const struct pp_source *s, const struct pp_encoder *e, struct pp_plan *plan,
                             struct pp_error *err);

/* Whether a file has the rows of q and k in another order than folders of its family have, although others of the
 * family do not. */
bool pp_arch_other_pairs(const struct pp_hparams *hp);
/* Row r of an interleaved matrix (GGUF) is row pp_hf_row(r) of the Hugging Face one; pp_gguf_row is the inverse. */
int64_t pp_hf_row(int64_t gguf_row, int64_t head_dim);
int64_t pp_gguf_row(int64_t hf_row, int64_t head_dim);

#endif
