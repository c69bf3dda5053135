/* families.h - all model families, which are defined in engine/arch/NAME.c, and names and readers that several of them
 * share. Private to engine/arch/. */
#ifndef PP_ENGINE_ARCH_FAMILIES_H
#define PP_ENGINE_ARCH_FAMILIES_H

#include "engine/arch/arch.h"

extern const struct pp_arch pp_arch_llama, pp_arch_qwen2, pp_arch_qwen3, pp_arch_qwen3moe, pp_arch_gemma;
extern const struct pp_arch pp_arch_qwen2moe, pp_arch_deepseek, pp_arch_dots1, pp_arch_glm4moe, pp_arch_minimax_m2;
extern const struct pp_arch pp_arch_ernie45_moe, pp_arch_bailingmoe2, pp_arch_hunyuan_moe, pp_arch_exaone_moe;
extern const struct pp_arch pp_arch_afmoe, pp_arch_bailingmoe, pp_arch_deepseek2, pp_arch_minicpm3;
extern const struct pp_arch pp_arch_gemma2, pp_arch_gemma3, pp_arch_gemma4, pp_arch_gemma3n, pp_arch_phi2;
extern const struct pp_arch pp_arch_phi3, pp_arch_gptoss, pp_arch_deci;
extern const struct pp_arch pp_arch_smollm3, pp_arch_granite, pp_arch_olmo2, pp_arch_cohere2, pp_arch_stablelm;
extern const struct pp_arch pp_arch_starcoder2, pp_arch_gptneox, pp_arch_gpt2, pp_arch_bert, pp_arch_nomic_bert;
extern const struct pp_arch pp_arch_jina_bert, pp_arch_seed_oss, pp_arch_ernie45;
extern const struct pp_arch pp_arch_exaone, pp_arch_exaone4, pp_arch_chatglm, pp_arch_glm4, pp_arch_command_r;
extern const struct pp_arch pp_arch_hunyuan_dense, pp_arch_olmoe, pp_arch_granitemoe, pp_arch_olmo, pp_arch_nemotron;
extern const struct pp_arch pp_arch_arcee, pp_arch_orion, pp_arch_internlm2, pp_arch_baichuan, pp_arch_phimoe;
extern const struct pp_arch pp_arch_falcon, pp_arch_bloom, pp_arch_mpt, pp_arch_apertus, pp_arch_llama4;
extern const struct pp_arch pp_arch_xverse, pp_arch_pangu, pp_arch_minicpm, pp_arch_starcoder, pp_arch_qwen;
extern const struct pp_arch pp_arch_nemotron_h, pp_arch_falcon_h1, pp_arch_mamba2, pp_arch_mamba, pp_arch_jamba;
extern const struct pp_arch pp_arch_molmo, pp_arch_molmo2, pp_arch_jina_vlm, pp_arch_olmo_first, pp_arch_phi4flash;
extern const struct pp_arch pp_arch_rwkv4, pp_arch_rwkv6, pp_arch_rwkv7, pp_arch_rwkv6qwen2, pp_arch_arwkv7;
extern const struct pp_arch pp_arch_lfm2, pp_arch_lfm2moe;
extern const struct pp_arch pp_arch_qwen3next, pp_arch_qwen35, pp_arch_qwen35moe;
extern const struct pp_arch pp_arch_granitehybrid;
extern const struct pp_arch pp_arch_bitnet, pp_arch_mistral4, pp_arch_mimo2, pp_arch_smallthinker;
extern const struct pp_arch pp_arch_deepseek32, pp_arch_glm_dsa, pp_arch_jais2, pp_arch_refact, pp_arch_codeshell;
extern const struct pp_arch pp_arch_mellum;
extern const struct pp_arch pp_arch_gptj, pp_arch_jais, pp_arch_maincoder, pp_arch_hunyuan_vl, pp_arch_hy_v3;
extern const struct pp_arch pp_arch_plm, pp_arch_step35, pp_arch_laguna, pp_arch_gemma_embedding, pp_arch_modern_bert;
extern const struct pp_arch pp_arch_gemma_embedding2;
extern const struct pp_arch pp_arch_eurobert, pp_arch_llama_embed, pp_arch_openelm, pp_arch_dbrx;
extern const struct pp_arch pp_arch_grok, pp_arch_arctic, pp_arch_grovemoe, pp_arch_neobert, pp_arch_jina_bert_v3;
extern const struct pp_arch pp_arch_ernie45_vl, pp_arch_olmo_hybrid, pp_arch_kimi_linear;
extern const struct pp_arch pp_arch_cohere2moe, pp_arch_plamo, pp_arch_plamo2, pp_arch_plamo3, pp_arch_chameleon;
extern const struct pp_arch pp_arch_opt, pp_arch_gptneo, pp_arch_codegen, pp_arch_persimmon, pp_arch_xglm;
extern const struct pp_arch pp_arch_biogpt, pp_arch_zaya, pp_arch_step3, pp_arch_dots3note;
extern const struct pp_arch pp_arch_granite_switch;
extern const struct pp_arch pp_arch_paddleocr, pp_arch_deepseek2_ocr, pp_arch_cogvlm;
extern const struct pp_arch pp_arch_cwm, pp_arch_ministral, pp_arch_vaultgemma;
extern const struct pp_arch pp_arch_talkie;
extern const struct pp_arch pp_arch_helium, pp_arch_nanochat, pp_arch_flex_olmo, pp_arch_bamba;
extern const struct pp_arch pp_arch_hrm_text, pp_arch_nanbeige, pp_arch_ouro, pp_arch_modernbert_decoder, pp_arch_doge;
extern const struct pp_arch pp_arch_jetmoe, pp_arch_zamba, pp_arch_openai_gpt, pp_arch_ctrl;
extern const struct pp_arch pp_arch_granite_swa, pp_arch_aria, pp_arch_axk1;
extern const struct pp_arch pp_arch_cohere_compass;
extern const struct pp_arch pp_arch_recurrent_gemma, pp_arch_minimax, pp_arch_zamba2, pp_arch_muse_glimmer;
extern const struct pp_arch pp_arch_longcat_flash, pp_arch_bailingmoe3, pp_arch_kimi_k3, pp_arch_hy_v4;
extern const struct pp_arch pp_arch_deepseek4;
extern const struct pp_arch pp_arch_maple, pp_arch_minimax_m3, pp_arch_bailing_linear, pp_arch_bailing_hybrid;
extern const struct pp_arch pp_arch_kormo, pp_arch_hyperclovax, pp_arch_diffllama, pp_arch_telechat, pp_arch_yuan;
extern const struct pp_arch pp_arch_qwen4, pp_arch_k2_horizon;
extern const struct pp_arch pp_arch_glm5_next, pp_arch_gigachat35, pp_arch_phi3small;
extern const struct pp_arch pp_arch_baichuan_m1, pp_arch_klear, pp_arch_xlstm, pp_arch_motif, pp_arch_lille;
extern const struct pp_arch pp_arch_g9v3, pp_arch_agnes, pp_arch_hymba;
extern const struct pp_arch pp_arch_minicpm_sala;
extern const struct pp_arch pp_arch_iquest_loop, pp_arch_solar, pp_arch_spark, pp_arch_jet_nemotron;

/* The names of Llama's tensors, which most later families kept. */
extern const struct pp_arch_name pp_common_names[];
/* Those, and the names of experts' tensors as most families since Qwen 2 MoE and DeepSeek have them. */
extern const struct pp_arch_name pp_expert_names[];
/* q and k of families whose GGUF files interleave their rows; to be searched before the common names. */
extern const struct pp_arch_name pp_interleaved_names[];
/* Names of frequencies and masks that old exporters stored, although they follow from the configuration. */
extern const char *const pp_common_ignored[];

/* Of Mistral's multimodal folders. */
extern const struct pp_arch_parts pp_mistral_parts;
/* For struct pp_arch_parts, covering several versions of transformers: prefixes of the language model's tensors, and of
 * the other parts': in most folders, in Gemma's from 3n on, in Qwen's. */
extern const char *const pp_text_prefixes[], *const pp_picture_parts[], *const pp_gemma_others[];
extern const char *const pp_qwen_prefixes[], *const pp_qwen_others[];

extern const char *const pp_silu_names[];      /* names in config.json */
extern const char *const pp_relu2_names[];
extern const char *const pp_gelu_tanh_names[];

/* Reads which GELU `key` names, exact or by tanh. usual: the family's own, stored as PP_ACTIVATION_USUAL. */
enum pp_code pp_config_gelu(const struct cJSON *config, const char *key, enum pp_activation usual,
                            struct pp_hparams *hp, struct pp_error *err);

/* The same for families whose models may have any of several functions; and the name of a model's function. */
enum pp_code pp_config_function(const struct cJSON *config, const char *key, enum pp_activation usual,
                                struct pp_hparams *hp, struct pp_error *err);
const char *pp_config_function_name(const struct pp_decoder *d, const struct pp_hparams *hp);

/* A boolean of config.json; `otherwise` if it is absent or null. */
bool pp_config_flag(const struct cJSON *config, const char *key, bool otherwise);
/* Mistral's window in all layers, `sliding_window`: null or 0 is none, `otherwise` stands for an absent key. */
enum pp_code pp_config_window(const struct cJSON *config, int64_t otherwise, struct pp_hparams *hp,
                              struct pp_error *err);
/* Qwen's window: only with use_sliding_window, and by default only in layers from max_window_layers on. */
enum pp_code pp_config_qwen_window(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
/* Whether config.json has an object for RoPE's parameters, even one without scaling. */
bool pp_config_has_rope(const struct cJSON *config);
/* Refuses scaling in the RoPE of layers with a window. rope: that object, or NULL. */
enum pp_code pp_config_unscaled(const struct cJSON *rope, struct pp_error *err);
/* The number of a key, which may be absent; PP_ERR_FORMAT if it is something else. */
enum pp_code pp_config_float(const struct cJSON *config, const char *key, float *v, struct pp_error *err);
enum pp_code pp_config_int(const struct cJSON *config, const char *key, int64_t *v, struct pp_error *err);

/* config.json's keys for experts; NULL: the family has no such key. */
struct pp_expert_keys {
    const char *n, *n_used, *n_ff;
    const char *n_groups, *n_groups_used;
    const char *n_shared, *shared_n_ff; /* the shared expert's width, in experts, or in values */
    const char *n_dense;                /* the number of first layers without experts */
    const char *norm_topk, *scale;      /* whether weights are normalised; and their factor */
};
/* Reads these keys, any of which may be absent; PP_ERR_FORMAT names one that is not a number. And writes them. */
enum pp_code pp_config_experts(const struct cJSON *config, const struct pp_expert_keys *keys, struct pp_hparams *hp,
                               struct pp_error *err);
void pp_config_put_experts(const struct pp_hparams *hp, const struct pp_expert_keys *keys, struct cJSON *config);
/* Qwen's layers without experts: mlp_only_layers, and all but every decoder_sparse_step-th. */
enum pp_code pp_config_qwen_dense(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
void pp_config_put_qwen_dense(const struct pp_hparams *hp, struct cJSON *config);
/* `mlp_layer_types`, an optional list of "dense" and "sparse". */
enum pp_code pp_config_mlp_types(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
void pp_config_put_mlp_types(const struct pp_hparams *hp, struct cJSON *config);
/* GPT-2's keys; the first StarCoder and GPT-J have the same. */
enum pp_code pp_config_gpt2(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
void pp_config_put_gpt2(const struct pp_hparams *hp, struct cJSON *config);

/* The multipliers that all Granite families have. */
enum pp_code pp_granite_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
enum pp_code pp_granite_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err);
void pp_granite_to_config(const struct pp_hparams *hp, struct cJSON *config);

/* config.json's keys for Mamba 2, and those of most families. */
struct pp_mamba_keys {
    const char *taps, *key_dim, *n_groups, *n_heads, *head_dim;
};
extern const struct pp_mamba_keys pp_mamba_keys;
extern const struct pp_arch_name pp_mamba_names[]; /* common to the models Mamba and Mamba 2 */
/* inner: the width of all heads, for configurations without head_dim. Bounds of dt (time_step_limit) are refused. */
enum pp_code pp_mamba_from_config(const struct cJSON *config, const struct pp_mamba_keys *keys, int64_t inner,
                                  struct pp_hparams *hp, struct pp_error *err);
/* The sizes of states of any kind (ssm.*); and Mamba 2's. */
enum pp_code pp_states_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err);
enum pp_code pp_mamba_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err);
void pp_states_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w);
void pp_mamba_to_config(const struct pp_hparams *hp, const struct pp_mamba_keys *keys, struct cJSON *config);
/* The same where the inner width is mamba_expand times the model's. */
enum pp_code pp_mamba_expanded_from_config(const struct cJSON *config, const struct pp_mamba_keys *keys,
                                           struct pp_hparams *hp, struct pp_error *err);
void pp_mamba_expanded_to_config(const struct pp_hparams *hp, const struct pp_mamba_keys *keys, struct cJSON *config);
/* PP_ERR_UNSUPPORTED unless there is one group: with several, transformers and programs that read GGUF files disagree
 * on these families' norm of the gated output. */
enum pp_code pp_mamba_in_one_group(const struct pp_hparams *hp, struct pp_error *err);

/* Names of the tensors of Zamba's shared block, which begin with `block`, except for gate and up. */
#define PP_SHARED_BLOCK_NAMES(block)                                                                                  \
    {.hf = "model.layers.{}.linear", .gguf = "blk.{}.shared_out"},                                                    \
    {.hf = block "input_layernorm", .gguf = "blk.{}.shared_norm"},                                                    \
    {.hf = block "self_attn.q_proj", .gguf = "blk.{}.shared_q"},                                                      \
    {.hf = block "self_attn.k_proj", .gguf = "blk.{}.shared_k"},                                                      \
    {.hf = block "self_attn.v_proj", .gguf = "blk.{}.shared_v"},                                                      \
    {.hf = block "self_attn.o_proj", .gguf = "blk.{}.shared_output"},                                                 \
    {.hf = block "pre_ff_layernorm", .gguf = "blk.{}.shared_ffn_norm"},                                               \
    {.hf = block "feed_forward.down_proj", .gguf = "blk.{}.shared_down"}
/* Which layers use it: a list of booleans in GGUF, under this key, and layers_block_type in config.json. */
enum pp_code pp_sharing_from_gguf(const struct pp_gguf *g, const char *key, struct pp_hparams *hp,
                                  struct pp_error *err);
void pp_sharing_to_gguf(const struct pp_hparams *hp, const char *key, struct pp_gguf_writer *w);
void pp_sharing_to_config(const struct pp_hparams *hp, struct cJSON *config);

/* Names of per-layer inputs and of norms, from Gemma 3n on. */
#define PP_LAYER_INPUT_NAMES                                                                                          \
    {.hf = "model.embed_tokens_per_layer", .gguf = "per_layer_token_embd"},                                           \
    {.hf = "model.per_layer_model_projection", .gguf = "per_layer_model_proj"},                                       \
    {.hf = "model.per_layer_projection_norm", .gguf = "per_layer_proj_norm"},                                         \
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},                                         \
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},                                         \
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm"},                         \
    {.hf = "model.layers.{}.pre_feedforward_layernorm", .gguf = "blk.{}.ffn_norm"},                                   \
    {.hf = "model.layers.{}.post_feedforward_layernorm", .gguf = "blk.{}.post_ffw_norm"},                             \
    {.hf = "model.layers.{}.per_layer_input_gate", .gguf = "blk.{}.inp_gate"},                                        \
    {.hf = "model.layers.{}.per_layer_projection", .gguf = "blk.{}.proj"},                                            \
    {.hf = "model.layers.{}.post_per_layer_input_norm", .gguf = "blk.{}.post_norm"}
/* Their scales of embeddings and scores, and the RoPE of layers with a window. */
void pp_gemma_scales(struct pp_hparams *hp);
/* The RoPE of layers with a window: rope_parameters' base; scaling is refused. */
enum pp_code pp_gemma_local_rope(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
/* Sizes and RoPE of layers without a window: under keys of their own or, in later versions, layer by layer. part: the
 * default of partial_rotary_factor. */
enum pp_code pp_gemma_wide_from_config(const struct cJSON *config, float part, struct pp_hparams *hp,
                                       struct pp_error *err);

/* Latent attention: names of a folder's tensors, and DeepSeek's keys of its sizes. */
#define PP_LATENT_NAMES                                                                                               \
    {.hf = "model.layers.{}.self_attn.q_a_proj", .gguf = "blk.{}.attn_q_a"},                                          \
    {.hf = "model.layers.{}.self_attn.q_a_layernorm", .gguf = "blk.{}.attn_q_a_norm"},                                \
    {.hf = "model.layers.{}.self_attn.q_b_proj", .gguf = "blk.{}.attn_q_b"},                                          \
    {.hf = "model.layers.{}.self_attn.kv_a_proj_with_mqa", .gguf = "blk.{}.attn_kv_a_mqa"},                           \
    {.hf = "model.layers.{}.self_attn.kv_a_layernorm", .gguf = "blk.{}.attn_kv_a_norm"},                              \
    {.hf = "model.layers.{}.self_attn.kv_b_proj", .gguf = "blk.{}.attn_kv_b"}
enum pp_code pp_latent_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
void pp_latent_to_config(const struct pp_hparams *hp, struct cJSON *config);
/* DeepSeek's YaRN, which multiplies the scores by the square of its magnitude; pp_latent_yarn_growth is that factor. */
enum pp_code pp_latent_yarn_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
void pp_latent_yarn_to_config(const struct pp_hparams *hp, struct cJSON *config);
float pp_latent_yarn_growth(const struct pp_hparams *hp);
/* Everything of DeepSeek V2 and V3. */
enum pp_code pp_deepseek_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
void pp_deepseek_to_config(const struct pp_hparams *hp, struct cJSON *config);
enum pp_code pp_deepseek_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err);
void pp_deepseek_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w);

/* The indexer that picks positions: DeepSeek V3.2's names and keys. */
#define PP_INDEX_NAMES                                                                                                \
    {.hf = "model.layers.{}.self_attn.indexer.wq_b", .gguf = "blk.{}.indexer.attn_q_b"},                              \
    {.hf = "model.layers.{}.self_attn.indexer.wk", .gguf = "blk.{}.indexer.attn_k"},                                  \
    {.hf = "model.layers.{}.self_attn.indexer.k_norm", .gguf = "blk.{}.indexer.k_norm"},                              \
    {.hf = "model.layers.{}.self_attn.indexer.weights_proj", .gguf = "blk.{}.indexer.proj"}
/* Its sizes. */
enum pp_code pp_index_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
/* Those, and which layers have one, unless all do. */
void pp_index_to_config(const struct pp_hparams *hp, struct cJSON *config);
void pp_index_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w);
/* Which layers have one: a list of booleans under this key. */
enum pp_code pp_index_layers_from_gguf(const struct pp_gguf *g, const char *key, struct pp_hparams *hp,
                                       struct pp_error *err);
/* Refuses an indexer that picks nothing, and a layer 0 without one, which would have no picks to use. */
enum pp_code pp_index_check(const struct pp_hparams *hp, struct pp_error *err);

/* Kimi delta attention, without convolutions, gates and ssm_a, which differ between its families. */
#define PP_KDA_NAMES                                                                                                  \
    {.hf = "model.layers.{}.self_attn.f_a_proj", .gguf = "blk.{}.ssm_f_a"},                                           \
    {.hf = "model.layers.{}.self_attn.f_b_proj", .gguf = "blk.{}.ssm_f_b"},                                           \
    {.hf = "model.layers.{}.self_attn.b_proj", .gguf = "blk.{}.ssm_beta"},                                            \
    {.hf = "model.layers.{}.self_attn.dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},                         \
    {.hf = "model.layers.{}.self_attn.o_norm", .gguf = "blk.{}.ssm_norm"}
/* Its gates, where they are a low-rank pair. */
#define PP_KDA_GATE_NAMES                                                                                             \
    {.hf = "model.layers.{}.self_attn.g_a_proj", .gguf = "blk.{}.ssm_g_a"},                                           \
    {.hf = "model.layers.{}.self_attn.g_b_proj", .gguf = "blk.{}.ssm_g_b"}

/* The gated delta rule, in Qwen3-Next's names. */
#define PP_DELTA_NAMES                                                                                                \
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm", .form = PP_HF_PLUS_ONE},                 \
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm", .form = PP_HF_PLUS_ONE},                 \
    {.hf = "model.layers.{}.linear_attn.conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV,       \
     .whole = true},                                                                                                  \
    {.hf = "model.layers.{}.linear_attn.A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},      \
    {.hf = "model.layers.{}.linear_attn.dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},                       \
    {.hf = "model.layers.{}.linear_attn.norm", .gguf = "blk.{}.ssm_norm"},                                            \
    {.hf = "model.layers.{}.linear_attn.out_proj", .gguf = "blk.{}.ssm_out"},                                         \
    {.hf = "model.layers.{}.mlp.shared_expert.gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},                           \
    {.hf = "model.layers.{}.mlp.shared_expert.up_proj", .gguf = "blk.{}.ffn_up_shexp"},                               \
    {.hf = "model.layers.{}.mlp.shared_expert.down_proj", .gguf = "blk.{}.ffn_down_shexp"},                           \
    {.hf = "model.layers.{}.mlp.shared_expert_gate", .gguf = "blk.{}.ffn_gate_inp_shexp", .form = PP_HF_ONE_ROW}
/* The same from Qwen 3.5 on: input projections are matrices of their own, experts are stacked. */
#define PP_DELTA_APART_NAMES                                                                                          \
    {.hf = "model.layers.{}.linear_attn.in_proj_qkv", .gguf = "blk.{}.attn_qkv"},                                     \
    {.hf = "model.layers.{}.linear_attn.in_proj_z", .gguf = "blk.{}.attn_gate"},                                      \
    {.hf = "model.layers.{}.linear_attn.in_proj_b", .gguf = "blk.{}.ssm_beta"},                                       \
    {.hf = "model.layers.{}.linear_attn.in_proj_a", .gguf = "blk.{}.ssm_alpha"},                                      \
    {.hf = "model.layers.{}.mlp.experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight",                         \
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_HALVES, .whole = true},                                     \
    {.hf = "model.layers.{}.mlp.experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true}
/* Which layers have states, in GGUF files: all but every full_attention_interval-th, or those in a list. */
void pp_recurrent_from_gguf(const struct pp_gguf *g, int64_t usual_step, struct pp_hparams *hp);
void pp_recurrent_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w);
enum pp_code pp_delta_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err);
enum pp_code pp_delta_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
enum pp_code pp_delta_sizes_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
/* Writes Qwen's M-RoPE sections as well. */
void pp_qwen_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w);
void pp_delta_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w);
void pp_delta_to_config(const struct pp_hparams *hp, struct cJSON *config);

/* MiniCPM's scales of embeddings, residual additions and logits; and SiLU. */
enum pp_code pp_minicpm_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
void pp_minicpm_to_config(const struct pp_hparams *hp, struct cJSON *config);

/* Ling's layers come in groups whose last layer has attention and whose others have states; layers after the last whole
 * group have attention. Reads the groups' size from config.json; returns it; and refuses other arrangements with
 * PP_ERR_UNSUPPORTED. */
enum pp_code pp_ling_groups_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
int64_t pp_ling_group(const struct pp_hparams *hp);
enum pp_code pp_ling_check_groups(const struct pp_hparams *hp, struct pp_error *err);
/* Refuses a scaled RoPE with latent attention. */
enum pp_code pp_ling_check_rope(const struct pp_hparams *hp, struct pp_error *err);
extern const struct pp_expert_keys pp_ling_expert_keys;

/* Sets the bound of all gates, of dense feed-forward parts and of experts; 0: none. label: its key, for errors. And
 * reads and writes the keys that GLM 5 Next and GigaChat 3.5 have for it. */
enum pp_code pp_bound_gates(struct pp_hparams *hp, float most, const char *label, struct pp_error *err);
enum pp_code pp_bounds_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err);
void pp_bounds_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w);

/* A model of Mamba layers only: sets the sizes of attention and feed-forward parts to the least that checks accept. */
void pp_mamba_alone(struct pp_hparams *hp);

/* config.json's keys for Mamba. */
struct pp_scan_keys {
    const char *taps, *key_dim, *rank, *expand;
};
/* inner: the number of channels; 0: `expand` times the model's width. */
enum pp_code pp_scan_from_config(const struct cJSON *config, const struct pp_scan_keys *keys, int64_t inner,
                                 struct pp_hparams *hp, struct pp_error *err);
enum pp_code pp_scan_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err);
void pp_scan_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w);
void pp_scan_to_config(const struct pp_hparams *hp, const struct pp_scan_keys *keys, struct cJSON *config);

/* For to_config, in families whose default RoPE is scaled: states explicitly that it is not, if it is not. */
void pp_config_put_unscaled(struct cJSON *config, const struct pp_hparams *hp);
/* For to_config: the window and each layer's type. */
void pp_config_put_layer_types(struct cJSON *config, const struct pp_hparams *hp);
/* RoPE of layers without a window, and of those with one, in objects of rope_parameters. */
void pp_config_put_ropes(struct cJSON *config, const struct pp_hparams *hp);
/* Qwen's keys for a window. */
void pp_config_put_qwen_window(const struct pp_hparams *hp, struct cJSON *config);

#endif
