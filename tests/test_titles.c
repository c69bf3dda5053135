/* test_titles.c - titles by the model: requested once, after everything else, and cancelled by whatever the user
 * does. */
#include <string.h>

#include "tests/backend_fake.h"

static int setup(void **state)
{
    (void)state;
    fixture_init(&fix);
    fix.o.titles = "model";
    fixture_ready(&fix);
    return 0;
}

static const char *title(void)
{
    return pp_controller_status(fix.c)->title;
}

static void a_title_comes_after_the_first_answer(void **state)
{
    (void)state;
    fixture_turn(&fix, "why is the sea salty", "because of rivers");
    assert_string_equal(title(), "why is the sea salty");
    assert_int_equal(fix.fake->generations, 2);
    assert_true(fix.fake->background);
    assert_string_equal(fix.fake->key, ""); /* the conversation's own pages are not used */
    assert_int_equal(fix.fake->message_id, 0);
    assert_non_null(strstr(fix.fake->messages, "because of rivers"));
    assert_true(fix.fake->skip_reasoning);
    assert_int_equal(fixture_state(&fix), PP_STATE_IDLE); /* the screen does not wait for it */
    fake_think(&fix, "A title, hm", true, false, 2);
    fake_text(&fix, " \"**Salt of the ", 3);
    fake_text(&fix, "Sea**\".", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, strcmp(title(), "Salt of the Sea") == 0);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    fixture_turn(&fix, "and the lakes", "they have outlets");
    assert_int_equal(fix.fake->generations, 3); /* requested once */
}

static void the_user_comes_first(void **state)
{
    (void)state;
    fixture_turn(&fix, "why is the sea salty", "because of rivers");
    uint64_t asked = fix.fake->request;
    assert_true(pp_controller_send(fix.c, "and the lakes"));
    assert_int_equal(fix.fake->cancels, 1);
    assert_int_equal(fix.fake->cancelled, asked);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_PREFILL);
    uint64_t request = fix.fake->request;
    fix.fake->request = asked; /* what it says after that is ignored */
    fake_text(&fix, "Too late", 2);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    fix.fake->request = request;
    fake_text(&fix, "they have outlets", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_string_equal(title(), "why is the sea salty");
    assert_string_equal(pp_controller_message(fix.c, 3)->text, "they have outlets");
}

static void a_title_of_the_users_stays(void **state)
{
    (void)state;
    fixture_turn(&fix, "why is the sea salty", "because of rivers");
    pp_controller_rename(fix.c, 0, "My own");
    assert_int_equal(fix.fake->cancels, 1);
    fake_text(&fix, "Another one", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    fixture_flush(&fix);
    assert_string_equal(title(), "My own");
    pp_controller_regenerate(fix.c, 1);
    pump_until(&fix, fix.fake->generations == 3);
    fake_text(&fix, "evaporation", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(fix.fake->generations, 3);
}

/* The title of a conversation that was deleted is ignored. */
static void a_title_of_what_is_deleted(void **state)
{
    (void)state;
    fixture_turn(&fix, "why is the sea salty", "because of rivers");
    const uint64_t asked = fix.fake->request;
    pp_controller_delete(fix.c, 0);
    fake_text(&fix, "Too late", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, pp_controller_session_id(fix.c) == 0);
    assert_int_equal(fix.fake->cancelled, asked);
    fixture_flush(&fix);
    assert_string_equal(fix_status()->notice, "deleted: why is the sea salty");
}

static void first_words_ask_nobody(void **state)
{
    (void)state;
    fixture_turn(&fix, "why is the sea salty", "because of rivers");
    assert_int_equal(fix.fake->generations, 1);
    assert_string_equal(title(), "why is the sea salty");
}

TEST_GROUP(titles)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_title_comes_after_the_first_answer, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(the_user_comes_first, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(a_title_of_the_users_stays, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(a_title_of_what_is_deleted, setup, fix_teardown),
        cmocka_unit_test_setup_teardown(first_words_ask_nobody, fix_setup_ready, fix_teardown),
    };
    return cmocka_run_group_tests_name("titles", tests, NULL, NULL);
}
