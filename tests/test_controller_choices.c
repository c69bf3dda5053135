/* test_controller_choices.c - a conversation keeps the adapters, options and templates it was begun with; what happens
 * when stored choices cannot be understood. */
#include <stdio.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "tests/backend_fake.h"

/* --- choices ---------------------------------------------------------------------------------------------- */

static int find(const struct pp_named *l, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(l[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* Switches on an adapter as `--lora-scaled bard.gguf:SCALE` does; path: receives its name. */
static void ask_for_bard(char path[700], float scale)
{
    snprintf(path, 700, "%s/bard.gguf", fix.paths.data);
    fix.o.lora[0].path = path;
    fix.o.lora[0].scale = scale;
    fix.o.n_lora = 1;
}

static void parse_options(char **argv, int argc)
{
    struct pp_error err;
    assert_ok(pp_options_parse(argc, argv, &fix.paths, &fix.o, &err), err);
}

static void leave(void)
{
    fixture_flush(&fix);
    fixture_stop(&fix);
}

/* Quits the program, and starts it again with other arguments. */
static void start_again(char **argv, int argc)
{
    leave();
    parse_options(argv, argc);
    fixture_ready(&fix);
}

static void test_choices_are_kept(void **state)
{
    size_t n;
    char adapter[700];
    (void)state;
    ask_for_bard(adapter, 1);
    fixture_ready(&fix);
    pp_controller_set_adapter(fix.c, 0, true, 0.75f);
    const struct pp_named *list = pp_controller_personas(fix.c, &n);
    int pirate = find(list, n, "pirate");
    assert_true(pirate > 0);
    pp_controller_set_persona(fix.c, (size_t)pirate);
    assert_non_null(strstr(fix_status()->notice, ": pirate"));
    assert_true(pp_controller_set_param(fix.c, "temp", "0.1"));
    assert_true(pp_controller_set_param(fix.c, "seed", "77"));
    assert_true(pp_controller_set_param(fix.c, "repeat-penalty", "0.01")); /* the bounds are those of the command-line
                                                                              option */
    assert_true(pp_controller_set_param(fix.c, "frequency-penalty", "-100"));
    assert_false(pp_controller_set_param(fix.c, "presence-penalty", "100.1"));
    assert_true(pp_controller_set_drafter(fix.c, PP_DRAFTER_LOOKUP));
    assert_non_null(strstr(fix_status()->notice, "come from lookup"));
    assert_true(pp_controller_set_param(fix.c, "draft-max", "3"));
    assert_true(pp_controller_set_param(fix.c, "draft-p-min", "0.5"));
    list = pp_controller_templates(fix.c, &n);
    int chatml = find(list, n, "chatml");
    assert_true(chatml > 0);
    pp_controller_set_template(fix.c, (size_t)chatml);
    fixture_flush(&fix);
    assert_non_null(strstr(fix_status()->notice, ": chatml")); /* a choice is reported, also after a menu was closed */
    fix_ask("ahoy");
    assert_int_equal(fix.fake->n_adapters, 1);
    assert_true(fix.fake->scale == 0.75f);
    assert_true(fix.fake->lookup && !fix.fake->use_draft);
    assert_int_equal(fix.fake->draft_max, 3);
    assert_false(fix.fake->draft_always);
    assert_near(fix.fake->draft_p_min, 0.5, 1e-6);
    assert_int_equal(fix.fake->sampling.seed, 77);
    assert_true(fix.fake->sampling.temp == 0.1f);
    assert_non_null(strstr(fix.fake->messages, "\"system\""));
    assert_true(fix.fake->template_source[0]);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    leave();

    fix.o.n_lora = 0;
    fix.o.resume_latest = fix.o.draft_always = true;
    fixture_ready(&fix);
    assert_string_equal(fix_status()->persona, "pirate");
    assert_string_equal(fix_status()->template_name, "chatml");
    assert_string_equal(fix_status()->adapters, "bard 0.75");
    assert_int_equal(fix_status()->drafter, PP_DRAFTER_LOOKUP);
    fix_ask("ahoy");
    assert_int_equal(fix.fake->n_adapters, 1);
    assert_true(fix.fake->lookup && !fix.fake->use_draft && fix.fake->draft_max == 3 && fix.fake->draft_always);
    assert_near(fix.fake->draft_p_min, 0.5, 1e-6);
    assert_int_equal(fix.fake->sampling.seed, 77);
    assert_true(fix.fake->sampling.repeat_penalty == 0.01f && fix.fake->sampling.frequency_penalty == -100);
    assert_true(fix.fake->template_source[0]);
    fake_done(&fix, PP_FINISH_END, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
}

/* What is chosen while the question is still being saved (slowly, as another program holds the database) applies to the
 * next answer; this answer is recorded with the choices made before. */
static void test_chosen_while_saving(void **state)
{
    char adapter[700];
    (void)state;
    ask_for_bard(adapter, 1);
    fixture_ready(&fix);
    assert_true(pp_controller_set_param(fix.c, "seed", "7"));
    assert_true(pp_controller_set_param(fix.c, "n", "300"));
    assert_true(pp_controller_send(fix.c, "hello"));
    pp_controller_set_adapter(fix.c, 0, false, 1);
    assert_true(pp_controller_set_param(fix.c, "temp", "0.1"));
    assert_true(pp_controller_set_param(fix.c, "seed", "8"));
    assert_true(pp_controller_set_param(fix.c, "n", "5"));
    pump_until(&fix, fix_status()->state == PP_STATE_PREFILL);
    assert_string_equal(fix_message(1)->adapters, "bard 1.00");
    assert_string_equal(fix.fake->asked[0].adapters, "bard 1.00");
    assert_true(fix.fake->sampling.temp == fix.o.sampling.temp);
    assert_int_equal(fix.fake->sampling.seed, 7);
    assert_int_equal(fix.fake->max_tokens, 300);
    fake_done(&fix, PP_FINISH_LENGTH, PP_OK);
    pump_until(&fix, fix_status()->state == PP_STATE_IDLE);
    assert_non_null(strstr(fix_status()->notice, "limit of 300 tokens"));
    assert_string_equal(fix_status()->adapters, "");
    fix_ask("and now");
    assert_string_equal(fix.fake->asked[1].adapters, "");
    assert_true(fix.fake->sampling.temp == 0.1f);
    assert_int_equal(fix.fake->sampling.seed, 8);
    assert_int_equal(fix.fake->max_tokens, 5);
}

/* Drafting is on unless switched off; the conversation remembers it; the command line overrides that. */
static void test_draft_choice(void **state)
{
    (void)state;
    fixture_turn(&fix, "plain", "1");
    assert_true(fix.fake->use_draft && fix.fake->lookup);
    start_again((char *[]){"pippin", "chat", "--continue", "--drafter", "model"}, 5);
    fixture_turn(&fix, "with a draft", "2");
    assert_true(fix.fake->use_draft && !fix.fake->lookup);
    start_again((char *[]){"pippin", "chat", "--continue"}, 3);
    fixture_turn(&fix, "as before", "3");
    assert_true(fix.fake->use_draft && !fix.fake->lookup);
    start_again((char *[]){"pippin", "chat", "--continue", "--no-draft"}, 4);
    fixture_turn(&fix, "not now", "4");
    assert_false(fix.fake->use_draft || fix.fake->lookup);
    start_again((char *[]){"pippin", "chat", "--continue"}, 3);
    fixture_turn(&fix, "nor now", "5");
    assert_false(fix.fake->use_draft || fix.fake->lookup);
}

/* A damaged adapter is listed; using it reports what is wrong. */
static void test_damaged_adapter_is_listed(void **state)
{
    char path[700];
    struct pp_error err;
    size_t n = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/adapters", fix.paths.data);
    assert_ok(pp_make_dirs(path, &err), err);
    snprintf(path, sizeof path, "%s/adapters/broken.gguf", fix.paths.data);
    assert_ok(pp_write_file(path, "GGUF", 4, 0600, &err), err);
    fixture_ready(&fix);
    pump_until(&fix, (pp_controller_adapters(fix.c, &n), n) == 1);
    assert_string_equal(pp_controller_adapters(fix.c, &n)->name, "broken");
}

/* Choices from the command line are stored with the conversation; later command lines override them. */
static void test_options_are_kept(void **state)
{
    char adapter[700];
    (void)state;
    ask_for_bard(adapter, 0.5f);
    fix.o.sampling.temp = 0.25f;
    fix.o.sampling.seed = 18446744073709551615u;
    fix.o.seed_given = true;
    fix.o.system = "Be kind.";
    fixture_ready(&fix);
    fixture_turn(&fix, "one", "1");
    leave();
    fix.o = (struct pp_options){.command = "chat",
                                .model = "",
                                .draft_max = 4,
                                .n_predict = -1,
                                .sampling = pp_sampling_default(),
                                .resume_latest = true};
    fixture_ready(&fix); /* also its own model */
    assert_string_equal(fix_status()->adapters, "bard 0.50");
    fixture_turn(&fix, "two", "2");
    assert_true(fix.fake->sampling.temp == 0.25f);
    assert_true(fix.fake->sampling.seed == 18446744073709551615u);
    assert_non_null(strstr(fix.fake->messages, "Be kind."));
    start_again((char *[]){"pippin", "chat", "--continue", "--temp", "0.5", "--system", "Be brief."}, 7);
    fixture_turn(&fix, "three", "3");
    assert_true(fix.fake->sampling.temp == 0.5f);
    assert_true(fix.fake->sampling.seed == 18446744073709551615u);
    assert_non_null(strstr(fix.fake->messages, "Be brief."));
    start_again((char *[]){"pippin", "chat", "--continue"}, 3);
    fixture_turn(&fix, "four", "4");
    assert_true(fix.fake->sampling.temp == 0.5f);
    assert_non_null(strstr(fix.fake->messages, "Be brief."));
    start_again((char *[]){"pippin", "chat", "--continue", "--temp", "0.8"}, 5); /* given explicitly, although it is the
                                                                                    default */
    fixture_turn(&fix, "five", "5");
    assert_true(fix.fake->sampling.temp == 0.8f);
}

static void configure(const char *text)
{
    char path[700];
    struct pp_error err;
    snprintf(path, sizeof path, "%s/pippin.conf", fix.paths.config);
    assert_ok(pp_make_dirs(fix.paths.config, &err), err);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
}

/* pippin.conf applies to new conversations: choices stored in others override it and are not changed by it. */
static void test_configuration_is_weaker(void **state)
{
    char conf[4000], template[700], configured[700], other[700];
    struct pp_error err;
    (void)state;
    snprintf(template, sizeof template, "%s/t.jinja", fix.paths.data);
    snprintf(configured, sizeof configured, "%s/configured.jinja", fix.paths.data);
    snprintf(other, sizeof other, "%s/other.gguf", fix.paths.data);
    assert_ok(pp_write_file(template, "{{ messages }}", 14, 0600, &err), err);
    assert_ok(pp_write_file(configured, "{{ messages }}.", 15, 0600, &err), err);
    assert_ok(pp_write_file(other, "x", 1, 0600, &err), err);
    parse_options((char *[]){"pippin", "chat", "-m", fix.model, "--system", "Be kind.", "--seed", "5", "-n", "100",
                             "--drafter", "lookup", "--chat-template-file", template}, 14);
    fixture_ready(&fix);
    fixture_turn(&fix, "one", "1");
    leave();

    snprintf(conf, sizeof conf,
             "[model]\nmodel = %s\nmodel-draft = %s\nlora = %s/bard.gguf\ndrafter = model\nchat-template-file = %s\n"
             "draft-max = 3\n[sampling]\nsystem = Be brief.\nseed = 6\npredict = 50\ntemp = 0.25\n", other, other,
             fix.paths.data, configured);
    configure(conf);
    for (int i = 0; i < 2; i++) {
        parse_options((char *[]){"pippin", "chat", "--continue"}, 3);
        fixture_ready(&fix);
        assert_string_equal(fix_status()->adapters, "");
        fixture_turn(&fix, "two", "2");
        assert_non_null(strstr(fix.fake->messages, "Be kind."));
        assert_string_equal(fix.fake->template_source, "{{ messages }}");
        assert_int_equal(fix.fake->sampling.seed, 5);
        assert_int_equal(fix.fake->max_tokens, 100);
        assert_true(fix.fake->lookup && !fix.fake->use_draft);
        assert_string_equal(fix.fake->loaded, fix.model);
        assert_string_equal(fix.fake->loaded_draft, ""); /* the configured draft belongs to the other model */
        leave();
    }
    parse_options((char *[]){"pippin", "chat"}, 2); /* a new conversation */
    fixture_ready(&fix);
    assert_string_equal(fix_status()->adapters, "bard 1.00");
    assert_string_equal(fix.fake->loaded, other);
    assert_string_equal(fix.fake->loaded_draft, other);
    fixture_turn(&fix, "one", "1");
    assert_non_null(strstr(fix.fake->messages, "Be brief."));
    assert_int_equal(fix.fake->sampling.seed, 6);
    assert_int_equal(fix.fake->max_tokens, 50);
    assert_true(fix.fake->sampling.temp == 0.25f);

    /* choosing a default is a choice, too, if pippin.conf says something else */
    assert_int_equal(fix_slash("/set temp 0.8"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/set n -1"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/set seed random"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/set draft-max 8"), PP_SLASH_DONE);
    start_again((char *[]){"pippin", "chat", "--continue"}, 3);
    fixture_turn(&fix, "two", "2");
    assert_true(fix.fake->sampling.temp == 0.8f);
    assert_int_equal(fix.fake->max_tokens, -1);
    assert_int_not_equal(fix.fake->sampling.seed, 6);
    assert_int_equal(fix.fake->draft_max, 8);
    assert_false(fix_status()->notice_is_error);
}

/* A change of settings that was posted before an answer was added must not reset the head. */
static void test_update_keeps_head(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "a");
    int64_t id = pp_controller_session_id(fix.c);
    assert_true(pp_controller_send(fix.c, "two"));
    assert_true(pp_controller_set_param(fix.c, "temp", "0.5"));
    fix_answer("b");
    pp_controller_set_system(fix.c, "x");
    fixture_flush(&fix);
    pp_controller_new_session(fix.c);
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_session_id(fix.c) == id);
    assert_int_equal(pp_controller_n_messages(fix.c), 4);
}

static void test_malformed_settings(void **state)
{
    static const char *const settings[] = {
        "{broken", "[]", "{\"temp\":\"hot\"}", "{\"temp\":1e300,\"top-k\":2.5}", "{\"persona\":7}", "\"x\""};
    static const char *const adapters[] = {"[", "{}", "[1,null,{\"path\":5}]", "[{\"path\":\"\"}]", "[{\"scale\":1}]",
                                           "7"};
    struct pp_error err;
    (void)state;
    fixture_turn(&fix, "hello", "hi");
    int64_t id = pp_controller_session_id(fix.c);
    for (size_t i = 0; i < 6; i++) {
        pp_controller_new_session(fix.c);
        fixture_flush(&fix);
        struct pp_store *st = fix_store();
        struct pp_session s = {0};
        assert_ok(pp_store_session_get(st, id, &s, &err), err);
        pp_free(s.settings);
        pp_free(s.adapters);
        s.settings = pp_strdup(settings[i]);
        s.adapters = pp_strdup(adapters[i]);
        assert_ok(pp_store_session_update(st, &s, &err), err);
        pp_session_clear(&s);
        pp_store_close(st);
        pp_controller_open(fix.c, id);
        pump_until(&fix, pp_controller_session_id(fix.c) == id);
        assert_true(fix_status()->notice_is_error);
        assert_int_equal(pp_controller_n_messages(fix.c), 2);
        assert_string_equal(fix_status()->adapters, "");
        fixture_turn(&fix, "still there?", "yes");
        assert_true(fix.fake->sampling.temp == pp_sampling_default().temp);
        pp_controller_undo(fix.c, 1);
    }
}

static void test_missing_template(void **state)
{
    struct pp_error err;
    (void)state;
    fixture_turn(&fix, "hello", "hi");
    int64_t id = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    fixture_flush(&fix);
    struct pp_store *st = fix_store();
    struct pp_session s = {0};
    assert_ok(pp_store_session_get(st, id, &s, &err), err);
    pp_free(s.template_name);
    s.template_name = pp_strdup("gone");
    assert_ok(pp_store_session_update(st, &s, &err), err);
    pp_session_clear(&s);
    pp_store_close(st);
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_session_id(fix.c) == id);
    assert_true(fix_status()->notice_is_error);
    assert_non_null(strstr(fix_status()->notice, "gone"));
    fixture_turn(&fix, "works?", "yes");
    assert_string_equal(fix.fake->template_source, "");
}

static bool notice_is(const char *part)
{
    return strstr(fix_status()->notice, part) != NULL;
}

static bool persona_is(const char *name)
{
    return strcmp(fix_status()->persona, name) == 0;
}

/* Puts a file into the folder of personas. */
static void put_persona(const char *name, const char *text, size_t n)
{
    char path[700];
    struct pp_error err;
    snprintf(path, sizeof path, "%s/personas/%s", fix.paths.config, name);
    assert_ok(pp_make_dirs_of(path, &err), err);
    assert_ok(pp_write_file(path, text, n, 0600, &err), err);
}

/* A system prompt can be saved as a persona, which is there at the next start, too. */
static void test_saved_persona(void **state)
{
    static const char *const bad[] = {"none", "None", "a/b", ".x", "../x", "x\xFF",
                                      "0123456789 123456789 123456789 1234567890"};
    char *again[] = {"pippin", "chat", "-m", fix.model, "--persona", "REVIEWER two", NULL};
    size_t n;
    (void)state;
    put_persona("Dropped in.txt", "Be kind.\r\n", 10);
    put_persona("bad.txt", "M\374ller", 6);
    put_persona("nul.txt", "a\0b", 3);
    put_persona("none.txt", "x", 1);
    put_persona("notes.md", "x", 1);
    put_persona(".txt", "x", 1);
    parse_options(again, 4);
    fixture_ready(&fix);
    const struct pp_named *list = pp_controller_personas(fix.c, &n);
    const int dropped = find(list, n, "Dropped in");
    assert_true(dropped > 0);
    assert_string_equal(list[dropped].detail, "Be kind.");
    assert_true(find(list, n, "bad") < 0 && find(list, n, "nul") < 0 && find(list, n, "notes") < 0);
    assert_string_equal(list[0].detail, "no system prompt");
    assert_string_equal(list[n - 1].name, "Dropped in");
    assert_true(pp_controller_set_system(fix.c, "Name the line.\nSay nothing else.\n"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(pp_controller_save_persona(fix.c, bad[i]));
        assert_true(notice_is("the name of a persona must have 1 to 40 bytes"));
    }
    assert_true(pp_controller_save_persona(fix.c, "reviewer two"));
    pump_until(&fix, persona_is("reviewer two"));
    assert_true(notice_is("/persona reviewer two chooses this system prompt"));
    assert_true(pp_controller_set_system(fix.c, "Be nice."));
    assert_true(pp_controller_save_persona(fix.c, "PIRATE")); /* the built-in one, replaced */
    pump_until(&fix, persona_is("pirate"));
    start_again(again, 6);
    list = pp_controller_personas(fix.c, &n);
    const int saved = find(list, n, "reviewer two");
    assert_true(saved > 0 && list[saved].current);
    assert_string_equal(list[saved].detail, "Name the line.\nSay nothing else.\n");
    assert_string_equal(list[find(list, n, "pirate")].detail, "Be nice.");
}

/* One that cannot be written is reported. */
static void test_unsaved_persona(void **state)
{
    (void)state;
    snprintf(fix.paths.config, sizeof fix.paths.config, "/dev/null/x");
    assert_true(pp_controller_set_system(fix.c, "Be nice."));
    assert_true(pp_controller_save_persona(fix.c, "nice"));
    pump_until(&fix, notice_is("the persona was not saved: "));
    assert_string_equal(fix_status()->persona, "");
}

/* A persona's name in pippin.conf that is too long is cut at a character boundary. */
static void test_long_persona(void **state)
{
    struct pp_personas p = {0};
    struct pp_buf name = {0};
    struct pp_error err;
    (void)state;
    pp_buf_char(&name, 'x');
    while (name.len < 90)
        pp_buf_str(&name, "\xC3\xA9");
    assert_ok(pp_personas_add(&p, pp_buf_cstr(&name), "Be brief.", &err), err);
    assert_int_equal(strlen(p.items[0].name), 63);
    pp_buf_clear(&name);
    while (name.len < 90)
        pp_buf_str(&name, "\xC3\xA9");
    assert_ok(pp_personas_add(&p, pp_buf_cstr(&name), "Be brief.", &err), err);
    assert_int_equal(strlen(p.items[1].name), 62);
    assert_true(pp_utf8_valid(p.items[1].name, 62));
    pp_buf_free(&name);
    pp_personas_free(&p);
}

TEST_GROUP(controller_choices)
{
    const struct CMUnitTest tests[] = {
        FRESH(test_choices_are_kept),
        cmocka_unit_test(test_long_persona),
        FRESH(test_saved_persona),
        READY(test_unsaved_persona),
        FRESH(test_chosen_while_saving),
        FRESH(test_options_are_kept),
        FRESH(test_configuration_is_weaker),
        FRESH(test_damaged_adapter_is_listed),
        READY(test_draft_choice),
        READY(test_update_keeps_head),
        READY(test_malformed_settings),
        READY(test_missing_template),
    };
    return cmocka_run_group_tests_name("controller_choices", tests, NULL, NULL);
}
