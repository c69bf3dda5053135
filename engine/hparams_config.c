/* hparams_config.c - hyperparameters from a folder's config.json, as far as families agree on the keys. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/hparams_int.h"

bool pp_json_int(const cJSON *object, const char *key, int64_t *v)
{
    const cJSON *item = pp_json_member(object, key);
    if (!item || cJSON_IsNull(item))
        return true;
    if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= 9007199254740992.0) ||
        trunc(item->valuedouble) != item->valuedouble)
        return false;
    *v = (int64_t)item->valuedouble;
    return true;
}

bool pp_json_float(const cJSON *object, const char *key, float *v)
{
    const cJSON *item = pp_json_member(object, key);
    if (!item || cJSON_IsNull(item))
        return true;
    if (!cJSON_IsNumber(item))
        return false;
    *v = (float)item->valuedouble;
    return true;
}

static enum pp_code fail_number(const char *key, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "config.json: %s is not a valid number", key);
}

static enum pp_code config_yarn(const cJSON *rope, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *factor = pp_json_member(rope, "factor");
    float mscale = 0, mscale_all_dim = 0;
    if (!cJSON_IsNumber(factor) && hp->rope_orig_ctx > 0)
        hp->rope_factor = (float)((double)hp->n_ctx_train / (double)hp->rope_orig_ctx);
    hp->rope_scaling = PP_ROPE_YARN;
    hp->rope_beta_fast = 32;
    hp->rope_beta_slow = 1;
    if (!pp_json_float(rope, "beta_fast", &hp->rope_beta_fast) ||
        !pp_json_float(rope, "beta_slow", &hp->rope_beta_slow) ||
        !pp_json_float(rope, "attention_factor", &hp->rope_attn_factor) || !pp_json_float(rope, "mscale", &mscale) ||
        !pp_json_float(rope, "mscale_all_dim", &mscale_all_dim))
        return fail_number("a member of the YaRN scaling", err);
    hp->rope_no_truncate = cJSON_IsFalse(pp_json_member(rope, "truncate"));
    if (hp->rope_attn_factor == 0 && mscale > 0 && mscale_all_dim > 0)
        hp->rope_attn_factor = pp_hparams_yarn_magnitude(hp->rope_factor, mscale, mscale_all_dim);
    return PP_OK;
}

/* LongRoPE. Its divisors become tensors (pp_hparams_rope_factors). Its factor only determines the magnitude, which
 * follows from both context lengths if there is none. */
static enum pp_code config_long(const cJSON *rope, struct pp_hparams *hp, struct pp_error *err)
{
    const double factor = (double)hp->rope_factor, orig = (double)hp->rope_orig_ctx;
    hp->rope_scaling = PP_ROPE_LONG;
    hp->rope_factor = 1;
    if (!pp_json_float(rope, "attention_factor", &hp->rope_attn_factor))
        return fail_number("the RoPE attention factor", err);
    if (hp->rope_attn_factor == 0 && cJSON_IsNumber(pp_json_member(rope, "factor")))
        hp->rope_attn_factor = factor > 1 && orig > 1 ? (float)sqrt(1 + log(factor) / log(orig)) : 1.0f;
    return PP_OK;
}

/* The context length before scaling may be a member of config.json or of the scaling. */
static enum pp_code config_original(const cJSON *config, const cJSON *rope, struct pp_hparams *hp,
                                    struct pp_error *err)
{
    static const char key[] = "original_max_position_embeddings";
    hp->rope_orig_ctx = hp->n_ctx_train;
    return pp_json_int(config, key, &hp->rope_orig_ctx) && pp_json_int(rope, key, &hp->rope_orig_ctx)
               ? PP_OK : fail_number(key, err);
}

enum pp_code pp_hparams_rope_factors(const cJSON *config, const char *key, int64_t n, float *factors,
                                     struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters"), *item;
    if (!cJSON_IsObject(rope))
        rope = pp_json_member(config, "rope_scaling");
    const cJSON *list = pp_json_member(rope, key);
    int64_t i = 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s of the RoPE scaling is not a list of %lld numbers", key,
                       (long long)n);
    cJSON_ArrayForEach(item, list)
        factors[i++] = cJSON_IsNumber(item) ? (float)item->valuedouble : NAN;
    return PP_OK;
}

static enum pp_code config_scaling(const cJSON *config, const cJSON *rope, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *type = pp_json_member(rope, "rope_type");
    if (!cJSON_IsString(type))
        type = pp_json_member(rope, "type");
    const char *name = cJSON_IsString(type) ? type->valuestring : "default";
    if (strcmp(name, "yarn") == 0 && pp_json_member(rope, "long_factor"))
        name = "longrope"; /* some folders of Phi 3 call it yarn */
    if (strcmp(name, "deepseek_yarn") == 0)
        name = "yarn"; /* Sarvam */
    if (strcmp(name, "default") == 0 || strcmp(name, "mrope") == 0 || strcmp(name, "xdrope") == 0)
        /* For text the position's three numbers are equal, so that these are plain RoPE; a family that has xdrope's
         * alpha handles it. */
        return PP_OK;
    if (!pp_json_float(rope, "factor", &hp->rope_factor))
        return fail_number("the RoPE scaling factor", err);
    if (strcmp(name, "proportional") == 0) {
        hp->rope_scaling = hp->rope_factor != 1.0f ? PP_ROPE_LINEAR : PP_ROPE_NONE;
        return PP_OK;
    }
    if (strcmp(name, "linear") == 0) {
        hp->rope_scaling = PP_ROPE_LINEAR;
        return PP_OK;
    }
    const bool dynamic = strcmp(name, "dynamic") == 0;
    const enum pp_code code = config_original(dynamic ? NULL : config, rope, hp, err);
    if (code)
        return code;
    if (strcmp(name, "yarn") == 0)
        return config_yarn(rope, hp, err);
    if (dynamic) {
        hp->rope_scaling = PP_ROPE_DYNAMIC;
        return PP_OK;
    }
    if (strcmp(name, "longrope") == 0 || strcmp(name, "su") == 0)
        return config_long(rope, hp, err);
    if (strcmp(name, "llama3") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "RoPE scaling \"%.40s\" is not supported; supported are linear, dynamic, llama3, yarn and "
                       "longrope", name);
    hp->rope_scaling = PP_ROPE_LLAMA3;
    if (!pp_json_float(rope, "low_freq_factor", &hp->rope_low_freq) ||
        !pp_json_float(rope, "high_freq_factor", &hp->rope_high_freq))
        return fail_number("a frequency factor", err);
    return PP_OK;
}

/* Whether only the first pairs are rotated, with the frequencies that they would have if all were. */
static bool is_proportional(const cJSON *rope)
{
    const char *type = cJSON_GetStringValue(pp_json_member(rope, "rope_type"));
    return type && strcmp(type, "proportional") == 0;
}

/* transformers lets rope_scaling win over rope_parameters, its newer name. Rather than ignore one of them silently, we
 * require that whatever rope_scaling says is also in rope_parameters. */
static enum pp_code check_rope_twice(const cJSON *config, const cJSON *rope, struct pp_error *err)
{
    const cJSON *scaling = pp_json_member(config, "rope_scaling"), *item;
    if (!cJSON_IsObject(rope) || !cJSON_IsObject(scaling))
        return PP_OK;
    cJSON_ArrayForEach(item, scaling)
    {
        const char *name = strcmp(item->string, "type") == 0 ? "rope_type" : item->string;
        const cJSON *same = pp_json_member(rope, name);
        if (!cJSON_Compare(item, same ? same : pp_json_member(rope, item->string), true))
            return pp_fail(err, PP_ERR_UNSUPPORTED,
                           "config.json: rope_scaling and rope_parameters disagree about %.40s; remove one of them",
                           name);
    }
    return PP_OK;
}

enum pp_code pp_config_rope(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *rope = pp_json_member(config, "rope_parameters");
    const cJSON *by_type = pp_json_member(rope, "full_attention");
    float part = 1;
    if (cJSON_IsObject(by_type)) /* the family reads "sliding_attention" */
        rope = by_type;
    hp->rope_base = 10000;
    hp->rope_factor = 1;
    enum pp_code code = check_rope_twice(config, rope, err);
    if (code)
        return code;
    if (!cJSON_IsObject(rope))
        rope = pp_json_member(config, "rope_scaling");
    const bool listed = cJSON_IsArray(pp_json_member(config, "rope_theta"));
    if ((!listed && !pp_json_float(config, "rope_theta", &hp->rope_base)) || /* the family reads a list */
        !pp_json_float(config, "partial_rotary_factor", &part))
        return fail_number("rope_theta or partial_rotary_factor", err);
    if (cJSON_IsObject(rope)) {
        if (!pp_json_float(rope, "rope_theta", &hp->rope_base) || !pp_json_float(rope, "partial_rotary_factor", &part))
            return fail_number("rope_theta or partial_rotary_factor", err);
        if ((code = config_scaling(config, rope, hp, err)))
            return code;
    }
    if (!(part > 0 && part <= 1))
        return fail_number("partial_rotary_factor", err);
    hp->rope_dim = part == 1.0f ? hp->head_dim : (int64_t)((float)hp->head_dim * part);
    if (is_proportional(rope)) {
        hp->rope_n_pairs = hp->rope_dim / 2;
        hp->rope_dim = hp->head_dim;
    }
    return PP_OK;
}

/* A size under one of several names. */
static enum pp_code config_size(const cJSON *config, const char *const *keys, int64_t *v, struct pp_error *err)
{
    const char *const *key = keys;
    while (key[1] && !pp_json_member(config, *key))
        key++;
    if (!pp_json_int(config, *key, v) || *v <= 0)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s is missing or not a positive integer", *key);
    return PP_OK;
}

/* The width of the feed-forward parts, or a list with one for each layer. */
static enum pp_code config_ff(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const keys[] = {"ffn_hidden_size", "moe_ffn_hidden_size", "intermediate_size", "ffn_dim",
                                       "intermediate_size", NULL};
    static const char each[] = "intermediate_size";
    const cJSON *list = pp_json_member(config, each), *item;
    int64_t l = 0;
    if (!cJSON_IsArray(list) && cJSON_IsArray(pp_json_member(config, "block_configs")))
        return PP_OK; /* the family reads it from there */
    if (cJSON_IsNull(list))
        return PP_OK; /* the default, 4 n_embd, or what the family makes of it */
    if (!cJSON_IsArray(list))
        return config_size(config, keys, &hp->n_ff, err);
    if (cJSON_GetArraySize(list) < hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", each,
                       (long long)hp->n_layer);
    pp_layers_vary_sizes(hp);
    hp->n_ff = hp->sizes_vary = 0;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 1 && item->valuedouble <= 1 << 22))
            return fail_number(each, err);
        if (l == hp->n_layer)
            break;
        hp->sizes_vary = hp->sizes_vary || (l && item->valueint != hp->sizes[0].n_ff);
        hp->n_ff = item->valueint > hp->n_ff ? item->valueint : hp->n_ff;
        hp->sizes[l++].n_ff = item->valueint;
    }
    return PP_OK;
}

/* The number of layers; where it is null, the length of block_configs. */
static enum pp_code config_layers(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const keys[] = {"n_layer", "n_layers", "num_layers", "num_hidden_layers",
                                       "num_transformer_layers", NULL};
    const cJSON *blocks = pp_json_member(config, "block_configs");
    if (!cJSON_IsNull(pp_json_member(config, "num_hidden_layers")) || !cJSON_IsArray(blocks))
        return config_size(config, keys, &hp->n_layer, err);
    hp->n_layer = cJSON_GetArraySize(blocks);
    return PP_OK;
}

/* Families multiply these before pp_hparams_check sees them: no product may overflow. */
static enum pp_code check_factors(const struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = pp_check_range("embedding size", hp->n_embd, 1, 1 << 20, err);
    if (!code)
        code = pp_check_range("number of heads", hp->n_head, 1, 1 << 13, err);
    if (!code)
        code = pp_check_range("number of key heads", hp->n_head_kv, INT32_MIN, 1 << 13, err);
    return code ? code : pp_check_range("head size", hp->head_dim, INT32_MIN, 1 << 20, err);
}

enum pp_code pp_hparams_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char *const vocab[] = {"padded_vocab_size", "vocab_size", NULL};
    static const char *const embd[] = {"n_embd", "n_embed", "d_model", "hidden_size", "model_dim", NULL};
    static const char *const heads[] = {"n_head", "n_heads", "num_attention_heads", "num_heads", "attention_heads",
                                        "num_attention_heads", NULL}; /* the last is what errors say is missing */
    enum pp_code code;
    if ((code = config_size(config, vocab, &hp->n_vocab, err)) ||
        (code = config_size(config, embd, &hp->n_embd, err)) ||
        (code = config_layers(config, hp, err)) || (code = pp_check_layers(hp, err)) ||
        (code = config_size(config, heads, &hp->n_head, err)))
        return code;
    hp->n_ff = 4 * hp->n_embd; /* GPT-2's config.json need not have it */
    if (!pp_json_member(config, "n_embd") && (code = config_ff(config, hp, err)))
        return code;
    hp->n_head_kv = hp->n_head;
    hp->head_dim = hp->n_embd / hp->n_head;
    hp->n_ctx_train = 2048;
    hp->norm_eps = 1e-6f;
    if (!pp_json_int(config, "num_key_value_heads", &hp->n_head_kv) ||
        !pp_json_int(config, "head_dim", &hp->head_dim) ||
        !pp_json_int(config, "max_position_embeddings", &hp->n_ctx_train) ||
        !pp_json_float(config, "rms_norm_eps", &hp->norm_eps))
        return fail_number("num_key_value_heads, head_dim, max_position_embeddings or rms_norm_eps", err);
    if ((code = check_factors(hp, err)))
        return code;
    if (!pp_json_int(config, "num_nextn_predict_layers", &hp->n_nextn) || hp->n_nextn < 0)
        return fail_number("num_nextn_predict_layers", err);
    for (int64_t l = 0; l < hp->n_layer && hp->sizes_vary; l++) {
        hp->sizes[l].n_head = (int32_t)hp->n_head;
        hp->sizes[l].n_head_kv = (int32_t)hp->n_head_kv;
    }
    return pp_config_rope(config, hp, err);
}

enum pp_code pp_config_activation(const cJSON *config, const char *key, const char *const *known, struct pp_error *err)
{
    const cJSON *fn = pp_json_member(config, key);
    const char *const *k = known;
    while (cJSON_IsString(fn) && *k && strcmp(*k, fn->valuestring) != 0)
        k++;
    if (*k)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "activation \"%.40s\" is not supported for this family; it must be %s",
                   fn->valuestring, known[0]);
}

enum pp_code pp_config_word(const cJSON *config, const char *key, const char *const *known, struct pp_error *err)
{
    const char *said = cJSON_GetStringValue(pp_json_member(config, key));
    const char *const *k = known;
    while (said && *k && strcmp(*k, said) != 0)
        k++;
    return *k ? PP_OK
              : pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s \"%.40s\" is not supported for this family; it must "
                                                 "be %s",
                        key, said, known[0]);
}

/* The present name of a kind of layers. */
static const char *layer_word(const char *word)
{
    static const char *const renamed[][2] = {{"mamba", "linear_attention"},
                                             {"attention", "full_attention"},
                                             {"deepseek_sparse_attention", "indexed_attention"},
                                             {"qwen_sparse_attention", "indexed_attention"}};
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        if (strcmp(renamed[i][0], word) == 0)
            return renamed[i][1];
    return word;
}

bool pp_config_is_layer_word(const cJSON *item, const char *word)
{
    return cJSON_IsString(item) && strcmp(layer_word(item->valuestring), layer_word(word)) == 0;
}

enum pp_code pp_config_layer_words(const cJSON *config, const char *key, const char *with, const char *without,
                                   uint8_t bit, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, key), *item;
    int64_t l = 0;
    if (!cJSON_IsArray(list))
        return PP_OK;
    if (cJSON_GetArraySize(list) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", key, (long long)hp->n_layer);
    cJSON_ArrayForEach(item, list)
    {
        const bool has = pp_config_is_layer_word(item, with);
        if (!has && !pp_config_is_layer_word(item, without))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s has \"%.40s\", which is not supported for this "
                                                    "family; it must be %s or %s", key,
                                                    cJSON_IsString(item) ? item->valuestring : "", with, without);
        hp->layer[l] = (uint8_t)((hp->layer[l] & ~bit) | (has ? bit : 0));
        l++;
    }
    return PP_OK;
}

enum pp_code pp_config_layer_types(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    return pp_config_layer_words(config, "layer_types", "full_attention", "sliding_attention", PP_LAYER_WIDE, hp, err);
}
