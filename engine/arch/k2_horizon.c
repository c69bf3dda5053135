/* k2_horizon.c - K2 Horizon (0.9B, 7B): Llama whose norms of the residual stream are by a few parts of it, each by its
 * own mean square. Those of the family that have experts, of feed-forward parts and of values, do not run. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const char *const classes[] = {"K2HorizonForCausalLM", "k2_horizon", NULL};
static const struct pp_arch_usual usual[] = {
    {.json = "{\"vocab_size\": 64256, \"hidden_size\": 1536, \"intermediate_size\": 5120, \"num_hidden_layers\": 28,"
             "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 64, \"rms_norm_eps\": 1e-6,"
             "\"max_position_embeddings\": 131072, \"rope_theta\": 1000000, \"layernorm_num_groups\": 1}"},
    {.json = NULL},
};
static const char groups_key[] = "k2-horizon.attention.group_norm_groups";

static enum pp_code set_groups(struct pp_hparams *hp, int64_t n, struct pp_error *err)
{
    if (n < 1 || n > hp->n_embd || hp->n_embd % n != 0)
        return pp_fail(err, PP_ERR_FORMAT, "the model norms its %lld values in %lld groups, which cannot be",
                       (long long)hp->n_embd, (long long)n);
    hp->norm_groups = n > 1 ? n : 0;
    if (hp->n_expert)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a mixture of experts of this family is not supported");
    return PP_OK;
}

static enum pp_code refuse_others(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const flags[] = {"query_key_norm", "use_sliding_window"};
    static const char *const numbers[] = {"num_experts", "mova_num_experts"};
    int64_t rotated = hp->head_dim;
    enum pp_code code = PP_OK;
    for (int i = 0; i < 2 && !code; i++) {
        int64_t n = 0;
        code = pp_config_int(config, numbers[i], &n, err);
        if (!code && n)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is %lld; only models without experts are "
                           "supported in this family", numbers[i], (long long)n);
    }
    for (int i = 0; i < 2; i++)
        if (pp_config_flag(config, flags[i], false))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is true, which is not supported for this family",
                           flags[i]);
    if (cJSON_IsString(cJSON_GetObjectItemCaseSensitive(config, "attention_gate_func")))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: attention_gate_func is there, which is not supported");
    if (!code)
        code = pp_config_int(config, "rope_head_dim", &rotated, err);
    if (!code && rotated != hp->head_dim)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_head_dim is %lld, and heads have %lld values; only "
                       "all are supported", (long long)rotated, (long long)hp->head_dim);
    return code ? code : pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 1;
    enum pp_code code = refuse_others(config, hp, err);
    if (!code)
        code = pp_config_int(config, "layernorm_num_groups", &n, err);
    return code ? code : set_groups(hp, n, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put(config, "layernorm_num_groups", hp->norm_groups ? hp->norm_groups : 1);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 0;
    pp_gguf_int(g, groups_key, &n);
    return set_groups(hp, n ? n : 1, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, groups_key, (uint32_t)(hp->norm_groups ? hp->norm_groups : 1));
}

const struct pp_arch pp_arch_k2_horizon = {
    .name = "k2-horizon",
    .hf_classes = classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = usual,
    .gguf_neox = true,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
