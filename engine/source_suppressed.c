/* source_suppressed.c - tokens that a model must never write, such as placeholders for pictures: suppress_tokens of a
 * folder's generation_config.json, and GGUF's tokenizer.ggml.suppress_tokens. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/source_int.h"

#define MAX_GENERATION_CONFIG ((size_t)16 << 20)
const char pp_suppressed_key[] = "tokenizer.ggml.suppress_tokens";

/* Adds a token, unless it is outside the vocabulary. There is room. */
static void take(struct pp_source *s, double id)
{
    if (id >= 0 && id < (double)s->hp.n_vocab && id == (double)(int32_t)id)
        s->suppressed[s->n_suppressed++] = (int32_t)id;
}

static enum pp_code make_room(struct pp_source *s, size_t n, struct pp_error *err)
{
    s->suppressed = pp_calloc(n + 1, sizeof *s->suppressed);
    return s->suppressed ? PP_OK : pp_fail_nomem(err, pp_suppressed_key);
}

static enum pp_code from_gguf(struct pp_source *s, struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n = 0;
    if (!pp_gguf_has(s->gguf, pp_suppressed_key))
        return PP_OK;
    if (!pp_gguf_array(s->gguf, pp_suppressed_key, &type, &n))
        return pp_fail(err, PP_ERR_FORMAT, "%s: metadata %s is not a list of tokens", s->path, pp_suppressed_key);
    const enum pp_code code = make_room(s, n, err);
    for (size_t i = 0; i < n && !code; i++) {
        int64_t id;
        if (!pp_gguf_array_int(s->gguf, pp_suppressed_key, i, &id))
            return pp_fail(err, PP_ERR_FORMAT, "%s: metadata %s is not a list of tokens", s->path, pp_suppressed_key);
        take(s, (double)id);
    }
    return code;
}

static enum pp_code from_list(struct pp_source *s, const cJSON *list, struct pp_error *err)
{
    const cJSON *id;
    if (!cJSON_IsArray(list))
        return PP_OK;
    const enum pp_code code = make_room(s, (size_t)cJSON_GetArraySize(list), err);
    if (!code)
        cJSON_ArrayForEach(id, list)
            take(s, cJSON_IsNumber(id) ? id->valuedouble : -1);
    return code;
}

static enum pp_code from_folder(struct pp_source *s, struct pp_error *err)
{
    static const char name[] = "generation_config.json";
    struct pp_buf path = {0};
    cJSON *config = NULL;
    char *text = NULL;
    size_t n = 0;
    if (!pp_file_exists(s->path, name))
        return PP_OK;
    pp_buf_fmt(&path, "%s/%s", s->path, name);
    enum pp_code code = path.bad ? pp_fail_nomem(err, s->path)
                                 : pp_read_file(path.data, MAX_GENERATION_CONFIG, &text, &n, err);
    if (!code) {
        pp_json_take_infinity(text, n);
        code = pp_json_parse(text, n, path.data, NULL, &config, err);
    }
    if (!code && !config)
        code = pp_fail(err, PP_ERR_FORMAT, "%s is not valid JSON", path.data);
    if (!code)
        code = from_list(s, pp_json_member(config, "suppress_tokens"), err);
    cJSON_Delete(config);
    pp_free(text);
    pp_buf_free(&path);
    return code;
}

enum pp_code pp_source_find_suppressed(struct pp_source *s, struct pp_error *err)
{
    return s->gguf ? from_gguf(s, err) : from_folder(s, err);
}

const int32_t *pp_source_suppressed(const struct pp_source *s, size_t *n)
{
    *n = s->n_suppressed;
    return s->suppressed;
}
