/* test_layout.c - packed weights: packed once, then mapped from a cache file, without ever changing a result. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/memory.h"
#include "engine/cpu/layout_file.h"
#include "engine/cpu/matmul.h"
#include "engine/engine_int.h"
#include "engine/types.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { N_TOKENS = 5, MOST_VOCAB = 512, PATH = 700 };

static const uint32_t packed_types[] = {PP_TYPE_Q8_0, PP_TYPE_Q4_0, PP_TYPE_Q4_K, PP_TYPE_Q6_K};

struct logits {
    float f[MOST_VOCAB];
};

/* --- engines and what they find ----------------------------------------------------------------------------------- */

static const char *fresh_cache(void)
{
    static char path[PATH];
    static unsigned serial;
    snprintf(path, sizeof path, "%s/cache-%u", test_tmpdir(), serial++);
    return path;
}

static struct pp_engine *engine_with(const struct pp_model *m, const char *cache, uint64_t quota, int n_threads)
{
    const struct pp_engine_options opt = {.n_threads = n_threads, .kv_memory = 4u << 20, .n_ctx = 64, .max_rows = 8,
                                          .cache_dir = cache, .layout_quota = quota};
    struct pp_engine *e;
    struct pp_error err;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    return e;
}

static struct logits step_all(struct pp_engine *e)
{
    struct pp_row rows[N_TOKENS];
    struct logits l = {0};
    struct pp_seq *s;
    struct pp_error err;
    assert_ok(pp_seq_new(e, &s, &err), err);
    for (int i = 0; i < N_TOKENS; i++)
        rows[i] = (struct pp_row){.seq = s, .token = 7 * i + 3, .parent = PP_PARENT_PREVIOUS,
                                  .out = i == N_TOKENS - 1 ? PP_OUT_LOGITS : PP_OUT_NONE};
    assert_ok(pp_step(e, rows, N_TOKENS, NULL, &err), err);
    memcpy(l.f, pp_step_output(e, N_TOKENS - 1), (size_t)pp_model_info(pp_engine_model(e))->n_vocab * sizeof *l.f);
    pp_seq_free(s);
    return l;
}

struct found {
    struct logits logits;
    bool mapped;             /* all weights were mapped before the first step */
    uint64_t repaired;
};

/* Creates and frees an engine. settle: waits until the cache is written. */
static struct found use(const char *model, const char *cache, uint64_t quota, bool settle)
{
    struct pp_model *m;
    struct pp_error err;
    struct found f;
    assert_ok(pp_model_open(model, &m, &err), err);
    assert_true(pp_model_info(m)->n_vocab <= MOST_VOCAB);
    struct pp_engine *e = engine_with(m, cache, quota, 2);
    struct pp_weights_state before = pp_weights_state(pp_cpu_weights(e->cpu));
    f.mapped = before.from_cache;
    f.logits = step_all(e);
    if (settle)
        assert_ok(pp_engine_settle(e, NULL, &err), err);
    f.repaired = pp_engine_stats(e)->layout_repaired;
    pp_engine_free(e);
    pp_model_close(m);
    return f;
}

static void assert_same(const struct logits *a, const struct logits *b)
{
    assert_memory_equal(a->f, b->f, sizeof a->f);
}

/* The names in CACHE/layouts that end in `suffix`: how many, and the last one's path. */
static int count_files(const char *cache, const char *suffix, char last[PATH])
{
    char folder[PATH];
    int n = 0;
    snprintf(folder, sizeof folder, "%s/layouts", cache);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t len = strlen(e->d_name), m = strlen(suffix);
        if (len < m || strcmp(e->d_name + len - m, suffix) != 0)
            continue;
        n++;
        if (last)
            snprintf(last, PATH, "%.300s/%.300s", folder, e->d_name);
    }
    if (d)
        closedir(d);
    return n;
}

static void make_model(uint32_t type, uint32_t seed, char path[PATH])
{
    struct tiny_shape shape = tiny_shape(type);
    shape.seed = seed;
    snprintf(path, PATH, "%s", tiny_model(&shape));
}

/* --- made once ---------------------------------------------------------------------------------------------------- */

static void made_once_and_mapped(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof packed_types / sizeof packed_types[0]; i++) {
        char model[PATH], file[PATH], cache[PATH];
        struct stat st;
        snprintf(cache, sizeof cache, "%.300s/not/there/yet", fresh_cache());
        make_model(packed_types[i], 1, model);
        struct found plain = use(model, NULL, 0, false);
        struct found first = use(model, cache, 0, true);
        assert_false(plain.mapped || first.mapped);
        assert_int_equal(count_files(cache, ".layout", file), 1);
        assert_int_equal(count_files(cache, ".part", NULL), 0);
        assert_int_equal(stat(file, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        *strrchr(file, '/') = 0;
        assert_int_equal(stat(file, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        struct found second = use(model, cache, 0, false);
        assert_true(second.mapped);
        assert_int_equal(second.repaired, 0);
        assert_same(&plain.logits, &first.logits);
        assert_same(&plain.logits, &second.logits);
    }
}

/* While the packed weights are written to the file, its pages replace those in memory, until none of the latter is
 * left. */
static void memory_becomes_the_file(void **state)
{
    char model[PATH];
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    make_model(PP_TYPE_Q8_0, 1, model);
    assert_ok(pp_model_open(model, &m, &err), err);
    struct pp_engine *e = engine_with(m, fresh_cache(), 0, 2);
    assert_ok(pp_engine_settle(e, NULL, &err), err);
    struct pp_weights_state s = pp_weights_state(pp_cpu_weights(e->cpu));
    assert_true(s.bytes > 0 && s.mapped >= s.bytes);
    assert_int_equal(s.anonymous, 0);
    struct logits l = step_all(e), plain = use(model, NULL, 0, false).logits;
    assert_same(&l, &plain);
    pp_engine_free(e);
    pp_model_close(m);
}

/* A model whose weights are used in place needs no packed file. */
static void float_models_need_no_file(void **state)
{
    const char *cache = fresh_cache();
    char model[PATH];
    (void)state;
    make_model(PP_TYPE_F16, 1, model);
    struct found f = use(model, cache, 0, true), plain = use(model, NULL, 0, false);
    assert_int_equal(count_files(cache, "", NULL), 0);
    assert_same(&f.logits, &plain.logits);
}

/* The cache file is named by the model's content hash as soon as that is known, so that a copy of the model finds it,
 * too. */
static void named_by_content(void **state)
{
    const char *cache = fresh_cache();
    char model[PATH], copy[PATH], file[PATH], hex[65], *bytes;
    size_t size;
    struct pp_model *m;
    struct pp_sha256 id;
    struct pp_error err;
    (void)state;
    make_model(PP_TYPE_Q4_0, 1, model);
    struct logits plain = use(model, cache, 0, true).logits;
    assert_int_equal(count_files(cache, ".layout", file), 1);
    assert_non_null(strstr(file, "/f-"));
    assert_ok(pp_model_open(model, &m, &err), err);
    assert_ok(pp_model_identity(m, cache, &id, &err), err);
    pp_model_close(m);
    pp_sha256_hex(&id, hex);
    assert_true(use(model, cache, 0, false).mapped);
    assert_int_equal(count_files(cache, ".layout", file), 1);
    assert_non_null(strstr(file, hex));
    assert_true(use(model, cache, 0, false).mapped);

    assert_ok(pp_read_file(model, 1 << 24, &bytes, &size, &err), err);
    snprintf(copy, sizeof copy, "%s/copy.gguf", test_tmpdir());
    assert_ok(pp_write_file(copy, bytes, size, 0600, &err), err);
    pp_free(bytes);
    assert_ok(pp_model_open(copy, &m, &err), err);
    assert_ok(pp_model_identity(m, cache, &id, &err), err);
    pp_model_close(m);
    struct found f = use(copy, cache, 0, true);
    assert_true(f.mapped);
    assert_same(&f.logits, &plain);
    assert_int_equal(count_files(cache, ".layout", NULL), 1);
}

/* A model file that replaces another of the same shape does not get the weights of its predecessor. */
static void replaced_model(void **state)
{
    const char *cache = fresh_cache();
    char model[PATH], other[PATH];
    (void)state;
    make_model(PP_TYPE_Q8_0, 1, model);
    make_model(PP_TYPE_Q8_0, 2, other);
    struct logits wanted = use(other, NULL, 0, false).logits;
    use(model, cache, 0, true);
    assert_int_equal(rename(other, model), 0);
    struct found f = use(model, cache, 0, true);
    assert_false(f.mapped);
    assert_same(&f.logits, &wanted);
}

/* --- files that lie ----------------------------------------------------------------------------------------------- */

enum { HEADER_BYTES = 128, HASH_AT = 120, VERSION_AT = 16, DONE_AT = 32, KEY_AT = 56 };

/* Changes a byte of the header in such a way that the header's own checksum does not reveal it. */
static void change_header(char *file, size_t at)
{
    file[at] ^= 1;
    uint64_t hash = pp_hash64(file, HASH_AT);
    memcpy(file + HASH_AT, &hash, sizeof hash);
}

enum damage { FLIP, FORGE, CUT, LONGER, GONE };

static void refused_files(void **state)
{
    static const struct {
        enum damage kind;
        size_t at;
    } cases[] = {
        {FLIP, 0}, {FLIP, VERSION_AT}, {FLIP, 100}, {FLIP, HEADER_BYTES + 3}, {FLIP, HEADER_BYTES + 16 * 48},
        {FORGE, 0}, {FORGE, VERSION_AT}, {FORGE, 20}, {FORGE, 24}, {FORGE, DONE_AT}, {FORGE, 40}, {FORGE, 48},
        {FORGE, KEY_AT}, {FORGE, 104}, {FORGE, 112}, {CUT, 1}, {CUT, 70000}, {CUT, 0}, {LONGER, 0}, {GONE, 0},
    };
    const char *cache = fresh_cache();
    char model[PATH], file[PATH], *bytes;
    size_t size;
    struct pp_error err;
    (void)state;
    make_model(PP_TYPE_Q4_K, 1, model);
    struct logits plain = use(model, cache, 0, true).logits;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(count_files(cache, ".layout", file), 1);
        assert_true(use(model, cache, 0, false).mapped);
        assert_ok(pp_read_file(file, 1 << 24, &bytes, &size, &err), err);
        size_t keep = size;
        if (cases[i].kind == FLIP)
            bytes[cases[i].at] ^= 1;
        else if (cases[i].kind == FORGE)
            change_header(bytes, cases[i].at);
        else if (cases[i].kind == CUT)
            keep = cases[i].at ? size - cases[i].at : 0;
        assert_ok(pp_write_file(file, bytes, keep, 0600, &err), err);
        if (cases[i].kind == LONGER)
            assert_int_equal(truncate(file, (off_t)size + 1), 0);
        if (cases[i].kind == GONE)
            assert_int_equal(unlink(file), 0);
        pp_free(bytes);
        struct found f = use(model, cache, 0, true);
        if (f.mapped)
            fail_msg("case %zu was believed", i);
        assert_same(&f.logits, &plain);
    }
    assert_true(use(model, cache, 0, false).mapped);
}

/* Wherever packed weights are damaged, the group is packed again from the model, and the file is removed. */
static void damaged_weights(void **state)
{
    char model[PATH], file[PATH], *bytes;
    size_t size;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof packed_types / sizeof packed_types[0]; i++) {
        const char *cache = fresh_cache();
        make_model(packed_types[i], 1, model);
        struct logits plain = use(model, cache, 0, true).logits;
        assert_int_equal(count_files(cache, ".layout", file), 1);
        assert_ok(pp_read_file(file, 1 << 24, &bytes, &size, &err), err);
        uint64_t data;
        memcpy(&data, bytes + 48, sizeof data);
        bytes[data + 100] ^= 1;                       /* the first matrix */
        memset(bytes + data + 0x10000, 0, 0x20000);   /* and others: zeros, like the hole that a crash may leave */
        assert_ok(pp_write_file(file, bytes, size, 0600, &err), err);
        pp_free(bytes);
        struct found f = use(model, cache, 0, false);
        assert_true(f.mapped && f.repaired > 1);
        assert_same(&f.logits, &plain);
        assert_int_equal(count_files(cache, ".layout", NULL), 0);
        f = use(model, cache, 0, true);
        assert_false(f.mapped);
        assert_true(use(model, cache, 0, false).mapped);
    }
}

/* The engine handles SIGBUS once it has mapped a file; cmocka installs its own handler for each test. */
static struct sigaction engine_handler;

__attribute__((constructor)) static void note_engine_handler(void)
{
    struct pp_map map;
    if (pp_map_open("/proc/self/exe", &map, NULL) == PP_OK)
        pp_map_close(&map);
    sigaction(SIGBUS, NULL, &engine_handler);
}

static void file_that_shrinks(void **state)
{
    const char *cache = fresh_cache();
    char model[PATH], file[PATH];
    struct sigaction cmocka;
    struct pp_model *m;
    struct pp_seq *s;
    struct pp_error err;
    (void)state;
    make_model(PP_TYPE_Q8_0, 1, model);
    struct logits plain = use(model, cache, 0, true).logits;
    assert_int_equal(count_files(cache, ".layout", file), 1);
    assert_ok(pp_model_open(model, &m, &err), err);
    struct pp_engine *e = engine_with(m, cache, 0, 2);
    assert_ok(pp_seq_new(e, &s, &err), err);
    assert_int_equal(truncate(file, 4096), 0);
    const struct pp_row row = {.seq = s, .token = 1, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    sigaction(SIGBUS, &engine_handler, &cmocka);
    assert_int_equal(pp_step(e, &row, 1, NULL, &err), PP_ERR_IO);
    sigaction(SIGBUS, &cmocka, NULL);
    assert_int_equal(pp_seq_len(s), 0);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
    struct found f = use(model, cache, 0, true);
    assert_false(f.mapped);
    assert_same(&f.logits, &plain);
}

/* --- room --------------------------------------------------------------------------------------------------------- */

static void set_used(const char *file, time_t when)
{
    const struct timespec both[2] = {{.tv_sec = when}, {.tv_sec = when}};
    assert_int_equal(utimensat(AT_FDCWD, file, both, 0), 0);
}

static void least_recently_used_goes(void **state)
{
    const char *cache = fresh_cache();
    char model[4][PATH], file[4][PATH];
    struct stat st;
    (void)state;
    for (int i = 0; i < 4; i++)
        make_model(PP_TYPE_Q8_0, (uint32_t)i + 1, model[i]);
    for (int i = 0; i < 2; i++) {
        char elsewhere[PATH];
        use(model[i], cache, 0, true);
        snprintf(elsewhere, sizeof elsewhere, "%.300s/kept-%d", cache, i);
        assert_int_equal(count_files(cache, ".layout", file[i]), 1);
        assert_int_equal(rename(file[i], elsewhere), 0);
    }
    for (int i = 0; i < 2; i++) {
        char elsewhere[PATH];
        snprintf(elsewhere, sizeof elsewhere, "%.300s/kept-%d", cache, i);
        assert_int_equal(rename(elsewhere, file[i]), 0);
        set_used(file[i], 1000 + i);
    }
    assert_int_equal(stat(file[0], &st), 0);
    const uint64_t quota = 2 * (uint64_t)st.st_size;
    assert_true(use(model[0], cache, quota, false).mapped); /* now used more recently than the other */
    use(model[2], cache, quota, true);
    assert_int_equal(count_files(cache, ".layout", NULL), 2);
    assert_int_equal(access(file[0], F_OK), 0);
    assert_int_not_equal(access(file[1], F_OK), 0);
    set_used(file[0], 1000);
    use(model[3], cache, quota, true);
    assert_int_equal(count_files(cache, ".layout", NULL), 2);
    assert_int_not_equal(access(file[0], F_OK), 0);
    assert_true(use(model[3], cache, quota, false).mapped);
    assert_true(use(model[2], cache, quota, false).mapped);
}

/* With a full disk or folders that cannot be written to, the results are the same and no file remains. */
static void nowhere_to_write(void **state)
{
    char model[PATH], file[PATH];
    struct pp_error err;
    (void)state;
    make_model(PP_TYPE_Q8_0, 1, model);
    struct logits plain = use(model, NULL, 0, false).logits;
    const char *cache = fresh_cache();
    struct logits l = use(model, cache, 1000, true).logits; /* the quota is too small */
    assert_same(&l, &plain);
    assert_int_equal(count_files(cache, "", NULL), 2);      /* . and .. */
    cache = fresh_cache();
    l = use(model, cache, PP_LAYOUTS_OFF, true).logits;
    assert_same(&l, &plain);
    assert_int_not_equal(access(cache, F_OK), 0);
    l = use(model, "/proc/no/such/place", 0, true).logits;
    assert_same(&l, &plain);
    cache = fresh_cache();
    assert_int_equal(mkdir(cache, 0700), 0);
    snprintf(file, sizeof file, "%.300s/layouts", cache);
    assert_ok(pp_write_file(file, "a file", 6, 0600, &err), err);
    l = use(model, cache, 0, true).logits;
    assert_same(&l, &plain);
}

static void disk_is_full(void **state)
{
    const char *cache = fresh_cache();
    char model[PATH];
    struct rlimit before, little;
    (void)state;
    make_model(PP_TYPE_Q8_0, 1, model);
    struct logits plain = use(model, NULL, 0, false).logits;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 100000; /* enough for the header */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    struct found f = use(model, cache, 0, true);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_same(&f.logits, &plain);
    assert_int_equal(count_files(cache, "", NULL), 2);
    assert_false(use(model, cache, 0, true).mapped);
    assert_true(use(model, cache, 0, false).mapped);
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

/* Places the weights of a model without an engine, so that the keeper's work can be done step by step. */
static struct pp_weights *place_weights(const struct pp_model *m, const char *cache, uint64_t quota)
{
    struct pp_weights *w;
    struct pp_error err;
    assert_ok(pp_weights_new(m, &w, &err), err);
    for (int i = 0; i < m->plan.n_linears; i++)
        assert_non_null(pp_weights_add(w, m->plan.linears[i].w));
    assert_ok(pp_weights_place(w, cache, quota, &err), err);
    return w;
}

static void write_some(struct pp_weights *w, int n)
{
    assert_true(pp_layout_begin(w));
    for (int i = 0; i < n; i++) {
        assert_true(pp_weight_make(w->list[i], 0, w->list[i]->t->ne[1], NULL, NULL));
        if (i >= w->store.n_done)
            assert_true(pp_layout_write(w));
    }
}

/* Every weight, requested as a whole, equals the result of packing its tensor. */
static void assert_packed(struct pp_weights *w)
{
    for (int i = 0; i < w->n; i++) {
        struct pp_weight *m = w->list[i];
        const struct pp_tensor *t = m->t;
        uint8_t *wanted = pp_calloc(1, m->bytes);
        assert_non_null(wanted);
        assert_true(pp_weight_ready(m, 0, t->ne[1], NULL, NULL));
        pp_pack_rows(t->type, t->data, t->ne[1], t->ne[0], 0, t->ne[1], wanted);
        assert_memory_equal(m->data, wanted, m->bytes);
        pp_free(wanted);
    }
}

/* An engine that ends early leaves a partial file; the next one continues it. */
static void part_is_continued(void **state)
{
    const char *cache = fresh_cache();
    char model[PATH];
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    make_model(PP_TYPE_Q6_K, 1, model);
    assert_ok(pp_model_open(model, &m, &err), err);
    struct pp_weights *w = place_weights(m, cache, 0);
    write_some(w, 4);
    pp_weights_free(w);
    assert_int_equal(count_files(cache, ".part", NULL), 1);
    assert_int_equal(count_files(cache, ".layout", NULL), 0);

    w = place_weights(m, cache, 0);
    assert_int_equal(w->store.n_done, 4);
    assert_true(w->list[3]->from_file && !w->list[4]->from_file);
    assert_packed(w);
    assert_int_equal(pp_weights_state(w).repaired, 0);
    write_some(w, w->n);
    assert_true(pp_layout_complete(w));
    pp_weights_free(w);
    assert_int_equal(count_files(cache, ".part", NULL), 0);
    w = place_weights(m, cache, 0);
    assert_true(w->from_cache);
    assert_packed(w);
    assert_int_equal(pp_weights_state(w).repaired, 0);
    pp_weights_free(w);
    pp_model_close(m);
}

/* A process that is killed midway leaves a partial file that is never trusted: it is begun anew, or removed by the next
 * writer. */
static void killed_while_writing(void **state)
{
    const char *cache = fresh_cache();
    char model[2][PATH];
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    for (int i = 0; i < 2; i++)
        make_model(PP_TYPE_Q4_0, (uint32_t)i + 1, model[i]);
    for (int i = 0; i < 2; i++) {
        assert_ok(pp_model_open(model[0], &m, &err), err);
        pid_t child = fork();
        assert_int_not_equal(child, -1);
        if (child == 0) {
            struct pp_weights *w = place_weights(m, cache, 0);
            write_some(w, 3);
            kill(getpid(), SIGKILL);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        pp_model_close(m);
        assert_int_equal(count_files(cache, ".part", NULL), 1);
        if (i == 0)
            use(model[1], cache, 0, true); /* of another model: it removes the orphan */
        else
            use(model[0], cache, 0, true);
        assert_int_equal(count_files(cache, ".part", NULL), 0);
        assert_int_equal(count_files(cache, ".layout", NULL), i + 1);
    }
    assert_true(use(model[0], cache, 0, false).mapped);
}

/* Only one process writes; the other keeps its weights in memory. A partial file that is being written is not
 * evicted. */
static void one_writer(void **state)
{
    const char *cache = fresh_cache();
    char model[2][PATH];
    struct pp_model *m[2];
    struct pp_error err;
    (void)state;
    for (int i = 0; i < 2; i++) {
        make_model(PP_TYPE_Q8_0, (uint32_t)i + 1, model[i]);
        assert_ok(pp_model_open(model[i], &m[i], &err), err);
    }
    struct pp_weights *a = place_weights(m[0], cache, 0), *b = place_weights(m[0], cache, 0);
    write_some(a, 2);
    assert_false(pp_layout_begin(b));
    assert_packed(b);
    struct pp_weights *c = place_weights(m[1], cache, a->store.file_bytes * 3 / 2);
    assert_false(pp_layout_begin(c));
    assert_int_equal(count_files(cache, ".part", NULL), 1);
    write_some(a, a->n);
    assert_true(pp_layout_complete(a));
    assert_packed(a);
    assert_true(pp_layout_begin(c)); /* now that one may go: a has it mapped and keeps the mapping */
    assert_int_equal(count_files(cache, ".layout", NULL), 0);
    assert_packed(a);
    pp_weights_free(a);
    pp_weights_free(b);
    pp_weights_free(c);
    for (int i = 0; i < 2; i++)
        pp_model_close(m[i]);
}

/* --- at the same time --------------------------------------------------------------------------------------------- */

struct user {
    pthread_t thread;
    const struct pp_model *model;
    const char *cache;
    struct logits logits;
};

static void *make_and_use(void *arg)
{
    struct user *u = arg;
    struct pp_engine *e = engine_with(u->model, u->cache, 0, 2);
    u->logits = step_all(e);
    pp_engine_settle(e, NULL, NULL);
    pp_engine_free(e);
    return NULL;
}

static void several_engines_at_once(void **state)
{
    enum { USERS = 3, ROUNDS = 3 };
    char model[PATH];
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    make_model(PP_TYPE_Q4_K, 1, model);
    struct logits plain = use(model, NULL, 0, false).logits;
    assert_ok(pp_model_open(model, &m, &err), err);
    for (int round = 0; round < ROUNDS; round++) {
        const char *cache = fresh_cache();
        struct user users[USERS];
        for (int i = 0; i < USERS; i++) {
            users[i] = (struct user){.model = m, .cache = cache};
            assert_int_equal(pthread_create(&users[i].thread, NULL, make_and_use, &users[i]), 0);
        }
        for (int i = 0; i < USERS; i++) {
            pthread_join(users[i].thread, NULL);
            assert_same(&users[i].logits, &plain);
        }
        assert_int_equal(count_files(cache, ".part", NULL), 0);
        assert_int_equal(count_files(cache, ".layout", NULL), 1);
        assert_true(use(model, cache, 0, false).mapped);
    }
    pp_model_close(m);
}

/* Stopping a pass while it packs changes nothing; nor does freeing an engine while the file is being written. */
static void stopped(void **state)
{
    const char *cache = fresh_cache();
    char model[PATH];
    struct pp_model *m;
    struct pp_seq *s;
    struct pp_error err;
    struct pp_cancel cancel = {0};
    (void)state;
    make_model(PP_TYPE_Q8_0, 1, model);
    struct logits plain = use(model, NULL, 0, false).logits;
    assert_ok(pp_model_open(model, &m, &err), err);
    struct pp_engine *e = engine_with(m, NULL, 0, 2);
    assert_ok(pp_seq_new(e, &s, &err), err);
    const struct pp_row row = {.seq = s, .token = 3, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    pp_cancel_request(&cancel);
    assert_int_equal(pp_step(e, &row, 1, &cancel, &err), PP_ERR_CANCELLED);
    assert_int_equal(pp_engine_settle(e, &cancel, &err), PP_ERR_CANCELLED);
    assert_int_equal(pp_seq_len(s), 0);
    pp_seq_free(s);
    struct logits l = step_all(e);
    assert_same(&l, &plain);
    pp_engine_free(e);
    for (int i = 0; i < 10; i++)
        pp_engine_free(engine_with(m, cache, 0, 2));
    pp_model_close(m);
    struct found f = use(model, cache, 0, true);
    assert_same(&f.logits, &plain);
    assert_true(use(model, cache, 0, false).mapped);
}

/* --- work space --------------------------------------------------------------------------------------------------- */

/* Besides weights and pages a batch of 512 rows needs the widest slot once (not once for each half of SwiGLU), and
 * logits for a few rows. */
static void work_space_is_small(void **state)
{
    const struct tiny_shape shape = {.n_vocab = 4096, .n_embd = 256, .n_layer = 2, .n_head = 4, .n_head_kv = 2,
                                     .head_dim = 64, .n_ff = 8192, .n_ctx = 1024, .type = PP_TYPE_Q8_0, .seed = 1};
    const struct pp_engine_options opt = {.n_threads = 2, .kv_memory = 4u << 20, .n_ctx = 512};
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_error err;
    (void)state;
    assert_ok(pp_model_open(tiny_model(&shape), &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    struct pp_weights_state w = pp_weights_state(pp_cpu_weights(e->cpu));
    uint64_t work = pp_engine_stats(e)->engine_bytes - w.anonymous - w.book_keeping;
    const uint64_t rows = 512, widest = rows * 8192 * sizeof(float), narrow = rows * 256 * sizeof(float);
    if (work > widest + widest / 8 + 3 * narrow + (6u << 20))
        fail_msg("%llu bytes of work space", (unsigned long long)work);
    pp_engine_free(e);
    pp_model_close(m);
}

/* --- the form itself ---------------------------------------------------------------------------------------------- */

/* Cache files hold packed weights: a change of the packing must raise PP_LAYOUT_VERSION, or old files would be used as
 * if they had the new form. These are the checksums of version 3. */
static void form_belongs_to_version(void **state)
{
    static const struct {
        uint32_t type;
        uint64_t hash;
    } forms[] = {
        {PP_TYPE_Q8_0, 0xa747bf6b154f53a1},
        {PP_TYPE_Q4_0, 0x6f693c7b405a384b},
        {PP_TYPE_Q4_K, 0x1b3667a94e03c700},
        {PP_TYPE_Q6_K, 0x3b4a7ebec60d687c},
        {PP_TYPE_Q4_1, 0xb11ae8a34cb97646},
        {PP_TYPE_Q5_0, 0x36a7c5fcfd54efdf},
        {PP_TYPE_Q5_1, 0x94cc841f401e3484},
        {PP_TYPE_Q2_K, 0x8ce953fa778f8e61},
        {PP_TYPE_Q3_K, 0xb2c5a90820fdf278},
        {PP_TYPE_Q5_K, 0x48c06f88b5408e82},
        {PP_TYPE_IQ4_NL, 0x6f693c7b405a384b},
        {PP_TYPE_IQ4_XS, 0xbb5959d6a5a5525e},
        {PP_TYPE_MXFP4, 0xe8a2119421a89960},
        {PP_TYPE_TQ1_0, 0xe2df28196f412a06},
        {PP_TYPE_TQ2_0, 0xf92a0a3f94400726},
        {PP_TYPE_IQ2_XXS, 0xc8062d31bd950cd2},
        {PP_TYPE_IQ2_XS, 0xad45f5331c9d3885},
        {PP_TYPE_IQ2_S, 0xdadc2a3bf9bf338e},
        {PP_TYPE_IQ3_XXS, 0x0018327e72e373b1},
        {PP_TYPE_IQ3_S, 0x9b5c60aa8ebe980f},
        {PP_TYPE_IQ1_S, 0x4dc513391c8527f5},
        {PP_TYPE_IQ1_M, 0x0546a25554a73379},
    };
    enum { ROWS = 35, COLS = 512 };
    (void)state;
    assert_int_equal(PP_LAYOUT_VERSION, 3);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        size_t bytes = pp_type_row_bytes(forms[i].type, COLS) * ROWS, packed = pp_pack_bytes(forms[i].type, ROWS, COLS);
        uint8_t *rows = pp_malloc(bytes), *to = pp_aligned(64, packed);
        uint32_t x = 1;
        assert_true(rows && to);
        for (size_t k = 0; k < bytes; k++) {
            x = x * 1664525 + 1013904223;
            rows[k] = (uint8_t)(x >> 24);
        }
        pp_pack_rows(forms[i].type, rows, ROWS, COLS, 0, ROWS, to);
        uint64_t hash = pp_hash64(to, packed);
        if (hash != forms[i].hash)
            fail_msg("the packed form of %s changed (its checksum is now 0x%016llx): raise PP_LAYOUT_VERSION",
                     pp_type_info(forms[i].type)->name, (unsigned long long)hash);
        pp_free(rows);
        pp_free(to);
    }
}

/* Packing gives the same bytes whatever was in memory, including the padding of scales for an odd number of blocks, and
 * of missing rows in the last group. */
static void packing_writes_every_byte(void **state)
{
    static const struct {
        uint32_t type;
        int64_t n_cols;
    } cases[] = {{PP_TYPE_Q8_0, 96}, {PP_TYPE_Q8_0, 64}, {PP_TYPE_Q4_0, 96}, {PP_TYPE_Q4_0, 64},
                 {PP_TYPE_Q4_K, 512}, {PP_TYPE_Q6_K, 512}};
    static const int64_t row_counts[] = {1, 15, 16, 17};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t k = 0; k < sizeof row_counts / sizeof row_counts[0]; k++) {
            int64_t n_rows = row_counts[k], n_cols = cases[i].n_cols;
            size_t bytes = pp_type_row_bytes(cases[i].type, n_cols) * (size_t)n_rows;
            size_t packed = pp_pack_bytes(cases[i].type, n_rows, n_cols);
            uint8_t *rows = pp_malloc(bytes), *over_zeros = pp_calloc(1, packed), *over_ones = pp_malloc(packed);
            assert_true(rows && over_zeros && over_ones);
            for (size_t b = 0; b < bytes; b++)
                rows[b] = (uint8_t)(b * 37 + 5);
            memset(over_ones, 0xff, packed);
            pp_pack_rows(cases[i].type, rows, n_rows, n_cols, 0, n_rows, over_zeros);
            pp_pack_rows(cases[i].type, rows, n_rows, n_cols, 0, n_rows, over_ones);
            assert_memory_equal(over_zeros, over_ones, packed);
            pp_free(rows);
            pp_free(over_zeros);
            pp_free(over_ones);
        }
}

/* The number of bytes that the process has in large pages, of files with this in their names. */
static size_t in_large_pages(const char *name)
{
    char line[1024];
    bool ours = false;
    size_t all = 0, kb;
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strchr("0123456789abcdef", line[0]) && strchr(line, '-'))
            ours = strstr(line, name) != NULL;
        else if (ours && sscanf(line, "FilePmdMapped: %zu", &kb) == 1)
            all += kb << 10;
    }
    if (f)
        fclose(f);
    return all;
}

/* Whether this kernel and file system use large pages for a file that is written in pieces of their size. */
static bool files_have_large_pages(void)
{
    enum { N = 4 };
    char path[PATH];
    snprintf(path, sizeof path, "%s/large-pages-probe", test_tmpdir());
    uint8_t *piece = pp_calloc(1, PP_LARGE_PAGE);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0 && piece);
    for (int i = 0; i < N; i++)
        assert_int_equal(write(fd, piece, PP_LARGE_PAGE), PP_LARGE_PAGE);
    pp_free(piece);
    void *room = mmap(NULL, (N + 1) * (size_t)PP_LARGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(room != MAP_FAILED);
    const uint8_t *at = (uint8_t *)room + (PP_LARGE_PAGE - (uintptr_t)room % PP_LARGE_PAGE);
    assert_true(pp_map_over((void *)(uintptr_t)at, N * (size_t)PP_LARGE_PAGE, fd, 0));
    unsigned sum = 0;
    for (size_t i = 0; i < N * (size_t)PP_LARGE_PAGE; i += 4096)
        sum += at[i];
    assert_int_equal(sum, 0);
    bool large = in_large_pages("large-pages-probe") == N * (size_t)PP_LARGE_PAGE;
    munmap(room, (N + 1) * (size_t)PP_LARGE_PAGE);
    close(fd);
    unlink(path);
    return large;
}

/* The weights that kernels read are in large pages, both while the file is written and when it is mapped later. */
static void large_pages(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    char cache[PATH], model[PATH];
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    if (!files_have_large_pages()) {
        print_message("this system keeps no files in large pages: there is nothing to look at\n");
        return;
    }
    shape.n_ff = 32768;
    shape.n_layer = 1;
    snprintf(cache, sizeof cache, "%s", fresh_cache());
    snprintf(model, sizeof model, "%s", tiny_model(&shape));
    assert_ok(pp_model_open(model, &m, &err), err);
    for (int found = 0; found < 2; found++) {
        struct pp_weights *w = place_weights(m, cache, 0);
        assert_true(w->from_cache == found && w->region_bytes > 8 * (size_t)PP_LARGE_PAGE);
        if (!found) {
            write_some(w, w->n);
            assert_true(pp_layout_complete(w));
        }
        assert_packed(w);
        /* Memory may be too fragmented for all of it, but not for half of it. */
        assert_true(in_large_pages("/layouts/") >= w->region_bytes / 2);
        pp_weights_free(w);
    }
    pp_model_close(m);
}

static bool memory_has_large_pages(void)
{
    char modes[64] = "";
    int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY);
    bool known = fd >= 0 && read(fd, modes, sizeof modes - 1) > 0;
    if (fd >= 0)
        close(fd);
    return known && !strstr(modes, "[never]");
}

/* Writes the file at `path` again, as a program does that copies in small pieces. */
static void copy_in_small_pieces(const char *path)
{
    char copy[PATH + 8];
    uint8_t piece[4096];
    ssize_t n;
    snprintf(copy, sizeof copy, "%s.copy", path);
    int from = open(path, O_RDONLY), to = open(copy, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(from >= 0 && to >= 0);
    while ((n = read(from, piece, sizeof piece)) > 0)
        assert_int_equal(write(to, piece, (size_t)n), n);
    close(from);
    close(to);
    assert_int_equal(rename(copy, path), 0);
}

struct reader {
    const struct pp_weights *w;
    atomic_bool stop;
    uint64_t hash;      /* of the whole region, as it must be */
    int n_read, n_wrong;
};

static void *read_again_and_again(void *arg)
{
    struct reader *r = arg;
    do {
        r->n_read++;
        r->n_wrong += pp_hash64(r->w->region, r->w->region_bytes) != r->hash;
    } while (!atomic_load(&r->stop));
    return NULL;
}

/* A file in small pages is copied to large ones while another process reads it, unless memory is short. */
static void small_pages_become_large(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    char cache[PATH], model[PATH], file[PATH];
    struct pp_model *m;
    struct pp_error err;
    pthread_t thread;
    (void)state;
    shape.n_ff = 32768;
    shape.n_layer = 2;
    snprintf(cache, sizeof cache, "%s", fresh_cache());
    snprintf(model, sizeof model, "%s", tiny_model(&shape));
    assert_ok(pp_model_open(model, &m, &err), err);
    struct pp_weights *w = place_weights(m, cache, 0);
    write_some(w, w->n);
    assert_true(pp_layout_complete(w));
    struct reader r = {.w = NULL, .hash = pp_hash64(w->region, w->region_bytes)};
    pp_weights_free(w);
    assert_int_equal(count_files(cache, ".layout", file), 1);
    copy_in_small_pieces(file);
    for (int plenty = 0; plenty < 2; plenty++) {
        w = place_weights(m, cache, 0);
        assert_true(w->from_cache);
        w->least_enlarged = 1;
        pp_memory_pretend(w->region_bytes * 2 - !plenty);
        r.w = w;
        atomic_store(&r.stop, false);
        assert_int_equal(pthread_create(&thread, NULL, read_again_and_again, &r), 0);
        pp_weights_keep(w);
        assert_true(pp_weights_wait_saved(w, NULL));
        atomic_store(&r.stop, true);
        pthread_join(thread, NULL);
        pp_memory_pretend(0);
        const struct pp_weights_state s = pp_weights_state(w);
        if (plenty && memory_has_large_pages())
            assert_true(s.anonymous + 2 * (uint64_t)PP_LARGE_PAGE > w->region_bytes);
        else
            assert_int_equal(s.anonymous, 0);
        assert_packed(w);
        pp_weights_free(w);
    }
    assert_true(r.n_read >= 2 && r.n_wrong == 0);
    pp_model_close(m);
}

/* The same for a partial file that is not continued because there is no room for the rest: its pages are in memory
 * already. */
static void part_in_small_pages(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    char cache[PATH], model[PATH], file[PATH];
    const uint64_t no_room = 1;
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    shape.n_ff = 32768;
    shape.n_layer = 2;
    snprintf(cache, sizeof cache, "%s", fresh_cache());
    snprintf(model, sizeof model, "%s", tiny_model(&shape));
    assert_ok(pp_model_open(model, &m, &err), err);
    struct pp_weights *w = place_weights(m, cache, 0);
    write_some(w, w->n / 2);
    pp_weights_free(w);
    assert_int_equal(count_files(cache, ".part", file), 1);
    copy_in_small_pieces(file);
    w = place_weights(m, cache, no_room);
    const uint64_t before = pp_weights_state(w).mapped;
    assert_true(before > 2 * (uint64_t)PP_LARGE_PAGE && before < w->region_bytes);
    w->least_enlarged = 1;
    pp_memory_pretend(w->region_bytes * 2);
    pp_weights_keep(w);
    assert_true(pp_weights_wait_saved(w, NULL));
    pp_memory_pretend(0);
    const struct pp_weights_state s = pp_weights_state(w);
    assert_true(s.mapped <= before);
    assert_int_equal(s.mapped + s.anonymous, w->region_bytes);
    if (memory_has_large_pages())
        assert_true(s.mapped <= 2 * (uint64_t)PP_LARGE_PAGE);
    assert_packed(w);
    pp_weights_free(w);
    pp_model_close(m);
}

TEST_GROUP(layout)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made_once_and_mapped),
        cmocka_unit_test(memory_becomes_the_file),
        cmocka_unit_test(float_models_need_no_file),
        cmocka_unit_test(named_by_content),
        cmocka_unit_test(replaced_model),
        cmocka_unit_test(refused_files),
        cmocka_unit_test(damaged_weights),
        cmocka_unit_test(file_that_shrinks),
        cmocka_unit_test(least_recently_used_goes),
        cmocka_unit_test(nowhere_to_write),
        cmocka_unit_test(disk_is_full),
        cmocka_unit_test(part_is_continued),
        cmocka_unit_test(killed_while_writing),
        cmocka_unit_test(one_writer),
        cmocka_unit_test(several_engines_at_once),
        cmocka_unit_test(stopped),
        cmocka_unit_test(work_space_is_small),
        cmocka_unit_test(form_belongs_to_version),
        cmocka_unit_test(packing_writes_every_byte),
        cmocka_unit_test(large_pages),
        cmocka_unit_test(small_pages_become_large),
        cmocka_unit_test(part_in_small_pages),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
