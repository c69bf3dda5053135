/* expert_config.c - experts in config.json, whose keys differ between families. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

/* A number, or a list with the same number for each layer. */
static enum pp_code read_number(const cJSON *config, const char *key, int64_t *v, struct pp_error *err)
{
    const cJSON *list = key ? pp_json_member(config, key) : NULL, *item;
    if (!cJSON_IsArray(list))
        return key ? pp_config_int(config, key, v, err) : PP_OK;
    cJSON_ArrayForEach(item, list)
        if (!cJSON_IsNumber(item) || !cJSON_Compare(item, list->child, true))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is not the same for all layers, which pippin "
                           "needs", key);
    *v = list->child ? (int64_t)list->child->valuedouble : *v;
    return PP_OK;
}

enum pp_code pp_config_experts(const cJSON *config, const struct pp_expert_keys *keys, struct pp_hparams *hp,
                               struct pp_error *err)
{
    int64_t n_shared = 0, n_dense = 0;
    hp->n_ff_expert = hp->n_ff;
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {
        {keys->n, &hp->n_expert}, {keys->n_used, &hp->n_expert_used}, {keys->n_ff, &hp->n_ff_expert},
        {keys->n_groups, &hp->n_expert_group}, {keys->n_groups_used, &hp->n_expert_group_used},
        {keys->n_shared, &n_shared}, {keys->n_dense, &n_dense},
    };
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = read_number(config, numbers[i].key, numbers[i].v, err);
    if (!code && keys->scale)
        code = pp_config_float(config, keys->scale, &hp->expert_scale, err);
    if (keys->norm_topk)
        hp->expert_no_renorm = !pp_config_flag(config, keys->norm_topk, false);
    for (int64_t l = 0; l < n_dense && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= PP_LAYER_DENSE;
    return code;
}

void pp_config_put_experts(const struct pp_hparams *hp, const struct pp_expert_keys *keys, cJSON *config)
{
    const int64_t n_shared = hp->n_ff_expert ? hp->n_ff_shared / hp->n_ff_expert : 0; /* 0: a file without experts */
    int64_t n_dense = 0;
    while (n_dense < hp->n_layer && hp->layer[n_dense] & PP_LAYER_DENSE)
        n_dense++;
    const struct {
        const char *key;
        int64_t v;
    } numbers[] = {
        {keys->n, hp->n_expert}, {keys->n_used, hp->n_expert_used}, {keys->n_ff, hp->n_ff_expert},
        {keys->shared_n_ff, hp->n_ff_shared}, {keys->n_shared, n_shared},
        {keys->n_groups, hp->n_expert_group > 1 ? hp->n_expert_group : 1},
        {keys->n_groups_used, hp->n_expert_group > 1 ? hp->n_expert_group_used : 1}, {keys->n_dense, n_dense},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].key)
            pp_config_put(config, numbers[i].key, numbers[i].v);
    if (keys->scale)
        pp_config_put_float(config, keys->scale, hp->expert_scale != 0.0f ? hp->expert_scale : 1);
    if (keys->norm_topk)
        cJSON_AddBoolToObject(config, keys->norm_topk, !hp->expert_no_renorm);
}

enum pp_code pp_config_qwen_dense(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, "mlp_only_layers"), *item;
    int64_t step = 1;
    enum pp_code code = pp_config_int(config, "decoder_sparse_step", &step, err);
    for (int64_t l = 0; !code && l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        if (step < 1 || (l + 1) % step != 0)
            hp->layer[l] |= PP_LAYER_DENSE;
    cJSON_ArrayForEach(item, list)
        if (cJSON_IsNumber(item) && item->valueint >= 0 && item->valueint < PP_MAX_LAYERS)
            hp->layer[item->valueint] |= PP_LAYER_DENSE;
    return code;
}

void pp_config_put_qwen_dense(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *dense = cJSON_AddArrayToObject(config, "mlp_only_layers");
    pp_config_put(config, "decoder_sparse_step", 1);
    for (int64_t l = 0; l < hp->n_layer; l++)
        if (hp->layer[l] & PP_LAYER_DENSE)
            cJSON_AddItemToArray(dense, cJSON_CreateNumber((double)l));
}

enum pp_code pp_config_mlp_types(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    return pp_config_layer_words(config, "mlp_layer_types", "dense", "sparse", PP_LAYER_DENSE, hp, err);
}

void pp_config_put_mlp_types(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *types = cJSON_AddArrayToObject(config, "mlp_layer_types");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(types, cJSON_CreateString(hp->layer[l] & PP_LAYER_DENSE ? "dense" : "sparse"));
}
