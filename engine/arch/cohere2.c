/* cohere2.c - Cohere's families: one LayerNorm without bias for attention and feed-forward part beside each other.
 * Command R7B and its like (cohere2): every fourth layer sees everything and is not rotated, the others have a window.
 * Command R and Aya before it (command-r): all layers see everything; the larger ones norm each head of q and k by a
 * vector of its own. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const char *const classes[] = {"Cohere2ForCausalLM", "cohere2", NULL};

/* What both have. */
static enum pp_code common_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->parallel = true;
    hp->norm_eps = 1e-5f;
    hp->logit_scale = 0.0625f;
    if (!code)
        code = pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
    return code ? code : pp_config_float(config, "logit_scale", &hp->logit_scale, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t pattern = 4;
    enum pp_code code = common_config(config, hp, err);
    if (!code)
        code = pp_config_window(config, 4096, hp, err);
    if (!code)
        code = pp_config_int(config, "sliding_window_pattern", &pattern, err);
    if (!code)
        code = pp_config_int(config, "_sliding_window_pattern", &pattern, err);
    if (!code && pattern > 0)
        pp_layers_every(hp, pattern, PP_LAYER_WIDE);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    pp_layers_rotate_windows(hp);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    hp->parallel = true;
    if (!pp_gguf_has(g, "cohere2.attention.sliding_window_pattern"))
        pp_layers_every(hp, 4, PP_LAYER_WIDE);
    pp_layers_rotate_windows(hp);
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_layer_types(config, hp);
    pp_config_put_float(config, "logit_scale", hp->logit_scale != 0.0f ? hp->logit_scale : 1);
}

static const struct pp_arch_usual usual[] = {
    {.json = "{\"max_position_embeddings\": 8192, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_cohere2 = {
    .name = "cohere2",
    .hf_classes = classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .decoder = {.layer_norm = true},
    .from_config = from_config,
    .usual = usual,
    .from_gguf = from_gguf,
    .layer_pattern = 4,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};

/* --- Command R -------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name command_r_names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};
static const char *const command_r_classes[] = {"CohereForCausalLM", "cohere", NULL};
static const struct pp_arch_usual command_r_usual[] = {
    {.json = "{\"max_position_embeddings\": 8192, \"tie_word_embeddings\": true, \"rope_theta\": 500000.0}"},
    {.json = NULL},
};

/* max_position_embeddings is less than what the models were trained for; some say that, too. */
static enum pp_code command_r_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = common_config(config, hp, err);
    hp->qk_norm = pp_config_flag(config, "use_qk_norm", false);
    return code ? code : pp_config_int(config, "model_max_length", &hp->n_ctx_train, err);
}

static enum pp_code command_r_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->parallel = true;
    return PP_OK;
}

static void command_r_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_float(config, "logit_scale", hp->logit_scale != 0.0f ? hp->logit_scale : 1);
    cJSON_AddBoolToObject(config, "use_qk_norm", hp->qk_norm);
}

const struct pp_arch pp_arch_command_r = {
    .name = "command-r",
    .hf_classes = command_r_classes,
    .names = command_r_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = command_r_usual,
    .hf_pairs = true,
    .decoder = {.layer_norm = true, .qk_norm = PP_QK_PERHAPS},
    .from_config = command_r_from_config,
    .from_gguf = command_r_from_gguf,
    .to_config = command_r_to_config,
    .hf_eps = "layer_norm_eps",
};
