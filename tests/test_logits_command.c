/* test_logits_command.c - pippin logits with adapters, as users run it, against the reference logits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/safetensors.h"
#include "src/commands.h"
#include "src/options.h"
#include "src/paths.h"
#include "tests/support.h"

enum { MOST_ARGS = 12 };

/* Runs pippin with these arguments in a process of its own; what it says is left in the file err. */
static int run(char **argv, const char *err_path)
{
    int argc = 0, status;
    while (argv[argc])
        argc++;
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct pp_paths paths;
        struct pp_options o;
        struct pp_error err;
        if (!freopen(err_path, "w", stderr))
            _exit(99);
        setenv("HOME", test_tmpdir(), 1);
        setenv("XDG_CACHE_HOME", test_tmpdir(), 1);
        int code = pp_paths_init(&paths, &err) || pp_options_parse(argc, argv, &paths, &o, &err) ? 98 : 0;
        if (!code)
            code = pp_command_find(o.command)(&o, &paths);
        fflush(NULL);
        _exit(code);
    }
    assert_true(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* pippin logits of the reference's text, for the model, with the options of adapters in `more`. */
static int logits(const char *model, const struct pp_safetensors *e, const char *const more[], const char *to,
                  const char *err_path)
{
    const struct pp_tensor *ids = pp_safetensors_find(e, "ids");
    struct pp_buf list = {0};
    char *argv[MOST_ARGS + 1] = {"pippin", "logits", "-m", (char *)(uintptr_t)model, "-o", (char *)(uintptr_t)to,
                                 "--ids"};
    int n = 7;
    for (int64_t i = 0; i < ids->ne[0]; i++)
        pp_buf_fmt(&list, "%s%d", i ? "," : "", ((const int32_t *)ids->data)[i]);
    argv[n++] = list.data;
    for (int i = 0; more[i]; i++)
        argv[n++] = (char *)(uintptr_t)more[i];
    assert_true(n <= MOST_ARGS);
    const int code = run(argv, err_path);
    pp_buf_free(&list);
    return code;
}

static const char *in_family(const char *family, const char *name)
{
    char relative[256];
    snprintf(relative, sizeof relative, "architectures/%s%s%s", family, *name ? "/" : "", name);
    return testdata(relative);
}

static void expect_logits(const struct pp_safetensors *e, const char *tag, const char *path)
{
    struct pp_safetensors *got;
    struct pp_error err;
    char name[64];
    double worst = 0;
    snprintf(name, sizeof name, "logits:%s", tag);
    const struct pp_tensor *want = pp_safetensors_find(e, name);
    assert_non_null(want);
    assert_ok(pp_safetensors_open(path, &got, &err), err);
    const struct pp_tensor *have = pp_safetensors_find(got, "logits");
    assert_non_null(have);
    assert_int_equal(have->ne[0], want->ne[0]);
    assert_int_equal(have->ne[1], want->ne[1]);
    for (int64_t i = 0; i < want->ne[0] * want->ne[1]; i++) {
        float a, b;
        memcpy(&a, (const uint8_t *)have->data + (size_t)i * sizeof a, sizeof a);
        memcpy(&b, (const uint8_t *)want->data + (size_t)i * sizeof b, sizeof b);
        assert_true(isfinite(a) != 0);
        worst = fmax(worst, fabs((double)a - (double)b));
    }
    if (worst > 1e-3)
        fail_msg("%s: logits differ by %g", tag, worst);
    pp_safetensors_close(got);
}

static struct pp_safetensors *reference(const char *family)
{
    struct pp_safetensors *e;
    struct pp_error err;
    const char *path = in_family(family, "expected_lora.safetensors");
    if (!path)
        skip();
    assert_ok(pp_safetensors_open(path, &e, &err), err);
    return e;
}

/* One adapter, two with scales, a negative scale; from folders and from GGUF; of two families. */
static void adapters(void **state)
{
    static const struct {
        const char *tag, *names[2], *scales[2];
    } cases[] = {
        {"base", {NULL}, {NULL}},
        {"alpha_1.0", {"lora-alpha"}, {""}},
        {"alpha_1.0", {"lora-alpha.gguf"}, {""}},
        {"beta_-0.5", {"lora-beta"}, {":-0.5"}},
        {"alpha_0.8+beta_0.6", {"lora-alpha.gguf", "lora-beta"}, {":0.8", ":0.6"}},
    };
    static const char *const families[] = {"llama", "qwen2"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct pp_safetensors *e = reference(families[i]);
        char model[300];
        snprintf(model, sizeof model, "%s", in_family(families[i], i ? "model.gguf" : ""));
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            const char *to = fresh_path("l.safetensors"), *said = fresh_path("err"), *more[5] = {NULL};
            char paths[2][600];
            struct pp_error err;
            char *text;
            size_t n;
            for (int use = 0; use < 2 && cases[k].names[use]; use++) {
                snprintf(paths[use], sizeof paths[use], "%s%s", in_family(families[i], cases[k].names[use]),
                         cases[k].scales[use]);
                more[2 * use] = *cases[k].scales[use] ? "--lora-scaled" : "--lora";
                more[2 * use + 1] = paths[use];
            }
            assert_int_equal(logits(model, e, more, to, said), 0);
            assert_ok(pp_read_file(said, 1 << 20, &text, &n, &err), err);
            assert_string_equal(text, "");
            pp_free(text);
            expect_logits(e, cases[k].tag, to);
        }
        pp_safetensors_close(e);
    }
}

static void refusals(void **state)
{
    struct pp_safetensors *e = reference("llama");
    char model[300], other[300];
    (void)state;
    snprintf(model, sizeof model, "%s", in_family("llama", ""));
    snprintf(other, sizeof other, "%s", in_family("llama-k256", "lora-alpha"));
    const struct {
        const char *more[3];
        int code;
        const char *words;
    } cases[] = {
        {{"--lora", "/nowhere/adapter"}, 3, "/nowhere/adapter"},
        {{"--lora", other}, 1, "blk.0.attn_q.weight is for a matrix of "},
        {{"--lora-scaled", "/nowhere/adapter:0.5"}, 3, "/nowhere/adapter"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *to = fresh_path("l.safetensors"), *said = fresh_path("err");
        struct pp_error err;
        char *text;
        size_t n;
        assert_int_equal(logits(model, e, cases[i].more, to, said), cases[i].code);
        assert_ok(pp_read_file(said, 1 << 20, &text, &n, &err), err);
        if (!strstr(text, cases[i].words))
            fail_msg("\"%s\" does not say \"%s\"", text, cases[i].words);
        pp_free(text);
        assert_int_not_equal(access(to, F_OK), 0);
    }
    pp_safetensors_close(e);
}

TEST_GROUP(logits_command)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(adapters), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
