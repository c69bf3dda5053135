/* template.c - the interface of the chat templates: memory, locale and variables around the jinja_ files. */
#include <locale.h>
#include <pthread.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"
#include "engine/text.h"

struct pp_template {
    struct jinja arena; /* owns everything below root */
    const struct jinja_template *root;
    char *name;
    bool in_parts; /* messages must be lists of parts, as for multimodal processors */
};

/* --- locale --------------------------------------------------------------------------------------------- */

/* Numbers and dates must not depend on the user's locale; letters need one that knows Unicode. */
static locale_t template_locale;
static pthread_once_t locale_once = PTHREAD_ONCE_INIT;

static void make_locale(void)
{
    template_locale = newlocale(LC_ALL_MASK, "C.UTF-8", (locale_t)0);
    if (!template_locale)
        template_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Sets it for this thread; returns the old one for uselocale(). */
static locale_t enter_locale(void)
{
    pthread_once(&locale_once, make_locale);
    return template_locale ? uselocale(template_locale) : uselocale((locale_t)0);
}

/* --- parsing -------------------------------------------------------------------------------------------- */

enum { PROBES = 3 };

struct parse_job {
    struct pp_template *t;
    const char *source;
    size_t n;
};

static void parse_body(struct jinja *j, void *arg)
{
    struct parse_job *job = arg;
    if (job->n > JINJA_MAX_SOURCE)
        jinja_fail(j, "a template may have at most %d MB", JINJA_MAX_SOURCE >> 20);
    if (memchr(job->source, 0, job->n))
        jinja_fail(j, "a template must be UTF-8 text, but this contains NUL bytes");
    job->t->root = jinja_parse(j, job->source, job->n);
}

/* Sets *n to how many of three test messages appear in the prompt; 0 if the template refuses them. */
static enum pp_code try_form(struct pp_template *t, bool in_parts, int *n)
{
    static const char *const words[PROBES] = {"qzxfirst", "qzxsecond", "qzxthird"};
    const struct pp_template_input in = {
        .messages_json = "[{\"role\": \"user\", \"content\": \"qzxfirst\"}, {\"role\": \"assistant\", "
                         "\"content\": \"qzxsecond\"}, {\"role\": \"user\", \"content\": \"qzxthird\"}]",
        .bos_text = "", .eos_text = "",
        .add_generation_prompt = true,
    };
    struct pp_buf out = {0};
    *n = 0;
    t->in_parts = in_parts;
    const enum pp_code code = pp_template_render(t, &in, &out, NULL);
    for (int i = 0; i < PROBES && !code; i++) {
        const char *text = pp_buf_cstr(&out), *at = memmem(text, out.len, words[i], strlen(words[i]));
        *n += at && !(at > text && (at[-1] == '\'' || at[-1] == '"')); /* otherwise the list itself was printed */
    }
    pp_buf_free(&out);
    return code;
}

/* Some templates print only parts of the type "text": given a plain text, they would drop every message. Finds out
 * whether this is one. False: out of memory. */
static bool find_form(struct pp_template *t, const char *source, size_t n)
{
    int plain = PROBES, parts = 0;
    if (!memmem(source, n, "text", 4))
        return true;
    bool ok = try_form(t, false, &plain) != PP_ERR_NOMEM;
    if (ok && plain < PROBES)
        ok = try_form(t, true, &parts) != PP_ERR_NOMEM;
    t->in_parts = parts > plain;
    return ok;
}

enum pp_code pp_template_parse(const char *source, size_t n, const char *name, struct pp_template **out,
                               struct pp_error *err)
{
    struct pp_error ignored;
    struct pp_template *t = pp_calloc(1, sizeof *t);
    *out = NULL;
    if (t)
        t->name = pp_strdup(name);
    if (!t || !t->name) {
        pp_free(t);
        return pp_fail_nomem(err, "the chat template");
    }
    const size_t mark = pp_utf8_mark(source, n); /* or it would be in each prompt */
    struct parse_job job = {.t = t, .source = source + mark, .n = n - mark};
    t->arena.name = t->name;
    t->arena.err = err ? err : &ignored;
    t->arena.max_memory = JINJA_MAX_MEMORY;
    t->arena.max_steps = JINJA_MAX_STEPS;
    t->arena.line = 1;
    locale_t old = enter_locale();
    bool ok = jinja_protect(&t->arena, parse_body, &job);
    uselocale(old);
    t->arena.err = NULL;
    if (!ok) {
        enum pp_code code = t->arena.code;
        pp_template_free(t);
        return code;
    }
    if (!find_form(t, source, n)) {
        pp_template_free(t);
        return pp_fail_nomem(err, "the chat template");
    }
    *out = t;
    return PP_OK;
}

void pp_template_free(struct pp_template *t)
{
    if (!t)
        return;
    jinja_release(&t->arena);
    pp_free(t->name);
    pp_free(t);
}

bool pp_template_reads(const struct pp_template *t, const char *name)
{
    size_t bucket;
    const struct jinja_name *n = jinja_name_find(t->root->names, name, strlen(name), &bucket);
    return n && n->is_read;
}

struct wanted {
    const char *text;
    size_t n;
    unsigned found; /* enum pp_template_text */
};

static void note_text(void *ctx, const char *s, size_t n, bool looked_for)
{
    struct wanted *w = ctx;
    if (memmem(s, n, w->text, w->n))
        w->found |= looked_for ? PP_TEMPLATE_LOOKS_FOR : PP_TEMPLATE_WRITES;
}

unsigned pp_template_text(const struct pp_template *t, const char *text, size_t n)
{
    struct wanted w = {.text = text, .n = n};
    jinja_texts(t->root, note_text, &w);
    return w.found;
}

/* --- rendering ------------------------------------------------------------------------------------------ */

struct render_job {
    const struct pp_template *t;
    const struct pp_template_input *in; /* or NULL: vars_json is used */
    const char *vars_json;
    struct jinja_text text;
};

static void add_variables(struct jinja *j, const char *json, const char *what)
{
    struct jinja_value v = jinja_from_json(j, json, strlen(json), what);
    if (v.kind != JINJA_DICT)
        jinja_fail(j, "%s are not a JSON object", what);
    for (size_t i = 0; i < v.dict->n; i++)
        jinja_dict_set(j, j->context, v.dict->pairs[i].key, v.dict->pairs[i].value);
}

static struct jinja_value read_list(struct jinja *j, const char *json, const char *what)
{
    struct jinja_value v = jinja_from_json(j, json, strlen(json), what);
    if (v.kind != JINJA_LIST)
        jinja_fail(j, "%s are not a JSON array", what);
    return v;
}

static void set_variable(struct jinja *j, const char *name, struct jinja_value v)
{
    jinja_dict_set(j, j->context, jinja_cstr(name), v);
}

/* Some templates go through all messages for each message, as Gemma 4's does: allows some steps for each pair, up to a
 * few seconds in all. */
static void allow_pairs(struct jinja *j, const struct jinja_list *messages)
{
    const uint64_t n = messages->n, most = JINJA_MAX_PAIR_STEPS;
    j->max_steps += n < most / JINJA_PAIR_STEPS / (n + 1) ? n * n * JINJA_PAIR_STEPS : most;
}

/* Turns texts into lists of one part. */
static void part_messages(struct jinja *j, const struct jinja_list *messages)
{
    const struct jinja_value content = jinja_cstr("content"), text = jinja_cstr("text");
    for (size_t i = 0; i < messages->n; i++) {
        const struct jinja_value m = messages->items[i];
        struct jinja_value *said = m.kind == JINJA_DICT ? jinja_dict_find(j, m.dict, content) : NULL;
        if (!said || said->kind != JINJA_STRING)
            continue;
        struct jinja_list *parts = jinja_list(j);
        struct jinja_dict *part = jinja_dict(j);
        jinja_dict_set(j, part, jinja_cstr("type"), text);
        jinja_dict_set(j, part, text, *said);
        jinja_push(j, parts, (struct jinja_value){.kind = JINJA_DICT, .dict = part});
        *said = jinja_wrap(JINJA_LIST, parts);
    }
}

static void render_body(struct jinja *j, void *arg)
{
    struct render_job *job = arg;
    const struct pp_template_input *in = job->in;
    j->context = jinja_dict(j);
    if (!in) {
        add_variables(j, job->vars_json, "the variables");
    } else {
        if (in->extra_json)
            add_variables(j, in->extra_json, "the template's extra variables");
        struct jinja_value messages = read_list(j, in->messages_json, "the messages");
        allow_pairs(j, messages.list);
        if (job->t->in_parts)
            part_messages(j, messages.list);
        set_variable(j, "messages", messages);
        set_variable(j, "tools", in->tools_json ? read_list(j, in->tools_json, "the tools") : jinja_none());
        set_variable(j, "bos_token", jinja_cstr(in->bos_text));
        set_variable(j, "eos_token", jinja_cstr(in->eos_text));
        set_variable(j, "add_generation_prompt", jinja_bool(in->add_generation_prompt));
    }
    j->out = &job->text;
    jinja_run(j, job->t->root);
}

static size_t length_of(const char *s)
{
    return s ? strlen(s) : 0;
}

static enum pp_code render(struct render_job *job, int64_t now, struct pp_buf *out, struct pp_error *err)
{
    struct pp_error ignored;
    const struct pp_template_input *in = job->in;
    size_t input = length_of(job->vars_json);
    if (in)
        input = length_of(in->messages_json) + length_of(in->tools_json) + length_of(in->extra_json);
    if (input > SIZE_MAX / 128)
        return pp_fail_nomem(err, "the conversation");
    struct jinja j = {.name = job->t->name, .err = err ? err : &ignored, .now = now};
    j.max_memory = JINJA_MAX_MEMORY + 16 * input; /* parsed, a JSON value of two bytes ("1,") can take 32 */
    j.max_steps = JINJA_MAX_STEPS + 64 * input;
    locale_t old = enter_locale();
    bool ok = jinja_protect(&j, render_body, job);
    uselocale(old);
    if (ok) {
        pp_buf_add(out, job->text.p, job->text.n);
        if (out->bad)
            j.code = pp_fail_nomem(err, "the prompt");
    }
    jinja_release(&j);
    return j.code;
}

enum pp_code pp_template_render(const struct pp_template *t, const struct pp_template_input *in, struct pp_buf *out,
                                struct pp_error *err)
{
    struct render_job job = {.t = t, .in = in};
    return render(&job, in->now, out, err);
}

enum pp_code pp_template_render_vars(const struct pp_template *t, const char *vars_json, int64_t now,
                                     struct pp_buf *out, struct pp_error *err)
{
    struct render_job job = {.t = t, .vars_json = vars_json};
    return render(&job, now, out, err);
}
