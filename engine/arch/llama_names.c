/* llama_names.c - Llama 1 to 3 and what is built alike (Mistral, TinyLlama, ...). */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {"model.embed_tokens", "token_embd", PP_ROWS_SAME},
    {"model.norm", "output_norm", PP_ROWS_SAME},
    {"lm_head", "output", PP_ROWS_SAME},
    {"model.layers.{}.input_layernorm", "blk.{}.attn_norm", PP_ROWS_SAME},
    {"model.layers.{}.self_attn.q_proj", "blk.{}.attn_q", PP_ROWS_Q},
    {"model.layers.{}.self_attn.k_proj", "blk.{}.attn_k", PP_ROWS_K},
    {"model.layers.{}.self_attn.v_proj", "blk.{}.attn_v", PP_ROWS_SAME},
    {"model.layers.{}.self_attn.o_proj", "blk.{}.attn_output", PP_ROWS_SAME},
    {"model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm", PP_ROWS_SAME},
    {"model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate", PP_ROWS_SAME},
    {"model.layers.{}.mlp.up_proj", "blk.{}.ffn_up", PP_ROWS_SAME},
    {"model.layers.{}.mlp.down_proj", "blk.{}.ffn_down", PP_ROWS_SAME},
    {NULL, NULL, PP_ROWS_SAME},
};

static const char *const classes[] = {
    "LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "llama", "mistral", NULL};

/* Frequencies that old exporters stored though they follow from the configuration. */
static const char *const ignored[] = {".rotary_emb.inv_freq", NULL};

static bool is_mistral(const cJSON *config)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(config, "model_type");
    const cJSON *class = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(config, "architectures"), 0);
    if (cJSON_IsString(type))
        return strcmp(type->valuestring, "mistral") == 0;
    return cJSON_IsString(class) && strcmp(class->valuestring, "MistralForCausalLM") == 0;
}

/* Only Mistral has a window, in all layers; it is 4096 when the configuration does not mention it, and null switches it
 * off. Llama never looks at such a number. */
static enum pp_code read_window(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    if (!is_mistral(config))
        return PP_OK;
    if (!cJSON_GetObjectItemCaseSensitive(config, "sliding_window"))
        hp->window = 4096;
    if (!pp_json_int(config, "sliding_window", &hp->window))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: sliding_window is not the number it should be");
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *act = cJSON_GetObjectItemCaseSensitive(config, "hidden_act");
    if (cJSON_IsString(act) && strcmp(act->valuestring, "silu") != 0 && strcmp(act->valuestring, "swish") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "activation \"%.40s\" is not supported for this family; silu is",
                       act->valuestring);
    return read_window(config, hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t experts = 0;
    if (hp->window && pp_gguf_has(g, "llama.attention.sliding_window_pattern"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "windows in some layers only are not supported for this family");
    pp_gguf_int(g, "llama.expert_count", &experts);
    if (experts > 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "models with a mixture of experts (%lld here) are not supported",
                       (long long)experts);
    return PP_OK;
}

const struct pp_arch pp_arch_llama = {
    .name = "llama",
    .hf_classes = classes,
    .names = names,
    .ignored = ignored,
    .gguf_neox = false,
    .from_config = from_config,
    .from_gguf = from_gguf,
};
