/* cmd_bench_micro.c - matrix products alone, for each weight type, set of kernels and number of rows; and attention,
 * in passes of a model that consists of little else. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "src/cmd_bench.h"

enum { MATRIX = 4096, SAMPLE_NS = 8000000, MAX_TYPES = 8, MAX_SETS = 8 };

static enum pp_code add_result(struct bench *b, const char *what, int rows, int threads, const char *name,
                               struct pp_error *err)
{
    struct bench_result *r = bench_add(&b->report, b->repetitions);
    if (!r)
        return pp_fail_nomem(err, "the results");
    snprintf(r->name, sizeof r->name, "%s", name);
    r->what = what;
    r->unit = "GMAC/s";
    r->more_is_better = true;
    r->rows = rows;
    r->threads = threads;
    return PP_OK;
}

/* --- products --------------------------------------------------------------------------------------------------- */

struct products {
    struct bench *b;
    const char *types[MAX_TYPES];
    struct pp_micro *matrices[MAX_TYPES];
    int n_types;
    const char *sets[MAX_SETS];
    int n_sets;
    int64_t rows[BENCH_MAX_LIST];
    int64_t n_rows;
    size_t first;           /* index of the first result; ordered by type, then set, then rows */
};

/* The scalar kernels are the reference and slow: they are measured only if they are named, or nothing else runs. */
static void choose_products(struct products *p)
{
    static const char *const types[] = {"q4_0", "q4_k", "q6_k", "q8_0", "f16", "bf16", "f32"};
    static const int64_t rows[] = {1, 2, 4, 8, 16, 64, 512};
    const struct pp_options *o = p->b->o;
    bool one_type = pp_options_given(o, "type");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!one_type || pp_casecmp(types[i], o->bench.type) == 0)
            p->types[p->n_types++] = types[i];
    if (one_type && p->n_types == 0) /* there are many other types: by name only */
        p->types[p->n_types++] = o->bench.type;
    if (o->kernels) {
        p->sets[p->n_sets++] = o->kernels;
    } else {
        for (size_t i = 0; pp_micro_kernels(i) && p->n_sets < MAX_SETS; i++)
            if (i > 0 || !pp_micro_kernels(1))
                p->sets[p->n_sets++] = pp_micro_kernels(i);
    }
    if (o->bench.rows) {
        p->n_rows = p->b->n_rows;
        memcpy(p->rows, p->b->rows, sizeof p->rows);
    } else {
        p->n_rows = sizeof rows / sizeof *rows;
        memcpy(p->rows, rows, sizeof rows);
    }
}

static enum pp_code list_products(struct products *p, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    p->first = p->b->report.n;
    for (int t = 0; t < p->n_types && !code; t++)
        for (int s = 0; s < p->n_sets && !code; s++)
            for (int64_t r = 0; r < p->n_rows && !code; r++) {
                char name[96];
                snprintf(name, sizeof name, "matmul %s %s, %lld row%s", p->types[t], p->sets[s], (long long)p->rows[r],
                         p->rows[r] == 1 ? "" : "s");
                code = add_result(p->b, "matmul", (int)p->rows[r], 1, name, err);
            }
    return code;
}

/* round -1 warms up. */
static enum pp_code product_round(struct products *p, int round, struct pp_error *err)
{
    size_t at = p->first;
    for (int t = 0; t < p->n_types; t++)
        for (int s = 0; s < p->n_sets; s++)
            for (int64_t r = 0; r < p->n_rows; r++, at++) {
                struct bench_result *result = &p->b->report.results[at];
                struct pp_micro_time time;
                if (pp_cancelled(p->b->cancel))
                    return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
                enum pp_code code =
                    pp_micro_run(p->matrices[t], p->sets[s], (int)p->rows[r], SAMPLE_NS, &time, err);
                if (code)
                    return code;
                double gmacs = (double)time.macs / (double)time.ns;
                if (round < 0)
                    continue;
                result->samples[result->n++] = gmacs;
                result->read_bps += (double)time.bytes * 1e9 / (double)time.ns / p->b->repetitions;
            }
    return PP_OK;
}

static enum pp_code measure_products(struct bench *b, struct pp_error *err)
{
    struct products p = {.b = b};
    struct pp_read_test *roof = NULL;
    choose_products(&p);
    if (p.n_types == 0)
        return pp_fail(err, PP_ERR_USAGE,
                       "there are no products of \"%s\" to measure: --type takes f32, f16, bf16, q8_0, q4_0, q4_k or "
                       "q6_k here",
                       b->o->bench.type);
    for (int64_t r = 0; r < p.n_rows; r++)
        if (p.rows[r] > PP_MICRO_MAX_ROWS)
            return pp_fail(err, PP_ERR_USAGE, "products are measured with at most %d rows", PP_MICRO_MAX_ROWS);
    enum pp_code code = list_products(&p, err);
    for (int t = 0; t < p.n_types && !code; t++)
        code = pp_micro_new(p.types[t], MATRIX, MATRIX, &p.matrices[t], err);
    if (!code)
        code = pp_read_test_new(1, pp_read_test_bytes(), &roof, err);
    double roof_bps = 0;
    for (int round = -1; round < b->repetitions && !code; round++) {
        bench_show(b, "measuring products", (uint64_t)(round + 1), (uint64_t)b->repetitions + 1);
        roof_bps = pp_read_test_run(roof);
        code = product_round(&p, round, err);
    }
    pp_cli_bar_clear(&b->bar);
    b->report.micro_roof_bps = roof_bps;
    for (size_t i = p.first; i < b->report.n; i++)
        b->report.results[i].roof_bps = roof_bps;
    for (int t = 0; t < p.n_types; t++)
        pp_micro_free(p.matrices[t]);
    pp_read_test_free(roof);
    return code;
}

/* --- attention -------------------------------------------------------------------------------------------------- */

struct attention {
    struct bench *b;
    const char *shape;
    struct pp_model *model;
    struct pp_engine *engine;
    enum pp_kv_type kv_type;
    struct pp_seq *seq;     /* at the greatest depth */
    struct pp_row *rows;    /* [PP_USUAL_ROWS] */
};

static int32_t token_at(int64_t i)
{
    return (int32_t)(i * 7 % 31);
}

/* A pass of some rows after `depth` tokens, of which only the time of attention counts. */
static enum pp_code attention_pass(struct attention *a, int64_t depth, int rows, struct pp_profile_line *line,
                                   int *n_threads, struct pp_error *err)
{
    struct pp_seq *s;
    struct pp_profile p;
    enum pp_code code = pp_seq_fork(a->seq, depth, &s, err);
    if (code)
        return code;
    for (int i = 0; i < rows; i++)
        a->rows[i] =
            (struct pp_row){.seq = s, .token = token_at(depth + i), .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_NONE};
    if (!(code = pp_engine_profile(a->engine, true, err)) &&
        !(code = pp_step(a->engine, a->rows, rows, a->b->cancel, err))) {
        pp_engine_profile_get(a->engine, &p);
        *line = p.lines[PP_PROFILE_ATTENTION];
        *n_threads = p.n_threads;
        code = pp_engine_profile(a->engine, false, err);
    }
    pp_seq_free(s);
    return code;
}

static enum pp_code open_attention(struct attention *a, const char *path, int64_t deepest, struct pp_error *err)
{
    enum { BATCH = PP_USUAL_ROWS };
    struct pp_engine_options opt = pp_cli_engine_options(a->b->o);
    opt.kv_type = a->kv_type;
    opt.n_ctx = deepest + BATCH;
    opt.cancel = a->b->cancel;
    opt.cache_dir = NULL;
    enum pp_code code = pp_model_open(path, &a->model, err);
    if (!code)
        code = pp_engine_new(a->model, &opt, NULL, NULL, &a->engine, err);
    if (!code)
        code = pp_seq_new(a->engine, &a->seq, err);
    a->rows = pp_calloc(BATCH, sizeof *a->rows);
    if (!code && !a->rows)
        code = pp_fail_nomem(err, "a batch");
    for (int64_t at = 0; at < deepest && !code; at += BATCH) {
        int n = (int)(deepest - at < BATCH ? deepest - at : BATCH);
        for (int i = 0; i < n; i++)
            a->rows[i] = (struct pp_row){
                .seq = a->seq, .token = token_at(at + i), .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_NONE};
        code = pp_step(a->engine, a->rows, n, a->b->cancel, err);
    }
    return code;
}

static void close_attention(struct attention *a)
{
    pp_seq_free(a->seq);
    pp_engine_free(a->engine);
    pp_model_close(a->model);
    pp_free(a->rows);
}

/* All depths and numbers of rows for one KV type: their results are consecutive, beginning at `first`. */
static enum pp_code attention_rounds(struct attention *a, const int64_t *depths, int n_depths, const int *rows,
                                     int n_rows, struct pp_error *err)
{
    struct bench *b = a->b;
    size_t first = b->report.n;
    enum pp_code code = PP_OK;
    for (int i = 0; i < n_depths * n_rows && !code; i++) {
        char name[96];
        snprintf(name, sizeof name, "attention %s KV %s, %d row%s @ %lld", a->shape, pp_kv_type_name(a->kv_type),
                 rows[i % n_rows], rows[i % n_rows] == 1 ? "" : "s", (long long)depths[i / n_rows]);
        code = add_result(b, "attention", rows[i % n_rows], 0, name, err);
        if (!code) {
            b->report.results[first + (size_t)i].depth = depths[i / n_rows];
            b->report.results[first + (size_t)i].kv_type = pp_kv_type_name(a->kv_type);
        }
    }
    for (int round = -1; round < b->repetitions; round++)
        for (int i = 0; i < n_depths * n_rows && !code; i++) {
            struct pp_profile_line line = {0};
            int n_threads = 1;
            code = attention_pass(a, depths[i / n_rows], rows[i % n_rows], &line, &n_threads, err);
            if (code || round < 0)
                continue;
            struct bench_result *r = &b->report.results[first + (size_t)i];
            double ns = (double)(line.ns ? line.ns : 1) / n_threads;
            r->threads = n_threads;
            r->samples[r->n++] = (double)line.macs / ns;
            r->read_bps += (double)line.bytes * 1e9 / ns / b->repetitions;
        }
    return code;
}

/* Uses a model of one layer of a shape, with the smallest possible FFN width and vocabulary. */
static enum pp_code measure_attention(struct bench *b, const char *shape, struct pp_error *err)
{
    static const int64_t usual_depths[] = {512, 4096};
    static const int rows[] = {1, 8, 128};
    const int64_t *depths = b->n_depths ? b->depths : usual_depths;
    int n_depths = b->n_depths ? (int)b->n_depths : 2;
    int64_t deepest = 1;
    struct pp_random_model spec = {.shape = shape, .type = "q8_0", .n_layers = 1, .n_vocab = 32, .n_ff = 32, .seed = 1};
    char path[1024];
    for (int i = 0; i < n_depths; i++)
        deepest = depths[i] > deepest ? depths[i] : deepest;
    bench_temporary(path, sizeof path, ".gguf");
    enum pp_code code = pp_random_model_write(&spec, path, NULL, NULL, b->cancel, err);
    for (int64_t k = 0; k < b->n_kv_types && !code; k++) {
        struct attention a = {.b = b, .shape = shape, .kv_type = (enum pp_kv_type)b->kv_types[k]};
        bench_show(b, "measuring attention", (uint64_t)k, (uint64_t)b->n_kv_types);
        code = open_attention(&a, path, deepest, err);
        if (!code)
            code = attention_rounds(&a, depths, n_depths, rows, sizeof rows / sizeof *rows, err);
        close_attention(&a);
    }
    pp_cli_bar_clear(&b->bar);
    unlink(path);
    return code;
}

enum pp_code bench_micro(struct bench *b, struct pp_error *err)
{
    enum pp_code code = measure_products(b, err);
    if (!code && b->o->bench.shape)
        return measure_attention(b, b->o->bench.shape, err);
    if (!code)
        code = measure_attention(b, "tinyllama-1.1b", err);
    return code ? code : measure_attention(b, "llama-3.1-8b", err);
}
