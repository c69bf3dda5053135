/* registry.c - see registry.h. */
#include "src/registry.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/part_name.h"
#include "engine/base/utf8.h"
#include "engine/engine.h"
#include "engine/source.h"

/* --- entries ------------------------------------------------------------------------------------------------ */

static bool ends_with(const char *s, size_t n, const char *ending)
{
    const size_t e = strlen(ending);
    return n > e && memcmp(s + n - e, ending, e) == 0;
}

/* A name for a model: the last component of its path without .gguf and without the number of a part. Control
 * characters and invalid UTF-8, which JSON would change, are replaced by underscores. real: the resolved path, used
 * if the name is "." or ".."; or NULL. */
static char *name_of(const char *path, const char *real)
{
    size_t n;
    const char *begin = pp_path_name(path, &n);
    if (real && (n == 1 || n == 2) && begin[0] == '.' && begin[n - 1] == '.')
        return name_of(real, NULL);
    if (ends_with(begin, n, ".gguf"))
        n -= strlen(".gguf");
    char *name = pp_strndup(begin, n - pp_part_ending(begin, n));
    size_t left = name ? strlen(name) : 0, len;
    int32_t c;
    for (char *s = name; left; s += len, left -= len) {
        len = pp_utf8_decode(s, left, &c);
        if (c < ' ' || c == 127)
            memset(s, '_', len);
    }
    return name;
}

/* Does not resolve a file's own link: the parts of a model are found by their names, which the targets of links may
 * not have, as in the cache of Hugging Face's programs. */
char *pp_registry_path(const char *path)
{
    struct stat st;
    const char *name = strrchr(path, '/'), *own = name ? name + 1 : path;
    if (stat(path, &st) != 0 || S_ISDIR(st.st_mode) || !*own) {
        char *real = realpath(path, NULL), *copy = real ? pp_strdup(real) : NULL;
        free(real);
        return copy;
    }
    char *folder = name ? pp_strndup(path, (size_t)(own - path)) : pp_strdup(".");
    char *real = folder ? realpath(folder, NULL) : NULL;
    struct pp_buf out = {0};
    if (real)
        pp_buf_fmt(&out, "%s%s%s", real, real[1] ? "/" : "", own);
    char *whole = real ? pp_buf_take(&out) : NULL;
    free(real);
    pp_free(folder);
    return whole;
}

bool pp_registry_looks_like(const char *path)
{
    char config[4096], file[256];
    struct stat st;
    const size_t n = strlen(path);
    if (stat(path, &st) != 0)
        return false;
    if (S_ISDIR(st.st_mode)) {
        snprintf(config, sizeof config, "%s/config.json", path);
        /* each file in a folder of GGUF files is a model itself */
        return access(config, F_OK) == 0 && !pp_folder_holds_gguf(path, file);
    }
    if (!S_ISREG(st.st_mode) || !ends_with(path, n, ".gguf"))
        return false;
    const size_t base = n - strlen(".gguf"), part = pp_part_ending(path, base);
    return !part || memcmp(path + base - part, "-00001", PP_PART_NUMBER) == 0;
}

static char *facts_of(const struct pp_model_info *info)
{
    cJSON *o = cJSON_CreateObject();
    bool ok = o && cJSON_AddStringToObject(o, "arch", info->arch) &&
              cJSON_AddStringToObject(o, "type", info->type_name) &&
              cJSON_AddNumberToObject(o, "params", (double)info->n_params) &&
              (!info->n_expert || cJSON_AddNumberToObject(o, "active_params", (double)info->n_params_active)) &&
              cJSON_AddNumberToObject(o, "layers", (double)info->n_layer) &&
              cJSON_AddNumberToObject(o, "context", (double)info->n_ctx_train) &&
              cJSON_AddNumberToObject(o, "vocabulary", (double)info->n_vocab);
    char *text = ok ? cJSON_PrintUnformatted(o) : NULL, *copy = text ? pp_strdup(text) : NULL;
    cJSON_free(text);
    cJSON_Delete(o);
    return copy;
}

bool pp_registry_can_find(const char *name)
{
    return name[0] && name[0] != '/' && name[0] != '.' && strcmp(name, "starter") != 0;
}

static enum pp_code cannot_find(const char *name, const char *path, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_USAGE, "\"%s\" cannot be the name of %s: it would not be found again; give another "
                                      "with --name",
                   name, path);
}

/* The registry path of a file that exists, or of one that will be made in an existing folder. */
static char *path_to_be(const char *path)
{
    char *known = pp_registry_path(path), *folder = known ? NULL : pp_folder_of(path);
    char *real = folder ? realpath(folder, NULL) : NULL;
    const char *own = strrchr(path, '/');
    struct pp_buf out = {0};
    if (real && own)
        pp_buf_fmt(&out, "%s%s", real[1] ? real : "", own);
    pp_free(folder);
    free(real);
    return known ? known : out.len ? pp_buf_take(&out) : pp_strdup(path);
}

enum pp_code pp_registry_check_name(struct pp_store *st, const char *path, const char *name, struct pp_error *err)
{
    struct pp_model_entry e = {.path = path_to_be(path)};
    e.name = name ? pp_strdup(name) : name_of(path, e.path);
    enum pp_code code = !e.path || !e.name              ? pp_fail_nomem(err, "the model")
                        : !pp_registry_can_find(e.name) ? cannot_find(e.name, path, err)
                                                        : pp_store_model_name(st, &e, name, err);
    pp_model_entry_clear(&e);
    return code;
}

enum pp_code pp_registry_entry(const char *path, const char *name, struct pp_model_entry *out, struct pp_error *err)
{
    struct pp_model *m;
    *out = (struct pp_model_entry){0};
    enum pp_code code = pp_model_open(path, &m, err);
    if (code)
        return code;
    const struct pp_model_info *info = pp_model_info(m);
    out->path = pp_registry_path(path);
    out->name = name ? pp_strdup(name) : name_of(path, out->path);
    out->facts = facts_of(info);
    out->source = pp_strdup("");
    out->sha256 = pp_strdup("");
    out->tags = pp_strdup("");
    out->bytes = (int64_t)info->bytes;
    pp_model_close(m);
    const bool whole = out->path && out->name && out->facts && out->source && out->sha256 && out->tags;
    if (whole && pp_registry_can_find(out->name))
        return PP_OK;
    if (whole)
        code = cannot_find(out->name, path, err);
    else
        code = pp_fail_nomem(err, "the model");
    pp_model_entry_clear(out);
    return code;
}

/* --- finding models ----------------------------------------------------------------------------------------- */

/* NULL: there is no database yet, or it cannot be read; then nothing is registered. */
static struct pp_store *open_store(const struct pp_paths *p)
{
    struct pp_store *st;
    return p->db[0] && access(p->db, R_OK) == 0 && pp_store_open_to_read(p->db, &st, NULL) == PP_OK ? st : NULL;
}

bool pp_registry_find(const struct pp_paths *p, const char *word, char *out, size_t cap)
{
    struct pp_store *st = open_store(p);
    char *path = NULL;
    bool found = st && pp_store_model_find(st, word, &path, NULL) == PP_OK && access(path, F_OK) == 0 &&
                 strlen(path) < cap;
    if (found)
        strcpy(out, path);
    pp_free(path);
    pp_store_close(st);
    return found;
}

char *pp_registry_source(const struct pp_paths *p, const char *path)
{
    struct pp_store *st = open_store(p);
    char *real = pp_registry_path(path), *source = NULL;
    struct pp_model_entry *list;
    size_t n;
    if (st && real && pp_store_model_list(st, &list, &n, NULL) == PP_OK) {
        for (size_t i = 0; i < n && !source; i++)
            source = strcmp(list[i].path, real) == 0 ? pp_strdup(list[i].source) : NULL;
        pp_model_entry_list_free(list, n);
    }
    pp_free(real);
    pp_store_close(st);
    return source;
}

static void try_words(struct pp_near *near, const char *words)
{
    char word[256];
    for (const char *at = words; *at;) {
        size_t n = strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", (int)(n < 255 ? n : 255), at);
        if (n)
            pp_near_try(near, word);
        at += n + (at[n] == ' ');
    }
}

void pp_registry_near(const struct pp_paths *p, struct pp_near *near)
{
    struct pp_store *st = open_store(p);
    struct pp_model_entry *list;
    size_t n;
    if (st && pp_store_model_list(st, &list, &n, NULL) == PP_OK) {
        for (size_t i = 0; i < n; i++) {
            pp_near_try(near, list[i].name);
            try_words(near, list[i].tags);
        }
        pp_model_entry_list_free(list, n);
    }
    pp_store_close(st);
}
