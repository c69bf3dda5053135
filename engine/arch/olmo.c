/* olmo.c - the OLMo of 2024 (arXiv 2402.00838): Llama with LayerNorm without weights, and queries, keys and values
 * clamped in some models. Also folders of its own code, with other keys and names, a fused qkv, and up and gate in one
 * matrix; they become the same as transformers'. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

static const char *const classes[] = {"OlmoForCausalLM", "olmo", NULL};

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->norm_eps = 1e-5f;
    return code ? code : pp_config_float(config, "clip_qkv", &hp->qkv_clamp, err);
}

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    if (hp->qkv_clamp != 0.0f)
        pp_config_put_float(config, "clip_qkv", hp->qkv_clamp);
    else
        cJSON_AddNullToObject(config, "clip_qkv");
}

const struct pp_arch pp_arch_olmo = {
    .name = "olmo",
    .hf_classes = classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .decoder = {.layer_norm = true, .plain_norm = true},
    .from_config = from_config,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};

/* --- folders of its own code -------------------------------------------------------------------------------------- */

#define BLOCK "model.transformer.blocks.{}."

static const struct pp_arch_name first_names[] = {
    {.hf = "model.transformer.wte", .gguf = "token_embd", .read_only = true},
    {.hf = BLOCK "att_proj", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_STACKED, .read_only = true},
    {.hf = BLOCK "attn_out", .gguf = "blk.{}.attn_output", .read_only = true},
    {.hf = BLOCK "ff_proj.weight", .gguf = "blk.{}.ffn_up.weight", .second = "blk.{}.ffn_gate.weight",
     .form = PP_HF_HALVES, .whole = true, .read_only = true},
    {.hf = BLOCK "ff_out", .gguf = "blk.{}.ffn_down", .read_only = true},
    {.hf = "model.transformer.ff_out", .gguf = "output", .read_only = true},
    {.hf = NULL},
};
static const char *const first_classes[] = {"OLMoForCausalLM", "hf_olmo", NULL};
static const struct pp_arch_default first_defaults[] = {{.json = "{\"intermediate_size\": null}"}, {.json = NULL}};

/* Refuses options of that code that no published model uses. */
static enum pp_code check_first(const cJSON *config, struct pp_error *err)
{
    static const struct {
        const char *key, *only;
    } words[] = {{"activation_type", "swiglu"}, {"block_type", "sequential"}, {"layer_norm_type", "default"}};
    static const struct {
        const char *key;
        bool usual, only;
    } flags[] = {{"rope", false, true}, {"layer_norm_with_affine", true, false}, {"alibi", false, false},
                 {"attention_layer_norm", false, false}, {"norm_after", false, false}, {"include_bias", true, false},
                 {"embedding_layer_norm", false, false}, {"scale_logits", false, false}};
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof words / sizeof *words && !code; i++)
        code = pp_config_word(config, words[i].key, (const char *const[]){words[i].only, NULL}, err);
    for (size_t i = 0; i < sizeof flags / sizeof *flags && !code; i++)
        if (pp_config_flag(config, flags[i].key, flags[i].usual) != flags[i].only)
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is not %s, which is not supported for OLMo as its "
                           "first program has it", flags[i].key, flags[i].only ? "true" : "false");
    return code;
}

static enum pp_code first_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t ratio = 4, both = 0;
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {{"mlp_ratio", &ratio}, {"mlp_hidden_size", &both}, {"n_kv_heads", &hp->n_head_kv},
                   {"max_sequence_length", &hp->n_ctx_train}, {"embedding_size", &hp->n_vocab}};
    enum pp_code code = check_first(config, err);
    hp->n_head_kv = pp_config_flag(config, "multi_query_attention", false) ? 1 : hp->n_head;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = pp_config_int(config, numbers[i].key, numbers[i].v, err);
    if (!code)
        code = pp_check_range("ratio of the feed-forward parts' size", ratio, 1, 1 << 10, err);
    hp->n_ff = (both || code ? both : ratio * hp->n_embd) / 2; /* the keys count up and gate together */
    hp->legacy_names = true;
    hp->norm_eps = 1e-5f;
    if (!code)
        code = pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
    return code ? code : pp_config_float(config, "clip_qkv", &hp->qkv_clamp, err);
}

const struct pp_arch pp_arch_olmo_first = {
    .name = "olmo",
    .hf_classes = first_classes,
    .names = first_names,
    .ignored = pp_common_ignored,
    .defaults = first_defaults,
    .decoder = {.layer_norm = true, .plain_norm = true},
    .from_config = first_from_config,
    .hf_eps = "layer_norm_eps",
};
