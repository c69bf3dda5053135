/* test_unsaved.c - messages that the database refused are saved later, and do not disturb what was saved since. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/cmd_run.h"
#include "src/store_internal.h"
#include "tests/backend_fake.h"

/* Simulates a full disk: no file can grow or change after its first byte. */
static void fill_disk(bool full)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = full ? 1 : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void read_stored(int64_t session, struct pp_session *s)
{
    struct pp_store *st;
    struct pp_error err;
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_ok(pp_store_session_get(st, session, s, &err), err);
    pp_store_close(st);
}

static void assert_stored_title(int64_t session, const char *title)
{
    struct pp_session s;
    read_stored(session, &s);
    assert_string_equal(s.title, title);
    pp_session_clear(&s);
}

/* A change that the database refused (full disk) is on the screen, and is saved with the next one. */
static void a_refused_change_is_tried_again(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "1");
    const int64_t id = pp_controller_session_id(fix.c);
    pp_controller_refresh_sessions(fix.c, "");
    fixture_flush(&fix);
    fill_disk(true);
    pp_controller_rename(fix.c, 0, "new");
    fixture_flush(&fix);
    assert_true(fix_status()->notice_is_error);
    fixture_flush(&fix);
    assert_string_equal(pp_controller_session_at(fix.c, 0)->title, "one"); /* the list shows the saved title */
    fill_disk(false);
    fixture_turn(&fix, "two", "2");
    fixture_flush(&fix);
    assert_stored_title(id, "new");
    fill_disk(true);
    pp_controller_rename(fix.c, 0, "newer");
    fixture_flush(&fix);
    fill_disk(false);
    pp_controller_new_session(fix.c); /* ... or when the conversation is left */
    fixture_flush(&fix);
    assert_stored_title(id, "newer");
}

/* The same for a change whose request to the store failed for lack of memory. */
static void an_unasked_change_is_tried_again(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "1");
    const int64_t id = pp_controller_session_id(fix.c);
    int n_late = 0;
    for (unsigned nth = 1; nth < 16; nth++) {
        char title[16], before[64];
        fixture_flush(&fix);
        snprintf(title, sizeof title, "t%u", nth);
        snprintf(before, sizeof before, "%s", fix_status()->title);
        pp_mem_fail_at(nth, 0);
        pp_controller_rename(fix.c, 0, title);
        fixture_flush(&fix); /* the failed allocation may have been the io thread's */
        pp_mem_fail_at(0, 0);
        if (strcmp(fix_status()->title, title) != 0) { /* the change was refused, and the old title is still shown */
            assert_string_equal(fix_status()->title, before);
            continue;
        }
        n_late += fix.c->unsaved_bits != 0;
        assert_true(fix.c->unsaved_bits == 0 || fix_status()->notice_is_error);
        assert_true(pp_controller_set_param(fix.c, "temp", "0.5"));
        fixture_flush(&fix);
        assert_stored_title(id, title);
    }
    assert_true(n_late > 3);
}

static int64_t stored_head(int64_t session)
{
    struct pp_session s;
    read_stored(session, &s);
    const int64_t head = s.head;
    pp_session_clear(&s);
    return head;
}

/* Takes a question back while the database refuses that. Returns the conversation's id. */
static int64_t undo_refused(void)
{
    fixture_turn(&fix, "two", "2");
    const int64_t id = pp_controller_session_id(fix.c);
    fixture_flush(&fix);
    const int64_t head = stored_head(id);
    fill_disk(true);
    assert_true(pp_controller_undo(fix.c, 1));
    fixture_flush(&fix);
    fill_disk(false);
    assert_true(fix_status()->notice_is_error);
    assert_int_equal(stored_head(id), head);
    return id;
}

static void a_setting_leaves_a_new_question(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "1");
    const int64_t id = undo_refused();
    assert_true(pp_controller_send(fix.c, "three"));
    assert_int_equal(fix_status()->state, PP_STATE_SAVING);
    assert_true(pp_controller_set_param(fix.c, "temp", "0.5"));
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    fixture_flush(&fix);
    assert_int_equal(stored_head(id), fix_message(3)->id);
}

static void leaving_leaves_a_new_question(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "1");
    const int64_t before = fix_message(1)->id, id = undo_refused();
    assert_true(pp_controller_send(fix.c, "three"));
    pp_controller_quit(fix.c);
    assert_true(pp_controller_set_param(fix.c, "temp", "0.5"));
    pump_until(&fix, fix_status()->state == PP_STATE_CLOSED);
    fixture_stop(&fix);
    assert_true(stored_head(id) > before + 2); /* neither the earlier head, nor the question that was undone */
}

static void refuse_messages(void)
{
    struct pp_store *st;
    struct pp_error err;
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_int_equal(sqlite3_exec(st->db, "CREATE TRIGGER refused BEFORE INSERT ON message BEGIN "
                                          "SELECT RAISE(ABORT, 'refused'); END", NULL, NULL, NULL), SQLITE_OK);
    pp_store_close(st);
}

/* A new question that cannot be saved, either, does not count: the question before it stays undone. */
static void leaving_with_a_refused_question(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "1");
    const int64_t before = fix_message(1)->id, id = undo_refused();
    refuse_messages();
    assert_true(pp_controller_send(fix.c, "three"));
    fix.fake->hold_close = true;
    pp_controller_quit(fix.c);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 2);
    assert_true(pp_queue_push(fix.fake->events, pp_event_new(PP_EVENT_CLOSED)));
    pump_until(&fix, fix_status()->state == PP_STATE_CLOSED);
    char *unsent = pp_controller_take_unsent(fix.c);
    assert_non_null(unsent);
    pp_free(unsent);
    fixture_stop(&fix);
    assert_int_equal(stored_head(id), before);
}

/* At the end the reason is reported, too, without a word about trying again. */
static void leaving_an_unsaved_answer(void **state)
{
    struct pp_close_report w = {0};
    (void)state;
    fix_ask("one");
    fill_disk(true);
    fake_text(&fix, "an answer", 2);
    pump_until(&fix, fix_status()->unsaved[0]);
    assert_non_null(strstr(fix_status()->unsaved, "exceed the size limit"));
    assert_non_null(strstr(fix_status()->unsaved, "retrying"));
    pp_controller_close(fix.c, &w);
    fill_disk(false);
    fix.c = NULL;
    assert_false(w.saved);
    assert_non_null(strstr(w.why, "exceed the size limit"));
    assert_null(strstr(w.why, "retrying"));
}

/* An answer that waits for the disk is whole on the screen, also if its conversation was left and opened again, and
 * among other branches; nothing of it is written to the database twice. */
static void coming_back_to_an_unsaved_answer(void **state)
{
    (void)state;
    fixture_turn(&fix, "about pears", "green");
    pp_controller_new_session(fix.c);
    const int64_t id = fix_ask("about apples");
    fill_disk(true);
    fake_think(&fix, "hm", false, false, 1);
    fake_text(&fix, "red", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->unsaved[0]);
    pp_controller_new_session(fix.c);
    fixture_flush(&fix);
    for (int i = 0; i < 2; i++) {
        pp_controller_open(fix.c, id);
        pump_until(&fix, pp_controller_session_id(fix.c) == id);
        assert_string_equal(fix_message(1)->text, "red");
        assert_string_equal(fix_message(1)->reasoning, "hm");
        assert_int_equal(fix_message(1)->state, PP_MESSAGE_COMPLETE);
        assert_true(fix_message(1)->tokens_per_s > 0);
        if (!i)
            pp_controller_new_session(fix.c);
    }
    fill_disk(false);
    pump_until(&fix, !fix_status()->unsaved[0]);
    assert_string_equal(fix_message(1)->text, "red");
    pp_controller_new_session(fix.c);
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_session_id(fix.c) == id);
    assert_string_equal(fix_message(1)->text, "red");
    assert_int_equal(fix_message(1)->state, PP_MESSAGE_COMPLETE);
}

static int64_t stored_context(int64_t message)
{
    struct pp_store *st;
    struct pp_message m;
    struct pp_error err;
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_ok(pp_store_message_get(st, message, &m, &err), err);
    const int64_t from = m.context_from;
    pp_message_clear(&m);
    pp_store_close(st);
    return from;
}

/* The beginning of the context is stored as soon as possible, even if nothing else is saved; until then it is
 * remembered when the conversation is opened again. */
static void where_the_context_begins_is_tried_again(void **state)
{
    const char *note;
    (void)state;
    assert_true(pp_controller_set_overflow(fix.c, "shift"));
    fixture_turn(&fix, "one", "1");
    fixture_turn(&fix, "two", "2");
    const int64_t id = fix_ask("three"), question = fix_message(4)->id, from = fix_message(2)->id;
    fixture_flush(&fix);
    fill_disk(true);
    fake_overflow(&fix, 2, true);
    pump_until(&fix, fix_status()->unsaved[0]);
    assert_int_equal(stored_context(question), 0);
    pp_controller_new_session(fix.c);
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_session_id(fix.c) == id);
    assert_int_equal(pp_controller_context(fix.c, &note), 2);
    fill_disk(false);
    pump_until(&fix, !fix_status()->unsaved[0]);
    assert_int_equal(stored_context(question), from);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
}

static int64_t n_conversations(void)
{
    struct pp_store *st;
    struct pp_error err;
    int64_t n;
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_ok(pp_store_session_count(st, &n, &err), err);
    pp_store_close(st);
    return n;
}

/* A conversation whose first question the database refuses is not begun, even if the database cannot delete it
 * either. */
static void nothing_half_begun(void **state)
{
    struct pp_store *st;
    struct pp_error err;
    struct run_session rs;
    struct pp_buf question = {0};
    const struct run_note note = {.model = "toy", .adapters = "[]", .params = "{}", .settings = "{}"};
    (void)state;
    refuse_messages();
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_int_equal(sqlite3_exec(st->db, "CREATE TRIGGER kept BEFORE DELETE ON session BEGIN "
                                          "SELECT RAISE(ABORT, 'kept'); END", NULL, NULL, NULL), SQLITE_OK);
    pp_store_close(st);
    assert_true(pp_controller_send(fix.c, "one"));
    pump_until(&fix, fix_status()->notice_is_error);
    assert_non_null(strstr(fix_status()->notice, "refused"));
    char *unsent = pp_controller_take_unsent(fix.c);
    assert_string_equal(unsent, "one");
    pp_free(unsent);
    assert_int_equal(n_conversations(), 0);

    struct pp_options o = fix.o; /* the same with `pippin run --save` */
    o.save = true;
    pp_buf_str(&question, "one");
    assert_ok(run_session_open(&rs, &o, &fix.paths, &err), err);
    assert_int_equal(run_session_ask(&rs, &o, &fix.paths, &question, &note, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "refused"));
    run_session_close(&rs);
    pp_buf_free(&question);
    assert_int_equal(n_conversations(), 0);
}

/* A copy that could not be locked does not stay in the list either, even if it cannot be deleted. */
static void no_copy_left(void **state)
{
    struct pp_store *st;
    struct pp_error err;
    char locks[600], away[600];
    (void)state;
    fixture_turn(&fix, "one", "1");
    const int64_t id = pp_controller_session_id(fix.c);
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_int_equal(sqlite3_exec(st->db, "CREATE TRIGGER kept BEFORE DELETE ON session BEGIN "
                                          "SELECT RAISE(ABORT, 'kept'); END", NULL, NULL, NULL), SQLITE_OK);
    pp_store_close(st);
    snprintf(locks, sizeof locks, "%s/locks", fix.paths.data);
    snprintf(away, sizeof away, "%s/locks-away", fix.paths.data);
    assert_int_equal(rename(locks, away), 0);
    assert_ok(pp_write_file(locks, "no folder", 9, 0600, &err), err);
    pp_controller_fork(fix.c, 0);
    pump_until(&fix, fix_status()->notice_is_error);
    assert_non_null(strstr(fix_status()->notice, locks));
    assert_int_equal(n_conversations(), 1);
    assert_int_equal(pp_controller_session_id(fix.c), id);

    assert_int_equal(remove(locks), 0);
    assert_int_equal(rename(away, locks), 0);
    pp_controller_fork(fix.c, 0);
    pump_until(&fix, pp_controller_session_id(fix.c) != id);
    assert_int_equal(n_conversations(), 2);
}

static void a_setting_leaves_another_branch(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "1");
    const int64_t first = fix_message(1)->id;
    pp_controller_regenerate(fix.c, 1);
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    const int64_t id = undo_refused();
    pp_controller_sibling(fix.c, 1, -1);
    assert_true(pp_controller_set_param(fix.c, "temp", "0.5"));
    fixture_flush(&fix);
    assert_int_equal(fix_message(1)->id, first);
    assert_int_equal(stored_head(id), first);
}

TEST_GROUP(unsaved)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_refused_change_is_tried_again, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(an_unasked_change_is_tried_again, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(nothing_half_begun, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(no_copy_left, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(a_setting_leaves_a_new_question, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(leaving_leaves_a_new_question, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(leaving_with_a_refused_question, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(leaving_an_unsaved_answer, fix_setup_ready, fix_teardown),
        READY(coming_back_to_an_unsaved_answer),
        READY(where_the_context_begins_is_tried_again),
        cmocka_unit_test_setup_teardown(a_setting_leaves_another_branch, fix_setup_ready, fix_teardown),
    };
    return cmocka_run_group_tests_name("unsaved", tests, NULL, NULL);
}
