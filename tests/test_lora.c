/* test_lora.c - adapters in the form that engines hold: close to the stored values, for any rank and weight type. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/cpu/program.h"
#include "engine/engine_int.h"
#include "engine/lora.h"
#include "engine/pool.h"
#include "engine/types.h"
#include "tests/adapter_folder.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { TOKENS = 9 };

/* Logits of the last of a few tokens; use: NULL for the model alone. */
static float *logits_with(struct pp_engine *e, const struct pp_adapter *adapter, float scale)
{
    struct pp_error err;
    struct pp_seq *s;
    struct pp_row rows[TOKENS];
    int64_t n = pp_model_info(pp_engine_model(e))->n_vocab;
    assert_ok(pp_seq_new(e, &s, &err), err);
    assert_ok(pp_seq_set_adapters(s, &(struct pp_adapter_use){adapter, scale}, adapter ? 1 : 0, &err), err);
    for (int i = 0; i < TOKENS; i++)
        rows[i] = (struct pp_row){
            .seq = s, .token = 3 + 7 * i, .parent = PP_PARENT_PREVIOUS, .out = i == TOKENS - 1 ? PP_OUT_LOGITS : 0};
    assert_ok(pp_step(e, rows, TOKENS, NULL, &err), err);
    float *out = pp_malloc((size_t)n * sizeof *out);
    assert_non_null(out);
    memcpy(out, pp_step_output(e, TOKENS - 1), (size_t)n * sizeof *out);
    pp_seq_free(s);
    return out;
}

/* Root of the mean square of a - b. */
static double distance(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / (double)n);
}

/* n_params: of the model, as if it had so many; 0: as many as it has. */
static void held_is_near(uint32_t type, int64_t n_params, uint32_t held, int rank)
{
    struct tiny_shape shape = tiny_shape(type);
    struct pp_error err;
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_adapter *near, *exact;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    assert_ok(pp_engine_new(m, &(struct pp_engine_options){.n_threads = 2, .kv_type = PP_KV_F32}, NULL, NULL, &e, &err),
              err);
    const char *path = tiny_adapter(&shape, rank);
    if (n_params)
        m->info.n_params = n_params;
    assert_ok(pp_adapter_load(m, path, &near, &err), err);
    assert_ok(pp_adapter_load_exact(m, path, &exact, &err), err);
    for (int i = 0; i < near->n_targets; i++) {
        const bool packed = pp_pack_needed(m->plan.linears[i].w->type);
        if (near->targets[i].rank)
            assert_int_equal(near->targets[i].a.type, packed ? held : PP_TYPE_F16);
        if (exact->targets[i].rank)
            assert_int_equal(exact->targets[i].b.type, PP_TYPE_F32);
    }
    int64_t n = pp_model_info(m)->n_vocab;
    float *alone = logits_with(e, NULL, 0), *a = logits_with(e, near, 0.7f), *b = logits_with(e, exact, 0.7f);
    double changed = distance(alone, b, n), off = distance(a, b, n);
    assert_true(changed > 0);
    if (off > 0.03 * changed)
        fail_msg("rank %d: held otherwise, an adapter that changes logits by %g is off by %g", rank, changed, off);
    assert_memory_not_equal(&near->identity, &exact->identity, sizeof near->identity);
    pp_free(alone);
    pp_free(a);
    pp_free(b);
    pp_adapter_free(near);
    pp_adapter_free(exact);
    pp_engine_free(e);
    pp_model_close(m);
}

static void held_forms(void **state)
{
    static const int ranks[] = {1, 3, 16, 17};
    (void)state;
    for (int i = 0; i < 4; i++) {
        held_is_near(PP_TYPE_Q4_0, 0, PP_TYPE_Q8_0, ranks[i]);
        held_is_near(PP_TYPE_Q4_K, 0, PP_TYPE_Q8_0, ranks[i]);
        held_is_near(PP_TYPE_F16, 0, PP_TYPE_F16, ranks[i]);
        held_is_near(PP_TYPE_Q4_0, 3999999999, PP_TYPE_Q8_0, ranks[i]);
        held_is_near(PP_TYPE_Q4_0, 4000000000, PP_TYPE_F16, ranks[i]);
    }
}

/* --- loading ----------------------------------------------------------------------------------------------------- */

static void damage(uint8_t *at)
{
    const uint32_t nan = 0x7fc00000;
    memcpy(at, &nan, sizeof nan);
}

/* An adapter large enough for several threads to load equals the one that a single thread loads; and the error names
 * the first damaged place in both cases. */
static void loaded_by_threads(void **state)
{
    enum { RANK = 500, THREADS = 3 };
    static const uint32_t types[] = {PP_TYPE_Q8_0, PP_TYPE_F16};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tiny_shape shape = tiny_shape(types[i]);
        struct pp_error err, other;
        struct pp_model *m;
        struct pp_adapter *one, *many;
        char *bytes;
        size_t n;
        const char *path = tiny_adapter(&shape, RANK);
        assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
        pp_pool_assume_cpus(1);
        assert_ok(pp_adapter_load(m, path, &one, &err), err);
        pp_pool_assume_cpus(THREADS);
        assert_ok(pp_adapter_load(m, path, &many, &err), err);
        assert_memory_equal(&one->identity, &many->identity, sizeof one->identity);
        pp_adapter_free(one);
        pp_adapter_free(many);
        assert_ok(pp_read_file(path, SIZE_MAX / 2, &bytes, &n, &err), err);
        damage((uint8_t *)bytes + n - 8);
        for (size_t at = n / 3 / 4 * 4; at < n; at += n / 6 / 4 * 4)
            damage((uint8_t *)bytes + at);
        assert_ok(pp_write_file(path, bytes, n, 0600, &err), err);
        pp_pool_assume_cpus(1);
        assert_int_equal(pp_adapter_load(m, path, &one, &other), PP_ERR_FORMAT);
        pp_pool_assume_cpus(THREADS);
        for (int k = 0; k < 10; k++) {
            assert_int_equal(pp_adapter_load(m, path, &many, &err), PP_ERR_FORMAT);
            assert_string_equal(err.text, other.text);
        }
        pp_pool_assume_cpus(0);
        pp_free(bytes);
        pp_model_close(m);
    }
}

/* An adapter's file, and another one of the same size, whose bytes are written into it. */
static struct {
    char path[512];
    char *bytes[2];
    size_t n;
} written;

static void write_into(int which)
{
    const struct timespec then[2] = {{.tv_sec = 1000 + which}, {.tv_sec = 1000 + which}}; /* a time for each, since the
                                                                                             clock may be frozen */
    const int fd = open(written.path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0 && write(fd, written.bytes[which], written.n) == (ssize_t)written.n);
    assert_int_equal(futimens(fd, then), 0);
    close(fd);
}

static void write_other(void)
{
    write_into(1);
}

/* Loads `path` while the other file's bytes are written into it, at every possible moment: the result is one of the two
 * adapters, never a mixture. */
static void loaded_while_written(const struct pp_model *m, const char *path, const char *file)
{
    struct pp_adapter *a;
    struct pp_error err;
    struct pp_sha256 is[2];
    int n_refused = 0, n_of[2] = {0};
    snprintf(written.path, sizeof written.path, "%s", file);
    for (int i = 0; i < 2; i++) {
        assert_ok(pp_read_file(file, SIZE_MAX / 2, &written.bytes[i], &written.n, &err), err);
        if (i)
            written.bytes[1][written.n - 1] ^= 1; /* within the last value's exponent */
        write_into(i);
        assert_ok(pp_adapter_load(m, path, &a, &err), err);
        is[i] = a->identity;
        pp_adapter_free(a);
    }
    assert_memory_not_equal(&is[0], &is[1], sizeof is[0]);
    write_into(0);
    const uint64_t before = pp_mem_count();
    assert_ok(pp_adapter_load(m, path, &a, &err), err);
    const uint64_t n = pp_mem_count() - before;
    pp_adapter_free(a);
    for (uint64_t at = 1; at <= n; at++) {
        write_into(0);
        pp_mem_call_at(at, write_other);
        const enum pp_code code = pp_adapter_load(m, path, &a, &err);
        pp_mem_call_at(0, NULL);
        n_refused += code != PP_OK;
        if (code &&
            (code != PP_ERR_IO || !strstr(err.text, "while it was being read; load it again when that is done")))
            fail_msg("at allocation %d: %s", (int)at, err.text);
        if (code)
            continue;
        const int which = memcmp(&a->identity, &is[0], sizeof is[0]) != 0;
        assert_memory_equal(&a->identity, &is[which], sizeof is[0]);
        n_of[which]++;
        pp_adapter_free(a);
    }
    if (n_refused <= n_of[0] + n_of[1] || n_of[1] == 0)
        fail_msg("of %d only %d were refused, %d are the old one", (int)n, n_refused, n_of[0]);
    pp_free(written.bytes[0]);
    pp_free(written.bytes[1]);
}

static void written_into(void **state)
{
    const struct tiny_shape shape = tiny_shape(PP_TYPE_F16);
    struct folder f = {.random = 11};
    struct pp_error err;
    struct pp_model *m;
    char file[512];
    (void)state;
    pp_pool_assume_cpus(1);
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    const char *gguf = tiny_adapter(&shape, 4);
    loaded_while_written(m, gguf, gguf);
    for (int i = 0; i < FOLDER_MODULES; i++)
        folder_add_lora(&f, &shape, i, 4);
    const char *folder = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4}");
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", folder);
    loaded_while_written(m, folder, file);
    folder_empty(&f);
    pp_model_close(m);
    pp_pool_assume_cpus(0);
}

/* --- a long conversation under two sets ------------------------------------------------------------------------ */

enum { LONG = 600 };

/* Reads a prompt and chooses a token; returns how many of the prompt's tokens were cached. */
static uint64_t read_prompt(struct pp_seq *s, const int32_t *tokens, int64_t n)
{
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 1, .ignore_end = true};
    struct pp_error err;
    struct pp_gen *g;
    assert_ok(pp_gen_start(s, tokens, n, &opt, NULL, &g, &err), err);
    const uint64_t cached = pp_gen_stats(g).cached_tokens;
    pp_gen_free(g);
    return cached;
}

/* Switching back to earlier adapters finds their pages and computes nothing again; pp_engine_cached_tokens predicts how
 * many. */
static void switched_back(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    const struct pp_engine_options opt = {.n_threads = 2, .kv_memory = 64u << 20};
    const int64_t whole = (LONG - 1) / PP_PAGE_TOKENS * PP_PAGE_TOKENS;
    struct pp_error err;
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_adapter *a[2];
    struct pp_seq *s;
    int32_t tokens[LONG];
    (void)state;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    for (int i = 0; i < 2; i++) {
        shape.seed++;
        assert_ok(pp_adapter_load(m, tiny_adapter(&shape, 4), &a[i], &err), err);
    }
    for (int i = 0; i < LONG; i++)
        tokens[i] = 3 + i * 11 % 50;
    const struct pp_adapter_use sets[3][2] = {
        {{a[0], 1}, {a[1], 0.5f}}, {{a[1], 0.5f}, {a[0], 0}}, {{a[0], 0.75f}, {a[1], 0.5f}}};
    assert_ok(pp_seq_new(e, &s, &err), err);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pp_engine_cached_tokens(e, sets[i], 2, tokens, LONG), 0);
        assert_ok(pp_seq_set_adapters(s, sets[i], 2, &err), err);
        assert_int_equal(read_prompt(s, tokens, LONG), 0);
        assert_int_equal(pp_engine_cached_tokens(e, sets[i], 2, tokens, LONG), whole);
        assert_int_equal(pp_seq_cached_tokens(s, sets[i], 2, tokens, LONG), LONG);
        assert_int_equal(pp_seq_cached_tokens(s, sets[(i + 1) % 3], 2, tokens, LONG), 0);
    }
    assert_int_equal(pp_engine_cached_tokens(e, sets[1], 1, tokens, LONG), LONG); /* strength 0 is the same as absent */
    assert_int_equal(pp_engine_cached_tokens(e, sets[0], 2, tokens, 100), PP_PAGE_TOKENS);
    tokens[200]++;
    assert_int_equal(pp_engine_cached_tokens(e, sets[0], 2, tokens, LONG), 200 / PP_PAGE_TOKENS * PP_PAGE_TOKENS);
    assert_int_equal(pp_seq_cached_tokens(s, sets[2], 2, tokens, LONG), 200);
    tokens[200]--;
    for (int turn = 0; turn < 6; turn++) {
        assert_ok(pp_seq_set_adapters(s, sets[turn % 3], 2, &err), err);
        assert_int_equal(pp_engine_cached_tokens(e, sets[turn % 3], 2, tokens, LONG), LONG);
        assert_int_equal(read_prompt(s, tokens, LONG), LONG - 1);
    }
    pp_seq_free(s);
    for (int i = 0; i < 2; i++)
        pp_adapter_free(a[i]);
    pp_engine_free(e);
    pp_model_close(m);
}

/* Logits of tokens [n], a beginning of which may already be cached; *cached: how many are. */
static void read_on(struct pp_seq *s, const int32_t *tokens, int64_t n, int64_t *cached, float *out, int64_t n_vocab)
{
    struct pp_engine *e = s->engine;
    struct pp_row rows[LONG];
    struct pp_error err;
    *cached = pp_seq_begin(s, tokens, n);
    const int n_rows = (int)(n - *cached);
    for (int i = 0; i < n_rows; i++)
        rows[i] = (struct pp_row){.seq = s, .token = tokens[*cached + i], .parent = PP_PARENT_PREVIOUS,
                                  .out = i == n_rows - 1 ? PP_OUT_LOGITS : 0};
    for (int i = 0, some; i < n_rows; i += some) {
        some = n_rows - i < e->max_rows ? n_rows - i : e->max_rows;
        assert_ok(pp_step(e, rows + i, some, NULL, &err), err);
        if (i + some == n_rows)
            memcpy(out, pp_step_output(e, some - 1), (size_t)n_vocab * sizeof *out);
    }
}

/* A last page that is not full is reused for the beginning it shares with the new prompt, read only under its own
 * adapters, and not written to: every result is that of a fresh engine. */
static void tails_with(int window)
{
    enum { FIRST = 130, MORE = 150 }; /* two pages and 2 tokens; two pages and 22 tokens */
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    const struct pp_engine_options opt = {.n_threads = 2, .kv_memory = 64u << 20};
    struct pp_error err;
    struct pp_model *m;
    struct pp_adapter *a;
    struct pp_engine *e[2]; /* one that switches adapters, one that does not */
    struct pp_seq *s, *clean;
    int32_t tokens[MORE], other[MORE];
    shape.window = window;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    shape.seed++;
    assert_ok(pp_adapter_load(m, tiny_adapter(&shape, 4), &a, &err), err);
    const int64_t n_vocab = pp_model_info(m)->n_vocab;
    float *found = pp_malloc((size_t)n_vocab * sizeof *found), *wanted = pp_malloc((size_t)n_vocab * sizeof *wanted);
    const struct pp_adapter_use on = {a, 0.5f};
    const struct {
        bool on, other;
        int n, cached;
    } turns[] = {
        {false, false, MORE, 0},
        {true, false, FIRST, 0},            /* pages of the other set do not count */
        {false, false, MORE, MORE - 1},     /* all but the last token, which is computed for its logits */
        {true, false, MORE, FIRST},         /* continues where that set was left, in a new page */
        {false, true, MORE, MORE - 10},     /* the beginning that both texts have in common */
        {true, false, FIRST, FIRST - 1},    /* the beginning of a longer text, or the tail itself */
        {false, false, MORE, MORE - 1},     /* the first tail is still unchanged */
        {true, true, MORE, MORE - 10},
        {false, true, MORE, MORE - 1},
    };
    for (int i = 0; i < MORE; i++) {
        tokens[i] = 3 + i * 11 % 50;
        other[i] = i < MORE - 10 ? tokens[i] : 2 + i % 7;
    }
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e[0], &err), err);
    assert_ok(pp_seq_new(e[0], &s, &err), err);
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        const int32_t *prompt = turns[i].other ? other : tokens;
        int64_t cached;
        assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e[1], &err), err);
        assert_ok(pp_seq_new(e[1], &clean, &err), err);
        assert_ok(pp_seq_set_adapters(clean, &on, turns[i].on, &err), err);
        read_on(clean, prompt, turns[i].n, &cached, wanted, n_vocab);
        assert_int_equal(cached, 0);
        assert_ok(pp_seq_set_adapters(s, &on, turns[i].on, &err), err);
        read_on(s, prompt, turns[i].n, &cached, found, n_vocab);
        if (cached != turns[i].cached)
            print_error("turn %zu\n", i);
        assert_int_equal(cached, turns[i].cached);
        assert_memory_equal(found, wanted, (size_t)n_vocab * sizeof *found);
        pp_seq_free(clean);
        pp_engine_free(e[1]);
    }
    pp_seq_free(s);
    pp_engine_free(e[0]);
    pp_adapter_free(a);
    pp_model_close(m);
    pp_free(found);
    pp_free(wanted);
}

static void tails(void **state)
{
    (void)state;
    tails_with(0);
    tails_with(40);
}

/* --- what a pass has to wait for ------------------------------------------------------------------------------- */

static struct {
    const struct pp_matmul_kernels *real;
    int64_t quantized;     /* values that were quantised */
    int with_a;            /* products with as many outputs as A has rows */
    pp_matmul_fn *q8_0;
} counted;

static void counting_quantize(const float *x, int64_t n, bool twins, int8_t *q, float *d, int32_t *sum)
{
    counted.quantized += n;
    counted.real->quantize(x, n, twins, q, d, sum);
}

static void counting_q8_0(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                          float *y, int64_t y_stride, void *scratch)
{
    counted.with_a += w->n_rows == 7;
    counted.q8_0(w, row0, row1, x, m, y, y_stride, scratch);
}

/* The numbers of thread barriers and of quantised inputs in a pass over this many rows. */
static void count_pass(struct pp_engine *e, const struct pp_adapter_use *use, int n_use, int n_rows, int count[2])
{
    enum { MOST = 40 };
    struct pp_row rows[MOST];
    struct pp_error err;
    struct pp_seq *s;
    assert_ok(pp_seq_new(e, &s, &err), err);
    assert_ok(pp_seq_set_adapters(s, use, n_use, &err), err);
    for (int i = 0; i < n_rows; i++)
        rows[i] = (struct pp_row){.seq = s, .token = 3 + i, .parent = PP_PARENT_PREVIOUS,
                                  .out = i == n_rows - 1 ? PP_OUT_LOGITS : PP_OUT_NONE};
    counted.quantized = counted.with_a = 0;
    assert_ok(pp_step(e, rows, n_rows, NULL, &err), err);
    count[0] = e->cpu->n_parts;
    count[1] = (int)counted.quantized;
    pp_seq_free(s);
}

/* Adapters use the barriers and quantised inputs of the model's own matrices and add none; and A is not read again for
 * each row of a prompt. */
static void no_barrier_more(void **state)
{
    enum { MANY = 4, RANK = 7 };
    static const int n_rows[] = {1, 4, 5, 40};
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q4_0);
    const struct pp_engine_options opt = {.n_threads = 1, .kv_memory = 64u << 20};
    struct pp_adapter_use uses[MANY];
    struct pp_matmul_kernels kernels;
    struct pp_error err;
    struct pp_model *m;
    struct pp_engine *e;
    (void)state;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    for (int i = 0; i < MANY; i++) {
        struct pp_adapter *a;
        shape.seed++;
        assert_ok(pp_adapter_load(m, tiny_adapter(&shape, RANK), &a, &err), err);
        uses[i] = (struct pp_adapter_use){a, 0.5f};
    }
    counted.real = e->cpu->mm;
    counted.q8_0 = counted.real->by_type[PP_TYPE_Q8_0];
    kernels = *counted.real;
    kernels.quantize = counting_quantize;
    kernels.by_type[PP_TYPE_Q8_0] = counting_q8_0;
    e->cpu->mm = &kernels;
    for (int i = 0; i < 4; i++) {
        int without[2], with[2];
        count_pass(e, NULL, 0, n_rows[i], without);
        assert_true(without[0] > 4 && without[1] > 4);
        assert_int_equal(counted.with_a, 0);
        for (int n = 1; n <= MANY; n++) {
            count_pass(e, uses, n, n_rows[i], with);
            assert_int_equal(with[0], without[0]);
            assert_int_equal(with[1], without[1]);
            const int products = n * uses[0].adapter->info.n_targets;
            assert_in_range(counted.with_a, products, 2 * products); /* 40 rows are prepared in two steps */
        }
    }
    e->cpu->mm = counted.real;
    for (int i = 0; i < MANY; i++)
        pp_adapter_free((struct pp_adapter *)(uintptr_t)uses[i].adapter);
    pp_engine_free(e);
    pp_model_close(m);
}

TEST_GROUP(lora)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(held_forms),    cmocka_unit_test(loaded_by_threads),
                                       cmocka_unit_test(written_into),  cmocka_unit_test(switched_back),
                                       cmocka_unit_test(tails),         cmocka_unit_test(no_barrier_more)};
    return cmocka_run_group_tests_name("lora", tests, NULL, NULL);
}
