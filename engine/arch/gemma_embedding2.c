/* gemma_embedding2.c - EmbeddingGemma 2 (transformers, models/embedding_gemma2; llama.cpp's files): Gemma 4's layers
 * as an encoder. Windows reach to both sides, per-layer inputs are computed from the embeddings only, without a table,
 * and a matrix after the last norm makes vectors wider than the stream. Of multimodal folders the text part. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define KEY "gemma-embedding2."
#define LAYER "model.layers.{}."
#define BLOCK "blk.{}."

static const struct pp_arch_name names[] = {
    {.hf = "model.embedding_projection", .gguf = "output"},
    {.hf = "model.ple.per_layer_model_projection", .gguf = "per_layer_model_proj"},
    {.hf = "model.ple.per_layer_projection_norm", .gguf = "per_layer_proj_norm"},
    {.hf = LAYER "ple_block.per_layer_input_gate", .gguf = BLOCK "inp_gate"},
    {.hf = LAYER "ple_block.per_layer_projection", .gguf = BLOCK "proj"},
    {.hf = LAYER "ple_block.post_per_layer_input_norm", .gguf = BLOCK "post_norm"},
    {.hf = LAYER "layer_scalar", .gguf = BLOCK "layer_output_scale.weight", .whole = true},
    PP_LAYER_INPUT_NAMES,
    {.hf = NULL},
};

static const char *const classes[] = {"EmbeddingGemma2Model", "EmbeddingGemma2TextModel", "embedding_gemma2",
                                      "embedding_gemma2_text", NULL};
static const char *const prefixes[] = {"model.language_model.", "model.", "language_model.", "model.", NULL};
static const char *const others[] = {
    "vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "model.vision_tower.", "model.audio_tower.",
    "model.embed_vision.", "model.embed_audio.", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "embedding_gemma2_text", .prefixes = prefixes, .others = others};

/* A text_config has only what differs from these defaults. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 262144, \"hidden_size\": 512, \"intermediate_size\": 2048, \"num_hidden_layers\": 24,"
             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 256, \"sliding_window\": 512,"
             "\"max_position_embeddings\": 262144, \"rms_norm_eps\": 1e-6, \"embedding_dim\": 768,"
             "\"hidden_size_per_layer_input\": 512, \"rope_parameters\": {"
             "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0},"
             "\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1000000.0}}}"},
    {.json = NULL},
};

/* Defaults of layers without a window, whose heads are wholly rotated. */
static enum pp_code wide_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *said = pp_json_member(config, "per_layer_config");
    if (!cJSON_IsObject(said) || !said->child)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json has no per_layer_config, which would say what heads "
                       "layers without a window have");
    const enum pp_code code = pp_gemma_wide_from_config(config, 1, hp, err);
    hp->rope_n_pairs = 2 * hp->rope_n_pairs == hp->head_dim ? 0 : hp->rope_n_pairs;
    return code;
}

/* Folders have the window's reach to one side, the position itself included. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_activation", pp_gelu_tanh_names, err);
    if (!code)
        code = pp_config_window(config, 512, hp, err);
    hp->window += hp->window ? 1 : 0;
    pp_layers_every(hp, 6, PP_LAYER_WIDE);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    if (!code)
        code = pp_gemma_local_rope(config, hp, err);
    if (!code)
        code = pp_config_int(config, "hidden_size_per_layer_input", &hp->n_embd_layer, err);
    if (!code)
        code = pp_config_int(config, "embedding_dim", &hp->n_embd_out, err);
    if (!code)
        code = wide_layers(config, hp, err);
    pp_gemma_scales(hp);
    return code;
}

/* Files have the whole width of the window, to both sides. */
static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t values;
    double base = 10000;
    pp_gguf_int(g, KEY "attention.key_length_swa", &hp->head_dim_local);
    values = hp->head_dim_local;
    pp_gguf_int(g, KEY "attention.value_length_swa", &values);
    if (values != hp->head_dim_local)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "keys and values of different sizes (%lld, %lld) are not supported",
                       (long long)hp->head_dim_local, (long long)values);
    hp->rope_dim_local = hp->head_dim_local;
    pp_gguf_int(g, KEY "rope.dimension_count_swa", &hp->rope_dim_local);
    pp_gguf_float(g, KEY "rope.freq_base_swa", &base);
    hp->rope_base_local = (float)base;
    pp_gguf_int(g, KEY "embedding_length_per_layer_input", &hp->n_embd_layer);
    hp->n_embd_out = hp->n_embd;
    pp_gguf_int(g, KEY "embedding_length_out", &hp->n_embd_out);
    if (!pp_gguf_has(g, KEY "attention.sliding_window_pattern"))
        pp_layers_every(hp, 6, PP_LAYER_WIDE);
    hp->window = hp->window ? hp->window / 2 + 1 : 0;
    pp_gemma_scales(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32(w, KEY "rope.freq_base_swa", hp->rope_base_local);
    pp_gguf_add_u32(w, KEY "embedding_length_per_layer_input", (uint32_t)hp->n_embd_layer);
    pp_gguf_add_u32(w, KEY "embedding_length_out", (uint32_t)hp->n_embd_out);
}

const struct pp_arch pp_arch_gemma_embedding2 = {
    .name = "gemma-embedding2",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .defaults = defaults,
    .parts = &parts,
    .decoder = {.fn = PP_FN_GELU_TANH, .post_norm = true, .qk_norm = PP_QK_BY_HEAD, .unweighted_v_norm = true,
                .bidirectional = true, .projected_inputs = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
};
