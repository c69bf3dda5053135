/* solar.c - Upstage's Solar Pro: Llama with block skip connections. Before the layers listed in bskcn_1 and bskcn_2
 * the stream is kept, in the first or second of two places; before those in bskcn_3 and bskcn_4 it is mixed with what
 * the respective place holds. All of the layer reads the mixture, as in vLLM, which also ignores the window that
 * configurations have.
 *
 * GGUF files are as ollama has them: for each list an array with a number for each layer, and both shares of the
 * mixture in a tensor. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

enum { N_LISTS = 4 };

static const char *const classes[] = {"SolarForCausalLM", "solar", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"bskcn_1\": [12, 20, 32, 44], \"bskcn_2\": [20, 32], \"bskcn_3\": [16, 24, 36, 48],"
             "\"bskcn_4\": [28, 40], \"bskcn_tv\": [0.9, 0.8]}"},
    {.json = NULL},
};

/* A place must have been filled before it is used. */
static enum pp_code check_skips(const struct pp_hparams *hp, struct pp_error *err)
{
    uint8_t kept = 0;
    if (!(hp->skip_share > 0 && hp->skip_share < 1))
        return pp_fail(err, PP_ERR_FORMAT, "the model says that %g of a mixture comes from an earlier layer, which "
                       "cannot be", (double)hp->skip_share);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        kept |= hp->skips[l] & 3;
        if (hp->skips[l] >> 2 & ~kept)
            return pp_fail(err, PP_ERR_FORMAT, "the model mixes what an earlier layer had into layer %lld, but none "
                           "has kept it (bskcn)", (long long)l);
    }
    return PP_OK;
}

/* --- GGUF -------------------------------------------------------------------------------------------------------- */

static const char *skip_key(int list)
{
    static const char *const keys[N_LISTS] = {
        "solar.attention.block_skip_connection.0", "solar.attention.block_skip_connection.1",
        "solar.attention.block_skip_connection.2", "solar.attention.block_skip_connection.3"};
    return keys[list];
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const struct pp_tensor *t = pp_gguf_tensor(g, pp_skip_shares);
    const float *shares = t && t->type == PP_TYPE_F32 && t->n_dims == 1 && t->ne[0] == 2 ? t->data : NULL;
    if (!shares)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %s is %s", pp_skip_shares, t ? "not two numbers" : "missing");
    if (!(fabsf(shares[0] + shares[1] - 1) < 1e-3f))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "tensor %s has shares of %g and %g, which are not all of a mixture",
                       pp_skip_shares, (double)shares[0], (double)shares[1]);
    hp->skip_share = shares[0];
    for (int i = 0; i < N_LISTS; i++)
        for (int64_t l = 0; l < hp->n_layer; l++) {
            int64_t number = 0;
            bool is = false;
            if (!pp_gguf_array_bool(g, skip_key(i), (size_t)l, &is) &&
                (pp_gguf_array_int(g, skip_key(i), (size_t)l, &number) || pp_gguf_int(g, skip_key(i), &number)))
                is = number > 0;
            hp->skips[l] |= (uint8_t)(is << i);
        }
    return check_skips(hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    uint32_t of_layers[PP_MAX_LAYERS];
    for (int i = 0; i < N_LISTS; i++) {
        for (int64_t l = 0; l < hp->n_layer; l++)
            of_layers[l] = hp->skips[l] >> i & 1;
        pp_gguf_add_u32_array(w, skip_key(i), of_layers, (size_t)hp->n_layer);
    }
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Indices beyond the last layer are ignored, as the default lists may have some. */
static enum pp_code read_list(const cJSON *config, int i, struct pp_hparams *hp, struct pp_error *err)
{
    char key[16];
    snprintf(key, sizeof key, "bskcn_%d", i + 1);
    const cJSON *list = pp_json_member(config, key), *item;
    if (!cJSON_IsArray(list))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s is not a list of layers", key);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || trunc(item->valuedouble) != item->valuedouble)
            return pp_fail(err, PP_ERR_FORMAT, "config.json: %s has something that is no layer's number", key);
        if (item->valuedouble >= 0 && item->valuedouble < (double)hp->n_layer)
            hp->skips[(int64_t)item->valuedouble] |= (uint8_t)(1 << i);
    }
    return PP_OK;
}

/* bskcn_tv: the share in training, then the one in inference. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *share = cJSON_GetArrayItem(pp_json_member(config, "bskcn_tv"), 1);
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    for (int i = 0; i < N_LISTS && !code; i++)
        code = read_list(config, i, hp, err);
    if (!code && !cJSON_IsNumber(share))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: bskcn_tv is not a list of two numbers");
    if (code)
        return code;
    hp->skip_share = (float)share->valuedouble;
    return check_skips(hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    char text[64];
    for (int i = 0; i < N_LISTS; i++) {
        char key[16];
        snprintf(key, sizeof key, "bskcn_%d", i + 1);
        cJSON *list = cJSON_AddArrayToObject(config, key);
        for (int64_t l = 0; l < hp->n_layer; l++)
            if (hp->skips[l] >> i & 1)
                cJSON_AddItemToArray(list, cJSON_CreateNumber((double)l));
    }
    snprintf(text, sizeof text, "[%.9g, %.9g]", (double)hp->skip_share, (double)hp->skip_share);
    cJSON_AddItemToObject(config, "bskcn_tv", cJSON_CreateRaw(text));
}

const struct pp_arch pp_arch_solar = {
    .name = "solar",
    .hf_classes = classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
