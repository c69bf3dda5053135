/* branch.c - the messages on the screen, in memory. */
#include "src/branch.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "src/adapter_mix.h"
#include "src/overflow.h"

void pp_branch_touch(struct pp_branch *b, size_t i)
{
    struct pp_branch_item *it = &b->items[i];
    it->msg.text = pp_buf_cstr(&it->text);
    it->msg.len = it->text.len;
    it->msg.reasoning = pp_buf_cstr(&it->reasoning);
    it->msg.reasoning_len = it->reasoning.len;
    it->msg.drafted = it->drafted.runs;
    it->msg.n_drafted = pp_draft_runs_any(&it->drafted) ? it->drafted.n : 0;
    it->msg.revision = ++b->revision;
}

struct pp_branch_item *pp_branch_append(struct pp_branch *b, enum pp_role role, const char *text, size_t len)
{
    if (pp_grow(&b->items, &b->cap, b->n + 1, sizeof *b->items) != 0)
        return NULL;
    struct pp_branch_item *it = &b->items[b->n];
    memset(it, 0, sizeof *it);
    it->msg.role = role;
    it->msg.n_siblings = 1;
    it->msg.acceptance = -1;
    pp_buf_add(&it->text, text, len);
    if (it->text.bad) {
        pp_buf_free(&it->text);
        return NULL;
    }
    pp_branch_touch(b, b->n++);
    return it;
}

static bool grow(struct pp_branch *b, size_t i, struct pp_buf *t, const char *text, size_t len)
{
    pp_buf_add(t, text, len);
    bool ok = !t->bad;
    t->bad = false; /* a failed append leaves the buffer intact */
    pp_branch_touch(b, i);
    return ok;
}

bool pp_branch_grow(struct pp_branch *b, size_t i, const char *text, size_t len)
{
    return grow(b, i, &b->items[i].text, text, len);
}

bool pp_branch_think(struct pp_branch *b, size_t i, const char *text, size_t len)
{
    return grow(b, i, &b->items[i].reasoning, text, len);
}

void pp_branch_set_state(struct pp_branch *b, size_t i, enum pp_message_state state)
{
    b->items[i].msg.state = state;
    pp_branch_touch(b, i);
}

void pp_branch_truncate(struct pp_branch *b, size_t n)
{
    while (b->n > n) {
        pp_buf_free(&b->items[--b->n].text);
        pp_buf_free(&b->items[b->n].reasoning);
        pp_draft_runs_free(&b->items[b->n].drafted);
        pp_buf_free(&b->items[b->n].note);
    }
}

void pp_branch_free(struct pp_branch *b)
{
    pp_branch_truncate(b, 0);
    pp_free(b->items);
    b->items = NULL;
    b->cap = 0;
}

void pp_branch_set_adapters(struct pp_branch_item *it, const char *json)
{
    struct pp_adapter_mix set;
    if (!json || strcmp(json, "[]") == 0)
        json = "";
    pp_adapter_mix_read(json, &set);
    pp_adapter_mix_label(&set, it->msg.adapters, sizeof it->msg.adapters);
}

/* Reads the statistics that the worker stored with an answer: its end position in the context, speed and acceptance
 * (0 and -1 if not stored), and which bytes were drafted. */
static void read_stats(const char *json, struct pp_branch_item *it)
{
    struct pp_chat_message *m = &it->msg;
    cJSON *o = json && *json ? cJSON_Parse(json) : NULL;
    const cJSON *tps = pp_json_member(o, "decode_tps");
    const cJSON *given = pp_json_member(o, "prompt_tokens");
    const cJSON *written = pp_json_member(o, "decode_tokens");
    const cJSON *drafted = pp_json_member(o, "draft_tokens");
    const cJSON *accepted = pp_json_member(o, "draft_accepted");
    if (cJSON_IsNumber(tps) && tps->valuedouble >= 0 && tps->valuedouble < 1e9)
        m->tokens_per_s = (float)tps->valuedouble;
    if (cJSON_IsNumber(given) && cJSON_IsNumber(written) && given->valuedouble > 0 && given->valuedouble < 1e12 &&
        written->valuedouble >= 0 && written->valuedouble < 1e12)
        m->ctx_used = (int64_t)(given->valuedouble + written->valuedouble);
    if (cJSON_IsNumber(drafted) && cJSON_IsNumber(accepted) && drafted->valuedouble >= 1 && accepted->valuedouble >= 0)
        m->acceptance = fminf((float)(accepted->valuedouble / drafted->valuedouble), 1.0f);
    const cJSON *finish = pp_json_member(o, "finish");
    m->too_long = cJSON_IsString(finish) && strcmp(finish->valuestring, PP_OVERFLOW_TOO_LONG) == 0;
    m->ended = cJSON_IsString(finish) && strcmp(finish->valuestring, "end") == 0 && m->n_tokens > 0;
    const cJSON *speedup = pp_json_member(o, "speedup");
    if (cJSON_IsNumber(speedup) && cJSON_IsNumber(written) && cJSON_IsNumber(accepted))
        m->speedup = pp_speedup(speedup->valuedouble, written->valuedouble, accepted->valuedouble);
    const cJSON *tokens = pp_json_member(o, "reasoning_tokens");
    const cJSON *ms = pp_json_member(o, "reasoning_ms");
    if (cJSON_IsNumber(tokens) && tokens->valuedouble > 0 && tokens->valuedouble < 1e12)
        m->reasoning_tokens = (int64_t)tokens->valuedouble;
    if (cJSON_IsNumber(ms) && ms->valuedouble > 0 && ms->valuedouble < 1e12)
        m->reasoning_s = (float)(ms->valuedouble / 1000);
    pp_draft_runs_read(&it->drafted, pp_json_member(o, "guessed"), it->text.len);
    cJSON_Delete(o);
}

bool pp_branch_assign(struct pp_branch *b, const struct pp_message *list, size_t n)
{
    struct pp_branch fresh = {.revision = b->revision};
    for (size_t i = 0; i < n; i++) {
        const struct pp_message *m = &list[i];
        struct pp_branch_item *it = pp_branch_append(&fresh, m->role, m->content ? m->content : "", m->content_len);
        if (!it || (m->reasoning_len && !pp_branch_think(&fresh, i, m->reasoning, m->reasoning_len))) {
            pp_branch_free(&fresh);
            return false;
        }
        it->msg.id = m->id;
        it->msg.state = m->state;
        it->msg.sibling = m->sibling;
        it->msg.n_siblings = m->n_siblings > 0 ? m->n_siblings : 1;
        it->msg.n_tokens = m->n_tokens;
        read_stats(m->stats, it);
        pp_branch_touch(&fresh, i);
        pp_branch_set_adapters(it, m->adapters);
        if (m->context_from && !pp_branch_set_context(&fresh, i, m->context_from, m->context_note)) {
            pp_branch_free(&fresh);
            return false;
        }
    }
    pp_branch_free(b);
    *b = fresh;
    return true;
}

size_t pp_branch_place(const struct pp_branch *b, int64_t message)
{
    size_t i = 0;
    while (i < b->n && b->items[i].msg.id != message)
        i++;
    return i;
}

/* --- the beginning of the context -------------------------------------------------------------------------- */

size_t pp_branch_context(const struct pp_branch *b, size_t n, const char **note)
{
    *note = "";
    for (size_t i = n; i-- > 0;) {
        const struct pp_branch_item *it = &b->items[i];
        if (!it->msg.context_from)
            continue;
        const size_t from = pp_branch_place(b, it->msg.context_from);
        if (from <= i) {
            *note = pp_buf_cstr(&it->note);
            return from;
        }
    }
    return 0;
}

bool pp_branch_set_context(struct pp_branch *b, size_t i, int64_t from, const char *note)
{
    struct pp_branch_item *it = &b->items[i];
    struct pp_buf copy = {0};
    pp_buf_str(&copy, note ? note : "");
    if (copy.bad) {
        pp_buf_free(&copy);
        return false;
    }
    pp_buf_free(&it->note);
    it->note = copy;
    it->msg.context_from = from;
    return true;
}

char *pp_branch_system(const char *system, const char *note)
{
    struct pp_buf b = {0};
    pp_buf_str(&b, system ? system : "");
    if (note && *note)
        pp_buf_fmt(&b, "%sWhat was said before, in short: %s", b.len ? "\n\n" : "", note);
    char *text = b.bad ? NULL : pp_strdup(pp_buf_cstr(&b));
    pp_buf_free(&b);
    return text;
}

/* --- JSON for the model ----------------------------------------------------------------------------------- */

static void add_clean(struct pp_buf *out, const struct pp_buf *text)
{
    size_t start = out->len;
    pp_buf_add(out, text->data, text->len);
    for (size_t i = start; !out->bad && i < out->len; i++)
        if (!out->data[i])
            out->data[i] = ' '; /* a NUL would end the JSON string early */
}

/* reasoning: "" for none. */
static bool add_answer(cJSON *array, const char *role, const char *content, const char *reasoning)
{
    cJSON *m = cJSON_CreateObject();
    bool ok = m && cJSON_AddStringToObject(m, "role", role) && cJSON_AddStringToObject(m, "content", content) &&
              (!*reasoning || cJSON_AddStringToObject(m, "reasoning_content", reasoning));
    if (ok && cJSON_AddItemToArray(array, m))
        return true;
    cJSON_Delete(m);
    return false;
}

static bool add_message(cJSON *array, const char *role, const char *content)
{
    return add_answer(array, role, content, "");
}

/* Appends a message to the text of its turn. */
static void add_to_turn(struct pp_buf *turn, const struct pp_buf *text)
{
    if (turn->len && text->len)
        pp_buf_str(turn, "\n\n");
    add_clean(turn, text);
}

static bool add_branch(cJSON *array, const struct pp_branch *b, size_t from, size_t n, int64_t *ids, size_t *n_ids)
{
    struct pp_buf turn = {0}, reasoning = {0};
    bool ok = true;
    for (size_t i = from; ok && i < n;) {
        enum pp_role role = b->items[i].msg.role;
        int64_t id = b->items[i].msg.id;
        pp_buf_clear(&turn);
        pp_buf_clear(&reasoning);
        bool left_out = false;
        /* A turn consists of consecutive messages of one role; empty answers between them are skipped. */
        for (; i < n &&
               (b->items[i].msg.role == role || (b->items[i].msg.role == PP_ROLE_ASSISTANT && !b->items[i].text.len));
             i++) {
            if (role == PP_ROLE_USER && b->items[i].msg.role == PP_ROLE_ASSISTANT && b->items[i].msg.too_long) {
                pp_buf_clear(&turn); /* the question so far was too long to be answered */
                pp_buf_clear(&reasoning);
                left_out = true;
            }
            if (!b->items[i].text.len)
                continue;
            if (left_out && !turn.len)
                id = b->items[i].msg.id;
            add_to_turn(&turn, &b->items[i].text);
            add_to_turn(&reasoning, &b->items[i].reasoning);
        }
        if (!turn.len && (role == PP_ROLE_ASSISTANT || left_out))
            continue;
        ok = !turn.bad && !reasoning.bad &&
             add_answer(array, pp_role_name(role), pp_buf_cstr(&turn), pp_buf_cstr(&reasoning));
        if (ids)
            ids[(*n_ids)++] = id;
    }
    pp_buf_free(&turn);
    pp_buf_free(&reasoning);
    return ok;
}

char *pp_branch_json(const struct pp_branch *b, size_t n, const char *system)
{
    return pp_branch_json_from(b, 0, n, system, NULL, NULL);
}

char *pp_branch_json_from(const struct pp_branch *b, size_t from, size_t n, const char *system, int64_t *ids,
                          size_t *n_ids)
{
    if (ids)
        *n_ids = 0;
    cJSON *array = cJSON_CreateArray();
    char *json = NULL;
    if (array && (!system || !*system || add_message(array, pp_role_name(PP_ROLE_SYSTEM), system)) &&
        add_branch(array, b, from, n, ids, n_ids))
        json = cJSON_PrintUnformatted(array);
    cJSON_Delete(array);
    char *copy = json ? pp_strdup(json) : NULL;
    cJSON_free(json);
    return copy;
}

char *pp_messages_ask(const char *messages, const char *text)
{
    cJSON *array = messages ? cJSON_Parse(messages) : NULL;
    bool ok = cJSON_IsArray(array) && add_message(array, pp_role_name(PP_ROLE_USER), text);
    char *json = ok ? cJSON_PrintUnformatted(array) : NULL;
    char *copy = json ? pp_strdup(json) : NULL;
    cJSON_free(json);
    cJSON_Delete(array);
    return copy;
}
