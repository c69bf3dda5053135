/* bert.c - encoders with post-norms: BERT and RoBERTa with learned positions (BGE, MiniLM, E5 ...), Nomic's with RoPE,
 * Jina's with ALiBi. arXiv 1810.04805, 1907.11692, 2402.01613, 2310.19923.
 *
 * Metadata: NAME.attention.causal (false), NAME.pooling_type, tokenizer.ggml.token_type_count. RoBERTa's positions are
 * counted from the padding token's number + 1; its GGUF files leave out the rows before that. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

/* Old exporters' names of a norm's weight and bias. */
#define NORM(hf_name, gguf_name)                                                                                       \
    {.hf = hf_name, .gguf = gguf_name},                                                                                \
    {.hf = hf_name ".gamma", .gguf = gguf_name ".weight", .whole = true},                                              \
    {.hf = hf_name ".beta", .gguf = gguf_name ".bias", .whole = true}

static const struct pp_arch_name names[] = {
    {.hf = "embeddings.word_embeddings", .gguf = "token_embd"},
    {.hf = "embeddings.position_embeddings", .gguf = "position_embd", .form = PP_HF_AFTER_RESERVED},
    {.hf = "embeddings.token_type_embeddings", .gguf = "token_types"},
    NORM("embeddings.LayerNorm", "token_embd_norm"),
    {.hf = "encoder.layer.{}.attention.self.query", .gguf = "blk.{}.attn_q"},
    {.hf = "encoder.layer.{}.attention.self.key", .gguf = "blk.{}.attn_k"},
    {.hf = "encoder.layer.{}.attention.self.value", .gguf = "blk.{}.attn_v"},
    {.hf = "encoder.layer.{}.attention.output.dense", .gguf = "blk.{}.attn_output"},
    NORM("encoder.layer.{}.attention.output.LayerNorm", "blk.{}.attn_output_norm"),
    {.hf = "encoder.layer.{}.intermediate.dense", .gguf = "blk.{}.ffn_up"},
    {.hf = "encoder.layer.{}.output.dense", .gguf = "blk.{}.ffn_down"},
    NORM("encoder.layer.{}.output.LayerNorm", "blk.{}.layer_output_norm"),
    /* Jina's feed-forward part */
    {.hf = "encoder.layer.{}.mlp.gated_layers", .gguf = "blk.{}.ffn_up"},
    {.hf = "encoder.layer.{}.mlp.wo", .gguf = "blk.{}.ffn_down"},
    {.hf = "encoder.layer.{}.mlp.layernorm", .gguf = "blk.{}.layer_output_norm"},
    {.hf = NULL},
};

static const struct pp_arch_name nomic_names[] = {
    {.hf = "embeddings.word_embeddings", .gguf = "token_embd"},
    {.hf = "embeddings.token_type_embeddings", .gguf = "token_types"},
    {.hf = "emb_ln", .gguf = "token_embd_norm"},
    {.hf = "encoder.layers.{}.attn.Wqkv", .gguf = "blk.{}.attn_qkv"},
    {.hf = "encoder.layers.{}.attn.out_proj", .gguf = "blk.{}.attn_output"},
    {.hf = "encoder.layers.{}.norm1", .gguf = "blk.{}.attn_output_norm"},
    {.hf = "encoder.layers.{}.mlp.fc11", .gguf = "blk.{}.ffn_up"},
    {.hf = "encoder.layers.{}.mlp.fc12", .gguf = "blk.{}.ffn_gate"},
    {.hf = "encoder.layers.{}.mlp.fc2", .gguf = "blk.{}.ffn_down"},
    {.hf = "encoder.layers.{}.norm2", .gguf = "blk.{}.layer_output_norm"},
    /* Nomic Embed v2's: its layers without experts have no gates */
    {.hf = "encoder.layers.{}.mlp.fc1", .gguf = "blk.{}.ffn_up"},
    {.hf = "encoder.layers.{}.mlp.router.layer", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = "encoder.layers.{}.mlp.experts.mlp.w1", .gguf = "blk.{}.ffn_up_exps.weight", .form = PP_HF_EXPERTS_FLAT,
     .whole = true},
    {.hf = "encoder.layers.{}.mlp.experts.mlp.w2", .gguf = "blk.{}.ffn_down_exps.weight",
     .form = PP_HF_EXPERTS_FLAT_TRANSPOSED, .whole = true},
    {.hf = "encoder.layers.{}.mlp.experts.bias", .gguf = "blk.{}.ffn_down_exps.bias", .whole = true},
    {.hf = NULL},
};

/* Jina v3, whose matrices come with LoRA adapters for tasks, which are ignored. */
#define ADAPTED(hf_name, gguf_name)                                                                                    \
    {.hf = hf_name ".parametrizations.weight.original", .gguf = gguf_name ".weight", .whole = true},                   \
    {.hf = hf_name, .gguf = gguf_name}

static const struct pp_arch_name jina_v3_names[] = {
    ADAPTED("embeddings.word_embeddings", "token_embd"),
    ADAPTED("embeddings.token_type_embeddings", "token_types"),
    {.hf = "emb_ln", .gguf = "token_embd_norm"},
    ADAPTED("encoder.layers.{}.mixer.Wqkv", "blk.{}.attn_qkv"),
    ADAPTED("encoder.layers.{}.mixer.out_proj", "blk.{}.attn_output"),
    {.hf = "encoder.layers.{}.norm1", .gguf = "blk.{}.attn_output_norm"},
    ADAPTED("encoder.layers.{}.mlp.fc1", "blk.{}.ffn_up"),
    ADAPTED("encoder.layers.{}.mlp.fc2", "blk.{}.ffn_down"),
    {.hf = "encoder.layers.{}.norm2", .gguf = "blk.{}.layer_output_norm"},
    {.hf = NULL},
};
static const char *const adapters[] = {".lora_A", ".lora_B", NULL};

/* Ignored: heads for tasks that we do not run, and position_ids, which just count. */
static const char *const prefixes[] = {"bert.", "", "roberta.", "", NULL};
static const char *const others[] = {"pooler.", "bert.pooler.", "roberta.pooler.", "cls.", "lm_head.", "classifier.",
                                     "embeddings.position_ids", "bert.embeddings.position_ids",
                                     "roberta.embeddings.position_ids", NULL};
static const struct pp_arch_parts parts = {.model_type = "bert", .prefixes = prefixes, .others = others};

static const char *const gelu_names[] = {"gelu", NULL};

/* --- from files ------------------------------------------------------------------------------------------------- */

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const struct pp_tensor *types = pp_gguf_tensor(g, "token_types.weight");
    char key[96];
    bool causal = false;
    snprintf(key, sizeof key, "%.64s.attention.causal", hp->arch);
    pp_gguf_bool(g, key, &causal);
    if (causal)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model's tokens see only those before them (%s), which is not "
                       "supported for this family", key);
    hp->n_segments = types ? types->ne[1] : 0;
    return PP_OK;
}

/* The keys that all these families share. */
static enum pp_code common_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
    if (!code)
        code = pp_config_int(config, "type_vocab_size", &hp->n_segments, err);
    if (!code && pp_config_flag(config, "is_decoder", false))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: is_decoder is true, which is not supported for this "
                       "family");
    return code;
}

/* config.json: position_embedding_type, or "absolute". */
static bool positions_are(const cJSON *config, const char *kind)
{
    const char *type = cJSON_GetStringValue(pp_json_member(config, "position_embedding_type"));
    return strcmp(type ? type : "absolute", kind) == 0;
}

static enum pp_code bert_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->norm_eps = 1e-12f;
    hp->n_segments = 2;
    if (!positions_are(config, "absolute"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: only \"absolute\" is supported as its "
                       "position_embedding_type");
    enum pp_code code = pp_config_activation(config, "hidden_act", gelu_names, err);
    return code ? code : common_config(config, hp, err);
}

/* Whether the model descends from RoBERTa, which counts positions from the padding token's number + 1. */
static bool is_roberta(const cJSON *config)
{
    static const char *const types[] = {"roberta", "xlm-roberta", "camembert"};
    const char *type = cJSON_GetStringValue(pp_json_member(config, "model_type"));
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t padding = 1;
    enum pp_code code = bert_config(config, hp, err);
    if (code || !is_roberta(config))
        return code;
    code = pp_config_int(config, "pad_token_id", &padding, err);
    if (!code && (padding < 0 || padding >= hp->n_ctx_train))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: pad_token_id is %lld, and there are %lld positions",
                       (long long)padding, (long long)hp->n_ctx_train);
    hp->n_reserved_positions = padding + 1;
    hp->n_ctx_train -= padding + 1;
    return code;
}

static enum pp_code jina_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const gates[] = {"geglu", NULL};
    hp->norm_eps = 1e-12f;
    hp->n_segments = 2;
    if (!positions_are(config, "alibi"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: only \"alibi\" is supported as this family's "
                       "position_embedding_type");
    enum pp_code code = pp_config_activation(config, "feed_forward_type", gates, err);
    return code ? code : common_config(config, hp, err);
}

/* Nomic Embed v2: GELU without gates, and experts in every moe_every_n_layers-th layer, from the second on. Weights
 * are the softmax over all experts, not normalised over the chosen ones. */
static enum pp_code nomic_experts(const cJSON *config, int64_t step, struct pp_hparams *hp, struct pp_error *err)
{
    static const struct pp_expert_keys keys = {
        .n = "num_experts", .n_used = "moe_top_k", .norm_topk = "moe_normalize_expert_weights"};
    enum pp_code code = pp_config_activation(config, "activation_function", gelu_names, err);
    hp->activation = PP_ACTIVATION_GELU;
    if (!code && step < 2)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: moe_every_n_layers is 1, which is not supported");
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= !code && l % step == 1 ? 0 : PP_LAYER_DENSE;
    return code ? code : pp_config_experts(config, &keys, hp, err);
}

/* Nomic has GPT-2's keys. It was trained with 2,048 of its 8,192 positions; longer texts would need RoPE scaling. */
static enum pp_code nomic_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const gates[] = {"swiglu", NULL};
    static const char *const flags[] = {"prenorm", "rotary_emb_interleaved", "causal", "expert_choice_router",
                                        "num_shared_experts", NULL};
    int64_t trained = 2048, step = 0;
    hp->norm_eps = 1e-12f;
    hp->n_segments = 2;
    for (const char *const *flag = flags; *flag; flag++) {
        const cJSON *value = pp_json_member(config, *flag);
        if (cJSON_IsTrue(value) || (cJSON_IsNumber(value) && value->valuedouble != 0))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is not supported for this family", *flag);
    }
    enum pp_code code = pp_config_int(config, "moe_every_n_layers", &step, err);
    if (!code)
        code = step > 0 ? nomic_experts(config, step, hp, err)
                        : pp_config_activation(config, "activation_function", gates, err);
    if (!code)
        code = pp_config_int(config, "n_inner", &hp->n_ff, err);
    if (!code)
        code = pp_config_int(config, "n_positions", &hp->n_ctx_train, err);
    if (!code)
        code = pp_config_int(config, "max_trained_positions", &trained, err);
    if (!code)
        code = pp_config_int(config, "type_vocab_size", &hp->n_segments, err);
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_float(config, "rotary_emb_base", &hp->rope_base, err);
    hp->n_ctx_train = hp->n_ctx_train > trained ? trained : hp->n_ctx_train;
    if (step > 0) /* trained with 512 positions */
        hp->n_ctx_train = hp->n_ctx_train > 512 ? 512 : hp->n_ctx_train;
    hp->n_ff_expert = hp->n_ff;
    return code;
}

static enum pp_code nomic_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->n_expert)
        hp->activation = PP_ACTIVATION_GELU;
    return from_gguf(g, hp, err);
}

static void nomic_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    int64_t step = 2;
    while (step < hp->n_layer && hp->layer[step + 1 < hp->n_layer ? step + 1 : 1] & PP_LAYER_DENSE)
        step++;
    if (hp->n_expert)
        pp_gguf_add_u32(w, "nomic-bert-moe.moe_every_n_layers", (uint32_t)step);
}

static enum pp_code jina_v3_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t padding = 1;
    hp->norm_eps = 1e-12f;
    hp->n_segments = 1;
    enum pp_code code = pp_config_activation(config, "hidden_act", gelu_names, err);
    if (!code)
        code = common_config(config, hp, err);
    if (!code)
        code = pp_config_float(config, "rotary_emb_base", &hp->rope_base, err);
    if (!code)
        code = pp_config_int(config, "pad_token_id", &padding, err);
    if (!code && padding >= 0 && padding < hp->n_ctx_train - 1)
        hp->n_ctx_train -= padding + 1;
    return code;
}

/* --- families --------------------------------------------------------------------------------------------------- */

static const char *const bert_classes[] = {
    "BertModel", "BertForMaskedLM", "BertForPreTraining", "bert", "RobertaModel", "RobertaForMaskedLM", "roberta",
    "XLMRobertaModel", "XLMRobertaForMaskedLM", "xlm-roberta", "CamembertModel", NULL};
static const char *const nomic_classes[] = {"NomicBertModel", "nomic_bert", NULL};
static const char *const jina_classes[] = {"JinaBertModel", "JinaBertForMaskedLM", NULL};

static const struct pp_encoder bert = {.positions = true, .fn = PP_FN_GELU};
static const struct pp_encoder nomic = {.rotated = true, .gated = true, .fn = PP_FN_SILU};
static const struct pp_encoder jina_v3 = {.rotated = true, .fn = PP_FN_GELU};
static const struct pp_encoder jina = {.alibi = 8.0f, .fn = PP_FN_GELU};

const struct pp_arch pp_arch_bert = {
    .name = "bert",
    .hf_classes = bert_classes,
    .names = names,
    .ignored = pp_common_ignored,
    .parts = &parts,
    .gguf_neox = true,
    .encoder = &bert,
    .rotary_variant = &pp_arch_jina_bert_v3,
    .from_config = from_config,
    .from_gguf = from_gguf,
};

static const char *const nomic_other_names[] = {"nomic-bert-moe", NULL};

const struct pp_arch pp_arch_nomic_bert = {
    .name = "nomic-bert",
    .other_names = nomic_other_names,
    .mixture_name = "nomic-bert-moe",
    .gguf_default_no_renorm = true,
    .hf_classes = nomic_classes,
    .names = nomic_names,
    .ignored = pp_common_ignored,
    .parts = &parts,
    .gguf_neox = true,
    .encoder = &nomic,
    .from_config = nomic_config,
    .from_gguf = nomic_from_gguf,
    .to_gguf = nomic_to_gguf,
};

static const char *const jina_v3_classes[] = {"XLMRobertaLoRA", NULL}; /* most folders have XLM-RoBERTa's class */

const struct pp_arch pp_arch_jina_bert_v3 = {
    .name = "jina-bert-v3",
    .hf_classes = jina_v3_classes,
    .names = jina_v3_names,
    .ignored = adapters,
    .parts = &parts,
    .gguf_neox = true,
    .encoder = &jina_v3,
    .from_config = jina_v3_config,
    .from_gguf = from_gguf,
};

const struct pp_arch pp_arch_jina_bert = {
    .name = "jina-bert-v2",
    .hf_classes = jina_classes,
    .names = names,
    .ignored = pp_common_ignored,
    .parts = &parts,
    .gguf_neox = true,
    .encoder = &jina,
    .from_config = jina_config,
    .from_gguf = from_gguf,
};
