/* tokenizer_vocab.c - vocabularies of folders without tokenizer.json and tokenizer.model: vocab.json and merges.txt
 * like GPT-2's, vocab.txt like BERT's, and SentencePiece's under other names. These files do not tell how text is cut,
 * which tokens are special, or what is put around a text: this follows from the class that tokenizer_config.json names,
 * or from the family in config.json. What is known of a class is written here as parts of a tokenizer.json.
 *
 * The classes: https://github.com/huggingface/transformers, convert_slow_tokenizer.py and each model's own. */
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/tokenizer_internal.h"

#define MAX_FILE ((size_t)64 << 20)

#define BYTES(regex) "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":" regex "}"
#define AROUND(before, after)                                                                                \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"" before "\"}},"   \
    "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"" after "\"}}]}"
#define QWEN2                                                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}"                          \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define BPE "\"model\":{\"type\":\"BPE\"}"

/* Parts of a tokenizer.json, and tokens unless the files name others. */
struct class {
    const char *name, *families; /* name: without "Fast"; families: words of config.json's model_type */
    const char *parts, *tokens;
};

static const char gpt2_tokens[] =
    "{\"bos_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\",\"unk_token\":\"<|endoftext|>\"}";
static const char roberta_tokens[] =
    "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"unk_token\":\"<unk>\",\"pad_token\":\"<pad>\","
    "\"mask_token\":{\"content\":\"<mask>\",\"lstrip\":true}}";
static const char bert_tokens[] =
    "{\"cls_token\":\"[CLS]\",\"sep_token\":\"[SEP]\",\"unk_token\":\"[UNK]\",\"pad_token\":\"[PAD]\","
    "\"mask_token\":\"[MASK]\"}";
static const char gpt2[] = "{\"pre_tokenizer\":" BYTES("true") "," BPE "}";
static const char opt[] =
    "{\"pre_tokenizer\":" BYTES("true") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
    "{\"SpecialToken\":{\"id\":\"</s>\"}},{\"Sequence\":{\"id\":\"A\"}}]}," BPE "}";
static const char gpt_neox[] = "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":" BYTES("true") "," BPE "}";
static const char qwen2[] =
    "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" QWEN2 "\"},\"behavior\":\"Isolated\"},"
    BYTES("false") "]}," BPE "}";
static const char roberta[] = "{\"pre_tokenizer\":" BYTES("true") "," AROUND("<s>", "</s>") "," BPE "}";
static const char bert[] =
    "{\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
    AROUND("[CLS]", "[SEP]") ",\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\"}}";

static const char gpt1[] = /* written out, since others refuse a normalizer that omits one of these */
    "{\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,"
    "\"strip_accents\":null,\"lowercase\":true},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
    "\"decoder\":{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"end_of_word_suffix\":\"</w>\"}}";
static const char ctrl[] = /* its vocabulary has "in@@" and "in" for what merges call "in" and "in</w>" */
    "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\S+\\\\n?\"},\"behavior\":\"Removed\","
    "\"invert\":true},\"decoder\":{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"end_of_word_suffix\":\"</w>\"}}";
static const char biogpt[] = /* "Moses" is our own: tokenizer_moses.c */
    "{\"normalizer\":{\"type\":\"Moses\"},\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"</s>\"}},"
    "{\"Sequence\":{\"id\":\"A\"}}]},\"decoder\":{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"end_of_word_suffix\":\"</w>\"}}";
static const char unk_token[] = "{\"unk_token\":\"<unk>\"}";

static const struct class merged[] = {
    {"GPT2Tokenizer", "gpt2 gpt_neo gptj gpt_bigcode starcoder2", gpt2, gpt2_tokens},
    {"GPT2Tokenizer", "opt", opt, /* it puts a token in front, as its configuration says */
     "{\"bos_token\":\"</s>\",\"eos_token\":\"</s>\",\"unk_token\":\"</s>\",\"pad_token\":\"<pad>\"}"},
    {"CodeGenTokenizer", "codegen phi", gpt2, gpt2_tokens},
    {"GPTNeoXTokenizer", "gpt_neox", gpt_neox, gpt2_tokens},
    {"Qwen2Tokenizer", "qwen2 qwen2_moe qwen3 qwen3_moe qwen2_vl qwen2_5_vl qwen3_vl", qwen2,
     "{\"eos_token\":\"<|endoftext|>\",\"unk_token\":\"<|endoftext|>\",\"pad_token\":\"<|endoftext|>\"}"},
    {"RobertaTokenizer", "roberta", roberta, roberta_tokens},
    {"BartTokenizer", "bart", roberta, roberta_tokens},
    {"LongformerTokenizer", "longformer", roberta, roberta_tokens},
    {"LEDTokenizer", "led", roberta, roberta_tokens},
    {"OpenAIGPTTokenizer", "openai-gpt", gpt1, unk_token},
    {"CTRLTokenizer", "ctrl", ctrl, unk_token},
    {"BioGptTokenizer", "biogpt", biogpt,
     "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"sep_token\":\"</s>\",\"unk_token\":\"<unk>\","
     "\"pad_token\":\"<pad>\"}"},
};
static const struct class listed[] = {
    {"BertTokenizer", "bert nomic_bert", bert, bert_tokens},
    {"DistilBertTokenizer", "distilbert", bert, bert_tokens},
    {"ElectraTokenizer", "electra", bert, bert_tokens},
    {"MobileBertTokenizer", "mobilebert", bert, bert_tokens},
};
enum { N_MERGED = sizeof merged / sizeof *merged, N_LISTED = sizeof listed / sizeof *listed };

/* --- which class ------------------------------------------------------------------------------------------ */

/* Whether `have` is this class, perhaps with "Fast" at its end. */
static bool is_class(const char *have, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(have, name, n) == 0 && (have[n] == 0 || strcmp(have + n, "Fast") == 0);
}

static bool is_word_of(const char *word, const char *words)
{
    const size_t n = strlen(word);
    for (const char *at = words; n && (at = strstr(at, word)); at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == 0 || at[n] == ' '))
            return true;
    return false;
}

/* By the class that is named, or otherwise by the family. NULL, and an error that names it: unknown. */
static const struct class *find_class(const struct class *known, size_t n, const struct tok_config *cfg,
                                      const char *file, struct pp_error *err)
{
    const char *name = pp_json_text(cfg->tokenizer, "tokenizer_class");
    const char *family = pp_json_text(cfg->model, "model_type");
    struct pp_buf names = {0};
    for (size_t i = 0; i < n; i++)
        if (*name ? is_class(name, known[i].name) : is_word_of(family, known[i].families))
            return &known[i];
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(known[i].name, known[i - 1].name) != 0)
            pp_buf_fmt(&names, "%s%s", i ? ", " : "", known[i].name);
    if (*name || *family)
        pp_fail(err, PP_ERR_UNSUPPORTED, "%s has the %s \"%.60s\", but pippin knows such files only for %s; add a "
                                         "tokenizer.json", file, *name ? "class" : "family", *name ? name : family,
                pp_buf_cstr(&names));
    else
        pp_fail(err, PP_ERR_UNSUPPORTED, "no file names the tokenizer class of %s (tokenizer_class in "
                                         "tokenizer_config.json); pippin knows %s", file, pp_buf_cstr(&names));
    pp_buf_free(&names);
    return NULL;
}

/* --- tokens that are special ------------------------------------------------------------------------------ */

static const char *const token_keys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token"};
enum { N_KEYS = sizeof token_keys / sizeof *token_keys };

/* "<s>" or {"content": "<s>", ...} */
static const char *content_of(const cJSON *token)
{
    const char *text = cJSON_GetStringValue(token);
    return text ? text : pp_json_text(token, "content");
}

/* Adds to tokenizer_config.json what it lacks about tokens. */
static enum pp_code complete_config(struct tok_config *cfg, const cJSON *usual, struct pp_error *err)
{
    if (!cfg->tokenizer)
        cfg->tokenizer = cJSON_CreateObject();
    for (size_t i = 0; i < N_KEYS; i++) {
        const cJSON *token = pp_json_member(usual, token_keys[i]);
        if (pp_json_member(cfg->tokenizer, token_keys[i]) || !token)
            continue;
        cJSON *copy = cJSON_Duplicate(token, true);
        if (!copy || !cJSON_AddItemToObject(cfg->tokenizer, token_keys[i], copy)) {
            cJSON_Delete(copy);
            return pp_fail_nomem(err, "the vocabulary");
        }
    }
    return cfg->tokenizer ? PP_OK : pp_fail_nomem(err, "the vocabulary");
}

/* Adds a text with an id to added_tokens. token: NULL, or its properties. */
static bool add_token(cJSON *added, const char *text, const cJSON *id, const cJSON *token, bool special)
{
    static const char *const flags[] = {"lstrip", "rstrip", "normalized", "single_word"};
    cJSON *node = cJSON_CreateObject();
    if (!cJSON_AddStringToObject(node, "content", text) || !cJSON_AddNumberToObject(node, "id", id->valuedouble) ||
        !cJSON_AddBoolToObject(node, "special", special) || !cJSON_AddItemToArray(added, node)) {
        cJSON_Delete(node);
        return false;
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (cJSON_IsTrue(pp_json_member(token, flags[i])) && !cJSON_AddTrueToObject(node, flags[i]))
            return false;
    return special || pp_json_member(node, "normalized") || cJSON_AddTrueToObject(node, "normalized");
}

static bool add_special(cJSON *added, const cJSON *token, const cJSON *vocab, const cJSON *more)
{
    const char *text = content_of(token);
    const cJSON *id = pp_json_member(more, text);
    if (!id)
        id = pp_json_member(vocab, text);
    return !*text || !cJSON_IsNumber(id) || add_token(added, text, id, token, true);
}

/* Of WordPiece, whose reader must know them before it changes the texts; of others tok_config_apply() adds them.
 * config: completed. more: added_tokens.json, which maps texts to ids. */
static enum pp_code add_tokens(cJSON *root, const cJSON *config, const cJSON *more, struct pp_error *err)
{
    enum { MOST = 256 }; /* each is looked up in the whole vocabulary */
    cJSON *added = cJSON_AddArrayToObject(root, "added_tokens");
    const cJSON *vocab = pp_json_member(pp_json_member(root, "model"), "vocab"), *token;
    const cJSON *list = pp_json_member(config, "additional_special_tokens");
    bool ok = added != NULL;
    if (cJSON_GetArraySize(list) > MOST)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer has more than %d additional_special_tokens", MOST);
    cJSON_ArrayForEach(token, more)
        ok = ok && (!cJSON_IsNumber(token) || add_token(added, token->string, token, NULL, false));
    for (size_t i = 0; i < N_KEYS; i++)
        ok = ok && add_special(added, pp_json_member(config, token_keys[i]), vocab, more);
    cJSON_ArrayForEach(token, list)
        ok = ok && add_special(added, token, vocab, more);
    return ok ? PP_OK : pp_fail_nomem(err, "the vocabulary");
}

/* --- the files -------------------------------------------------------------------------------------------- */

/* Calls fn for each line of a file, without its end. */
typedef bool (*line_fn)(cJSON *to, const char *line, size_t n, size_t i);

static enum pp_code read_lines(const char *folder, const char *name, cJSON *to, line_fn fn, struct pp_error *err)
{
    struct pp_buf path = {0}, line = {0};
    char *data = NULL;
    size_t n = 0, i = 0;
    bool ok = to != NULL;
    pp_buf_fmt(&path, "%s/%s", folder, name);
    enum pp_code code = path.bad ? pp_fail_nomem(err, "a path") : pp_read_file(path.data, MAX_FILE, &data, &n, err);
    for (const char *at = data, *end = data ? data + n : NULL, *stop; !code && ok && at < end; at = stop + 1, i++) {
        stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        const size_t cr = stop > at && stop[-1] == '\r';
        pp_buf_clear(&line);
        pp_buf_add(&line, at, (size_t)(stop - at) - cr);
        ok = !line.bad && fn(to, pp_buf_cstr(&line), line.len, i);
        if (i >= TOK_MAX_VOCAB)
            code = pp_fail(err, PP_ERR_FORMAT, "%s has more than %d lines", path.data, TOK_MAX_VOCAB);
    }
    if (!code && !ok)
        code = pp_fail_nomem(err, name);
    pp_free(data);
    pp_buf_free(&path);
    pp_buf_free(&line);
    return code;
}

static bool is_merge(const char *line, size_t n)
{
    return n && strncmp(line, "#version", 8) != 0;
}

/* A merge's two parts; in BioGPT's files its frequency follows. */
static bool add_merge(cJSON *merges, const char *line, size_t n, size_t i)
{
    char *two = is_merge(line, n) ? pp_strndup(line, n) : NULL;
    char *frequency = two ? strchr(two, ' ') : NULL;
    (void)i;
    if (frequency && (frequency = strchr(frequency + 1, ' ')))
        *frequency = 0;
    cJSON *text = two ? cJSON_CreateString(two) : NULL;
    pp_free(two);
    return !is_merge(line, n) || (text && cJSON_AddItemToArray(merges, text));
}

static bool add_entry(cJSON *vocab, const char *line, size_t n, size_t i)
{
    (void)n;
    return cJSON_AddNumberToObject(vocab, line, (double)i) != NULL;
}

/* Copies the normalizer's options from BERT's tokenizer_config.json. */
static bool set_bert(cJSON *normalizer, const cJSON *config)
{
    static const struct { const char *from, *to; } names[] = {
        {"do_lower_case", "lowercase"}, {"strip_accents", "strip_accents"},
        {"tokenize_chinese_chars", "handle_chinese_chars"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *value = pp_json_member(config, names[i].from);
        if (cJSON_IsBool(value) && !cJSON_AddBoolToObject(normalizer, names[i].to, cJSON_IsTrue(value)))
            return false;
    }
    return true;
}

/* Converts a vocabulary that marks tokens within a word ("in@@") to one that marks those that end it. */
static cJSON *mark_ends(const cJSON *vocab)
{
    static const char goes_on[] = "@@", end[] = "</w>";
    cJSON *marked = cJSON_CreateObject();
    struct pp_buf text = {0};
    const cJSON *token;
    bool ok = marked != NULL;
    cJSON_ArrayForEach(token, vocab) {
        const size_t n = strlen(token->string), m = strlen(goes_on);
        const bool inside = n > m && strcmp(token->string + n - m, goes_on) == 0;
        pp_buf_clear(&text);
        pp_buf_add(&text, token->string, inside ? n - m : n);
        pp_buf_str(&text, inside || strcmp(token->string, "<unk>") == 0 ? "" : end);
        cJSON *copy = ok && !text.bad ? cJSON_Duplicate(token, true) : NULL;
        ok = copy && cJSON_AddItemToObject(marked, pp_buf_cstr(&text), copy);
        if (!ok)
            cJSON_Delete(copy);
    }
    pp_buf_free(&text);
    if (ok)
        return marked;
    cJSON_Delete(marked);
    return NULL;
}

/* Reads the vocabulary into the tokenizer.json's model. */
static enum pp_code read_vocabulary(const char *folder, bool merges, bool mark, const struct tok_config *cfg,
                                    cJSON *root, struct pp_error *err)
{
    cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model"), *vocab = NULL;
    if (!merges) {
        cJSON *normalizer = cJSON_GetObjectItemCaseSensitive(root, "normalizer");
        if (!set_bert(normalizer, cfg->tokenizer))
            return pp_fail_nomem(err, "the vocabulary");
        return read_lines(folder, "vocab.txt", cJSON_AddObjectToObject(model, "vocab"), add_entry, err);
    }
    enum pp_code code = tok_config_json(folder, "vocab.json", &vocab, err);
    if (!code && mark) {
        cJSON *marked = mark_ends(vocab);
        cJSON_Delete(vocab);
        vocab = marked;
        code = vocab ? PP_OK : pp_fail_nomem(err, "the vocabulary");
    }
    if (!code && !cJSON_AddItemToObject(model, "vocab", vocab)) {
        cJSON_Delete(vocab);
        code = pp_fail_nomem(err, "the vocabulary");
    }
    return code ? code : read_lines(folder, "merges.txt", cJSON_AddArrayToObject(model, "merges"), add_merge, err);
}

static enum pp_code make_tree(const char *folder, bool merges, struct tok_config *cfg, cJSON **root,
                              struct pp_error *err)
{
    cJSON *usual = NULL;
    const struct class *c = find_class(merges ? merged : listed, merges ? N_MERGED : N_LISTED, cfg,
                                       merges ? "vocab.json" : "vocab.txt", err);
    if (!c)
        return PP_ERR_UNSUPPORTED;
    *root = cJSON_Parse(c->parts);
    usual = cJSON_Parse(c->tokens);
    enum pp_code code = *root && usual ? PP_OK : pp_fail_nomem(err, "the vocabulary");
    if (!code)
        code = read_vocabulary(folder, merges, c->parts == ctrl, cfg, *root, err);
    if (!code)
        code = complete_config(cfg, usual, err);
    if (!code && !merges)
        code = add_tokens(*root, cfg->tokenizer, cfg->added, err);
    cJSON_Delete(usual);
    return code;
}

enum pp_code tok_from_vocab(const char *folder, bool merges, struct pp_tokenizer **out, struct pp_error *err)
{
    struct tok_config cfg = {0};
    cJSON *root = NULL;
    *out = NULL;
    enum pp_code code = tok_config_read(folder, &cfg, err);
    if (!code)
        code = make_tree(folder, merges, &cfg, &root, err);
    if (!code)
        code = tok_from_tree(root, &cfg, out, err);
    tok_config_free(&cfg);
    cJSON_Delete(root);
    return code;
}

/* --- SentencePiece's -------------------------------------------------------------------------------------- */

static const struct class pieces[] = {
    {"T5Tokenizer", "t5 mt5 umt5 longt5", NULL, NULL},
    {"AlbertTokenizer", "albert", NULL, NULL},
    {"XLMRobertaTokenizer", "xlm-roberta xlm-roberta-xl", NULL, NULL},
    {"XGLMTokenizer", "xglm", NULL, NULL},
};
enum { T5, ALBERT, XLM_ROBERTA, XGLM, N_PIECES };

/* Moves ids from `from` on up by one, and leaves that one empty. */
static enum pp_code shift(struct tok_spec *spec, size_t from, struct pp_error *err)
{
    enum pp_code code = tok_spec_resize(spec, spec->n + 1, err);
    if (code)
        return code;
    const size_t n = spec->n - 1 - from;
    memmove(spec->texts + from + 1, spec->texts + from, n * sizeof *spec->texts);
    memmove(spec->types + from + 1, spec->types + from, n);
    memmove(spec->flags + from + 1, spec->flags + from, n);
    memmove(spec->scores + from + 1, spec->scores + from, n * sizeof *spec->scores);
    return PP_OK;
}

static void set_control(struct tok_spec *spec, size_t i, const char *text, enum tok_type type)
{
    spec->texts[i] = (struct pp_str){text, strlen(text)};
    spec->types[i] = (uint8_t)type;
    spec->flags[i] = 0;
    spec->scores[i] = 0;
}

/* fairseq's ids: the first four are <s>, <pad>, </s> and <unk> instead of <unk>, <s> and </s>; n_more tokens come at
 * the end. */
static enum pp_code as_fairseq(struct tok_spec *spec, size_t n_more, struct pp_error *err)
{
    static const char *const first[] = {"<s>", "<pad>", "</s>", "<unk>"};
    if (spec->n < 3)
        return pp_fail(err, PP_ERR_FORMAT, "the vocabulary is too small for its class");
    enum pp_code code = shift(spec, 3, err);
    if (!code)
        code = tok_spec_resize(spec, spec->n + n_more, err);
    if (code)
        return code;
    for (size_t i = 0; i < 4; i++)
        set_control(spec, i, first[i], i == 3 ? TOK_UNKNOWN : TOK_CONTROL);
    spec->bos = 0, spec->eos = 2, spec->unk = 3;
    return PP_OK;
}

static enum pp_code as_xlm_roberta(struct tok_spec *spec, struct pp_error *err)
{
    const enum pp_code code = as_fairseq(spec, 1, err);
    if (code)
        return code;
    set_control(spec, spec->n - 1, "<mask>", TOK_CONTROL);
    spec->flags[spec->n - 1] |= TOK_LSTRIP;
    spec->add_bos = spec->add_eos = true;
    return PP_OK;
}

/* XGLM begins texts with the end-of-text token. */
static enum pp_code as_xglm(struct tok_spec *spec, struct pp_error *err)
{
    static const char *const more[] = {"<madeupword0>", "<madeupword1>", "<madeupword2>", "<madeupword3>",
                                       "<madeupword4>", "<madeupword5>", "<madeupword6>"};
    enum { N_MORE = sizeof more / sizeof *more };
    const enum pp_code code = as_fairseq(spec, N_MORE, err);
    if (code)
        return code;
    for (size_t i = 0; i < N_MORE; i++)
        set_control(spec, spec->n - N_MORE + i, more[i], TOK_CONTROL);
    spec->bos = spec->eos;
    spec->add_bos = spec->bos_explicit = true;
    spec->add_eos = false;
    return PP_OK;
}

/* ALBERT's class normalises text before SentencePiece does. */
static void as_albert(struct tok_spec *spec, const cJSON *config)
{
#define QUOTES                                                                                               \
    "[{\"type\":\"Replace\",\"pattern\":{\"String\":\"``\"},\"content\":\"\\\"\"},"                           \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"''\"},\"content\":\"\\\"\"}"
#define NO_ACCENTS ",{\"type\":\"NFKD\"},{\"type\":\"StripAccents\"}"
#define SMALL ",{\"type\":\"Lowercase\"}"
    static const char *const steps[2][2] = {{QUOTES NO_ACCENTS "]", QUOTES NO_ACCENTS SMALL "]"},
                                            {QUOTES "]", QUOTES SMALL "]"}};
    const bool keep = cJSON_IsTrue(pp_json_member(config, "keep_accents"));
    const char *json = steps[keep][!cJSON_IsFalse(pp_json_member(config, "do_lower_case"))];
    spec->steps = (struct pp_str){json, strlen(json)};
    spec->bos = tok_spec_find(spec, "[CLS]", 5);
    spec->eos = tok_spec_find(spec, "[SEP]", 5);
    spec->add_bos = spec->add_eos = true;
}

/* "<extra_id_0>" is the last of a hundred such tokens, unless the configuration gives their number, or lists them. */
static enum pp_code as_t5(struct tok_spec *spec, const cJSON *config, struct pp_buf *names, struct pp_error *err)
{
    enum { USUAL = 100, MOST = 1000, LONGEST = 24 };
    const cJSON *number = pp_json_member(config, "extra_ids");
    const size_t begin = spec->n;
    size_t extra = pp_json_member(config, "added_tokens_decoder") ? 0 : USUAL;
    if (cJSON_IsNumber(number) && number->valuedouble >= 0 && number->valuedouble <= MOST)
        extra = (size_t)number->valuedouble;
    spec->bos = -1;
    spec->add_bos = false;
    spec->add_eos = true;
    if (tok_spec_find(spec, "<extra_id_0>", 12) >= 0)
        return PP_OK;
    enum pp_code code = tok_spec_resize(spec, begin + extra, err);
    if (!code && pp_grow(&names->data, &names->cap, extra * LONGEST + 1, 1))
        code = pp_fail_nomem(err, "the vocabulary");
    for (size_t i = 0; !code && i < extra; i++) {
        char *name = names->data + i * LONGEST;
        snprintf(name, LONGEST, "<extra_id_%u>", (unsigned)(extra - 1 - i));
        set_control(spec, begin + i, name, TOK_CONTROL);
    }
    return code;
}

enum pp_code tok_spm_check(const char *folder, const char *file, struct pp_error *err)
{
    struct tok_config cfg = {0};
    enum pp_code code = tok_config_read(folder, &cfg, err);
    if (!code && !find_class(pieces, N_PIECES, &cfg, file, err))
        code = PP_ERR_UNSUPPORTED;
    tok_config_free(&cfg);
    return code;
}

enum pp_code tok_spm_class(const struct tok_config *cfg, struct tok_spec *spec, struct pp_buf *names,
                           struct pp_error *err)
{
    struct pp_error ignored = {0};
    const struct class *c = find_class(pieces, N_PIECES, cfg, "", &ignored);
    if (c == &pieces[T5])
        return as_t5(spec, cfg->tokenizer, names, err);
    if (c == &pieces[XLM_ROBERTA])
        return as_xlm_roberta(spec, err);
    if (c == &pieces[XGLM])
        return as_xglm(spec, err);
    if (c == &pieces[ALBERT])
        as_albert(spec, cfg->tokenizer);
    return PP_OK;
}
