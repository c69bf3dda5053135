/* llama.c - Llama 1 to 3 and what is built alike (Mistral, Yi, TinyLlama, ...), and Mixtral, whose feed-forward part is
 * a mixture of experts. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
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
    {.hf = NULL},
};

static const char *const classes[] = {
    "LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "llama", "mistral", "mixtral",
    NULL};

static bool is_kind(const cJSON *config, const char *model_type, const char *class)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(config, "model_type");
    const cJSON *first = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(config, "architectures"), 0);
    if (cJSON_IsString(type))
        return strcmp(type->valuestring, model_type) == 0;
    return cJSON_IsString(first) && strcmp(first->valuestring, class) == 0;
}

/* Only Mistral has a window, in all layers; it is 4096 when the configuration does not mention it, and null switches it
 * off. Mixtral has one if it says so. Llama never looks at such a number. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (code)
        return code;
    if (is_kind(config, "mistral", "MistralForCausalLM"))
        return pp_config_window(config, 4096, hp, err);
    if (!is_kind(config, "mixtral", "MixtralForCausalLM"))
        return PP_OK;
    hp->n_expert = 8;
    hp->n_expert_used = 2;
    hp->n_ff_expert = hp->n_ff;
    code = pp_config_window(config, 0, hp, err);
    if (!code)
        code = pp_config_int(config, "num_local_experts", &hp->n_expert, err);
    return code ? code : pp_config_int(config, "num_experts_per_tok", &hp->n_expert_used, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->n_ff_expert = hp->n_ff; /* Mixtral's files have no key of its own for it */
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    if (hp->n_expert) {
        pp_config_put_class(config, "MixtralForCausalLM", "mixtral");
        pp_config_put(config, "num_local_experts", hp->n_expert);
        pp_config_put(config, "num_experts_per_tok", hp->n_expert_used);
    } else if (hp->window) {
        pp_config_put_class(config, "MistralForCausalLM", "mistral");
    }
    if (hp->window)
        pp_config_put(config, "sliding_window", hp->window);
}

const struct pp_arch pp_arch_llama = {
    .name = "llama",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
