/* longcat.c - LongCat-Flash (arXiv 2509.01322): a layer has latent attention and a dense feed-forward part twice, and
 * in parallel with the first feed-forward part experts, some of which return their input; the experts' output is added
 * after the second. We count them as two layers, as do GGUF files. Queries and latent vectors are scaled by
 * sqrt(n_embd / rank). LongCat-Flash-Lite has n-gram embeddings as well (decoder_ngram.c). */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define LAYER "model.layers.{}."
#define BOTH(prefix, suffix, gguf_name)                                                                               \
    {.hf = LAYER prefix ".0" suffix, .gguf = "blk.{}." gguf_name, .half = 1},                                         \
    {.hf = LAYER prefix ".1" suffix, .gguf = "blk.{}." gguf_name, .half = 2}
#define BOTH_IN_MLX(prefix, suffix, gguf_name)                                                                        \
    {.hf = LAYER prefix ".0" suffix, .gguf = "blk.{}." gguf_name, .half = 1, .mlx = true},                            \
    {.hf = LAYER prefix ".1" suffix, .gguf = "blk.{}." gguf_name, .half = 2, .mlx = true}
#define EXPERTS(kind)                                                                                                 \
    {.hf = LAYER "mlp.experts.{}." kind "_proj", .gguf = "blk.{}.ffn_" kind ".{}", .half = 1},                        \
    {.hf = LAYER "mlp.switch_mlp." kind "_proj", .gguf = "blk.{}.ffn_" kind "_exps", .half = 1, .mlx = true}

static const struct pp_arch_name names[] = {
    {.hf = "model.ngram_embeddings.word_embeddings", .gguf = "token_embd", .mlx = true, .read_only = true},
    {.hf = "model.ngram_embeddings.embedders.{}", .gguf = "ngram_embd.{}"},
    {.hf = "model.ngram_embeddings.post_projs.{}", .gguf = "ngram_proj.{}"},
    {.hf = "model.embed_tokens", .gguf = "token_embd"},
    {.hf = "model.norm", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    BOTH("input_layernorm", "", "attn_norm"),
    BOTH("self_attn", ".q_proj", "attn_q"),
    BOTH("self_attn", ".q_a_proj", "attn_q_a"),
    BOTH("self_attn", ".q_a_layernorm", "attn_q_a_norm"),
    BOTH("self_attn", ".q_b_proj", "attn_q_b"),
    BOTH("self_attn", ".kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    BOTH("self_attn", ".kv_a_layernorm", "attn_kv_a_norm"),
    BOTH("self_attn", ".kv_b_proj", "attn_kv_b"),
    BOTH_IN_MLX("self_attn", ".embed_q", "attn_k_b"),
    BOTH_IN_MLX("self_attn", ".unembed_out", "attn_v_b"),
    BOTH("self_attn", ".o_proj", "attn_output"),
    BOTH("post_attention_layernorm", "", "ffn_norm"),
    BOTH("mlps", ".gate_proj", "ffn_gate"),
    BOTH("mlps", ".up_proj", "ffn_up"),
    BOTH("mlps", ".down_proj", "ffn_down"),
    {.hf = LAYER "mlp.router.e_score_correction_bias", .gguf = "blk.{}.exp_probs_b.bias", .whole = true, .half = 1},
    {.hf = LAYER "mlp.router.classifier", .gguf = "blk.{}.ffn_gate_inp", .half = 1},
    EXPERTS("gate"),
    EXPERTS("up"),
    EXPERTS("down"),
    {.hf = NULL},
};
static const char *const classes[] = {"LongcatFlashForCausalLM", "longcat_flash", "LongcatFlashNgramForCausalLM",
                                      "longcat_flash_ngram", NULL};
static const char *const other_parts[] = {"model.mtp.", NULL}; /* multi-token prediction */
static const struct pp_arch_parts parts = {.model_type = "longcat_flash", .prefixes = NULL, .others = other_parts};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 131072, \"hidden_size\": 6144, \"ffn_hidden_size\": 12288, \"num_layers\": 28,"
             "\"num_attention_heads\": 64, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5,"
             "\"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64,"
             "\"v_head_dim\": 128, \"moe_topk\": 12, \"n_routed_experts\": 512, \"zero_expert_num\": 256,"
             "\"expert_ffn_hidden_size\": 2048, \"routed_scaling_factor\": 6.0,"
             "\"rope_theta\": 10000000.0}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {.n = "n_routed_experts", .n_used = "moe_topk",
                                                  .n_ff = "expert_ffn_hidden_size", .norm_topk = "norm_topk_prob",
                                                  .scale = "routed_scaling_factor"};

static float plain_attn_scale(const struct pp_hparams *hp)
{
    return 1.0f / sqrtf((float)(hp->qk_nope_dim + hp->rope_dim));
}

static float yarn_attn_scale(const struct pp_hparams *hp)
{
    return plain_attn_scale(hp) * pp_latent_yarn_growth(hp);
}

/* The scale of a vector of so many values: sqrt(n_embd / rank). */
static float rank_scale(const struct pp_hparams *hp, int64_t rank)
{
    return sqrtf((float)hp->n_embd / (float)rank);
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

static enum pp_code refuse_others(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    static const char idle[] = "zero_expert_type";
    const char *type = cJSON_GetStringValue(pp_json_member(config, idle));
    if (type && strcmp(type, "identity") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s \"%.40s\" is not supported; identity is", idle, type);
    if (pp_config_flag(config, "router_bias", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: router_bias is true, which is not supported");
    if (hp->rope_scaling != PP_ROPE_NONE && hp->rope_scaling != PP_ROPE_YARN)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "RoPE scaling other than YaRN is not supported in models of this "
                       "family");
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

/* eos_token_id may be a list, of which the first counts. */
static enum pp_code read_end(const cJSON *item, int64_t *end, struct pp_error *err)
{
    const cJSON *one = cJSON_IsArray(item) ? cJSON_GetArrayItem(item, 0) : item;
    if (!item || cJSON_IsNull(item))
        return PP_OK;
    if (!cJSON_IsNumber(one) || one->valuedouble != (double)one->valueint || one->valueint < 0)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: eos_token_id is neither a token nor a list that begins with "
                                           "one");
    *end = one->valueint;
    return PP_OK;
}

static enum pp_code ngrams_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *end = pp_json_member(config, "eos_token_id");
    int64_t ratio = 0;
    if (!pp_arch_is_kind(config, "longcat_flash_ngram", "LongcatFlashNgramForCausalLM"))
        return PP_OK;
    hp->ngram.end = 2;
    enum pp_code code = pp_config_int(config, "emb_neighbor_num", &hp->ngram.size, err);
    if (!code)
        code = pp_config_int(config, "emb_split_num", &hp->ngram.splits, err);
    if (!code)
        code = pp_config_int(config, "ngram_vocab_size_ratio", &ratio, err);
    if (!code)
        code = pp_check_range("ratio of embeddings of several tokens to tokens", ratio, 1, 1 << 12, err);
    if (!code)
        code = pp_check_range("number of tokens", hp->n_vocab, 1, 1 << 24, err);
    if (!code)
        code = read_end(end, &hp->ngram.end, err);
    if (code)
        return code;
    if (hp->ngram.size < 2 || hp->ngram.splits < 1)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: emb_neighbor_num must be 2 at least, and emb_split_num 1");
    hp->ngram.base = ratio * hp->n_vocab;
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = refuse_others(config, hp, err);
    if (!code)
        code = pp_check_range("number of layers", hp->n_layer, 1, PP_MAX_LAYERS / 2, err);
    if (!code)
        code = pp_latent_from_config(config, hp, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_int(config, "zero_expert_num", &hp->n_expert_idle, err);
    if (!code)
        code = pp_latent_yarn_from_config(config, hp, err);
    if (!code)
        code = ngrams_from_config(config, hp, err);
    if (code)
        return code;
    hp->n_layer *= 2;
    for (int64_t l = 1; l < hp->n_layer; l += 2)
        hp->layer[l] |= PP_LAYER_DENSE;
    hp->dense_parallel = true;
    hp->attn_scale = yarn_attn_scale(hp);
    if (hp->q_lora_rank > 0 && pp_config_flag(config, "mla_scale_q_lora", true))
        hp->attn_scale *= rank_scale(hp, hp->q_lora_rank);
    if (pp_config_flag(config, "mla_scale_kv_lora", true))
        hp->latent_scale = rank_scale(hp, hp->kv_lora_rank);
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_latent_to_config(hp, config);
    pp_latent_yarn_to_config(hp, config);
    pp_config_put(config, "num_layers", hp->n_layer / 2);
    pp_config_put(config, "ffn_hidden_size", hp->n_ff);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put(config, "zero_expert_num", hp->n_expert_idle);
    pp_config_put_text(config, "zero_expert_type", "identity");
    pp_config_put_text(config, "attention_method", "MLA");
    cJSON_AddBoolToObject(config, "mla_scale_q_lora", fabsf(hp->attn_scale / yarn_attn_scale(hp) - 1) > 1e-4f);
    cJSON_AddBoolToObject(config, "mla_scale_kv_lora", hp->latent_scale != 0.0f);
    if (!hp->ngram.size)
        return;
    pp_config_put_class(config, classes[2], classes[3]);
    pp_config_put(config, "emb_neighbor_num", hp->ngram.size);
    pp_config_put(config, "emb_split_num", hp->ngram.splits);
    pp_config_put(config, "ngram_vocab_size_ratio", hp->ngram.base / hp->n_vocab);
    pp_config_put(config, "eos_token_id", hp->ngram.end);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

static const char idle_key[] = "longcat_flash.expert_zero_count", q_key[] = "longcat_flash.attention.q_lora_scale",
                  kv_key[] = "longcat_flash.attention.kv_lora_scale", size_key[] = "longcat_flash.ngram.size",
                  splits_key[] = "longcat_flash.ngram.split_count", base_key[] = "longcat_flash.ngram.table_length",
                  end_key[] = "longcat_flash.ngram.end_token_id",
                  yarn_key[] = "longcat_flash.rope.scaling.yarn_log_multiplier";

/* Checks that a scale is either 1 or the one that config.json's flag stands for. */
static enum pp_code check_growth(const char *key, double v, double grown, struct pp_error *err)
{
    if (v == 1 || fabs(v - grown) <= 1e-4 * grown)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the metadata's %s is %g; it must be 1, or what follows from the sizes, %g",
                   key, v, grown);
}

/* The tables' size, which config.json has as a multiple of the vocabulary's. */
static enum pp_code ngrams_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    if (!pp_gguf_int(g, size_key, &hp->ngram.size))
        return PP_OK;
    pp_gguf_int(g, splits_key, &hp->ngram.splits);
    pp_gguf_int(g, base_key, &hp->ngram.base);
    pp_gguf_int(g, end_key, &hp->ngram.end);
    if (hp->ngram.size < 2 || hp->n_vocab < 1 || hp->ngram.base < 1 || hp->ngram.base % hp->n_vocab)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata's %s is %lld and %s %lld; they must be 2 at least, and a "
                       "multiple of the vocabulary", size_key, (long long)hp->ngram.size, base_key,
                       (long long)hp->ngram.base);
    return PP_OK;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double q = 1, kv = 0, log_multiplier = 0;
    if (!hp->kv_lora_rank || !hp->n_expert)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks longcat_flash.attention.kv_lora_rank or "
                       "longcat_flash.expert_count");
    if (hp->n_layer % 2)
        return pp_fail(err, PP_ERR_FORMAT, "the model has %lld layers; the number must be even",
                       (long long)hp->n_layer);
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (!(hp->layer[l] & PP_LAYER_DENSE) != (l % 2 == 0))
            return pp_fail(err, PP_ERR_FORMAT, "layer %lld %s experts; the first of each two must have them, the "
                           "second not", (long long)l, l % 2 ? "has" : "has no");
    pp_gguf_int(g, idle_key, &hp->n_expert_idle);
    pp_gguf_float(g, q_key, &q);
    pp_gguf_float(g, kv_key, &kv);
    pp_gguf_float(g, yarn_key, &log_multiplier);
    hp->yarn_log_multiplier = (float)log_multiplier;
    hp->rope_attn_factor = hp->rope_scaling == PP_ROPE_YARN ? 1.0f : 0.0f;
    hp->attn_scale = (float)q * yarn_attn_scale(hp);
    hp->latent_scale = kv == 1 ? 0 : (float)kv; /* 0 stands for 1 */
    const double q_growth = hp->q_lora_rank > 0 ? (double)rank_scale(hp, hp->q_lora_rank) : 1;
    enum pp_code code = ngrams_from_gguf(g, hp, err);
    if (!code)
        code = check_growth(q_key, q, q_growth, err);
    return code || kv == 0 ? code : check_growth(kv_key, kv, (double)rank_scale(hp, hp->kv_lora_rank), err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, idle_key, (uint32_t)hp->n_expert_idle);
    pp_gguf_add_f32(w, q_key, hp->attn_scale / yarn_attn_scale(hp));
    if (hp->rope_scaling == PP_ROPE_YARN)
        pp_gguf_add_f32(w, yarn_key, hp->yarn_log_multiplier);
    if (hp->ngram.size) {
        pp_gguf_add_u32(w, size_key, (uint32_t)hp->ngram.size);
        pp_gguf_add_u32(w, splits_key, (uint32_t)hp->ngram.splits);
        pp_gguf_add_u32(w, base_key, (uint32_t)hp->ngram.base);
        pp_gguf_add_u32(w, end_key, (uint32_t)hp->ngram.end);
    }
    if (hp->latent_scale != 0.0f)
        pp_gguf_add_f32(w, kv_key, hp->latent_scale);
}

const struct pp_arch pp_arch_longcat_flash = {
    .name = "longcat_flash",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .parts = &parts,
    .hf_pairs = true,
    .gguf_default_no_renorm = true,
    .decoder = {.shortcut = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
