/* test_imatrix.c - importance matrices: what engines collect, the files, and how quantising uses them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/imatrix.h"
#include "engine/quant.h"
#include "engine/source.h"
#include "tests/gguf_file.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { ROWS = 40 };

static struct pp_error err;

/* --- collecting --------------------------------------------------------------------------------------------------- */

struct way {
    int threads, at_once; /* at_once: rows of a step */
    const char *kernels;
    enum pp_row_output out;
};

/* Reads tokens 1, 8, 15, ... */
static struct pp_imatrix *collect(const char *path, struct way way)
{
    struct pp_imatrix *m;
    struct pp_model *model;
    struct pp_engine *e;
    struct pp_seq *s;
    assert_ok(pp_imatrix_new(&m, &err), err);
    assert_ok(pp_model_open(path, &model, &err), err);
    const struct pp_engine_options opt = {.n_threads = way.threads, .kv_type = PP_KV_F32, .n_ctx = 256,
                                          .kernels = way.kernels, .imatrix = m, .activations = PP_ACT_F32};
    assert_ok(pp_engine_new(model, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    for (int at = 0; at < ROWS; at += way.at_once) {
        struct pp_row rows[ROWS] = {0};
        for (int i = 0; i < way.at_once; i++)
            rows[i] = (struct pp_row){.seq = s, .token = 1 + 7 * (at + i), .parent = PP_PARENT_PREVIOUS,
                                      .out = way.out};
        assert_ok(pp_step(e, rows, way.at_once, NULL, &err), err);
    }
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(model);
    return m;
}

/* The inputs of q, k and v in the first layer can be computed without an engine: they are normalised rows of the
 * embedding. */
static void the_first_layer_by_hand(void **state)
{
    const struct tiny_shape shape = tiny_shape(PP_TYPE_F32);
    const char *path = tiny_model(&shape);
    double want[256] = {0};
    struct pp_source *s;
    (void)state;
    assert_ok(pp_source_open(path, &s, &err), err);
    const float *table = pp_source_tensor(s, "token_embd.weight")->data;
    const float *weight = pp_source_tensor(s, "blk.0.attn_norm.weight")->data;
    for (int r = 0; r < ROWS; r++) {
        const float *x = table + (1 + 7 * r) * 256;
        double squares = 0;
        for (int i = 0; i < 256; i++)
            squares += (double)x[i] * (double)x[i];
        const double factor = 1 / sqrt(squares / 256 + (double)pp_source_hparams(s)->norm_eps);
        for (int i = 0; i < 256; i++)
            want[i] += pow((double)x[i] * factor * (double)weight[i], 2);
    }
    struct pp_imatrix *m = collect(path, (struct way){.threads = 2, .at_once = ROWS});
    static const char *const names[] = {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"};
    for (int k = 0; k < 3; k++) {
        const struct pp_importance *e = pp_imatrix_find(m, names[k]);
        assert_non_null(e);
        assert_int_equal(e->n_values, 256);
        assert_near(e->counts[0], ROWS, 0);
        for (int i = 0; i < 256; i++)
            assert_near(e->sums[i], want[i], 1e-4 * want[i]);
    }
    pp_imatrix_free(m);
    pp_source_close(s);
}

/* bits: bit by bit, else only nearly. */
static void assert_same(const struct pp_imatrix *a, const struct pp_imatrix *b, bool bits)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        const struct pp_importance *x = &a->entries[i], *y = &b->entries[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->n_values, y->n_values);
        assert_int_equal(x->n_counts, y->n_counts);
        assert_memory_equal(x->counts, y->counts, (size_t)x->n_counts * sizeof *x->counts);
        for (int64_t k = 0; k < x->n_values; k++)
            if (bits ? memcmp(&x->sums[k], &y->sums[k], sizeof x->sums[k]) != 0
                     : !(fabsf(x->sums[k] - y->sums[k]) <= 1e-3f * fabsf(x->sums[k]) + 1e-6f))
                fail_msg("%s, column %d: %.9g and %.9g", x->name, (int)k, (double)x->sums[k], (double)y->sums[k]);
    }
}

/* Weights whose inputs are quantised, some of them in place; and mixtures of experts. */
static void the_way_does_not_matter(void **state)
{
    static const uint32_t types[] = {PP_TYPE_F32, PP_TYPE_Q4_K, PP_TYPE_Q8_0, PP_TYPE_BF16};
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct tiny_shape shape = tiny_shape(types[i % 4]);
        shape.n_expert = i < 4 ? 0 : 6;
        const char *path = tiny_model(&shape);
        struct pp_imatrix *all = collect(path, (struct way){.threads = 1, .at_once = ROWS});
        struct pp_imatrix *threads = collect(path, (struct way){.threads = 3, .at_once = ROWS});
        struct pp_imatrix *single = collect(path, (struct way){.threads = 2, .at_once = 1});
        struct pp_imatrix *few = collect(path, (struct way){.threads = 2, .at_once = 4});
        struct pp_imatrix *scalar = collect(path, (struct way){.threads = 2, .at_once = ROWS, .kernels = "scalar"});
        assert_int_equal(pp_imatrix_info(all).n_tensors, 2 * 7 + (i < 4 ? 0 : 2));
        assert_same(all, threads, true);
        assert_same(all, scalar, true);
        assert_same(all, single, false);
        assert_same(all, few, false);
        pp_imatrix_free(all);
        pp_imatrix_free(threads);
        pp_imatrix_free(single);
        pp_imatrix_free(few);
        pp_imatrix_free(scalar);
    }
}

static void experts_are_counted_apart(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    shape.n_expert = 6;
    struct pp_imatrix *m = collect(tiny_model(&shape), (struct way){.threads = 2, .at_once = ROWS});
    const struct pp_importance *router = pp_imatrix_find(m, "blk.0.ffn_gate_inp.weight");
    const struct pp_importance *up = pp_imatrix_find(m, "blk.0.ffn_up_exps.weight");
    const struct pp_importance *gate = pp_imatrix_find(m, "blk.0.ffn_gate_exps.weight");
    const struct pp_importance *down = pp_imatrix_find(m, "blk.0.ffn_down_exps.weight");
    double places = 0;
    (void)state;
    assert_true(router && up && gate && down);
    assert_int_equal(up->n_counts, 6);
    assert_int_equal(up->n_values, 6 * 256);
    assert_int_equal(down->n_values, 6 * 512);
    assert_memory_equal(up->sums, gate->sums, 6 * 256 * sizeof(float));
    assert_memory_equal(up->counts, down->counts, 6 * sizeof(double));
    for (int e = 0; e < 6; e++)
        places += up->counts[e];
    assert_near(places, 2 * ROWS, 0);
    for (int i = 0; i < 256; i++) { /* both of a row's experts get the input that the router saw */
        double sum = 0;
        for (int e = 0; e < 6; e++)
            sum += (double)up->sums[e * 256 + i];
        assert_near(sum, 2 * (double)router->sums[i], 1e-3 * sum);
    }
    pp_imatrix_free(m);
}

static void the_output_counts_where_there_is_one(void **state)
{
    const struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    struct pp_imatrix *m = collect(tiny_model(&shape), (struct way){.threads = 2, .at_once = 8, .out = PP_OUT_LOGITS});
    struct pp_importance *e = pp_imatrix_find(m, "output.weight");
    (void)state;
    e = e ? e : pp_imatrix_find(m, "token_embd.weight");
    assert_non_null(e);
    assert_near(e->counts[0], ROWS, 0);
    pp_imatrix_free(m);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static void files_come_back(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    shape.n_expert = 6;
    struct pp_imatrix *m = collect(tiny_model(&shape), (struct way){.threads = 2, .at_once = ROWS}), *back;
    const char *path = test_path("come-back.gguf");
    struct pp_gguf *g;
    int64_t v;
    struct pp_str s;
    (void)state;
    assert_ok(pp_imatrix_count(m, "a text", 3, 64, &err), err);
    assert_ok(pp_imatrix_count(m, "a text", 4, 64, &err), err);
    assert_ok(pp_imatrix_write(m, path, &err), err);
    assert_ok(pp_imatrix_read(path, &back, &err), err);
    assert_null(pp_imatrix_find(back, "output.weight")); /* no row went through it */
    assert_int_equal(back->chunks, 7);
    assert_int_equal(back->chunk_size, 64);
    assert_int_equal(back->n_datasets, 1);
    assert_string_equal(pp_imatrix_dataset(back, 0), "a text");
    assert_int_equal(pp_imatrix_info(back).n_tensors, pp_imatrix_info(m).n_tensors);
    for (size_t i = 0; i < back->n; i++) {
        const struct pp_importance *x = &back->entries[i], *y = pp_imatrix_find(m, x->name);
        assert_memory_equal(x->sums, y->sums, (size_t)y->n_values * sizeof *y->sums);
        assert_memory_equal(x->counts, y->counts, (size_t)y->n_counts * sizeof *y->counts);
    }
    assert_ok(pp_gguf_open(path, &g, &err), err); /* where other programs look for it */
    assert_true(pp_gguf_string_is(g, "general.type", "imatrix"));
    assert_true(pp_gguf_int(g, "imatrix.chunk_count", &v) && v == 7);
    assert_true(pp_gguf_int(g, "imatrix.chunk_size", &v) && v == 64);
    assert_true(pp_gguf_array_string(g, "imatrix.datasets", 0, &s) && s.len == 6);
    const struct pp_tensor *sums = pp_gguf_tensor(g, "blk.1.ffn_down_exps.weight.in_sum2");
    const struct pp_tensor *counts = pp_gguf_tensor(g, "blk.1.ffn_down_exps.weight.counts");
    assert_true(sums && counts && sums->ne[0] == 512 && sums->ne[1] == 6 && counts->ne[0] == 1 && counts->ne[1] == 6);
    pp_gguf_close(g);
    pp_imatrix_free(back);
    pp_imatrix_free(m);
}

static void put_i32(struct pp_buf *b, int32_t v) { pp_buf_add(b, &v, sizeof v); }
static void put_f32(struct pp_buf *b, float v) { pp_buf_add(b, &v, sizeof v); }

static void put_old_entry(struct pp_buf *b, const char *name, int32_t calls, int32_t n, float first)
{
    put_i32(b, (int32_t)strlen(name));
    pp_buf_str(b, name);
    put_i32(b, calls);
    put_i32(b, n);
    for (int32_t i = 0; i < n; i++)
        put_f32(b, first + (float)i);
}

static struct pp_buf old_file(void)
{
    struct pp_buf b = {0};
    put_i32(&b, 2);
    put_old_entry(&b, "blk.0.ffn_up_exps.weight", 5, 6, 1);
    put_old_entry(&b, "blk.0.attn_q.weight", 5, 3, 0.5f);
    put_i32(&b, 5);
    put_i32(&b, 8);
    pp_buf_str(&b, "wiki.raw");
    return b;
}

static void the_older_form_is_read(void **state)
{
    struct pp_buf b = old_file();
    struct pp_imatrix *m;
    const float *columns;
    (void)state;
    assert_ok(pp_imatrix_read_memory(b.data, b.len, "old", &m, &err), err);
    const struct pp_importance *e = pp_imatrix_find(m, "blk.0.attn_q.weight");
    assert_true(e && e->n_values == 3);
    assert_near(e->counts[0], 5 * 512, 0);
    assert_near(e->sums[2], 2.5 * 512, 0);
    e = pp_imatrix_find(m, "blk.0.ffn_up_exps.weight");
    assert_ok(pp_importance_of(e, 2, 3, 1, &columns, &err), err); /* three matrices, counted together */
    assert_ptr_equal(columns, e->sums + 2);
    assert_int_equal(pp_importance_of(e, 2, 4, 1, &columns, &err), PP_ERR_MISMATCH);
    assert_int_equal(m->chunks, 5);
    assert_string_equal(pp_imatrix_dataset(m, 0), "wiki.raw");
    pp_imatrix_free(m);
    for (size_t cut = 0; cut < b.len; cut++) /* only what follows the entries may be missing, as a whole */
        if (pp_imatrix_read_memory(b.data, cut, "old", &m, &err) == PP_OK) {
            assert_true(cut == b.len - 16 || cut == b.len - 12);
            pp_imatrix_free(m);
        } else {
            assert_int_equal(err.code, PP_ERR_FORMAT);
        }
    pp_buf_free(&b);
}

static void several_become_one(void **state)
{
    struct pp_buf b = old_file();
    struct pp_imatrix *old, *m;
    struct pp_importance *e;
    (void)state;
    assert_ok(pp_imatrix_read_memory(b.data, b.len, "old", &old, &err), err);
    assert_ok(pp_imatrix_new(&m, &err), err);
    assert_ok(pp_imatrix_entry(m, "blk.0.ffn_up_exps.weight", 2, 3, &e, &err), err);
    for (int i = 0; i < 6; i++)
        e->sums[i] = 100;
    e->counts[1] = 7;
    assert_ok(pp_imatrix_count(m, "mine", 2, 128, &err), err);
    assert_ok(pp_imatrix_merge(m, old, &err), err);
    assert_ok(pp_imatrix_merge(m, old, &err), err);
    e = pp_imatrix_find(m, "blk.0.ffn_up_exps.weight");
    assert_int_equal(e->n_counts, 3);
    assert_near(e->counts[0], 2 * 5 * 512, 0);
    assert_near(e->counts[1], 2 * 5 * 512 + 7, 0);
    assert_near(e->sums[5], 100 + 2 * 6 * 512, 0);
    assert_near(pp_imatrix_find(m, "blk.0.attn_q.weight")->sums[0], 512, 0);
    assert_int_equal(m->chunks, 12);
    assert_int_equal(m->n_datasets, 2);
    pp_imatrix_free(old);
    assert_ok(pp_imatrix_new(&old, &err), err); /* of another model */
    assert_ok(pp_imatrix_entry(old, "blk.0.attn_q.weight", 4, 1, &e, &err), err);
    assert_int_equal(pp_imatrix_merge(m, old, &err), PP_ERR_MISMATCH);
    assert_non_null(strstr(err.text, "blk.0.attn_q.weight"));
    pp_imatrix_free(old);
    pp_imatrix_free(m);
    pp_buf_free(&b);
}

/* A GGUF file with one tensor; kind: what is wrong with it. */
static const char *gguf_file(const char *general_type, float sum, float count, int64_t n_counts, uint32_t type)
{
    const char *path = test_path("hostile.gguf");
    const float sums[4] = {1, sum, 2, 3}, counts[4] = {count, 1, 1, 1};
    struct pp_tensor tensors[] = {float_tensor("a.in_sum2", sums, 4, 1, 0),
                                  float_tensor("a.counts", counts, 1, n_counts, 0)};
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.type", general_type);
    tensors[0].type = type;
    tensors[0].size = type == PP_TYPE_F32 ? 16 : 8;
    gguf_file_end(w, tensors, n_counts ? 2 : 1);
    return path;
}

static void what_is_wrong_is_said(void **state)
{
    const struct { const char *type; float sum, count; int64_t n_counts; uint32_t tensor_type; const char *says; }
    cases[] = {
        {"model", 1, 1, 1, PP_TYPE_F32, "not an importance matrix"},
        {"imatrix", NAN, 1, 1, PP_TYPE_F32, "sum of squares"},
        {"imatrix", -1, 1, 1, PP_TYPE_F32, "sum of squares"},
        {"imatrix", INFINITY, 1, 1, PP_TYPE_F32, "sum of squares"},
        {"imatrix", 3e38f, 1, 1, PP_TYPE_F32, "sum of squares"},
        {"imatrix", 1, NAN, 1, PP_TYPE_F32, "a count"},
        {"imatrix", 1, -1, 1, PP_TYPE_F32, "a count"},
        {"imatrix", 1, 1, 0, PP_TYPE_F32, "no counts"},
        {"imatrix", 1, 1, 3, PP_TYPE_F32, "do not match"},
        {"imatrix", 1, 1, 1, PP_TYPE_F16, "do not match"},
    };
    struct pp_imatrix *m;
    struct pp_buf b = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path =
            gguf_file(cases[i].type, cases[i].sum, cases[i].count, cases[i].n_counts, cases[i].tensor_type);
        assert_int_equal(pp_imatrix_read(path, &m, &err), PP_ERR_FORMAT);
        assert_null(m);
        if (!strstr(err.text, cases[i].says))
            fail_msg("not \"%s\" but: %s", cases[i].says, err.text);
    }
    assert_ok(pp_imatrix_read(gguf_file("imatrix", 1, 1, 4, PP_TYPE_F32), &m, &err), err);
    pp_imatrix_free(m);
    assert_int_equal(pp_imatrix_read("/nowhere/at/all", &m, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "pippin imatrix -m")); /* the command that makes one */
    assert_int_equal(pp_imatrix_read_memory("", 0, "empty", &m, &err), PP_ERR_FORMAT);
    put_i32(&b, 2); /* two with the same name */
    put_old_entry(&b, "x", 1, 1, 1);
    put_old_entry(&b, "x", 1, 1, 1);
    assert_int_equal(pp_imatrix_read_memory(b.data, b.len, "twice", &m, &err), PP_ERR_FORMAT);
    pp_buf_clear(&b);
    put_i32(&b, 1); /* more values than possible */
    put_i32(&b, 1);
    pp_buf_str(&b, "x");
    put_i32(&b, 1);
    put_i32(&b, INT32_MAX);
    assert_int_equal(pp_imatrix_read_memory(b.data, b.len, "long", &m, &err), PP_ERR_FORMAT);
    pp_buf_clear(&b);
    put_i32(&b, INT32_MAX); /* more entries than possible */
    assert_int_equal(pp_imatrix_read_memory(b.data, b.len, "many", &m, &err), PP_ERR_FORMAT);
    pp_buf_clear(&b);
    put_i32(&b, 1);
    put_old_entry(&b, "a\nb", 1, 1, 1);
    assert_int_equal(pp_imatrix_read_memory(b.data, b.len, "name", &m, &err), PP_ERR_FORMAT);
    pp_buf_free(&b);
}

static void nothing_is_not_written(void **state)
{
    struct pp_imatrix *m;
    struct pp_importance *e;
    (void)state;
    assert_ok(pp_imatrix_new(&m, &err), err);
    assert_int_equal(pp_imatrix_write(m, test_path("none.gguf"), &err), PP_ERR_USAGE);
    assert_ok(pp_imatrix_entry(m, "a", 4, 1, &e, &err), err);
    assert_int_equal(pp_imatrix_write(m, test_path("none.gguf"), &err), PP_ERR_USAGE);
    e->counts[0] = 1;
    e->sums[1] = NAN; /* a model whose weights are damaged */
    assert_int_equal(pp_imatrix_write(m, test_path("none.gguf"), &err), PP_ERR_FORMAT);
    pp_imatrix_free(m);
}

/* --- quantising --------------------------------------------------------------------------------------------------- */

/* Squared errors of a matrix, separately for the first 8 of every 16 columns and for the others. */
static void errors_of(const char *exact, const char *quantised, const char *name, double sum[2])
{
    struct pp_gguf *a, *b;
    assert_ok(pp_gguf_open(exact, &a, &err), err);
    assert_ok(pp_gguf_open(quantised, &b, &err), err);
    const struct pp_tensor *x = pp_gguf_tensor(a, name), *y = pp_gguf_tensor(b, name);
    const int64_t n = x->ne[0];
    float *want = pp_malloc((size_t)n * sizeof *want), *got = pp_malloc((size_t)n * sizeof *got);
    assert_true(x && y && want && got && y->ne[0] == n);
    sum[0] = sum[1] = 0;
    for (int64_t r = 0; r < x->ne[1] * x->ne[2]; r++) {
        pp_dequantize_row(x->type, (const uint8_t *)x->data + (size_t)r * pp_type_row_bytes(x->type, n), want, n);
        pp_dequantize_row(y->type, (const uint8_t *)y->data + (size_t)r * pp_type_row_bytes(y->type, n), got, n);
        for (int64_t i = 0; i < n; i++)
            sum[i % 16 >= 8] += pow((double)(want[i] - got[i]), 2);
    }
    pp_free(want);
    pp_free(got);
    pp_gguf_close(a);
    pp_gguf_close(b);
}

/* A matrix in which the first half of every 16 columns is a hundred times as important. */
static struct pp_imatrix *lopsided(const char *name, int64_t n_cols, int64_t n)
{
    struct pp_imatrix *m;
    struct pp_importance *e;
    assert_ok(pp_imatrix_new(&m, &err), err);
    assert_ok(pp_imatrix_entry(m, name, n_cols, n, &e, &err), err);
    for (int64_t i = 0; i < n_cols * n; i++)
        e->sums[i] = i % 16 < 8 ? 100 : 1;
    for (int64_t i = 0; i < n; i++)
        e->counts[i] = 10;
    assert_ok(pp_imatrix_count(m, "lopsided", 1, 10, &err), err);
    return m;
}

static void what_matters_is_kept_better(void **state)
{
    static const char *const types[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K_S", "Q3_K_S", "Q4_K_S",
                                        "Q5_K_S", "Q6_K", "IQ4_NL", "IQ4_XS"};
    static const char name[] = "blk.0.attn_k.weight";
    const struct tiny_shape shape = tiny_shape(PP_TYPE_F32);
    const char *source = tiny_model(&shape), *plain = test_path("plain.gguf"), *weighed = test_path("weighed.gguf");
    struct pp_imatrix *m = lopsided(name, 256, 1);
    struct pp_imatrix_use use;
    const struct pp_convert_options opt = {.imatrix = m, .imatrix_name = "m.gguf", .imatrix_use = &use};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        double before[2], after[2];
        assert_ok(pp_quantize_file(source, plain, types[t], NULL, &err), err);
        assert_ok(pp_quantize_file(source, weighed, types[t], &opt, &err), err);
        assert_int_equal(use.n_weighed, 1);
        assert_true(use.n_unweighed > 10);
        assert_string_equal(use.first, "token_embd.weight");
        errors_of(source, plain, name, before);
        errors_of(source, weighed, name, after);
        if (!(after[0] < before[0] * 0.999 && after[1] > before[1]))
            fail_msg("%s: %g and %g, before %g and %g", types[t], after[0], after[1], before[0], before[1]);
        errors_of(plain, weighed, "blk.1.attn_k.weight", after); /* the importance matrix has no data for it */
        assert_near(after[0] + after[1], 0, 0);
    }
    struct pp_gguf *g;
    int64_t v;
    assert_ok(pp_gguf_open(weighed, &g, &err), err);
    assert_true(pp_gguf_string_is(g, "quantize.imatrix.file", "m.gguf"));
    assert_true(pp_gguf_string_is(g, "quantize.imatrix.dataset", "lopsided"));
    assert_true(pp_gguf_int(g, "quantize.imatrix.entries_count", &v) && v == 1);
    assert_true(pp_gguf_int(g, "quantize.imatrix.chunks_count", &v) && v == 1);
    pp_gguf_close(g);
    assert_ok(pp_quantize_file(weighed, plain, "F16", NULL, &err), err); /* F16 does not use importances */
    assert_ok(pp_gguf_open(plain, &g, &err), err);
    assert_false(pp_gguf_has(g, "quantize.imatrix.file"));
    pp_gguf_close(g);
    pp_imatrix_free(m);
}

/* Each expert is quantised with its own importances; one that was never used, as without any. */
static void experts_have_their_own(void **state)
{
    static const char name[] = "blk.0.ffn_up_exps.weight";
    struct tiny_shape shape = tiny_shape(PP_TYPE_F32);
    shape.n_expert = 3;
    const char *source = tiny_model(&shape), *plain = test_path("plain.gguf"), *weighed = test_path("weighed.gguf");
    struct pp_imatrix *m = lopsided(name, 256, 3);
    struct pp_imatrix_use use;
    struct pp_gguf *a, *b;
    (void)state;
    pp_imatrix_find(m, name)->counts[1] = 0;
    const struct pp_convert_options opt = {.imatrix = m, .imatrix_use = &use};
    assert_ok(pp_quantize_file(source, plain, "Q4_0", NULL, &err), err);
    assert_ok(pp_quantize_file(source, weighed, "Q4_0", &opt, &err), err);
    assert_int_equal(use.n_weighed, 2);
    assert_ok(pp_gguf_open(plain, &a, &err), err);
    assert_ok(pp_gguf_open(weighed, &b, &err), err);
    const struct pp_tensor *x = pp_gguf_tensor(a, name), *y = pp_gguf_tensor(b, name);
    assert_int_equal(x->size, y->size);
    for (int e = 0; e < 3; e++) {
        const bool same = memcmp((const uint8_t *)x->data + (size_t)e * x->size / 3,
                                 (const uint8_t *)y->data + (size_t)e * x->size / 3, x->size / 3) == 0;
        assert_true(same == (e == 1));
    }
    pp_gguf_close(a);
    pp_gguf_close(b);
    pp_imatrix_free(m);
}

static void of_another_model(void **state)
{
    const struct tiny_shape shape = tiny_shape(PP_TYPE_F32);
    const char *source = tiny_model(&shape), *to = test_path("another.gguf");
    struct pp_map map;
    (void)state;
    struct pp_imatrix *m = lopsided("blk.0.attn_k.weight", 512, 1);
    assert_int_equal(pp_quantize_file(source, to, "Q4_0", &(struct pp_convert_options){.imatrix = m}, &err),
                     PP_ERR_MISMATCH);
    assert_non_null(strstr(err.text, "512 columns for blk.0.attn_k.weight, but the model has 256"));
    pp_imatrix_free(m);
    m = lopsided("model.layers.0.k", 256, 1);
    assert_int_equal(pp_quantize_file(source, to, "Q4_0", &(struct pp_convert_options){.imatrix = m}, &err),
                     PP_ERR_MISMATCH);
    assert_int_not_equal(pp_map_open(to, &map, NULL), PP_OK); /* nothing was written */
    pp_imatrix_free(m);
}

static void out_of_memory(void **state)
{
    struct pp_buf b = old_file();
    struct pp_imatrix *m;
    const char *path = gguf_file("imatrix", 1, 1, 1, PP_TYPE_F32);
    (void)state;
    for (int form = 0; form < 2; form++) {
        for (uint64_t nth = 1;; nth++) {
            pp_mem_fail_at(nth, 1);
            enum pp_code code = form ? pp_imatrix_read(path, &m, &err)
                                     : pp_imatrix_read_memory(b.data, b.len, "old", &m, &err);
            pp_mem_fail_at(0, 0);
            if (!code)
                break;
            assert_int_equal(code, PP_ERR_NOMEM);
            assert_true(nth < 100);
        }
        pp_imatrix_free(m);
    }
    pp_buf_free(&b);
}

TEST_GROUP(imatrix)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_layer_by_hand),
        cmocka_unit_test(the_way_does_not_matter),
        cmocka_unit_test(experts_are_counted_apart),
        cmocka_unit_test(the_output_counts_where_there_is_one),
        cmocka_unit_test(files_come_back),
        cmocka_unit_test(the_older_form_is_read),
        cmocka_unit_test(several_become_one),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(nothing_is_not_written),
        cmocka_unit_test(what_matters_is_kept_better),
        cmocka_unit_test(experts_have_their_own),
        cmocka_unit_test(of_another_model),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("imatrix", tests, NULL, NULL);
}
