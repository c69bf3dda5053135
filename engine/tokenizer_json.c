/* tokenizer_json.c - tokenizer.json of Hugging Face's tokenizers library: BPE models, byte-level or with byte fallback,
 * unigrams, WordPiece and whole words.
 *
 * Format: the serialisation of https://github.com/huggingface/tokenizers. Whatever would change ids and is not known
 * here is refused by name rather than passed over. */
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/tokenizer_internal.h"

enum {
    MAX_TEMPLATE_PARTS = 32, /* each is looked up in the whole vocabulary */
    MAX_NORMALIZERS = 32,
};

struct reader {
    const cJSON *root, *model;
    struct tok_spec spec;
    bool byte_level;    /* set by a pre-tokenizer or a decoder */
    bool spaces;        /* spaces become U+2581 */
    bool unigram, wordpiece, words; /* the model's type; words: WordLevel */
    bool spells;                   /* a normalizer writes a character for each byte */
    bool metaspace;                /* a pre-tokenizer tells what is put before text */
    bool bert_words;               /* words are cut as BERT does */
    bool late, early;              /* some added tokens are looked for in normalised text; some in raw text */
    double *exact;                 /* scores in the file's precision */
    const cJSON *normalizers[MAX_NORMALIZERS]; /* with sequences flattened */
    size_t n_normalizers;
    struct pp_buf steps;           /* those that are run as steps */
    char *charsmap;                /* decoded here */
    struct pp_buf pieces;          /* texts of WordPiece as they are kept */
    unsigned template_parts;       /* so far */
    char *owned[2 * TOK_MAX_PATTERNS]; /* patterns made here */
    size_t n_owned;
    bool foreign[TOK_MAX_PATTERNS]; /* patterns that are the file's own expressions */
};

/* A member that may be absent or null. */
static bool bool_member(const cJSON *object, const char *name, bool otherwise)
{
    const cJSON *value = pp_json_member(object, name);
    return cJSON_IsBool(value) ? cJSON_IsTrue(value) : otherwise;
}

static bool is_type(const cJSON *object, const char *type)
{
    return strcmp(pp_json_text(object, "type"), type) == 0;
}

static enum pp_code unsupported(const char *part, const cJSON *object, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer has a %s of type \"%.60s\" with options that pippin does "
                                            "not know", part, pp_json_text(object, "type"));
}

/* --- normalizer ---------------------------------------------------------------------------------------- */

/* {"type": "Precompiled", "precompiled_charsmap": base 64} */
static enum pp_code read_charsmap(struct reader *r, const cJSON *node, struct pp_error *err)
{
    size_t n = 0;
    enum pp_code code = tok_read_charsmap(pp_json_text(node, "precompiled_charsmap"), &r->charsmap, &n, err);
    if (!code)
        r->spec.charsmap = (struct pp_str){r->charsmap, n};
    return code;
}

/* Options of a BertNormalizer. strip_accents null: the same as lowercase. */
struct tok_bert tok_bert_of(const cJSON *node)
{
    const bool lower = bool_member(node, "lowercase", true);
    return (struct tok_bert){.clean = bool_member(node, "clean_text", true),
                             .chinese = bool_member(node, "handle_chinese_chars", true),
                             .strip_accents = bool_member(node, "strip_accents", lower),
                             .lower = lower};
}

/* Replaces runs of spaces by one space, or by the character for one. */
static bool is_squeeze(const cJSON *node)
{
    const char *pattern = pp_json_text(pp_json_member(node, "pattern"), "Regex"), *to = pp_json_text(node, "content");
    return is_type(node, "Replace") && strcmp(pattern, " {2,}") == 0 &&
           (strcmp(to, " ") == 0 || strcmp(to, TOK_SPACE) == 0);
}

static bool is_prepend(const cJSON *node)
{
    return is_type(node, "Prepend") && strcmp(pp_json_text(node, "prepend"), TOK_SPACE) == 0;
}

static bool is_spaces(const cJSON *node)
{
    return is_type(node, "Replace") && strcmp(pp_json_text(pp_json_member(node, "pattern"), "String"), " ") == 0 &&
           strcmp(pp_json_text(node, "content"), TOK_SPACE) == 0;
}

static enum pp_code list_normalizers(struct reader *r, const cJSON *node, struct pp_error *err)
{
    const cJSON *part;
    enum pp_code code = PP_OK;
    if (!node || cJSON_IsNull(node))
        return PP_OK;
    if (is_type(node, "Sequence")) {
        cJSON_ArrayForEach(part, pp_json_member(node, "normalizers"))
            if ((code = list_normalizers(r, part, err)))
                return code;
        return PP_OK;
    }
    if (r->n_normalizers == MAX_NORMALIZERS)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer normalises text in more than %d steps", MAX_NORMALIZERS);
    r->normalizers[r->n_normalizers++] = node;
    return PP_OK;
}

static enum pp_code read_normalizers(struct reader *r, const cJSON *node, struct pp_error *err)
{
    enum pp_code code = list_normalizers(r, node, err);
    for (size_t i = 0; i < r->n_normalizers; i++)
        r->spaces |= is_spaces(r->normalizers[i]);
    for (size_t i = 0; i < r->n_normalizers; i++)
        r->spells |= is_type(r->normalizers[i], "ByteLevel");
    return code;
}

/* Notes what a step does, for other programs, and for the kind of vocabulary, which does it itself if it can. */
static enum pp_code note_step(struct reader *r, const cJSON *node, struct pp_error *err)
{
    const bool spaced = r->spec.kind == TOK_SPM || r->unigram; /* for others the prefix tells how texts are joined */
    if (is_prepend(node) && !r->metaspace && spaced)
        r->spec.prefix = (struct tok_prefix){TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS};
    else if (is_type(node, "BertNormalizer"))
        r->spec.bert = tok_bert_of(node);
    else if (r->unigram && is_type(node, "Precompiled"))
        return read_charsmap(r, node, err);
    else if (r->unigram && (is_type(node, "Strip") || is_squeeze(node)))
        r->spec.squeeze = true;
    return PP_OK;
}

/* How many of the last normalizers need not be run as steps, as the kind of vocabulary does them itself. */
static size_t count_own(const struct reader *r)
{
    const cJSON *const *list = r->normalizers;
    const size_t n = r->n_normalizers;
    if (r->spec.kind == TOK_WORDPIECE)
        return n && !r->spec.split_words && is_type(list[n - 1], "BertNormalizer") && !r->late;
    if (r->spec.kind != TOK_SPM || r->late)
        return 0;
    for (size_t i = 0; i + 2 < n; i++)
        if (is_prepend(list[i])) /* two differ from one */
            return 0;
    if (n > 1 && !r->metaspace && ((is_prepend(list[n - 2]) && is_spaces(list[n - 1])) ||
                                   (is_spaces(list[n - 2]) && is_prepend(list[n - 1]))))
        return 2;
    return n && is_spaces(list[n - 1]);
}

/* Decides which normalizers are run as steps. */
static enum pp_code place_normalizers(struct reader *r, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    const size_t n = r->n_normalizers - count_own(r);
    pp_buf_str(&r->steps, n || (r->late && r->early) ? "[" : "");
    for (size_t i = 0; i < n; i++) {
        char *text = cJSON_PrintUnformatted(r->normalizers[i]);
        if (!text)
            return pp_fail_nomem(err, "the tokenizer's normalizer");
        pp_buf_fmt(&r->steps, "%s%s", i ? "," : "", text);
        cJSON_free(text);
        if (is_prepend(r->normalizers[i]) && !r->metaspace)
            r->spec.covered |= TOK_COVERS_PREFIX;
    }
    pp_buf_str(&r->steps, r->steps.len ? "]" : "");
    if (r->steps.bad)
        return pp_fail_nomem(err, "the tokenizer's normalizer");
    r->spec.steps = (struct pp_str){r->steps.data, r->steps.len};
    r->spec.bare_spaces = (r->spec.kind == TOK_SPM || r->unigram) && !r->metaspace;
    for (size_t i = n; i < r->n_normalizers; i++)
        r->spec.bare_spaces = r->spec.bare_spaces && !is_spaces(r->normalizers[i]);
    if (r->unigram)
        r->spec.covered |= TOK_COVERS_TABLE;
    for (size_t i = 0; !code && i < r->n_normalizers; i++)
        code = note_step(r, r->normalizers[i], err);
    return code;
}

/* --- pre-tokenizer ------------------------------------------------------------------------------------- */

static enum pp_code add_pattern(struct reader *r, const char *pattern, struct pp_error *err)
{
    if (r->spec.n_patterns == TOK_MAX_PATTERNS)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer splits text in more than %d steps", TOK_MAX_PATTERNS);
    r->spec.patterns[r->spec.n_patterns++] = (struct pp_str){pattern, strlen(pattern)};
    return PP_OK;
}

/* Adds a pattern with its behaviour; the text is kept here. */
static enum pp_code add_behaving(struct reader *r, const char *behavior, const char *open, const char *pattern,
                                 const char *close, struct pp_error *err)
{
    struct pp_buf text = {0};
    if (r->spec.n_patterns == TOK_MAX_PATTERNS)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer splits text in more than %d steps", TOK_MAX_PATTERNS);
    pp_buf_fmt(&text, "%s%s%s%s", behavior, open, pattern, close);
    if (!(r->owned[r->n_owned] = pp_buf_take(&text)))
        return pp_fail_nomem(err, "the split patterns");
    return add_pattern(r, r->owned[r->n_owned++], err);
}

static enum pp_code add_literal(struct reader *r, const char *behavior, const char *text, struct pp_error *err)
{
    if (strstr(text, "\\E"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer splits text at strings that pippin cannot search for");
    return add_behaving(r, behavior, "\\Q", text, "\\E", err);
}

/* Translates the file's own expressions, for which there is no rule, to PCRE2's dialect. */
static enum pp_code translate_patterns(struct reader *r, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < r->spec.n_patterns && !code; i++) {
        struct pp_buf text = {0};
        if (!r->foreign[i])
            continue;
        code = tok_regex(r->spec.patterns[i].data, false, &text, err);
        char *made = code ? NULL : pp_buf_take(&text);
        pp_buf_free(&text);
        if (!code && !made)
            code = pp_fail_nomem(err, "the split patterns");
        if (code)
            break;
        r->owned[r->n_owned++] = made;
        r->spec.patterns[i] = (struct pp_str){made, strlen(made)};
    }
    return code;
}

static enum pp_code read_split(struct reader *r, const cJSON *node, struct pp_error *err)
{
    const cJSON *pattern = pp_json_member(node, "pattern");
    const char *regex = cJSON_GetStringValue(pp_json_member(pattern, "Regex"));
    const char *text = cJSON_GetStringValue(pp_json_member(pattern, "String"));
    const bool inverted = bool_member(node, "invert", false);
    const char *behavior = tok_behavior(pp_json_text(node, "behavior"), inverted);
    if (r->spaces && text && strcmp(text, " ") == 0)
        return PP_OK; /* then there are no spaces to split at */
    if (!behavior || !(regex || (text && *text)))
        return unsupported("pre-tokenizer", node, err);
    if (r->spec.n_patterns < TOK_MAX_PATTERNS)
        r->foreign[r->spec.n_patterns] = regex != NULL;
    if (regex && (!*behavior || (inverted && strcmp(pp_json_text(node, "behavior"), "Removed") == 0 &&
                                 tok_pattern_is_total(regex)))) /* then nothing is left to remove */
        return add_pattern(r, regex, err);
    return regex ? add_behaving(r, behavior, "", regex, "", err) : add_literal(r, behavior, text, err);
}

/* {"type": "FixedLength", "length": 5}; after ByteLevel it would count bytes. */
static enum pp_code read_length(struct reader *r, const cJSON *node, struct pp_error *err)
{
    const cJSON *given = pp_json_member(node, "length");
    const double length = given ? cJSON_GetNumberValue(given) : 5;
    char digits[16];
    if (!(length >= 1 && length <= TOK_MAX_LENGTH) || length != (double)(int)length || r->byte_level)
        return unsupported("pre-tokenizer", node, err);
    snprintf(digits, sizeof digits, "%d", (int)length);
    return add_behaving(r, tok_pattern_length, "", digits, "", err);
}

/* Pre-tokenizers that are patterns. */
static enum pp_code read_named(struct reader *r, const cJSON *node, struct pp_error *err)
{
    static const char space[] = "[" TOK_WHITE_SPACE "]";
    static const char word[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]+|"
                               "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}" TOK_WHITE_SPACE "]+";
    const char *given = pp_json_text(node, "behavior");
    const char *behavior = tok_behavior(*given ? given : "Isolated", false);
    if (is_type(node, "Digits"))
        return add_pattern(r, bool_member(node, "individual_digits", false) ? "\\p{N}" : "\\p{N}+", err);
    if (is_type(node, "Punctuation") && strcmp(given, "Contiguous") == 0)
        return add_pattern(r, "[\\p{P}$+<=>^~|`]+", err);
    if (is_type(node, "Punctuation") && behavior)
        return *behavior ? add_behaving(r, behavior, "", "[\\p{P}$+<=>^~|`]", "", err)
                         : add_pattern(r, "[\\p{P}$+<=>^~|`]", err);
    if (is_type(node, "WhitespaceSplit") || is_type(node, "BertPreTokenizer")) {
        enum pp_code code = add_behaving(r, tok_behavior("Removed", false), "", space, "", err);
        return code || is_type(node, "WhitespaceSplit") ? code : add_pattern(r, "[\\p{P}$+<=>^~|`]", err);
    }
    if (is_type(node, "Whitespace"))
        return add_behaving(r, tok_behavior("Removed", true), "", word, "", err);
    if (is_type(node, "FixedLength"))
        return read_length(r, node, err);
    if (is_type(node, "UnicodeScripts") && !r->byte_level)
        return add_pattern(r, tok_pattern_scripts, err);
    if (is_type(node, "CharDelimiterSplit") && *pp_json_text(node, "delimiter"))
        return add_literal(r, tok_behavior("Removed", false), pp_json_text(node, "delimiter"), err);
    return unsupported("pre-tokenizer", node, err);
}

static enum pp_code read_metaspace(struct reader *r, const cJSON *node, struct pp_error *err)
{
    const char *scheme = pp_json_text(node, "prepend_scheme");
    const char *space = pp_json_text(node, "replacement");
    if (strcmp(space, TOK_SPACE) != 0)
        return unsupported("pre-tokenizer", node, err);
    r->spaces = r->metaspace = true;
    r->spec.split_spaces = bool_member(node, "split", true);
    if (!*scheme)
        scheme = bool_member(node, "add_prefix_space", true) ? "always" : "never";
    if (strcmp(scheme, "always") == 0)
        r->spec.prefix = (struct tok_prefix){TOK_PREFIX_UNLESS_SPACE, TOK_PREFIX_UNLESS_SPACE, TOK_PREFIX_UNLESS_SPACE};
    else if (strcmp(scheme, "first") == 0)
        r->spec.prefix = (struct tok_prefix){TOK_PREFIX_UNLESS_SPACE, TOK_PREFIX_NEVER, TOK_PREFIX_NEVER};
    return PP_OK;
}

/* Whether it is the only pre-tokenizer, perhaps in a sequence. */
static bool is_alone(const struct reader *r, const cJSON *node)
{
    const cJSON *whole = pp_json_member(r->root, "pre_tokenizer"), *list = pp_json_member(whole, "pretokenizers");
    return node == whole || (cJSON_GetArraySize(list) == 1 && node == cJSON_GetArrayItem(list, 0));
}

static enum pp_code read_pre_tokenizer(struct reader *r, const cJSON *node, struct pp_error *err)
{
    const cJSON *part;
    if (!node || cJSON_IsNull(node))
        return PP_OK;
    if (is_type(node, "Sequence")) {
        cJSON_ArrayForEach(part, pp_json_member(node, "pretokenizers")) {
            enum pp_code code = read_pre_tokenizer(r, part, err);
            if (code)
                return code;
        }
        return PP_OK;
    }
    if (r->wordpiece && is_type(node, "BertPreTokenizer") && is_alone(r, node)) {
        r->bert_words = true;
        return PP_OK;
    }
    if (r->unigram && is_type(node, "WhitespaceSplit") && !r->metaspace) {
        r->spec.split_white = true;
        return PP_OK;
    }
    if (is_type(node, "ByteLevel")) {
        r->byte_level = true;
        const bool spaced = bool_member(node, "add_prefix_space", false), has_patterns = r->spec.n_patterns > 0;
        r->spec.add_space = spaced && !has_patterns;
        const enum pp_code code = spaced && has_patterns ? add_pattern(r, tok_pattern_spaced, err) : PP_OK;
        return code || !bool_member(node, "use_regex", true) ? code : add_pattern(r, tok_pattern_gpt2, err);
    }
    if (is_type(node, "Split"))
        return read_split(r, node, err);
    if (is_type(node, "Metaspace"))
        return read_metaspace(r, node, err);
    return read_named(r, node, err);
}

/* --- vocabulary ---------------------------------------------------------------------------------------- */

static int64_t id_of(const cJSON *number)
{
    if (!cJSON_IsNumber(number) || !(number->valuedouble >= 0 && number->valuedouble < TOK_MAX_VOCAB))
        return -1;
    return (int64_t)number->valuedouble;
}

static enum pp_code read_added(struct reader *r, struct pp_error *err)
{
    const cJSON *token;
    cJSON_ArrayForEach(token, pp_json_member(r->root, "added_tokens")) {
        const int64_t id = id_of(pp_json_member(token, "id"));
        const bool there = id >= 0 && (size_t)id < r->spec.n && r->spec.types[id] == TOK_NORMAL;
        enum pp_code code = tok_spec_add_token(&r->spec, id, token, err);
        if (code)
            return code;
        if (there != (r->spec.types[id] == TOK_USER))
            r->spec.flags[id] |= there ? TOK_INSIDE : TOK_OUTSIDE;
        *(cJSON_IsTrue(pp_json_member(token, "normalized")) ? &r->late : &r->early) = true;
    }
    return PP_OK;
}

static enum pp_code read_vocab(struct reader *r, struct pp_error *err)
{
    const cJSON *vocab = pp_json_member(r->model, "vocab"), *token;
    int64_t count = 0, last = -1;
    if (!cJSON_IsObject(vocab))
        return pp_fail(err, PP_ERR_FORMAT, "the tokenizer has no vocabulary of texts and ids");
    cJSON_ArrayForEach(token, vocab) {
        int64_t id = id_of(token);
        if (id < 0)
            return pp_fail(err, PP_ERR_FORMAT, "the id of token \"%.60s\" is not a number from 0 to %d", token->string,
                           TOK_MAX_VOCAB - 1);
        last = id > last ? id : last;
        count++;
    }
    if (last >= count + TOK_MAX_HOLES)
        return pp_fail(err, PP_ERR_FORMAT, "the vocabulary has %lld tokens, but ids up to %lld", (long long)count,
                       (long long)last);
    enum pp_code code = tok_spec_resize(&r->spec, (size_t)(last + 1), err);
    if (code)
        return code;
    cJSON_ArrayForEach(token, vocab) {
        int64_t id = id_of(token);
        r->spec.texts[id] = (struct pp_str){token->string, strlen(token->string)};
        r->spec.types[id] = TOK_NORMAL;
    }
    if ((code = read_added(r, err)))
        return code;
    return PP_OK;
}

/* [[text, score], ...] */
static enum pp_code read_unigrams(struct reader *r, struct pp_error *err)
{
    const cJSON *vocab = pp_json_member(r->model, "vocab"), *token;
    size_t n = (size_t)cJSON_GetArraySize(vocab), i = 0;
    if (!cJSON_IsArray(vocab) || !n)
        return pp_fail(err, PP_ERR_FORMAT, "the tokenizer has no vocabulary of texts and scores");
    enum pp_code code = tok_spec_resize(&r->spec, n, err);
    r->spec.scores = code ? NULL : pp_calloc(r->spec.cap, sizeof *r->spec.scores);
    r->exact = code ? NULL : pp_calloc(n, sizeof *r->exact);
    if (!code && (!r->spec.scores || !r->exact))
        code = pp_fail_nomem(err, "the vocabulary");
    if (code)
        return code;
    cJSON_ArrayForEach(token, vocab) {
        const char *text = cJSON_GetStringValue(cJSON_GetArrayItem(token, 0));
        const cJSON *score = cJSON_GetArrayItem(token, 1);
        if (!text || !cJSON_IsNumber(score))
            return pp_fail(err, PP_ERR_FORMAT, "token %zu is not a text and a score", i);
        r->spec.texts[i] = (struct pp_str){text, strlen(text)};
        r->spec.types[i] = TOK_NORMAL;
        r->exact[i] = score->valuedouble;
        r->spec.scores[i++] = (float)score->valuedouble;
    }
    r->spec.exact = (struct pp_str){(const char *)r->exact, n * sizeof *r->exact};
    const cJSON *unk = pp_json_member(r->model, "unk_id");
    r->spec.unk = id_of(unk);
    if (unk && !cJSON_IsNull(unk) && (r->spec.unk < 0 || (size_t)r->spec.unk >= n))
        return pp_fail(err, PP_ERR_FORMAT, "the id of the unknown token (unk_id) is not one of the vocabulary");
    if ((code = read_added(r, err)))
        return code;
    if (bool_member(r->model, "byte_fallback", false))
        tok_spec_mark_bytes(&r->spec);
    return PP_OK;
}

/* The unknown token is no piece of words, whether it is an added token or not. */
static void mark_unknown(struct reader *r)
{
    const char *unk = pp_json_text(r->model, "unk_token");
    const int64_t id = *unk ? tok_spec_find(&r->spec, unk, strlen(unk)) : -1;
    if (id >= 0 && r->spec.types[id] == TOK_NORMAL)
        r->spec.types[id] = TOK_UNKNOWN;
}

/* "##ing" continues a word and is kept as "ing"; "sing" begins one and is kept with U+2581 before it. */
static enum pp_code keep_pieces(struct reader *r, struct pp_error *err)
{
    const char *prefix = pp_json_member(r->model, "continuing_subword_prefix")
                             ? pp_json_text(r->model, "continuing_subword_prefix") : "##";
    const size_t skip = strlen(prefix);
    if (!skip)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer's pieces have no marker for word continuations, which "
                       "pippin does not support");
    for (int pass = 0; pass < 2 && !r->pieces.bad; pass++) { /* lengths first, as the buffer moves when it grows */
        size_t at = 0;
        for (size_t i = 0; i < r->spec.n; i++) {
            struct pp_str *s = &r->spec.texts[i];
            if (r->spec.types[i] != TOK_NORMAL || !s->data)
                continue;
            const bool inside = pass == 0 && skip && s->len > skip && memcmp(s->data, prefix, skip) == 0;
            if (pass == 1) {
                s->data = r->pieces.data + at;
            } else if (inside) {
                pp_buf_add(&r->pieces, s->data + skip, s->len - skip);
                s->len -= skip;
            } else {
                pp_buf_str(&r->pieces, TOK_SPACE);
                pp_buf_add(&r->pieces, s->data, s->len);
                s->len += TOK_SPACE_LEN;
            }
            at += s->len;
        }
    }
    r->spec.prefix = (struct tok_prefix){TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS};
    return r->pieces.bad ? pp_fail_nomem(err, "the vocabulary") : PP_OK;
}

/* "left right" or ["left", "right"]. */
static bool read_merge(const cJSON *node, struct tok_merge_text *m)
{
    const char *left, *right;
    size_t n_left;
    if (cJSON_IsString(node)) {
        left = node->valuestring;
        const char *space = *left ? strchr(left + 1, ' ') : NULL;
        if (!space)
            return false;
        n_left = (size_t)(space - left);
        right = space + 1;
    } else {
        left = cJSON_GetStringValue(cJSON_GetArrayItem(node, 0));
        right = cJSON_GetStringValue(cJSON_GetArrayItem(node, 1));
        if (!left || !right)
            return false;
        n_left = strlen(left);
    }
    m->left = (struct pp_str){left, n_left};
    m->right = (struct pp_str){right, strlen(right)};
    return true;
}

static enum pp_code read_merges(struct reader *r, struct pp_error *err)
{
    const cJSON *merges = pp_json_member(r->model, "merges"), *node;
    size_t n = (size_t)cJSON_GetArraySize(merges);
    r->spec.merges = pp_realloc_array(NULL, n + 1, sizeof *r->spec.merges);
    if (!r->spec.merges)
        return pp_fail_nomem(err, "the tokenizer's merges");
    cJSON_ArrayForEach(node, merges) {
        if (!read_merge(node, &r->spec.merges[r->spec.n_merges]))
            return pp_fail(err, PP_ERR_FORMAT, "merge %zu is not two texts", r->spec.n_merges);
        r->spec.n_merges++;
    }
    return PP_OK;
}

/* --- post-processor ------------------------------------------------------------------------------------ */

/* Notes a token of the template: the first one before the text is BOS, the last one after it EOS. */
static enum pp_code put_around(struct reader *r, int64_t id, bool before, struct pp_error *err)
{
    struct tok_spec *spec = &r->spec;
    if (id < 0 || (uint64_t)id >= spec->n)
        return PP_OK;
    if (!before && spec->n_tail == TOK_MAX_LEAD + 1) {
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer puts more than %d tokens after a text",
                       TOK_MAX_LEAD + 1);
    } else if (!before) {
        spec->add_eos = true;
        spec->eos = spec->tail[spec->n_tail++] = id;
    } else if (!spec->add_bos) {
        spec->add_bos = spec->bos_explicit = true;
        spec->bos = id;
    } else if (spec->n_lead == TOK_MAX_LEAD) {
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer puts more than %d tokens before a text",
                       TOK_MAX_LEAD + 1);
    } else {
        spec->lead[spec->n_lead++] = id;
    }
    return PP_OK;
}

/* A part's name refers to a list of tokens, most often one token with that name. */
static enum pp_code read_template_part(struct reader *r, const cJSON *part, const cJSON *named, bool before,
                                       struct pp_error *err)
{
    const char *name = cJSON_GetStringValue(pp_json_member(pp_json_member(part, "SpecialToken"), "id"));
    enum pp_code code = PP_OK;
    const cJSON *id;
    if (!name || r->template_parts++ >= MAX_TEMPLATE_PARTS)
        return PP_OK;
    const cJSON *ids = pp_json_member(pp_json_member(named, name), "ids");
    if (!cJSON_IsArray(ids))
        return put_around(r, tok_spec_find(&r->spec, name, strlen(name)), before, err);
    cJSON_ArrayForEach(id, ids)
        if ((code = put_around(r, id_of(id), before, err)))
            break;
    return code;
}

/* [text, id] of the tokens with which a text begins and ends. */
static enum pp_code read_ends(struct reader *r, const cJSON *node, struct pp_error *err)
{
    enum pp_code code = put_around(r, id_of(cJSON_GetArrayItem(pp_json_member(node, "cls"), 1)), true, err);
    return code ? code : put_around(r, id_of(cJSON_GetArrayItem(pp_json_member(node, "sep"), 1)), false, err);
}

/* Reads what the template for a single text puts before and after it. */
static enum pp_code read_post_processor(struct reader *r, const cJSON *node, struct pp_error *err)
{
    const cJSON *part;
    enum pp_code code = PP_OK;
    if (is_type(node, "Sequence"))
        cJSON_ArrayForEach(part, pp_json_member(node, "processors"))
            if ((code = read_post_processor(r, part, err)))
                return code;
    const bool ends = is_type(node, "RobertaProcessing") || is_type(node, "BertProcessing");
    if (!ends && !is_type(node, "TemplateProcessing"))
        return PP_OK;
    bool before = true;
    r->spec.add_bos = r->spec.add_eos = false;
    r->spec.n_lead = r->spec.n_tail = 0;
    if (ends)
        return read_ends(r, node, err);
    cJSON_ArrayForEach(part, pp_json_member(node, "single")) {
        if (pp_json_member(part, "Sequence"))
            before = false;
        else if ((code = read_template_part(r, part, pp_json_member(node, "special_tokens"), before, err)))
            return code;
    }
    return PP_OK;
}

/* --- decoder ------------------------------------------------------------------------------------------- */

/* Reads how texts of tokens begin, where U+2581 becomes a space: without that space if a Strip removes it. */
static enum pp_code read_decoder(struct reader *r, const cJSON *node, struct pp_error *err)
{
    const cJSON *part;
    bool spaces = false, strips = false;
    cJSON_ArrayForEach(part, pp_json_member(node, "decoders")) {
        const double start = cJSON_GetNumberValue(pp_json_member(part, "start"));
        const double stop = cJSON_GetNumberValue(pp_json_member(part, "stop"));
        spaces = spaces || (is_type(part, "Replace") && strcmp(pp_json_text(part, "content"), " ") == 0 &&
                            strcmp(pp_json_text(pp_json_member(part, "pattern"), "String"), TOK_SPACE) == 0);
        if (!is_type(part, "Strip"))
            continue;
        if (strcmp(pp_json_text(part, "content"), " ") != 0 || strips || !(start >= 0 && start <= 1) || stop != 0)
            return unsupported("decoder", part, err);
        strips = start > 0;
    }
    const bool added = r->spec.prefix.start != TOK_PREFIX_NEVER;
    if (spaces && strips != added)
        r->spec.strip = strips ? TOK_STRIP_FIRST : TOK_STRIP_NONE;
    return PP_OK;
}

/* --- all together -------------------------------------------------------------------------------------- */

static enum pp_code check_model(const struct reader *r, struct pp_error *err)
{
    const char *type = pp_json_text(r->model, "type");
    if (!cJSON_IsObject(r->model))
        return pp_fail(err, PP_ERR_FORMAT, "the file is JSON, but not a tokenizer: it has no model");
    if (r->unigram || r->wordpiece || r->words)
        return PP_OK;
    if (strcmp(type, "BPE") != 0 && !(*type == '\0' && cJSON_IsArray(pp_json_member(r->model, "merges"))))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer is of the kind \"%.60s\"; pippin knows BPE, Unigram, "
                       "WordPiece and WordLevel", type);
    return PP_OK;
}

static enum pp_code refuse_spelling(struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer has a normalizer of type \"ByteLevel\", which pippin does "
                                            "not support here");
}

static enum pp_code refuse_cutting(const char *vocabularies, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer splits text in a way that pippin does not support for %s "
                                            "vocabularies", vocabularies);
}

/* For WordPiece. */
static enum pp_code decide_pieces(struct reader *r, struct pp_error *err)
{
    struct tok_spec *spec = &r->spec;
    spec->kind = r->unigram ? TOK_UNIGRAM : TOK_WORDPIECE;
    if (r->byte_level || (r->unigram && spec->n_patterns) || (r->wordpiece && (r->metaspace || r->spaces)))
        return refuse_cutting(r->unigram ? "unigram" : "WordPiece", err);
    spec->split_words = r->wordpiece && (!r->bert_words || spec->n_patterns);
    const cJSON *decoder = pp_json_member(r->root, "decoder");
    spec->cleanup = bool_member(decoder, "cleanup", true);
    spec->spelled = r->spells && is_type(decoder, "ByteLevel");
    if (r->spells && (r->wordpiece || r->metaspace || !spec->spelled))
        return refuse_spelling(err);
    return r->wordpiece ? translate_patterns(r, err) : PP_OK;
}

/* For BPE of characters and whole words. */
static void decide_characters(struct reader *r, bool fallback)
{
    struct tok_spec *spec = &r->spec;
    const cJSON *decoder = pp_json_member(r->root, "decoder");
    spec->whole_words = r->words;
    spec->spelled = r->spells && is_type(decoder, "ByteLevel");
    if (fallback)
        tok_spec_mark_bytes(spec);
    if (spec->word_end.len && !is_type(decoder, "WordPiece"))
        return;
    /* if nothing tells how texts are joined, each begins with a space */
    if (is_type(decoder, "WordPiece")) {
        const char *glue = pp_json_text(decoder, "prefix");
        spec->glue = (struct pp_str){glue, strlen(glue)};
        spec->cleanup = bool_member(decoder, "cleanup", true);
    }
    if (!decoder || cJSON_IsNull(decoder) || is_type(decoder, "WordPiece"))
        spec->prefix = (struct tok_prefix){TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS};
}

static enum pp_code decide_kind(struct reader *r, struct pp_error *err)
{
    struct tok_spec *spec = &r->spec;
    if (r->unigram || r->wordpiece)
        return decide_pieces(r, err);
    bool fallback = bool_member(r->model, "byte_fallback", false);
    if (is_type(pp_json_member(r->root, "decoder"), "ByteLevel") && !r->spells)
        r->byte_level = true;
    spec->ignore_merges = bool_member(r->model, "ignore_merges", false);
    const bool spaced = r->spaces || (fallback && !spec->n_patterns && !r->spells);
    if (r->byte_level && r->metaspace)
        return refuse_cutting("byte-level", err);
    if (r->words && (r->byte_level || spaced))
        return refuse_cutting("WordLevel", err);
    if (r->spells && spaced)
        return refuse_spelling(err);
    spec->kind = r->byte_level ? TOK_BYTE_LEVEL : spaced ? TOK_SPM : TOK_CHARACTERS;
    const char *end = pp_json_text(r->model, "end_of_word_suffix");
    spec->word_end = (struct pp_str){end, strlen(end)};
    if (*end && (spec->kind != TOK_CHARACTERS || fallback))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer marks the ends of words (\"%.20s\"), which pippin "
                                                "supports only for character-level, not byte-level BPE", end);
    const char *inside = pp_json_text(r->model, "continuing_subword_prefix");
    spec->word_inside = (struct pp_str){inside, strlen(inside)};
    if (*inside && (spec->kind != TOK_CHARACTERS || fallback))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer marks parts of words with a prefix (\"%.20s\"), which "
                                                "pippin supports only for character-level, not byte-level BPE", inside);
    if (spec->kind == TOK_CHARACTERS) {
        decide_characters(r, fallback);
        return translate_patterns(r, err);
    }
    if (spec->kind == TOK_SPM) {
        if (spec->n_patterns)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer splits text by patterns, which pippin supports "
                                                    "only for byte-level vocabularies");
        if (fallback)
            tok_spec_mark_bytes(spec);
        return PP_OK;
    }
    spec->rule = tok_rule_by_patterns(spec->patterns, spec->n_patterns);
    if (spec->rule)
        spec->add_bos = spec->rule->add_bos; /* unless the files say otherwise */
    return spec->rule ? PP_OK : translate_patterns(r, err);
}

static enum pp_code read_all(struct reader *r, struct pp_error *err)
{
    const char *unk;
    r->unigram = strcmp(pp_json_text(r->model, "type"), "Unigram") == 0;
    r->wordpiece = strcmp(pp_json_text(r->model, "type"), "WordPiece") == 0;
    r->words = strcmp(pp_json_text(r->model, "type"), "WordLevel") == 0;
    r->spec.apart = r->unigram;
    enum pp_code code = check_model(r, err);
    if (!code)
        code = read_normalizers(r, pp_json_member(r->root, "normalizer"), err);
    if (!code)
        code = read_pre_tokenizer(r, pp_json_member(r->root, "pre_tokenizer"), err);
    if (!code)
        code = r->unigram ? read_unigrams(r, err) : read_vocab(r, err);
    if (!code && r->wordpiece) {
        const double longest = cJSON_GetNumberValue(pp_json_member(r->model, "max_input_chars_per_word"));
        if (longest >= 1 && longest != 100)
            r->spec.longest_word = longest < INT32_MAX ? (uint32_t)longest : INT32_MAX;
        mark_unknown(r);
        code = keep_pieces(r, err);
    }
    if (!code && !r->wordpiece && !r->unigram && !r->words)
        code = read_merges(r, err);
    r->spec.no_bytes = !bool_member(r->model, "byte_fallback", false);
    if (!code)
        code = decide_kind(r, err);
    if (!code)
        code = place_normalizers(r, err);
    if (!code && r->spec.kind == TOK_SPM)
        code = read_decoder(r, pp_json_member(r->root, "decoder"), err);
    if (code)
        return code;
    code = read_post_processor(r, pp_json_member(r->root, "post_processor"), err);
    if (code)
        return code;
    unk = pp_json_text(r->model, "unk_token");
    if (*unk)
        r->spec.unk = tok_spec_find(&r->spec, unk, strlen(unk));
    r->spec.each_unknown = (r->spec.kind == TOK_SPM || r->spec.kind == TOK_CHARACTERS) &&
                           !bool_member(r->model, "fuse_unk", false);
    if (r->spec.kind == TOK_BYTE_LEVEL && *unk) {
        r->spec.byte_unknown = r->spec.unk + 1;
        r->spec.fuse_unknown = bool_member(r->model, "fuse_unk", false);
    }
    return PP_OK;
}

enum pp_code tok_from_tree(const cJSON *root, const struct tok_config *cfg, struct pp_tokenizer **out,
                           struct pp_error *err)
{
    struct reader r = {.root = root, .model = pp_json_member(root, "model"),
                       .spec = {.bos = -1, .eos = -1, .eot = -1, .unk = -1}};
    *out = NULL;
    if (strcmp(pp_json_text(cfg->tokenizer, "tokenizer_class"), "HybridDNATokenizer") == 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer cuts DNA into tokens defined only in its Python code; "
                                                "use a GGUF file of the model");
    enum pp_code code = read_all(&r, err);
    r.spec.unk_explicit = r.spec.kind != TOK_BYTE_LEVEL && r.spec.kind != TOK_WORDPIECE;
    if (!code)
        code = tok_config_apply(cfg, &r.spec, err);
    if (!code && r.spec.kind == TOK_BYTE_LEVEL && r.spec.rule && r.spec.bos < 0)
        r.spec.bos = tok_spec_find(&r.spec, "<|begin_of_text|>", 17);
    if (!code)
        code = tok_build(&r.spec, out, err);
    tok_spec_free(&r.spec);
    for (size_t i = 0; i < r.n_owned; i++)
        pp_free(r.owned[i]);
    pp_free(r.charsmap);
    pp_free(r.exact);
    pp_buf_free(&r.pieces);
    pp_buf_free(&r.steps);
    return code;
}

enum pp_code tok_from_json(const char *json, size_t n, const char *folder, struct pp_tokenizer **out,
                           struct pp_error *err)
{
    struct tok_config cfg = {0};
    cJSON *root;
    enum pp_code code = pp_json_parse(json, n, "the file", NULL, &root, err);
    *out = NULL;
    if (!code && !root)
        code = pp_fail(err, PP_ERR_FORMAT, "the file is not valid JSON");
    if (!code && tok_is_tekken(root)) {
        code = tok_from_tekken(root, folder, out, err);
        cJSON_Delete(root);
        return code;
    }
    if (!code && folder)
        code = tok_config_read(folder, &cfg, err);
    if (!code)
        code = tok_from_tree(root, &cfg, out, err);
    tok_config_free(&cfg);
    cJSON_Delete(root);
    return code;
}
