/* llamas.c - families that are Llama but for a name or two: Seed-OSS (biases of q, k and v), ERNIE 4.5, Arcee (the
 * squared ReLU without a gate), Orion (LayerNorms), XVERSE, openPangu, MiniCPM (numbers that the embeddings, what is
 * added to the residual stream and the logits are multiplied by). */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static enum pp_code silu_only(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)hp;
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

/* --- Seed-OSS --------------------------------------------------------------------------------------------------- */

static const char *const seed_classes[] = {"SeedOssForCausalLM", "seed_oss", NULL};
static const struct pp_arch_name seed_names[] = {
    {.hf = "model.layers.{}.post_attention_layernorm", .gguf = "blk.{}.post_attention_norm"},
    {.hf = NULL},
};
static const struct pp_arch_usual seed_usual[] = {
    {.json = "{\"head_dim\": 128, \"max_position_embeddings\": 524288}"},
    {.json = NULL},
};

static void seed_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp;
    cJSON_AddBoolToObject(config, "attention_out_bias", false);
}

const struct pp_arch pp_arch_seed_oss = {
    .name = "seed_oss",
    .hf_classes = seed_classes,
    .names = seed_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = seed_usual,
    .gguf_neox = true,
    .decoder = {.ffn_norm = "post_attention_norm"},
    .from_config = silu_only,
    .to_config = seed_to_config,
};

/* --- ERNIE 4.5 -------------------------------------------------------------------------------------------------- */

static const char *const ernie_classes[] = {"Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "ernie4_5", NULL};
static const struct pp_arch_usual ernie_usual[] = {
    {.json = "{\"head_dim\": 128, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5,"
             "\"rope_theta\": 500000.0, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static void ernie_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp;
    cJSON_AddBoolToObject(config, "use_bias", cJSON_IsTrue(cJSON_GetObjectItem(config, "attention_bias")));
}

const struct pp_arch pp_arch_ernie45 = {
    .name = "ernie4_5",
    .hf_classes = ernie_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = ernie_usual,
    .hf_pairs = true,
    .from_config = silu_only,
    .to_config = ernie_to_config,
};

/* --- Arcee ------------------------------------------------------------------------------------------------------ */

static const char *const arcee_classes[] = {"ArceeForCausalLM", "arcee", NULL};
static const struct pp_arch_usual arcee_usual[] = {
    {.json = "{\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

static enum pp_code arcee_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)hp;
    return pp_config_activation(config, "hidden_act", pp_relu2_names, err);
}

static void nothing_more(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp, (void)config;
}

const struct pp_arch pp_arch_arcee = {
    .name = "arcee",
    .hf_classes = arcee_classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = arcee_usual,
    .decoder = {.ungated = true, .fn = PP_FN_RELU2},
    .from_config = arcee_from_config,
    .to_config = nothing_more,
};

/* --- Orion ------------------------------------------------------------------------------------------------------ */

static const char *const orion_classes[] = {"OrionForCausalLM", "orion", NULL};
static const struct pp_arch_usual orion_usual[] = {
    {.json = "{\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_orion = {
    .name = "orion",
    .hf_classes = orion_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = orion_usual,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true},
    .from_config = silu_only,
    .to_config = nothing_more,
};

/* --- XVERSE ----------------------------------------------------------------------------------------------------- */

static const char *const xverse_classes[] = {"XverseForCausalLM", "xverse", NULL};
static const struct pp_arch_usual xverse_usual[] = {
    {.json = "{\"max_position_embeddings\": 8192}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_xverse = {
    .name = "xverse",
    .hf_classes = xverse_classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = xverse_usual,
    .from_config = silu_only,
    .to_config = nothing_more,
};

/* --- openPangu -------------------------------------------------------------------------------------------------- */

static const char *const pangu_classes[] = {"PanguEmbeddedForCausalLM", "PanguEmbedded", NULL};
static const struct pp_arch_usual pangu_usual[] = {
    {.json = "{\"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

static void pangu_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp;
    cJSON_AddBoolToObject(config, "bias", cJSON_IsTrue(cJSON_GetObjectItem(config, "attention_bias")));
}

const struct pp_arch pp_arch_pangu = {
    .name = "pangu-embedded",
    .hf_classes = pangu_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = pangu_usual,
    .gguf_neox = true,
    .from_config = silu_only,
    .to_config = pangu_to_config,
};

/* --- MiniCPM ---------------------------------------------------------------------------------------------------- */

static const char *const minicpm_classes[] = {"MiniCPMForCausalLM", "minicpm", NULL};
static const struct pp_arch_usual minicpm_usual[] = {
    {.json = "{\"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static enum pp_code minicpm_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float depth = 1, base = 1;
    enum pp_code code = silu_only(config, hp, err);
    hp->embd_scale = 1;
    if (!code)
        code = pp_config_float(config, "scale_emb", &hp->embd_scale, err);
    if (!code)
        code = pp_config_float(config, "scale_depth", &depth, err);
    if (!code)
        code = pp_config_float(config, "dim_model_base", &base, err);
    hp->residual_scale = depth / sqrtf((float)hp->n_layer);
    hp->logit_scale = base / (float)hp->n_embd;
    return code;
}

/* The first files do not say what is the same in all models of that time. */
static enum pp_code minicpm_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    if (!pp_gguf_has(g, "minicpm.embedding_scale"))
        hp->embd_scale = 12;
    if (!pp_gguf_has(g, "minicpm.residual_scale"))
        hp->residual_scale = 1.4f / sqrtf((float)hp->n_layer);
    hp->logit_scale = hp->logit_scale != 0.0f ? 1.0f / hp->logit_scale : 256.0f / (float)hp->n_embd;
    return PP_OK;
}

static void minicpm_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put_float(config, "scale_emb", hp->embd_scale);
    pp_config_put_float(config, "scale_depth", hp->residual_scale * sqrtf((float)hp->n_layer));
    pp_config_put_float(config, "dim_model_base", hp->logit_scale * (float)hp->n_embd);
}

const struct pp_arch pp_arch_minicpm = {
    .name = "minicpm",
    .hf_classes = minicpm_classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = minicpm_usual,
    .gguf_divides_logits = true,
    .from_config = minicpm_from_config,
    .from_gguf = minicpm_from_gguf,
    .to_config = minicpm_to_config,
};
