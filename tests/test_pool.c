/* test_pool.c - every item runs once, parts are in order, and runs follow each other closely with more threads than
 * cores; on simulated machines with several memory nodes, items and memory are divided among them. */
#include <dirent.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/float_mode.h"
#include "engine/base/mem.h"
#include "engine/base/topology.h"
#include "engine/cpu/program.h"
#include "engine/engine_int.h"
#include "engine/pool.h"
#include "tests/passes.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { PARTS = 7, MOST = 40 };

struct record {
    atomic_int runs[PARTS][MOST];
    atomic_int finished[PARTS];
    int n_items[PARTS];
    int at_once[PARTS];
    int n_threads;
    atomic_int wrong;
};

static void record_item(void *arg, int part, int item, int thread)
{
    struct record *r = arg;
    atomic_fetch_add(&r->runs[part][item], 1);
    if (thread < 0 || thread >= r->n_threads)
        atomic_store(&r->wrong, 1);
    if (part > 0 && atomic_load(&r->finished[part - 1]) != r->n_items[part - 1])
        atomic_store(&r->wrong, 1);
    atomic_fetch_add(&r->finished[part], 1);
}

static void record_range(void *arg, int part, int first, int end, int thread)
{
    struct record *r = arg;
    if (end - first < 1 || end - first > r->at_once[part])
        atomic_store(&r->wrong, 1);
    for (int i = first; i < end; i++)
        record_item(arg, part, i, thread);
}

static struct record new_record(const struct pp_pool *p)
{
    return (struct record){
        .n_items = {1, 40, 0, 3, 17, 0, 2}, .at_once = {1, 7, 1, 2, 100, 1, 2}, .n_threads = pp_pool_n(p)};
}

static void check_record(struct record *r)
{
    assert_int_equal(atomic_load(&r->wrong), 0);
    for (int i = 0; i < PARTS; i++)
        for (int j = 0; j < MOST; j++)
            assert_int_equal(atomic_load(&r->runs[i][j]), j < r->n_items[i]);
}

/* Runs the parts both ways, many times over. */
static void exercise(struct pp_pool *p, int n_runs)
{
    for (int run = 0; run < n_runs; run++) {
        struct record r = new_record(p);
        struct pp_pool_part parts[PARTS];
        pp_pool_run(p, record_item, &r, r.n_items, PARTS);
        check_record(&r);
        r = new_record(p);
        for (int i = 0; i < PARTS; i++)
            parts[i] = (struct pp_pool_part){.n_items = r.n_items[i], .at_once = r.at_once[i]};
        pp_pool_run_parts(p, record_range, &r, parts, PARTS);
        check_record(&r);
        pp_pool_run_parts(p, record_range, &r, parts, 0); /* no part at all */
    }
}

static void every_item_once(void **state)
{
    (void)state;
    pp_pool_assume_cpus(9);
    for (int threads = 1; threads <= 9; threads++) {
        struct pp_pool *p;
        struct pp_error err;
        assert_ok(pp_pool_new(threads, &p, &err), err);
        assert_int_equal(pp_pool_n(p), threads);
        exercise(p, 150);
        pp_pool_free(p);
    }
    pp_pool_assume_cpus(0);
}

static void sum_item(void *arg, int part, int item, int thread)
{
    long *cells = arg; /* plain memory: what one part writes, the next one must see */
    (void)thread;
    cells[item] = part == 0 ? item : cells[item] + 1;
}

static void parts_see_each_other(void **state)
{
    static const int n_items[3] = {MOST, MOST, MOST};
    struct pp_pool *p;
    struct pp_error err;
    long cells[MOST];
    (void)state;
    pp_pool_assume_cpus(4);
    assert_ok(pp_pool_new(4, &p, &err), err);
    for (int run = 0; run < 200; run++) {
        memset(cells, 0x55, sizeof cells);
        pp_pool_run(p, sum_item, cells, n_items, 3);
        for (int i = 0; i < MOST; i++)
            assert_int_equal(cells[i], i + 2);
    }
    pp_pool_free(p);
    pp_pool_assume_cpus(0);
}

/* More threads than CPUs would only wait for each other. */
static void no_more_threads_than_cpus(void **state)
{
    struct pp_pool *p;
    struct pp_error err;
    (void)state;
    pp_pool_assume_cpus(3);
    assert_ok(pp_pool_new(500, &p, &err), err);
    assert_int_equal(pp_pool_n(p), 3);
    pp_pool_free(p);
    pp_pool_assume_cpus(0);
}

static void nothing(void *arg, int part, int first, int end, int thread)
{
    (void)arg, (void)part, (void)first, (void)end, (void)thread;
}

/* Threads of this process that are neither asleep nor this one: see proc(5), "stat". */
static int threads_awake(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[300], stat[512];
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", e->d_name);
        FILE *f = atoi(e->d_name) && atoi(e->d_name) != (int)getpid() ? fopen(path, "r") : NULL;
        const char *name_end = f && fgets(stat, sizeof stat, f) ? strrchr(stat, ')') : NULL;
        n += name_end && name_end[2] == 'R';
        if (f)
            fclose(f);
    }
    closedir(d);
    return n;
}

/* Some time after a run all threads sleep. */
static void idle_threads_sleep(void **state)
{
    const struct timespec rest = {.tv_nsec = 1000000};
    struct pp_pool *p;
    struct pp_error err;
    (void)state;
    pp_pool_assume_cpus(8);
    assert_ok(pp_pool_new(8, &p, &err), err);
    pp_pool_run_parts(p, nothing, NULL, &(struct pp_pool_part){.n_items = 100, .at_once = 1}, 1);
    int tries = 0;
    while (threads_awake() && tries++ < 20000)
        nanosleep(&rest, NULL);
    assert_int_equal(threads_awake(), 0);
    pp_pool_free(p);
    pp_pool_assume_cpus(0);
}

/* --- memory nodes ------------------------------------------------------------------------------------------------ */

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", text);
    fclose(f);
}

/* A folder like /sys/devices/system/node; lists[i] is node i's CPUs, NULL: there is no such node. */
static const char *fake_nodes(const char *const *lists, int n)
{
    static char dir[256];
    static unsigned serial;
    snprintf(dir, sizeof dir, "%s/nodes-%u", test_tmpdir(), serial++);
    assert_int_equal(mkdir(dir, 0700), 0);
    for (int i = 0; i < n; i++) {
        char path[300];
        if (!lists[i])
            continue;
        snprintf(path, sizeof path, "%s/node%d", dir, i);
        assert_int_equal(mkdir(path, 0700), 0);
        snprintf(path, sizeof path, "%s/node%d/cpulist", dir, i);
        write_text(path, lists[i]);
    }
    return dir;
}

static cpu_set_t first_cpus(int n)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++)
        CPU_SET((size_t)i, &set);
    return set;
}

static void topologies(void **state)
{
    struct pp_topology t;
    cpu_set_t allowed = first_cpus(12);
    (void)state;
    pp_topology_read(fake_nodes((const char *[]){"0-3,8-9", NULL, "4-7,10,11", ""}, 4), &allowed, &t);
    assert_int_equal(t.n_cpus, 12);
    assert_int_equal(t.n_nodes, 2); /* the last node has memory, but no CPU */
    assert_int_equal(t.nodes[0].id, 0);
    assert_int_equal(t.nodes[1].id, 2);
    assert_int_equal(t.nodes[0].n_cpus, 6);
    assert_int_equal(pp_topology_node_of(&t, 9), 0);
    assert_int_equal(pp_topology_node_of(&t, 11), 1);
    assert_int_equal(pp_topology_node_of(&t, -1), 0);
    CPU_CLR(4, &allowed);
    CPU_CLR(5, &allowed);
    pp_topology_read(fake_nodes((const char *[]){"0-3,8-9", "4-7,10,11"}, 2), &allowed, &t);
    assert_int_equal(t.n_cpus, 10);
    assert_int_equal(t.nodes[1].n_cpus, 4);
    static const char *const useless[] = {"0-1", "nonsense", "99999999999", "3-1", "-5", "0-2,4-"};
    for (size_t i = 0; i < sizeof useless / sizeof useless[0]; i++) { /* does not name all CPUs: one node */
        pp_topology_read(fake_nodes(&useless[i], 1), &allowed, &t);
        assert_int_equal(t.n_nodes, 1);
        assert_int_equal(t.nodes[0].n_cpus, 10);
    }
    pp_topology_read("/proc/nonexistent", NULL, &t);
    assert_int_equal(t.n_nodes, 1);
    assert_true(t.n_cpus >= 1);
    pp_topology_read(NULL, NULL, &t);
    assert_true(t.n_nodes >= 1 && t.n_cpus >= 1);
}

/* Makes a CPU, with its third-level cache, in a folder like /sys/devices/system/cpu. */
static void fake_cache(const char *dir, int cpu, const char *shared, const char *size)
{
    static const char *const folders[] = {"", "/cache", "/cache/index3"};
    char path[400];
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path, sizeof path, "%s/cpu%d%s", dir, cpu, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(path, sizeof path, "%s/cpu%d/cache/index3/shared_cpu_list", dir, cpu);
    write_text(path, shared);
    snprintf(path, sizeof path, "%s/cpu%d/cache/index3/size", dir, cpu);
    write_text(path, size);
}

/* Caches count once, and only those of CPUs that may be used. */
static void caches(void **state)
{
    struct pp_topology t;
    char dir[256];
    cpu_set_t allowed = first_cpus(4);
    (void)state;
    snprintf(dir, sizeof dir, "%s/caches", test_tmpdir());
    assert_int_equal(mkdir(dir, 0700), 0);
    fake_cache(dir, 0, "0-1", "32768K");
    fake_cache(dir, 1, "0-1", "32768K");
    fake_cache(dir, 2, "2,4", "1024K");
    fake_cache(dir, 3, "3", "nonsense");
    fake_cache(dir, 4, "2,4", "1024K");
    fake_cache(dir, 5, "5", "77K");
    pp_topology_read("/proc/nonexistent", &allowed, &t);
    assert_int_equal(pp_topology_cache_bytes(dir, &t), (32768 + 1024) << 10);
    assert_int_equal(pp_topology_cache_bytes("/proc/nonexistent", &t), 0);
}

/* The smallest quota on the path to the root counts; other texts do not. */
static void quotas(void **state)
{
    static const struct { const char *root, *a, *b; int expected; } cases[] = {
        {NULL, "max 100000", NULL, INT_MAX},       {NULL, "max 100000", "250000 100000", 3},
        {NULL, "200000 100000", "400000 100000", 2}, {"50000 100000", "200000 100000", NULL, 1},
        {NULL, "nonsense", "-5 100000", INT_MAX},  {NULL, NULL, "100000 0", INT_MAX},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[256], path[300];
        const char *const groups[] = {"", "/a", "/a/b"}, *const texts[] = {cases[i].root, cases[i].a, cases[i].b};
        snprintf(dir, sizeof dir, "%s/quota-%zu", test_tmpdir(), i);
        for (int g = 0; g < 3; g++) {
            snprintf(path, sizeof path, "%s%s", dir, groups[g]);
            assert_int_equal(mkdir(path, 0700), 0);
            snprintf(path, sizeof path, "%s%s/cpu.max", dir, groups[g]);
            if (texts[g])
                write_text(path, texts[g]);
        }
        snprintf(path, sizeof path, "%s/self", dir);
        write_text(path, "12:cpuset:/other\n0::/a/b");
        assert_int_equal(pp_cpu_quota(dir, path), cases[i].expected);
        write_text(path, "0::/../elsewhere");
        assert_int_equal(pp_cpu_quota(dir, path), cases[i].root ? 1 : INT_MAX);
    }
    assert_true(pp_cpu_quota(NULL, NULL) >= 1);
}

struct shared_work {
    const struct pp_pool *pool;
    atomic_int runs[64];
};

static void share_range(void *arg, int part, int first, int end, int thread)
{
    struct shared_work *w = arg;
    (void)part, (void)thread;
    int inside = 0;
    for (int node = 0; node < pp_pool_n_nodes(w->pool); node++) {
        int from, to;
        pp_pool_share(w->pool, node, 64, &from, &to);
        inside += first >= from && end <= to;
    }
    for (int i = first; i < end; i++)
        atomic_fetch_add(&w->runs[i], inside == 1); /* a range never spans nodes */
}

/* The threads of all nodes share the items of a part in proportion, one contiguous range for each node. pp_pool_place()
 * accepts any memory. */
static void nodes_share_items(void **state)
{
    static const char *const lists[] = {"0-7", "8-11", "12-15"};
    cpu_set_t allowed = first_cpus(16);
    struct pp_topology t;
    (void)state;
    pp_topology_read(fake_nodes(lists, 3), &allowed, &t);
    assert_int_equal(t.n_nodes, 3);
    for (int threads = 1; threads <= 18; threads++) {
        struct pp_pool *p;
        struct pp_error err;
        struct shared_work w = {0};
        assert_ok(pp_pool_new_on(&t, threads, &p, &err), err);
        assert_int_equal(pp_pool_n(p), threads < 16 ? threads : 16);
        assert_int_equal(pp_pool_n_nodes(p), 3);
        int at = 0;
        for (int node = 0; node < 3; node++) {
            int first, end;
            pp_pool_share(p, node, 64, &first, &end);
            assert_int_equal(first, at);
            at = end;
            if (threads >= 16)
                assert_int_equal(end - first, node == 0 ? 32 : 16);
        }
        assert_int_equal(at, 64);
        w.pool = p;
        pp_pool_run_parts(p, share_range, &w, &(struct pp_pool_part){.n_items = 64, .at_once = 64}, 1);
        for (int i = 0; i < 64; i++)
            assert_int_equal(atomic_load(&w.runs[i]), 1);
        exercise(p, 10);
        size_t bytes = 1 << 20; /* the system refuses nodes that do not exist, which does no harm */
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(memory != MAP_FAILED);
        memset(memory, 7, bytes);
        pp_pool_place(p, memory + 100, bytes - 100, 16, 32, 64);
        pp_pool_place(p, memory, bytes, 0, 0, 64);
        pp_pool_interleave(p, memory, bytes);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(memory[i], 7);
        munmap(memory, bytes);
        pp_pool_free(p);
    }
}

/* --- shares --------------------------------------------------------------------------------------------------- */

enum { SHARED_ITEMS = 1000, SHARING = 3 };

struct owners {
    atomic_int by[SHARED_ITEMS];  /* thread + 1 */
    atomic_int order[SHARED_ITEMS];
    atomic_int next;
};

static void own_range(void *arg, int part, int first, int end, int thread)
{
    struct owners *o = arg;
    (void)part;
    for (int i = first; i < end; i++) {
        atomic_store(&o->by[i], thread + 1);
        atomic_store(&o->order[i], atomic_fetch_add(&o->next, 1));
    }
}

/* Of its own share a thread takes the items from the front, in order. So it reads on where it stopped before, and
 * begins where pp_pool_begin() says. */
static void shares_are_read_in_order(void **state)
{
    struct pp_pool *p;
    struct pp_error err;
    (void)state;
    pp_pool_assume_cpus(SHARING);
    assert_ok(pp_pool_new(SHARING, &p, &err), err);
    for (int run = 0; run < 200; run++) {
        struct owners o = {.next = 0};
        struct pp_pool_part part = {.n_items = SHARED_ITEMS, .at_once = 7};
        pp_pool_run_parts(p, own_range, &o, &part, 1);
        for (int t = 0; t < SHARING; t++) {
            int first = pp_pool_begin(p, SHARED_ITEMS, t), end = pp_pool_begin(p, SHARED_ITEMS, t + 1), i = first;
            for (; i < end && atomic_load(&o.by[i]) == t + 1; i++)
                assert_true(i == first || atomic_load(&o.order[i]) > atomic_load(&o.order[i - 1]));
            for (; i < end; i++)
                assert_int_not_equal(atomic_load(&o.by[i]), t + 1);
        }
        assert_int_equal(pp_pool_begin(p, SHARED_ITEMS, SHARING), SHARED_ITEMS);
    }
    pp_pool_free(p);
    pp_pool_assume_cpus(0);
}

/* --- what a pass asks for ------------------------------------------------------------------------------------- */

static bool inside(const struct pp_matrix *w, const void *at)
{
    const uint8_t *begin = w->data;
    const size_t bytes = pp_pack_needed(w->type) ? pp_pack_bytes(w->type, w->n_rows, w->n_cols)
                                                 : pp_type_row_bytes(w->type, w->n_cols) * (size_t)w->n_rows;
    return (const uint8_t *)at >= begin && (const uint8_t *)at < begin + bytes;
}

/* Every thread knows where it will begin to read the weights of a stage with one row. */
static void check_begins(const struct pp_cpu *c)
{
    int n_checked = 0;
    for (int i = 0; i < c->n_parts; i++) {
        const struct stage *s = c->parts[i].stage;
        if (s->kind != STAGE_PROJECT)
            continue;
        const void *const *begins = c->work[i].begins;
        assert_non_null(begins);
        assert_ptr_equal(begins[0], s->projections[0].w.data);
        for (int t = 0; t < pp_pool_n(c->pool); t++) {
            bool found = false;
            for (int p = 0; p < s->n_projections; p++)
                found |= inside(&s->projections[p].w, begins[t]);
            assert_true(found);
        }
        n_checked++;
    }
    assert_true(n_checked > 4);
}

static int parts_of_a_row(int n_layer, int n_expert)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 64, .kv_memory = 8u << 20, .max_rows = 4};
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    shape.n_layer = n_layer;
    shape.n_expert = n_expert;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    struct pp_row row = {.seq = s, .token = 1, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    assert_ok(pp_step(e, &row, 1, NULL, &err), err);
    int n = e->cpu->n_parts;
    if (!n_expert)
        check_begins(e->cpu);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
    return n;
}

/* The logits of a text in passes of some rows, on a machine with so many memory nodes. */
static void logits_on(const struct pp_model *m, int n_nodes, int n_threads, int rows, float *logits)
{
    enum { N = 45 };
    const struct pp_engine_options opt = {
        .n_threads = n_threads, .n_ctx = 64, .kv_memory = 8u << 20, .max_rows = 64, .activations = PP_ACT_F32};
    int32_t tokens[N];
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    for (int i = 0; i < N; i++)
        tokens[i] = i * 37 % 300;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_int_equal(pp_engine_n_threads(e), n_threads);
    assert_int_equal(pp_pool_n_nodes(e->pool), n_nodes);
    assert_ok(pp_seq_new(e, &s, &err), err);
    run_in_passes(e, s, tokens, N, rows, logits);
    if (rows == 1)
        check_begins(e->cpu);
    pp_seq_free(s);
    pp_engine_free(e);
}

/* Whole passes on a machine with several memory nodes: weights and KV pages are placed, threads are bound to nodes,
 * items are divided among these, and the results have the same bits. */
static void nodes_compute_the_same(void **state)
{
    static const char *const lists[] = {"0-7", "8-11", "12-15"};
    static const uint32_t types[] = {PP_TYPE_Q4_0, PP_TYPE_F16};
    static const int threads[] = {1, 3, 7, 16}, rows[] = {1, 7, 45};
    const cpu_set_t allowed = first_cpus(16);
    struct pp_topology nodes;
    (void)state;
    pp_topology_read(fake_nodes(lists, 3), &allowed, &nodes);
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        const struct tiny_shape shape = tiny_shape(types[k]);
        const size_t bytes = 45 * (size_t)shape.n_vocab * sizeof(float);
        float *expected = pp_malloc(bytes), *got = pp_malloc(bytes);
        struct pp_model *m;
        struct pp_error err;
        assert_true(expected && got);
        assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
        pp_pool_assume_cpus(1);
        logits_on(m, 1, 1, 45, expected);
        pp_pool_assume_cpus(0);
        pp_pool_assume_topology(&nodes);
        for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++)
            for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
                memset(got, 0, bytes);
                logits_on(m, 3, threads[t], rows[r], got);
                assert_memory_equal(got, expected, bytes);
            }
        pp_pool_assume_topology(NULL);
        pp_model_close(m);
        pp_free(expected);
        pp_free(got);
    }
}

/* --- small numbers --- */

struct tiny_products {
    atomic_int n_flushed, n_kept, seen[2];
};

/* Counts whether this thread flushes a subnormal product to zero; returns when both threads have been here. */
static void multiply_tiny(void *arg, int part, int item, int thread)
{
    struct tiny_products *t = arg;
    volatile float x = 0x1p-100f, product = x * 0x1p-40f;
    (void)part;
    (void)item;
    atomic_fetch_add(product == 0 ? &t->n_flushed : &t->n_kept, 1);
    atomic_store(&t->seen[thread], 1);
    while (!atomic_load(&t->seen[0]) || !atomic_load(&t->seen[1]))
        pp_pool_relax();
}

static void threads_compute_as_the_caller(void **state)
{
    enum { RUNS = 20 };
    static const int n_items = 4;
    const unsigned own = pp_float_mode(), flushing = pp_float_mode_flushing(own);
    const bool flushes = flushing != own; /* false on processors that are not slow with subnormal numbers */
    struct pp_pool *p;
    struct pp_error err;
    (void)state;
    pp_pool_assume_cpus(2);
    assert_ok(pp_pool_new(2, &p, &err), err);
    for (int run = 0; run < RUNS; run++) {
        struct tiny_products t = {0};
        pp_float_mode_set(run % 2 ? flushing : own);
        pp_pool_run(p, multiply_tiny, &t, &n_items, 1);
        pp_float_mode_set(own);
        assert_int_equal(atomic_load(run % 2 && flushes ? &t.n_flushed : &t.n_kept), n_items);
    }
    pp_pool_free(p);
    pp_pool_assume_cpus(0);
}

static struct {
    const struct pp_matmul_kernels *real;
    atomic_int calls, wrong;
} watched;

static void watching_quantize(const float *x, int64_t n, bool twins, int8_t *q, float *d, int32_t *sum)
{
    const unsigned mode = pp_float_mode();
    atomic_fetch_add(&watched.calls, 1);
    atomic_fetch_add(&watched.wrong, mode != pp_float_mode_flushing(mode));
    watched.real->quantize(x, n, twins, q, d, sum);
}

/* A pass flushes subnormal numbers on all threads; the caller's own mode does not change. */
static void passes_flush_tiny_numbers(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    const struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 64, .kv_memory = 8u << 20, .max_rows = 16};
    const unsigned own = pp_float_mode();
    struct pp_matmul_kernels kernels;
    struct pp_row rows[16];
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    (void)state;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    watched.real = e->cpu->mm;
    kernels = *watched.real;
    kernels.quantize = watching_quantize;
    e->cpu->mm = &kernels;
    for (int i = 0; i < 16; i++)
        rows[i] = (struct pp_row){.seq = s, .token = i, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    assert_ok(pp_step(e, rows, 16, NULL, &err), err);
    assert_ok(pp_step(e, rows, 1, NULL, &err), err);
    assert_true(atomic_load(&watched.calls) > 16);
    assert_int_equal(atomic_load(&watched.wrong), 0);
    assert_int_equal(pp_float_mode(), own);
    e->cpu->mm = watched.real;
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
}

/* The threads synchronise after each part, so parts must be few: as few as README.md and doc/performance-families.md
 * say. */
static void few_parts_a_layer(void **state)
{
    (void)state;
    assert_int_equal(parts_of_a_row(2, 0) - parts_of_a_row(1, 0), 5);
    assert_int_equal(parts_of_a_row(2, 4) - parts_of_a_row(1, 4), 8);
}

TEST_GROUP(pool)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_once),           cmocka_unit_test(parts_see_each_other),
        cmocka_unit_test(no_more_threads_than_cpus), cmocka_unit_test(idle_threads_sleep),
        cmocka_unit_test(topologies),                cmocka_unit_test(caches),
        cmocka_unit_test(quotas),                    cmocka_unit_test(nodes_share_items),
        cmocka_unit_test(few_parts_a_layer),         cmocka_unit_test(shares_are_read_in_order),
        cmocka_unit_test(passes_flush_tiny_numbers), cmocka_unit_test(threads_compute_as_the_caller),
        cmocka_unit_test(nodes_compute_the_same),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
