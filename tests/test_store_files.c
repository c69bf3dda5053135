/* test_store_files.c - the store's file keeps its promises when programs die, race, or find strange files. */
#include "tests/support.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/buf.h"
#include "src/conversation.h"
#include "src/export.h"
#include "src/store.h"
#include "tests/fill_store.h"
#include "tests/store_fixture.h"

static struct pp_error err;

/* --- versions and strange files ---------------------------------------------------------------------------------- */

/* Schema 1, from before there was a search index. */
static const char version_1[] =
    "PRAGMA application_id = 1346981968; PRAGMA user_version = 1;"
    "CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, title TEXT NOT NULL,"
    " model TEXT NOT NULL, template_name TEXT NOT NULL, system TEXT NOT NULL, adapters TEXT NOT NULL,"
    " settings TEXT NOT NULL,"
    " created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL, head INTEGER,"
    " FOREIGN KEY (id, head) REFERENCES message (session, id) DEFERRABLE INITIALLY DEFERRED);"
    "CREATE INDEX session_updated ON session (updated_ms, id);"
    "CREATE INDEX session_head ON session (id, head);"
    "CREATE TABLE message (id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " session INTEGER NOT NULL REFERENCES session (id) ON DELETE CASCADE,"
    " parent INTEGER CHECK (parent < id), role INTEGER NOT NULL CHECK (role BETWEEN 0 AND 2),"
    " state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 2), content TEXT NOT NULL, model TEXT NOT NULL,"
    " adapters TEXT NOT NULL, params TEXT NOT NULL, stats TEXT NOT NULL, n_tokens INTEGER NOT NULL,"
    " created_ms INTEGER NOT NULL,"
    " UNIQUE (session, id), FOREIGN KEY (session, parent) REFERENCES message (session, id));"
    "CREATE INDEX message_parent ON message (session, parent, id);"
    "INSERT INTO session VALUES (1, '00112233445566ff', 'Old harbour', '', '', '', '', '', 1000, 2000, NULL);"
    "INSERT INTO message VALUES (1, 1, NULL, 1, 0, 'lighthouse', '', '', '', '', 0, 1000);"
    "INSERT INTO message VALUES (2, 1, 1, 2, 1, 'half an ans', '', '', '', '', 0, 1000);"
    "UPDATE session SET head = 2;";

static void make_folder_of(const char *path)
{
    char folder[256];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_int_equal(mkdir(folder, 0700), 0);
}

/* Indexes messages in steps, the newest first. Changing or deleting messages before they are indexed does no harm. */
static void index_bit_by_bit(struct pp_store *st)
{
    int64_t left;
    assert_ok(pp_store_index_remaining(st, &left, &err), err);
    assert_int_equal(left, 3);
    assert_int_equal(hits(st, "lighthouse"), 0);
    int64_t doomed = add_session(st, "gone before it is indexed");
    add_message(st, doomed, 0, PP_ROLE_USER, "seagull");
    assert_int_equal(hits(st, "seagull"), 1); /* new messages are found at once */
    assert_ok(pp_store_session_delete(st, doomed, &err), err);
    assert_ok(write_answer(st, 2, "half an answer", PP_MESSAGE_PARTIAL, NULL, 0, &err), err);
    assert_int_equal(hits(st, "answer"), 0);
    assert_ok(pp_store_index_more(st, 1, &left, &err), err);
    assert_int_equal(left, 2);
    assert_int_equal(hits(st, "answer"), 1);
    assert_ok(write_answer(st, 2, "half an ans", PP_MESSAGE_PARTIAL, NULL, 0, &err), err);
    assert_int_equal(hits(st, "answer"), 0);
    for (int i = 0; i < 3 && left; i++)
        assert_ok(pp_store_index_more(st, 1, &left, &err), err);
    assert_int_equal(left, 0);
    assert_int_equal(hits(st, "lighthouse"), 1);

}

static void migration(void **state)
{
    (void)state;
    struct pp_session s;
    struct pp_message *list;
    size_t n;
    const char *path = fresh_store();
    make_folder_of(path);
    raw_sql(path, version_1);
    struct pp_store *st = open_store(path);
    assert_int_equal(hits(st, "harbour"), 1); /* so are existing titles; existing messages are indexed step by step */
    assert_ok(pp_store_session_find(st, "0011", &s, &err), err);
    assert_int_equal(s.n_messages, 2);
    index_bit_by_bit(st);
    assert_ok(pp_store_branch(st, s.head, &list, &n, &err), err);
    assert_int_equal(n, 2);
    assert_int_equal(list[1].state, PP_MESSAGE_PARTIAL); /* the program that wrote it died; it stays partial */
    assert_string_equal(list[1].content, "half an ans");
    assert_string_equal(list[1].reasoning, "");
    pp_message_list_free(list, n);
    pp_session_clear(&s);
    pp_store_close(st);
    assert_int_equal(raw_int(path, "PRAGMA user_version"), 7);
    assert_store_sound(path);
    pp_store_close(open_store(path)); /* and once more, with nothing to do */
}

/* The search index of version 6, which lacked words in the middle of others. */
static void migration_of_words(void **state)
{
    (void)state;
    int64_t left;
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    const int64_t s = add_session(st, "今日の予定");
    add_message(st, s, 0, PP_ROLE_USER, "これは日本語の文章です");
    pp_store_close(st);
    raw_sql(path, "DROP TABLE session_text; DROP TABLE message_text;"
                  "CREATE VIRTUAL TABLE session_text USING fts5 (title, content = 'session', content_rowid = 'id',"
                  " tokenize = 'unicode61 remove_diacritics 2');"
                  "CREATE VIRTUAL TABLE message_text USING fts5 (content, content = 'message', content_rowid = 'id',"
                  " tokenize = 'unicode61 remove_diacritics 2', prefix = '1 2 3');"
                  "INSERT INTO session_text (session_text) VALUES ('rebuild');"
                  "INSERT INTO message_text (message_text) VALUES ('rebuild');"
                  "PRAGMA user_version = 6;");
    st = open_store(path);
    assert_int_equal(hits(st, "予定"), 1);
    assert_int_equal(hits(st, "文章"), 0); /* step by step */
    assert_ok(pp_store_index_more(st, 10, &left, &err), err);
    assert_int_equal(left, 0);
    assert_int_equal(hits(st, "文章"), 1);
    assert_ok(pp_store_session_delete(st, s, &err), err);
    pp_store_close(st);
    assert_store_sound(path);
}

/* Copies of databases of any version, also from a file that nobody may write to, which stays unchanged. */
static void copies(void **state)
{
    (void)state;
    static const struct {
        const char *sql, *word;
    } refused[] = {{"PRAGMA user_version = 99", "newer version of pippin"}, {"PRAGMA application_id = 7",
                                                                             "another program"}};
    struct pp_session s;
    const char *path = fresh_store();
    make_folder_of(path);
    raw_sql(path, version_1);
    assert_true(pp_store_is_database(path));
    assert_false(pp_store_is_database("Makefile"));
    assert_int_equal(chmod(path, 0400), 0);
    struct pp_store *st;
    assert_ok(pp_store_open_copy(path, NULL, &st, &err), err);
    assert_ok(pp_store_session_find(st, "0011", &s, &err), err);
    assert_string_equal(s.title, "Old harbour");
    pp_session_clear(&s);
    pp_store_close(st);
    char twice[600]; /* what begins with two slashes is no name of a host */
    snprintf(twice, sizeof twice, "/%s", path);
    assert_ok(pp_store_open_copy(twice, NULL, &st, &err), err);
    pp_store_close(st);
    assert_int_equal(raw_int(path, "PRAGMA user_version"), 1);
    assert_int_equal(chmod(path, 0600), 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        raw_sql(path, refused[i].sql);
        assert_int_not_equal(pp_store_open_copy(path, NULL, &st, &err), PP_OK);
        assert_non_null(strstr(err.text, refused[i].word));
    }
}

static enum pp_code take_empty(void *user, struct pp_conversation *c, size_t i, size_t n, struct pp_error *e)
{
    (void)user;
    (void)i;
    (void)e;
    assert_int_equal(n, 1);
    assert_int_equal(c->n, 0);
    assert_int_equal(c->session.head, 0);
    return PP_OK;
}

/* The same for a conversation without messages whose row names a last one. */
static void copies_without_messages(void **state)
{
    (void)state;
    const char *path = fresh_store();
    struct pp_store *st;
    bool damaged;
    make_folder_of(path);
    raw_sql(path, version_1);
    raw_sql(path, "DELETE FROM message");
    raw_sql(path, "UPDATE session SET head = 2");
    assert_ok(pp_store_open_copy(path, NULL, &st, &err), err);
    assert_ok(pp_conversation_each(st, take_empty, NULL, &damaged, &err), err);
    assert_false(damaged);
    pp_store_close(st);
}

enum { SALVAGED = 3, LINE = 40 };

/* Overwrites the beginning of a page, counted from 0. */
static void damage_page(const char *path, size_t page)
{
    char rot[64];
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(page * (size_t)raw_int(path, "PRAGMA page_size")), SEEK_SET), 0);
    memset(rot, 0xEE, sizeof rot);
    assert_int_equal(fwrite(rot, 1, sizeof rot, f), sizeof rot);
    fclose(f);
}

/* Damages the page that contains a text. */
static void damage_page_with(const char *path, const char *text)
{
    char *bytes;
    size_t n;
    assert_ok(pp_read_file(path, 1 << 26, &bytes, &n, &err), err);
    const char *at = memmem(bytes, n, text, strlen(text));
    assert_non_null(at);
    damage_page(path, (size_t)(at - bytes) / (size_t)raw_int(path, "PRAGMA page_size"));
    pp_free(bytes);
}

/* Of an index with several pages, damages the one with the smallest entries: the first child of its root (SQLite's file
 * format, 1.6). */
static void damage_first_page_of(const char *path, const char *index)
{
    char sql[128], *bytes;
    size_t n;
    snprintf(sql, sizeof sql, "SELECT rootpage FROM sqlite_schema WHERE name = '%s'", index);
    const size_t page = (size_t)raw_int(path, "PRAGMA page_size"), root = (size_t)raw_int(path, sql) - 1;
    assert_ok(pp_read_file(path, 1 << 26, &bytes, &n, &err), err);
    const uint8_t *at = (const uint8_t *)bytes + root * page;
    assert_int_equal(at[0], 2); /* an interior page of an index */
    const uint8_t *cell = at + 256 * at[12] + at[13];
    damage_page(path, ((size_t)cell[0] << 24 | (size_t)cell[1] << 16 | (size_t)cell[2] << 8 | cell[3]) - 1);
    pp_free(bytes);
}

struct salvaged {
    size_t conversations, messages, branch;
};

static enum pp_code take_salvaged(void *user, struct pp_conversation *c, size_t i, size_t n, struct pp_error *e)
{
    struct salvaged *s = user;
    size_t places[LINE];
    (void)i;
    (void)e;
    assert_int_equal(n, SALVAGED);
    s->conversations++;
    s->messages += c->n;
    assert_true(c->n <= LINE);
    const size_t branch = pp_conversation_branch(c, places);
    s->branch += branch;
    for (size_t k = 0; k < branch; k++) /* every branch is whole */
        assert_int_equal(places[k], k + 1);
    return PP_OK;
}

/* A damaged page costs the messages on it; those that followed them are attached to their predecessors. */
static void salvaged(void **state)
{
    (void)state;
    const char *path = fresh_store();
    char text[1500];
    const char *const lost[] = {"session 2 message 17 ", "session 2 message 40 ", "of several"};
    struct pp_store *st = open_store(path);
    for (int k = 1; k <= SALVAGED; k++) {
        int64_t parent = 0, id = add_session(st, "of several");
        for (int i = 1; i <= LINE; i++) {
            int n = snprintf(text, sizeof text, "session %d message %d ", k, i);
            memset(text + n, 'x', sizeof text - 1 - (size_t)n);
            text[sizeof text - 1] = 0;
            parent = add_message(st, id, parent, i % 2 ? PP_ROLE_USER : PP_ROLE_ASSISTANT, text);
        }
    }
    pp_store_close(st);
    for (int i = 0; i < 3; i++) {
        const bool titles = i == 2;
        struct salvaged s = {0};
        size_t n_lost;
        bool damaged;
        char told[64];
        damage_page_with(path, lost[i]); /* in the middle of a conversation, at its end, and in a page without
                                            messages */
        assert_ok(pp_store_open_to_read(path, &st, &err), err);
        assert_int_equal(pp_conversation_each(st, take_salvaged, &s, &damaged, &err), PP_ERR_FORMAT);
        assert_true(damaged);
        assert_int_equal(s.conversations, SALVAGED);
        assert_true(s.messages < SALVAGED * LINE && s.messages > SALVAGED * LINE - 10);
        assert_int_equal(s.branch, s.messages);
        n_lost = SALVAGED * LINE - s.messages;
        snprintf(told, sizeof told, "%zu message%s lost", n_lost, n_lost == 1 ? " is" : "s are");
        assert_non_null(strstr(err.text, told));
        assert_true(titles == (strstr(err.text, "title and settings of 3") != NULL));
        assert_true(titles == !strstr(err.text, "\"of several\""));
        snprintf(told, sizeof told, "%d of %d conversations could not be read completely", titles ? SALVAGED : 1,
                 SALVAGED);
        assert_non_null(strstr(err.text, told));
        pp_store_close(st);
    }
}

struct listed {
    size_t n;
    int64_t least;
};

static enum pp_code count_listed(void *user, struct pp_conversation *c, size_t i, size_t n, struct pp_error *e)
{
    struct listed *l = user;
    (void)i;
    (void)n;
    (void)e;
    assert_true(c->session.id < l->least); /* newest first */
    l->least = c->session.id;
    l->n++;
    return PP_OK;
}

/* Two indexes list the conversations; if neither is intact, that is reported. */
static void salvaged_list(void **state)
{
    (void)state;
    enum { SEVERAL_PAGES = 600 };
    static const char *const indexes[] = {"session_updated", "sqlite_autoindex_session_1"};
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    for (int i = 0; i < SEVERAL_PAGES; i++)
        add_session(st, "one of many");
    pp_store_close(st);
    for (int i = 0; i < 2; i++) {
        struct listed l = {.least = INT64_MAX};
        bool damaged;
        damage_first_page_of(path, indexes[i]);
        assert_ok(pp_store_open_to_read(path, &st, &err), err);
        const enum pp_code code = pp_conversation_each(st, count_listed, &l, &damaged, &err);
        pp_store_close(st);
        assert_int_equal(code, i ? PP_ERR_FORMAT : PP_OK);
        assert_int_equal(damaged, i);
        assert_true(i ? l.n < SEVERAL_PAGES : l.n == SEVERAL_PAGES);
        if (i)
            assert_non_null(strstr(err.text, "there may be more"));
    }
}

/* The check behind `pippin doctor` reads all pages, also those that nothing else has read yet. */
static void checked(void **state)
{
    (void)state;
    struct pp_store *st;
    const char *path = fresh_store();
    int64_t n;
    char text[400];
    st = open_store(path);
    const int64_t id = add_session(st, "one");
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (int i = 0; i < 40; i++)
        add_message(st, id, 0, PP_ROLE_USER, text);
    assert_ok(pp_store_check(st, path, &err), err);
    pp_store_close(st);
    FILE *f = fopen(path, "r+b"); /* the last page of a table */
    assert_non_null(f);
    const int64_t page = raw_int(path, "PRAGMA page_size"),
                  root = raw_int(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'tag'");
    assert_int_equal(fseek(f, (long)((root - 1) * page), SEEK_SET), 0);
    memset(text, 0xEE, 64);
    assert_int_equal(fwrite(text, 1, 64, f), 64);
    fclose(f);
    assert_ok(pp_store_open_to_read(path, &st, &err), err);
    assert_ok(pp_store_session_count(st, &n, &err), err);
    assert_int_equal(pp_store_check(st, path, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "damaged"));
    pp_store_close(st);
    path = fresh_store();
    pp_store_close(open_store(path));
    raw_sql(path, "PRAGMA user_version = 99");
    assert_ok(pp_store_open_to_read(path, &st, &err), err);
    assert_int_equal(pp_store_check(st, path, &err), PP_ERR_UNSUPPORTED);
    pp_store_close(st);
}

static void write_text(const char *path, const char *text, size_t n)
{
    assert_ok(pp_write_file(path, text, n, 0600, &err), err);
}

static void too_many_files(void **state)
{
    (void)state;
    struct rlimit before, none;
    struct pp_store *st;
    const char *path = fresh_store();
    pp_store_close(open_store(path));
    const int next = dup(0); /* the lowest free descriptor */
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){(rlim_t)next, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const enum pp_code code = pp_store_open(path, &st, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(code, PP_ERR_IO);
    assert_non_null(strstr(err.text, "ulimit -n"));
}

static void strange_files(void **state)
{
    (void)state;
    struct pp_store *st;
    const char *path = fresh_store();
    pp_store_close(open_store(path));
    raw_sql(path, "PRAGMA user_version = 99");
    assert_int_equal(pp_store_open(path, &st, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "newer"));
    assert_null(st);
    assert_int_equal(raw_int(path, "PRAGMA user_version"), 99); /* untouched */

    path = fresh_store();
    make_folder_of(path);
    char text[8192];
    memset(text, 'x', sizeof text);
    write_text(path, text, sizeof text);
    assert_int_equal(pp_store_open(path, &st, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "not a database"));

    path = fresh_store();
    make_folder_of(path);
    raw_sql(path, "CREATE TABLE recipe (name TEXT)");
    assert_int_equal(pp_store_open(path, &st, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "another program"));

    path = fresh_store();
    make_folder_of(path);
    write_text(path, "", 0); /* an empty file counts as a new database */
    st = open_store(path);
    int64_t s = add_session(st, "");
    for (int i = 0; i < 50; i++)
        add_message(st, s, 0, PP_ROLE_USER, "some text that takes room in the file, and more of it, and more");
    pp_store_close(st);
    assert_int_equal(truncate(path, 8192), 0);
    assert_int_equal(pp_store_open(path, &st, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "recover"));

    path = fresh_store();
    pp_store_close(open_store(path));
    raw_sql(path, "DROP TABLE message_text");
    assert_int_not_equal(pp_store_open(path, &st, &err), PP_OK); /* tables that this version must have are missing */

    assert_int_equal(pp_store_open(test_tmpdir(), &st, &err), PP_ERR_IO);
    assert_int_equal(pp_store_open("/dev/null/x/pippin.db", &st, &err), PP_ERR_IO);
}

/* Bytes of a real database changed at random: an error or not, but never a crash. */
static void bit_rot(void **state)
{
    (void)state;
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    int64_t s = add_session(st, "title"), m = 0;
    for (int i = 0; i < 40; i++)
        m = add_message(st, s, m, PP_ROLE_USER, "alpha beta gamma delta");
    pp_store_close(st);
    char *bytes, rotten[300];
    size_t size;
    assert_ok(pp_read_file(path, 1 << 24, &bytes, &size, &err), err);
    snprintf(rotten, sizeof rotten, "%s.rotten", path);
    srand(7);
    for (int round = 0; round < 60; round++) {
        char *copy = pp_malloc(size);
        assert_non_null(copy);
        memcpy(copy, bytes, size);
        for (int i = 0; i < 12; i++)
            copy[100 + (size_t)rand() % (size - 100)] = (char)rand();
        write_text(rotten, copy, size);
        pp_free(copy);
        if (pp_store_open(rotten, &st, &err) == PP_OK) {
            struct pp_message *list;
            struct pp_session *sessions;
            size_t n;
            if (pp_store_branch(st, m, &list, &n, &err) == PP_OK)
                pp_message_list_free(list, n);
            if (list_sessions(st, "gamma", &sessions, &n, &err) == PP_OK)
                pp_session_list_free(sessions, n);
            struct pp_conversation c;
            struct pp_lost lost;
            if (pp_conversation_salvage(st, s, &c, &lost, &err) == PP_OK)
                pp_conversation_clear(&c);
            struct pp_damage damage;
            if (pp_conversation_list(st, &sessions, &n, &damage, &err) == PP_OK)
                pp_session_list_free(sessions, n);
            pp_store_session_delete(st, s, &err);
            pp_store_close(st);
        }
    }
    pp_free(bytes);
}

/* --- several programs -------------------------------------------------------------------------------------------- */

/* Children leave with _exit: nothing of the parent's (cmocka, temporary folder) is theirs. */
static void child_writes(const char *path, int number, int n)
{
    struct pp_store *st;
    struct pp_error e;
    if (pp_store_open(path, &st, &e) != PP_OK) {
        fprintf(stderr, "child %d: %s\n", number, e.text);
        _exit(1);
    }
    struct pp_session s = {.title = "child"};
    if (pp_store_session_add(st, &s, &e) != PP_OK)
        _exit(2);
    int64_t parent = 0;
    for (int i = 0; i < n; i++) {
        struct pp_message m = {.session = s.id, .parent = parent, .role = PP_ROLE_USER, .content = "hello",
                               .content_len = 5};
        if (pp_store_message_add(st, &m, &e) != PP_OK ||
            write_answer(st, m.id, "hello again", PP_MESSAGE_COMPLETE, NULL, 0, &e) != PP_OK) {
            fprintf(stderr, "child %d: %s\n", number, e.text);
            _exit(3);
        }
        parent = m.id;
    }
    pp_store_close(st);
    _exit(0);
}

/* The file does not exist yet: they also race to create and migrate it. */
static void concurrent_programs(void **state)
{
    (void)state;
    enum { CHILDREN = 4, EACH = 25 };
    const char *path = fresh_store();
    pid_t pids[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            child_writes(path, i, EACH);
        assert_true(pids[i] > 0);
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_int_equal(raw_int(path, "SELECT count(*) FROM message"), CHILDREN * EACH);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM session WHERE head IS NOT NULL"), CHILDREN);
    assert_store_sound(path);
}

/* Writes until it is killed, and reports through the pipe which messages are committed. */
static void child_until_killed(const char *path, int64_t session, int out)
{
    struct pp_store *st;
    struct pp_error e;
    if (pp_store_open(path, &st, &e) != PP_OK)
        _exit(1);
    char text[4000];
    memset(text, 'w', sizeof text);
    for (;;) {
        struct pp_message m = {.session = session, .role = PP_ROLE_ASSISTANT, .state = PP_MESSAGE_PARTIAL,
                               .content = text,
                               .content_len = sizeof text};
        if (pp_store_message_add(st, &m, &e) != PP_OK || write(out, &m.id, sizeof m.id) != sizeof m.id)
            _exit(2);
    }
}

static void killed_in_mid_write(void **state)
{
    (void)state;
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    int64_t session = add_session(st, "victim"), id, acknowledged = 0;
    pp_store_close(st);
    for (int round = 0; round < 20; round++) {
        int ends[2], status;
        assert_int_equal(pipe(ends), 0);
        pid_t pid = fork();
        if (pid == 0) {
            close(ends[0]);
            child_until_killed(path, session, ends[1]);
        }
        close(ends[1]);
        assert_int_equal(read(ends[0], &id, sizeof id), sizeof id); /* it has begun to write */
        acknowledged++;
        usleep((useconds_t)(round * 700));
        kill(pid, SIGKILL);
        int64_t last = id;
        while (read(ends[0], &id, sizeof id) == sizeof id) {
            acknowledged++;
            last = id;
        }
        close(ends[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));

        st = open_store(path);
        struct pp_message m;
        assert_ok(pp_store_message_get(st, last, &m, &err), err);
        assert_int_equal(m.state, PP_MESSAGE_PARTIAL);
        assert_int_equal(m.content_len, 4000);
        pp_message_clear(&m);
        pp_store_close(st);
    }
    /* the killed child may have committed one more than it reported */
    int64_t n = raw_int(path, "SELECT count(*) FROM message");
    assert_in_range(n, acknowledged, acknowledged + 20);
    assert_store_sound(path);
}

static void a_full_disk(void **state)
{
    (void)state;
    const char *path = fresh_store();
    int status;
    struct pp_store *st = open_store(path);
    int64_t s = add_session(st, "x");
    pp_store_close(st);
    pid_t pid = fork();
    if (pid == 0) { /* a separate process, since the limit applies to all of it */
        struct pp_error e;
        struct rlimit limit = {1 << 20, 1 << 20};
        signal(SIGXFSZ, SIG_IGN);
        char *text = pp_calloc(1, 100000);
        if (!text || pp_store_open(path, &st, &e) != PP_OK || setrlimit(RLIMIT_FSIZE, &limit) != 0)
            _exit(1);
        memset(text, 'x', 100000);
        enum pp_code code = PP_OK;
        for (int i = 0; i < 100 && !code; i++) {
            struct pp_message m = {.session = s, .role = PP_ROLE_USER, .content = text, .content_len = 100000};
            code = pp_store_message_add(st, &m, &e);
        }
        struct pp_session out; /* reading goes on */
        bool readable = pp_store_session_get(st, s, &out, NULL) == PP_OK && out.n_messages > 0;
        _exit(code == PP_ERR_IO && readable ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_store_sound(path);
}

/* Returns 0 if the database can be read and copied, but not changed, where no file can be created next to it. */
static int look_where_nothing_can_be_written(const char *path, int64_t s, const char *copy)
{
    struct pp_error e;
    struct pp_session out;
    struct pp_store *st;
    char *model;
    const struct rlimit none = {0, RLIM_INFINITY}, all = {RLIM_INFINITY, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &none) != 0)
        return 1;
    if (pp_store_open(path, &st, &e) != PP_ERR_IO || !strstr(e.text, "free some space"))
        return 2;
    if (pp_store_open_or_empty(path, &st, &e) != PP_OK || pp_store_session_get(st, s, &out, &e) != PP_OK ||
        strcmp(out.title, "x") != 0)
        return 3;
    if (pp_store_session_delete(st, s, &e) != PP_ERR_IO)
        return 4;
    if (setrlimit(RLIMIT_FSIZE, &all) != 0 || pp_store_backup(st, copy, &e) != PP_OK)
        return 5;
    pp_store_close(st);
    if (setrlimit(RLIMIT_FSIZE, &none) != 0)
        return 6;
    if (pp_store_open_to_read(path, &st, &e) != PP_OK || pp_store_model_find(st, "m", &model, &e) != PP_OK ||
        strcmp(model, "/m.gguf") != 0)
        return 7;
    pp_store_close(st);
    return 0;
}

static void only_looked_at(void **state)
{
    (void)state;
    char path[280], copy[300], log[300];
    int status;
    snprintf(path, sizeof path, "%s/odd ?#%%41 name.db", test_tmpdir()); /* a path's special characters have no meaning
                                                                            of an address */
    snprintf(copy, sizeof copy, "%s.copy", path);
    snprintf(log, sizeof log, "%s-wal", path);
    struct pp_store *st = open_store(path);
    const int64_t s = add_session(st, "x");
    struct pp_model_entry m = {.name = (char[]){"m"}, .path = (char[]){"/m.gguf"}, .tags = (char[]){""},
                               .facts = (char[]){""}, .source = (char[]){""}, .sha256 = (char[]){""}};
    assert_ok(pp_store_model_put(st, &m, false, &err), err);
    pp_store_close(st);
    const pid_t pid = fork();
    if (pid == 0)
        _exit(look_where_nothing_can_be_written(path, s, copy));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_store_sound(copy);
    st = open_store(path); /* room again */
    add_message(st, s, 0, PP_ROLE_USER, "hello");
    pp_store_close(st);
    /* With a log that a dead program has left, opening fails: what is in the log would be missing. */
    const int fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, "log", 3) == 3 && close(fd) == 0);
    const pid_t again = fork();
    if (again == 0) {
        struct pp_error e;
        const struct rlimit none = {0, RLIM_INFINITY};
        signal(SIGXFSZ, SIG_IGN);
        _exit(setrlimit(RLIMIT_FSIZE, &none) == 0 && pp_store_open_or_empty(path, &st, &e) == PP_ERR_IO ? 0 : 1);
    }
    assert_int_equal(waitpid(again, &status, 0), again);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Where no database can be made, readers find an empty one. */
static void nothing_to_look_at(void **state)
{
    (void)state;
    struct pp_store *st;
    int64_t n = 1;
    assert_int_equal(pp_store_open("/proc/none/x.db", &st, &err), PP_ERR_IO);
    assert_ok(pp_store_open_or_empty("/proc/none/x.db", &st, &err), err);
    assert_ok(pp_store_session_count(st, &n, &err), err);
    assert_int_equal(n, 0);
    pp_store_close(st);
}

/* A file that may not grow: SIGXFSZ kills the process in the middle of it. */
static void copy_is_killed(void **state)
{
    (void)state;
    const struct timespec long_ago[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    char copy[300], text[300], left[340], journal[360];
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    const int64_t s = add_session(st, "x");
    for (int i = 0; i < 100; i++)
        add_message(st, s, 0, PP_ROLE_USER, "many words, again and again, so that the file is longer than that");
    pp_store_close(st);
    snprintf(copy, sizeof copy, "%s/killed.db", test_tmpdir());
    snprintf(text, sizeof text, "%s/killed.md", test_tmpdir());
    for (int copying = 0; copying < 2; copying++) {
        int status;
        const pid_t pid = fork();
        if (pid == 0) {
            const struct rlimit limit = {40000, 40000};
            struct pp_buf long_text = {0};
            struct pp_error e;
            signal(SIGXFSZ, SIG_DFL);
            while (long_text.len < 100000)
                pp_buf_str(&long_text, "words ");
            if (pp_store_open(path, &st, &e) == PP_OK && setrlimit(RLIMIT_FSIZE, &limit) == 0) {
                if (copying)
                    pp_store_backup(st, copy, &e);
                else
                    pp_export_write(text, &long_text, &e);
            }
            _exit(1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        assert_int_not_equal(access(copying ? copy : text, F_OK), 0);
        snprintf(left, sizeof left, "%s.%ld.tmp", copying ? copy : text, (long)pid);
        assert_int_equal(access(left, F_OK), 0);
        if (!copying)
            unlink(left);
    }
    snprintf(journal, sizeof journal, "%s-journal", left);
    assert_int_equal(access(journal, F_OK), 0);
    st = open_store(path);
    assert_ok(pp_store_backup(st, copy, &err), err);
    assert_int_equal(access(left, F_OK), 0); /* another process may still be using it */
    unlink(copy);
    assert_int_equal(utimensat(AT_FDCWD, left, long_ago, 0), 0);
    assert_ok(pp_store_backup(st, copy, &err), err); /* this file can be removed, being as large as the copy */
    assert_int_not_equal(access(left, F_OK), 0);
    assert_int_not_equal(access(journal, F_OK), 0);
    assert_int_equal(pp_store_backup(st, copy, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "exists and was left unchanged"));
    pp_store_close(st);
    assert_store_sound(copy);
}

static void session_lock(void **state)
{
    (void)state;
    char dir[256];
    int fd, other, status;
    snprintf(dir, sizeof dir, "%s/locks/deep", test_tmpdir());
    assert_ok(pp_session_lock(dir, "00112233445566ff", &fd, &err), err);
    assert_int_equal(pp_session_lock(dir, "00112233445566ff", &other, &err), PP_ERR_BUSY);
    assert_int_equal(other, -1);
    assert_non_null(strstr(err.text, "open in another pippin; close it there first"));
    assert_ok(pp_session_lock(dir, "0011223344556600", &other, &err), err);
    close(other);
    close(fd);
    pid_t pid = fork();
    if (pid == 0) {
        struct pp_error e;
        if (pp_session_lock(dir, "00112233445566ff", &fd, &e) != PP_OK)
            _exit(1);
        raise(SIGKILL); /* the lock is released when its holder dies */
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_ok(pp_session_lock(dir, "00112233445566ff", &fd, &err), err);
    pp_session_lock_remove(dir, "00112233445566ff");
    pp_session_lock_remove("", "0011223344556600"); /* held in memory only */
    close(fd);
    assert_int_equal(unlink(test_path("locks/deep/00112233445566ff.lock")), -1);
    assert_int_equal(unlink(test_path("locks/deep/0011223344556600.lock")), 0);
}

/* Every allocation of ours may fail: that is an error, and nothing leaks. */
static void out_of_memory(void **state)
{
    (void)state;
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    int64_t s = add_session(st, "title");
    int64_t m = add_message(st, s, 0, PP_ROLE_USER, "text");
    pp_store_close(st);
    for (uint64_t nth = 1; nth < 40; nth++) {
        struct pp_session *list = NULL;
        struct pp_message *messages = NULL;
        size_t n = 0;
        pp_mem_fail_at(nth, 0);
        enum pp_code code = pp_store_open(path, &st, &err);
        if (!code) {
            code = list_sessions(st, "tit", &list, &n, &err);
            pp_session_list_free(list, code ? 0 : n);
            if (!code) {
                code = pp_store_branch(st, m, &messages, &n, &err);
                pp_message_list_free(messages, code ? 0 : n);
            }
            pp_store_close(st);
        }
        pp_mem_fail_at(0, 0);
        assert_true(code == PP_OK || code == PP_ERR_NOMEM);
        if (nth == 1)
            assert_int_equal(code, PP_ERR_NOMEM);
        if (nth == 39)
            assert_int_equal(code, PP_OK); /* the loop got past the last allocation */
    }
}

/* Nothing is written to a file that was moved or removed, where nobody would find it again. */
static void removed_while_open(void **state)
{
    (void)state;
    const char *path = fresh_store();
    char aside[300];
    struct pp_store *st = open_store(path);
    int64_t s = add_session(st, "here");
    snprintf(aside, sizeof aside, "%s.aside", path);
    assert_int_equal(rename(path, aside), 0);
    struct pp_message m = {.session = s, .role = PP_ROLE_USER, .content = (char *)(uintptr_t)"lost?", .content_len = 5};
    assert_int_equal(pp_store_message_add(st, &m, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "moved"));
    assert_int_equal(rename(aside, path), 0);
    add_message(st, s, 0, PP_ROLE_USER, "found");
    pp_store_close(st);
}

/* While another program has a failing trigger in the database, writes fail with the trigger's message; once it is
 * removed, they work again. */
static void anothers_triggers(void **state)
{
    (void)state;
    const char *path = fresh_store();
    struct pp_store *st = open_store(path);
    int64_t s = add_session(st, "here"), id = add_message(st, s, 0, PP_ROLE_USER, "one");
    const struct pp_answer_text text = {"two", 3, "", 0};
    raw_sql(path, "CREATE TRIGGER theirs AFTER UPDATE ON message BEGIN INSERT INTO nowhere VALUES (1); END");
    assert_int_equal(pp_store_message_write(st, id, &text, PP_MESSAGE_COMPLETE, NULL, 0, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "nowhere"));
    raw_sql(path, "DROP TRIGGER theirs");
    assert_ok(pp_store_message_write(st, id, &text, PP_MESSAGE_COMPLETE, NULL, 0, &err), err);
    raw_sql(path, "CREATE TRIGGER theirs AFTER UPDATE ON message BEGIN INSERT INTO nowhere VALUES (1); END");
    assert_int_equal(pp_store_message_write(st, id, &text, PP_MESSAGE_COMPLETE, NULL, 0, &err), PP_ERR_IO);
    assert_int_equal(pp_store_message_write(st, id, &text, PP_MESSAGE_COMPLETE, NULL, 0, &err), PP_ERR_IO);
    raw_sql(path, "CREATE TABLE nowhere (x)");
    assert_ok(pp_store_message_write(st, id, &text, PP_MESSAGE_COMPLETE, NULL, 0, &err), err);
    raw_sql(path, "DROP TRIGGER theirs; CREATE TRIGGER theirs BEFORE UPDATE ON message BEGIN"
                  " SELECT RAISE(ABORT, 'not on Sundays'); END");
    assert_int_equal(pp_store_message_write(st, id, &text, PP_MESSAGE_COMPLETE, NULL, 0, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "not on Sundays"));
    raw_sql(path, "DROP TRIGGER theirs");
    assert_ok(pp_store_message_write(st, id, &text, PP_MESSAGE_COMPLETE, NULL, 0, &err), err);
    pp_store_close(st);
}

/* Long operations stop when asked to, and leave nothing behind. */
static void cancelled(void **state)
{
    (void)state;
    enum { MANY = 5000 };
    struct pp_store *st = open_store(fresh_store());
    struct pp_message *m = pp_calloc(MANY, sizeof *m);
    struct pp_session s = {.title = (char *)(uintptr_t)"long"};
    struct pp_cancel cancel;
    assert_non_null(m);
    for (int i = 0; i < MANY; i++)
        m[i] = (struct pp_message){.role = PP_ROLE_USER, .parent = i};
    assert_ok(pp_store_conversation_add(st, &s, m, MANY, &err), err);
    pp_cancel_reset(&cancel);
    pp_store_cancel_with(st, &cancel);
    pp_cancel_request(&cancel);
    const char *copy = test_path("whole.db");
    assert_int_equal(pp_store_backup(st, copy, &err), PP_ERR_CANCELLED);
    assert_int_not_equal(access(copy, F_OK), 0);
    assert_int_equal(pp_store_conversation_add(st, &s, m, MANY, &err), PP_ERR_CANCELLED);
    pp_cancel_reset(&cancel);
    assert_ok(pp_store_backup(st, copy, &err), err);
    int64_t n;
    assert_ok(pp_store_session_count(st, &n, &err), err);
    assert_int_equal(n, 1);
    pp_free(m);
    pp_store_close(st);
}

TEST_GROUP(store_files)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancelled),
        cmocka_unit_test(migration),
        cmocka_unit_test(migration_of_words),
        cmocka_unit_test(too_many_files),
        cmocka_unit_test(strange_files),
        cmocka_unit_test(copies),
        cmocka_unit_test(copies_without_messages),
        cmocka_unit_test(salvaged),
        cmocka_unit_test(salvaged_list),
        cmocka_unit_test(checked),
        cmocka_unit_test(bit_rot),
        cmocka_unit_test(concurrent_programs),
        cmocka_unit_test(killed_in_mid_write),
        cmocka_unit_test(a_full_disk),
        cmocka_unit_test(only_looked_at),
        cmocka_unit_test(nothing_to_look_at),
        cmocka_unit_test(copy_is_killed),
        cmocka_unit_test(session_lock),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(removed_while_open),
        cmocka_unit_test(anothers_triggers),
    };
    return cmocka_run_group_tests_name("store_files", tests, NULL, NULL);
}
