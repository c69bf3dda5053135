/* export_config.c - config.json, as transformers writes it, for a model from a GGUF file. What only one family has is
 * in its file (engine/arch/, to_config).
 *
 * GGUF has Llama 3's RoPE scaling as divisors of all frequencies (rope_freqs.weight). Between the two ends they are 1 /
 * ((1 - s) / factor + s), s = (context / wavelength - low) / (high - low). The three numbers cannot be recovered
 * uniquely, as all may be multiplied by a common factor, so low is taken to be 1, as it always is. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/export.h"
#include "engine/hf.h"
#include "engine/rope.h"
#include "engine/text.h"

static const float TAU = 6.283185307f;

/* --- RoPE scaling ------------------------------------------------------------------------------------------------- */

/* Whether this scaling divides the frequencies freq [n] by d [n]. */
static bool divides_by(const struct pp_hparams *scaled, const float *freq, const float *d, int64_t n, float *room)
{
    float magnitude;
    pp_rope_frequencies(scaled, scaled->n_ctx_train, NULL, room, &magnitude);
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(room[i] * d[i] / freq[i] - 1) <= 2e-5f))
            return false;
    return true;
}

/* No divisor is between the ends: the first wavelength that is divided is above the context, the one before it is below
 * context / high. */
static void fit_between(struct pp_hparams *hp, const float *freq, const float *d, int64_t n)
{
    int64_t i = 0;
    while (i < n && d[i] <= 1.0001f)
        i++;
    if (i == n)
        return;
    const double above = (double)TAU / (double)freq[i], below = i ? (double)TAU / (double)freq[i - 1] : above / 16;
    hp->rope_high_freq = (float)fmin((double)hp->rope_high_freq, sqrt(above / below));
    hp->rope_orig_ctx = llrint(sqrt(above * below * (double)hp->rope_high_freq));
}

/* s is linear in 1 / wavelength: the line goes through the first and the last point between the ends. If there is only
 * one, high is taken to be 4. */
static void fit_context(struct pp_hparams *hp, const float *freq, const float *d, int64_t n)
{
    int64_t first = -1, last = -1;
    float high = 4;
    double x[2] = {0}, s[2] = {0};
    for (int64_t i = 0; i < n; i++)
        if (d[i] > 1.0001f && d[i] < hp->rope_factor * 0.9999f) {
            first = first < 0 ? i : first;
            last = i;
        }
    for (int k = 0; k < 2 && first >= 0; k++) {
        const int64_t i = k ? last : first;
        x[k] = (double)freq[i] / (double)TAU;
        s[k] = (1 / (double)d[i] - 1 / (double)hp->rope_factor) / (1 - 1 / (double)hp->rope_factor);
    }
    if (first >= 0 && last > first) {
        const double slope = (s[0] - s[1]) / (x[0] - x[1]), at_zero = s[0] - slope * x[0];
        const float exact = (float)(1 - 1 / at_zero);
        high = fabsf(exact - rintf(exact)) < 1e-3f ? rintf(exact) : exact;
    }
    hp->rope_low_freq = 1;
    hp->rope_high_freq = high;
    if (first >= 0)
        hp->rope_orig_ctx = llrint((s[0] * ((double)high - 1) + 1) / x[0]);
    else
        fit_between(hp, freq, d, n);
}

/* Finds Llama 3's numbers from the divisors, and sets them in *hp. */
static enum pp_code find_llama3(const struct pp_tensor *t, struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t n = hp->rope_dim / 2;
    float *freq = pp_calloc(2 * (size_t)n, sizeof *freq), magnitude;
    const float *d = t->data;
    bool found = t->type == PP_TYPE_F32 && t->n_dims == 1 && t->ne[0] >= n;
    if (!freq)
        return pp_fail_nomem(err, t->name);
    pp_rope_frequencies(hp, hp->n_ctx_train, NULL, freq, &magnitude);
    hp->rope_factor = 1;
    for (int64_t i = 0; i < n && found; i++)
        hp->rope_factor = fmaxf(hp->rope_factor, d[i]);
    if (found && isfinite(hp->rope_factor) && hp->rope_factor > 1) {
        hp->rope_scaling = PP_ROPE_LLAMA3;
        fit_context(hp, freq, d, n);
        found = hp->rope_orig_ctx > 0 && hp->rope_high_freq > 1 && divides_by(hp, freq, d, n, freq + n);
    } else {
        found = found && hp->rope_factor == 1; /* no frequency is scaled */
    }
    pp_free(freq);
    return found ? PP_OK : pp_fail(err, PP_ERR_UNSUPPORTED, "rope_freqs.weight scales frequencies in a way that "
                                                            "config.json cannot express");
}

static void put_factors(cJSON *rope, const char *key, const struct pp_tensor *t)
{
    cJSON *list = cJSON_AddArrayToObject(rope, key);
    for (int64_t i = 0; t && t->type == PP_TYPE_F32 && i < t->ne[0]; i++) {
        cJSON *holder = cJSON_CreateObject();
        pp_config_put_float(holder, "v", ((const float *)t->data)[i]);
        cJSON_AddItemToArray(list, cJSON_DetachItemFromObject(holder, "v"));
        cJSON_Delete(holder);
    }
}

/* Checks that both lists are there, as folders need both. */
static enum pp_code check_factors(const struct pp_source *s, const struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const names[] = {"rope_factors_short.weight", "rope_factors_long.weight"};
    for (size_t i = 0; hp->rope_scaling == PP_ROPE_LONG && i < sizeof names / sizeof *names; i++) {
        const struct pp_tensor *t = pp_source_tensor(s, names[i]);
        if (!t || t->type != PP_TYPE_F32 || t->n_dims != 1 || t->ne[0] != hp->rope_dim / 2)
            return pp_fail(err, PP_ERR_FORMAT, "%s: %s is not %lld F32 values, as config.json needs",
                           pp_source_path(s), names[i], (long long)(hp->rope_dim / 2));
    }
    return PP_OK;
}

static void put_long(const struct pp_source *s, const struct pp_hparams *hp, cJSON *json, cJSON *rope)
{
    struct pp_hparams usual = *hp;
    usual.rope_attn_factor = 0;
    pp_config_put_text(rope, "type", "longrope");
    put_factors(rope, "short_factor", pp_source_tensor(s, "rope_factors_short.weight"));
    put_factors(rope, "long_factor", pp_source_tensor(s, "rope_factors_long.weight"));
    if (hp->rope_attn_factor != 0.0f && fabsf(hp->rope_attn_factor / pp_rope_long_magnitude(&usual) - 1) > 1e-4f)
        pp_config_put_float(rope, "attention_factor", hp->rope_attn_factor);
    pp_config_put(json, "original_max_position_embeddings", hp->rope_orig_ctx);
}

static void put_yarn(const struct pp_hparams *hp, cJSON *rope)
{
    pp_config_put(rope, "original_max_position_embeddings", hp->rope_orig_ctx);
    pp_config_put_float(rope, "beta_fast", hp->rope_beta_fast);
    pp_config_put_float(rope, "beta_slow", hp->rope_beta_slow);
    if (hp->rope_attn_factor != 0.0f)
        pp_config_put_float(rope, "attention_factor", hp->rope_attn_factor);
    if (hp->rope_no_truncate)
        cJSON_AddFalseToObject(rope, "truncate");
}

static void put_scaling(const struct pp_source *s, const struct pp_hparams *hp, cJSON *json)
{
    static const char *const names[] = {[PP_ROPE_LINEAR] = "linear", [PP_ROPE_LLAMA3] = "llama3",
                                        [PP_ROPE_YARN] = "yarn", [PP_ROPE_DYNAMIC] = "dynamic",
                                        [PP_ROPE_LONG] = "longrope"};
    if (hp->rope_scaling == PP_ROPE_NONE)
        return;
    cJSON *rope = cJSON_AddObjectToObject(json, "rope_scaling");
    if (hp->rope_scaling == PP_ROPE_LONG) { /* transformers accepts no other member */
        put_long(s, hp, json, rope);
        return;
    }
    pp_config_put_text(rope, "rope_type", names[hp->rope_scaling]);
    pp_config_put_float(rope, "factor", hp->rope_factor);
    if (hp->rope_scaling == PP_ROPE_YARN)
        put_yarn(hp, rope);
    if (hp->rope_scaling == PP_ROPE_LLAMA3) {
        pp_config_put_float(rope, "low_freq_factor", hp->rope_low_freq);
        pp_config_put_float(rope, "high_freq_factor", hp->rope_high_freq);
        pp_config_put(rope, "original_max_position_embeddings", hp->rope_orig_ctx);
    }
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

/* Whether a name is one of transformers' classes: LlamaForCausalLM, GPT2LMHeadModel. */
static bool is_class(const char *name)
{
    return strstr(name, "For") || pp_ends_with(name, "Model");
}

/* The class is the first class among the family's names, and the model type the first name that is none. */
static void put_names(const struct pp_arch *arch, cJSON *json)
{
    const char *const *type = arch->hf_classes;
    while (*type && is_class(*type))
        type++;
    pp_config_put_class(json, arch->hf_classes[0], *type ? *type : arch->name);
}

static void put_numbers(const struct pp_source *s, const struct pp_arch *arch, const struct pp_hparams *hp, bool tied,
                        cJSON *json)
{
    static const char *const functions[] = {[PP_FN_SILU] = "silu", [PP_FN_GELU] = "gelu",
                                            [PP_FN_GELU_TANH] = "gelu_pytorch_tanh", [PP_FN_CLAMPED] = "silu",
                                            [PP_FN_RELU2] = "relu2", [PP_FN_RELU] = "relu", [PP_FN_XIELU] = "xielu",
                                            [PP_FN_SITU] = "situ"};
    const struct {
        const char *key;
        int64_t v;
    } numbers[] = {
        {"vocab_size", hp->n_vocab}, {"hidden_size", hp->n_embd}, {"num_hidden_layers", hp->n_layer},
        {"num_attention_heads", hp->n_head}, {"num_key_value_heads", hp->n_head_kv}, {"head_dim", hp->head_dim},
        {"intermediate_size", hp->n_ff}, {"max_position_embeddings", hp->n_ctx_train},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        pp_config_put(json, numbers[i].key, numbers[i].v);
    pp_config_put_float(json, arch->hf_eps ? arch->hf_eps : "rms_norm_eps", hp->norm_eps);
    pp_config_put_float(json, "rope_theta", hp->rope_base);
    if (hp->rope_dim != hp->head_dim)
        pp_config_put_float(json, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->head_dim);
    pp_config_put_text(json, "hidden_act", functions[pp_decoder_fn(&arch->decoder, hp)]);
    cJSON_AddBoolToObject(json, "tie_word_embeddings", tied);
    cJSON_AddBoolToObject(json, "attention_bias",
                          pp_source_tensor(s, "blk.0.attn_q.bias") || pp_source_tensor(s, "blk.0.attn_qkv.bias"));
    cJSON_AddBoolToObject(json, "mlp_bias", pp_source_tensor(s, "blk.0.ffn_up.bias") != NULL);
}

static void put_ids(cJSON *json, const struct pp_tokenizer *t)
{
    if (t && pp_tokenizer_bos(t) >= 0)
        pp_config_put(json, "bos_token_id", pp_tokenizer_bos(t));
    if (t && pp_tokenizer_eos(t) >= 0)
        pp_config_put(json, "eos_token_id", pp_tokenizer_eos(t));
}

static enum pp_code of_gguf(const struct pp_source *s, const struct pp_tokenizer *t, bool tied, cJSON *json,
                            struct pp_error *err)
{
    struct pp_hparams hp = *pp_source_hparams(s);
    const struct pp_arch *arch = pp_arch_by_name(hp.arch);
    const struct pp_tensor *divisors = pp_source_tensor(s, "rope_freqs.weight");
    if (!arch->to_config)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is of the family %s: the config.json of its folder cannot be "
                       "written yet", pp_source_path(s), arch->name);
    if (hp.kv_lora_rank && hp.attn_temperature != 0.0f && (hp.yarn_log_multiplier != 0.0f || !arch->parts))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s scales the scores of latent attention in a way that config.json "
                                                "cannot express", pp_source_path(s));
    enum pp_code code = check_factors(s, &hp, err);
    if (!code && divisors && !hp.rope_n_pairs)
        code = find_llama3(divisors, &hp, err);
    if (code)
        return code;
    put_names(arch, json);
    put_numbers(s, arch, &hp, tied, json);
    put_scaling(s, &hp, json);
    put_ids(json, t);
    arch->to_config(&hp, json);
    return PP_OK;
}

/* The class of models with this type; NULL: the family's. */
static const char *class_of(const struct pp_arch *arch, const cJSON *config)
{
    for (const struct pp_arch_default *u = arch->defaults; u && u->json; u++)
        if (u->model_type && pp_arch_is_kind(config, u->model_type, NULL))
            return u->hf_class;
    return NULL;
}

/* For a folder the configuration is copied; of a multimodal model only the language part. */
static enum pp_code of_folder(const struct pp_source *s, bool tied, cJSON **json, struct pp_error *err)
{
    const struct pp_arch *arch = pp_arch_by_name(pp_source_hparams(s)->arch);
    enum pp_code code = pp_json_read(pp_source_folder(s), "config.json", json, err);
    const bool in_part = !code && (pp_source_is_wrapped(s) || cJSON_IsObject(pp_json_member(*json, "text_config")));
    if (!in_part || pp_source_config(s) == NULL)
        return code;
    cJSON_Delete(*json);
    *json = cJSON_Duplicate(pp_source_config(s), true);
    if (!*json)
        return pp_fail_nomem(err, "config.json");
    /* the outer configuration had it */
    if (tied && !pp_arch_encodes(arch) && !pp_json_member(*json, "tie_word_embeddings"))
        cJSON_AddTrueToObject(*json, "tie_word_embeddings");
    const char *hf_class = class_of(arch, *json);
    if (hf_class)
        pp_config_put_class(*json, hf_class, pp_json_member(*json, "model_type")->valuestring);
    else
        put_names(arch, *json);
    return PP_OK;
}

enum pp_code pp_export_config(const struct pp_source *s, const struct pp_tokenizer *t, bool tied, cJSON **json,
                              struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    enum pp_code code;
    *json = NULL;
    if (pp_source_folder(s) && !hp->vision_experts && !hp->legacy_names) {
        code = of_folder(s, tied, json, err);
        if (!code && hp->scales.any)
            pp_arch_by_name(hp->arch)->scaled_config(hp, tied, *json);
    } else if (!(*json = cJSON_CreateObject())) {
        code = pp_fail_nomem(err, "config.json");
    } else {
        code = of_gguf(s, t, tied, *json, err);
    }
    if (code) {
        cJSON_Delete(*json);
        *json = NULL;
    }
    return code;
}
