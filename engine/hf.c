#include "engine/hf.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/other_file.h"
#include "engine/base/part_name.h"
#include "engine/base/word.h"
#include "engine/engine.h"
#include "engine/name_index.h"
#include "engine/safetensors.h"

enum {
    MAX_JSON = 64 << 20,
    MAX_TEMPLATE = 4 << 20,
    MAX_SHARDS = 512, /* each is one mapped file */
    MAX_DENSE = 2,
};

static const char single_file[] = "model.safetensors";
static const char index_file[] = "model.safetensors.index.json";
static const char modules_file[] = "modules.json";
static const char dense_weight[] = "linear.weight"; /* in the file of a dense layer */

struct pp_hf {
    cJSON *config;
    struct pp_safetensors *shards[MAX_SHARDS];
    size_t n_shards;
    struct hf_tensor {
        const struct pp_safetensors *shard;
        const struct pp_tensor *tensor; /* the shard's, or one of `dense` */
    } *tensors;
    size_t n;
    struct pp_tensor dense[MAX_DENSE]; /* sentence-transformers' layers after the model, under our names */
    char dense_names[MAX_DENSE][32];
    size_t n_dense;
};

/* --- files --------------------------------------------------------------------------------------------- */

char *pp_path_join(const char *folder, const char *name)
{
    struct pp_buf b = {0};
    size_t n = strlen(folder);
    pp_buf_fmt(&b, "%s%s%s", folder, n && folder[n - 1] == '/' ? "" : "/", name);
    return pp_buf_take(&b);
}

bool pp_file_exists(const char *folder, const char *name)
{
    struct stat st;
    char path[4096]; /* the longest path that the system takes */
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && (size_t)n < sizeof path && stat(path, &st) == 0;
}

static enum pp_code read_text(const char *folder, const char *name, size_t limit, char **text, size_t *size,
                              struct pp_error *err)
{
    char *path = pp_path_join(folder, name);
    *text = NULL;
    if (!path)
        return pp_fail_nomem(err, "a file name");
    enum pp_code code = pp_read_file(path, limit, text, size, err);
    pp_free(path);
    return code;
}

/* type: cJSON_Object or cJSON_Array */
static enum pp_code read_json(const char *folder, const char *name, int type, cJSON **out, struct pp_error *err)
{
    char *text;
    size_t size;
    *out = NULL;
    enum pp_code code = read_text(folder, name, MAX_JSON, &text, &size, err);
    if (code)
        return code;
    pp_json_take_infinity(text, size);
    code = pp_json_parse(text, size, name, NULL, out, err);
    if (!code && !*out)
        code = pp_fail_other_file(name, text, size, err);
    pp_free(text);
    if (code)
        pp_fail_prefix(err, "%s", folder);
    if (code || (*out && ((*out)->type & 0xFF) == type))
        return code;
    cJSON_Delete(*out);
    *out = NULL;
    return pp_fail(err, PP_ERR_FORMAT, "%s/%s is not a JSON %s", folder, name,
                   type == cJSON_Array ? "array" : "object");
}

enum pp_code pp_json_read(const char *folder, const char *name, cJSON **out, struct pp_error *err)
{
    return read_json(folder, name, cJSON_Object, out, err);
}

/* --- shards -------------------------------------------------------------------------------------------- */

static enum pp_code open_shard(struct pp_hf *hf, const char *folder, const char *name, struct pp_error *err)
{
    char *path = pp_path_join(folder, name);
    if (!path)
        return pp_fail_nomem(err, "a file name");
    enum pp_code code = pp_safetensors_open(path, &hf->shards[hf->n_shards], err);
    pp_free(path);
    if (!code)
        hf->n_shards++;
    else if (code == PP_ERR_NOT_FOUND) /* it was not downloaded, or is a dangling link */
        pp_fail_advice(err, "some of the model's weights are missing; download them");
    return code;
}

static enum pp_code take_single(struct pp_hf *hf, const char *folder, struct pp_error *err)
{
    enum pp_code code = open_shard(hf, folder, single_file, err);
    if (code)
        return code;
    size_t n = pp_safetensors_n(hf->shards[0]);
    hf->tensors = pp_calloc(n + MAX_DENSE, sizeof *hf->tensors);
    if (!hf->tensors)
        return pp_fail_nomem(err, "the list of tensors");
    for (; hf->n < n; hf->n++)
        hf->tensors[hf->n] = (struct hf_tensor){hf->shards[0], pp_safetensors_at(hf->shards[0], hf->n)};
    return PP_OK;
}

/* A shard must be in the folder itself: no path may lead elsewhere. */
static bool plain_name(const char *name)
{
    return name[0] && name[0] != '.' && !strchr(name, '/') && strlen(name) < 256;
}

/* Finds, or opens, the shard of one entry of the index. */
static enum pp_code shard_of(struct pp_hf *hf, const char *folder, const cJSON *entry, struct pp_name_index *files,
                             const struct pp_safetensors **shard, struct pp_error *err)
{
    const char *file = cJSON_IsString(entry) ? entry->valuestring : "";
    size_t i = pp_name_index_find(files, file, strlen(file));
    if (i == SIZE_MAX) {
        if (!plain_name(file))
            return pp_fail(err, PP_ERR_FORMAT, "%s/%s: \"%.200s\" is not the name of a shard", folder, index_file,
                           file);
        if (hf->n_shards == MAX_SHARDS || !pp_name_index_add(files, file, strlen(file)))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "%s has more than %d shards", folder, MAX_SHARDS);
        enum pp_code code = open_shard(hf, folder, file, err);
        if (code)
            return code;
        i = hf->n_shards - 1;
    }
    *shard = hf->shards[i];
    return PP_OK;
}

static enum pp_code take_entries(struct pp_hf *hf, const char *folder, const cJSON *map, struct pp_name_index *files,
                                 struct pp_name_index *names, struct pp_error *err)
{
    for (const cJSON *entry = map->child; entry; entry = entry->next) {
        struct hf_tensor *t = &hf->tensors[hf->n];
        enum pp_code code = shard_of(hf, folder, entry, files, &t->shard, err);
        if (code)
            return code;
        t->tensor = pp_safetensors_find(t->shard, entry->string);
        if (!t->tensor)
            return pp_fail(err, PP_ERR_FORMAT, "%s/%s: tensor %.200s is not in %.200s", folder, index_file,
                           entry->string, entry->valuestring);
        if (!pp_name_index_add(names, entry->string, strlen(entry->string)))
            return pp_fail(err, PP_ERR_FORMAT, "%s/%s lists tensor %.200s twice", folder, index_file, entry->string);
        hf->n++;
    }
    return PP_OK;
}

static enum pp_code take_shards(struct pp_hf *hf, const char *folder, struct pp_error *err)
{
    cJSON *index;
    struct pp_name_index files = {0}, names = {0};
    enum pp_code code = pp_json_read(folder, index_file, &index, err);
    if (code)
        return code;
    const cJSON *map = pp_json_member(index, "weight_map");
    size_t n = 0;
    if (!cJSON_IsObject(map)) {
        code = pp_fail(err, PP_ERR_FORMAT, "%s/%s has no weight_map", folder, index_file);
    } else {
        for (const cJSON *entry = map->child; entry; entry = entry->next)
            n++;
        hf->tensors = pp_calloc(n + MAX_DENSE, sizeof *hf->tensors);
        if (!hf->tensors || !pp_name_index_init(&files, MAX_SHARDS) || !pp_name_index_init(&names, n))
            code = pp_fail_nomem(err, "the list of tensors");
        else
            code = take_entries(hf, folder, map, &files, &names, err);
    }
    pp_name_index_free(&files);
    pp_name_index_free(&names);
    cJSON_Delete(index);
    return code;
}

/* --- shards without a list ------------------------------------------------------------------------------ */

static bool is_weights(const char *name, const char *stem)
{
    return plain_name(name) && strncmp(name, stem, strlen(stem)) == 0 && pp_ends_with(name, ".safetensors");
}

/* Opens all files of a folder with this prefix and ending, in the order of their names. */
static enum pp_code open_unlisted(struct pp_hf *hf, const char *folder, const char *stem, struct pp_error *err)
{
    struct dirent **found;
    enum pp_code code = PP_OK;
    const int n = scandir(folder, &found, NULL, alphasort);
    int n_parts = 0, n_said = 0;
    for (int i = 0; i < n; i++) {
        const char *name = found[i]->d_name;
        const bool take = !code && is_weights(name, stem);
        const size_t part = take ? pp_part_ending(name, strlen(name) - strlen(".safetensors")) : 0;
        if (take && hf->n_shards == MAX_SHARDS)
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "%s has more than %d shards", folder, MAX_SHARDS);
        else if (take)
            code = open_shard(hf, folder, name, err);
        n_parts += part > 0;
        n_said = part ? atoi(strstr(name + strlen(name) - strlen(".safetensors") - part, "-of-") + 4) : n_said;
    }
    for (int i = 0; i < n; i++)
        free(found[i]);
    if (n >= 0)
        free(found);
    if (!code && n_parts < n_said)
        code = pp_fail(err, PP_ERR_NOT_FOUND, "%s has only %d of the %d files of its weights (*-of-%05d.safetensors); "
                                              "download the others", folder, n_parts, n_said, n_said);
    return code;
}

/* Opens weights that no index lists, as MLX's programs, today's and older ones, and older quantising programs write
 * them: all model*.safetensors, otherwise all weights*.safetensors, otherwise the only file. */
static enum pp_code take_unlisted(struct pp_hf *hf, const char *folder, struct pp_error *err)
{
    static const char *const stems[] = {"model", "weights", ""};
    struct pp_name_index names = {0};
    enum pp_code code = PP_OK;
    size_t n = 0;
    for (size_t i = 0; i < sizeof stems / sizeof *stems && !hf->n_shards && !code; i++)
        code = open_unlisted(hf, folder, stems[i], err);
    if (!code && !hf->n_shards)
        code = pp_fail(err, PP_ERR_NOT_FOUND, "%s has no %s; models in other formats (.bin, .pth) cannot be read",
                       folder, single_file);
    for (size_t i = 0; i < hf->n_shards; i++)
        n += pp_safetensors_n(hf->shards[i]);
    if (code)
        return code;
    hf->tensors = pp_calloc(n + MAX_DENSE, sizeof *hf->tensors);
    if (!hf->tensors || !pp_name_index_init(&names, n))
        code = pp_fail_nomem(err, "the list of tensors");
    for (size_t i = 0; i < hf->n_shards; i++)
        for (size_t k = 0; k < pp_safetensors_n(hf->shards[i]) && !code; k++) {
            const struct pp_tensor *t = pp_safetensors_at(hf->shards[i], k);
            if (!pp_name_index_add(&names, t->name, strlen(t->name)))
                code = pp_fail(err, PP_ERR_FORMAT, "%s has no %s, and tensor %.200s in more than one file", folder,
                               index_file, t->name);
            hf->tensors[hf->n++] = (struct hf_tensor){hf->shards[i], t};
        }
    pp_name_index_free(&names);
    return code;
}

/* Copies NVIDIA modelopt's own file, often the only place of these settings, to quantization_config of config.json. */
static enum pp_code take_modelopt(struct pp_hf *hf, const char *folder, struct pp_error *err)
{
    static const char file[] = "hf_quant_config.json";
    const cJSON *text = pp_json_member(hf->config, "text_config");
    cJSON *json;
    if (pp_json_member(hf->config, "quantization_config") || pp_json_member(hf->config, "quantization") ||
        pp_json_member(text, "quantization_config") || !pp_file_exists(folder, file))
        return PP_OK;
    enum pp_code code = pp_json_read(folder, file, &json, err);
    if (code)
        return code;
    cJSON *quant = cJSON_DetachItemFromObjectCaseSensitive(json, "quantization");
    /* Without an algorithm only the KV cache would be quantised, by the program for which the model was made. */
    const bool weights = cJSON_IsString(pp_json_member(quant, "quant_algo"));
    if (weights && !(cJSON_AddStringToObject(quant, "quant_method", "modelopt") &&
                     cJSON_AddItemToObject(hf->config, "quantization_config", quant)))
        code = pp_fail_nomem(err, file);
    if (!weights || code)
        cJSON_Delete(quant);
    cJSON_Delete(json);
    return code;
}

/* Copies settings from AWQ's own file, which has other names for them. */
static bool add_awq(cJSON *to, const cJSON *from)
{
    static const char *const names[][2] = {
        {"w_bit", "bits"}, {"q_group_size", "group_size"}, {"zero_point", "zero_point"}, {"version", "version"},
    };
    bool ok = cJSON_AddStringToObject(to, "quant_method", "awq") != NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && ok; i++) {
        const cJSON *item = pp_json_member(from, names[i][0]);
        cJSON *copy = item ? cJSON_Duplicate(item, true) : NULL;
        ok = !item || (copy && cJSON_AddItemToObject(to, names[i][1], copy));
    }
    return ok;
}

/* Copies settings from the files of AutoGPTQ and AutoAWQ, which are older than quantization_config. */
static enum pp_code take_quantize_config(struct pp_hf *hf, const char *folder, struct pp_error *err)
{
    static const char *const files[] = {"quantize_config.json", "quant_config.json"}; /* GPTQ's, AWQ's */
    const bool awq = !pp_file_exists(folder, files[0]);
    cJSON *json, *quant = NULL;
    if (pp_json_member(hf->config, "quantization_config") || pp_json_member(hf->config, "quantization") ||
        !pp_file_exists(folder, files[awq]))
        return PP_OK;
    enum pp_code code = pp_json_read(folder, files[awq], &json, err);
    if (code)
        return code;
    if (cJSON_IsNumber(pp_json_member(json, awq ? "w_bit" : "bits"))) {
        quant = awq ? cJSON_CreateObject() : cJSON_Duplicate(json, true);
        const bool named = quant && (awq ? add_awq(quant, json)
                                         : pp_json_member(quant, "quant_method") ||
                                               cJSON_AddStringToObject(quant, "quant_method", "gptq"));
        if (!named || !cJSON_AddItemToObject(hf->config, "quantization_config", quant)) {
            cJSON_Delete(quant);
            code = pp_fail_nomem(err, files[awq]);
        }
    }
    cJSON_Delete(json);
    return code;
}

static enum pp_code take_dense_layers(struct pp_hf *hf, const char *folder, struct pp_error *err);

enum pp_code pp_hf_open_config(const char *folder, struct pp_hf **out, struct pp_error *err)
{
    struct pp_hf *hf = pp_calloc(1, sizeof *hf);
    *out = NULL;
    if (!hf)
        return pp_fail_nomem(err, folder);
    enum pp_code code = pp_json_read(folder, "config.json", &hf->config, err);
    if (!code)
        code = take_modelopt(hf, folder, err);
    if (!code)
        code = take_quantize_config(hf, folder, err);
    if (code) {
        pp_hf_close(hf);
        return code;
    }
    *out = hf;
    return PP_OK;
}

enum pp_code pp_hf_open_tensors(struct pp_hf *hf, const char *folder, struct pp_error *err)
{
    enum pp_code code;
    if (pp_file_exists(folder, index_file))
        code = take_shards(hf, folder, err);
    else if (pp_file_exists(folder, single_file))
        code = take_single(hf, folder, err);
    else
        code = take_unlisted(hf, folder, err);
    return code ? code : take_dense_layers(hf, folder, err);
}

enum pp_code pp_hf_open(const char *folder, struct pp_hf **out, struct pp_error *err)
{
    enum pp_code code = pp_hf_open_config(folder, out, err);
    if (!code)
        code = pp_hf_open_tensors(*out, folder, err);
    if (code) {
        pp_hf_close(*out);
        *out = NULL;
    }
    return code;
}

void pp_hf_close(struct pp_hf *hf)
{
    if (!hf)
        return;
    for (size_t i = 0; i < hf->n_shards; i++)
        pp_safetensors_close(hf->shards[i]);
    pp_free(hf->tensors);
    cJSON_Delete(hf->config);
    pp_free(hf);
}

const cJSON *pp_hf_config(const struct pp_hf *hf)
{
    return hf->config;
}

size_t pp_hf_n(const struct pp_hf *hf)
{
    return hf->n;
}

const struct pp_tensor *pp_hf_at(const struct pp_hf *hf, size_t i)
{
    return hf->tensors[i].tensor;
}

const char *pp_hf_dtype(const struct pp_hf *hf, size_t i)
{
    const struct hf_tensor *t = &hf->tensors[i];
    const bool dense = i >= hf->n - hf->n_dense;
    return pp_safetensors_dtype(t->shard, dense ? pp_safetensors_find(t->shard, dense_weight) : t->tensor);
}

const struct pp_tensor *pp_hf_find(const struct pp_hf *hf, const char *name, const char **dtype)
{
    for (size_t i = 0; i < hf->n_shards; i++) {
        const struct pp_tensor *t = pp_safetensors_find(hf->shards[i], name);
        if (t && dtype)
            *dtype = pp_safetensors_dtype(hf->shards[i], t);
        if (t)
            return t;
    }
    return NULL;
}

bool pp_hf_lost(const struct pp_hf *hf)
{
    for (size_t i = 0; i < hf->n_shards; i++)
        if (pp_safetensors_lost(hf->shards[i]))
            return true;
    return false;
}

bool pp_hf_changed(const struct pp_hf *hf)
{
    for (size_t i = 0; i < hf->n_shards; i++)
        if (pp_safetensors_changed(hf->shards[i]))
            return true;
    return false;
}

/* --- chat template ------------------------------------------------------------------------------------- */

/* The template among several: [{"name": "default", "template": "..."}, {"name": "tool_use", ...}]. */
static const char *named_template(const cJSON *list, const char *wanted)
{
    for (const cJSON *item = list->child; item; item = item->next) {
        const cJSON *name = pp_json_member(item, "name");
        const cJSON *text = pp_json_member(item, "template");
        if (cJSON_IsString(name) && strcmp(name->valuestring, wanted) == 0 && cJSON_IsString(text))
            return text->valuestring;
    }
    return NULL;
}

/* Reads the template of this name from one file, if it has one. A single template counts as "default". */
static enum pp_code template_of_json(const char *folder, const char *name, const char *wanted, char **text,
                                     struct pp_error *err)
{
    cJSON *config;
    enum pp_code code;
    if (!pp_file_exists(folder, name))
        return PP_OK;
    if ((code = pp_json_read(folder, name, &config, err)))
        return code;
    const cJSON *item = pp_json_member(config, "chat_template");
    const char *found = cJSON_IsArray(item) ? named_template(item, wanted) : NULL;
    if (cJSON_IsString(item) && strcmp(wanted, "default") == 0)
        found = item->valuestring;
    if (found && !(*text = pp_strdup(found)))
        code = pp_fail_nomem(err, "the chat template");
    cJSON_Delete(config);
    return code;
}

static enum pp_code read_template(const char *folder, const char *name, char **text, struct pp_error *err)
{
    static const char jinja_file[] = "chat_template.jinja";
    char other[96];
    size_t size;
    snprintf(other, sizeof other, "additional_chat_templates/%.60s.jinja", name);
    const char *file = strcmp(name, "default") == 0 ? jinja_file : other;
    if (pp_file_exists(folder, file))
        return read_text(folder, file, MAX_TEMPLATE, text, &size, err);
    if (pp_file_exists(folder, jinja_file))
        return PP_OK; /* this file replaces all others */
    enum pp_code code = template_of_json(folder, "chat_template.json", name, text, err);
    return code || *text ? code : template_of_json(folder, "tokenizer_config.json", name, text, err);
}

/* A blank template, as some programs write for models that have none, is none. */
enum pp_code pp_hf_chat_template(const char *folder, const char *name, char **text, struct pp_error *err)
{
    *text = NULL;
    enum pp_code code = read_template(folder, name, text, err);
    if (*text && !(*text)[strspn(*text, " \t\r\n")]) {
        pp_free(*text);
        *text = NULL;
    }
    return code;
}

/* --- pooling ------------------------------------------------------------------------------------------- */

const struct pp_pooling_mode pp_pooling_modes[PP_POOLING_MODES] = {
    {"pooling_mode_cls_token", PP_POOLING_CLS},
    {"pooling_mode_mean_tokens", PP_POOLING_MEAN},
    {"pooling_mode_lasttoken", PP_POOLING_LAST},
};

/* Reads the configuration of a pooling module, in which exactly one mode is true. */
static enum pp_code read_pooling(const char *folder, const char *module, int *pooling, struct pp_error *err)
{
    cJSON *config;
    struct pp_buf name = {0};
    int n_true = 0;
    if (!plain_name(module))
        return pp_fail(err, PP_ERR_FORMAT, "%s/%s: \"%.60s\" is not the name of a module", folder, modules_file,
                       module);
    pp_buf_fmt(&name, "%s/config.json", module);
    enum pp_code code = name.bad ? pp_fail_nomem(err, "a file name") : pp_json_read(folder, name.data, &config, err);
    pp_buf_free(&name);
    if (code)
        return code;
    for (size_t i = 0; i < PP_POOLING_MODES; i++)
        if (cJSON_IsTrue(pp_json_member(config, pp_pooling_modes[i].key))) {
            *pooling = pp_pooling_modes[i].pooling;
            n_true++;
        }
    cJSON_Delete(config);
    if (n_true == 1)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "%s pools token vectors in a way that pippin does not know; it knows cls, "
                                            "mean and last", folder);
}

enum pp_code pp_hf_modules(const char *folder, cJSON **modules, struct pp_error *err)
{
    enum pp_code code = read_json(folder, modules_file, cJSON_Array, modules, err);
    for (const cJSON *module = code ? NULL : (*modules)->child; module && !code; module = module->next) {
        const char *path = cJSON_GetStringValue(pp_json_member(module, "path"));
        if (path && *path && !plain_name(path))
            code = pp_fail(err, PP_ERR_FORMAT, "%s/%s: \"%.60s\" is not the name of a module", folder, modules_file,
                           path);
    }
    if (code) {
        cJSON_Delete(*modules);
        *modules = NULL;
    }
    return code;
}

/* What follows the last dot, as in "sentence_transformers.models.Dense"; "": there is none. */
static const char *last_word(const char *type)
{
    const char *point = type ? strrchr(type, '.') : NULL;
    return point ? point + 1 : "";
}

bool pp_hf_module_is_dense(const cJSON *module)
{
    return strcmp(last_word(cJSON_GetStringValue(pp_json_member(module, "type"))), "Dense") == 0;
}

enum pp_code pp_hf_pooling(const char *folder, int *pooling, struct pp_error *err)
{
    cJSON *modules;
    if (!pp_file_exists(folder, modules_file))
        return PP_OK;
    enum pp_code code = pp_hf_modules(folder, &modules, err);
    if (code)
        return code;
    for (const cJSON *module = modules->child; module && !code; module = module->next) {
        const char *type = cJSON_GetStringValue(pp_json_member(module, "type"));
        const char *path = cJSON_GetStringValue(pp_json_member(module, "path"));
        const char *kind = last_word(type);
        if (strcmp(kind, "Pooling") == 0)
            code = read_pooling(folder, path ? path : "", pooling, err);
        else if (strcmp(kind, "Transformer") != 0 && strcmp(kind, "Normalize") != 0 && strcmp(kind, "Dense") != 0)
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "%s has a layer of the kind \"%.40s\" after the model, which is "
                                                    "not supported", folder, kind);
    }
    cJSON_Delete(modules);
    return code;
}

/* --- layers after the model ------------------------------------------------------------------------------- */

/* Checks that a dense layer is only a matrix, without bias and activation. */
static enum pp_code check_dense(const char *folder, const char *module, struct pp_error *err)
{
    static const char identity[] = "Identity";
    struct pp_buf name = {0};
    cJSON *config;
    pp_buf_fmt(&name, "%s/config.json", module);
    enum pp_code code = name.bad ? pp_fail_nomem(err, "a file name") : pp_json_read(folder, name.data, &config, err);
    pp_buf_free(&name);
    if (code)
        return code;
    const char *fn = cJSON_GetStringValue(pp_json_member(config, "activation_function"));
    const bool plain = strcmp(last_word(fn), identity) == 0 && !cJSON_IsTrue(pp_json_member(config, "bias"));
    cJSON_Delete(config);
    return plain ? PP_OK : pp_fail(err, PP_ERR_UNSUPPORTED, "%s/%s has a bias or an activation, which is not supported",
                                   folder, module);
}

/* Adds a dense layer's matrix: the n-th is dense_2.linear.weight, dense_3 ... */
static enum pp_code take_dense(struct pp_hf *hf, const char *folder, const char *module, struct pp_error *err)
{
    struct pp_buf name = {0};
    enum pp_code code = check_dense(folder, module, err);
    if (code)
        return code;
    if (hf->n_dense == MAX_DENSE || hf->n_shards == MAX_SHARDS)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s has more than %d layers after the model", folder, MAX_DENSE);
    pp_buf_fmt(&name, "%s/%s", module, single_file);
    code = name.bad ? pp_fail_nomem(err, "a file name") : open_shard(hf, folder, name.data, err);
    pp_buf_free(&name);
    if (code)
        return code;
    const struct pp_safetensors *shard = hf->shards[hf->n_shards - 1];
    const struct pp_tensor *t = pp_safetensors_find(shard, dense_weight);
    if (!t)
        return pp_fail(err, PP_ERR_FORMAT, "%s/%s/%s has no %s", folder, module, single_file, dense_weight);
    char *own = hf->dense_names[hf->n_dense];
    snprintf(own, sizeof hf->dense_names[0], "dense_%zu.%s", hf->n_dense + 2, dense_weight);
    hf->dense[hf->n_dense] = *t;
    hf->dense[hf->n_dense].name = own;
    hf->tensors[hf->n++] = (struct hf_tensor){shard, &hf->dense[hf->n_dense++]};
    return PP_OK;
}

static enum pp_code take_dense_layers(struct pp_hf *hf, const char *folder, struct pp_error *err)
{
    cJSON *modules = NULL;
    if (!pp_file_exists(folder, modules_file))
        return PP_OK;
    enum pp_code code = pp_hf_modules(folder, &modules, err);
    for (const cJSON *module = code ? NULL : modules->child; module && !code; module = module->next) {
        const char *path = cJSON_GetStringValue(pp_json_member(module, "path"));
        if (pp_hf_module_is_dense(module))
            code = take_dense(hf, folder, path ? path : "", err);
    }
    cJSON_Delete(modules);
    return code;
}
