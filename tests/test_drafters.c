/* test_drafters.c - the list of draft models, and changing the draft model in use; on the fake backend. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "tests/backend_fake.h"
#include "tests/support.h"

static const struct pp_drafter_entry *entry(const char *name)
{
    size_t n;
    const struct pp_drafter_entry *list = pp_controller_drafters(fix.c, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

static size_t count(void)
{
    size_t n;
    pp_controller_drafters(fix.c, &n);
    return n;
}

static void put_file(const char *folder, const char *name, char path[static 700])
{
    struct pp_error err;
    snprintf(path, 700, "%.600s/%s", folder, name);
    assert_ok(pp_make_dirs(folder, &err), err);
    assert_ok(pp_write_file(path, "x", 1, 0600, &err), err);
}

static void register_model(const char *path, const char *name)
{
    struct pp_store *st;
    struct pp_error err;
    struct pp_model_entry m = {.path = (char *)path, .name = (char *)name, .source = (char *)"", .sha256 = (char *)"",
                               .facts = (char *)"{}", .tags = (char *)""};
    assert_ok(pp_store_open(fix.paths.db, &st, &err), err);
    assert_ok(pp_store_model_put(st, &m, true, &err), err);
    pp_store_close(st);
}

/* Candidates are the files next to the model, in the models folder and in the registry, each listed once and inspected
 * once. */
static void found(void **state)
{
    char beside[700], other[700], far[700], folder[600], gone[800];
    (void)state;
    put_file(fix.paths.data, "beside.gguf", beside);
    put_file(fix.paths.data, "notes.txt", other);
    snprintf(folder, sizeof folder, "%.500s/models", fix.paths.data);
    put_file(folder, "kept.gguf", other);
    snprintf(folder, sizeof folder, "%.500s/far", fix.paths.data);
    put_file(folder, "far.gguf", far);
    register_model(far, "distant");
    register_model(beside, "near");
    snprintf(gone, sizeof gone, "%s.gone.gguf", far);
    register_model(gone, "gone");
    pp_controller_find_drafters(fix.c);
    pump_until(&fix, count() == 3);
    assert_true(entry("near") && entry("kept.gguf") && entry("distant"));
    for (int i = 0; i < 3; i++) {
        pump_until(&fix, fix.fake->drafter_inspections == i + 1);
        fake_drafter(&fix, strstr(fix.fake->drafter_inspected, "far.gguf") ? "it is not smaller" : NULL);
    }
    pump_until(&fix, entry("near")->fit && entry("kept.gguf")->fit && entry("distant")->fit);
    assert_int_equal(entry("near")->fit, PP_FIT_YES);
    assert_near(entry("near")->facts.share, 0.25, 1e-6);
    assert_int_equal(entry("distant")->fit, PP_FIT_NO);
    assert_string_equal(entry("distant")->reason, "it is not smaller");
    pp_controller_find_drafters(fix.c); /* again, but nothing is inspected a second time */
    put_file(fix.paths.data, "more.gguf", beside);
    for (int i = 0; i < 3; i++)
        fixture_flush(&fix);
    pump_until(&fix, fix.fake->drafter_inspections >= 3);
    assert_int_equal(entry("distant")->fit, PP_FIT_NO);
    /* another model: earlier inspections no longer count */
    pp_controller_load(fix.c, fix.model);
    fake_loaded(&fix);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_int_equal(count(), 0);
    /* only the current model's file leaves the list */
    pump_until(&fix, access(fix_status()->model.path, F_OK) == 0);
    assert_int_equal(unlink(fix_status()->model.path), 0);
    pp_controller_find_drafters(fix.c);
    for (int i = 0; i < 3; i++)
        fixture_flush(&fix);
    assert_true(entry("near") && entry("distant") && entry("more.gguf"));
}

/* An inspection that could not be requested is requested again when it is next needed. */
static void asked_again(void **state)
{
    char beside[700];
    (void)state;
    put_file(fix.paths.data, "beside.gguf", beside);
    fix.fake->deaf = true;
    pp_controller_find_drafters(fix.c);
    pump_until(&fix, fix.fake->drafter_inspections == 1);
    assert_int_equal(entry("beside.gguf")->fit, PP_FIT_UNKNOWN);
    fix.fake->deaf = false;
    pp_controller_find_drafters(fix.c);
    pump_until(&fix, fix.fake->drafter_inspections == 2);
    fake_drafter(&fix, NULL);
    pump_until(&fix, entry("beside.gguf")->fit == PP_FIT_YES);
}

static void changed(void **state)
{
    char beside[700];
    (void)state;
    put_file(fix.paths.data, "beside.gguf", beside);
    pp_controller_set_drafter(fix.c, PP_DRAFTER_LOOKUP);
    assert_int_equal(fix_slash("/draft file /nowhere/at/all.gguf"), PP_SLASH_ERROR);
    assert_true(fix_status()->notice_is_error && strstr(fix_status()->notice, "/nowhere/at/all.gguf"));
    assert_int_equal(fix_slash("/draft file"), PP_SLASH_ERROR);
    assert_true(fix_status()->notice_is_error && strstr(fix_status()->notice, "/draft file NAME"));
    assert_string_equal(fix.fake->drafter, "");
    char line[800];
    snprintf(line, sizeof line, "/draft file %s", beside);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    assert_string_equal(fix.fake->drafter, beside);
    fake_draft(&fix, "its vocabulary differs");
    pump_until(&fix, strstr(fix_status()->notice, "vocabulary differs"));
    assert_string_equal(fix_status()->model.draft_name, "toy draft");
    assert_int_equal(fix_status()->drafter, PP_DRAFTER_LOOKUP);
    fake_draft(&fix, NULL);
    pump_until(&fix, strcmp(fix_status()->model.draft_path, beside) == 0);
    assert_string_equal(fix_status()->model.draft_name, "small");
    assert_int_equal(fix_status()->drafter, PP_DRAFTER_AUTO); /* choosing a draft model switches drafting on */
    fixture_turn(&fix, "Hello", "Hi");
    assert_true(fix.fake->use_draft);
}

TEST_GROUP(drafters)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(found, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(asked_again, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(changed, fix_setup_ready, fix_teardown),
    };
    return cmocka_run_group_tests_name("drafters", tests, NULL, NULL);
}
