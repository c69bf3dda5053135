/* test_controller_running.c - answers that continue while the user is in another conversation, and alternatives
 * generated at the same time; with a fake backend whose answers the test writes. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "tests/backend_fake.h"

static const struct pp_chat_message *alternative(size_t i)
{
    const struct pp_chat_message *m = pp_controller_alternative(fix.c, i);
    assert_non_null(m);
    return m;
}

static void open_session(int64_t id)
{
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_session_id(fix.c) == id);
}

static enum pp_code lock_of(const char *key, int *fd)
{
    char locks[600];
    struct pp_error err;
    snprintf(locks, sizeof locks, "%s/locks", fix.paths.data);
    return pp_session_lock(locks, key, fd, &err);
}

/* --- elsewhere -------------------------------------------------------------------------------------------- */

static void goes_on_elsewhere(void **state)
{
    char key[33];
    int fd;
    (void)state;
    int64_t first = fix_ask("hello");
    snprintf(key, sizeof key, "%s", fix_status()->session_key);
    assert_string_equal(fix.fake->shown, key);
    fake_text(&fix, "half", 1);
    pump_until(&fix, fix_status()->state == PP_STATE_ANSWER);
    pp_controller_new_session(fix.c);
    assert_int_equal(pp_controller_session_id(fix.c), 0);
    assert_int_equal(pp_controller_n_messages(fix.c), 0);
    assert_int_equal(fix_status()->state, PP_STATE_IDLE);
    assert_int_equal(fix.fake->cancels, 0);
    assert_int_equal(fix.fake->leaves, 0);
    assert_string_equal(fix.fake->shown, "");
    assert_int_equal(pp_controller_session_activity(fix.c, first), PP_SESSION_ANSWERING);
    assert_int_equal(pp_controller_n_elsewhere(fix.c), 1);

    /* a second conversation meanwhile, so that both stream */
    int64_t second = fix_ask("and you?");
    assert_int_equal(fix.fake->generations, 2);
    fake_text(&fix, "me ", 1);
    fake_choose(&fix, 0);
    fake_text(&fix, " of it", 2);
    pump_until(&fix, fix_status()->state == PP_STATE_ANSWER);
    assert_string_equal(fix_message(1)->text, "me ");
    assert_int_equal(lock_of(key, &fd), PP_ERR_BUSY); /* still locked by us */
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix.fake->leaves == 1);
    assert_string_equal(fix.fake->left, key);
    assert_non_null(strstr(fix_status()->notice, "hello"));
    assert_int_equal(fix_status()->state, PP_STATE_ANSWER); /* the answer on the screen */
    assert_int_equal(pp_controller_session_activity(fix.c, first), PP_SESSION_ANSWERED);
    fixture_flush(&fix);
    assert_int_equal(lock_of(key, &fd), PP_OK);
    close(fd);

    /* back to the first, while the second goes on */
    open_session(first);
    assert_string_equal(fix_message(1)->text, "half of it");
    assert_int_equal(fix_message(1)->state, PP_MESSAGE_COMPLETE);
    assert_int_equal(pp_controller_session_activity(fix.c, first), PP_SESSION_QUIET);
    assert_int_equal(pp_controller_session_activity(fix.c, second), PP_SESSION_ANSWERING);
    assert_true(pp_controller_send(fix.c, "more"));
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
    assert_int_equal(pp_controller_n_elsewhere(fix.c), 1);
}

static void back_while_it_is_written(void **state)
{
    (void)state;
    int64_t first = fix_ask("hello");
    fake_text(&fix, "one ", 1);
    pp_controller_new_session(fix.c);
    fake_text(&fix, "two ", 2);
    fixture_flush(&fix);
    open_session(first);
    assert_int_equal(fix_status()->state, PP_STATE_ANSWER);
    assert_string_equal(fix_message(1)->text, "one two ");
    assert_int_equal(fix_message(1)->state, PP_MESSAGE_PARTIAL);
    fake_text(&fix, "three", 3);
    pump_until(&fix, strcmp(fix_message(1)->text, "one two three") == 0);
    assert_false(pp_controller_send(fix.c, "not yet"));
    assert_true(pp_controller_cancel(fix.c));
    assert_int_equal(fix.fake->cancelled, fix.fake->request);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_int_equal(fix_message(1)->state, PP_MESSAGE_CANCELLED);
    assert_false(pp_controller_cancel(fix.c));
    assert_int_equal(fix.fake->leaves, 0); /* the conversation was not left after all */
}

/* An answer ends while its conversation is being opened: its end is shown, whatever was read first. */
static void ends_while_it_is_opened(void **state)
{
    (void)state;
    int64_t first = fix_ask("hello");
    fake_text(&fix, "one ", 1);
    pp_controller_new_session(fix.c);
    fixture_flush(&fix);
    pp_controller_open(fix.c, first);
    fake_text(&fix, "two", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, pp_controller_session_id(fix.c) == first);
    pump_until(&fix, fix_message(1)->state == PP_MESSAGE_COMPLETE);
    assert_string_equal(fix_message(1)->text, "one two");
    assert_int_equal(fix_status()->state, PP_STATE_IDLE);
    fixture_flush(&fix);
    fixture_turn(&fix, "and", "so on");
}

/* A conversation that is left before its question is saved: the question is saved and asked all the same. */
static void left_while_saving(void **state)
{
    (void)state;
    assert_true(pp_controller_send(fix.c, "hello"));
    assert_int_equal(fix_status()->state, PP_STATE_SAVING);
    pp_controller_new_session(fix.c);
    pump_until(&fix, fix.fake->generations == 1 && pp_controller_session_id(fix.c) == 0);
    assert_int_equal(pp_controller_n_elsewhere(fix.c), 1);
    assert_int_equal(fix.fake->cancels, 0);
    fake_text(&fix, "hi", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, pp_controller_n_elsewhere(fix.c) == 0);
}

static void deleted_elsewhere(void **state)
{
    (void)state;
    int64_t first = fix_ask("hello");
    pp_controller_new_session(fix.c);
    pp_controller_delete(fix.c, first);
    assert_int_equal(fix.fake->cancels, 1);
    assert_int_equal(fix.fake->forgets, 0);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    pump_until(&fix, fix.fake->forgets == 1);
    assert_int_equal(pp_controller_n_elsewhere(fix.c), 0);
    pp_controller_open(fix.c, first);
    pump_until(&fix, fix_status()->notice_is_error);
    assert_int_equal(pp_controller_session_id(fix.c), 0);
}

static void deleted_here(void **state)
{
    (void)state;
    int64_t first = fix_ask("hello");
    pp_controller_delete(fix.c, first);
    assert_int_equal(fix.fake->cancels, 1);
    assert_int_equal(pp_controller_session_id(fix.c), first);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    pump_until(&fix, fix.fake->forgets == 1);
    assert_int_equal(pp_controller_session_id(fix.c), 0);
}

static void no_other_model_meanwhile(void **state)
{
    (void)state;
    fix_ask("hello");
    pp_controller_new_session(fix.c);
    pp_controller_load(fix.c, fix.model);
    assert_int_equal(fix.fake->loads, 1);
    assert_non_null(strstr(fix_status()->notice, "hello"));
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, pp_controller_n_elsewhere(fix.c) == 0);
    pp_controller_load(fix.c, fix.model);
    assert_int_equal(fix.fake->loads, 2);
}

static void fails_elsewhere(void **state)
{
    (void)state;
    fix_ask("hello");
    pp_controller_new_session(fix.c);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_NOMEM);
    pump_until(&fix, fix_status()->notice_is_error);
    assert_non_null(strstr(fix_status()->notice, "hello"));
    assert_non_null(strstr(fix_status()->notice, "told to fail"));
}

/* --- alternatives ----------------------------------------------------------------------------------------- */

static void side_by_side(void **state)
{
    (void)state;
    fixture_turn(&fix, "a song", "no");
    pp_controller_regenerate(fix.c, PP_MAX_ALTERNATIVES + 1);
    assert_int_equal(fix_status()->state, PP_STATE_IDLE);
    pp_controller_regenerate(fix.c, 3);
    pump_until(&fix, fix.fake->generations == 4);
    assert_int_equal(pp_controller_n_alternatives(fix.c), 3);
    assert_int_not_equal(fix.fake->asked[1].seed, fix.fake->asked[2].seed);
    assert_int_not_equal(fix.fake->asked[2].seed, fix.fake->asked[3].seed);
    for (int i = 1; i <= 3; i++) /* below 2^53, so that other programs read the same number from JSON */
        assert_true(fix.fake->asked[i].seed < UINT64_C(1) << 53);
    assert_int_equal(fix_message(1)->id, fix.fake->asked[1].message_id);
    assert_int_equal(fix_message(1)->sibling, 1);
    assert_int_equal(fix_message(1)->n_siblings, 4);
    for (int i = 1; i <= 3; i++) {
        fake_choose(&fix, i);
        fake_text(&fix, i == 1 ? "la" : i == 2 ? "le" : "lu", 1);
    }
    pump_until(&fix, alternative(2)->len == 2);
    assert_string_equal(alternative(0)->text, "la");
    assert_string_equal(alternative(1)->text, "le");
    assert_string_equal(fix_message(1)->text, "la");

    /* another alternative is chosen while they are written */
    pp_controller_sibling(fix.c, 1, 1);
    assert_string_equal(fix_message(1)->text, "le");
    pp_controller_sibling(fix.c, 1, 1);
    assert_string_equal(fix_message(1)->text, "lu");
    pp_controller_sibling(fix.c, 1, 1); /* there is no further one */
    pp_controller_sibling(fix.c, 1, -1);
    for (int i = 3; i >= 1; i--) {
        fake_choose(&fix, i);
        fake_text(&fix, "!", 2);
        assert_int_equal(fix_status()->state, PP_STATE_ANSWER);
        fix.fake->done = (struct pp_stats){.prompt_tokens = 20, .decode_tokens = (uint64_t)i,
                                           .decode_ns = 1000000000};
        fake_done(&fix, PP_FINISH_END, PP_OK);
    }
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_string_equal(fix_message(1)->text, "le!");
    assert_string_equal(alternative(2)->text, "lu!");
    assert_int_equal(alternative(2)->state, PP_MESSAGE_COMPLETE);
    assert_true(fix_status()->ctx_used == 22 && fix_status()->tokens_per_s == 2.0f);

    /* the figures shown are those of the alternative on the screen */
    pp_controller_sibling(fix.c, 1, 1);
    assert_true(fix_status()->ctx_used == 23 && fix_status()->tokens_per_s == 3.0f);
    pp_controller_sibling(fix.c, 1, -1);
    assert_true(fix_status()->ctx_used == 22 && fix_status()->tokens_per_s == 2.0f);
    fixture_flush(&fix);

    /* the conversation continues from the chosen alternative, also after a restart */
    int64_t id = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    assert_int_equal(pp_controller_n_alternatives(fix.c), 0);
    open_session(id);
    assert_string_equal(fix_message(1)->text, "le!");
    fixture_turn(&fix, "more", "ok");
    assert_string_equal(fix.fake->messages,
                        "[{\"role\":\"user\",\"content\":\"a song\"},{\"role\":\"assistant\",\"content\":\"le!\"},"
                        "{\"role\":\"user\",\"content\":\"more\"}]");
}

static void all_are_stopped(void **state)
{
    (void)state;
    fixture_turn(&fix, "a song", "no");
    pp_controller_regenerate(fix.c, 2);
    pump_until(&fix, fix.fake->generations == 3);
    assert_true(pp_controller_cancel(fix.c));
    assert_int_equal(fix.fake->cancels, 2);
    for (int i = 1; i <= 2; i++) {
        fake_choose(&fix, i);
        fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    }
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_int_equal(alternative(0)->state, PP_MESSAGE_CANCELLED);
    assert_int_equal(alternative(1)->state, PP_MESSAGE_CANCELLED);
    /* stopped before they begin, too */
    pp_controller_regenerate(fix.c, 2);
    assert_true(pp_controller_cancel(fix.c));
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_int_equal(fix.fake->generations, 3);
    assert_int_equal(alternative(1)->state, PP_MESSAGE_CANCELLED);
    assert_true(pp_controller_send(fix.c, "next"));
    assert_int_equal(pp_controller_n_alternatives(fix.c), 0);
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
}

/* Alternatives whose conversation was left are shown side by side again when the user returns. */
static void alternatives_elsewhere(void **state)
{
    (void)state;
    fixture_turn(&fix, "a song", "no");
    int64_t id = pp_controller_session_id(fix.c);
    pp_controller_regenerate(fix.c, 2);
    pump_until(&fix, fix.fake->generations == 3);
    pp_controller_new_session(fix.c);
    assert_int_equal(pp_controller_n_elsewhere(fix.c), 2);
    for (int i = 1; i <= 2; i++) {
        fake_choose(&fix, i);
        fake_text(&fix, i == 1 ? "la" : "le", 1);
    }
    fixture_flush(&fix);
    open_session(id);
    assert_int_equal(pp_controller_n_alternatives(fix.c), 2);
    pump_until(&fix, alternative(1)->len == 2);
    assert_string_equal(alternative(0)->text, "la");
    assert_int_equal(alternative(1)->n_siblings, 3);
    assert_int_equal(alternative(1)->sibling, 2);
}

static void slash_command(void **state)
{
    char arg[64];
    (void)state;
    fixture_turn(&fix, "a song", "no");
    assert_int_equal(pp_controller_slash(fix.c, "/regen many", arg, sizeof arg), PP_SLASH_ERROR);
    assert_int_equal(pp_controller_slash(fix.c, "/regen 0", arg, sizeof arg), PP_SLASH_ERROR);
    assert_int_equal(pp_controller_slash(fix.c, "/regen 3", arg, sizeof arg), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 4);
}

/* A key for the next branch is not lost if it is pressed before the previous branch has been read. */
static void many_steps(void **state)
{
    static const char *const answers[] = {"b", "c", "d"};
    (void)state;
    fixture_turn(&fix, "hello", "a");
    for (int i = 0; i < 3; i++) {
        pp_controller_regenerate(fix.c, 1);
        pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
        fake_text(&fix, answers[i], 1);
        fake_done(&fix, PP_FINISH_END, PP_OK);
        pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    }
    for (int i = 0; i < 3; i++)
        pp_controller_sibling(fix.c, 1, -1);
    pump_until(&fix, strcmp(fix_message(1)->text, "a") == 0);
    assert_false(fix_status()->notice_is_error);
    assert_string_equal(fix_status()->notice, "answer 1 of 4");
    pp_controller_sibling(fix.c, 1, 1);
    for (int i = 0; i < 9; i++) /* more steps than there are answers: it stops at the last one */
        pp_controller_sibling(fix.c, 1, 1);
    pump_until(&fix, strcmp(fix_message(1)->text, "d") == 0);
    fixture_flush(&fix);
    pp_controller_sibling(fix.c, 1, 1);
    assert_string_equal(fix_status()->notice, "answer 4 of 4"); /* at the end the key is answered with a notice, too */
}

/* Two answers end while the conversation of one of them is being opened: its end is shown, whichever came last. */
static void several_end_while_one_is_opened(void **state)
{
    (void)state;
    int64_t first = fix_ask("hello");
    fake_text(&fix, "one ", 1);
    pp_controller_new_session(fix.c);
    fix_ask("and you?");
    fixture_flush(&fix);
    pp_controller_open(fix.c, first);
    fake_choose(&fix, 0);
    fake_text(&fix, "two", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    fake_choose(&fix, 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, pp_controller_session_id(fix.c) == first);
    pump_until(&fix, fix_message(1)->state == PP_MESSAGE_COMPLETE);
    assert_string_equal(fix_message(1)->text, "one two");
}

/* --- while the first question is being saved --------------------------------------------------------------- */

static struct pp_session stored_session(int64_t id)
{
    struct pp_session s = {0};
    struct pp_store *st;
    struct pp_error err;
    fixture_flush(&fix);
    assert_ok(pp_store_open_to_read(fix.paths.db, &st, &err), err);
    assert_ok(pp_store_session_get(st, id, &s, &err), err);
    pp_store_close(st);
    return s;
}

/* A choice made while a new conversation is being stored is stored, too. */
static void chosen_while_saving(void **state)
{
    (void)state;
    assert_true(pp_controller_send(fix.c, "hello"));
    assert_int_equal(fix_status()->state, PP_STATE_SAVING);
    pp_controller_rename(fix.c, 0, "greetings");
    assert_int_equal(fix_slash("/system Be brief."), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/set temp 0.25"), PP_SLASH_DONE);
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
    assert_string_equal(fix_status()->title, "greetings");
    struct pp_session s = stored_session(pp_controller_session_id(fix.c));
    assert_string_equal(s.title, "greetings");
    assert_string_equal(s.system, "Be brief.");
    assert_non_null(strstr(s.settings, "0.25"));
    assert_int_equal(s.head, fix_message(1)->id);
    pp_session_clear(&s);
}

static void deleted_while_saving(void **state)
{
    (void)state;
    assert_true(pp_controller_send(fix.c, "hello"));
    assert_int_equal(fix_slash("/delete yes"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->forgets == 1);
    assert_int_equal(pp_controller_session_id(fix.c), 0);
    assert_int_equal(pp_controller_n_messages(fix.c), 0);
    pp_controller_refresh_sessions(fix.c, "");
    fixture_flush(&fix);
    assert_int_equal(pp_controller_n_sessions(fix.c), 0);
}

/* --- which model a conversation is had with ---------------------------------------------------------------- */

static char other[700];

/* Two conversations, the second with another model; the first is on the screen again. */
static void with_two_models(int64_t id[static 2])
{
    struct pp_error err;
    char command[800], first[600];
    snprintf(other, sizeof other, "%s/other.gguf", fix.paths.data);
    snprintf(first, sizeof first, "%s", fix.model);
    snprintf(command, sizeof command, "/model %s", other);
    assert_ok(pp_write_file(other, "x", 1, 0600, &err), err);
    id[0] = fix_ask("hello");
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pp_controller_new_session(fix.c);
    fixture_turn(&fix, "and you?", "me?");
    id[1] = pp_controller_session_id(fix.c);
    assert_int_equal(fix_slash(command), PP_SLASH_DONE);
    snprintf(fix.model, sizeof fix.model, "%.599s", other);
    fake_loaded(&fix);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    snprintf(fix.model, sizeof fix.model, "%s", first);
    open_session(id[0]);
}

static void another_model_is_told(void **state)
{
    int64_t id[2];
    (void)state;
    with_two_models(id);
    assert_non_null(strstr(fix_status()->notice, "another model"));
    assert_non_null(strstr(fix_status()->notice, fix.model));
    fixture_turn(&fix, "and", "so on");
    struct pp_session s = stored_session(id[0]);
    assert_string_equal(s.model, fix.model); /* its model was not changed */
    pp_session_clear(&s);
    const uint64_t told = fix_status()->notice_serial;
    open_session(id[1]);
    assert_int_equal(fix_status()->notice_serial, told);

    /* a new conversation gets the loaded model, wherever it was begun */
    open_session(id[0]);
    pp_controller_new_session(fix.c);
    s = stored_session(fix_ask("a third"));
    assert_string_equal(s.model, other);
    pp_session_clear(&s);
}

/* The loaded model belongs to the conversation for which it was chosen, and not to the one on the screen. */
static void left_while_loading(void **state)
{
    int64_t id[2];
    (void)state;
    with_two_models(id);
    open_session(id[1]);
    pp_controller_load(fix.c, fix.model);
    assert_int_equal(fix_status()->state, PP_STATE_LOADING);
    open_session(id[0]);
    pp_controller_load(fix.c, other); /* refused at this time */
    open_session(id[1]);
    open_session(id[0]);
    const uint64_t told = fix_status()->notice_serial;
    fake_loaded(&fix);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_int_equal(fix_status()->notice_serial, told); /* it is this conversation's model */
    for (int i = 0; i < 2; i++) {
        struct pp_session s = stored_session(id[i]);
        assert_string_equal(s.model, fix.model);
        pp_session_clear(&s);
    }
    pp_controller_new_session(fix.c);
    pp_controller_load(fix.c, other);
    open_session(id[1]);
    snprintf(fix.model, sizeof fix.model, "%.599s", other);
    fake_loaded(&fix);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_non_null(strstr(fix_status()->notice, "another model"));
    struct pp_session s = stored_session(id[1]);
    assert_string_not_equal(s.model, other);
    pp_session_clear(&s);
}

/* Copying a conversation stops nothing: the copy has the answer so far, which continues in the original. */
static void fork_of_a_running_answer(void **state)
{
    (void)state;
    fixture_turn(&fix, "about apples", "red");
    const int64_t original = fix_ask("and pears?");
    fake_text(&fix, "gre", 1);
    pump_until(&fix, fix_message(3)->len == 3);
    pp_controller_fork(fix.c, 0);
    pump_until(&fix, pp_controller_session_id(fix.c) != original);
    const int64_t copy = pp_controller_session_id(fix.c);
    assert_int_equal(fix.fake->cancels, 0);
    assert_non_null(strstr(fix_status()->notice, "running answer continues"));
    assert_int_equal(fix_status()->state, PP_STATE_IDLE);
    assert_string_equal(fix_message(3)->text, "gre");
    assert_int_equal(fix_message(3)->state, PP_MESSAGE_CANCELLED);
    pp_controller_fork(fix.c, 1); /* the copy's messages */
    pump_until(&fix, pp_controller_session_id(fix.c) != copy);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    assert_null(strstr(fix_status()->notice, "running answer continues"));
    fake_text(&fix, "en", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, !pp_controller_n_elsewhere(fix.c));
    pp_controller_open(fix.c, original);
    pump_until(&fix, pp_controller_session_id(fix.c) == original);
    assert_string_equal(fix_message(3)->text, "green");
    assert_int_equal(fix_message(3)->state, PP_MESSAGE_COMPLETE);
    pp_controller_open(fix.c, copy);
    pump_until(&fix, pp_controller_session_id(fix.c) == copy);
    assert_string_equal(fix_message(3)->text, "gre");
    pp_controller_continue(fix.c);
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
    assert_string_equal(fix.fake->continue_text, "gre");
    fake_text(&fix, "y", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_string_equal(fix_message(3)->text, "grey");
}

/* A copy requested while the question is being saved is made when the answer has begun. If it ends before the question,
 * it contains nothing of either. */
static void fork_while_saving(void **state)
{
    (void)state;
    fixture_turn(&fix, "about apples", "red");
    const int64_t original = pp_controller_session_id(fix.c);
    assert_true(pp_controller_send(fix.c, "and pears?"));
    assert_int_equal(fix_status()->state, PP_STATE_SAVING);
    pp_controller_fork(fix.c, 1);
    pump_until(&fix, pp_controller_session_id(fix.c) != original);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    assert_int_equal(pp_controller_n_elsewhere(fix.c), 1);
    assert_int_equal(fix.fake->cancels, 0);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, !pp_controller_n_elsewhere(fix.c));
}

TEST_GROUP(controller_running)
{
    const struct CMUnitTest tests[] = {
        READY(goes_on_elsewhere), READY(back_while_it_is_written), READY(ends_while_it_is_opened),
        READY(left_while_saving), READY(deleted_elsewhere),        READY(deleted_here),
        READY(fails_elsewhere),   READY(no_other_model_meanwhile), READY(side_by_side),
        READY(all_are_stopped),   READY(alternatives_elsewhere),   READY(slash_command),
        READY(many_steps),        READY(several_end_while_one_is_opened),
        READY(chosen_while_saving), READY(deleted_while_saving), READY(another_model_is_told),
        READY(left_while_loading), READY(fork_of_a_running_answer), READY(fork_while_saving),
    };
    return cmocka_run_group_tests_name("controller_running", tests, NULL, NULL);
}
