/* mamba.c - the parameters of states that families with Mamba (arXiv 2312.00752) or Mamba 2 (arXiv 2405.21060) have in
 * common. */
#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdio.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

const struct pp_mamba_keys pp_mamba_keys = {.taps = "mamba_d_conv", .key_dim = "mamba_d_state",
                                            .n_groups = "mamba_n_groups", .n_heads = "mamba_n_heads",
                                            .head_dim = "mamba_d_head"};

#define MIXER "backbone.layers.{}.mixer."

const struct pp_arch_name pp_mamba_names[] = {
    {.hf = "backbone.embeddings", .gguf = "token_embd"},
    {.hf = "backbone.embedding", .gguf = "token_embd", .read_only = true},
    {.hf = "backbone.norm_f", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = "backbone.layers.{}.norm", .gguf = "blk.{}.attn_norm"},
    {.hf = MIXER "in_proj", .gguf = "blk.{}.ssm_in"},
    {.hf = MIXER "conv1d.weight", .gguf = "blk.{}.ssm_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    {.hf = MIXER "conv1d.bias", .gguf = "blk.{}.ssm_conv1d.bias", .whole = true},
    {.hf = MIXER "out_proj", .gguf = "blk.{}.ssm_out"},
    {.hf = NULL},
};

/* GGUF's keys of states of any kind; the inner width (ssm.inner_size) is handled separately. */
static const struct {
    const char *key;
    size_t place; /* offset in struct pp_hparams */
} state_keys[] = {
    {"ssm.conv_kernel", offsetof(struct pp_hparams, conv_taps)},
    {"ssm.state_size", offsetof(struct pp_hparams, state_key_dim)},
    {"ssm.group_count", offsetof(struct pp_hparams, n_state_key_head)},
    {"ssm.time_step_rank", offsetof(struct pp_hparams, n_state_head)},
};
enum { N_STATE_KEYS = sizeof state_keys / sizeof *state_keys };
static const char inner_key[] = "ssm.inner_size";

enum pp_code pp_states_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t inner = 0;
    struct pp_str family = {"", 0};
    pp_gguf_string(g, "general.architecture", &family);
    for (int i = 0; i <= N_STATE_KEYS; i++) {
        char full[128];
        int64_t *v = i < N_STATE_KEYS ? (int64_t *)(void *)((char *)hp + state_keys[i].place) : &inner;
        snprintf(full, sizeof full, "%.*s.%s", (int)(family.len < 64 ? family.len : 64), family.data,
                 i < N_STATE_KEYS ? state_keys[i].key : inner_key);
        if (pp_gguf_need_int(g, full, v, err))
            return PP_ERR_FORMAT;
    }
    if (hp->n_state_head < 1 || inner % hp->n_state_head != 0)
        return pp_fail(err, PP_ERR_FORMAT, "the metadata's numbers of states cannot be: %lld values of %lld heads",
                       (long long)inner, (long long)hp->n_state_head);
    hp->state_value_dim = inner / hp->n_state_head;
    return PP_OK;
}

enum pp_code pp_mamba_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    hp->mamba = true;
    return pp_states_from_gguf(g, hp, err);
}

void pp_states_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    for (int i = 0; i <= N_STATE_KEYS; i++) {
        char full[128];
        const int64_t v = i < N_STATE_KEYS ? *(const int64_t *)(const void *)((const char *)hp + state_keys[i].place)
                                           : hp->n_state_head * hp->state_value_dim;
        snprintf(full, sizeof full, "%s.%s", pp_arch_file_name(hp), i < N_STATE_KEYS ? state_keys[i].key : inner_key);
        pp_gguf_add_u32(w, full, (uint32_t)v);
    }
}

/* Refuses bounds of dt, unless they are so wide that they have no effect. */
static enum pp_code check_steps(const cJSON *config, struct pp_error *err)
{
    static const char *const keys[] = {"time_step_limit", "mamba_dt_limit"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cJSON *limit = pp_json_member(config, keys[i]);
        const cJSON *least = cJSON_GetArrayItem(limit, 0), *most = cJSON_GetArrayItem(limit, 1);
        if ((cJSON_IsNumber(least) && least->valuedouble > 0) || (cJSON_IsNumber(most) && most->valuedouble < 1e9))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s bounds the steps of states, which pippin does not "
                           "compute", keys[i]);
    }
    return PP_OK;
}

enum pp_code pp_mamba_from_config(const cJSON *config, const struct pp_mamba_keys *keys, int64_t inner,
                                  struct pp_hparams *hp, struct pp_error *err)
{
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {
        {keys->taps, &hp->conv_taps}, {keys->key_dim, &hp->state_key_dim}, {keys->n_groups, &hp->n_state_key_head},
        {keys->n_heads, &hp->n_state_head},
    };
    enum pp_code code = check_steps(config, err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = pp_config_int(config, numbers[i].key, numbers[i].v, err);
    if (!code && (hp->n_state_head < 1 || hp->n_state_head > 1 << 20))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s cannot be %lld", keys->n_heads,
                       (long long)hp->n_state_head);
    if (code)
        return code;
    hp->mamba = true;
    hp->state_value_dim = inner / hp->n_state_head; /* also for "auto" */
    return cJSON_IsString(pp_json_member(config, keys->head_dim))
               ? PP_OK : pp_config_int(config, keys->head_dim, &hp->state_value_dim, err);
}

void pp_mamba_to_config(const struct pp_hparams *hp, const struct pp_mamba_keys *keys, cJSON *config)
{
    pp_config_put(config, keys->taps, hp->conv_taps);
    pp_config_put(config, keys->key_dim, hp->state_key_dim);
    pp_config_put(config, keys->n_groups, hp->n_state_key_head);
    pp_config_put(config, keys->n_heads, hp->n_state_head);
    pp_config_put(config, keys->head_dim, hp->state_value_dim);
}

enum pp_code pp_mamba_expanded_from_config(const cJSON *config, const struct pp_mamba_keys *keys,
                                           struct pp_hparams *hp, struct pp_error *err)
{
    int64_t expand = 2;
    const enum pp_code code = pp_config_int(config, "mamba_expand", &expand, err);
    if (code)
        return code;
    if (expand < 1 || expand > 1 << 10 || hp->n_embd > 1 << 20)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: mamba_expand cannot be %lld", (long long)expand);
    return pp_mamba_from_config(config, keys, expand * hp->n_embd, hp, err);
}

void pp_mamba_expanded_to_config(const struct pp_hparams *hp, const struct pp_mamba_keys *keys, cJSON *config)
{
    pp_mamba_to_config(hp, keys, config);
    pp_config_put(config, "mamba_expand", hp->n_state_head * hp->state_value_dim / hp->n_embd);
}

enum pp_code pp_mamba_in_one_group(const struct pp_hparams *hp, struct pp_error *err)
{
    return hp->n_state_key_head == 1 ? PP_OK
                                     : pp_fail(err, PP_ERR_UNSUPPORTED, "Mamba's B and C in %lld groups are not "
                                               "supported in this family", (long long)hp->n_state_key_head);
}

void pp_mamba_alone(struct pp_hparams *hp)
{
    hp->sizes_vary = hp->parts_missing = hp->one_part = true;
    hp->n_head = hp->n_head_kv = hp->n_ff = 1;
    hp->head_dim = hp->rope_dim = 2;
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->sizes[l] = (struct pp_layer_sizes){0};
    pp_layers_every(hp, 1, PP_LAYER_RECURRENT | PP_LAYER_UNROTATED);
}

/* --- the first Mamba ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *key;
    size_t place; /* offset in struct pp_hparams */
} scan_numbers[] = {
    {"ssm.conv_kernel", offsetof(struct pp_hparams, conv_taps)},
    {"ssm.state_size", offsetof(struct pp_hparams, state_key_dim)},
    {"ssm.time_step_rank", offsetof(struct pp_hparams, state_rank)},
};
enum { N_SCAN_NUMBERS = sizeof scan_numbers / sizeof *scan_numbers };

static int64_t *number_at(struct pp_hparams *hp, int i)
{
    return (int64_t *)(void *)((char *)hp + scan_numbers[i].place);
}

/* Channels are independent of each other; they are divided into "heads" so that a head's state fits in the L1 cache. */
static void divide_channels(struct pp_hparams *hp, int64_t inner)
{
    const int64_t scans = hp->n_scan_head ? hp->n_scan_head : 1;
    int64_t dim = 64;
    inner = scans > 0 && inner % scans == 0 ? inner / scans : 0; /* of each scan */
    while (dim > 16 && inner % dim != 0)
        dim /= 2;
    hp->mamba = true;
    hp->n_state_key_head = 1;
    hp->state_value_dim = dim;
    hp->n_state_head = inner % dim == 0 ? inner / dim : 0; /* 0 is refused later */
}

static int64_t channels(const struct pp_hparams *hp)
{
    return hp->n_state_head * hp->state_value_dim * (hp->n_scan_head ? hp->n_scan_head : 1);
}

static enum pp_code check_rank(const struct pp_hparams *hp, struct pp_error *err)
{
    return hp->state_rank > 0 ? PP_OK : pp_fail(err, PP_ERR_FORMAT, "steps of states cannot be made of %lld values",
                                                (long long)hp->state_rank);
}

static void scan_key(const struct pp_hparams *hp, const char *name, char full[128])
{
    snprintf(full, 128, "%s.%s", pp_arch_file_name(hp), name);
}

enum pp_code pp_scan_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    char full[128];
    int64_t inner = 0;
    for (int i = 0; i <= N_SCAN_NUMBERS; i++) {
        scan_key(hp, i < N_SCAN_NUMBERS ? scan_numbers[i].key : "ssm.inner_size", full);
        if (pp_gguf_need_int(g, full, i < N_SCAN_NUMBERS ? number_at(hp, i) : &inner, err))
            return PP_ERR_FORMAT;
    }
    divide_channels(hp, inner);
    return check_rank(hp, err);
}

void pp_scan_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    char full[128];
    for (int i = 0; i < N_SCAN_NUMBERS; i++) {
        const char *number = (const char *)hp + scan_numbers[i].place;
        scan_key(hp, scan_numbers[i].key, full);
        pp_gguf_add_u32(w, full, (uint32_t)*(const int64_t *)(const void *)number);
    }
    scan_key(hp, "ssm.inner_size", full);
    pp_gguf_add_u32(w, full, (uint32_t)channels(hp));
}

enum pp_code pp_scan_from_config(const cJSON *config, const struct pp_scan_keys *keys, int64_t inner,
                                 struct pp_hparams *hp, struct pp_error *err)
{
    const char *const names[] = {keys->taps, keys->key_dim, keys->rank};
    int64_t expand = 2;
    enum pp_code code = pp_config_int(config, keys->expand, &expand, err);
    if (!code && (expand < 1 || expand > 1 << 10 || hp->n_embd > 1 << 20))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s cannot be %lld", keys->expand, (long long)expand);
    hp->conv_taps = 4;
    hp->state_key_dim = 16;
    hp->state_rank = (hp->n_embd + 15) / 16; /* also for "auto" */
    for (int i = 0; i < N_SCAN_NUMBERS && !code; i++)
        if (!cJSON_IsString(pp_json_member(config, names[i])))
            code = pp_config_int(config, names[i], number_at(hp, i), err);
    if (code)
        return code;
    divide_channels(hp, inner ? inner : expand * hp->n_embd);
    return check_rank(hp, err);
}

void pp_scan_to_config(const struct pp_hparams *hp, const struct pp_scan_keys *keys, cJSON *config)
{
    pp_config_put(config, keys->taps, hp->conv_taps);
    pp_config_put(config, keys->key_dim, hp->state_key_dim);
    pp_config_put(config, keys->rank, hp->state_rank);
    pp_config_put(config, keys->expand, channels(hp) / hp->n_embd);
}
