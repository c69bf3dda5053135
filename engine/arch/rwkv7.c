/* rwkv7.c - RWKV 7 (arXiv 2503.14456): no attention, LayerNorm. Folders are those of flash-linear-attention; those of
 * transformers, with RWKV's own names, are only read. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/arch/rwkv.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define MIX LAYER "attn."
#define VECTOR(from, to) {.hf = from, .gguf = "blk.{}." to ".weight", .whole = true}
#define BLEND(letter, number) \
    {.hf = MIX "x_" letter, .gguf = "blk.{}.time_mix_lerp." number ".weight", .form = PP_HF_LERP, .whole = true}
#define LOW(letter)                                                                                        \
    {.hf = MIX letter "_lora.lora.0", .gguf = "blk.{}.time_mix_" letter "1"},                              \
    {.hf = MIX letter "_lora.lora.2.weight", .gguf = "blk.{}.time_mix_" letter "2.weight", .whole = true}, \
    VECTOR(MIX letter "_lora.lora.2.bias", "time_mix_" letter "0")

#define OWN "rwkv7.blocks.{}."
#define OWN_VECTOR(from, to) \
    {.hf = OWN from, .gguf = "blk.{}." to ".weight", .form = PP_HF_VECTOR_3D, .whole = true, .read_only = true}
#define OWN_TRANSPOSED(from, to) \
    {.hf = OWN from, .gguf = "blk.{}." to ".weight", .form = PP_HF_TRANSPOSED, .whole = true, .read_only = true}
#define OWN_LOW(letter) \
    OWN_TRANSPOSED("att." letter "1", "time_mix_" letter "1"), OWN_TRANSPOSED("att." letter "2", "time_mix_" letter "2")
#define OWN_BLEND(letter, number)                                                                                \
    {.hf = OWN "att.x_" letter, .gguf = "blk.{}.time_mix_lerp." number ".weight", .form = PP_HF_LERP, .whole = true, \
     .read_only = true}

static const struct pp_arch_name names[] = {
    {.hf = "model.embeddings", .gguf = "token_embd"},
    {.hf = "model.layers.0.pre_norm", .gguf = "token_embd_norm"},
    {.hf = "model.norm", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = LAYER "attn_norm", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "ffn_norm", .gguf = "blk.{}.attn_norm_2"},
    BLEND("r", "0"), BLEND("w", "1"), BLEND("k", "2"), BLEND("v", "3"), BLEND("a", "4"), BLEND("g", "5"),
    {.hf = MIX "x_x", .gguf = "blk.{}.time_mix_lerp", .form = PP_HF_LERP, .whole = true, .read_only = true},
    LOW("w"), LOW("a"), LOW("v"), LOW("g"),
    VECTOR(MIX "k_k", "time_mix_k_k"),
    VECTOR(MIX "k_a", "time_mix_k_a"),
    {.hf = MIX "r_k", .gguf = "blk.{}.time_mix_r_k.weight", .form = PP_HF_STATE_HEAD_ROWS, .whole = true},
    {.hf = MIX "r_proj", .gguf = "blk.{}.time_mix_receptance"},
    {.hf = MIX "k_proj", .gguf = "blk.{}.time_mix_key"},
    {.hf = MIX "v_proj", .gguf = "blk.{}.time_mix_value"},
    {.hf = MIX "o_proj", .gguf = "blk.{}.time_mix_output"},
    {.hf = MIX "g_norm", .gguf = "blk.{}.time_mix_ln"},
    VECTOR(LAYER "ffn.x_k", "channel_mix_lerp_k"),
    {.hf = LAYER "ffn.key", .gguf = "blk.{}.channel_mix_key"},
    {.hf = LAYER "ffn.value", .gguf = "blk.{}.channel_mix_value"},
    {.hf = "rwkv7.emb", .gguf = "token_embd", .read_only = true},
    {.hf = "rwkv7.blocks.0.ln0", .gguf = "token_embd_norm", .read_only = true},
    {.hf = "rwkv7.ln_out", .gguf = "output_norm", .read_only = true},
    {.hf = "head", .gguf = "output", .read_only = true},
    {.hf = OWN "ln1", .gguf = "blk.{}.attn_norm", .read_only = true},
    {.hf = OWN "ln2", .gguf = "blk.{}.attn_norm_2", .read_only = true},
    OWN_BLEND("r", "0"), OWN_BLEND("w", "1"), OWN_BLEND("k", "2"), OWN_BLEND("v", "3"), OWN_BLEND("a", "4"),
    OWN_BLEND("g", "5"),
    OWN_LOW("w"), OWN_LOW("a"), OWN_LOW("v"), OWN_LOW("g"),
    OWN_VECTOR("att.w0", "time_mix_w0"), OWN_VECTOR("att.a0", "time_mix_a0"), OWN_VECTOR("att.v0", "time_mix_v0"),
    OWN_VECTOR("att.k_k", "time_mix_k_k"), OWN_VECTOR("att.k_a", "time_mix_k_a"),
    OWN_VECTOR("ffn.x_k", "channel_mix_lerp_k"),
    {.hf = OWN "att.r_k", .gguf = "blk.{}.time_mix_r_k.weight", .form = PP_HF_STATE_HEAD_ROWS, .whole = true,
     .read_only = true},
    {.hf = OWN "att.receptance", .gguf = "blk.{}.time_mix_receptance", .read_only = true},
    {.hf = OWN "att.key", .gguf = "blk.{}.time_mix_key", .read_only = true},
    {.hf = OWN "att.value", .gguf = "blk.{}.time_mix_value", .read_only = true},
    {.hf = OWN "att.output", .gguf = "blk.{}.time_mix_output", .read_only = true},
    {.hf = OWN "att.ln_x", .gguf = "blk.{}.time_mix_ln", .read_only = true},
    {.hf = OWN "ffn.key", .gguf = "blk.{}.channel_mix_key", .read_only = true},
    {.hf = OWN "ffn.value", .gguf = "blk.{}.channel_mix_value", .read_only = true},
    {.hf = NULL},
};
static const char *const classes[] = {"RWKV7ForCausalLM", "rwkv7", "Rwkv7ForCausalLM", NULL};
/* Placeholders for the common reader, whose keys are absent here; see from_config. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_attention_heads\": 1}"},
    {.json = NULL},
};
static const char *const function_names[] = {"sqrelu", "relu2", NULL};
static const char *const config_ranks[] = {"decay_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim",
                                           "gate_low_rank_dim"};
static const char *const rank_keys[] = {"attention.decay_lora_rank", "attention.iclr_lora_rank",
                                        "attention.value_residual_mix_lora_rank",
                                        "attention.gate_lora_rank"};

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    return pp_rwkv_from_gguf(g, hp, rank_keys, 4, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_rwkv_to_gguf(hp, w, rank_keys, 4);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

static enum pp_code check_kind(const cJSON *config, struct pp_error *err)
{
    const cJSON *attention = pp_json_member(config, "attn");
    if (attention && !cJSON_IsNull(attention))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "attention in some layers is not supported in this family");
    if (!pp_config_flag(config, "norm_first", true) || !pp_config_flag(config, "norm_bias", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "other norms than RWKV 7's are not supported in this family");
    return pp_config_activation(config, "hidden_act", function_names, err);
}

/* transformers' format. */
static bool is_transformers(const cJSON *config)
{
    const cJSON *list = pp_json_member(config, "architectures");
    const char *first = cJSON_GetStringValue(cJSON_GetArrayItem(list, 0));
    return first ? strcmp(first, "Rwkv7ForCausalLM") == 0 : pp_json_member(config, "wkv_state_dtype") != NULL;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t head_size = 64, n_heads = 0;
    enum pp_code code = check_kind(config, err);
    hp->norm_eps = 1e-5f;
    hp->legacy_names = is_transformers(config);
    if (!code && pp_config_flag(config, "use_deep_embed", false))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_deep_embed is true; a table of tokens that "
                       "multiplies values is not supported in this family");
    if (!code)
        code = pp_config_float(config, "norm_eps", &hp->norm_eps, err);
    if (!code)
        code = pp_config_int(config, "head_dim", &head_size, err);
    if (!code)
        code = pp_config_int(config, "num_heads", &n_heads, err);
    for (int i = 0; i < 4 && !code; i++)
        code = pp_config_int(config, config_ranks[i], &hp->rwkv_ranks[i], err);
    if (!code && !cJSON_IsNumber(pp_json_member(config, "head_dim")) && n_heads > 0)
        head_size = hp->n_embd / n_heads;
    hp->n_ctx_train = 1 << 20; /* there is no limit; this is what converters write */
    pp_rwkv_states_only(hp, head_size);
    return code;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    static const char *const gone[] = {"num_attention_heads", "num_key_value_heads", "rope_theta", "attention_bias",
                                       "mlp_bias"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, gone[i]);
    pp_config_put_text(config, "hidden_act", "sqrelu");
    pp_config_put(config, "head_dim", hp->state_key_dim);
    for (int i = 0; i < 4; i++)
        pp_config_put(config, config_ranks[i], hp->rwkv_ranks[i]);
    cJSON_AddTrueToObject(config, "norm_first");
    cJSON_AddTrueToObject(config, "norm_bias");
    cJSON_AddNullToObject(config, "attn");
}

const struct pp_arch pp_arch_rwkv7 = {
    .name = "rwkv7",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .decoder = {.layer_norm = true, .norm_bias = true, .embd_norm = true, .ungated = true, .fn = PP_FN_RELU2},
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
    .hf_eps = "norm_eps",
};
