/* test_seeing.c - models whose text is one part of several: those that see or hear, and wrapped ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>

#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/safetensors.h"
#include "engine/text.h"
#include "engine/train.h"
#include "engine/types.h"
#include "tests/decoder_checks.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* --- models that see, too ----------------------------------------------------------------------------------------- */

static void add_json(struct pp_buf *b, const char *name, const struct pp_tensor *t, size_t at, bool first)
{
    pp_buf_fmt(b, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", first ? "" : ",", name,
               t->type == PP_TYPE_BF16 ? "BF16" : "F32");
    for (int d = t->n_dims - 1; d >= 0; d--)
        pp_buf_fmt(b, "%lld%s", (long long)t->ne[d], d ? "," : "");
    pp_buf_fmt(b, "],\"data_offsets\":[%zu,%zu]}", at, at + t->size);
}

/* A Gemma 3 folder as vision models have it: the names of the language part have a prefix, and there are tensors of
 * other parts. */
static void write_seeing(const char *dir, const char *family, const char *prefix, const char *eyes)
{
    struct pp_safetensors *from;
    struct pp_buf head = {0}, all = {0}, name = {0};
    struct pp_error err;
    char path[700];
    size_t at = 0;
    const struct pp_tensor other = {.type = PP_TYPE_F32, .n_dims = 1, .ne = {2, 1, 1, 1}, .size = 8};
    snprintf(path, sizeof path, "%s/model.safetensors", architecture(family));
    assert_ok(pp_safetensors_open(path, &from, &err), err);
    pp_buf_char(&head, '{');
    for (size_t i = 0; i < pp_safetensors_n(from); i++) {
        const struct pp_tensor *t = pp_safetensors_at(from, i);
        pp_buf_clear(&name);
        const bool inside = strncmp(t->name, "model.", strlen("model.")) == 0;
        pp_buf_fmt(&name, "%s%s", inside ? prefix : "", t->name + (inside ? strlen("model.") : 0));
        add_json(&head, pp_buf_cstr(&name), t, at, i == 0);
        at += t->size;
    }
    add_json(&head, eyes, &other, at, false);
    pp_buf_char(&head, '}');
    while (head.len % 8)
        pp_buf_char(&head, ' ');
    const uint64_t n = head.len;
    pp_buf_add(&all, &n, sizeof n);
    pp_buf_add(&all, head.data, head.len);
    for (size_t i = 0; i < pp_safetensors_n(from); i++)
        pp_buf_add(&all, pp_safetensors_at(from, i)->data, pp_safetensors_at(from, i)->size);
    pp_buf_add(&all, "\0\0\0\0\0\0\0", 8);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_write_file(path, all.data, all.len, 0600, &err), err);
    pp_safetensors_close(from);
    pp_buf_free(&head);
    pp_buf_free(&all);
    pp_buf_free(&name);
}

static void seeing_models(void **state)
{
    static const char *const prefixes[] = {"language_model.model.", "model.language_model."};
    static const char config[] =
        "{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"model_type\": \"gemma3\", \"text_config\": {"
        "\"vocab_size\": 512, \"hidden_size\": 64, \"intermediate_size\": 160, \"num_hidden_layers\": 7, "
        "\"head_dim\": 32, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"query_pre_attn_scalar\": 32, \"sliding_window\": 8}}";
    struct pp_source *text;
    struct pp_error err;
    (void)state;
    assert_ok(pp_source_open(architecture("gemma3"), &text, &err), err);
    for (int i = 0; i < 2; i++) {
        char dir[300], path[600];
        struct pp_source *s;
        snprintf(dir, sizeof dir, "%s/seeing-%d", test_tmpdir(), i);
        assert_int_equal(mkdir(dir, 0700), 0);
        write_seeing(dir, "gemma3", prefixes[i], "vision_tower.vision_model.post_layernorm.bias");
        snprintf(path, sizeof path, "%s/config.json", dir);
        assert_ok(pp_write_file(path, config, sizeof config - 1, 0600, &err), err);
        assert_ok(pp_source_open(dir, &s, &err), err);
        const struct pp_hparams *a = pp_source_hparams(s), *b = pp_source_hparams(text);
        assert_true(a->rope_base == b->rope_base && a->rope_base_local == b->rope_base_local &&
                    a->window == b->window && a->norm_eps == b->norm_eps && a->attn_scale == b->attn_scale);
        assert_memory_equal(a->layer, b->layer, sizeof a->layer);
        assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(text));
        for (size_t t = 0; t < pp_source_n_tensors(text); t++) {
            const struct pp_tensor *x = pp_source_tensor_at(text, t), *y = pp_source_tensor(s, x->name);
            assert_non_null(y);
            assert_memory_equal(x->data, y->data, x->size);
        }
        pp_source_close(s);
    }
    pp_source_close(text);
}

/* Qwen's vision models: the configuration of the language model is a part of config.json, or all of it. */
static void seeing_qwen(void **state)
{
    static const struct {
        const char *family, *hf_class, *type, *text_type, *prefix, *eyes, *rope;
    } cases[] = {
        {"qwen3", "Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3_vl_text", "model.language_model.",
         "model.visual.merger.norm.bias",
         "{\"rope_type\": \"default\", \"mrope_interleaved\": true, \"mrope_section\": [4, 2, 2]}"},
        {"qwen3moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", "qwen3_vl_moe_text", "model.language_model.",
         "model.visual.merger.norm.bias",
         "{\"rope_type\": \"default\", \"mrope_interleaved\": true, \"mrope_section\": [4, 2, 2]}"},
        {"qwen2", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", NULL, "model.", "visual.merger.ln_q.bias",
         "{\"type\": \"mrope\", \"mrope_section\": [4, 2, 2]}"},
        {"qwen2", "Qwen2VLForConditionalGeneration", "qwen2_vl", "qwen2_vl_text", "model.language_model.",
         "model.visual.merger.ln_q.bias", "{\"rope_type\": \"mrope\", \"mrope_section\": [4, 2, 2]}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[300], path[600], *text;
        struct pp_source *plain, *s;
        struct pp_error err;
        size_t n;
        snprintf(path, sizeof path, "%s/config.json", architecture(cases[i].family));
        assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
        cJSON *own = cJSON_Parse(text), *config = cases[i].text_type ? cJSON_CreateObject() : own;
        pp_free(text);
        cJSON_DeleteItemFromObject(own, "model_type");
        cJSON_DeleteItemFromObject(own, "architectures");
        cJSON *parameters = cJSON_DetachItemFromObject(own, "rope_parameters"); /* these models' config.json has the
                                                                                   older keys */
        cJSON_AddItemToObject(own, "rope_theta", cJSON_DetachItemFromObject(parameters, "rope_theta"));
        cJSON_AddItemToObject(own, "rope_scaling", cJSON_Parse(cases[i].rope));
        cJSON_Delete(parameters);
        if (cases[i].text_type) {
            cJSON_AddStringToObject(own, "model_type", cases[i].text_type);
            cJSON_AddItemToObject(config, "text_config", own);
        }
        cJSON_AddStringToObject(config, "model_type", cases[i].type);
        cJSON_AddItemToObject(config, "architectures", cJSON_CreateStringArray(&cases[i].hf_class, 1));
        snprintf(dir, sizeof dir, "%s/seeing-qwen-%zu", test_tmpdir(), i);
        assert_int_equal(mkdir(dir, 0700), 0);
        write_seeing(dir, cases[i].family, cases[i].prefix, cases[i].eyes);
        snprintf(path, sizeof path, "%s/config.json", dir);
        text = cJSON_PrintUnformatted(config);
        assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
        cJSON_free(text);
        cJSON_Delete(config);
        assert_ok(pp_source_open(architecture(cases[i].family), &plain, &err), err);
        assert_ok(pp_source_open(dir, &s, &err), err);
        assert_string_equal(pp_source_hparams(s)->arch, cases[i].family);
        assert_true(pp_source_hparams(s)->rope_scaling == PP_ROPE_NONE &&
                    pp_source_hparams(s)->rope_base == pp_source_hparams(plain)->rope_base);
        assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(plain));
        for (size_t t = 0; t < pp_source_n_tensors(plain); t++)
            assert_non_null(pp_source_tensor(s, pp_source_tensor_at(plain, t)->name));
        pp_source_close(plain);
        pp_source_close(s);
    }
}

/* Puts a folder's configuration into others, as their text parts, one within the other; tie_word_embeddings stays with
 * the outermost. unsaid: without the text part's family. */
static void write_wrapped(const char *dir, const char *family, const char *hf_class, const char *const keys[2],
                          bool unsaid)
{
    char path[600], *text;
    struct pp_error err;
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", architecture(family));
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    cJSON *config = cJSON_Parse(text), *tie = cJSON_DetachItemFromObject(config, "tie_word_embeddings");
    pp_free(text);
    cJSON_AddNumberToObject(config, "num_nextn_predict_layers", 1);
    if (unsaid) {
        cJSON_DeleteItemFromObject(config, "model_type");
        cJSON_DeleteItemFromObject(config, "architectures");
    }
    for (int i = 1; i >= 0; i--)
        if (keys[i]) {
            cJSON *around = cJSON_CreateObject();
            cJSON_AddItemToObject(around, keys[i], config);
            config = around;
        }
    cJSON_AddItemToObject(config, "architectures", cJSON_CreateStringArray(&hf_class, 1));
    cJSON_AddItemToObject(config, "tie_word_embeddings", tie);
    cJSON_AddNumberToObject(config, "query_num", 96); /* as in MiniCPM-V, where this value means version 2.5 */
    text = cJSON_PrintUnformatted(config);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    cJSON_Delete(config);
}

/* Models that see or hear, wrapped around a text model of any family: they convert to a folder of that family. */
static void wrapped_models(void **state)
{
    static const struct {
        const char *family, *hf_class, *keys[2], *prefix, *other;
        bool unsaid;
    } cases[] = {
        {"llama", "LlavaForConditionalGeneration", {"text_config"}, "language_model.model.",
         "vision_tower.vision_model.post_layernorm.bias", false},
        {"llama", "LlavaNextForConditionalGeneration", {"text_config"}, "language_model.model.",
         "vision_tower.vision_model.post_layernorm.bias", true},
        {"qwen2", "InternVLForConditionalGeneration", {"text_config"}, "language_model.model.",
         "vision_tower.a.bias", true},
        {"qwen2", "InternVLChatModel", {"llm_config"}, "language_model.model.", "mlp1.1.bias", false},
        {"qwen3", "LightOnOCRForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.vision_projection.norm.bias", true},
        {"llama", "KimiVLForConditionalGeneration", {"text_config"}, "language_model.model.",
         "language_model.model.layers.2.eh_proj.bias", false},
        {"llama", "SmolVLMForConditionalGeneration", {"text_config"}, "model.text_model.",
         "model.connector.modality_projection.proj.bias", true},
        {"qwen3", "StepVLForConditionalGeneration", {"text_config"}, "model.", "vit_large_projector.bias", false},
        {"qwen3", "StepVLForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.vit_large_projector.bias", false},
        {"llama", "Emu3ForConditionalGeneration", {"text_config"}, "text_model.model.",
         "model.vqmodel.encoder.norm_out.bias", true},
        {"llama", "Emu3ForConditionalGeneration", {"text_config"}, "model.text_model.", "model.vqmodel.a.bias", false},
        {"llama", "VideoLlavaForConditionalGeneration", {"text_config"}, "language_model.model.", "image_tower.a.bias",
         true},
        {"llama", "JanusForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.generation_head.proj_out.bias", true},
        {"llama", "Idefics2ForConditionalGeneration", {"text_config"}, "model.text_model.", "model.connector.a.bias",
         true},
        {"llama", "PerceptionLMForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.multi_modal_projector.a.bias", true},
        {"llama", "DeepseekVLForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.aligner.linear1.bias", true},
        {"qwen2", "GotOcr2ForConditionalGeneration", {"text_config"}, "language_model.model.",
         "multi_modal_projector.conv1.bias", true},
        {"qwen2", "Ovis2ForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.visual_embeddings_table.weight", true},
        {"qwen2", "VideoLlama3ForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.projector.a.bias", true},
        {"granite", "GraniteSpeechForConditionalGeneration", {"text_config"}, "language_model.model.",
         "encoder.input_linear.bias", true},
        {"qwen3moe", "Qwen3OmniMoeForConditionalGeneration", {"thinker_config", "text_config"}, "thinker.model.",
         "talker.codec_head.bias", true},
        {"qwen3", "Ovis2_5", {"llm_config"}, "llm.model.", "visual_tokenizer.vit.a.bias", false},
        {"qwen3", "Ovis2_6ForCausalLM", {"llm_config"}, "llm.model.", "visual_tokenizer.vit.a.bias", false},
        {"qwen3", "QianfanOCRForConditionalGeneration", {"text_config"}, "language_model.model.", "mlp1.1.bias", true},
        {"qwen3", "RForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.multi_modal_projector.pre_norm.bias", false},
        {"qwen3", "MageVLForConditionalGeneration", {"text_config"}, "model.language_model.", "model.visual.a.bias",
         true},
        {"qwen3", "Cosmos3OmniForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.language_model.layers.0.mlp_moe_gen.up_proj.weight", true},
        {"qwen3", "Cosmos3OmniForConditionalGeneration", {"text_config"}, "model.language_model.",
         "audio_modality_embed", false},
        {"llama", "HCXVisionV2ForCausalLM", {"text_config"}, "model.language_model.model.",
         "model.mm_projector.0.bias", false},
        {"llama", "LLMjpVLModel", {"llm_config"}, "language_model.model.", "vision_backbone.a.bias", false},
        {"llama", "MultiModalityCausalLM", {"language_config"}, "language_model.model.", "gen_vision_model.a.bias",
         true},
        {"llama", "HCXVisionForCausalLM", {"language_config"}, "language_model.model.", "image_newline", false},
        {"llama", "KananaVForConditionalGeneration", {"text_config"}, "language_model.model.", "abstractor.a.bias",
         true},
        {"gemma2", "MERaLiON2ForConditionalGeneration", {"text_config"}, "text_decoder.model.", "ln_speech.bias", true},
        {"qwen2", "LlavaQwenForCausalLM", {NULL}, "model.", "model.mm_projector.0.bias", true},
        {"phi3", "Phi3VForCausalLM", {NULL}, "model.", "model.vision_embed_tokens.glb_GN", true},
        {"phi3", "Phi4ForCausalLMV", {NULL}, "model.", "model.vision_tower.vision_tower.a.bias", true},
        {"llama", "Sarashina2VisionForCausalLM", {"text_config"}, "llm.model.", "norm.weight", true},
        {"llama", "MiniCPMV", {NULL}, "llm.model.", "resampler.ln_q.bias", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_source *plain, *s;
        struct pp_error err;
        char dir[300];
        snprintf(dir, sizeof dir, "%s/wrapped-%zu", test_tmpdir(), i);
        const char *paths[] = {dir, fresh_path("unwrapped")};
        assert_int_equal(mkdir(dir, 0700), 0);
        write_seeing(dir, cases[i].family, cases[i].prefix, cases[i].other);
        write_wrapped(dir, cases[i].family, cases[i].hf_class, cases[i].keys, cases[i].unsaid);
        assert_ok(pp_source_open(architecture(cases[i].family), &plain, &err), err);
        assert_ok(pp_convert_to_folder(dir, paths[1], &(struct pp_convert_options){0}, &err), err);
        for (int k = 0; k < 2; k++) {
            assert_ok(pp_source_open(paths[k], &s, &err), err);
            assert_string_equal(pp_source_hparams(s)->arch, cases[i].family);
            assert_int_equal(pp_source_is_wrapped(s), k == 0);
            assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(plain));
            for (size_t t = 0; t < pp_source_n_tensors(plain); t++) {
                const struct pp_tensor *x = pp_source_tensor_at(plain, t), *y = pp_source_tensor(s, x->name);
                assert_non_null(y);
                if (!x->rows)
                    assert_memory_equal(x->data, y->data, x->size);
            }
            const cJSON *tie = cJSON_GetObjectItem(pp_source_config(s), "tie_word_embeddings");
            assert_true(k == 0 || cJSON_IsTrue(tie) == !pp_source_tensor(plain, "output.weight"));
            pp_source_close(s);
        }
        pp_source_close(plain);
    }
}

/* The tiny Phi 3 as Phi 4 multimodal has it, the tiny Qwen 2 as MiMo, and the tiny Llama as Yi's first folders: names
 * end otherwise, there are LoRAs and other parts, and the class is another. */
static void other_classes(void **state)
{
    enum { MOST = 200, MORE = 3 };
    static const float zeros[4];
    static const struct {
        const char *family, *hf_class, *type, *more[MORE];
        bool based, numbered;
    } cases[] = {
        {"phi3", "Phi4MMForCausalLM", "phi4mm",
         {"model.layers.0.self_attn.qkv_proj.lora_A.vision.weight", "model.layers.0.mlp.down_proj.lora_B.speech.weight",
          "model.embed_tokens_extend.image_embed.glb_GN"}, true, false},
        {"phi3", "Phi4MultimodalForCausalLM", "phi4_multimodal",
         {"model.embed_tokens_extend.image_embed.a.bias", "model.embed_tokens_extend.audio_embed.a.bias",
          "model.embed_tokens_extend.audio_embed.b.bias"}, false, false},
        {"qwen2", "MiMoForCausalLM", "mimo",
         {"model.mtp_layers.0.input_proj.weight", "model.mtp_layers.0.mlp.up_proj.weight",
          "model.mtp_layers.0.final_layernorm.weight"}, false, false},
        {"llama", "AquilaForCausalLM", "aquila", {NULL}, false, false},
        {"llama", "YiForCausalLM", "Yi", {NULL}, false, true},
        {"qwen3moe", "SomeMoeForCausalLM", "enggpt_moe", {NULL}, false, false},
        {"llama", "PeftModelForCausalLM", "llama", {NULL}, false, false}, /* a class of the program that trained it */
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct pp_tensor t[MOST];
        char names[MOST][96], dir[300], path[700], *text;
        struct pp_source *plain, *s;
        struct pp_safetensors *from;
        struct pp_error err;
        size_t n = 0, size;
        snprintf(path, sizeof path, "%s/model.safetensors", architecture(cases[c].family));
        assert_ok(pp_safetensors_open(path, &from, &err), err);
        for (size_t i = 0; i < pp_safetensors_n(from); i++, n++) {
            t[n] = *pp_safetensors_at(from, i);
            const char *end = strstr(t[n].name, "_proj.weight");
            if (end && cases[c].based)
                snprintf(names[n], sizeof names[n], "%.*s_proj.base_layer.weight", (int)(end - t[n].name), t[n].name);
            else if (cases[c].numbered && (end = strstr(t[n].name, "input_layernorm.weight")))
                snprintf(names[n], sizeof names[n], "%.*sln1.weight", (int)(end - t[n].name), t[n].name);
            else if (cases[c].numbered && (end = strstr(t[n].name, "post_attention_layernorm.weight")))
                snprintf(names[n], sizeof names[n], "%.*sln2.weight", (int)(end - t[n].name), t[n].name);
            else
                snprintf(names[n], sizeof names[n], "%s", t[n].name);
        }
        for (int i = 0; i < MORE && cases[c].more[i]; i++, n++) {
            t[n] = (struct pp_tensor){.type = PP_TYPE_F32, .n_dims = 2, .ne = {2, 2, 1, 1}, .size = sizeof zeros,
                                      .data = zeros};
            snprintf(names[n], sizeof names[n], "%s", cases[c].more[i]);
        }
        for (size_t i = 0; i < n; i++)
            t[i].name = names[i];
        snprintf(dir, sizeof dir, "%s/other-class-%zu", test_tmpdir(), c);
        assert_int_equal(mkdir(dir, 0700), 0);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        assert_ok(pp_safetensors_write(path, t, n, &err), err);
        snprintf(path, sizeof path, "%s/config.json", architecture(cases[c].family));
        assert_ok(pp_read_file(path, 1 << 20, &text, &size, &err), err);
        cJSON *config = cJSON_Parse(text);
        pp_free(text);
        cJSON_DeleteItemFromObject(config, "architectures");
        cJSON_DeleteItemFromObject(config, "model_type");
        cJSON_AddStringToObject(config, "model_type", cases[c].type);
        cJSON_AddItemToObject(config, "architectures", cJSON_CreateStringArray(&cases[c].hf_class, 1));
        text = cJSON_PrintUnformatted(config);
        snprintf(path, sizeof path, "%s/config.json", dir);
        assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
        cJSON_free(text);
        cJSON_Delete(config);
        assert_ok(pp_source_open(architecture(cases[c].family), &plain, &err), err);
        assert_ok(pp_source_open(dir, &s, &err), err);
        assert_string_equal(pp_source_hparams(s)->arch, cases[c].family);
        assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(plain));
        for (size_t i = 0; i < pp_source_n_tensors(plain); i++) {
            const struct pp_tensor *x = pp_source_tensor_at(plain, i), *y = pp_source_tensor(s, x->name);
            assert_non_null(y);
            if (!x->rows)
                assert_memory_equal(x->data, y->data, x->size);
        }
        pp_source_close(s);
        pp_source_close(plain);
        pp_safetensors_close(from);
    }
}

/* A layer's fused projection in BF16: the rows of the named tensors, concatenated into `room`. */
static struct pp_tensor joined(const struct pp_safetensors *from, int layer, const char *const names[3], uint16_t *room)
{
    struct pp_tensor all = {.type = PP_TYPE_BF16, .data = room};
    for (int i = 0; i < 3 && names[i]; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, names[i]);
        const struct pp_tensor *t = pp_safetensors_find(from, name);
        assert_non_null(t);
        memcpy((char *)room + all.size, t->data, t->size);
        const int last = t->n_dims - 1;
        const int64_t rows = all.n_dims ? all.ne[last] : 0;
        all.n_dims = t->n_dims;
        memcpy(all.ne, t->ne, sizeof all.ne);
        all.ne[last] += rows;
        all.size += t->size;
    }
    return all;
}

/* The tiny Qwen 2 and Qwen 3 in the form of Molmo and Molmo 2: they and the files made of them compute the same
 * bits. */
static void molmo(void **state)
{
    enum { MOST = 64, ROOM = 1 << 17, PARTS = 9 };
    static const struct {
        const char *names[3], *first, *second; /* the names in the first and in the second Molmo; NULL: it does not have
                                                  this tensor */
    } parts[PARTS] = {
        {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
         "att_proj.weight", "self_attn.att_proj.weight"},
        {{"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}, "att_proj.bias", NULL},
        {{"mlp.up_proj.weight", "mlp.gate_proj.weight"}, "ff_proj.weight", "mlp.ff_proj.weight"},
        {{"mlp.down_proj.weight"}, "ff_out.weight", "mlp.ff_out.weight"},
        {{"self_attn.o_proj.weight"}, "attn_out.weight", "self_attn.attn_out.weight"},
        {{"input_layernorm.weight"}, "attn_norm.weight", "attn_norm.weight"},
        {{"post_attention_layernorm.weight"}, "ff_norm.weight", "ff_norm.weight"},
        {{"self_attn.q_norm.weight"}, NULL, "self_attn.q_norm.weight"},
        {{"self_attn.k_norm.weight"}, NULL, "self_attn.k_norm.weight"},
    };
    static const char *const families[] = {"qwen2", "qwen3"}, *const configs[] = {
        "{\"architectures\": [\"MolmoForCausalLM\"], \"model_type\": \"molmo\", \"hidden_size\": 64, "
        "\"intermediate_size\": 320, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"vocab_size\": 512, \"embedding_size\": 512, \"layer_norm_eps\": 1e-6, "
        "\"rope_theta\": 1000000.0, \"qkv_bias\": true, \"norm_after\": false, \"layer_norm_type\": \"rms\", "
        "\"max_position_embeddings\": 256}",
        "{\"architectures\": [\"Molmo2ForConditionalGeneration\"], \"model_type\": \"molmo2\", \"text_config\": {"
        "\"model_type\": \"molmo2_text\", \"hidden_size\": 64, \"intermediate_size\": 160, \"head_dim\": 32, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 512, "
        "\"layer_norm_eps\": 1e-6, \"rope_theta\": 1000000.0, \"qkv_bias\": false, \"use_qk_norm\": true, "
        "\"qk_norm_type\": \"qwen3\", \"norm_after\": false, \"max_position_embeddings\": 256}}"};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (int second = 0; second < 2; second++) {
        struct pp_tensor t[MOST];
        char names[MOST][96], dir[300], path[700];
        uint16_t *room = pp_malloc(2 * ROOM), *at = room;
        struct pp_safetensors *from;
        struct pp_error err;
        size_t n = 0, n_logits;
        snprintf(path, sizeof path, "%s/model.safetensors", architecture(families[second]));
        assert_ok(pp_safetensors_open(path, &from, &err), err);
        const struct pp_tensor *embeddings = pp_safetensors_find(from, "model.embed_tokens.weight");
        const struct pp_tensor *output = pp_safetensors_find(from, "lm_head.weight"); /* Qwen 3's output matrix is the
                                                                                         embeddings */
        const struct pp_tensor *whole[] = {embeddings, pp_safetensors_find(from, "model.norm.weight"),
                                           output ? output : embeddings, embeddings};
        const char *const called[] = {"model.transformer.wte.embedding", "model.transformer.ln_f.weight",
                                      second ? "lm_head.weight" : "model.transformer.ff_out.weight",
                                      "model.transformer.wte.new_embedding"};
        for (; n < 4; n++) {
            t[n] = *whole[n];
            snprintf(names[n], sizeof names[n], "%s", called[n]);
        }
        for (int i = 0; i < 2 * PARTS; i++) {
            const char *name = second ? parts[i / 2].second : parts[i / 2].first;
            if (!name)
                continue;
            t[n] = joined(from, i % 2, parts[i / 2].names, at);
            at += t[n].size / 2;
            snprintf(names[n++], sizeof names[0], "model.transformer.blocks.%d.%s", i % 2, name);
        }
        assert_true(at <= room + ROOM);
        for (size_t i = 0; i < n; i++)
            t[i].name = names[i];
        snprintf(dir, sizeof dir, "%s/molmo-%d", test_tmpdir(), second);
        assert_int_equal(mkdir(dir, 0700), 0);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        assert_ok(pp_safetensors_write(path, t, n, &err), err);
        snprintf(path, sizeof path, "%s/config.json", dir);
        assert_ok(pp_write_file(path, configs[second], strlen(configs[second]), 0600, &err), err);
        pp_safetensors_close(from);
        pp_free(room);
        float *want = small_logits(architecture(families[second]), PP_KV_F32, &n_logits);
        const char *made[] = {dir, fresh_path("molmo.gguf"), fresh_path("molmo-folder")};
        assert_ok(pp_convert_to_gguf(dir, made[1], &(struct pp_convert_options){0}, &err), err);
        assert_ok(pp_convert_to_folder(dir, made[2], &(struct pp_convert_options){0}, &err), err);
        for (int i = 0; i < 3; i++) {
            float *logits = small_logits(made[i], PP_KV_F32, &n);
            assert_int_equal(n, n_logits);
            assert_memory_equal(logits, want, n * sizeof *logits);
            pp_free(logits);
        }
        assert_config(made[2], "architectures", second ? "Qwen3ForCausalLM" : "Qwen2ForCausalLM");
        pp_free(want);
    }
}

/* Llama 3.2 Vision around the tiny Llama: layers 1 and 3 cross-attend to pictures, and embeddings have additional rows
 * after the vocabulary. */
static void write_mllama(const char *dir, const char *layers)
{
    enum { MOST = 200, BEHIND = 8 };
    static const float zeros[4096];
    static const char *const of_pictures[] = {
        "language_model.model.layers.1.cross_attn.q_proj.weight", "language_model.model.layers.3.mlp.up_proj.weight",
        "language_model.model.layers.3.cross_attn_attn_gate", "vision_model.class_embedding"};
    struct pp_tensor t[MOST];
    char names[MOST][96], path[700], *text;
    struct pp_safetensors *from;
    struct pp_error err;
    size_t n = 0, size;
    snprintf(path, sizeof path, "%s/model.safetensors", architecture("llama"));
    assert_ok(pp_safetensors_open(path, &from, &err), err);
    uint8_t *embedding = NULL;
    for (size_t i = 0; i < pp_safetensors_n(from); i++, n++) {
        static const char layer[] = "model.layers.";
        char *end;
        t[n] = *pp_safetensors_at(from, i);
        snprintf(names[n], sizeof names[n], "language_model.%s", t[n].name);
        if (strncmp(t[n].name, layer, strlen(layer)) == 0) {
            const long l = strtol(t[n].name + strlen(layer), &end, 10);
            snprintf(names[n], sizeof names[n], "language_model.%s%ld%s", layer, l == 0 ? 0 : l == 1 ? 2 : l + 2, end);
        } else if (strstr(t[n].name, "embed_tokens")) {
            const size_t behind = t[n].size / (size_t)t[n].ne[1] * BEHIND;
            assert_non_null(embedding = pp_calloc(1, t[n].size + behind));
            memcpy(embedding, t[n].data, t[n].size);
            t[n].data = embedding;
            t[n].size += behind;
            t[n].ne[1] += BEHIND;
        }
        t[n].name = names[n];
    }
    for (size_t i = 0; i < sizeof of_pictures / sizeof *of_pictures; i++)
        t[n++] = (struct pp_tensor){.name = of_pictures[i], .type = PP_TYPE_F32, .n_dims = 1, .ne = {16, 1, 1, 1},
                                    .data = zeros, .size = 64};
    assert_true(n <= MOST);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, t, n, &err), err);
    pp_safetensors_close(from);
    pp_free(embedding);
    snprintf(path, sizeof path, "%s/config.json", architecture("llama"));
    assert_ok(pp_read_file(path, 1 << 20, &text, &size, &err), err);
    cJSON *own = cJSON_Parse(text), *config = cJSON_CreateObject();
    pp_free(text);
    const int n_layer = cJSON_GetObjectItem(own, "num_hidden_layers")->valueint;
    cJSON_ReplaceItemInObject(own, "num_hidden_layers", cJSON_CreateNumber(n_layer + 2));
    cJSON_ReplaceItemInObject(own, "model_type", cJSON_CreateString("mllama_text_model"));
    cJSON_AddItemToObject(own, "cross_attention_layers", cJSON_CreateRaw(layers));
    cJSON_AddItemToObject(config, "text_config", own);
    cJSON_AddStringToObject(config, "model_type", "mllama");
    text = cJSON_PrintUnformatted(config);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    cJSON_Delete(config);
}

/* The vocabulary has a token for pictures whose embedding is left out: files have as many tokens as rows, as other
 * programs expect. */
static void tokens_as_rows(const char *dir)
{
    static const char image[] = "<|image|>";
    const char *file = fresh_path("mllama.gguf");
    const struct pp_tensor *rows;
    struct pp_tokenizer *t;
    struct pp_gguf *g;
    struct pp_error err;
    char path[700], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/tokenizer.json", architecture("llama"));
    assert_ok(pp_read_file(path, 1 << 20, &text, &size, &err), err);
    cJSON *json = cJSON_Parse(text), *token = cJSON_CreateObject();
    pp_free(text);
    cJSON_AddNumberToObject(token, "id", cJSON_GetArraySize(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "model"),
                                                                                "vocab")));
    cJSON_AddStringToObject(token, "content", image);
    cJSON_AddTrueToObject(token, "special");
    cJSON_AddItemToArray(cJSON_GetObjectItem(json, "added_tokens"), token);
    text = cJSON_PrintUnformatted(json);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    cJSON_Delete(json);
    assert_ok(pp_convert_to_gguf(dir, file, &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_gguf_open(file, &g, &err), err);
    assert_non_null(rows = pp_gguf_tensor(g, "token_embd.weight"));
    assert_ok(pp_tokenizer_open(file, &t, &err), err);
    assert_int_equal(pp_tokenizer_n(t), rows->ne[1]);
    assert_int_equal(pp_tokenizer_find(t, image, strlen(image)), -1);
    pp_tokenizer_free(t);
    pp_gguf_close(g);
}

/* Adapters of such models count the omitted layers, too: none is trained, and none is converted. */
static void adapters_are_refused(const struct pp_model *m, const char *dir)
{
    const struct pp_train_options train = pp_train_options_default();
    const struct pp_convert_options base = {.base = dir};
    const char *file = fresh_path("of-mllama.gguf");
    struct pp_trainer *t;
    struct pp_error err;
    char adapter[600];
    assert_int_equal(pp_trainer_new(m, NULL, NULL, &train, &t, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "vision layers"));
    snprintf(adapter, sizeof adapter, "%s/lora-alpha", architecture("llama"));
    assert_int_equal(pp_convert_to_gguf(adapter, file, &base, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "vision layers"));
    snprintf(adapter, sizeof adapter, "%s/lora-alpha.gguf", architecture("llama"));
    assert_int_equal(pp_convert_to_peft(adapter, fresh_path("of-mllama"), &base, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "vision layers"));
}

/* Without the layers for pictures it is the Llama that it was made from, with its layers numbered from 0 without
 * gaps. */
static void layers_for_pictures(void **state)
{
    static const char *const wrong[] = {"[1, 1]", "[3, 99]", "[-1]", "[]", "\"some\"", "[0.5]"};
    struct pp_source *plain, *s;
    struct pp_error err;
    char dir[300];
    (void)state;
    snprintf(dir, sizeof dir, "%s/mllama", test_tmpdir());
    const char *paths[] = {dir, fresh_path("llama-in-mllama")};
    assert_int_equal(mkdir(dir, 0700), 0);
    write_mllama(dir, "[3, 1]");
    assert_ok(pp_source_open(architecture("llama"), &plain, &err), err);
    assert_ok(pp_convert_to_folder(dir, paths[1], &(struct pp_convert_options){0}, &err), err);
    for (int k = 0; k < 2; k++) {
        assert_ok(pp_source_open(paths[k], &s, &err), err);
        assert_string_equal(pp_source_hparams(s)->arch, "llama");
        assert_int_equal(pp_source_hparams(s)->n_layer, pp_source_hparams(plain)->n_layer);
        assert_int_equal(pp_source_drops_layers(s), k == 0);
        assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(plain));
        for (size_t t = 0; t < pp_source_n_tensors(plain); t++) {
            const struct pp_tensor *x = pp_source_tensor_at(plain, t), *y = pp_source_tensor(s, x->name);
            assert_non_null(y);
            assert_memory_equal(x->ne, y->ne, sizeof x->ne);
            if (!x->rows)
                assert_memory_equal(x->data, y->data, x->size);
        }
        pp_source_close(s);
    }
    pp_source_close(plain);
    struct pp_model *m;
    struct pp_adapter *a;
    assert_ok(pp_model_open(dir, &m, &err), err);
    assert_int_equal(pp_adapter_load(m, "adapter", &a, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "vision layers"));
    adapters_are_refused(m, dir);
    pp_model_close(m);
    tokens_as_rows(dir);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_mllama(dir, wrong[i]);
        assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "cross_attention_layers"));
    }
}

/* A folder's config.json without the keys that name its family, to be the text part of another. */
static cJSON *text_part(const char *from)
{
    char path[700], *text;
    size_t size;
    struct pp_error err;
    snprintf(path, sizeof path, "%s/config.json", from);
    assert_ok(pp_read_file(path, 1 << 20, &text, &size, &err), err);
    cJSON *own = cJSON_Parse(text);
    pp_free(text);
    cJSON_DeleteItemFromObject(own, "architectures");
    cJSON_DeleteItemFromObject(own, "model_type");
    return own;
}

/* Writes config.json of that family around the text part, which it frees. */
static void write_text_part(const char *dir, cJSON *own, const char *model_type)
{
    char path[700];
    struct pp_error err;
    cJSON *config = cJSON_CreateObject();
    cJSON_AddItemToObject(config, "text_config", own);
    cJSON_AddItemToObject(config, "tie_word_embeddings", cJSON_CreateFalse());
    cJSON_AddStringToObject(config, "model_type", model_type);
    char *text = cJSON_PrintUnformatted(config);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    cJSON_Delete(config);
}

/* Apertus 1.5 around a small Apertus. Its output matrix lacks rows for the tokens of pictures and sound, or has all;
 * head: the value in config.json that says which. */
static void write_apertus(const char *from, const char *dir, const char *head)
{
    enum { MOST = 100, BEHIND = 5 };
    static const float zeros[16];
    static const char *const others[] = {"model.vision_tokenizer.quantize.embedding.weight",
                                         "model.audio_tokenizer.feature_extractor.a.bias"};
    struct pp_tensor t[MOST];
    char names[MOST][96], path[700];
    struct pp_safetensors *plain;
    struct pp_error err;
    size_t n = 0;
    uint8_t *embedding = NULL;
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    assert_ok(pp_safetensors_open(path, &plain, &err), err);
    for (size_t i = 0; i < pp_safetensors_n(plain); i++, n++) {
        t[n] = *pp_safetensors_at(plain, i);
        const bool inside = strncmp(t[n].name, "model.", strlen("model.")) == 0;
        snprintf(names[n], sizeof names[n], "%s%s", inside ? "model.language_model." : "",
                 t[n].name + (inside ? strlen("model.") : 0));
        if (strstr(t[n].name, "embed_tokens")) {
            const size_t behind = t[n].size / (size_t)t[n].ne[1] * BEHIND;
            assert_non_null(embedding = pp_calloc(1, t[n].size + behind));
            memcpy(embedding, t[n].data, t[n].size);
            t[n].data = embedding;
            t[n].size += behind;
            t[n].ne[1] += BEHIND;
        }
        t[n].name = names[n];
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        t[n++] = (struct pp_tensor){.name = others[i], .type = PP_TYPE_F32, .n_dims = 1, .ne = {16, 1, 1, 1},
                                    .data = zeros, .size = sizeof zeros};
    assert_true(n <= MOST);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, t, n, &err), err);
    pp_safetensors_close(plain);
    pp_free(embedding);
    cJSON *own = text_part(from), *all = cJSON_GetObjectItem(own, "vocab_size");
    cJSON_SetNumberValue(all, all->valuedouble + BEHIND);
    cJSON_AddItemToObject(own, "output_vocab_size", cJSON_CreateRaw(head));
    write_text_part(dir, own, "apertus1p5");
}

/* Without its other parts it is the Apertus that it was made from, and so is what is converted from the folder. */
static void seeing_apertus(void **state)
{
    static const char *const wrong[] = {"0", "-1", "1e9", "\"some\"", "0.5"};
    (void)state;
    const struct decoder_shape shape = decoder_shape("apertus");
    const char *from = check_decoder(&shape);
    struct pp_source *plain, *s;
    struct pp_error err;
    char dir[300], head[32];
    snprintf(dir, sizeof dir, "%s/apertus-that-sees", test_tmpdir());
    const char *paths[] = {dir, fresh_path("apertus-in-it")};
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(head, sizeof head, "%d", (int)shape.n_vocab);
    write_apertus(from, dir, head);
    assert_ok(pp_source_open(from, &plain, &err), err);
    assert_ok(pp_convert_to_folder(dir, paths[1], &(struct pp_convert_options){0}, &err), err);
    for (int k = 0; k < 2; k++) {
        assert_ok(pp_source_open(paths[k], &s, &err), err);
        const struct pp_hparams *a = pp_source_hparams(s), *b = pp_source_hparams(plain);
        assert_string_equal(a->arch, "apertus");
        assert_true(a->n_vocab == b->n_vocab && a->n_ctx_train == b->n_ctx_train && a->rope_base == b->rope_base &&
                    a->rope_scaling == b->rope_scaling && a->norm_eps == b->norm_eps);
        assert_int_equal(pp_source_is_wrapped(s), k == 0);
        assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(plain));
        for (size_t i = 0; i < pp_source_n_tensors(plain); i++) {
            const struct pp_tensor *x = pp_source_tensor_at(plain, i), *y = pp_source_tensor(s, x->name);
            assert_non_null(y);
            assert_memory_equal(x->ne, y->ne, sizeof x->ne);
            if (!x->rows)
                assert_memory_equal(x->data, y->data, x->size);
        }
        pp_source_close(s);
    }
    pp_source_close(plain);
    check_other(&shape, dir);
    write_apertus(from, dir, "null"); /* the output would have to be as long as the vocabulary then */
    struct pp_model *m;
    assert_int_equal(pp_model_open(dir, &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "output.weight"));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_apertus(from, dir, wrong[i]);
        assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "output_vocab_size"));
    }
}

/* Cosmos 3 Edge around a small Arcee: two of its matrices have other names, and there are tensors for making pictures,
 * inside layers and outside. */
static void write_cosmos(const char *from, const char *dir)
{
    enum { MOST = 100 };
    static const float zeros[16];
    static const char *const others[] = {
        "model.visual.a.bias", "model.projector.fc1.weight", "proj_in.weight", "time_embedder.linear_1.bias",
        "action_modality_embed", "model.language_model.layers.0.mlp_moe_gen.fc1.weight",
        "model.language_model.layers.1.self_attn.add_q_proj.weight", "model.language_model.norm_moe_gen.weight",
        "model.language_model.layers.1.self_attn.k_norm_und_for_gen.weight"};
    struct pp_tensor t[MOST];
    char names[MOST][96], path[700];
    struct pp_safetensors *plain;
    struct pp_error err;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    assert_ok(pp_safetensors_open(path, &plain, &err), err);
    for (; n < pp_safetensors_n(plain); n++) {
        t[n] = *pp_safetensors_at(plain, n);
        const char *rest = strncmp(t[n].name, "model.", strlen("model.")) == 0 ? t[n].name + strlen("model.") : NULL;
        const char *up = strstr(t[n].name, "up_proj"), *down = strstr(t[n].name, "down_proj");
        const int kept = (int)((up ? up : down ? down : t[n].name + strlen(t[n].name)) - (rest ? rest : t[n].name));
        snprintf(names[n], sizeof names[n], "%s%.*s%s", rest ? "model.language_model." : "", kept,
                 rest ? rest : t[n].name, up ? "fc1.weight" : down ? "fc2.weight" : "");
        t[n].name = names[n];
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        t[n++] = (struct pp_tensor){.name = others[i], .type = PP_TYPE_F32, .n_dims = 1, .ne = {16, 1, 1, 1},
                                    .data = zeros, .size = sizeof zeros};
    assert_true(n <= MOST);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, t, n, &err), err);
    pp_safetensors_close(plain);
    cJSON *own = text_part(from);
    write_text_part(dir, own, "cosmos3_edge");
}

static void seeing_cosmos(void **state)
{
    (void)state;
    const struct decoder_shape shape = decoder_shape("arcee");
    const char *from = check_decoder(&shape);
    struct pp_error err;
    char dir[300];
    snprintf(dir, sizeof dir, "%s/cosmos-edge", test_tmpdir());
    const char *made[] = {dir, fresh_path("cosmos.gguf"), fresh_path("cosmos-folder")};
    assert_int_equal(mkdir(dir, 0700), 0);
    write_cosmos(from, dir);
    assert_ok(pp_convert_to_gguf(dir, made[1], &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_convert_to_folder(dir, made[2], &(struct pp_convert_options){0}, &err), err);
    for (int i = 0; i < 3; i++)
        check_other(&shape, made[i]);
    assert_config(made[2], "architectures", "ArceeForCausalLM");
}

/* Names of the output matrix, which lies next to the language model's tensors or among them. */
static void wrapped_names(void **state)
{
    static const char *const outputs[] = {"lm_head.weight", "language_model.lm_head.weight", "thinker.lm_head.weight",
                                          "model.language_model.lm_head.weight", "text_decoder.lm_head.weight"};
    struct pp_buf name = {0};
    (void)state;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        assert_int_equal(pp_arch_gguf_name(pp_arch_by_name("llama"), outputs[i], &name, NULL), PP_NAME_FOUND);
        assert_string_equal(pp_buf_cstr(&name), "output.weight");
    }
    pp_buf_free(&name);
}

/* Wrapped models are refused if the family of the text part is unknown or not named, or if a tensor is unknown. */
static void badly_wrapped(void **state)
{
    static const char *const keys[] = {"text_config", NULL}, *const names[] = {"vision_tower.a.bias", "eyes.bias"};
    static const char unknown[] = "{\"architectures\": [\"LlavaForConditionalGeneration\"], \"text_config\": "
                                  "{\"model_type\": \"tomorrow\"}}";
    static const char unsaid[] = "{\"architectures\": [\"InternVLChatModel\"], \"llm_config\": {}}";
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    for (int i = 0; i < 2; i++) {
        char dir[300], path[400];
        snprintf(dir, sizeof dir, "%s/badly-wrapped-%d", test_tmpdir(), i);
        assert_int_equal(mkdir(dir, 0700), 0);
        write_seeing(dir, "llama", "language_model.model.", names[i]);
        write_wrapped(dir, "llama", "LlavaForConditionalGeneration", keys, false);
        snprintf(path, sizeof path, "%s/config.json", dir);
        if (i == 0)
            assert_ok(pp_write_file(path, unknown, strlen(unknown), 0600, &err), err);
        assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, i ? "eyes.bias" : "\"tomorrow\""));
        assert_ok(pp_write_file(path, unsaid, strlen(unsaid), 0600, &err), err);
        assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "does not name the model family"));
    }
}

/* Moondream's name for one of Phi's tensors; false: q, k and v are one matrix there, and this is k or v. */
static bool moondream_name(const char *phi, char *out, size_t size)
{
    static const char *const names[][2] = {
        {"input_layernorm.", "ln."}, {"self_attn.q_proj.", "mixer.Wqkv."}, {"self_attn.dense.", "mixer.out_proj."},
        {"mlp.", "mlp."}};
    int l, at = 0;
    if (sscanf(phi, "model.layers.%d.%n", &l, &at) == 1 && at > 0) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            const size_t n = strlen(names[i][0]);
            if (strncmp(phi + at, names[i][0], n) == 0) {
                snprintf(out, size, "text_model.transformer.h.%d.%s%s", l, names[i][1], phi + at + n);
                return true;
            }
        }
        return false;
    }
    if (strcmp(phi, "model.embed_tokens.weight") == 0)
        snprintf(out, size, "text_model.transformer.embd.wte.weight");
    else
        snprintf(out, size, "text_model.lm_head.%s%s", strncmp(phi, "lm_head.", 8) == 0 ? "linear." : "ln.",
                 strrchr(phi, '.') + 1);
    return true;
}

/* Moondream in the form that contained Phi's first program: one matrix for queries, keys and values, and other
 * names. */
static void moondream(void **state)
{
    static char names[64][96];
    char dir[300], path[600], part[96], *text;
    struct pp_safetensors *from;
    struct pp_tensor list[64];
    struct pp_buf joined[64] = {{0}};
    struct pp_error err;
    size_t n = 0, size, n_plain, n_seeing;
    (void)state;
    snprintf(dir, sizeof dir, "%s/moondream", test_tmpdir());
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", architecture("phi2"));
    assert_ok(pp_safetensors_open(path, &from, &err), err);
    for (size_t i = 0; i < pp_safetensors_n(from); i++) {
        const struct pp_tensor *t = pp_safetensors_at(from, i);
        const char *q = strstr(t->name, ".q_proj.");
        if (!moondream_name(t->name, names[n], sizeof names[n]))
            continue;
        list[n] = *t;
        list[n].name = names[n];
        for (int k = 0; q && k < 3; k++) {
            snprintf(part, sizeof part, "%.*s.%c_proj.%s", (int)(q - t->name), t->name, "qkv"[k], q + 8);
            const struct pp_tensor *one = pp_safetensors_find(from, part);
            assert_non_null(one);
            pp_buf_add(&joined[n], one->data, one->size);
        }
        if (q) {
            list[n].ne[list[n].n_dims - 1] *= 3;
            list[n].data = joined[n].data;
            list[n].size = joined[n].len;
        }
        n++;
    }
    list[n] = (struct pp_tensor){.name = "vision_encoder.projection.mlp.fc1.bias", .type = PP_TYPE_F32, .n_dims = 1,
                                 .ne = {2, 1, 1, 1}, .size = 8, .data = "\0\0\0\0\0\0\0"};
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, n + 1, &err), err);
    snprintf(path, sizeof path, "%s/config.json", architecture("phi2"));
    assert_ok(pp_read_file(path, 1 << 20, &text, &size, &err), err);
    cJSON *config = cJSON_CreateObject(), *own = cJSON_Parse(text);
    pp_free(text);
    cJSON_DeleteItemFromObject(own, "architectures");
    cJSON_AddItemToObject(config, "architectures", cJSON_Parse("[\"Moondream\"]"));
    cJSON_AddStringToObject(config, "model_type", "moondream1");
    cJSON_AddItemToObject(config, "text_config", own);
    text = cJSON_PrintUnformatted(config);
    cJSON_Delete(config);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    float *plain = small_logits(architecture("phi2"), PP_KV_F32, &n_plain);
    float *seeing = small_logits(dir, PP_KV_F32, &n_seeing);
    assert_int_equal(n_plain, n_seeing);
    assert_memory_equal(plain, seeing, n_plain * sizeof *plain);
    pp_free(plain);
    pp_free(seeing);
    for (size_t i = 0; i < 64; i++)
        pp_buf_free(&joined[i]);
    pp_safetensors_close(from);
}

TEST_GROUP(seeing)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeing_models),
        cmocka_unit_test(seeing_qwen),
        cmocka_unit_test(wrapped_models),
        cmocka_unit_test(badly_wrapped),
        cmocka_unit_test(other_classes),
        cmocka_unit_test(layers_for_pictures),
        cmocka_unit_test(seeing_apertus),
        cmocka_unit_test(seeing_cosmos),
        cmocka_unit_test(wrapped_names),
        cmocka_unit_test(molmo),
        cmocka_unit_test(moondream),
    };
    return cmocka_run_group_tests_name("seeing", tests, NULL, NULL);
}
