/* spark.c - iFlytek's Spark-X2.5 (1.7B, 4B): a window in three of four layers, with a RoPE of their own; the others
 * rotate only a part of each head; each head's output is gated by a sigmoid; exact GELU. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."

static const struct pp_arch_name names[] = {
    {.hf = "model.embedding", .gguf = "token_embd"},
    {.hf = LAYER "self_attn.q_k_v_proj", .gguf = "blk.{}.attn_qkv"},
    {.hf = LAYER "self_attn.g_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = LAYER "self_attn.out_proj", .gguf = "blk.{}.attn_output"},
    {.hf = NULL},
};
static const char *const classes[] = {"Spark2_5ForCausalLM", "spark2_5", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 131072, \"hidden_size\": 2560, \"intermediate_size\": 10240,"
             "\"num_hidden_layers\": 36, \"num_attention_heads\": 16, \"num_key_value_heads\": 4, \"head_dim\": 256,"
             "\"rms_norm_eps\": 1e-6, \"max_position_embeddings\": 1048576, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const char pattern_key[] = "spark2_5.attention.sliding_window_pattern";
enum { WINDOW = 512 };

static enum pp_code check_scaling(const struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->rope_scaling == PP_ROPE_NONE)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "RoPE that is scaled is not supported for this family");
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

static bool has_kind(const cJSON *types, const char *kind)
{
    const cJSON *type;
    cJSON_ArrayForEach(type, types)
        if (pp_config_is_layer_word(type, kind))
            return true;
    return false;
}

/* These keys are required, as programs do not agree on their defaults. */
static enum pp_code check_said(const cJSON *config, struct pp_error *err)
{
    static const char *const kinds[] = {"full_attention", "sliding_attention"};
    const cJSON *rope = pp_json_member(config, "rope_parameters"), *types = pp_json_member(config, "layer_types");
    if (!cJSON_IsArray(types))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: layer_types is missing, which says what layers have windows");
    for (int i = 0; i < 2; i++)
        if (has_kind(types, kinds[i]) && !cJSON_IsObject(pp_json_member(rope, kinds[i])))
            return pp_fail(err, PP_ERR_FORMAT, "config.json: rope_parameters has no %s, which says how heads of such "
                           "layers are rotated", kinds[i]);
    return pp_config_unscaled(pp_json_member(rope, kinds[1]), err);
}

static enum pp_code windows_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *local = pp_json_member(pp_json_member(config, "rope_parameters"), "sliding_attention");
    float part = 1;
    enum pp_code code = pp_config_window(config, WINDOW, hp, err);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    for (int64_t l = 0; l < hp->n_layer && !code && !hp->window; l++)
        if (!(hp->layer[l] & PP_LAYER_WIDE))
            code = pp_fail(err, PP_ERR_FORMAT, "config.json: layer_types has sliding_attention, but there is no "
                           "sliding_window");
    hp->rope_base_local = 10000;
    if (!code)
        code = pp_config_float(local, "rope_theta", &hp->rope_base_local, err);
    if (!code)
        code = pp_config_float(local, "partial_rotary_factor", &part, err);
    hp->rope_dim_local = part > 0 && part <= 1 ? (int64_t)((float)hp->head_dim * part) : -1;
    pp_layers_local_rope(hp);
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const gelu[] = {"gelu", NULL}, *const gates[] = {"sigmoid", NULL};
    enum pp_code code = pp_config_activation(config, "hidden_act", gelu, err);
    if (!code)
        code = pp_config_word(config, "gate_attn_act_mode", gates, err);
    if (!code && !pp_config_flag(config, "headwise_attn_output_gate", true))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: headwise_attn_output_gate is false, which is not "
                       "supported");
    if (!code)
        code = check_said(config, err);
    if (!code)
        code = check_scaling(hp, err);
    hp->per_head_gates = true;
    return code ? code : windows_from(config, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_layer_types(config, hp);
    pp_config_put_ropes(config, hp);
    pp_config_put_text(config, "gate_attn_act_mode", "sigmoid");
    cJSON_AddTrueToObject(config, "headwise_attn_output_gate");
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double base = (double)hp->rope_base;
    if (hp->window && !pp_gguf_has(g, pattern_key))
        return pp_fail(err, PP_ERR_FORMAT, "metadata %s is missing, which says what layers have windows", pattern_key);
    if (!hp->window)
        pp_layers_every(hp, 1, PP_LAYER_WIDE);
    pp_gguf_float(g, "spark2_5.rope.freq_base_swa", &base);
    hp->rope_base_local = (float)base;
    hp->rope_dim_local = hp->rope_dim;
    pp_gguf_int(g, "spark2_5.rope.dimension_count_swa", &hp->rope_dim_local);
    pp_layers_local_rope(hp);
    return check_scaling(hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32(w, "spark2_5.rope.freq_base_swa", hp->rope_base_local);
}

const struct pp_arch pp_arch_spark = {
    .name = "spark2_5",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_GELU, .fused_qkv = true, .gated_attention = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
