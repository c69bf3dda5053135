#include "src/export.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "src/adapter_mix.h"
#include "src/fence.h"
#include "src/json_numbers.h"
#include "src/plain_text.h"

int pp_export_form_by_name(const char *name)
{
    static const char *const names[] = {"md", "json", "jsonl"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (pp_casecmp(name, names[i]) == 0)
            return i;
    return -1;
}

int pp_export_form_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (!dot || strchr(dot, '/'))
        return -1;
    if (pp_casecmp(dot, ".markdown") == 0 || pp_casecmp(dot, ".txt") == 0)
        return PP_EXPORT_MARKDOWN;
    return pp_export_form_by_name(dot + 1);
}

enum pp_code pp_export_check_name(const char *path, struct pp_error *err)
{
    static const char *const others[] = {"pdf", "html", "htm", "doc", "docx", "odt",
                                         "rtf", "csv",  "xml", "yaml", "yml"};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof others / sizeof *others; i++)
        if (pp_casecmp(dot + 1, others[i]) == 0)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "conversations are written as Markdown (.md), JSON (.json) or "
                                                    "JSONL (.jsonl), not as %s; choose one of these endings",
                                                    others[i]);
    return PP_OK;
}

/* --- Markdown --------------------------------------------------------------------------------------------------- */

static void add_time(struct pp_buf *b, int64_t seconds)
{
    char text[32];
    time_t t = (time_t)seconds;
    struct tm tm;
    if (localtime_r(&t, &tm) && strftime(text, sizeof text, "%Y-%m-%d %H:%M", &tm))
        pp_buf_str(b, text);
}

/* Adds a text as a single line. */
static void add_line(struct pp_buf *b, const char *text)
{
    const size_t begin = b->len;
    pp_plain_text(b, text, strlen(text));
    for (size_t i = begin; !b->bad && i < b->len; i++)
        if (b->data[i] == '\n' || b->data[i] == '\t')
            b->data[i] = ' ';
}

/* Adds Markdown, with `lead` before each line. A code block that is still open, because the answer was stopped, is
 * closed. */
static void add_text(struct pp_buf *b, const char *text, size_t n, const char *lead)
{
    enum { MAX_INDENT = 3 }; /* a fence that is indented further belongs to a list item, and ends with that */
    struct pp_fence open = {0};
    for (size_t at = 0; at < n;) {
        const char *line = text + at, *end = memchr(line, '\n', n - at);
        const size_t len = end ? (size_t)(end - line) : n - at, shown = len - (len && line[len - 1] == '\r');
        if (!open.len)
            open = pp_fence_of(line, shown, MAX_INDENT);
        else if (pp_fence_closes(&open, line, shown, MAX_INDENT))
            open.len = 0;
        pp_buf_str(b, lead);
        pp_plain_text(b, line, len);
        pp_buf_char(b, '\n');
        at += len + 1;
    }
    if (!open.len)
        return;
    pp_buf_str(b, lead);
    while (open.len--)
        pp_buf_char(b, open.mark);
    pp_buf_char(b, '\n');
}

/* The author of an answer, such as "Pippin Starter (Q4_K_M), bard 0.80". */
static void add_author(struct pp_buf *b, const struct pp_message *m)
{
    char label[400];
    struct pp_adapter_mix set;
    pp_adapter_mix_read(m->adapters ? m->adapters : "", &set);
    pp_adapter_mix_label(&set, label, sizeof label);
    pp_buf_str(b, m->model ? m->model : "");
    pp_buf_fmt(b, "%s%s", b->len && *label ? ", " : "", label);
}

/* *author: that of the previous answer; only a different one is printed. */
static void markdown_message(struct pp_buf *b, const struct pp_message *m, struct pp_buf *author)
{
    static const char *const heads[] = {"System", "You", "Answer"};           /* by role */
    static const char *const states[] = {"", " (unfinished)", " (stopped)"}; /* by state */
    struct pp_buf now = {0};
    pp_buf_fmt(b, "\n## %s%s\n\n", heads[m->role], states[m->state]);
    if (m->role == PP_ROLE_ASSISTANT)
        add_author(&now, m);
    if (now.len && strcmp(pp_buf_cstr(&now), pp_buf_cstr(author)) != 0) {
        pp_buf_char(b, '*');
        add_line(b, pp_buf_cstr(&now));
        pp_buf_str(b, "*\n\n");
        pp_buf_clear(author);
        pp_buf_add(author, now.data, now.len);
    }
    pp_buf_free(&now);
    if (m->reasoning_len) {
        pp_buf_str(b, "> *Thinking:*\n>\n");
        add_text(b, m->reasoning, m->reasoning_len, "> ");
        pp_buf_char(b, '\n');
    }
    add_text(b, m->content, m->content_len, "");
}

static void markdown(struct pp_buf *b, const struct pp_conversation *c)
{
    const struct pp_session *s = &c->session;
    size_t *branch = pp_calloc(c->n + 1, sizeof *branch);
    struct pp_buf author = {0};
    if (!branch) {
        b->bad = true;
        return;
    }
    const size_t n = pp_conversation_branch(c, branch);
    pp_buf_str(b, "# ");
    add_line(b, s->title && *s->title ? s->title : "(untitled)");
    pp_buf_str(b, "\n\n");
    add_time(b, s->updated);
    pp_buf_str(b, "\n");
    if (s->system && *s->system) {
        pp_buf_str(b, "\n## System\n\n");
        add_text(b, s->system, strlen(s->system), "");
    }
    for (size_t i = 0; i < n; i++)
        markdown_message(b, &c->messages[branch[i] - 1], &author);
    if (c->n > n)
        pp_buf_fmt(b, "\n---\n\n%zu message%s on other branches %s not here; the JSON form has all.\n", c->n - n,
                   c->n - n == 1 ? "" : "s", c->n - n == 1 ? "is" : "are");
    pp_buf_free(&author);
    pp_free(branch);
}

/* --- JSON ------------------------------------------------------------------------------------------------------- */

/* Adds a string in which invalid UTF-8 and NULs are replaced by U+FFFD. */
static bool add_string(cJSON *o, const char *name, const char *text, size_t n)
{
    struct pp_buf b = {0};
    for (size_t i = 0; i < n;) {
        int32_t cp;
        const size_t len = pp_utf8_decode(text + i, n - i, &cp);
        if (cp <= 0)
            pp_buf_str(&b, "\xEF\xBF\xBD");
        else
            pp_buf_add(&b, text + i, len);
        i += len;
    }
    const bool ok = !b.bad && cJSON_AddStringToObject(o, name, pp_buf_cstr(&b));
    pp_buf_free(&b);
    return ok;
}

/* Adds a string, unless it is empty. */
static bool add_text_member(cJSON *o, const char *name, const char *text)
{
    return !text || !*text || add_string(o, name, text, strlen(text));
}

static bool add_number(cJSON *o, const char *name, int64_t v)
{
    return !v || cJSON_AddNumberToObject(o, name, (double)v);
}

/* Adds a time in seconds, with milliseconds if they are known. */
static bool add_begun(cJSON *o, const char *name, int64_t seconds, int part)
{
    return !seconds || cJSON_AddNumberToObject(o, name, (double)(seconds * 1000 + part) / 1000);
}

/* Adds an object or array that is stored as text; omits it if it is empty or not JSON. */
static bool add_stored_json(cJSON *o, const char *name, const char *json)
{
    cJSON *v = json && *json ? cJSON_Parse(json) : NULL;
    const bool any = v && v->child;
    if (any && pp_json_keep_digits(v, json, strlen(json)) && pp_json_exact(v) && cJSON_AddItemToObject(o, name, v))
        return true;
    cJSON_Delete(v);
    return !any; /* if there was something to add, memory has run out */
}

/* parent: < 0 if it is the previous message of the list, which is the default. */
static cJSON *message_json(const struct pp_message *m, size_t place, int64_t parent)
{
    cJSON *o = cJSON_CreateObject();
    bool ok = o && cJSON_AddStringToObject(o, "role", pp_role_name(m->role)) &&
              add_string(o, "content", m->content ? m->content : "", m->content_len) &&
              (!m->reasoning_len || add_string(o, "reasoning_content", m->reasoning, m->reasoning_len)) &&
              add_number(o, "id", (int64_t)place) &&
              (parent < 0 || cJSON_AddNumberToObject(o, "parent", (double)parent));
    if (ok && m->state != PP_MESSAGE_COMPLETE)
        ok = cJSON_AddStringToObject(o, "state", pp_message_state_name(m->state));
    ok = ok && add_text_member(o, "model", m->model) && add_stored_json(o, "adapters", m->adapters) &&
         add_stored_json(o, "params", m->params) && add_stored_json(o, "stats", m->stats) &&
         add_number(o, "tokens", m->n_tokens) && add_number(o, "created", m->created) &&
         add_number(o, "context_from", m->context_from) && add_text_member(o, "context_note", m->context_note);
    if (ok)
        return o;
    cJSON_Delete(o);
    return NULL;
}

static bool add_item(cJSON *array, cJSON *item)
{
    if (item && cJSON_AddItemToArray(array, item))
        return true;
    cJSON_Delete(item);
    return false;
}

/* "messages": the branch on the screen in the form common to other programs, beginning with the system prompt;
 * "branches": all other messages. */
static bool add_messages(cJSON *o, const struct pp_conversation *c, size_t *branch)
{
    const size_t n = pp_conversation_branch(c, branch);
    const char *system = c->session.system;
    cJSON *list = cJSON_AddArrayToObject(o, "messages");
    bool ok = list != NULL;
    if (ok && system && *system) {
        cJSON *first = cJSON_CreateObject();
        ok = first && cJSON_AddStringToObject(first, "role", "system") &&
             add_string(first, "content", system, strlen(system));
        ok = add_item(list, first) && ok;
    }
    for (size_t i = 0; ok && i < n; i++)
        ok = add_item(list, message_json(&c->messages[branch[i] - 1], branch[i], -1));
    if (ok && c->n > n)
        ok = (list = cJSON_AddArrayToObject(o, "branches")) != NULL;
    for (size_t place = 1, next = 0; ok && place <= c->n; place++) {
        if (next < n && branch[next] == place)
            next++;
        else
            ok = add_item(list, message_json(&c->messages[place - 1], place, c->messages[place - 1].parent));
    }
    return ok;
}

static cJSON *conversation_json(const struct pp_conversation *c)
{
    const struct pp_session *s = &c->session;
    size_t *branch = pp_calloc(c->n + 1, sizeof *branch);
    cJSON *o = cJSON_CreateObject();
    bool ok = branch && o && cJSON_AddNumberToObject(o, "pippin", 1) && add_text_member(o, "title", s->title) &&
              add_text_member(o, "model", s->model) && add_text_member(o, "template", s->template_name) &&
              add_stored_json(o, "adapters", s->adapters) && add_stored_json(o, "settings", s->settings) &&
              add_begun(o, "created", s->created, s->created_part) && add_number(o, "updated", s->updated) &&
              add_messages(o, c, branch);
    pp_free(branch);
    if (ok)
        return o;
    cJSON_Delete(o);
    return NULL;
}

static void add_value(struct pp_buf *b, const cJSON *v)
{
    char *text = cJSON_PrintUnformatted(v);
    if (text)
        pp_plain_json(b, text);
    else
        b->bad = true;
    cJSON_free(text);
}

/* Prints one member per line, and the lists with one message per line, for reading, searching and comparing by
 * lines. */
static void add_lines(struct pp_buf *b, const cJSON *o)
{
    const cJSON *v, *m;
    pp_buf_str(b, "{");
    cJSON_ArrayForEach(v, o)
    {
        pp_buf_fmt(b, "%s\n  \"%s\": ", v == o->child ? "" : ",", v->string);
        if (!cJSON_IsArray(v) || !cJSON_IsObject(v->child) || !pp_json_member(v->child, "role")) {
            add_value(b, v);
            continue;
        }
        cJSON_ArrayForEach(m, v)
        {
            pp_buf_str(b, m == v->child ? "[\n    " : ",\n    ");
            add_value(b, m);
        }
        pp_buf_str(b, "\n  ]");
    }
    pp_buf_str(b, "\n}");
}

static void json(struct pp_buf *b, const struct pp_conversation *c, bool one_line)
{
    cJSON *o = conversation_json(c);
    if (!o)
        b->bad = true;
    else if (one_line)
        add_value(b, o);
    else
        add_lines(b, o);
    cJSON_Delete(o);
}

/* --- several conversations -------------------------------------------------------------------------------------- */

void pp_export_add(struct pp_export *x, const struct pp_conversation *c)
{
    const bool array = x->form == PP_EXPORT_JSON && x->several;
    if (array)
        pp_buf_str(&x->out, x->n ? ",\n" : "[\n");
    else if (x->form == PP_EXPORT_MARKDOWN && x->n)
        pp_buf_str(&x->out, "\n---\n\n");
    if (x->form == PP_EXPORT_MARKDOWN)
        markdown(&x->out, c);
    else
        json(&x->out, c, x->form == PP_EXPORT_JSONL);
    if (x->form == PP_EXPORT_JSONL || (x->form == PP_EXPORT_JSON && !array))
        pp_buf_char(&x->out, '\n');
    x->n++;
}

enum pp_code pp_export_end(struct pp_export *x, struct pp_error *err)
{
    if (x->form == PP_EXPORT_JSON && x->several)
        pp_buf_str(&x->out, x->n ? "\n]\n" : "[]\n");
    return x->out.bad ? pp_fail_nomem(err, "the text of the conversations") : PP_OK;
}

/* --- files ------------------------------------------------------------------------------------------------------ */

enum pp_code pp_export_write(const char *path, const struct pp_buf *text, struct pp_error *err)
{
    return pp_write_new_file(path, text->data, text->len, 0600, err);
}

void pp_export_name(const char *title, char *out, size_t cap)
{
    enum { LONGEST = 60 };
    struct pp_buf b = {0};
    const size_t n = title ? strlen(title) : 0;
    for (size_t i = 0; i < n && b.len < LONGEST;) {
        int32_t cp;
        const size_t len = pp_utf8_decode(title + i, n - i, &cp);
        const bool letter = (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z') ||
                            /* excludes symbols, punctuation and spaces */
                            (cp >= 0xC0 && !(cp >= 0x2000 && cp < 0x3041));
        if (letter)
            pp_buf_add(&b, title + i, len);
        else if (b.len && b.data[b.len - 1] != '-')
            pp_buf_char(&b, '-');
        i += len;
    }
    while (b.len && b.data[b.len - 1] == '-')
        b.len--;
    snprintf(out, cap, "%.*s.md", b.len ? (int)b.len : 12, b.len ? b.data : "conversation");
    pp_buf_free(&b);
}
