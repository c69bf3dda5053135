/* test_memory.c - the memory that an engine uses besides weights and KV pages is bounded, and no pass computes logits
 * that nobody asked for. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/bench.h"
#include "engine/cpu/program.h"
#include "engine/engine_int.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { MIB = 1 << 20 };

/* --- an 8B model ------------------------------------------------------------------------------------------------ */

/* A model of Llama 3.1 8B's shape whose matrices are zeros, as holes in the file. n_layers, n_vocab 0: all 32 layers,
 * the whole vocabulary. */
static struct pp_model *open_8b(const char *type, int64_t n_layers, int64_t n_vocab)
{
    char path[512];
    struct pp_random_model spec = {
        .shape = "llama-3.1-8b", .type = type, .n_layers = n_layers, .n_vocab = n_vocab, .zeros = true};
    struct pp_model *m;
    struct pp_error err;
    snprintf(path, sizeof path, "%s/8b.gguf", test_tmpdir());
    assert_ok(pp_random_model_write(&spec, path, NULL, NULL, NULL, &err), err);
    assert_ok(pp_model_open(path, &m, &err), err);
    unlink(path);
    return m;
}

/* The bytes that the engine has allocated besides weights and KV pages. */
static uint64_t own_bytes(struct pp_engine *e)
{
    const struct pp_stats *s = pp_engine_stats(e);
    return s->engine_bytes - s->layout_bytes;
}

static void check_own_bytes(const struct pp_model *m, const char *type, int n_threads, uint64_t most_mib)
{
    struct pp_engine_options opt = {.n_threads = n_threads, .max_rows = 512};
    struct pp_engine *e;
    struct pp_error err;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_int_equal(pp_engine_n_threads(e), n_threads);
    assert_int_equal(pp_engine_max_rows(e), 512);
    if (own_bytes(e) > most_mib * MIB)
        fail_msg("%s, %d threads: %.1f MiB besides weights and KV pages", type, n_threads,
                 (double)own_bytes(e) / MIB);
    pp_engine_free(e);
}

/* The default batch size and context length. Unquantised weights need their normalised inputs as floats: 8 MiB in
 * addition to 36 MiB for the residual stream and the feed-forward part's inner rows; all are alive when the inner
 * rows are computed. That leaves half a MiB for each thread: the scratch of kernels and attention, and results on
 * the way to an epilogue. Where floats are split for tiles, the parts reuse the room of the normalised floats and
 * inner rows. */
static void work_space_of_8b(void **state)
{
    static const struct {
        const char *type;
        uint64_t most_mib[2]; /* with 2 threads; with 4 and 8 */
    } cases[] = {
        {"q4_0", {48, 48}}, {"q8_0", {48, 48}}, {"q4_k_m", {48, 48}}, {"q6_k", {48, 48}}, {"f16", {48, 51}},
    };
    (void)state;
    pp_pool_assume_cpus(8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_model *m = open_8b(cases[i].type, 0, 0);
        check_own_bytes(m, cases[i].type, 2, cases[i].most_mib[0]);
        check_own_bytes(m, cases[i].type, 4, cases[i].most_mib[1]);
        check_own_bytes(m, cases[i].type, 8, cases[i].most_mib[1]);
        pp_model_close(m);
    }
    pp_pool_assume_cpus(0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* The process's resident bytes that are not backed by a file. */
static int64_t anonymous_bytes(void)
{
    long long kb = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) && sscanf(line, "RssAnon: %lld kB", &kb) != 1)
        continue;
    fclose(f);
    return kb * 1024;
}

/* The engine's own count agrees with the system's: a whole batch through one layer, with weights used in the mapped
 * file. */
static void nothing_uncounted(void **state)
{
    enum { ROWS = 512, OTHER = 2 * MIB }; /* OTHER: the threads' stacks, unused heap memory, the sequence's page
                                             tables */
    static struct pp_row rows[ROWS];
    struct pp_model *m = open_8b("f16", 1, 1000);
    struct pp_engine_options opt = {.n_threads = 2, .max_rows = ROWS};
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    int64_t before = anonymous_bytes();
    (void)state;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    for (int i = 0; i < ROWS; i++)
        rows[i] = (struct pp_row){.seq = s, .token = i, .parent = PP_PARENT_PREVIOUS};
    rows[ROWS - 1].out = PP_OUT_LOGITS;
    assert_ok(pp_step(e, rows, ROWS, NULL, &err), err);
    const struct pp_stats *stats = pp_engine_stats(e);
    int64_t grown = anonymous_bytes() - before, kv = (int64_t)(stats->pages_used * stats->page_bytes);
    if (grown > (int64_t)own_bytes(e) + kv + OTHER)
        fail_msg("%.1f MiB more than before, of which %.1f are known", (double)grown / MIB,
                 (double)((int64_t)own_bytes(e) + kv) / MIB);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
}
#endif

static bool has_odd_lines(int64_t n, size_t size)
{
    enum { LINE = 64 };
    const int64_t bytes = n * (int64_t)size;
    return bytes % LINE == 0 && bytes / LINE % 2 == 1;
}

/* Whether smaps says that large pages were requested for the mapping around p; -1: it does not say. */
static int asked_for_large_pages(const void *p)
{
    char line[1024];
    unsigned long begin, end;
    bool ours = false;
    int asked = -1;
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f && asked < 0 && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            ours = begin <= (uintptr_t)p && (uintptr_t)p < end;
        else if (ours && strncmp(line, "VmFlags:", 8) == 0)
            asked = strstr(line, " hg") != NULL;
    }
    if (f)
        fclose(f);
    return asked;
}

/* For batches of many rows the arena, and the buffer in which threads prepare inputs together, ask for huge pages. */
static void large_pages(void **state)
{
    struct pp_model *m = open_8b("f16", 1, 64);
    struct pp_engine_options opt = {.n_threads = 1, .max_rows = 512};
    struct pp_engine *e;
    struct pp_error err;
    (void)state;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK) == 0) {
        assert_int_not_equal(asked_for_large_pages(e->cpu->arena), 0);
        if (e->cpu->shared.f32)
            assert_int_not_equal(asked_for_large_pages(e->cpu->shared.f32), 0);
    }
    pp_engine_free(e);
    pp_model_close(m);
}

/* Products read 16 rows at a time: rows of 4096 bytes or more must not lie a multiple of 4096 bytes apart, where they
 * would compete for the same cache sets. */
static void rows_do_not_compete(void **state)
{
    static const char *const types[] = {"q4_0", "f16"};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct pp_model *m = open_8b(types[i], 1, 1000);
        struct pp_engine_options opt = {.n_threads = 1, .max_rows = 16};
        struct pp_engine *e;
        struct pp_error err;
        int n = 0;
        assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
        const struct pp_cpu *c = e->cpu;
        assert_true(has_odd_lines(c->normalised_stride, sizeof(float)));
        for (int k = 0; k < c->n_stages; k++) {
            const struct stage *s = &c->stages[k];
            if (s->kind != STAGE_PROJECT || s->norm.weight)
                continue;
            assert_true(has_odd_lines(c->strides[s->in], sizeof(float)));
            n++;
        }
        assert_true(n >= 2); /* at least one for attention's output, one in the feed-forward part */
        assert_true(i > 0 || has_odd_lines(c->shared_stride, sizeof(int8_t)));
        pp_engine_free(e);
        pp_model_close(m);
    }
}

/* --- logits ----------------------------------------------------------------------------------------------------- */

/* A prompt of 512 rows that asks for the last row's logits only: the engine has no room for more; and given a buffer
 * for all rows, nothing is computed or written for the others. */
static void logits_of_wanted_rows_only(void **state)
{
    enum { ROWS = 512, POISON = 0x7b };
    static struct pp_row rows[ROWS];
    static char poison[1 << 16];
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    shape.n_vocab = 10000;
    const uint64_t row_bytes = (uint64_t)shape.n_vocab * sizeof(float);
    const struct pp_engine_options opt = {.n_threads = 2, .kv_memory = 64u << 20, .max_rows = ROWS};
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    struct pp_profile profile;
    (void)state;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    for (int i = 0; i < ROWS; i++)
        rows[i] = (struct pp_row){.seq = s, .token = i, .parent = PP_PARENT_PREVIOUS};
    rows[ROWS - 1].out = PP_OUT_LOGITS;
    uint64_t before = own_bytes(e);
    assert_ok(pp_step(e, rows, ROWS, NULL, &err), err);
    assert_int_equal(own_bytes(e), before);
    assert_true(before < ROWS * row_bytes);
    float *expected = pp_malloc(row_bytes);
    memcpy(expected, pp_step_output(e, ROWS - 1), row_bytes);

    assert_ok(pp_cpu_reserve_outputs(e->cpu, ROWS, &err), err);
    assert_true(own_bytes(e) >= ROWS * row_bytes);
    float *logits = e->cpu->slots[e->cpu->logits_slot];
    memset(logits, POISON, ROWS * row_bytes);
    memset(poison, POISON, sizeof poison);
    pp_seq_truncate(s, 0);
    assert_ok(pp_engine_profile(e, true, &err), err);
    assert_ok(pp_step(e, rows, ROWS, NULL, &err), err);
    assert_ptr_equal(pp_step_output(e, ROWS - 1), logits);
    assert_memory_equal(logits, expected, row_bytes);
    for (int i = 1; i < ROWS; i++)
        assert_memory_equal(logits + i * e->cpu->strides[e->cpu->logits_slot], poison, row_bytes);
    pp_engine_profile_get(e, &profile);
    assert_int_equal(profile.lines[PP_PROFILE_LOGITS].macs, shape.n_vocab * shape.n_embd);
    for (int i = 0; i < e->cpu->n_parts; i++) /* the threads' actual work, not a counter */
        if (e->cpu->parts[i].stage->selected)
            assert_int_equal(e->cpu->parts[i].m, 1);

    pp_seq_truncate(s, 0);
    rows[ROWS - 1].out = PP_OUT_NONE;
    memset(logits, POISON, row_bytes);
    assert_ok(pp_step(e, rows, ROWS, NULL, &err), err);
    assert_memory_equal(logits, poison, row_bytes);
    for (int i = 0; i < e->cpu->n_parts; i++)
        assert_false(e->cpu->parts[i].stage->selected);
    pp_free(expected);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
}

/* Logits lie in the arena as long as it has room for them, else in memory of their own, with the same bits. */
static void few_and_many_outputs(void **state)
{
    enum { ROWS = 64 };
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q4_0);
    struct pp_row rows[ROWS];
    struct pp_model *m;
    struct pp_error err;
    const size_t row_bytes = (size_t)shape.n_vocab * sizeof(float);
    float *expected = pp_malloc(ROWS * row_bytes);
    static const int batches[] = {1, 3, ROWS};
    static const int max_rows[] = {ROWS, 512, 3};
    (void)state;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    for (size_t k = 0; k < 3; k++)
        for (size_t b = 0; b < 3 && batches[b] <= max_rows[k]; b++) {
            struct pp_engine_options opt = {.n_threads = 2, .kv_memory = 64u << 20, .max_rows = max_rows[k]};
            struct pp_engine *e;
            struct pp_seq *s;
            assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
            assert_ok(pp_seq_new(e, &s, &err), err);
            for (int at = 0; at < ROWS; at += batches[b]) {
                int n = ROWS - at < batches[b] ? ROWS - at : batches[b];
                for (int i = 0; i < n; i++)
                    rows[i] = (struct pp_row){.seq = s, .token = at + i, .parent = PP_PARENT_PREVIOUS,
                                              .out = PP_OUT_LOGITS};
                assert_ok(pp_step(e, rows, n, NULL, &err), err);
                for (int i = 0; i < n; i++)
                    if (k == 0 && b == 0)
                        memcpy(expected + (at + i) * shape.n_vocab, pp_step_output(e, i), row_bytes);
                    else
                        assert_memory_equal(expected + (at + i) * shape.n_vocab, pp_step_output(e, i), row_bytes);
            }
            pp_seq_free(s);
            pp_engine_free(e);
        }
    pp_free(expected);
    pp_model_close(m);
}

/* --- sums of chunks ------------------------------------------------------------------------------------------- */

/* Items share a tile's chunks only if the scratch has room for all their sums, and then use no more than that room. */
static void sums_of_chunks(void **state)
{
    enum { LENGTH = 900, ROOM = 1 << 16 };
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    const struct pp_engine_options opt = {.n_threads = 4, .n_ctx = 1024, .kv_memory = 64u << 20};
    struct pp_row rows[64];
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    (void)state;
    pp_pool_assume_cpus(4);
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    pp_pool_assume_cpus(0);
    assert_ok(pp_seq_new(e, &s, &err), err);
    struct pp_cpu *c = e->cpu;
    float *const own = c->attention_room, *room = pp_malloc(ROOM * sizeof *room), *want = NULL;
    const int64_t floats = c->attention_floats;
    const size_t bytes = (size_t)pp_model_info(m)->n_vocab * sizeof *want;
    int64_t used = 0;
    for (int at = 0; at < LENGTH; at += 60) {
        for (int i = 0; i < 60; i++)
            rows[i] = (struct pp_row){.seq = s, .token = 3 + (at + i) * 7 % 300, .parent = PP_PARENT_PREVIOUS};
        assert_ok(pp_step(e, rows, 60, NULL, &err), err);
    }
    for (int i = 0; i < 3; i++) { /* all the room, as much as was used, one float less */
        c->attention_room = room;
        c->attention_floats = i == 0 ? ROOM : i == 1 ? used : used - 1;
        memset(room, 0x5A, ROOM * sizeof *room);
        rows[0] = (struct pp_row){.seq = s, .token = 11, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
        assert_ok(pp_step(e, rows, 1, NULL, &err), err);
        int64_t end = ROOM;
        uint32_t none;
        memset(&none, 0x5A, sizeof none);
        while (end > 0 && memcmp(room + end - 1, &none, sizeof none) == 0)
            end--;
        if (i == 0) {
            used = end;
            assert_in_range(used, 1, ROOM - 1);
            want = pp_malloc(bytes);
            memcpy(want, pp_step_output(e, 0), bytes);
        }
        assert_int_equal(end, i < 2 ? used : 0);
        assert_memory_equal(pp_step_output(e, 0), want, bytes);
        pp_seq_truncate(s, LENGTH);
    }
    c->attention_room = own;
    c->attention_floats = floats;
    pp_free(room);
    pp_free(want);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
}

TEST_GROUP(memory)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_space_of_8b),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(nothing_uncounted),
#endif
        cmocka_unit_test(large_pages),
        cmocka_unit_test(rows_do_not_compete),
        cmocka_unit_test(logits_of_wanted_rows_only),
        cmocka_unit_test(few_and_many_outputs),
        cmocka_unit_test(sums_of_chunks),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
