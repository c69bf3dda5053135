/* tokenizer_files.c - writes a vocabulary as the files of a Hugging Face folder: tokenizer.json for byte-level ones
 * whose split rule can be written there, and for BPE of characters; tokenizer.model for SentencePiece's; others in
 * their makers' formats; and tokenizer_config.json with each. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/hf.h"
#include "engine/tokenizer_internal.h"

static enum pp_code write_bytes(const char *folder, const char *name, const struct pp_buf *b, struct pp_error *err)
{
    char *path = pp_path_join(folder, name);
    if (!path || b->bad) {
        pp_free(path);
        return pp_fail_nomem(err, name);
    }
    enum pp_code code = pp_write_file(path, b->data, b->len, 0666, err);
    pp_free(path);
    return code;
}

/* Takes ownership of json, which may be NULL: out of memory. */
static enum pp_code write_json(const char *folder, const char *name, cJSON *json, struct pp_error *err)
{
    char *text = json ? cJSON_Print(json) : NULL;
    struct pp_buf b = {0};
    cJSON_Delete(json);
    if (text)
        pp_buf_str(&b, text);
    b.bad |= !text;
    enum pp_code code = write_bytes(folder, name, &b, err);
    pp_buf_free(&b);
    cJSON_free(text);
    return code;
}

/* --- tokenizer.json ---------------------------------------------------------------------------------------------- */

static void add_quoted(struct pp_buf *b, struct pp_str s)
{
    pp_buf_char(b, '"');
    for (size_t i = 0; i < s.len; i++) {
        const unsigned char c = (unsigned char)s.data[i];
        if (c == '"' || c == '\\')
            pp_buf_fmt(b, "\\%c", c);
        else if (c < 32)
            pp_buf_fmt(b, "\\u%04x", c);
        else
            pp_buf_char(b, (char)c);
    }
    pp_buf_char(b, '"');
}

static void add_text(struct pp_buf *b, const char *s)
{
    add_quoted(b, (struct pp_str){s, strlen(s)});
}

/* Adds an expression, with the names of scripts that other programs use (tokenizer_regex.c). */
static void add_expression(struct pp_buf *b, const char *s)
{
    static const char script[] = "p{sc:";
    struct pp_buf text = {0};
    for (const char *at; (at = strstr(s, script)); s = at + sizeof script - 1) {
        pp_buf_add(&text, s, (size_t)(at - s));
        pp_buf_str(&text, "p{");
    }
    pp_buf_str(&text, s);
    add_text(b, pp_buf_cstr(&text));
    b->bad |= text.bad;
    pp_buf_free(&text);
}

static bool is_added(const struct pp_tokenizer *t, uint32_t i)
{
    return t->type[i] == TOK_CONTROL || t->type[i] == TOK_USER || t->type[i] == TOK_UNKNOWN;
}

static void json_added(const struct pp_tokenizer *t, struct pp_buf *b)
{
    bool first = true;
    pp_buf_str(b, " \"added_tokens\": [");
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        if (!is_added(t, i))
            continue;
        pp_buf_fmt(b, "%s\n  {\"id\": %u, \"content\": ", first ? "" : ",", i);
        add_quoted(b, tok_text(t, i));
        pp_buf_fmt(b, ", \"single_word\": %s, \"lstrip\": %s, \"rstrip\": %s, \"normalized\": %s, "
                      "\"special\": %s}",
                   t->flags[i] & TOK_WORD ? "true" : "false",
                   t->flags[i] & TOK_LSTRIP ? "true" : "false", t->flags[i] & TOK_RSTRIP ? "true" : "false",
                   t->steps && t->flags[i] & TOK_LATE ? "true" : "false", t->type[i] == TOK_USER ? "false" : "true");
        first = false;
    }
    pp_buf_str(b, "\n ],\n");
}

static bool is_gpt2(const char *const *patterns)
{
    return *patterns && !patterns[1] && strcmp(*patterns, tok_pattern_gpt2) == 0;
}

static void json_split(const char *const *patterns, bool add_space, struct pp_buf *b)
{
    if (add_space) { /* after other patterns it would put a space before each word */
        pp_buf_str(b, " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                      "\"trim_offsets\": true, \"use_regex\": true},\n");
        return;
    }
    pp_buf_str(b, " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n");
    for (; *patterns; patterns++) {
        pp_buf_str(b, "  {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        add_expression(b, *patterns);
        pp_buf_str(b, "}, \"behavior\": \"Isolated\", \"invert\": false},\n");
    }
    pp_buf_str(b, "  {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                  "\"use_regex\": false}\n ]},\n");
}

/* Writes how text is cut into words of characters, and what becomes of matches. */
static void json_words(const struct pp_tokenizer *t, struct pp_buf *b)
{
    pp_buf_str(b, " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n");
    for (size_t i = 0; i < t->n_patterns; i++) {
        const char *rest, *comma = i + 1 < t->n_patterns ? "," : "";
        bool inverted;
        if (strcmp(t->patterns[i], tok_pattern_scripts) == 0) {
            pp_buf_fmt(b, "  {\"type\": \"UnicodeScripts\"}%s\n", comma);
            continue;
        }
        if (strncmp(t->patterns[i], tok_pattern_length, strlen(tok_pattern_length)) == 0) {
            pp_buf_fmt(b, "  {\"type\": \"FixedLength\", \"length\": %s}%s\n",
                       t->patterns[i] + strlen(tok_pattern_length), comma);
            continue;
        }
        const char *name = tok_behavior_of(t->patterns[i], &inverted, &rest);
        const size_t n = strlen(rest);
        const bool literal = n > 4 && strncmp(rest, "\\Q", 2) == 0 && strcmp(rest + n - 2, "\\E") == 0;
        pp_buf_fmt(b, "  {\"type\": \"Split\", \"pattern\": {\"%s\": ", literal ? "String" : "Regex");
        if (literal)
            add_quoted(b, (struct pp_str){rest + 2, n - 4});
        else
            add_expression(b, rest);
        pp_buf_fmt(b, "}, \"behavior\": \"%s\", \"invert\": %s}%s\n", name, inverted ? "true" : "false",
                   comma);
    }
    pp_buf_str(b, " ]},\n");
}

/* Whether a vocabulary of characters has byte tokens for what it lacks. */
static bool has_bytes(const struct pp_tokenizer *t)
{
    const uint32_t byte = t->byte_symbol['a'];
    return t->kind == TOK_CHARACTERS && byte < t->n_vocab && t->type[byte] == TOK_BYTE;
}

/* Writes how tokens of characters are joined to text. */
static void json_joined(const struct pp_tokenizer *t, bool bytes, struct pp_buf *b)
{
    pp_buf_str(b, " \"decoder\": ");
    if (t->n_glue || t->cleanup) {
        pp_buf_str(b, "{\"type\": \"WordPiece\", \"prefix\": ");
        add_text(b, t->glue);
        pp_buf_fmt(b, ", \"cleanup\": %s},\n", t->cleanup ? "true" : "false");
    } else if (t->n_word_end) {
        pp_buf_str(b, "{\"type\": \"BPEDecoder\", \"suffix\": ");
        add_text(b, t->word_end);
        pp_buf_str(b, "},\n");
    } else if (t->spelled) {
        pp_buf_str(b, "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                      "\"use_regex\": true},\n");
    } else if (t->prefix.start != TOK_PREFIX_NEVER) {
        pp_buf_str(b, "null,\n");
    } else if (bytes) { /* otherwise "<0xE2>" would be shown as it is */
        pp_buf_str(b, "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteFallback\"}, "
                      "{\"type\": \"Fuse\"}]},\n");
    } else {
        pp_buf_str(b, "{\"type\": \"Fuse\"},\n");
    }
}

static void json_special(const struct pp_tokenizer *t, int32_t id, struct pp_buf *b)
{
    pp_buf_str(b, "{\"SpecialToken\": {\"id\": ");
    add_quoted(b, tok_text(t, (uint32_t)id));
    pp_buf_str(b, ", \"type_id\": 0}}");
}

/* Writes what is put before and after a text. */
static void json_template(const struct pp_tokenizer *t, struct pp_buf *b)
{
    const bool bos = t->n_lead > 0, ends = t->n_tail > 0;
    if (!bos && !ends && t->kind == TOK_CHARACTERS) {
        pp_buf_str(b, " \"post_processor\": null,\n");
        return;
    }
    if (!bos && !ends) {
        pp_buf_str(b, " \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                      "\"trim_offsets\": false, \"use_regex\": false},\n");
        return;
    }
    pp_buf_str(b, " \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [");
    for (size_t i = 0; i < t->n_lead; i++) {
        pp_buf_str(b, i ? ", " : "");
        json_special(t, t->lead[i], b);
    }
    pp_buf_fmt(b, "%s{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}", bos ? ", " : "");
    for (size_t i = 0; i < t->n_tail; i++) {
        pp_buf_str(b, ", ");
        json_special(t, t->tail[i], b);
    }
    pp_buf_str(b, "], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
                  "{\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {");
    int32_t ids[2 * (TOK_MAX_LEAD + 1)];
    const size_t n = t->n_lead + t->n_tail;
    memcpy(ids, t->lead, t->n_lead * sizeof *ids);
    memcpy(ids + t->n_lead, t->tail, t->n_tail * sizeof *ids);
    for (size_t i = 0; i < n; i++) {
        const struct pp_str text = tok_text(t, (uint32_t)ids[i]);
        size_t before = 0;
        while (ids[before] != ids[i])
            before++;
        if (before < i) /* it is there already */
            continue;
        pp_buf_str(b, i ? ", " : "");
        add_quoted(b, text);
        pp_buf_str(b, ": {\"id\": ");
        add_quoted(b, text);
        pp_buf_fmt(b, ", \"ids\": [%d], \"tokens\": [", (int)ids[i]);
        add_quoted(b, text);
        pp_buf_str(b, "]}");
    }
    pp_buf_str(b, "}},\n");
}

/* An added token that words would become if it were in the vocabulary, and must not. */
static bool is_outside(const struct pp_tokenizer *t, uint32_t i)
{
    const struct pp_str s = tok_text(t, i);
    int32_t c;
    if (!is_added(t, i) || tok_mergeable(t, i) || (int64_t)i == t->unk || (int64_t)i == t->byte_unknown)
        return false;
    return t->flags[i] & TOK_OUTSIDE || t->ignore_merges || (s.len && pp_utf8_decode(s.data, s.len, &c) == s.len);
}

static void json_vocab(const struct pp_tokenizer *t, struct pp_buf *b)
{
    bool first = true;
    pp_buf_str(b, "\"vocab\": {");
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        if (is_outside(t, i))
            continue;
        pp_buf_str(b, first ? "\n  " : ",\n  ");
        add_quoted(b, tok_text(t, i));
        pp_buf_fmt(b, ": %u", i);
        first = false;
    }
    pp_buf_str(b, "}");
}

static void json_model(const struct pp_tokenizer *t, bool bytes, struct pp_buf *b)
{
    if (t->whole_words) {
        pp_buf_str(b, " \"model\": {\"type\": \"WordLevel\", \"unk_token\": ");
        add_quoted(b, t->unk < 0 ? (struct pp_str){"", 0} : tok_text(t, (uint32_t)t->unk));
        pp_buf_str(b, ", ");
        json_vocab(t, b);
        pp_buf_str(b, "}\n}\n");
        return;
    }
    pp_buf_str(b, " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": ");
    const bool characters = t->kind == TOK_CHARACTERS;
    const int32_t unknown = characters ? t->unk : t->byte_unknown;
    const bool fused = characters ? !t->each_unknown : t->fuse_unknown;
    if (unknown >= 0)
        add_quoted(b, tok_text(t, (uint32_t)unknown));
    else
        pp_buf_str(b, "null");
    pp_buf_str(b, ", \"continuing_subword_prefix\": ");
    if (t->n_word_inside)
        add_text(b, t->word_inside);
    else
        pp_buf_str(b, "null");
    pp_buf_str(b, ", \"end_of_word_suffix\": ");
    if (t->n_word_end)
        add_text(b, t->word_end);
    else
        pp_buf_str(b, "null");
    pp_buf_fmt(b, ", \"fuse_unk\": %s, \"byte_fallback\": %s, \"ignore_merges\": %s, ",
               fused ? "true" : "false", bytes ? "true" : "false", t->ignore_merges ? "true" : "false");
    json_vocab(t, b);
    pp_buf_str(b, ",\n \"merges\": [");
    for (uint32_t i = 0; i < t->n_merges; i++) {
        pp_buf_str(b, i ? ",\n  [" : "\n  [");
        add_quoted(b, tok_text(t, (uint32_t)(t->merges[i] >> 32)));
        pp_buf_str(b, ", ");
        add_quoted(b, tok_text(t, (uint32_t)t->merges[i]));
        pp_buf_str(b, "]");
    }
    pp_buf_str(b, "]}\n}\n");
}

static enum pp_code to_json(const struct pp_tokenizer *t, const char *folder, struct pp_error *err)
{
    const bool characters = t->kind == TOK_CHARACTERS, bytes = has_bytes(t);
    const char *const *patterns = characters ? NULL : tok_rule_spelling(t->pre);
    struct pp_buf b = {0};
    if (!patterns && !characters)
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "the vocabulary cannot be written as a tokenizer.json, which cannot express its rule for "
                       "splitting text into words (%s)", *t->pre ? t->pre : "of its own");
    if (t->add_space && !characters && !is_gpt2(patterns))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the vocabulary cannot be written as a tokenizer.json, which cannot "
                                                "express a space before a text together with the split rule %s",
                                                t->pre);
    pp_buf_str(&b, "{\n \"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n");
    json_added(t, &b);
    if (t->steps)
        pp_buf_fmt(&b, " \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": %s},\n", tok_steps_json(t->steps));
    else
        pp_buf_str(&b, " \"normalizer\": null,\n");
    if (characters)
        json_words(t, &b);
    else
        json_split(patterns, t->add_space, &b);
    json_template(t, &b);
    if (characters)
        json_joined(t, bytes, &b);
    else
        pp_buf_str(&b, " \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                       "\"use_regex\": true},\n");
    json_model(t, bytes, &b);
    enum pp_code code = write_bytes(folder, "tokenizer.json", &b, err);
    pp_buf_free(&b);
    return code;
}

/* --- tokenizer.model --------------------------------------------------------------------------------------------- */

enum { VARINT = 0, BYTES = 2, FIXED32 = 5 }; /* wire types of protocol buffers */

static void put_varint(struct pp_buf *b, uint64_t v)
{
    for (; v > 127; v >>= 7)
        pp_buf_char(b, (char)(uint8_t)(v | 128));
    pp_buf_char(b, (char)(uint8_t)v);
}

static void put_int(struct pp_buf *b, unsigned field, int64_t v)
{
    put_varint(b, field << 3 | VARINT);
    put_varint(b, (uint64_t)v);
}

static void put_bytes(struct pp_buf *b, unsigned field, const char *data, size_t n)
{
    put_varint(b, field << 3 | BYTES);
    put_varint(b, n);
    pp_buf_add(b, data, n);
}

static void put_piece(const struct pp_tokenizer *t, uint32_t i, struct pp_buf *piece, struct pp_buf *b)
{
    const struct pp_str text = tok_text(t, i);
    const float score = t->score[i];
    pp_buf_clear(piece);
    put_bytes(piece, 1, text.data, text.len);
    put_varint(piece, 2 << 3 | FIXED32);
    pp_buf_add(piece, (const char *)&score, sizeof score);
    put_int(piece, 3, t->type[i]);
    put_bytes(b, 1, piece->data, piece->len);
    b->bad |= piece->bad;
}

static enum pp_code to_sentencepiece(const struct pp_tokenizer *t, const char *folder, struct pp_error *err)
{
    const bool bare = t->bare_prefix || (t->bare_spaces && t->prefix.start == TOK_PREFIX_NEVER);
    struct pp_buf b = {0}, part = {0};
    if (!t->score)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the vocabulary cannot be written as a tokenizer.model: its pieces are "
                       "merged by rank and have no scores");
    for (uint32_t i = 0; i < t->n_vocab; i++)
        put_piece(t, i, &part, &b);
    pp_buf_clear(&part);
    put_int(&part, 3, t->kind == TOK_UNIGRAM ? 1 : t->units == TOK_UNITS_WORDS ? 3 : t->units ? 4 : 2);
    put_int(&part, 24, t->suffix);
    put_int(&part, 35, t->byte_symbol['a'] != TOK_NONE);
    put_int(&part, 40, t->unk);
    put_int(&part, 41, t->bos);
    put_int(&part, 42, t->eos);
    put_bytes(&b, 2, part.data, part.len);
    b.bad |= part.bad;
    pp_buf_clear(&part);
    if (t->charsmap)
        put_bytes(&part, 2, t->charsmap, t->charsmap_len);
    put_int(&part, 3, t->prefix.start != TOK_PREFIX_NEVER);
    put_int(&part, 4, t->squeeze);
    put_int(&part, 5, !bare);
    put_bytes(&b, 3, part.data, part.len);
    b.bad |= part.bad;
    pp_buf_clear(&part);
    if (t->denormal)
        put_bytes(&part, 2, t->denormal, t->denormal_len);
    for (unsigned field = 3; field <= 5; field++) /* spaces stay as they are */
        put_int(&part, field, 0);
    if (t->denormal)
        put_bytes(&b, 5, part.data, part.len);
    b.bad |= part.bad;
    enum pp_code code = write_bytes(folder, "tokenizer.model", &b, err);
    pp_buf_free(&part);
    pp_buf_free(&b);
    return code;
}

static enum pp_code to_rwkv(const struct pp_tokenizer *t, const char *folder, struct pp_error *err)
{
    struct pp_buf b = {0};
    tok_rwkv_write(t, &b);
    const enum pp_code code = write_bytes(folder, TOK_RWKV_FILE, &b, err);
    pp_buf_free(&b);
    return code;
}

static enum pp_code to_plamo(const struct pp_tokenizer *t, const char *folder, struct pp_error *err)
{
    struct pp_buf b = {0};
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        pp_buf_char(&b, '[');
        add_quoted(&b, tok_text(t, i));
        pp_buf_fmt(&b, ", %.9g, \"%s\"]\n", (double)t->score[i], tok_plamo_kind(t->type[i]));
    }
    const enum pp_code code = write_bytes(folder, TOK_PLAMO_FILE, &b, err);
    pp_buf_free(&b);
    return code;
}

/* --- both -------------------------------------------------------------------------------------------------------- */

static void set_token(cJSON *json, const char *key, const struct pp_tokenizer *t, int32_t id)
{
    struct pp_buf text = {0};
    if (id < 0)
        return;
    pp_buf_add(&text, tok_text(t, (uint32_t)id).data, tok_text(t, (uint32_t)id).len);
    cJSON_AddStringToObject(json, key, pp_buf_cstr(&text));
    pp_buf_free(&text);
}

/* Whether a user-defined token is cut out before the vocabulary sees the text. A tokenizer.model lets the vocabulary
 * see its user-defined tokens (TOK_SPACED), so those for which it matters are written as added tokens. */
static bool is_cut_before(const struct pp_tokenizer *t, uint32_t id)
{
    const bool matters = t->kind == TOK_UNIGRAM || t->units || t->suffix ||
                         (t->kind == TOK_SPM && t->prefix.start != TOK_PREFIX_NEVER);
    return matters && t->type[id] == TOK_USER && !(t->flags[id] & TOK_SPACED);
}

static void put_added(const struct pp_tokenizer *t, cJSON *json)
{
    cJSON *added = NULL;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        char id[16];
        if (!is_cut_before(t, i))
            continue;
        if (!added)
            added = cJSON_AddObjectToObject(json, "added_tokens_decoder");
        snprintf(id, sizeof id, "%u", i);
        cJSON *token = cJSON_AddObjectToObject(added, id);
        set_token(token, "content", t, (int32_t)i);
        cJSON_AddBoolToObject(token, "lstrip", t->flags[i] & TOK_LSTRIP);
        cJSON_AddBoolToObject(token, "normalized", t->flags[i] & TOK_LATE);
        cJSON_AddBoolToObject(token, "rstrip", t->flags[i] & TOK_RSTRIP);
        cJSON_AddBoolToObject(token, "single_word", t->flags[i] & TOK_WORD);
        cJSON_AddFalseToObject(token, "special");
    }
}

static enum pp_code write_config(const struct pp_tokenizer *t, const char *folder, struct pp_error *err)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "tokenizer_class",
                            t->kind == TOK_BYTE_LEVEL || t->kind == TOK_CHARACTERS ? "PreTrainedTokenizerFast"
                            : t->kind == TOK_RWKV     ? "RwkvTokenizer"
                            : t->breaks.on            ? "Plamo3Tokenizer"
                            : t->kind == TOK_PLAMO    ? "Plamo2Tokenizer"
                                                      : "LlamaTokenizer");
    if (t->breaks.alike)
        cJSON_AddNumberToObject(json, "break_around_repeated_chars_threshold", t->breaks.alike);
    if (t->breaks.spaces)
        cJSON_AddNumberToObject(json, "break_around_consecutive_spaces_threshold", t->breaks.spaces);
    cJSON_AddBoolToObject(json, "add_bos_token", t->add_bos);
    cJSON_AddBoolToObject(json, "add_eos_token", t->add_eos);
    set_token(json, "bos_token", t, t->bos);
    set_token(json, "eos_token", t, t->eos);
    set_token(json, "unk_token", t, t->unk);
    put_added(t, json);
    return write_json(folder, "tokenizer_config.json", json, err);
}

static bool same_words(const struct pp_tokenizer *a, const struct pp_tokenizer *b)
{
    bool same = a->n_patterns == b->n_patterns && strcmp(a->word_end, b->word_end) == 0 &&
                strcmp(a->word_inside, b->word_inside) == 0 && strcmp(a->glue, b->glue) == 0 &&
                a->cleanup == b->cleanup &&
                a->whole_words == b->whole_words && a->spelled == b->spelled;
    for (size_t i = 0; same && i < a->n_patterns; i++)
        same = strcmp(a->patterns[i], b->patterns[i]) == 0;
    return same;
}

/* Checks that both tokenizers cut every text alike, as far as these files can express it. */
static enum pp_code check_same(const struct pp_tokenizer *a, const struct pp_tokenizer *b, struct pp_error *err)
{
    struct pp_error why = {0};
    const char *what = NULL;
    if (!pp_tokenizer_equal(a, b, &why))
        what = why.text;
    else if (a->n_merges != b->n_merges ||
             (a->n_merges && memcmp(a->merges, b->merges, a->n_merges * sizeof *a->merges) != 0))
        what = "other merges";
    else if (strcmp(a->pre, b->pre) != 0 && tok_rule_spelling(a->pre) != tok_rule_spelling(b->pre))
        what = "another rule for cutting text";
    else if (a->kind == TOK_CHARACTERS && !same_words(a, b))
        what = "another way of cutting text into words";
    else if (a->score && memcmp(a->score, b->score, a->n_vocab * sizeof *a->score) != 0)
        what = "other scores";
    else if (a->ignore_merges != b->ignore_merges || a->add_bos != b->add_bos || a->add_eos != b->add_eos ||
             a->bos != b->bos || a->eos != b->eos || a->n_lead != b->n_lead || a->n_tail != b->n_tail ||
             memcmp(a->lead, b->lead, a->n_lead * sizeof *a->lead) != 0 ||
             memcmp(a->tail, b->tail, a->n_tail * sizeof *a->tail) != 0)
        what = "other tokens at the beginning or end of a text";
    else if (a->apart != b->apart || !a->exact != !b->exact)
        what = "scores that are summed up in another way";
    else if (a->units != b->units)
        what = "another kind of tokens";
    else if (a->squeeze != b->squeeze || a->suffix != b->suffix || a->bare_spaces != b->bare_spaces ||
             a->split_spaces != b->split_spaces || a->split_white != b->split_white ||
             (a->prefix.start == TOK_PREFIX_NEVER) != (b->prefix.start == TOK_PREFIX_NEVER) ||
             (a->bare_prefix != b->bare_prefix && a->prefix.start != TOK_PREFIX_NEVER))
        what = "other spaces";
    else if (a->byte_unknown != b->byte_unknown || a->fuse_unknown != b->fuse_unknown ||
             a->each_unknown != b->each_unknown || a->no_bytes != b->no_bytes || a->drop_unknown != b->drop_unknown ||
             (a->kind != TOK_BYTE_LEVEL && a->unk != b->unk)) /* byte-level: byte_unknown matters instead */
        what = "another token for what is unknown";
    else if (a->dna != b->dna)
        what = "other tokens of DNA";
    else if (a->breaks.on != b->breaks.on || a->breaks.alike != b->breaks.alike || a->breaks.spaces != b->breaks.spaces)
        what = "other places at which text is cut before";
    else if (a->covered != b->covered ||
             strcmp(a->steps ? tok_steps_json(a->steps) : "", b->steps ? tok_steps_json(b->steps) : "") != 0)
        what = "other normalizers";
    return !what ? PP_OK
                 : pp_fail(err, PP_ERR_UNSUPPORTED, "the vocabulary cannot be written exactly: read back, it has %s",
                           what);
}

/* Checks that texts of tokens can be written to these files; RWKV's can, except in tokenizer_config.json. */
static enum pp_code check_texts(const struct pp_tokenizer *t, struct pp_error *err)
{
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        const struct pp_str text = tok_text(t, i);
        const bool named = (int64_t)i == t->bos || (int64_t)i == t->eos || (int64_t)i == t->unk;
        if ((t->kind != TOK_RWKV || named) && !pp_utf8_valid(text.data, text.len))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "the vocabulary cannot be written to a folder: token %u is not "
                                                    "valid UTF-8; keep the GGUF file", i);
    }
    return PP_OK;
}

enum pp_code pp_tokenizer_to_folder(const struct pp_tokenizer *t, const char *folder, struct pp_error *err)
{
    struct pp_tokenizer *again;
    if (t->kind == TOK_WORDPIECE)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a WordPiece vocabulary cannot be written as a tokenizer.json yet");
    if (t->dna)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a vocabulary with DNA tokens (\"hybriddna\") cannot be expressed in "
                                                "a tokenizer.json; keep the GGUF file");
    enum pp_code code = check_texts(t, err);
    if (!code)
        code = t->kind == TOK_BYTE_LEVEL || t->kind == TOK_CHARACTERS ? to_json(t, folder, err)
               : t->kind == TOK_RWKV  ? to_rwkv(t, folder, err)
               : t->kind == TOK_PLAMO ? to_plamo(t, folder, err)
                                      : to_sentencepiece(t, folder, err);
    if (!code)
        code = write_config(t, folder, err);
    if (!code)
        code = pp_tokenizer_open(folder, &again, err);
    if (code)
        return code;
    code = check_same(t, again, err);
    pp_tokenizer_free(again);
    return code;
}
