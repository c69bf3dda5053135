/* xlstm.c - xLSTM 7B and similar models (arXiv 2503.13427; transformers, models/xlstm): each layer is a matrix memory,
 * mLSTM (decoder_mlstm.c), and a feed-forward part; there is no attention. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

#define BLOCK "backbone.blocks.{}."
#define MIXER BLOCK "mlstm_layer."

static const struct pp_arch_name names[] = {
    {.hf = "backbone.embeddings", .gguf = "token_embd"},
    {.hf = "backbone.out_norm", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = BLOCK "norm_mlstm", .gguf = "blk.{}.attn_norm"},
    {.hf = MIXER "q", .gguf = "blk.{}.attn_q"},
    {.hf = MIXER "k", .gguf = "blk.{}.attn_k"},
    {.hf = MIXER "v", .gguf = "blk.{}.attn_v"},
    {.hf = MIXER "query", .gguf = "blk.{}.attn_q", .read_only = true}, /* names in some versions of transformers */
    {.hf = MIXER "key", .gguf = "blk.{}.attn_k", .read_only = true},
    {.hf = MIXER "value", .gguf = "blk.{}.attn_v", .read_only = true},
    {.hf = MIXER "ogate_preact", .gguf = "blk.{}.attn_gate"},
    {.hf = MIXER "igate_preact", .gguf = "blk.{}.mlstm_in_gate"},
    {.hf = MIXER "fgate_preact", .gguf = "blk.{}.mlstm_forget_gate"},
    {.hf = MIXER "qkv_opreact", .gguf = "blk.{}.mlstm_in"},
    {.hf = MIXER "ifgate_preact", .gguf = "blk.{}.mlstm_gates"},
    {.hf = MIXER "multihead_norm", .gguf = "blk.{}.mlstm_norm"},
    {.hf = MIXER "out_proj", .gguf = "blk.{}.attn_output"},
    {.hf = BLOCK "norm_ffn", .gguf = "blk.{}.ffn_norm"},
    {.hf = BLOCK "ffn.proj_up_gate_z", .gguf = "blk.{}.ffn_gate_up"},
    {.hf = BLOCK "ffn.proj_up_gate", .gguf = "blk.{}.ffn_gate"},
    {.hf = BLOCK "ffn.proj_up", .gguf = "blk.{}.ffn_up"},
    {.hf = BLOCK "ffn.proj_down", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const char *const classes[] = {"xLSTMForCausalLM", "xlstm", NULL};
/* Placeholders for the common reader, whose keys are absent here; see from_config. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 50304, \"hidden_size\": 4096, \"num_hidden_layers\": 32, \"num_heads\": 8, "
             "\"intermediate_size\": null}"},
    {.json = NULL},
};
static const float usual_cap = 15, usual_logit_cap = 30;
static const double usual_keys = 0.5, usual_values = 1, usual_ff = 2.667; /* factors of n_embd */
enum { USUAL_STEP = 64 }; /* the feed-forward width is a multiple of it */

static void set_states_only(struct pp_hparams *hp)
{
    hp->mlstm = true;
    hp->sizes_vary = false;
    hp->n_head = hp->n_head_kv = 1;
    hp->head_dim = hp->rope_dim = 2;
    hp->n_state_key_head = hp->n_state_head;
    pp_layers_every(hp, 1, PP_LAYER_RECURRENT | PP_LAYER_UNROTATED);
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

enum { KEY = 128 };

static const char *key_of(const char *name, char key[KEY])
{
    snprintf(key, KEY, "xlstm.mlstm.%s", name);
    return key;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *name;
        int64_t *v;
    } sizes[] = {{"head_count", &hp->n_state_head}, {"key_length", &hp->state_key_dim},
                 {"value_length", &hp->state_value_dim}};
    const struct {
        const char *name;
        float *v;
    } numbers[] = {{"gate_softcapping", &hp->gate_cap}, {"epsilon", &hp->state_eps}};
    char key[KEY];
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !code; i++)
        code = pp_gguf_need_int(g, key_of(sizes[i].name, key), sizes[i].v, err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = pp_gguf_need_float(g, key_of(numbers[i].name, key), numbers[i].v, err);
    if (code)
        return code;
    pp_gguf_bool(g, key_of("fused", key), &hp->fused_parts);
    pp_gguf_bool(g, key_of("biased", key), &hp->biased_parts);
    set_states_only(hp);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    char key[KEY];
    pp_gguf_add_u32(w, key_of("head_count", key), (uint32_t)hp->n_state_head);
    pp_gguf_add_u32(w, key_of("key_length", key), (uint32_t)hp->state_key_dim);
    pp_gguf_add_u32(w, key_of("value_length", key), (uint32_t)hp->state_value_dim);
    pp_gguf_add_f32(w, key_of("gate_softcapping", key), hp->gate_cap);
    pp_gguf_add_f32(w, key_of("epsilon", key), hp->state_eps);
    pp_gguf_add_bool(w, key_of("fused", key), hp->fused_parts);
    pp_gguf_add_bool(w, key_of("biased", key), hp->biased_parts);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* A factor of n_embd, as a double, since other programs compute sizes with doubles. */
static enum pp_code read_part(const cJSON *config, const char *name, double *part, struct pp_error *err)
{
    const cJSON *item = pp_json_member(config, name);
    if (cJSON_IsNumber(item))
        *part = item->valuedouble;
    if ((item && !cJSON_IsNumber(item)) || !(*part > 0 && *part <= 1024))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s is not the number it should be", name);
    return PP_OK;
}

/* The size of a head: n_embd * part over the number of heads. */
static enum pp_code share_out(const char *name, double part, const struct pp_hparams *hp, int64_t *dim,
                              struct pp_error *err)
{
    const int64_t n = (int64_t)((double)hp->n_embd * part);
    *dim = n / hp->n_state_head;
    if (n % hp->n_state_head == 0)
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "config.json: %s gives %lld values, which %lld heads cannot share evenly", name,
                   (long long)n, (long long)hp->n_state_head);
}

/* The feed-forward width, rounded up to a multiple of `step`, in the arithmetic of transformers. */
static enum pp_code read_ff(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    double part = usual_ff;
    int64_t step = USUAL_STEP;
    enum pp_code code = read_part(config, "ffn_proj_factor", &part, err);
    if (!code)
        code = pp_config_int(config, "ffn_round_up_to_multiple_of", &step, err);
    if (!code)
        code = pp_check_range("step of the feed-forward parts' size", step, 1, 1 << 20, err);
    if (code)
        return code;
    const double n = (double)hp->n_embd * part + (double)step - 1;
    hp->n_ff = (int64_t)(n - fmod(n, (double)step));
    return PP_OK;
}

static enum pp_code read_sizes(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t width = hp->n_embd;
    double keys = usual_keys, values = usual_values;
    hp->n_state_head = 8;
    enum pp_code code = pp_config_int(config, "num_blocks", &hp->n_layer, err);
    if (!code)
        code = pp_check_layers(hp, err);
    if (!code)
        code = pp_config_int(config, "num_heads", &hp->n_state_head, err);
    if (!code)
        code = pp_check_range("width", hp->n_embd, 1, 1 << 20, err);
    if (!code)
        code = pp_check_range("number of heads with states", hp->n_state_head, 1, 1 << 12, err);
    if (!code)
        code = pp_config_int(config, "embedding_dim", &width, err);
    if (!code && width != hp->n_embd)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: embedding_dim is %lld and hidden_size %lld (4096 if it "
                       "is not there); they must be the same", (long long)width, (long long)hp->n_embd);
    if (!code)
        code = read_part(config, "qk_dim_factor", &keys, err);
    if (!code)
        code = read_part(config, "v_dim_factor", &values, err);
    if (!code)
        code = share_out("qk_dim_factor", keys, hp, &hp->state_key_dim, err);
    if (!code)
        code = share_out("v_dim_factor", values, hp, &hp->state_value_dim, err);
    return code ? code : read_ff(config, hp, err);
}

/* A soft cap; null: none, which is allowed for logits only. */
static enum pp_code read_cap(const cJSON *config, const char *name, bool needed, float *cap, struct pp_error *err)
{
    const bool none = cJSON_IsNull(pp_json_member(config, name));
    enum pp_code code = PP_OK;
    if (none && !needed)
        *cap = 0;
    else if (none || (code = pp_config_float(config, name, cap, err)) || !(*cap > 0))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is not a number above 0, which pippin needs", name);
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const modes[] = {"single", "fused"};
    const cJSON *mode = pp_json_member(config, "weight_mode");
    const char *word = mode && !cJSON_IsNull(mode) ? cJSON_GetStringValue(mode) : modes[0];
    hp->fused_parts = word && strcmp(word, modes[1]) == 0;
    if (!word || (!hp->fused_parts && strcmp(word, modes[0]) != 0))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: weight_mode is neither \"single\" nor \"fused\"");
    hp->biased_parts = pp_config_flag(config, "use_bias", false);
    hp->gate_cap = usual_cap;
    hp->final_softcap = usual_logit_cap;
    hp->state_eps = hp->norm_eps = 1e-6f;
    enum pp_code code = read_sizes(config, hp, err);
    if (!code)
        code = pp_config_float(config, "norm_eps", &hp->norm_eps, err);
    if (!code)
        code = pp_config_float(config, "eps", &hp->state_eps, err);
    if (!code)
        code = read_cap(config, "gate_soft_cap", true, &hp->gate_cap, err);
    if (!code)
        code = read_cap(config, "output_logit_soft_cap", false, &hp->final_softcap, err);
    hp->n_ctx_train = 1 << 20; /* there is no limit; this is what converters write */
    set_states_only(hp);
    return code;
}

/* The reverse: a factor of the width that gives n when the product is truncated. */
static double part_of(int64_t n, const struct pp_hparams *hp)
{
    const double width = (double)hp->n_embd, part = (double)n / width;
    return (int64_t)(part * width) == n ? part : ((double)n + 0.5) / width;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    static const char *const gone[] = {"num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
                                       "max_position_embeddings", "rope_theta", "partial_rotary_factor", "hidden_act",
                                       "attention_bias", "mlp_bias"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, gone[i]);
    pp_config_put(config, "embedding_dim", hp->n_embd);
    pp_config_put(config, "num_blocks", hp->n_layer);
    pp_config_put(config, "num_heads", hp->n_state_head);
    cJSON_AddNumberToObject(config, "qk_dim_factor", part_of(hp->n_state_head * hp->state_key_dim, hp));
    cJSON_AddNumberToObject(config, "v_dim_factor", part_of(hp->n_state_head * hp->state_value_dim, hp));
    cJSON_AddNumberToObject(config, "ffn_proj_factor", part_of(hp->n_ff, hp));
    pp_config_put(config, "ffn_round_up_to_multiple_of", 1);
    pp_config_put_float(config, "gate_soft_cap", hp->gate_cap);
    if (hp->final_softcap != 0.0f)
        pp_config_put_float(config, "output_logit_soft_cap", hp->final_softcap);
    else
        cJSON_AddNullToObject(config, "output_logit_soft_cap");
    pp_config_put_float(config, "eps", hp->state_eps);
    cJSON_AddBoolToObject(config, "use_bias", hp->biased_parts);
    pp_config_put_text(config, "weight_mode", hp->fused_parts ? "fused" : "single");
    cJSON_AddTrueToObject(config, "add_out_norm");
}

const struct pp_arch pp_arch_xlstm = {
    .name = "xlstm",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
    .hf_eps = "norm_eps",
};
