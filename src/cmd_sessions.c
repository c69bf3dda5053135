/* cmd_sessions.c - pippin sessions list, search, show, rename, backup, rm, forget; the rest: cmd_sessions_files.c. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "src/cmd_common.h"
#include "src/cmd_sessions.h"
#include "src/commands.h"
#include "src/store.h"
#include "src/snapshots.h"
#include "src/title.h"

/* --- list, search ----------------------------------------------------------------------------------------- */

static void format_time(int64_t seconds, char out[32])
{
    time_t t = (time_t)seconds;
    struct tm tm;
    if (!localtime_r(&t, &tm) || strftime(out, 32, "%Y-%m-%d %H:%M", &tm) == 0)
        snprintf(out, 32, "?");
}

void sessions_json(struct pp_buf *b, const struct pp_session *s)
{
    pp_cli_json_str(b, "id", s->key);
    pp_cli_json_str(b, "title", s->title);
    pp_cli_json_str(b, "model", s->model);
    pp_cli_json_int(b, "created", s->created);
    pp_cli_json_int(b, "updated", s->updated);
    pp_cli_json_int(b, "messages", s->n_messages);
}

void sessions_title(struct pp_buf *b, const struct pp_session *s)
{
    pp_cli_one_line(b, s->title && *s->title ? s->title : "(untitled)");
}

static void print_list(const struct pp_options *o, const struct pp_session *sessions, size_t n, struct pp_buf *out)
{
    if (o->json)
        pp_buf_char(out, '[');
    for (size_t i = 0; i < n; i++) {
        char when[32];
        if (o->json) {
            pp_cli_json_next(out);
            pp_buf_char(out, '{');
            sessions_json(out, &sessions[i]);
            if (sessions[i].excerpt)
                pp_cli_json_str(out, "excerpt", sessions[i].excerpt);
            pp_buf_char(out, '}');
            continue;
        }
        format_time(sessions[i].updated, when);
        pp_buf_fmt(out, "%s  %s  %4lld  ", sessions[i].key, when, (long long)sessions[i].n_messages);
        sessions_title(out, &sessions[i]);
        if (sessions[i].excerpt) {
            pp_buf_str(out, ": ");
            pp_cli_one_line(out, sessions[i].excerpt);
        }
        pp_buf_char(out, '\n');
    }
    if (o->json)
        pp_buf_str(out, "]\n");
}

/* Completes the search index of a database that an older version has created. */
static enum pp_code complete_index(struct pp_store *st, struct pp_error *err)
{
    enum { AT_ONCE = 2000 };
    struct pp_cli_bar bar = {0};
    int64_t left, all = 0;
    enum pp_code code = pp_store_index_remaining(st, &left, err);
    for (all = left; left && !code; code = pp_store_index_more(st, AT_ONCE, &left, err))
        pp_cli_bar_show(&bar, "preparing the search", (uint64_t)(all - left), (uint64_t)all);
    pp_cli_bar_clear(&bar);
    return code;
}

static enum pp_code search(const struct pp_options *o, struct pp_store *st, struct pp_session **sessions, size_t *n,
                           struct pp_error *err)
{
    enum { FEW = 100 };
    bool ranked = false;
    struct pp_search what = {.text = o->args[0], .best_first = o->best_first, .before = INT64_MAX,
                             .limit = o->limit > 0 ? (size_t)o->limit : FEW};
    enum pp_code code = complete_index(st, err);
    if (!code)
        code = pp_store_search(st, &what, sessions, n, &ranked, err);
    if (!code && o->best_first && !ranked)
        pp_cli_say("more than %d messages match, so the newest are listed first", PP_SEARCH_RANKED);
    if (!code && o->limit <= 0 && *n == FEW)
        pp_cli_say("only the first %d are shown; --limit N shows more", FEW);
    return code;
}

static enum pp_code list(const struct pp_options *o, struct pp_store *st, bool searching, struct pp_error *err)
{
    struct pp_session *sessions = NULL;
    size_t n = 0, most = o->limit > 0 ? (size_t)o->limit : SIZE_MAX;
    struct pp_buf out = {0};
    enum pp_code code = searching ? search(o, st, &sessions, &n, err)
                                  : pp_store_session_page(st, NULL, false, most, &sessions, &n, err);
    if (code)
        return code;
    print_list(o, sessions, n, &out);
    if (n == 0 && !o->json)
        pp_cli_say(searching ? "no conversation contains all of these words" : "there are no saved conversations yet");
    if (out.bad)
        code = pp_fail_nomem(err, "the list of conversations");
    else
        pp_cli_print(pp_buf_cstr(&out), out.len);
    pp_buf_free(&out);
    pp_session_list_free(sessions, n);
    return code;
}

/* --- show ------------------------------------------------------------------------------------------------- */

static void show_json(struct pp_buf *b, const struct pp_session *s, const struct pp_message *m, size_t n)
{
    pp_buf_char(b, '{');
    sessions_json(b, s);
    pp_cli_json_str(b, "system", s->system);
    pp_cli_json_name(b, "branch");
    pp_buf_char(b, '[');
    for (size_t i = 0; i < n; i++) {
        pp_cli_json_next(b);
        pp_buf_char(b, '{');
        pp_cli_json_int(b, "id", m[i].id);
        pp_cli_json_int(b, "parent", m[i].parent);
        pp_cli_json_str(b, "role", pp_role_name(m[i].role));
        pp_cli_json_str(b, "state", pp_message_state_name(m[i].state));
        pp_cli_json_name(b, "content");
        pp_cli_json_string(b, m[i].content ? m[i].content : "", m[i].content_len);
        if (m[i].reasoning_len) {
            pp_cli_json_name(b, "reasoning");
            pp_cli_json_string(b, m[i].reasoning, m[i].reasoning_len);
        }
        if (m[i].role == PP_ROLE_ASSISTANT) {
            pp_cli_json_str(b, "model", m[i].model);
            pp_cli_json_int(b, "tokens", m[i].n_tokens);
            pp_cli_json_stored(b, "stats", m[i].stats);
        }
        pp_cli_json_int(b, "created", m[i].created);
        pp_cli_json_int(b, "siblings", m[i].n_siblings);
        pp_buf_char(b, '}');
    }
    pp_buf_str(b, "]}\n");
}

static void show_text(struct pp_buf *b, const struct pp_session *s, const struct pp_message *m, size_t n)
{
    char when[32];
    format_time(s->updated, when);
    sessions_title(b, s);
    pp_buf_fmt(b, "\n%s, %s\n", s->key, when);
    if (s->system && *s->system)
        pp_buf_fmt(b, "\nsystem:\n%s\n", s->system);
    for (size_t i = 0; i < n; i++) {
        pp_buf_fmt(b, "\n%s", pp_role_name(m[i].role));
        if (m[i].state != PP_MESSAGE_COMPLETE)
            pp_buf_fmt(b, " (%s)", pp_message_state_name(m[i].state));
        pp_buf_str(b, ":\n");
        pp_buf_add(b, m[i].content, m[i].content_len);
        pp_buf_char(b, '\n');
    }
}

/* id: NULL for the latest one. */
static enum pp_code show(const struct pp_options *o, struct pp_store *st, const char *id, struct pp_error *err)
{
    struct pp_session s;
    struct pp_message *branch = NULL;
    size_t n = 0;
    struct pp_buf out = {0};
    enum pp_code code = id ? pp_store_session_find(st, id, &s, err) : pp_store_session_latest(st, &s, err);
    if (code)
        return code;
    code = pp_store_branch(st, s.head, &branch, &n, err);
    if (!code) {
        (o->json ? show_json : show_text)(&out, &s, branch, n);
        if (out.bad)
            code = pp_fail_nomem(err, "the conversation");
        else
            pp_cli_print(pp_buf_cstr(&out), out.len);
        pp_message_list_free(branch, n);
    }
    pp_buf_free(&out);
    pp_session_clear(&s);
    return code;
}

/* --- rename ------------------------------------------------------------------------------------------------ */

/* Also renames a conversation that is open in another program, which reads its title again. */
static enum pp_code rename_session(struct pp_store *st, const char *id, const char *title, struct pp_error *err)
{
    struct pp_session s = {0};
    char line[PP_TITLE_BYTES];
    pp_title(title, strlen(title), line);
    if (!*line)
        return pp_fail(err, PP_ERR_USAGE, "the new title is empty");
    enum pp_code code = pp_store_batch_begin(st, "rename the conversation", err);
    if (code)
        return code;
    code = pp_store_session_find(st, id, &s, err);
    if (!code) {
        pp_free(s.title);
        s.title = pp_strdup(line);
        code = s.title ? pp_store_session_update(st, &s, err) : pp_fail_nomem(err, "the title");
    }
    code = pp_store_batch_end(st, code, err);
    pp_session_clear(&s);
    return code;
}

/* --- rm, forget ------------------------------------------------------------------------------------------- */

static enum pp_code remove_snapshot(const struct pp_paths *p, const char *key, struct pp_error *err)
{
    char base[PP_SNAPSHOT_PATH];
    pp_snapshot_base(p->cache, key, base, sizeof base);
    return base[0] ? pp_snapshot_remove(base, err) : PP_OK;
}

/* A locked conversation, for rm and forget: another program that has it open would write its snapshot again. */
struct locked_session {
    struct pp_session s;
    int lock;
};

static void locks_of(const struct pp_paths *p, char out[static 600])
{
    snprintf(out, 600, "%s/locks", p->data);
}

/* Deletes the conversation and its snapshot, or only the snapshot. */
static enum pp_code drop(const struct pp_paths *p, struct pp_store *st, const struct pp_session *s, bool everything,
                         struct pp_error *err)
{
    char locks[600];
    enum pp_code code = everything ? pp_store_session_delete(st, s->id, err) : PP_OK;
    if (!code && everything) {
        locks_of(p, locks);
        pp_session_lock_remove(locks, s->key);
    }
    return code ? code : remove_snapshot(p, s->key, err);
}

/* Finds and locks a conversation, unless it is in the list already. */
static enum pp_code lock_session(const struct pp_paths *p, struct pp_store *st, const char *id,
                                 struct locked_session *list, size_t *n, struct pp_error *err)
{
    struct locked_session t = {.lock = -1};
    char locks[600];
    locks_of(p, locks);
    enum pp_code code = pp_store_session_find(st, id, &t.s, err);
    if (code)
        return code;
    bool again = false;
    for (size_t i = 0; i < *n; i++)
        again = again || list[i].s.id == t.s.id;
    if (!again)
        code = pp_session_lock(locks, t.s.key, &t.lock, err);
    if (code || again)
        pp_session_clear(&t.s);
    else
        list[(*n)++] = t;
    return code;
}

/* Locks all conversations before it deletes the first, so that an error with one changes nothing. */
static enum pp_code drop_all(const struct pp_options *o, const struct pp_paths *p, struct pp_store *st, bool everything,
                             struct pp_error *err)
{
    size_t n = 0;
    struct locked_session *list = NULL;
    enum pp_code code = pp_cli_args(o, 1, PP_MAX_POSITIONAL, "ID...", err);
    if (!code && !(list = pp_calloc((size_t)o->n_args, sizeof *list)))
        code = pp_fail_nomem(err, "the conversations");
    for (int i = 0; !code && i < o->n_args; i++) {
        code = lock_session(p, st, o->args[i], list, &n, err);
        if (code == PP_ERR_BUSY && o->n_args > 1)
            pp_fail_prefix(err, "%s", o->args[i]);
    }
    for (size_t i = 0; i < n; i++) {
        if (!code)
            code = drop(p, st, &list[i].s, everything, err);
        close(list[i].lock);
        pp_session_clear(&list[i].s);
    }
    pp_free(list);
    return code;
}

/* --- the command ------------------------------------------------------------------------------------------ */

struct work {
    const struct pp_options *o;
    const struct pp_paths *p;
    struct pp_store *st;
    const struct pp_cancel *cancel;
};

static enum pp_code do_list(const struct work *w, struct pp_error *err)
{
    enum pp_code code = pp_cli_args(w->o, 0, 0, "", err);
    return code ? code : list(w->o, w->st, false, err);
}

static enum pp_code do_search(const struct work *w, struct pp_error *err)
{
    enum pp_code code = pp_cli_args(w->o, 1, 1, "TEXT", err);
    return code ? code : list(w->o, w->st, true, err);
}

static enum pp_code do_show(const struct work *w, struct pp_error *err)
{
    enum pp_code code = pp_cli_args(w->o, 0, 1, "[ID]", err);
    return code ? code : show(w->o, w->st, w->o->n_args ? w->o->args[0] : NULL, err);
}

static enum pp_code do_rename(const struct work *w, struct pp_error *err)
{
    enum pp_code code = pp_cli_args(w->o, 2, 2, "ID TITLE", err);
    return code ? code : rename_session(w->st, w->o->args[0], w->o->args[1], err);
}

static enum pp_code do_export(const struct work *w, struct pp_error *err)
{
    return sessions_export(w->o, w->st, w->cancel, err);
}

static enum pp_code do_import(const struct work *w, struct pp_error *err)
{
    return sessions_import(w->o, w->p, w->st, w->cancel, err);
}

static enum pp_code do_backup(const struct work *w, struct pp_error *err)
{
    enum pp_code code = pp_cli_args(w->o, 1, 1, "FILE", err);
    return code ? code : pp_store_backup(w->st, w->o->args[0], err);
}

static enum pp_code do_rm(const struct work *w, struct pp_error *err)
{
    return drop_all(w->o, w->p, w->st, true, err);
}

static enum pp_code do_forget(const struct work *w, struct pp_error *err)
{
    return drop_all(w->o, w->p, w->st, false, err);
}

int pp_cmd_sessions(const struct pp_options *o, const struct pp_paths *p)
{
    static const struct {
        const char *name;
        enum pp_code (*run)(const struct work *, struct pp_error *);
        bool only_looks; /* works on a full disk, too */
    } words[] = {{"list", do_list, true},     {"search", do_search, true}, {"show", do_show, true},
                 {"export", do_export, true}, {"backup", do_backup, true}, {"import", do_import, false},
                 {"rename", do_rename, false},
                 {"rm", do_rm, false},        {"forget", do_forget, false}};
    struct pp_error err = {0};
    struct work w = {.o = o, .p = p, .cancel = pp_cli_begin()};
    size_t i = 0;
    while (i + 1 < sizeof words / sizeof *words && /* option parsing accepts no other words */
           strcmp(words[i].name, o->subcommand ? o->subcommand : "list") != 0)
        i++;
    enum pp_code code = (words[i].only_looks ? pp_store_open_or_empty : pp_store_open)(p->db, &w.st, &err);
    if (!code) {
        pp_store_cancel_with(w.st, w.cancel);
        code = words[i].run(&w, &err);
    }
    pp_store_close(w.st);
    return pp_cli_end(code, &err);
}
