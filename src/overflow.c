/* overflow.c - see overflow.h. */
#include "src/overflow.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "src/branch.h"
#include "src/figures.h"

static const char instruction[] =
    "Summarise our conversation so far in a few sentences, for somebody who will go on with it: names, facts, what was "
    "decided and what is still open. Write nothing but the summary.";

static const char *const names[] = {"ask", "stop", "shift", "summarise", "slide"};

int pp_overflow_by_name(const char *name)
{
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return strcmp(name, "summarize") == 0 ? PP_OVERFLOW_SUMMARISE : -1;
}

const char *pp_overflow_name(enum pp_overflow o)
{
    return names[o];
}

bool pp_overflow_drops(enum pp_overflow o)
{
    return o == PP_OVERFLOW_SHIFT || o == PP_OVERFLOW_SLIDE;
}

char *pp_overflow_asking(const char *messages)
{
    return messages ? pp_messages_ask(messages, instruction) : NULL;
}

char *pp_overflow_note(const char *summary)
{
    static const char blanks[] = " \t\r\n";
    const char *from = summary + strspn(summary, blanks);
    char *note = pp_strdup(from);
    for (size_t n = note ? strlen(note) : 0; n && strchr(blanks, note[n - 1]);)
        note[--n] = 0;
    return note;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t pp_overflow_answer_room(int64_t n_ctx)
{
    return least(n_ctx / 4, 1024);
}

int64_t pp_overflow_note_room(int64_t n_ctx)
{
    return least(n_ctx / 8, 256);
}

/* --- turns ------------------------------------------------------------------------------------------------------- */

static bool has_role(const cJSON *message, const char *role)
{
    const cJSON *r = pp_json_member(message, "role");
    return cJSON_IsString(r) && strcmp(r->valuestring, role) == 0;
}

struct turns {
    const struct pp_prompt_input *in;
    cJSON *messages;
    const cJSON *system;  /* or NULL */
    size_t *starts;       /* [n] for each turn, the index of its first message, not counting the system prompt */
    size_t n;
};

static enum pp_code find_turns(struct turns *t, struct pp_error *err)
{
    size_t at = 0;
    t->messages = cJSON_Parse(t->in->messages_json);
    if (!cJSON_IsArray(t->messages))
        return pp_fail(err, PP_ERR_FORMAT, "the messages are not a JSON array");
    t->system = has_role(t->messages->child, "system") ? t->messages->child : NULL;
    t->starts = pp_calloc((size_t)cJSON_GetArraySize(t->messages) + 1, sizeof *t->starts);
    if (!t->starts)
        return pp_fail_nomem(err, "the prompt");
    for (const cJSON *m = t->system ? t->system->next : t->messages->child; m; m = m->next, at++)
        if (at == 0 || has_role(m, "user"))
            t->starts[t->n++] = at;
    return PP_OK;
}

/* The messages as JSON, without the first `dropped` ones after the system prompt; NULL: out of memory. */
static char *rest(const struct turns *t, size_t dropped)
{
    cJSON *array = cJSON_CreateArray();
    bool ok = array && (!t->system || cJSON_AddItemToArray(array, cJSON_Duplicate(t->system, true)));
    const cJSON *m = t->system ? t->system->next : t->messages->child;
    for (; ok && m; m = m->next) {
        if (dropped)
            dropped--;
        else
            ok = cJSON_AddItemToArray(array, cJSON_Duplicate(m, true));
    }
    char *json = ok ? cJSON_PrintUnformatted(array) : NULL;
    cJSON_Delete(array);
    return json;
}

static enum pp_code prompt_from(const struct turns *t, size_t turn, int32_t **ids, size_t *n, struct pp_error *err)
{
    struct pp_prompt_input in = *t->in;
    char *json = rest(t, t->starts[turn]);
    if (!json)
        return pp_fail_nomem(err, "the prompt");
    in.messages_json = json;
    enum pp_code code = pp_prompt_tokens(&in, ids, n, err);
    cJSON_free(json);
    return code;
}

/* The first turn from which on the prompt has at most `limit` tokens; the last turn if there is none. */
static enum pp_code choose_turn(const struct turns *t, int64_t limit, size_t *turn, struct pp_error *err)
{
    size_t low = 1, high = t->n - 1; /* binary search: the prompt never grows when messages are dropped */
    while (low < high) {
        int32_t *ids;
        size_t n, middle = (low + high) / 2;
        enum pp_code code = prompt_from(t, middle, &ids, &n, err);
        if (code)
            return code;
        pp_free(ids);
        if ((int64_t)n <= limit)
            high = middle;
        else
            low = middle + 1;
    }
    *turn = low;
    return PP_OK;
}

/* --- the prompt -------------------------------------------------------------------------------------------------- */

struct pp_larger pp_overflow_larger(int64_t n_ctx, int64_t n_ctx_train)
{
    struct pp_larger l = {""};
    if (n_ctx < n_ctx_train)
        snprintf(l.text, sizeof l.text, "a larger --ctx-size, up to %s", pp_count(n_ctx_train).text);
    return l;
}

/* n: tokens of the conversation or, if nothing can be dropped, of its last turn. */
static enum pp_code too_long(size_t n, int64_t n_ctx, int64_t n_ctx_train, size_t dropped, struct pp_error *err)
{
    const struct pp_figure count = pp_count((int64_t)n), context = pp_count(n_ctx);
    const struct pp_larger larger = pp_overflow_larger(n_ctx, n_ctx_train);
    const char *or_give = larger.text[0] ? ", or give " : "";
    if (dropped)
        return pp_fail(err, PP_ERR_CONTEXT,
                       "the conversation has %s tokens, but the context holds %s: shift drops the oldest turns, "
                       "summarise summarises them (/overflow in the chat, --overflow in run); or start a new one%s%s",
                       count.text, context.text, or_give, larger.text);
    return pp_fail(err, PP_ERR_CONTEXT,
                   "the last message and what must precede it have %s tokens, but the context holds %s%s: shorten "
                   "it%s%s",
                   count.text, context.text, larger.text[0] ? "" : ", the most that the model was trained for", or_give,
                   larger.text);
}

/* Replaces *ids, a prompt that is too long, by one without the oldest turns. If even the last turn is too long,
 * *n_shortest is its number of tokens. */
static enum pp_code shorten(const struct pp_prompt_input *in, int64_t n_ctx, enum pp_overflow how, int32_t **ids,
                            size_t *n, size_t *dropped, size_t *n_shortest, struct pp_error *err)
{
    int64_t room = pp_overflow_answer_room(n_ctx) + (how == PP_OVERFLOW_SUMMARISE ? pp_overflow_note_room(n_ctx) : 0);
    struct turns t = {.in = in};
    size_t turn = 0, n_shorter = 0;
    int32_t *shorter = NULL;
    enum pp_code code = find_turns(&t, err);
    if (!code && t.n > 1)
        code = choose_turn(&t, n_ctx - room, &turn, err);
    if (!code && turn)
        code = prompt_from(&t, turn, &shorter, &n_shorter, err);
    if (!code && turn && (int64_t)n_shorter < n_ctx) {
        *dropped = t.starts[turn];
        pp_free(*ids);
        *ids = shorter;
        *n = n_shorter;
        shorter = NULL;
    } else if (!code && turn) {
        *n_shortest = n_shorter;
    }
    pp_free(shorter);
    pp_free(t.starts);
    cJSON_Delete(t.messages);
    return code;
}

enum pp_code pp_overflow_prompt(const struct pp_prompt_input *in, int64_t n_ctx, int64_t n_ctx_train,
                                enum pp_overflow how, int32_t **ids, size_t *n, size_t *dropped, struct pp_error *err)
{
    bool early = pp_overflow_drops(how) || how == PP_OVERFLOW_SUMMARISE;
    int64_t room = early ? pp_overflow_note_room(n_ctx) : 1;
    *dropped = 0;
    enum pp_code code = pp_prompt_tokens(in, ids, n, err);
    if (code || (int64_t)*n + room <= n_ctx)
        return code;
    size_t n_shortest = *n;
    code = shorten(in, n_ctx, how, ids, n, dropped, &n_shortest, err);
    if (!code && (*dropped ? pp_overflow_drops(how) : (int64_t)*n < n_ctx))
        return PP_OK; /* shortened; or nothing can be dropped, but there is a little room left */
    if (!code)
        code = too_long(n_shortest, n_ctx, n_ctx_train, *dropped, err);
    pp_free(*ids);
    *ids = NULL;
    return code;
}
