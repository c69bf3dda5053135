/* rwkv6.c - RWKV 6 (arXiv 2404.05892): no attention, LayerNorm. Folders are those of the model's own code, which lack
 * the ranks of low-rank pairs: these follow from the model's width. Folders of flash-linear-attention are read as
 * well, and written as the former. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/arch/rwkv.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define LAYER "rwkv.blocks.{}."
#define MIX LAYER "attention.time_maa_"
#define VECTOR(from, to) {.hf = from, .gguf = "blk.{}." to ".weight", .form = PP_HF_VECTOR_3D, .whole = true}
/* GGUF files have all five in one tensor, early ones in a tensor each. */
#define BLEND(letter, number)                                                                                  \
    {.hf = MIX letter, .gguf = "blk.{}.time_mix_lerp." number ".weight", .form = PP_HF_LERP, .whole = true},   \
    VECTOR(MIX letter, "time_mix_lerp_" letter)
#define TENSOR(from, to, how) \
    {.hf = LAYER "attention." from, .gguf = "blk.{}." to ".weight", .form = how, .whole = true}

static const struct pp_arch_name names[] = {
    {.hf = "rwkv.embeddings", .gguf = "token_embd"},
    {.hf = "rwkv.blocks.0.pre_ln", .gguf = "token_embd_norm"},
    {.hf = "rwkv.ln_out", .gguf = "output_norm"},
    {.hf = "head", .gguf = "output"},
    {.hf = LAYER "ln1", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "ln2", .gguf = "blk.{}.attn_norm_2"},
    VECTOR(MIX "x", "time_mix_lerp_x"),
    BLEND("w", "0"), BLEND("k", "1"), BLEND("v", "2"), BLEND("r", "3"), BLEND("g", "4"),
    TENSOR("time_maa_w1", "time_mix_w1", PP_HF_TRANSPOSED),
    TENSOR("time_maa_w2", "time_mix_w2", PP_HF_EXPERTS_TRANSPOSED),
    VECTOR(LAYER "attention.time_decay", "time_mix_decay"),
    TENSOR("time_decay_w1", "time_mix_decay_w1", PP_HF_TRANSPOSED),
    TENSOR("time_decay_w2", "time_mix_decay_w2", PP_HF_TRANSPOSED),
    {.hf = LAYER "attention.time_faaaa", .gguf = "blk.{}.time_mix_first.weight", .whole = true},
    {.hf = LAYER "attention.receptance", .gguf = "blk.{}.time_mix_receptance"},
    {.hf = LAYER "attention.key", .gguf = "blk.{}.time_mix_key"},
    {.hf = LAYER "attention.value", .gguf = "blk.{}.time_mix_value"},
    {.hf = LAYER "attention.gate", .gguf = "blk.{}.time_mix_gate"},
    {.hf = LAYER "attention.output", .gguf = "blk.{}.time_mix_output"},
    {.hf = LAYER "attention.ln_x", .gguf = "blk.{}.time_mix_ln"},
    VECTOR(LAYER "feed_forward.time_maa_k", "channel_mix_lerp_k"),
    VECTOR(LAYER "feed_forward.time_maa_r", "channel_mix_lerp_r"),
    {.hf = LAYER "feed_forward.key", .gguf = "blk.{}.channel_mix_key"},
    {.hf = LAYER "feed_forward.value", .gguf = "blk.{}.channel_mix_value"},
    {.hf = LAYER "feed_forward.receptance", .gguf = "blk.{}.channel_mix_receptance"},
    {.hf = NULL},
};

#define FLA "model.layers.{}."
#define READ(from, to) {.hf = from, .gguf = to, .read_only = true}
#define FORMED(from, to, how) \
    {.hf = FLA from, .gguf = "blk.{}." to ".weight", .form = how, .whole = true, .read_only = true}

static const struct pp_arch_name fla_names[] = {
    READ("model.embeddings", "token_embd"),
    READ("model.layers.0.pre_norm", "token_embd_norm"),
    READ("model.norm", "output_norm"),
    READ("lm_head", "output"),
    READ(FLA "attn_norm", "blk.{}.attn_norm"),
    READ(FLA "ffn_norm", "blk.{}.attn_norm_2"),
    FORMED("attn.x_proj.0.mu", "time_mix_lerp_x", PP_HF_SAME),
    FORMED("attn.x_proj.0.linear.weight", "time_mix_w1", PP_HF_FLA_MIX_W1),
    FORMED("attn.x_proj.2.weight", "time_mix_w2", PP_HF_FLA_MIX_W2),
    FORMED("attn.x_bias", "time_mix_lerp_fused", PP_HF_FLA_MIX_BIAS),
    FORMED("attn.w_proj.linear.lora.0.weight", "time_mix_decay_w1", PP_HF_SAME),
    FORMED("attn.w_proj.linear.lora.2.weight", "time_mix_decay_w2", PP_HF_SAME),
    FORMED("attn.w_proj.linear.lora.2.bias", "time_mix_decay", PP_HF_SAME),
    FORMED("attn.bonus", "time_mix_first", PP_HF_SAME),
    READ(FLA "attn.r_proj.linear", "blk.{}.time_mix_receptance"),
    READ(FLA "attn.k_proj.linear", "blk.{}.time_mix_key"),
    FORMED("attn.v_proj.linear.weight", "time_mix_value", PP_HF_TIMES_EIGHT),
    READ(FLA "attn.g_proj.linear", "blk.{}.time_mix_gate"),
    READ(FLA "attn.g_norm", "blk.{}.time_mix_ln"),
    READ(FLA "attn.o_proj", "blk.{}.time_mix_output"),
    FORMED("ffn.key.mu", "channel_mix_lerp_k", PP_HF_SAME),
    FORMED("ffn.receptance.mu", "channel_mix_lerp_r", PP_HF_SAME),
    READ(FLA "ffn.key.linear", "blk.{}.channel_mix_key"),
    READ(FLA "ffn.value", "blk.{}.channel_mix_value"),
    READ(FLA "ffn.receptance.linear", "blk.{}.channel_mix_receptance"),
    {.hf = NULL},
};
static const char fla_class[] = "RWKV6ForCausalLM"; /* it has the same model_type */
static const char *const classes[] = {"Rwkv6ForCausalLM", fla_class, "rwkv6", NULL};
static const char *const function_names[] = {"sqrelu", "relu2", NULL};
/* Placeholders for the common reader, whose keys may be absent here; see from_config. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_attention_heads\": 1, \"intermediate_size\": null}"},
    {.json = NULL},
};
enum { MOST_HALVINGS = 100 }; /* powers of two within a float's range, in both directions */
static const char *const rank_keys[] = {"time_decay_extra_dim", "time_mix_extra_dim"};
static const char halved_key[] = "rwkv6.rescale_every_n_layers";

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    hp->rwkv6 = true;
    if (pp_gguf_has(g, halved_key) && (!pp_gguf_int(g, halved_key, &hp->rescale_every) || hp->rescale_every < 0))
        return pp_fail(err, PP_ERR_FORMAT, "metadata %s is not a number of layers", halved_key);
    if (hp->rescale_every && hp->n_layer / hp->rescale_every > MOST_HALVINGS)
        return pp_fail(err, PP_ERR_FORMAT, "metadata %s is %lld: after %lld layers nothing would be left", halved_key,
                       (long long)hp->rescale_every, (long long)hp->n_layer);
    return pp_rwkv_from_gguf(g, hp, rank_keys, 2, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_rwkv_to_gguf(hp, w, rank_keys, 2);
    if (hp->rescale_every)
        pp_gguf_add_u32(w, halved_key, (uint32_t)hp->rescale_every);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Refuses options of flash-linear-attention that RWKV lacks. Its norms of heads have the model's epsilon, where RWKV's
 * is 64e-5. Multiplying the values by 8 is equivalent (PP_HF_TIMES_EIGHT), if the epsilon is 1e-5. */
static enum pp_code check_fla(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *attention = pp_json_member(config, "attn");
    float keys = 0.5f, values = 1;
    enum pp_code code = pp_config_float(config, "expand_k", &keys, err);
    if (!code)
        code = pp_config_float(config, "expand_v", &values, err);
    if (!code && (keys != 1 || values != 1))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: expand_k is %g and expand_v %g; only 1 is supported for "
                       "both", (double)keys, (double)values);
    if (!code && attention && !cJSON_IsNull(attention))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "attention in some layers is not supported in this family");
    if (!code && (!pp_config_flag(config, "norm_first", true) || !pp_config_flag(config, "norm_bias", true) ||
                  hp->norm_eps != 1e-5f))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: norm_first or norm_bias is false, or norm_eps is not "
                       "1e-5, which is not supported in this family");
    return code ? code : pp_config_activation(config, "hidden_act", function_names, err);
}

static enum pp_code from_fla(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n_heads = 4;
    float ratio = 3.5f;
    hp->norm_eps = 1e-5f;
    hp->rwkv_ranks[0] = 64;
    hp->rwkv_ranks[1] = 32;
    enum pp_code code = pp_config_float(config, "norm_eps", &hp->norm_eps, err);
    if (!code)
        code = check_fla(config, hp, err);
    if (!code)
        code = pp_config_int(config, "num_heads", &n_heads, err);
    if (!code)
        code = pp_config_int(config, "gate_low_rank_dim", &hp->rwkv_ranks[0], err);
    if (!code)
        code = pp_config_int(config, "proj_low_rank_dim", &hp->rwkv_ranks[1], err);
    if (!code)
        code = pp_config_float(config, "hidden_ratio", &ratio, err);
    if (!code)
        code = pp_check_range("width", hp->n_embd, 1, 1 << 20, err);
    if (code)
        return code;
    if (n_heads < 1 || hp->n_embd % n_heads != 0 || !(ratio > 0 && ratio <= 1024))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: num_heads is %lld and hidden_ratio %g, which cannot be right",
                       (long long)n_heads, (double)ratio);
    if (!cJSON_IsNumber(pp_json_member(config, "intermediate_size")))
        hp->n_ff = ((int64_t)((double)hp->n_embd * (double)ratio) + 31) / 32 * 32;
    hp->n_ctx_train = 1 << 20;
    hp->rwkv6 = hp->legacy_names = true;
    pp_rwkv_states_only(hp, hp->n_embd / n_heads);
    return PP_OK;
}

static bool is_fla(const cJSON *config)
{
    const cJSON *list = pp_json_member(config, "architectures");
    const char *first = cJSON_GetStringValue(cJSON_GetArrayItem(list, 0));
    return first ? strcmp(first, fla_class) == 0
                 : pp_json_member(config, "proj_low_rank_dim") != NULL;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    if (is_fla(config))
        return from_fla(config, hp, err);
    int64_t head_size = 64, divisor = 8, inner = hp->n_embd;
    enum pp_code code = pp_config_int(config, "head_size", &head_size, err);
    hp->norm_eps = 1e-5f;
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_int(config, "head_size_divisor", &divisor, err);
    if (!code)
        code = pp_config_int(config, "attention_hidden_size", &inner, err);
    if (!code && (divisor != 8 || inner != hp->n_embd))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "head_size_divisor %lld and attention_hidden_size %lld are not "
                       "supported in this family; 8 and the model's width are", (long long)divisor, (long long)inner);
    if (!cJSON_IsNumber(pp_json_member(config, "intermediate_size")))
        hp->n_ff = hp->n_embd * 7 / 2 / 32 * 32;
    hp->rwkv_ranks[0] = hp->n_embd == 4096 ? 128 : 64;
    hp->rwkv_ranks[1] = hp->n_embd == 4096 ? 64 : 32;
    hp->n_ctx_train = 1 << 20; /* there is no limit; this is what converters write */
    hp->rwkv6 = true;
    pp_rwkv_states_only(hp, head_size);
    return code;
}

/* Weights that the GGUF file has halved are restored; other programs halve them when they load a folder. */
static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    static const char *const gone[] = {"num_key_value_heads", "head_dim", "rope_theta", "attention_bias", "mlp_bias",
                                       "hidden_act"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, gone[i]);
    pp_config_put(config, "num_attention_heads", hp->n_state_head);
    pp_config_put(config, "attention_hidden_size", hp->n_embd);
    pp_config_put(config, "head_size", hp->state_key_dim);
    pp_config_put(config, "head_size_divisor", 8);
    pp_config_put(config, "rescale_every", hp->rescale_every);
}

const struct pp_arch pp_arch_rwkv6 = {
    .name = "rwkv6",
    .hf_classes = classes,
    .names = names,
    .more_names = fla_names,
    .ignored = pp_common_ignored,
    .decoder = {.layer_norm = true, .norm_bias = true, .embd_norm = true, .ungated = true, .fn = PP_FN_RELU2},
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
