/* olmo_hybrid.c - OLMo Hybrid: the gated delta rule (arXiv 2412.06464) in three of four layers, with beta up to 2 and
 * pre-norms; the fourth is OLMo 3's layer, with post-norms and norms over all queries and keys, mostly without RoPE.
 * We know of no other program's GGUF files: ours have Qwen3-Next's keys, and Kimi Linear's tensors with separate q, k
 * and v. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define LINEAR LAYER "linear_attn."
#define TAPS(letter)                                                                                                  \
    {.hf = LINEAR letter "_conv1d.weight", .gguf = "blk.{}.ssm_conv1d_" letter ".weight", .whole = true,               \
     .form = PP_HF_CONV_3D}

/* The last two are early folders' names for the norms of layers with states. */
static const struct pp_arch_name names[] = {
    {.hf = LINEAR "q_proj", .gguf = "blk.{}.attn_q", .recurrent = true},
    {.hf = LINEAR "k_proj", .gguf = "blk.{}.attn_k", .recurrent = true},
    {.hf = LINEAR "v_proj", .gguf = "blk.{}.attn_v", .recurrent = true},
    TAPS("q"),
    TAPS("k"),
    TAPS("v"),
    {.hf = LINEAR "g_proj", .gguf = "blk.{}.attn_gate"},
    {.hf = LINEAR "a_proj", .gguf = "blk.{}.ssm_alpha"},
    {.hf = LINEAR "b_proj", .gguf = "blk.{}.ssm_beta"},
    {.hf = LINEAR "A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP, .whole = true},
    {.hf = LINEAR "dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true},
    {.hf = LINEAR "o_norm", .gguf = "blk.{}.ssm_norm"},
    {.hf = LINEAR "o_proj", .gguf = "blk.{}.ssm_out"},
    {.hf = LAYER "self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = LAYER "self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = LAYER "post_attention_layernorm", .gguf = "blk.{}.post_attention_norm"},
    {.hf = LAYER "post_feedforward_layernorm", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = LAYER "attention_layer_norm", .gguf = "blk.{}.attn_norm", .read_only = true},
    {.hf = LAYER "feedforward_layer_norm", .gguf = "blk.{}.post_attention_norm", .read_only = true},
    {.hf = NULL},
};
static const char *const classes[] = {"OlmoHybridForCausalLM", "olmo_hybrid", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"max_position_embeddings\": 65536, \"linear_conv_kernel_dim\": 4}"},
    {.json = NULL},
};

/* The epsilon of the output norm of states, which is neither in GGUF files nor in config.json. */
static void set_epsilon(struct pp_hparams *hp)
{
    hp->state_eps = 1e-5f;
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static const char twice[] = "olmo_hybrid.ssm.negative_eigenvalues", rotated[] = "olmo_hybrid.rope.scaling.finetuned";

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    bool rotates = false;
    hp->beta_doubled = true;
    pp_gguf_bool(g, twice, &hp->beta_doubled);
    pp_gguf_bool(g, rotated, &rotates);
    if (!rotates)
        pp_layers_every(hp, 1, PP_LAYER_UNROTATED);
    set_epsilon(hp);
    return pp_delta_from_gguf(g, hp, err);
}

static bool rotates(const struct pp_hparams *hp)
{
    return !(hp->layer[0] & PP_LAYER_UNROTATED);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_delta_to_gguf(hp, w);
    pp_gguf_add_bool(w, twice, hp->beta_doubled);
    pp_gguf_add_bool(w, rotated, rotates(hp));
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Defaults: as many heads of states as of attention, keys of 3/4 n_embd in all, values twice as wide. */
static void set_sizes(struct pp_hparams *hp)
{
    hp->n_state_head = hp->n_state_head ? hp->n_state_head : hp->n_head;
    hp->n_state_key_head = hp->n_state_key_head ? hp->n_state_key_head : hp->n_head;
    if (!hp->state_key_dim && hp->n_state_key_head > 0)
        hp->state_key_dim = 3 * hp->n_embd / (4 * hp->n_state_key_head);
    hp->state_value_dim = hp->state_value_dim ? hp->state_value_dim : 2 * hp->state_key_dim;
}

/* Without a RoPE base, heads are not rotated. */
static bool has_base(const cJSON *config)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    return cJSON_IsNumber(pp_json_member(rope, "rope_theta")) ||
           cJSON_IsNumber(pp_json_member(config, "rope_theta"));
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const enum pp_code code = pp_delta_from_config(config, hp, err);
    if (hp->n_layer > 0 && !cJSON_IsArray(pp_json_member(config, "layer_types")) && hp->n_layer < 4)
        hp->layer[hp->n_layer - 1] &= (uint8_t)~PP_LAYER_RECURRENT;
    hp->beta_doubled = pp_config_flag(config, "linear_allow_neg_eigval", true);
    if (!has_base(config))
        pp_layers_every(hp, 1, PP_LAYER_UNROTATED);
    set_sizes(hp);
    set_epsilon(hp);
    return code;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_delta_to_config(hp, config);
    cJSON_AddBoolToObject(config, "linear_allow_neg_eigval", hp->beta_doubled);
    if (!rotates(hp))
        cJSON_DeleteItemFromObjectCaseSensitive(config, "rope_theta");
}

const struct pp_arch pp_arch_olmo_hybrid = {
    .name = "olmo_hybrid",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.no_pre_norm = true, .post_norm = true, .norms_before_states = true, .qk_norm = PP_QK_WHOLE,
                .ffn_norm = "post_attention_norm"},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
