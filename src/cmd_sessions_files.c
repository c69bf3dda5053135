/* cmd_sessions_files.c - pippin sessions export, import. */
#include <string.h>
#include <unistd.h>

#include "src/cmd_common.h"
#include "src/cmd_sessions.h"
#include "src/export.h"
#include "src/import.h"

/* --- export ------------------------------------------------------------------------------------------------- */

static enum pp_export_form form_of(const struct pp_options *o)
{
    const char *said = o->export_format ? o->export_format : o->json ? "json" : NULL;
    const int form = said ? pp_export_form_by_name(said) : o->output ? pp_export_form_of(o->output) : -1;
    return form < 0 ? PP_EXPORT_MARKDOWN : (enum pp_export_form)form;
}

static enum pp_code add(struct pp_export *x, struct pp_store *st, int64_t id, struct pp_error *err)
{
    struct pp_conversation c;
    enum pp_code code = pp_conversation_read(st, id, &c, err);
    if (!code) {
        pp_export_add(x, &c);
        pp_conversation_clear(&c);
    }
    return code;
}

static enum pp_code add_named(struct pp_export *x, const struct pp_options *o, struct pp_store *st,
                              struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 0; !code && i < o->n_args; i++) {
        struct pp_session s;
        if ((code = pp_store_session_find(st, o->args[i], &s, err)))
            return code;
        code = add(x, st, s.id, err);
        pp_session_clear(&s);
    }
    return code;
}

static enum pp_code add_all(struct pp_export *x, struct pp_store *st, struct pp_error *err)
{
    struct pp_session *list;
    size_t n;
    enum pp_code code = pp_store_session_page(st, NULL, false, SIZE_MAX, &list, &n, err);
    if (code)
        return code;
    for (size_t i = 0; !code && i < n; i++)
        code = add(x, st, list[i].id, err);
    pp_session_list_free(list, n);
    return code;
}

enum pp_code sessions_export(const struct pp_options *o, struct pp_store *st, struct pp_error *err)
{
    struct pp_export x = {.form = form_of(o), .several = o->export_all || o->n_args > 1};
    if (o->export_all ? o->n_args > 0 : o->n_args == 0)
        return pp_fail(err, PP_ERR_USAGE, "sessions export takes the IDs of conversations, or --all and none; "
                                          "`pippin sessions list` shows them");
    enum pp_code code = o->export_all ? add_all(&x, st, err) : add_named(&x, o, st, err);
    if (!code)
        code = pp_export_end(&x, err);
    if (!code && o->output)
        code = pp_export_write(o->output, &x.out, err);
    else if (!code)
        pp_cli_print(pp_buf_cstr(&x.out), x.out.len);
    pp_buf_free(&x.out);
    return code;
}

/* --- import ------------------------------------------------------------------------------------------------- */

static void print(const struct pp_options *o, const struct pp_session *s, struct pp_buf *out)
{
    if (o->json) {
        pp_cli_json_next(out);
        pp_buf_char(out, '{');
        sessions_json(out, s);
        pp_buf_char(out, '}');
    } else {
        pp_buf_fmt(out, "%s  ", s->key);
        sessions_title(out, s);
        pp_buf_char(out, '\n');
    }
}

static void say_what_is_missing(const struct pp_import *im, const char *file)
{
    if (im->left_out)
        pp_cli_say("%s: %zu message%s left out: no question, no answer, or without text", file, im->left_out,
                   im->left_out == 1 ? " is" : "s are");
    if (im->no_text)
        pp_cli_say("%s: %zu part%s of messages left out: pictures or files", file, im->no_text,
                   im->no_text == 1 ? "" : "s");
}

static enum pp_code import_file(const struct pp_options *o, const struct pp_paths *p, struct pp_store *st,
                                const char *file, struct pp_buf *out, struct pp_error *err)
{
    struct pp_buf text = {0};
    struct pp_import im = {0};
    char lost[300];
    enum pp_code code = pp_cli_read(file, &text, err);
    if (!code && (code = pp_import_read(pp_buf_cstr(&text), text.len, &im, err)))
        pp_fail_prefix(err, "%s", file);
    pp_buf_free(&text);
    for (size_t i = 0; !code && i < im.n; i++) {
        struct pp_conversation *c = &im.list[i];
        const bool settled = pp_conversation_settle(c, p, lost, sizeof lost);
        code = pp_conversation_add(st, c, err);
        if (!code) {
            c->session.n_messages = (int64_t)c->n;
            print(o, &c->session, out);
        }
        if (!code && settled)
            pp_cli_say("%s: this machine has no %s; it goes on without", c->session.key, lost);
    }
    if (!code)
        say_what_is_missing(&im, file);
    pp_import_free(&im);
    return code;
}

enum pp_code sessions_import(const struct pp_options *o, const struct pp_paths *p, struct pp_store *st,
                             struct pp_error *err)
{
    struct pp_buf out = {0};
    enum pp_code code = PP_OK;
    if (!o->n_args && isatty(STDIN_FILENO))
        return pp_fail(err, PP_ERR_USAGE, "sessions import takes files of conversations, or reads one through a pipe");
    if (o->json)
        pp_buf_char(&out, '[');
    for (int i = 0; !code && i < (o->n_args ? o->n_args : 1); i++)
        code = import_file(o, p, st, o->n_args ? o->args[i] : "-", &out, err);
    if (o->json)
        pp_buf_str(&out, "]\n");
    pp_cli_print(pp_buf_cstr(&out), out.len); /* also of what came before an error */
    pp_buf_free(&out);
    return code;
}
