/* olmo2.c - OLMo 2 (arXiv 2501.00656): post-norms instead of pre-norms, and norms over all queries and over all keys.
 * OLMo 3 (arXiv 2512.13961) is the same with a window in three of four layers, where RoPE is not scaled; GGUF files
 * call it olmo2, too, except for some of ollama's. FlexOlmo (2507.07024) is OLMo 2 with experts; only pippin makes
 * GGUF files of that. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm"},
    {.hf = "model.layers.{}.post_feedforward_layernorm", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};

static const char *const other_names[] = {"olmo3", NULL}; /* ollama's */
static const char *const classes[] = {"Olmo2ForCausalLM", "Olmo3ForCausalLM", "olmo2", "olmo3", NULL};

static const struct pp_arch_default defaults[] = {
    {"olmo3", "Olmo3ForCausalLM", "{\"rope_theta\": 500000.0}"},
    {.json = "{\"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *both = pp_json_member(config, "rope_parameters");
    const cJSON *local = pp_json_member(both, "sliding_attention");
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (code || !pp_arch_is_kind(config, "olmo3", "Olmo3ForCausalLM"))
        return code;
    pp_layers_every(hp, 4, PP_LAYER_WIDE);
    code = pp_config_window(config, 4096, hp, err);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    if (!code)
        code = pp_config_unscaled(local, err);
    if (!code)
        code = pp_config_float(local, "rope_theta", &hp->rope_base_local, err);
    pp_layers_unscaled_windows(hp);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double local = 0;
    (void)err;
    if (pp_gguf_float(g, "olmo2.rope.freq_base_swa", &local))
        hp->rope_base_local = (float)local;
    if (hp->window && !pp_gguf_has(g, "olmo2.attention.sliding_window_pattern") &&
        !pp_gguf_has(g, "olmo3.attention.sliding_window_pattern"))
        pp_layers_every(hp, 4, PP_LAYER_WIDE);
    pp_layers_unscaled_windows(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    if (hp->window && hp->rope_base_local != hp->rope_base)
        pp_gguf_add_f32(w, "olmo2.rope.freq_base_swa", hp->rope_base_local);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    if (!hp->window)
        return;
    pp_config_put_class(config, "Olmo3ForCausalLM", "olmo3");
    pp_config_put_layer_types(config, hp);
}

const struct pp_arch pp_arch_olmo2 = {
    .name = "olmo2",
    .other_names = other_names,
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.no_pre_norm = true, .post_norm = true, .qk_norm = PP_QK_WHOLE},
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .layer_pattern = 4,
    .to_config = to_config,
};

/* --- FlexOlmo ---------------------------------------------------------------------------------------------------- */

static const char *const flex_classes[] = {"FlexOlmoForCausalLM", "flex_olmo", NULL};
static const struct pp_expert_keys flex_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "intermediate_size", .norm_topk = "norm_topk_prob"};
static const struct pp_arch_default flex_defaults[] = {
    {.json = "{\"max_position_embeddings\": 4096, \"rope_theta\": 500000.0, \"num_experts_per_tok\": 5}"},
    {.json = NULL},
};

static enum pp_code flex_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->n_expert = 7;
    if (!code)
        code = pp_config_int(config, "num_local_experts", &hp->n_expert, err);
    return code ? code : pp_config_experts(config, &flex_keys, hp, err);
}

static void flex_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_experts(hp, &flex_keys, config);
}

const struct pp_arch pp_arch_flex_olmo = {
    .name = "flex_olmo",
    .hf_classes = flex_classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .defaults = flex_defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .decoder = {.no_pre_norm = true, .experts_read_stream = true, .post_norm = true, .qk_norm = PP_QK_WHOLE},
    .from_config = flex_from_config,
    .to_config = flex_to_config,
};
