/* menu_sessions.c - F2: conversations, newest first; typing searches titles and messages. Rows that have not been
 * fetched yet are shown as an ellipsis. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/utf8.h"
#include "src/export.h"
#include "ui/format.h"
#include "ui/found.h"
#include "ui/state.h"

enum question { ASK_TITLE, ASK_FILE };

static const struct pp_session *session_at(struct pp_ui *ui, size_t i)
{
    return pp_controller_session_at(ui->controller, i);
}

static const char *title_of(const struct pp_session *s)
{
    return s->title && *s->title ? s->title : "(without a title)";
}

static void open_menu(struct pp_ui *ui, struct pp_menu *m)
{
    (void)m;
    pp_controller_refresh_sessions(ui->controller, "");
}

static bool pending(struct pp_ui *ui, struct pp_menu *m)
{
    (void)m;
    return pp_controller_sessions_pending(ui->controller);
}

static size_t count(struct pp_ui *ui, struct pp_menu *m)
{
    (void)m;
    return pp_controller_n_sessions(ui->controller);
}

static const char *why_empty(struct pp_ui *ui, struct pp_menu *m)
{
    return pp_controller_sessions_pending(ui->controller)  ? "…"
           : pp_controller_sessions_failed(ui->controller) ? "cannot be read at the moment; F2 tries again"
           : !m->search.text[0]                            ? "none yet: send a message to start one"
           : pp_found_has_words(m->search.text)            ? "none found"
                                                           : "the search needs letters or digits";
}

/* The title and the excerpt found, on one line. */
static void describe_hit(const struct pp_session *s, char *out, size_t cap)
{
    enum { TITLE = 36 }; /* bytes of the title, which must leave room for the excerpt */
    const char *title = title_of(s);
    size_t n = strlen(title);
    bool cut = n > TITLE;
    for (n = cut ? TITLE : n; cut && n && ((unsigned char)title[n] & 0xC0) == 0x80;)
        n--;
    pp_utf8_print(out, cap, "%.*s%s: %.200s", (int)n, title, cut ? "…" : "", s->excerpt);
    for (char *c = out; *c; c++)
        if (*c == '\n' || *c == '\r' || *c == '\t')
            *c = ' ';
}

static void row(struct pp_ui *ui, struct pp_menu *m, size_t i, struct pp_menu_row *row)
{
    const struct pp_session *s = session_at(ui, i);
    char age[32];
    (void)m;
    if (!s) {
        snprintf(row->left, sizeof row->left, "…");
        return;
    }
    pp_format_age(age, sizeof age, s->updated, (int64_t)time(NULL));
    static const char *const marks[] = {"", "✎ ", "● "}; /* by enum pp_session_activity */
    enum pp_session_activity activity = pp_controller_session_activity(ui->controller, s->id);
    int mark = snprintf(row->left, sizeof row->left, "%s", marks[activity]);
    if (s->excerpt && *s->excerpt)
        describe_hit(s, row->left + mark, sizeof row->left - (size_t)mark);
    else
        snprintf(row->left + mark, sizeof row->left - (size_t)mark, "%s", title_of(s));
    snprintf(row->right, sizeof row->right, "%s", activity == PP_SESSION_ANSWERING ? "answering" : age);
    row->current = s->id == pp_controller_session_id(ui->controller);
}

static void searched(struct pp_ui *ui, struct pp_menu *m)
{
    m->selected = 0;
    pp_controller_refresh_sessions(ui->controller, m->search.text);
}

/* Notes the match to be shown when the conversation is open. If the title matched, which is often made of the first
 * message, its messages are searched for the same words. */
static void note_found(struct pp_ui *ui, const struct pp_menu *m, const struct pp_session *s)
{
    const bool any = pp_found_has_words(m->search.text), in_message = s->excerpt && *s->excerpt;
    ui->found.session = s->id;
    ui->found.message = any && in_message ? s->hit : 0;
    ui->found.in_title = any && !in_message;
    pp_utf8_print(ui->found.search, sizeof ui->found.search, "%s", m->search.text);
}

static void choose(struct pp_ui *ui, struct pp_menu *m)
{
    const struct pp_session *s = session_at(ui, m->selected);
    if (!s)
        return; /* not fetched yet */
    note_found(ui, m, s);
    if (s->id != pp_controller_session_id(ui->controller)) {
        pp_ui_clear_notice(ui); /* pump() does that too, but not when leaving an unsaved conversation */
        pp_controller_open(ui->controller, s->id);
        pp_transcript_end(ui);
    } else {
        pp_ui_show_found(ui);
    }
    pp_menu_close(ui);
}

static bool key(struct pp_ui *ui, struct pp_menu *m, const struct pp_key *key)
{
    const struct pp_session *s = session_at(ui, m->selected);
    bool control = key->type == PP_KEY_CHAR;
    if (control && key->cp == PP_CTRL('n')) {
        pp_controller_new_session(ui->controller);
        pp_transcript_end(ui);
        pp_menu_close(ui);
        return true;
    }
    if (control && key->cp == PP_CTRL('o')) {
        bool best = pp_controller_order_sessions(ui->controller);
        m->selected = 0;
        pp_ui_notice(ui, false, best ? "best match first" : "newest first");
        return true;
    }
    if (!s)
        return false;
    if (control && key->cp == PP_CTRL('r')) {
        m->subject = s->id;
        m->asking = ASK_TITLE;
        pp_menu_ask(ui, "New title:", s->title ? s->title : "");
        return true;
    }
    if (control && key->cp == PP_CTRL('x')) {
        char name[128];
        m->subject = s->id;
        m->asking = ASK_FILE;
        pp_export_name(s->title, name, sizeof name);
        pp_menu_ask(ui, "Export to (.md, .json, .jsonl):", name);
        return true;
    }
    if (key->type == PP_KEY_DELETE) { /* not Ctrl-D, which leaves in other programs: a "y" typed next would delete */
        m->subject = s->id;
        pp_menu_confirm(ui, "y deletes permanently, any other key keeps it: \"%.200s\"", title_of(s));
        return true;
    }
    return false;
}

static bool answered(struct pp_ui *ui, struct pp_menu *m, const char *text)
{
    if (m->asking == ASK_TITLE)
        pp_controller_rename(ui->controller, m->subject, text);
    else
        pp_controller_export(ui->controller, m->subject, text);
    return true;
}

static void complete(struct pp_ui *ui, struct pp_menu *m)
{
    if (m->asking == ASK_FILE)
        pp_menu_complete_path(ui);
}

static void confirmed(struct pp_ui *ui, struct pp_menu *m)
{
    pp_controller_delete(ui->controller, m->subject);
}

const struct pp_menu_class pp_menu_sessions = {
    .title = "Conversations",
    .hint = "Enter opens  ^N new  ^R rename  ^X export  ^O sort  Del delete  Esc",
    .search = true, .why_empty = why_empty, .open = open_menu, .pending = pending, .count = count, .row = row,
    .key = key, .choose = choose, .searched = searched, .answered = answered, .confirmed = confirmed,
    .complete = complete,
};
