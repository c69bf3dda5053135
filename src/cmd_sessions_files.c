/* cmd_sessions_files.c - pippin sessions export and import. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/cmd_common.h"
#include "src/cmd_sessions.h"
#include "src/export.h"
#include "src/import.h"
#include "src/import_store.h"

/* --- export ------------------------------------------------------------------------------------------------- */

static enum pp_export_form form_of(const struct pp_options *o)
{
    const char *said = o->export_format ? o->export_format : o->json ? "json" : NULL;
    const int form = said ? pp_export_form_by_name(said) : o->output ? pp_export_form_of(o->output) : -1;
    return form < 0 ? PP_EXPORT_MARKDOWN : (enum pp_export_form)form;
}

static enum pp_code interrupted(struct pp_error *err)
{
    return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
}

/* Adds the conversations named on the command line. If the database is damaged, adds what can be read: PP_ERR_FORMAT
 * with *damaged, as add_all. */
static enum pp_code add_named(struct pp_export *x, const struct pp_options *o, struct pp_store *st, bool *damaged,
                              struct pp_error *err)
{
    struct pp_damage damage = {0};
    struct pp_session first = {0};
    enum pp_code code = PP_OK;
    for (int i = 0; !code && i < o->n_args; i++) {
        struct pp_session s;
        struct pp_conversation c;
        struct pp_lost lost;
        if ((code = pp_store_session_find(st, o->args[i], &s, err)))
            break;
        code = pp_conversation_salvage(st, s.id, &c, &lost, err);
        pp_session_clear(&s);
        if (code)
            break;
        pp_damage_add(&damage, 0, &lost);
        pp_export_add(x, &c);
        if (damage.n == 1 && !first.id) {
            first = c.session;
            c.session = (struct pp_session){0};
        }
        pp_conversation_clear(&c);
    }
    *damaged = !code && damage.n;
    if (*damaged)
        code = pp_damage_report(&damage, (size_t)o->n_args, &first, err);
    pp_session_clear(&first);
    return code;
}

struct exporting {
    struct pp_export *x;
    const struct pp_cancel *cancel;
    struct pp_cli_bar bar;
};

static enum pp_code export_one(void *exporting, struct pp_conversation *c, size_t i, size_t n, struct pp_error *err)
{
    struct exporting *k = exporting;
    pp_cli_bar_show(&k->bar, "exporting", i, n);
    if (pp_cancelled(k->cancel))
        return interrupted(err);
    pp_export_add(k->x, c);
    return PP_OK;
}

static enum pp_code add_all(struct pp_export *x, struct pp_store *st, const struct pp_cancel *cancel, bool *damaged,
                            struct pp_error *err)
{
    struct exporting k = {.x = x, .cancel = cancel};
    const enum pp_code code = pp_conversation_each(st, export_one, &k, damaged, err);
    pp_cli_bar_clear(&k.bar);
    return code;
}

enum pp_code sessions_export(const struct pp_options *o, struct pp_store *st, const struct pp_cancel *cancel,
                             struct pp_error *err)
{
    struct pp_export x = {.form = form_of(o), .several = o->export_all || o->n_args > 1};
    struct pp_error damage;
    bool damaged = false;
    if (o->export_all ? o->n_args > 0 : o->n_args == 0)
        return pp_fail(err, PP_ERR_USAGE, "sessions export needs the IDs of conversations (see `pippin sessions "
                                          "list`), or --all");
    const bool named_only = o->output && !o->export_format && !o->json;
    enum pp_code code = named_only ? pp_export_check_name(o->output, err) : PP_OK;
    if (!code)
        code = o->export_all ? add_all(&x, st, cancel, &damaged, err) : add_named(&x, o, st, &damaged, err);
    if (damaged) /* write those that could be read */
        damage = *err, code = PP_OK;
    if (!code && !x.n && !damaged)
        pp_cli_say("there are no saved conversations yet");
    if (!code)
        code = pp_export_end(&x, err);
    if (!code && o->output)
        code = pp_export_write(o->output, &x.out, err);
    else if (!code)
        pp_cli_print(pp_buf_cstr(&x.out), x.out.len);
    pp_buf_free(&x.out);
    if (!code && damaged) {
        *err = damage;
        code = damage.code;
    }
    return code;
}

/* --- import ------------------------------------------------------------------------------------------------- */

struct importing {
    const struct pp_options *o;
    const struct pp_paths *paths;
    const struct pp_cancel *cancel;
    struct pp_importer *store;
    struct pp_buf out;
    struct pp_cli_bar bar;
    size_t n, here, busy; /* conversations */
    size_t n_committed;       /* length of `out` up to the last commit */
};

static void print(struct importing *k, const struct pp_session *s, const struct pp_import_result *r)
{
    static const char *const outcomes[] = {"added", "here", "extended", "busy"};
    struct pp_buf *out = &k->out;
    if (k->o->json) {
        pp_cli_json_next(out);
        pp_buf_char(out, '{');
        sessions_json(out, s);
        pp_cli_json_str(out, "outcome", outcomes[r->outcome]);
        pp_buf_char(out, '}');
        return;
    }
    pp_buf_fmt(out, "%s  ", s->key);
    sessions_title(out, s);
    if (r->outcome == PP_IMPORT_HERE)
        pp_buf_str(out, "  (already here)");
    else if (r->outcome != PP_IMPORT_ADDED)
        pp_buf_fmt(out, "  (already here; %zu message%s %s)", r->n_messages, r->n_messages == 1 ? "" : "s",
                   r->outcome == PP_IMPORT_BUSY ? "left out" : "added");
    pp_buf_char(out, '\n');
}

static void say_what_is_missing(const struct pp_import *im, const char *file)
{
    if (im->left_out)
        pp_cli_say("%s: %zu message%s skipped: not a question or an answer, or without text", file, im->left_out,
                   im->left_out == 1 ? " is" : "s are");
    if (im->no_text)
        pp_cli_say("%s: %zu part%s of messages skipped: pictures or files", file, im->no_text,
                   im->no_text == 1 ? "" : "s");
    if (im->no_utf8)
        pp_cli_say("%s: %zu byte%s not valid UTF-8 and became U+FFFD; if the file has another encoding, convert it "
                   "with iconv and import again", file, im->no_utf8, im->no_utf8 == 1 ? " was" : "s were");
}

static enum pp_code put(struct importing *k, struct pp_conversation *c, struct pp_error *err)
{
    struct pp_import_result result;
    char lost[300];
    const bool settled = pp_conversation_settle(c, k->paths, lost, sizeof lost);
    enum pp_code code = pp_importer_put(k->store, c, &result, err);
    if (code)
        return code;
    print(k, &c->session, &result);
    if (pp_importer_flushed(k->store))
        k->n_committed = k->out.len;
    k->here += result.outcome == PP_IMPORT_HERE;
    k->busy += result.outcome == PP_IMPORT_BUSY;
    if (settled && result.outcome == PP_IMPORT_ADDED) {
        pp_cli_bar_clear(&k->bar);
        pp_cli_say("%s: not found on this machine: %s; continuing without", c->session.key, lost);
    }
    return PP_OK;
}

static enum pp_code import_one(void *importing, struct pp_conversation *c, size_t i, size_t n, struct pp_error *err)
{
    struct importing *k = importing;
    pp_cli_bar_show(&k->bar, "importing", i, n);
    k->n++;
    return pp_cancelled(k->cancel) ? interrupted(err) : put(k, c, err);
}

static enum pp_code import_database(struct importing *k, const char *file, struct pp_error *err)
{
    struct pp_store *st;
    bool damaged;
    enum pp_code code = pp_store_open_copy(file, k->cancel, &st, err);
    if (code)
        return code;
    const size_t before = k->n;
    code = pp_conversation_each(st, import_one, k, &damaged, err);
    if (!code && k->n == before)
        pp_cli_say("%s contains no conversations", file);
    if (damaged)
        pp_fail_prefix(err, "%s", file);
    pp_cli_bar_clear(&k->bar);
    pp_store_close(st);
    return code;
}

static enum pp_code import_file(struct importing *k, const char *file, struct pp_error *err)
{
    if (strcmp(file, "-") != 0 && pp_store_is_database(file))
        return import_database(k, file, err);
    const char *name = strcmp(file, "-") == 0 ? "standard input" : file;
    struct pp_buf text = {0};
    struct pp_import im = {0};
    enum pp_code code = pp_cli_read(file, &text, err);
    if (!code && (code = pp_import_read(pp_buf_cstr(&text), text.len, &im, err)))
        pp_fail_prefix(err, "%s", name);
    pp_buf_free(&text);
    for (size_t i = 0; !code && i < im.n; i++)
        code = import_one(k, &im.list[i], i, im.n, err);
    pp_cli_bar_clear(&k->bar);
    if (!code)
        say_what_is_missing(&im, name);
    pp_import_free(&im);
    return code;
}

/* Reports the conversations that were not imported. */
static enum pp_code sum_up(const struct importing *k, struct pp_error *err)
{
    if (k->here)
        pp_cli_say("%zu conversation%s already here; use --again to add %s again", k->here,
                   k->here == 1 ? " is" : "s are", k->here == 1 ? "it" : "them");
    if (k->busy)
        return pp_fail(err, PP_ERR_BUSY,
                       "%zu conversation%s open in another pippin and lack%s messages from the file; close %s there, "
                       "then import again", k->busy, k->busy == 1 ? " is" : "s are", k->busy == 1 ? "s" : "",
                       k->busy == 1 ? "it" : "them");
    return PP_OK;
}

enum pp_code sessions_import(const struct pp_options *o, const struct pp_paths *p, struct pp_store *st,
                             const struct pp_cancel *cancel, struct pp_error *err)
{
    struct importing k = {.o = o, .paths = p, .cancel = cancel};
    char locks[600];
    if (!o->n_args && isatty(STDIN_FILENO))
        return pp_fail(err, PP_ERR_USAGE, "sessions import needs files of conversations, or one through a pipe");
    snprintf(locks, sizeof locks, "%s/locks", p->data);
    enum pp_code code = pp_importer_new(st, locks, o->import_again, &k.store, err);
    if (o->json)
        pp_buf_char(&k.out, '[');
    k.n_committed = k.out.len;
    for (int i = 0; !code && i < (o->n_args ? o->n_args : 1); i++)
        code = import_file(&k, o->n_args ? o->args[i] : "-", err);
    if (k.store) {
        struct pp_error why;
        const enum pp_code flushed = pp_importer_flush(k.store, &why);
        if (flushed && !k.out.bad)
            k.out.len = k.n_committed; /* drop the others, which were not committed */
        if (flushed && !code) {
            *err = why;
            code = flushed;
        }
    }
    if (o->json)
        pp_buf_str(&k.out, "]\n");
    pp_cli_print(pp_buf_cstr(&k.out), k.out.len); /* after an error, too, for what was imported before */
    pp_buf_free(&k.out);
    pp_importer_free(k.store);
    return code ? code : sum_up(&k, err);
}
