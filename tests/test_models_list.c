/* test_models_list.c - the list of models that could be loaded, on the fake backend and with real files. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "tests/backend_fake.h"
#include "tests/support.h"

static const char starter[] = "engine/starter/starter-Q4_K_M.gguf";

static const struct pp_model_choice *entry(const char *name)
{
    size_t n;
    const struct pp_model_choice *list = pp_controller_models(fix.c, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

static size_t count(void)
{
    size_t n;
    pp_controller_models(fix.c, &n);
    return n;
}

static void put_file(const char *folder, const char *name)
{
    char path[700];
    struct pp_error err;
    snprintf(path, sizeof path, "%.600s/%s", folder, name);
    assert_ok(pp_make_dirs(folder, &err), err);
    assert_ok(pp_write_file(path, "x", 1, 0600, &err), err);
}

/* A link with a name of its own to the starter's file, as download caches have links for names. */
static void put_link(const char *folder, const char *name, char path[static 700])
{
    char here[400], target[500];
    struct pp_error err;
    assert_non_null(getcwd(here, sizeof here));
    snprintf(target, sizeof target, "%s/%s", here, starter);
    snprintf(path, 700, "%.600s/%s", folder, name);
    assert_ok(pp_make_dirs(folder, &err), err);
    assert_int_equal(symlink(target, path), 0);
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

static void find_all(void)
{
    pp_controller_find_models(fix.c);
    assert_true(pp_controller_models_pending(fix.c));
    pump_until(&fix, !pp_controller_models_pending(fix.c));
}

/* The list has registered models by their names, those in the models folder and in the current model's folder by their
 * files' names, and the bundled one; no file twice. */
static void found(void **state)
{
    char folder[600], far[700], other[700], gone[800];
    (void)state;
    put_file(fix.paths.data, "broken.gguf");
    put_file(fix.paths.data, "notes.txt");
    snprintf(folder, sizeof folder, "%.500s/models", fix.paths.data);
    put_link(folder, "kept.gguf", other);
    snprintf(folder, sizeof folder, "%.500s/far", fix.paths.data);
    put_link(folder, "far.gguf", far);
    register_model(far, "distant");
    snprintf(gone, sizeof gone, "%s.gone.gguf", far);
    register_model(gone, "gone");
    find_all();
    assert_int_equal(count(), 4 + (fix.paths.starter[0] != 0)); /* model.gguf belongs to the fixture */
    assert_true(entry("distant") && entry("kept.gguf") && entry("broken.gguf") && entry("model.gguf"));
    assert_string_equal(entry("distant")->path, far);
    assert_true(entry("model.gguf")->current && !entry("distant")->current);

    const struct pp_model_choice *m = entry("distant");
    assert_int_equal(m->fit, PP_FIT_YES);
    assert_string_equal(m->facts.type, "Q4_K_M");
    assert_in_range(m->facts.n_params, 20000000, 40000000);
    assert_int_equal(m->facts.n_params_active, 0);
    assert_int_equal(m->facts.n_ctx_train, 2048);
    assert_int_equal(m->facts.n_ctx, 2048);
    assert_in_range(m->facts.bytes, 10000000, 30000000);
    assert_true(m->facts.memory > m->facts.bytes);
    assert_int_equal(entry("broken.gguf")->fit, PP_FIT_NO);
    assert_non_null(strstr(entry("broken.gguf")->reason, "broken.gguf"));
}

/* When models are searched for again, files that are gone leave the list, and files that were damaged may be whole. */
static void found_again(void **state)
{
    char folder[600], path[700];
    (void)state;
    snprintf(folder, sizeof folder, "%.500s/models", fix.paths.data);
    put_file(folder, "late.gguf");
    put_file(folder, "gone.gguf");
    find_all();
    assert_int_equal(entry("late.gguf")->fit, PP_FIT_NO);
    snprintf(path, sizeof path, "%s/gone.gguf", folder);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/late.gguf", folder);
    assert_int_equal(unlink(path), 0);
    put_link(folder, "late.gguf", path);
    find_all();
    assert_null(entry("gone.gguf"));
    assert_int_equal(entry("late.gguf")->fit, PP_FIT_YES);
}

static void loaded(void **state)
{
    char folder[600], path[700], line[800];
    (void)state;
    snprintf(folder, sizeof folder, "%.500s/models", fix.paths.data);
    put_link(folder, "other.gguf", path);
    find_all();
    assert_int_equal(fix_slash("/model"), PP_SLASH_MODEL_MENU);
    assert_int_equal(fix_slash("/models"), PP_SLASH_MODEL_MENU);
    assert_int_equal(fix_slash("/model nothing-of-this-name"), PP_SLASH_ERROR);
    assert_int_equal(fixture_state(&fix), PP_STATE_IDLE);
    snprintf(line, sizeof line, "/model %s", path);
    assert_int_equal(fix_slash(line), PP_SLASH_DONE);
    assert_false(pp_controller_load(fix.c, path)); /* only one model is loaded at a time */
    snprintf(fix.model, sizeof fix.model, "%.500s", path);
    fake_loaded(&fix);
    pump_until(&fix, fixture_state(&fix) == PP_STATE_IDLE);
    assert_true(entry("other.gguf")->current && !entry("model.gguf")->current);
}

TEST_GROUP(models_list)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(found, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(found_again, fix_setup_ready, fix_teardown),
        cmocka_unit_test_setup_teardown(loaded, fix_setup_ready, fix_teardown),
    };
    return cmocka_run_group_tests_name("models_list", tests, NULL, NULL);
}
