#include "src/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/text.h"
#include "src/adapter_mix.h"
#include "src/title.h"

void pp_conversation_clear(struct pp_conversation *c)
{
    pp_session_clear(&c->session);
    pp_message_list_free(c->messages, c->n);
    *c = (struct pp_conversation){0};
}

/* --- reading from and adding to the store ----------------------------------------------------------------------- */

static int by_id(const void *key, const void *element)
{
    const int64_t a = *(const int64_t *)key, b = ((const struct pp_message *)element)->id;
    return a < b ? -1 : a > b;
}

int64_t pp_message_place(const struct pp_message *list, size_t n, int64_t id)
{
    const struct pp_message *m = id && n ? bsearch(&id, list, n, sizeof *list, by_id) : NULL;
    return m ? m - list + 1 : 0;
}

/* Converts ids to places. */
static void place_messages(struct pp_conversation *c)
{
    struct pp_message *m = c->messages;
    for (size_t i = c->n; i-- > 0;) { /* from the end, as the lookup needs the ids of earlier messages */
        m[i].parent = pp_message_place(m, i, m[i].parent);
        m[i].context_from = pp_message_place(m, i + 1, m[i].context_from); /* or the message itself */
    }
    c->session.head = pp_message_place(m, c->n, c->session.head);
}

enum pp_code pp_conversation_read(struct pp_store *st, int64_t id, struct pp_conversation *out, struct pp_error *err)
{
    *out = (struct pp_conversation){0};
    enum pp_code code = pp_store_session_get(st, id, &out->session, err);
    if (!code)
        code = pp_store_messages(st, id, &out->messages, &out->n, err);
    if (code)
        pp_conversation_clear(out);
    else
        place_messages(out);
    return code;
}

/* An empty session for one whose row cannot be read. */
static enum pp_code begin_anew(struct pp_session *s, int64_t id, struct pp_error *err)
{
    char **const strings[] = {&s->title, &s->model, &s->template_name, &s->system, &s->adapters, &s->settings};
    bool ok = true;
    *s = (struct pp_session){.id = id};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        ok = (*strings[i] = pp_strdup("")) && ok;
    return ok ? PP_OK : pp_fail_nomem(err, "a conversation");
}

static void take_title(struct pp_conversation *c)
{
    char title[PP_TITLE_BYTES];
    pp_title(c->messages[0].content, c->messages[0].content_len, title);
    pp_free(c->session.title);
    c->session.title = pp_strdup(title);
    c->session.created = c->messages[0].created;
    c->session.updated = c->messages[c->n - 1].created;
}

enum pp_code pp_conversation_salvage(struct pp_store *st, int64_t id, struct pp_conversation *out, struct pp_lost *lost,
                                     struct pp_error *err)
{
    struct pp_error why;
    *lost = (struct pp_lost){0};
    enum pp_code code = pp_conversation_read(st, id, out, err);
    if (code != PP_ERR_FORMAT)
        return code;
    lost->title = pp_store_session_get(st, id, &out->session, &why) == PP_ERR_FORMAT;
    if (lost->title && begin_anew(&out->session, id, err) != PP_OK)
        code = PP_ERR_NOMEM;
    else if (pp_store_salvage(st, id, &out->session.head, &out->messages, &out->n, &lost->messages, &why) == PP_OK &&
             out->n)
        code = PP_OK;
    if (!code && lost->title)
        take_title(out);
    if (!code && !out->session.title)
        code = pp_fail_nomem(err, "a conversation");
    if (code) {
        pp_conversation_clear(out);
        return code;
    }
    const size_t were = out->session.n_messages > 0 ? (size_t)out->session.n_messages : 0;
    if (were > out->n + lost->messages) /* the rows of some cannot even be found any more */
        lost->messages = were - out->n;
    place_messages(out);
    return PP_OK;
}

enum pp_code pp_conversation_list(struct pp_store *st, struct pp_session **list, size_t *n, struct pp_damage *damage,
                                  struct pp_error *err)
{
    bool all = true;
    enum pp_code code = pp_store_session_page(st, NULL, false, SIZE_MAX, list, n, err);
    if (code == PP_ERR_FORMAT)
        code = pp_store_salvage_sessions(st, list, n, &all, err);
    damage->list = !code && !all;
    return code;
}

void pp_damage_add(struct pp_damage *d, size_t conversation, const struct pp_lost *lost)
{
    if (!lost->messages && !lost->title)
        return;
    d->first = d->n++ ? d->first : conversation;
    d->messages += lost->messages;
    d->titles += lost->title;
}

void pp_damage_add_all(struct pp_damage *d, size_t conversation, int64_t n)
{
    pp_damage_add(d, conversation, &(struct pp_lost){.messages = n > 0 ? (size_t)n : 1, .title = true});
}

enum pp_code pp_damage_report(const struct pp_damage *d, size_t n, const struct pp_session *first, struct pp_error *err)
{
    char which[200] = "", titles[80] = "";
    if (!d->n)
        return pp_fail(err, PP_ERR_FORMAT, "the database is damaged: %zu conversations could be read, and there may "
                       "be more", n);
    if (first->key[0]) /* without a key, its row is lost */
        pp_utf8_print(which, sizeof which, " (the first is %s \"%.100s\")", first->key, first->title);
    if (d->titles)
        snprintf(titles, sizeof titles, ", and title and settings of %zu", d->titles);
    return pp_fail(err, PP_ERR_FORMAT, "the database is damaged: %zu of %zu conversations could not be read "
                                       "completely%s; %zu message%s lost%s; everything else was read%s", d->n, n, which,
                                       d->messages,
                   d->messages == 1 ? " is" : "s are", titles, d->list ? ", but there may be more conversations" : "");
}

enum pp_code pp_conversation_each(struct pp_store *st, pp_conversation_fn *take, void *user, bool *damaged,
                                  struct pp_error *err)
{
    struct pp_session *list;
    struct pp_damage damage = {0};
    size_t n;
    *damaged = false;
    enum pp_code code = pp_conversation_list(st, &list, &n, &damage, err);
    if (code)
        return code;
    for (size_t i = 0; !code && i < n; i++) {
        struct pp_conversation c;
        struct pp_lost lost;
        code = pp_conversation_salvage(st, list[i].id, &c, &lost, err);
        if (code == PP_ERR_FORMAT) {
            pp_damage_add_all(&damage, i, list[i].n_messages);
            code = PP_OK;
        } else if (!code) {
            pp_damage_add(&damage, i, &lost);
            code = take(user, &c, i, n, err);
        }
        pp_conversation_clear(&c);
    }
    *damaged = !code && pp_damage_any(&damage);
    if (*damaged)
        code = pp_damage_report(&damage, n, &list[damage.first], err);
    pp_session_list_free(list, n);
    return code;
}

enum pp_code pp_conversation_add(struct pp_store *st, struct pp_conversation *c, struct pp_error *err)
{
    return pp_store_conversation_add(st, &c->session, c->messages, c->n, err);
}

size_t pp_conversation_branch(const struct pp_conversation *c, size_t *out)
{
    size_t n = 0;
    for (int64_t at = c->session.head; at > 0; at = c->messages[at - 1].parent)
        out[n++] = (size_t)at;
    for (size_t i = 0; i < n / 2; i++) {
        const size_t swap = out[i];
        out[i] = out[n - 1 - i];
        out[n - 1 - i] = swap;
    }
    return n;
}

/* --- conversations from another machine -------------------------------------------------------------------------- */

struct lost {
    char *what;
    size_t cap;
    bool any;
};

static void note_lost(struct lost *l, const char *kind, const char *name)
{
    if (!l->any)
        snprintf(l->what, l->cap, "%s %s", kind, name);
    l->any = true;
}

static void empty(char *s)
{
    if (s)
        *s = 0;
}

/* Stores the adapters that were found as JSON; if memory runs out, none. */
static void settle_adapters(struct pp_session *s, struct lost *l)
{
    struct pp_adapter_mix set, there = {0};
    if (!s->adapters || !*s->adapters)
        return;
    pp_adapter_mix_read(s->adapters, &set);
    for (int i = 0; i < set.n; i++)
        if (access(set.item[i].path, R_OK) == 0)
            pp_adapter_mix_add(&there, set.item[i].path, set.item[i].scale);
        else
            note_lost(l, "adapter", set.item[i].path);
    if (there.n == set.n)
        return;
    char *json = there.n ? pp_adapter_mix_json(&there) : NULL;
    if (json) {
        pp_free(s->adapters);
        s->adapters = json;
    } else {
        empty(s->adapters);
    }
}

bool pp_conversation_settle(struct pp_conversation *c, const struct pp_paths *p, char *what, size_t cap)
{
    struct lost l = {.what = what, .cap = cap};
    struct pp_session *s = &c->session;
    char path[1200];
    const char *name = s->template_name ? s->template_name : "";
    if (s->model && *s->model && pp_resolve_model(p, s->model, path, sizeof path, NULL) != PP_OK) {
        note_lost(&l, "model", s->model);
        empty(s->model);
    }
    settle_adapters(s, &l);
    if (*name && !pp_template_builtin(name) &&
        (pp_template_path(p, name, path, sizeof path, NULL) != PP_OK || access(path, R_OK) != 0)) {
        note_lost(&l, "chat template", name);
        empty(s->template_name);
    }
    return l.any;
}
