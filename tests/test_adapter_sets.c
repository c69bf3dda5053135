/* test_adapter_sets.c - sets of adapters: as JSON, as people read them, side by side, and under a name. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "src/adapter_set.h"
#include "tests/backend_fake.h"

static struct fixture fix;

static int setup(void **state)
{
    static char bard[700], barista[700];
    (void)state;
    fixture_init(&fix);
    snprintf(bard, sizeof bard, "%s/starter-bard.gguf", fix.paths.data);
    snprintf(barista, sizeof barista, "%s/lora-barista.gguf", fix.paths.data);
    fix.o.lora[0].path = bard;
    fix.o.lora[0].scale = 1;
    fix.o.lora[1].path = barista;
    fix.o.lora[1].scale = 0.5f;
    fix.o.n_lora = 2;
    fixture_ready(&fix);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_remove(&fix);
    return 0;
}

static enum pp_slash slash(const char *line)
{
    char arg[64];
    return pp_controller_slash(fix.c, line, arg, sizeof arg);
}

static const struct pp_status *status(void)
{
    return pp_controller_status(fix.c);
}

/* --- the set itself --------------------------------------------------------------------------------------- */

static void there_and_back(void **state)
{
    struct pp_adapter_set a = {0}, b;
    char label[64], cut[12];
    (void)state;
    assert_true(pp_adapter_set_add(&a, "/m/starter-bard.gguf", 0.8f));
    assert_true(pp_adapter_set_add(&a, "/m/lora-x", -5));
    assert_true(pp_adapter_set_add(&a, "/m/starter-bard.gguf", 0.4f)); /* again: another strength */
    assert_int_equal(a.n, 2);
    pp_adapter_set_label(&a, label, sizeof label);
    assert_string_equal(label, "bard 0.40, x -2.00");
    pp_adapter_set_label(&a, cut, sizeof cut);
    assert_string_equal(cut, "bard 0.40, ");
    char *json = pp_adapter_set_json(&a);
    assert_string_equal(json, "[{\"path\":\"/m/starter-bard.gguf\",\"scale\":0.4},"
                              "{\"path\":\"/m/lora-x\",\"scale\":-2}]");
    assert_true(pp_adapter_set_read(json, &b));
    assert_true(pp_adapter_set_equal(&a, &b));
    pp_free(json);
    assert_true(pp_adapter_set_read("", &b) && b.n == 0);
    assert_false(pp_adapter_set_read("{", &b));
    assert_false(pp_adapter_set_read("[{\"path\":7},{\"path\":\"/a\",\"scale\":1e99}]", &b));
    assert_int_equal(b.n, 1);
    assert_true(b.item[0].scale == 2);
    for (int i = 0; i < PP_MAX_ADAPTERS; i++) {
        char path[16];
        snprintf(path, sizeof path, "/%d", i);
        assert_true(pp_adapter_set_add(&b, path, 1) == (i < PP_MAX_ADAPTERS - 1));
    }
}

/* --- side by side ----------------------------------------------------------------------------------------- */

static void finish_all(int first, int n)
{
    for (int i = 0; i < n; i++) {
        char text[16];
        snprintf(text, sizeof text, "answer %d", i);
        fake_choose(&fix, first + i);
        fake_text(&fix, text, 1);
        fake_done(&fix, PP_FINISH_END, PP_OK);
    }
    pump_until(&fix, status()->state == PP_STATE_IDLE);
    fixture_flush(&fix);
}

static void compared(void **state)
{
    struct pp_store *st;
    struct pp_error err;
    struct pp_message m;
    (void)state;
    assert_int_equal(slash("/compare none bard"), PP_SLASH_ERROR); /* there is no question */
    fixture_turn(&fix, "hello", "hi");
    assert_string_equal(pp_controller_message(fix.c, 1)->adapters, "bard 1.00, barista 0.50");
    assert_int_equal(slash("/compare none bard:0.5+barista bari:2"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 4);
    assert_string_equal(fix.fake->asked[1].adapters, "");
    assert_string_equal(fix.fake->asked[2].adapters, "bard 0.50, barista 0.50");
    assert_string_equal(fix.fake->asked[3].adapters, "barista 2.00");
    assert_true(fix.fake->asked[1].seed == fix.fake->asked[3].seed); /* nothing but the adapters differs */
    assert_string_equal(pp_controller_alternative(fix.c, 1)->adapters, "bard 0.50, barista 0.50");
    assert_string_equal(status()->adapters, ""); /* the first one is chosen */
    finish_all(1, 3);

    /* the conversation goes on with what the chosen answer was written under */
    pp_controller_sibling(fix.c, 1, 1);
    pp_controller_sibling(fix.c, 1, 1);
    assert_string_equal(pp_controller_message(fix.c, 1)->text, "answer 2");
    assert_string_equal(status()->adapters, "barista 2.00");
    pp_controller_sibling(fix.c, 1, -1);
    assert_string_equal(status()->adapters, "bard 0.50, barista 0.50");
    fixture_turn(&fix, "more", "yes");
    assert_string_equal(fix.fake->asked[4].adapters, "bard 0.50, barista 0.50");

    /* and each is stored with its own */
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_ok(pp_store_message_get(st, fix.fake->asked[1].message_id, &m, &err), err);
    assert_string_equal(m.adapters, "[]");
    pp_message_clear(&m);
    assert_ok(pp_store_message_get(st, fix.fake->asked[3].message_id, &m, &err), err);
    assert_non_null(strstr(m.adapters, "lora-barista.gguf\",\"scale\":2}]"));
    pp_message_clear(&m);
    pp_store_close(st);
}

static void compared_and_left(void **state)
{
    (void)state;
    fixture_turn(&fix, "hello", "hi");
    int64_t id = pp_controller_session_id(fix.c);
    assert_int_equal(slash("/compare bard none"), PP_SLASH_DONE);
    pump_until(&fix, fix.fake->generations == 3);
    pp_controller_new_session(fix.c);
    assert_int_equal(pp_controller_n_alternatives(fix.c), 0);
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_session_id(fix.c) == id);
    assert_int_equal(pp_controller_n_alternatives(fix.c), 2); /* still being written, each under its own */
    assert_string_equal(pp_controller_alternative(fix.c, 0)->adapters, "bard 1.00");
    assert_string_equal(pp_controller_alternative(fix.c, 1)->adapters, "");
    finish_all(1, 2);
    pp_controller_sibling(fix.c, 1, 1);
    assert_string_equal(status()->adapters, "");
}

static void mistakes(void **state)
{
    (void)state;
    fixture_turn(&fix, "hello", "hi");
    static const struct {
        const char *line, *says;
    } wrong[] = {
        {"/compare", "two or more"}, {"/compare bard", "two or more"}, {"/compare brad none", "\"bard\""},
        {"/compare bard:3 none", "strength"}, {"/compare bard:x none", "strength"}, {"/compare bar none", "no adapter"},
        {"/compare none none none none none none none none none", "2 to 8"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(slash(wrong[i].line), PP_SLASH_ERROR);
        assert_non_null(strstr(status()->notice, wrong[i].says));
    }
    assert_int_equal(fix.fake->generations, 1);
    assert_string_equal(status()->adapters, "bard 1.00, barista 0.50");
}

/* --- order ------------------------------------------------------------------------------------------------ */

static void order_is_kept(void **state)
{
    size_t n;
    (void)state;
    assert_int_equal(pp_controller_move_adapter(fix.c, 1, -1), 0);
    assert_int_equal(pp_controller_move_adapter(fix.c, 0, -1), 0);
    assert_string_equal(status()->adapters, "barista 0.50, bard 1.00");
    fixture_turn(&fix, "hello", "hi");
    assert_string_equal(fix.fake->asked[0].adapters, "barista 0.50, bard 1.00");
    int64_t id = pp_controller_session_id(fix.c);
    pp_controller_new_session(fix.c);
    assert_int_equal(pp_controller_move_adapter(fix.c, 1, -1), 0);
    assert_string_equal(pp_controller_adapters(fix.c, &n)[0].name, "bard");
    pp_controller_open(fix.c, id);
    pump_until(&fix, pp_controller_session_id(fix.c) == id);
    assert_string_equal(status()->adapters, "barista 0.50, bard 1.00");
}

TEST_GROUP(adapter_sets)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test_setup_teardown(compared, setup, teardown),
        cmocka_unit_test_setup_teardown(compared_and_left, setup, teardown),
        cmocka_unit_test_setup_teardown(mistakes, setup, teardown),
        cmocka_unit_test_setup_teardown(order_is_kept, setup, teardown),
    };
    return cmocka_run_group_tests_name("adapter_sets", tests, NULL, NULL);
}
