/* test_paths.c - where files live, finding models, and near misses. */
#include "tests/support.h"

#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/word.h"
#include "src/near.h"
#include "src/paths.h"
#include "src/store.h"

static struct pp_error err;
static const char *const variables[] = {"HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"};
static char *saved[5];

/* Every test begins with only HOME=/home/x set; the old environment is restored after it. */
static int set_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < 5; i++) {
        const char *v = getenv(variables[i]);
        saved[i] = v ? strdup(v) : NULL;
        unsetenv(variables[i]);
    }
    setenv("HOME", "/home/x", 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < 5; i++) {
        if (saved[i])
            setenv(variables[i], saved[i], 1);
        else
            unsetenv(variables[i]);
        free(saved[i]);
    }
    return 0;
}

static void below_home(void **state)
{
    (void)state;
    struct pp_paths p;
    assert_ok(pp_paths_init(&p, &err), err);
    assert_string_equal(p.config, "/home/x/.config/pippin");
    assert_string_equal(p.data, "/home/x/.local/share/pippin");
    assert_string_equal(p.state, "/home/x/.local/state/pippin");
    assert_string_equal(p.cache, "/home/x/.cache/pippin");
    assert_string_equal(p.db, "/home/x/.local/share/pippin/pippin.db");
    assert_int_equal(access(p.data, F_OK), -1); /* nothing was created */
}

static void xdg_variables(void **state)
{
    (void)state;
    struct pp_paths p;
    setenv("XDG_DATA_HOME", "/d", 1);
    setenv("XDG_CACHE_HOME", "relative", 1); /* the specification says that relative paths are ignored */
    setenv("XDG_STATE_HOME", "", 1);
    assert_ok(pp_paths_init(&p, &err), err);
    assert_string_equal(p.db, "/d/pippin/pippin.db");
    assert_string_equal(p.cache, "/home/x/.cache/pippin");
    assert_string_equal(p.state, "/home/x/.local/state/pippin");

    unsetenv("HOME");
    assert_int_equal(pp_paths_init(&p, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "HOME"));
    setenv("XDG_CONFIG_HOME", "/c", 1);
    setenv("XDG_STATE_HOME", "/s", 1);
    setenv("XDG_CACHE_HOME", "/k", 1);
    assert_ok(pp_paths_init(&p, &err), err);
    assert_string_equal(p.config, "/c/pippin");

    char longer[700];
    memset(longer, 'x', sizeof longer);
    longer[0] = '/';
    longer[699] = 0;
    setenv("XDG_CACHE_HOME", longer, 1);
    assert_int_equal(pp_paths_init(&p, &err), PP_ERR_USAGE);
}

/* A database can be created in any folder whose path is accepted. */
static void long_folders(void **state)
{
    struct pp_paths p;
    int n_taken = 0, n_refused = 0;
    (void)state;
    for (int n = 480; n < 512; n++) {
        char folder[512];
        size_t len = (size_t)snprintf(folder, sizeof folder, "%s/%0100d/%0100d/%0100d/", test_tmpdir(), 1, 2, 3);
        assert_true(len < 470);
        snprintf(folder + len, sizeof folder - len, "%0*d", n - (int)len, n);
        setenv("XDG_DATA_HOME", folder, 1);
        const enum pp_code code = pp_paths_init(&p, &err);
        struct pp_store *st = NULL;
        n_taken += code == PP_OK;
        n_refused += code == PP_ERR_USAGE;
        if (code == PP_OK)
            assert_ok(pp_store_open(p.db, &st, &err), err);
        pp_store_close(st);
    }
    assert_int_equal(n_taken + n_refused, 512 - 480);
    assert_true(n_taken > 0 && n_refused > 0);
}

/* In a build tree the tests are in the program's folder. */
static void bundled(void **state)
{
    (void)state;
    struct pp_paths p;
    char exe[500], beside[600], file[700];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    assert_true(n > 0);
    exe[n] = 0;
    *strrchr(exe, '/') = 0;
    assert_ok(pp_paths_init(&p, &err), err);
    snprintf(beside, sizeof beside, "%s/../themes", exe);
    if (access(beside, F_OK) == 0) {
        char *real = realpath(beside, NULL);
        assert_string_equal(p.themes, real);
        free(real);
    }
    snprintf(beside, sizeof beside, "%s/../engine/starter/starter-Q4_K_M.gguf", exe);
    if (access(beside, F_OK) == 0)
        assert_string_not_equal(p.starter, "");
    if (p.starter[0]) {
        assert_int_equal(p.starter[0], '/');
        snprintf(file, sizeof file, "%s/starter-Q4_K_M.gguf", p.starter);
        assert_int_equal(access(file, R_OK), 0);
    }
}

static void make_dirs(void **state)
{
    (void)state;
    char path[300], file[300];
    struct stat st;
    mode_t old = umask(0);
    snprintf(path, sizeof path, "%s/p/a//b/c/", test_tmpdir());
    assert_ok(pp_make_dirs(path, &err), err);
    assert_ok(pp_make_dirs(path, &err), err);
    umask(old);
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0700);
    snprintf(file, sizeof file, "%s/p/file", test_tmpdir());
    assert_ok(pp_write_file(file, "x", 1, 0600, &err), err);
    assert_int_equal(pp_make_dirs(file, &err), PP_ERR_IO);
    snprintf(file, sizeof file, "%s/p/file/below", test_tmpdir());
    assert_int_equal(pp_make_dirs(file, &err), PP_ERR_IO);
    assert_ok(pp_make_dirs("/", &err), err);
    assert_int_equal(pp_make_dirs("/proc/no/such", &err), PP_ERR_IO);
    snprintf(file, sizeof file, "%s/p/d/e/name", test_tmpdir());
    snprintf(path, sizeof path, "%s/p/d/e", test_tmpdir());
    assert_ok(pp_make_dirs_of(file, &err), err);
    assert_int_equal(stat(path, &st), 0);
    assert_int_not_equal(stat(file, &st), 0);
    assert_ok(pp_make_dirs_of("name", &err), err);
    assert_ok(pp_make_dirs_of("/name", &err), err);
    assert_int_equal(pp_make_dirs_of("/proc/no/such", &err), PP_ERR_IO);
}

static void touch(const char *folder, const char *name)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(pp_write_file(path, "x", 1, 0600, &err), err);
}

static void resolve(void **state)
{
    (void)state;
    struct pp_paths p;
    char home[200], models[600], out[700], wanted[700];
    snprintf(home, sizeof home, "%s/home", test_tmpdir());
    setenv("XDG_DATA_HOME", home, 1);
    assert_ok(pp_paths_init(&p, &err), err);
    snprintf(models, sizeof models, "%s/models", p.data);
    assert_ok(pp_make_dirs(models, &err), err);
    touch(models, "qwen-3b.gguf");
    touch(models, "Llama.GGUF");

    assert_ok(pp_resolve_model(&p, "qwen-3b.gguf", out, sizeof out, &err), err);
    snprintf(wanted, sizeof wanted, "%s/qwen-3b.gguf", models);
    assert_string_equal(out, wanted);
    assert_ok(pp_resolve_model(&p, "qwen-3b", out, sizeof out, &err), err);
    assert_string_equal(out, wanted);
    assert_ok(pp_resolve_model(&p, wanted, out, sizeof out, &err), err); /* a path, unchanged */
    assert_string_equal(out, wanted);
    assert_ok(pp_resolve_model(&p, models, out, sizeof out, &err), err); /* so is a folder */

    assert_int_equal(pp_resolve_model(&p, "qwem-3b.gguf", out, sizeof out, &err), PP_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "\"qwen-3b.gguf\""));
    assert_string_equal(out, "");
    assert_int_equal(pp_resolve_model(&p, "qwen", out, sizeof out, &err), PP_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "qwen-3b.gguf"));
    assert_int_equal(pp_resolve_model(&p, "startr", out, sizeof out, &err), PP_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "\"starter\""));
    char typo[700];
    snprintf(typo, sizeof typo, "%s/lama.gguf", models);
    assert_int_equal(pp_resolve_model(&p, typo, out, sizeof out, &err), PP_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/models/Llama.GGUF\"?"));
    assert_int_equal(pp_resolve_model(&p, "nothing like that", out, sizeof out, &err), PP_ERR_NOT_FOUND);
    assert_null(strstr(err.text, "did you mean"));
    assert_non_null(strstr(err.text, models));
    assert_int_equal(pp_resolve_model(&p, "/no/such/folder/", out, sizeof out, &err), PP_ERR_NOT_FOUND);
    static const char *const addresses[] = {"hf:OWNER/NAME", "ollama:name", "https://hub.example/m.gguf?key=secret",
                                            "http://hub.example/m.gguf"};
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        assert_int_equal(pp_resolve_model(&p, addresses[i], out, sizeof out, &err), PP_ERR_NOT_FOUND);
        assert_non_null(strstr(err.text, "pippin models pull"));
        assert_null(strstr(err.text, "secret"));
    }

    char small[8];
    assert_int_equal(pp_resolve_model(&p, wanted, small, sizeof small, &err), PP_ERR_USAGE);

    strcpy(p.starter, models);
    assert_ok(pp_resolve_model(&p, "", out, sizeof out, &err), err);
    snprintf(wanted, sizeof wanted, "%s/starter-Q4_K_M.gguf", models);
    assert_string_equal(out, wanted);
    assert_ok(pp_resolve_model(&p, "starter", out, sizeof out, &err), err);
    assert_string_equal(out, wanted);
    p.starter[0] = 0;
    assert_int_equal(pp_resolve_model(&p, NULL, out, sizeof out, &err), PP_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "-m"));
}

/* Only models in the starter's folder use the starter's draft. */
static void bundled_draft(void **state)
{
    (void)state;
    struct pp_paths p = {.config = ""};
    char out[700], model[700];
    snprintf(p.starter, sizeof p.starter, "%s/bundled", test_tmpdir());
    assert_ok(pp_make_dirs(p.starter, &err), err);
    snprintf(model, sizeof model, "%s/starter-Q4_K_M.gguf", p.starter);
    assert_false(pp_bundled_draft(&p, model, out, sizeof out)); /* it is not installed */
    touch(p.starter, "starter-draft-Q4_0.gguf");
    assert_true(pp_bundled_draft(&p, model, out, sizeof out));
    assert_int_equal(access(out, R_OK), 0);
    snprintf(model, sizeof model, "%s-of-mine/model.gguf", p.starter);
    assert_false(pp_bundled_draft(&p, model, out, sizeof out));
    p.starter[0] = 0;
    assert_false(pp_bundled_draft(&p, "/model.gguf", out, sizeof out));
}

static void template_path(void **state)
{
    (void)state;
    const struct pp_paths p = {.config = "/home/me/.config/pippin"};
    char out[60], longer[80];
    assert_ok(pp_template_path(&p, "mine", out, sizeof out, &err), err);
    assert_string_equal(out, "/home/me/.config/pippin/templates/mine.jinja");
    assert_ok(pp_template_path(&p, "./mine.jinja", out, sizeof out, &err), err);
    assert_string_equal(out, "./mine.jinja");
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(pp_template_path(&p, longer, out, sizeof out, &err), PP_ERR_NOT_FOUND); /* and no truncated path */
    longer[0] = '/';
    assert_int_equal(pp_template_path(&p, longer, out, sizeof out, &err), PP_ERR_NOT_FOUND);
}

static void nearness(void **state)
{
    (void)state;
    assert_int_equal(pp_edit_distance("", ""), 0);
    assert_int_equal(pp_edit_distance("", "abc"), 3);
    assert_int_equal(pp_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(pp_edit_distance("temp", "tmep"), 1); /* neighbours swapped */
    assert_int_equal(pp_edit_distance("Top_K", "top-k"), 0);
    char a[200], b[200];
    memset(a, 'a', sizeof a);
    memset(b, 'b', sizeof b);
    a[199] = b[199] = 0;
    assert_int_equal(pp_edit_distance(a, b), 64); /* the most that is compared */

    struct pp_near n = {.wanted = "tpo-k"};
    pp_near_try(&n, "frequency-penalty");
    assert_string_equal(n.best, "");
    pp_near_try(&n, "top-p");
    pp_near_try(&n, "top-k");
    pp_near_try(&n, "stop");
    assert_string_equal(n.best, "top-k");
    struct pp_near letter = {.wanted = "t"}; /* a single letter resembles nothing */
    pp_near_try(&letter, "n");
    assert_string_equal(letter.best, "");
}

static void assert_names(const struct pp_near *n, const char *folder, const char *names)
{
    struct pp_buf b = {0};
    pp_near_list(n, folder, (int)strlen(folder), &b);
    assert_string_equal(pp_buf_cstr(&b), names);
    pp_buf_free(&b);
}

/* Several names are told, nearest first, and each once. */
static void near_names(void **state)
{
    struct pp_near n = {.wanted = "qwen"};
    (void)state;
    pp_near_try(&n, "my-qwen");
    assert_names(&n, "", "\"my-qwen\"");
    pp_near_try(&n, "phi");
    pp_near_try(&n, "qwen2");
    assert_names(&n, "", "\"qwen2\" or \"my-qwen\"");
    pp_near_try(&n, "qwen2");
    pp_near_try(&n, "qwen3");
    pp_near_try(&n, "queen");
    assert_names(&n, "", "\"qwen2\", \"qwen3\" or \"my-qwen\"");
    pp_near_try(&n, "Qwen");
    assert_names(&n, "/m/", "\"/m/Qwen\", \"/m/qwen2\" or \"/m/qwen3\"");
}

static void base_names(void **state)
{
    (void)state;
    assert_string_equal(pp_base_name("/models/a.gguf"), "a.gguf");
    assert_string_equal(pp_base_name("a.gguf"), "a.gguf");
    assert_string_equal(pp_base_name("folder/"), "");
    assert_string_equal(pp_base_name(""), "");
    assert_string_equal(pp_path_end("/a/bard.gguf", "/b/barista.gguf"), "bard.gguf");
    assert_string_equal(pp_path_end("/a/bard.gguf", "/b/bard.gguf"), "a/bard.gguf");
    assert_string_equal(pp_path_end("/a/x/bard.gguf", "/b/x/bard.gguf"), "a/x/bard.gguf");
    assert_string_equal(pp_path_end("/bard.gguf", "/b/bard.gguf"), "/bard.gguf");
    assert_string_equal(pp_path_end("/b/bard.gguf", "/bard.gguf"), "b/bard.gguf");
    assert_string_equal(pp_path_end("/a/bard.gguf", "/a/bard.gguf"), "bard.gguf");
}

static void cases(void **state)
{
    (void)state;
    assert_int_equal(pp_casecmp("IQ4_XS", "iq4_xs"), 0);
    assert_true(pp_casecmp("iq4", "IQ4_XS") < 0 && pp_casecmp("IQ4_XS", "iq4") > 0);
    assert_true(pp_casecmp("\xc3\x84", "\xc3\xa4") != 0); /* only ASCII letters are folded */
    assert_true(pp_casecmp("a", "\xc3\xa4") < 0);
    assert_int_equal(pp_ncasecmp("Tint", "tinge", 3), 0);
    assert_int_equal(pp_ncasecmp("ab", "AB", 9), 0);
    assert_int_equal(pp_ncasecmp("a", "b", 0), 0);
    const char *s = "model-MMPROJ.gguf";
    assert_ptr_equal(pp_casestr(s, "mmproj"), s + 6);
    assert_ptr_equal(pp_casestr(s, ""), s);
    assert_null(pp_casestr(s, "gguf2"));
    assert_null(pp_casestr("", "a"));
    assert_true(pp_case_ends_with("model.GGUF", ".gguf") && pp_case_ends_with(".gguf", ".gguf"));
    assert_false(pp_case_ends_with("gguf", ".gguf") || pp_case_ends_with("a.gguf.part", ".gguf"));
    assert_true(pp_ends_with("blk.0.attn_v.weight", ".weight") && pp_ends_with("a", ""));
    assert_false(pp_ends_with("model.GGUF", ".gguf") || pp_ends_with("", "a"));
}

static int64_t version_of(sqlite3 *db)
{
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const int64_t version = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return version;
}

/* Looking up a registered name while another process uses the database does not change it. */
static void registered(void **state)
{
    struct pp_paths p = {0};
    struct pp_store *st;
    sqlite3 *db;
    char out[PATH_MAX], file[PATH_MAX];
    (void)state;
    snprintf(p.data, sizeof p.data, "%s/registered", test_tmpdir());
    snprintf(p.db, sizeof p.db, "%s/pippin.db", p.data);
    snprintf(file, sizeof file, "%s/far-away.gguf", test_tmpdir());
    fclose(fopen(file, "w"));
    assert_ok(pp_store_open(p.db, &st, &err), err);
    struct pp_model_entry m = {.path = file, .name = (char *)"Far", .source = "", .sha256 = "", .facts = "{}"};
    assert_ok(pp_store_model_put(st, &m, true, &err), err);
    pp_store_close(st);
    assert_int_equal(sqlite3_open(p.db, &db), SQLITE_OK);
    const int64_t version = version_of(db);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 1", NULL, NULL, NULL), SQLITE_OK); /* would be migrated */
    assert_ok(pp_resolve_model(&p, "far", out, sizeof out, &err), err);
    assert_string_equal(out, file);
    assert_int_equal(pp_resolve_model(&p, "fir", out, sizeof out, &err), PP_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "did you mean \"Far\""));
    assert_int_equal(version_of(db), 1);
    assert_true(version > 1);
    assert_int_equal(sqlite3_exec(db, "DROP TABLE tag", NULL, NULL, NULL), SQLITE_OK); /* as before there were tags */
    assert_int_equal(pp_resolve_model(&p, "far", out, sizeof out, &err), PP_ERR_NOT_FOUND);
    sqlite3_close(db);
}

static void is_typed(const char *typed, const char *path)
{
    char out[64];
    assert_true(pp_expand_home(typed, out, sizeof out));
    assert_string_equal(out, path);
}

static void typed_paths(void **state)
{
    char out[8];
    (void)state;
    is_typed("~/a b.md", "/home/x/a b.md");
    is_typed("~", "/home/x");
    is_typed("~other/a", "~other/a");
    is_typed("'/tmp/a b.md'", "/tmp/a b.md"); /* as terminals write the path of a file that is dragged to them */
    is_typed("\"/tmp/a b.md\"", "/tmp/a b.md");
    is_typed("'~/a'", "/home/x/a");
    is_typed("/tmp/a\\ b\\(1\\).md", "/tmp/a b(1).md");
    is_typed("/tmp/it's", "/tmp/it's");
    is_typed("''", "''");
    is_typed("a\\b", "a\\b");
    assert_false(pp_expand_home("", out, sizeof out));
    assert_false(pp_expand_home("too-long", out, sizeof out));
    const char *literal = test_path("'quoted'");
    FILE *f = fopen(literal, "w");
    assert_non_null(f);
    fclose(f);
    char there[600];
    assert_true(pp_expand_home(literal, there, sizeof there));
    assert_string_equal(there, literal);
}

/* References that conversations store lead to the model from any folder; a name stays a name, a link a link. */
static void references(void **state)
{
    char here[PATH_MAX], out[PATH_MAX], wanted[PATH_MAX + 40], folder[600];
    (void)state;
    snprintf(folder, sizeof folder, "%s/references", test_tmpdir());
    assert_ok(pp_make_dirs(folder, &err), err);
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(folder), 0);
    assert_ok(pp_write_file("m.gguf", "x", 1, 0600, &err), err);
    assert_int_equal(symlink("m.gguf", "link.gguf"), 0);
    assert_non_null(getcwd(folder, sizeof folder));
    static const char *const typed[] = {"m.gguf", "./m.gguf", "link.gguf", "../references/m.gguf"};
    static const char *const leads[] = {"m.gguf", "m.gguf", "link.gguf", "../references/m.gguf"};
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        pp_model_reference(typed[i], out);
        snprintf(wanted, sizeof wanted, "%s/%s", folder, leads[i]);
        assert_string_equal(out, wanted);
        assert_int_equal(access(out, R_OK), 0);
    }
    pp_model_reference(wanted, out);
    assert_string_equal(out, wanted);
    static const char *const names[] = {"", "starter", "a-name", "./gone.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        pp_model_reference(names[i], out);
        assert_string_equal(out, names[i]);
    }
    assert_int_equal(chdir(here), 0);
}

TEST_GROUP(paths)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(below_home, set_up, tear_down),
        cmocka_unit_test_setup_teardown(xdg_variables, set_up, tear_down),
        cmocka_unit_test_setup_teardown(long_folders, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bundled, set_up, tear_down),
        cmocka_unit_test_setup_teardown(make_dirs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(resolve, set_up, tear_down),
        cmocka_unit_test_setup_teardown(typed_paths, set_up, tear_down),
        cmocka_unit_test(bundled_draft),
        cmocka_unit_test(template_path),
        cmocka_unit_test(references),
        cmocka_unit_test(nearness),
        cmocka_unit_test(near_names),
        cmocka_unit_test(base_names),
        cmocka_unit_test(cases),
        cmocka_unit_test(registered),
    };
    return cmocka_run_group_tests_name("paths", tests, NULL, NULL);
}
