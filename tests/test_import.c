/* test_import.c - importing a large file: piece by piece, together with other writes, and stopped midway. */
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/import_store.h"
#include "tests/backend_fake.h"
#include "tests/fill_store.h"

static struct pp_error err;

static int64_t count(struct pp_store *st)
{
    int64_t n;
    assert_ok(pp_store_session_count(st, &n, &err), err);
    return n;
}

static int64_t count_in(const char *path)
{
    struct pp_store *st;
    assert_ok(pp_store_open(path, &st, &err), err);
    const int64_t n = count(st);
    pp_store_close(st);
    return n;
}

/* --- what is committed together --------------------------------------------------------------------------- */

/* A conversation of n messages in one line without branches; its strings are not copies. */
static struct pp_conversation line_of(const char *first, size_t n)
{
    struct pp_conversation c = {.n = n, .messages = pp_calloc(n, sizeof *c.messages)};
    assert_non_null(c.messages);
    c.session.created = c.session.updated = 1700000000;
    for (size_t i = 0; i < n; i++) {
        const char *text = i ? "and then" : first;
        c.messages[i] = (struct pp_message){.role = i % 2 ? PP_ROLE_ASSISTANT : PP_ROLE_USER, .parent = (int64_t)i,
                                            .content = pp_strdup(text), .content_len = strlen(text),
                                            .created = 1700000000 + (int64_t)i};
    }
    c.session.head = (int64_t)n;
    return c;
}

static enum pp_import_outcome put(struct pp_importer *im, const char *first, size_t n)
{
    struct pp_import_result r;
    struct pp_conversation c = line_of(first, n);
    assert_ok(pp_importer_put(im, &c, &r, &err), err);
    pp_conversation_clear(&c);
    return r.outcome;
}

/* Other connections see all of a batch or nothing; a conversation that fails leaves nothing; the same conversation may
 * grow twice in a batch. */
static void batches(void **state)
{
    (void)state;
    const char *path = test_path("batches.db");
    struct pp_store *st, *other;
    struct pp_importer *im;
    struct pp_import_result r;
    assert_ok(pp_store_open(path, &st, &err), err);
    assert_ok(pp_store_open(path, &other, &err), err);
    assert_ok(pp_importer_new(st, test_path("batch locks"), false, &im, &err), err);
    assert_int_equal(put(im, "one", 2), PP_IMPORT_ADDED);
    assert_false(pp_importer_flushed(im));
    assert_int_equal(count(other), 0);
    struct pp_conversation bad = line_of("bad", 2);
    bad.messages[1].parent = 9;
    assert_int_equal(pp_importer_put(im, &bad, &r, &err), PP_ERR_FORMAT);
    pp_conversation_clear(&bad);
    assert_int_equal(put(im, "one", 4), PP_IMPORT_EXTENDED);
    assert_int_equal(put(im, "one", 6), PP_IMPORT_EXTENDED);
    assert_int_equal(put(im, "one", 4), PP_IMPORT_HERE);
    assert_ok(pp_importer_flush(im, &err), err);
    assert_true(pp_importer_flushed(im));
    assert_int_equal(count(other), 1);
    struct pp_session s;
    assert_ok(pp_store_session_latest(other, &s, &err), err);
    assert_int_equal(s.n_messages, 6);
    int lock;
    assert_ok(pp_session_lock(test_path("batch locks"), s.key, &lock, &err), err); /* the importer has released it */
    close(lock);
    pp_session_clear(&s);
    size_t puts = 0;
    char first[32];
    do /* long transactions end by themselves */
        snprintf(first, sizeof first, "many %zu", puts);
    while (put(im, first, 20) == PP_IMPORT_ADDED && !pp_importer_flushed(im) && ++puts < 20000);
    assert_true(puts > 2 && puts < 20000);
    assert_int_equal(count(other), puts + 2);
    /* Only one importer can run at a time, since neither would know what the other adds. */
    struct pp_importer *second;
    assert_int_equal(pp_importer_new(other, test_path("batch locks"), false, &second, &err), PP_ERR_BUSY);
    assert_non_null(strstr(err.text, "another pippin is importing"));
    assert_ok(pp_importer_new(other, test_path("batch locks"), true, &second, &err), err); /* one that adds everything
                                                                                              as new may */
    pp_importer_free(second);
    pp_importer_free(im);
    assert_ok(pp_importer_new(other, test_path("batch locks"), false, &second, &err), err);
    pp_importer_free(second);
    pp_store_close(other);
    pp_store_close(st);
}

/* Puts a conversation as in a file without times: a line of n messages, "Hi" and then the number i. */
static enum pp_import_outcome put_number(struct pp_importer *im, int i, size_t n)
{
    struct pp_import_result r;
    struct pp_conversation c = line_of("Hi", n);
    c.session.created = c.session.updated = 0;
    for (size_t k = 0; k < n; k++) {
        char text[32];
        snprintf(text, sizeof text, k ? "%d" : "Hi", i);
        pp_free(c.messages[k].content);
        c.messages[k].content = pp_strdup(text);
        c.messages[k].content_len = strlen(text);
        c.messages[k].created = 0;
    }
    assert_ok(pp_importer_put(im, &c, &r, &err), err);
    pp_conversation_clear(&c);
    return r.outcome;
}

/* CPU time, which does not depend on what else the machine does. */
static double seconds_used(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Each conversation is compared only with possible matches, not with all that begin in the same way. */
static void many_begin_alike(void **state)
{
    enum { MANY = 3000, SECONDS = 30 };
    (void)state;
    struct pp_store *st;
    struct pp_importer *im;
    assert_ok(pp_store_open(test_path("alike.db"), &st, &err), err);
    assert_ok(pp_importer_new(st, test_path("alike locks"), false, &im, &err), err);
    const double began = seconds_used();
    for (int i = 0; i < MANY; i++)
        assert_int_equal(put_number(im, i, 4), PP_IMPORT_ADDED);
    pp_importer_free(im);
    assert_ok(pp_importer_new(st, test_path("alike locks"), false, &im, &err), err); /* an importer that starts from
                                                                                        scratch */
    for (int i = 0; i < MANY; i++)
        assert_int_equal(put_number(im, i, (size_t)(i % 4 + 1)), PP_IMPORT_HERE);
    assert_true(seconds_used() - began < SECONDS); /* quadratic time would be more than a minute */
    assert_int_equal(put_number(im, 7, 6), PP_IMPORT_ADDED); /* too many more messages to be recognised as the same */
    assert_int_equal(put_number(im, 7, 5), PP_IMPORT_HERE);
    struct pp_conversation c = line_of("Hi", 2);
    struct pp_import_result r;
    c.messages[0].created = c.messages[1].created = c.session.created = 0;
    c.messages[1].state = PP_MESSAGE_PARTIAL; /* a partial answer that is the beginning of the stored one */
    c.messages[1].content[1] = 0;
    c.messages[1].content_len = 1;
    c.messages[1].content[0] = '9';
    assert_ok(pp_importer_put(im, &c, &r, &err), err);
    assert_int_equal(r.outcome, PP_IMPORT_HERE);
    pp_conversation_clear(&c);
    pp_importer_free(im);
    pp_store_close(st);
}

/* A conversation that cannot grow is unlocked for other processes, and the import goes on with the next, however many
 * there are. */
static void refused(void **state)
{
    enum { MOST = 80 }; /* more than the locks that are held at once */
    (void)state;
    struct pp_store *st;
    struct pp_importer *im;
    struct pp_import_result r;
    const char *locks = test_path("refused locks");
    assert_ok(pp_store_open(test_path("refused.db"), &st, &err), err);
    assert_ok(pp_importer_new(st, locks, false, &im, &err), err);
    for (int i = 0; i < MOST; i++) {
        char first[32];
        int lock;
        snprintf(first, sizeof first, "refused %d", i);
        assert_int_equal(put(im, first, 2), PP_IMPORT_ADDED);
        struct pp_conversation bad = line_of(first, 3);
        bad.messages[2].parent = i ? (int64_t)1 << 40 : 3; /* a parent that does not exist, or the message itself */
        assert_int_equal(pp_importer_put(im, &bad, &r, &err), PP_ERR_FORMAT);
        assert_ok(pp_session_lock(locks, bad.session.key, &lock, &err), err);
        close(lock);
        pp_conversation_clear(&bad);
    }
    assert_int_equal(put(im, "refused 0", 4), PP_IMPORT_EXTENDED);
    assert_ok(pp_importer_flush(im, &err), err);
    assert_int_equal(count(st), MOST);
    pp_importer_free(im);
    pp_store_close(st);
}

/* Existing conversations are listed once, at the beginning; some may be deleted before they are compared. */
static void deleted_meanwhile(void **state)
{
    (void)state;
    struct pp_store *st, *other;
    struct pp_importer *im;
    struct pp_session s;
    const char *path = test_path("deleted.db"), *locks = test_path("deleted locks");
    assert_ok(pp_store_open(path, &st, &err), err);
    assert_ok(pp_store_open(path, &other, &err), err);
    assert_ok(pp_importer_new(st, locks, false, &im, &err), err);
    assert_int_equal(put(im, "deleted", 2), PP_IMPORT_ADDED);
    assert_ok(pp_importer_flush(im, &err), err);
    assert_ok(pp_store_session_latest(other, &s, &err), err);
    assert_ok(pp_store_session_delete(other, s.id, &err), err);
    pp_session_clear(&s);
    assert_int_equal(put(im, "deleted", 2), PP_IMPORT_ADDED);
    assert_ok(pp_importer_flush(im, &err), err);
    assert_int_equal(count(other), 1);
    pp_importer_free(im);
    pp_store_close(other);
    pp_store_close(st);
}

/* --- in the chat ------------------------------------------------------------------------------------------ */

enum { MANY = 1500 };

static bool says(const char *what)
{
    return strstr(fix_status()->notice, what) != NULL;
}

static void fill(const char *path)
{
    struct pp_store *st;
    assert_ok(pp_store_open(path, &st, &err), err);
    pp_store_close(st);
    assert_int_equal(fill_store(path, &(struct fill_options){.sessions = MANY, .messages = MANY * 8, .words = 8,
                                                             .seed = 1}), 0);
}

static void import(const char *path)
{
    char line[600];
    snprintf(line, sizeof line, "/import %s", path);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    assert_true(pp_controller_importing(fix.c));
}

/* Messages are saved while the import goes on; Esc stops it; what was imported stays, and the next import adds the
 * rest. */
static void beside_a_chat(void **state)
{
    (void)state;
    const char *path = test_path("large.db");
    size_t stopped_at, of;
    fill(path);
    import(path);
    pump_until(&fix, count_in(fix.paths.db) > 0);
    fixture_turn(&fix, "said meanwhile", "and answered");
    assert_true(pp_controller_importing(fix.c));
    assert_int_equal(fix_slash("/temporary on"), PP_SLASH_ERROR);
    assert_true(says("not possible during an import"));
    assert_true(pp_controller_cancel(fix.c));
    assert_false(pp_controller_cancel(fix.c)); /* Esc once more has nothing to stop */
    pump_until(&fix, !pp_controller_importing(fix.c));
    assert_true(says("was stopped") && says("to add the rest"));
    const char *told = strstr(fix_status()->notice, "stopped: ");
    assert_int_equal(sscanf(told, "stopped: %zu of %zu conversations", &stopped_at, &of), 2);
    assert_true(of == MANY && stopped_at > 0 && stopped_at < MANY);
    assert_int_equal(count_in(fix.paths.db), stopped_at + 1);
    assert_int_equal(pp_controller_n_messages(fix.c), 2); /* the user's conversation is still on the screen */

    const int64_t here = pp_controller_session_id(fix.c);
    import(path);
    assert_true(pp_controller_send(fix.c, "going on"));
    for (int i = 0; i < 6000 && pp_controller_importing(fix.c); i++)
        fixture_pump(&fix);
    assert_true(says("F2 lists them"));
    assert_int_equal(count_in(fix.paths.db), MANY + 1);
    assert_true(pp_controller_session_id(fix.c) == here);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
}

/* Quitting does not wait for the import and reports how far it came; imports queued after it do not begin. */
static void left_in_the_middle(void **state)
{
    (void)state;
    const char *path = test_path("large.db");
    struct pp_close_report w = {0};
    import(path);
    import("/nowhere/x.json");
    pump_until(&fix, count_in(fix.paths.db) > 0);
    pp_controller_close(fix.c, &w);
    fix.c = NULL;
    assert_true(w.saved);
    assert_non_null(strstr(w.text, "large.db was stopped: "));
    assert_non_null(strstr(w.text, "to add the rest"));
    const int64_t n = count_in(fix.paths.db);
    assert_true(n > 0 && n < MANY);
    struct pp_store *st;
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    struct pp_session *list;
    size_t n_list;
    assert_ok(pp_store_session_page(st, NULL, false, SIZE_MAX, &list, &n_list, &err), err);
    for (size_t i = 0; i < n_list; i++) /* all are complete */
        assert_true(list[i].head > 0);
    pp_session_list_free(list, n_list);
    pp_store_close(st);
}

/* Imports run one after the other; a file that cannot be read does not stop the next one. */
static void in_turn(void **state)
{
    (void)state;
    const char *path = test_path("one.json");
    static const char text[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"elsewhere\"}, "
                               "{\"role\": \"tool\", \"content\": \"42\"}]}";
    assert_ok(pp_write_file(path, text, sizeof text - 1, 0600, &err), err);
    import("/nowhere/x.json");
    import(path);
    pump_until(&fix, says("conversation imported; this is it"));
    assert_true(says("messages skipped (tool messages, or without text): 1") && !says("pictures"));
    pump_until(&fix, pp_controller_n_messages(fix.c) == 1);
    import("/nowhere/x.json");
    pump_until(&fix, !pp_controller_importing(fix.c));
    assert_true(fix_status()->notice_is_error && says("/nowhere/x.json"));
}

/* Checking whether a path is a database must not open a pipe: that would release a writer blocked on it. */
static void a_pipe_is_not_opened_to_ask(void **state)
{
    char event[512], path[600];
    (void)state;
    snprintf(path, sizeof path, "%s", test_path("pipe"));
    assert_int_equal(mkfifo(path, 0600), 0);
    const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(watch >= 0 && inotify_add_watch(watch, path, IN_OPEN) >= 0);
    assert_false(pp_store_is_database(path));
    assert_true(read(watch, event, sizeof event) < 0);
    close(watch);
    unlink(path);
}

TEST_GROUP(import)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches), cmocka_unit_test(many_begin_alike), cmocka_unit_test(refused),
        cmocka_unit_test(deleted_meanwhile), cmocka_unit_test(a_pipe_is_not_opened_to_ask),
        cmocka_unit_test_setup_teardown(beside_a_chat, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(left_in_the_middle, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(in_turn, fix_setup_ready, fix_teardown),
    };
    return cmocka_run_group_tests_name("import", tests, NULL, NULL);
}
