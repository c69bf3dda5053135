/* llamas.c - families that are Llama but for small differences: Seed-OSS (biases of q, k and v), ERNIE 4.5, Arcee
 * (ReLU^2 without a gate), Jais 2 (the same, with LayerNorm), Orion (LayerNorm), XVERSE, openPangu, Refact (ALiBi,
 * multi-query attention), Maincoder (norms of heads after RoPE), Helium and Lille (neighbouring pairs are rotated),
 * KORMo, TeleChat (keys and values in one matrix), nanochat (norms without weights, ReLU^2), MiniCPM (multipliers of
 * embeddings, residual additions and logits). */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
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
static const struct pp_arch_default seed_defaults[] = {
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
    .defaults = seed_defaults,
    .gguf_neox = true,
    .decoder = {.ffn_norm = "post_attention_norm"},
    .from_config = silu_only,
    .to_config = seed_to_config,
};

/* --- ERNIE 4.5 -------------------------------------------------------------------------------------------------- */

static const char *const ernie_classes[] = {"Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "ernie4_5", NULL};
static const struct pp_arch_default ernie_defaults[] = {
    {.json = "{\"head_dim\": 128, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5,"
             "\"rope_theta\": 500000.0, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static void ernie_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp;
    cJSON_AddBoolToObject(config, "use_bias", cJSON_IsTrue(pp_json_member(config, "attention_bias")));
}

const struct pp_arch pp_arch_ernie45 = {
    .name = "ernie4_5",
    .hf_classes = ernie_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = ernie_defaults,
    .hf_pairs = true,
    .from_config = silu_only,
    .to_config = ernie_to_config,
};

/* --- Arcee ------------------------------------------------------------------------------------------------------ */

/* The language model of Cosmos 3 Edge (wrapped.c) is such a model with other names. */
static const char *const arcee_classes[] = {"ArceeForCausalLM", "Cosmos3EdgeTextModel", "arcee", "cosmos3_edge_text",
                                            NULL};
static const struct pp_arch_name arcee_names[] = {
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = "model.layers.{}.mlp.fc1", .gguf = "blk.{}.ffn_up", .read_only = true},
    {.hf = "model.layers.{}.mlp.fc2", .gguf = "blk.{}.ffn_down", .read_only = true},
    {.hf = NULL},
};
static const struct pp_arch_default arcee_defaults[] = {
    {"cosmos3_edge_text", NULL,
     "{\"vocab_size\": 131072, \"hidden_size\": 2048, \"intermediate_size\": 9216, \"num_hidden_layers\": 28,"
     "\"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": 128, \"hidden_act\": \"relu2\","
     "\"max_position_embeddings\": 131072, \"rope_theta\": 100000000.0}"},
    {.json = "{\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

static enum pp_code arcee_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)hp;
    return pp_config_activation(config, "hidden_act", pp_relu2_names, err);
}

static void no_more_config(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp, (void)config;
}

const struct pp_arch pp_arch_arcee = {
    .name = "arcee",
    .hf_classes = arcee_classes,
    .names = arcee_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = arcee_defaults,
    .decoder = {.ungated = true, .fn = PP_FN_RELU2},
    .from_config = arcee_from_config,
    .to_config = no_more_config,
};

/* --- Jais 2 ----------------------------------------------------------------------------------------------------- */

static const char *const jais2_classes[] = {"Jais2ForCausalLM", "jais2", NULL};
static const struct pp_arch_default jais2_defaults[] = {
    {.json = "{\"max_position_embeddings\": 8192, \"layer_norm_eps\": 1e-5, \"hidden_act\": \"relu2\"}"},
    {.json = NULL},
};

static enum pp_code jais2_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = arcee_from_config(config, hp, err);
    return code ? code : pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
}

const struct pp_arch pp_arch_jais2 = {
    .name = "jais2",
    .hf_classes = jais2_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = jais2_defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_RELU2},
    .from_config = jais2_from_config,
    .to_config = no_more_config,
    .hf_eps = "layer_norm_eps",
};

/* --- Refact ----------------------------------------------------------------------------------------------------- */

static const char *const refact_classes[] = {"GPTRefactForCausalLM", "gpt_refact", NULL};
static const struct pp_arch_name refact_names[] = {
    {.hf = "transformer.wte", .gguf = "token_embd"},
    {.hf = "ln_f", .gguf = "output_norm"},
    {.hf = "transformer.ln_f", .gguf = "output_norm", .read_only = true},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = "transformer.h.{}.ln_1", .gguf = "blk.{}.attn_norm"},
    {.hf = "transformer.h.{}.ln_2", .gguf = "blk.{}.ffn_norm"},
    {.hf = "transformer.h.{}.attn.q", .gguf = "blk.{}.attn_q"},
    {.hf = "transformer.h.{}.attn.kv.weight", .gguf = "blk.{}.attn_k.weight", .second = "blk.{}.attn_v.weight",
     .form = PP_HF_HALVES, .whole = true},
    {.hf = "transformer.h.{}.attn.c_proj", .gguf = "blk.{}.attn_output"},
    {.hf = "transformer.h.{}.mlp.gate_up_proj.weight", .gguf = "blk.{}.ffn_gate.weight",
     .second = "blk.{}.ffn_up.weight", .form = PP_HF_HALVES, .whole = true},
    {.hf = "transformer.h.{}.mlp.c_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};

/* The feed-forward width: 2/3 of 4 n_embd, rounded up to a multiple of 256. */
static int64_t refact_ff(int64_t n_embd)
{
    const int64_t step = 256;
    return (8 * n_embd / 3 + step - 1) / step * step;
}

static enum pp_code refact_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->n_head_kv = 1;
    hp->alibi = 8;
    hp->n_ff = refact_ff(hp->n_embd);
    hp->norm_eps = 1e-5f;
    if (!pp_config_flag(config, "multi_query", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: multi_query is false, which pippin does not support");
    enum pp_code code = pp_config_int(config, "n_positions", &hp->n_ctx_train, err);
    return code ? code : pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
}

static enum pp_code refact_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->alibi = 8;
    return PP_OK;
}

static void refact_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put(config, "n_embd", hp->n_embd);
    pp_config_put(config, "n_layer", hp->n_layer);
    pp_config_put(config, "n_head", hp->n_head);
    pp_config_put(config, "n_positions", hp->n_ctx_train);
    cJSON_AddTrueToObject(config, "multi_query");
}

const struct pp_arch pp_arch_refact = {
    .name = "refact",
    .hf_classes = refact_classes,
    .names = refact_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .from_config = refact_from_config,
    .from_gguf = refact_from_gguf,
    .to_config = refact_to_config,
    .hf_eps = "layer_norm_epsilon",
};

/* --- Orion ------------------------------------------------------------------------------------------------------ */

static const char *const orion_classes[] = {"OrionForCausalLM", "orion", NULL};
static const struct pp_arch_default orion_defaults[] = {
    {.json = "{\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_orion = {
    .name = "orion",
    .hf_classes = orion_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = orion_defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true},
    .from_config = silu_only,
    .to_config = no_more_config,
};

/* --- XVERSE ----------------------------------------------------------------------------------------------------- */

static const char *const xverse_classes[] = {"XverseForCausalLM", "xverse", NULL};
static const struct pp_arch_default xverse_defaults[] = {
    {.json = "{\"max_position_embeddings\": 8192}"},
    {.json = NULL},
};

const struct pp_arch pp_arch_xverse = {
    .name = "xverse",
    .hf_classes = xverse_classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = xverse_defaults,
    .from_config = silu_only,
    .to_config = no_more_config,
};

/* --- openPangu -------------------------------------------------------------------------------------------------- */

static const char *const pangu_classes[] = {"PanguEmbeddedForCausalLM", "PanguEmbedded", NULL};
static const struct pp_arch_default pangu_defaults[] = {
    {.json = "{\"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

static void pangu_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp;
    cJSON_AddBoolToObject(config, "bias", cJSON_IsTrue(pp_json_member(config, "attention_bias")));
}

const struct pp_arch pp_arch_pangu = {
    .name = "pangu-embedded",
    .hf_classes = pangu_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = pangu_defaults,
    .gguf_neox = true,
    .from_config = silu_only,
    .to_config = pangu_to_config,
};

/* --- Maincoder -------------------------------------------------------------------------------------------------- */

static const char *const maincoder_classes[] = {"MaincoderForCausalLM", "maincoder", NULL};
static const struct pp_arch_name maincoder_names[] = {
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = NULL},
};

const struct pp_arch pp_arch_maincoder = {
    .name = "maincoder",
    .hf_classes = maincoder_classes,
    .names = maincoder_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .hf_pairs = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .norm_after_rope = true},
    .from_config = silu_only,
    .to_config = no_more_config,
};

/* --- Helium ----------------------------------------------------------------------------------------------------- */

static const char *const helium_classes[] = {"HeliumForCausalLM", "helium", NULL};
static const struct pp_arch_default helium_defaults[] = {
    {.json = "{\"head_dim\": 128, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-8,"
             "\"rope_theta\": 100000.0}"},
    {.json = NULL},
};

/* Folders have the rows of q and k in the order of Llama's GGUF files. */
const struct pp_arch pp_arch_helium = {
    .name = "helium",
    .file_name = "llama",
    .hf_classes = helium_classes,
    .names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = helium_defaults,
    .hf_pairs = true,
    .from_config = silu_only,
    .to_config = no_more_config,
};

/* --- Lille ------------------------------------------------------------------------------------------------------ */

static const char *const lille_classes[] = {"LilleForCausalLM", "lille-130m", NULL};
static const struct pp_arch_name lille_names[] = {
    {.hf = "transformer.tok_embeddings", .gguf = "token_embd"},
    {.hf = "transformer.norm", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = "transformer.layers.{}.attention.norm", .gguf = "blk.{}.attn_norm"},
    {.hf = "transformer.layers.{}.attention.qkv_proj", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_STACKED},
    {.hf = "transformer.layers.{}.attention.out_proj", .gguf = "blk.{}.attn_output"},
    {.hf = "transformer.layers.{}.feed_forward.norm", .gguf = "blk.{}.ffn_norm"},
    {.hf = "transformer.layers.{}.feed_forward.gate_proj", .gguf = "blk.{}.ffn_gate"},
    {.hf = "transformer.layers.{}.feed_forward.up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = "transformer.layers.{}.feed_forward.down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const struct pp_arch_default lille_defaults[] = {
    {.json = "{\"tie_word_embeddings\": true}"},
    {.json = NULL},
};

/* The feed-forward width, which config.json lacks: 8/3 n_embd, rounded to the nearest multiple of 256, halves to
 * even. */
static enum pp_code lille_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t wanted = 8 * hp->n_embd / 3, below = wanted / 256, rest = wanted % 256;
    hp->n_ff = 256 * (below + (rest > 128 || (rest == 128 && below % 2)));
    enum pp_code code = pp_config_int(config, "intermediate_size", &hp->n_ff, err);
    if (!code)
        code = pp_config_int(config, "n_kv_heads", &hp->n_head_kv, err);
    if (!code)
        code = pp_config_int(config, "block_size", &hp->n_ctx_train, err);
    return code ? code : pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
}

static void lille_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put(config, "n_embd", hp->n_embd);
    pp_config_put(config, "n_layer", hp->n_layer);
    pp_config_put(config, "n_head", hp->n_head);
    pp_config_put(config, "n_kv_heads", hp->n_head_kv);
    pp_config_put(config, "block_size", hp->n_ctx_train);
}

/* Llama with names and keys of its own. Folders have the rows of q and k in the order of Llama's GGUF files. */
const struct pp_arch pp_arch_lille = {
    .name = "lille-130m",
    .file_name = "llama",
    .hf_classes = lille_classes,
    .names = lille_names,
    .ignored = pp_common_ignored,
    .defaults = lille_defaults,
    .hf_pairs = true,
    .from_config = lille_from_config,
    .to_config = lille_to_config,
    .hf_eps = "layer_norm_eps",
};

/* --- KORMo ------------------------------------------------------------------------------------------------------ */

static const char *const kormo_classes[] = {"KORMoForCausalLM", "kormo", NULL};
static const struct pp_arch_name kormo_names[] = {
    {.hf = "model.layers.{}.pre_attention_layernorm", .gguf = "blk.{}.attn_norm"},
    {.hf = "model.layers.{}.pre_mlp_layernorm", .gguf = "blk.{}.ffn_norm"},
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = NULL},
};

/* Llama with other names of norms. Other programs write its GGUF files as Qwen 2. */
const struct pp_arch pp_arch_kormo = {
    .name = "kormo",
    .file_name = "llama",
    .hf_classes = kormo_classes,
    .names = kormo_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .from_config = silu_only,
    .to_config = no_more_config,
};

/* --- TeleChat 1 and 2 -------------------------------------------------------------------------------------------- */

static const char *const telechat_classes[] = {"TelechatForCausalLM", "TeleChatForCausalLM", "TeleChat2ForCausalLM",
                                               "telechat", "telechat2", NULL};
static const struct pp_arch_name telechat_names[] = {
    {.hf = "transformer.word_embeddings", .gguf = "token_embd"},
    {.hf = "transformer.ln_f", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = "transformer.h.{}.input_layernorm", .gguf = "blk.{}.attn_norm"},
    {.hf = "transformer.h.{}.post_attention_layernorm", .gguf = "blk.{}.ffn_norm"},
    {.hf = "transformer.h.{}.self_attention.query", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "transformer.h.{}.self_attention.key_value.weight", .gguf = "blk.{}.attn_k.weight",
     .second = "blk.{}.attn_v.weight", .rows = PP_ROWS_K, .form = PP_HF_HALVES_BY_HEAD, .whole = true},
    {.hf = "transformer.h.{}.self_attention.dense", .gguf = "blk.{}.attn_output"},
    {.hf = "transformer.h.{}.mlp.gate_proj", .gguf = "blk.{}.ffn_gate"},
    {.hf = "transformer.h.{}.mlp.up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = "transformer.h.{}.mlp.down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const struct pp_arch_default telechat_defaults[] = {
    {.json = "{\"layer_norm_epsilon\": 1e-5, \"seq_length\": 8192, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};
enum { TELECHAT_BASE = 8192 }; /* base_seqlen by default */

/* NTK-aware scaling: the factor on RoPE's base is alpha^(d / (d - 2)), where alpha is 2^k - 1 for a context 2^(k - 1)
 * times the base length. */
static float telechat_growth(double alpha, int64_t head_dim)
{
    return (float)pow(alpha, (double)head_dim / (double)(head_dim - 2));
}

static enum pp_code telechat_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n_base = TELECHAT_BASE;
    enum pp_code code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_int(config, "seq_length", &hp->n_ctx_train, err);
    if (!code)
        code = pp_config_int(config, "training_seqlen", &hp->n_ctx_train, err);
    if (!code)
        code = pp_config_int(config, "base_seqlen", &n_base, err);
    if (code)
        return code;
    if (pp_config_flag(config, "apply_residual_connection_post_layernorm", false) ||
        pp_config_flag(config, "embed_layernorm", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: apply_residual_connection_post_layernorm or "
                       "embed_layernorm is true, which pippin does not support for this family");
    if (hp->n_ctx_train < 1 || n_base < 1 || hp->head_dim < 4)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: training_seqlen, base_seqlen or the heads' size is too small");
    const double longer = (double)hp->n_ctx_train / (double)n_base;
    if (longer > 1)
        hp->rope_base *= telechat_growth(exp2(ceil(log2(longer) + 1)) - 1, hp->head_dim);
    return PP_OK;
}

/* The reverse: the base length from which rope_base results; 0: there is none. */
static int64_t telechat_base_length(const struct pp_hparams *hp)
{
    enum { MOST = 16 };
    const float usual = 10000;
    for (int k = 1; k <= MOST && hp->n_ctx_train >> (k - 1) > 0; k++)
        if (fabsf(hp->rope_base / usual / telechat_growth(exp2(k) - 1, hp->head_dim) - 1) < 1e-5f)
            return hp->n_ctx_train >> (k - 1);
    return 0;
}

static void telechat_to_config(const struct pp_hparams *hp, cJSON *config)
{
    const int64_t n_base = hp->head_dim > 2 ? telechat_base_length(hp) : 0;
    pp_config_put(config, "n_layer", hp->n_layer);
    pp_config_put(config, "n_head", hp->n_head);
    pp_config_put(config, "ffn_hidden_size", hp->n_ff);
    pp_config_put(config, "seq_length", hp->n_ctx_train);
    pp_config_put(config, "training_seqlen", hp->n_ctx_train);
    pp_config_put(config, "base_seqlen", n_base ? n_base : hp->n_ctx_train);
    if (n_base)
        cJSON_DeleteItemFromObjectCaseSensitive(config, "rope_theta");
}

/* Llama with other names, biases of the output projections of both parts, and keys and values in one matrix. */
const struct pp_arch pp_arch_telechat = {
    .name = "telechat",
    .file_name = "llama",
    .hf_classes = telechat_classes,
    .names = telechat_names,
    .ignored = pp_common_ignored,
    .defaults = telechat_defaults,
    .from_config = telechat_from_config,
    .to_config = telechat_to_config,
    .hf_eps = "layer_norm_epsilon",
};

/* --- nanochat --------------------------------------------------------------------------------------------------- */

static const char *const nanochat_classes[] = {"NanoChatForCausalLM", "nanochat", NULL};
static const struct pp_arch_name nanochat_names[] = {
    {.hf = "model.layers.{}.mlp.fc1", .gguf = "blk.{}.ffn_up"},
    {.hf = "model.layers.{}.mlp.fc2", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const struct pp_arch_default nanochat_defaults[] = {
    {.json = "{\"max_position_embeddings\": 2048, \"final_logit_softcapping\": 15.0}"},
    {.json = NULL},
};

/* Heads rotate in the opposite direction, which is the same as exchanging the halves of each head. */
static void nanochat_heads(struct pp_hparams *hp)
{
    hp->qk_norm = hp->rope_reversed = true;
}

static enum pp_code nanochat_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = arcee_from_config(config, hp, err);
    nanochat_heads(hp);
    return code ? code : pp_config_float(config, "final_logit_softcapping", &hp->final_softcap, err);
}

static enum pp_code nanochat_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    nanochat_heads(hp);
    return PP_OK;
}

static void nanochat_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    if (hp->final_softcap != 0.0f)
        pp_config_put_float(config, "final_logit_softcapping", hp->final_softcap);
    else
        cJSON_AddNullToObject(config, "final_logit_softcapping");
}

const struct pp_arch pp_arch_nanochat = {
    .name = "nanochat",
    .hf_classes = nanochat_classes,
    .names = nanochat_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = nanochat_defaults,
    .gguf_neox = true,
    .decoder = {.plain_norm = true, .embd_norm = true, .unweighted_qk_norm = true, .norm_after_rope = true,
                .ungated = true,
                .fn = PP_FN_RELU2},
    .from_config = nanochat_from_config,
    .from_gguf = nanochat_from_gguf,
    .to_config = nanochat_to_config,
};

/* --- MiniCPM ---------------------------------------------------------------------------------------------------- */

static const char *const minicpm_classes[] = {"MiniCPMForCausalLM", "minicpm", NULL};
static const struct pp_arch_default minicpm_defaults[] = {
    {.json = "{\"tie_word_embeddings\": true}"},
    {.json = NULL},
};

enum pp_code pp_minicpm_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
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

/* Early files lack constants of the models of that time. */
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

void pp_minicpm_to_config(const struct pp_hparams *hp, struct cJSON *config)
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
    .defaults = minicpm_defaults,
    .gguf_divides_logits = true,
    .from_config = pp_minicpm_from_config,
    .from_gguf = minicpm_from_gguf,
    .to_config = pp_minicpm_to_config,
};
