/* test_fit.c - a model that does not fit in memory is refused before it is read, and the message has the numbers. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/memory.h"
#include "engine/bench.h"
#include "engine/cpu/matmul.h"
#include "engine/engine_int.h"
#include "engine/fit.h"
#include "tests/decoder_model.h"
#include "tests/rwkv_model.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

static struct pp_error err;
static const uint64_t MB = 1000000;

/* --- what is needed ----------------------------------------------------------------------------------------------- */

/* The estimate compared with what an engine really allocates. */
static void the_estimate_is_near(void **state)
{
    static const struct { const char *shape, *type; int64_t layers; } cases[] = {
        {"llama-3.1-8b", "q4_k_m", 4}, {"llama-3.1-8b", "f16", 2}, {"stories-15m", "q8_0", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct pp_random_model spec = {
            .shape = cases[i].shape, .type = cases[i].type, .n_layers = cases[i].layers, .zeros = true};
        char path[512];
        struct pp_model *m;
        struct pp_engine *e;
        snprintf(path, sizeof path, "%s/fit.gguf", test_tmpdir());
        assert_ok(pp_random_model_write(&spec, path, NULL, NULL, NULL, &err), err);
        assert_ok(pp_model_open(path, &m, &err), err);
        unlink(path);
        const struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 2048};
        assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
        const struct pp_stats *s = pp_engine_stats(e);
        const struct pp_memory_need need = pp_model_memory(m, PP_KV_Q8, 2048, 0);
        const uint64_t work = s->engine_bytes - s->layout_bytes;
        if (!(need.work > work / 3 && need.work < work * 3))
            fail_msg("%s: %.1f MB to work in, where %.1f were estimated", cases[i].shape, (double)work / 1e6,
                     (double)need.work / 1e6);
        assert_true(need.own_weights >= s->layout_bytes * 99 / 100 && need.own_weights <= s->layout_bytes);
        assert_true(need.weights >= need.own_weights && need.weights == need.weights_least);
        assert_true(need.weights <= pp_model_info(m)->bytes * 5 / 4 + 64 * 1024);
        assert_int_equal(need.kv, pp_model_kv_bytes(m, PP_KV_Q8, 2048));
        assert_true(pp_memory_sum(&need) == need.weights + need.kv + need.work);
        pp_engine_free(e);
        pp_model_close(m);
    }
}

/* The memory that an engine allocates for this many rows. */
static double taken(struct pp_model *m, int max_rows)
{
    const struct pp_engine_options opt = {.n_threads = 1, .n_ctx = 128, .max_rows = max_rows};
    struct pp_engine *e;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    const struct pp_stats *s = pp_engine_stats(e);
    const double bytes = (double)(s->engine_bytes - s->layout_bytes);
    pp_engine_free(e);
    return bytes;
}

/* The estimate for a row must be between `least` times and twice what it really takes. */
static void check_rows(struct pp_model *m, const char *arch, double least)
{
    enum { FEW = 256, MANY = 1280 };
    const double row = (taken(m, MANY) - taken(m, FEW)) / (MANY - FEW);
    const double many = (double)pp_model_memory(m, PP_KV_F32, 128, MANY).work;
    const double estimate = (many - (double)pp_model_memory(m, PP_KV_F32, 128, FEW).work) / (MANY - FEW);
    if (!(estimate > row * least && estimate < row * 2))
        fail_msg("%s: a row takes %.0f bytes, where %.0f were estimated", arch, row, estimate);
}

/* The memory for each row in families with slots that others do not have. */
static void rows_of_rare_families(void **state)
{
    static const struct {
        const char *arch;
        double least; /* the least estimate, as a share of what a row takes */
    } cases[] = {{"kormo", 0.7}, {"zamba", 0.8}, {"zamba2", 0.8}, {"doge", 0.8}, {"jetmoe", 0.9}, {"yuan", 0.8},
                 {"diffllama", 0.7}, {"motif", 0.7}, {"iquestloopcoder", 0.8}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct decoder_shape s = decoder_shape(cases[i].arch);
        struct pp_model *m;
        const bool wide = s.zamba.layers;
        s.n_embd = 192;
        s.head_dim = s.rope_dim = wide ? 96 : 48;
        s.n_ff = wide ? 192 : 384;
        if (wide)
            s.zamba.n_head = 24; /* of twice the width */
        struct decoder *d = decoder_make(&s);
        assert_ok(pp_model_open(decoder_write(d), &m, &err), err);
        decoder_free(d);
        check_rows(m, cases[i].arch, cases[i].least);
        pp_model_close(m);
    }
    struct pp_model *m;
    rwkv4_make();
    assert_ok(pp_model_open(rwkv4_write(), &m, &err), err);
    rwkv_drop();
    check_rows(m, "rwkv4", 0.9);
    pp_model_close(m);
}

static void of_experts_those_that_a_token_uses(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    shape.n_expert = 8;
    struct pp_model *m;
    (void)state;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    const struct pp_memory_need need = pp_model_memory(m, PP_KV_Q8, 256, 0);
    const uint64_t one = 3 * pp_pack_bytes(PP_TYPE_Q8_0, 512, 256); /* the three matrices of an expert */
    assert_int_equal(need.weights - need.weights_least, 2 * 6 * one);
    pp_model_close(m);
}

/* --- refusing ----------------------------------------------------------------------------------------------------- */

static enum pp_code try(const struct pp_model *m, const struct pp_engine_options *opt, uint64_t free_bytes,
                        int64_t *n_ctx)
{
    struct pp_engine *e = NULL;
    pp_memory_check(true);
    pp_memory_pretend(free_bytes);
    enum pp_code code = pp_engine_new(m, opt, NULL, NULL, &e, &err);
    pp_memory_pretend(0);
    pp_memory_check(false);
    if (!code && n_ctx)
        *n_ctx = pp_engine_n_ctx(e);
    pp_engine_free(e);
    return code;
}

static void assert_says(const char *text)
{
    if (!strstr(err.text, text))
        fail_msg("no \"%s\" in: %s", text, err.text);
}

static struct pp_model *open_8b(void)
{
    const struct pp_random_model spec = {.shape = "llama-3.1-8b", .type = "q4_0", .zeros = true};
    char path[512];
    struct pp_model *m;
    snprintf(path, sizeof path, "%s/8b.gguf", test_tmpdir());
    assert_ok(pp_random_model_write(&spec, path, NULL, NULL, NULL, &err), err);
    assert_ok(pp_model_open(path, &m, &err), err);
    unlink(path);
    return m;
}

static void what_does_not_fit_is_refused(void **state)
{
    struct pp_model *m = open_8b();
    struct pp_engine_options opt = {.n_threads = 1, .n_ctx = 8192};
    const struct pp_memory_need need = pp_model_memory(m, PP_KV_Q8, 8192, 0);
    const uint64_t sum = pp_memory_sum(&need);
    int64_t n_ctx = 0;
    char free_text[64];
    (void)state;
    assert_true(need.weights > 4000 * MB && need.kv > 500 * MB);
    assert_ok(try(m, &opt, 4 * sum, NULL), err);
    assert_int_equal(try(m, &opt, sum - MB, NULL), PP_ERR_NOMEM); /* slightly more context than fits */
    assert_says("for the KV cache of 8192 tokens in q8");
    assert_says("a --ctx-size of at most 7936, --kv-type q4_0, ");
    snprintf(free_text, sizeof free_text, "%.2f GB are free", (double)(sum - MB) / 1e9);
    assert_says(free_text);
    assert_says("--memory-check off");
    assert_int_equal(try(m, &opt, 3000 * MB, NULL), PP_ERR_NOMEM); /* no context length helps */
    assert_null(strstr(err.text, "--ctx-size"));
    assert_null(strstr(err.text, "--kv-type"));
    assert_says("a smaller model or quantisation");
    pp_memory_pretend(3000 * MB); /* without room for an error */
    struct pp_engine *e;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    pp_memory_pretend(0);
    pp_engine_free(e);
    opt.n_ctx = 0; /* then the longest that fits is chosen */
    assert_ok(try(m, &opt, 4 * sum, &n_ctx), err);
    assert_int_equal(n_ctx, 16384);
    assert_ok(try(m, &opt, need.weights + need.work + 200 * MB, &n_ctx), err);
    assert_true(n_ctx >= 2048 && n_ctx < 4096);
    assert_int_equal(try(m, &opt, need.weights, NULL), PP_ERR_NOMEM);
    pp_model_close(m);
}

static void the_cache_for_itself(void **state)
{
    struct pp_model *m = open_8b();
    const struct pp_engine_options opt = {.n_threads = 1, .n_ctx = 8192, .kv_memory = 256 * MB};
    (void)state;
    assert_int_equal(try(m, &opt, 64000 * MB, NULL), PP_ERR_NOMEM);
    assert_says("a context of 8192 tokens needs 0.");
    assert_says("0.256 GB may be used, enough for 3");
    const struct pp_engine_options nothing = {.n_threads = 1, .kv_memory = 1};
    assert_int_equal(try(m, &nothing, 64000 * MB, NULL), PP_ERR_NOMEM);
    assert_says("may use 1 byte, but one page of 64 tokens needs ");
    assert_says("such as 512M (a plain number means bytes)");
    pp_model_close(m);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static void too_little_address_space(void **state)
{
    struct pp_model *m = open_8b(); /* already mapped */
    const struct pp_engine_options opt = {.n_threads = 1, .n_ctx = 1024};
    struct rlimit before, most;
    unsigned long long pages = 0;
    (void)state;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_true(f && fscanf(f, "%llu", &pages) == 1);
    fclose(f);
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    most = before;
    most.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (2u << 30);
    assert_int_equal(setrlimit(RLIMIT_AS, &most), 0);
    enum pp_code code = try(m, &opt, 64000 * MB, NULL);
    setrlimit(RLIMIT_AS, &before);
    assert_int_equal(code, PP_ERR_NOMEM);
    assert_says("2.15 GB are allowed (ulimit -v)");
    assert_says("needs 4.");
    pp_model_close(m);
}
#endif

/* --- control groups ----------------------------------------------------------------------------------------------- */

static void put(const char *folder, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void group(char path[512], const char *name)
{
    snprintf(path, 512, "%s/cgroup%s", test_tmpdir(), name);
    mkdir(path, 0700);
}

static void groups_leave_less(void **state)
{
    char root[512], outer[512], inner[512], old[512], box[512];
    (void)state;
    group(root, "");
    group(outer, "/user");
    group(inner, "/user/me");
    group(old, "/memory");
    group(box, "/memory/box");
    assert_true(pp_memory_group_room(root, "0::/user/me\n") == UINT64_MAX); /* there is no limit */
    put(inner, "memory.max", "max\n");
    put(inner, "memory.current", "5000\n");
    put(outer, "memory.max", "10000\n");
    put(outer, "memory.current", "7000\n");
    assert_int_equal(pp_memory_group_room(root, "0::/user/me\n"), 3000);
    put(outer, "memory.stat", "anon 1\ninactive_file 2000\nactive_file 500\nactive_files 9999\n");
    assert_int_equal(pp_memory_group_room(root, "1:cpu:/\n0::/user/me\n"), 5500);
    put(inner, "memory.max", "5100\n");
    assert_int_equal(pp_memory_group_room(root, "0::/user/me\n"), 100);
    put(inner, "memory.max", "400\n"); /* more memory is in use than allowed */
    assert_int_equal(pp_memory_group_room(root, "0::/user/me\n"), 0);
    put(box, "memory.limit_in_bytes", "8000\n");
    put(box, "memory.usage_in_bytes", "6000\n");
    put(box, "memory.stat", "cache 7\ninactive_file 1\ntotal_inactive_file 1000\n");
    put(old, "memory.limit_in_bytes", "9223372036854771712\n"); /* "unlimited" in version 1 of cgroups */
    put(old, "memory.usage_in_bytes", "100\n");
    assert_int_equal(pp_memory_group_room(root, "4:memory:/box\n1:cpu:/\n"), 3000);
    assert_true(pp_memory_group_room(root, "4:memory:/elsewhere\n0::/nowhere/at/all\n") > 1000000);
    assert_true(pp_memory_group_room(root, "") == UINT64_MAX);
    assert_true(pp_memory_group_room(root, "nonsense\n::\n0::\n0::/../../x\n") == UINT64_MAX);
}

TEST_GROUP(fit)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_estimate_is_near),
        cmocka_unit_test(rows_of_rare_families),
        cmocka_unit_test(of_experts_those_that_a_token_uses),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(the_cache_for_itself),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(too_little_address_space),
#endif
        cmocka_unit_test(groups_leave_less),
    };
    return cmocka_run_group_tests_name("fit", tests, NULL, NULL);
}
