/* prompt.c - from messages to tokens.
 *
 * The rendered template is one text, in which control tokens are recognised by their spelling. If a message contains
 * such a spelling, it must not be recognised. So each message is first searched for them, and for whatever else only
 * the template may write (pp_find_marker). If one is found, which is rare, a mark is inserted after its first
 * character: a Unicode noncharacter that no message contains. It passes through the template, and afterwards the
 * text is split at the marks and tokenised in pieces. Without marks, which is the rule, the tokens are exactly those
 * of the rendered text. */
#include "src/prompt.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <time.h>

#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/paths.h"

int64_t pp_prompt_now(void)
{
    const time_t now = time(NULL);
    struct tm here;
    return (int64_t)now + (localtime_r(&now, &here) ? here.tm_gmtoff : 0);
}

enum { MARK_BYTES = 3, N_MARKS = 32, MAX_TEMPLATE_BYTES = 1 << 20 };

struct ids {
    int32_t *v;
    size_t n, cap;
};

static enum pp_code add_ids(struct ids *ids, const int32_t *more, size_t n, struct pp_error *err)
{
    if (pp_grow(&ids->v, &ids->cap, ids->n + n, sizeof *ids->v) != 0)
        return pp_fail_nomem(err, "the prompt");
    if (n)
        memcpy(ids->v + ids->n, more, n * sizeof *more);
    ids->n += n;
    return PP_OK;
}

static enum pp_code add_tokens(struct ids *ids, const struct pp_tokenizer *t, const char *text, size_t len,
                               unsigned flags, struct pp_error *err)
{
    int32_t *more;
    size_t n;
    if (!len)
        return PP_OK;
    enum pp_code code = pp_tokenize(t, text, len, PP_TOKENIZE_SPECIAL | flags, &more, &n, err);
    if (code != PP_OK)
        return code;
    code = add_ids(ids, more, n, err);
    pp_free(more);
    return code;
}

/* --- control tokens in messages --------------------------------------------------------------------------- */

/* How marks are inserted. */
struct guard {
    const struct pp_tokenizer *tokenizer;
    const struct pp_template *tmpl;
    char mark[MARK_BYTES + 1 + 1];
    bool marked; /* a mark was inserted */
};

/* The first control token, or other marker that only the template may write, that would be recognised in s and is
 * not in `done`; and its text. -1 if there is none. */
static int32_t find_control(const struct guard *g, const char *s, size_t len, bool foreign, const struct ids *done,
                            struct pp_buf *text)
{
    int32_t *ids;
    size_t n;
    if (pp_tokenize(g->tokenizer, s, len, PP_TOKENIZE_SPECIAL, &ids, &n, NULL) != PP_OK)
        return -1; /* tokenising the whole prompt will fail for the same reason, and report it */
    const int32_t found = pp_find_marker(g->tokenizer, g->tmpl, foreign, ids, n, done->v, done->n);
    pp_buf_clear(text);
    pp_token_text(g->tokenizer, found, true, text);
    pp_free(ids);
    return found;
}

/* Appends s to out with the mark after the first character of each occurrence of `word`; returns their number. If
 * that is 0, as there are none, or the word is a single character, out is unusable. */
static size_t mark_word(struct pp_buf *out, const char *s, size_t len, const struct pp_buf *word, const char *mark)
{
    int32_t cp;
    size_t count = 0, head = pp_utf8_decode(word->data, word->len, &cp);
    if (head == word->len)
        return 0;
    while (len) {
        const char *at = memmem(s, len, word->data, word->len);
        size_t before = at ? (size_t)(at - s) + head : len;
        pp_buf_add(out, s, before);
        s += before;
        len -= before;
        if (at) {
            pp_buf_add(out, mark, MARK_BYTES);
            count++;
        }
    }
    return count;
}

/* Rewrites *text so that no control token is recognised in any piece between marks. Each iteration handles another
 * token of the vocabulary. Tokens that are recognised only by another spelling (after normalisation), or are a
 * single character, cannot be split by a mark. */
static enum pp_code guard(struct guard *g, struct pp_buf *text, bool foreign, struct pp_error *err)
{
    const char *mark = g->mark;
    struct pp_buf word = {0}, next = {0};
    struct ids done = {0};
    enum pp_code code = PP_OK;
    while (!code) {
        int32_t found = -1;
        for (const char *p = pp_buf_cstr(text), *end = p + text->len; found < 0 && p < end;) {
            const char *cut = memmem(p, (size_t)(end - p), mark, MARK_BYTES);
            size_t len = (size_t)((cut ? cut : end) - p);
            if (len)
                found = find_control(g, p, len, foreign, &done, &word);
            p += len + (cut ? MARK_BYTES : 0);
        }
        if (found < 0)
            break;
        code = add_ids(&done, &found, 1, err);
        pp_buf_clear(&next);
        if (!mark_word(&next, text->data, text->len, &word, mark))
            continue;
        struct pp_buf old = *text;
        *text = next;
        next = old;
        g->marked = true;
    }
    if (!code && (word.bad || next.bad || text->bad))
        code = pp_fail_nomem(err, "the prompt");
    pp_buf_free(&word);
    pp_buf_free(&next);
    pp_free(done.v);
    return code;
}

/* Chooses a noncharacter, U+FDD0 to U+FDEF, that no message contains; ordinary text contains none. */
static bool choose_mark(const cJSON *messages, const struct pp_buf *begun, char mark[MARK_BYTES + 1])
{
    for (int i = 0; i < N_MARKS; i++) {
        bool used;
        mark[pp_utf8_encode(0xFDD0 + i, mark)] = 0;
        used = strstr(pp_buf_cstr(&begun[0]), mark) || strstr(pp_buf_cstr(&begun[1]), mark);
        for (const cJSON *m = messages->child; !used && m; m = m->next)
            for (const cJSON *text = m->child; !used && text; text = text->next)
                used = cJSON_IsString(text) && strstr(text->valuestring, mark);
        if (!used)
            return true;
    }
    return false;
}

static enum pp_code guard_string(struct guard *g, cJSON *string, bool foreign, struct pp_error *err)
{
    const bool before = g->marked;
    struct pp_buf text = {0};
    pp_buf_str(&text, string->valuestring);
    g->marked = false;
    enum pp_code code = text.bad ? pp_fail_nomem(err, "the prompt") : guard(g, &text, foreign, err);
    if (code == PP_OK && g->marked && !cJSON_SetValuestring(string, pp_buf_cstr(&text)))
        code = pp_fail_nomem(err, "the prompt");
    pp_buf_free(&text);
    g->marked |= before;
    return code;
}

/* Whether it is a message's text, not the name of a role. */
static bool is_words(const cJSON *member)
{
    return cJSON_IsString(member) && strcmp(member->string, "role") != 0;
}

static enum pp_code guard_messages(struct guard *g, cJSON *messages, struct pp_error *err)
{
    for (cJSON *m = messages->child; m; m = m->next) {
        const char *role = cJSON_GetStringValue(pp_json_member(m, "role"));
        const bool foreign = !role || pp_role_is_foreign(role);
        for (cJSON *text = m->child; text; text = text->next) {
            enum pp_code code = is_words(text) ? guard_string(g, text, foreign, err) : PP_OK;
            if (code != PP_OK)
                return code;
        }
    }
    return PP_OK;
}

/* --- rendering -------------------------------------------------------------------------------------------- */

static enum pp_code render(const struct pp_prompt_input *in, const char *messages, struct pp_buf *out,
                           struct pp_error *err)
{
    struct pp_buf bos = {0}, eos = {0};
    if (pp_tokenizer_bos(in->tokenizer) >= 0)
        pp_token_text(in->tokenizer, pp_tokenizer_bos(in->tokenizer), true, &bos);
    if (pp_tokenizer_eos(in->tokenizer) >= 0)
        pp_token_text(in->tokenizer, pp_tokenizer_eos(in->tokenizer), true, &eos);
    struct pp_template_input input = {
        .messages_json = messages,
        .extra_json = in->extra_json,
        .bos_text = pp_buf_cstr(&bos),
        .eos_text = pp_buf_cstr(&eos),
        .add_generation_prompt = true,
        .now = in->now,
    };
    enum pp_code code = pp_template_render(in->tmpl, &input, out, err);
    pp_buf_free(&bos);
    pp_buf_free(&eos);
    return code != PP_OK ? code : out->bad ? pp_fail_nomem(err, "the prompt") : PP_OK;
}

/* Tokenises the pieces between the marks. */
static enum pp_code tokenize(const struct pp_tokenizer *t, const struct pp_buf *text, const char *mark, struct ids *ids,
                             struct pp_error *err)
{
    const char *p = pp_buf_cstr(text), *end = p + text->len;
    enum pp_code code = PP_OK;
    while (code == PP_OK && p < end) {
        const char *cut = mark ? memmem(p, (size_t)(end - p), mark, MARK_BYTES) : NULL;
        const char *stop = cut ? cut : end;
        code = add_tokens(ids, t, p, (size_t)(stop - p), p == pp_buf_cstr(text) ? 0 : PP_TOKENIZE_ON, err);
        p = stop + (cut ? MARK_BYTES : 0);
    }
    return code;
}

static enum pp_code put_before(struct ids *ids, const int32_t *more, size_t n, struct pp_error *err)
{
    if (!n)
        return PP_OK;
    if (pp_grow(&ids->v, &ids->cap, ids->n + n, sizeof *ids->v) != 0)
        return pp_fail_nomem(err, "the prompt");
    memmove(ids->v + n, ids->v, ids->n * sizeof *ids->v);
    memcpy(ids->v, more, n * sizeof *more);
    ids->n += n;
    return PP_OK;
}

static enum pp_code add_lead(const struct pp_tokenizer *t, struct ids *ids, struct pp_error *err)
{
    const int32_t *lead, *ahead;
    const size_t n = pp_tokenizer_lead(t, &lead), n_ahead = pp_tokenizer_ahead(t, &ahead);
    const bool written = n && ids->n && ids->v[0] == lead[0]; /* many templates write it themselves */
    const enum pp_code code = put_before(ids, lead, written ? 0 : n, err);
    return code ? code : put_before(ids, ahead, n_ahead, err);
}

/* Copies the reasoning of earlier answers to the other two names under which templates read it. False: there is
 * none. */
static bool name_reasoning(cJSON *messages)
{
    static const char *const others[] = {"thinking", "reasoning"};
    bool any = false;
    for (cJSON *m = messages->child; m; m = m->next) {
        const cJSON *r = pp_json_member(m, "reasoning_content");
        for (size_t i = 0; cJSON_IsString(r) && i < sizeof others / sizeof *others; i++)
            any |= cJSON_AddStringToObject(m, others[i], r->valuestring) != NULL;
    }
    return any;
}

/* Appends the beginning of the answer after the generation prompt, with the tags that separate reasoning and text. */
static void add_begun(const struct pp_prompt_input *in, const struct pp_buf begun[2], struct pp_buf *text)
{
    static const struct pp_reasoning none;
    const struct pp_reasoning *r = in->reasoning ? in->reasoning : &none;
    enum pp_answer_begin begins = pp_reasoning_begins(r, pp_buf_cstr(text), text->len);
    bool with_reasoning;
    struct pp_reasoning_frame f = pp_reasoning_frame(r, begins, begun[0].len, begun[1].len, &with_reasoning);
    if (begun[1].len || with_reasoning) {
        pp_buf_str(text, f.before);
        if (with_reasoning)
            pp_buf_add(text, begun[0].data, begun[0].len);
        pp_buf_str(text, f.between);
        pp_buf_add(text, begun[1].data, begun[1].len);
        begins = begun[1].len ? PP_BEGINS_ANSWER : PP_BEGINS_REASONING;
    } else if (in->skip_reasoning) {
        pp_buf_str(text, pp_reasoning_skip(r, begins));
        begins = r->tags ? PP_BEGINS_ANSWER : begins;
    }
    if (in->begins)
        *in->begins = begins;
}

static enum pp_code render_guarded(const struct pp_prompt_input *in, cJSON *messages, struct pp_buf *text,
                                   struct guard *g, struct pp_error *err)
{
    struct pp_buf begun[2] = {{0}, {0}}; /* reasoning, answer */
    enum pp_code code = PP_OK;
    pp_buf_str(&begun[0], in->continue_reasoning ? in->continue_reasoning : "");
    pp_buf_str(&begun[1], in->continue_text ? in->continue_text : "");
    if (choose_mark(messages, begun, g->mark)) {
        code = guard_messages(g, messages, err);
        for (int i = 0; code == PP_OK && i < 2; i++)
            code = guard(g, &begun[i], false, err);
    }
    bool changed = code == PP_OK && (name_reasoning(messages) || g->marked);
    char *json = changed ? cJSON_PrintUnformatted(messages) : NULL;
    if (changed && !json)
        code = pp_fail_nomem(err, "the prompt");
    if (code == PP_OK)
        code = render(in, json ? json : in->messages_json, text, err);
    if (code == PP_OK)
        add_begun(in, begun, text);
    cJSON_free(json);
    bool bad = begun[0].bad || begun[1].bad || text->bad;
    pp_buf_free(&begun[0]);
    pp_buf_free(&begun[1]);
    return code == PP_OK && bad ? pp_fail_nomem(err, "the prompt") : code;
}

enum pp_code pp_prompt_tokens(const struct pp_prompt_input *in, int32_t **out, size_t *n, struct pp_error *err)
{
    struct guard g = {.tokenizer = in->tokenizer, .tmpl = in->tmpl};
    struct pp_buf text = {0};
    struct ids ids = {0};
    *out = NULL;
    *n = 0;
    if (pp_json_has_nul(in->messages_json, strlen(in->messages_json)))
        return pp_fail(err, PP_ERR_FORMAT, PP_JSON_NUL_TEXT);
    cJSON *messages = cJSON_Parse(in->messages_json);
    enum pp_code code = cJSON_IsArray(messages) ? render_guarded(in, messages, &text, &g, err)
                                                : pp_fail(err, PP_ERR_FORMAT, "the messages are not a JSON array");
    cJSON_Delete(messages);
    if (code == PP_OK)
        code = tokenize(in->tokenizer, &text, g.marked ? g.mark : NULL, &ids, err);
    if (code == PP_OK)
        code = add_lead(in->tokenizer, &ids, err);
    if (code == PP_OK && (!text.len || ids.n == 0)) /* after BOS alone the model would write anything */
        code = pp_fail(err, PP_ERR_FORMAT, "the chat template produced an empty prompt");
    pp_buf_free(&text);
    if (code != PP_OK) {
        pp_free(ids.v);
        return code;
    }
    *out = ids.v;
    *n = ids.n;
    return PP_OK;
}

enum pp_code pp_template_source(const struct pp_paths *paths, const char *name, char **source, struct pp_error *err)
{
    const char *builtin = pp_template_builtin(name);
    char path[1200];
    size_t size;
    *source = NULL;
    if (builtin)
        return (*source = pp_strdup(builtin)) ? PP_OK : pp_fail_nomem(err, "the chat template");
    enum pp_code code = pp_template_path(paths, name, path, sizeof path, err);
    return code ? code : pp_read_file(path, MAX_TEMPLATE_BYTES, source, &size, err);
}

enum pp_code pp_template_check(const struct pp_template *t, const char *name, struct pp_error *err)
{
    if (pp_template_reads(t, "messages"))
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "%s is not a chat template: it does not use `messages`, so the model would not "
                                       "see what you write", name);
}
