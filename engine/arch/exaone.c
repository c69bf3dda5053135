/* exaone.c - LG's EXAONE. EXAONE 4 (arXiv 2507.11407): post-norms instead of pre-norms, and norms of heads of q and k;
 * the 32B has a window in all but every fourth layer, which is not rotated; of EXAONE 4.5 the language model.
 * K-EXAONE: the same layers with pre-norms and experts routed as in DeepSeek-V3. EXAONE 3 (arXiv 2408.03541): Llama
 * with other names. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

/* --- EXAONE 4 --------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm"},
    {.hf = "model.layers.{}.post_feedforward_layernorm", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};
static const char *const classes[] = {"Exaone4ForCausalLM", "Exaone4_5_ForConditionalGeneration", "exaone4",
                                      "exaone4_5", "exaone4_5_text", NULL};
static const char *const others[] = {"visual.", "model.visual.", "mtp.", NULL}; /* vision, and multi-token prediction */
static const struct pp_arch_parts parts = {.model_type = "exaone4", .prefixes = pp_qwen_prefixes, .others = others};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 32, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

/* sliding_window_pattern: "LLLG", letters for layers, repeated, L being those with the window; or a number n, where
 * every n-th layer has none. */
static enum pp_code config_pattern(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *item = pp_json_member(config, "sliding_window_pattern");
    const char *letters = cJSON_GetStringValue(item);
    const size_t n = letters ? strlen(letters) : 0;
    int64_t step = 4;
    enum pp_code code = letters ? PP_OK : pp_config_int(config, "sliding_window_pattern", &step, err);
    for (int64_t l = 0; n && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= letters[(size_t)l % n] == 'L' && l + 1 < hp->n_layer ? 0 : PP_LAYER_WIDE;
    if (!letters && !code && step > 0)
        pp_layers_every(hp, step, PP_LAYER_WIDE);
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_window(config, 4096, hp, err);
    if (!code)
        code = config_pattern(config, hp, err);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    if (hp->window) /* without any window, all layers are rotated */
        pp_layers_rotate_windows(hp);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    if (!pp_gguf_has(g, "exaone4.attention.sliding_window") && hp->n_layer == 64)
        hp->window = 4096; /* the 32B */
    if (!pp_gguf_has(g, "exaone4.attention.sliding_window_pattern"))
        pp_layers_every(hp, 4, PP_LAYER_WIDE);
    if (hp->window) /* without any window, all layers are rotated */
        pp_layers_rotate_windows(hp);
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_layer_types(config, hp);
    if (!hp->window)
        cJSON_ReplaceItemInObjectCaseSensitive(config, "sliding_window", cJSON_CreateNull());
}

const struct pp_arch pp_arch_exaone4 = {
    .name = "exaone4",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .parts = &parts,
    .defaults = defaults,
    .gguf_neox = true,
    .layer_pattern = 4,
    .decoder = {.no_pre_norm = true, .post_norm = true, .qk_norm = PP_QK_BY_HEAD},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};

/* --- EXAONE 3 --------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name names3[] = {
    {.hf = "transformer.wte", .gguf = "token_embd"},
    {.hf = "transformer.ln_f", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = "transformer.h.{}.ln_1", .gguf = "blk.{}.attn_norm"},
    {.hf = "transformer.h.{}.attn.attention.q_proj", .gguf = "blk.{}.attn_q"},
    {.hf = "transformer.h.{}.attn.attention.k_proj", .gguf = "blk.{}.attn_k"},
    {.hf = "transformer.h.{}.attn.attention.v_proj", .gguf = "blk.{}.attn_v"},
    {.hf = "transformer.h.{}.attn.attention.out_proj", .gguf = "blk.{}.attn_output"},
    {.hf = "transformer.h.{}.ln_2", .gguf = "blk.{}.ffn_norm"},
    {.hf = "transformer.h.{}.mlp.c_fc_0", .gguf = "blk.{}.ffn_gate"},
    {.hf = "transformer.h.{}.mlp.c_fc_1", .gguf = "blk.{}.ffn_up"},
    {.hf = "transformer.h.{}.mlp.c_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const char *const classes3[] = {"ExaoneForCausalLM", "exaone", NULL};

static enum pp_code from_config3(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->norm_eps = 1e-5f;
    enum pp_code code = pp_config_activation(config, "activation_function", pp_silu_names, err);
    return code ? code : pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
}

static void to_config3(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put(config, "num_layers", hp->n_layer);
    pp_config_put_text(config, "activation_function", "silu");
}

const struct pp_arch pp_arch_exaone = {
    .name = "exaone",
    .hf_classes = classes3,
    .names = names3,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .from_config = from_config3,
    .to_config = to_config3,
    .hf_eps = "layer_norm_epsilon",
};

/* --- K-EXAONE ---------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name moe_names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "model.layers.{}.mlp.e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true},
    {.hf = NULL},
};
static const char *const moe_classes[] = {"ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM", "exaone_moe", NULL};
static const char *const moe_prefixes[] = {NULL};
static const char *const moe_others[] = {"mtp.", NULL}; /* multi-token prediction */
static const struct pp_arch_parts moe_parts = {
    .model_type = "exaone_moe", .prefixes = moe_prefixes, .others = moe_others};
static const struct pp_arch_default moe_defaults[] = {
    {.json = "{\"num_key_value_heads\": 32, \"rms_norm_eps\": 1e-5, \"num_experts\": 64, \"num_experts_per_tok\": 8,"
             "\"moe_intermediate_size\": 1024, \"num_shared_experts\": 1, \"first_k_dense_replace\": 1,"
             "\"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_groups = "n_group", .n_groups_used = "topk_group", .n_shared = "num_shared_experts",
    .n_dense = "first_k_dense_replace", .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};

static enum pp_code moe_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = from_config(config, hp, err);
    hp->expert_sigmoids = true;
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    return code ? code : pp_config_mlp_types(config, hp, err); /* takes precedence over the number of dense layers */
}

static enum pp_code moe_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    if (!pp_gguf_has(g, "exaone-moe.attention.sliding_window_pattern"))
        pp_layers_every(hp, 4, PP_LAYER_WIDE);
    if (hp->window) /* without any window, all layers are rotated */
        pp_layers_rotate_windows(hp);
    return PP_OK;
}

static void moe_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    to_config(hp, config);
    pp_config_put_experts(hp, &expert_keys, config);
}

const struct pp_arch pp_arch_exaone_moe = {
    .name = "exaone-moe",
    .hf_classes = moe_classes,
    .names = moe_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .parts = &moe_parts,
    .defaults = moe_defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .gguf_default_sigmoids = true,
    .layer_pattern = 4,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .from_config = moe_from_config,
    .from_gguf = moe_from_gguf,
    .to_config = moe_to_config,
};
