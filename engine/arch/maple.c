/* maple.c - deepgrove's Maple: Qwen 3's mixture with a window in three of four layers, which are the only rotated
 * ones, and experts' gates clamped before SiLU. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};
static const char *const classes[] = {"MapleForCausalLM", "maple", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 151936, \"hidden_size\": 2048, \"intermediate_size\": 4096, \"num_hidden_layers\": 24,"
             "\"num_attention_heads\": 16, \"num_key_value_heads\": 4, \"head_dim\": 128, \"rms_norm_eps\": 1e-6,"
             "\"max_position_embeddings\": 131072, \"partial_rotary_factor\": 0.5, \"num_experts\": 256,"
             "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 512, \"norm_topk_prob\": true,"
             "\"sliding_window\": 512}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {.n = "num_experts", .n_used = "num_experts_per_tok",
                                                  .n_ff = "moe_intermediate_size", .norm_topk = "norm_topk_prob"};
static const float bound = 7; /* a constant in its own code */

static void set_layers(struct pp_hparams *hp)
{
    pp_layers_rotate_windows(hp);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->expert_bound[l] = bound;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

static enum pp_code refuse_others(const cJSON *config, struct pp_error *err)
{
    int64_t n_shared = 0;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_int(config, "num_shared_experts", &n_shared, err);
    if (!code && n_shared)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: num_shared_experts is %lld, which is not supported for "
                       "this family", (long long)n_shared);
    if (!code && !pp_config_flag(config, "nope_on_global_attention", true))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: nope_on_global_attention is false, which is not "
                       "supported");
    if (!code && pp_config_flag(config, "moe_router_enable_expert_bias", false))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: moe_router_enable_expert_bias is true, which is not "
                       "supported for this family");
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = refuse_others(config, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_window(config, 512, hp, err);
    if (!code && !cJSON_IsArray(pp_json_member(config, "layer_types")))
        pp_layers_every(hp, 4, PP_LAYER_WIDE);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    set_layers(hp);
    return code;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_layer_types(config, hp);
    pp_config_put(config, "num_shared_experts", 0);
    cJSON_AddTrueToObject(config, "use_qk_norm");
    cJSON_AddTrueToObject(config, "nope_on_global_attention");
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static const char bound_key[] = "maple.swiglu_clamp_exp";

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double base = (double)hp->rope_base, v = 0;
    pp_gguf_float(g, "maple.rope.freq_base_swa", &base);
    hp->rope_base = (float)base; /* all rotated layers have this base */
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if ((pp_gguf_float(g, bound_key, &v) || pp_gguf_array_float(g, bound_key, (size_t)l, &v)) &&
            v != (double)bound)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is %g; only %g is supported, which is what the "
                           "family's own code has", bound_key, v, (double)bound);
    set_layers(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32_array(w, bound_key, hp->expert_bound, (size_t)hp->n_layer);
}

const struct pp_arch pp_arch_maple = {
    .name = "maple",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .clamp_before_silu = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
