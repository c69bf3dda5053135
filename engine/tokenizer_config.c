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

/* Puts a member of special_tokens_map.json into tokenizer_config.json, where it takes the place of another with its
 * name; but lists are united. Takes ownership of the member. */
static bool take_special(cJSON *config, cJSON *member)
{
    cJSON *had = cJSON_GetObjectItemCaseSensitive(config, member->string), *token;
    if (!had)
        return cJSON_AddItemToObject(config, member->string, member);
    if (!cJSON_IsArray(had) || !cJSON_IsArray(member))
        return cJSON_ReplaceItemViaPointer(config, had, member);
    while ((token = cJSON_DetachItemFromArray(member, 0)))
        cJSON_AddItemToArray(had, token);
    cJSON_Delete(member);
    return true;
}

/* Reads what older folders have in files of their own. As in the transformers library, an added_tokens_decoder replaces
 * both, and without one special_tokens_map.json wins over tokenizer_config.json. */
static enum pp_code read_older(const char *folder, struct tok_config *cfg, struct pp_error *err)
{
    cJSON *map = NULL, *member;
    if (pp_json_member(cfg->tokenizer, "added_tokens_decoder"))
        return PP_OK;
    enum pp_code code = tok_config_json(folder, "added_tokens.json", &cfg->added, err);
    if (!code)
        code = tok_config_json(folder, "special_tokens_map.json", &map, err);
    if (map && !cfg->tokenizer && !(cfg->tokenizer = cJSON_CreateObject()))
        code = pp_fail_nomem(err, "the vocabulary");
    const bool both = cJSON_IsObject(map) && cJSON_IsObject(cfg->tokenizer);
    while (!code && both && (member = cJSON_DetachItemFromArray(map, 0)))
        if (!take_special(cfg->tokenizer, member)) {
            cJSON_Delete(member);
            code = pp_fail_nomem(err, "the vocabulary");
        }
    cJSON_Delete(map);
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
    return code ? code : read_older(folder, cfg, err);
}

void tok_config_free(struct tok_config *cfg)
{
    cJSON_Delete(cfg->tokenizer);
    cJSON_Delete(cfg->added);
    cJSON_Delete(cfg->model);
    cJSON_Delete(cfg->generation);
    memset(cfg, 0, sizeof *cfg);
}

static bool is_true(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(pp_json_member(object, name));
}

/* token: its options; none: they are all false. */
static enum pp_code put_token(struct tok_spec *spec, int64_t id, const char *text, const cJSON *token, bool special,
                              struct pp_error *err)
{
    if (id < 0 || id >= (int64_t)spec->n + TOK_MAX_HOLES)
        return pp_fail(err, PP_ERR_FORMAT, "an added token has the id %lld, far outside the vocabulary", (long long)id);
    enum pp_code code = tok_spec_resize(spec, (size_t)id + 1, err);
    if (code)
        return code;
    spec->texts[id] = (struct pp_str){text, strlen(text)};
    spec->flags[id] &= (uint8_t)~TOK_SPACED; /* cut out before the vocabulary sees the text */
    if (spec->types[id] != TOK_UNKNOWN)
        spec->types[id] = special ? TOK_CONTROL : TOK_USER;
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

enum pp_code tok_spec_add_token(struct tok_spec *spec, int64_t id, const cJSON *token, struct pp_error *err)
{
    const char *text = cJSON_GetStringValue(pp_json_member(token, "content"));
    if (!text)
        return pp_fail(err, PP_ERR_FORMAT, "an added token has no content");
    return put_token(spec, id, text, token, is_true(token, "special"), err);
}

/* A token is a text, or an object with the text as its content. NULL: it is neither. */
static const char *text_of(const cJSON *token)
{
    return cJSON_GetStringValue(cJSON_IsObject(token) ? pp_json_member(token, "content") : token);
}

static void find_token(const cJSON *config, const char *name, const struct tok_spec *spec, int64_t *id)
{
    const char *text = text_of(pp_json_member(config, name));
    int64_t found = text ? tok_spec_find(spec, text, strlen(text)) : -1;
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

/* added_tokens_decoder: objects of tokens, called by their ids. */
static enum pp_code add_decoder(const cJSON *decoder, struct tok_spec *spec, struct pp_error *err)
{
    const cJSON *token;
    enum pp_code code = PP_OK;
    cJSON_ArrayForEach(token, decoder) {
        const char *name = token->string ? token->string : "";
        char *end;
        const long id = strtol(name, &end, 10);
        if (end == name || *end)
            return pp_fail(err, PP_ERR_FORMAT, "an added token has \"%.40s\" in place of an id", name);
        code = tok_spec_add_token(spec, id, token, err);
        if (code)
            break;
    }
    return code;
}

/* The size of the model's vocabulary, or 0. */
static double model_size(const cJSON *model)
{
    const cJSON *size = pp_json_member(model, "vocab_size");
    const cJSON *thinker = pp_json_member(model, "thinker_config"); /* Qwen's Omni */
    const cJSON *own = pp_json_member(thinker ? thinker : model, "text_config");
    if (!own)
        own = pp_json_member(model, "llm_config");
    if (!size)
        size = pp_json_member(own, "vocab_size");
    return cJSON_IsNumber(size) ? size->valuedouble : 0;
}

static enum pp_code pad_to_model(const cJSON *model, struct tok_spec *spec, struct pp_error *err)
{
    const double size = model_size(model);
    if (!(size > (double)spec->n) || size > (double)spec->n + TOK_MAX_HOLES)
        return PP_OK;
    return tok_spec_resize(spec, (size_t)size, err);
}

/* --- tokens that are named --------------------------------------------------------------------------------- */

/* A token that the configuration names as a special one. */
struct named {
    const char *text;
    const cJSON *options; /* its flags, if it is an object */
    bool known;           /* the vocabulary has it */
};

struct names {
    struct named *v;       /* [n] */
    struct named **sorted; /* [n] by text */
    size_t n;
    bool first[256];       /* the bytes with which they begin */
};

static int by_text(const void *a, const void *b)
{
    return strcmp((*(struct named *const *)a)->text, (*(struct named *const *)b)->text);
}

static void add_name(struct names *names, const cJSON *token)
{
    const char *text = text_of(token);
    if (!text || !*text)
        return;
    names->v[names->n++] = (struct named){.text = text, .options = token};
    names->first[(uint8_t)*text] = true;
}

static enum pp_code collect_names(const cJSON *config, struct names *names, struct pp_error *err)
{
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
    enum { N_KEYS = sizeof keys / sizeof *keys };
    const cJSON *more = pp_json_member(config, "additional_special_tokens"), *token;
    const size_t most = N_KEYS + (size_t)(cJSON_IsArray(more) ? cJSON_GetArraySize(more) : 0);
    names->v = pp_realloc_array(NULL, most, sizeof *names->v);
    names->sorted = pp_realloc_array(NULL, most, sizeof *names->sorted);
    if (!names->v || !names->sorted)
        return pp_fail_nomem(err, "the vocabulary");
    for (size_t i = 0; i < N_KEYS; i++)
        add_name(names, pp_json_member(config, keys[i]));
    if (cJSON_IsArray(more))
        cJSON_ArrayForEach(token, more)
            add_name(names, token);
    for (size_t i = 0; i < names->n; i++)
        names->sorted[i] = &names->v[i];
    qsort(names->sorted, names->n, sizeof *names->sorted, by_text);
    return PP_OK;
}

/* Whether a name is these n bytes, which a NUL may be among: tokens' texts are not C strings. */
static bool is_text(const char *name, const char *text, size_t n)
{
    return strnlen(name, n + 1) == n && memcmp(name, text, n) == 0;
}

/* The name with this text, of n bytes; if there are several, all become known. NULL: there is none. */
static struct named *find_name(const struct names *names, const char *text, size_t n)
{
    size_t lo = 0, hi = names->n;
    while (lo < hi) {
        const size_t middle = lo + (hi - lo) / 2;
        const int order = strncmp(names->sorted[middle]->text, text, n);
        if (order < 0)
            lo = middle + 1;
        else
            hi = middle;
    }
    struct named *found = NULL;
    for (; lo < names->n && is_text(names->sorted[lo]->text, text, n); lo++) {
        found = found ? found : names->sorted[lo];
        names->sorted[lo]->known = true;
    }
    return found;
}

/* added_tokens.json: ids, called by the texts of their tokens. What tokenizer.json says about a token remains. */
static enum pp_code add_listed(const cJSON *added, const struct names *names, struct tok_spec *spec,
                               struct pp_error *err)
{
    const cJSON *token;
    cJSON_ArrayForEach(token, added) {
        const char *text = token->string;
        if (!text || !*text || !cJSON_IsNumber(token))
            continue;
        const double number = token->valuedouble;
        const int64_t id = number >= 0 && number < TOK_MAX_VOCAB ? (int64_t)number : -1;
        const bool there = id >= 0 && (size_t)id < spec->n && spec->texts[id].len == strlen(text) &&
                           memcmp(spec->texts[id].data, text, strlen(text)) == 0;
        if (there && (spec->types[id] == TOK_CONTROL || spec->types[id] == TOK_USER))
            continue;
        const struct named *named = find_name(names, text, strlen(text));
        const enum pp_code code = put_token(spec, id, text, named ? named->options : NULL, named, err);
        if (code)
            return code;
        if (!named)
            spec->flags[id] |= TOK_LATE;
        if (there == (named != NULL))
            spec->flags[id] |= there ? TOK_INSIDE : TOK_OUTSIDE;
    }
    return PP_OK;
}

/* Tokens of the vocabulary become special if they are named so; words may still become them. */
static enum pp_code mark_named(const struct names *names, struct tok_spec *spec, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < spec->n && !code; i++) {
        const struct pp_str s = spec->texts[i];
        const bool may_be = s.data && s.len && names->first[(uint8_t)*s.data];
        const struct named *named = may_be ? find_name(names, s.data, s.len) : NULL;
        if (!named || spec->types[i] != TOK_NORMAL)
            continue;
        code = put_token(spec, (int64_t)i, named->text, named->options, true, err);
        spec->flags[i] |= TOK_INSIDE;
    }
    return code;
}

/* Special tokens that no file gives an id follow the vocabulary, if the model has room for them. */
static enum pp_code append_named(const struct names *names, double room, struct tok_spec *spec, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < names->n && !code && (double)spec->n < room; i++) {
        const struct named *named = &names->v[i];
        if (named->known)
            continue;
        find_name(names, named->text, strlen(named->text));
        code = put_token(spec, (int64_t)spec->n, named->text, named->options, true, err);
    }
    return code;
}

/* As the transformers library adds what tokenizer.json, or another vocabulary, does not have as such. */
static enum pp_code add_named(const struct tok_config *cfg, struct tok_spec *spec, struct pp_error *err)
{
    struct names names = {0};
    enum pp_code code = collect_names(cfg->tokenizer, &names, err);
    if (!code)
        code = add_listed(cfg->added, &names, spec, err);
    if (!code && spec->kind != TOK_WORDPIECE) /* whose texts are no longer the file's */
        code = mark_named(&names, spec, err);
    if (!code && spec->kind != TOK_WORDPIECE)
        code = append_named(&names, model_size(cfg->model), spec, err);
    pp_free(names.v);
    pp_free(names.sorted);
    return code;
}

/* --- all together ------------------------------------------------------------------------------------------ */

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
    const cJSON *decoder = pp_json_member(cfg->tokenizer, "added_tokens_decoder");
    enum pp_code code = add_decoder(decoder, spec, err);
    if (!code)
        code = add_named(cfg, spec, err);
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
