/* test_temporary.c - chats that are in no file, and a store that cannot be opened; with a backend that does what the
 * test says. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "tests/backend_fake.h"

static size_t listed(void)
{
    pp_controller_refresh_sessions(fix.c, "");
    fixture_flush(&fix);
    return pp_controller_n_sessions(fix.c);
}

/* The messages of a temporary chat are in no file, and gone when it ends. */
static void test_temporary(void **state)
{
    (void)state;
    fixture_turn(&fix, "kept", "yes");
    const int64_t kept = pp_controller_session_id(fix.c);
    assert_int_equal(fix_slash("/temporary maybe"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/temporary"), PP_SLASH_DONE);
    assert_true(fix_status()->temporary);
    assert_int_equal(pp_controller_n_messages(fix.c), 0);
    pump_until(&fix, listed() == 0);
    fixture_turn(&fix, "secret", "quite");
    assert_true(fix.fake->no_snapshots);
    assert_string_equal(fix_status()->session_key, ""); /* so nobody is told how to resume it */
    fixture_turn(&fix, "more", "of it");
    assert_non_null(strstr(fix.fake->messages, "secret"));
    assert_int_equal(fix_slash("/fork"), PP_SLASH_DONE);
    pump_until(&fix, listed() == 2);
    assert_int_equal(fix_slash("/temporary"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_DONE);
    pump_until(&fix, listed() == 1);
    assert_int_equal(pp_controller_session_at(fix.c, 0)->id, kept);
    pp_controller_open(fix.c, kept);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 2);
    fixture_turn(&fix, "kept, too", "yes");
    assert_true(fix.fake->committed);
    assert_false(fix.fake->no_snapshots);
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_ERROR);
}

static void expect_system(const char *want)
{
    assert_int_equal(fix_slash("/system"), PP_SLASH_DONE);
    assert_string_equal(fix_status()->notice, want);
}

/* A system prompt given in a temporary chat must not be stored with the next conversation. */
static void test_temporary_system_prompt(void **state)
{
    (void)state;
    assert_int_equal(fix_slash("/persona pirate"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/temporary"), PP_SLASH_DONE);
    assert_string_equal(fix_status()->persona, "pirate"); /* the persona chosen before stays */
    assert_int_equal(fix_slash("/system the secret of it"), PP_SLASH_DONE);
    fixture_turn(&fix, "secret", "quite");
    assert_non_null(strstr(fix.fake->messages, "the secret of it"));
    assert_int_equal(fix_slash("/new"), PP_SLASH_DONE);
    expect_system("system prompt: the secret of it");
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_DONE);
    assert_string_equal(fix_status()->persona, "pirate");
    fixture_turn(&fix, "kept", "yes");
    assert_null(strstr(fix.fake->messages, "secret"));
    assert_int_equal(fix_slash("/system none"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/temporary"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/persona pirate"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_DONE);
    assert_string_equal(fix_status()->persona, "");
    expect_system("there is no system prompt");
}

/* A temporary chat does not create a database, not even an empty one, until something is to be kept. */
static void test_temporary_from_the_start(void **state)
{
    (void)state;
    char *text;
    size_t n;
    fix.o.temporary = true;
    snprintf(fix.paths.data, sizeof fix.paths.data, "%s", test_path("unmade"));
    snprintf(fix.paths.db, sizeof fix.paths.db, "%s/pippin.db", fix.paths.data);
    fixture_ready(&fix);
    assert_non_null(strstr(fix_status()->notice, "temporary"));
    fixture_turn(&fix, "a secret question", "quite");
    assert_true(fix_status()->temporary);
    fixture_flush(&fix);
    fixture_stop(&fix);
    assert_int_not_equal(access(fix.paths.data, F_OK), 0);
    fixture_ready(&fix);
    fixture_turn(&fix, "a secret question", "quite");
    pp_controller_add_adapter(fix.c, "/nothing.gguf"); /* things that concern all conversations are kept nevertheless */
    fixture_flush(&fix);
    assert_int_equal(access(fix.paths.db, F_OK), 0);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    fixture_turn(&fix, "another secret", "quite");
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_DONE);
    fixture_turn(&fix, "kept", "yes");
    pump_until(&fix, listed() == 1);
    assert_int_equal(fix_slash("/temporary"), PP_SLASH_DONE);
    fixture_turn(&fix, "another secret", "quite");
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_DONE);
    pump_until(&fix, listed() == 1);
    fixture_flush(&fix);
    fixture_stop(&fix);
    assert_int_equal(pp_read_file(fix.paths.db, 1 << 24, &text, &n, NULL), PP_OK);
    assert_null(memmem(text, n, "secret", 6));
    assert_non_null(memmem(text, n, "kept", 4));
    pp_free(text);
    fixture_ready(&fix); /* the database that exists now is used */
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_DONE);
    pump_until(&fix, listed() == 1);
}

/* A database that cannot be created is an error only when something is to be kept. */
static void test_temporary_without_room(void **state)
{
    (void)state;
    fix.o.temporary = true;
    snprintf(fix.paths.data, sizeof fix.paths.data, "/dev/null/pippin");
    snprintf(fix.paths.db, sizeof fix.paths.db, "/dev/null/pippin/pippin.db");
    fixture_ready(&fix);
    assert_false(fix_status()->notice_is_error || fix_status()->unwanted);
    fixture_turn(&fix, "one", "a");
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_ERROR);
    assert_true(fix_status()->notice_is_error && fix_status()->temporary);
    assert_int_equal(pp_controller_n_messages(fix.c), 2); /* the conversation is still there */
    fixture_turn(&fix, "two", "b");
}

/* A folder that cannot be created: the chat works, and says what is not kept. */
static void test_nowhere_to_keep(void **state)
{
    (void)state;
    struct pp_error err;
    snprintf(fix.paths.data, sizeof fix.paths.data, "/dev/null/pippin");
    snprintf(fix.paths.db, sizeof fix.paths.db, "/dev/null/pippin/pippin.db");
    fixture_ready(&fix);
    assert_true(fix_status()->temporary && fix_status()->unwanted && fix_status()->notice_is_error);
    assert_non_null(strstr(fix_status()->notice, "this chat is not saved"));
    fixture_turn(&fix, "one", "a");
    fixture_turn(&fix, "two", "b");
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_ERROR);
    assert_non_null(strstr(fix_status()->notice, "/dev/null/pippin cannot be written to"));
    fixture_stop(&fix);
    fix.o.resume_latest = true; /* the conversation to be resumed is not there */
    assert_int_equal(fixture_start(&fix, &err), PP_ERR_IO);
    fixture_stop(&fix);
}

/* A database that this version cannot use: temporary chats work all the same, for others the error says what to do. */
static void test_beside_a_newer_database(void **state)
{
    (void)state;
    struct pp_error err;
    sqlite3 *db;
    fixture_ready(&fix);
    fixture_turn(&fix, "kept", "yes");
    fixture_flush(&fix);
    fixture_stop(&fix);
    assert_int_equal(sqlite3_open(fix.paths.db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(fixture_start(&fix, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "newer version of pippin"));
    assert_non_null(strstr(err.text, "pippin --temporary"));
    fix.o.temporary = true;
    fixture_ready(&fix);
    assert_true(fix_status()->temporary && !fix_status()->unwanted);
    assert_non_null(strstr(fix_status()->notice, "newer version of pippin"));
    fixture_turn(&fix, "one", "a");
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_ERROR);
    assert_non_null(strstr(fix_status()->notice, "cannot be used"));
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    fixture_stop(&fix);
    fix.o.resume_latest = true; /* what was explicitly asked for is not silently ignored */
    assert_int_equal(fixture_start(&fix, &err), PP_ERR_UNSUPPORTED);
}

/* A database that turns out to be damaged only when something is to be saved. */
static void test_beside_a_damaged_database(void **state)
{
    (void)state;
    const char rubbish[64] = {1, 2, 3};
    int64_t at;
    sqlite3 *db;
    sqlite3_stmt *stmt;
    fixture_ready(&fix);
    fixture_turn(&fix, "kept", "yes");
    fixture_flush(&fix);
    fixture_stop(&fix);
    assert_int_equal(sqlite3_open(fix.paths.db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT (rootpage - 1) * page_size FROM sqlite_schema, pragma_page_size "
                                            "WHERE name = 'message'", -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    at = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    FILE *f = fopen(fix.paths.db, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_int_equal(fwrite(rubbish, 1, sizeof rubbish, f), sizeof rubbish);
    fclose(f);
    fixture_ready(&fix);
    assert_true(pp_controller_send(fix.c, "lost?"));
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_non_null(strstr(fix_status()->notice, "damaged"));
    assert_non_null(strstr(fix_status()->notice, "; /temporary"));
    char *unsent = pp_controller_take_unsent(fix.c);
    assert_string_equal(unsent, "lost?");
    pp_free(unsent);
    assert_int_equal(fix_slash("/temporary"), PP_SLASH_DONE);
    fixture_turn(&fix, "lost?", "no");
}

TEST_GROUP(temporary)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_temporary, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_temporary_system_prompt, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_temporary_from_the_start, fix_setup, fix_teardown),
        cmocka_unit_test_setup_teardown(test_temporary_without_room, fix_setup, fix_teardown),
        cmocka_unit_test_setup_teardown(test_nowhere_to_keep, fix_setup, fix_teardown),
        cmocka_unit_test_setup_teardown(test_beside_a_newer_database, fix_setup, fix_teardown),
        cmocka_unit_test_setup_teardown(test_beside_a_damaged_database, fix_setup, fix_teardown),
    };
    return cmocka_run_group_tests_name("temporary", tests, NULL, NULL);
}
