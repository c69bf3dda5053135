/* plamo2.c - PLaMo 2 (arXiv 2509.04897): Mamba in most layers, attention in the others. States are Mamba 2's, but dt,
 * B and C come from the convolution's output as in Mamba, and are normalised. Both parts have pre-norms and
 * post-norms, and each head of queries and keys has a norm with its own vector. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"

#define LAYER "model.layers.layers.{}."
#define WHOLE(from, to) {.hf = LAYER from, .gguf = "blk.{}." to, .whole = true}
#define FORMED(from, to, how) {.hf = LAYER from, .gguf = "blk.{}." to, .form = how, .whole = true}

static const struct pp_arch_name names[] = {
    {.hf = "model.embed_tokens", .gguf = "token_embd"},
    {.hf = "model.norm", .gguf = "output_norm", .form = PP_HF_PLUS_ONE},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = LAYER "pre_mixer_norm", .gguf = "blk.{}.attn_norm", .form = PP_HF_PLUS_ONE},
    FORMED("post_mixer_norm.weight", "post_attention_norm", PP_HF_PLUS_0_2),
    {.hf = LAYER "pre_mlp_norm", .gguf = "blk.{}.ffn_norm", .form = PP_HF_PLUS_ONE},
    FORMED("post_mlp_norm.weight", "post_ffw_norm", PP_HF_PLUS_0_2_POW_1_5),
    {.hf = LAYER "mixer.qkv_proj", .gguf = "blk.{}.attn_qkv"},
    WHOLE("mixer.q_weight", "attn_q_norm.weight"),
    WHOLE("mixer.k_weight", "attn_k_norm.weight"),
    {.hf = LAYER "mixer.o_proj", .gguf = "blk.{}.attn_output"},
    {.hf = LAYER "mixer.in_proj", .gguf = "blk.{}.ssm_in"},
    FORMED("mixer.conv1d.weight", "ssm_conv1d.weight", PP_HF_CONV),
    {.hf = LAYER "mixer.bcdt_proj", .gguf = "blk.{}.ssm_x"},
    WHOLE("mixer.dt_norm_weight", "ssm_dt_norm"),
    WHOLE("mixer.B_norm_weight", "ssm_b_norm"),
    WHOLE("mixer.C_norm_weight", "ssm_c_norm"),
    {.hf = LAYER "mixer.dt_proj", .gguf = "blk.{}.ssm_dt"},
    WHOLE("mixer.dt_bias", "ssm_dt.bias"),
    FORMED("mixer.A_log", "ssm_a", PP_HF_MINUS_EXP),
    WHOLE("mixer.D", "ssm_d"),
    {.hf = LAYER "mixer.out_proj", .gguf = "blk.{}.ssm_out"},
    {.hf = LAYER "mlp.gate_up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = LAYER "mlp.down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const char *const classes[] = {"Plamo2ForCausalLM", "PLaMo2ForCausalLM", "plamo2", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 13312, \"num_hidden_layers\": 32,"
             "\"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"rms_norm_eps\": 1e-6,"
             "\"max_position_embeddings\": 2048, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

/* Constants that neither files nor folders have: the rank of dt, and one B and C for all heads. */
static void finish(struct pp_hparams *hp)
{
    enum { LEAST_RANK = 64 };
    hp->mamba = hp->state_by_head = hp->qk_norm = true;
    hp->state_rank = hp->n_embd / 16 > LEAST_RANK ? hp->n_embd / 16 : LEAST_RANK;
    hp->n_state_key_head = 1;
}

/* Files have 0 heads in layers with states. Such layers get the others' numbers, so that `sizes_vary` stays false
 * unless attention layers differ. */
static void fill_sizes(struct pp_hparams *hp)
{
    bool differ = false;
    for (int64_t l = 0; l < hp->n_layer; l++) {
        struct pp_layer_sizes *s = &hp->sizes[l];
        if (hp->layer[l] & PP_LAYER_RECURRENT) {
            s->n_head = (int32_t)hp->n_head;
            s->n_head_kv = (int32_t)hp->n_head_kv;
        }
        differ = differ || s->n_head != hp->n_head || s->n_head_kv != hp->n_head_kv || s->n_ff != hp->n_ff;
    }
    hp->sizes_vary = differ;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_states_from_gguf(g, hp, err);
    finish(hp);
    fill_sizes(hp);
    return code;
}

/* ssm.group_count is written as 0, since other programs would expect more rows of the convolution for any other
 * number. */
static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    struct pp_hparams said = *hp;
    said.n_state_key_head = 0;
    pp_states_to_gguf(&said, w);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Whether a layer has attention: one of every `step` layers. */
static bool attends(int64_t n_layer, int64_t step, int64_t l)
{
    return n_layer <= step / 2 ? l == n_layer - 1 : l % step == step / 2;
}

static enum pp_code layers_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t step = 2;
    enum pp_code code = pp_config_int(config, "mamba_step", &step, err);
    if (!code && !pp_config_flag(config, "mamba_enabled", true))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: mamba_enabled is false, and a model of this family "
                       "without states is not supported");
    if (!code && (step < 2 || step > INT32_MAX))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: mamba_step is %lld; it must be 2 or more", (long long)step);
    for (int64_t l = 0; l < hp->n_layer && !code; l++)
        hp->layer[l] |= attends(hp->n_layer, step, l) ? 0 : PP_LAYER_RECURRENT;
    return code;
}

/* The window, which does not include the row itself in config.json, and the layers listed as having none. */
static enum pp_code windows_from(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, "full_attention_idx"), *item;
    enum pp_code code = pp_config_int(config, "attention_window_size", &hp->window, err);
    if (!code && (hp->window < 1 || hp->window >= INT32_MAX))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: attention_window_size is %lld, not a size of windows",
                       (long long)hp->window);
    hp->window++;
    if (list && !cJSON_IsNull(list) && !cJSON_IsArray(list))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: full_attention_idx is not a list of layers");
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < (double)hp->n_layer))
            return pp_fail(err, PP_ERR_FORMAT, "config.json: full_attention_idx lists something other than layers");
        hp->layer[item->valueint] |= PP_LAYER_WIDE;
    }
    return code;
}

/* Drops a window that no attention layer uses. */
static void drop_window(struct pp_hparams *hp)
{
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (!(hp->layer[l] & (PP_LAYER_WIDE | PP_LAYER_RECURRENT)))
            return;
    hp->window = 0;
    for (int64_t l = 0; l < hp->n_layer; l++)
        hp->layer[l] &= (uint8_t)~PP_LAYER_WIDE;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    hp->head_dim = 128;
    hp->n_state_head = hp->state_key_dim = 64;
    hp->conv_taps = 4;
    hp->window = 2048;
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {{"hidden_size_per_head", &hp->head_dim}, {"mamba_num_heads", &hp->n_state_head},
                   {"mamba_d_state", &hp->state_key_dim}, {"mamba_d_conv", &hp->conv_taps}};
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = pp_config_int(config, numbers[i].key, numbers[i].v, err);
    if (!code)
        code = layers_from(config, hp, err);
    if (!code)
        code = windows_from(config, hp, err);
    hp->rope_dim = hp->state_value_dim = hp->head_dim;
    finish(hp);
    drop_window(hp);
    return code;
}

/* The reverse: the step between attention layers; 2 if there are none, as tensors then decide. */
static int64_t step_of(const struct pp_hparams *hp)
{
    for (int64_t step = 2; step <= 2 * hp->n_layer + 1; step++) {
        int64_t l = 0;
        while (l < hp->n_layer && attends(hp->n_layer, step, l) == !(hp->layer[l] & PP_LAYER_RECURRENT))
            l++;
        if (l == hp->n_layer)
            return step;
    }
    return 2;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *list = cJSON_AddArrayToObject(config, "full_attention_idx");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "head_dim");
    pp_config_put(config, "hidden_size_per_head", hp->head_dim);
    pp_config_put(config, "attention_window_size", hp->window ? hp->window - 1 : hp->n_ctx_train);
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (!(hp->layer[l] & PP_LAYER_RECURRENT) && (!hp->window || hp->layer[l] & PP_LAYER_WIDE))
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)l));
    cJSON_AddTrueToObject(config, "mamba_enabled");
    pp_config_put(config, "mamba_step", step_of(hp));
    pp_config_put(config, "mamba_num_heads", hp->n_state_head);
    pp_config_put(config, "mamba_d_state", hp->state_key_dim);
    pp_config_put(config, "mamba_d_conv", hp->conv_taps);
    pp_config_put(config, "mamba_chunk_size", 256);
}

const struct pp_arch pp_arch_plamo2 = {
    .name = "plamo2",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.post_norm = true, .qk_norm = PP_QK_OPTIONAL, .head_eps = 1e-6f, .fused_qkv = true, .fused_gate = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
