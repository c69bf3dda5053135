/* llama.c - Llama 1 to 3 (arXiv 2302.13971, 2307.09288, 2407.21783) and models of the same architecture (Mistral, Yi,
 * TinyLlama ...), and Mixtral with experts (arXiv 2401.04088). Of Mistral 3 the language model, whose GGUF family is
 * mistral3. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = "model.layers.{}.block_sparse_moe.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = "model.layers.{}.block_sparse_moe.experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = "model.layers.{}.block_sparse_moe.experts.{}.w2", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = "model.layers.{}.block_sparse_moe.experts.{}.w3", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = "model.layers.{}.block_sparse_moe.switch_mlp.gate_proj", .gguf = "blk.{}.ffn_gate_exps", .mlx = true},
    {.hf = "model.layers.{}.block_sparse_moe.switch_mlp.up_proj", .gguf = "blk.{}.ffn_up_exps", .mlx = true},
    {.hf = "model.layers.{}.block_sparse_moe.switch_mlp.down_proj", .gguf = "blk.{}.ffn_down_exps", .mlx = true},
    {.hf = "model.layers.{}.ln1", .gguf = "blk.{}.attn_norm", .read_only = true}, /* Yi's first folders */
    {.hf = "model.layers.{}.ln2", .gguf = "blk.{}.ffn_norm", .read_only = true},
    {.hf = NULL},
};

static const char *const other_names[] = {"mistral3", NULL};
static const char *const classes[] = {
    "LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Ministral3ForCausalLM",
    "Mistral3ForConditionalGeneration", "llama", "mistral", "mixtral", "ministral3", "mistral3",
    "InternLM3ForCausalLM", "internlm3", "IQuestCoderForCausalLM", "iquestcoder", "mllama_text_model",
    "Emu3ForCausalLM", "emu3_text_model", "Emu3", "AquilaForCausalLM", "AquilaModel", "aquila",
    "InternLMForCausalLM", "internlm", "TeleChat3ForCausalLM", "telechat3", "YiForCausalLM", "Yi",
    NULL};

const struct pp_arch_parts pp_mistral_parts = {
    .model_type = "mistral", .prefixes = pp_text_prefixes, .others = pp_picture_parts};

static const struct pp_arch_default defaults[] = {
    {"mistral", "MistralForCausalLM",
     "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32,"
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"max_position_embeddings\": 131072}"},
    {"mixtral", "MixtralForCausalLM",
     "{\"num_key_value_heads\": 8, \"max_position_embeddings\": 131072, \"rope_theta\": 1000000.0,"
     "\"rms_norm_eps\": 1e-5}"},
    {"ministral3", "Ministral3ForCausalLM",
     "{\"vocab_size\": 131072, \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 34,"
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128, \"rms_norm_eps\": 1e-5,"
     "\"max_position_embeddings\": 262144, \"rope_parameters\": {\"rope_type\": \"yarn\","
     "\"rope_theta\": 1000000.0, \"factor\": 16.0, \"original_max_position_embeddings\": 16384,"
     "\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0,"
     "\"llama_4_scaling_beta\": 0.1}}"},
    {"emu3_text_model", "Emu3ForCausalLM",
     "{\"vocab_size\": 184622, \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32,"
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"max_position_embeddings\": 9216,"
     "\"rms_norm_eps\": 1e-5, \"rope_theta\": 1000000.0}"},
    {"internlm", "InternLMForCausalLM",
     "{\"vocab_size\": 103168, \"hidden_size\": 4096, \"intermediate_size\": 11008, \"num_hidden_layers\": 32,"
     "\"num_attention_heads\": 32, \"max_position_embeddings\": 2048,"
     "\"rotary\": {\"base\": 10000, \"type\": \"dynamic\"}}"},
    {"Yi", "YiForCausalLM",
     "{\"vocab_size\": 64000, \"hidden_size\": 4096, \"intermediate_size\": 11008, \"num_hidden_layers\": 32,"
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"max_position_embeddings\": 4096,"
     "\"rms_norm_eps\": 1e-5, \"rope_theta\": 5000000.0}"},
    {.json = NULL},
};

/* Ministral 3's scores grow with the position (llama_4_scaling_beta). */
static enum pp_code from_ministral(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    if (!cJSON_IsObject(rope))
        rope = pp_json_member(config, "rope_scaling");
    enum pp_code code = pp_config_float(rope, "llama_4_scaling_beta", &hp->attn_temperature, err);
    if (!code)
        code = pp_config_int(rope, "original_max_position_embeddings", &hp->rope_orig_ctx, err);
    return code ? code : pp_config_window(config, 0, hp, err);
}

/* Refuses options of IQuest Coder's configuration that its published models do not use. */
static enum pp_code check_iquest(const cJSON *config, struct pp_error *err)
{
    if (cJSON_IsNumber(pp_json_member(config, "clip_qkv")))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: clip_qkv is not null, which is not supported for this "
                       "family");
    if (pp_config_flag(config, "use_sliding_window", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_sliding_window is true, which is not supported for "
                       "this family");
    return PP_OK;
}

/* InternLM 1 has RoPE's parameters in an object of its own. */
static enum pp_code from_internlm(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *rotary = pp_json_member(config, "rotary");
    const char *type = cJSON_GetStringValue(pp_json_member(rotary, "type"));
    const bool dynamic = type && strcmp(type, "dynamic") == 0;
    if (!type || (!dynamic && strcmp(type, "origin") != 0))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rotary has the type \"%.40s\"; only \"origin\" and "
                       "\"dynamic\" are supported", type ? type : "");
    if (dynamic) {
        hp->rope_scaling = PP_ROPE_DYNAMIC;
        hp->rope_factor = 1;
        hp->rope_orig_ctx = hp->n_ctx_train;
    }
    enum pp_code code = pp_config_float(rotary, "base", &hp->rope_base, err);
    return code || !dynamic ? code : pp_config_float(rotary, "scaling_factor", &hp->rope_factor, err);
}

/* Mistral has a window in all layers, 4096 if the key is absent and none if it is null. Mixtral has one only if the
 * key is there. Llama ignores it. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (code)
        return code;
    if (pp_arch_is_kind(config, "mistral", "MistralForCausalLM"))
        return pp_config_window(config, 4096, hp, err);
    if (pp_arch_is_kind(config, "ministral3", "Ministral3ForCausalLM"))
        return from_ministral(config, hp, err);
    if (pp_arch_is_kind(config, "iquestcoder", "IQuestCoderForCausalLM"))
        return check_iquest(config, err);
    if (pp_arch_is_kind(config, "internlm", "InternLMForCausalLM"))
        return from_internlm(config, hp, err);
    if (!pp_arch_is_kind(config, "mixtral", "MixtralForCausalLM"))
        return PP_OK;
    hp->n_expert = 8;
    hp->n_expert_used = 2;
    hp->n_ff_expert = hp->n_ff;
    code = pp_config_window(config, 0, hp, err);
    if (!code)
        code = pp_config_int(config, "num_local_experts", &hp->n_expert, err);
    return code ? code : pp_config_int(config, "num_experts_per_tok", &hp->n_expert_used, err);
}

/* ollama's files have other names for some keys. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double beta = 0, multiplier = 0, fast = (double)hp->rope_beta_fast, slow = (double)hp->rope_beta_slow;
    (void)err;
    hp->n_ff_expert = hp->n_ff; /* Mixtral's files have no expert_feed_forward_length */
    if (pp_gguf_float(g, "mistral3.attention.temperature_scale", &beta) ||
        pp_gguf_float(g, "mistral3.rope.scaling_beta", &beta))
        pp_gguf_int(g, "mistral3.rope.scaling.original_context_length", &hp->rope_orig_ctx);
    hp->attn_temperature = (float)beta;
    if (hp->rope_scaling != PP_ROPE_YARN)
        return PP_OK;
    if (pp_gguf_float(g, "mistral3.rope.scaling.mscale_all_dim", &multiplier) && multiplier != 0)
        hp->rope_attn_factor = pp_hparams_yarn_magnitude(hp->rope_factor, 1, (float)multiplier);
    pp_gguf_float(g, "mistral3.rope.scaling.beta_fast", &fast);
    pp_gguf_float(g, "mistral3.rope.scaling.beta_slow", &slow);
    hp->rope_beta_fast = (float)fast;
    hp->rope_beta_slow = (float)slow;
    return PP_OK;
}

/* Ministral 3's keys within the RoPE parameters, which need not scale anything. */
static void put_temperature(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    if (!rope) {
        rope = cJSON_AddObjectToObject(config, "rope_scaling");
        pp_config_put_text(rope, "rope_type", "default");
    }
    pp_config_put(rope, "original_max_position_embeddings", hp->rope_orig_ctx);
    pp_config_put_float(rope, "llama_4_scaling_beta", hp->attn_temperature);
    pp_config_put_class(config, "Ministral3ForCausalLM", "ministral3");
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    if (hp->n_expert) {
        pp_config_put_class(config, "MixtralForCausalLM", "mixtral");
        pp_config_put(config, "num_local_experts", hp->n_expert);
        pp_config_put(config, "num_experts_per_tok", hp->n_expert_used);
    } else if (hp->attn_temperature != 0.0f) {
        put_temperature(hp, config);
    } else if (hp->window) {
        pp_config_put_class(config, "MistralForCausalLM", "mistral");
    }
    if (hp->window)
        pp_config_put(config, "sliding_window", hp->window);
}

const struct pp_arch pp_arch_llama = {
    .name = "llama",
    .other_names = other_names,
    .tempered_name = "mistral3",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &pp_mistral_parts,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
