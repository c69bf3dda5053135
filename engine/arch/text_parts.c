/* text_parts.c - language models of vision models that are variants of other families: PaddleOCR-VL's is ERNIE 4.5, and
 * DeepSeek-OCR's the first DeepSeek MoE, both with the other pairs of rotated dimensions (rope_neox); CogVLM's is Llama
 * with a fused qkv, and with separate matrices for image positions, which are ignored. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

/* --- PaddleOCR-VL ------------------------------------------------------------------------------------------------- */

/* M-RoPE: how many pairs each number of a position rotates. For text the three numbers are equal. */
static const int32_t paddle_sections[] = {16, 24, 24, 0};
enum { PADDLE_PAIRS = 64 };

static const char *const paddle_classes[] = {"PaddleOCRVLForConditionalGeneration", "paddleocr_vl", "paddleocr_vl_text",
                                             NULL};
static const char *const paddle_others[] = {"visual.", "mlp_AR.", "model.visual.", "model.projector.", NULL};
static const struct pp_arch_parts paddle_parts = {
    .model_type = "paddleocr_vl_text", .prefixes = pp_qwen_prefixes, .others = paddle_others};
static const struct pp_arch_default paddle_defaults[] = {
    {.json = "{\"vocab_size\": 103424, \"hidden_size\": 1024, \"intermediate_size\": 3072,"
             "\"num_hidden_layers\": 18, \"num_attention_heads\": 16, \"num_key_value_heads\": 2, \"head_dim\": 128,"
             "\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0,"
             "\"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static enum pp_code paddle_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)hp;
    if (!pp_config_flag(config, "rope_is_neox_style", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_is_neox_style is false, which pippin does not "
                       "compute");
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static void paddle_to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *rope = cJSON_AddObjectToObject(config, "rope_scaling");
    cJSON_AddStringToObject(rope, "rope_type", "default");
    cJSON_AddStringToObject(rope, "type", "default");
    if (hp->rope_dim == 2 * PADDLE_PAIRS)
        cJSON_AddItemToObject(rope, "mrope_section", cJSON_CreateIntArray(paddle_sections, 3));
    cJSON_AddBoolToObject(config, "use_bias", cJSON_IsTrue(pp_json_member(config, "attention_bias")));
}

static void paddle_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    const int32_t alone[] = {(int32_t)(hp->rope_dim / 2), 0, 0, 0};
    pp_gguf_add_i32_array(w, "paddleocr.rope.dimension_sections",
                          hp->rope_dim == 2 * PADDLE_PAIRS ? paddle_sections : alone, 4);
}

const struct pp_arch pp_arch_paddleocr = {
    .name = "paddleocr",
    .hf_classes = paddle_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .parts = &paddle_parts,
    .defaults = paddle_defaults,
    .gguf_neox = true,
    .from_config = paddle_from_config,
    .to_gguf = paddle_to_gguf,
    .to_config = paddle_to_config,
};

/* --- DeepSeek-OCR ------------------------------------------------------------------------------------------------- */

static const char *const ocr_classes[] = {"DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM", "deepseek_ocr", NULL};
static const char *const ocr_prefixes[] = {NULL};
static const char *const ocr_others[] = {"model.sam_model.", "model.vision_model.", "model.qwen2_model.",
                                         "model.projector.", "model.image_newline", "model.view_seperator", NULL};
static const struct pp_arch_parts ocr_parts = {
    .model_type = "deepseek_v2", .prefixes = ocr_prefixes, .others = ocr_others};
static const struct pp_arch_default ocr_defaults[] = {
    {.json = "{\"max_position_embeddings\": 2048, \"moe_intermediate_size\": 1407, \"routed_scaling_factor\": 1.0}"},
    {.json = NULL},
};
static const struct pp_expert_keys ocr_keys = {
    .n = "n_routed_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .n_groups = "n_group", .n_groups_used = "topk_group", .n_shared = "n_shared_experts",
    .n_dense = "first_k_dense_replace", .norm_topk = "norm_topk_prob", .scale = "routed_scaling_factor"};

/* Refuses features of DeepSeek V2's configuration that no text part is known to use. */
static enum pp_code ocr_refuse(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    const char *score = cJSON_GetStringValue(pp_json_member(config, "scoring_func"));
    const cJSON *window = pp_json_member(config, "sliding_window");
    const char *what = pp_config_flag(config, "use_mla", false)                  ? "use_mla"
                       : score && strcmp(score, "softmax") != 0                  ? "scoring_func"
                       : hp->n_expert_group > 1                                  ? "n_group"
                       : cJSON_IsNumber(window) && window->valuedouble != 0      ? "sliding_window"
                                                                                 : NULL;
    return what ? pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s says something that pippin does not support in "
                                                   "this family",
                          what)
                : PP_OK;
}

static enum pp_code ocr_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t step = 1;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_experts(config, &ocr_keys, hp, err);
    if (!code)
        code = pp_config_int(config, "moe_layer_freq", &step, err);
    for (int64_t l = 0; step > 0 && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= l % step ? PP_LAYER_DENSE : 0;
    return code ? code : ocr_refuse(config, hp, err);
}

static void ocr_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_experts(hp, &ocr_keys, config);
    pp_config_put(config, "moe_layer_freq", 1);
    pp_config_put_text(config, "scoring_func", "softmax");
    pp_config_put_text(config, "topk_method", "greedy");
    cJSON_AddFalseToObject(config, "use_mla");
}

/* rope.dimension_count in files is config.json's qk_rope_head_dim, which is 0 as there is no latent attention. */
static enum pp_code ocr_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    hp->rope_dim = hp->rope_dim ? hp->rope_dim : hp->head_dim;
    return hp->window ? pp_fail(err, PP_ERR_UNSUPPORTED, "the model has attention windows after images, which pippin "
                                                         "does not support")
                      : PP_OK;
}

const struct pp_arch pp_arch_deepseek2_ocr = {
    .name = "deepseek2-ocr",
    .hf_classes = ocr_classes,
    .names = pp_expert_names,
    .ignored = pp_common_ignored,
    .parts = &ocr_parts,
    .defaults = ocr_defaults,
    .gguf_neox = true,
    .gguf_default_no_renorm = true,
    .from_config = ocr_from_config,
    .from_gguf = ocr_from_gguf,
    .to_config = ocr_to_config,
};

/* --- CogVLM ------------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name cog_names[] = {
    {.hf = "model.layers.{}.self_attn.language_expert_query_key_value", .gguf = "blk.{}.attn_qkv"},
    {.hf = "model.layers.{}.self_attn.language_expert_dense", .gguf = "blk.{}.attn_output"},
    {.hf = "model.layers.{}.mlp.language_mlp.gate_proj", .gguf = "blk.{}.ffn_gate"},
    {.hf = "model.layers.{}.mlp.language_mlp.up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = "model.layers.{}.mlp.language_mlp.down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const char *const cog_classes[] = {"CogVLMForCausalLM", "cogvlm", NULL};
static const char *const cog_ignored[] = {
    ".rotary_emb.inv_freq", ".vision_expert_query_key_value.weight", ".vision_expert_query_key_value.bias",
    ".vision_expert_dense.weight", ".vision_expert_dense.bias", ".vision_mlp.gate_proj.weight",
    ".vision_mlp.up_proj.weight", ".vision_mlp.down_proj.weight", NULL};
static const char *const cog_others[] = {"model.vision.", NULL};
static const struct pp_arch_parts cog_parts = {.model_type = "cogvlm", .prefixes = ocr_prefixes, .others = cog_others};
static const struct pp_arch_default cog_defaults[] = {{.json = "{\"rms_norm_eps\": 1e-5}"}, {.json = NULL}};

/* CogVLM 2 has grouped queries, under a key of its own; its code has a larger RoPE base than the first one's. */
static enum pp_code cog_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char shared[] = "num_multi_query_heads";
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (pp_json_member(config, shared) && !pp_json_member(config, "rope_theta"))
        hp->rope_base = 500000;
    return code ? code : pp_config_int(config, shared, &hp->n_head_kv, err);
}

static void cog_to_config(const struct pp_hparams *hp, cJSON *config)
{
    if (hp->n_head_kv != hp->n_head)
        pp_config_put(config, "num_multi_query_heads", hp->n_head_kv);
}

const struct pp_arch pp_arch_cogvlm = {
    .name = "cogvlm",
    .hf_classes = cog_classes,
    .names = cog_names,
    .more_names = pp_common_names,
    .ignored = cog_ignored,
    .parts = &cog_parts,
    .defaults = cog_defaults,
    .gguf_neox = true,
    .decoder = {.fused_qkv = true},
    .from_config = cog_from_config,
    .to_config = cog_to_config,
};
