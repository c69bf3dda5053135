/* test_overflow.c - a conversation that grows out of the context: which turns stay in the prompt, and what the
 * controller makes of it. */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "src/overflow.h"
#include "src/worker.h"
#include "tests/backend_fake.h"

/* --- the prompt ------------------------------------------------------------------------------------------- */

enum { TURNS = 12 };

static struct {
    struct pp_model *model;
    struct pp_template *tmpl;
} env;

static int open_model(void **state)
{
    struct pp_error err;
    (void)state;
    const char *path = testdata("starter/target"), *source = pp_template_builtin("chatml");
    if (!path)
        return 0;
    assert_ok(pp_model_open(path, &env.model, &err), err);
    assert_ok(pp_template_parse(source, strlen(source), "chatml", &env.tmpl, &err), err);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    pp_template_free(env.tmpl);
    if (env.model)
        pp_model_close(env.model);
    env.model = NULL;
    env.tmpl = NULL;
    return 0;
}

/* System prompt, `turns` questions of about 20 tokens with their answers, and a last question of `last` words. */
static char *conversation(int turns, int last)
{
    struct pp_buf b = {0};
    pp_buf_str(&b, "[{\"role\":\"system\",\"content\":\"Be brief.\"}");
    for (int i = 0; i < turns; i++)
        pp_buf_fmt(&b, ",{\"role\":\"user\",\"content\":\"Question %d: what is it that the old sailor saw?\"}"
                       ",{\"role\":\"assistant\",\"content\":\"Answer %d: a ship, and the sea.\"}", i, i);
    pp_buf_str(&b, ",{\"role\":\"user\",\"content\":\"The last one:");
    for (int i = 0; i < last; i++)
        pp_buf_str(&b, " sea");
    pp_buf_str(&b, "\"}]");
    char *json = pp_strdup(pp_buf_cstr(&b));
    pp_buf_free(&b);
    return json;
}

struct outcome {
    enum pp_code code;
    int64_t n;
    size_t dropped;
    struct pp_error err;
    char text[4000]; /* of the prompt */
};

static struct outcome prompt_of(const char *json, int64_t n_ctx, int64_t trained, enum pp_overflow how)
{
    struct outcome o = {0};
    struct pp_buf text = {0};
    int32_t *ids;
    size_t n;
    struct pp_prompt_input in = {.tokenizer = pp_model_tokenizer(env.model), .tmpl = env.tmpl, .messages_json = json};
    o.code = pp_overflow_prompt(&in, n_ctx, trained, how, &ids, &n, &o.dropped, &o.err);
    if (o.code != PP_OK) {
        assert_null(ids);
        return o;
    }
    for (size_t i = 0; i < n; i++)
        pp_token_text(in.tokenizer, ids[i], true, &text);
    snprintf(o.text, sizeof o.text, "%s", pp_buf_cstr(&text));
    o.n = (int64_t)n;
    pp_buf_free(&text);
    pp_free(ids);
    return o;
}

static struct outcome prompt(const char *json, int64_t n_ctx, enum pp_overflow how)
{
    return prompt_of(json, n_ctx, 12345, how);
}

static int64_t whole_length(const char *json)
{
    return prompt(json, 1 << 20, PP_OVERFLOW_STOP).n;
}

static void whole_turns_are_dropped(void **state)
{
    (void)state;
    if (!env.model)
        return;
    char *json = conversation(TURNS, 3), first[40];
    int64_t all = whole_length(json);
    for (int64_t n_ctx = 120; n_ctx < all + 100; n_ctx += 23) {
        struct outcome o = prompt(json, n_ctx, PP_OVERFLOW_SHIFT);
        assert_ok(o.code, o.err);
        if (all + pp_overflow_note_room(n_ctx) <= n_ctx) {
            assert_int_equal(o.dropped, 0);
            assert_int_equal(o.n, all);
            continue;
        }
        assert_true(o.dropped > 0 && o.dropped % 2 == 0); /* questions are dropped together with their answers */
        assert_true(o.n + pp_overflow_answer_room(n_ctx) <= n_ctx);
        assert_non_null(strstr(o.text, "Be brief."));
        assert_non_null(strstr(o.text, "The last one"));
        snprintf(first, sizeof first, "Question %d:", (int)o.dropped / 2);
        if (o.dropped < 2 * TURNS)
            assert_non_null(strstr(o.text, first));
        snprintf(first, sizeof first, "Question %d:", (int)o.dropped / 2 - 1);
        assert_null(strstr(o.text, first));
        /* no turn was dropped needlessly: a turn has less than 60 tokens */
        assert_true(o.n + 60 + pp_overflow_answer_room(n_ctx) > n_ctx);
    }
    pp_free(json);
}

static void stopping_says_what_would_go(void **state)
{
    (void)state;
    if (!env.model)
        return;
    char *json = conversation(TURNS, 3);
    int64_t all = whole_length(json);
    struct outcome o = prompt(json, all, PP_OVERFLOW_ASK);
    assert_int_equal(o.code, PP_ERR_CONTEXT); /* there is no room for a single token of the answer */
    assert_true(o.dropped > 0);
    assert_non_null(strstr(o.err.text, "/overflow"));
    assert_int_equal(o.dropped, prompt(json, all, PP_OVERFLOW_SHIFT).dropped);
    assert_true(prompt(json, all, PP_OVERFLOW_SUMMARISE).dropped >= o.dropped); /* room for the summary, too */
    o = prompt(json, all + 1, PP_OVERFLOW_ASK);
    assert_ok(o.code, o.err); /* the prompt fits, and no room for an answer was asked for */
    assert_int_equal(o.dropped, 0);
    pp_free(json);
}

static void the_last_turn_stays(void **state)
{
    (void)state;
    if (!env.model)
        return;
    char *json = conversation(2, 300);
    struct outcome o = prompt(json, 200, PP_OVERFLOW_SHIFT);
    assert_int_equal(o.code, PP_ERR_CONTEXT);
    assert_int_equal(o.dropped, 0);
    assert_non_null(strstr(o.err.text, "the last message"));
    o = prompt(json, 360, PP_OVERFLOW_SHIFT); /* there is room for little more than the question */
    assert_ok(o.code, o.err);
    assert_int_equal(o.dropped, 4);
    pp_free(json);
}

/* The error tells the size of the last turn, not of the whole conversation, and suggests a larger context only if the
 * model was trained for one. */
static void a_question_that_is_too_long_is_told(void **state)
{
    (void)state;
    if (!env.model)
        return;
    char *alone = conversation(0, 300), *behind = conversation(3, 300), *older = conversation(TURNS, 3);
    char want[200];
    snprintf(want, sizeof want,
             "the last message and what must precede it have %lld tokens, but the context holds 200: shorten it, or "
             "give a larger --ctx-size, up to 12,345", (long long)whole_length(alone));
    assert_string_equal(prompt(alone, 200, PP_OVERFLOW_ASK).err.text, want);
    assert_string_equal(prompt(behind, 200, PP_OVERFLOW_ASK).err.text, want);
    assert_string_equal(prompt(behind, 200, PP_OVERFLOW_SHIFT).err.text, want);
    struct outcome o = prompt_of(behind, 200, 200, PP_OVERFLOW_ASK);
    assert_int_equal(o.code, PP_ERR_CONTEXT);
    assert_non_null(strstr(o.err.text, "holds 200, the most that the model was trained for: shorten it"));
    assert_null(strstr(o.err.text, "--ctx-size"));
    o = prompt_of(older, 200, 200, PP_OVERFLOW_ASK);
    assert_non_null(strstr(o.err.text, "start a new one"));
    assert_null(strstr(o.err.text, "--ctx-size"));
    pp_free(alone);
    pp_free(behind);
    pp_free(older);
}

static void names(void **state)
{
    (void)state;
    for (int i = PP_OVERFLOW_ASK; i <= PP_OVERFLOW_SLIDE; i++)
        assert_int_equal(pp_overflow_by_name(pp_overflow_name((enum pp_overflow)i)), i);
    assert_int_equal(pp_overflow_by_name("summarize"), PP_OVERFLOW_SUMMARISE);
    assert_int_equal(pp_overflow_by_name("never"), -1);
}

/* --- the controller --------------------------------------------------------------------------------------- */

static int64_t id_of(size_t i)
{
    return pp_controller_message(fix.c, i)->id;
}

static size_t context(const char **note)
{
    return pp_controller_context(fix.c, note);
}

static bool sent(const char *text)
{
    return strstr(fix.fake->messages, text) != NULL;
}

static void three_turns(void)
{
    fixture_turn(&fix, "question one", "answer one");
    fixture_turn(&fix, "question two", "answer two");
    fixture_turn(&fix, "question three", "answer three");
}

static void wait_for_request(int number)
{
    pump_until(&fix, fix.fake->generations == number);
}

/* Asks a question; the worker reports that the first `n` messages were dropped (done), or would have to be. */
static void ask(const char *question, int n, bool done)
{
    fix_ask(question);
    fake_overflow(&fix, n, done);
}

static void dropped_turns_stay_dropped(void **state)
{
    const char *note;
    struct pp_error err;
    char key[17];
    (void)state;
    assert_true(pp_controller_set_overflow(fix.c, "shift"));
    three_turns();
    assert_int_equal(context(&note), 0);
    ask("question four", 2, true);
    assert_int_equal(fix.fake->overflow, PP_OVERFLOW_SHIFT);
    fake_text(&fix, "answer four", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(context(&note), 2);
    assert_string_equal(note, "");
    assert_int_equal(pp_controller_n_messages(fix.c), 8); /* the screen still shows everything */

    pp_controller_regenerate(fix.c, 1); /* another answer gets the same prompt */
    wait_for_request(5);
    assert_false(sent("question one"));
    assert_true(sent("question two"));
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    ask("question five", 2, true); /* two more are dropped, counted from where the context began */
    fake_text(&fix, "answer five", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(context(&note), 4);
    pp_controller_undo(fix.c, 1); /* the question that recorded it is gone */
    assert_int_equal(context(&note), 2);
    pp_controller_fork(fix.c, 0);
    pump_until(&fix, context(&note) == 2 && strstr(pp_controller_status(fix.c)->title, "(copy)"));
    fixture_flush(&fix);
    snprintf(key, sizeof key, "%s", pp_controller_status(fix.c)->session_key);

    fixture_stop(&fix); /* the same after a restart */
    fix.o.resume = key;
    assert_ok(fixture_start(&fix, &err), err);
    fake_loaded(&fix);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(context(&note), 2);
    assert_int_equal(fix.c->overflow, PP_OVERFLOW_SHIFT);
    assert_true(pp_controller_send(fix.c, "question six"));
    wait_for_request(1);
    assert_false(sent("question one"));
    assert_true(sent("question two"));
    assert_true(sent("question six"));
    fake_done(&fix, PP_FINISH_END, PP_OK);
}

static void the_user_is_asked(void **state)
{
    const char *note;
    (void)state;
    three_turns();
    uint64_t serial = pp_controller_status(fix.c)->overflow_serial;
    ask("question four", 4, false);
    assert_int_equal(fix.fake->overflow, PP_OVERFLOW_ASK);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CONTEXT);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_not_equal(pp_controller_status(fix.c)->overflow_serial, serial);
    assert_true(pp_controller_overflow_asked(fix.c));
    assert_int_equal(context(&note), 0); /* nothing is dropped without being asked for */
    int64_t answer = id_of(7);
    pp_controller_overflow(fix.c, PP_OVERFLOW_SHIFT);
    wait_for_request(5);
    assert_false(pp_controller_overflow_asked(fix.c));
    assert_int_equal(fix.fake->overflow, PP_OVERFLOW_SHIFT);
    assert_int_equal(fix.fake->message_id, answer); /* into the answer that could not begin */
    fake_overflow(&fix, 4, true);
    fake_text(&fix, "answer four", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(context(&note), 4);
    assert_int_equal(fix.c->overflow, PP_OVERFLOW_ASK); /* the choice was for this question only */
    assert_int_equal(pp_controller_n_messages(fix.c), 8);
}

static void stopping_is_left_alone(void **state)
{
    const char *note;
    (void)state;
    three_turns();
    assert_true(pp_controller_set_overflow(fix.c, "stop"));
    assert_false(pp_controller_set_overflow(fix.c, "perhaps"));
    ask("question four", 4, false);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CONTEXT);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_false(pp_controller_overflow_asked(fix.c));
    assert_non_null(strstr(fix_status()->notice, "then /regen"));
    assert_int_equal(fix.fake->generations, 4);
    assert_int_equal(context(&note), 0);

    assert_true(pp_controller_send(fix.c, "question five")); /* the error tells how to make room */
    pump_until(&fix, fixture_state(&fix) == PP_STATE_PREFILL);
    fake_text(&fix, "half an", 2);
    fake_done(&fix, PP_FINISH_CONTEXT, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_non_null(strstr(fix_status()->notice, "then /continue"));
    assert_non_null(strstr(fix_status()->notice, "up to 2,048"));
    fix.c->status.model.n_ctx = 2048;
    ask("question six", 4, false);
    fake_text(&fix, "half an", 2);
    fake_done(&fix, PP_FINISH_CONTEXT, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_non_null(strstr(fix_status()->notice, "/fork 1"));
    assert_null(strstr(fix_status()->notice, "--ctx-size")); /* the model supports no larger context */
}

static void an_answer_that_runs_into_the_end_goes_on(void **state)
{
    const char *note;
    (void)state;
    assert_true(pp_controller_set_overflow(fix.c, "shift"));
    three_turns();
    assert_true(pp_controller_send(fix.c, "question four"));
    pump_until(&fix, fixture_state(&fix) == PP_STATE_PREFILL);
    fake_text(&fix, "half an", 2);
    fake_done(&fix, PP_FINISH_CONTEXT, PP_OK);
    wait_for_request(5);
    assert_string_equal(fix.fake->continue_text, "half an");
    fake_overflow(&fix, 2, true);
    fake_text(&fix, " answer", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_string_equal(pp_controller_message(fix.c, 7)->text, "half an answer");
    assert_int_equal(context(&note), 2);

    ask("question five", 6, true); /* nothing is left to drop ... */
    fake_text(&fix, "endless", 2);
    fake_done(&fix, PP_FINISH_CONTEXT, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    fixture_flush(&fix);
    assert_int_equal(fix.fake->generations, 6); /* ... so there is no further attempt */
    assert_int_equal(context(&note), 8);
}

/* The alternative answers from generation `first` on do not fit. */
static void none_fits(int first, int n, int to_drop)
{
    for (int i = first; i < first + n; i++) {
        fake_choose(&fix, i);
        fake_overflow(&fix, to_drop, false);
        fake_done(&fix, PP_FINISH_NONE, PP_ERR_CONTEXT);
    }
}

/* Each is asked for again as it was, with its own seed. */
static void are_asked_again(int first, int again, int n)
{
    wait_for_request(again + n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(fix.fake->asked[again + i].message_id, fix.fake->asked[first + i].message_id);
        assert_int_equal(fix.fake->asked[again + i].seed, fix.fake->asked[first + i].seed);
        fake_choose(&fix, again + i);
        fake_text(&fix, "here it is", 2);
        fake_done(&fix, PP_FINISH_END, PP_OK);
    }
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    for (int i = 0; i < n; i++)
        assert_string_equal(pp_controller_alternative(fix.c, (size_t)i)->text, "here it is");
}

/* The same for alternative answers. */
static void several_answers_go_on(void **state)
{
    const char *note;
    (void)state;
    assert_true(pp_controller_set_overflow(fix.c, "summarise"));
    three_turns();
    pp_controller_regenerate(fix.c, 3);
    wait_for_request(6);
    none_fits(3, 3, 4);
    wait_for_request(7);
    assert_int_equal(fix.fake->message_id, 0);
    assert_true(sent("Summarise"));
    fake_text(&fix, "They spoke of two things.", 5);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    are_asked_again(3, 7, 3);
    assert_true(sent("They spoke of two things.") && !sent("answer two"));
    assert_int_equal(context(&note), 4);

    fixture_turn(&fix, "question four", "answer four");
    assert_true(pp_controller_set_overflow(fix.c, "ask"));
    const uint64_t serial = pp_controller_status(fix.c)->overflow_serial;
    pp_controller_regenerate(fix.c, 2);
    wait_for_request(13);
    none_fits(11, 2, 2);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(pp_controller_status(fix.c)->overflow_serial, serial + 1); /* reported once */
    assert_true(pp_controller_overflow_asked(fix.c));
    pp_controller_overflow(fix.c, PP_OVERFLOW_SHIFT);
    are_asked_again(11, 13, 2);
    assert_int_equal(fix.fake->overflow, PP_OVERFLOW_SHIFT);
}

/* ... and only those that need to, unless the user has stopped them. */
static void some_of_several_go_on(void **state)
{
    (void)state;
    assert_true(pp_controller_set_overflow(fix.c, "shift"));
    three_turns();
    pp_controller_regenerate(fix.c, 2);
    wait_for_request(5);
    fake_choose(&fix, 4);
    fake_text(&fix, "half an", 2);
    fake_done(&fix, PP_FINISH_CONTEXT, PP_OK);
    fake_choose(&fix, 3);
    fake_text(&fix, "whole", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    wait_for_request(6);
    assert_int_equal(fix.fake->message_id, pp_controller_alternative(fix.c, 1)->id);
    assert_string_equal(fix.fake->continue_text, "half an");
    assert_null(strstr(pp_controller_status(fix.c)->notice, "/new"));
    fake_text(&fix, " answer", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_string_equal(pp_controller_alternative(fix.c, 1)->text, "half an answer");
    assert_string_equal(pp_controller_message(fix.c, 5)->text, "whole");

    pp_controller_regenerate(fix.c, 2);
    wait_for_request(8);
    fake_choose(&fix, 7);
    fake_text(&fix, "half an", 2);
    fake_done(&fix, PP_FINISH_CONTEXT, PP_OK);
    fake_choose(&fix, 6);
    assert_true(pp_controller_cancel(fix.c));
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    fixture_flush(&fix);
    assert_int_equal(fix.fake->generations, 8);
}

/* If the user looked at another conversation meanwhile, only the alternative that is chosen continues, unless it is
 * complete. */
static void some_of_several_elsewhere(void **state)
{
    (void)state;
    assert_true(pp_controller_set_overflow(fix.c, "shift"));
    three_turns();
    const int64_t here = pp_controller_session_id(fix.c);
    pp_controller_regenerate(fix.c, 2);
    wait_for_request(5);
    pp_controller_new_session(fix.c);
    fake_choose(&fix, 4);
    fake_text(&fix, "half an", 2);
    fake_done(&fix, PP_FINISH_CONTEXT, PP_OK);
    fake_choose(&fix, 3);
    fake_text(&fix, "whole", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    fixture_flush(&fix);
    pp_controller_open(fix.c, here);
    pump_until(&fix, pp_controller_session_id(fix.c) == here);
    fixture_flush(&fix);
    assert_int_equal(fix.fake->generations, 5);
    assert_int_equal(fixture_state(&fix), PP_STATE_IDLE);
}

/* An answer in another conversation continues when that is opened again. */
static void an_answer_elsewhere_goes_on_later(void **state)
{
    const char *note;
    (void)state;
    assert_true(pp_controller_set_overflow(fix.c, "shift"));
    three_turns();
    int64_t here = pp_controller_session_id(fix.c);
    assert_true(pp_controller_send(fix.c, "question four"));
    pump_until(&fix, fixture_state(&fix) == PP_STATE_PREFILL);
    fake_text(&fix, "half an", 2);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_ANSWER);
    pp_controller_new_session(fix.c);
    fake_done(&fix, PP_FINISH_CONTEXT, PP_OK);
    fixture_flush(&fix);
    assert_int_equal(fix.fake->generations, 4);
    pp_controller_open(fix.c, here);
    wait_for_request(5);
    assert_string_equal(fix.fake->continue_text, "half an");
    fake_overflow(&fix, 2, true);
    fake_text(&fix, " answer", 1);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_string_equal(pp_controller_message(fix.c, 7)->text, "half an answer");
    assert_int_equal(context(&note), 2);
    pp_controller_new_session(fix.c);
    pp_controller_open(fix.c, here); /* it continues only once */
    pump_until(&fix, pp_controller_session_id(fix.c) == here);
    fixture_flush(&fix);
    assert_int_equal(fix.fake->generations, 5);
}

/* ... and not in one of the other database that happens to have the same number. */
static void not_in_a_temporary_one(void **state)
{
    (void)state;
    assert_true(pp_controller_set_overflow(fix.c, "shift"));
    three_turns();
    const int64_t here = pp_controller_session_id(fix.c);
    assert_true(pp_controller_send(fix.c, "question four"));
    pump_until(&fix, fixture_state(&fix) == PP_STATE_PREFILL);
    const int64_t answer = fix.fake->message_id;
    pp_controller_new_session(fix.c);
    fake_done(&fix, PP_FINISH_CONTEXT, PP_OK);
    fixture_flush(&fix);
    assert_int_equal(fix_slash("/temporary"), PP_SLASH_DONE);
    three_turns();
    fixture_turn(&fix, "question four", "answer four");
    assert_int_equal(pp_controller_session_id(fix.c), here);
    assert_int_equal(fix.fake->message_id, answer);
    pp_controller_new_session(fix.c);
    pp_controller_open(fix.c, here);
    pump_until(&fix, pp_controller_session_id(fix.c) == here);
    fixture_flush(&fix);
    assert_int_equal(fix.fake->generations, 8);
    assert_int_equal(fix_slash("/temporary off"), PP_SLASH_DONE);
    pp_controller_open(fix.c, here);
    pump_until(&fix, fix.fake->generations == 9); /* now it continues */
}

static void a_summary_takes_their_place(void **state)
{
    const char *note;
    (void)state;
    assert_true(pp_controller_set_overflow(fix.c, "summarise"));
    three_turns();
    ask("question four", 4, false);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CONTEXT);
    wait_for_request(5); /* what is to be dropped, and the request for a summary */
    assert_int_equal(fix.fake->message_id, 0);
    assert_true(sent("answer two") && !sent("question three") && sent("Summarise"));
    fake_text(&fix, "\n They spoke of two things.\n", 5);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    wait_for_request(6);
    assert_true(sent("They spoke of two things.") && !sent("answer two") && sent("question three"));
    fake_text(&fix, "answer four", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(context(&note), 4);
    assert_string_equal(note, "They spoke of two things.");
    assert_string_equal(pp_controller_message(fix.c, 7)->text, "answer four");
    assert_int_equal(pp_controller_n_messages(fix.c), 8); /* the summary is not a message */

    ask("question five", 2, false); /* the next summary builds on the first */
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CONTEXT);
    wait_for_request(8);
    assert_true(sent("They spoke of two things.") && sent("question three") && !sent("question four"));
    pp_controller_cancel(fix.c); /* cancelled: nothing is dropped */
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CANCELLED);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(context(&note), 4);
    assert_int_equal(fix.fake->generations, 8);

    assert_true(pp_controller_set_overflow(fix.c, "shift")); /* a summary is kept when more is dropped without a new
                                                                one */
    ask("question six", 2, true);
    fake_text(&fix, "answer six", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(context(&note), 6);
    assert_string_equal(note, "They spoke of two things.");
}

/* /compact between turns: the last answer stays as it is. */
static void compacted(void **state)
{
    (void)state;
    const char *note;
    assert_int_equal(fix_slash("/compact"), PP_SLASH_ERROR);
    fixture_turn(&fix, "one", "a");
    assert_int_equal(fix_slash("/compact"), PP_SLASH_ERROR);
    fixture_turn(&fix, "two", "b");
    fixture_turn(&fix, "three", "c");
    for (int i = 0; i < 2; i++) { /* without a summary nothing changes */
        assert_int_equal(fix_slash("/compact"), PP_SLASH_DONE);
        assert_int_equal(fix.fake->message_id, 0);
        assert_non_null(strstr(fix.fake->messages, "two"));
        assert_null(strstr(fix.fake->messages, "three"));
        if (i)
            fake_text(&fix, "They counted.", 3);
        fake_done(&fix, PP_FINISH_END, PP_OK);
        pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
        assert_int_equal(pp_controller_context(fix.c, &note), i ? 4 : 0);
    }
    assert_non_null(strstr(note, "They counted."));
    assert_int_equal(pp_controller_n_messages(fix.c), 6);
    assert_string_equal(fix_message(5)->text, "c");
    fixture_turn(&fix, "four", "d");
    assert_non_null(strstr(fix.fake->messages, "They counted."));
    assert_non_null(strstr(fix.fake->messages, "three"));
    assert_null(strstr(fix.fake->messages, "two"));
    pp_controller_undo(fix.c, 1);
    pp_controller_undo(fix.c, 1); /* undo removes the question that recorded it, and the older messages return to the
                                     context */
    assert_int_equal(pp_controller_context(fix.c, &note), 0);
}

/* If the user leaves the conversation meanwhile, it is summarised all the same, and the answer that needed the room
 * continues when it is opened again. */
static void summed_up_elsewhere(void **state)
{
    const char *note;
    (void)state;
    three_turns();
    const int64_t here = pp_controller_session_id(fix.c);
    assert_int_equal(fix_slash("/compact"), PP_SLASH_DONE);
    pp_controller_new_session(fix.c);
    fake_text(&fix, "They spoke.", 3);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, strstr(fix_status()->notice, "the summary in \"") != NULL);
    pp_controller_open(fix.c, here);
    pump_until(&fix, pp_controller_session_id(fix.c) == here);
    fixture_flush(&fix);
    assert_int_equal(fix.fake->generations, 4);
    assert_int_equal(context(&note), 4);
    assert_string_equal(note, "They spoke.");

    assert_true(pp_controller_set_overflow(fix.c, "summarise"));
    ask("question four", 2, false);
    fake_done(&fix, PP_FINISH_NONE, PP_ERR_CONTEXT);
    wait_for_request(6);
    pp_controller_new_session(fix.c);
    fake_text(&fix, "They spoke again.", 3);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, strstr(fix_status()->notice, "the summary in \"") != NULL);
    pp_controller_open(fix.c, here);
    wait_for_request(7);
    assert_true(sent("They spoke again.") && sent("question four") && !sent("question three"));
    fake_text(&fix, "answer four", 2);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(context(&note), 6);
    assert_string_equal(note, "They spoke again.");
}

/* Without a model there is no summary, and the error says why. */
static void no_model_yet(void **state)
{
    struct pp_error err;
    (void)state;
    assert_ok(fixture_start(&fix, &err), err);
    assert_int_equal(fix_slash("/compact"), PP_SLASH_ERROR);
    assert_non_null(strstr(fix_status()->notice, "still loading"));
}

/* --- with the worker -------------------------------------------------------------------------------------- */

static void settle(struct pp_controller *c)
{
    while (pp_controller_status(c)->state != PP_STATE_IDLE) {
        struct pollfd p = {.fd = pp_controller_fd(c), .events = POLLIN};
        assert_int_not_equal(pp_controller_status(c)->state, PP_STATE_FAILED);
        assert_true(poll(&p, 1, 60000) > 0);
        pp_controller_pump(c);
    }
}

static struct pp_controller *start_real(void)
{
    struct pp_error err;
    struct pp_controller *c;
    assert_ok(pp_controller_new_with(&fix.o, &fix.paths, pp_worker_start, &c, &err), err);
    settle(c);
    return c;
}

/* Returns whether there was an answer. */
static bool answered(struct pp_controller *c, const char *question)
{
    assert_true(pp_controller_send(c, question));
    settle(c);
    return pp_controller_message(c, pp_controller_n_messages(c) - 1)->len > 0;
}

/* A question that is too long by itself is left out of later prompts, so that no others are dropped to make room for
 * it. */
static void too_long_a_question_is_left_behind(void **state)
{
    (void)state;
    static char question[4000];
    for (size_t i = 0; i + 5 < sizeof question; i += 4)
        memcpy(question + i, " sea", 5);
    snprintf(fix.model, sizeof fix.model, "engine/starter/starter-Q4_K_M.gguf");
    fix.o.model = fix.model;
    fix.o.threads = 2;
    fix.o.ctx_size = 256;
    fix.o.n_predict = 8;
    fix.o.sampling.temp = 0;
    struct pp_controller *c = start_real();
    const struct pp_status *s = pp_controller_status(c);
    assert_true(answered(c, "Hello, who are you?"));
    assert_false(answered(c, question));
    assert_true(s->notice_is_error);
    assert_non_null(strstr(s->notice, "/edit"));
    assert_non_null(strstr(s->notice, "/undo"));
    assert_non_null(strstr(s->notice, "sent without it"));
    assert_true(pp_controller_message(c, 3)->too_long);
    assert_true(answered(c, "What is the sea?"));
    pp_controller_undo(c, 1);
    assert_false(answered(c, question)); /* two in a row */
    assert_true(answered(c, "What is the sea?"));
    pp_controller_undo(c, 1);
    pp_controller_undo(c, 1);
    assert_int_equal(pp_controller_n_messages(c), 4);
    pp_controller_regenerate(c, 1); /* asked for again by itself it is sent, and refused */
    settle(c);
    assert_int_equal(pp_controller_message(c, 3)->len, 0);
    assert_true(pp_controller_edit(c, 2, "Shorter."));
    settle(c);
    assert_true(pp_controller_message(c, 3)->len > 0);
    assert_false(answered(c, question));
    pp_controller_free(c);
    fix.o.resume_latest = true; /* known after a restart, too */
    c = start_real();
    assert_true(answered(c, "What is the sea?"));
    pp_controller_free(c);
    fix.o.resume_latest = false; /* dropping it would make no room */
    fix.o.ignore_eos = true;
    fix.o.n_predict = -1;
    fix.o.overflow = "shift";
    c = start_real();
    s = pp_controller_status(c);
    assert_false(answered(c, question));
    assert_true(answered(c, "What is the sea?"));
    assert_non_null(strstr(s->notice, "this one turn fills the context; /new starts"));
    assert_non_null(strstr(s->notice, "a larger --ctx-size, up to 2,048"));
    pp_controller_continue(c);
    settle(c);
    assert_false(pp_controller_message(c, 3)->too_long); /* it was answered */
    assert_null(strstr(s->notice, "/undo"));
    pp_controller_free(c);
}

TEST_GROUP(overflow)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whole_turns_are_dropped, open_model, close_model),
        cmocka_unit_test_setup_teardown(stopping_says_what_would_go, open_model, close_model),
        cmocka_unit_test_setup_teardown(the_last_turn_stays, open_model, close_model),
        cmocka_unit_test_setup_teardown(a_question_that_is_too_long_is_told, open_model, close_model),
        cmocka_unit_test(names),
        cmocka_unit_test_setup_teardown(dropped_turns_stay_dropped, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(the_user_is_asked, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(stopping_is_left_alone, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(an_answer_that_runs_into_the_end_goes_on, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(several_answers_go_on, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(some_of_several_go_on, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(some_of_several_elsewhere, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(an_answer_elsewhere_goes_on_later, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(not_in_a_temporary_one, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(a_summary_takes_their_place, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(compacted, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(summed_up_elsewhere, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(no_model_yet, fix_setup, fix_teardown),
        cmocka_unit_test_setup_teardown(too_long_a_question_is_left_behind, fix_setup, fix_teardown),
    };
    return cmocka_run_group_tests_name("overflow", tests, NULL, NULL);
}
