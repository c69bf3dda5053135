/* glm4.c - GLM 4 of 2024 (GGUF: chatglm) and 2025 (glm4): the first half of each head is rotated, in neighbouring
 * pairs also in folders; gate and up are one matrix. The version of 2025 has post-norms in addition to pre-norms. Of
 * GLM 4.1V and GLM-OCR the language model, whose GGUF files have the other pairs (rope_neox). Folders of ChatGLM 2 and
 * 3, and of GLM 4 before transformers supported it, have other names. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.post_self_attn_layernorm", .gguf = "blk.{}.post_attention_norm"},
    {.hf = "model.layers.{}.post_mlp_layernorm", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = "model.layers.{}.mlp.gate_up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = NULL},
};

static const char *const classes[] = {"Glm4ForCausalLM", "Glm4vForConditionalGeneration", "glm4", "glm4v", "glm4v_text",
                                      "GlmOcrForConditionalGeneration", "glm_ocr", "glm_ocr_text", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "glm4", .prefixes = pp_qwen_prefixes, .others = pp_qwen_others};
static const struct pp_arch_default defaults[] = {
    {"glm4v_text", NULL, "{\"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 32768}"},
    {"glm_ocr_text", NULL,
     "{\"vocab_size\": 59392, \"hidden_size\": 1024, \"intermediate_size\": 4096, \"num_hidden_layers\": 16,"
     "\"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": null, \"rms_norm_eps\": 1e-5,"
     "\"partial_rotary_factor\": 1.0}"},
    {.json = "{\"num_key_value_heads\": 2, \"head_dim\": 128, \"max_position_embeddings\": 131072,"
             "\"rms_norm_eps\": 1.5625e-7, \"partial_rotary_factor\": 0.5}"},
    {.json = NULL},
};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)hp;
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

/* In files of vision models, which have M-RoPE, the rows of q and k are reordered for the other pairs. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    static const char key[] = "glm4.rope.dimension_sections";
    int64_t first = 0, second = 0;
    (void)err;
    hp->rope_neox = pp_gguf_array_int(g, key, 0, &first) && pp_gguf_array_int(g, key, 1, &second) && first > 0 &&
                    second > 0;
    return PP_OK;
}

/* partial_rotary_factor is 0.5 by default. */
static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_float(config, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->head_dim);
}

const struct pp_arch pp_arch_glm4 = {
    .name = "glm4",
    .hf_classes = classes,
    .parts = &parts,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .hf_pairs = true,
    .decoder = {.post_norm = true, .fused_gate = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};

/* --- of 2024 ---------------------------------------------------------------------------------------------------- */

#define OLD "transformer.encoder.layers.{}."

static const struct pp_arch_name names1[] = {
    {.hf = "model.layers.{}.mlp.gate_up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = "transformer.embedding.word_embeddings", .gguf = "token_embd", .read_only = true},
    {.hf = "transformer.encoder.final_layernorm", .gguf = "output_norm", .read_only = true},
    {.hf = "transformer.output_layer", .gguf = "output", .read_only = true},
    {.hf = OLD "input_layernorm", .gguf = "blk.{}.attn_norm", .read_only = true},
    {.hf = OLD "self_attention.query_key_value", .gguf = "blk.{}.attn_qkv", .read_only = true},
    {.hf = OLD "self_attention.dense", .gguf = "blk.{}.attn_output", .read_only = true},
    {.hf = OLD "post_attention_layernorm", .gguf = "blk.{}.ffn_norm", .read_only = true},
    {.hf = OLD "mlp.dense_h_to_4h", .gguf = "blk.{}.ffn_up", .read_only = true},
    {.hf = OLD "mlp.dense_4h_to_h", .gguf = "blk.{}.ffn_down", .read_only = true},
    {.hf = NULL},
};
static const char *const ignored1[] = {".rotary_emb.inv_freq", ".rotary_pos_emb.inv_freq", NULL};
static const char *const classes1[] = {"GlmForCausalLM", "ChatGLMModel", "ChatGLMForConditionalGeneration", "glm",
                                       "chatglm", NULL};

/* ChatGLM's own keys; rope_ratio multiplies the default base 10000. */
static enum pp_code from_old_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const usually[] = {"rmsnorm", "post_layer_norm", "multi_query_attention", NULL};
    float ratio = 1;
    for (const char *const *key = usually; *key; key++)
        if (!pp_config_flag(config, *key, true))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is false, which pippin does not support", *key);
    if (pp_config_flag(config, "apply_residual_connection_post_layernorm", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: apply_residual_connection_post_layernorm is true, which "
                       "pippin does not compute");
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {{"multi_query_group_num", &hp->n_head_kv}, {"kv_channels", &hp->head_dim},
                   {"seq_length", &hp->n_ctx_train}};
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = pp_config_int(config, numbers[i].key, numbers[i].v, err);
    hp->norm_eps = 1e-5f;
    if (!code)
        code = pp_config_float(config, "layernorm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_float(config, "rope_ratio", &ratio, err);
    hp->rope_base *= ratio;
    hp->rope_dim = hp->head_dim / 2;
    return code;
}

static enum pp_code from_config1(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    return pp_arch_is_kind(config, "chatglm", "ChatGLMModel") ? from_old_config(config, hp, err)
                                                              : from_config(config, hp, err);
}

const struct pp_arch pp_arch_chatglm = {
    .name = "chatglm",
    .hf_classes = classes1,
    .names = names1,
    .more_names = pp_common_names,
    .ignored = ignored1,
    .defaults = defaults,
    .hf_pairs = true,
    .decoder = {.fused_gate = true},
    .from_config = from_config1,
    .to_config = to_config,
};
