/* hrm_text.c - HRM-Text (HRM-Text-1B, DFM Mimir): two stacks of Llama's layers, with norms without weights and gated
 * attention, that run in cycles, the low one several times, then the high one once; each run has keys and values of
 * its own (decoder.c). Our layers are those of the low stack, then those of the high one. Folders with prefix_lm,
 * whose prompts may be attended to in both directions, are run causally, as transformers does without token_type_ids,
 * and llama.cpp. Folders are only read. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define STACK(module, place)                                                                                         \
    {.hf = module "self_attn.q_proj", .gguf = "blk.{}.attn_q", .stack = place},                                      \
    {.hf = module "self_attn.k_proj", .gguf = "blk.{}.attn_k", .stack = place},                                      \
    {.hf = module "self_attn.v_proj", .gguf = "blk.{}.attn_v", .stack = place},                                      \
    {.hf = module "self_attn.gate_proj", .gguf = "blk.{}.attn_gate", .stack = place},                                \
    {.hf = module "self_attn.o_proj", .gguf = "blk.{}.attn_output", .stack = place},                                 \
    {.hf = module "attn.o_proj", .gguf = "blk.{}.attn_output", .stack = place, .read_only = true},                   \
    {.hf = module "self_attn.gqkv_proj", .gguf = "blk.{}.attn_qkv", .form = PP_HF_GATE_QKV, .stack = place,          \
     .read_only = true},                                                                                             \
    {.hf = module "attn.gqkv_proj", .gguf = "blk.{}.attn_qkv", .form = PP_HF_GATE_QKV, .stack = place,               \
     .read_only = true},                                                                                             \
    {.hf = module "mlp.gate_proj", .gguf = "blk.{}.ffn_gate", .stack = place},                                       \
    {.hf = module "mlp.up_proj", .gguf = "blk.{}.ffn_up", .stack = place},                                           \
    {.hf = module "mlp.gate_up_proj.weight", .gguf = "blk.{}.ffn_gate.weight", .second = "blk.{}.ffn_up.weight",     \
     .form = PP_HF_HALVES, .whole = true, .stack = place, .read_only = true},                                        \
    {.hf = module "mlp.down_proj", .gguf = "blk.{}.ffn_down", .stack = place}

static const struct pp_arch_name names[] = {
    {.hf = "model.embed_tokens", .gguf = "token_embd"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = "model.z_L_init", .gguf = "hrm.z_l_init", .whole = true},
    STACK("model.L_module.layers.{}.", PP_STACK_LOW),
    STACK("model.H_module.layers.{}.", PP_STACK_HIGH),
    {.hf = NULL},
};
static const char *const classes[] = {"HrmTextForCausalLM", "hrm_text", NULL};
static const char *const ignored[] = {".rotary_emb.inv_freq", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 151808, \"hidden_size\": 1536, \"intermediate_size\": 4096, \"num_hidden_layers\": 16,"
             "\"num_attention_heads\": 12, \"head_dim\": 128, \"max_position_embeddings\": 2048, \"H_cycles\": 2,"
             "\"L_cycles\": 3, \"initializer_range\": 0.02, \"prefix_lm\": true, \"rms_norm_eps\": 1e-6,"
             "\"rope_theta\": 10000}"},
    {.json = NULL},
};

/* n: the number of layers of each stack */
static enum pp_code finish(struct pp_hparams *hp, int64_t n, struct pp_error *err)
{
    enum pp_code code = pp_check_range("number of layers of a stack", n, 1, PP_MAX_LAYERS / 2, err);
    if (!code)
        code = pp_check_range("number of high cycles", hp->high_cycles, 1, PP_MAX_LAYERS, err);
    if (!code)
        code = pp_check_range("number of low cycles", hp->low_cycles, 1, PP_MAX_LAYERS, err);
    if (!code)
        code = pp_check_range("number of times that layers are gone through",
                              n * hp->high_cycles * (hp->low_cycles + 1), 1, PP_MAX_LAYERS, err);
    hp->n_layer = 2 * n;
    hp->no_output_norm = true; /* each run of a stack ends with one, the last run, too */
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = hp->n_layer, n_stack = 0;
    float range = 0.02f;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_int(config, "num_layers_per_stack", &n_stack, err);
    if (!code)
        code = pp_config_int(config, "H_cycles", &hp->high_cycles, err);
    if (!code)
        code = pp_config_int(config, "L_cycles", &hp->low_cycles, err);
    if (!code)
        code = pp_config_float(config, "initializer_range", &range, err);
    hp->embd_scale = 1 / range;
    if (!code)
        code = pp_config_float(config, "embedding_scale", &hp->embd_scale, err);
    if (!code && (pp_config_flag(config, "attention_bias", false) || pp_config_flag(config, "mlp_bias", false)))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: attention_bias or mlp_bias is true, which is not "
                       "supported for this family");
    hp->bidirectional_prefix = pp_config_flag(config, "prefix_lm", true);
    if (!code)
        code = finish(hp, n_stack ? n_stack : n, err);
    if (!code && n_stack && n != n_stack && n != n_stack * hp->high_cycles * (hp->low_cycles + 1))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: num_hidden_layers is %lld, which %lld layers in each stack do "
                       "not make", (long long)n, (long long)n_stack);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t n_slots = hp->n_layer;
    int64_t n = 0;
    if (!pp_gguf_int(g, "hrm_text.hrm.layers_per_stack", &n) || !pp_gguf_int(g, "hrm_text.hrm.h_cycles",
        &hp->high_cycles) || !pp_gguf_int(g, "hrm_text.hrm.l_cycles", &hp->low_cycles))
        return pp_fail(err, PP_ERR_FORMAT, "the file does not say hrm_text.hrm.layers_per_stack, hrm_text.hrm.h_cycles "
                       "and hrm_text.hrm.l_cycles");
    pp_gguf_bool(g, "hrm_text.hrm.prefix_lm", &hp->bidirectional_prefix);
    const enum pp_code code = finish(hp, n, err);
    if (!code && n_slots != n * hp->high_cycles * (hp->low_cycles + 1))
        return pp_fail(err, PP_ERR_FORMAT, "the file says hrm_text.block_count %lld, which its cycles do not make",
                       (long long)n_slots);
    return code;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, "hrm_text.hrm.layers_per_stack", (uint32_t)(hp->n_layer / 2));
    pp_gguf_add_u32(w, "hrm_text.hrm.h_cycles", (uint32_t)hp->high_cycles);
    pp_gguf_add_u32(w, "hrm_text.hrm.l_cycles", (uint32_t)hp->low_cycles);
    pp_gguf_add_bool(w, "hrm_text.hrm.prefix_lm", hp->bidirectional_prefix);
}

const struct pp_arch pp_arch_hrm_text = {
    .name = "hrm_text",
    .hf_classes = classes,
    .names = names,
    .ignored = ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.plain_norm = true, .gated_attention = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
};
