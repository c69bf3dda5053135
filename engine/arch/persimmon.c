/* persimmon.c - Persimmon (transformers, models/persimmon), and the language model of Fuyu: fused qkv ordered head by
 * head, LayerNorm, also of the heads of q and k, half of each head rotated, and ReLU^2. GGUF files by other programs
 * have qkv head by head as well; ours have a key that says it is all of q, then k, then v. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    {.hf = "model.layers.{}.self_attn.query_key_value", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_FUSED_BY_GROUP},
    {.hf = "model.layers.{}.self_attn.dense", .gguf = "blk.{}.attn_output"},
    {.hf = "model.layers.{}.self_attn.q_layernorm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_layernorm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "model.layers.{}.mlp.dense_h_to_4h", .gguf = "blk.{}.ffn_up"},
    {.hf = "model.layers.{}.mlp.dense_4h_to_h", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};

static const char *const classes[] = {"PersimmonForCausalLM", "FuyuForCausalLM", "persimmon", "fuyu", NULL};
static const char *const others[] = {"vision_embed_tokens.", "model.vision_embed_tokens.", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "persimmon", .prefixes = pp_text_prefixes, .others = others};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 262144, \"hidden_size\": 4096, \"intermediate_size\": 16384,"
             "\"num_hidden_layers\": 36, \"num_attention_heads\": 64, \"max_position_embeddings\": 16384,"
             "\"rope_theta\": 25000.0, \"partial_rotary_factor\": 0.5}"},
    {.json = NULL},
};
static const char by_head[] = "persimmon.attention.qkv_by_head";

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->norm_eps = 1e-5f;
    hp->qk_norm = pp_config_flag(config, "qk_layernorm", true);
    enum pp_code code = pp_config_function(config, "hidden_act", PP_ACTIVATION_RELU2, hp, err);
    return code ? code : pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON_AddBoolToObject(config, "qk_layernorm", hp->qk_norm);
    pp_config_put_text(config, "hidden_act", pp_config_function_name(&pp_arch_persimmon.decoder, hp));
    pp_config_put_float(config, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->head_dim);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    bool other = true;
    (void)hp;
    pp_gguf_bool(g, by_head, &other);
    if (!other)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the file has queries, keys and values head by head, as only other "
                   "programs wrote them; convert the model's folder");
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    (void)hp;
    pp_gguf_add_bool(w, by_head, false);
}

const struct pp_arch pp_arch_persimmon = {
    .name = "persimmon",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .fused_qkv = true, .ungated = true, .fn = PP_FN_RELU2,
                .qk_norm = PP_QK_OPTIONAL},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};
