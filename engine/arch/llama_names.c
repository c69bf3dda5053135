/* llama_names.c - Llama 1 to 3 and what is built alike (Mistral without a sliding window, TinyLlama, ...). */
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

/* Mistral's configurations mean a window of 4096 when they do not mention it; null switches it off. */
static enum pp_code check_window(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *model_type = cJSON_GetObjectItemCaseSensitive(config, "model_type");
    const cJSON *window = cJSON_GetObjectItemCaseSensitive(config, "sliding_window");
    bool mistral = cJSON_IsString(model_type) && strcmp(model_type->valuestring, "mistral") == 0;
    double size = cJSON_IsNumber(window) ? window->valuedouble : mistral && !window ? 4096 : 0;
    if (size <= 0 || size >= (double)hp->n_ctx_train)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED,
                   "the model attends within a sliding window (%.0f tokens), which is not supported", size);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *act = cJSON_GetObjectItemCaseSensitive(config, "hidden_act");
    if (cJSON_IsString(act) && strcmp(act->valuestring, "silu") != 0 && strcmp(act->valuestring, "swish") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "activation \"%.40s\" is not supported for this family; silu is",
                       act->valuestring);
    return check_window(config, hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t experts = 0;
    (void)hp;
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
