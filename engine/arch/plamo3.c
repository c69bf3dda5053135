/* plamo3.c - PLaMo 3: pre-norms and post-norms, which folders store without the constant that is added, and norms of
 * the heads of queries and keys; fused gate and up, fused qkv; a window in seven of eight layers, with an unscaled
 * RoPE of another base. In GGUF files the post-norms' names lack ".weight". */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.layers.{}."
#define LOCAL_BASE "plamo3.rope.freq_base_swa"
enum { PATTERN = 8 };

static const struct pp_arch_name names[] = {
    {.hf = "model.embed_tokens", .gguf = "token_embd"},
    {.hf = "model.norm", .gguf = "output_norm", .form = PP_HF_PLUS_ONE},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = LAYER "pre_mixer_norm", .gguf = "blk.{}.attn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "post_mixer_norm.weight", .gguf = "blk.{}.post_attention_norm", .form = PP_HF_PLUS_0_2,
     .whole = true},
    {.hf = LAYER "pre_mlp_norm", .gguf = "blk.{}.ffn_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "post_mlp_norm.weight", .gguf = "blk.{}.post_ffw_norm", .form = PP_HF_PLUS_0_2_POW_1_5, .whole = true},
    {.hf = LAYER "mixer.qkv_proj", .gguf = "blk.{}.attn_qkv"},
    {.hf = LAYER "mixer.q_norm", .gguf = "blk.{}.attn_q_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "mixer.k_norm", .gguf = "blk.{}.attn_k_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "mixer.o_proj", .gguf = "blk.{}.attn_output"},
    {.hf = LAYER "mlp.gate_up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = LAYER "mlp.down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const char *const classes[] = {"Plamo3ForCausalLM", "PLaMo3ForCausalLM", "plamo3", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_key_value_heads\": 4, \"head_dim\": 128, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000,"
             "\"tie_word_embeddings\": true, \"sliding_window_pattern\": 8, \"rope_local_theta\": 10000}"},
    {.json = NULL},
};

/* YaRN with fractional bounds of its ramp. */
static enum pp_code scaling_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float factor = 1;
    int64_t length = 0;
    enum pp_code code = pp_config_float(config, "rope_scaling_factor", &factor, err);
    if (!code)
        code = pp_config_int(config, "initial_context_length", &length, err);
    if (code || factor == 1.0f || hp->rope_scaling != PP_ROPE_NONE) /* rope_scaling takes precedence */
        return code;
    if (!(factor > 0) || length < 1)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: rope_scaling_factor is %g, which needs a positive "
                       "initial_context_length beside it", (double)factor);
    hp->rope_scaling = PP_ROPE_YARN;
    hp->rope_factor = factor;
    hp->rope_orig_ctx = length;
    hp->rope_beta_fast = 32;
    hp->rope_beta_slow = 1;
    hp->rope_no_truncate = true;
    return PP_OK;
}

/* In configurations without rope_scaling_factor the window does not include the row itself. */
static enum pp_code windows_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t pattern = PATTERN;
    hp->window = 0;
    enum pp_code code = pp_config_int(config, "window_size", &hp->window, err);
    if (!code)
        code = pp_config_int(config, "sliding_window", &hp->window, err);
    if (!code)
        code = pp_config_int(config, "sliding_window_pattern", &pattern, err);
    if (!code && (hp->window < 1 || hp->window >= INT32_MAX || pattern < 1))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: window_size or sliding_window_pattern is missing or not a "
                       "positive number");
    if (code)
        return code;
    if (!cJSON_IsNumber(pp_json_member(config, "rope_scaling_factor")))
        hp->window++;
    pp_layers_every(hp, pattern, PP_LAYER_WIDE);
    return pp_config_layer_types(config, hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const refused[] = {"attention_bias", "scale_embedding"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (pp_config_flag(config, refused[i], false))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is true, which pippin does not support",
                           refused[i]);
    enum pp_code code = windows_from(config, hp, err);
    hp->rope_base_local = 10000;
    if (!code)
        code = pp_config_float(config, "rope_local_theta", &hp->rope_base_local, err);
    if (!code)
        code = scaling_from(config, hp, err);
    if (hp->window)
        pp_layers_local_rope(hp);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    double local = (double)hp->rope_base;
    (void)err;
    pp_gguf_float(g, LOCAL_BASE, &local);
    hp->rope_base_local = hp->window ? (float)local : 0;
    hp->rope_no_truncate = hp->rope_scaling == PP_ROPE_YARN;
    if (!pp_gguf_has(g, "plamo3.attention.sliding_window_pattern"))
        pp_layers_every(hp, PATTERN, PP_LAYER_WIDE);
    if (hp->window)
        pp_layers_local_rope(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    if (hp->window)
        pp_gguf_add_f32(w, LOCAL_BASE, hp->rope_base_local);
}

/* The pattern's step, from the first layer without a window; layer_types has every layer. */
static int64_t pattern_of(const struct pp_hparams *hp)
{
    int64_t l = 0;
    while (hp->window && l < hp->n_layer && !(hp->layer[l] & PP_LAYER_WIDE))
        l++;
    return l + 1;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    const int64_t window = hp->window ? hp->window : hp->n_ctx_train; /* unused then */
    pp_config_put_layer_types(config, hp);
    pp_config_put(config, "sliding_window", window);
    pp_config_put(config, "window_size", window);
    pp_config_put(config, "sliding_window_pattern", pattern_of(hp));
    pp_config_put(config, "head_dim", hp->head_dim);
    pp_config_put_float(config, "rope_local_theta", hp->window ? hp->rope_base_local : hp->rope_base);
    pp_config_put_float(config, "rope_scaling_factor", hp->rope_scaling == PP_ROPE_YARN ? hp->rope_factor : 1);
    if (hp->rope_scaling == PP_ROPE_YARN)
        pp_config_put(config, "initial_context_length", hp->rope_orig_ctx);
}

const struct pp_arch pp_arch_plamo3 = {
    .name = "plamo3",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .layer_pattern = PATTERN,
    .yarn_no_truncate = true,
    .decoder = {.post_norm = true, .qk_norm = PP_QK_BY_HEAD, .fused_qkv = true, .fused_gate = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
