/* recurrent_gemma.c - RecurrentGemma (arXiv 2404.07839): Griffin's gated linear recurrence (2402.19427) in two of
 * three layers, windowed attention with half of each head rotated in the third; norms, embeddings and GELU as in
 * Gemma. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"

#define LAYER "model.layers.{}."
#define BLOCK LAYER "temporal_block."
#define WHOLE(from, to, ...) {.hf = BLOCK from, .gguf = "blk.{}." to, .whole = true, __VA_ARGS__}

/* The gates' block matrices are stored transposed, all blocks in one tensor. */
static const struct pp_arch_name names[] = {
    {.hf = "model.final_norm", .gguf = "output_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "temporal_pre_norm", .gguf = "blk.{}.attn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "channel_pre_norm", .gguf = "blk.{}.ffn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = BLOCK "q_proj", .gguf = "blk.{}.attn_q"},
    {.hf = BLOCK "k_proj", .gguf = "blk.{}.attn_k"},
    {.hf = BLOCK "v_proj", .gguf = "blk.{}.attn_v"},
    {.hf = BLOCK "o_proj", .gguf = "blk.{}.attn_output"},
    {.hf = BLOCK "linear_x", .gguf = "blk.{}.lru_x"},
    {.hf = BLOCK "linear_y", .gguf = "blk.{}.lru_y"},
    {.hf = BLOCK "linear_out", .gguf = "blk.{}.lru_out"},
    WHOLE("conv_1d.weight", "lru_conv1d.weight", .form = PP_HF_CONV),
    WHOLE("conv_1d.bias", "lru_conv1d.bias", .form = PP_HF_SAME),
    WHOLE("rg_lru.recurrent_param", "lru_a", .form = PP_HF_SAME),
    WHOLE("rg_lru.input_gate_weight", "lru_in_gate.weight", .form = PP_HF_EXPERTS_TRANSPOSED),
    WHOLE("rg_lru.input_gate_bias", "lru_in_gate.bias", .form = PP_HF_SAME),
    WHOLE("rg_lru.recurrent_gate_weight", "lru_a_gate.weight", .form = PP_HF_EXPERTS_TRANSPOSED),
    WHOLE("rg_lru.recurrent_gate_bias", "lru_a_gate.bias", .form = PP_HF_SAME),
    {.hf = LAYER "mlp_block.gate_proj", .gguf = "blk.{}.ffn_gate"},
    {.hf = LAYER "mlp_block.up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = LAYER "mlp_block.down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const char *const classes[] = {"RecurrentGemmaForCausalLM", "recurrent_gemma", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"max_position_embeddings\": 8192, \"partial_rotary_factor\": 0.5, \"attention_window_size\": 2048,"
             "\"logits_soft_cap\": 30.0, \"tie_word_embeddings\": true,"
             "\"block_types\": [\"recurrent\", \"recurrent\", \"attention\"]}"},
    {.json = NULL},
};

/* sqrt(n_embd), rounded to bfloat16. */
static float input_scale(int64_t n_embd)
{
    const float root = sqrtf((float)n_embd);
    uint32_t bits;
    float rounded;
    memcpy(&bits, &root, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&rounded, &bits, sizeof rounded);
    return rounded;
}

/* Channels are independent of each other; a "state" is a group of them, whose size suits cache lines and the
 * distribution over threads. There are as many blocks of gates as heads. */
static enum pp_code divide_channels(int64_t width, struct pp_hparams *hp, struct pp_error *err)
{
    enum { SIDE = 16 };
    if (width < 1 || width % (SIDE * SIDE) != 0 || hp->n_head < 1 || width % hp->n_head != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a recurrence of %lld channels in %lld blocks is not supported; "
                       "multiples of %d are", (long long)width, (long long)hp->n_head, SIDE * SIDE);
    hp->embd_scale = input_scale(hp->n_embd);
    hp->lru_width = width;
    hp->state_key_dim = hp->state_value_dim = SIDE;
    hp->n_state_head = hp->n_state_key_head = width / (SIDE * SIDE);
    return PP_OK;
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static const char taps_key[] = "recurrent_gemma.ssm.conv_kernel", width_key[] = "recurrent_gemma.ssm.inner_size";

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t width = 0;
    if (!pp_gguf_int(g, taps_key, &hp->conv_taps) || !pp_gguf_int(g, width_key, &width))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s or %s", taps_key, width_key);
    return divide_channels(width, hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, taps_key, (uint32_t)hp->conv_taps);
    pp_gguf_add_u32(w, width_key, (uint32_t)hp->lru_width);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* block_types: a list of kinds, repeated over all layers. */
static enum pp_code read_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, "block_types");
    const int n = cJSON_GetArraySize(list);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const char *word = n ? cJSON_GetStringValue(cJSON_GetArrayItem(list, (int)(l % n))) : NULL;
        if (!word || (strcmp(word, "recurrent") != 0 && strcmp(word, "attention") != 0))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: block_types has \"%.40s\"; recurrent and attention "
                           "are supported", word ? word : "");
        hp->layer[l] |= strcmp(word, "recurrent") == 0 ? PP_LAYER_RECURRENT : 0;
    }
    return PP_OK;
}

/* intermediate_size counts gate and up together. */
static enum pp_code halve_ff(struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->n_ff % 2 != 0)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: intermediate_size is %lld; it must be even",
                       (long long)hp->n_ff);
    hp->n_ff /= 2;
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t width = hp->n_embd;
    hp->conv_taps = 4;
    if (hp->rope_scaling != PP_ROPE_NONE)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_parameters scale RoPE, which this family does not");
    enum pp_code code = pp_config_gelu(config, "hidden_activation", PP_ACTIVATION_GELU_TANH, hp, err);
    if (!code)
        code = read_layers(config, hp, err);
    if (!code)
        code = halve_ff(hp, err);
    if (!code)
        code = pp_config_int(config, "lru_width", &width, err);
    if (!code)
        code = pp_config_int(config, "conv1d_width", &hp->conv_taps, err);
    if (!code)
        code = pp_config_int(config, "attention_window_size", &hp->window, err);
    if (!code)
        code = pp_config_float(config, "logits_soft_cap", &hp->final_softcap, err);
    return code ? code : divide_channels(width, hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *types = cJSON_AddArrayToObject(config, "block_types");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(types, cJSON_CreateString(hp->layer[l] & PP_LAYER_RECURRENT ? "recurrent" : "attention"));
    pp_config_put_text(config, "hidden_activation", hp->activation == PP_ACTIVATION_GELU ? "gelu"
                                                                                         : "gelu_pytorch_tanh");
    pp_config_put(config, "intermediate_size", 2 * hp->n_ff);
    pp_config_put(config, "lru_width", hp->lru_width);
    pp_config_put(config, "conv1d_width", hp->conv_taps);
    pp_config_put(config, "attention_window_size", hp->window);
    pp_config_put_float(config, "logits_soft_cap", hp->final_softcap);
}

const struct pp_arch pp_arch_recurrent_gemma = {
    .name = "recurrent_gemma",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_GELU_TANH},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
