/* test_controller.c - the controller's state machine on a real store, with a fake backend whose answers the test
 * writes. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/store_internal.h"
#include "src/title.h"
#include "tests/backend_fake.h"
#include "tests/fill_store.h"
#include "tests/store_fixture.h"

/* The text of a message in the database, in a static buffer; its state in *state. */
static const char *stored(int64_t id, enum pp_message_state *state)
{
    static char text[512];
    struct pp_store *st = fix_store();
    struct pp_message *list;
    size_t n;
    struct pp_error err;
    assert_ok(pp_store_branch(st, id, &list, &n, &err), err);
    assert_true(n > 0);
    snprintf(text, sizeof text, "%s", list[n - 1].content);
    *state = list[n - 1].state;
    pp_message_list_free(list, n);
    pp_store_close(st);
    return text;
}

/* --- states ----------------------------------------------------------------------------------------------- */

static void test_one_turn(void **state)
{
    enum pp_message_state ms;
    struct pp_error err;
    (void)state;
    assert_ok(fixture_start(&fix, &err), err);
    assert_int_equal(fix_status()->state, PP_STATE_LOADING);
    assert_int_equal(fix.fake->loads, 1);
    assert_false(pp_controller_send(fix.c, "too early"));
    fake_loaded(&fix);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_string_equal(fix_status()->model.name, "toy");
    assert_string_equal(fix_status()->session_key, "");

    assert_false(pp_controller_send(fix.c, " \n"));
    assert_true(pp_controller_send(fix.c, "What\n is \"this\"?"));
    assert_int_equal(fix_status()->state, PP_STATE_SAVING);
    assert_int_equal(pp_controller_n_messages(fix.c), 1);
    assert_false(pp_controller_send(fix.c, "again"));
    assert_int_equal(fix.fake->generations, 0);
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
    assert_int_equal(fix.fake->generations, 1);
    assert_true(fix.fake->committed);
    assert_string_equal(fix.fake->messages, "[{\"role\":\"user\",\"content\":\"What\\n is \\\"this\\\"?\"}]");
    assert_string_equal(fix_status()->title, "What is \"this\"?");
    assert_int_equal(strlen(fix_status()->session_key), 16);
    assert_string_equal(fix.fake->key, fix_status()->session_key);

    fake_text(&fix, "A te", 1);
    pump_until(&fix, fix_status()->state == PP_STATE_ANSWER);
    uint64_t revision = fix_message(1)->revision;
    fake_text(&fix, "st.", 2);
    pump_until(&fix, fix_message(1)->len == 7);
    assert_int_not_equal(fix_message(1)->revision, revision);
    assert_string_equal(fix_message(1)->text, "A test.");
    assert_int_equal(fix_message(1)->state, PP_MESSAGE_PARTIAL);
    assert_false(pp_controller_send(fix.c, "while it answers"));
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_int_equal(fix_message(1)->state, PP_MESSAGE_COMPLETE);
    fixture_flush(&fix);
    assert_string_equal(stored(fix_message(1)->id, &ms), "A test.");
    assert_int_equal(ms, PP_MESSAGE_COMPLETE);
}

static void test_events_of_an_old_request(void **state)
{
    (void)state;
    fix_ask("one");
    uint64_t first = fix.fake->request;
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    fix_ask("two");
    uint64_t second = fix.fake->request;
    assert_int_not_equal(first, second);
    fix.fake->request = first;
    fake_text(&fix, "late", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    fix.fake->request = second;
    fake_text(&fix, "right", 1);
    pump_until(&fix, fix_status()->state == PP_STATE_ANSWER);
    assert_string_equal(fix_message(3)->text, "right");
    /* "two" follows an answer without text, which the model is not shown */
    assert_string_equal(fix.fake->messages, "[{\"role\":\"user\",\"content\":\"one\\n\\ntwo\"}]");
}

static void test_load_fails(void **state)
{
    struct pp_error err;
    (void)state;
    assert_ok(fixture_start(&fix, &err), err);
    struct pp_event *e = pp_event_new(PP_EVENT_LOAD_FAILED);
    pp_fail(&e->err, PP_ERR_FORMAT, "no good");
    assert_true(pp_queue_push(fix.fake->events, e));
    pump_until(&fix, fix_status()->state == PP_STATE_FAILED);
    assert_string_equal(fix_status()->notice, "no good");
    assert_true(fix_status()->not_loaded);
    assert_int_equal(fix_status()->ctx_total, 0);
    assert_false(pp_controller_send(fix.c, "hello"));
    pp_controller_load(fix.c, "/does/not/exist");
    assert_int_equal(fix_status()->state, PP_STATE_FAILED);
    pp_controller_load(fix.c, fix.model);
    assert_int_equal(fix_status()->state, PP_STATE_LOADING);
    assert_false(fix_status()->not_loaded);
    assert_int_equal(fix.fake->loads, 2);
}

/* If the worker cannot even open the new model, the old one stays loaded. */
static void test_old_model_stays(void **state)
{
    (void)state;
    pp_controller_load(fix.c, fix.model);
    struct pp_event *e = pp_event_new(PP_EVENT_LOAD_FAILED);
    pp_fail(&e->err, PP_ERR_FORMAT, "no good");
    e->info = pp_calloc(1, sizeof *e->info);
    assert_non_null(e->info);
    snprintf(e->info->name, sizeof e->info->name, "old");
    e->info->n_ctx = 64;
    assert_true(pp_queue_push(fix.fake->events, e));
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_string_equal(fix_status()->notice, "no good");
    assert_string_equal(fix_status()->model.name, "old");
    fixture_turn(&fix, "still there?", "yes");
}

/* The conversation for which another model was chosen may be gone by the time it is loaded. */
static void test_deleted_while_loading(void **state)
{
    (void)state;
    fixture_turn(&fix, "about apples", "red");
    assert_true(pp_controller_load(fix.c, fix.model));
    pp_controller_delete(fix.c, 0);
    pump_until(&fix, pp_controller_session_id(fix.c) == 0);
    fake_loaded(&fix);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    fixture_flush(&fix);
    assert_string_equal(fix_status()->notice, "deleted: about apples");
}

static void test_no_such_model(void **state)
{
    struct pp_error err;
    (void)state;
    fix.o.model = "/does/not/exist.gguf";
    assert_int_equal(fixture_start(&fix, &err), PP_ERR_NOT_FOUND);
    assert_null(fix.c);
}

/* --- stopping --------------------------------------------------------------------------------------------- */

static void test_cancel_saving(void **state)
{
    enum pp_message_state ms;
    (void)state;
    assert_false(pp_controller_cancel(fix.c));
    assert_true(pp_controller_send(fix.c, "hello"));
    assert_true(pp_controller_cancel(fix.c));
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_int_equal(fix.fake->generations, 0);
    assert_int_equal(fix.fake->cancels, 0);
    assert_int_equal(fix_message(1)->state, PP_MESSAGE_CANCELLED);
    fixture_flush(&fix);
    assert_string_equal(stored(fix_message(0)->id, &ms), "hello");
    assert_string_equal(stored(fix_message(1)->id, &ms), "");
    assert_int_equal(ms, PP_MESSAGE_CANCELLED);
    fixture_turn(&fix, "again", "yes"); /* the cancellation does not affect the next answer */
    assert_string_equal(fix_message(3)->text, "yes");
}

/* When an answer continues, its token count excludes the token that ended it. */
static void test_continue_after_opening(void **state)
{
    (void)state;
    const int64_t id = fix_ask("hello");
    fix.fake->stats = "{\"finish\":\"end\"}"; /* for an answer of three tokens */
    fix_answer("Hi there!");
    pp_controller_new_session(fix.c);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 0);
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 2);
    pp_controller_continue(fix.c);
    assert_int_equal(fix.fake->continue_tokens, 2);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
}

static void test_cancel_answer(void **state)
{
    enum pp_message_state ms;
    (void)state;
    fix_ask("hello");
    assert_true(pp_controller_cancel(fix.c));
    assert_int_equal(fix.fake->cancels, 1);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);

    fix_ask("hello again");
    fake_text(&fix, "half an", 2);
    pump_until(&fix, fix_status()->state == PP_STATE_ANSWER);
    assert_true(pp_controller_cancel(fix.c));
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_int_equal(fix_message(3)->state, PP_MESSAGE_CANCELLED);
    fixture_flush(&fix);
    assert_string_equal(stored(fix_message(3)->id, &ms), "half an");
    assert_int_equal(ms, PP_MESSAGE_CANCELLED);

    pp_controller_continue(fix.c);
    assert_string_equal(fix.fake->continue_text, "half an");
    assert_int_equal(fix.fake->continue_tokens, 2);
    assert_int_equal(fix.fake->message_id, fix_message(3)->id);
    fake_text(&fix, " answer", 3);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_string_equal(fix_message(3)->text, "half an answer");
    fixture_flush(&fix);
    assert_string_equal(stored(fix_message(3)->id, &ms), "half an answer");

    pp_controller_continue(fix.c); /* the answer is complete: the model adds nothing but the token that ends it */
    assert_int_equal(fix.fake->continue_tokens, 4); /* ... of which the answer has one already: that is not continued */
    fake_text(&fix, "", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_non_null(strstr(fix_status()->notice, "has nothing to add"));
    fix_ask("and now?");
    fake_text(&fix, "", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_non_null(strstr(fix_status()->notice, "answer was empty"));
    pp_controller_continue(fix.c);
    assert_non_null(strstr(fix_status()->notice, "/regen writes one"));

    fix_ask("and what became of the model?"); /* of a damaged file: the notice names the command that helps */
    struct pp_event *e = pp_event_new(PP_EVENT_DONE);
    assert_non_null(e);
    e->request = fix.fake->request;
    pp_fail(&e->err, PP_ERR_IO, "it was cut short; load the model again");
    assert_true(pp_queue_push(fix.fake->events, e));
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_non_null(strstr(fix_status()->notice, "load the model again with /model /"));
}

static void test_answer_fails(void **state)
{
    (void)state;
    fix_ask("hello");
    fake_text(&fix, "so f", 1);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_NOMEM);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_int_equal(fix_message(1)->state, PP_MESSAGE_PARTIAL);
    assert_string_equal(fix_message(1)->text, "so f");
    assert_true(fix_status()->notice_is_error);
    fixture_turn(&fix, "and now?", "fine");
}

/* As long as an answer cannot be saved, the screen shows so, whatever other notices there are. */
static void test_unsaved(void **state)
{
    (void)state;
    char aside[700];
    snprintf(aside, sizeof aside, "%s.aside", fix.paths.db);
    fix_ask("one");
    fake_text(&fix, "half", 1);
    assert_string_equal(fix_status()->unsaved, "");
    assert_int_equal(rename(fix.paths.db, aside), 0);
    fake_text(&fix, " an answer", 2);
    pump_until(&fix, *fix_status()->unsaved);
    assert_non_null(strstr(fix_status()->notice, "moved"));
    assert_int_equal(fix_slash("/nosuch"), PP_SLASH_ERROR);
    assert_null(strstr(fix_status()->notice, "moved"));
    assert_non_null(strstr(fix_status()->unsaved, "moved"));
    assert_int_equal(rename(aside, fix.paths.db), 0);
    pump_until(&fix, !*fix_status()->unsaved);
    assert_string_equal(fix_status()->notice, "saving works again");
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
}

static void quit_and_wait(void)
{
    pp_controller_quit(fix.c);
    assert_int_equal(fix_status()->state, PP_STATE_CLOSING);
    pump_until(&fix, fix_status()->state == PP_STATE_CLOSED);
    assert_int_equal(fix.fake->closes, 1);
    fixture_stop(&fix);
}

static void test_quit_loading(void **state)
{
    struct pp_error err;
    (void)state;
    assert_ok(fixture_start(&fix, &err), err);
    quit_and_wait();
}

static void test_quit_idle(void **state)
{
    (void)state;
    quit_and_wait();
}

static size_t n_stored_messages(void)
{
    struct pp_store *st = fix_store();
    struct pp_session s = {0};
    struct pp_error err;
    assert_ok(pp_store_session_latest(st, &s, &err), err);
    size_t n = (size_t)s.n_messages;
    pp_session_clear(&s);
    pp_store_close(st);
    return n;
}

static void test_quit_saving(void **state)
{
    (void)state;
    assert_true(pp_controller_send(fix.c, "hello"));
    assert_int_equal(fix_status()->state, PP_STATE_SAVING);
    quit_and_wait();
    assert_int_equal(n_stored_messages(), 2);
    assert_int_equal(fix.fake->generations, 0);
}

static void test_quit_answering(void **state)
{
    enum pp_message_state ms;
    (void)state;
    fix_ask("hello");
    fake_text(&fix, "half", 1);
    pump_until(&fix, fix_status()->state == PP_STATE_ANSWER);
    int64_t id = fix_message(1)->id;
    fix.fake->hold_close = true;
    pp_controller_quit(fix.c);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED); /* as a backend does when it is closed */
    assert_true(pp_queue_push(fix.fake->events, pp_event_new(PP_EVENT_CLOSED)));
    pump_until(&fix, fix_status()->state == PP_STATE_CLOSED);
    fixture_stop(&fix);
    assert_string_equal(stored(id, &ms), "half");
    assert_int_equal(ms, PP_MESSAGE_CANCELLED);
}

static void test_free_without_quit(void **state)
{
    (void)state;
    fix_ask("hello");
    fixture_stop(&fix);
    assert_int_equal(fix.fake->closes, 1);
    assert_int_equal(n_stored_messages(), 2);
}

/* --- when saving fails ------------------------------------------------------------------------------------ */

static void test_io_error(void **state)
{
    struct pp_error err;
    (void)state;
    fixture_turn(&fix, "one", "1");
    fixture_turn(&fix, "two", "2");
    struct pp_store *st = fix_store();
    assert_ok(pp_store_session_delete(st, pp_controller_session_id(fix.c), &err), err); /* as another program could */
    pp_store_close(st);
    assert_true(pp_controller_send(fix.c, "three"));
    assert_int_equal(pp_controller_n_messages(fix.c), 5);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_int_equal(fix.fake->generations, 2);
    assert_int_equal(pp_controller_n_messages(fix.c), 4);
    assert_true(fix_status()->notice_is_error);
    char *unsent = pp_controller_take_unsent(fix.c);
    assert_non_null(unsent);
    assert_string_equal(unsent, "three");
    pp_free(unsent);
    assert_null(pp_controller_take_unsent(fix.c));
    assert_true(pp_controller_edit(fix.c, 0, "other")); /* cuts the branch, which is restored when the edit fails */
    assert_int_equal(pp_controller_n_messages(fix.c), 1);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_int_equal(pp_controller_n_messages(fix.c), 4);
    assert_string_equal(fix_message(0)->text, "one");
    assert_string_equal(fix_message(3)->text, "2");
}

/* --- the tree --------------------------------------------------------------------------------------------- */

static void test_regenerate(void **state)
{
    (void)state;
    pp_controller_regenerate(fix.c, 1);
    assert_int_equal(fix_status()->state, PP_STATE_IDLE); /* there is no answer to regenerate */
    fixture_turn(&fix, "one", "a");
    pp_controller_regenerate(fix.c, 1);
    fix_answer("b");
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    assert_string_equal(fix_message(1)->text, "b");
    assert_int_equal(fix_message(1)->n_siblings, 2);
    assert_int_equal(fix_message(1)->sibling, 1);
    fixture_flush(&fix);
    pp_controller_sibling(fix.c, 1, -1);
    assert_false(pp_controller_send(fix.c, "while it switches"));
    pump_until(&fix, strcmp(fix_message(1)->text, "a") == 0);
    assert_int_equal(fix_message(1)->sibling, 0);
    pp_controller_sibling(fix.c, 1, -1); /* there is no such sibling */
    fixture_flush(&fix);
    assert_string_equal(fix_message(1)->text, "a");
    fixture_turn(&fix, "two", "c");
    assert_string_equal(fix.fake->messages,
                        "[{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"a\"},"
                        "{\"role\":\"user\",\"content\":\"two\"}]");
}

/* An answer edited by the user becomes a branch next to the original; the model continues it as if it were its own. */
static void test_edit_answer(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "It is thrue");
    assert_true(pp_controller_edit(fix.c, 1, "It is tr"));
    assert_false(pp_controller_edit(fix.c, 1, "not at the same time"));
    pump_until(&fix, strcmp(fix_message(1)->text, "It is tr") == 0);
    assert_int_equal(fix_message(1)->sibling, 1);
    assert_int_equal(fix_message(1)->n_siblings, 2);
    assert_int_equal(fix_message(1)->n_tokens, 0);
    assert_non_null(strstr(fix_status()->notice, "/continue continues it"));
    assert_int_equal(fix_slash("/continue"), PP_SLASH_DONE);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_PREFILL);
    assert_string_equal(fix.fake->continue_text, "It is tr");
    fix_answer("ue");
    assert_string_equal(fix_message(1)->text, "It is true");
    fixture_turn(&fix, "two", "b");
    assert_string_equal(fix.fake->messages,
                        "[{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"It is true\"},"
                        "{\"role\":\"user\",\"content\":\"two\"}]");
    assert_true(pp_controller_edit(fix.c, 1, "No.")); /* inside a branch: what follows stays with the original */
    pump_until(&fix, pp_controller_n_messages(fix.c) == 2);
    assert_string_equal(fix_message(1)->text, "No.");
    assert_int_equal(fix_message(1)->n_siblings, 3);
    pp_controller_sibling(fix.c, 1, -1);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 4);
    assert_string_equal(fix_message(3)->text, "b");
    pp_controller_sibling(fix.c, 1, -1);
    pump_until(&fix, strcmp(fix_message(1)->text, "It is thrue") == 0);
    assert_false(pp_controller_edit(fix.c, 1, " "));
    assert_false(pp_controller_edit(fix.c, 1, "a\xFF"));
}

static void test_edit_and_undo(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "a");
    fixture_turn(&fix, "two", "b");
    assert_false(pp_controller_edit(fix.c, 9, "nobody's"));
    assert_true(pp_controller_edit(fix.c, 2, "TWO"));
    fix_answer("c");
    assert_int_equal(pp_controller_n_messages(fix.c), 4);
    assert_string_equal(fix_message(2)->text, "TWO");
    assert_int_equal(fix_message(2)->n_siblings, 2);
    pp_controller_undo(fix.c, 1);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    assert_int_equal(fix_slash("/redo"), PP_SLASH_DONE); /* and back */
    pump_until(&fix, pp_controller_n_messages(fix.c) == 4);
    assert_string_equal(fix_message(2)->text, "TWO");
    assert_string_equal(fix_status()->notice, "brought back");
    pp_controller_redo(fix.c);
    pump_until(&fix, fix_status()->notice_is_error);
    assert_string_equal(fix_status()->notice, "there is nothing to bring back");
    pp_controller_sibling(fix.c, 2, -1); /* back to the same branch that was on the screen, however many steps */
    pump_until(&fix, strcmp(fix_message(2)->text, "two") == 0);
    pp_controller_undo(fix.c, 1);
    pp_controller_undo(fix.c, 1);
    assert_int_equal(pp_controller_n_messages(fix.c), 0);
    pp_controller_redo(fix.c);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 4);
    assert_string_equal(fix_message(2)->text, "two");
    pp_controller_sibling(fix.c, 2, 1);
    pump_until(&fix, strcmp(fix_message(2)->text, "TWO") == 0);
    pp_controller_undo(fix.c, 1);
    fixture_turn(&fix, "three", "d");
    assert_int_equal(fix_message(2)->n_siblings, 3); /* the branch that was undone counts */
    assert_int_equal(fix_message(2)->sibling, 2);
    assert_int_equal(pp_controller_n_messages(fix.c), 4);
    assert_string_equal(fix.fake->messages,
                        "[{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"a\"},"
                        "{\"role\":\"user\",\"content\":\"three\"}]");
    pp_controller_undo(fix.c, 1);
    pp_controller_undo(fix.c, 1);
    assert_int_equal(pp_controller_n_messages(fix.c), 0);
    pp_controller_undo(fix.c, 1);
    assert_true(fix_status()->notice_is_error);
    fixture_flush(&fix);
    pp_controller_redo(fix.c); /* back to the end of the branch */
    pump_until(&fix, pp_controller_n_messages(fix.c) == 4);
    pp_controller_undo(fix.c, 2);
    fixture_turn(&fix, "ONE", "e");
    fixture_flush(&fix);
    assert_int_equal(fix_message(0)->n_siblings, 2);
    const int prepared = fix.fake->preparations;
    int64_t id = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 2);
    assert_int_equal(fix_message(0)->n_siblings, 2);
    assert_int_equal(fix.fake->preparations, prepared + 1); /* for the branch that is on the screen */
    assert_non_null(strstr(fix.fake->prepared, fix_status()->session_key));
    assert_non_null(strstr(fix.fake->prepared, "ONE"));
    pp_controller_sibling(fix.c, 0, -1);
    pump_until(&fix, strcmp(fix_message(0)->text, "one") == 0);
    assert_int_equal(fix.fake->preparations, prepared + 2);
    assert_non_null(strstr(fix.fake->prepared, "three"));
    assert_int_equal(pp_controller_n_messages(fix.c), 4); /* down to the newest leaf */
    assert_string_equal(fix_message(2)->text, "three");
    assert_int_equal(fix_message(2)->n_siblings, 3);
}

/* Opening a message that a search found shows its branch, down to the newest leaf. */
static void test_branch_of(void **state)
{
    (void)state;
    assert_false(pp_controller_show_branch_of(fix.c, 1)); /* there is no message yet */
    fixture_turn(&fix, "one", "a");
    fixture_turn(&fix, "two", "b");
    fixture_turn(&fix, "three", "c");
    const int64_t two = fix_message(2)->id, c = fix_message(5)->id, here = pp_controller_session_id(fix.c);
    assert_true(pp_controller_edit(fix.c, 0, "ONE"));
    assert_false(pp_controller_show_branch_of(fix.c, two)); /* not while an edit is being saved */
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
    fix_answer("d");
    assert_true(pp_controller_show_branch_of(fix.c, two));
    pump_until(&fix, pp_controller_n_messages(fix.c) == 6);
    assert_int_equal(fix_message(2)->id, two);
    assert_non_null(strstr(fix_status()->notice, "another branch"));
    pp_controller_sibling(fix.c, 0, 1);
    pump_until(&fix, strcmp(fix_message(0)->text, "ONE") == 0);
    assert_true(pp_controller_show_branch_of(fix.c, c)); /* a message without answers */
    pump_until(&fix, pp_controller_n_messages(fix.c) == 6);
    pp_controller_new_session(fix.c);
    pp_controller_open(fix.c, here); /* opened at the branch shown last */
    pump_until(&fix, pp_controller_n_messages(fix.c) == 6);
    assert_int_equal(fix_message(5)->id, c);
    assert_true(pp_controller_show_branch_of(fix.c, 99)); /* there is no such message */
    pump_until(&fix, fix_status()->notice_is_error);
    assert_int_equal(pp_controller_n_messages(fix.c), 6);
    fixture_flush(&fix);
    fixture_turn(&fix, "four", "e");
    assert_int_equal(pp_controller_n_messages(fix.c), 8);
}

static int count_commit(void *n)
{
    ++*(int *)n;
    return 0; /* allows the commit */
}

/* A copy appears as a whole, or not at all: a kill cannot leave half of one. */
static void test_fork_at_once(void **state)
{
    struct pp_store *st;
    struct pp_session s = {.title = "t"};
    struct pp_message m[4] = {{0}};
    struct ctl_job *j = pp_calloc(1, sizeof *j);
    struct pp_error err;
    int n_commits = 0;
    (void)state;
    assert_non_null(j);
    assert_ok(pp_store_open(":memory:", &st, &err), err);
    for (int i = 0; i < 4; i++)
        m[i] = (struct pp_message){.parent = i, .role = i % 2 ? PP_ROLE_ASSISTANT : PP_ROLE_USER,
                                   .content = i % 2 ? "answer" : "question", .content_len = i % 2 ? 6 : 8,
                                   .context_from = i == 3 ? 2 : i == 2 ? 3 : 0};
    s.head = 4;
    assert_ok(pp_store_conversation_add(st, &s, m, 4, &err), err);
    j->lock_fd = -1;
    j->id = m[3].id;
    j->session.title = pp_strdup("t (copy)");
    sqlite3_commit_hook(st->db, count_commit, &n_commits);
    ctl_run_fork(&j->job, st);
    assert_ok(j->job.code, j->job.err);
    assert_int_equal(n_commits, 1);
    assert_int_equal(j->n, 4);
    assert_int_equal(j->session.head, j->list[3].id);
    assert_int_not_equal(j->session.id, s.id);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(j->list[i].parent, i ? j->list[i - 1].id : 0);
        assert_string_equal(j->list[i].content, m[i].content);
    }
    assert_int_equal(j->list[3].context_from, j->list[1].id);
    assert_int_equal(j->list[2].context_from, j->list[2].id); /* refers to itself, as after /compact */
    ctl_job_free(&j->job);
    pp_store_close(st);
}

static void test_fork(void **state)
{
    (void)state;
    pp_controller_fork(fix.c, 0);
    assert_true(fix_status()->notice_is_error);
    fixture_turn(&fix, "one", "a");
    int64_t old = pp_controller_session_id(fix.c);
    char key[17];
    snprintf(key, sizeof key, "%s", fix_status()->session_key);
    pp_controller_fork(fix.c, 0);
    pump_until(&fix, pp_controller_session_id(fix.c) != old);
    assert_string_not_equal(key, fix_status()->session_key);
    assert_string_equal(fix.fake->left, key);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    assert_string_equal(fix_message(1)->text, "a");
    fixture_turn(&fix, "two", "b");
    fixture_turn(&fix, "three", "c");
    const int64_t long_one = pp_controller_session_id(fix.c);
    assert_int_equal(fix_slash("/fork two"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/fork 3"), PP_SLASH_DONE);
    assert_non_null(strstr(fix_status()->notice, "nothing before that to copy"));
    assert_int_equal(fix_slash("/fork 2"), PP_SLASH_DONE);
    pump_until(&fix, pp_controller_session_id(fix.c) != long_one);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    assert_string_equal(fix_message(1)->text, "a");
    pp_controller_open(fix.c, old);
    pump_until(&fix, pp_controller_session_id(fix.c) == old);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
}

/* A branch's share of the context is shown when the user returns to it, and not only with its next answer. */
static void test_context_comes_back(void **state)
{
    (void)state;
    fix.fake->stats = "{\"prompt_tokens\":20,\"decode_tokens\":5}";
    fix.fake->done = (struct pp_stats){.prompt_tokens = 20, .decode_tokens = 5};
    fixture_turn(&fix, "one", "a");
    assert_int_equal(fix_status()->ctx_used, 25);
    fix.fake->stats = "{\"prompt_tokens\":30,\"decode_tokens\":6}";
    fix.fake->done = (struct pp_stats){.prompt_tokens = 30, .decode_tokens = 6};
    fixture_turn(&fix, "two", "b");
    int64_t id = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    assert_int_equal(fix_status()->ctx_used, 0);
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_n_messages(fix.c) == 4);
    assert_int_equal(fix_status()->ctx_used, 36);
    pp_controller_undo(fix.c, 1);
    assert_int_equal(fix_status()->ctx_used, 25);
    fix.fake->stats = "{\"prompt_tokens\":40,\"decode_tokens\":7}";
    fix.fake->done = (struct pp_stats){.prompt_tokens = 40, .decode_tokens = 7};
    fixture_turn(&fix, "three", "c");
    assert_int_equal(fix_status()->ctx_used, 47);
    pp_controller_new_session(fix.c);
    pp_controller_open(fix.c, id); /* opening counts siblings */
    pump_until(&fix, pp_controller_n_messages(fix.c) == 4);
    assert_int_equal(fix_status()->ctx_used, 47);
    pp_controller_sibling(fix.c, 2, -1);
    pump_until(&fix, strcmp(fix_message(2)->text, "two") == 0);
    assert_int_equal(fix_status()->ctx_used, 36);
}

/* --- conversations ---------------------------------------------------------------------------------------- */

static void test_open_elsewhere(void **state)
{
    char locks[600], key[17];
    int fd;
    struct pp_error err;
    (void)state;
    fixture_turn(&fix, "hello", "hi");
    int64_t id = pp_controller_session_id(fix.c);
    snprintf(key, sizeof key, "%s", fix_status()->session_key);
    snprintf(locks, sizeof locks, "%s/locks", fix.paths.data);
    assert_int_equal(pp_session_lock(locks, key, &fd, &err), PP_ERR_BUSY); /* this controller has it */
    pp_controller_new_session(fix.c);
    fixture_flush(&fix);
    assert_ok(pp_session_lock(locks, key, &fd, &err), err); /* released */
    pp_controller_open(fix.c, id);
    pump_until(&fix, fix_status()->notice_is_error);
    assert_non_null(strstr(fix_status()->notice, "another pippin"));
    assert_int_equal(pp_controller_session_id(fix.c), 0);
    pp_controller_delete(fix.c, id);
    fixture_flush(&fix);
    fixture_stop(&fix);
    fix.o.resume = key;
    assert_int_equal(fixture_start(&fix, &err), PP_ERR_BUSY);
    close(fd);
    assert_ok(fixture_start(&fix, &err), err); /* it was not deleted */
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
}

static void test_resume(void **state)
{
    struct pp_error err;
    char key[17];
    (void)state;
    fix.o.resume_latest = true;
    fixture_ready(&fix); /* there is no conversation yet: it begins one */
    fixture_turn(&fix, "hello", "hi");
    snprintf(key, sizeof key, "%s", fix_status()->session_key);
    fixture_stop(&fix);
    assert_ok(fixture_start(&fix, &err), err);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    assert_string_equal(fix_status()->session_key, key);
    assert_string_equal(fix_message(1)->text, "hi");
    assert_true(fix_message(1)->tokens_per_s == 50.0f);
    fixture_stop(&fix);
    fix.o.resume = "ffffffffffffffff";
    assert_int_equal(fixture_start(&fix, &err), PP_ERR_NOT_FOUND);
    key[6] = 0;
    fix.o.resume = key; /* a unique prefix of the key */
    assert_ok(fixture_start(&fix, &err), err);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
}

static void test_list_order(void **state)
{
    (void)state;
    fixture_turn(&fix, "first", "plum, plum and plum");
    int64_t full = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    fixture_turn(&fix, "second", "a tree, a hedge, a fence, a gate, a plum, a path, a pond, a bench, a swing, a shed");
    int64_t late = pp_controller_session_id(fix.c);
    pp_controller_refresh_sessions(fix.c, "plum");
    pump_until(&fix, pp_controller_n_sessions(fix.c) == 2);
    assert_int_equal(pp_controller_session_at(fix.c, 0)->id, late);
    assert_true(pp_controller_order_sessions(fix.c));
    fixture_flush(&fix);
    assert_int_equal(pp_controller_session_at(fix.c, 0)->id, full);
    assert_int_equal(pp_controller_session_at(fix.c, 1)->id, late);
    assert_false(pp_controller_order_sessions(fix.c));
    fixture_flush(&fix);
    assert_int_equal(pp_controller_session_at(fix.c, 0)->id, late);
}

static void test_list_rename_delete(void **state)
{
    (void)state;
    fixture_turn(&fix, "about apples", "red");
    int64_t apples = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    fixture_turn(&fix, "about pears", "green");
    int64_t pears = pp_controller_session_id(fix.c);
    char lock[700];
    snprintf(lock, sizeof lock, "%s/locks/%s.lock", fix.paths.data, fix_status()->session_key);
    assert_int_equal(access(lock, F_OK), 0);
    pp_controller_refresh_sessions(fix.c, "");
    fixture_flush(&fix);
    assert_int_equal(pp_controller_n_sessions(fix.c), 2);
    pp_controller_refresh_sessions(fix.c, "pears");
    pp_controller_refresh_sessions(fix.c, "apples"); /* the search for pears is dropped */
    assert_true(pp_controller_sessions_pending(fix.c));
    pump_until(&fix, pp_controller_n_sessions(fix.c) == 1);
    assert_int_equal(pp_controller_session_at(fix.c, 0)->id, apples);
    assert_false(pp_controller_sessions_pending(fix.c));
    pp_controller_rename(fix.c, apples, "fruit\x1b[31m");
    pp_controller_delete(fix.c, pears);
    fixture_flush(&fix);
    assert_int_equal(pp_controller_session_id(fix.c), 0);
    assert_int_equal(pp_controller_n_messages(fix.c), 0);
    assert_int_equal(fix.fake->forgets, 1);
    assert_int_equal(access(lock, F_OK), -1);
    pp_controller_refresh_sessions(fix.c, "");
    fixture_flush(&fix);
    assert_int_equal(pp_controller_n_sessions(fix.c), 1);
    assert_string_equal(pp_controller_session_at(fix.c, 0)->title, "fruit");
    pp_controller_open(fix.c, apples);
    pump_until(&fix, pp_controller_session_id(fix.c) == apples);
    assert_string_equal(fix_status()->title, "fruit");
}

static pthread_barrier_t let_go;

static void wait_here(struct pp_job *job, struct pp_store *st)
{
    (void)job, (void)st;
    pthread_barrier_wait(&let_go);
}

/* Another conversation is deleted while one is being opened: text sent meanwhile would go to the previous one. */
static void test_delete_another_while_opening(void **state)
{
    static struct pp_job slow = {.run = wait_here};
    (void)state;
    fixture_turn(&fix, "about apples", "red");
    const int64_t apples = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    fixture_turn(&fix, "about pears", "green");
    const int64_t pears = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    assert_int_equal(pthread_barrier_init(&let_go, NULL, 2), 0);
    pp_controller_delete(fix.c, apples);
    pp_io_post(fix.c->io, &slow);
    pp_controller_open(fix.c, pears);
    pump_until(&fix, fix.fake->forgets == 1);
    const bool sent = pp_controller_send(fix.c, "about plums");
    pthread_barrier_wait(&let_go);
    assert_false(sent);
    pump_until(&fix, pp_controller_session_id(fix.c) == pears);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    fixture_flush(&fix);
    pthread_barrier_destroy(&let_go);
}

/* Impossible actions while another conversation is being opened are not done later either, and stop no answer. */
static void test_nothing_else_while_opening(void **state)
{
    static struct pp_job slow = {.run = wait_here};
    (void)state;
    fixture_turn(&fix, "about apples", "red");
    const int64_t apples = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    fix_ask("about pears");
    assert_int_equal(pthread_barrier_init(&let_go, NULL, 2), 0);
    pp_io_post(fix.c->io, &slow);
    pp_controller_open(fix.c, apples);
    uint64_t serial = fix_status()->notice_serial;
    pp_controller_new_session(fix.c);
    pp_controller_delete(fix.c, 0);
    pp_controller_delete(fix.c, apples);
    pp_controller_fork(fix.c, 0);
    serial = fix_status()->notice_serial - serial;
    pthread_barrier_wait(&let_go);
    assert_int_equal(serial, 4);
    assert_non_null(strstr(fix_status()->notice, "please wait"));
    assert_int_equal(fix.fake->cancels, 0);
    pump_until(&fix, pp_controller_session_id(fix.c) == apples);
    fixture_turn(&fix, "and plums", "blue");
    fixture_flush(&fix);
    assert_int_equal(pp_controller_session_id(fix.c), apples);
    assert_int_equal(pp_controller_n_messages(fix.c), 4);
    pthread_barrier_destroy(&let_go);
}

/* An action that waits for an answer to be stopped is not applied to another conversation. */
static void test_left_while_stopping(void **state)
{
    (void)state;
    const int64_t first = fix_ask("about apples");
    pp_controller_delete(fix.c, 0);
    assert_int_equal(fix.fake->cancels, 1);
    pp_controller_new_session(fix.c);
    pp_controller_fork(fix.c, 0);
    assert_non_null(strstr(fix_status()->notice, "stopping the answer"));
    assert_int_equal(pp_controller_session_id(fix.c), first);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    pump_until(&fix, pp_controller_session_id(fix.c) != first);
    assert_int_equal(pp_controller_session_id(fix.c), 0);
    assert_non_null(strstr(fix_status()->notice, "deleted"));
}

/* Changes in the database since a conversation was read for the screen appear on the screen, too. */
static void test_renamed_while_opening(void **state)
{
    static struct pp_job slow = {.run = wait_here};
    (void)state;
    fixture_turn(&fix, "about apples", "red");
    const int64_t apples = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    assert_int_equal(pthread_barrier_init(&let_go, NULL, 2), 0);
    pp_io_post(fix.c->io, &slow);
    pp_controller_open(fix.c, apples);
    pp_controller_rename(fix.c, apples, "about pears");
    pthread_barrier_wait(&let_go);
    pump_until(&fix, pp_controller_session_id(fix.c) == apples && !fix.c->switching);
    assert_string_equal(fix_status()->title, "about pears");
    pthread_barrier_destroy(&let_go);
}

/* Looks at the title at once, however recent the last look was. */
static void look_at_title(void)
{
    fix.c->title_read_ns = 0;
    pp_controller_refresh_title(fix.c);
}

static void rename_elsewhere(int64_t session, const char *title)
{
    struct pp_store *st = fix_store();
    struct pp_session s;
    struct pp_error err;
    assert_ok(pp_store_session_get(st, session, &s, &err), err);
    pp_free(s.title);
    s.title = pp_strdup(title);
    assert_ok(pp_store_session_update(st, &s, &err), err);
    pp_session_clear(&s);
    pp_store_close(st);
}

/* Another pippin renames the conversation in its list. The new title is seen here at the next write or read of the
 * conversation, but never replaces a newer title given here. */
static void test_renamed_elsewhere(void **state)
{
    static struct pp_job slow = {.run = wait_here};
    (void)state;
    fixture_turn(&fix, "about apples", "red");
    const int64_t id = pp_controller_session_id(fix.c);
    rename_elsewhere(id, "with a question");
    fixture_turn(&fix, "and more?", "no");
    assert_string_equal(fix_status()->title, "with a question");
    rename_elsewhere(id, "with a setting");
    assert_true(pp_controller_set_param(fix.c, "temp", "0.5"));
    pump_until(&fix, strcmp(fix_status()->title, "with a setting") == 0);
    rename_elsewhere(id, "in the list");
    pp_controller_refresh_sessions(fix.c, "");
    pump_until(&fix, strcmp(fix_status()->title, "in the list") == 0);
    rename_elsewhere(id, "while a key is pressed");
    look_at_title();
    pump_until(&fix, strcmp(fix_status()->title, "while a key is pressed") == 0);

    assert_int_equal(pthread_barrier_init(&let_go, NULL, 2), 0);
    pp_io_post(fix.c->io, &slow);
    pp_controller_refresh_sessions(fix.c, "");
    look_at_title();
    assert_true(pp_controller_set_param(fix.c, "temp", "0.6"));
    pp_controller_rename(fix.c, 0, "mine");
    pthread_barrier_wait(&let_go);
    for (int i = 0; i < 3; i++) {
        fixture_flush(&fix);
        fixture_pump(&fix);
        assert_string_equal(fix_status()->title, "mine");
    }
    pthread_barrier_destroy(&let_go);
}

/* Choices made while a copy is being created apply to it, and are kept when it is opened again. */
static void test_chosen_while_forking(void **state)
{
    static struct pp_job slow = {.run = wait_here};
    (void)state;
    fixture_turn(&fix, "about apples", "red");
    const int64_t apples = pp_controller_session_id(fix.c);
    assert_int_equal(pthread_barrier_init(&let_go, NULL, 2), 0);
    pp_io_post(fix.c->io, &slow);
    pp_controller_fork(fix.c, 0);
    assert_int_equal(fix_slash("/persona pirate"), PP_SLASH_DONE);
    pthread_barrier_wait(&let_go);
    pump_until(&fix, pp_controller_session_id(fix.c) != apples);
    const int64_t copy = pp_controller_session_id(fix.c);
    assert_non_null(strstr(fix.c->session.system, "pirate"));
    pp_controller_new_session(fix.c);
    pp_controller_set_persona(fix.c, 0);
    pp_controller_open(fix.c, copy);
    pump_until(&fix, pp_controller_session_id(fix.c) == copy);
    assert_string_equal(fix_status()->persona, "pirate");
    assert_non_null(strstr(fix.c->session.system, "pirate"));
    pthread_barrier_destroy(&let_go);
}

/* Writing exported files does not block the screen; errors are reported. */
static void test_keep(void **state)
{
    static struct pp_job slow = {.run = wait_here};
    char path[700], *text;
    size_t n;
    struct pp_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/ui.ini", fix.paths.data);
    assert_int_equal(pthread_barrier_init(&let_go, NULL, 2), 0);
    pp_io_post(fix.c->io, &slow);
    pp_controller_save_setting(fix.c, path, "theme = dark\n");
    pp_controller_save_setting(fix.c, path, "raw = yes\n");
    pp_controller_save_setting(fix.c, path, "theme = harbour\n");
    const bool waited = access(path, F_OK) == 0;
    pthread_barrier_wait(&let_go);
    assert_false(waited);
    fixture_flush(&fix);
    assert_ok(pp_read_file(path, 100, &text, &n, &err), err);
    assert_string_equal(text, "raw = yes\ntheme = harbour\n"); /* other settings may have changed meanwhile */
    pp_free(text);
    assert_false(fix_status()->notice_is_error);
    pp_controller_save_setting(fix.c, fix.paths.data, "theme = x\n");
    fixture_flush(&fix);
    assert_true(fix_status()->notice_is_error);
    assert_non_null(strstr(fix_status()->notice, "cannot write"));
    pthread_barrier_destroy(&let_go);
}

/* 300 conversations from before this controller opened the database. */
static void fill(void)
{
    struct pp_store *st = fix_store();
    pp_store_close(st);
    struct fill_options o = {.sessions = 300, .messages = 900, .words = 4, .seed = 3, .everywhere = "everywhere"};
    assert_int_equal(fill_store(fix.paths.db, &o), 0);
}

static const struct pp_session *row(size_t i)
{
    const struct pp_session *s;
    pump_until(&fix, (s = pp_controller_session_at(fix.c, i)) != NULL);
    return s;
}

/* Only pages of the list are read from the database, wherever the screen scrolls, and together they are the whole
 * list. */
static void test_the_list_comes_by_pages(void **state)
{
    struct pp_error err;
    struct pp_session *all;
    size_t n;
    (void)state;
    fill();
    struct pp_store *st = fix_store();
    assert_ok(list_sessions(st, "", &all, &n, &err), err);
    pp_store_close(st);
    assert_int_equal(n, 300);
    pp_controller_refresh_sessions(fix.c, "");
    pump_until(&fix, pp_controller_n_sessions(fix.c) == 300);
    assert_true(fix.c->list.n < 100);
    static const size_t looks[] = {0, 20, 63, 64, 130, 299, 240, 200, 0, 5, 299, 150};
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        assert_int_equal(row(looks[i])->id, all[looks[i]].id);
        assert_true(fix.c->list.n <= 300);
    }
    assert_null(pp_controller_session_at(fix.c, 300));
    pp_controller_refresh_sessions(fix.c, "");
    pump_until(&fix, fix.c->list.n < 100);
    assert_int_equal(row(299)->id, all[299].id); /* End: only the last page */
    assert_true(fix.c->list.n < 100 && fix.c->list.first > 200);

    int64_t gone = row(298)->id; /* a deleted conversation leaves the list, and those after it move up */
    pp_controller_delete(fix.c, gone);
    pump_until(&fix, pp_controller_n_sessions(fix.c) == 299);
    assert_int_equal(row(298)->id, all[299].id);
    pp_controller_rename(fix.c, row(298)->id, "last of all");
    assert_string_equal(row(298)->title, "last of all");
    pp_session_list_free(all, n);
}

static void test_a_search_comes_by_pages(void **state)
{
    (void)state;
    fill();
    static const char *const typed[] = {"e", "ev", "eve", "ever", "every"};
    pp_controller_refresh_sessions(fix.c, "");
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++)
        pp_controller_refresh_sessions(fix.c, typed[i]); /* only the last search is carried out */
    pump_until(&fix, fix.c->list.query && strcmp(fix.c->list.query, "every") == 0 && !fix.c->list.busy);
    assert_int_equal(pp_controller_n_sessions(fix.c), 65); /* a page, and a sign that there may be more */
    assert_non_null(row(0)->excerpt);
    for (size_t i = 0; i < 300; i++)
        row(i);
    pump_until(&fix, !fix.c->list.busy);
    assert_int_equal(pp_controller_n_sessions(fix.c), 300);
    pp_controller_refresh_sessions(fix.c, "nothingofthekind");
    pump_until(&fix, pp_controller_n_sessions(fix.c) == 0);
}

/* After all search results on the screen were deleted, the remaining ones are shown. */
static void test_all_that_was_found_goes(void **state)
{
    (void)state;
    fill();
    pp_controller_refresh_sessions(fix.c, "every");
    pump_until(&fix, fix.c->list.query && !fix.c->list.busy && fix.c->list.n == 64);
    for (size_t left = 64; left-- > 0;) {
        pp_controller_delete(fix.c, row(0)->id);
        pump_until(&fix, fix.c->list.n == left);
    }
    assert_int_equal(pp_controller_n_sessions(fix.c), 1);
    assert_null(pp_controller_session_at(fix.c, 0));
    pump_until(&fix, !fix.c->list.busy);
    assert_non_null(row(0)->excerpt);
    assert_true(pp_controller_n_sessions(fix.c) > 1);
}

/* If the list cannot be read, nothing is shown; that does not mean that there are no conversations. */
static void test_a_list_that_cannot_be_read(void **state)
{
    (void)state;
    fixture_turn(&fix, "hello", "hi");
    pp_controller_refresh_sessions(fix.c, "");
    assert_true(pp_controller_sessions_pending(fix.c));
    pump_until(&fix, pp_controller_n_sessions(fix.c) == 1);
    assert_false(pp_controller_sessions_pending(fix.c) || pp_controller_sessions_failed(fix.c));
    raw_sql(fix.paths.db, "ALTER TABLE session RENAME COLUMN updated_ms TO another");
    pp_controller_refresh_sessions(fix.c, "");
    pump_until(&fix, pp_controller_sessions_failed(fix.c));
    assert_false(pp_controller_sessions_pending(fix.c));
    assert_int_equal(pp_controller_n_sessions(fix.c), 0);
    assert_true(fix_status()->notice_is_error);
    raw_sql(fix.paths.db, "ALTER TABLE session RENAME COLUMN another TO updated_ms");
    pp_controller_refresh_sessions(fix.c, "");
    pump_until(&fix, pp_controller_n_sessions(fix.c) == 1);
    assert_false(pp_controller_sessions_failed(fix.c));
}

/* --- pieces ----------------------------------------------------------------------------------------------- */

static void test_title(void **state)
{
    char out[PP_TITLE_BYTES];
    (void)state;
    static const char words[] = "  two\n\twords \x1b[2J\xff!";
    pp_title(words, strlen(words), out);
    assert_string_equal(out, "two words !");
    static const char escapes[] = "\x1b[1;31mr\x1b[0med \x1b]8;;http://x\x1b\\link\x1b]8;;\a "
                                  "\x1b(B\x1b=a\x1b]b \x1b[\x1b";
    pp_title(escapes, strlen(escapes), out);
    assert_string_equal(out, "red link ab");
    pp_title("", 0, out);
    assert_string_equal(out, "");
    char text[400] = "";
    for (int i = 0; i < 100; i++)
        strcat(text, "é");
    pp_title(text, strlen(text), out);
    assert_int_equal(strlen(out), 2 * 60 + 3);
    assert_string_equal(out + 120, "…");
    memset(text, 0, sizeof text);
    for (int i = 0; i < 99; i++)
        strcat(text, i % 3 ? "😀" : " ");
    pp_title(text, strlen(text), out);
    assert_true(strlen(out) < sizeof out);
    assert_string_equal(out + strlen(out) - 3, "…");

    enum { MANY = 8 << 20 }; /* escape sequences, of which only the last ends: must take linear time */
    char *long_text = pp_malloc(MANY);
    assert_non_null(long_text);
    for (int i = 0; i < MANY; i++)
        long_text[i] = i % 2 ? ']' : 0x1b;
    memcpy(long_text + MANY - 8, "\x1b]0;\aend", 8);
    const uint64_t began = pp_now_ns();
    pp_title(long_text, MANY, out);
    assert_true(pp_now_ns() - began < 30000000000u); /* it would take hours if the end of each one were searched for */
    assert_string_equal(out, "end");
    pp_free(long_text);
}

static void test_branch_json(void **state)
{
    struct pp_branch b = {0};
    (void)state;
    assert_non_null(pp_branch_append(&b, PP_ROLE_USER, "a\0b", 3));
    assert_non_null(pp_branch_append(&b, PP_ROLE_ASSISTANT, "", 0));
    assert_non_null(pp_branch_append(&b, PP_ROLE_USER, "c", 1));
    assert_non_null(pp_branch_append(&b, PP_ROLE_ASSISTANT, "d", 1));
    assert_true(pp_branch_grow(&b, 3, "e", 1));
    char *json = pp_branch_json(&b, b.n, "be");
    assert_string_equal(json,
                        "[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":\"a b\\n\\nc\"},"
                        "{\"role\":\"assistant\",\"content\":\"de\"}]");
    pp_free(json);
    json = pp_branch_json(&b, 0, "");
    assert_string_equal(json, "[]");
    pp_free(json);
    pp_branch_free(&b);
}

TEST_GROUP(controller)
{
    const struct CMUnitTest tests[] = {
        FRESH(test_one_turn),
        READY(test_events_of_an_old_request),
        FRESH(test_load_fails),
        READY(test_old_model_stays),
        READY(test_deleted_while_loading),
        FRESH(test_no_such_model),
        READY(test_cancel_saving),
        READY(test_cancel_answer),
        READY(test_continue_after_opening),
        READY(test_answer_fails),
        FRESH(test_quit_loading),
        READY(test_unsaved),
        READY(test_quit_idle),
        READY(test_quit_saving),
        READY(test_quit_answering),
        READY(test_free_without_quit),
        READY(test_io_error),
        READY(test_regenerate),
        READY(test_edit_answer),
        READY(test_edit_and_undo),
        READY(test_branch_of),
        cmocka_unit_test(test_fork_at_once),
        READY(test_fork),
        READY(test_context_comes_back),
        READY(test_open_elsewhere),
        FRESH(test_resume),
        READY(test_list_order),
        READY(test_list_rename_delete),
        READY(test_delete_another_while_opening),
        READY(test_nothing_else_while_opening),
        READY(test_left_while_stopping),
        READY(test_renamed_while_opening),
        READY(test_chosen_while_forking),
        READY(test_renamed_elsewhere),
        READY(test_keep),
        READY(test_the_list_comes_by_pages),
        READY(test_a_search_comes_by_pages),
        READY(test_all_that_was_found_goes),
        READY(test_a_list_that_cannot_be_read),
        cmocka_unit_test(test_title),
        cmocka_unit_test(test_branch_json),
    };
    return cmocka_run_group_tests_name("controller", tests, NULL, NULL);
}
