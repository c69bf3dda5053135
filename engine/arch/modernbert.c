/* modernbert.c - encoders with pre-norms: ModernBERT (arXiv 2412.13663), whose layers alternate between windows and
 * full attention; EuroBERT (2503.05500); and NVIDIA's Llama-Embed, a bidirectional Llama. (EmbeddingGemma is in
 * gemma.c.) Heads for other tasks are ignored. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.embeddings.tok_embeddings", .gguf = "token_embd"},
    {.hf = "model.embeddings.norm", .gguf = "token_embd_norm"},
    {.hf = "model.layers.{}.attn_norm", .gguf = "blk.{}.attn_norm"},
    {.hf = "model.layers.{}.attn.Wqkv", .gguf = "blk.{}.attn_qkv"},
    {.hf = "model.layers.{}.attn.Wo", .gguf = "blk.{}.attn_output"},
    {.hf = "model.layers.{}.mlp_norm", .gguf = "blk.{}.ffn_norm"},
    {.hf = "model.layers.{}.mlp.Wi", .gguf = "blk.{}.ffn_up"},
    {.hf = "model.layers.{}.mlp.Wo", .gguf = "blk.{}.ffn_down"},
    {.hf = "model.final_norm", .gguf = "output_norm"},
    {.hf = NULL},
};

static const char *const prefixes[] = {NULL};
static const char *const others[] = {"head.", "decoder.", "classifier.", NULL};
static const struct pp_arch_parts parts = {.model_type = "modernbert", .prefixes = prefixes, .others = others};
static const char *const classes[] = {"ModernBertModel", "ModernBertForMaskedLM", "modernbert", NULL};

static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 50368, \"hidden_size\": 768, \"intermediate_size\": 1152, \"num_hidden_layers\": 22,"
             "\"num_attention_heads\": 12, \"max_position_embeddings\": 8192}"},
    {.json = NULL},
};

/* Layers 0, step, 2 step ... have full attention; the others have a RoPE base of their own. */
static void wide_from_first(struct pp_hparams *hp, int64_t step)
{
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] = (uint8_t)((hp->layer[l] & ~PP_LAYER_WIDE) | (step > 0 && l % step == 0 ? PP_LAYER_WIDE : 0));
}

/* Files and folders have the whole width of the window, to both sides. */
static void finish_layers(struct pp_hparams *hp)
{
    pp_layers_local_rope(hp);
    hp->window = hp->window > 0 ? hp->window / 2 + 1 : 0;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const functions[] = {"gelu", "silu", NULL};
    const char *fn = cJSON_GetStringValue(pp_json_member(config, "hidden_activation"));
    const cJSON *both = pp_json_member(config, "rope_parameters");
    const cJSON *local = pp_json_member(both, "sliding_attention");
    int64_t step = 3;
    hp->activation = fn && *fn == 's' ? PP_ACTIVATION_SILU : PP_ACTIVATION_USUAL;
    hp->window = 128;
    hp->rope_base_local = 10000;
    if (!cJSON_IsObject(both))
        hp->rope_base = 160000;
    if (pp_config_flag(config, "norm_bias", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: norm_bias is not supported for this family");
    enum pp_code code = pp_config_activation(config, "hidden_activation", functions, err);
    hp->norm_eps = 1e-5f;
    if (!code)
        code = pp_config_float(config, "norm_eps", &hp->norm_eps, err);
    if (!code)
        code = pp_config_int(config, "local_attention", &hp->window, err);
    if (!code)
        code = pp_config_int(config, "global_attn_every_n_layers", &step, err);
    if (!code)
        code = pp_config_float(config, "global_rope_theta", &hp->rope_base, err);
    if (!code)
        code = pp_config_float(config, "local_rope_theta", &hp->rope_base_local, err);
    if (!code)
        code = pp_config_unscaled(local, err);
    if (!code)
        code = pp_config_float(local, "rope_theta", &hp->rope_base_local, err);
    wide_from_first(hp, step);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    finish_layers(hp);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    static const char pattern[] = "modern-bert.attention.sliding_window_pattern";
    double local = 10000;
    int64_t step = 3;
    (void)err;
    pp_gguf_float(g, "modern-bert.rope.freq_base_swa", &local);
    hp->rope_base_local = (float)local;
    if (pp_gguf_int(g, pattern, &step) || !pp_gguf_has(g, pattern))
        wide_from_first(hp, step);
    if (!pp_gguf_has(g, "modern-bert.rope.freq_base"))
        hp->rope_base = 160000;
    finish_layers(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32(w, "modern-bert.rope.freq_base_swa", hp->rope_base_local);
}

const struct pp_arch pp_arch_modern_bert = {
    .name = "modern-bert",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .gguf_neox = true,
    .layer_pattern = 3,
    .pattern_from_first = true,
    .decoder = {.layer_norm = true, .fn = PP_FN_GELU, .fused_qkv = true, .fused_gate = true, .embd_norm = true,
                .bidirectional = true, .no_first_attn_norm = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
};

/* --- with Llama's layers ------------------------------------------------------------------------------------------ */

static enum pp_code llama_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)hp;
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static enum pp_code llama_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)hp, (void)err;
    return PP_OK;
}

static const char *const euro_classes[] = {"EuroBertModel", "EuroBertForMaskedLM", "eurobert", NULL};
static const struct pp_arch_default euro_defaults[] = {
    {.json = "{\"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, \"rope_theta\": 250000.0}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_eurobert = {
    .name = "eurobert",
    .hf_classes = euro_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = euro_defaults,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_SILU, .bidirectional = true},
    .from_config = llama_config,
    .from_gguf = llama_gguf,
};

static const char *const llama_classes[] = {"LlamaBidirectionalModel", "llama_bidirec", NULL};

const struct pp_arch pp_arch_llama_embed = {
    .name = "llama-embed",
    .hf_classes = llama_classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .decoder = {.fn = PP_FN_SILU, .bidirectional = true},
    .from_config = llama_config,
    .from_gguf = llama_gguf,
};
