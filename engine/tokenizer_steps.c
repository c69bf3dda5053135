/* tokenizer_steps.c - the normalizers of a tokenizer.json that are applied one by one to the text between added tokens:
 * Unicode's forms, lower case, accents, white space at the ends, replacements, and so on.
 *
 * What each does: https://github.com/huggingface/tokenizers, src/normalizers. */
#include <string.h>

#include <cjson/cJSON.h>
#include <nettle/base64.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

enum {
    MAX_STEPS = 32,
    MAX_REPLACEMENT = 4096, /* bytes */
    MAX_GROWTH = 64,        /* limit of a text's growth; NFKC makes FDFA eleven times as long */
    MATCH_LIMIT = 2000000,  /* backtracking steps of one match */
    CLOCK_EVERY = 256,      /* matches */
    PATIENCE_S = 10,        /* for one text; plus a second for each megabyte */
};

enum kind { FORM, LOWER, ACCENTS, STRIP, REPLACE, EXPRESSION, PREPEND, TABLE, NMT, BERT, MOSES, SPELL };

struct step {
    enum kind kind;
    enum tok_form form;
    bool left, right;      /* STRIP */
    char *from, *to;       /* REPLACE; PREPEND has `to` alone */
    size_t n_from, n_to;
    pcre2_code *code;      /* EXPRESSION, with `to` */
    char *map;             /* TABLE: SentencePiece's precompiled_charsmap */
    size_t n_map;
    struct tok_bert bert;  /* BERT */
};

struct tok_steps {
    size_t n;
    struct step steps[MAX_STEPS];
    char *json;
};

/* --- reading ---------------------------------------------------------------------------------------------- */

static enum pp_code copy_text(const char *text, char **to, size_t *n, struct pp_error *err)
{
    if (strlen(text) > MAX_REPLACEMENT)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer's normalizer has a text of more than %d bytes",
                       MAX_REPLACEMENT);
    *to = pp_strdup(text);
    *n = strlen(text);
    return *to ? PP_OK : pp_fail_nomem(err, "the tokenizer's normalizer");
}

static enum pp_code compile(const char *expression, struct step *s, struct pp_error *err)
{
    struct pp_buf pattern = {0};
    int problem;
    PCRE2_SIZE at;
    enum pp_code code = tok_regex(expression, false, &pattern, err);
    if (!code)
        s->code = pcre2_compile((PCRE2_SPTR)pp_buf_cstr(&pattern), PCRE2_ZERO_TERMINATED,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_DOLLAR_ENDONLY |
                                PCRE2_NEVER_BACKSLASH_C, &problem, &at, NULL);
    pp_buf_free(&pattern);
    if (code)
        return code;
    if (!s->code) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(problem, why, sizeof why);
        return pp_fail(err, PP_ERR_UNSUPPORTED, "an expression of the tokenizer's normalizer cannot be used: %s at "
                       "offset %zu", (const char *)why, at);
    }
    pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE); /* without JIT, matching interprets */
    return PP_OK;
}

static enum pp_code read_replace(const cJSON *node, struct step *s, struct pp_error *err)
{
    const cJSON *pattern = pp_json_member(node, "pattern");
    const char *expression = cJSON_GetStringValue(pp_json_member(pattern, "Regex"));
    const char *text = cJSON_GetStringValue(pp_json_member(pattern, "String"));
    const char *to = cJSON_GetStringValue(pp_json_member(node, "content"));
    if (!to || (!expression && !(text && *text)) || (expression && strlen(expression) > MAX_REPLACEMENT))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer's normalizer replaces something that pippin cannot look "
                       "for");
    s->kind = expression ? EXPRESSION : REPLACE;
    enum pp_code code = copy_text(to, &s->to, &s->n_to, err);
    if (!code && expression)
        return compile(expression, s, err);
    return code ? code : copy_text(text, &s->from, &s->n_from, err);
}

enum pp_code tok_read_charsmap(const char *base64, char **map, size_t *n, struct pp_error *err)
{
    const size_t n_text = strlen(base64);
    struct base64_decode_ctx ctx;
    base64_decode_init(&ctx);
    *n = BASE64_DECODE_LENGTH(n_text);
    pp_free(*map);
    *map = pp_malloc(*n + 1);
    if (!*map)
        return pp_fail_nomem(err, "the tokenizer's table of characters");
    if (!base64_decode_update(&ctx, n, (uint8_t *)*map, n_text, base64) || !base64_decode_final(&ctx))
        return pp_fail(err, PP_ERR_FORMAT, "the tokenizer's table of characters is no base 64");
    return PP_OK;
}

static enum pp_code read_table(const cJSON *node, struct step *s, struct pp_error *err)
{
    const char *text = cJSON_GetStringValue(pp_json_member(node, "precompiled_charsmap"));
    s->kind = TABLE;
    enum pp_code code = tok_read_charsmap(text ? text : "", &s->map, &s->n_map, err);
    return code ? code : tok_charsmap_check((struct pp_str){s->map, s->n_map}, err);
}

static enum pp_code read_step(const cJSON *node, struct step *s, struct pp_error *err)
{
    static const struct { const char *name; enum kind kind; enum tok_form form; } plain[] = {
        {"NFC", FORM, TOK_NFC}, {"NFD", FORM, TOK_NFD}, {"NFKC", FORM, TOK_NFKC}, {"NFKD", FORM, TOK_NFKD},
        {"Lowercase", LOWER, 0}, {"StripAccents", ACCENTS, 0}, {"Nmt", NMT, 0},
        {"ByteLevel", SPELL, 0},
        {"Moses", MOSES, 0}, /* ours */
    };
    const char *type = cJSON_GetStringValue(pp_json_member(node, "type"));
    type = type ? type : "";
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(type, plain[i].name) == 0) {
            s->kind = plain[i].kind;
            s->form = plain[i].form;
            if (s->kind == FORM)
                tok_form_init(s->form);
            return PP_OK;
        }
    if (strcmp(type, "Strip") == 0) {
        s->kind = STRIP;
        s->left = !cJSON_IsFalse(pp_json_member(node, "strip_left"));
        s->right = !cJSON_IsFalse(pp_json_member(node, "strip_right"));
        return PP_OK;
    }
    if (strcmp(type, "Replace") == 0)
        return read_replace(node, s, err);
    if (strcmp(type, "Precompiled") == 0)
        return read_table(node, s, err);
    if (strcmp(type, "BertNormalizer") == 0) {
        s->kind = BERT;
        s->bert = tok_bert_of(node);
        tok_form_init(TOK_NFD);
        return PP_OK;
    }
    if (strcmp(type, "Prepend") == 0 && cJSON_IsString(pp_json_member(node, "prepend"))) {
        s->kind = PREPEND;
        return copy_text(pp_json_member(node, "prepend")->valuestring, &s->to, &s->n_to, err);
    }
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer has a normalizer of type \"%.60s\" that pippin does not "
                   "know as it is used here", type);
}

static enum pp_code read_steps(const cJSON *list, struct tok_steps *s, struct pp_error *err)
{
    const cJSON *node;
    enum pp_code code = PP_OK;
    if (!cJSON_IsArray(list))
        return pp_fail(err, PP_ERR_FORMAT, "the tokenizer's normalizers are no list");
    cJSON_ArrayForEach(node, list) {
        if (s->n == MAX_STEPS)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer normalises text in more than %d steps", MAX_STEPS);
        if ((code = read_step(node, &s->steps[s->n++], err))) /* counted first, so that a partly read step is freed,
                                                                 too */
            return code;
    }
    return PP_OK;
}

enum pp_code tok_steps_new(struct pp_str json, struct tok_steps **out, struct pp_error *err)
{
    cJSON *list = NULL;
    struct tok_steps *s = pp_calloc(1, sizeof *s);
    *out = NULL;
    if (!s || !(s->json = pp_strndup(json.data, json.len))) {
        pp_free(s);
        return pp_fail_nomem(err, "the tokenizer's normalizer");
    }
    enum pp_code code = pp_json_parse(json.data, json.len, "the tokenizer's normalizer", NULL, &list, err);
    if (!code)
        code = read_steps(list, s, err);
    cJSON_Delete(list);
    if (code) {
        tok_steps_free(s);
        return code;
    }
    *out = s;
    return PP_OK;
}

void tok_steps_free(struct tok_steps *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        pp_free(s->steps[i].from);
        pp_free(s->steps[i].to);
        pp_free(s->steps[i].map);
        pcre2_code_free(s->steps[i].code);
    }
    pp_free(s->json);
    pp_free(s);
}

bool tok_steps_spell_signs(const struct tok_steps *s)
{
    for (size_t i = 0; s && i < s->n; i++)
        if (s->steps[i].kind == MOSES)
            return true;
    return false;
}

const char *tok_steps_json(const struct tok_steps *s)
{
    return s->json;
}

/* --- the steps -------------------------------------------------------------------------------------------- */

/* State for one text. */
struct running {
    size_t most; /* most bytes that it may become */
    uint64_t deadline_ns;
    bool moved;  /* white space at its beginning was removed */
    struct pp_error *err;
};

static enum pp_code too_long(struct running *r)
{
    return pp_fail(r->err, PP_ERR_UNSUPPORTED, "the tokenizer's normalizer makes this text more than %d times as long",
                   MAX_GROWTH);
}

/* Maps one character; returns how many it becomes. */
typedef size_t (*map_fn)(int32_t c, int32_t to[2]);

static size_t lower(int32_t c, int32_t to[2])
{
    to[0] = c < 0x80 ? c + (c >= 'A' && c <= 'Z' ? 'a' - 'A' : 0) : utf8proc_tolower(c);
    to[1] = 0x307;
    return c == 0x130 ? 2 : 1; /* dotted capital I keeps its dot */
}

static size_t no_accent(int32_t c, int32_t to[2])
{
    const utf8proc_category_t k = c < 0x300 ? UTF8PROC_CATEGORY_CN : utf8proc_category(c);
    to[0] = c;
    return k < UTF8PROC_CATEGORY_MN || k > UTF8PROC_CATEGORY_ME;
}

/* Replacements for neural machine translation, as in https://github.com/google/sentencepiece. */
static size_t nmt(int32_t c, int32_t to[2])
{
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
        return 0;
    const bool space = c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                       c == 0xFFFD;
    to[0] = space ? ' ' : c;
    return 1;
}

static void map_all(map_fn fn, struct pp_str text, struct pp_buf *out)
{
    for (size_t i = 0; i < text.len;) {
        int32_t c, to[2];
        char utf8[4];
        const size_t width = pp_utf8_decode(text.data + i, text.len - i, &c);
        const size_t n = c < 0 ? 0 : fn(c, to);
        if (c < 0 || (n == 1 && to[0] == c))
            pp_buf_add(out, text.data + i, width);
        for (size_t k = 0; k < n && (n > 1 || to[0] != c); k++)
            pp_buf_add(out, utf8, pp_utf8_encode(to[k], utf8));
        i += width;
    }
}

static bool is_white(const char *p, size_t n, size_t *width)
{
    int32_t c;
    *width = pp_utf8_decode(p, n, &c);
    return tok_char_class(c) & TOK_SPACE_CHAR;
}

static struct pp_str strip(const struct step *s, struct pp_str text)
{
    size_t width;
    while (s->left && text.len && is_white(text.data, text.len, &width)) {
        text.data += width;
        text.len -= width;
    }
    while (s->right && text.len) {
        size_t at = text.len - 1;
        while (at > 0 && text.len - at < 4 && ((uint8_t)text.data[at] & 0xC0) == 0x80)
            at--;
        if (!is_white(text.data + at, text.len - at, &width) || at + width != text.len)
            break;
        text.len = at;
    }
    return text;
}

static enum pp_code replace(const struct step *s, struct pp_str *text, struct pp_buf *out, struct running *r)
{
    const char *at = text->data, *const end = at + text->len;
    const char *found = memmem(at, text->len, s->from, s->n_from);
    if (!found)
        return PP_OK;
    for (; found && out->len <= r->most; found = memmem(at, (size_t)(end - at), s->from, s->n_from)) {
        pp_buf_add(out, at, (size_t)(found - at));
        pp_buf_add(out, s->to, s->n_to);
        at = found + s->n_from;
    }
    pp_buf_add(out, at, (size_t)(end - at));
    *text = (struct pp_str){pp_buf_cstr(out), out->len};
    return PP_OK;
}

static enum pp_code match(const struct step *s, struct pp_str text, size_t from, pcre2_match_data *found,
                          pcre2_match_context *limits, bool *there, struct running *r)
{
    const uint32_t options = 0;
    int rc = pcre2_match(s->code, (PCRE2_SPTR)text.data, text.len, from, options, found, limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(s->code, (PCRE2_SPTR)text.data, text.len, from, options | PCRE2_NO_JIT, found, limits);
    if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT)
        return pp_fail_nomem(r->err, "normalising the text");
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        return pp_fail(r->err, PP_ERR_UNSUPPORTED, "an expression of this tokenizer's normalizer takes too long on "
                       "this text");
    *there = rc >= 0;
    return PP_OK;
}

/* Matches may be empty, except right after another one. */
static enum pp_code replace_matches(const struct step *s, struct pp_str *text, struct pp_buf *out,
                                    pcre2_match_data *found, pcre2_match_context *limits, struct running *r)
{
    size_t at = 0, last_end = SIZE_MAX; /* last_end: of the last match */
    for (size_t from = 0, count = 1; text->len && from <= text->len && out->len <= r->most; count++) {
        bool there = false;
        enum pp_code code = match(s, *text, from, found, limits, &there, r);
        if (code)
            return code;
        if (!there)
            break;
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(found);
        if (v[0] < from || v[1] < v[0] || v[1] > text->len ||
            (count % CLOCK_EVERY == 0 && pp_now_ns() > r->deadline_ns))
            return pp_fail(r->err, PP_ERR_UNSUPPORTED, "an expression of this tokenizer's normalizer moves backwards "
                           "or takes too long on this text");
        from = v[1];
        if (v[1] == last_end) {
            int32_t c;
            from += from < text->len ? pp_utf8_decode(text->data + from, text->len - from, &c) : 1;
            continue;
        }
        pp_buf_add(out, text->data + at, v[0] - at);
        pp_buf_add(out, s->to, s->n_to);
        at = last_end = v[1];
    }
    if (last_end == SIZE_MAX)
        return PP_OK;
    pp_buf_add(out, text->data + at, text->len - at);
    *text = (struct pp_str){pp_buf_cstr(out), out->len};
    return PP_OK;
}

static enum pp_code replace_expression(const struct step *s, struct pp_str *text, struct pp_buf *out, struct running *r)
{
    pcre2_match_data *found = pcre2_match_data_create(1, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    enum pp_code code = found && limits ? PP_OK : pp_fail_nomem(r->err, "normalising the text");
    if (!code) {
        pcre2_set_match_limit(limits, MATCH_LIMIT);
        code = replace_matches(s, text, out, found, limits, r);
    }
    pcre2_match_data_free(found);
    pcre2_match_context_free(limits);
    return code;
}

/* BERT's normalisation before text is cut into words: https://github.com/huggingface/tokenizers,
 * src/normalizers/bert.rs. */
static enum pp_code bert(const struct step *s, struct pp_str *text, struct pp_buf *out, struct running *r)
{
    struct pp_buf plain = {0};
    if (s->bert.strip_accents) {
        switch (tok_form(TOK_NFD, text->data, text->len, &plain)) {
        case TOK_NO_MEMORY:
            return pp_fail_nomem(r->err, "normalising the text");
        case TOK_SAME:
            break;
        case TOK_CHANGED:
            *text = (struct pp_str){pp_buf_cstr(&plain), plain.len};
        }
    }
    tok_bert_normalize(&s->bert, text->data, text->len, out);
    pp_buf_free(&plain);
    *text = (struct pp_str){pp_buf_cstr(out), out->len};
    return PP_OK;
}

/* Replaces *text by the step's result, which is in `out`, or in the same memory. */
static enum pp_code run_step(const struct step *s, struct pp_str *text, struct pp_buf *out, struct running *r)
{
    pp_buf_clear(out);
    switch (s->kind) {
    case FORM:
        switch (tok_form(s->form, text->data, text->len, out)) {
        case TOK_SAME:
            return PP_OK;
        case TOK_NO_MEMORY:
            return pp_fail_nomem(r->err, "normalising the text");
        case TOK_CHANGED:
            break;
        }
        break;
    case LOWER:
        map_all(lower, *text, out);
        break;
    case ACCENTS:
        map_all(no_accent, *text, out);
        break;
    case NMT:
        map_all(nmt, *text, out);
        break;
    case STRIP: {
        const char *before = text->data;
        *text = strip(s, *text);
        r->moved |= text->data != before;
        return PP_OK;
    }
    case REPLACE:
        return replace(s, text, out, r);
    case EXPRESSION:
        return replace_expression(s, text, out, r);
    case PREPEND:
        if (!text->len)
            return PP_OK;
        pp_buf_add(out, s->to, s->n_to);
        pp_buf_add(out, text->data, text->len);
        break;
    case SPELL: /* a character for each byte */
        tok_spell_bytes(text->data, text->len, out);
        break;
    case BERT:
        return bert(s, text, out, r);
    case MOSES:
        tok_moses_words(*text, out);
        break;
    case TABLE:
        tok_map_characters((struct pp_str){s->map, s->n_map}, text->data, text->len, out);
        break;
    }
    *text = (struct pp_str){pp_buf_cstr(out), out->len};
    return PP_OK;
}

enum pp_code tok_steps_run(const struct tok_steps *s, struct pp_str *text, bool inside, struct pp_buf two[2],
                           bool *moved, struct pp_error *err)
{
    struct running r = {.most = text->len * MAX_GROWTH + MAX_REPLACEMENT, .err = err,
                        .deadline_ns = pp_now_ns() + (PATIENCE_S + (uint64_t)text->len / 1000000) * 1000000000u};
    int turn = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (inside && s->steps[i].kind == PREPEND)
            continue;
        enum pp_code code = run_step(&s->steps[i], text, &two[turn], &r);
        if (!code && two[turn].bad)
            code = pp_fail_nomem(err, "a copy of the text");
        if (!code && text->len > r.most)
            code = too_long(&r);
        if (code)
            return code;
        if (text->data == two[turn].data)
            turn ^= 1; /* the text is in that buffer now */
    }
    *moved = r.moved;
    return PP_OK;
}
