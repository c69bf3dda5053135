/* qwen3next.c - Qwen3-Next, and Qwen 3.5 with and without experts: the gated delta rule (arXiv 2412.06464) in three of
 * four layers, in the fourth attention whose heads have gates. Of Qwen 3.5, which sees, too, the part that reads and
 * writes text, for which its three numbers of a position are one. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static enum pp_code gguf_number(const struct pp_gguf *g, const struct pp_hparams *hp, const char *key, int64_t *v,
                                struct pp_error *err)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", hp->arch, key);
    return pp_gguf_int(g, full, v) ? PP_OK
                                   : pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is no number", full);
}

/* Each `full_attention_interval`-th layer has attention, or those for which a list does not say that they recur. */
static void find_recurrent(const struct pp_gguf *g, struct pp_hparams *hp)
{
    char interval[128], list[128];
    int64_t step = 4;
    snprintf(interval, sizeof interval, "%s.full_attention_interval", hp->arch);
    snprintf(list, sizeof list, "%s.attention.recurrent_layers", hp->arch);
    pp_gguf_int(g, interval, &step);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++) {
        int64_t number = step > 0 && (l + 1) % step != 0;
        bool recurs = number != 0;
        if (!pp_gguf_array_bool(g, list, (size_t)l, &recurs) && pp_gguf_array_int(g, list, (size_t)l, &number))
            recurs = number != 0;
        hp->layer[l] |= recurs ? PP_LAYER_RECURRENT : 0;
    }
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t inner = 0;
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {
        {"ssm.conv_kernel", &hp->conv_taps}, {"ssm.state_size", &hp->state_key_dim},
        {"ssm.group_count", &hp->n_state_key_head}, {"ssm.time_step_rank", &hp->n_state_head},
        {"ssm.inner_size", &inner},
    };
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = gguf_number(g, hp, numbers[i].key, numbers[i].v, err);
    if (!code && (hp->n_state_head < 1 || inner % hp->n_state_head != 0))
        code = pp_fail(err, PP_ERR_FORMAT, "the metadata's numbers of states cannot be: %lld values of %lld heads",
                       (long long)inner, (long long)hp->n_state_head);
    if (code)
        return code;
    hp->state_value_dim = inner / hp->n_state_head;
    find_recurrent(g, hp);
    return PP_OK;
}

/* In GGUF files heads take turns with the keys. */
static enum pp_code tiled_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    hp->state_tiled = true;
    return from_gguf(g, hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)config, (void)hp;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "folders of this family cannot be read yet; its GGUF files run");
}

#define LINEAR "model.layers.{}.linear_attn."
#define SHARED "model.layers.{}.mlp.shared_expert"
#define NAMES                                                                                                         \
    {.hf = "model.norm", .gguf = "output_norm", .form = PP_HF_PLUS_ONE},                                              \
    {.hf = "model.layers.{}.input_layernorm", .gguf = "blk.{}.attn_norm", .form = PP_HF_PLUS_ONE},                    \
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm",                          \
     .form = PP_HF_PLUS_ONE},                                                                                         \
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm", .form = PP_HF_PLUS_ONE},                 \
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm", .form = PP_HF_PLUS_ONE},                 \
    {.hf = LINEAR "conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CHANNELS, .whole = true},        \
    {.hf = LINEAR "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},                           \
    {.hf = LINEAR "dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},                                            \
    {.hf = LINEAR "norm", .gguf = "blk.{}.ssm_norm"},                                                                 \
    {.hf = LINEAR "out_proj", .gguf = "blk.{}.ssm_out"},                                                              \
    {.hf = SHARED ".gate_proj", .gguf = "blk.{}.ffn_gate_shexp"},                                                     \
    {.hf = SHARED ".up_proj", .gguf = "blk.{}.ffn_up_shexp"},                                                         \
    {.hf = SHARED ".down_proj", .gguf = "blk.{}.ffn_down_shexp"},                                                     \
    {.hf = SHARED "_gate", .gguf = "blk.{}.ffn_gate_inp_shexp", .form = PP_HF_ONE_ROW}

/* --- Qwen3-Next -------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name next_names[] = {
    NAMES,
    {.hf = LINEAR "in_proj_qkvz", .gguf = "blk.{}.ssm_in"},
    {.hf = LINEAR "in_proj_ba", .gguf = "blk.{}.ssm_ba"},
    {.hf = NULL},
};
static const char *const next_classes[] = {"Qwen3NextForCausalLM", "qwen3_next", NULL};

const struct pp_arch pp_arch_qwen3next = {
    .name = "qwen3next",
    .hf_classes = next_classes,
    .names = next_names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .gated_queries = true, .ffn_norm = "post_attention_norm"},
    .from_config = from_config,
    .from_gguf = from_gguf,
};

/* --- Qwen 3.5 ---------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name names[] = {
    NAMES,
    {.hf = LINEAR "in_proj_qkv", .gguf = "blk.{}.attn_qkv"},
    {.hf = LINEAR "in_proj_z", .gguf = "blk.{}.attn_gate"},
    {.hf = LINEAR "in_proj_b", .gguf = "blk.{}.ssm_beta"},
    {.hf = LINEAR "in_proj_a", .gguf = "blk.{}.ssm_alpha"},
    {.hf = "model.layers.{}.mlp.experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight",
     .second = "blk.{}.ffn_up_exps.weight", .form = PP_HF_HALVES, .whole = true},
    {.hf = "model.layers.{}.mlp.experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true},
    {.hf = NULL},
};
static const char *const classes[] = {"Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM", "qwen3_5",
                                      "qwen3_5_text", NULL};
static const char *const moe_classes[] = {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM", "qwen3_5_moe",
                                          "qwen3_5_moe_text", NULL};

const struct pp_arch pp_arch_qwen35 = {
    .name = "qwen35",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .gated_queries = true, .ffn_norm = "post_attention_norm"},
    .from_config = from_config,
    .from_gguf = tiled_from_gguf,
};

const struct pp_arch pp_arch_qwen35moe = {
    .name = "qwen35moe",
    .hf_classes = moe_classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .gated_queries = true, .ffn_norm = "post_attention_norm"},
    .from_config = from_config,
    .from_gguf = tiled_from_gguf,
};
