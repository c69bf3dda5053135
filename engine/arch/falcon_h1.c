/* falcon_h1.c - Falcon-H1 (arXiv 2507.22448): in each layer Mamba 2 and attention in parallel, then a feed-forward
 * part. config.json has multipliers for groups of weights; in GGUF files the weights are multiplied already. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define SCALED(hf_name, gguf_name) {.hf = hf_name, .gguf = gguf_name, .form = PP_HF_SCALED}

static const struct pp_arch_name names[] = {
    SCALED("model.embed_tokens", "token_embd"),
    SCALED("lm_head", "output"),
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    {.hf = LAYER "pre_ff_layernorm", .gguf = "blk.{}.ffn_norm"},
    SCALED(LAYER "self_attn.q_proj", "blk.{}.attn_q"),
    SCALED(LAYER "self_attn.k_proj", "blk.{}.attn_k"),
    SCALED(LAYER "self_attn.v_proj", "blk.{}.attn_v"),
    SCALED(LAYER "self_attn.o_proj", "blk.{}.attn_output"),
    SCALED(LAYER "feed_forward.gate_proj", "blk.{}.ffn_gate"),
    {.hf = LAYER "feed_forward.up_proj", .gguf = "blk.{}.ffn_up"},
    SCALED(LAYER "feed_forward.down_proj", "blk.{}.ffn_down"),
    SCALED(LAYER "mamba.in_proj", "blk.{}.ssm_in"),
    {.hf = LAYER "mamba.conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    {.hf = LAYER "mamba.conv1d.bias", .gguf = "blk.{}.ssm_conv1d.bias", .whole = true},
    {.hf = LAYER "mamba.A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP_COLUMN, .whole = true},
    {.hf = LAYER "mamba.D", .gguf = "blk.{}.ssm_d", .form = PP_HF_COLUMN, .whole = true},
    {.hf = LAYER "mamba.dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},
    {.hf = LAYER "mamba.norm", .gguf = "blk.{}.ssm_norm", .form = PP_HF_FLAT_GROUPS},
    SCALED(LAYER "mamba.out_proj", "blk.{}.ssm_out"),
    {.hf = NULL},
};
static const char *const classes[] = {"FalconH1ForCausalLM", "falcon_h1", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 8192,"
             "\"mamba_n_heads\": 128, \"mamba_n_groups\": 1, \"mamba_d_state\": 256, \"mamba_d_conv\": 4,"
             "\"mamba_d_head\": \"auto\", \"mamba_d_ssm\": 1024}"},
    {.json = NULL},
};

static void have_both(struct pp_hparams *hp)
{
    hp->states_parallel = true;
    pp_layers_every(hp, 1, PP_LAYER_RECURRENT);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    have_both(hp); /* hp->state_norm is set already */
    return pp_mamba_from_gguf(g, hp, err);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* A list of n numbers under a key; absent leaves them alone. */
static enum pp_code read_list(const cJSON *config, const char *key, float *v, int n, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, key), *item;
    if (!list || cJSON_IsNull(list))
        return PP_OK;
    bool good = cJSON_IsArray(list) && cJSON_GetArraySize(list) == n;
    cJSON_ArrayForEach(item, list)
    {
        good = good && cJSON_IsNumber(item);
        if (good)
            *v++ = (float)item->valuedouble;
    }
    return good ? PP_OK : pp_fail(err, PP_ERR_FORMAT, "config.json: %s is not a list of %d numbers", key, n);
}

static enum pp_code read_scales(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float key = 1, attn_in = 1, ssm_in = 1, feed_forward[2] = {1, 1};
    struct pp_folder_scales *s = &hp->scales;
    *s = (struct pp_folder_scales){.any = true, .embd = 1, .output = 1, .attn_output = 1, .ssm_out = 1,
                                   .ssm_in = {1, 1, 1, 1, 1}};
    const struct {
        const char *key;
        float *v;
    } numbers[] = {
        {"embedding_multiplier", &s->embd}, {"lm_head_multiplier", &s->output}, {"key_multiplier", &key},
        {"attention_in_multiplier", &attn_in}, {"attention_out_multiplier", &s->attn_output},
        {"ssm_in_multiplier", &ssm_in}, {"ssm_out_multiplier", &s->ssm_out},
    };
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = pp_config_float(config, numbers[i].key, numbers[i].v, err);
    if (!code)
        code = read_list(config, "mlp_multipliers", feed_forward, 2, err);
    if (!code)
        code = read_list(config, "ssm_multipliers", s->ssm_in, 5, err);
    s->q = s->v = attn_in;
    s->k = attn_in * key;
    s->ffn_gate = feed_forward[0];
    s->ffn_down = feed_forward[1];
    for (int i = 0; i < 5; i++)
        s->ssm_in[i] *= ssm_in;
    if (pp_config_flag(config, "tie_word_embeddings", false) && s->embd != 0.0f && s->output != s->embd)
        hp->logit_scale = s->output / s->embd;
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t inner = 0;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    have_both(hp);
    hp->state_norm = pp_config_flag(config, "mamba_rms_norm", false);
    if (!code && hp->state_norm && pp_config_flag(config, "mamba_norm_before_gate", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a norm in front of Mamba's gate is not supported in this family");
    if (!code)
        code = pp_config_int(config, "mamba_d_ssm", &inner, err);
    if (!code)
        code = read_scales(config, hp, err);
    if (!code && !inner) /* null: mamba_expand times the width */
        return pp_mamba_expanded_from_config(config, &pp_mamba_keys, hp, err);
    return code ? code : pp_mamba_from_config(config, &pp_mamba_keys, inner, hp, err);
}

/* All multipliers become 1, except the logits' where the output is the embeddings. */
static void scaled_config(const struct pp_hparams *hp, bool tied, cJSON *config)
{
    static const char *const gone[] = {"embedding_multiplier", "key_multiplier", "attention_in_multiplier",
                                       "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
                                       "mlp_multipliers", "ssm_multipliers", "lm_head_multiplier"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, gone[i]);
    if (tied && hp->logit_scale != 0.0f)
        pp_config_put_float(config, "lm_head_multiplier", hp->logit_scale);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_mamba_to_config(hp, &pp_mamba_keys, config);
    pp_config_put(config, "mamba_d_ssm", hp->n_state_head * hp->state_value_dim);
    cJSON_AddFalseToObject(config, "mamba_norm_before_gate");
    cJSON_AddBoolToObject(config, "mamba_rms_norm", hp->state_norm);
    cJSON_AddTrueToObject(config, "mamba_conv_bias");
    cJSON_AddFalseToObject(config, "mamba_proj_bias");
}

const struct pp_arch pp_arch_falcon_h1 = {
    .name = "falcon-h1",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .gguf_scaled_output = true,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = pp_states_to_gguf,
    .to_config = to_config,
    .scaled_config = scaled_config,
};
