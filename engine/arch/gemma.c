/* gemma.c - Gemma 1 to 3 (arXiv 2403.08295, 2408.00118, 2503.19786): norms' weights stored without 1, embeddings times
 * sqrt(n_embd), GELU. Gemma 2 has post-norms as well, soft caps of scores and logits, and a window in every other
 * layer; Gemma 3 norms of queries and keys instead of the caps, windows in five of six layers, and two RoPE bases.
 * EmbeddingGemma (2509.20354) is Gemma 3 as an encoder, VaultGemma (2510.15001) Gemma 2 without post-norms. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.norm", .gguf = "output_norm", .form = PP_HF_PLUS_ONE},
    {.hf = "model.layers.{}.input_layernorm", .gguf = "blk.{}.attn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.ffn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = NULL},
};

/* From Gemma 2 on, post_attention_layernorm is what its name says, not the norm before the feed-forward part. */
#define LATER_NAMES                                                                                                   \
    {.hf = "model.norm", .gguf = "output_norm", .form = PP_HF_PLUS_ONE},                                              \
    {.hf = "model.layers.{}.input_layernorm", .gguf = "blk.{}.attn_norm", .form = PP_HF_PLUS_ONE},                    \
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm", .form = PP_HF_PLUS_ONE}, \
    {.hf = "model.layers.{}.pre_feedforward_layernorm", .gguf = "blk.{}.ffn_norm", .form = PP_HF_PLUS_ONE},           \
    {.hf = "model.layers.{}.post_feedforward_layernorm", .gguf = "blk.{}.post_ffw_norm", .form = PP_HF_PLUS_ONE},     \
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm", .form = PP_HF_PLUS_ONE},                 \
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm", .form = PP_HF_PLUS_ONE}

static const struct pp_arch_name later_names[] = {LATER_NAMES, {.hf = NULL}};

static const char *const classes[] = {"GemmaForCausalLM", "gemma", NULL};
static const char *const classes2[] = {"Gemma2ForCausalLM", "gemma2", NULL};
static const char *const classes3[] = {
    "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "gemma3_text", "gemma3", NULL};
/* Gemma 1's config.json says "gelu", but the model has the tanh approximation. */
static const char *const gelu_names[] = {"gelu_pytorch_tanh", "gelu", NULL};

static enum pp_code read_common(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->embd_scale = sqrtf((float)hp->n_embd);
    return pp_config_activation(config, "hidden_activation", gelu_names, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = read_common(config, hp, err);
    return code ? code : pp_config_activation(config, "hidden_act", gelu_names, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    return PP_OK;
}

/* scalar: query_pre_attn_scalar; scores are divided by its root. */
static enum pp_code later_config(const cJSON *config, float scalar, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = read_common(config, hp, err);
    if (!code)
        code = pp_config_float(config, "query_pre_attn_scalar", &scalar, err);
    if (!code)
        code = pp_config_float(config, "attn_logit_softcapping", &hp->attn_softcap, err);
    if (!code)
        code = pp_config_float(config, "final_logit_softcapping", &hp->final_softcap, err);
    if (!code && !(scalar > 0))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: query_pre_attn_scalar is not a positive number");
    hp->attn_scale = code ? 0 : 1.0f / sqrtf(scalar);
    return code;
}

static enum pp_code from_config2(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    pp_layers_every(hp, 2, PP_LAYER_WIDE);
    hp->attn_softcap = 50;
    hp->final_softcap = 30;
    if (cJSON_IsNull(pp_json_member(config, "attn_logit_softcapping")))
        hp->attn_softcap = 0;
    if (cJSON_IsNull(pp_json_member(config, "final_logit_softcapping")))
        hp->final_softcap = 0;
    enum pp_code code = later_config(config, 256, hp, err);
    if (!code)
        code = pp_config_window(config, 4096, hp, err);
    return code ? code : pp_config_layer_types(config, hp, err);
}

/* Only our files have a key for the scale of scores; in others it is known by the model's size. */
static void usual_scale(struct pp_hparams *hp, int64_t largest_model)
{
    if (hp->attn_scale == 0.0f && hp->n_layer == largest_model && hp->n_head > 0)
        hp->attn_scale = 1.0f / sqrtf((float)(hp->n_embd / hp->n_head));
}

static enum pp_code from_gguf2(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    if (!pp_gguf_has(g, "gemma2.attn_logit_softcapping"))
        hp->attn_softcap = 50;
    if (!pp_gguf_has(g, "gemma2.final_logit_softcapping"))
        hp->final_softcap = 30;
    if (!pp_gguf_has(g, "gemma2.attention.sliding_window"))
        hp->window = 4096;
    if (!pp_gguf_has(g, "gemma2.attention.sliding_window_pattern"))
        pp_layers_every(hp, 2, PP_LAYER_WIDE);
    usual_scale(hp, 46);
    return PP_OK;
}

static enum pp_code from_config3(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *both = pp_json_member(config, "rope_parameters");
    const cJSON *local = pp_json_member(both, "sliding_attention");
    int64_t pattern = 6;
    enum pp_code code = later_config(config, 256, hp, err);
    if (!code)
        code = pp_config_int(config, "sliding_window_pattern", &pattern, err);
    if (!code)
        code = pp_config_int(config, "_sliding_window_pattern", &pattern, err);
    if (!code)
        code = pp_config_window(config, 4096, hp, err);
    if (!code && pattern > 0)
        pp_layers_every(hp, pattern, PP_LAYER_WIDE);
    hp->rope_base_local = 10000;
    if (!code)
        code = pp_config_float(config, "rope_local_base_freq", &hp->rope_base_local, err);
    if (!code)
        code = pp_config_unscaled(local, err);
    if (!code)
        code = pp_config_float(local, "rope_theta", &hp->rope_base_local, err);
    if (!code)
        code = pp_config_layer_types(config, hp, err);
    pp_layers_local_rope(hp);
    return code;
}

/* ollama's files of Gemma 3: those of 4B and more lack the epsilon, the head size and the RoPE scaling of layers
 * without a window; the 1B's has a soft cap of logits that the model does not have. */
static void as_ollama(const struct pp_gguf *g, struct pp_hparams *hp)
{
    double base = 0;
    const bool seeing = !pp_gguf_has(g, "gemma3.attention.layer_norm_rms_epsilon");
    if (pp_gguf_float(g, "gemma3.rope.global.freq_base", &base))
        hp->rope_base = (float)base;
    if (pp_gguf_float(g, "gemma3.rope.local.freq_base", &base)) {
        hp->rope_base_local = (float)base;
        if (hp->n_layer == 26)
            hp->final_softcap = 0;
    }
    if (seeing && !pp_gguf_has(g, "gemma3.attention.key_length"))
        hp->head_dim = hp->rope_dim = 256;
    if (seeing && hp->n_ctx_train >= 131072 && !pp_gguf_has(g, "gemma3.rope.scaling.factor")) {
        hp->rope_scaling = PP_ROPE_LINEAR;
        hp->rope_factor = 8;
    }
}

static enum pp_code from_gguf3(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double local = 10000;
    (void)err;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    pp_gguf_float(g, "gemma3.rope.freq_base_swa", &local);
    hp->rope_base_local = (float)local;
    if (!pp_gguf_has(g, "gemma3.rope.freq_base"))
        hp->rope_base = 1e6f;
    as_ollama(g, hp);
    if (!hp->window) /* converters omit it where no layer has a window */
        pp_layers_every(hp, 1, PP_LAYER_WIDE);
    else if (!pp_gguf_has(g, "gemma3.attention.sliding_window_pattern"))
        pp_layers_every(hp, 6, PP_LAYER_WIDE);
    pp_layers_local_rope(hp);
    usual_scale(hp, 62);
    return PP_OK;
}

static void to_gguf3(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32(w, "gemma3.rope.freq_base_swa", hp->rope_base_local);
}

static const struct pp_arch_parts parts3 = {
    .model_type = "gemma3_text", .prefixes = pp_text_prefixes, .others = pp_picture_parts};

static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 16, \"head_dim\": 256, \"max_position_embeddings\": 8192,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const struct pp_arch_default defaults2[] = {
    {.json = "{\"num_key_value_heads\": 4, \"head_dim\": 256, \"max_position_embeddings\": 8192,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};
/* A text_config has only what differs from these defaults. */
static const struct pp_arch_default defaults3[] = {
    {.json = "{\"vocab_size\": 262208, \"hidden_size\": 2304, \"intermediate_size\": 9216, \"num_hidden_layers\": 26,"
             "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 256, \"rope_theta\": 1000000.0,"
             "\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static void to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp;
    pp_config_put_text(config, "hidden_activation", "gelu_pytorch_tanh");
}

const struct pp_arch pp_arch_gemma = {
    .name = "gemma",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_GELU_TANH},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .defaults = defaults,
    .to_config = to_config,
};

static void later_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    to_config(hp, config);
    pp_config_put_layer_types(config, hp);
    pp_config_put_float(config, "query_pre_attn_scalar",
                        hp->attn_scale != 0.0f ? 1.0f / (hp->attn_scale * hp->attn_scale) : (float)hp->head_dim);
    if (hp->attn_softcap != 0.0f)
        pp_config_put_float(config, "attn_logit_softcapping", hp->attn_softcap);
    else
        cJSON_AddNullToObject(config, "attn_logit_softcapping");
    if (hp->final_softcap != 0.0f)
        pp_config_put_float(config, "final_logit_softcapping", hp->final_softcap);
    else
        cJSON_AddNullToObject(config, "final_logit_softcapping");
}

const struct pp_arch pp_arch_gemma2 = {
    .name = "gemma2",
    .hf_classes = classes2,
    .names = later_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_GELU_TANH, .post_norm = true},
    .from_config = from_config2,
    .from_gguf = from_gguf2,
    .defaults = defaults2,
    .layer_pattern = 2,
    .to_config = later_to_config,
};

static void to_config3(const struct pp_hparams *hp, struct cJSON *config)
{
    later_to_config(hp, config);
    pp_config_put_float(config, "rope_local_base_freq", hp->rope_base_local);
}

/* --- VaultGemma -------------------------------------------------------------------------------------------------- */

static const char *const vault_classes[] = {"VaultGemmaForCausalLM", "vaultgemma", NULL};

/* Only pippin makes GGUF files of it, which have all keys. */
static const struct pp_arch_name vault_names[] = {
    {.hf = "model.norm", .gguf = "output_norm", .form = PP_HF_PLUS_ONE},
    {.hf = "model.layers.{}.input_layernorm", .gguf = "blk.{}.attn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = "model.layers.{}.pre_feedforward_layernorm", .gguf = "blk.{}.ffn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = NULL},
};

const struct pp_arch pp_arch_vaultgemma = {
    .name = "vaultgemma",
    .hf_classes = vault_classes,
    .names = vault_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_GELU_TANH},
    .from_config = from_config2,
    .from_gguf = from_gguf,
    .defaults = defaults2,
    .to_config = later_to_config,
};

/* --- EmbeddingGemma ---------------------------------------------------------------------------------------------- */

static const struct pp_arch_name embedding_names[] = {
    {.hf = "dense_2.linear", .gguf = "dense_2"},
    {.hf = "dense_3.linear", .gguf = "dense_3"},
    LATER_NAMES,
    {.hf = NULL},
};
static const char *const embedding_classes[] = {"Gemma3TextModel", NULL};

/* Files and folders have the whole width of the window, to both sides. */
static void halve_window(struct pp_hparams *hp)
{
    hp->window = hp->window ? hp->window / 2 + 1 : 0;
}

static enum pp_code embedding_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = from_config3(config, hp, err);
    halve_window(hp);
    return code;
}

static enum pp_code embedding_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double local = 10000;
    (void)err;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    pp_gguf_float(g, "gemma-embedding.rope.freq_base_swa", &local);
    hp->rope_base_local = (float)local;
    if (!pp_gguf_has(g, "gemma-embedding.attention.sliding_window_pattern"))
        pp_layers_every(hp, 6, PP_LAYER_WIDE);
    pp_layers_local_rope(hp);
    halve_window(hp);
    return PP_OK;
}

static void embedding_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32(w, "gemma-embedding.rope.freq_base_swa", hp->rope_base_local);
    if (!hp->n_dense)
        return;
    pp_gguf_add_u32(w, "gemma-embedding.dense_2_feat_in", (uint32_t)hp->n_embd);
    pp_gguf_add_u32(w, "gemma-embedding.dense_2_feat_out", (uint32_t)hp->n_dense);
    pp_gguf_add_u32(w, "gemma-embedding.dense_3_feat_in", (uint32_t)hp->n_dense);
    pp_gguf_add_u32(w, "gemma-embedding.dense_3_feat_out", (uint32_t)hp->n_embd);
}

const struct pp_arch pp_arch_gemma_embedding = {
    .name = "gemma-embedding",
    .hf_classes = embedding_classes,
    .names = embedding_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_GELU_TANH, .post_norm = true, .qk_norm = PP_QK_BY_HEAD, .bidirectional = true},
    .from_config = embedding_config,
    .from_gguf = embedding_gguf,
    .to_gguf = embedding_to_gguf,
    .defaults = defaults3,
    .layer_pattern = 6,
};

const struct pp_arch pp_arch_gemma3 = {
    .name = "gemma3",
    .bidirectional_variant = &pp_arch_gemma_embedding,
    .hf_classes = classes3,
    .names = later_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.fn = PP_FN_GELU_TANH, .post_norm = true, .qk_norm = PP_QK_BY_HEAD},
    .from_config = from_config3,
    .from_gguf = from_gguf3,
    .to_gguf = to_gguf3,
    .defaults = defaults3,
    .parts = &parts3,
    .gguf_eps = 1e-6f, /* ollama's files lack it */
    .layer_pattern = 6,
    .to_config = to_config3,
};
