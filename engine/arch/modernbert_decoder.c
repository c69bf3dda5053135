/* modernbert_decoder.c - ModernBERT's decoders (Ettin, arXiv 2507.11412): its layers, most with a window and a RoPE
 * base of their own, with separate q, k and v; between the last norm and the logits a matrix, a GELU and another norm;
 * and a bias of the logits. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.embeddings.tok_embeddings", .gguf = "token_embd"},
    {.hf = "model.embeddings.norm", .gguf = "token_embd_norm"},
    {.hf = "model.layers.{}.attn_norm", .gguf = "blk.{}.attn_norm"},
    {.hf = "model.layers.{}.attn.q_proj", .gguf = "blk.{}.attn_q"},
    {.hf = "model.layers.{}.attn.k_proj", .gguf = "blk.{}.attn_k"},
    {.hf = "model.layers.{}.attn.v_proj", .gguf = "blk.{}.attn_v"},
    {.hf = "model.layers.{}.attn.Wo", .gguf = "blk.{}.attn_output"},
    {.hf = "model.layers.{}.mlp_norm", .gguf = "blk.{}.ffn_norm"},
    {.hf = "model.layers.{}.mlp.Wi", .gguf = "blk.{}.ffn_up"},
    {.hf = "model.layers.{}.mlp.Wo", .gguf = "blk.{}.ffn_down"},
    {.hf = "model.final_norm", .gguf = "output_norm"},
    {.hf = "lm_head.dense", .gguf = "output_dense"},
    {.hf = "lm_head.norm", .gguf = "output_dense_norm"},
    {.hf = "decoder", .gguf = "output"},
    {.hf = NULL},
};

static const char *const classes[] = {"ModernBertDecoderForCausalLM", "modernbert-decoder", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 50368, \"hidden_size\": 768, \"intermediate_size\": 1152, \"num_hidden_layers\": 22,"
             "\"num_attention_heads\": 12, \"max_position_embeddings\": 8192}"},
    {.json = NULL},
};

/* Refuses what other versions of its code do differently, and what no published model has. */
static enum pp_code check_words(const cJSON *config, struct pp_error *err)
{
    const struct {
        const char *key;
        bool usual;
    } flags[] = {{"norm_bias", false}, {"classifier_bias", false}, {"decoder_bias", true}};
    static const char *const gelu[] = {"gelu", NULL};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (pp_config_flag(config, flags[i].key, flags[i].usual) != flags[i].usual)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is %s, which is not supported for this family",
                           flags[i].key, flags[i].usual ? "false" : "true");
    if (!cJSON_IsArray(pp_json_member(config, "layer_types")))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: layer_types is not there; which layers of this family "
                       "have a window is taken otherwise by different versions of transformers");
    if (cJSON_IsObject(pp_json_member(config, "rope_scaling")))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_scaling is not supported for this family");
    const enum pp_code code = pp_config_activation(config, "hidden_activation", gelu, err);
    return code ? code : pp_config_activation(config, "classifier_activation", gelu, err);
}

/* config.json has ModernBERT's number, the window to both sides; a decoder sees half of it. */
static enum pp_code read_window(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t both_sides = 128, said = 0;
    enum pp_code code = pp_config_int(config, "local_attention", &both_sides, err);
    if (!code)
        code = pp_config_int(config, "sliding_window", &said, err);
    hp->window = both_sides / 2;
    if (!code && said && said != hp->window)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: sliding_window is %lld, which is not half of "
                       "local_attention", (long long)said);
    if (!code && hp->window < 1)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: local_attention is %lld, which is not supported",
                       (long long)both_sides);
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *both = pp_json_member(config, "rope_parameters");
    const cJSON *local = pp_json_member(both, "sliding_attention");
    enum pp_code code = check_words(config, err);
    hp->norm_eps = 1e-5f;
    hp->rope_base_local = 10000;
    if (!cJSON_IsObject(both))
        hp->rope_base = 160000;
    if (!code)
        code = pp_config_float(config, "norm_eps", &hp->norm_eps, err);
    if (!code)
        code = read_window(config, hp, err);
    if (!code)
        code = pp_config_float(config, "global_rope_theta", &hp->rope_base, err);
    if (!code)
        code = pp_config_float(config, "local_rope_theta", &hp->rope_base_local, err);
    if (!code)
        code = pp_config_unscaled(local, err);
    if (!code)
        code = pp_config_float(local, "rope_theta", &hp->rope_base_local, err);
    if (!code && hp->rope_scaling != PP_ROPE_NONE)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: RoPE scaling is not supported for this family");
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    pp_layers_local_rope(hp);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double local = 10000;
    (void)err;
    pp_gguf_float(g, "modernbert-decoder.rope.freq_base_swa", &local);
    hp->rope_base_local = (float)local;
    pp_layers_local_rope(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32(w, "modernbert-decoder.rope.freq_base_swa", hp->rope_base_local);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_layer_types(config, hp);
    pp_config_put_text(config, "hidden_activation", "gelu");
    pp_config_put_text(config, "classifier_activation", "gelu");
    pp_config_put(config, "local_attention", 2 * hp->window);
    pp_config_put_float(config, "global_rope_theta", hp->rope_base);
    pp_config_put_float(config, "local_rope_theta", hp->rope_base_local);
    cJSON_AddBoolToObject(config, "norm_bias", false);
    cJSON_AddBoolToObject(config, "classifier_bias", false);
    cJSON_AddBoolToObject(config, "decoder_bias", true);
}

const struct pp_arch pp_arch_modernbert_decoder = {
    .name = "modernbert-decoder",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .hf_eps = "norm_eps",
    .decoder = {.layer_norm = true, .fn = PP_FN_GELU, .fused_gate = true, .embd_norm = true, .no_first_attn_norm = true,
                .dense_head = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
