/* tokenizer_tiktoken.c - files of OpenAI's tiktoken: a line for each token, with its bytes in base 64, a space and its
 * rank, which is its id; and Mistral's tekken.json, which holds the same.
 *
 * Format: https://github.com/openai/tiktoken. Two neighbours merge if together they are a token, the pair with the
 * lowest rank first: so a token has a merge for each way to cut it into two tokens. A word that is a token is taken
 * whole. The file does not tell how text is cut into words, or which control tokens there are. tokenizer_config.json
 * may (pat_str, added_tokens_decoder); otherwise published vocabularies are recognised by their names, by the
 * model_type of config.json, or by their number of ranks. */
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <nettle/base64.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/name_index.h"
#include "engine/tokenizer_internal.h"

enum {
    MAX_FILE = 16 << 20,   /* the largest published one has 4 MB */
    MAX_TOKEN = 256,       /* bytes; published ones have up to 128 */
    MAX_MERGES = 1 << 22,
    MAX_LINE = BASE64_ENCODE_LENGTH(MAX_TOKEN) + 64,
};

struct entry {
    int64_t id;
    struct pp_str text; /* in byte-level spelling */
};

struct reader {
    struct entry *entries;     /* in the order of their ids */
    size_t n, cap;
    struct pp_buf spelled;     /* does not grow, as entries point into it */
    struct pp_buf pattern;     /* in PCRE2's dialect */
    struct pp_name_index index; /* of the entries' texts, in their order */
    struct tok_spec spec;
    size_t merges_cap;
};

/* --- lines ----------------------------------------------------------------------------------------------- */

static bool is_base64(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/' ||
           c == '=';
}

/* Parses "BASE64 RANK" in n bytes, perhaps with white space at the end. False: it is something else. */
static bool split_line(const char *line, size_t n, size_t *n_code, int64_t *id)
{
    size_t i = 0;
    while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == ' '))
        n--;
    while (i < n && is_base64(line[i]))
        i++;
    *n_code = i;
    if (i == 0 || i == n || line[i++] != ' ' || i == n || n > MAX_LINE)
        return false;
    for (*id = 0; i < n && line[i] >= '0' && line[i] <= '9' && *id < TOK_MAX_VOCAB; i++)
        *id = *id * 10 + (line[i] - '0');
    return i == n && *id < TOK_MAX_VOCAB;
}

static size_t line_length(const char *text, size_t n)
{
    const char *end = memchr(text, '\n', n);
    return end ? (size_t)(end - text) : n;
}

bool tok_is_tiktoken(const char *data, size_t n)
{
    size_t n_code;
    int64_t id;
    return split_line(data, line_length(data, n), &n_code, &id);
}

static enum pp_code add_entry(struct reader *r, const char *code, size_t n_code, int64_t id, struct pp_error *err)
{
    uint8_t bytes[BASE64_DECODE_LENGTH(MAX_LINE)];
    size_t n = sizeof bytes;
    struct base64_decode_ctx ctx;
    base64_decode_init(&ctx);
    if (!base64_decode_update(&ctx, &n, bytes, n_code, code) || !base64_decode_final(&ctx))
        return pp_fail(err, PP_ERR_FORMAT, "the token of rank %lld is not valid base64", (long long)id);
    if (n == 0 || n > MAX_TOKEN)
        return pp_fail(err, PP_ERR_FORMAT, "the token of rank %lld has %zu bytes; it must have 1 to %d", (long long)id,
                       n, MAX_TOKEN);
    if (pp_grow(&r->entries, &r->cap, r->n + 1, sizeof *r->entries) != 0)
        return pp_fail_nomem(err, "the vocabulary");
    const size_t at = r->spelled.len;
    tok_spell_bytes((const char *)bytes, n, &r->spelled);
    r->entries[r->n++] = (struct entry){id, {r->spelled.data + at, r->spelled.len - at}};
    return PP_OK;
}

static int by_id(const void *a, const void *b)
{
    const int64_t x = ((const struct entry *)a)->id, y = ((const struct entry *)b)->id;
    return (x > y) - (x < y);
}

static enum pp_code read_lines(struct reader *r, const char *data, size_t n, struct pp_error *err)
{
    size_t number = 0;
    for (size_t at = 0, len; at < n; at += len + 1) {
        size_t n_code;
        int64_t id;
        len = line_length(data + at, n - at);
        number++;
        if (len == 0 || (len == 1 && data[at] == '\r'))
            continue;
        if (!split_line(data + at, len, &n_code, &id))
            return pp_fail(err, PP_ERR_FORMAT, "line %zu is not a token in base64 and its rank", number);
        enum pp_code code = add_entry(r, data + at, n_code, id, err);
        if (code)
            return code;
    }
    return PP_OK;
}

static enum pp_code sort_entries(struct reader *r, struct pp_error *err)
{
    if (!r->n)
        return pp_fail(err, PP_ERR_FORMAT, "it contains no tokens");
    qsort(r->entries, r->n, sizeof *r->entries, by_id);
    for (size_t i = 1; i < r->n; i++)
        if (r->entries[i].id == r->entries[i - 1].id)
            return pp_fail(err, PP_ERR_FORMAT, "two tokens have the rank %lld", (long long)r->entries[i].id);
    if (r->entries[r->n - 1].id >= (int64_t)r->n + TOK_MAX_HOLES)
        return pp_fail(err, PP_ERR_FORMAT, "there are %zu tokens, but ranks up to %lld", r->n,
                       (long long)r->entries[r->n - 1].id);
    return PP_OK;
}

/* --- tokens and merges ----------------------------------------------------------------------------------- */

static enum pp_code take_tokens(struct reader *r, struct pp_error *err)
{
    enum pp_code code = tok_spec_resize(&r->spec, (size_t)r->entries[r->n - 1].id + 1, err);
    if (!code && !pp_name_index_init(&r->index, r->n))
        code = pp_fail_nomem(err, "the vocabulary");
    for (size_t i = 0; i < r->n && !code; i++) {
        const struct entry *e = &r->entries[i];
        if (!pp_name_index_add(&r->index, e->text.data, e->text.len))
            code = pp_fail(err, PP_ERR_FORMAT, "the token of rank %lld occurs twice", (long long)e->id);
        r->spec.texts[e->id] = e->text;
        r->spec.types[e->id] = TOK_NORMAL;
    }
    return code;
}

/* Two entries that make up a token, and where the second begins. */
struct halves {
    size_t left, right, at;
};

/* Finds all ways to cut a token into two tokens, lower ranks first. */
static int find_halves(const struct reader *r, struct pp_str text, struct halves found[MAX_TOKEN])
{
    int n = 0;
    for (size_t at = 1; at < text.len; at++) {
        if (((uint8_t)text.data[at] & 0xC0) == 0x80)
            continue;
        const size_t left = pp_name_index_find(&r->index, text.data, at);
        if (left == SIZE_MAX)
            continue;
        const size_t right = pp_name_index_find(&r->index, text.data + at, text.len - at);
        int k = n;
        if (right == SIZE_MAX)
            continue;
        for (; k > 0 && (found[k - 1].left > left || (found[k - 1].left == left && found[k - 1].right > right)); k--)
            found[k] = found[k - 1];
        found[k] = (struct halves){left, right, at};
        n++;
    }
    return n;
}

static enum pp_code make_merges(struct reader *r, struct pp_error *err)
{
    struct halves found[MAX_TOKEN];
    struct tok_spec *spec = &r->spec;
    for (size_t i = 0; i < r->n; i++) {
        const struct pp_str text = r->entries[i].text;
        const int n = find_halves(r, text, found);
        if (spec->n_merges + (size_t)n > MAX_MERGES)
            return pp_fail(err, PP_ERR_FORMAT, "its tokens can be split into others in more than %d ways, which "
                                               "cannot be right", MAX_MERGES);
        if (pp_grow(&spec->merges, &r->merges_cap, spec->n_merges + (size_t)n + 1, sizeof *spec->merges) != 0)
            return pp_fail_nomem(err, "the tokenizer's merges");
        for (int k = 0; k < n; k++)
            spec->merges[spec->n_merges++] = (struct tok_merge_text){
                .left = {text.data, found[k].at}, .right = {text.data + found[k].at, text.len - found[k].at}};
    }
    return PP_OK;
}

/* --- what the file does not say -------------------------------------------------------------------------- */

struct control {
    int64_t id;
    const char *text;
};

static const struct control qwen[] = {
    {151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}, {-1, NULL}};
static const struct control cl100k[] = {
    {100257, "<|endoftext|>"},  {100258, "<|fim_prefix|>"},   {100259, "<|fim_middle|>"},
    {100260, "<|fim_suffix|>"}, {100276, "<|endofprompt|>"}, {-1, NULL}};
static const struct control phi3small[] = {
    {100257, "<|endoftext|>"},  {100258, "<|fim_prefix|>"},   {100259, "<|fim_middle|>"},
    {100260, "<|fim_suffix|>"}, {100261, "<|system|>"},       {100262, "<|user|>"},
    {100263, "<|assistant|>"},  {100266, "<|end|>"},          {100276, "<|endofprompt|>"}, {-1, NULL}};
static const struct control o200k[] = {
    {199998, "<|startoftext|>"}, {199999, "<|endoftext|>"}, {200002, "<|return|>"}, {200003, "<|constrain|>"},
    {200005, "<|channel|>"},     {200006, "<|start|>"},     {200007, "<|end|>"},    {200008, "<|message|>"},
    {200012, "<|call|>"},        {200018, "<|endofprompt|>"}, {-1, NULL}};
static const struct control llama3[] = {
    {128000, "<|begin_of_text|>"},   {128001, "<|end_of_text|>"}, {128006, "<|start_header_id|>"},
    {128007, "<|end_header_id|>"}, {128008, "<|eom_id|>"},      {128009, "<|eot_id|>"}, {-1, NULL}};
static const struct control kimi[] = {
    {163584, "[BOS]"},          {163585, "[EOS]"},         {163586, "<|im_end|>"},    {163587, "<|im_user|>"},
    {163588, "<|im_assistant|>"}, {163594, "<|im_system|>"}, {163601, "<|im_middle|>"}, {-1, NULL}};
static const struct control gpt2[] = {{50256, "<|endoftext|>"}, {-1, NULL}};

/* Published vocabularies. */
static const struct published {
    const char *rule;                /* the name in tokenizer.ggml.pre */
    const char *file;                /* beginning of file names; or NULL */
    const char *type;                /* model_type of config.json; or NULL */
    size_t n;                        /* number of ranks */
    const struct control *control;   /* the last has text NULL */
} known[] = {
    {"qwen2", "qwen", "qwen", 151643, qwen},
    {"gpt-4o", "o200k", "gpt_oss", 199998, o200k},
    {"dbrx", NULL, "phi3small", 100256, phi3small},
    {"dbrx", "cl100k", NULL, 100256, cl100k},
    {"llama-bpe", NULL, "llama", 128000, llama3},
    {"kimi-k2", NULL, "kimi_k2", 163584, kimi},
    {"gpt-2", "r50k", NULL, 50256, gpt2},
    {"gpt-2", "p50k", NULL, 50280, gpt2},
    {"gpt-2", "gpt2", "gpt2", 50257, gpt2},
};
enum { N_KNOWN = sizeof known / sizeof *known };

static const struct published *find_published(const struct reader *r, const char *name, const struct tok_config *cfg)
{
    const char *type = cJSON_GetStringValue(pp_json_member(cfg->model, "model_type"));
    for (int i = 0; type && i < N_KNOWN; i++) /* several may have the name */
        if (known[i].type && !known[i].file && strcmp(type, known[i].type) == 0)
            return &known[i];
    for (int i = 0; i < N_KNOWN; i++)
        if (known[i].file && strncmp(name, known[i].file, strlen(known[i].file)) == 0)
            return &known[i];
    for (int i = 0; type && i < N_KNOWN; i++)
        if (known[i].type && strcmp(type, known[i].type) == 0)
            return &known[i];
    for (int i = 0; i < N_KNOWN; i++)
        if (known[i].n == r->n && known[i].control != phi3small)
            return &known[i];
    return NULL;
}

/* Adds a vocabulary's control tokens whose ids no other token has. */
static enum pp_code add_control(struct tok_spec *spec, const struct control *c, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (; c->text && !code; c++) {
        if ((uint64_t)c->id < spec->n ? spec->texts[c->id].data != NULL : (uint64_t)c->id > spec->n + TOK_MAX_HOLES)
            continue;
        code = tok_spec_resize(spec, (size_t)c->id + 1, err);
        if (code)
            break;
        spec->texts[c->id] = (struct pp_str){c->text, strlen(c->text)};
        spec->types[c->id] = TOK_CONTROL;
    }
    return code;
}

/* Sets the rule with this expression, or if there is none the expression in our dialect. */
static enum pp_code take_pattern(struct reader *r, const char *pattern, struct pp_error *err)
{
    struct pp_str *to = &r->spec.patterns[r->spec.n_patterns++];
    *to = (struct pp_str){pattern, strlen(pattern)};
    r->spec.rule = tok_rule_by_patterns(to, 1);
    const enum pp_code code = r->spec.rule ? PP_OK : tok_regex(pattern, true, &r->pattern, err);
    if (!code && !r->spec.rule)
        *to = (struct pp_str){pp_buf_cstr(&r->pattern), r->pattern.len};
    return code;
}

static enum pp_code complete(struct reader *r, const char *name, const struct tok_config *cfg, struct pp_error *err)
{
    struct tok_spec *spec = &r->spec;
    const char *pattern = cJSON_GetStringValue(pp_json_member(cfg->tokenizer, "pat_str"));
    const struct published *p = find_published(r, name, cfg);
    const cJSON *added = pp_json_member(cfg->tokenizer, "added_tokens_decoder");
    const bool has_control = cJSON_IsObject(added) && added->child;
    if (!pattern && !p)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "it has no rule for splitting text into words and is none of the "
                                                "vocabularies that pippin knows (qwen, o200k, cl100k, Llama 3's, "
                                                "Kimi's, gpt2); put the regular expression as pat_str into a "
                                                "tokenizer_config.json next to it");
    spec->kind = TOK_BYTE_LEVEL;
    spec->ignore_merges = true;
    enum pp_code code = pattern ? take_pattern(r, pattern, err) : PP_OK;
    if (!pattern)
        spec->rule = tok_rule_by_name(p->rule, strlen(p->rule));
    if (spec->rule)
        spec->add_bos = spec->rule->add_bos;
    if (!code && p && !has_control)
        code = add_control(spec, p->control, err);
    if (!code)
        code = tok_config_apply(cfg, spec, err);
    if (!code && spec->add_bos && spec->bos < 0)
        spec->bos = tok_spec_find(spec, "<|begin_of_text|>", 17);
    if (!code && spec->eos < 0 && p)
        spec->eos = tok_spec_find(spec, "<|endoftext|>", 13);
    if (!code && spec->eos < 0 && p)
        spec->eos = tok_spec_find(spec, "<|end_of_text|>", 15);
    return code;
}

/* Allocates the spelling of texts with n bytes in base 64: a byte is spelled with one or two, and takes more than one
 * in base 64. */
static enum pp_code reserve(struct reader *r, size_t n, struct pp_error *err)
{
    r->spelled.cap = 2 * n + 16;
    r->spelled.data = pp_malloc(r->spelled.cap);
    return r->spelled.data ? PP_OK : pp_fail_nomem(err, "the vocabulary");
}

static enum pp_code read_entries(struct reader *r, struct pp_error *err)
{
    enum pp_code code = sort_entries(r, err);
    if (!code)
        code = take_tokens(r, err);
    return code ? code : make_merges(r, err);
}

static void free_reader(struct reader *r)
{
    tok_spec_free(&r->spec);
    pp_name_index_free(&r->index);
    pp_buf_free(&r->spelled);
    pp_buf_free(&r->pattern);
    pp_free(r->entries);
}

enum pp_code tok_from_tiktoken(const char *data, size_t n, const char *name, const char *folder,
                               struct pp_tokenizer **out, struct pp_error *err)
{
    struct reader r = {.spec = {.bos = -1, .eos = -1, .eot = -1, .unk = -1}};
    struct tok_config cfg = {0};
    *out = NULL;
    if (n > MAX_FILE)
        return pp_fail(err, PP_ERR_FORMAT, "it has %zu bytes; a vocabulary in tiktoken's format has at most %d", n,
                       MAX_FILE);
    enum pp_code code = reserve(&r, n, err);
    if (!code)
        code = read_lines(&r, data, n, err);
    if (!code)
        code = read_entries(&r, err);
    if (!code && folder)
        code = tok_config_read(folder, &cfg, err);
    if (!code)
        code = complete(&r, name, &cfg, err);
    if (!code)
        code = tok_build(&r.spec, out, err);
    tok_config_free(&cfg);
    free_reader(&r);
    return code;
}

/* --- tekken.json ----------------------------------------------------------------------------------------- */

/* Format: https://github.com/mistralai/mistral-common, tokens/tokenizers/tekken.py. Control tokens have the first ids;
 * ranks follow, but only as many as config.default_vocab_size allows. */

enum { FILLER = 32 }; /* enough for "<SPECIAL_1000>" */

/* For files that do not list them. */
static const char *const tekken_control[] = {
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
};
enum { N_TEKKEN_CONTROL = sizeof tekken_control / sizeof *tekken_control };

/* A number from 0 to most, or -1. */
static int64_t count_in(const cJSON *object, const char *name, int64_t most)
{
    const cJSON *number = pp_json_member(object, name);
    const bool good = cJSON_IsNumber(number) && number->valuedouble >= 0 && number->valuedouble <= (double)most;
    return good ? (int64_t)number->valuedouble : -1;
}

bool tok_is_tekken(const cJSON *root)
{
    return cJSON_IsString(pp_json_member(pp_json_member(root, "config"), "pattern")) &&
           cJSON_IsArray(pp_json_member(root, "vocab"));
}

static enum pp_code read_ranks(struct reader *r, const cJSON *vocab, int64_t n_control, int64_t n_all,
                               struct pp_error *err)
{
    const cJSON *token;
    size_t n = FILLER * (size_t)n_control;
    cJSON_ArrayForEach(token, vocab) {
        const char *text = cJSON_GetStringValue(pp_json_member(token, "token_bytes"));
        n += text ? strlen(text) : 0;
    }
    enum pp_code code = reserve(r, n, err);
    cJSON_ArrayForEach(token, vocab) {
        const char *text = cJSON_GetStringValue(pp_json_member(token, "token_bytes"));
        const int64_t rank = count_in(token, "rank", TOK_MAX_VOCAB);
        if (code)
            return code;
        if (!text || strlen(text) > MAX_LINE || rank < 0)
            return pp_fail(err, PP_ERR_FORMAT, "a token has no bytes in base64 or an invalid rank");
        if (rank + n_control < n_all)
            code = add_entry(r, text, strlen(text), rank + n_control, err);
    }
    return code ? code : read_entries(r, err);
}

/* Names the first n ids; those without a name are named as Mistral's programs do. */
static void name_control(struct reader *r, const cJSON *listed, int64_t n)
{
    struct pp_str *texts = r->spec.texts;
    const cJSON *token;
    cJSON_ArrayForEach(token, listed) {
        const char *text = cJSON_GetStringValue(pp_json_member(token, "token_str"));
        const int64_t id = count_in(token, "rank", n - 1);
        if (text && id >= 0)
            texts[id] = (struct pp_str){text, strlen(text)};
    }
    for (int64_t id = 0; id < n; id++) {
        const size_t at = r->spelled.len;
        if (!cJSON_IsArray(listed) && id < N_TEKKEN_CONTROL) {
            texts[id] = (struct pp_str){tekken_control[id], strlen(tekken_control[id])};
        } else if (!texts[id].data) {
            pp_buf_fmt(&r->spelled, "<SPECIAL_%lld>", (long long)id);
            texts[id] = (struct pp_str){r->spelled.data + at, r->spelled.len - at};
        }
        r->spec.types[id] = TOK_CONTROL;
    }
}

enum pp_code tok_from_tekken(const cJSON *root, const char *folder, struct pp_tokenizer **out, struct pp_error *err)
{
    struct reader r = {.spec = {.bos = -1, .eos = -1, .eot = -1, .unk = -1}};
    struct tok_spec *spec = &r.spec;
    struct tok_config cfg = {0};
    const cJSON *config = pp_json_member(root, "config");
    const char *pattern = cJSON_GetStringValue(pp_json_member(config, "pattern"));
    const int64_t n_control = count_in(config, "default_num_special_tokens", TOK_MAX_HOLES);
    const int64_t n_all = count_in(config, "default_vocab_size", TOK_MAX_VOCAB);
    *out = NULL;
    if (n_control < 0 || n_all <= n_control)
        return pp_fail(err, PP_ERR_FORMAT, "the size of the vocabulary or the number of control tokens is missing");
    enum pp_code code = read_ranks(&r, pp_json_member(root, "vocab"), n_control, n_all, err);
    if (!code && folder)
        code = tok_config_read(folder, &cfg, err);
    if (!code) {
        name_control(&r, pp_json_member(root, "special_tokens"), n_control);
        spec->kind = TOK_BYTE_LEVEL;
        spec->ignore_merges = spec->add_bos = true;
        code = take_pattern(&r, pattern, err);
        spec->bos = tok_spec_find(spec, "<s>", 3);
        spec->eos = tok_spec_find(spec, "</s>", 4);
        spec->unk = tok_spec_find(spec, "<unk>", 5);
        if (!code)
            code = tok_config_apply(&cfg, spec, err);
    }
    if (!code)
        code = tok_build(spec, out, err);
    tok_config_free(&cfg);
    free_reader(&r);
    return code;
}
