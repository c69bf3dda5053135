/* mamba1.c - models of Mamba layers only (arXiv 2312.00752), and Falcon Mamba with norms of dt, B and C (arXiv
 * 2410.05355). */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define MIXER "backbone.layers.{}.mixer."

static const struct pp_arch_name names[] = {
    {.hf = MIXER "x_proj", .gguf = "blk.{}.ssm_x"},
    {.hf = MIXER "dt_proj", .gguf = "blk.{}.ssm_dt"},
    {.hf = MIXER "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},
    {.hf = MIXER "D", .gguf = "blk.{}.ssm_d", .whole = true},
    {.hf = NULL},
};
static const char *const classes[] = {"MambaForCausalLM", "mamba", "FalconMambaForCausalLM", "falcon_mamba", NULL};
/* Placeholders for the common reader, whose keys are absent or mean something else here; see from_config. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_attention_heads\": 1, \"intermediate_size\": 1, \"max_position_embeddings\": 1048576,"
             "\"hidden_size\": 768, \"num_hidden_layers\": 32, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const struct pp_scan_keys keys = {.taps = "conv_kernel", .key_dim = "state_size", .rank = "time_step_rank",
                                         .expand = "expand"};

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double eps = 0;
    pp_mamba_alone(hp);
    pp_gguf_bool(g, "mamba.ssm.dt_b_c_rms", &hp->dt_bc_norms);
    if (hp->dt_bc_norms && pp_gguf_float(g, "mamba.ssm.dt_b_c_rms_epsilon", &eps))
        hp->state_eps = (float)eps;
    return pp_scan_from_gguf(g, hp, err);
}

/* The epsilon of these norms has a key of pippin's own; other programs use the model's. */
static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_scan_to_gguf(hp, w);
    pp_gguf_add_bool(w, "mamba.ssm.dt_b_c_rms", hp->dt_bc_norms);
    if (hp->state_eps != 0.0f)
        pp_gguf_add_f32(w, "mamba.ssm.dt_b_c_rms_epsilon", hp->state_eps);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    const int64_t inner = hp->n_ff > 1 ? hp->n_ff : 0; /* intermediate_size takes precedence over `expand` */
    pp_mamba_alone(hp);
    hp->dt_bc_norms = pp_arch_is_kind(config, "falcon_mamba", "FalconMambaForCausalLM");
    hp->state_eps = hp->dt_bc_norms ? 1e-6f : 0;
    hp->norm_eps = 1e-5f;
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code && hp->dt_bc_norms)
        code = pp_config_float(config, "mixer_rms_eps", &hp->state_eps, err);
    return code ? code : pp_scan_from_config(config, &keys, inner, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    static const char *const gone[] = {"num_attention_heads", "num_key_value_heads", "rope_theta"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, gone[i]);
    pp_scan_to_config(hp, &keys, config);
    pp_config_put(config, "intermediate_size", hp->n_state_head * hp->state_value_dim);
    cJSON_AddTrueToObject(config, "use_conv_bias");
    cJSON_AddFalseToObject(config, "use_bias");
    if (!hp->dt_bc_norms)
        return;
    pp_config_put_class(config, "FalconMambaForCausalLM", "falcon_mamba");
    pp_config_put_float(config, "mixer_rms_eps", hp->state_eps != 0.0f ? hp->state_eps : hp->norm_eps);
}

const struct pp_arch pp_arch_mamba = {
    .name = "mamba",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_mamba_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
