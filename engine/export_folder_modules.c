/* export_folder_modules.c - what sentence-transformers computes from a model's vectors: modules.json, and a folder for
 * each module that needs one. A folder's are copied; a GGUF file tells only how vectors are pooled. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/engine.h"
#include "engine/export_folder_int.h"
#include "engine/hf.h"

static const char modules_file[] = "modules.json", pooling_folder[] = "1_Pooling";

/* --- the list ---------------------------------------------------------------------------------------------------- */

static bool add_module(cJSON *list, const char *path, const char *kind)
{
    const int place = cJSON_GetArraySize(list);
    char name[16], type[80];
    snprintf(name, sizeof name, "%d", place);
    snprintf(type, sizeof type, "sentence_transformers.models.%s", kind);
    cJSON *module = cJSON_CreateObject();
    const bool ok = module && cJSON_AddNumberToObject(module, "idx", place) &&
                    cJSON_AddStringToObject(module, "name", name) && cJSON_AddStringToObject(module, "path", path) &&
                    cJSON_AddStringToObject(module, "type", type);
    if (ok && cJSON_AddItemToArray(list, module))
        return true;
    cJSON_Delete(module);
    return false;
}

/* Other values, such as no pooling and ranking, have no module. */
static enum pp_code modules_of_gguf(struct folder *f)
{
    const int pooling = pp_source_hparams(f->s)->pooling;
    if (pooling != PP_POOLING_MEAN && pooling != PP_POOLING_CLS && pooling != PP_POOLING_LAST)
        return PP_OK;
    f->modules = cJSON_CreateArray();
    const bool ok = f->modules && add_module(f->modules, "", "Transformer") &&
                    add_module(f->modules, pooling_folder, "Pooling");
    return ok ? PP_OK : pp_fail_nomem(f->err, modules_file);
}

enum pp_code pp_folder_find_modules(struct folder *f)
{
    const char *folder = pp_source_folder(f->s);
    if (!folder)
        return modules_of_gguf(f);
    return pp_file_exists(folder, modules_file) ? pp_hf_modules(folder, &f->modules, f->err) : PP_OK;
}

/* --- writing them ------------------------------------------------------------------------------------------------ */

static enum pp_code write_json(struct folder *f, const char *name, const cJSON *json)
{
    char *text = json ? cJSON_Print(json) : NULL;
    enum pp_code code = text ? pp_folder_write(f, name, text, strlen(text)) : pp_fail_nomem(f->err, name);
    cJSON_free(text);
    return code;
}

/* Modules with a folder have a config.json there, and dense layers their weights. */
static enum pp_code copy_modules(struct folder *f)
{
    enum pp_code code = PP_OK;
    for (const cJSON *module = f->modules->child; module && !code; module = module->next) {
        static const char *const files[] = {"config.json", "model.safetensors"};
        const char *path = cJSON_GetStringValue(pp_json_member(module, "path"));
        if (!path || !*path)
            continue;
        code = pp_folder_make(f, path);
        for (int i = 0; i < 1 + pp_hf_module_is_dense(module) && !code; i++) {
            char name[NAME];
            snprintf(name, sizeof name, "%s/%s", path, files[i]);
            code = pp_folder_copy(f, name);
        }
    }
    return code ? code : pp_folder_copy(f, modules_file);
}

static enum pp_code write_pooling(struct folder *f)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    char name[NAME];
    cJSON *json = cJSON_CreateObject();
    bool ok = json && cJSON_AddNumberToObject(json, "word_embedding_dimension", (double)hp->n_embd);
    for (size_t i = 0; i < PP_POOLING_MODES; i++)
        ok = ok && cJSON_AddBoolToObject(json, pp_pooling_modes[i].key, pp_pooling_modes[i].pooling == hp->pooling);
    snprintf(name, sizeof name, "%s/config.json", pooling_folder);
    enum pp_code code = ok ? pp_folder_make(f, pooling_folder) : pp_fail_nomem(f->err, name);
    if (!code)
        code = write_json(f, name, json);
    cJSON_Delete(json);
    return code;
}

enum pp_code pp_folder_write_modules(struct folder *f)
{
    if (!f->modules)
        return PP_OK;
    if (pp_source_folder(f->s))
        return copy_modules(f);
    enum pp_code code = write_pooling(f);
    return code ? code : write_json(f, modules_file, f->modules);
}
