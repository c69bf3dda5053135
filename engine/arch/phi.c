/* phi.c - Phi 1.5 and 2: one LayerNorm for attention and feed-forward part beside each other, biases everywhere,
 * perhaps norms of the heads of q and k; and Phi 3 and 4: Llama with q, k and v in one matrix, and gate and value in
 * another. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names2[] = {
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    {.hf = "model.layers.{}.self_attn.dense", .gguf = "blk.{}.attn_output"},
    {.hf = "model.layers.{}.self_attn.q_layernorm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_layernorm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "model.layers.{}.mlp.fc1", .gguf = "blk.{}.ffn_up"},
    {.hf = "model.layers.{}.mlp.fc2", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};

static const struct pp_arch_name names3[] = {
    {.hf = "model.layers.{}.self_attn.qkv_proj", .gguf = "blk.{}.attn_qkv"},
    {.hf = "model.layers.{}.mlp.gate_up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = NULL},
};

static const char *const classes2[] = {"PhiForCausalLM", "phi", NULL};
static const char *const classes3[] = {"Phi3ForCausalLM", "phi3", NULL};

static enum pp_code from_config2(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->parallel = true;
    hp->norm_eps = 1e-5f;
    hp->qk_norm = pp_config_flag(config, "qk_layernorm", false);
    enum pp_code code = pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
    return code ? code : pp_config_activation(config, "hidden_act", pp_gelu_tanh_names, err);
}

static enum pp_code from_gguf2(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->parallel = true;
    return PP_OK;
}

static enum pp_code from_config3(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    return code ? code : pp_config_window(config, 0, hp, err);
}

/* Files from before there was a key for it: the models of 4096 positions have this window. */
static enum pp_code from_gguf3(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    if (!pp_gguf_has(g, "phi3.attention.sliding_window") && (hp->n_layer == 32 || hp->n_layer == 40) &&
        hp->n_ctx_train == 4096)
        hp->window = 2047;
    return PP_OK;
}

static const struct pp_arch_usual usual2[] = {{.json = "{\"partial_rotary_factor\": 0.5}"}, {.json = NULL}};
static const struct pp_arch_usual usual3[] = {
    {.json = "{\"max_position_embeddings\": 4096, \"original_max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

static void to_config2(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON_AddBoolToObject(config, "qk_layernorm", hp->qk_norm);
}

const struct pp_arch pp_arch_phi2 = {
    .name = "phi2",
    .hf_classes = classes2,
    .names = names2,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_GELU_TANH,
                .qk_norm = PP_QK_PERHAPS},
    .from_config = from_config2,
    .usual = usual2,
    .from_gguf = from_gguf2,
    .to_config = to_config2,
    .hf_eps = "layer_norm_eps",
};

static void to_config3(const struct pp_hparams *hp, struct cJSON *config)
{
    if (hp->window)
        pp_config_put(config, "sliding_window", hp->window);
}

const struct pp_arch pp_arch_phi3 = {
    .name = "phi3",
    .hf_classes = classes3,
    .names = names3,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.fused_qkv = true, .fused_gate = true},
    .from_config = from_config3,
    .usual = usual3,
    .from_gguf = from_gguf3,
    .gguf_says_window = true,
    .to_config = to_config3,
};
