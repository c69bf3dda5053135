/* export_folder.c - writes a model as a folder: config.json, the vocabulary's files and one model.safetensors, as
 * transformers reads it or, with affine groups of integers, as MLX does. */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/export_folder_int.h"
#include "engine/hf.h"
#include "engine/text.h"

enum { MAX_COPY = 256 << 20 };

/* --- what was written --------------------------------------------------------------------------------------------- */

/* The path of a file or folder in the new folder, which from now on is removed on failure; owned by f. NULL: out of
 * memory. */
static const char *folder_path(struct folder *f, const char *name)
{
    char *path = NULL;
    if (pp_grow(&f->made, &f->made_cap, f->n_made + 1, sizeof *f->made) == 0)
        path = pp_path_join(f->dst, name);
    if (path)
        f->made[f->n_made++] = path;
    else
        pp_fail_nomem(f->err, "a file name");
    return path;
}

enum pp_code pp_folder_make(struct folder *f, const char *name)
{
    const char *path = folder_path(f, name);
    if (!path)
        return PP_ERR_NOMEM;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return pp_fail(f->err, PP_ERR_IO, "cannot create the folder %s: %s", path, strerror(errno));
    return PP_OK;
}

/* Restores the folder after a failure, so that the same can be tried again. */
static void remove_made(const struct folder *f)
{
    for (size_t i = f->n_made; i-- > 0;)
        remove(f->made[i]);
    if (f->made_folder)
        rmdir(f->dst);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

enum pp_code pp_folder_write(struct folder *f, const char *name, const char *text, size_t n)
{
    const char *path = folder_path(f, name);
    return path ? pp_write_file(path, text, n, 0666, f->err) : PP_ERR_NOMEM;
}

static enum pp_code make_config(struct folder *f, const struct pp_tokenizer *t)
{
    static const char *const gone[] = {"quantization", "quantization_config", "dtype"};
    static const char *const types[] = {[PP_TYPE_F32] = "float32", [PP_TYPE_F16] = "float16"};
    enum pp_code code = pp_export_config(f->s, t, f->tied, &f->config, f->err);
    cJSON *json = f->config;
    if (code)
        return code;
    for (int i = 0; i < 3; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(json, gone[i]);
    for (int i = 0; i < 2 && f->opt->bits; i++) { /* MLX writes both */
        cJSON *q = cJSON_AddObjectToObject(json, gone[i]);
        cJSON_AddNumberToObject(q, "group_size", (double)f->group);
        cJSON_AddNumberToObject(q, "bits", f->opt->bits);
    }
    const struct pp_tensor *e = pp_source_tensor(f->s, "token_embd.weight");
    const uint32_t type = e ? pp_folder_float_type(f, e) : PP_TYPE_F32;
    pp_config_put_text(json, "torch_dtype", type == PP_TYPE_BF16 ? "bfloat16" : types[type]);
    return PP_OK;
}

/* Replaces infinities, which JSON lacks, by Python's word for them; cJSON would write null. */
static void spell_infinity(cJSON *json)
{
    static const char *const words[] = {"Infinity", "-Infinity"};
    cJSON *item;
    cJSON_ArrayForEach(item, json)
    {
        if (!cJSON_IsNumber(item) || !isinf(item->valuedouble)) {
            spell_infinity(item);
            continue;
        }
        const char *word = words[item->valuedouble < 0];
        char *text = cJSON_malloc(strlen(word) + 1);
        if (!text)
            return; /* then the whole has none either */
        item->valuestring = strcpy(text, word);
        item->type = (item->type & ~0xFF) | cJSON_Raw;
    }
}

static enum pp_code write_config(struct folder *f)
{
    spell_infinity(f->config);
    char *text = cJSON_Print(f->config);
    enum pp_code code = text ? pp_folder_write(f, "config.json", text, strlen(text))
                             : pp_fail_nomem(f->err, "config.json");
    cJSON_free(text);
    return code;
}

/* --- the vocabulary ---------------------------------------------------------------------------------------------- */

enum pp_code pp_folder_copy(struct folder *f, const char *name)
{
    const char *folder = pp_source_folder(f->s);
    char *text, *path;
    size_t n;
    if (!pp_file_exists(folder, name))
        return PP_OK;
    if (!(path = pp_path_join(folder, name)))
        return pp_fail_nomem(f->err, "a file name");
    enum pp_code code = pp_read_file(path, MAX_COPY, &text, &n, f->err);
    pp_free(path);
    if (code)
        return code;
    code = pp_folder_write(f, name, text, n);
    pp_free(text);
    return code;
}

static int is_tiktoken(const struct dirent *d)
{
    return d->d_name[0] != '.' && pp_ends_with(d->d_name, ".tiktoken");
}

static enum pp_code copy_tiktoken(struct folder *f)
{
    struct dirent **found;
    const int n = scandir(pp_source_folder(f->s), &found, is_tiktoken, alphasort);
    enum pp_code code = PP_OK;
    for (int i = 0; i < n; i++) {
        code = code ? code : pp_folder_copy(f, found[i]->d_name);
        free(found[i]);
    }
    if (n >= 0)
        free(found);
    return code;
}

/* Writes the template for conversations with tools, if it differs. */
static enum pp_code write_tool_template(struct folder *f)
{
    static const char name[] = "additional_chat_templates/tool_use.jinja";
    const char *text = pp_source_tool_template(f->s);
    if (!text || text == pp_source_chat_template(f->s))
        return PP_OK;
    const enum pp_code code = pp_folder_make(f, "additional_chat_templates");
    return code ? code : pp_folder_write(f, name, text, strlen(text));
}

static enum pp_code write_tokenizer(struct folder *f, const struct pp_tokenizer *t)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!folder_path(f, files[i]))
            return PP_ERR_NOMEM;
    return pp_tokenizer_to_folder(t, f->dst, f->err);
}

/* Writes generation_config.json for a GGUF file, which has less than a folder's. */
static enum pp_code write_generation(struct folder *f)
{
    size_t n;
    const int32_t *suppressed = pp_source_suppressed(f->s, &n);
    struct pp_buf text = {0};
    if (n == 0)
        return PP_OK;
    for (size_t i = 0; i < n; i++)
        pp_buf_fmt(&text, "%s%d", i ? ", " : "{\"suppress_tokens\": [", (int)suppressed[i]);
    pp_buf_fmt(&text, "]}\n");
    const enum pp_code code = text.bad ? pp_fail_nomem(f->err, f->dst)
                                       : pp_folder_write(f, "generation_config.json", text.data, text.len);
    pp_buf_free(&text);
    return code;
}

static enum pp_code write_vocabulary(struct folder *f, const struct pp_tokenizer *t)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json",
                                        "merges.txt", "special_tokens_map.json", "added_tokens.json",
                                        "chat_template.jinja", "chat_template.json", "generation_config.json",
                                        "vocab.txt", "tiktoken.model", "config_sentence_transformers.json",
                                        "sentence_bert_config.json", "rwkv_vocab_v20230424.txt", "tekken.json",
                                        "tokenizer.jsonl", "spiece.model", "sentencepiece.bpe.model"};
    const char *chat = pp_source_chat_template(f->s);
    enum pp_code code = PP_OK;
    for (size_t i = 0; pp_source_folder(f->s) && i < sizeof files / sizeof *files && !code; i++)
        code = pp_folder_copy(f, files[i]);
    if (!code && pp_source_folder(f->s))
        code = copy_tiktoken(f);
    if (!code)
        code = write_tool_template(f);
    if (!code)
        code = pp_folder_write_modules(f);
    if (pp_source_folder(f->s))
        return code;
    if (t && !code)
        code = write_tokenizer(f, t);
    if (!code)
        code = write_generation(f);
    return !code && chat ? pp_folder_write(f, "chat_template.jinja", chat, strlen(chat)) : code;
}

/* --- the folder -------------------------------------------------------------------------------------------------- */

/* 64 like MLX; 32 where that divides more matrices, or keeps 4-bit blocks as they are. */
static int64_t group_size(const struct folder *f)
{
    for (size_t i = 0; i < pp_source_n_tensors(f->s); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(f->s, i);
        if (t->n_dims >= 2 && t->type != PP_TYPE_I32 && !pp_export_keeps_f32(t) &&
            (t->ne[0] % 64 != 0 || (f->opt->bits == 4 && (t->type == PP_TYPE_Q4_0 || t->type == PP_TYPE_Q4_1))))
            return 32;
    }
    return 64;
}

static enum pp_code check_options(const struct folder *f)
{
    if (pp_arch_other_pairs(pp_source_hparams(f->s)))
        return pp_fail(f->err, PP_ERR_UNSUPPORTED, "%s has the rows of Q and K in the order of vision models, which "
                                                   "cannot be converted to a folder", pp_source_path(f->s));
    const int type = f->opt->out_type ? pp_type_by_name(f->opt->out_type) : PP_TYPE_F16;
    if (type != PP_TYPE_F32 && type != PP_TYPE_F16 && type != PP_TYPE_BF16)
        return pp_fail(f->err, PP_ERR_USAGE, "the weights of a folder can be F32, F16 or BF16, not \"%.40s\"",
                       f->opt->out_type);
    if (f->opt->bits != 0 && f->opt->bits != 4 && f->opt->bits != 8)
        return pp_fail(f->err, PP_ERR_USAGE, "MLX folders are written with 4 or 8 bits, not %d", f->opt->bits);
    return PP_OK;
}

static int is_visible(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

/* Refuses a folder with files: they may be the user's, and many would be overwritten. */
static enum pp_code check_empty(const struct folder *f)
{
    struct dirent **found;
    const char *left = NULL;
    const int n = scandir(f->dst, &found, is_visible, alphasort);
    enum pp_code code = PP_OK;
    if (n < 0)
        return pp_fail(f->err, PP_ERR_IO, "cannot read the folder %s: %s", f->dst, strerror(errno));
    for (int i = 0; i < n; i++) /* left by a killed process: the lock shows that nobody else writes here */
        left = pp_is_temporary_of(found[i]->d_name, "model.safetensors") ? found[i]->d_name : left;
    if (n && (pp_file_exists(f->dst, "config.json") || pp_file_exists(f->dst, "model.safetensors")))
        code = pp_fail(f->err, PP_ERR_USAGE, "%s already contains a model; give another folder", f->dst);
    else if (left)
        code = pp_fail(f->err, PP_ERR_USAGE, "the folder %s contains files of an interrupted conversion, such as "
                                             "%.60s: delete the folder, or give another", f->dst, left);
    else if (n)
        code = pp_fail(f->err, PP_ERR_USAGE, "the folder %s is not empty (it contains %.60s); give an empty or a new "
                                             "folder", f->dst, found[0]->d_name);
    for (int i = 0; i < n; i++)
        free(found[i]);
    free(found);
    return code;
}

static enum pp_code make_folder(struct folder *f)
{
    struct stat st;
    f->made_folder = mkdir(f->dst, 0777) == 0;
    if (!f->made_folder && errno != EEXIST)
        return pp_fail(f->err, PP_ERR_IO, "cannot create the folder %s: %s", f->dst, strerror(errno));
    if (stat(f->dst, &st) != 0 || !S_ISDIR(st.st_mode))
        return pp_fail(f->err, PP_ERR_USAGE, "%s exists and is not a folder; give another name", f->dst);
    const enum pp_code code = pp_lock_folder(f->dst, &f->lock, f->err);
    return code ? code : check_empty(f);
}

/* Writes everything, or nothing. */
static enum pp_code write_folder(struct folder *f, const struct pp_tokenizer *t)
{
    enum pp_code code = make_folder(f);
    if (!code)
        code = write_vocabulary(f, t);
    if (!code && !folder_path(f, "model.safetensors"))
        code = PP_ERR_NOMEM;
    if (!code)
        code = pp_folder_write_tensors(f);
    if (!code)
        code = write_config(f); /* last: without it the folder is no model */
    if (code && code != PP_ERR_BUSY)
        remove_made(f);
    if (f->lock >= 0)
        close(f->lock);
    return code;
}

enum pp_code pp_convert_to_folder(const char *src, const char *dst, const struct pp_convert_options *opt,
                                  struct pp_error *err)
{
    struct folder f = {.opt = opt, .dst = dst, .lock = -1, .err = err};
    struct pp_source *s;
    struct pp_tokenizer *t = NULL;
    enum pp_code code = pp_source_open(src, &s, err);
    if (code)
        return code;
    f.s = s;
    f.arch = pp_arch_by_name(pp_source_hparams(s)->arch);
    f.group = group_size(&f);
    code = check_options(&f);
    if (!code)
        code = pp_folder_find_modules(&f);
    if (!code)
        code = pp_folder_list(&f);
    if (!code && !pp_source_folder(s) && (code = pp_tokenizer_from_source(s, &t, err)) == PP_ERR_NOT_FOUND)
        code = PP_OK;
    if (!code)
        code = make_config(&f, t);
    if (!code)
        code = write_folder(&f, t);
    for (size_t i = 0; i < f.n_made; i++)
        pp_free(f.made[i]);
    pp_free(f.made);
    cJSON_Delete(f.modules);
    cJSON_Delete(f.config);
    pp_tokenizer_free(t);
    pp_free(f.items);
    pp_free(f.joined);
    pp_free(f.temp);
    pp_free(f.path);
    pp_source_close(s);
    return code;
}
