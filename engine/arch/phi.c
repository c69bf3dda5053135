/* phi.c - Microsoft's Phi. 1.5 and 2 (also within Moondream): attention and feed-forward part in parallel after one
 * LayerNorm, biases everywhere, in some models norms of the heads of q and k. Phi 3 (arXiv 2404.14219) and 4: Llama
 * with a fused qkv and fused gate and up; of Phi 4 multimodal the text model, without its LoRA adapters for images and
 * sound. Phi 3.5 MoE: LayerNorm, biases in attention, experts with SparseMixer's weights. Phi 3 small: LayerNorm and
 * biases everywhere, muP's scales, and block-sparse attention, to the last blocks of positions and to every few
 * before, staggered by head. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/kv.h"

static const struct pp_arch_name names2[] = {
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    {.hf = "model.layers.{}.self_attn.dense", .gguf = "blk.{}.attn_output"},
    {.hf = "model.layers.{}.self_attn.q_layernorm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_layernorm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "model.layers.{}.mlp.fc1", .gguf = "blk.{}.ffn_up"},
    {.hf = "model.layers.{}.mlp.fc2", .gguf = "blk.{}.ffn_down"},
    /* names of Phi's first code, and of Moondream */
    {.hf = "transformer.embd.wte", .gguf = "token_embd", .read_only = true},
    {.hf = "transformer.h.{}.ln", .gguf = "blk.{}.attn_norm", .read_only = true},
    {.hf = "transformer.h.{}.mixer.Wqkv", .gguf = "blk.{}.attn_qkv", .read_only = true},
    {.hf = "transformer.h.{}.mixer.out_proj", .gguf = "blk.{}.attn_output", .read_only = true},
    {.hf = "transformer.h.{}.mlp.fc1", .gguf = "blk.{}.ffn_up", .read_only = true},
    {.hf = "transformer.h.{}.mlp.fc2", .gguf = "blk.{}.ffn_down", .read_only = true},
    {.hf = "lm_head.ln", .gguf = "output_norm", .read_only = true},
    {.hf = "lm_head.linear", .gguf = "output", .read_only = true},
    {.hf = NULL},
};
static const char *const prefixes2[] = {"text_model.model.", "", "text_model.", "", NULL};
static const char *const others2[] = {"vision_encoder.", NULL};
static const struct pp_arch_parts parts2 = {.model_type = "phi", .prefixes = prefixes2, .others = others2};

static const struct pp_arch_name names3[] = {
    {.hf = "model.layers.{}.self_attn.qkv_proj", .gguf = "blk.{}.attn_qkv"},
    {.hf = "model.layers.{}.mlp.gate_up_proj", .gguf = "blk.{}.ffn_up"},
    /* Phi 4 multimodal's, next to LoRA adapters */
    {.hf = "model.layers.{}.self_attn.qkv_proj.base_layer", .gguf = "blk.{}.attn_qkv", .read_only = true},
    {.hf = "model.layers.{}.self_attn.o_proj.base_layer", .gguf = "blk.{}.attn_output", .read_only = true},
    {.hf = "model.layers.{}.mlp.gate_up_proj.base_layer", .gguf = "blk.{}.ffn_up", .read_only = true},
    {.hf = "model.layers.{}.mlp.down_proj.base_layer", .gguf = "blk.{}.ffn_down", .read_only = true},
    {.hf = NULL},
};
static const char *const ignored3[] = {".rotary_emb.inv_freq", ".lora_A.vision.weight", ".lora_B.vision.weight",
                                       ".lora_A.speech.weight", ".lora_B.speech.weight", NULL};
static const char *const prefixes3[] = {NULL};
static const char *const others3[] = {"model.embed_tokens_extend.", NULL};
static const struct pp_arch_parts parts3 = {.model_type = "phi3", .prefixes = prefixes3, .others = others3};

static const char *const classes2[] = {"PhiForCausalLM", "phi", "Moondream", NULL};
static const char *const classes3[] = {"Phi3ForCausalLM", "phi3", "Phi4MMForCausalLM", "phi4mm",
                                       "Phi4MultimodalForCausalLM", "phi4_multimodal", NULL};

static enum pp_code from_config2(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->parallel = true;
    hp->norm_eps = 1e-5f;
    hp->qk_norm = pp_config_flag(config, "qk_layernorm", false);
    enum pp_code code = pp_config_float(config, "layer_norm_eps", &hp->norm_eps, err);
    return code ? code : pp_config_activation(config, "hidden_act", pp_gelu_tanh_names, err);
}

static enum pp_code from_gguf2(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->parallel = true;
    return PP_OK;
}

static enum pp_code from_config3(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    return code ? code : pp_config_window(config, 0, hp, err);
}

/* Early files lack the key of the window, which the models with 4096 positions have. */
static enum pp_code from_gguf3(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    if (!pp_gguf_has(g, "phi3.attention.sliding_window") && (hp->n_layer == 32 || hp->n_layer == 40) &&
        hp->n_ctx_train == 4096)
        hp->window = 2047;
    return PP_OK;
}

static const struct pp_arch_default defaults2[] = {
    {.json = "{\"vocab_size\": 51200, \"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": 24,"
             "\"num_attention_heads\": 32, \"max_position_embeddings\": 2048, \"partial_rotary_factor\": 0.5}"},
    {.json = NULL},
};
static const struct pp_arch_default defaults3[] = {
    {"phi4_multimodal", "Phi4MultimodalForCausalLM",
     "{\"vocab_size\": 200064, \"hidden_size\": 3072, \"intermediate_size\": 8192, \"num_hidden_layers\": 32,"
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"max_position_embeddings\": 131072}"},
    {.json = "{\"max_position_embeddings\": 4096, \"original_max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5}"},
    {.json = NULL},
};

static void to_config2(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON_AddBoolToObject(config, "qk_layernorm", hp->qk_norm);
}

const struct pp_arch pp_arch_phi2 = {
    .name = "phi2",
    .hf_classes = classes2,
    .names = names2,
    .more_names = pp_common_names,
    .parts = &parts2,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_GELU_TANH,
                .qk_norm = PP_QK_OPTIONAL},
    .from_config = from_config2,
    .defaults = defaults2,
    .from_gguf = from_gguf2,
    .to_config = to_config2,
    .hf_eps = "layer_norm_eps",
};

static void to_config3(const struct pp_hparams *hp, struct cJSON *config)
{
    if (hp->window)
        pp_config_put(config, "sliding_window", hp->window);
}

const struct pp_arch pp_arch_phi3 = {
    .name = "phi3",
    .hf_classes = classes3,
    .names = names3,
    .more_names = pp_common_names,
    .ignored = ignored3,
    .parts = &parts3,
    .gguf_neox = true,
    .decoder = {.fused_qkv = true, .fused_gate = true},
    .from_config = from_config3,
    .defaults = defaults3,
    .from_gguf = from_gguf3,
    .gguf_has_window_key = true,
    .to_config = to_config3,
};

/* --- the mixture ------------------------------------------------------------------------------------------------ */

static const struct pp_arch_name moe_names[] = {
    {.hf = "model.layers.{}.block_sparse_moe.gate", .gguf = "blk.{}.ffn_gate_inp"},
    {.hf = "model.layers.{}.block_sparse_moe.experts.{}.w1", .gguf = "blk.{}.ffn_gate.{}"},
    {.hf = "model.layers.{}.block_sparse_moe.experts.{}.w2", .gguf = "blk.{}.ffn_down.{}"},
    {.hf = "model.layers.{}.block_sparse_moe.experts.{}.w3", .gguf = "blk.{}.ffn_up.{}"},
    {.hf = NULL},
};
static const char *const moe_classes[] = {"PhiMoEForCausalLM", "PhimoeForCausalLM", "phimoe", NULL};
static const struct pp_expert_keys expert_keys = {.n = "num_local_experts", .n_used = "num_experts_per_tok",
                                                  .n_ff = "intermediate_size"};
static const struct pp_arch_default moe_defaults[] = {
    {.json = "{\"num_key_value_heads\": 8, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5,"
             "\"rope_theta\": 1000000.0, \"num_local_experts\": 16, \"num_experts_per_tok\": 2}"},
    {.json = NULL},
};
static const float JITTER = 0.01f; /* in all models so far; GGUF files lack it */

/* short_mscale and long_mscale, LongRoPE's magnitudes; pippin has one, so they must be equal. */
static enum pp_code config_mscale(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    float below = 0, beyond = 0;
    if (!cJSON_IsObject(rope))
        rope = pp_json_member(config, "rope_scaling");
    enum pp_code code = pp_config_float(rope, "short_mscale", &below, err);
    if (!code)
        code = pp_config_float(rope, "long_mscale", &beyond, err);
    if (!code && below != beyond)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: short_mscale and long_mscale differ, which pippin does "
                       "not compute");
    if (!code && below > 0)
        hp->rope_attn_factor = below;
    return code;
}

static enum pp_code moe_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = from_config3(config, hp, err);
    hp->expert_mixer_jitter = JITTER;
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = pp_config_float(config, "router_jitter_noise", &hp->expert_mixer_jitter, err);
    return code ? code : config_mscale(config, hp, err);
}

static enum pp_code moe_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->expert_mixer_jitter = JITTER;
    return PP_OK;
}

/* Its files have the epsilon of LayerNorm under RMSNorm's key. */
static void moe_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_f32(w, "phimoe.attention.layer_norm_rms_epsilon", hp->norm_eps);
}

static void moe_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    to_config3(hp, config);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_float(config, "router_jitter_noise", hp->expert_mixer_jitter);
    cJSON_AddBoolToObject(config, "lm_head_bias", cJSON_IsTrue(pp_json_member(config, "attention_bias")));
    if (rope && hp->rope_attn_factor != 0.0f) {
        pp_config_put_float(rope, "short_mscale", hp->rope_attn_factor);
        pp_config_put_float(rope, "long_mscale", hp->rope_attn_factor);
    }
}

const struct pp_arch pp_arch_phimoe = {
    .name = "phimoe",
    .hf_classes = moe_classes,
    .names = moe_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = moe_defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true},
    .from_config = moe_from_config,
    .from_gguf = moe_from_gguf,
    .to_gguf = moe_to_gguf,
    .to_config = moe_to_config,
};

/* --- small -------------------------------------------------------------------------------------------------------- */

#define SMALL_LAYER "model.layers.{}."

/* up_proj has the rows of gate and up interleaved. */
static const struct pp_arch_name small_names[] = {
    {.hf = "model.final_layernorm", .gguf = "output_norm"},
    {.hf = SMALL_LAYER "self_attn.query_key_value", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_FUSED_BY_GROUP},
    {.hf = SMALL_LAYER "self_attn.dense", .gguf = "blk.{}.attn_output"},
    {.hf = SMALL_LAYER "mlp.up_proj.weight", .gguf = "blk.{}.ffn_gate.weight", .second = "blk.{}.ffn_up.weight",
     .form = PP_HF_INTERLEAVED, .whole = true},
    {.hf = SMALL_LAYER "mlp.up_proj.bias", .gguf = "blk.{}.ffn_gate.bias", .second = "blk.{}.ffn_up.bias",
     .form = PP_HF_INTERLEAVED, .whole = true},
    {.hf = NULL},
};
static const char *const small_classes[] = {"Phi3SmallForCausalLM", "phi3small", NULL};
static const char *const small_gate_names[] = {"gegelu", NULL};
static const struct pp_arch_default small_defaults[] = {
    {.json = "{\"vocab_size\": 100352, \"hidden_size\": 4096, \"intermediate_size\": 14336,"
             "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
             "\"max_position_embeddings\": 8192, \"rope_embedding_base\": 1e6, \"layer_norm_epsilon\": 1e-5,"
             "\"hidden_act\": \"gegelu\", \"gegelu_limit\": 20, \"blocksparse_block_size\": 64,"
             "\"blocksparse_num_local_blocks\": 16, \"blocksparse_vert_stride\": 8,"
             "\"dense_attention_every_n_layers\": 2, \"mup_width_multiplier\": 8,"
             "\"mup_embedding_multiplier\": 10, \"mup_attn_multiplier\": 1, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};
static const char blocks_keys[3][64] = {"phi3small.attention.near_blocks", "phi3small.attention.far_block_step",
                                        "phi3small.attention.dense_layer_step"};

/* Unused tokens of the models' common vocabulary are never generated. */
static void silence_small(struct pp_hparams *hp)
{
    static const int64_t ranges[][2] = {{100256, 100257}, {100258, 100261}, {100264, 100266}, {100267, 100352}};
    for (int i = 0; i < PP_SUPPRESSED_RANGES && hp->n_vocab == ranges[PP_SUPPRESSED_RANGES - 1][1]; i++) {
        hp->suppressed[i].first = ranges[i][0];
        hp->suppressed[i].end = ranges[i][1];
    }
}

static enum pp_code check_blocks(const struct pp_hparams *hp, struct pp_error *err)
{
    return hp->n_local_blocks > 0 ? PP_OK
                          : pp_fail(err, PP_ERR_UNSUPPORTED, "a model of this family whose heads see no last blocks "
                                    "of positions is not supported");
}

static enum pp_code check_limit(float limit, struct pp_error *err)
{
    return limit > 0 ? PP_OK : pp_fail(err, PP_ERR_UNSUPPORTED, "gates' bound is %g; only a model of this family with "
                                       "one above 0 is supported", (double)limit);
}

/* The feed-forward width: itself, or ff_dim_multiplier times the model's. (pp_hparams_check refuses it if too
 * large.) */
static enum pp_code small_n_ff(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum { PAD = 256, MOST = 1 << 22 };
    int64_t times = 0;
    enum pp_code code = pp_config_int(config, "ff_dim_multiplier", &times, err);
    const bool by_model = !code && times > 0 && times < MOST && hp->n_embd < MOST;
    if (by_model)
        hp->n_ff = times * (hp->n_embd / 3) * 2;
    if (by_model && pp_config_flag(config, "gegelu_pad_to_256", true))
        hp->n_ff = (hp->n_ff + PAD - 1) / PAD * PAD;
    if (!code && (times < 0 || times >= MOST))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: ff_dim_multiplier is %lld, which cannot be right",
                       (long long)times);
    return code ? code : pp_config_int(config, "ff_intermediate_size", &hp->n_ff, err);
}

static enum pp_code small_blocks(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t size = PP_PAGE_TOKENS;
    enum pp_code code = pp_config_int(config, "blocksparse_block_size", &size, err);
    if (!code)
        code = pp_config_int(config, "blocksparse_num_local_blocks", &hp->n_local_blocks, err);
    if (!code)
        code = pp_config_int(config, "blocksparse_vert_stride", &hp->vert_stride, err);
    if (!code)
        code = pp_config_int(config, "dense_attention_every_n_layers", &hp->dense_attn_step, err);
    if (!code && (size != PP_PAGE_TOKENS || pp_config_flag(config, "blocksparse_homo_head_pattern", false)))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: heads see blocks of %lld positions%s, which pippin does "
                       "not compute; blocks of %d are, other ones of each head", (long long)size,
                       size == PP_PAGE_TOKENS ? ", all the same" : "", PP_PAGE_TOKENS);
    return code ? code : check_blocks(hp, err);
}

/* muP's scales; null: none. */
static enum pp_code small_scales(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float width = 0, attention = 0;
    enum pp_code code = pp_config_float(config, "mup_embedding_multiplier", &hp->embd_scale, err);
    if (!code)
        code = pp_config_float(config, "mup_width_multiplier", &width, err);
    if (!code)
        code = pp_config_float(config, "mup_attn_multiplier", &attention, err);
    if (code)
        return code;
    hp->logit_scale = width != 0.0f ? 1 / width : 0;
    if (pp_config_flag(config, "mup_use_scaling", true))
        hp->attn_scale = attention / (float)hp->head_dim;
    return PP_OK;
}

static enum pp_code small_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float limit = 0, position_scale = 1;
    hp->rope_base = 1e6f;
    enum pp_code code = pp_config_activation(config, "hidden_act", small_gate_names, err);
    if (!code)
        code = pp_config_float(config, "rope_embedding_base", &hp->rope_base, err);
    if (!code)
        code = pp_config_float(config, "rope_position_scale", &position_scale, err);
    if (!code && position_scale != 1.0f)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: rope_position_scale is %g, which pippin does not "
                       "compute; 1 is", (double)position_scale);
    if (!code)
        code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_float(config, "gegelu_limit", &limit, err);
    if (!code)
        code = check_limit(limit, err);
    if (!code)
        code = pp_bound_gates(hp, limit, "the bound of gates", err);
    if (!code)
        code = small_n_ff(config, hp, err);
    if (!code)
        code = small_blocks(config, hp, err);
    if (!code)
        code = small_scales(config, hp, err);
    silence_small(hp);
    return code ? code : config_mscale(config, hp, err);
}

static enum pp_code small_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t *const numbers[] = {&hp->n_local_blocks, &hp->vert_stride, &hp->dense_attn_step};
    for (int i = 0; i < 3; i++)
        pp_gguf_int(g, blocks_keys[i], numbers[i]);
    silence_small(hp);
    enum pp_code code = check_blocks(hp, err);
    if (!code)
        code = pp_bounds_from_gguf(g, hp, err);
    return code ? code : check_limit(hp->gate_bound[0], err);
}

static void small_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    const int64_t numbers[] = {hp->n_local_blocks, hp->vert_stride, hp->dense_attn_step};
    for (int i = 0; i < 3; i++)
        pp_gguf_add_u32(w, blocks_keys[i], (uint32_t)numbers[i]);
    pp_bounds_to_gguf(hp, w);
}

/* The model's configuration class computes intermediate_size and fails if the key is there. */
static void small_to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *rope = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    cJSON_DeleteItemFromObject(config, "intermediate_size");
    pp_config_put(config, "ff_intermediate_size", hp->n_ff);
    pp_config_put_text(config, "hidden_act", small_gate_names[0]);
    pp_config_put_float(config, "gegelu_limit", hp->gate_bound[0]);
    pp_config_put_float(config, "rope_embedding_base", hp->rope_base);
    pp_config_put(config, "blocksparse_block_size", PP_PAGE_TOKENS);
    pp_config_put(config, "blocksparse_num_local_blocks", hp->n_local_blocks);
    pp_config_put(config, "blocksparse_vert_stride", hp->vert_stride);
    pp_config_put(config, "dense_attention_every_n_layers", hp->dense_attn_step);
    pp_config_put_float(config, "mup_embedding_multiplier", hp->embd_scale != 0.0f ? hp->embd_scale : 1);
    pp_config_put_float(config, "mup_width_multiplier", hp->logit_scale != 0.0f ? 1 / hp->logit_scale : 1);
    cJSON_AddBoolToObject(config, "mup_use_scaling", hp->attn_scale != 0.0f);
    if (hp->attn_scale != 0.0f)
        pp_config_put_float(config, "mup_attn_multiplier", hp->attn_scale * (float)hp->head_dim);
    if (rope && hp->rope_attn_factor != 0.0f) {
        pp_config_put_float(rope, "short_mscale", hp->rope_attn_factor);
        pp_config_put_float(rope, "long_mscale", hp->rope_attn_factor);
    }
}

const struct pp_arch pp_arch_phi3small = {
    .name = "phi3small",
    .hf_classes = small_classes,
    .names = small_names,
    .more_names = pp_common_names,
    .ignored = ignored3,
    .defaults = small_defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .fused_qkv = true, .fn = PP_FN_CLAMPED},
    .from_config = small_from_config,
    .from_gguf = small_from_gguf,
    .to_gguf = small_to_gguf,
    .to_config = small_to_config,
    .hf_eps = "layer_norm_epsilon",
};
