/* wrapped.c - folders of multimodal models around a language model of any family, whose configuration is an object
 * within config.json: LLaVA, InternVL, SmolVLM, Kimi VL, Qwen's Omni and others. In some, such as the first LLaVA and
 * MiniCPM-V, the whole of config.json is the language model's. A family with multimodal models of its own describes
 * them itself (struct pp_arch_parts). */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"

static const char *const usual_classes[] = {
    "LlavaForConditionalGeneration", "llava", "LlavaNextForConditionalGeneration", "llava_next",
    "LlavaOnevisionForConditionalGeneration", "llava_onevision", "FastVlmForConditionalGeneration", "fast_vlm",
    "InternVLForConditionalGeneration", "internvl", "Idefics3ForConditionalGeneration", "idefics3",
    "SmolVLMForConditionalGeneration", "smolvlm", "KimiVLForConditionalGeneration", "kimi_vl",
    "KimiK25ForConditionalGeneration", "kimi_k25", "LightOnOCRForConditionalGeneration",
    "LightOnOcrForConditionalGeneration", "lighton_ocr", "AyaVisionForConditionalGeneration", "aya_vision",
    "VoxtralForConditionalGeneration", "voxtral", "Qwen2AudioForConditionalGeneration", "qwen2_audio",
    "AudioFlamingo3ForConditionalGeneration", "audioflamingo3", "MllamaForConditionalGeneration", "mllama",
    "MiniCPMV4_6ForConditionalGeneration", "minicpmv4_6", "AriaForConditionalGeneration", "aria",
    "Emu3ForConditionalGeneration", "emu3", "VipLlavaForConditionalGeneration", "vipllava",
    "VideoLlavaForConditionalGeneration", "video_llava", "LlavaNextVideoForConditionalGeneration", "llava_next_video",
    "GotOcr2ForConditionalGeneration", "got_ocr2", "Ovis2ForConditionalGeneration", "ovis2",
    "PerceptionLMForConditionalGeneration", "perception_lm", "JanusForConditionalGeneration", "janus",
    "DeepseekVLForConditionalGeneration", "deepseek_vl", "Idefics2ForConditionalGeneration", "idefics2",
    "VideoLlama3ForConditionalGeneration", "video_llama_3", "GraniteSpeechForConditionalGeneration", "granite_speech",
    "KimiK3ForConditionalGeneration", "kimi_k3", "DeepseekVLHybridForConditionalGeneration", "deepseek_vl_hybrid",
    "MusicFlamingoForConditionalGeneration", "musicflamingo", "Blip2ForConditionalGeneration", "blip-2",
    "InstructBlipForConditionalGeneration", "instructblip", "InternS1ForConditionalGeneration", "interns1",
    "OpenCUAForConditionalGeneration", "opencua", "BeeForConditionalGeneration", "bee",
    "Eagle2_5_VLForConditionalGeneration", "eagle_2_5_vl", "MantisForConditionalGeneration", "mantis",
    "TarsierForConditionalGeneration", "tarsier", "JetVLMForConditionalGeneration", "jet_vlm",
    "GraniteSpeechPlusForConditionalGeneration", "granite_speech_plus", "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen2_5_omni_thinker", "Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe_thinker",
    "QianfanOCRForConditionalGeneration", "qianfan_ocr", "PPChart2TableForConditionalGeneration", "pp_chart2table",
    "RForConditionalGeneration", "MageVLForConditionalGeneration", "mage_vl", "HCXVisionV2ForCausalLM",
    "KananaVForConditionalGeneration", "MERaLiON2ForConditionalGeneration", "meralion2",
    "Glm46VForConditionalGeneration", "glm46v", "GlmgaForConditionalGeneration", "glmga",
    "InstructBlipVideoForConditionalGeneration", "instructblipvideo", "Apertus1p5ForConditionalGeneration",
    "apertus1p5", NULL};
static const char *const llm_classes[] = {
    "InternVLChatModel", "internvl_chat", "NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3",
    "nemotron_h_nano_omni", "Llama_Nemotron_Nano_VL", "H2OVLChatModel", "h2ovl_chat", "NVLM_D",
    "SkyworkR1VChatModel", "SkyworkChatModel", "skywork_chat", "Ovis", "ovis", "Ovis2_5", "ovis2_5",
    "Ovis2_6ForCausalLM", "ovis2_6", "Ovis2_6_MoeForCausalLM", "ovis2_6_moe", "LLMjpVLModel", "llmjpvl", NULL};
static const char *const language_classes[] = {"DeepseekVLV2ForCausalLM", "deepseek_vl_v2", NULL};
/* Janus and the first DeepSeek-VL, in the format of their own code, and the first HyperCLOVA X with vision. */
static const char *const modality_classes[] = {"MultiModalityCausalLM", "multi_modality", "HCXVisionForCausalLM",
                                               "hyperclovax_vlm", NULL};
/* Classes whose config.json is the language model's, with additions. */
static const char *const flat_classes[] = {
    "LlavaLlamaForCausalLM", "llava_llama", "LlavaMistralForCausalLM", "llava_mistral", "LlavaQwenForCausalLM",
    "llava_qwen", "LlavaQwen2ForCausalLM", "llava_qwen2", "llava-qwen2", "MobileLlamaForCausalLM", "mobilevlm",
    "BunnyLlamaForCausalLM", "bunny-llama", "BunnyQwenForCausalLM", "BunnyQwen2ForCausalLM", "bunny-qwen2",
    "BunnyPhi3ForCausalLM", "bunny-phi3", "Phi3VForCausalLM", "phi3_v", "GOTQwenForCausalLM", "GOT",
    "DotsOCRForCausalLM", "dots_ocr", "KeyeForConditionalGeneration", "Keye", "KeyeVL1_5ForConditionalGeneration",
    "KeyeVL1_5", "Videollama3Qwen2ForCausalLM", "videollama3_qwen2", "MiniCPMV", "minicpmv", "MiniCPMO", "minicpmo",
    "Phi4ForCausalLMV", "phi4-siglip", "YoutuVLForConditionalGeneration", "youtu_vl", NULL};
static const char *const omni_classes[] = {"Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration", "qwen2_5_omni",
                                           "Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe", NULL};

static const char *const step_classes[] = {"StepVLForConditionalGeneration", "step_robotics",
                                           "Step3p7ForConditionalGeneration", "step3p7", NULL};
static const char *const step3_classes[] = {"Step3VLForConditionalGeneration", "step3_vl", NULL};

static const char *const sarashina_classes[] = {"Sarashina2VisionForCausalLM", "sarashina2_vision", NULL};

/* Cosmos 3's folders may have tensors that generate images, sound and motion, also within the language model's
 * layers. */
static const char *const cosmos_classes[] = {"Cosmos3OmniForConditionalGeneration", "cosmos3_omni",
                                             "Cosmos3EdgeForConditionalGeneration", "cosmos3_edge", NULL};
static const char *const cosmos_makes[] = {
    "moe_gen", ".add_q_proj.", ".add_k_proj.", ".add_v_proj.", ".to_add_out.", ".norm_added_q.", ".norm_added_k.",
    ".k_norm_und_for_gen.", NULL};
static const char *const cosmos_ends[] = {"proj_in.", "proj_out.", "time_embedder.", "audio_proj_in.",
                                          "audio_proj_out.", "audio_modality_embed", "action_proj_in.",
                                          "action_proj_out.", "action_modality_embed", NULL};

static const struct pp_arch_wrapper wrappers[] = {
    {.classes = usual_classes, .keys = {"text_config"}},
    {.classes = llm_classes, .keys = {"llm_config"}},
    {.classes = step_classes, .keys = {"text_config"}, .rope_outside = true},
    {.classes = step3_classes, .keys = {"text_config"}},
    {.classes = cosmos_classes, .keys = {"text_config"}},
    {.classes = sarashina_classes, .keys = {"text_config"}, .own_norm = true},
    {.classes = omni_classes, .keys = {"thinker_config", "text_config"}},
    {.classes = language_classes, .keys = {"language_config"}, .fixes_type = true},
    {.classes = modality_classes, .keys = {"language_config"}},
    {.classes = flat_classes, .fixes_type = true},
};

/* The language model's model_type where its configuration lacks it: the default of the outer class in transformers, or
 * what its own code always uses. */
static const struct {
    const char *names[3], *model_type;
} inner[] = {
    {{"LlavaForConditionalGeneration", "llava"}, "llama"},
    {{"LlavaNextForConditionalGeneration", "llava_next"}, "llama"},
    {{"LlavaOnevisionForConditionalGeneration", "llava_onevision"}, "qwen2"},
    {{"FastVlmForConditionalGeneration", "fast_vlm"}, "qwen2"},
    {{"InternVLForConditionalGeneration", "internvl"}, "qwen2"},
    {{"Idefics3ForConditionalGeneration", "idefics3"}, "llama"},
    {{"SmolVLMForConditionalGeneration", "smolvlm"}, "llama"},
    {{"KimiVLForConditionalGeneration", "kimi_vl"}, "deepseek_v3"},
    {{"KimiK25ForConditionalGeneration", "kimi_k25"}, "deepseek_v3"},
    {{"KimiK3ForConditionalGeneration", "kimi_k3"}, "kimi_linear"},
    {{"LightOnOCRForConditionalGeneration", "LightOnOcrForConditionalGeneration", "lighton_ocr"}, "qwen3"},
    {{"AyaVisionForConditionalGeneration", "aya_vision"}, "cohere2"},
    {{"VoxtralForConditionalGeneration", "voxtral"}, "llama"},
    {{"Qwen2AudioForConditionalGeneration", "qwen2_audio"}, "qwen2"},
    {{"AudioFlamingo3ForConditionalGeneration", "audioflamingo3"}, "qwen2"},
    {{"AriaForConditionalGeneration", "aria"}, "aria_text"},
    {{"Emu3ForConditionalGeneration", "emu3"}, "emu3_text_model"},
    {{"VipLlavaForConditionalGeneration", "vipllava"}, "llama"},
    {{"VideoLlavaForConditionalGeneration", "video_llava"}, "llama"},
    {{"LlavaNextVideoForConditionalGeneration", "llava_next_video"}, "llama"},
    {{"GotOcr2ForConditionalGeneration", "got_ocr2"}, "qwen2"},
    {{"PPChart2TableForConditionalGeneration", "pp_chart2table"}, "qwen2"},
    {{"QianfanOCRForConditionalGeneration", "qianfan_ocr"}, "qwen3"},
    {{"Ovis2ForConditionalGeneration", "ovis2"}, "qwen2"},
    {{"PerceptionLMForConditionalGeneration", "perception_lm"}, "llama"},
    {{"JanusForConditionalGeneration", "janus"}, "llama"},
    {{"DeepseekVLForConditionalGeneration", "deepseek_vl"}, "llama"},
    {{"Idefics2ForConditionalGeneration", "idefics2"}, "mistral"},
    {{"VideoLlama3ForConditionalGeneration", "video_llama_3"}, "qwen2"},
    {{"GraniteSpeechForConditionalGeneration", "granite_speech"}, "granite"},
    {{"GraniteSpeechPlusForConditionalGeneration", "granite_speech_plus"}, "granite"},
    {{"Step3VLForConditionalGeneration", "step3_vl"}, "step3_text"},
    {{"NemotronH_Nano_VL_V2"}, "nemotron_h"},
    {{"Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration", "qwen2_5_omni"}, "qwen2_5_omni_text"},
    {{"Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe"}, "qwen3_omni_moe_text"},
    {{"DeepseekVLHybridForConditionalGeneration", "deepseek_vl_hybrid"}, "llama"},
    {{"MusicFlamingoForConditionalGeneration", "musicflamingo"}, "qwen2"},
    {{"Blip2ForConditionalGeneration", "blip-2"}, "opt"},
    {{"LlavaLlamaForCausalLM", "llava_llama"}, "llama"},
    {{"LlavaMistralForCausalLM", "llava_mistral"}, "mistral"},
    {{"LlavaQwenForCausalLM", "llava_qwen"}, "qwen2"},
    {{"LlavaQwen2ForCausalLM", "llava_qwen2", "llava-qwen2"}, "qwen2"},
    {{"MobileLlamaForCausalLM", "mobilevlm"}, "llama"},
    {{"BunnyLlamaForCausalLM", "bunny-llama"}, "llama"},
    {{"BunnyQwenForCausalLM", "BunnyQwen2ForCausalLM", "bunny-qwen2"}, "qwen2"},
    {{"BunnyPhi3ForCausalLM", "bunny-phi3"}, "phi3"},
    {{"Phi3VForCausalLM", "phi3_v"}, "phi3"},
    {{"GOTQwenForCausalLM", "GOT"}, "qwen2"},
    {{"DotsOCRForCausalLM", "dots_ocr"}, "qwen2"},
    {{"KeyeForConditionalGeneration", "Keye"}, "qwen3"},
    {{"KeyeVL1_5ForConditionalGeneration", "KeyeVL1_5"}, "qwen3"},
    {{"Videollama3Qwen2ForCausalLM", "videollama3_qwen2"}, "qwen2"},
    {{"Sarashina2VisionForCausalLM", "sarashina2_vision"}, "llama"},
    {{"Phi4ForCausalLMV", "phi4-siglip"}, "phi3"},
    {{"YoutuVLForConditionalGeneration", "youtu_vl"}, "youtu"},
    {{"JetVLMForConditionalGeneration", "jet_vlm"}, "jet_nemotron"},
    {{"Glm46VForConditionalGeneration", "glm46v"}, "glm4v_text"},
    {{"GlmgaForConditionalGeneration", "glmga"}, "glm4v_text"},
    {{"Cosmos3OmniForConditionalGeneration", "cosmos3_omni"}, "qwen3_vl_text"},
    {{"Cosmos3EdgeForConditionalGeneration", "cosmos3_edge"}, "cosmos3_edge_text"},
    {{"MageVLForConditionalGeneration", "mage_vl"}, "qwen3"},
    {{"MultiModalityCausalLM", "multi_modality"}, "llama"},
    {{"KananaVForConditionalGeneration"}, "llama"},
    {{"MERaLiON2ForConditionalGeneration", "meralion2"}, "gemma2"},
    {{"Apertus1p5ForConditionalGeneration", "apertus1p5"}, "apertus1p5_text"},
};

/* MiniCPM-V and MiniCPM-o: each version has a language model of another family; the first versions do not state it. */
static const char *minicpm_type(const cJSON *whole, bool hears)
{
    static const struct {
        double version;
        const char *of_v, *of_o;
    } known[] = {{2.0, "minicpm", NULL}, {2.5, "llama", NULL}, {2.6, "qwen2", "qwen2"}, {4.0, "llama", NULL},
                 {4.5, "qwen3", "qwen3"}};
    const cJSON *said = pp_json_member(whole, "version");
    const cJSON *width = pp_json_member(whole, "hidden_size"), *queries = pp_json_member(whole, "query_num");
    double version = cJSON_IsNumber(said) ? said->valuedouble : 0;
    if (cJSON_IsString(said))
        version = strtod(said->valuestring, NULL);
    if (!said && cJSON_IsNumber(width) && cJSON_IsNumber(queries))
        version = width->valuedouble == 2304.0 && queries->valuedouble == 64.0 ? 2.0 : 2.5;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].version == version)
            return hears ? known[i].of_o : known[i].of_v;
    return NULL;
}

const char *pp_wrapped_type(const struct pp_arch_wrapper *w, const cJSON *whole, const char *hf_class)
{
    const cJSON *own = pp_wrapped_config(w, whole);
    if (w->classes == language_classes) /* without latent attention it is like DeepSeek-OCR's */
        return cJSON_IsFalse(pp_json_member(own, "use_mla"))
                   ? "deepseek_ocr"
                   : cJSON_GetStringValue(pp_json_member(own, "model_type"));
    if (strcmp(hf_class, "MiniCPMV") == 0 || strcmp(hf_class, "minicpmv") == 0)
        return minicpm_type(whole, false);
    if (strcmp(hf_class, "MiniCPMO") == 0 || strcmp(hf_class, "minicpmo") == 0)
        return minicpm_type(whole, true);
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++)
        for (int k = 0; k < 3 && inner[i].names[k]; k++)
            if (strcmp(inner[i].names[k], hf_class) == 0)
                return inner[i].model_type;
    return NULL;
}

/* Prefixes of the language model's tensors, and what replaces them in the families' tables. */
static const char *const prefixes[][2] = {
    {"model.language_model.model.", "model."}, {"model.language_model.lm_head.", "lm_head."},
    {"model.language_model.", "model."}, {"language_model.", ""}, {"model.text_model.", "model."}, {"text_model.", ""},
    {"thinker.model.", "model."}, {"thinker.lm_head.", "lm_head."}, {"llm.", ""}, {"language.", ""},
    {"text_decoder.", ""},
};

static const char *const others[] = {
    "vision_tower.", "vision_model.", "multi_modal_projector.", "mm_projector.", "mlp1.", "audio_tower.",
    "image_newline", "model.vision_tower.", "model.vision_model.", "model.vision_encoder.", "model.vision_projection.",
    "model.connector.", "model.merger.", "model.multi_modal_projector.", "model.mm_projector.", "model.audio_tower.",
    "model.image_newline", "vit_large_projector.", "model.vit_large_projector.", "vit_downsampler", "thinker.visual.",
    "thinker.audio_tower.", "talker.", "token2wav.", "code2wav.", "vqmodel.", "model.vqmodel.", "video_tower.",
    "image_tower.", "model.video_tower.", "model.image_tower.", "visual_embeddings_table.",
    "model.visual_embeddings_table.", "model.projector.", "projector.", "encoder.", "aligner.", "model.aligner.",
    "gen_vision_model.", "gen_aligner.", "gen_head.", "gen_embed.", "vision_backbone.",
    "abstractor.", "speech_encoder.", "speech_audio_adapter.", "ln_speech.",
    "generation_embeddings.", "generation_aligner.", "generation_head.", "model.generation_embeddings.",
    "model.generation_aligner.", "model.generation_head.", "vision.", "view_seperator", "tile_indicators", "vpm.",
    "resampler.", "apm.", "tts.", "audio_projection_layer.", "audio_avg_pooler.", "model.vision_embed_tokens.",
    "visual_tokenizer.", "vte.", "visual.", "model.visual.", "mlp_AR.", "sound_encoder.", "sound_projection.",
    "qformer.", "query_tokens", "language_projection.", "model.vision_tower_high.", "model.mm_projector_vary.",
    "model.high_res_vision_model.", "model.high_res_vision_neck.", "model.high_res_vision_proj.",
    "model.high_res_vision_alpha", "model.vision_resampler.", "siglip2.", "merger.", "model.vision_tokenizer.",
    "model.audio_tokenizer.", "vision_tokenizer.", "audio_tokenizer.", NULL};

/* Defaults of transformers for keys that these families' own folders always have, but such parts may lack. */
static const struct {
    const char *model_type, *json;
} usual[] = {
    {"llama", "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 11008, \"num_hidden_layers\": 32,"
              "\"num_attention_heads\": 32, \"max_position_embeddings\": 2048}"},
    {"mllama_text_model", "{\"vocab_size\": 128256, \"hidden_size\": 4096, \"intermediate_size\": 14336,"
                          "\"num_hidden_layers\": 40, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
                          "\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000,"
                          "\"cross_attention_layers\": [3, 8, 13, 18, 23, 28, 33, 38]}"},
    {"mistral", "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 14336,"
                "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
                "\"max_position_embeddings\": 131072, \"sliding_window\": 4096}"},
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
        config = pp_json_member(config, w->keys[i]);
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

/* --- layers that attend to images --------------------------------------------------------------------------------- */

/* Llama 3.2 Vision (arXiv 2407.21783) has cross-attention layers among those of the language model. Without an image
 * they do nothing, and what is left is Llama. */

static enum pp_code fail_layers(struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "config.json: cross_attention_layers does not name some of the layers");
}

enum pp_code pp_wrapped_drop_layers(cJSON *config, bool left_out[PP_MAX_LAYERS], struct pp_error *err)
{
    static const char key[] = "cross_attention_layers";
    const char *type = cJSON_GetStringValue(pp_json_member(config, "model_type"));
    const cJSON *list = pp_json_member(config, key), *item;
    int64_t n = 0, n_left = 0;
    if (!type || strcmp(type, "mllama_text_model") != 0)
        return PP_OK;
    enum pp_code code = pp_config_int(config, "num_hidden_layers", &n, err);
    if (!code && (!cJSON_IsArray(list) || n < 1 || n > PP_MAX_LAYERS))
        code = fail_layers(err);
    cJSON_ArrayForEach(item, list)
    {
        const double l = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (code || !(l >= 0 && l < (double)n) || l != (double)(int)l || left_out[(int)l])
            return code ? code : fail_layers(err);
        left_out[(int)l] = true;
        n_left++;
    }
    if (code || n_left == 0 || n_left == n)
        return code ? code : fail_layers(err);
    pp_config_put(config, "num_hidden_layers", n - n_left);
    pp_config_put_class(config, "LlamaForCausalLM", "llama");
    cJSON_DeleteItemFromObjectCaseSensitive(config, key);
    return PP_OK;
}

bool pp_wrapped_renumber(const bool left_out[PP_MAX_LAYERS], const char *hf, struct pp_buf *name)
{
    static const char begin[] = "model.layers.";
    struct pp_buf own = {0};
    char *end;
    pp_wrapped_name(hf, &own);
    const char *plain = own.len ? pp_buf_cstr(&own) : hf;
    const long l = pp_name_begins(plain, begin) ? strtol(plain + strlen(begin), &end, 10) : -1;
    pp_buf_clear(name);
    if (l < 0 || l >= PP_MAX_LAYERS) {
        pp_buf_str(name, hf);
    } else if (!left_out[l]) {
        long before = 0;
        for (long i = 0; i < l; i++)
            before += left_out[i];
        pp_buf_fmt(name, "%s%ld%s", begin, l - before, end);
    }
    name->bad |= own.bad;
    pp_buf_free(&own);
    return l < 0 || l >= PP_MAX_LAYERS || !left_out[l];
}

bool pp_is_other_modality(const char *hf)
{
    for (const char *const *p = others; *p; p++)
        if (pp_name_begins(hf, *p))
            return true;
    return false;
}

bool pp_wrapped_other_modality(const struct pp_arch_wrapper *w, const char *hf)
{
    bool makes = false;
    for (int i = 0; w->classes == cosmos_classes && cosmos_makes[i]; i++)
        makes = makes || strstr(hf, cosmos_makes[i]);
    for (int i = 0; w->classes == cosmos_classes && cosmos_ends[i]; i++)
        makes = makes || pp_name_begins(hf, cosmos_ends[i]);
    return makes || (w->own_norm && pp_name_begins(hf, "norm."));
}
