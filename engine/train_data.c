/* train_data.c - reads examples: lines of JSON become tokens, some of which are learnt. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text.h"
#include "engine/train_int.h"

enum { MAX_FILE = 1 << 30, MAX_MESSAGES = 4096 };

/* --- a set of examples ---------------------------------------------------------------------------------------- */

static void count(struct pp_train_data_info *info, const struct pp_example *e)
{
    size_t n = (size_t)e->n;
    info->n_examples++;
    info->n_tokens += n;
    info->n_learnt += (size_t)e->n_learnt;
    info->longest = n > info->longest ? n : info->longest;
}

enum pp_code pp_train_data_add(struct pp_train_data *d, const int32_t *tokens, const uint8_t *learnt, size_t n,
                               int64_t max_tokens, struct pp_error *err)
{
    size_t keep = n < (size_t)max_tokens ? n : (size_t)max_tokens;
    int32_t n_learnt = 0;
    for (size_t i = 1; i < keep; i++)
        n_learnt += learnt[i] != 0;
    d->info.n_cut += keep < n;
    if (!n_learnt) {
        d->info.n_dropped++;
        return PP_OK;
    }
    size_t need = d->n_tokens + keep;
    if (pp_grow(&d->tokens, &d->cap_tokens, need, sizeof *d->tokens) != 0 ||
        pp_grow(&d->learnt, &d->cap_learnt, need, sizeof *d->learnt) != 0 ||
        pp_grow(&d->examples, &d->cap, d->n + 1, sizeof *d->examples) != 0)
        return pp_fail_nomem(err, "the examples");
    memcpy(d->tokens + d->n_tokens, tokens, keep * sizeof *tokens);
    memcpy(d->learnt + d->n_tokens, learnt, keep);
    d->learnt[d->n_tokens] = 0; /* nothing precedes it */
    d->examples[d->n++] = (struct pp_example){.first = d->n_tokens, .n = (int32_t)keep, .n_learnt = n_learnt};
    d->n_tokens += keep;
    count(&d->info, &d->examples[d->n - 1]);
    return PP_OK;
}

void pp_train_data_free(struct pp_train_data *d)
{
    if (!d)
        return;
    pp_free(d->tokens);
    pp_free(d->learnt);
    pp_free(d->examples);
    pp_free(d);
}

const struct pp_train_data_info *pp_train_data_info(const struct pp_train_data *d)
{
    return &d->info;
}

struct pp_hash128 pp_train_data_hash(const struct pp_train_data *d)
{
    struct pp_hash128 h = pp_hash128(NULL, 0);
    for (size_t i = 0; i < d->n; i++) {
        const struct pp_example *e = &d->examples[i];
        struct pp_hash128 part[3] = {h, pp_hash128(d->tokens + e->first, (size_t)e->n * sizeof *d->tokens),
                                     pp_hash128(d->learnt + e->first, (size_t)e->n)};
        h = pp_hash128(part, sizeof part);
    }
    return h;
}

enum pp_code pp_train_data_split(struct pp_train_data *d, double share, uint64_t seed, struct pp_train_data **out,
                                 struct pp_error *err)
{
    *out = NULL;
    if (d->n < 2)
        return pp_fail(err, PP_ERR_USAGE,
                       "there is only one example, so none can be held out for validation; give more examples, or "
                       "--val-share 0");
    size_t n = (size_t)((double)d->n * share + 0.5), kept = 0;
    n = n < 1 ? 1 : n > d->n - 1 ? d->n - 1 : n;
    uint32_t *order = pp_malloc(d->n * sizeof *order);
    uint8_t *moves = pp_calloc(d->n, 1);
    struct pp_train_data *v = pp_calloc(1, sizeof *v);
    enum pp_code code = order && moves && v ? PP_OK : pp_fail_nomem(err, "the examples");
    if (!code) {
        pp_train_shuffle(seed, PP_STREAM_SPLIT, order, d->n);
        for (size_t i = 0; i < n; i++)
            moves[order[i]] = 1;
    }
    for (size_t i = 0; i < d->n && !code; i++) {
        const struct pp_example *e = &d->examples[i];
        if (moves[i])
            code = pp_train_data_add(v, d->tokens + e->first, d->learnt + e->first, (size_t)e->n, e->n, err);
        else
            d->examples[kept++] = *e; /* its tokens are not moved */
    }
    pp_free(order);
    pp_free(moves);
    if (code) {
        pp_train_data_free(v);
        return code;
    }
    d->n = kept;
    d->info.n_examples = d->info.n_tokens = d->info.n_learnt = d->info.longest = 0;
    for (size_t i = 0; i < kept; i++)
        count(&d->info, &d->examples[i]);
    *out = v;
    return PP_OK;
}

/* --- reading: common to all lines ----------------------------------------------------------------------------- */

struct reader {
    const struct pp_tokenizer *tokenizer;
    struct pp_template *tmpl;   /* NULL: there is none */
    struct pp_template *tool_tmpl; /* for conversations with tools; NULL: the same */
    const struct pp_train_data_options *opt;
    int64_t n_vocab;
    struct pp_buf bos, eos;     /* texts of these tokens */
    struct pp_train_data *data;
};

struct ids {
    int32_t *v;
    size_t n;
};

/* Tokenizes a rendered conversation or a text; if the model wants BOS, and tokens that go with it, they come first,
 * once. */
static enum pp_code tokenize(const struct reader *r, const char *text, size_t len, bool special, struct ids *out,
                             struct pp_error *err)
{
    int32_t *ids;
    const int32_t *lead;
    size_t n, n_lead = pp_tokenizer_lead(r->tokenizer, &lead);
    *out = (struct ids){0};
    enum pp_code code = pp_tokenize(r->tokenizer, text, len, special ? PP_TOKENIZE_SPECIAL : 0, &ids, &n, err);
    if (code)
        return code;
    if (n && n_lead && ids[0] == lead[0])
        n_lead = 0;
    out->v = pp_malloc((n + n_lead + 1) * sizeof *out->v);
    if (out->v) {
        memcpy(out->v, lead, n_lead * sizeof *lead);
        memcpy(out->v + n_lead, ids, n * sizeof *ids);
        out->n = n + n_lead;
    }
    pp_free(ids);
    for (size_t i = 0; i < out->n; i++)
        if (out->v[i] >= r->n_vocab) {
            code = pp_fail(err, PP_ERR_FORMAT, "the tokenizer gives id %d, but the model has %lld tokens", out->v[i],
                           (long long)r->n_vocab);
            pp_free(out->v);
            *out = (struct ids){0};
            return code;
        }
    return out->v ? PP_OK : pp_fail_nomem(err, "the tokens of an example");
}

static size_t common_prefix(const struct ids *a, const struct ids *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->v[n] == b->v[n])
        n++;
    return n;
}

/* --- a text --------------------------------------------------------------------------------------------------- */

/* Long texts are cut into pieces that overlap by one token, so that each token but the very first is learnt once. */
static enum pp_code add_text(struct reader *r, const char *text, struct pp_error *err)
{
    struct ids ids;
    enum pp_code code = tokenize(r, text, strlen(text), false, &ids, err);
    if (code)
        return code;
    uint8_t *learnt = pp_malloc(ids.n + 1);
    if (learnt)
        memset(learnt, 1, ids.n);
    else
        code = pp_fail_nomem(err, "the tokens of an example");
    if (!code && ids.n < 2)
        code = pp_fail(err, PP_ERR_FORMAT, "the text is empty or a single token, so there is nothing to learn");
    size_t most = (size_t)r->opt->max_tokens;
    for (size_t at = 0; at + 1 < ids.n && !code; at += most - 1) {
        size_t n = ids.n - at < most ? ids.n - at : most;
        code = pp_train_data_add(r->data, ids.v + at, learnt + at, n, r->opt->max_tokens, err);
    }
    pp_free(learnt);
    pp_free(ids.v);
    return code;
}

/* --- a conversation ------------------------------------------------------------------------------------------- */

struct conversation {
    char **messages;            /* each as JSON; cJSON_free */
    bool *answers;              /* which of them are learnt */
    int n, n_answers;
    char *tools;                /* or NULL */
};

/* Whether message i is an answer to learn. */
static bool is_answer(const struct conversation *c, int i)
{
    return c->answers[i];
}

/* Texts that the template will put into the example. */
struct texts {
    const struct pp_template *tmpl;
    const char *whose;          /* "a message holds" */
    bool foreign;               /* as in pp_find_marker */
};

/* Refuses a message with the text of a control token, which would be tokenized as one: another role's turn, or the
 * end. */
static enum pp_code refuse_control(const struct reader *r, const struct texts *t, const char *content,
                                   struct pp_error *err)
{
    int32_t *ids;
    size_t n;
    struct pp_buf text = {0};
    enum pp_code code = pp_tokenize(r->tokenizer, content, strlen(content), PP_TOKENIZE_SPECIAL, &ids, &n, err);
    if (code)
        return code;
    const int32_t found = pp_find_marker(r->tokenizer, t->tmpl, t->foreign, ids, n, NULL, 0);
    pp_token_text(r->tokenizer, found, true, &text);
    if (found >= 0)
        code = pp_fail(err, PP_ERR_FORMAT,
                       "%s the control token %.60s, which would be read as a real one; remove it", t->whose,
                       pp_buf_cstr(&text));
    pp_free(ids);
    pp_buf_free(&text);
    return code;
}

/* The template that writes a conversation. */
static const struct pp_template *template_of(const struct reader *r, const struct conversation *c)
{
    return c->tools && r->tool_tmpl ? r->tool_tmpl : r->tmpl;
}

/* Templates concatenate the texts of a message's parts, so a control token may begin in one part and end in another. */
static enum pp_code refuse_control_across(const struct reader *r, const struct texts *t, const cJSON *parts,
                                          struct pp_error *err)
{
    struct pp_buf all = {0};
    for (const cJSON *part = parts->child; part; part = part->next) {
        const char *text = cJSON_GetStringValue(part);
        if (!text)
            text = cJSON_GetStringValue(pp_json_member(part, "text"));
        pp_buf_str(&all, text ? text : "");
    }
    enum pp_code code = all.bad ? pp_fail_nomem(err, "a message") : refuse_control(r, t, pp_buf_cstr(&all), err);
    pp_buf_free(&all);
    return code;
}

/* The same for all texts in a message, such as parts of its content, or tool calls with names and values of
 * arguments. */
static enum pp_code refuse_control_in(const struct reader *r, const struct texts *t, const cJSON *value,
                                      struct pp_error *err)
{
    enum pp_code code = cJSON_IsString(value)  ? refuse_control(r, t, value->valuestring, err)
                        : cJSON_IsArray(value) ? refuse_control_across(r, t, value, err)
                                               : PP_OK;
    for (const cJSON *item = value->child; item && !code; item = item->next) {
        if (item->string)
            code = refuse_control(r, t, item->string, err);
        if (!code)
            code = refuse_control_in(r, t, item, err);
    }
    return code;
}

/* Joins a content in parts to one text, since templates that expect text would print the list. Parts must be texts.
 * *content: NULL, or cJSON_Delete. */
static enum pp_code join_parts(const cJSON *parts, int message, cJSON **content, struct pp_error *err)
{
    struct pp_buf all = {0};
    enum pp_code code = PP_OK;
    *content = NULL;
    for (const cJSON *part = parts->child; part && !code; part = part->next) {
        const char *type = pp_json_text(part, "type");
        const char *text = cJSON_IsString(part) ? part->valuestring
                                                : cJSON_GetStringValue(pp_json_member(part, "text"));
        if (!text || (*type && strcmp(type, "text") != 0))
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "message %d has a part that is not text%s%.40s; only text can be "
                                                    "trained on", message, *type ? ", but has the type " : "", type);
        else
            pp_buf_str(&all, text);
    }
    if (!code && (all.bad || !(*content = cJSON_CreateString(pp_buf_cstr(&all)))))
        code = pp_fail_nomem(err, "a message");
    pp_buf_free(&all);
    return code;
}

/* Only a message that calls tools may lack content. */
static enum pp_code check_content(const cJSON *m, int message, struct pp_error *err)
{
    const cJSON *content = pp_json_member(m, "content"), *calls = pp_json_member(m, "tool_calls");
    const bool nothing = !content || cJSON_IsNull(content);
    if (nothing && !cJSON_GetArraySize(calls))
        return pp_fail(err, PP_ERR_FORMAT, "message %d has no content", message);
    if (!nothing && !cJSON_IsString(content) && !cJSON_IsArray(content))
        return pp_fail(err, PP_ERR_FORMAT, "the content of message %d is neither a text nor a list of texts", message);
    return PP_OK;
}

/* Whether a message is an answer to learn: not if its "weight" is 0. */
static enum pp_code is_learnt(const cJSON *m, const char *role, int message, bool *learnt, struct pp_error *err)
{
    const cJSON *weight = pp_json_member(m, "weight");
    const bool number = cJSON_IsNumber(weight) && (weight->valuedouble == 0 || weight->valuedouble == 1);
    *learnt = strcmp(role, "assistant") == 0 && !(number && weight->valuedouble == 0);
    return !weight || cJSON_IsNull(weight) || number
               ? PP_OK
               : pp_fail(err, PP_ERR_FORMAT, "the weight of message %d is neither 0 nor 1", message);
}

static enum pp_code take_message(const struct reader *r, struct conversation *c, cJSON *m, struct pp_error *err)
{
    const cJSON *role = pp_json_member(m, "role");
    if (!cJSON_IsObject(m) || !cJSON_IsString(role))
        return pp_fail(err, PP_ERR_FORMAT, "message %d has no role", c->n + 1);
    const struct texts texts = {template_of(r, c), "a message holds", pp_role_is_foreign(role->valuestring)};
    enum pp_code code = refuse_control_in(r, &texts, m, err);
    if (!code)
        code = check_content(m, c->n + 1, err);
    if (!code)
        code = is_learnt(m, role->valuestring, c->n + 1, &c->answers[c->n], err);
    const cJSON *parts = pp_json_member(m, "content");
    cJSON *content = NULL;
    if (!code && cJSON_IsArray(parts))
        code = join_parts(parts, c->n + 1, &content, err);
    if (content && !cJSON_ReplaceItemInObjectCaseSensitive(m, "content", content)) {
        cJSON_Delete(content);
        code = pp_fail_nomem(err, "a message");
    }
    if (code)
        return code;
    c->messages[c->n] = cJSON_PrintUnformatted(m);
    if (!c->messages[c->n])
        return pp_fail_nomem(err, "a message");
    c->n_answers += is_answer(c, c->n);
    c->n++;
    return PP_OK;
}

static void forget(struct conversation *c)
{
    for (int i = 0; i < c->n; i++)
        cJSON_free(c->messages[i]);
    cJSON_free(c->tools);
    pp_free(c->messages);
    pp_free(c->answers);
}

/* Renders the first n messages with the template. */
static enum pp_code render(const struct reader *r, const struct conversation *c, int n, bool prompt,
                           struct pp_buf *out, struct pp_error *err)
{
    struct pp_buf json = {0};
    const struct pp_template *tmpl = template_of(r, c);
    for (int i = 0; i < n; i++)
        pp_buf_fmt(&json, "%c%s", i ? ',' : '[', c->messages[i]);
    pp_buf_str(&json, n ? "]" : "[]");
    struct pp_template_input in = {
        .messages_json = pp_buf_cstr(&json),
        .tools_json = c->tools,
        .bos_text = pp_buf_cstr(&r->bos),
        .eos_text = pp_buf_cstr(&r->eos),
        .add_generation_prompt = prompt,
        .now = r->opt->now,
    };
    pp_buf_clear(out);
    enum pp_code code = json.bad ? pp_fail_nomem(err, "a conversation") : pp_template_render(tmpl, &in, out, err);
    pp_buf_free(&json);
    return code || !out->bad ? code : pp_fail_nomem(err, "a conversation");
}

static bool begins_with(const struct pp_buf *text, const struct pp_buf *beginning)
{
    return text->len >= beginning->len && memcmp(pp_buf_cstr(text), pp_buf_cstr(beginning), beginning->len) == 0;
}

/* A rendered conversation up to an answer: without it, and with it. */
struct turn {
    struct pp_buf before, with;
};

static void turn_free(struct turn *t)
{
    pp_buf_free(&t->before);
    pp_buf_free(&t->with);
}

static enum pp_code render_turn(const struct reader *r, const struct conversation *c, int answer, struct turn *t,
                                struct pp_error *err)
{
    enum pp_code code = render(r, c, answer, true, &t->before, err);
    if (!code)
        code = render(r, c, answer + 1, false, &t->with, err);
    if (!code && !begins_with(&t->with, &t->before))
        code = pp_fail(err, PP_ERR_FORMAT,
                       "the chat template does not place the answer (message %d) directly after its prompt, so the "
                       "tokens to train on cannot be found; give another template with --chat-template-file",
                       answer + 1);
    return code;
}

/* Marks the answer of a turn in the tokens of a text that begins with the turn's text. */
static enum pp_code mark_answer(const struct reader *r, const struct turn *t, const struct ids *whole, uint8_t *learnt,
                                struct pp_error *err)
{
    struct ids before = {0}, with = {0};
    enum pp_code code = tokenize(r, pp_buf_cstr(&t->before), t->before.len, true, &before, err);
    if (!code)
        code = tokenize(r, pp_buf_cstr(&t->with), t->with.len, true, &with, err);
    size_t begin = common_prefix(&before, whole), end = common_prefix(&with, whole);
    for (size_t i = begin; i < end && !code; i++) {
        learnt[i] = 1;
        if (pp_tokenizer_is_end(r->tokenizer, whole->v[i]))
            break; /* templates often write a line break after it, which models do not */
    }
    pp_free(before.v);
    pp_free(with.v);
    return code;
}

/* Adds the text as an example in which the answers of some turns are learnt. */
static enum pp_code add_marked(struct reader *r, const struct pp_buf *text, const struct turn *turns, int n,
                               struct pp_error *err)
{
    struct ids ids;
    enum pp_code code = tokenize(r, pp_buf_cstr(text), text->len, true, &ids, err);
    if (code)
        return code;
    uint8_t *learnt = pp_calloc(ids.n + 1, 1);
    if (!learnt)
        code = pp_fail_nomem(err, "the tokens of an example");
    for (int i = 0; i < n && !code; i++)
        code = mark_answer(r, &turns[i], &ids, learnt, err);
    if (!code)
        code = pp_train_data_add(r->data, ids.v, learnt, ids.n, r->opt->max_tokens, err);
    pp_free(learnt);
    pp_free(ids.v);
    return code;
}

/* Makes one example with all answers if each turn's text is the beginning of the next; otherwise one for each. */
static enum pp_code add_turns(struct reader *r, const struct conversation *c, struct turn *turns, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    int n = 0;
    bool joined = true;
    for (int i = 0; i < c->n && !code; i++)
        if (is_answer(c, i)) {
            code = render_turn(r, c, i, &turns[n], err);
            joined = joined && (n == 0 || begins_with(&turns[n].with, &turns[n - 1].with));
            n++;
        }
    if (joined && !code)
        return add_marked(r, &turns[n - 1].with, turns, n, err);
    for (int i = 0; i < n && !code; i++)
        code = add_marked(r, &turns[i].with, &turns[i], 1, err);
    return code;
}

static bool any_weight(const cJSON *messages)
{
    const cJSON *m = messages->child;
    while (m && !pp_json_member(m, "weight"))
        m = m->next;
    return m != NULL;
}

static enum pp_code add_conversation(struct reader *r, const cJSON *line, const cJSON *messages, struct pp_error *err)
{
    struct conversation c = {0};
    const cJSON *tools = pp_json_member(line, "tools");
    int n = cJSON_GetArraySize(messages);
    if (!r->tmpl && !(r->tool_tmpl && cJSON_IsArray(tools)))
        return pp_fail(err, PP_ERR_USAGE, "the model has no chat template for a conversation; give one with "
                                          "--chat-template-file, or lines with \"text\"");
    r->data->info.n_conversations++;
    if (tools && !cJSON_IsArray(tools) && !cJSON_IsNull(tools))
        return pp_fail(err, PP_ERR_FORMAT, "\"tools\" is not an array");
    if (n > MAX_MESSAGES)
        return pp_fail(err, PP_ERR_FORMAT, "a conversation may have at most %d messages", MAX_MESSAGES);
    c.messages = pp_calloc((size_t)n + 1, sizeof *c.messages);
    c.answers = pp_calloc((size_t)n + 1, sizeof *c.answers);
    enum pp_code code = c.messages && c.answers ? PP_OK : pp_fail_nomem(err, "a conversation");
    if (!code && cJSON_IsArray(tools) && !(c.tools = cJSON_PrintUnformatted(tools)))
        code = pp_fail_nomem(err, "a conversation");
    const struct texts texts = {template_of(r, &c), "the description of the tools holds", false};
    if (!code && c.tools)
        code = refuse_control_in(r, &texts, tools, err);
    for (cJSON *m = messages->child; m && !code; m = m->next)
        code = take_message(r, &c, m, err);
    if (!code && !c.n_answers)
        code = pp_fail(err, PP_ERR_FORMAT, "no message is from the assistant%s, so there is no answer to train on",
                       any_weight(messages) ? " with a weight other than 0" : "");
    struct turn *turns = code ? NULL : pp_calloc((size_t)c.n_answers, sizeof *turns);
    if (!code && !turns)
        code = pp_fail_nomem(err, "a conversation");
    if (!code)
        code = add_turns(r, &c, turns, err);
    for (int i = 0; turns && i < c.n_answers; i++)
        turn_free(&turns[i]);
    pp_free(turns);
    forget(&c);
    return code;
}

/* --- lines ---------------------------------------------------------------------------------------------------- */

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", s[i]) || !s[i])
            return false;
    return true;
}

static enum pp_code add_line(struct reader *r, const char *line, size_t n, struct pp_error *err)
{
    const char *end = NULL;
    cJSON *object = NULL;
    enum pp_code code = memchr(line, 0, n) ? PP_OK : pp_json_parse(line, n, "the object", &end, &object, err);
    if (code)
        return code;
    const cJSON *messages = pp_json_member(object, "messages");
    const cJSON *text = pp_json_member(object, "text");
    if (!cJSON_IsObject(object) || !is_blank(end, n - (size_t)(end - line)))
        code = pp_fail(err, PP_ERR_FORMAT, "this line is not a JSON object");
    else if (!pp_utf8_valid(line, n))
        code = pp_fail(err, PP_ERR_FORMAT, "this is not UTF-8");
    else if (pp_json_has_nul(line, n))
        code = pp_fail(err, PP_ERR_FORMAT, PP_JSON_NUL_TEXT);
    else if (cJSON_IsArray(messages))
        code = add_conversation(r, object, messages, err);
    else if (cJSON_IsString(text))
        code = add_text(r, text->valuestring, err);
    else
        code = pp_fail(err, PP_ERR_FORMAT, "the object has neither \"messages\" (an array) nor \"text\" (a string)");
    cJSON_Delete(object);
    return code;
}

static enum pp_code add_lines(struct reader *r, const char *text, size_t n, const char *name, struct pp_error *err)
{
    size_t at = pp_utf8_mark(text, n), number = 1;
    for (; at < n; number++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;
        if (!is_blank(text + at, len)) {
            enum pp_code code = add_line(r, text + at, len, err);
            if (code) {
                pp_fail_prefix(err, "%s, line %zu", name, number);
                return code;
            }
            r->data->info.n_lines++;
        }
        at += len + 1;
    }
    return PP_OK;
}

/* --- objects that span lines, perhaps in a list ---------------------------------------------------------------- */

static size_t skip_blanks(const char *text, size_t n, size_t at)
{
    while (at < n && (text[at] == '\n' || is_blank(text + at, 1)))
        at++;
    return at;
}

/* Where the object or list that begins here ends; n + 1: it does not. */
static size_t value_end(const char *text, size_t n, size_t at)
{
    bool quoted = false;
    for (int64_t depth = 0; at < n; at++) {
        const char c = text[at];
        if (quoted && c == '\\')
            at++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '{' || c == '['))
            depth++;
        else if (!quoted && (c == '}' || c == ']') && --depth <= 0)
            return at + 1;
    }
    return n + 1;
}

/* Whether the text is a list, or begins with an object that its first line does not end. */
static bool spans_lines(const char *text, size_t n)
{
    const size_t at = skip_blanks(text, n, 0);
    const char *end = at < n ? memchr(text + at, '\n', n - at) : NULL;
    const size_t line = end ? (size_t)(end - text) : n;
    return at < n && (text[at] == '[' ||
                      (text[at] == '{' && value_end(text, line, at) > line && value_end(text, n, at) <= n));
}

static enum pp_code fail_at(const char *text, size_t at, const char *name, struct pp_error *err)
{
    size_t number = 1;
    for (size_t i = 0; i < at; i++)
        number += text[i] == '\n';
    pp_fail_prefix(err, "%s, line %zu", name, number);
    return err->code;
}

static enum pp_code add_objects(struct reader *r, const char *text, size_t n, const char *name, struct pp_error *err)
{
    size_t at = skip_blanks(text, n, 0), from = at;
    const bool list = text[at] == '[';
    bool open = list;
    for (at = skip_blanks(text, n, at + list); at < n; at = skip_blanks(text, n, at)) {
        if (open && text[at] == ']') {
            open = false;
            at++;
            continue;
        }
        from = at;
        if ((list && !open) || text[at] != '{') {
            pp_fail(err, PP_ERR_FORMAT, list && !open ? "something follows the list" : "this is not a JSON object");
            return fail_at(text, from, name, err);
        }
        at = value_end(text, n, at);
        at = at < n ? at : n;
        if (add_line(r, text + from, at - from, err) != PP_OK)
            return fail_at(text, from, name, err);
        r->data->info.n_lines++;
        at = skip_blanks(text, n, at);
        at += list && at < n && text[at] == ',';
    }
    if (!open)
        return PP_OK;
    pp_fail(err, PP_ERR_FORMAT, "the list that begins here has no end");
    return fail_at(text, skip_blanks(text, n, 0), name, err);
}

static enum pp_code prepare(struct reader *r, const struct pp_model *m, struct pp_error *err)
{
    const char *source = r->opt->chat_template ? r->opt->chat_template : pp_model_info(m)->chat_template;
    r->tokenizer = pp_model_tokenizer(m);
    r->n_vocab = pp_model_info(m)->n_vocab;
    if (!r->tokenizer)
        return pp_fail(err, PP_ERR_USAGE, "%s has no vocabulary, so it cannot read examples", pp_model_info(m)->path);
    if (r->opt->max_tokens < 2)
        return pp_fail(err, PP_ERR_USAGE, "examples of %lld tokens are too short to train on; allow at least 2",
                       (long long)r->opt->max_tokens);
    if (pp_tokenizer_bos(r->tokenizer) >= 0)
        pp_token_text(r->tokenizer, pp_tokenizer_bos(r->tokenizer), true, &r->bos);
    if (pp_tokenizer_eos(r->tokenizer) >= 0)
        pp_token_text(r->tokenizer, pp_tokenizer_eos(r->tokenizer), true, &r->eos);
    if (r->bos.bad || r->eos.bad || !(r->data = pp_calloc(1, sizeof *r->data)))
        return pp_fail_nomem(err, "the examples");
    const char *tools = r->opt->chat_template ? NULL : pp_model_info(m)->tool_template;
    enum pp_code code = source ? pp_template_parse(source, strlen(source), "the chat template", &r->tmpl, err) : PP_OK;
    if (!code && tools && tools != source)
        code = pp_template_parse(tools, strlen(tools), "the chat template for tools", &r->tool_tmpl, err);
    return code;
}

enum pp_code pp_train_data_parse(const struct pp_model *m, const char *text, size_t n, const char *name,
                                 const struct pp_train_data_options *opt, struct pp_train_data **out,
                                 struct pp_error *err)
{
    struct reader r = {.opt = opt};
    *out = NULL;
    enum pp_code code = prepare(&r, m, err);
    const size_t mark = pp_utf8_mark(text, n);
    if (!code)
        code = spans_lines(text + mark, n - mark) ? add_objects(&r, text + mark, n - mark, name, err)
                                                  : add_lines(&r, text, n, name, err);
    if (!code && !r.data->info.n_lines)
        code = pp_fail(err, PP_ERR_USAGE, "%s contains no examples; write one JSON object per line", name);
    if (!code && !r.data->n)
        code = pp_fail(err, PP_ERR_USAGE,
                       "%s has nothing to train on: no answer begins within the first %lld tokens of its example; "
                       "give a larger --max-length",
                       name, (long long)opt->max_tokens);
    pp_template_free(r.tmpl);
    pp_template_free(r.tool_tmpl);
    pp_buf_free(&r.bos);
    pp_buf_free(&r.eos);
    if (code) {
        pp_train_data_free(r.data);
        return code;
    }
    *out = r.data;
    return PP_OK;
}

enum pp_code pp_train_data_read(const struct pp_model *m, const char *path, const struct pp_train_data_options *opt,
                                struct pp_train_data **out, struct pp_error *err)
{
    char *text;
    size_t n;
    *out = NULL;
    enum pp_code code = pp_read_file(path, MAX_FILE, &text, &n, err);
    if (code)
        return code == PP_ERR_NOT_FOUND ? pp_fail(err, PP_ERR_IO, "cannot open %s: there is no such file", path) : code;
    code = pp_train_data_parse(m, text, n, path, opt, out, err);
    pp_free(text);
    return code;
}
