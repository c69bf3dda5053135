/* zamba2.c - Zamba2 (arXiv 2411.15242): Mamba 2 in every layer, and in some layers blocks of attention and a
 * feed-forward part that several layers share (decoder_zamba.c). Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define SHARED LAYER "shared_transformer."
/* The names of a layer's Mamba, which has a prefix in layers with a block. */
#define MAMBA(prefix, ...)                                                                                            \
    {.hf = LAYER prefix "input_layernorm", .gguf = "blk.{}.attn_norm", __VA_ARGS__},                                  \
    {.hf = LAYER prefix "mamba.in_proj", .gguf = "blk.{}.ssm_in", __VA_ARGS__},                                       \
    {.hf = LAYER prefix "mamba.conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV,                \
     .whole = true, __VA_ARGS__},                                                                                     \
    {.hf = LAYER prefix "mamba.conv1d.bias", .gguf = "blk.{}.ssm_conv1d.bias", .whole = true, __VA_ARGS__},           \
    {.hf = LAYER prefix "mamba.A_log", .gguf = "blk.{}.ssm_a", .form = PP_HF_MINUS_EXP_COLUMN, .whole = true,         \
     __VA_ARGS__},                                                                                                    \
    {.hf = LAYER prefix "mamba.D", .gguf = "blk.{}.ssm_d", .form = PP_HF_COLUMN, .whole = true, __VA_ARGS__},         \
    {.hf = LAYER prefix "mamba.dt_bias", .gguf = "blk.{}.ssm_dt.bias", .whole = true, __VA_ARGS__},                   \
    {.hf = LAYER prefix "mamba.norm.weight", .gguf = "blk.{}.ssm_norm.weight", .form = PP_HF_FLAT_GROUPS,              \
     .whole = true, __VA_ARGS__},                                                                                     \
    {.hf = LAYER prefix "mamba.out_proj", .gguf = "blk.{}.ssm_out", __VA_ARGS__}
#define ADAPTER(from, to)                                                                                             \
    {.hf = SHARED from "_adapter_list.{}.0", .gguf = "blk.{}." to "_a.{}"},                                           \
    {.hf = SHARED from "_adapter_list.{}.1", .gguf = "blk.{}." to "_b.{}"}

static const struct pp_arch_name names[] = {
    MAMBA("mamba_decoder.", .shared_block = true),
    MAMBA("", .read_only = false),
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    PP_SHARED_BLOCK_NAMES(SHARED),
    {.hf = SHARED "feed_forward.gate_up_proj", .gguf = "blk.{}.shared_up"},
    ADAPTER("self_attn.linear_q", "shared_q"),
    ADAPTER("self_attn.linear_k", "shared_k"),
    ADAPTER("self_attn.linear_v", "shared_v"),
    ADAPTER("feed_forward.gate_up_proj", "shared_up"),
    {.hf = NULL},
};
static const char *const classes[] = {"Zamba2ForCausalLM", "zamba2", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_attention_heads\": 32, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5,"
             "\"mamba_d_state\": 64, \"mamba_d_conv\": 4, \"mamba_ngroups\": 1, \"n_mamba_heads\": 8,"
             "\"mamba_headdim\": \"auto\", \"mamba_expand\": 2, \"num_mem_blocks\": 1, \"adapter_rank\": 128,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const struct pp_mamba_keys keys = {.taps = "mamba_d_conv", .key_dim = "mamba_d_state",
                                          .n_groups = "mamba_ngroups", .n_heads = "n_mamba_heads",
                                          .head_dim = "mamba_headdim"};
static const char layers_key[] = "zamba2.shared.layers", blocks_key[] = "zamba2.shared.block_count";
static const char rank_key[] = "zamba2.shared.adapter_rank", rotated_key[] = "zamba2.rope.scaling.finetuned";

/* Completes the fields, once it is known which layers have a block. Heads read 2 n_embd values, but the scores are
 * scaled as if they were half as large. */
static enum pp_code finish(struct pp_hparams *hp, bool rotated, struct pp_error *err)
{
    int64_t n = 0;
    pp_layers_every(hp, 1, (uint8_t)(PP_LAYER_RECURRENT | (rotated ? 0 : PP_LAYER_UNROTATED)));
    for (int64_t l = 0; l < hp->n_layer; l++)
        n += (hp->layer[l] & PP_LAYER_SHARING) != 0;
    if (hp->n_shared_block < 1 || hp->n_shared_block > n)
        return pp_fail(err, PP_ERR_FORMAT, "the model has %lld layers that share %lld blocks, which is impossible",
                       (long long)n, (long long)hp->n_shared_block);
    if (hp->adapter_rank < 1 || hp->adapter_rank > 1 << 16)
        return pp_fail(err, PP_ERR_FORMAT, "the model says that products of rank %lld are added to shared matrices, "
                       "which cannot be", (long long)hp->adapter_rank);
    hp->attn_scale = hp->head_dim > 0 ? sqrtf(2.0f / (float)hp->head_dim) : 0;
    return PP_OK;
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    bool rotated = true;
    enum pp_code code = pp_mamba_from_gguf(g, hp, err);
    if (!code)
        code = pp_sharing_from_gguf(g, layers_key, hp, err);
    if (code)
        return code;
    if (!pp_gguf_int(g, blocks_key, &hp->n_shared_block) || !pp_gguf_int(g, rank_key, &hp->adapter_rank))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s or %s", blocks_key, rank_key);
    pp_gguf_bool(g, rotated_key, &rotated);
    pp_gguf_bool(g, "zamba2.shared.adapted_attention", &hp->adapted_attention);
    return finish(hp, rotated, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_states_to_gguf(hp, w);
    pp_sharing_to_gguf(hp, layers_key, w);
    pp_gguf_add_u32(w, blocks_key, (uint32_t)hp->n_shared_block);
    pp_gguf_add_u32(w, rank_key, (uint32_t)hp->adapter_rank);
    pp_gguf_add_bool(w, "zamba2.shared.adapted_attention", hp->adapted_attention);
    pp_gguf_add_bool(w, rotated_key, !(hp->layer[0] & PP_LAYER_UNROTATED));
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

static enum pp_code check_eps(const struct pp_hparams *hp, struct pp_error *err)
{
    if (fabsf(hp->norm_eps - 1e-5f) < 1e-9f) /* the norm of the states' output has a fixed epsilon of 1e-5 */
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rms_norm_eps is %g; only 1e-05 is supported in this family",
                   (double)hp->norm_eps);
}

/* Without the list transformers assumes one that fits a single model size: it is required. */
static enum pp_code read_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    if (!cJSON_IsArray(pp_json_member(config, "layers_block_type")))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layers_block_type is missing; pippin needs it");
    return pp_config_layer_words(config, "layers_block_type", "hybrid", "mamba", PP_LAYER_SHARING, hp, err);
}

/* use_long_context: RoPE has a larger base. */
static void enlarge_base(struct pp_hparams *hp, bool rotated)
{
    if (rotated)
        hp->rope_base *= powf(8, (float)hp->head_dim / (float)(hp->head_dim - 2));
    hp->n_ctx_train = 16384;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const bool rotated = pp_config_flag(config, "use_mem_rope", false);
    hp->head_dim = hp->rope_dim = 2 * hp->n_embd / hp->n_head;
    enum pp_code code = pp_config_gelu(config, "hidden_act", PP_ACTIVATION_GELU, hp, err);
    if (!code)
        code = check_eps(hp, err);
    if (!code)
        code = read_layers(config, hp, err);
    if (!code)
        code = pp_config_int(config, "num_mem_blocks", &hp->n_shared_block, err);
    if (!code)
        code = pp_config_int(config, "adapter_rank", &hp->adapter_rank, err);
    if (!code)
        code = pp_mamba_expanded_from_config(config, &keys, hp, err);
    hp->adapted_attention = pp_config_flag(config, "use_shared_attention_adapter", false);
    if (hp->head_dim > 2 && pp_config_flag(config, "use_long_context", false))
        enlarge_base(hp, rotated);
    return code ? code : finish(hp, rotated, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_sharing_to_config(hp, config);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "head_dim");
    pp_mamba_expanded_to_config(hp, &keys, config);
    pp_config_put(config, "num_mem_blocks", hp->n_shared_block);
    pp_config_put(config, "adapter_rank", hp->adapter_rank);
    cJSON_AddBoolToObject(config, "use_shared_attention_adapter", hp->adapted_attention);
    cJSON_AddTrueToObject(config, "use_shared_mlp_adapter");
    cJSON_AddBoolToObject(config, "use_mem_rope", !(hp->layer[0] & PP_LAYER_UNROTATED));
}

const struct pp_arch pp_arch_zamba2 = {
    .name = "zamba2",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_GELU, .fused_gate = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
