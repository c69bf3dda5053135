/* molmo.c - folders of Molmo and Molmo 2 (arXiv 2409.17146). The language models are Qwen 2 and Qwen 3 with other
 * names, a fused qkv, and up and gate in one matrix, in that order; they become ordinary models of those families.
 * Embeddings of image tokens, which no text has, are left out. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define BLOCK "model.transformer.blocks.{}."

#define EMBEDDINGS                                                                                                     \
    {.hf = "model.transformer.wte.embedding", .gguf = "token_embd.weight", .whole = true, .read_only = true}
#define PROJECTIONS(attention, mlp)                                                                                    \
    {.hf = BLOCK "attn_norm", .gguf = "blk.{}.attn_norm", .read_only = true},                                          \
    {.hf = BLOCK attention "att_proj", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_STACKED, .read_only = true},       \
    {.hf = BLOCK attention "attn_out", .gguf = "blk.{}.attn_output", .read_only = true},                               \
    {.hf = BLOCK "ff_norm", .gguf = "blk.{}.ffn_norm", .read_only = true},                                             \
    {.hf = BLOCK mlp "ff_proj.weight", .gguf = "blk.{}.ffn_up.weight", .second = "blk.{}.ffn_gate.weight",             \
     .form = PP_HF_HALVES, .whole = true, .read_only = true},                                                          \
    {.hf = BLOCK mlp "ff_out", .gguf = "blk.{}.ffn_down", .read_only = true},                                          \
    {.hf = "model.transformer.ln_f", .gguf = "output_norm", .read_only = true}

static const struct pp_arch_name names[] = {
    EMBEDDINGS,
    PROJECTIONS("", ""),
    {.hf = "model.transformer.ff_out", .gguf = "output", .read_only = true},
    {.hf = NULL},
};
static const struct pp_arch_name names_2[] = {
    EMBEDDINGS,
    PROJECTIONS("self_attn.", "mlp."),
    {.hf = BLOCK "self_attn.q_norm", .gguf = "blk.{}.attn_q_norm", .read_only = true},
    {.hf = BLOCK "self_attn.k_norm", .gguf = "blk.{}.attn_k_norm", .read_only = true},
    {.hf = "lm_head", .gguf = "output", .read_only = true},
    {.hf = NULL},
};
static const char *const classes[] = {"MolmoForCausalLM", "molmo", NULL};
static const char *const classes_2[] = {"Molmo2ForConditionalGeneration", "molmo2", "molmo2_text", NULL};
static const char *const prefixes[] = {NULL};
static const char *const others[] = {"model.vision_backbone.", "model.transformer.wte.new_embedding", NULL};
static const struct pp_arch_parts parts = {.model_type = "molmo", .prefixes = prefixes, .others = others};
static const struct pp_arch_parts parts_2 = {.model_type = "molmo2_text", .prefixes = prefixes, .others = others};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 152064, \"hidden_size\": 3584, \"intermediate_size\": 37888, \"num_hidden_layers\": 28,"
             "\"num_attention_heads\": 28, \"num_key_value_heads\": 4, \"max_position_embeddings\": 4096,"
             "\"layer_norm_eps\": 1e-5, \"rope_theta\": 1000000, \"qkv_bias\": true}"},
    {.json = NULL},
};
static const struct pp_arch_default defaults_2[] = {
    {.json = "{\"vocab_size\": 152064, \"hidden_size\": 3584, \"intermediate_size\": 18944, \"num_hidden_layers\": 48,"
             "\"num_attention_heads\": 28, \"num_key_value_heads\": 4, \"head_dim\": 128,"
             "\"max_position_embeddings\": 4096, \"layer_norm_eps\": 1e-6, \"rope_theta\": 1000000,"
             "\"use_qk_norm\": false, \"qk_norm_type\": \"olmo\", \"qkv_bias\": true}"},
    {.json = NULL},
};

static enum pp_code fail_value(const char *key, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s says that the text is of another family than Qwen, which "
                   "pippin does not run in Molmo's folders", key);
}

/* Requires what both have: RMSNorm as pre-norms, SiLU, and an output that is not tied. */
static enum pp_code read_common(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *norm = cJSON_GetStringValue(pp_json_member(config, "layer_norm_type"));
    const cJSON *clip = pp_json_member(config, "clip_qkv");
    const cJSON *own = pp_json_member(config, "rope_scaling_layers");
    hp->legacy_names = true;
    if (pp_config_flag(config, "norm_after", false))
        return fail_value("norm_after", err);
    if (norm && strcmp(norm, "rms") != 0)
        return fail_value("layer_norm_type", err);
    if (clip && !cJSON_IsNull(clip))
        return fail_value("clip_qkv", err);
    if (own && !cJSON_IsNull(own))
        return fail_value("rope_scaling_layers", err);
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    return code ? code : pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = read_common(config, hp, err);
    if (!code && pp_config_flag(config, "attention_layer_norm", false))
        code = fail_value("attention_layer_norm", err);
    if (!code && !pp_config_flag(config, "qkv_bias", false))
        code = fail_value("qkv_bias", err);
    if (!code && cJSON_IsNumber(pp_json_member(config, "moe_num_experts")))
        code = fail_value("moe_num_experts", err);
    if (!code)
        code = pp_config_int(config, "embedding_size", &hp->n_vocab, err);
    hp->n_ff /= 2; /* the key counts up and gate together */
    return code;
}

static enum pp_code from_config_2(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const char *kind = cJSON_GetStringValue(pp_json_member(config, "qk_norm_type"));
    enum pp_code code = read_common(config, hp, err);
    if (!code && (!pp_config_flag(config, "use_qk_norm", false) || !kind || strcmp(kind, "qwen3") != 0))
        code = fail_value("use_qk_norm or qk_norm_type", err);
    return code;
}

const struct pp_arch pp_arch_molmo = {
    .name = "qwen2",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .gguf_neox = true,
    .from_config = from_config,
};

const struct pp_arch pp_arch_molmo2 = {
    .name = "qwen3",
    .hf_classes = classes_2,
    .names = names_2,
    .ignored = pp_common_ignored,
    .defaults = defaults_2,
    .parts = &parts_2,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .from_config = from_config_2,
};
