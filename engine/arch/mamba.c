/* mamba.c - what families with Mamba 2's layers (arXiv 2405.21060) have in common: the numbers of their states. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

const struct pp_mamba_keys pp_mamba_keys = {.taps = "mamba_d_conv", .key_dim = "mamba_d_state",
                                            .n_groups = "mamba_n_groups", .n_heads = "mamba_n_heads",
                                            .head_dim = "mamba_d_head"};

enum pp_code pp_states_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t inner = 0;
    struct pp_str family = {"", 0};
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {
        {"ssm.conv_kernel", &hp->conv_taps}, {"ssm.state_size", &hp->state_key_dim},
        {"ssm.group_count", &hp->n_state_key_head}, {"ssm.time_step_rank", &hp->n_state_head},
        {"ssm.inner_size", &inner},
    };
    pp_gguf_string(g, "general.architecture", &family);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char full[128];
        snprintf(full, sizeof full, "%.*s.%s", (int)(family.len < 64 ? family.len : 64), family.data, numbers[i].key);
        if (!pp_gguf_int(g, full, numbers[i].v))
            return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is no number", full);
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

void pp_mamba_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    const struct {
        const char *key;
        int64_t v;
    } numbers[] = {
        {"ssm.conv_kernel", hp->conv_taps}, {"ssm.state_size", hp->state_key_dim},
        {"ssm.group_count", hp->n_state_key_head}, {"ssm.time_step_rank", hp->n_state_head},
        {"ssm.inner_size", hp->n_state_head * hp->state_value_dim},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char full[128];
        snprintf(full, sizeof full, "%s.%s", pp_arch_file_name(hp), numbers[i].key);
        pp_gguf_add_u32(w, full, (uint32_t)numbers[i].v);
    }
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
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = pp_config_int(config, numbers[i].key, numbers[i].v, err);
    if (!code && (hp->n_state_head < 1 || hp->n_state_head > 1 << 20))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s cannot be %lld", keys->n_heads,
                       (long long)hp->n_state_head);
    if (code)
        return code;
    hp->mamba = true;
    hp->state_value_dim = inner / hp->n_state_head; /* which "auto" means, too */
    return cJSON_IsString(cJSON_GetObjectItemCaseSensitive(config, keys->head_dim))
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
