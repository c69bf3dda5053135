/* test_slash.c - the commands that begin with '/'. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "src/figures.h"
#include "tests/backend_fake.h"

static const char *notice(void)
{
    return pp_controller_status(fix.c)->notice;
}

static void test_text(void **state)
{
    (void)state;
    assert_int_equal(fix_slash("hello"), PP_SLASH_TEXT);
    assert_int_equal(fix_slash("/"), PP_SLASH_HELP);
    assert_int_equal(fix_slash("/ "), PP_SLASH_HELP);
    assert_int_equal(fix_slash("//"), PP_SLASH_TEXT);
    assert_int_equal(fix_slash("/ help"), PP_SLASH_TEXT);
    assert_int_equal(fix_slash("/etc/passwd: what is it?"), PP_SLASH_TEXT);
    assert_int_equal(fix_slash("/tmp\nis how my poem begins"), PP_SLASH_TEXT);
    assert_string_equal(pp_slash_text("/etc/passwd: what is it?"), "/etc/passwd: what is it?");
    assert_string_equal(pp_slash_text("//tmp is full"), "/tmp is full"); /* text that would otherwise be a command */
    assert_string_equal(pp_slash_text("///x"), "//x");
    assert_string_equal(pp_slash_text("// a comment"), "// a comment");
    assert_string_equal(pp_slash_text("//a comment\nint x;"), "//a comment\nint x;");
    assert_string_equal(pp_slash_text("//new\nis how my poem begins"), "/new\nis how my poem begins");
    assert_string_equal(pp_slash_text("///new\nis how my poem begins"), "//new\nis how my poem begins");
    assert_string_equal(pp_slash_text("//"), "//");
    assert_true(pp_slash_looks_like("/tmp is full"));
    assert_false(pp_slash_looks_like("/etc/passwd"));
    assert_false(pp_slash_looks_like(" /tmp"));
}

/* Several lines pasted after a one-line command are neither run nor sent. */
static void test_several_lines(void **state)
{
    static const char *const refused[] = {"/rename one\ntwo", "/rename\none", "/NEW\nis how my poem begins",
                                          "/theme dark\r\nlight", "/set temp 1\n/set top-k 2"};
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(fix_slash(refused[i]), PP_SLASH_ERROR_EDIT);
        assert_non_null(strstr(notice(), "takes one line"));
    }
    assert_int_equal(pp_controller_n_messages(fix.c), 0);
    assert_int_equal(fix_slash("/system Be brief.\nBe kind.\n"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/system"), PP_SLASH_DONE);
    assert_string_equal(notice(), "system prompt: Be brief.\nBe kind.");
    assert_int_equal(fix_slash("/system none"), PP_SLASH_DONE);
}

static void test_unknown(void **state)
{
    (void)state;
    assert_int_equal(fix_slash("/regn"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "/regen"));
    assert_true(pp_controller_status(fix.c)->notice_is_error);
    assert_int_equal(fix_slash("/xyzzyplugh"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "/help"));
    assert_int_equal(fix_slash("/tmp is full"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "to send it as a message, start it with //"));
    assert_int_equal(fix_slash("/show info"), PP_SLASH_ERROR); /* of other programs */
    assert_non_null(strstr(notice(), "there is no /show: /set shows the parameters"));
    assert_non_null(strstr(notice(), "To send it as a message, start it with //"));
    assert_int_equal(fix_slash("/LS"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "/sessions lists conversations"));
    assert_int_equal(fix_slash("/temp 0.5"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "there is no /temp: /set temp VALUE sets it"));
    assert_int_equal(fix_slash("/regn 3"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "To send it as a message, start it with //"));
}

/* A command without arguments does not ignore one; a command that takes a number takes no word. */
static void test_surplus(void **state)
{
    static const char *const alone[] = {"quit", "new", "sessions", "continue", "redo", "stats", "forget", "compact"};
    char line[64];
    (void)state;
    fixture_turn(&fix, "one", "a");
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        snprintf(line, sizeof line, "/%s x", alone[i]);
        assert_int_equal(fix_slash(line), PP_SLASH_ERROR);
        assert_non_null(strstr(notice(), "takes no argument"));
    }
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    static const char *const wrong[] = {"/regen x", "/regen 1 2", "/fork x", "/fork -1", "/undo x", "/undo 0",
                                        "/undo 1 2", "/temporary x", "/delete x", "/overflow x", "/template x y",
                                        "/persona x y", "/draft off x", "/draft tint x", "/lora off x",
                                        "/think x y", "/set temp 1 2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint64_t serial = pp_controller_status(fix.c)->notice_serial;
        assert_int_equal(fix_slash(wrong[i]), PP_SLASH_ERROR);
        assert_true(pp_controller_status(fix.c)->notice_serial > serial);
        assert_true(pp_controller_status(fix.c)->notice_is_error);
    }
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    assert_int_equal(fix_slash("/help undo"), PP_SLASH_DONE);
    assert_non_null(strstr(notice(), "/undo [N]: take back"));
    assert_int_equal(fix_slash("/help /fork"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/help xyzzyplugh"), PP_SLASH_ERROR);
}

static void test_undo(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "a");
    fixture_turn(&fix, "two", "b");
    fixture_turn(&fix, "three", "c");
    assert_int_equal(fix_slash("/undo 4"), PP_SLASH_ERROR); /* all four or none */
    assert_non_null(strstr(notice(), "only 3 questions"));
    assert_int_equal(pp_controller_n_messages(fix.c), 6);
    assert_int_equal(fix_slash("/undo 2"), PP_SLASH_DONE);
    assert_int_equal(pp_controller_n_messages(fix.c), 2);
    assert_string_equal(fix_message(0)->text, "one");
    assert_non_null(strstr(notice(), "took back the last 2 questions")); /* where no screen shows it */
    assert_int_equal(fix_slash("/undo"), PP_SLASH_DONE);
    assert_non_null(strstr(notice(), "took back the last question"));
    assert_int_equal(fix_slash("/undo"), PP_SLASH_ERROR);
}

/* The same question has the same answer where nothing is drawn. */
static void test_likeliest(void **state)
{
    static const char *const how[][2] = {{"/set temp 0", "temp 0"}, {"/set temp 1", NULL},
                                          {"/set seed 5", "the seed is fixed"}, {"/set top-k 1", "top-k 1"}};
    (void)state;
    fixture_turn(&fix, "one", "a");
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        assert_int_equal(fix_slash(how[i][0]), PP_SLASH_DONE);
        assert_int_equal(fix_slash("/regen"), PP_SLASH_DONE);
        assert_true(!how[i][1] == !strstr(notice(), "has the same answer"));
        assert_true(!how[i][1] || strstr(notice(), how[i][1]));
        fix_answer("b");
    }
}

static void test_branch(void **state)
{
    (void)state;
    fixture_turn(&fix, "one", "a");
    assert_int_equal(fix_slash("/branch 1"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "no branches yet"));
    pp_controller_regenerate(fix.c, 1);
    assert_null(strstr(notice(), "the same answer"));
    fix_answer("b");
    pp_controller_regenerate(fix.c, 1);
    fix_answer("c");
    fixture_flush(&fix);
    assert_int_equal(fix_slash("/branch"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "this is answer 3 of 3"));
    assert_int_equal(fix_slash("/branch 4"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/branch x"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/branch 1"), PP_SLASH_BRANCH);
    pump_until(&fix, strcmp(fix_message(1)->text, "a") == 0);
    assert_string_equal(notice(), "answer 1 of 3");
    fixture_turn(&fix, "two", "d");
    assert_int_equal(fix_slash("/branch 3"), PP_SLASH_BRANCH); /* for the last message that has several */
    pump_until(&fix, pp_controller_n_messages(fix.c) == 2);
    assert_string_equal(fix_message(1)->text, "c");
}

/* Settings that other programs change with the same command. */
static void test_set_of_others(void **state)
{
    (void)state;
    assert_int_equal(fix_slash("/set parameter temperature 0.5"), PP_SLASH_DONE);
    assert_string_equal(notice(), "temp is now 0.5");
    assert_int_equal(fix_slash("/set system Be brief."), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "not a parameter but a command: /system"));
    assert_int_equal(fix_slash("/set seed 5"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/set parameter num_ctx 4096"), PP_SLASH_ERROR); /* not a parameter of a running chat */
    assert_non_null(strstr(notice(), "ctx-size can only be set at start (--ctx-size)"));
    assert_int_equal(fix_slash("/set threads 4"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "(--threads)"));
    assert_int_equal(fix_slash("/set ctx-sise 4"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "no parameter \"ctx-sise\""));
}

static void test_screen(void **state)
{
    char arg[16];
    (void)state;
    assert_int_equal(pp_controller_slash(fix.c, "/theme  dark \n", arg, sizeof arg), PP_SLASH_THEME); /* as pasted */
    assert_string_equal(arg, "dark");
    assert_int_equal(pp_controller_slash(fix.c, "/theme  dark ", arg, sizeof arg), PP_SLASH_THEME);
    assert_string_equal(arg, "dark");
    assert_int_equal(pp_controller_slash(fix.c, "/theme a-name-that-is-too-long", arg, sizeof arg), PP_SLASH_THEME);
    assert_int_equal(strlen(arg), 15);
    assert_int_equal(fix_slash("/?"), PP_SLASH_HELP);
    assert_int_equal(fix_slash("/HELP"), PP_SLASH_HELP);
    assert_int_equal(fix_slash("/bye"), PP_SLASH_QUIT);
    assert_int_equal(fix_slash("/sessions"), PP_SLASH_SESSIONS);
    assert_int_equal(fix_slash("/lora"), PP_SLASH_LORA_MENU);
    assert_int_equal(fix_slash("/draft"), PP_SLASH_DRAFT_MENU);
    assert_int_equal(fix_slash("/set"), PP_SLASH_PARAMS_MENU);
    assert_int_equal(fix_slash("/persona"), PP_SLASH_PERSONA_MENU);
    assert_int_equal(fix_slash("/template"), PP_SLASH_TEMPLATE_MENU);
    assert_int_equal(fix_slash("/edit"), PP_SLASH_EDIT);
    assert_int_equal(fix_slash("/copy"), PP_SLASH_COPY);
    assert_int_equal(pp_controller_slash(fix.c, "/search two words", arg, sizeof arg), PP_SLASH_FIND);
    assert_string_equal(arg, "two words");
}

static const char *param(const char *name)
{
    size_t n;
    const struct pp_named *p = pp_controller_params(fix.c, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0)
            return p[i].detail;
    return "";
}

static void test_set(void **state)
{
    (void)state;
    assert_int_equal(fix_slash("/set temp 0.25"), PP_SLASH_DONE);
    assert_string_equal(param("temp"), "0.25");
    assert_int_equal(fix_slash("/set top-k=7"), PP_SLASH_DONE);
    assert_string_equal(param("top-k"), "7");
    assert_int_equal(fix_slash("/set top-k 7.5"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/set temp nan"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/set temp -1"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/set temp 0x1p3"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/set temp 1x"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/set temp x"), PP_SLASH_ERROR);
    assert_string_equal(notice(), "temp needs a number from 0 to 100");
    assert_int_equal(fix_slash("/set temp"), PP_SLASH_DONE);
    assert_string_equal(notice(), "temp is 0.25; /set temp takes a number from 0 to 100");
    assert_int_equal(fix_slash("/set see"), PP_SLASH_DONE);
    assert_string_equal(notice(), "seed is random; /set seed takes a whole number, or \"random\"");
    assert_int_equal(fix_slash("/set nothing"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/set temp 0,7"), PP_SLASH_ERROR);
    assert_string_equal(notice(), "temp needs a number from 0 to 100; use a decimal point, not a comma");
    assert_int_equal(fix_slash("/set colour red"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "/set lists them"));
    assert_int_equal(fix_slash("/set topk 5"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "did you mean \"top-k\"?"));
    assert_int_equal(fix_slash("/set top 5"), PP_SLASH_ERROR); /* two names begin like this */
    assert_non_null(strstr(notice(), "could be top-k or top-p"));
    assert_int_equal(fix_slash("/set t 5"), PP_SLASH_ERROR); /* resembles none, not even "n" */
    assert_non_null(strstr(notice(), "/set lists them"));
    assert_int_equal(fix_slash("/set top_k 5"), PP_SLASH_DONE); /* the names in other programs */
    assert_string_equal(param("top-k"), "5");
    assert_int_equal(fix_slash("/set temperature 0.5"), PP_SLASH_DONE);
    assert_string_equal(param("temp"), "0.5");
    assert_int_equal(fix_slash("/set te 0.25"), PP_SLASH_DONE);
    assert_string_equal(param("temp"), "0.25");
    assert_int_equal(fix_slash("/set repetition_penalty 1.5"), PP_SLASH_DONE);
    assert_string_equal(param("repeat-penalty"), "1.5");
    assert_int_equal(fix_slash("/set repeat_penalty_range 0"), PP_SLASH_ERROR); /* we have no such parameter, nor
                                                                                   these */
    assert_string_equal(param("repeat-penalty"), "1.5");
    assert_int_equal(fix_slash("/set temp_last 1"), PP_SLASH_ERROR);
    assert_string_equal(param("temp"), "0.25");
    assert_int_equal(fix_slash("/set p 0.9"), PP_SLASH_ERROR); /* several names begin like this */
    assert_string_equal(param("presence-penalty"), "0");
    assert_int_equal(fix_slash("/set pres 0.5"), PP_SLASH_DONE);
    assert_string_equal(param("presence-penalty"), "0.5");
    assert_string_equal(param("seed"), "random");
    assert_int_equal(fix_slash("/set seed 99"), PP_SLASH_DONE);
    assert_string_equal(param("seed"), "99");
    assert_int_equal(fix_slash("/set seed random"), PP_SLASH_DONE);
    assert_string_equal(param("seed"), "random");
    assert_int_equal(fix_slash("/set seed 99"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/set seed -1"), PP_SLASH_DONE); /* the value means the same as for --seed */
    assert_string_equal(param("seed"), "random");
    assert_int_equal(fix_slash("/set min-p 0.00000012"), PP_SLASH_DONE); /* shown with all its digits */
    assert_string_equal(param("min-p"), "1.2e-07");
    assert_int_equal(fix_slash("/set min-p 0.05"), PP_SLASH_DONE);
    assert_string_equal(param("min-p"), "0.05");
    assert_int_equal(fix_slash("/set predict 7"), PP_SLASH_DONE); /* the name of the long option */
    assert_string_equal(param("n"), "7");
    assert_int_equal(fix_slash("/set temp"), PP_SLASH_DONE); /* says what it is and takes */
    assert_non_null(strstr(notice(), "from 0 to 100"));
    assert_int_equal(fix_slash("/set colour"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "there is no parameter \"colour\""));
}

static void test_draft_and_persona(void **state)
{
    (void)state;
    assert_int_equal(pp_controller_status(fix.c)->drafter, PP_DRAFTER_AUTO);
    for (int i = 0; i < PP_DRAFTERS; i++) {
        char command[32];
        snprintf(command, sizeof command, "/draft %s", pp_drafter_name((enum pp_drafter)i));
        assert_int_equal(fix_slash(command), PP_SLASH_DONE);
        assert_int_equal(pp_controller_status(fix.c)->drafter, i);
    }
    assert_int_equal(fix_slash("/draft on"), PP_SLASH_DONE);
    assert_int_equal(pp_controller_status(fix.c)->drafter, PP_DRAFTER_AUTO);
    assert_int_equal(fix_slash("/draft off"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/draft maybe"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/persona pira"), PP_SLASH_DONE);
    assert_string_equal(pp_controller_status(fix.c)->persona, "pirate");
    assert_int_equal(fix_slash("/persona tutro"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "tutor"));
    assert_int_equal(fix_slash("/persona none"), PP_SLASH_DONE);
    assert_string_equal(pp_controller_status(fix.c)->persona, "");
    assert_int_equal(fix_slash("/persona save mine"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "no system prompt to save"));
    assert_int_equal(fix_slash("/persona save"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "/persona save NAME"));
    assert_int_equal(fix_slash("/system Be brief."), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/system"), PP_SLASH_DONE);
    assert_non_null(strstr(notice(), "Be brief."));
}

static void test_template(void **state)
{
    (void)state;
    assert_int_equal(fix_slash("/template nonsense"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "/template lists them"));
    assert_int_equal(fix_slash("/template llama"), PP_SLASH_ERROR); /* the message does not claim that there is none */
    assert_non_null(strstr(notice(), "2 templates begin with \"llama\""));
    assert_int_equal(fix_slash("/template chatml"), PP_SLASH_DONE);
    pump_until(&fix, strcmp(pp_controller_status(fix.c)->template_name, "chatml") == 0);
    assert_int_equal(fix_slash("/template model"), PP_SLASH_DONE);
    pump_until(&fix, strcmp(pp_controller_status(fix.c)->template_name, "") == 0);
}

static void test_lora(void **state)
{
    char path[700], other[700];
    (void)state;
    fixture_stop(&fix);
    snprintf(path, sizeof path, "%s/lora-bard.gguf", fix.paths.data);
    snprintf(other, sizeof other, "%s/lora-barista.gguf", fix.paths.data);
    fix.o.lora[0].path = path;
    fix.o.lora[0].scale = 0.5f;
    fix.o.lora[1].path = other;
    fix.o.n_lora = 2;
    fixture_ready(&fix);
    pump_until(&fix, pp_controller_settled(fix.c));
    assert_int_equal(fix_slash("/lora barista off"), PP_SLASH_DONE);
    assert_int_equal(fix_slash("/lora ba"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "2 adapters begin with \"ba\""));
    assert_string_equal(pp_controller_status(fix.c)->adapters, "bard 0.50");
    assert_int_equal(fix_slash("/lora bard 0.8"), PP_SLASH_DONE);
    assert_string_equal(pp_controller_status(fix.c)->adapters, "bard 0.80");
    assert_int_equal(fix_slash("/lora bard off"), PP_SLASH_DONE);
    assert_string_equal(pp_controller_status(fix.c)->adapters, "");
    assert_int_equal(fix_slash("/lora bard"), PP_SLASH_DONE);
    assert_string_equal(pp_controller_status(fix.c)->adapters, "bard 0.80");
    assert_int_equal(fix_slash("/lora bard 7"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/lora brad"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "did you mean \"bard\""));
    assert_int_equal(fix_slash("/lora quite-another"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "/lora lists them"));
    assert_int_equal(fix_slash("/lora ~/mine.gguf"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "/lora add ~/mine.gguf"));
    assert_int_equal(fix_slash("/lora off"), PP_SLASH_DONE);
    assert_string_equal(pp_controller_status(fix.c)->adapters, "");
}

/* No shell expands ~ here, so pippin does. */
static void test_model_at_home(void **state)
{
    char line[700], *home = getenv("HOME") ? pp_strdup(getenv("HOME")) : NULL, *folder = pp_strdup(fix.model);
    (void)state;
    char *slash = strrchr(folder, '/');
    assert_non_null(slash);
    *slash = 0;
    setenv("HOME", folder, 1);
    snprintf(line, sizeof line, "/model ~/%s", slash + 1);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    assert_int_equal(fix.fake->loads, 2);
    assert_int_equal(fix_status()->state, PP_STATE_LOADING);
    if (home)
        setenv("HOME", home, 1);
    pp_free(home);
    pp_free(folder);
}

static void test_conversation(void **state)
{
    (void)state;
    assert_int_equal(fix_slash("/delete"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/delete yes"), PP_SLASH_DONE);
    assert_non_null(strstr(notice(), "nothing to delete"));
    assert_int_equal(fix_slash("/rename"), PP_SLASH_ERROR);
    assert_int_equal(fix_slash("/forget"), PP_SLASH_ERROR);
    assert_int_equal(fix.fake->forgets, 0);
    fixture_turn(&fix, "hello", "hi");
    assert_int_equal(fix_slash("/rename A better\tname"), PP_SLASH_DONE);
    assert_string_equal(pp_controller_status(fix.c)->title, "A better name");
    assert_int_equal(fix_slash("/undo"), PP_SLASH_DONE);
    assert_int_equal(pp_controller_n_messages(fix.c), 0);
    assert_int_equal(fix_slash("/forget"), PP_SLASH_DONE);
    assert_int_equal(fix.fake->forgets, 1);
    assert_int_equal(fix_slash("/delete yes"), PP_SLASH_DONE);
    pump_until(&fix, pp_controller_session_id(fix.c) == 0);
    assert_int_equal(fix.fake->forgets, 2);
    assert_int_equal(fix_slash("/stats"), PP_SLASH_DONE);
    assert_non_null(strstr(notice(), "no speed measured yet; "));
}

/* Files that do not exist are reported as soon as the chat begins, which continues without them. */
static void test_options_that_do_nothing(void **state)
{
    (void)state;
    fixture_stop(&fix);
    fix.o.lora[0].path = "brd";
    fix.o.n_lora = 1;
    fixture_ready(&fix);
    assert_non_null(strstr(notice(), "there is no adapter \"brd\""));
    assert_string_equal(pp_controller_status(fix.c)->adapters, "");
    fixture_stop(&fix);
    char path[700];
    snprintf(path, sizeof path, "%s/lora-bard.gguf", fix.paths.data);
    fix.o.lora[0].path = path;
    fix.o.lora[0].scale = 5;
    fixture_ready(&fix);
    assert_non_null(strstr(notice(), "bard is on at scale 2, not 5: in the chat, scales go from -2 to 2"));
    assert_string_equal(pp_controller_status(fix.c)->adapters, "bard 2.00");
    fixture_stop(&fix);
    fix.o.lora[1] = (struct pp_lora_option){"brd", 1};
    fix.o.n_lora = 2;
    fixture_ready(&fix);
    assert_non_null(strstr(notice(), "scale 2, not 5")); /* neither notice replaces the other */
    assert_non_null(strstr(notice(), "\nthere is no adapter \"brd\""));
    fixture_stop(&fix);
    fix.o.n_lora = 0;
    fix.o.sampling.n_bias = 1;
    fix.o.sampling.bias[0].token = 256;
    fixture_ready(&fix);
    assert_non_null(strstr(notice(), "token 256, but this model has tokens 0 to 255"));
}

/* Text that is not UTF-8 is not stored; it stays in the input line, and a notice says where the bytes are. */
static void test_other_bytes(void **state)
{
    (void)state;
    assert_false(pp_controller_send(fix.c, "\xC3\xA9t\xC3\xA9\nM\374ller, caf\xC3"));
    assert_non_null(strstr(notice(), "<FC> in line 2 is not valid UTF-8"));
    assert_false(pp_controller_send(fix.c, "caf\xC3"));
    assert_non_null(strstr(notice(), "<C3> in line 1"));
    assert_int_equal(fix_slash("/system M\374ller"), PP_SLASH_ERROR);
    assert_non_null(strstr(notice(), "<FC> in line 1"));
    fixture_turn(&fix, "\xC3\xA9t\xC3\xA9", "yes");
    assert_string_equal(fix_message(0)->text, "\xC3\xA9t\xC3\xA9");
    assert_false(pp_controller_edit(fix.c, 0, "a\xFF"));
    assert_non_null(strstr(notice(), "<FF> in line 1"));
    pp_controller_rename(fix.c, 0, "M\374ller");
    assert_non_null(strstr(notice(), "<FC> in line 1"));
    fixture_flush(&fix);
    assert_string_equal(fix_status()->title, "\xC3\xA9t\xC3\xA9");
    assert_int_equal(fix_slash("/system"), PP_SLASH_DONE);
    assert_string_equal(notice(), "there is no system prompt");
}

static void test_figures(void **state)
{
    (void)state;
    assert_string_equal(pp_count(0).text, "0");
    assert_string_equal(pp_count(999).text, "999");
    assert_string_equal(pp_count(1314).text, "1,314");
    assert_string_equal(pp_count(-123456).text, "-123,456");
    assert_string_equal(pp_count(INT64_MIN).text, "-9,223,372,036,854,775,808");
    assert_string_equal(pp_rate(9.94).text, "9.9");
    assert_string_equal(pp_rate(9.95).text, "10");
    assert_string_equal(pp_rate(1202.6).text, "1,203");
}

/* Every command in the help exists, once, and has a description. */
static void test_table(void **state)
{
    const char *name, *args, *text, *other, *unused;
    (void)state;
    for (size_t i = 0; pp_slash_info(i, &name, &args, &text); i++) {
        assert_true(*name && *text);
        for (size_t k = 0; k < i; k++) {
            assert_true(pp_slash_info(k, &other, &unused, &unused));
            assert_string_not_equal(name, other);
        }
    }
    assert_true(pp_slash_info(10, &name, &args, &text));
    assert_false(pp_slash_info(1000, &name, &args, &text));
}

TEST_GROUP(slash)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_text, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_several_lines, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_unknown, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_surplus, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_undo, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_screen, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_set, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_branch, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_likeliest, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_set_of_others, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_draft_and_persona, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_template, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_lora, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_model_at_home, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_conversation, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_options_that_do_nothing, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_other_bytes, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(test_table, fix_setup_ready, fix_teardown),
        cmocka_unit_test(test_figures),
    };
    return cmocka_run_group_tests_name("slash", tests, NULL, NULL);
}
