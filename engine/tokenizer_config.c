/* tokenizer_config.c - what the other JSON files of a Hugging Face folder say about the tokenizer. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/tokenizer_internal.h"

#define MAX_CONFIG_FILE ((size_t)64 << 20)

enum pp_code tok_config_json(const char *folder, const char *name, cJSON **out, struct pp_error *err)
{
    struct pp_buf path = {0};
    char *data = NULL;
    size_t n = 0;
    enum pp_code code = PP_OK;
    pp_buf_fmt(&path, "%s/%s", folder, name);
    if (path.bad)
        return pp_fail_nomem(err, "a path");
    if (access(path.data, F_OK) == 0) {
        code = pp_read_file(path.data, MAX_CONFIG_FILE, &data, &n, err);
        if (!code) {
            pp_json_take_infinity(data, n);
            code = pp_json_parse(data, n, path.data, NULL, out, err);
        }
        if (!code && !*out)
            code = pp_fail(err, PP_ERR_FORMAT, "%s is not valid JSON", path.data);
    }
    pp_free(data);
    pp_buf_free(&path);
    return code;
}

enum pp_code tok_config_read(const char *folder, struct tok_config *cfg, struct pp_error *err)
{
    memset(cfg, 0, sizeof *cfg);
    enum pp_code code = tok_config_json(folder, "tokenizer_config.json", &cfg->tokenizer, err);
    if (!code)
        code = tok_config_json(folder, "config.json", &cfg->model, err);
    if (!code)
        code = tok_config_json(folder, "generation_config.json", &cfg->generation, err);
    return code;
}

void tok_config_free(struct tok_config *cfg)
{
    cJSON_Delete(cfg->tokenizer);
    cJSON_Delete(cfg->model);
    cJSON_Delete(cfg->generation);
    memset(cfg, 0, sizeof *cfg);
}

static bool is_true(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(pp_json_member(object, name));
}

enum pp_code tok_spec_add_token(struct tok_spec *spec, int64_t id, const cJSON *token, struct pp_error *err)
{
    const char *text = cJSON_GetStringValue(pp_json_member(token, "content"));
    if (!text)
        return pp_fail(err, PP_ERR_FORMAT, "an added token has no content");
    if (id < 0 || id >= (int64_t)spec->n + TOK_MAX_HOLES)
        return pp_fail(err, PP_ERR_FORMAT, "an added token has the id %lld, far outside the vocabulary", (long long)id);
    enum pp_code code = tok_spec_resize(spec, (size_t)id + 1, err);
    if (code)
        return code;
    spec->texts[id] = (struct pp_str){text, strlen(text)};
    spec->flags[id] &= (uint8_t)~TOK_SPACED; /* cut out before the vocabulary sees the text */
    if (spec->types[id] != TOK_UNKNOWN)
        spec->types[id] = is_true(token, "special") ? TOK_CONTROL : TOK_USER;
    if (is_true(token, "lstrip"))
        spec->flags[id] |= TOK_LSTRIP;
    if (is_true(token, "rstrip"))
        spec->flags[id] |= TOK_RSTRIP;
    if (is_true(token, "normalized"))
        spec->flags[id] |= TOK_LATE;
    if (is_true(token, "single_word"))
        spec->flags[id] |= TOK_WORD;
    return PP_OK;
}

/* "bos_token" is a text, or an object with the text as its content. */
static void find_token(const cJSON *config, const char *name, const struct tok_spec *spec, int64_t *id)
{
    const cJSON *token = pp_json_member(config, name);
    if (cJSON_IsObject(token))
        token = pp_json_member(token, "content");
    if (!cJSON_IsString(token))
        return;
    int64_t found = tok_spec_find(spec, token->valuestring, strlen(token->valuestring));
    if (found >= 0)
        *id = found;
}

/* An id, or -1. */
static int64_t number_as_id(const cJSON *number, const struct tok_spec *spec)
{
    if (!cJSON_IsNumber(number) || !(number->valuedouble >= 0 && number->valuedouble < (double)spec->n))
        return -1;
    return (int64_t)number->valuedouble;
}

static void mark_end(const cJSON *number, struct tok_spec *spec)
{
    int64_t id = number_as_id(number, spec);
    if (id >= 0 && spec->types[id] == TOK_CONTROL)
        spec->flags[id] |= TOK_END;
}

static void mark_ends(const cJSON *ids, struct tok_spec *spec)
{
    const cJSON *id;
    if (!cJSON_IsArray(ids))
        mark_end(ids, spec);
    cJSON_ArrayForEach(id, ids)
        mark_end(id, spec);
}

static enum pp_code add_tokens(const cJSON *decoder, struct tok_spec *spec, struct pp_error *err)
{
    const cJSON *token;
    enum pp_code code = PP_OK;
    cJSON_ArrayForEach(token, decoder) {
        char *end;
        long id = token->string ? strtol(token->string, &end, 10) : -1;
        code = tok_spec_add_token(spec, id, token, err);
        if (code)
            break;
    }
    return code;
}

static enum pp_code pad_to_model(const cJSON *model, struct tok_spec *spec, struct pp_error *err)
{
    const cJSON *size = pp_json_member(model, "vocab_size");
    const cJSON *thinker = pp_json_member(model, "thinker_config"); /* Qwen's Omni */
    const cJSON *own = pp_json_member(thinker ? thinker : model, "text_config");
    if (!own)
        own = pp_json_member(model, "llm_config");
    if (!size)
        size = pp_json_member(own, "vocab_size");
    if (!cJSON_IsNumber(size) || !(size->valuedouble > (double)spec->n) ||
        size->valuedouble > (double)spec->n + TOK_MAX_HOLES)
        return PP_OK;
    return tok_spec_resize(spec, (size_t)size->valuedouble, err);
}

/* Whether the model's class adds bos_token and eos_token itself, whatever template tokenizer.json has. */
static bool makes_template(const cJSON *config)
{
    static const char *const begins[] = {"Llama", "CodeLlama", "Gemma", "Cohere"};
    const char *name = cJSON_GetStringValue(pp_json_member(config, "tokenizer_class"));
    for (size_t i = 0; name && i < sizeof begins / sizeof *begins; i++)
        if (strncmp(name, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

enum pp_code tok_config_apply(const struct tok_config *cfg, struct tok_spec *spec, struct pp_error *err)
{
    const cJSON *eos = pp_json_member(cfg->model, "eos_token_id");
    enum pp_code code = add_tokens(pp_json_member(cfg->tokenizer, "added_tokens_decoder"), spec, err);
    if (!code)
        code = pad_to_model(cfg->model, spec, err);
    if (code)
        return code;
    if (!spec->bos_explicit || makes_template(cfg->tokenizer)) {
        find_token(cfg->tokenizer, "bos_token", spec, &spec->bos);
        spec->n_lead = 0;
    }
    find_token(cfg->tokenizer, "eos_token", spec, &spec->eos);
    if (!spec->unk_explicit)
        find_token(cfg->tokenizer, "unk_token", spec, &spec->unk);
    if (!cfg->tokenizer && spec->bos < 0)
        spec->bos = number_as_id(pp_json_member(cfg->model, "bos_token_id"), spec);
    if (spec->eos < 0)
        spec->eos = number_as_id(cJSON_IsArray(eos) ? cJSON_GetArrayItem(eos, 0) : eos, spec);
    if (cJSON_IsArray(eos))
        mark_ends(eos, spec);
    mark_ends(pp_json_member(cfg->generation, "eos_token_id"), spec);
    const cJSON *add = pp_json_member(cfg->tokenizer, "add_bos_token");
    if (cJSON_IsBool(add))
        spec->add_bos = cJSON_IsTrue(add);
    add = pp_json_member(cfg->tokenizer, "add_eos_token");
    if (cJSON_IsBool(add))
        spec->add_eos = cJSON_IsTrue(add);
    if (!spec->add_eos || makes_template(cfg->tokenizer))
        spec->n_tail = 0;
    return PP_OK;
}
