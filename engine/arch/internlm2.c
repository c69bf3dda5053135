/* internlm2.c - InternLM 2 and Baichuan: Llama whose folders have q, k and v in one matrix: of one head of k after the
 * other, or one behind the other. Baichuan 13B has ALiBi instead of rotated heads. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/hparams.h"

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)hp;
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static void internlm2_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp;
    cJSON_AddBoolToObject(config, "bias", false);
}

static const struct pp_arch_name internlm2_names[] = {
    {.hf = "model.tok_embeddings", .gguf = "token_embd"},
    {.hf = "model.norm", .gguf = "output_norm"},
    {.hf = "output", .gguf = "output"},
    {.hf = "model.layers.{}.attention_norm", .gguf = "blk.{}.attn_norm"},
    {.hf = "model.layers.{}.attention.wqkv", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_BY_GROUP},
    {.hf = "model.layers.{}.attention.wo", .gguf = "blk.{}.attn_output"},
    {.hf = "model.layers.{}.ffn_norm", .gguf = "blk.{}.ffn_norm"},
    {.hf = "model.layers.{}.feed_forward.w1", .gguf = "blk.{}.ffn_gate"},
    {.hf = "model.layers.{}.feed_forward.w2", .gguf = "blk.{}.ffn_down"},
    {.hf = "model.layers.{}.feed_forward.w3", .gguf = "blk.{}.ffn_up"},
    {.hf = NULL},
};
static const char *const internlm2_classes[] = {"InternLM2ForCausalLM", "internlm2", NULL};

const struct pp_arch pp_arch_internlm2 = {
    .name = "internlm2",
    .hf_classes = internlm2_classes,
    .names = internlm2_names,
    .more_names = pp_interleaved_names,
    .ignored = pp_common_ignored,
    .from_config = from_config,
    .to_config = internlm2_to_config,
};

/* --- Baichuan --------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name baichuan_names[] = {
    {.hf = "lm_head", .gguf = "output", .form = PP_HF_UNIT_ROWS},
    {.hf = "model.layers.{}.self_attn.W_pack", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_STACKED},
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = NULL},
};
static const char *const baichuan_classes[] = {"BaichuanForCausalLM", "BaiChuanForCausalLM", "baichuan", NULL};
static const struct pp_arch_usual baichuan_usual[] = {
    {.json = "{\"max_position_embeddings\": 4096}"},
    {.json = NULL},
};

/* The 13B has ALiBi, which nothing tells but the number of its layers. */
static void find_alibi(struct pp_hparams *hp)
{
    enum { LAYERS_13B = 40 };
    if (hp->n_layer == LAYERS_13B)
        hp->alibi = 8;
}

static enum pp_code baichuan_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum { FIRST_VOCAB = 64000 };
    enum pp_code code = from_config(config, hp, err);
    hp->unit_output = hp->n_vocab > FIRST_VOCAB; /* Baichuan 2 */
    find_alibi(hp);
    return code ? code : pp_config_int(config, "model_max_length", &hp->n_ctx_train, err);
}

static enum pp_code baichuan_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    find_alibi(hp);
    return PP_OK;
}

static void baichuan_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put(config, "model_max_length", hp->n_ctx_train);
}

const struct pp_arch pp_arch_baichuan = {
    .name = "baichuan",
    .hf_classes = baichuan_classes,
    .names = baichuan_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .usual = baichuan_usual,
    .from_config = baichuan_from_config,
    .from_gguf = baichuan_from_gguf,
    .to_config = baichuan_to_config,
};
