/* granite_swa.c - Granite (transformers, models/granite_swa, granitemoe_swa) with a window in some layers and
 * attention sinks in all; and its mixture of experts. Layers may lack RoPE. One GGUF family covers both. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define MOE "model.layers.{}.block_sparse_moe."

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = "model.layers.{}.self_attn.sinks", .gguf = "blk.{}.attn_sinks.weight", .whole = true},
    {.hf = MOE "router", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = MOE "router.layer", .gguf = "blk.{}.ffn_gate_inp", .read_only = true},
    {.hf = MOE "experts.gate_up_proj", .gguf = "blk.{}.ffn_gate_exps.weight", .second = "blk.{}.ffn_up_exps.weight",
     .form = PP_HF_HALVES, .whole = true},
    {.hf = MOE "input_linear.weight", .gguf = "blk.{}.ffn_gate_exps.weight", .second = "blk.{}.ffn_up_exps.weight",
     .form = PP_HF_HALVES, .whole = true, .read_only = true},
    {.hf = MOE "experts.down_proj", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true},
    {.hf = MOE "output_linear.weight", .gguf = "blk.{}.ffn_down_exps.weight", .whole = true, .read_only = true},
    {.hf = "model.layers.{}.shared_mlp.input_linear", .gguf = "blk.{}.ffn_up_shexp"},
    {.hf = "model.layers.{}.shared_mlp.output_linear", .gguf = "blk.{}.ffn_down_shexp"},
    {.hf = NULL},
};
static const char *const classes[] = {"GraniteSWAForCausalLM", "granite_swa", "GraniteMoeSWAForCausalLM",
                                      "granitemoe_swa", NULL};
static const struct pp_arch_default defaults[] = {
    {"granite_swa", "GraniteSWAForCausalLM",
     "{\"vocab_size\": 100352, \"hidden_size\": 2560, \"intermediate_size\": 8192, \"num_hidden_layers\": 24,"
     "\"num_attention_heads\": 20, \"num_key_value_heads\": 4, \"max_position_embeddings\": 8192,"
     "\"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true}"},
    {"granitemoe_swa", "GraniteMoeSWAForCausalLM",
     "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 11008, \"num_hidden_layers\": 32,"
     "\"num_attention_heads\": 32, \"max_position_embeddings\": 2048, \"num_local_experts\": 8,"
     "\"num_experts_per_tok\": 2}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {.n = "num_local_experts", .n_used = "num_experts_per_tok",
                                                  .n_ff = "intermediate_size"};
static const char rotated_key[] = "granite_swa.attention.rope_pattern";
enum { STEP = 4 }; /* by default layers 0, 4, 8 ... have no window */

/* layer_rope_theta: 0 for layers without RoPE, otherwise the same base for all. */
static enum pp_code find_bases(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char key[] = "layer_rope_theta";
    const cJSON *list = pp_json_member(config, key), *base;
    float same = 0;
    int64_t l = 0;
    if (!cJSON_IsArray(list))
        return PP_OK;
    if (cJSON_GetArraySize(list) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", key, (long long)hp->n_layer);
    cJSON_ArrayForEach(base, list)
    {
        const float v = cJSON_IsNumber(base) ? (float)base->valuedouble : -1;
        if (!(v >= 0))
            return pp_fail(err, PP_ERR_FORMAT, "config.json: %s has something other than frequencies' bases", key);
        if (v > 0 && same > 0 && v != same)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s has both %g and %g; several bases in one model "
                           "are not supported for this family", key, (double)same, (double)v);
        same = v > 0 ? v : same;
        hp->layer[l++] |= v > 0 ? 0 : PP_LAYER_UNROTATED;
    }
    hp->rope_base = same > 0 ? same : hp->rope_base;
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_granite_from_config(config, hp, err);
    if (!code && pp_arch_is_kind(config, "granitemoe_swa", "GraniteMoeSWAForCausalLM"))
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_window(config, 128, hp, err);
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= l % STEP == 0 ? PP_LAYER_WIDE : 0;
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    return code ? code : find_bases(config, hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n = 0;
    if (pp_gguf_array(g, rotated_key, &type, &n))
        for (size_t l = 0; l < n && l < PP_MAX_LAYERS; l++) {
            bool rotated = true;
            int64_t number = 1;
            if (!pp_gguf_array_bool(g, rotated_key, l, &rotated) && pp_gguf_array_int(g, rotated_key, l, &number))
                rotated = number != 0;
            hp->layer[l] |= rotated ? 0 : PP_LAYER_UNROTATED;
        }
    return pp_granite_from_gguf(g, hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    bool rotated[PP_MAX_LAYERS], all = true;
    for (int64_t l = 0; l < hp->n_layer; l++)
        all = (rotated[l] = !(hp->layer[l] & PP_LAYER_UNROTATED)) && all;
    if (!all)
        pp_gguf_add_bool_array(w, rotated_key, rotated, (size_t)hp->n_layer);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *bases = cJSON_AddArrayToObject(config, "layer_rope_theta");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(bases, cJSON_CreateNumber(hp->layer[l] & PP_LAYER_UNROTATED ? 0 : (double)hp->rope_base));
    pp_granite_to_config(hp, config);
    pp_config_put_layer_types(config, hp);
    if (!hp->n_expert)
        return;
    pp_config_put_class(config, "GraniteMoeSWAForCausalLM", "granitemoe_swa");
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put(config, "shared_intermediate_size", hp->n_ff_shared);
}

const struct pp_arch pp_arch_granite_swa = {
    .name = "granite_swa",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .decoder = {.sinks = true, .fused_shared = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .gguf_divides_logits = true,
    .to_config = to_config,
};
