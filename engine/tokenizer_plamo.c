/* tokenizer_plamo.c - vocabularies of PLaMo 2 and 3: the cheapest way to cut a text into pieces, found from its end to
 * its beginning. A piece costs its negative score, in steps of 1/10000; a character may also become the tokens of its
 * bytes, which costs more than any usual piece. Among equal costs the longest piece wins.
 *
 * PLaMo 3 cuts text first: around what looks like one of its own tokens, <|plamo:...|>, and around runs of the same
 * character and of spaces whose lengths tokenizer_config.json gives. Its makers mark those places with U+EE00; that
 * character itself is no part of text.
 *
 * In a folder they are in tokenizer.jsonl: a line for each token, [text, score, kind]. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

enum {
    STEPS = 10000,          /* of a score, which is rounded to them */
    UNKNOWN_COST = 10000000,
    NO_PIECE = 20000000,    /* pieces that cost so much are never used */
    BOUNDARY = 0xEE00,
    MAX_NAME = 64,          /* characters of the name in <|plamo:...|> */
};
static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD, for a byte that is not UTF-8 */

/* --- the cheapest cut --------------------------------------------------------------------------------------------- */

/* False: the piece is never used. */
static bool cost_of(const struct pp_tokenizer *t, uint32_t token, int64_t *cost)
{
    const double steps = round((double)t->score[token] * STEPS);
    if (!(steps > -NO_PIECE))
        return false;
    *cost = -(int64_t)fmin(steps, INT32_MAX);
    return true;
}

/* Of tokens with the same text the last one counts; the walk finds the first. */
static uint32_t last_alike(const struct tok_walk *w)
{
    uint32_t i = w->lo;
    while (i + 1 < w->hi && tok_text(w->t, w->index->ids[i + 1]).len == w->depth)
        i++;
    return w->index->ids[i];
}

/* Chooses the cheapest way from the character of `width` bytes at `at` to the end. */
static void choose(struct tok_merger *m, const char *word, size_t n, size_t at, size_t width)
{
    struct tok_walk w = {.t = m->t, .index = &m->t->pieces};
    struct tok_cut best = {.from = TOK_NONE, .token = TOK_NONE};
    int64_t least = INT64_MAX, cost;
    uint32_t token;
    for (size_t i = at; i < n && tok_walk(&w, word[i], &token); i++) {
        if (token == TOK_NONE || m->costs[i + 1] == INT64_MAX) /* would end within a character */
            continue;
        token = last_alike(&w);
        if (!cost_of(m->t, token, &cost) || cost + m->costs[i + 1] > least)
            continue;
        least = cost + m->costs[i + 1];
        best = (struct tok_cut){.from = (uint32_t)(i + 1), .token = token};
    }
    if (best.from == TOK_NONE || m->costs[at + width] + UNKNOWN_COST < least) {
        least = m->costs[at + width] + UNKNOWN_COST;
        best = (struct tok_cut){.from = (uint32_t)(at + width), .token = TOK_NONE};
    }
    m->costs[at] = least;
    m->cuts[at] = best;
}

/* Cuts valid UTF-8 into tokens. */
static enum pp_code add_piece(struct tok_merger *m, const char *word, size_t n, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    bool after_unknown = false;
    if (n == 0)
        return PP_OK;
    if (pp_grow(&m->cuts, &m->cuts_cap, n + 1, sizeof *m->cuts) ||
        pp_grow(&m->costs, &m->costs_cap, n + 1, sizeof *m->costs))
        return pp_fail_nomem(err, "cutting a long text");
    m->costs[n] = 0;
    for (size_t end = n, at; end > 0; end = at) {
        at = end - 1;
        while (at > 0 && ((uint8_t)word[at] & 0xC0) == 0x80)
            m->costs[at--] = INT64_MAX;
        choose(m, word, n, at, end - at);
    }
    for (uint32_t at = 0; at < n && !code; at = m->cuts[at].from) {
        const struct tok_cut *c = &m->cuts[at];
        if (c->token != TOK_NONE)
            code = tok_ids_add(&m->ids, (int32_t)c->token, err);
        else
            code = tok_emit_unknown(m, word + at, c->from - at, &after_unknown, err);
    }
    return code;
}

/* --- PLaMo 3's first cuts ----------------------------------------------------------------------------------------- */

/* Space as in Python's regular expressions. */
static bool is_space(int32_t c)
{
    return (c >= 0x1C && c <= 0x1F) || tok_char_class(c) & TOK_SPACE_CHAR;
}

/* The length of <|plamo:...|> at p, 0: there is none. */
static size_t name_at(const char *p, size_t n)
{
    static const char begin[] = "<|plamo:", end[] = "|>";
    size_t at = sizeof begin - 1;
    if (n < at || memcmp(p, begin, at) != 0)
        return 0;
    for (int i = 0; i < MAX_NAME && at < n && p[at] != '|'; i++) {
        int32_t c;
        const size_t width = pp_utf8_decode(p + at, n - at, &c);
        if (is_space(c))
            break;
        at += width;
    }
    return n - at >= sizeof end - 1 && memcmp(p + at, end, sizeof end - 1) == 0 ? at + sizeof end - 1 : 0;
}

/* Cuts at runs; each run is a piece, too. */
static enum pp_code cut_runs(struct tok_merger *m, const char *text, size_t n, struct pp_error *err)
{
    const struct tok_breaks *cut = &m->t->breaks;
    enum pp_code code = PP_OK;
    size_t begin = 0;
    for (size_t at = 0; at < n && !code;) {
        int32_t c;
        const size_t width = pp_utf8_decode(text + at, n - at, &c);
        size_t end = at + width;
        while (end + width <= n && memcmp(text + at, text + end, width) == 0)
            end += width;
        const uint64_t count = (end - at) / width;
        const bool alike = cut->alike && c != '\n' && count >= cut->alike;
        if (c == BOUNDARY) {
            code = add_piece(m, text + begin, at - begin, err);
            begin = end;
        } else if (alike || (cut->spaces && c == ' ' && count >= cut->spaces)) {
            code = add_piece(m, text + begin, at - begin, err);
            if (!code)
                code = add_piece(m, text + at, end - at, err);
            begin = end;
        }
        at = end;
    }
    return code ? code : add_piece(m, text + begin, n - begin, err);
}

static enum pp_code cut_names(struct tok_merger *m, const char *text, size_t n, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    size_t begin = 0;
    for (const char *p = text; !code && (p = memchr(p, '<', (size_t)(text + n - p)));) {
        const size_t at = (size_t)(p - text), len = name_at(p, n - at);
        p += len ? len : 1;
        if (!len)
            continue;
        code = cut_runs(m, text + begin, at - begin, err);
        if (!code)
            code = cut_runs(m, text + at, len, err);
        begin = at + len;
    }
    return code ? code : cut_runs(m, text + begin, n - begin, err);
}

/* --- whole texts -------------------------------------------------------------------------------------------------- */

static void make_valid(const char *text, size_t n, struct pp_buf *out)
{
    size_t width, begin = 0;
    pp_buf_clear(out);
    for (size_t i = 0; i < n; i += width) {
        int32_t c;
        width = pp_utf8_decode(text + i, n - i, &c);
        if (c >= 0)
            continue;
        pp_buf_add(out, text + begin, i - begin);
        pp_buf_str(out, replacement);
        begin = i + width;
    }
    pp_buf_add(out, text + begin, n - begin);
}

enum pp_code tok_plamo_text(struct tok_merger *m, const char *text, size_t n, struct pp_error *err)
{
    if (!pp_utf8_valid(text, n)) {
        make_valid(text, n, &m->spelled);
        if (m->spelled.bad)
            return pp_fail_nomem(err, "a copy of the text");
        text = m->spelled.data;
        n = m->spelled.len;
    }
    return m->t->breaks.on ? cut_names(m, text, n, err) : add_piece(m, text, n, err);
}

enum pp_code tok_plamo_check(const struct pp_tokenizer *t, struct pp_error *err)
{
    if (!t->score)
        return pp_fail(err, PP_ERR_FORMAT, "the vocabulary has no scores, which PLaMo's tokenizer needs");
    for (unsigned byte = 0; byte < 256; byte++)
        if (t->byte_symbol[byte] >= t->n_vocab || t->type[t->byte_symbol[byte]] != TOK_BYTE)
            return pp_fail(err, PP_ERR_FORMAT, "the vocabulary has no token <0x%02X>, and PLaMo's needs one for each "
                           "byte", byte);
    return PP_OK;
}

/* --- tokenizer.jsonl ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum tok_type type;
} kinds[] = {{"NORMAL", TOK_NORMAL}, {"UNKNOWN", TOK_UNKNOWN}, {"CONTROL", TOK_CONTROL}, {"BYTE", TOK_BYTE},
             {"USER_DEFINED", TOK_USER}, {"UNUSED", TOK_UNUSED}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* Converters treat a text that looks like one of PLaMo's own tokens as one, whatever its line says. */
static enum tok_type type_of(const char *text, const char *kind)
{
    const size_t n = strlen(text);
    for (int i = 1; kind && i < N_KINDS; i++)
        if (strcmp(kinds[i].name, kind) == 0)
            return kinds[i].type;
    return n > 2 && strncmp(text, "<|plamo:", 8) == 0 && strcmp(text + n - 2, "|>") == 0 ? TOK_CONTROL : TOK_NORMAL;
}

static enum pp_code read_token(const char *line, size_t n, size_t number, char **to, struct tok_spec *spec,
                               struct pp_error *err)
{
    char name[64];
    cJSON *row = NULL;
    const size_t id = spec->n;
    snprintf(name, sizeof name, "line %zu", number);
    enum pp_code code = pp_json_parse(line, n, name, NULL, &row, err);
    const char *text = cJSON_GetStringValue(cJSON_GetArrayItem(row, 0));
    const cJSON *score = cJSON_GetArrayItem(row, 1);
    if (!code && pp_json_has_nul(line, n))
        code = pp_fail(err, PP_ERR_FORMAT, "%s: " PP_JSON_NUL_TEXT, name);
    if (!code && (!cJSON_IsArray(row) || !text || !cJSON_IsNumber(score)))
        code = pp_fail(err, PP_ERR_FORMAT, "%s is not a list of a text, a score and what kind of token it is", name);
    if (!code)
        code = tok_spec_resize(spec, id + 1, err);
    if (!code) {
        const size_t len = strlen(text); /* not longer than its JSON */
        memcpy(*to, text, len);
        spec->texts[id] = (struct pp_str){*to, len};
        spec->types[id] = (uint8_t)type_of(text, cJSON_GetStringValue(cJSON_GetArrayItem(row, 2)));
        spec->scores[id] = (float)score->valuedouble;
        *to += len;
    }
    cJSON_Delete(row);
    return code;
}

static enum pp_code read_lines(const char *data, size_t n, struct tok_spec *spec, struct pp_error *err)
{
    char *to = spec->unescaped = pp_malloc(n + 1);
    enum pp_code code = to ? tok_spec_resize(spec, 1, err) : PP_ERR_NOMEM;
    size_t number = 1;
    if (to && !code)
        spec->scores = pp_calloc(spec->cap, sizeof *spec->scores);
    if (!to || (!code && !spec->scores))
        return pp_fail_nomem(err, "the vocabulary");
    spec->n = 0;
    for (const char *p = data, *end = data + n, *stop; p < end && !code; p = stop + 1, number++) {
        stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop ? stop : end;
        if (strspn(p, " \t\r") < (size_t)(stop - p)) /* strtod stops at the line's end at the latest */
            code = read_token(p, (size_t)(stop - p), number, &to, spec, err);
    }
    return code;
}

/* Thresholds below 1 do not count. */
static uint32_t threshold(const cJSON *config, const char *key)
{
    const double v = cJSON_GetNumberValue(pp_json_member(config, key));
    return v >= 1 && v <= (double)INT32_MAX ? (uint32_t)v : 0;
}

static void read_breaks(const cJSON *config, struct tok_spec *spec)
{
    const char *class = cJSON_GetStringValue(pp_json_member(config, "tokenizer_class"));
    spec->breaks = (struct tok_breaks){
        .on = class && strncmp(class, "Plamo3", 6) == 0,
        .alike = threshold(config, "break_around_repeated_chars_threshold"),
        .spaces = threshold(config, "break_around_consecutive_spaces_threshold"),
    };
}

enum pp_code tok_from_plamo(const char *data, size_t n, const char *folder, struct pp_tokenizer **out,
                            struct pp_error *err)
{
    static const char op[] = "<|plamo:op|>"; /* begins an operation, which the next token names */
    struct tok_spec spec = {.kind = TOK_PLAMO, .bos = -1, .eos = -1, .eot = -1, .unk = -1};
    struct tok_config cfg = {0};
    *out = NULL;
    enum pp_code code = folder ? tok_config_read(folder, &cfg, err) : PP_OK;
    if (!code)
        code = read_lines(data, n, &spec, err);
    if (!code)
        code = tok_config_apply(&cfg, &spec, err);
    if (!code) {
        spec.eot = tok_spec_find(&spec, op, sizeof op - 1);
        read_breaks(cfg.tokenizer, &spec);
        code = tok_build(&spec, out, err);
    }
    tok_spec_free(&spec);
    tok_config_free(&cfg);
    return code;
}

const char *tok_plamo_kind(uint8_t type)
{
    for (int i = 0; i < N_KINDS; i++)
        if (kinds[i].type == type)
            return kinds[i].name;
    return kinds[0].name;
}
