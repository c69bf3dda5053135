/* wrapped.c - folders of models that see or hear, and whose part that reads and writes text is a model of any family,
 * which their configuration has in an object of its own: LLaVA, InternVL, SmolVLM, Kimi VL, Qwen's Omni and others.
 * Families that have such models of their own say it themselves (struct pp_arch_parts). */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/arch.h"

static const char *const usual_classes[] = {
    "LlavaForConditionalGeneration", "llava", "LlavaNextForConditionalGeneration", "llava_next",
    "LlavaOnevisionForConditionalGeneration", "llava_onevision", "FastVlmForConditionalGeneration", "fast_vlm",
    "InternVLForConditionalGeneration", "internvl", "Idefics3ForConditionalGeneration", "idefics3",
    "SmolVLMForConditionalGeneration", "smolvlm", "KimiVLForConditionalGeneration", "kimi_vl",
    "KimiK25ForConditionalGeneration", "kimi_k25", "LightOnOCRForConditionalGeneration",
    "LightOnOcrForConditionalGeneration", "lighton_ocr", "AyaVisionForConditionalGeneration", "aya_vision",
    "VoxtralForConditionalGeneration", "voxtral", "Qwen2AudioForConditionalGeneration", "qwen2_audio",
    "AudioFlamingo3ForConditionalGeneration", "audioflamingo3", NULL};
static const char *const llm_classes[] = {"InternVLChatModel", "internvl_chat", "NemotronH_Nano_VL_V2", NULL};
static const char *const omni_classes[] = {"Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration", "qwen2_5_omni",
                                           "Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe", NULL};

static const struct pp_arch_wrapper wrappers[] = {
    {.classes = usual_classes, .keys = {"text_config"}},
    {.classes = llm_classes, .keys = {"llm_config"}},
    {.classes = omni_classes, .keys = {"thinker_config", "text_config"}},
};

/* What names of the text's tensors begin with, and what families have instead. */
static const char *const prefixes[][2] = {
    {"model.language_model.", "model."}, {"language_model.", ""}, {"model.text_model.", "model."},
    {"thinker.model.", "model."}, {"thinker.lm_head.", "lm_head."},
};

static const char *const others[] = {
    "vision_tower.", "vision_model.", "multi_modal_projector.", "mm_projector.", "mlp1.", "audio_tower.",
    "image_newline", "model.vision_tower.", "model.vision_model.", "model.vision_encoder.", "model.vision_projection.",
    "model.connector.", "model.multi_modal_projector.", "model.mm_projector.", "model.audio_tower.",
    "model.image_newline", "thinker.visual.", "thinker.audio_tower.", "talker.", "token2wav.", "code2wav.", NULL};

/* What transformers takes for granted in families whose own models always say it. */
static const struct {
    const char *model_type, *json;
} usual[] = {
    {"llama", "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 11008, \"num_hidden_layers\": 32,"
              "\"num_attention_heads\": 32, \"max_position_embeddings\": 2048}"},
    {"qwen2", "{\"vocab_size\": 151936, \"hidden_size\": 4096, \"intermediate_size\": 22016,"
              "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"max_position_embeddings\": 32768}"},
};

const struct pp_arch_wrapper *pp_wrapper_by_class(const char *hf_class)
{
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        for (const char *const *c = wrappers[i].classes; *c; c++)
            if (strcmp(*c, hf_class) == 0)
                return &wrappers[i];
    return NULL;
}

const cJSON *pp_wrapped_config(const struct pp_arch_wrapper *w, const cJSON *config)
{
    for (int i = 0; i < 2 && w->keys[i]; i++)
        config = cJSON_GetObjectItemCaseSensitive(config, w->keys[i]);
    return cJSON_IsObject(config) ? config : NULL;
}

const char *pp_wrapped_usual(const char *model_type)
{
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (strcmp(usual[i].model_type, model_type) == 0)
            return usual[i].json;
    return "{}";
}

bool pp_wrapped_name(const char *hf, struct pp_buf *name)
{
    pp_buf_clear(name);
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (pp_name_begins(hf, prefixes[i][0])) {
            pp_buf_fmt(name, "%s%s", prefixes[i][1], hf + strlen(prefixes[i][0]));
            return true;
        }
    return false;
}

bool pp_is_beside_text(const char *hf)
{
    for (const char *const *p = others; *p; p++)
        if (pp_name_begins(hf, *p))
            return true;
    return false;
}
