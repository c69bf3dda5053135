/* qwen2.c - Qwen 1.5, 2 and 2.5: Llama with biases of q, k and v. Of Qwen 2 VL and 2.5 VL the part that reads and
 * writes text: they rotate by three numbers, which are one for text. */
#include "engine/arch/families.h"
#include "engine/hparams.h"

static const char *const other_names[] = {"qwen2vl", "qwen25vl", NULL}; /* the latter is ollama's */
static const char *const classes[] = {
    "Qwen2ForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "qwen2", "qwen2_vl",
    "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "qwen2", .prefixes = pp_qwen_prefixes, .others = pp_qwen_others};

static enum pp_code from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    return code ? code : pp_config_qwen_window(config, hp, err);
}

static const struct pp_arch_usual usual[] = {
    {.json = "{\"num_key_value_heads\": 32, \"max_position_embeddings\": 32768}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_qwen2 = {
    .name = "qwen2",
    .other_names = other_names,
    .hf_classes = classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .from_config = from_config,
    .usual = usual,
    .parts = &parts,
    .to_config = pp_config_put_qwen_window,
};
