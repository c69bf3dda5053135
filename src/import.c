#include "src/import.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "src/json_numbers.h"
#include "src/title.h"

void pp_import_free(struct pp_import *im)
{
    for (size_t i = 0; i < im->n; i++)
        pp_conversation_clear(&im->list[i]);
    pp_free(im->list);
    *im = (struct pp_import){0};
}

/* --- members of objects ------------------------------------------------------------------------------------------ */

static const char *text_of(const cJSON *o, const char *name)
{
    const cJSON *v = pp_json_member(o, name);
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

/* An integer of at least 1; otherwise 0. */
static int64_t number_of(const cJSON *o, const char *name)
{
    const cJSON *v = pp_json_member(o, name);
    return cJSON_IsNumber(v) && v->valuedouble >= 1 && v->valuedouble < 1e15 ? (int64_t)v->valuedouble : 0;
}

/* A time in seconds since the epoch, under one of the usual names. Other programs may also write milliseconds. 0:
 * there is none. */
static int64_t time_of(const cJSON *o, const char *const names[3], bool ours)
{
    for (int i = 0; i < 3; i++) {
        const int64_t t = number_of(o, names[i]);
        if (t)
            return t > 100000000000 && !ours ? t / 1000 : t;
    }
    return 0;
}

/* The milliseconds of that time. */
static int part_of(const cJSON *o, const char *const names[3], bool ours)
{
    for (int i = 0; i < 3; i++) {
        const int64_t t = number_of(o, names[i]);
        if (t > 100000000000 && !ours)
            return (int)(t % 1000);
        if (t)
            return (int)((pp_json_member(o, names[i])->valuedouble - (double)t) * 1000 + 0.5) % 1000;
    }
    return 0;
}

/* An object or array as text, or NULL. To be called once, as it changes the value. cJSON_free. */
static char *stored_json(const cJSON *o, const char *name)
{
    cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    return (cJSON_IsObject(v) || cJSON_IsArray(v)) && pp_json_exact(v) ? cJSON_PrintUnformatted(v) : NULL;
}

/* --- building a conversation ------------------------------------------------------------------------------------- */

/* A conversation that is being read. */
struct making {
    struct pp_conversation c;
    size_t cap;
    struct pp_buf system;   /* the system prompt so far */
    struct pp_import *im;
    bool ours;              /* it was exported by pippin */
    enum pp_code code;
    struct pp_error *err;
};

static bool copy(struct making *k, char **to, const char *text)
{
    char *fresh = pp_strdup(text ? text : "");
    if (!fresh) {
        k->code = pp_fail_nomem(k->err, "the conversations");
        return false;
    }
    pp_free(*to);
    *to = fresh;
    return true;
}

static void copy_stored_json(struct making *k, char **to, const cJSON *o, const char *name)
{
    char *json = stored_json(o, name);
    copy(k, to, json);
    cJSON_free(json);
}

static int role_of(const cJSON *o)
{
    static const struct {
        const char *name;
        enum pp_role role;
    } roles[] = {
        {"user", PP_ROLE_USER},           {"human", PP_ROLE_USER},   {"assistant", PP_ROLE_ASSISTANT},
        {"gpt", PP_ROLE_ASSISTANT},       {"model", PP_ROLE_ASSISTANT}, {"system", PP_ROLE_SYSTEM},
        {"developer", PP_ROLE_SYSTEM},
    };
    const cJSON *author = pp_json_member(o, "author"); /* as in ChatGPT's exports */
    const char *name = text_of(o, "role");
    name = name ? name : text_of(o, "from");
    name = name ? name : text_of(o, "sender");
    name = name ? name : text_of(author, "role");
    for (size_t i = 0; name && i < sizeof roles / sizeof *roles; i++)
        if (pp_casecmp(name, roles[i].name) == 0)
            return (int)roles[i].role;
    return -1;
}

/* Adds text: a string, or a list of parts of which some are text, or an object with such a list. */
static void add_content(struct making *k, struct pp_buf *b, const cJSON *v)
{
    const cJSON *part, *parts = cJSON_IsObject(v) ? pp_json_member(v, "parts") : v;
    if (cJSON_IsString(v)) {
        pp_buf_str(b, v->valuestring);
        return;
    }
    if (cJSON_IsObject(v) && text_of(v, "text"))
        pp_buf_str(b, text_of(v, "text"));
    if (!cJSON_IsArray(parts))
        return;
    cJSON_ArrayForEach(part, parts)
    {
        const char *text = cJSON_IsString(part) ? part->valuestring : text_of(part, "text");
        if (text && *text)
            pp_buf_fmt(b, "%s%s", b->len ? "\n\n" : "", text);
        else
            k->im->no_text += !text && !cJSON_IsNull(part);
    }
}

static void add_first(struct making *k, struct pp_buf *b, const cJSON *o, const char *const *names)
{
    for (; *names && !b->len; names++)
        add_content(k, b, pp_json_member(o, *names));
}

static char *take(struct making *k, struct pp_buf *b, size_t *len)
{
    char *text = b->bad ? NULL : pp_strdup(pp_buf_cstr(b));
    *len = b->len;
    if (!text)
        k->code = pp_fail_nomem(k->err, "the conversations");
    pp_buf_free(b);
    return text;
}

/* Adds the data that pippin itself stores with an answer. */
static void add_notes(struct making *k, struct pp_message *m, const cJSON *o)
{
    copy(k, &m->model, text_of(o, "model"));
    if (!k->ours)
        return;
    copy_stored_json(k, &m->adapters, o, "adapters");
    copy_stored_json(k, &m->params, o, "params");
    copy_stored_json(k, &m->stats, o, "stats");
    copy(k, &m->context_note, text_of(o, "context_note"));
    m->n_tokens = number_of(o, "tokens");
    m->state = pp_message_state_by_name(text_of(o, "state"));
}

/* Appends to the system prompt. */
static void add_system(struct making *k, const struct pp_buf *text)
{
    if (k->system.len && text->len)
        pp_buf_str(&k->system, "\n\n");
    pp_buf_add(&k->system, text->data, text->len);
    if (k->system.bad || text->bad)
        k->code = pp_fail_nomem(k->err, "the conversations");
}

/* Adds a message as a child of the one at place `parent`, and returns its own place. Other objects are left out, and
 * the result is `parent`. A system message at the beginning becomes the conversation's system prompt. */
static int64_t add_message(struct making *k, const cJSON *o, int64_t parent)
{
    static const char *const contents[] = {"content", "value", "text", NULL};
    static const char *const reasonings[] = {"reasoning_content", "reasoning", "thinking", NULL};
    static const char *const times[3] = {"created", "create_time", "timestamp"};
    struct pp_buf content = {0}, reasoning = {0};
    const int role = role_of(o);
    add_first(k, &content, o, contents);
    add_first(k, &reasoning, o, reasonings);
    const bool kept = role >= 0 && (content.len || reasoning.len || k->ours);
    if (content.bad || reasoning.bad) {
        k->code = pp_fail_nomem(k->err, "the conversations");
    } else if (role == PP_ROLE_SYSTEM && !parent && !k->c.n && !number_of(o, "id")) {
        add_system(k, &content);
    } else if (!kept) {
        k->im->left_out++;
    } else if (pp_grow(&k->c.messages, &k->cap, k->c.n + 1, sizeof *k->c.messages) != 0) {
        k->code = pp_fail_nomem(k->err, "the conversations");
    } else {
        struct pp_message *m = &k->c.messages[k->c.n++];
        *m = (struct pp_message){.role = (enum pp_role)role, .parent = parent, .created = time_of(o, times, k->ours)};
        m->content = take(k, &content, &m->content_len);
        m->reasoning = take(k, &reasoning, &m->reasoning_len);
        add_notes(k, m, o);
        parent = (int64_t)k->c.n;
    }
    pp_buf_free(&content);
    pp_buf_free(&reasoning);
    return parent;
}

/* --- message lists with pippin's branches ------------------------------------------------------------------------ */

struct node {
    const cJSON *json;
    int64_t id, parent; /* as in the file */
    size_t at;          /* index in the file */
    int64_t place;
};

static int by_id(const void *a, const void *b)
{
    const struct node *x = a, *y = b;
    return x->id != y->id ? (x->id < y->id ? -1 : 1) : (x->at < y->at ? -1 : x->at > y->at);
}

static const struct node *node_of(const struct node *list, size_t n, int64_t id)
{
    const struct node key = {.id = id};
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (list[middle].id < key.id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && list[low].id == id ? &list[low] : NULL;
}

static int64_t largest_id(const cJSON *messages, const cJSON *branches)
{
    const cJSON *o;
    int64_t most = 0;
    cJSON_ArrayForEach(o, messages)
        most = number_of(o, "id") > most ? number_of(o, "id") : most;
    cJSON_ArrayForEach(o, branches)
        most = number_of(o, "id") > most ? number_of(o, "id") : most;
    return most;
}

/* The messages of both lists, sorted by id; *n: their number. Messages without an id, appended by another program,
 * get one. *head: the id of the last message of the first list. */
static struct node *nodes_of(struct making *k, const cJSON *messages, const cJSON *branches, size_t *n, int64_t *head)
{
    const cJSON *o;
    int64_t most = largest_id(messages, branches);
    const size_t cap = (size_t)cJSON_GetArraySize(messages) + (size_t)cJSON_GetArraySize(branches);
    struct node *list = pp_calloc(cap + 1, sizeof *list);
    *n = 0;
    *head = 0;
    if (!list) {
        k->code = pp_fail_nomem(k->err, "the conversations");
        return NULL;
    }
    cJSON_ArrayForEach(o, messages)
    {
        const int64_t id = number_of(o, "id");
        if (!id && !*n && role_of(o) == PP_ROLE_SYSTEM) {
            add_message(k, o, 0);
            continue;
        }
        list[*n] = (struct node){.json = o, .id = id ? id : ++most, .parent = *head, .at = *n};
        *head = list[(*n)++].id;
    }
    cJSON_ArrayForEach(o, branches)
    {
        list[*n] = (struct node){.json = o, .id = number_of(o, "id"), .parent = number_of(o, "parent"), .at = *n};
        ++*n;
    }
    qsort(list, *n, sizeof *list, by_id);
    return list;
}

/* Adds messages in pippin's own format: ids ascend from parents to children, and the older of two branches comes
 * first. */
static void add_tree(struct making *k, const cJSON *messages, const cJSON *branches)
{
    int64_t head;
    size_t n;
    struct node *list = nodes_of(k, messages, branches, &n, &head);
    for (size_t i = 0; list && i < n && !k->code; i++) {
        struct node *at = &list[i];
        const struct node *parent = at->parent ? node_of(list, i, at->parent) : NULL;
        const struct node *from = node_of(list, i + 1, number_of(at->json, "context_from"));
        const size_t before = k->c.n;
        if (!at->id || (i && at->id == list[i - 1].id) || (at->parent && !parent))
            k->code = pp_fail(k->err, PP_ERR_FORMAT,
                              "message %zu: its id is missing or not unique, or its parent is missing or has a larger "
                              "id; remove the ids and \"branches\" to import the conversation without its branches",
                              at->at + 1);
        else
            at->place = add_message(k, at->json, parent ? parent->place : 0);
        if (k->c.n > before && from)
            k->c.messages[before].context_from = from->place;
    }
    const struct node *tip = list && head ? node_of(list, n, head) : NULL;
    k->c.session.head = tip ? tip->place : 0;
    pp_free(list);
}

static void add_line(struct making *k, const cJSON *messages)
{
    const cJSON *o;
    cJSON_ArrayForEach(o, messages)
    {
        if (k->code)
            return;
        k->c.session.head = add_message(k, o, k->c.session.head);
    }
}

/* --- trees of other programs ------------------------------------------------------------------------------------- */

/* A tree of messages by name, each with the names of its children. The nodes are objects; the message is their
 * member `inner`, or the node itself (NULL). */
struct tree {
    const cJSON *nodes;
    const char *inner, *parent, *children, *head;
    struct named {
        const cJSON *json;
        bool met; /* it was added to the nodes to visit */
    } *by_name;   /* [n] */
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    return strcmp(x->json->string, y->json->string);
}

static struct named *find_named(const struct tree *t, const char *name)
{
    char *string = (char *)(uintptr_t)name; /* cJSON's strings are not const */
    const cJSON json = {.string = string};
    const struct named wanted = {.json = &json};
    return name ? bsearch(&wanted, t->by_name, t->n, sizeof *t->by_name, by_name) : NULL;
}

/* A stack of nodes to visit, and the places of their parents. */
struct visits {
    struct visit {
        const cJSON *node;
        int64_t parent;
    } *list;
    size_t n, cap;
};

/* Adds a node once only: damaged or hostile files may refer to it any number of times. */
static void visit(struct making *k, struct visits *v, struct named *node, int64_t parent)
{
    if (node->met || k->code)
        return;
    node->met = true;
    if (pp_grow(&v->list, &v->cap, v->n + 1, sizeof *v->list) != 0)
        k->code = pp_fail_nomem(k->err, "the conversations");
    else
        v->list[v->n++] = (struct visit){node->json, parent};
}

static void reverse_from(struct visits *v, size_t from)
{
    for (size_t i = from, j = v->n; i + 1 < j; i++, j--) {
        const struct visit swap = v->list[i];
        v->list[i] = v->list[j - 1];
        v->list[j - 1] = swap;
    }
}

/* Visits the tree depth-first from its roots, with children in their order. */
static void visit_tree(struct making *k, const struct tree *t)
{
    struct visits v = {0};
    const cJSON *child;
    for (size_t i = 0; i < t->n; i++)
        if (!find_named(t, text_of(t->by_name[i].json, t->parent)))
            visit(k, &v, &t->by_name[i], 0);
    while (v.n && !k->code) {
        const struct visit at = v.list[--v.n];
        const cJSON *message = t->inner ? pp_json_member(at.node, t->inner) : at.node;
        const int64_t place = cJSON_IsObject(message) ? add_message(k, message, at.parent) : at.parent;
        const size_t from = v.n;
        if (t->head && strcmp(at.node->string, t->head) == 0)
            k->c.session.head = place;
        cJSON_ArrayForEach(child, pp_json_member(at.node, t->children))
        {
            struct named *node = cJSON_IsString(child) ? find_named(t, child->valuestring) : NULL;
            if (node)
                visit(k, &v, node, place);
        }
        reverse_from(&v, from);
    }
    if (!k->c.session.head)
        k->c.session.head = (int64_t)k->c.n;
    pp_free(v.list);
}

static void add_named_tree(struct making *k, struct tree t)
{
    const cJSON *node;
    t.by_name = pp_calloc((size_t)cJSON_GetArraySize(t.nodes) + 1, sizeof *t.by_name);
    if (!t.by_name) {
        k->code = pp_fail_nomem(k->err, "the conversations");
        return;
    }
    cJSON_ArrayForEach(node, t.nodes)
    {
        if (cJSON_IsObject(node) && node->string)
            t.by_name[t.n++].json = node;
    }
    qsort(t.by_name, t.n, sizeof *t.by_name, by_name);
    visit_tree(k, &t);
    pp_free(t.by_name);
}

/* --- one conversation -------------------------------------------------------------------------------------------- */

static const cJSON *array_of(const cJSON *o, const char *name)
{
    const cJSON *v = pp_json_member(o, name);
    return cJSON_IsArray(v) ? v : NULL;
}

static bool is_message(const cJSON *o)
{
    return cJSON_IsObject(o) && (text_of(o, "role") || text_of(o, "from")) && !pp_json_member(o, "messages");
}

/* Sets the title, as one line; without a title, it is made from the first words of the user. */
static void add_title(struct making *k, const char *title)
{
    char line[PP_TITLE_BYTES];
    const struct pp_message *m = k->c.messages;
    size_t i = 0;
    while (i < k->c.n && m[i].role != PP_ROLE_USER)
        i++;
    if (title && *title)
        pp_title(title, strlen(title), line);
    else
        pp_title(i < k->c.n && m[i].content ? m[i].content : "", i < k->c.n ? m[i].content_len : 0, line);
    copy(k, &k->c.session.title, k->ours ? title : line);
}

static void add_session(struct making *k, const cJSON *o)
{
    static const char *const begun[3] = {"created", "create_time", "created_at"};
    static const char *const changed[3] = {"updated", "update_time", "updated_at"};
    struct pp_session *s = &k->c.session;
    s->created = time_of(o, begun, k->ours);
    s->created_part = s->created ? part_of(o, begun, k->ours) : 0;
    s->updated = time_of(o, changed, k->ours);
    copy(k, &s->model, k->ours ? text_of(o, "model") : NULL);
    copy(k, &s->template_name, k->ours ? text_of(o, "template") : NULL);
    copy_stored_json(k, &s->adapters, k->ours ? o : NULL, "adapters");
    copy_stored_json(k, &s->settings, k->ours ? o : NULL, "settings");
}

/* Adds a conversation in any known format; false: it is none. */
static bool add_any(struct making *k, const cJSON *o)
{
    const cJSON *chat = pp_json_member(o, "chat"), *history = pp_json_member(chat, "history");
    const cJSON *messages = cJSON_IsArray(o) ? o : array_of(o, "messages"), *branches = array_of(o, "branches");
    messages = messages ? messages : array_of(o, "conversations");
    messages = messages ? messages : array_of(o, "chat_messages");
    if (cJSON_IsObject(pp_json_member(o, "mapping"))) {
        add_named_tree(k, (struct tree){.nodes = pp_json_member(o, "mapping"), .inner = "message", .parent = "parent",
                                        .children = "children", .head = text_of(o, "current_node")});
    } else if (cJSON_IsObject(pp_json_member(history, "messages"))) {
        add_named_tree(k, (struct tree){.nodes = pp_json_member(history, "messages"), .parent = "parentId",
                                        .children = "childrenIds", .head = text_of(history, "currentId")});
    } else if (messages && k->ours) {
        add_tree(k, messages, branches);
    } else if (messages) {
        add_line(k, messages);
    } else {
        return false;
    }
    return true;
}

static enum pp_code add_conversation(struct pp_import *im, const cJSON *o, struct pp_error *err)
{
    struct making k = {.im = im, .ours = cJSON_IsNumber(pp_json_member(o, "pippin")), .err = err};
    add_session(&k, o);
    if (!k.code && !add_any(&k, o))
        k.code = pp_fail(err, PP_ERR_FORMAT,
                         "conversation %zu has no messages; the form is {\"messages\": [{\"role\": ..., \"content\": "
                         "...}, ...]} or one that pippin(1) lists", im->n + 1);
    const char *title = text_of(o, "title");
    if (!k.code)
        copy(&k, &k.c.session.system, pp_buf_cstr(&k.system));
    pp_buf_free(&k.system);
    if (!k.code)
        add_title(&k, title ? title : text_of(o, "name"));
    const bool wanted = !k.code && (k.c.n || *k.c.session.system);
    if (wanted && pp_grow(&im->list, &im->cap, im->n + 1, sizeof *im->list) != 0)
        k.code = pp_fail_nomem(err, "the conversations");
    if (wanted && !k.code)
        im->list[im->n++] = k.c;
    else
        pp_conversation_clear(&k.c);
    return k.code;
}

/* --- files ------------------------------------------------------------------------------------------------------- */

static enum pp_code add_value(struct pp_import *im, const cJSON *v, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    const cJSON *o;
    if (!cJSON_IsArray(v) || is_message(v->child))
        return add_conversation(im, v, err);
    cJSON_ArrayForEach(o, v)
    {
        if (!code)
            code = add_conversation(im, o, err);
    }
    return code;
}

static size_t blank(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (s[i] == ' ' || s[i] == '\t' || s[i] == '\r' || s[i] == '\n'))
        i++;
    return i;
}

/* Parses a JSON value with nothing but white space after it; NULL: invalid, with its position in *bad (NULL: not
 * wanted). cJSON_Delete. */
static cJSON *parse(const char *s, size_t n, size_t *bad)
{
    const char *end = s;
    cJSON *v = cJSON_ParseWithLengthOpts(s, n, &end, false);
    const size_t at = end && end >= s && end <= s + n ? (size_t)(end - s) : 0;
    if (v && blank(s + at, n - at) == n - at && pp_json_keep_digits(v, s, at))
        return v;
    if (bad)
        *bad = at;
    cJSON_Delete(v);
    return NULL;
}

/* Reads a conversation per line, or a message per line. */
static enum pp_code add_lines(struct pp_import *im, const char *text, size_t n, struct pp_error *err)
{
    cJSON *all = cJSON_CreateArray();
    enum pp_code code = all ? PP_OK : pp_fail_nomem(err, "the conversations");
    size_t line = 1;
    for (size_t at = 0; at < n && !code; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t len = end ? (size_t)(end - text) - at : n - at;
        cJSON *v = blank(text + at, len) < len ? parse(text + at, len, NULL) : NULL;
        if (v && is_message(v)) {
            cJSON_AddItemToArray(all, v);
            v = NULL;
        } else if (!v && blank(text + at, len) < len) {
            code = pp_fail(err, PP_ERR_FORMAT, "this is not JSON");
        } else if (v && (code = add_value(im, v, err)) == PP_OK && all->child) {
            code = pp_fail(err, PP_ERR_FORMAT, "some lines are messages and some are conversations");
        }
        if (code == PP_ERR_FORMAT)
            pp_fail_prefix(err, "line %zu", line);
        cJSON_Delete(v);
        at += len + 1;
    }
    if (!code && all->child)
        code = add_value(im, all, err);
    cJSON_Delete(all);
    return code;
}

/* Whether the first line is a complete value. */
static bool is_lines(const char *text, size_t n)
{
    const size_t at = blank(text, n);
    const char *end = memchr(text + at, '\n', n - at);
    cJSON *v = end ? parse(text + at, (size_t)(end - text) - at, NULL) : NULL;
    const bool is = v != NULL;
    cJSON_Delete(v);
    return is;
}

static enum pp_code no_json(const char *text, size_t n, size_t bad, struct pp_error *err)
{
    size_t line = 1;
    if (blank(text, n) == n)
        return pp_fail(err, PP_ERR_FORMAT, "the file is empty; conversations are imported from JSON or JSONL");
    for (size_t i = 0; i < bad; i++)
        line += text[i] == '\n';
    return pp_fail(err, PP_ERR_FORMAT,
                   "this is not JSON (line %zu); conversations are imported from JSON or JSONL", line);
}

/* Replaces invalid UTF-8 by U+FFFD, since JSON is UTF-8 (RFC 8259, 8.1), but cJSON accepts any bytes. *bad: the
 * number of sequences replaced; if 0, *mended is empty. */
static enum pp_code mend_bytes(const char *text, size_t n, struct pp_buf *mended, size_t *bad, struct pp_error *err)
{
    size_t from = 0;
    *bad = 0;
    for (size_t i = 0; i < n;) {
        int32_t cp = text[i];
        const size_t len = (unsigned char)text[i] < 0x80 ? 1 : pp_utf8_decode(text + i, n - i, &cp);
        if (cp < 0) {
            pp_buf_add(mended, text + from, i - from);
            pp_buf_str(mended, "\xEF\xBF\xBD");
            from = i + len;
            ++*bad;
        }
        i += len;
    }
    if (*bad)
        pp_buf_add(mended, text + from, n - from);
    return mended->bad ? pp_fail_nomem(err, "the conversations") : PP_OK;
}

/* The code unit of an escape \uXXXX at s; -1: there is none. */
static int32_t escaped(const char *s, size_t n)
{
    char digits[5] = "";
    if (n < 6 || s[0] != '\\' || s[1] != 'u')
        return -1;
    memcpy(digits, s + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int32_t)strtol(digits, NULL, 16) : -1;
}

static bool is_high(int32_t cp)
{
    return cp >= 0xD800 && cp < 0xDC00;
}

static bool is_low(int32_t cp)
{
    return cp >= 0xDC00 && cp < 0xE000;
}

/* Length of the escape at s. *bad: it is U+0000, at which cJSON's strings would end, or half of a surrogate pair,
 * which is left by programs that cut texts in between, and which cJSON rejects. */
static size_t escape_at(const char *s, size_t n, bool *bad)
{
    const int32_t cp = escaped(s, n);
    *bad = false;
    if (cp < 0)
        return 2;
    if (is_high(cp) && is_low(escaped(s + 6, n - 6)))
        return 12;
    *bad = cp == 0 || is_high(cp) || is_low(cp);
    return 6;
}

/* Replaces such escapes by U+FFFD; *copy NULL: there are none. pp_free. */
static enum pp_code mend_escapes(const char *text, size_t n, char **copy, struct pp_error *err)
{
    const char *at;
    bool bad;
    *copy = NULL;
    for (size_t i = 0; i < n && (at = memchr(text + i, '\\', n - i));) {
        i = (size_t)(at - text);
        const size_t len = escape_at(at, n - i, &bad);
        if (bad && !*copy && !(*copy = pp_strndup(text, n)))
            return pp_fail_nomem(err, "the conversations");
        if (bad)
            memcpy(*copy + i, "\\ufffd", 6);
        i += len;
    }
    return PP_OK;
}

/* Puts a single message into a list, if the whole file is one. False: out of memory. */
static bool as_list(cJSON **whole)
{
    if (!*whole || !is_message(*whole))
        return true;
    cJSON *list = cJSON_CreateArray();
    if (!list || !cJSON_AddItemToArray(list, *whole)) {
        cJSON_Delete(list);
        return false;
    }
    *whole = list;
    return true;
}

static enum pp_code read_values(const char *text, size_t n, struct pp_import *out, struct pp_error *err)
{
    size_t bad = 0;
    enum pp_code code;
    /* a crash may have filled the file with zeros, which are not white space */
    const char *nul = n ? memchr(text, 0, n) : NULL;
    if (nul)
        return no_json(text, n, (size_t)(nul - text), err);
    cJSON *whole = parse(text, n, &bad);
    if (!as_list(&whole))
        code = pp_fail_nomem(err, "the conversations");
    else if (whole)
        code = add_value(out, whole, err);
    else if (is_lines(text, n))
        code = add_lines(out, text, n, err);
    else
        code = no_json(text, n, bad, err);
    cJSON_Delete(whole);
    if (!code && !out->n)
        code = pp_fail(err, PP_ERR_FORMAT, "it contains no conversations");
    return code;
}

enum pp_code pp_import_read(const char *text, size_t n, struct pp_import *out, struct pp_error *err)
{
    const size_t mark = pp_utf8_mark(text, n);
    *out = (struct pp_import){0};
    text += mark;
    n -= mark;
    char *copy = NULL;
    struct pp_buf mended = {0};
    size_t no_utf8;
    enum pp_code code = mend_bytes(text, n, &mended, &no_utf8, err);
    if (no_utf8) {
        text = pp_buf_cstr(&mended);
        n = mended.len;
    }
    if (!code)
        code = mend_escapes(text, n, &copy, err);
    if (!code)
        code = read_values(copy ? copy : text, n, out, err);
    out->no_utf8 = no_utf8;
    pp_free(copy);
    pp_buf_free(&mended);
    if (code)
        pp_import_free(out);
    return code;
}
