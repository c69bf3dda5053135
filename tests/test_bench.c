/* test_bench.c - what measurements depend on: the profile's numbers add up, and random models have all their tensors,
 * with finite weights. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/memory.h"
#include "engine/base/topology.h"
#include "engine/bench.h"
#include "engine/lora.h"
#include "engine/model.h"
#include "tests/support.h"

static void path_of(char *path, size_t size, const char *name)
{
    snprintf(path, size, "%s/%s", test_tmpdir(), name);
}

static void write_model(const char *path, const char *shape, const char *type, int64_t n_layers)
{
    struct pp_error err;
    struct pp_random_model spec = {.shape = shape, .type = type, .n_layers = n_layers, .n_vocab = 100, .seed = 7};
    assert_ok(pp_random_model_write(&spec, path, NULL, NULL, NULL, &err), err);
}

static void step(struct pp_engine *e, struct pp_seq *s, int n)
{
    struct pp_error err;
    struct pp_row rows[8];
    for (int i = 0; i < n; i++)
        rows[i] = (struct pp_row){.seq = s, .token = i + 1, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    assert_ok(pp_step(e, rows, n, NULL, &err), err);
}

/* A random model with an engine. */
struct rig {
    char path[512];
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
};

static struct rig rig_of(const char *shape, const char *type, int64_t n_layers, int n_threads)
{
    const struct pp_engine_options opt = {.n_threads = n_threads, .n_ctx = 64};
    struct pp_error err;
    struct rig r;
    path_of(r.path, sizeof r.path, "rig.gguf");
    write_model(r.path, shape, type, n_layers);
    assert_ok(pp_model_open(r.path, &r.m, &err), err);
    assert_ok(pp_engine_new(r.m, &opt, NULL, NULL, &r.e, &err), err);
    assert_ok(pp_seq_new(r.e, &r.s, &err), err);
    return r;
}

static void rig_free(struct rig *r)
{
    pp_seq_free(r->s);
    pp_engine_free(r->e);
    pp_model_close(r->m);
    unlink(r->path);
}

static void random_models_run(void **state)
{
    (void)state;
    static const struct {
        const char *shape, *type, *named;
    } cases[] = {
        {"stories-15m", "f32", "F32"},   {"stories-15m", "F16", "F16"},   {"stories-15m", "bf16", "BF16"},
        {"stories-15m", "q8_0", "Q8_0"}, {"stories-15m", "q4_0", "Q4_0"}, {"tinyllama-1.1b", "q4_k", "Q4_K"},
        {"tinyllama-1.1b", "q6_k", "Q6_K"}, {"tinyllama-1.1b", "q4_k_m", "Q4_K_M"},
        {"deepseek-v2-lite", "q8_0", "Q8_0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512];
        struct pp_error err;
        struct pp_model *m;
        struct pp_engine *e;
        struct pp_seq *s;
        struct pp_engine_options opt = {.n_threads = 1, .n_ctx = 64};
        path_of(path, sizeof path, "random.gguf");
        write_model(path, cases[i].shape, cases[i].type, 1);
        assert_ok(pp_model_open(path, &m, &err), err);
        assert_true(strncmp(pp_model_info(m)->type_name, cases[i].named, strlen(cases[i].named)) == 0);
        assert_int_equal(pp_model_info(m)->n_layer, 1);
        assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
        assert_ok(pp_seq_new(e, &s, &err), err);
        step(e, s, 3);
        const float *logits = pp_step_output(e, 2);
        double squares = 0;
        for (int k = 0; k < 100; k++)
            squares += (double)logits[k] * (double)logits[k];
        assert_true(isfinite(squares));
        assert_true(squares / 100 > 0.01 && squares / 100 < 100); /* the scale of real activations */
        pp_seq_free(s);
        pp_engine_free(e);
        pp_model_close(m);
        unlink(path);
    }
}

static void random_models_are_the_same_again(void **state)
{
    (void)state;
    char a[512], b[512];
    path_of(a, sizeof a, "a.gguf");
    path_of(b, sizeof b, "b.gguf");
    write_model(a, "stories-15m", "q4_0", 1);
    write_model(b, "stories-15m", "q4_0", 1);
    FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
    assert_non_null(x);
    assert_non_null(y);
    char p[4096], q[4096];
    size_t n;
    do {
        n = fread(p, 1, sizeof p, x);
        assert_int_equal(fread(q, 1, sizeof q, y), n);
        assert_memory_equal(p, q, n);
    } while (n);
    fclose(x);
    fclose(y);
}

static void random_models_of_no_kind(void **state)
{
    (void)state;
    char path[512];
    path_of(path, sizeof path, "none.gguf");
    static const struct pp_random_model bad[] = {
        {.shape = "gpt-5", .type = "q4_0"},
        {.shape = "stories-15m", .type = "q5_nonsense"},
        {.shape = "stories-15m", .type = "q4_0", .n_layers = -1},
        {.shape = "stories-15m", .type = "q4_0", .n_vocab = 1 << 30},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pp_error err = {0};
        assert_int_equal(pp_random_model_write(&bad[i], path, NULL, NULL, NULL, &err), PP_ERR_USAGE);
        assert_true(err.text[0] != 0);
        assert_int_not_equal(access(path, F_OK), 0);
    }
    struct pp_cancel cancel = {0};
    struct pp_error err = {0};
    struct pp_random_model spec = {.shape = "stories-15m", .type = "q4_0"};
    pp_cancel_request(&cancel);
    assert_int_equal(pp_random_model_write(&spec, path, NULL, NULL, &cancel, &err), PP_ERR_CANCELLED);
    assert_int_not_equal(access(path, F_OK), 0); /* no partial file is left */
}

static void every_shape_is_found(void **state)
{
    (void)state;
    size_t n = 0;
    struct pp_error err;
    struct pp_random_model none = {.shape = "none", .type = "q4_0"};
    assert_int_equal(pp_random_model_write(&none, "/proc/nonexistent/x", NULL, NULL, NULL, &err), PP_ERR_USAGE);
    char *names = strstr(err.text, "choose from ") + strlen("choose from "), *rest;
    for (char *name = strtok_r(names, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest), n++) {
        const struct pp_random_shape *s = pp_random_shape_by_name(name);
        assert_non_null(s);
        assert_string_equal(s->name, name);
        assert_true(s->n_embd % s->n_head == 0 && s->n_head % s->n_head_kv == 0);
    }
    assert_int_equal(n, 14);
    assert_null(pp_random_shape_by_name(""));
}

static void profile_adds_up(void **state)
{
    (void)state;
    struct rig r = rig_of("stories-15m", "q8_0", 2, 2);
    struct pp_engine *e = r.e;
    struct pp_seq *s = r.s;
    struct pp_error err;
    struct pp_profile p;
    step(e, s, 1);
    pp_engine_profile_get(e, &p);
    assert_int_equal(p.passes, 0); /* the profile is off */
    assert_ok(pp_engine_profile(e, true, &err), err);
    step(e, s, 1);
    step(e, s, 8);
    pp_engine_profile_get(e, &p);
    assert_int_equal(p.n_threads, 2);
    assert_int_equal(p.passes, 2);
    assert_int_equal(p.rows, 9);
    uint64_t ns = 0, bytes = 0;
    for (int k = 0; k < PP_PROFILE_COUNT; k++) {
        ns += p.lines[k].ns;
        bytes += p.lines[k].bytes;
    }
    assert_true(ns >= 2 * p.ns); /* the time of all threads, including waiting */
    /* the same weights in both passes: all but norms and rows of the embedding */
    assert_true(bytes >= 2 * (pp_engine_pass_bytes(e) - 8192));
    assert_int_equal(p.lines[PP_PROFILE_QKV].macs, 9ull * 2 * 288 * 3 * 288);
    assert_int_equal(p.lines[PP_PROFILE_GATE_UP].macs, 9ull * 2 * 288 * 2 * 768);
    assert_int_equal(p.lines[PP_PROFILE_DOWN].macs, 9ull * 2 * 288 * 768);
    assert_int_equal(p.lines[PP_PROFILE_ATTN_OUT].macs, 9ull * 2 * 288 * 288);
    assert_int_equal(p.lines[PP_PROFILE_LOGITS].macs, 9ull * 288 * 100);
    /* positions attended to: 2 by the second token, 3 to 10 by the eight tokens after it */
    assert_int_equal(p.lines[PP_PROFILE_ATTENTION].macs, 2ull * 2 * 288 * (2 + (3 + 10) * 8 / 2));
    assert_int_equal(p.lines[PP_PROFILE_ATTENTION].bytes, (uint64_t)((2 + 10) * pp_engine_kv_read_bytes(e, 1)));
    for (int k = PP_PROFILE_QKV; k <= PP_PROFILE_LOGITS; k++)
        assert_true(k == PP_PROFILE_STORE || k == PP_PROFILE_ROUTE || p.lines[k].items > 0);
    assert_true(p.lines[PP_PROFILE_PREPARE].items > 0);
    assert_ok(pp_engine_profile(e, false, &err), err);
    step(e, s, 1);
    pp_engine_profile_get(e, &p);
    assert_int_equal(p.passes, 0);
    assert_ok(pp_engine_profile(e, true, &err), err); /* an engine may be freed while it is on */
    rig_free(&r);
}

/* The phases of a mixture of experts are counted under their own names. */
static void profile_of_experts(void **state)
{
    (void)state;
    enum { N_EMBD = 2048, N_FF = 1024, N_USED = 8 };
    struct rig r = rig_of("olmoe-7b-a1b", "q8_0", 1, 1);
    struct pp_error err;
    struct pp_profile p;
    for (int n_rows = 1; n_rows <= 8; n_rows += 7) {
        assert_ok(pp_engine_profile(r.e, true, &err), err);
        step(r.e, r.s, n_rows);
        pp_engine_profile_get(r.e, &p);
        assert_int_equal(p.lines[PP_PROFILE_GATE_UP].macs, (uint64_t)n_rows * N_USED * 2 * N_EMBD * N_FF);
        assert_int_equal(p.lines[PP_PROFILE_DOWN].macs, (uint64_t)n_rows * N_USED * N_EMBD * N_FF);
        for (int k = PP_PROFILE_GATE_UP; k <= PP_PROFILE_ROUTE; k++)
            assert_true(p.lines[k].items > 0);
    }
    rig_free(&r);
}

/* What a token reads in a model with states: these, and keys and values of half a page of 64 positions. */
static void states_are_read(void **state)
{
    (void)state;
    const struct pp_random_shape *shape = pp_random_shape_by_name("qwen3.5-2b");
    struct rig r = rig_of(shape->name, "q4_0", 4, 1); /* so that the fourth layer has attention */
    const int64_t keys = shape->n_state_key_head * shape->state_dim, values = shape->n_state_head * shape->state_dim;
    const double states = 3 * 4.0 * (double)(values * shape->state_dim + 32 * (keys + values));
    assert_true(pp_engine_kv_read_bytes(r.e, 0) == states);
    assert_true(pp_engine_kv_read_bytes(r.e, 40) > states);
    rig_free(&r);
}

static void chooses_tokens(void **state)
{
    enum { N = 100 };
    (void)state;
    struct pp_choosing *c;
    struct pp_error err;
    float logits[N];
    assert_ok(pp_choosing_new(N, &c, &err), err);
    for (int i = 0; i < N; i++)
        logits[i] = i == 70 ? 1 : -100;
    assert_int_equal(pp_choosing_token(c, logits, 3), 70);
    for (int i = 0; i < N; i++)
        logits[i] = -INFINITY;
    assert_int_equal(pp_choosing_token(c, logits, 4), 0);
    pp_choosing_free(c);
}

static void reads_memory(void **state)
{
    (void)state;
    struct pp_error err;
    struct pp_read_test *t;
    assert_ok(pp_read_test_new(2, 8 << 20, &t, &err), err);
    double first = pp_read_test_run(t), second = pp_read_test_run(t);
    assert_true(first > 0 && second >= first); /* the best time so far */
    struct pp_topology here;
    pp_topology_read(NULL, NULL, &here);
    const size_t cache = pp_topology_cache_bytes(NULL, &here), bytes = pp_read_test_bytes();
    assert_true(bytes > cache || bytes < (size_t)384 << 20 || bytes * 5 > pp_memory_free()); /* or memory is short */
    pp_read_test_free(t);
    pp_read_test_free(NULL);
}

static void products_by_themselves(void **state)
{
    (void)state;
    struct pp_error err;
    struct pp_micro *t;
    struct pp_micro_time time;
    assert_ok(pp_micro_new("q6_k", 64, 256, &t, &err), err);
    for (size_t i = 0; pp_micro_kernels(i); i++) {
        assert_ok(pp_micro_run(t, pp_micro_kernels(i), 3, 0, &time, &err), err);
        assert_int_equal(time.macs, 3 * 64 * 256);
        assert_int_equal(time.bytes, 64 * 210);
    }
    assert_string_equal(pp_micro_kernels(0), "scalar");
    assert_int_equal(pp_micro_run(t, "mmx", 3, 0, &time, &err), PP_ERR_UNSUPPORTED);
    assert_int_equal(pp_micro_run(t, "scalar", 0, 0, &time, &err), PP_ERR_USAGE);
    assert_int_equal(pp_micro_run(t, "scalar", PP_MICRO_MAX_ROWS + 1, 0, &time, &err), PP_ERR_USAGE);
    pp_micro_free(t);
    pp_micro_free(NULL);
    assert_int_equal(pp_micro_new("q9", 64, 256, &t, &err), PP_ERR_USAGE);
    assert_int_equal(pp_micro_new("q6_k", 63, 256, &t, &err), PP_ERR_USAGE);
    assert_int_equal(pp_micro_new("q6_k", 64, 100, &t, &err), PP_ERR_USAGE);
}

static void random_adapters_fit(void **state)
{
    (void)state;
    char path[512], adapter[512];
    struct pp_error err;
    struct pp_model *m;
    struct pp_adapter *a;
    path_of(path, sizeof path, "base.gguf");
    path_of(adapter, sizeof adapter, "adapter.gguf");
    write_model(path, "stories-15m", "q8_0", 2);
    assert_ok(pp_model_open(path, &m, &err), err);
    struct pp_random_adapter spec = {.kind = PP_RANDOM_LORA, .rank = 4, .seed = 1};
    assert_ok(pp_random_adapter_write(m, &spec, adapter, &err), err);
    assert_ok(pp_adapter_load(m, adapter, &a, &err), err);
    assert_int_equal(pp_adapter_info(a)->rank, 4);
    assert_int_equal(pp_adapter_info(a)->n_targets, 4);
    assert_string_equal(pp_adapter_info(a)->targets, "attn_q attn_v");
    pp_adapter_free(a);
    static const struct {
        enum pp_random_kind kind;
        const char *name, *targets;
    } kinds[] = {
        {PP_RANDOM_DORA, "DoRA", "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down"},
        {PP_RANDOM_IA3, "IA3", "attn_k attn_v ffn_down"},
    };
    spec.all = true;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        spec.kind = kinds[i].kind;
        path_of(adapter, sizeof adapter, kinds[i].name);
        assert_ok(pp_random_adapter_write(m, &spec, adapter, &err), err);
        assert_ok(pp_adapter_load(m, adapter, &a, &err), err);
        assert_string_equal(pp_adapter_info(a)->kind, kinds[i].name);
        assert_string_equal(pp_adapter_info(a)->targets, kinds[i].targets);
        assert_false(pp_adapter_info(a)->idle);
        pp_adapter_free(a);
    }
    spec = (struct pp_random_adapter){.kind = PP_RANDOM_LORA, .rank = 0};
    assert_int_equal(pp_random_adapter_write(m, &spec, adapter, &err), PP_ERR_USAGE);
    pp_model_close(m);
}

static void random_adapters_of_experts(void **state)
{
    (void)state;
    char path[512], adapter[512];
    struct pp_error err;
    struct pp_model *m;
    struct pp_adapter *a;
    path_of(path, sizeof path, "mixture.gguf");
    path_of(adapter, sizeof adapter, "adapter.gguf");
    write_model(path, "olmoe-7b-a1b", "q4_0", 1);
    assert_ok(pp_model_open(path, &m, &err), err);
    static const char *const targets[] = {
        "attn_q attn_k attn_v attn_output ffn_gate_inp",
        "attn_q attn_k attn_v attn_output ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps"};
    const uint64_t bytes = 64 * 3 * (2048 + 1024) * sizeof(float);
    for (int fit = 0; fit < 2; fit++) {
        const struct pp_random_adapter spec = {.kind = PP_RANDOM_LORA, .rank = 1, .all = true, .seed = 1,
                                               .expert_bytes = bytes - 1 + (uint64_t)fit};
        assert_ok(pp_random_adapter_write(m, &spec, adapter, &err), err);
        assert_ok(pp_adapter_load(m, adapter, &a, &err), err);
        assert_string_equal(pp_adapter_info(a)->targets, targets[fit]);
        assert_false(pp_adapter_info(a)->idle);
        pp_adapter_free(a);
    }
    pp_model_close(m);
    unlink(path);
    unlink(adapter);
}

static void random_adapters_of_heads(void **state)
{
    (void)state;
    char path[512], adapter[512];
    struct pp_error err;
    struct pp_model *m;
    struct pp_adapter *a;
    path_of(path, sizeof path, "latent.gguf");
    path_of(adapter, sizeof adapter, "adapter.gguf");
    write_model(path, "deepseek-v2-lite", "q4_0", 1);
    assert_ok(pp_model_open(path, &m, &err), err);
    struct pp_random_adapter spec = {.kind = PP_RANDOM_LORA, .rank = 2, .all = true, .seed = 1};
    for (int dora = 0; dora < 2; dora++) {
        spec.kind = dora ? PP_RANDOM_DORA : PP_RANDOM_LORA;
        path_of(adapter, sizeof adapter, dora ? "dora" : "adapter.gguf");
        assert_ok(pp_random_adapter_write(m, &spec, adapter, &err), err);
        assert_ok(pp_adapter_load(m, adapter, &a, &err), err);
        assert_string_equal(pp_adapter_info(a)->targets,
                            "attn_q attn_kv_a_mqa attn_output ffn_gate ffn_up ffn_down attn_kv_b");
        for (int i = 0; dora && i < a->model->plan.n_heads; i++) /* magnitudes equal to the norms */
            assert_true(a->heads[i].dora && fabsf(a->heads[i].dora[3]) < 1e-5f);
        pp_adapter_free(a);
    }
    pp_model_close(m);
    unlink(path);
}

TEST_GROUP(bench)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_models_run),
        cmocka_unit_test(random_models_are_the_same_again),
        cmocka_unit_test(random_models_of_no_kind),
        cmocka_unit_test(every_shape_is_found),
        cmocka_unit_test(profile_adds_up),
        cmocka_unit_test(profile_of_experts),
        cmocka_unit_test(states_are_read),
        cmocka_unit_test(chooses_tokens),
        cmocka_unit_test(reads_memory),
        cmocka_unit_test(products_by_themselves),
        cmocka_unit_test(random_adapters_fit),
        cmocka_unit_test(random_adapters_of_experts),
        cmocka_unit_test(random_adapters_of_heads),
    };
    return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
