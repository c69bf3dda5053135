#include "engine/peft_write.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/adapter_file_int.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/hf.h"
#include "engine/safetensors.h"

cJSON *pp_peft_lora_config(const struct pp_peft_lora *l, cJSON **modules)
{
    cJSON *c = cJSON_CreateObject();
    const bool ok =
        c && cJSON_AddStringToObject(c, "peft_type", "LORA") && cJSON_AddStringToObject(c, "task_type", "CAUSAL_LM") &&
        (l->base ? cJSON_AddStringToObject(c, "base_model_name_or_path", l->base)
                 : cJSON_AddNullToObject(c, "base_model_name_or_path")) &&
        cJSON_AddNumberToObject(c, "r", (double)l->rank) &&
        cJSON_AddNumberToObject(c, "lora_alpha", (double)l->alpha) &&
        cJSON_AddNumberToObject(c, "lora_dropout", 0) && cJSON_AddStringToObject(c, "bias", "none") &&
        cJSON_AddBoolToObject(c, "use_rslora", l->rslora) && cJSON_AddBoolToObject(c, "use_dora", l->dora) &&
        cJSON_AddFalseToObject(c, "fan_in_fan_out") && cJSON_AddTrueToObject(c, "init_lora_weights") &&
        cJSON_AddTrueToObject(c, "inference_mode") && (*modules = cJSON_AddArrayToObject(c, "target_modules"));
    if (ok)
        return c;
    cJSON_Delete(c);
    return NULL;
}

cJSON *pp_peft_ia3_config(cJSON **modules, cJSON **feedforward)
{
    cJSON *c = cJSON_CreateObject();
    const bool ok = c && cJSON_AddStringToObject(c, "peft_type", "IA3") &&
                    cJSON_AddStringToObject(c, "task_type", "CAUSAL_LM") &&
                    cJSON_AddNullToObject(c, "base_model_name_or_path") &&
                    cJSON_AddFalseToObject(c, "fan_in_fan_out") && cJSON_AddTrueToObject(c, "inference_mode") &&
                    (*modules = cJSON_AddArrayToObject(c, "target_modules")) &&
                    (*feedforward = cJSON_AddArrayToObject(c, "feedforward_modules"));
    if (ok)
        return c;
    cJSON_Delete(c);
    return NULL;
}

bool pp_peft_add_once(cJSON *list, const char *text)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
        if (strcmp(item->valuestring, text) == 0)
            return true;
    return cJSON_AddItemToArray(list, cJSON_CreateString(text));
}

enum pp_code pp_peft_write(const char *folder, const cJSON *config, const struct pp_tensor *tensors, size_t n,
                           struct pp_error *err)
{
    char *weights_path = pp_path_join(folder, "adapter_model.safetensors");
    char *config_path = pp_path_join(folder, pp_adapter_config_file), *text = cJSON_Print(config);
    enum pp_code code = weights_path && config_path && text ? PP_OK : pp_fail_nomem(err, "an adapter's configuration");
    if (!code && mkdir(folder, 0777) != 0 && errno != EEXIST)
        code = pp_fail(err, PP_ERR_IO, "cannot create the folder %s: %s", folder, strerror(errno));
    /* The configuration first: weights without it would be useless, but with it alone it is clear what is missing. */
    if (!code)
        code = pp_write_file(config_path, text, strlen(text), 0666, err);
    if (!code && (code = pp_safetensors_write(weights_path, tensors, n, err)))
        unlink(config_path);
    cJSON_free(text);
    pp_free(weights_path);
    pp_free(config_path);
    return code;
}
