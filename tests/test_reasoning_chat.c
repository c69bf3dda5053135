/* test_reasoning_chat.c - reasoning in a conversation: shown with its answer, stored in the database, and part of the
 * next prompt; the template's switch for it; the parts of an answer while it streams. */
#include <cjson/cJSON.h>
#include <string.h>

#include "src/parts.h"
#include "src/store.h"
#include "src/thinking.h"
#include "tests/backend_fake.h"
#include "tests/fill_store.h"

/* Reads a message from the store; the caller clears it. */
static struct pp_message stored(int64_t id)
{
    struct pp_store *st;
    struct pp_message m;
    struct pp_error err;
    fixture_flush(&fix);
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_ok(pp_store_message_get(st, id, &m, &err), err);
    pp_store_close(st);
    return m;
}

static void expect_stored(int64_t id, const char *reasoning, const char *text)
{
    struct pp_message m = stored(id);
    assert_string_equal(m.reasoning, reasoning);
    assert_string_equal(m.content, text);
    pp_message_clear(&m);
}

static void finish(enum pp_code code)
{
    fake_done(&fix, code ? PP_FINISH_NONE : PP_FINISH_END, code);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
}

/* --- beside the answer ---------------------------------------------------------------------------------------- */

static void it_stands_beside_the_answer(void **state)
{
    (void)state;
    fix_ask("six times seven?");
    fake_think(&fix, "Let me", true, false, 2);
    pump_until(&fix, fix_message(1)->reasoning_len > 0);
    assert_true(fix_message(1)->thinking);
    assert_string_equal(fix_message(1)->text, "");
    fake_think(&fix, " see", false, false, 3);
    fake_text(&fix, "Forty-two", 4);
    finish(PP_OK);
    const struct pp_chat_message *m = fix_message(1);
    assert_string_equal(m->reasoning, "Let me see");
    assert_string_equal(m->text, "Forty-two");
    assert_false(m->thinking);
    assert_int_equal(m->reasoning_tokens, 3);
    assert_near(m->reasoning_s, 1.5, 1e-6);
    expect_stored(m->id, "Let me see", "Forty-two");
    /* the next prompt has it as a separate member */
    fix_ask("and eight?");
    cJSON *messages = cJSON_Parse(fix.fake->messages);
    const cJSON *answer = cJSON_GetArrayItem(messages, 1);
    assert_string_equal(cJSON_GetObjectItem(answer, "content")->valuestring, "Forty-two");
    assert_string_equal(cJSON_GetObjectItem(answer, "reasoning_content")->valuestring, "Let me see");
    assert_null(cJSON_GetObjectItem(cJSON_GetArrayItem(messages, 0), "reasoning_content"));
    cJSON_Delete(messages);
    finish(PP_OK);
}

static void it_is_taken_back(void **state)
{
    (void)state;
    fix_ask("why?");
    fake_text(&fix, "Not opened", 2);
    pump_until(&fix, fix_message(1)->len > 0);
    fake_think(&fix, " by anyone", false, true, 4);
    fake_text(&fix, "Because", 5);
    finish(PP_OK);
    assert_string_equal(fix_message(1)->reasoning, "Not opened by anyone");
    assert_string_equal(fix_message(1)->text, "Because");
    expect_stored(fix_message(1)->id, "Not opened by anyone", "Because");
}

static void it_is_gone_on_with(void **state)
{
    (void)state;
    fix_ask("why?");
    fake_think(&fix, "Half a", true, false, 2);
    pump_until(&fix, fix_message(1)->reasoning_len > 0);
    assert_true(pp_controller_cancel(fix.c));
    finish(PP_ERR_CANCELLED);
    assert_false(fix_message(1)->thinking);
    expect_stored(fix_message(1)->id, "Half a", "");
    pp_controller_continue(fix.c);
    pump_until(&fix, fix.fake->generations == 2);
    assert_string_equal(fix.fake->continue_reasoning, "Half a");
    assert_string_equal(fix.fake->continue_text, "");
    fake_think(&fix, " thought", false, false, 4);
    fake_text(&fix, "So", 5);
    finish(PP_OK);
    assert_string_equal(fix_message(1)->reasoning, "Half a thought");
    expect_stored(fix_message(1)->id, "Half a thought", "So");
    pp_controller_regenerate(fix.c, 1); /* a new answer starts from nothing */
    pump_until(&fix, fix.fake->generations == 3);
    assert_string_equal(fix.fake->continue_reasoning, "");
    finish(PP_OK);
}

static void alternatives_and_forks_keep_it(void **state)
{
    (void)state;
    fixture_turn(&fix, "why?", "so");
    pp_controller_regenerate(fix.c, 2);
    pump_until(&fix, fix.fake->generations == 3);
    for (int i = 1; i <= 2; i++) {
        fake_choose(&fix, i);
        fake_think(&fix, i == 1 ? "first" : "second", false, false, 1);
        fake_text(&fix, i == 1 ? "one" : "two", 2);
        fake_done(&fix, PP_FINISH_END, PP_OK);
    }
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_string_equal(fix_message(1)->reasoning, "first");
    pp_controller_sibling(fix.c, 1, 1);
    pump_until(&fix, strcmp(fix_message(1)->text, "two") == 0);
    assert_string_equal(fix_message(1)->reasoning, "second");
    int64_t before = pp_controller_session_id(fix.c);
    pp_controller_fork(fix.c, 0);
    pump_until(&fix, pp_controller_session_id(fix.c) != before);
    assert_string_equal(fix_message(1)->reasoning, "second");
}

static void no_search_finds_it(void **state)
{
    struct pp_store *st;
    struct pp_session *list;
    size_t n;
    struct pp_error err;
    (void)state;
    fix_ask("why?");
    fake_think(&fix, "because of porpoises", false, false, 3);
    fake_text(&fix, "whales", 4);
    finish(PP_OK);
    fixture_flush(&fix);
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_ok(list_sessions(st, "whales", &list, &n, &err), err);
    assert_int_equal(n, 1);
    pp_session_list_free(list, n);
    assert_ok(list_sessions(st, "porpoises", &list, &n, &err), err);
    assert_int_equal(n, 0);
    pp_session_list_free(list, n);
    pp_store_close(st);
}

/* --- the switch ----------------------------------------------------------------------------------------------- */

static void the_switch(void **state)
{
    (void)state;
    assert_int_equal(fix_slash("/think off"), PP_SLASH_ERROR); /* the fixture's model has no such switch */
    assert_non_null(strstr(fix_status()->notice, "no switch"));
    fix.fake->thinking_choices = 1u << PP_THINKING_OFF | 1u << PP_THINKING_ON;
    fake_loaded(&fix);
    pump_until(&fix, fix_status()->model.thinking_choices != 0);
    assert_int_equal(fix_slash("/think low"), PP_SLASH_ERROR);
    assert_non_null(strstr(fix_status()->notice, "auto, off or on"));
    assert_int_equal(fix_slash("/think sideways"), PP_SLASH_ERROR);
    fix_ask("why?");
    assert_int_equal(fix.fake->thinking, PP_THINKING_AUTO);
    finish(PP_OK);
    assert_int_equal(fix_slash("/think off"), PP_SLASH_DONE);
    fix_ask("why?");
    assert_int_equal(fix.fake->thinking, PP_THINKING_OFF);
    finish(PP_OK);
    /* the setting belongs to the conversation */
    int64_t session = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    pump_until(&fix, pp_controller_session_id(fix.c) == 0);
    assert_int_equal(fix_slash("/think auto"), PP_SLASH_DONE);
    fix_ask("why?");
    assert_int_equal(fix.fake->thinking, PP_THINKING_AUTO);
    finish(PP_OK);
    pp_controller_open(fix.c, session);
    pump_until(&fix, pp_controller_session_id(fix.c) == session);
    fix_ask("why?");
    assert_int_equal(fix.fake->thinking, PP_THINKING_OFF);
    finish(PP_OK);
}

/* A template that refuses most efforts. */
#define FEW "{% set e = reasoning_effort | default('none') %}{{ e }}" \
            "{% if e not in ['none', 'high'] %}{{ raise_exception('none or high') }}{% endif %}"

/* A template that knows no effort higher than low, and "none" in another meaning. */
#define LOW "{% if tool_choice == 'none' %}x{% endif %}" \
            "{% if reasoning_effort | default('low') != 'low' %}{{ raise_exception('only low') }}{% endif %}"

#define MODES "{% if thinking_mode == 'enabled' %}on{% elif thinking_mode == 'disabled' %}off{% endif %}"

static void efforts_that_a_template_refuses(void **state)
{
    struct pp_template *few = NULL, *any = NULL, *modes = NULL;
    char words[PP_THINKING_WORDS];
    (void)state;
    assert_int_equal(pp_template_parse(FEW, strlen(FEW), "", &few, NULL), PP_OK);
    assert_int_equal(pp_template_parse("{{ reasoning_effort }}", 22, "", &any, NULL), PP_OK);
    assert_int_equal(pp_template_parse(MODES, strlen(MODES), "", &modes, NULL), PP_OK);
    assert_non_null(strstr(pp_thinking_variables(PP_THINKING_OFF, modes), "\"disabled\""));
    assert_non_null(strstr(pp_thinking_variables(PP_THINKING_ON, modes), "\"enabled\""));
    assert_null(pp_thinking_variables(PP_THINKING_AUTO, modes));
    pp_template_free(modes);
    assert_non_null(strstr(pp_thinking_variables(PP_THINKING_LOW, few), "\"high\""));
    assert_non_null(strstr(pp_thinking_variables(PP_THINKING_LOW, any), "\"low\""));
    assert_non_null(strstr(pp_thinking_variables(PP_THINKING_OFF, few), "\"none\""));
    assert_null(strstr(pp_thinking_variables(PP_THINKING_OFF, any), "none"));
    assert_string_equal(pp_thinking_words(pp_thinking_choices(few), words, sizeof words), "auto, off or high");
    assert_string_equal(pp_thinking_words(pp_thinking_choices(any), words, sizeof words), "auto, low, medium or high");
    assert_string_equal(pp_thinking_words(~0u, words, sizeof words), "auto, off, on, low, medium or high");
    pp_template_free(few);
    pp_template_free(any);
    assert_int_equal(pp_template_parse(LOW, strlen(LOW), "", &few, NULL), PP_OK);
    assert_non_null(strstr(pp_thinking_variables(PP_THINKING_HIGH, few), "\"low\""));
    assert_null(strstr(pp_thinking_variables(PP_THINKING_OFF, few), "none"));
    assert_string_equal(pp_thinking_words(pp_thinking_choices(few), words, sizeof words), "auto or low");
    pp_template_free(few);
}

/* A template that takes two efforts, and refuses a third one that is its default; one that also wants a system
 * message. */
#define TWO "{% if (reasoning_effort | default('high')) not in ['low', 'medium'] %}" \
            "{{ raise_exception('no') }}{% endif %}"
#define SYSTEM "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"

static void efforts_that_are_passed_are_taken(void **state)
{
    static const char *const sources[] = {TWO, SYSTEM TWO};
    (void)state;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        struct pp_template *t = NULL;
        char words[PP_THINKING_WORDS];
        assert_int_equal(pp_template_parse(sources[i], strlen(sources[i]), "", &t, NULL), PP_OK);
        assert_string_equal(pp_thinking_words(pp_thinking_choices(t), words, sizeof words), "auto, low or medium");
        assert_non_null(strstr(pp_thinking_variables(PP_THINKING_HIGH, t), "\"medium\""));
        assert_non_null(strstr(pp_thinking_variables(PP_THINKING_LOW, t), "\"low\""));
        assert_non_null(strstr(pp_thinking_variables(PP_THINKING_AUTO, t), "\"medium\""));
        pp_template_free(t);
    }
}

static void switches_of_templates(void **state)
{
    enum { CAN_SWITCH = 1u << PP_THINKING_OFF | 1u << PP_THINKING_ON,
           DEGREES = 1u << PP_THINKING_LOW | 1u << PP_THINKING_MEDIUM | 1u << PP_THINKING_HIGH };
    static const struct {
        const char *source;
        unsigned choices;
    } cases[] = {
        {"{% if enable_thinking is defined and not enable_thinking %}x{% endif %}", CAN_SWITCH},
        {"{%- elif %}", 0},
        {"{% if thinking %}x{% endif %}", CAN_SWITCH},
        {"{{ message.thinking }}{{ m['enable_thinking'] }}{{ 'thinking' }}{# thinking #} thinking", 0},
        {"{% set thinking = 1 %}", 0},
        {"{{ x | default(reasoning_effort) }}", DEGREES},
        {"{% macro m(a) %}{{ a + enable_thinking }}{% endmacro %}{{ reasoning_effort }}", CAN_SWITCH | DEGREES},
        {"{{ messages }}", 0},
        {"{% if reasoning_effort == 'none' %}x{% endif %}", 1u << PP_THINKING_OFF | DEGREES},
        {FEW, 1u << PP_THINKING_OFF | 1u << PP_THINKING_HIGH},
        {"{{ raise_exception(reasoning_effort) }}", DEGREES},
        {MODES, CAN_SWITCH},
        {"{% if thinking_mode == 'chat' %}x{% endif %}", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(pp_thinking_choices_of(cases[i].source), cases[i].choices);
    assert_int_equal(pp_thinking_choices_of(NULL), 0);
    for (int t = PP_THINKING_AUTO; t <= PP_THINKING_HIGH; t++) {
        const char *json = pp_thinking_variables((enum pp_thinking)t, NULL);
        cJSON *o = json ? cJSON_Parse(json) : NULL;
        assert_true(!json == (t == PP_THINKING_AUTO));
        assert_true(!json || cJSON_IsObject(o));
        assert_int_equal(pp_thinking_by_name(pp_thinking_name((enum pp_thinking)t)), t);
        cJSON_Delete(o);
    }
    assert_int_equal(pp_thinking_by_name("loud"), -1);
}

/* --- parts ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *text, *reasoning, *answer;
} trimmed[] = {
    {"<think>\n a \n b \n</think>\n\nHi \n", "a \n b", "Hi \n"},
    {"<think>\n\n</think>\n\nHi", "", "Hi"},
    {"\n Hi", "", "\n Hi"},
    {"a</think>\n\nHi", "a", "Hi"},
    {"<think>a\n\n\nb", "a\n\n\nb", ""},
};

/* Blanks around tags belong to no part, however the text is divided. */
static void blanks_around_tags(void **state)
{
    struct pp_reasoning r = pp_reasoning_of("</think>", NULL);
    (void)state;
    for (size_t i = 0; i < sizeof trimmed / sizeof *trimmed; i++) {
        for (size_t step = 1; step < 12; step++) {
            struct pp_parts p = {0};
            const char *s = trimmed[i].text;
            struct pp_buf text = {0}, reasoning = {0};
            assert_true(pp_parts_begin(&p, &r, PP_BEGINS_FREE));
            for (size_t n = strlen(s), at = 0; at <= n; at += step) {
                if (at + step > n) {
                    pp_parts_add(&p, s + at, NULL, n - at, 1, at);
                    pp_parts_end(&p, n);
                } else {
                    pp_parts_add(&p, s + at, NULL, step, 1, at);
                }
                if (p.text_was_reasoning) {
                    pp_buf_add(&reasoning, text.data, text.len);
                    pp_buf_clear(&text);
                }
                pp_buf_add(&text, p.text.data, p.text.len);
                pp_buf_add(&reasoning, p.reasoning.data, p.reasoning.len);
                pp_buf_clear(&p.text);
                pp_buf_clear(&p.reasoning);
                p.text_was_reasoning = false;
            }
            assert_string_equal(pp_buf_cstr(&text), trimmed[i].answer);
            assert_string_equal(pp_buf_cstr(&reasoning), trimmed[i].reasoning);
            pp_parts_free(&p);
            pp_buf_free(&text);
            pp_buf_free(&reasoning);
        }
    }
}

static void tokens_and_time_are_counted(void **state)
{
    struct pp_reasoning r = pp_reasoning_of("</think>", NULL);
    struct pp_parts p = {0};
    (void)state;
    assert_true(pp_parts_begin(&p, &r, PP_BEGINS_REASONING));
    assert_true(p.thinking);
    pp_parts_add(&p, "a", NULL, 1, 1, 1000);
    pp_parts_add(&p, "b", NULL, 1, 3, 1500);
    assert_true(p.thinking);
    pp_parts_add(&p, "</think>", NULL, 8, 1, 1700);
    assert_false(p.thinking);
    pp_parts_add(&p, "Hi", NULL, 2, 1, 5000);
    pp_parts_end(&p, 9000);
    assert_int_equal(p.n_reasoning, 5);
    assert_int_equal(p.reasoning_ns, 700);
    pp_parts_free(&p);
}

TEST_GROUP(reasoning_chat)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(efforts_that_are_passed_are_taken),
        cmocka_unit_test(switches_of_templates),
        cmocka_unit_test(efforts_that_a_template_refuses),
        cmocka_unit_test(blanks_around_tags),
        cmocka_unit_test(tokens_and_time_are_counted),
        cmocka_unit_test_setup_teardown(it_stands_beside_the_answer, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(it_is_taken_back, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(it_is_gone_on_with, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(alternatives_and_forks_keep_it, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(no_search_finds_it, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(the_switch, fix_setup_ready, fix_teardown),
    };
    return cmocka_run_group_tests_name("reasoning_chat", tests, NULL, NULL);
}
